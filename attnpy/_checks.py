"""Arguments as what a function computes with, or an error that names them.

Numbers, choices and shapes; for dtypes there is `_dtypes`.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from numpy.typing import ArrayLike, NDArray


# Float64 holds every integer up to here, and no sum of two wraps in int64.
LARGEST_POSITION = 2**53


def size(value: int, name: str) -> int:
    """Return an integer of at least 0."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if number < 0:
        raise ValueError(f"{name}: expected at least 0, got {number}")
    return number


def count(value: int, name: str) -> int:
    """Return an integer of at least 1."""
    number = size(value, name)
    if number == 0:
        raise ValueError(f"{name}: expected at least 1, got 0")
    return number


def integers(
    values: ArrayLike,
    name: str,
    low: int = -LARGEST_POSITION,
    high: int = LARGEST_POSITION,
) -> NDArray[np.int64]:
    """Return integers of any shape as int64."""
    array = np.asarray(values)
    if array.size == 0:  # an empty list has a floating dtype
        return array.astype(np.int64)
    if array.dtype.kind not in "iu" and type(values) is not int:
        raise TypeError(f"{name}: expected integers, got dtype {array.dtype}")
    wrong = (array < low) | (array > high)
    if wrong.any():
        raise ValueError(
            f"{name}: expected {low} to {high}, got {array[wrong].flat[0]}"
        )
    return array.astype(np.int64)


def above(value: float, name: str, low: float) -> float:
    """Return a finite number above this."""
    if not isinstance(value, (float, int, np.floating, np.integer)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    number = float(value)
    if not low < number < math.inf:
        raise ValueError(f"{name}: expected a finite number > {low}, got {number}")
    return number


def flag(value: bool, name: str) -> bool:
    """Return a boolean of Python."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected a bool, got {type(value).__name__}")
    return bool(value)


def one_of(choice: str, name: str, choices: tuple[str, ...]) -> str:
    """Return one of these."""
    if choice not in choices:
        raise ValueError(f"{name}: expected one of {choices}, got {choice!r}")
    return choice


def generator(rng: np.random.Generator | None) -> np.random.Generator:
    """Return the generator given, or a new one."""
    if rng is None:
        return np.random.default_rng()
    if not isinstance(rng, np.random.Generator):
        raise TypeError(
            "rng: expected a numpy.random.Generator, as numpy.random.default_rng(0) "
            f"is, got {type(rng).__name__}"
        )
    return rng


def keywords(given: Iterable[str], known: Container[str], caller: str) -> None:
    """Refuse keywords that a call does not know, as Python does."""
    for name in given:
        if name not in known:
            raise TypeError(f"{caller} got an unexpected keyword argument {name!r}")


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Tell whether an array of this shape broadcasts to that one."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False
