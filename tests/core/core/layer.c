/* A layer's run: the same bits on every tier, and tokens at their places in the cache. */
#include "core/layer.h"

#include "core/arrangement.h"
#include "core/tiers.h"
#include "support/check.h"

#include <string.h>

enum { B = 2, L = 3, E = 20, HK = 2, H = 4, D = 8, N_KEYS = 9, WIDTH = H * D };

static const attn_batch batch = {.n = B, .n_axes = 1, .shape = {B}};

/* The memory of a layer, and what is in it before the run. */
typedef struct {
    float x[B][L][E], weights[4][WIDTH * WIDTH], cos_sin[L][D];
    float heads[3][B][L][H][D], cache[2][B][HK][N_KEYS][D];
    float concat[B][L][H][D], output[B][L][E];
    int64_t past_lengths[B], lengths[B];
} memory;

static attn_array
rows_of(void *data, ptrdiff_t n_rows, ptrdiff_t n_columns)
{
    attn_array a = {.data = data, .dtype = ATTN_F32, .column_stride = 4};

    a.row_stride = n_columns * 4;
    a.batch_stride[0] = n_rows * a.row_stride;
    return a;
}

/* (B, n_heads, n_rows, D), a row's heads adjacent or each head's rows. */
static attn_array
heads_of(void *data, ptrdiff_t n_heads, ptrdiff_t n_rows, bool inside)
{
    attn_array a = rows_of(data, n_rows, n_heads * D);

    a.row_stride = inside ? n_heads * D * 4 : D * 4;
    a.head_stride = inside ? D * 4 : n_rows * D * 4;
    return a;
}

static attn_linear_problem
product(memory *m, int i, void *input, ptrdiff_t n_in, void *output, ptrdiff_t n_out)
{
    attn_linear_problem p = {.batch = batch, .n_rows = L, .arithmetic = ATTN_F32};

    p.n_in = n_in;
    p.n_out = n_out;
    p.input = rows_of(input, L, n_in);
    p.weight = rows_of(m->weights[i], n_in, n_out);
    p.output = rows_of(output, L, n_out);
    return p;
}

static attn_rotary_problem
to_cache(memory *m, int i)
{
    attn_rotary_problem p = {.batch = batch, .n_heads = HK, .n_tokens = L};

    p.head_dim = D;
    p.dtype = p.cache_dtype = ATTN_F32;
    p.input = heads_of(m->heads[i], HK, L, true);
    p.output = heads_of(m->cache[i - 1], HK, N_KEYS, false);
    p.past_lengths = m->past_lengths;
    p.lengths = m->lengths;
    return p;
}

static attn_problem
attending(memory *m)
{
    attn_problem p = {.batch = batch, .n_kv_heads = HK, .group = H / HK};

    p.n_queries = L;
    p.n_keys = N_KEYS;
    p.head_dim = p.value_dim = D;
    p.arithmetic = ATTN_F32;
    p.query = heads_of(m->heads[0], H, L, true);
    p.key = heads_of(m->cache[0], HK, N_KEYS, false);
    p.value = heads_of(m->cache[1], HK, N_KEYS, false);
    p.kv_lengths.data = (char *)m->lengths;
    p.kv_lengths.batch_stride[0] = sizeof(int64_t);
    p.output = heads_of(m->concat, H, L, true);
    p.window_left = p.window_right = -1;
    p.causal = true;
    p.scale = 0.25;
    attn_choose_task_rows(&p, 2);
    return p;
}

static void
fill(memory *m)
{
    uint64_t state = 7;
    float *numbers = &m->x[0][0][0];

    memset(m, 0, sizeof *m);
    while (numbers < &m->heads[0][0][0][0][0]) {
        *numbers++ = (float)random_unit(&state);
    }
    for (int b = 0; b < B; b++) {
        m->past_lengths[b] = 3 * b;
        m->lengths[b] = 3 * b + L - b; /* the last token of the second is padding */
    }
}

static int
run_layer(memory *m, const attn_tier *tier)
{
    attn_linear_problem query = product(m, 0, m->x, E, m->heads[0], H * D);
    attn_linear_problem key = product(m, 1, m->x, E, m->heads[1], HK * D);
    attn_linear_problem value = product(m, 2, m->x, E, m->heads[2], HK * D);
    attn_linear_problem output = product(m, 3, m->concat, H * D, m->output, E);
    attn_rotary_problem keys = to_cache(m, 1), values = to_cache(m, 2);
    attn_problem attention = attending(m);

    keys.cos_sin = rows_of(m->cos_sin, L, D);
    keys.cos_sin.batch_stride[0] = 0;
    keys.rotary_dim = D;
    keys.interleaved = true;
    attn_layer_problem l = {.projections = {&query, &key, &value},
                            .rotary = {NULL, &keys, &values},
                            .attention = &attention,
                            .output = &output};
    attn_call call = {.tier = tier, .n_threads = 2};
    return attn_layer(&l, &call);
}

/* Is what was projected for a head of a token in the cache, turned by these angles? */
static bool
is_cached(const float *projected, const float *cos_sin, const float *cached)
{
    bool same = true;

    for (int k = 0; k < D / 2; k++) {
        float one = projected[2 * k], two = projected[2 * k + 1];
        float c = cos_sin == NULL ? 1 : cos_sin[k];
        float s = cos_sin == NULL ? 0 : cos_sin[k + D / 2];
        same = same && cached[2 * k] == one * c - two * s;
        same = same && cached[2 * k + 1] == two * c + one * s;
    }
    return same;
}

static void
check_cache(memory *m)
{
    static const float nothing[D] = {0};

    for (int at = 0; at < B * L * HK; at++) {
        int b = at / (L * HK), row = at / HK % L, h = at % HK;
        ptrdiff_t place = m->past_lengths[b] + row;
        bool exists = place < m->lengths[b];
        const float *key = &m->heads[1][0][0][0][0] + at * D;
        const float *value = &m->heads[2][0][0][0][0] + at * D;
        expect(is_cached(exists ? key : nothing, m->cos_sin[row],
                         m->cache[0][b][h][place]),
               "key %d of sequence %d, head %d", row, b, h);
        expect(is_cached(exists ? value : nothing, NULL, m->cache[1][b][h][place]),
               "value %d of sequence %d, head %d", row, b, h);
    }
}

void
test_layers_fill_the_cache_and_give_the_same_bits(void)
{
    static memory first, m;
    double work = attn_set_work_per_thread(1);

    for (int i = 0; attn_tier_at(i) != NULL; i++) {
        fill(&m);
        expect(run_layer(&m, attn_tier_at(i)) == 0, "the layer failed");
        check_cache(&m);
        first = i == 0 ? m : first;
        expect(memcmp(&m, &first, sizeof m) == 0, "%s: other bits",
               attn_tier_at(i)->name);
    }
    attn_set_work_per_thread(work);
}
