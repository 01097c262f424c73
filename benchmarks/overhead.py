"""What a tiny call costs, and how much of it is the Python layer's own."""

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
        "targets": [target],
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
