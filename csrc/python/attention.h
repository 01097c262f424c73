/* attention(): its arrays, and what it shares with Plan and layer(). */
#ifndef ATTN_PYTHON_ATTENTION_H
#define ATTN_PYTHON_ATTENTION_H

#include "python/options.h"

#include "core/attention.h"

/* A call's arrays, owned; NULL where there is none. */
typedef struct {
    PyArrayObject *query, *key, *value, *mask, *bias, *sinks, *q_offset, *kv_lengths;
    PyArrayObject *key_scale, *value_scale;   /* then key, value are of int8 */
    PyArrayObject *query_starts, *key_starts; /* of seq_offsets */
    PyArrayObject *page_table;                /* (..., n) int64, or none */
    PyArrayObject *pages_of_batches;          /* (B, n) int64: what the core reads */
    bool ends_with_lengths; /* Lk is the longest of kv_lengths, not that of the pages */
    PyArrayObject *weight_groups; /* (Hk,) int64, or none */
    PyArrayObject *weights, *lse;
    PyArrayObject *output; /* what the core writes: `out`, if it can, or a new one */
    PyArrayObject *out;    /* a view of the user's */
    attn_packed packed;    /* what the problem points to */
    attn_pages pages;
    attn_weights described_weights;
} py_attention_arrays;

/* Everything before the computation: from (query, key, value, options) to a valid
 * problem with its arrays and results; returns its rank. Its parts: */
int py_prepare(PyObject *const *arguments, Py_ssize_t n_arguments,
               py_attention_arrays *, attn_problem *, py_options *);
void py_clear_problem(attn_problem *); /* no optional array, no option */
/* Converts query, key and value, and the options. */
int py_convert_inputs(PyObject *const *inputs, PyObject *options, py_attention_arrays *,
                      attn_problem *, py_options *);
/* The type number to which query, key and value promote. */
int py_inputs_type(const py_attention_arrays *);
/* Converts the arrays that are neither query, key nor value. */
int py_convert_options(PyObject *const *options, py_attention_arrays *);
/* Checks and describes the inputs for a result of the given type; the result's rank. */
int py_set_attention(py_attention_arrays *, int type, const py_options *,
                     attn_problem *);
/* The last `rank` axes of (batch axes, H, Lq, last), without Lq if drop_row; returns
 * their number. */
int py_result_shape(const attn_problem *, int rank, npy_intp last, bool drop_row,
                    npy_intp shape[ATTN_MAX_AXES]);
/* The same of the output, whose rows may be packed. */
int py_output_shape(const py_attention_arrays *, const attn_problem *, int rank,
                    npy_intp shape[ATTN_MAX_AXES]);
/* Describes an array like output or weights, whose row axis may have been dropped. */
void py_describe_result(attn_array *, PyArrayObject *, bool drop_row,
                        const attn_problem *);
/* Allocates the results, or takes `out` for the output, unless there is an output. */
int py_make_results(py_attention_arrays *, const py_options *, int type, int rank,
                    attn_problem *);

bool py_has_results(const py_attention_arrays *); /* with any element */
/* Runs the core. */
int py_compute(const py_attention_arrays *, const attn_problem *, const py_options *);
/* The result of attention(): the output, or a tuple of it and the other wanted results.
 * `out` is the user's argument, or None. */
PyObject *py_pack_results(const py_attention_arrays *, PyObject *out);
/* The same for existing results; weights and lse may be NULL. */
PyObject *py_pack(PyObject *output, PyObject *weights, PyObject *lse);
void py_release_attention(py_attention_arrays *);
extern PyMethodDef py_attention_methods[];

#endif
