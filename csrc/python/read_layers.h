/* read_layers(): what stack() takes, from the layers themselves. */
#ifndef ATTN_PYTHON_READ_LAYERS_H
#define ATTN_PYTHON_READ_LAYERS_H

#include "python/binding.h"

/* Makes the group of a FeedForward, whose activation's function is in a dict if it is a gate's: 1,
 * or 0 if it is not there, or -1 after an error. */
int py_read_network(PyObject *network, PyObject *gated, PyObject **group);
extern PyMethodDef py_read_layers_methods[];

#endif
