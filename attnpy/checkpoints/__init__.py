"""Weights from checkpoints of other libraries, with a table of names for each family.

A checkpoint is a mapping of names to arrays, from `read` for safetensors files or from
elsewhere. `FAMILIES` says where its arrays go; `load` copies them.
"""

from attnpy._families.declaration import Family
from attnpy.checkpoints.families import FAMILIES
from attnpy.checkpoints.files import Checkpoint, read
from attnpy.checkpoints.loading import load
from attnpy.checkpoints.reading import read_config

__all__ = ["FAMILIES", "Checkpoint", "Family", "load", "read", "read_config"]


def __dir__() -> list[str]:
    return __all__
