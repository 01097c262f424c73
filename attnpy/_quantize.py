"""From matrices of numbers to those of 8 or 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from attnpy import _checks
from attnpy._code_layout import Packing, column_blocks
from attnpy._quantized import QuantizedWeight, made
from attnpy._quantized_parts import ACTIVATIONS, MOST_ROWS, Factors, judged_dtype

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._packed_weight import PackedTable, PackedWeight
    from attnpy._typing import Array

# Of rows, beside whole columns. Longer ones are worth it with 8 bits only.
GROUPS = {8: (32, 64, 128, 256, 512), 4: (32, 64, 128)}
MOST = np.float32(1e36)  # a number that codes are multiplied by in float32

# Scales that are tried: the largest number of a group, over this many steps. What lies
# beyond the last code is cut to it, which may cost less than a wider step.
STEPS = {
    8: (127.0, 128.5, 131.0, 135.0),
    4: (7.0, 7.5, 8.0, 8.5, 9.0, 9.6, 10.4, 11.4),
}


def quantize(
    W: ArrayLike,
    *,
    bits: Literal[8, 4] = 8,
    group: int | Literal["column"] | None = None,
    activations: Literal["float", "int8"] = "float",
) -> QuantizedWeight:
    r"""Quantise a matrix to 8 or 4 bits, with a scale for each group of rows.

    Parameters
    ----------
    W : array_like, shape (K, M)
        float32, float16 or bfloat16, of finite numbers, up to 1e36.
    bits : {8, 4}, optional
        Of each number. With 4 the matrix is a little more than half as large as with 8,
        and its error some 13 times as large.
    group : {32, 64, 128, 256, 512} or "column", optional
        How many rows of a column share a scale; by default 128 for 8 bits, and 32 for
        4. Smaller groups have a smaller error. The last group of a column may be
        shorter. With ``activations="int8"`` many rows are faster with larger groups.
        "column" is one scale for all of it, or for each 65,536 rows. It, 256 and 512
        are for 8 bits only.
    activations : {"float", "int8"}, optional
        How rows of numbers are multiplied with the matrix: with the precision of
        float32, or rounded to 8 bits first, each group of a row with its own scale. The
        second is faster for many rows, and less accurate. If all of `W_q`, `W_k` and
        `W_v` of a layer have it, self-attention without causality and caches multiplies
        integers of 12 and 13 bits, too.

    Returns
    -------
    QuantizedWeight
        What every layer takes in place of `W`.

    Raises
    ------
    TypeError
        If `W` has another dtype, or is not an array of numbers.
    ValueError
        If `W` is not a matrix, or has numbers that are not finite; if an option is none
        of those above.

    See Also
    --------
    attnpy.models.CausalDecoder.quantize : all matrices of a model.

    Notes
    -----
    Of each group the scale :math:`s` and codes :math:`q` are those that make
    :math:`\sum (w - s q)^2` smallest, among some scales about the one that the largest
    number needs. A group of :math:`x` is rounded to integers :math:`y` times a number
    :math:`t`. With ``activations="float"`` these have up to 23 bits, for each 128
    numbers at most, and :math:`t` is a power of two; with ``activations="int8"``
    :math:`t = \max |x| / 127`. Products :math:`q_k y_k` are added up exactly, and
    added times :math:`t s` in float32. The bits of a row depend on that row and the
    matrix only, and are those of every CPU.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> W = np.random.default_rng(0).standard_normal((256, 96), np.float32)
    >>> for bits in (8, 4):
    ...     quantized = attnpy.quantize(W, bits=bits)
    ...     error = quantized.dequantize() - W
    ...     print(bits, quantized.nbytes, f"{np.sqrt((error**2).mean()):.3f}")
    8 25344 0.006
    4 15360 0.081
    """
    if hasattr(W, "quantize"):
        kind = type(W).__name__
        raise TypeError(
            f"W: expected a matrix (K, M), got a {kind}: call its quantize()"
        )
    array = _checks.array(W, "W")
    bits, group, rounds = judged(bits, group, activations)
    return quantized(array, "W", bits, group, rounds)


def judged(
    bits: int, group: int | str | None, activations: str
) -> tuple[Literal[8, 4], int, bool]:
    """Return the options of `quantize` as the core takes them."""
    if not _is_integer(bits) or bits not in (8, 4):
        raise ValueError(f"bits: expected 8 or 4, got {bits!r}")
    rounds = _checks.one_of(activations, "activations", ACTIVATIONS) == "int8"
    if group is None:
        group = 128 if bits == 8 else 32
    elif isinstance(group, str) and group == "column" and bits == 8:
        group = MOST_ROWS[8]
    elif not _is_integer(group) or group not in GROUPS[bits]:
        expected = ", ".join(map(str, GROUPS[bits]))
        column = ' or "column"' if bits == 8 else " with 4 bits"
        raise ValueError(f"group: expected {expected}{column}, got {group!r}")
    return (8 if bits == 8 else 4), int(group), rounds


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_quantizable(W: Array | PackedWeight | PackedTable, name: str) -> None:
    """Require a matrix that `quantized` takes."""
    if W.ndim != 2:
        raise ValueError(f"{name}: expected a matrix (K, M), got shape {W.shape}")
    judged_dtype(W.dtype, name)


def quantized(
    W: Array, name: str, bits: Literal[8, 4], group: int, rounds: bool
) -> QuantizedWeight:
    """Return a matrix of judged options; errors name it."""
    check_quantizable(W, name)
    n_rows, n_columns = W.shape
    zero = 8 if bits == 4 else 0
    packing = Packing(n_rows, n_columns, bits, zero)
    scale = np.empty((-(-n_rows // group), n_columns), np.float32)
    for columns in column_blocks(n_rows, n_columns):
        numbers = W[:, columns].astype(np.float32)
        if not (np.abs(numbers) <= MOST).all():
            raise beyond(name)
        codes, scale[:, columns] = _nearest(numbers, bits, group)
        codes += zero
        packing.write(columns.start, codes)
    kind = W.dtype.newbyteorder("=")
    return made(packing, kind, group, 1, rounds, Factors(scale), None)


def beyond(name: str) -> ValueError:
    """Return an error about numbers of a matrix that have no codes."""
    return ValueError(
        f"{name}: expected finite numbers up to 1e36 to quantise, got NaN, infinity or "
        "one beyond"
    )


def _nearest(
    numbers: NDArray[np.float32], bits: int, group: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the codes (K, n) and scales (groups, n) of some columns."""
    n_rows, n = numbers.shape
    group = min(group, max(n_rows, 1))
    n_groups = -(-n_rows // group)
    if n_rows % group:
        more = np.zeros((n_groups * group - n_rows, n), np.float32)
        numbers = np.concatenate([numbers, more])
    grouped = numbers.reshape(n_groups, group, n)
    low, high = (-127, 127) if bits == 8 else (-8, 7)
    largest = np.zeros((n_groups, 1, n), np.float32)
    if grouped.size:
        at = np.abs(grouped).argmax(1)[:, None]
        largest = np.take_along_axis(grouped, at, 1)
    # Of 4 bits to the code -8, which has no opposite.
    largest = -largest if bits == 4 else np.abs(largest)
    codes: Array = np.zeros(grouped.shape, np.float32)
    scale = np.zeros((n_groups, 1, n), np.float32)
    best = np.full(scale.shape, -1.0)
    for tried in range(len(STEPS[bits]) + 1):
        is_last = tried == len(STEPS[bits])  # once more, with the best
        step = scale if is_last else largest / np.float32(STEPS[bits][tried])
        found = np.rint(grouped / np.where(step == 0, 1, step))
        np.clip(found, low, high, out=found)
        products = (grouped * found).sum(1, np.float64, keepdims=True)
        squares = (found * found).sum(1, np.float64, keepdims=True)
        # What is left of the square is less by so much, with the scale that fits best.
        fitting = products / np.maximum(squares, 1)
        better = products * fitting > best
        np.copyto(best, products * fitting, where=better)
        np.copyto(scale, fitting.astype(np.float32), where=better)
        np.copyto(codes, found, where=better)
    return codes.astype(np.int8).reshape(-1, n)[:n_rows], scale[:, 0]
