"""Random shapes, dtypes, layouts and options: right, and the same bits every way."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.calls import TIERS, everything, on_tier
from support.comparisons import assert_right, assert_same_bits
from support.drawn import problems


@given(data=problems())
def test_any_call_agrees_with_the_oracle(attend, data):
    arrays, options = data
    assert_right(attend, *arrays, **options)


@pytest.mark.quick
@given(data=problems())
def test_all_instruction_sets_give_the_same_bits(data):
    arrays, options = data
    expected = everything(on_tier("scalar"), *arrays, **options)
    for tier in TIERS:
        actual = everything(on_tier(tier), *arrays, **options)
        assert_same_bits(actual, expected)


@given(data=problems(), threads=st.integers(1, 9))
def test_any_layout_and_number_of_threads_gives_the_same_bits(attend, data, threads):
    arrays, options = data
    expected = everything(attend, *arrays, num_threads=1, **options)
    arrays = [np.ascontiguousarray(x) for x in arrays]
    for name in {"mask", "bias"} & set(options):
        options[name] = np.ascontiguousarray(options[name])
    actual = everything(attend, *arrays, num_threads=threads, **options)
    assert_same_bits(actual, expected)


@given(data=problems(), at=st.integers(0, 129), threads=st.integers(1, 3))
def test_any_slice_of_the_queries_gives_its_rows_of_the_whole(
    attend, data, at, threads
):
    (query, key, value), options = data
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    assume(n_queries > 1)
    start = at % n_queries
    stop = n_queries if at % 2 else start + 1
    whole = everything(attend, query, key, value, **options)
    part = slice(start, stop)
    for name in {"mask", "bias"} & set(options):
        if options[name].ndim > 1 and options[name].shape[-2] > 1:
            options[name] = options[name][..., part, :]
    if "q_offset" not in options:  # the default alignment is that of the last query
        first = np.asarray(options.get("kv_lengths", n_keys)) - n_queries
        if options.get("causal") == "top_left":
            first = np.asarray(0)
        options["q_offset"] = first
    options["q_offset"] = options["q_offset"] + start
    slices = everything(
        attend, query[..., part, :], key, value, num_threads=threads, **options
    )
    expected = (whole[0][..., part, :], whole[1][..., part, :], whole[2][..., part])
    assert_same_bits(slices, expected)


@given(data=problems())
def test_weights_sum_to_one_less_the_sink(attend, data):
    arrays, options = data
    _, weights, lse = everything(attend, *arrays, **options)
    total = weights.sum(axis=-1, dtype=np.float64)
    expected = np.where(lse > -np.inf, 1.0, 0.0)
    if "sinks" in options:
        with np.errstate(over="ignore"):
            expected -= np.exp(options["sinks"][:, None] - lse)
    n_keys = weights.shape[-1]
    limit = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-12}[str(weights.dtype)]
    # Below float16's least number, a weight is rounded to 0 or up.
    limit += n_keys * 2.0**-25 if weights.dtype == "float16" else 0
    np.testing.assert_allclose(total, expected, atol=limit)
    assert (weights >= 0).all()
