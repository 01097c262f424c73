/* activate(). */
#include "python/activate.h"

#include "python/arrays.h"
#include "python/lock.h"
#include "python/numbers.h"
#include "python/settings.h"

int
py_parse_activation(PyObject *object, attn_activation *activation)
{
    static const char *const names[] = {"relu",       "gelu",  "gelu_tanh", "silu",
                                        "quick_gelu", "relu2", "tanh"};

    *activation = ATTN_IDENTITY;
    if (object == Py_None) {
        return 0;
    }
    for (int i = 0; i < (int)(sizeof names / sizeof *names) && PyUnicode_Check(object);
         i++) {
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

/* A contiguous copy of x in what it is computed in; *type is that of the result. */
static PyArrayObject *
copy_operand(PyObject *object, int *type)
{
    PyArrayObject *x, *copy = NULL;

    if (py_as_array(object, "x", &x) < 0) {
        return NULL;
    }
    const int own = PyArray_TYPE(x);
    *type = py_check_operand(x, "x") < 0 ? -1 : py_common_type(1, &own, "x");
    if (*type >= 0) {
        copy = (PyArrayObject *)PyArray_FROMANY(
            (PyObject *)x, py_real_type(*type), 0, 0,
            NPY_ARRAY_CARRAY | NPY_ARRAY_NOTSWAPPED | NPY_ARRAY_FORCECAST |
                NPY_ARRAY_ENSURECOPY | NPY_ARRAY_ENSUREARRAY);
    }
    Py_DECREF(x);
    return copy;
}

PyDoc_STRVAR(
    activate_doc,
    "activate(x, activation, tier=None, /)\n--\n\nThe activation of numbers, in "
    "the dtype of x, or float64 for integers.");

static PyObject *
activate(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    attn_call call = {.n_threads = attn_get_num_threads()};
    attn_activate_problem p;
    PyArrayObject *numbers;
    int type;
    py_lock lock;

    (void)module;
    if (py_check_count(n_arguments, 3) < 0 ||
        py_parse_activation(arguments[1], &p.activation) < 0 ||
        py_parse_tier(n_arguments > 2 ? arguments[2] : Py_None, &call.tier) < 0) {
        return NULL;
    }
    numbers = copy_operand(arguments[0], &type);
    if (numbers == NULL) {
        return NULL;
    }
    p.numbers = PyArray_DATA(numbers);
    p.n = PyArray_SIZE(numbers);
    p.arithmetic = py_dtype_of(PyArray_TYPE(numbers));
    py_give_up_lock(&lock, attn_activate_work(&p), &call);
    attn_activate(&p, &call);
    if (py_take_lock_back(&lock, 0, &call) < 0 || py_cast_array(&numbers, type) < 0) {
        Py_CLEAR(numbers);
    }
    return (PyObject *)numbers;
}

PyMethodDef py_activate_methods[] = {
    {"activate", PY_FUNCTION(activate), METH_FASTCALL, activate_doc},
    {NULL, NULL, 0, NULL},
};
