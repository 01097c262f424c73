"""The matrix of the scores of tokens: the embeddings, or one of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from attnpy import _parameters
from attnpy._packed_weight import PackedTable, PackedWeight, packable

if TYPE_CHECKING:
    from attnpy._typing import Array


class Scored(Protocol):
    """A model that has scores of tokens, unless `tied` is None."""

    token_embedding: Array
    output: Array | None

    @property
    def tied(self) -> bool | None:
        """Whether the scores are products with the embeddings."""


def matrix(model: Scored) -> Array:
    """Return what vectors are multiplied by, (E, V)."""
    return model.token_embedding.T if model.output is None else model.output


def pack(self: Scored) -> None:
    """Pack the matrices, for a model that is only run from now on.

    As `attnpy.layers.MultiHeadAttention.pack`, in all layers; and the matrix of the
    scores: `output`, or `token_embedding` if they are tied, in which tokens can still
    be looked up.

    Raises
    ------
    TypeError
        If one is not a floating matrix. Nothing has changed then.
    """
    name = "token_embedding" if self.tied else "output"
    scores = getattr(self, name)
    plain = self.tied is not None and isinstance(scores, np.ndarray)
    if plain:
        packable(scores, name)
    _parameters.pack(self)
    if plain:
        setattr(self, name, (PackedTable if self.tied else PackedWeight)(scores))
