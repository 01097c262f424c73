"""Matrices of 4 to 8 bits, for models that are only run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnpy import _attnpy, _checks, _keywords
from attnpy._code_layout import (
    QUAD,
    Packing,
    code_rows,
    column_blocks,
    in_bytes,
    in_panels,
    of_bytes,
    of_lines,
    of_panels,
)
from attnpy._packed_weight import PANEL_COLUMNS, row_numbers
from attnpy._quantized_parts import (
    ACTIVATIONS,
    FACTORS,
    MOST_ROWS,
    Factors,
    Parts,
    check_factors,
    check_numbers,
    checked_parts,
    judged_dtype,
    judged_sizes,
    judged_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array


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
        bits, zero, group, per_block = judged_sizes(bits, zero, group, groups_per_block)
        # All are converted before any shape is read.
        array, fine = _checks.array(codes, "codes"), _checks.array(scale, "scale")
        coarse = _optional(coarse_scale, "coarse_scale")
        fine_minimum = _optional(minimum, "minimum")
        coarse_minimum = _optional(coarse_minimum, "coarse_minimum")
        table = None if values is None else judged_values(values, bits, zero)
        if array.ndim != 2:
            raise ValueError(f"codes: expected (K, M), got shape {array.shape}")
        low, high = (-128, 127) if bits == 8 else (0, (1 << bits) - 1)
        if array.dtype != np.int8 or bits < 8:
            array = _checks.integers(array, "codes", low, high)
        n_rows, n_columns = array.shape
        shape = -(-n_rows // group), n_columns
        scales = Factors(fine, coarse)
        check_factors(scales, "scale", shape, per_block)
        minimums = None
        if fine_minimum is not None:
            minimums = Factors(fine_minimum, coarse_minimum)
            check_factors(minimums, "minimum", shape, per_block)
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
            matrix[:, columns] = _attnpy.embed((self,), (numbers,), 1, None).T
        return matrix

    def _codes(self, columns: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return codes, less `zero`, of some columns, (n, K)."""
        parts = self._parts
        panel, column = np.divmod(columns, PANEL_COLUMNS)
        n_lines = code_rows(parts.n_rows, parts.bits) * parts.bits // (8 * QUAD)
        n_panels = -(-parts.n_columns // PANEL_COLUMNS)
        quads = parts.codes.view(np.uint32)  # NumPy copies four bytes as fast as one
        quads = quads.reshape(n_panels, n_lines, PANEL_COLUMNS)
        taken: Array = quads[panel, :, column]  # (n, lines)
        taken = taken.view(np.uint8).reshape(len(columns), n_lines, QUAD)
        if parts.bits < 8:
            taken = of_lines(taken, parts.bits) - np.uint8(parts.zero)  # modulo 256
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
        parts = checked_parts(state)
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
        return rows_of(self, row_numbers(rows, len(self)))

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


def rows_of(table: QuantizedTable, index: NDArray[np.int64]) -> Array:
    """Return the rows of numbers from 0 to ``V - 1``, (..., E), a copy."""
    return _attnpy.embed((table.T,), (index,), 1, None).astype(table.dtype, copy=False)


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
        codes = in_bytes(codes + np.uint8(parts.zero), parts.bits)
    n_groups = -(-parts.n_rows // parts.group)
    n_blocks = -(-n_groups // parts.groups_per_block)
    found: dict[str, Array] = {
        "codes": codes if parts.bits < 8 else codes.view(np.int8)
    }
    for name in FACTORS:
        line = getattr(parts, name)
        n = n_blocks if name.startswith("coarse") else n_groups
        if line is not None:
            found[name] = of_panels(line, n, parts.n_columns)
    if parts.values is not None:
        found["values"] = parts.values.copy()
    return found


def replaced(weight: QuantizedWeight, arrays: Mapping[str, Array]) -> QuantizedWeight:
    """Return a weight of the same sizes and kind, made of what `arrays_of` returns."""
    parts, codes = weight._parts, arrays["codes"]
    if parts.bits < 8:
        codes = of_bytes(codes, parts.bits, parts.n_rows)
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
    return in_bytes(wide.astype(np.uint8), parts.bits)


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
        coarse_minimum = in_panels(minimum.coarse)
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
            scale=in_panels(scale.fine),
            coarse_scale=None if scale.coarse is None else in_panels(scale.coarse),
            minimum=None if minimum is None else in_panels(minimum.fine),
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
            check_numbers(array, name, array.shape, (array.dtype.name,))
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


def _described(weight: QuantizedWeight, shape: tuple[int, int]) -> str:
    rounds = ', activations="int8"' if weight._parts.rounds_rows else ""
    group = '"column"' if weight.group == MOST_ROWS[8] else str(weight.group)
    sizes = f"shape={shape}, dtype={weight.dtype}, bits={weight.bits}"
    return f"{sizes}, group={group}{rounds}"


def _optional(values: ArrayLike | None, name: str) -> Array | None:
    return None if values is None else _checks.array(values, name)
