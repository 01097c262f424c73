"""Embeddings of distances that meet queries and keys: DeBERTa's positions."""

from __future__ import annotations

import bisect
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array


@_keywords.answering
class Disentangled:
    r"""Embeddings of distances, whose products with queries and keys are scores.

    Parameters
    ----------
    table : array_like of float, shape (2 * S, E)
        An embedding for each bucket of distances. It is copied.
    max_distance : int, optional
        Distances above ``S // 2`` share buckets, which grow with the distance, up to
        this one, as in DeBERTa-v2 and v3. By default each distance up to `S` has its
        own.
    c2p, p2c : bool, optional
        Which products to add: of queries with distances (content to position), and of
        keys with distances (position to content).

    Attributes
    ----------
    table : ndarray, shape (2 * S, E)
        Read-only.
    max_distance, c2p, p2c
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, dtype or shape, or is out of its range.

    See Also
    --------
    attnpy.MultiHeadAttention : takes one as `relative` of a call.

    Notes
    -----
    With the projections :math:`P^k` and :math:`P^q` of the table the scores of a head
    are

    .. math::

        s_{ij} = \frac{q_i \cdot k_j + q_i \cdot P^k_{b(i - j)} +
        k_j \cdot P^q_{b(i - j)}}{\sqrt{D n}}

    where n is the number of products, here 3. From He et al., "DeBERTa:
    Decoding-enhanced BERT with Disentangled Attention" (2021), equation 4, and its
    code. The row of a distance d is

    .. math:: b(d) = \min(\max(d, -S), S - 1) + S

    With `max_distance` M a distance above :math:`m = \lfloor S / 2 \rfloor`, on either
    side, first becomes

    .. math:: m + \left\lceil (m - 1)
        \frac{\log(|d| / m)}{\log((M - 1) / m)} \right\rceil

    The limits of these buckets are computed in integers, so that no rounding of
    logarithms moves one.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.layers import MultiHeadAttention
    >>> from attnpy.positions import Disentangled
    >>> rng = np.random.default_rng(0)
    >>> mha = MultiHeadAttention(6, 2, rng=rng)
    >>> relative = Disentangled(rng.standard_normal((8, 6), dtype=np.float32))
    >>> mha(rng.standard_normal((5, 6), dtype=np.float32), relative=relative).shape
    (5, 6)
    >>> relative.rows([-9, -4, 0, 3, 9])
    array([0, 0, 4, 7, 7])
    """

    table: Array
    max_distance: int | None
    c2p: bool
    p2c: bool

    def __init__(
        self,
        table: ArrayLike,
        *,
        max_distance: int | None = None,
        c2p: bool = True,
        p2c: bool = True,
    ) -> None:
        rows = _checks.array(table, "table")
        if rows.ndim != 2 or len(rows) == 0 or len(rows) % 2:
            raise ValueError(
                "table: expected (2 * S, E), an even number of rows, got shape "
                f"{rows.shape}"
            )
        half = len(rows) // 4
        if max_distance is not None:
            max_distance = _checks.size(max_distance, "max_distance")
            if half < 2 or len(rows) % 4 or max_distance - 1 <= half:
                raise ValueError(
                    "max_distance: expected a table of 8, 12, 16 ... rows, and more "
                    f"than {half + 1} for one of {len(rows)}, got {max_distance}"
                )
        self.c2p, self.p2c = _checks.flag(c2p, "c2p"), _checks.flag(p2c, "p2c")
        if not (self.c2p or self.p2c):
            raise ValueError("c2p: expected True without p2c, got False")
        self.max_distance = max_distance
        self.table = rows.astype(_dtypes.operand(rows, "table"))
        self.table.flags.writeable = False

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "max_distance": self.max_distance,
            "c2p": self.c2p,
            "p2c": self.p2c,
        }

    __repr__ = _repr.shows(_shown)

    def rows(self, distances: ArrayLike) -> NDArray[np.int64]:
        """Return the rows of the table for distances of queries and keys.

        Parameters
        ----------
        distances : array_like of int, shape (...)
            The position of the query minus that of the key.

        Returns
        -------
        ndarray of int64, shape (...)
            0 to ``2 * S - 1``.

        Raises
        ------
        TypeError, ValueError
            If a distance is no integer, or too large.
        """
        largest = _checks.LARGEST_POSITION
        distance = _checks.integers(distances, "distances", -largest, largest)
        span = len(self.table) // 2
        bucket = distance
        if self.max_distance is not None:
            edges, far = _edges(span, self.max_distance), np.abs(distance)
            shared = edges[0] + np.searchsorted(edges, far, side="left")
            bucket = np.where(far <= edges[0], distance, np.sign(distance) * shared)
        rows: NDArray[np.int64] = np.clip(bucket + span, 0, 2 * span - 1)
        return rows


@functools.lru_cache
def _edges(span: int, max_distance: int) -> NDArray[np.int64]:
    """Return the largest distance of each bucket from ``span // 2`` on."""
    half, last = span // 2, max_distance - 1
    n = half - 1  # how many buckets there are from half to last
    edges = [half]
    # d is in bucket half + k at most where (d / half)^n <= (last / half)^k
    for k in range(1, n + 1):
        limit = last**k * half ** (n - k)
        found = bisect.bisect_right(range(last + 1), limit, lo=half, key=lambda d: d**n)
        edges.append(found - 1)
    return np.array(edges, np.int64)
