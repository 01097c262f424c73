"""Keys and values in a cache: those of a context, or those before the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks
from attnpy._cache_arrays import Rows
from attnpy._options import Cache
from attnpy.cache import KVCache, empty_rows, reserve, rows_of
from attnpy.pages import PagedKVCache, check_window, pool_rows, reserve_pages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from attnpy.layers._tokens import Tokens


class Keys(NamedTuple):
    """The keys of a call that are in a cache.

    Attributes
    ----------
    rows : Cache or None
        The argument of the C module; None without a cache.
    lengths : array_like, or None
        How many keys of each sequence exist: the option `kv_lengths`.
    past : ndarray of int64, shape (B,), or None
        How many there were before the call, in a cache that the call fills.
    reserved : ndarray of int64, shape (B,), or None
        How many there are after the call, committed at its end.
    page_table : ndarray of int64, shape (B, n), or None
        Where the keys lie, in a cache of pages: the option of this name.
    """

    rows: Cache | None
    lengths: ArrayLike | None
    past: NDArray[np.int64] | None
    reserved: NDArray[np.int64] | None
    page_table: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls,
        tokens: Tokens,
        context: ArrayLike | KVCache | None,
        cache: KVCache | None,
        kv_lengths: ArrayLike | None,
        options: Mapping[str, Any],
    ) -> Keys:
        """Return the keys of a context, or make room for those of the tokens."""
        if isinstance(context, PagedKVCache) or isinstance(cache, PagedKVCache):
            return cls._in_pages(tokens, context, cache, kv_lengths, options)
        rows = past = reserved = None
        if isinstance(context, KVCache):
            rows = _as_cache(rows_of(context), None)
            kv_lengths = context.lengths
        if cache is not None:
            n_new, kv_lengths = _new_tokens(tokens, kv_lengths)
            past, reserved, views = reserve(cache, n_new, kv_lengths, "kv_lengths")
            rows = _as_cache(views, past)
            kv_lengths = reserved
        kv_cache = context if isinstance(context, KVCache) else cache
        if kv_cache is not None and kv_cache.batch_size == 0:
            n_tokens = 0 if tokens.starts is not None else tokens.array.shape[1]
            views = empty_rows(kv_cache, _n_masked(options, n_tokens))
            rows = _as_cache(views, past)
        return cls(rows, kv_lengths, past, reserved)

    @classmethod
    def _in_pages(
        cls,
        tokens: Tokens,
        context: ArrayLike | KVCache | None,
        cache: KVCache | None,
        kv_lengths: ArrayLike | None,
        options: Mapping[str, Any],
    ) -> Keys:
        """Do the same where keys lie in the pages of a pool."""
        paged = context if isinstance(context, PagedKVCache) else cache
        assert isinstance(paged, PagedKVCache)
        check_window(paged, options.get("window"))
        past = reserved = None
        lengths = paged.lengths
        if cache is not None:
            n_new, kv_lengths = _new_tokens(tokens, kv_lengths)
            past, reserved = reserve_pages(paged, n_new, kv_lengths, "kv_lengths")
            lengths = reserved
        rows = _as_cache(pool_rows(paged.pool), past)
        return cls(rows, lengths, past, reserved, paged.page_table)


def _as_cache(rows: Rows, past: NDArray[np.int64] | None) -> Cache:
    return Cache(rows.key, rows.value, past, rows.key_scale, rows.value_scale)


def check_caches(
    context: ArrayLike | KVCache | None,
    cache: KVCache | None,
    kv_lengths: ArrayLike | None,
) -> None:
    """Raise an error for objects that are not caches, and for conflicting arguments."""
    if cache is not None and not isinstance(cache, KVCache):
        raise TypeError(f"cache: expected a KVCache, got {type(cache).__name__}")
    if context is not None and cache is not None:
        raise ValueError(
            "cache: expected None with a context, whose keys and values can be kept "
            "by project_context"
        )
    if isinstance(context, KVCache) and kv_lengths is not None:
        raise ValueError(
            "kv_lengths: expected None where context is a KVCache, which has lengths"
        )


def check_sizes(
    kv_cache: KVCache, name: str, tokens: Tokens, sizes: tuple[int, int, int]
) -> None:
    """Raise an error for a cache that is not one of `sizes`, (Hk, D, Dv)."""
    if tokens.array.ndim != 3 and tokens.starts is None:
        raise ValueError(
            f"x: expected (L, E) or (B, L, E) with a cache, got {tokens.array.shape}"
        )
    batch = len(tokens.array) if tokens.starts is None else len(tokens.starts) - 1
    if name == "context" and kv_cache.batch_size == 1:
        batch = 1
    expected = batch, *sizes
    found = (
        kv_cache.batch_size,
        kv_cache.num_kv_heads,
        kv_cache.head_dim,
        kv_cache.value_head_dim,
    )
    if found != expected:
        raise ValueError(
            f"{name}: expected (B, Hk, D, Dv) = {expected} to match x and the "
            f"layer, got {found}"
        )


def _new_tokens(
    tokens: Tokens, kv_lengths: ArrayLike | None
) -> tuple[int, ArrayLike | None]:
    """Return the largest number of new tokens, and that of each sequence."""
    if tokens.starts is None:
        return tokens.array.shape[1], kv_lengths
    counts = np.diff(tokens.starts)
    return int(counts.max(initial=0)), counts if kv_lengths is None else kv_lengths


def _n_masked(options: Mapping[str, Any], n_tokens: int) -> int:
    """Return the number of keys of a mask or a bias, or otherwise of tokens."""
    given = ((options.get(name), name) for name in ("mask", "bias"))
    shapes = [_checks.array(x, name).shape for x, name in given if x is not None]
    n_keys = max((shape[-1] for shape in shapes if shape), default=1)
    return n_keys if n_keys > 1 else n_tokens
