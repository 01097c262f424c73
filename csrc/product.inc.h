/* The micro-kernel: C[i][lanes] += A[i][t] * B[t][lanes], each element one chain of fused
 * multiply-adds in ascending t. A is read element by element where it lies, B and C by
 * vectors; accumulators stay in registers for PANEL_ROWS x TILE_VECTORS of C. Included by
 * kernel.inc.h only. */

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
    bool add; /* start the chains from what C holds, else from 0 */
} product;

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
    v_real sum[PANEL_ROWS][TILE_VECTORS];

    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < n_vec; v++) {
            sum[r][v] = m->add ? v_load(c + r * m->c_row + v * LANES) : v_set1(0);
        }
    }
    for (ptrdiff_t t = 0; t < m->n_steps; t++) {
        v_real x[TILE_VECTORS];
        for (int v = 0; v < n_vec; v++) {
            x[v] = v_load(b + v * LANES);
        }
        for (int r = 0; r < rows; r++) {
            v_real y = v_set1(a[r * a_row]);
            for (int v = 0; v < n_vec; v++) {
                sum[r][v] = v_fma(y, x[v], sum[r][v]);
            }
        }
        a += a_step;
        b += m->b.row;
    }
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < n_vec; v++) {
            v_store(c + r * m->c_row + v * LANES, sum[r][v]);
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
    }
}
