"""Arrays in files of safetensors and of PyTorch, each read when it is used."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _parameters, _pickles, _repr
from attnpy._files import path_at
from attnpy._quoting import listed, named, quoted
from attnpy.checkpoints import reading, torch_files

if TYPE_CHECKING:
    from typing import TypeGuard

    from attnpy._typing import Array

# The format's names of dtypes that are read here, and of others that NumPy has.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
OTHERS = {
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "BOOL": "bool",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "C64": "complex64",
}  # fmt: skip

# What a folder has, one of them; the first that is there is read.
NAMES = tuple(
    f"{name}{end}"
    for name in ("model.safetensors", "pytorch_model.bin")
    for end in ("", ".index.json")
)


class Place(NamedTuple):
    """The place of an array: an open file, the first byte, dtype and shape."""

    file: FileIO
    begin: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None  # of numbers, where they are unusual


class Checkpoint(Mapping[str, "Array"]):
    """The arrays of files of weights by name, each read when it is used.

    Parameters
    ----------
    *paths : str or path
        Files of safetensors, or those that ``torch.save`` writes of a state dict, such
        as ``pytorch_model.bin``; no name is in two of them.

    Attributes
    ----------
    metadata : dict of str to str
        What safetensors files say beside their arrays.

    Raises
    ------
    ImportError
        If the safetensors package is not installed. Files of PyTorch need no package.
    FileNotFoundError
        If there is no such file.
    ValueError
        If a file is not in its format, or a name is in two files; if an array that is
        asked for is of a dtype that NumPy lacks, as 8-bit floating numbers. If a file
        of PyTorch has something else than arrays, or is of a version before 1.6.

    See Also
    --------
    read : finds the files of a model.

    Notes
    -----
    A file of PyTorch has a pickle in it, which could run any code when Python loads it.
    Here it is read by an interpreter that can make arrays, and nothing else.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from safetensors.numpy import save_file
    >>> from attnpy.checkpoints import Checkpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     save_file({"norm.weight": np.ones(3, np.float16)}, path)
    ...     tensors = Checkpoint(path)
    ...     list(tensors), tensors["norm.weight"]
    (['norm.weight'], array([1., 1., 1.], dtype=float16))
    """

    metadata: dict[str, str]
    _places: dict[str, Place]

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        places = self._places.values()
        numbers = sum(math.prod(place.shape) for place in places)
        dtypes = dict.fromkeys(place.dtype for place in places)
        return {
            "files": len({place.file for place in places}),
            "arrays": len(places),
            "dtype": _repr.Plain(" and ".join(dtypes)),
            "numbers": _repr.Plain(f"{numbers:_}"),
        }

    __repr__ = _repr.shows(_shown)

    def __init__(self, *paths: str | os.PathLike[str]) -> None:
        self.metadata = {}
        self._places = {}
        for path in paths:
            file = reading.opened(path)
            if torch_files.is_one(file):
                found = torch_files.find(file, path)
                places = {name: Place(file, *place) for name, place in found.items()}
            else:
                places = self._of_safetensors(file, path)
            for name, place in places.items():
                if name in self._places:
                    raise ValueError(
                        f"{named(path)}: expected no {named(name)}, which another file "
                        "has"
                    )
                self._places[name] = place

    def _of_safetensors(
        self, file: FileIO, path: str | os.PathLike[str]
    ) -> dict[str, Place]:
        """Return where arrays are in a safetensors file that its package judges."""
        try:
            from safetensors import safe_open
        except ImportError as error:
            raise ImportError(
                "attnpy.checkpoints: reading safetensors files needs the safetensors "
                "package: pip install 'attnpy[weights]'"
            ) from error
        kind = "a safetensors file"
        if not os.fspath(path).endswith(".safetensors"):
            kind += ", or one of PyTorch"
        with (
            reading.judged_elsewhere(path, kind),
            safe_open(path, framework="np") as judged,
        ):
            names = list(judged.keys())
            self.metadata |= judged.metadata() or {}
        places = _places(file, path)
        if places.keys() != set(names):
            raise ValueError(
                f"{named(path)}: expected a safetensors file that does not change, "
                "got one that has changed"
            )
        return {name: places[name] for name in names}

    def __getitem__(self, name: str) -> Array:
        """Read an array into memory."""
        place = self._places[name]
        whole = self.rows(name, 0, place.shape[0] if place.shape else 1)
        return whole.reshape(place.shape)

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array into memory, and only these.

        The file is read, not mapped: its pages do not count as the process's memory,
        and a file that is truncated meanwhile is an error.

        Parameters
        ----------
        name : str
        start, stop : int
            The rows, ``0 <= start <= stop <= shape[0]``; a scalar has one.

        Returns
        -------
        ndarray, shape (stop - start, ...)

        Raises
        ------
        ImportError, KeyError, ValueError
            As for the whole array; if there are no such rows.
        """
        place = self._places[name]
        n_rows, *row_shape = place.shape or (1,)
        if not 0 <= start <= stop <= n_rows:
            raise ValueError(
                f"{named(name)}: expected rows of {n_rows}, got {start} to {stop}"
            )
        dtype = _numpy_dtype(name, place.dtype)
        if place.strides is None:
            rows = np.empty((stop - start, *row_shape), dtype)
            row_bytes = rows.itemsize * math.prod(row_shape)
            data = rows.reshape(-1).view(np.uint8).data
            reading.fill(place.file, place.begin + start * row_bytes, data, name)
        else:
            rows = _scattered(place, start, (stop - start, *row_shape), dtype, name)
        return rows if sys.byteorder == "little" else rows.byteswap(inplace=True)

    def __contains__(self, name: object) -> bool:
        """Tell whether there is such a name, without reading the array."""
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._places)

    def __len__(self) -> int:
        """Count the names."""
        return len(self._places)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return an array's shape and the name of its dtype, without reading it.

        Parameters
        ----------
        name : str

        Returns
        -------
        shape : tuple of int
        dtype : str
            NumPy's name for floating dtypes, the format's for others.

        Raises
        ------
        KeyError
            If there is no such name.
        """
        place = self._places[name]
        return place.shape, DTYPES.get(place.dtype, place.dtype)


def mapped(tensors: Checkpoint, name: str) -> Array:
    """Return an array of a safetensors file in place, which reads what is used.

    Its numbers may be changed, in memory only. An array that is no multiple of its
    numbers from the file's beginning, or in another order of bytes, is read.
    """
    place = tensors._places[name]
    dtype = _numpy_dtype(name, place.dtype)
    aligned = place.begin % dtype.itemsize == 0 and place.strides is None
    if not aligned or sys.byteorder != "little" or 0 in place.shape:
        return tensors[name]
    with open(os.dup(place.file.fileno()), "rb") as file:
        return np.memmap(file, dtype, "c", place.begin, place.shape).view(np.ndarray)


def unstacked(tensors: Checkpoint, names: Collection[str]) -> Checkpoint:
    """Return the same arrays, but each of these (N, ...) as N with numbers."""
    other = object.__new__(type(tensors))
    vars(other).update(vars(tensors))
    other._places = {}
    for name, place in tensors._places.items():
        if name not in names:
            other._places[name] = place
            continue
        shape, strides = place.shape[1:], place.strides
        step = math.prod(shape) if strides is None else strides[0]
        step *= _numpy_dtype(name, place.dtype).itemsize
        strides = None if strides is None else strides[1:]
        for i in range(place.shape[0]):
            other._places[f"{name}.{i}"] = Place(
                place.file, place.begin + i * step, shape, place.dtype, strides
            )
    return other


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model's weights.

    Parameters
    ----------
    path : str or path
        A file of safetensors, or of PyTorch; the index of several,
        ``model.safetensors.index.json`` or ``pytorch_model.bin.index.json``; or a
        folder with ``model.safetensors``, ``pytorch_model.bin`` or one of these in it.
        Of several the safetensors files are read.

    Returns
    -------
    Checkpoint
        A mapping of names to arrays. Arrays in bfloat16 need the ml_dtypes package.

    Raises
    ------
    ImportError
        If the safetensors package is not installed, for its files.
    FileNotFoundError
        If there is no such file.
    ValueError
        If a file is not in its format, or the files lack names that are in the index;
        the message lists all of them.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from safetensors.numpy import save_file
    >>> from attnpy import checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     save_file({"norm.weight": np.ones(3, np.float16)}, path)
    ...     len(checkpoints.read(folder))
    1
    """
    path = Path(path_at(path, "path"))
    if path.is_dir():
        found = [path / name for name in NAMES if reading.is_there(path / name)]
        if not found:
            *others, last = NAMES
            raise FileNotFoundError(
                f"{named(path)}: expected {', '.join(others)} or {last} in this folder"
            )
        path = found[0]
    return _read_index(path) if path.suffix == ".json" else Checkpoint(path)


def _places(file: FileIO, path: str | os.PathLike[str]) -> dict[str, Place]:
    """Return where the arrays of a file are.

    safetensors has checked the file, but accepts lists where the format has objects,
    and the file may have changed since.
    """
    size = int.from_bytes(reading.read_at(file, 8, 0), "little")
    try:
        header = json.loads(reading.read_at(file, min(size, reading.LARGEST), 8))
    except (ValueError, RecursionError) as error:
        raise _header_fault(path, f"a header with {named(error)}") from error
    if not isinstance(header, dict):
        raise _header_fault(path, f"the header {quoted(header)}")
    header.pop("__metadata__", None)
    places = {}
    for name, entry in header.items():
        if not _is_entry(entry):
            raise _header_fault(path, f"{quoted(entry)} for {named(name)}")
        begin = 8 + size + entry["data_offsets"][0]
        places[name] = Place(file, begin, tuple(entry["shape"]), entry["dtype"])
    return places


def _header_fault(path: str | os.PathLike[str], got: str) -> ValueError:
    return ValueError(f"{named(path)}: expected a safetensors file, got {got}")


def _is_entry(entry: object) -> bool:
    """Tell whether a header's entry for an array is complete and valid."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        return False
    name = DTYPES.get(entry["dtype"]) or OTHERS.get(entry["dtype"])
    if name is None:  # a dtype that is not read
        return True
    n_bytes = 2 if name == "bfloat16" else np.dtype(name).itemsize
    return bool(math.prod(shape) * n_bytes == offsets[1] - offsets[0])


def _are_sizes(numbers: object) -> TypeGuard[list[int]]:
    return isinstance(numbers, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers
    )


def _scattered(
    place: Place, start: int, shape: tuple[int, ...], dtype: np.dtype[Any], name: str
) -> Array:
    """Return rows of numbers that do not lie one after the other in the file."""
    assert place.strides is not None
    if 0 in shape:
        return np.empty(shape, dtype)
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, place.strides, strict=True))
    data = np.empty(extent, dtype)
    begin = place.begin + start * place.strides[0] * dtype.itemsize
    reading.fill(place.file, begin, data.view(np.uint8).data, name)
    strides = [s * dtype.itemsize for s in place.strides]
    return np.lib.stride_tricks.as_strided(data, shape, strides).copy()


def _numpy_dtype(name: str, dtype: str) -> np.dtype[Any]:
    """Return NumPy's dtype for a dtype of the format."""
    if dtype == "BF16":
        register_bfloat16()
    elif dtype not in DTYPES and dtype not in OTHERS:
        raise ValueError(
            f"{named(name)}: expected an array of a dtype that NumPy has, got "
            f"{named(dtype)}"
        )
    return np.dtype(DTYPES.get(dtype) or OTHERS[dtype])


def _read_index(path: Path) -> Checkpoint:
    """Open the files of an index, and check that they have its names."""
    shards = reading.read_config(path).get("weight_map")
    if not isinstance(shards, dict) or not all(map(reading.is_name, shards.values())):
        raise ValueError(
            f"{named(path)}: expected a 'weight_map' of names to files in the same "
            "folder"
        )
    tensors = Checkpoint(
        *(path.parent / shard for shard in sorted(set(shards.values())))
    )
    faults = []
    if missing := sorted(shards.keys() - tensors.keys()):
        faults.append(f"missing {listed(missing)}")
    if unexpected := sorted(tensors.keys() - shards.keys()):
        faults.append(f"unexpected {listed(unexpected)}")
    if faults:
        raise ValueError(f"{named(path)}: in the files {'; '.join(faults)}")
    return tensors


def register_bfloat16() -> None:
    """Import the package that teaches NumPy the dtype."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "attnpy.checkpoints: reading bfloat16 arrays needs the ml_dtypes package: "
            "pip install 'attnpy[weights]'"
        ) from error
