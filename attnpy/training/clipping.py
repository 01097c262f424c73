"""Clipping of gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attnpy import _attnpy, _checks, _keywords
from attnpy.training import _arrays

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attnpy._typing import Array


@_keywords.answering
def clip_norm(
    gradients: Mapping[str, Array], max_norm: float, *, num_threads: int | None = None
) -> float:
    r"""Scale gradients in place, so that their joint length is at most `max_norm`.

    Parameters
    ----------
    gradients : mapping of str to ndarray
        In float32, float64 or bfloat16. They are written to.
    max_norm : float
        The largest length of all gradients together, as one vector; above 0.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    norm : float
        The length before. NaN or inf if the gradients contain such a number, or if
        float64 cannot hold the sum; then no gradient is usable, and `AdamW` should skip
        the step.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, an array cannot be written to or has
        several names or numbers in the same memory, or `max_norm` is out of its range.
        Nothing has changed then.

    Notes
    -----
    .. math:: g \leftarrow g \, \min(1, c / (\lVert g \rVert + 10^{-6}))

    from Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
    networks" (2013), section 3.2, with the small term of PyTorch's ``clip_grad_norm_``.
    Squares are summed in float64, in blocks at fixed places, in the order of names.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.training import clip_norm
    >>> gradients = {"W": np.array([[3.0, 0.0]]), "b": np.array([4.0])}
    >>> clip_norm(gradients, 1.0)
    5.0
    >>> gradients["W"].round(4)
    array([[0.6, 0. ]])
    """
    arrays = _arrays.trainable(gradients, "gradients")
    limit = _checks.above(max_norm, "max_norm", 0)
    if num_threads is not None:
        num_threads = _checks.count(num_threads, "num_threads")
    total = 0.0
    for array in arrays.values():  # sum() rounds differently in some Pythons
        numbers = np.ascontiguousarray(array).reshape(-1)
        total += _attnpy.sum_of_squares(numbers, num_threads)
    norm = math.sqrt(total)
    if not norm <= limit:
        for array in arrays.values():
            for (block,) in _arrays.blocks([array]):
                _attnpy.scale(block, limit / (norm + 1e-6), num_threads)
    return norm
