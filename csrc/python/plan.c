/* Plan: a call made ready once and run many times. */
#include "python/plan.h"

#include "python/attention.h"
#include "python/numbers.h"

#include <stdatomic.h>
#include <structmember.h>

/* A call made ready once, to be run many times on what its arrays then hold. */
typedef struct {
    PyObject_HEAD py_attention_arrays a;
    PyArrayObject *q_offset, *kv_lengths; /* what the core reads: valid copies of a's */
    attn_problem p;
    py_options o;
    PyObject *result; /* what each call returns; NULL until the plan is complete */
    atomic_bool busy; /* a call is under way */
} plan;

/* An argument that each call is to read anew must be the array itself, not a copy. */
static int
check_bound(PyObject *argument, PyArrayObject *array, const char *name)
{
    if (argument == Py_None || argument == (PyObject *)array) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError,
                 "%s: expected an array that can be read where it lies, aligned and in "
                 "the dtype of the computation, got what had to be converted",
                 name);
    return -1;
}

/* Makes the copy of q_offset or kv_lengths that the core reads. */
static int
shadow_numbers(PyArrayObject *numbers, PyArrayObject **copy, attn_array *described)
{
    if (numbers == NULL) {
        return 0;
    }
    *copy = (PyArrayObject *)PyArray_NewCopy(numbers, NPY_CORDER);
    if (*copy == NULL) {
        return -1;
    }
    described->data = PyArray_BYTES(*copy);
    return 0;
}

/* Checks that each call can read the arrays that were given, and write `out`. */
static int
check_arrays(const plan *self, PyObject *const *arguments)
{
    PyObject *const *options = py_items(arguments[3], "options", N_OPTIONS);

    if (options == NULL || check_bound(arguments[0], self->a.query, "query") < 0 ||
        check_bound(arguments[1], self->a.key, "key") < 0 ||
        check_bound(arguments[2], self->a.value, "value") < 0 ||
        check_bound(options[MASK], self->a.mask, "mask") < 0 ||
        check_bound(options[BIAS], self->a.bias, "bias") < 0) {
        return -1;
    }
    if (self->o.out != Py_None && self->o.out != (PyObject *)self->a.output) {
        PyErr_SetString(PyExc_ValueError,
                        "out: expected an aligned array that overlaps no input");
        return -1;
    }
    return 0;
}

static int
make_ready(plan *self, PyObject *tuple)
{
    PyObject *const *arguments = &PyTuple_GET_ITEM(tuple, 0);

    if (py_prepare(arguments, PyTuple_GET_SIZE(tuple), &self->a, &self->p, &self->o) <
            0 ||
        check_arrays(self, arguments) < 0 ||
        shadow_numbers(self->a.q_offset, &self->q_offset, &self->p.q_offset) < 0 ||
        shadow_numbers(self->a.kv_lengths, &self->kv_lengths, &self->p.kv_lengths) <
            0) {
        return -1;
    }
    self->o.out = Py_None; /* borrowed till now; the output is ours */
    self->result = py_pack_results(&self->a, Py_None);
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

    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->result);
    return 0;
}

static void
plan_dealloc(PyObject *object)
{
    plan *self = (plan *)object;
    PyTypeObject *type = Py_TYPE(object);

    PyObject_GC_UnTrack(object);
    py_release_attention(&self->a);
    Py_CLEAR(self->q_offset);
    Py_CLEAR(self->kv_lengths);
    Py_CLEAR(self->result);
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

/* Computes from what the arrays hold. */
static int
run_plan(plan *self)
{
    PyArrayObject *weights = self->a.weights;

    if (weights != NULL) {
        memset(PyArray_DATA(weights), 0, (size_t)PyArray_NBYTES(weights));
    }
    if (update_numbers(self->a.q_offset, self->q_offset, "q_offset", INT64_MIN,
                       INT64_MAX) < 0 ||
        update_numbers(self->a.kv_lengths, self->kv_lengths, "kv_lengths", 0,
                       self->p.n_keys) < 0) {
        return -1;
    }
    return py_compute(&self->a, &self->p, &self->o);
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
    if (atomic_exchange(&self->busy, true)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "Plan: expected one call at a time, got a second one");
        return NULL;
    }
    status = run_plan(self);
    atomic_store(&self->busy, false);
    return status < 0 ? NULL : Py_NewRef(self->result);
}

#define PLAN_ARRAY(name) {#name, T_OBJECT, offsetof(plan, a.name), READONLY, NULL}

static PyMemberDef plan_members[] = {
    PLAN_ARRAY(query),      PLAN_ARRAY(key),       PLAN_ARRAY(value),
    PLAN_ARRAY(mask),       PLAN_ARRAY(bias),      PLAN_ARRAY(q_offset),
    PLAN_ARRAY(kv_lengths), PLAN_ARRAY(output),    PLAN_ARRAY(weights),
    PLAN_ARRAY(lse),        {NULL, 0, 0, 0, NULL},
};

static PyType_Slot plan_slots[] = {
    {Py_tp_doc, (void *)"As attnpy.Plan, by position; see attention."},
    {Py_tp_new, (void *)plan_new},
    {Py_tp_dealloc, (void *)plan_dealloc},
    {Py_tp_traverse, (void *)plan_traverse},
    {Py_tp_call, (void *)plan_call},
    {Py_tp_members, plan_members},
    {0, NULL},
};

PyType_Spec py_plan_spec = {
    .name = "attnpy._attnpy.Plan",
    .basicsize = sizeof(plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = plan_slots,
};
