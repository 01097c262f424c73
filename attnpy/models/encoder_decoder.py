"""Encoder-decoders such as T5, BART and Marian: one text becomes another."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np

from attnpy import (
    _checks,
    _dtypes,
    _keywords,
    _packed,
    _parameters,
    _pickles,
    _repr,
    _vjp,
    positions,
)
from attnpy._linear import linear, linear_vjp
from attnpy._vjp import LayerGradients
from attnpy.blocks import Decoder, Encoder, LayerNorm, ModelOutput, _stack
from attnpy.cache import checked_caches
from attnpy.models import (
    _beams,
    _embedding,
    _generation,
    _hf_config,
    _parts,
    _pretrained,
    _saving,
    _score_rules,
    _scores,
    sampling,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from typing_extensions import Unpack

    from attnpy._typing import Array, LayerOptions
    from attnpy._vjp import Pullback
    from attnpy.blocks._stack import Choice
    from attnpy.cache import KVCache
    from attnpy.models._beams import Beams
    from attnpy.models._generation import GenerationOptions

    class CallOptions(TypedDict, total=False):
        """The options of a call."""

        lengths: ArrayLike | None
        target_lengths: ArrayLike | None
        num_threads: int | None

    class ChosenCall(CallOptions, Choice, total=False):
        """The options of a call that returns more than the vectors."""

    class DecodeOptions(TypedDict, total=False):
        """The options of `decode`."""

        context_lengths: ArrayLike | None
        lengths: ArrayLike | None
        caches: Sequence[KVCache] | None
        num_threads: int | None

    class ChosenDecode(DecodeOptions, Choice, total=False):
        """The options of `decode` where it returns more than the vectors."""

    class GenerateOptions(GenerationOptions, total=False):
        """The options of `generate`."""

        lengths: ArrayLike | None
        start: ArrayLike | None
        stop: ArrayLike | None
        rng: np.random.Generator | None
        num_threads: int | None


POSITIONS = "learned", "sinusoidal"
SIDES = "encoder", "decoder"
EMBEDDED = "token_embedding", "encoder_position_embedding", "decoder_position_embedding"
BIASES = "encoder_relative_bias", "decoder_relative_bias"


@_keywords.answering
class EncoderDecoder:
    """An encoder that reads a text, and a decoder that writes another one.

    T5, BART, Marian and others translate, summarise or answer with it.

    Parameters
    ----------
    num_layers, embed_dim, num_heads, hidden_dim : int
        As in `attnpy.blocks.Encoder`.
    vocab_size : int
        `V`, the number of different tokens, of both texts.
    num_decoder_layers, num_decoder_heads, decoder_hidden_dim : int, optional
        Those of the decoder; by default the encoder's.
    positions : {"learned", "sinusoidal"}, optional
        Add a vector for each position to the embeddings: learned ones, or sines,
        followed by cosines. It needs `max_length`.
    max_length : int, optional
        The number of positions.
    position_offset : int, optional
        How many rows of the tables of positions come before that of the first token.
    position_base : float, optional
        Of sinusoidal positions, as in `attnpy.positions.sinusoidal`.
    padding_id : int, optional
        A token that, wherever it is, has no position and is not counted, as in M2M100;
        those that are in caches already are counted there, too. It needs sinusoidal
        positions and a `position_offset`.
    num_buckets, max_distance : int, optional
        Add T5's biases by distance to the scores of self-attention, the same in all
        layers of a side: `attnpy.positions.relative_bias`.
    embedding_norm : bool, optional
        Normalize the embeddings.
    embedding_scale : float, optional
        The tokens' embeddings are multiplied by it.
    scale : float, optional
        Of all attention, as in `attnpy.attention`.
    logit_scale : float, optional
        The decoder's vectors are multiplied by it before the scores.
    tied : bool, optional
        The scores are products with the embeddings, not with a separate matrix.
    output_bias : bool, optional
        Add a number for each token to its score, initially 0.
    start : int, optional
        The token that the decoder begins with.
    stop : int or array_like of int, shape (n,), optional
        Tokens that end a text; by default none.
    generation : mapping, optional
        Arguments of `generate` that it has unless it is told otherwise, by name.
    num_labels : int, optional
        Add a head with this many scores of a text: `classify`. It needs `start` and
        `scored_token`.
    scored_token : int, optional
        The token by whose vector a text is scored: where it comes last in the text.
    **options
        As in `attnpy.blocks.EncoderLayer`: `head_dim`, `norm_first`, `norm`, `eps`,
        `activation`, `bias`, `dtype`, `rng`.

    Attributes
    ----------
    token_embedding : ndarray, shape (V, E)
        With `tied` the transpose of an array in C order, which products read fastest.
    encoder_position_embedding, decoder_position_embedding : ndarray or None
        Of shape (position_offset + max_length, E). None unless positions are learned.
    encoder_relative_bias, decoder_relative_bias : ndarray or None
        Of shape (num_buckets, H). None without `num_buckets`.
    encoder_embedding_norm, decoder_embedding_norm : attnpy.blocks.LayerNorm or None
        None without `embedding_norm`.
    encoder : attnpy.blocks.Encoder
    decoder : attnpy.blocks.Decoder
    output : ndarray, shape (E, V), or None
        None with `tied`.
    output_bias : ndarray, shape (1, V), or None
        In the shape in which checkpoints have it.
    pooler_weight, pooler_bias : ndarray, shape (E, E) and (E,), or None
    classifier_weight, classifier_bias : ndarray or None
        Of shape (E, num_labels) and (num_labels,). None without `num_labels`, as those
        of the pooler are.
    vocab_size : int
        `V`.
    max_tokens : int
        The largest number of tokens of a text: `max_length`, or 2**31 - 1.
    generation : dict
        As given. A model from a folder has what its ``generation_config.json`` says.
        May be changed.
    config : dict or None
        The configuration of `from_config`, which `save_pretrained` writes.
    start, stop, positions, max_length, position_offset, position_base, padding_id
        As given.
    max_distance, embedding_scale, scale, logit_scale, tied, scored_token
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters.

    Notes
    -----
    The model of Vaswani et al., "Attention Is All You Need" (2017). The others differ
    in positions, norms and scores: Raffel et al., "Exploring the Limits of Transfer
    Learning with a Unified Text-to-Text Transformer" (2020); Lewis et al., "BART:
    Denoising Sequence-to-Sequence Pre-training for Natural Language Generation,
    Translation, and Comprehension" (2020); Junczys-Dowmunt et al., "Marian: Fast Neural
    Machine Translation in C++" (2018).

    A text gives the same bits alone and in a batch with longer ones.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import EncoderDecoder
    >>> model = EncoderDecoder(
    ...     2, 16, 4, 64, vocab_size=100, positions="sinusoidal", max_length=32,
    ...     start=0, stop=1, rng=np.random.default_rng(0),
    ... )
    >>> source, target = [5, 17, 3, 1], [0, 8, 2]
    >>> vectors = model(source, target)
    >>> model.logits(vectors).shape
    (3, 100)
    >>> model.generate(source, 4).shape, model.generate(source, 4, num_beams=3).shape
    ((4,), (4,))

    Where each new token looks in the source:

    >>> result = model(source, target, return_weights=True)
    >>> result.cross_weights.shape  # (layers, H, L, Ls)
    (2, 4, 3, 4)
    """

    token_embedding: Array
    encoder_position_embedding: Array | None
    decoder_position_embedding: Array | None
    encoder_relative_bias: Array | None
    decoder_relative_bias: Array | None
    encoder_embedding_norm: LayerNorm | None
    decoder_embedding_norm: LayerNorm | None
    encoder: Encoder
    decoder: Decoder
    output: Array | None
    output_bias: Array | None
    pooler_weight: Array | None
    pooler_bias: Array | None
    classifier_weight: Array | None
    classifier_bias: Array | None
    scored_token: int | None
    start: int | None
    stop: tuple[int, ...]
    generation: dict[str, Any]
    config: dict[str, Any] | None
    positions: str | None
    max_length: int | None
    position_offset: int
    position_base: float
    padding_id: int | None
    max_distance: int
    embedding_scale: float | None
    scale: float | None
    logit_scale: float | None
    tied: bool

    def __init__(
        self,
        num_layers: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        vocab_size: int,
        num_decoder_layers: int | None = None,
        num_decoder_heads: int | None = None,
        decoder_hidden_dim: int | None = None,
        positions: Literal["learned", "sinusoidal"] | None = None,
        max_length: int | None = None,
        position_offset: int = 0,
        position_base: float = 10000.0,
        padding_id: int | None = None,
        num_buckets: int | None = None,
        max_distance: int = 128,
        embedding_norm: bool = False,
        embedding_scale: float | None = None,
        scale: float | None = None,
        logit_scale: float | None = None,
        tied: bool = True,
        output_bias: bool = False,
        start: int | None = None,
        stop: ArrayLike | None = None,
        generation: Mapping[str, Any] | None = None,
        num_labels: int | None = None,
        scored_token: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        refused = {"num_kv_heads"} & options.keys()
        _keywords.refuse(refused, (), "EncoderDecoder()")
        dtype, rng = options.get("dtype", np.float32), options.get("rng")
        options["rng"] = rng = _checks.generator(rng)
        self.encoder = Encoder(num_layers, embed_dim, num_heads, hidden_dim, **options)
        self.decoder = Decoder(
            num_layers if num_decoder_layers is None else num_decoder_layers,
            embed_dim,
            num_heads if num_decoder_heads is None else num_decoder_heads,
            hidden_dim if decoder_hidden_dim is None else decoder_hidden_dim,
            **options,
        )
        self.scale = _above_0(scale, "scale")
        for layer in self.decoder.layers:
            layer.context_scale = self.scale
        self.tied = _checks.flag(tied, "tied")
        self.token_embedding = _embedding.table(
            rng, vocab_size, "vocab_size", embed_dim, dtype, "F" if self.tied else "C"
        )
        self.config = self.output = self.output_bias = None
        if not self.tied:
            self.output = _embedding.table(
                rng, embed_dim, "embed_dim", vocab_size, dtype
            )
        kind = self.token_embedding.dtype
        if _checks.flag(output_bias, "output_bias"):
            self.output_bias = np.zeros((1, self.vocab_size), kind)
        self._set_positions(positions, max_length, position_offset, position_base, rng)
        self.padding_id = None
        if padding_id is not None:
            self.padding_id = _checks.size(padding_id, "padding_id")
            if positions != "sinusoidal" or self.position_offset == 0:
                raise ValueError(
                    "padding_id: expected None without sinusoidal positions and a "
                    f"position_offset, got {padding_id}"
                )
        self.encoder_relative_bias = self.decoder_relative_bias = None
        self.max_distance = _checks.count(max_distance, "max_distance")
        if num_buckets is not None:
            self._set_relative_biases(num_buckets, rng, dtype)
        self.encoder_embedding_norm = self.decoder_embedding_norm = None
        if _checks.flag(embedding_norm, "embedding_norm"):
            eps, bias = options.get("eps", 1e-5), options.get("bias", True)
            for side in SIDES:
                norm = LayerNorm(embed_dim, eps=eps, bias=bias, dtype=dtype)
                setattr(self, f"{side}_embedding_norm", norm)
        self.embedding_scale = _above_0(embedding_scale, "embedding_scale")
        self.logit_scale = _above_0(logit_scale, "logit_scale")
        self.start = None
        if start is not None:
            self.start = _checks.size(start, "start")
            _embedding.checked_ids([self.start], self.vocab_size)
        stops = sampling.checked_stops(stop, self.vocab_size)
        self.stop = tuple(stops.tolist())
        self.generation = _generation.checked(
            {} if generation is None else generation, "generation"
        )
        self._set_classifier(num_labels, scored_token, rng)

    def _set_classifier(
        self, num_labels: int | None, scored_token: int | None, rng: np.random.Generator
    ) -> None:
        """Make the head that scores texts, or none."""
        self.pooler_weight = self.pooler_bias = None
        self.classifier_weight = self.classifier_bias = self.scored_token = None
        if scored_token is not None:
            self.scored_token = _checks.size(scored_token, "scored_token")
            with _checks.renamed(token_ids="scored_token"):
                _embedding.checked_ids([self.scored_token], self.vocab_size)
        if num_labels is None:
            return
        for name in ("start", "scored_token"):
            if getattr(self, name) is None:
                raise ValueError(f"{name}: expected a token with num_labels, got None")
        n_labels = _checks.count(num_labels, "num_labels")
        dim, dtype = self.token_embedding.shape[1], self.token_embedding.dtype
        self.pooler_weight = _embedding.table(rng, dim, "embed_dim", dim, dtype)
        self.pooler_bias = np.zeros(dim, dtype)
        self.classifier_weight = _embedding.table(
            rng, dim, "embed_dim", n_labels, dtype
        )
        self.classifier_bias = np.zeros(n_labels, dtype)

    def _set_relative_biases(
        self, num_buckets: int, rng: np.random.Generator, dtype: DTypeLike
    ) -> None:
        """Make the tables of biases by distance, one for each side."""
        for side in SIDES:
            heads = getattr(self, side).layers[0].self_attention.num_heads
            biases = _embedding.table(rng, num_buckets, "num_buckets", heads, dtype)
            setattr(self, f"{side}_relative_bias", biases)
        self._bias("encoder", 1)  # raises its errors
        self._bias("decoder", 1)

    def _set_positions(
        self,
        positions: str | None,
        max_length: int | None,
        offset: int,
        base: float,
        rng: np.random.Generator,
    ) -> None:
        table = self.token_embedding
        self.encoder_position_embedding = self.decoder_position_embedding = None
        self.positions, self.max_length = positions, None
        self.position_offset = _checks.size(offset, "position_offset")
        self.position_base = _checks.above(base, "position_base", 0)
        if positions is None:
            if max_length is not None:
                raise ValueError(
                    f"max_length: expected None without positions, got {max_length}"
                )
            return
        _checks.one_of(positions, "positions", POSITIONS)
        if max_length is None:
            raise ValueError("max_length: expected a number with positions, got None")
        self.max_length = _checks.count(max_length, "max_length")
        if positions == "learned":
            n_rows, dim = self.max_length + self.position_offset, table.shape[1]
            for side in SIDES:
                rows = _embedding.table(rng, n_rows, "max_length", dim, table.dtype)
                setattr(self, f"{side}_position_embedding", rows)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _scores.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        encoder = _stack.stack_fields(self.encoder)
        decoder = _stack.stack_fields(self.decoder)
        buckets = self.encoder_relative_bias
        base, distance = self.position_base, self.max_distance
        return {
            **encoder,
            "num_decoder_layers": _other(encoder, decoder, "num_layers"),
            "num_decoder_heads": _other(encoder, decoder, "num_heads"),
            "decoder_hidden_dim": _other(encoder, decoder, "hidden_dim"),
            "vocab_size": self.vocab_size,
            "positions": self.positions,
            "max_length": self.max_length,
            "position_offset": self.position_offset or None,
            "position_base": None if base == 10000.0 else base,
            "padding_id": self.padding_id,
            "num_buckets": None if buckets is None else len(buckets),
            "max_distance": None if distance == 128 else distance,
            "embedding_norm": self.encoder_embedding_norm is not None or None,
            "embedding_scale": self.embedding_scale,
            "scale": self.scale,
            "logit_scale": self.logit_scale,
            "tied": self.tied,
            "output_bias": self.output_bias is not None or None,
            "start": self.start,
            "stop": self.stop or None,
            "num_labels": self.num_labels,
            "scored_token": self.scored_token,
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
    def max_tokens(self) -> int:
        """The largest number of tokens of a text: `max_length`, or 2**31 - 1."""
        return 2**31 - 1 if self.max_length is None else self.max_length

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        classifier: bool = False,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> EncoderDecoder:
        """Return a model of the sizes of a configuration.

        Parameters
        ----------
        config : mapping
            With the keys of the Hugging Face configuration; its ``model_type`` is "t5",
            "mt5", "bart", "mbart", "marian", "pegasus" or "m2m_100".
            ``decoder_start_token_id`` becomes `start`, ``eos_token_id`` `stop`, without
            tokens that are not in the vocabulary, and other settings of generation
            `generation`. Keys that do not change the computation are ignored, and all
            others are refused, unless null.
        classifier : bool, optional
            Have the head of ``BartForSequenceClassification``, which scores texts, in
            place of the bias of `logits`. It has as many scores as ``id2label`` or
            ``num_labels`` says, by default 3, and `scored_token` is ``eos_token_id``.
        dtype, rng
            As in `attnpy.blocks.EncoderLayer`.

        Returns
        -------
        EncoderDecoder

        Raises
        ------
        TypeError
            If `config` is not a mapping.
        ValueError
            If keys are missing or unknown, have values of a wrong kind, or ask for
            features that this model lacks; the message lists all of them. If the family
            does not have the classifier that is asked for.
        """
        family = _hf_config.encoder_decoder(_checks.mapping(config, "config"))
        if _checks.flag(classifier, "classifier") and not family.names.classifier:
            raise ValueError(
                f"classifier: expected False, as {family.model_type} has no such head "
                "here, got True"
            )
        options = _hf_config.arguments(config, family)
        if classifier:
            options |= _hf_config.head_values(config, family, "text")
            options["num_labels"] = _hf_config.num_labels(config)
            options["output_bias"] = False
        said = _generation.read(config, "config", is_model=True)
        options["generation"] = {**options.get("generation", {}), **said.options}
        model = cls(**options, dtype=dtype, rng=rng)
        model.config = copy.deepcopy(dict(config))
        return model

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        classifier: bool = False,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        ignore_head: bool = False,
        progress: bool | None = None,
    ) -> EncoderDecoder:
        """Read a model from a folder.

        Parameters
        ----------
        folder : str or path
            With ``config.json``, and weights: ``model.safetensors``,
            ``pytorch_model.bin``, or the index of several of one kind. With a
            ``generation_config.json``, this says `start`, `stop` and `generation`
            instead of ``config.json``; its fields are honoured or refused by name.
        classifier : bool, optional
            As in `from_config`. A classifier writes nothing, so that
            ``generation_config.json`` is not read.
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
            Read only the model below a head that `EncoderDecoder` does not have, such
            as that of ``BartForQuestionAnswering``. By default such a folder is
            refused, so that no head is lost silently.
        progress : bool, optional
            Show a progress bar on standard error, if that is a terminal and the work
            takes longer than a second. True needs the tqdm package; None, the default,
            shows no bar if it is not installed.

        Returns
        -------
        EncoderDecoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the safetensors package is not installed, or ml_dtypes for bfloat16, or
            tqdm for `progress`; if a file is missing.
        ValueError
            If the configuration is of another kind, or weights are missing, unexpected
            or of wrong shapes.
        """

        def make(config: Mapping[str, Any], **options: Any) -> EncoderDecoder:
            model = cls.from_config(config, classifier=classifier, **options)
            said = None if classifier else _generation.from_folder(folder)
            if said is not None:
                model.generation = said.options
                model.start = said.start(model.vocab_size)
                model.stop = said.stop(model.vocab_size)
            return model

        return _pretrained.read(
            *(make, folder, dtype, packed, ignore_head, progress),
            *(weights, activations),
        )

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that Transformers reads, and `from_pretrained`.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            ``config.json``, that of which the model was made; ``model.safetensors``, in
            the model's dtype; ``generation_config.json``, with `start`, `stop` and
            `generation`.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model was not made by `from_config` or `from_pretrained`, or has
            other sizes or options since. If a classifier has another `start`.

        Notes
        -----
        It is a ``ForConditionalGeneration``, or with a classifier a
        ``ForSequenceClassification``. A quantised model is saved with the numbers that
        its integers stand for. A tokenizer is not written: copy its files.
        """
        has_classifier = self.classifier_weight is not None

        def again(config: dict[str, Any]) -> EncoderDecoder:
            model = EncoderDecoder.from_config(
                config,
                classifier=has_classifier,
                dtype=self.token_embedding.dtype,
                rng=_parameters.Unset(),
            )
            if has_classifier and model.start != self.start:
                raise ValueError(
                    f"model: expected start = {model.start} as its configuration has "
                    f"it, got {self.start}"
                )
            return model

        said = _generation.written(self.generation, self.start, self.stop)
        head = "ForSequenceClassification" if has_classifier else ""
        _saving.save(self, folder, again, head, said)

    @overload
    def encode(
        self,
        source_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = ...,
        return_weights: Literal[False] = ...,
        return_hidden_states: Literal[False] = ...,
        num_threads: int | None = ...,
    ) -> Array: ...
    @overload
    def encode(
        self,
        source_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = ...,
        return_weights: bool = ...,
        return_hidden_states: bool = ...,
        num_threads: int | None = ...,
        **options: Unpack[Choice],
    ) -> Array | ModelOutput: ...
    def encode(
        self,
        source_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        return_weights: bool = False,
        return_hidden_states: bool = False,
        layers: ArrayLike | None = None,
        heads: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array | ModelOutput:
        """Return the vectors of the source's tokens, which the decoder attends to.

        Parameters
        ----------
        source_ids : array_like of int, shape (Ls,) or (B, Ls)
            0 to ``V - 1``.
        lengths : int or array_like of int, shape (B,), optional
            How many of the tokens exist, at the start of each sequence. The others are
            padding: they cost next to nothing, and their own vectors are 0.
        return_weights, return_hidden_states, layers, heads
            As in `attnpy.blocks.Encoder.__call__`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (Ls, E) or (B, Ls, E)
            With `return_weights` or `return_hidden_states` an
            `attnpy.blocks.ModelOutput`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        """
        with _checks.renamed(token_ids="source_ids"):
            ids = _embedding.checked_ids(source_ids, self.vocab_size)
            tokens = self._embed("encoder", ids, None, num_threads)
            ends = None
            if lengths is not None:
                ends = _embedding.checked_lengths(lengths, ids, 0)

        def run(
            tokens: Array, seq_offsets: NDArray[np.int64] | None
        ) -> Array | ModelOutput:
            longest = _embedding.longest(tokens, seq_offsets)
            return self.encoder(
                tokens,
                bias=self._bias("encoder", longest),
                scale=self.scale,
                seq_offsets=seq_offsets,
                mixed=_embedding.is_mixed(self.token_embedding),
                return_weights=return_weights,
                return_hidden_states=return_hidden_states,
                layers=layers,
                heads=heads,
                num_threads=num_threads,
            )

        return _embedding.run_existing(
            tokens, ends, run, self.token_embedding, num_threads
        )

    def project_context(
        self,
        states: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> list[KVCache]:
        """Compute the keys and values of a source once, for many calls of `decode`.

        Parameters
        ----------
        states : array_like, shape (Ls, E) or (B, Ls, E)
            From `encode`.
        lengths : int or array_like of int, shape (B,), optional
            How many of the source's tokens exist, as in `encode`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        list of KVCache
            One for each of the decoder's layers. Those of b sources serve the beams of
            a search, a batch of several times b, too.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        """
        with _checks.renamed(context="states", context_lengths="lengths"):
            return self.decoder.project_context(
                states, context_lengths=lengths, num_threads=num_threads
            )

    @overload
    def decode(
        self,
        target_ids: ArrayLike,
        context: ArrayLike | Sequence[KVCache],
        *,
        return_weights: Literal[False] = ...,
        return_hidden_states: Literal[False] = ...,
        **options: Unpack[DecodeOptions],
    ) -> Array: ...
    @overload
    def decode(
        self,
        target_ids: ArrayLike,
        context: ArrayLike | Sequence[KVCache],
        *,
        return_weights: bool = ...,
        return_hidden_states: bool = ...,
        **options: Unpack[ChosenDecode],
    ) -> Array | ModelOutput: ...
    def decode(
        self,
        target_ids: ArrayLike,
        context: ArrayLike | Sequence[KVCache],
        *,
        context_lengths: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
        caches: Sequence[KVCache] | None = None,
        return_weights: bool = False,
        return_hidden_states: bool = False,
        layers: ArrayLike | None = None,
        heads: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array | ModelOutput:
        """Return the vectors of the target's tokens, each of which sees those before.

        Parameters
        ----------
        target_ids : array_like of int, shape (L,) or (B, L)
            0 to ``V - 1``, beginning with `start`; with `caches` only new tokens.
        context : array_like, shape (Ls, E) or (B, Ls, E), or list of KVCache
            From `encode`, or from `project_context`.
        context_lengths : int or array_like of int, shape (B,), optional
            How many of the source's tokens exist: `lengths` of `encode`. None with the
            result of `project_context`, which has them.
        lengths : int or array_like of int, shape (B,), optional
            How many of the target's tokens exist, at the start of each sequence.
        caches : list of KVCache, optional
            From `new_caches`; the tokens are appended. A sequence gives the same bits
            in one call, in chunks, and token by token.
        return_weights, return_hidden_states, layers, heads
            As in `attnpy.blocks.Decoder.__call__`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            For `logits`. With `return_weights` or `return_hidden_states` an
            `attnpy.blocks.ModelOutput`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
            The caches have not changed after an error.
        """
        with _checks.renamed(token_ids="target_ids"):
            ids = _embedding.checked_ids(target_ids, self.vocab_size)
            past = self._past(ids, caches)
            tokens = self._embed("decoder", ids, past, num_threads)
            ends = None
            if lengths is not None:
                ends = _embedding.checked_lengths(lengths, ids, 0)
        each = ids.shape[-1] if ends is None else ends

        def run(
            tokens: Array, seq_offsets: NDArray[np.int64] | None
        ) -> Array | ModelOutput:
            longest = _embedding.longest(tokens, seq_offsets)
            states: Any = context
            if seq_offsets is not None and ids.ndim == 1 and np.ndim(states) == 2:
                states = np.asarray(states)[np.newaxis]  # for one packed sequence
            return self.decoder(
                tokens,
                states,
                caches=caches,
                bias=self._bias("decoder", longest, past, each),
                scale=self.scale,
                seq_offsets=seq_offsets,
                context_lengths=context_lengths,
                mixed=_embedding.is_mixed(self.token_embedding),
                return_weights=return_weights,
                return_hidden_states=return_hidden_states,
                layers=layers,
                heads=heads,
                num_threads=num_threads,
            )

        cached = caches is not None
        return _embedding.run_existing(
            tokens, ends, run, self.token_embedding, num_threads, cached
        )

    @overload
    def __call__(
        self,
        source_ids: ArrayLike,
        target_ids: ArrayLike,
        *,
        return_weights: Literal[False] = ...,
        return_hidden_states: Literal[False] = ...,
        **options: Unpack[CallOptions],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        source_ids: ArrayLike,
        target_ids: ArrayLike,
        *,
        return_weights: Literal[True],
        return_hidden_states: bool = ...,
        **options: Unpack[ChosenCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        source_ids: ArrayLike,
        target_ids: ArrayLike,
        *,
        return_weights: bool = ...,
        return_hidden_states: Literal[True],
        **options: Unpack[ChosenCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        source_ids: ArrayLike,
        target_ids: ArrayLike,
        *,
        return_weights: bool,
        return_hidden_states: bool = ...,
        **options: Unpack[ChosenCall],
    ) -> Array | ModelOutput: ...
    def __call__(
        self,
        source_ids: ArrayLike,
        target_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        target_lengths: ArrayLike | None = None,
        num_threads: int | None = None,
        **options: Any,
    ) -> Array | ModelOutput:
        """Return the vectors of a target's tokens, given the source: teacher forcing.

        Parameters
        ----------
        source_ids : array_like of int, shape (Ls,) or (B, Ls)
            0 to ``V - 1``.
        target_ids : array_like of int, shape (L,) or (B, L)
            0 to ``V - 1``, beginning with `start`.
        lengths, target_lengths : int or array_like of int, shape (B,), optional
            How many tokens of the sources, and of the targets, exist.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.
        **options
            `return_weights`, `return_hidden_states`, `layers` and `heads`, as in
            `attnpy.blocks.Decoder.__call__`, of the decoder. `encode` has those of the
            encoder.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            The result of `decode`, for `logits`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        """
        known = "return_weights", "return_hidden_states", "layers", "heads"
        _keywords.refuse(options, known, "EncoderDecoder()")
        states = self.encode(source_ids, lengths=lengths, num_threads=num_threads)
        with _checks.renamed(lengths="target_lengths"):
            result: Array | ModelOutput = self.decode(
                target_ids,
                states,
                context_lengths=lengths,
                lengths=target_lengths,
                num_threads=num_threads,
                **options,
            )
        return result

    def logits(self, vectors: ArrayLike, *, num_threads: int | None = None) -> Array:
        """Return the scores of all tokens to be the next.

        Parameters
        ----------
        vectors : array_like, shape (..., E)
            From a call, or from `decode`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (..., V)

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape.
        """
        tokens = _checks.array(vectors, "vectors")
        if self.logit_scale is not None:
            tokens = tokens * np.asarray(self.logit_scale, tokens.dtype)
        bias = None if self.output_bias is None else self.output_bias[0]
        with _checks.renamed(x="vectors"):
            return linear(tokens, _scores.matrix(self), bias, num_threads=num_threads)

    def classify(
        self,
        source_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the scores of the labels for each text, before a softmax or sigmoid.

        Parameters
        ----------
        source_ids : array_like of int, shape (Ls,) or (B, Ls)
            The tokens of the texts, with `scored_token` in each.
        lengths : int or array_like of int, shape (B,), optional
            How many of the tokens exist, at the start of each sequence.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (num_labels,) or (B, num_labels)
            In float32, or float64 for a float64 model. There are no gradients.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape. If the model has no
            classifier, or a text no `scored_token`.

        Notes
        -----
        The decoder reads the text itself, after `start`. With its vector h at the last
        `scored_token` of the text, the scores are ``tanh(h @ pooler_weight +
        pooler_bias) @ classifier_weight + classifier_bias``, as Lewis et al. (2020)
        have it.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.models import EncoderDecoder
        >>> model = EncoderDecoder(
        ...     2, 16, 4, 64, vocab_size=100, positions="learned", max_length=8,
        ...     start=2, num_labels=3, scored_token=2, rng=np.random.default_rng(0),
        ... )
        >>> model.classify([0, 17, 3, 2]).shape
        (3,)
        """
        if self.classifier_weight is None:
            raise ValueError(
                "classifier: expected a model with num_labels, or read with "
                "classifier=True, got one without"
            )
        assert self.pooler_weight is not None
        with _checks.renamed(token_ids="source_ids"):
            ids = _embedding.checked_ids(source_ids, self.vocab_size)
            n_tokens = ids.shape[-1]
            ends = _embedding.checked_lengths(
                n_tokens if lengths is None else lengths, ids, 0
            )
        exists = np.arange(n_tokens) < ends[..., np.newaxis]
        found = (ids == self.scored_token) & exists
        if not found.any(axis=-1).all():
            raise ValueError(
                f"source_ids: expected scored_token = {self.scored_token} in each "
                "text, got one without"
            )
        target = np.full_like(ids, self.start)
        target[..., 1:] = ids[..., :-1]
        vectors = self(
            ids,
            target,
            lengths=ends,
            target_lengths=ends,
            num_threads=num_threads,
        )
        assert isinstance(vectors, np.ndarray)
        last = np.max(np.arange(n_tokens) * found, axis=-1, initial=0)
        states = np.take_along_axis(vectors, last[..., np.newaxis, np.newaxis], -2)
        # 16-bit models, too, score in float32: only their products are of 16 bits.
        pooled = linear(
            states[..., 0, :].astype(_dtypes.arithmetic(states.dtype)),
            self.pooler_weight,
            self.pooler_bias,
            activation="tanh",
            num_threads=num_threads,
        )
        return linear(
            pooled,
            self.classifier_weight,
            self.classifier_bias,
            num_threads=num_threads,
        )

    def new_caches(
        self,
        batch_size: int,
        capacity: int,
        *,
        dtype: DTypeLike | None = None,
        growable: bool = False,
    ) -> list[KVCache]:
        """Return an empty cache for each of the decoder's layers.

        Parameters
        ----------
        batch_size, capacity, growable
            As in `attnpy.cache.KVCache`.
        dtype : dtype, optional
            By default that of the parameters.

        Returns
        -------
        list of KVCache
            For `decode`.
        """
        return self.decoder.new_caches(
            batch_size, capacity, dtype=dtype, growable=growable
        )

    @overload
    def generate(
        self,
        source_ids: ArrayLike,
        num_tokens: int | None = ...,
        *,
        return_scores: Literal[False] = ...,
        **options: Unpack[GenerateOptions],
    ) -> NDArray[np.int64]: ...
    @overload
    def generate(
        self,
        source_ids: ArrayLike,
        num_tokens: int | None = ...,
        *,
        return_scores: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> Beams: ...
    @overload
    def generate(
        self,
        source_ids: ArrayLike,
        num_tokens: int | None = ...,
        *,
        return_scores: bool,
        **options: Unpack[GenerateOptions],
    ) -> NDArray[np.int64] | Beams: ...
    def generate(
        self,
        source_ids: ArrayLike,
        num_tokens: int | None = None,
        *,
        lengths: ArrayLike | None = None,
        start: ArrayLike | None = None,
        stop: ArrayLike | None = None,
        rng: np.random.Generator | None = None,
        return_scores: bool = False,
        num_threads: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> NDArray[np.int64] | Beams:
        """Write a text for each source: a translation, a summary, an answer.

        Parameters
        ----------
        source_ids : array_like of int, shape (Ls,) or (B, Ls)
            The tokens of the sources.
        num_tokens : int, optional
            The most new tokens of a text; by default ``generation["num_tokens"]``.
        lengths : int or array_like of int, shape (B,), optional
            How many of the sources' tokens exist, at the start of each.
        start : int or array_like of int, shape (p,) or (B, p), optional
            The first tokens of the texts; by default the model's `start`.
        stop : int or array_like of int, shape (n,), optional
            Tokens that end a text; by default the model's `stop`.
        rng : numpy.random.Generator, optional
            Draws tokens; required unless the temperature is 0.
        return_scores : bool, optional
            Return the scores of a beam search as well.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.
        num_beams : int
            Search with this many beams: continue this many texts of each source, and
            return the best one. 1 is greedy, or draws.
        length_penalty : float
            Scores of beams are sums of logarithms, divided by the number of new tokens
            to this power; by default 1.
        early_stopping : bool or "never"
            When a search ends: with True as soon as there are `num_beams` texts that
            have ended; with False, the default, when the best one that goes on is worse
            than these at its present length; with "never" if it is at every length.
        num_return_sequences : int
            Return this many texts of each source: the best of a search, or draws.
        min_tokens : int
            The fewest new tokens before one that ends the text.
        temperature, top_k, top_p
            As in `attnpy.models.sample`; the temperature is 0 by default.
        repetition_penalty : float
            Scores of tokens that are in the text are divided by it, or multiplied where
            they are negative.
        no_repeat_ngram_size : int
            No sequence of this many tokens comes twice in a text.
        bad_words : sequence of sequence of int
            Sequences of tokens that are not written.
        forced_bos : int
            The first new token, if one comes before it.
        forced_eos : int or sequence of int
            The last token of a text that has not ended before.
        suppress_tokens, begin_suppress_tokens : sequence of int
            Tokens that are never written, or not as the first that is not forced.

        Returns
        -------
        ndarray of int64, shape (n,) or (B, n)
            The new tokens, with the one that ends the text. Shorter texts repeat it; n
            is the length of the longest. With `num_return_sequences` (k, n) or
            (B, k, n). With `return_scores` a tuple of them and of their scores, whose
            names are ``tokens`` and ``scores``.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        MemoryError
            If memory cannot hold the keys and values of all tokens.

        Notes
        -----
        Settings have the names and meanings of Transformers' ``generate``, and give the
        same tokens. Those that are not given are those of `generation`, which a folder
        may have set.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.models import EncoderDecoder
        >>> model = EncoderDecoder(
        ...     2, 16, 4, 64, vocab_size=100, num_buckets=8, start=0, stop=1,
        ...     rng=np.random.default_rng(0),
        ... )
        >>> found = model.generate(
        ...     [5, 17, 3], 6, num_beams=4, num_return_sequences=2, return_scores=True
        ... )
        >>> found.tokens.shape, bool(found.scores[0] >= found.scores[1])
        ((2, 6), True)
        """
        _keywords.refuse(options, _generation.SETTINGS, "EncoderDecoder.generate()")
        given = dict(options)
        if num_tokens is not None:
            given["num_tokens"] = num_tokens
        settings = _generation.effective(self.generation, given)
        n_most, n_beams = settings["num_tokens"], settings["num_beams"]
        if n_most is None:
            raise ValueError(
                "num_tokens: expected the most new tokens, as generation does not say "
                "it, got None"
            )
        with _checks.renamed(token_ids="source_ids"):
            ids = _embedding.checked_ids(source_ids, self.vocab_size)
            batch = np.atleast_2d(ids)
            if batch.shape[1] == 0:
                raise ValueError(
                    f"source_ids: expected at least one token, got {ids.shape}"
                )
            ends = batch.shape[1] if lengths is None else lengths
            ends = _embedding.checked_lengths(ends, batch, 1)
        begin = self._start(start, len(batch))
        n_longest = begin.shape[1] + n_most - 1
        self._check_length("target_ids", n_longest)
        stops = sampling.checked_stops(
            self.stop if stop is None else stop, self.vocab_size
        )
        several = settings["num_return_sequences"]
        n_each = 1 if several is None else several
        rules = _generation.rules(settings, stops, self.vocab_size)
        states = self.encode(batch, lengths=ends, num_threads=num_threads)
        context = self.project_context(states, lengths=ends, num_threads=num_threads)
        bound = _Bound(self, context, rules, n_most)
        if n_beams > 1:
            _generation.check_beams(settings)
            found = _beams.search(
                bound,
                begin,
                n_most,
                num_beams=n_beams,
                length_penalty=settings["length_penalty"],
                early_stopping=settings["early_stopping"],
                stops=stops,
                num_threads=num_threads,
            )
            tokens, scores = found.tokens[:, :n_each], found.scores[:, :n_each]
        else:
            if _checks.flag(return_scores, "return_scores"):
                raise ValueError(
                    "return_scores: expected False without a search, which has "
                    "num_beams above 1, got True"
                )
            if n_each > 1 and settings["temperature"] == 0:
                raise ValueError(
                    "num_return_sequences: expected 1 without beams or a temperature, "
                    f"got {several}"
                )
            drawn = sampling.generate(
                bound,
                np.repeat(begin, n_each, axis=0),
                n_most,
                temperature=settings["temperature"],
                top_k=settings["top_k"],
                top_p=settings["top_p"],
                rng=rng,
                stop=stops,
                progress=False,
                num_threads=num_threads,
            )
            tokens = drawn.reshape(len(batch), n_each, n_most)
            scores = np.zeros(tokens.shape[:-1])
        tokens = _beams.cut(tokens, stops)
        place: Any = slice(None) if ids.ndim == 2 else 0, slice(None) if several else 0
        chosen: NDArray[np.int64] = tokens[place]
        if _checks.flag(return_scores, "return_scores"):
            return _beams.Beams(chosen, scores[place])
        return chosen

    def vjp(
        self,
        source_ids: ArrayLike,
        target_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        target_lengths: ArrayLike | None = None,
        logits: bool = False,
        checkpoint: bool = False,
        num_threads: int | None = None,
    ) -> tuple[Array, Callable[[ArrayLike], dict[str, Array]]]:
        """Return the vectors of a call, or their scores, and the pullback of gradients.

        Parameters
        ----------
        source_ids, target_ids, lengths, target_lengths, num_threads
            As in a call.
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
            parameters, a dict with the names of `parameters`. Where embeddings are used
            several times, their gradient is the sum.

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
        >>> from attnpy.models import EncoderDecoder
        >>> rng = np.random.default_rng(0)
        >>> model = EncoderDecoder(
        ...     2, 16, 4, 64, vocab_size=100, positions="learned", max_length=8, rng=rng
        ... )
        >>> scores, pullback = model.vjp([5, 17, 3], [0, 8], logits=True)
        >>> gradients = pullback(np.ones_like(scores))
        >>> gradients.keys() == model.parameters().keys()
        True
        """
        _vjp.check_trainable(self, (*EMBEDDED, "output", "output_bias", *BIASES))
        sides = {
            "encoder": (source_ids, "source_ids", lengths, "lengths"),
            "decoder": (target_ids, "target_ids", target_lengths, "target_lengths"),
        }
        ids: dict[str, NDArray[np.int64]] = {}
        ends: dict[str, Any] = {}
        for side, (given, name, own_lengths, lengths_name) in sides.items():
            with _checks.renamed(token_ids=name, lengths=lengths_name):
                ids[side] = _embedding.checked_ids(given, self.vocab_size)
                ends[side] = None
                if own_lengths is not None:
                    ends[side] = _embedding.checked_lengths(own_lengths, ids[side], 0)
        n_source = ids["encoder"].shape[-1]
        each = n_source if ends["encoder"] is None else ends["encoder"]
        batch = len(np.atleast_2d(ids["encoder"]))
        exists, offsets = _packed.existing(np.broadcast_to(each, batch), n_source)
        exists = exists.reshape(ids["encoder"].shape)
        states: Array | None = None

        def stack(side: str) -> tuple[Array, Pullback, Any]:
            """Run one side; return its output, and the pullbacks of its parts."""

            def run(
                tokens: Array, seq_offsets: NDArray[np.int64] | None
            ) -> tuple[Array, Pullback]:
                longest = _embedding.longest(tokens, seq_offsets)
                options: dict[str, Any] = {
                    "bias": self._bias(side, longest),
                    "scale": self.scale,
                    "seq_offsets": seq_offsets,
                    "wanted": () if self.encoder_relative_bias is None else ("bias",),
                    "checkpoint": checkpoint,
                    "num_threads": num_threads,
                }
                if side == "encoder":
                    return self.encoder.vjp(tokens, **options)
                assert states is not None
                if seq_offsets is None:
                    return self.decoder.vjp(
                        tokens, states, context_lengths=lengths, **options
                    )
                return self.decoder.vjp(
                    tokens, states[exists], context_offsets=offsets, **options
                )

            tokens, of_tokens = self._embed_vjp(side, ids[side], num_threads)
            output, of_stack = _embedding.existing_vjp(tokens, ends[side], run)
            return output, of_stack, of_tokens

        states, of_encoder, of_source = stack("encoder")
        output, of_decoder, of_target = stack("decoder")
        shape = states.shape
        of_scores = None
        if _checks.flag(logits, "logits"):
            output, of_scores = self._logits_vjp(output, num_threads)

        def pullback(grad_output: ArrayLike) -> dict[str, Array]:
            collected = _vjp.Collector(self)
            if of_scores is not None:
                found = of_scores(grad_output)
                collected.add(found.parameters)
                grad_output = found.x
            for side, of_stack, of_tokens in (
                ("decoder", of_decoder, of_target),
                ("encoder", of_encoder, of_source),
            ):
                found = of_stack(grad_output)
                collected.add(found.parameters, f"{side}.")
                if found.bias is not None:
                    collected.add(self._of_bias(side, found.bias))
                of_tokens(collected, found.x)
                if found.context is not None:
                    grad_output = found.context
                    if grad_output.shape != shape:  # of packed sequences
                        grad_output = np.zeros(shape, grad_output.dtype)
                        grad_output[exists] = found.context
            return collected.parameters()

        return output, pullback

    def _logits_vjp(
        self, vectors: Array, num_threads: int | None
    ) -> tuple[Array, Pullback]:
        scores = self.logits(vectors, num_threads=num_threads)
        scale, bias = self.logit_scale, self.output_bias
        scaled = vectors
        if scale is not None:
            scaled = vectors * np.asarray(scale, vectors.dtype)
        checked = _vjp.of_output(scores)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            of_vectors, of_matrix, of_bias = linear_vjp(
                checked(grad_output),
                scaled,
                _scores.matrix(self),
                None if bias is None else bias[0],
                num_threads=num_threads,
            )
            if scale is not None:
                of_vectors = of_vectors * np.asarray(scale, of_vectors.dtype)
            found = {"output": of_matrix}
            if self.output is None:
                found = {"token_embedding": of_matrix.T}
            if of_bias is not None:
                found["output_bias"] = of_bias[np.newaxis]
            return LayerGradients(of_vectors, found)

        return scores, pullback

    def _embed(
        self,
        side: str,
        ids: NDArray[np.int64],
        past: NDArray[np.int64] | None,
        num_threads: int | None,
    ) -> Array:
        """Return what goes into the layers of a side, (L, E) or (B, L, E)."""
        tokens = self._embedded(side, ids, past, num_threads)
        norm = getattr(self, f"{side}_embedding_norm")
        normed: Array = tokens
        if norm is not None:
            normed = norm(tokens, num_threads=num_threads)
        return normed

    def _embedded(
        self,
        side: str,
        ids: NDArray[np.int64],
        past: NDArray[np.int64] | None,
        num_threads: int | None,
    ) -> Array:
        """Return the sums of embeddings and positions, before a norm."""
        longest = 0 if past is None else int(past.max(initial=0))
        self._check_length("token_ids", ids.shape[-1] + longest)
        rows, scale = self._rows(ids, past), self.embedding_scale
        return _embedding.looked_up(
            self.token_embedding,
            ids,
            *([] if rows is None else [(self._table(side), rows)]),
            factor=1.0 if scale is None else float(scale),
            num_threads=num_threads,
        )

    def _check_length(self, name: str, num_tokens: int) -> None:
        """Require positions for this many tokens of a sequence."""
        if self.max_length is not None and num_tokens > self.max_length:
            raise ValueError(
                f"{name}: expected at most max_length = {self.max_length} tokens in a "
                f"sequence, got {num_tokens}"
            )

    def _table(self, side: str) -> Array:
        """Return the vectors of positions, from the first row on."""
        learned = getattr(self, f"{side}_position_embedding")
        if learned is not None:
            table: Array = learned
            return table
        assert self.max_length is not None
        return _sinusoids(
            self.max_length + self.position_offset,
            self.token_embedding.shape[1],
            self.position_base,
            _dtypes.arithmetic(self.token_embedding.dtype).name,
            self.padding_id is not None,
        )

    def _rows(
        self, ids: NDArray[np.int64], past: NDArray[np.int64] | None
    ) -> NDArray[np.int64] | None:
        """Return the rows of tokens in the table; that of padding is the first."""
        if self.positions is None:
            return None
        before: NDArray[np.int64] = np.zeros((), np.int64)
        if past is not None:
            before = past[:, np.newaxis] if ids.ndim == 2 else past
        if self.padding_id is None:
            places = before + np.arange(ids.shape[-1]) + self.position_offset
            return np.broadcast_to(places, ids.shape)
        counted = ids != self.padding_id
        numbers = before + np.cumsum(counted, -1)
        return np.where(counted, numbers - 1 + self.position_offset, 0)

    def _embed_vjp(
        self, side: str, ids: NDArray[np.int64], num_threads: int | None
    ) -> tuple[Array, Callable[[_vjp.Collector, Array], None]]:
        """Return what `_embed` does, and what adds the gradients of its parameters."""
        tokens = self._embedded(side, ids, None, num_threads)
        name = f"{side}_embedding_norm"
        norm, of_norm = getattr(self, name), None
        if norm is not None:
            tokens, of_norm = norm.vjp(tokens, num_threads=num_threads)

        def add(collected: _vjp.Collector, grad: Array) -> None:
            if of_norm is not None:
                found = of_norm(grad)
                collected.add(found.parameters, f"{name}.")
                grad = found.x
            table = getattr(self, f"{side}_position_embedding")
            if table is not None:
                rows = self._rows(ids, None)
                assert rows is not None
                of_table = _vjp.look_up_vjp(table, rows, grad)
                collected.add({f"{side}_position_embedding": of_table})
            if self.embedding_scale is not None:
                grad = grad * np.asarray(self.embedding_scale, grad.dtype)
            of_tokens = _vjp.look_up_vjp(self.token_embedding, ids, grad)
            collected.add({"token_embedding": of_tokens})

        return tokens, add

    def _bias(
        self,
        side: str,
        longest: int,
        past: NDArray[np.int64] | None = None,
        each: NDArray[np.int64] | int = 0,
    ) -> Array | None:
        """Return the bias of self-attention's scores, (H, Lq, Lk) or (B, H, Lq, Lk)."""
        table = getattr(self, f"{side}_relative_bias")
        if table is None:
            return None
        of = functools.partial(
            positions.relative_bias,
            table,
            max_distance=self.max_distance,
            bidirectional=side == "encoder",
        )
        return _parts.bias_of_new(of, longest, past, each)

    def _of_bias(self, side: str, grad: Array) -> dict[str, Array]:
        """Return the gradient of a table of biases from that of `_bias`, (H, L, L)."""
        table, length = getattr(self, f"{side}_relative_bias"), grad.shape[-1]
        buckets = positions.relative_buckets(
            length,
            length,
            num_buckets=len(table),
            max_distance=self.max_distance,
            bidirectional=side == "encoder",
        )
        grad = np.moveaxis(grad, 0, -1)
        return {f"{side}_relative_bias": _vjp.look_up_vjp(table, buckets, grad)}

    def _past(
        self, ids: NDArray[np.int64], caches: Sequence[KVCache] | None
    ) -> NDArray[np.int64] | None:
        """Return how many tokens of each sequence are in the caches, (B,)."""
        if caches is None:
            return None
        known = checked_caches(caches, "caches", len(self.decoder.layers))
        past, batch = known[0].lengths, len(np.atleast_2d(ids))
        if len(past) != batch:
            raise ValueError(
                f"caches: expected B = {batch} as target_ids, got {len(past)}"
            )
        return past

    def _start(self, start: ArrayLike | None, batch_size: int) -> NDArray[np.int64]:
        """Return the first tokens of the texts, (B, p)."""
        if start is None and self.start is None:
            raise ValueError(
                "start: expected the token that texts begin with, as the model has "
                "none, got None"
            )
        given = self.start if start is None else start
        assert given is not None
        begin = _checks.integers(given, "start", 0, self.vocab_size - 1)
        shape = batch_size, begin.shape[-1] if begin.ndim else 1
        fits = begin.shape == shape if begin.ndim == 2 else begin.ndim < 2
        if not fits or shape[1] == 0:
            raise ValueError(
                f"start: expected a token, (p,) or ({batch_size}, p), got {begin.shape}"
            )
        return np.array(np.broadcast_to(begin, shape))


class _Bound(sampling.LanguageModel):
    """A decoder with its source texts: a language model."""

    def __init__(
        self,
        model: EncoderDecoder,
        context: list[KVCache],
        rules: _score_rules.ScoreRules,
        num_tokens: int,
    ) -> None:
        self._model, self._context = model, context
        self._rules, self._num_tokens = rules, num_tokens
        self.stop = ()

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        caches: Sequence[KVCache] | None = None,
        num_threads: int | None = None,
    ) -> Array:
        return self._model.decode(
            token_ids,
            self._context,
            lengths=lengths,
            caches=caches,
            num_threads=num_threads,
        )

    def logits(self, states: ArrayLike, *, num_threads: int | None = None) -> Array:
        return self._model.logits(states, num_threads=num_threads)

    def new_caches(self, batch_size: int, capacity: int) -> list[KVCache]:
        return self._model.new_caches(batch_size, capacity)

    def _ruled(self, scores: Array, tokens: NDArray[np.int64], num_new: int) -> Array:
        n_start = tokens.shape[1] - num_new
        return self._rules.applied(scores, tokens, n_start, self._num_tokens)

    def _select(
        self,
        caches: Sequence[KVCache],
        rows: NDArray[np.int64],
        sources: NDArray[np.bool_],
    ) -> None:
        super()._select(caches, rows, sources)
        if not sources.all():
            super()._select(self._context, np.flatnonzero(sources), sources)


@functools.lru_cache(maxsize=8)
def _sinusoids(
    n_rows: int, dim: int, base: float, dtype: str, has_padding: bool
) -> Array:
    """Return a table of positions, all sines before all cosines; read-only.

    With padding the first row, which is before those of tokens, is 0.
    """
    pairs = positions.sinusoidal(n_rows, dim, base=base, dtype=dtype)
    table = np.concatenate([pairs[:, 0::2], pairs[:, 1::2]], axis=-1)
    if has_padding:
        table[0] = 0
    table.flags.writeable = False
    return table


def _other(
    encoder: Mapping[str, Any], decoder: Mapping[str, Any], name: str
) -> int | None:
    """Return a size of the decoder that differs from the encoder's."""
    size: int = decoder[name]
    return None if size == encoder[name] else size


def _above_0(value: float | None, name: str) -> float | None:
    """Return a factor, if there is one."""
    return None if value is None else _checks.above(value, name, 0)
