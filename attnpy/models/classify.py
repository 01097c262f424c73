"""Texts to labels: sentiments, topics, entailment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from attnpy import _checks, _keywords, _parameters, _pickles, _repr
from attnpy._softmax import softmax
from attnpy.models import (
    _hf_config,
    _text_saving,
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

    class Label(TypedDict):
        """A label of a text, and how sure the model is of it."""

        label: str
        score: float


FUNCTIONS = "softmax", "sigmoid", "none"


@_keywords.answering
class TextClassifier:
    """Gives texts labels, such as whether a review is a good one.

    `from_pretrained` reads one from a folder of Transformers.

    Parameters
    ----------
    model : BertEncoder, CausalDecoder or EncoderDecoder
        With `num_labels`.
    tokenizer : tokenizers.Tokenizer
        Turns texts into tokens. Its truncation is set to `max_length`, and its padding
        off.
    label_names : sequence of str, optional
        Their names, all different; by default "LABEL_0" and so on.
    function : {"softmax", "sigmoid", "none"}, optional
        What makes probabilities of scores. By default "softmax" for several labels, of
        which a text has one, and "sigmoid" for a single one.
    max_length : int, optional
        Of texts, in tokens; longer ones are truncated. By default what the model has
        positions for.
    truncation_side : {"right", "left"}, optional
        Where longer texts are truncated.

    Attributes
    ----------
    model, tokenizer, label_names, function, max_length
        As given, or as they are by default.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    A text's scores have the same bits whatever other texts come with it, in whatever
    batches and on however many threads.

    Examples
    --------
    >>> import numpy as np
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from attnpy.models import BertEncoder, TextClassifier
    >>> vocab = {"[UNK]": 0, "good": 1, "bad": 2}
    >>> tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> rng = np.random.default_rng(0)
    >>> model = BertEncoder(
    ...     2, 16, 4, 64, vocab_size=3, pooler=True, num_labels=2, rng=rng
    ... )
    >>> classifier = TextClassifier(model, tokenizer, label_names=["bad", "good"])
    >>> classifier.scores(["good", "bad", "not bad"]).shape
    (3, 2)
    >>> sorted(classifier.predict("good"))
    ['label', 'score']
    """

    model: BertEncoder | CausalDecoder | EncoderDecoder
    tokenizer: Any
    token_types: bool
    label_names: tuple[str, ...]
    function: str
    max_length: int

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a pickle or a copy has, if texts can be scored with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            _text_scores.check_parts(self)
            _checks.one_of(self.function, "function", FUNCTIONS)

    def _shown(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "label_names": list(self.label_names),
            "function": self.function,
            "max_length": self.max_length,
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: BertEncoder | CausalDecoder | EncoderDecoder,
        tokenizer: Any,
        *,
        label_names: Iterable[str] | None = None,
        function: Literal["softmax", "sigmoid", "none"] | None = None,
        max_length: int | None = None,
        truncation_side: Literal["right", "left"] = "right",
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.token_types = False  # which are all 0 in a text alone
        _text_scores.check_parts(self)
        n_labels = self.num_labels
        self.label_names = _text_scores.label_names(label_names, n_labels)
        usual = "softmax" if n_labels > 1 else "sigmoid"
        self.function = _checks.one_of(
            usual if function is None else function, "function", FUNCTIONS
        )
        self.max_length = _text_scores.set_length(
            self, max_length, truncation_side, is_pair=False
        )

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        function: Literal["softmax", "sigmoid", "none"] | None = None,
        max_length: int | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> TextClassifier:
        """Read a classifier from a folder.

        Parameters
        ----------
        folder : str or path
            With a ``ForSequenceClassification`` of the families of `BertEncoder` or
            `CausalDecoder`, or of BART: ``config.json``, ``tokenizer.json`` and
            weights.
            ``id2label`` has the labels, and ``problem_type`` the function: "sigmoid"
            where a text may have several labels, "none" for a regression.
        function, max_length : optional
            Override those of the folder.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        TextClassifier

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers or safetensors package is not installed, or a file is not
            there.
        TypeError, ValueError
            If files ask for something unsupported, or do not fit together.
        """
        read = _text_scores.read(
            *(folder, "SequenceClassification", max_length),
            dtype=dtype,
            packed=packed,
            weights=weights,
            activations=activations,
            progress=progress,
        )
        config = read.recipe.config
        said = _hf_config.problem_function(config)
        return cls(
            read.model,
            read.tokenizer,
            label_names=_hf_config.labels(config),
            function=said if function is None else function,
            **read.cut,
        )

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that Transformers reads, and `from_pretrained`.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            those of the model's own `save_pretrained`, ``tokenizer.json`` and
            ``tokenizer_config.json``. The configuration has `label_names`, and
            `function` as ``problem_type``.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model cannot be saved, as its own `save_pretrained` says; if the
            folder has a ``modules.json`` or ``sentence_bert_config.json``;
            if the function of one label is "softmax".

        Notes
        -----
        Read again, the folder gives the same bits, except for a quantised model, which
        is saved with the numbers that its integers stand for.
        """
        _text_saving.save(self, folder, labels=self.label_names, function=self.function)

    @property
    def num_labels(self) -> int:
        """How many labels there are."""
        assert self.model.classifier_weight is not None
        return int(self.model.classifier_weight.shape[1])

    def scores(
        self,
        texts: str | Iterable[str],
        *,
        batch_size: int = 32,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the scores of all labels.

        Parameters
        ----------
        texts : str or iterable of str
            One text, or any number of them.
        batch_size : int, optional
            How many texts go through the model at a time. Changes no bit of the result.
        progress : bool, optional
            Show a progress bar on standard error, if that is a terminal and the work
            takes longer than a second. True needs the tqdm package; None, the default,
            shows no bar if it is not installed.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (n, num_labels), or (num_labels,) for one text
            After `function`: float32, or float64 for a model of that.

        Raises
        ------
        ImportError
            If `progress` is True, and tqdm is not installed.
        TypeError, ValueError
            If an argument has the wrong kind, or is out of its range.
        """
        is_one = isinstance(texts, str)
        scores = _text_scores.logits(
            self,
            [texts] if is_one else texts,
            "texts",
            _texts.text,
            batch_size=batch_size,
            progress=progress,
            num_threads=num_threads,
        )
        if self.function == "softmax":
            scores = softmax(scores, num_threads)[0]
        elif self.function == "sigmoid":
            scores = _text_scores.sigmoid(scores)
        result: Array = scores[0] if is_one else scores
        return result

    def predict(
        self,
        texts: str | Iterable[str],
        *,
        batch_size: int = 32,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Label | list[Label]:
        """Return the best label of each text.

        Parameters
        ----------
        texts, batch_size, progress, num_threads
            As in `scores`.

        Returns
        -------
        list of dict, or dict for one text
            With the ``"label"`` and its ``"score"``, as a pipeline of Transformers
            returns them.

        Raises
        ------
        ImportError, TypeError, ValueError
            As `scores`.
        """
        scores = self.scores(
            texts, batch_size=batch_size, progress=progress, num_threads=num_threads
        )
        found: list[Label] = [
            {"label": self.label_names[int(row.argmax())], "score": float(row.max())}
            for row in np.atleast_2d(scores)
        ]
        return found[0] if isinstance(texts, str) else found
