"""What a GGUF file says before its arrays: its metadata, and where each array is.

Read here and not by the gguf package, whose reader maps the file, believes its counts,
and takes seconds for a vocabulary.
"""

from __future__ import annotations

import math
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy._quoting import listed, named, quoted
from attnpy.checkpoints.reading import LARGEST, read_at

if TYPE_CHECKING:
    from io import FileIO

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT = "general.alignment"
USUAL_ALIGNMENT, LARGEST_ALIGNMENT = 32, 1 << 20
# More of anything is a mistake: of axes as in ggml, of strings four times as many as
# the tokens and merges of Gemma 3.
MOST_AXES, MOST_STRINGS = 4, 1 << 22
LONGEST_NAME = 1024
FIRST_BYTES = 1 << 16

# Kinds of values by their numbers in the format.
SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
BOOLEAN, STRING, ARRAY = 7, 8, 9
# The least that a value with its name, and what is said of an array, have in bytes.
LEAST_VALUE, LEAST_ARRAY = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8


class Place(NamedTuple):
    """Where an array is: an open file, the first byte, what is there.

    Attributes
    ----------
    shape : tuple of int
        In C order: the last axis is that along which numbers are in blocks.
    type_name : str
        What ggml calls the form of its numbers.
    row_bytes : int
        Of a row along the last axis.
    head_dim : int
        Where it is not 0, the rows of a head of this size are in another order: see
        `gguf.GgufFile.split_halves`.
    """

    file: FileIO
    begin: int
    shape: tuple[int, ...]
    type_name: str
    row_bytes: int
    head_dim: int = 0


def read(file: FileIO, path: object) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return the metadata of a file and the places of its arrays, by name."""
    start = _Start(file, path)
    if (magic := start.take(4)) != MAGIC:
        raise start.fault(f"a GGUF file, which begins with {MAGIC!r}", repr(magic))
    version = start.number("<u4")
    if version not in VERSIONS:
        kind = "a file for big-endian machines" if version & 0xFFFF == 0 else version
        raise start.fault("version 2 or 3 of GGUF", str(kind))
    n_arrays = start.count(LEAST_ARRAY, "arrays")
    n_values = start.count(LEAST_VALUE, "values")
    metadata: dict[str, Any] = {}
    for _ in range(n_values):
        key = start.name()
        if key in metadata:
            raise start.fault("each key once", f"{named(key)} again")
        metadata[key] = start.value(key)
    infos = {}
    for _ in range(n_arrays):
        name = start.name()
        if name in infos:
            raise start.fault("each array once", f"{named(name)} again")
        infos[name] = start.info(name)
    return metadata, _places(start, infos, _alignment(start, metadata))


class _Start:
    """Reads the first part of a file in order: no more bytes than are asked for."""

    def __init__(self, file: FileIO, path: object) -> None:
        self.file, self.path = file, path
        self.size = os.fstat(file.fileno()).st_size
        self.at, self.n_strings = 0, 0
        self.data = b""

    def fault(self, expected: str, got: str) -> ValueError:
        return ValueError(f"{named(self.path)}: expected {expected}, got {got}")

    def take(self, n_bytes: int) -> bytes:
        """Return the next bytes."""
        first, self.at = self.at, self.at + n_bytes
        if self.at > min(self.size, LARGEST):
            if self.size >= self.at:
                raise self.fault(
                    f"at most {LARGEST >> 20} MiB before the arrays", "more"
                )
            raise self.fault(
                f"{n_bytes} bytes at byte {first}", f"a file of {self.size}"
            )
        while len(self.data) < self.at:
            missing = self.at - len(self.data)
            wanted = max(missing, len(self.data), FIRST_BYTES)
            more = read_at(self.file, wanted, len(self.data))
            if not more:
                raise self.fault("a file that stays as it is", "one that was cut off")
            self.data += more
        return self.data[first : self.at]

    def number(self, dtype: str) -> int:
        return int(np.frombuffer(self.take(np.dtype(dtype).itemsize), dtype)[0])

    def count(self, least: int, what: str) -> int:
        """Return how many follow, each of at least this many bytes."""
        n: int = struct.unpack("<Q", self.take(8))[0]
        if n * least > self.size - self.at:
            raise self.fault(
                f"as many {what} as {self.size - self.at} bytes hold", str(n)
            )
        return n

    def string(self, what: str) -> str:
        """Return a text; an error names it."""
        n: int = struct.unpack("<Q", self.take(8))[0]
        if n > self.size - self.at:
            raise self.fault(
                f"{named(what)} in {self.size - self.at} bytes", f"a length of {n}"
            )
        self.n_strings += 1
        try:
            return self.take(n).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(f"{named(what)} in UTF-8", named(error)) from error

    def name(self) -> str:
        """Return the name of a value or an array."""
        text = self.string("a name")
        if not 0 < len(text) <= LONGEST_NAME:
            raise self.fault(
                f"names of 1 to {LONGEST_NAME} characters", f"one of {len(text)}"
            )
        return text

    def value(self, key: str) -> Any:
        """Return a value; numbers of an array are an array."""
        kind = self.number("<u4")
        if kind == STRING:
            return self.string(key)
        if kind == ARRAY:
            return self.values(key)
        return _plain(self.numbers(key, kind, 1)[0])

    def values(self, key: str) -> Any:
        """Return a list of texts, or an array of numbers."""
        kind = self.number("<u4")
        if kind == STRING:
            n = self.count(8, f"texts of {named(key)}")
            if n + self.n_strings > MOST_STRINGS:
                raise self.fault(
                    f"{named(key)} of at most {MOST_STRINGS} texts", str(n)
                )
            return [self.string(key) for _ in range(n)]
        if kind == ARRAY:
            raise self.fault(f"{named(key)} of texts or numbers", "arrays of arrays")
        if kind not in SCALARS:
            raise self._no_kind(key, kind)
        size = np.dtype(SCALARS[kind]).itemsize
        return self.numbers(key, kind, self.count(size, f"numbers of {named(key)}"))

    def numbers(self, key: str, kind: int, n: int) -> Any:
        if kind not in SCALARS:
            raise self._no_kind(key, kind)
        data = self.take(n * np.dtype(SCALARS[kind]).itemsize)
        if kind == BOOLEAN and max(data, default=0) > 1:
            raise self.fault(f"{named(key)} to be true or false", str(max(data)))
        return np.frombuffer(data, SCALARS[kind])

    def _no_kind(self, key: str, kind: int) -> ValueError:
        return self.fault(f"{named(key)} of one of the 13 kinds of values", str(kind))

    def info(self, name: str) -> tuple[tuple[int, ...], int, int]:
        """Return the shape of an array, the number of its type, and where it is."""
        n_axes = self.number("<u4")
        if not 1 <= n_axes <= MOST_AXES:
            raise self.fault(f"{named(name)} of 1 to {MOST_AXES} axes", str(n_axes))
        sizes = struct.unpack(f"<{n_axes}Q", self.take(8 * n_axes))
        if math.prod(sizes) == 0:
            raise self.fault(f"{named(name)} of sizes above 0", str(sizes))
        return sizes[::-1], self.number("<u4"), self.number("<u8")


def _plain(number: np.generic) -> Any:
    """Return a value as Python has it.

    A float32 is the shortest decimal number that rounds to it, so that 1e-5 stays what
    it was before it was written.
    """
    if isinstance(number, np.float32) and np.isfinite(number):
        return float(str(number))
    return number.item()


def _alignment(start: _Start, metadata: dict[str, Any]) -> int:
    """Return the alignment of arrays, in bytes."""
    alignment = metadata.get(ALIGNMENT, USUAL_ALIGNMENT)
    is_integer = isinstance(alignment, int) and not isinstance(alignment, bool)
    if (
        not is_integer
        or not 1 <= alignment <= LARGEST_ALIGNMENT
        or (alignment & (alignment - 1))
    ):
        raise start.fault(
            f"{ALIGNMENT} to be a power of 2 up to {LARGEST_ALIGNMENT}",
            quoted(alignment),
        )
    return int(alignment)


def _places(
    start: _Start, infos: dict[str, tuple[tuple[int, ...], int, int]], alignment: int
) -> dict[str, Place]:
    """Return where the arrays are: inside of the file, and apart from each other."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    known = {
        int(kind): (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGML_QUANT_SIZES
    }
    first = -(-start.at // alignment) * alignment
    places = {}
    for name, (shape, number, offset) in infos.items():
        if number not in known:
            retired = number in {int(kind) for kind in GGMLQuantizationType}
            raise start.fault(
                f"{named(name)} of a type that the gguf package knows",
                f"{number}{', which is no longer used' if retired else ''}",
            )
        type_name, n_numbers, n_bytes = known[number]
        if shape[-1] % n_numbers:
            raise start.fault(
                f"{named(name)} of rows of a multiple of {n_numbers}, as {type_name} "
                "has blocks",
                str(shape),
            )
        if offset % alignment:
            raise start.fault(
                f"{named(name)} at a multiple of {alignment} bytes", str(offset)
            )
        row_bytes = shape[-1] // n_numbers * n_bytes
        places[name] = Place(start.file, first + offset, shape, type_name, row_bytes)
    _check_apart(start, places)
    return places


def _check_apart(start: _Start, places: dict[str, Place]) -> None:
    """Refuse arrays that overlap, or reach beyond the end of the file."""
    end, before = 0, ""
    for name, place in sorted(places.items(), key=lambda item: item[1].begin):
        if place.begin < end:
            raise start.fault("arrays apart from each other", listed([before, name]))
        end, before = place.begin + size_of(place), name
        if end > start.size:
            raise start.fault(
                f"a file of at least {end} bytes, where {named(name)} ends",
                f"{start.size}: it is not complete",
            )


def size_of(place: Place) -> int:
    """Return how many bytes an array has."""
    return math.prod(place.shape[:-1]) * place.row_bytes
