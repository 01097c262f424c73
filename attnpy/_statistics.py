"""Statistics of attention's weights, without the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attnpy import _attnpy, _checks, _keywords, _repr
from attnpy._options import PASSED_ON, SCALES, Options, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from attnpy._typing import Array, StatisticsOptions

STATISTICS = ("received", "entropy", "distance", "top")
DEFAULT_TOP_K = 8


class Statistics(NamedTuple):
    """The result of `statistics`; None for what was not wanted."""

    received: Array | None
    entropy: Array | None
    distance: Array | None
    top_weights: Array | None
    top_keys: Array | None
    output: Array | None

    def __repr__(self) -> str:
        """Return the dtype and shape of each array."""
        return _repr.of_fields(self)


def statistics(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None = None,
    *,
    wanted: str | Iterable[str] = STATISTICS,
    top_k: int | None = None,
    **options: Unpack[StatisticsOptions],
) -> Statistics:
    r"""Compute statistics of attention's weights, without ever storing all of them.

    They fit into memory where the weights of a long sequence do not: how much each key
    receives, how widely and how far each query looks, and at which keys most.

    Parameters
    ----------
    query : array_like, shape (..., H, Lq, D)
        As for `attention`; with a 1-D query ``(D,)`` the axis `Lq` is missing from
        every result.
    key : array_like, shape (..., Hk, Lk, D)
        As for `attention`.
    value : array_like, shape (..., Hk, Lk, Dv), optional
        If it is given, return the output of attention as well, with the same bits as
        from `attention`.
    wanted : str or iterable of str, optional
        Some of "received", "entropy", "distance" and "top"; by default all.
    top_k : int, optional
        How many keys of each query "top" has, at least 1; by default 8.
    mask, bias, causal, window, q_offset, kv_lengths : optional
    seq_offsets, page_table : optional
        As for `attention`. They also determine the positions from which distances are
        measured, even without `causal` and `window`.
    key_scale, value_scale : array_like of float, optional
        As for `attention`.
    scale, softcap, sinks, num_threads : optional
        As for `attention`. The share of a sink belongs to no key: the weights of a
        query then sum to less than 1, and are not normalized again.

    Returns
    -------
    Statistics
        A named tuple of arrays in float32 (float64 if the weights would be), or None
        for what is not wanted:

        received : ndarray, shape (..., H, Lk)
            The sum of the weights that all queries give to each key.
        entropy : ndarray, shape (..., H, Lq)
            Of each query's weights, in nats: 0 for one key, log(n) for n alike.
        distance : ndarray, shape (..., H, Lq)
            The mean distance of a query's position from the keys, weighted by its
            attention to them.
        top_weights : ndarray, shape (..., H, Lq, top_k)
            The largest weights of each query, in descending order; filled up with 0 if
            fewer are above 0.
        top_keys : ndarray of int64, shape (..., H, Lq, top_k)
            Their keys; of equal weights the first key comes first. -1 where there is
            none.
        output : ndarray, shape (..., H, Lq, Dv)
            With `value`.

        With `seq_offsets`, received is packed like the keys, ``(H, T)``, and everything
        else like the queries; `top_keys` count from the beginning of their sequence.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If shapes do not fit together, a number is out of its range, or `wanted` has
        another name.
    MemoryError
        If the results or the scratch memory cannot be allocated.

    See Also
    --------
    attention : with ``return_weights=True``, has the weights themselves.
    attnpy.plot.statistics : pictures of these.

    Notes
    -----
    For the weights :math:`w_{ij}` of a head and the position :math:`p_i` of query i,

    .. math::

        received_j = \sum_i w_{ij}, \quad
        entropy_i = -\sum_j w_{ij} \ln w_{ij}, \quad
        distance_i = \sum_j w_{ij} \, |p_i - j|

    the latter two as in Vig and Belinkov, "Analyzing the Structure of Attention in a
    Transformer Language Model" (2019), sections 4.3.1 and 4.3.2. A query that may see
    nothing gives nothing to any key and has entropy and distance 0. A query with a NaN
    among its weights has NaN in all its statistics, and in what those keys receive.

    Memory: the results, and up to 16 MiB of sums for them, or two rows of `Lk` numbers
    for each thread. Time: about that of two calls of `attention`.

    The weights are those of `attention` before it rounds them to 16 bits, and the order
    of the sums is fixed. So the results have the same bits for every batch, layout,
    number of threads and instruction set, except for bfloat16 as explained there. Sums
    over keys are taken in blocks of 128 that begin at 0, 128 and so on: within a block
    from 0 in ascending order, every product and sum rounded; the blocks' sums are added
    in ascending order in float64 and rounded once. Sums over queries are taken in
    blocks of 64, filled up with zeros: the second half of a block is added to the
    first, repeatedly, until one row is left; the blocks' sums are added in the same
    way. In the entropy, terms of weights below the smallest normal number count as 0.
    In float32, the distance of a query from a block's first key is rounded if it
    exceeds 2**24.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 4, 1000, 64), dtype=np.float32)
    >>> found = attnpy.statistics(query, key, causal=True, top_k=3)
    >>> found.received.shape, found.entropy.shape, found.top_keys.shape
    ((4, 1000), (4, 1000), (4, 1000, 3))
    >>> bool(np.isclose(found.received.sum(), 4 * 1000))  # each query gives 1
    True
    >>> found.top_keys[0, :2]  # the first query sees one key, the second two
    array([[ 0, -1, -1],
           [ 1,  0, -1]])
    """
    names = (
        [wanted] if isinstance(wanted, str) else _checks.items(wanted, "wanted", "str")
    )
    for name in names:
        _checks.one_of(name, "wanted", STATISTICS)
    if "top" in names:
        n_top = DEFAULT_TOP_K if top_k is None else _checks.count(top_k, "top_k")
    elif top_k is not None:
        raise ValueError(f"top_k: expected 'top' in wanted, got {tuple(names)}")
    else:
        n_top = 0
    _keywords.refuse(options, PASSED_ON | SCALES | {"page_table"}, "statistics()")
    if value is None and options.get("value_scale") is not None:
        raise ValueError("value_scale: expected None without value, got an array")
    keys = _checks.array(key, "key")
    values = keys[..., :0] if keys.ndim > 0 else keys  # no columns
    given = values if value is None else value
    received, entropy, distance, top_weights, top_keys, output = _attnpy.statistics(
        query,
        keys,
        given,
        Options(**options),
        Wanted("received" in names, "entropy" in names, "distance" in names, n_top),
    )
    if value is None:
        output = None
    return Statistics(received, entropy, distance, top_weights, top_keys, output)
