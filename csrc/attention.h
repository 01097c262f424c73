/* The one interface inside the core: what the binding hands to the driver, the driver to a
 * kernel, and both to the thread pool. Knows nothing of Python.
 *
 * Dimension legend, used in every file: B batch, H query heads, Hk key/value heads,
 * G = H / Hk query heads of a group, Lq queries, Lk keys, D head dimension of queries and
 * keys, Dv head dimension of values. The rows of a group are its G * Lq (head, query)
 * pairs in that order: row r is query r % Lq of the group's head r / Lq. */
#ifndef ATTN_ATTENTION_H
#define ATTN_ATTENTION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Part of the bit contract: sums go over blocks at these absolute positions, each from 0,
 * the same for every instruction set, number of threads and form. Short chains drift
 * less. */
#define ATTN_BLOCK 128    /* keys that share one maximum and one rescaling */
#define ATTN_CHUNK 512    /* keys that are summed up on their own and then merged */
#define ATTN_DIM_BLOCK 64 /* dimensions of a dot product that make one chain */

#define ATTN_TASK_ROWS 64                  /* rows of a task, at most */
#define ATTN_FEW_ROWS 8                    /* rows for which row form is the faster */
#define ATTN_LINEAR_COLUMNS 384            /* columns of a linear task, at most, */
#define ATTN_FEW_ROWS_COLUMNS 512          /* and for ATTN_FEW_ROWS; more for fewer */
#define ATTN_BLOCK_WORDS (ATTN_BLOCK / 64) /* 64-bit words of a block's visible keys */
#define ATTN_MAX_AXES 64                   /* as in NumPy 2 */
#define ATTN_ALIGNMENT 64                  /* of workspaces: a cache line */
#define ATTN_MAX_THREADS 1024
#define ATTN_MAX_DIM                                                                   \
    (INT64_C(1) << 40) /* of D and Dv: sizes of workspaces fit in 63 bits */

/* Chunks whose partial results are held until they are merged, for each thread. */
#define ATTN_PARTIALS_PER_THREAD 8

/* Multiplications that repay the waking of one more thread, unless set otherwise: some
 * 20 us of work. */
#define ATTN_WORK_PER_THREAD 1e6

typedef enum { ATTN_F16, ATTN_BF16, ATTN_F32, ATTN_F64 } attn_dtype;

/* An array (batch axes, head, row, column); data is NULL where the caller gave none.
 * Strides are in bytes, 0 along broadcast axes and axes of length <= 1. */
typedef struct {
    char *data;
    attn_dtype dtype;
    ptrdiff_t head_stride;
    ptrdiff_t row_stride;
    ptrdiff_t column_stride;
    ptrdiff_t batch_stride[ATTN_MAX_AXES];
} attn_array;

/* One call. Everything is valid, and broadcast, before it comes here. */
typedef struct {
    int n_batch_axes;
    ptrdiff_t batch_shape[ATTN_MAX_AXES];
    ptrdiff_t n_batch;
    ptrdiff_t n_kv_heads;
    ptrdiff_t group; /* query heads per key/value head */
    ptrdiff_t n_queries;
    ptrdiff_t n_keys;
    ptrdiff_t head_dim;
    ptrdiff_t value_dim;

    attn_dtype arithmetic; /* ATTN_F32 or ATTN_F64 */
    attn_array query;      /* (B, H, Lq, D) */
    attn_array key;        /* (B, Hk, Lk, D) */
    attn_array value;      /* (B, Hk, Lk, Dv) */
    attn_array mask;       /* (B, H, Lq, Lk) bytes, nonzero = may attend; or none */
    attn_array bias;       /* (B, H, Lq, Lk), or none */
    attn_array sinks;      /* (H,), or none */
    attn_array q_offset;   /* (B,) int64, or none: then by alignment */
    attn_array kv_lengths; /* (B,) int64 in [0, Lk], or none: Lk */
    attn_array output;     /* (B, H, Lq, Dv) */
    attn_array weights;    /* (B, H, Lq, Lk) zeroed, or none */
    attn_array lse;        /* (B, H, Lq) in the arithmetic's dtype, or none */

    bool causal;
    bool top_left;        /* default position of query 0: 0, else kv_length - Lq */
    int64_t window_left;  /* keys before the position that are visible; < 0: all */
    int64_t window_right; /* keys after the position that are visible; < 0: all */
    double scale;
    double softcap; /* 0: none */
} attn_problem;

/* Rows first_row .. first_row + n_rows of one (batch, kv head), with its arrays' addresses
 * there (those of per-head arrays at the group's first head), and the half-open range
 * of keys that the options other than mask and bias let each row see. */
typedef struct {
    const char *query, *key, *value, *mask, *bias, *sinks;
    char *output, *weights, *lse;
    ptrdiff_t first_row;
    ptrdiff_t n_rows;
    ptrdiff_t see_from[ATTN_TASK_ROWS];
    ptrdiff_t see_to[ATTN_TASK_ROWS]; /* see_from = see_to = 0: nothing */
} attn_task;

/* Which of a block's keys the rows of a task may see: bit k of keys[row] is key k of the
 * block. */
typedef uint64_t attn_key_bits[ATTN_TASK_ROWS][ATTN_BLOCK_WORDS];
typedef enum { ATTN_SEE_NONE, ATTN_SEE_SOME, ATTN_SEE_ALL } attn_coverage;

/* Asked by the calling thread every now and then without the interpreter's lock; true
 * means stop. */
typedef bool (*attn_poll)(void *context);

/* The state of a call that its threads share. */
typedef struct {
    attn_poll poll; /* may be NULL */
    void *poll_context;
    int64_t next_poll; /* nanoseconds, by the monotonic clock */
    atomic_bool stop;  /* touched in threads.c only */
} attn_control;

/* What is done to each number of a linear problem's output. */
typedef enum {
    ATTN_IDENTITY,
    ATTN_RELU,
    ATTN_GELU,      /* x times the normal distribution function of x */
    ATTN_GELU_TANH, /* its approximation by tanh */
    ATTN_SILU       /* x times the logistic function of x */
} attn_activation;

/* One product of rows with a matrix, y = x W + b; each sum is cut into chains of
 * ATTN_BLOCK terms, in ascending order, before the bias is added. */
typedef struct {
    ptrdiff_t n_batch; /* each of n_rows rows */
    ptrdiff_t n_rows;
    ptrdiff_t n_in;
    ptrdiff_t n_out;
    attn_activation activation;
    attn_dtype arithmetic; /* ATTN_F32 or ATTN_F64 */
    attn_array input;      /* (B, rows, in); its batch stride is the first */
    attn_array weight;     /* (in, out) */
    attn_array bias;       /* (out,) in the arithmetic's dtype along columns, or none */
    attn_array output;     /* (B, rows, out) */
} attn_linear_problem;

/* Rows first_row .. of all batches' rows in a line, columns first_column .. of the output. */
typedef struct {
    ptrdiff_t first_row, n_rows;
    ptrdiff_t first_column, n_columns;
} attn_linear_task;

/* Rows brought to mean square 1, and mean 0 if they are centred, then scaled. All arrays are
 * contiguous, in the arithmetic's dtype. Sums are 16 chains, of every 16th number, added
 * up pairwise. */
typedef struct {
    ptrdiff_t n_rows;
    ptrdiff_t n_columns;
    attn_dtype arithmetic;
    bool centre;
    double eps;           /* added to the variance */
    const void *input;    /* (rows, columns) */
    const void *residual; /* (rows, columns) to add first, or NULL */
    const void *weight;   /* (columns,) */
    const void *bias;     /* (columns,) or NULL */
    void *output;         /* (rows, columns) */
} attn_norm_problem;

/* Rows of heads, brought from one array to another: each is normalized, turned by its
 * position, and rounded to the dtype of what was computed, then to that of what is kept. */
typedef struct {
    int n_batch_axes;
    ptrdiff_t batch_shape[ATTN_MAX_AXES];
    ptrdiff_t n_batch;
    ptrdiff_t n_heads;
    ptrdiff_t n_rows;
    ptrdiff_t n_columns;
    attn_dtype dtype;
    attn_dtype kept;
    attn_array input;              /* (B, H, rows, columns), no wider than `dtype` */
    const attn_norm_problem *norm; /* what is done to any one row; or NULL */
    attn_array turns;              /* (B, H, rows, turned), adjacent columns in the
                                    * arithmetic's dtype, cosines before sines; or none */
    ptrdiff_t n_turned;            /* columns, the first ones, an even number */
    bool interleaved;         /* pairs are neighbours, else half of n_turned apart */
    attn_array output;        /* (B, H, rows, columns); may be the input */
    const int64_t *first_row; /* (B,) rows of the output that come before, */
    const int64_t *end_row;   /* and where it ends; or NULL, with one batch axis */
} attn_heads_problem;

/* One token: the addresses of its first head. */
typedef struct {
    const char *input, *turns;
    char *output;
} attn_heads_task;

/* Attention with its projections, steps that are done in this order; NULL where there is
 * none. Their arrays lead from one to the next. */
typedef struct {
    const attn_linear_problem *products[3]; /* for queries, keys and values */
    const attn_heads_problem *heads[3];
    const attn_problem *attention;
    const attn_linear_problem *output;
} attn_layer_problem;

/* A kernel: the algorithm of kernel.inc.h compiled for one instruction set and dtype.
 * `control` is asked between blocks whether to give up. */
typedef struct {
    /* Bytes of scratch memory that one thread needs, and of what run_chunk writes. */
    size_t (*workspace_size)(const attn_problem *);
    size_t (*partial_size)(const attn_problem *);
    /* Computes one task. */
    void (*run)(const attn_problem *, const attn_task *, void *workspace,
                attn_control *, bool is_caller);
    /* The same in parts, for tasks too few to keep the threads busy: run_chunk attends to
     * the keys of one chunk; merge takes up its partial results, in ascending order;
     * end_merge writes the results. A workspace serves one merge until its end. */
    void (*run_chunk)(const attn_problem *, const attn_task *, ptrdiff_t first_key,
                      void *workspace, void *partial, attn_control *, bool is_caller);
    void (*begin_merge)(const attn_problem *, const attn_task *, void *workspace);
    void (*merge)(void *workspace, void *partial);
    void (*end_merge)(void *workspace, attn_control *);

    /* A part of a linear problem, and the scratch memory that takes. */
    size_t (*linear_workspace_size)(const attn_linear_problem *);
    void (*run_linear)(const attn_linear_problem *, const attn_linear_task *,
                       void *workspace, attn_control *, bool is_caller);
    /* Rows first_row .. first_row + n_rows - 1. */
    void (*normalize)(const attn_norm_problem *, ptrdiff_t first_row, ptrdiff_t n_rows);
    /* Applies an activation to n numbers of the arithmetic's dtype. */
    void (*activate)(void *numbers, ptrdiff_t n, attn_activation);
    /* n numbers of a dtype, stride bytes apart, as contiguous ones of the arithmetic's
     * dtype; and the reverse, for that dtype and 16-bit ones. */
    void (*load_row)(void *to, const char *from, ptrdiff_t stride, ptrdiff_t n,
                     attn_dtype);
    void (*store_row)(char *to, ptrdiff_t stride, const void *from, ptrdiff_t n,
                      attn_dtype);
} attn_kernel;

/* heads_f32.c, heads_f64.c: all heads of one token. The memory is for n_columns doubles and
 * as many halves. */
void attn_run_heads_f32(const attn_heads_problem *, const attn_heads_task *,
                        const attn_kernel *, void *memory);
void attn_run_heads_f64(const attn_heads_problem *, const attn_heads_task *,
                        const attn_kernel *, void *memory);

typedef struct {
    const char *name;
    bool (*supported)(void);
    const attn_kernel *f32;
    const attn_kernel *f64;
    const attn_kernel
        *bf16; /* for bfloat16 alone, with other bits than f32's; or NULL */
} attn_tier;

/* attention.c: how many rows of a group make a task: fewer where heads are so large that
 * the scratch memory, some 250 KB and D + 2 Dv reals a row, would exceed 1 MiB. It does from D + 2 Dv = 5200 floats on. */
ptrdiff_t attn_task_rows(const attn_problem *);

/* The driver. -1 when memory runs out, else 0. */
int attn_attention(const attn_problem *, const attn_tier *, int n_threads, attn_poll,
                   void *poll_context);

/* layers.c: likewise for a product of rows with a matrix. */
int attn_linear(const attn_linear_problem *, const attn_tier *, int n_threads,
                attn_poll, void *poll_context);

void attn_normalize(const attn_norm_problem *, const attn_tier *, int n_threads,
                    attn_poll, void *poll_context);

int attn_heads(const attn_heads_problem *, const attn_tier *, int n_threads, attn_poll,
               void *poll_context);

/* Stops between steps, too, once a poll has said so. */
int attn_layer(const attn_layer_problem *, const attn_tier *, int n_threads, attn_poll,
               void *poll_context);

/* visibility.c */
void attn_see_ranges(const attn_problem *, int64_t q_offset, int64_t kv_length,
                     attn_task *);
attn_coverage attn_see_block(const attn_problem *, const attn_task *,
                             ptrdiff_t first_key, ptrdiff_t n_keys, attn_key_bits keys);
void attn_transpose_bits(const attn_key_bits keys, ptrdiff_t n_keys,
                         uint64_t rows[ATTN_BLOCK]);

/* cpu.c: what this CPU and this process may use. */
bool attn_cpu_has_baseline(void);
bool attn_cpu_has_avx2(void);
bool attn_cpu_has_avx512(void);
bool attn_cpu_has_avx512_bf16(void);
uint32_t attn_fp_control_reset(void); /* to the default; returns the former one */
void attn_fp_control_restore(uint32_t);
void attn_cpu_pause(void); /* for a loop that waits for another thread */

/* dispatch.c: tiers this CPU has, best first. NULL past the last one or if unknown. */
const attn_tier *attn_tier_at(int index);
const attn_tier *attn_tier_named(const char *name);
/* The kernel for a dtype of arithmetic; all_bf16: every operand is bfloat16. */
const attn_kernel *attn_kernel_for(const attn_tier *, attn_dtype arithmetic,
                                   bool all_bf16);
/* The same tier without dot products of its own for bfloat16. */
const attn_tier *attn_portable_tier(const attn_tier *);

/* threads.c */
typedef void (*attn_body)(void *context, ptrdiff_t index, int worker);
/* Calls body(context, i, worker) once for each i < n, on up to n_threads threads with
 * distinct workers in [0, n_threads); worker 0 is the caller. */
void attn_parallel_for(ptrdiff_t n, int n_threads, attn_body, void *context,
                       attn_control *);
/* True if the call should give up; asks poll at intervals when is_caller. */
bool attn_should_stop(attn_control *, bool is_caller);
void
attn_set_num_threads(int); /* the default for calls; the pool keeps no other state */
int attn_get_num_threads(void);
/* Sets what replaces ATTN_WORK_PER_THREAD, for tests and calibration; returns the former. */
double attn_set_work_per_thread(double);
double attn_get_work_per_thread(void);
/* As many of n_threads as so many multiplications repay to wake. */
int attn_useful_threads(double multiplications, int n_threads);
int attn_cpu_limit(void); /* CPUs that affinity and cgroup quota leave us */
/* A block of memory kept from an earlier call if one is large enough; NULL if none can be
 * had. */
void *attn_workspace_acquire(size_t size);
/* Acquires up to n; returns how many it got. */
int attn_acquire_workspaces(void **workspaces, int n, size_t size);
void attn_workspace_release(void *);
void attn_workspace_free_all(void);

/* Replaceable by tests, to make each fail in turn. */
typedef struct {
    void *(*allocate)(size_t size);
    void (*free)(void *);
    int (*create_thread)(void *(*start)(void *), void *argument);
} attn_hooks;
extern attn_hooks attn_hook;

#endif
