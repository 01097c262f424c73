"""The encoder: layers of self-attention and a feed-forward network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from attnpy import _checks, _keywords, _parameters, _pickles, _repr, _vjp
from attnpy._options import PASSED_ON
from attnpy.blocks import _dropout, _stack
from attnpy.blocks._stack import ModelOutput
from attnpy.blocks.feed_forward import FeedForward
from attnpy.layers import MultiHeadAttention

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Unpack

    from attnpy._typing import (
        Activation,
        Array,
        Causal,
        LayerOptions,
        NormKind,
        Window,
    )
    from attnpy._vjp import Pullback
    from attnpy.blocks._stack import AnyNorm, CallOptions, Choice, VJPOptions
    from attnpy.norms import LayerNorm, RMSNorm
    from attnpy.positions import Disentangled, Rotary

    class EncoderCall(CallOptions, total=False):
        """The options of an encoder's call."""

        causal: Causal
        relative: Disentangled | None

    class EncoderVJP(VJPOptions, total=False):
        """The options of an encoder's vjp that are those of its attention."""

        causal: Causal

    class EncoderStackCall(EncoderCall, Choice, total=False):
        """The options of a stack's call that do not change the kind of its result."""


# Of a call, which the attention takes, or both parts.
OPTIONS = PASSED_ON | {"rotary", "relative", "mixed"}


@_keywords.answering
class EncoderLayer:
    r"""Self-attention and a feed-forward network, each with a residual and a norm.

    Parameters
    ----------
    embed_dim, num_heads : int
        `E` and `H`.
    hidden_dim : int
        `F`, the size of the feed-forward network's hidden layer.
    head_dim, num_kv_heads : int, optional
        As in `attnpy.layers.MultiHeadAttention`.
    norm_first : bool, optional
        False: normalize sums, as the paper does. True: normalize the inputs of
        attention and network, as most later models do.
    norm : {"layer", "rms"}, optional
        `LayerNorm` or `RMSNorm`.
    eps : float, optional
        Of the norms.
    activation : str, optional
        Of the `FeedForward` network.
    bias : bool, optional
        Add biases in projections, network and norms, initially 0.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Draws the initial values; by default ``numpy.random.default_rng()``, with
        different values in every run.

    Attributes
    ----------
    self_attention : MultiHeadAttention
    feed_forward : FeedForward
    norm_1, norm_2 : LayerNorm or RMSNorm
        The norms of the attention and of the network. Set one to None to leave it out,
        as ModernBERT's first layer does with `norm_1`.
    norm_first : bool
        As given.
    window, scale, rotary : tuple, float, Rotary, or None
        Initially None. Options of the self-attention in every call, for stacks whose
        layers differ; a call must not pass the same option.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters.

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

    self_attention: MultiHeadAttention
    feed_forward: FeedForward
    norm_1: LayerNorm | RMSNorm | None
    norm_2: LayerNorm | RMSNorm | None
    norm_first: bool
    window: Window | None
    scale: float | None
    rotary: Rotary | None

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
        self.window = self.scale = self.rotary = None
        self.self_attention = MultiHeadAttention(
            embed_dim,
            num_heads,
            head_dim,
            num_kv_heads=num_kv_heads,
            bias=bias,
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
        self.norm_1 = _stack.make_norm(norm, embed_dim, eps, bias, dtype)
        self.norm_2 = _stack.make_norm(norm, embed_dim, eps, bias, dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    __repr__ = _repr.shows(_stack.fields)

    @overload
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: Literal[False] = ...,
        **options: Unpack[EncoderCall],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: Literal[True],
        heads: ArrayLike | None = ...,
        **options: Unpack[EncoderCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: bool,
        heads: ArrayLike | None = ...,
        **options: Unpack[EncoderCall],
    ) -> Array | ModelOutput: ...
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: bool = False,
        heads: ArrayLike | None = None,
        **options: Any,
    ) -> Array | ModelOutput:
        """Run the layer.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        return_weights : bool, optional
            Return the attention's weights as well, in a `ModelOutput`. No bit of the
            output depends on it.
        heads : int or sequence of int, optional
            Which heads, as in `attnpy.layers.MultiHeadAttention.__call__`.
        **options
            Options of the attention, as in `attnpy.layers.MultiHeadAttention.__call__`:
            `mask`, `bias`, `causal`, `window`, `q_offset`, `kv_lengths`, `seq_offsets`,
            `scale`, `softcap`, `sinks`, `rotary`, `relative`, `mixed`, `num_threads`.
            With `mixed` and 16-bit parameters the sums and norms are in float32, and
            `x` may be.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            In the promoted dtype of x and the parameters; integers become float64. With
            `return_weights` a `ModelOutput`, whose weights are (H, L, L) or
            (B, H, L, L).

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, or shapes do not fit together.
        """
        num_threads = options.get("num_threads")
        weights: Array | None = None

        def attend(tokens: Array, norm: AnyNorm, residual: Array | None) -> Any:
            nonlocal weights
            tokens = _stack.normalized(norm, tokens, num_threads)
            result = self.self_attention(tokens, residual=residual, **options, **asked)
            if asked:
                result, weights = result
            return result

        def feed(tokens: Array, norm: AnyNorm, residual: Array | None) -> Array:
            return self.feed_forward(
                _stack.normalized(norm, tokens, num_threads),
                residual=residual,
                mixed=options.get("mixed", False),
                num_threads=num_threads,
            )

        _keywords.refuse(options, OPTIONS, "EncoderLayer()")
        options |= _stack.own_options(self, options)
        tokens = _checks.array(x, "x")
        asked = _stack.asked(return_weights, heads)
        for part, norm in ((attend, self.norm_1), (feed, self.norm_2)):
            tokens = _stack.residual(
                tokens, part, norm, self.norm_first, None, None, num_threads
            )
        return ModelOutput(tokens, weights) if asked else tokens

    def vjp(
        self,
        x: ArrayLike,
        *,
        wanted: Iterable[str] = (),
        checkpoint: bool = False,
        dropout: float = 0.0,
        dropout_seed: int | None = None,
        **options: Unpack[EncoderVJP],
    ) -> tuple[Array, Pullback]:
        """Return the output of a call, and the pullback of its gradients.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        wanted, checkpoint
            As in `attnpy.layers.MultiHeadAttention.vjp`.
        dropout : float, optional
            The probability with which a weight of the attention is dropped, and a
            number of the attention's and of the network's result, before it is added to
            the residual: at least 0 and below 1. What is kept is divided by
            ``1 - dropout``.
        dropout_seed : int, optional
            From 0 to ``2**64 - 1``, required with `dropout`. What is dropped depends on
            the seed and the place only. Take another one for each step of training.
        **options
            As in a call, except `mixed` and `relative`, whose gradients are not here.

        Returns
        -------
        output : ndarray, shape (L, E) or (B, L, E)
            With the same bits as a call, where nothing is dropped.
        pullback : callable
            Takes the gradient with respect to the output, and returns an
            `attnpy.layers.LayerGradients`. It keeps what the pullbacks of attention and
            network keep, and the inputs of the norms.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are packed, or not float32 or float64.

        Notes
        -----
        Dropout of sublayers is that of Vaswani et al. (2017), section 5.4; BERT has
        that of weights as well. The network's hidden numbers are not dropped.
        """
        num_threads = options.get("num_threads")
        rate, seed = _dropout.checked(dropout, dropout_seed)
        of_weights, of_attention, of_network = _dropout.seeds(seed, 3)

        def attend(tokens: Array, residual: Array | None) -> tuple[Array, Pullback]:
            return self.self_attention.vjp(
                tokens,
                residual=residual,
                wanted=names,
                dropout=rate,
                dropout_seed=of_weights,
                **options,
            )

        def feed(tokens: Array, residual: Array | None) -> tuple[Array, Pullback]:
            return self.feed_forward.vjp(
                tokens, residual=residual, num_threads=num_threads
            )

        def run() -> tuple[Array, Pullback]:
            return _stack.chain_vjp(self, tokens, steps)

        _stack.check_no_relative(options)
        _keywords.refuse(options, OPTIONS - {"mixed"}, "EncoderLayer.vjp()")
        options |= _stack.own_options(self, options)
        names, tokens = _vjp.wanted_names(wanted), _vjp.floating(x, "x")
        steps = [
            _stack.Sublayer(name, _dropout.dropping(vjp, rate, its_seed), norm).step(
                self, num_threads
            )
            for name, vjp, its_seed, norm in (
                ("self_attention", attend, of_attention, "norm_1"),
                ("feed_forward", feed, of_network, "norm_2"),
            )
        ]
        return _vjp.run(run, checkpoint)


CALL = EncoderLayer.__call__  # unless someone has replaced it
KINDS = _stack.kinds(EncoderLayer, of_encoder=True)


@_keywords.answering
class Encoder:
    """A stack of encoder layers.

    Parameters
    ----------
    num_layers : int
        How many layers tokens go through.
    embed_dim, num_heads, hidden_dim : int
        As in `EncoderLayer`.
    shared : bool, optional
        One set of weights, used by every layer.
    final_norm : bool, optional
        Add a norm after the last layer; by default with `norm_first`, where sums have
        no norm otherwise.
    **options
        As in `EncoderLayer`: `head_dim`, `num_kv_heads`, `norm_first`, `norm`, `eps`,
        `activation`, `bias`, `dtype`, `rng`.

    Attributes
    ----------
    layers : list of EncoderLayer
        With `shared`, `num_layers` times the same layer.
    norm : LayerNorm or RMSNorm or None
        The final norm.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters.

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

    layers: list[EncoderLayer]
    norm: LayerNorm | RMSNorm | None

    def __init__(
        self,
        num_layers: int,
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

        self.layers = _stack.make_layers(layer, num_layers, shared)
        self.norm = _stack.make_final_norm(final_norm, embed_dim, options)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    __repr__ = _repr.shows(_stack.stack_fields)

    @overload
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: Literal[False] = ...,
        return_hidden_states: Literal[False] = ...,
        **options: Unpack[EncoderCall],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: Literal[True],
        return_hidden_states: bool = ...,
        **options: Unpack[EncoderStackCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: bool = ...,
        return_hidden_states: Literal[True],
        **options: Unpack[EncoderStackCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: bool,
        return_hidden_states: bool = ...,
        **options: Unpack[EncoderStackCall],
    ) -> Array | ModelOutput: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: bool = ...,
        return_hidden_states: bool,
        **options: Unpack[EncoderStackCall],
    ) -> Array | ModelOutput: ...
    def __call__(
        self,
        x: ArrayLike,
        *,
        return_weights: bool = False,
        return_hidden_states: bool = False,
        layers: ArrayLike | None = None,
        heads: ArrayLike | None = None,
        **options: Any,
    ) -> Array | ModelOutput:
        """Run the layers one after the other.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        return_weights : bool, optional
            Return the weights of the layers' attention as well, in a `ModelOutput`. No
            bit of the output depends on it.
        return_hidden_states : bool, optional
            Return the input of the first layer and the result of each layer as well, in
            a `ModelOutput`. Hugging Face calls this `output_hidden_states`.
        layers, heads : int or sequence of int, optional
            Which layers and heads, in this order; negative numbers count from the end.
            Only they take memory (and, temporarily, the weights of one layer). By
            default all.
        **options
            As in `EncoderLayer.__call__`.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            In the promoted dtype of x and the parameters; integers become float64. With
            `return_weights` or `return_hidden_states` a `ModelOutput`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, or shapes do not fit together.
        """
        _keywords.refuse(options, OPTIONS, "Encoder()")
        tokens = _checks.array(x, "x")
        recorder = _stack.Recorder(
            len(self.layers), return_weights, return_hidden_states, layers, heads
        )
        if not recorder.records:
            result = self._together(tokens, options)
            if result is not None:
                return result
        recorder.begin(tokens)
        for i, layer in enumerate(self.layers):
            tokens = recorder.take(i, layer(tokens, **options, **recorder.asks(i)))
        if self.norm is not None:
            tokens = self.norm(tokens, num_threads=options.get("num_threads"))
        return recorder.end(tokens)

    def _together(self, x: Array, options: dict[str, Any]) -> Array | None:
        """Run all layers in one call of C; None where that cannot be, or is wrong.

        What is wrong is said best by the layers, one after the other.
        """
        told = dict(options)
        has_positions = told.pop("relative", None) is not None
        if EncoderLayer.__call__ is not CALL or has_positions:
            return None
        return _stack.run_without_caches(self, KINDS, x, told)

    def vjp(
        self,
        x: ArrayLike,
        *,
        wanted: Iterable[str] = (),
        checkpoint: bool = False,
        dropout: float = 0.0,
        dropout_seed: int | None = None,
        **options: Unpack[EncoderVJP],
    ) -> tuple[Array, Pullback]:
        """Return the output of a call, and the pullback of its gradients.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        wanted : iterable of {"bias", "sinks"}, optional
            As in `attnpy.layers.MultiHeadAttention.vjp`: sums over the layers.
        checkpoint : bool, optional
            Keep only the input of each layer, and run the layer again when its
            gradients are needed.
        dropout, dropout_seed
            As in `EncoderLayer.vjp`; each layer drops others. No numbers of `x` are
            dropped.
        **options
            As in `EncoderLayer.vjp`.

        Returns
        -------
        output : ndarray, shape (L, E) or (B, L, E)
            With the same bits as a call, where nothing is dropped.
        pullback : callable
            Takes the gradient with respect to the output, and returns an
            `attnpy.layers.LayerGradients`. Parameters of shared layers have the sum of
            all gradients, under their first name.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are packed, or not float32 or float64.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.blocks import Encoder
        >>> rng = np.random.default_rng(0)
        >>> encoder = Encoder(2, 16, 4, 64, dtype=np.float64, rng=rng)
        >>> x = rng.standard_normal((10, 16))  # ten words
        >>> output, pullback = encoder.vjp(x)
        >>> gradients = pullback(np.ones_like(output))
        >>> gradients.x.shape, gradients.parameters["layers.1.norm_2.bias"][:4]
        ((10, 16), array([10., 10., 10., 10.]))
        """
        names = _vjp.wanted_names(wanted)
        rate, seed = _dropout.checked(dropout, dropout_seed)
        of_layers = iter(_dropout.seeds(seed, len(self.layers)))

        def run(layer: EncoderLayer, tokens: Array) -> tuple[Array, Pullback]:
            return layer.vjp(
                tokens,
                wanted=names,
                checkpoint=checkpoint,
                dropout=rate,
                dropout_seed=next(of_layers),
                **options,
            )

        return _stack.stack_vjp(
            self, _vjp.floating(x, "x"), run, options.get("num_threads")
        )
