"""The softmax of scores, on the kernel of attention: the same bits everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnpy._attention import attention

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnpy._typing import Array


def softmax(
    scores: Array, num_threads: int | None
) -> tuple[Array, NDArray[np.float64]]:
    """Return the probabilities (..., V), and log-sum-exp (...) of each row.

    Heads of size 0 have scores 0, to which the bias is added.
    """
    *rows, n_classes = scores.shape
    dtype = scores.dtype.newbyteorder("=")
    _, probabilities, lse = attention(
        np.zeros((*(rows or [1]), 0), dtype),
        np.zeros((n_classes, 0), dtype),
        np.zeros((n_classes, 0), dtype),
        bias=scores if rows else scores[np.newaxis],
        return_weights=True,
        return_lse=True,
        num_threads=num_threads,
    )
    probabilities[~(lse > -np.inf)] = np.nan
    return probabilities.reshape(scores.shape), lse.reshape(rows).astype(np.float64)
