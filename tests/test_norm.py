"""Normalization of rows in C: right, and the same bits whatever is around."""

import functools

import numpy as np
import pytest
from support.arrays import normal
from support.calls import normalize_on, threads_for_any_work
from support.comparisons import assert_same_bits
from support.formulas import layer_norm, rms_norm

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
