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

/* Expects the bits of one task of all numbers from tasks on this many threads, forwards
 * or backwards. */
static void
expect_same_numbers(const attn_tier *tier, attn_dtype dtype, attn_activation activation,
                    bool backwards, int n_threads)
{
    static numbers x, grad, together, apart;
    attn_call call = {.tier = tier, .n_threads = n_threads};
    const attn_numbers others = {(char *)&grad, dtype};
    attn_activate_problem p = {.x = {(char *)&x, dtype},
                               .times = others,
                               .output = {(char *)&together, dtype},
                               .n = N_NUMBERS,
                               .arithmetic = dtype,
                               .activation = activation};
    size_t size = N_NUMBERS * (size_t)attn_storage_of(dtype)->bytes;

    draw(&x, dtype);
    draw(&grad, dtype);
    if (backwards) {
        p.grad_output = others;
    }
    attn_kernel_for(tier, dtype, false)->activate.run(&p, 0, N_NUMBERS);
    p.output.data = (char *)&apart;
    attn_activate(&p, &call);
    expect(memcmp(&together, &apart, size) == 0,
           "%s, activation %d of dtype %d, %d threads: other bits", tier->name,
           activation, dtype, n_threads);
    p.output.data = p.x.data; /* in place */
    attn_activate(&p, &call);
    expect(memcmp(&x, &apart, size) == 0, "%s, activation %d of dtype %d, in place",
           tier->name, activation, dtype);
}

void
test_tasks_of_activations_give_the_bits_of_one(void)
{
    const double work = attn_set_work_per_thread(1);
    const attn_tier *tier;
    attn_activate_problem nothing = {.arithmetic = ATTN_F32};

    for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
        attn_call call = {.tier = tier, .n_threads = 3};
        for (int activation = ATTN_IDENTITY; activation <= ATTN_SWIGLU_OAI_FACTOR;
             activation++) {
            for (int n_threads = 1; n_threads <= 3; n_threads++) {
                attn_activation a = (attn_activation)activation;
                bool backwards = n_threads != 2;
                expect_same_numbers(tier, ATTN_F32, a, backwards, n_threads);
                expect_same_numbers(tier, ATTN_F64, a, !backwards, n_threads);
                expect_same_numbers(tier, ATTN_F64, a, backwards, n_threads);
            }
        }
        attn_activate(&nothing, &call);
    }
    attn_set_work_per_thread(work);
}
