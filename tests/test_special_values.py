"""NaN, infinities, empty rows, and numbers at the ends of the range."""

import numpy as np
import pytest
from support.arrays import dtype_of, normal, problem
from support.calls import as_read, everything
from support.comparisons import assert_right, assert_same_bits

N_ROWS = (1, 3, 8, 9, 20)  # row form and tile form
N_KEYS, DIM, VALUE_DIM = 150, 5, 3
POISON = (np.nan, np.inf, -np.inf)
LEAST = {  # positive numbers
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
}


@pytest.fixture(params=N_ROWS)
def n_rows(request):
    """Numbers of queries on both sides of the change of form."""
    return request.param


def visibility(n_rows, n_keys=N_KEYS):
    """By name: options that hide keys, and which keys each row then sees."""
    i, j = np.arange(n_rows)[:, None], np.arange(n_keys)
    random = np.random.default_rng(n_rows).random((n_rows, n_keys)) < 0.5
    bias = np.where(random, normal(n_rows, n_keys), -np.inf)
    return {
        "mask": ({"mask": random}, random),
        "mask for all rows": ({"mask": j % 3 > 0}, (j % 3 > 0) & (i >= 0)),
        "bias": ({"bias": bias}, random),
        "bias and mask": ({"bias": bias, "mask": j % 3 > 0}, random & (j % 3 > 0)),
        "causal": ({"causal": True, "q_offset": 60}, j <= 60 + i),
        "causal top left": ({"causal": "top_left"}, j <= i),
        "window": (
            {"window": (4, 2), "q_offset": 100},
            (j >= 96 + i) & (j <= 102 + i),
        ),
        "lengths": ({"kv_lengths": 77}, (j < 77) & (i >= 0)),
    }


HIDING = tuple(visibility(1))


@pytest.fixture(params=HIDING)
def hiding(request, n_rows):
    """Options that hide keys, and which keys each row then sees."""
    options, seen = visibility(n_rows)[request.param]
    return options, np.broadcast_to(seen, (n_rows, N_KEYS))


def assert_canonical(*results):
    """One pattern of NaN, and no negative zero."""
    for x in results:
        if np.isnan(x).any():
            patterns = {v.tobytes() for v in x[np.isnan(x)]}
            assert patterns == {np.array(np.nan, x.dtype).tobytes()}
        assert not np.signbit(x[x == 0]).any()


@pytest.mark.quick(n_rows=(1, 9))
def test_what_no_row_may_see_never_reaches_a_result(attend, dtype, hiding, n_rows):
    options, seen = hiding
    query, key, value = problem(2, n_rows, N_KEYS, DIM, VALUE_DIM, dtype)
    expected = everything(attend, query, key, value, **options)
    hidden = ~seen.any(axis=0)
    for poison in POISON:
        bad_key, bad_value = key.copy(), value.copy()
        bad_key[:, hidden], bad_value[:, hidden] = poison, poison
        for arrays in (
            (query, bad_key, value),
            (query, key, bad_value),
            (query, bad_key, bad_value),
        ):
            assert_same_bits(everything(attend, *arrays, **options), expected)


@pytest.mark.floats
@pytest.mark.quick(n_rows=(9,))
def test_nan_reaches_exactly_the_rows_that_see_it(attend, hiding, n_rows):
    options, seen = hiding
    query, key, value = problem(2, n_rows, N_KEYS, DIM, VALUE_DIM)
    output, weights, lse = everything(attend, query, key, value, **options)
    for at in (0, 57, 60, 61, 76, 97, 100, 103):
        sees = seen[:, at]

        bad = key.copy()
        bad[:, at, 2] = np.nan
        results = everything(attend, query, bad, value, **options)
        assert_same_bits(results[0][:, ~sees], output[:, ~sees])
        assert_same_bits(results[1][:, ~sees], weights[:, ~sees])
        assert_same_bits(results[2][:, ~sees], lse[:, ~sees])
        assert np.isnan(results[0][:, sees]).all()
        assert np.isnan(results[2][:, sees]).all()
        assert np.isnan(results[1][:, sees, at]).all()
        assert_canonical(*results)

        bad = value.copy()
        bad[:, at, 1] = np.nan
        results = everything(attend, query, key, bad, **options)
        expected = output.copy()
        expected[:, sees, 1] = np.nan
        assert_same_bits(results, (expected, weights, lse))


@pytest.mark.floats
@pytest.mark.quick(n_rows=(9,))
def test_infinite_value_reaches_exactly_the_rows_that_see_it(attend, hiding, n_rows):
    options, seen = hiding
    query, key, value = problem(2, n_rows, N_KEYS, DIM, VALUE_DIM)
    output, weights, lse = everything(attend, query, key, value, **options)
    for infinite in (np.inf, -np.inf):
        bad = value.copy()
        bad[:, 57, 1] = infinite
        expected = output.copy()
        expected[:, seen[:, 57], 1] = infinite
        results = everything(attend, query, key, bad, **options)
        assert_same_bits(results, (expected, weights, lse))


@pytest.mark.quick(n_rows=(9,))
def test_nan_of_one_query_reaches_only_its_row(attend, dtype, n_rows):
    query, key, value = problem(2, n_rows, N_KEYS, DIM, VALUE_DIM, dtype)
    results = everything(attend, query, key, value)
    bad = query.copy()
    bad[1, 0, 0] = np.nan
    actual = everything(attend, bad, key, value)
    for x, y in zip(actual, results, strict=True):
        assert np.isnan(x[1, 0]).all()
        x[1, 0] = y[1, 0]
    assert_same_bits(actual, results)


@pytest.mark.quick(n_rows=(9,))
def test_nan_bias_counts_as_visible_nan(attend, n_rows):
    arrays = problem(1, n_rows, N_KEYS, DIM, VALUE_DIM)
    bias = np.zeros((n_rows, N_KEYS))
    bias[-1, 3] = np.nan
    output, _, lse = everything(attend, *arrays, bias=bias)
    assert np.isnan(output[0, -1]).all()
    assert np.isnan(lse[0, -1])
    assert not np.isnan(output[0, :-1]).any()


@pytest.mark.quick(n_rows=(9,))
def test_nan_query_that_sees_nothing_gives_zeros(attend, n_rows):
    query, key, value = problem(1, n_rows, N_KEYS, DIM, VALUE_DIM)
    nan = np.full_like(query, np.nan)
    for options in ({"mask": False}, {"kv_lengths": 0}, {"bias": -np.inf}):
        options = {k: np.asarray(v) for k, v in options.items()}
        output, weights, lse = everything(attend, nan, key, value, **options)
        assert not output.any()
        assert not weights.any()
        assert (lse == -np.inf).all()


EMPTY = {
    "mask": {"mask": np.zeros((), bool)},
    "bias": {"bias": np.array(-np.inf)},
    "lengths": {"kv_lengths": 0},
    "causal": {"causal": True, "q_offset": -1000},
    "window before the keys": {"window": (3, 3), "q_offset": -1000},
    "window after the keys": {"window": (3, 3), "q_offset": 1000},
    "lengths and window": {"window": (3, 3), "q_offset": 90, "kv_lengths": 80},
    "mask and its opposite": {
        "mask": np.arange(N_KEYS) < 75,
        "bias": np.where(np.arange(N_KEYS) < 75, -np.inf, 0.0),
    },
}


@pytest.mark.quick(n_rows=(9,), dtype=("float32",))
@pytest.mark.parametrize("sinks", [None, [0.7, -3.1, 1e30, -np.inf]])
def test_row_that_may_see_nothing_is_zero_and_its_lse_its_sink(
    attend, dtype, n_rows, sinks
):
    arrays = problem(4, n_rows, N_KEYS, DIM, VALUE_DIM, dtype, n_kv_heads=2)
    given = {} if sinks is None else {"sinks": np.array(sinks, np.float32)}
    expected = np.reshape(given.get("sinks", -np.inf), (-1, 1))
    for options in EMPTY.values():
        output, weights, lse = everything(attend, *arrays, **given, **options)
        assert not output.any()
        assert not weights.any()
        assert (lse == expected).all()
        assert_canonical(output, weights)


@pytest.mark.quick
def test_empty_rows_beside_others_change_nothing_in_them(attend, dtype):
    query, key, value = problem(2, 70, 140, DIM, VALUE_DIM, dtype)
    mask = np.random.default_rng(0).random((70, 140)) < 0.5
    expected = everything(attend, query, key, value, mask=mask)
    empty = np.arange(70) % 4 == 1
    mask[empty] = False
    results = everything(attend, query, key, value, mask=mask)
    for x, nothing in zip(expected, (0, 0, -np.inf), strict=True):
        x[:, empty] = nothing
    assert_same_bits(results, expected)


@pytest.mark.quick(n_rows=(9,))
def test_row_whose_every_visible_logit_is_minus_infinity_is_zero(attend, n_rows):
    query = np.ones((2, n_rows, 1), np.float32)
    key = np.full((2, N_KEYS, 1), -np.inf, np.float32)
    value = normal(2, N_KEYS, VALUE_DIM)
    for options in ({}, {"kv_lengths": 70}, {"mask": np.arange(N_KEYS) > 5}):
        output, weights, lse = everything(attend, query, key, value, **options)
        assert not output.any()
        assert not weights.any()
        assert (lse == -np.inf).all()


@pytest.mark.quick(n_rows=(1, 9))
def test_logits_of_minus_infinity_have_no_weight(attend, n_rows):
    query = np.ones((1, n_rows, 1), np.float32)
    key, value = normal(1, 300, 1), normal(1, 300, VALUE_DIM, seed=1)
    keep = np.arange(300) % 5 == 2
    keep[128:256] = False
    gone = np.where(keep[:, None], key, -np.float32(np.inf))
    assert_same_bits(
        everything(attend, query, gone, value),
        everything(attend, query, key, value, mask=keep),
    )


@pytest.mark.floats
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_bias_of_finfo_min_everywhere_gives_the_mean(attend, n_rows, kind):
    # Each sum score + finfo.min rounds to finfo.min: all keys weigh the same.
    least = np.finfo(kind).min
    arrays = problem(2, n_rows, 64, DIM, VALUE_DIM, kind)
    bias = np.full((n_rows, 64), least)
    output, weights, lse = everything(attend, *arrays, bias=bias)
    mean = arrays[2].mean(axis=1, keepdims=True)
    np.testing.assert_allclose(
        output, np.broadcast_to(mean, output.shape), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(weights, 1 / 64, rtol=1e-6)
    np.testing.assert_allclose(lse, least, rtol=1e-6)


@pytest.mark.floats
@pytest.mark.quick(n_rows=(9,))
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_bias_of_finfo_min_in_places_is_as_good_as_a_mask(attend, n_rows, kind):
    arrays = problem(2, n_rows, 300, DIM, VALUE_DIM, kind)
    keep = np.random.default_rng(3).random((n_rows, 300)) < 0.5
    keep[:, 130:250] = False
    bias = np.where(keep, 0, np.finfo(kind).min)
    output, weights, lse = everything(attend, *arrays, bias=bias)
    expected = everything(attend, *arrays, mask=keep)
    np.testing.assert_allclose(output, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5)
    np.testing.assert_allclose(lse, expected[2], rtol=1e-5)
    assert not weights[:, ~keep].any()


@pytest.mark.floats
@pytest.mark.quick(n_rows=(9,), size=(1e30,))
@pytest.mark.parametrize("size", [1e4, 1e10, 1e30, -1e30, -1e10])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_huge_bias_on_all_keys_gives_the_mean_and_its_lse(attend, n_rows, kind, size):
    query, key, value = problem(2, n_rows, 200, DIM, VALUE_DIM, kind)
    bias = np.full(200, size)
    output, weights, lse = everything(attend, query, key, value, bias=bias, scale=0)
    mean = np.broadcast_to(value.mean(axis=1, keepdims=True), output.shape)
    np.testing.assert_allclose(output, mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights, 1 / 200, rtol=1e-5)
    np.testing.assert_allclose(lse, size + np.log(200), rtol=2e-7)


def test_huge_bias_on_some_keys_selects_them(attend, n_rows):
    arrays = problem(2, n_rows, 200, DIM, VALUE_DIM)
    chosen = np.array([3, 131, 199])
    bias = np.zeros(200)
    bias[chosen] = 1e30
    output, weights, lse = everything(attend, *arrays, bias=bias)
    expected = arrays[2][:, chosen].mean(axis=1, keepdims=True)
    np.testing.assert_allclose(
        output, np.broadcast_to(expected, output.shape), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(weights[..., chosen], 1 / 3, rtol=1e-6)
    assert np.count_nonzero(weights) == weights.size // 200 * 3
    np.testing.assert_allclose(lse, 1e30, rtol=2e-7)


def test_weights_of_huge_logits_still_sum_to_one(attend, n_rows):
    # exp(s - lse) would be wrong here: lse is log(200) off by rounding.
    arrays = problem(2, n_rows, 200, DIM, VALUE_DIM)
    weights = everything(attend, *arrays, bias=np.full(200, 1e8))[1]
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.floats
@pytest.mark.quick(n_rows=(9,))
@pytest.mark.parametrize("size", [1e3, 1e6, 1e18, 1e37])
def test_huge_scores_select_the_largest(attend, n_rows, size):
    query = np.ones((1, n_rows, 1), np.float32)
    key = np.linspace(-1, 1, 201, dtype=np.float32)[None, :, None]
    value = normal(1, 201, VALUE_DIM)
    for sign, best in ((1, 200), (-1, 0)):
        output, weights, lse = everything(
            attend, query, key * np.float32(size), value, scale=sign
        )
        if size < 1e4:
            assert_right(attend, query, key * np.float32(size), value, scale=sign)
            continue
        assert (output == value[:, best]).all()
        assert (weights[..., best] == 1).all()
        assert np.count_nonzero(weights) == n_rows
        np.testing.assert_allclose(lse, size, rtol=2e-7)


def test_huge_scores_of_float64(attend, n_rows):
    query = np.ones((1, n_rows, 1))
    key = np.array([[[-1e300], [1e300], [1e299], [0.0]]])
    value = normal(1, 4, VALUE_DIM, dtype="float64")
    output, _, lse = everything(attend, query, key, value)
    assert (output == value[:, 1]).all()
    np.testing.assert_allclose(lse, 1e300)


def test_softcap_tames_huge_scores(attend, n_rows):
    query = np.full((1, n_rows, 1), 1e18, np.float32)
    key = normal(1, 200, 1) * np.float32(1e18)
    value = normal(1, 200, VALUE_DIM)
    assert_right(attend, query, key, value, softcap=3.0, scale=1e-9)
    results = everything(attend, query, key, value, softcap=3.0)
    signs = np.where(key > 0, 3.0, -3.0).astype(np.float32)
    expected = everything(attend, np.ones_like(query), signs, value)
    for actual, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-6)


@pytest.mark.quick(n_rows=(9,))
def test_sink_of_minus_infinity_is_no_sink(attend, dtype, n_rows):
    arrays = problem(2, n_rows, N_KEYS, DIM, VALUE_DIM, dtype)
    expected = everything(attend, *arrays)
    actual = everything(attend, *arrays, sinks=np.full(2, -np.inf))
    assert_same_bits(actual, expected)


@pytest.mark.floats
@pytest.mark.parametrize("sink", [200.0, 1e4, 1e30])
def test_huge_sink_takes_everything(attend, n_rows, sink):
    arrays = problem(2, n_rows, N_KEYS, DIM, VALUE_DIM)
    output, weights, lse = everything(attend, *arrays, sinks=np.full(2, sink))
    assert not output.any()
    assert not weights.any()
    np.testing.assert_allclose(lse, sink, rtol=2e-7)


def test_very_negative_sink_takes_nothing(attend, n_rows):
    arrays = problem(2, n_rows, N_KEYS, DIM, VALUE_DIM)
    expected = everything(attend, *arrays)
    actual = everything(attend, *arrays, sinks=np.full(2, -1e30))
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.quick(n_rows=(9,))
def test_nan_sink_reaches_only_its_head(attend, n_rows):
    arrays = problem(4, n_rows, N_KEYS, DIM, VALUE_DIM, n_kv_heads=1)
    sinks = np.array([0.0, np.nan, 1.0, 2.0])
    results = everything(attend, *arrays, sinks=sinks)
    for x in results:
        assert np.isnan(x[1]).all()
        assert not np.isnan(x[[0, 2, 3]]).any()
    assert_canonical(*results)


@pytest.mark.quick(n_rows=(1, 9))
def test_results_have_one_nan_and_no_negative_zero(attend, dtype, n_rows):
    query, key, value = problem(2, n_rows, N_KEYS, DIM, VALUE_DIM, dtype)
    value[0] = -0.0
    value[1, :, 0] = -np.nan
    value[1, 5, 1] = np.array(np.nan, dtype)
    assert_canonical(*everything(attend, query, key, value))
    assert_canonical(*everything(attend, query, key, value, causal=True))
    assert_canonical(*everything(attend, query, key, value, sinks=np.full(2, np.nan)))


def test_negative_results_that_round_to_zero_are_zero(attend, dtype, n_rows):
    query, key, value = problem(1, n_rows, 4, DIM, VALUE_DIM, dtype)
    value[:] = 0
    value[:, 0] = -LEAST[str(dtype)]
    output = attend(query, key, value, scale=0)  # the mean: a quarter of that
    assert (output == 0).all()
    if str(dtype) in ("float32", "float64"):  # 16-bit rounding keeps the sign
        assert_canonical(output)


@pytest.mark.quick(n_rows=(1, 9))
def test_one_visible_key_gives_its_value_exactly(attend, dtype, n_rows):
    query, key, value = problem(1, n_rows, N_KEYS, DIM, VALUE_DIM, dtype)
    value[0, :, 0] = 3 * LEAST[str(dtype)]
    for at in (0, 127, 128, 149):
        mask = np.arange(N_KEYS) == at
        output, weights, _ = everything(attend, query, key, value, mask=mask)
        assert (output == as_read(attend, value[:, at])).all()
        assert (weights == mask).all()


@pytest.mark.floats
@pytest.mark.quick(n_rows=(1, 9))
@pytest.mark.parametrize(
    ("kind", "small", "large"), [("float32", -140, 126), ("float64", -1060, 1022)]
)
def test_subnormal_inputs_are_not_flushed(attend, n_rows, kind, small, large):
    query = np.full((1, n_rows, 1), 2.0**small, kind)
    key = np.array([[[1.0], [2.0]]], kind) * 2.0**large
    value = np.array([[[1.0], [3.0]]], kind) * 2.0**small
    scale = 2.0 ** -(small + large)  # the scores are 1 and 2
    output, weights, lse = everything(attend, query, key, value, scale=scale)
    e = np.e
    np.testing.assert_allclose(weights[0], [[1 / (1 + e), e / (1 + e)]] * n_rows, 1e-6)
    np.testing.assert_allclose(output, (1 + 3 * e) / (1 + e) * 2.0**small, rtol=1e-2)
    np.testing.assert_allclose(lse, np.log(e + e * e), rtol=1e-6)


def every_number(kind):
    """All 65536 bit patterns of a 16-bit format."""
    return np.arange(2**16, dtype=np.uint16).view(dtype_of(kind))


@pytest.mark.quick(n_rows=(9,))
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_16_bit_number_is_loaded_and_stored_exactly(attend, n_rows, kind):
    value = as_read(attend, every_number(kind)[None, None, :])
    query, key = np.zeros((1, n_rows, 1), value.dtype), np.zeros((1, 1, 1), value.dtype)
    output = attend(query, key, value)
    expected = np.broadcast_to(value.astype(np.float32), output.shape)
    np.testing.assert_array_equal(output.astype(np.float32), expected)
    assert_canonical(output)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_16_bit_results_round_to_even(attend, n_rows, kind):
    # The mean of each number and the next one lies exactly between the two.
    numbers = every_number(kind)
    with np.errstate(invalid="ignore"):  # NaNs
        numbers = numbers[np.abs(numbers.astype(float)) < 1e38]
    value = as_read(attend, np.stack([numbers[:-1], numbers[1:]])[None])
    query, key = np.zeros((1, n_rows, 1), value.dtype), np.zeros((1, 2, 1), value.dtype)
    output = attend(query, key, value)
    mean = value[0].astype(np.float32).sum(axis=0) / np.float32(2)
    expected = np.broadcast_to((mean + 0).astype(value.dtype), output.shape)
    np.testing.assert_array_equal(output, expected)


def test_largest_float16_values_do_not_overflow(attend, n_rows):
    query, key = np.zeros((1, n_rows, 2), "f2"), np.zeros((1, 4, 2), "f2")
    for most in (65504, -65504):
        assert (attend(query, key, np.full((1, 4, 2), most, "f2")) == most).all()


@pytest.mark.quick(n_rows=(9,))
def test_weights_that_underflow_are_zero(attend, n_rows):
    query = np.ones((1, n_rows, 1), np.float32)
    key = np.array([0.0, -87.0, -88.0, -104.0, -1000.0], np.float32)[None, :, None]
    weights = everything(attend, query, key, normal(1, 5, 2), scale=1)[1]
    least = np.finfo(np.float32).tiny
    assert ((weights == 0) | (weights >= least)).all()
    assert (weights[..., 0] == 1).all()
    assert (weights[..., 1] > 0).all()
    assert not weights[..., 3:].any()


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_queries", [1, 20])
def test_large_finite_numbers_give_finite_results(attend, dtype, n_queries):
    n_keys, largest = 700, np.finfo(dtype).max
    query, key = normal(2, n_queries, 8, dtype=dtype), normal(2, n_keys, 8, dtype=dtype)
    value = normal(2, n_keys, 5, dtype=dtype)
    value *= largest / n_keys / np.abs(value).max()
    output = attend(query, key, value)
    assert np.isfinite(output).all()
    exact = attend(query, key, value / (largest / n_keys)) * (largest / n_keys)
    np.testing.assert_allclose(output, exact, rtol=1e-3, atol=1e-6 * largest / n_keys)
    small = attend(query * 1e-15, key * 1e15, normal(2, n_keys, 5, dtype=dtype))
    assert np.isfinite(small).all()
