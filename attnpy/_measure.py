"""Shapes and a stopwatch for `python -m attnpy bench` and benchmarks/.

It imports nothing of attnpy, so that benchmarks/ can time other revisions with it.
"""

from __future__ import annotations

import gc
import math
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

SAMPLE = 0.01  # seconds that one sample lasts at least
# Idle threads of OpenMP and OpenBLAS sleep at once: spinning, they take CPU time from
# the next call that is measured.
QUIET = {
    "OMP_WAIT_POLICY": "passive",
    "KMP_BLOCKTIME": "0",
    "OPENBLAS_THREAD_TIMEOUT": "4",
}
# (B, H, L, D) of calls with as many queries as keys; (B, H, Hk, Lk, D) of calls with
# one query.
SHORT, BATCH, LONG = (1, 8, 64, 64), (8, 12, 128, 64), (1, 12, 1024, 64)
SHAPES = (
    SHORT,
    BATCH,
    (8, 12, 512, 64),
    LONG,
    (1, 16, 2048, 64),
    (1, 8, 2048, 128),
    (1, 2, 8192, 64),
    (32, 12, 128, 32),
    (4, 12, 197, 64),
)
DECODE = (1, 32, 8, 4096, 128)
DECODE_SHAPES = (
    *((8, 8, 8, 4096, 128), (8, 32, 8, 4096, 128), (8, 128, 8, 4096, 128)),
    *((1, 8, 8, 4096, 128), DECODE, (1, 128, 8, 4096, 128)),
    *((1, 16, 1, 65536, 128), (1, 12, 12, 512, 64), (8, 12, 12, 512, 64)),
)


def one_time(call: Callable[[], Any], n_calls: int) -> float:
    """Return the seconds of a call.

    A short call runs once before, so that its data are in the caches.
    """
    if n_calls > 1:
        call()
    begin = time.perf_counter()
    for _ in range(n_calls):
        call()
    return (time.perf_counter() - begin) / n_calls


def calls_per_sample(call: Callable[[], Any]) -> int:
    """Return how many calls last about SAMPLE.

    If a single call does, it is called only once.
    """
    n_calls = 1
    while True:
        seconds = one_time(call, n_calls) * n_calls
        if seconds > SAMPLE / 4 or n_calls >= 1 << 20:
            return max(1, math.ceil(n_calls * SAMPLE / max(seconds, 1e-9)))
        n_calls *= 4


def in_turn(
    samples: Mapping[str, Callable[[], float]],
    rounds: int,
    min_rounds: int,
    seconds: float,
) -> dict[str, NDArray[np.float64]]:
    """Return the results of functions, (rounds,) each, each called once a round.

    There are as many rounds as given, or until the time is over, but at least
    min_rounds. Each round has its own order, because calls leave data in the caches for
    others.
    """
    found: dict[str, list[float]] = {name: [] for name in samples}
    rng = np.random.default_rng(0)
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        for i in range(rounds):
            if i >= min_rounds and time.perf_counter() - begin > seconds:
                break
            for name in rng.permutation(list(samples)).tolist():
                found[name].append(samples[name]())
    finally:
        gc.enable()
    return {name: np.array(values) for name, values in found.items()}


def quartiles(numbers: Any) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    return [float(x) for x in np.percentile(numbers, (25, 50, 75))]


def unfused(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    scale: float,
    added: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Softmax attention as commonly written, in place where NumPy can.

    query (..., G Lq, D), key and value (..., Lk, D), added (..., G Lq, Lk) or None
    """
    scores = np.matmul(query * scale, key.swapaxes(-1, -2))  # (..., G Lq, Lk)
    if added is not None:
        scores += added
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    result: NDArray[Any] = np.matmul(scores, value) / total
    return result


def duration(seconds: float) -> str:
    """Return a time in words."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def cpu_name() -> str:
    """Return the system's name of the processor."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()
    return platform.processor() or platform.machine()
