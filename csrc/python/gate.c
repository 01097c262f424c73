/* gate(): a function that calls another library's, or attnpy's in its place. It decides in C,
 * because most calls are the library's, and to ask in Python would take longer than some. */
#include "python/gate.h"

#include "python/numbers.h"

/* What a gate has, in the order of gate()'s arguments; then names of attributes. */
enum { THEIRS, FIRST, OURS, THREAD, PROCESS, DTYPES, N_GIVEN };
enum { BLOCKS = N_GIVEN, DTYPE, REPORT, N_PARTS };
enum { MAX_PASSED = 32 }; /* arguments; PyTorch's operators have up to 12 here */

/* The blocks that count, a new reference, or NULL: the thread's, if there are some. */
static PyObject *
blocks_of(PyObject *gate)
{
    PyObject *blocks = PyObject_GetAttr(PyTuple_GET_ITEM(gate, THREAD),
                                        PyTuple_GET_ITEM(gate, BLOCKS));

    if (blocks != NULL && PyObject_Size(blocks) == 0) {
        Py_SETREF(blocks, Py_NewRef(PyTuple_GET_ITEM(gate, PROCESS)));
    }
    return blocks;
}

/* Is an argument of one of the dtypes? -1 for an error. */
static int
has_dtype(PyObject *gate, PyObject *x)
{
    PyObject *dtype = PyObject_GetAttr(x, PyTuple_GET_ITEM(gate, DTYPE));
    int found =
        dtype == NULL ? -1 : PySet_Contains(PyTuple_GET_ITEM(gate, DTYPES), dtype);

    Py_XDECREF(dtype);
    return found;
}

/* Does the last of n blocks report? -1 for an error. */
static int
reports(PyObject *gate, PyObject *blocks, Py_ssize_t n)
{
    PyObject *last = PySequence_GetItem(blocks, n - 1), *report = NULL;

    if (last != NULL) {
        report = PyObject_GetAttr(last, PyTuple_GET_ITEM(gate, REPORT));
        Py_DECREF(last);
    }
    Py_XDECREF(report);
    return report == NULL ? -1 : report != Py_None;
}

/* Is a call attnpy's, to compute or to report? -1 for an error. */
static int
is_ours(PyObject *gate, PyObject *x)
{
    PyObject *blocks = blocks_of(gate);
    Py_ssize_t n = blocks == NULL ? -1 : PyObject_Size(blocks);
    int answer = n <= 0 ? (int)n : has_dtype(gate, x);

    if (n > 0 && answer == 0) {
        answer = reports(gate, blocks, n);
        if (answer < 0 && PyErr_ExceptionMatches(PyExc_IndexError)) {
            PyErr_Clear(); /* another thread has ended the block */
            answer = 0;
        }
    }
    Py_XDECREF(blocks);
    return answer;
}

static PyObject *
pass(PyObject *gate, PyObject *const *arguments, Py_ssize_t n, PyObject *names)
{
    PyObject *passed[MAX_PASSED + 1];
    Py_ssize_t n_all = n + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    int ours = n == 0 || n_all > MAX_PASSED ? 1 : is_ours(gate, arguments[0]);

    if (ours != 0) {
        return ours < 0 ? NULL
                        : PyObject_Vectorcall(PyTuple_GET_ITEM(gate, OURS), arguments,
                                              (size_t)n, names);
    }
    passed[0] = PyTuple_GET_ITEM(gate, FIRST);
    memcpy(passed + 1, arguments, (size_t)n_all * sizeof *passed);
    return PyObject_Vectorcall(PyTuple_GET_ITEM(gate, THEIRS), passed, (size_t)n + 1,
                               names);
}

PyDoc_STRVAR(
    gate_doc,
    "gate(theirs, first, ours, thread, process, dtypes, /)\n--\n\nA function that "
    "calls ours(x, ...) if x.dtype is one of a set and the calling thread is in a "
    "block, the last of thread.blocks or of process, or if that block has a report; "
    "otherwise theirs(first, x, ...).");

static PyObject *
gate(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    static PyMethodDef function = {"kernel", PY_FUNCTION(pass),
                                   METH_FASTCALL | METH_KEYWORDS, NULL};
    static const char *const names[] = {"blocks", "dtype", "report"};
    PyObject *parts, *found = NULL;

    (void)module;
    if (py_check_count(n_arguments, N_GIVEN, N_GIVEN) < 0) {
        return NULL;
    }
    if (!PyAnySet_Check(arguments[DTYPES])) {
        return PyErr_Format(PyExc_TypeError, "dtypes: expected a set, got %R",
                            arguments[DTYPES]);
    }
    parts = PyTuple_New(N_PARTS);
    for (int i = 0; parts != NULL && i < N_PARTS; i++) {
        PyObject *part = i < N_GIVEN ? Py_NewRef(arguments[i])
                                     : PyUnicode_InternFromString(names[i - N_GIVEN]);
        if (part == NULL) {
            Py_CLEAR(parts);
        } else {
            PyTuple_SET_ITEM(parts, i, part);
        }
    }
    found = parts == NULL ? NULL : PyCFunction_NewEx(&function, parts, NULL);
    Py_XDECREF(parts);
    return found;
}

PyMethodDef py_gate_methods[] = {
    {"gate", PY_FUNCTION(gate), METH_FASTCALL, gate_doc},
    {NULL, NULL, 0, NULL},
};
