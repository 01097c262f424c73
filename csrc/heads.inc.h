/* Rows of heads on their way from one array to another: normalized, turned by their
 * positions, and rounded as if each step's result were stored. Written for any `real`, the
 * `other` being that of the other precision; a heads_*.c file sets both, and REAL_DTYPE,
 * and includes this. What takes vector instructions is the kernel's. */

/* Rounds n reals to a dtype. */
static void
round_row(real *row, ptrdiff_t n, attn_dtype dtype, const attn_kernel *kernel,
          char *halves)
{
    if (dtype >= REAL_DTYPE) {
        return;
    }
    narrow_row(row, n, dtype);
    if (dtype <= ATTN_BF16) {
        kernel->store_row(halves, sizeof(uint16_t), row, n, dtype);
        kernel->load_row(row, halves, sizeof(uint16_t), n, dtype);
    }
}

static void
normalize_row(real *row, const attn_norm_problem *norm, const attn_kernel *kernel)
{
    attn_norm_problem one = *norm;

    one.input = one.output = row;
    kernel->normalize(&one, 0, 1);
}

/* Turns pairs of numbers, `apart` from each other and `step` from the next. */
static inline void
turn_pairs(real *row, const real *cosines, const real *sines, ptrdiff_t n_pairs,
           ptrdiff_t step, ptrdiff_t apart)
{
    for (ptrdiff_t k = 0; k < n_pairs; k++) {
        real one = row[k * step], two = row[k * step + apart];
        row[k * step] = one * cosines[k] - two * sines[k];
        row[k * step + apart] = two * cosines[k] + one * sines[k];
    }
}

static void
turn_row(real *row, const real *turns, ptrdiff_t n_pairs, bool interleaved)
{
    if (interleaved) {
        turn_pairs(row, turns, turns + n_pairs, n_pairs, 2, 1);
    } else {
        turn_pairs(row, turns, turns + n_pairs, n_pairs, 1, n_pairs);
    }
}

static void
store_head(const attn_heads_problem *p, char *to, const real *row,
           const attn_kernel *kernel)
{
    ptrdiff_t stride = p->output.column_stride;

    if (p->output.dtype <= ATTN_BF16 || p->output.dtype == REAL_DTYPE) {
        kernel->store_row(to, stride, row, p->n_columns, p->output.dtype);
        return;
    }
    for (ptrdiff_t k = 0; k < p->n_columns; k++) {
        other x = (other)row[k];
        memcpy(to + k * stride, &x, sizeof x);
    }
}

static void
run_heads(const attn_heads_problem *p, const attn_heads_task *task,
          const attn_kernel *kernel, void *memory)
{
    ptrdiff_t n = p->n_columns;
    real *row = memory;
    char *halves = (char *)(row + n);

    for (ptrdiff_t h = 0; h < p->n_heads; h++) {
        kernel->load_row(row, task->input + h * p->input.head_stride,
                         p->input.column_stride, n, p->input.dtype);
        if (p->norm != NULL) {
            normalize_row(row, p->norm, kernel);
            round_row(row, n, p->dtype, kernel, halves);
        }
        if (task->turns != NULL) {
            const char *turns = task->turns + h * p->turns.head_stride;
            turn_row(row, (const real *)(const void *)turns, p->n_turned / 2,
                     p->interleaved);
            round_row(row, n, p->dtype, kernel, halves);
        }
        round_row(row, n, p->kept, kernel, halves);
        store_head(p, task->output + h * p->output.head_stride, row, kernel);
    }
}
