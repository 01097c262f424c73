"""Keys and values in pages, which sequences with the same beginning share."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _repr
from attnpy._cache_arrays import (
    Rows,
    checked_capacity,
    checked_sequences,
    per_sequence,
    put,
)
from attnpy.cache import KVCache, checked_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array, Window

__all__ = ["PagePool", "PagedKVCache"]

PAGE = 128  # keys, a block of the bit contract: csrc/core/limits.h


def __dir__() -> list[str]:
    return __all__


@_keywords.answering
class PagePool:
    """Memory for the keys and values of many sequences, in pages of 128 tokens.

    Parameters
    ----------
    num_pages : int
        How many pages there are.
    num_kv_heads : int
        `Hk`.
    head_dim : int
        `D`, the size of a key.
    value_head_dim : int, optional
        `Dv`, the size of a value; by default `D`.
    dtype : dtype, optional
        float64, float32, float16, bfloat16 or int8, as for `attnpy.cache.KVCache`.

    Attributes
    ----------
    num_pages : int
        As given.
    key : ndarray, shape (num_pages, Hk, 128, D)
    value : ndarray, shape (num_pages, Hk, 128, Dv)
        What `attnpy.attention` takes together with ``page_table``.
    key_scale, value_scale : ndarray of float32, shape (num_pages, Hk, 128), or None
        The scales of keys and values of int8.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the pages; nothing has been allocated then.

    See Also
    --------
    PagedKVCache : sequences whose keys and values are in a pool.

    Notes
    -----
    A page is in use as long as a sequence has it, and is free again when the last one
    is gone. The system gives memory to a page when it is first written to.

    Examples
    --------
    >>> from attnpy.pages import PagedKVCache, PagePool
    >>> pool = PagePool(100, 2, 64)
    >>> cache = PagedKVCache(pool, 3)  # three sequences
    >>> pool.num_free
    100
    """

    num_pages: int
    key: Array
    value: Array
    key_scale: NDArray[np.float32] | None
    value_scale: NDArray[np.float32] | None
    _free: list[int]

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __init__(
        self,
        num_pages: int,
        num_kv_heads: int,
        head_dim: int,
        value_head_dim: int | None = None,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.num_pages = _checks.size(num_pages, "num_pages")
        heads = _checks.size(num_kv_heads, "num_kv_heads")
        size = value_size = _checks.size(head_dim, "head_dim")
        if value_head_dim is not None:
            value_size = _checks.size(value_head_dim, "value_head_dim")
        dtype = _dtypes.stored(dtype)
        shapes = [(self.num_pages, heads, PAGE, n) for n in (size, value_size)]
        _checks.memory("PagePool", dtype, *shapes)
        self.key, self.value = (np.zeros(shape, dtype) for shape in shapes)
        self.key_scale, self.value_scale = (
            np.zeros(shape[:3], np.float32) if dtype == np.int8 else None
            for shape in shapes
        )
        self._free = list(range(self.num_pages))[::-1]

    @property
    def num_free(self) -> int:
        """How many pages no sequence has."""
        return len(self._free)

    def __reduce__(self) -> NoReturn:
        """Refuse copies and pickles, to which no sequence would give pages back."""
        raise TypeError("cannot pickle or copy a PagePool, as sequences have its pages")

    def _shown(self) -> dict[str, Any]:
        heads, size, value_size = *self.key.shape[1::2], self.value.shape[3]
        return {
            "num_pages": self.num_pages,
            "num_kv_heads": heads,
            "head_dim": size,
            "value_head_dim": value_size if value_size != size else None,
            "dtype": self.key.dtype,
            "num_free": self.num_free,
        }

    __repr__ = _repr.shows(_shown)


class Page(functools.partial[None]):
    """A page in use, which is free again once nothing refers to this object.

    A call of it gives its number back to the free ones. None of this runs Python code,
    in which the exception of a signal handler, or another thread, could lose a page.
    """

    __slots__ = ()
    __del__ = functools.partial.__call__

    @property
    def number(self) -> int:
        number: int = self.args[0]
        return number


def _new_page(pool: PagePool) -> Page:
    """Take a free page."""
    free = pool._free
    try:
        return next(map(Page, (free.append,), map(list.pop, (free,))))
    except IndexError:  # another thread has taken it
        raise MemoryError(
            f"pages: expected a free one of the pool's {pool.num_pages}, got none"
        ) from None


class Held(NamedTuple):
    """The pages of a sequence.

    Attributes
    ----------
    pages : tuple of Page or None
        In order; None for one that was given back.
    shared : int
        How many of them, the first ones, other sequences may have, too.
    """

    pages: tuple[Page | None, ...] = ()
    shared: int = 0

    @property
    def numbers(self) -> list[int]:
        return [0 if page is None else page.args[0] for page in self.pages]

    @property
    def first(self) -> int:
        """The first key that is there."""
        if not self.pages or self.pages[0] is not None:  # as nearly always
            return 0
        return PAGE * self.pages.count(None)


@_keywords.answering
class PagedKVCache(KVCache):
    """A cache for keys and values of sequences, in the pages of a pool.

    Parameters
    ----------
    pool : PagePool
        Where the keys and values lie.
    batch_size : int
        `B`, the number of sequences.

    Attributes
    ----------
    pool : PagePool
        As given.
    batch_size, num_kv_heads, head_dim, value_head_dim : int
        As in `attnpy.cache.KVCache`.
    growable : bool
        True: a sequence takes another page when it needs one.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    See Also
    --------
    attnpy.cache.KVCache : a cache whose sequences lie in one array.

    Notes
    -----
    It is a `KVCache` for layers and models, and gives the same bits. `fork` shares the
    pages of a sequence; one that is written to while others have it is copied before.
    Where a pool has too few free pages, a call raises a MemoryError; the cache has not
    changed then.

    Examples
    --------
    Two continuations of one beginning, which lies in memory once:

    >>> import numpy as np
    >>> from attnpy.layers import MultiHeadAttention
    >>> from attnpy.pages import PagedKVCache, PagePool
    >>> rng = np.random.default_rng(0)
    >>> mha, pool = MultiHeadAttention(16, 4, rng=rng), PagePool(10, 4, 4)
    >>> x = rng.standard_normal((2, 301, 16), dtype=np.float32)
    >>> x[1, :300] = x[0, :300]
    >>> cache = PagedKVCache(pool, 1)
    >>> begun = mha(x[:1, :300], causal=True, cache=cache)
    >>> both = cache.fork([0, 0])
    >>> last = mha(x[:, 300:], causal=True, cache=both)
    >>> bool((last == mha(x, causal=True)[:, 300:]).all())
    True
    >>> pool.num_pages - pool.num_free  # 2 shared, and the last one three times
    5
    """

    pool: PagePool
    _held: tuple[Held, ...]
    _lengths: NDArray[np.int64]

    def __init__(self, pool: PagePool, batch_size: int) -> None:
        if not isinstance(pool, PagePool):
            raise TypeError(f"pool: expected a PagePool, got {type(pool).__name__}")
        self.pool = pool
        self.batch_size = _checks.size(batch_size, "batch_size")
        self.num_kv_heads, self.head_dim = pool.key.shape[1::2]
        self.value_head_dim = pool.value.shape[3]
        self.growable = True
        _checks.memory("batch_size", np.int64, (self.batch_size,))
        self._lengths = np.zeros(self.batch_size, np.int64)
        self._held = (Held(),) * self.batch_size

    def __reduce__(self) -> NoReturn:
        """Refuse copies and pickles; `fork` and `copy` are those of a cache."""
        raise TypeError("cannot pickle a PagedKVCache; its fork() is a copy")

    def _shown(self) -> dict[str, Any]:
        return {
            "pool": self.pool,
            "batch_size": self.batch_size,
            "lengths": _repr.span(self._lengths.tolist()),
        }

    __repr__ = _repr.shows(_shown)

    @property
    def capacity(self) -> int:
        """How many tokens each sequence may have without another page."""
        return PAGE * min((len(held.pages) for held in self._held), default=0)

    @property
    def page_table(self) -> NDArray[np.int64]:
        """The numbers of the pages, (B, n), as `attnpy.attention` takes them."""
        rows = [held.numbers for held in self._held]
        n = max(map(len, rows), default=0)
        table = [row + [0] * (n - len(row)) for row in rows]
        return np.array(table, np.int64).reshape(len(rows), n)

    @property
    def key(self) -> Array:
        """A copy of the keys, (B, Hk, Lk, D), with Lk the largest of the lengths."""
        return self._gathered(self.pool.key)

    @property
    def value(self) -> Array:
        """A copy of the values, (B, Hk, Lk, Dv); see `key`."""
        return self._gathered(self.pool.value)

    @property
    def key_scale(self) -> NDArray[np.float32] | None:
        """A copy of the scales of int8 keys, (B, Hk, Lk), or None."""
        scales = self.pool.key_scale
        return None if scales is None else self._gathered(scales)

    @property
    def value_scale(self) -> NDArray[np.float32] | None:
        """A copy of the scales of int8 values, (B, Hk, Lk), or None."""
        scales = self.pool.value_scale
        return None if scales is None else self._gathered(scales)

    def append(
        self, key: ArrayLike, value: ArrayLike, lengths: ArrayLike | None = None
    ) -> None:
        """Add tokens to the end of each sequence.

        Parameters
        ----------
        key, value, lengths
            As in `attnpy.cache.KVCache.append`.

        Raises
        ------
        TypeError, ValueError
            As there. The cache has then not changed.
        MemoryError
            If the pool has too few free pages. The cache has then not changed.
        """
        key, value, n_tokens, lengths = checked_tokens(self, key, value, lengths)
        ends = self._make_room(n_tokens, lengths, "lengths")
        for b, (start, end) in enumerate(zip(self._lengths, ends, strict=True)):
            for at in range(start, end):
                page, row = self._held[b].pages[at // PAGE], at % PAGE
                assert page is not None
                place = (page.number, slice(None), row)
                rows = pool_rows(self.pool)
                put(rows.key, rows.key_scale, place, key[b, :, at - start])
                put(rows.value, rows.value_scale, place, value[b, :, at - start])
        self._lengths = ends

    def truncate(self, lengths: ArrayLike) -> None:
        """Forget the last tokens of each sequence, and give back their pages.

        Parameters
        ----------
        lengths : int or array_like of int, broadcast to (B,)
            How many tokens to keep, from 0 to the current number.

        Raises
        ------
        TypeError, ValueError
            If `lengths` are not integers, or out of their range; if all tokens to keep
            were released.
        """
        kept = per_sequence(self.batch_size, lengths, "lengths", 0, self._lengths)
        held = []
        for one, length in zip(self._held, kept.tolist(), strict=True):
            if 0 < length < one.first:
                raise ValueError(
                    f"lengths: expected 0, or at least the {one.first} tokens that "
                    f"were released, got {length}"
                )
            n = _pages_of(length)
            held.append(Held(one.pages[:n], min(one.shared, n)))
        vars(self).update(_held=tuple(held), _lengths=kept)

    def release(self, lengths: ArrayLike) -> None:
        """Give back pages with only first tokens that no later token will see.

        With ``window=(left, 0)`` a token sees `left` tokens before it.

        Parameters
        ----------
        lengths : int or array_like of int, broadcast to (B,)
            How many of the first tokens of each sequence are not needed. Only whole
            pages are given back. Afterwards a call needs a `window` that hides them.

        Raises
        ------
        TypeError, ValueError
            If `lengths` are not integers, or not from 0 to the sequence's own.
        """
        gone = per_sequence(self.batch_size, lengths, "lengths", 0, self._lengths)
        self._held = tuple(
            Held((None,) * (n // PAGE) + one.pages[n // PAGE :], one.shared)
            if n // PAGE * PAGE > one.first
            else one
            for one, n in zip(self._held, gone.tolist(), strict=True)
        )

    def fork(
        self, sequences: ArrayLike | None = None, *, capacity: int | None = None
    ) -> PagedKVCache:
        """Return a cache in the same pool whose sequences begin as some of this one.

        Parameters
        ----------
        sequences : int or array_like of int, shape (n,), optional
            Which sequence of this cache each of the new ones begins as; by default all
            in order.
        capacity : int, optional
            Not less than the longest length; sequences grow by pages anyway.

        Returns
        -------
        PagedKVCache
            With the same tokens. Whole pages are shared, and the last tokens of a
            sequence are copied, into another page for each.

        Raises
        ------
        TypeError, ValueError
            If an argument is not an integer, or out of its range.
        MemoryError
            If the pool has too few free pages.
        """
        chosen = checked_sequences(sequences, self.batch_size)
        if capacity is not None:
            checked_capacity(capacity, self._lengths[chosen])
        begun = self._lengths[chosen]
        self._check_free(int(np.count_nonzero(begun % PAGE)))
        other = PagedKVCache(self.pool, len(chosen))
        whole = (self._lengths // PAGE).tolist()
        self._held = tuple(
            Held(one.pages, max(one.shared, min(n, len(one.pages))))
            for one, n in zip(self._held, whole, strict=True)
        )
        held = []
        for b, length in zip(chosen.tolist(), begun.tolist(), strict=True):
            n, pages = length // PAGE, self._held[b].pages
            last = pages[n : _pages_of(length)]
            held.append(Held(pages[:n] + tuple(map(self._copied, last)), n))
        vars(other).update(_held=tuple(held), _lengths=begun)
        return other

    def select(self, sequences: ArrayLike) -> None:
        """Keep some sequences, in this order, as a search with beams does.

        Parameters
        ----------
        sequences : array_like of int, shape (n,)
            As in `attnpy.cache.KVCache.select`; one that comes several times is forked.

        Raises
        ------
        TypeError, ValueError
            As there. The cache has then not changed.
        MemoryError
            If the pool has too few free pages.
        """
        vars(self).update(vars(self.fork(sequences)))

    def copy(self) -> PagedKVCache:
        """Return a cache with the same tokens, as `fork` makes it.

        Returns
        -------
        PagedKVCache
            Changes to one of them do not affect the other.
        """
        return self.fork()

    def _make_room(
        self, n_tokens: int, new_lengths: ArrayLike | None, name: str
    ) -> NDArray[np.int64]:
        """Take the pages that new tokens need, and return the lengths with them."""
        new = np.full(self.batch_size, n_tokens)
        if new_lengths is not None:
            new = per_sequence(self.batch_size, new_lengths, name, 0, n_tokens)
        ends: NDArray[np.int64] = self._lengths + new
        rows = list(zip(self._held, self._lengths.tolist(), ends.tolist(), strict=True))
        if n_needed := sum(itertools.starmap(_pages_needed, rows)):
            self._check_free(n_needed)
            self._held = tuple(itertools.starmap(self._with_room, rows))
        return ends

    def _with_room(self, one: Held, start: int, end: int) -> Held:
        """Return a sequence's pages for this many tokens."""
        pages, shared = list(one.pages), one.shared
        if _must_copy(one, start, end):
            shared = start // PAGE
            pages[shared] = self._copied(pages[shared])
        n_new = _pages_of(end) - len(pages)
        return Held((*pages, *(_new_page(self.pool) for _ in range(n_new))), shared)

    def _copied(self, page: Page | None) -> Page:
        assert page is not None
        copy = _new_page(self.pool)
        arrays = [x for x in pool_rows(self.pool) if x is not None]
        for array in arrays:
            array[copy.number] = array[page.number]
        return copy

    def _check_free(self, n: int) -> None:
        if n > self.pool.num_free:
            raise MemoryError(
                f"pages: expected {n} free ones of the pool's {self.pool.num_pages}, "
                f"got {self.pool.num_free}"
            )

    def _gathered(self, pages: Array) -> Array:
        """Return rows of all sequences, each in one piece."""
        longest = max(self._lengths.tolist(), default=0)
        if any(one.first for one in self._held):
            raise ValueError("cache: expected all tokens, got released ones")
        found = pages[self.page_table].swapaxes(1, 2)  # (B, Hk, n, 128) or (..., D)
        shape = *found.shape[:2], found.shape[2] * PAGE, *pages.shape[3:]
        return found.reshape(shape)[:, :, :longest]


def pool_rows(pool: PagePool) -> Rows:
    """Return the arrays of a pool's pages."""
    return Rows(pool.key, pool.value, pool.key_scale, pool.value_scale)


def reserve_pages(
    cache: PagedKVCache, n_tokens: int, new_lengths: ArrayLike | None, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lengths without and with new tokens, for which there are pages then.

    `attnpy.cache.commit` adds them to the cache. Errors call the new lengths `name`.
    """
    past_lengths = cache._lengths
    return past_lengths, cache._make_room(n_tokens, new_lengths, name)


def check_window(cache: PagedKVCache, window: Window | None) -> None:
    """Raise an error if a call's tokens would see some that were released."""
    firsts = [one.first for one in cache._held]
    if not any(firsts):
        return
    left = None if window is None else window[0]
    for first, length in zip(firsts, cache._lengths.tolist(), strict=True):
        if first and (left is None or length - left < first):
            raise ValueError(
                f"window: expected one that hides the first {first} tokens, which were "
                f"released, got {window}"
            )


def joined(caches: Sequence[PagedKVCache]) -> PagedKVCache:
    """Return one cache of all sequences of caches in one pool.

    It has their pages, as they do: go on with either it or them.
    """
    both = PagedKVCache(caches[0].pool, 0)
    lengths = np.concatenate([cache._lengths for cache in caches])
    held = tuple(one for cache in caches for one in cache._held)
    vars(both).update(batch_size=len(held), _lengths=lengths, _held=held)
    return both


def taken(cache: PagedKVCache, sequences: Sequence[int]) -> PagedKVCache:
    """Return a cache of these sequences, each once, with their pages.

    As with `joined`, go on with either it or the other one.
    """
    part = PagedKVCache(cache.pool, len(sequences))
    held = tuple(cache._held[b] for b in sequences)
    vars(part).update(_lengths=cache._lengths[list(sequences)], _held=held)
    return part


def pages_held(cache: PagedKVCache, sequence: int) -> tuple[int, int]:
    """Return how many pages a sequence ever had, and how many it has alone."""
    one = cache._held[sequence]
    return len(one.pages), len(one.pages) - max(one.shared, one.pages.count(None))


def _pages_of(n_tokens: int) -> int:
    return -(-n_tokens // PAGE)


def _pages_needed(one: Held, start: int, end: int) -> int:
    """Return how many free pages new tokens need."""
    return max(_pages_of(end) - len(one.pages), 0) + _must_copy(one, start, end)


def _must_copy(one: Held, start: int, end: int) -> bool:
    """Tell whether new tokens go into a page that others may have."""
    return end > start and start // PAGE < one.shared
