"""Quoting files in messages: escaped, and shortened if long."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Characters of a value, of a name, and of a list of names.
LONGEST, LONGEST_NAME, LONGEST_LIST = 60, 200, 4000


class _Short(reprlib.Repr):
    """Reads only as much of a value as it shows, however large or deep the value is."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxstring = self.maxlong = self.maxother = longest


def quoted(value: object, longest: int = LONGEST) -> str:
    """Return a value's repr, in one line of at most this many characters."""
    text = _Short(longest).repr(value)
    return _cut(" ".join(text.split()) if "\n" in text else text, longest)


def named(name: object) -> str:
    """Return a name without quotes if it is readable, otherwise quoted.

    Errors of other packages are such names: they may contain parts of files.
    """
    text = str(name).replace("\n", " ")
    return (
        _cut(text, LONGEST_NAME) if text.isprintable() else quoted(text, LONGEST_NAME)
    )


def listed(names: Iterable[object]) -> str:
    """Return names separated by commas, and how many more there are."""
    return joined(map(named, names), ", ")


def joined(texts: Iterable[str], between: str = "; ") -> str:
    """Return texts with a separator, and how many more there are."""
    everything = list(texts)
    shown, length = [], 0
    for text in everything:
        if length > LONGEST_LIST:
            break
        shown.append(text)
        length += len(text) + len(between)
    rest = len(everything) - len(shown)
    return between.join(shown) + (f" and {rest} more" if rest else "")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
