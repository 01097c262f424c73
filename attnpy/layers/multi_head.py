"""Several heads of attention with their projections, and the output projection."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from attnpy import (
    _attnpy,
    _checks,
    _dtypes,
    _keywords,
    _parameters,
    _pickles,
    _repr,
    _vjp,
)
from attnpy._layer_vjp import OutputSide, Side, Sources, checked_wanted, layer_vjp
from attnpy._linear import normalized_heads, project_heads
from attnpy._options import (
    DIFFERENTIABLE,
    PASSED_ON,
    Heads,
    Norm,
    Norms,
    Options,
    Place,
    Projections,
)
from attnpy._options import Rotary as RotaryTables
from attnpy.cache import KVCache, commit
from attnpy.layers import _disentangled, _rotary
from attnpy.layers._keys import Keys, check_caches, check_sizes
from attnpy.layers._tokens import (
    PROJECTIONS,
    Tokens,
    check_value,
    context_tokens,
    ends,
    sequences,
)
from attnpy.layers._weights import Wanted
from attnpy.layers.self_attention import SelfAttention
from attnpy.norms import LayerNorm, RMSNorm, norm_arguments
from attnpy.positions import Disentangled, Rotary
from attnpy.positions.rotary import by_length

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from typing_extensions import Unpack

    from attnpy._typing import Array, Causal, HeadOptions, ScoreOptions, SeqOffsets
    from attnpy._vjp import Pullback

    class LayerVJPOptions(ScoreOptions, total=False):
        """The options of a layer's vjp that are those of its attention."""

        causal: Causal
        sinks: ArrayLike | None
        dropout: float
        dropout_seed: int | None

    class LayerCall(HeadOptions, total=False):
        """The options of a layer's call that do not change what is returned."""

        sinks: ArrayLike | None
        cache: KVCache | None
        rotary: Rotary | None
        relative: Disentangled | None
        residual: ArrayLike | None
        mixed: bool
        heads: ArrayLike | None
        average_weights: bool


@_keywords.answering
class MultiHeadAttention:
    r"""Several heads of attention side by side, and a projection of their results.

    Parameters
    ----------
    embed_dim : int
        `E`, the size of a token's embedding, and of the result.
    num_heads : int
        `H`, the number of query heads.
    head_dim : int, optional
        `D`, the size of a head's queries and keys; by default ``E // H``.
    value_head_dim : int, optional
        `Dv`, the size of a head's values; by default `D`.
    num_kv_heads : int, optional
        `Hk`, a divisor of `H`, by default `H`: each key and value head serves ``H //
        Hk`` query heads (grouped-query attention; with 1, multi-query attention).
    context_dim : int, optional
        `Ec`, the size of the tokens that keys and values come from; by default `E`.
        With another size the layer is for cross-attention only.
    value_dim : int, optional
        `Ev`, the size of the tokens that values come from, if they are another array;
        by default `Ec`.
    bias : bool, optional
        Add a bias to queries, keys, values and the result.
    qkv_bias, out_bias : bool, optional
        Add a bias to queries, keys and values; to the result. By default as `bias`.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Draws the initial values; by default ``numpy.random.default_rng()``, with
        different values in every run.

    Attributes
    ----------
    W_q : ndarray, shape (E, H * D)
    W_k : ndarray, shape (Ec, Hk * D)
    W_v : ndarray, shape (Ev, Hk * Dv)
    W_o : ndarray, shape (H * Dv, E)
        Initially uniform random numbers, see the notes. The columns of head 0 come
        first. Write to them, or assign trained arrays.
    b_q, b_k, b_v, b_o : ndarray, one number for each column of the matrix, or None
        0 at first; None without `qkv_bias`, `out_bias`.
    num_heads, num_kv_heads : int
        As given.
    q_norm, k_norm : attnpy.blocks.RMSNorm or LayerNorm, or None
        Initially None. Norms of queries and keys, before `rotary`: of each head, as in
        Qwen3, if their size is D; of all heads of a token together, as in OLMo 2, if it
        is H * D, or Hk * D for keys. A call raises a TypeError for anything else.
        `heads` does not have them.
    W_pq, W_pk : ndarray, shape (E, H * D), or None
    b_pq, b_pk : ndarray, shape (H * D,), or None
        Initially None. Projections of the embeddings of distances that a call has as
        `relative`: to queries, which meet the keys, and to keys, which meet the
        queries. Without a matrix they are those of the tokens, as in DeBERTa-v3.
        `heads` does not have them.
    sinks : ndarray, shape (H,), or None
        Initially None. Learned logits in the denominators of the heads' softmax, as
        `sinks` of `attnpy.attention`, for every call: gpt-oss has them. A call must not
        pass others. `heads` does not have them.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If a number is out of its range, H does not divide E where `head_dim` is left
        out, or Hk does not divide H.
    MemoryError
        If memory cannot hold the parameters; nothing has been allocated then.

    See Also
    --------
    attnpy.attention : the same without parameters.
    attnpy.cache.KVCache : keys and values kept between calls.

    Notes
    -----
    .. math::

        \operatorname{MultiHead}(X) =
        \operatorname{Concat}(Z_1, \dots, Z_H) W_o + b_o, \quad
        Z_i = \operatorname{Attention}(X W_i^q, X W_i^k, X W_i^v)

    from Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2, where
    :math:`W_i` are the columns of head i. Biases begin at 0, so that a new layer
    computes the formula without them. The tutorial notebook "Attention please!" has
    only a bias of the result: ``qkv_bias=False``. PyTorch's layer has all biases or
    none, like `bias` here. Its matrices are transposed, ``W_q = in_proj_weight[:E].T``,
    and its `kdim` and `vdim` are `context_dim` and `value_dim`.

    The initial values of a matrix are between -a and a with ``a = sqrt(6 / (fan_in +
    fan_out))``, from Glorot and Bengio, "Understanding the difficulty of training deep
    feedforward neural networks" (2010). The fans are those of all heads together; a key
    and value head counts once for each query head that it serves. So if ``H * D = E``,
    inputs with variance 1 have queries, keys, values and scores with variance 1, with
    any number of heads, grouped or not.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.layers import MultiHeadAttention
    >>> rng = np.random.default_rng(0)
    >>> mha = MultiHeadAttention(6, 2, rng=rng)
    >>> x = rng.standard_normal((5, 6), dtype=np.float32)  # five words
    >>> mha(x).shape
    (5, 6)
    >>> output, weights = mha(x, causal=True, return_weights=True)
    >>> weights.shape  # (H, Lq, Lk)
    (2, 5, 5)

    The heads one after the other:

    >>> Z = np.concatenate([head(x) for head in mha.heads], axis=-1)
    >>> np.allclose(Z @ mha.W_o + mha.b_o, mha(x), atol=1e-6)
    True

    Cross-attention, to three states of size 4:

    >>> cross = MultiHeadAttention(6, 2, context_dim=4, rng=rng)
    >>> states = rng.standard_normal((3, 4), dtype=np.float32)
    >>> cross(x, states).shape
    (5, 6)

    Values of size 3 that are looked up by those states:

    >>> look_up = MultiHeadAttention(6, 2, context_dim=4, value_dim=3, rng=rng)
    >>> look_up(x, states, rng.standard_normal((3, 3), dtype=np.float32)).shape
    (5, 6)

    Word by word, with a cache:

    >>> cache = mha.new_cache(1, capacity=5)
    >>> words = [mha(x[i : i + 1], causal=True, cache=cache) for i in range(5)]
    >>> np.allclose(np.concatenate(words), output, atol=1e-6)
    True
    """

    num_heads: int
    num_kv_heads: int
    W_q: Array
    W_k: Array
    W_v: Array
    W_o: Array
    b_q: Array | None
    b_k: Array | None
    b_v: Array | None
    b_o: Array | None
    W_pq: Array | None
    W_pk: Array | None
    b_pq: Array | None
    b_pk: Array | None
    q_norm: LayerNorm | RMSNorm | None
    k_norm: LayerNorm | RMSNorm | None
    sinks: Array | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        value_head_dim: int | None = None,
        num_kv_heads: int | None = None,
        context_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        out_bias: bool | None = None,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        count, uniform = _checks.count, _parameters.xavier_uniform
        n_rows = count(embed_dim, "embed_dim")
        n_of_key = count(n_rows if context_dim is None else context_dim, "context_dim")
        n_of_value = count(n_of_key if value_dim is None else value_dim, "value_dim")
        self.num_heads, self.num_kv_heads = _n_heads(num_heads, num_kv_heads)
        size = value_size = _head_size(n_rows, self.num_heads, head_dim)
        if value_head_dim is not None:
            value_size = count(value_head_dim, "value_head_dim")
        dtype, rng = _dtypes.floating(dtype), _checks.generator(rng)
        bias = _checks.flag(bias, "bias")
        qkv_bias = _checks.flag(bias if qkv_bias is None else qkv_bias, "qkv_bias")
        out_bias = _checks.flag(bias if out_bias is None else out_bias, "out_bias")
        n_queries, n_outputs = self.num_heads * size, self.num_heads * value_size
        n_keys, n_values = self.num_kv_heads * size, self.num_kv_heads * value_size
        _checks.memory(
            "MultiHeadAttention",
            dtype,
            (n_rows, n_queries),
            (n_of_key, n_keys),
            (n_of_value, n_values),
            (n_outputs, n_rows),
        )
        self.W_q = uniform(rng, (n_rows, n_queries), dtype)
        self.W_k = uniform(rng, (n_of_key, n_keys), dtype, n_queries)
        self.W_v = uniform(rng, (n_of_value, n_values), dtype, n_outputs)
        self.W_o = uniform(rng, (n_outputs, n_rows), dtype)
        self.b_q = _parameters.zeros(qkv_bias, n_queries, dtype)
        self.b_k = _parameters.zeros(qkv_bias, n_keys, dtype)
        self.b_v = _parameters.zeros(qkv_bias, n_values, dtype)
        self.b_o = _parameters.zeros(out_bias, n_rows, dtype)
        self.W_pq = self.W_pk = self.b_pq = self.b_pk = None
        self.q_norm = None
        self.k_norm = None
        self.sinks = None

    @property
    def head_dim(self) -> int:
        """`D`, from W_q."""
        return _columns(self.W_q, "W_q") // self.num_heads

    @property
    def value_head_dim(self) -> int:
        """`Dv`, from W_v."""
        return _columns(self.W_v, "W_v") // self.num_kv_heads

    @property
    def heads(self) -> list[SelfAttention]:
        """The `H` heads, each a layer that shares this layer's memory.

        Writing to ``mha.heads[i].W_q[...]`` changes ``mha.W_q``, and the other way
        round. Grouped query heads share their keys' and values' parameters too. The
        heads of a packed or quantised layer are read-only copies.
        """
        plain = copy.copy(self)
        for name in ("W_q", "W_k", "W_v"):
            setattr(plain, name, _parameters.as_array(getattr(self, name)))
        return [_head(plain, head) for head in range(self.num_heads)]

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        embed_dim, size, value_size = len(self.W_q), self.head_dim, self.value_head_dim
        context_dim, value_dim = len(self.W_k), len(self.W_v)
        grouped = self.num_kv_heads != self.num_heads
        return {
            "embed_dim": embed_dim,
            "num_heads": self.num_heads,
            "head_dim": size,
            "value_head_dim": value_size if value_size != size else None,
            "num_kv_heads": self.num_kv_heads if grouped else None,
            "context_dim": context_dim if context_dim != embed_dim else None,
            "value_dim": value_dim if value_dim != context_dim else None,
            **_repr.biases(qkv_bias=self.b_q, out_bias=self.b_o),
            "q_norm": self.q_norm,
            "k_norm": self.k_norm,
            "W_pq": None if self.W_pq is None else True,
            "W_pk": None if self.W_pk is None else True,
            "sinks": None if self.sinks is None else True,
        }

    __repr__ = _repr.shows(_shown)

    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | KVCache | None = ...,
        value: ArrayLike | None = ...,
        *,
        return_weights: Literal[False] = ...,
        **options: Unpack[LayerCall],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | KVCache | None = ...,
        value: ArrayLike | None = ...,
        *,
        return_weights: Literal[True],
        **options: Unpack[LayerCall],
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | KVCache | None = ...,
        value: ArrayLike | None = ...,
        *,
        return_weights: bool = ...,
        **options: Unpack[LayerCall],
    ) -> Array | tuple[Array, Array]: ...
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | KVCache | None = None,
        value: ArrayLike | None = None,
        *,
        q_offset: ArrayLike | None = None,
        kv_lengths: ArrayLike | None = None,
        seq_offsets: SeqOffsets | None = None,
        cache: KVCache | None = None,
        rotary: Rotary | None = None,
        relative: Disentangled | None = None,
        residual: ArrayLike | None = None,
        mixed: bool = False,
        return_weights: bool = False,
        heads: ArrayLike | None = None,
        average_weights: bool = False,
        **options: Any,
    ) -> Array | tuple[Array, Array]:
        """Let the tokens attend to each other, or to a context.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        context : array_like, shape (Lc, Ec) or (B, Lc, Ec), or KVCache, optional
            Cross-attention: the source of keys and values. A cache from
            `project_context` already contains them.
        value : array_like, shape (Lc, Ev) or (B, Lc, Ev), optional
            The source of the values, if it is not `context`, which then gives only the
            keys: PyTorch's ``mha(query, key, value)``.
        q_offset : int or array_like of int, shape (B,), optional
            The position of the first token for `causal` and `window`. In self-attention
            the default is that of its own key: 0, or each sequence's length in the
            cache. In cross-attention it is as in `attnpy.attention`.
        kv_lengths : int or array_like of int, shape (B,), optional
            How many of the keys exist: those of the tokens of `x` (of `context` in
            cross-attention). No token attends to the others, and they do not go into
            the cache. The output rows of tokens without a key have no meaning;
            `lengths` of models leave such tokens out.
        seq_offsets : array_like of int, shape (n + 1,), or a pair of them, optional
            Packed sequences, with no padding anywhere: `x`, (T, E), has `n` of them end
            to end, as in `attnpy.attention`, with the same bits as each alone.
            Positions count from the beginning of a token's own sequence. Sequence i
            goes into sequence i of a cache, whose batch is `n`. Pass a pair if the
            context is packed too; None in it means (n, L, E).
        cache : KVCache, optional
            Append the keys and values of `x`, and attend to everything in the cache.
            With ``causal=True``, and a cache of the keys' dtype, a sequence gives the
            same bits in one call, in chunks, and token by token. If x has no axis `B`,
            the cache's batch is 1.
        rotary : attnpy.positions.Rotary, optional
            Rotate queries and keys by their positions; keys are rotated before they go
            into the cache. Frequencies that depend on the length use the length of a
            sequence after the call.
        relative : attnpy.positions.Disentangled, optional
            Embeddings of distances, whose products with queries and keys are added to
            the scores. `scale` is that of these products, too, and by default
            ``(n * D) ** -0.5`` for n kinds of products. The layer must have as many
            heads for keys as for queries, and no norms of them.
        residual : array_like, shape of the output, optional
            Added to the output, in its dtype.
        mixed : bool, optional
            For 16-bit parameters: queries, keys, values and the heads' results have
            their dtype, but the output is in float32, and `x` may be. CPUs with
            bfloat16 products round such an `x` first, unless `attnpy.set_portable` says
            otherwise.
        return_weights : bool, optional
            Return the weights as well. No bit of the output depends on it.
        heads : int or sequence of int, optional
            Return the weights of these heads, in this order; negative numbers count
            from the end. Only their weights, or those of their groups, take memory.
        average_weights : bool, optional
            Return their mean over the heads instead.
        **options
            As in `attnpy.attention`: `mask` and `bias`, which broadcast to (H, L, Lk)
            or (B, H, L, Lk): booleans, True where the token may attend, and numbers to
            add to the scores. `Lk` is the number of keys: `L`, `Lc`, or the longest
            length in the cache, including `x`. `causal` and `window`, which hide later
            or distant tokens; `scale`, `softcap`, `sinks`, `num_threads`.

        Returns
        -------
        output : ndarray, shape (L, E) or (B, L, E)
            In the promoted dtype of x, the context and the parameters; see `mixed`.
        weights : ndarray, shape (H, L, Lk) or (B, H, L, Lk)
            With `return_weights`; with `heads` only theirs, and with `average_weights`
            without the axis `H`.

        Raises
        ------
        TypeError
            If an argument has the wrong kind or dtype.
        ValueError
            If shapes do not fit together, a number is out of its range, the cache is
            full, or arguments exclude each other: `context` and `cache`, `context` and
            `rotary`, `kv_lengths` or `value` and a cache as `context`, `relative` and
            any of `context`, `cache` and `rotary`. The cache has not changed after an
            error.
        """
        _keywords.refuse(options, PASSED_ON, "MultiHeadAttention()")
        check_caches(context, cache, kv_lengths)
        check_value(value, context, self.W_k, self.W_v)
        self._check_rotary(rotary, context)
        wanted = Wanted.of(
            return_weights, heads, average_weights, self.num_heads, self.num_kv_heads
        )
        if residual is not None:
            residual = _checks.array(residual, "residual")
        kv_cache = context if isinstance(context, KVCache) else cache
        tokens = Tokens.of(x, seq_offsets, context, kv_cache)
        norms = self._norms(None)  # judges what they are
        if relative is not None:
            _check_relative(relative, context=context, cache=cache, rotary=rotary)
            places = {"q_offset": q_offset, "kv_lengths": kv_lengths}
            told = {**self._with_sinks(options), **places}
            if q_offset is None:
                told["q_offset"] = 0
            mixed = _checks.flag(mixed, "mixed")
            result = _disentangled.attend(
                self, tokens, relative, residual, mixed, wanted, told
            )
            return wanted.answer(result, False)
        place = self._place(
            tokens, context, cache, q_offset, kv_lengths, rotary, wanted.any, options
        )
        if tokens.single and residual is not None:
            residual = residual[np.newaxis]
        result = self._computed(
            tokens.array,
            None if isinstance(context, KVCache) else context,
            Heads(self.num_heads, self.num_kv_heads, wanted.groups),
            self._projections(isinstance(context, KVCache), residual, mixed, value),
            norms,
            place,
        )
        answer = wanted.answer(result, tokens.single)
        if cache is not None and place.reserved is not None:
            commit(cache, place.reserved)  # last: no error comes after it
        return answer

    def _computed(
        self,
        x: Array,
        context: ArrayLike | None,
        heads: Heads,
        projections: Projections,
        norms: Norms | None,
        place: Place,
    ) -> Any:
        """Return the result of all steps after the checks of a call."""
        return _attnpy.layer(
            *(x, context, heads, projections, norms),
            *(place.rotary, place.cache, place.options),
        )

    def _place(
        self,
        tokens: Tokens,
        context: ArrayLike | KVCache | None,
        cache: KVCache | None,
        q_offset: ArrayLike | None,
        kv_lengths: ArrayLike | None,
        rotary: Rotary | None,
        return_weights: bool,
        options: Mapping[str, Any],
    ) -> Place:
        """Return where the tokens of a call stand, and make room for their keys."""
        kv_cache = context if isinstance(context, KVCache) else cache
        if kv_cache is not None:
            sizes = self.num_kv_heads, self.head_dim, self.value_head_dim
            name = "context" if cache is None else "cache"
            check_sizes(kv_cache, name, tokens, sizes)
        options = self._with_sinks(options)
        keys = Keys.of(tokens, context, cache, kv_lengths, options)
        if context is None and q_offset is None:
            q_offset = 0 if keys.past is None else keys.past
        lengths, grown = keys.lengths, None
        if rotary is not None and by_length(rotary):
            lengths = grown = ends(lengths, tokens.array, tokens.starts, cache)
        tables = self._rotary_tables(
            rotary, tokens.array, tokens.starts, q_offset, keys.past, grown
        )
        all_options = Options(
            q_offset=q_offset,
            kv_lengths=lengths,
            seq_offsets=(tokens.starts, tokens.starts_of_keys),
            page_table=keys.page_table,
            return_weights=return_weights,
            **options,
        )
        return Place(keys.rows, tables, all_options, keys.past, keys.reserved)

    def vjp(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        value: ArrayLike | None = None,
        *,
        q_offset: ArrayLike | None = None,
        kv_lengths: ArrayLike | None = None,
        seq_offsets: SeqOffsets | None = None,
        rotary: Rotary | None = None,
        residual: ArrayLike | None = None,
        wanted: Iterable[str] = (),
        checkpoint: bool = False,
        **options: Unpack[LayerVJPOptions],
    ) -> tuple[Array, Pullback]:
        r"""Return the output of a call, and the pullback of its gradients.

        Parameters
        ----------
        x, context, value
            As in a call, except caches, which have no gradients.
        q_offset, kv_lengths, seq_offsets, rotary, residual
            As in a call.
        wanted : iterable of {"bias", "sinks"}, optional
            Options whose gradients to return as well. The gradient of a bias takes as
            much memory as the bias.
        checkpoint : bool, optional
            Keep only the arguments for the pullback, which then computes again what it
            needs: a third more work, in exchange for memory (Chen et al., "Training
            Deep Nets with Sublinear Memory Cost", 2016).
        **options
            As in a call, `mask` and so on; and `dropout` and `dropout_seed`, as in
            `attnpy.attention`.

        Returns
        -------
        output : ndarray, shape (L, E) or (B, L, E)
            With the same bits as a call.
        pullback : callable
            Takes the gradient with respect to the output, and returns an
            `attnpy.layers.LayerGradients` of arrays with the shapes and dtypes of the
            arguments and parameters. The gradient with respect to `residual` is that of
            the output. The pullback keeps the arguments, queries, keys, values (before
            norms, too), the heads' results, and the LSE; it may be called again. It
            reads arguments and parameters in place: do not write to them before its
            last call. You may write to the output.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are packed, or not float32 or float64. The
            pullback raises one for a gradient of another shape.

        Notes
        -----
        With :math:`Y = \operatorname{Concat}(Z_1, \dots, Z_H) W_o + b_o` and the
        gradient :math:`G` of :math:`Y`, the gradients of the heads are the columns of
        :math:`G W_o^T`, and `attnpy.attention_vjp` turns them into those of queries,
        keys and values; with these, as for every product :math:`Q = X W_q + b_q`,

        .. math::

            dX = dQ \, W_q^T, \quad dW_q = X^T dQ, \quad db_q = \sum_i dQ_i

        Sums over tokens are in a fixed order, so the bits are the same for any number
        of threads.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.layers import MultiHeadAttention
        >>> rng = np.random.default_rng(0)
        >>> mha = MultiHeadAttention(6, 2, dtype=np.float64, rng=rng)
        >>> x = rng.standard_normal((5, 6))
        >>> output, pullback = mha.vjp(x, causal=True)
        >>> gradients = pullback(output)  # of half the sum of squares
        >>> gradients.x.shape, gradients.parameters["W_q"].shape
        ((5, 6), (6, 6))

        A small step against the gradient makes the squares smaller:

        >>> for name, array in mha.parameters().items():
        ...     array -= 0.01 * gradients.parameters[name]
        >>> bool(np.square(mha(x, causal=True)).sum() < np.square(output).sum())
        True
        """
        _keywords.refuse(options, DIFFERENTIABLE, "MultiHeadAttention.vjp()")
        _vjp.check_trainable(self, (*PROJECTIONS, "W_o", "b_o", "sinks"))
        if isinstance(context, KVCache):
            raise TypeError(
                "context: expected an array, got a KVCache, which has no gradients"
            )
        check_value(value, context, self.W_k, self.W_v)
        self._check_rotary(rotary, context)
        self._norms(None)  # judges what they are
        names = checked_wanted(wanted, options)
        sources = Sources.of(x, context, value)
        tokens = sources.tokens
        starts, of_keys = sequences(seq_offsets, tokens.shape, context, None)
        if context is None and q_offset is None:
            q_offset = 0
        grown = None
        if rotary is not None and by_length(rotary):
            kv_lengths = grown = ends(kv_lengths, tokens, starts, None)
        q_cos_sin = k_cos_sin = None
        tables = self._rotary_tables(rotary, tokens, starts, q_offset, None, grown)
        if tables is not None:
            q_cos_sin, k_cos_sin = tables.q_cos_sin, tables.k_cos_sin
        swapped = rotary is not None and rotary.interleaved
        n_kv_heads = self.num_kv_heads
        return layer_vjp(
            self,
            sources,
            (
                Side(
                    self.W_q, self.b_q, self.num_heads, self.q_norm, q_cos_sin, swapped
                ),
                Side(self.W_k, self.b_k, n_kv_heads, self.k_norm, k_cos_sin, swapped),
                self._value_side(),
            ),
            OutputSide(self.W_o, self.b_o, residual),
            {
                "q_offset": q_offset,
                "kv_lengths": kv_lengths,
                "seq_offsets": None if starts is None else (starts, of_keys),
                **self._with_sinks(options),
            },
            names,
            checkpoint,
        )

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

        Examples
        --------
        >>> from attnpy.layers import MultiHeadAttention
        >>> MultiHeadAttention(6, 2).new_cache(1, 10).key.shape  # (B, Hk, Lk, D)
        (1, 2, 0, 3)
        """
        return KVCache(
            batch_size,
            self.num_kv_heads,
            capacity,
            self.head_dim,
            self.value_head_dim,
            dtype=self.W_k.dtype if dtype is None else dtype,
            growable=growable,
        )

    def project_context(
        self,
        context: ArrayLike,
        value: ArrayLike | None = None,
        *,
        kv_lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> KVCache:
        """Compute the keys and values of a context once, for many calls.

        Parameters
        ----------
        context : array_like, shape (Lc, Ec) or (B, Lc, Ec)
        value : array_like, shape (Lc, Ev) or (B, Lc, Ev), optional
            The source of the values, if it is not `context`.
        kv_lengths : int or array_like of int, shape (B,), optional
            How many of the keys exist, as in a call; by default all.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        KVCache
            A full cache. Passed as `context` to a call, it gives the same output as the
            context with these `kv_lengths`. With a batch of 1 it serves any batch.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or dtype, or shapes do not fit together.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.layers import MultiHeadAttention
        >>> rng = np.random.default_rng(0)
        >>> mha = MultiHeadAttention(6, 2, rng=rng)
        >>> x, states = rng.standard_normal((4, 6)), rng.standard_normal((9, 6))
        >>> memory = mha.project_context(states)
        >>> np.allclose(mha(x, memory), mha(x, states))
        True
        """
        check_value(value, context, self.W_k, self.W_v)
        tokens = context_tokens(context, "context", self.W_k)
        values = context_tokens(context if value is None else value, "value", self.W_v)
        if values.shape[:-1] != tokens.shape[:-1]:
            raise ValueError(
                f"value: expected as many tokens as the context, {tokens.shape[:-1]}, "
                f"got {values.shape[:-1]}"
            )
        n_heads = self.num_kv_heads
        with _checks.renamed(x="context"):
            key = project_heads(tokens, self.W_k, self.b_k, n_heads, num_threads)
        key = normalized_heads(self.k_norm, key, num_threads)
        with _checks.renamed(x="context" if value is None else "value"):
            projected = project_heads(values, self.W_v, self.b_v, n_heads, num_threads)
        batch_size, n_heads, n_tokens, size = key.shape
        with _checks.renamed(lengths="kv_lengths"):
            return KVCache(
                batch_size,
                n_heads,
                n_tokens,
                size,
                projected.shape[-1],
                key=key,
                value=projected,
                lengths=n_tokens if kv_lengths is None else kv_lengths,
            )

    def _projections(
        self,
        projected: bool,
        residual: ArrayLike | None,
        mixed: bool,
        value: ArrayLike | None,
    ) -> Projections:
        """Return the matrices; those of keys and values only if they are needed."""
        return Projections(
            self.W_q,
            self.b_q,
            None if projected else self.W_k,
            None if projected else self.b_k,
            None if projected else self.W_v,
            None if projected else self.b_v,
            self.W_o,
            self.b_o,
            residual,
            mixed,
            value,
        )

    def _value_side(self) -> Side:
        """Return how values are made, for gradients."""
        return Side(self.W_v, self.b_v, self.num_kv_heads)

    def _norms(self, of_tokens: Norm | None) -> Norms | None:
        q_norm, k_norm = self.q_norm, self.k_norm
        if q_norm is None and k_norm is None and of_tokens is None:
            return None
        return Norms(
            None if q_norm is None else norm_arguments(q_norm, "q_norm"),
            None if k_norm is None else norm_arguments(k_norm, "k_norm"),
            of_tokens,
        )

    def _with_sinks(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of a call with the layer's sinks, if it has some."""
        if self.sinks is None:
            return options
        if options.get("sinks") is not None:
            raise ValueError(
                "sinks: expected None, as the layer has its own, got others"
            )
        return {**options, "sinks": self.sinks}

    def _rotary_tables(
        self,
        rotary: Rotary | None,
        tokens: Array,
        starts: NDArray[np.int64] | None,
        q_offset: ArrayLike | None,
        past: NDArray[np.int64] | None,
        grown: NDArray[np.int64] | None,
    ) -> RotaryTables | None:
        """Return the tables of queries and keys; the first token is there, or at 0."""
        if rotary is None:
            return None
        return _rotary.tables(
            rotary,
            tokens,
            starts,
            (0 if q_offset is None else q_offset, 0 if past is None else past),
            grown,
            (
                _rotary.arithmetic(tokens, self.W_q, self.q_norm),
                _rotary.arithmetic(tokens, self.W_k, self.k_norm),
            ),
        )

    def _check_rotary(self, rotary: Rotary | None, context: object) -> None:
        if rotary is None:
            return
        if not isinstance(rotary, Rotary):
            raise TypeError(f"rotary: expected a Rotary, got {type(rotary).__name__}")
        if context is not None:
            raise ValueError(
                "rotary: expected None with a context, whose positions are not those "
                "of x"
            )
        if rotary.head_dim != self.head_dim:
            raise ValueError(
                f"rotary: expected head_dim = {self.head_dim} as the layer's, "
                f"got {rotary.head_dim}"
            )


def _check_relative(relative: object, **others: object) -> None:
    """Require positions, and none of the options that they exclude."""
    if not isinstance(relative, Disentangled):
        raise TypeError(
            f"relative: expected a Disentangled, got {type(relative).__name__}"
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"relative: expected None with {name}, got positions")


def place_in(
    mha: MultiHeadAttention, cache: KVCache | None, x: Array, options: dict[str, Any]
) -> Place:
    """Return the place of tokens, behind those of a cache after making room.

    `options` are those of a call. With a cache tokens are (B, L, E).
    """
    told = dict(options)
    rotary = told.pop("rotary", None)
    q_offset, lengths = told.pop("q_offset", None), told.pop("kv_lengths", None)
    mha._check_rotary(rotary, None)
    mha._norms(None)  # judges what they are
    tokens = Tokens.of(x, told.pop("seq_offsets", None), None, cache)
    return mha._place(tokens, None, cache, q_offset, lengths, rotary, False, told)


def step(
    mha: MultiHeadAttention,
    x: Array,
    norm: Norm | None,
    residual: Array | None,
    cache: KVCache,
    place: Place,
    mixed: bool,
) -> Array:
    """Do what a call does for tokens (B, L, E) after a norm, in such a place."""
    output = _attnpy.layer(
        x,
        None,
        Heads(mha.num_heads, mha.num_kv_heads),
        mha._projections(False, residual, mixed, None),
        mha._norms(norm),
        place.rotary,
        place.cache,
        place.options,
    )
    assert isinstance(output, np.ndarray)
    if place.reserved is not None:
        commit(cache, place.reserved)
    return output


def _head(mha: MultiHeadAttention, head: int) -> SelfAttention:
    """Return a head whose parameters are views of its columns."""
    layer = SelfAttention.__new__(SelfAttention)
    kv_head = head // (mha.num_heads // mha.num_kv_heads)
    for letter, i, size in (
        ("q", head, mha.head_dim),
        ("k", kv_head, mha.head_dim),
        ("v", kv_head, mha.value_head_dim),
    ):
        columns = slice(i * size, (i + 1) * size)
        bias = getattr(mha, f"b_{letter}")
        setattr(layer, f"W_{letter}", getattr(mha, f"W_{letter}")[:, columns])
        setattr(layer, f"b_{letter}", None if bias is None else bias[columns])
    return layer


def _n_heads(num_heads: int, num_kv_heads: int | None) -> tuple[int, int]:
    n_heads = n_kv_heads = _checks.count(num_heads, "num_heads")
    if num_kv_heads is not None:
        n_kv_heads = _checks.count(num_kv_heads, "num_kv_heads")
    if n_heads % n_kv_heads:
        raise ValueError(
            f"num_kv_heads: expected a divisor of num_heads = {n_heads}, "
            f"got {n_kv_heads}"
        )
    return n_heads, n_kv_heads


def _head_size(embed_dim: int, num_heads: int, head_dim: int | None) -> int:
    if head_dim is not None:
        return _checks.count(head_dim, "head_dim")
    if embed_dim % num_heads:
        raise ValueError(
            f"num_heads: expected a divisor of embed_dim = {embed_dim}, or head_dim to "
            f"be given, got {num_heads}"
        )
    return embed_dim // num_heads


def _columns(weight: Array, name: str) -> int:
    """Return how many columns a matrix has."""
    shape = getattr(weight, "shape", None) or np.shape(weight)
    if len(shape) != 2:
        raise ValueError(f"{name}: expected a matrix, got shape {shape}")
    return int(shape[1])
