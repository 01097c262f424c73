"""Writing files completely or not at all, and checks of folders."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

# The temporary files being written, for code that ends the process abruptly.
unfinished: set[str] = set()


# Of a sentence-transformers folder, the model may be in a folder below.
MODEL_FILES = "config.json", "modules.json"
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)  # an owner and a model


def folder_at(
    path: str | os.PathLike[str], names: tuple[str, ...] = MODEL_FILES
) -> Path:
    """Return a model's folder, or an error that explains that nothing is downloaded.

    It has one of the files with these names.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"folder: expected a path, got {type(path).__name__}")
    folder = Path(path)
    if not folder.exists():
        name = os.fspath(path)
        fetched = f": hf download {name} --local-dir {folder.name} fetches one"
        raise FileNotFoundError(
            "folder: expected a model's folder on this machine, as nothing is "
            f"downloaded, got {name!r}{fetched if HUB_NAME.fullmatch(name) else ''}"
        )
    if not folder.is_dir():
        is_gguf = folder.suffix.lower() == ".gguf"
        ending = ": CausalDecoder.from_gguf reads GGUF files" if is_gguf else ""
        raise NotADirectoryError(
            "folder: expected a model's folder, got a file, "
            f"{os.fspath(path)!r}{ending}"
        )
    if not any((folder / name).exists() for name in names):
        raise FileNotFoundError(
            f"folder: expected a model's folder, with a {names[0]}, got "
            f"{os.fspath(path)!r} without"
        )
    return folder


def write_whole(
    path: str | os.PathLike[str], write: Callable[[BinaryIO], object]
) -> None:
    """Let `write` fill a new file, which replaces `path` once it is complete.

    It has the mode of the existing file, or that of new files. After an error or an
    interrupt the file is either unchanged or complete, and no other file is left.
    """
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(given, str):
        raise TypeError(f"path: expected a path, got {type(given).__name__}")
    target = os.path.realpath(given)
    # A new name each time, so that leftovers of a killed process do not interfere.
    temporary = os.path.join(
        os.path.dirname(target), f".attnpy-{secrets.token_hex(8)}.tmp"
    )
    try:
        unfinished.add(temporary)
        mode = _mode_of(target)
        opener = partial(os.open, mode=0o666 if mode is None else 0o600)
        with open(temporary, "xb", opener=opener) as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            write(file)
        os.replace(temporary, target)
        unfinished.discard(temporary)
    except BaseException as error:
        # Done first: a second interrupt cannot come before it.
        try:  # noqa: SIM105
            os.unlink(temporary)
        except OSError:  # it was not there yet, or has taken its place
            pass
        unfinished.discard(temporary)
        names = (None, temporary, target)
        if isinstance(error, OSError) and error.errno and error.filename in names:
            raise OSError(error.errno, error.strerror, given) from error
        raise


def _mode_of(path: str) -> int | None:
    """Return the mode of a regular file, or None if there is nothing of this name."""
    try:
        found = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found):
        raise OSError(errno.EINVAL, "not a regular file", path)
    return stat.S_IMODE(found)
