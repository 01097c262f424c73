"""Positions of tokens, and encodings of them that are added to the embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array


def query_positions(
    num_queries: int, num_keys: int, *, q_offset: ArrayLike | None = None
) -> NDArray[np.int64]:
    """Return the absolute positions of the queries, as `attention` counts them.

    Parameters
    ----------
    num_queries : int
        `Lq`.
    num_keys : int
        `Lk`: key j is at position j.
    q_offset : int or array_like of int, shape (...), optional
        The position of query 0, -2**53 to 2**53. By default ``Lk - Lq``: the last query
        is at the position of the last key.

    Returns
    -------
    ndarray of int64, shape (Lq,) or (..., 1, Lq)
        ``q_offset + i`` for query i. If `q_offset` is an array, there is an axis for
        the heads.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer, or out of its range.
    MemoryError
        If memory cannot hold the result.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.query_positions(2, 5)
    array([3, 4])
    >>> positions.query_positions(2, 5, q_offset=[3, 0])[:, 0]
    array([[3, 4],
           [0, 1]])
    """
    num_queries = _checks.size(num_queries, "num_queries")
    num_keys = _checks.size(num_keys, "num_keys")
    if q_offset is None:
        q_offset = num_keys - num_queries
    first = _checks.integers(q_offset, "q_offset")
    _checks.memory("num_queries", np.int64, (first.size, num_queries))
    if first.ndim:
        first = first[..., np.newaxis, np.newaxis]
    return first + np.arange(num_queries)


@_keywords.answering
def sinusoidal(
    length: int,
    embed_dim: int,
    *,
    base: float = 10000.0,
    offset: int = 0,
    dtype: DTypeLike = np.float32,
) -> Array:
    r"""Return the sinusoidal encodings of consecutive positions.

    Parameters
    ----------
    length : int
        The number of positions, `L`.
    embed_dim : int
        `E`, the size of an encoding, the same as that of the embeddings. With an odd
        size the last column is a sine without its cosine.
    base : float, optional
        Wavelengths go from 2 pi to almost ``2 pi * base``.
    offset : int, optional
        The first position.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.

    Returns
    -------
    ndarray, shape (L, E)
        Computed in float64 and rounded once.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the result.

    Notes
    -----
    .. math::

        PE_{(pos, 2i)} = \sin(pos / base^{2i/E}), \quad
        PE_{(pos, 2i+1)} = \cos(pos / base^{2i/E})

    from Vaswani et al., "Attention Is All You Need" (2017), section 3.5, as in "Lecture
    10: Attention Mechanisms and Transformers" by Martins, Melo and Figueiredo. Some
    code puts all sines before all cosines; here they alternate, as in the formula.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.sinusoidal(3, 4).round(4)
    array([[ 0.    ,  1.    ,  0.    ,  1.    ],
           [ 0.8415,  0.5403,  0.01  ,  1.    ],
           [ 0.9093, -0.4161,  0.02  ,  0.9998]], dtype=float32)
    """
    length = _checks.size(length, "length")
    embed_dim = _checks.size(embed_dim, "embed_dim")
    first = _checks.integers(offset, "offset")
    if first.ndim:
        raise TypeError(f"offset: expected an integer, got {type(offset).__name__}")
    _checks.memory("length, embed_dim", np.float64, (length, embed_dim))
    positions = first + np.arange(length)
    halves = np.arange(0, embed_dim, 2) / max(1, embed_dim)
    angles = positions[:, np.newaxis] / _checks.above(base, "base", 0) ** halves
    encodings = np.empty((length, embed_dim))
    encodings[:, 0::2] = np.sin(angles)
    encodings[:, 1::2] = np.cos(angles[:, : embed_dim // 2])
    return _dtypes.rounded(encodings, _dtypes.floating(dtype))


@_keywords.answering
class Learned:
    """A table with one vector for each position, to be learned or loaded.

    Parameters
    ----------
    max_length : int
        The number of positions.
    embed_dim : int
        `E`, the size of a vector, the same as that of the embeddings.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Draws the table's initial values; by default ``numpy.random.default_rng()``,
        with different values in every run.

    Attributes
    ----------
    weight : ndarray, shape (max_length, E)
        Initially normal random numbers with standard deviation 0.02. Assign a trained
        table to it, of any length and size.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the table; nothing has been allocated then.

    Notes
    -----
    Learned positions are those of Gehring et al., "Convolutional Sequence to Sequence
    Learning" (2017); the deviation is that of BERT (Devlin et al., 2019) and GPT-2.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy import positions
    >>> learned = positions.Learned(512, 64, rng=np.random.default_rng(0))
    >>> learned(10).shape  # positions 0 to 9
    (10, 64)
    >>> bool((learned([3, 4]) == learned.weight[3:5]).all())
    True
    """

    weight: Array

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        max_length, embed_dim = self.weight.shape
        return {
            "max_length": max_length,
            "embed_dim": embed_dim,
            "dtype": self.weight.dtype,
            "parameters": _repr.Plain(f"{self.weight.size:_}"),
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        max_length: int,
        embed_dim: int,
        *,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        n_rows = _checks.size(max_length, "max_length")
        shape = n_rows, _checks.size(embed_dim, "embed_dim")
        _checks.memory("max_length, embed_dim", _dtypes.floating(dtype), shape)
        numbers = 0.02 * _checks.generator(rng).standard_normal(shape)
        self.weight = _dtypes.rounded(numbers, _dtypes.floating(dtype))

    def __call__(self, positions: ArrayLike) -> Array:
        """Return the rows of these positions.

        Parameters
        ----------
        positions : int or array_like of int, shape (...)
            An int is a length: the positions 0 to ``positions - 1``.

        Returns
        -------
        ndarray, shape (positions, E) or (..., E)
            A copy, in the dtype of `weight`.

        Raises
        ------
        TypeError
            If `positions` are not integers.
        ValueError
            If a position is negative or not in the table.
        MemoryError
            If memory cannot hold the result.
        """
        max_length, embed_dim = self.weight.shape
        shape = _checks.array(positions, "positions").shape
        _checks.memory("positions", self.weight.dtype, (*shape, embed_dim))
        if _checks.array(positions, "positions").ndim == 0:
            length = _checks.integers(positions, "positions", 0, max_length)
            positions = np.arange(int(length))
        return self.weight[_checks.integers(positions, "positions", 0, max_length - 1)]
