"""Heads that score each token: labels of tokens, and words in place of masked ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _parameters, _pickles, _repr
from attnpy._linear import linear
from attnpy.blocks import LayerNorm
from attnpy.models import _embedding

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Array, PlainActivation


class TokenHead:
    """A matrix that makes scores of the vectors of tokens, maybe after another one.

    Attributes
    ----------
    dense_weight, dense_bias : ndarray, shape (E, D) and (D,), or None
        What comes first: a matrix, an activation and a norm.
    activation : str
        Between them.
    norm : attnpy.blocks.LayerNorm or None
        None without `dense_weight`.
    classifier_weight : ndarray, shape (D, n), or None
        None where the scores are products with the embeddings of words.
    bias : ndarray, shape (n,), or None
    """

    dense_weight: Array | None
    dense_bias: Array | None
    activation: str
    norm: LayerNorm | None
    classifier_weight: Array | None
    bias: Array | None

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def __init__(
        self,
        embed_dim: int,
        n_scores: int,
        *,
        table_dim: int | None = None,
        dense: bool,
        dense_bias: bool = True,
        activation: PlainActivation = "gelu",
        eps: float = 1e-12,
        norm_bias: bool = True,
        bias: bool = True,
        dtype: DTypeLike,
        rng: np.random.Generator,
    ) -> None:
        """Make a head; `table_dim` is the size of embeddings that are its matrix."""
        self.activation = activation
        self.dense_weight = self.dense_bias = self.norm = self.classifier_weight = None
        width = embed_dim if table_dim is None else table_dim
        if dense:
            self.dense_weight = _embedding.table(
                rng, embed_dim, "embed_dim", width, dtype
            )
            kind = self.dense_weight.dtype
            self.dense_bias = _parameters.zeros(dense_bias, width, kind)
            self.norm = LayerNorm(width, eps=eps, bias=norm_bias, dtype=dtype)
        if table_dim is None:
            self.classifier_weight = _embedding.table(
                rng, width, "embed_dim", n_scores, dtype
            )
        self.bias = _parameters.zeros(bias, n_scores, np.dtype(dtype))

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict

    def _shown(self) -> dict[str, Any]:
        return {"activation": self.activation, "dense": self.dense_weight is not None}

    __repr__ = _repr.shows(_shown)

    def __call__(
        self, states: ArrayLike, words: Any = None, *, num_threads: int | None
    ) -> Array:
        """Return the scores (..., n) of vectors (..., E); `words` is (D, n)."""
        tokens = _checks.array(states, "states")
        with _checks.renamed(x="states"):
            if self.dense_weight is not None:
                assert self.norm is not None
                tokens = linear(
                    tokens,
                    self.dense_weight,
                    self.dense_bias,
                    activation=self.activation,
                    num_threads=num_threads,
                )
                tokens = self.norm(tokens, num_threads=num_threads)
            weight = words if self.classifier_weight is None else self.classifier_weight
            return linear(tokens, weight, self.bias, num_threads=num_threads)
