/* embed(): sums of rows of tables. */
#ifndef ATTN_PYTHON_EMBED_H
#define ATTN_PYTHON_EMBED_H

#include "python/binding.h"

extern PyMethodDef py_embed_methods[];

#endif
