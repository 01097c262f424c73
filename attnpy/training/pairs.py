"""Losses of vectors of texts or pictures that belong together, with their gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attnpy import _checks, _keywords
from attnpy._linear import linear
from attnpy.training import _arrays
from attnpy.training.loss import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from attnpy._typing import Array


@_keywords.answering
def cosine_similarity_loss(
    a: ArrayLike, b: ArrayLike, targets: ArrayLike
) -> tuple[float, Array, Array]:
    r"""Return how far cosines are from what they should be, and the gradients.

    Parameters
    ----------
    a, b : array_like, shape (n, E)
        The vectors of n pairs. float32 or float64; integers become float64.
    targets : array_like, shape (n,)
        What the cosine of each pair should be, -1 to 1.

    Returns
    -------
    loss : float
        The mean of the squared differences; NaN without pairs.
    grad_a, grad_b : ndarray, shape (n, E)
        Its gradients with respect to the vectors, in their dtypes.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If shapes do not fit together, or a target is not from -1 to 1.

    Notes
    -----
    .. math::

        \frac{1}{n} \sum_i (c_i - t_i)^2, \quad
        c_i = \frac{a_i \cdot b_i}{|a_i| |b_i|}, \quad
        \frac{dc_i}{da_i} = \frac{1}{|a_i|} \Big( \frac{b_i}{|b_i|}
        - c_i \frac{a_i}{|a_i|} \Big)

    from Reimers and Gurevych, "Sentence-BERT" (2019), as CosineSimilarityLoss of
    sentence-transformers. The cosine of a vector 0 is 0, and its gradient, too.

    Examples
    --------
    >>> from attnpy.training import cosine_similarity_loss
    >>> loss, grad_a, grad_b = cosine_similarity_loss([[1.0, 0.0]], [[1.0, 1.0]], [1.0])
    >>> round(loss, 4)
    0.0858
    >>> grad_a.round(4)
    array([[ 0.    , -0.4142]])
    """
    of_a, of_b = _vectors(a, "a"), _vectors(b, "b")
    if of_a.shape != of_b.shape:
        raise ValueError(f"b: expected a's shape {of_a.shape}, got {of_b.shape}")
    wanted = _checks.array(targets, "targets")
    if wanted.dtype.kind not in "biuf":
        raise TypeError(f"targets: expected real numbers, got dtype {wanted.dtype}")
    if wanted.shape != of_a.shape[:1]:
        raise ValueError(
            f"targets: expected {of_a.shape[:1]}, one for each pair, got {wanted.shape}"
        )
    wanted = wanted.astype(np.float64)
    wrong = wanted[~(np.abs(wanted) <= 1)]  # NaN, too
    if wrong.size:
        raise ValueError(f"targets: expected numbers from -1 to 1, got {wrong[0]}")
    (one, of_one), (other, of_other) = _directions(of_a), _directions(of_b)
    cosines = np.add.reduce(one * other, axis=-1)  # (n,)
    apart = cosines.astype(np.float64) - wanted
    n = len(apart)
    if n == 0:
        return math.nan, np.zeros_like(of_a), np.zeros_like(of_b)
    grad = (2 / n * apart).astype(cosines.dtype)[:, np.newaxis]
    loss = float(np.add.reduce(apart * apart)) / n
    return loss, of_one(grad * other), of_other(grad * one)


@_keywords.answering
def multiple_negatives_ranking_loss(
    a: ArrayLike, b: ArrayLike, *, scale: float = 20.0, num_threads: int | None = None
) -> tuple[float, Array, Array]:
    r"""Return how well each vector finds its own among all others, and the gradients.

    Parameters
    ----------
    a : array_like, shape (n, E)
        The vectors of questions, say. float32 or float64; integers become float64.
    b : array_like, shape (m, E)
        The vectors of answers, `m` at least `n`: the first n are the right ones, in
        order, and those after them are wrong for all questions (hard negatives).
    scale : float, optional
        Cosines are multiplied by this number above 0.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    loss : float
        The mean of the cross-entropies; NaN without questions.
    grad_a, grad_b : ndarray, shape (n, E) and (m, E)
        Its gradients with respect to the vectors, in their dtypes.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If shapes do not fit together, or `scale` is not a finite number above 0.

    See Also
    --------
    cross_entropy : of these scores and the right ones' numbers.

    Notes
    -----
    With the cosines :math:`c_{ij}` of :math:`a_i` and :math:`b_j` and the scale s,

    .. math:: -\frac{1}{n} \sum_i \log \frac{e^{s c_{ii}}}{\sum_j e^{s c_{ij}}}

    from Henderson et al., "Efficient Natural Language Response Suggestion for Smart
    Reply" (2017), as MultipleNegativesRankingLoss of sentence-transformers. The cosine
    of a vector 0 is 0, and its gradient, too.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.training import multiple_negatives_ranking_loss
    >>> questions, answers = np.eye(3), np.array([[1.0, 1, 0], [0, 1, 1], [1, 0, 1]])
    >>> loss, grad_a, grad_b = multiple_negatives_ranking_loss(questions, answers)
    >>> round(loss, 4)  # each question is as near to another's answer
    0.6931
    >>> grad_a.shape, grad_b.shape
    ((3, 3), (3, 3))
    """
    of_a, of_b = _vectors(a, "a"), _vectors(b, "b")
    if of_a.shape[1] != of_b.shape[1]:
        raise ValueError(
            f"b: expected (m, {of_a.shape[1]}) to match a, got {of_b.shape}"
        )
    if len(of_b) < len(of_a):
        raise ValueError(
            f"b: expected at least {len(of_a)} vectors, one for each of a, got "
            f"{len(of_b)}"
        )
    factor = _checks.above(scale, "scale", 0)
    (one, of_one), (other, of_other) = _directions(of_a), _directions(of_b)
    scores = linear(one, other.T, num_threads=num_threads)  # (n, m)
    scores *= scores.dtype.type(factor)
    if len(of_a) == 0:
        return math.nan, np.zeros_like(of_a), np.zeros_like(of_b)
    loss, grad = cross_entropy(scores, np.arange(len(of_a)), num_threads=num_threads)
    grad *= grad.dtype.type(factor)
    return (
        loss,
        of_one(linear(grad, other, num_threads=num_threads)),
        of_other(linear(grad.T, one, num_threads=num_threads)),
    )


def _vectors(values: ArrayLike, name: str) -> Array:
    """Return vectors (n, E), contiguous."""
    array = _checks.array(values, name)
    if array.dtype.kind in "biu":
        array = array.astype(np.float64)
    _arrays.check_floating(array, name)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"{name}: expected (n, E) with E >= 1, got {array.shape}")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _directions(vectors: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return vectors of length 1, or 0, and what takes their gradients to the vectors'.

    Vectors are first brought to a largest number of about 1, whose squares are finite.
    """
    largest = np.maximum.reduce(np.abs(vectors), axis=-1, keepdims=True)
    power = np.frexp(largest)[1]
    near = np.ldexp(vectors, -power)
    lengths = np.sqrt(np.add.reduce(near * near, axis=-1, keepdims=True))
    is_zero = lengths == 0
    lengths[is_zero] = 1
    units: Array = near / lengths

    def pullback(grad: Array) -> Array:
        along = np.add.reduce(grad * units, axis=-1, keepdims=True)
        result = np.ldexp((grad - along * units) / lengths, -power)
        result[is_zero[:, 0]] = 0
        found: Array = result.astype(vectors.dtype, copy=False)
        return found

    return units, pullback
