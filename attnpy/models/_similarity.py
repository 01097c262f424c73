"""Similarities of vectors, and the most similar ones of many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np

from attnpy import _checks, _dtypes, _repr
from attnpy._linear import linear
from attnpy.models._pooling import normalized

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import NotRequired

    from attnpy._typing import Array

    class Ranked(TypedDict):
        """A document, and how well it answers a query."""

        corpus_id: int
        score: float
        text: NotRequired[str]


# Of a text that is printed.
LETTERS = 100


class _Found(NamedTuple):
    indices: NDArray[np.int64]
    scores: Array


class SearchResult(_Found):
    """The results of `SentenceEncoder.search`, the best first.

    A tuple of `indices` and `scores`. `print` shows a line for each result: its score,
    its index and its text, as far as the corpus was of texts.

    Attributes
    ----------
    indices : ndarray of int64, shape (top_k,), or (n, top_k) for n queries
        The indices of vectors or texts, counted from 0.
    scores : ndarray, of the same shape
        Their similarities.
    texts : dict of int to str
        The texts found, by their indices; empty for a corpus of vectors.
    """

    texts: dict[int, str]

    def __new__(
        cls,
        indices: NDArray[np.int64],
        scores: Array,
        texts: dict[int, str] | None = None,
    ) -> SearchResult:
        """Return a result, of these texts."""
        result = super().__new__(cls, indices, scores)
        result.texts = texts or {}
        return result

    def __repr__(self) -> str:
        """Return the dtype and shape of each array."""
        return _repr.line(self, self._asdict())

    def __str__(self) -> str:
        """Return a line for each result; an empty line stands between queries."""
        several = zip(
            np.atleast_2d(self.indices), np.atleast_2d(self.scores), strict=True
        )
        return "\n\n".join("\n".join(map(self._line, *each)) for each in several)

    def _line(self, index: int, score: float) -> str:
        text = " ".join(self.texts.get(int(index), "").split())
        if len(text) > LETTERS:
            text = text[: LETTERS - 3] + "..."
        return f"{score:.3f}  {index}  {text}".rstrip()


def unit_vectors(vectors: Array) -> Array:
    """Return vectors (E,) or (n, E) of length 1, or 0 where they are 0."""
    return normalized(np.ascontiguousarray(vectors))


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
    dtype = _dtypes.arithmetic(_dtypes.operand(array, name))
    if array.ndim not in (1, 2) or dim not in (None, array.shape[-1]):
        size = "E" if dim is None else dim
        raise ValueError(
            f"{name}: expected ({size},) or (n, {size}), got {array.shape}"
        )
    return np.ascontiguousarray(array, dtype)


def best(
    blocks: Iterable[tuple[Array, Sequence[str]]], k: int, n_queries: int
) -> SearchResult:
    """Return the k largest scores of each query from blocks (n_queries, m).

    With each block come its `m` texts, or none. Of equal scores the first ones are
    kept; NaN counts as -inf.
    """
    kept: dict[int, str] = {}
    indices = [np.empty(0, np.int64)] * n_queries
    scores: list[Array] = [np.empty(0, np.float32)] * n_queries
    begin = 0
    for block, texts in blocks:
        for i, row in enumerate(np.fmax(block, -np.inf, dtype=block.dtype)):
            is_full = len(scores[i]) == k
            fresh = (
                np.flatnonzero(row > scores[i][-1]) if is_full else np.arange(len(row))
            )
            merged = np.concatenate([scores[i].astype(row.dtype), row[fresh]])
            order = np.argsort(-merged, kind="stable")[:k]
            scores[i] = merged[order]
            indices[i] = np.concatenate([indices[i], fresh + begin])[order]
        if texts:
            found = {int(index) for each in indices for index in each}
            fresh_texts = {j: texts[j - begin] for j in found if j >= begin}
            kept = {j: text for j, text in kept.items() if j in found} | fresh_texts
        begin += block.shape[1]
    if n_queries == 0:
        return SearchResult(np.empty((0, 0), np.int64), np.empty((0, 0), np.float32))
    return SearchResult(np.stack(indices), np.stack(scores), kept)


def ranked(
    scores: Sequence[float], top_k: int | None, texts: Sequence[str] | None
) -> list[Ranked]:
    """Return documents by their scores, the best first, with their texts if given.

    Documents of equal scores keep their order, and NaN is last.
    """
    keys = [(math.isnan(score), -score) for score in scores]
    order = sorted(range(len(scores)), key=keys.__getitem__)
    found: list[Ranked] = [{"corpus_id": i, "score": scores[i]} for i in order[:top_k]]
    if texts is not None:
        for entry in found:
            entry["text"] = texts[entry["corpus_id"]]
    return found
