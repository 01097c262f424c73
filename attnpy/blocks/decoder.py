"""The transformer's layers around attention, its encoder and its decoder.

As in Vaswani et al., "Attention Is All You Need" (2017), and with the options of the
models since. Parameters are plain arrays, each layer has `parameters`, `state_dict` and
`load_state_dict`, and calling it runs it. Nothing here is for training: there is no
dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from attnpy import _attnpy, _checks, _dtypes, _parameters
from attnpy._linear import linear
from attnpy.cache import KVCache, undone_on_error
from attnpy.layers import MultiHeadAttention
from attnpy.norms import LayerNorm, RMSNorm

if TYPE_CHECKING:
    from typing import TypedDict

    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Unpack

    from attnpy._typing import (
        Activation,
        Array,
        DecoderOptions,
        LayerOptions,
        NormKind,
        Window,
    )
    from attnpy.positions import Rotary

    class AnyCall(TypedDict, total=False):
        """The options of both kinds of calls."""

        mask: ArrayLike | None
        bias: ArrayLike | None
        window: Window | None
        kv_lengths: ArrayLike | None
        rotary: Rotary | None
        num_threads: int | None

    class EncoderCall(AnyCall, total=False):
        """The options of an encoder's call."""

        causal: bool

    class DecoderCall(AnyCall, total=False):
        """The options of a decoder's call."""

        context_mask: ArrayLike | None
        context_lengths: ArrayLike | None


Layer = TypeVar("Layer")


def relu(x: ArrayLike) -> Array:
    """Return the positive part, max(x, 0).

    Parameters
    ----------
    x : array_like, any shape

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers), as for the other functions here.

    Examples
    --------
    >>> from attnpy.blocks import relu
    >>> relu([-1.0, 0.0, 2.0])
    array([0., 0., 2.])
    """
    return _activate(x, "relu")


def gelu(x: ArrayLike) -> Array:
    r"""Return the Gaussian error linear unit, exact.

    Parameters
    ----------
    x : array_like, any shape

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers).

    See Also
    --------
    gelu_tanh : an approximation.

    Notes
    -----
    :math:`x \Phi(x) = x \operatorname{erfc}(-x / \sqrt 2) / 2`, from Hendrycks and
    Gimpel, "Gaussian Error Linear Units (GELUs)" (2016). With erfc in place of 1 + erf
    nothing cancels where x is negative: the relative error is some 6 rounding units in
    float32, 12 in float64, times 1 + x^2 / 2 where x is negative.

    Examples
    --------
    >>> from attnpy.blocks import gelu
    >>> gelu([-1.0, 0.0, 1.0]).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    return _activate(x, "gelu")


def gelu_tanh(x: ArrayLike) -> Array:
    r"""Return the Gaussian error linear unit, approximated with a tanh.

    Parameters
    ----------
    x : array_like, any shape

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers).

    Notes
    -----
    :math:`x (1 + \tanh(\sqrt{2 / \pi} (x + 0.044715 x^3))) / 2`, from Hendrycks and
    Gimpel (2016), section 2; within 0.0005 of `gelu`. GPT-2 was trained with it.

    Examples
    --------
    >>> from attnpy.blocks import gelu_tanh
    >>> gelu_tanh([-1.0, 0.0, 1.0]).round(4)
    array([-0.1588,  0.    ,  0.8412])
    """
    return _activate(x, "gelu_tanh")


def silu(x: ArrayLike) -> Array:
    r"""Return the sigmoid linear unit, also called swish.

    Parameters
    ----------
    x : array_like, any shape

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers).

    Notes
    -----
    :math:`x / (1 + e^{-x})`, from Hendrycks and Gimpel (2016).

    Examples
    --------
    >>> from attnpy.blocks import silu
    >>> silu([-1.0, 0.0, 1.0]).round(4)
    array([-0.2689,  0.    ,  0.7311])
    """
    return _activate(x, "silu")


def _activate(x: ArrayLike, name: str) -> Array:
    wide, dtype = _dtypes.wide(x, "x")
    return _attnpy.activate(wide, name).astype(dtype, copy=False)


ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "swiglu")


class FeedForward:
    r"""The same small network for each token.

    Parameters
    ----------
    embed_dim : int
        `E`.
    hidden_dim : int
        `F`, the size of the layer inside.
    activation : {"relu", "gelu", "gelu_tanh", "silu", "swiglu"}, optional
        The paper's, BERT's, GPT-2's; "swiglu" is Llama's, with a third matrix.
    bias : bool, optional
        Add biases.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Where the first values come from; by default ``numpy.random.default_rng()``,
        other values in every run.

    Attributes
    ----------
    W_1 : ndarray, shape (E, F)
    W_2 : ndarray, shape (F, E)
    W_gate : ndarray, shape (E, F), or None
        Uniform numbers at first, from Glorot and Bengio (2010), as in
        `attnpy.layers.MultiHeadAttention`. There is a `W_gate` with "swiglu" only.
    b_1, b_2, b_gate : ndarray, shape (F,) or (E,), or None
        0 at first.
    activation : str
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    Notes
    -----
    With the activation f,

    .. math:: f(x W_1 + b_1) W_2 + b_2

    from Vaswani et al. (2017), section 3.3, and with "swiglu"

    .. math:: (\operatorname{silu}(x W_{gate} + b_{gate}) \cdot (x W_1 + b_1)) W_2 + b_2

    from Shazeer, "GLU Variants Improve Transformer" (2020). Llama's gate_proj, up_proj
    and down_proj are the transposes of `W_gate`, `W_1` and `W_2`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import FeedForward
    >>> rng = np.random.default_rng(0)
    >>> feed_forward = FeedForward(6, 24, rng=rng)
    >>> x = rng.standard_normal((5, 6), dtype=np.float32)
    >>> feed_forward(x).shape
    (5, 6)
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        *,
        activation: Activation = "relu",
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        outer = _checks.count(embed_dim, "embed_dim")
        inner = _checks.count(hidden_dim, "hidden_dim")
        self.activation = _checks.one_of(activation, "activation", ACTIVATIONS)
        bias, dtype = _checks.flag(bias, "bias"), _dtypes.floating(dtype)
        rng, gated = _checks.generator(rng), activation == "swiglu"
        uniform, zeros = _parameters.xavier_uniform, _parameters.zeros
        self.W_1: Array = uniform(rng, (outer, inner), dtype)
        self.W_2: Array = uniform(rng, (inner, outer), dtype)
        self.W_gate: Array | None = None
        if gated:
            self.W_gate = uniform(rng, (outer, inner), dtype)
        self.b_1 = zeros(bias, inner, dtype)
        self.b_2 = zeros(bias, outer, dtype)
        self.b_gate = zeros(bias and gated, inner, dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict

    def __call__(self, x: ArrayLike, *, num_threads: int | None = None) -> Array:
        """Run the network.

        Parameters
        ----------
        x : array_like, shape (..., E)
            Tokens, with any axes before.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`.

        Returns
        -------
        ndarray, shape (..., E)
            In the promoted dtype of x and the parameters; integers become float64.

        Raises
        ------
        TypeError, ValueError
            If x has another dtype or size.
        """
        gated = self.W_gate is not None
        x = _checks.sized(x, len(self.W_1))
        hidden = linear(
            x,
            self.W_1,
            self.b_1,
            activation=None if gated else self.activation,
            num_threads=num_threads,
        )
        if self.W_gate is not None:
            hidden *= linear(
                x,
                self.W_gate,
                self.b_gate,
                activation="silu",
                num_threads=num_threads,
            )
        return linear(hidden, self.W_2, self.b_2, num_threads=num_threads)


class EncoderLayer:
    r"""Self-attention and a feed-forward network, each with a residual and a norm.

    Parameters
    ----------
    embed_dim, num_heads : int
        `E` and `H`.
    hidden_dim : int
        `F`, the size of the layer inside the feed-forward network.
    head_dim, num_kv_heads : int, optional
        As in `attnpy.layers.MultiHeadAttention`.
    norm_first : bool, optional
        False: normalize sums, as the paper does. True: normalize what goes into
        attention and network, as most models since.
    norm : {"layer", "rms"}, optional
        `LayerNorm` or `RMSNorm`.
    eps : float, optional
        Of the norms.
    activation : {"relu", "gelu", "gelu_tanh", "silu", "swiglu"}, optional
        Of the `FeedForward` network.
    bias : bool, optional
        Add biases in projections, network and norms. They are 0 at first.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Where the first values come from; by default ``numpy.random.default_rng()``,
        other values in every run.

    Attributes
    ----------
    self_attention : MultiHeadAttention
    feed_forward : FeedForward
    norm_1, norm_2 : LayerNorm or RMSNorm
        Of the attention, of the network.
    norm_first : bool
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    Notes
    -----
    .. math::

        x' = N_1(x + A(x)), \quad y = N_2(x' + F(x'))

    from Vaswani et al. (2017), section 3.1; with `norm_first`

    .. math::

        x' = x + A(N_1(x)), \quad y = x' + F(N_2(x'))

    from Xiong et al., "On Layer Normalization in the Transformer Architecture" (2020).

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import EncoderLayer
    >>> rng = np.random.default_rng(0)
    >>> layer = EncoderLayer(6, 2, 24, rng=rng)
    >>> x = rng.standard_normal((5, 6), dtype=np.float32)
    >>> layer(x).shape
    (5, 6)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        norm_first: bool = False,
        norm: NormKind = "layer",
        eps: float = 1e-5,
        activation: Activation = "relu",
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng = _checks.generator(rng)
        self.norm_first = _checks.flag(norm_first, "norm_first")
        self.self_attention = MultiHeadAttention(
            embed_dim,
            num_heads,
            head_dim,
            num_kv_heads=num_kv_heads,
            bias=bias,
            out_bias=bias,
            dtype=dtype,
            rng=rng,
        )
        self.feed_forward = FeedForward(
            embed_dim,
            hidden_dim,
            activation=activation,
            bias=bias,
            dtype=dtype,
            rng=rng,
        )
        self.norm_1 = _norm(norm, embed_dim, eps, bias, dtype)
        self.norm_2 = _norm(norm, embed_dim, eps, bias, dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict

    def __call__(
        self,
        x: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        causal: bool = False,
        window: Window | None = None,
        kv_lengths: ArrayLike | None = None,
        rotary: Rotary | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Run the layer.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        mask, bias, causal, window, kv_lengths, rotary, num_threads
            Of the attention, as in `attnpy.layers.MultiHeadAttention.__call__`.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            In the promoted dtype of x and the parameters; integers become float64.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, or shapes do not fit together.
        """

        def attend(tokens: Array) -> Array:
            return self.self_attention(
                tokens,
                mask=mask,
                bias=bias,
                causal=causal,
                window=window,
                kv_lengths=kv_lengths,
                rotary=rotary,
                num_threads=num_threads,
            )

        def feed(tokens: Array) -> Array:
            return self.feed_forward(tokens, num_threads=num_threads)

        tokens = _residual(np.asarray(x), attend, self.norm_1, self.norm_first)
        return _residual(tokens, feed, self.norm_2, self.norm_first)


class DecoderLayer:
    r"""Causal self-attention, attention to a context, and a feed-forward network.

    Parameters
    ----------
    embed_dim, num_heads : int
        `E` and `H`.
    hidden_dim : int
        `F`, the size of the layer inside the feed-forward network.
    cross_attention : bool, optional
        False leaves the attention to a context out: a layer of a language model.
    context_dim : int, optional
        `Ec`, the size of the context's tokens; by default `E`.
    head_dim, num_kv_heads, norm_first, norm, eps, activation, bias, dtype, rng
        As in `EncoderLayer`.

    Attributes
    ----------
    self_attention : MultiHeadAttention
    cross_attention : MultiHeadAttention or None
    feed_forward : FeedForward
    norm_1, norm_2, norm_3 : LayerNorm or RMSNorm
        Of the self-attention, of the attention to the context (None without), of the
        network.
    norm_first : bool
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    Notes
    -----
    .. math::

        x' = N_1(x + A(x)), \quad x'' = N_2(x' + C(x', context)), \quad
        y = N_3(x'' + F(x''))

    from Vaswani et al. (2017), section 3.1; with `norm_first` the norms are at the
    inputs of A, C and F, as in `EncoderLayer`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import DecoderLayer
    >>> rng = np.random.default_rng(0)
    >>> layer = DecoderLayer(6, 2, 24, rng=rng)
    >>> x, states = rng.standard_normal((5, 6)), rng.standard_normal((9, 6))
    >>> layer(x, states).shape
    (5, 6)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        cross_attention: bool = True,
        context_dim: int | None = None,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        norm_first: bool = False,
        norm: NormKind = "layer",
        eps: float = 1e-5,
        activation: Activation = "relu",
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng = _checks.generator(rng)
        self.norm_first = _checks.flag(norm_first, "norm_first")

        def attention(context_dim: int | None) -> MultiHeadAttention:
            return MultiHeadAttention(
                embed_dim,
                num_heads,
                head_dim,
                num_kv_heads=num_kv_heads,
                context_dim=context_dim,
                bias=bias,
                out_bias=bias,
                dtype=dtype,
                rng=rng,
            )

        self.self_attention = attention(None)
        self.cross_attention: MultiHeadAttention | None = None
        self.norm_1 = _norm(norm, embed_dim, eps, bias, dtype)
        self.norm_2: LayerNorm | RMSNorm | None = None
        if _checks.flag(cross_attention, "cross_attention"):
            self.cross_attention = attention(context_dim)
            self.norm_2 = _norm(norm, embed_dim, eps, bias, dtype)
        self.feed_forward = FeedForward(
            embed_dim,
            hidden_dim,
            activation=activation,
            bias=bias,
            dtype=dtype,
            rng=rng,
        )
        self.norm_3 = _norm(norm, embed_dim, eps, bias, dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict

    def new_cache(
        self,
        batch: int,
        capacity: int,
        *,
        dtype: DTypeLike | None = None,
        growable: bool = False,
    ) -> KVCache:
        """Return an empty cache for the layer's self-attention.

        Parameters
        ----------
        batch, capacity, growable
            As in `attnpy.cache.KVCache`.
        dtype : dtype, optional
            By default that of the parameters.

        Returns
        -------
        KVCache
        """
        mha = self.self_attention
        return KVCache(
            batch,
            mha.num_kv_heads,
            capacity,
            mha.head_dim,
            mha.value_head_dim,
            dtype=mha.W_k.dtype if dtype is None else dtype,
            growable=growable,
        )

    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | KVCache | None = None,
        *,
        mask: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        window: Window | None = None,
        kv_lengths: ArrayLike | None = None,
        rotary: Rotary | None = None,
        cache: KVCache | None = None,
        context_mask: ArrayLike | None = None,
        context_lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Run the layer.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        context : array_like, shape (Lc, Ec) or (B, Lc, Ec), or KVCache
            The encoder's states, or what ``cross_attention.project_context`` makes of
            them. None where the layer has no cross-attention.
        mask, bias, window, kv_lengths, rotary, cache
            Of the self-attention, as in `attnpy.layers.MultiHeadAttention.__call__`.
        context_mask : array_like of bool, broadcast to (B, H, L, Lc), optional
            True where a token may attend to the context.
        context_lengths : int or array_like of int, shape (B,), optional
            How many of the context's tokens exist.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            In the promoted dtype of x, the context and the parameters.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, or shapes do not fit together.
            The cache has not changed after an error.
        """

        def attend(tokens: Array) -> Array:
            return self.self_attention(
                tokens,
                mask=mask,
                bias=bias,
                causal=True,
                window=window,
                kv_lengths=kv_lengths,
                rotary=rotary,
                cache=cache,
                num_threads=num_threads,
            )

        def attend_to_context(tokens: Array) -> Array:
            assert self.cross_attention is not None
            return self.cross_attention(
                tokens,
                context,
                mask=context_mask,
                kv_lengths=context_lengths,
                num_threads=num_threads,
            )

        def feed(tokens: Array) -> Array:
            return self.feed_forward(tokens, num_threads=num_threads)

        self._check_context(context, context_mask, context_lengths)
        tokens = np.asarray(x)
        with undone_on_error([] if cache is None else [cache]):
            tokens = _residual(tokens, attend, self.norm_1, self.norm_first)
            if self.norm_2 is not None:
                tokens = _residual(
                    tokens, attend_to_context, self.norm_2, self.norm_first
                )
            return _residual(tokens, feed, self.norm_3, self.norm_first)

    def _check_context(
        self,
        context: ArrayLike | KVCache | None,
        mask: ArrayLike | None,
        lengths: ArrayLike | None,
    ) -> None:
        if self.cross_attention is not None:
            if context is None:
                raise ValueError("context: expected the states to attend to, got None")
            return
        for name, argument in (
            ("context", context),
            ("context_mask", mask),
            ("context_lengths", lengths),
        ):
            if argument is not None:
                raise ValueError(f"{name}: expected None without cross-attention")


class Encoder:
    """A stack of encoder layers.

    Parameters
    ----------
    n_layers : int
        How many times tokens go through a layer.
    embed_dim, num_heads, hidden_dim : int
        As in `EncoderLayer`.
    shared : bool, optional
        One set of weights, used by every layer.
    final_norm : bool, optional
        A norm after the last layer; by default with `norm_first`, whose sums have none
        otherwise.
    **options
        As in `EncoderLayer`: `head_dim`, `num_kv_heads`, `norm_first`, `norm`, `eps`,
        `activation`, `bias`, `dtype`, `rng`.

    Attributes
    ----------
    layers : list of EncoderLayer
        With `shared` the same one `n_layers` times.
    norm : LayerNorm or RMSNorm or None
        The final norm.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    Notes
    -----
    From Vaswani et al. (2017), section 3.1. One set of weights for all layers is from
    Lan et al., "ALBERT: A Lite BERT for Self-supervised Learning of Language
    Representations" (2020).

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy import positions
    >>> from attnpy.blocks import Encoder
    >>> rng = np.random.default_rng(0)
    >>> encoder = Encoder(6, 16, 4, 64, rng=rng)
    >>> x = rng.standard_normal((10, 16), dtype=np.float32)  # ten words
    >>> encoder(x + positions.sinusoidal(10, 16)).shape
    (10, 16)
    """

    def __init__(
        self,
        n_layers: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        shared: bool = False,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        def layer() -> EncoderLayer:
            return EncoderLayer(embed_dim, num_heads, hidden_dim, **options)

        self.layers = _stack(layer, n_layers, shared)
        self.norm = _final_norm(final_norm, embed_dim, options)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict

    def __call__(self, x: ArrayLike, **options: Unpack[EncoderCall]) -> Array:
        """Run the layers one after the other.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        **options
            As in `EncoderLayer.__call__`: `mask`, `bias`, `causal`, `window`,
            `kv_lengths`, `rotary`, `num_threads`.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            In the promoted dtype of x and the parameters; integers become float64.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, or shapes do not fit together.
        """
        tokens = np.asarray(x)
        for layer in self.layers:
            tokens = layer(tokens, **options)
        return tokens if self.norm is None else self.norm(tokens)


class Decoder:
    """A stack of decoder layers.

    Parameters
    ----------
    n_layers : int
        How many times tokens go through a layer.
    embed_dim, num_heads, hidden_dim : int
        As in `DecoderLayer`.
    shared : bool, optional
        One set of weights, used by every layer.
    final_norm : bool, optional
        A norm after the last layer; by default with `norm_first`, whose sums have none
        otherwise.
    **options
        As in `DecoderLayer`: `cross_attention`, `context_dim`, `head_dim`,
        `num_kv_heads`, `norm_first`, `norm`, `eps`, `activation`, `bias`, `dtype`,
        `rng`.

    Attributes
    ----------
    layers : list of DecoderLayer
        With `shared` the same one `n_layers` times.
    norm : LayerNorm or RMSNorm or None
        The final norm.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    Notes
    -----
    From Vaswani et al. (2017), section 3.1, and "Lecture 10: Attention Mechanisms and
    Transformers" by Martins, Melo and Figueiredo. With ``cross_attention=False`` it is
    a language model's stack, as GPT's and Llama's.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import Decoder, Encoder
    >>> rng = np.random.default_rng(0)
    >>> encoder = Encoder(2, 16, 4, 64, dtype=np.float64, rng=rng)
    >>> decoder = Decoder(2, 16, 4, 64, dtype=np.float64, rng=rng)
    >>> source, target = rng.standard_normal((9, 16)), rng.standard_normal((5, 16))
    >>> states = encoder(source)
    >>> output = decoder(target, states)

    One token after the other, as in translation, with the keys and values of both kinds
    of attention kept:

    >>> memory = decoder.project_context(states)
    >>> caches = decoder.new_caches(1, capacity=5)
    >>> steps = [decoder(target[i : i + 1], memory, caches=caches) for i in range(5)]
    >>> np.allclose(np.concatenate(steps), output)
    True
    """

    def __init__(
        self,
        n_layers: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        shared: bool = False,
        final_norm: bool | None = None,
        **options: Unpack[DecoderOptions],
    ) -> None:
        def layer() -> DecoderLayer:
            return DecoderLayer(embed_dim, num_heads, hidden_dim, **options)

        self.layers = _stack(layer, n_layers, shared)
        self.norm = _final_norm(final_norm, embed_dim, options)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict

    def new_caches(
        self,
        batch: int,
        capacity: int,
        *,
        dtype: DTypeLike | None = None,
        growable: bool = False,
    ) -> list[KVCache]:
        """Return an empty cache for each layer.

        Parameters
        ----------
        batch, capacity, growable
            As in `attnpy.cache.KVCache`.
        dtype : dtype, optional
            By default that of the parameters.

        Returns
        -------
        list of KVCache
            `n_layers` of them, with shared weights too: each holds what its layer saw.
        """
        return [
            layer.new_cache(batch, capacity, dtype=dtype, growable=growable)
            for layer in self.layers
        ]

    def project_context(
        self,
        context: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> list[KVCache]:
        """Compute each layer's keys and values of a context once, for many calls.

        Parameters
        ----------
        context : array_like, shape (Lc, Ec) or (B, Lc, Ec)
            The encoder's states.
        lengths : int or array_like of int, shape (B,), optional
            How many of the tokens exist; by default all.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`.

        Returns
        -------
        list of KVCache
            For the argument `context` of a call. Layers with shared weights share one.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, shapes do not fit together, or
            the layers have no cross-attention.
        """
        made: dict[int, KVCache] = {}
        for layer in self.layers:
            if layer.cross_attention is None:
                raise ValueError("context: expected None without cross-attention")
            if id(layer) not in made:
                made[id(layer)] = layer.cross_attention.project_context(
                    context, lengths=lengths, num_threads=num_threads
                )
        return [made[id(layer)] for layer in self.layers]

    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | Sequence[KVCache] | None = None,
        *,
        caches: Sequence[KVCache] | None = None,
        **options: Unpack[DecoderCall],
    ) -> Array:
        """Run the layers one after the other.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens; with `caches` those that are new.
        context : array_like, shape (Lc, Ec) or (B, Lc, Ec), or list of KVCache
            The encoder's states, or what `project_context` makes of them. None where
            the layers have no cross-attention.
        caches : list of KVCache, optional
            One for each layer, from `new_caches`: the tokens are appended.
        **options
            As in `DecoderLayer.__call__`: `mask`, `bias`, `window`, `kv_lengths`,
            `rotary`, `context_mask`, `context_lengths`, `num_threads`.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            In the promoted dtype of x, the context and the parameters.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, or shapes do not fit together.
            The caches have not changed after an error.
        """
        n_layers = len(self.layers)
        contexts: list[Any] = [context] * n_layers
        if _has_caches(context):
            contexts = _cache_list(context, "context", n_layers)
        kept: list[KVCache | None] = [None] * n_layers
        if caches is not None:
            kept = _cache_list(caches, "caches", n_layers)
            if len(set(map(id, kept))) < n_layers:
                raise ValueError("caches: expected another one for each layer")
        tokens = np.asarray(x)
        with undone_on_error([cache for cache in kept if cache is not None]):
            for layer, states, cache in zip(self.layers, contexts, kept, strict=True):
                tokens = layer(tokens, states, cache=cache, **options)
            return tokens if self.norm is None else self.norm(tokens)


def _has_caches(context: Any) -> bool:
    """Tell a context that `project_context` made from an array."""
    parts = context if isinstance(context, (list, tuple)) else [context]
    return any(isinstance(part, KVCache) for part in parts)


def _cache_list(caches: Any, name: str, n_layers: int) -> list[Any]:
    expected = f"{name}: expected a list with a KVCache for each layer, {n_layers},"
    if not isinstance(caches, (list, tuple)):
        raise TypeError(f"{expected} got {type(caches).__name__}")
    for cache in caches:
        if not isinstance(cache, KVCache):
            raise TypeError(f"{expected} got {type(cache).__name__} in it")
    if len(caches) != n_layers:
        raise ValueError(f"{expected} got {len(caches)}")
    return list(caches)


def _stack(make: Callable[[], Layer], n_layers: int, shared: bool) -> list[Layer]:
    n_layers = _checks.count(n_layers, "n_layers")
    if _checks.flag(shared, "shared"):
        return [make()] * n_layers
    return [make() for _ in range(n_layers)]


def _norm(
    norm: str, dim: int, eps: float, bias: bool, dtype: DTypeLike
) -> LayerNorm | RMSNorm:
    if _checks.one_of(norm, "norm", ("layer", "rms")) == "rms":
        return RMSNorm(dim, eps=eps, dtype=dtype)
    return LayerNorm(dim, eps=eps, bias=bias, dtype=dtype)


def _final_norm(
    wanted: bool | None, dim: int, options: LayerOptions
) -> LayerNorm | RMSNorm | None:
    if wanted is None:
        wanted = options.get("norm_first", False)
    if not _checks.flag(wanted, "final_norm"):
        return None
    return _norm(
        options.get("norm", "layer"),
        dim,
        options.get("eps", 1e-5),
        options.get("bias", True),
        options.get("dtype", np.float32),
    )


def _residual(
    tokens: Array,
    sublayer: Callable[[Array], Array],
    norm: LayerNorm | RMSNorm,
    norm_first: bool,
) -> Array:
    if norm_first:
        return tokens + sublayer(norm(tokens))
    return norm(sublayer(tokens), tokens)
