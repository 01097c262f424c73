/* Many products at once. */
#ifndef ATTN_PYTHON_PRODUCTS_H
#define ATTN_PYTHON_PRODUCTS_H

#include "python/binding.h"

extern PyMethodDef py_products_methods[];

#endif
