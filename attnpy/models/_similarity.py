"""Similarities of vectors, and the most similar ones of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnpy import _checks, _dtypes, _repr
from attnpy._linear import linear
from attnpy.models._pooling import normalized

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array


class SearchResult(NamedTuple):
    """The results of `SentenceEncoder.search`, the best first.

    Attributes
    ----------
    indices : ndarray of int64, shape (top_k,), or (n, top_k) for n queries
        The indices of vectors or texts, counted from 0.
    scores : ndarray, of the same shape
        Their similarities.
    """

    indices: NDArray[np.int64]
    scores: Array

    def __repr__(self) -> str:
        """Return the dtype and shape of each array."""
        return _repr.of_fields(self)


def _dot(a: Array, b: Array, num_threads: int | None) -> Array:
    return linear(a, b.T, num_threads=num_threads)


def _cosine(a: Array, b: Array, num_threads: int | None) -> Array:
    return _dot(normalized(a), normalized(b), num_threads)


def _euclidean(a: Array, b: Array, num_threads: int | None) -> Array:
    def distance(row: Array) -> Array:
        difference = b - row
        distances: Array = np.sqrt(np.add.reduce(difference * difference, axis=-1))
        return distances

    return _row_by_row(distance, a, b)


def _manhattan(a: Array, b: Array, num_threads: int | None) -> Array:
    return _row_by_row(lambda row: np.add.reduce(np.abs(b - row), axis=-1), a, b)


def _row_by_row(distance: Callable[[Array], Array], a: Array, b: Array) -> Array:
    """Return minus the distances of rows, (n, m)."""
    dtype = np.result_type(a, b)
    _checks.memory("a, b", dtype, (len(a), len(b)))
    result = np.empty((len(a), len(b)), dtype)
    for row, values in zip(a, result, strict=True):
        np.negative(distance(row), out=values)
    return result


# By the names of sentence-transformers. Each takes (n, E) and (m, E), and gives (n, m).
FUNCTIONS: dict[str, Callable[[Array, Array, int | None], Array]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": _euclidean,
    "manhattan": _manhattan,
}


def vectors(values: ArrayLike, name: str, dim: int | None = None) -> Array:
    """Return vectors (E,) or (n, E) in the dtype of the computation, contiguous."""
    array = _checks.array(values, name)
    if array.ndim not in (1, 2) or dim not in (None, array.shape[-1]):
        size = "E" if dim is None else dim
        raise ValueError(
            f"{name}: expected ({size},) or (n, {size}), got {array.shape}"
        )
    dtype = _dtypes.arithmetic(_dtypes.operand(array, name))
    return np.ascontiguousarray(array, dtype)


def best(blocks: Iterable[Array], k: int, n_queries: int) -> SearchResult:
    """Return the k largest scores of each query from blocks (n_queries, m).

    Of equal scores the first ones are kept; NaN counts as -inf.
    """
    indices = [np.empty(0, np.int64)] * n_queries
    scores: list[Array] = [np.empty(0, np.float32)] * n_queries
    begin = 0
    for block in blocks:
        for i, row in enumerate(np.fmax(block, -np.inf, dtype=block.dtype)):
            is_full = len(scores[i]) == k
            fresh = (
                np.flatnonzero(row > scores[i][-1]) if is_full else np.arange(len(row))
            )
            merged = np.concatenate([scores[i].astype(row.dtype), row[fresh]])
            order = np.argsort(-merged, kind="stable")[:k]
            scores[i] = merged[order]
            indices[i] = np.concatenate([indices[i], fresh + begin])[order]
        begin += block.shape[1]
    if n_queries == 0:
        return SearchResult(np.empty((0, 0), np.int64), np.empty((0, 0), np.float32))
    return SearchResult(np.stack(indices), np.stack(scores))
