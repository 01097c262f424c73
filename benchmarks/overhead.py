"""What a tiny call costs, and what the Python layer and adapters have in it."""

from __future__ import annotations

from functools import partial

import numpy as np

from . import cases, measure

CASE = cases.prefill(1, 1, 16, 16)


def measure_overhead(n_rounds):
    """One row in microseconds: the public call, with out=, and the C function alone."""
    import attnpy
    from attnpy import _attnpy
    from attnpy._options import Options

    arrays = CASE.arrays()
    out = np.empty(CASE.query_shape, np.float32)
    calls = {
        "attention()": partial(attnpy.attention, *arrays),
        "attention(out=)": partial(attnpy.attention, *arrays, out=out),
        "C function": partial(_attnpy.attention, *arrays, Options()),
    }
    times = interleaved(calls, n_rounds)
    layer = times["attention()"] - times["C function"]
    values = {name: measure.quartiles(x) for name, x in times.items()}
    values["Python layer"] = measure.quartiles(layer)
    target = measure.at_most("us in the Python layer", 1.0, values["Python layer"][1])
    return {
        "group": "small",
        "name": "1x1x16x16, us",
        "values": values,
        "targets": [[target]],
    }


def measure_adapter(n_rounds):
    """One row in microseconds: a tiny call with arrays, and with tensors."""
    import torch

    import attnpy
    from attnpy.integrations import torch as adapter

    arrays = CASE.arrays()
    tensors = [torch.from_numpy(x) for x in arrays]
    times = interleaved(
        {
            "arrays": partial(attnpy.attention, *arrays),
            "tensors": partial(adapter.attention, *tensors),
            "scaled_dot_product_attention": partial(
                adapter.scaled_dot_product_attention, *tensors
            ),
        },
        n_rounds,
    )
    values = {name: measure.quartiles(x) for name, x in times.items()}
    extra = times["scaled_dot_product_attention"] - times["arrays"]
    values["adapter"] = measure.quartiles(extra)
    target = measure.at_most("us in the adapter", 10.0, values["adapter"][1])
    return {
        "group": "integrations",
        "name": "1x1x16x16, us",
        "values": values,
        "targets": [[target]],
    }


def interleaved(calls, n_rounds):
    """{name: microseconds per call in each round}."""
    for call in calls.values():
        call()
    counts = {name: measure.calls_per_sample(call) for name, call in calls.items()}
    times = {name: [] for name in calls}
    for _ in range(n_rounds):
        for name, call in calls.items():
            times[name].append(1e6 * measure.one_time(call, counts[name]))
    return {name: np.array(x) for name, x in times.items()}
