"""Fast, exact attention for NumPy arrays on a CPU.

`attention` computes scaled-dot-product attention, multi-head and with every usual
option, without ever building the matrix of scores, and `attention_vjp` its gradients;
`Plan` makes a call ready to be run many times; `attend_partial` goes through keys in
parts, and `merge` combines results over disjoint sets of them; `statistics` sums the
weights up where there are too many to return.

`MultiHeadAttention` and `SelfAttention` are layers with weights of their own; `KVCache`
keeps keys and values for decoding. The modules `blocks` (encoder, decoder),
`positions`, `masks` and `classic` have the rest of a transformer; `training` has what a
training loop needs beside gradients; `plot`, `view` and `diagrams` are for pictures.
What is left here is about threads and the machine.
"""

from typing import TYPE_CHECKING

try:
    import attnpy._attnpy  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "attnpy._attnpy":
        raise
    raise ImportError(
        f"attnpy: no compiled extension in {__path__[0]}. In a source directory run "
        "`pip install -e .` once, or start Python from another directory."
    ) from error

from attnpy._attention import attention
from attnpy._gradients import AttentionGradients, attention_vjp
from attnpy._machine import (
    get_num_threads,
    get_portable,
    get_spin_time,
    register_threadpoolctl,
    set_num_threads,
    set_portable,
    set_spin_time,
    show_config,
)
from attnpy._merge import merge
from attnpy._plan import Plan
from attnpy._version import __version__

__all__ = [
    "AttentionGradients",
    "KVCache",
    "MultiHeadAttention",
    "PartialAttention",
    "Plan",
    "SelfAttention",
    "__version__",
    "attend_partial",
    "attention",
    "attention_vjp",
    "get_num_threads",
    "get_portable",
    "get_spin_time",
    "merge",
    "register_threadpoolctl",
    "set_num_threads",
    "set_portable",
    "set_spin_time",
    "show_config",
    "statistics",
]

# What checkers and editors see of what is imported later.
if TYPE_CHECKING:
    from attnpy import blocks as blocks
    from attnpy import cache as cache
    from attnpy import checkpoints as checkpoints
    from attnpy import classic as classic
    from attnpy import diagrams as diagrams
    from attnpy import integrations as integrations
    from attnpy import layers as layers
    from attnpy import masks as masks
    from attnpy import models as models
    from attnpy import norms as norms
    from attnpy import plot as plot
    from attnpy import positions as positions
    from attnpy import random as random
    from attnpy import training as training
    from attnpy import view as view
    from attnpy._partial import PartialAttention, attend_partial
    from attnpy._statistics import statistics
    from attnpy.cache import KVCache
    from attnpy.layers import MultiHeadAttention, SelfAttention

# Imported when they are first asked for: attention() alone is there in milliseconds.
_LATER = {
    "KVCache": "cache",
    "MultiHeadAttention": "layers",
    "PartialAttention": "_partial",
    "SelfAttention": "layers",
    "attend_partial": "_partial",
    "statistics": "_statistics",
}
_MODULES = (
    "blocks",
    "cache",
    "checkpoints",
    "classic",
    "diagrams",
    "integrations",
    "layers",
    "masks",
    "models",
    "norms",
    "plot",
    "positions",
    "random",
    "training",
    "view",
)


if not TYPE_CHECKING:  # to whom every name would be right

    def __getattr__(name):
        """Import what the package has but had not needed yet."""
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"attnpy.{name}")
        if name in _LATER:
            value = getattr(import_module(f"attnpy.{_LATER[name]}"), name)
            globals()[name] = value
            return value
        raise AttributeError(f"module 'attnpy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]
