"""Biases by the distance of query and key, added to the scores: ALiBi's and T5's."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _dtypes, _keywords
from attnpy.positions.absolute import query_positions

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array


@_keywords.answering
def alibi_slopes(num_heads: int, dtype: DTypeLike = np.float32) -> Array:
    r"""Return the slopes of attention with linear biases (ALiBi).

    Parameters
    ----------
    num_heads : int
        `H`.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.

    Returns
    -------
    ndarray, shape (H,)
        Positive. For a power of two they decrease from :math:`2^{-8/H}` to
        :math:`2^{-8}`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is negative.
    MemoryError
        If memory cannot hold the result.

    Notes
    -----
    :math:`m_h = 2^{-8h/H}` for h = 1 to H if H is a power of two, from Press et al.,
    "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation" (2022), section 3. For other numbers of heads the authors' code,
    which trained models follow, takes the slopes of the next smaller power of two P,
    followed by the first, third, fifth ... slope of 2P.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    >>> positions.alibi_slopes(6).round(4)
    array([0.25  , 0.0625, 0.0156, 0.0039, 0.5   , 0.125 ], dtype=float32)
    """
    num_heads = _checks.size(num_heads, "num_heads")
    _checks.memory("num_heads", np.float64, (num_heads,))
    power = 1 << max(0, num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2.0 ** (-4 * h / power) for h in range(1, 2 * (num_heads - power), 2)]
    return _dtypes.rounded(np.array(slopes[:num_heads]), _dtypes.floating(dtype))


@_keywords.answering
def alibi_bias(
    num_heads: int,
    num_queries: int,
    num_keys: int,
    *,
    q_offset: ArrayLike | None = None,
    dtype: DTypeLike = np.float32,
) -> Array:
    r"""Return the biases of attention with linear biases (ALiBi).

    Parameters
    ----------
    num_heads, num_queries, num_keys : int
        `H`, `Lq`, `Lk`.
    q_offset : int or array_like of int, shape (...), optional
        The position of query 0, as in `attention`; by default ``Lk - Lq``.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.

    Returns
    -------
    ndarray, shape (H, Lq, Lk), or (..., H, Lq, Lk) where `q_offset` is an array
        For the argument `bias` of `attention`. Computed in float64 and rounded once.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the result.

    See Also
    --------
    alibi_slopes : the slopes, and where they come from.

    Notes
    -----
    The bias of the query at position p and key j in head h is

    .. math:: b_{hpj} = -m_h |p - j|

    It masks nothing. With ``causal=True`` in `attention` only keys with j <= p count,
    and it is the bias of the paper. Otherwise keys after the query count by their
    distance too, as in FlashAttention and in encoders. Code that leaves out p
    (:math:`m_h j`) gives the same weights with a causal mask, because a softmax does
    not change when all scores of a row move, but different weights without one.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.alibi_bias(2, 2, 4)[0]
    array([[-0.125 , -0.0625,  0.    , -0.0625],
           [-0.1875, -0.125 , -0.0625,  0.    ]], dtype=float32)
    """
    slopes = alibi_slopes(num_heads, np.float64)
    dtype = _dtypes.floating(dtype)
    _check_size(dtype, num_queries, num_keys, q_offset, len(slopes))
    positions = query_positions(
        num_queries, num_keys, q_offset=q_offset
    )  # (..., 1, Lq)
    nearness = -np.abs(positions[..., np.newaxis] - np.arange(num_keys))
    nearness = nearness.astype(np.float64)  # (..., 1, Lq, Lk)
    lead = nearness.shape[:-3]
    bias = np.empty((*lead, len(slopes), num_queries, num_keys), dtype)
    for h, slope in enumerate(slopes):
        head = _dtypes.rounded(slope * nearness, dtype)
        bias[..., h, :, :] = head.reshape(*lead, num_queries, num_keys)
    return bias


def relative_buckets(
    num_queries: int,
    num_keys: int,
    *,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
    q_offset: ArrayLike | None = None,
) -> NDArray[np.int64]:
    r"""Return T5's buckets for the distances of queries and keys.

    Parameters
    ----------
    num_queries, num_keys : int
        `Lq` and `Lk`.
    num_buckets : int, optional
        At least 1; with `bidirectional` an even number.
    max_distance : int, optional
        From this distance on everything is in the last bucket. It must exceed the
        number of distances with their own bucket.
    bidirectional : bool, optional
        True, for encoders: keys after the query use the second half of the buckets.
        False, for decoders: they are all in bucket 0, that of the query's own position.
    q_offset : int or array_like of int, shape (...), optional
        The position of query 0, as in `attention`; by default ``Lk - Lq``.

    Returns
    -------
    ndarray of int64, shape (Lq, Lk), or (..., 1, Lq, Lk) where `q_offset` is an array
        0 to ``num_buckets - 1``.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer, or out of its range.
    MemoryError
        If memory cannot hold the result.

    See Also
    --------
    relative_bias : the biases of the buckets.

    Notes
    -----
    Of n buckets (half of `num_buckets` with `bidirectional`) the first :math:`e =
    \lfloor n/2 \rfloor` hold one distance each, and a distance d of at least e is in
    bucket

    .. math::

        \min\left(n - 1, \; e + \left\lfloor (n - e)
        \frac{\log(d / e)}{\log(max\_distance / e)} \right\rfloor\right)

    from Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
    Text-to-Text Transformer" (2020), section 2.1, and its code. The limits of the
    buckets are computed in integers, so that no rounding of logarithms moves one.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.relative_buckets(3, 5, num_buckets=8, max_distance=4)
    array([[2, 1, 0, 5, 6],
           [3, 2, 1, 0, 5],
           [3, 3, 2, 1, 0]])
    """
    _check_size(np.dtype(np.int64), num_queries, num_keys, q_offset)
    positions = query_positions(
        num_queries, num_keys, q_offset=q_offset
    )  # (..., 1, Lq)
    n_buckets = _checks.size(num_buckets, "num_buckets")
    bidirectional = _checks.flag(bidirectional, "bidirectional")
    if n_buckets == 0 or (bidirectional and n_buckets % 2):
        even = "an even number of at least 2" if bidirectional else "at least 1"
        raise ValueError(f"num_buckets: expected {even}, got {n_buckets}")
    if bidirectional:
        n_buckets //= 2
    n_exact = n_buckets // 2
    n_log = n_buckets - n_exact
    max_distance = _checks.size(max_distance, "max_distance")
    if max_distance <= n_exact:
        raise ValueError(
            f"max_distance: expected more than {n_exact}, the number of distances "
            f"with a bucket of their own, got {max_distance}"
        )
    # Bucket n_exact + k begins where d / n_exact = (max_distance / n_exact)^(k / n_log)
    starts = [
        bisect.bisect_left(
            range(max_distance),
            max_distance**k * n_exact ** (n_log - k),
            key=lambda distance: distance**n_log,
        )
        for k in range(1, n_log)
    ]
    relative = np.arange(num_keys) - positions[..., np.newaxis]  # (..., 1, Lq, Lk)
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    edges = [*range(1, n_exact + 1), *starts] if n_exact else starts
    buckets: NDArray[np.int64] = np.searchsorted(
        np.array(edges, np.int64), distance, side="right"
    ).astype(np.int64, copy=False)
    if bidirectional:
        buckets += n_buckets * (relative > 0)
    return buckets


def relative_bias(
    table: ArrayLike,
    num_queries: int,
    num_keys: int,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
    q_offset: ArrayLike | None = None,
) -> Array:
    """Return T5's relative position biases.

    Parameters
    ----------
    table : array_like of float, shape (num_buckets, H)
        A learned number for each bucket and head.
    num_queries, num_keys : int
        `Lq` and `Lk`.
    max_distance, bidirectional, q_offset
        As in `relative_buckets`.

    Returns
    -------
    ndarray, shape (H, Lq, Lk), or (..., H, Lq, Lk) where `q_offset` is an array
        For the argument `bias` of `attention`, in table's dtype (float64 for
        integers). T5 itself does not scale its scores: ``scale=1``.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, dtype or shape, or is out of its range.
    MemoryError
        If memory cannot hold the result.

    See Also
    --------
    relative_buckets : the buckets, and where they come from.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> from attnpy import positions
    >>> rng = np.random.default_rng(0)
    >>> table = rng.standard_normal((32, 8))
    >>> bias = positions.relative_bias(table, 10, 10)
    >>> bias.shape
    (8, 10, 10)
    >>> query, key, value = rng.standard_normal((3, 8, 10, 64))
    >>> output = attnpy.attention(query, key, value, bias=bias, scale=1)
    """
    table = _checks.array(table, "table")
    if table.ndim != 2:
        raise ValueError(f"table: expected (num_buckets, H), got {table.shape}")
    _check_size(table.dtype, num_queries, num_keys, q_offset, table.shape[1])
    table = table.astype(_dtypes.operand(table, "table"), copy=False)
    buckets = relative_buckets(
        num_queries,
        num_keys,
        num_buckets=len(table),
        max_distance=max_distance,
        bidirectional=bidirectional,
        q_offset=q_offset,
    )
    if buckets.ndim > 2:
        buckets = buckets[..., 0, :, :]
    bias = np.take(table.T, buckets, axis=1)  # (H, ..., Lq, Lk)
    return np.moveaxis(bias, 0, -3)


def by_distance(
    bias_of: Callable[..., Array],
    num_queries: int,
    num_keys: int,
    q_offset: ArrayLike = 0,
) -> Array:
    """Return what `bias_of` would, with all rows in one line of distances.

    It is `alibi_bias` or `relative_bias` but for the numbers of queries and keys. The
    result (..., H, Lq, Lk) is a view of (..., H, Lq + Lk - 1) numbers.
    """
    before = max(num_queries, 1) - 1  # of the row of the last query
    line = bias_of(1, before + num_keys, q_offset=np.add(q_offset, before))[..., 0, :]
    rows = np.lib.stride_tricks.sliding_window_view(line, num_keys, axis=-1)
    return rows[..., ::-1, :][..., :num_queries, :]


def _check_size(
    dtype: np.dtype[Any],
    num_queries: int,
    num_keys: int,
    q_offset: ArrayLike | None,
    n_heads: int = 1,
) -> None:
    """Require memory for a matrix (Lq, Lk) of each head and sequence."""
    _checks.memory(
        "num_queries, num_keys",
        dtype,
        (
            1 if q_offset is None else _checks.integers(q_offset, "q_offset").size,
            n_heads,
            _checks.size(num_queries, "num_queries"),
            _checks.size(num_keys, "num_keys"),
        ),
    )
