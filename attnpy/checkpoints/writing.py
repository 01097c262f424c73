"""Writing a safetensors file, completely or not at all.

The package's own `save_file` does not keep the mode of an existing file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks
from attnpy._files import write_whole
from attnpy.checkpoints.files import DTYPES, OTHERS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    from numpy.typing import NDArray

    from attnpy._typing import Array

CODES = {dtype: code for code, dtype in (DTYPES | OTHERS).items()}
LONGEST = 100_000_000  # bytes of a header that the package reads


def write(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str],
    write_file: Callable[[Any, Callable[[BinaryIO], object]], object] = write_whole,
) -> None:
    """Write arrays by name, and texts by name, into a file."""
    arrays = {name: _judged(name, array) for name, array in tensors.items()}
    # The widest first, so that each array begins at a multiple of its item.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    begin = 0
    for name in names:
        array, end = arrays[name], begin + arrays[name].nbytes
        header[name] = {
            "dtype": CODES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": (begin, end),
        }
        begin = end
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST:
        raise ValueError(
            f"parameters: expected names of {LONGEST} bytes at most, got {len(text)}"
        )

    def fill(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(_data(arrays[name]).data)

    write_file(path, fill)


def _judged(name: str, values: Array) -> Array:
    """Return an array, after checking that the format has its dtype and name."""
    if not isinstance(name, str):
        raise TypeError(
            f"parameters: expected names that are strings, got {type(name).__name__}"
        )
    if name == "__metadata__" or any("\ud800" <= c <= "\udfff" for c in name):
        raise ValueError(f"parameters: expected names of the format, got {name!r}")
    array = _checks.array(values, f"parameters[{name!r}]")
    if array.dtype.name not in CODES:
        raise TypeError(
            f"parameters[{name!r}]: expected a dtype of the safetensors format, got "
            f"{array.dtype}"
        )
    return array


def _data(array: Array) -> NDArray[np.uint8]:
    """Return the bytes of an array in the format's order."""
    rows = np.ascontiguousarray(array).reshape(-1)
    if rows.itemsize > 1:
        rows = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
    return rows.view(np.uint8)
