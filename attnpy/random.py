"""Dropout masks, as arrays.

A counter-based generator makes the mask a function of seed and place only, so it is the
same forward and backward, for any number of threads and on any machine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attnpy import _checks, _keywords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["dropout_mask"]


def __dir__() -> list[str]:
    return __all__


_BLOCK = 128  # keys, of 32 counters with 4 words each
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@_keywords.answering
def dropout_mask(
    shape: Sequence[int],
    dropout: float,
    dropout_seed: int,
    *,
    q_offset: ArrayLike | None = None,
) -> NDArray[np.bool_]:
    """Return which weights `attention` keeps with dropout.

    Parameters
    ----------
    shape : sequence of int
        The shape of the weights, (..., H, Lq, Lk), or (Lq, Lk) for a single head.
    dropout : float
        The probability of being dropped, at least 0 and below 1.
    dropout_seed : int
        From 0 to ``2**64 - 1``.
    q_offset : int or array_like of int, broadcast to the axes before H, optional
        The absolute position of query 0, as in `attention`; by default ``Lk - Lq``.
        With ``causal="top_left"`` it is 0, with `kv_lengths` ``kv_lengths - Lq``.

    Returns
    -------
    mask : ndarray of bool, shape `shape`
        True where the weight is kept and multiplied by ``1 / (1 - dropout)``.

    Raises
    ------
    TypeError
        If an argument has the wrong kind.
    ValueError
        If a number is out of its range, or `q_offset` does not broadcast.
    MemoryError
        If memory cannot hold the result.

    Notes
    -----
    The generator is Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random
    Numbers: As Easy as 1, 2, 3" (2011), with the low and high half of the seed as its
    key. For batch b (counted over all axes before the head axis, or over packed
    sequences), head h, position p of the query and key j, take the word ``j % 128 //
    32`` of the counter ``(j // 128 * 32 + j % 32, p, h, b)``, each modulo 2**32. The
    weight is kept if the word is at least ``floor(dropout * 2**32)``.

    Examples
    --------
    >>> from attnpy.random import dropout_mask
    >>> mask = dropout_mask((8, 100, 100), 0.1, 2024)
    >>> mask.shape, round(float(mask.mean()), 2)
    ((8, 100, 100), 0.9)
    """
    sizes = tuple(
        _checks.size(n, "shape") for n in _checks.items(shape, "shape", "int")
    )
    if len(sizes) < 2:
        raise ValueError(f"shape: expected (..., H, Lq, Lk) or (Lq, Lk), got {sizes}")
    seed = _checks.size(dropout_seed, "dropout_seed")
    if seed >= 2**64:
        raise ValueError(
            f"dropout_seed: expected an integer from 0 to 2**64 - 1, got {seed}"
        )
    if not 0 <= _checks.above(dropout, "dropout", -math.inf) < 1:
        raise ValueError(
            f"dropout: expected a number of at least 0 and below 1, got {dropout!r}"
        )
    *batch, n_heads, n_queries, n_keys = sizes if len(sizes) > 2 else (1, *sizes)
    _checks.memory("shape", np.bool_, sizes)
    offsets = _checks.integers(
        n_keys - n_queries if q_offset is None else q_offset, "q_offset"
    )
    if not _checks.broadcasts(offsets.shape, tuple(batch)):
        raise ValueError(
            "q_offset: expected an integer, or integers that broadcast to the axes "
            f"before the head axis, {tuple(batch)}, got shape {offsets.shape}"
        )
    mask = np.empty((*batch, n_heads, n_queries, n_keys), bool)
    if mask.size == 0:
        return mask.reshape(sizes)
    offsets = np.broadcast_to(offsets, batch)
    least = int(dropout * 2**32)
    keys = np.arange(n_keys)
    counters = keys // _BLOCK * (_BLOCK // 4) + keys % 32  # (Lk,)
    for b, place in enumerate(np.ndindex(*batch)):
        positions = (offsets[place] + np.arange(n_queries))[:, None]  # (Lq, 1)
        for h in range(n_heads):
            words = _philox((counters, positions, h, b), seed)  # (4, Lq, Lk)
            chosen = np.choose(keys % _BLOCK // 32, words)
            mask[(*place, h)] = chosen >= least
    return mask.reshape(sizes)


def _philox(counter: tuple[ArrayLike, ...], seed: int) -> NDArray[np.uint64]:
    """Return the four words of each counter; the counters' words broadcast."""
    x = [np.asarray(c).astype(np.uint64) & _LOW for c in np.broadcast_arrays(*counter)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = _MULTIPLIERS[0] * x[0], _MULTIPLIERS[1] * x[2]
        x = [
            b >> _HALF ^ x[1] ^ np.uint64(key[0]),
            b & _LOW,
            a >> _HALF ^ x[3] ^ np.uint64(key[1]),
            a & _LOW,
        ]
        key = [(k + step) % 2**32 for k, step in zip(key, _STEPS, strict=True)]
    return np.stack(x)
