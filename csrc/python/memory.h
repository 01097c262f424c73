/* Memory of results, some of which is kept for the next ones. */
#ifndef ATTN_PYTHON_MEMORY_H
#define ATTN_PYTHON_MEMORY_H

#include "python/binding.h"

#include <stdbool.h>

/* A new array, its elements not set. A large one begins at a cache line, in memory that a
 * former one may have left; it owns its elements, like any other. */
PyArrayObject *py_new_array(int n_axes, const npy_intp *shape, int type);
/* One of zeros. */
PyArrayObject *py_new_zeros(int n_axes, const npy_intp *shape, int type);
/* An array with these strides, on data that the caller keeps, or if NULL new ones. */
PyArrayObject *py_new_strided(int n_axes, const npy_intp *shape, int type,
                              const npy_intp *strides, void *data);

/* After an error: was it a lack of memory, and was memory kept that has been given up now?
 * Then there is no error any more. What is new here tries again by itself. */
bool py_try_again(void);

/* Refuses shapes whose bytes overflow, which is a ValueError of NumPy's that names nothing. */
int py_check_size(int n_axes, const npy_intp *shape, const char *name);

/* Prepares for it, once. */
int py_init_memory(void);

#endif
