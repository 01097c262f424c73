"""Files of PyTorch: their arrays are read, and nothing else of them runs."""

import json
import os
import pickle
import pickletools
import struct
import sys
import zipfile

import numpy as np
import pytest
from support import families, sentences
from support.comparisons import assert_same_bits, assert_same_parameters
from support.torch_files import (
    CLASSES,
    DICT,
    called,
    name,
    program,
    save,
    storage,
    tensor,
    value,
    write,
)

from attnpy import checkpoints
from attnpy.checkpoints import torch_files
from attnpy.models import BertEncoder, CausalDecoder, SentenceEncoder

pytestmark = pytest.mark.quick

NUMBERS = np.arange(24, dtype=np.float32)
STORED = storage("0", "float32", 24)


def written(path, *given, **more):
    """A file of one storage, NUMBERS, and one tensor, or of another pickle."""
    made = given[0] if len(given) == 1 else program({"w": tensor(STORED, *given)})
    write(path, made, [NUMBERS.tobytes()], **more)
    return path


def refused(path, words):
    with pytest.raises(ValueError, match=words) as caught:
        checkpoints.read(path)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 5000
    assert "expected" in text


# ---- Arrays --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CLASSES)
def test_arrays_of_every_dtype_are_read(tmp_path, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    arrays = {
        "a": (np.arange(12).reshape(3, 4) % 5).astype(dtype),
        "b.scalar": np.ones((), dtype),
        "c.empty": np.ones((0, 3), dtype),
    }
    save(tmp_path / "pytorch_model.bin", arrays)
    found = checkpoints.read(tmp_path)
    assert list(found) == list(arrays)
    for key, array in arrays.items():
        assert found[key].dtype == array.dtype
        assert_same_bits(found[key], array)
        assert found.describe(key)[0] == array.shape
    assert_same_bits(found.rows("a", 1, 3), arrays["a"][1:])
    with pytest.raises(ValueError, match="a: expected rows of 3, got 1 to 4"):
        found.rows("a", 1, 4)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((4, 6), (6, 1), 0),
        ((2, 3), (3, 1), 5),
        ((6, 4), (1, 6), 0),
        ((2, 2, 3), (12, 1, 4), 1),
        ((3, 1, 4), (4, 99, 1), 0),
        ((3, 4), (0, 1), 20),
        ((3,), (5,), 3),
        ((), (), 23),
        ((1,), (9,), 23),
        ((0, 7), (3, 2), 24),
    ],
)
def test_arrays_lie_in_storages_as_they_like(tmp_path, shape, strides, offset):
    found = checkpoints.read(written(tmp_path / "x.bin", shape, strides, offset))["w"]
    bytes_ = [4 * s for s in strides]
    expected = np.lib.stride_tricks.as_strided(NUMBERS[offset:], shape, bytes_)
    assert_same_bits(found, np.ascontiguousarray(expected).reshape(shape))
    rows = checkpoints.read(tmp_path / "x.bin")
    for start in range(shape[0] if shape else 0):
        assert_same_bits(rows.rows("w", start, start + 1), found[start : start + 1])


def test_arrays_may_share_a_storage_and_be_parameters(tmp_path):
    one = tensor(STORED, (24,), (1,))
    parameter = called("torch._utils _rebuild_parameter", one, True, called(DICT))
    metadata = b"}" + value("_metadata") + called(DICT) + b"sb"
    made = program({"a": one, "b": parameter})[:-1] + metadata + b"."
    found = checkpoints.read(written(tmp_path / "x.bin", made))
    for key in "ab":
        assert_same_bits(found[key], NUMBERS)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_models_are_read_as_from_safetensors(tmp_path, kind, monkeypatch):
    numpy_files = pytest.importorskip("safetensors.numpy")
    config = {**families.ENCODERS, **families.DECODERS}[kind]
    make = BertEncoder if kind == "bert" else CausalDecoder
    tensors = families.tensors(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(tensors, tmp_path / "model.safetensors")
    save(tmp_path / "pytorch_model.bin", {"other": np.ones(1)})
    expected = make.from_pretrained(tmp_path)  # safetensors come first
    (tmp_path / "model.safetensors").unlink()
    save(tmp_path / "pytorch_model.bin", tensors)
    monkeypatch.setitem(sys.modules, "safetensors", None)  # which nobody needs
    assert_same_parameters(make.from_pretrained(tmp_path), expected)
    (tmp_path / "pytorch_model.bin").unlink()
    names = list(tensors)
    shards = {x: f"pytorch_model-{i % 2}.bin" for i, x in enumerate(names)}
    for i in range(2):
        part = {x: tensors[x] for x in names[i::2]}
        save(tmp_path / f"pytorch_model-{i}.bin", part)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    for dtype in (np.float32, "auto"):
        assert_same_parameters(make.from_pretrained(tmp_path, dtype=dtype), expected)
    index.write_text(json.dumps({"weight_map": {**shards, "x": "pytorch_model-0.bin"}}))
    with pytest.raises(ValueError, match="in the files missing x"):
        checkpoints.read(tmp_path)


def test_sentences_are_read_from_it_too(tmp_path):
    sentences.require()
    import safetensors.numpy

    sentences.write(tmp_path, steps=("Dense",))
    sentences.write_dense(tmp_path / "2_Dense", 12, 5)
    expected = SentenceEncoder.from_pretrained(tmp_path).encode(sentences.TEXTS)
    for folder in (tmp_path, tmp_path / "2_Dense"):
        file = folder / "model.safetensors"
        save(folder / "pytorch_model.bin", safetensors.numpy.load_file(file))
        file.unlink()
    read = SentenceEncoder.from_pretrained(tmp_path)
    assert_same_bits(read.encode(sentences.TEXTS), expected)


def test_a_folder_without_weights_says_what_it_may_have(tmp_path):
    text = (
        r"expected model.safetensors, model.safetensors.index.json, pytorch_model.bin "
        r"or pytorch_model.bin.index.json in this folder"
    )
    with pytest.raises(FileNotFoundError, match=text):
        checkpoints.read(tmp_path)


def test_files_that_torch_writes_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    matrix = torch.arange(12.0).reshape(3, 4)
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.bool]
    given = {
        "plain": matrix,
        "turned": matrix.T,
        "part": matrix[1:, 1:3],
        "wide": matrix[:1].expand(3, 4),
        "parameter": torch.nn.Parameter(matrix),
        "scalar": torch.tensor(3.0),
        "empty": torch.ones(0, 3),
        **{str(kind): (matrix % 2).to(kind) for kind in kinds},
    }
    torch.save(given, tmp_path / "x.bin")
    found = checkpoints.read(tmp_path / "x.bin")
    assert list(found) == list(given)
    for key, expected in given.items():
        expected = expected.detach()
        assert found[key].shape == expected.shape
        np.testing.assert_array_equal(found[key].astype(float), expected.double())
    layer = torch.nn.TransformerEncoderLayer(8, 2)
    torch.save(layer.state_dict(), tmp_path / "x.bin")
    found = checkpoints.read(tmp_path / "x.bin")
    for key, expected in layer.state_dict().items():
        np.testing.assert_array_equal(found[key], expected)
    torch.save(layer, tmp_path / "x.bin")
    refused(tmp_path / "x.bin", r"got torch.nn.modules.transformer.TransformerEncoderL")
    torch.save(given, tmp_path / "x.bin", _use_new_zipfile_serialization=False)
    refused(tmp_path / "x.bin", "expected the zip format of PyTorch 1.6 and later")


# ---- What is refused -----------------------------------------------------------------


class Hostile:
    """A pickle of it writes a file when Python loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_no_code_of_a_pickle_runs(tmp_path):
    trap = tmp_path / "trap"
    for protocol in range(6):
        data = pickle.dumps({"w": Hostile(trap)}, protocol)
        refused(written(tmp_path / "x.bin", data), "got (the opcode|posix.mkdir)")
    for function in ("os system", "builtins eval", "torch load", "numpy load"):
        data = b"\x80\x02" + called(function, "1") + b"."
        words = f"got {function.replace(' ', '.')} in data.pkl"
        refused(written(tmp_path / "x.bin", data), words)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Hostile(trap)))  # shows that it would
    assert trap.exists()


ALLOWED = {*torch_files.WITH_ARGUMENT, *torch_files.CONSTANTS, *torch_files.STEPS}


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda op: op.name)
def test_every_other_opcode_is_refused(tmp_path, opcode):
    if opcode.name in {*ALLOWED, "PROTO", "STOP"}:
        return
    data = b"\x80\x02}" + opcode.code.encode("latin-1") + b"0\n0\n" + bytes(9) + b"."
    refused(
        written(tmp_path / "x.bin", data), f"got .*({opcode.name}|data|expect|quotes)"
    )


ONE = tensor(STORED, (24,), (1,))
BROKEN = {
    "": "pickle exhausted|got",
    ".": "got",
    "a list": value(()) + b".",
    "nothing": b"N.",
    "a number": program({"w": value(3)}),
    "a text": program({"w": value("x")}),
    "a dict inside": program({"w": called(DICT)}),
    "a storage": program({"w": STORED}),
    "a number for a name": b"\x80\x02" + called(DICT) + value(1) + ONE + b"s.",
    "a tuple for a name": b"\x80\x02" + called(DICT) + value((1,)) + ONE + b"s.",
    "a dict of something": b"\x80\x02" + called(DICT, 1) + b".",
    "attributes": program({"w": ONE})[:-1] + b"}" + value("x") + b"Nsb.",
    "no mark": b"\x80\x02t.",
    "no value": b"\x80\x02R.",
    "too few": b"\x80\x02N\x87.",
    "unknown in memory": b"\x80\x02h\x07.",
    "a function for a tensor": program({"w": name(DICT)}),
    "a call of a class": program({"w": called("torch FloatStorage")}),
    "a call with no tuple": program({"w": name(DICT) + b"NR"}),
    "a storage of a function": program(
        {"w": value(("storage", name(DICT), "0", "cpu", 24)) + b"Q"}
    ),
    "a storage of less": program({"w": value(("storage",)) + b"Q"}),
    "a negative storage": program(
        {"w": tensor(storage("0", "float32", -1), (1,), (1,))}
    ),
    "a parameter of nothing": program({"w": called("torch._utils _rebuild_parameter")}),
    "cut off": program({"w": ONE})[:-20],
    "no end": program({"w": ONE})[:-1],
    "a long text": b"\x80\x02X\xff\xff\xff\x7fx.",
}


@pytest.mark.parametrize("case", BROKEN)
def test_pickles_of_something_else_are_refused(tmp_path, case):
    data = BROKEN[case]
    data = data.encode() if isinstance(data, str) else data
    refused(written(tmp_path / "x.bin", data), "expected arrays that PyTorch has saved")


TENSORS = {
    "beyond": ((25,), (1,)),
    "beyond by its offset": ((24,), (1,), 1),
    "beyond by strides": ((2, 2), (23, 1)),
    "only offset": ((0,), (1,), 25),
    "more numbers than there are": ((10**9, 10**9), (0, 0)),
    "25 times the same": ((25,), (0,)),
    "negative shape": ((-1,), (1,)),
    "negative strides": ((2,), (-1,), 5),
    "negative offset": ((2,), (1,), -1),
    "huge": ((2**62, 2), (1, 1)),
    "beyond 64 bits": ((2**70,), (0,)),
    "other axes": ((2, 2), (1,)),
    "many axes": ((1,) * 33, (1,) * 33),
    "a flag": ((True,), (1,)),
    "a text": (("2",), (1,)),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_outside_of_their_storage_are_refused(tmp_path, case):
    checkpoints.read(written(tmp_path / "x.bin", (24,), (1,)))
    refused(written(tmp_path / "x.bin", *TENSORS[case]), "got a tensor")


def test_tensors_with_more_to_them_are_refused(tmp_path):
    hooks, state = called(DICT), b"}" + value("neg") + b"\x88s"
    made = tensor(STORED, (24,), (1,), 0, False, hooks, state)
    refused(
        written(tmp_path / "x.bin", program({"w": made})), "got a tensor with .*neg"
    )


STORAGES = {
    "another size": storage("0", "float32", 23),
    "another dtype": storage("0", "float64", 24),
    "another file": storage("1", "float32", 24),
    "a file outside": storage("../data.pkl", "float32", 24),
    "no key": storage("", "float32", 24),
    "a name that is no text": value(("storage", name("torch FloatStorage"), 0, "", 24))
    + b"Q",
}


@pytest.mark.parametrize("case", STORAGES)
def test_storages_are_files_of_the_archive_of_their_size(tmp_path, case):
    made = program({"w": tensor(STORAGES[case], (2,), (1,))})
    refused(written(tmp_path / "x.bin", made), "got (a|no|the) (storage|file)")


def test_archives_are_as_torch_writes_them(tmp_path):
    path, good = tmp_path / "x.bin", program({"w": ONE})
    for place in ("data.pkl", "data/0"):
        written(path, good, compressed=[place])
        refused(path, f"got {place} compressed or encrypted")
    written(path, good, byteorder=b"big")
    refused(path, "got numbers in another order of bytes, b'big'")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x", "y")
    refused(path, "got a zip file with 0 files data.pkl")
    written(path, good, **{"x/data.pkl": good})
    refused(path, "got a zip file with 2 files data.pkl")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as f:
        for _ in range(2):
            f.writestr("model/data.pkl", good)
    refused(path, "got a zip file with several files of one name")
    written(path, bytes(torch_files.LARGEST + 1))
    refused(path, "got data.pkl of 33554433 bytes, more than 33554432")
    data = written(path, good).read_bytes()
    for end in (len(data) - 1, len(data) // 2, 10, 4):
        path.write_bytes(data[:end])
        refused(path, "expected")
    for record, at in ((b"PK\x01\x02", 42), (b"PK\x03\x04", 0), (b"PK\x05\x06", 16)):
        broken = bytearray(data)
        where = broken.index(record) + at
        broken[where : where + 4] = struct.pack("<I", len(data) * 2 + 7)
        path.write_bytes(broken)
        refused(path, "expected")
    flags = bytearray(data)
    where = flags.rindex(b"PK\x01\x02") + 8
    flags[where] |= 1
    path.write_bytes(flags)
    refused(path, "compressed or encrypted")


def test_a_file_that_is_cut_off_later_is_an_error(tmp_path):
    path = tmp_path / "x.bin"
    found = checkpoints.read(written(path, (24,), (1,)))
    os.truncate(path, 100)
    with pytest.raises(ValueError, match=r"w: expected \d+ more bytes, got none"):
        found["w"]
