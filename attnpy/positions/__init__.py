"""Ways to tell attention the order of its tokens.

Added to the embeddings: `sinusoidal`, `Learned`. Turning queries and keys: `Rotary`.
Added to the scores, as attention's `bias`: `alibi_bias`, `relative_bias`.
"""

from attnpy.positions.absolute import Learned, query_positions, sinusoidal
from attnpy.positions.relative import (
    alibi_bias,
    alibi_slopes,
    relative_bias,
    relative_buckets,
)
from attnpy.positions.rotary import Rotary

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


def __dir__() -> list[str]:
    return __all__
