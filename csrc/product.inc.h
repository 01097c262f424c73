/* The micro-kernel: C[i][lanes] = the sum over t of A[i][t] * B[t][lanes], each element one
 * chain of fused multiply-adds from 0 in ascending t; or C * keep plus that. A is read
 * element by element where it lies, B and C by vectors; accumulators stay in registers for
 * PANEL_ROWS x TILE_VECTORS of C. Included by kernel.inc.h only. */

typedef struct {
    const real *at;
    ptrdiff_t row; /* reals from row to row; columns are contiguous */
} matrix;

typedef struct {
    real *c;         /* (rows, n_vec * LANES) */
    ptrdiff_t c_row; /* reals from row to row */
    matrix a;        /* (rows, steps), or where a_transposed (steps, rows) */
    matrix b;        /* (steps, n_vec * LANES) */
    ptrdiff_t n_rows;
    ptrdiff_t n_steps;
    bool resume;      /* the chains that C holds, else begin at 0 */
    bool add;         /* to what C holds, else overwrite it */
    const real *keep; /* with add: what columns of C are multiplied by first; NULL: 1 */
} product;

/* sum = C, for a panel of C */
static INLINE void
load_panel(v_real *sum, const real *c, ptrdiff_t c_row, const int rows, const int n_vec)
{
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < n_vec; v++) {
            sum[r * n_vec + v] = v_load(c + r * c_row + v * LANES);
        }
    }
}

/* sum += C * keep */
static INLINE void
add_panel(v_real *sum, const real *c, ptrdiff_t c_row, const int rows, const int n_vec,
          const real *keep)
{
    for (int v = 0; v < n_vec; v++) {
        v_real factor = keep == NULL ? v_set1(1) : v_load(keep + v * LANES);
        for (int r = 0; r < rows; r++) {
            v_real *to = &sum[r * n_vec + v];
            *to = v_fma(v_load(c + r * c_row + v * LANES), factor, *to);
        }
    }
}

/* Rows i .. i + rows - 1 of the product; rows and n_vec are constants to the compiler. */
static INLINE void
multiply_panel(const product *m, ptrdiff_t i, const int rows, const int n_vec,
               const bool a_transposed)
{
    ptrdiff_t a_row = a_transposed ? 1 : m->a.row;
    ptrdiff_t a_step = a_transposed ? m->a.row : 1;
    const real *a = m->a.at + i * a_row;
    const real *b = m->b.at;
    real *c = m->c + i * m->c_row;
    v_real sum[PANEL_ROWS * TILE_VECTORS];

    for (int k = 0; k < rows * n_vec; k++) {
        sum[k] = v_set1(0);
    }
    if (m->resume) {
        load_panel(sum, c, m->c_row, rows, n_vec);
    }
    for (ptrdiff_t t = 0; t < m->n_steps; t++) {
        v_real x[PANEL_ROWS * TILE_VECTORS];
        for (int v = 0; v < n_vec; v++) {
            x[v] = v_load(b + v * LANES);
        }
        for (int r = 0; r < rows; r++) {
            v_real y = v_set1(a[r * a_row]);
            for (int v = 0; v < n_vec; v++) {
                sum[r * n_vec + v] = v_fma(y, x[v], sum[r * n_vec + v]);
            }
        }
        a += a_step;
        b += m->b.row;
    }
    if (m->add) {
        add_panel(sum, c, m->c_row, rows, n_vec, m->keep);
    }
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < n_vec; v++) {
            v_store(c + r * m->c_row + v * LANES, sum[r * n_vec + v]);
        }
    }
}

/* The last rows of a product, fewer than PANEL_ROWS. */
static INLINE void
multiply_rest(const product *m, ptrdiff_t i, const int n_vec, const bool a_transposed)
{
    switch (m->n_rows - i) {
    case 1: multiply_panel(m, i, 1, n_vec, a_transposed); break;
    case 2: multiply_panel(m, i, 2, n_vec, a_transposed); break;
    case 3: multiply_panel(m, i, 3, n_vec, a_transposed); break;
#if PANEL_ROWS > 4
    case 4: multiply_panel(m, i, 4, n_vec, a_transposed); break;
    case 5: multiply_panel(m, i, 5, n_vec, a_transposed); break;
#endif
#if PANEL_ROWS > 6
    case 6: multiply_panel(m, i, 6, n_vec, a_transposed); break;
    case 7: multiply_panel(m, i, 7, n_vec, a_transposed); break;
    case 8: multiply_panel(m, i, 8, n_vec, a_transposed); break;
    case 9: multiply_panel(m, i, 9, n_vec, a_transposed); break;
    case 10: multiply_panel(m, i, 10, n_vec, a_transposed); break;
    case 11: multiply_panel(m, i, 11, n_vec, a_transposed); break;
#endif
    default: break;
    }
}

static INLINE void
multiply_columns(const product *m, const int n_vec, const bool a_transposed)
{
    ptrdiff_t i = 0;

    for (; i + PANEL_ROWS <= m->n_rows; i += PANEL_ROWS) {
        multiply_panel(m, i, PANEL_ROWS, n_vec, a_transposed);
    }
    multiply_rest(m, i, n_vec, a_transposed);
}

/* n_vec is 1 .. TILE_VECTORS; fewer than TILE_VECTORS come singly. */
static NOINLINE void
multiply(product m, int n_vec)
{
    if (n_vec == TILE_VECTORS) {
        multiply_columns(&m, TILE_VECTORS, false);
        return;
    }
    for (; n_vec > 0; n_vec--, m.c += LANES, m.b.at += LANES) {
        multiply_columns(&m, 1, false);
    }
}

/* As multiply, with A given as (steps, rows). */
static NOINLINE void
multiply_transposed(product m, int n_vec)
{
    if (n_vec == TILE_VECTORS) {
        multiply_columns(&m, TILE_VECTORS, true);
        return;
    }
    for (; n_vec > 0; n_vec--, m.c += LANES, m.b.at += LANES) {
        multiply_columns(&m, 1, true);
        m.keep = m.keep == NULL ? NULL : m.keep + LANES;
    }
}

/* As many columns of the product of few rows as `wide` vectors at a time make up, if that
 * many accumulators fit in registers; moves on to the rest, and returns its vectors. */
static INLINE ptrdiff_t
multiply_wide(product *m, const int rows, const int wide, ptrdiff_t n_vec)
{
    for (; rows * wide <= PANEL_ROWS * TILE_VECTORS && n_vec >= wide; n_vec -= wide) {
        multiply_panel(m, 0, rows, wide, false);
        m->c += (ptrdiff_t)wide * LANES;
        m->b.at += (ptrdiff_t)wide * LANES;
    }
    return n_vec;
}

static INLINE void
multiply_few_rows(product m, const int rows, ptrdiff_t n_vec)
{
    n_vec = multiply_wide(&m, rows, 8, n_vec);
    n_vec = multiply_wide(&m, rows, 4, n_vec);
    n_vec = multiply_wide(&m, rows, 2, n_vec);
    multiply_wide(&m, rows, 1, n_vec);
}

/* As multiply, for 1 .. 8 rows and any number of vectors. */
static NOINLINE void
multiply_few(product m, ptrdiff_t n_vec)
{
    switch (m.n_rows) {
    case 1: multiply_few_rows(m, 1, n_vec); break;
    case 2: multiply_few_rows(m, 2, n_vec); break;
    case 3: multiply_few_rows(m, 3, n_vec); break;
    case 4: multiply_few_rows(m, 4, n_vec); break;
    case 5: multiply_few_rows(m, 5, n_vec); break;
    case 6: multiply_few_rows(m, 6, n_vec); break;
    case 7: multiply_few_rows(m, 7, n_vec); break;
    default: multiply_few_rows(m, 8, n_vec); break;
    }
}

/* Scores: C = A * B over head_dim steps, in one chain for each ATTN_DIM_BLOCK of them. */
static void
multiply_scores(product m, int n_vec, ptrdiff_t head_dim)
{
    ptrdiff_t d = 0;

    do {
        m.n_steps = least(head_dim - d, ATTN_DIM_BLOCK);
        m.add = d > 0;
        multiply(m, n_vec);
        m.a.at += ATTN_DIM_BLOCK;
        m.b.at += ATTN_DIM_BLOCK * m.b.row;
        d += ATTN_DIM_BLOCK;
    } while (d < head_dim);
}
