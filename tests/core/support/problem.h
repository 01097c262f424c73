/* Problems made from short descriptions: arrays of any layout with reproducible elements,
 * and a hash of what a run gives. */
#ifndef ATTN_TESTS_PROBLEM_H
#define ATTN_TESTS_PROBLEM_H

#include "core/attention.h"
#include "core/tiers.h"

/* How an array lies in memory. ONE_*: of length 1 and broadcast along that axis. */
typedef enum {
    ABSENT, /* for query, key, value and output: DENSE */
    DENSE,
    HEADS_INSIDE, /* (B, L, H, columns) */
    TRANSPOSED,   /* (B, H, columns, L) */
    REVERSED,     /* all strides negative */
    SPREAD,       /* gaps between elements, rows and heads */
    ONE_BATCH,
    ONE_HEAD,
    ONE_ROW,
    ONE_COLUMN,
    ONE_ELEMENT,
    N_LAYOUTS
} layout;

/* What is special about the elements of query, key and value. */
typedef enum {
    ORDINARY,
    NAN_WHERE_HIDDEN,  /* NaN and infinities in keys and values that no row may see */
    NAN_WHERE_VISIBLE, /* a few of them in what some rows may see */
    INFINITE_QUERIES
} special;

/* The dtypes that a spec may have. */
enum { N_FLOATING = ATTN_F64 + 1 };

typedef struct {
    const char *name;
    attn_dtype dtype;
    ptrdiff_t batch[2]; /* 0 means 1 */
    ptrdiff_t n_kv_heads, group, n_queries, n_keys, head_dim, value_dim;
    layout query, key, value, output;
    layout mask, bias, weights, lse; /* ABSENT unless given */
    attn_dtype bias_dtype;
    bool bias_hides; /* some of the bias is -inf */
    bool sinks, offsets, lengths;
    bool causal, top_left, has_window;
    int64_t window_left, window_right; /* where has_window */
    double scale;                      /* 0 means 1 / sqrt(D) */
    double softcap;
    double dropout;
    special special;
    bool key_scales, value_scales; /* then keys, values are integers */
    bool codes; /* both are codes of 16 bits, whose layout is DENSE */
} spec;

typedef struct {
    attn_problem p;
    attn_weights weights; /* which p points to */
    void *memory[24];     /* of its arrays */
    size_t sizes[24];
    int n_memory;
} problem;

void make_problem(const spec *, problem *);
/* One of another kind: it has but an output, (B, n_heads, n_rows, n_columns), whose hash
 * end_result gives, if its status is 0, and frees it. The batch has up to two axes. */
void make_result(problem *, layout, attn_dtype, const attn_batch *, ptrdiff_t n_heads,
                 ptrdiff_t n_rows, ptrdiff_t n_columns);
uint64_t end_result(problem *, int status);
void free_problem(problem *);

/* Another one on the same arrays, which is not to be freed. */
void share_problem(const problem *, problem *other);

/* A spec drawn at random; `dtype` is that of its arrays. */
spec draw_spec(uint64_t *state, attn_dtype dtype);

/* Gives the problem an array of random numbers, (B, n_heads, n_rows, n_columns), with the
 * problem's batch. */
void add_reals(problem *, attn_array *, layout, attn_dtype, ptrdiff_t n_heads,
               ptrdiff_t n_rows, ptrdiff_t n_columns, uint64_t seed);

const char *dtype_name(attn_dtype);
char *element(const attn_problem *, const attn_array *, ptrdiff_t batch, ptrdiff_t head,
              ptrdiff_t row, ptrdiff_t column);
double read_element(const attn_problem *, const attn_array *, ptrdiff_t batch,
                    ptrdiff_t head, ptrdiff_t row, ptrdiff_t column);

double read_number(const char *at, attn_dtype);
void write_number(char *at, attn_dtype, double);

/* The absolute position of a batch's query i. */
int64_t position_of(const attn_problem *, ptrdiff_t batch, ptrdiff_t i);

/* May row (batch, head, i) see key j, by every option and a bias of -inf? */
bool may_see(const attn_problem *, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t i,
             ptrdiff_t j);

/* Fills output and LSE with rubbish and the weights with zeros, as the driver wants them. */
void reset_results(const attn_problem *);

/* FNV-1a, 64 bits, over the elements of output, weights and LSE in index order. */
uint64_t hash_results(const attn_problem *);
uint64_t hash_word(uint64_t hash, uint64_t word);
#define HASH_START UINT64_C(0xcbf29ce484222325)

/* Are its keys divided into chunks, which the threads share? */
bool is_split(const attn_problem *, int n_threads);

/* Runs the problem, expects success, and returns the hash of its results. */
uint64_t run_problem(const problem *, const attn_tier *, int n_threads);

#endif
