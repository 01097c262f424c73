"""What the layers of a stack have in common in a call with caches."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from attnpy._options import Cache, Place
from attnpy.cache import KVCache, lengths_of, rows_to
from attnpy.layers.multi_head import place_in, step

if TYPE_CHECKING:
    from attnpy._options import Norm
    from attnpy._typing import Array
    from attnpy.layers import MultiHeadAttention


class Shared:
    """Finds where tokens stand, which is the same in many layers.

    The products of a layer drive Python out of the CPU's caches, so that its work takes
    several times as long as otherwise: for single tokens, a quarter of all time.
    """

    def __init__(self, mixed: bool) -> None:
        self._mixed = mixed
        self._found: list[tuple[tuple[Any, ...], tuple[Any, ...], int, Place]] = []

    def attend(
        self,
        mha: MultiHeadAttention,
        x: Array,
        norm: Norm | None,
        residual: Array | None,
        cache: KVCache,
        options: dict[str, Any],
        own: tuple[Any, ...],
    ) -> Array:
        """Do what a layer's call does for tokens (B, L, E) after a norm.

        `options` are the attention's. They may differ between layers, but not between
        those with the same `own`.
        """
        known = self._place(mha, x, cache, own) if type(cache) is KVCache else None
        if known is None:
            known = place_in(mha, cache, x, options)
            if type(cache) is KVCache:
                assert known.past is not None and known.reserved is not None
                n = max(known.reserved.tolist(), default=0)
                key = _key(mha, x, known.past.tolist(), cache)
                self._found.append((own, key, n, known))
            return step(mha, x, norm, residual, cache, known, self._mixed)
        try:
            return step(mha, x, norm, residual, cache, known, self._mixed)
        except (TypeError, ValueError):
            place_in(mha, cache, x, options)  # its checks say best what is wrong
            raise

    def _place(
        self, mha: MultiHeadAttention, x: Array, cache: KVCache, own: tuple[Any, ...]
    ) -> Place | None:
        """Return the place in a cache that has room, if one of the same kind is known.

        The C module checks its arrays.
        """
        key = _key(mha, x, lengths_of(cache), cache)
        for its_own, its_key, n, place in self._found:
            if its_key == key and all(map(operator.is_, its_own, own)):
                rows = rows_to(cache, n)
                if rows is None:
                    return None
                key_rows, value_rows, key_scale, value_scale = rows
                told = place.options
                if mha.sinks is not None:  # each layer has its own then
                    told = told._replace(sinks=mha.sinks)
                return Place(
                    Cache(key_rows, value_rows, place.past, key_scale, value_scale),
                    place.rotary,
                    told,
                    *place[3:],
                )
        return None


def _key(
    mha: MultiHeadAttention, x: Array, lengths: list[int], cache: KVCache
) -> tuple[Any, ...]:
    """Return what the place of tokens depends on, beside options."""
    q_norm, k_norm = mha.q_norm, mha.k_norm
    return (
        lengths,
        cache.head_dim,
        x.dtype,
        _dtype(mha.W_q),
        _dtype(mha.W_k),
        mha.sinks is None,
        "" if q_norm is None else _dtype(getattr(q_norm, "weight", None)),
        "" if k_norm is None else _dtype(getattr(k_norm, "weight", None)),
    )


def _dtype(array: Any) -> Any:
    """Return the dtype of an array; what equals nothing else, if it is none."""
    return getattr(array, "dtype", None) or object()
