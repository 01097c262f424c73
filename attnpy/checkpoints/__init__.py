"""Weights from checkpoints of other libraries, with a table of names for each family.

A checkpoint is a mapping of names to arrays, from `read` for files of safetensors or
PyTorch, or from elsewhere. `FAMILIES` says where its arrays go; `load` copies them, and
`to_torch` returns those of a layer. `load_gguf` opens a GGUF file, which has a model's
configuration and tokenizer beside its arrays.
"""

from attnpy._families.declaration import Family
from attnpy.checkpoints.exporting import to_torch
from attnpy.checkpoints.families import FAMILIES
from attnpy.checkpoints.files import Checkpoint, read
from attnpy.checkpoints.gguf import GgufFile, load_gguf
from attnpy.checkpoints.loading import load
from attnpy.checkpoints.reading import read_config

__all__ = [
    "FAMILIES",
    "Checkpoint",
    "Family",
    "GgufFile",
    "load",
    "load_gguf",
    "read",
    "read_config",
    "to_torch",
]


def __dir__() -> list[str]:
    return __all__
