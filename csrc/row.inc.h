/* Row form: all rows of the task, few, against one block of keys: keys are lanes of the
 * scores, head dimension those of the output. Included by kernel.inc.h only. */

/* S[row][key] for the block's keys; what is no key, up to whole vectors, is -inf. */
static void
score_rows(work *w, const block *b)
{
    const attn_problem *p = w->p;
    ptrdiff_t n_keys = b->end - b->first;

    for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
        const real *rows[LANES] = {NULL};
        ptrdiff_t n = least(n_keys - k, LANES);
        for (ptrdiff_t i = 0; i < n; i++) {
            rows[i] = b->key.at + (k + i) * b->key.row;
        }
        transpose_in(w->columns, LANES, rows, n, p->head_dim, 1);
        multiply_scores((product){.c = w->scores + k,
                                  .c_row = ATTN_BLOCK,
                                  .a = {w->query, p->head_dim},
                                  .b = {w->columns, LANES},
                                  .n_rows = w->task->n_rows},
                        1, p->head_dim);
    }
    finish_scores(&(strip){.at = w->scores,
                           .line = ATTN_BLOCK,
                           .bias = w->task->bias != NULL ? w->bias : NULL,
                           .bits = b->coverage == ATTN_SEE_SOME ? w->see[0] : NULL,
                           .bits_line = ATTN_BLOCK_WORDS,
                           .n_lines = w->task->n_rows,
                           .n_vec = (int)((n_keys + LANES - 1) / LANES)},
                  p->softcap);
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        for (ptrdiff_t k = n_keys; k < round_up(n_keys, LANES); k++) {
            w->scores[r * ATTN_BLOCK + k] = (real)-INFINITY;
        }
    }
}

/* As exponentiate_lanes, for rows that are lines; sums go over keys in order, too. */
static void
exponentiate_rows(work *w, ptrdiff_t n_keys)
{
    real top[WIDTH];
    partial *s = &w->chunk;

    for (ptrdiff_t r = 0; r < WIDTH; r++) {
        v_real line_top = v_set1((real)-INFINITY);
        for (ptrdiff_t k = 0; r < w->task->n_rows && k < n_keys; k += LANES) {
            line_top = v_max(v_load(w->scores + r * ATTN_BLOCK + k), line_top);
        }
        top[r] = v_reduce_max(line_top);
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        v_store(w->rescale + r, raise_max(s->max + r, v_load(top + r)));
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        v_real max = finite_floor(v_set1(s->max[r]));
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            v_store(line + k, exp_of(v_sub(v_load(line + k), max)));
        }
        real total = 0;
        for (ptrdiff_t k = 0; k < n_keys; k++) {
            total += line[k];
        }
        top[r] = total;
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        v_real before = v_load(s->sum + r);
        v_store(s->sum + r, v_fma(before, v_load(w->rescale + r), v_load(top + r)));
    }
}

/* Adds what the rows see in a block to the chunk's partial. */
static void
attend_rows(work *w, const block *b)
{
    bool add = !w->chunk.empty[0];
    span s = {b->first, b->end - b->first, true};

    score_rows(w, b);
    exponentiate_rows(w, s.n);
    for (ptrdiff_t d = 0; b->values_finite && d < w->value_width; d += WIDTH) {
        multiply((product){.c = w->row_output + d,
                           .c_row = w->value_width,
                           .a = {w->scores, ATTN_BLOCK},
                           .b = {b->value.at + d, b->value.row},
                           .n_rows = w->task->n_rows,
                           .n_steps = s.n,
                           .add = add,
                           .keep = w->rescale},
                 (int)least((w->value_width - d) / LANES, TILE_VECTORS));
    }
    for (ptrdiff_t r = 0; !b->values_finite && r < w->task->n_rows; r++) {
        add_seen_values(w, b, &s, r, w->row_output + r * w->value_width, 1,
                        w->scores + r * ATTN_BLOCK, 1, add ? w->rescale + r : NULL);
    }
    w->chunk.empty[0] = false;
}

/* Brings the chunk's output into the layout of a tile, for merging and writing. */
static void
rows_to_tile(work *w)
{
    for (ptrdiff_t r = 0; r < w->task->n_rows && !w->chunk.empty[0]; r++) {
        for (ptrdiff_t d = 0; d < w->p->value_dim; d++) {
            w->chunk.output[0][d * WIDTH + r] = w->row_output[r * w->value_width + d];
        }
    }
}

/* The second sweep, as write_tile_weights. */
static void
write_row_weights(work *w, const block *b)
{
    const attn_array *weights = &w->p->weights;
    ptrdiff_t n_keys = b->end - b->first;

    score_rows(w, b);
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        v_real max = v_set1(w->total.max[r]), inverse = v_set1(w->total.sum[r]);
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            v_store(line + k, weight_of(v_load(line + k), max, inverse));
        }
        store_row(w->task->weights + row_offset(w, weights, r) +
                      b->first * weights->column_stride,
                  weights->column_stride, line, n_keys, weights->dtype);
    }
}
