/* From the user's objects to our private arrays. No other file reads an array that a
 * user's code can reach. */
#ifndef ATTN_PYTHON_OBJECTS_H
#define ATTN_PYTHON_OBJECTS_H

#include "python/binding.h"

#include <stdbool.h>

/* Every PyArrayObject of the binding is private: the binding's own array, or its view
 * of a user's array. A user's code can run at any time, in conversions, in finalisers,
 * in NumPy's callbacks for overflows, and may reshape or retype the arrays that it
 * knows; sizes, strides and dtypes of private arrays stay as they were checked. The
 * elements belong to the user, who may change them. Freeing them during a call, by
 * resize(refcheck=False), is as undefined as in NumPy. */

/* A private view, of NumPy's own class, of an array of any class; NULL, without an
 * error, for other objects. */
PyArrayObject *py_view_of(PyObject *);
/* Private arrays of any dtype; errors of the objects' own conversions pass. Masked
 * arrays are refused, because their mask would be lost. */
int py_as_array(PyObject *, const char *name, PyArrayObject **);
int py_as_optional_array(PyObject *, const char *name, PyArrayObject **);
/* A private copy of integers as int64, or none for None. */
int py_copy_integers(PyObject *, const char *name, PyArrayObject **);
/* A view of the array for the result, or none for None. */
int py_as_out(PyObject *, PyArrayObject **);
/* Is that an array of this type and shape that can be written to? */
int py_check_out(PyArrayObject *, int type, int n_axes, const npy_intp *shape);

/* Gives one of our arrays to the user; a view of it stays in its place. */
PyObject *py_hand_out(PyArrayObject **);
/* Does the object have the elements, shape and type of our array? */
bool py_is_same_array(PyObject *, PyArrayObject *);
/* The type number of an array, or -1 of anything else. */
int py_type_number(PyObject *);
/* The length of an axis of an array that has so many, or -1 of anything else. */
npy_intp py_length_of(PyObject *, int n_axes, int axis);
/* Are both arrays of the same integers of 64 bits? */
bool py_are_same_integers(PyObject *, PyObject *);
/* A boolean of Python or of NumPy, or an array of them of any library, which converts to
 * a number? -1 on error. */
int py_is_boolean(PyObject *);
/* Forgets the error that is set; -1 if it stays, for it is a MemoryError or no Exception,
 * such as KeyboardInterrupt. */
int py_forget_error(void);

/* The attribute of a module; NULL without an error if the module is not loaded or has
 * no such attribute. */
PyObject *py_find_attribute(const char *module_name, const char *name);

#endif
