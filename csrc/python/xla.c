/* XLA's foreign-function interface: its calls become those of a Python function, and
 * exceptions become XLA's errors. No Python code can do this, because an interrupt may
 * come before its first instruction. The rest of a call is in
 * attnpy/integrations/_xla.py. */
#include "python/xla.h"

#include <stdatomic.h>

/* The structures of xla/ffi/api/c_api.h, version 0.x, as far as they are needed. */
struct error_fields {
    size_t struct_size;
    void *extension;
    const char *message;
    int code;
};

struct api {
    size_t struct_size;
    void *extension;
    struct {
        size_t struct_size;
        void *extension;
        int major, minor;
    } version;
    const void *internal;
    void *(*create_error)(struct error_fields *);
};

struct frame {
    size_t struct_size;
    void *extension;
    const struct api *api;
};

enum { RESOURCE_EXHAUSTED = 8, INTERNAL = 13 };

/* The function that is called with the address of each frame. */
static PyObject *_Atomic callee;

/* Makes an error of XLA from the exception that is set. KeyboardInterrupt is raised
 * again when Python continues, because JAX would turn it into another exception. */
static void *
create_error(const struct api *api)
{
    struct error_fields fields = {.struct_size = sizeof fields, .code = INTERNAL};
    PyObject *type, *value, *trace, *message;

    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    message = PyUnicode_FromFormat("attnpy: %s: %S", ((PyTypeObject *)type)->tp_name,
                                   value == NULL ? Py_None : value);
    fields.message = message == NULL ? NULL : PyUnicode_AsUTF8(message);
    if (fields.message == NULL) {
        PyErr_Clear();
        fields.message = "attnpy: an exception that has no message";
    }
    if (PyErr_GivenExceptionMatches(type, PyExc_MemoryError)) {
        fields.code = RESOURCE_EXHAUSTED;
    }
    if (PyErr_GivenExceptionMatches(type, PyExc_KeyboardInterrupt)) {
        PyErr_SetInterrupt();
    }
    void *error = api->create_error(&fields);
    Py_XDECREF(message);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return error;
}

/* The function that XLA calls, on any thread. Returns NULL or an error. */
static void *
answer(const struct frame *frame)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result =
        PyObject_CallFunction(atomic_load(&callee), "n", (Py_ssize_t)frame);
    void *error = result == NULL ? create_error(frame->api) : NULL;

    Py_XDECREF(result);
    PyGILState_Release(state);
    return error;
}

/* answer_xla(function) -> the address of the function for XLA to call */
static PyObject *
answer_xla(PyObject *Py_UNUSED(module), PyObject *function)
{
    /* The former function is kept: another thread may be about to call it. */
    atomic_store(&callee, Py_NewRef(function));
    return PyLong_FromSize_t((size_t)(uintptr_t)answer);
}

PyMethodDef py_xla_methods[] = {
    {"answer_xla", answer_xla, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
