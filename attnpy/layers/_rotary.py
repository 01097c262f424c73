"""The tables that rotate a call's queries and keys by their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _dtypes, _packed
from attnpy._options import Rotary as RotaryTables
from attnpy.positions.rotary import cos_sin

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array
    from attnpy.norms import LayerNorm, RMSNorm
    from attnpy.positions import Rotary


def tables(
    rotary: Rotary,
    tokens: Array,
    starts: NDArray[np.int64] | None,
    firsts: tuple[ArrayLike, ArrayLike],
    ends: NDArray[np.int64] | None,
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
) -> RotaryTables:
    """Return the tables of queries and of keys, whose first positions are `firsts`.

    `ends` are the lengths after the call, where frequencies depend on them.
    """
    n_tokens = tokens.shape[-2] if tokens.ndim > 1 else 0
    if ends is not None:
        ends = ends[..., np.newaxis] if ends.ndim else ends  # an axis for heads
    if ends is not None and starts is not None:
        counts = np.diff(starts)
        ends = np.repeat(np.broadcast_to(ends, (len(counts), 1))[:, 0], counts)

    def table(first: ArrayLike, dtype: np.dtype[Any]) -> Array:
        if starts is None:
            return cos_sin(rotary, first, dtype, n_tokens, ends)
        positions = _packed.positions(starts, first)[:, np.newaxis]  # (T, 1)
        return cos_sin(rotary, positions, dtype, None, ends)[:, 0]

    (of_query, of_key), (q_dtype, k_dtype) = firsts, dtypes
    of_queries = of_keys = table(of_query, q_dtype)
    if of_key is not of_query or k_dtype != q_dtype:
        of_keys = table(of_key, k_dtype)
    return RotaryTables(of_queries, of_keys, rotary.interleaved)


def arithmetic(
    tokens: Array, weight: Array, norm: LayerNorm | RMSNorm | None
) -> np.dtype[Any]:
    """Return the dtype in which tokens are projected, and then normalized."""
    of_product = tokens.dtype, dtype_of(weight)
    if norm is None:
        return _dtypes.arithmetic(*of_product)
    return _dtypes.arithmetic(*of_product, dtype_of(norm.weight))


def dtype_of(array: ArrayLike) -> np.dtype[Any]:
    """Return the dtype of an array, without unpacking packed ones."""
    found: np.dtype[Any] | None = getattr(array, "dtype", None)
    return np.asarray(array).dtype if found is None else found
