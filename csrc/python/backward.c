/* attention_vjp(): the gradients of attention's inputs. */
#include "python/backward.h"

#include "core/activate.h"
#include "core/backward.h"
#include "python/arrays.h"
#include "python/attention.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"

enum { N_GRADIENTS = 5 }; /* of query, key, value, bias, sinks */

/* A call's arrays, owned; NULL where there is none. Gradients are in the arithmetic's
 * dtype, or in their own if the core rounds them. */
typedef struct {
    py_attention_arrays a;
    PyArrayObject *grad_output, *grad_lse;
    PyArrayObject *output, *lse; /* as they were given */
    PyArrayObject *gradients[N_GRADIENTS];
    attn_array known[2];    /* output and LSE, those that were given */
    int types[N_GRADIENTS]; /* those that they are to be returned in */
    bool wanted[N_GRADIENTS];
} vjp_call;

static void
release_call(vjp_call *c)
{
    py_release_attention(&c->a);
    Py_CLEAR(c->grad_output);
    Py_CLEAR(c->output);
    Py_CLEAR(c->lse);
    Py_CLEAR(c->grad_lse);
    for (int i = 0; i < N_GRADIENTS; i++) {
        Py_CLEAR(c->gradients[i]);
    }
}

/* Converts the arguments that attention does not have. */
static int
convert_arrays(PyObject *grad_output, PyObject *group, vjp_call *c)
{
    PyObject *const *items = py_items(group, "vjp", N_VJP), *const * wanted;

    if (items == NULL ||
        (wanted = py_items(items[WANTED], "wanted", N_GRADIENTS)) == NULL) {
        return -1;
    }
    for (int i = 0; i < N_GRADIENTS; i++) {
        int flag = py_parse_flag(wanted[i], "wanted");
        if (flag < 0) {
            return -1;
        }
        c->wanted[i] = flag;
    }
    if (py_as_array(grad_output, "grad_output", &c->grad_output) < 0 ||
        py_as_optional_array(items[VJP_OUTPUT], "output", &c->output) < 0 ||
        py_as_optional_array(items[VJP_LSE], "lse", &c->lse) < 0) {
        return -1;
    }
    return py_as_optional_array(items[VJP_GRAD_LSE], "grad_lse", &c->grad_lse);
}

/* Checks an array that has the shape of output, or of the LSE where n_axes is one less. */
static int
check_shape(PyArrayObject *array, const char *name, int n_axes, const npy_intp *shape)
{
    PyObject *expected;

    if (PyArray_NDIM(array) == n_axes &&
        PyArray_CompareLists(PyArray_DIMS(array), shape, n_axes)) {
        return py_check_operand(array, name);
    }
    expected = PyArray_IntTupleFromIntp(n_axes, shape);
    PyObject *got = py_shape_of(array);
    if (expected != NULL && got != NULL) {
        PyErr_Format(PyExc_ValueError, "%s: expected shape %S, got %S", name, expected,
                     got);
    }
    Py_XDECREF(expected);
    Py_XDECREF(got);
    return -1;
}

/* Checks and describes an array like the LSE, or one like the output, if it is given. */
static int
set_like_lse(PyArrayObject **array, const char *name, int n_axes, const npy_intp *shape,
             const vjp_call *c, const attn_problem *p, attn_array *to)
{
    bool drop_row = PyArray_NDIM(c->a.query) == 1;
    int real = p->arithmetic == ATTN_F64 ? NPY_DOUBLE : NPY_FLOAT;

    to->data = NULL;
    if (*array == NULL) {
        return 0;
    }
    if (check_shape(*array, name, n_axes - 1, shape) < 0 ||
        py_cast_array(array, real) < 0) {
        return -1;
    }
    to->dtype = p->arithmetic;
    py_describe(to, *array, drop_row ? 2 : 1, p->batch.n_axes);
    return 0;
}

static int
set_like_output(PyArrayObject **array, const char *name, int n_axes,
                const npy_intp *shape, const vjp_call *c, int type,
                const attn_problem *p, attn_array *to)
{
    to->data = NULL;
    if (*array == NULL) {
        return 0;
    }
    if (check_shape(*array, name, n_axes, shape) < 0 ||
        py_cast_operand(array, type, &to->dtype) < 0) {
        return -1;
    }
    py_describe_result(to, *array, PyArray_NDIM(c->a.query) == 1, p);
    return 0;
}

/* Checks and describes output, LSE and their gradients. If one of the first two is
 * missing, both are allocated in the problem and computed. */
static int
set_results(vjp_call *c, py_options *o, int type, int rank, attn_backward_problem *g)
{
    attn_problem *p = &g->attention;
    npy_intp shape[ATTN_MAX_AXES];
    int n_axes = py_output_shape(&c->a, p, rank, shape);

    if (set_like_output(&c->grad_output, "grad_output", n_axes, shape, c, type, p,
                        &g->grad_output) < 0 ||
        set_like_output(&c->output, "output", n_axes, shape, c, type, p, &c->known[0]) <
            0 ||
        set_like_lse(&c->lse, "lse", n_axes, shape, c, p, &c->known[1]) < 0 ||
        set_like_lse(&c->grad_lse, "grad_lse", n_axes, shape, c, p, &g->grad_lse) < 0) {
        return -1;
    }
    if (c->output != NULL && c->lse != NULL) {
        return 0;
    }
    o->return_lse = true;
    return py_make_results(&c->a, o, type, rank, p);
}

/* The axes of an array in the order of memory, except the last one; returns whether
 * that differs from the usual order. With axes of stride 0 there is no such order. */
static bool
axis_order(const PyArrayObject *array, int order[ATTN_MAX_AXES])
{
    int n = PyArray_NDIM(array);
    bool other = false;

    for (int axis = 0; axis < n; axis++) {
        npy_intp stride = (npy_intp)llabs(PyArray_STRIDES(array)[axis]);
        int i = axis;
        if (stride == 0) {
            return false;
        }
        for (; axis < n - 1 && i > 0; i--) {
            if ((npy_intp)llabs(PyArray_STRIDES(array)[order[i - 1]]) >= stride) {
                break;
            }
            order[i] = order[i - 1];
            other = true;
        }
        order[i] = axis;
    }
    return other;
}

/* A new array with the shape and the order of axes in memory of another one: gradients
 * of heads that are columns of a layer's projections are columns, too. */
static PyArrayObject *
new_array_like(PyArrayObject *like, int type)
{
    const npy_intp *shape = PyArray_DIMS(like);
    int n = PyArray_NDIM(like), order[ATTN_MAX_AXES];
    npy_intp in_order[ATTN_MAX_AXES], back[ATTN_MAX_AXES];
    PyArray_Dims permutation = {back, n};

    if (!axis_order(like, order)) {
        return py_new_array(n, shape, type);
    }
    for (int i = 0; i < n; i++) {
        in_order[i] = shape[order[i]];
        back[order[i]] = i;
    }
    PyArrayObject *array = py_new_array(n, in_order, type);
    if (array != NULL) {
        Py_SETREF(array, (PyArrayObject *)PyArray_Transpose(array, &permutation));
    }
    return array;
}

/* Allocates the gradient of query, key or value, in the shape of the input: in its type where the
 * core rounds it, else in that of sums. */
static int
make_gradient(vjp_call *c, int i, PyArrayObject *input, int type, const attn_problem *p,
              attn_array *to)
{
    int own = c->types[i];

    to->data = NULL;
    if (!c->wanted[i]) {
        return 0;
    }
    if (!py_storage_of(own, &to->dtype) || !attn_is_half(to->dtype) ||
        !attn_backward_rounds(p, i == 0)) {
        own = py_real_type(type);
        to->dtype = p->arithmetic;
    }
    c->gradients[i] = new_array_like(input, own);
    if (c->gradients[i] == NULL) {
        return -1;
    }
    if (p->batch.n == 0) { /* nobody writes it */
        memset(PyArray_DATA(c->gradients[i]), 0,
               (size_t)PyArray_NBYTES(c->gradients[i]));
    }
    py_describe(to, c->gradients[i], 0, p->batch.n_axes);
    return 0;
}

/* Likewise that of bias or sinks, zeroed. */
static int
make_option_gradient(vjp_call *c, int i, PyArrayObject *input, int missing, int type,
                     const attn_problem *p, attn_array *to)
{
    to->data = NULL;
    if (!c->wanted[i] || input == NULL) {
        return 0;
    }
    c->gradients[i] =
        py_new_zeros(PyArray_NDIM(input), PyArray_DIMS(input), py_real_type(type));
    if (c->gradients[i] == NULL) {
        return -1;
    }
    to->dtype = p->arithmetic;
    py_describe(to, c->gradients[i], missing, p->batch.n_axes);
    return 0;
}

static int
make_gradients(vjp_call *c, const int own[N_GRADIENTS], int type,
               attn_backward_problem *g)
{
    const attn_problem *p = &g->attention;
    py_attention_arrays *a = &c->a;

    memcpy(c->types, own, sizeof c->types);
    if (make_gradient(c, 0, a->query, type, p, &g->grad_query) < 0 ||
        make_gradient(c, 1, a->key, type, p, &g->grad_key) < 0 ||
        make_gradient(c, 2, a->value, type, p, &g->grad_value) < 0 ||
        make_option_gradient(c, 3, a->bias, 0, type, p, &g->grad_bias) < 0) {
        return -1;
    }
    return make_option_gradient(c, 4, a->sinks, 2, type, p, &g->grad_sinks);
}

/* The types of the inputs as given, before conversion for the core. */
static int
find_types(const vjp_call *c, int types[N_GRADIENTS], int type)
{
    PyArrayObject *const inputs[N_GRADIENTS] = {c->a.query, c->a.key, c->a.value,
                                                c->a.bias, c->a.sinks};

    for (int i = 0; i < N_GRADIENTS; i++) {
        types[i] = inputs[i] == NULL ? type : py_gradient_type(inputs[i], type);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int
run_core(const vjp_call *c, attn_backward_problem *g, const py_options *o)
{
    attn_call call = {.tier = o->tier, .n_threads = o->n_threads};
    py_lock lock;
    int status = 0;

    py_give_up_lock(&lock, attn_backward_work(&g->attention), &call);
    if (c->a.output != NULL) {
        status = attn_attention(&g->attention, &call);
    }
    g->attention.output = c->output != NULL ? c->known[0] : g->attention.output;
    g->attention.lse = c->lse != NULL ? c->known[1] : g->attention.lse;
    if (status == 0) {
        status = attn_backward(g, &call);
    }
    return py_take_lock_back(&lock, status, &call);
}

/* Replaces sums by the same numbers in another type. Floats that lie in one piece are rounded to
 * 16 bits by the call's threads, as results of other operations are. */
static int
round_sums(PyArrayObject **sums, int type, const py_options *o)
{
    attn_call call = {.tier = o->tier, .n_threads = o->n_threads};
    attn_activate_problem p = {.n = PyArray_SIZE(*sums),
                               .arithmetic = ATTN_F32,
                               .activation = ATTN_IDENTITY,
                               .x = {PyArray_BYTES(*sums), ATTN_F32}};
    PyArrayObject *rounded;
    py_lock lock;
    int status;

    if (PyArray_TYPE(*sums) != NPY_FLOAT || !PyArray_IS_C_CONTIGUOUS(*sums) ||
        !py_storage_of(type, &p.output.dtype) || !attn_is_half(p.output.dtype)) {
        return py_copy_as(sums, type);
    }
    rounded = py_new_array(PyArray_NDIM(*sums), PyArray_DIMS(*sums), type);
    if (rounded == NULL) {
        return -1;
    }
    p.output.data = PyArray_BYTES(rounded);
    py_give_up_lock(&lock, attn_activate_work(&p), &call);
    attn_activate(&p, &call);
    status = py_take_lock_back(&lock, 0, &call);
    Py_SETREF(*sums, rounded);
    return status;
}

/* The gradients to return, each in its type. Sums are released one by one. */
static PyObject *
pack_gradients(vjp_call *c, const py_options *o)
{
    PyObject *tuple = PyTuple_New(N_GRADIENTS);

    for (int i = 0; i < N_GRADIENTS && tuple != NULL; i++) {
        PyArrayObject **sums = &c->gradients[i];
        if (*sums != NULL && PyArray_TYPE(*sums) != c->types[i] &&
            round_sums(sums, c->types[i], o) < 0) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i,
                         *sums == NULL ? Py_NewRef(Py_None) : (PyObject *)*sums);
        *sums = NULL;
    }
    return tuple;
}

PyDoc_STRVAR(attention_vjp_doc,
             "attention_vjp(grad_output, query, key, value, options, vjp, /)\n--\n\n"
             "As attnpy.attention_vjp; options is an attnpy._options.Options, vjp an "
             "attnpy._options.VJP.");

static PyObject *
attention_vjp(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    vjp_call c = {.a = {0}};
    attn_backward_problem g;
    py_options o;
    int type = -1, rank = -1, own[N_GRADIENTS];
    PyObject *result = NULL;

    (void)module;
    if (n_arguments != 6) {
        PyErr_Format(PyExc_TypeError, "expected 6 arguments, got %zd", n_arguments);
        return NULL;
    }
    if (convert_arrays(arguments[0], arguments[5], &c) == 0 &&
        py_convert_inputs(arguments + 1, arguments[4], &c.a, &g.attention, &o) == 0) {
        type = py_inputs_type(&c.a);
    }
    if (c.a.page_table != NULL) { /* whose gradients several batches would share */
        PyErr_SetString(PyExc_TypeError,
                        "page_table: expected None for gradients, got an array");
        type = -1;
    }
    if (type >= 0 && find_types(&c, own, type) == 0) {
        rank = py_set_attention(&c.a, type, &o, &g.attention);
    }
    if (rank >= 0 && set_results(&c, &o, type, rank, &g) == 0 &&
        make_gradients(&c, own, type, &g) == 0 && run_core(&c, &g, &o) == 0) {
        result = pack_gradients(&c, &o);
    }
    release_call(&c);
    return result;
}

PyMethodDef py_backward_methods[] = {
    {"attention_vjp", PY_FUNCTION(attention_vjp), METH_FASTCALL, attention_vjp_doc},
    {NULL, NULL, 0, NULL},
};
