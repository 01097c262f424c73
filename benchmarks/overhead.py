"""What a tiny call costs, and what the Python layer and adapters have in it."""

from functools import partial

import numpy as np

import attnpy
from attnpy._measure import calls_per_sample, in_turn, one_time, quartiles

from . import cases, measure
from .lazily import torch

CASE = cases.prefill(1, 1, 16, 16)


def measure_overhead(n_rounds):
    """One row in microseconds: the public call, with out=, and the C function alone."""
    from attnpy._options import Options

    arrays = CASE.arrays()
    out = np.empty(CASE.query_shape, np.float32)
    calls = {
        "attention()": partial(attnpy.attention, *arrays),
        "attention(out=)": partial(attnpy.attention, *arrays, out=out),
        "C function": partial(attnpy._attnpy.attention, *arrays, Options()),
    }
    layer = ("Python layer", "attention()", "C function")
    return row("small", calls, n_rounds, layer, 1.0)


def measure_adapter(n_rounds):
    """One row in microseconds: a tiny call with arrays, and with tensors."""
    arrays, adapter = CASE.arrays(), attnpy.integrations.torch
    tensors = [torch.from_numpy(x) for x in arrays]
    attend = adapter.scaled_dot_product_attention
    calls = {
        "arrays": partial(attnpy.attention, *arrays),
        "tensors": partial(adapter.attention, *tensors),
        "scaled_dot_product_attention": partial(attend, *tensors),
    }
    layer = ("adapter", "scaled_dot_product_attention", "arrays")
    return row("integrations", calls, n_rounds, layer, 10.0)


def row(group, calls, n_rounds, layer, most):
    """A row of calls and of a layer: its name, the call with it, and one without."""
    layer, above, below = layer
    samples = {}
    for name, call in calls.items():
        call()
        samples[name] = partial(one_time, call, calls_per_sample(call))
    times = in_turn(samples, n_rounds, n_rounds, 0)
    times[layer] = times[above] - times[below]
    values = {name: quartiles(1e6 * x) for name, x in times.items()}
    target = measure.at_most(f"us in the {layer}", most, values[layer][1])
    return {
        "group": group,
        "name": "1x1x16x16, us",
        "values": values,
        "targets": [[target]],
    }
