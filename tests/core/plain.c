/* Attention by plain loops in double precision, from the definition: the formulas in the
 * order scale, softcap, bias, mask, softmax. Shares nothing with the core but the problem. */
#include "plain.h"
#include "problem.h"

#include <math.h>

static double
logit(const attn_problem *p, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t i, ptrdiff_t j)
{
    double sum = 0;

    if (!may_see(p, batch, head, i, j)) {
        return -HUGE_VAL;
    }
    for (ptrdiff_t d = 0; d < p->head_dim; d++) {
        sum += read_element(p, &p->query, batch, head, i, d) *
               read_element(p, &p->key, batch, head / p->group, j, d);
    }
    sum *= p->scale;
    if (p->softcap > 0) {
        sum = p->softcap * tanh(sum / p->softcap);
    }
    if (p->bias.data != NULL) {
        sum += read_element(p, &p->bias, batch, head, i, j);
    }
    return sum;
}

/* Turns logits into weights in place; those that are -inf have weight 0. */
static void
softmax(double *weights, ptrdiff_t n, double sink, double *lse)
{
    double max = sink, sum = 0;

    for (ptrdiff_t j = 0; j < n; j++) {
        max = weights[j] > max ? weights[j] : max;
    }
    max = isinf(max) && max < 0 ? 0 : max;
    for (ptrdiff_t j = 0; j < n; j++) {
        sum += exp(weights[j] - max);
    }
    sum += exp(sink - max);
    *lse = max + log(sum);
    for (ptrdiff_t j = 0; j < n; j++) {
        bool hidden = weights[j] == -HUGE_VAL;
        weights[j] = hidden ? 0 : exp(weights[j] - max) / sum;
    }
}

void
plain_row(const attn_problem *p, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t i,
          double *output, double *weights, double *lse)
{
    double sink = -HUGE_VAL;

    if (p->sinks.data != NULL) {
        sink = read_element(p, &p->sinks, batch, head, 0, 0);
    }
    for (ptrdiff_t j = 0; j < p->n_keys; j++) {
        weights[j] = logit(p, batch, head, i, j);
    }
    softmax(weights, p->n_keys, sink, lse);
    for (ptrdiff_t d = 0; d < p->value_dim; d++) {
        output[d] = 0;
    }
    for (ptrdiff_t j = 0; j < p->n_keys; j++) {
        if (!may_see(p, batch, head, i, j)) {
            continue;
        }
        for (ptrdiff_t d = 0; d < p->value_dim; d++) {
            output[d] +=
                weights[j] * read_element(p, &p->value, batch, head / p->group, j, d);
        }
    }
}
