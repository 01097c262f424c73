"""The arrays and sizes that a quantised matrix consists of, and their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks, _dtypes
from attnpy._code_layout import UNITS, code_rows
from attnpy._packed_weight import LARGEST, PANEL_COLUMNS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array

# Of the core, csrc/core/quantized.h: rows of the shortest group, and by the bits of a
# code those of the longest.
LEAST_GROUP, MOST_ROWS = 16, {8: 65536, 6: 128, 5: 128, 4: 128}
CHAIN = 128  # ATTN_BLOCK: longer groups are its multiples
ACTIVATIONS = ("float", "int8")
SCALES = ("float32", "float16", "uint8")  # where there is one level
N_VALUES = 16  # that codes of 4 bits stand for, ATTN_CODE_VALUES
MOST_EXPONENT = 254  # of scales that are powers of two; 255 is NaN
FACTORS = ("scale", "coarse_scale", "minimum", "coarse_minimum")


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


def judged_sizes(
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


def judged_values(values: ArrayLike, bits: int, zero: int) -> NDArray[np.int8]:
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


def check_factors(
    factors: Factors, name: str, shape: tuple[int, int], per_block: int
) -> None:
    """Check the dtypes, shapes and numbers of scales or minimums, (groups, M)."""
    fine, coarse = factors
    check_numbers(fine, name, shape, SCALES if coarse is None else ("int8",))
    if coarse is not None:
        n_blocks = -(-shape[0] // per_block)
        check_numbers(coarse, f"coarse_{name}", (n_blocks, shape[1]), ("float16",))


def check_numbers(
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


def checked_parts(state: Any) -> Parts:
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
        sizes = judged_sizes(*parts[4:8])
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
    n_bytes = code_rows(n_rows, bits) * n_panels * PANEL_COLUMNS * bits // 8
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
            judged_values(values, *sizes[:2])
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
