/* Sizes of workspaces. The pool keeps those of up to 1 MiB for later calls. */
#include "core/arrangement.h"
#include "core/tiers.h"
#include "support/check.h"
#include "support/problem.h"

enum { MAX_KEPT_SIZE = 1 << 20, LARGEST_DIM = 1700 };

/* Bytes of D + 2 Dv reals, up to which scratch memory is bounded. */
enum { LARGEST_ROW = 5200 * 4 };

/* What may have a say in the size, each on its own and all together; arrays are small, and
 * shapes set afterwards. */
static const spec options[] = {
    {.name = "plain"},
    {.name = "bias", .bias = DENSE, .bias_dtype = ATTN_F64},
    {.name = "mask", .mask = DENSE},
    {.name = "weights", .weights = DENSE, .lse = DENSE},
    {.name = "spread",
     .query = SPREAD,
     .key = SPREAD,
     .value = SPREAD,
     .output = SPREAD},
    {.name = "transposed", .key = TRANSPOSED, .value = TRANSPOSED},
    {.name = "all",
     .query = TRANSPOSED,
     .key = TRANSPOSED,
     .value = TRANSPOSED,
     .output = TRANSPOSED,
     .mask = TRANSPOSED,
     .bias = SPREAD,
     .bias_dtype = ATTN_F16,
     .weights = SPREAD,
     .lse = SPREAD,
     .causal = true,
     .softcap = 1,
     .sinks = true,
     .offsets = true,
     .lengths = true},
};

enum { N_OPTIONS = sizeof options / sizeof options[0] };

/* The kernels that may run a problem of this dtype on a tier: 1, or 2 with the native one
 * for bfloat16. */
static int
kernels_for(const attn_tier *tier, attn_dtype dtype, const attn_kernel *kernels[2])
{
    kernels[0] = dtype == ATTN_F64 ? tier->f64 : tier->f32;
    kernels[1] = dtype == ATTN_BF16 ? tier->bf16 : NULL;
    return kernels[1] == NULL ? 1 : 2;
}

static void
make(problem *made, int option, attn_dtype dtype)
{
    spec s = options[option];

    s.dtype = dtype;
    s.n_kv_heads = s.group = 1;
    s.n_queries = s.n_keys = s.head_dim = s.value_dim = 2;
    make_problem(&s, made);
}

/* The largest of a kernel's workspaces for the problem with other dimensions and rows. */
static size_t
largest_workspace(attn_problem p, const attn_attention_kernel *kernel)
{
    static const ptrdiff_t dims[] = {0,   1,   2,    17,   63,         64,
                                     65,  128, 129,  255,  256,        511,
                                     513, 700, 1024, 1500, LARGEST_DIM};
    const int n_dims = sizeof dims / sizeof dims[0];
    ptrdiff_t bytes = attn_storage_of(p.arithmetic)->bytes;
    size_t largest = 0;

    for (p.n_queries = 1; p.n_queries <= 2 * ATTN_TASK_ROWS; p.n_queries++) {
        for (int k = 0; k < n_dims * n_dims; k++) {
            p.head_dim = dims[k / n_dims];
            p.value_dim = dims[k % n_dims];
            if ((p.head_dim + 2 * p.value_dim) * bytes > LARGEST_ROW) {
                continue;
            }
            attn_choose_task_rows(&p, 1);
            size_t size = kernel->workspace_size(&p);
            largest = size > largest ? size : largest;
        }
    }
    return largest;
}

/* For each tier, notes the largest of its workspaces for each dtype. */
void
test_workspaces_are_small_enough_to_keep(void)
{
    const attn_tier *tier;
    const attn_kernel *kernels[2];

    for (int n = 0; (tier = attn_tier_at(n)) != NULL; n++) {
        size_t largest[4] = {0};
        for (int k = 0; k < 4 * N_OPTIONS; k++) {
            problem made;
            attn_dtype dtype = (attn_dtype)(k % 4);
            make(&made, k / 4, dtype);
            for (int i = 0; i < kernels_for(tier, dtype, kernels); i++) {
                size_t size = largest_workspace(made.p, &kernels[i]->attention);
                expect(size <= MAX_KEPT_SIZE, "%s, %s, %s: %zu bytes", tier->name,
                       dtype_name(dtype), options[k / 4].name, size);
                largest[dtype] = size > largest[dtype] ? size : largest[dtype];
            }
            free_problem(&made);
        }
        for (int dtype = 0; dtype < 4; dtype++) {
            note("%s, %s: %zu bytes at most", tier->name, dtype_name((attn_dtype)dtype),
                 largest[dtype]);
        }
    }
}

/* Sizes for any number of keys are that for one, and for any number of rows beyond those
 * of a task that for as many as those. */
static void
expect_no_growth(attn_problem p, const attn_attention_kernel *kernel, const char *name)
{
    static const ptrdiff_t keys[] = {
        0, ATTN_BLOCK + 1, ATTN_CHUNK, ATTN_CHUNK + 1, 1 << 20, (ptrdiff_t)1 << 40};
    static const ptrdiff_t queries[] = {ATTN_TASK_ROWS + 1, 2 * ATTN_TASK_ROWS, 1000,
                                        (ptrdiff_t)1 << 40};

    p.head_dim = LARGEST_DIM;
    p.value_dim = 100;
    attn_choose_task_rows(&p, 1);
    for (p.n_queries = 1; p.n_queries <= ATTN_TASK_ROWS; p.n_queries++) {
        p.n_keys = 1;
        size_t size = kernel->workspace_size(&p), partial = kernel->partial_size(&p);
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            p.n_keys = keys[k];
            expect(kernel->workspace_size(&p) == size &&
                       kernel->partial_size(&p) == partial,
                   "%s: other sizes for %td keys", name, p.n_keys);
        }
    }
    p.n_queries = ATTN_TASK_ROWS;
    size_t size = kernel->workspace_size(&p), partial = kernel->partial_size(&p);
    for (size_t k = 0; k < 2 * sizeof queries / sizeof queries[0]; k++) {
        p.group = 1 + 2 * (ptrdiff_t)(k % 2);
        p.n_queries = queries[k / 2];
        expect(kernel->workspace_size(&p) == size &&
                   kernel->partial_size(&p) == partial,
               "%s: other sizes for %td queries", name, p.n_queries);
    }
}

void
test_workspaces_do_not_grow_with_keys_or_tasks(void)
{
    const attn_tier *tier;
    const attn_kernel *kernels[2];

    for (int n = 0; (tier = attn_tier_at(n)) != NULL; n++) {
        for (int k = 0; k < 4 * N_OPTIONS; k++) {
            problem made;
            attn_dtype dtype = (attn_dtype)(k % 4);
            make(&made, k / 4, dtype);
            for (int i = 0; i < kernels_for(tier, dtype, kernels); i++) {
                expect_no_growth(made.p, &kernels[i]->attention, tier->name);
            }
            free_problem(&made);
        }
    }
}
