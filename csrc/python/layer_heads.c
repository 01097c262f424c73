/* layer(): from tokens to the queries, keys and values of attention. */
#include "python/layer.h"

#include "core/bytes.h"
#include "core/workspace.h"
#include "python/arrays.h"
#include "python/memory.h"
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

/* ---- From tokens to heads ------------------------------------------------------------- */

/* An array (..., heads, L, size) for tokens (..., L, E), a token's heads adjacent: a
 * new one, or on existing data. */
PyArrayObject *
py_make_heads(PyArrayObject *tokens, npy_intp n_heads, npy_intp size, int type,
              void *data)
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
        py_make_heads(s->arrays.input, n_heads, size, s->type, arena_take(a, n_bytes));
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
int
py_readable(int own, int type)
{
    return type == NPY_DOUBLE ? NPY_DOUBLE : own;
}

/* Without a cache: attention reads the projection itself, or the result of its steps. */
static int
set_result(projection *s, int type)
{
    int own = PyArray_TYPE(s->projected), wanted = py_readable(s->type, type);

    if (own == wanted) {
        s->result = s->projected;
        Py_INCREF(s->result);
        return 0;
    }
    s->result = py_make_heads(s->arrays.input, s->rotary.n_heads, s->rotary.head_dim,
                              wanted, NULL);
    return s->result == NULL ? -1 : 0;
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
void
py_describe_codes(const projection *s, attn_array *codes, attn_array *scale)
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
        p->batch.n = p->batch.shape[0] = py_cached_sequences(c, s->cache);
    }
    py_describe(&p->output, s->result, 0, p->batch.n_axes);
    if (codes) {
        npy_intp n = PyArray_SIZE(s->projected) / p->head_dim;
        s->codes = arena_take(&c->arena,
                              n * (code_bytes(p->head_dim) + (npy_intp)sizeof(float)));
        py_describe_codes(s, &p->output, &p->scale);
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
    return py_set_cached_result(c, s, name, type) < 0 || py_check_places(c) < 0 ? -1
                                                                                : 0;
}

int
py_set_heads(layer_call *c)
{
    static const char *const norms[] = {"q_norm", "k_norm", "v_norm"};
    bool apart = c->parts[1].arrays.input != c->parts[2].arrays.input;
    const char *const names[] = {"x", "context", apart ? "value" : "context"};
    int types[N_PARTS], type;

    if (make_arena(c) < 0) {
        return -1;
    }
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
