/* The product on a CPU's matrix unit: C[i][lanes] = the sum over t of A[i][t] * B[t][lanes],
 * where each instruction sums UNIT_TERMS terms and adds the sum to C. Products with the same
 * terms have the same bits, for any number of rows and lanes. */
#ifndef ATTN_KERNEL_AMX_PRODUCT_H
#define ATTN_KERNEL_AMX_PRODUCT_H

#include "kernel/operands/matrix.h"
#include "kernel/operands/prefetch.h"

/* Products come between these two calls: from the first to the second the thread has the unit's
 * tiles. */
static INLINE void
begin_products(void)
{
    u_begin(UNIT_ROWS);
}

static INLINE void
end_products(void)
{
    u_end();
}

/* Row form makes tiles when it needs them, of so many columns of sums, and has them until
 * end_products: making them takes longer than a product. */
static INLINE void
take_columns(int *has, int columns)
{
    if (*has != columns) {
        if (columns == 1) {
            u_begin_single();
        } else {
            u_begin(UNIT_ROWS);
        }
        *has = columns;
    }
}

enum {
    UNIT_OPERANDS = UNIT_TERMS / TERMS,    /* of a tile's row */
    UNIT_TILE = UNIT_ROWS * UNIT_OPERANDS, /* operands of a tile */
    UNIT_SQUARE = 2 * UNIT_ROWS            /* rows, or lanes, of two tiles */
};

typedef struct {
    real *c;         /* (rows, n_vec * LANES), whole tiles; with `output` a square */
    ptrdiff_t c_row; /* reals from row to row */
    const operand *a;
    ptrdiff_t a_row;  /* operands from row to row */
    ptrdiff_t a_tile; /* and from UNIT_ROWS rows to the next ones, */
    ptrdiff_t a_step; /* and from UNIT_TERMS terms */
    const operand *b; /* (steps * UNIT_OPERANDS, n_vec * LANES) */
    ptrdiff_t b_row;  /* operands from row to row */
    ptrdiff_t n_rows; /* computed are whole tiles */
    ptrdiff_t n_vec;
    ptrdiff_t n_steps; /* of UNIT_TERMS terms */
    bool resume;       /* adds to C, else overwrites it */
    real *output;      /* as C: becomes output * keep + C; or NULL */
    const real *keep;  /* (n_vec * LANES); NULL: 0 */
    uint64_t lanes;    /* of the output, those whose bit is set */
    prefetch next[2];  /* prefetched during the product */
} unit_product;

/* Adds the sums of a square from row i and vector v on to the output. */
static NOINLINE void
add_unit_sums(const unit_product *m, ptrdiff_t i, ptrdiff_t v, ptrdiff_t end)
{
    const ptrdiff_t n = least(m->n_rows - i, UNIT_SQUARE), row = m->c_row;
    const bool adds = m->keep != NULL;

    u_publish(m->c);
    for (; v < end; v++) {
        const v_real keep = adds ? v_load(m->keep + v * LANES) : v_set1(0);
        const v_mask wanted = v_mask_of(m->lanes >> (v * LANES));
        real *to = m->output + i * row + v * LANES;
        const real *from = m->c + v * LANES;
        for (ptrdiff_t r = 0; r < n; r++, to += row, from += row) {
            v_real sum = v_load(from), before = v_load(to);
            if (adds) {
                sum = v_fma(before, keep, sum);
            }
            v_store(to, v_select(wanted, sum, before));
        }
    }
}

/* Where sums from row i and vector v on go. */
static INLINE real *
square_of(const unit_product *m, ptrdiff_t i, ptrdiff_t v)
{
    return m->c + (m->output == NULL ? i * m->c_row : 0) + v * LANES;
}

/* Prefetches the share of the square of rows from i on. */
static NOINLINE void
prefetch_beside_square(const unit_product *m, ptrdiff_t i)
{
    for (int k = 0; k < 2; k++) {
        prefetch share = prefetch_slice(&m->next[k], i, UNIT_SQUARE, m->n_rows);
        prefetch_rows(&share, 0, share.n_rows);
    }
}

static INLINE void
begin_square(const unit_product *m, ptrdiff_t i, ptrdiff_t v, const int rows,
             const int columns)
{
    if (rows > 1 && v == 0 && (m->next[0].n_rows > 0 || m->next[1].n_rows > 0)) {
        prefetch_beside_square(m, i);
    }
    if (m->resume) {
        u_load_square(square_of(m, i, v), m->c_row * (ptrdiff_t)sizeof(real), rows,
                      columns);
    } else {
        u_clear_square(rows, columns);
    }
}

static INLINE void
end_square(const unit_product *m, ptrdiff_t i, ptrdiff_t v, const int rows,
           const int columns)
{
    u_store_square(square_of(m, i, v), m->c_row * (ptrdiff_t)sizeof(real), rows,
                   columns);
    if (m->output != NULL) {
        add_unit_sums(m, i, v, v + columns);
    }
}

static INLINE void
multiply_square(const unit_product *m, ptrdiff_t i, ptrdiff_t v, const int rows,
                const int columns)
{
    const ptrdiff_t a_row = m->a_row * (ptrdiff_t)sizeof(operand),
                    b_row = m->b_row * (ptrdiff_t)sizeof(operand);
    const operand *a = m->a + i / UNIT_ROWS * m->a_tile, *b = m->b + v * LANES;

    begin_square(m, i, v, rows, columns);
    for (ptrdiff_t t = 0; t < m->n_steps; t++) {
        u_multiply_square((const char *)a, a_row,
                          m->a_tile * (ptrdiff_t)sizeof(operand), (const char *)b,
                          b_row, rows, columns);
        a += m->a_step;
        b += UNIT_OPERANDS * m->b_row;
    }
    end_square(m, i, v, rows, columns);
}

/* All rows, for one column of tiles or two. */
static INLINE void
multiply_unit_columns(const unit_product *m, ptrdiff_t v, const int columns)
{
    ptrdiff_t i = 0;

    for (; i + UNIT_ROWS < m->n_rows; i += UNIT_SQUARE) {
        multiply_square(m, i, v, 2, columns);
    }
    if (i < m->n_rows) {
        multiply_square(m, i, v, 1, columns);
    }
}

static ONE_COPY void
multiply_on_unit(const unit_product *m)
{
    ptrdiff_t v = 0;

    u_publish(m);
    for (; v + 1 < m->n_vec; v += 2) {
        multiply_unit_columns(m, v, 2);
    }
    if (v < m->n_vec) {
        multiply_unit_columns(m, v, 1);
    }
    u_publish(m);
}

#endif
