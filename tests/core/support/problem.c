/* Problems made from short descriptions. Elements come from a generator in index order, so
 * that neither machine nor layout changes them. */
#include "support/problem.h"

#include "core/arrangement.h"
#include "core/bytes.h"
#include "core/half.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_0, BATCH_1, HEAD, ROW, COLUMN, N_AXES };

const char *
dtype_name(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_F16: return "float16";
    case ATTN_BF16: return "bfloat16";
    case ATTN_F32: return "float32";
    case ATTN_F64: return "float64";
    case ATTN_I8: return "int8";
    case ATTN_I16: return "int16";
    }
    return "of no dtype";
}

/* ---- Arrays ------------------------------------------------------------------------- */

static bool
is_broadcast(layout how, int axis)
{
    switch (how) {
    case ONE_BATCH: return axis == BATCH_0 || axis == BATCH_1;
    case ONE_HEAD: return axis == HEAD;
    case ONE_ROW: return axis == ROW;
    case ONE_COLUMN: return axis == COLUMN;
    case ONE_ELEMENT: return true;
    default: return false;
    }
}

/* Strides of an array of this shape and layout, 0 along axes of length <= 1; returns the
 * bytes it takes. */
static ptrdiff_t
lay_out(layout how, const ptrdiff_t shape[N_AXES], ptrdiff_t size,
        ptrdiff_t strides[N_AXES])
{
    static const int dense[N_AXES] = {BATCH_0, BATCH_1, HEAD, ROW, COLUMN};
    static const int heads_inside[N_AXES] = {BATCH_0, BATCH_1, ROW, HEAD, COLUMN};
    static const int transposed[N_AXES] = {BATCH_0, BATCH_1, HEAD, COLUMN, ROW};
    const int *order = how == HEADS_INSIDE ? heads_inside
                       : how == TRANSPOSED ? transposed
                                           : dense;
    ptrdiff_t step = how == SPREAD ? 2 * size : size;
    ptrdiff_t last = 0;

    for (int k = N_AXES - 1; k >= 0; k--) {
        int axis = order[k];
        ptrdiff_t n = is_broadcast(how, axis) && shape[axis] > 1 ? 1 : shape[axis];
        strides[axis] = n > 1 ? step : 0;
        last += n > 1 ? (n - 1) * step : 0;
        step *= n;
        step += how == SPREAD ? 3 * size : 0;
        if (n == 0) {
            return 0;
        }
    }
    return last + size;
}

/* Gives the problem an array of its own of this shape, whose gaps are NaN. */
static void
add_array(problem *made, attn_array *array, layout how, attn_dtype dtype,
          ptrdiff_t size, const ptrdiff_t shape[N_AXES])
{
    ptrdiff_t strides[N_AXES] = {0};
    ptrdiff_t bytes = lay_out(how, shape, size, strides);
    char *memory = malloc((size_t)(bytes > 0 ? bytes : 1));

    if (memory == NULL) {
        abort();
    }
    memset(memory, 0xff, (size_t)bytes);
    made->memory[made->n_memory] = memory;
    made->sizes[made->n_memory++] = (size_t)bytes;
    array->data = how == REVERSED && bytes > 0 ? memory + bytes - size : memory;
    array->dtype = dtype;
    for (int axis = 0; axis < N_AXES && how == REVERSED; axis++) {
        strides[axis] = -strides[axis];
    }
    array->batch_stride[0] = strides[BATCH_0];
    array->batch_stride[1] = strides[BATCH_1];
    array->head_stride = strides[HEAD];
    array->row_stride = strides[ROW];
    array->column_stride = strides[COLUMN];
}

char *
element(const attn_problem *p, const attn_array *array, ptrdiff_t batch, ptrdiff_t head,
        ptrdiff_t row, ptrdiff_t column)
{
    return attn_address(array, &p->batch, batch, head, row) +
           column * array->column_stride;
}

double
read_number(const char *at, attn_dtype dtype)
{
    int16_t code;
    uint16_t half;
    float single;
    double wide;

    switch (dtype) {
    case ATTN_I16: memcpy(&code, at, sizeof code); return code;
    case ATTN_F16: memcpy(&half, at, sizeof half); return (double)attn_from_f16(half);
    case ATTN_BF16: memcpy(&half, at, sizeof half); return (double)attn_from_bf16(half);
    case ATTN_F32: memcpy(&single, at, sizeof single); return (double)single;
    case ATTN_I8: return *(const signed char *)at;
    case ATTN_F64: break;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

double
read_element(const attn_problem *p, const attn_array *array, ptrdiff_t batch,
             ptrdiff_t head, ptrdiff_t row, ptrdiff_t column)
{
    return read_number(element(p, array, batch, head, row, column), array->dtype);
}

void
write_number(char *at, attn_dtype dtype, double x)
{
    int16_t code =
        (int16_t)fmin(fmax(nearbyint(x), -ATTN_LARGEST_SHORT), ATTN_LARGEST_SHORT);
    float single = (float)x;
    uint16_t half;

    switch (dtype) {
    case ATTN_I16: memcpy(at, &code, sizeof code); break;
    case ATTN_F16: half = attn_to_f16(single), memcpy(at, &half, sizeof half); break;
    case ATTN_BF16: half = attn_to_bf16(single), memcpy(at, &half, sizeof half); break;
    case ATTN_F32: memcpy(at, &single, sizeof single); break;
    case ATTN_F64: memcpy(at, &x, sizeof x); break;
    case ATTN_I8: *(signed char *)at = attn_to_i8(single); break;
    }
}

/* That of an array of the problem, which has two axes of batch if it has fewer. */
static void
set_shape(const attn_problem *p, ptrdiff_t n_heads, ptrdiff_t n_rows,
          ptrdiff_t n_columns, ptrdiff_t shape[N_AXES])
{
    shape[BATCH_0] = p->batch.n_axes > 0 ? p->batch.shape[0] : 1;
    shape[BATCH_1] = p->batch.n_axes > 1 ? p->batch.shape[1] : 1;
    shape[HEAD] = n_heads;
    shape[ROW] = n_rows;
    shape[COLUMN] = n_columns;
}

/* Gives every element a number in [-1, 1), integers one from the least to the largest. */
static void
fill(const problem *made, const attn_array *array, const ptrdiff_t shape[N_AXES],
     uint64_t seed)
{
    const attn_problem *p = &made->p;
    double largest = array->dtype == ATTN_I8    ? 127
                     : array->dtype == ATTN_I16 ? ATTN_LARGEST_SHORT
                                                : 1;

    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        for (ptrdiff_t h = 0; h < shape[HEAD]; h++) {
            for (ptrdiff_t i = 0; i < shape[ROW]; i++) {
                char *row = element(p, array, b, h, i, 0);
                for (ptrdiff_t d = 0; d < shape[COLUMN]; d++) {
                    write_number(row + d * array->column_stride, array->dtype,
                                 random_unit(&seed) * largest);
                }
            }
        }
    }
}

/* ---- Options ------------------------------------------------------------------------ */

void
add_reals(problem *made, attn_array *array, layout how, attn_dtype dtype,
          ptrdiff_t n_heads, ptrdiff_t n_rows, ptrdiff_t n_columns, uint64_t seed)
{
    ptrdiff_t shape[N_AXES];

    set_shape(&made->p, n_heads, n_rows, n_columns, shape);
    add_array(made, array, how == ABSENT ? DENSE : how, dtype,
              attn_storage_of(dtype)->bytes, shape);
    fill(made, array, shape, seed);
}

/* Codes of 16 bits, whose rows are filled up. */
static void
add_codes(problem *made, attn_array *array, ptrdiff_t n_heads, ptrdiff_t n_rows,
          ptrdiff_t n_columns, uint64_t seed)
{
    ptrdiff_t whole =
        (n_columns + ATTN_CODE_UNIT - 1) / ATTN_CODE_UNIT * ATTN_CODE_UNIT;

    add_reals(made, array, DENSE, ATTN_I16, n_heads, n_rows, whole, seed);
}

/* Calls set on each element of a (B, H, Lq, Lk) array. */
static void
for_each_pair(const attn_problem *p, const attn_array *array,
              void (*set)(const attn_array *, char *at, ptrdiff_t i, ptrdiff_t j,
                          uint64_t *seed),
              uint64_t seed)
{
    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        for (ptrdiff_t h = 0; h < p->n_kv_heads * p->group; h++) {
            for (ptrdiff_t i = 0; i < p->n_queries; i++) {
                char *row = element(p, array, b, h, i, 0);
                for (ptrdiff_t j = 0; j < p->n_keys; j++) {
                    set(array, row + j * array->column_stride, i, j, &seed);
                }
            }
        }
    }
}

/* Blocks of a mask are all true, all false or, mostly, mixed. */
static void
set_mask(const attn_array *mask, char *at, ptrdiff_t i, ptrdiff_t j, uint64_t *seed)
{
    static const char values[] = {0, 1, (char)0x80, (char)0xff};
    ptrdiff_t kind = (i / 64 + j / ATTN_BLOCK) % 5;

    (void)mask;
    *at = values[random_below(seed, 4)];
    *at = kind == 1 ? 1 : kind == 3 ? 0 : *at;
}

/* -1e300 is -inf only once it is converted to float. */
static void
set_hiding_bias(const attn_array *bias, char *at, ptrdiff_t i, ptrdiff_t j,
                uint64_t *seed)
{
    (void)i;
    (void)j;
    if (random_below(seed, 7) == 0) {
        write_number(at, bias->dtype, random_below(seed, 2) == 0 ? -HUGE_VAL : -1e300);
    }
}

static void
add_pair_arrays(const spec *s, problem *made)
{
    attn_problem *p = &made->p;
    ptrdiff_t n_heads = p->n_kv_heads * p->group;
    ptrdiff_t shape[N_AXES];

    set_shape(p, n_heads, p->n_queries, p->n_keys, shape);
    if (s->mask != ABSENT) {
        add_array(made, &p->mask, s->mask, ATTN_F16, 1, shape);
        for_each_pair(p, &p->mask, set_mask, 5);
    }
    if (s->bias != ABSENT) {
        add_reals(made, &p->bias, s->bias, s->bias_dtype, n_heads, p->n_queries,
                  p->n_keys, 6);
        if (s->bias_hides) {
            for_each_pair(p, &p->bias, set_hiding_bias, 7);
        }
    }
    if (s->weights != ABSENT) {
        add_reals(made, &made->weights.array, s->weights, s->dtype, n_heads,
                  p->n_queries, p->n_keys, 8);
        p->weights = &made->weights;
    }
    if (s->lse != ABSENT) {
        add_reals(made, &p->lse, s->lse, p->arithmetic, n_heads, p->n_queries, 1, 9);
    }
}

/* Integers in [low, low + n) for each batch. */
static void
add_integers(problem *made, attn_array *array, ptrdiff_t low, ptrdiff_t n,
             uint64_t seed)
{
    const attn_problem *p = &made->p;
    ptrdiff_t shape[N_AXES];

    set_shape(p, 1, 1, 1, shape);
    add_array(made, array, DENSE, ATTN_F64, sizeof(int64_t), shape);
    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        int64_t x = low + random_below(&seed, n);
        memcpy(element(p, array, b, 0, 0, 0), &x, sizeof x);
    }
}

static void
add_options(const spec *s, problem *made)
{
    attn_problem *p = &made->p;

    p->causal = s->causal;
    p->top_left = s->top_left;
    p->window_left = s->has_window ? s->window_left : -1;
    p->window_right = s->has_window ? s->window_right : -1;
    p->softcap = s->softcap;
    p->dropout = s->dropout;
    p->dropout_seed = UINT64_C(0x0123456789abcdef);
    p->scale = s->scale;
    if (s->scale == 0) {
        p->scale = s->head_dim > 0 ? 1 / sqrt((double)s->head_dim) : 1;
    }
    if (s->sinks) {
        ptrdiff_t n_heads = p->n_kv_heads * p->group;
        add_reals(made, &p->sinks, ONE_BATCH, p->arithmetic, n_heads, 1, 1, 10);
    }
    if (s->offsets) {
        add_integers(made, &p->q_offset, -p->n_queries / 2, p->n_keys + p->n_queries,
                     11);
    }
    if (s->lengths) {
        add_integers(made, &p->kv_lengths, 0, p->n_keys + 1, 12);
    }
}

/* ---- Special elements --------------------------------------------------------------- */

static int64_t
integer_at(const attn_problem *p, const attn_array *array, ptrdiff_t batch,
           int64_t otherwise)
{
    int64_t x = otherwise;

    if (array->data != NULL) {
        memcpy(&x, element(p, array, batch, 0, 0, 0), sizeof x);
    }
    return x;
}

int64_t
position_of(const attn_problem *p, ptrdiff_t batch, ptrdiff_t i)
{
    int64_t length = integer_at(p, &p->kv_lengths, batch, p->n_keys);
    int64_t offset = p->top_left ? 0 : length - p->n_queries;

    return integer_at(p, &p->q_offset, batch, offset) + i;
}

bool
may_see(const attn_problem *p, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t i,
        ptrdiff_t j)
{
    int64_t length = integer_at(p, &p->kv_lengths, batch, p->n_keys);
    int64_t position = position_of(p, batch, i);
    bool seen = j < length && !(p->causal && j > position);

    seen = seen && !(p->window_left >= 0 && j < position - p->window_left);
    seen = seen && !(p->window_right >= 0 && j > position + p->window_right);
    if (p->mask.data != NULL) {
        seen = seen && *element(p, &p->mask, batch, head, i, j) != 0;
    }
    if (p->bias.data != NULL) {
        double bias = read_element(p, &p->bias, batch, head, i, j);
        seen =
            seen && bias != -HUGE_VAL && (p->arithmetic == ATTN_F64 || bias != -1e300);
    }
    return seen;
}

static bool
any_row_sees(const attn_problem *p, ptrdiff_t batch, ptrdiff_t kv_head, ptrdiff_t j)
{
    bool seen = false;

    for (ptrdiff_t g = 0; g < p->group; g++) {
        for (ptrdiff_t i = 0; i < p->n_queries; i++) {
            seen = seen || may_see(p, batch, kv_head * p->group + g, i, j);
        }
    }
    return seen;
}

/* Scales of either sign, with which integers are numbers in [-1, 1); of codes none is negative. */
static void
add_scales(problem *made, attn_array *array, layout how, uint64_t seed)
{
    attn_problem *p = &made->p;
    bool are_codes = p->key.dtype == ATTN_I16;

    add_reals(made, array, how, seed % 2 == 0 ? ATTN_F32 : ATTN_F64, p->n_kv_heads,
              p->n_keys, 1, seed);
    for (ptrdiff_t b = 0; b < (how == ONE_BATCH ? 1 : p->batch.n); b++) {
        for (ptrdiff_t h = 0; h < p->n_kv_heads; h++) {
            for (ptrdiff_t j = 0; j < p->n_keys; j++) {
                char *at = element(p, array, b, h, j, 0);
                double x = read_number(at, array->dtype);
                write_number(at, array->dtype,
                             are_codes ? fabs(x) / ATTN_LARGEST_SHORT : x / 127);
            }
        }
    }
}

static const double poisons[] = {NAN, INFINITY, -INFINITY};

/* All numbers of a key, or value, become one; of integers their scale does. */
static void
poison_row(const attn_problem *p, const attn_array *array, const attn_array *scales,
           ptrdiff_t n, ptrdiff_t b, ptrdiff_t h, ptrdiff_t j, double poison)
{
    if (scales->data != NULL) {
        poison = array->dtype == ATTN_I16 ? (double)NAN : poison;
        write_number(element(p, scales, b, h, j, 0), scales->dtype, poison);
        return;
    }
    for (ptrdiff_t d = 0; d < n; d++) {
        write_number(element(p, array, b, h, j, d), array->dtype, poison);
    }
}

static void
poison_hidden_keys(attn_problem *p)
{
    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        for (ptrdiff_t h = 0; h < p->n_kv_heads; h++) {
            for (ptrdiff_t j = 0; j < p->n_keys; j++) {
                double poison = poisons[j % 3];
                if (any_row_sees(p, b, h, j)) {
                    continue;
                }
                poison_row(p, &p->key, &p->key_scale, p->head_dim, b, h, j, poison);
                poison_row(p, &p->value, &p->value_scale, p->value_dim, b, h, j,
                           poison);
            }
        }
    }
}

static void
poison_one(const attn_problem *p, const attn_array *array, const attn_array *scales,
           ptrdiff_t j, ptrdiff_t d, double poison)
{
    const attn_array *to = scales->data != NULL ? scales : array;

    poison = array->dtype == ATTN_I16 ? (double)NAN : poison;
    write_number(element(p, to, 0, 0, j, to == array ? d : 0), to->dtype, poison);
}

/* In every 37th key or value, one element, or their scale. */
static void
poison_some_keys(attn_problem *p)
{
    for (ptrdiff_t j = 5; j < p->n_keys; j += 37) {
        double poison = poisons[j / 37 % 3];
        if (j % 2 == 0 && p->head_dim > 0) {
            poison_one(p, &p->key, &p->key_scale, j, j % p->head_dim, (double)NAN);
        } else if (p->value_dim > 0) {
            poison_one(p, &p->value, &p->value_scale, j, j % p->value_dim, poison);
        }
    }
}

static void
poison_some_queries(attn_problem *p)
{
    for (ptrdiff_t i = 0; i < p->n_queries; i += 3) {
        char *at = element(p, &p->query, 0, 0, i, i % p->head_dim);
        write_number(at, p->query.dtype, poisons[i / 3 % 3]);
    }
}

/* Scales lie as their keys do, but for what these broadcast. */
static layout
scales_layout(layout of_keys)
{
    return of_keys > SPREAD ? DENSE : of_keys;
}

/* ---- Problems ----------------------------------------------------------------------- */

void
make_problem(const spec *s, problem *made)
{
    attn_problem *p = &made->p;

    memset(made, 0, sizeof *made);
    p->batch.n_axes = 2;
    p->batch.shape[0] = s->batch[0] > 0 ? s->batch[0] : 1;
    p->batch.shape[1] = s->batch[1] > 0 ? s->batch[1] : 1;
    p->batch.n = p->batch.shape[0] * p->batch.shape[1];
    p->n_kv_heads = s->n_kv_heads;
    p->group = s->group;
    p->n_queries = s->n_queries;
    p->n_keys = s->n_keys;
    p->head_dim = s->head_dim;
    p->value_dim = s->value_dim;
    p->arithmetic = attn_storage_of(s->dtype)->arithmetic;
    attn_choose_task_rows(p, 1);
    ptrdiff_t n_heads = s->n_kv_heads * s->group;
    add_reals(made, &p->query, s->query, s->dtype, n_heads, s->n_queries, s->head_dim,
              1);
    if (s->codes) {
        add_codes(made, &p->key, s->n_kv_heads, s->n_keys, s->head_dim, 2);
        add_codes(made, &p->value, s->n_kv_heads, s->n_keys, s->value_dim, 3);
    } else {
        add_reals(made, &p->key, s->key, s->key_scales ? ATTN_I8 : s->dtype,
                  s->n_kv_heads, s->n_keys, s->head_dim, 2);
        add_reals(made, &p->value, s->value, s->value_scales ? ATTN_I8 : s->dtype,
                  s->n_kv_heads, s->n_keys, s->value_dim, 3);
    }
    add_reals(made, &p->output, s->output, s->dtype, n_heads, s->n_queries,
              s->value_dim, 4);
    if (s->key_scales || s->codes) {
        add_scales(made, &p->key_scale, scales_layout(s->key), 13);
    }
    if (s->value_scales || s->codes) {
        add_scales(made, &p->value_scale, scales_layout(s->value), 14);
    }
    add_options(s, made);
    add_pair_arrays(s, made);
    switch (s->special) {
    case NAN_WHERE_HIDDEN: poison_hidden_keys(p); break;
    case NAN_WHERE_VISIBLE: poison_some_keys(p); break;
    case INFINITE_QUERIES: poison_some_queries(p); break;
    default: break;
    }
}

void
make_result(problem *made, layout how, attn_dtype dtype, const attn_batch *batch,
            ptrdiff_t n_heads, ptrdiff_t n_rows, ptrdiff_t n_columns)
{
    attn_problem *p = &made->p;

    memset(made, 0, sizeof *made);
    p->batch = *batch;
    p->n_kv_heads = n_heads;
    p->group = 1;
    p->n_queries = n_rows;
    p->value_dim = n_columns;
    add_reals(made, &p->output, how, dtype, n_heads, n_rows, n_columns, 1);
    reset_results(p);
}

void
share_problem(const problem *made, problem *other)
{
    *other = *made;
    if (made->p.weights != NULL) {
        other->p.weights = &other->weights;
    }
}

void
free_problem(problem *made)
{
    while (made->n_memory > 0) {
        free(made->memory[--made->n_memory]);
    }
}

/* ---- Drawn specs -------------------------------------------------------------------- */

#define COUNT(array) (ptrdiff_t)(sizeof(array) / sizeof((array)[0]))

static bool
one_in(uint64_t *state, ptrdiff_t n)
{
    return random_below(state, n) == 0;
}

static layout
draw_layout(uint64_t *state, layout last)
{
    return (layout)(1 + random_below(state, (ptrdiff_t)last));
}

static void
draw_shape(uint64_t *state, spec *s)
{
    static const ptrdiff_t queries[] = {1, 1, 2, 5, 8, 9, 16, 17, 31, 64, 65, 97, 130};
    static const ptrdiff_t keys[] = {1,   2,   15,  16,  17,  63,  64,  65,
                                     127, 128, 129, 200, 511, 512, 513, 700};
    static const ptrdiff_t dims[] = {0,  1,  2,  3,  4,  7,  8,  9,  15, 16,
                                     17, 24, 31, 33, 48, 63, 64, 65, 129};

    s->batch[0] = 1 + random_below(state, 2);
    s->batch[1] = 1 + random_below(state, 2);
    s->n_kv_heads = 1 + random_below(state, 2);
    s->group = 1 + random_below(state, 3);
    s->n_queries = queries[random_below(state, COUNT(queries))];
    s->n_keys = keys[random_below(state, COUNT(keys))];
    s->head_dim = dims[random_below(state, COUNT(dims))];
    s->value_dim = dims[random_below(state, COUNT(dims))];
}

static void
draw_layouts(uint64_t *state, spec *s)
{
    s->query = draw_layout(state, ONE_BATCH);
    s->key = draw_layout(state, ONE_HEAD);
    s->value = draw_layout(state, ONE_HEAD);
    s->output = draw_layout(state, SPREAD);
    s->mask = one_in(state, 2) ? draw_layout(state, ONE_ELEMENT) : ABSENT;
    s->bias = one_in(state, 3) ? draw_layout(state, ONE_ELEMENT) : ABSENT;
    s->weights = one_in(state, 3) ? draw_layout(state, SPREAD) : ABSENT;
    s->lse = one_in(state, 2) ? draw_layout(state, SPREAD) : ABSENT;
}

spec
draw_spec(uint64_t *state, attn_dtype dtype)
{
    spec s = {.name = "drawn", .dtype = dtype};

    draw_shape(state, &s);
    draw_layouts(state, &s);
    s.bias_dtype = (attn_dtype)random_below(state, 4);
    s.bias_hides = one_in(state, 2);
    s.sinks = one_in(state, 4);
    s.offsets = one_in(state, 4);
    s.lengths = one_in(state, 4);
    s.causal = one_in(state, 3);
    s.top_left = one_in(state, 2);
    s.has_window = one_in(state, 4);
    s.window_left = random_below(state, 300) - 20; /* below 0: all */
    s.window_right = random_below(state, 100) - 20;
    s.softcap = one_in(state, 5) ? 0.5 + (double)random_below(state, 4) : 0;
    s.scale = one_in(state, 4) ? random_unit(state) : 0;
    return s;
}

/* ---- Results ------------------------------------------------------------------------ */

/* One element of each row after the other. */
static uint64_t
hash_array(const attn_problem *p, const attn_array *array, ptrdiff_t n_columns,
           uint64_t hash)
{
    ptrdiff_t size = attn_storage_of(array->dtype)->bytes;

    for (ptrdiff_t b = 0; b < p->batch.n && array->data != NULL; b++) {
        for (ptrdiff_t h = 0; h < p->n_kv_heads * p->group; h++) {
            for (ptrdiff_t i = 0; i < p->n_queries; i++) {
                const char *row = element(p, array, b, h, i, 0);
                for (ptrdiff_t k = 0; k < n_columns; k++) {
                    const char *at = row + k * array->column_stride;
                    uint16_t two;
                    uint32_t four;
                    uint64_t word;
                    switch (size) {
                    case 1: word = (unsigned char)*at; break;
                    case 2: memcpy(&two, at, sizeof two), word = two; break;
                    case 4: memcpy(&four, at, sizeof four), word = four; break;
                    default: memcpy(&word, at, sizeof word); break;
                    }
                    hash = hash_word(hash, word);
                }
            }
        }
    }
    return hash;
}

/* Takes in the eight bytes, the lowest first. */
uint64_t
hash_word(uint64_t hash, uint64_t word)
{
    for (int byte = 0; byte < 8; byte++) {
        hash = (hash ^ (word >> (8 * byte) & 0xff)) * UINT64_C(0x100000001b3);
    }
    return hash;
}

uint64_t
hash_results(const attn_problem *p)
{
    uint64_t hash = hash_array(p, &p->output, p->value_dim, HASH_START);

    if (p->weights != NULL) {
        hash = hash_array(p, &p->weights->array, p->n_keys, hash);
    }
    return hash_array(p, &p->lse, 1, hash);
}

static void
reset_array(const attn_problem *p, const attn_array *array, ptrdiff_t n_columns,
            int byte)
{
    size_t size = (size_t)attn_storage_of(array->dtype)->bytes;

    for (ptrdiff_t b = 0; b < p->batch.n && array->data != NULL; b++) {
        for (ptrdiff_t h = 0; h < p->n_kv_heads * p->group; h++) {
            for (ptrdiff_t i = 0; i < p->n_queries; i++) {
                char *row = element(p, array, b, h, i, 0);
                for (ptrdiff_t k = 0; k < n_columns; k++) {
                    memset(row + k * array->column_stride, byte, size);
                }
            }
        }
    }
}

void
reset_results(const attn_problem *p)
{
    reset_array(p, &p->output, p->value_dim, 0xa5);
    if (p->weights != NULL) {
        reset_array(p, &p->weights->array, p->n_keys, 0);
    }
    reset_array(p, &p->lse, 1, 0xa5);
}

bool
is_split(const attn_problem *p, int n_threads)
{
    const attn_call call = {.n_threads = n_threads};

    return attn_arrange(p, &call).shares_keys;
}

uint64_t
run_problem(const problem *made, const attn_tier *tier, int n_threads)
{
    attn_call call = {.tier = tier, .n_threads = n_threads};

    reset_results(&made->p);
    int status = attn_attention(&made->p, &call);
    return status == 0 ? hash_results(&made->p) : 0;
}

uint64_t
end_result(problem *made, int status)
{
    uint64_t hash = status == 0 ? hash_results(&made->p) : 0;

    free_problem(made);
    return hash;
}
