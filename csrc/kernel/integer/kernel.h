/* Linear products whose matrix is quantised, and their table. An isa/ file chooses the
 * instruction set, the vocabularies of floats and of integers, and the tiles, then includes
 * this. core/quantized.h says what is computed. */
#ifndef ATTN_KERNEL_INTEGER_KERNEL_H
#define ATTN_KERNEL_INTEGER_KERNEL_H

#include "kernel/integer/dots.h"
#include "kernel/integer/rows.h"

static size_t
integer_workspace_size(const attn_linear_problem *l)
{
    integer_work w;
    return lay_out_integers(l, NULL, &w);
}

/* Does a matrix unit repay n rows? Those of several lines where there are more rows, and no short
 * parts. */
static bool
repays_unit(const integer_work *w, ptrdiff_t n)
{
    return w->q->rounds_rows ? n >= SHARED_FROM
                             : n >= LINES_FROM && w->part > ATTN_LEAST_GROUP;
}

/* Products of n rows. */
static void
add_products(const integer_work *w, const integer_product *m, ptrdiff_t n,
             code_form form)
{
    if (HAS_UNIT && w->unit != NULL && repays_unit(w, n)) {
        w->unit(m, n, form);
    } else if (w->q->rounds_rows) {
        add_rounded_rows(m, n, form);
    } else {
        add_split_rows(m, n, form);
    }
}

/* A panel's scales or minimums from a group on. */
static attn_factors
factors_from(const integer_work *w, attn_factors f, ptrdiff_t panel, ptrdiff_t group)
{
    ptrdiff_t n_groups = attn_divide_up(w->l->n_in, w->q->group);
    ptrdiff_t at = (panel * n_groups + group) * PANEL;

    if (f.coarse != NULL) {
        f.fine += at;
        f.coarse += panel * attn_divide_up(n_groups, w->q->groups_per_block) * PANEL;
    } else if (f.fine != NULL) {
        f.fine += at * attn_storage_of(f.dtype)->bytes;
    }
    return f;
}

static bool
are_powers(attn_factors f)
{
    return f.fine != NULL && f.coarse == NULL && f.dtype == ATTN_I8;
}

/* Converts scales or minimums of n parts, if there are any, to float32. */
static void
convert_factors(const integer_product *m, attn_factors *f, ptrdiff_t n, float *to)
{
    if (f->fine == NULL) {
        return;
    }
    for (ptrdiff_t p = 0; p < n; p++) {
        for (int i = 0; i < PANEL; i += LANES) {
            ptrdiff_t at = p * PANEL + i;
            v_store(to + at, are_powers(*f)
                                 ? v_load_powers((const uint8_t *)f->fine + at)
                                 : load_factors(f, p, i, block_of(m, p)));
        }
    }
    *f = (attn_factors){.fine = (const char *)to, .dtype = ATTN_F32};
}

/* Are factors converted first? Powers of two are few, and many rows share all others. Float rows have
 * no registers for that where products fill them. */
static bool
converts_factors(const attn_quantized *q, ptrdiff_t n)
{
    return n >= SHARED_FROM || (CONVERTS_FOR_FLOATS && !q->rounds_rows) ||
           are_powers(q->scale) || are_powers(q->minimum);
}

/* Adds what n_parts of a panel, from a part on, add to n rows of the output. */
static void
add_chunk(integer_work *w, ptrdiff_t panel, ptrdiff_t part, ptrdiff_t n_parts,
          ptrdiff_t n, float *output)
{
    const attn_quantized *q = w->q;
    ptrdiff_t group = part * w->part / q->group;
    ptrdiff_t at = (panel * w->n_code_rows + part * w->part) * PANEL;
    code_form form = form_of(q);
    const bool bytes = are_split_to_bytes(q, n);
    const ptrdiff_t first = part * w->part;
    integer_product m = {
        .codes = q->codes + at * q->bits / 8,
        .ready = w->ready,
        .own = are_crossed(q, n) ? w->own : NULL,
        .bits = q->bits,
        .zero = q->zero,
        .values = q->values,
        .n = rows_of_parts(w, part, n_parts),
        .part = w->part,
        .scale = factors_from(w, q->scale, panel, group),
        .minimum = factors_from(w, q->minimum, panel, group),
        .group = group,
        .groups_per_block = q->groups_per_block,
        .terms =
            bytes ? (const term *)((const int8_t *)w->terms + first) : w->terms + first,
        .row = w->row,
        .n_digits = bytes ? SPLIT_BYTES : w->n_digits,
        .scales = w->scales + part,
        .begins = w->begins + part * (bytes ? attn_divide_up(w->part, SHORTS_ROWS) : 1),
        .n_parts = w->n_parts,
        .minimum_by = w->minimum_by + part,
        .output = output,
        .is_first = part == 0};

    if (converts_factors(q, n)) {
        convert_factors(&m, &m.scale, n_parts, w->factors);
        convert_factors(&m, &m.minimum, n_parts, w->factors + w->n_converted * PANEL);
    }
    if (is_always_ready(q) && n >= SHARED_FROM) {
        m.ready = (void *)m.codes;
        form = READY;
    }
    add_products(w, &m, n, form);
}

/* How many parts are multiplied at a time. A row alone reads a panel only once, so that none of it
 * needs to stay in the cache. */
static ptrdiff_t
chunk_for(const integer_work *w, ptrdiff_t n)
{
    int one = w->q->rounds_rows ? INT8_ONE : FLOAT_ONE;
    bool once = n == 1 && one == PANEL_VECTORS;

    if (!once || w->part != w->q->group) {
        return w->chunk;
    }
    return converts_factors(w->q, n) ? w->n_converted : w->n_parts;
}

/* The sums of n rows that are loaded with a panel. */
static void
multiply_panel(integer_work *w, ptrdiff_t panel, ptrdiff_t n, float *output)
{
    ptrdiff_t chunk = chunk_for(w, n);

    for (ptrdiff_t r = 0; r < n && w->n_parts == 0; r++) {
        memset(output + r * OUTPUT_ROW, 0, PANEL * sizeof *output);
    }
    for (ptrdiff_t part = 0; part < w->n_parts; part += chunk) {
        ptrdiff_t n_parts = attn_part_of(w->n_parts, chunk, part / chunk);
        add_chunk(w, panel, part, n_parts, n, output);
    }
}

/* The columns of a task of rows that are loaded. */
static void
run_loaded(integer_work *w, const attn_linear_task *task,
           const attn_linear_kernel *floats, const attn_worker *worker)
{
    attn_linear_task part = *task;
    ptrdiff_t end = task->first_column + task->n_columns;

    for (; part.first_column < end; part.first_column += part.n_columns) {
        part.n_columns = end - part.first_column;
        if (part.n_columns > OUTPUT_COLUMNS) {
            part.n_columns = OUTPUT_COLUMNS;
        }
        for (ptrdiff_t k = 0; k < part.n_columns; k += PANEL) {
            if (attn_gives_up(worker)) {
                return;
            }
            multiply_panel(w, (part.first_column + k) / PANEL, part.n_rows,
                           w->output + k);
        }
        floats->store_sums(w->l, &part, w->output, OUTPUT_ROW, w->staged);
    }
}

static void
run_integers(const attn_linear_problem *l, const attn_linear_task *task, bool again,
             const attn_linear_kernel *floats, attn_integer_unit unit,
             const attn_worker *worker)
{
    integer_work *w = worker->workspace;
    attn_linear_task part = *task;
    ptrdiff_t end = task->first_row + task->n_rows;

    lay_out_integers(l, worker->workspace, w);
    w->unit = unit;
    for (; part.first_row < end; part.first_row += part.n_rows) {
        part.n_rows = end - part.first_row;
        if (part.n_rows > w->most_rows) {
            part.n_rows = w->most_rows;
        }
        if (!again || task->n_rows > w->most_rows) {
            load_integer_rows(w, floats, part.first_row, part.n_rows);
        }
        run_loaded(w, &part, floats, worker);
    }
}

extern const attn_integer_kernel INTEGER_KERNEL;

const attn_integer_kernel INTEGER_KERNEL = {.workspace_size = integer_workspace_size,
                                            .run = run_integers};

#endif
