/* Activations of arrays of contiguous numbers of any dtype, and their gradients. */
#ifndef ATTN_KERNEL_ROWS_ACTIVATE_ARRAY_H
#define ATTN_KERNEL_ROWS_ACTIVATE_ARRAY_H

#include "kernel/math/activation_grad.h"
#include "kernel/operands/convert.h"
#include "kernel/operands/prefetch.h"

enum {
    PART = 256,     /* numbers that are converted at a time, which are whole vectors */
    PARTS_AHEAD = 4 /* between prefetching numbers and reading them */
};

static NOINLINE void
load_part(real *to, const attn_numbers *from, ptrdiff_t first, ptrdiff_t n)
{
    ptrdiff_t size = attn_storage_of(from->dtype)->bytes;
    load_row(to, from->data + first * size, size, n, from->dtype);
}

/* Multiplies n reals by numbers from `first` on, where there are some. */
static NOINLINE void
multiply_by_part(real *row, const attn_numbers *by, ptrdiff_t first, ptrdiff_t n)
{
    real other[PART] = {0};

    if (by->data == NULL) {
        return;
    }
    load_part(other, by, first, n);
    for (ptrdiff_t k = 0; k < n; k += LANES) {
        v_store(row + k, v_mul(v_load(row + k), v_load(other + k)));
    }
}

/* Replaces n reals by the gradients there. A NaN is the same one, whatever it is from. */
static void
replace_by_gradients(const attn_activate_problem *p, real *x, ptrdiff_t first,
                     ptrdiff_t n)
{
    real grad[PART] = {0};

    load_part(grad, &p->grad_output, first, n);
    multiply_by_part(grad, &p->times, first, n);
    activation_grads(x, n, p->activation);
    for (ptrdiff_t k = 0; k < n; k += LANES) {
        v_store(x + k, quiet_nan_or(v_mul(v_load(grad + k), v_load(x + k))));
    }
}

/* Prefetches a part of numbers, from `first` on, if there are some: what is computed of them
 * takes as long as reading them from memory, so that either should not wait for the other. */
static void
prefetch_part(const attn_numbers *numbers, ptrdiff_t first)
{
    ptrdiff_t size = attn_storage_of(numbers->dtype)->bytes;
    prefetch part = {.at = numbers->data + first * size,
                     .bytes = PART * size,
                     .n_rows = numbers->data != NULL};

    prefetch_near(&part);
}

static void
run_activate(const attn_activate_problem *p, ptrdiff_t first, ptrdiff_t n)
{
    ptrdiff_t size = attn_storage_of(p->output.dtype)->bytes, end = first + n;
    real x[PART] = {0};

    for (ptrdiff_t k = first; k < end; k += PART) {
        ptrdiff_t n_now = least(end - k, PART);
        prefetch_part(&p->x, k + PARTS_AHEAD * PART);
        prefetch_part(&p->grad_output, k + PARTS_AHEAD * PART);
        prefetch_part(&p->output, k + PARTS_AHEAD * PART);
        load_part(x, &p->x, k, n_now);
        if (p->grad_output.data != NULL) {
            replace_by_gradients(p, x, k, n_now);
        } else {
            activate(x, x, NULL, LANES, round_up(n_now, LANES) / LANES, p->activation);
            multiply_by_part(x, &p->times, k, n_now);
        }
        store_row(p->output.data + k * size, size, x, n_now, p->output.dtype);
    }
}

#endif
