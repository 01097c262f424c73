"""From the vectors of a text's tokens to that of the text.

Modes and later steps are those of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _pickles, _repr
from attnpy._attnpy import activate_vjp
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


def _one_row(tokens: Array, row: Any, grad: Array) -> Array:
    result = np.zeros(tokens.shape, tokens.dtype)
    result[row] = grad
    return result


def _of_sum(tokens: Array, first: int, weights: Array) -> Callable[[Array], Array]:
    """Return what takes the gradient of a weighted sum to that of its tokens."""

    def pullback(grad: Array) -> Array:
        result = np.zeros(tokens.shape, tokens.dtype)
        result[first:] = weights[:, np.newaxis] * grad
        return result

    return pullback


def _pullback(mode: str, tokens: Array, first: int) -> Callable[[Array], Array]:
    """Return what takes the gradient of a mode's vector, (E,), to that of tokens."""
    n, kind = len(tokens) - first, tokens.dtype.type
    if mode == "cls":
        return lambda grad: _one_row(tokens, first, grad)
    if mode == "lasttoken":
        return lambda grad: _one_row(tokens, -1, grad)
    if mode == "max":
        rows = first + np.argmax(tokens[first:], axis=0)
        columns = np.arange(tokens.shape[1])
        return lambda grad: _one_row(tokens, (rows, columns), grad)
    weights = np.full(n, 1 / kind(n), tokens.dtype)
    if mode == "mean_sqrt_len_tokens":
        weights = np.full(n, 1 / np.sqrt(kind(n)), tokens.dtype)
    elif mode == "weightedmean":
        weights = np.arange(first + 1, len(tokens) + 1, dtype=tokens.dtype)
        weights /= np.add.reduce(weights)
    return _of_sum(tokens, first, weights)


def pooled_vjp(
    tokens: Array, modes: Sequence[str], first: int
) -> tuple[Array, Callable[[Array], Array]]:
    """Return `pooled`, and what takes its gradient to that of the tokens, (L, E).

    Where a number is the largest of several tokens, the first has the gradient.
    """

    def pullback(grad: Array) -> Array:
        total = np.zeros(tokens.shape, tokens.dtype)
        for mode, part in zip(modes, np.split(grad, len(modes)), strict=True):
            start = 0 if mode == "cls" and first >= len(tokens) else first
            if start < len(tokens):
                total += _pullback(mode, tokens, start)(part)
        return total

    return pooled(tokens, modes, first), pullback


def batch_vjp(
    states: Array, lengths: Sequence[int], modes: Sequence[str], first: int
) -> tuple[Array, Callable[[Array], Array]]:
    """Return the vectors of texts, (B, n_modes * E), of states (B, L, E).

    The pullback takes their gradient to that of the states, 0 after a text's end.
    """
    found = [
        pooled_vjp(text[:n].copy(), modes, first)
        for text, n in zip(states, lengths, strict=True)
    ]
    vectors = np.zeros((len(found), states.shape[-1] * len(modes)), states.dtype)
    for row, (vector, _) in zip(vectors, found, strict=True):
        row[...] = vector
    shape, dtype = states.shape, states.dtype

    def pullback(grad: Array) -> Array:
        total = np.zeros(shape, dtype)
        for rows, n, row, (_, of_vector) in zip(
            total, lengths, grad, found, strict=True
        ):
            rows[:n] = of_vector(row)
        return total

    return vectors, pullback


def normalized(vectors: Array) -> Array:
    """Return vectors (n, E) of length 1, or 0 where they are 0."""
    squares = np.add.reduce(vectors * vectors, axis=-1, keepdims=True)
    least = vectors.dtype.type(SMALLEST_NORM)
    result: Array = vectors / np.maximum(np.sqrt(squares), least)
    return result


def normalized_vjp(vectors: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return `normalized`, and what takes its gradient to the vectors', 0 for 0."""
    units = normalized(vectors)
    squares = np.add.reduce(vectors * vectors, axis=-1, keepdims=True)
    lengths = np.maximum(np.sqrt(squares), vectors.dtype.type(SMALLEST_NORM))

    def pullback(grad: Array) -> Array:
        along = np.add.reduce(grad * units, axis=-1, keepdims=True)
        result: Array = np.where(squares > 0, (grad - along * units) / lengths, 0)
        return result

    return units, pullback


def checked_steps(steps: Sequence[Any]) -> tuple[Any, ...]:
    """Return steps that can be called."""
    given = tuple(_checks.items(steps, "steps", "functions"))
    for step in given:
        if not callable(step):
            raise TypeError(
                f"steps: expected functions of vectors, got {type(step).__name__}"
            )
    return given


def size_after(steps: Sequence[Any], dim: int, dtype: np.dtype[Any]) -> int:
    """Return the size of vectors after steps that get some of this size."""
    steps = [step for step in steps if type(step) is not Normalize]
    if not steps:
        return dim
    vectors = np.zeros((0, dim), dtype)
    with _checks.renamed(x="what steps get"):
        for step in steps:
            vectors = step(vectors, None)
    return int(vectors.shape[1])


class Dense:
    """A linear step after pooling, ``activation(x @ weight + bias)``.

    With `use_residual` it adds ``x``, or ``x @ residual`` where sizes differ.
    """

    weight: Array
    bias: Array | None
    activation: str | None
    use_residual: bool
    residual: Array | None

    if not TYPE_CHECKING:
        __setstate__ = _pickles.set_state

    def __init__(
        self,
        weight: Array,
        bias: Array | None,
        activation: str | None,
        use_residual: bool = False,
        residual: Array | None = None,
    ) -> None:
        self.weight, self.bias, self.activation = weight, bias, activation
        self.use_residual, self.residual = use_residual, residual

    def _shown(self) -> dict[str, Any]:
        return {
            "weight": self.weight,
            **_repr.biases(bias=self.bias),
            "activation": self.activation,
            "use_residual": self.use_residual or None,
        }

    __repr__ = _repr.shows(_shown)

    def __call__(self, vectors: Array, num_threads: int | None) -> Array:
        """Return (n, M) of (n, K)."""
        result = linear(
            vectors,
            self.weight,
            self.bias,
            activation=self.activation,
            num_threads=num_threads,
        )
        if not self.use_residual:
            return result
        if self.residual is None:
            return result + vectors
        return result + linear(vectors, self.residual, num_threads=num_threads)

    def vjp(
        self, vectors: Array, num_threads: int | None
    ) -> tuple[Array, Callable[[Array], Array]]:
        """Return the result of a call, and what takes its gradient to the vectors'."""
        before = linear(vectors, self.weight, self.bias, num_threads=num_threads)

        def pullback(grad: Array) -> Array:
            inner = grad
            if self.activation is not None:
                inner = activate_vjp(grad, before, self.activation, None, num_threads)
            result = linear(inner, self.weight.T, num_threads=num_threads)
            if not self.use_residual:
                return result
            if self.residual is None:
                return result + grad
            return result + linear(grad, self.residual.T, num_threads=num_threads)

        return self(vectors, num_threads), pullback


class Normalize:
    """The step that gives vectors of length 1."""

    def __repr__(self) -> str:
        return "Normalize()"

    def __call__(self, vectors: Array, num_threads: int | None) -> Array:
        """Return (n, E) of (n, E)."""
        return normalized(vectors)

    def vjp(
        self, vectors: Array, num_threads: int | None
    ) -> tuple[Array, Callable[[Array], Array]]:
        """Return the result of a call, and what takes its gradient to the vectors'."""
        return normalized_vjp(vectors)
