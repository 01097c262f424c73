/* What belongs to the process. */
#ifndef ATTN_PYTHON_SETTINGS_H
#define ATTN_PYTHON_SETTINGS_H

#include "python/binding.h"

#include "core/tiers.h"

const attn_tier *py_current_tier(void); /* that calls use unless they name one */
int py_parse_tier(PyObject *name, const attn_tier **); /* None: the current one */
int py_choose_settings(void);                          /* from the environment */
extern PyMethodDef py_settings_methods[];

#endif
