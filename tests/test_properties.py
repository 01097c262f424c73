"""Random shapes, dtypes, layouts and options: right, and the same bits every way."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.arrays import lay_out
from support.calls import TIERS, everything, on_tier
from support.comparisons import assert_right, assert_same_bits

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0)
SIZES += (127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025)
WORK = 200_000  # multiplications of one example: the oracle and the scalar tier crawl


def sizes(limit):
    """One of the sizes up to a limit; simpler is smaller."""
    return st.sampled_from([n for n in SIZES if n <= max(1, limit)])


@st.composite
def shortened(draw, shape):
    """A shape that broadcasts to this one."""
    shape = tuple(n if draw(st.booleans()) else 1 for n in shape)
    while shape and shape[0] == 1 and draw(st.booleans()):
        shape = shape[1:]
    return shape


@st.composite
def layouts(draw, array):
    """The same array with its axes in another order, strided or backwards."""
    if draw(st.booleans()):
        return array
    order = draw(st.permutations(range(array.ndim)))
    steps = [draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in order]
    return lay_out(array, tuple(order), steps)


@st.composite
def problems(draw, dtypes=("float32", "float64", "float16")):
    """(query, key, value), options."""
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    n_kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    work = WORK // (np.prod(batch, dtype=int) * n_kv_heads * group)
    n_keys = draw(sizes(work))
    n_queries = draw(sizes(min(129, work // max(1, n_keys))))
    dim = draw(sizes(min(129, work // max(1, n_keys * n_queries))))
    value_dim = draw(sizes(min(129, work // max(1, n_keys * n_queries))))
    n_heads = n_kv_heads * group
    rng = np.random.default_rng(draw(st.integers(0, 999)))

    query_batch, key_batch, value_batch = (draw(shortened(batch)) for _ in range(3))
    batch = np.broadcast_shapes(query_batch, key_batch, value_batch)
    dtype = draw(st.sampled_from(dtypes))
    arrays = []
    for shape in (
        (*query_batch, n_heads, n_queries, dim),
        (*key_batch, n_kv_heads, n_keys, dim),
        (*value_batch, n_kv_heads, n_keys, value_dim),
    ):
        array = rng.standard_normal(shape).astype(dtype)
        arrays.append(draw(layouts(array)))

    logits = (*batch, n_heads, n_queries, n_keys)
    positions = st.integers(-n_queries - 3, n_keys + 3)
    reach = st.none() | st.integers(0, n_keys + 3)
    options = {}
    if draw(st.booleans()):
        mask = rng.random(draw(shortened(logits))) < draw(st.sampled_from([0.5, 0.02]))
        options["mask"] = draw(layouts(mask))
    if draw(st.booleans()):
        bias = rng.standard_normal(draw(shortened(logits))).astype(dtype)
        bias[rng.random(bias.shape) < draw(st.sampled_from([0.0, 0.3]))] = -np.inf
        options["bias"] = draw(layouts(bias))
    if draw(st.booleans()):
        options["causal"] = draw(st.sampled_from([True, "bottom_right", "top_left"]))
    if draw(st.booleans()):
        options["window"] = draw(st.tuples(reach, reach))
    if draw(st.booleans()):
        shape = draw(shortened(batch))
        number = draw(positions)
        options["q_offset"] = number + rng.integers(-3, 4, shape)
    if draw(st.booleans()):
        shape = draw(shortened(batch))
        options["kv_lengths"] = rng.integers(0, n_keys, shape, endpoint=True)
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([1.0, 0.0, -0.5, 2.0]))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([1.0, 0.3, 20.0]))
    if draw(st.booleans()):
        options["sinks"] = rng.standard_normal(n_heads)
    return arrays, options


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
