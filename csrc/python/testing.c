/* Functions by which tests and experiments set and watch things. A wheel has none of
 * them: ATTN_TESTING is defined if the extension is built in place, and for tests/core. */
#include "python/testing.h"

#ifdef ATTN_TESTING

#include "core/tasks.h"
#include "core/tuning.h"
#include "python/numbers.h"
#include "python/objects.h"

PyDoc_STRVAR(set_work_per_thread_doc,
             "set_work_per_thread(work, /)\n--\n\nSet how many multiplications repay "
             "waking one more thread; return the former number.");

static PyObject *
set_work_per_thread(PyObject *module, PyObject *argument)
{
    double work;

    (void)module;
    if (py_parse_number(argument, "work", &work) < 0) {
        return NULL;
    }
    if (work <= 0) {
        PyErr_Format(PyExc_ValueError, "work: expected a number > 0, got %R", argument);
        return NULL;
    }
    return PyFloat_FromDouble(attn_set_work_per_thread(work));
}

PyDoc_STRVAR(
    set_tuning_doc,
    "set_tuning(name, value, /)\n--\n\nSet whether linear products of "
    "'many_rows' take the form that is for these, or whether what is "
    "'read_once', or only float16 keys and values ('read_halves_once'), are "
    "prefetched past the larger caches, or whether these are prefetched to all caches "
    "shortly before they are read ('read_soon'), or only those that come from memory "
    "('read_far_soon'), or read in order first ('read_bursts'), or whether half a tile "
    "leaves out what only the other half sees ('narrow_tiles'), or whether weights "
    "that "
    "few rows read are left to the CPU ('read_alone'), or whether two tiles "
    "are multiplied at once ('pair_tiles'); return the former value.");

static PyObject *
set_tuning(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    static const char *const names[] = {[ATTN_TUNE_MANY_ROWS] = "many_rows",
                                        [ATTN_TUNE_READ_ONCE] = "read_once",
                                        [ATTN_TUNE_READ_HALVES_ONCE] =
                                            "read_halves_once",
                                        [ATTN_TUNE_READ_SOON] = "read_soon",
                                        [ATTN_TUNE_READ_FAR_SOON] = "read_far_soon",
                                        [ATTN_TUNE_READ_BURSTS] = "read_bursts",
                                        [ATTN_TUNE_READ_ALONE] = "read_alone",
                                        [ATTN_TUNE_NARROW_TILES] = "narrow_tiles",
                                        [ATTN_TUNE_PAIR_TILES] = "pair_tiles"};

    (void)module;
    if (py_check_count(n_arguments, 2, 2) < 0) {
        return NULL;
    }
    if (!PyBool_Check(arguments[1])) {
        return PyErr_Format(PyExc_TypeError, "value: expected True or False, got %R",
                            arguments[1]);
    }
    for (int i = 0; i < ATTN_N_TUNINGS && PyUnicode_Check(arguments[0]); i++) {
        if (PyUnicode_CompareWithASCIIString(arguments[0], names[i]) == 0) {
            return PyBool_FromLong(
                attn_set_tuning((attn_tuning)i, arguments[1] == Py_True));
        }
    }
    return PyErr_Format(
        PyExc_ValueError,
        "name: expected 'many_rows', 'read_once', 'read_halves_once', 'read_soon', "
        "'read_far_soon', 'read_bursts', 'read_alone', 'narrow_tiles' or 'pair_tiles', "
        "got %R",
        arguments[0]);
}

PyDoc_STRVAR(watch_tasks_doc,
             "watch_tasks(call, notes, /)\n--\n\nWrite into notes, integers (n, 3), "
             "of each task that call() runs the index of its list of tasks, its thread "
             "and its CPU time in nanoseconds; return how many tasks ran. No other "
             "call may run.");

static PyObject *
watch_tasks(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    if (n_arguments != 2) {
        return PyErr_Format(PyExc_TypeError, "expected 2 arguments, got %zd",
                            n_arguments);
    }
    PyArrayObject *notes = py_view_of(arguments[1]);
    if (notes == NULL || PyArray_TYPE(notes) != NPY_INT64 || PyArray_NDIM(notes) != 2 ||
        PyArray_DIM(notes, 1) != 3 || !PyArray_CHKFLAGS(notes, NPY_ARRAY_CARRAY)) {
        Py_XDECREF(notes);
        return PyErr_Format(PyExc_TypeError, "notes: expected int64 (n, 3) in C order");
    }
    (void)module;
    attn_watch_tasks(PyArray_DATA(notes), PyArray_DIM(notes, 0));
    PyObject *result = PyObject_CallNoArgs(arguments[0]);
    ptrdiff_t n = attn_watch_tasks(NULL, 0);
    Py_DECREF(notes);
    if (result == NULL) {
        return NULL;
    }
    Py_DECREF(result);
    return PyLong_FromSsize_t(n);
}

#endif

PyMethodDef py_testing_methods[] = {
#ifdef ATTN_TESTING
    {"set_work_per_thread", set_work_per_thread, METH_O, set_work_per_thread_doc},
    {"set_tuning", PY_FUNCTION(set_tuning), METH_FASTCALL, set_tuning_doc},
    {"watch_tasks", PY_FUNCTION(watch_tasks), METH_FASTCALL, watch_tasks_doc},
#endif
    {NULL, NULL, 0, NULL},
};
