"""Weights from the checkpoints of other libraries, one table of names for each family.

A checkpoint is a mapping of names to arrays: what `read` makes of safetensors files, or
any other. `FAMILIES` says which of its arrays go where; `load` copies them.
"""

from attnpy.checkpoints.loading import (
    FAMILIES,
    Checkpoint,
    Family,
    load,
    read,
    read_config,
)

__all__ = ["FAMILIES", "Checkpoint", "Family", "load", "read", "read_config"]
