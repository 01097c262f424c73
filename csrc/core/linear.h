/* The product of rows with a matrix, with bias, activation, factor and residual. */
#ifndef ATTN_CORE_LINEAR_H
#define ATTN_CORE_LINEAR_H

#include "core/activate.h"
#include "core/array.h"
#include "core/quantized.h"
#include "core/tasks.h"

/* Packed weights are in the order in which tasks read them: for each block of ATTN_BLOCK
 * rows panels of ATTN_PANEL_COLUMNS columns, (blocks, panels, rows, ATTN_PANEL_COLUMNS), the
 * last panel padded with zeros. bfloat16 numbers of two rows are next to each other, (blocks,
 * panels, rows / 2 rounded up, ATTN_PANEL_COLUMNS, 2). */
static inline ptrdiff_t
attn_packed_terms(attn_dtype dtype)
{
    return attn_storage_of(dtype)->packed_rows;
}

/* y = activation(x W + b) * times + residual, each step rounded to the arithmetic's dtype. Sums
 * are cut into chains of ATTN_BLOCK terms, in ascending order, before the bias is added. */
typedef struct {
    attn_batch batch; /* of one axis, each of n_rows rows */
    ptrdiff_t n_rows;
    ptrdiff_t n_in;
    ptrdiff_t n_out;
    attn_activation activation;
    attn_dtype arithmetic; /* ATTN_F32 or ATTN_F64 */
    attn_array input;      /* (B, rows, in) */
    attn_array weight;     /* (in, out), or packed: row_stride is that of a panel */
    bool packed;
    const attn_quantized *quantized; /* in place of W's data, in float32; or NULL */
    attn_array bias;     /* (out,) in the arithmetic's dtype along columns, or none */
    attn_array times;    /* (B, rows, out), or none */
    attn_array residual; /* (B, rows, out), or none; may be the output */
    bool rounds_input;   /* x may be rounded to the weight's dtype, if that is faster */
    attn_array output;   /* (B, rows, out) */
    bool many_rows;      /* set by attn_linear: tasks have up to ATTN_MANY_ROWS rows */
    ptrdiff_t few_rows;  /* set by attn_linear: up to so many take row form */
} attn_linear_problem;

/* Is W the transpose of what lies in memory row by row? Then its columns are read as these
 * rows are. */
static inline bool
attn_is_transposed(const attn_linear_problem *l)
{
    ptrdiff_t size = attn_storage_of(l->weight.dtype)->bytes;

    return !l->packed && l->weight.row_stride == size &&
           l->weight.column_stride != size;
}

/* Row form is for few rows. */
static inline bool
attn_linear_in_rows(const attn_linear_problem *l)
{
    return l->batch.n * l->n_rows <= l->few_rows;
}

/* Rows first_row .. of all batches' rows in a line, columns first_column .. of the output. */
typedef struct {
    ptrdiff_t first_row, n_rows;
    ptrdiff_t first_column, n_columns;
} attn_linear_task;

typedef struct {
    bool has_row_form; /* else few rows are computed as tiles */
    /* Most rows of a task in the form for many rows; NULL where there is none. */
    ptrdiff_t (*many_rows)(const attn_linear_problem *);
    ptrdiff_t many_rows_unit; /* rows that it computes at a time */
    ptrdiff_t narrow_rows;    /* with packed weights, row form is for so many */
    size_t (*workspace_size)(const attn_linear_problem *);
    void (*run)(const attn_linear_problem *, const attn_linear_task *,
                const attn_worker *);
    /* What products of integers leave to the kernel of float32. load_row returns a row of x as
     * floats, in place or converted in `to`. store_sums makes outputs of a task's sums (rows, row),
     * and overwrites these; `staged` has room for the bias. */
    const float *(*load_row)(const attn_linear_problem *, ptrdiff_t row, float *to);
    void (*store_sums)(const attn_linear_problem *, const attn_linear_task *,
                       float *sums, ptrdiff_t row, float *staged);
} attn_linear_kernel;

/* Multiplies n rows on a matrix unit. The kernel calls it, and alone knows what a product and the
 * form of its codes are. */
typedef void (*attn_integer_unit)(const void *product, ptrdiff_t n, int form);

/* Products with quantised matrices, with a unit or NULL. */
typedef struct {
    size_t (*workspace_size)(const attn_linear_problem *);
    /* `again`: the worker's last task had the same rows, which may still be in its workspace. */
    void (*run)(const attn_linear_problem *, const attn_linear_task *, bool again,
                const attn_linear_kernel *, attn_integer_unit, const attn_worker *);
} attn_integer_kernel;

double attn_linear_work(const attn_linear_problem *); /* multiplications */

/* -1 when memory runs out, else 0. It sets the last two fields, as the functions below do. */
int attn_linear(attn_linear_problem *, attn_call *);
/* Several independent ones at once; memory for more than a few may run out. The problems of
 * `then`, if there are any, follow each its own one, task by task: they have the same sizes and
 * the same kind of matrix, packed or not, quantised or not, and may read as `times` what that
 * one writes. */
#define ATTN_FEW_LINEARS 3
int attn_linears(int n, attn_linear_problem *const *, attn_linear_problem *const *then,
                 attn_call *);
/* Two products, whose first's output, in C order, is the second's input. It may stay as it was. */
int attn_linear_pair(attn_linear_problem *, attn_linear_problem *, attn_call *);

/* Bytes from the arrays of a product to those of the next. */
typedef struct {
    ptrdiff_t input, weight, output;
} attn_linear_steps;

/* n products of one shape, without bias, times and residual. The problem is the first. */
int attn_linear_each(ptrdiff_t n, attn_linear_problem *, const attn_linear_steps *,
                     attn_call *);

#endif
