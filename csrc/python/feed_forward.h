/* feed_forward(): a feed-forward network's products, in one call. */
#ifndef ATTN_PYTHON_FEED_FORWARD_H
#define ATTN_PYTHON_FEED_FORWARD_H

#include "python/binding.h"

extern PyMethodDef py_feed_forward_methods[];

#endif
