"""Ways to tell attention the order of its tokens.

Added to the embeddings: `sinusoidal`, `Learned`. Turning queries and keys: `Rotary`.
Added to the scores, as attention's `bias`: `alibi_bias`, `relative_bias`.
"""

from attnpy.positions.rotary import (
    Learned,
    Rotary,
    alibi_bias,
    alibi_slopes,
    query_positions,
    relative_bias,
    relative_buckets,
    sinusoidal,
)

__all__ = [
    "Learned",
    "Rotary",
    "alibi_bias",
    "alibi_slopes",
    "query_positions",
    "relative_bias",
    "relative_buckets",
    "sinusoidal",
]
