/* The product of tile form: rows of A in panels, lanes of B in vectors that lie together. The
 * sums of PANEL_ROWS x TILE_VECTORS vectors of C stay in registers, or those of half as many
 * rows of two tiles, which take fewer loads for a multiply-add. */
#ifndef ATTN_KERNEL_GEMM_TILES_H
#define ATTN_KERNEL_GEMM_TILES_H

#include "kernel/gemm/product.h"
#include "kernel/operands/prefetch.h"

/* C = A B, or C * keep + A B. */
typedef struct {
    product base;
    bool add;         /* to what C holds, else overwrite it */
    const real *keep; /* with add: what columns of C are multiplied by first; NULL: 1 */
    prefetch next[2]; /* prefetched during the product */
    ptrdiff_t b_tile, c_tile; /* of two tiles: bytes and reals from one to the other */
    ptrdiff_t more_steps;     /* of the second of two tiles, where A is transposed */
} tile_product;

/* Can two tiles be multiplied at once, as 2 * TILE_VECTORS vectors? */
enum { PAIRS_TILES = PANEL_ROWS == 12 && TERMS == 1 };

/* The rows of a panel of so many vectors. */
static INLINE int
panel_rows(const int n_vec)
{
    return n_vec > TILE_VECTORS ? PANEL_ROWS / 2 : PANEL_ROWS;
}

/* How many steps ahead rows of A that lie apart are prefetched. */
enum { STEPS_AHEAD = 8 };

/* sum += C * keep */
static INLINE void
add_kept(v_real *sum, const real *c, ptrdiff_t c_row, ptrdiff_t c_tile, const int rows,
         const int n_vec, const real *keep)
{
    UNROLLED for (int v = 0; v < n_vec; v++)
    {
        const real *from = c + vector_at(v, c_tile, LANES);
        v_real factor = keep == NULL ? v_set1(1) : v_load(keep + v * LANES);
        UNROLLED for (int r = 0; r < rows; r++)
        {
            v_real *to = &sum[r * n_vec + v];
            *to = v_fma(v_load(from + r * c_row), factor, *to);
        }
    }
}

/* Rows i .. i + rows - 1 of C. rows, n_vec and a_transposed are constants to the compiler;
 * `next` is what a whole panel prefetches. */
static INLINE void
multiply_panel(const tile_product *m, ptrdiff_t i, const int rows, const int n_vec,
               const bool a_transposed, const stepwise *next)
{
    const matrix a_rows = m->base.a;
    ptrdiff_t a_row = a_transposed ? 1 : a_rows.row;
    ptrdiff_t a_step = a_transposed ? a_rows.row : 1;
    const int per_pointer = a_transposed ? rows : POINTER_ROWS;
    const bool whole = rows == panel_rows(n_vec);
    const ptrdiff_t b_tile = m->b_tile;
    const char *ahead = whole ? next->at : NULL;
    const operand *a[MAX_POINTERS];
    const char *b = m->base.b;
    real *c = m->base.c + i * m->base.c_row;
    v_real sum[PANEL_ROWS * TILE_VECTORS];

    point_at_rows(a, a_rows.at + i * a_row, a_row, rows, per_pointer);
    clear_sums(sum, rows * n_vec);
    for (ptrdiff_t t = 0; t < m->base.n_steps; t++) {
        v_operand x[2 * TILE_VECTORS];
        UNROLLED for (int v = 0; v < n_vec; v++)
        {
            const char *from = b + vector_at(v, b_tile, LANES * sizeof(operand));
            x[v] = v_load_operands((const operand *)(const void *)from);
        }
        if (a_transposed) {
            __builtin_prefetch(a[0] + STEPS_AHEAD * a_step + rows - 1);
        }
        if (whole) {
            __builtin_prefetch(ahead, 0, 2);
            ahead += next->step;
        }
        add_step(sum, a, a_row, x, rows, n_vec, per_pointer);
        UNROLLED for (int g = 0; g * per_pointer < rows; g++)
        {
            a[g] += a_step;
            if (whole) {
                __asm__("" : "+r"(a[g])); /* or each has an index of its own */
            }
        }
        b += m->base.b_row;
    }
    if (a_transposed && n_vec > TILE_VECTORS) {
        add_more_steps(sum, &m->base, a[0], b + b_tile, m->more_steps, rows);
    }
    ptrdiff_t c_row = m->base.c_row;
    __asm__(""
            : "+r"(c_row)); /* or compilers keep all rows' addresses during the loop */
    if (m->add) {
        add_kept(sum, c, c_row, m->c_tile, rows, n_vec, m->keep);
    }
    store_sums(sum, c, c_row, m->c_tile, rows, n_vec);
}

/* Multiplies `rows` rows from i on, if a panel has more and as many are left; again, if they are
 * left twice, as of panels of six. Returns the next row. */
static INLINE ptrdiff_t
multiply_some(const tile_product *m, ptrdiff_t i, const int rows, const int n_vec,
              const bool a_transposed)
{
    if (rows >= panel_rows(n_vec) ||
        m->base.n_rows - i < rows) { /* the first the compiler knows */
        return i;
    }
    do {
        multiply_panel(m, i, rows, n_vec, a_transposed, NULL);
        i += rows;
    } while (panel_rows(n_vec) == 6 && m->base.n_rows - i >= rows);
    return i;
}

/* Multiplies the last rows of a product, fewer than a panel's, which are at most 12. A case for
 * each number of rows would take three times as much code. */
static INLINE void
multiply_rest(const tile_product *m, ptrdiff_t i, const int n_vec,
              const bool a_transposed)
{
    i = multiply_some(m, i, 8, n_vec, a_transposed);
    i = multiply_some(m, i, 4, n_vec, a_transposed);
    i = multiply_some(m, i, 2, n_vec, a_transposed);
    multiply_some(m, i, 1, n_vec, a_transposed);
}

/* Chooses one of the prefetches for whole panels to take line by line, as far as there is a step
 * for each line: a CPU may drop some of many lines that are prefetched at once. Where rows lie
 * apart, a panel takes a line of as many rows as it has steps. */
static NOINLINE stepwise
choose_stepwise(tile_product *m, ptrdiff_t n_panels)
{
    ptrdiff_t n_steps = n_panels * m->base.n_steps;

    for (int k = 0; k < 2 && n_steps > 0; k++) {
        prefetch *next = &m->next[k];
        ptrdiff_t bytes = next->n_rows * next->bytes;
        if (bytes > 0 && next->row == next->bytes) {
            ptrdiff_t step = least((bytes + n_steps - 1) / n_steps, CACHE_LINE);
            ptrdiff_t n_rows = least(n_steps * step / next->row, next->n_rows);
            stepwise chosen = {next->at, step, m->base.n_steps * step, n_panels};
            next->at += n_rows * next->row;
            next->n_rows -= n_rows;
            return chosen;
        }
        ptrdiff_t offset = (ptrdiff_t)((uintptr_t)next->at % CACHE_LINE);
        ptrdiff_t n_lines = (offset + next->bytes + CACHE_LINE - 1) / CACHE_LINE;
        if (next->n_rows >= m->base.n_steps && n_panels >= n_lines) {
            stepwise chosen = {next->at, next->row, CACHE_LINE, n_lines};
            next->at += m->base.n_steps * next->row;
            next->n_rows -= m->base.n_steps;
            return chosen;
        }
    }
    return (stepwise){.at = m->base.b};
}

/* Prefetches the share of the panel of rows from i on in what is not taken line by line. */
static NOINLINE void
prefetch_shares(const tile_product *m, ptrdiff_t i, int rows, ptrdiff_t whole)
{
    for (int k = 0; k < 2; k++) {
        prefetch share = prefetch_slice(&m->next[k], i, rows, whole);
        prefetch_rows(&share, 0, share.n_rows);
    }
}

static INLINE void
multiply_columns(tile_product *m, const int n_vec, const bool a_transposed)
{
    const int rows = panel_rows(n_vec);
    ptrdiff_t i = 0, n_panels = m->base.n_rows / rows, n_rest = m->base.n_rows % rows;

    if (rows == 6 && n_panels > 0 && (n_rest == 2 || n_rest == 3)) {
        n_panels--; /* twice four rows, for two would not keep the units busy */
    }
    stepwise next = choose_stepwise(m, n_panels);

    for (; i < n_panels * rows; i += rows) {
        if (m->next[0].n_rows > 0 || m->next[1].n_rows > 0) {
            prefetch_shares(m, i, rows, n_panels * rows);
        }
        multiply_panel(m, i, rows, n_vec, a_transposed, &next);
        next.at += next.panel;
        next.step = --next.n_panels > 0 ? next.step : 0;
    }
    multiply_rest(m, i, n_vec, a_transposed);
}

/* n_vec is 1 .. TILE_VECTORS, or twice as many. Fewer than TILE_VECTORS are multiplied one by
 * one. */
static INLINE void
multiply_tile(tile_product m, int n_vec, const bool a_transposed)
{
    if (PAIRS_TILES && n_vec == 2 * TILE_VECTORS) {
        multiply_columns(&m, 2 * TILE_VECTORS, a_transposed);
        return;
    }
    if (n_vec == TILE_VECTORS) {
        multiply_columns(&m, TILE_VECTORS, a_transposed);
        return;
    }
    for (; n_vec > 0; n_vec--) {
        multiply_columns(&m, 1, a_transposed);
        m.base.c += LANES;
        m.base.b += LANES * sizeof(operand);
        m.keep = m.keep == NULL ? NULL : m.keep + LANES;
        m.next[0].n_rows = m.next[1].n_rows = 0;
    }
}

static ALIGNED ONE_COPY void
multiply(tile_product m, int n_vec)
{
    multiply_tile(m, n_vec, false);
}

/* As multiply, where A is (steps, rows). */
static ALIGNED ONE_COPY void
multiply_transposed(tile_product m, int n_vec)
{
    multiply_tile(m, n_vec, true);
}

#endif
