"""Ways to tell attention the order of its tokens.

`sinusoidal` and `Learned` are added to the embeddings. `Rotary` rotates queries and
keys. `alibi_bias` and `relative_bias` are added to the scores, as attention's `bias`,
and so are the products of `Disentangled` with queries and keys, by a layer.
"""

from attnpy.positions.absolute import Learned, query_positions, sinusoidal
from attnpy.positions.disentangled import Disentangled
from attnpy.positions.relative import (
    alibi_bias,
    alibi_slopes,
    relative_bias,
    relative_buckets,
)
from attnpy.positions.rotary import Rotary

__all__ = [
    "Disentangled",
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
