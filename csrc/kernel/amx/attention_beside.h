/* Tile form: weights of a tile, while a matrix unit multiplies something else. */
#ifndef ATTN_KERNEL_AMX_ATTENTION_BESIDE_H
#define ATTN_KERNEL_AMX_ATTENTION_BESIDE_H

#include "kernel/amx/product.h"
#include "kernel/attention/tile_form/scores.h"

/* A product that is computed an instruction at a time. */
typedef struct {
    const unit_product *m;
    const operand *a, *b;
    ptrdiff_t i, step; /* row of the square, and step in it */
    int quarter;       /* of the step */
} unit_turns;

static INLINE void
take_turn(unit_turns *p)
{
    const unit_product *m = p->m;
    const ptrdiff_t size = sizeof(operand);

    if (p->step == 0 && p->quarter == 0) {
        p->a = m->a + p->i / UNIT_ROWS * m->a_tile;
        p->b = m->b;
        begin_square(m, p->i, 0, 2, 2);
    }
    UNROLLED for (int quarter = 0; quarter < UNIT_QUARTERS; quarter++)
    {
        if (quarter == p->quarter) {
            u_multiply_quarter(quarter, (const char *)p->a, m->a_row * size,
                               m->a_tile * size, (const char *)p->b, m->b_row * size, 2,
                               2);
        }
    }
    p->quarter = (p->quarter + 1) % UNIT_QUARTERS;
    if (p->quarter == 0) {
        p->a += m->a_step;
        p->b += UNIT_OPERANDS * m->b_row;
        p->step++;
    }
    if (p->step == m->n_steps) {
        end_square(m, p->i, 0, 2, 2);
        p->i += UNIT_SQUARE;
        p->step = 0;
    }
}

/* Weights of a whole tile, as operands, while the unit multiplies something else: after each
 * instruction of a product come some exponentials. The unit sleeps soon and wakes slowly, and
 * what vectors compute meanwhile takes no longer. */
static NOINLINE void
exponentiate_beside(real *scores, ptrdiff_t n_keys, real scale, real *max, real *sum,
                    real *rescale, const unit_product *m)
{
    const ptrdiff_t n_turns = m->n_rows / UNIT_SQUARE * m->n_steps * UNIT_QUARTERS;
    const ptrdiff_t some = n_turns > 0 ? n_keys / n_turns / TERMS * TERMS : 0;
    exponentials e =
        begin_exponentials(scores, n_keys, scale, max, rescale, TILE_VECTORS, TERMS);
    unit_turns turns = {.m = m};

    u_publish(m);
    for (ptrdiff_t k = 0, end = 0; k < n_keys || turns.i < m->n_rows; end += some) {
        if (turns.i < m->n_rows) {
            take_turn(&turns);
        } else {
            end = n_keys;
        }
        for (; k < end; k += TERMS) {
            exponentiate_lines(&e, scores, k, TILE_VECTORS, TERMS);
        }
    }
    u_publish(m);
    end_exponentials(&e, sum, rescale, TILE_VECTORS);
}

/* From products to weights. Another product is computed beside or before that. */
static void
weigh_beside(work *w, block *b, int tile, const span *s, const unit_product *m)
{
    const ptrdiff_t lane = (ptrdiff_t)tile * WIDTH, used = round_up(s->n, TERMS);
    const bool whole =
        tile_vectors(&w->rows, tile) == TILE_VECTORS && w->rows.p->dropout == 0;
    real *scores = scores_of(w, tile);
    unit_product none = {.n_rows = 0};

    if (!whole || m->n_vec != 2 || m->n_rows % UNIT_SQUARE != 0 || m->n_steps == 0) {
        multiply_on_unit(m);
        m = &none;
    }
    if (!whole) {
        exponentiate_tile(w, b, tile, s);
        return;
    }
    exponentiate_beside(scores, s->n, finish_tile(w, b, tile, s), w->chunk.max + lane,
                        w->chunk.sum + lane, w->rescale + lane, m);
    memset(scores + used / TERMS * WIDTH, 0,
           (size_t)((round_up(s->n, SUM_TERMS) - used) / TERMS * WIDTH) *
               sizeof(operand));
}

static void
weigh_tile(work *w, block *b, int tile, const span *s)
{
    weigh_beside(w, b, tile, s, &(unit_product){.n_rows = 0});
}

#endif
