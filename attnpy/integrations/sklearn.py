"""Sentences as a transformer of scikit-learn: texts in, vectors out."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from attnpy.models import SentenceEncoder

try:
    from sklearn.base import (
        BaseEstimator,
        ClassNamePrefixFeaturesOutMixin,
        TransformerMixin,
    )
except ImportError as error:
    raise ImportError(
        "attnpy.integrations.sklearn needs scikit-learn: pip install scikit-learn"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import DTypeLike

    from attnpy._typing import Array

__all__ = ["SentenceVectorizer"]


def __dir__() -> list[str]:
    return __all__


# Encoders in use, by the options they were read with: clones share them.
_encoders: weakref.WeakValueDictionary[tuple[Any, ...], SentenceEncoder]
_encoders = weakref.WeakValueDictionary()


class SentenceVectorizer(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Turns texts into vectors with a `SentenceEncoder`, in scikit-learn's pipelines.

    Nothing is learned: `fit` reads the encoder and checks the texts. Clones in one
    process share the encoder, and a pickle contains the folder's path, not the weights.

    Parameters
    ----------
    folder : str or path
        As in `SentenceEncoder.from_pretrained`.
    pooling, max_length, dtype
        As in `SentenceEncoder.from_pretrained`.
    batch_size, prompt, prompt_name, normalize, progress, num_threads
        As in `SentenceEncoder.encode`.

    Attributes
    ----------
    n_features_out_ : int
        The size of the vectors, after `fit`.

    See Also
    --------
    attnpy.models.SentenceEncoder : does the work, and searches.

    Notes
    -----
    Errors come from `fit` and `transform`, and are those of `SentenceEncoder`.

    Examples
    --------
    >>> from attnpy.integrations.sklearn import SentenceVectorizer
    >>> vectorizer = SentenceVectorizer("folder", prompt_name="query")
    >>> vectorizer
    SentenceVectorizer(folder='folder', prompt_name='query')
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        pooling: str | Sequence[str] | None = None,
        max_length: int | None = None,
        dtype: DTypeLike = "float32",
        batch_size: int = 32,
        prompt: str | None = None,
        prompt_name: str | None = None,
        normalize: bool | None = None,
        progress: bool | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.folder = folder
        self.pooling = pooling
        self.max_length = max_length
        self.dtype = dtype
        self.batch_size = batch_size
        self.prompt = prompt
        self.prompt_name = prompt_name
        self.normalize = normalize
        self.progress = progress
        self.num_threads = num_threads

    def fit(self, X: Iterable[str], y: object = None) -> SentenceVectorizer:
        """Read the encoder, and check the parameters.

        Parameters
        ----------
        X : iterable of str
            The texts; not used.
        y : object, optional
            Ignored.

        Returns
        -------
        SentenceVectorizer
            Itself.

        Raises
        ------
        ImportError, FileNotFoundError, TypeError, ValueError
            As `SentenceEncoder.from_pretrained`; if `X` is one string.
        """
        _check_texts(X)
        self.n_features_out_ = self.transform([]).shape[1]
        return self

    def transform(self, X: Iterable[str]) -> Array:
        """Return the vectors of texts.

        Parameters
        ----------
        X : iterable of str
            The texts.

        Returns
        -------
        ndarray, shape (n, E)
            As `SentenceEncoder.encode` returns them, with the same bits.

        Raises
        ------
        ImportError, FileNotFoundError, TypeError, ValueError
            As `SentenceEncoder.from_pretrained` and `encode`; if `X` is one string.
        """
        _check_texts(X)
        return self._encoder().encode(
            X,
            batch_size=self.batch_size,
            prompt=self.prompt,
            prompt_name=self.prompt_name,
            normalize=self.normalize,
            progress=self.progress,
            num_threads=self.num_threads,
        )

    @property
    def _n_features_out(self) -> int:
        """The number of features for `get_feature_names_out`, even before `fit`."""
        return self._encoder().embed_dim

    def _encoder(self) -> SentenceEncoder:
        """Return the encoder; read it unless this process already has it."""
        options: dict[str, Any] = {
            "pooling": self.pooling,
            "max_length": self.max_length,
            "dtype": self.dtype,
        }
        key = os.path.realpath(self.folder), *map(repr, options.values())
        encoder = _encoders.get(key)
        if encoder is None:
            encoder = SentenceEncoder.from_pretrained(self.folder, **options)
            _encoders[key] = encoder
        self._used = encoder  # keeps it
        return encoder

    def __getstate__(self) -> dict[str, Any]:
        """Leave the weights out."""
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_used", None)
        return state

    def __sklearn_tags__(self) -> Any:
        """Declare that the input is texts, and that nothing is learned."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags


def _check_texts(texts: object) -> None:
    if isinstance(texts, str):
        raise ValueError(
            "X: expected an iterable of texts, got one string: put it into a list"
        )
