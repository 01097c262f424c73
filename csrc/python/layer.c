/* layer(): from its arrays to the steps of the core. */
#include "python/layer.h"

#include "core/bytes.h"
#include "core/workspace.h"
#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/packed.h"
#include "python/pages.h"
#include "python/rotary.h"

/* ---- Memory --------------------------------------------------------------------------- */

/* An upper bound of the bytes of a row of n_columns for each token in any type. */
static double
most_bytes(PyArrayObject *tokens, npy_intp n_columns)
{
    int n_axes = PyArray_NDIM(tokens) < 1 ? 0 : PyArray_NDIM(tokens) - 1;
    npy_intp n_tokens = PyArray_MultiplyList(PyArray_DIMS(tokens), n_axes);

    return (double)n_tokens * (double)n_columns * sizeof(double) + ATTN_ALIGNMENT;
}

static int
make_arena(layer_call *c)
{
    double size = ATTN_ALIGNMENT;

    for (int i = 0; i < N_PARTS; i++) {
        const py_linear_arrays *a = &c->parts[i].arrays;
        if (a->input != NULL) {
            size += most_bytes(a->input, py_weight_columns(&a->weight));
        }
        if (a->input != NULL && a->weight.is_quantized) { /* there may be codes */
            size += most_bytes(a->input, c->n_heads[i] * ATTN_CODE_UNIT);
        }
    }
    if (size >= (double)PY_SSIZE_T_MAX) {
        PyErr_SetString(PyExc_MemoryError,
                        "x: expected tokens that memory can hold, got more");
        return -1;
    }
    npy_intp n_bytes = (npy_intp)size;
    c->arena.bytes = py_new_array(1, &n_bytes, NPY_UINT8);
    return c->arena.bytes == NULL ? -1 : 0;
}

/* The next bytes, aligned. */
static char *
arena_take(arena *a, npy_intp n_bytes)
{
    char *data = PyArray_BYTES(a->bytes);
    npy_intp past = (npy_intp)((uintptr_t)(data + a->used) % ATTN_ALIGNMENT);
    npy_intp at = a->used + (past == 0 ? 0 : ATTN_ALIGNMENT - past);

    a->used = at + n_bytes;
    return data + at;
}

/* ---- From tokens to attention --------------------------------------------------------- */

/* An array (..., heads, L, size) for tokens (..., L, E), a token's heads adjacent: a
 * new one, or on existing data. */
static PyArrayObject *
make_heads(PyArrayObject *tokens, npy_intp n_heads, npy_intp size, int type, void *data)
{
    npy_intp shape[ATTN_MAX_AXES + 1], strides[ATTN_MAX_AXES + 1];
    int n = PyArray_NDIM(tokens) + 1;

    memcpy(shape, PyArray_DIMS(tokens), (size_t)(n - 3) * sizeof *shape);
    shape[n - 3] = n_heads;
    shape[n - 2] = py_axis_length(tokens, 1);
    shape[n - 1] = size;
    strides[n - 1] = attn_storage_of(py_dtype_of(type))->bytes;
    strides[n - 3] = size * strides[n - 1];
    strides[n - 2] = n_heads * strides[n - 3];
    for (int axis = n - 4; axis >= 0; axis--) {
        int inner = axis == n - 4 ? n - 2 : axis + 1;
        strides[axis] = shape[inner] * strides[inner];
    }
    return py_new_strided(n, shape, type, strides, data);
}

/* Checks the tokens that a matrix is to take. */
static int
check_tokens(const py_linear_arrays *a, const char *name)
{
    npy_intp size = py_weight_rows(&a->weight);

    if (PyArray_NDIM(a->input) < 2 || py_axis_length(a->input, 0) != size) {
        return py_fail_shape(a->input, name, "(..., L, %zd)", size, 0);
    }
    return py_check_operand(a->input, name);
}

/* Checks and describes the product of a part's tokens with its matrix. */
static int
set_projected(projection *s, const char *name, npy_intp n_heads, bool mixed, arena *a)
{
    attn_array *output = &s->linear.output;
    npy_intp size;

    if (check_tokens(&s->arrays, name) < 0) {
        return -1;
    }
    s->linear.activation = ATTN_IDENTITY;
    s->type = py_set_linear(&s->arrays, mixed ? PY_NARROW : PY_PROMOTED, &s->linear);
    if (s->type < 0) {
        return -1;
    }
    if (s->linear.n_out % n_heads != 0) {
        return py_fail_shape(s->arrays.weight.array, "weight",
                             "as many columns for each of the %zd heads", n_heads, 0);
    }
    size = s->linear.n_out / n_heads;
    npy_intp n_bytes = s->linear.batch.n * s->linear.n_rows * s->linear.n_out *
                       attn_storage_of(py_dtype_of(s->type))->bytes;
    s->projected =
        make_heads(s->arrays.input, n_heads, size, s->type, arena_take(a, n_bytes));
    if (s->projected == NULL) {
        return -1;
    }
    output->data = PyArray_BYTES(s->projected);
    output->column_stride = PyArray_ITEMSIZE(s->projected);
    output->row_stride = s->linear.n_out * output->column_stride;
    output->batch_stride[0] = s->linear.n_rows * output->row_stride;
    py_read_heads(s->projected, &s->rotary);
    s->rotary.input.dtype = output->dtype;
    py_describe(&s->rotary.input, s->projected, 0, s->rotary.batch.n_axes);
    return 0;
}

/* Describes the norm of a part's heads, one by one or together. After it they have the promoted type of both,
 * or their own if mixed. */
static int
set_norm(projection *s, const char *name, bool mixed)
{
    npy_intp size = s->rotary.head_dim, all = s->linear.n_out;

    if (s->norm.weight == NULL) {
        return 0;
    }
    if (py_check_norm(&s->norm, name) < 0) {
        return -1;
    }
    npy_intp n = PyArray_DIM(s->norm.weight, 0);
    if (n != size && n != all) {
        return py_fail_shape(s->norm.weight, name,
                             "a norm of (%zd,), or (%zd,) for all heads together", size,
                             all);
    }
    const int types[2] = {s->type, PyArray_TYPE(s->norm.weight)};
    s->type = py_common_type(mixed ? 1 : 2, types, name);
    if (s->type < 0 || py_set_norm(&s->norm, s->type, &s->norm_problem) < 0) {
        return -1;
    }
    s->rotary.norm = &s->norm_problem;
    return 0;
}

/* Describes what a part's heads are turned by. In a stack, whose layers share that, -1 without an
 * error if it has another precision. */
static int
set_cos_sin(const layer_call *c, projection *s)
{
    if (s->cos_sin == NULL) {
        return 0;
    }
    if (c->residual != NULL && PyArray_TYPE(s->cos_sin) != py_real_type(s->type)) {
        return -1;
    }
    return py_convert_cos_sin(&s->cos_sin, s->type) < 0
               ? -1
               : py_set_cos_sin(s->cos_sin, s->projected, &s->rotary);
}

/* The type in which attention, with a result of type `type`, can read another. */
static int
readable(int own, int type)
{
    return type == NPY_DOUBLE ? NPY_DOUBLE : own;
}

/* Without a cache: attention reads the projection itself, or the result of its steps. */
static int
set_result(projection *s, int type)
{
    int own = PyArray_TYPE(s->projected), wanted = readable(s->type, type);

    if (own == wanted) {
        s->result = s->projected;
        Py_INCREF(s->result);
        return 0;
    }
    s->result = make_heads(s->arrays.input, s->rotary.n_heads, s->rotary.head_dim,
                           wanted, NULL);
    return s->result == NULL ? -1 : 0;
}

/* The sequences in a cache, an array of four axes: its own first axis, or that of the table
 * of its pages; -1 where that is none of one row for each. */
static npy_intp
n_sequences(const layer_call *c, const PyArrayObject *cache)
{
    const PyArrayObject *table = c->attention.page_table;

    if (table == NULL) {
        return PyArray_DIM(cache, 0);
    }
    return PyArray_NDIM(table) == 2 && PyArray_DIM(cache, 2) == ATTN_BLOCK
               ? PyArray_DIM(table, 0)
               : -1;
}

/* Do sequences, heads and their size match those of the cache? */
static bool
fits_cache(const layer_call *c, const projection *s)
{
    PyArrayObject *cache = s->cache, *heads = s->projected;
    bool packed = c->attention.query_starts != NULL;

    if (PyArray_NDIM(cache) != 4 || PyArray_NDIM(heads) != (packed ? 3 : 4)) {
        return false;
    }
    npy_intp n = n_sequences(c, cache);
    return (packed ? py_has_sequences(&c->attention, n) : n == PyArray_DIM(heads, 0)) &&
           PyArray_DIM(cache, 1) == py_axis_length(heads, 2) &&
           PyArray_DIM(cache, 3) == py_axis_length(heads, 0);
}

/* A cache of int8: attention reads it in place, with its scales. */
static int
set_quantised_result(projection *s, const char *name)
{
    PyArrayObject *cache = s->cache, *scales = s->scales;
    bool fits = PyArray_NDIM(scales) == 3;

    for (int axis = 0; axis < 3 && fits; axis++) {
        fits = PyArray_DIM(scales, axis) == PyArray_DIM(cache, axis);
    }
    if (!fits) {
        return py_fail_shape(scales, name, "the scales of a cache, (B, Hk, Lk)", 0, 0);
    }
    if (PyArray_TYPE(cache) != NPY_BYTE || !PyArray_ISWRITEABLE(cache)) {
        return py_fail_dtype(cache, name, "a writable cache of int8 with scales");
    }
    if (PyArray_TYPE(scales) != NPY_FLOAT || !PyArray_ISBEHAVED(scales)) {
        return py_fail_dtype(
            scales, name, "writable, aligned scales of float32 in native byte order");
    }
    s->result = cache;
    Py_INCREF(cache);
    return 0;
}

/* With a cache: attention reads its rows in place, or a copy. */
static int
set_cached_result(const layer_call *c, projection *s, const char *name, int type)
{
    PyArrayObject *cache = s->cache;
    int own = PyArray_TYPE(cache), wanted = readable(own, type);
    attn_dtype unused;

    if (s->scales == NULL && !py_storage_of(own, &unused)) {
        return py_fail_dtype(cache, name, "float64, float32, float16 or bfloat16");
    }
    if (!fits_cache(c, s)) {
        return py_fail_shape(s->projected, name,
                             "(B, Hk, L, D) as the cache's, with D = %zd",
                             py_axis_length(cache, 0), 0);
    }
    if (s->scales != NULL) {
        return set_quantised_result(s, name);
    }
    if (!PyArray_ISWRITEABLE(cache)) {
        PyErr_Format(PyExc_ValueError,
                     "cache: expected an array that can be written to as its %s, got a "
                     "read-only one",
                     name);
        return -1;
    }
    if (PyArray_ISBEHAVED(cache) && own == wanted) {
        s->result = cache;
        Py_INCREF(cache);
        return 0;
    }
    if (c->attention.page_table != NULL) {
        return py_fail_dtype(cache, "cache",
                             wanted == NPY_DOUBLE
                                 ? "aligned pages in float64, as the result is"
                                 : "aligned pages");
    }
    s->result = cache;
    Py_INCREF(cache);
    return py_copy_as(&s->result, wanted);
}

/* Does attention multiply integers? Where every token sees those behind it, and the matrices round
 * their rows to integers anyway. Others may have to give the bits of tokens with a cache. */
static bool
multiplies_codes(const layer_call *c, int type)
{
    const attn_problem *p = &c->problem;
    bool codes = type == NPY_FLOAT && c->own_keys && c->past_lengths == NULL &&
                 !p->causal && p->window_right != 0 && p->dropout == 0;

    for (int i = 0; i < N_PARTS && codes; i++) {
        const projection *s = &c->parts[i];
        codes = s->projected != NULL && s->linear.quantized != NULL &&
                s->linear.quantized->rounds_rows && s->rotary.head_dim > 0 &&
                s->type == NPY_FLOAT && s->result == s->projected;
    }
    return codes;
}

/* Bytes of a head's codes. */
static npy_intp
code_bytes(npy_intp size)
{
    npy_intp n = (size + ATTN_CODE_UNIT - 1) / ATTN_CODE_UNIT * ATTN_CODE_UNIT;
    return n * (npy_intp)sizeof(int16_t);
}

/* Describes a part's codes, (..., heads, L, size) in C order, and their scales behind all. */
static void
describe_codes(const projection *s, attn_array *codes, attn_array *scale)
{
    PyArrayObject *heads = s->projected;
    npy_intp row = code_bytes(py_axis_length(heads, 0));
    npy_intp n = py_axis_length(heads, 1);
    int last = PyArray_NDIM(heads) - 4;

    codes->data = s->codes;
    codes->dtype = ATTN_I16;
    codes->column_stride = sizeof(int16_t);
    codes->row_stride = row;
    codes->head_stride = n * row;
    n *= py_axis_length(heads, 2);
    for (int axis = last; axis >= 0; axis--) {
        codes->batch_stride[axis] = n * row;
        n *= PyArray_DIM(heads, axis);
    }
    *scale = *codes;
    scale->data += n * row;
    scale->dtype = ATTN_F32;
    scale->row_stride = sizeof(float);
    scale->head_stride = codes->head_stride / row * scale->row_stride;
    for (int axis = last; axis >= 0; axis--) {
        scale->batch_stride[axis] = codes->batch_stride[axis] / row * scale->row_stride;
    }
}

/* Describes the steps from the projection to the result, if there are any. */
static const attn_rotary_problem *
set_rotary(projection *s, layer_call *c)
{
    attn_rotary_problem *p = &s->rotary;

    /* Caches of int8 have mixed keys, which mixed queries meet, and mixed values. */
    p->mixed = s == &c->parts[0] ? c->parts[1].scales != NULL : s->scales != NULL;
    bool codes = c->codes && s != &c->parts[0];

    if (s->result == s->projected && p->norm == NULL && p->cos_sin.data == NULL &&
        !p->mixed && !codes) {
        return NULL;
    }
    p->dtype = p->cache_dtype = py_dtype_of(s->type);
    if (s->scales != NULL) {
        p->output.dtype = ATTN_I8;
    } else {
        p->output.dtype = py_dtype_of(PyArray_TYPE(s->result));
    }
    if (s->cache != NULL) {
        p->cache_dtype =
            s->scales != NULL ? ATTN_I8 : py_dtype_of(PyArray_TYPE(s->cache));
        p->past_lengths = PyArray_DATA(c->past_lengths);
        p->lengths = PyArray_DATA(c->attention.kv_lengths);
    }
    if (s->cache != NULL && c->attention.query_starts != NULL) {
        p->starts = PyArray_DATA(c->attention.query_starts);
        p->batch.n_axes = 1;
        p->batch.n = p->batch.shape[0] = n_sequences(c, s->cache);
    }
    py_describe(&p->output, s->result, 0, p->batch.n_axes);
    if (codes) {
        npy_intp n = PyArray_SIZE(s->projected) / p->head_dim;
        s->codes = arena_take(&c->arena,
                              n * (code_bytes(p->head_dim) + (npy_intp)sizeof(float)));
        describe_codes(s, &p->output, &p->scale);
    }
    if (s->cache != NULL && c->attention.page_table != NULL) {
        p->pages = &c->attention.pages; /* set with the rest of attention */
        p->page_stride = py_page_stride(s->cache);
    }
    if (s->scales != NULL) {
        p->scale.dtype = ATTN_F32;
        p->scale_page_stride = py_axis_stride(s->scales, 2);
        py_describe(&p->scale, s->scales, 1, p->batch.n_axes);
    }
    return p;
}

/* Checks that tokens have places in the cache, within its capacity. */
static int
check_places(const layer_call *c)
{
    const projection *k = &c->parts[1];
    PyArrayObject *ends = c->attention.kv_lengths;
    npy_intp n_keys = py_axis_length(k->cache, 1);
    npy_intp n_batch = n_sequences(c, k->cache);

    if (c->attention.page_table != NULL) {
        n_keys *= PyArray_DIM(c->attention.page_table, 1);
    }

    if (PyArray_NDIM(c->past_lengths) != 1 ||
        PyArray_DIM(c->past_lengths, 0) != n_batch || ends == NULL ||
        !PyArray_SAMESHAPE(c->past_lengths, ends)) {
        return py_fail_shape(c->past_lengths, "past_lengths", "(%zd,), as kv_lengths",
                             n_batch, 0);
    }
    for (npy_intp b = 0; b < n_batch; b++) {
        int64_t start = ((const int64_t *)PyArray_DATA(c->past_lengths))[b];
        int64_t end = ((const int64_t *)PyArray_DATA(ends))[b];
        int64_t n_new = k->rotary.n_tokens;
        if (c->attention.query_starts != NULL) {
            n_new = attn_packed_length(PyArray_DATA(c->attention.query_starts), b, 0);
        }
        if (py_check_range(start, "past_lengths", 0, n_keys) < 0 ||
            py_check_range(end, "kv_lengths", start, n_keys) < 0 ||
            py_check_range(end - start, "tokens", 0, n_new) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Decides from where attention reads keys or values. */
static int
set_source(layer_call *c, int i, const char *name, int type)
{
    projection *s = &c->parts[i];

    if (s->projected == NULL) { /* projected before */
        s->result = s->cache;
        Py_INCREF(s->result);
        return 0;
    }
    if (c->past_lengths == NULL) {
        return set_result(s, type);
    }
    return set_cached_result(c, s, name, type) < 0 || check_places(c) < 0 ? -1 : 0;
}

/* Everything up to the queries, keys and values of attention; returns the type of its
 * result. */
static int
set_parts(layer_call *c)
{
    static const char *const norms[] = {"q_norm", "k_norm", "v_norm"};
    bool apart = c->parts[1].arrays.input != c->parts[2].arrays.input;
    const char *const names[] = {"x", "context", apart ? "value" : "context"};
    int types[N_PARTS], type;

    for (int i = 0; i < N_PARTS; i++) {
        projection *s = &c->parts[i];
        if (s->arrays.input != NULL) {
            if (set_projected(s, names[i], c->n_heads[i], c->mixed, &c->arena) < 0 ||
                set_norm(s, norms[i], c->mixed) < 0 || set_cos_sin(c, s) < 0) {
                return -1;
            }
            c->layer.projections[i] = &s->linear;
        }
        types[i] = s->scales != NULL  ? types[0] /* which integers do not change */
                   : s->cache != NULL ? PyArray_TYPE(s->cache)
                                      : s->type;
    }
    type = py_common_type(3, types, "query, key, value");
    if (type < 0 || set_result(&c->parts[0], type) < 0 ||
        set_source(c, 1, "key", type) < 0 || set_source(c, 2, "value", type) < 0) {
        return -1;
    }
    c->codes = multiplies_codes(c, type);
    for (int i = 0; i < N_PARTS; i++) {
        if (c->parts[i].projected != NULL) {
            c->layer.rotary[i] = set_rotary(&c->parts[i], c);
        }
    }
    return type;
}

/* ---- Attention and after -------------------------------------------------------------- */

/* Makes an array for the heads' results side by side, (..., L, H * Dv), and lets attention
 * write there. */
static int
make_concat(layer_call *c, int type, int rank)
{
    const attn_problem *p = &c->problem;
    npy_intp n_heads = p->n_kv_heads * p->group;
    npy_intp shape[ATTN_MAX_AXES]; /* (..., H, L, Dv), then (..., L, H * Dv) */
    int n = py_output_shape(&c->attention, p, rank, shape) - 1;

    shape[n - 2] = shape[n - 1];
    shape[n - 1] = n_heads * p->value_dim;
    c->concat = py_new_array(n, shape, type);
    if (c->concat == NULL) {
        return -1;
    }
    c->attention.output =
        make_heads(c->concat, n_heads, p->value_dim, type, PyArray_DATA(c->concat));
    return c->attention.output == NULL ? -1 : 0;
}

/* Results of mixed values are mixed, and become what they were by mixing them again. */
static void
set_results(layer_call *c)
{
    PyArrayObject *heads = c->attention.output;
    attn_rotary_problem *p = &c->results;

    if (c->parts[2].scales == NULL || c->layer.attention == NULL) {
        return;
    }
    py_read_heads(heads, p);
    p->dtype = p->cache_dtype = p->input.dtype = p->output.dtype =
        py_dtype_of(PyArray_TYPE(heads));
    py_describe(&p->input, heads, 0, p->batch.n_axes);
    p->output = p->input;
    p->mixed = true;
    c->layer.results = p;
}

static int
set_attention(layer_call *c, int type)
{
    py_attention_arrays *a = &c->attention;
    PyArrayObject **const inputs[N_PARTS] = {&a->query, &a->key, &a->value};
    PyArrayObject **const scales[N_PARTS] = {NULL, &a->key_scale, &a->value_scale};

    for (int i = 0; i < N_PARTS; i++) {
        *inputs[i] = c->parts[i].result;
        Py_INCREF(*inputs[i]);
        if (c->parts[i].scales != NULL) {
            Py_INCREF(c->parts[i].scales);
            Py_XSETREF(*scales[i], c->parts[i].scales);
        }
    }
    a->ends_with_lengths = true;
    c->problem.is_cold =
        c->past_lengths != NULL; /* all layers' weights were read since */
    int rank = py_set_attention(a, type, &c->options, &c->problem);
    if (rank < 0 || make_concat(c, type, rank) < 0 ||
        py_make_results(a, &c->options, type, rank, &c->problem) < 0) {
        return -1;
    }
    if (c->codes) {
        describe_codes(&c->parts[1], &c->problem.key, &c->problem.key_scale);
        describe_codes(&c->parts[2], &c->problem.value, &c->problem.value_scale);
    }
    c->layer.attention = py_has_results(a) ? &c->problem : NULL;
    set_results(c);
    return 0;
}

/* The last product, or the heads' results as they are. */
static int
set_output(layer_call *c)
{
    int type;

    if (c->arrays.weight.array == NULL) {
        c->output = c->concat;
        Py_INCREF(c->output);
        return 0;
    }
    npy_intp n_columns = py_axis_length(c->concat, 0);
    if (!py_is_matrix(&c->arrays.weight) ||
        py_weight_rows(&c->arrays.weight) != n_columns) {
        return py_fail_shape(c->arrays.weight.array, "W_o",
                             "(%zd, E), as many rows as the heads have values",
                             n_columns, 0);
    }
    c->arrays.input = c->concat;
    Py_INCREF(c->concat);
    c->linear.activation = ATTN_IDENTITY;
    type = py_set_linear(&c->arrays, c->mixed ? PY_WIDE : PY_PROMOTED, &c->linear);
    c->output = type < 0 ? NULL : py_make_product(&c->arrays, type, &c->linear);
    c->layer.output = &c->linear;
    return c->output == NULL ? -1 : 0;
}

/* Tokens start .. end - 1 of a sequence in an array (B, heads, Lk, size). */
static PyArrayObject *
tokens_of(PyArrayObject *array, npy_intp batch, int64_t start, int64_t end)
{
    npy_intp shape[3] = {PyArray_DIM(array, 1), end - start, PyArray_DIM(array, 3)};
    char *data = PyArray_BYTES(array) + batch * PyArray_STRIDE(array, 0) +
                 start * PyArray_STRIDE(array, 2);

    Py_INCREF(PyArray_DESCR(array)); /* whose bytes may be in another order */
    return (PyArrayObject *)PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(array), 3,
                                                 shape, PyArray_STRIDES(array) + 1,
                                                 data, NPY_ARRAY_WRITEABLE, NULL);
}

/* Copies the new tokens from the copy that attention read to the cache itself. */
static int
cache_tokens(const layer_call *c, const projection *s)
{
    const int64_t *past_lengths = PyArray_DATA(c->past_lengths);
    const int64_t *ends = PyArray_DATA(c->attention.kv_lengths);
    int status = 0;

    for (npy_intp b = 0; b < PyArray_DIM(s->cache, 0) && status == 0; b++) {
        PyArrayObject *from = tokens_of(s->result, b, past_lengths[b], ends[b]);
        PyArrayObject *to = tokens_of(s->cache, b, past_lengths[b], ends[b]);
        status = from == NULL || to == NULL ? -1 : PyArray_CopyInto(to, from);
        Py_XDECREF(from);
        Py_XDECREF(to);
    }
    return status;
}

static int
compute_layer(layer_call *c)
{
    attn_call call = {.tier = c->options.tier, .n_threads = c->options.n_threads};
    py_lock lock;

    py_give_up_lock(&lock, attn_layer_work(&c->layer), &call);
    if (py_take_lock_back(&lock, attn_layer(&c->layer, &call), &call) < 0) {
        return -1;
    }
    for (int i = 0; i < N_PARTS && c->past_lengths != NULL; i++) {
        const projection *s = &c->parts[i];
        if (s->cache != NULL && s->cache != s->result && cache_tokens(c, s) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Everything between the arguments and the computation. */
static int
prepare_layer(layer_call *c)
{
    int type = make_arena(c) < 0 ? -1 : set_parts(c);

    return type < 0 || set_attention(c, type) < 0 ? -1 : set_output(c);
}

PyObject *
py_layer(PyObject *x, PyObject *context, PyObject *const *groups, PyObject *residual)
{
    layer_call c = {.residual = residual}; /* all else is 0 */
    PyObject *result = NULL;

    if (py_convert_layer(x, context, groups, &c) == 0 && prepare_layer(&c) == 0 &&
        compute_layer(&c) == 0) {
        result = c.attention.weights == NULL
                     ? Py_NewRef((PyObject *)c.output)
                     : PyTuple_Pack(2, c.output, c.attention.weights);
    }
    py_release_layer(&c);
    return result;
}

PyDoc_STRVAR(layer_doc,
             "layer(x, context, heads, projections, norms, rotary, cache, options, /)"
             "\n--\n\nAttention with its projections. The groups are those of "
             "attnpy._options; norms, rotary and cache may be None. With past_lengths, "
             "tokens go into the cache, from there up to kv_lengths; without W_k, keys "
             "and values are there already.");

static PyObject *
layer(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    enum { X, CONTEXT, GROUPS, N_ARGUMENTS = GROUPS + N_ATTENTION };

    (void)module;
    if (py_check_count(n_arguments, N_ARGUMENTS, N_ARGUMENTS) < 0) {
        return NULL;
    }
    return py_layer(arguments[X], arguments[CONTEXT], arguments + GROUPS, NULL);
}

PyMethodDef py_layer_methods[] = {
    {"layer", PY_FUNCTION(layer), METH_FASTCALL, layer_doc},
    {NULL, NULL, 0, NULL},
};
