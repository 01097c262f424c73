/* Memory of results, some of which is kept for the next ones. */
#ifndef ATTN_PYTHON_MEMORY_H
#define ATTN_PYTHON_MEMORY_H

#include "python/binding.h"

/* A new array, its elements not set. A large one begins at a cache line, in memory that a
 * former one may have left. */
PyArrayObject *py_new_array(int n_axes, const npy_intp *shape, int type);

/* Prepares for it, once. */
int py_init_memory(void);

#endif
