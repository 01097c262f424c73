/* The micro-kernel: C[i][lanes] = the sum over t of A[i][t] * B[t][lanes], each element one
 * chain of fused multiply-adds from 0 in ascending t; or C * keep plus that. A is read
 * operand by operand where it lies, B and C by vectors; accumulators stay in registers for
 * PANEL_ROWS x TILE_VECTORS of C. Included by kernel.inc.h only. */

typedef struct {
    const operand *at;
    ptrdiff_t row; /* operands from row to row; columns are contiguous */
} matrix;

/* Rows of an array that will be wanted soon. */
typedef struct {
    const char *at;
    ptrdiff_t row;   /* bytes from row to row */
    ptrdiff_t bytes; /* of a row */
    ptrdiff_t n_rows;
} soon;

typedef struct {
    real *c;         /* (rows, n_vec * LANES) */
    ptrdiff_t c_row; /* reals from row to row */
    matrix a;        /* (rows, steps), or where a_transposed (steps, rows) */
    const char *b;   /* (steps, n_vec * LANES) */
    ptrdiff_t b_row; /* bytes from row to row */
    ptrdiff_t n_rows;
    ptrdiff_t n_steps;
    bool resume;      /* the chains that C holds, else begin at 0 */
    bool add;         /* to what C holds, else overwrite it */
    const real *keep; /* with add: what columns of C are multiplied by first; NULL: 1 */
    soon next[2];     /* asked for meanwhile */
} product;

/* n_columns of n_rows rows of an array from an address on; none of it unless the columns are
 * adjacent. */
static soon
soon_rows(const attn_array *array, const char *at, ptrdiff_t n_columns,
          ptrdiff_t n_rows)
{
    bool adjacent =
        array->column_stride > 0 && array->column_stride <= (ptrdiff_t)sizeof(real);

    return (soon){.at = at,
                  .row = array->row_stride,
                  .bytes = n_columns * array->column_stride,
                  .n_rows = adjacent ? n_rows : 0};
}

/* Asks the second-level cache, for the first is too small, for rows first .. end - 1. */
static INLINE void
prefetch_rows(const soon *s, ptrdiff_t first, ptrdiff_t end)
{
    for (ptrdiff_t i = first; i < end; i++) {
        for (ptrdiff_t at = 0; at < s->bytes; at += CACHE_LINE) {
            __builtin_prefetch(s->at + i * s->row + at, 0, 2);
        }
    }
}

/* What is to be asked for while rows i .. i + PANEL_ROWS - 1 of n_rows are computed. */
static INLINE void
prefetch_share(const soon *s, ptrdiff_t i, ptrdiff_t n_rows)
{
    if (s->n_rows > 0) {
        prefetch_rows(s, i * s->n_rows / n_rows, (i + PANEL_ROWS) * s->n_rows / n_rows);
    }
}

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

/* Rows i .. i + rows - 1 of the product; rows, n_vec and so on are constants to the
 * compiler. */
static INLINE void
multiply_panel(const product *m, ptrdiff_t i, const int rows, const int n_vec,
               const bool a_transposed, const storage kind)
{
    const ptrdiff_t vector = LANES * (kind == AS_OPERANDS ? sizeof(operand) : 2);
    ptrdiff_t a_row = a_transposed ? 1 : m->a.row;
    ptrdiff_t a_step = a_transposed ? m->a.row : 1;
    ptrdiff_t b_step = kind == AS_TWO_ROWS ? 2 * m->b_row : m->b_row;
    const operand *a = m->a.at + i * a_row;
    const char *b = m->b;
    real *c = m->c + i * m->c_row;
    v_real sum[PANEL_ROWS * TILE_VECTORS];

    for (int k = 0; k < rows * n_vec; k++) {
        sum[k] = v_set1(0);
    }
    if (m->resume) {
        load_panel(sum, c, m->c_row, rows, n_vec);
    }
    for (ptrdiff_t t = 0; t < m->n_steps; t++) {
        v_operand x[PANEL_ROWS * TILE_VECTORS];
        for (int v = 0; v < n_vec; v++) {
            x[v] = load_operands(b + v * vector, b + m->b_row + v * vector, kind);
        }
        for (int r = 0; r < rows; r++) {
            v_operand y = v_set1_operand(a[r * a_row]);
            for (int v = 0; v < n_vec; v++) {
                sum[r * n_vec + v] = v_dot(y, x[v], sum[r * n_vec + v]);
            }
        }
        a += a_step;
        b += b_step;
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
    case 1: multiply_panel(m, i, 1, n_vec, a_transposed, AS_OPERANDS); break;
    case 2: multiply_panel(m, i, 2, n_vec, a_transposed, AS_OPERANDS); break;
    case 3: multiply_panel(m, i, 3, n_vec, a_transposed, AS_OPERANDS); break;
#if PANEL_ROWS > 4
    case 4: multiply_panel(m, i, 4, n_vec, a_transposed, AS_OPERANDS); break;
    case 5: multiply_panel(m, i, 5, n_vec, a_transposed, AS_OPERANDS); break;
#endif
#if PANEL_ROWS > 6
    case 6: multiply_panel(m, i, 6, n_vec, a_transposed, AS_OPERANDS); break;
    case 7: multiply_panel(m, i, 7, n_vec, a_transposed, AS_OPERANDS); break;
    case 8: multiply_panel(m, i, 8, n_vec, a_transposed, AS_OPERANDS); break;
    case 9: multiply_panel(m, i, 9, n_vec, a_transposed, AS_OPERANDS); break;
    case 10: multiply_panel(m, i, 10, n_vec, a_transposed, AS_OPERANDS); break;
    case 11: multiply_panel(m, i, 11, n_vec, a_transposed, AS_OPERANDS); break;
#endif
    default: break;
    }
}

static INLINE void
multiply_columns(const product *m, const int n_vec, const bool a_transposed)
{
    ptrdiff_t i = 0;

    for (; i + PANEL_ROWS <= m->n_rows; i += PANEL_ROWS) {
        prefetch_share(&m->next[0], i, m->n_rows);
        prefetch_share(&m->next[1], i, m->n_rows);
        multiply_panel(m, i, PANEL_ROWS, n_vec, a_transposed, AS_OPERANDS);
    }
    multiply_rest(m, i, n_vec, a_transposed);
}

/* n_vec is 1 .. TILE_VECTORS; fewer than TILE_VECTORS come singly. */
static INLINE void
multiply_tile(product m, int n_vec, const bool a_transposed)
{
    if (n_vec == TILE_VECTORS) {
        multiply_columns(&m, TILE_VECTORS, a_transposed);
        return;
    }
    for (; n_vec > 0; n_vec--) {
        multiply_columns(&m, 1, a_transposed);
        m.c += LANES;
        m.b += LANES * sizeof(operand);
        m.keep = m.keep == NULL ? NULL : m.keep + LANES;
        m.next[0].n_rows = m.next[1].n_rows = 0;
    }
}

static NOINLINE void
multiply(product m, int n_vec)
{
    multiply_tile(m, n_vec, false);
}

/* As multiply, with A given as (steps, rows). */
static NOINLINE void
multiply_transposed(product m, int n_vec)
{
    multiply_tile(m, n_vec, true);
}

/* As many columns of the product of few rows as `wide` vectors at a time make up, if that
 * many accumulators fit in registers; moves on to the rest, and returns its vectors. */
static INLINE ptrdiff_t
multiply_wide(product *m, const int rows, const int wide, ptrdiff_t n_vec,
              const storage kind)
{
    const ptrdiff_t vector = LANES * (kind == AS_OPERANDS ? sizeof(operand) : 2);

    for (; rows * wide <= PANEL_ROWS * TILE_VECTORS && n_vec >= wide; n_vec -= wide) {
        multiply_panel(m, 0, rows, wide, false, kind);
        m->c += (ptrdiff_t)wide * LANES;
        m->b += wide * vector;
    }
    return n_vec;
}

static INLINE void
multiply_few_rows(product m, const int rows, ptrdiff_t n_vec, const storage kind)
{
    n_vec = multiply_wide(&m, rows, 8, n_vec, kind);
    n_vec = multiply_wide(&m, rows, 4, n_vec, kind);
    n_vec = multiply_wide(&m, rows, 2, n_vec, kind);
    multiply_wide(&m, rows, 1, n_vec, kind);
}

/* As multiply, for 1, 2, 4 or 8 rows, any number of vectors, and B as it lies in memory. */
static INLINE void
multiply_few_as(product m, ptrdiff_t n_vec, const storage kind)
{
    switch (m.n_rows) {
    case 1: multiply_few_rows(m, 1, n_vec, kind); break;
    case 2: multiply_few_rows(m, 2, n_vec, kind); break;
    case 4: multiply_few_rows(m, 4, n_vec, kind); break;
    default: multiply_few_rows(m, 8, n_vec, kind); break;
    }
}

static NOINLINE void
multiply_few(product m, ptrdiff_t n_vec, storage kind)
{
    switch (kind) {
#if REAL_BITS == 32 && TERMS == 1
    case AS_F16: multiply_few_as(m, n_vec, AS_F16); break;
    case AS_BF16: multiply_few_as(m, n_vec, AS_BF16); break;
#elif TERMS > 1
    case AS_TWO_ROWS: multiply_few_as(m, n_vec, AS_TWO_ROWS); break;
#endif
    default: multiply_few_as(m, n_vec, AS_OPERANDS); break;
    }
}
