"""Measurements that are no comparison: `python -m benchmarks experiments NAME...`."""

from __future__ import annotations

import argparse
import heapq
import time
from functools import partial

import numpy as np

from attnpy._measure import duration

from . import cases, report
from .models import accuracy as models_accuracy

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
    counts = (1, n_cpus, n_threads)
    lines = []
    for name, call in core_calls():
        rounds = [[task_times(call, n) for n in counts] for _ in range(n_rounds)]
        lists, outside = [], []
        for runs in zip(*rounds, strict=True):  # of each number of threads
            lists.append(min((times for times, _ in runs), key=total))
            outside.append(min(other for _, other in runs))
        alone, _, shared = lists
        end = outside[0] + sum(end_of(times, n_threads) for times in shared)
        largest = max(shared, key=sum)
        cells = [
            str(sum(map(len, shared))),
            f"{len(largest) / n_threads:.2g}",
            f"{100 * max(largest) / sum(largest):.2g} %",
            f"{total(shared) / total(alone):.2f}",
            f"{(outside[0] + total(alone)) / end:.3g}",
        ]
        lines.append([name, *cells, *map(duration, outside)])
    header = ["heads x L x D", "tasks", "a thread", "longest"]
    header += ["CPU time x one thread's", "x one core"]
    return [*header, *(f"outside, {n} threads" for n in counts)], lines


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


# ---- What fewer bits cost ------------------------------------------------------------


def accuracy(n_threads, n_rounds):
    """all-MiniLM-L6-v2 in 8 and 4 bits against float64, on sentences of Python's help.

    In each cell the relative root mean square of what the states of tokens are off by,
    and the smallest cosine of texts' mean vectors. Then of 200 sentences, how many have
    the same nearest one, and how many of the nearest 10 are the same. It depends on no
    round.
    """
    return models_accuracy.measured(n_threads)


EXPERIMENTS = {"watching": watching, "cores": cores, "accuracy": accuracy}
