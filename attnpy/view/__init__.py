"""Interactive views of attention, in notebooks or as separate pages.

A view is one page that contains the weights and tokens, loads nothing, and needs no
package. Where a notebook's scripts do not run, a static picture replaces it.
"""

from attnpy.view._page import View
from attnpy.view.heads import head_view, model_view
from attnpy.view.neurons import neuron_view

__all__ = ["View", "head_view", "model_view", "neuron_view"]


def __dir__() -> list[str]:
    return __all__
