"""The transformer's layers around attention, its encoder and its decoder.

They follow Vaswani et al., "Attention Is All You Need" (2017), with the options of
later models. Parameters are plain arrays. Each layer has `parameters`, `state_dict` and
`load_state_dict`; calling it runs it, and `vjp` computes its gradients. Only the `vjp`
of encoders has dropout.
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
from attnpy.blocks.embedding import Embedding
from attnpy.blocks.encoder import Encoder, EncoderLayer
from attnpy.blocks.experts import MixtureOfExperts
from attnpy.blocks.feed_forward import FeedForward
from attnpy.blocks.linear import Linear
from attnpy.norms import LayerNorm, RMSNorm

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LayerNorm",
    "Linear",
    "MixtureOfExperts",
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
