"""The transformer's layers around attention, its encoder and its decoder.

As in Vaswani et al., "Attention Is All You Need" (2017), and with the options of the
models since. Parameters are plain arrays, each layer has `parameters`, `state_dict` and
`load_state_dict`, calling it runs it, and `vjp` gives its gradients. There is no
dropout.
"""

from attnpy.blocks._stack import ModelOutput
from attnpy.blocks.activations import (
    activation_vjp,
    gelu,
    gelu_tanh,
    quick_gelu,
    relu,
    relu2,
    silu,
    tanh,
)
from attnpy.blocks.decoder import Decoder, DecoderLayer
from attnpy.blocks.encoder import Encoder, EncoderLayer
from attnpy.blocks.feed_forward import FeedForward
from attnpy.norms import LayerNorm, RMSNorm

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LayerNorm",
    "ModelOutput",
    "RMSNorm",
    "activation_vjp",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "relu",
    "relu2",
    "silu",
    "tanh",
]


def __dir__() -> list[str]:
    return __all__
