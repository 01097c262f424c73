/* Chooses how attention multiplies: by vectors, or on a matrix unit. Both define the same
 * functions: attend_tile_by_tile, multiply_scores, weigh_tile and add_block for tile form, and
 * multiply_keys and sum_rows for row form. */
#ifndef ATTN_KERNEL_ATTENTION_PRODUCTS_H
#define ATTN_KERNEL_ATTENTION_PRODUCTS_H

#ifdef MATRIX_UNIT
#include "kernel/amx/attention_block.h"
#include "kernel/amx/attention_row_values.h"
#else
#include "kernel/attention/row_form/scores.h"
#include "kernel/attention/row_form/values.h"
#include "kernel/attention/tile_form/products.h"
#endif

#endif
