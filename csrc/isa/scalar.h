/* Plain C for the functions that follow: limited by fma(), which may be a call, they gain
 * nothing from twice the code that -O3 makes of them. */
#ifndef ATTN_ISA_SCALAR_H
#define ATTN_ISA_SCALAR_H

#include "isa/begin.h"

/* Nothing is in registers either. */
#undef UNROLLED
#define UNROLLED

/* Sanitized builds ask for less. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) &&               \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#pragma GCC optimize("Os")
#endif

#endif
