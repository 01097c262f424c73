"""Writing files completely or not at all, and checks of folders."""

from __future__ import annotations

import errno
import filecmp
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
    folder = Path(path_at(path, "folder"))
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


def path_at(path: str | os.PathLike[str], name: str) -> str:
    """Return the path of a file or folder, which may not be there, as it was given.

    One that begins with ~ is read as it stands, and refused if it needs a home.
    """
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(given, str):
        raise TypeError(f"{name}: expected a path, got {type(given).__name__}")
    try:
        system_name = os.fsencode(given)
    except UnicodeEncodeError:
        system_name = b""
    if not system_name or b"\0" in system_name:
        raise ValueError(f"{name}: expected a path, got {given!r}")
    meant = os.path.expanduser(given)
    if meant != given and not os.path.lexists(Path(given).parts[0]):
        raise FileNotFoundError(
            f"{name}: expected a path, got {given!r}, whose ~ is not expanded: write "
            f"os.path.expanduser({given!r})"
        )
    return given


class Folder(os.PathLike[str]):
    """A model's folder, whose files are replaced together, once all are complete.

    `write_folder` makes one. At any moment it has the old files or the new ones, or no
    ``config.json``, without which no model is read. If no more than one file changes,
    such as only the weights, there is no moment without it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path_at(path, "folder"))
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(
                f"folder: expected a folder or a new name, got a file, {str(path)!r}"
            )
        # A list, because an interrupt within a generator may be lost.
        above = [part for part in self.path.parents if part.exists()][:1]
        if above and not above[0].is_dir():
            raise NotADirectoryError(
                "folder: expected a folder or a new name in one, got "
                f"{str(path)!r}, which is below the file {str(above[0])!r}"
            )
        self.entry = os.path.realpath(self.path / MODEL_FILES[0])
        self.hidden = _temporary(self.entry)
        # New files by what they replace; None where a file is removed.
        self.staged: dict[str, str | None] = {}
        self.has_begun = False  # to replace files

    def __fspath__(self) -> str:
        """Return the path, so that models write to it, too."""
        return os.fspath(self.path)

    def write(self, name: str, fill: Callable[[BinaryIO], object]) -> None:
        """Let `fill` write a file, which waits for the others."""
        path = self.path / name
        os.makedirs(path.parent, exist_ok=True)
        write_whole(path, fill, self._stage)
        unfinished.update(filter(None, self.staged.values()))

    def _stage(self, temporary: str, target: str) -> None:
        if (before := self.staged.get(target)) is not None:
            os.unlink(before)
        self.staged[target] = temporary

    def remove(self, name: str) -> None:
        """Remove a file, if it is there, when the others are replaced."""
        self.staged[os.path.realpath(self.path / name)] = None

    def keep_same(self) -> None:
        """Leave files as they are that would not change."""
        same = [x for x in self.staged.items() if _are_same(*x)]
        several = len(self.staged) - len(same) > 1
        for target, temporary in same:
            if several and target == self.entry:
                continue  # it goes first and comes last
            del self.staged[target]
            if temporary is not None:
                os.unlink(temporary)
                unfinished.discard(temporary)

    def replace(self) -> None:
        """Replace those files that are left, or none if the first one fails."""
        names = sorted(self.staged, key=lambda target: target == self.entry)
        entry, is_first = self.staged.get(self.entry) or "", True
        self.has_begun = True
        if len(names) > 1 and os.path.exists(entry) and os.path.exists(self.entry):
            os.replace(self.entry, self.hidden)
        for target in names:
            temporary = self.staged[target]
            try:
                if temporary is None:
                    Path(target).unlink(missing_ok=True)
                elif os.path.exists(temporary):
                    os.replace(temporary, target)
            except OSError:
                if is_first:
                    if os.path.exists(self.hidden):
                        os.replace(self.hidden, self.entry)
                    self.has_begun = False
                raise
            is_first = False
        Path(self.hidden).unlink(missing_ok=True)
        unfinished.difference_update(filter(None, self.staged.values()))

    def settle(self) -> None:
        """Complete what `replace` has begun, and remove files that replaced nothing.

        An interrupt comes too late then: after another one this is called again.
        """
        if self.has_begun:
            try:
                self.replace()
            except OSError as error:
                if error.errno is None:  # it is an interrupt
                    raise
        for temporary in filter(None, self.staged.values()):
            Path(temporary).unlink(missing_ok=True)
            unfinished.discard(temporary)


def write_folder(
    folder: str | os.PathLike[str], write: Callable[[Folder], object]
) -> None:
    """Let `write` fill a folder, whose files are replaced once all are complete.

    A `Folder` that is being filled already gets more files. After an error the folder
    is unchanged, after an interrupt it is unchanged or complete.
    """
    if isinstance(folder, Folder):
        write(folder)
        return
    place = Folder(folder)
    try:
        write(place)
        place.keep_same()
        place.replace()
    except BaseException:
        for _ in range(20):
            try:  # not in a function of its own, which an interrupt could end first
                place.settle()
                break
            except BaseException:
                continue
        raise


def write_whole(
    path: str | os.PathLike[str],
    write: Callable[[BinaryIO], object],
    replace: Callable[[str, str], object] | None = None,
) -> None:
    """Let `write` fill a new file, which replaces `path` once it is complete.

    It has the mode of the existing file, or that of new files. After an error or an
    interrupt the file is either unchanged or complete, and no other file is left.
    `replace` is what happens to the complete file and `path`.
    """
    given = path_at(path, "path")
    target = os.path.realpath(given)
    temporary = _temporary(target)
    try:
        unfinished.add(temporary)
        mode = _mode_of(target)
        opener = partial(os.open, mode=0o666 if mode is None else 0o600)
        with open(temporary, "xb", opener=opener) as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            write(file)
        (os.replace if replace is None else replace)(temporary, target)
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


def _are_same(target: str, temporary: str | None) -> bool:
    """Tell whether a file has the content of its new one, or is not there for None."""
    if temporary is None:
        return not os.path.lexists(target)
    try:
        return os.path.isfile(target) and filecmp.cmp(temporary, target, False)
    except OSError:
        return False


def _temporary(target: str) -> str:
    """Return the name of a file that is to take another one's place.

    A new one each time, so that leftovers of a killed process do not interfere.
    """
    return os.path.join(os.path.dirname(target), f".attnpy-{secrets.token_hex(8)}.tmp")


def _mode_of(path: str) -> int | None:
    """Return the mode of a regular file, or None if there is nothing of this name."""
    try:
        found = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found):
        raise OSError(errno.EINVAL, "not a regular file", path)
    return stat.S_IMODE(found)
