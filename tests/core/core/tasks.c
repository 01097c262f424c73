/* How many threads a call may have. */
#include "core/tasks.h"

#include "core/attention.h"
#include "core/limits.h"
#include "core/linear.h"
#include "core/quota.h"
#include "support/check.h"

void
test_numbers_of_threads(void)
{
    int limit = attn_cpu_limit();
    int before = attn_get_num_threads();

    expect(limit >= 1 && limit <= ATTN_MAX_THREADS, "CPU limit is %d", limit);
    attn_set_num_threads(5);
    expect(attn_get_num_threads() == 5, "default of threads is not what was set");
    attn_set_num_threads(before);
    note("%d CPUs may be used", limit);
}

/* Of 64 that are asleep. */
static int
useful_threads(double work)
{
    const attn_call call = {.n_threads = 64};

    return attn_useful_threads(work, &call);
}

static int
threads_of_attention(ptrdiff_t n_heads, ptrdiff_t n_queries, ptrdiff_t n_keys,
                     attn_dtype dtype)
{
    const attn_problem p = {.batch.n = 1,
                            .n_kv_heads = n_heads,
                            .group = 1,
                            .n_queries = n_queries,
                            .n_keys = n_keys,
                            .head_dim = 64,
                            .value_dim = 64,
                            .key.dtype = dtype,
                            .value.dtype = dtype};
    return useful_threads(attn_attention_work(&p));
}

static int
threads_of_product(ptrdiff_t n_rows, ptrdiff_t n_in, ptrdiff_t n_out, attn_dtype dtype)
{
    const attn_linear_problem l = {.batch.n = 1,
                                   .n_rows = n_rows,
                                   .n_in = n_in,
                                   .n_out = n_out,
                                   .weight.dtype = dtype};
    return useful_threads(attn_linear_work(&l));
}

/* One query, and one row, wait for the bytes that they read: these repay threads, too. */
void
test_threads_that_work_repays(void)
{
    int64_t starts[2] = {0, 512};
    const attn_packed sequences = {.keys = starts};
    const attn_problem packed = {.batch.n = 1,
                                 .n_kv_heads = 12,
                                 .group = 1,
                                 .n_queries = 1,
                                 .n_keys = 100000,
                                 .head_dim = 64,
                                 .value_dim = 64,
                                 .packed = &sequences,
                                 .key.dtype = ATTN_F32,
                                 .value.dtype = ATTN_F32};
    int n = threads_of_attention(12, 1, 512, ATTN_F32);

    expect(threads_of_attention(1, 16, 16, ATTN_F32) == 1, "a tiny call takes threads");
    expect(threads_of_attention(8, 1, 32, ATTN_F32) == 1, "a tiny cache takes threads");
    expect(threads_of_attention(8, 1, 50, ATTN_F32) == 1 &&
               threads_of_attention(8, 1, 500, ATTN_F32) == 9 &&
               threads_of_attention(8, 64, 64, ATTN_F32) == 10,
           "threads are not those that the documentation says");
    expect(n >= 4, "a query of 12 heads and 512 keys, 3 MB, takes %d", n);
    expect(threads_of_attention(12, 1, 512, ATTN_BF16) < n,
           "half the bytes take as many");
    expect(useful_threads(attn_attention_work(&packed)) == n,
           "packed keys are not counted as they are");
    expect(threads_of_product(1, 128, 128, ATTN_F32) == 1, "a tiny product takes them");
    n = threads_of_product(1, 896, 4864, ATTN_F32);
    expect(n >= 16, "a row by 17 MB of weights takes %d", n);
    expect(threads_of_product(1, 896, 4864, ATTN_BF16) < n, "half the bytes, as many");
    expect(threads_of_product(4096, 896, 4864, ATTN_F32) == 64,
           "much work, few threads");
    for (int n_awake = 0; n_awake <= 16; n_awake += 8) {
        const attn_call call = {.n_threads = 12, .n_awake = n_awake};
        n = attn_useful_threads(1.5e6, &call);
        int wanted = n_awake < 12 ? n_awake : 12;
        expect(n == (wanted < 3 ? 3 : wanted), "with %d threads awake 1.5e6 take %d",
               n_awake, n);
        expect(attn_useful_threads(1e5, &call) == 1, "tiny work takes threads");
    }
}
