/* A layer's steps, one after the other. After a poll has said stop, the remaining ones
 * do nothing. */
#include "core/layer.h"

double
attn_layer_work(const attn_layer_problem *l)
{
    double work = l->attention == NULL ? 0 : attn_attention_work(l->attention);

    for (int i = 0; i < 3; i++) {
        work += l->projections[i] == NULL ? 0 : attn_linear_work(l->projections[i]);
        work += l->rotary[i] == NULL ? 0 : attn_rotary_work(l->rotary[i]);
    }
    work += l->results == NULL ? 0 : attn_rotary_work(l->results);
    return work + (l->output == NULL ? 0 : attn_linear_work(l->output));
}

int
attn_layer(const attn_layer_problem *l, attn_call *call)
{
    attn_linear_problem *projections[3];
    int n_projections = 0, status;

    for (int i = 0; i < 3; i++) {
        if (l->projections[i] != NULL) {
            projections[n_projections++] = l->projections[i];
        }
    }
    status = attn_linears(n_projections, projections, NULL, call);
    for (int i = 0; i < 3 && status == 0; i++) {
        if (l->rotary[i] != NULL) {
            status = attn_rotary(l->rotary[i], call);
        }
    }
    if (l->attention != NULL && status == 0) {
        status = attn_attention(l->attention, call);
    }
    if (l->results != NULL && status == 0) {
        status = attn_rotary(l->results, call);
    }
    if (l->output != NULL && status == 0) {
        status = attn_linear(l->output, call);
    }
    return status;
}
