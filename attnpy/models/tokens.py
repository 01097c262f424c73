"""Labels of the tokens of a text, and words for the masked ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr
from attnpy._softmax import softmax
from attnpy.checkpoints.reading import judged_elsewhere
from attnpy.models import (
    _hf_config,
    _sentence_folder,
    _text_saving,
    _text_scores,
    _texts,
)
from attnpy.models.bert import BertEncoder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from attnpy._typing import Array

    Entity = dict[str, Any]
    Strategy = Literal["none", "simple", "first", "average", "max"]

    class Word(TypedDict):
        """A word in the place of a masked token, and how likely it is."""

        score: float
        token: int
        token_str: str
        sequence: str


STRATEGIES = "none", "simple", "first", "average", "max"


@_keywords.answering
class TokenClassifier:
    """Gives the tokens of texts labels: names of persons and places, parts of speech.

    `from_pretrained` reads one from a folder of Transformers.

    Parameters
    ----------
    model : BertEncoder
        With `num_token_labels`.
    tokenizer : tokenizers.Tokenizer
        Turns texts into tokens. Its truncation is set to `max_length`, and its padding
        off.
    label_names : sequence of str, optional
        Their names, all different; by default "LABEL_0" and so on. "B-" before a name
        begins an entity of several tokens, and "I-" continues it.
    ignore_labels : sequence of str, optional
        Labels that are left out of results.
    max_length : int, optional
        Of texts, in tokens; longer ones are truncated. By default what the model has
        positions for.
    truncation_side : {"right", "left"}, optional
        Where longer texts are truncated.

    Attributes
    ----------
    model, tokenizer, label_names, ignore_labels, max_length
        As given, or as they are by default.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    A text's scores have the same bits whatever other texts come with it, in whatever
    batches and on however many threads. Results are those of the pipeline
    "token-classification" of Transformers.

    Examples
    --------
    >>> import numpy as np
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from attnpy.models import BertEncoder, TokenClassifier
    >>> vocab = {"[UNK]": 0, "Ada": 1, "lives": 2}
    >>> tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> rng = np.random.default_rng(0)
    >>> model = BertEncoder(
    ...     2, 16, 4, 64, vocab_size=3, num_token_labels=2, rng=rng
    ... )
    >>> classifier = TokenClassifier(model, tokenizer, label_names=["PER", "LOC"])
    >>> [list(found) for found in classifier.predict("Ada")]
    [['entity', 'score', 'index', 'word', 'start', 'end']]
    """

    model: BertEncoder
    tokenizer: Any
    label_names: tuple[str, ...]
    ignore_labels: tuple[str, ...]
    max_length: int

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a pickle or a copy has, if tokens can be scored with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            _check_parts(self.model, self.tokenizer, "token_head")

    def _shown(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "label_names": list(self.label_names),
            "ignore_labels": list(self.ignore_labels),
            "max_length": self.max_length,
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: BertEncoder,
        tokenizer: Any,
        *,
        label_names: Iterable[str] | None = None,
        ignore_labels: Iterable[str] = ("O",),
        max_length: int | None = None,
        truncation_side: Literal["right", "left"] = "right",
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        _check_parts(model, tokenizer, "token_head")
        assert model.token_head is not None
        assert model.token_head.bias is not None
        n_labels = len(model.token_head.bias)
        self.label_names = _text_scores.label_names(label_names, n_labels)
        self.ignore_labels = _texts.names(ignore_labels, "ignore_labels")
        self.max_length = _text_scores.set_length(
            self, max_length, truncation_side, is_pair=False
        )

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        ignore_labels: Iterable[str] = ("O",),
        max_length: int | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> TokenClassifier:
        """Read a classifier of tokens from a folder.

        Parameters
        ----------
        folder : str or path
            With a ``ForTokenClassification`` of the families of `BertEncoder`:
            ``config.json``, whose ``id2label`` has the labels, ``tokenizer.json`` and
            weights.
        ignore_labels : sequence of str, optional
            As in `TokenClassifier`.
        max_length : int, optional
            Overrides that of the folder.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        TokenClassifier

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers or safetensors package is not installed, or a file is not
            there.
        TypeError, ValueError
            If files ask for something unsupported, or do not fit together.
        """
        read = _text_scores.read(
            *(folder, "TokenClassification", max_length),
            dtype=dtype,
            packed=packed,
            weights=weights,
            activations=activations,
            progress=progress,
        )
        return cls(
            read.model,
            read.tokenizer,
            label_names=_hf_config.labels(read.recipe.config),
            ignore_labels=ignore_labels,
            **read.cut,
        )

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that Transformers reads, and `from_pretrained`.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            those of the model's own `save_pretrained`, ``tokenizer.json`` and
            ``tokenizer_config.json``. The configuration has `label_names`.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model cannot be saved, as its own `save_pretrained` says; if the
            folder has a ``modules.json`` or ``sentence_bert_config.json``.

        Notes
        -----
        Read again, the folder gives the same bits, except for a quantised model, which
        is saved with the numbers that its integers stand for.
        `ignore_labels` is not in such a folder.
        """
        _text_saving.save(self, folder, labels=self.label_names)

    def predict(
        self,
        texts: str | Iterable[str],
        *,
        aggregation_strategy: Strategy = "none",
        batch_size: int = 32,
        num_threads: int | None = None,
    ) -> list[Entity] | list[list[Entity]]:
        """Return the entities in texts.

        Parameters
        ----------
        texts : str or iterable of str
            One text, or any number of them.
        aggregation_strategy : {"none", "simple", "first", "average", "max"}, optional
            "none": each token by itself. "simple": adjacent tokens of one label become
            one entity, whose score is the mean of theirs. The others give all pieces of
            a word one label first: that of the first piece, of the mean of their
            scores, or of the piece with the largest one.
        batch_size : int, optional
            How many texts go through the model at a time. Changes no bit of the result.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        list of dict for one text, or a list of them for several
            ``"entity"``, or ``"entity_group"`` of several tokens; its ``"score"``; the
            number ``"index"`` of a token, with "none"; ``"word"``, as the tokenizer
            writes its tokens; ``"start"`` and ``"end"`` in the text. Tokens that the
            tokenizer adds, and `ignore_labels`, are left out.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, or is out of its range.
        """
        strategy = _checks.one_of(
            aggregation_strategy, "aggregation_strategy", STRATEGIES
        )
        is_one = isinstance(texts, str)
        found = []
        for text, code, states in _states(
            self, [texts] if is_one else texts, batch_size, num_threads
        ):
            logits = self.model.classify_tokens(states, num_threads=num_threads)
            scores = softmax(logits, num_threads)[0]
            found.append(self._entities(text, code, scores, strategy))
        return found[0] if is_one else found

    def _entities(
        self, text: str, code: Any, scores: Array, strategy: str
    ) -> list[Entity]:
        """Return the entities of a text, of the scores (L, n) of its tokens."""
        pieces = list(self._pieces(text, code, scores))
        if strategy in ("none", "simple"):
            entities = [
                {
                    "entity": self.label_names[int(piece["scores"].argmax())],
                    "score": float(piece["scores"].max()),
                    **{key: piece[key] for key in ("index", "word", "start", "end")},
                }
                for piece in pieces
            ]
        else:
            entities = [self._word(word, strategy) for word in _words(pieces)]
        if strategy != "none":
            entities = [self._group(group) for group in _groups(entities)]
        name = "entity" if strategy == "none" else "entity_group"
        return [entity for entity in entities if entity[name] not in self.ignore_labels]

    def _pieces(self, text: str, code: Any, scores: Array) -> Iterator[Entity]:
        """Go through the tokens that are the text's own."""
        marks_words = bool(
            getattr(self.tokenizer.model, "continuing_subword_prefix", None)
        )
        unknown = getattr(self.tokenizer.model, "unk_token", None)
        for i, (token, (start, end)) in enumerate(
            zip(code.tokens, code.offsets, strict=True)
        ):
            if code.special_tokens_mask[i]:
                continue
            if marks_words:
                inside = len(token) != end - start
            else:
                inside = start > 0 and " " not in text[start - 1 : start + 1]
            if token == unknown:
                token, inside = text[start:end], False
            yield {
                "word": token,
                "scores": scores[i],
                "start": start,
                "end": end,
                "index": i,
                "inside": inside,
            }

    def _word(self, pieces: list[Entity], strategy: str) -> Entity:
        """Return a word of several pieces, with one label."""
        scores = pieces[0]["scores"]
        if strategy == "max":
            scores = max((piece["scores"] for piece in pieces), key=np.max)
        elif strategy == "average":
            every = np.stack([piece["scores"] for piece in pieces])
            scores = np.add.reduce(every, axis=0) / every.dtype.type(len(pieces))
        best = int(scores.argmax())
        return {
            "entity": self.label_names[best],
            "score": float(scores[best]),
            "word": self._text([piece["word"] for piece in pieces]),
            "start": pieces[0]["start"],
            "end": pieces[-1]["end"],
        }

    def _group(self, entities: list[Entity]) -> Entity:
        """Return an entity of several tokens or words."""
        return {
            "entity_group": entities[0]["entity"].split("-", 1)[-1],
            "score": float(np.mean([entity["score"] for entity in entities])),
            "word": self._text([entity["word"] for entity in entities]),
            "start": entities[0]["start"],
            "end": entities[-1]["end"],
        }

    def _text(self, tokens: list[str]) -> str:
        """Return the text of tokens, as the tokenizer puts them together."""
        decoder = self.tokenizer.decoder
        text: str = " ".join(tokens) if decoder is None else decoder.decode(tokens)
        return text


@_keywords.answering
class FillMask:
    """Says which words may stand in the place of masked ones.

    `from_pretrained` reads one from a folder of Transformers.

    Parameters
    ----------
    model : BertEncoder
        With `masked_words`.
    tokenizer : tokenizers.Tokenizer
        Turns texts into tokens. Its truncation is set to `max_length`, and its padding
        off.
    mask_token : str, optional
        What stands in a text in the place of a word; by default "[MASK]" or "<mask>",
        whichever the tokenizer has.
    max_length, truncation_side : optional
        As in `TokenClassifier`.

    Attributes
    ----------
    model, tokenizer, mask_token, max_length
        As given, or as they are by default.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    From Devlin et al. (2019), section 3.1. A text's scores have the same bits whatever
    other texts come with it. Results are those of the pipeline "fill-mask" of
    Transformers.

    Examples
    --------
    >>> import numpy as np
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from attnpy.models import BertEncoder, FillMask
    >>> vocab = {"[UNK]": 0, "[MASK]": 1, "cats": 2, "sleep": 3, "bark": 4}
    >>> tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    >>> rng = np.random.default_rng(0)
    >>> model = BertEncoder(2, 16, 4, 64, vocab_size=5, masked_words=True, rng=rng)
    >>> filler = FillMask(model, tokenizer)
    >>> best = filler.predict("cats [MASK]", top_k=2)
    >>> [list(word) for word in best]
    [['score', 'token', 'token_str', 'sequence'], \
['score', 'token', 'token_str', 'sequence']]
    """

    model: BertEncoder
    tokenizer: Any
    mask_token: str
    max_length: int

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a pickle or a copy has, if words can be scored with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            _check_parts(self.model, self.tokenizer, "word_head")

    def _shown(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "mask_token": self.mask_token,
            "max_length": self.max_length,
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: BertEncoder,
        tokenizer: Any,
        *,
        mask_token: str | None = None,
        max_length: int | None = None,
        truncation_side: Literal["right", "left"] = "right",
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        _check_parts(model, tokenizer, "word_head")
        usual = ("[MASK]", "<mask>") if mask_token is None else (mask_token,)
        names = [_texts.text(name, "mask_token") for name in usual]
        known = [name for name in names if tokenizer.token_to_id(name) is not None]
        if not known:
            raise ValueError(
                "mask_token: expected one that the tokenizer has, got "
                f"{' and '.join(map(repr, names))}"
            )
        self.mask_token = known[0]
        self.max_length = _text_scores.set_length(
            self, max_length, truncation_side, is_pair=False
        )

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        max_length: int | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> FillMask:
        """Read a model of masked words from a folder.

        Parameters
        ----------
        folder : str or path
            With a ``ForMaskedLM`` of the families of `BertEncoder`: ``config.json``,
            ``tokenizer.json`` and weights. A head for pairs of sentences beside it, as
            in ``bert-base-uncased``, is left alone.
        max_length : int, optional
            Overrides that of the folder.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        FillMask

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers or safetensors package is not installed, or a file is not
            there.
        TypeError, ValueError
            If files ask for something unsupported, or do not fit together.
        """
        read = _text_scores.read(
            *(folder, "MaskedLM", max_length),
            dtype=dtype,
            packed=packed,
            weights=weights,
            activations=activations,
            ignore_head=True,
            progress=progress,
        )
        path = read.recipe.model_folder / "tokenizer_config.json"
        token = _sentence_folder.Fields(path).rest.get("mask_token")
        token = token.get("content") if isinstance(token, Mapping) else token
        return cls(read.model, read.tokenizer, mask_token=token, **read.cut)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that Transformers reads, and `from_pretrained`.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            those of the model's own `save_pretrained`, ``tokenizer.json`` and
            ``tokenizer_config.json``. This has `mask_token`.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model cannot be saved, as its own `save_pretrained` says; if the
            folder has a ``modules.json`` or ``sentence_bert_config.json``.

        Notes
        -----
        Read again, the folder gives the same bits, except for a quantised model, which
        is saved with the numbers that its integers stand for.
        """
        _text_saving.save(self, folder, special={"mask_token": self.mask_token})

    def predict(
        self,
        texts: str | Iterable[str],
        *,
        top_k: int = 5,
        batch_size: int = 32,
        num_threads: int | None = None,
    ) -> list[Any]:
        """Return the most likely words in the places of masked ones.

        Parameters
        ----------
        texts : str or iterable of str
            One text, or any number of them, each with `mask_token` in it.
        top_k : int, optional
            How many words, at most.
        batch_size : int, optional
            How many texts go through the model at a time. Changes no bit of the result.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        list of dict for one text, or a list of them for several
            The best word first, each with its ``"score"``, a probability; ``"token"``,
            its number; ``"token_str"``; and ``"sequence"``, the text with it. Of equal
            scores the smaller number is the first. A text with several masks has such a
            list for each of them.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, or is out of its range; if a text has no
            mask, or has lost it because it is too long.
        """
        top_k = _checks.count(top_k, "top_k")
        is_one = isinstance(texts, str)
        found = []
        for i, (_, code, states) in enumerate(
            _states(self, [texts] if is_one else texts, batch_size, num_threads)
        ):
            name = "texts" if is_one else f"texts[{i}]"
            found.append(self._words(code, states, name, top_k, num_threads))
        return found[0] if is_one else found

    def _words(
        self,
        code: Any,
        states: Array,
        name: str,
        top_k: int,
        num_threads: int | None,
    ) -> list[Word] | list[list[Word]]:
        """Return the words for the masks of a text, of the vectors (L, E)."""
        mask = self.tokenizer.token_to_id(self.mask_token)
        ids = np.array(code.ids, np.int64)
        places = np.flatnonzero(ids == mask)
        if len(places) == 0:
            raise ValueError(
                f"{name}: expected {self.mask_token} among its first "
                f"{self.max_length} tokens, got none"
            )
        logits = self.model.logits(states[places], num_threads=num_threads)
        results = []
        for place, row in zip(places, softmax(logits, num_threads)[0], strict=True):
            words: list[Word] = []
            for token in np.argsort(-row, kind="stable")[:top_k].tolist():
                filled = ids.copy()
                filled[place] = token
                # Where there are others, the masks are shown.
                sequence = self.tokenizer.decode(
                    filled.tolist(), skip_special_tokens=len(places) == 1
                )
                words.append(
                    {
                        "score": float(row[token]),
                        "token": token,
                        "token_str": self.tokenizer.decode(
                            [token], skip_special_tokens=False
                        ),
                        "sequence": sequence,
                    }
                )
            results.append(words)
        return results[0] if len(results) == 1 else results


def _check_parts(model: object, tokenizer: object, head: str) -> None:
    """Require a model with this head, and a tokenizer."""
    if not isinstance(model, BertEncoder):
        raise TypeError(f"model: expected a BertEncoder, got {type(model).__name__}")
    if getattr(model, head) is None:
        option = {"token_head": "num_token_labels", "word_head": "masked_words"}[head]
        raise ValueError(f"model: expected one with {option}, got one without")
    _texts.check_tokenizer(tokenizer)


def _states(
    self: TokenClassifier | FillMask,
    texts: Iterable[object],
    batch_size: int,
    num_threads: int | None,
) -> Iterator[tuple[str, Any, Array]]:
    """Go through texts with their tokens and vectors, (L, E), those of a model's dtype.

    Those of 16 bits become float32 before they are scored.
    """
    size = _checks.count(batch_size, "batch_size")
    for window in _texts.windows(texts, size * _texts.WINDOW, "texts", _texts.text):
        with judged_elsewhere("tokenizer", "one that makes tokens of these texts"):
            codes = [self.tokenizer.encode(text) for text in window]
        found: dict[int, Array] = {}
        for chosen in _texts.batches([*map(len, codes)], size):
            rows = [codes[i].ids for i in chosen]
            lengths = [*map(len, rows)]
            states = self.model(
                _texts.padded(rows), lengths=lengths, num_threads=num_threads
            )
            wide = _dtypes.arithmetic(states.dtype)
            for i, n, each in zip(chosen, lengths, states, strict=True):
                found[i] = each[:n].astype(wide)
        for i, (text, code) in enumerate(zip(window, codes, strict=True)):
            yield text, code, found[i]


def _words(pieces: Iterable[Entity]) -> list[list[Entity]]:
    """Return the pieces of each word."""
    return _cut(pieces, lambda _, piece: bool(piece["inside"]))


def _groups(entities: Iterable[Entity]) -> list[list[Entity]]:
    """Return the tokens or words of each entity: those of one label side by side."""

    def continues(before: Entity, entity: Entity) -> bool:
        begins, tag = _tag(entity["entity"])
        return not begins and tag == _tag(before["entity"])[1]

    return _cut(entities, continues)


def _cut(
    items: Iterable[Entity], continues: Callable[[Entity, Entity], bool]
) -> list[list[Entity]]:
    groups: list[list[Entity]] = []
    for item in items:
        if groups and continues(groups[-1][-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _tag(label: str) -> tuple[bool, str]:
    """Tell whether a label begins an entity, and of which kind it is."""
    is_known = label.startswith(("B-", "I-"))
    return label.startswith("B-"), label[2:] if is_known else label
