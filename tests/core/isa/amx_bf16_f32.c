/* What AMX adds to the functions. */
#if defined(__x86_64__) && defined(__linux__)
#include "isa/amx_bf16_f32.h"

#include "kernel/math/exp.h"
#include "support/functions.h"

extern const unit_functions functions_amx_bf16;

static void
multiply(const uint16_t *a, const uint16_t *b, float *sums, int n_steps, int columns,
         bool resume)
{
    const ptrdiff_t a_row = n_steps * UNIT_TERMS * 2, b_row = columns * 64;

    u_begin(UNIT_ROWS);
    if (resume) {
        u_load_square(sums, b_row, 2, columns);
    } else {
        u_clear_square(2, columns);
    }
    for (int t = 0; t < n_steps; t++) {
        u_multiply_square((const char *)(a + t * UNIT_TERMS), a_row, UNIT_ROWS * a_row,
                          (const char *)(b + t * UNIT_TERMS * UNIT_LANES * columns),
                          b_row, 2, columns);
    }
    u_store_square(sums, b_row, 2, columns);
    u_end();
}

static void
multiply_line(const uint16_t *a, const uint16_t *b, float *sums, int n_steps)
{
    const ptrdiff_t a_row = n_steps * UNIT_TERMS * 2, b_row = UNIT_LINE * 64;

    u_begin(UNIT_ROWS);
    u_clear_line();
    for (int t = 0; t < n_steps; t++) {
        u_multiply_line((const char *)(a + t * UNIT_TERMS), a_row,
                        (const char *)(b + t * UNIT_TERMS * UNIT_LANES * UNIT_LINE),
                        b_row);
    }
    u_store_line(sums, b_row);
    u_end();
}

static void
transpose_four(const float *from, float *to)
{
    v_real rows[4];

    u_transpose_four(from, rows);
    for (int r = 0; r < 4; r++) {
        v_store(to + r * LANES, rows[r]);
    }
}

/* Both orders of pairs: zipped, and then, of numbers as large as 32 bits, unzipped. */
static void
zip(const uint16_t *low, const uint16_t *up, uint32_t *zipped, float *unzipped)
{
    v_real lanes[2];

    v_store_pairs(zipped, u_zip(low, up, false));
    v_store_pairs(zipped + LANES, u_zip(low, up, true));
    for (int i = 0; i < LANES; i++) {
        unzipped[i] = (float)u_zip_element(i);
        unzipped[LANES + i] = (float)(u_zip_element(i) + 4);
    }
    lanes[0] = v_load(unzipped);
    lanes[1] = v_load(unzipped + LANES);
    u_unzip(&lanes[0], &lanes[1]);
    v_store(unzipped, lanes[0]);
    v_store(unzipped + LANES, lanes[1]);
}

static void
weigh(const float *scores, float scale, float max, float *weights, float *operands)
{
    v_real base = exponent_base(v_set1(max)), factor = v_set1(exponent_scale(scale));

    v_store(weights, weight_exp(v_load(scores), factor, base));
    v_store(operands, operand_exp(v_load(scores), factor, base));
}

const unit_functions functions_amx_bf16 = {.multiply = multiply,
                                           .multiply_line = multiply_line,
                                           .transpose_four = transpose_four,
                                           .zip = zip,
                                           .zip_element = u_zip_element,
                                           .weigh = weigh};

#include "isa/end.h"
#endif
