"""Cross-entropy of scores and targets, with its gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from attnpy import _checks, _keywords
from attnpy._linear import linear
from attnpy._softmax import softmax
from attnpy.training import _arrays

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array

# A probability below this may have lost digits, or all of them.
SMALL = 1e-30


@overload
def cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    reduction: Literal["mean", "sum"] = ...,
    num_threads: int | None = ...,
) -> tuple[float, Array]: ...
@overload
def cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    reduction: Literal["none"],
    num_threads: int | None = ...,
) -> tuple[NDArray[np.float64], Array]: ...
@_keywords.answering
def cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    num_threads: int | None = None,
) -> tuple[Any, Array]:
    r"""Return the cross-entropy of scores and targets, and its gradient.

    Parameters
    ----------
    logits : array_like, shape (..., V)
        The scores of V classes: logarithms of probabilities, up to a constant for each
        row. float32 or float64; integers become float64. -inf is a probability of 0.
    targets : array_like of int, shape (...)
        The correct class of each row, 0 to ``V - 1``, or `ignore_index`.
    ignore_index : int, optional
        Rows with this target do not count, whatever their scores, and have gradient 0.
    label_smoothing : float, optional
        From 0 to 1: the share of the target that is spread over all classes.
    reduction : {"mean", "sum", "none"}, optional
        The mean over the rows that count, their sum, or the loss of each row.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    loss : float, or ndarray of float64, shape (...), for "none"
        The losses of rows that do not count are 0; the mean of no rows is NaN, as in
        PyTorch.
    grad_logits : ndarray, shape (..., V)
        The gradient of the mean, or of the sum, with respect to the logits, in their
        dtype. It is the only array of this size that is allocated.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If shapes do not fit together, or a number is out of its range.
    MemoryError
        If the gradient cannot be allocated.

    Notes
    -----
    With the probabilities :math:`p = \operatorname{softmax}(x)`, the target t and the
    smoothing s, the loss of a row and its gradient are

    .. math::

        -(1 - s) \log p_t - \frac{s}{V} \sum_j \log p_j, \quad
        p_j - (1 - s) \, [j = t] - \frac{s}{V}

    Label smoothing is from Szegedy et al., "Rethinking the Inception Architecture for
    Computer Vision" (2016), section 7.

    The probabilities are the weights of `attention` with the logits as bias. A row with
    NaN or +inf, or only -inf, has loss and gradient NaN. The loss of a target whose
    probability is 0 is inf; with smoothing, so is that of a row with -inf.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.training import cross_entropy
    >>> logits = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])
    >>> loss, grad_logits = cross_entropy(logits, [0, 1])
    >>> round(loss, 4)  # -(log 0.5 + log 0.8) / 2
    0.4581
    >>> grad_logits.round(3)
    array([[-0.25 ,  0.125,  0.125],
           [ 0.05 , -0.1  ,  0.05 ]])
    """
    scores = checked_scores(logits)
    labels, counted = _checked_targets(targets, scores.shape, ignore_index)
    smoothing = _checked_smoothing(label_smoothing)
    _checks.one_of(reduction, "reduction", ("mean", "sum", "none"))
    gradient, lse = softmax(scores, num_threads)
    places = labels[..., np.newaxis]
    with np.errstate(invalid="ignore"):  # inf - inf
        losses = _surprise(gradient, scores, places, lse)
        if smoothing:
            means = _means(scores, num_threads)
            losses = (1 - smoothing) * losses + smoothing * (lse - means)
    losses = np.where(counted, losses, 0.0)
    n_counted = int(np.count_nonzero(counted)) if reduction == "mean" else 1
    _finish(gradient, places, smoothing, max(1, n_counted))
    gradient[~counted] = 0
    if reduction == "none":
        return losses, gradient
    total = float(np.add.reduce(losses.reshape(-1)))
    return total / n_counted if n_counted else math.nan, gradient


def checked_scores(logits: ArrayLike) -> Array:
    """Return the scores, (..., V)."""
    scores = _checks.array(logits, "logits")
    if scores.dtype.kind in "biu":
        scores = scores.astype(np.float64)
    _arrays.check_floating(scores, "logits")
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"logits: expected (..., V) with V >= 1, got {scores.shape}")
    return scores


def _checked_targets(
    targets: ArrayLike, shape: tuple[int, ...], ignore_index: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the classes, 0 for rows that do not count, and which rows count."""
    labels = _checks.integers(targets, "targets")
    if labels.shape != shape[:-1]:
        raise ValueError(
            f"targets: expected {shape[:-1]} to match logits, got {labels.shape}"
        )
    ignored = _checks.integers(ignore_index, "ignore_index")
    if ignored.ndim:
        raise TypeError(
            f"ignore_index: expected an integer, got {type(ignore_index).__name__}"
        )
    counted = np.asarray(labels != ignored)
    wrong = labels[counted & ((labels < 0) | (labels >= shape[-1]))]
    if wrong.size:
        raise ValueError(
            f"targets: expected 0 to {shape[-1] - 1}, or ignore_index = {ignored}, "
            f"got {wrong[0]}"
        )
    return np.where(counted, labels, 0), counted


def _checked_smoothing(share: float) -> float:
    number = _checks.above(share, "label_smoothing", -math.inf)
    if not 0 <= number <= 1:
        raise ValueError(f"label_smoothing: expected 0 to 1, got {number}")
    return number


def _surprise(
    probabilities: Array, scores: Array, places: NDArray[np.int64], lse: Array
) -> NDArray[np.float64]:
    """Return -log of the targets' probabilities, (...)."""
    chosen = np.take_along_axis(probabilities, places, -1)[..., 0].astype(np.float64)
    score = np.take_along_axis(scores, places, -1)[..., 0].astype(np.float64)
    known = chosen >= SMALL
    return np.asarray(np.where(known, _minus_log(chosen), lse - score))


def _minus_log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return -log(x) for x from `SMALL` to 1, with the same bits everywhere.

    With x = m * 2**n and d = (1 - m) / (1 + m), which is at most 0.172, it is
    2 * artanh(d) - n * log(2), and nothing cancels where x is about 1.
    """
    mantissa, exponent = np.frexp(x)  # 0.5 to 1
    low = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(low, 2 * mantissa, mantissa), exponent - low
    d = (1 - mantissa) / (1 + mantissa)
    series = np.zeros_like(d)
    for power in range(21, 0, -2):  # 0.172**23 is below rounding
        series = series * (d * d) + 1 / power
    result: NDArray[np.float64] = 2 * d * series - exponent * math.log(2)
    return result


def _means(scores: Array, num_threads: int | None) -> NDArray[np.float64]:
    """Return the mean score of each row, (...)."""
    ones = np.ones((scores.shape[-1], 1), scores.dtype.newbyteorder("="))
    sums = linear(scores, ones, num_threads=num_threads)[..., 0]
    result: NDArray[np.float64] = sums.astype(np.float64) / scores.shape[-1]
    return result


def _finish(
    gradient: Array, places: NDArray[np.int64], smoothing: float, divisor: int
) -> None:
    """Turn the probabilities into the gradient, in place."""
    n_classes = gradient.shape[-1]
    own = np.take_along_axis(gradient, places, -1) - (1 - smoothing)
    np.put_along_axis(gradient, places, own, -1)
    if smoothing:
        gradient -= smoothing / n_classes
    if divisor > 1:
        gradient /= divisor
