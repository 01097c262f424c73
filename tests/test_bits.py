"""The bits of a row depend only on what it sees: every comparison here is exact.

Not on the instruction set, threads, batch, memory layout, tiling, chunking, prefill or
decode, padding, nor on what else is asked for. All four dtypes, every tier.
"""

import ctypes
import platform

import numpy as np
import pytest
from support.arrays import dtype_of, lay_out
from support.arrays import normal as standard_normal
from support.arrays import problem as float_problem
from support.calls import (
    PLAIN_TIERS,
    TIERS,
    everything,
    has_rounded_weights,
    needs_test_hooks,
    on_tier,
    threads_for_any_work,
)
from support.comparisons import assert_right, assert_same_bits

from attnpy import _attnpy, attention

THREADS = (1, 2, 3, 7)
N_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 31, 32, 33, 63, 64, 65)
KEYS = (1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65)
KEYS += (127, 128, 129, 511, 512, 513, 1023, 1024, 1025)
OPTIONS = (
    {},
    {"causal": True},
    {"window": (60, 2)},
    {"causal": "top_left", "softcap": 2.0, "sinks": np.array([0.3, -1.0, 2.0, 0.0])},
    {"mask": np.random.default_rng(3).random((4, 1, 150)) < 0.5, "kv_lengths": 140},
    {"bias": standard_normal(1, 21, 150), "scale": -0.3},
)


@pytest.fixture(autouse=True, scope="module")
def use_threads():
    """Calls use the threads that they are given, however little there is to do."""
    with threads_for_any_work():
        yield


@pytest.fixture
def problem(dtype):
    """A maker of (query, key, value) of the dtype under test."""
    return lambda *sizes, **more: float_problem(*sizes, dtype=dtype, **more)


def rows(results, part):
    """Some query rows of (output, weights, lse)."""
    return results[0][..., part, :], results[1][..., part, :], results[2][..., part]


@pytest.fixture(scope="module", params=PLAIN_TIERS[:-1] or [None])
def compare_tier(request):
    """A function that makes one call on a vector tier and on the scalar tier."""
    if request.param is None:
        pytest.skip("this CPU has only the scalar tier")

    def compare(arrays, **options):
        expected = everything(on_tier("scalar"), *arrays, **options)
        actual = everything(on_tier(request.param), *arrays, **options)
        assert_same_bits(actual, expected)

    return compare


@pytest.mark.quick(dtype=("float32", "float16"))
@pytest.mark.parametrize("options", OPTIONS, ids=lambda x: "-".join(x) or "plain")
def test_every_tier_has_the_bits_of_the_scalar_tier(compare_tier, problem, options):
    compare_tier(problem(4, 21, 150, 20, 13, n_kv_heads=2), **options)


@pytest.mark.quick(dtype=("float32",))
def test_every_tier_has_those_bits_for_any_number_of_rows(compare_tier, problem):
    for n_rows in N_ROWS:
        compare_tier(problem(2, n_rows, 40, 6, 5), causal=True)
        compare_tier(problem(n_rows, 1, 40, 6, 5, n_kv_heads=1))


def test_every_tier_has_those_bits_for_any_number_of_keys(compare_tier, problem):
    for n_keys in KEYS:
        for n_queries in (1, 5, 17):
            compare_tier(problem(1, n_queries, n_keys, 3, 4))


def test_every_tier_has_those_bits_for_any_head_dimension(compare_tier, problem):
    for dim in (*range(1, 35), 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129):
        for n_queries in (1, 17):
            compare_tier(problem(1, n_queries, 19, dim, 2))
            compare_tier(problem(1, n_queries, 48, dim, 2))
            compare_tier(problem(1, n_queries, 19, 2, dim))


@pytest.mark.quick(dtype=("float32", "float16"))
@needs_test_hooks
@pytest.mark.parametrize("tuning", ["narrow_tiles", "pair_tiles"])
def test_tiles_change_no_bit(tuning, problem):
    masks = np.tril(np.ones((70, 150), bool)), np.arange(150) < np.arange(70)[:, None]
    options = [{"causal": True}, {"causal": "top_left", "softcap": 2.0}]
    options += [{"mask": mask} for mask in masks]
    options += [
        {"mask": masks[0], "bias": standard_normal(70, 150)},
        {"window": (9, 3)},
    ]
    query, key, value = problem(2, 70, 150, 65, 40)
    hidden = value.copy()
    hidden[:, 60] = np.inf

    def results():
        for more in options:
            yield everything(attention, query, key, value, **more)
            yield everything(attention, query, key, hidden, **more)

    before = _attnpy.set_tuning(tuning, False)
    expected = list(results())
    assert _attnpy.set_tuning(tuning, True) is False
    actual = list(results())
    _attnpy.set_tuning(tuning, before)
    for one, other in zip(actual, expected, strict=True):
        assert_same_bits(one, other)


def test_every_tier_has_those_bits_for_numbers_of_any_size(compare_tier, problem):
    for n_queries in (1, 17):
        query, key, value = problem(1, n_queries, 200, 7, 5)
        spread = np.exp(np.linspace(-80, 80, 200))[None, :, None]
        with np.errstate(over="ignore", under="ignore"):
            spread = spread.astype(query.dtype if query.dtype.kind == "f" else "f4")
            spread = np.where(np.isfinite(spread), spread, 1).astype(query.dtype)
            value = (value * spread).astype(query.dtype)
        value = np.where(np.isfinite(value.astype(float)), value, 0).astype(query.dtype)
        for scale in (1e-30, 0.1, 1.0, 40.0, 1e4):
            compare_tier((query, key, value), scale=scale)


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS, ids=lambda x: "-".join(x) or "plain")
def test_threads_change_no_bit(attend, problem, options):
    query, key, value = problem(4, 21, 150, 20, 13, n_kv_heads=2)
    query = np.stack([query, query[::-1]])
    expected = everything(attend, query, key, value, num_threads=1, **options)
    for threads in THREADS:
        actual = everything(attend, query, key, value, num_threads=threads, **options)
        assert_same_bits(actual, expected)


def test_threads_change_no_bit_of_many_tasks_and_long_caches(attend, problem):
    for arrays in (
        problem(1, 300, 40, 3, 2),
        problem(1, 1, 1700, 8, 4),
        problem(6, 1, 1100, 8, 4, n_kv_heads=2),
        problem(2, 3, 1100, 8, 4),
    ):
        expected = everything(attend, *arrays, num_threads=1, causal=True)
        for threads in THREADS:
            actual = everything(attend, *arrays, num_threads=threads, causal=True)
            assert_same_bits(actual, expected)


@pytest.mark.quick(n_rows=(1,), options=({},))
@pytest.mark.parametrize("n_rows", [1, 30, 70])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "kv_lengths": 8300},
        {"window": (4000, None), "sinks": np.array([0.5])},
        {"mask": np.random.default_rng(4).random((1, 9001)) < 0.3, "softcap": 3.0},
    ],
)
def test_sharing_the_keys_of_one_head_between_threads_changes_no_bit(
    dtype, n_rows, options
):
    query = standard_normal(1, n_rows, 60, dtype=dtype)
    key, value = standard_normal(2, 1, 9001, 60, dtype=dtype)
    attend = on_tier(TIERS[0])
    expected = everything(attend, query, key, value, num_threads=1, **options)
    for threads in (2, 3, 7):
        actual = everything(attend, query, key, value, num_threads=threads, **options)
        assert_same_bits(actual, expected)


@pytest.mark.quick(n_queries=(21,))
@pytest.mark.parametrize("n_queries", [1, 21])
def test_batch_size_and_position_change_no_bit(attend, problem, n_queries):
    singles = [problem(2, n_queries, 150, 9, 5, seed=i) for i in range(5)]
    alone = [everything(attend, *arrays, causal=True) for arrays in singles]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0], [3]):
        batch = [np.stack(x) for x in zip(*(singles[i] for i in order), strict=True)]
        results = everything(attend, *batch, causal=True)
        for position, i in enumerate(order):
            assert_same_bits(tuple(x[position] for x in results), alone[i])


@pytest.mark.quick(n_rows=(1, 5, 17))
@pytest.mark.parametrize("n_rows", N_ROWS)
def test_number_of_rows_beside_a_row_changes_no_bit(attend, problem, n_rows):
    query, key, value = problem(1, 66, 150, 9, 5)
    whole = everything(attend, query, key, value)
    first = everything(attend, query[:, :n_rows], key, value)
    assert_same_bits(first, rows(whole, slice(n_rows)))
    last = everything(attend, query[:, -n_rows:], key, value)
    assert_same_bits(last, rows(whole, slice(-n_rows, None)))


@pytest.mark.quick(dtype=("float32", "bfloat16"))
def test_a_single_row_has_the_bits_of_many_for_any_head_dimension(attend, problem):
    for dim in (1, 2, 8, 15, 16, 17, 24, 31, 32, 33, 40, 64, 72, 130, 520):
        for n_keys in (15, 16, 31, 32, 48, 80, 128, 176):
            query, key, value = problem(1, 20, n_keys, dim, 4)
            whole = everything(attend, query, key, value)
            single = everything(attend, query[:, 3:4], key, value)
            assert_same_bits(single, rows(whole, slice(3, 4)))


@pytest.mark.quick(dtype=("bfloat16",))
def test_values_of_an_earlier_call_or_head_are_not_used(attend, problem):
    query, key, value = problem(2, 150, 300, 16, 40)
    for n in range(3):
        value[:] = value[::-1].copy()
        if n == 2:
            value[:, 200, 3] = np.inf
        whole = everything(attend, query, key, value, causal=True)
        for first in (0, 70, 146):
            some = query[:, first : first + 4]
            part = everything(
                attend, some, key, value, causal=True, q_offset=150 + first
            )
            assert_same_bits(part, rows(whole, slice(first, first + 4)))


@pytest.mark.quick(dtype=("bfloat16", "float16"))
def test_keys_of_another_head_with_the_same_values_are_not_used(attend, problem):
    query, key, value = problem(8, 150, 300, 16, 40)
    shared = np.broadcast_to(value[:1], value.shape)
    results = everything(attend, query, key, shared)
    assert_same_bits(results, everything(attend, query, key, shared.copy()))


def layouts(array):
    """Equal arrays (H, L, D) in other layouts."""
    n = array.ndim
    yield "C order", lay_out(array)
    yield "Fortran order", np.asfortranarray(array)
    yield "(L, H, D) in memory", lay_out(array, order=(1, 0, 2))
    yield "(H, D, L) in memory", lay_out(array, order=(0, 2, 1))
    yield "padded rows", lay_out(np.pad(array, [(0, 0)] * (n - 1) + [(0, 3)]))[..., :-3]
    yield "every second element", lay_out(array, steps=(1,) * (n - 1) + (2,))
    yield "every third row", lay_out(array, steps=(1, 3, 1))
    yield "backwards", lay_out(array, steps=(-1,) * n)
    yield "last axis backwards", lay_out(array, steps=(1, 1, -1))
    yield "all at once", lay_out(array, order=(2, 0, 1), steps=(2, -1, -3))


@pytest.mark.quick(n_queries=(3,))
@pytest.mark.parametrize("n_queries", [1, 3, 21])
def test_layout_changes_no_bit(attend, problem, n_queries):
    arrays = problem(4, n_queries, 150, 20, 13, n_kv_heads=2)
    options = {"causal": True}
    expected = everything(attend, *arrays, **options)
    for name, *views in (
        (each[0][0], *(view for _, view in each))
        for each in zip(*(list(layouts(x)) for x in arrays), strict=True)
    ):
        for i, view in enumerate(views):
            mixed = [*arrays[:i], view, *arrays[i + 1 :]]
            actual = everything(attend, *mixed, **options)
            assert actual[0].flags.c_contiguous, name
            assert_same_bits(actual, expected)
        assert_same_bits(everything(attend, *views, **options), expected)


@pytest.mark.quick
@pytest.mark.parametrize("n_keys", [16, 77])
def test_keys_whole_pages_apart_change_no_bit(attend, problem, n_keys):
    query, key, value = problem(4, 1, n_keys, 64, 64, n_kv_heads=4)
    apart = [np.repeat(x[:, :, None], 16, axis=2)[:, :, 0] for x in (key, value)]
    assert all(x.strides[-2] % 2048 == 0 for x in apart)
    expected = everything(attend, query, key, value)
    assert_same_bits(everything(attend, query, *apart), expected)


@pytest.mark.quick
def test_layout_of_mask_and_bias_changes_no_bit(attend, problem, dtype):
    arrays = problem(2, 21, 150, 9, 5)
    mask = np.random.default_rng(1).random((2, 21, 150)) < 0.6
    bias = standard_normal(2, 21, 150).astype(dtype)
    expected = everything(attend, *arrays, mask=mask, bias=bias)
    for (_, one), (_, other) in zip(layouts(mask), layouts(bias), strict=True):
        assert_same_bits(everything(attend, *arrays, mask=one, bias=bias), expected)
        assert_same_bits(everything(attend, *arrays, mask=mask, bias=other), expected)
        assert_same_bits(everything(attend, *arrays, mask=one, bias=other), expected)


@pytest.mark.quick(chunks=((5, 32, 33),))
@pytest.mark.parametrize("chunks", [(5, 32, 33), (69, 1), (1, 1, 68), (64, 6)])
def test_chunked_prefill_has_the_bits_of_one_call(attend, problem, chunks):
    query, key, value = problem(4, 70, 140, 9, 5, n_kv_heads=2)
    whole = everything(attend, query, key, value, causal=True)
    start = 0
    for size in chunks:
        part, seen = slice(start, start + size), 70 + start + size
        piece = query[:, part]
        expected = rows(whole, part)
        # The cache as it stood then, and the whole cache with a length or an offset.
        grown = everything(attend, piece, key[:, :seen], value[:, :seen], causal=True)
        assert_same_bits(grown[0], expected[0])
        assert_same_bits(grown[1], expected[1][..., :seen])
        assert_same_bits(grown[2], expected[2])
        for options in ({"kv_lengths": seen}, {"q_offset": 70 + start}):
            actual = everything(attend, piece, key, value, causal=True, **options)
            assert_same_bits(actual, expected)
        start += size


@pytest.mark.quick
@pytest.mark.parametrize("options", [{}, {"window": (40, 0)}, {"softcap": 1.0}])
def test_decode_has_the_bits_of_prefill(attend, problem, options):
    query, key, value = problem(4, 140, 140, 9, 5, n_kv_heads=2)
    options = {"causal": True, **options}
    whole = everything(attend, query, key, value, **options)
    for i in (0, 1, 2, 7, 63, 64, 127, 128, 139):
        row, expected = slice(i, i + 1), rows(whole, slice(i, i + 1))
        cache = key[:, : i + 1], value[:, : i + 1]
        output, _, lse = everything(attend, query[:, row], *cache, **options)
        assert_same_bits((output, lse), (expected[0], expected[2]))
        for more in ({"kv_lengths": i + 1}, {"q_offset": i}):
            actual = everything(attend, query[:, row], key, value, **options, **more)
            assert_same_bits(actual, expected)


@pytest.mark.parametrize("form", [1, 2, 20])
def test_decode_over_chunks_of_keys_has_the_bits_of_prefill(attend, problem, form):
    query, key, value = problem(1, 20, 1100, 5, 4)
    whole = everything(attend, query, key, value, causal=True)
    for i in range(0, 20, form):
        part, position = slice(i, i + form), 1080 + i
        for threads in (1, 3):
            options = {"q_offset": position, "num_threads": threads}
            actual = everything(
                attend, query[:, part], key, value, causal=True, **options
            )
            assert_same_bits(actual, rows(whole, part))


@pytest.mark.quick(length=(17, 129))
@pytest.mark.parametrize("length", [0, 1, 16, 17, 127, 128, 129, 150])
@pytest.mark.parametrize("n_queries", [1, 21])
def test_padding_keys_change_no_bit(attend, problem, n_queries, length):
    query, key, value = problem(2, n_queries, 200, 9, 5)
    key[:, length:], value[:, length:] = np.nan, np.inf
    short = everything(attend, query, key[:, :length], value[:, :length])
    padded = everything(attend, query, key, value, kv_lengths=length)
    assert_same_bits((padded[0], padded[2]), (short[0], short[2]))
    assert_same_bits(padded[1][..., :length], short[1])
    assert not padded[1][..., length:].any()
    assert_same_bits(
        everything(attend, query, key, value, mask=np.arange(200) < length), padded
    )


@pytest.mark.quick
def test_each_length_of_a_ragged_batch_is_as_alone(attend, problem):
    query, key, value = problem(10, 5, 140, 9, 4)
    query, key, value = (x.reshape(5, 2, *x.shape[1:]) for x in (query, key, value))
    lengths = np.array([140, 0, 1, 128, 77])
    batch = everything(attend, query, key, value, kv_lengths=lengths, causal=True)
    for b, n in enumerate(lengths):
        alone = everything(
            attend, query[b], key[b, :, :n], value[b, :, :n], causal=True
        )
        assert_same_bits((batch[0][b], batch[2][b]), (alone[0], alone[2]))
        assert_same_bits(batch[1][b, ..., :n], alone[1])


@pytest.mark.quick(n_queries=(3,))
@pytest.mark.parametrize("n_queries", [1, 3, 21])
@pytest.mark.parametrize("options", OPTIONS[1:4], ids="-".join)
def test_asking_for_weights_or_lse_changes_no_bit(attend, problem, options, n_queries):
    arrays = problem(4, n_queries, 600, 9, 5, n_kv_heads=2)
    output, weights, lse = everything(attend, *arrays, **options)
    assert_same_bits(attend(*arrays, **options), output)
    only = attend(*arrays, return_weights=True, **options)
    assert_same_bits(only, (output, weights))
    assert_same_bits(attend(*arrays, return_lse=True, **options), (output, lse))


@pytest.mark.quick(n_kv_heads=(2,))
@pytest.mark.parametrize("n_queries", [1, 2, 4, 5, 21])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3])
def test_grouped_heads_have_the_bits_of_repeated_heads(
    attend, problem, n_kv_heads, n_queries
):
    query, key, value = problem(6, n_queries, 150, 9, 5, n_kv_heads=n_kv_heads)
    grouped = everything(attend, query, key, value, causal=True)
    repeated = [np.repeat(x, 6 // n_kv_heads, axis=0) for x in (key, value)]
    assert_same_bits(everything(attend, query, *repeated, causal=True), grouped)


POSITIONAL = {
    "bottom right": ({"causal": True}, (None, 0), 150 - 21),
    "top left": ({"causal": "top_left"}, (None, 0), 0),
    "offset": ({"causal": True, "q_offset": 40}, (None, 0), 40),
    "window": ({"window": (30, 5)}, (30, 5), 150 - 21),
    "narrow window": ({"window": (0, 0), "q_offset": 120}, (0, 0), 120),
    "left only": ({"window": (3, None)}, (3, None), 150 - 21),
    "causal window": ({"window": (9, 9), "causal": True}, (9, 0), 150 - 21),
    "empty rows": ({"causal": True, "q_offset": -9}, (None, 0), -9),
    "past the end": ({"window": (2, 2), "q_offset": 140}, (2, 2), 140),
}


@pytest.mark.quick(n_queries=(3,))
@pytest.mark.parametrize("n_queries", [1, 3, 21])
@pytest.mark.parametrize("name", POSITIONAL)
def test_causal_and_window_have_the_bits_of_a_mask(attend, problem, name, n_queries):
    options, (left, right), first = POSITIONAL[name]
    query, key, value = problem(4, 21, 150, 9, 5, n_kv_heads=2)
    position, j = first + np.arange(21)[:, None], np.arange(150)
    mask = np.ones((21, 150), bool)
    mask &= True if left is None else j >= position - left
    mask &= True if right is None else j <= position + right
    options = {"q_offset": first, **options}
    query, mask = query[:, :n_queries], mask[:n_queries]
    assert_same_bits(
        everything(attend, query, key, value, **options),
        everything(attend, query, key, value, mask=mask),
    )


@pytest.mark.quick(n_queries=(21,))
@pytest.mark.parametrize("n_queries", [1, 21])
def test_mask_of_true_has_the_bits_of_no_mask(attend, problem, n_queries):
    arrays = problem(2, n_queries, 150, 9, 5)
    expected = everything(attend, *arrays)
    for shape in ((), (150,), (n_queries, 1), (2, n_queries, 150)):
        mask = np.ones(shape, bool)
        assert_same_bits(everything(attend, *arrays, mask=mask), expected)


@pytest.mark.quick(n_queries=(21,))
@pytest.mark.parametrize("n_queries", [1, 3, 21])
def test_bias_of_minus_infinity_has_the_bits_of_a_mask(attend, problem, n_queries):
    arrays = problem(2, n_queries, 300, 9, 5)
    mask = np.random.default_rng(1).random((2, n_queries, 300)) < 0.3
    mask[:, :, 128:256] = False
    mask[0, 0] = False
    bias = standard_normal(2, n_queries, 300)
    assert_same_bits(
        everything(attend, *arrays, bias=np.where(mask, bias, -np.inf)),
        everything(attend, *arrays, bias=bias, mask=mask),
    )


@pytest.mark.quick(n_queries=(21,))
@pytest.mark.parametrize("n_queries", [1, 3, 21, 150])
def test_bias_with_causality_has_the_bits_of_one_that_hides(attend, problem, n_queries):
    """In both forms, for rows that begin a block of keys, cross one, and end one."""
    query, key, value = problem(4, 150, 300, 9, 5, n_kv_heads=2)
    bias = standard_normal(4, 150, 300).astype(query.dtype)
    hidden = bias.dtype.type(-np.inf)
    i, j = np.ogrid[:150, :300]
    for offset in (0, 100, 150):
        seen, part = j <= i + offset, slice(150 - n_queries, 150)
        options = {"causal": True, "q_offset": offset + 150 - n_queries}
        results = everything(
            attend, query[:, part], key, value, bias=bias[:, part], **options
        )
        for same in ({"bias": np.where(seen, bias, hidden)}, {"mask": seen}):
            same = {"bias": bias} | same
            expected = everything(attend, query, key, value, **same)
            assert_same_bits(results, rows(expected, part))
    assert_right(attend, query, key, value, bias=bias, causal=True)


@pytest.mark.quick(n_queries=(64,))
@pytest.mark.parametrize("n_queries", [3, 64, 96])
def test_bias_that_hides_few_keys_has_the_bits_of_a_mask(attend, problem, n_queries):
    query, key, value = problem(2, n_queries, 320, 9, 5)
    value[1, 199], value[0, 9] = np.nan, np.inf
    places = [(2, 9), (n_queries - 1, 100), (n_queries // 2, 199), slice(None)]
    for i, j in [*places[:3], (places[3], 9), (places[3], [9, 70, 199, 319])]:
        bias = standard_normal(2, n_queries, 320).astype(query.dtype)
        bias[:, 1, 50] = np.inf, np.nan
        mask = np.ones(bias.shape, bool)
        mask[:, i, j] = False
        expected = everything(attend, query, key, value, bias=bias, mask=mask)
        bias[~mask] = -np.inf
        assert_same_bits(everything(attend, query, key, value, bias=bias), expected)


@pytest.mark.quick(shape=((70, 150),), kind=("float32",))
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "shape", [(2, 70, 150), (1, 70, 150), (70, 150), (70, 1), (2, 1, 150), ()], ids=str
)
def test_bias_of_many_queries_has_the_bits_of_few(attend, problem, shape, kind):
    query, key, value = problem(2, 70, 150, 9, 5)
    mask = np.random.default_rng(1).random((2, 70, 150)) < 0.6
    bias = standard_normal(*shape)
    bias.flat[5::7] = -np.inf
    bias.flat[33::500] = np.nan
    bias = bias.astype(kind)
    wide = np.broadcast_to(bias, mask.shape)
    columns = np.asfortranarray(wide)
    for options in ({}, {"mask": mask}, {"softcap": 2.0}):
        whole = everything(attend, query, key, value, bias=bias, **options)
        other = everything(attend, query, key, value, bias=columns, **options)
        assert_same_bits(other, whole)
        for first, end in ((0, 1), (3, 16), (16, 29), (5, 69)):
            part = slice(first, end)
            if "mask" in options:
                options = {"mask": mask[:, part]}
            few = everything(
                attend, query[:, part], key, value, bias=wide[:, part], **options
            )
            assert_same_bits(few, rows(whole, part))


@pytest.mark.quick(n_queries=(21,))
@pytest.mark.parametrize("n_queries", [1, 21])
def test_unseen_blocks_and_chunks_change_no_bit(attend, problem, n_queries):
    query, key, value = problem(1, n_queries, 1300, 5, 4)
    mask = np.zeros(1300, bool)
    mask[[600, 601, 1030]] = True
    expected = everything(attend, query, key, value, mask=mask)
    key[:, :512], value[:, :512], value[:, 1100:] = 7, np.nan, np.inf
    assert_same_bits(everything(attend, query, key, value, mask=mask), expected)
    lower = everything(attend, query, key, value, mask=mask, window=(1300, 0))
    assert_same_bits(lower, expected)


@pytest.mark.quick(kind=("float16",))
@pytest.mark.parametrize("n_queries", [1, 3, 21])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_16_bit_results_are_float32_results_rounded_once(attend, kind, n_queries):
    dtype = dtype_of(kind)
    if has_rounded_weights(attend, dtype):
        pytest.skip("native dot products have their own bits")
    arrays = float_problem(4, n_queries, 600, 20, 13, dtype, n_kv_heads=2)
    results = everything(attend, *arrays, causal=True)
    wide = everything(attend, *(x.astype("float32") for x in arrays), causal=True)
    rounded = [x.astype(dtype) for x in wide[:2]]
    rounded = [np.where(x == 0, dtype.type(0), x) for x in rounded]  # no -0
    assert_same_bits(results, (*rounded, wide[2]))


@pytest.mark.quick
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 rounding mode bits")
def test_callers_rounding_mode_changes_no_bit_and_is_left_alone(attend, problem):
    upward, libm = 0x800, ctypes.CDLL(None)
    for sizes in ((2, 70, 70, 9, 5), (2, 1, 70, 9, 5)):
        arrays = problem(*sizes)
        expected = everything(attend, *arrays)
        before = libm.fegetround()
        libm.fesetround(upward)
        try:
            actual = everything(attend, *arrays)
            after = libm.fegetround()
        finally:
            libm.fesetround(before)
        assert after == upward
        assert_same_bits(actual, expected)


def test_repeated_calls_have_the_same_bits(attend, problem):
    arrays = problem(4, 70, 150, 9, 5)
    expected = everything(attend, *arrays, causal=True)
    for _ in range(20):
        assert_same_bits(everything(attend, *arrays, causal=True), expected)
