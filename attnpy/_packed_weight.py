"""Matrices in the order in which products read them, for inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _attnpy, _checks, _dtypes, _memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array

# Of the core: ATTN_PANEL_COLUMNS and ATTN_BLOCK in csrc/core/limits.h.
PANEL_COLUMNS, BLOCK = 48, 128
LARGEST = 2**40  # size, ATTN_MAX_DIM
LOOKED_UP = 64  # rows of a table at a time, for the places of their numbers take memory


class PackedWeight:
    """A matrix of a layer in panels of columns, each in the order in which it is read.

    A product with it reads memory in one pass, and has the same bits as with the
    matrix. It is read-only; ``numpy.asarray`` returns the matrix as a copy.

    Parameters
    ----------
    weight : ndarray, shape (K, M)
        float64, float32, float16 or bfloat16. It is copied.

    Attributes
    ----------
    shape : tuple of int
        ``(K, M)``.
    dtype : dtype
        The dtype of the matrix.

    Raises
    ------
    TypeError
        If it is not a matrix, or has another dtype.

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

    __slots__ = ("_parts", "_prepared")
    _parts: tuple[Array, int, int]  # the panels, K, M: as the core takes them
    _prepared: object  # what the C module has of these parts

    ndim = 2

    def __init__(self, weight: Array) -> None:
        weight = weight.astype(packable(weight, "weight"), copy=False)
        n_rows, n_columns = weight.shape
        panels = _panels(n_rows, n_columns, weight.dtype)
        _write(panels, (n_rows, n_columns), weight)
        self.__setstate__((panels, n_rows, n_columns))

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
        """Return the matrix, a read-only copy."""
        panels, n_rows, n_columns = self._parts
        matrix: Array = np.empty((n_rows, n_columns), self.dtype)
        for rows, columns, place in _walk(panels, (n_rows, n_columns)):
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
        panels, n_rows, n_columns = _checked_parts(state)
        panels.flags.writeable = False
        parts = panels, n_rows, n_columns
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_prepared", _attnpy.prepare(parts))


def row_numbers(rows: ArrayLike | slice, n_rows: int) -> NDArray[np.int64]:
    """Return which rows of a table these are, 0 to n_rows - 1: integers, or a slice."""
    if isinstance(rows, tuple):
        raise TypeError("rows: expected integers or a slice of rows, got a tuple")
    if isinstance(rows, slice):
        rows = np.arange(*rows.indices(n_rows))
    try:
        index = _checks.integers(rows, "rows", -n_rows, n_rows - 1)
    except ValueError as error:
        raise IndexError(str(error)) from None
    return index % max(n_rows, 1)


class PackedTable:
    """The rows of a table, (V, E), which is the transpose of a packed matrix.

    A model looks up tokens in it, and multiplies vectors by its transpose.

    Parameters
    ----------
    table : ndarray, shape (V, E)
        As `PackedWeight` takes. It is copied.

    Attributes
    ----------
    T : PackedWeight
        Of shape ``(E, V)``.
    shape : tuple of int
        ``(V, E)``.
    dtype : dtype
        That of the table.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder
    >>> model = CausalDecoder(2, 16, 4, 64, vocab_size=100, max_length=32)
    >>> before = model.token_embedding
    >>> model.pack()
    >>> model.token_embedding
    PackedTable(shape=(100, 16), dtype=float32)
    >>> bool((model.token_embedding[[5, 17]] == before[[5, 17]]).all())
    True
    """

    __slots__ = ("T", "_places")
    T: PackedWeight
    _places: tuple[NDArray[np.int64], NDArray[np.int64]]  # of a row's numbers, below

    ndim = 2

    def __init__(self, table: Array) -> None:
        self.__setstate__(PackedWeight(table.T))

    @property
    def shape(self) -> tuple[int, int]:
        return self.T.shape[::-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.T.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of memory, with those that fill up the last panel."""
        return self.T.nbytes

    def __getitem__(self, rows: ArrayLike | slice) -> Array:
        """Return rows by integers or a slice, (..., E), as a copy."""
        index = row_numbers(rows, len(self))
        found: Array = np.empty((*index.shape, self.shape[1]), self.dtype)
        to = _as_integers(found).reshape(index.size, self.shape[1])
        for start in range(0, index.size, LOOKED_UP):
            some = slice(start, start + LOOKED_UP)
            to[some] = self._taken(index.reshape(-1, 1)[some])
        return found

    def _taken(self, rows: NDArray[np.int64]) -> Array:
        """Return rows by their numbers (n, 1)."""
        panel, column = np.divmod(rows, PANEL_COLUMNS)
        first, per_panel = self._places
        at = first + panel * per_panel + column * _terms(self.dtype)
        taken: Array = _as_integers(self.T._parts[0]).take(at)
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.T.__array__(dtype, copy).T

    def matrix(self) -> Array:
        """Return the table, a read-only copy."""
        return self.T.matrix().T

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"PackedTable(shape={self.shape}, dtype={self.dtype})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"PackedTable: expected no change, got {name!r}")

    def __getstate__(self) -> PackedWeight:
        return self.T

    def __setstate__(self, state: PackedWeight) -> None:
        if not isinstance(state, PackedWeight) or not hasattr(state, "_parts"):
            raise TypeError(
                f"PackedTable: expected a PackedWeight, got {type(state).__name__}"
            )
        _checks.memory("PackedTable", np.int64, state.shape[:1])
        object.__setattr__(self, "T", state)
        object.__setattr__(self, "_places", _places(*state.shape, state.dtype))


class PanelWriter:
    """A parameter that is packed while its numbers (M, K) arrive, some rows at a time.

    They are columns of the packed matrix (K, M): rows of a table, or of a transposed
    matrix.
    """

    def __init__(self, parameter: Array, is_table: bool) -> None:
        self.shape, self.dtype = parameter.shape, parameter.dtype
        self.nbytes, self._is_table = parameter.nbytes, is_table
        n_columns, n_rows = self.shape if is_table else self.shape[::-1]
        self.size = n_columns, n_rows
        self._panels = _panels(n_rows, n_columns, self.dtype)

    def write(self, first: int, columns: Array) -> None:
        """Write numbers (n, K) from `first` on, a multiple of PANEL_COLUMNS."""
        _write(self._panels, self.size[::-1], columns.T, first)

    def packed(self) -> PackedWeight | PackedTable:
        """Return the result; nothing may be written after that."""
        weight = object.__new__(PackedWeight)
        weight.__setstate__((self._panels, *self.size[::-1]))
        if not self._is_table:
            return weight
        table = object.__new__(PackedTable)
        table.__setstate__(weight)
        return table


def _places(
    n_rows: int, n_columns: int, dtype: np.dtype[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of the first column's rows, and the distance of panels."""
    terms, row = _terms(dtype), np.arange(n_rows)
    n_panels = -(-n_columns // PANEL_COLUMNS)
    block, within = np.divmod(row, BLOCK)
    height = np.minimum(n_rows - block * BLOCK, BLOCK)
    per_panel = -(-height // terms) * terms * PANEL_COLUMNS
    first = block * (BLOCK * PANEL_COLUMNS * n_panels)
    first += within // terms * (terms * PANEL_COLUMNS) + within % terms
    return first, per_panel


def packable(weight: Array, name: str) -> np.dtype[Any]:
    """Return the dtype in which a matrix is packed, or say why it cannot be."""
    if weight.ndim != 2 or weight.dtype.name not in _dtypes.FLOATING:
        raise TypeError(
            f"{name}: expected a floating matrix to pack, got shape {weight.shape} "
            f"and dtype {weight.dtype}"
        )
    return weight.dtype.newbyteorder("=")


def _checked_parts(state: Any) -> tuple[Array, int, int]:
    """Return panels, K and M for the core, after checks."""
    if not isinstance(state, tuple) or len(state) != 3:
        raise TypeError(
            f"PackedWeight: expected (panels, K, M), got {type(state).__name__}"
        )
    panels, *sizes = state
    with _checks.renamed(K="PackedWeight: K", M="PackedWeight: M"):
        n_rows, n_columns = map(_checks.size, sizes, "KM")
    dtype = getattr(panels, "dtype", None)
    if not isinstance(panels, np.ndarray) or panels.dtype.name not in _dtypes.FLOATING:
        raise TypeError(
            "PackedWeight: expected panels of float64, float32, float16 or bfloat16, "
            f"got {type(panels).__name__ if dtype is None else dtype}"
        )
    expected = (_size(n_rows, n_columns, panels.dtype),)
    if panels.shape != expected or max(n_rows, n_columns) > LARGEST:
        raise ValueError(
            f"PackedWeight: expected panels of shape {expected} for K = {n_rows} and "
            f"M = {n_columns}, each up to {LARGEST}, got {panels.shape}"
        )
    native = panels.dtype.newbyteorder("=")
    return np.require(panels, native, ["C", "A"]), n_rows, n_columns


def _size(n_rows: int, n_columns: int, dtype: np.dtype[Any]) -> int:
    """Return how many numbers there are, including padding."""
    n_panels, terms = -(-n_columns // PANEL_COLUMNS), _terms(dtype)
    return -(-n_rows // terms) * terms * (n_panels * PANEL_COLUMNS)


def _terms(dtype: np.dtype[Any]) -> int:
    """Return how many rows are interleaved: pairs, if CPUs multiply pairs."""
    return 2 if _dtypes.is_bfloat16(dtype) else 1


def _panels(n_rows: int, n_columns: int, dtype: np.dtype[Any]) -> Array:
    """Return zeros, in memory that begins with a cache line, as a panel's vectors."""
    n_bytes = _size(n_rows, n_columns, dtype) * dtype.itemsize
    panels: Array = _memory.allocate(n_bytes)
    panels[...] = 0
    return panels.view(dtype)


def _write(
    panels: Array, shape: tuple[int, int], columns: Array, first: int = 0
) -> None:
    """Copy columns of a matrix into its panels, from number `first` on."""
    stop = first + columns.shape[1]
    for rows, span, place in _walk(panels, shape, first, stop):
        block = _as_integers(columns)[rows, span.start - first : span.stop - first]
        place[...] = block.reshape(len(block), len(place), -1).transpose(1, 0, 2)


def _walk(
    panels: Array, shape: tuple[int, int], first: int = 0, stop: int | None = None
) -> Iterator[tuple[slice, slice, Array]]:
    """Yield rows and columns of a matrix, and their place, (panels, rows, width).

    These are columns `first` to `stop`, by default all; the first one is a panel's.
    """
    n_rows, n_columns = shape
    numbers, terms = _as_integers(panels), _terms(panels.dtype)
    n_panels = -(-n_columns // PANEL_COLUMNS)
    stop = n_columns if stop is None else stop
    full = stop // PANEL_COLUMNS * PANEL_COLUMNS
    spans = [
        span
        for span in (slice(first, full), slice(max(first, full), stop))
        if span.start < span.stop
    ]
    for row in range(0, n_rows, BLOCK):
        last = min(row + BLOCK, n_rows)
        height = -(-(last - row) // terms) * terms
        block = numbers[row * n_panels * PANEL_COLUMNS :]
        block = block[: height * n_panels * PANEL_COLUMNS]
        block = block.reshape(n_panels, height // terms, PANEL_COLUMNS, terms)
        for span in spans:
            width = min(span.stop - span.start, PANEL_COLUMNS)
            some = slice(span.start // PANEL_COLUMNS, -(-span.stop // PANEL_COLUMNS))
            for term in range(min(terms, last - row)):
                rows = slice(row + term, last, terms)
                n = len(range(row + term, last, terms))
                yield rows, span, block[some, :n, :width, term]


def _as_integers(array: Array) -> Array:
    """View bfloat16 as integers, which NumPy copies fast."""
    return array.view(np.uint16) if _dtypes.is_bfloat16(array.dtype) else array
