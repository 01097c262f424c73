"""Normalization of rows in C: right, and the same bits whatever is around."""

import functools

import numpy as np
import pytest
from support.arrays import normal
from support.calls import normalize_on, normalize_vjp_on, threads_for_any_work
from support.comparisons import assert_same_bits
from support.formulas import layer_norm, rms_norm
from support.processes import run_python

SIZES = (1, 2, 7, 8, 15, 16, 17, 31, 33, 100, 384)


@pytest.fixture
def normalize(tier):
    """The norm of each row on one instruction set."""
    return functools.partial(normalize_on, tier)


def exact(x, weight, bias=0, residual=0, eps=1e-5, centre=True):
    arrays = (np.asarray(a, np.longdouble) for a in (x, weight, bias, residual))
    x, weight, bias, residual = arrays
    if centre:
        return layer_norm(x + residual, weight, bias, eps)
    return rms_norm(x + residual, weight, eps) + bias


@pytest.fixture
def differentiate(tier):
    """The gradients of x, weight and bias of a norm on one instruction set."""
    return functools.partial(normalize_vjp_on, tier)


@pytest.mark.quick(size=(1, 17, 384))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("centre", [True, False])
def test_rows_are_normalized(normalize, size, kind, centre):
    x, residual = normal(5, size, dtype=kind), normal(5, size, dtype=kind, seed=1)
    weight, bias = normal(size, dtype=kind), normal(size, dtype=kind, seed=1)
    allowed = 20 * np.finfo(kind).eps
    for options in (
        {},
        {"bias": bias},
        {"residual": residual},
        {"bias": bias, "residual": residual, "eps": 0.5},
    ):
        result = normalize(x, weight, centre=centre, **options)
        right = exact(x, weight, centre=centre, **options)
        assert result.dtype == kind
        scale = 1 + np.abs(right)
        # Of one number minus itself nothing but rounding is left.
        slack = allowed * np.abs(x).max() / np.sqrt(1e-5) if size == 1 else 0
        assert (np.abs(result - right) <= allowed * scale + slack).all()


@pytest.mark.quick(size=(1, 17, 384))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_every_tier_has_the_bits_of_the_scalar_tier(normalize, size, kind):
    x, weight = normal(9, size, dtype=kind), normal(size, dtype=kind)
    for centre in (True, False):
        options = {"residual": x[::-1], "eps": 1e-6, "centre": centre}
        expected = normalize_on("scalar", x, weight, weight, **options)
        assert_same_bits(normalize(x, weight, weight, **options), expected)


@pytest.mark.quick
def test_a_row_has_the_same_bits_among_any_rows_and_threads(normalize):
    x, weight = normal(3, 200, 50), normal(50)
    together = normalize(x, weight)
    for i in (0, 63, 64, 199):
        assert_same_bits(normalize(x[1, i], weight), together[1, i])
    assert_same_bits(normalize(x[:, ::-2], weight), together[:, ::-2])
    with threads_for_any_work():
        assert_same_bits(normalize(x, weight, num_threads=3), together)


@pytest.mark.quick
def test_nan_stays_in_its_row(normalize):
    x, weight = normal(4, 20), normal(20)
    expected = normalize(x, weight)
    x[2, 3] = np.nan
    result = normalize(x, weight)
    assert np.isnan(result[2]).all()
    rest = [0, 1, 3]
    assert_same_bits(result[rest], expected[rest])


@pytest.mark.quick
def test_no_rows_or_columns(normalize):
    assert normalize(np.zeros((0, 5), "f4"), np.ones(5, "f4")).shape == (0, 5)
    assert normalize(np.zeros((3, 0), "f4"), np.ones(0, "f4")).shape == (3, 0)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.ones((2, 3), complex), np.ones(3)), TypeError, "x: expected"),
        ((np.ones((2, 3)), np.ones(3, complex)), TypeError, "norm: expected"),
        ((np.float32(1), np.ones(3)), ValueError, "x: expected"),
        ((np.ones((2, 3)), np.ones(4)), ValueError, r"x: expected \(\.\.\., 4\)"),
        ((np.ones((2, 3)), np.ones((3, 1))), ValueError, r"norm: .* \(dim,\)"),
        ((np.ones((2, 3)), np.ones(3), 1.0), ValueError, r"norm: .* bias of \(3,\)"),
        ((np.ones((2, 3)), np.ones(3), None, np.ones(3)), ValueError, "residual: "),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        normalize_on(None, *arguments)


# ---- Gradients -----------------------------------------------------------------------


def exact_gradients(grad, x, weight, eps=1e-5, centre=True):
    """The chain rule in longdouble, and how large what rounds is."""
    grad, x, weight = (np.asarray(a, np.longdouble) for a in (grad, x, weight))
    y = exact(x, 1.0, eps=eps, centre=centre)
    centred = x - x.mean(-1, keepdims=True) if centre else x
    scale = 1 / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps)
    g = grad * weight
    of_x = g - y * (g * y).mean(-1, keepdims=True)
    if centre:
        of_x = of_x - g.mean(-1, keepdims=True)
    # x less its mean is rounded as x is.
    size = 1 + np.abs(y) + np.abs(x).max(-1, keepdims=True) * scale
    most = [np.abs(a).max(-1, keepdims=True) for a in (g, y)]
    sizes = (
        scale * size * most[0] * (1 + most[1]),
        (np.abs(grad) * size).sum(0),
        np.abs(grad).sum(0),
    )
    return (scale * of_x, (grad * y).sum(0), grad.sum(0)), sizes


@pytest.mark.quick(size=(1, 17, 384))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("centre", [True, False])
def test_gradients_are_the_chain_rule(differentiate, size, kind, centre):
    grad, x = normal(70, size, dtype=kind), normal(70, size, dtype=kind, seed=1)
    weight, bias = normal(size, dtype=kind), normal(size, dtype=kind, seed=1)
    for eps in (1e-5, 0.5):
        options = {"eps": eps, "centre": centre}
        results = differentiate(grad, x, weight, bias, **options)
        right, sizes = exact_gradients(grad, x, weight, **options)
        for result, expected, most in zip(results, right, sizes, strict=True):
            assert result.dtype == kind
            assert (np.abs(result - expected) <= 6 * np.finfo(kind).eps * most).all()
        without = differentiate(grad, x, weight, **options)
        assert without[2] is None
        assert_same_bits(without[:2], results[:2])


@pytest.mark.quick
@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("shape", [(9,), (5, 9), (2, 3, 20)])
def test_gradients_are_finite_differences(tier, shape, centre):
    names, step = ("x", "weight", "bias"), 1e-6
    grad = normal(*shape, dtype="f8", seed=9)
    size = shape[-1]
    at = {"x": normal(*shape, dtype="f8"), "weight": normal(size, dtype="f8", seed=1)}
    at["bias"] = normal(size, dtype="f8", seed=2)
    gradients = normalize_vjp_on(tier, grad, *at.values(), eps=0.1, centre=centre)
    for name, gradient in zip(names, gradients, strict=True):
        assert gradient.shape == at[name].shape
        toward = normal(*gradient.shape, dtype="f8", seed=3)
        ends = (
            normalize_on(tier, **{**at, name: at[name] + s * toward}, eps=0.1,
                         centre=centre)
            for s in (step, -step)
        )  # fmt: skip
        slope = np.sum(grad * np.subtract(*ends)) / (2 * step)
        np.testing.assert_allclose(np.sum(gradient * toward), slope, rtol=1e-7)


@pytest.mark.quick(size=(1, 17, 384))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_gradients_have_the_bits_of_the_scalar_tier(differentiate, size, kind):
    grad, x = normal(130, size, dtype=kind), normal(130, size, dtype=kind, seed=1)
    weight = normal(size, dtype=kind)
    for options in ({"bias": weight}, {"eps": 1e-6, "centre": False}):
        arrays = (grad, x, weight)
        expected = normalize_vjp_on("scalar", *arrays, **options)[:2]
        assert_same_bits(differentiate(*arrays, **options)[:2], expected)


@pytest.mark.quick
def test_gradients_have_the_same_bits_for_any_threads_rows_and_layouts(differentiate):
    grad, x = normal(3, 200, 300), normal(3, 200, 300, seed=1)
    weight, bias = normal(300), normal(300, seed=1)
    together = differentiate(grad, x, weight, bias)
    with threads_for_any_work():
        for n in (2, 3, 7):
            apart = differentiate(grad, x, weight, bias, num_threads=n)
            assert_same_bits(apart, together)
    flat = differentiate(grad.reshape(-1, 300), x.reshape(-1, 300), weight, bias)
    assert_same_bits(flat[1:], together[1:])
    for i in (0, 63, 64, 199):
        alone = differentiate(grad[1, i], x[1, i], weight, bias)
        assert_same_bits(alone[0], together[0][1, i])
        assert_same_bits(alone[2], grad[1, i])
    spread = [np.asfortranarray(a)[:, ::-2] for a in (grad, x)]
    plain = [np.ascontiguousarray(a) for a in spread]
    wide = np.repeat(np.stack([weight, bias]), 2, axis=1)[:, ::2]
    expected = differentiate(*plain, weight, bias)
    assert_same_bits(differentiate(*spread, *wide), expected)
    swapped = [a.astype(a.dtype.newbyteorder()) for a in (*plain, weight, bias)]
    assert_same_bits(differentiate(*swapped), expected)


@pytest.mark.quick
def test_sums_over_rows_are_those_of_blocks_of_64_rows(differentiate):
    grad, x, weight = normal(200, 20), normal(200, 20, seed=1), normal(20)
    parts = [
        differentiate(grad[i : i + 64], x[i : i + 64], weight, weight)
        for i in range(0, 200, 64)
    ]
    whole = differentiate(grad, x, weight, weight)
    for k in (1, 2):
        total = np.float32(0)
        for part in parts:
            total = total + part[k]
        assert_same_bits(whole[k], total)


@pytest.mark.quick
def test_gradients_of_16_bits_are_those_of_float32_rounded(differentiate):
    grad, x, weight = normal(70, 20), normal(70, 20, seed=1), normal(20)
    half = [a.astype(np.float16) for a in (grad, x, weight)]
    wide = differentiate(*(a.astype(np.float32) for a in half), weight)
    narrow = differentiate(*half, weight)
    assert [a.dtype for a in narrow] == [np.float16, np.float16, np.float32]
    assert_same_bits(narrow[0], wide[0].astype(np.float16))
    assert_same_bits(narrow[1], wide[1].astype(np.float16))
    assert_same_bits(narrow[2], wide[2])
    mixed = differentiate(grad.astype("f8"), half[1], weight)
    assert [a.dtype for a in mixed[:2]] == [np.float16, np.float32]
    of_integers = differentiate(np.ones((2, 3)), [[1, 2, 3]] * 2, [1] * 3)[:2]
    assert [a.dtype for a in of_integers] == [np.float64] * 2


@pytest.mark.quick
def test_nan_stays_in_its_row_and_in_the_sums(differentiate):
    grad, x, weight = normal(4, 20), normal(4, 20, seed=1), normal(20)
    expected = differentiate(grad, x, weight, weight)
    grad[2, 3] = np.nan
    of_x, of_weight, of_bias = differentiate(grad, x, weight, weight)
    assert np.isnan(of_x[2]).all()
    rest = [0, 1, 3]
    assert_same_bits(of_x[rest], expected[0][rest])
    clean = np.arange(20) != 3
    assert np.isnan([of_weight[3], of_bias[3]]).all()
    assert_same_bits(of_weight[clean], expected[1][clean])
    assert_same_bits(of_bias[clean], expected[2][clean])


@pytest.mark.quick
def test_no_rows_or_columns_have_gradients_of_0(differentiate):
    weight = np.ones(5, "f4")
    for result, shape in zip(
        differentiate(np.zeros((0, 5), "f4"), np.zeros((0, 5), "f4"), weight, weight),
        ((0, 5), (5,), (5,)),
        strict=True,
    ):
        assert_same_bits(result, np.zeros(shape, "f4"))
    nothing = np.zeros((3, 0), "f4")
    results = differentiate(nothing, nothing, nothing[0], nothing[0])
    assert [a.shape for a in results] == [(3, 0), (0,), (0,)]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.ones((2, 3)), np.ones((2, 3), complex), np.ones(3)), TypeError, "x: exp"),
        (
            (np.ones((2, 3), complex), np.ones((2, 3)), np.ones(3)),
            TypeError,
            "grad_out",
        ),
        ((np.ones(3), np.ones((2, 3)), np.ones(3)), ValueError, "grad_output: .* of x"),
        ((np.ones((2, 3)), np.ones((2, 3)), np.ones(4)), ValueError, r"x: exp.*, 4\)"),
        (
            (np.ones((2, 3)), np.ones((2, 3)), np.ones(3), 1.0),
            ValueError,
            "norm: .* bia",
        ),
    ],
)
def test_errors_of_gradients_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        normalize_vjp_on(None, *arguments)


GUARDED = """
import sys
import numpy as np
from support.arrays import normal
from support.calls import normalize_vjp_on
from support.comparisons import assert_same_bits
from support.guarded import hold

for n_rows, size in ((1, 1), (1, 7), (3, 17), (65, 33), (70, 16), (2, 300)):
    for kind in ("f4", "f8", "f2"):
        names = ("grad", "x", "weight", "bias")
        shapes = ((n_rows, size), (n_rows, size), (size,), (size,))
        arrays = [normal(*s, dtype=kind, seed=i) for i, s in enumerate(shapes)]
        expected = normalize_vjp_on(sys.argv[1], *arrays)
        for at_end in (False, True):
            held = [hold(n, a, at_end) for n, a in zip(names, arrays, strict=True)]
            assert_same_bits(normalize_vjp_on(sys.argv[1], *held), expected)
print("done")
"""


def test_no_byte_outside_the_arrays_of_gradients_is_read(tier):
    done = run_python(GUARDED, tier)
    assert done.stdout.strip() == "done", done.stderr[-2000:]
