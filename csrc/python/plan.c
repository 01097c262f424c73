/* Plan: a call prepared once and run many times. */
#include "python/plan.h"

#include "python/arrays.h"
#include "python/attention.h"
#include "python/explain.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/packed.h"
#include "python/pages.h"

#include <stdatomic.h>
#include <structmember.h>

/* The arrays of a plan that the user can reach; the first ones were given. */
enum { N_GIVEN = 7, OUTPUT = 10, WEIGHTS, LSE, N_ARRAYS };
static const char *const names[N_ARRAYS] = {
    "query",     "key",         "value",    "mask",       "bias",
    "key_scale", "value_scale", "q_offset", "kv_lengths", "page_table",
    "output",    "weights",     "lse"};

/* A call prepared once, to run many times on the current contents of its arrays. */
typedef struct {
    PyObject_HEAD py_attention_arrays a;
    PyArrayObject *q_offset, *kv_lengths; /* what the core reads: valid copies of a's */
    PyObject *bound[N_ARRAYS]; /* the user's own: given, or handed out; owned or NULL */
    attn_problem p;
    py_options o;
    PyObject *result; /* the result of each call; NULL until the plan is complete */
    atomic_bool busy; /* a call is under way */
} plan;

/* Ours, in the order of the user's. */
static void
list_arrays(const plan *self, PyArrayObject *arrays[N_ARRAYS])
{
    const py_attention_arrays *a = &self->a;
    PyArrayObject *const all[N_ARRAYS] = {
        a->query,     a->key,         a->value,    a->mask,       a->bias,
        a->key_scale, a->value_scale, a->q_offset, a->kv_lengths, a->page_table,
        a->output,    a->weights,     a->lse};

    memcpy(arrays, all, sizeof all);
}

/* Takes the arguments that each call reads again: the arrays themselves must be read,
 * not copies. */
static int
bind_arguments(plan *self, PyObject *const *arguments)
{
    PyObject *const *options = py_items(arguments[3], "options", N_OPTIONS);
    PyArrayObject *arrays[N_ARRAYS];

    if (options == NULL) {
        return -1;
    }
    PyObject *const given[N_GIVEN] = {
        arguments[0],  arguments[1],       arguments[2],        options[MASK],
        options[BIAS], options[KEY_SCALE], options[VALUE_SCALE]};
    list_arrays(self, arrays);
    for (int i = 0; i < N_GIVEN; i++) {
        if (arrays[i] == NULL) {
            continue;
        }
        if (!py_is_same_array(given[i], arrays[i])) {
            PyErr_Format(
                PyExc_TypeError,
                "%s: expected an array that can be read in place, aligned and in the "
                "dtype of the computation, got one that must be converted",
                names[i]);
            return -1;
        }
        self->bound[i] = Py_NewRef(given[i]);
    }
    return 0;
}

/* Hands out what the plan has made. */
static int
hand_out_results(plan *self)
{
    py_attention_arrays *a = &self->a;
    PyArrayObject **const made[] = {&a->q_offset, &a->kv_lengths, &a->page_table,
                                    &a->output,   &a->weights,    &a->lse};

    for (int i = N_GIVEN; i < N_ARRAYS; i++) {
        PyArrayObject **array = made[i - N_GIVEN];
        if (*array == NULL) {
            continue;
        }
        self->bound[i] =
            i == OUTPUT && a->out != NULL ? Py_NewRef(self->o.out) : py_hand_out(array);
        if (self->bound[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Refuses to run on arrays that were resized, reshaped or retyped in place. */
static int
check_places(const plan *self)
{
    PyArrayObject *arrays[N_ARRAYS];

    list_arrays(self, arrays);
    for (int i = 0; i < N_ARRAYS; i++) {
        if (arrays[i] != NULL && !py_is_same_array(self->bound[i], arrays[i])) {
            PyErr_Format(PyExc_RuntimeError,
                         "Plan: expected %s as it was when the plan was made, got it "
                         "resized, reshaped or retyped in place",
                         names[i]);
            return -1;
        }
    }
    return 0;
}

/* Makes the copy of q_offset or kv_lengths that the core reads. */
static int
shadow_numbers(PyArrayObject *numbers, PyArrayObject **copy, attn_array *described)
{
    if (numbers == NULL) {
        return 0;
    }
    *copy = numbers;
    Py_INCREF(numbers);
    if (py_copy_as(copy, NPY_INT64) < 0) {
        return -1;
    }
    described->data = PyArray_BYTES(*copy);
    return 0;
}

static int
make_ready(plan *self, PyObject *tuple)
{
    PyObject *const *arguments = &PyTuple_GET_ITEM(tuple, 0);

    if (py_prepare(arguments, PyTuple_GET_SIZE(tuple), &self->a, &self->p, &self->o) <
            0 ||
        bind_arguments(self, arguments) < 0) {
        return -1;
    }
    if (self->a.out != NULL && self->a.out != self->a.output) {
        PyErr_SetString(PyExc_ValueError,
                        "out: expected an aligned array that overlaps no input");
        return -1;
    }
    if (shadow_numbers(self->a.q_offset, &self->q_offset, &self->p.q_offset) < 0 ||
        shadow_numbers(self->a.kv_lengths, &self->kv_lengths, &self->p.kv_lengths) <
            0 ||
        hand_out_results(self) < 0) {
        return -1;
    }
    self->o.out = Py_None; /* borrowed till now */
    self->result = py_pack(self->bound[OUTPUT], self->bound[WEIGHTS], self->bound[LSE]);
    return self->result == NULL ? -1 : 0;
}

static PyObject *
plan_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    plan *self;

    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Plan: expected no keywords");
        return NULL;
    }
    self = (plan *)type->tp_alloc(type, 0); /* zeroed */
    if (self != NULL && make_ready(self, arguments) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int
plan_traverse(PyObject *object, visitproc visit, void *arg)
{
    plan *self = (plan *)object;
    py_attention_arrays *a = &self->a;
    PyArrayObject *const arrays[] = {
        a->query,      a->key,          a->value,      a->mask, a->bias,
        a->sinks,      a->output,       a->q_offset,   a->lse,  a->weights,
        a->kv_lengths, a->query_starts, a->key_starts, a->out,  a->page_table,
        a->key_scale,  a->value_scale};

    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->result);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        Py_VISIT(arrays[i]);
    }
    for (int i = 0; i < N_ARRAYS; i++) {
        Py_VISIT(self->bound[i]);
    }
    return 0;
}

/* Leaves a plan that is not complete, as it was before make_ready. */
static int
plan_clear(PyObject *object)
{
    plan *self = (plan *)object;

    Py_CLEAR(self->result);
    py_release_attention(&self->a);
    for (int i = 0; i < N_ARRAYS; i++) {
        Py_CLEAR(self->bound[i]);
    }
    return 0;
}

static void
plan_dealloc(PyObject *object)
{
    plan *self = (plan *)object;
    PyTypeObject *type = Py_TYPE(object);

    PyObject_GC_UnTrack(object);
    (void)plan_clear(object);
    Py_CLEAR(self->q_offset);
    Py_CLEAR(self->kv_lengths);
    type->tp_free(object);
    Py_DECREF(type);
}

/* Copies numbers for the core, each in its range. */
static int
update_numbers(PyArrayObject *from, PyArrayObject *to, const char *name, int64_t low,
               int64_t high)
{
    if (from == NULL) {
        return 0;
    }
    const int64_t *numbers = PyArray_DATA(from);
    int64_t *copy = PyArray_DATA(to);
    for (npy_intp i = 0; i < PyArray_SIZE(to); i++) {
        int64_t number = ((const volatile int64_t *)numbers)[i]; /* read once */
        if (py_check_range(number, name, low, high) < 0) {
            return -1;
        }
        copy[i] = number;
    }
    return 0;
}

/* Takes what the arrays hold now. */
static int
read_arrays(plan *self)
{
    if (check_places(self) < 0 ||
        update_numbers(self->a.q_offset, self->q_offset, "q_offset", INT64_MIN,
                       INT64_MAX) < 0 ||
        update_numbers(self->a.kv_lengths, self->kv_lengths, "kv_lengths", 0,
                       self->p.n_keys) < 0) {
        return -1;
    }
    return py_check_lengths(&self->p) < 0 ? -1 : py_update_pages(&self->a, &self->p);
}

/* Computes from what the arrays hold. */
static int
run_plan(plan *self)
{
    PyArrayObject *weights = self->a.weights;

    if (read_arrays(self) < 0) {
        return -1;
    }
    if (weights != NULL) {
        memset(PyArray_DATA(weights), 0, (size_t)PyArray_NBYTES(weights));
    }
    return py_compute(&self->a, &self->p, &self->o);
}

/* One call at a time, of a complete plan. */
static int
begin_use(plan *self)
{
    if (self->result == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "Plan: expected a complete plan, got one "
                                            "that is being made");
        return -1;
    }
    if (atomic_exchange(&self->busy, true)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "Plan: expected one call at a time, got a second one");
        return -1;
    }
    return 0;
}

static PyObject *
plan_call(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    plan *self = (plan *)object;
    int status;

    if (PyTuple_GET_SIZE(arguments) != 0 ||
        (keywords != NULL && PyDict_GET_SIZE(keywords) != 0)) {
        PyErr_SetString(PyExc_TypeError, "Plan: expected a call without arguments");
        return NULL;
    }
    if (begin_use(self) < 0) {
        return NULL;
    }
    status = run_plan(self);
    atomic_store(&self->busy, false);
    return status < 0 ? NULL : Py_NewRef(self->result);
}

PyDoc_STRVAR(plan_explain_doc,
             "_explain($self, /)\n--\n\nAs explain(), of the next call.");

static PyObject *
plan_explain(PyObject *object, PyObject *ignored)
{
    plan *self = (plan *)object;
    PyObject *result = NULL;

    (void)ignored;
    if (begin_use(self) < 0) {
        return NULL;
    }
    if (read_arrays(self) == 0) {
        result = py_explain(&self->p, &self->o);
    }
    atomic_store(&self->busy, false);
    return result;
}

#define PLAN_ARRAY(name, i) {name, T_OBJECT, offsetof(plan, bound[i]), READONLY, NULL}

static PyMemberDef plan_members[] = {
    PLAN_ARRAY("query", 0),       PLAN_ARRAY("key", 1),
    PLAN_ARRAY("value", 2),       PLAN_ARRAY("mask", 3),
    PLAN_ARRAY("bias", 4),        PLAN_ARRAY("key_scale", 5),
    PLAN_ARRAY("value_scale", 6), PLAN_ARRAY("q_offset", 7),
    PLAN_ARRAY("kv_lengths", 8),  PLAN_ARRAY("page_table", 9),
    PLAN_ARRAY("output", 10),     PLAN_ARRAY("weights", 11),
    PLAN_ARRAY("lse", 12),        {NULL, 0, 0, 0, NULL},
};

/* __class_getitem__ is for annotations only, as in the package's stub: Plan[result of a
 * call]. */
static PyMethodDef plan_methods[] = {
    {"_explain", plan_explain, METH_NOARGS, plan_explain_doc},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot plan_slots[] = {
    {Py_tp_doc, (void *)"As attnpy.Plan, by position; see attention."},
    {Py_tp_new, (void *)plan_new},
    {Py_tp_dealloc, (void *)plan_dealloc},
    {Py_tp_traverse, (void *)plan_traverse},
    {Py_tp_clear, (void *)plan_clear},
    {Py_tp_call, (void *)plan_call},
    {Py_tp_members, plan_members},
    {Py_tp_methods, plan_methods},
    {0, NULL},
};

PyType_Spec py_plan_spec = {
    .name = "attnpy._attnpy.Plan",
    .basicsize = sizeof(plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = plan_slots,
};
