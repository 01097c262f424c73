"""Checks of mappings of names to arrays; errors name the array."""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _dtypes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from attnpy._typing import Array

BLOCK = 16384  # numbers of each array that fit into a core's cache together
TRAINED = ("float32", "float64", "bfloat16")


def trainable(arrays: Mapping[str, Array], name: str) -> dict[str, Array]:
    """Return a dict of writable floating arrays that share no memory."""
    found = dict(_checks.mapping(arrays, name))
    for key, array in found.items():
        place = f"{name}[{key!r}]"
        check_floating(array, place, TRAINED)
        if not array.flags.writeable:
            raise ValueError(
                f"{place}: expected an array that can be written to, got one that "
                "cannot (matrices are packed after training, not before)"
            )
        if _overlaps_itself(array):
            raise ValueError(
                f"{place}: expected numbers that share no memory, got strides "
                f"{array.strides} for shape {array.shape}"
            )
    _check_apart(found, name)
    return found


def check_floating(
    array: Any, place: str, kinds: tuple[str, ...] = ("float32", "float64")
) -> None:
    """Require an array of one of these dtypes."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{place}: expected an ndarray, got {type(array).__name__}")
    if _dtypes.name(array.dtype) not in kinds:
        expected = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        raise TypeError(f"{place}: expected {expected}, got {array.dtype}")


def blocks(arrays: Sequence[Array], read_only: int = -1) -> Iterator[tuple[Array, ...]]:
    """Yield the same places of arrays of one shape, contiguous (n,) each, to change.

    The first four have the dtype of the first; numbers of another are copies. So are
    blocks where the arrays' numbers do not lie in one order: they are written back.
    """
    if arrays[0].size == 0:
        return
    if all(map(_is_line, arrays)) and all(
        array.dtype == arrays[0].dtype for array in arrays[1:4]
    ):
        yield tuple(array.reshape(-1) for array in arrays)
        return
    dtypes = [arrays[0].dtype] * 4 + [array.dtype for array in arrays[4:]]
    flags: list[Any] = [
        ["readonly" if i == read_only else "readwrite", "contig", "aligned"]
        for i in range(len(arrays))
    ]
    with np.nditer(
        arrays,
        flags=["buffered", "external_loop", "growinner"],
        op_flags=flags,
        op_dtypes=dtypes[: len(arrays)],
        order="K",
        buffersize=BLOCK,
    ) as iterator:
        for block in iterator:
            yield block if isinstance(block, tuple) else (block,)


def _is_line(array: Array) -> bool:
    """Tell whether the numbers lie one after another, as those of most arrays do."""
    return type(array) is np.ndarray and array.flags.carray


def _check_apart(arrays: Mapping[str, Array], name: str) -> None:
    """Require arrays that share no numbers, which would change twice."""
    owners = {_owner(array) for array in arrays.values()}
    if None not in owners and len(owners) == len(arrays):
        return
    # Sorted by their first bytes: an array can only overlap those that begin before its
    # end.
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


def apart(arrays: Mapping[str, Array], written: Iterable[Array]) -> dict[str, Array]:
    """Return the arrays, copying those that change when others are written to."""
    found = dict(arrays)
    owners = {_owner(array) for array in written}
    owned = {name: _owner(array) for name, array in arrays.items()}
    doubtful = {  # usually there are none, which is quickly known
        name
        for name, owner in owned.items()
        if None in owners or owner is None or owner in owners
    }
    if not doubtful:
        return found
    spans = sorted(_span(array) for array in written)
    begins = [begin for begin, _ in spans]
    ends = list(itertools.accumulate((end for _, end in spans), max))
    for name in doubtful:
        begin, end = _span(arrays[name])
        n_before = bisect.bisect_left(begins, end)  # those that begin before its end
        if n_before > 0 and ends[n_before - 1] > begin:
            found[name] = arrays[name].copy()
    return found


def _owner(array: Any) -> int | None:
    """Return the identity of the array that owns the memory; None if none does."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return id(array) if array.flags.owndata else None


def _overlaps_itself(array: Array) -> bool:
    """Tell whether two elements have a byte in common."""
    if array.flags.c_contiguous or array.size == 0:
        return False
    steps = [(abs(s), n) for s, n in zip(array.strides, array.shape, strict=True)]
    steps = sorted((step, n) for step, n in steps if n > 1)
    end = array.itemsize  # of the bytes that the axes before reach
    for step, n in steps:
        if step < end:
            break
        end += (n - 1) * step
    else:
        return False
    places = np.zeros(1, np.int64)  # axes in each other's gaps, or none: seldom seen
    for step, n in steps:
        places = np.add.outer(places, step * np.arange(n)).reshape(-1)
    places.sort()
    return bool((np.diff(places) < array.itemsize).any())


def _span(array: Array) -> tuple[int, int]:
    """Return the addresses of an array's first byte, and past its last one."""
    first = int(array.__array_interface__["data"][0])
    if array.size == 0:
        return first, first
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    end = first + sum(step for step in steps if step > 0) + array.itemsize
    return first + sum(step for step in steps if step < 0), end
