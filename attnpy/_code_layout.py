"""The order in which codes of quantised matrices lie in memory and in files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnpy import _checks, _memory
from attnpy._packed_weight import PANEL_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnpy._typing import Array

# Of the core, csrc/core/quantized.h: rows of a column that are next to each other; and,
# by the bits of a code, rows that lie together.
QUAD, UNITS = 4, {8: 8, 6: 16, 5: 32, 4: 8}
BLOCK_SIZE = 1 << 17  # numbers of a matrix that are quantised at a time


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
        n_bytes = code_rows(n_rows, bits) * n_panels * PANEL_COLUMNS * bits // 8
        _checks.memory("QuantizedWeight", np.uint8, (n_bytes,))
        self.codes = _memory.allocate(n_bytes)
        if n_columns % PANEL_COLUMNS:  # `write` leaves the last ones of a panel
            self.write(n_columns, np.full((n_rows, -n_columns % PANEL_COLUMNS), zero))

    def write(self, first: int, codes: Array) -> None:
        """Take codes (K, n) of columns from `first` on."""
        n = codes.shape[1]
        if codes.size == 0:
            return
        rows = np.full((code_rows(self.n_rows, self.bits), n), self.zero, np.uint8)
        rows[: self.n_rows] = codes.view(np.uint8) if codes.itemsize == 1 else codes
        quads: Array = rows.reshape(len(rows) // QUAD, QUAD, n)
        quads = quads.transpose(2, 0, 1)  # (n, lines, QUAD)
        if self.bits < 8:
            quads = in_lines(quads, self.bits)
        n_panels = -(-self.n_columns // PANEL_COLUMNS)
        panels = self.codes.reshape(n_panels, quads.shape[1], PANEL_COLUMNS, QUAD)
        panel, column = np.divmod(np.arange(first, first + n), PANEL_COLUMNS)
        panels[panel, :, column] = quads


def column_blocks(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Cut columns into whole panels that make some BLOCK_SIZE numbers.

    There are none where there are no rows, however many columns that may be.
    """
    if n_rows == 0:
        return
    step = max(BLOCK_SIZE // (n_rows * PANEL_COLUMNS), 1) * PANEL_COLUMNS
    for start in range(0, n_columns, step):
        yield slice(start, min(start + step, n_columns))


def code_rows(n_rows: int, bits: int) -> int:
    return -(-n_rows // UNITS[bits]) * UNITS[bits]


def in_lines(quads: Array, bits: int) -> Array:
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


def of_lines(lines: Array, bits: int) -> Array:
    """Return what `in_lines` was given."""
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


def in_bytes(codes: Array, bits: int) -> Array:
    """Return codes of fewer than 8 bits (K, M) as `arrays_of` says, (bytes, M)."""
    planes = [_merged(codes & 15, 4)]
    if bits > 4:
        planes.append(_merged(codes >> 4, bits - 4))
    return np.concatenate(planes)


def of_bytes(rows: Array, bits: int, n_rows: int) -> Array:
    """Return what `in_bytes` was given, (K, M)."""
    n_pairs = -(-n_rows // 2)
    codes = _divided(rows[:n_pairs], 4)[:n_rows]
    if bits > 4:
        codes |= _divided(rows[n_pairs:], bits - 4)[:n_rows] << 4
    return codes


def _merged(numbers: Array, bits: int) -> Array:
    """Return numbers of this many bits, 1 to 4, some rows (K, M) in one of bytes."""
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


def in_panels(rows: Array) -> Array:
    """Return (n, M) in the order of panels, (panels, n, PANEL_COLUMNS), as a line."""
    n, n_columns = rows.shape
    n_panels = -(-n_columns // PANEL_COLUMNS)
    wide = np.zeros((n, n_panels * PANEL_COLUMNS), rows.dtype)
    wide[:, :n_columns] = rows
    panels: Array = wide.reshape(n, n_panels, PANEL_COLUMNS).transpose(1, 0, 2)
    line: Array = _memory.allocate(panels.nbytes).view(rows.dtype)
    line.reshape(panels.shape)[...] = panels
    return line


def of_panels(line: Array, n: int, n_columns: int) -> Array:
    """Return what `in_panels` has put in order, (n, M)."""
    n_panels = -(-n_columns // PANEL_COLUMNS)
    panels = line.reshape(n_panels, n, PANEL_COLUMNS).transpose(1, 0, 2)
    rows: Array = panels.reshape(n, n_panels * PANEL_COLUMNS)[:, :n_columns]
    return np.ascontiguousarray(rows)
