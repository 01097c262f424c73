/* attention(): from its arguments to a problem for the core, and to its results. */
#include "binding.h"

void
py_release_arrays(py_arrays *a)
{
    Py_CLEAR(a->query);
    Py_CLEAR(a->key);
    Py_CLEAR(a->value);
    Py_CLEAR(a->mask);
    Py_CLEAR(a->bias);
    Py_CLEAR(a->sinks);
    Py_CLEAR(a->q_offset);
    Py_CLEAR(a->kv_lengths);
    Py_CLEAR(a->output);
    Py_CLEAR(a->weights);
    Py_CLEAR(a->lse);
}

void
py_clear_problem(attn_problem *p)
{
    p->mask.data = p->bias.data = p->sinks.data = NULL;
    p->q_offset.data = p->kv_lengths.data = NULL;
    p->weights.data = p->lse.data = NULL;
    p->causal = p->top_left = false;
}

int
py_promote(const int types[3])
{
    PyObject *descrs[3];
    int type = py_common_type(3, types);

    if (type >= 0 || !PyErr_ExceptionMatches(PyExc_TypeError)) {
        return type;
    }
    for (int i = 0; i < 3; i++) {
        descrs[i] = (PyObject *)PyArray_DescrFromType(types[i]);
    }
    PyErr_Format(PyExc_TypeError,
                 "query, key, value: expected dtypes with a common one, got %S, %S and "
                 "%S",
                 descrs[0], descrs[1], descrs[2]);
    for (int i = 0; i < 3; i++) {
        Py_DECREF(descrs[i]);
    }
    return -1;
}

/* The type number to which query, key and value promote. */
static int
common_type(const py_arrays *a)
{
    const int types[3] = {PyArray_TYPE(a->query), PyArray_TYPE(a->key),
                          PyArray_TYPE(a->value)};

    if (py_check_operand(a->query, "query") < 0 ||
        py_check_operand(a->key, "key") < 0 ||
        py_check_operand(a->value, "value") < 0) {
        return -1;
    }
    return py_promote(types);
}

/* Brings every array to the dtype the core takes. */
static int
convert_dtypes(py_arrays *a, int type, attn_problem *p)
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
    p->output.dtype = p->weights.dtype = storage;
    if (py_cast_operand(&a->query, type, &p->query.dtype) < 0 ||
        py_cast_operand(&a->key, type, &p->key.dtype) < 0 ||
        py_cast_operand(&a->value, type, &p->value.dtype) < 0) {
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

void
py_describe(attn_array *to, PyArrayObject *array, int missing, int n_batch_axes)
{
    ptrdiff_t *strides[3] = {&to->column_stride, &to->row_stride, &to->head_stride};

    to->data = PyArray_BYTES(array);
    for (int place = 0; place < 3; place++) {
        *strides[place] = place < missing ? 0 : py_axis_stride(array, place - missing);
    }
    for (int axis = 0; axis < n_batch_axes; axis++) {
        int from_right = n_batch_axes - 1 - axis + 3 - missing;
        to->batch_stride[axis] = py_axis_stride(array, from_right);
    }
}

/* Takes the batch axes of an array into the batch shape, by NumPy's broadcasting. */
static int
broadcast_batch(attn_problem *p, PyArrayObject *array, const char *name)
{
    for (int axis = 0; axis < p->n_batch_axes; axis++) {
        npy_intp length = py_axis_length(array, p->n_batch_axes - 1 - axis + 3);
        if (length == 1 || length == p->batch_shape[axis]) {
            continue;
        }
        if (p->batch_shape[axis] != 1) {
            return py_fail_shape(
                array, name,
                "axes before the head axis that broadcast with query's and "
                "key's (%zd, not %zd)",
                p->batch_shape[axis], length);
        }
        p->batch_shape[axis] = length;
    }
    return 0;
}

/* Reads the sizes off query, key and value. A query with one axis is one of one row. */
static int
read_sizes(const py_arrays *a, attn_problem *p, int *rank)
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
    if (py_axis_length(a->value, 1) != p->n_keys ||
        py_axis_length(a->value, 2) != p->n_kv_heads) {
        return py_fail_shape(a->value, "value",
                             "(..., %zd, %zd, Dv) to match key's Hk and Lk",
                             p->n_kv_heads, p->n_keys);
    }
    npy_intp n_heads = py_axis_length(a->query, 2);
    if (p->n_kv_heads == 0 ? n_heads != 0 : n_heads % p->n_kv_heads != 0) {
        return py_fail_shape(a->query, "query",
                             "(..., H, Lq, D) with H a multiple of key's Hk = %zd",
                             p->n_kv_heads, 0);
    }
    p->group = p->n_kv_heads == 0 ? 0 : n_heads / p->n_kv_heads;

    *rank = row ? 2 : PyArray_NDIM(a->query);
    *rank = PyArray_NDIM(a->key) > *rank ? PyArray_NDIM(a->key) : *rank;
    *rank = PyArray_NDIM(a->value) > *rank ? PyArray_NDIM(a->value) : *rank;
    p->n_batch_axes = *rank > 3 ? *rank - 3 : 0;
    for (int axis = 0; axis < p->n_batch_axes; axis++) {
        p->batch_shape[axis] = 1;
    }
    if (broadcast_batch(p, a->query, "query") < 0 ||
        broadcast_batch(p, a->key, "key") < 0 ||
        broadcast_batch(p, a->value, "value") < 0) {
        return -1;
    }
    return 0;
}

/* The last `rank` axes of (batch axes, H, Lq, last), without Lq where drop_row. */
static int
result_shape(const attn_problem *p, int rank, npy_intp last, bool drop_row,
             npy_intp shape[ATTN_MAX_AXES])
{
    int n = 0;

    for (int axis = 0; axis < p->n_batch_axes; axis++) {
        shape[n++] = p->batch_shape[axis];
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

    result_shape(p, rank, p->n_keys, false, shape);
    bool fits = PyArray_NDIM(array) <= rank;
    for (int place = 0; fits && place < rank; place++) {
        npy_intp length = py_axis_length(array, place);
        fits = length == 1 || length == shape[rank - 1 - place];
    }
    if (fits) {
        return 0;
    }
    target = PyArray_IntTupleFromIntp(rank, shape);
    own = py_shape_of(array);
    if (target != NULL && own != NULL) {
        PyErr_Format(
            PyExc_ValueError,
            "%s: expected a shape that broadcasts to (..., H, Lq, Lk) = %S, got "
            "shape %S",
            name, target, own);
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
    bool fits = PyArray_NDIM(array) <= p->n_batch_axes;
    for (int place = 0; fits && place < p->n_batch_axes; place++) {
        npy_intp length = py_axis_length(array, place);
        fits = length == 1 || length == p->batch_shape[p->n_batch_axes - 1 - place];
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
    py_describe(to, array, 3, p->n_batch_axes);
    return 0;
}

/* Describes the inputs to the core. */
static int
set_inputs(const py_arrays *a, attn_problem *p, int rank)
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
    py_describe(&p->query, a->query, 0, p->n_batch_axes);
    if (PyArray_NDIM(a->query) == 1) {
        p->query.row_stride = 0;
    }
    py_describe(&p->key, a->key, 0, p->n_batch_axes);
    py_describe(&p->value, a->value, 0, p->n_batch_axes);
    if (a->mask != NULL) {
        if (check_broadcast(p, rank, a->mask, "mask") < 0) {
            return -1;
        }
        py_describe(&p->mask, a->mask, 0, p->n_batch_axes);
    }
    if (a->bias != NULL) {
        if (check_broadcast(p, rank, a->bias, "bias") < 0) {
            return -1;
        }
        py_describe(&p->bias, a->bias, 0, p->n_batch_axes);
    }
    if (a->sinks != NULL) {
        py_describe(&p->sinks, a->sinks, 2, p->n_batch_axes);
    }
    return 0;
}

/* Counts the batches and rows of all heads; an error where that overflows. */
static int
count_rows(attn_problem *p)
{
    ptrdiff_t n = p->n_kv_heads;
    bool overflow = false;

    p->n_batch = 1;
    for (int axis = 0; axis < p->n_batch_axes; axis++) {
        overflow |=
            __builtin_mul_overflow(p->n_batch, p->batch_shape[axis], &p->n_batch);
    }
    overflow |= __builtin_mul_overflow(n, p->n_batch, &n);
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

/* The addresses that an array's elements may lie at: first up to but not last. */
static void
extent(PyArrayObject *array, uintptr_t *first, uintptr_t *last)
{
    *first = *last = (uintptr_t)PyArray_DATA(array);
    if (PyArray_SIZE(array) == 0) {
        return;
    }
    for (int axis = 0; axis < PyArray_NDIM(array); axis++) {
        npy_intp span = (PyArray_DIM(array, axis) - 1) * PyArray_STRIDE(array, axis);
        *(span < 0 ? first : last) += (uintptr_t)span;
    }
    *last += (uintptr_t)PyArray_ITEMSIZE(array);
}

bool
py_may_overlap(PyArrayObject *one, PyArrayObject *other)
{
    uintptr_t first, last, other_first, other_last;

    if (other == NULL) {
        return false;
    }
    extent(one, &first, &last);
    extent(other, &other_first, &other_last);
    return first < other_last && other_first < last;
}

/* Checks `out` and makes it the output if the core can write there without disturbing an
 * input; else leaves the output to be allocated. */
static int
accept_out(py_arrays *a, PyObject *object, int type, int n_axes, const npy_intp *shape)
{
    PyArrayObject *out = (PyArrayObject *)object;

    if (!PyArray_Check(object)) {
        PyErr_Format(PyExc_TypeError, "out: expected a NumPy array, got %s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    if (PyArray_TYPE(out) != type) {
        PyArray_Descr *descr = PyArray_DescrFromType(type);
        PyErr_Format(PyExc_TypeError, "out: expected dtype %S, got dtype %S",
                     (PyObject *)descr, (PyObject *)PyArray_DESCR(out));
        Py_XDECREF(descr);
        return -1;
    }
    if (PyArray_NDIM(out) != n_axes ||
        !PyArray_CompareLists(PyArray_DIMS(out), shape, n_axes)) {
        PyObject *expected = PyArray_IntTupleFromIntp(n_axes, shape);
        PyObject *got = py_shape_of(out);
        if (expected != NULL && got != NULL) {
            PyErr_Format(PyExc_ValueError, "out: expected shape %S, got %S", expected,
                         got);
        }
        Py_XDECREF(expected);
        Py_XDECREF(got);
        return -1;
    }
    if (!PyArray_ISWRITEABLE(out)) {
        PyErr_SetString(
            PyExc_ValueError,
            "out: expected an array that can be written to, got a read-only "
            "one");
        return -1;
    }
    if (PyArray_ISBEHAVED(out) && !py_may_overlap(out, a->query) &&
        !py_may_overlap(out, a->key) && !py_may_overlap(out, a->value) &&
        !py_may_overlap(out, a->mask) && !py_may_overlap(out, a->bias) &&
        !py_may_overlap(out, a->sinks)) {
        Py_INCREF(object);
        a->output = out;
    }
    return 0;
}

/* Describes output or weights, whose row axis may have been dropped. */
static void
describe_result(attn_array *to, PyArrayObject *array, bool drop_row,
                const attn_problem *p)
{
    if (!drop_row) {
        py_describe(to, array, 0, p->n_batch_axes);
        return;
    }
    /* (..., head, column) is described as (..., head, row), then turned. */
    py_describe(to, array, 1, p->n_batch_axes);
    to->column_stride = to->row_stride;
    to->row_stride = 0;
}

int
py_make_results(py_arrays *a, const py_options *o, int type, int rank, attn_problem *p)
{
    bool drop_row = PyArray_NDIM(a->query) == 1;
    npy_intp shape[ATTN_MAX_AXES];
    int n_axes = result_shape(p, rank, p->value_dim, drop_row, shape);

    if (o->out != Py_None && accept_out(a, o->out, type, n_axes, shape) < 0) {
        return -1;
    }
    if (a->output == NULL) {
        a->output = (PyArrayObject *)PyArray_EMPTY(n_axes, shape, type, 0);
        if (a->output == NULL) {
            return -1;
        }
    }
    describe_result(&p->output, a->output, drop_row, p);
    if (o->return_weights) {
        shape[n_axes - 1] = p->n_keys;
        a->weights = (PyArrayObject *)PyArray_ZEROS(n_axes, shape, type, 0);
        if (a->weights == NULL) {
            return -1;
        }
        describe_result(&p->weights, a->weights, drop_row, p);
    }
    if (o->return_lse) {
        int real = p->arithmetic == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT;
        a->lse = (PyArrayObject *)PyArray_EMPTY(n_axes - 1, shape, real, 0);
        if (a->lse == NULL) {
            return -1;
        }
        py_describe(&p->lse, a->lse, drop_row ? 2 : 1, p->n_batch_axes);
    }
    return 0;
}

PyObject *
py_pack_results(const py_arrays *a, PyObject *out)
{
    PyObject *output = out == Py_None ? (PyObject *)a->output : out;

    if (output != (PyObject *)a->output &&
        PyArray_CopyInto((PyArrayObject *)output, a->output) < 0) {
        return NULL;
    }
    if (a->weights != NULL && a->lse != NULL) {
        return PyTuple_Pack(3, output, a->weights, a->lse);
    }
    if (a->weights != NULL) {
        return PyTuple_Pack(2, output, a->weights);
    }
    if (a->lse != NULL) {
        return PyTuple_Pack(2, output, a->lse);
    }
    return Py_NewRef(output);
}

int
py_convert_options(PyObject *const *arguments, py_arrays *a)
{
    if (py_as_optional_array(arguments[MASK], &a->mask) < 0 ||
        py_as_optional_array(arguments[BIAS], &a->bias) < 0 ||
        py_as_optional_array(arguments[SINKS], &a->sinks) < 0 ||
        py_copy_integers(arguments[Q_OFFSET], "q_offset", &a->q_offset) < 0 ||
        py_copy_integers(arguments[KV_LENGTHS], "kv_lengths", &a->kv_lengths) < 0) {
        return -1;
    }
    return 0;
}

static bool
has_elements(PyArrayObject *array)
{
    return array != NULL && PyArray_SIZE(array) > 0;
}

bool
py_has_results(const py_arrays *a)
{
    return has_elements(a->output) || has_elements(a->weights) || has_elements(a->lse);
}

double
py_attention_work(const attn_problem *p)
{
    double rows = (double)p->n_batch * (double)p->n_kv_heads * (double)p->group *
                  (double)p->n_queries;

    return rows * ((double)p->n_keys + 1) * (double)(p->head_dim + p->value_dim + 1);
}

int
py_compute(const py_arrays *a, const attn_problem *p, const py_options *o)
{
    py_lock lock;

    if (!py_has_results(a)) {
        return 0;
    }
    attn_poll poll = py_give_up_lock(&lock, py_attention_work(p));
    return py_take_lock_back(&lock,
                             attn_attention(p, o->tier, o->n_threads, poll, &lock));
}

int
py_set_attention(py_arrays *a, int type, const py_options *o, attn_problem *p)
{
    int rank = 0;

    if (convert_dtypes(a, type, p) < 0 || read_sizes(a, p, &rank) < 0 ||
        py_set_scale(p, o) < 0 || count_rows(p) < 0 || set_inputs(a, p, rank) < 0) {
        return -1;
    }
    return rank;
}

int
py_prepare(PyObject *const *arguments, Py_ssize_t n_arguments, py_arrays *a,
           attn_problem *p, py_options *o)
{
    int type, rank;

    py_clear_problem(p);
    /* Other people's code may run in conversions, but not after. */
    if (py_check_count(n_arguments, N_ARGUMENTS) < 0 ||
        py_parse_options(arguments, n_arguments, p, o) < 0 ||
        py_as_array(arguments[QUERY], &a->query) < 0 ||
        py_as_array(arguments[KEY], &a->key) < 0 ||
        py_as_array(arguments[VALUE], &a->value) < 0 ||
        py_convert_options(arguments, a) < 0) {
        return -1;
    }
    type = common_type(a);
    rank = type < 0 ? -1 : py_set_attention(a, type, o, p);
    return rank < 0 ? -1 : py_make_results(a, o, type, rank, p);
}

PyDoc_STRVAR(attention_doc,
             "attention(query, key, value, mask, bias, causal, window, q_offset, "
             "kv_lengths, scale, softcap, sinks, return_weights, return_lse, out, "
             "num_threads, tier=None, /)\n--\n\nAs attnpy.attention; tier names the "
             "instruction set.");

static PyObject *
attention(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    py_arrays a = {NULL};
    attn_problem p;
    py_options o;
    PyObject *result = NULL;

    (void)module;
    if (py_prepare(arguments, n_arguments, &a, &p, &o) == 0 &&
        py_compute(&a, &p, &o) == 0) {
        result = py_pack_results(&a, o.out);
    }
    py_release_arrays(&a);
    return result;
}

PyMethodDef py_call_methods[] = {
    {"attention", PY_FUNCTION(attention), METH_FASTCALL, attention_doc},
    {NULL, NULL, 0, NULL},
};
