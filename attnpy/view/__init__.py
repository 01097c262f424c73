"""Interactive views of attention for notebooks, or as pages of their own.

A view is one page, with the weights and tokens in it, that loads nothing from anywhere
and needs no package. Where a notebook's scripts do not run, a static picture stands in.
"""

from attnpy.view._page import View
from attnpy.view.heads import head_view, model_view
from attnpy.view.neurons import neuron_view

__all__ = ["View", "head_view", "model_view", "neuron_view"]


def __dir__() -> list[str]:
    return __all__
