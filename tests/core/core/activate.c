/* The driver of activations, which cuts long arrays into tasks. */
#include "core/activate.h"

#include "core/tiers.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_NUMBERS = 3 * (1 << 14) + 77 }; /* four tasks, the last one no whole vectors */

typedef union {
    float f32[N_NUMBERS];
    double f64[N_NUMBERS];
} numbers;

static void
draw(numbers *x, attn_dtype dtype)
{
    uint64_t state = 51;

    for (ptrdiff_t i = 0; i < N_NUMBERS; i++) {
        double number = ldexp(random_unit(&state), (int)(i % 32) - 20);
        if (dtype == ATTN_F32) {
            x->f32[i] = (float)number;
        } else {
            x->f64[i] = number;
        }
    }
}

/* Expects the bits of one task of all numbers from tasks on this many threads. */
static void
expect_same_numbers(const attn_tier *tier, attn_dtype dtype, attn_activation activation,
                    int n_threads)
{
    static numbers together, apart;
    attn_call call = {.tier = tier, .n_threads = n_threads};
    attn_activate_problem p = {.numbers = &together,
                               .n = N_NUMBERS,
                               .arithmetic = dtype,
                               .activation = activation};
    size_t size = N_NUMBERS * (size_t)attn_storage_of(dtype)->bytes;

    draw(&together, dtype);
    draw(&apart, dtype);
    attn_kernel_for(tier, dtype, false)->activate.run(&p, 0, N_NUMBERS);
    p.numbers = &apart;
    attn_activate(&p, &call);
    expect(memcmp(&together, &apart, size) == 0,
           "%s, activation %d of dtype %d, %d threads: other bits", tier->name,
           activation, dtype, n_threads);
}

void
test_tasks_of_activations_give_the_bits_of_one(void)
{
    const double work = attn_set_work_per_thread(1);
    const attn_tier *tier;
    attn_activate_problem nothing = {.numbers = NULL, .arithmetic = ATTN_F32};

    for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
        attn_call call = {.tier = tier, .n_threads = 3};
        for (int activation = ATTN_IDENTITY; activation <= ATTN_TANH; activation++) {
            for (int n_threads = 1; n_threads <= 3; n_threads++) {
                attn_activation a = (attn_activation)activation;
                expect_same_numbers(tier, ATTN_F32, a, n_threads);
                expect_same_numbers(tier, ATTN_F64, a, n_threads);
            }
        }
        attn_activate(&nothing, &call);
    }
    attn_set_work_per_thread(work);
}
