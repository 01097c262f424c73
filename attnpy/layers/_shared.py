"""What the layers of a stack have in common in a call with caches."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from attnpy._options import Cache
from attnpy.cache import KVCache, lengths_of, reserve_to
from attnpy.layers import _turns
from attnpy.layers._keys import Place, check_sizes
from attnpy.layers._tokens import Tokens
from attnpy.layers.multi_head import place_in

if TYPE_CHECKING:
    from attnpy._typing import Array
    from attnpy.layers import MultiHeadAttention


class Shared:
    """Finds where tokens stand, which is the same in many layers.

    The products of a layer drive Python out of the CPU's caches, so that its work takes
    several times as long as otherwise: for single tokens, a quarter of all time.
    """

    def __init__(self) -> None:
        self._lengths: list[int] | None = None  # in the caches before the call
        self._found: list[tuple[tuple[Any, ...], tuple[Any, ...], Place]] = []

    def place(
        self,
        mha: MultiHeadAttention,
        x: Array,
        cache: KVCache,
        options: dict[str, Any],
        own: tuple[Any, ...],
    ) -> Place:
        """Return the place of tokens (B, L, E) in a layer.

        `options` are the attention's. They may differ between layers, but not between
        those with the same `own`.
        """
        if type(cache) is not KVCache:
            return place_in(mha, cache, x, options)
        lengths = lengths_of(cache)
        if lengths != self._lengths:
            self._lengths, self._found = lengths, []
        sizes = mha.num_kv_heads, mha.head_dim, mha.value_head_dim
        key = (
            sizes,
            x.dtype,
            _turns.dtype_of(mha.W_q),
            _turns.dtype_of(mha.W_k),
            _dtype(mha.q_norm),
            _dtype(mha.k_norm),
        )
        for its_own, its_key, place in self._found:
            if its_key == key and all(map(operator.is_, its_own, own)):
                check_sizes(cache, "cache", Tokens(x, False, None, None), sizes)
                return _at(place, cache)
        place = place_in(mha, cache, x, options)
        self._found.append((own, key, place))
        return place


def _at(place: Place, cache: KVCache) -> Place:
    """Return the place in another cache of the same lengths, after making room."""
    assert place.reserved is not None
    key, value, key_scale, value_scale = reserve_to(cache, place.reserved)
    rows = Cache(key, value, place.past, key_scale, value_scale)
    return Place(rows, place.tables, place.options, place.past, place.reserved)


def _dtype(norm: Any) -> Any:
    """Return the dtype of a norm, or None."""
    return getattr(getattr(norm, "weight", None), "dtype", None)
