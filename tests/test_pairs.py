"""Losses of pairs of vectors: their formulas, PyTorch's gradients, bits, errors."""

import math

import numpy as np
import pytest
from support.arrays import layouts, normal
from support.comparisons import assert_same_bits
from support.errors import refused

from attnpy.training import cosine_similarity_loss, multiple_negatives_ranking_loss

EPS = {"float32": 1.2e-7, "float64": 2.3e-16}
DTYPES = pytest.mark.parametrize("dtype", EPS)


def pairs(n, m, dim, dtype="float64"):
    a, b = normal(n, dim, dtype=dtype), normal(m, dim, dtype=dtype, seed=1)
    b[:n] += a  # which belong together
    return a, b


def cosines(a, b):
    a, b = np.asarray(a, float), np.asarray(b, float)
    norms = np.linalg.norm(a, axis=-1)[:, None] * np.linalg.norm(b, axis=-1)
    return a @ b.T / norms


def assert_limits(loss, arrays, gradients):
    """The gradients are limits of difference quotients of the loss."""
    for i, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        step = 1e-6 * normal(*array.shape, dtype="float64", seed=9 + i)
        ends = [
            loss(*(x + sign * step if x is array else x for x in arrays))
            for sign in (1, -1)
        ]
        assert ends[0] - ends[1] == pytest.approx(2 * np.sum(gradient * step), rel=1e-5)


@DTYPES
@pytest.mark.parametrize("size", [(1, 1), (5, 130), (33, 7)])
def test_the_cosine_loss_is_its_formula(dtype, size):
    a, b = pairs(size[0], size[0], size[1], dtype)
    targets = np.linspace(-1, 1, size[0])
    loss, grad_a, grad_b = cosine_similarity_loss(a, b, targets)
    expected = np.mean((np.diag(cosines(a, b)) - targets) ** 2)
    assert loss == pytest.approx(expected, rel=50 * EPS[dtype], abs=50 * EPS[dtype])
    assert grad_a.dtype == grad_b.dtype == a.dtype
    if dtype == "float64":

        def of(a, b):
            return cosine_similarity_loss(a, b, targets)[0]

        if size[1] > 1:  # else nothing changes
            assert_limits(of, (a, b), (grad_a, grad_b))


@DTYPES
@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("size", [(1, 1, 3), (4, 4, 130), (5, 9, 12)])
def test_the_ranking_loss_is_its_formula(dtype, scale, size):
    a, b = pairs(*size, dtype)
    loss, grad_a, grad_b = multiple_negatives_ranking_loss(a, b, scale=scale)
    scores = scale * cosines(a, b)
    logs = np.log(np.exp(scores).sum(axis=-1)) - np.diag(scores)
    bound = 100 * scale * EPS[dtype]
    assert loss == pytest.approx(logs.mean(), rel=bound, abs=bound)
    assert (grad_a.dtype, grad_a.shape) == (a.dtype, a.shape)
    assert (grad_b.dtype, grad_b.shape) == (b.dtype, b.shape)
    if dtype == "float64" and size[1] > 1:

        def of(a, b):
            return multiple_negatives_ranking_loss(a, b, scale=scale)[0]

        assert_limits(of, (a, b), (grad_a, grad_b))


def test_losses_and_gradients_are_those_of_torch():
    torch = pytest.importorskip("torch")
    a, b = pairs(6, 9, 17)
    for n_right, loss, theirs in (
        (
            9,
            lambda a, b: multiple_negatives_ranking_loss(a, b),
            lambda a, b: torch.nn.functional.cross_entropy(
                20
                * torch.nn.functional.normalize(a)
                @ torch.nn.functional.normalize(b).T,
                torch.arange(len(a)),
            ),
        ),
        (
            6,
            lambda a, b: cosine_similarity_loss(a, b, [0.5, -1, 1, 0, 0.2, 1]),
            lambda a, b: torch.nn.functional.mse_loss(
                torch.cosine_similarity(a, b),
                torch.tensor([0.5, -1, 1, 0, 0.2, 1], dtype=torch.float64),
            ),
        ),
    ):
        given = [torch.tensor(x, requires_grad=True) for x in (a, b[:n_right])]
        expected = theirs(*given)
        expected.backward()
        found = loss(a, b[:n_right])
        assert found[0] == pytest.approx(expected.item(), rel=1e-12)
        for gradient, other in zip(found[1:], given, strict=True):
            np.testing.assert_allclose(gradient, other.grad.numpy(), 1e-9, 1e-12)


@DTYPES
def test_pairs_have_the_same_bits_for_threads_and_layouts(dtype):
    a, b = pairs(40, 70, 300, dtype)

    def both(a, b, **options):
        cosine = cosine_similarity_loss(a, b[: len(a)], np.full(len(a), 0.5))
        ranking = multiple_negatives_ranking_loss(a, b, **options)
        return np.array([cosine[0], ranking[0]]), *cosine[1:], *ranking[1:]

    expected = both(a, b, num_threads=1)
    for n in (2, 3, 7):
        assert_same_bits(both(a, b, num_threads=n), expected)
    for one, other in zip(layouts(a), layouts(b), strict=True):
        assert_same_bits(both(one, other), expected)
    swapped = a.astype(a.dtype.newbyteorder()), b.astype(b.dtype.newbyteorder())
    assert_same_bits(both(*swapped), expected)


def test_vectors_of_any_length_have_directions():
    a, b = pairs(3, 3, 5)
    expected = multiple_negatives_ranking_loss(a, b)
    for power in (-1000, -300, 300, 1000):
        found = multiple_negatives_ranking_loss(np.ldexp(a, power), b)
        assert found[0] == expected[0]
        with np.errstate(over="ignore"):
            assert_same_bits(found[1], np.ldexp(expected[1], -power))
    a[1] = 0
    for loss, grad_a, grad_b in (
        multiple_negatives_ranking_loss(a, b),
        cosine_similarity_loss(a, b, [1, 0.5, 1]),
    ):
        assert math.isfinite(loss)
        assert np.isfinite(grad_b).all()
        assert not grad_a[1].any()
        assert grad_a[[0, 2]].any()


def test_no_pairs_have_a_loss_that_is_no_number():
    none, some = np.zeros((0, 3), np.float32), np.ones((2, 3), np.float32)
    loss, grad_a, grad_b = cosine_similarity_loss(none, none, [])
    assert math.isnan(loss)
    assert grad_a.shape == grad_b.shape == (0, 3)
    loss, grad_a, grad_b = multiple_negatives_ranking_loss(none, some)
    assert math.isnan(loss)
    assert not grad_b.any()


@pytest.mark.quick
def test_errors_of_pairs_name_the_argument():
    a, b = pairs(3, 4, 5)
    for wrong in (a[0], a[:, :0], np.ones(())):
        with refused(ValueError, "a"):
            multiple_negatives_ranking_loss(wrong, b)
        with refused(ValueError, "a"):
            cosine_similarity_loss(wrong, b, [])
    with refused(TypeError, "a"):
        multiple_negatives_ranking_loss(a.astype(np.float16), b)
    with refused(TypeError, "b"):
        cosine_similarity_loss(a, b * 1j, [1, 1, 1])
    with refused(ValueError, "b"):
        multiple_negatives_ranking_loss(a, b[:2])
    with refused(ValueError, "b"):
        multiple_negatives_ranking_loss(a, b[:, :2])
    with refused(ValueError, "b"):
        cosine_similarity_loss(a, b, [1, 1, 1])
    for wrong in (0, -1.0, math.inf, math.nan):
        with refused(ValueError, "scale"):
            multiple_negatives_ranking_loss(a, b, scale=wrong)
    for wrong in ([1, 1], [1, 1, 1.1], [1, 1, math.nan], 1):
        with refused(ValueError, "targets"):
            cosine_similarity_loss(a, a, wrong)
    with refused(TypeError, "targets"):
        cosine_similarity_loss(a, a, ["1", "1", "1"])
