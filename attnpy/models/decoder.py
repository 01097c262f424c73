"""Decoders such as GPT-2 and Llama: language models."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr, _vjp
from attnpy._linear import linear, linear_vjp
from attnpy._vjp import LayerGradients
from attnpy.blocks import Decoder, FeedForward, ModelOutput, _stack, tanh
from attnpy.cache import checked_caches
from attnpy.models import (
    _embedding,
    _gguf,
    _hf_config,
    _parts,
    _pretrained,
    _saving,
    _scores,
    sampling,
)
from attnpy.models._per_layer import InputDecoder, input_fields
from attnpy.models._value_norm import ValueNormedAttention
from attnpy.positions import Rotary, alibi_bias
from attnpy.positions.rotary import by_length, changes_once

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from typing_extensions import Unpack

    from attnpy._typing import Array, DecoderOptions, Precision, Window
    from attnpy._vjp import Pullback
    from attnpy.blocks._stack import Choice
    from attnpy.cache import KVCache
    from attnpy.checkpoints import GgufFile
    from attnpy.norms import LayerNorm, RMSNorm
    from attnpy.pages import PagePool

    class CausalCall(TypedDict, total=False):
        """The options of a call."""

        lengths: ArrayLike | None
        caches: Sequence[KVCache] | None
        num_threads: int | None

    class CausalChosenCall(CausalCall, Choice, total=False):
        """The options of a call that returns more than the vectors."""


@_keywords.answering
class CausalDecoder(sampling.LanguageModel):
    """A language model: the tokens so far give the scores of the next one.

    Parameters
    ----------
    num_layers, embed_dim, num_heads, hidden_dim : int
        As in `attnpy.blocks.Decoder`.
    vocab_size : int
        `V`, the number of different tokens.
    max_length : int, optional
        Add a learned table of this many positions.
    position_offset : int, optional
        How many rows of that table come before that of the first token.
    rotary : attnpy.positions.Rotary, or list of Rotary or None, optional
        Rotary positions instead of a table. A list has one for each layer, None for a
        layer without positions.
    alibi : bool, optional
        Have the biases of `attnpy.positions.alibi_bias` in all layers instead of other
        positions: BLOOM and MPT.
    embedding_norm : bool, optional
        Normalize the tokens' embeddings, and the positions that were added.
    window : tuple of (int or None, int or None), or list of tuple or None, optional
        As in `attnpy.attention`; a list has that of each layer.
    scale : float, or list of float, optional
        As in `attnpy.attention`; a list has that of each layer.
    softcap : float, optional
        For the attention's scores, as in `attnpy.attention`.
    logit_softcap : float, optional
        C: the scores of tokens are ``C * tanh(scores / C)``.
    embedding_scale, residual_scale, logit_scale : float, optional
        Factors: of the tokens' embeddings; of what attention and networks add to the
        tokens; of the scores of tokens, before the soft cap.
    tied : bool or None, optional
        The scores are products with the embeddings, not with a separate matrix. None:
        the model has no scores, so no `logits` and no `generate`.
    stop : int or array_like of int, shape (n,), optional
        Tokens that end a text, unless `generate` and `stream` are given others; by
        default none.
    qkv_bias : bool, optional
        Add biases to queries, keys and values; by default with `bias`.
    out_bias, feed_forward_bias : bool, optional
        Add biases to the result of attention, and in the feed-forward networks; by
        default with `bias`.
    head_sizes : list of (int, int), optional
        `head_dim` and `num_kv_heads` of each layer, where layers differ.
    qk_norm : bool or "all heads", optional
        Normalize each head's queries and keys with an `attnpy.blocks.RMSNorm`; with
        "all heads", those of all heads of a token together.
    value_norm : bool, optional
        Divide each head's values by their root mean square, a norm without weights.
        Caches are those of floats then, not of int8 or of pages.
    sinks : bool, optional
        Give each head of each layer a learned sink, a logit in the denominator of its
        softmax: `sinks` of `attnpy.layers.MultiHeadAttention`, 0 at first.
    norm_after : bool or "only", optional
        Normalize the results of each layer's attention and network before they are
        added; with "only", do not normalize what they read.
    parallel : bool or "one norm", optional
        Attention and network of a layer read the same tokens, each by its norm, and
        both are added to them. With "one norm" both read what the attention's norm
        returns.
    input_dim : int, optional
        `P`: let each layer read the embeddings, too. After its network it adds
        ``norm(activation(x @ W_1) * given @ W_2)``, where ``given`` are P numbers, the
        embeddings times a matrix of the layer, normalized.
    layer_scalars : bool, optional
        Multiply the result of each layer by a learned number, 1 at first.
    output_dim : int, optional
        Multiply the vectors after the last norm by a matrix, to this size. Such a model
        has no scores and no classifier: `tied` is None.
    output_bias : bool, optional
        Add a bias to the scores of tokens.
    num_labels : int, optional
        Add a classifier of texts with this many scores, for `classify`.
    num_experts : int, optional
        Make the feed-forward networks `attnpy.blocks.MixtureOfExperts` of this many.
    num_experts_per_token : int, optional
        How many of them each token goes through; needed with `num_experts`.
    renormalize : bool, optional
        As in `attnpy.blocks.MixtureOfExperts`.
    expert_dim : int, optional
        The size of each expert's hidden layer; by default `hidden_dim`.
    shared_dim : int, optional
        As in `attnpy.blocks.MixtureOfExperts`.
    router_bias : bool, optional
        As in `attnpy.blocks.MixtureOfExperts`.
    dense_layers : sequence of int, optional
        The layers that have one network of `hidden_dim` instead of experts.
    **options
        As in `attnpy.blocks.DecoderLayer`: `causal`, `head_dim`, `num_kv_heads`,
        `norm_first` (here True by default), `norm`, `eps`, `activation`, `bias`,
        `dtype`, `rng`. With ``causal=False``, as in some models for embeddings, a token
        sees those after it, and there are no caches and no `generate`.

    Attributes
    ----------
    token_embedding : ndarray, shape (V, E)
        With `tied` the transpose of an array in C order, which products read fastest. A
        packed one is read-only; look-up and products work as before.
    position_embedding : ndarray, shape (position_offset + max_length, E), or None
    embedding_norm : attnpy.blocks.LayerNorm, attnpy.blocks.RMSNorm, or None
    output : ndarray, shape (E, V), or None
        None with `tied`, and without scores.
    output_bias : ndarray, shape (V,), or None
    W_out : ndarray, shape (E, output_dim), or None
        None without `output_dim`.
    classifier_weight : ndarray, shape (E, num_labels), or None
        None without `num_labels`.
    decoder : attnpy.blocks.Decoder
    vocab_size : int
        `V`.
    config : dict or None
        The configuration of `from_config`, which `save_pretrained` writes.
    stop : tuple of int
        The tokens that end a text; may be set. A model from a folder has its
        ``eos_token_id``.
    logit_softcap, embedding_scale, logit_scale,
    position_offset, alibi, rotary, window, scale, softcap, tied
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters.

    Notes
    -----
    With learned positions, `LayerNorm`, "gelu_tanh" and biases this is the model of
    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), GPT-2;
    with rotary positions, `RMSNorm`, "swiglu" and no biases that of Touvron et al.,
    "LLaMA: Open and Efficient Foundation Language Models" (2023); with soft caps,
    scaled embeddings, "geglu_tanh" and `norm_after` those of the Gemma team, "Gemma 2:
    Improving Open Language Models at a Practical Size" (2024); with `head_sizes`,
    `value_norm`, `input_dim`, `layer_scalars` and `output_dim` that of EmbeddingGemma
    2, Google (2026); with ``qk_norm="all heads"`` and ``norm_after="only"`` that of
    Team OLMo, "2 OLMo 2 Furious" (2025); with `parallel` that of
    Black et al., "GPT-NeoX-20B: An Open-Source Autoregressive Language Model" (2022);
    with `num_experts` that of Jiang et al., "Mixtral of Experts" (2024); with `sinks`,
    `router_bias` and "swiglu_oai" that of OpenAI, "gpt-oss-120b & gpt-oss-20b Model
    Card" (2025); with `alibi` and `embedding_norm` that of the BigScience Workshop,
    "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model" (2022).

    With positions whose frequencies depend on the length of a sequence ("dynamic" and
    "longrope", see `attnpy.positions.Rotary`), `caches` keep keys as they were rotated
    when they were appended. `generate` computes them again where "longrope" changes to
    its long factors.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder
    >>> from attnpy.positions import Rotary
    >>> rng = np.random.default_rng(0)
    >>> gpt = CausalDecoder(
    ...     2, 16, 4, 64, vocab_size=100, max_length=32, activation="gelu_tanh", rng=rng
    ... )
    >>> llama = CausalDecoder(
    ...     2, 16, 4, 64, vocab_size=100, rotary=Rotary(4), tied=False, num_kv_heads=2,
    ...     norm="rms", activation="swiglu", bias=False, rng=rng,
    ... )
    >>> states = llama([5, 17, 3])
    >>> llama.logits(states).shape
    (3, 100)
    >>> new = gpt.generate([5, 17, 3], 4)
    >>> scores = gpt.logits(gpt([5, 17, 3, *new[:3]]))
    >>> bool((new == scores[2:].argmax(axis=-1)).all())
    True
    """

    token_embedding: Array
    position_embedding: Array | None
    position_offset: int
    embedding_norm: LayerNorm | RMSNorm | None
    output: Array | None
    output_bias: Array | None
    W_out: Array | None
    classifier_weight: Array | None
    tied: bool | None
    stop: tuple[int, ...]
    config: dict[str, Any] | None
    decoder: Decoder
    alibi: bool
    rotary: Rotary | list[Rotary] | list[Rotary | None] | None
    window: Window | list[Window | None] | None
    scale: float | list[float] | None
    softcap: float | None
    logit_softcap: float | None
    embedding_scale: float | None
    logit_scale: float | None

    def __init__(
        self,
        num_layers: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        vocab_size: int,
        max_length: int | None = None,
        position_offset: int = 0,
        rotary: Rotary | list[Rotary] | list[Rotary | None] | None = None,
        alibi: bool = False,
        embedding_norm: bool = False,
        window: Window | list[Window | None] | None = None,
        scale: float | list[float] | None = None,
        softcap: float | None = None,
        logit_softcap: float | None = None,
        embedding_scale: float | None = None,
        residual_scale: float | None = None,
        logit_scale: float | None = None,
        tied: bool | None = True,
        stop: ArrayLike | None = None,
        qkv_bias: bool | None = None,
        out_bias: bool | None = None,
        feed_forward_bias: bool | None = None,
        head_sizes: Sequence[tuple[int, int]] | None = None,
        qk_norm: bool | Literal["all heads"] = False,
        value_norm: bool = False,
        sinks: bool = False,
        norm_after: bool | Literal["only"] = False,
        parallel: bool | Literal["one norm"] = False,
        input_dim: int | None = None,
        layer_scalars: bool = False,
        output_dim: int | None = None,
        output_bias: bool = False,
        num_labels: int | None = None,
        num_experts: int | None = None,
        num_experts_per_token: int | None = None,
        renormalize: bool = True,
        expert_dim: int | None = None,
        shared_dim: int | None = None,
        router_bias: bool = False,
        dense_layers: Sequence[int] = (),
        **options: Unpack[DecoderOptions],
    ) -> None:
        refused = {"cross_attention", "context_dim"} & options.keys()
        _keywords.refuse(refused, (), "CausalDecoder()")
        options = {"norm_first": True, **options, "cross_attention": False}
        dtype, rng = options.get("dtype", np.float32), options.get("rng")
        options["rng"] = rng = _checks.generator(rng)
        eps = options.get("eps", 1e-5)
        self.decoder = Decoder(num_layers, embed_dim, num_heads, hidden_dim, **options)
        if head_sizes is not None:
            _parts.set_head_sizes(self.decoder.layers, head_sizes, rng)
        for layer in self.decoder.layers:
            mha, network = layer.self_attention, layer.feed_forward
            _parts.set_biases(mha, ("q", "k", "v"), qkv_bias, "qkv_bias")
            _parts.set_biases(mha, ("o",), out_bias, "out_bias")
            name = "feed_forward_bias"
            assert isinstance(network, FeedForward)  # as yet
            _parts.set_biases(network, ("1", "2", "gate"), feed_forward_bias, name)
            _parts.set_qk_norms(mha, qk_norm, eps, dtype)
            if _checks.flag(sinks, "sinks"):
                mha.sinks = np.zeros(mha.num_heads, mha.W_q.dtype)
            _parts.set_norms(layer, norm_after, parallel)
            layer.residual_scale = _factor(residual_scale, "residual_scale")
            _stack.check_parallel(layer)
            if _checks.flag(value_norm, "value_norm"):
                layer.self_attention = ValueNormedAttention.of(mha, eps)
        _parts.set_experts(
            self.decoder.layers,
            rng,
            num_experts=num_experts,
            num_experts_per_token=num_experts_per_token,
            renormalize=renormalize,
            expert_dim=expert_dim,
            shared_dim=shared_dim,
            dense_layers=dense_layers,
            router_bias=router_bias,
        )
        self.tied = None if tied is None else _checks.flag(tied, "tied")
        self.position_offset = _checks.size(position_offset, "position_offset")
        if position_offset and max_length is None:
            raise ValueError(
                f"position_offset: expected 0 without max_length, got {position_offset}"
            )
        self.alibi = _checks.flag(alibi, "alibi")
        if self.alibi and (rotary is not None or max_length is not None):
            raise ValueError(
                "alibi: expected False with rotary or max_length, got True"
            )
        self.embedding_norm = None
        if _checks.flag(embedding_norm, "embedding_norm"):
            self.embedding_norm = _stack.make_norm(
                options.get("norm", "layer"),
                embed_dim,
                eps,
                options.get("bias", True),
                dtype,
            )
        self._make_tables(
            rng, dtype, vocab_size, embed_dim, output_bias, num_labels, max_length
        )
        if _checks.flag(layer_scalars, "layer_scalars") or input_dim is not None:
            self.decoder = InputDecoder.of(
                self.decoder, input_dim, layer_scalars, eps, dtype, rng
            )
        self.W_out = None
        if output_dim is not None:
            if self.tied is not None or num_labels is not None:
                raise ValueError(
                    "output_dim: expected None in a model with scores or a classifier, "
                    f"got {output_dim}"
                )
            n_columns = _checks.count(output_dim, "output_dim")
            self.W_out = _embedding.table(rng, embed_dim, "embed_dim", n_columns, dtype)
        stops = sampling.checked_stops(stop, len(self.token_embedding))
        self.stop = tuple(stops.tolist())
        self.config = None
        _parts.set_options(
            self.decoder.layers, dtype, window=window, rotary=rotary, scale=scale
        )
        self.rotary, self.window, self.scale = rotary, window, scale
        self.softcap = _factor(softcap, "softcap")
        self.logit_softcap = _factor(logit_softcap, "logit_softcap")
        self.embedding_scale = _factor(embedding_scale, "embedding_scale")
        self.logit_scale = _factor(logit_scale, "logit_scale")

    def _make_tables(
        self,
        rng: np.random.Generator,
        dtype: DTypeLike,
        vocab_size: int,
        embed_dim: int,
        output_bias: bool,
        num_labels: int | None,
        max_length: int | None,
    ) -> None:
        """Draw the embeddings and the matrices of scores."""
        self.token_embedding = _embedding.table(
            rng, vocab_size, "vocab_size", embed_dim, dtype, "F" if self.tied else "C"
        )
        self.output = None
        if self.tied is False:
            self.output = _embedding.table(
                rng, embed_dim, "embed_dim", vocab_size, dtype
            )
        self.output_bias = None
        if _checks.flag(output_bias, "output_bias"):
            if self.tied is None:
                raise ValueError("output_bias: expected False without scores, got True")
            self.output_bias = np.zeros(vocab_size, self.token_embedding.dtype)
        self.classifier_weight = None
        if num_labels is not None:
            self.classifier_weight = _embedding.table(
                *(rng, embed_dim, "embed_dim"),
                _checks.count(num_labels, "num_labels"),
                dtype,
            )
        self.position_embedding = None
        if max_length is not None:
            n_rows = _checks.count(max_length, "max_length") + self.position_offset
            self.position_embedding = _embedding.table(
                rng, n_rows, "max_length", embed_dim, dtype
            )

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _scores.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        first, positions = self.decoder.layers[0], self._position_rows
        return {
            **_stack.stack_fields(self.decoder),
            "norm_first": None if first.norm_first else False,
            "cross_attention": None,
            "vocab_size": len(self.token_embedding),
            "max_length": None if positions is None else len(positions),
            "position_offset": self.position_offset or None,
            "rotary": self.rotary,
            "alibi": self.alibi,
            "embedding_norm": self.embedding_norm is not None,
            "window": self.window,
            "scale": self.scale,
            "softcap": self.softcap,
            "logit_softcap": self.logit_softcap,
            "embedding_scale": self.embedding_scale,
            "residual_scale": first.residual_scale,
            "logit_scale": self.logit_scale,
            "tied": _repr.Plain(None) if self.tied is None else self.tied,
            "stop": self.stop or None,
            "head_sizes": _parts.head_sizes_of(self.decoder.layers),
            "qk_norm": _parts.qk_norm_of(first.self_attention),
            "value_norm": isinstance(first.self_attention, ValueNormedAttention),
            "sinks": first.self_attention.sinks is not None,
            "norm_after": "only" if first.norm_1 is None else first.after_1 is not None,
            "parallel": first.parallel
            and ("one norm" if first.norm_3 is None else True),
            **input_fields(self.decoder),
            "output_dim": None if self.W_out is None else self.embed_dim,
            "output_bias": self.output_bias is not None,
            "num_labels": self.num_labels,
            **_parts.experts_fields(self.decoder.layers),
        }

    __repr__ = _repr.shows(_shown)

    @property
    def vocab_size(self) -> int:
        """`V`, from token_embedding."""
        return len(self.token_embedding)

    @property
    def num_labels(self) -> int | None:
        """How many scores `classify` gives, from classifier_weight."""
        weight = self.classifier_weight
        return None if weight is None else int(weight.shape[1])

    @property
    def embed_dim(self) -> int:
        """The size `E` of the vectors that come out."""
        last = self.token_embedding if self.W_out is None else self.W_out
        embed_dim: int = last.shape[1]
        return embed_dim

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a text: those with positions.

        Without a table of positions it is ``max_position_embeddings`` of `config`, or
        2**31 - 1.
        """
        if (positions := self._position_rows) is not None:
            return len(positions)
        said = (self.config or {}).get("max_position_embeddings")
        return 2**31 - 1 if said is None else int(said)

    @property
    def _position_rows(self) -> Array | None:
        """The rows of the table of positions that tokens have, (max_length, E)."""
        table = self.position_embedding
        return None if table is None else table[self.position_offset :]

    prefill = sampling.prefill
    generate = sampling.generate
    stream = sampling.stream

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        logits: bool = True,
        classifier: bool = False,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> CausalDecoder:
        """Return a model of the sizes of a configuration.

        Parameters
        ----------
        config : mapping
            With the keys of the Hugging Face configuration; its ``model_type`` is
            "gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2",
            "gemma3_text", "smollm3", "granite", "phi", "gpt_neox", "olmo2", "olmo3",
            "exaone", "exaone4", "ernie4_5", "starcoder2", "stablelm", "nemotron",
            "cohere", "cohere2", "glm", "glm4", "arcee", "seed_oss", "granitemoehybrid"
            (Granite 4 without Mamba and experts), "gpt_neo", "gpt_bigcode", "opt",
            "gptj", "falcon", "bloom", "mpt", "mixtral", "olmoe", "qwen2_moe",
            "qwen3_moe", "granitemoe", "gpt_oss" or "embedding_gemma2_text".
            Of a "gemma3" or "embedding_gemma2" with pictures it is the text model.
            A ``sliding_window`` of W lets a token see W tokens, including itself. If
            both are given, ``rope_scaling`` wins over ``rope_parameters``.
            ``eos_token_id`` becomes `stop`, without tokens that are not in the
            vocabulary. Keys that do not change the computation are ignored, and all
            others are refused, unless null.
        logits : bool, optional
            False makes a model without `logits`, for the tokens' vectors: `tied` is
            None. Of "embedding_gemma2_text" there is no other.
        classifier : bool, optional
            Have a classifier of texts in place of `logits`, with as many scores as
            ``id2label`` or ``num_labels`` says, by default 2.
        dtype, rng
            As in `attnpy.blocks.DecoderLayer`.

        Returns
        -------
        CausalDecoder

        Raises
        ------
        TypeError
            If `config` is not a mapping, or a number in the scaling of positions is of
            another kind.
        ValueError
            If keys are missing or unknown, have values of a wrong kind, or ask for
            features that this model lacks; the message lists all of them.
        """
        family = _hf_config.decoder(_checks.mapping(config, "config"))
        config = _hf_config.unwrapped(config, family)
        options = _hf_config.arguments(config, family)
        if _checks.flag(classifier, "classifier"):
            if not family.names.classifier:
                raise ValueError(
                    f"classifier: expected False, as {family.model_type} has no such "
                    "head here, got True"
                )
            options["num_labels"] = _hf_config.num_labels(config)
        if not _checks.flag(logits, "logits") or classifier:
            options["tied"] = None
            options.pop("output_bias", None)
        model = cls(**options, dtype=dtype, rng=rng)
        model.config = copy.deepcopy(dict(config))
        if family.names.one_less:
            model._widen_norms()
        return model

    def _widen_norms(self) -> None:
        """Keep norm weights in a wider dtype: 1 was added to those of a 16-bit file."""
        norms = [self.decoder.norm]
        for layer in self.decoder.layers:
            mha = layer.self_attention
            norms += [layer.norm_1, layer.norm_3, layer.after_1, layer.after_3]
            norms += [mha.q_norm, mha.k_norm]
        for norm in norms:
            if norm is not None:
                wide = _dtypes.arithmetic(norm.weight.dtype)
                norm.weight = norm.weight.astype(wide)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        logits: bool = True,
        classifier: bool = False,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        ignore_head: bool = False,
        progress: bool | None = None,
    ) -> CausalDecoder:
        """Read a model from a folder.

        Parameters
        ----------
        folder : str or path
            With ``config.json``, and weights: ``model.safetensors``,
            ``pytorch_model.bin``, or the index of several of one kind.
            With a ``generation_config.json``, `stop` is its ``eos_token_id`` instead of
            that of ``config.json``.
        logits : bool, optional
            As in `from_config`. Use False for files without ``lm_head.weight``; it is
            ignored if present.
        classifier : bool, optional
            As in `from_config`: read the classifier of a ``ForSequenceClassification``.
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
            matrices of a folder of compressed-tensors, or of gpt-oss in MXFP4, the
            integers that they are there.
        activations : {"float", "int8"}, optional
            How rows are multiplied with integers, as `attnpy.quantize` explains: "int8"
            is faster and less accurate.
        ignore_head : bool, optional
            Read only the model below a head that `CausalDecoder` does not have, such as
            that of ``LlamaForTokenClassification``, as ``AutoModel`` of Transformers
            does. By default such a folder is refused, so that no head is lost silently.
        progress : bool, optional
            Show a progress bar on standard error, if that is a terminal and the work
            takes longer than a second. True needs the tqdm package; None, the default,
            shows no bar if it is not installed.

        Returns
        -------
        CausalDecoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the safetensors package is not installed, or ml_dtypes for bfloat16, or
            tqdm for `progress`; if a file is missing.
        ValueError
            If the configuration is of another kind, or weights are missing, unexpected
            or of wrong shapes.
        """

        def make(config: Mapping[str, Any], **options: Any) -> CausalDecoder:
            model = cls.from_config(
                config, logits=logits, classifier=classifier, **options
            )
            ends = _pretrained.stop(folder, len(model.token_embedding))
            model.stop = model.stop if ends is None else ends
            return model

        return _pretrained.read(
            *(make, folder, dtype, packed, ignore_head, progress),
            *(weights, activations),
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
    ) -> CausalDecoder:
        """Read a model from a GGUF file, as llama.cpp has them.

        Parameters
        ----------
        file : str, path, or attnpy.checkpoints.GgufFile
            Of the architecture "llama" (Mistral, Mixtral and SmolLM among them),
            "qwen2", "qwen3", "qwen3moe", "phi2", "phi3", "gemma", "gemma2", "gemma3",
            "olmo2" (OLMo 2 and 3), "olmoe", "exaone4", "ernie4_5", "smollm3",
            "granite", "granitemoe", "stablelm", "starcoder2", "nemotron", "command-r",
            "cohere2", "glm4", "arcee", "seed_oss", "gpt-oss", "gpt2" or "starcoder",
            with arrays of the types that `attnpy.checkpoints.GgufFile` reads: files
            named Q2_K, Q3_K_M, Q4_0, Q4_1, Q4_K_M, Q5_K_M, Q6_K, Q8_0, IQ4_NL, IQ4_XS,
            MXFP4, F16, BF16 and alike.
        classifier : bool, optional
            Read the head of a reranker such as Qwen3-Reranker, whose ``pooling_type``
            is 4, for `classify`, in place of `logits`.
        dtype : dtype, optional
            Of the model. Quantised numbers are converted to float32, then rounded to
            it. "bfloat16" is a dtype with the ml_dtypes package.
        packed, progress
            As in `from_pretrained`.
        weights : {"file"}, optional
            Keep the integers of the file in matrices and tables, as
            `attnpy.checkpoints.GgufFile.quantized` does: less memory, faster tokens.
            Products are with the same numbers as without, summed as `attnpy.quantize`
            says. Matrices which are several here (Phi-3's of queries, keys and values)
            and those without integers become numbers.
        activations : {"float", "int8"}, optional
            How rows are multiplied with integers that are kept, as `attnpy.quantize`
            explains: "int8" is faster and less accurate.

        Returns
        -------
        CausalDecoder
            Its `stop` are the end tokens of the file.

        Raises
        ------
        ImportError, FileNotFoundError
            If the gguf package is not installed, ml_dtypes for bfloat16 or tqdm for
            `progress`; if the file is missing.
        TypeError
            If `dtype` is not float32 with `weights`.
        ValueError
            If the file is damaged or of another architecture, or has a key, a type or
            an array that is not honoured; the message has all of them. If `weights` or
            `activations` is another word, or "int8" is asked for without `weights`.

        See Also
        --------
        attnpy.checkpoints.load_gguf : the file's tokenizer and template of chats.

        Notes
        -----
        The model takes the memory of its `dtype`, or that of the file with `weights`,
        and reading it no more than one matrix above that.

        Examples
        --------
        >>> from attnpy import checkpoints
        >>> from attnpy.models import CausalDecoder
        >>> file = checkpoints.load_gguf("model.gguf")  # doctest: +SKIP
        >>> model = CausalDecoder.from_gguf(file)  # doctest: +SKIP
        >>> tokenizer = file.tokenizer()  # doctest: +SKIP
        >>> ids = tokenizer.encode("The capital of France is").ids  # doctest: +SKIP
        >>> tokenizer.decode(model.generate(ids, 5))  # doctest: +SKIP
        ' Paris. The city of'
        """
        has_head = _checks.flag(classifier, "classifier")
        make = functools.partial(cls.from_config, classifier=has_head)
        return _gguf.read(
            *(make, file, dtype, packed, progress, weights, activations),
            kind="scoring decoder" if has_head else "decoder",
        )

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that Transformers reads, and `from_pretrained`.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            ``config.json``, that of which the model was made; ``model.safetensors``, in
            the model's dtype; ``generation_config.json``, with `stop`.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model was not made by `from_config` or `from_pretrained`, or has
            other sizes or options since.

        Notes
        -----
        With scores it is a ``ForCausalLM``, and with a classifier a
        ``ForSequenceClassification``. A quantised model is saved with the numbers that
        its integers stand for. A tokenizer is not written: copy ``tokenizer.json``
        beside it.
        """
        has_scores, has_classifier = self.tied is not None, self.num_labels is not None
        if has_scores and has_classifier:
            raise ValueError("model: expected logits or a classifier to save, got both")

        def again(config: dict[str, Any]) -> CausalDecoder:
            return CausalDecoder.from_config(
                config,
                logits=has_scores,
                classifier=has_classifier,
                dtype=self.token_embedding.dtype,
                rng=_parameters.Unset(),
            )

        head = "ForSequenceClassification" if has_classifier else None
        _saving.save(self, folder, again, "" if has_scores else head)

    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: Literal[False] = ...,
        return_hidden_states: Literal[False] = ...,
        **options: Unpack[CausalCall],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: Literal[True],
        return_hidden_states: bool = ...,
        **options: Unpack[CausalChosenCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: bool = ...,
        return_hidden_states: Literal[True],
        **options: Unpack[CausalChosenCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: bool,
        return_hidden_states: bool = ...,
        **options: Unpack[CausalChosenCall],
    ) -> Array | ModelOutput: ...
    @overload
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        return_weights: bool = ...,
        return_hidden_states: bool,
        **options: Unpack[CausalChosenCall],
    ) -> Array | ModelOutput: ...
    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        caches: Sequence[KVCache] | None = None,
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
            0 to ``V - 1``; with `caches` only new tokens.
        lengths : int or array_like of int, shape (B,), optional
            How many of the tokens exist, at the start of each sequence. The others are
            padding: they cost next to nothing, and their own vectors mean nothing.
        caches : list of KVCache, optional
            From `new_caches`; the tokens are appended. A sequence gives the same bits
            in one call, in chunks, and token by token, except where frequencies depend
            on the length (see the notes).
        return_weights : bool, optional
            Return the weights of the layers' attention as well, in an
            `attnpy.blocks.ModelOutput`. No bit of the output depends on it.
        return_hidden_states : bool, optional
            Return the input of the first layer and the result of each layer as well, in
            an `attnpy.blocks.ModelOutput`. The name is Hugging Face's. With
            `output_dim` the last one is what is multiplied by `W_out`.
        layers, heads : int or sequence of int, optional
            Which layers and heads, as in `attnpy.blocks.Encoder.__call__`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            With `return_weights` or `return_hidden_states` an
            `attnpy.blocks.ModelOutput`, whose weights are (layers, H, L, Lk) or
            (layers, B, H, L, Lk), where `Lk` is `L`, or the longest length in the
            caches, with the new tokens in it.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
            The caches have not changed after an error.
        """
        ids = _embedding.checked_ids(token_ids, self.vocab_size)
        past, ends = self._past(ids, caches), None
        positions = self._positions(ids, past)
        if lengths is not None:
            ends = _embedding.checked_lengths(lengths, ids, 0)
            # Padding has no position, and may be past the last one of the table.
            exists = np.arange(ids.shape[-1]) < ends.reshape(*ids.shape[:-1], 1)
            positions = np.where(exists, positions, 0)
        tokens = self._embed(ids, positions, num_threads)
        tokens = _stack.normalized(self.embedding_norm, tokens, num_threads)
        each = ids.shape[-1] if ends is None else ends

        def run(
            tokens: Array, seq_offsets: NDArray[np.int64] | None
        ) -> Array | ModelOutput:
            result = self.decoder(
                tokens,
                caches=caches,
                bias=self._bias(_embedding.longest(tokens, seq_offsets), past, each),
                seq_offsets=seq_offsets,
                mixed=_embedding.is_mixed(self.token_embedding),
                **self._attention_options(),
                return_weights=return_weights,
                return_hidden_states=return_hidden_states,
                layers=layers,
                heads=heads,
                num_threads=num_threads,
            )
            return self._projected(result, num_threads)

        cached = caches is not None
        return _embedding.run_existing(
            tokens, ends, run, self.token_embedding, num_threads, cached
        )

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
            For calls, `generate` and `stream`.
        """
        return self.decoder.new_caches(
            batch_size, capacity, dtype=dtype, growable=growable
        )

    def new_page_pools(
        self, num_pages: int, *, dtype: DTypeLike | None = None
    ) -> list[PagePool]:
        """Return pages for the caches of each layer.

        Parameters
        ----------
        num_pages, dtype
            As in `attnpy.blocks.Decoder.new_page_pools`.

        Returns
        -------
        list of PagePool
            ``[PagedKVCache(pool, batch_size) for pool in pools]`` are caches for calls,
            `generate` and `stream`.
        """
        return self.decoder.new_page_pools(num_pages, dtype=dtype)

    def _check_generates(self) -> None:
        if self.tied is None:
            raise ValueError("tied: expected True or False to generate, got None")
        if not self.decoder.layers[0].causal:
            raise ValueError(
                "causal: expected True to generate, got a model with False"
            )

    def _check_length(self, num_tokens: int) -> None:
        if (positions := self._position_rows) is not None:
            _embedding.check_positions(num_tokens, positions)

    def _checked_caches(self, caches: object) -> list[KVCache]:
        return checked_caches(caches, "caches", len(self.decoder.layers))

    def _depends_on_length(self) -> bool:
        rotaries = self.rotary if isinstance(self.rotary, list) else [self.rotary]
        return any(rotary is not None and by_length(rotary) for rotary in rotaries)

    def _lefts(self) -> list[int | None]:
        if _parts.is_windows(self.window):
            return [None if window is None else window[0] for window in self.window]
        left = None if self.window is None else self.window[0]
        return [left] * len(self.decoder.layers)

    def _keys_change(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> bool:
        rotaries = self.rotary if isinstance(self.rotary, list) else [self.rotary]
        return any(
            rotary is not None and changes_once(rotary, before, after)
            for rotary in rotaries
        )

    def vjp(
        self,
        token_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        logits: bool = False,
        checkpoint: bool = False,
        num_threads: int | None = None,
    ) -> tuple[Array, Callable[[ArrayLike], dict[str, Array]]]:
        """Return the tokens' vectors, or their scores, and the pullback of gradients.

        Parameters
        ----------
        token_ids, lengths, num_threads
            As in a call. Without `caches`: a sequence is computed as a whole.
        logits : bool, optional
            Return what `logits` makes of the vectors, and differentiate that.
        checkpoint : bool, optional
            As in `attnpy.blocks.Encoder.vjp`.

        Returns
        -------
        output : ndarray, shape (L, E) or (B, L, E), or with V in the place of E
            With the bits of a call, and of `logits`.
        pullback : callable
            Takes the gradient with respect to the output, and returns those of the
            parameters, a dict with the names of `parameters`. Where the embeddings are
            `tied`, their gradient is the sum of both uses.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are packed, or not float32 or float64.

        See Also
        --------
        attnpy.training.cross_entropy : the loss of scores, and its gradient.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.models import CausalDecoder
        >>> rng = np.random.default_rng(0)
        >>> model = CausalDecoder(
        ...     2, 16, 4, 64, vocab_size=100, max_length=32, rng=rng
        ... )
        >>> scores, pullback = model.vjp([5, 17, 3], logits=True)
        >>> scores.shape
        (3, 100)
        >>> gradients = pullback(np.ones_like(scores))
        >>> gradients.keys() == model.parameters().keys()
        True
        """
        _vjp.check_trainable(
            self,
            (
                *("token_embedding", "position_embedding"),
                *("output", "output_bias", "W_out"),
            ),
        )
        ids = _embedding.checked_ids(token_ids, self.vocab_size)
        positions = self._positions(ids, None)
        tokens, of_scores = self._embed(ids, positions, num_threads), None
        of_norm = None
        if self.embedding_norm is not None:
            tokens, of_norm = self.embedding_norm.vjp(tokens, num_threads=num_threads)

        def run(
            tokens: Array, seq_offsets: NDArray[np.int64] | None
        ) -> tuple[Array, Pullback]:
            return self.decoder.vjp(
                tokens,
                bias=self._bias(_embedding.longest(tokens, seq_offsets)),
                seq_offsets=seq_offsets,
                checkpoint=checkpoint,
                num_threads=num_threads,
                **self._attention_options(),
            )

        ends = None
        if lengths is not None:
            ends = _embedding.checked_lengths(lengths, ids, 0)
        output, of_states = _embedding.existing_vjp(tokens, ends, run)
        states, weight = output, self.W_out
        if weight is not None:
            output = linear(states, weight, num_threads=num_threads)
        if _checks.flag(logits, "logits"):
            output, of_scores = self.logits_vjp(output, num_threads=num_threads)
        checked = _vjp.of_output(output)

        def pullback(grad_output: ArrayLike) -> dict[str, Array]:
            collected = _vjp.Collector(self)
            if of_scores is not None:
                found = of_scores(grad_output)
                collected.add(found.parameters)
                grad_output = found.x
            if weight is not None:
                grad = checked(grad_output)
                grad_output, of_weight, _ = linear_vjp(
                    grad, states, weight, None, num_threads=num_threads
                )
                collected.add({"W_out": of_weight})
            found = of_states(grad_output)
            collected.add(found.parameters, "decoder.")
            if of_norm is not None:
                found = of_norm(found.x)
                collected.add(found.parameters, "embedding_norm.")
            self._add_of_embeddings(collected, ids, positions, found.x)
            return collected.parameters()

        return output, pullback

    def logits_vjp(
        self, states: ArrayLike, *, num_threads: int | None = None
    ) -> tuple[Array, Pullback]:
        """Return what `logits` does, and the pullback of gradients.

        Parameters
        ----------
        states, num_threads
            As in `logits`.

        Returns
        -------
        scores : ndarray, shape (..., V)
        pullback : callable
            Takes the gradient with respect to the scores, and returns an
            `attnpy.layers.LayerGradients`: `x` is that of the states, and the
            parameters are ``token_embedding`` or ``output``, and ``output_bias``.

        Raises
        ------
        TypeError, ValueError
            As `logits`; if the parameters are packed, or not float32 or float64.
        """
        _vjp.check_trainable(self, ("token_embedding", "output", "output_bias"))
        tokens, cap = _vjp.floating(states, "states"), self.logit_softcap
        scores = self.logits(tokens, num_threads=num_threads)
        weight = _scores.matrix(self)
        checked, derivative = _vjp.of_output(scores), None
        if cap is not None:  # 1 - tanh^2, where scores are C tanh
            derivative = scores / np.asarray(cap, scores.dtype)
            np.subtract(1, np.square(derivative, out=derivative), out=derivative)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            grad = checked(grad_output)
            if derivative is not None:
                grad = grad * derivative
            if self.logit_scale is not None:
                grad = _stack.scaled(grad, self.logit_scale)
            of_states, of_weight, of_bias = linear_vjp(
                grad, tokens, weight, self.output_bias, num_threads=num_threads
            )
            if self.output is None:
                found = {"token_embedding": of_weight.T}
            else:
                found = {"output": of_weight}
            if of_bias is not None:
                found["output_bias"] = of_bias
            return LayerGradients(of_states, found)

        return scores, pullback

    def _projected(
        self, result: Array | ModelOutput, num_threads: int | None
    ) -> Array | ModelOutput:
        """Return what comes of a stack's result, or of its vectors (..., E)."""
        if self.W_out is None:
            return result
        if isinstance(result, ModelOutput):
            output = self._projected(result.output, num_threads)
            assert isinstance(output, np.ndarray)
            return result._replace(output=output)
        precision: Precision = "promoted"
        if _embedding.is_mixed(self.token_embedding):
            precision = "wide"
        return linear(result, self.W_out, precision=precision, num_threads=num_threads)

    def _embed(
        self,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        num_threads: int | None,
    ) -> Array:
        """Return the embeddings before a norm, (L, E) or (B, L, E)."""
        factor, added = 1.0, []
        if self.embedding_scale is not None:
            scale = np.asarray(self.embedding_scale, self.token_embedding.dtype)
            factor = float(scale)
        if (rows := self._position_rows) is not None:
            n_positions = int(positions.max(initial=-1)) + 1
            _embedding.check_positions(n_positions, rows)
            added.append((rows, positions))
        return _embedding.looked_up(
            self.token_embedding, ids, *added, factor=factor, num_threads=num_threads
        )

    def _add_of_embeddings(
        self,
        collected: _vjp.Collector,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        grad: Array,
    ) -> None:
        """Add the gradients of the tables that `_embed` looks up."""
        if self.position_embedding is not None:
            places = np.broadcast_to(positions + self.position_offset, ids.shape)
            table = _vjp.look_up_vjp(self.position_embedding, places, grad)
            collected.add({"position_embedding": table})
        if self.embedding_scale is not None:
            grad = grad * np.asarray(self.embedding_scale, grad.dtype)
        table = _vjp.look_up_vjp(self.token_embedding, ids, grad)
        collected.add({"token_embedding": table})

    def _attention_options(self) -> dict[str, Any]:
        """Return those that are the same for all layers."""
        common = _parts.common_options(
            window=self.window, rotary=self.rotary, scale=self.scale
        )
        return {**common, "softcap": self.softcap}

    def _past(
        self, ids: NDArray[np.int64], caches: Sequence[KVCache] | None
    ) -> NDArray[np.int64] | None:
        """Return how many tokens of each sequence are in the caches, (B,)."""
        if caches is None:
            return None
        batch = 1 if ids.ndim == 1 else len(ids)
        first = self._checked_caches(caches)[0]
        if first.batch_size != batch:
            raise ValueError(
                f"caches: expected B = {batch} as token_ids, got {first.batch_size}"
            )
        return first.lengths

    def _positions(
        self, ids: NDArray[np.int64], past: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        """Return where the tokens stand, (L,) or (B, L)."""
        positions: NDArray[np.int64] = np.arange(ids.shape[-1])
        if past is None or self.position_embedding is None:
            return positions  # which nothing looks up without a table
        positions = past[:, np.newaxis] + positions
        return positions.reshape(ids.shape)

    def _bias(
        self,
        longest: int,
        past: NDArray[np.int64] | None = None,
        each: NDArray[np.int64] | int = 0,
    ) -> Array | None:
        """Return the bias of all layers' scores, (H, L, Lk) or (B, H, L, Lk)."""
        if not self.alibi:
            return None
        n_heads = self.decoder.layers[0].self_attention.num_heads
        dtype = _dtypes.arithmetic(self.token_embedding.dtype)
        of = functools.partial(alibi_bias, n_heads, dtype=dtype)
        return _parts.bias_of_new(of, longest, past, each)

    def logits(self, states: ArrayLike, *, num_threads: int | None = None) -> Array:
        """Return the scores of all tokens to be the next.

        Parameters
        ----------
        states : array_like, shape (..., E)
            Vectors from a call.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (..., V)

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape. If the model has no
            scores.
        """
        if self.tied is None:
            raise ValueError("tied: expected True or False for scores, got None")
        weight = _scores.matrix(self)
        with _checks.renamed(x="states"):
            scores = linear(states, weight, self.output_bias, num_threads=num_threads)
        if self.logit_scale is not None:
            scores = _stack.scaled(scores, self.logit_scale)
        if self.logit_softcap is None:
            return scores
        cap = np.asarray(self.logit_softcap, scores.dtype)
        capped: Array = tanh(scores / cap, num_threads=num_threads) * cap
        return capped

    def classify(
        self,
        states: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the scores of the labels for each text: of its last token.

        Parameters
        ----------
        states : array_like, shape (L, E) or (B, L, E)
            Vectors from a call.
        lengths : int or array_like of int, shape (B,), optional
            As in that call: how many tokens a text has, at least 1.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (num_labels,) or (B, num_labels)
            Before a softmax or sigmoid: the last token's vector times
            `classifier_weight`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape. If the model has no
            classifier.
        """
        weight, last, _ = self._last(_checks.array(states, "states"), lengths)
        with _checks.renamed(x="states"):
            return linear(last, weight, num_threads=num_threads)

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
            `attnpy.layers.LayerGradients`: `x` is that of the states, and the parameter
            is ``classifier_weight``.

        Raises
        ------
        TypeError, ValueError
            As `classify`; if the parameters are packed, or not float32 or float64.
        """
        _vjp.check_trainable(self, ("classifier_weight",))
        tokens = _vjp.floating(states, "states")
        weight, last, places = self._last(tokens, lengths)
        scores = linear(last, weight, num_threads=num_threads)
        checked = _vjp.of_output(scores)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            of_last, of_weight, _ = linear_vjp(
                checked(grad_output), last, weight, None, num_threads=num_threads
            )
            of_states = np.zeros(tokens.shape, tokens.dtype)
            of_states[places] = of_last
            return LayerGradients(of_states, {"classifier_weight": of_weight})

        return scores, pullback

    def _last(
        self, states: Array, lengths: ArrayLike | None
    ) -> tuple[Array, Array, tuple[Any, ...]]:
        """Return the classifier's matrix, the texts' last vectors, and where they are.

        The vectors are (E,) or (B, E).
        """
        if self.classifier_weight is None:
            raise ValueError(
                "classifier: expected a model with num_labels, or read with "
                "classifier=True, got one without"
            )
        ends = _embedding.checked_states(states, lengths, self.embed_dim, "last")
        places: tuple[Any, ...] = (ends.reshape(states.shape[:-2]) - 1,)
        if states.ndim == 3:
            places = np.arange(len(states)), *places
        return self.classifier_weight, states[places], places


def _factor(number: float | None, name: str) -> float | None:
    return None if number is None else _checks.above(number, name, 0)
