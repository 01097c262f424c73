"""Keys and values of a text that several others begin with."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _keywords, _parameters, _repr
from attnpy._quoting import named
from attnpy.cache import KVCache
from attnpy.checkpoints import Checkpoint, files, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from attnpy._typing import Array

__all__ = ["Prefix"]

TOKENS = "token_ids"  # the name in a file


def __dir__() -> list[str]:
    return __all__


@_keywords.answering
class Prefix:
    """The tokens that texts begin with, and a model's keys and values of them.

    `attnpy.models.CausalDecoder.prefill` makes one.

    Parameters
    ----------
    token_ids : array_like of int, shape (n,)
        The tokens, at least one.
    caches : list of KVCache
        A cache for each layer, with these tokens in its only sequence. They may be an
        `attnpy.pages.PagedKVCache` each. They belong to the prefix from now on.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or shape, or a cache has fewer tokens.

    See Also
    --------
    attnpy.models.CausalDecoder.generate : continues it.

    Notes
    -----
    Before a model first goes on with a prefix that it has not made, it computes the
    last token again, and compares its keys and values with those of the prefix: they
    have the same bits, unless the prefix is that of another model, of a model of
    another dtype, or of bfloat16 on another kind of CPU.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder
    >>> model = CausalDecoder(
    ...     2, 16, 4, 64, vocab_size=100, max_length=32, rng=np.random.default_rng(0)
    ... )
    >>> prefix = model.prefill([5, 17, 3, 8])
    >>> len(prefix)
    4
    >>> answer = model.generate([2, 9], 4, prefix=prefix)
    >>> bool((answer == model.generate([5, 17, 3, 8, 2, 9], 4)).all())
    True
    """

    _tokens: NDArray[np.int64]
    _caches: list[KVCache]
    _model: weakref.ref[Any] | None

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __init__(self, token_ids: NDArray[np.int64], caches: Sequence[KVCache]) -> None:
        tokens = _checks.integers(token_ids, "token_ids", 0)
        if tokens.ndim != 1 or tokens.size == 0:
            raise ValueError(
                f"token_ids: expected (n,) with n >= 1, got {tokens.shape}"
            )
        for cache in caches:
            if not isinstance(cache, KVCache):
                raise TypeError(
                    f"caches: expected a KVCache for each layer, got "
                    f"{type(cache).__name__} in it"
                )
            if cache.lengths.tolist() != [len(tokens)]:
                raise ValueError(
                    f"caches: expected the {len(tokens)} tokens of one sequence, got "
                    f"{cache.lengths}"
                )
        self._tokens, self._caches = tokens, list(caches)
        self._model = None

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The tokens, (n,), read-only."""
        tokens = self._tokens.view()
        tokens.flags.writeable = False
        return tokens

    def __len__(self) -> int:
        """Count the tokens."""
        return len(self._tokens)

    def __reduce__(self) -> Any:
        """Refuse pickles: `save` writes a file."""
        raise TypeError("cannot pickle a Prefix; its save() writes a file")

    def _shown(self) -> dict[str, Any]:
        first = self._caches[0] if self._caches else None
        return {
            "num_tokens": len(self),
            "num_layers": len(self._caches),
            "dtype": None if first is None else first.key.dtype,
        }

    __repr__ = _repr.shows(_shown)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the prefix to a safetensors file.

        Parameters
        ----------
        path : str or path
            The file; an existing one is replaced when the new one is complete.

        Raises
        ------
        OSError
            If the file cannot be written.
        TypeError
            If `path` is not one.

        See Also
        --------
        load : reads it.

        Notes
        -----
        The file has ``token_ids`` (n,), and for each layer ``layers.<i>.key`` (1, Hk,
        n, D) and ``layers.<i>.value`` (1, Hk, n, Dv).
        """
        arrays: dict[str, Array] = {TOKENS: self._tokens}
        for i, cache in enumerate(self._caches):
            for kind, rows in _arrays(cache).items():
                arrays[f"layers.{i}.{kind}"] = rows
        writing.write(path, arrays, {"format": "attnpy prefix"})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Prefix:
        """Open a file from `save`, whose keys are read when they are used.

        Parameters
        ----------
        path : str or path
            The file. It is mapped into memory: several processes share it, and it must
            not become shorter while it is in use.

        Returns
        -------
        Prefix
            With the same bits.

        Raises
        ------
        ImportError
            If the safetensors package is not installed.
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is not a file from `save`.
        """
        tensors = Checkpoint(path)
        kinds = KINDS if "layers.0.key_scale" in tensors else KINDS[:2]
        n_layers = (len(tensors) - 1) // len(kinds)
        names = [f"layers.{i}.{kind}" for i in range(n_layers) for kind in kinds]
        if tensors.keys() != {TOKENS, *names}:
            raise ValueError(
                f"{named(path)}: expected a file of a prefix, got other arrays"
            )
        shape, dtype = tensors.describe(TOKENS)
        if len(shape) != 1 or dtype != "I64":
            raise ValueError(
                f"{named(path)}: expected {TOKENS} (n,) of I64, got {shape} of {dtype}"
            )
        tokens = tensors[TOKENS]
        caches = []
        for i in range(n_layers):
            rows = {kind: files.mapped(tensors, f"layers.{i}.{kind}") for kind in kinds}
            key, value = rows["key"], rows["value"]
            if key.ndim != 4 or value.shape[:-1] != key.shape[:-1] or len(key) != 1:
                raise ValueError(
                    f"{named(path)}: expected keys (1, Hk, n, D) and values (1, Hk, n, "
                    f"Dv), got {key.shape} and {value.shape}"
                )
            _, heads, capacity, size = key.shape
            with _checks.renamed(lengths=named(path)):
                cache = KVCache(
                    1,
                    heads,
                    capacity,
                    size,
                    value.shape[-1],
                    key=key,
                    value=value,
                    key_scale=rows.get("key_scale"),
                    value_scale=rows.get("value_scale"),
                    lengths=len(tokens),
                )
            caches.append(cache)
        return Prefix(tokens, caches)


# Arrays of a cache; the scales are those of int8.
KINDS = ("key", "value", "key_scale", "value_scale")


def _arrays(cache: KVCache, first: int = 0) -> dict[str, Array]:
    """Return a cache's arrays by name, from this token on."""
    arrays = {kind: getattr(cache, kind) for kind in KINDS}
    return {kind: x[:, :, first:] for kind, x in arrays.items() if x is not None}


def made_by(model: object, prefix: Prefix) -> Prefix:
    """Note that a model has made the prefix, which then needs no check."""
    prefix._model = weakref.ref(model)
    return prefix


def tokens_of(prefix: object) -> NDArray[np.int64]:
    """Return the tokens of what must be a prefix."""
    if not isinstance(prefix, Prefix):
        raise TypeError(f"prefix: expected a Prefix, got {type(prefix).__name__}")
    return prefix._tokens


def begun(
    prefix: Prefix,
    model: Any,
    n: int,
    capacity: int,
    run: Callable[[NDArray[np.int64], list[KVCache]], object],
) -> list[KVCache]:
    """Return caches of n sequences that begin with the prefix.

    `run` puts the tokens (1, L) into the model's caches.
    """
    if prefix._model is None or prefix._model() is not model:
        _check_is_of(prefix, run)
        prefix._model = weakref.ref(model)
    return [cache.fork([0] * n, capacity=capacity) for cache in prefix._caches]


def _check_is_of(
    prefix: Prefix, run: Callable[[NDArray[np.int64], list[KVCache]], object]
) -> None:
    """Raise an error unless a model's keys of the last token are the prefix's."""
    n = len(prefix)
    caches = [cache.fork() for cache in prefix._caches]
    for cache in caches:
        cache.truncate(n - 1)
    with _checks.renamed(caches="prefix", cache="prefix"):
        run(prefix._tokens[np.newaxis, n - 1 :], caches)
    for cache, known in zip(caches, prefix._caches, strict=True):
        new, old = _arrays(cache, n - 1), _arrays(known, n - 1)
        if any(new[kind].tobytes() != old[kind].tobytes() for kind in old):
            raise ValueError(
                "prefix: expected one that this model has made, got other keys or "
                "values of its last token"
            )
