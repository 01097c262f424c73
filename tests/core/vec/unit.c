/* The tiles of vec/amx_bf16_square.h and amx_bf16_shuffle.h against plain definitions, where the CPU
 * has them. */
#include "core/half.h"
#include "support/check.h"
#include "support/functions.h"

#include <math.h>
#include <string.h>

enum { ROWS = 32, LANES = 16, TERMS = 32, MOST_STEPS = 3, MOST_COLUMNS = 4 };

static const unit_functions *
functions_or_note(void)
{
    const unit_functions *f = unit_functions_here();

    if (f == NULL) {
        note("this CPU has none");
    }
    return f;
}

static float
number_at(const uint16_t *halves, ptrdiff_t i)
{
    return attn_from_bf16(halves[i]);
}

/* start + the products of a row of a and a column of b: of each 32 terms the even ones make a
 * chain of fused multiply-adds from 0, and so do the odd ones; their sum is added. */
static float
plain_sum(float start, const uint16_t *a, const uint16_t *b, ptrdiff_t b_row,
          int n_steps)
{
    float sum = start;

    for (int t = 0; t < n_steps; t++) {
        float chains[2] = {0, 0};
        for (int k = 0; k < TERMS; k++) {
            ptrdiff_t pair = t * TERMS / 2 + k / 2;
            float y = number_at(b, pair * b_row + k % 2);
            chains[k % 2] = fmaf(number_at(a, t * TERMS + k), y, chains[k % 2]);
        }
        sum += chains[0] + chains[1];
    }
    return sum;
}

static void
fill(uint16_t *halves, ptrdiff_t n, uint64_t *state)
{
    for (ptrdiff_t i = 0; i < n; i++) { /* no sum of products is subnormal */
        int spread = (int)random_below(state, 16);
        halves[i] = attn_to_bf16(ldexpf((float)random_unit(state), spread - 8));
    }
}

static uint16_t a[ROWS * MOST_STEPS * TERMS];
static uint16_t b[MOST_STEPS * TERMS * LANES * MOST_COLUMNS];
static float sums[ROWS * LANES * MOST_COLUMNS], start[ROWS * LANES * MOST_COLUMNS];

/* How many of the sums differ from plain ones. */
static int
count_wrong(int n_rows, int n_steps, int columns)
{
    int n_wrong = 0;

    for (int i = 0; i < n_rows * LANES * columns; i++) {
        int row = i / (LANES * columns), lane = i % (LANES * columns);
        float want = plain_sum(start[i], a + row * n_steps * TERMS, b + lane * 2,
                               LANES * columns * 2, n_steps);
        n_wrong += memcmp(&want, &sums[i], sizeof want) != 0;
    }
    return n_wrong;
}

void
test_products_of_tiles_are_those_of_the_definition(void)
{
    const unit_functions *f = functions_or_note();
    uint64_t state = 1;

    for (int n = 0; n < 60 && f != NULL; n++) {
        int n_steps = 1 + n % MOST_STEPS, columns = 1 + n % 2;
        bool resume = n % 4 > 1;
        fill(a, ROWS * n_steps * TERMS, &state);
        fill(b, n_steps * TERMS * LANES * MOST_COLUMNS, &state);
        for (ptrdiff_t i = 0; i < ROWS * LANES * columns; i++) {
            start[i] = resume ? (float)random_unit(&state) : 0;
            sums[i] = start[i];
        }
        f->multiply(a, b, sums, n_steps, columns, resume);
        int n_wrong = count_wrong(ROWS, n_steps, columns);
        expect(n_wrong == 0, "%d steps, %d columns: %d wrong", n_steps, columns,
               n_wrong);
        memset(start, 0, sizeof start);
        f->multiply_line(a, b, sums, n_steps);
        n_wrong = count_wrong(ROWS / 2, n_steps, MOST_COLUMNS);
        expect(n_wrong == 0, "%d steps of a line: %d wrong", n_steps, n_wrong);
    }
}

void
test_what_tiles_take_is_put_in_order(void)
{
    const unit_functions *f = functions_or_note();
    float from[LANES * LANES], to[4 * LANES], unzipped[2 * LANES];
    uint16_t low[2 * LANES], up[2 * LANES];
    uint32_t zipped[2 * LANES];
    int n_wrong = 0;

    if (f == NULL) {
        return;
    }
    for (int i = 0; i < LANES * LANES; i++) {
        from[i] = (float)i;
    }
    f->transpose_four(from, to);
    for (int i = 0; i < 4 * LANES; i++) {
        n_wrong += to[i] != from[i % LANES * LANES + i / LANES];
    }
    expect(n_wrong == 0, "u_transpose_four: %d wrong", n_wrong);
    for (int i = 0; i < 2 * LANES; i++) {
        low[i] = (uint16_t)i;
        up[i] = (uint16_t)(100 + i);
    }
    f->zip(low, up, zipped, unzipped);
    for (int i = 0; i < 2 * LANES; i++) {
        uint32_t element = (uint32_t)(f->zip_element(i % LANES) + i / LANES * 4);
        n_wrong += zipped[i] != (element | (100 + element) << 16);
        n_wrong += unzipped[i] != (float)i;
    }
    expect(n_wrong == 0, "u_zip and u_unzip: %d wrong", n_wrong);
}

void
test_weights_of_a_unit_are_exponentials(void)
{
    const unit_functions *f = functions_or_note();
    float scores[LANES], weights[LANES], operands[LANES];
    double worst = 0;

    if (f == NULL) {
        return;
    }
    for (int n = 0; n < 4096; n++) { /* exponents from 0 to -64 */
        for (int i = 0; i < LANES; i++) {
            scores[i] = (float)(24 - (n * LANES + i) * 0x1p-10);
        }
        f->weigh(scores, 0.5f, 12, weights, operands);
        for (int i = 0; i < LANES; i++) {
            double error = weights[i] / exp(0.5 * scores[i] - 12) - 1;
            worst = fmax(worst, fabs(error));
        }
    }
    expect(worst < 3e-6, "an error of %g", worst); /* also of roundings of 12 log2 e */
    note("errors up to %.2g", worst);
    for (int i = 0; i < LANES; i++) {
        static const float some[] = {(float)-INFINITY, (float)NAN, 24, -1e30f};
        scores[i] = some[i % 4];
    }
    f->weigh(scores, 0.5f, 12, weights, operands);
    expect(weights[0] == 0 && isnan(weights[1]) && fabsf(weights[2] - 1) < 4e-7F &&
               weights[3] == 0,
           "%g, %g, %g, %g", weights[0], weights[1], weights[2], weights[3]);
    expect(operands[0] == 0 && isnan(operands[1]) && operands[2] == weights[2] &&
               operands[3] == 0,
           "%g, %g, %g, %g", operands[0], operands[1], operands[2], operands[3]);
    f->weigh(scores, 0.5f, (float)-INFINITY, weights, operands);
    expect(weights[0] == 0, "%g where no key is seen", weights[0]);
}

/* Whether it is the smallest normal number, or more, once it is bfloat16. */
static bool
is_normal_as_bfloat16(float x)
{
    return x >= 0x1p-126f - 0x1p-134f;
}

void
test_operands_of_a_unit_are_never_subnormal(void)
{
    const unit_functions *f = functions_or_note();
    float scores[LANES], weights[LANES], operands[LANES];
    int n_zero = 0, n_wrong = 0;

    if (f == NULL) {
        return;
    }
    for (int n = 0; n < 4096; n++) { /* exponents from 0 to -256 */
        for (int i = 0; i < LANES; i++) {
            scores[i] = (float)(24 - (n * LANES + i) * 0x1.62e43p-8); /* 2 ln 2 / 256 */
        }
        f->weigh(scores, 0.5f, 12, weights, operands);
        for (int i = 0; i < LANES; i++) {
            bool is_normal = is_normal_as_bfloat16(weights[i]);
            bool is_near = !is_normal && weights[i] > 0x1p-126f - 0x1p-133f;
            n_zero += operands[i] == 0;
            n_wrong += operands[i] != (is_normal ? weights[i] : 0) &&
                       !(is_near && operands[i] == weights[i]);
        }
    }
    expect(n_wrong == 0, "%d are wrong", n_wrong);
    expect(n_zero > 1000, "only %d are 0", n_zero);
}
