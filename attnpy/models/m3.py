"""Several kinds of vectors of one text: dense, sparse, and one for each token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr
from attnpy._files import folder_at
from attnpy._linear import linear
from attnpy._quoting import listed, named
from attnpy.checkpoints import read
from attnpy.checkpoints.reading import is_there
from attnpy.models import _pooling, _texts
from attnpy.models.sentences import SentenceEncoder

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Array


class M3Vectors(NamedTuple):
    """The results of `M3Encoder.encode`; None for what was not asked for.

    Attributes
    ----------
    dense : ndarray, shape (n, E), or (E,) for one text
        As of `SentenceEncoder.encode`.
    sparse : list of dict, or dict
        The weight above 0 of each token id in a text: `lexical_score` compares them.
    multi_vector : list of ndarray, shape (L, D), or ndarray
        A vector of length 1 for each token but the first: `maxsim` compares them.
    """

    dense: Array | None
    sparse: Any
    multi_vector: Any

    def __repr__(self) -> str:
        """Return what there is."""
        return _repr.of_fields(self)


@_keywords.answering
class M3Encoder:
    """BGE-M3: dense vectors, weights of words, and vectors of tokens, in one pass.

    Parameters
    ----------
    encoder : SentenceEncoder
        Makes the dense vectors; its tokens' vectors become the others.
    sparse_weight, sparse_bias : ndarray, shape (E, 1) and (1,)
        What makes a token's weight of its vector.
    multi_weight, multi_bias : ndarray, shape (E, D) and (D,)
        What makes a token's vector for late interaction.

    Attributes
    ----------
    encoder, sparse_weight, sparse_bias, multi_weight, multi_bias
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or shapes do not fit together.

    Notes
    -----
    From Chen et al., "BGE M3-Embedding" (2024): with the vectors h of tokens after the
    last layer, the weight of a token is ``relu(h @ sparse_weight + sparse_bias)``, of
    several occurrences the largest; special tokens have none. Vectors for late
    interaction are ``h @ multi_weight + multi_bias`` at length 1, as ColBERT has them
    (Khattab and Zaharia, 2020). A text's results have the same bits whatever other
    texts come with it.

    Examples
    --------
    >>> from attnpy.models import M3Encoder, lexical_score, maxsim
    >>> encoder = M3Encoder.from_pretrained("bge-m3")  # doctest: +SKIP
    >>> query = encoder.encode("What is BM25?")  # doctest: +SKIP
    >>> found = encoder.encode(["BM25 ranks documents.", ...])  # doctest: +SKIP
    >>> maxsim(query.multi_vector, found.multi_vector)  # doctest: +SKIP
    """

    encoder: SentenceEncoder
    sparse_weight: Array
    sparse_bias: Array
    multi_weight: Array
    multi_bias: Array

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        return {"encoder": self.encoder, "multi_dim": self.multi_weight.shape[1]}

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        encoder: SentenceEncoder,
        sparse_weight: ArrayLike,
        sparse_bias: ArrayLike,
        multi_weight: ArrayLike,
        multi_bias: ArrayLike,
    ) -> None:
        if not isinstance(encoder, SentenceEncoder):
            raise TypeError(
                f"encoder: expected a SentenceEncoder, got {type(encoder).__name__}"
            )
        self.encoder = encoder
        size = encoder.model.embed_dim
        dtype = _dtypes.arithmetic(encoder.model.token_embedding.dtype)
        for name, values, ndim in (
            ("sparse_weight", sparse_weight, 2),
            ("sparse_bias", sparse_bias, 1),
            ("multi_weight", multi_weight, 2),
            ("multi_bias", multi_bias, 1),
        ):
            array = np.ascontiguousarray(_checks.array(values, name), dtype)
            fits = array.ndim == ndim and (ndim == 1 or array.shape[0] == size)
            if name.startswith("sparse"):
                fits = fits and array.shape[-1] == 1
            if name == "multi_bias":
                fits = fits and len(array) == self.multi_weight.shape[1]
            if not fits:
                raise ValueError(
                    f"{name}: expected a matrix or bias for vectors of {size} numbers, "
                    f"got {array.shape}"
                )
            setattr(self, name, array)

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
    ) -> M3Encoder:
        """Read an encoder from a folder such as BAAI/bge-m3.

        Parameters
        ----------
        folder : str or path
            As of `SentenceEncoder.from_pretrained`, with ``sparse_linear.pt`` and
            ``colbert_linear.pt``, which are read without PyTorch and without running
            their pickles.
        max_length, dtype, packed, weights, activations, progress
            As in `SentenceEncoder.from_pretrained`. The heads keep their numbers.

        Returns
        -------
        M3Encoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the tokenizers or safetensors package is not installed, or a file is not
            there.
        TypeError, ValueError
            If files ask for something unsupported, or do not fit together.
        """
        place = folder_at(folder)
        paths = [place / f"{name}_linear.pt" for name in ("sparse", "colbert")]
        for path in paths:
            if not is_there(path):
                raise FileNotFoundError(
                    f"folder: expected one of BGE-M3 with {path.name}, got "
                    f"{named(place)} without"
                )
        heads = [_linear(path) for path in paths]
        encoder = SentenceEncoder.from_pretrained(
            folder,
            max_length=max_length,
            dtype=dtype,
            packed=packed,
            weights=weights,
            activations=activations,
            progress=progress,
        )
        return cls(encoder, *heads[0], *heads[1])

    def quantize(
        self,
        *,
        bits: Literal[8, 4] = 8,
        group: int | Literal["column"] | None = None,
        activations: Literal["float", "int8"] = "float",
    ) -> None:
        """Quantise the encoder's matrices to 8 or 4 bits; the heads keep their numbers.

        Parameters
        ----------
        bits, group, activations
            As in `attnpy.quantize`.

        Raises
        ------
        TypeError, ValueError
            As `SentenceEncoder.quantize`.
        """
        self.encoder.quantize(bits=bits, group=group, activations=activations)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        dense: bool = True,
        sparse: bool = True,
        multi_vector: bool = True,
        batch_size: int = 32,
        num_threads: int | None = None,
    ) -> M3Vectors:
        """Return the vectors of texts.

        Parameters
        ----------
        texts : str or iterable of str
            One text, or any number of them.
        dense, sparse, multi_vector : bool, optional
            What to return.
        batch_size : int, optional
            How many texts of similar lengths go through the model at a time. Changes no
            bit of the result.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        M3Vectors
            In the order given: float32, or float64 for a model of that.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, or is out of its range.
        """
        wanted = [
            _checks.flag(flag, name)
            for flag, name in (
                (dense, "dense"),
                (sparse, "sparse"),
                (multi_vector, "multi_vector"),
            )
        ]
        size = _checks.count(batch_size, "batch_size")
        is_one = isinstance(texts, str)
        found: list[tuple[Any, Any, Any]] = []
        for window in _texts.windows(
            [texts] if is_one else texts, size * _texts.WINDOW, "texts", _texts.text
        ):
            tokenizer = self.encoder.tokenizer
            given = _texts.encoded(tokenizer, window, num_threads)
            codes = [code.ids for code in given]
            rows: list[Any] = [None] * len(codes)
            for chosen, states in _texts.token_vectors(
                self.encoder.model, codes, size, num_threads
            ):
                for i, each in zip(chosen, states, strict=True):
                    rows[i] = self._of_text(codes[i], each, wanted, num_threads)
            found += rows
        return self._result(found, wanted, is_one)

    def _of_text(
        self, ids: list[int], states: Array, wanted: list[bool], num_threads: int | None
    ) -> tuple[Any, Any, Any]:
        """Return the vectors of a text, of those of its tokens, (L, E)."""
        dense = sparse = multi = None
        if wanted[0]:
            dense = _pooling.pooled(states, self.encoder.pooling, 0)[np.newaxis]
            for step in self.encoder.steps:
                dense = step(dense, num_threads)
            dense = dense[0, : self.encoder.embed_dim]
        if wanted[1]:
            weights = linear(
                states,
                self.sparse_weight,
                self.sparse_bias,
                activation="relu",
                num_threads=num_threads,
            )[:, 0]
            sparse = self._weights(ids, weights)
        if wanted[2]:
            multi = _pooling.normalized(
                linear(
                    states[1:],
                    self.multi_weight,
                    self.multi_bias,
                    num_threads=num_threads,
                )
            )
        return dense, sparse, multi

    def _weights(self, ids: list[int], weights: Array) -> dict[int, float]:
        """Return the largest weight of each token that is no special one."""
        added = self.encoder.tokenizer.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special}
        found: dict[int, float] = {}
        for token, weight in zip(ids, weights.tolist(), strict=True):
            if weight > 0 and token not in special:
                found[token] = max(weight, found.get(token, 0.0))
        return found

    def _result(
        self, found: list[tuple[Any, Any, Any]], wanted: list[bool], is_one: bool
    ) -> M3Vectors:
        columns = [list(column) for column in zip(*found, strict=True)] or [[], [], []]
        if is_one:
            return M3Vectors(*(column[0] for column in columns))
        dense = None
        if wanted[0]:
            shape = len(columns[0]), self.encoder.embed_dim
            dense = np.array(columns[0], self.sparse_weight.dtype).reshape(shape)
        return M3Vectors(
            dense,
            columns[1] if wanted[1] else None,
            columns[2] if wanted[2] else None,
        )


def lexical_score(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Return how much two texts agree in words: the sum of products of weights.

    Parameters
    ----------
    a, b : mapping of int to float
        The weights of tokens, of `M3Encoder.encode`.

    Returns
    -------
    float
        The sum over the tokens that are in both, in the order of `a`.

    Raises
    ------
    TypeError
        If an argument is no mapping.

    Examples
    --------
    >>> from attnpy.models import lexical_score
    >>> lexical_score({7: 0.5, 9: 0.25}, {7: 0.5, 8: 1.0})
    0.25
    """
    for name, weights in (("a", a), ("b", b)):
        if not isinstance(weights, Mapping):
            raise TypeError(f"{name}: expected a mapping, got {type(weights).__name__}")
    return float(sum(weight * b[token] for token, weight in a.items() if token in b))


def _linear(path: Path) -> tuple[Array, Array]:
    """Return the matrix and the bias in a file of a linear layer."""
    tensors = read(path)
    if sorted(tensors) != ["bias", "weight"]:
        raise ValueError(
            f"{named(path)}: expected weight and bias, got {listed(sorted(tensors))}"
        )
    return np.asarray(tensors["weight"]).T, np.asarray(tensors["bias"])
