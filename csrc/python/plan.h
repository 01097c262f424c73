/* Plan: a call prepared once and run many times. */
#ifndef ATTN_PYTHON_PLAN_H
#define ATTN_PYTHON_PLAN_H

#include "python/binding.h"

extern PyType_Spec py_plan_spec;

#endif
