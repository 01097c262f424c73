/* Threads and instruction sets: what belongs to the process, and the environment's say in
 * it. */
#include "python/settings.h"

#include "core/pool.h"
#include "core/quota.h"
#include "core/tasks.h"
#include "python/numbers.h"

#define MAX_SPIN_TIME 1000000 /* microseconds */
#define EXPORTED __attribute__((visibility("default")))

/* The tier that calls use unless they name one; set once, on import. And whether they use
 * its portable form. */
static const attn_tier *default_tier, *portable_tier;
static atomic_bool portable;

const attn_tier *
py_current_tier(void)
{
    return atomic_load(&portable) ? portable_tier : default_tier;
}

int
py_parse_tier(PyObject *object, const attn_tier **tier)
{
    const char *name;

    *tier = py_current_tier();
    if (object == Py_None) {
        return 0;
    }
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "tier: expected a name or None, got %s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    name = PyUnicode_AsUTF8(object);
    if (name == NULL) {
        return -1;
    }
    *tier = attn_tier_named(name);
    if (*tier == NULL) {
        PyErr_Format(PyExc_ValueError, "tier: expected one that this CPU has, got %R",
                     object);
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(set_num_threads_doc,
             "set_num_threads(num_threads, /)\n--\n\nAs attnpy.set_num_threads.");

static PyObject *
set_num_threads(PyObject *module, PyObject *argument)
{
    int n_threads;

    (void)module;
    if (py_parse_threads(argument, &n_threads) < 0) {
        return NULL;
    }
    attn_set_num_threads(n_threads);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(get_num_threads_doc,
             "get_num_threads()\n--\n\nAs attnpy.get_num_threads.");

static PyObject *
get_num_threads(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(attn_get_num_threads());
}

PyDoc_STRVAR(spin_time_doc, "spin_time(microseconds, /)\n--\n\nSet it unless that is "
                            "None, as attnpy.set_spin_time; return it.");

static PyObject *
spin_time(PyObject *module, PyObject *argument)
{
    int64_t n;
    int overflow;

    (void)module;
    if (argument != Py_None) {
        if (py_parse_integer(argument, "microseconds", &n, &overflow) < 0) {
            return NULL;
        }
        if (overflow != 0 || n < 0 || n > MAX_SPIN_TIME) {
            return PyErr_Format(PyExc_ValueError,
                                "microseconds: expected 0 to %d, got %R", MAX_SPIN_TIME,
                                argument);
        }
        attn_set_spin_time(1000 * n);
    }
    return PyLong_FromLongLong(attn_get_spin_time() / 1000);
}

PyDoc_STRVAR(set_portable_doc,
             "set_portable(portable, /)\n--\n\nAs attnpy.set_portable.");

static PyObject *
set_portable(PyObject *module, PyObject *argument)
{
    int wanted = py_parse_flag(argument, "portable");

    (void)module;
    if (wanted < 0) {
        return NULL;
    }
    atomic_store(&portable, wanted > 0);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(get_portable_doc, "get_portable()\n--\n\nAs attnpy.get_portable.");

static PyObject *
get_portable(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyBool_FromLong(atomic_load(&portable));
}

/* The names of the tiers that this CPU has, best first. */
static PyObject *
tier_names(void)
{
    PyObject *names = PyList_New(0);
    PyObject *result;
    const attn_tier *tier;

    for (int i = 0; names != NULL && (tier = attn_tier_at(i)) != NULL; i++) {
        PyObject *name = PyUnicode_FromString(tier->name);
        if (name == NULL || PyList_Append(names, name) < 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    if (names == NULL) {
        return NULL;
    }
    result = PyList_AsTuple(names);
    Py_DECREF(names);
    return result;
}

PyDoc_STRVAR(config_doc, "config()\n--\n\nWhat attnpy.show_config shows of the core.");

static PyObject *
config(PyObject *module, PyObject *unused)
{
    PyObject *names = tier_names();

    (void)module;
    (void)unused;
    if (names == NULL) {
        return NULL;
    }
    return Py_BuildValue("{s:s, s:N, s:i, s:i}", "tier", py_current_tier()->name,
                         "tiers", names, "threads", attn_get_num_threads(), "cpus",
                         attn_cpu_limit());
}

/* For threadpoolctl, which finds these two by name in the extension's file. */
EXPORTED int attnpy_get_num_threads(void);
EXPORTED void attnpy_set_num_threads(int n_threads);

int
attnpy_get_num_threads(void)
{
    return attn_get_num_threads();
}

void
attnpy_set_num_threads(int n_threads)
{
    attn_set_num_threads(n_threads < 1 ? 1 : n_threads);
}

/* Sets the default tier: the fastest one, unless ATTNPY_ISA names another. */
static int
choose_tier(void)
{
    const char *name = getenv("ATTNPY_ISA");
    PyObject *names;

    default_tier = name == NULL ? attn_default_tier() : attn_tier_named(name);
    if (default_tier != NULL) {
        portable_tier = attn_portable_tier(default_tier);
        return 0;
    }
    if (attn_tier_at(0) == NULL) {
        PyErr_SetString(PyExc_ImportError,
                        "attnpy: on Windows this needs a CPU with AVX2, FMA and F16C");
        return -1;
    }
    names = tier_names();
    if (names != NULL) {
        PyErr_Format(PyExc_ImportError,
                     "ATTNPY_ISA: expected one of %R, which this CPU has, got '%s'",
                     names, name);
        Py_DECREF(names);
    }
    return -1;
}

/* ATTNPY_PORTABLE=1 is set_portable(True). */
static int
choose_portable(void)
{
    const char *wanted = getenv("ATTNPY_PORTABLE");

    if (wanted != NULL && strcmp(wanted, "0") != 0 && strcmp(wanted, "1") != 0) {
        PyErr_Format(PyExc_ImportError, "ATTNPY_PORTABLE: expected 0 or 1, got '%s'",
                     wanted);
        return -1;
    }
    atomic_store(&portable, wanted != NULL && *wanted == '1');
    return 0;
}

/* Sets the default number of threads: ATTNPY_NUM_THREADS, else the first number of
 * OMP_NUM_THREADS where that is one, else all CPUs we may use. */
static int
choose_threads(void)
{
    const char *own = getenv("ATTNPY_NUM_THREADS");
    const char *openmp = getenv("OMP_NUM_THREADS");
    char *end;
    long n = 0;

    if (own != NULL) {
        n = strtol(own, &end, 10);
        if (n < 1 || end == own || *end != '\0') {
            PyErr_Format(
                PyExc_ImportError,
                "ATTNPY_NUM_THREADS: expected an integer of at least 1, got '%s'", own);
            return -1;
        }
    } else if (openmp != NULL) {
        n = strtol(openmp, &end, 10);
        n = *end == '\0' || *end == ',' ? n : 0;
    }
    if (n < 1) {
        n = attn_cpu_limit();
    }
    attn_set_num_threads(n < ATTN_MAX_THREADS ? (int)n : ATTN_MAX_THREADS);
    return 0;
}

int
py_choose_settings(void)
{
    return choose_tier() < 0 || choose_portable() < 0 || choose_threads() < 0 ? -1 : 0;
}

PyMethodDef py_settings_methods[] = {
    {"set_num_threads", set_num_threads, METH_O, set_num_threads_doc},
    {"get_num_threads", get_num_threads, METH_NOARGS, get_num_threads_doc},
    {"spin_time", spin_time, METH_O, spin_time_doc},
    {"set_portable", set_portable, METH_O, set_portable_doc},
    {"get_portable", get_portable, METH_NOARGS, get_portable_doc},
    {"config", config, METH_NOARGS, config_doc},
    {NULL, NULL, 0, NULL},
};
