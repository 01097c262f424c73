/* Memory of results; some of it is kept for later ones. */
#ifndef ATTN_PYTHON_MEMORY_H
#define ATTN_PYTHON_MEMORY_H

#include "python/binding.h"

#include <stdbool.h>

/* A new array with uninitialized elements. A large one begins at a cache line, perhaps
 * in kept memory; it owns its elements, like any other array. */
PyArrayObject *py_new_array(int n_axes, const npy_intp *shape, int type);
/* One of zeros. */
PyArrayObject *py_new_zeros(int n_axes, const npy_intp *shape, int type);
/* An array with these strides, on data that the caller keeps, or if NULL new ones. */
PyArrayObject *py_new_strided(int n_axes, const npy_intp *shape, int type,
                              const npy_intp *strides, void *data);

/* After an error: was it a lack of memory, and were kept blocks freed now? Then the
 * error is cleared. The functions above try again by themselves. */
bool py_try_again(void);

/* Refuses shapes whose bytes overflow; NumPy's own ValueError names no argument. */
int py_check_size(int n_axes, const npy_intp *shape, const char *name);

/* Prepares for it, once. */
int py_init_memory(void);

#endif
