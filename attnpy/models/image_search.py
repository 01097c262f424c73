"""Pictures and texts to vectors that can be compared: search, and labels by words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _progress, _repr
from attnpy._files import folder_at
from attnpy._softmax import softmax
from attnpy.checkpoints.reading import judged_elsewhere
from attnpy.models import (
    _sentence_folder,
    _similarity,
    _text_scores,
    _texts,
    image_processor,
)
from attnpy.models._similarity import SearchResult
from attnpy.models.image_processor import ImageProcessor
from attnpy.models.image_text import ImageTextModel

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Array

# How many vectors `search` looks at at a time.
BLOCK = 16384


@_keywords.answering
class ImageTextEncoder:
    """CLIP and SigLIP for pictures of any size and for texts.

    `from_pretrained` reads one from a folder of Transformers.

    Parameters
    ----------
    model : ImageTextModel
    tokenizer : tokenizers.Tokenizer
        Turns texts into tokens. Its truncation is set to the model's positions, and its
        padding according to `padding_id`.
    processor : ImageProcessor
        Makes what the model takes of pictures.
    padding_id : int, optional
        Fill each text with this token up to the model's positions, as SigLIP was
        trained. Required where the model's `end_token` is "last"; None elsewhere.

    Attributes
    ----------
    model, tokenizer, processor, padding_id
        As given.
    embed_dim : int
        `P`, the size of the vectors.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or does not fit the others.

    Notes
    -----
    The vector of a picture or text has the same bits whatever others are encoded with
    it, in any batches and on any number of threads. Texts longer than the model has
    positions for are truncated.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import ImageTextEncoder
    >>> encoder = ImageTextEncoder.from_pretrained("clip")  # doctest: +SKIP
    >>> vectors = encoder.encode_images(pictures)  # doctest: +SKIP
    >>> encoder.search("a cat on a sofa", vectors, top_k=3)  # doctest: +SKIP
    >>> encoder.classify(pictures[0], ["a cat", "a dog"])  # doctest: +SKIP
    """

    model: ImageTextModel
    tokenizer: Any
    processor: ImageProcessor
    padding_id: int | None

    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a pickle or a copy has, if its parts fit together."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            self._check_parts()

    def _shown(self) -> dict[str, Any]:
        return {
            "embed_dim": self.embed_dim,
            "image_size": self.model.image_model.image_size,
            "max_tokens": self.model.max_tokens,
            "padding_id": self.padding_id,
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        model: ImageTextModel,
        tokenizer: Any,
        processor: ImageProcessor,
        *,
        padding_id: int | None = None,
    ) -> None:
        self.model, self.tokenizer, self.processor = model, tokenizer, processor
        self.padding_id = padding_id
        self._check_parts()
        tokenizer.enable_truncation(model.max_tokens)
        tokenizer.no_padding()

    def _check_parts(self) -> None:
        """Require parts that fit together."""
        if not isinstance(self.model, ImageTextModel):
            raise TypeError(
                f"model: expected an ImageTextModel, got {type(self.model).__name__}"
            )
        _texts.check_tokenizer(self.tokenizer)
        image_processor.check_size(self.processor, self.model.image_model.image_size)
        is_last = self.model.end_token == "last"
        if is_last != (self.padding_id is not None):
            wanted = "a token" if is_last else "None"
            raise ValueError(
                f"padding_id: expected {wanted} with end_token = "
                f"{self.model.end_token!r} of the model, got {self.padding_id!r}"
            )
        if self.padding_id is not None:
            vocab_size = self.model.text_model.vocab_size
            number = _checks.size(self.padding_id, "padding_id")
            if number >= vocab_size:
                raise ValueError(
                    f"padding_id: expected 0 to {vocab_size - 1}, got {number}"
                )

    @property
    def embed_dim(self) -> int:
        """`P`, the size of the vectors."""
        return self.model.projection_dim

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> ImageTextEncoder:
        """Read an encoder from a folder.

        Parameters
        ----------
        folder : str or path
            With ``config.json`` of CLIP or SigLIP, ``preprocessor_config.json``,
            ``tokenizer.json``, which is taken as it is, and weights. SigLIP's
            ``tokenizer_config.json`` has the ``pad_token``.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        ImageTextEncoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers or safetensors package is not installed, or a file is not
            there.
        TypeError, ValueError
            If files ask for something unsupported, or do not fit together.
        """
        place = folder_at(folder)
        tokenizer, side = _sentence_folder.tokenizer(place, False)
        if side != "right":
            raise ValueError(
                f"{place / 'tokenizer_config.json'}: expected truncation_side = right, "
                f"got {side}"
            )
        processor = ImageProcessor.from_pretrained(folder)
        model = ImageTextModel.from_pretrained(
            folder,
            dtype=dtype,
            packed=packed,
            weights=weights,
            activations=activations,
            progress=progress,
        )
        padding_id = None
        if model.end_token == "last":
            padding_id = _padding_token(place, tokenizer)
        return cls(model, tokenizer, processor, padding_id=padding_id)

    def encode_images(
        self,
        images: Any,
        *,
        batch_size: int = 8,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the vectors of pictures.

        Parameters
        ----------
        images : array_like of uint8, shape (H, W, 3) or (n, H, W, 3), or iterable
            One picture, or any number of them, even from a generator; see
            `ImageProcessor.__call__`.
        batch_size : int, optional
            How many go through the model at a time. Changes no bit of the result.
        progress : bool, optional
            Show a progress bar on standard error, if that is a terminal and the work
            takes longer than a second. True needs the tqdm package; None, the default,
            shows no bar if it is not installed.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (n, P), or (P,) for one picture
            Of length 1.

        Raises
        ------
        ImportError
            If a picture has to be resized, and Pillow is not installed; if `progress`
            is True, and tqdm is not.
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        """

        def encode(batch: list[Any]) -> Array:
            pixels = self.processor(batch)
            return self.model.encode_images(pixels, num_threads=num_threads)

        is_one = image_processor.is_one(images)
        given = [images] if is_one else images
        found = self._encoded(given, encode, batch_size, progress, "image")
        return found[0] if is_one else found

    def encode_texts(
        self,
        texts: str | Iterable[str],
        *,
        batch_size: int = 32,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the vectors of texts.

        Parameters
        ----------
        texts : str or iterable of str
            One text, or any number of them.
        batch_size, progress, num_threads
            As in `encode_images`.

        Returns
        -------
        ndarray, shape (n, P), or (P,) for one text
            Of length 1.

        Raises
        ------
        ImportError, TypeError, ValueError
            As `encode_images`, but for Pillow.
        """

        def encode(batch: list[str]) -> Array:
            return self.model.encode_texts(
                self._tokens(batch, num_threads), num_threads=num_threads
            )

        is_one = isinstance(texts, str)
        given = [texts] if is_one else texts
        windows = _texts.windows(given, 1, "texts", _texts.text)
        checked = [text for window in windows for text in window]
        found = self._encoded(checked, encode, batch_size, progress, "text")
        return found[0] if is_one else found

    def _encoded(
        self,
        given: Iterable[Any],
        encode: Callable[[list[Any]], Array],
        batch_size: int,
        progress: bool | None,
        unit: str,
    ) -> Array:
        """Return the vectors of all that is given, some at a time, (n, P)."""
        batch_size = _checks.count(batch_size, "batch_size")
        kind = _dtypes.arithmetic(self.model.text_projection.dtype)
        parts = [np.empty((0, self.embed_dim), kind)]
        n = _progress.total(given)
        with _progress.bar(progress, n, unit) as done:
            for batch in image_processor.batches(given, batch_size):
                parts.append(encode(batch))
                done(len(batch))
        return np.concatenate(parts)

    def _tokens(self, texts: list[str], num_threads: int | None) -> Array:
        """Return the tokens of texts side by side, (B, L)."""
        rows = [code.ids for code in _texts.encoded(self.tokenizer, texts, num_threads)]
        if self.padding_id is None:
            return _texts.padded(rows)
        table = np.full((len(rows), self.model.max_tokens), self.padding_id)
        for to, row in zip(table, rows, strict=True):
            to[: len(row)] = row
        return table

    def classify(
        self,
        images: Any,
        label_names: Sequence[str],
        *,
        template: str = "This is a photo of {}.",
        batch_size: int = 8,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return how likely each label is, of labels that were never trained.

        Parameters
        ----------
        images
            As in `encode_images`.
        label_names : sequence of str
            Words or phrases, such as "a cat".
        template : str, optional
            The sentence for a label, with ``{}`` in its place; by default that of a
            pipeline of Transformers.
        batch_size, progress, num_threads
            As in `encode_images`.

        Returns
        -------
        ndarray, shape (n, len(label_names)), or (len(label_names),) for one picture
            CLIP: probabilities of which one fits best, whose sum is 1. SigLIP: of each
            by itself.

        Raises
        ------
        ImportError, TypeError, ValueError
            As `encode_images`; if there are no labels, or no ``{}`` in the template.
        """
        if isinstance(label_names, str):
            raise TypeError("label_names: expected several texts, got one string")
        if "{}" not in _texts.text(template, "template"):
            raise ValueError(f"template: expected a text with {{}}, got {template!r}")
        names = [_texts.text(x, f"label_names[{i}]") for i, x in enumerate(label_names)]
        if not names:
            raise ValueError("label_names: expected at least one, got none")
        texts = self.encode_texts(
            [template.replace("{}", name) for name in names],
            progress=False,
            num_threads=num_threads,
        )
        vectors = self.encode_images(
            images, batch_size=batch_size, progress=progress, num_threads=num_threads
        )
        scores = self.model.logits(
            np.atleast_2d(vectors), texts, num_threads=num_threads
        )
        if self.model.logit_bias is None:
            scores = softmax(scores, num_threads)[0]
        else:
            scores = _text_scores.sigmoid(scores)
        return scores if vectors.ndim == 2 else scores[0]

    def similarity(
        self, a: ArrayLike, b: ArrayLike, *, num_threads: int | None = None
    ) -> Array:
        """Return the cosines of vectors, of pictures or texts.

        Parameters
        ----------
        a : array_like, shape (n, P) or (P,)
        b : array_like, shape (m, P) or (P,)
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (n, m)
            Without the axis of an argument that is a single vector. Each number has the
            same bits as alone.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong kind or shape.
        """
        one = _similarity.vectors(a, "a")
        other = _similarity.vectors(b, "b", one.shape[-1])
        scores = _similarity.FUNCTIONS["cosine"](
            np.atleast_2d(one), np.atleast_2d(other), num_threads
        )
        return scores.reshape(one.shape[:-1] + other.shape[:-1])

    def search(
        self,
        query: str | Iterable[str] | Array,
        corpus: Array,
        top_k: int = 10,
        *,
        num_threads: int | None = None,
    ) -> SearchResult:
        """Find the pictures that fit a text best, or what is most like a vector.

        Parameters
        ----------
        query : str, iterable of str, or ndarray of shape (P,) or (n, P)
            A text, several texts, or vectors of texts or pictures.
        corpus : ndarray, shape (m, P)
            Vectors, as `encode_images` returns them; it may be a `numpy.memmap` larger
            than memory.
        top_k : int, optional
            The largest number of results.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        SearchResult
            `indices` and `scores`, the cosines, shape (top_k,), or (n, top_k) for
            several queries: the best first; of equal ones, the first in the corpus.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or shape, or is out of its range.
        """
        top_k = _checks.count(top_k, "top_k")
        if not isinstance(query, np.ndarray) or query.dtype.kind in "OTU":
            query = self.encode_texts(query, progress=False, num_threads=num_threads)
        queries = _similarity.vectors(query, "query", self.embed_dim)
        if not isinstance(corpus, np.ndarray):
            raise TypeError(
                f"corpus: expected vectors as an array, got {type(corpus).__name__}"
            )
        if corpus.ndim != 2 or corpus.shape[1] != self.embed_dim:
            raise ValueError(
                f"corpus: expected (m, {self.embed_dim}), got {corpus.shape}"
            )
        rows = np.atleast_2d(queries)

        def blocks() -> Iterator[tuple[Array, Sequence[str]]]:
            for begin in range(0, len(corpus), BLOCK):
                block = corpus[begin : begin + BLOCK]
                yield self.similarity(rows, block, num_threads=num_threads), ()

        found = _similarity.best(blocks(), top_k, len(rows))
        return found if queries.ndim == 2 else SearchResult(*(x[0] for x in found))


def _padding_token(folder: Path, tokenizer: Any) -> int:
    """Return the token with which texts are filled."""
    fields = _sentence_folder.Fields(folder / "tokenizer_config.json")
    token = fields.rest.get("pad_token")
    text = token.get("content") if isinstance(token, dict) else token
    number = None
    if isinstance(text, str):
        with judged_elsewhere("tokenizer", "one with tokens that have ids"):
            number = tokenizer.token_to_id(text)
    if number is None:
        raise fields.fault("pad_token to be a token of tokenizer.json", token)
    return int(number)
