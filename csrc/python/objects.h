/* From the user's objects to arrays of our own. No other file reads an array that a user's
 * code can reach. */
#ifndef ATTN_PYTHON_OBJECTS_H
#define ATTN_PYTHON_OBJECTS_H

#include "python/binding.h"

#include <stdbool.h>

/* Every PyArrayObject of the binding is private: one that it has made, or a view that it has
 * made of the user's. A user's code can run at any time, in conversions, in finalisers, in
 * what NumPy calls for a cast that overflows, and may reshape or retype the arrays that it
 * knows; sizes, strides and dtypes of ours stay as they were checked. The elements belong to
 * the user, who may change them; who frees them during a call, by resize(refcheck=False),
 * gets what NumPy gives. */

/* A private view, of NumPy's own class, of an array of any class; NULL, without an error,
 * of what is no array. */
PyArrayObject *py_view_of(PyObject *);
/* Private arrays of whatever dtype; their own conversion's errors pass through. One with a
 * mask of its own is refused, for that would be lost. */
int py_as_array(PyObject *, const char *name, PyArrayObject **);
int py_as_optional_array(PyObject *, const char *name, PyArrayObject **);
/* An own copy of integers as int64, or none for None. */
int py_copy_integers(PyObject *, const char *name, PyArrayObject **);
/* A view of what the result is to be written to, or none for None. */
int py_as_out(PyObject *, PyArrayObject **);
/* Is that an array of this type and shape that can be written to? */
int py_check_out(PyArrayObject *, int type, int n_axes, const npy_intp *shape);

/* Hands an array that we have made out to the user; a view of it stays in its place. */
PyObject *py_hand_out(PyArrayObject **);
/* Is the object an array whose elements, shape and type are those of ours? */
bool py_is_same_array(PyObject *, PyArrayObject *);
/* A boolean of Python or of NumPy, or an array of them, which converts to a number. */
bool py_is_boolean(PyObject *);

/* The attribute of a module; NULL without an error where the module is not loaded or has
 * no such attribute. */
PyObject *py_find_attribute(const char *module_name, const char *name);

#endif
