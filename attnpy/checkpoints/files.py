"""What a model's folder has: arrays in safetensors files, a configuration in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from attnpy._typing import Array

# What safetensors calls the dtypes that are read here, and others that NumPy has.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
OTHERS = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL", "C64")


class Checkpoint(Mapping[str, "Array"]):
    """The arrays of safetensors files by name, each read when it is asked for.

    Parameters
    ----------
    *paths : str or path
        The files; no name is in two of them.

    Raises
    ------
    ImportError
        If the safetensors package is not installed.
    FileNotFoundError
        If there is no such file.
    ValueError
        If a file is not in the format, or a name is in two files; if an array that is
        asked for is of a dtype that NumPy lacks, as 8-bit floating numbers.

    See Also
    --------
    read : finds the files of a model.

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

    def __init__(self, *paths: str | os.PathLike[str]) -> None:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise ImportError(
                "attnpy.checkpoints: reading safetensors files needs the safetensors "
                "package: pip install 'attnpy[weights]'"
            ) from error
        self._files: dict[str, Any] = {}
        for path in paths:
            _check_file(Path(path))
            try:
                file: Any = safe_open(path, framework="np")
            except SafetensorError as error:
                raise ValueError(
                    f"{path}: expected a safetensors file, got {error}"
                ) from error
            for name in file.keys():  # noqa: SIM118
                if name in self._files:
                    raise ValueError(f"{path}: expected no {name}, as another file has")
                self._files[name] = file

    def __getitem__(self, name: str) -> Array:
        """Read an array into memory."""
        dtype = self.describe(name)[1]
        if dtype == "bfloat16":
            _register_bfloat16()
        elif dtype not in DTYPES.values() and dtype not in OTHERS:
            raise ValueError(
                f"{name}: expected an array of a dtype that NumPy has, got {dtype}"
            )
        array: Array = self._files[name].get_tensor(name)
        return array

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._files)

    def __len__(self) -> int:
        """Count the names."""
        return len(self._files)

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
        array = self._files[name].get_slice(name)
        dtype = str(array.get_dtype())
        return tuple(array.get_shape()), DTYPES.get(dtype, dtype)


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model's weights.

    Parameters
    ----------
    path : str or path
        A safetensors file; the index of several, ``model.safetensors.index.json``; or
        a folder with ``model.safetensors`` or that index in it.

    Returns
    -------
    Checkpoint
        A mapping of names to arrays. Arrays in bfloat16 need the ml_dtypes package.

    Raises
    ------
    ImportError
        If the safetensors package is not installed.
    FileNotFoundError
        If there is no such file.
    ValueError
        If a file is not in its format, or the files do not have the names that their
        index says; the message has all of them.

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
    path = Path(path)
    if path.is_dir():
        one, index = path / "model.safetensors", path / "model.safetensors.index.json"
        if one.exists():
            return Checkpoint(one)
        if not index.exists():
            raise FileNotFoundError(
                f"{path}: expected {one.name} or {index.name} in this folder"
            )
        path = index
    return _read_index(path) if path.suffix == ".json" else Checkpoint(path)


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a model's configuration.

    Parameters
    ----------
    path : str or path
        A JSON file, or a folder with ``config.json`` in it.

    Returns
    -------
    dict
        For the `from_config` of a model in `attnpy.models`.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it has something else than a JSON object.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from attnpy import checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "config.json")
    ...     _ = path.write_text('{"model_type": "bert"}')
    ...     checkpoints.read_config(folder)
    {'model_type': 'bert'}
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    _check_file(path)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected a JSON object, got {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: expected a JSON object, got {config!r:.60}")
    return config


def _check_file(path: Path) -> None:
    """Refuse pipes and the like, which would be waited for."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: expected a file, got something else of this name")


def _read_index(path: Path) -> Checkpoint:
    """Open the files of an index, which must have the names that it says."""
    shards = read_config(path).get("weight_map")
    if not isinstance(shards, dict) or not all(
        isinstance(shard, str) and Path(shard).name == shard
        for shard in shards.values()
    ):
        raise ValueError(
            f"{path}: expected a 'weight_map' of names to files in the same folder"
        )
    tensors = Checkpoint(
        *(path.parent / shard for shard in sorted(set(shards.values())))
    )
    faults = []
    if missing := sorted(shards.keys() - tensors.keys()):
        faults.append(f"missing {', '.join(missing)}")
    if unexpected := sorted(tensors.keys() - shards.keys()):
        faults.append(f"unexpected {', '.join(unexpected)}")
    if faults:
        raise ValueError(f"{path}: in the files {'; '.join(faults)}")
    return tensors


def _register_bfloat16() -> None:
    """Import the package that teaches NumPy the dtype."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "attnpy.checkpoints: reading bfloat16 arrays needs the ml_dtypes package: "
            "pip install 'attnpy[weights]'"
        ) from error
