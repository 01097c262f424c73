"""Files as torch.save writes them, of arrays, and of anything else."""

import struct
import zipfile

import numpy as np

# The classes of storages by the names of dtypes.
CLASSES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage", "int64": "LongStorage", "int32": "IntStorage",
    "int16": "ShortStorage", "int8": "CharStorage", "uint8": "ByteStorage",
    "bool": "BoolStorage", "complex64": "ComplexFloatStorage",
}  # fmt: skip
TENSOR, DICT = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"


def value(x):
    """The opcodes that push a number, a text, a tuple or a flag; bytes are opcodes."""
    if isinstance(x, bytes):
        return x
    if isinstance(x, bool):
        return b"\x88" if x else b"\x89"
    if isinstance(x, str):
        data = x.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(data)) + data
    if isinstance(x, tuple):
        return b"(" + b"".join(map(value, x)) + b"t"
    if x is None:
        return b"N"
    data = x.to_bytes(x.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def name(text):
    """The opcode that names a class or function."""
    return b"c" + text.replace(" ", "\n").encode() + b"\n"


def called(function, *given):
    """The opcodes of a call."""
    return name(function) + value(given) + b"R"


def storage(key, dtype, n_numbers):
    """The opcodes that push a storage."""
    kind = name(f"torch {CLASSES[dtype]}")
    return value(("storage", kind, key, "cpu", n_numbers)) + b"Q"


def tensor(stored, shape, strides, offset=0, *more):
    """The opcodes that push a tensor."""
    more = more or (False, called(DICT))
    return called(TENSOR, stored, offset, tuple(shape), tuple(strides), *more)


def program(items):
    """The pickle of a dict of opcodes by name."""
    pairs = b"".join(value(key) + item for key, item in items.items())
    return b"\x80\x02" + called(DICT) + b"q\x00(" + pairs + b"u."


def write(path, pickle, storages=(), compressed=(), root="model", **more):
    """Write an archive of a pickle and the bytes of storages."""
    with zipfile.ZipFile(path, "w") as file:
        files = {"data.pkl": pickle, **more}
        files |= {f"data/{i}": data for i, data in enumerate(storages)}
        for place, data in files.items():
            kind = zipfile.ZIP_DEFLATED if place in compressed else zipfile.ZIP_STORED
            file.writestr(f"{root}/{place}", data, kind)


def save(path, arrays):
    """Write arrays by name, as torch.save does."""
    items, storages = {}, []
    for key, array in arrays.items():
        array = np.asarray(array)
        strides = [s // array.itemsize for s in np.empty_like(array, order="C").strides]
        stored = storage(str(len(storages)), array.dtype.name, array.size)
        items[key] = tensor(stored, array.shape, strides)
        storages.append(np.ascontiguousarray(array).tobytes())
    write(path, program(items), storages, byteorder=b"little", version=b"3\n")
