/* Products of attention with keys and values of int8, and their table. An isa/ file chooses the
 * instruction set, the vocabularies of floats and of shorts, and the sizes, then includes this. */
#ifndef ATTN_KERNEL_BYTES_KERNEL_H
#define ATTN_KERNEL_BYTES_KERNEL_H

#include "kernel/bytes/lanes.h"

extern const attn_byte_kernel BYTE_KERNEL;

const attn_byte_kernel BYTE_KERNEL = {.round_row = round_row,
                                      .find_lanes = find_lanes,
                                      .round_lanes = round_lanes,
                                      .score_rows = score_rows,
                                      .score_lanes = score_lanes,
                                      .sum_rows = sum_rows,
                                      .sum_lanes = sum_lanes};

#endif
