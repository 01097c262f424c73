"""The queries and keys of a model's heads for a text, as they enter dot products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _parameters
from attnpy._linear import normalized_heads
from attnpy.view import _sources

if TYPE_CHECKING:
    from numpy.typing import NDArray

# How much weights of the model may differ from those of the numbers that are shown.
CLOSE = 0.002


class Heads(NamedTuple):
    """What a neuron view shows of a model."""

    queries: NDArray[np.float64]  # (layers, H, L, D)
    keys: NDArray[np.float64]
    weights: NDArray[np.float64]  # (layers, H, L, L)
    scale: float
    tokens: list[str]


def heads_of(model: Any, tokenizer: Any, text: object) -> Heads:
    """Return what `attnpy.models` compute for a text, in all layers and heads."""
    encoded = _sources.encode(tokenizer, text)
    stack = getattr(model, "encoder", getattr(model, "decoder", None))
    layers = getattr(stack, "layers", None)
    if layers is None:
        raise TypeError(
            "model: expected one of attnpy.models, whose queries and keys are known, "
            f"got {type(model).__name__}"
        )
    sizes = {layer.self_attention.head_dim for layer in layers}
    if len(sizes) > 1:
        raise ValueError(
            "model: expected one with heads of one size in all layers, got sizes of "
            f"{', '.join(map(str, sorted(sizes)))}"
        )
    result = _sources.call(model, encoded, return_hidden_states=True)
    states = result.hidden_states  # of each layer what goes in, and the last output
    pairs = [
        _of_layer(model, layer, x) for layer, x in zip(layers, states, strict=False)
    ]
    queries, keys = (np.stack(side) for side in zip(*pairs, strict=True))
    scales = {_scale(model, layer) for layer in layers}
    weights = np.asarray(result.weights, np.float64)
    heads = Heads(queries, keys, weights, scales.pop(), encoded.tokens)
    capped = getattr(model, "softcap", None) is not None
    if capped or scales or not np.allclose(_weights(heads), weights, atol=CLOSE):
        raise ValueError(
            "model: expected one whose scores are products of queries and keys alone, "
            f"got a {type(model).__name__} with other scores, such as biases, sinks "
            "or a cap"
        )
    return heads


def _of_layer(model: Any, layer: Any, states: Any) -> tuple[Any, Any]:
    """Return (H, L, D) twice: of queries and keys, which are repeated for groups."""
    mha = layer.self_attention
    is_normal = layer.norm_first and layer.norm_1 is not None
    tokens = layer.norm_1(states) if is_normal else states

    def side(letter: str, n_heads: int) -> NDArray[np.float64]:
        matrix = _parameters.as_array(getattr(mha, f"W_{letter}"))
        projected = np.asarray(tokens, np.float64) @ np.asarray(matrix, np.float64)
        bias = getattr(mha, f"b_{letter}")
        if bias is not None:
            projected += np.asarray(bias, np.float64)
        heads = projected.reshape(len(projected), n_heads, -1).swapaxes(0, 1)
        heads = normalized_heads(getattr(mha, f"{letter}_norm"), heads, None)
        rotary = _option(model, layer, "rotary")
        if rotary is not None:
            heads = rotary(heads, np.arange(heads.shape[-2]))
        return np.asarray(heads, np.float64)

    keys = side("k", mha.num_kv_heads)
    group = mha.num_heads // mha.num_kv_heads
    return side("q", mha.num_heads), keys.repeat(group, axis=0)


def _option(model: Any, layer: Any, name: str) -> Any:
    """Return an option of a layer: its own, or else that of the model."""
    own = getattr(layer, name, None)
    common = getattr(model, name, None)
    return common if own is None and not isinstance(common, list) else own


def _scale(model: Any, layer: Any) -> float:
    scale = _option(model, layer, "scale")
    return float(layer.self_attention.head_dim**-0.5 if scale is None else scale)


def _weights(heads: Heads) -> NDArray[np.float64]:
    """Return the weights of these queries and keys, 0 where the model has exactly 0."""
    scores = heads.scale * heads.queries @ heads.keys.swapaxes(-1, -2)
    scores = np.where(heads.weights > 0, scores, -np.inf)
    weights: NDArray[np.float64] = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights
