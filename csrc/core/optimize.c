/* Lines of numbers in blocks, whose arithmetic is that of NumPy's functions one by one. */
#include "core/optimize.h"

#include "core/half.h"
#include "core/workspace.h"

#include <math.h>

enum { BLOCK = 8192, PAIRWISE = 128, CHAINS = 8 };

double
attn_line_work(ptrdiff_t n)
{
    return (double)n * ATTN_WORK_OF_A_NUMBER;
}

/* ---- AdamW ------------------------------------------------------------------------------ */

static void
change_floats(ptrdiff_t n, float *restrict parameter, float *restrict mean,
              float *restrict square, const float *restrict gradient,
              const attn_adamw_factors *f)
{
    const float new_mean = (float)f->new_mean, old_square = (float)f->old_square;
    const float new_square = (float)f->new_square, root = (float)f->root;
    const float eps = (float)f->eps, rate = (float)f->rate, kept = (float)f->kept;

    for (ptrdiff_t i = 0; i < n; i++) {
        float g = gradient[i];
        mean[i] += (g - mean[i]) * new_mean;
        square[i] = square[i] * old_square + g * g * new_square;
        float step = mean[i] / (sqrtf(square[i]) * root + eps) * rate;
        parameter[i] = parameter[i] * kept - step;
    }
}

static void
change_doubles(ptrdiff_t n, double *restrict parameter, double *restrict mean,
               double *restrict square, const double *restrict gradient,
               const attn_adamw_factors *f)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        double g = gradient[i];
        mean[i] += (g - mean[i]) * f->new_mean;
        square[i] = square[i] * f->old_square + g * g * f->new_square;
        double step = mean[i] / (sqrt(square[i]) * f->root + f->eps) * f->rate;
        parameter[i] = parameter[i] * f->kept - step;
    }
}

/* Takes over the numbers that other code has written to `stored`. */
static void
begin_again(ptrdiff_t n, float *parameter, const uint16_t *stored)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        if (attn_to_bf16(parameter[i]) != stored[i]) {
            parameter[i] = attn_from_bf16(stored[i]);
        }
    }
}

static void
change_block(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const attn_adamw_problem *p = context;
    ptrdiff_t first = index * BLOCK, n = attn_part_of(p->n, BLOCK, index);

    (void)worker;
    if (p->dtype == ATTN_F64) {
        change_doubles(n, (double *)p->parameter + first, (double *)p->mean + first,
                       (double *)p->square + first, (const double *)p->gradient + first,
                       &p->factors);
        return;
    }
    float *parameter = (float *)p->parameter + first;
    if (p->stored != NULL) {
        begin_again(n, parameter, p->stored + first);
    }
    change_floats(n, parameter, (float *)p->mean + first, (float *)p->square + first,
                  (const float *)p->gradient + first, &p->factors);
    for (ptrdiff_t i = 0; i < n && p->stored != NULL; i++) {
        p->stored[first + i] = attn_to_bf16(parameter[i]);
    }
}

void
attn_adamw(const attn_adamw_problem *p, attn_call *call)
{
    attn_tasks tasks = {.n = attn_divide_up(p->n, BLOCK),
                        .work = 2 * attn_line_work(p->n),
                        .run = change_block,
                        .context = p};

    (void)attn_run_tasks(&tasks, call);
}

/* ---- Clipping --------------------------------------------------------------------------- */

typedef struct {
    const attn_line *line;
    double *sums; /* of each block */
} sums_job;

/* Adds as NumPy does, from a block of some 128 numbers on in halves. */
static double
pairwise_sum(const double *x, ptrdiff_t n)
{
    double chains[CHAINS], sum = 0;
    ptrdiff_t i = 0;

    if (n > PAIRWISE) {
        ptrdiff_t half = n / 2 - n / 2 % CHAINS;
        return pairwise_sum(x, half) + pairwise_sum(x + half, n - half);
    }
    if (n >= CHAINS) {
        for (int c = 0; c < CHAINS; c++) {
            chains[c] = x[c];
        }
        for (i = CHAINS; i + CHAINS <= n; i += CHAINS) {
            for (int c = 0; c < CHAINS; c++) {
                chains[c] += x[i + c];
            }
        }
        sum = ((chains[0] + chains[1]) + (chains[2] + chains[3])) +
              ((chains[4] + chains[5]) + (chains[6] + chains[7]));
    }
    for (; i < n; i++) {
        sum += x[i];
    }
    return sum;
}

static void
square_block(const attn_line *line, ptrdiff_t first, ptrdiff_t n,
             double *restrict squares)
{
    if (line->dtype == ATTN_F32) {
        const float *from = (const float *)line->data + first;
        for (ptrdiff_t i = 0; i < n; i++) {
            squares[i] = (double)from[i] * (double)from[i];
        }
    } else if (line->dtype == ATTN_F64) {
        const double *from = (const double *)line->data + first;
        for (ptrdiff_t i = 0; i < n; i++) {
            squares[i] = from[i] * from[i];
        }
    } else {
        const uint16_t *from = (const uint16_t *)line->data + first;
        for (ptrdiff_t i = 0; i < n; i++) {
            double number = (double)attn_from_bf16(from[i]);
            squares[i] = number * number;
        }
    }
}

static void
sum_block(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const sums_job *j = context;
    ptrdiff_t n = attn_part_of(j->line->n, BLOCK, index);

    square_block(j->line, index * BLOCK, n, worker->workspace);
    j->sums[index] = pairwise_sum(worker->workspace, n);
}

int
attn_sum_of_squares(const attn_line *line, double *sum, attn_call *call)
{
    ptrdiff_t n = attn_divide_up(line->n, BLOCK);
    sums_job j = {line,
                  attn_workspace_acquire((size_t)(n > 0 ? n : 1) * sizeof(double))};
    attn_tasks tasks = {.n = n,
                        .work = attn_line_work(line->n),
                        .workspace_size = BLOCK * sizeof(double),
                        .run = sum_block,
                        .context = &j};

    *sum = 0;
    int status = j.sums == NULL ? -1 : attn_run_tasks(&tasks, call);
    for (ptrdiff_t i = 0; i < n && status == 0; i++) {
        *sum += j.sums[i];
    }
    attn_workspace_release(j.sums);
    return status;
}

typedef struct {
    const attn_line *line;
    double factor;
} scale_job;

static void
scale_block(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const scale_job *j = context;
    ptrdiff_t first = index * BLOCK, n = attn_part_of(j->line->n, BLOCK, index);
    float factor = (float)j->factor;

    (void)worker;
    if (j->line->dtype == ATTN_F64) {
        double *numbers = (double *)j->line->data + first;
        for (ptrdiff_t i = 0; i < n; i++) {
            numbers[i] *= j->factor;
        }
    } else if (j->line->dtype == ATTN_F32) {
        float *numbers = (float *)j->line->data + first;
        for (ptrdiff_t i = 0; i < n; i++) {
            numbers[i] *= factor;
        }
    } else {
        uint16_t *numbers = (uint16_t *)j->line->data + first;
        for (ptrdiff_t i = 0; i < n; i++) {
            numbers[i] = attn_to_bf16(attn_from_bf16(numbers[i]) * factor);
        }
    }
}

void
attn_scale(const attn_line *line, double factor, attn_call *call)
{
    scale_job j = {line, factor};
    attn_tasks tasks = {.n = attn_divide_up(line->n, BLOCK),
                        .work = attn_line_work(line->n),
                        .run = scale_block,
                        .context = &j};

    (void)attn_run_tasks(&tasks, call);
}
