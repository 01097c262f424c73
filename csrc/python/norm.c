/* normalize() and normalize_vjp(). */
#include "python/norm.h"

#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/options.h"
#include "python/settings.h"

void
py_release_norm(py_norm *norm)
{
    Py_CLEAR(norm->weight);
    Py_CLEAR(norm->bias);
}

int
py_convert_norm(PyObject *group, const char *name, py_norm *norm)
{
    PyObject *const *items;
    int centre;

    items = py_items(group, name, N_NORM);
    if (items == NULL || py_parse_number(items[NORM_EPS], "eps", &norm->eps) < 0 ||
        (centre = py_parse_flag(items[NORM_CENTRE], "centre")) < 0 ||
        py_as_array(items[NORM_WEIGHT], name, &norm->weight) < 0 ||
        py_as_optional_array(items[NORM_BIAS], name, &norm->bias) < 0) {
        return -1;
    }
    norm->centre = centre;
    return 0;
}

int
py_check_norm(const py_norm *norm, const char *name)
{
    if (PyArray_NDIM(norm->weight) != 1) {
        return py_fail_shape(norm->weight, name, "a weight of (dim,)", 0, 0);
    }
    if (norm->bias != NULL && !PyArray_SAMESHAPE(norm->weight, norm->bias)) {
        return py_fail_shape(norm->bias, name, "a bias of (%zd,), as its weight",
                             PyArray_DIM(norm->weight, 0), 0);
    }
    if (norm->eps < 0) {
        PyErr_Format(PyExc_ValueError, "%s: expected eps of at least 0", name);
        return -1;
    }
    return py_check_operand(norm->weight, name) < 0 ||
                   (norm->bias != NULL && py_check_operand(norm->bias, name) < 0)
               ? -1
               : 0;
}

int
py_set_norm(py_norm *norm, int type, attn_norm_problem *p)
{
    int real = py_real_type(type);

    if (py_make_contiguous(&norm->weight, real) < 0 ||
        (norm->bias != NULL && py_make_contiguous(&norm->bias, real) < 0)) {
        return -1;
    }
    p->arithmetic = py_dtype_of(real);
    p->centre = norm->centre;
    p->eps = norm->eps;
    p->n_columns = PyArray_DIM(norm->weight, 0);
    p->weight = PyArray_DATA(norm->weight);
    p->bias = norm->bias == NULL ? NULL : PyArray_DATA(norm->bias);
    return 0;
}

/* The arrays of a call, owned; NULL where there is none. */
typedef struct {
    PyArrayObject *x, *residual, *output, *moments;
    py_norm norm;
} norm_call;

static void
release_call(norm_call *c)
{
    Py_CLEAR(c->x);
    Py_CLEAR(c->residual);
    Py_CLEAR(c->output);
    Py_CLEAR(c->moments);
    py_release_norm(&c->norm);
}

/* The type number of results from an array alone: double for integers. */
static int
type_of(PyArrayObject *array)
{
    const int own = PyArray_TYPE(array);
    return py_common_type(1, &own, "x");
}

/* The type number of the result: that to which x, residual and weight promote. */
static int
result_type(const norm_call *c)
{
    const int types[] = {type_of(c->x), type_of(c->norm.weight),
                         type_of(c->residual == NULL ? c->x : c->residual)};

    if (py_check_norm(&c->norm, "norm") < 0) {
        return -1;
    }
    npy_intp size = PyArray_DIM(c->norm.weight, 0);
    if (PyArray_NDIM(c->x) < 1 || py_axis_length(c->x, 0) != size) {
        return py_fail_shape(c->x, "x", "(..., %zd)", size, 0);
    }
    if (c->residual != NULL && !PyArray_SAMESHAPE(c->x, c->residual)) {
        return py_fail_shape(c->residual, "residual", "the shape of x", 0, 0);
    }
    if (py_check_operand(c->x, "x") < 0 ||
        (c->residual != NULL && py_check_operand(c->residual, "residual") < 0)) {
        return -1;
    }
    return py_common_type(3, types, "x, weight, residual");
}

/* Views the array for the moments, or None. */
static int
view_moments(norm_call *c, PyObject *moments)
{
    if (moments == Py_None) {
        return 0;
    }
    c->moments = py_view_of(moments);
    if (c->moments == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "moments: expected an ndarray");
    }
    return c->moments == NULL ? -1 : 0;
}

/* Describes the array for the moments, which is of the arithmetic's dtype. */
static int
set_moments(const norm_call *c, int real, attn_norm_problem *p)
{
    const npy_intp shape[] = {2, p->n_rows};

    if (c->moments == NULL) {
        return 0;
    }
    if (PyArray_TYPE(c->moments) != real || !PyArray_ISCARRAY(c->moments) ||
        PyArray_NDIM(c->moments) != 2 ||
        !PyArray_CompareLists(PyArray_DIMS(c->moments), shape, 2)) {
        return py_fail_shape(c->moments, "moments",
                             "(2, %zd), contiguous, in what is computed in", p->n_rows,
                             0);
    }
    p->moments = PyArray_DATA(c->moments);
    return 0;
}

/* Converts the arrays for a result of this type, and describes them. */
static int
set_arrays(norm_call *c, int type, attn_norm_problem *p)
{
    int real = py_real_type(type);

    if (py_set_norm(&c->norm, type, p) < 0 || py_make_contiguous(&c->x, real) < 0 ||
        (c->residual != NULL && py_make_contiguous(&c->residual, real) < 0)) {
        return -1;
    }
    c->output = py_new_array(PyArray_NDIM(c->x), PyArray_DIMS(c->x), real);
    if (c->output == NULL) {
        return -1;
    }
    p->n_rows = p->n_columns == 0 ? 0 : PyArray_SIZE(c->x) / p->n_columns;
    p->input = PyArray_DATA(c->x);
    p->residual = c->residual == NULL ? NULL : PyArray_DATA(c->residual);
    p->output = PyArray_DATA(c->output);
    return 0;
}

static int
compute_norm(const attn_norm_problem *p, attn_call *call)
{
    py_lock lock;

    py_give_up_lock(&lock, attn_norm_work(p), call);
    attn_normalize(p, call);
    return py_take_lock_back(&lock, 0, call);
}

static PyObject *
run_call(norm_call *c, PyObject *x, PyObject *residual, PyObject *norm,
         PyObject *moments, attn_call *call)
{
    attn_norm_problem p = {0};
    int type = -1;

    if (py_convert_norm(norm, "norm", &c->norm) == 0 &&
        py_as_array(x, "x", &c->x) == 0 &&
        py_as_optional_array(residual, "residual", &c->residual) == 0 &&
        view_moments(c, moments) == 0) {
        type = result_type(c);
    }
    if (type >= 0 && set_arrays(c, type, &p) == 0 &&
        set_moments(c, py_real_type(type), &p) == 0 && compute_norm(&p, call) == 0 &&
        py_cast_array(&c->output, type) == 0) {
        return Py_NewRef((PyObject *)c->output);
    }
    return NULL;
}

PyObject *
py_normalize(PyObject *x, PyObject *residual, PyObject *norm, attn_call *call)
{
    norm_call c = {0};
    PyObject *result;

    if (norm == Py_None) {
        return Py_NewRef(x);
    }
    result = run_call(&c, x, residual, norm, Py_None, call);
    release_call(&c);
    return result;
}

PyDoc_STRVAR(
    normalize_doc,
    "normalize(x, residual, norm, num_threads, tier=None, moments=None, /)\n--\n\n"
    "Rows of x + residual with mean square 1, and mean 0 if centred, times weight plus "
    "bias; norm is an attnpy._options.Norm. moments (2, rows), in what is computed in, "
    "get what each row is reduced by and then multiplied by.");

static PyObject *
normalize(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    norm_call c = {0};
    attn_call call = {0};
    PyObject *result = NULL;

    (void)module;
    if (py_check_count(n_arguments, 4, 6) < 0 ||
        py_threads_or_default(arguments[3], &call.n_threads) < 0 ||
        py_parse_tier(n_arguments > 4 ? arguments[4] : Py_None, &call.tier) < 0) {
        return NULL;
    }
    result = run_call(&c, arguments[0], arguments[1], arguments[2],
                      n_arguments > 5 ? arguments[5] : Py_None, &call);
    release_call(&c);
    return result;
}

/* ---- Backwards ---------------------------------------------------------------------- */

enum { OF_X, OF_WEIGHT, OF_BIAS, N_GRADIENTS };

/* The arrays of a call besides x and its norm, owned; NULL for none. */
typedef struct {
    norm_call of;
    PyArrayObject *grad_output, *gradients[N_GRADIENTS];
    int types[N_GRADIENTS]; /* those that gradients are returned in */
} vjp_call;

static void
release_vjp_call(vjp_call *c)
{
    release_call(&c->of);
    Py_CLEAR(c->grad_output);
    for (int i = 0; i < N_GRADIENTS; i++) {
        Py_CLEAR(c->gradients[i]);
    }
}

/* Checks the arrays; the type to which x and weight promote. */
static int
vjp_type(vjp_call *c)
{
    int type = result_type(&c->of);

    if (type < 0 || py_check_operand(c->grad_output, "grad_output") < 0) {
        return -1;
    }
    if (!PyArray_SAMESHAPE(c->of.x, c->grad_output)) {
        return py_fail_shape(c->grad_output, "grad_output", "the shape of x", 0, 0);
    }
    PyArrayObject *const inputs[] = {c->of.x, c->of.norm.weight, c->of.norm.bias};
    for (int i = 0; i < N_GRADIENTS; i++) {
        c->types[i] = inputs[i] == NULL ? type : py_gradient_type(inputs[i], type);
    }
    return type;
}

/* Converts the arrays, makes the gradients, and describes all. */
static int
set_vjp_arrays(vjp_call *c, int type, attn_norm_vjp_problem *g)
{
    int real = py_real_type(type);
    void **const data[] = {&g->grad_input, &g->grad_weight, &g->grad_bias};

    if (py_set_norm(&c->of.norm, type, &g->norm) < 0 ||
        py_make_contiguous(&c->of.x, real) < 0 ||
        py_make_contiguous(&c->grad_output, real) < 0) {
        return -1;
    }
    PyArrayObject *const inputs[] = {c->of.x, c->of.norm.weight, c->of.norm.bias};
    for (int i = 0; i < N_GRADIENTS; i++) {
        if (inputs[i] != NULL) {
            c->gradients[i] =
                py_new_array(PyArray_NDIM(inputs[i]), PyArray_DIMS(inputs[i]), real);
            if (c->gradients[i] == NULL) {
                return -1;
            }
            *data[i] = PyArray_DATA(c->gradients[i]);
        }
    }
    g->norm.n_rows =
        g->norm.n_columns == 0 ? 0 : PyArray_SIZE(c->of.x) / g->norm.n_columns;
    g->norm.input = PyArray_DATA(c->of.x);
    g->grad_output = PyArray_DATA(c->grad_output);
    return 0;
}

static int
compute_vjp(const attn_norm_vjp_problem *g, attn_call *call)
{
    py_lock lock;
    int status;

    py_give_up_lock(&lock, 2 * attn_norm_work(&g->norm), call);
    status = attn_normalize_vjp(g, call);
    return py_take_lock_back(&lock, status, call);
}

static PyObject *
pack_gradients(vjp_call *c)
{
    for (int i = 0; i < N_GRADIENTS; i++) {
        if (c->gradients[i] != NULL &&
            py_cast_array(&c->gradients[i], c->types[i]) < 0) {
            return NULL;
        }
    }
    PyObject *bias = (PyObject *)c->gradients[OF_BIAS];
    return PyTuple_Pack(3, c->gradients[OF_X], c->gradients[OF_WEIGHT],
                        bias == NULL ? Py_None : bias);
}

PyDoc_STRVAR(
    normalize_vjp_doc,
    "normalize_vjp(grad_output, x, norm, num_threads=None, tier=None, moments=None, "
    "/)\n--\n\nThe gradients of normalize() with respect to x (or x + residual, which "
    "is to be "
    "given), weight, and bias if there is one, else None, each in its own dtype. "
    "moments "
    "are those of normalize(), which are found again without them.");

static PyObject *
normalize_vjp(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    vjp_call c = {.of = {0}};
    attn_norm_vjp_problem g = {.norm = {0}};
    attn_call call = {0};
    PyObject *result = NULL;
    int type = -1;

    (void)module;
    if (py_check_count(n_arguments, 3, 6) < 0 ||
        py_threads_or_default(n_arguments > 3 ? arguments[3] : Py_None,
                              &call.n_threads) < 0 ||
        py_parse_tier(n_arguments > 4 ? arguments[4] : Py_None, &call.tier) < 0) {
        return NULL;
    }
    if (py_convert_norm(arguments[2], "norm", &c.of.norm) == 0 &&
        py_as_array(arguments[0], "grad_output", &c.grad_output) == 0 &&
        py_as_array(arguments[1], "x", &c.of.x) == 0 &&
        view_moments(&c.of, n_arguments > 5 ? arguments[5] : Py_None) == 0) {
        type = vjp_type(&c);
    }
    if (type >= 0 && set_vjp_arrays(&c, type, &g) == 0 &&
        set_moments(&c.of, py_real_type(type), &g.norm) == 0 &&
        compute_vjp(&g, &call) == 0) {
        result = pack_gradients(&c);
    }
    release_vjp_call(&c);
    return result;
}

PyMethodDef py_norm_methods[] = {
    {"normalize", PY_FUNCTION(normalize), METH_FASTCALL, normalize_doc},
    {"normalize_vjp", PY_FUNCTION(normalize_vjp), METH_FASTCALL, normalize_vjp_doc},
    {NULL, NULL, 0, NULL},
};
