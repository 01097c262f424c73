"""Mappings of names to arrays, as what is trained, or an error that names the array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attnpy._typing import Array


def trainable(arrays: Mapping[str, Array], name: str) -> dict[str, Array]:
    """Return a dict of arrays of float32 or float64 that can be written to."""
    found = dict(_checks.mapping(arrays, name))
    for key, array in found.items():
        place = f"{name}[{key!r}]"
        check_floating(array, place)
        if not array.flags.writeable:
            raise ValueError(
                f"{place}: expected an array that can be written to, got one that "
                "cannot (matrices are packed after training, not before)"
            )
    return found


def check_floating(array: Any, place: str) -> None:
    """Require an array of float32 or float64."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{place}: expected an ndarray, got {type(array).__name__}")
    if array.dtype.newbyteorder("=") not in (np.float32, np.float64):
        raise TypeError(f"{place}: expected float32 or float64, got {array.dtype}")


def check_apart(arrays: Mapping[str, Array], name: str) -> None:
    """Require arrays that have no numbers in common, which would change twice."""
    # By their first bytes: one can only meet those that begin before its end.
    spans = sorted((*_span(array), key) for key, array in arrays.items())
    for i, (_, end, one) in enumerate(spans):
        for begin, _, other in spans[i + 1 :]:
            if begin >= end:
                break
            if np.shares_memory(arrays[one], arrays[other]):
                raise ValueError(
                    f"{name}: expected each array once, got {one!r} and {other!r} in "
                    "the same memory"
                )


def _span(array: Array) -> tuple[int, int]:
    """Return the addresses of an array's first byte, and past its last one."""
    first = int(array.__array_interface__["data"][0])
    if array.size == 0:
        return first, first
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    end = first + sum(step for step in steps if step > 0) + array.itemsize
    return first + sum(step for step in steps if step < 0), end
