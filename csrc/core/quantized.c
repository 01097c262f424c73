/* Matrices of integers with scales, as floats. */
#include "core/quantized.h"

#include "core/half.h"
#include "core/limits.h"
#include "core/tasks.h"

#include <assert.h>

/* Bytes of a line: a quad for each column of a panel. */
enum { QUAD_ROW = ATTN_PANEL_COLUMNS * ATTN_QUAD };

/* Reads the codes of four rows, less `zero`; `codes` is where those of its column begin. */
static void
read_quad(const attn_quantized *q, const uint8_t *codes, ptrdiff_t quad,
          int to[ATTN_QUAD])
{
    if (q->bits == 8) {
        for (int i = 0; i < ATTN_QUAD; i++) {
            to[i] = (int8_t)codes[quad * QUAD_ROW + i];
        }
        return;
    }
    ptrdiff_t n_quads = attn_code_unit(q->bits) / ATTN_QUAD;
    int which = (int)(quad % n_quads), shift = which % 2 * 4;
    int above = q->bits - 4, mask = (1 << above) - 1;
    const uint8_t *unit =
        codes + quad / n_quads * (n_quads / 2 + (above > 0)) * QUAD_ROW;
    const uint8_t *lower = unit + which / 2 * QUAD_ROW;
    const uint8_t *upper = unit + (above > 0 ? n_quads / 2 * QUAD_ROW : 0);

    for (int i = 0; i < ATTN_QUAD; i++) {
        to[i] = (lower[i] >> shift & 15) - q->zero;
        to[i] += (upper[i] >> above * which & mask) << 4;
        to[i] = q->values == NULL ? to[i] : q->values[to[i]];
    }
}

/* A conversion that waits for nothing. That of the CPU keeps the rest of a register, which compilers
 * clear first only where speed is worth the size. */
static float
float_of(int8_t code)
{
    return attn_float_from_bits(0x4b000000u + (uint32_t)(code + 128)) - 0x1.0001p23f;
}

/* n rows of 8 bits without minimums as floats; codes are those of their column, from the first row
 * on, as in read_quad(). */
static void
convert_bytes(const uint8_t *codes, ptrdiff_t n, float scale, float *to)
{
    for (ptrdiff_t row = 0; row < n; row += ATTN_QUAD, codes += QUAD_ROW) {
        for (int i = 0; i < ATTN_QUAD && row + i < n; i++) {
            to[row + i] = float_of((int8_t)codes[i]) * scale;
        }
    }
}

/* The scale or minimum of one of n_groups groups, for a column of a panel. */
static float
factor_at(const attn_factors *f, ptrdiff_t panel, ptrdiff_t n_groups, ptrdiff_t group,
          ptrdiff_t groups_per_block, ptrdiff_t column)
{
    ptrdiff_t at = (panel * n_groups + group) * ATTN_PANEL_COLUMNS + column;

    if (f->coarse != NULL) {
        ptrdiff_t n_blocks = attn_divide_up(n_groups, groups_per_block);
        ptrdiff_t block = panel * n_blocks + group / groups_per_block;
        return (float)((const int8_t *)f->fine)[at] *
               attn_from_f16(f->coarse[block * ATTN_PANEL_COLUMNS + column]);
    }
    if (f->dtype == ATTN_I8) {
        return attn_power_of((uint8_t)f->fine[at]);
    }
    return f->dtype == ATTN_F32
               ? ((const float *)(const void *)f->fine)[at]
               : attn_from_f16(((const uint16_t *)(const void *)f->fine)[at]);
}

void
attn_dequantize_column(const attn_quantized *q, ptrdiff_t n_rows, ptrdiff_t column,
                       float *to)
{
    ptrdiff_t panel = column / ATTN_PANEL_COLUMNS, within = column % ATTN_PANEL_COLUMNS;
    ptrdiff_t n_groups = attn_divide_up(n_rows, q->group);
    ptrdiff_t n_bytes =
        attn_code_rows(n_rows, q->bits) * q->bits / 8 * ATTN_PANEL_COLUMNS;
    const uint8_t *codes =
        (const uint8_t *)q->codes + panel * n_bytes + within * ATTN_QUAD;

    assert(column >= 0 && n_rows >= 0);
    for (ptrdiff_t group = 0; group < n_groups; group++) {
        ptrdiff_t first = group * q->group, end = first + q->group;
        float scale =
            factor_at(&q->scale, panel, n_groups, group, q->groups_per_block, within);
        float minimum = 0;
        if (q->minimum.fine != NULL) {
            minimum = factor_at(&q->minimum, panel, n_groups, group,
                                q->groups_per_block, within);
        }
        if (q->bits == 8 && q->minimum.fine == NULL) {
            convert_bytes(codes + first / ATTN_QUAD * QUAD_ROW,
                          (end < n_rows ? end : n_rows) - first, scale, to + first);
            continue;
        }
        for (ptrdiff_t row = first; row < end && row < n_rows; row += ATTN_QUAD) {
            int quad[ATTN_QUAD];
            read_quad(q, codes, row / ATTN_QUAD, quad);
            for (int i = 0; i < ATTN_QUAD && row + i < n_rows; i++) {
                float number = (float)quad[i] * scale;
                to[row + i] = q->minimum.fine == NULL ? number : number + minimum;
            }
        }
    }
}
