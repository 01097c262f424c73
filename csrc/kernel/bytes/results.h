/* Tile form: from exact sums to scores and values. core/bytes.h has the arithmetic. */
#ifndef ATTN_KERNEL_BYTES_RESULTS_H
#define ATTN_KERNEL_BYTES_RESULTS_H

#include "core/bytes.h"

/* Stores what a piece of dimensions from `first` on adds to scores of a panel of keys, with n_vec
 * vectors of lanes from `lane` on. Before the last, they lack their factors. */
static INLINE void
store_scores(const attn_byte_product *m, ptrdiff_t k, ptrdiff_t first, bool last,
             ptrdiff_t lane, const v_sums *sum, const int n_vec)
{
    v_real factor[BYTE_VECTORS];

    UNROLLED for (int v = 0; v < n_vec; v++)
    {
        factor[v] = v_load(m->factor + lane + v * LANES);
    }
    UNROLLED for (int i = 0; i < BYTE_PANEL; i++)
    {
        float *to = m->sums + (k + i) * m->line + lane;
        if (k + i >= m->bytes.n) {
            break;
        }
        v_real scale = v_set1(m->scale[k + i]);
        UNROLLED for (int v = 0; v < n_vec; v++)
        {
            v_real score = v_float_sums(sum[i * n_vec + v]);
            if (first > 0) {
                score = v_add(v_load(to + v * LANES), score);
            }
            if (last) {
                score = v_mul(v_mul(score, factor[v]), scale);
            }
            v_store(to + v * LANES, score);
        }
    }
}

/* to = to * keep + a sum of codes; without keep, there is none so far. */
static INLINE void
store_value(float *to, const float *keep, v_real sum, v_real unit, v_real back)
{
    v_real x = v_mul(v_mul(sum, unit), back);

    if (keep != NULL) {
        x = v_fma(v_load(to), v_load(keep), x);
    }
    v_store(to, x);
}

/* sums[d][lane] = sums * keep + these sums, of `rows` columns from d on, or those that are left. */
static INLINE void
store_values(const attn_byte_product *m, ptrdiff_t d, ptrdiff_t lane, const v_sums *sum,
             const int rows, const int n_vec)
{
    UNROLLED for (int i = 0; i < rows; i++)
    {
        float *to = m->sums + (d + i) * m->line + lane;
        if (d + i >= m->bytes.dim) {
            break;
        }
        for (int v = 0; v < n_vec; v++, to += LANES) {
            ptrdiff_t at = lane + v * LANES;
            store_value(to, m->keep == NULL ? NULL : m->keep + at,
                        v_float_sums(sum[i * n_vec + v]), v_load(m->unit + at),
                        v_load(m->back + at));
        }
    }
}

#endif
