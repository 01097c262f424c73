"""Matrices of 4 to 8 bits, for models that are only run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attnpy import _attnpy, _checks, _dtypes, _keywords, _memory
from attnpy._packed_weight import LARGEST, PANEL_COLUMNS, row_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array

# Of the core, csrc/core/quantized.h: rows of a column that are next to each other; and,
# by the bits of a code, rows that lie together, and those of the longest group.
QUAD, UNITS = 4, {8: 8, 6: 16, 5: 32, 4: 8}
LEAST_GROUP, MOST_ROWS = 16, {8: 65536, 6: 128, 5: 128, 4: 128}
CHAIN = 128  # ATTN_BLOCK: longer groups are its multiples
ACTIVATIONS = ("float", "int8")
SCALES = ("float32", "float16", "uint8")  # where there is one level
N_VALUES = 16  # that codes of 4 bits stand for, ATTN_CODE_VALUES
MOST_EXPONENT = 254  # of scales that are powers of two; 255 is NaN
FACTORS = ("scale", "coarse_scale", "minimum", "coarse_minimum")

BLOCK_SIZE = 1 << 17  # numbers of a matrix that are quantised at a time


class Factors(NamedTuple):
    """Scales or minimums of a matrix, one for each group and column.

    Attributes
    ----------
    fine : ndarray, shape (groups, M)
        float32 or float16, or uint8, of powers of two; int8 where there are two levels.
    coarse : ndarray, shape (blocks of groups, M), or None
        float16: what `fine` is multiplied by.
    """

    fine: Array
    coarse: Array | None = None


class Parts(NamedTuple):
    """A matrix as the core takes it. All arrays are lines, in the order of panels."""

    n_rows: int
    n_columns: int
    like: Array  # of the dtype that codes stand for
    codes: NDArray[np.uint8]
    bits: int
    zero: int
    group: int
    groups_per_block: int
    rounds_rows: bool
    scale: Array
    coarse_scale: Array | None
    minimum: Array | None
    coarse_minimum: Array | None
    values: NDArray[np.int8] | None


@_keywords.answering
class QuantizedWeight:
    r"""A matrix of 4 to 8 bits, which a layer takes in place of an array.

    `quantize` makes one of a matrix; `from_blocks` of existing codes and scales.
    It cannot be written to. A product with it has the same bits on every CPU.

    Attributes
    ----------
    shape : tuple of int
        ``(K, M)``.
    dtype : dtype
        That of the matrix which it stands for. Products with it return the dtype that
        they would return with that matrix.
    bits : int
        Of a code: 8, 6, 5 or 4.
    group : int
        Rows that share a scale; the last group of a column may be shorter. K or more
        if each column has a single scale.
    activations : {"float", "int8"}
        How rows are multiplied with it, as `quantize` explains.
    nbytes : int
        Bytes of memory, with those that fill up the last panel.

    See Also
    --------
    quantize : makes one of a matrix, and explains the arithmetic.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> W = np.linspace(-1, 1, 256, dtype=np.float32).reshape(64, 4)
    >>> quantized = attnpy.quantize(W)
    >>> quantized
    QuantizedWeight(shape=(64, 4), dtype=float32, bits=8, group=128)
    >>> bool(abs(quantized.dequantize() - W).max() < 0.005)
    True
    """

    __slots__ = ("_parts", "_prepared")
    _parts: Parts
    _prepared: object  # what the C module has of these parts

    ndim = 2

    def __init__(self) -> None:
        raise TypeError(
            "QuantizedWeight: expected attnpy.quantize(matrix), or "
            "QuantizedWeight.from_blocks(codes, scale, ...)"
        )

    @classmethod
    def from_blocks(
        cls,
        codes: ArrayLike,
        scale: ArrayLike,
        minimum: ArrayLike | None = None,
        *,
        bits: int = 8,
        group: int = 32,
        zero: int = 0,
        values: ArrayLike | None = None,
        coarse_scale: ArrayLike | None = None,
        coarse_minimum: ArrayLike | None = None,
        groups_per_block: int = 8,
        activations: Literal["float", "int8"] = "float",
        dtype: DTypeLike = np.float32,
    ) -> QuantizedWeight:
        r"""Return a matrix of codes and scales, such as files have.

        Parameters
        ----------
        codes : array_like of int, shape (K, M)
            -128 to 127 with 8 bits; else 0 to 15, 31 or 63 with 4, 5 and 6.
        scale : array_like, shape (groups, M)
            Of each group of rows: float32 or float16, in which they are kept. int8 with
            `coarse_scale`. uint8 are exponents: such an e is the power of two
            ``2**(e - 128)``, and at most 254.
        minimum : array_like, shape (groups, M), optional
            What is added to the numbers of a group: of the dtype of `scale`.
        bits : {8, 6, 5, 4}, optional
            Of a code, as they are kept.
        group : int, optional
            How many rows a group has, a multiple of 16 and at most 128; with 5 bits a
            multiple of 32; above, with 8 bits, a multiple of 128 up to 65,536. The last
            one may be shorter.
        zero : int, optional
            Subtracted from codes of 4 to 6 bits: such a code itself.
        values : array_like of int, shape (16,), optional
            What codes of 4 bits stand for, -128 to 127: code i for ``values[i]``.
        coarse_scale, coarse_minimum : array_like, shape (blocks, M), optional
            float16: what `scale` and `minimum`, which are int8 then, are multiplied by.
        groups_per_block : int, optional
            How many groups such a number is for. The last block may have fewer.
        activations : {"float", "int8"}, optional
            As in `quantize`.
        dtype : dtype, optional
            Of the matrix that this stands for: float32, float16 or bfloat16.

        Returns
        -------
        QuantizedWeight
            Of numbers ``scale * (codes - zero) + minimum``, or ``scale *
            values[codes] + minimum``.

        Raises
        ------
        TypeError
            If an array has another dtype.
        ValueError
            If shapes do not fit together; if codes are out of range, scales are not
            finite, or a number is none of those that an option has.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy import QuantizedWeight
        >>> codes = np.arange(32, dtype=np.int8).reshape(16, 2)
        >>> scale = np.float16([[0.5, 2]])
        >>> weight = QuantizedWeight.from_blocks(codes, scale, group=16)
        >>> weight.dequantize()[3]
        array([ 3., 14.], dtype=float32)

        GGUF's form MXFP4 has scales that are powers of two, and codes of 16 values.

        >>> values = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
        >>> exponent = np.uint8([[127, 128]])
        >>> mxfp4 = QuantizedWeight.from_blocks(
        ...     codes % 16, exponent, bits=4, values=values
        ... )
        >>> mxfp4.dequantize()[3]
        array([ 4., 12.], dtype=float32)
        """
        kind = judged_dtype(dtype, "dtype")
        bits, zero, group, per_block = _judged_sizes(
            bits, zero, group, groups_per_block
        )
        # All are converted before any shape is read.
        array, fine = _checks.array(codes, "codes"), _checks.array(scale, "scale")
        coarse = _optional(coarse_scale, "coarse_scale")
        fine_minimum = _optional(minimum, "minimum")
        coarse_minimum = _optional(coarse_minimum, "coarse_minimum")
        table = None if values is None else _judged_values(values, bits, zero)
        if array.ndim != 2:
            raise ValueError(f"codes: expected (K, M), got shape {array.shape}")
        low, high = (-128, 127) if bits == 8 else (0, (1 << bits) - 1)
        if array.dtype != np.int8 or bits < 8:
            array = _checks.integers(array, "codes", low, high)
        n_rows, n_columns = array.shape
        shape = -(-n_rows // group), n_columns
        scales = Factors(fine, coarse)
        _check_factors(scales, "scale", shape, per_block)
        minimums = None
        if fine_minimum is not None:
            minimums = Factors(fine_minimum, coarse_minimum)
            _check_factors(minimums, "minimum", shape, per_block)
        elif coarse_minimum is not None:
            raise ValueError("coarse_minimum: expected None without minimum")
        rounds = _checks.one_of(activations, "activations", ACTIVATIONS) == "int8"
        packing = Packing(n_rows, n_columns, bits, zero)
        packing.write(0, array.astype(np.int8) if bits == 8 else array)
        return made(packing, kind, group, per_block, rounds, scales, minimums, table)

    @property
    def shape(self) -> tuple[int, int]:
        return self._parts.n_rows, self._parts.n_columns

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._parts.like.dtype

    @property
    def bits(self) -> int:
        return self._parts.bits

    @property
    def group(self) -> int:
        return self._parts.group

    @property
    def activations(self) -> Literal["float", "int8"]:
        return "int8" if self._parts.rounds_rows else "float"

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self._parts if isinstance(x, np.ndarray))

    def dequantize(self) -> Array:
        """Return the matrix that it stands for.

        Returns
        -------
        ndarray, shape (K, M)
            ``scale * code + minimum`` in float32, rounded to `dtype`.
        """
        matrix: Array = np.empty(self.shape, self.dtype)
        for columns in column_blocks(*self.shape):
            numbers = np.arange(columns.start, columns.stop)
            matrix[:, columns] = _attnpy.columns(self, numbers).T
        return matrix

    def _codes(self, columns: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return codes, less `zero`, of some columns, (n, K)."""
        parts = self._parts
        panel, column = np.divmod(columns, PANEL_COLUMNS)
        n_lines = _code_rows(parts.n_rows, parts.bits) * parts.bits // (8 * QUAD)
        n_panels = -(-parts.n_columns // PANEL_COLUMNS)
        quads = parts.codes.view(np.uint32)  # NumPy copies four bytes as fast as one
        quads = quads.reshape(n_panels, n_lines, PANEL_COLUMNS)
        taken: Array = quads[panel, :, column]  # (n, lines)
        taken = taken.view(np.uint8).reshape(len(columns), n_lines, QUAD)
        if parts.bits < 8:
            taken = _of_lines(taken, parts.bits) - np.uint8(parts.zero)  # modulo 256
        taken = taken.view(np.int8).reshape(len(columns), -1)
        return taken[:, : parts.n_rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(
                "copy: expected True or None for quantised weights, got False"
            )
        matrix = self.dequantize()
        return matrix if dtype is None else matrix.astype(dtype)

    def __len__(self) -> int:
        return self._parts.n_rows

    def __repr__(self) -> str:
        return f"QuantizedWeight({_described(self, self.shape)})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"QuantizedWeight: expected no change, got {name!r}")

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(self._parts)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        parts = _checked_parts(state)
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_prepared", _attnpy.prepare(parts))


class QuantizedTable:
    """The rows of a table, (V, E), which is the transpose of a quantised matrix.

    A model looks tokens up in it, and multiplies vectors by its transpose.

    Attributes
    ----------
    T : QuantizedWeight
        Of shape ``(E, V)``.
    shape : tuple of int
        ``(V, E)``.
    dtype : dtype
        That of the table which it stands for.
    nbytes : int
        Bytes of memory.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder
    >>> model = CausalDecoder(2, 16, 4, 64, vocab_size=100, max_length=32)
    >>> before = model.token_embedding
    >>> model.quantize()
    >>> model.token_embedding
    QuantizedTable(shape=(100, 16), dtype=float32, bits=8, group=128)
    >>> bool(abs(model.token_embedding[[5, 17]] - before[[5, 17]]).max() < 0.001)
    True
    """

    __slots__ = ("T",)
    T: QuantizedWeight

    ndim = 2

    def __init__(self, transposed: QuantizedWeight) -> None:
        self.__setstate__(transposed)

    @property
    def shape(self) -> tuple[int, int]:
        return self.T.shape[::-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.T.dtype

    @property
    def nbytes(self) -> int:
        return self.T.nbytes

    @property
    def bits(self) -> int:
        """Of a code: 8, 6, 5 or 4."""
        return self.T.bits

    def __getitem__(self, rows: ArrayLike | slice) -> Array:
        """Return the rows of such numbers, (..., E), a copy: integers, or a slice."""
        index = row_numbers(rows, len(self))
        flat = index.reshape(-1)
        step = max(BLOCK_SIZE // max(self.shape[1], 1), 1)
        if len(flat) <= step:
            some_rows = _attnpy.columns(self.T, flat).astype(self.dtype, copy=False)
            return some_rows.reshape(*index.shape, self.shape[1])
        found: Array = np.empty((index.size, self.shape[1]), self.dtype)
        for start in range(0, len(flat), step):
            some = slice(start, start + step)
            found[some] = _attnpy.columns(self.T, flat[some])
        return found.reshape(*index.shape, self.shape[1])

    def dequantize(self) -> Array:
        """Return the table that it stands for, (V, E)."""
        return self.T.dequantize().T

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.T.__array__(dtype, copy).T

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"QuantizedTable({_described(self.T, self.shape)})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"QuantizedTable: expected no change, got {name!r}")

    def __getstate__(self) -> QuantizedWeight:
        return self.T

    def __setstate__(self, state: QuantizedWeight) -> None:
        if not isinstance(state, QuantizedWeight) or not hasattr(state, "_parts"):
            raise TypeError(
                "QuantizedTable: expected a QuantizedWeight, got "
                f"{type(state).__name__}"
            )
        object.__setattr__(self, "T", state)


def options_of(weight: QuantizedWeight) -> tuple[int, int, bool]:
    """Return how a weight was quantised: bits, group, and whether rows are rounded."""
    return weight._parts.bits, weight._parts.group, weight._parts.rounds_rows


def arrays_of(weight: QuantizedWeight) -> dict[str, Array]:
    """Return the arrays of a matrix for `state_dict`, by row and column.

    Codes of 8 bits are int8. Otherwise a byte has the lower four bits of two rows, the
    first row's in its lower half. With 5 and 6 bits further bytes have the upper bits
    of 8 or 4 rows each, the first row's lowest. Values of codes are among the arrays.
    """
    parts = weight._parts
    codes: Array = np.empty(weight.shape, np.uint8)
    for columns in column_blocks(*weight.shape):
        some = np.arange(columns.start, columns.stop)
        codes[:, columns] = weight._codes(some).T.view(np.uint8)
    if parts.bits < 8:
        codes = _in_bytes(codes + np.uint8(parts.zero), parts.bits)
    n_groups = -(-parts.n_rows // parts.group)
    n_blocks = -(-n_groups // parts.groups_per_block)
    found: dict[str, Array] = {
        "codes": codes if parts.bits < 8 else codes.view(np.int8)
    }
    for name in FACTORS:
        line = getattr(parts, name)
        n = n_blocks if name.startswith("coarse") else n_groups
        if line is not None:
            found[name] = _of_panels(line, n, parts.n_columns)
    if parts.values is not None:
        found["values"] = parts.values.copy()
    return found


def replaced(weight: QuantizedWeight, arrays: Mapping[str, Array]) -> QuantizedWeight:
    """Return a weight of the same sizes and kind, made of what `arrays_of` returns."""
    parts, codes = weight._parts, arrays["codes"]
    if parts.bits < 8:
        codes = _of_bytes(codes, parts.bits, parts.n_rows)
    return QuantizedWeight.from_blocks(
        codes,
        bits=parts.bits,
        group=parts.group,
        zero=parts.zero,
        groups_per_block=parts.groups_per_block,
        activations=weight.activations,
        dtype=weight.dtype,
        **{name: arrays[name] for name in (*FACTORS, "values") if name in arrays},
    )


def narrowed(weight: QuantizedWeight, codes: Array) -> Array:
    """Return codes of a state for `replaced`, whatever form they have.

    Codes of 5 and 6 bits have been int8 (K, M) in files, less `zero`. What has no such
    form, or is out of range, is returned as it is.
    """
    parts = weight._parts
    if parts.bits in (8, 4) or codes.dtype != np.int8 or codes.shape != weight.shape:
        return codes
    wide = codes.astype(np.int16) + parts.zero
    if wide.size and not 0 <= wide.min() <= wide.max() < 1 << parts.bits:
        return codes
    return _in_bytes(wide.astype(np.uint8), parts.bits)


class Packing:
    """Codes in the order of the core, which come some columns at a time."""

    def __init__(self, n_rows: int, n_columns: int, bits: int, zero: int) -> None:
        self.n_rows, self.n_columns, self.bits, self.zero = (
            n_rows,
            n_columns,
            bits,
            zero,
        )
        n_panels = -(-n_columns // PANEL_COLUMNS)
        n_bytes = _code_rows(n_rows, bits) * n_panels * PANEL_COLUMNS * bits // 8
        _checks.memory("QuantizedWeight", np.uint8, (n_bytes,))
        self.codes = _memory.allocate(n_bytes)
        if n_columns % PANEL_COLUMNS:  # `write` leaves the last ones of a panel
            self.write(n_columns, np.full((n_rows, -n_columns % PANEL_COLUMNS), zero))

    def write(self, first: int, codes: Array) -> None:
        """Take codes (K, n) of columns from `first` on."""
        n = codes.shape[1]
        if codes.size == 0:
            return
        rows = np.full((_code_rows(self.n_rows, self.bits), n), self.zero, np.uint8)
        rows[: self.n_rows] = codes.view(np.uint8) if codes.itemsize == 1 else codes
        quads: Array = rows.reshape(len(rows) // QUAD, QUAD, n)
        quads = quads.transpose(2, 0, 1)  # (n, lines, QUAD)
        if self.bits < 8:
            quads = _in_lines(quads, self.bits)
        n_panels = -(-self.n_columns // PANEL_COLUMNS)
        panels = self.codes.reshape(n_panels, quads.shape[1], PANEL_COLUMNS, QUAD)
        panel, column = np.divmod(np.arange(first, first + n), PANEL_COLUMNS)
        panels[panel, :, column] = quads


def made(
    packing: Packing,
    kind: np.dtype[Any],
    group: int,
    per_block: int,
    rounds: bool,
    scale: Factors,
    minimum: Factors | None,
    values: NDArray[np.int8] | None = None,
) -> QuantizedWeight:
    """Return the matrix of codes that are packed, and of scales (groups, M)."""
    coarse_minimum = None
    if minimum is not None and minimum.coarse is not None:
        coarse_minimum = _in_panels(minimum.coarse)
    weight = object.__new__(QuantizedWeight)
    weight.__setstate__(
        Parts(
            n_rows=packing.n_rows,
            n_columns=packing.n_columns,
            like=np.empty(0, kind),
            codes=packing.codes,
            bits=packing.bits,
            zero=packing.zero,
            group=group,
            groups_per_block=per_block,
            rounds_rows=rounds,
            scale=_in_panels(scale.fine),
            coarse_scale=None if scale.coarse is None else _in_panels(scale.coarse),
            minimum=None if minimum is None else _in_panels(minimum.fine),
            coarse_minimum=coarse_minimum,
            values=values,
        )
    )
    return weight


def of_columns(
    n_rows: int,
    n_columns: int,
    blocks: Iterable[Mapping[str, Array]],
    rounds: bool,
    dtype: DTypeLike = np.float32,
    /,
    *,
    bits: int,
    group: int,
    zero: int = 0,
    groups_per_block: int = 8,
    values: NDArray[np.int8] | None = None,
) -> QuantizedWeight:
    """Return a matrix (K, M) made of blocks of columns, each of whole panels.

    So only one block of a file's arrays is in memory at a time. A block has arrays that
    `QuantizedWeight.from_blocks` takes, in its dtypes: ``codes`` (K, n) and others.
    """
    packing = Packing(n_rows, n_columns, bits, zero)
    found: dict[str, list[Array]] = {name: [] for name in FACTORS}
    first = 0
    for block in blocks:
        packing.write(first, block["codes"])
        first += block["codes"].shape[1]
        for name in block.keys() & set(FACTORS):
            array = block[name]
            _check_numbers(array, name, array.shape, (array.dtype.name,))
            found[name].append(array.copy())
    whole = {name: np.concatenate(x, 1) for name, x in found.items() if x}
    scale, minimum = (
        Factors(whole[name], whole.get(f"coarse_{name}")) if name in whole else None
        for name in ("scale", "minimum")
    )
    if scale is None:  # there are no columns
        scale = Factors(np.empty((-(-n_rows // group), n_columns), np.float16))
    kind = judged_dtype(dtype, "dtype")
    return made(packing, kind, group, groups_per_block, rounds, scale, minimum, values)


def _in_lines(quads: Array, bits: int) -> Array:
    """Return codes of fewer than 8 bits (n, quads, QUAD) in the lines of the core.

    Lines are (n, lines, QUAD): of each unit, two quads in each line, then one of all
    bits above the fourth.
    """
    (n, n_quads, _), above = quads.shape, bits - 4
    per_unit = UNITS[bits] // QUAD
    units = quads.reshape(n, n_quads // per_unit, per_unit, QUAD)
    lines = units[:, :, 0::2] & 15 | units[:, :, 1::2] << 4
    if above:
        shifts = above * np.arange(per_unit, dtype=np.uint8)[:, None]
        high = np.bitwise_or.reduce(units >> 4 << shifts, axis=2, keepdims=True)
        lines = np.concatenate([lines, high], axis=2)
    return lines.reshape(n, lines.shape[1] * lines.shape[2], QUAD)


def _of_lines(lines: Array, bits: int) -> Array:
    """Return what `_in_lines` was given."""
    (n, n_lines, _), above = lines.shape, bits - 4
    n_pairs = UNITS[bits] // QUAD // 2
    per_unit = n_pairs + (above > 0)
    units = lines.reshape(n, n_lines // per_unit, per_unit, QUAD)
    pairs = units[:, :, :n_pairs]
    quads = np.stack([pairs & 15, pairs >> 4], axis=3)
    quads = quads.reshape(n, units.shape[1], 2 * n_pairs, QUAD)
    if above:
        shifts = above * np.arange(2 * n_pairs, dtype=np.uint8)[:, None]
        quads |= (units[:, :, -1:] >> shifts & (1 << above) - 1) << 4
    return quads.reshape(n, quads.shape[1] * 2 * n_pairs, QUAD)


def _in_bytes(codes: Array, bits: int) -> Array:
    """Return codes of fewer than 8 bits (K, M) as `arrays_of` says, (bytes, M)."""
    planes = [_merged(codes & 15, 4)]
    if bits > 4:
        planes.append(_merged(codes >> 4, bits - 4))
    return np.concatenate(planes)


def _of_bytes(rows: Array, bits: int, n_rows: int) -> Array:
    """Return what `_in_bytes` was given, (K, M)."""
    n_pairs = -(-n_rows // 2)
    codes = _divided(rows[:n_pairs], 4)[:n_rows]
    if bits > 4:
        codes |= _divided(rows[n_pairs:], bits - 4)[:n_rows] << 4
    return codes


def _merged(numbers: Array, bits: int) -> Array:
    """Return numbers of so many bits, 1 to 4, some rows (K, M) in one of bytes."""
    each = 8 // bits
    merged = numbers[0::each].copy()
    for i in range(1, each):
        some = numbers[i::each]
        merged[: len(some)] |= some << bits * i
    return merged


def _divided(merged: Array, bits: int) -> Array:
    """Return what `_merged` was given, and 0 behind it."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    numbers = merged[:, None] >> shifts & (1 << bits) - 1
    return numbers.reshape(len(merged) * len(shifts), merged.shape[1])


def _in_panels(rows: Array) -> Array:
    """Return (n, M) in the order of panels, (panels, n, PANEL_COLUMNS), as a line."""
    n, n_columns = rows.shape
    n_panels = -(-n_columns // PANEL_COLUMNS)
    wide = np.zeros((n, n_panels * PANEL_COLUMNS), rows.dtype)
    wide[:, :n_columns] = rows
    panels: Array = wide.reshape(n, n_panels, PANEL_COLUMNS).transpose(1, 0, 2)
    line: Array = _memory.allocate(panels.nbytes).view(rows.dtype)
    line.reshape(panels.shape)[...] = panels
    return line


def _of_panels(line: Array, n: int, n_columns: int) -> Array:
    """Return what `_in_panels` has put in order, (n, M)."""
    n_panels = -(-n_columns // PANEL_COLUMNS)
    panels = line.reshape(n_panels, n, PANEL_COLUMNS).transpose(1, 0, 2)
    rows: Array = panels.reshape(n, n_panels * PANEL_COLUMNS)[:, :n_columns]
    return np.ascontiguousarray(rows)


def column_blocks(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Cut columns into whole panels that make some BLOCK_SIZE numbers.

    There are none where there are no rows, however many columns that may be.
    """
    if n_rows == 0:
        return
    step = max(BLOCK_SIZE // (n_rows * PANEL_COLUMNS), 1) * PANEL_COLUMNS
    for start in range(0, n_columns, step):
        yield slice(start, min(start + step, n_columns))


def _code_rows(n_rows: int, bits: int) -> int:
    return -(-n_rows // UNITS[bits]) * UNITS[bits]


def _described(weight: QuantizedWeight, shape: tuple[int, int]) -> str:
    rounds = ', activations="int8"' if weight._parts.rounds_rows else ""
    group = '"column"' if weight.group == MOST_ROWS[8] else str(weight.group)
    sizes = f"shape={shape}, dtype={weight.dtype}, bits={weight.bits}"
    return f"{sizes}, group={group}{rounds}"


def judged_dtype(dtype: DTypeLike, name: str) -> np.dtype[Any]:
    """Return the dtype of a matrix whose products are in float32."""
    try:
        kind = _dtypes.floating(dtype)
    except TypeError:
        kind = None
    if kind is None or kind.itemsize > 4:
        raise TypeError(
            f"{name}: expected float32, float16 or bfloat16 to quantise, got dtype "
            f"{dtype}"
        )
    return kind


def _judged_sizes(
    bits: int, zero: int, group: int, groups_per_block: int
) -> tuple[int, int, int, int]:
    """Return the numbers that say how codes are kept, after checks."""
    bits = _checks.size(bits, "bits")
    if bits not in UNITS:
        raise ValueError(f"bits: expected 8, 6, 5 or 4, got {bits}")
    group = _checks.count(group, "group")
    unit = CHAIN if group > CHAIN else max(LEAST_GROUP, UNITS[bits])
    if group > MOST_ROWS[bits] or group % unit:
        above = ", or of 128 up to 65536" if bits == 8 else ""
        raise ValueError(
            f"group: expected a multiple of {max(LEAST_GROUP, UNITS[bits])} up to 128"
            f"{above} with {bits} bits, got {group}"
        )
    zero = _checks.size(zero, "zero")
    most = 0 if bits == 8 else (1 << bits) - 1
    if zero > most:
        raise ValueError(f"zero: expected 0 to {most} with {bits} bits, got {zero}")
    per_block = _checks.count(groups_per_block, "groups_per_block")
    if per_block > LARGEST:
        raise ValueError(
            f"groups_per_block: expected at most {LARGEST}, got {per_block}"
        )
    return bits, zero, group, per_block


def _judged_values(values: ArrayLike, bits: int, zero: int) -> NDArray[np.int8]:
    """Return what codes stand for, a copy, after checks."""
    table = _checks.integers(values, "values", -128, 127)
    if table.shape != (N_VALUES,):
        raise ValueError(f"values: expected shape {(N_VALUES,)}, got {table.shape}")
    if bits != 4 or zero:
        raise ValueError(
            f"values: expected None except with 4 bits and zero 0, got some with "
            f"{bits} bits and zero {zero}"
        )
    return table.astype(np.int8)


def _optional(values: ArrayLike | None, name: str) -> Array | None:
    return None if values is None else _checks.array(values, name)


def _check_factors(
    factors: Factors, name: str, shape: tuple[int, int], per_block: int
) -> None:
    """Check the dtypes, shapes and numbers of scales or minimums, (groups, M)."""
    fine, coarse = factors
    _check_numbers(fine, name, shape, SCALES if coarse is None else ("int8",))
    if coarse is not None:
        n_blocks = -(-shape[0] // per_block)
        _check_numbers(coarse, f"coarse_{name}", (n_blocks, shape[1]), ("float16",))


def _check_numbers(
    array: Array, name: str, shape: tuple[int, int], dtypes: tuple[str, ...]
) -> None:
    if array.dtype.name not in dtypes:
        raise TypeError(
            f"{name}: expected {' or '.join(dtypes)}, got dtype {array.dtype}"
        )
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    if array.dtype == np.uint8 and (array > MOST_EXPONENT).any():
        raise ValueError(f"{name}: expected exponents up to {MOST_EXPONENT}, got 255")


def _checked_parts(state: Any) -> Parts:
    """Return the parts of a matrix for the core, after checks."""
    if not isinstance(state, tuple) or len(state) != len(Parts.__annotations__):
        raise TypeError(
            f"QuantizedWeight: expected its {len(Parts.__annotations__)} parts, got "
            f"{type(state).__name__}"
        )
    parts = Parts(*state)
    names = ("K", "M", "bits", "zero", "group", "groups_per_block", "dtype")
    with _checks.renamed(**{name: f"QuantizedWeight: {name}" for name in names}):
        n_rows, n_columns = (
            _checks.size(n, name) for n, name in zip(parts[:2], "KM", strict=True)
        )
        sizes = _judged_sizes(*parts[4:8])
    bits, _, group, per_block = sizes
    n_panels = -(-n_columns // PANEL_COLUMNS)
    n_groups = -(-n_rows // group)
    n_fine = n_panels * n_groups * PANEL_COLUMNS
    n_coarse = n_panels * -(-n_groups // per_block) * PANEL_COLUMNS
    if max(n_rows, n_columns) > LARGEST:
        raise ValueError(
            f"QuantizedWeight: expected K and M up to {LARGEST}, got {n_rows} and "
            f"{n_columns}"
        )
    if not isinstance(parts.like, np.ndarray):
        raise TypeError(
            f"QuantizedWeight: expected an array of its dtype, got "
            f"{type(parts.like).__name__}"
        )
    kind = judged_dtype(parts.like.dtype, "QuantizedWeight: dtype")
    n_bytes = _code_rows(n_rows, bits) * n_panels * PANEL_COLUMNS * bits // 8
    codes = _line(parts.codes, "codes", ("uint8",), n_bytes)
    scale = _lines(parts.scale, parts.coarse_scale, "scale", n_fine, n_coarse)
    minimum: tuple[Array | None, Array | None] = (None, None)
    if parts.minimum is not None:
        minimum = _lines(
            parts.minimum, parts.coarse_minimum, "minimum", n_fine, n_coarse
        )
    elif parts.coarse_minimum is not None:
        raise ValueError("QuantizedWeight: expected no coarse_minimum without minimum")
    values = parts.values
    if values is not None:
        with _checks.renamed(values="QuantizedWeight: values"):
            _judged_values(values, *sizes[:2])
        values = _line(values, "values", ("int8",), N_VALUES)
    like = np.empty(0, kind)
    rounds = _checks.flag(parts.rounds_rows, "QuantizedWeight: rounds_rows")
    factors = *scale, *minimum
    return Parts(n_rows, n_columns, like, codes, *sizes, rounds, *factors, values)


def _lines(
    fine: Any, coarse: Any, name: str, n_fine: int, n_coarse: int
) -> tuple[Array, Array | None]:
    if coarse is None:
        return _line(fine, name, SCALES, n_fine), None
    return (
        _line(fine, name, ("int8",), n_fine),
        _line(coarse, f"coarse_{name}", ("float16",), n_coarse),
    )


def _line(array: Any, name: str, dtypes: tuple[str, ...], n: int) -> Array:
    """Return an array of that length, contiguous and native; nobody writes to it."""
    if not isinstance(array, np.ndarray) or array.dtype.name not in dtypes:
        got = getattr(array, "dtype", type(array).__name__)
        raise TypeError(
            f"QuantizedWeight: expected {name} of {' or '.join(dtypes)}, got {got}"
        )
    if array.shape != (n,):
        raise ValueError(
            f"QuantizedWeight: expected {name} of shape {(n,)}, got {array.shape}"
        )
    line: Array = np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
    line.flags.writeable = False
    return line
