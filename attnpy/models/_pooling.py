"""From the vectors of a text's tokens to that of the text.

Modes and later steps are those of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _pickles, _repr
from attnpy._linear import linear

if TYPE_CHECKING:
    from attnpy._typing import Array

SMALLEST_NORM = 1e-12  # as PyTorch's normalize has it


def _mean(tokens: Array, first: int) -> Array:
    mean: Array = _sum(tokens[first:]) / tokens.dtype.type(len(tokens) - first)
    return mean


def _mean_sqrt(tokens: Array, first: int) -> Array:
    count = tokens.dtype.type(len(tokens) - first)
    mean: Array = _sum(tokens[first:]) / np.sqrt(count)
    return mean


def _weighted_mean(tokens: Array, first: int) -> Array:
    """Return the mean with weights 1, 2, 3..., counted from the text's first token."""
    weights = np.arange(first + 1, len(tokens) + 1, dtype=tokens.dtype)
    total = np.add.reduce(weights)
    mean: Array = _sum(tokens[first:] * weights[:, np.newaxis]) / total
    return mean


def _sum(tokens: Array) -> Array:
    total: Array = np.add.reduce(tokens, axis=0)
    return total


def _max(tokens: Array, first: int) -> Array:
    largest: Array = np.maximum.reduce(tokens[first:], axis=0)
    return largest


def _first(tokens: Array, first: int) -> Array:
    vector: Array = tokens[first]
    return vector


def _last(tokens: Array, first: int) -> Array:
    vector: Array = tokens[-1]
    return vector


# Each takes (L, E) and the first token that counts, of which there is at least one.
# Several are put side by side in this order.
MODES: dict[str, Callable[[Array, int], Array]] = {
    "cls": _first,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def pooled(tokens: Array, modes: Sequence[str], first: int) -> Array:
    """Return the vector of a text, (n_modes * E,), from those of its tokens, (L, E).

    Tokens before `first` belong to a prompt that does not count. A text without tokens
    that count has the vector 0, except in mode "cls", which then takes the very first
    token, as in sentence-transformers.
    """
    parts = []
    for mode in modes:
        start = 0 if mode == "cls" and first >= len(tokens) else first
        if start < len(tokens):
            parts.append(MODES[mode](tokens, start))
        else:
            parts.append(np.zeros(tokens.shape[1:], tokens.dtype))
    return np.concatenate(parts)


def normalized(vectors: Array) -> Array:
    """Return vectors (n, E) of length 1, or 0 where they are 0."""
    squares = np.add.reduce(vectors * vectors, axis=-1, keepdims=True)
    least = vectors.dtype.type(SMALLEST_NORM)
    result: Array = vectors / np.maximum(np.sqrt(squares), least)
    return result


class Dense:
    """A linear step after pooling, ``activation(x @ weight + bias)``."""

    weight: Array
    bias: Array | None
    activation: str | None

    if not TYPE_CHECKING:
        __setstate__ = _pickles.set_state

    def __init__(
        self, weight: Array, bias: Array | None, activation: str | None
    ) -> None:
        self.weight, self.bias, self.activation = weight, bias, activation

    def _shown(self) -> dict[str, Any]:
        biases = _repr.biases(bias=self.bias)
        return {"weight": self.weight, **biases, "activation": self.activation}

    __repr__ = _repr.shows(_shown)

    def __call__(self, vectors: Array, num_threads: int | None) -> Array:
        """Return (n, M) of (n, K)."""
        return linear(
            vectors,
            self.weight,
            self.bias,
            activation=self.activation,
            num_threads=num_threads,
        )


class Normalize:
    """The step that gives vectors of length 1."""

    def __repr__(self) -> str:
        return "Normalize()"

    def __call__(self, vectors: Array, num_threads: int | None) -> Array:
        """Return (n, E) of (n, E)."""
        return normalized(vectors)
