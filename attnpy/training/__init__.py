"""What a training loop needs besides gradients: losses, an optimizer, and files.

Layers and models have `vjp`, which computes the gradients of their `parameters()`. The
functions here work on these mappings of names to arrays, in float32 and float64, and
give the same bits for any number of threads, memory layout and instruction set. `AdamW`
and `clip_norm` also accept bfloat16.
"""

from attnpy.training.clipping import clip_norm
from attnpy.training.files import load, save
from attnpy.training.loss import cross_entropy
from attnpy.training.optimizer import AdamW
from attnpy.training.pairs import (
    cosine_similarity_loss,
    multiple_negatives_ranking_loss,
)
from attnpy.training.schedule import warmup_cosine

__all__ = [
    "AdamW",
    "clip_norm",
    "cosine_similarity_loss",
    "cross_entropy",
    "load",
    "multiple_negatives_ranking_loss",
    "save",
    "warmup_cosine",
]


def __dir__() -> list[str]:
    return __all__
