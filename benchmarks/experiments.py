"""Measurements that are no comparison: `python -m benchmarks experiments NAME...`."""

from __future__ import annotations

import argparse
import contextlib
import heapq
import resource
import time
from functools import partial
from unittest import mock

import numpy as np

from attnpy._measure import calls_per_sample, duration, one_time, quartiles

from . import backward, cases, machine, report, rows
from .models import decoders, encoders
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


def with_test_hooks():
    """The extension module, with the functions that a wheel lacks."""
    from attnpy import _attnpy

    if not hasattr(_attnpy, "watch_tasks"):
        raise SystemExit(
            "benchmarks: expected attnpy built in place, by pip install -e ., got a "
            "wheel's, which has no functions for tests"
        )
    return _attnpy


def dtypes():
    return ("float32", "bfloat16") if version("ml_dtypes") else ("float32",)


# ---- Products ------------------------------------------------------------------------


def products(n_threads, n_rounds):
    """The product of tokens with weights alone, in percent of the peak."""
    import attnpy
    from attnpy._linear import linear

    native = attnpy.show_config(mode="dicts")["tier"] in cases.NATIVE_BF16
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
    n_calls = calls_per_sample(call)
    rates, shares = [], []
    for _ in range(n_rounds):
        peak = machine.fma_peak(loop, n_threads) if loop else np.nan
        rate = flops / one_time(call, n_calls)
        rates.append(rate / 1e9)
        shares.append(100 * rate / peak)
    spread = report.spread(quartiles(shares), 0) if loop else "no C compiler"
    return float(np.median(rates)), spread


# ---- What idle threads cost ----------------------------------------------------------


SPIN_TIMES = 0, 60, 1000  # microseconds


def watching(n_threads, n_rounds):
    """Calls with other work between, by how long idle threads look for the next one.

    A thread that looks for its next call costs CPU time that nobody else has then, and
    one that sleeps has to be woken. The CPU time of the other work is not in it.
    """
    import attnpy

    arrays = cases.prefill(1, 8, 64, 64).arrays()
    call = partial(attnpy.attention, *arrays, num_threads=n_threads)
    before, lines = attnpy.get_spin_time(), []
    for pause in (0, 50e-6, 200e-6, 500e-6, 2e-3):
        nothing = np.median([paused(int, pause)[1] for _ in range(n_rounds)])
        found = []
        for spin_time in SPIN_TIMES:
            attnpy.set_spin_time(spin_time)
            found.append(
                np.median([paused(call, pause) for _ in range(n_rounds)], axis=0)
            )
        attnpy.set_spin_time(before)
        times = [f"{1e6 * wall:.0f}" for wall, _ in found]
        costs = [f"{1e6 * (cpu - nothing):.0f}" for _, cpu in found]
        lines.append([duration(pause) if pause else "none", *times, *costs])
    header = [
        f"{unit}, looking {n} us" for unit in ("us", "CPU us") for n in SPIN_TIMES
    ]
    return ["other work", *header], lines


def paused(call, pause, n_calls=50):
    """Seconds of a call, and CPU seconds of a call and the work after it."""
    calls, begin = 0.0, time.process_time()
    for _ in range(n_calls):
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        calls += end - start
        while time.perf_counter() < end + pause:
            pass
    return calls / n_calls, (time.process_time() - begin) / n_calls


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
            lines.append([dtype, name, report.spread(quartiles(found), 0)])
    return ["dtype", "sentences x tokens", "pages"], lines


def faults(call):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


# ---- PyTorch's autograd --------------------------------------------------------------


def autograd(n_threads, n_rounds):
    """Gradients of attention through PyTorch's autograd, beside what that takes alone.

    "nothing" is a function of three inputs, written in Python as attnpy's is, whose
    backward pass returns what is there: less than that none can add. It runs after the
    gradients of arrays, which leave little of PyTorch's code in the CPU's caches.
    """
    header = ["B x H x L x D", "arrays", "tensors", "tensors, nothing", "more"]
    if not version("torch"):
        return header, [["PyTorch is not installed", *["-"] * 4]]
    lines = []
    for sizes in ((1, 8, 8), (1, 8, 64), (1, 8, 128), (1, 8, 256), (8, 12, 128)):
        case = backward.Backward(cases.prefill(*sizes, 64))
        calls = list(autograd_calls(case, n_threads))
        times = [[one_call(call) for call in calls] for _ in range(n_rounds)]
        arrays, tensors, both = (float(x) for x in np.median(times, axis=0))
        shown = map(duration, (arrays, tensors, both - arrays, tensors - both))
        lines.append([" x ".join(map(str, (*sizes, 64))), *shown])
    return header, lines


def autograd_calls(case, n_threads):
    """Gradients of arrays, of tensors, and of arrays and a function of nothing."""
    import torch

    import attnpy
    from attnpy.integrations.torch import attention

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.found = inputs
            return inputs[0].clone()

        @staticmethod
        def backward(ctx, grad):
            return ctx.found

    arrays = case.arrays()
    output, lse = attnpy.attention(*arrays[1:], return_lse=True)
    options = {"output": output, "lse": lse, "num_threads": n_threads}
    of_arrays = partial(attnpy.attention_vjp, *arrays, **options)
    grad, inputs = backward.with_leaves(arrays)
    of_nothing = backward.retained(Nothing.apply, inputs, grad)
    yield of_arrays
    yield backward.retained(partial(attention, num_threads=n_threads), inputs, grad)
    yield lambda: (of_arrays(), of_nothing())


def one_call(call):
    """Seconds of a call, among several."""
    call()
    return one_time(call, calls_per_sample(call))


# ---- Many cores ----------------------------------------------------------------------

MAX_TASKS = 100_000


def cores(n_threads, n_rounds):
    """Tasks of calls, and how these would share as many cores as there are threads.

    Each task's CPU time is taken on the cores there are. Then tasks are handed out as
    the pool does, in turn to whoever is free, to as many cores as threads; lists of
    tasks run one after the other, and what one thread does outside of tasks is added.
    Memory that cores share, and the waking of threads, are not in it. The last columns
    are the CPU time outside of tasks, of all threads together: the interpreter, the
    pool's lock, waking, and looking for a next call.
    """
    import attnpy

    n_cpus = attnpy.show_config(mode="dicts")["cpus"]
    lines = []
    for name, call in core_calls():
        rounds = [
            [task_times(call, n) for n in (1, n_cpus, n_threads)]
            for _ in range(n_rounds)
        ]
        outside = [min(run[1] for run in runs) for runs in zip(*rounds, strict=True)]
        alone, _, lists = (
            min((run[0] for run in runs), key=total)
            for runs in zip(*rounds, strict=True)
        )
        one = outside[0] + total(alone)
        end = outside[0] + sum(end_of(times, n_threads) for times in lists)
        largest = max(lists, key=sum)
        lines.append(
            [
                name,
                str(sum(map(len, lists))),
                f"{len(largest) / n_threads:.2g}",
                f"{100 * max(largest) / sum(largest):.2g} %",
                f"{total(lists) / total(alone):.2f}",
                f"{one / end:.3g}",
                *map(duration, outside),
            ]
        )
    header = [
        "heads x L x D",
        "tasks",
        "a thread",
        "longest",
        "CPU time x one thread's",
    ]
    outside = [f"outside, {n} threads" for n in (1, n_cpus, n_threads)]
    return [*header, "x one core", *outside], lines


def core_calls():
    """(name, call with num_threads=) of attention and products."""
    import attnpy
    from attnpy._linear import linear

    for case, options in (
        (cases.prefill(1, 2, 8192, 64), {}),
        (cases.prefill(1, 1, 16384, 64), {"causal": True}),
        (cases.prefill(1, 8, 2048, 128), {}),
        (cases.prefill(1, 8, 2048, 128), {"causal": True}),
        (cases.prefill(1, 1, 4096, 64), {}),
        (cases.prefill(1, 12, 512, 64), {}),
        (cases.Case(1, 1, n_queries=512, n_keys=8192, dim=64, kv_heads=1), {}),
        (cases.Case(1, 32, n_queries=1, n_keys=8192, dim=128, kv_heads=8), {}),
    ):
        call = partial(attnpy.attention, *case.arrays(), **options)
        heads = f"{case.heads}/{case.kv_heads}"
        rows = f"{case.n_queries}:{case.n_keys}"
        yield f"{heads} x {rows} x {case.dim}{' causal' if options else ''}", call
    for sizes in (
        (128, 384, 1536),
        (512, 384, 1536),
        (4096, 384, 384),
        (1, 896, 4864),
        (256, 896, 4864),
    ):
        x, weight = cases.normal(sizes[:2], 1), cases.normal(sizes[1:], 2)
        yield f"product {' x '.join(map(str, sizes))}", partial(linear, x, weight)


def task_times(call, n_threads):
    """The CPU seconds of each task, a list for each list of tasks; and of all else."""
    module = with_test_hooks()
    notes = np.zeros((MAX_TASKS, 3), np.int64)
    call(num_threads=n_threads)
    begin = time.process_time()
    n_tasks = module.watch_tasks(partial(call, num_threads=n_threads), notes)
    seconds = time.process_time() - begin
    if n_tasks > MAX_TASKS:
        raise ValueError(f"expected up to {MAX_TASKS} tasks, got {n_tasks}")
    lists, _, nanoseconds = notes[:n_tasks].T
    times = [nanoseconds[lists == i] / 1e9 for i in np.unique(lists)]
    return times, max(seconds - total(times), 0)


def total(lists):
    return float(sum(map(sum, lists)))


def end_of(times, n_cores):
    """When the last of these tasks ends, each begun in its turn by whoever is free."""
    free = [0.0] * n_cores
    for seconds in times:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


# ---- A token -------------------------------------------------------------------------


def glue(n_threads, n_rounds):
    """A token of a small Llama, and its calls of the C module made again alone."""
    lines = []
    for dtype in dtypes():
        step = token(dtype, n_threads)
        calls = calls_of(step)

        def again(calls=calls):
            for call in calls:
                call()

        times = [[one_call(call) for call in (step, again)] for _ in range(n_rounds)]
        whole, alone = (float(x) for x in np.median(times, axis=0))
        share = f"{alone / whole:.2f}"
        lines.append([dtype, *map(duration, (whole, alone)), share])
    return ["dtype", "a token", "its calls alone", "of the token"], lines


def token(dtype, n_threads):
    """The call for a token after 256, as often as one likes."""
    case = decoders.Tokens("Llama shape", 256, 1, dtype)
    (way,) = decoders.attnpy_ways(case, case.arrays(), n_threads)
    return way.call


def calls_of(step):
    """What a step calls of the C module, to be called again."""
    from attnpy import _attnpy, _linear, norms
    from attnpy.layers import multi_head

    calls = []

    class Noting:
        def __getattr__(self, name):
            function = getattr(_attnpy, name)

            def noted(*arguments):
                calls.append(partial(function, *arguments))
                return function(*arguments)

            return noted if name in ("layer", "linear", "normalize") else function

    with contextlib.ExitStack() as stack:
        for module in (multi_head, _linear, norms):
            stack.enter_context(mock.patch.object(module, "_attnpy", Noting()))
        step()
    return calls


# ---- Reading once --------------------------------------------------------------------


def reading(n_threads, n_rounds):
    """What is read once, prefetched to all caches or to the first alone."""
    lines = []
    set_tuning = with_test_hooks().set_tuning
    before = set_tuning("read_once", False)
    for name, call in reading_calls(n_threads):
        seconds = {False: [], True: []}
        for _ in range(n_rounds):
            for first_alone, found in seconds.items():
                set_tuning("read_once", first_alone)
                found.append(one_call(call))
        all_caches, first = (float(np.median(found)) for found in seconds.values())
        ratio = f"{all_caches / first:.2f}"
        lines.append([name, *map(duration, (all_caches, first)), ratio])
    set_tuning("read_once", before)
    return ["call", "all caches", "the first", "times as fast"], lines


def reading_calls(n_threads):
    """Products with packed weights, a token, and decoding, in caches and beyond."""
    import attnpy
    from attnpy._linear import linear
    from attnpy._packed_weight import PackedWeight

    for n_rows, size in ((1, 1024), (1, 2048), (4, 2048), (1, 8192)):
        x, weight = cases.normal((n_rows, size), 1), cases.normal((size, size), 2)
        call = partial(linear, x, PackedWeight(weight), num_threads=n_threads)
        yield f"product {n_rows} x {size} x {size}", call
    for dtype in dtypes():
        yield f"token {dtype} of a small Llama", token(dtype, n_threads)
    for row in rows.decode_rows(cache_bytes=0):
        if row.case.dtype in dtypes():
            call = partial(attnpy.attention, *row.case.arrays(), num_threads=n_threads)
            yield f"decode {row.name}", call


EXPERIMENTS = {
    "products": products,
    "watching": watching,
    "pages": pages,
    "autograd": autograd,
    "glue": glue,
    "reading": reading,
    "cores": cores,
}
