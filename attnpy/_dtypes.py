"""Dtypes of computations: which are supported, promotion, rounding."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from attnpy._typing import Array

FLOATING = ("float64", "float32", "float16", "bfloat16")


def floating(dtype: DTypeLike) -> np.dtype[Any]:
    """Return one of the dtypes that `attention` computes with."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        _register_bfloat16()
    try:
        if dtype is None:  # which NumPy takes for float64
            raise TypeError
        kind = np.dtype(dtype)
    except (TypeError, ValueError):
        raise TypeError(
            f"dtype: expected float64, float32, float16 or bfloat16, got {dtype!r}"
        ) from None
    if kind.name not in FLOATING:
        raise TypeError(
            f"dtype: expected float64, float32, float16 or bfloat16, got {kind}"
        )
    return kind.newbyteorder("=")


def stored(dtype: DTypeLike) -> np.dtype[Any]:
    """Return one of the dtypes in which caches keep numbers: those above, and int8."""
    is_int8 = isinstance(dtype, (str, type, np.dtype)) and dtype in ("int8", np.int8)
    if is_int8:
        return np.dtype(np.int8)
    try:
        return floating(dtype)
    except TypeError as error:
        message = str(error).replace("float16 or bfloat16", "float16, bfloat16 or int8")
        raise TypeError(message) from None


def _register_bfloat16() -> None:
    """Import the package that adds the dtype to NumPy."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "dtype: bfloat16 needs the ml_dtypes package: pip install ml_dtypes"
        ) from error


def operand(array: Array, name: str) -> np.dtype[Any]:
    """Return the dtype of results from this array."""
    dtype = _operand_dtype(array.dtype)
    if dtype is None:
        raise TypeError(
            f"{name}: expected float64, float32, float16, bfloat16, integers or "
            f"booleans, got dtype {array.dtype}"
        )
    return dtype


@functools.cache
def _operand_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the dtype of results from numbers of this dtype, if supported."""
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype.name not in FLOATING:
        return None
    return dtype.newbyteorder("=")


def of_result(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the C module's results from arrays of these dtypes.

    Integers and booleans beside floating numbers promote as in NumPy; among themselves
    they become float64.
    """
    common: np.dtype[Any] = np.result_type(*dtypes)
    return np.dtype(np.float64) if common.kind in "biu" else common.newbyteorder("=")


@functools.cache  # for NumPy takes two microseconds
def name(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name."""
    return dtype.name


@functools.cache
def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is bfloat16, by its name, as NumPy does not have it."""
    return name(dtype) == "bfloat16"


@functools.cache
def arithmetic(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of computations with numbers of these dtypes."""
    wide = np.dtype(np.float64)
    meeting = functools.reduce(_promoted, dtypes, dtypes[0])
    return wide if meeting == wide else np.dtype(np.float32)


def _promoted(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a product of numbers of two dtypes."""
    try:
        both = np.promote_types(one, other)
    except TypeError:
        raise TypeError(
            f"x: expected dtypes with a common one, got {one} and {other}"
        ) from None
    return np.dtype(np.float64) if both.kind in "biu" else both


def rounded(numbers: NDArray[np.float64], dtype: np.dtype[Any]) -> Array:
    """Return the numbers rounded once.

    ml_dtypes rounds to float32 on the way to bfloat16. Where that is inexact, a last
    bit of 1 keeps the second rounding right.
    """
    if not is_bfloat16(dtype):
        return numbers.astype(dtype)
    single = numbers.astype(np.float32)
    toward_zero = np.nextafter(single, np.float32(0))
    single = np.where(np.abs(single) > np.abs(numbers), toward_zero, single)
    odd: NDArray[np.uint32] = single.view(np.uint32) | (single != numbers)
    return odd.view(np.float32).astype(dtype)
