"""A core of two files for tests of setup.py, which compiles in a moment."""

SOURCES = {
    "csrc/answer.h": "#define ANSWER 42\nint attn_answer(void);\n",
    "csrc/answer.c": '#include "answer.h"\nint attn_answer(void) { return ANSWER; }\n',
    "csrc/python/binding.h": '#include "../answer.h"\n#include <Python.h>\n',
    "csrc/python/names.h": '#define NAME "answer"\n',
    "csrc/python/module.c": """\
#include "binding.h"
#include "names.h"
#include <numpy/numpyconfig.h>
static PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_attnpy", .m_size = -1};
PyMODINIT_FUNC PyInit__attnpy(void);
PyMODINIT_FUNC PyInit__attnpy(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, NAME, attn_answer());
#ifdef ATTN_TESTING
    PyModule_AddIntConstant(made, "testing", 1);
#endif
    return made;
}
""",
}


def write(root):
    """Write the files into a folder."""
    for path, text in SOURCES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
