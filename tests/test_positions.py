"""Positions: against the papers' formulas written plainly, in float64."""

import math
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import formulas, reference
from support.arrays import dtype_of, lay_out, misaligned, normal, read_only
from support.comparisons import assert_near, assert_same_bits
from support.errors import refused

import attnpy
from attnpy import positions
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention
from attnpy.positions import (
    Learned,
    Rotary,
    alibi_bias,
    alibi_slopes,
    query_positions,
    relative_bias,
    relative_buckets,
    sinusoidal,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def bfloat16(numbers):
    """Float64 numbers of normal size rounded once to 8 bits, to even in ties."""
    mantissas, exponents = np.frexp(numbers)
    return np.ldexp(np.rint(mantissas * 256) / 256, exponents).astype(
        dtype_of("bfloat16")
    )


@pytest.mark.quick
def test_query_positions_are_those_of_attention():
    query, key, value = normal(2, 4, 3), normal(2, 9, 3), normal(2, 9, 5)
    for offset in (None, 2, -3, 20):
        places = query_positions(4, 9, q_offset=offset)
        mask = np.arange(9) <= places[:, None]
        assert_same_bits(
            attnpy.attention(query, key, value, mask=mask),
            attnpy.attention(query, key, value, causal=True, q_offset=offset),
        )
    offsets = np.array([[1, 2, -3]])
    assert query_positions(4, 9, q_offset=offsets).shape == (1, 3, 1, 4)
    np.testing.assert_array_equal(
        query_positions(4, 9, q_offset=offsets)[0, 2, 0], [-3, -2, -1, 0]
    )
    assert query_positions(0, 9).shape == (0,)


# Sinusoidal


@pytest.mark.quick(dim=(7,))
@pytest.mark.parametrize("dim", [0, 1, 2, 3, 7, 64])
@pytest.mark.parametrize("offset", [0, 5, -3])
def test_sinusoidal_is_the_formula(dim, offset):
    encodings = sinusoidal(40, dim, offset=offset, base=1234.5, dtype="float64")
    assert encodings.shape == (40, dim)
    for row in range(40):
        for column in range(dim):
            wave = math.cos if column % 2 else math.sin
            angle = (row + offset) / 1234.5 ** (2 * (column // 2) / dim)
            assert abs(encodings[row, column] - wave(angle)) < 1e-14


@pytest.mark.quick
def test_sinusoidal_has_the_base_of_the_paper():
    assert_same_bits(sinusoidal(9, 6), sinusoidal(9, 6, base=10000.0))
    np.testing.assert_allclose(
        sinusoidal(3, 4)[2], [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)]
    )


def test_sinusoidal_is_rounded_once(dtype):
    exact = sinusoidal(2048, 256, dtype="float64")
    encodings = sinusoidal(2048, 256, dtype=dtype)
    if dtype.name != "bfloat16":
        assert_same_bits(encodings, exact.astype(dtype))
        return
    exact = np.where(exact == 0, 1, exact)  # zeros have no exponent
    encodings[encodings == 0] = 1
    assert_same_bits(encodings, bfloat16(exact))
    # Rounded by way of float32, some are wrong: the test can fail.
    assert (encodings != exact.astype(np.float32).astype(dtype)).any()


@pytest.mark.quick
def test_sinusoidal_offset_goes_on():
    assert_same_bits(sinusoidal(7, 10, offset=13), sinusoidal(20, 10)[13:])


def test_sinusoidal_products_depend_on_the_distance():
    encodings = sinusoidal(60, 32, dtype="float64")
    products = encodings @ encodings.T
    for distance in (0, 1, 17):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-12)
    assert products[0, 0] > products[0, 1] + 0.1


# Learned


@pytest.mark.quick
def test_learned_gives_rows():
    learned = Learned(20, 6, rng=np.random.default_rng(3))
    assert (learned.weight.dtype, learned.weight.shape) == (np.float32, (20, 6))
    assert_same_bits(learned(7), learned.weight[:7])
    assert_same_bits(learned(20), learned.weight)
    assert_same_bits(learned([[3, 19], [0, 3]]), learned.weight[[[3, 19], [0, 3]]])
    assert learned(0).shape == (0, 6)
    assert learned([]).shape == (0, 6)
    rows = learned(20)
    rows += 1
    assert (learned.weight != rows).all()


@pytest.mark.quick
def test_learned_starts_with_normal_numbers_of_the_generator(dtype):
    one, two = (Learned(300, 50, dtype=dtype, rng=np.random.default_rng(3)).weight
                for _ in range(2))  # fmt: skip
    assert one.dtype == dtype
    assert_same_bits(one, two)
    numbers = one.astype(float)
    assert abs(numbers.mean()) < 1e-3
    assert abs(numbers.std() - 0.02) < 1e-3
    assert (Learned(3, 5).weight != Learned(3, 5).weight).any()


def test_learned_takes_a_trained_table():
    learned = Learned(2, 3)
    learned.weight = normal(5, 4)
    assert_same_bits(learned(5), normal(5, 4))
    with pytest.raises(ValueError, match=r"^positions: expected 0 to 5, got 6"):
        learned(6)


@pytest.mark.parametrize("wrong", [21, -1, [0, 20], [-1], 2**70])
def test_learned_has_no_other_positions(wrong):
    with pytest.raises(ValueError, match=r"^positions: expected 0 to (19|20), got"):
        Learned(20, 6)(wrong)


# Rotary


def rotated(x, places, frequencies, interleaved, factor=1.0):
    """Each pair is a complex number, turned by multiplication with exp(i angle)."""
    x = np.array(x, float)
    half = len(frequencies)
    for i, frequency in enumerate(frequencies):
        one, two = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        turn = factor * np.exp(1j * frequency * np.asarray(places, float))
        turned = (x[..., one] + 1j * x[..., two]) * turn
        x[..., one], x[..., two] = turned.real, turned.imag
    return x


@pytest.mark.quick
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "rotary_dim"), [(8, None), (10, 6), (7, 2), (5, 0)])
def test_rotary_is_a_complex_product(dtype, interleaved, dim, rotary_dim):
    x = normal(2, 3, 11, dim, dtype=dtype)
    rotary = Rotary(dim, base=500.0, interleaved=interleaved, rotary_dim=rotary_dim)
    size = dim if rotary_dim is None else rotary_dim
    frequencies = [500.0 ** (-2 * i / size) for i in range(size // 2)]
    np.testing.assert_allclose(rotary.frequencies, frequencies, rtol=1e-15)
    batch = np.random.default_rng(0).integers(-50, 5000, (2, 1, 11))
    for argument, places in (
        (None, np.arange(11)),
        (7, 7 + np.arange(11)),
        (np.int64(-7), -7 + np.arange(11)),
        ([5, 5, 2, 9, 100, -4, 3, 2, 1, 0, 9], [5, 5, 2, 9, 100, -4, 3, 2, 1, 0, 9]),
        (batch, np.broadcast_to(batch, (2, 3, 11))),
    ):
        result = rotary(x, argument)
        assert (result.dtype, result.shape) == (dtype, x.shape)
        exact = rotated(x, places, frequencies, interleaved)
        eps = {"float64": 1e-12, "float32": 3e-7, "float16": 1e-3, "bfloat16": 8e-3}
        np.testing.assert_allclose(
            result.astype(float), exact, atol=6 * eps[dtype.name]
        )
        assert_same_bits(result[..., size:], x[..., size:])


@pytest.mark.quick
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_has_the_bits_of_its_formula_in_numpy(dtype, interleaved):
    rotary = Rotary(70, interleaved=interleaved, rotary_dim=66)
    x, places = normal(3, 5, 40, 70, dtype=dtype), np.arange(40) * 37
    real = np.float64 if dtype == np.float64 else np.float32
    expected = formulas.rotated(x, *rotary.tables(places, real), interleaved)
    assert_same_bits(rotary(x, places), expected)
    out = misaligned(np.zeros_like(x))
    rotary(x, places, out=out)
    assert_same_bits(out.copy(), expected)


def test_rotary_keeps_no_tables_of_what_it_was():
    x, rotary = normal(5, 8), Rotary(8)
    before = rotary(x)
    rotary.frequencies = Rotary(8, base=50.0).frequencies
    assert_same_bits(rotary(x), Rotary(8, base=50.0)(x))
    rotary.frequencies.flags.writeable = True
    rotary.frequencies[:] = Rotary(8).frequencies
    assert_same_bits(rotary(x), before)
    rotary.attention_factor = 2.0
    np.testing.assert_allclose(rotary(x), 2 * before, rtol=1e-6)
    rotary.attention_factor, rotary.interleaved = 1.0, True
    assert_same_bits(rotary(x), Rotary(8, interleaved=True)(x))


def test_rotary_tables_belong_to_the_caller():
    x, rotary = normal(5, 8), Rotary(8)
    expected = rotary(x)
    for table in rotary.tables(np.arange(5)):
        table[...] = 0
    assert_same_bits(rotary(x), expected)


def test_rotary_keeps_few_tables():
    rotary = Rotary(64)
    for n in range(1, 20):
        rotary(normal(n, 64), 3)
    kept = positions.rotary._cos_sin.cache_info()
    assert kept.currsize == kept.maxsize == 4
    rotary(normal(10000, 64))
    assert positions.rotary._cos_sin.cache_info().misses == kept.misses


@pytest.mark.quick
def test_threads_share_a_rotary():
    rotary = Rotary(16)
    inputs = [(normal(n, 16), n) for n in range(1, 9)]
    expected = [rotary(*arguments) for arguments in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            results = pool.map(lambda arguments: rotary(*arguments), inputs)
            for result, right in zip(results, expected, strict=True):
                assert_same_bits(result, right)


@pytest.mark.quick
def test_rotary_rounds_16_bit_numbers_once(dtype):
    x = normal(3, 9, 16, dtype=dtype)
    real = "float64" if dtype == np.float64 else "float32"
    rotary = Rotary(16)
    assert_same_bits(rotary(x), rotary(x.astype(real)).astype(dtype))


def test_rotary_tables_are_rounded_once(dtype):
    places = np.random.default_rng(0).integers(1, 10**6, (3, 5000))
    rotary = Rotary(64, scaling=YARN)
    exact = rotary.tables(places, np.float64)
    angles = places[..., None] * rotary.frequencies
    np.testing.assert_allclose(exact[0], rotary.attention_factor * np.cos(angles))
    np.testing.assert_allclose(exact[1], rotary.attention_factor * np.sin(angles))
    for table, right in zip(rotary.tables(places, dtype), exact, strict=True):
        assert table.shape == (3, 5000, 32)
        once = bfloat16(right) if dtype.name == "bfloat16" else right.astype(dtype)
        assert_same_bits(table, once)


def test_rotary_of_position_0_changes_nothing():
    for interleaved in (False, True):
        x = normal(3, 1, 8)
        np.testing.assert_array_equal(Rotary(8, interleaved=interleaved)(x), x)


def test_pairings_differ_by_the_order_of_the_numbers():
    x = normal(3, 9, 12)
    order = np.arange(12).reshape(2, 6).T.ravel()  # 0 6 1 7 ...
    assert_same_bits(
        Rotary(12, interleaved=True)(x[..., order], 40), Rotary(12)(x, 40)[..., order]
    )


@pytest.mark.quick
@given(
    places=st.tuples(*[st.integers(-5000, 5000)] * 2),
    shift=st.integers(-100_000, 100_000),
    interleaved=st.booleans(),
    rotary_dim=st.sampled_from([2, 6, 8]),
    scaling=st.sampled_from([None, LLAMA3, YARN, {"type": "linear", "factor": 3}]),
)
def test_rotary_products_depend_on_the_distance_only(
    places, shift, interleaved, rotary_dim, scaling
):
    rotary = Rotary(8, interleaved=interleaved, rotary_dim=rotary_dim, scaling=scaling)
    query, key = normal(2, 1, 8, dtype="float64")
    product, moved = (
        (rotary(query, places[0] + by) @ rotary(key, places[1] + by).T).item()
        for by in (0, shift)
    )
    assert abs(product - moved) < 1e-9
    size = rotary_dim
    turned = rotated(
        key, [places[1] - places[0]], rotary.frequencies, interleaved,
        rotary.attention_factor**2,
    )  # fmt: skip
    turned[..., size:] = key[..., size:]
    assert abs(product - (query @ turned.T).item()) < 1e-9


@pytest.mark.quick
def test_rotary_rows_do_not_depend_on_each_other(dtype):
    rotary = Rotary(20, rotary_dim=14)
    x = normal(2, 3, 37, 20, dtype=dtype)
    x[1, 1, 5] = np.inf
    x[1, 1, 7] = np.nan
    whole = rotary(x, 1000)
    for i in (0, 5, 6, 36):
        assert_same_bits(rotary(x[:, :, i : i + 1], 1000 + i), whole[:, :, i : i + 1])
        assert_same_bits(rotary(x[1, 2, i], 1000 + i), whole[1, 2, i])
    assert_same_bits(rotary(x[:, :, ::-1], 1036 - np.arange(37)), whole[:, :, ::-1])
    layout = lay_out(x, order=(3, 0, 2, 1), steps=(1, -1, 2, -3))
    assert_same_bits(rotary(layout, 1000), whole)
    assert np.isfinite(whole[0].astype(float)).all()


@pytest.mark.quick
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_writes_where_told(dtype, interleaved):
    rotary = Rotary(10, interleaved=interleaved, rotary_dim=6)
    x = normal(2, 9, 10, dtype=dtype)
    right = rotary(x, 3)
    out = lay_out(np.zeros_like(x), order=(2, 1, 0), steps=(2, -1, 3))
    assert rotary(x, 3, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), right)
    # Over itself, in its own order and in others.
    for view in (np.s_[:], np.s_[..., ::-1], np.s_[:, ::-1], np.s_[::-1]):
        own = x.copy()
        rotary(own, 3, out=own[view])
        assert_same_bits(own[view].copy(), right)


def test_rotary_refuses_to_write_to_a_read_only_array():
    with pytest.raises(ValueError, match=r"^out: expected .* written to"):
        Rotary(8)(np.ones((3, 8)), out=read_only(np.zeros((3, 8))))


def test_rotary_leaves_its_arguments_alone():
    x, places = normal(2, 5, 8), np.arange(5)
    x.flags.writeable = places.flags.writeable = False
    Rotary(8)(x, places)
    assert_same_bits(x, normal(2, 5, 8))


def test_rotary_of_other_kinds():
    numbers = np.arange(24).reshape(3, 8)
    result = Rotary(8)(numbers)
    assert_same_bits(result, Rotary(8)(numbers.astype(float)))
    assert_same_bits(Rotary(8)(numbers.tolist()), result)
    assert_same_bits(Rotary(8)(numbers.astype(">f4")), Rotary(8)(numbers.astype("f4")))
    for shape in ((0, 8), (0, 3, 8), (3, 0, 8), (8,)):
        assert Rotary(8)(np.zeros(shape)).shape == shape
    assert Rotary(0)(np.zeros((3, 0))).shape == (3, 0)


@pytest.mark.quick
@pytest.mark.parametrize("cut", [1, 10, 49])
def test_rotary_cache_of_turned_keys_serves_later_queries(cut):
    query, key, value = (normal(2, 50, 16, seed=s) for s in range(3))
    rotary = Rotary(16)
    whole = attnpy.attention(rotary(query), rotary(key), value, causal=True)
    last = attnpy.attention(
        rotary(query[:, cut:], cut), rotary(key), value, causal=True
    )
    assert_same_bits(last, whole[:, cut:])


# Scaling


@pytest.mark.quick
def test_linear_scaling_divides_the_positions():
    rotary = Rotary(16, scaling={"type": "linear", "factor": 4.0})
    for scaled, plain in zip(
        rotary.tables([8, 12], "float64"), Rotary(16).tables([2, 3], "float64"),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(scaled, plain, rtol=1e-13)


@pytest.mark.quick
def test_llama3_scaling():
    plain = Rotary(128, base=500000.0)
    rotary = Rotary(128, base=500000.0, scaling=LLAMA3)
    kinds = set()
    for frequency, scaled in zip(plain.frequencies, rotary.frequencies, strict=True):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            kinds.add("kept")
            assert scaled == frequency
        elif wavelength > 8192:
            kinds.add("divided")
            assert scaled == frequency / 8
        else:
            kinds.add("between")
            smooth = (8192 / wavelength - 1) / (4 - 1)
            between = (1 - smooth) * frequency / 8 + smooth * frequency
            assert scaled == pytest.approx(between, rel=1e-13)
    assert kinds == {"kept", "divided", "between"}
    assert rotary.attention_factor == 1


@pytest.mark.quick(dim=(128,), truncate=(None,))
@pytest.mark.parametrize("truncate", [None, True, False])
@pytest.mark.parametrize("betas", [{}, {"beta_fast": 16, "beta_slow": 2}])
@pytest.mark.parametrize(
    ("dim", "base", "original"),
    [(128, 1e6, 32768), (16, 1e4, 100), (8, 10.0, 593)],  # the ends cut off in two
)
def test_yarn_scaling(dim, base, original, betas, truncate):
    scaling = {
        **YARN,
        **betas,
        "truncate": truncate,
        "original_max_position_embeddings": original,
    }
    rotary = Rotary(dim, base=base, scaling=scaling)

    def place(turns):  # the i where original / wavelength is turns
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = place(betas.get("beta_fast", 32)), place(betas.get("beta_slow", 1))
    if truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramps = []
    for i, scaled in enumerate(rotary.frequencies):
        frequency = base ** (-2 * i / dim)
        ramps.append(min(1, max(0, (i - low) / (high - low))))
        right = frequency / 4 * ramps[i] + frequency * (1 - ramps[i])
        assert scaled == pytest.approx(right, rel=1e-12)
    assert betas or len(set(ramps)) > 1


def test_yarn_keeps_the_fastest_pairs_and_divides_the_slowest():
    plain, scaled = (
        Rotary(128, base=1e6, scaling=scaling).frequencies for scaling in (None, YARN)
    )
    assert_same_bits(scaled[:20], plain[:20])
    assert_same_bits(scaled[-20:], plain[-20:] / 4)
    assert (scaled[20:-20] <= plain[20:-20]).all()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"factor": 0.5}, 1),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1),
        ({"mscale": 0.7, "mscale_all_dim": 2},
         (0.07 * math.log(4) + 1) / (0.2 * math.log(4) + 1)),
        ({"mscale": 0.7}, 0.1 * math.log(4) + 1),
    ],
)  # fmt: skip
def test_yarn_attention_factor(options, factor):
    rotary = Rotary(8, scaling={**YARN, **options})
    assert rotary.attention_factor == pytest.approx(factor, rel=1e-14)
    x = normal(4, 8, dtype="float64")
    np.testing.assert_allclose(
        np.linalg.norm(rotary(x, 9), axis=-1), factor * np.linalg.norm(x, axis=-1)
    )


@pytest.mark.quick
def test_scaling_takes_a_model_configuration_as_it_is():
    frequencies = Rotary(8, base=5e5, scaling=LLAMA3).frequencies
    for more in (
        {"rope_theta": 500000},
        {"type": "llama3"},
        {"partial_rotary_factor": 1.0},
        {"attention_factor": None},
    ):
        same = Rotary(8, base=5e5, scaling={**LLAMA3, **more}).frequencies
        assert_same_bits(same, frequencies)
    for nothing in ({"rope_type": "default"}, {"type": "default", "rope_theta": 1e4}):
        assert_same_bits(Rotary(8, scaling=nothing).frequencies, Rotary(8).frequencies)
    partial = {"rope_type": "default", "partial_rotary_factor": 0.4}
    assert len(Rotary(80, rotary_dim=32, scaling=partial).frequencies) == 16


ORIGINAL = "original_max_position_embeddings"
DYNAMIC = {"type": "dynamic", "factor": 3.0, ORIGINAL: 6}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [2.0, 3.0, 5.0, 9.0],
    "factor": 4.0,
    ORIGINAL: 6,
}


def of_length(scaling, length, head_dim=8):
    """The frequencies and the attention factor, as the formulas have them."""
    base, exponents = 10000.0, np.arange(0, head_dim, 2) / head_dim
    if scaling["type"] == "longrope":
        factors = scaling["long_factor" if length > 6 else "short_factor"]
        growth = math.log(4) / math.log(6)
        return 1 / (np.array(factors) * base**exponents), math.sqrt(1 + growth)
    if length > 6:
        base *= (3.0 * length / 6 - (3.0 - 1)) ** (head_dim / (head_dim - 2))
    return base**-exponents, 1.0


@pytest.mark.quick
@pytest.mark.parametrize("length", [0, 1, 6, 7, 20])
@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE])
def test_frequencies_may_depend_on_the_length_of_a_sequence(scaling, length):
    rotary = Rotary(8, scaling=scaling)
    frequencies, factor = of_length(scaling, length)
    angles = np.arange(length)[:, None] * frequencies
    assert rotary.attention_factor == pytest.approx(factor, rel=1e-15)
    for actual, exact in zip(
        rotary.tables(np.arange(length), "float64"), (np.cos, np.sin), strict=True
    ):
        assert_near(actual, factor * exact(angles), 1e-13)
    assert_near(rotary.frequencies, of_length(scaling, 1)[0])


@pytest.mark.quick
@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE])
def test_each_sequence_has_the_frequencies_of_its_own_length(scaling):
    rotary, x = Rotary(8, scaling=scaling), normal(3, 2, 5, 8)
    first = np.array([0, 4, 9])
    together = rotary(x, (first[:, None] + np.arange(5))[:, None])
    for i, start in enumerate(first):
        assert_same_bits(together[i], rotary(x[i], start))
        frequencies, factor = of_length(scaling, start + 5)
        fixed = Rotary(8)
        fixed.frequencies, fixed.attention_factor = frequencies, factor
        assert_near(together[i], fixed(x[i], start), 1e-6)
    one = normal(8)
    assert_same_bits(rotary(one, 20), rotary(one[None], 20)[0])


@pytest.mark.quick
@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE])
def test_layers_count_the_tokens_that_a_sequence_has_after_the_call(scaling):
    mha = MultiHeadAttention(16, 2, rng=np.random.default_rng(0))
    rotary = Rotary(8, scaling=scaling)
    x, lengths = normal(3, 10, 16), np.array([10, 4, 7])
    full = mha(x, causal=True, rotary=rotary, kv_lengths=lengths)
    cache = KVCache(3, 2, 12, 8)
    assert_same_bits(
        mha(x, causal=True, rotary=rotary, kv_lengths=lengths, cache=cache), full
    )
    more = normal(3, 2, 16, seed=1)
    steps = mha(more, causal=True, rotary=rotary, cache=cache)
    for i, n in enumerate(lengths):
        alone = KVCache(1, 2, 12, 8)
        given = {"causal": True, "rotary": rotary, "cache": alone}
        assert_same_bits(full[i, :n], mha(x[i, :n], **given))
        assert_same_bits(steps[i], mha(more[i], **given))
    # As long as the original length holds, it is the same in one call and in several.
    cache = KVCache(1, 2, 6, 8)
    given = {"causal": True, "rotary": rotary}
    parts = [mha(x[0, i : i + 2], **given, cache=cache) for i in (0, 2, 4)]
    assert_same_bits(np.concatenate(parts), mha(x[0, :6], **given))


@pytest.mark.parametrize(
    ("scaling", "text"),
    [
        ({**LONGROPE, "long_factor": [1.0]}, "rotary_dim / 2 = 4 numbers, got "),
        ({**LONGROPE, "long_factor": 2.0}, "rotary_dim / 2 = 4 numbers, got 2.0"),
        ({**LONGROPE, "short_factor": [1, 2, 3, 0]}, "a finite number > 0, got 0"),
        ({**LONGROPE, "factor": None}, "with factor or attention_factor, got neither"),
        ({**LONGROPE, ORIGINAL: 1}, "more than 1, got 1"),
        ({**DYNAMIC, ORIGINAL: None}, "'dynamic' with factor, original_max"),
        ({**DYNAMIC, "factor": -1}, "a finite number > 0, got -1"),
    ],
)
def test_scalings_by_length_say_what_they_need(scaling, text):
    with pytest.raises(ValueError, match=rf"^scaling.*: expected .*{text}"):
        Rotary(8, scaling=scaling)


@pytest.mark.parametrize(
    "lengths", [[1, 6, 3, 4], [1, 6], [[1, 6, 5]], [1, 9, 6], [-1, 2, 6], 7, 6.5, "a"]
)
def test_wrong_lengths_are_named_where_frequencies_depend_on_them(lengths):
    mha = MultiHeadAttention(16, 2, rng=np.random.default_rng(0))
    texts = set()
    for rotary in (Rotary(8), Rotary(8, scaling=DYNAMIC)):
        with pytest.raises((TypeError, ValueError), match=r"^kv_lengths: ") as caught:
            mha(normal(3, 6, 16), rotary=rotary, kv_lengths=lengths)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_dynamic_scaling_needs_two_pairs():
    with pytest.raises(ValueError, match="rotary_dim: expected at least 4 with 'dyn"):
        Rotary(8, rotary_dim=2, scaling=DYNAMIC)


@pytest.mark.parametrize(
    "scaling",
    [
        {},
        {"factor": 2.0},
        {"type": "dynamic", "factor": 2.0},
        {"rope_type": "longrope"},
        {"rope_type": ["linear"]},
        {"type": "linear", "rope_type": "yarn"},
        {"type": "linear"},
        {"type": "linear", "factor": None},
        {"type": "linear", "factor": 2.0, "unknown": 1},
        {"type": "linear", "factor": 0},
        {"type": "linear", "factor": math.nan},
        {**LLAMA3, "high_freq_factor": 1.0},
        {**LLAMA3, "rope_theta": 1e4},
        {**LLAMA3, "partial_rotary_factor": 0.5},
        {k: v for k, v in YARN.items() if k != "original_max_position_embeddings"},
        {**YARN, "beta_fast": -1},
    ],
)
def test_other_scalings_are_value_errors(scaling):
    with pytest.raises(ValueError, match=r"^scaling.*: expected .*got|not"):
        Rotary(8, base=5e5, scaling=scaling)


# ALiBi


@pytest.mark.quick
def test_alibi_slopes_of_the_paper():
    assert alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    np.testing.assert_allclose(
        alibi_slopes(16, "float64"), [2 ** (-h / 2) for h in range(1, 17)], rtol=1e-15
    )
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(0).shape == (0,)


def test_alibi_slopes_of_other_numbers_of_heads():
    np.testing.assert_allclose(
        alibi_slopes(12, "float64"),
        [2.0**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
        rtol=1e-15,
    )
    for n, power in ((3, 2), (5, 4), (7, 4), (40, 32), (112, 64)):
        slopes = alibi_slopes(n)
        assert_same_bits(slopes[:power], alibi_slopes(power))
        assert_same_bits(slopes[power:], alibi_slopes(2 * power)[0::2][: n - power])


@pytest.mark.quick
@pytest.mark.parametrize("offset", [None, 0, -2, 9])
def test_alibi_bias_falls_with_the_distance(dtype, offset):
    bias = alibi_bias(3, 4, 6, q_offset=offset, dtype=dtype)
    assert (bias.dtype, bias.shape) == (dtype, (3, 4, 6))
    first = 2 if offset is None else offset
    for h, slope in enumerate([2**-4, 2**-8, 2**-2]):
        for i in range(4):
            for j in range(6):
                exact = -slope * abs(first + i - j)
                assert bias[h, i, j] == np.array(exact, dtype)


def test_alibi_bias_of_many_offsets():
    bias = alibi_bias(3, 4, 6, q_offset=[[1, 2], [3, -4]])
    assert bias.shape == (2, 2, 3, 4, 6)
    assert_same_bits(bias[1, 1], alibi_bias(3, 4, 6, q_offset=-4))


@pytest.mark.quick
def test_alibi_without_the_query_position_has_the_same_causal_weights():
    query, key, value = (normal(4, 7, 5, dtype="float64", seed=s) for s in range(3))
    simple = alibi_slopes(4, "float64")[:, None, None] * np.arange(7)
    np.testing.assert_allclose(
        attnpy.attention(query, key, value, causal=True,
                         bias=alibi_bias(4, 7, 7, dtype="float64")),
        reference.attention(query, key, value, causal=True, bias=simple)[0],
        rtol=1e-12,
    )  # fmt: skip


# T5


@pytest.mark.quick
@pytest.mark.parametrize(
    ("bidirectional", "starts"),
    [
        (True, [*range(9), 12, 16, 23, 32, 46, 64, 91]),
        (False, [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99,
                 113]),
    ],
)  # fmt: skip
def test_relative_buckets_of_t5_begin_at(bidirectional, starts):
    row = relative_buckets(1, 500, bidirectional=bidirectional)[0, ::-1]  # distances
    assert [int(np.argmax(row == b)) for b in range(len(starts))] == starts
    assert (np.diff(row) >= 0).all()
    assert row[-1] == len(starts) - 1
    after = relative_buckets(1, 500, bidirectional=bidirectional, q_offset=0)[0]
    if bidirectional:
        assert_same_bits(after[1:], row[1:] + 16)
    else:
        assert not after.any()


@given(
    n_buckets=st.integers(1, 64),
    bidirectional=st.booleans(),
    more=st.integers(1, 500),
    offset=st.integers(-300, 300),
)
def test_relative_buckets_are_the_formula(n_buckets, bidirectional, more, offset):
    num_buckets = 2 * n_buckets if bidirectional else n_buckets
    exact = n_buckets // 2
    buckets = relative_buckets(
        3, 200, num_buckets=num_buckets, max_distance=exact + more, q_offset=offset,
        bidirectional=bidirectional,
    )  # fmt: skip
    assert buckets.dtype == np.int64
    for (i, j), bucket in np.ndenumerate(buckets):
        relative = j - (offset + i)
        distance = abs(relative) if bidirectional else max(0, -relative)
        right = distance
        if distance >= exact:
            right = n_buckets - 1
            if exact:
                share = math.log(distance / exact) / math.log((exact + more) / exact)
                place = exact + share * (n_buckets - exact)
                if place < n_buckets and abs(place - round(place)) < 1e-9:
                    continue  # begins here in exact numbers, not always in floats
                right = min(math.floor(place), n_buckets - 1)
        assert bucket == right + n_buckets * (bidirectional and relative > 0)


@pytest.mark.quick
def test_relative_bias_looks_the_buckets_up(dtype):
    table = normal(10, 3, dtype=dtype)
    for options in ({}, {"bidirectional": False, "max_distance": 20, "q_offset": 1}):
        bias = relative_bias(table, 4, 30, **options)
        buckets = relative_buckets(4, 30, num_buckets=10, **options)
        assert (bias.dtype, bias.shape) == (dtype, (3, 4, 30))
        for h in range(3):
            assert_same_bits(bias[h].copy(), table[buckets, h])
    many = relative_bias(table, 4, 30, q_offset=[[5], [-7]])
    assert many.shape == (2, 1, 3, 4, 30)
    assert_same_bits(many[1, 0].copy(), relative_bias(table, 4, 30, q_offset=-7).copy())
    assert relative_bias(table, 0, 30).shape == (3, 0, 30)
    assert relative_bias(table[:, :0], 4, 0).shape == (0, 4, 0)


@pytest.mark.quick
def test_relative_bias_continues_in_decoding():
    table, x = normal(32, 2), normal(2, 40, 8)
    whole = relative_bias(table, 40, 40, bidirectional=False)
    last = relative_bias(table, 1, 40, bidirectional=False)
    assert_same_bits(
        attnpy.attention(x[:, -1:], x, x, bias=last, scale=1),
        attnpy.attention(x, x, x, bias=whole, scale=1)[:, -1:],
    )


# Errors


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("length", lambda: sinusoidal(-1, 4)),
        ("embed_dim", lambda: sinusoidal(4, -1)),
        ("base", lambda: sinusoidal(4, 4, base=0)),
        ("offset", lambda: sinusoidal(4, 4, offset=2**60)),
        ("max_length", lambda: Learned(-1, 4)),
        ("head_dim", lambda: Rotary(7)),
        ("rotary_dim", lambda: Rotary(8, rotary_dim=3)),
        ("rotary_dim", lambda: Rotary(8, rotary_dim=10)),
        ("base", lambda: Rotary(8, base=math.inf)),
        ("x", lambda: Rotary(8)(np.zeros((3, 6)))),
        ("x", lambda: Rotary(8)(3.0)),
        ("positions", lambda: Rotary(8)(np.zeros((3, 8)), [1, 2])),
        ("positions", lambda: Rotary(8)(np.zeros((3, 8)), [[1, 2, 3]])),
        ("positions", lambda: Rotary(8)(np.zeros((1, 8)), [1, 2])),
        ("positions", lambda: Rotary(8)(np.zeros(8), [1])),
        ("positions", lambda: Rotary(8)(np.zeros((3, 8)), 2**63 - 1)),
        ("out", lambda: Rotary(8)(np.zeros((3, 8)), out=np.zeros((1, 8)))),
        ("num_heads", lambda: alibi_slopes(-1)),
        ("num_queries", lambda: alibi_bias(2, -1, 3)),
        ("num_keys", lambda: relative_buckets(2, -1)),
        ("num_buckets", lambda: relative_buckets(2, 2, num_buckets=0)),
        ("num_buckets", lambda: relative_buckets(2, 2, num_buckets=31)),
        ("max_distance", lambda: relative_buckets(2, 2, max_distance=8)),
        ("table", lambda: relative_bias(np.zeros(32), 2, 2)),
    ],
)
def test_wrong_numbers_and_shapes_are_value_errors(name, call):
    with refused(ValueError, name):
        call()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("length", lambda: sinusoidal(4.0, 4)),
        ("length", lambda: sinusoidal(True, 4)),
        ("offset", lambda: sinusoidal(4, 4, offset=1.5)),
        ("offset", lambda: sinusoidal(4, 4, offset=[1, 2])),
        ("base", lambda: sinusoidal(4, 4, base="x")),
        ("dtype", lambda: sinusoidal(4, 4, dtype="int32")),
        ("dtype", lambda: Learned(4, 4, dtype=complex)),
        ("rng", lambda: Learned(4, 4, rng=0)),
        ("positions", lambda: Learned(4, 4)([0.5])),
        ("positions", lambda: Learned(4, 4)([True])),
        ("head_dim", lambda: Rotary("8")),
        ("interleaved", lambda: Rotary(8, interleaved="yes")),
        ("scaling", lambda: Rotary(8, scaling="linear")),
        ("scaling", lambda: Rotary(8, scaling={"type": "linear", "factor": "2"})),
        ("scaling", lambda: Rotary(8, scaling={**YARN, "mscale": "1"})),
        ("bidirectional", lambda: relative_buckets(2, 2, bidirectional="no")),
        ("x", lambda: Rotary(8)(np.zeros((3, 8), complex))),
        ("positions", lambda: Rotary(8)(np.zeros((3, 8)), 0.5)),
        ("positions", lambda: Rotary(8)(np.zeros((3, 8)), True)),
        ("dtype", lambda: Rotary(8).tables([1], int)),
        ("out", lambda: Rotary(8)(np.zeros((3, 8)), out=np.zeros((3, 8), "f4"))),
        ("out", lambda: Rotary(8)(np.zeros((3, 8)), out=[0])),
        ("num_heads", lambda: alibi_slopes(2.5)),
        ("q_offset", lambda: alibi_bias(2, 2, 2, q_offset=0.5)),
        ("table", lambda: relative_bias([["a"]], 2, 2)),
    ],
)
def test_wrong_kinds_are_type_errors(name, call):
    with refused(TypeError, f"{name}.*"):
        call()


def test_everything_public_is_listed():
    public = {
        name for name, thing in vars(positions).items()
        if not name.startswith("_") and not isinstance(thing, ModuleType)
    }  # fmt: skip
    assert public == set(positions.__all__)


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_scalings_that_overflow_name_their_field(kind):
    original = {"original_max_position_embeddings": 64}
    more = {
        "linear": {},
        "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **original},
        "yarn": original,
    }[kind]

    def make(**options):
        scaling = {"rope_type": kind, "factor": 4.0, **more, **options}
        rotary = Rotary(8, scaling=scaling)
        assert np.isfinite(rotary.frequencies).all()
        assert np.isfinite(rotary.attention_factor)

    for number in (1e300, 1e-300, 1e308):
        make(factor=number)
    with refused(ValueError, r"scaling\['factor'\]"):
        make(factor=5e-324)
    for name in ("beta_fast", "beta_slow") if kind == "yarn" else ():
        make(**{name: 1e300})
        make(**{name: 1e-300})
        for number in (1e308, 5e-324):
            with refused(ValueError, rf"scaling\['{name}'\]"):
                make(**{name: number})
            with refused(ValueError, rf"scaling\['{name}'\]"):
                make(**{name: 1e300, "original_max_position_embeddings": 1e-300})
    if kind == "yarn":
        with refused(ValueError, r"scaling\['mscale_all_dim'\]"):
            make(factor=np.exp(10.0), mscale=1.0, mscale_all_dim=-1.0)
