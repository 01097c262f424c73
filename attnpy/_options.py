"""The groups of arguments that the C module takes: their order, defaults and types.

Each is defined once, here. The enumerations of csrc/python/options.h mirror them, and a
test compares both. The C module takes any tuple of the right length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array, Causal, SeqOffsets, Window


class Options(NamedTuple):
    """What `attention` takes besides query, key and value; it explains them."""

    mask: ArrayLike | None = None
    bias: ArrayLike | None = None
    causal: Causal = False
    window: Window | None = None
    q_offset: ArrayLike | None = None
    kv_lengths: ArrayLike | None = None
    key_scale: ArrayLike | None = None
    value_scale: ArrayLike | None = None
    seq_offsets: SeqOffsets | None = None
    page_table: ArrayLike | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: ArrayLike | None = None
    dropout: float = 0.0
    dropout_seed: int | None = None
    return_weights: bool = False
    return_lse: bool = False
    out: Array | None = None
    num_threads: int | None = None
    tier: str | None = None  # the instruction set; None: the best, or ATTNPY_ISA


# Those of `attention` and `Plan`: the tier is for tests.
PUBLIC = frozenset(Options.__annotations__) - {"tier"}

# Of keys and values that are integers, which have no gradients. In layers they are a
# cache's.
SCALES = frozenset({"key_scale", "value_scale"})

# Those that gradients depend on, too; layers and blocks pass them on to attention
# unchanged, except dropout. Pages have no gradients: those of several sequences would
# meet in one.
DIFFERENTIABLE = PUBLIC - {"page_table", "return_weights", "return_lse", "out"} - SCALES
PASSED_ON = DIFFERENTIABLE - {"dropout", "dropout_seed"}


class VJP(NamedTuple):
    """What `attention_vjp` takes besides attention's arguments; it explains them."""

    output: ArrayLike | None
    lse: ArrayLike | None
    grad_lse: ArrayLike | None
    wanted: tuple[bool, ...]  # query, key, value, bias, sinks


class Heads(NamedTuple):
    """How many heads the columns of a layer's projections are cut into."""

    num_heads: int
    num_kv_heads: int
    # (Hk,) which of the groups in the weights is that of a head of keys, or -1
    weight_groups: NDArray[np.int64] | None = None


class Projections(NamedTuple):
    """A layer's matrices and biases; without `W_k` and `W_v` a cache has them done."""

    W_q: Array
    b_q: Array | None
    W_k: Array | None
    b_k: Array | None
    W_v: Array | None
    b_v: Array | None
    W_o: Array | None = None
    b_o: Array | None = None
    residual: ArrayLike | None = None  # added to the result
    mixed: bool = False  # as in MultiHeadAttention
    value_context: ArrayLike | None = None  # where values come from, if not as the keys


class Norm(NamedTuple):
    """A norm's parameters; LayerNorm centres, RMSNorm does not."""

    weight: Array
    bias: Array | None
    eps: float
    centre: bool


class Norms(NamedTuple):
    """The norms of a layer's queries and keys, head by head, and of its tokens."""

    q_norm: Norm | None
    k_norm: Norm | None
    x_norm: Norm | None = None


class Network(NamedTuple):
    """A feed-forward network's matrices and biases; the activation may be a gate's."""

    W_1: Array
    b_1: Array | None
    W_gate: Array | None
    b_gate: Array | None
    W_2: Array
    b_2: Array | None
    activation: str | None


class ExpertKinds(NamedTuple):
    """What the C module knows of networks, and how it finds their weights."""

    feed_forward: type  # the class of each
    gated: dict[str, str]  # the functions of activations' gates
    softmax: Options  # of attention whose weights are probabilities


class Experts(NamedTuple):
    """A mixture of networks, and how a router chooses some for each token."""

    router: Array
    router_bias: Array | None
    networks: list[Any]
    shared: Any  # one for all tokens, or None
    shared_gate: Array | None
    per_token: int
    renormalize: bool
    kinds: ExpertKinds


class Rotary(NamedTuple):
    """The rotations of queries and keys: cosines, then sines, in each row."""

    q_cos_sin: Array
    k_cos_sin: Array
    interleaved: bool


class Wanted(NamedTuple):
    """What `statistics` should return; `top_k` keys of each query, 0 for none."""

    received: bool
    entropy: bool
    distance: bool
    top_k: int


class Cache(NamedTuple):
    """Keys and values (B, Hk, Lk, D) and (B, Hk, Lk, Dv), some of them yet to come.

    The tokens of a call go to `past_lengths` (B,); None if no tokens are added. Those
    of int8 have scales (B, Hk, Lk).
    """

    key: Array
    value: Array
    past_lengths: NDArray[Any] | None
    key_scale: NDArray[np.float32] | None = None
    value_scale: NDArray[np.float32] | None = None


class Attention(NamedTuple):
    """What `layer` takes beside tokens and a context."""

    heads: Heads
    projections: Projections
    norms: Norms | None
    rotary: Rotary | None
    cache: Cache | None
    options: Options


class DecoderLayer(NamedTuple):
    """A decoder's layer in a call with a cache; or an encoder's, with norms 1 and 3."""

    attention: Attention  # without a residual, and without a norm of tokens
    network: Network | Experts
    norm_first: bool
    parallel: bool
    residual_scale: Array | None  # ()
    norm_1: Norm | None
    norm_3: Norm | None
    after_1: Norm | None
    after_3: Norm | None


class Place(NamedTuple):
    """Where the tokens of a call stand.

    Attributes
    ----------
    cache : Cache or None
        Keys and values that are in a cache.
    rotary : Rotary or None
        What queries and keys are rotated by.
    options : Options
    past, reserved : ndarray of int64, shape (B,), or None
        How many keys of each sequence there were before the call, in a cache that it
        fills, and how many there are after it.
    """

    cache: Cache | None
    rotary: Rotary | None
    options: Options
    past: NDArray[np.int64] | None
    reserved: NDArray[np.int64] | None


class Kinds(NamedTuple):
    """The classes of layers, parts and caches, and the functions of activations' gates.

    The C module knows what objects of just these classes do. A layer `of_encoder` is an
    EncoderLayer, and others are DecoderLayers in calls with caches.
    """

    layer: type[Any]
    of_encoder: bool
    multi_head_attention: type
    feed_forward: type
    layer_norm: type
    rms_norm: type
    kv_cache: type
    gated: dict[str, str]
    other_network: Callable[[Any], Experts | None]  # None: not for the C module
