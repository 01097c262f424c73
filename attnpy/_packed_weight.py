"""Matrices in the order in which a product reads them, for models that are only run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnpy._typing import Array

# Of the core: ATTN_PANEL_COLUMNS and ATTN_BLOCK in csrc/core/limits.h.
PANEL_COLUMNS, BLOCK = 48, 128
CACHE_LINE = 64  # bytes


class PackedWeight:
    """A matrix of a layer in panels of columns, each in the order in which it is read.

    A product with it reads memory in one sweep, and has the same bits as with the
    matrix. It cannot be written to; ``numpy.asarray`` gives the matrix, a copy.

    Parameters
    ----------
    weight : ndarray, shape (K, M)
        float64, float32, float16 or bfloat16. It is copied.

    Attributes
    ----------
    shape : tuple of int
        ``(K, M)``.
    dtype : dtype
        That of the matrix.

    Raises
    ------
    TypeError
        If it is no matrix, or of another dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.layers import MultiHeadAttention
    >>> mha = MultiHeadAttention(6, 2)
    >>> before = mha.W_q
    >>> mha.pack()
    >>> mha.W_q
    PackedWeight(shape=(6, 6), dtype=float32)
    >>> bool((np.asarray(mha.W_q) == before).all())
    True
    """

    __slots__ = ("_parts",)
    _parts: tuple[Array, int, int]  # the panels, K, M: as the core takes them

    ndim = 2

    def __init__(self, weight: Array) -> None:
        weight = weight.astype(packable(weight, "weight"), copy=False)
        n_rows, n_columns = weight.shape
        panels = _in_lines(_size(n_rows, n_columns, weight.dtype), weight.dtype)
        _as_integers(panels)[...] = 0
        for rows, columns, place in _walk(panels, n_rows, n_columns):
            block = _as_integers(weight)[rows, columns]
            place[...] = block.reshape(len(block), len(place), -1).transpose(1, 0, 2)
        panels.flags.writeable = False
        object.__setattr__(self, "_parts", (panels, n_rows, n_columns))

    @property
    def shape(self) -> tuple[int, int]:
        return self._parts[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of memory, with those that fill up the last panel."""
        return self._parts[0].nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(
                "copy: expected True or None for packed weights, got False"
            )
        matrix = self.matrix()
        return matrix if dtype is None else matrix.astype(dtype)

    def matrix(self) -> Array:
        """Return the matrix, a copy that cannot be written to."""
        panels, n_rows, n_columns = self._parts
        matrix: Array = np.empty((n_rows, n_columns), self.dtype)
        for rows, columns, place in _walk(panels, n_rows, n_columns):
            block = place.transpose(1, 0, 2)
            _as_integers(matrix)[rows, columns] = block.reshape(len(block), -1)
        matrix.flags.writeable = False
        return matrix

    def __len__(self) -> int:
        return self._parts[1]

    def __repr__(self) -> str:
        return f"PackedWeight(shape={self.shape}, dtype={self.dtype})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"PackedWeight: expected no change, got {name!r}")

    def __getstate__(self) -> tuple[Array, int, int]:
        return self._parts

    def __setstate__(self, state: tuple[Array, int, int]) -> None:
        state[0].flags.writeable = False
        object.__setattr__(self, "_parts", state)


def packable(weight: Array, name: str) -> np.dtype[Any]:
    """Return the dtype in which a matrix is packed, or say why it cannot be."""
    if weight.ndim != 2 or weight.dtype.name not in _dtypes.FLOATING:
        raise TypeError(
            f"{name}: expected a floating matrix to pack, got shape {weight.shape} "
            f"and dtype {weight.dtype}"
        )
    return weight.dtype.newbyteorder("=")


def _size(n_rows: int, n_columns: int, dtype: np.dtype[Any]) -> int:
    """Return how many numbers there are, with those that fill up."""
    terms = 2 if dtype.name == "bfloat16" else 1  # of a pair, which some CPUs multiply
    return (
        -(-n_rows // terms) * terms * (-(-n_columns // PANEL_COLUMNS) * PANEL_COLUMNS)
    )


def _in_lines(size: int, dtype: np.dtype[Any]) -> Array:
    """Return memory that begins with a cache line: a vector of a panel is one, too."""
    # Not numpy.zeros, whose memory is not in huge pages.
    memory: Array = np.empty(size * dtype.itemsize + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + size * dtype.itemsize].view(dtype)


def _walk(
    panels: Array, n_rows: int, n_columns: int
) -> Iterator[tuple[slice, slice, Array]]:
    """Yield rows and columns of the matrix, and their place, (panels, rows, width)."""
    at, numbers = 0, _as_integers(panels)
    full = n_columns // PANEL_COLUMNS * PANEL_COLUMNS
    parts = [
        part
        for part in (slice(0, full), slice(full, n_columns))
        if part.start < part.stop
    ]
    for row in range(0, n_rows, BLOCK):
        last = min(row + BLOCK, n_rows)
        for columns in parts:
            width = columns.stop - columns.start
            size = _size(last - row, width, panels.dtype)
            place = numbers[at : at + size]
            at += size
            n_panels, width = -(-width // PANEL_COLUMNS), min(width, PANEL_COLUMNS)
            if numbers.dtype == panels.dtype:
                place = place.reshape(n_panels, -1, PANEL_COLUMNS)
                yield slice(row, last), columns, place[:, :, :width]
                continue
            pairs = place.reshape(n_panels, -1, PANEL_COLUMNS, 2)  # of rows
            for term in range(min(2, last - row)):
                rows = slice(row + term, last, 2)
                n = len(range(row + term, last, 2))
                yield rows, columns, pairs[:, :n, :width, term]


def _as_integers(array: Array) -> Array:
    """View bfloat16 as what NumPy copies fast."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
