"""The tokens of a call and of its context, packed or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks, _packed
from attnpy.cache import KVCache

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array

# The parameters of queries, keys and values.
PROJECTIONS = ("W_q", "W_k", "W_v", "b_q", "b_k", "b_v")


class Tokens(NamedTuple):
    """The tokens of a call.

    Attributes
    ----------
    array : ndarray, shape (L, E) or (B, L, E)
    single : bool
        The axis `B` was added: the tokens came without it.
    starts : ndarray of int64, shape (n + 1,), or None
        Where packed sequences begin and end.
    starts_of_keys : array_like, or None
        The same for the sequences of a context, as given.
    """

    array: Array
    single: bool
    starts: NDArray[np.int64] | None
    starts_of_keys: ArrayLike | None

    @classmethod
    def of(
        cls, x: ArrayLike, seq_offsets: Any, context: object, kv_cache: KVCache | None
    ) -> Tokens:
        """Return the tokens of a call's arguments; a cache adds an axis `B`."""
        tokens = _checks.array(x, "x")[...]  # a view, whose shape stays
        starts, of_keys = sequences(seq_offsets, tokens.shape, context, kv_cache)
        single = kv_cache is not None and tokens.ndim == 2 and starts is None
        if single:
            tokens = tokens[np.newaxis]  # (1, L, E)
        return cls(tokens, single, starts, of_keys)


def sequences(
    seq_offsets: Any,
    shape: tuple[int, ...],
    context: object,
    kv_cache: KVCache | None,
) -> tuple[NDArray[np.int64] | None, ArrayLike | None]:
    """Return where packed sequences of tokens of this shape begin, and their keys'.

    Keys in a cache have no offsets: there is an axis for sequences.
    """
    of_tokens = of_keys = seq_offsets
    is_pair = isinstance(seq_offsets, tuple) and len(seq_offsets) == 2
    if is_pair and not any(isinstance(x, (int, np.integer)) for x in seq_offsets):
        if context is not None:
            of_tokens, of_keys = seq_offsets
        if isinstance(context, KVCache) and of_keys is not None:
            raise ValueError(
                "seq_offsets: expected None for keys that are in a KVCache, got offsets"
            )
    starts = None
    if of_tokens is not None:
        starts = _packed.checked_starts(of_tokens, shape)
    return starts, None if kv_cache is not None else of_keys


def ends(
    kv_lengths: ArrayLike | None,
    tokens: Array,
    starts: NDArray[np.int64] | None,
    cache: KVCache | None,
) -> NDArray[np.int64]:
    """Return how many tokens each sequence has after a call, (B,) or ()."""
    n_tokens = tokens.shape[-2] if tokens.ndim > 1 else 0
    batch = tokens.shape[:-2]
    if starts is not None:
        batch = (len(starts) - 1,)
        if kv_lengths is None:
            return np.diff(starts)
    if kv_lengths is None:
        return np.array(n_tokens)
    most = n_tokens if cache is None else cache.capacity
    found = _checks.integers(kv_lengths, "kv_lengths", 0, most)
    if not _checks.broadcasts(found.shape, batch):
        raise ValueError(
            "kv_lengths: expected an integer, or integers that broadcast to the axes "
            f"before the head axis, got {found.shape}"
        )
    return found


def check_value(
    value: ArrayLike | None, context: object, W_k: Array, W_v: Array
) -> None:
    """Raise an error if values come from another array, or should."""
    if value is not None and context is None:
        raise ValueError("value: expected None without a context, where keys come from")
    if value is not None and isinstance(context, KVCache):
        raise ValueError(
            "value: expected None where context is a KVCache, which has values"
        )
    if value is None and context is not None and not isinstance(context, KVCache):
        of_keys, of_values = np.shape(W_k), np.shape(W_v)
        if of_keys[:1] != of_values[:1]:
            raise ValueError(
                "value: expected an array beside the context, as W_k has shape "
                f"{of_keys} and W_v {of_values}, got None"
            )


def context_tokens(context: ArrayLike, name: str, weight: Array) -> Array:
    """Return the tokens of a context (B, Lc, size); `size` is the number of rows."""
    tokens, size = _checks.array(context, name), len(weight)
    if tokens.ndim not in (2, 3) or tokens.shape[-1] != size:
        raise ValueError(
            f"{name}: expected (Lc, {size}) or (B, Lc, {size}), got {tokens.shape}"
        )
    return tokens[np.newaxis] if tokens.ndim == 2 else tokens
