"""The extension module's functions, each on one instruction set.

attnpy chooses the instruction set for a process; tests choose it for each call. No
other file of the tests knows how the extension module takes its arguments.
"""

import contextlib
import functools
from unittest import mock

import numpy as np
import pytest

from attnpy import AttentionGradients, _attnpy
from attnpy._options import VJP, Norm, Options, Wanted

TIERS = tuple(_attnpy.config()["tiers"])  # what this CPU can run, the best first
# What tells them apart, as csrc/core/tiers.c has it, which tests/test_tree.py reads.
ADD_INTEGERS = {"avx512_vnni", "avx_vnni", "neon_dotprod"}  # products of integers alone
ADD_BFLOAT16 = {"amx_bf16", "avx512_bf16"}  # those and products of bfloat16
# All kernels for floating numbers, and all for those without products of bfloat16.
FLOAT_TIERS = tuple(tier for tier in TIERS if tier not in ADD_INTEGERS)
PLAIN_TIERS = tuple(tier for tier in FLOAT_TIERS if tier not in ADD_BFLOAT16)

# Of csrc/python/testing.c. `pip install -e .` builds them; a wheel has none.
TEST_HOOKS = {"set_tuning", "set_work_per_thread", "watch_tasks"}
HAS_TEST_HOOKS = hasattr(_attnpy, "watch_tasks")
NO_TEST_HOOKS = "needs attnpy built in place, with its functions for tests"
needs_test_hooks = pytest.mark.skipif(not HAS_TEST_HOOKS, reason=NO_TEST_HOOKS)


def attend_on(tier, query, key, value, **options):
    """attnpy.attention(), on one instruction set."""
    return _attnpy.attention(query, key, value, Options(**options, tier=tier))


def on_tier(tier):
    """attnpy.attention() forced to one instruction set."""
    return functools.partial(attend_on, tier)


def everything(attend, *arrays, **options):
    """(output, weights, lse) of one call."""
    return attend(*arrays, return_weights=True, return_lse=True, **options)


def measure_on(tier, query, key, value=None, *, top_k=8, **options):
    """attnpy.statistics() on one instruction set, with the output last."""
    value = key[..., :0] if value is None else value
    wanted = Wanted(True, True, True, top_k)
    options = Options(**options, tier=tier)
    return _attnpy.statistics(query, key, value, options, wanted)


def vjp_on(
    tier,
    grad_output,
    query,
    key,
    value,
    *,
    output=None,
    lse=None,
    grad_lse=None,
    wanted=("query", "key", "value"),
    **options,
):
    """attnpy.attention_vjp(), on one instruction set."""
    flags = tuple(name in wanted for name in AttentionGradients._fields)
    gradients = _attnpy.attention_vjp(
        grad_output,
        query,
        key,
        value,
        Options(**options, tier=tier),
        VJP(output, lse, grad_lse, flags),
    )
    return AttentionGradients(*gradients)


def linear_on(
    tier,
    x,
    weight,
    bias=None,
    *,
    activation=None,
    times=None,
    residual=None,
    precision="promoted",
    num_threads=1,
):
    """activation(x @ weight + bias) * times + residual, on one instruction set."""
    return _attnpy.linear(
        x, weight, bias, activation, times, residual, precision, num_threads, tier
    )


def normalize_on(
    tier,
    x,
    weight,
    bias=None,
    residual=None,
    *,
    eps=1e-5,
    centre=True,
    num_threads=1,
):
    """LayerNorm of each row, or RMSNorm if not centred, on one instruction set."""
    norm = Norm(weight, bias, eps, centre)
    return _attnpy.normalize(x, residual, norm, num_threads, tier)


def normalize_vjp_on(
    tier, grad, x, weight, bias=None, *, eps=1e-5, centre=True, num_threads=1
):
    """The gradients of x, weight and bias of a norm, on one instruction set."""
    norm = Norm(weight, bias, eps, centre)
    return _attnpy.normalize_vjp(grad, x, norm, num_threads, tier)


def activate_on(tier, x, name, times=None, *, num_threads=1):
    """The activation of each number, on one instruction set."""
    return _attnpy.activate(x, name, times, num_threads, tier)


def activate_vjp_on(tier, grad, x, name, times=None, *, num_threads=1):
    """The gradient of each number before its activation, on one instruction set."""
    return _attnpy.activate_vjp(grad, x, name, times, num_threads, tier)


@contextlib.contextmanager
def layers_on(tier):
    """Within this, every layer's call runs on one instruction set."""
    layer, stack = _attnpy.layer, _attnpy.stack

    def forced(*arguments):
        return layer(*arguments[:-1], arguments[-1]._replace(tier=tier))

    def on_tier(one):
        options = one.attention.options._replace(tier=tier)
        return one._replace(attention=one.attention._replace(options=options))

    def forced_in_stack(x, layers, *arguments):
        return stack(x, tuple(map(on_tier, layers)), *arguments)

    with (
        mock.patch.object(_attnpy, "layer", forced),
        mock.patch.object(_attnpy, "stack", forced_in_stack),
    ):
        yield


@contextlib.contextmanager
def parts_on(tier):
    """Within this, attend_partial() runs on one instruction set."""
    attend_partial = _attnpy.attend_partial

    def forced(query, key, value, options, *state):
        options = options._replace(tier=tier)
        return attend_partial(query, key, value, options, *state)

    with mock.patch.object(_attnpy, "attend_partial", forced):
        yield


@contextlib.contextmanager
def threads_for_any_work():
    """Within this, calls use the threads they are given, even for little work."""
    if not HAS_TEST_HOOKS:
        pytest.skip(NO_TEST_HOOKS)
    before = _attnpy.set_work_per_thread(1.0)
    try:
        yield
    finally:
        _attnpy.set_work_per_thread(before)


def is_native(tier, dtype):
    """Does this tier have products of its own for this dtype?"""
    return tier in ADD_BFLOAT16 and str(dtype) == "bfloat16"


def has_rounded_weights(attend, dtype):
    """Does this tier round weights to bfloat16 for its native products?"""
    return is_native(attend.args[0], dtype)


def as_read(attend, array):
    """The array as products read it: native ones take subnormal numbers as 0."""
    if not has_rounded_weights(attend, array.dtype):
        return array
    wide = np.abs(array.astype(np.float32))
    return np.where(wide < np.finfo(np.float32).tiny, array.dtype.type(0), array)
