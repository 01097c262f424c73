/* The extension module attnpy._attnpy: the only file that knows Python and NumPy. It
 * converts and checks what it is given, reads pointers, shapes and strides once, and hands
 * the core a problem in which everything is valid. */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <structmember.h>

#include "attention.h"

#define EXPORTED __attribute__((visibility("default")))

/* Work, in multiplications, below which the lock is kept: a few microseconds, less than a
 * contended lock may cost. */
#define WORK_UNDER_LOCK 1e5

/* The tier that calls use unless they name one; set once, on import. And whether they use
 * its portable form. */
static const attn_tier *default_tier;
static atomic_bool portable;

static const attn_tier *
current_tier(void)
{
    return atomic_load(&portable) ? attn_portable_tier(default_tier) : default_tier;
}

/* ---- Arguments as they come ----------------------------------------------------------- */

/* attention()'s positional arguments. */
/* clang-format off */
enum {
    QUERY, KEY, VALUE, MASK, BIAS, CAUSAL, WINDOW, Q_OFFSET, KV_LENGTHS, SCALE, SOFTCAP,
    SINKS, RETURN_WEIGHTS, RETURN_LSE, OUT, NUM_THREADS, TIER, N_ARGUMENTS
};
/* clang-format on */

/* A call's arrays, owned; NULL where there is none. */
typedef struct {
    PyArrayObject *query, *key, *value, *mask, *bias, *sinks, *q_offset, *kv_lengths;
    PyArrayObject *weights, *lse;
    PyArrayObject *output; /* what the core writes: `out`, if it can, or a new one */
} arrays;

static void
release_arrays(arrays *a)
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

/* No optional array, no option. */
static void
clear_problem(attn_problem *p)
{
    p->mask.data = p->bias.data = p->sinks.data = NULL;
    p->q_offset.data = p->kv_lengths.data = NULL;
    p->weights.data = p->lse.data = NULL;
    p->causal = p->top_left = false;
}

static PyObject *
shape_of(PyArrayObject *array)
{
    return PyArray_IntTupleFromIntp(PyArray_NDIM(array), PyArray_DIMS(array));
}

/* Raises "name: expected ..., got <shape>"; `expected` may hold two %zd. */
static int
fail_shape(PyArrayObject *array, const char *name, const char *expected, Py_ssize_t m,
           Py_ssize_t n)
{
    PyObject *shape = shape_of(array);
    PyObject *text = shape == NULL ? NULL : PyUnicode_FromFormat(expected, m, n);

    if (text != NULL) {
        PyErr_Format(PyExc_ValueError, "%s: expected %U, got %S", name, text, shape);
    }
    Py_XDECREF(text);
    Py_XDECREF(shape);
    return -1;
}

static int
fail_dtype(PyArrayObject *array, const char *name, const char *expected)
{
    PyErr_Format(PyExc_TypeError, "%s: expected %s, got dtype %S", name, expected,
                 (PyObject *)PyArray_DESCR(array));
    return -1;
}

/* The object as an array of whatever dtype; its own conversion's errors pass through. */
static int
as_array(PyObject *object, PyArrayObject **array)
{
    *array = (PyArrayObject *)PyArray_FROM_O(object);
    return *array == NULL ? -1 : 0;
}

static int
as_optional_array(PyObject *object, PyArrayObject **array)
{
    return object == Py_None ? 0 : as_array(object, array);
}

/* Replaces the array by one of the given type, native and aligned, unless it is that. */
static int
cast_array(PyArrayObject **array, int type)
{
    PyArray_Descr *descr = PyArray_DescrFromType(type);
    PyArrayObject *cast;

    if (descr == NULL) {
        return -1;
    }
    cast = (PyArrayObject *)PyArray_FromArray(
        *array, descr, NPY_ARRAY_ALIGNED | NPY_ARRAY_NOTSWAPPED | NPY_ARRAY_FORCECAST);
    if (cast == NULL) {
        return -1;
    }
    Py_SETREF(*array, cast);
    return 0;
}

/* A boolean option. */
static int
parse_flag(PyObject *object, const char *name)
{
    if (!PyBool_Check(object) && !PyArray_IsScalar(object, Bool)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a bool, got %s", name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    return PyObject_IsTrue(object);
}

/* A finite number. */
static int
parse_number(PyObject *object, const char *name, double *number)
{
    double x = PyFloat_AsDouble(object);

    if (x == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s: expected a number, got %s", name,
                         Py_TYPE(object)->tp_name);
        } else if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_ValueError, "%s: expected a finite number, got %R", name,
                         object);
        }
        return -1;
    }
    if (!isfinite(x)) {
        PyErr_Format(PyExc_ValueError, "%s: expected a finite number, got %R", name,
                     object);
        return -1;
    }
    *number = x;
    return 0;
}

/* An integer; where it does not fit, the sign of `overflow` tells which side it is on. */
static int
parse_integer(PyObject *object, const char *name, int64_t *number, int *overflow)
{
    PyObject *index = PyBool_Check(object) ? NULL : PyNumber_Index(object);

    if (index == NULL) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s: expected an integer, got %s", name,
                         Py_TYPE(object)->tp_name);
        }
        return -1;
    }
    *number = PyLong_AsLongLongAndOverflow(index, overflow);
    Py_DECREF(index);
    return PyErr_Occurred() ? -1 : 0;
}

static int
parse_threads(PyObject *object, int *n_threads)
{
    int64_t n;
    int overflow;

    if (parse_integer(object, "num_threads", &n, &overflow) < 0) {
        return -1;
    }
    if (overflow < 0 || (overflow == 0 && n < 1)) {
        PyErr_Format(PyExc_ValueError, "num_threads: expected at least 1, got %R",
                     object);
        return -1;
    }
    *n_threads = overflow == 0 && n < ATTN_MAX_THREADS ? (int)n : ATTN_MAX_THREADS;
    return 0;
}

static int
parse_causal(PyObject *object, attn_problem *p)
{
    if (PyUnicode_Check(object)) {
        p->causal = true;
        p->top_left = PyUnicode_CompareWithASCIIString(object, "top_left") == 0;
        if (p->top_left ||
            PyUnicode_CompareWithASCIIString(object, "bottom_right") == 0) {
            return 0;
        }
        PyErr_Format(
            PyExc_ValueError,
            "causal: expected False, True, 'bottom_right' or 'top_left', got %R",
            object);
        return -1;
    }
    if (!PyBool_Check(object) && !PyArray_IsScalar(object, Bool)) {
        PyErr_Format(
            PyExc_TypeError,
            "causal: expected False, True, 'bottom_right' or 'top_left', got %s",
            Py_TYPE(object)->tp_name);
        return -1;
    }
    p->causal = PyObject_IsTrue(object);
    return 0;
}

/* One side of a window: None is -1, unbounded; so is what is beyond int64. */
static int
parse_window_side(PyObject *object, int64_t *side)
{
    int overflow;

    *side = -1;
    if (object == Py_None) {
        return 0;
    }
    if (parse_integer(object, "window", side, &overflow) < 0) {
        return -1;
    }
    if (overflow > 0) {
        *side = -1;
        return 0;
    }
    if (*side < 0) {
        PyErr_Format(PyExc_ValueError,
                     "window: expected sides of at least 0, or None, got %R", object);
        return -1;
    }
    return 0;
}

static int
parse_window(PyObject *object, attn_problem *p)
{
    PyObject *sides;
    int status = -1;

    p->window_left = p->window_right = -1;
    if (object == Py_None) {
        return 0;
    }
    sides = PyUnicode_Check(object) ? NULL : PySequence_Tuple(object);
    if (sides == NULL) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "window: expected (left, right), got %s",
                         Py_TYPE(object)->tp_name);
        }
        return -1;
    }
    if (PyTuple_GET_SIZE(sides) != 2) {
        PyErr_Format(PyExc_ValueError, "window: expected (left, right), got %R",
                     object);
        goto done;
    }
    if (parse_window_side(PyTuple_GET_ITEM(sides, 0), &p->window_left) == 0 &&
        parse_window_side(PyTuple_GET_ITEM(sides, 1), &p->window_right) == 0) {
        status = 0;
    }
done:
    Py_DECREF(sides);
    return status;
}

static int
parse_tier(PyObject *object, const attn_tier **tier)
{
    const char *name;

    *tier = current_tier();
    if (object == Py_None) {
        return 0;
    }
    name = PyUnicode_AsUTF8(object);
    if (name == NULL) {
        return -1;
    }
    *tier = attn_tier_named(name);
    if (*tier == NULL) {
        PyErr_Format(PyExc_ValueError, "tier: expected one that this CPU has, got %R",
                     object);
        return -1;
    }
    return 0;
}

/* The options that are no arrays. */
typedef struct {
    bool has_scale;
    double scale;
    bool return_weights, return_lse;
    PyObject *out; /* borrowed; may be None */
    int n_threads;
    const attn_tier *tier;
} options;

static int
parse_options(PyObject *const *arguments, Py_ssize_t n_arguments, attn_problem *p,
              options *o)
{
    PyObject *tier = n_arguments > TIER ? arguments[TIER] : Py_None;
    int return_weights = parse_flag(arguments[RETURN_WEIGHTS], "return_weights");
    int return_lse =
        return_weights < 0 ? -1 : parse_flag(arguments[RETURN_LSE], "return_lse");

    if (return_lse < 0 || parse_causal(arguments[CAUSAL], p) < 0 ||
        parse_window(arguments[WINDOW], p) < 0 || parse_tier(tier, &o->tier) < 0) {
        return -1;
    }
    o->return_weights = return_weights;
    o->return_lse = return_lse;
    o->out = arguments[OUT];
    o->has_scale = arguments[SCALE] != Py_None;
    if (o->has_scale && parse_number(arguments[SCALE], "scale", &o->scale) < 0) {
        return -1;
    }
    p->softcap = 0;
    if (arguments[SOFTCAP] != Py_None) {
        if (parse_number(arguments[SOFTCAP], "softcap", &p->softcap) < 0) {
            return -1;
        }
        if (p->softcap <= 0) {
            PyErr_Format(PyExc_ValueError,
                         "softcap: expected a finite number > 0, got %R",
                         arguments[SOFTCAP]);
            return -1;
        }
    }
    o->n_threads = attn_get_num_threads();
    if (arguments[NUM_THREADS] == Py_None) {
        return 0;
    }
    return parse_threads(arguments[NUM_THREADS], &o->n_threads);
}

/* ---- Dtypes --------------------------------------------------------------------------- */

/* The type number of ml_dtypes.bfloat16, or -1 where that package is not loaded: then no
 * array can have it. */
static int
find_bfloat16(void)
{
    PyObject *modules = PyImport_GetModuleDict(); /* borrowed */
    PyObject *module = PyDict_GetItemString(modules, "ml_dtypes");
    PyObject *scalar;
    PyArray_Descr *descr = NULL;
    int type = -1;

    if (module == NULL) {
        return -1;
    }
    scalar = PyObject_GetAttrString(module, "bfloat16");
    if (scalar != NULL && PyArray_DescrConverter(scalar, &descr) == NPY_SUCCEED) {
        type = descr->type_num;
        Py_DECREF(descr);
    }
    Py_XDECREF(scalar);
    PyErr_Clear();
    return type;
}

/* Does a type number stand for one of the storage dtypes, and which? */
static bool
storage_of(int type, attn_dtype *dtype)
{
    switch (type) {
    case NPY_HALF: *dtype = ATTN_F16; return true;
    case NPY_FLOAT: *dtype = ATTN_F32; return true;
    case NPY_DOUBLE: *dtype = ATTN_F64; return true;
    default: break;
    }
    if (PyTypeNum_ISUSERDEF(type) && type == find_bfloat16()) {
        *dtype = ATTN_BF16;
        return true;
    }
    return false;
}

/* Checks the dtype of query, key or value: a floating one, integers or booleans. */
static int
check_operand(PyArrayObject *array, const char *name)
{
    int type = PyArray_TYPE(array);
    attn_dtype unused;

    if (storage_of(type, &unused) || PyTypeNum_ISINTEGER(type) ||
        PyTypeNum_ISBOOL(type)) {
        return 0;
    }
    return fail_dtype(array, name,
                      "float64, float32, float16, bfloat16, integers or booleans");
}

/* The type number to which query, key and value promote. */
static int
promote(const arrays *a)
{
    PyArray_Descr *descrs[3] = {PyArray_DESCR(a->query), PyArray_DESCR(a->key),
                                PyArray_DESCR(a->value)};
    PyArray_Descr *common;
    int type;

    if (check_operand(a->query, "query") < 0 || check_operand(a->key, "key") < 0 ||
        check_operand(a->value, "value") < 0) {
        return -1;
    }
    type = descrs[0]->type_num;
    if (type == descrs[1]->type_num && type == descrs[2]->type_num &&
        !PyTypeNum_ISINTEGER(type) && !PyTypeNum_ISBOOL(type)) {
        return type;
    }
    common = PyArray_ResultType(0, NULL, 3, descrs);
    if (common == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(
                PyExc_TypeError,
                "query, key, value: expected dtypes with a common one, got %S, "
                "%S and %S",
                (PyObject *)descrs[0], (PyObject *)descrs[1], (PyObject *)descrs[2]);
        }
        return -1;
    }
    type = common->type_num;
    Py_DECREF(common);
    return PyTypeNum_ISINTEGER(type) || PyTypeNum_ISBOOL(type) ? NPY_DOUBLE : type;
}

/* Brings every array to the dtype the core takes. */
static int
convert_dtypes(arrays *a, int type, attn_problem *p)
{
    attn_dtype storage;

    if (!storage_of(type, &storage)) {
        PyErr_Format(
            PyExc_TypeError,
            "query, key, value: expected dtypes that promote to a floating one, "
            "got %S, %S and %S",
            (PyObject *)PyArray_DESCR(a->query), (PyObject *)PyArray_DESCR(a->key),
            (PyObject *)PyArray_DESCR(a->value));
        return -1;
    }
    p->arithmetic = storage == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    p->query.dtype = p->key.dtype = p->value.dtype = storage;
    p->output.dtype = p->weights.dtype = storage;
    if (cast_array(&a->query, type) < 0 || cast_array(&a->key, type) < 0 ||
        cast_array(&a->value, type) < 0) {
        return -1;
    }
    if (a->mask != NULL && !PyTypeNum_ISBOOL(PyArray_TYPE(a->mask))) {
        return fail_dtype(a->mask, "mask",
                          "booleans, True = may attend (for 0 and 1 write mask != 0; "
                          "numbers to add to the scores are the bias)");
    }
    if (a->bias != NULL && !storage_of(PyArray_TYPE(a->bias), &p->bias.dtype)) {
        return fail_dtype(
            a->bias, "bias",
            "float64, float32, float16 or bfloat16 (booleans are the mask)");
    }
    if (a->bias != NULL && cast_array(&a->bias, PyArray_TYPE(a->bias)) < 0) {
        return -1;
    }
    if (a->sinks == NULL) {
        return 0;
    }
    int sinks_type = PyArray_TYPE(a->sinks);
    if (PyTypeNum_ISINTEGER(sinks_type)) {
        sinks_type = NPY_DOUBLE;
    }
    if (!storage_of(sinks_type, &p->sinks.dtype)) {
        return fail_dtype(a->sinks, "sinks", "real numbers");
    }
    return cast_array(&a->sinks, sinks_type);
}

/* An own copy of integers as int64. */
static int
copy_integers(PyObject *object, const char *name, PyArrayObject **array)
{
    PyArrayObject *copy;
    bool is_unsigned;

    if (object == Py_None) {
        return 0;
    }
    if (PyLong_Check(object)) { /* may be beyond any dtype */
        int overflow;
        (void)PyLong_AsLongLongAndOverflow(object, &overflow);
        if (overflow != 0) {
            PyErr_Format(PyExc_ValueError, "%s: expected 64-bit integers, got %R", name,
                         object);
            return -1;
        }
    }
    if (as_array(object, array) < 0) {
        return -1;
    }
    if (!PyTypeNum_ISINTEGER(PyArray_TYPE(*array))) {
        return fail_dtype(*array, name, "integers");
    }
    is_unsigned = PyTypeNum_ISUNSIGNED(PyArray_TYPE(*array));
    copy = (PyArrayObject *)PyArray_FROMANY((PyObject *)*array, NPY_INT64, 0, 0,
                                            NPY_ARRAY_CARRAY | NPY_ARRAY_NOTSWAPPED |
                                                NPY_ARRAY_FORCECAST |
                                                NPY_ARRAY_ENSURECOPY);
    if (copy == NULL) {
        return -1;
    }
    Py_SETREF(*array, copy);
    const int64_t *numbers = PyArray_DATA(copy);
    for (npy_intp i = 0; is_unsigned && i < PyArray_SIZE(copy); i++) {
        if (numbers[i] < 0) {
            PyErr_Format(PyExc_ValueError, "%s: expected 64-bit integers, got %llu",
                         name, (unsigned long long)numbers[i]);
            return -1;
        }
    }
    return 0;
}

/* ---- Shapes --------------------------------------------------------------------------- */

/* Length of the axis at a place counted from the right; a missing axis counts as 1. */
static npy_intp
axis_length(PyArrayObject *array, int from_right)
{
    int axis = PyArray_NDIM(array) - 1 - from_right;
    return axis < 0 ? 1 : PyArray_DIM(array, axis);
}

/* Its stride, 0 where the axis is missing or has a length of at most 1. */
static npy_intp
axis_stride(PyArrayObject *array, int from_right)
{
    int axis = PyArray_NDIM(array) - 1 - from_right;
    return axis < 0 || PyArray_DIM(array, axis) <= 1 ? 0 : PyArray_STRIDE(array, axis);
}

/* A (..., head, row, column) array for the core: its last `missing` of these three axes
 * are not there. Batch axes that it lacks broadcast. */
static void
describe(attn_array *to, PyArrayObject *array, int missing, const attn_problem *p)
{
    ptrdiff_t *strides[3] = {&to->column_stride, &to->row_stride, &to->head_stride};

    to->data = PyArray_BYTES(array);
    for (int place = 0; place < 3; place++) {
        *strides[place] = place < missing ? 0 : axis_stride(array, place - missing);
    }
    for (int axis = 0; axis < p->n_batch_axes; axis++) {
        int from_right = p->n_batch_axes - 1 - axis + 3 - missing;
        to->batch_stride[axis] = axis_stride(array, from_right);
    }
}

/* Takes the batch axes of an array into the batch shape, by NumPy's broadcasting. */
static int
broadcast_batch(attn_problem *p, PyArrayObject *array, const char *name)
{
    for (int axis = 0; axis < p->n_batch_axes; axis++) {
        npy_intp length = axis_length(array, p->n_batch_axes - 1 - axis + 3);
        if (length == 1 || length == p->batch_shape[axis]) {
            continue;
        }
        if (p->batch_shape[axis] != 1) {
            return fail_shape(
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
read_sizes(const arrays *a, attn_problem *p, int *rank)
{
    bool row = PyArray_NDIM(a->query) == 1;

    if (PyArray_NDIM(a->query) < 1) {
        return fail_shape(a->query, "query", "(..., H, Lq, D) or (D,)", 0, 0);
    }
    if (PyArray_NDIM(a->key) < 2) {
        return fail_shape(a->key, "key", "(..., Hk, Lk, D)", 0, 0);
    }
    if (PyArray_NDIM(a->value) < 2) {
        return fail_shape(a->value, "value", "(..., Hk, Lk, Dv)", 0, 0);
    }
    p->head_dim = axis_length(a->query, 0);
    p->n_queries = row ? 1 : axis_length(a->query, 1);
    p->n_keys = axis_length(a->key, 1);
    p->n_kv_heads = axis_length(a->key, 2);
    p->value_dim = axis_length(a->value, 0);
    if (axis_length(a->key, 0) != p->head_dim) {
        return fail_shape(a->key, "key", "(..., Hk, Lk, %zd) to match query's D",
                          p->head_dim, 0);
    }
    if (axis_length(a->value, 1) != p->n_keys ||
        axis_length(a->value, 2) != p->n_kv_heads) {
        return fail_shape(a->value, "value",
                          "(..., %zd, %zd, Dv) to match key's Hk and Lk", p->n_kv_heads,
                          p->n_keys);
    }
    npy_intp n_heads = axis_length(a->query, 2);
    if (p->n_kv_heads == 0 ? n_heads != 0 : n_heads % p->n_kv_heads != 0) {
        return fail_shape(a->query, "query",
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
        npy_intp length = axis_length(array, place);
        fits = length == 1 || length == shape[rank - 1 - place];
    }
    if (fits) {
        return 0;
    }
    target = PyArray_IntTupleFromIntp(rank, shape);
    own = shape_of(array);
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

static int
check_range(int64_t number, const char *name, int64_t low, int64_t high)
{
    if (number >= low && number <= high) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s: expected %lld to %lld, got %lld", name,
                 (long long)low, (long long)high, (long long)number);
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
        npy_intp length = axis_length(array, place);
        fits = length == 1 || length == p->batch_shape[p->n_batch_axes - 1 - place];
    }
    if (!fits) {
        return fail_shape(
            array, name,
            "an integer, or integers that broadcast to the axes before the "
            "head axis",
            0, 0);
    }
    const int64_t *numbers = PyArray_DATA(array);
    for (npy_intp i = 0; i < PyArray_SIZE(array); i++) {
        if (check_range(numbers[i], name, low, high) < 0) {
            return -1;
        }
    }
    describe(to, array, 3, p);
    return 0;
}

/* Describes the inputs to the core. */
static int
set_inputs(const arrays *a, attn_problem *p, int rank)
{
    if (a->sinks != NULL && (PyArray_NDIM(a->sinks) != 1 ||
                             PyArray_DIM(a->sinks, 0) != p->n_kv_heads * p->group)) {
        return fail_shape(a->sinks, "sinks", "(%zd,), one for each query head",
                          p->n_kv_heads * p->group, 0);
    }
    if (set_numbers(p, &p->q_offset, a->q_offset, "q_offset", INT64_MIN, INT64_MAX) <
            0 ||
        set_numbers(p, &p->kv_lengths, a->kv_lengths, "kv_lengths", 0, p->n_keys) < 0) {
        return -1;
    }
    describe(&p->query, a->query, 0, p);
    if (PyArray_NDIM(a->query) == 1) {
        p->query.row_stride = 0;
    }
    describe(&p->key, a->key, 0, p);
    describe(&p->value, a->value, 0, p);
    if (a->mask != NULL) {
        if (check_broadcast(p, rank, a->mask, "mask") < 0) {
            return -1;
        }
        describe(&p->mask, a->mask, 0, p);
    }
    if (a->bias != NULL) {
        if (check_broadcast(p, rank, a->bias, "bias") < 0) {
            return -1;
        }
        describe(&p->bias, a->bias, 0, p);
    }
    if (a->sinks != NULL) {
        describe(&p->sinks, a->sinks, 2, p);
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

/* ---- Results -------------------------------------------------------------------------- */

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

static bool
may_overlap(PyArrayObject *one, PyArrayObject *other)
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
accept_out(arrays *a, PyObject *object, int type, int n_axes, const npy_intp *shape)
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
        PyObject *got = shape_of(out);
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
    if (PyArray_ISBEHAVED(out) && !may_overlap(out, a->query) &&
        !may_overlap(out, a->key) && !may_overlap(out, a->value) &&
        !may_overlap(out, a->mask) && !may_overlap(out, a->bias) &&
        !may_overlap(out, a->sinks)) {
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
        describe(to, array, 0, p);
        return;
    }
    /* (..., head, column) is described as (..., head, row), then turned. */
    describe(to, array, 1, p);
    to->column_stride = to->row_stride;
    to->row_stride = 0;
}

/* Allocates the results, or takes `out` for the output. */
static int
make_results(arrays *a, const options *o, int type, int rank, attn_problem *p)
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
        describe(&p->lse, a->lse, drop_row ? 2 : 1, p);
    }
    return 0;
}

/* What attention() returns: the output, or a tuple of it with what else was asked for. */
static PyObject *
pack_results(const arrays *a, PyObject *out)
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

/* ---- Functions ------------------------------------------------------------------------ */

/* Converts every array argument; other people's code may run here, but not after. */
static int
convert_arrays(PyObject *const *arguments, arrays *a)
{
    if (as_array(arguments[QUERY], &a->query) < 0 ||
        as_array(arguments[KEY], &a->key) < 0 ||
        as_array(arguments[VALUE], &a->value) < 0 ||
        as_optional_array(arguments[MASK], &a->mask) < 0 ||
        as_optional_array(arguments[BIAS], &a->bias) < 0 ||
        as_optional_array(arguments[SINKS], &a->sinks) < 0 ||
        copy_integers(arguments[Q_OFFSET], "q_offset", &a->q_offset) < 0 ||
        copy_integers(arguments[KV_LENGTHS], "kv_lengths", &a->kv_lengths) < 0) {
        return -1;
    }
    return 0;
}

/* Brings scale and softcap to the arithmetic's dtype, where they must be finite too. */
static int
set_scale(attn_problem *p, const options *o)
{
    uint32_t control_word =
        attn_fp_control_reset(); /* the caller may round otherwise */
    p->scale = p->head_dim > 0 ? 1 / sqrt((double)p->head_dim) : 1;
    attn_fp_control_restore(control_word);
    if (o->has_scale) {
        p->scale = o->scale;
    }
    if (p->arithmetic == ATTN_F64) {
        return 0;
    }
    p->scale = (double)(float)p->scale;
    if (!isfinite(p->scale)) {
        PyErr_SetString(PyExc_ValueError, "scale: expected a number that is finite in "
                                          "float32, got a larger one");
        return -1;
    }
    bool capped = p->softcap > 0;
    p->softcap = (double)(float)p->softcap;
    if (capped && !(p->softcap > 0 && isfinite(p->softcap))) {
        PyErr_SetString(PyExc_ValueError,
                        "softcap: expected a number that is finite and "
                        "> 0 in float32, too");
        return -1;
    }
    return 0;
}

/* The interpreter's lock, given up during a call; `failed` when a signal handler raised. */
typedef struct {
    PyThreadState *thread;
    bool failed;
} lock_state;

/* Runs pending signal handlers, so that Ctrl-C works. */
static bool
check_signals(void *context)
{
    lock_state *lock = context;

    PyEval_RestoreThread(lock->thread);
    lock->failed = PyErr_CheckSignals() < 0;
    lock->thread = PyEval_SaveThread();
    return lock->failed;
}

static bool
has_elements(PyArrayObject *array)
{
    return array != NULL && PyArray_SIZE(array) > 0;
}

/* Gives the interpreter's lock up if so many multiplications are worth it; returns what
 * the core is to poll meanwhile. */
static attn_poll
give_up_lock(lock_state *lock, double work)
{
    lock->failed = false;
    lock->thread = work < WORK_UNDER_LOCK ? NULL : PyEval_SaveThread();
    return lock->thread == NULL ? NULL : check_signals;
}

/* Takes it back; an error where the core had no memory or a signal handler raised. */
static int
take_lock_back(lock_state *lock, int status)
{
    if (lock->thread != NULL) {
        PyEval_RestoreThread(lock->thread);
    }
    if (status < 0 && !lock->failed) {
        PyErr_NoMemory();
    }
    return status < 0 || lock->failed ? -1 : 0;
}

/* Runs the core. */
static int
compute(const arrays *a, const attn_problem *p, const options *o)
{
    double rows = (double)p->n_batch * (double)p->n_kv_heads * (double)p->group *
                  (double)p->n_queries;
    double work =
        rows * ((double)p->n_keys + 1) * (double)(p->head_dim + p->value_dim + 1);
    lock_state lock;

    if (!has_elements(a->output) && !has_elements(a->weights) &&
        !has_elements(a->lse)) {
        return 0;
    }
    attn_poll poll = give_up_lock(&lock, work);
    return take_lock_back(&lock, attn_attention(p, o->tier, o->n_threads, poll, &lock));
}

/* Everything before the computation: from arguments to a problem in which all is valid,
 * with its arrays and results. */
static int
prepare(PyObject *const *arguments, Py_ssize_t n_arguments, arrays *a, attn_problem *p,
        options *o)
{
    int type, rank = 0;

    if (n_arguments != N_ARGUMENTS && n_arguments != N_ARGUMENTS - 1) {
        PyErr_Format(PyExc_TypeError, "expected %d arguments, got %zd", N_ARGUMENTS,
                     n_arguments);
        return -1;
    }
    clear_problem(p);
    if (parse_options(arguments, n_arguments, p, o) < 0 ||
        convert_arrays(arguments, a) < 0) {
        return -1;
    }
    type = promote(a);
    if (type < 0 || convert_dtypes(a, type, p) < 0 || read_sizes(a, p, &rank) < 0 ||
        set_scale(p, o) < 0 || count_rows(p) < 0 || set_inputs(a, p, rank) < 0 ||
        make_results(a, o, type, rank, p) < 0) {
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(attention_doc,
             "attention(query, key, value, mask, bias, causal, window, q_offset, "
             "kv_lengths, scale, softcap, sinks, return_weights, return_lse, out, "
             "num_threads, tier=None, /)\n--\n\nAs attnpy.attention; tier names the "
             "instruction set.");

static PyObject *
attention(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    arrays a = {NULL};
    attn_problem p;
    options o;
    PyObject *result = NULL;

    (void)module;
    if (prepare(arguments, n_arguments, &a, &p, &o) == 0 && compute(&a, &p, &o) == 0) {
        result = pack_results(&a, o.out);
    }
    release_arrays(&a);
    return result;
}

/* ---- Plans ---------------------------------------------------------------------------- */

/* A call made ready once, to be run many times on what its arrays then hold. */
typedef struct {
    PyObject_HEAD arrays a;
    PyArrayObject *q_offset, *kv_lengths; /* what the core reads: valid copies of a's */
    attn_problem p;
    options o;
    PyObject *result; /* what each call returns; NULL until the plan is complete */
    atomic_bool busy; /* a call is under way */
} plan;

/* An argument that each call is to read anew must be the array itself, not a copy. */
static int
check_bound(PyObject *argument, PyArrayObject *array, const char *name)
{
    if (argument == Py_None || argument == (PyObject *)array) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError,
                 "%s: expected an array that can be read where it lies, aligned and in "
                 "the dtype of the computation, got what had to be converted",
                 name);
    return -1;
}

/* Makes the copy of q_offset or kv_lengths that the core reads. */
static int
shadow_numbers(PyArrayObject *numbers, PyArrayObject **copy, attn_array *described)
{
    if (numbers == NULL) {
        return 0;
    }
    *copy = (PyArrayObject *)PyArray_NewCopy(numbers, NPY_CORDER);
    if (*copy == NULL) {
        return -1;
    }
    described->data = PyArray_BYTES(*copy);
    return 0;
}

static PyObject *
plan_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static const char *const names[] = {"query", "key", "value", "mask", "bias", NULL};
    plan *self;

    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Plan: expected no keywords");
        return NULL;
    }
    self = (plan *)type->tp_alloc(type, 0); /* zeroed */
    if (self == NULL ||
        prepare(&PyTuple_GET_ITEM(arguments, 0), PyTuple_GET_SIZE(arguments), &self->a,
                &self->p, &self->o) < 0) {
        goto fail;
    }
    PyArrayObject *const bound[] = {self->a.query, self->a.key, self->a.value,
                                    self->a.mask, self->a.bias};
    for (int i = 0; names[i] != NULL; i++) {
        if (check_bound(PyTuple_GET_ITEM(arguments, i), bound[i], names[i]) < 0) {
            goto fail;
        }
    }
    if (self->o.out != Py_None && self->o.out != (PyObject *)self->a.output) {
        PyErr_SetString(PyExc_ValueError,
                        "out: expected an aligned array that overlaps no input");
        goto fail;
    }
    if (shadow_numbers(self->a.q_offset, &self->q_offset, &self->p.q_offset) < 0 ||
        shadow_numbers(self->a.kv_lengths, &self->kv_lengths, &self->p.kv_lengths) <
            0) {
        goto fail;
    }
    self->o.out = Py_None; /* borrowed till now; the output is ours */
    self->result = pack_results(&self->a, Py_None);
    if (self->result != NULL) {
        return (PyObject *)self;
    }
fail:
    Py_XDECREF(self);
    return NULL;
}

static int
plan_traverse(PyObject *object, visitproc visit, void *arg)
{
    plan *self = (plan *)object;

    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->result);
    return 0;
}

static void
plan_dealloc(PyObject *object)
{
    plan *self = (plan *)object;
    PyTypeObject *type = Py_TYPE(object);

    PyObject_GC_UnTrack(object);
    release_arrays(&self->a);
    Py_CLEAR(self->q_offset);
    Py_CLEAR(self->kv_lengths);
    Py_CLEAR(self->result);
    type->tp_free(object);
    Py_DECREF(type);
}

/* Copies numbers for the core, each in its range. */
static int
update_numbers(PyArrayObject *from, PyArrayObject *to, const char *name, int64_t low,
               int64_t high)
{
    if (from == NULL) {
        return 0;
    }
    const int64_t *numbers = PyArray_DATA(from);
    int64_t *copy = PyArray_DATA(to);
    for (npy_intp i = 0; i < PyArray_SIZE(to); i++) {
        int64_t number = ((const volatile int64_t *)numbers)[i]; /* read once */
        if (check_range(number, name, low, high) < 0) {
            return -1;
        }
        copy[i] = number;
    }
    return 0;
}

static PyObject *
plan_call(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    plan *self = (plan *)object;
    PyObject *result = NULL;

    if (PyTuple_GET_SIZE(arguments) != 0 ||
        (keywords != NULL && PyDict_GET_SIZE(keywords) != 0)) {
        PyErr_SetString(PyExc_TypeError, "Plan: expected a call without arguments");
        return NULL;
    }
    if (atomic_exchange(&self->busy, true)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "Plan: expected one call at a time, got a second one");
        return NULL;
    }
    if (self->a.weights != NULL) {
        memset(PyArray_DATA(self->a.weights), 0,
               (size_t)PyArray_NBYTES(self->a.weights));
    }
    if (update_numbers(self->a.q_offset, self->q_offset, "q_offset", INT64_MIN,
                       INT64_MAX) == 0 &&
        update_numbers(self->a.kv_lengths, self->kv_lengths, "kv_lengths", 0,
                       self->p.n_keys) == 0 &&
        compute(&self->a, &self->p, &self->o) == 0) {
        result = Py_NewRef(self->result);
    }
    atomic_store(&self->busy, false);
    return result;
}

#define PLAN_ARRAY(name) {#name, T_OBJECT, offsetof(plan, a.name), READONLY, NULL}

static PyMemberDef plan_members[] = {
    PLAN_ARRAY(query),      PLAN_ARRAY(key),       PLAN_ARRAY(value),
    PLAN_ARRAY(mask),       PLAN_ARRAY(bias),      PLAN_ARRAY(q_offset),
    PLAN_ARRAY(kv_lengths), PLAN_ARRAY(output),    PLAN_ARRAY(weights),
    PLAN_ARRAY(lse),        {NULL, 0, 0, 0, NULL},
};

static PyType_Slot plan_slots[] = {
    {Py_tp_doc, (void *)"As attnpy.Plan, by position; see attention."},
    {Py_tp_new, (void *)plan_new},
    {Py_tp_dealloc, (void *)plan_dealloc},
    {Py_tp_traverse, (void *)plan_traverse},
    {Py_tp_call, (void *)plan_call},
    {Py_tp_members, plan_members},
    {0, NULL},
};

static PyType_Spec plan_spec = {
    .name = "attnpy._attnpy.Plan",
    .basicsize = sizeof(plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = plan_slots,
};

/* ---- Linear --------------------------------------------------------------------------- */

/* The arrays of a product of rows with a matrix, owned. */
typedef struct {
    PyArrayObject *input, *weight, *bias, *output;
} linear_arrays;

/* Brings the arrays to the dtype in which they meet; its type number, or -1. */
static int
convert_linear(linear_arrays *a, attn_linear_problem *l)
{
    PyArray_Descr *descrs[2] = {PyArray_DESCR(a->input), PyArray_DESCR(a->weight)};
    PyArray_Descr *common;
    attn_dtype storage;
    int type;

    if (check_operand(a->input, "x") < 0 || check_operand(a->weight, "weight") < 0 ||
        (a->bias != NULL && check_operand(a->bias, "bias") < 0)) {
        return -1;
    }
    common = PyArray_ResultType(0, NULL, 2, descrs);
    if (common == NULL) {
        return -1;
    }
    type = common->type_num;
    Py_DECREF(common);
    if (PyTypeNum_ISINTEGER(type) || PyTypeNum_ISBOOL(type)) {
        type = NPY_DOUBLE;
    }
    if (!storage_of(type, &storage)) {
        return fail_dtype(a->weight, "weight",
                          "a dtype that promotes to a floating one");
    }
    l->arithmetic = storage == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    l->input.dtype = l->weight.dtype = l->output.dtype = storage;
    l->bias.dtype = l->arithmetic;
    if (cast_array(&a->input, type) < 0 || cast_array(&a->weight, type) < 0 ||
        (a->bias != NULL &&
         cast_array(&a->bias, l->arithmetic == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT) <
             0)) {
        return -1;
    }
    return type;
}

/* Checks the shapes and describes the inputs. */
static int
set_linear_inputs(linear_arrays *a, attn_linear_problem *l)
{
    if (PyArray_NDIM(a->input) < 1) {
        return fail_shape(a->input, "x", "(..., K)", 0, 0);
    }
    l->n_in = axis_length(a->input, 0);
    if (PyArray_NDIM(a->weight) != 2 || PyArray_DIM(a->weight, 0) != l->n_in) {
        return fail_shape(a->weight, "weight", "(%zd, M) to match x's K", l->n_in, 0);
    }
    l->n_out = axis_length(a->weight, 0);
    if (a->bias != NULL &&
        (PyArray_NDIM(a->bias) != 1 || PyArray_DIM(a->bias, 0) != l->n_out)) {
        return fail_shape(a->bias, "bias", "(%zd,) to match weight's M", l->n_out, 0);
    }
    if (PyArray_NDIM(a->input) > 3) { /* rows of more axes must lie in a line */
        Py_SETREF(a->input, PyArray_GETCONTIGUOUS(a->input));
        if (a->input == NULL) {
            return -1;
        }
    }
    l->n_rows = axis_length(a->input, 1);
    l->n_batch = 1;
    for (int axis = 0; axis < PyArray_NDIM(a->input) - 2; axis++) {
        if (__builtin_mul_overflow(l->n_batch, PyArray_DIM(a->input, axis),
                                   &l->n_batch)) {
            return fail_shape(a->input, "x", "rows whose number fits in 63 bits", 0, 0);
        }
    }
    ptrdiff_t rows;
    if (__builtin_mul_overflow(l->n_batch, l->n_rows, &rows) ||
        rows > PTRDIFF_MAX / 2 || l->n_in > ATTN_MAX_DIM || l->n_out > ATTN_MAX_DIM) {
        return fail_shape(a->input, "x", "sizes whose product fits in 63 bits", 0, 0);
    }
    return 0;
}

/* Describes an array of rows, of all batches in a line. */
static void
describe_rows(attn_array *to, PyArrayObject *array, const attn_linear_problem *l)
{
    to->data = PyArray_BYTES(array);
    to->column_stride = axis_stride(array, 0);
    to->row_stride = axis_stride(array, 1);
    to->batch_stride[0] =
        PyArray_NDIM(array) > 3
            ? l->n_rows * PyArray_STRIDE(array, PyArray_NDIM(array) - 2)
            : axis_stride(array, 2);
}

static int
compute_linear(const linear_arrays *a, const attn_linear_problem *l,
               const attn_tier *tier, int n_threads)
{
    double work =
        (double)l->n_batch * (double)l->n_rows * (double)l->n_in * (double)l->n_out;
    lock_state lock;

    if (PyArray_SIZE(a->output) == 0) {
        return 0;
    }
    attn_poll poll = give_up_lock(&lock, work);
    return take_lock_back(&lock, attn_linear(l, tier, n_threads, poll, &lock));
}

static int
parse_activation(PyObject *object, attn_activation *activation)
{
    static const char *const names[] = {"relu", "gelu", "gelu_tanh", "silu"};

    *activation = ATTN_IDENTITY;
    if (object == Py_None) {
        return 0;
    }
    for (int i = 0; i < 4 && PyUnicode_Check(object); i++) {
        if (PyUnicode_CompareWithASCIIString(object, names[i]) == 0) {
            *activation = (attn_activation)(ATTN_RELU + i);
            return 0;
        }
    }
    PyErr_Format(
        PyExc_ValueError,
        "activation: expected 'relu', 'gelu', 'gelu_tanh', 'silu' or None, got "
        "%R",
        object);
    return -1;
}

/* An array of the given type, aligned and contiguous, for the core to read in one line. */
static PyArrayObject *
as_contiguous(PyObject *object, int type)
{
    return (PyArrayObject *)PyArray_FROM_OTF(
        object, type, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_NOTSWAPPED | NPY_ARRAY_FORCECAST);
}

static int
check_size(PyArrayObject *array, const char *name, npy_intp n)
{
    if (PyArray_NDIM(array) == 1 && PyArray_DIM(array, 0) == n) {
        return 0;
    }
    return fail_shape(array, name, "(%zd,)", n, 0);
}

PyDoc_STRVAR(
    normalize_doc,
    "normalize(x, residual, weight, bias, eps, centre, num_threads, tier=None, /)"
    "\n--\n\nRows of x + residual, float32 or float64, with mean square 1, and mean "
    "0 if centred, times weight plus bias.");

static PyObject *
normalize(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    PyArrayObject *x = NULL, *residual = NULL, *weight = NULL, *bias = NULL;
    PyArrayObject *output = NULL;
    attn_norm_problem p = {0};
    int n_threads = attn_get_num_threads(), centre;
    const attn_tier *tier;
    lock_state lock;

    (void)module;
    if (n_arguments != 7 && n_arguments != 8) {
        PyErr_Format(PyExc_TypeError, "expected 8 arguments, got %zd", n_arguments);
        return NULL;
    }
    if (parse_number(arguments[4], "eps", &p.eps) < 0 ||
        (centre = parse_flag(arguments[5], "centre")) < 0 ||
        (arguments[6] != Py_None && parse_threads(arguments[6], &n_threads) < 0) ||
        parse_tier(n_arguments > 7 ? arguments[7] : Py_None, &tier) < 0 ||
        as_array(arguments[0], &x) < 0) {
        return NULL;
    }
    int type = PyArray_TYPE(x);
    if (type != NPY_FLOAT && type != NPY_DOUBLE) {
        fail_dtype(x, "x", "float32 or float64");
        goto done;
    }
    if (PyArray_NDIM(x) < 1) {
        fail_shape(x, "x", "(..., dim)", 0, 0);
        goto done;
    }
    Py_SETREF(x, as_contiguous((PyObject *)x, type));
    weight = x == NULL ? NULL : as_contiguous(arguments[2], type);
    if (weight == NULL ||
        (arguments[1] != Py_None &&
         (residual = as_contiguous(arguments[1], type)) == NULL) ||
        (arguments[3] != Py_None &&
         (bias = as_contiguous(arguments[3], type)) == NULL)) {
        goto done;
    }
    p.n_columns = axis_length(x, 0);
    p.n_rows = p.n_columns == 0 ? 0 : PyArray_SIZE(x) / p.n_columns;
    if (check_size(weight, "weight", p.n_columns) < 0 ||
        (bias != NULL && check_size(bias, "bias", p.n_columns) < 0)) {
        goto done;
    }
    if (residual != NULL && !PyArray_SAMESHAPE(x, residual)) {
        fail_shape(residual, "residual", "the shape of x", 0, 0);
        goto done;
    }
    output = (PyArrayObject *)PyArray_EMPTY(PyArray_NDIM(x), PyArray_DIMS(x), type, 0);
    if (output == NULL) {
        goto done;
    }
    p.arithmetic = type == NPY_FLOAT ? ATTN_F32 : ATTN_F64;
    p.centre = centre;
    p.input = PyArray_DATA(x);
    p.residual = residual == NULL ? NULL : PyArray_DATA(residual);
    p.weight = PyArray_DATA(weight);
    p.bias = bias == NULL ? NULL : PyArray_DATA(bias);
    p.output = PyArray_DATA(output);
    attn_poll poll = give_up_lock(&lock, (double)PyArray_SIZE(x));
    attn_normalize(&p, tier, n_threads, poll, &lock);
    if (take_lock_back(&lock, 0) < 0) {
        Py_CLEAR(output);
    }
done:
    Py_XDECREF(x);
    Py_XDECREF(residual);
    Py_XDECREF(weight);
    Py_XDECREF(bias);
    return (PyObject *)output;
}

PyDoc_STRVAR(activate_doc, "activate(x, activation, tier=None, /)\n--\n\nA copy of "
                           "float32 or float64 numbers with the activation applied.");

static PyObject *
activate(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    PyArrayObject *array, *copy;
    attn_activation activation;
    const attn_tier *tier;

    (void)module;
    if (n_arguments != 2 && n_arguments != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments, got %zd", n_arguments);
        return NULL;
    }
    if (parse_activation(arguments[1], &activation) < 0 ||
        parse_tier(n_arguments > 2 ? arguments[2] : Py_None, &tier) < 0 ||
        as_array(arguments[0], &array) < 0) {
        return NULL;
    }
    int type = PyArray_TYPE(array);
    if (type != NPY_FLOAT && type != NPY_DOUBLE) {
        fail_dtype(array, "x", "float32 or float64");
        Py_DECREF(array);
        return NULL;
    }
    copy = (PyArrayObject *)PyArray_FROMANY((PyObject *)array, type, 0, 0,
                                            NPY_ARRAY_CARRAY | NPY_ARRAY_NOTSWAPPED |
                                                NPY_ARRAY_ENSURECOPY |
                                                NPY_ARRAY_ENSUREARRAY);
    Py_DECREF(array);
    if (copy != NULL && PyArray_SIZE(copy) > 0) {
        const attn_kernel *kernel = type == NPY_FLOAT ? tier->f32 : tier->f64;
        uint32_t control_word = attn_fp_control_reset();
        kernel->activate(PyArray_DATA(copy), PyArray_SIZE(copy), activation);
        attn_fp_control_restore(control_word);
    }
    return (PyObject *)copy;
}

PyDoc_STRVAR(linear_doc,
             "linear(x, weight, bias, activation, num_threads, tier=None, /)\n--\n\n"
             "activation(x @ weight + bias); tier names the instruction set.");

static PyObject *
linear(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    linear_arrays a = {NULL, NULL, NULL, NULL};
    attn_linear_problem l = {.n_batch = 1};
    const attn_tier *tier;
    int n_threads = attn_get_num_threads(), type;
    PyObject *result = NULL;
    npy_intp shape[ATTN_MAX_AXES];

    (void)module;
    if (n_arguments != 5 && n_arguments != 6) {
        PyErr_Format(PyExc_TypeError, "expected 6 arguments, got %zd", n_arguments);
        return NULL;
    }
    if (parse_activation(arguments[3], &l.activation) < 0 ||
        (arguments[4] != Py_None && parse_threads(arguments[4], &n_threads) < 0) ||
        parse_tier(n_arguments > 5 ? arguments[5] : Py_None, &tier) < 0) {
        return NULL;
    }
    if (as_array(arguments[0], &a.input) < 0 || as_array(arguments[1], &a.weight) < 0 ||
        as_optional_array(arguments[2], &a.bias) < 0 ||
        (type = convert_linear(&a, &l)) < 0 || set_linear_inputs(&a, &l) < 0) {
        goto done;
    }
    int n_axes = PyArray_NDIM(a.input);
    memcpy(shape, PyArray_DIMS(a.input), (size_t)n_axes * sizeof *shape);
    shape[n_axes - 1] = l.n_out;
    a.output = (PyArrayObject *)PyArray_EMPTY(n_axes, shape, type, 0);
    if (a.output == NULL) {
        goto done;
    }
    describe_rows(&l.input, a.input, &l);
    describe_rows(&l.weight, a.weight, &l);
    describe_rows(&l.output, a.output, &l);
    if (a.bias != NULL) {
        describe_rows(&l.bias, a.bias, &l);
    }
    if (compute_linear(&a, &l, tier, n_threads) == 0) {
        result = Py_NewRef((PyObject *)a.output);
    }
done:
    Py_XDECREF(a.input);
    Py_XDECREF(a.weight);
    Py_XDECREF(a.bias);
    Py_XDECREF(a.output);
    return result;
}

PyDoc_STRVAR(set_num_threads_doc,
             "set_num_threads(num_threads, /)\n--\n\nAs attnpy.set_num_threads.");

static PyObject *
set_num_threads(PyObject *module, PyObject *argument)
{
    int n_threads;

    (void)module;
    if (parse_threads(argument, &n_threads) < 0) {
        return NULL;
    }
    attn_set_num_threads(n_threads);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(get_num_threads_doc,
             "get_num_threads()\n--\n\nAs attnpy.get_num_threads.");

static PyObject *
get_num_threads(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(attn_get_num_threads());
}

PyDoc_STRVAR(
    set_work_per_thread_doc,
    "set_work_per_thread(work, /)\n--\n\nSet how many multiplications repay one "
    "more thread, for tests and calibration; return the former number.");

static PyObject *
set_work_per_thread(PyObject *module, PyObject *argument)
{
    double work;

    (void)module;
    if (parse_number(argument, "work", &work) < 0) {
        return NULL;
    }
    if (work <= 0) {
        PyErr_Format(PyExc_ValueError, "work: expected a number > 0, got %R", argument);
        return NULL;
    }
    return PyFloat_FromDouble(attn_set_work_per_thread(work));
}

PyDoc_STRVAR(set_portable_doc,
             "set_portable(portable, /)\n--\n\nAs attnpy.set_portable.");

static PyObject *
set_portable(PyObject *module, PyObject *argument)
{
    int wanted = parse_flag(argument, "portable");

    (void)module;
    if (wanted < 0) {
        return NULL;
    }
    return PyBool_FromLong(atomic_exchange(&portable, wanted > 0));
}

/* The names of the tiers that this CPU has, best first. */
static PyObject *
tier_names(void)
{
    PyObject *names = PyList_New(0);
    PyObject *result;
    const attn_tier *tier;

    for (int i = 0; names != NULL && (tier = attn_tier_at(i)) != NULL; i++) {
        PyObject *name = PyUnicode_FromString(tier->name);
        if (name == NULL || PyList_Append(names, name) < 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    if (names == NULL) {
        return NULL;
    }
    result = PyList_AsTuple(names);
    Py_DECREF(names);
    return result;
}

PyDoc_STRVAR(config_doc, "config()\n--\n\nWhat attnpy.show_config shows of the core.");

static PyObject *
config(PyObject *module, PyObject *unused)
{
    PyObject *names = tier_names();

    (void)module;
    (void)unused;
    if (names == NULL) {
        return NULL;
    }
    return Py_BuildValue("{s:s, s:N, s:i, s:i}", "tier", current_tier()->name, "tiers",
                         names, "threads", attn_get_num_threads(), "cpus",
                         attn_cpu_limit());
}

/* For threadpoolctl, which finds these two by name in the extension's file. */
EXPORTED int attnpy_get_num_threads(void);
EXPORTED void attnpy_set_num_threads(int n_threads);

int
attnpy_get_num_threads(void)
{
    return attn_get_num_threads();
}

void
attnpy_set_num_threads(int n_threads)
{
    attn_set_num_threads(n_threads < 1 ? 1 : n_threads);
}

/* ---- Module --------------------------------------------------------------------------- */

/* Sets the default tier: the best one, unless ATTNPY_ISA names another. */
static int
choose_tier(void)
{
    const char *name = getenv("ATTNPY_ISA");
    PyObject *names;

    default_tier = name == NULL ? attn_tier_at(0) : attn_tier_named(name);
    if (default_tier != NULL) {
        return 0;
    }
    names = tier_names();
    if (names != NULL) {
        PyErr_Format(PyExc_ImportError,
                     "ATTNPY_ISA: expected one of %R, which this CPU has, got '%s'",
                     names, name);
        Py_DECREF(names);
    }
    return -1;
}

/* ATTNPY_PORTABLE=1 is set_portable(True). */
static int
choose_portable(void)
{
    const char *wanted = getenv("ATTNPY_PORTABLE");

    if (wanted != NULL && strcmp(wanted, "0") != 0 && strcmp(wanted, "1") != 0) {
        PyErr_Format(PyExc_ImportError, "ATTNPY_PORTABLE: expected 0 or 1, got '%s'",
                     wanted);
        return -1;
    }
    atomic_store(&portable, wanted != NULL && *wanted == '1');
    return 0;
}

/* Sets the default number of threads: ATTNPY_NUM_THREADS, else the first number of
 * OMP_NUM_THREADS where that is one, else all CPUs we may use. */
static int
choose_threads(void)
{
    const char *own = getenv("ATTNPY_NUM_THREADS");
    const char *openmp = getenv("OMP_NUM_THREADS");
    char *end;
    long n = 0;

    if (own != NULL) {
        n = strtol(own, &end, 10);
        if (n < 1 || end == own || *end != '\0') {
            PyErr_Format(
                PyExc_ImportError,
                "ATTNPY_NUM_THREADS: expected an integer of at least 1, got '%s'", own);
            return -1;
        }
    } else if (openmp != NULL) {
        n = strtol(openmp, &end, 10);
        n = *end == '\0' || *end == ',' ? n : 0;
    }
    if (n < 1) {
        n = attn_cpu_limit();
    }
    attn_set_num_threads(n < ATTN_MAX_THREADS ? (int)n : ATTN_MAX_THREADS);
    return 0;
}

static int
execute(PyObject *module)
{
    PyObject *type;

    import_array1(-1);
    type = PyType_FromModuleAndSpec(module, &plan_spec, NULL);
    if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    Py_DECREF(type);
    return choose_tier() < 0 || choose_portable() < 0 || choose_threads() < 0 ? -1 : 0;
}

#define FUNCTION(f) (PyCFunction)(void (*)(void)) f

static PyMethodDef methods[] = {
    {"attention", FUNCTION(attention), METH_FASTCALL, attention_doc},
    {"linear", FUNCTION(linear), METH_FASTCALL, linear_doc},
    {"normalize", FUNCTION(normalize), METH_FASTCALL, normalize_doc},
    {"activate", FUNCTION(activate), METH_FASTCALL, activate_doc},
    {"set_num_threads", set_num_threads, METH_O, set_num_threads_doc},
    {"get_num_threads", get_num_threads, METH_NOARGS, get_num_threads_doc},
    {"set_work_per_thread", set_work_per_thread, METH_O, set_work_per_thread_doc},
    {"set_portable", set_portable, METH_O, set_portable_doc},
    {"config", config, METH_NOARGS, config_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030d0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_attnpy",
    .m_doc = "The C core of attnpy. Private: use the functions of attnpy.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__attnpy(void);

PyMODINIT_FUNC
PyInit__attnpy(void)
{
    return PyModuleDef_Init(&definition);
}
