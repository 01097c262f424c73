"""Pairs of texts to scores, by a model that reads both at once: reranking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnpy import _checks, _keywords, _parameters, _pickles, _repr, checkpoints
from attnpy._softmax import softmax
from attnpy.models import (
    _classifier_folder,
    _gguf,
    _gguf_reranker,
    _pair_template,
    _sentence_saving,
    _similarity,
    _text_scores,
    _texts,
)
from attnpy.models.bert import BertEncoder
from attnpy.models.decoder import CausalDecoder
from attnpy.models.encoder_decoder import EncoderDecoder

if TYPE_CHECKING:
    import os

    from numpy.typing import DTypeLike

    from attnpy._typing import Array
    from attnpy.checkpoints import GgufFile
    from attnpy.models._classifier_folder import Recipe
    from attnpy.models._pair_template import PairTemplate
    from attnpy.models._similarity import Ranked


@_keywords.answering
class CrossEncoder:
    """Scores pairs of texts, such as a query and a passage that may answer it.

    It reads both texts at once, which is slower than comparing vectors of a
    `SentenceEncoder`, and more accurate: use it to put search results in order.
    `from_pretrained` reads one from a folder, such as ms-marco-MiniLM, bge-reranker or
    Qwen3-Reranker.

    Parameters
    ----------
    model : BertEncoder, CausalDecoder or EncoderDecoder
        A pair has `num_labels` scores. With a language model that has no labels it has
        one score, by `true_token_id`.
    tokenizer : tokenizers.Tokenizer
        Turns pairs into tokens. Its truncation is set to `max_length`, and its padding
        turned off.
    activation_fn : str or callable, optional
        Applied to scores: "sigmoid", "identity", "tanh", "relu", "gelu", "silu", or a
        function of an array (n, num_labels). By default "sigmoid" for one label, and
        "identity" for several.
    max_length : int, optional
        The longest pair, in tokens, with those that the tokenizer adds. In longer pairs
        the longer text is cut first. By default the number of the model's positions.
    truncation_side : {"right", "left"}, optional
        At which end texts are cut.
    token_types : bool, optional
        Tell the model which text a token is from, by the tokenizer's types of tokens.
        By default True for a model with several types.
    prompts : mapping of str to str, optional
        Texts to put before the first text of a pair, by name.
    default_prompt_name : str, optional
        The prompt that is used by default.
    true_token_id, false_token_id : int, optional
        For a language model: the score of a pair is the score of the first of these
        tokens, such as "yes", as the next one, minus that of the second, if given.
    chat_template : str, optional
        A template in the language of jinja2 that makes one text of a pair. It gets two
        messages of the roles "query" and "document", after one of "system" with the
        prompt. If a text is too long, what the template writes after both texts is
        never cut.
    chat_template_kwargs : mapping of str to object, optional
        Variables for the template.
    message_format : {"flat", "structured"}, optional
        Pass the content of a message to the template as a text, or as a list of parts
        with a ``"text"``. By default the template shows which one it expects.

    Attributes
    ----------
    model, tokenizer, activation_fn, max_length, truncation_side, token_types, prompts,
    default_prompt_name, true_token_id, false_token_id, chat_template,
    chat_template_kwargs, message_format
        As given, or the defaults.
    num_labels : int
        How many scores a pair has.

    Raises
    ------
    ImportError
        If jinja2 is not installed, with `chat_template`.
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range; if the template
        leaves out one of the texts.

    Notes
    -----
    From Nogueira and Cho, "Passage Re-ranking with BERT" (2019); with language models
    from Zhang et al., "Qwen3 Embedding: Advancing Text Embedding and Reranking Through
    Foundation Models" (2025). A pair's scores have the same bits alone and among other
    pairs, in any batches and on any number of threads: nothing is computed for padding.

    Examples
    --------
    >>> import numpy as np
    >>> from tokenizers import Tokenizer, models, pre_tokenizers, processors
    >>> from attnpy.models import BertEncoder, CrossEncoder
    >>> words = ["[UNK]", "[SEP]", "cats", "dogs", "sleep", "bark"]
    >>> vocab = {word: i for i, word in enumerate(words)}
    >>> tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer.post_processor = processors.TemplateProcessing(
    ...     single="$A [SEP]",
    ...     pair="$A [SEP] $B:1 [SEP]:1",
    ...     special_tokens=[("[SEP]", 1)],
    ... )
    >>> rng = np.random.default_rng(0)
    >>> model = BertEncoder(
    ...     2, 16, 4, 64, vocab_size=6, pooler=True, num_labels=1, rng=rng
    ... )
    >>> reranker = CrossEncoder(model, tokenizer)
    >>> scores = reranker.predict([("cats", "cats sleep"), ("cats", "dogs bark")])
    >>> scores.shape
    (2,)
    >>> ranked = reranker.rank("cats", ["dogs bark", "cats sleep", "dogs"], top_k=2)
    >>> [list(found) for found in ranked]
    [['corpus_id', 'score'], ['corpus_id', 'score']]
    """

    model: BertEncoder | CausalDecoder | EncoderDecoder
    tokenizer: Any
    activation_fn: Any
    max_length: int
    truncation_side: str
    token_types: bool
    prompts: dict[str, str]
    default_prompt_name: str | None
    true_token_id: int | None
    false_token_id: int | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any]
    message_format: str | None

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a pickle or a copy has, if pairs can be scored with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            self._check_tokens()
            _text_scores.check_parts(self)
            _activation(self.activation_fn)
            self._template()

    def _shown(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "activation_fn": self.activation_fn
            if isinstance(self.activation_fn, str)
            else _repr.Plain(_name(self.activation_fn)),
            "max_length": self.max_length,
            "token_types": self.token_types,
            "prompts": list(self.prompts) or None,
            "default_prompt_name": self.default_prompt_name,
            "true_token_id": self.true_token_id,
            "false_token_id": self.false_token_id,
            "message_format": self.message_format,
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: BertEncoder | CausalDecoder | EncoderDecoder,
        tokenizer: Any,
        *,
        activation_fn: str | Callable[[Array], Array] | None = None,
        max_length: int | None = None,
        truncation_side: Literal["right", "left"] = "right",
        token_types: bool | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        true_token_id: int | None = None,
        false_token_id: int | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        message_format: Literal["flat", "structured"] | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.true_token_id, self.false_token_id = true_token_id, false_token_id
        self._check_tokens()
        self.token_types = (
            _text_scores.usual_types(model) if token_types is None else token_types
        )
        _text_scores.check_parts(self)
        if activation_fn is None:
            activation_fn = "sigmoid" if self.num_labels == 1 else "identity"
        _activation(activation_fn)
        self.activation_fn = activation_fn
        self.max_length = _text_scores.set_length(
            self, max_length, truncation_side, is_pair=True
        )
        self.truncation_side = truncation_side
        self.chat_template, self.message_format = chat_template, message_format
        variables = {} if chat_template_kwargs is None else chat_template_kwargs
        self.chat_template_kwargs = dict(
            _checks.mapping(variables, "chat_template_kwargs")
        )
        if (template := self._template()) is not None:
            self.message_format = template.format
            tokenizer.no_truncation()  # the end of what the template writes stays
        elif chat_template_kwargs is not None or message_format is not None:
            raise ValueError(
                "chat_template: expected one with chat_template_kwargs or "
                "message_format, got None"
            )
        self.prompts = dict(
            _checks.mapping({} if prompts is None else prompts, "prompts")
        )
        self.default_prompt_name = default_prompt_name
        self._prompt(None, None)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        activation_fn: str | Callable[[Array], Array] | None = None,
        max_length: int | None = None,
        token_types: bool | None = None,
        chat_template: str | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> CrossEncoder:
        """Read a cross-encoder from a folder.

        Parameters
        ----------
        folder : str or path
            With ``config.json``, ``tokenizer.json`` and weights, as
            sentence-transformers writes it, with or without ``modules.json``; or as
            Transformers writes a ``ForSequenceClassification`` of the families of
            `BertEncoder` and `CausalDecoder`, or of BART, or a ``ForCausalLM``, whose
            tokens "yes" and "no" are `true_token_id` and `false_token_id`. Its settings
            are honoured, or refused by name. A classifier's chat template is only used
            if it writes both texts of a pair.
        activation_fn, max_length, token_types, chat_template : optional
            In place of the folder's.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        CrossEncoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers or safetensors package is not installed, or jinja2 with a
            template; if a file is missing.
        TypeError, ValueError
            If files ask for something unsupported, or do not fit together.
        """
        recipe, model, tokenizer, cut = _text_scores.read(
            *(folder, "SequenceClassification", max_length),
            of_pairs=True,
            dtype=dtype,
            packed=packed,
            weights=weights,
            activations=activations,
            progress=progress,
        )
        if activation_fn is None:
            activation_fn = _classifier_folder.activation(recipe)
        if token_types is None:
            token_types = _text_scores.read_types(recipe, tokenizer, model)
        return cls(
            model,
            tokenizer,
            activation_fn=activation_fn,
            token_types=token_types,
            prompts=recipe.prompts,
            default_prompt_name=recipe.default_prompt_name,
            **_token_ids(recipe, tokenizer),
            **_template_of(recipe, chat_template),
            **cut,
        )

    @classmethod
    def from_gguf(
        cls,
        file: str | os.PathLike[str] | GgufFile,
        *,
        activation_fn: str | Callable[[Array], Array] | None = None,
        max_length: int | None = None,
        chat_template: str | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["file"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> CrossEncoder:
        """Read a cross-encoder from a GGUF file, as llama.cpp has them.

        Parameters
        ----------
        file : str, path, or attnpy.checkpoints.GgufFile
            A model with a head that scores texts, such as bge-reranker, as
            `BertEncoder.from_gguf` reads it with ``classifier=True``; or a language
            model of `CausalDecoder.from_gguf`, such as Qwen3-Reranker. A language
            model's score is that of "yes" minus that of "no": of labels, if it has a
            head with these, else of tokens.
        activation_fn, max_length, chat_template : optional
            As in `CrossEncoder`. By default the template is the file's ``rerank``,
            whose instruction is the prompt "instruction"; or its chat template, if that
            writes pairs.
        dtype, packed, weights, activations, progress
            As in `CausalDecoder.from_gguf`.

        Returns
        -------
        CrossEncoder

        Raises
        ------
        ImportError, FileNotFoundError, TypeError, ValueError
            As `CausalDecoder.from_gguf`; if a language model has no template of pairs.
        """
        opened = file
        if not isinstance(opened, checkpoints.GgufFile):
            opened = checkpoints.load_gguf(opened)
        tokenizer = opened.tokenizer()
        options: dict[str, Any] = {
            "dtype": dtype,
            "packed": packed,
            "weights": weights,
            "activations": activations,
            "progress": progress,
        }
        model: BertEncoder | CausalDecoder | EncoderDecoder
        if _gguf.is_decoder(opened):
            model, said = _gguf_reranker.read(
                opened, tokenizer, chat_template, **options
            )
        else:
            model = BertEncoder.from_gguf(opened, classifier=True, **options)
            said = {"chat_template": chat_template}
        return cls(
            model,
            tokenizer,
            activation_fn=activation_fn,
            max_length=max_length,
            **said,
        )

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that sentence-transformers reads, and `from_pretrained`.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            those of the model's own `save_pretrained`, ``tokenizer.json``,
            ``tokenizer_config.json``, ``modules.json``, ``sentence_bert_config.json``,
            ``config_sentence_transformers.json``; with a template also
            ``chat_template.jinja``, which is removed otherwise; with `true_token_id`
            also ``1_LogitScore/config.json``.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model cannot be saved, as its own `save_pretrained` says; if
            `activation_fn` is a function of your own.

        Notes
        -----
        Read again, the folder gives the same bits, except for a quantised model, which
        is saved with the numbers that its integers stand for. Scores of tokens and
        templates need sentence-transformers 6.0 or later.
        """
        _sentence_saving.save_scorer(self, folder)

    @property
    def num_labels(self) -> int:
        """How many scores a pair has."""
        weight = self.model.classifier_weight
        return 1 if weight is None else int(weight.shape[1])

    def predict(
        self,
        pairs: Iterable[Sequence[str]] | Sequence[str],
        *,
        batch_size: int = 32,
        activation_fn: str | Callable[[Array], Array] | None = None,
        apply_softmax: bool = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the scores of pairs.

        Parameters
        ----------
        pairs : iterable of pairs of str, or one pair
            Any number of pairs, which may come from a generator: some thousands are in
            memory at a time. A list or tuple that begins with a string is one pair.
        batch_size : int, optional
            How many pairs go through the model at a time, those of similar lengths
            together. Changes no bit of the result.
        activation_fn : str or callable, optional
            In place of the encoder's.
        apply_softmax : bool, optional
            Make the scores of several labels probabilities, after `activation_fn`.
            Refused with one label, where sentence-transformers ignores it.
        prompt : str, optional
            A text to put before the first of each pair; "" for none, if the encoder has
            a default.
        prompt_name : str, optional
            The name of one of `prompts`, instead of `prompt`. By default
            `default_prompt_name`.
        progress : bool, optional
            Show a progress bar on standard error, if that is a terminal and the work
            takes longer than a second. True needs the tqdm package; None, the default,
            shows no bar if it is not installed.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result. With 1 the tokenizer also uses one thread; otherwise its package
            decides (``RAYON_NUM_THREADS``).

        Returns
        -------
        ndarray, shape (n,) for one label, or (n, num_labels)
            In the order given: float32, or float64 for a float64 model. A single pair
            has no axis of its own.

        Raises
        ------
        ImportError
            If `progress` is True, and tqdm is not installed.
        TypeError, ValueError
            If an argument has the wrong kind, shape or dtype, or is out of its range.
        """
        is_one = _is_one(pairs)
        before = self._prompt(prompt, prompt_name)
        if _checks.flag(apply_softmax, "apply_softmax") and self.num_labels == 1:
            raise ValueError(
                "apply_softmax: expected False with one label, whose softmax is always "
                "1, got True"
            )
        name = self.activation_fn if activation_fn is None else activation_fn
        activation = _activation(name)

        template = self._template()

        def check(value: object, name: str) -> tuple[str, str]:
            first, second = _texts.pair(value, "pairs" if is_one else name)
            return (before + first if template is None else first), second

        logits = _text_scores.logits(
            self,
            [pairs] if is_one else pairs,
            "pairs",
            check,
            encoded=_texts.encoded
            if template is None
            else _pair_template.encoder(
                template, before, self.max_length, self.truncation_side
            ),
            batch_size=batch_size,
            progress=progress,
            num_threads=num_threads,
        )
        scores = _activated(activation, logits)
        if self.num_labels == 1 and scores.ndim > 1:
            scores = scores[:, 0]
        if apply_softmax and scores.ndim > 1:
            scores = softmax(scores, num_threads)[0]
        result: Array = scores[0] if is_one else scores
        return result

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        return_documents: bool = False,
        batch_size: int = 32,
        activation_fn: str | Callable[[Array], Array] | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> list[Ranked]:
        """Put documents in the order in which they answer a query.

        Parameters
        ----------
        query : str
        documents : iterable of str
        top_k : int, optional
            How many to return, at most; by default all.
        return_documents : bool, optional
            Return the documents' texts as well.
        batch_size, activation_fn, prompt, prompt_name, progress, num_threads
            As in `predict`; a prompt is put before the query.

        Returns
        -------
        list of dict
            The best first, each with its number in `documents`, ``"corpus_id"``; its
            ``"score"``, a float; and its ``"text"`` with `return_documents`. Documents
            of equal scores keep their order, and NaN is last.

        Raises
        ------
        ImportError, TypeError, ValueError
            As `predict`; if the model has several labels.
        """
        if self.num_labels != 1:
            raise ValueError(
                "rank: expected a model of one label, got one of "
                f"{self.num_labels}: predict returns the scores of all"
            )
        if top_k is not None:
            top_k = _checks.count(top_k, "top_k")
        with_texts = _checks.flag(return_documents, "return_documents")
        query = _texts.text(query, "query")
        texts: list[str] = []
        for window in _texts.windows(
            documents, _texts.WINDOW, "documents", _texts.text
        ):
            texts += window
        scores = self.predict(
            [(query, text) for text in texts],
            batch_size=batch_size,
            activation_fn=activation_fn,
            prompt=prompt,
            prompt_name=prompt_name,
            progress=progress,
            num_threads=num_threads,
        ).tolist()
        return _similarity.ranked(scores, top_k, texts if with_texts else None)

    def _template(self) -> PairTemplate | None:
        """Return what makes one text of a pair, if something does."""
        if self.chat_template is None:
            return None
        return _pair_template.checked(
            self.chat_template, self.chat_template_kwargs, self.message_format
        )

    def _check_tokens(self) -> None:
        """Require tokens of a language model's scores, or none where it has labels."""
        model, tokens = self.model, (self.true_token_id, self.false_token_id)
        if tokens == (None, None):
            return
        if not isinstance(model, CausalDecoder) or model.tied is None:
            raise ValueError(
                "true_token_id: expected None for a model without scores of tokens, "
                f"got {self.true_token_id!r}"
            )
        if model.classifier_weight is not None:
            raise ValueError(
                "true_token_id: expected None for a model with num_labels, got "
                f"{self.true_token_id!r}"
            )
        if self.true_token_id is None:
            raise ValueError(
                "true_token_id: expected one with false_token_id, got None"
            )
        for name in ("true_token_id", "false_token_id"):
            token = getattr(self, name)
            if token is not None and not (_checks.size(token, name) < model.vocab_size):
                raise ValueError(
                    f"{name}: expected 0 to {model.vocab_size - 1}, got {token}"
                )
        if self.true_token_id == self.false_token_id:
            raise ValueError(
                "false_token_id: expected another than true_token_id, as the score is "
                f"their difference, got {self.false_token_id} for both"
            )

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        """Return what to put before the first text of a pair."""
        return _texts.prompt(self.prompts, self.default_prompt_name, prompt, name)


def _token_ids(recipe: Recipe, tokenizer: Any) -> dict[str, Any]:
    """Return the tokens of a language model whose scores a pair has."""
    found: dict[str, Any] = {}
    names = "true_token_id", "false_token_id"
    for name, token in zip(names, recipe.tokens or (), strict=False):
        number = tokenizer.token_to_id(token) if isinstance(token, str) else token
        if number is not None:
            found[name] = number
        elif token is not None:
            raise ValueError(
                f"{recipe.model_folder}: expected a tokenizer with {token!r}, or a "
                "module LogitScore in modules.json, got neither"
            )
    return found


def _template_of(recipe: Recipe, given: str | None) -> dict[str, Any]:
    """Return the template of a folder, or the one that is given in its place."""
    text = recipe.chat_template if given is None else given
    if text is None:
        if recipe.is_needed:
            raise ValueError(
                f"{recipe.model_folder}: expected a chat_template, as its texts are "
                "messages, got none; from_pretrained(chat_template=) wins"
            )
        return {}
    variables = recipe.chat_template_kwargs or {}
    message_format = recipe.message_format if given is None else None
    if given is None:
        try:
            _pair_template.checked(text, variables, message_format)
        except ValueError as error:
            if not recipe.is_needed:
                return {}
            raise ValueError(
                f"{recipe.model_folder}: {error}; from_pretrained(chat_template=) wins"
            ) from error
    return {
        "chat_template": text,
        "chat_template_kwargs": variables,
        "message_format": message_format,
    }


def _is_one(pairs: object) -> bool:
    """Tell whether this is a pair, and not several."""
    if isinstance(pairs, np.ndarray):
        pairs = pairs.tolist()
    return (
        isinstance(pairs, (list, tuple)) and bool(pairs) and isinstance(pairs[0], str)
    )


def _activation(activation: object) -> Callable[[Array], Array]:
    """Return the function of an activation, which may be a name."""
    if callable(activation):
        return activation
    if not isinstance(activation, str):
        raise TypeError(
            "activation_fn: expected a name or a function, got "
            f"{type(activation).__name__}"
        )
    known = _text_scores.ACTIVATIONS
    return known[_checks.one_of(activation, "activation_fn", tuple(known))]


def _activated(activation: Callable[[Array], Array], logits: Array) -> Array:
    """Return what a function makes of scores (n, num_labels): n rows, or n numbers."""
    scores = np.asarray(activation(logits))
    if scores.shape not in (logits.shape, logits.shape[:1]):
        raise ValueError(
            f"activation_fn: expected a function that returns {logits.shape} or "
            f"{logits.shape[:1]}, got {scores.shape}"
        )
    return scores


def _name(activation: object) -> str:
    return getattr(activation, "__qualname__", type(activation).__name__)
