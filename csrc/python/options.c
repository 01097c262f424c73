/* attention()'s options that are no arrays. */
#include "binding.h"

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
    if (py_parse_integer(object, "window", side, &overflow) < 0) {
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

int
py_parse_options(PyObject *const *arguments, Py_ssize_t n_arguments, attn_problem *p,
                 py_options *o)
{
    PyObject *tier = n_arguments > TIER ? arguments[TIER] : Py_None;
    int return_weights = py_parse_flag(arguments[RETURN_WEIGHTS], "return_weights");
    int return_lse =
        return_weights < 0 ? -1 : py_parse_flag(arguments[RETURN_LSE], "return_lse");

    if (return_lse < 0 || parse_causal(arguments[CAUSAL], p) < 0 ||
        parse_window(arguments[WINDOW], p) < 0 || py_parse_tier(tier, &o->tier) < 0) {
        return -1;
    }
    o->return_weights = return_weights;
    o->return_lse = return_lse;
    o->out = arguments[OUT];
    o->has_scale = arguments[SCALE] != Py_None;
    if (o->has_scale && py_parse_number(arguments[SCALE], "scale", &o->scale) < 0) {
        return -1;
    }
    p->softcap = 0;
    if (arguments[SOFTCAP] != Py_None) {
        if (py_parse_number(arguments[SOFTCAP], "softcap", &p->softcap) < 0) {
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
    return py_parse_threads(arguments[NUM_THREADS], &o->n_threads);
}

int
py_set_scale(attn_problem *p, const py_options *o)
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
