/* Attributes by names that are made once, which finds them in a fraction of the time. */
#include "python/attributes.h"

static PyObject *names[PY_N_ATTRIBUTES];

int
py_init_attributes(void)
{
#define TEXT_OF(name) #name,
    static const char *const texts[] = {"", PY_ATTRIBUTES(TEXT_OF)};
#undef TEXT_OF

    for (int i = 0; i < PY_N_ATTRIBUTES; i++) {
        if (names[i] == NULL) {
            names[i] = PyUnicode_InternFromString(texts[i]);
        }
        if (names[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

PyObject *
py_name_of(py_attribute attribute)
{
    return names[attribute];
}

PyObject *
py_tuple_of(PyObject *object, const signed char *attributes, Py_ssize_t n)
{
    PyObject *tuple = PyTuple_New(n);

    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++) {
        PyObject *item = attributes[i] == PY_NO_ATTRIBUTE
                             ? Py_NewRef(Py_None)
                             : PyObject_GetAttr(object, names[attributes[i]]);
        if (item == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, i, item);
        }
    }
    return tuple;
}
