/* The one interface inside the binding. Its files are the only ones that know Python and
 * NumPy: they convert and check what they are given, read pointers, shapes and strides
 * once, and hand the core a problem in which everything is valid. What returns an int
 * gives -1 where it has set an exception. */
#ifndef ATTN_BINDING_H
#define ATTN_BINDING_H

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL attn_numpy_api
#ifndef IMPORTS_NUMPY /* module.c does, for all */
#define NO_IMPORT_ARRAY
#endif
#include <Python.h>
#include <numpy/arrayobject.h>

#include "attention.h"

#define PY_FUNCTION(f) (PyCFunction)(void (*)(void)) f

/* arguments.c: objects as numbers and arrays. */
PyObject *py_shape_of(PyArrayObject *);
/* Raises "name: expected ..., got <shape>"; `expected` may hold two %zd. */
int py_fail_shape(PyArrayObject *, const char *name, const char *expected, Py_ssize_t m,
                  Py_ssize_t n);
int py_fail_dtype(PyArrayObject *, const char *name, const char *expected);
int py_check_count(Py_ssize_t n_arguments, Py_ssize_t expected); /* or one less */
int py_check_range(int64_t number, const char *name, int64_t low, int64_t high);

int py_parse_flag(PyObject *, const char *name);
int py_parse_number(PyObject *, const char *name, double *); /* a finite one */
/* Where it does not fit, the sign of `overflow` tells which side it is on. */
int py_parse_integer(PyObject *, const char *name, int64_t *, int *overflow);
int py_parse_threads(PyObject *, int *n_threads);
int py_parse_tier(PyObject *, const attn_tier **);

/* Arrays of whatever dtype; their own conversion's errors pass through. */
int py_as_array(PyObject *, PyArrayObject **);
int py_as_optional_array(PyObject *, PyArrayObject **);
/* An array of the given type, aligned and contiguous, for the core to read in one line. */
PyArrayObject *py_as_contiguous(PyObject *, int type);
/* An own copy of integers as int64, or none for None. */
int py_copy_integers(PyObject *, const char *name, PyArrayObject **);
/* Replaces the array by one of the given type, native and aligned, unless it is that. */
int py_cast_array(PyArrayObject **, int type);

/* Likewise an operand of what has the type `type`. Where that is computed in float32, any
 * dtype that the core takes may stay. */
int py_cast_operand(PyArrayObject **, int type, attn_dtype *);

/* The type number to which so many, 3 at most, promote, double for integers. */
int py_common_type(int n, const int *types);
/* Does a type number stand for one of the storage dtypes, and which? */
bool py_storage_of(int type, attn_dtype *);
/* Checks the dtype of what is computed with: a floating one, integers or booleans. */
int py_check_operand(PyArrayObject *, const char *name);

/* Length of the axis at a place counted from the right; a missing axis counts as 1. */
npy_intp py_axis_length(PyArrayObject *, int from_right);
/* Its stride, 0 where the axis is missing or has a length of at most 1. */
npy_intp py_axis_stride(PyArrayObject *, int from_right);

/* options.c: attention()'s positional arguments, and those that are no arrays. */
/* clang-format off */
enum {
    QUERY, KEY, VALUE, MASK, BIAS, CAUSAL, WINDOW, Q_OFFSET, KV_LENGTHS, SCALE, SOFTCAP,
    SINKS, RETURN_WEIGHTS, RETURN_LSE, OUT, NUM_THREADS, TIER, N_ARGUMENTS
};
/* clang-format on */

typedef struct {
    bool has_scale;
    double scale;
    bool return_weights, return_lse;
    PyObject *out; /* borrowed; may be None */
    int n_threads;
    const attn_tier *tier;
} py_options;

int py_parse_options(PyObject *const *arguments, Py_ssize_t n_arguments, attn_problem *,
                     py_options *);
/* Brings scale and softcap to the arithmetic's dtype, where they must be finite too. */
int py_set_scale(attn_problem *, const py_options *);

/* call.c: a call's arrays, owned; NULL where there is none. */
typedef struct {
    PyArrayObject *query, *key, *value, *mask, *bias, *sinks, *q_offset, *kv_lengths;
    PyArrayObject *weights, *lse;
    PyArrayObject *output; /* what the core writes: `out`, if it can, or a new one */
} py_arrays;

/* Everything before the computation: from arguments to a problem in which all is valid,
 * with its arrays and results. Its parts: */
int py_prepare(PyObject *const *arguments, Py_ssize_t n_arguments, py_arrays *,
               attn_problem *, py_options *);
void py_clear_problem(attn_problem *); /* no optional array, no option */
/* Converts the arrays that are neither query, key nor value. */
int py_convert_options(PyObject *const *arguments, py_arrays *);
/* The type number to which those of query, key and value promote. */
int py_promote(const int types[3]);
/* Checks and describes the inputs for a result of the given type; the result's rank. */
int py_set_attention(py_arrays *, int type, const py_options *, attn_problem *);
/* Allocates the results, or takes `out` for the output, unless there is an output. */
int py_make_results(py_arrays *, const py_options *, int type, int rank,
                    attn_problem *);
/* A (..., head, row, column) array for the core: its last `missing` of these three axes
 * are not there. Batch axes that it lacks broadcast. */
void py_describe(attn_array *, PyArrayObject *, int missing, int n_batch_axes);
bool py_may_overlap(PyArrayObject *, PyArrayObject *other); /* which may be NULL */

bool py_has_results(const py_arrays *); /* with any element */
double py_attention_work(const attn_problem *);
/* Runs the core. */
int py_compute(const py_arrays *, const attn_problem *, const py_options *);
/* What attention() returns: the output, or a tuple of it with what else was asked for. */
PyObject *py_pack_results(const py_arrays *, PyObject *out);
void py_release_arrays(py_arrays *);
extern PyMethodDef py_call_methods[];

/* lock.c: the interpreter's lock, given up during a call; `failed` when a signal handler
 * raised. */
typedef struct {
    PyThreadState *thread;
    bool failed;
} py_lock;

/* Gives the interpreter's lock up if so many multiplications are worth it; returns what
 * the core is to poll meanwhile. */
attn_poll py_give_up_lock(py_lock *, double work);
/* Takes it back; an error where the core had no memory or a signal handler raised. */
int py_take_lock_back(py_lock *, int status);

/* rows.c: the arrays of a product of rows with a matrix, owned. */
typedef struct {
    PyArrayObject *input, *weight, *bias;
} py_linear_arrays;

/* Checks and describes everything but the output; the output's type number. */
int py_set_linear(py_linear_arrays *, attn_linear_problem *);
/* An array of rows, of all batches in a line. */
void py_describe_rows(attn_array *, PyArrayObject *, const attn_linear_problem *);
/* Allocates and describes the output. */
PyArrayObject *py_make_product(const py_linear_arrays *, int type,
                               attn_linear_problem *);
double py_linear_work(const attn_linear_problem *);
void py_release_linear(py_linear_arrays *);
extern PyMethodDef py_linear_methods[];

/* heads.c */
/* Reads the sizes off an array of (..., head, row, column), and sets no step. */
void py_read_heads(PyArrayObject *, attn_heads_problem *);
/* Checks and describes what rows of such an array, x, are turned by: it broadcasts. */
int py_set_turns(PyArrayObject *turns, PyArrayObject *x, attn_heads_problem *);
extern PyMethodDef py_heads_methods[];

/* layer.c */
extern PyMethodDef py_layer_methods[];

/* plan.c */
extern PyType_Spec py_plan_spec;

/* settings.c: what belongs to the process. */
const attn_tier *py_current_tier(void); /* that calls use unless they name one */
int py_choose_settings(void);           /* from the environment */
extern PyMethodDef py_settings_methods[];

#endif
