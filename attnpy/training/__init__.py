"""What a training loop needs beside gradients: a loss, an optimizer, and their files.

Layers and models have `vjp`, which gives the gradients of their `parameters()`. All of
this works on such mappings of names to arrays, in float32 and float64, and has the same
bits for any number of threads, memory layout and instruction set. `AdamW` and
`clip_norm` take bfloat16 as well.
"""

from attnpy.training.clipping import clip_norm
from attnpy.training.files import load, save
from attnpy.training.loss import cross_entropy
from attnpy.training.optimizer import AdamW
from attnpy.training.schedule import warmup_cosine

__all__ = [
    "AdamW",
    "clip_norm",
    "cross_entropy",
    "load",
    "save",
    "warmup_cosine",
]


def __dir__() -> list[str]:
    return __all__
