/* The counts of paths, in builds for tests/core. */
#include "core/paths.h"

#ifdef ATTN_COUNTS_PATHS
atomic_long attn_path_counts[ATTN_N_PATHS];
#endif
