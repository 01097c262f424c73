"""Embeddings of distances, which the layers of a DeBERTa have in common."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks, _parameters
from attnpy.blocks import LayerNorm
from attnpy.models import _embedding
from attnpy.positions import Disentangled

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from attnpy._typing import Array

TERMS = "c2p", "p2c"


def add(
    model: Any,
    num_distances: int | None,
    *,
    norm: bool,
    own_weights: bool,
    key_bias: bool,
    eps: float,
    dtype: DTypeLike,
    rng: np.random.Generator,
) -> None:
    """Give a model embeddings of distances, and what projects them in its layers."""
    norm = _checks.flag(norm, "distance_norm")
    own_weights = _checks.flag(own_weights, "distance_weights")
    layers = model.encoder.layers
    if not _checks.flag(key_bias, "key_bias"):
        for layer in layers:
            layer.self_attention.b_k = None
    model.distance_embedding = model.distance_norm = None
    if num_distances is None:
        for name, given in (
            ("max_distance", model.max_distance is not None),
            ("distance_norm", norm),
            ("distance_weights", own_weights),
        ):
            if given:
                raise ValueError(f"{name}: expected none without num_distances")
        return
    size = len(layers[0].self_attention.W_q)
    table = _embedding.table(rng, num_distances, "num_distances", size, dtype)
    model.distance_embedding = table
    if norm:
        model.distance_norm = LayerNorm(size, eps=eps, dtype=dtype)
    with _checks.renamed(table="num_distances"):
        positions = of(model)
    assert positions is not None
    for layer in layers:
        mha = layer.self_attention
        for letter, other, wanted in (
            ("pk", "k", positions.c2p),
            ("pq", "q", positions.p2c),
        ):
            if not (own_weights and wanted):
                continue
            shape, bias = mha.W_q.shape, getattr(mha, f"b_{other}")
            weight = _parameters.xavier_uniform(rng, shape, table.dtype)
            setattr(mha, f"W_{letter}", weight)
            setattr(mha, f"b_{letter}", None if bias is None else np.zeros_like(bias))


class _Made(NamedTuple):
    """Positions, and what they were made of."""

    positions: Disentangled
    arrays: list[Array]
    options: tuple[object, ...]


# Of each model, an attnpy.models.BertEncoder: if nothing has changed, layers find what
# they made of the same positions before.
_MADE: weakref.WeakKeyDictionary[Any, _Made] = weakref.WeakKeyDictionary()


def of(model: Any) -> Disentangled | None:
    """Return the positions of a model's layers, if it has embeddings of distances."""
    table, norm = model.distance_embedding, model.distance_norm
    if table is None:
        return None
    arrays = [table]
    if norm is not None:
        arrays += [norm.weight] if norm.bias is None else [norm.weight, norm.bias]
    options = (
        model.max_distance,
        model.distance_terms,
        None if norm is None else norm.eps,
    )
    made = _MADE.get(model)
    if made is not None and options == made.options:
        same = len(arrays) == len(made.arrays)
        if same and all(map(np.array_equal, arrays, made.arrays)):
            return made.positions
    positions = Disentangled(
        table if norm is None else norm(table),
        max_distance=model.max_distance,
        **{term: term in model.distance_terms for term in TERMS},
    )
    _MADE[model] = _Made(positions, [array.copy() for array in arrays], options)
    return positions
