"""Functions that XLA calls on a CPU, with NumPy arrays on XLA's memory.

The structures are those of XLA's foreign-function interface that are needed here, from
`xla/ffi/api/c_api.h`, which jaxlib has in `jax.ffi.include_dir()`. Within a major
version they only grow at the end.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_int, c_int64, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _attnpy

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnpy._typing import Array

    # The function that is called with a text, the operands and the results, which it
    # writes.
    Function = Callable[[bytes, list[Array], list[Array]], None]

MAJOR_VERSION = 0
METADATA = 1  # the type of an extension
DTYPES = {
    1: "bool",
    4: "int32",
    10: "float16",
    11: "float32",
    12: "float64",
    16: "bfloat16",
}


class Version(Structure):
    """A version of the interface."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("major", c_int),
        ("minor", c_int),
    )


class Buffer(Structure):
    """An array, in the order of C."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class Buffers(Structure):
    """Operands, or results."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("size", c_int64),
        ("types", c_void_p),
        ("buffers", POINTER(POINTER(Buffer))),
    )


class Text(Structure):
    """Bytes of UTF-8."""

    _fields_ = (("address", c_void_p), ("size", c_size_t))


class Attributes(Structure):
    """Named ones; here a single text."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("size", c_int64),
        ("types", c_void_p),
        ("names", c_void_p),
        ("values", POINTER(POINTER(Text))),
    )


class Api(Structure):
    """XLA's interface; only its version is needed here."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("version", Version),
    )


class Frame(Structure):
    """A call."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("api", POINTER(Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("operands", Buffers),
        ("results", Buffers),
        ("attributes", Attributes),
    )


class Metadata(Structure):
    """Metadata that XLA requests when a function is registered."""

    _fields_ = (("struct_size", c_size_t), ("version", Version))


class Extension(Structure):
    """An extension of a call; a request for metadata has one to fill in."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(Metadata)),
    )


def register(name: str, function: Function) -> None:
    """Let XLA call a function by a name; only one can be registered.

    Its exceptions become errors of XLA, and these exceptions of JAX.
    """
    from jax import ffi

    capsule_of: Any = ffi.pycapsule
    address = _attnpy.answer_xla(functools.partial(_answer, function))
    ffi.register_ffi_target(name, capsule_of(address), platform="cpu")


def _answer(function: Function, address: int) -> None:
    """Answer a request of XLA."""
    frame = Frame.from_address(address)
    if not _described(frame):
        text = frame.attributes.values[0].contents
        function(
            ctypes.string_at(text.address, text.size),
            _arrays(frame.operands),
            _arrays(frame.results),
        )


def _described(frame: Frame) -> bool:
    """Fill in the metadata, if they are requested."""
    address = frame.extension
    while address:
        extension = Extension.from_address(address)
        if extension.type == METADATA:
            ours, theirs = extension.metadata.contents, frame.api.contents.version
            ours.version.major = MAJOR_VERSION
            ours.version.minor = theirs.minor
            return True
        address = extension.next
    return False


def _arrays(buffers: Buffers) -> list[Array]:
    """Return arrays on the memory of these buffers."""
    if buffers.struct_size != ctypes.sizeof(Buffers):
        raise RuntimeError("attnpy.integrations.jax does not know this jaxlib's calls")
    return [_array(buffers.buffers[i].contents) for i in range(buffers.size)]


def _array(buffer: Buffer) -> Array:
    shape = buffer.dims[: buffer.rank]
    dtype = _dtype(buffer.dtype)
    n_bytes = dtype.itemsize
    for n in shape:
        n_bytes *= n
    if n_bytes == 0:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * n_bytes).from_address(buffer.data)
    return np.ndarray(shape, dtype, memory)


@functools.cache
def _dtype(number: int) -> np.dtype[Any]:
    return np.dtype(DTYPES[number])
