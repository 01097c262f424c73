"""Where arrays are in files of PyTorch, ``pytorch_model.bin``: no code of them runs.

torch.save writes a zip file: a pickle, ``data.pkl``, that says how tensors lie in
storages, and a file for each storage. A pickle is a program; this one is run here by an
interpreter that can make dicts, tuples and tensors, and nothing else.
"""

from __future__ import annotations

import itertools
import math
import os
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnpy._quoting import listed, named, quoted
from attnpy.checkpoints.reading import read_at

if TYPE_CHECKING:
    from io import FileIO

ZIP = b"PK\x03\x04"
# The pickle of a number with which the files of PyTorch before 1.6 begin.
OLDER = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# Bytes of data.pkl: some 150 are of each array.
LARGEST = 32 << 20
MOST_AXES = 32

# Classes of storages, by the dtypes of safetensors files, and their items' bytes.
STORAGES = {
    "DoubleStorage": ("F64", 8), "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2), "LongStorage": ("I64", 8), "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1), "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1), "ComplexFloatStorage": ("C64", 8),
}  # fmt: skip


class Global(NamedTuple):
    """What a pickle names: a class or function, which is never imported."""

    name: str


class Storage(NamedTuple):
    """Numbers in a file of the archive."""

    dtype: str
    item_bytes: int
    key: str
    numbers: int


class Tensor(NamedTuple):
    """Some of the numbers of a storage; strides are of numbers, too."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Found(NamedTuple):
    """An array in a file: the byte it begins at, and how it lies from there on.

    `strides` are of numbers, and None where they are those of the shape.
    """

    begin: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None


def is_one(file: FileIO) -> bool:
    """Tell whether a file is one of PyTorch, of whatever version."""
    begin = read_at(file, len(OLDER), 0)
    return begin == OLDER or begin.startswith(ZIP)


def find(file: FileIO, path: str | os.PathLike[str]) -> dict[str, Found]:
    """Return where the arrays of a file are, by name."""
    if read_at(file, len(OLDER), 0) == OLDER:
        raise ValueError(
            f"{named(path)}: expected the zip format of PyTorch 1.6 and later, got the "
            "older one (torch.save(torch.load(path, weights_only=True), path) writes "
            "it anew)"
        )
    try:
        archive = _Archive(file)
        tensors = _checked(unpickled(archive.read("data.pkl", LARGEST)))
        return {name: _found(tensor, archive) for name, tensor in tensors.items()}
    except (ValueError, LookupError, OverflowError) as error:
        raise ValueError(
            f"{named(path)}: expected arrays that PyTorch has saved, got {named(error)}"
        ) from error


# ---- The archive ---------------------------------------------------------------------


class _Archive:
    """The files of a zip file, which have to lie in it as they are."""

    def __init__(self, file: FileIO) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size
        try:
            entries = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, RuntimeError, OSError, EOFError, struct.error) as e:
            raise ValueError(f"a zip file with {named(e)}") from e
        self.entries = {entry.filename: entry for entry in entries}
        if len(self.entries) < len(entries):
            raise ValueError("a zip file with several files of one name")
        roots = [name for name in self.entries if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise ValueError(f"a zip file with {len(roots)} files data.pkl")
        self.root = roots[0].removesuffix("data.pkl")
        order = f"{self.root}byteorder"
        if order in self.entries and (given := self.read("byteorder", 9)) != b"little":
            raise ValueError(f"numbers in another order of bytes, {quoted(given)}")

    def read(self, name: str, most: int) -> bytes:
        """Return all that a file has."""
        begin, size = self.place(name)
        if size > most:
            raise ValueError(f"{name} of {size} bytes, more than {most}")
        return read_at(self.file, size, begin)

    def place(self, name: str) -> tuple[int, int]:
        """Return the byte at which a file begins, and how many it has."""
        if (entry := self.entries.get(self.root + name)) is None:
            raise ValueError(f"no file {named(name)}")
        is_plain = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1
        if not is_plain or entry.file_size != entry.compress_size:
            raise ValueError(f"{named(name)} compressed or encrypted")
        header = b""
        if entry.header_offset >= 0:
            header = read_at(self.file, 30, entry.header_offset)
        if len(header) < 30 or not header.startswith(ZIP):
            raise ValueError(f"no {named(name)} at the byte where it should be")
        begin = entry.header_offset + 30 + sum(struct.unpack("<HH", header[26:]))
        if begin + entry.file_size > self.size:
            raise ValueError(f"{named(name)} beyond the end of the file")
        return begin, entry.file_size


# ---- The pickle ----------------------------------------------------------------------


def unpickled(data: bytes) -> object:
    """Return what a pickle makes of dicts, tuples, numbers, texts and tensors."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in WITH_ARGUMENT:
            machine.stack.append(argument)
        elif opcode.name in CONSTANTS:
            machine.stack.append(CONSTANTS[opcode.name]())
        elif opcode.name in STEPS:
            STEPS[opcode.name](machine, argument)
        elif opcode.name not in ("PROTO", "STOP"):
            raise ValueError(f"the opcode {opcode.name} in data.pkl")
    return machine.pop(object)


class _Machine:
    """The state of a pickle's program."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def pop(self, kind: type | tuple[type, ...]) -> Any:
        """Take the last value, which is of this kind."""
        value = self.stack.pop()
        if not isinstance(value, kind):
            raise ValueError(f"{quoted(value)} where data.pkl needs another value")
        return value

    def top(self, kind: type) -> Any:
        """Return the last value, which is of this kind, and leave it there."""
        value = self.pop(kind)
        self.stack.append(value)
        return value

    def marked(self) -> list[Any]:
        """Take all values after the last mark."""
        begin = self.marks.pop()
        values = self.stack[begin:]
        del self.stack[begin:]
        return values

    def last(self, n: int) -> tuple[Any, ...]:
        """Take some values."""
        if len(self.stack) < n:
            raise ValueError("a data.pkl that takes more than it has made")
        values = tuple(self.stack[-n:])
        del self.stack[-n:]
        return values


def _name(machine: _Machine, argument: str) -> None:
    """Push a class or function, if it is one of tensors."""
    module, _, name = argument.partition(" ")
    if argument not in FUNCTIONS and not (module == "torch" and name in STORAGES):
        raise ValueError(f"{named(argument.replace(' ', '.'))} in data.pkl")
    machine.stack.append(Global(argument))


def _call(machine: _Machine, argument: None) -> None:
    """Make a dict or a tensor, as a function of PyTorch would."""
    given, function = machine.pop(tuple), machine.pop(Global)
    if type(given) is not tuple or function.name not in FUNCTIONS:
        raise ValueError(f"a call of {named(function.name)} in data.pkl")
    machine.stack.append(FUNCTIONS[function.name](*given))


def _storage(machine: _Machine, argument: None) -> None:
    """Push the storage that a tuple describes."""
    match machine.pop(tuple):
        case ("storage", Global(name), str(key), str(), int(count)) if count >= 0:
            dtype, item_bytes = STORAGES[name.removeprefix("torch ")]
            machine.stack.append(Storage(dtype, item_bytes, key, count))
        case other:
            raise ValueError(f"the storage {quoted(other)}")


def _put_items(machine: _Machine, values: list[Any]) -> None:
    """Put keys and values, one after the other, into the dict before them."""
    target = machine.top(dict)
    for key, value in itertools.zip_longest(values[::2], values[1::2]):
        if not isinstance(key, (str, int)):
            raise ValueError(f"{quoted(key)} for a name")
        target[key] = value


def _set_state(machine: _Machine, argument: None) -> None:
    """Leave the attributes of a dict alone: versions of modules."""
    state = machine.pop(dict)
    machine.top(dict)
    if set(state) - {"_metadata"}:
        raise ValueError(f"the attributes {listed(state)} of a dict")


def _empty(*given: object) -> dict[str, object]:
    if given:
        raise ValueError("an OrderedDict made of something")
    return {}


def _tensor(*given: Any) -> Tensor:
    """Return a tensor, as far as its own numbers tell."""
    match given[:4]:
        case (Storage() as storage, int(offset), tuple(shape), tuple(strides)):
            sizes = (offset, *shape, *strides)
            are_sizes = all(type(n) is int and 0 <= n < 2**63 for n in sizes)
            if are_sizes and len(shape) == len(strides) <= MOST_AXES:
                if any(given[6:7]):
                    raise ValueError(f"a tensor with {quoted(given[6])}")
                return Tensor(storage, offset, shape, strides)
    raise ValueError(f"a tensor made of {quoted(given)}")


def _parameter(*given: Any) -> Tensor:
    if not given or not isinstance(given[0], Tensor):
        raise ValueError(f"a parameter made of {quoted(given)}")
    return given[0]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "collections OrderedDict": _empty,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
}
WITH_ARGUMENT = frozenset(
    ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
)
CONSTANTS: Mapping[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
STEPS: Mapping[str, Callable[[_Machine, Any], object]] = {
    "GLOBAL": _name,
    "REDUCE": _call,
    "BINPERSID": _storage,
    "BUILD": _set_state,
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.marked())),
    "TUPLE1": lambda machine, _: machine.stack.append(machine.last(1)),
    "TUPLE2": lambda machine, _: machine.stack.append(machine.last(2)),
    "TUPLE3": lambda machine, _: machine.stack.append(machine.last(3)),
    "SETITEM": lambda machine, _: _put_items(machine, [*machine.last(2)]),
    "SETITEMS": lambda machine, _: _put_items(machine, machine.marked()),
    "BINPUT": lambda machine, n: machine.memo.update({n: machine.top(object)}),
    "LONG_BINPUT": lambda machine, n: machine.memo.update({n: machine.top(object)}),
    "BINGET": lambda machine, n: machine.stack.append(machine.memo[n]),
    "LONG_BINGET": lambda machine, n: machine.stack.append(machine.memo[n]),
}


# ---- Tensors in the archive ----------------------------------------------------------


def _checked(content: object) -> dict[str, Tensor]:
    """Require tensors by name."""
    if not isinstance(content, dict):
        raise ValueError(quoted(content))
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(f"{quoted(tensor)} for {quoted(name)}")
    return content


def _found(tensor: Tensor, archive: _Archive) -> Found:
    """Return where a tensor is, all of which has to be in its storage."""
    storage, shape, strides = tensor.storage, tensor.shape, tensor.strides
    begin, size = archive.place(f"data/{storage.key}")
    if size != storage.numbers * storage.item_bytes:
        raise ValueError(
            f"a storage of {size} bytes for {storage.numbers} numbers of "
            f"{storage.dtype}"
        )
    extent = 0
    if 0 not in shape:
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if tensor.offset + extent > storage.numbers or math.prod(shape) > storage.numbers:
        raise ValueError(
            f"a tensor of shape {quoted(shape)} in a storage of {storage.numbers} "
            "numbers"
        )
    begin += tensor.offset * storage.item_bytes
    usual = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    is_usual = extent == 0 or all(
        own == one or n == 1 for own, one, n in zip(strides, usual, shape, strict=True)
    )
    return Found(begin, shape, storage.dtype, None if is_usual else strides)
