/* How what the products multiply lies in memory. */
#ifndef ATTN_KERNEL_STORAGE_H
#define ATTN_KERNEL_STORAGE_H

#include "kernel/sizes.h"

/* How operands lie in memory: as such, or as elements that loading converts. */
typedef enum { AS_OPERANDS, AS_F16, AS_BF16, AS_TWO_ROWS } storage;

#endif
