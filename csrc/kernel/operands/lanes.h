/* Between rows of an array and the lanes of a tile. Rows are transposed, unless they are adjacent
 * in memory, as those of a transposed array are: then they are in lanes already. */
#ifndef ATTN_KERNEL_OPERANDS_LANES_H
#define ATTN_KERNEL_OPERANDS_LANES_H

#include "kernel/operands/convert.h"
#include "kernel/operands/operand.h"

/* Do columns of an array's rows lie as operands do, pairs in whole vectors? */
static bool
are_operands(const attn_array *array, ptrdiff_t n_columns)
{
    return TERMS == 1 ? is_plain(array, n_columns)
                      : array->dtype == OPERAND_DTYPE &&
                            array->column_stride == (ptrdiff_t)sizeof(real) / TERMS &&
                            n_columns % (TERMS * LANES) == 0;
}

/* Are these rows LANES adjacent ones, of a dtype that has vectors? */
static bool
are_adjacent(const attn_array *array, const char *const rows[LANES], ptrdiff_t n)
{
    ptrdiff_t size = attn_storage_of(array->dtype)->bytes;

    return TERMS == 1 && LANES > 1 && n == LANES &&
           rows[LANES - 1] == rows[0] + (LANES - 1) * size &&
           array->row_stride == size && has_vectors(array->dtype);
}

/* to[k][lane] = column k of row `lane` of adjacent rows, times *scale unless that is NULL. */
static void
load_adjacent(const attn_array *array, const char *rows, ptrdiff_t n_columns, real *to,
              const real *scale)
{
    for (ptrdiff_t k = 0; k < n_columns; k++, rows += array->column_stride) {
        v_real x = load_vector(rows, array->dtype);
        v_store(to + k * WIDTH, scale == NULL ? x : v_mul(x, v_set1(*scale)));
    }
}

/* to[k * to_line + i] = rows[i][k], times *scale unless that is NULL, for k < n and
 * i < n_rows; lanes from n_rows to LANES are 0. */
static ONE_COPY void
transpose_in(real *to, ptrdiff_t to_line, const real *const rows[LANES],
             ptrdiff_t n_rows, ptrdiff_t n, const real *scale)
{
    ptrdiff_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        v_real a[LANES];
        UNROLLED for (int i = 0; i < LANES; i++)
        {
            a[i] = i < n_rows ? v_load(rows[i] + k) : v_set1(0);
        }
        v_transpose(a);
        __asm__("" : "+r"(scale)); /* or compilers make a loop for either */
        UNROLLED for (int i = 0; i < LANES; i++)
        {
            v_real x = scale == NULL ? a[i] : v_mul(a[i], v_set1(*scale));
            v_store(to + (k + i) * to_line, x);
        }
    }
    for (; k < n; k++) {
        real *line = to + k * to_line;
        for (int i = 0; i < LANES; i++) {
            ONE_BY_ONE;
            real x = i < n_rows ? rows[i][k] : 0;
            line[i] = scale == NULL ? x : x * *scale;
        }
    }
}

/* rows[i][k] = from[k * from_line + i] for k < n and i < n_rows <= LANES */
static ONE_COPY void
transpose_out(real *const rows[LANES], ptrdiff_t n_rows, const real *from,
              ptrdiff_t from_line, ptrdiff_t n)
{
    ptrdiff_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        v_real a[LANES];
        UNROLLED for (int i = 0; i < LANES; i++)
        {
            a[i] = v_load(from + (k + i) * from_line);
        }
        v_transpose(a);
        for (int i = 0; i < LANES && i < n_rows; i++) {
            v_store(rows[i] + k, a[i]);
        }
    }
    for (; k < n; k++) {
        for (ptrdiff_t i = 0; i < n_rows; i++) {
            ONE_BY_ONE;
            rows[i][k] = from[k * from_line + i];
        }
    }
}

/* Loads n rows of an array, n_columns of each, into a column of vectors of a tile:
 * to[k][lane] = operand k of rows[lane], times *scale unless that is NULL. `staging` is
 * (LANES, SLAB_COLUMNS). */
static void
load_lanes(const attn_array *array, const char *const rows[LANES], ptrdiff_t n,
           ptrdiff_t n_columns, real *staging, operand *to, const real *scale)
{
    bool plain = are_operands(array, n_columns);
    ptrdiff_t width = plain ? n_columns : SLAB_COLUMNS;
    const real *from[LANES] = {NULL};

    if (are_adjacent(array, rows, n)) {
        load_adjacent(array, rows[0], n_columns, (real *)to, scale);
        return;
    }
    for (ptrdiff_t k = 0; k < n_columns; k += width) {
        ptrdiff_t n_now = least(n_columns - k, width);
        for (ptrdiff_t i = 0; i < n; i++) {
            ONE_BY_ONE;
            const char *row = rows[i] + k * array->column_stride;
            from[i] = (const real *)(const void *)row;
            if (!plain) {
                real *staged = staging + i * SLAB_COLUMNS;
                stage_row((operand *)staged, row, array->column_stride, n_now,
                          array->dtype);
                from[i] = staged;
            }
        }
        transpose_in((real *)(to + k / TERMS * WIDTH), WIDTH, from, n,
                     (n_now + TERMS - 1) / TERMS, scale);
    }
}

/* The reverse, for reals: rows[lane][k] = from[k][lane]. */
static void
store_lanes(const attn_array *array, char *const rows[LANES], ptrdiff_t n,
            const real *from, ptrdiff_t n_columns, real *staging)
{
    bool plain = is_plain(array, n_columns);
    ptrdiff_t width = plain ? n_columns : SLAB_COLUMNS;
    real *to[LANES] = {NULL};

    for (ptrdiff_t k = 0; k < n_columns; k += width) {
        ptrdiff_t n_now = least(n_columns - k, width);
        ptrdiff_t at = k * array->column_stride;
        for (ptrdiff_t i = 0; i < n; i++) {
            ONE_BY_ONE;
            to[i] = plain ? (real *)(void *)rows[i] : staging + i * SLAB_COLUMNS;
        }
        transpose_out(to, n, from + k * WIDTH, WIDTH, n_now);
        for (ptrdiff_t i = 0; i < n && !plain; i++) {
            store_row(rows[i] + at, array->column_stride, to[i], n_now, array->dtype);
        }
    }
}

#endif
