"""Keys and values kept from one call to the next, for decoding token by token."""

from __future__ import annotations

import collections
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr
from attnpy._cache_arrays import (
    Rows,
    check_shape,
    checked_capacity,
    checked_sequences,
    copied,
    enlarged,
    longest_of,
    mixed,
    per_sequence,
    put,
    scales_of,
    storage_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array

__all__ = ["KVCache", "hadamard"]

ARRAYS = ("_key", "_value", "_key_scale", "_value_scale")  # attributes, as Rows


def __dir__() -> list[str]:
    return __all__


@_keywords.answering
class KVCache:
    """A cache for the keys and values of a batch of sequences of different lengths.

    Parameters
    ----------
    batch_size : int
        `B`, the number of sequences.
    num_kv_heads : int
        `Hk`.
    capacity : int
        How many tokens of each sequence fit.
    head_dim : int
        `D`, the size of a key.
    value_head_dim : int, optional
        `Dv`, the size of a value; by default `D`.
    dtype : dtype, optional
        float64, float32, float16, bfloat16 or int8: the dtype of new arrays. With int8
        each key, and each value, has a scale in float32.
    growable : bool, optional
        When full, move to arrays of twice the capacity, or more if needed, instead of
        raising an error.
    key, value : ndarray, shape (B, Hk, capacity, D) and (B, Hk, capacity, Dv), optional
        Arrays to use instead of new ones, with any strides; each keeps its dtype. A
        `numpy.memmap` keeps the cache on disk. They cannot grow.
    key_scale, value_scale : ndarray of float32, shape (B, Hk, capacity), optional
        The scales of `key` and `value` of int8, required with these.
    lengths : int or array_like of int, broadcast to (B,), optional
        How many tokens of each sequence are in `key` and `value` already.

    Attributes
    ----------
    batch_size, num_kv_heads, head_dim, value_head_dim : int
        As given.
    growable : bool
        As given.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If a number is out of its range, or an array has the wrong shape or cannot be
        written to.
    MemoryError
        If memory cannot hold new arrays; nothing has been allocated then.

    See Also
    --------
    attnpy.MultiHeadAttention : makes a cache with `new_cache`, and fills it.

    Notes
    -----
    Numbers are converted to the cache's dtype when they are appended, so a float16
    cache of a float32 model takes half the memory, and rounds.

    An int8 cache takes a quarter of the memory of float32, and reads a quarter. A key
    k becomes the integers nearest to ``x / s``, ties to even, from -127 to 127, where
    ``x = hadamard(k)`` and s in float32 is its scale; so does a value. The scale is
    ``max(abs(x)) / 127 / f``; of 16 factors f, from 257/256 down in steps of 1/256, it
    is the one with the least squared error, which takes 7% off the error of a vector of
    64 numbers. `hadamard` is a rotation that spreads a key's large numbers over the
    others, which halves the error. If a number is not finite, the scale is NaN and the
    integers are 0. Each token is quantised alone, so prefill, chunks and single tokens
    give the same cache. A score is the dot product of a query and the integers, times
    the scale; `attnpy.attention` says how it is computed.

    A layer rotates its queries for int8 keys, and its results of int8 values. For
    `attnpy.attention` do the same: scores of ``hadamard(query)`` are those of the query
    and the keys before they were rotated, and `hadamard` turns the output back.

    If KeyboardInterrupt, or another exception of a signal handler, ends a call, a cache
    has either only its earlier tokens, or also all tokens of the call. The caches of a
    decoder's layers then all have the same tokens.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> from attnpy.cache import KVCache
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 1, 4, 10, 8))  # (B, H, L, D)
    >>> cache = KVCache(1, 4, 16, 8, dtype=np.float64)
    >>> for i in range(10):
    ...     cache.append(key[:, :, i : i + 1], value[:, :, i : i + 1])
    >>> cache.lengths
    array([10])

    The last query of the sequence sees them all:

    >>> output = attnpy.attention(
    ...     query[:, :, 9:], cache.key, cache.value, kv_lengths=cache.lengths
    ... )
    >>> whole = attnpy.attention(query, key, value, causal=True)
    >>> bool((output == whole[:, :, 9:]).all())
    True
    """

    batch_size: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    growable: bool
    _key: Array
    _value: Array
    _key_scale: NDArray[np.float32] | None
    _value_scale: NDArray[np.float32] | None
    _lengths: NDArray[np.int64]

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle or a copy, if a cache can be made of it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            shape = np.shape(self._key)
            judged = KVCache(
                self.batch_size,
                self.num_kv_heads,
                shape[2] if len(shape) == 4 else 0,
                self.head_dim,
                self.value_head_dim,
                key=self._key,
                value=self._value,
                key_scale=self._key_scale,
                value_scale=self._value_scale,
                lengths=self._lengths,
            )
        self._lengths = judged._lengths

    def _shown(self) -> dict[str, Any]:
        size, kinds = self.value_head_dim, (self._key.dtype, self._value.dtype)
        return {
            "batch_size": self.batch_size,
            "num_kv_heads": self.num_kv_heads,
            "capacity": self.capacity,
            "head_dim": self.head_dim,
            "value_head_dim": size if size != self.head_dim else None,
            "dtype": kinds[0] if kinds[0] == kinds[1] else kinds,
            "growable": self.growable,
            "lengths": _repr.span(self._lengths.tolist()),
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        value_head_dim: int | None = None,
        *,
        dtype: DTypeLike = np.float32,
        growable: bool = False,
        key: Array | None = None,
        value: Array | None = None,
        key_scale: NDArray[np.float32] | None = None,
        value_scale: NDArray[np.float32] | None = None,
        lengths: ArrayLike = 0,
    ) -> None:
        self.batch_size = _checks.size(batch_size, "batch_size")
        self.num_kv_heads = _checks.size(num_kv_heads, "num_kv_heads")
        capacity = _checks.size(capacity, "capacity")
        self.head_dim = self.value_head_dim = _checks.size(head_dim, "head_dim")
        if value_head_dim is not None:
            self.value_head_dim = _checks.size(value_head_dim, "value_head_dim")
        self.growable = _checks.flag(growable, "growable")
        if self.growable and not (key is None and value is None):
            raise ValueError(
                "growable: expected False where key or value is given, got True"
            )
        dtype = _dtypes.stored(dtype)
        shape = self.batch_size, self.num_kv_heads, capacity
        made = [
            (*shape, size)
            for size, array in (
                (self.head_dim, key),
                (self.value_head_dim, value),
            )
            if array is None
        ]
        _checks.memory("KVCache", dtype, *made)
        self._key = storage_of(key, "key", (*shape, self.head_dim), dtype)
        self._value = storage_of(value, "value", (*shape, self.value_head_dim), dtype)
        self._key_scale = scales_of(key_scale, "key_scale", key, self._key)
        self._value_scale = scales_of(value_scale, "value_scale", value, self._value)
        self._lengths = per_sequence(self.batch_size, lengths, "lengths", 0, capacity)

    @property
    def capacity(self) -> int:
        """How many tokens of each sequence fit now."""
        return int(self._key.shape[2])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each sequence has, (B,); read-only, and never changes."""
        lengths = self._lengths.view()
        lengths.flags.writeable = False
        return lengths

    @property
    def key(self) -> Array:
        """A view of the keys, (B, Hk, Lk, D), with Lk the largest of the lengths.

        Keys past a sequence's own length do not belong to it: pass `lengths` to
        `attention` as ``kv_lengths``. When a growable cache grows, older views keep the
        old array.
        """
        return self._rows(self._lengths)[0]

    @property
    def value(self) -> Array:
        """A view of the values, (B, Hk, Lk, Dv); see `key`."""
        return self._rows(self._lengths)[1]

    @property
    def key_scale(self) -> NDArray[np.float32] | None:
        """A view of the scales of int8 keys, (B, Hk, Lk), for `attention`; or None."""
        return self._rows(self._lengths)[2]

    @property
    def value_scale(self) -> NDArray[np.float32] | None:
        """A view of the scales of int8 values, (B, Hk, Lk); see `key_scale`."""
        return self._rows(self._lengths)[3]

    def append(
        self, key: ArrayLike, value: ArrayLike, lengths: ArrayLike | None = None
    ) -> None:
        """Add tokens to the end of each sequence.

        Parameters
        ----------
        key : array_like, shape (B, Hk, L, D)
        value : array_like, shape (B, Hk, L, Dv)
        lengths : int or array_like of int, broadcast to (B,), optional
            How many of the tokens exist, at the start of each sequence; by default all.
            The others are padding and are not read.

        Raises
        ------
        TypeError
            If an argument has the wrong kind or dtype.
        ValueError
            If shapes do not fit together, or the cache is full. The cache has then not
            changed.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.cache import KVCache
        >>> cache = KVCache(2, 1, 4, 8)
        >>> tokens = np.zeros((2, 1, 3, 8))
        >>> cache.append(tokens, tokens, lengths=[3, 1])
        >>> cache.lengths
        array([3, 1])
        >>> cache.append(tokens, tokens)
        Traceback (most recent call last):
            ...
        ValueError: cache: expected room for 3 more tokens in sequence 0, got 1: 3 of 4
        """
        key, value, n_tokens, lengths = checked_tokens(self, key, value, lengths)
        ends = self._make_room(n_tokens, lengths, "lengths")
        parts = (
            (key, self._key, self._key_scale),
            (value, self._value, self._value_scale),
        )
        for b, (start, end) in enumerate(zip(self._lengths, ends, strict=True)):
            place = (b, slice(None), slice(start, end))
            for tokens, array, scales in parts:
                put(array, scales, place, tokens[b, :, : end - start])
        self._lengths = ends

    def truncate(self, lengths: ArrayLike) -> None:
        """Forget the last tokens of each sequence.

        Parameters
        ----------
        lengths : int or array_like of int, broadcast to (B,)
            How many tokens to keep, from 0 to the current number.

        Raises
        ------
        TypeError, ValueError
            If `lengths` are not integers, or out of their range.
        """
        self._lengths = per_sequence(
            self.batch_size, lengths, "lengths", 0, self._lengths
        )

    def reset(self) -> None:
        """Forget all tokens of all sequences."""
        self.truncate(0)

    def select(self, sequences: ArrayLike) -> None:
        """Keep some sequences, in this order, as a search with beams does.

        Parameters
        ----------
        sequences : array_like of int, shape (n,)
            Their places in the batch, 0 to ``B - 1``. A sequence that comes several
            times is copied. If n is not the batch size it becomes that, and the cache
            has new arrays.

        Raises
        ------
        TypeError, ValueError
            If `sequences` are not integers, or out of their range. The cache has then
            not changed.
        MemoryError
            If memory cannot hold a batch of another size.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.cache import KVCache
        >>> cache = KVCache(3, 1, 4, 8)
        >>> tokens = np.zeros((3, 1, 3, 8))
        >>> cache.append(tokens, tokens, lengths=[3, 1, 2])
        >>> cache.select([2, 2, 0])
        >>> cache.lengths
        array([2, 2, 3])
        """
        rows = _checks.integers(sequences, "sequences", 0, self.batch_size - 1)
        if rows.ndim != 1:
            raise ValueError(f"sequences: expected (n,), got {rows.shape}")
        lengths = self._lengths[rows]
        filled = self._rows(self._lengths)
        if len(rows) == self.batch_size:
            moved = np.flatnonzero(rows != np.arange(len(rows)))
            arrays = [array for array in filled if array is not None]
            new = [array[rows[moved]] for array in arrays]
            for array, part in zip(arrays, new, strict=True):
                array[moved] = part
            self._lengths = lengths
            return
        chosen = {
            name: enlarged(array, self.capacity, rows)
            for name, array in zip(ARRAYS, filled, strict=True)
        }
        vars(self).update(batch_size=len(rows), _lengths=lengths, **chosen)

    def fork(
        self, sequences: ArrayLike | None = None, *, capacity: int | None = None
    ) -> KVCache:
        """Return a cache whose sequences begin as some of this one.

        Parameters
        ----------
        sequences : int or array_like of int, shape (n,), optional
            Which sequence of this cache each of the new ones begins as; by default all
            in order.
        capacity : int, optional
            How many tokens of each fit; by default as many as in this cache.

        Returns
        -------
        KVCache
            With the same tokens in its own arrays, in memory. Those of an
            `attnpy.pages.PagedKVCache` share pages instead.

        Raises
        ------
        TypeError, ValueError
            If an argument is not an integer, or out of its range.

        Examples
        --------
        >>> from attnpy.cache import KVCache
        >>> cache = KVCache(2, 4, 16, 8, lengths=[5, 9])
        >>> cache.fork([1, 1, 0], capacity=100).lengths
        array([9, 9, 5])
        """
        chosen = checked_sequences(sequences, self.batch_size)
        lengths = self._lengths[chosen]
        room = self.capacity
        if capacity is not None:
            room = checked_capacity(capacity, lengths)
        other = KVCache(
            len(chosen),
            self.num_kv_heads,
            0,
            self.head_dim,
            self.value_head_dim,
            growable=self.growable,
        )
        filled = self._first_rows(longest_of(lengths))
        arrays = {
            name: enlarged(rows, room, chosen)
            for name, rows in zip(ARRAYS, filled, strict=True)
        }
        vars(other).update(_lengths=lengths, **arrays)
        return other

    def copy(self) -> KVCache:
        """Return a cache with the same tokens in its own arrays, in memory.

        Returns
        -------
        KVCache
            Changes to one of them do not affect the other.
        """
        other = KVCache(
            self.batch_size,
            self.num_kv_heads,
            self.capacity,
            self.head_dim,
            self.value_head_dim,
            key=np.array(self._key),
            value=np.array(self._value),
            key_scale=copied(self._key_scale),
            value_scale=copied(self._value_scale),
            lengths=self._lengths,
        )
        other.growable = self.growable
        return other

    def _make_room(
        self, n_tokens: int, new_lengths: ArrayLike | None, name: str
    ) -> NDArray[np.int64]:
        """Make room for new tokens, and return the lengths with them."""
        lengths = self._lengths + n_tokens
        if new_lengths is not None:
            new = per_sequence(self.batch_size, new_lengths, name, 0, n_tokens)
            lengths = self._lengths + new
        self._check_arrays()
        needed = longest_of(lengths)
        if needed > self.capacity:
            self._grow(needed, lengths)
        return lengths

    def _grow(self, needed: int, lengths: NDArray[np.int64]) -> None:
        if not self.growable:
            b = int(np.argmax(lengths > self.capacity))
            past = int(self._lengths[b])
            raise ValueError(
                f"cache: expected room for {lengths[b] - past} more tokens in sequence "
                f"{b}, got {self.capacity - past}: {past} of {self.capacity}"
            )
        capacity = max(needed, 2 * self.capacity)
        filled = zip(ARRAYS, self._rows(self._lengths), strict=True)
        # In one step: a signal handler that raises must not leave only one of them.
        vars(self).update({name: enlarged(rows, capacity) for name, rows in filled})

    def _check_arrays(self) -> None:
        """Refuse arrays that were reshaped in place after they were given."""
        key, value = self._key.shape, self._value.shape
        room = key[2] if len(key) == 4 else -1
        shape = self.batch_size, self.num_kv_heads, room
        kept = key == (*shape, self.head_dim) and value == (*shape, self.value_head_dim)
        for scales in (self._key_scale, self._value_scale):
            kept = kept and (scales is None or scales.shape == shape)
        if not kept or room < longest_of(self._lengths):
            raise ValueError(
                "cache: expected its arrays in the shapes that they were given in, "
                f"got {key} and {value}"
            )

    def _rows(self, lengths: NDArray[np.int64]) -> Rows:
        """Return views of the tokens up to the longest of these lengths."""
        self._check_arrays()
        return self._first_rows(longest_of(lengths))

    def _first_rows(self, n: int) -> Rows:
        scales = (self._key_scale, self._value_scale)
        return Rows(
            self._key[:, :, :n],
            self._value[:, :, :n],
            *(None if x is None else x[:, :, :n] for x in scales),
        )


@_keywords.answering
def hadamard(x: ArrayLike) -> Array:
    r"""Multiply vectors by a Hadamard matrix, as int8 caches do with keys and values.

    Parameters
    ----------
    x : array_like, shape (..., D)

    Returns
    -------
    ndarray, shape (..., D)
        In the dtype of x; integers become float64. 16-bit numbers are computed in
        float32 and rounded once. ``hadamard(hadamard(x))`` is x up to rounding.

    Raises
    ------
    TypeError
        If `x` has the wrong dtype.
    ValueError
        If `x` has no axis.

    See Also
    --------
    KVCache : says what caches of int8 hold.

    Notes
    -----
    With `b` the largest power of two that divides `D`, each block of `b` numbers is
    multiplied by :math:`H_b / \sqrt{b}`, where :math:`H_1 = 1` and

    .. math::

        H_{2n} = \begin{pmatrix} H_n & H_n \\ H_n & -H_n \end{pmatrix}

    This matrix is orthogonal, so dot products of two such vectors stay the same up to
    rounding; and each number of the result depends on all numbers of its block, so that
    none is much larger than the others. An odd `D` leaves x as it is. Rotating what is
    quantised by Hadamard matrices is from Ashkboos et al., "QuaRot: Outlier-Free 4-Bit
    Inference in Rotated LLMs", 2024.

    Examples
    --------
    >>> from attnpy.cache import hadamard
    >>> hadamard([8.0, 0.0, 0.0, 0.0])
    array([4., 4., 4., 4.])
    """
    x = _checks.array(x, "x")
    if x.ndim == 0:
        raise ValueError("x: expected (..., D), got ()")
    dtype = _dtypes.operand(x, "x")
    with np.errstate(all="ignore"):
        return mixed(x.astype(_dtypes.arithmetic(dtype))).astype(dtype)


def lengths_of(cache: KVCache) -> list[int]:
    """Return how many tokens each sequence has."""
    lengths: list[int] = cache._lengths.tolist()
    return lengths


def rows_of(cache: KVCache) -> Rows:
    """Return views of all tokens."""
    return cache._rows(cache._lengths)


def rows_to(cache: KVCache, n: int) -> Rows | None:
    """Return views of this many tokens, or None without room. Checks no arrays."""
    return None if n > cache._key.shape[2] else cache._first_rows(n)


def empty_rows(cache: KVCache, n_keys: int) -> Rows:
    """Return views of up to this many keys and values of a cache without sequences.

    It has no lengths that would say how many there are.
    """
    if cache.growable and n_keys > cache.capacity:
        cache._grow(n_keys, cache._lengths)
    cache._check_arrays()
    return cache._first_rows(n_keys)


def reserve(
    cache: KVCache, n_tokens: int, new_lengths: ArrayLike | None, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], Rows]:
    """Return the lengths without and with new tokens, and views to write those to.

    `commit` adds them to the cache. Errors call the new lengths `name`.
    """
    past_lengths = cache._lengths
    lengths = cache._make_room(n_tokens, new_lengths, name)
    return past_lengths, lengths, cache._first_rows(longest_of(lengths))


def commit(cache: KVCache, lengths: NDArray[np.int64]) -> None:
    """Add what was written to the views of `reserve` to the cache."""
    vars(cache)["_lengths"] = lengths  # in less time than by __setattr__


def commit_all(
    caches: Sequence[KVCache], lengths: Sequence[NDArray[np.int64] | None]
) -> None:
    """Do that for several, all at once as `all_or_nothing`."""
    names = itertools.repeat("_lengths")
    setting = map(dict.__setitem__, map(vars, caches), names, lengths)
    collections.deque(setting, maxlen=0)


def lent(cache: KVCache) -> KVCache:
    """Return a cache of the same tokens, which can grow by itself."""
    copy = cache.__class__.__new__(cache.__class__)
    vars(copy).update(vars(cache))
    return copy


class all_or_nothing:
    """Lend copies of caches of the same tokens, and keep their changes all at once.

    Nothing is kept after an error. No signal handler can raise between two caches,
    because `map` runs no Python here, and a deque without room allocates nothing. This
    is not a generator, because ending one takes memory.
    """

    def __init__(self, caches: Sequence[KVCache]) -> None:
        self._caches = caches
        self._lent = [lent(cache) for cache in caches]

    def __enter__(self) -> list[KVCache]:
        return self._lent

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            updates = map(dict.update, map(vars, self._caches), map(vars, self._lent))
            collections.deque(updates, maxlen=0)


def checked_caches(caches: Any, name: str, n_layers: int) -> list[KVCache]:
    """Return a list with a cache for each layer."""
    expected = f"{name}: expected a list with a KVCache for each layer, {n_layers},"
    if not isinstance(caches, (list, tuple)):
        raise TypeError(f"{expected} got {type(caches).__name__}")
    for cache in caches:
        if not isinstance(cache, KVCache):
            raise TypeError(f"{expected} got {type(cache).__name__} in it")
    if len(caches) != n_layers:
        raise ValueError(f"{expected} got {len(caches)}")
    return list(caches)


def checked_tokens(
    cache: KVCache, key: ArrayLike, value: ArrayLike, lengths: ArrayLike | None
) -> tuple[Array, Array, int, ArrayLike | None]:
    """Return what `append` takes, after checks, and the number of new tokens."""
    key, value = _checks.array(key, "key"), _checks.array(value, "value")
    if lengths is not None:  # converted before any shape is read
        lengths = _checks.integers(lengths, "lengths")
    n_tokens = key.shape[2] if key.ndim == 4 else 0
    shape = cache.batch_size, cache.num_kv_heads, n_tokens
    check_shape(key, "key", (*shape[:2], "L", cache.head_dim), n_tokens)
    check_shape(value, "value", (*shape, cache.value_head_dim), n_tokens)
    return key, value, n_tokens, lengths
