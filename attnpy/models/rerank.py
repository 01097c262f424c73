"""Pairs of texts to scores, by a model that reads both at once: reranking."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from attnpy import _checks, _keywords, _parameters, _pickles, _repr
from attnpy._softmax import softmax
from attnpy.models import (
    _classifier_folder,
    _text_scores,
    _texts,
)
from attnpy.models.bert import BertEncoder

if TYPE_CHECKING:
    import os

    from numpy.typing import DTypeLike
    from typing_extensions import NotRequired

    from attnpy._typing import Array

    class Ranked(TypedDict):
        """A document, and how well it answers a query."""

        corpus_id: int
        score: float
        text: NotRequired[str]


@_keywords.answering
class CrossEncoder:
    """Scores pairs of texts, such as a query and a passage that may answer it.

    It reads both texts at once, which is slower than comparing vectors of a
    `SentenceEncoder`, and more accurate: let it put in order what a search has found.
    `from_pretrained` reads one from a folder, as ms-marco-MiniLM or bge-reranker.

    Parameters
    ----------
    model : BertEncoder
        With `num_labels`: a pair has so many scores.
    tokenizer : tokenizers.Tokenizer
        Turns pairs into tokens. Its truncation is set to `max_length`, and its padding
        off.
    activation_fn : str or callable, optional
        What is done to scores: "sigmoid", "identity", "tanh", "relu", "gelu", "silu",
        or a function of an array (n, num_labels). By default "sigmoid" for one label,
        and "identity" for several.
    max_length : int, optional
        Of both texts with what the tokenizer adds, in tokens. Of longer pairs the
        longer text is cut first. By default what the model has positions for.
    truncation_side : {"right", "left"}, optional
        Where texts are cut.
    token_types : bool, optional
        Tell the model the types that the tokenizer gives to tokens, which are others in
        the second text. By default True for a model with several types.
    prompts : mapping of str to str, optional
        Texts to put before the first of a pair, by name.
    default_prompt_name : str, optional
        Which of them is put before it where nothing else is said.

    Attributes
    ----------
    model, tokenizer, activation_fn, max_length, token_types, prompts,
    default_prompt_name
        As given, or as they are by default.
    num_labels : int
        How many scores a pair has.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    From Nogueira and Cho, "Passage Re-ranking with BERT" (2019). A pair's scores have
    the same bits whatever other pairs come with it, in whatever batches and on however
    many threads: nothing is computed for padding.

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

    model: BertEncoder
    tokenizer: Any
    activation_fn: Any
    max_length: int
    token_types: bool
    prompts: dict[str, str]
    default_prompt_name: str | None

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a pickle or a copy has, if pairs can be scored with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            _text_scores.check_parts(self)
            _activation(self.activation_fn)

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
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: BertEncoder,
        tokenizer: Any,
        *,
        activation_fn: str | Callable[[Array], Array] | None = None,
        max_length: int | None = None,
        truncation_side: Literal["right", "left"] = "right",
        token_types: bool | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
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
            As sentence-transformers writes it, with ``modules.json`` or without; or
            Transformers a ``ForSequenceClassification`` of the families of
            `BertEncoder`. With ``config.json``, ``tokenizer.json`` and weights. What
            its files say is honoured, or refused by name.
        activation_fn, max_length, token_types : optional
            In place of the folder's.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        CrossEncoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers or safetensors package is not installed, or a file is not
            there.
        TypeError, ValueError
            If files ask for something that is not here, or do not fit together.
        """
        recipe, model, tokenizer, cut = _text_scores.read(
            *(folder, "SequenceClassification", max_length),
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
            **cut,
        )

    @property
    def num_labels(self) -> int:
        """How many scores a pair has."""
        assert self.model.classifier_bias is not None
        return len(self.model.classifier_bias)

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
            A text to put before the first of each pair; "" for none, where the encoder
            has a usual one.
        prompt_name : str, optional
            One of `prompts`, in its place. By default `default_prompt_name`.
        progress : bool, optional
            Show a bar, on standard error if that is a terminal, of what takes longer
            than a second. True needs the tqdm package; None, the default, does without
            where it is not installed.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result. With 1 the tokenizer, too, has one thread; else its package decides
            (``RAYON_NUM_THREADS``).

        Returns
        -------
        ndarray, shape (n,) for one label, or (n, num_labels)
            In the order given: float32, or float64 for a model of that. One pair has no
            axis of its own.

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

        def check(value: object, name: str) -> tuple[str, str]:
            first, second = _texts.pair(value, "pairs" if is_one else name)
            return before + first, second

        logits = _text_scores.logits(
            self,
            [pairs] if is_one else pairs,
            "pairs",
            check,
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
            ``"score"``, a float; and its ``"text"`` with `return_documents`. Of equal
            scores that which comes first in `documents` is the first, and NaN is last.

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
        order = sorted(range(len(texts)), key=lambda i: _first_best(scores[i]))
        found: list[Ranked] = [
            {"corpus_id": i, "score": scores[i]} for i in order[:top_k]
        ]
        if _checks.flag(return_documents, "return_documents"):
            for entry in found:
                entry["text"] = texts[entry["corpus_id"]]
        return found

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        """Return what to put before the first text of a pair."""
        return _texts.prompt(self.prompts, self.default_prompt_name, prompt, name)


def _is_one(pairs: object) -> bool:
    """Tell whether this is a pair, and not several."""
    if isinstance(pairs, np.ndarray):
        pairs = pairs.tolist()
    return (
        isinstance(pairs, (list, tuple)) and bool(pairs) and isinstance(pairs[0], str)
    )


def _first_best(score: float) -> tuple[bool, float]:
    """Return what sorts the best score first, and NaN last."""
    return math.isnan(score), -score


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
