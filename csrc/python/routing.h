/* Which networks of a mixture tokens take, and how much of them. */
#ifndef ATTN_PYTHON_ROUTING_H
#define ATTN_PYTHON_ROUTING_H

#include "python/binding.h"

#include "core/tasks.h"

/* What functions return besides 0 and -1: an array or a network is not of the kind that C knows.
 * Python's own steps, which have the same bits, take all that a call may be given. */
enum { PY_UNKNOWN = 1 };

typedef struct {
    npy_intp n_tokens;
    npy_intp n_networks; /* the last one is shared by all tokens, if there is one */
    npy_intp n_chosen;   /* for a token, without that */
    npy_intp *ends;      /* (n_networks,) of each one's tokens */
    int64_t *tokens;     /* network after network */
    float *weights;      /* of their results */
} py_routes;

/* Routes the rows of x (T, E) among the networks of a group Experts, with the options of the
 * softmax. The routes, which are zeros before, are to be released even after an error. */
int py_route(PyArrayObject *x, PyObject *const *group, PyObject *softmax, attn_call *,
             py_routes *);
void py_release_routes(py_routes *);

#endif
