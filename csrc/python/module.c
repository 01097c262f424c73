/* The extension module attnpy._attnpy. */
#define IMPORTS_NUMPY
#include "python/binding.h"

#include "python/activate.h"
#include "python/attention.h"
#include "python/attributes.h"
#include "python/backward.h"
#include "python/embed.h"
#include "python/distances.h"
#include "python/experts.h"
#include "python/explain.h"
#include "python/feed_forward.h"
#include "python/foreign.h"
#include "python/gate.h"
#include "python/layer.h"
#include "python/linear.h"
#include "python/memory.h"
#include "python/lock.h"
#include "python/norm.h"
#include "python/optimize.h"
#include "python/options.h"
#include "python/partial.h"
#include "python/plan.h"
#include "python/products.h"
#include "python/read_layers.h"
#include "python/rotary.h"
#include "python/settings.h"
#include "python/stack.h"
#include "python/statistics.h"
#include "python/testing.h"
#include "python/weight.h"
#include "python/xla.h"

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
    PyMethodDef *const methods[] = {
        py_attention_methods,    py_backward_methods,    py_linear_methods,
        py_norm_methods,         py_activate_methods,    py_rotary_methods,
        py_layer_methods,        py_options_methods,     py_settings_methods,
        py_statistics_methods,   py_partial_methods,     py_xla_methods,
        py_explain_methods,      py_foreign_methods,     py_products_methods,
        py_feed_forward_methods, py_gate_methods,        py_embed_methods,
        py_stack_methods,        py_read_layers_methods, py_weight_methods,
        py_experts_methods,      py_distances_methods,   py_optimize_methods,
        py_testing_methods};

    import_array1(-1);
    if (py_init_memory() < 0 || py_init_attributes() < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (PyModule_AddFunctions(module, methods[i]) < 0) {
            return -1;
        }
    }
    return add_plan(module) < 0 || py_find_main_thread() < 0 ? -1
                                                             : py_choose_settings();
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
