/* The matrix of a linear product: as it is, packed or quantised. */
#include "python/weight.h"

#include "python/arrays.h"
#include "python/attributes.h"
#include "python/objects.h"

/* An attribute; NULL without an error if there is none. */
static PyObject *
attribute_of(PyObject *object, py_attribute attribute)
{
    PyObject *found = PyObject_GetAttr(object, py_name_of(attribute));

    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    return found;
}

/* The parts of a PackedWeight, (panels, K, M), or those of a QuantizedWeight, which are more;
 * or NULL without an error. */
static PyObject *
packed_parts(PyObject *object)
{
    PyObject *parts = PyArray_Check(object) ? NULL : attribute_of(object, PY__parts);

    if (parts != NULL && !PyTuple_Check(parts)) {
        Py_CLEAR(parts);
    }
    return parts;
}

static int
view_panels(PyObject *parts, py_weight *w)
{
    PyObject *panels;

    if (!PyArg_ParseTuple(parts, "O!nn", &PyArray_Type, &panels, &w->shape[0],
                          &w->shape[1])) {
        return -1;
    }
    w->array = py_view_of(panels);
    return w->array == NULL ? -1 : 0;
}

/* Takes (K, M, like, codes, bits, zero, group, groups_per_block, rounds_rows, scale, coarse
 * scale, minimum, coarse minimum, values); `like` is an array of the type that codes stand for. */
static int
view_codes(PyObject *parts, py_weight *w)
{
    attn_quantized *q = &w->quantized;
    PyObject *like, *codes, *factors[N_FACTORS];
    int rounds_rows;

    if (!PyArg_ParseTuple(parts, "nnO!O!iinnpOOOOO", &w->shape[0], &w->shape[1],
                          &PyArray_Type, &like, &PyArray_Type, &codes, &q->bits,
                          &q->zero, &q->group, &q->groups_per_block, &rounds_rows,
                          &factors[0], &factors[1], &factors[2], &factors[3],
                          &factors[4])) {
        return -1;
    }
    q->rounds_rows = rounds_rows;
    PyArrayObject *one = py_view_of(like);
    if (one == NULL) {
        return -1;
    }
    w->type = PyArray_TYPE(one);
    Py_DECREF(one);
    w->array = py_view_of(codes);
    for (int i = 0; i < N_FACTORS; i++) {
        if (factors[i] != Py_None) {
            w->factors[i] = py_view_of(factors[i]);
        }
    }
    return w->array == NULL || PyErr_Occurred() ? -1 : 0;
}

/* Describes a packed weight of the parts that Python gives. */
static int
view_parts(PyObject *parts, py_weight *w)
{
    int status;

    w->packed = true;
    w->is_quantized = PyTuple_GET_SIZE(parts) != 3;
    status = w->is_quantized ? view_codes(parts, w) : view_panels(parts, w);
    if (status < 0 && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_SetString(PyExc_TypeError, "weight: expected the parts of a matrix");
    }
    return status;
}

/* Parts, owned, and what they are in C. */
typedef struct {
    PyObject *parts;
    py_weight weight;
} prepared;

static const char prepared_name[] = "attnpy.prepared";

/* Finds what prepare() made of an object, if that is of these parts. */
static bool
find_prepared(PyObject *object, PyObject *parts, py_weight *w)
{
    PyObject *capsule = attribute_of(object, PY__prepared);
    const prepared *p = capsule == NULL || !PyCapsule_IsValid(capsule, prepared_name)
                            ? NULL
                            : PyCapsule_GetPointer(capsule, prepared_name);

    if (p == NULL || p->parts != parts) {
        Py_XDECREF(capsule);
        return false;
    }
    *w = p->weight;
    w->owner = capsule;
    return true;
}

int
py_as_weight(PyObject *object, const char *name, py_weight *w)
{
    PyObject *parts = packed_parts(object);
    int status = 0;

    if (parts == NULL) {
        return PyErr_Occurred() ? -1 : py_as_array(object, name, &w->array);
    }
    if (!find_prepared(object, parts, w)) {
        status = PyErr_Occurred() ? -1 : view_parts(parts, w);
    }
    Py_DECREF(parts);
    return status;
}

void
py_release_weight(py_weight *w)
{
    if (w->owner != NULL) {
        w->array = NULL;
        memset(w->factors, 0, sizeof w->factors);
        Py_CLEAR(w->owner);
    }
    Py_CLEAR(w->array);
    for (int i = 0; i < N_FACTORS; i++) {
        Py_CLEAR(w->factors[i]);
    }
}

int
py_weight_type(const py_weight *w)
{
    return w->is_quantized ? w->type : PyArray_TYPE(w->array);
}

bool
py_is_matrix(const py_weight *w)
{
    return w->packed || PyArray_NDIM(w->array) == 2;
}

npy_intp
py_weight_rows(const py_weight *w)
{
    if (w->packed) {
        return w->shape[0];
    }
    return PyArray_NDIM(w->array) == 0 ? 0 : PyArray_DIM(w->array, 0);
}

npy_intp
py_weight_columns(const py_weight *w)
{
    return w->packed ? w->shape[1] : py_axis_length(w->array, 0);
}

/* Are the panels as long as the core expects them to be? */
static bool
are_panels(const py_weight *w, attn_dtype dtype)
{
    npy_intp unit = ATTN_PANEL_COLUMNS, terms = attn_packed_terms(dtype), size;

    return w->shape[0] >= 0 && w->shape[0] <= ATTN_MAX_DIM && w->shape[1] >= 0 &&
           w->shape[1] <= ATTN_MAX_DIM &&
           !__builtin_mul_overflow((w->shape[0] + terms - 1) / terms * terms,
                                   (w->shape[1] + unit - 1) / unit * unit, &size) &&
           PyArray_ISCARRAY_RO(w->array) && PyArray_NDIM(w->array) == 1 &&
           PyArray_DIM(w->array, 0) == size;
}

/* Is that a line of so many bytes-wide numbers of a type? */
static bool
is_line(PyArrayObject *array, int type, npy_intp size)
{
    return array != NULL && PyArray_TYPE(array) == type && PyArray_ISCARRAY_RO(array) &&
           PyArray_NDIM(array) == 1 && PyArray_DIM(array, 0) == size;
}

/* Describes scales or minimums; false unless they are as the core expects them, for so many
 * groups and blocks of groups. */
static bool
read_factors(PyArrayObject *fine, PyArrayObject *coarse, npy_intp n_groups,
             npy_intp n_blocks, attn_factors *f)
{
    npy_intp n = n_groups * ATTN_PANEL_COLUMNS;
    bool half = is_line(fine, NPY_HALF, n), power = is_line(fine, NPY_UBYTE, n);

    if (coarse != NULL ? !is_line(fine, NPY_BYTE, n) ||
                             !is_line(coarse, NPY_HALF, n_blocks * ATTN_PANEL_COLUMNS)
                       : !half && !power && !is_line(fine, NPY_FLOAT, n)) {
        return false;
    }
    f->fine = PyArray_BYTES(fine);
    f->dtype = half ? ATTN_F16 : power ? ATTN_I8 : ATTN_F32;
    f->coarse = coarse == NULL ? NULL : PyArray_DATA(coarse);
    return true;
}

static bool
is_size(npy_intp n)
{
    return n >= 0 && n <= ATTN_MAX_DIM;
}

/* Are groups such as the core takes? */
static bool
are_groups(const attn_quantized *q)
{
    bool narrow = q->bits >= 4 && q->bits <= 6;
    ptrdiff_t most = narrow ? ATTN_BLOCK : ATTN_MAX_GROUP;
    ptrdiff_t unit = q->group > ATTN_BLOCK ? ATTN_BLOCK : ATTN_LEAST_GROUP;

    return (narrow ? q->zero >= 0 && q->zero < 1 << q->bits
                   : q->bits == 8 && q->zero == 0) &&
           q->group > 0 && q->group <= most && q->group % unit == 0 &&
           q->group % attn_code_unit(q->bits) == 0 && q->groups_per_block > 0 &&
           is_size(q->groups_per_block);
}

/* Reads what codes stand for, if not for numbers; false unless they are as the core expects. */
static bool
read_values(PyArrayObject *values, attn_quantized *q)
{
    q->values = NULL;
    if (values == NULL) {
        return true;
    }
    q->values = PyArray_DATA(values);
    return is_line(values, NPY_BYTE, ATTN_CODE_VALUES) && q->bits == 4 && q->zero == 0;
}

/* Reads the codes and what they are multiplied by; false unless all are as the core expects
 * them. */
static bool
read_codes(py_weight *w)
{
    attn_quantized *q = &w->quantized;
    npy_intp n_rows = w->shape[0], n_bytes;

    if (!is_size(n_rows) || !is_size(w->shape[1]) || !are_groups(q) ||
        !read_values(w->factors[4], q)) {
        return false;
    }
    npy_intp n_panels = attn_divide_up(w->shape[1], ATTN_PANEL_COLUMNS);
    npy_intp n_groups = attn_divide_up(n_rows, q->group);
    npy_intp n_blocks = attn_divide_up(n_groups, q->groups_per_block);
    npy_intp n_eighths = attn_code_rows(n_rows, q->bits) * ATTN_PANEL_COLUMNS / 8;
    if (__builtin_mul_overflow(n_eighths * q->bits, n_panels, &n_bytes) ||
        !is_line(w->array, NPY_UBYTE, n_bytes) ||
        !read_factors(w->factors[0], w->factors[1], n_panels * n_groups,
                      n_panels * n_blocks, &q->scale)) {
        return false;
    }
    q->codes = PyArray_BYTES(w->array);
    q->minimum = (attn_factors){.fine = NULL};
    return w->factors[2] == NULL ||
           read_factors(w->factors[2], w->factors[3], n_panels * n_groups,
                        n_panels * n_blocks, &q->minimum);
}

int
py_cast_weight(py_weight *w, int type, attn_dtype *dtype)
{
    if (!w->packed) {
        return py_cast_operand(&w->array, type, dtype);
    }
    if (w->is_quantized) {
        *dtype = py_dtype_of(w->type);
        if (w->owner == NULL && !read_codes(w)) {
            PyErr_SetString(PyExc_ValueError,
                            "weight: expected codes as quantize() makes");
            return -1;
        }
        return 0;
    }
    if (!py_storage_of(PyArray_TYPE(w->array), dtype) || !are_panels(w, *dtype)) {
        PyErr_SetString(PyExc_ValueError, "weight: expected panels as pack() makes");
        return -1;
    }
    if (attn_storage_of(*dtype)->arithmetic !=
        attn_storage_of(py_dtype_of(type))->arithmetic) {
        return py_fail_dtype(
            w->array, "weight",
            "float64 or an array, for packed ones cannot be converted");
    }
    return 0;
}

void
py_describe_weight(const py_weight *w, attn_linear_problem *l)
{
    attn_array *to = &l->weight;

    l->packed = w->packed;
    l->quantized = w->is_quantized ? &w->quantized : NULL;
    to->data = w->is_quantized ? NULL : PyArray_BYTES(w->array);
    if (!w->packed) {
        to->column_stride = py_axis_stride(w->array, 0);
        to->row_stride = py_axis_stride(w->array, 1);
        return;
    }
    to->column_stride = attn_storage_of(to->dtype)->bytes;
    to->row_stride =
        ATTN_PANEL_COLUMNS * attn_packed_terms(to->dtype) * to->column_stride;
}

static void
free_prepared(prepared *p)
{
    py_release_weight(&p->weight);
    Py_XDECREF(p->parts);
    PyMem_Free(p);
}

static void
free_capsule(PyObject *capsule)
{
    free_prepared(PyCapsule_GetPointer(capsule, prepared_name));
}

PyDoc_STRVAR(prepare_doc,
             "prepare(parts, /)\n--\n\nThe parts of a PackedWeight or QuantizedWeight, "
             "viewed and checked, for its attribute _prepared.");

static PyObject *
prepare(PyObject *module, PyObject *parts)
{
    attn_dtype unused;
    PyObject *capsule;
    prepared *p;

    (void)module;
    if (!PyTuple_Check(parts)) {
        PyErr_SetString(PyExc_TypeError, "parts: expected a tuple");
        return NULL;
    }
    p = PyMem_Calloc(1, sizeof *p);
    if (p == NULL) {
        return PyErr_NoMemory();
    }
    p->parts = Py_NewRef(parts);
    capsule =
        view_parts(parts, &p->weight) < 0 ||
                py_cast_weight(&p->weight, py_weight_type(&p->weight), &unused) < 0
            ? NULL
            : PyCapsule_New(p, prepared_name, free_capsule);
    if (capsule == NULL) {
        free_prepared(p);
    }
    return capsule;
}

PyMethodDef py_weight_methods[] = {
    {"prepare", prepare, METH_O, prepare_doc},
    {NULL, NULL, 0, NULL},
};
