"""Types used by several files. No file imports this one at run time."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from typing_extensions import TypeVar

Array = NDArray[Any]

Causal = bool | Literal["bottom_right", "top_left"]
Window = tuple[int | None, int | None]
SeqOffsets = ArrayLike | tuple[ArrayLike | None, ArrayLike | None]
PlainActivation = Literal[
    "relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2", "tanh"
]
Activation = (
    PlainActivation | Literal["swiglu", "geglu", "geglu_tanh", "reglu", "swiglu_oai"]
)
PoolerActivation = PlainActivation
TokenPooling = Literal["cls", "mean", "late"]
DistanceTerm = Literal["c2p", "p2c"]
Precision = Literal["promoted", "narrow", "wide"]
NormKind = Literal["layer", "rms"]


class Model(Protocol):
    """An object with parameters: every layer and model of this package."""

    def parameters(self) -> dict[str, Array]:
        """Return the parameters by name."""


class PackableModel(Model, Protocol):
    """A model whose matrices can be packed."""

    def pack(self) -> None:
        """Pack the layers' matrices."""


class ScoreOptions(TypedDict, total=False):
    """The options of attention that every call has."""

    mask: ArrayLike | None
    bias: ArrayLike | None
    window: Window | None
    scale: float | None
    softcap: float | None
    num_threads: int | None


class CausalOptions(ScoreOptions, total=False):
    """The options of a head's causal attention that do not change what is returned."""

    q_offset: ArrayLike | None
    kv_lengths: ArrayLike | None


class ScaleOptions(TypedDict, total=False):
    """The scales of keys and values that are integers."""

    key_scale: ArrayLike | None
    value_scale: ArrayLike | None


class MaskedOptions(CausalOptions, total=False):
    """The options that say which keys a query may see, but for packed sequences."""

    causal: Causal


class PartialOptions(MaskedOptions, ScaleOptions, total=False):
    """The options of attention to a part of the keys."""


class HeadOptions(MaskedOptions, total=False):
    """The options of a head's attention that do not change what is returned."""

    seq_offsets: SeqOffsets | None


class StatisticsOptions(HeadOptions, ScaleOptions, total=False):
    """The options of `statistics`, and those of `attention` that change its numbers."""

    page_table: ArrayLike | None
    sinks: ArrayLike | None


class AttentionOptions(StatisticsOptions, total=False):
    """The options of `attention` that do not change what is returned."""

    dropout: float
    dropout_seed: int | None
    out: Array | None


class GradientOptions(HeadOptions, total=False):
    """The options of `attention_vjp` that `attention` has too."""

    sinks: ArrayLike | None
    dropout: float
    dropout_seed: int | None


# The results of a plan's calls.
PlanResult = TypeVar("PlanResult", default=Array, covariant=True)


class PlanOptions(AttentionOptions, total=False):
    """The options of `Plan`."""

    return_weights: bool
    return_lse: bool


# _options.Options as a plain tuple, which is made in a quarter of the time.
OptionsTuple = tuple[
    ArrayLike | None,
    ArrayLike | None,
    Causal,
    Window | None,
    ArrayLike | None,
    ArrayLike | None,
    ArrayLike | None,
    ArrayLike | None,
    SeqOffsets | None,
    ArrayLike | None,
    float | None,
    float | None,
    ArrayLike | None,
    float,
    int | None,
    bool,
    bool,
    Array | None,
    int | None,
    str | None,
]


class LayerOptions(TypedDict, total=False):
    """The options of an encoder's or decoder's layers."""

    head_dim: int | None
    num_kv_heads: int | None
    norm_first: bool
    norm: NormKind
    eps: float
    activation: Activation
    bias: bool
    dtype: DTypeLike
    rng: np.random.Generator | None


class DecoderOptions(LayerOptions, total=False):
    """The options of a decoder's layers."""

    causal: bool
    cross_attention: bool
    context_dim: int | None
