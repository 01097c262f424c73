"""Fast, exact attention for NumPy arrays on a CPU.

`attention` computes scaled-dot-product attention, multi-head and with every usual
option, without ever building the matrix of scores; `Plan` makes a call ready to be run
many times; `merge` combines results over disjoint sets of keys. The rest is about threads and the machine.
"""

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
from attnpy._config import (
    get_num_threads,
    register_threadpoolctl,
    set_num_threads,
    set_portable,
    show_config,
)
from attnpy._merge import merge
from attnpy._plan import Plan
from attnpy._version import __version__

__all__ = [
    "Plan",
    "__version__",
    "attention",
    "get_num_threads",
    "merge",
    "register_threadpoolctl",
    "set_num_threads",
    "set_portable",
    "show_config",
]
