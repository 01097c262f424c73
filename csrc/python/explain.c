/* explain(): how a call of attention would be run. */
#include "python/explain.h"

#include "python/attention.h"

#include "core/explain.h"
#include "core/tiers.h"

/* Bytes that the tasks take and give: each query and output once, and the keys and values of
 * a task's blocks once for the task. */
static int64_t
bytes_of(const attn_problem *p, const attn_explanation *e)
{
    ptrdiff_t row = p->head_dim * attn_storage_of(p->query.dtype)->bytes +
                    p->value_dim * attn_storage_of(p->output.dtype)->bytes;
    ptrdiff_t key = p->head_dim * attn_storage_of(p->key.dtype)->bytes +
                    p->value_dim * attn_storage_of(p->value.dtype)->bytes;

    return e->rows_read * row + e->keys_read * key;
}

PyObject *
py_explain(const attn_problem *p, const py_options *o)
{
    attn_call call = {.tier = o->tier, .n_threads = o->n_threads};
    const char *products = p->arithmetic == ATTN_F64 ? "float64" : "float32";
    attn_explanation e;

    attn_explain(p, &call, &e);
    return Py_BuildValue(
        "(ssLLiOLLLLLLLn)", o->tier->name, e.bf16_products ? "bfloat16" : products,
        (long long)e.tile_tasks, (long long)e.row_tasks, e.arrangement.n_threads,
        e.arrangement.shares_keys ? Py_True : Py_False, (long long)e.blocks,
        (long long)e.blocks_skipped, (long long)e.blocks_masked, (long long)e.scores,
        (long long)e.visible, (long long)(e.scores * (p->head_dim + p->value_dim)),
        (long long)bytes_of(p, &e), (Py_ssize_t)e.workspace);
}

PyDoc_STRVAR(explain_doc, "explain(query, key, value, options, /)\n--\n\nAs "
                          "attnpy.explain; the fields of attnpy.Explanation.");

static PyObject *
explain(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    py_attention_arrays a = {0};
    attn_problem p;
    py_options o;
    PyObject *result = NULL;

    (void)module;
    if (py_prepare(arguments, n_arguments, &a, &p, &o) >= 0) {
        result = py_explain(&p, &o);
    }
    py_release_attention(&a);
    return result;
}

PyMethodDef py_explain_methods[] = {
    {"explain", PY_FUNCTION(explain), METH_FASTCALL, explain_doc},
    {NULL, NULL, 0, NULL},
};
