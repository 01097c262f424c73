"""BERT's encoder and its relatives, the models behind most sentence embeddings."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

import numpy as np

from attnpy import (
    _checks,
    _dtypes,
    _keywords,
    _parameters,
    _pickles,
    _repr,
    _vjp,
    positions,
)
from attnpy._linear import linear, linear_vjp
from attnpy._vjp import LayerGradients
from attnpy.blocks import (
    Encoder,
    LayerNorm,
    ModelOutput,
    _dropout,
    _stack,
    activation_vjp,
)
from attnpy.blocks.feed_forward import PLAIN
from attnpy.models import (
    _distances,
    _embedding,
    _gguf,
    _hf_config,
    _parts,
    _pretrained,
    _saving,
)
from attnpy.models._heads import TokenHead
from attnpy.models._normed_attention import NormedAttention
from attnpy.positions.relative import by_distance

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from types import EllipsisType

    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from typing_extensions import Unpack

    from attnpy._families.declaration import Declaration
    from attnpy._typing import (
        Activation,
        Array,
        DistanceTerm,
        NormKind,
        PlainActivation,
        PoolerActivation,
        TokenPooling,
        Window,
    )
    from attnpy._vjp import Pullback
    from attnpy.blocks._stack import Choice
    from attnpy.checkpoints import GgufFile
    from attnpy.positions import Rotary

    class BertCall(TypedDict, total=False):
        """The options of a call."""

        lengths: ArrayLike | None
        token_mask: ArrayLike | None
        token_types: ArrayLike | None
        num_threads: int | None

    class BertChosenCall(BertCall, Choice, total=False):
        """The options of a call that returns more than the vectors."""


POOLINGS = "cls", "mean", "late"
TABLES = "token_embedding", "position_embedding", "segment_embedding"
UNMASKED = 0.88  # the share of tokens that were not masked when ESM was trained


@_keywords.answering
class BertEncoder:
    """BERT: a vector for each token of a text, and scores of text or tokens if wanted.

    RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, MPNet, ELECTRA, ALBERT and DeBERTa
    differ only in positions, types and embeddings; ModernBERT, NomicBERT and GTE also
    in networks with a gate, missing biases and the place of norms; EuroBERT also in
    the kind of norms and in heads that share keys; jina-embeddings-v2 has biases by
    distance and networks with a gate, and that for code also norms of queries and keys.

    Parameters
    ----------
    num_layers, embed_dim, num_heads, hidden_dim : int
        As in `attnpy.blocks.Encoder`.
    vocab_size : int
        `V`, the number of different tokens.
    head_dim, num_kv_heads : int, optional
        As in `attnpy.blocks.Encoder`.
    max_length : int, optional
        The number of positions; with `rotary` or `alibi`, for how many tokens the model
        is made.
    num_types : int, optional
        The number of token types, which tell two texts in one sequence apart; 0 for a
        model without types.
    activation : str, optional
        Of the feed-forward networks, as in `attnpy.blocks.FeedForward`.
    norm : {"layer", "rms"}, optional
        Of the layers and after them, as in `attnpy.blocks.Encoder`.
    eps : float, optional
        Of the norms.
    embedding_norm : bool, optional
        False leaves out the norm of the embeddings: EuroBERT.
    rotary : attnpy.positions.Rotary, or list of Rotary or None, optional
        Rotary positions instead of a table. A list has one for each layer.
    window : tuple of (int or None, int or None), or list of tuple or None, optional
        As in `attnpy.attention`; a list has that of each layer.
    scale : float, optional
        Of the scores of attention, as in `attnpy.attention`: T5 has 1.
    norm_first : bool, optional
        As in `attnpy.blocks.EncoderLayer`.
    first_norm : bool, optional
        False leaves out the first norm of the first layer, whose input is normalized
        already: ModernBERT. It needs `norm_first`.
    qk_norm : bool or "all heads", optional
        Normalize queries and keys before the scores: each head, or all heads of a token
        together. The norms are of the kind of `norm`.
    attention_norm : bool, optional
        Normalize the sum of attention and its tokens first, before this is added to
        the tokens once more.
    norm_bias, qkv_bias, out_bias, feed_forward_bias : bool, optional
        Have biases in norms, for queries, keys and values, for the result of attention,
        and in the feed-forward networks.
    hidden_bias : bool, optional
        Have biases of the networks' hidden numbers; by default as `feed_forward_bias`.
    pooler : bool, optional
        Add the matrix that turns the vector of the first token into that of the text:
        `pool`.
    pooling : {"cls", "mean", "late"}, optional
        What `pool` takes: the vector of the first token, or the mean of all. "late"
        takes each token's, and the mean after the activation.
    pooler_activation : str, optional
        What `pool` does to each number of that vector: an activation without a gate.
    pooler_norm : bool, optional
        Add a norm after that.
    padding_id : int, optional
        Number positions as RoBERTa does: they begin at ``padding_id + 1``, and a token
        with this id, wherever it is, has the position `padding_id` and is not counted.
        By default positions begin at 0, whatever the tokens are.
    masked_token : int, optional
        A token whose embedding counts as 0. The embeddings of a text's other tokens are
        multiplied by 0.88, and divided by their share of the text: ESM-2, which has
        learned from texts of which 12 % were masked.
    num_buckets : int, optional
        Add MPNet's biases by distance, with this even number of buckets: those of
        `attnpy.positions.relative_bias`, the same in all layers.
    alibi : bool, optional
        Have the biases of `attnpy.positions.alibi_bias` in all layers instead of a
        table of positions: jina-embeddings-v2.
    position_table : bool, optional
        False leaves out the table of positions, as DeBERTa does.
    num_distances : int, optional
        Add DeBERTa's embeddings of distances, this even number of them: those of
        `attnpy.positions.Disentangled`, the same in all layers.
    max_distance : int, optional
        As there.
    distance_terms : sequence of {"c2p", "p2c"}, optional
        Which products of these embeddings are added to the scores.
    distance_norm : bool, optional
        Add a norm of these embeddings.
    distance_weights : bool, optional
        Layers have matrices of their own for these embeddings. By default they have
        those of queries and keys.
    key_bias : bool, optional
        Have biases for keys, and for embeddings of distances as keys, where queries
        have some.
    embedding_dim : int, optional
        `D`, the size of the embeddings, which a matrix then takes to `E`, as ELECTRA
        and ALBERT have it. By default they have the size `E`, and there is none.
    shared : bool, optional
        Have one layer, which is run `num_layers` times: ALBERT.
    num_labels : int, optional
        Add a matrix for this many scores of a text: `classify`. It needs the pooler.
    num_token_labels : int, optional
        Add a head for this many scores of each token: `classify_tokens`.
    token_dense : bool, optional
        That head begins with a matrix, an activation and a norm: ModernBERT.
    masked_words : bool, optional
        Add a head for the scores of all words in the place of a token: `logits`.
    word_dense : bool, optional
        That head begins with a matrix, an activation and a norm.
    word_tied : bool, optional
        That head ends with products with the embeddings. False: with a matrix of its
        own.
    head_activation : str, optional
        Of the heads of tokens and words.
    head_bias : bool, optional
        Have a bias in the first matrix of these heads, and of the pooler.
    word_bias : bool, optional
        Have a bias of each word's score.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Draws the initial values; by default ``numpy.random.default_rng()``, with
        different values in every run.

    Attributes
    ----------
    token_embedding : ndarray, shape (V, D)
    position_embedding : ndarray, shape (max_length, D), or None
        None with `rotary` or `alibi`, or without `position_table`.
    segment_embedding : ndarray, shape (num_types, D), or None
        Initially normal random numbers with standard deviation 0.02; None without
        types. `D` is `embedding_dim`, or `E` without it.
    norm : attnpy.blocks.LayerNorm or None
        Of the sum of the three; None without `embedding_norm`.
    projection_weight, projection_bias : ndarray, shape (D, E) and (E,), or None
        What makes vectors of the size of the layers; None without `embedding_dim`.
    embed_dim : int
        `E`.
    config : dict or None
        The configuration of `from_config`, which `save_pretrained` writes.
    encoder : attnpy.blocks.Encoder
    relative_bias : ndarray, shape (num_buckets, H), or None
        None without `num_buckets`.
    distance_embedding : ndarray, shape (num_distances, E), or None
    distance_norm : attnpy.blocks.LayerNorm or None
        None without `num_distances`.
    max_distance, distance_terms
        As given.
    padding_id, masked_token : int or None
        As given.
    pooler_weight, pooler_bias : ndarray, shape (E, E) and (E,), or None
        None without `pooler`.
    pooler_norm : attnpy.blocks.LayerNorm or None
    max_length : int
    alibi, rotary, window, scale, pooling, pooler_activation
        As given.
    token_head, word_head : object or None
        The heads of `classify_tokens` and `logits`; None without.
    classifier_weight, classifier_bias : ndarray
        Of shape (E, num_labels) and (num_labels,).
        None without `num_labels`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters.

    Notes
    -----
    From Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for
    Language Understanding" (2019); the layers are those of Vaswani et al. (2017) with
    `gelu`. With the weights of MiniLM (Wang et al., 2020) the mean of a sentence's
    vectors says what it is about (Reimers and Gurevych, "Sentence-BERT", 2019). The
    others: Liu et al., "RoBERTa" (2019); Conneau et al., "Unsupervised Cross-lingual
    Representation Learning at Scale" (2020); Sanh et al., "DistilBERT" (2019); Song et
    al., "MPNet: Masked and Permuted Pre-training for Language Understanding" (2020);
    Clark et al., "ELECTRA" (2020); Lan et al., "ALBERT" (2020); Warner et al.,
    "Smarter, Better, Faster, Longer" (2024), ModernBERT; He et al., "DeBERTaV3" (2023);
    Nussbaum et al., "Nomic Embed" (2024); Zhang et al., "mGTE" (2024); Boizard et al.,
    "EuroBERT" (2025); Günther et al., "Jina Embeddings 2" (2023); Lin et al.,
    "Evolutionary-scale Prediction of Atomic-level Protein Structure with a Language
    Model" (2023), ESM-2.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import BertEncoder
    >>> rng = np.random.default_rng(0)
    >>> model = BertEncoder(2, 16, 4, 64, vocab_size=100, rng=rng)
    >>> model([2, 71, 82, 3]).shape
    (4, 16)

    Two texts in one batch, the second one shorter:

    >>> states = model([[2, 71, 82, 3], [2, 71, 3, 0]], lengths=[4, 3])
    >>> bool((states[1, :3] == model([2, 71, 3])).all())
    True

    What its heads look at:

    >>> model([2, 71, 82, 3], return_weights=True).weights.shape  # (layers, H, L, L)
    (2, 4, 4, 4)

    A score for each of two texts, as a cross-encoder gives them:

    >>> model = BertEncoder(
    ...     2, 16, 4, 64, vocab_size=100, pooler=True, num_labels=1, rng=rng
    ... )
    >>> model.classify(model([[2, 71, 82, 3], [2, 71, 3, 0]], lengths=[4, 3])).shape
    (2, 1)
    """

    token_embedding: Array
    position_embedding: Array | None
    segment_embedding: Array | None
    norm: LayerNorm | None
    projection_weight: Array | None
    projection_bias: Array | None
    encoder: Encoder
    relative_bias: Array | None
    distance_embedding: Array | None
    distance_norm: LayerNorm | None
    max_distance: int | None
    distance_terms: tuple[str, ...]
    padding_id: int | None
    masked_token: int | None
    pooler_weight: Array | None
    pooler_bias: Array | None
    pooler_activation: str
    pooler_norm: LayerNorm | None
    pooling: str
    classifier_weight: Array | None
    classifier_bias: Array | None
    token_head: TokenHead | None
    word_head: TokenHead | None
    max_length: int
    alibi: bool
    rotary: Rotary | list[Rotary] | list[Rotary | None] | None
    window: Window | list[Window | None] | None
    scale: float | None
    config: dict[str, Any] | None

    def __init__(
        self,
        num_layers: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        vocab_size: int,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        max_length: int = 512,
        num_types: int = 2,
        activation: Activation = "gelu",
        norm: NormKind = "layer",
        eps: float = 1e-12,
        embedding_norm: bool = True,
        rotary: Rotary | list[Rotary] | list[Rotary | None] | None = None,
        window: Window | list[Window | None] | None = None,
        scale: float | None = None,
        norm_first: bool = False,
        first_norm: bool = True,
        qk_norm: bool | Literal["all heads"] = False,
        attention_norm: bool = False,
        norm_bias: bool = True,
        qkv_bias: bool = True,
        out_bias: bool = True,
        feed_forward_bias: bool = True,
        hidden_bias: bool | None = None,
        pooler: bool = False,
        pooling: TokenPooling = "cls",
        pooler_activation: PoolerActivation = "tanh",
        pooler_norm: bool = False,
        padding_id: int | None = None,
        masked_token: int | None = None,
        num_buckets: int | None = None,
        alibi: bool = False,
        position_table: bool = True,
        num_distances: int | None = None,
        max_distance: int | None = None,
        distance_terms: Sequence[DistanceTerm] = ("c2p", "p2c"),
        distance_norm: bool = False,
        distance_weights: bool = False,
        key_bias: bool = True,
        embedding_dim: int | None = None,
        shared: bool = False,
        num_labels: int | None = None,
        num_token_labels: int | None = None,
        token_dense: bool = False,
        masked_words: bool = False,
        word_dense: bool = True,
        word_tied: bool = True,
        head_activation: PlainActivation = "gelu",
        head_bias: bool = True,
        word_bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        if num_labels is not None and not _checks.flag(pooler, "pooler"):
            raise ValueError("pooler: expected True with num_labels, got False")
        rng = _checks.generator(rng)
        width = embed_dim
        if embedding_dim is not None:
            width = _checks.count(embedding_dim, "embedding_dim")

        def table(n_rows: int, name: str, dim: int = width) -> Array:
            return _embedding.table(rng, n_rows, name, dim, dtype)

        self.token_embedding = table(vocab_size, "vocab_size")
        self.max_length = _checks.count(max_length, "max_length")
        self.position_embedding = None
        self.alibi = _checks.flag(alibi, "alibi")
        if self.alibi and (rotary is not None or num_buckets is not None):
            raise ValueError(
                "alibi: expected False with rotary or num_buckets, got True"
            )
        has_table = _checks.flag(position_table, "position_table") and not self.alibi
        if rotary is None and has_table:
            self.position_embedding = table(max_length, "max_length")
        elif padding_id is not None:
            raise ValueError(
                "padding_id: expected None with rotary or alibi, or without "
                "position_table, got a number"
            )
        self.segment_embedding = None
        if _checks.size(num_types, "num_types") > 0:
            self.segment_embedding = table(num_types, "num_types")
        norm_bias = _checks.flag(norm_bias, "norm_bias")
        self.norm = None
        if _checks.flag(embedding_norm, "embedding_norm"):
            self.norm = LayerNorm(width, eps=eps, bias=norm_bias, dtype=dtype)
        self.projection_weight = self.projection_bias = None
        if embedding_dim is not None:
            self.projection_weight = table(width, "embedding_dim", embed_dim)
            self.projection_bias = self._zeros(embed_dim)
        self.encoder = Encoder(
            num_layers,
            embed_dim,
            num_heads,
            hidden_dim,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            shared=shared,
            norm_first=norm_first,
            norm=norm,
            activation=activation,
            bias=True,
            eps=eps,
            dtype=dtype,
            rng=rng,
        )
        self._set_biases(qkv_bias, out_bias, feed_forward_bias, hidden_bias)
        self.max_distance = max_distance
        terms = _checks.items(distance_terms, "distance_terms", "str")
        for term in terms:
            _checks.one_of(term, "distance_terms", _distances.TERMS)
        self.distance_terms = tuple(terms)
        _distances.add(
            self,
            num_distances,
            norm=distance_norm,
            own_weights=distance_weights,
            key_bias=key_bias,
            eps=eps,
            dtype=dtype,
            rng=rng,
        )
        for layer in {id(each): each for each in self.encoder.layers}.values():
            mha = layer.self_attention
            _parts.set_qk_norms(mha, qk_norm, eps, dtype, norm)
            if _checks.flag(attention_norm, "attention_norm"):
                sum_norm = _stack.make_norm(norm, embed_dim, eps, True, dtype)
                layer.self_attention = NormedAttention.of(mha, sum_norm)
        if not norm_bias:
            self._drop_norm_biases()
        if not _checks.flag(first_norm, "first_norm"):
            if not norm_first or shared:
                raise ValueError(
                    "first_norm: expected True without norm_first or with shared, got "
                    "False"
                )
            self.encoder.layers[0].norm_1 = None
        _parts.set_options(
            self.encoder.layers, dtype, window=window, rotary=rotary, scale=scale
        )
        self.rotary, self.window, self.scale = rotary, window, scale
        self.config = None
        self.padding_id = _checked_padding(padding_id, max_length)
        self.masked_token = None
        if masked_token is not None:
            self.masked_token = _checks.size(masked_token, "masked_token")
            with _checks.renamed(token_ids="masked_token"):
                _embedding.checked_ids([self.masked_token], len(self.token_embedding))
        self.relative_bias = None
        if num_buckets is not None:
            self.relative_bias = _relative_table(rng, num_buckets, num_heads, dtype)
        self.pooler_activation = _checks.one_of(
            pooler_activation, "pooler_activation", PLAIN
        )
        self.pooling = _checks.one_of(pooling, "pooling", POOLINGS)
        how: dict[str, Any] = {
            "dense_bias": _checks.flag(head_bias, "head_bias"),
            "activation": _checks.one_of(head_activation, "head_activation", PLAIN),
            "eps": eps,
            "norm_bias": norm_bias,
            "dtype": dtype,
            "rng": rng,
        }
        has_norm = _checks.flag(pooler_norm, "pooler_norm")
        dense_tokens = _checks.flag(token_dense, "token_dense")
        dense = _checks.flag(word_dense, "word_dense")
        is_tied = _checks.flag(word_tied, "word_tied")
        has_bias = _checks.flag(word_bias, "word_bias")
        self.pooler_weight = self.pooler_bias = self.pooler_norm = None
        if _checks.flag(pooler, "pooler"):
            self.pooler_weight = table(embed_dim, "embed_dim", embed_dim)
            self.pooler_bias = self._zeros(embed_dim) if head_bias else None
            if has_norm:
                self.pooler_norm = LayerNorm(
                    embed_dim, eps=eps, bias=norm_bias, dtype=dtype
                )
        self.classifier_weight = self.classifier_bias = None
        if num_labels is not None:
            num_labels = _checks.count(num_labels, "num_labels")
            self.classifier_weight = table(embed_dim, "embed_dim", num_labels)
            self.classifier_bias = self._zeros(num_labels)
        self.token_head = self.word_head = None
        if num_token_labels is not None:
            n_labels = _checks.count(num_token_labels, "num_token_labels")
            self.token_head = TokenHead(embed_dim, n_labels, dense=dense_tokens, **how)
        if _checks.flag(masked_words, "masked_words"):
            how["bias"] = has_bias
            if is_tied and not dense and width != embed_dim:
                raise ValueError(
                    "word_dense: expected True with word_tied and embedding_dim, got "
                    "False"
                )
            self.word_head = TokenHead(
                *(embed_dim, vocab_size),
                table_dim=width if is_tied else None,
                dense=dense,
                **how,
            )

    def _zeros(self, size: int) -> Array:
        """Return a bias in the dtype of the embeddings."""
        return np.zeros(size, self.token_embedding.dtype)

    def _set_biases(
        self,
        qkv_bias: bool,
        out_bias: bool,
        feed_forward_bias: bool,
        hidden_bias: bool | None,
    ) -> None:
        """Leave out the biases of the layers' products that are not wanted."""
        for layer in self.encoder.layers:
            mha, network = layer.self_attention, layer.feed_forward
            _parts.set_biases(mha, ("q", "k", "v"), qkv_bias, "qkv_bias")
            _parts.set_biases(mha, ("o",), out_bias, "out_bias")
            _parts.set_biases(
                network, ("1", "2", "gate"), feed_forward_bias, "feed_forward_bias"
            )
            _parts.set_biases(network, ("1", "gate"), hidden_bias, "hidden_bias")

    def _drop_norm_biases(self) -> None:
        """Leave out the biases of the layers' norms, and of the final one."""
        norms = [self.encoder.norm]
        for layer in self.encoder.layers:
            mha = layer.self_attention
            norms += [layer.norm_1, layer.norm_2, mha.q_norm, mha.k_norm]
            norms += [getattr(mha, "sum_norm", None)]
        for norm in norms:
            if isinstance(norm, LayerNorm):
                norm.bias = None

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        network = self.encoder.layers[0].feed_forward
        mha, head = self.encoder.layers[0].self_attention, self.word_head
        types, classes = self.segment_embedding, self.classifier_bias
        distances, projection = self.relative_bias, self.projection_weight
        norms = self.norm, *(layer.norm_2 for layer in self.encoder.layers)
        norm = next(norm for norm in norms if norm is not None)
        return {
            **_stack.stack_fields(self.encoder),
            "bias": None,
            "final_norm": None,
            **{
                name: False
                for name, array in (
                    ("qkv_bias", mha.b_q),
                    ("out_bias", mha.b_o),
                    ("feed_forward_bias", network.b_2),
                    ("norm_bias", getattr(norm, "bias", norm)),
                    ("embedding_norm", self.norm),
                    ("first_norm", self.encoder.layers[0].norm_1),
                )
                if array is None
            },
            **({} if network.b_2 is None else {"feed_forward_bias": None}),
            "hidden_bias": None
            if (network.b_1 is None) == (network.b_2 is None)
            else network.b_1 is not None,
            "qk_norm": _parts.qk_norm_of(mha),
            "attention_norm": isinstance(mha, NormedAttention),
            "activation": network.activation,
            "eps": norm.eps,
            "vocab_size": len(self.token_embedding),
            "max_length": self.max_length,
            "rotary": self.rotary,
            "window": self.window,
            "scale": self.scale,
            "num_types": 0 if types is None else len(types),
            "pooler": self.pooler_weight is not None,
            "pooling": self.pooling,
            "pooler_activation": self.pooler_activation,
            "pooler_norm": self.pooler_norm is not None,
            "padding_id": self.padding_id,
            "masked_token": self.masked_token,
            "num_buckets": None if distances is None else len(distances),
            **self._shown_distances(),
            "embedding_dim": None if projection is None else len(projection),
            "num_labels": None if classes is None else len(classes),
            "num_token_labels": self._num_token_labels(),
            "masked_words": head is not None,
            "word_dense": None if head is None else head.dense_weight is not None,
            "word_tied": None if head is None else head.classifier_weight is None,
            "head_activation": None if head is None else head.activation,
        }

    def _shown_distances(self) -> dict[str, Any]:
        mha, table = self.encoder.layers[0].self_attention, self.distance_embedding
        has_table = self.position_embedding is not None or self.rotary is not None
        shown: dict[str, Any] = {} if has_table else {"position_table": False}
        if self.alibi:
            shown = {"alibi": True}
        if mha.b_k is None and mha.b_q is not None:
            shown["key_bias"] = False
        if table is None:
            return shown
        shown["num_distances"] = len(table)
        shown["max_distance"] = self.max_distance
        if set(self.distance_terms) != set(_distances.TERMS):
            shown["distance_terms"] = self.distance_terms
        shown["distance_norm"] = self.distance_norm is not None
        shown["distance_weights"] = mha.W_pk is not None or mha.W_pq is not None
        return shown

    __repr__ = _repr.shows(_shown)

    def _num_token_labels(self) -> int | None:
        if self.token_head is None or self.token_head.bias is None:
            return None
        return len(self.token_head.bias)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        pooler: bool = False,
        classifier: bool = False,
        token_classifier: bool = False,
        masked_words: bool = False,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> BertEncoder:
        """Return a model of the sizes of a configuration.

        Parameters
        ----------
        config : mapping
            With the keys of the Hugging Face configuration, whose ``model_type`` is
            bert (or left out), roberta, xlm-roberta, xlm-roberta-xl,
            roberta-prelayernorm, camembert, data2vec-text, distilbert, mpnet, electra,
            albert, deberta, deberta-v2, modernbert, eurobert, nomic_bert, gte, new, esm
            or jina_embeddings_v3. ``architectures`` of T5EncoderModel make it the
            encoder of T5. A folder with code of jinaai is the last one,
            xlm-roberta, or jina-embeddings-v2, for texts or code.
            Keys that do not change the computation are ignored, and all others are
            refused, unless null.
        pooler : bool, optional
            Add the pooler.
        classifier : bool, optional
            Have the pooler and a classifier, with as many scores as ``id2label`` or
            ``num_labels`` says, by default 2. The pooler is then that of the family's
            classifier: that of RoBERTa and others is not the one of their models
            without.
        token_classifier : bool, optional
            Have a head for the labels of each token, as many as for a classifier.
        masked_words : bool, optional
            Have the head that says which words may stand in the place of a token.
        dtype, rng
            As in `BertEncoder`.

        Returns
        -------
        BertEncoder

        Raises
        ------
        TypeError
            If `config` is not a mapping.
        ValueError
            If keys are missing or unknown, have values of a wrong kind, or ask for a
            different model; the message lists all of them. If the family does not have
            the pooler or classifier that is asked for.
        """
        family = _hf_config.encoder(_checks.mapping(config, "config"))
        options = _hf_config.arguments(config, family)
        _check_pooler(family, pooler)
        if _checks.flag(classifier, "classifier"):
            pooler, options["num_labels"] = True, _hf_config.num_labels(config)
            options |= _hf_config.head_arguments(config, family, "text")
        if _checks.flag(token_classifier, "token_classifier"):
            options["num_token_labels"] = _hf_config.num_labels(config)
            options |= _hf_config.head_arguments(config, family, "token")
        if _checks.flag(masked_words, "masked_words"):
            options["masked_words"] = True
            options |= _hf_config.head_arguments(config, family, "word")
        model = cls(**options, pooler=pooler, dtype=dtype, rng=rng)
        model.config = copy.deepcopy(dict(config))
        return model

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        pooler: bool = False,
        classifier: bool = False,
        token_classifier: bool = False,
        masked_words: bool = False,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        ignore_head: bool = False,
        task: str | None = None,
        progress: bool | None = None,
    ) -> BertEncoder:
        """Read a model from a folder.

        Parameters
        ----------
        folder : str or path
            With ``config.json``, and weights: ``model.safetensors``,
            ``pytorch_model.bin``, or the index of several of one kind.
        pooler, classifier : bool, optional
            As in `from_config`. A pooler that is not asked for is left alone, as is
            BERT's classifier. The classifier is that of ``ForSequenceClassification``,
            and of cross-encoders.
        token_classifier, masked_words : bool, optional
            As in `from_config`: the heads of ``ForTokenClassification`` and
            ``ForMaskedLM``.
        dtype : dtype, optional
            Dtype of the model; the weights are converted to it. "auto" is the dtype of
            the weights in the files, the widest one if there are several. "bfloat16"
            needs the ml_dtypes package.
        packed : bool, optional
            Call `pack`, for a model that is only run. False keeps the parameters
            writable.
        weights : {"int8", "int4"}, optional
            Call `quantize` for 8 or 4 bits while reading, so that only one matrix at a
            time is in memory in full. By default weights are numbers of the dtype, and
            matrices of a folder of compressed-tensors the integers that they are there.
        activations : {"float", "int8"}, optional
            How rows are multiplied with integers, as `attnpy.quantize` explains: "int8"
            is faster and less accurate.
        ignore_head : bool, optional
            Read only the model below a head that `BertEncoder` does not have, such as
            that of ``BertForQuestionAnswering``, as ``AutoModel`` of Transformers does.
            By default such a folder is refused, so that no head is lost silently.
        task : str, optional
            Add the adapter of this task to the weights, for a folder that has adapters
            (jina-embeddings-v3). By default none is added.
        progress : bool, optional
            Show a progress bar on standard error, if that is a terminal and the work
            takes longer than a second. True needs the tqdm package; None, the default,
            shows no bar if it is not installed.

        Returns
        -------
        BertEncoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the safetensors package is not installed, or ml_dtypes for bfloat16, or
            tqdm for `progress`; if a file is missing.
        ValueError
            As `from_config`; if weights are missing, unexpected or of wrong shapes.
        """
        make = functools.partial(
            cls.from_config,
            pooler=pooler,
            classifier=classifier,
            token_classifier=token_classifier,
            masked_words=masked_words,
        )
        return _pretrained.read(
            *(make, folder, dtype, packed, ignore_head, progress),
            *(weights, activations, task),
        )

    @classmethod
    def from_gguf(
        cls,
        file: str | os.PathLike[str] | GgufFile,
        *,
        classifier: bool = False,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["file"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> BertEncoder:
        """Read a model from a GGUF file, as llama.cpp has them.

        Parameters
        ----------
        file : str, path, or attnpy.checkpoints.GgufFile
            Of the architecture "bert" (BERT, RoBERTa and XLM-RoBERTa: MiniLM, bge, e5
            and others) or "nomic-bert".
        classifier : bool, optional
            Read the head of a reranker such as bge-reranker, whose ``pooling_type`` is
            4, for `classify`.
        dtype, packed, weights, activations, progress
            As in `CausalDecoder.from_gguf`.

        Returns
        -------
        BertEncoder
            Without other heads.

        Raises
        ------
        ImportError, FileNotFoundError, TypeError, ValueError
            As `CausalDecoder.from_gguf`.

        See Also
        --------
        attnpy.models.SentenceEncoder.from_gguf : turns texts into vectors by it.

        Notes
        -----
        Files do not say the activation of BERT's networks. It is the exact GELU of the
        models, not the approximation of llama.cpp.
        """
        has_head = _checks.flag(classifier, "classifier")
        make = functools.partial(cls.from_config, classifier=has_head)
        return _gguf.read(
            *(make, file, dtype, packed, progress, weights, activations),
            kind="scoring encoder" if has_head else "encoder",
        )

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that Transformers reads, and `from_pretrained`.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            ``config.json``, that of which the model was made, and
            ``model.safetensors``, in the model's dtype.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model was not made by `from_config` or `from_pretrained`, or has
            other sizes or options since.

        Notes
        -----
        With a classifier it is a ``ForSequenceClassification``, and with a head for
        tokens a ``ForTokenClassification`` or ``ForMaskedLM``. A quantised model is
        saved with the numbers that its integers stand for. A tokenizer is not written:
        copy ``tokenizer.json`` beside it.
        """
        has_classifier = self.classifier_weight is not None
        heads = {
            "ForSequenceClassification": has_classifier,
            "ForTokenClassification": self.token_head is not None,
            "ForMaskedLM": self.word_head is not None,
        }
        owners = [owner for owner, is_here in heads.items() if is_here]
        if len(owners) > 1:
            raise ValueError(
                f"model: expected one head at most, got those of {', '.join(owners)}"
            )

        def again(config: dict[str, Any]) -> BertEncoder:
            return BertEncoder.from_config(
                config,
                pooler=self.pooler_weight is not None and not has_classifier,
                classifier=has_classifier,
                token_classifier=self.token_head is not None,
                masked_words=self.word_head is not None,
                dtype=self.token_embedding.dtype,
                rng=_parameters.Unset(),
            )

        _saving.save(self, folder, again, owners[0] if owners else None)

    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: Literal[False] = ...,
        return_hidden_states: Literal[False] = ...,
        **options: Unpack[BertCall],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: Literal[True],
        return_hidden_states: bool = ...,
        **options: Unpack[BertChosenCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: bool = ...,
        return_hidden_states: Literal[True],
        **options: Unpack[BertChosenCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: bool,
        return_hidden_states: bool = ...,
        **options: Unpack[BertChosenCall],
    ) -> Array | ModelOutput: ...
    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: bool = ...,
        return_hidden_states: bool,
        **options: Unpack[BertChosenCall],
    ) -> Array | ModelOutput: ...
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        token_mask: ArrayLike | None = None,
        token_types: ArrayLike | None = None,
        return_weights: bool = False,
        return_hidden_states: bool = False,
        layers: ArrayLike | None = None,
        heads: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array | ModelOutput:
        """Return the tokens' vectors after the last layer.

        Parameters
        ----------
        token_ids : array_like of int, shape (L,) or (B, L)
            0 to ``V - 1``.
        lengths : int or array_like of int, shape (B,), optional
            How many of the tokens exist, at the start of each sequence. The others are
            padding: they cost next to nothing, and their own vectors mean nothing.
            Those that exist have the same bits as alone.
        token_mask : array_like of bool, shape (L,) or (B, L), optional
            True for tokens that exist: for padding that is not at the end.
        token_types : array_like of int, broadcast to token_ids' shape, optional
            By default 0. None for a model without types.
        return_weights : bool, optional
            Return the weights of the layers' attention as well, in an
            `attnpy.blocks.ModelOutput`. No bit of the output depends on it.
        return_hidden_states : bool, optional
            Return the input of the first layer and the result of each layer as well, in
            an `attnpy.blocks.ModelOutput`. The name is Hugging Face's.
        layers, heads : int or sequence of int, optional
            Which layers and heads, as in `attnpy.blocks.Encoder.__call__`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            With `return_weights` or `return_hidden_states` an
            `attnpy.blocks.ModelOutput`, whose weights are (layers, H, L, L) or
            (layers, B, H, L, L).

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        """
        ids = _embedding.checked_ids(token_ids, len(self.token_embedding))
        types = self._types(ids, token_types)
        hidden, of_keys, ends = _visible(ids, lengths, token_mask)
        if ends is not None and ends.size > 0 and (ends == ids.shape[-1]).all():
            ends = None  # there is no padding to leave out
        self._check_length(ids)
        factors = self._factors(ids, lengths, token_mask)
        relative = _distances.of(self)
        bias = self._bias(ids.shape[-1] if ends is None else int(ends.max(initial=0)))

        def run(part: slice | EllipsisType) -> Array | ModelOutput:
            """Return the encoder's result for a part of the batch."""

            def encode(
                tokens: Array, seq_offsets: NDArray[np.int64] | None
            ) -> Array | ModelOutput:
                longest = _embedding.longest(tokens, seq_offsets)
                return self.encoder(
                    tokens,
                    mask=None if hidden is None else hidden[part],
                    bias=None if bias is None else bias[:, :longest, :longest],
                    kv_lengths=None if of_keys is None else of_keys[part],
                    seq_offsets=seq_offsets,
                    **self._options(),
                    relative=relative,
                    mixed=_embedding.is_mixed(self.token_embedding),
                    return_weights=return_weights,
                    return_hidden_states=return_hidden_states,
                    layers=layers,
                    heads=heads,
                    num_threads=num_threads,
                )

            each = types.ndim == 2 and len(types) == len(ids)
            of_part = types[part] if each else types
            own = None if factors is None else factors[part]
            tokens = self._embed(ids[part], of_part, own, num_threads)
            tokens = _stack.normalized(self.norm, tokens, num_threads)
            tokens = self._projected(tokens, num_threads)
            existing = None if ends is None else ends[part]
            return _embedding.run_existing(
                tokens, existing, encode, self.token_embedding, num_threads
            )

        asked = _checks.flag(return_weights, "return_weights")
        if asked or _checks.flag(return_hidden_states, "return_hidden_states"):
            return run(...)
        return _embedding.run_parts(ids, ends, run, num_threads)

    def vjp(
        self,
        token_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        token_mask: ArrayLike | None = None,
        token_types: ArrayLike | None = None,
        checkpoint: bool = False,
        dropout: float = 0.0,
        dropout_seed: int | None = None,
        num_threads: int | None = None,
    ) -> tuple[Array, Callable[[ArrayLike], dict[str, Array]]]:
        """Return the tokens' vectors, and the pullback of gradients.

        Parameters
        ----------
        token_ids, lengths, token_mask, token_types, num_threads
            As in a call.
        checkpoint : bool, optional
            As in `attnpy.blocks.Encoder.vjp`.
        dropout : float, optional
            The probability with which a number of the normed embeddings is dropped, and
            those of the layers as in `attnpy.blocks.EncoderLayer.vjp`. BERT was trained
            with 0.1.
        dropout_seed : int, optional
            As there, required with `dropout`.

        Returns
        -------
        states : ndarray, shape (L, E) or (B, L, E)
            With the same bits as a call, where nothing is dropped.
        pullback : callable
            Takes the gradient with respect to the states, and returns those of the
            parameters, a dict with the names of `parameters`; those of pooler and
            classifier come from `pool_vjp` and `classify_vjp`. Heads that score tokens
            have none.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are packed, or not float32 or float64; if the
            model has `num_distances`, for which there are no gradients.
        """
        if self.distance_embedding is not None:
            raise ValueError(
                "num_distances: expected None, as disentangled positions have no "
                f"gradients here, got {len(self.distance_embedding)}"
            )
        names = *TABLES, "relative_bias", "projection_weight", "projection_bias"
        _vjp.check_trainable(self, names)
        ids = _embedding.checked_ids(token_ids, len(self.token_embedding))
        types = self._types(ids, token_types)
        factors = self._factors(ids, lengths, token_mask)
        embedded = self._embed(ids, types, factors, num_threads)
        normed, of_norm = embedded, None
        if self.norm is not None:
            normed, of_norm = self.norm.vjp(embedded, num_threads=num_threads)
        rate, seed = _dropout.checked(dropout, dropout_seed)
        of_embeddings, of_layers = _dropout.seeds(seed, 2)
        normed, of_dropped = _dropout.dropped(normed, rate, of_embeddings)
        tokens = self._projected(normed, num_threads)
        hidden, of_keys, ends = _visible(ids, lengths, token_mask)

        def run(
            tokens: Array, seq_offsets: NDArray[np.int64] | None
        ) -> tuple[Array, Pullback]:
            return self.encoder.vjp(
                tokens,
                mask=hidden,
                bias=self._bias(_embedding.longest(tokens, seq_offsets)),
                kv_lengths=of_keys,
                seq_offsets=seq_offsets,
                **self._options(),
                wanted=() if self.relative_bias is None else ("bias",),
                checkpoint=checkpoint,
                dropout=rate,
                dropout_seed=of_layers,
                num_threads=num_threads,
            )

        states, of_states = _embedding.existing_vjp(tokens, ends, run)

        def pullback(grad_output: ArrayLike) -> dict[str, Array]:
            collected = _vjp.Collector(self)
            found = of_states(grad_output)
            collected.add(found.parameters, "encoder.")
            if found.bias is not None:
                collected.add({"relative_bias": self._of_bias(found.bias)})
            grad = found.x
            if self.projection_weight is not None:
                grad, of_weight, of_bias = linear_vjp(
                    grad,
                    normed,
                    self.projection_weight,
                    self.projection_bias,
                    num_threads=num_threads,
                )
                assert of_bias is not None
                collected.add(
                    {"projection_weight": of_weight, "projection_bias": of_bias}
                )
            grad = of_dropped(grad)
            if of_norm is not None:
                found = of_norm(grad)
                collected.add(found.parameters, "norm.")
                grad = found.x
            places = {"token_embedding": ids, "segment_embedding": types}
            if self.position_embedding is not None:
                places["position_embedding"] = self._places(ids)
            for name, place in places.items():
                if (table := getattr(self, name)) is not None:
                    of_rows = grad
                    if name == "token_embedding" and factors is not None:
                        of_rows = grad * factors[..., np.newaxis]
                    table = _vjp.look_up_vjp(
                        table, np.broadcast_to(place, ids.shape), of_rows
                    )
                    collected.add({name: table})
            return collected.parameters()

        return states, pullback

    def pool(
        self,
        states: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the vector of each text: the pooler's result for its first token.

        Parameters
        ----------
        states : array_like, shape (L, E) or (B, L, E)
            Vectors from a call.
        lengths : int or array_like of int, shape (B,), optional
            As in that call. They matter to a model with `pooling` "mean" or "late",
            which takes the mean over the tokens.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (E,) or (B, E)
            ``tanh(states[..., 0, :] @ pooler_weight + pooler_bias)``, or another
            `pooler_activation`, and then `pooler_norm`. With `pooling` "late" it is the
            mean of this over all tokens, before `pooler_norm`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape. If the model has no
            pooler.
        """
        weight, first, ends = self._taken(_checks.array(states, "states"), lengths)
        vectors = self._active(first, weight, ends, num_threads)
        if self.pooler_norm is None:
            return vectors
        return self.pooler_norm(vectors, num_threads=num_threads)

    def pool_vjp(
        self,
        states: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> tuple[Array, Pullback]:
        """Return the result of `pool`, and the pullback of its gradients.

        Parameters
        ----------
        states, lengths, num_threads
            As in `pool`.

        Returns
        -------
        vectors : ndarray, shape (E,) or (B, E)
            With the same bits as `pool`.
        pullback : callable
            Takes the gradient with respect to the vectors, and returns an
            `attnpy.layers.LayerGradients`: `x` is that of the states, and the
            parameters are ``pooler_weight`` and ``pooler_bias``.

        Raises
        ------
        TypeError, ValueError
            As `pool`; if the parameters are not float32 or float64.
        """
        _vjp.check_trainable(self, ("pooler_weight", "pooler_bias"))
        tokens = _vjp.floating(states, "states")
        weight, first, ends = self._taken(tokens, lengths)
        before = linear(first, weight, self.pooler_bias, num_threads=num_threads)
        vectors, of_norm = self._active(first, weight, ends, num_threads), None
        if self.pooler_norm is not None:
            vectors, of_norm = self.pooler_norm.vjp(vectors, num_threads=num_threads)
        checked = _vjp.of_output(vectors)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            grad, found = checked(grad_output), {}
            if of_norm is not None:
                of_vectors = of_norm(grad)
                grad = of_vectors.x
                for name, array in of_vectors.parameters.items():
                    found[f"pooler_norm.{name}"] = array
            if self.pooling == "late":
                grad = _of_means(grad, first, ends)
            grad = activation_vjp(
                grad,
                before,
                cast("PoolerActivation", self.pooler_activation),
                num_threads=num_threads,
            )
            of_first, of_weight, of_bias = linear_vjp(
                grad,
                first,
                weight,
                self.pooler_bias,
                num_threads=num_threads,
            )
            of_states = of_first
            if self.pooling == "mean":
                of_states = _of_means(of_first, tokens, ends)
            elif self.pooling == "cls":
                of_states = np.zeros(tokens.shape, tokens.dtype)
                of_states[..., 0, :] = of_first
            found["pooler_weight"] = of_weight
            if of_bias is not None:
                found["pooler_bias"] = of_bias
            return LayerGradients(of_states, found)

        return vectors, pullback

    def _active(
        self,
        first: Array,
        weight: Array,
        ends: NDArray[np.int64],
        num_threads: int | None,
    ) -> Array:
        """Return the pooler's product, after its activation, (E,) or (B, E)."""
        with _checks.renamed(x="states"):
            vectors = linear(
                first,
                weight,
                self.pooler_bias,
                activation=self.pooler_activation,
                num_threads=num_threads,
            )
        return _means(vectors, ends) if self.pooling == "late" else vectors

    def _taken(
        self, states: Array, lengths: ArrayLike | None
    ) -> tuple[Array, Array, NDArray[np.int64]]:
        """Return the pooler's matrix, and what it is multiplied by: (E,) or (B, E).

        With `pooling` "late" that is (L, E) or (B, L, E). The last one is how many
        tokens each text has.
        """
        if self.pooler_weight is None:
            raise ValueError(
                "pooler: expected a model with pooler=True, got one without"
            )
        ends = _embedding.checked_states(states, lengths, self.embed_dim, "first")
        if self.pooling == "cls":
            return self.pooler_weight, states[..., 0, :], ends
        if self.pooling == "late":
            return self.pooler_weight, states, ends
        return self.pooler_weight, _means(states, ends), ends

    def classify(
        self,
        states: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the scores of the labels for each text, before a softmax or sigmoid.

        Parameters
        ----------
        states : array_like, shape (L, E) or (B, L, E)
            Vectors from a call.
        lengths : int or array_like of int, shape (B,), optional
            As in `pool`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (num_labels,) or (B, num_labels)
            ``pool(states) @ classifier_weight + classifier_bias``.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape. If the model has no
            classifier.
        """
        weight = self._classifier()
        return linear(
            self.pool(states, lengths=lengths, num_threads=num_threads),
            weight,
            self.classifier_bias,
            num_threads=num_threads,
        )

    def classify_vjp(
        self,
        states: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> tuple[Array, Pullback]:
        """Return the result of `classify`, and the pullback of its gradients.

        Parameters
        ----------
        states, lengths, num_threads
            As in `classify`.

        Returns
        -------
        scores : ndarray, shape (num_labels,) or (B, num_labels)
            With the same bits as `classify`.
        pullback : callable
            Takes the gradient with respect to the scores, and returns an
            `attnpy.layers.LayerGradients`: `x` is that of the states, and the
            parameters are those of pooler and classifier.

        Raises
        ------
        TypeError, ValueError
            As `classify`; if the parameters are not float32 or float64.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.models import BertEncoder
        >>> rng = np.random.default_rng(0)
        >>> model = BertEncoder(
        ...     2, 16, 4, 64, vocab_size=100, pooler=True, num_labels=3, rng=rng
        ... )
        >>> states, of_model = model.vjp([[2, 71, 82, 3], [2, 71, 3, 0]])
        >>> scores, of_scores = model.classify_vjp(states)
        >>> found = of_scores(np.ones_like(scores))
        >>> gradients = {**of_model(found.x), **found.parameters}
        >>> gradients.keys() == model.parameters().keys()
        True
        """
        _vjp.check_trainable(self, ("classifier_weight", "classifier_bias"))
        weight = self._classifier()
        vectors, of_pooler = self.pool_vjp(
            states, lengths=lengths, num_threads=num_threads
        )
        scores = linear(vectors, weight, self.classifier_bias, num_threads=num_threads)
        checked = _vjp.of_output(scores)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            of_vectors, of_weight, of_bias = linear_vjp(
                checked(grad_output),
                vectors,
                weight,
                self.classifier_bias,
                num_threads=num_threads,
            )
            found = of_pooler(of_vectors)
            found.parameters["classifier_weight"] = of_weight
            if of_bias is not None:
                found.parameters["classifier_bias"] = of_bias
            return found

        return scores, pullback

    def classify_tokens(
        self, states: ArrayLike, *, num_threads: int | None = None
    ) -> Array:
        """Return the scores of the labels for each token, before a softmax.

        Parameters
        ----------
        states : array_like, shape (..., E)
            Vectors from a call.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (..., num_token_labels)

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape. If the model has no head
            for tokens.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.models import BertEncoder
        >>> rng = np.random.default_rng(0)
        >>> model = BertEncoder(
        ...     2, 16, 4, 64, vocab_size=100, num_token_labels=3, rng=rng
        ... )
        >>> model.classify_tokens(model([2, 71, 82, 3])).shape
        (4, 3)
        """
        if self.token_head is None:
            raise ValueError(
                "token_classifier: expected a model with num_token_labels, or read "
                "with token_classifier=True, got one without"
            )
        return self.token_head(states, num_threads=num_threads)

    def logits(self, states: ArrayLike, *, num_threads: int | None = None) -> Array:
        """Return the scores of all words to stand in the place of each token.

        Parameters
        ----------
        states : array_like, shape (..., E)
            Vectors from a call, such as those of masked tokens.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (..., V)

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape. If the model has no head
            for masked words.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.models import BertEncoder
        >>> rng = np.random.default_rng(0)
        >>> model = BertEncoder(
        ...     2, 16, 4, 64, vocab_size=100, masked_words=True, rng=rng
        ... )
        >>> model.logits(model([2, 71, 82, 3])[1]).shape
        (100,)
        """
        if self.word_head is None:
            raise ValueError(
                "masked_words: expected a model with masked_words, or read with "
                "masked_words=True, got one without"
            )
        words = self.token_embedding.T
        return self.word_head(states, words, num_threads=num_threads)

    def _classifier(self) -> Array:
        if self.classifier_weight is None:
            raise ValueError(
                "classifier: expected a model with num_labels, or read with "
                "classifier=True, got one without"
            )
        return self.classifier_weight

    def _types(
        self, ids: NDArray[np.int64], token_types: ArrayLike | None
    ) -> NDArray[np.int64]:
        """Return the types of tokens, broadcast to them or a single one."""
        if self.segment_embedding is None and token_types is not None:
            raise ValueError(
                "token_types: expected none for a model with num_types = 0, got some"
            )
        if token_types is None:
            return np.zeros((), np.int64)
        num_types = 1 if self.segment_embedding is None else len(self.segment_embedding)
        types = _checks.integers(token_types, "token_types", 0, num_types - 1)
        if not _checks.broadcasts(types.shape, ids.shape):
            raise ValueError(
                "token_types: expected an integer, or integers that broadcast to "
                f"token_ids' {ids.shape}, got {types.shape}"
            )
        return types

    def _projected(self, tokens: Array, num_threads: int | None) -> Array:
        """Return vectors of the size of the layers, (..., E), of normed embeddings."""
        if self.projection_weight is None:
            return tokens
        return linear(
            tokens,
            self.projection_weight,
            self.projection_bias,
            precision="wide",
            num_threads=num_threads,
        )

    def _factors(
        self,
        ids: NDArray[np.int64],
        lengths: ArrayLike | None,
        token_mask: ArrayLike | None,
    ) -> Array | None:
        """Return what tokens' embeddings are multiplied by, (L,) or (B, L), or None."""
        if self.masked_token is None:
            return None
        exists = np.ones(ids.shape, np.bool_)
        if lengths is not None:
            ends = _embedding.checked_lengths(lengths, ids, 0)
            exists &= np.arange(ids.shape[-1]) < ends[..., np.newaxis]
        if token_mask is not None:
            exists &= _embedding.checked_mask(token_mask, ids)
        is_masked = ids == self.masked_token
        n_tokens = exists.sum(axis=-1, keepdims=True)
        n_others = (exists & ~is_masked).sum(axis=-1, keepdims=True)
        factors = UNMASKED * n_tokens / np.maximum(n_others, 1)
        dtype = _dtypes.arithmetic(self.token_embedding.dtype)
        return np.where(is_masked, 0, factors).astype(dtype)

    def _embed(
        self,
        ids: NDArray[np.int64],
        types: NDArray[np.int64],
        factors: Array | None,
        num_threads: int | None,
    ) -> Array:
        """Return the sums of embeddings, before the norm, (L, D) or (B, L, D).

        Those of tokens are multiplied by factors, (L,) or (B, L), if there are some.
        """
        added = []
        if self.segment_embedding is not None:
            added.append((self.segment_embedding, types))
        if self.position_embedding is not None:
            added.append((self.position_embedding, self._places(ids)))
        if factors is None:
            return _embedding.looked_up(
                self.token_embedding, ids, *added, num_threads=num_threads
            )
        tokens = _embedding.looked_up(
            self.token_embedding, ids, num_threads=num_threads
        )
        tokens *= factors[..., np.newaxis]
        for table, numbers in added:
            places = np.broadcast_to(numbers, ids.shape)
            tokens += _embedding.looked_up(table, places, num_threads=num_threads)
        return tokens

    @property
    def embed_dim(self) -> int:
        """The size `E` of the vectors that come out."""
        embed_dim: int = self.encoder.layers[0].self_attention.W_q.shape[0]
        return embed_dim

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a text: those with positions."""
        return self.max_length - self._first

    @property
    def _first(self) -> int:
        """The position of a text's first token."""
        return 0 if self.padding_id is None else self.padding_id + 1

    def _check_length(self, ids: NDArray[np.int64]) -> None:
        """Require a row of the table of positions, if there is one, for all tokens."""
        if self.position_embedding is not None:
            table = self.position_embedding[self._first :]
            _embedding.check_positions(ids.shape[-1], table)

    def _places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens' rows in the table of positions, (L,) or (B, L)."""
        n_tokens, padding_id = ids.shape[-1], self.padding_id
        self._check_length(ids)
        if padding_id is None:
            return np.arange(n_tokens)
        counted = ids != padding_id
        places: NDArray[np.int64] = np.cumsum(counted, axis=-1) * counted + padding_id
        return places

    def _bias(self, longest: int) -> Array | None:
        """Return the bias of all layers' scores, (H, L, L) with L of the longest."""
        if self.alibi:
            n_heads = self.encoder.layers[0].self_attention.num_heads
            dtype = _dtypes.arithmetic(self.token_embedding.dtype)
            of = functools.partial(positions.alibi_bias, n_heads, dtype=dtype)
        elif self.relative_bias is None:
            return None
        else:
            of = functools.partial(positions.relative_bias, self.relative_bias)
        return by_distance(of, longest, longest)

    def _options(self) -> dict[str, Any]:
        """Return the options of all layers' attention."""
        return _parts.common_options(
            window=self.window, rotary=self.rotary, scale=self.scale
        )

    def _of_bias(self, grad: Array) -> Array:
        """Return the gradient of `relative_bias` from that of `_bias`, (H, L, L)."""
        table, length = self.relative_bias, grad.shape[-1]
        assert table is not None
        buckets = positions.relative_buckets(length, length, num_buckets=len(table))
        return _vjp.look_up_vjp(table, buckets, np.moveaxis(grad, 0, -1))


def _checked_padding(padding_id: int | None, max_length: int) -> int | None:
    """Return the number of the token that has no position, which leaves some."""
    if padding_id is None:
        return None
    number = _checks.size(padding_id, "padding_id")
    if number + 1 >= max_length:
        raise ValueError(
            f"padding_id: expected positions after it, of max_length = {max_length}, "
            f"got {number}"
        )
    return number


def _relative_table(
    rng: np.random.Generator, n_buckets: int, num_heads: int, dtype: DTypeLike
) -> Array:
    """Return the initial values of the biases by distance, (n_buckets, H)."""
    if _checks.count(n_buckets, "num_buckets") % 2:
        raise ValueError(f"num_buckets: expected an even number, got {n_buckets}")
    return _embedding.table(rng, n_buckets, "num_buckets", num_heads, dtype)


def _check_pooler(family: Declaration, pooler: bool) -> None:
    """Refuse a pooler that the models of a family do not have."""
    poolers = [own for own in family.names.names.values() if "pooler_bias" in own]
    if _checks.flag(pooler, "pooler") and not poolers:
        raise ValueError(
            f"pooler: expected False, as {family.model_type} has none, got True"
        )


def _means(states: Array, ends: NDArray[np.int64]) -> Array:
    """Return the means (..., E) of the first vectors of (..., L, E)."""
    *batch, n_tokens, size = states.shape
    kind = _dtypes.arithmetic(states.dtype)
    means = [
        np.add.reduce(text[:n], axis=0, dtype=kind) / kind.type(n)
        for text, n in zip(
            states.reshape(-1, n_tokens, size), ends.reshape(-1), strict=True
        )
    ]
    return np.array(means, kind).reshape(*batch, size).astype(states.dtype)


def _of_means(grad: Array, states: Array, ends: NDArray[np.int64]) -> Array:
    """Return the gradient (..., L, E) of states from that of their means, (..., E)."""
    found = np.zeros(states.shape, states.dtype)
    for n, to, of_one in zip(
        ends.reshape(-1),
        found.reshape(-1, *states.shape[-2:]),
        grad.reshape(-1, states.shape[-1]),
        strict=True,
    ):
        to[:n] = of_one / states.dtype.type(n)
    return found


def _visible(
    ids: NDArray[np.int64], lengths: ArrayLike | None, token_mask: ArrayLike | None
) -> tuple[
    NDArray[np.bool_] | None, NDArray[np.int64] | None, NDArray[np.int64] | None
]:
    """Return the mask of keys, how many of them exist, and how many tokens do.

    The last one is for padding at the end, for which nothing is then computed.
    """
    hidden = ends = None
    if lengths is not None:
        ends = _embedding.checked_lengths(lengths, ids, 0)
    if token_mask is not None:
        hidden = _embedding.checked_mask(token_mask, ids)
        if ends is None and (hidden[..., :-1] >= hidden[..., 1:]).all():
            return None, None, hidden.sum(axis=-1)
        return hidden[..., np.newaxis, np.newaxis, :], ends, None  # (..., 1, 1, L)
    return None, None, ends
