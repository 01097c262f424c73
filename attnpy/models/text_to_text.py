"""Texts to other texts: translations, summaries, answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import (
    _checks,
    _keywords,
    _parameters,
    _pickles,
    _progress,
    _repr,
    checkpoints,
)
from attnpy._families.fields import LARGEST_SIZE
from attnpy._files import folder_at
from attnpy._quoting import listed, quoted
from attnpy.checkpoints.reading import is_there, judged_elsewhere
from attnpy.models import (
    _generation,
    _languages,
    _marian_pieces,
    _sentence_folder,
    _texts,
)
from attnpy.models.encoder_decoder import EncoderDecoder

if TYPE_CHECKING:
    import os
    from typing import Literal

    from numpy.typing import DTypeLike
    from typing_extensions import Unpack

    from attnpy.models._generation import GenerationOptions


@_keywords.answering
class TextToText:
    """Turns texts into other texts: it translates, summarises or answers.

    `from_pretrained` reads one from a folder of Transformers.

    Parameters
    ----------
    model : EncoderDecoder
    tokenizer : tokenizers.Tokenizer
        Turns texts into tokens and back. Its padding is switched off, and its
        truncation is set to `max_length`.
    prefix : str, optional
        What comes before each text, such as T5's ``"summarize: "``.
    max_length : int, optional
        Truncate texts to this many tokens. By default nothing is truncated, and texts
        that are too long for the model are refused.
    source_language, target_language : str, optional
        The languages of texts and of what is written, for models of many languages:
        the names of their tokens, such as ``"deu_Latn"`` (NLLB) or ``"de_DE"`` (mBART),
        or ``"de"`` for ``__de__`` (M2M100). The first is put where the tokenizer has
        that of its usual language. By default texts are of this one, and the settings
        say what is written.

    Attributes
    ----------
    model, tokenizer, prefix, max_length, source_language, target_language
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    A text gives the same text alone and among others, whatever the batches and threads,
    unless tokens are drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from attnpy.models import EncoderDecoder, TextToText
    >>> vocab = {"[UNK]": 0, "one": 1, "two": 2, "eins": 3, "zwei": 4}
    >>> tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> model = EncoderDecoder(
    ...     2, 16, 4, 64, vocab_size=5, num_buckets=8, start=0,
    ...     rng=np.random.default_rng(0),
    ... )
    >>> translator = TextToText(model, tokenizer)
    >>> translator.generate("one two", 3)
    'two two two'
    >>> len(translator.generate(["one", "two two"], 3, num_beams=2))
    2
    """

    model: EncoderDecoder
    tokenizer: Any
    prefix: str
    max_length: int | None
    source_language: str | None
    target_language: str | None

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a pickle or a copy has, if texts can be written with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            self._check_parts()

    def _shown(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "prefix": self.prefix or None,
            "max_length": self.max_length,
            "source_language": self.source_language,
            "target_language": self.target_language,
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Any,
        *,
        prefix: str = "",
        max_length: int | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.prefix, self.max_length = _texts.text(prefix, "prefix"), max_length
        self.source_language = source_language
        self.target_language = target_language
        self._check_parts()
        if source_language is not None:
            _languages.set_source(tokenizer, source_language)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if max_length is not None:
            n_special = tokenizer.num_special_tokens_to_add(is_pair=False)
            most = model.max_length or LARGEST_SIZE
            _sentence_folder.check_length(max_length, "max_length", most, n_special)
            tokenizer.enable_truncation(max_length)

    def _check_parts(self) -> None:
        if not isinstance(self.model, EncoderDecoder):
            raise TypeError(
                f"model: expected an EncoderDecoder, got {type(self.model).__name__}"
            )
        _texts.check_tokenizer(self.tokenizer)
        if self.target_language is not None:
            _languages.token(self.tokenizer, self.target_language, "target_language")

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        task: str | None = None,
        prefix: str | None = None,
        max_length: int | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> TextToText:
        """Read a model and its tokenizer from a folder.

        Parameters
        ----------
        folder : str or path
            As `EncoderDecoder.from_pretrained` reads it, with ``tokenizer.json``; or
            with ``source.spm``, ``target.spm`` and ``vocab.json``, as Marian has them,
            which need the sentencepiece package.
        task : str, optional
            A key of ``task_specific_params`` in ``config.json``, such as
            ``"translation_en_to_de"``: its settings win over those of the folder, and
            it has a prefix.
        prefix, max_length, source_language, target_language : optional
            As in `TextToText`; the prefix is by default that of the task.
        dtype, packed, weights, activations, progress
            As in `EncoderDecoder.from_pretrained`.

        Returns
        -------
        TextToText

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers, sentencepiece or safetensors package is not installed, or
            a file is missing.
        TypeError, ValueError
            If files ask for something unsupported, or do not fit together.
        """
        place = folder_at(folder)
        if is_there(place / "tokenizer.json") or not is_there(place / "source.spm"):
            tokenizer, _ = _sentence_folder.tokenizer(place, lower_case=False)
        else:
            tokenizer = _marian_pieces.read(place)
        settings: dict[str, Any] = {}
        if task is not None:
            settings, usual = _task(place, _texts.text(task, "task"))
            prefix = usual if prefix is None else prefix
        model = EncoderDecoder.from_pretrained(
            place,
            dtype=dtype,
            packed=packed,
            weights=weights,
            activations=activations,
            progress=progress,
        )
        model.generation |= settings
        return cls(
            model,
            tokenizer,
            prefix="" if prefix is None else prefix,
            max_length=max_length,
            source_language=source_language,
            target_language=target_language,
        )

    def generate(
        self,
        texts: str | Iterable[str],
        num_tokens: int | None = None,
        *,
        batch_size: int = 8,
        rng: np.random.Generator | None = None,
        progress: bool | None = None,
        num_threads: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> str | list[Any]:
        """Write a text for each text.

        Parameters
        ----------
        texts : str or iterable of str
            One text, or any number of them.
        num_tokens : int, optional
            The most new tokens of each; by default what the model's `generation` says.
        batch_size : int, optional
            How many texts go through the model at a time: those of like lengths, the
            longest first.
        rng : numpy.random.Generator, optional
            Draws tokens; required unless the temperature is 0.
        progress : bool, optional
            Show a progress bar on standard error, if that is a terminal and the work
            takes longer than a second. True needs the tqdm package; None, the default,
            shows no bar if it is not installed.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.
        **options
            As in `EncoderDecoder.generate`: `num_beams`, `length_penalty`,
            `early_stopping`, `num_return_sequences`, `min_tokens`, `temperature`,
            `top_k`, `top_p`, `repetition_penalty`, `no_repeat_ngram_size`, `bad_words`,
            `forced_bos`, `forced_eos`, `suppress_tokens`, `begin_suppress_tokens`.

        Returns
        -------
        list of str, or str for one text
            Without special tokens. With `num_return_sequences` a list of str for each.

        Raises
        ------
        ImportError
            If `progress` is True, and tqdm is not installed.
        TypeError, ValueError
            If an argument has the wrong kind, or is out of its range; if a text has
            more tokens than the model has positions; if `forced_bos` is given beside a
            `target_language`.
        """
        _keywords.refuse(options, _generation.SETTINGS, "TextToText.generate()")
        begin: dict[str, Any] = {}
        if self.target_language is not None:
            begin = self._beginning(options)
        batch_size = _checks.count(batch_size, "batch_size")
        is_one = isinstance(texts, str)
        given = [texts] if is_one else texts
        found: list[Any] = []
        n_texts = len(given) if isinstance(given, (list, tuple)) else None
        size = _texts.WINDOW * batch_size
        with _progress.bar(_progress.checked(progress), n_texts, "text") as done:
            for window in _texts.windows(given, size, "texts", _texts.text):
                first = len(found)
                found += [None] * len(window)
                whole = [self.prefix + text for text in window]
                codes = _texts.encoded(self.tokenizer, whole, num_threads)
                self._check_lengths([*map(len, codes)], first)
                for chosen in _texts.batches([*map(len, codes)], batch_size):
                    rows = [codes[i].ids for i in chosen]
                    tokens = self.model.generate(
                        _texts.padded(rows),
                        num_tokens,
                        lengths=[*map(len, rows)],
                        rng=rng,
                        num_threads=num_threads,
                        **{**options, **begin},
                    )
                    for i, text in zip(chosen, self._decoded(tokens), strict=True):
                        found[first + i] = text
                    done(len(chosen))
        result: str | list[Any] = found[0] if is_one else found
        return result

    def _beginning(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what makes texts begin with the token of the target's language.

        It is the first new token, or stands where the model's `start` is a language.
        """
        assert self.target_language is not None
        if options.get("forced_bos") is not None:
            raise ValueError(
                f"forced_bos: expected None with target_language = "
                f"{self.target_language!r}, got {options['forced_bos']}"
            )
        number = _languages.token(
            self.tokenizer, self.target_language, "target_language"
        )[1]
        start = self.model.start
        if start is None or _languages.is_language(self.tokenizer, start):
            return {"start": [number], "forced_bos": None}
        return {"forced_bos": number}

    def _check_lengths(self, lengths: list[int], begin: int) -> None:
        most = self.model.max_length
        for i, length in enumerate(lengths, begin):
            if length == 0:
                raise ValueError(f"texts[{i}]: expected at least one token, got none")
            if most is not None and length > most:
                raise ValueError(
                    f"texts[{i}]: expected at most {most} tokens, for which the model "
                    f"has positions, got {length}; max_length={most} truncates texts"
                )

    def _decoded(self, tokens: Any) -> list[Any]:
        """Return the texts of tokens, (B, n), or lists of those of (B, k, n)."""
        if tokens.ndim == 3:
            return [self._decoded(several) for several in tokens]
        with judged_elsewhere("tokenizer", "one that knows the tokens of the model"):
            texts: list[str] = self.tokenizer.decode_batch(self._ended(tokens))
        return texts

    def _ended(self, tokens: Any) -> list[list[int]]:
        """Return texts up to the token that ended them, which later ones repeat."""
        ended = []
        for row in tokens.tolist():
            ends = [i for i, token in enumerate(row) if token in self.model.stop]
            ended.append(row[: ends[0] + 1] if ends else row)
        return ended


def _task(folder: Any, task: str) -> tuple[dict[str, Any], str]:
    """Return the settings of a task of a folder, and its prefix."""
    tasks = checkpoints.read_config(folder).get("task_specific_params")
    known = tasks if isinstance(tasks, Mapping) else {}
    said = known.get(task)
    if not isinstance(said, Mapping):
        raise ValueError(
            f"task: expected one of {listed(known) or 'no task, as there are none'}, "
            f"got {quoted(task)}"
        )
    path = f"{folder / 'config.json'}: task_specific_params[{quoted(task)}]"
    rest = {name: value for name, value in said.items() if name != "prefix"}
    prefix = said.get("prefix", "")
    return _generation.read(rest, path).options, _texts.text(prefix, "prefix")
