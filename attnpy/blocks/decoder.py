"""The decoder: causal self-attention, attention to a context, feed-forward network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np

from attnpy import _checks, _keywords, _parameters, _pickles, _repr, _vjp
from attnpy._options import PASSED_ON
from attnpy.blocks import _stack
from attnpy.blocks._stack import AnyNorm, ModelOutput
from attnpy.blocks.experts import MixtureOfExperts
from attnpy.blocks.feed_forward import FeedForward, run
from attnpy.cache import KVCache, all_or_nothing, checked_caches, commit_all
from attnpy.layers import MultiHeadAttention
from attnpy.layers._shared import Shared
from attnpy.norms import LayerNorm, RMSNorm
from attnpy.pages import PagePool

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Unpack

    from attnpy._typing import Activation, Array, DecoderOptions, NormKind, Window
    from attnpy._vjp import Pullback
    from attnpy.blocks._stack import CallOptions, Choice, VJPOptions
    from attnpy.positions import Rotary

    class ContextOptions(TypedDict, total=False):
        """The options of the attention to a context."""

        context_mask: ArrayLike | None
        context_lengths: ArrayLike | None
        context_offsets: ArrayLike | None

    class DecoderCall(CallOptions, ContextOptions, total=False):
        """The options of a decoder's call."""

    class DecoderVJP(VJPOptions, ContextOptions, total=False):
        """The options of a decoder's vjp."""

    class DecoderLayerCall(DecoderCall, total=False):
        """The options of a layer's call that do not change the kind of its result."""

        cache: KVCache | None

    class DecoderStackCall(DecoderCall, Choice, total=False):
        """The options of a stack's call that do not change the kind of its result."""


# What runs a part of a layer on tokens after a norm, and adds a residual; that, its
# norm, and that of what it gives.
Run = Callable[["Array", AnyNorm, "Array | None"], "Any"]

# What a layer's self-attention is told, beside the cache.
HANDED_ON = PASSED_ON - {"causal"} | {"rotary", "mixed"}
WITH_PLACES = {"q_offset", "kv_lengths", "seq_offsets"}
STEPPED = HANDED_ON - WITH_PLACES - {"mixed"}
OF_CONTEXT = {"context_mask", "context_lengths", "context_offsets"}
TAKEN = HANDED_ON | OF_CONTEXT
WITH_PLACES_OR_CONTEXT = WITH_PLACES | OF_CONTEXT


@_keywords.answering
class DecoderLayer:
    r"""Causal self-attention, attention to a context, and a feed-forward network.

    Parameters
    ----------
    embed_dim, num_heads : int
        `E` and `H`.
    hidden_dim : int
        `F`, the size of the feed-forward network's hidden layer.
    causal : bool, optional
        False lets a token see those after it, as in decoders that were turned into
        encoders. Such a layer has no cache.
    cross_attention : bool, optional
        False leaves out the attention to a context, as in language models.
    context_dim : int, optional
        `Ec`, the size of the context's tokens; by default `E`.
    head_dim, num_kv_heads, norm_first, norm, eps, activation, bias, dtype, rng
        As in `EncoderLayer`.

    Attributes
    ----------
    self_attention : MultiHeadAttention
    cross_attention : MultiHeadAttention or None
    feed_forward : FeedForward or MixtureOfExperts
        Initially the former.
    norm_1, norm_2, norm_3 : LayerNorm or RMSNorm
        The norms of the self-attention, of the attention to the context (None without
        it), and of the network. The first and last may be set to None.
    causal, norm_first : bool
        As given.
    after_1, after_3 : LayerNorm or RMSNorm or None
        Initially None. Norms of the results of self-attention and network, before they
        are added, as in Gemma 2.
    parallel : bool
        Initially False. True: network and self-attention read the same tokens, each by
        its norm, and both results are added to them, as in GPT-NeoX. If `norm_3` is
        None, the network reads what `norm_1` returns, as in Phi. Only with `norm_first`
        and without the norms after, `residual_scale` and a context.
    residual_scale : float or None
        Initially None. The results of attention and network are multiplied by it before
        they are added, as in Granite.
    window, scale, rotary : tuple, float, Rotary, or None
        Initially None. Options of the self-attention in every call, for stacks whose
        layers differ; a call must not pass the same option.
    context_scale : float or None
        Initially None. The scale of the attention to a context, as in T5.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters.

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

    self_attention: MultiHeadAttention
    cross_attention: MultiHeadAttention | None
    feed_forward: FeedForward | MixtureOfExperts
    norm_1: LayerNorm | RMSNorm | None
    norm_2: LayerNorm | RMSNorm | None
    norm_3: LayerNorm | RMSNorm | None
    after_1: LayerNorm | RMSNorm | None
    after_3: LayerNorm | RMSNorm | None
    norm_first: bool
    parallel: bool
    residual_scale: float | None
    causal: bool
    window: Window | None
    scale: float | None
    rotary: Rotary | None
    context_scale: float | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        causal: bool = True,
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
        self.causal = _checks.flag(causal, "causal")
        self.window = None
        self.scale = None
        self.rotary = None
        self.context_scale = None
        self.after_1 = None
        self.after_3 = None
        self.parallel = False
        self.residual_scale = None

        def attention(context_dim: int | None) -> MultiHeadAttention:
            return MultiHeadAttention(
                embed_dim,
                num_heads,
                head_dim,
                num_kv_heads=num_kv_heads,
                context_dim=context_dim,
                bias=bias,
                dtype=dtype,
                rng=rng,
            )

        if context_dim is not None and not cross_attention:
            raise ValueError(
                f"context_dim: expected None without cross_attention, got {context_dim}"
            )
        self.self_attention = attention(None)
        self.cross_attention = None
        self.norm_1 = _stack.make_norm(norm, embed_dim, eps, bias, dtype)
        self.norm_2 = None
        if _checks.flag(cross_attention, "cross_attention"):
            self.cross_attention = attention(context_dim)
            self.norm_2 = _stack.make_norm(norm, embed_dim, eps, bias, dtype)
        elif context_dim is not None:
            raise ValueError("context_dim: expected None without cross-attention")
        self.feed_forward = FeedForward(
            embed_dim,
            hidden_dim,
            activation=activation,
            bias=bias,
            dtype=dtype,
            rng=rng,
        )
        self.norm_3 = _stack.make_norm(norm, embed_dim, eps, bias, dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    __repr__ = _repr.shows(_stack.fields)

    def new_cache(
        self,
        batch_size: int,
        capacity: int,
        *,
        dtype: DTypeLike | None = None,
        growable: bool = False,
    ) -> KVCache:
        """Return an empty cache for the layer's self-attention.

        Parameters
        ----------
        batch_size, capacity, growable
            As in `attnpy.cache.KVCache`.
        dtype : dtype, optional
            By default that of the parameters.

        Returns
        -------
        KVCache
        """
        return self.self_attention.new_cache(
            batch_size, capacity, dtype=dtype, growable=growable
        )

    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | KVCache | None = ...,
        *,
        return_weights: Literal[False] = ...,
        **options: Unpack[DecoderLayerCall],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | KVCache | None = ...,
        *,
        return_weights: Literal[True],
        heads: ArrayLike | None = ...,
        **options: Unpack[DecoderLayerCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | KVCache | None = ...,
        *,
        return_weights: bool,
        heads: ArrayLike | None = ...,
        **options: Unpack[DecoderLayerCall],
    ) -> Array | ModelOutput: ...
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | KVCache | None = None,
        *,
        cache: KVCache | None = None,
        context_mask: ArrayLike | None = None,
        context_lengths: ArrayLike | None = None,
        context_offsets: ArrayLike | None = None,
        return_weights: bool = False,
        heads: ArrayLike | None = None,
        **options: Any,
    ) -> Array | ModelOutput:
        """Run the layer.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        context : array_like, shape (Lc, Ec) or (B, Lc, Ec), or KVCache
            The encoder's states, or the result of ``cross_attention.project_context``
            for them. None if the layer has no cross-attention. A cache of b sequences
            serves a batch of several times b, such as the beams of a search: each for
            as many sequences, one after the other.
        cache : KVCache, optional
            The cache of the self-attention, as in
            `attnpy.layers.MultiHeadAttention.__call__`.
        context_mask : array_like of bool, broadcast to (B, H, L, Lc), optional
            True where a token may attend to the context, as `mask` of attention.
        context_lengths : int or array_like of int, shape (B,), optional
            How many of the context's keys exist, as `kv_lengths` of attention.
        context_offsets : array_like of int, shape (n + 1,), optional
            For a context of packed sequences, (Tc, Ec), as `seq_offsets` for packed x,
            (T, E).
        return_weights : bool, optional
            Return the weights of both kinds of attention as well, in a `ModelOutput`.
            No bit of the output depends on it.
        heads : int or sequence of int, optional
            Of which heads, as in `attnpy.layers.MultiHeadAttention.__call__`.
        **options
            Options of the self-attention, except `causal`, which belongs to the layer,
            as in `attnpy.layers.MultiHeadAttention.__call__`: `mask`, `bias`, `window`,
            `q_offset`, `kv_lengths`, `seq_offsets`, `scale`, `softcap`, `sinks`,
            `rotary`; and `mixed`, as in `EncoderLayer.__call__`, and `num_threads`.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            In the promoted dtype of x, the context and the parameters. With
            `return_weights` a `ModelOutput`, whose weights are (H, L, Lk) or
            (B, H, L, Lk) and (H, L, Lc) or (B, H, L, Lc).

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, or shapes do not fit together.
            The cache has not changed after an error.
        """
        num_threads, mixed = options.get("num_threads"), options.get("mixed", False)
        weights: Array | None = None
        cross_weights: Array | None = None

        def attend(tokens: Array, norm: AnyNorm, residual: Array | None) -> Any:
            nonlocal weights
            result = self.self_attention(
                _stack.normalized(norm, tokens, num_threads),
                causal=self.causal,
                cache=cache,
                residual=residual,
                **options,
                **asked,
            )
            if asked:
                result, weights = result
            return result

        def attend_to_context(
            tokens: Array, norm: AnyNorm, residual: Array | None
        ) -> Any:
            nonlocal cross_weights
            assert self.cross_attention is not None
            tokens = _stack.normalized(norm, tokens, num_threads)
            shape = tokens.shape
            if several > 1:  # queries of one context have no order
                joint = len(tokens) // several, several * shape[1], shape[2]
                tokens = tokens.reshape(joint)
                residual = None if residual is None else residual.reshape(joint)
            with _checks.renamed(mask="context_mask", kv_lengths="context_lengths"):
                result = self.cross_attention(
                    tokens,
                    context,
                    mask=context_mask,
                    kv_lengths=context_lengths,
                    seq_offsets=(options.get("seq_offsets"), context_offsets),
                    scale=self.context_scale,
                    residual=residual,
                    mixed=mixed,
                    num_threads=num_threads,
                    **asked,
                )
            if asked:
                result, cross_weights = result
            return result.reshape(shape) if several > 1 else result

        def feed(tokens: Array, norm: AnyNorm, residual: Array | None) -> Array:
            return self.feed_forward(
                _stack.normalized(norm, tokens, num_threads),
                residual=residual,
                mixed=mixed,
                num_threads=num_threads,
            )

        _keywords.refuse(options, HANDED_ON, "DecoderLayer()")
        asked = _stack.asked(return_weights, heads)
        self._check_context(context, context_mask, context_lengths, context_offsets)
        if cache is not None and not self.causal:
            raise ValueError(
                "cache: expected None with causal=False, where tokens see later ones"
            )
        options |= _stack.own_options(self, options)
        if context is not None and not isinstance(context, KVCache):
            context = _checks.array(context, "context")
        tokens = _checks.array(x, "x")
        several = 1
        if not asked and context_mask is None and options.get("seq_offsets") is None:
            several = _sequences_of_each(context, tokens)
        with all_or_nothing([cache] if isinstance(cache, KVCache) else []) as lent:
            cache = lent[0] if lent else cache
            second = attend_to_context if self.norm_2 is not None else None
            tokens = self._run(tokens, attend, second, feed, num_threads)
        return ModelOutput(tokens, weights, cross_weights) if asked else tokens

    def vjp(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        *,
        context_mask: ArrayLike | None = None,
        context_lengths: ArrayLike | None = None,
        context_offsets: ArrayLike | None = None,
        wanted: Iterable[str] = (),
        checkpoint: bool = False,
        **options: Unpack[VJPOptions],
    ) -> tuple[Array, Pullback]:
        """Return the output of a call, and the pullback of its gradients.

        Parameters
        ----------
        x, context, context_mask, context_lengths, context_offsets
            As in a call, except caches, which have no gradients.
        wanted : iterable of {"bias", "sinks"}, optional
            As in `attnpy.layers.MultiHeadAttention.vjp`, of the self-attention.
        checkpoint : bool, optional
            As in `attnpy.layers.MultiHeadAttention.vjp`.
        **options
            As in a call, except `mixed`.

        Returns
        -------
        output : ndarray, shape (L, E) or (B, L, E)
            With the same bits as a call.
        pullback : callable
            As that of `EncoderLayer.vjp`; the gradients have that of the context, too.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are packed, or not float32 or float64.
        """
        num_threads = options.get("num_threads")

        def attend(tokens: Array, residual: Array | None) -> tuple[Array, Pullback]:
            return self.self_attention.vjp(
                tokens, causal=self.causal, residual=residual, wanted=names, **options
            )

        def attend_to_context(
            tokens: Array, residual: Array | None
        ) -> tuple[Array, Pullback]:
            assert self.cross_attention is not None
            with _checks.renamed(mask="context_mask", kv_lengths="context_lengths"):
                return self.cross_attention.vjp(
                    tokens,
                    context,
                    mask=context_mask,
                    kv_lengths=context_lengths,
                    seq_offsets=(options.get("seq_offsets"), context_offsets),
                    scale=self.context_scale,
                    residual=residual,
                    num_threads=num_threads,
                )

        def feed(tokens: Array, residual: Array | None) -> tuple[Array, Pullback]:
            return self.feed_forward.vjp(
                tokens, residual=residual, num_threads=num_threads
            )

        def run() -> tuple[Array, Pullback]:
            return _stack.chain_vjp(self, tokens, steps)

        _keywords.refuse(options, HANDED_ON - {"mixed"}, "DecoderLayer.vjp()")
        self._check_context(context, context_mask, context_lengths, context_offsets)
        options |= _stack.own_options(self, options)
        names, tokens = _vjp.wanted_names(wanted), _vjp.floating(x, "x")
        attention = _stack.Sublayer("self_attention", attend, "norm_1", "after_1")
        network = _stack.Sublayer("feed_forward", feed, "norm_3", "after_3")
        sublayers = [attention]
        if self.norm_2 is not None:
            sublayers.append(
                _stack.Sublayer("cross_attention", attend_to_context, "norm_2")
            )
        sublayers.append(network)
        steps = [sublayer.step(self, num_threads) for sublayer in sublayers]
        if self.parallel:
            _stack.check_parallel(self)
            steps = [_stack.parallel_vjp(self, attention, network, num_threads)]
        return _vjp.run(run, checkpoint)

    def _run(
        self,
        tokens: Array,
        attend: Run,
        attend_to_context: Run | None,
        feed: Run,
        num_threads: int | None,
    ) -> Array:
        """Run the parts of the layer, and add their results to the tokens."""
        if self.parallel:
            return self._parallel(tokens, attend, feed, num_threads)
        first, scale = self.norm_first, self.residual_scale
        tokens = _stack.residual(
            tokens, attend, self.norm_1, first, self.after_1, scale, num_threads
        )
        if attend_to_context is not None:
            tokens = _stack.residual(
                tokens, attend_to_context, self.norm_2, first, None, scale, num_threads
            )
        return _stack.residual(
            tokens, feed, self.norm_3, first, self.after_3, scale, num_threads
        )

    def _parallel(
        self, tokens: Array, attend: Run, feed: Run, num_threads: int | None
    ) -> Array:
        """Add the results of attention and network, which read the same tokens."""
        _stack.check_parallel(self)
        if self.norm_3 is not None:
            result = attend(tokens, self.norm_1, tokens)
            output: Array = feed(tokens, self.norm_3, result)
            return output
        given = _stack.normalized(self.norm_1, tokens, num_threads)
        output = feed(given, None, attend(given, None, tokens))
        return output

    def _step(
        self,
        x: Array,
        cache: KVCache,
        shared: Shared,
        mixed: bool,
        options: dict[str, Any],
    ) -> Array:
        """Do what a call does for tokens (B, L, E), with fewer calls of Python and C.

        `options` are those of the self-attention.
        """
        num_threads = options.get("num_threads")

        def attend(tokens: Array, norm: AnyNorm, residual: Array | None) -> Array:
            tokens, first = _stack.taken_along(norm, tokens, num_threads)
            return shared.attend(
                *(self.self_attention, tokens, first, residual, cache, options, own)
            )

        def feed(tokens: Array, norm: AnyNorm, residual: Array | None) -> Array:
            network = self.feed_forward
            if isinstance(network, MixtureOfExperts):
                return network(
                    _stack.normalized(norm, tokens, num_threads),
                    residual=residual,
                    mixed=mixed,
                    num_threads=num_threads,
                )
            tokens, first = _stack.taken_along(norm, tokens, num_threads)
            return run(network, tokens, first, residual, mixed, num_threads)

        options, own = _stack.with_own(self, options)
        return self._run(x, attend, None, feed, num_threads)

    def _check_context(
        self,
        context: ArrayLike | KVCache | None,
        mask: ArrayLike | None,
        lengths: ArrayLike | None,
        offsets: ArrayLike | None,
    ) -> None:
        if self.cross_attention is not None:
            if context is None:
                raise ValueError("context: expected the states to attend to, got None")
            if isinstance(context, KVCache) and offsets is not None:
                raise ValueError(
                    "context_offsets: expected None where context is a KVCache, which "
                    "has an axis for sequences"
                )
            return
        for name, argument in (
            ("context", context),
            ("context_mask", mask),
            ("context_lengths", lengths),
            ("context_offsets", offsets),
        ):
            if argument is not None:
                raise ValueError(f"{name}: expected None without cross-attention")


CALL = DecoderLayer.__call__  # unless someone has replaced it
KINDS = _stack.kinds(DecoderLayer, of_encoder=False)


def _is_plain(layer: object) -> bool:
    """Tell whether a call of a layer with a cache does what `_step` does."""
    return (
        type(layer) is DecoderLayer
        and DecoderLayer.__call__ is CALL
        and layer.causal
        and layer.cross_attention is None
        and layer.norm_2 is None
        and _stack.is_known(layer.self_attention)
        and _stack.is_known(layer.feed_forward)
    )


@_keywords.answering
class Decoder:
    """A stack of decoder layers.

    Parameters
    ----------
    num_layers : int
        How many layers tokens go through.
    embed_dim, num_heads, hidden_dim : int
        As in `DecoderLayer`.
    shared : bool, optional
        One set of weights, used by every layer.
    final_norm : bool, optional
        Add a norm after the last layer; by default with `norm_first`, where sums have
        no norm otherwise.
    **options
        As in `DecoderLayer`: `causal`, `cross_attention`, `context_dim`, `head_dim`,
        `num_kv_heads`, `norm_first`, `norm`, `eps`, `activation`, `bias`, `dtype`,
        `rng`.

    Attributes
    ----------
    layers : list of DecoderLayer
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
    From Vaswani et al. (2017), section 3.1, and "Lecture 10: Attention Mechanisms and
    Transformers" by Martins, Melo and Figueiredo. With ``cross_attention=False`` it is
    the stack of a language model such as GPT or Llama.

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

    layers: list[DecoderLayer]
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
        **options: Unpack[DecoderOptions],
    ) -> None:
        def layer() -> DecoderLayer:
            return DecoderLayer(embed_dim, num_heads, hidden_dim, **options)

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

    def new_page_pools(
        self, num_pages: int, *, dtype: DTypeLike | None = None
    ) -> list[PagePool]:
        """Return pages for the caches of each layer.

        Parameters
        ----------
        num_pages : int
            How many pages of 128 tokens each layer has.
        dtype : dtype, optional
            By default that of the parameters.

        Returns
        -------
        list of PagePool
            A `attnpy.pages.PagedKVCache` of each is a cache for calls.
        """
        return [
            PagePool(
                num_pages,
                mha.num_kv_heads,
                mha.head_dim,
                mha.value_head_dim,
                dtype=mha.W_k.dtype if dtype is None else dtype,
            )
            for mha in (layer.self_attention for layer in self.layers)
        ]

    def new_caches(
        self,
        batch_size: int,
        capacity: int,
        *,
        dtype: DTypeLike | None = None,
        growable: bool = False,
    ) -> list[KVCache]:
        """Return an empty cache for each layer.

        Parameters
        ----------
        batch_size, capacity, growable
            As in `attnpy.cache.KVCache`.
        dtype : dtype, optional
            By default that of the parameters.

        Returns
        -------
        list of KVCache
            `num_layers`, with shared weights too: each holds what its layer saw.
        """
        return [
            layer.new_cache(batch_size, capacity, dtype=dtype, growable=growable)
            for layer in self.layers
        ]

    def project_context(
        self,
        context: ArrayLike,
        *,
        context_lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> list[KVCache]:
        """Compute each layer's keys and values of a context once, for many calls.

        Parameters
        ----------
        context : array_like, shape (Lc, Ec) or (B, Lc, Ec)
            The encoder's states.
        context_lengths : int or array_like of int, shape (B,), optional
            How many of the context's keys exist, as in a call; by default all.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

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
                with _checks.renamed(kv_lengths="context_lengths"):
                    made[id(layer)] = layer.cross_attention.project_context(
                        context, kv_lengths=context_lengths, num_threads=num_threads
                    )
        return [made[id(layer)] for layer in self.layers]

    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | Sequence[KVCache] | None = ...,
        *,
        caches: Sequence[KVCache] | None = ...,
        return_weights: Literal[False] = ...,
        return_hidden_states: Literal[False] = ...,
        **options: Unpack[DecoderCall],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | Sequence[KVCache] | None = ...,
        *,
        caches: Sequence[KVCache] | None = ...,
        return_weights: Literal[True],
        return_hidden_states: bool = ...,
        **options: Unpack[DecoderStackCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | Sequence[KVCache] | None = ...,
        *,
        caches: Sequence[KVCache] | None = ...,
        return_weights: bool = ...,
        return_hidden_states: Literal[True],
        **options: Unpack[DecoderStackCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | Sequence[KVCache] | None = ...,
        *,
        caches: Sequence[KVCache] | None = ...,
        return_weights: bool,
        return_hidden_states: bool = ...,
        **options: Unpack[DecoderStackCall],
    ) -> Array | ModelOutput: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | Sequence[KVCache] | None = ...,
        *,
        caches: Sequence[KVCache] | None = ...,
        return_weights: bool = ...,
        return_hidden_states: bool,
        **options: Unpack[DecoderStackCall],
    ) -> Array | ModelOutput: ...
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | Sequence[KVCache] | None = None,
        *,
        caches: Sequence[KVCache] | None = None,
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
            The tokens; with `caches` those that are new.
        context : array_like, shape (Lc, Ec) or (B, Lc, Ec), or list of KVCache
            The encoder's states, or what `project_context` makes of them. None where
            the layers have no cross-attention.
        caches : list of KVCache, optional
            One for each layer, from `new_caches`: the tokens are appended.
        return_weights, return_hidden_states : bool, optional
        layers, heads : int or sequence of int, optional
            As in `Encoder.__call__`; the weights are of both kinds of attention.
        **options
            As in `DecoderLayer.__call__`, `context_mask`, `context_lengths` and
            `context_offsets` too.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            In the promoted dtype of x, the context and the parameters. With
            `return_weights` or `return_hidden_states` a `ModelOutput`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, or shapes do not fit together.
            The caches have not changed after an error.
        """
        num_layers = len(self.layers)
        _keywords.refuse(options, TAKEN, "Decoder()")
        contexts: list[Any] = [context] * num_layers
        if _has_caches(context):
            contexts = checked_caches(context, "context", num_layers)
        layer_caches: Sequence[KVCache | None] = [None] * num_layers
        if caches is not None:
            layer_caches = caches = checked_caches(caches, "caches", num_layers)
            if len(set(map(id, caches))) < num_layers:
                raise ValueError("caches: expected a different one for each layer")
        tokens = _checks.array(x, "x")
        recorder = _stack.Recorder(
            num_layers, return_weights, return_hidden_states, layers, heads
        )
        if context is None and not recorder.records:
            done = (
                self._at_once(tokens, options)
                if caches is None
                else self._stepped(tokens, caches, options)
            )
            if done is not None:
                return done
        recorder.begin(tokens)
        first = tokens
        with all_or_nothing(caches or []) as lent:
            for i, (layer, states, cache) in enumerate(
                zip(self.layers, contexts, lent or layer_caches, strict=True)
            ):
                asked = {**recorder.asks(i), **self._beside(layer, first, options)}
                result = layer(tokens, states, cache=cache, **options, **asked)
                tokens = recorder.take(i, result)
            if self.norm is not None:
                tokens = self.norm(tokens, num_threads=options.get("num_threads"))
            return recorder.end(tokens)

    def _beside(
        self, layer: DecoderLayer, x: Array, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what a layer takes beside its tokens, made of those of the call."""
        return {}

    def _at_once(self, x: Array, options: dict[str, Any]) -> Array | None:
        """Return the result of a call without caches or context; None as below."""
        told = {name: value for name, value in options.items() if value is not None}
        if DecoderLayer.__call__ is not CALL or not OF_CONTEXT.isdisjoint(told):
            return None
        for is_causal in (True, False):
            if self._are_all(is_causal):
                told["causal"] = is_causal
                return _stack.run_without_caches(self, KINDS, x, told)
        return None

    def _are_all(self, is_causal: bool) -> bool:
        """Tell whether all layers are causal, or none is."""
        return all(getattr(layer, "causal", None) is is_causal for layer in self.layers)

    def _stepped(
        self, x: Array, caches: Sequence[KVCache], options: dict[str, Any]
    ) -> Array | None:
        """Return the result of a call with caches, or None if a part is not known."""
        if x.ndim not in (2, 3) or not WITH_PLACES_OR_CONTEXT.isdisjoint(
            name for name, value in options.items() if value is not None
        ):
            return None
        told = {name: options[name] for name in STEPPED & options.keys()}
        told["causal"] = True
        mixed = _checks.flag(options.get("mixed", False), "mixed")
        tokens = x[np.newaxis] if x.ndim == 2 else x
        error: Exception | None = None
        result: Array | None = None
        try:
            result = self._together(tokens, caches, mixed, told)
        except (TypeError, ValueError) as found:
            error = found
        if result is None:
            if not all(map(_is_plain, self.layers)):
                return None
            with all_or_nothing(caches) as copies:
                result = self._one_by_one(tokens, copies, mixed, told)
                if error is not None:  # which those would have said better
                    raise error
        return result[0] if x.ndim == 2 else result

    def _together(
        self,
        tokens: Array,
        caches: Sequence[KVCache],
        mixed: bool,
        options: dict[str, Any],
    ) -> Array | None:
        """Run all layers in one call of C; None where that cannot be.

        What it takes is collected anew in each call: nothing can be out of date.
        """
        unchanged = DecoderLayer.__call__ is CALL and _stack.are_unchanged()
        if type(tokens) is not np.ndarray or not unchanged:
            return None
        if any(type(cache) is not KVCache for cache in caches):
            with all_or_nothing(caches) as copies:
                return self._run_stack(tokens, copies, False, mixed, options)
        return self._run_stack(tokens, caches, True, mixed, options)

    def _run_stack(
        self,
        tokens: Array,
        caches: Sequence[KVCache],
        are_plain: bool,
        mixed: bool,
        options: dict[str, Any],
    ) -> Array | None:
        """Do it with caches of which all are KVCaches, or with copies to write to."""
        if not self._are_all(True):
            return None
        found = _stack.run_together(
            self, KINDS, tokens, caches, are_plain, mixed, options
        )
        if found is None:
            return None
        result, places = found
        commit_all(caches, [place.reserved for place in places])
        return result

    def _one_by_one(
        self,
        tokens: Array,
        caches: Sequence[KVCache],
        mixed: bool,
        options: dict[str, Any],
    ) -> Array:
        """Run the layers one after the other."""
        shared = Shared(mixed)
        for layer, cache in zip(self.layers, caches, strict=True):
            tokens = layer._step(tokens, cache, shared, mixed, options)
        if self.norm is not None:
            tokens = self.norm(tokens, num_threads=options.get("num_threads"))
        return tokens

    def vjp(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        *,
        wanted: Iterable[str] = (),
        checkpoint: bool = False,
        **options: Unpack[DecoderVJP],
    ) -> tuple[Array, Pullback]:
        """Return the output of a call, and the pullback of its gradients.

        Parameters
        ----------
        x, context : array_like
            As in a call, except caches, which have no gradients.
        wanted, checkpoint
            As in `Encoder.vjp`; bias and sinks are the self-attention's.
        **options
            As in `DecoderLayer.vjp`.

        Returns
        -------
        output : ndarray, shape (L, E) or (B, L, E)
            With the same bits as a call.
        pullback : callable
            As that of `Encoder.vjp`; the gradient with respect to the context is the
            sum over the layers.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are packed, or not float32 or float64.

        Examples
        --------
        An encoder and a decoder, of which the gradient goes back to the encoder's
        words:

        >>> import numpy as np
        >>> from attnpy.blocks import Decoder, Encoder
        >>> rng = np.random.default_rng(0)
        >>> encoder = Encoder(2, 16, 4, 64, dtype=np.float64, rng=rng)
        >>> decoder = Decoder(2, 16, 4, 64, dtype=np.float64, rng=rng)
        >>> source, target = rng.standard_normal((9, 16)), rng.standard_normal((5, 16))
        >>> states, of_encoder = encoder.vjp(source)
        >>> output, of_decoder = decoder.vjp(target, states)
        >>> gradients = of_decoder(output)  # of half the sum of squares
        >>> of_encoder(gradients.context).x.shape
        (9, 16)
        """
        if _has_caches(context):
            raise TypeError("context: expected an array, as caches have no gradients")
        names = _vjp.wanted_names(wanted)
        if context is not None:
            context = _vjp.floating(context, "context")

        def run(layer: DecoderLayer, tokens: Array) -> tuple[Array, Pullback]:
            return layer.vjp(
                tokens, context, wanted=names, checkpoint=checkpoint, **options
            )

        return _stack.stack_vjp(
            self, _vjp.floating(x, "x"), run, options.get("num_threads")
        )


def _sequences_of_each(context: object, tokens: Array) -> int:
    """Return how many sequences of a batch, one after the other, have one context."""
    if not isinstance(context, KVCache) or tokens.ndim != 3:
        return 1
    several, rest = divmod(len(tokens), max(context.batch_size, 1))
    return several if context.batch_size > 1 and rest == 0 else 1


def _has_caches(context: Any) -> bool:
    """Tell whether a context is the result of `project_context`, not an array."""
    items = context if isinstance(context, (list, tuple)) else [context]
    return any(isinstance(item, KVCache) for item in items)
