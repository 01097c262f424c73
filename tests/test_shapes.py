"""Sizes from zero to overflow, strides of every kind, and every overlap of out."""

import itertools

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from support.arrays import byte_swapped, lay_out, misaligned, normal, problem, read_only
from support.calls import everything
from support.comparisons import assert_right, assert_same_bits
from support.processes import assert_runs

ZEROS = list(itertools.product((0, 2), (0, 2), (0, 3), (0, 3), (0, 4), (0, 5)))


@pytest.mark.quick
def test_every_size_may_be_zero(attend, dtype):
    for n_batch, n_heads, n_queries, n_keys, dim, value_dim in ZEROS:
        query = normal(n_batch, n_heads, n_queries, dim).astype(dtype)
        key = normal(n_batch, n_heads, n_keys, dim, seed=1).astype(dtype)
        value = normal(n_batch, n_heads, n_keys, value_dim, seed=2).astype(dtype)
        output, weights, lse = assert_right(attend, query, key, value)
        assert output.shape == (n_batch, n_heads, n_queries, value_dim)
        assert weights.shape == (n_batch, n_heads, n_queries, n_keys)
        assert lse.shape == (n_batch, n_heads, n_queries)
        if n_keys == 0:
            assert not output.any()
            assert (lse == -np.inf).all()
        out = np.full_like(output, 7)
        assert attend(query, key, value, out=out) is out
        assert_same_bits(out, output)


@pytest.mark.floats
@pytest.mark.quick(sizes=ZEROS[::9])
@pytest.mark.parametrize("sizes", ZEROS[::3], ids=lambda s: "-".join(map(str, s)))
def test_every_size_may_be_zero_with_options(attend, sizes):
    n_batch, n_heads, n_queries, n_keys, dim, value_dim = sizes
    query = normal(n_batch, n_heads, n_queries, dim)
    key = normal(n_batch, n_heads, n_keys, dim, seed=1)
    value = normal(n_batch, n_heads, n_keys, value_dim, seed=2)
    logits = (n_batch, n_heads, n_queries, n_keys)
    options = {
        "mask": np.ones(logits, bool),
        "bias": normal(*logits, seed=3),
        "causal": True,
        "window": (2, 2),
        "kv_lengths": np.full(n_batch, n_keys),
        "q_offset": np.zeros(n_batch, int),
        "softcap": 2.0,
        "sinks": normal(n_heads, seed=4),
    }
    results = assert_right(attend, query, key, value, **options)
    if n_keys == 0:
        sinks = options["sinks"].reshape(n_heads, 1)
        assert (results[2] == sinks).all()


@pytest.mark.quick
def test_dim_of_zero_gives_the_mean_of_the_values(attend):
    for n_queries in (1, 20):
        query, key, value = problem(2, n_queries, 7, 0, 3)
        output, weights, lse = assert_right(attend, query, key, value)
        np.testing.assert_allclose(weights, 1 / 7, rtol=1e-6)
        np.testing.assert_allclose(lse, np.log(7), rtol=1e-6)
        mean = value.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(output, np.repeat(mean, n_queries, 1), rtol=1e-5)


def test_no_heads_at_all(attend):
    query, key, value = problem(0, 3, 4, 5, 6, n_kv_heads=2)
    assert attend(query, key, value).shape == (0, 3, 6)


def field(array):
    """An equal array inside an array of packed records: no stride is a multiple."""
    records = np.zeros(array.shape, [("flag", "u1"), ("number", array.dtype)])
    records["number"] = array
    return records["number"]


def swapped_and_strided(array):
    """An equal array that is byte-swapped, backwards and spread out."""
    return lay_out(byte_swapped(array), steps=(-1,) * (array.ndim - 1) + (2,))


def kinds(dtype):
    """The functions above that make arrays of this dtype."""
    if dtype.kind != "f":  # bfloat16 has no byte order
        return misaligned, read_only, field
    return misaligned, read_only, field, byte_swapped, swapped_and_strided


@pytest.mark.quick(n_queries=(3,))
@pytest.mark.parametrize("n_queries", [1, 3, 20])
def test_any_kind_of_array_gives_the_same_bits(attend, dtype, n_queries):
    arrays = problem(2, n_queries, 140, 5, 4, dtype)
    mask = np.random.default_rng(1).random((n_queries, 140)) < 0.6
    bias = normal(2, n_queries, 140).astype(dtype)
    sinks = normal(2).astype(dtype)
    every = [*arrays, mask, bias, sinks]

    def call(query, key, value, mask, bias, sinks):
        return everything(attend, query, key, value, mask=mask, bias=bias, sinks=sinks)

    expected = call(*every)
    for kind in kinds(dtype):
        changed = [kind(x) for x in every]
        for i, x in enumerate(changed):
            assert_same_bits(call(*every[:i], x, *every[i + 1 :]), expected)
        assert_same_bits(call(*changed), expected)


@pytest.mark.quick(n_queries=(20,))
@pytest.mark.parametrize("n_queries", [1, 20])
def test_strides_of_zero_give_the_same_bits(attend, dtype, n_queries):
    row = normal(4).astype(dtype)
    for query, key, value in (
        (np.broadcast_to(row, (2, n_queries, 4)), *problem(2, 1, 140, 4, 3, dtype)[1:]),
        (
            *problem(2, n_queries, 1, 4, 3, dtype)[:1],
            *[np.broadcast_to(row, (2, 140, 4))] * 2,
        ),
        (
            *problem(2, n_queries, 1, 4, 3, dtype)[:1],
            *[np.broadcast_to(row[:1], (2, 140, 4))] * 2,
        ),
    ):
        expected = everything(attend, query.copy(), key.copy(), value.copy())
        assert_same_bits(everything(attend, query, key, value), expected)


@pytest.mark.quick
def test_strides_of_axes_of_size_one_do_not_matter(attend, dtype):
    # NumPy gives such an axis any stride at all, not even a multiple of the item size.
    size = dtype.itemsize
    for n_queries in (1, 20):
        arrays = problem(1, n_queries, 140, 1, 1, dtype)
        expected = everything(attend, *arrays)
        odd = [
            as_strided(x, x.shape, (stride, size, other))
            for x, stride, other in zip(
                arrays, (-7, 0, 10**12), (3, -5, 0), strict=True
            )
        ]
        assert_same_bits(everything(attend, *odd), expected)
        out = as_strided(np.zeros_like(expected[0]), (1, n_queries, 1), (-7, size, 3))
        assert_same_bits(attend(*odd, out=out), expected[0])
        spread = [
            lay_out(x, steps=(1, step, 3))
            for x, step in zip(arrays, (2, -3, 1), strict=True)
        ]
        assert_same_bits(everything(attend, *spread), expected)


@pytest.mark.quick
def test_overlapping_strides_give_the_same_bits(attend, dtype):
    # A sliding window over one buffer: each row shares elements with the next.
    buffer = normal(200).astype(dtype)
    size = buffer.itemsize
    key = as_strided(buffer, (1, 140, 8), (0, size, size))
    query = as_strided(buffer, (1, 20, 8), (0, 3 * size, size))
    expected = everything(attend, query.copy(), key.copy(), key.copy())
    assert_same_bits(everything(attend, query, key, key), expected)


def test_query_key_and_value_may_be_one_array(attend, dtype):
    x = normal(2, 30, 8).astype(dtype)
    expected = everything(attend, x.copy(), x.copy(), x.copy())
    assert_same_bits(everything(attend, x, x, x), expected)
    assert_same_bits(everything(attend, x, x[:, ::-1][:, ::-1], x), expected)


@pytest.mark.quick
def test_out_is_returned_and_holds_the_result(attend, dtype):
    for n_queries in (1, 3, 70):
        arrays = problem(2, n_queries, 150, 5, 4, dtype)
        expected = everything(attend, *arrays)
        out = np.full((2, n_queries, 4), np.nan, dtype)
        assert attend(*arrays, out=out) is out
        assert_same_bits(out, expected[0])
        results = everything(attend, *arrays, out=out)
        assert results[0] is out
        assert_same_bits(results, expected)


@pytest.mark.quick(n_queries=(3,))
@pytest.mark.parametrize("n_queries", [1, 3, 70])
def test_out_may_have_any_strides(attend, dtype, n_queries):
    arrays = problem(2, n_queries, 150, 5, 4, dtype)
    expected = attend(*arrays)
    shape = expected.shape
    for order, steps in (
        ((1, 0, 2), (1, 1, 1)),
        ((2, 1, 0), (1, 1, 1)),
        ((0, 1, 2), (2, 3, 1)),
        ((0, 1, 2), (1, 1, 2)),
        ((0, 1, 2), (-1, -1, -1)),
        ((2, 0, 1), (-2, 2, -3)),
    ):
        out = lay_out(np.zeros(shape, dtype), order, steps)
        store = out
        while store.base is not None:
            store = store.base
        before = store.copy()
        assert attend(*arrays, out=out) is out
        assert_same_bits(np.ascontiguousarray(out), expected)
        out[...] = 0  # what is between the elements was not written to
        assert_same_bits(store, before)


@pytest.mark.quick(n_queries=(3,))
@pytest.mark.parametrize("n_queries", [1, 3, 70])
def test_out_may_be_misaligned_or_byte_swapped(attend, dtype, n_queries):
    arrays = problem(2, n_queries, 150, 5, 4, dtype)
    expected = attend(*arrays)
    for kind in set(kinds(dtype)) - {read_only}:
        out = kind(np.zeros_like(expected))
        assert attend(*arrays, out=out) is out
        assert_same_bits(out.astype(dtype, order="C"), expected)


def test_out_of_one_query_has_no_query_axis(attend):
    query, key, value = problem(1, 1, 7, 4, 3)
    out = np.empty(3, np.float32)
    assert attend(query[0, 0], key[0], value[0], out=out) is out
    assert_same_bits(out, attend(query, key, value)[0, 0])


@pytest.mark.quick(n=(5,))
@pytest.mark.parametrize("n", [1, 5, 70])
@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
def test_out_may_be_an_input(attend, dtype, name, n):
    # All four have the shape of the output: (2, n, n).
    shape = (2, n, n)
    arrays = {k: normal(*shape, seed=i).astype(dtype) for i, k in enumerate(NAMES)}
    expected = attend(**{k: x.copy() for k, x in arrays.items()}, causal=True)
    out = arrays[name]
    assert attend(**arrays, causal=True, out=out) is out
    assert_same_bits(out, expected)


NAMES = ("query", "key", "value", "bias")
SHIFTS = (-11, -1, 1, 7, 40)


@pytest.mark.quick(n=(5,), name=("query",))
@pytest.mark.parametrize("n", [1, 5, 70])
@pytest.mark.parametrize("name", NAMES)
def test_out_may_overlap_an_input(attend, dtype, name, n):
    for shift, step in itertools.product(SHIFTS, (1, -1)):
        buffer = np.zeros(2 * n * n + 100, dtype)
        inside = buffer[50 : 50 + 2 * n * n].reshape(2, n, n)
        arrays = {k: normal(2, n, n, seed=i).astype(dtype) for i, k in enumerate(NAMES)}
        expected = attend(**arrays)
        inside[...] = arrays[name]
        arrays[name] = inside
        out = buffer[50 + shift :][: 2 * n * n][::step].reshape(2, n, n)
        attend(**arrays, out=out)
        assert_same_bits(np.ascontiguousarray(out), expected)


@pytest.mark.quick
@pytest.mark.parametrize("n", [4, 68])
def test_out_may_overlap_the_mask(attend, n):
    query, key, value = problem(2, n, n, 4, n)
    mask = np.random.default_rng(1).random((2, n, n)) < 0.5
    expected = attend(query, key, value, mask=mask)
    store = np.zeros(2 * n * n, np.float32)
    view = store.view(bool)[3 : 3 + mask.size].reshape(mask.shape)
    view[...] = mask
    out = store.reshape(2, n, n)
    attend(query, key, value, mask=view, out=out)
    assert_same_bits(out, expected)


def test_out_may_overlap_the_sinks_the_lengths_and_the_offsets(attend):
    query, key, value = (np.stack([x, -x]) for x in problem(4, 3, 150, 4, 4))
    expected = attend(query, key, value, sinks=[0.5, 1, 2, 3])
    out = np.zeros((2, 4, 3, 4), np.float32)
    sinks = out.reshape(-1)[40:44]
    sinks[:] = [0.5, 1, 2, 3]
    assert_same_bits(attend(query, key, value, sinks=sinks, out=out), expected)
    for name in ("kv_lengths", "q_offset"):
        expected = attend(query, key, value, causal=True, **{name: [70, 100]})
        numbers = out.reshape(-1).view(np.int64)[5:7]
        numbers[:] = [70, 100]
        actual = attend(query, key, value, causal=True, **{name: numbers}, out=out)
        assert_same_bits(actual, expected)


@pytest.mark.quick
def test_out_may_overlap_all_inputs_at_once(attend, dtype):
    x = normal(2, 70, 70).astype(dtype)
    expected = attend(x.copy(), x.copy(), x.copy(), bias=x.copy())
    attend(x, x, x, bias=x, out=x)
    assert_same_bits(x, expected)


def test_overlap_of_out_with_a_broadcast_input(attend, dtype):
    row = normal(1, 1, 8).astype(dtype)
    key, value = problem(1, 1, 30, 8, 8, dtype)[1:]
    out = np.zeros((1, 20, 8), dtype)
    out[:, 4:5] = row
    query = np.broadcast_to(out[:, 4:5], (1, 20, 8))
    expected = attend(query.copy(), key, value)
    attend(query, key, value, out=out)
    assert_same_bits(out, expected)


ENDS = (-(2**63), -(2**63) + 1, -(2**62), -(2**31), 2**31, 2**62, 2**63 - 2, 2**63 - 1)


@pytest.mark.floats
@pytest.mark.quick(n_queries=(3,), q_offset=(-(2**63), 2**63 - 1))
@pytest.mark.parametrize("n_queries", [1, 3, 20])
@pytest.mark.parametrize("q_offset", ENDS)
def test_extreme_offsets_and_windows_do_not_wrap(attend, n_queries, q_offset):
    arrays = problem(1, n_queries, 150, 3, 2)
    for options in (
        {"causal": True},
        {"causal": "top_left"},
        {"window": (2**63 - 1, 2**63 - 1)},
        {"window": (2**63 - 1, 0)},
        {"window": (0, 2**63 - 1)},
        {"window": (2**62, 2**62)},
        {"window": (None, 5)},
        {"window": (5, None)},
        {"window": (2**63 - 1, None), "causal": True},
    ):
        assert_right(attend, *arrays, q_offset=q_offset, **options)
        assert_right(attend, *arrays, q_offset=np.int64(q_offset), **options)


def test_extreme_windows_without_offset_do_not_wrap(attend):
    arrays = problem(1, 20, 150, 3, 2)
    most = 2**63 - 1
    expected = attend(*arrays)
    for window in ((most, most), (None, most), (most, None), (most - 1, most - 130)):
        assert_same_bits(attend(*arrays, window=window), expected)


HUGE = """
import resource
import numpy as np
from attnpy import attention
resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))

def huge(*shape):
    return np.broadcast_to(np.zeros((), np.float32), shape)

def fails(*arrays, **options):
    try:
        attention(*arrays, **options)
    except (ValueError, MemoryError) as error:
        assert str(error), "an empty message"
        return
    raise AssertionError(("no error", [x.shape for x in arrays], options))

def empty(*arrays, **options):
    # Nothing to compute: an empty result, at once, or an error.
    try:
        assert attention(*arrays, **options).size == 0
    except (ValueError, MemoryError) as error:
        assert str(error), "an empty message"

one = huge(1, 1, 1)
n30, n31, n32, n40, n60 = (2**n for n in (30, 31, 32, 40, 60))

# The output's bytes: over 2^63, 2^63, 2^62, and more than any machine has.
fails(huge(1, n40, 1), huge(1, 1, 1), huge(1, 1, n40))
fails(huge(1, n31, 1), huge(1, 1, 1), huge(1, 1, n30))
fails(huge(1, n30, 1), huge(1, 1, 1), huge(1, 1, n30))
fails(huge(1, n40, 1), huge(1, 1, 1), huge(1, 1, 2**8))
fails(huge(n40, 1, 1), huge(1, 1, 1), huge(1, 1, n30))
fails(huge(n30, n30, 1), one, one)
fails(huge(n60, 1, 1), one, one)
fails(huge(1, n60, 1), one, one)
fails(huge(1, 1, 1), one, huge(1, 1, n60))
# Broadcasting multiplies sizes that were each possible.
fails(huge(n40, 1, 1, 1, 1), huge(n40, 1, 1, 1), one)
fails(huge(n31, 1, 1, 1, 1), huge(n32, 1, 1, 1), one)
fails(huge(n31, 1, 1, 1, 1, 1), huge(n31, 1, 1, 1, 1), huge(n31, 1, 1, 1))
# The weights and the LSE, with a possible output.
for n in (n31, n32, n40):
    fails(huge(1, n, 1), huge(1, n, 1), huge(1, n, 0), return_weights=True)
fails(huge(1, n60, 0), huge(1, 0, 0), huge(1, 0, 0), return_lse=True)
fails(huge(n30, n30, 0), huge(1, 0, 0), huge(1, 0, 0), return_lse=True)
fails(huge(1, 2**24, 1), huge(1, n40, 1), huge(1, n40, 0), return_weights=True)
fails(huge(n40, 1, 1, 1, 1), huge(n40, 1, 1, 1), huge(1, 1, 0), return_lse=True)
# Dv = 0 and D = 0.
empty(huge(1, n60, 1), one, huge(1, 1, 0))
empty(huge(n30, n30, 1), huge(n30, n30, 1), huge(n30, n30, 0))
empty(huge(1, n40, 1), huge(1, n40, 1), huge(1, n40, 0))
empty(huge(n40, 1, 1, 1, 1), huge(n40, 1, 1, 1), huge(1, 1, 0))
fails(huge(1, n60, 0), huge(1, 1, 0), one)
fails(huge(n30, n30, 0), huge(1, 1, 0), one)
empty(huge(1, n60, 0), huge(1, n60, 0), huge(1, n60, 0))
empty(huge(0, n60, 1), huge(1, n60, 1), huge(1, n60, 1))
empty(huge(1, 0, 1), huge(1, n60, 1), huge(1, n60, 1))
# A tile of 64 queries: D * 64 * 4 bytes are 2^64, 2^63, and 2^60.
for dim in (2**56, 2**56 + 1, 2**55, 2**52):
    fails(huge(1, 9, dim), huge(1, 1, dim), one)
    half = np.broadcast_to(np.zeros((), np.float16), (1, 9, dim))
    fails(half, half[:, :1], half[:, :1, :1])
# A mask, a bias and lengths as large as they can be, in a call that must fail.
mask = np.broadcast_to(True, (1, n31, n31))
fails(huge(1, n31, 1), huge(1, n31, 1), huge(1, n31, 2**29), mask=mask)
fails(huge(1, n30, 1), huge(1, n30, 1), huge(1, n30, n30), bias=huge(1, n30, n30))
lengths = np.broadcast_to(np.int64(0), (n40,))
fails(huge(n40, 1, 1, 1), huge(1, 0, 1), huge(1, 0, 2**24), kv_lengths=lengths)
"""


@pytest.mark.quick
def test_sizes_that_overflow_are_an_error():
    # In a process of its own: a missed overflow is a crash or an endless loop.
    assert_runs(HUGE)


@pytest.mark.quick
def test_many_axes(attend):
    query, key, value = problem(1, 3, 4, 2, 2)
    deep = (1,) * 25
    results = everything(
        attend, *(x.reshape(deep + x.shape) for x in (query, key, value))
    )
    assert [x.ndim for x in results] == [28, 28, 27]
    expected = everything(attend, query, key, value)
    for x, y in zip(results, expected, strict=True):
        assert_same_bits(x.reshape(y.shape), y)
