/* embed(). The tables of a model's embeddings, and which of their rows are added up. */
#include "python/embed.h"

#include "core/embed.h"
#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/settings.h"
#include "python/weight.h"

/* The arrays of a call, owned; NULL where there is none. */
typedef struct {
    int n;
    py_weight tables[ATTN_MAX_TABLES]; /* quantised ones transposed */
    PyArrayObject *numbers[ATTN_MAX_TABLES];
    PyArrayObject *output;
} embed_call;

static void
release_call(embed_call *c)
{
    for (int i = 0; i < c->n; i++) {
        py_release_weight(&c->tables[i]);
        Py_CLEAR(c->numbers[i]);
    }
    Py_CLEAR(c->output);
}

static int
convert_arguments(PyObject *const *tables, PyObject *const *numbers, embed_call *c)
{
    for (int i = 0; i < c->n; i++) {
        if (numbers[i] == Py_None) {
            PyErr_SetString(PyExc_TypeError, "numbers: expected integers, got None");
            return -1;
        }
        if (py_as_weight(tables[i], "tables", &c->tables[i]) < 0 ||
            py_copy_integers(numbers[i], "numbers", &c->numbers[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Describes an array (V, E), whose memory is read as it is. */
static int
set_rows(PyArrayObject *array, const attn_embed_problem *p, attn_table *table)
{
    if (PyArray_NDIM(array) != 2 || !PyArray_ISCARRAY_RO(array)) {
        return py_fail_shape(array, "tables", "(V, E), contiguous", 0, 0);
    }
    if (!py_storage_of(PyArray_TYPE(array), &table->dtype) ||
        attn_storage_of(table->dtype)->arithmetic != p->arithmetic) {
        return py_fail_dtype(array, "tables", "what is computed in");
    }
    table->rows = PyArray_BYTES(array);
    return 0;
}

/* Describes one of the tables, and its numbers, which have the last axes of the first ones. */
static int
set_table(embed_call *c, int i, attn_embed_problem *p)
{
    py_weight *w = &c->tables[i];
    PyArrayObject *numbers = c->numbers[i];
    attn_table *table = &p->tables[i];
    int more = PyArray_NDIM(c->numbers[0]) - PyArray_NDIM(numbers);

    if (w->packed ? !w->is_quantized || i > 0 : set_rows(w->array, p, table) < 0) {
        return PyErr_Occurred() ? -1
                                : py_fail_dtype(w->array, "tables", "an array (V, E)");
    }
    if (w->packed) {
        if (py_cast_weight(w, w->type, &table->dtype) < 0) {
            return -1;
        }
        table->dtype = ATTN_F32;
        table->transposed = &w->quantized;
    }
    npy_intp n_rows = w->packed ? py_weight_columns(w) : py_weight_rows(w);
    if ((w->packed ? py_weight_rows(w) : py_weight_columns(w)) != p->n_columns) {
        return py_fail_shape(w->array, "tables", "(V, %zd)", p->n_columns, 0);
    }
    if (more < 0 ||
        !PyArray_CompareLists(PyArray_DIMS(c->numbers[0]) + more, PyArray_DIMS(numbers),
                              PyArray_NDIM(numbers))) {
        return py_fail_shape(numbers, "numbers", "the last axes of the first ones", 0,
                             0);
    }
    table->numbers = PyArray_DATA(numbers);
    table->n_numbers = PyArray_SIZE(numbers);
    for (npy_intp j = 0; j < table->n_numbers; j++) {
        if (py_check_range(table->numbers[j], "numbers", 0, n_rows - 1) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Describes the tables, and makes the output. */
static int
set_problem(embed_call *c, attn_embed_problem *p)
{
    const py_weight *first = &c->tables[0];
    int n_axes = PyArray_NDIM(c->numbers[0]);
    int type = first->is_quantized ? NPY_FLOAT : py_real_type(py_weight_type(first));
    npy_intp shape[ATTN_MAX_AXES];

    if (n_axes == ATTN_MAX_AXES) {
        return py_fail_shape(c->numbers[0], "numbers", "fewer axes", 0, 0);
    }
    memcpy(shape, PyArray_DIMS(c->numbers[0]), (size_t)n_axes * sizeof *shape);
    shape[n_axes] = first->packed ? py_weight_rows(first) : py_weight_columns(first);
    p->n_rows = PyArray_SIZE(c->numbers[0]);
    p->n_columns = shape[n_axes];
    p->n_tables = c->n;
    p->arithmetic = py_dtype_of(type);
    for (int i = 0; i < c->n; i++) {
        if (set_table(c, i, p) < 0) {
            return -1;
        }
    }
    c->output = py_new_array(n_axes + 1, shape, type);
    p->output = c->output == NULL ? NULL : PyArray_DATA(c->output);
    return c->output == NULL ? -1 : 0;
}

static int
compute(const attn_embed_problem *p, attn_call *call)
{
    py_lock lock;

    py_give_up_lock(&lock, attn_embed_work(p), call);
    attn_embed(p, call);
    return py_take_lock_back(&lock, 0, call);
}

PyDoc_STRVAR(
    embed_doc,
    "embed(tables, numbers, factor, num_threads, /)\n--\n\nRows (..., E) of the "
    "first table (V, E) times a factor, plus rows of the others. Of each table "
    "there are integers, which rows; the others' have the last axes of the "
    "first's. The first may be a QuantizedWeight (E, V).");

static PyObject *
embed(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    enum { TABLES, NUMBERS, FACTOR, THREADS, N_ARGUMENTS };
    embed_call c = {0};
    attn_embed_problem p = {0};
    attn_call call = {0};
    PyObject *result = NULL;

    (void)module;
    if (py_check_count(n_arguments, N_ARGUMENTS, N_ARGUMENTS) < 0 ||
        py_parse_number(arguments[FACTOR], "factor", &p.factor) < 0 ||
        py_threads_or_default(arguments[THREADS], &call.n_threads) < 0 ||
        py_parse_tier(Py_None, &call.tier) < 0) {
        return NULL;
    }
    PyObject *tables = arguments[TABLES], *numbers = arguments[NUMBERS];
    if (!PyTuple_Check(tables) || !PyTuple_Check(numbers) ||
        PyTuple_GET_SIZE(tables) != PyTuple_GET_SIZE(numbers) ||
        PyTuple_GET_SIZE(tables) < 1 || PyTuple_GET_SIZE(tables) > ATTN_MAX_TABLES) {
        PyErr_SetString(PyExc_TypeError,
                        "tables: expected a tuple of one to three, and "
                        "as many numbers");
        return NULL;
    }
    c.n = (int)PyTuple_GET_SIZE(tables);
    if (convert_arguments(&PyTuple_GET_ITEM(tables, 0), &PyTuple_GET_ITEM(numbers, 0),
                          &c) == 0 &&
        set_problem(&c, &p) == 0 && compute(&p, &call) == 0) {
        result = Py_NewRef((PyObject *)c.output);
    }
    release_call(&c);
    return result;
}

PyMethodDef py_embed_methods[] = {
    {"embed", PY_FUNCTION(embed), METH_FASTCALL, embed_doc},
    {NULL, NULL, 0, NULL},
};
