/* layer(): attention with its projections, in one run of the core. */
#include "binding.h"

/* Its positional arguments are attention()'s, the tokens in place of the query and what is
 * kept of keys and values in place of these, and behind them its own. Those from W_O on
 * may be left out. */
/* clang-format off */
enum {
    X = QUERY, CONTEXT = N_ARGUMENTS, N_HEADS, N_KV_HEADS, W_Q, B_Q, W_K, B_K, W_V, B_V,
    W_O, B_O, STARTS, Q_NORM, K_NORM, Q_TURNS, K_TURNS, INTERLEAVED, N_LAYER_ARGUMENTS
};
/* clang-format on */

enum { N_PARTS = 3 }; /* queries, keys, values */

/* One part's way from tokens to attention. The arrays are owned; NULL where there is
 * none. */
typedef struct {
    py_linear_arrays arrays; /* no input: nothing is projected */
    PyArrayObject *product;  /* (..., heads, L, size), a token's heads adjacent */
    PyArrayObject *norm_weight, *norm_bias, *turns;
    PyArrayObject *kept;   /* (B, heads, Lk, size): where a cache has its rows */
    PyArrayObject *result; /* what attention reads */
    int type;              /* of the heads after norm and rotation */
    attn_linear_problem linear;
    attn_norm_problem norm;
    attn_heads_problem heads;
} part;

/* One piece of memory for the products. In several, malloc would give them back to the
 * system after each call, and pages anew take a fifth of a layer's time. */
typedef struct {
    PyArrayObject *bytes;
    npy_intp used;
} room;

typedef struct {
    part parts[N_PARTS];
    room room;
    py_arrays attention;
    py_linear_arrays arrays; /* of the last product; no input: there is none */
    PyArrayObject *starts;   /* how many tokens are in the cache before the call */
    PyArrayObject *joined;   /* (..., L, H * Dv) */
    PyArrayObject *output;
    attn_problem problem;
    py_options options;
    attn_linear_problem linear;
    attn_layer_problem layer;
} call;

static void
release_call(call *c)
{
    for (int i = 0; i < N_PARTS; i++) {
        part *s = &c->parts[i];
        py_release_linear(&s->arrays);
        Py_CLEAR(s->product);
        Py_CLEAR(s->norm_weight);
        Py_CLEAR(s->norm_bias);
        Py_CLEAR(s->turns);
        Py_CLEAR(s->kept);
        Py_CLEAR(s->result);
    }
    py_release_arrays(&c->attention);
    py_release_linear(&c->arrays);
    Py_CLEAR(c->starts);
    Py_CLEAR(c->joined);
    Py_CLEAR(c->output);
    Py_CLEAR(c->room.bytes); /* last: the others lie in it */
}

/* ---- Arguments ------------------------------------------------------------------------ */

static int
convert_matrix(PyObject *const *weight_and_bias, py_linear_arrays *a)
{
    return py_as_array(weight_and_bias[0], &a->weight) < 0
               ? -1
               : py_as_optional_array(weight_and_bias[1], &a->bias);
}

/* Tokens that a matrix is to take. */
static int
convert_tokens(PyObject *tokens, const char *name, py_linear_arrays *a)
{
    if (py_as_array(tokens, &a->input) < 0) {
        return -1;
    }
    npy_intp size = PyArray_NDIM(a->weight) == 0 ? 0 : PyArray_DIM(a->weight, 0);
    if (PyArray_NDIM(a->input) < 2 || py_axis_length(a->input, 0) != size) {
        return py_fail_shape(a->input, name, "(..., L, %zd)", size, 0);
    }
    return py_check_operand(a->input, name);
}

/* A norm is (weight, bias or None, eps, centre), or None. */
static int
convert_norm(PyObject *norm, part *s)
{
    PyObject *weight, *bias, *eps, *centre;

    if (norm == Py_None) {
        return 0;
    }
    if (!PyArg_ParseTuple(norm, "OOOO", &weight, &bias, &eps, &centre) ||
        py_as_array(weight, &s->norm_weight) < 0 ||
        py_as_optional_array(bias, &s->norm_bias) < 0 ||
        py_parse_number(eps, "eps", &s->norm.eps) < 0) {
        return -1;
    }
    s->norm.centre = PyObject_IsTrue(centre) > 0;
    return 0;
}

/* Keys and values are projected, kept in a cache, or both. */
static int
check_source(PyObject *const *arguments)
{
    bool projects = arguments[W_K] != Py_None, keeps = arguments[KEY] != Py_None;

    if ((projects || keeps) && keeps == (arguments[VALUE] != Py_None) &&
        (arguments[STARTS] != Py_None) == (projects && keeps)) {
        return 0;
    }
    PyErr_SetString(PyExc_TypeError, "expected starts with both W_k and key, value");
    return -1;
}

/* Converts the arrays of a layer; other people's code may run here, but not after. */
static int
convert_layer(PyObject *const *arguments, call *c)
{
    part *q = &c->parts[0], *k = &c->parts[1], *v = &c->parts[2];
    bool own = arguments[CONTEXT] == Py_None;
    PyObject *source = own ? arguments[X] : arguments[CONTEXT];

    if (convert_matrix(arguments + W_Q, &q->arrays) < 0 ||
        convert_tokens(arguments[X], "x", &q->arrays) < 0) {
        return -1;
    }
    if (own) { /* the array itself, if there was something to convert */
        source = (PyObject *)q->arrays.input;
    }
    if (arguments[W_K] != Py_None &&
        (convert_matrix(arguments + W_K, &k->arrays) < 0 ||
         convert_tokens(source, "context", &k->arrays) < 0 ||
         convert_matrix(arguments + W_V, &v->arrays) < 0 ||
         py_as_array((PyObject *)k->arrays.input, &v->arrays.input) < 0)) {
        return -1;
    }
    if (arguments[W_O] != Py_None && convert_matrix(arguments + W_O, &c->arrays) < 0) {
        return -1;
    }
    if (convert_norm(arguments[Q_NORM], q) < 0 ||
        convert_norm(arguments[K_NORM], k) < 0 ||
        py_as_optional_array(arguments[Q_TURNS], &q->turns) < 0 ||
        py_as_optional_array(arguments[K_TURNS], &k->turns) < 0 ||
        py_as_optional_array(arguments[KEY], &k->kept) < 0 ||
        py_as_optional_array(arguments[VALUE], &v->kept) < 0 ||
        py_copy_integers(arguments[STARTS], "starts", &c->starts) < 0) {
        return -1;
    }
    return py_convert_options(arguments, &c->attention);
}

static int
parse_heads(PyObject *object, const char *name, int64_t *n)
{
    int overflow;

    if (py_parse_integer(object, name, n, &overflow) < 0) {
        return -1;
    }
    return py_check_range(*n, name, 1, ATTN_MAX_DIM);
}

/* ---- Room ----------------------------------------------------------------------------- */

/* At most as many bytes as a row of n_columns for each token takes in any type. */
static double
most_bytes(PyArrayObject *tokens, npy_intp n_columns)
{
    int n_axes = PyArray_NDIM(tokens) - 1;
    npy_intp n_tokens = PyArray_MultiplyList(PyArray_DIMS(tokens), n_axes);

    return (double)n_tokens * (double)n_columns * sizeof(double) + ATTN_ALIGNMENT;
}

static int
make_room(call *c)
{
    double size = ATTN_ALIGNMENT;

    for (int i = 0; i < N_PARTS; i++) {
        const py_linear_arrays *a = &c->parts[i].arrays;
        if (a->input != NULL) {
            size += most_bytes(a->input, py_axis_length(a->weight, 0));
        }
    }
    if (size >= (double)PY_SSIZE_T_MAX) {
        PyErr_NoMemory();
        return -1;
    }
    npy_intp n_bytes = (npy_intp)size;
    c->room.bytes = (PyArrayObject *)PyArray_EMPTY(1, &n_bytes, NPY_UINT8, 0);
    return c->room.bytes == NULL ? -1 : 0;
}

/* The next bytes of the room, aligned. */
static char *
take_room(room *r, npy_intp n_bytes)
{
    char *data = PyArray_BYTES(r->bytes);
    npy_intp past = (npy_intp)((uintptr_t)(data + r->used) % ATTN_ALIGNMENT);
    npy_intp at = r->used + (past == 0 ? 0 : ATTN_ALIGNMENT - past);

    r->used = at + n_bytes;
    return data + at;
}

/* ---- From tokens to attention --------------------------------------------------------- */

static npy_intp
item_size(int type)
{
    attn_dtype dtype = ATTN_F64;

    (void)py_storage_of(type, &dtype);
    return dtype <= ATTN_BF16 ? 2 : dtype == ATTN_F32 ? 4 : 8;
}

/* An array (..., heads, L, size) for tokens (..., L, E), a token's heads adjacent: a new
 * one, or on data that is there. */
static PyArrayObject *
make_heads(PyArrayObject *tokens, npy_intp n_heads, npy_intp size, int type, void *data)
{
    npy_intp shape[ATTN_MAX_AXES + 1], strides[ATTN_MAX_AXES + 1];
    int n = PyArray_NDIM(tokens) + 1;

    memcpy(shape, PyArray_DIMS(tokens), (size_t)(n - 3) * sizeof *shape);
    shape[n - 3] = n_heads;
    shape[n - 2] = py_axis_length(tokens, 1);
    shape[n - 1] = size;
    strides[n - 1] = item_size(type);
    strides[n - 3] = size * strides[n - 1];
    strides[n - 2] = n_heads * strides[n - 3];
    for (int axis = n - 4; axis >= 0; axis--) {
        int inner = axis == n - 4 ? n - 2 : axis + 1;
        strides[axis] = shape[inner] * strides[inner];
    }
    return (PyArrayObject *)PyArray_New(&PyArray_Type, n, shape, type, strides, data, 0,
                                        data == NULL ? 0 : NPY_ARRAY_BEHAVED, NULL);
}

/* Checks and describes the projection of a part's tokens. */
static int
set_product(part *s, npy_intp n_heads, room *r)
{
    attn_array *output = &s->linear.output;
    npy_intp size;

    s->linear.activation = ATTN_IDENTITY;
    s->type = py_set_linear(&s->arrays, &s->linear);
    if (s->type < 0) {
        return -1;
    }
    if (s->linear.n_out % n_heads != 0) {
        return py_fail_shape(s->arrays.weight, "weight",
                             "as many columns for each of the %zd heads", n_heads, 0);
    }
    size = s->linear.n_out / n_heads;
    npy_intp n_bytes =
        s->linear.n_batch * s->linear.n_rows * s->linear.n_out * item_size(s->type);
    s->product =
        make_heads(s->arrays.input, n_heads, size, s->type, take_room(r, n_bytes));
    if (s->product == NULL) {
        return -1;
    }
    output->data = PyArray_BYTES(s->product);
    output->column_stride = PyArray_ITEMSIZE(s->product);
    output->row_stride = s->linear.n_out * output->column_stride;
    output->batch_stride[0] = s->linear.n_rows * output->row_stride;
    py_read_heads(s->product, &s->heads);
    s->heads.input.dtype = output->dtype;
    py_describe(&s->heads.input, s->product, 0, s->heads.n_batch_axes);
    return 0;
}

/* Describes the norm of a part's heads; from it they have the type of both. */
static int
set_norm(part *s, const char *name)
{
    attn_norm_problem *norm = &s->norm;
    npy_intp size = s->heads.n_columns;

    if (s->norm_weight == NULL) {
        return 0;
    }
    if (PyArray_NDIM(s->norm_weight) != 1 || PyArray_DIM(s->norm_weight, 0) != size ||
        (s->norm_bias != NULL && !PyArray_SAMESHAPE(s->norm_weight, s->norm_bias))) {
        return py_fail_shape(s->norm_weight, name, "a norm of (%zd,)", size, 0);
    }
    const int types[2] = {s->type, PyArray_TYPE(s->norm_weight)};
    s->type = py_common_type(2, types);
    if (s->type < 0) {
        return -1;
    }
    int real = s->type == NPY_DOUBLE ? NPY_DOUBLE : NPY_FLOAT;
    Py_SETREF(s->norm_weight, py_as_contiguous((PyObject *)s->norm_weight, real));
    if (s->norm_weight == NULL) {
        return -1;
    }
    norm->n_columns = size;
    norm->weight = PyArray_DATA(s->norm_weight);
    if (s->norm_bias != NULL) {
        Py_SETREF(s->norm_bias, py_as_contiguous((PyObject *)s->norm_bias, real));
        if (s->norm_bias == NULL) {
            return -1;
        }
        norm->bias = PyArray_DATA(s->norm_bias);
    }
    s->heads.norm = norm;
    return 0;
}

/* Describes what a part's heads are turned by. */
static int
set_turns(part *s)
{
    int real = s->type == NPY_DOUBLE ? NPY_DOUBLE : NPY_FLOAT;

    if (s->turns == NULL) {
        return 0;
    }
    Py_SETREF(s->turns, py_as_contiguous((PyObject *)s->turns, real));
    return s->turns == NULL ? -1 : py_set_turns(s->turns, s->product, &s->heads);
}

/* The type in which attention, whose result has the type `type`, can read another. */
static int
readable(int own, int type)
{
    return type == NPY_DOUBLE ? NPY_DOUBLE : own;
}

/* Without a cache: attention reads the product itself, or what becomes of it. */
static int
set_result(part *s, int type)
{
    int own = PyArray_TYPE(s->product), wanted = readable(s->type, type);

    if (own == wanted) {
        s->result = s->product;
        Py_INCREF(s->result);
        return 0;
    }
    s->result =
        make_heads(s->arrays.input, s->heads.n_heads, s->heads.n_columns, wanted, NULL);
    return s->result == NULL ? -1 : 0;
}

/* With a cache: attention reads its rows where they lie, or a copy. */
static int
set_kept_result(part *s, const char *name, int type)
{
    PyArrayObject *kept = s->kept;
    int own = PyArray_TYPE(kept), wanted = readable(own, type);
    attn_dtype unused;

    if (!py_storage_of(own, &unused)) {
        return py_fail_dtype(kept, name, "float64, float32, float16 or bfloat16");
    }
    if (PyArray_NDIM(kept) != 4 || PyArray_NDIM(s->product) != 4 ||
        PyArray_DIM(kept, 0) != PyArray_DIM(s->product, 0) ||
        PyArray_DIM(kept, 1) != PyArray_DIM(s->product, 1) ||
        PyArray_DIM(kept, 3) != PyArray_DIM(s->product, 3)) {
        return py_fail_shape(s->product, name,
                             "(B, Hk, L, D) as the cache's, with D = %zd",
                             py_axis_length(kept, 0), 0);
    }
    if (!PyArray_ISWRITEABLE(kept)) {
        PyErr_Format(PyExc_ValueError,
                     "cache: expected an array that can be written to as its %s, got a "
                     "read-only one",
                     name);
        return -1;
    }
    if (PyArray_ISBEHAVED(kept) && own == wanted) {
        s->result = kept;
        Py_INCREF(kept);
        return 0;
    }
    s->result = (PyArrayObject *)PyArray_FROMANY(
        (PyObject *)kept, wanted, 0, 0,
        NPY_ARRAY_CARRAY | NPY_ARRAY_NOTSWAPPED | NPY_ARRAY_FORCECAST |
            NPY_ARRAY_ENSURECOPY | NPY_ARRAY_ENSUREARRAY);
    return s->result == NULL ? -1 : 0;
}

/* Describes the way from the product to the result, if there is one to go. */
static const attn_heads_problem *
set_heads(part *s, const call *c)
{
    attn_heads_problem *p = &s->heads;

    if (s->result == s->product && p->norm == NULL && p->turns.data == NULL) {
        return NULL;
    }
    (void)py_storage_of(s->type, &p->dtype);
    (void)py_storage_of(PyArray_TYPE(s->result), &p->output.dtype);
    p->kept = p->dtype;
    if (s->kept != NULL) {
        (void)py_storage_of(PyArray_TYPE(s->kept), &p->kept);
        p->first_row = PyArray_DATA(c->starts);
        p->end_row = PyArray_DATA(c->attention.kv_lengths);
    }
    py_describe(&p->output, s->result, 0, p->n_batch_axes);
    return p;
}

/* Checks that tokens have places in the cache, and no more than there are. */
static int
check_places(const call *c)
{
    const part *k = &c->parts[1];
    PyArrayObject *ends = c->attention.kv_lengths;
    npy_intp n_keys = py_axis_length(k->kept, 1);
    npy_intp n_batch = PyArray_DIM(k->kept, 0);

    if (PyArray_NDIM(c->starts) != 1 || PyArray_DIM(c->starts, 0) != n_batch ||
        ends == NULL || !PyArray_SAMESHAPE(c->starts, ends)) {
        return py_fail_shape(c->starts, "starts", "(%zd,), as kv_lengths", n_batch, 0);
    }
    for (npy_intp b = 0; b < n_batch; b++) {
        int64_t start = ((const int64_t *)PyArray_DATA(c->starts))[b];
        int64_t end = ((const int64_t *)PyArray_DATA(ends))[b];
        if (py_check_range(start, "starts", 0, n_keys) < 0 ||
            py_check_range(end, "kv_lengths", start, n_keys) < 0 ||
            py_check_range(end - start, "tokens", 0, k->heads.n_rows) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Decides what attention reads of keys or values. */
static int
set_source(call *c, int i, const char *name, int type)
{
    part *s = &c->parts[i];

    if (s->product == NULL) { /* projected before */
        s->result = s->kept;
        Py_INCREF(s->result);
        return 0;
    }
    if (c->starts == NULL) {
        return set_result(s, type);
    }
    return set_kept_result(s, name, type) < 0 || check_places(c) < 0 ? -1 : 0;
}

/* Everything up to the queries, keys and values of attention; the type of its result. */
static int
set_parts(call *c, const int64_t n_heads[N_PARTS])
{
    static const char *const norms[] = {"q_norm", "k_norm", "v_norm"};
    int types[N_PARTS], type;

    for (int i = 0; i < N_PARTS; i++) {
        part *s = &c->parts[i];
        if (s->arrays.input != NULL) {
            if (set_product(s, n_heads[i], &c->room) < 0 || set_norm(s, norms[i]) < 0 ||
                set_turns(s) < 0) {
                return -1;
            }
            c->layer.products[i] = &s->linear;
        }
        types[i] = s->kept != NULL ? PyArray_TYPE(s->kept) : s->type;
    }
    type = py_promote(types);
    if (type < 0 || set_result(&c->parts[0], type) < 0 ||
        set_source(c, 1, "key", type) < 0 || set_source(c, 2, "value", type) < 0) {
        return -1;
    }
    for (int i = 0; i < N_PARTS; i++) {
        if (c->parts[i].product != NULL) {
            c->layer.heads[i] = set_heads(&c->parts[i], c);
        }
    }
    return type;
}

/* ---- Attention and after -------------------------------------------------------------- */

/* Makes room for the heads' results side by side, (..., L, H * Dv), and lets attention
 * write there. */
static int
make_joined(call *c, int type)
{
    const attn_problem *p = &c->problem;
    npy_intp n_heads = p->n_kv_heads * p->group;
    npy_intp shape[ATTN_MAX_AXES];
    int n = p->n_batch_axes;

    memcpy(shape, p->batch_shape, (size_t)n * sizeof *shape);
    shape[n++] = p->n_queries;
    shape[n++] = n_heads * p->value_dim;
    c->joined = (PyArrayObject *)PyArray_EMPTY(n, shape, type, 0);
    if (c->joined == NULL) {
        return -1;
    }
    c->attention.output =
        make_heads(c->joined, n_heads, p->value_dim, type, PyArray_DATA(c->joined));
    return c->attention.output == NULL ? -1 : 0;
}

static int
set_attention(call *c, int type)
{
    py_arrays *a = &c->attention;
    PyArrayObject **const inputs[N_PARTS] = {&a->query, &a->key, &a->value};

    for (int i = 0; i < N_PARTS; i++) {
        *inputs[i] = c->parts[i].result;
        Py_INCREF(*inputs[i]);
    }
    int rank = py_set_attention(a, type, &c->options, &c->problem);
    if (rank < 0 || make_joined(c, type) < 0 ||
        py_make_results(a, &c->options, type, rank, &c->problem) < 0) {
        return -1;
    }
    c->layer.attention = py_has_results(a) ? &c->problem : NULL;
    return 0;
}

/* The last product, or what is joined as it is. */
static int
set_output(call *c)
{
    int type;

    if (c->arrays.weight == NULL) {
        c->output = c->joined;
        Py_INCREF(c->output);
        return 0;
    }
    c->arrays.input = c->joined;
    Py_INCREF(c->joined);
    c->linear.activation = ATTN_IDENTITY;
    type = py_set_linear(&c->arrays, &c->linear);
    c->output = type < 0 ? NULL : py_make_product(&c->arrays, type, &c->linear);
    c->layer.output = &c->linear;
    return c->output == NULL ? -1 : 0;
}

/* All arguments, None where they were left out. */
static int
fill_arguments(PyObject *const *given, Py_ssize_t n_given,
               PyObject *arguments[N_LAYER_ARGUMENTS])
{
    if (n_given < W_O || n_given > N_LAYER_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "expected %d to %d arguments, got %zd", W_O,
                     N_LAYER_ARGUMENTS, n_given);
        return -1;
    }
    for (Py_ssize_t i = 0; i < N_LAYER_ARGUMENTS; i++) {
        arguments[i] = i < n_given ? given[i] : Py_None;
    }
    return 0;
}

/* Everything before the computation. */
static int
prepare_layer(PyObject *const *given, Py_ssize_t n_given, call *c)
{
    PyObject *arguments[N_LAYER_ARGUMENTS];
    int64_t n_heads[N_PARTS];
    int type;

    if (fill_arguments(given, n_given, arguments) < 0 ||
        py_parse_options(arguments, N_ARGUMENTS, &c->problem, &c->options) < 0 ||
        parse_heads(arguments[N_HEADS], "num_heads", &n_heads[0]) < 0 ||
        parse_heads(arguments[N_KV_HEADS], "num_kv_heads", &n_heads[1]) < 0 ||
        check_source(arguments) < 0 || convert_layer(arguments, c) < 0) {
        return -1;
    }
    n_heads[2] = n_heads[1];
    for (int i = 0; i < N_PARTS; i++) {
        c->parts[i].heads.interleaved = arguments[INTERLEAVED] == Py_True;
    }
    type = make_room(c) < 0 ? -1 : set_parts(c, n_heads);
    return type < 0 || set_attention(c, type) < 0 ? -1 : set_output(c);
}

/* Tokens start .. end - 1 of a sequence in an array (B, heads, Lk, size). */
static PyArrayObject *
tokens_of(PyArrayObject *array, npy_intp batch, int64_t start, int64_t end)
{
    npy_intp shape[3] = {PyArray_DIM(array, 1), end - start, PyArray_DIM(array, 3)};
    char *data = PyArray_BYTES(array) + batch * PyArray_STRIDE(array, 0) +
                 start * PyArray_STRIDE(array, 2);

    Py_INCREF(PyArray_DESCR(array));
    return (PyArrayObject *)PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(array), 3,
                                                 shape, PyArray_STRIDES(array) + 1,
                                                 data, NPY_ARRAY_WRITEABLE, NULL);
}

/* Brings the new tokens from the copy that attention read to the cache itself. */
static int
keep_tokens(const call *c, const part *s)
{
    const int64_t *starts = PyArray_DATA(c->starts);
    const int64_t *ends = PyArray_DATA(c->attention.kv_lengths);
    int status = 0;

    for (npy_intp b = 0; b < PyArray_DIM(s->kept, 0) && status == 0; b++) {
        PyArrayObject *from = tokens_of(s->result, b, starts[b], ends[b]);
        PyArrayObject *to = tokens_of(s->kept, b, starts[b], ends[b]);
        status = from == NULL || to == NULL ? -1 : PyArray_CopyInto(to, from);
        Py_XDECREF(from);
        Py_XDECREF(to);
    }
    return status;
}

static int
compute_layer(call *c)
{
    double work = py_attention_work(&c->problem) + py_linear_work(&c->linear);
    py_lock lock;

    for (int i = 0; i < N_PARTS; i++) {
        work += py_linear_work(&c->parts[i].linear);
    }
    attn_poll poll = py_give_up_lock(&lock, work);
    int status =
        attn_layer(&c->layer, c->options.tier, c->options.n_threads, poll, &lock);
    if (py_take_lock_back(&lock, status) < 0) {
        return -1;
    }
    for (int i = 0; i < N_PARTS && c->starts != NULL; i++) {
        const part *s = &c->parts[i];
        if (s->kept != NULL && s->kept != s->result && keep_tokens(c, s) < 0) {
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(layer_doc,
             "layer(x, key, value, <as attention>, tier, context, num_heads, "
             "num_kv_heads, W_q, b_q, W_k, b_k, W_v, b_v, W_o=None, b_o=None, "
             "starts=None, q_norm=None, k_norm=None, q_turns=None, k_turns=None, "
             "interleaved=False, /)\n--\n\nAttention with its projections. "
             "With starts, tokens go into key and value, from there up to kv_lengths; "
             "without W_k, key and value are there already. Norms are (weight, bias, "
             "eps, centre), turns those of rotate().");

static PyObject *
layer(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    call c = {.layer = {.output = NULL}}; /* all of it is 0 */
    PyObject *result = NULL;

    (void)module;
    if (prepare_layer(arguments, n_arguments, &c) == 0 && compute_layer(&c) == 0) {
        result = c.attention.weights == NULL
                     ? Py_NewRef((PyObject *)c.output)
                     : PyTuple_Pack(2, c.output, c.attention.weights);
    }
    release_call(&c);
    return result;
}

PyMethodDef py_layer_methods[] = {
    {"layer", PY_FUNCTION(layer), METH_FASTCALL, layer_doc},
    {NULL, NULL, 0, NULL},
};
