"""Attention with its projections: one head, and many.

Parameters are plain arrays in the orientation of ``Q = X @ W_q``. To run a layer, call
it.
"""

from attnpy._vjp import LayerGradients
from attnpy.layers.multi_head import MultiHeadAttention
from attnpy.layers.self_attention import SelfAttention

__all__ = ["LayerGradients", "MultiHeadAttention", "SelfAttention"]


def __dir__() -> list[str]:
    return __all__
