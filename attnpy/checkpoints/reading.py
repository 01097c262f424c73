"""Opens files of a model's folder: regular files of limited size."""

from __future__ import annotations

import json
import os
import stat
import threading
import weakref
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnpy._files import path_at
from attnpy._quoting import named, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

# The limit of files that are read as a whole, in bytes: four times Gemma 3's
# tokenizer.json.
LARGEST = 128 << 20
# Characters of a file's name: the limit of most systems.
LONGEST_NAME = 255
# How files are opened, by what the system has of it.
READING = os.O_RDONLY
for flag in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    READING |= getattr(os, flag, 0)
# The class that packages in Rust raise when they panic; they do not export it.
THEIR_ERRORS = ("PanicException", "SafetensorError")
PYTHONS_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


SEEKING = threading.Lock()


def is_there(path: str | os.PathLike[str]) -> bool:
    """Tell whether there is anything of this name, even a broken link."""
    return os.path.lexists(path)


def is_name(text: object) -> bool:
    """Tell whether this is a valid name of another file in the same folder."""
    return (
        isinstance(text, str)
        and text.isprintable()
        and Path(text).name == text
        and text != ".."
        and len(text) <= LONGEST_NAME
    )


def opened(path: str | os.PathLike[str]) -> FileIO:
    """Open a file, which is closed when it is no longer used.

    Pipes, which would block, and devices, which may be endless, are refused.
    """
    path = path_at(path, "path")
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{named(path)}: expected a file, got none") from error
    if not is_file:
        other = "a folder" if os.path.isdir(path) else "something else"
        raise ValueError(f"{named(path)}: expected a file, got {other} of this name")
    number = os.open(path, READING)
    file = FileIO(number, closefd=False)
    weakref.finalize(file, os.close, number)
    return file


def read_into(file: FileIO, data: bytearray | memoryview, at: int) -> int:
    """Read the bytes of a file from one of them on, and return how many there were."""
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [data], at)
    with SEEKING:  # on Windows, where a read begins where the last one ended
        file.seek(at)
        return file.readinto(data)


def read_at(file: FileIO, size: int, at: int) -> bytes:
    """Return up to that many bytes of a file from one of them on."""
    data = bytearray(size)
    return bytes(data[: read_into(file, data, at)])


def fill(file: FileIO, at: int, data: memoryview, name: str) -> None:
    """Fill data with the bytes of a file from one of them on; `name` is of an array."""
    while data:  # the system reads 2 GiB at a time, at most
        n_read = read_into(file, data, at)
        if n_read == 0:
            raise ValueError(
                f"{named(name)}: expected {len(data)} more bytes, got none"
            )
        data, at = data[n_read:], at + n_read


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the contents of a file of limited size."""
    file = opened(path)
    size = os.fstat(file.fileno()).st_size
    if size > LARGEST:
        raise ValueError(
            f"{named(path)}: expected at most {LARGEST >> 20} MiB, got {size} bytes"
        )
    data = b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def read_json(
    path: str | os.PathLike[str], kind: type = dict, words: str = "a JSON object"
) -> Any:
    """Return the contents of a JSON file, which must be of this kind."""
    data = read_bytes(path)
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{named(path)}: expected {words}, got {named(error)}"
        ) from error
    if not isinstance(content, kind):
        raise ValueError(f"{named(path)}: expected {words}, got {quoted(content)}")
    return content


@contextmanager
def judged_elsewhere(name: object, kind: str) -> Iterator[None]:
    """Turn another package's errors about a file into one sentence.

    Packages in Rust raise bare exceptions or their own, and a BaseException when they
    panic. Exceptions of signal handlers pass.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except BaseException as error:
        theirs = type(error) is Exception or type(error).__name__ in THEIR_ERRORS
        if not theirs and not isinstance(error, PYTHONS_ERRORS):
            raise
        raise ValueError(
            f"{named(name)}: expected {kind}, got {named(error)}"
        ) from error


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
        If it is not a regular file with a JSON object, or larger than 128 MiB.

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
    path = Path(path_at(path, "path"))
    config: dict[str, Any] = read_json(path / "config.json" if path.is_dir() else path)
    return config
