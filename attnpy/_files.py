"""Files that are written whole or not at all, and folders that are there."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


def folder_at(path: str | os.PathLike[str]) -> Path:
    """Return a model's folder, or say that names of models are no folders."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"folder: expected a path, got {type(path).__name__}")
    folder = Path(path)
    if not folder.exists():
        raise FileNotFoundError(
            "folder: expected a model's folder on this machine, as nothing is "
            f"downloaded, got {os.fspath(path)!r}"
        )
    return folder


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` once it is complete.

    It has the mode of the file that is there. After an error that file is as before.
    """
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        file = open(temporary, "xb")  # noqa: SIM115
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    try:
        with file:
            with suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
            yield file
        os.replace(temporary, target)
    except BaseException:
        os.remove(temporary)
        raise
