"""The arrays of caches: their checks, sizes and contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _attnpy, _checks, _dtypes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array


class Rows(NamedTuple):
    """Views of keys and values (B, Hk, n, size), and of their scales (B, Hk, n)."""

    key: Array
    value: Array
    key_scale: NDArray[np.float32] | None
    value_scale: NDArray[np.float32] | None


def checked_sequences(sequences: ArrayLike | None, n: int) -> NDArray[np.int64]:
    """Return indices of n sequences, by default all, in an array of one axis."""
    if sequences is None:
        return np.arange(n)
    chosen = _checks.integers(sequences, "sequences", 0, n - 1)
    if chosen.ndim > 1:
        raise ValueError(f"sequences: expected an integer, or (n,), got {chosen.shape}")
    return chosen.reshape(-1)


def checked_capacity(capacity: int, lengths: NDArray[np.int64]) -> int:
    """Return room for sequences of these lengths."""
    capacity, longest = _checks.size(capacity, "capacity"), longest_of(lengths)
    if capacity < longest:
        raise ValueError(
            f"capacity: expected at least the {longest} tokens that there are, got "
            f"{capacity}"
        )
    return capacity


def per_sequence(
    batch_size: int, numbers: ArrayLike, name: str, low: int, high: ArrayLike
) -> NDArray[np.int64]:
    """Return an integer between low and high for each sequence, in a new array."""
    array = _checks.integers(numbers, name)
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (batch_size,)):
        raise ValueError(
            f"{name}: expected an integer, or ({batch_size},) to match the batch, got "
            f"{array.shape}"
        )
    array = np.broadcast_to(array, batch_size).copy()
    highs = np.broadcast_to(high, batch_size)
    wrong = (array < low) | (array > highs)
    if wrong.any():
        b = int(np.argmax(wrong))
        raise ValueError(
            f"{name}: expected {low} to {highs[b]} for sequence {b}, got {array[b]}"
        )
    return array


def longest_of(lengths: NDArray[np.int64]) -> int:
    return max(lengths.tolist(), default=0)  # of few numbers, faster than NumPy's


def storage_of(
    array: Array | None, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Return the array given, or one of zeros."""
    if array is None:
        return np.zeros(shape, dtype)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(array).__name__}")
    _checks.array(array, name)
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
    native = array.dtype.newbyteorder("=")
    if array.dtype != np.int8 and _dtypes.operand(array, name) != native:
        raise TypeError(
            f"{name}: expected a floating dtype or int8, got dtype {array.dtype}"
        )
    if not array.flags.writeable:
        raise ValueError(f"{name}: expected an array that can be written to")
    return array


def scales_of(
    scales: Array | None, name: str, given: Array | None, array: Array
) -> NDArray[np.float32] | None:
    """Return the scales of an array of int8 that is given, or made here; or None."""
    shape = array.shape[:3]
    if array.dtype != np.int8 or given is None:
        if scales is not None:
            which = name.removesuffix("_scale")
            raise ValueError(f"{name}: expected None without a {which} of int8")
        if array.dtype != np.int8:
            return None
        _checks.memory("KVCache", np.dtype(np.float32), shape)
        return np.zeros(shape, np.float32)
    if scales is None:
        raise ValueError(f"{name}: expected the scales of the int8 array, got None")
    if not isinstance(scales, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(scales).__name__}")
    _checks.array(scales, name)
    if scales.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {scales.shape}")
    if scales.dtype != np.float32 or not scales.flags.behaved:
        raise TypeError(
            f"{name}: expected writable, aligned float32, got dtype {scales.dtype}"
        )
    return scales


def check_shape(
    array: Array, name: str, shape: tuple[int | str, ...], n_tokens: int
) -> None:
    if array.shape != tuple(n_tokens if n == "L" else n for n in shape):
        text = ", ".join(map(str, shape))
        raise ValueError(f"{name}: expected ({text}), got {array.shape}")
    _dtypes.operand(array, name)


def copied(array: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
    return None if array is None else np.array(array)


def enlarged(
    filled: Array | None, capacity: int, rows: NDArray[np.int64] | None = None
) -> Array | None:
    """Return an array for this many tokens, with these copied to its start.

    rows: the sequences to copy; by default all of them, in order.
    """
    if filled is None:
        return None
    n = len(filled) if rows is None else len(rows)
    shape = n, filled.shape[1], capacity, *filled.shape[3:]
    _checks.memory("cache", filled.dtype, shape)
    grown = np.zeros(shape, filled.dtype)
    grown[:, :, : filled.shape[2]] = filled if rows is None else filled[rows]
    return grown


def put(
    array: Array, scales: NDArray[np.float32] | None, place: Any, tokens: Array
) -> None:
    """Write keys or values to a place of a cache's array, and their scales."""
    if scales is None:
        array[place] = tokens
        return
    dtype = _dtypes.arithmetic(_dtypes.operand(tokens, "key"))
    rows = np.require(tokens, dtype, "A")
    _attnpy.quantize_heads(rows, array[place], scales[place], None)


def mixed(x: Array) -> Array:
    """Do the same as `hadamard`, in the dtype of x; as layers do, bit by bit."""
    size = x.shape[-1]
    block = size & -size
    if x.size == 0:
        return x
    y = x.reshape(-1)
    for h in (1 << i for i in range(block.bit_length() - 1)):
        one, two = y.reshape(-1, 2, h).swapaxes(0, 1)
        y = np.stack([one + two, one - two], axis=1)
    mixed: Array = y.reshape(x.shape) * x.dtype.type(1 / np.sqrt(block))
    return mixed
