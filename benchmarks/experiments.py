"""Measurements that are no comparison: `python -m benchmarks experiments NAME...`."""

from __future__ import annotations

import argparse
import resource
import time
from functools import partial

import numpy as np

from . import cases, encoders, machine, measure, report
from .peers import version

ROUNDS = 7


def main(arguments):
    parsed = argparse.ArgumentParser(
        prog="python -m benchmarks experiments", allow_abbrev=False
    )
    parsed.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parsed.add_argument("--threads", type=int, default=1)
    parsed.add_argument("--rounds", type=int, default=ROUNDS)
    options = parsed.parse_args(arguments)
    for name in options.names or EXPERIMENTS:
        if name not in EXPERIMENTS:
            parsed.error(f"expected some of {', '.join(EXPERIMENTS)}, got {name!r}")
        experiment = EXPERIMENTS[name]
        title = experiment.__doc__.splitlines()[0]
        header, lines = experiment(options.threads, options.rounds)
        print(f"{name}, {options.threads} thread(s): {title}\n", flush=True)
        print(report.markdown_table(header, lines) + "\n", flush=True)


def dtypes():
    return ("float32", "bfloat16") if version("ml_dtypes") else ("float32",)


# ---- Products ------------------------------------------------------------------------


def products(n_threads, n_rounds):
    """The product of tokens with weights alone, in percent of the peak."""
    import attnpy
    from attnpy._linear import linear

    native = attnpy.show_config(mode="dicts")["tier"] == "avx512_bf16"
    lines = []
    for dtype in dtypes():
        real = "bf16" if native and dtype == "bfloat16" else "f32"
        loop = machine.loops() and machine.fma_loop(real)
        for n_tokens, n_in, n_out in (
            *((n, 384, 1536) for n in (16, 128, 512, 4096)),
            *((n, 1024, 2816) for n in (1, 256)),
        ):
            x = cases.normal((n_tokens, n_in), 1, dtype)
            weight = cases.normal((n_in, n_out), 2, dtype)
            call = partial(linear, x, weight, num_threads=n_threads)
            flops = 2 * x.size * n_out
            rate, share = product_rate(call, flops, loop, n_threads, n_rounds)
            shape = f"{n_tokens} x {n_in} x {n_out}"
            lines.append([dtype, shape, f"{rate:.3g}", share])
    return ["dtype", "tokens x in x out", "GFLOP/s", "% of peak"], lines


def product_rate(call, flops, loop, n_threads, n_rounds):
    """The median of GFLOP/s, and the spread of its share of the peak."""
    call()
    n_calls = measure.calls_per_sample(call)
    rates, shares = [], []
    for _ in range(n_rounds):
        peak = machine.fma_peak(loop, n_threads) if loop else np.nan
        rate = flops / measure.one_time(call, n_calls)
        rates.append(rate / 1e9)
        shares.append(100 * rate / peak)
    spread = report.spread(measure.quartiles(shares), 0) if loop else "no C compiler"
    return float(np.median(rates)), spread


# ---- What idle threads cost ----------------------------------------------------------


def watching(n_threads, n_rounds):
    """CPU time of calls with pauses between, beside that of the same calls in a row.

    A thread that looks for its next call costs that time, and nobody else has it.
    """
    import attnpy

    arrays = cases.prefill(1, 8, 256, 64).arrays()
    call = partial(attnpy.attention, *arrays, num_threads=n_threads)
    lines = []
    for pause in (0, 50e-6, 500e-6, 5e-3):
        found = [cpu_seconds(call, pause) for _ in range(n_rounds)]
        alone = [cpu_seconds(lambda: None, pause) for _ in range(n_rounds)]
        cost = 1e6 * (np.median(found) - np.median(alone))
        lines.append([report.duration(pause) if pause else "none", f"{cost:.0f}"])
    return ["pause", "CPU us a call"], lines


def cpu_seconds(call, pause, n_calls=50):
    begin = time.process_time()
    for _ in range(n_calls):
        call()
        if pause:
            time.sleep(pause)
    return (time.process_time() - begin) / n_calls


# ---- Fresh pages ---------------------------------------------------------------------


def pages(n_threads, n_rounds):
    """Pages that the system clears for a call of MiniLM's encoder."""
    lines = []
    for dtype in dtypes():
        for shape in ((1, 128), (32, 128)):
            ids, model = encoders.Sentences(*shape, dtype=dtype).arrays()
            call = partial(model, ids, num_threads=n_threads)
            call()
            found = [faults(call) for _ in range(n_rounds)]
            name = f"{shape[0]} x {shape[1]}"
            lines.append([dtype, name, report.spread(measure.quartiles(found), 0)])
    return ["dtype", "sentences x tokens", "pages"], lines


def faults(call):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


EXPERIMENTS = {"products": products, "watching": watching, "pages": pages}
