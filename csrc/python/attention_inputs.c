/* From the arguments of attention() to a problem for the core. */
#include "python/attention.h"

#include "python/arrays.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/packed.h"
#include "python/pages.h"

#include "core/arrangement.h"

void
py_release_attention(py_attention_arrays *a)
{
    Py_CLEAR(a->query);
    Py_CLEAR(a->key);
    Py_CLEAR(a->value);
    Py_CLEAR(a->key_scale);
    Py_CLEAR(a->value_scale);
    Py_CLEAR(a->mask);
    Py_CLEAR(a->bias);
    Py_CLEAR(a->sinks);
    Py_CLEAR(a->q_offset);
    Py_CLEAR(a->kv_lengths);
    Py_CLEAR(a->query_starts);
    Py_CLEAR(a->key_starts);
    Py_CLEAR(a->page_table);
    Py_CLEAR(a->pages_of_batches);
    Py_CLEAR(a->output);
    Py_CLEAR(a->out);
    Py_CLEAR(a->weight_groups);
    Py_CLEAR(a->weights);
    Py_CLEAR(a->lse);
}

void
py_clear_problem(attn_problem *p)
{
    p->mask.data = p->bias.data = p->sinks.data = NULL;
    p->key_scale.data = p->value_scale.data = NULL;
    p->q_offset.data = p->kv_lengths.data = NULL;
    p->output.data = p->lse.data = NULL;
    p->packed = NULL;
    p->pages = NULL;
    p->weights = NULL;
    p->partial = NULL;
    p->statistics = NULL;
    p->causal = p->top_left = p->is_cold = false;
}

int
py_inputs_type(const py_attention_arrays *a)
{
    int query = PyArray_TYPE(a->query); /* which numbers with scales do not change */
    const int types[3] = {query, a->key_scale != NULL ? query : PyArray_TYPE(a->key),
                          a->value_scale != NULL ? query : PyArray_TYPE(a->value)};

    if (py_check_operand(a->query, "query") < 0 ||
        py_check_operand(a->key, "key") < 0 ||
        py_check_operand(a->value, "value") < 0) {
        return -1;
    }
    return py_common_type(3, types, "query, key, value");
}

/* Converts the scales of int8 keys, or of values, to a dtype of the core. */
static int
convert_scales(PyArrayObject *array, const char *name, PyArrayObject **scales,
               const char *scale_name, attn_array *described,
               attn_array *described_scales)
{
    if (PyArray_TYPE(array) != NPY_BYTE) {
        char expected[32];
        PyOS_snprintf(expected, sizeof expected, "int8 with %s", scale_name);
        return py_fail_dtype(array, name, expected);
    }
    described->dtype = ATTN_I8;
    if (!py_storage_of(PyArray_TYPE(*scales), &described_scales->dtype)) {
        return py_fail_dtype(*scales, scale_name,
                             "float64, float32, float16 or bfloat16");
    }
    return py_cast_array(scales, PyArray_TYPE(*scales));
}

/* Converts query, key and value; integers with scales stay as they are. */
static int
convert_operands(py_attention_arrays *a, int type, attn_problem *p)
{
    int status = py_cast_operand(&a->query, type, &p->query.dtype);

    if (status == 0) {
        status = a->key_scale == NULL
                     ? py_cast_operand(&a->key, type, &p->key.dtype)
                     : convert_scales(a->key, "key", &a->key_scale, "key_scale",
                                      &p->key, &p->key_scale);
    }
    if (status == 0) {
        status = a->value_scale == NULL
                     ? py_cast_operand(&a->value, type, &p->value.dtype)
                     : convert_scales(a->value, "value", &a->value_scale, "value_scale",
                                      &p->value, &p->value_scale);
    }
    return status;
}

/* Converts every array to a dtype of the core. */
static int
convert_dtypes(py_attention_arrays *a, int type, attn_problem *p)
{
    attn_dtype storage;

    if (!py_storage_of(type, &storage)) {
        PyErr_Format(
            PyExc_TypeError,
            "query, key, value: expected dtypes that promote to a floating one, "
            "got %S, %S and %S",
            (PyObject *)PyArray_DESCR(a->query), (PyObject *)PyArray_DESCR(a->key),
            (PyObject *)PyArray_DESCR(a->value));
        return -1;
    }
    p->arithmetic = storage == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    p->output.dtype = a->described_weights.array.dtype = storage;
    if (convert_operands(a, type, p) < 0) {
        return -1;
    }
    if (a->mask != NULL && !PyTypeNum_ISBOOL(PyArray_TYPE(a->mask))) {
        return py_fail_dtype(
            a->mask, "mask",
            "booleans, True = may attend (for 0 and 1 write mask != 0; "
            "numbers to add to the scores are the bias)");
    }
    if (a->bias != NULL && !py_storage_of(PyArray_TYPE(a->bias), &p->bias.dtype)) {
        return py_fail_dtype(
            a->bias, "bias",
            "float64, float32, float16 or bfloat16 (booleans are the mask)");
    }
    if (a->bias != NULL && py_cast_array(&a->bias, PyArray_TYPE(a->bias)) < 0) {
        return -1;
    }
    if (a->sinks == NULL) {
        return 0;
    }
    int sinks_type = PyArray_TYPE(a->sinks);
    if (PyTypeNum_ISINTEGER(sinks_type)) {
        sinks_type = NPY_DOUBLE;
    }
    if (!py_storage_of(sinks_type, &p->sinks.dtype)) {
        return py_fail_dtype(a->sinks, "sinks", "real numbers");
    }
    return py_cast_array(&a->sinks, sinks_type);
}

/* Adds the batch axes of an array to the batch shape, by NumPy's broadcasting. */
static int
broadcast_batch(attn_problem *p, PyArrayObject *array, const char *name)
{
    for (int axis = 0; axis < p->batch.n_axes; axis++) {
        npy_intp length = py_axis_length(array, p->batch.n_axes - 1 - axis + 3);
        if (length == 1 || length == p->batch.shape[axis]) {
            continue;
        }
        if (p->batch.shape[axis] != 1) {
            return py_fail_shape(
                array, name,
                "axes before the head axis that broadcast with query's and "
                "key's (%zd, not %zd)",
                p->batch.shape[axis], length);
        }
        p->batch.shape[axis] = length;
    }
    return 0;
}

/* Reads the axes before the head axis. */
static int
read_batch(py_attention_arrays *a, attn_problem *p, int *rank)
{
    bool paged = a->page_table != NULL;

    if (py_is_packed(a)) {
        *rank = 4;
        return py_set_starts(a, p) < 0 || (paged && py_broadcast_pages(a, p) < 0) ? -1
                                                                                  : 0;
    }
    *rank = PyArray_NDIM(a->query) == 1 ? 2 : PyArray_NDIM(a->query);
    int of_keys = paged ? PyArray_NDIM(a->page_table) + 2 : PyArray_NDIM(a->key);
    int of_values = paged ? of_keys : PyArray_NDIM(a->value);
    *rank = of_keys > *rank ? of_keys : *rank;
    *rank = of_values > *rank ? of_values : *rank;
    p->batch.n_axes = *rank > 3 ? *rank - 3 : 0;
    for (int axis = 0; axis < p->batch.n_axes; axis++) {
        p->batch.shape[axis] = 1;
    }
    if (broadcast_batch(p, a->query, "query") < 0) {
        return -1;
    }
    if (paged) {
        return py_broadcast_pages(a, p);
    }
    return broadcast_batch(p, a->key, "key") < 0
               ? -1
               : broadcast_batch(p, a->value, "value");
}

/* Reads the sizes from query, key and value. A query with one axis has one row. */
static int
read_sizes(py_attention_arrays *a, attn_problem *p, int *rank)
{
    bool row = PyArray_NDIM(a->query) == 1;

    if (PyArray_NDIM(a->query) < 1) {
        return py_fail_shape(a->query, "query", "(..., H, Lq, D) or (D,)", 0, 0);
    }
    if (PyArray_NDIM(a->key) < 2) {
        return py_fail_shape(a->key, "key", "(..., Hk, Lk, D)", 0, 0);
    }
    if (PyArray_NDIM(a->value) < 2) {
        return py_fail_shape(a->value, "value", "(..., Hk, Lk, Dv)", 0, 0);
    }
    p->head_dim = py_axis_length(a->query, 0);
    p->n_queries = row ? 1 : py_axis_length(a->query, 1);
    p->n_keys = py_axis_length(a->key, 1);
    p->n_kv_heads = py_axis_length(a->key, 2);
    p->value_dim = py_axis_length(a->value, 0);
    if (py_axis_length(a->key, 0) != p->head_dim) {
        return py_fail_shape(a->key, "key", "(..., Hk, Lk, %zd) to match query's D",
                             p->head_dim, 0);
    }
    npy_intp n_rows = py_axis_length(a->key, 1);
    if (py_axis_length(a->value, 1) != n_rows ||
        py_axis_length(a->value, 2) != p->n_kv_heads) {
        return py_fail_shape(a->value, "value",
                             "(..., %zd, %zd, Dv) to match key's Hk and Lk",
                             p->n_kv_heads, n_rows);
    }
    npy_intp n_heads = py_axis_length(a->query, 2);
    if (p->n_kv_heads == 0 ? n_heads != 0 : n_heads % p->n_kv_heads != 0) {
        bool swapped = p->n_keys > 0 && p->n_queries % p->n_keys == 0;
        return py_fail_shape(
            a->query, "query",
            swapped ? "(..., H, Lq, D) with H a multiple of key's Hk = %zd, which "
                      "np.swapaxes(x, -3, -2) makes of (..., L, H, D)"
                    : "(..., H, Lq, D) with H a multiple of key's Hk = %zd",
            p->n_kv_heads, 0);
    }
    p->group = p->n_kv_heads == 0 ? 0 : n_heads / p->n_kv_heads;
    if (a->page_table != NULL && py_read_pages(a, p) < 0) {
        return -1;
    }
    return read_batch(a, p, rank);
}

int
py_result_shape(const attn_problem *p, int rank, npy_intp last, bool drop_row,
                npy_intp shape[ATTN_MAX_AXES])
{
    int n = 0;

    for (int axis = 0; axis < p->batch.n_axes; axis++) {
        shape[n++] = p->batch.shape[axis];
    }
    if (rank > 2) {
        shape[n++] = p->n_kv_heads * p->group;
    }
    if (!drop_row) {
        shape[n++] = p->n_queries;
    }
    shape[n++] = last;
    return n;
}

/* Checks that an array broadcasts to (..., H, Lq, Lk). */
static int
check_broadcast(const attn_problem *p, int rank, PyArrayObject *array, const char *name)
{
    npy_intp shape[ATTN_MAX_AXES];
    PyObject *target, *own;

    py_result_shape(p, rank, p->n_keys, false, shape);
    bool fits = PyArray_NDIM(array) <= rank;
    for (int place = 0; fits && place < rank; place++) {
        npy_intp length = py_axis_length(array, place);
        fits = length == 1 || length == shape[rank - 1 - place];
    }
    if (fits) {
        return 0;
    }
    bool of_keys = rank == 4 && PyArray_NDIM(array) == 2 &&
                   py_axis_length(array, 1) == shape[0] &&
                   py_axis_length(array, 0) == shape[3];
    target = PyArray_IntTupleFromIntp(rank, shape);
    own = py_shape_of(array);
    if (target != NULL && own != NULL) {
        PyErr_Format(
            PyExc_ValueError,
            "%s: expected a shape that broadcasts to (..., H, Lq, Lk) = %S, got "
            "shape %S%s",
            name, target, own,
            of_keys ? ": write it as [:, None, None, :], or kv_lengths= instead" : "");
    }
    Py_XDECREF(target);
    Py_XDECREF(own);
    return -1;
}

/* Checks and describes q_offset or kv_lengths: one number for each batch, or fewer. */
static int
set_numbers(attn_problem *p, attn_array *to, PyArrayObject *array, const char *name,
            int64_t low, int64_t high)
{
    if (array == NULL) {
        return 0;
    }
    bool fits = PyArray_NDIM(array) <= p->batch.n_axes;
    for (int place = 0; fits && place < p->batch.n_axes; place++) {
        npy_intp length = py_axis_length(array, place);
        fits = length == 1 || length == p->batch.shape[p->batch.n_axes - 1 - place];
    }
    if (!fits) {
        return py_fail_shape(
            array, name,
            "an integer, or integers that broadcast to the axes before the "
            "head axis",
            0, 0);
    }
    const int64_t *numbers = PyArray_DATA(array);
    for (npy_intp i = 0; i < PyArray_SIZE(array); i++) {
        if (py_check_range(numbers[i], name, low, high) < 0) {
            return -1;
        }
    }
    py_describe(to, array, 3, p->batch.n_axes);
    return to == &p->kv_lengths ? py_check_lengths(p) : 0;
}

/* Checks and describes the scales of an array (..., Hk, Lk, size): they broadcast to its axes but
 * the last. */
static int
set_scales(attn_array *to, PyArrayObject *scales, const char *name,
           PyArrayObject *array, const attn_problem *p)
{
    int n_axes = PyArray_NDIM(array) - 1;

    if (scales == NULL) {
        return 0;
    }
    bool fits = PyArray_NDIM(scales) <= n_axes;
    for (int place = 0; fits && place < PyArray_NDIM(scales); place++) {
        npy_intp length = py_axis_length(scales, place);
        fits = length == 1 || length == py_axis_length(array, place + 1);
    }
    if (!fits) {
        PyObject *target = PyArray_IntTupleFromIntp(n_axes, PyArray_DIMS(array));
        PyObject *own = py_shape_of(scales);
        if (target != NULL && own != NULL) {
            PyErr_Format(
                PyExc_ValueError,
                "%s: expected a shape that broadcasts to (..., Hk, Lk) = %S, got "
                "shape %S",
                name, target, own);
        }
        Py_XDECREF(target);
        Py_XDECREF(own);
        return -1;
    }
    py_describe(to, scales, 1, p->batch.n_axes);
    return 0;
}

/* Describes the inputs to the core. */
static int
set_inputs(const py_attention_arrays *a, attn_problem *p, int rank)
{
    if (a->sinks != NULL && (PyArray_NDIM(a->sinks) != 1 ||
                             PyArray_DIM(a->sinks, 0) != p->n_kv_heads * p->group)) {
        return py_fail_shape(a->sinks, "sinks", "(%zd,), one for each query head",
                             p->n_kv_heads * p->group, 0);
    }
    if (set_numbers(p, &p->q_offset, a->q_offset, "q_offset", INT64_MIN, INT64_MAX) <
            0 ||
        set_numbers(p, &p->kv_lengths, a->kv_lengths, "kv_lengths", 0, p->n_keys) < 0) {
        return -1;
    }
    py_describe(&p->query, a->query, 0, p->batch.n_axes);
    if (PyArray_NDIM(a->query) == 1) {
        p->query.row_stride = 0;
    }
    py_describe(&p->key, a->key, 0, p->batch.n_axes);
    py_describe(&p->value, a->value, 0, p->batch.n_axes);
    if (set_scales(&p->key_scale, a->key_scale, "key_scale", a->key, p) < 0 ||
        set_scales(&p->value_scale, a->value_scale, "value_scale", a->value, p) < 0) {
        return -1;
    }
    if (a->mask != NULL) {
        if (check_broadcast(p, rank, a->mask, "mask") < 0) {
            return -1;
        }
        py_describe(&p->mask, a->mask, 0, p->batch.n_axes);
    }
    if (a->bias != NULL) {
        if (check_broadcast(p, rank, a->bias, "bias") < 0) {
            return -1;
        }
        py_describe(&p->bias, a->bias, 0, p->batch.n_axes);
    }
    if (a->sinks != NULL) {
        py_describe(&p->sinks, a->sinks, 2, p->batch.n_axes);
    }
    return 0;
}

/* Counts the batches and rows of all heads; an error where that overflows. */
static int
count_rows(attn_problem *p)
{
    ptrdiff_t n = p->n_kv_heads;
    bool overflow = false;

    p->batch.n = 1;
    for (int axis = 0; axis < p->batch.n_axes; axis++) {
        overflow |=
            __builtin_mul_overflow(p->batch.n, p->batch.shape[axis], &p->batch.n);
    }
    overflow |= __builtin_mul_overflow(n, p->batch.n, &n);
    overflow |= __builtin_mul_overflow(n, p->group, &n);
    overflow |= __builtin_mul_overflow(n, p->n_queries, &n);
    overflow |= n > PTRDIFF_MAX / 2 || p->n_keys > PTRDIFF_MAX / 2;
    overflow |= p->head_dim > ATTN_MAX_DIM || p->value_dim > ATTN_MAX_DIM;
    if (overflow) {
        PyErr_Format(
            PyExc_ValueError,
            "query, key, value: expected sizes whose product fits in 63 bits and D "
            "and Dv up to %lld, got %zd rows with D = %zd, Dv = %zd",
            (long long)ATTN_MAX_DIM, p->n_queries, p->head_dim, p->value_dim);
        return -1;
    }
    return 0;
}

int
py_convert_options(PyObject *const *options, py_attention_arrays *a)
{
    if (py_as_optional_array(options[MASK], "mask", &a->mask) < 0 ||
        py_as_optional_array(options[BIAS], "bias", &a->bias) < 0 ||
        py_as_optional_array(options[SINKS], "sinks", &a->sinks) < 0 ||
        py_as_optional_array(options[KEY_SCALE], "key_scale", &a->key_scale) < 0 ||
        py_as_optional_array(options[VALUE_SCALE], "value_scale", &a->value_scale) <
            0 ||
        py_copy_integers(options[Q_OFFSET], "q_offset", &a->q_offset) < 0 ||
        py_copy_integers(options[KV_LENGTHS], "kv_lengths", &a->kv_lengths) < 0 ||
        py_convert_starts(options[SEQ_OFFSETS], a) < 0 ||
        py_copy_integers(options[PAGE_TABLE], "page_table", &a->page_table) < 0 ||
        py_as_out(options[OUT], &a->out) < 0) {
        return -1;
    }
    return 0;
}

int
py_set_attention(py_attention_arrays *a, int type, const py_options *o, attn_problem *p)
{
    int rank = 0;

    if (convert_dtypes(a, type, p) < 0 || read_sizes(a, p, &rank) < 0 ||
        py_set_scale(p, o) < 0 || count_rows(p) < 0 || set_inputs(a, p, rank) < 0 ||
        (a->page_table != NULL && py_set_pages(a, p) < 0)) {
        return -1;
    }
    attn_choose_task_rows(p, o->n_threads);
    return rank;
}

int
py_convert_inputs(PyObject *const *inputs, PyObject *group, py_attention_arrays *a,
                  attn_problem *p, py_options *o)
{
    PyObject *const *options = py_items(group, "options", N_OPTIONS);

    py_clear_problem(p);
    if (options == NULL || py_parse_options(options, p, o) < 0 ||
        py_as_array(inputs[0], "query", &a->query) < 0 ||
        py_as_array(inputs[1], "key", &a->key) < 0 ||
        py_as_array(inputs[2], "value", &a->value) < 0) {
        return -1;
    }
    return py_convert_options(options, a);
}

int
py_prepare(PyObject *const *arguments, Py_ssize_t n_arguments, py_attention_arrays *a,
           attn_problem *p, py_options *o)
{
    int type, rank;

    if (n_arguments != 4) {
        PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", n_arguments);
        return -1;
    }
    if (py_convert_inputs(arguments, arguments[3], a, p, o) < 0) {
        return -1;
    }
    type = py_inputs_type(a);
    rank = type < 0 ? -1 : py_set_attention(a, type, o, p);
    return rank < 0 || py_make_results(a, o, type, rank, p) < 0 ? -1 : rank;
}
