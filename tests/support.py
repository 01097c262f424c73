"""What the test files share: a call per tier, arrays, comparisons, subprocesses."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import reference

from attnpy import _attnpy

TIERS = tuple(_attnpy.config()["tiers"])  # what this CPU can run, the best first
# Of a 16-bit result: the relative rounding error, and half the least positive number.
STORAGE = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 1e-40)}
DTYPES = ("float32", "float64", "float16", "bfloat16")


def attend_on(
    tier,
    query,
    key,
    value,
    *,
    mask=None,
    bias=None,
    causal=False,
    window=None,
    q_offset=None,
    kv_lengths=None,
    scale=None,
    softcap=None,
    sinks=None,
    return_weights=False,
    return_lse=False,
    out=None,
    num_threads=None,
):
    """attnpy.attention() on one instruction set."""
    return _attnpy.attention(
        query,
        key,
        value,
        mask,
        bias,
        causal,
        window,
        q_offset,
        kv_lengths,
        scale,
        softcap,
        sinks,
        return_weights,
        return_lse,
        out,
        num_threads,
        tier,
    )


def has_rounded_weights(attend, dtype):
    """Does this tier round weights to bfloat16 for its native dot products?"""
    return attend.args[0].endswith("_bf16") and str(dtype) == "bfloat16"


def as_read(attend, array):
    """The array as products read it: native ones take subnormal numbers as 0."""
    if not has_rounded_weights(attend, array.dtype):
        return array
    wide = np.abs(array.astype(np.float32))
    return np.where(wide < np.finfo(np.float32).tiny, array.dtype.type(0), array)


def everything(attend, *arrays, **options):
    """(output, weights, lse) of one call."""
    return attend(*arrays, return_weights=True, return_lse=True, **options)


def normal(*shape, dtype="float32", seed=0):
    """Standard normal numbers; the same for the same shape and seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def problem(
    n_heads, n_queries, n_keys, dim, value_dim, dtype="float32", n_kv_heads=None, seed=0
):
    """A query, a key and a value with three axes."""
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    return (
        normal(n_heads, n_queries, dim, dtype=dtype, seed=10 * seed + 1),
        normal(n_kv_heads, n_keys, dim, dtype=dtype, seed=10 * seed + 2),
        normal(n_kv_heads, n_keys, value_dim, dtype=dtype, seed=10 * seed + 3),
    )


def lay_out(array, order=None, steps=None):
    """A view that equals array, stored in another way.

    order: the axes from the outermost to the innermost in memory; steps: for each of
    array's axes how many slots apart its elements are, negative for backwards. What
    lies between the elements is NaN (True for booleans), so that it cannot be read
    unnoticed.
    """
    order = tuple(range(array.ndim)) if order is None else order
    steps = (1,) * array.ndim if steps is None else steps
    store = np.empty([array.shape[a] * abs(steps[a]) for a in order], array.dtype)
    store[...] = True if array.dtype.kind in "bi" else np.nan
    view = store.transpose(np.argsort(order))
    view = view[(..., *(slice(None, None, step) for step in steps))]
    view[...] = array
    return view


def assert_same_bits(actual, expected):
    """Arrays, or tuples of them, equal in dtype, shape and every bit."""
    if isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same_bits(one, other)
        return
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if actual.tobytes() != expected.tobytes():
        np.testing.assert_array_equal(actual, expected)  # shows where
        raise AssertionError("equal numbers with different bits: a NaN or a zero")


def result_shapes(query, key, value):
    """The shapes of output, weights and lse."""
    arrays = (query, key, value)
    one_head = max(x.ndim for x in arrays) < 3
    query, key, value = (np.array(x, ndmin=3) for x in arrays)
    lead = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    lead += () if one_head else (query.shape[-3],)
    lead += () if arrays[0].ndim == 1 else (query.shape[-2],)
    return (*lead, value.shape[-1]), (*lead, key.shape[-2]), lead


def assert_right(attend, query, key, value, **options):
    """Compare one call with the oracle, by an a-priori bound of the rounding error.

    A score is a chain of D terms and the softmax's sum one of Lk terms, and an error
    in a score is a relative error of its weight. test_accuracy.py has sharper bounds.
    """
    results = everything(attend, query, key, value, **options)
    exact = reference.attention(query, key, value, **options)
    terms, _, _ = reference.attention(query, key, np.abs(value), **options)
    dtype = results[0].dtype
    real = np.float64 if dtype == np.float64 else np.float32
    norms = [np.linalg.norm(np.asarray(x, float), axis=-1) for x in (query, key)]
    top_norms = [x.max(initial=0) for x in norms]
    scale = options.get("scale", 1 / np.sqrt(max(1, query.shape[-1])))
    bias = np.asarray(options.get("bias", 0), float)
    top = abs(scale) * np.prod(top_norms) + np.abs(bias[np.isfinite(bias)]).max(
        initial=0
    )
    steps = 8 + 4 * np.sqrt(query.shape[-1] + key.shape[-2])
    slack = np.finfo(real).eps / 2 * steps * (1 + top)
    shapes = result_shapes(query, key, value)
    for name, result, right, shape, magnitude in zip(
        ("output", "weights", "lse"),
        results,
        exact,
        shapes,
        (terms, exact[1], np.where(exact[2] > -np.inf, 1 + np.abs(exact[2]), 0)),
        strict=True,
    ):
        rounding, least = STORAGE.get(str(result.dtype), (0, np.finfo(real).tiny))
        right, magnitude = right.reshape(shape), magnitude.reshape(shape)
        assert result.shape == shape, name
        bound = slack * magnitude + least
        if name == "output" and has_rounded_weights(attend, dtype):
            bound += rounding * magnitude
        if rounding:
            bound += rounding * np.abs(right)
        assert_within(name, result, right, bound)
    assert results[0].dtype == results[1].dtype
    assert results[2].dtype == real
    return results


def assert_within(name, actual, expected, bound):
    """Each element of actual is within its bound of expected; infinities are equal."""
    actual = np.asarray(actual, expected.dtype)
    with np.errstate(invalid="ignore"):  # inf - inf
        good = (actual == expected) | (np.abs(actual - expected) <= bound)
    if not good.all():
        worst = np.argwhere(~good)[0]
        where = tuple(int(i) for i in worst)
        raise AssertionError(
            f"{name}: {np.sum(~good)} of {good.size} elements off, first at {where}: "
            f"{actual[where]!r}, exact {expected[where]!r}"
        )


def run_python(script, *arguments, timeout=100, **environment):
    """Run a script in a fresh interpreter that can import the test helpers."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script, *map(str, arguments)],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def assert_runs(script, *arguments, **more):
    """Run a script that must succeed and return what it printed."""
    done = run_python(script, *arguments, **more)
    tail = done.stdout[-2000:] + done.stderr[-4000:]
    assert done.returncode == 0, f"exit status {done.returncode}\n{tail}"
    return done.stdout
