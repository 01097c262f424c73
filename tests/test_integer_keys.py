"""Keys and values of int8 with scales, and caches that keep them."""

import builtins
import contextlib
import copy
import functools
import itertools
import pickle

import numpy as np
import pytest
from support.arrays import dtype_of, normal
from support.calls import TIERS, attend_on, measure_on, on_tier
from support.comparisons import (
    LARGEST_CODE,
    assert_right,
    assert_same_bits,
    dequantised,
)
from support.integers import least_errors
from support.statistics import in_steps, positions_of

import attnpy
from attnpy import attention
from attnpy._options import Options
from attnpy.blocks import Decoder
from attnpy.cache import KVCache, hadamard
from attnpy.layers import MultiHeadAttention, multi_head
from attnpy.pages import PagedKVCache, PagePool
from attnpy.positions import Rotary

SHAPES = {  # H, Hk, Lq, Lk, D, Dv
    "a query": (1, 1, 1, 300, 64, 64),
    "queries of a group": (8, 2, 1, 1100, 128, 64),
    "a group of seven": (7, 1, 1, 259, 72, 200),
    "odd heads": (3, 1, 2, 140, 33, 17),
    "columns that are no whole vectors": (4, 2, 1, 200, 96, 80),
    "many queries": (2, 1, 40, 150, 80, 24),
    "wide heads": (2, 2, 70, 260, 200, 136),
}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (60, 3), "softcap": 2.0},
    "lengths": {"kv_lengths": 100, "sinks": True},
    "mask": {"mask": True, "bias": True},
    "negative scale": {"scale": -0.3},
}


@contextlib.contextmanager
def fails(message):
    """Within this, an error of that type is raised, with a text that begins so."""
    kind, text = message.split(": ", 1)
    with pytest.raises(getattr(builtins, kind), match=f"^{text}"):
        yield


def quantised(array):
    """Integers and scales, as caches make them."""
    cache = KVCache(1, 1, len(array), array.shape[-1], dtype="int8")
    cache.append(array[None, None], array[None, None])
    return cache.key[0, 0], cache.key_scale[0, 0]


def integers(*shape, seed=0):
    """Random integers, and scales with which they are about as large as `normal`."""
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.5, 1.5, shape[:-1]) / 64
    return rng.integers(-127, 128, shape, np.int8), scales.astype(np.float32)


def problem(shape, dtype=np.float32, batch=()):
    """Query, keys and values of int8, and the options with their scales."""
    n_heads, n_kv_heads, n_queries, n_keys, dim, value_dim = shape
    query = normal(*batch, n_heads, n_queries, dim, dtype=dtype)
    key, key_scale = integers(*batch, n_kv_heads, n_keys, dim, seed=1)
    value, value_scale = integers(*batch, n_kv_heads, n_keys, value_dim, seed=2)
    return [query, key, value], {"key_scale": key_scale, "value_scale": value_scale}


def options_of(name, shape):
    """The options, with arrays in place of True."""
    n_heads, _, n_queries, n_keys, *_ = shape
    rng = np.random.default_rng(5)
    made = {
        "mask": rng.random((n_queries, n_keys)) < 0.7,
        "bias": normal(n_heads, n_queries, n_keys),
        "sinks": normal(n_heads),
    }
    return {
        n: made[n] if n in made and x is True else x for n, x in OPTIONS[name].items()
    }


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_those_of_the_numbers_that_integers_stand_for(
    shape, options, dtype
):
    arrays, scales = problem(SHAPES[shape], dtype)
    options = options_of(options, SHAPES[shape])
    assert_right(on_tier(TIERS[0]), *arrays, **scales, **options)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_instruction_set_gives_the_same_bits(shape, options, dtype):
    """Those with products of bfloat16 too: integers are multiplied in float32."""
    arrays, scales = problem(SHAPES[shape], dtype)
    options = options_of(options, SHAPES[shape]) | scales
    expected = attend_on("scalar", *arrays, **options, return_weights=True)
    for tier in TIERS:
        actual = attend_on(tier, *arrays, **options, return_weights=True)
        assert_same_bits(actual, expected)


@pytest.mark.quick
def test_scales_of_values_may_be_negative():
    """With them, some tiers multiply codes of weights in another way."""
    arrays, scales = problem(SHAPES["queries of a group"])
    scales["value_scale"][0, 3:400:7] *= -1
    expected = attend_on("scalar", *arrays, **scales)
    for tier in TIERS:
        assert_same_bits(attend_on(tier, *arrays, **scales), expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_query_has_the_bits_that_it_has_alone(threads):
    arrays, scales = problem((4, 2, 30, 1100, 64, 64), batch=(2,))
    together = attention(*arrays, **scales, causal=True, num_threads=threads)
    for i in (0, 7, 29):
        alone = attention(
            arrays[0][:, :, i : i + 1],
            *arrays[1:],
            **scales,
            causal=True,
            q_offset=1070 + i,
        )
        assert_same_bits(together[:, :, i : i + 1], alone)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["key", "value"])
def test_keys_or_values_alone_may_be_integers(name, dtype):
    arrays, scales = problem((4, 2, 9, 140, 32, 24), dtype)
    i = ("query", "key", "value").index(name)
    for j in {1, 2} - {i}:
        arrays[j] = normal(*arrays[j].shape, dtype=dtype)
    scale = f"{name}_scale"
    results = assert_right(on_tier(TIERS[0]), *arrays, **{scale: scales[scale]})
    assert results[0].dtype == dtype


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(), (140,), (2, 1), (3, 2, 140), (3, 1, 1)])
@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_scales_broadcast_and_may_have_any_floating_dtype(shape, kind):
    arrays, scales = problem((4, 2, 2, 140, 32, 24), batch=(3,))
    rng = np.random.default_rng(3)
    for name in scales:
        scales[name] = np.asarray(rng.uniform(0.5, 1.5, shape) / 64, dtype_of(kind))
    assert_right(on_tier(TIERS[0]), *arrays, **scales)
    whole = {n: np.array(np.broadcast_to(x, (3, 2, 140))) for n, x in scales.items()}
    assert_same_bits(attention(*arrays, **whole), attention(*arrays, **scales))


@pytest.mark.quick
def test_one_query_has_one_head_of_keys():
    (query, key, value), scales = problem((1, 1, 1, 50, 16, 8))
    scales = {name: x[0] for name, x in scales.items()}
    output = attention(query[0, 0], key[0], value[0], **scales)
    assert_same_bits(output, attention(query[0], key[0], value[0], **scales)[0])


@pytest.mark.quick
def test_integers_without_scales_are_ordinary_numbers():
    (query, key, value), _ = problem((2, 1, 3, 20, 16, 8))
    floats = attention(query, key.astype(np.float32), value.astype(np.float32))
    assert_same_bits(attention(query, key, value), floats)


def codes_of(x):
    """Codes of 16 bits of a row, and what they are multiplied by, in float32."""
    up = np.float32(2.0**100 if np.abs(x).max() < 2.0**-100 else 1)
    most = np.abs(x).max() * up
    by = np.float32(LARGEST_CODE) / most if most > 0 else np.float32(0)
    unit = most / np.float32(LARGEST_CODE)
    return np.rint(x * up * by).astype(np.int64), unit, np.float32(1) / up


@pytest.mark.quick
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-36, 0.0])
@pytest.mark.parametrize("dim", [1, 33, 64, 512, 700])
def test_queries_and_weights_are_rounded_to_codes_whose_products_are_exact(dim, size):
    """The softmax of one key is 1, its LSE is the score."""
    (query, key, value), scales = problem((1, 1, 1, 1, dim, dim))
    query *= np.float32(size)
    codes, unit, back = codes_of(query[0, 0])
    scale = np.float32(0.7)
    score = np.float32(0)
    for d in range(0, dim, 512):
        part = slice(d, d + 512)
        score += np.float32(codes[part] @ key[0, 0, part].astype(np.int64))
    score = score * (unit * scale * back) * scales["key_scale"][0, 0]
    output, lse = attention(
        query, key, value, **scales, scale=float(scale), return_lse=True
    )
    assert lse.item() == score
    weights, unit, back = codes_of(scales["value_scale"][0])
    products = (weights * value[0, 0]).astype(np.float32)
    assert_same_bits(output[0, 0], products * unit * back + np.float32(0))


def test_packed_sequences_have_the_bits_of_each_alone():
    arrays, scales = problem((4, 2, 60, 60, 32, 24))
    starts = [0, 5, 5, 50, 60]
    packed = attention(*arrays, **scales, seq_offsets=starts, causal=True)
    for first, end in itertools.pairwise(starts):
        part = slice(first, end)
        of_part = {name: x[:, part] for name, x in scales.items()}
        alone = attention(*(x[:, part] for x in arrays), **of_part, causal=True)
        assert_same_bits(packed[:, part], alone)


@pytest.mark.parametrize("n_queries", [1, 20])
def test_pages_have_the_bits_of_one_piece(n_queries):
    arrays, scales = problem((4, 2, n_queries, 640, 64, 32), batch=(2,))
    table = np.random.default_rng(0).permutation(12)[:10].reshape(2, 5)
    pages = [np.zeros((12, 2, 128, *x.shape[3:]), x.dtype) for x in scales.values()]
    pools = [np.zeros((12, 2, 128, x.shape[-1]), np.int8) for x in arrays[1:]]
    for b, j in np.ndindex(2, 5):
        part = slice(128 * j, 128 * j + 128)
        for pool, x in zip(pools, arrays[1:], strict=True):
            pool[table[b, j]] = x[b, :, part]
        for page, x in zip(pages, scales.values(), strict=True):
            page[table[b, j]] = x[b, :, part]
    lengths = [600, 513]
    expected = attention(*arrays, **scales, kv_lengths=lengths, causal=True)
    actual = attention(
        arrays[0],
        *pools,
        **dict(zip(scales, pages, strict=True)),
        page_table=table,
        kv_lengths=lengths,
        causal=True,
    )
    assert_same_bits(actual, expected)
    one = {"key_scale": np.float32(0.1), "value_scale": np.ones((2, 1), np.float32)}
    assert_same_bits(
        attention(arrays[0], *pools, **one, page_table=table),
        attention(*arrays, **one),
    )


def test_parts_of_512_keys_have_the_bits_of_one_call():
    arrays, scales = problem((4, 2, 3, 1300, 64, 32))
    query, key, value = arrays
    state = None
    for first in range(0, 1300, 512):
        part = slice(first, first + 512)
        of_part = {name: x[:, part] for name, x in scales.items()}
        state = attnpy.attend_partial(
            query, key[:, part], value[:, part], state, **of_part
        )
    assert_same_bits(state.finish(), attention(*arrays, **scales))


@pytest.mark.parametrize("tier", TIERS)
def test_statistics_are_those_of_the_weights(tier):
    arrays, scales = problem((4, 2, 70, 300, 32, 16))
    output, weights = attend_on(
        "scalar", *arrays, **scales, causal=True, return_weights=True
    )
    expected = in_steps(weights, positions_of(weights, causal=True), 8)
    found = measure_on(tier, *arrays, **scales, causal=True)
    assert_same_bits(tuple(found), (*expected, output))
    public = attnpy.statistics(*arrays, **scales, causal=True)
    assert_same_bits(tuple(public), (*expected, output))
    without = attnpy.statistics(*arrays[:2], key_scale=scales["key_scale"], causal=True)
    assert_same_bits(tuple(without[:-1]), expected)


@pytest.mark.quick
def test_a_plan_reads_keys_and_scales_as_they_are_then():
    arrays, scales = problem((4, 2, 1, 200, 64, 64))
    plan = attnpy.Plan(*arrays, **scales, kv_lengths=100)
    assert plan.key_scale is scales["key_scale"]
    for length in (100, 200):
        plan.kv_lengths[()] = length
        scales["value_scale"] *= np.float32(1.5)
        arrays[1][:, :7] += 1
        expected = attention(*arrays, **scales, kv_lengths=length)
        assert_same_bits(plan(), expected)
    wide = scales["key_scale"].astype(np.float64)
    assert attnpy.Plan(*arrays, **{**scales, "key_scale": wide})().shape == (4, 1, 64)
    with fails("TypeError: key_scale: expected an array that can be read in place"):
        attnpy.Plan(*arrays, **{**scales, "key_scale": wide.tolist()})


# ---- Scales of any value


@pytest.mark.quick
@pytest.mark.parametrize("n_queries", [1, 3, 40])
@pytest.mark.parametrize("hide", ["mask", "kv_lengths", "causal", "bias"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scales_of_hidden_keys_do_not_matter(bad, hide, n_queries):
    arrays, scales = problem((4, 2, n_queries, 200, 64, 40))
    options = {
        "mask": {"mask": np.arange(200) < 130},
        "kv_lengths": {"kv_lengths": 130},
        "causal": {"causal": "top_left", "q_offset": 129 - n_queries + 1},
        "bias": {"bias": np.where(np.arange(200) < 130, 0.5, -np.inf)},
    }[hide]
    expected = attention(*arrays, **scales, **options, return_weights=True)
    for x in scales.values():
        x[:, 130:] = bad
    actual = attention(*arrays, **scales, **options, return_weights=True)
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("n_queries", [1, 40])
def test_scales_of_keys_that_some_queries_see_matter_to_these(n_queries):
    arrays, scales = problem((4, 2, n_queries, 200, 64, 40))
    mask = np.ones((4, n_queries, 200), bool)
    mask[0, :, 150:] = False
    expected = attention(*arrays, **scales, mask=mask)
    for x in scales.values():
        x[:, 170] = np.nan
    actual = attention(*arrays, **scales, mask=mask)
    assert_same_bits(actual[0], expected[0])
    assert np.isnan(actual[1:]).all()


@pytest.mark.quick
@pytest.mark.parametrize("n_queries", [1, 40])
def test_scales_are_factors_whatever_they_are(n_queries):
    """Zero and subnormal numbers too: a score is multiplied by a key's scale."""
    arrays, scales = problem((2, 1, n_queries, 30, 64, 40))
    scales["key_scale"][:] = 0
    weights = attention(*arrays, **scales, return_weights=True)[1]
    assert (weights == weights[0, 0, 0]).all()
    scales["value_scale"][:] = 0
    assert not attention(*arrays, **scales).any()
    scales["value_scale"][:] = 1e-42  # subnormal
    weight = weights[0, 0, 0] * np.float32(1e-42)
    top = np.abs(attention(*arrays, **scales)).max()
    assert 0 < top <= 31 * 127 * float(weight) + 1e-44
    scales["value_scale"][:] = np.inf
    assert not np.isfinite(attention(*arrays, **scales)).any()


# ---- Errors

RIGHT = problem((4, 2, 3, 20, 8, 6), batch=(2,))
ERRORS = {
    "floats with scales": (
        {"key": normal(2, 2, 20, 8)},
        "TypeError: key: expected int8 with key_scale, got dtype float32",
    ),
    "wider integers": (
        {"value": np.ones((2, 2, 20, 6), np.int16)},
        "TypeError: value: expected int8 with value_scale, got dtype int16",
    ),
    "scales that are integers": (
        {"key_scale": np.ones((2, 2, 20), int)},
        "TypeError: key_scale: expected float64, float32, float16 or bfloat16",
    ),
    "scales of the columns": (
        {"value_scale": np.ones((2, 2, 20, 6), np.float32)},
        r"ValueError: value_scale: expected a shape that broadcasts to \(..., Hk, Lk\) "
        r"= \(2, 2, 20\), got shape \(2, 2, 20, 6\)",
    ),
    "too few": (
        {"key_scale": np.ones((2, 2, 19), np.float32)},
        r"ValueError: key_scale: .* got shape \(2, 2, 19\)",
    ),
    "of each query head": (
        {"key_scale": np.ones((2, 4, 20), np.float32)},
        r"ValueError: key_scale: .* got shape \(2, 4, 20\)",
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", ERRORS)
def test_what_is_no_scale_is_refused(name):
    wrong, message = ERRORS[name]
    arrays, scales = RIGHT
    given = dict(zip(("query", "key", "value"), arrays, strict=True))
    with fails(message):
        attention(**(given | scales | wrong))


@pytest.mark.quick
def test_gradients_are_refused_by_name():
    arrays, scales = problem((2, 1, 3, 20, 8, 8))
    grad = normal(2, 3, 8)
    for name in scales:
        message = f"TypeError: {name}: expected none, because int8 keys and values"
        with fails(message):
            attnpy.attention_vjp(grad, *arrays, **{name: scales[name]})


@pytest.mark.quick
def test_a_scale_of_values_without_values_is_refused():
    arrays, scales = problem((2, 1, 3, 20, 8, 8))
    with fails("ValueError: value_scale: expected None without value"):
        attnpy.statistics(*arrays[:2], **scales)


# ---- Caches


def layer(dtype=np.float32, **options):
    return MultiHeadAttention(
        48, 4, num_kv_heads=2, dtype=dtype, rng=np.random.default_rng(1), **options
    )


def in_chunks(mha, x, sizes, **options):
    """The output of calls of so many tokens each, and the cache that they filled."""
    cache = mha.new_cache(len(x), x.shape[1], dtype="int8")
    outputs, first = [], 0
    for n in sizes:
        part = x[:, first : first + n]
        outputs.append(mha(part, cache=cache, causal=True, **options))
        first += n
    return np.concatenate(outputs, axis=1), cache


def stored(cache):
    return cache.key, cache.value, cache.key_scale, cache.value_scale


@pytest.mark.quick
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("sizes", [[1] * 37, [5, 20, 1, 11]], ids=["tokens", "chunks"])
def test_tokens_and_chunks_have_the_bits_of_a_prompt(sizes, rotary, dtype):
    mha, x = layer(dtype), normal(2, 37, 48, dtype=dtype)
    options = {"rotary": Rotary(12)} if rotary else {}
    expected, prompt = in_chunks(mha, x, [37], **options)
    actual, cache = in_chunks(mha, x, sizes, **options)
    assert_same_bits(actual, expected)
    for one, other in zip(stored(cache), stored(prompt), strict=True):
        assert_same_bits(np.array(one), np.array(other))


@pytest.mark.parametrize("tier", TIERS)
def test_layers_quantise_alike_on_every_instruction_set(tier, dtype, monkeypatch):
    mha, x = layer(dtype), normal(2, 20, 48, dtype=dtype)
    found = []
    for name in (tier, "scalar"):
        options = functools.partial(Options, tier=name)
        monkeypatch.setattr(multi_head, "Options", options)
        found.append(in_chunks(mha, x, [12, 8]))
    (output, cache), (expected, other) = found
    if dtype == dtype_of("bfloat16"):  # whose projections have other bits
        np.testing.assert_allclose(output, expected.astype(float), atol=0.1)
        return
    assert_same_bits(output, expected)
    for one, two in zip(stored(cache), stored(other), strict=True):
        assert_same_bits(np.array(one), np.array(two))


@pytest.mark.quick
def test_layers_and_append_quantise_alike(dtype):
    mha, x = layer(dtype), normal(2, 20, 48, dtype=dtype)
    _, cache = in_chunks(mha, x, [20])
    floats = mha.new_cache(2, 20)
    mha(x, cache=floats, causal=True)
    other = KVCache(2, 2, 20, 12, dtype=np.int8)
    other.append(floats.key, floats.value)
    for one, two in zip(stored(cache), stored(other), strict=True):
        assert_same_bits(np.array(one), np.array(two))


@pytest.mark.quick
def test_a_layer_attends_to_what_its_cache_holds():
    mha, x = layer(), normal(2, 20, 48)
    output, cache = in_chunks(mha, x, [20])
    key, value, _ = dequantised(
        cache.key,
        cache.value,
        key_scale=cache.key_scale,
        value_scale=cache.value_scale,
    )
    rows = {"key": hadamard(key), "value": hadamard(value)}
    floats = KVCache(2, 2, 20, 12, **rows, lengths=20)
    # Queries and weights are rounded to 16 bits.
    np.testing.assert_allclose(mha(x[:, -1:], floats), output[:, -1:], atol=5e-5)


@pytest.mark.quick
@pytest.mark.parametrize("size", [1, 3, 24, 64, 128, 600])
def test_integers_and_scales_have_the_least_squared_error(size, dtype):
    x = normal(30, size, dtype=dtype)
    numbers, scales = quantised(x)
    exact = hadamard(np.asarray(x, float))
    error = ((numbers * scales[:, None].astype(float) - exact) ** 2).sum(-1)
    least = least_errors(exact)
    unit = np.abs(exact).max(-1) / 127
    nearest = ((np.rint(exact / unit[:, None]) * unit[:, None] - exact) ** 2).sum(-1)
    fine = size / 200 * unit**2  # rests are rounded to 256ths
    assert (error <= least + fine).all()
    assert (error <= nearest + fine).all()
    assert error.mean() <= 1.01 * least.mean() + 1e-3 * fine.mean()
    assert size != 64 or error.mean() < 0.9 * nearest.mean()
    assert np.abs(numbers).max() == 127
    assert np.abs(numbers).max(-1).min() >= 119


# ---- Rotation by Hadamard matrices


def matrix(size):
    """What `hadamard` multiplies by."""
    block = size & -size
    places = np.arange(size)
    signs = [
        [(-1) ** int(i & j & (block - 1)).bit_count() for j in places] for i in places
    ]
    together = places[:, None] // block == places // block
    return np.where(together, signs, 0) / np.sqrt(block)


@pytest.mark.quick
@pytest.mark.parametrize("size", [1, 2, 7, 12, 40, 64, 80, 96, 128])
def test_hadamard_multiplies_by_an_orthogonal_matrix(size, dtype):
    x = normal(3, 2, size, dtype=dtype)
    found = hadamard(x)
    assert found.dtype == dtype
    expected = np.asarray(x, float) @ matrix(size)
    precise = {8: 1e-14, 4: 1e-5, 2: 2e-2}[found.dtype.itemsize]
    np.testing.assert_allclose(np.asarray(found, float), expected, atol=precise)
    again = np.asarray(hadamard(found), float)
    np.testing.assert_allclose(again, np.asarray(x, float), atol=2 * precise)


@pytest.mark.quick
def test_hadamard_takes_any_axes_and_refuses_none():
    assert hadamard(np.zeros((0, 3, 8))).shape == (0, 3, 8)
    assert hadamard(np.zeros((2, 0))).shape == (2, 0)
    assert hadamard([1, 1]).dtype == np.float64
    many = np.arange(4.0).reshape((1,) * 31 + (4,))  # as many as NumPy 1 has
    assert_same_bits(hadamard(many), hadamard(np.arange(4.0)).reshape(many.shape))
    with fails("ValueError: x: expected"):
        hadamard(1.0)
    with fails("TypeError: x: expected float64"):
        hadamard(np.ones(4, complex))


@pytest.mark.quick
@pytest.mark.parametrize("names", [("key",), ("value",), ("key", "value")])
@pytest.mark.parametrize("size", [12, 16])
def test_layers_turn_queries_and_results_for_the_arrays_that_are_integers(size, names):
    mha = MultiHeadAttention(4 * size, 4, num_kv_heads=2, rng=np.random.default_rng(1))
    x = normal(2, 20, 4 * size)
    arrays = {}
    for name in names:
        arrays[name] = np.zeros((2, 2, 20, size), np.int8)
        arrays[f"{name}_scale"] = np.zeros((2, 2, 20), np.float32)
    cache = KVCache(2, 2, 20, size, **arrays)
    output = mha(x, cache=cache, causal=True)
    expected = mha(x, causal=True)
    error = np.sqrt(((output - expected) ** 2).mean() / (expected**2).mean())
    assert 1e-4 < error < 1.5e-2
    assert_same_bits(mha(x[:, -1:], cache), output[:, -1:])


def test_large_numbers_do_not_cost_the_others_their_digits():
    """Without the rotation the error is six times as large."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1, 2, 500, 64), dtype=np.float32)
    key[..., 5] += 20
    cache = KVCache(1, 2, 500, 64, dtype="int8")
    cache.append(key, value)
    rows = cache.key, cache.value
    scales = {"key_scale": cache.key_scale, "value_scale": cache.value_scale}
    found = hadamard(attention(hadamard(query), *rows, **scales))
    exact = attention(query, key, value)
    error = np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean())
    assert error < 2.5e-2


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_rows_without_a_scale(kind):
    rows = np.ones((6, 8), kind)
    rows[0] = 0
    rows[1, 3] = np.nan
    rows[2, 3] = -np.inf
    rows[3] = 1e-45  # so small that the scale is 0
    rows[4] = np.ldexp(1.0, -149) * np.arange(8) * 15
    numbers, scales = quantised(rows)
    assert not numbers[:4].any()
    assert scales[[0, 3]].tolist() == [0, 0]
    assert np.isnan(scales[1:3]).all()
    # Not beyond 127; in float64 the best of the 16 scales is another one.
    assert numbers[4].max() == {"float64": 126, "float32": 127}[kind]
    mha = layer(kind)
    x = normal(1, 3, 48, dtype=kind)
    x[0, 1, 5] = np.inf
    with np.errstate(all="ignore"):
        _, cache = in_chunks(mha, x, [3])
    assert np.isnan(cache.key_scale[0, :, 1]).all()
    assert not cache.key[0, :, 1].any()


@pytest.mark.quick
def test_a_cache_grows_shrinks_and_is_copied_with_its_scales():
    key, value = normal(2, 3, 9, 4), normal(2, 3, 9, 5, seed=1)
    whole = KVCache(2, 3, 9, 4, 5, dtype="int8")
    whole.append(key, value)
    cache = KVCache(2, 3, 1, 4, 5, dtype="int8", growable=True)
    for i in range(9):
        cache.append(key[:, :, i : i + 1], value[:, :, i : i + 1])
    same = cache, cache.copy(), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))
    for other in same:
        for one, two in zip(stored(other), stored(whole), strict=True):
            assert_same_bits(np.array(one), np.array(two))
    fork = cache.fork([1, 1, 0], capacity=20)
    cache.select([1, 0])
    for kept in (cache, fork):
        chosen = [1, 0] if kept is cache else [1, 1, 0]
        for one, two in zip(stored(kept), stored(whole), strict=True):
            assert_same_bits(np.array(one), two[chosen])
    fork.select([0])
    assert_same_bits(np.array(fork.key_scale), whole.key_scale[[1]])
    cache.truncate(2)
    assert cache.key_scale.shape == (2, 3, 2)
    assert "dtype=int8" in repr(cache)
    assert whole.key_scale.dtype == np.float32
    assert KVCache(2, 3, 9, 4).key_scale is None


@pytest.mark.quick
def test_sequences_of_an_int8_cache_have_lengths_of_their_own():
    mha, x = layer(), normal(3, 10, 48)
    lengths = [10, 4, 0]
    cache = mha.new_cache(3, 20, dtype="int8")
    output = mha(x, cache=cache, kv_lengths=lengths, causal=True)
    for b, n in enumerate(lengths[:2]):
        alone, other = in_chunks(mha, x[b : b + 1, :n], [n])
        assert_same_bits(output[b : b + 1, :n], alone)
        assert_same_bits(np.array(cache.key[b, :, :n]), np.array(other.key[0]))


@pytest.mark.quick
def test_packed_tokens_go_into_an_int8_cache():
    mha, x = layer(), normal(15, 48)
    starts = [0, 4, 15]
    cache = mha.new_cache(2, 11, dtype="int8")
    output = mha(x, cache=cache, seq_offsets=starts, causal=True)
    for b, (first, end) in enumerate(itertools.pairwise(starts)):
        alone, other = in_chunks(mha, x[None, first:end], [end - first])
        assert_same_bits(output[first:end], alone[0])
        assert_same_bits(
            np.array(cache.value_scale[b, :, : end - first]),
            np.array(other.value_scale[0]),
        )


@pytest.mark.quick
@pytest.mark.parametrize("packed", [False, True])
def test_int8_caches_lie_in_pages_too(packed):
    mha, x = layer(), normal(2, 300, 48)
    pool = PagePool(10, 2, 12, dtype="int8")
    paged, whole = PagedKVCache(pool, 2), mha.new_cache(2, 300, dtype="int8")
    for first, end in ((0, 130), (130, 131), (131, 300)):
        part = x[:, first:end]
        expected = mha(part, cache=whole, causal=True)
        if packed:
            rows = part.reshape(-1, 48)
            starts = [0, end - first, 2 * (end - first)]
            found = mha(rows, cache=paged, causal=True, seq_offsets=starts)
            assert_same_bits(found.reshape(expected.shape), expected)
        else:
            assert_same_bits(mha(part, cache=paged, causal=True), expected)
    for one, two in zip(stored(paged), stored(whole), strict=True):
        assert_same_bits(one, np.array(two))
    fork = paged.fork()
    key, value = normal(2, 2, 5, 12), normal(2, 2, 5, 12, seed=1)
    fork.append(key, value)
    longer = whole.fork(capacity=305)
    longer.append(key, value)
    for one, two in zip(stored(fork), stored(longer), strict=True):
        assert_same_bits(one, np.array(two))
    assert_same_bits(paged.key_scale, np.array(whole.key_scale))


@pytest.mark.quick
def test_given_arrays_keep_a_cache_of_int8():
    arrays = {
        "key": np.zeros((2, 3, 7, 4), np.int8),
        "key_scale": np.zeros((2, 3, 7), np.float32),
    }
    cache = KVCache(2, 3, 7, 4, 5, **arrays)  # values are float32
    key, value = normal(2, 3, 6, 4), normal(2, 3, 6, 5)
    cache.append(key, value)
    assert cache.key.base is arrays["key"]
    assert cache.value_scale is None
    output = attention(
        normal(2, 3, 1, 4), cache.key, cache.value, key_scale=cache.key_scale
    )
    assert output.shape == (2, 3, 1, 5)


def given(**arrays):
    return lambda: KVCache(2, 3, 7, 4, 5, **arrays)


KEY = np.zeros((2, 3, 7, 4), np.int8)
CACHE_ERRORS = {
    "no scales": (
        given(key=KEY),
        "ValueError: key_scale: expected the scales of the int8 array, got None",
    ),
    "scales of floats": (
        given(key_scale=np.zeros((2, 3, 7), np.float32)),
        "ValueError: key_scale: expected None without a key of int8",
    ),
    "scales in float64": (
        given(key=KEY, key_scale=np.zeros((2, 3, 7))),
        "TypeError: key_scale: expected writable, aligned float32, got dtype float64",
    ),
    "another shape": (
        given(key=KEY, key_scale=np.zeros((2, 3, 4), np.float32)),
        r"ValueError: key_scale: expected shape \(2, 3, 7\), got \(2, 3, 4\)",
    ),
    "a list": (
        given(key=KEY, key_scale=[1.0]),
        "TypeError: key_scale: expected a NumPy array, got list",
    ),
    "another dtype": (
        given(dtype="int4"),
        "TypeError: dtype: expected float64, float32, float16, bfloat16 or int8",
    ),
    "wider integers": (
        given(dtype=np.int16),
        "TypeError: dtype: expected float64, float32, float16, bfloat16 or int8",
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", CACHE_ERRORS)
def test_a_cache_that_cannot_be_made_is_refused(name):
    make, message = CACHE_ERRORS[name]
    with fails(message):
        make()


@pytest.mark.quick
def test_decoders_fill_int8_caches():
    rng = np.random.default_rng(0)
    decoder = Decoder(2, 32, 4, 64, rng=rng, cross_attention=False)
    x = normal(2, 9, 32)
    caches = decoder.new_caches(2, 9, dtype="int8")
    whole = decoder(x, caches=caches)
    assert [c.key.dtype for c in caches] == [np.int8] * 2
    caches = decoder.new_caches(2, 9, dtype="int8")
    tokens = [decoder(x[:, i : i + 1], caches=caches) for i in range(9)]
    assert_same_bits(np.concatenate(tokens, axis=1), whole)
    np.testing.assert_allclose(whole, decoder(x), atol=0.05)
