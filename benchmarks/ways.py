"""The ways of each system to compute a case of any kind, and the fastest right one."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnpy._measure import calls_per_sample, one_time

from . import backward, cases, children, layers, peers, tensors
from .models import (
    decoders,
    encoders,
    folders,
    generation,
    gguf_files,
    in_torch,
    in_transformers,
    pairs,
    pictures,
    reuse,
    sentences,
    training,
    translation,
)

WAYS = {
    cases.Case: peers.WAYS,
    layers.Layer: layers.WAYS,
    encoders.Sentences: encoders.WAYS,
    generation.Generation: generation.WAYS,
    reuse.Reuse: reuse.WAYS,
    decoders.Tokens: decoders.WAYS,
    backward.Backward: backward.WAYS,
    backward.LayerStep: backward.LAYER_WAYS,
    training.Step: training.WAYS,
    tensors.Tensors: tensors.WAYS,
    in_transformers.InTransformers: in_transformers.WAYS,
    in_torch.Embedding: in_torch.WAYS,
    in_torch.TorchStep: in_torch.STEP_WAYS,
    in_torch.QuantizedLayer: in_torch.LAYER_WAYS,
    sentences.Texts: sentences.WAYS,
    pairs.Pairs: pairs.WAYS,
    translation.Translation: translation.WAYS,
    pictures.Pictures: pictures.WAYS,
}
TOLERANCE = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
TOLERANCE |= dict.fromkeys(("int8", *gguf_files.TYPES), 2e-1)


def ways_of(system, case, arrays, n_threads, **more):
    return WAYS[type(case)][system](case, arrays, n_threads, **more)


# ---- Peers that may end the process --------------------------------------------------

# Those that have done so, instead of raising an error.
RISKY = ("openvino", "llamacpp")
known = {}  # {(system, kind of case, model, dtype): how its process ended, or None}


def how_it_ends(system, case, n_threads):
    """How a system ends the process that calls it for such a case; None if it does not.

    That is tried in another process, once for each model and dtype.
    """
    if system not in RISKY:
        return None
    kind = system, type(case), getattr(case, "model", None), case.dtype
    if kind not in known:
        known[kind] = None
        try:
            made = WAYS[type(case)][system]
            children.once(call_each, made, system, case, n_threads, folders.CONFIGS)
        except children.Ended as end:
            known[kind] = str(end)
    return known[kind]


def call_each(made, system, case, n_threads, configs):
    """Call all ways once, in a process of its own. Errors do not matter here."""
    folders.CONFIGS.update(configs)
    peers.alone(system, n_threads)
    with contextlib.suppress(Exception):
        for way in made(case, case.arrays(), n_threads):
            with contextlib.suppress(Exception):
                way.call()


# ---- Which of them are right, and which is the fastest -------------------------------


def difference(result, expected):
    """The largest error relative to the largest number; infinite where not a number."""
    expected = np.asarray(expected, np.float64)
    error = np.abs(np.asarray(result, np.float64) - expected).max(initial=0)
    error /= np.abs(expected).max(initial=1e-30)
    return float(error) if np.isfinite(error) else math.inf


def mean_error(result, expected):
    """The root mean square of the errors, over that of the numbers.

    The largest of some thousand errors is chance; which system rounds less shows here.
    """
    expected = np.asarray(expected, np.float64)
    errors = np.linalg.norm(np.asarray(result, np.float64) - expected)
    return float(errors / max(np.linalg.norm(expected), 1e-30))


def right_ways(ways, case, expected):
    """{way: its mean error} where it is right, {name: why not} of the others."""
    good, dropped = {}, {}
    ways = iter(ways)
    while True:
        name = "the next way"
        try:
            way = next(ways, None)
            if way is None:
                return good, dropped
            name = way.name
            result = way.read(way.call())
            error = difference(result, expected)
        except Exception as problem:
            dropped[name] = f"{type(problem).__name__}: {problem}".split("\n")[0]
            continue
        if error > TOLERANCE[case.dtype]:
            dropped[name] = f"another result: relative difference {error:.2g}"
        else:
            good[way] = mean_error(result, expected)


@dataclass
class Contestant:
    """A system in its fastest way. work, in the row's unit, is its own."""

    way: str
    call: Callable[[], Any]
    work: float
    error: float | None = None  # its mean_error(), where that was judged
    n_calls: int = 1

    def prepare(self):
        """Find how many calls a sample has; the first call of all does not count."""
        self.call()
        self.n_calls = calls_per_sample(self.call)
        return self.n_calls

    def sample(self):
        """Seconds of a call."""
        return one_time(self.call, self.n_calls)


def best_of(good, trials, work):
    """The fastest of {way: its mean error} by the best of its samples, or None."""
    if not good:
        return None
    several = good if len(good) > 1 else ()  # one alone is not timed
    counts = {way: calls_per_sample(way.call) for way in several}
    best = {way: one_time(way.call, n) for way, n in counts.items()}
    near = [way for way in best if best[way] < 2 * min(best.values())]
    for _ in range(trials):
        for way in near:  # taken in turn
            best[way] = min(best[way], one_time(way.call, counts[way]))
    way = min(near or good, key=best.get)
    return Contestant(way.name, way.call, work, good[way])
