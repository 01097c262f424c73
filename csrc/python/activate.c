/* activate(), cast() and activate_vjp(). */
#include "python/activate.h"

#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/settings.h"

enum { N_NAMES = ATTN_SWIGLU_OAI - ATTN_IDENTITY };

int
py_parse_activation(PyObject *object, bool has_times, attn_activation *activation)
{
    static const char *const names[] = {"relu", "gelu",       "gelu_tanh",
                                        "silu", "quick_gelu", "relu2",
                                        "tanh", "swiglu_oai"};
    const int n = has_times ? N_NAMES : N_NAMES - 1;

    *activation = ATTN_IDENTITY;
    if (object == Py_None) {
        return 0;
    }
    for (int i = 0; i < n && PyUnicode_Check(object); i++) {
        if (PyUnicode_CompareWithASCIIString(object, names[i]) == 0) {
            *activation = (attn_activation)(ATTN_RELU + i);
            return 0;
        }
    }
    PyErr_Format(
        PyExc_ValueError,
        "activation: expected 'relu', 'gelu', 'gelu_tanh', 'silu', 'quick_gelu', "
        "'relu2', 'tanh' or None, got %R",
        object);
    return -1;
}

/* The arrays of a call, owned; NULL where there is none. */
typedef struct {
    PyArrayObject *x, *times, *grad_output, *output;
} activate_call;

static void
release_call(activate_call *c)
{
    Py_CLEAR(c->x);
    Py_CLEAR(c->times);
    Py_CLEAR(c->grad_output);
    Py_CLEAR(c->output);
}

/* The type number to which x and times promote. */
static int
common_type(const activate_call *c)
{
    const int types[] = {PyArray_TYPE(c->x),
                         PyArray_TYPE(c->times == NULL ? c->x : c->times)};

    if (py_check_operand(c->x, "x") < 0 ||
        (c->times != NULL && py_check_operand(c->times, "times") < 0)) {
        return -1;
    }
    return py_common_type(c->times == NULL ? 1 : 2, types, "x, times");
}

/* Checks and describes one of the arrays, or none. */
static int
set_numbers(const activate_call *c, PyArrayObject **array, const char *name, int type,
            attn_numbers *to)
{
    if (*array == NULL) {
        return 0;
    }
    if (!PyArray_SAMESHAPE(c->x, *array)) {
        return py_fail_shape(*array, name, "the shape of x", 0, 0);
    }
    if (py_check_operand(*array, name) < 0 ||
        py_cast_operand(array, type, &to->dtype) < 0 ||
        py_make_contiguous(array, PyArray_TYPE(*array)) < 0) {
        return -1;
    }
    to->data = PyArray_BYTES(*array);
    return 0;
}

/* Converts the arrays to dtypes of the core, makes the output, and describes all. */
static int
set_arrays(activate_call *c, int type, attn_activate_problem *p)
{
    c->output = py_new_array(PyArray_NDIM(c->x), PyArray_DIMS(c->x), type);
    if (c->output == NULL || set_numbers(c, &c->x, "x", type, &p->x) < 0 ||
        set_numbers(c, &c->times, "times", type, &p->times) < 0 ||
        set_numbers(c, &c->grad_output, "grad_output", type, &p->grad_output) < 0) {
        return -1;
    }
    p->n = PyArray_SIZE(c->x);
    p->output = (attn_numbers){PyArray_BYTES(c->output), py_dtype_of(type)};
    p->arithmetic = attn_storage_of(p->output.dtype)->arithmetic;
    return 0;
}

static int
compute(const attn_activate_problem *p, attn_call *call)
{
    py_lock lock;

    py_give_up_lock(&lock, attn_activate_work(p), call);
    attn_activate(p, call);
    return py_take_lock_back(&lock, 0, call);
}

/* Computes numbers of one type, and returns them in another one. */
static PyObject *
result_of(activate_call *c, int type, int own, attn_activate_problem *p,
          attn_call *call)
{
    if (set_arrays(c, type, p) < 0 || compute(p, call) < 0 ||
        py_cast_array(&c->output, own) < 0) {
        return NULL;
    }
    return Py_NewRef((PyObject *)c->output);
}

/* Computes with the n arguments from x on: x, activation, times, num_threads, tier. */
static PyObject *
run_call(activate_call *c, PyObject *const *arguments, Py_ssize_t n)
{
    attn_activate_problem p = {0};
    attn_call call = {0};
    int type = -1;

    if (py_parse_activation(arguments[1], n > 2 && arguments[2] != Py_None,
                            &p.activation) < 0 ||
        py_threads_or_default(n > 3 ? arguments[3] : Py_None, &call.n_threads) < 0 ||
        py_parse_tier(n > 4 ? arguments[4] : Py_None, &call.tier) < 0) {
        return NULL;
    }
    if (py_as_array(arguments[0], "x", &c->x) == 0 &&
        py_as_optional_array(n > 2 ? arguments[2] : Py_None, "times", &c->times) == 0) {
        type = common_type(c);
    }
    if (type < 0) {
        return NULL;
    }
    int own = c->grad_output == NULL ? type : py_gradient_type(c->x, type);
    return result_of(c, type, own, &p, &call);
}

PyDoc_STRVAR(cast_doc,
             "cast(x, like, num_threads, /)\n--\n\nNumbers of float32 or 16 bits in "
             "the dtype of another array, which is one of these.");

static PyObject *
cast(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    activate_call c = {0};
    attn_activate_problem p = {.activation = ATTN_IDENTITY};
    attn_call call = {0};
    PyObject *result = NULL;
    int type = n_arguments > 1 ? py_type_number(arguments[1]) : -1;

    (void)module;
    if (py_check_count(n_arguments, 3, 3) < 0 ||
        py_threads_or_default(arguments[2], &call.n_threads) < 0 ||
        py_parse_tier(Py_None, &call.tier) < 0) {
        return NULL;
    }
    if (!py_storage_of(type, &p.output.dtype) || py_real_type(type) != NPY_FLOAT) {
        PyErr_SetString(PyExc_TypeError, "like: expected float32 or 16 bits");
    } else if (py_as_array(arguments[0], "x", &c.x) == 0) {
        if (PyArray_TYPE(c.x) == NPY_DOUBLE) {
            (void)py_fail_dtype(c.x, "x", "float32 or 16 bits");
        } else {
            result = result_of(&c, type, type, &p, &call);
        }
    }
    release_call(&c);
    return result;
}

PyDoc_STRVAR(activate_doc,
             "activate(x, activation, times=None, num_threads=None, tier=None, /)\n--"
             "\n\nThe activation of numbers, times others, in the promoted dtype of x "
             "and times, or float64 for integers.");

static PyObject *
activate(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    activate_call c = {0};
    PyObject *result;

    (void)module;
    if (py_check_count(n_arguments, 2, 5) < 0) {
        return NULL;
    }
    result = run_call(&c, arguments, n_arguments);
    release_call(&c);
    return result;
}

PyDoc_STRVAR(
    activate_vjp_doc,
    "activate_vjp(grad_output, x, activation, times=None, num_threads=None, tier=None, "
    "/)\n--\n\nThe gradient of activate() with respect to x, grad_output * times * "
    "activation'(x), in the dtype of x.");

static PyObject *
activate_vjp(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    activate_call c = {0};
    PyObject *result = NULL;

    (void)module;
    if (py_check_count(n_arguments, 3, 6) < 0) {
        return NULL;
    }
    if (py_as_array(arguments[0], "grad_output", &c.grad_output) == 0) {
        result = run_call(&c, arguments + 1, n_arguments - 1);
    }
    release_call(&c);
    return result;
}

PyMethodDef py_activate_methods[] = {
    {"activate", PY_FUNCTION(activate), METH_FASTCALL, activate_doc},
    {"cast", PY_FUNCTION(cast), METH_FASTCALL, cast_doc},
    {"activate_vjp", PY_FUNCTION(activate_vjp), METH_FASTCALL, activate_vjp_doc},
    {NULL, NULL, 0, NULL},
};
