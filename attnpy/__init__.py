"""Fast, exact attention for NumPy arrays on a CPU.

`attention` computes scaled-dot-product attention, multi-head and with every usual
option, without ever building the matrix of scores, and `attention_vjp` computes its
gradients. `Plan` prepares a call to be run many times. `attend_partial` takes keys in
parts, and `merge` combines results over disjoint sets of keys. `statistics` sums up the
weights where there are too many to return. `explain` tells how a call is run.

`MultiHeadAttention` and `SelfAttention` are layers with their own weights; `KVCache`
keeps keys and values for decoding. `quantize` makes weights of 8 or 4 bits. The modules
`blocks` (encoder, decoder), `positions`, `masks` and `classic` contain the rest of a
transformer; `training` contains what a training loop needs besides gradients; `plot`,
`view` and `diagrams` make pictures. The remaining functions here are about threads and
the machine.
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
    "Explanation",
    "KVCache",
    "MultiHeadAttention",
    "PartialAttention",
    "Plan",
    "QuantizedWeight",
    "SelfAttention",
    "__version__",
    "attend_partial",
    "attention",
    "attention_vjp",
    "explain",
    "get_num_threads",
    "get_portable",
    "get_spin_time",
    "merge",
    "quantize",
    "register_threadpoolctl",
    "set_num_threads",
    "set_portable",
    "set_spin_time",
    "show_config",
    "statistics",
]

# What type checkers and editors see of the modules that are imported later.
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
    from attnpy import pages as pages
    from attnpy import plot as plot
    from attnpy import positions as positions
    from attnpy import random as random
    from attnpy import training as training
    from attnpy import view as view
    from attnpy._explain import Explanation, explain
    from attnpy._partial import PartialAttention, attend_partial
    from attnpy._quantize import quantize
    from attnpy._quantized import QuantizedWeight
    from attnpy._statistics import statistics
    from attnpy.cache import KVCache
    from attnpy.layers import MultiHeadAttention, SelfAttention

# Imported on first use, so that attention() alone is ready in milliseconds.
_LATER = {
    "Explanation": "_explain",
    "KVCache": "cache",
    "MultiHeadAttention": "layers",
    "PartialAttention": "_partial",
    "QuantizedWeight": "_quantized",
    "SelfAttention": "layers",
    "attend_partial": "_partial",
    "explain": "_explain",
    "quantize": "_quantize",
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
    "pages",
    "plot",
    "positions",
    "random",
    "training",
    "view",
)


if not TYPE_CHECKING:  # to whom every name would be right

    def __getattr__(name):
        """Import a module of the package when it is first used."""
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"attnpy.{name}")
        if name in _LATER:
            value = getattr(import_module(f"attnpy.{_LATER[name]}"), name)
            globals()[name] = value
            return value
        from attnpy._keywords import NAMES

        here = f": there is attnpy.{NAMES[name]}" if name in NAMES else ""
        raise AttributeError(f"module 'attnpy' has no attribute {name!r}{here}")


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]
