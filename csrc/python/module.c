/* The extension module attnpy._attnpy. */
#define IMPORTS_NUMPY
#include "binding.h"

static int
add_plan(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &py_plan_spec, NULL);
    int status = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);

    Py_XDECREF(type);
    return status;
}

static int
execute(PyObject *module)
{
    import_array1(-1);
    if (PyModule_AddFunctions(module, py_call_methods) < 0 ||
        PyModule_AddFunctions(module, py_layer_methods) < 0 ||
        PyModule_AddFunctions(module, py_settings_methods) < 0 ||
        add_plan(module) < 0) {
        return -1;
    }
    return py_choose_settings();
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030d0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_attnpy",
    .m_doc = "The C core of attnpy. Private: use the functions of attnpy.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__attnpy(void);

PyMODINIT_FUNC
PyInit__attnpy(void)
{
    return PyModuleDef_Init(&definition);
}
