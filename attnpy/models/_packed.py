"""An encoder over sequences of different lengths, without work for their padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnpy._attention import attention
from attnpy._linear import linear

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnpy._typing import Array
    from attnpy.blocks import Encoder, EncoderLayer


def can_encode(encoder: Encoder) -> bool:
    """Tell whether `encode` does all that these layers do."""
    return encoder.norm is None and not any(
        layer.norm_first
        or layer.self_attention.q_norm is not None
        or layer.self_attention.k_norm is not None
        for layer in encoder.layers
    )


def encode(
    encoder: Encoder,
    tokens: Array,
    lengths: NDArray[np.int64],
    num_threads: int | None,
) -> Array:
    """Run layers that normalize sums: tokens (B, L, E), of which lengths (B,) exist.

    The same bits as with padding: only attention sees the sequences side by side, and
    all the rest the N tokens that exist, one after the other.
    """
    exists = np.arange(tokens.shape[1]) < lengths[:, np.newaxis]  # (B, L)
    packed = tokens[exists]  # (N, E)
    for layer in encoder.layers:
        packed = _run(layer, packed, exists, lengths, num_threads)
    states = np.zeros_like(tokens)
    states[exists] = packed
    return states


def _run(
    layer: EncoderLayer,
    tokens: Array,
    exists: NDArray[np.bool_],
    lengths: NDArray[np.int64],
    num_threads: int | None,
) -> Array:
    mha = layer.self_attention

    def heads(weight: Array, bias: Array | None, n_heads: int) -> Array:
        rows = linear(tokens, weight, bias, num_threads=num_threads)  # (N, H * D)
        padded = np.zeros((*exists.shape, rows.shape[1]), rows.dtype)
        padded[exists] = rows
        size = rows.shape[1] // n_heads
        return padded.reshape(*exists.shape, n_heads, size).swapaxes(1, 2)

    attended = attention(
        heads(mha.W_q, mha.b_q, mha.num_heads),
        heads(mha.W_k, mha.b_k, mha.num_kv_heads),
        heads(mha.W_v, mha.b_v, mha.num_kv_heads),
        kv_lengths=lengths,
        num_threads=num_threads,
    )
    concat = attended.swapaxes(1, 2)[exists]  # (N, H, Dv)
    concat = concat.reshape(len(tokens), len(mha.W_o))
    output = linear(concat, mha.W_o, mha.b_o, num_threads=num_threads)
    tokens = layer.norm_1(output, tokens)
    return layer.norm_2(layer.feed_forward(tokens, num_threads=num_threads), tokens)
