/* Functions for tests and experiments, which no wheel has. */
#ifndef ATTN_PYTHON_TESTING_H
#define ATTN_PYTHON_TESTING_H

#include "python/binding.h"

extern PyMethodDef py_testing_methods[]; /* empty in a wheel */

#endif
