/* A product of rows with a matrix, y = x W + b, on the micro-kernel of attention: rows of x
 * are lanes, elements of W are read where they lie. Row form, for few rows: columns of W
 * are lanes. Both sum in chains of ATTN_BLOCK terms, so they give the same bits. Included
 * by kernel.inc.h only. */

enum {
    STEPS = ATTN_BLOCK / TERMS, /* of a chain */
    ROW_GROUP = 8 /* rows of W that row form takes at a time, 4 KB apart */
};

typedef struct {
    const attn_linear_problem *l;
    const attn_linear_task *task;
    bool row_form;
    operand *input; /* (tiles, STEPS, WIDTH); row form: (rows, STEPS) */
    real *output;   /* (tiles, columns, WIDTH); row form: (rows, columns) */
    operand *slab;  /* a block of W brought into contiguous operands */
    real *rows;     /* (LANES, SLAB_COLUMNS) */
    real *sums;     /* row form: (rows, columns) of a block */
} linear_work;

static size_t
lay_out_linear(const attn_linear_problem *l, char *memory, linear_work *w)
{
    ptrdiff_t n_rows = least(l->n_batch * l->n_rows, ATTN_TASK_ROWS);
    ptrdiff_t n_tiles = tiles_of(n_rows);
    ptrdiff_t n_outputs = n_tiles * WIDTH * ATTN_LINEAR_COLUMNS;
    ptrdiff_t slab = STEPS * ATTN_LINEAR_COLUMNS;
    size_t size = 0;

    take_bytes(memory, &size, sizeof *w);
    w->row_form = l->n_batch * l->n_rows <= ATTN_FEW_ROWS;
    w->input =
        take_bytes(memory, &size, (size_t)(STEPS * n_tiles * WIDTH) * sizeof(operand));
    w->rows = take(memory, &size, LANES * SLAB_COLUMNS);
    if (w->row_form) {
        n_outputs = ATTN_FEW_ROWS * ATTN_FEW_ROWS_COLUMNS;
        slab = ROW_GROUP / TERMS * n_outputs;
        w->sums = take(memory, &size, n_outputs);
    }
    w->output = take(memory, &size, n_outputs);
    w->slab = take_bytes(memory, &size, (size_t)slab * sizeof(operand));
    return size;
}

static size_t
linear_workspace_size(const attn_linear_problem *l)
{
    linear_work w;
    return lay_out_linear(l, NULL, &w);
}

/* The address of row r of the task in an array of all batches' rows. */
static char *
linear_row(const linear_work *w, const attn_array *array, ptrdiff_t r)
{
    ptrdiff_t row = w->task->first_row + r, n_rows = w->l->n_rows;
    return array->data + row / n_rows * array->batch_stride[0] +
           row % n_rows * array->row_stride;
}

/* Loads elements first .. first + n - 1 of each row. */
static void
load_input(linear_work *w, ptrdiff_t first, ptrdiff_t n_elements)
{
    const attn_array *input = &w->l->input;
    ptrdiff_t n_rows = w->task->n_rows, at = first * input->column_stride;

    for (ptrdiff_t r = 0; r < n_rows && !w->row_form; r += LANES) {
        operand *tile = w->input + r / WIDTH * WIDTH * STEPS + r % WIDTH;
        const char *rows[LANES] = {NULL};
        ptrdiff_t n = least(n_rows - r, LANES);
        for (ptrdiff_t i = 0; i < n; i++) {
            rows[i] = linear_row(w, input, r + i) + at;
        }
        load_lanes(input, rows, n, n_elements, w->rows, tile, NULL);
    }
    for (ptrdiff_t r = 0; r < row_form_rows(n_rows) && w->row_form; r++) {
        operand *to = w->input + r * STEPS;
        memset(to, 0, STEPS * sizeof *to);
        if (r < n_rows) {
            stage_row(to, linear_row(w, input, r) + at, input->column_stride,
                      n_elements, input->dtype);
        }
    }
}

/* Rows first .. first + n - 1 of W, the task's columns. */
static matrix
fetch_weights(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t width)
{
    const attn_array *weight = &w->l->weight;
    const char *from = weight->data + first * weight->row_stride +
                       w->task->first_column * weight->column_stride;

    return fetch_rows(weight, from, n, w->l->n_out, w->task->n_columns, width, w->slab);
}

/* The weights that are wanted after the task's block of rows before `first`: the next
 * block, or the first one of the next columns, which are another task's. */
static soon
weights_soon(const linear_work *w, ptrdiff_t first)
{
    const attn_array *weight = &w->l->weight;
    ptrdiff_t n_columns = w->task->n_columns, column = w->task->first_column;

    if (first >= w->l->n_in) {
        first = 0;
        column += n_columns;
        column = column < w->l->n_out ? column : 0;
        n_columns = least(n_columns, w->l->n_out - column);
    }
    return soon_rows(weight,
                     weight->data + first * weight->row_stride +
                         column * weight->column_stride,
                     n_columns, least(w->l->n_in - first, ATTN_BLOCK));
}

/* Adds the products of elements first .. first + n - 1 of each row, in one chain. */
static void
add_linear_tiles(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    ptrdiff_t n_columns = w->task->n_columns;
    matrix weights = fetch_weights(w, first, n, n_columns);
    soon next = weights_soon(w, first + ATTN_BLOCK);

    for (ptrdiff_t r = 0; r < w->task->n_rows; r += WIDTH) {
        ptrdiff_t n_lanes = least(w->task->n_rows - r, WIDTH);
        const operand *input = w->input + r * STEPS;
        multiply_transposed((product){.c = w->output + r * n_columns,
                                      .c_row = WIDTH,
                                      .a = weights,
                                      .b = (const char *)input,
                                      .b_row = WIDTH * sizeof(operand),
                                      .n_rows = n_columns,
                                      .n_steps = (n + TERMS - 1) / TERMS,
                                      .add = first > 0,
                                      .next = {next}},
                            (int)((n_lanes + LANES - 1) / LANES));
        next.n_rows = 0;
    }
}

/* Continues the chains of row form with rows first .. first + n - 1 of W, ROW_GROUP or as
 * many as there are; the first is number k of the block. */
static void
add_weight_group(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t k)
{
    const attn_array *weight = &w->l->weight;
    ptrdiff_t n_columns = w->task->n_columns, width = round_up(n_columns, LANES);
    storage kind = value_storage(weight->dtype);
    product m = {.c = w->sums,
                 .c_row = width,
                 .a = {w->input + k / TERMS, STEPS},
                 .b = weight->data + first * weight->row_stride +
                      w->task->first_column * weight->column_stride,
                 .b_row = weight->row_stride,
                 .n_rows = row_form_rows(w->task->n_rows),
                 .n_steps = (n + TERMS - 1) / TERMS,
                 .resume = k > 0};

    if (width != n_columns || n % TERMS != 0 ||
        !reads_in_place(weight, w->l->n_out, kind)) {
        matrix staged = fetch_weights(w, first, n, width);
        m.b = (const char *)staged.at;
        m.b_row = staged.row * (ptrdiff_t)sizeof(operand);
        kind = AS_OPERANDS;
    }
    multiply_few(m, width / LANES, kind);
}

/* As add_linear_tiles, in row form. */
static void
add_linear_rows(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    ptrdiff_t width = round_up(w->task->n_columns, LANES);

    for (ptrdiff_t k = 0; k < n || k == 0; k += ROW_GROUP) {
        add_weight_group(w, first + k, least(n - k, ROW_GROUP), k);
    }
    for (ptrdiff_t i = 0; i < w->task->n_rows * width; i += LANES) {
        v_real sum = v_load(w->sums + i);
        v_store(w->output + i, first > 0 ? v_add(v_load(w->output + i), sum) : sum);
    }
}

/* The bias of a column of the task. */
static real
column_bias(const linear_work *w, ptrdiff_t column)
{
    const attn_array *bias = &w->l->bias;
    ptrdiff_t at = (w->task->first_column + column) * bias->column_stride;
    return bias->data == NULL ? 0 : load_element(bias->data + at, REAL_DTYPE);
}

/* Applies the activation to n_vec vectors, `line` reals apart. */
static NOINLINE void
activate(real *at, ptrdiff_t line, ptrdiff_t n_vec, attn_activation activation)
{
    for (ptrdiff_t i = 0; i < n_vec; i++, at += line) {
        v_real x = v_load(at);
        switch (activation) {
        case ATTN_RELU: x = relu_of(x); break;
        case ATTN_GELU: x = gelu_of(x); break;
        case ATTN_GELU_TANH: x = gelu_tanh_of(x); break;
        case ATTN_SILU: x = sigmoid_times(x, x); break;
        default: break;
        }
        v_store(at, x);
    }
}

static void
activate_all(void *numbers, ptrdiff_t n, attn_activation activation)
{
    real *at = numbers, lanes[LANES] = {0};
    ptrdiff_t rest = n % LANES;

    activate(at, LANES, n / LANES, activation);
    memcpy(lanes, at + n - rest, (size_t)rest * sizeof(real));
    activate(lanes, LANES, 1, activation);
    memcpy(at + n - rest, lanes, (size_t)rest * sizeof(real));
}

static void
store_linear_tiles(linear_work *w)
{
    const attn_array *output = &w->l->output;
    ptrdiff_t n_rows = w->task->n_rows, n_columns = w->task->n_columns;

    for (ptrdiff_t r = 0; r < n_rows; r += LANES) {
        real *lanes = w->output + r / WIDTH * WIDTH * n_columns + r % WIDTH;
        char *rows[LANES] = {NULL};
        ptrdiff_t n = least(n_rows - r, LANES);
        for (ptrdiff_t i = 0; i < n; i++) {
            rows[i] = linear_row(w, output, r + i) +
                      w->task->first_column * output->column_stride;
        }
        for (ptrdiff_t k = 0; k < n_columns && w->l->bias.data != NULL; k++) {
            v_real bias = v_set1(column_bias(w, k));
            v_store(lanes + k * WIDTH, v_add(v_load(lanes + k * WIDTH), bias));
        }
        if (w->l->activation != ATTN_IDENTITY) {
            activate(lanes, WIDTH, n_columns, w->l->activation);
        }
        store_lanes(output, rows, n, lanes, n_columns, w->rows);
    }
}

static void
store_linear_rows(linear_work *w)
{
    const attn_array *output = &w->l->output;
    ptrdiff_t n_columns = w->task->n_columns, width = round_up(n_columns, LANES);

    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *row = w->output + r * width;
        for (ptrdiff_t k = 0; k < n_columns && w->l->bias.data != NULL; k++) {
            row[k] += column_bias(w, k);
        }
        if (w->l->activation != ATTN_IDENTITY) {
            activate(row, LANES, width / LANES, w->l->activation);
        }
        store_row(linear_row(w, output, r) +
                      w->task->first_column * output->column_stride,
                  output->column_stride, row, n_columns, output->dtype);
    }
}

static void
run_linear(const attn_linear_problem *l, const attn_linear_task *task, void *memory,
           attn_control *control, bool is_caller)
{
    linear_work *w = memory;
    ptrdiff_t first = 0;

    w->l = l;
    w->task = task;
    lay_out_linear(l, memory, w);
    do { /* there may be nothing to add up */
        ptrdiff_t n = least(l->n_in - first, ATTN_BLOCK);
        if (attn_should_stop(control, is_caller)) {
            return;
        }
        load_input(w, first, n);
        if (w->row_form) {
            add_linear_rows(w, first, n);
        } else {
            add_linear_tiles(w, first, n);
        }
        first += ATTN_BLOCK;
    } while (first < l->n_in);
    if (w->row_form) {
        store_linear_rows(w);
    } else {
        store_linear_tiles(w);
    }
}
