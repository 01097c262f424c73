"""Plans: the bits of attention(), from what the arrays hold at each call."""

import gc
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from support.arrays import byte_swapped, misaligned, normal, problem
from support.comparisons import assert_same_bits

from attnpy import Plan, attention

OPTIONS = (
    {},
    {"causal": True},
    {"causal": "top_left", "window": (5, 0)},
    {"kv_lengths": np.array([7, 30])},
    {"kv_lengths": 9, "q_offset": 3, "causal": True},
    {"mask": np.tri(6, 40, 30, dtype=bool), "bias": normal(4, 6, 40)},
    {"softcap": 2.0, "scale": 0.3, "sinks": np.array([1.0, 0.0, 2.0, -1.0])},
    {"return_weights": True},
    {"return_lse": True},
    {"return_weights": True, "return_lse": True, "window": (3, None)},
    {"num_threads": 2},
)


def arrays(dtype=np.float32, n_queries=6):
    """Query (2, 4, Lq, 16), key and value (2, 2, 40, 16 and 8)."""
    parts = [problem(4, n_queries, 40, 16, 8, dtype, 2, seed) for seed in range(2)]
    return [np.stack(pair) for pair in zip(*parts, strict=True)]


@pytest.mark.quick
@pytest.mark.parametrize("n_queries", [1, 6])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda x: "-".join(x) or "plain")
def test_each_call_has_the_bits_of_attention(dtype, n_queries, options):
    if "mask" in options and n_queries == 1:
        options = {key: value[..., :1, :] for key, value in options.items()}
    inputs = arrays(dtype, n_queries)
    plan = Plan(*inputs, **options)
    for step in range(3):
        for x in inputs:
            x[...] = normal(*x.shape, seed=step).astype(dtype)
        assert_same_bits(plan(), attention(*inputs, **options))


@pytest.mark.quick
def test_a_single_query_has_no_query_axis():
    query, key, value = normal(16), normal(30, 16), normal(30, 4)
    plan = Plan(query, key, value, return_weights=True)
    assert_same_bits(plan(), attention(query, key, value, return_weights=True))


@pytest.mark.quick
def test_lengths_and_offsets_are_those_of_the_moment():
    inputs = arrays()
    plan = Plan(*inputs, kv_lengths=[1, 2], q_offset=0, causal=True)
    assert plan.kv_lengths.dtype == plan.q_offset.dtype == np.int64
    for lengths, offset in (([5, 40], 3), ([0, 17], -2), ([40, 40], 2**62)):
        plan.kv_lengths[:] = lengths
        plan.q_offset[()] = offset
        expected = attention(*inputs, kv_lengths=lengths, q_offset=offset, causal=True)
        assert_same_bits(plan(), expected)


@pytest.mark.quick
@pytest.mark.parametrize("bad", [-1, 41, 2**63 - 1])
def test_bad_lengths_are_an_error_and_change_nothing(bad):
    plan = Plan(*arrays(), kv_lengths=[1, 2])
    before = plan().copy()
    plan.kv_lengths[1] = bad
    with pytest.raises(ValueError, match=f"kv_lengths: expected 0 to 40, got {bad}"):
        plan()
    assert_same_bits(plan.output, before)
    plan.kv_lengths[1] = 2
    assert_same_bits(plan(), before)


@pytest.mark.quick
def test_mask_and_bias_are_read_anew():
    inputs = arrays()
    mask, bias = np.ones((6, 40), bool), np.zeros((6, 40), np.float32)
    plan = Plan(*inputs, mask=mask, bias=bias)
    plan()
    mask[:, ::3], bias[:] = False, normal(6, 40)
    assert_same_bits(plan(), attention(*inputs, mask=mask, bias=bias))


def test_the_callers_numbers_are_copied():
    lengths = np.array([5, 6])
    plan = Plan(*arrays(), kv_lengths=lengths)
    lengths[:] = -1
    assert plan.kv_lengths.tolist() == [5, 6]


@pytest.mark.quick
def test_out_is_where_it_writes():
    inputs = arrays()
    out = np.empty((2, 4, 6, 16), np.float32)[..., ::2]
    plan = Plan(*inputs, out=out)
    assert plan() is out
    assert plan.output is out
    assert_same_bits(out.copy(), attention(*inputs))


def test_attributes_are_its_arrays():
    inputs = arrays()
    plan = Plan(*inputs, return_lse=True)
    bound = (plan.query, plan.key, plan.value)
    assert all(x is y for x, y in zip(bound, inputs, strict=True))
    output, lse = plan()
    assert output is plan.output
    assert lse is plan.lse
    assert plan.weights is plan.mask is plan.bias is plan.kv_lengths is None
    with pytest.raises(AttributeError):
        plan.query = inputs[0]


@pytest.mark.quick
@pytest.mark.parametrize("convert", [np.ndarray.tolist, byte_swapped, misaligned])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_would_be_converted_is_an_error(convert, place):
    inputs = arrays(np.float64)  # which lists become, too
    inputs[place] = convert(inputs[place])
    name = ("query", "key", "value")[place]
    with pytest.raises(TypeError, match=f"{name}: expected an array that can be read"):
        Plan(*inputs)


def test_other_dtypes_would_be_converted():
    query, key, value = arrays()
    with pytest.raises(TypeError, match="key: expected an array that can be read"):
        Plan(query.astype("f8"), key, value)
    with pytest.raises(TypeError, match="mask: expected an array that can be read"):
        Plan(query, key, value, mask=[True] * 40)


def test_out_may_not_overlap():
    query, key, _ = arrays()
    with pytest.raises(ValueError, match="out: expected an aligned array"):
        Plan(query, key, key, out=query)


@pytest.mark.quick
def test_errors_are_those_of_attention():
    query, key, value = arrays()
    with pytest.raises(ValueError, match="key: expected"):
        Plan(query, key[..., 1:], value)
    with pytest.raises(TypeError, match="mask: expected booleans"):
        Plan(query, key, value, mask=np.ones(40))
    with pytest.raises(TypeError):
        Plan(query, key)
    with pytest.raises(TypeError, match="without arguments"):
        Plan(query, key, value)(1)


def test_calls_allocate_nothing():
    plan = Plan(*arrays(), kv_lengths=[3, 9], return_weights=True, return_lse=True)
    for _ in range(10):
        plan()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(1000):
            plan()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 1000  # less than one output


def test_plans_leave_no_reference_behind():
    inputs = arrays()
    counts = [sys.getrefcount(x) for x in inputs]
    for _ in range(100):
        Plan(*inputs, kv_lengths=3)()
        with pytest.raises(ValueError, match="kv_lengths"):
            Plan(*inputs, kv_lengths=99)
    gc.collect()
    assert [sys.getrefcount(x) for x in inputs] == counts


def test_a_plan_keeps_its_arrays_alive():
    plan = Plan(*arrays())
    gc.collect()
    assert_same_bits(plan(), attention(*arrays()))


def test_two_calls_at_once_are_refused():
    query, key, value = (normal(8, 2000, 64, seed=i) for i in range(3))
    plan = Plan(query, key, value, num_threads=1)
    expected = plan().copy()
    errors = []

    def call():
        try:
            for _ in range(3):
                plan()
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(errors) <= {"Plan: expected one call at a time, got a second one"}
    assert errors
    assert_same_bits(plan(), expected)
