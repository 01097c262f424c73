"""Statistics without the weights are those of the weights, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.arrays import (
    byte_swapped,
    dtype_of,
    lay_out,
    mask_and_bias,
    misaligned,
    normal,
    problem,
)
from support.calls import (
    TIERS,
    has_rounded_weights,
    measure_on,
    on_tier,
    threads_for_any_work,
)
from support.comparisons import assert_same_bits
from support.errors import refused
from support.statistics import in_steps, log, plain, positions_of

import attnpy

N_QUERIES, N_KEYS, TOP_K = 70, 300, 4
MASK, BIAS = mask_and_bias(N_QUERIES, N_KEYS)
OPTIONS = {
    "none": {},
    "mask": {"mask": MASK},
    "bias": {"bias": BIAS},
    "causal": {"causal": True},
    "top_left": {"causal": "top_left"},
    "window": {"window": (40, 3)},
    "q_offset": {"q_offset": 70},
    "kv_lengths": {"kv_lengths": 131},
    "scale": {"scale": -0.7},
    "one-hot": {"scale": 60.0},  # most weights underflow
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": np.array([0.5, -2.0, 3.0, -np.inf])},
    "all": {
        "mask": MASK,
        "bias": BIAS,
        "causal": True,
        "window": (200, 3),
        "q_offset": 250,
        "kv_lengths": 290,
        "scale": 0.3,
        "softcap": 2.5,
        "sinks": np.zeros(4),
    },
}


def measured(tier, query, key, *, top_k=TOP_K, **options):
    """All statistics on one instruction set, without values."""
    return measure_on(tier, query, key, top_k=top_k, **options)[:5]


def weights_of(tier, query, key, **options):
    attend = on_tier(tier)
    return attend(query, key, key, return_weights=True, **options)[1]


def assert_those_of_the_weights(tier, query, key, top_k=TOP_K, **options):
    weights = weights_of(tier, query, key, **options)
    expected = in_steps(weights, positions_of(weights, **options), top_k)
    found = measured(tier, query, key, top_k=top_k, **options)
    assert_same_bits(found, expected)
    return found


@pytest.mark.quick(name=("none", "all"), dtype=("float32",))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIONS)
def test_statistics_have_the_bits_of_the_full_weights(tier, name, dtype):
    query, key, _ = problem(4, N_QUERIES, N_KEYS, 9, 1, dtype, n_kv_heads=2)
    assert_those_of_the_weights(tier, query, key, **OPTIONS[name])


SIZES = (1, 2, 3, 8, 17, 63, 64, 65, 129, 200)


@pytest.mark.parametrize("n_queries", SIZES)
@pytest.mark.parametrize("n_keys", (1, 5, 16, 127, 129, 513))
def test_any_sizes(n_queries, n_keys):
    query, key, _ = problem(2, n_queries, n_keys, 5, 1, seed=3)
    for tier in TIERS:
        assert_those_of_the_weights(tier, query, key, causal=True)
        assert_those_of_the_weights(tier, query, key, top_k=n_keys + 2)


@pytest.mark.quick
def test_statistics_are_those_of_the_formulas(tier, dtype):
    query, key, _ = problem(4, N_QUERIES, N_KEYS, 9, 1, dtype, n_kv_heads=2)
    _, weights, _ = reference.attention(query, key, key, causal=True)
    *expected, top, _ = plain(weights, positions_of(weights), TOP_K)
    *found, top_weights, top_keys = measured(tier, query, key, causal=True)
    native = has_rounded_weights(on_tier(tier), dtype)
    real = np.float64 if dtype == np.float64 else np.float32
    limit = 0.02 if native else 1e-13 if real is np.float64 else 2e-5
    for one, other in zip([*found, top_weights], [*expected, top], strict=True):
        assert one.dtype == real
        np.testing.assert_allclose(one, other, rtol=limit, atol=limit)
    assert top_keys.dtype == np.int64
    there = np.take_along_axis(weights, np.maximum(top_keys, 0), -1)
    np.testing.assert_allclose(np.where(top_keys < 0, 0, there), top, 0, limit)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_widened_first(tier, dtype):
    query, key, _ = problem(2, N_QUERIES, N_KEYS, 9, 1, dtype_of(dtype))
    if has_rounded_weights(on_tier(tier), query.dtype):
        pytest.skip("its dot products have bits of their own")
    wide = (query.astype(np.float32), key.astype(np.float32))
    assert_same_bits(measured(tier, query, key), measured(tier, *wide))


def test_every_tier_gives_the_same_bits_with_any_number_of_threads():
    query, key, _ = problem(2, 700, 900, 33, 1, seed=5)
    expected = measured("scalar", query, key, causal=True, num_threads=1)
    with threads_for_any_work():
        for tier in TIERS:
            for n in (1, 2, 3, 7):
                found = measured(tier, query, key, causal=True, num_threads=n)
                assert_same_bits(found, expected)


@pytest.mark.quick
def test_more_sums_than_wait_at_once(tier):
    # Rows of 40,000 sums of float64: 52 of them are 16 MiB, and there are 70 blocks.
    query, key = normal(2, 64 * 35 - 5, 1), normal(2, 40_000, 1)
    query, key = query.astype(float), key.astype(float)
    found = measured(tier, query, key, window=(10, 10), q_offset=37_000)
    for head in range(2):
        alone = measured(tier, query[head], key[head], window=(10, 10), q_offset=37_000)
        assert_same_bits(alone, tuple(x[head].copy() for x in found))
    np.testing.assert_allclose(found[0].sum(axis=-1), query.shape[1])
    assert not found[0][:, : 37_000 - 10].any()


@pytest.mark.quick
def test_batches_layouts_and_groups_change_no_bit():
    query, key = normal(2, 3, 4, 90, 9), normal(2, 1, 2, 150, 9, seed=1)
    found = attnpy.statistics(query, key, causal=True)
    for i, j, h in np.ndindex(2, 3, 4):
        alone = attnpy.statistics(query[i, j, h], key[i, 0, h // 2], causal=True)
        for one, other in zip(found[:5], alone[:5], strict=True):
            assert_same_bits(one[i, j, h].copy(), other)
    stored = [
        (lay_out(query, (0, 1, 3, 2, 4)), lay_out(key, (4, 3, 2, 1, 0))),
        (lay_out(query, steps=(1, 1, -1, -2, 3)), lay_out(key, steps=(1, 1, 2, -1, 2))),
        (misaligned(query), byte_swapped(key)),
    ]
    for arrays in stored:
        again = attnpy.statistics(*arrays, causal=True)
        assert_same_bits(again[:5], found[:5])


def test_queries_that_are_cut_off_change_nothing_of_the_others():
    query, key, _ = problem(1, 130, 300, 9, 1)
    whole = attnpy.statistics(query, key)
    part = attnpy.statistics(query[:, :64], key, q_offset=170)
    rest = attnpy.statistics(query[:, 64:], key, q_offset=234)
    for name in ("entropy", "distance", "top_weights", "top_keys"):
        both = np.concatenate([getattr(x, name) for x in (part, rest)], axis=1)
        assert_same_bits(both, getattr(whole, name))


@pytest.mark.quick
def test_with_values_the_output_is_that_of_attention(tier):
    query, key, value = problem(4, 70, 300, 9, 6, n_kv_heads=2)
    options = {"causal": True, "sinks": np.zeros(4)}
    *found, output = measure_on(tier, query, key, value, top_k=TOP_K, **options)
    assert_same_bits(output, on_tier(tier)(query, key, value, **options))
    assert_same_bits(tuple(found), measured(tier, query, key, **options))


def test_one_query_is_a_row():
    query, key = normal(9), normal(50, 9)
    found = attnpy.statistics(query, key, key)
    assert [np.shape(x) for x in found] == [(50,), (), (), (8,), (8,), (9,)]
    rows = attnpy.statistics(query[np.newaxis], key, key)
    assert_same_bits(found.received, rows.received)
    for one, other in zip(found[1:], rows[1:], strict=True):
        assert_same_bits(np.asarray(one), other[0])
    batch = attnpy.statistics(query, normal(3, 1, 50, 9))
    assert batch.received.shape == (3, 1, 50)
    assert batch.top_keys.shape == (3, 1, 8)


@pytest.mark.quick
def test_packed_sequences_have_the_statistics_of_each_alone():
    n_queries, n_keys = (3, 0, 64, 130), (129, 4, 0, 300)
    query, key = normal(4, sum(n_queries), 9), normal(2, sum(n_keys), 9, seed=1)
    offsets = [np.concatenate([[0], np.cumsum(n)]) for n in (n_queries, n_keys)]
    found = attnpy.statistics(query, key, causal=True, seq_offsets=tuple(offsets))
    assert found.received.shape == (4, sum(n_keys))
    assert found.top_keys.shape == (4, sum(n_queries), 8)
    for i in range(4):
        rows, keys = (slice(o[i], o[i + 1]) for o in offsets)
        alone = attnpy.statistics(query[:, rows], key[:, keys], causal=True)
        assert_same_bits(found.received[:, keys].copy(), alone.received)
        for one, other in zip(found[1:5], alone[1:5], strict=True):
            assert_same_bits(one[:, rows].copy(), other)
    apart = normal(4, 2, 300, 9)[:, :2].swapaxes(0, 1)  # keys that are not packed
    found = attnpy.statistics(
        query[:, :70], apart, seq_offsets=([0, 20, 70], None), q_offset=3
    )
    assert found.received.shape == (2, 4, 300)
    alone = attnpy.statistics(query[:, 20:70], apart[1], q_offset=3)
    assert_same_bits(found.received[1].copy(), alone.received)


# ---- Special values ------------------------------------------------------------------


@pytest.mark.quick
def test_rows_that_see_nothing_give_nothing(tier):
    query, key, _ = problem(1, 5, 40, 9, 1)
    mask = np.ones((5, 40), bool)
    mask[2] = False
    received, entropy, distance, top, keys = measured(tier, query, key, mask=mask)
    assert (entropy[0, 2], distance[0, 2]) == (0, 0)
    assert (top[0, 2] == 0).all() and (keys[0, 2] == -1).all()
    np.testing.assert_allclose(received.sum(), 4, 1e-6)
    nothing = measured(tier, query, key, kv_lengths=0)
    assert not any(x.any() for x in nothing[:4]) and (nothing[4] == -1).all()


@pytest.mark.quick
def test_one_key_has_entropy_0_and_equal_ones_their_logarithm(tier):
    query, key = normal(1, 3, 4), np.zeros((1, 64, 4), np.float32)
    alone = measured(tier, query, key[:, :1])
    assert_same_bits(alone[1], np.zeros((1, 3), np.float32))
    received, entropy, distance, top, keys = measured(tier, query, key, q_offset=0)
    np.testing.assert_allclose(entropy, np.log(64), 1e-6)
    np.testing.assert_array_equal(received, 3 / 64)
    np.testing.assert_allclose(distance[0, 0], np.mean(np.arange(64)), 1e-6)
    np.testing.assert_array_equal(top, 1 / 64)
    np.testing.assert_array_equal(keys[0], [[0, 1, 2, 3]] * 3)


@pytest.mark.quick
def test_a_nan_is_seen_where_it_is_and_hidden_where_it_is_not(tier):
    query, key, _ = problem(1, 130, 300, 9, 1)
    clean = measured(tier, query, key, causal=True)
    key = key.copy()
    key[0, 250, 3] = np.nan  # queries from 80 on see it
    found = measured(tier, query, key, causal=True)
    spoilt = np.arange(130) >= 250 - 170
    for one, other in zip(found[1:], clean[1:], strict=True):
        assert_same_bits(one[0, ~spoilt], other[0, ~spoilt])
    assert np.isnan(found[1][0, spoilt]).all() and np.isnan(found[2][0, spoilt]).all()
    assert np.isnan(found[3][0, spoilt]).all() and (found[4][0, spoilt] == -1).all()
    assert np.isnan(found[0]).all()  # a row of NaN gives NaN to each key it sees
    weights = weights_of(tier, query, key, causal=True)
    assert_same_bits(found, in_steps(weights, positions_of(weights), TOP_K))
    key[0, 250] = np.inf  # beyond the lengths, nobody sees it
    hidden = measured(tier, query, key, kv_lengths=250)
    assert_same_bits(hidden[0][:, 250:], np.zeros((1, 50), np.float32))
    assert np.isfinite(hidden[0]).all()


def test_an_infinite_key_spoils_only_what_sees_it(tier):
    query, key = np.abs(normal(1, 3, 4)), normal(1, 20, 4)
    key[0, 5] = -np.inf  # its scores are -inf: weight 0, also below rows that are none
    found = assert_those_of_the_weights(tier, query, key)
    assert np.isfinite(found[0]).all()


@pytest.mark.parametrize("q_offset", [2**31, -(2**31), 2**62, -(2**63), 2**63 - 1])
def test_positions_far_away(tier, q_offset):
    query, key, _ = problem(1, 5, 200, 9, 1)
    found = measured(tier, query, key, q_offset=q_offset)
    np.testing.assert_allclose(found[2], abs(float(q_offset)), 1e-6)
    assert_those_of_the_weights(tier, query, key, q_offset=q_offset)


ZEROS = [(0, 4, 5, 3), (2, 0, 5, 3), (2, 4, 0, 3), (2, 4, 5, 0), (0, 0, 0, 0)]


@pytest.mark.quick
@pytest.mark.parametrize("sizes", ZEROS)
def test_zero_sizes(sizes):
    heads, n_queries, n_keys, dim = sizes
    query, key = np.zeros((heads, n_queries, dim)), np.zeros((heads, n_keys, dim))
    found = attnpy.statistics(query, key, key, top_k=2)
    weights = attnpy.attention(query, key, key, return_weights=True)[1]
    assert_same_bits(found[:5], in_steps(weights, positions_of(weights), 2))


def test_the_logarithm_is_that_of_numpy():
    # Shows that the steps that the tests above repeat are those of a logarithm.
    for real in (np.float32, np.float64):
        x = np.geomspace(np.finfo(real).tiny, 1, 9999, dtype=real)
        exact = np.log(x.astype(np.longdouble))
        error = np.abs(log(x) - exact) / np.maximum(np.abs(exact), np.finfo(real).tiny)
        assert error.max() < 4 * np.finfo(real).eps


@given(
    n_queries=st.integers(1, 140),
    n_keys=st.integers(1, 280),
    dim=st.integers(0, 20),
    scale=st.sampled_from([None, 0.0, -1.0, 30.0]),
    causal=st.sampled_from([False, True, "top_left"]),
    window=st.tuples(st.none() | st.integers(0, 200), st.none() | st.integers(0, 200)),
    q_offset=st.none() | st.integers(-50, 300),
    top_k=st.integers(1, 20),
    tier=st.sampled_from(TIERS),
    real=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 5),
)
def test_any_call_gives_the_bits_of_the_full_weights(
    n_queries, n_keys, dim, tier, real, seed, top_k, **options
):
    query, key, _ = problem(2, n_queries, n_keys, dim, 1, real, 1, seed)
    found = assert_those_of_the_weights(tier, query, key, top_k, **options)
    assert (found[0] >= 0).all()


# ---- What is asked for ---------------------------------------------------------------


@pytest.mark.quick
def test_only_what_is_wanted_is_returned():
    query, key, value = problem(2, 70, 90, 9, 6)
    everything = attnpy.statistics(query, key, value)
    fields = {
        "received": ["received"],
        "entropy": ["entropy"],
        "distance": ["distance"],
        "top": ["top_weights", "top_keys"],
    }
    for which, names in fields.items():
        for given_as in (which, (which,), iter([which])):
            found = attnpy.statistics(query, key, wanted=given_as)
            for name, array in found._asdict().items():
                assert (array is None) == (name not in names)
                if name in names:
                    assert_same_bits(array, getattr(everything, name))
    assert attnpy.statistics(query, key, wanted=()) == (None,) * 6
    only = attnpy.statistics(query, key, value, wanted=())
    assert_same_bits(only.output, attnpy.attention(query, key, value))


@pytest.mark.quick
def test_lists_and_integers_are_arrays():
    found = attnpy.statistics([[1, 0]], [[1, 0], [0, 1]])
    assert found.received.dtype == np.float64
    np.testing.assert_allclose(found.received.sum(), 1)


@pytest.mark.quick
def test_what_is_refused():
    query, key, value = problem(2, 3, 5, 4, 4)
    with refused(ValueError, "wanted"):
        attnpy.statistics(query, key, wanted="mean")
    with refused(TypeError, "wanted"):
        attnpy.statistics(query, key, wanted=("entropy", 3))
    with refused(TypeError, "wanted"):
        attnpy.statistics(query, key, wanted=3)
    with refused(TypeError, "wanted"):  # an array is neither equal to a name nor not
        attnpy.statistics(query, key, wanted=np.zeros((2, 2)))
    with refused(ValueError, "top_k"):
        attnpy.statistics(query, key, top_k=0)
    with refused(TypeError, "top_k"):
        attnpy.statistics(query, key, top_k=2.0)
    with refused(ValueError, "top_k"):
        attnpy.statistics(query, key, wanted="entropy", top_k=3)
    with refused(ValueError, "key"):
        attnpy.statistics(query, key[0, 0])
    with refused(ValueError, "key"):
        attnpy.statistics(query, 3.0)
    with refused(ValueError, "value"):
        attnpy.statistics(query, key, value[:, :4])
    with refused(TypeError, "mask"):
        attnpy.statistics(query, key, mask=np.ones((3, 5), int))
    with refused(TypeError, "key"):
        attnpy.statistics(query, np.ma.array(key, mask=key > 0))
    with refused(TypeError, "query"):
        attnpy.statistics(query + 1j, key)
    for name in ("return_weights", "out", "tier"):
        with pytest.raises(TypeError, match=rf"keyword argument '{name}'"):
            attnpy.statistics(query, key, **{name: None})
    with pytest.raises((MemoryError, ValueError)):
        attnpy.statistics(query, key, top_k=2**39)
