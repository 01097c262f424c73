"""GGUF files that are cut off or hostile: one clear error, and little memory."""

import os
import struct
import tracemalloc

import numpy as np
import pytest
from support import families, gguf_files
from support.errors import refused

from attnpy import checkpoints
from attnpy.checkpoints import gguf_header
from attnpy.models import CausalDecoder

pytestmark = pytest.mark.quick

pytest.importorskip("gguf")

METADATA = {"general.architecture": "llama", "a.texts": ["x", "yz"], "a.n": 7}
ARRAYS = {
    "v": np.arange(8, dtype=np.float32),
    "w": gguf_files.random_blocks("Q8_0", (2, 64)),
}


@pytest.fixture
def opened(tmp_path):
    """Open a file of these bytes."""

    def load(data):
        path = tmp_path / "m.gguf"
        path.write_bytes(data)
        return checkpoints.load_gguf(path)

    return load


def u4(*numbers):
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u8(*numbers):
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def info(name, axes, type_number=0, offset=0):
    return (
        gguf_files.string(name)
        + u4(len(axes))
        + u8(*axes)
        + u4(type_number)
        + u8(offset)
    )


def arrays(*infos, data=256, metadata=None):
    """A file that says this of its arrays."""
    head = gguf_files.start(metadata or {}, b"".join(infos), len(infos))
    return head + bytes(data)


def value(content):
    """A file with this value."""
    return gguf_files.start({"a.key": content})


TEXTS, NUMBERS = u4(gguf_files.ARRAY, gguf_files.STRING), u4(gguf_files.ARRAY, 0)
V = info("v", (8,))
FILES = {
    "empty": b"",
    "another format": b"PK\x03\x04" + bytes(60),
    "version 1": gguf_files.start({}, version=1),
    "version 4": gguf_files.start({}, version=4),
    "big-endian": b"GGUF" + struct.pack(">I", 3) + bytes(40),
    "many values": gguf_files.start({}, n_values=2**63),
    "one value more": gguf_files.start(METADATA, n_values=4),
    "many arrays": gguf_files.start({}, n_arrays=2**64 - 1),
    "a long key": b"GGUF" + u4(3) + u8(0, 1) + u8(2**62) + bytes(60),
    "no key": gguf_files.start({"": 1}),
    "a key not in UTF-8": b"GGUF" + u4(3) + u8(0, 1) + u8(2) + b"\xff\xfe" + bytes(60),
    "a key of 2,000": gguf_files.start({"x" * 2000: 1}),
    "a key twice": gguf_files.start({"a": 1}, n_values=2)
    + gguf_files.string("a")
    + gguf_files.value(1),
    "a kind of values": value(u4(13)),
    "a kind of numbers": value(u4(gguf_files.ARRAY, 13) + u8(1)),
    "a flag": value(u4(7) + b"\x02"),
    "a text": value(u4(gguf_files.STRING) + u8(2**40)),
    "a text not in UTF-8": value(["ok", b"\xc3\x28"]),
    "many texts": value(TEXTS + u8(2**60)),
    "many numbers": value(NUMBERS + u8(2**60)),
    "arrays of arrays": value(u4(gguf_files.ARRAY, gguf_files.ARRAY) + u8(1)),
    "alignment 0": arrays(V, metadata={"general.alignment": 0}),
    "alignment 24": arrays(V, metadata={"general.alignment": 24}),
    "alignment of 2 GiB": arrays(V, metadata={"general.alignment": 2**31}),
    "alignment as text": arrays(V, metadata={"general.alignment": "32"}),
    "no name": arrays(info("", (8,))),
    "an array twice": arrays(V, info("v", (8,), offset=32)),
    "no axes": arrays(info("v", ())),
    "five axes": arrays(info("v", (1, 1, 1, 1, 8))),
    "many axes": arrays(gguf_files.string("v") + u4(2**31)),
    "size 0": arrays(info("v", (8, 0))),
    "a large size": arrays(info("v", (2**63,))),
    "sizes whose product is large": arrays(info("v", (2**40, 2**40))),
    "sizes whose product overflows to 0": arrays(info("v", (2**32, 2**32))),
    "a type": arrays(info("v", (8,), 999)),
    "a type that was given up": arrays(info("v", (32,), 4)),
    "half a block": arrays(info("v", (48, 2), 8)),
    "an odd offset": arrays(info("v", (8,), offset=4)),
    "a far offset": arrays(info("v", (8,), offset=2**63)),
    "overlapping": arrays(info("v", (16,)), info("w", (16,), offset=32)),
    "the same place": arrays(V, info("w", (8,))),
    "beyond the end": arrays(info("v", (8,), offset=256)),
}


@pytest.mark.parametrize("what", FILES)
def test_a_hostile_file_is_refused_in_one_sentence(opened, what):
    tracemalloc.start()
    try:
        with refused(ValueError, ".*m.gguf") as caught:
            opened(FILES[what])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 600
    assert peak < 4 << 20, f"{peak} bytes"


def test_a_right_file_of_the_same_parts_is_read(opened):
    file = opened(arrays(V, info("w", (32,), 8, offset=32)))
    assert file["v"].tolist() == [0] * 8
    assert len(opened(value(["ok", "é"])).metadata["a.key"]) == 2


def test_a_file_that_ends_anywhere_is_refused(opened):
    whole = gguf_files.file(METADATA, ARRAYS)
    end = len(whole) - (-len(ARRAYS["w"].data) % 32)  # without padding after the last
    opened(whole[:end])
    for length in range(end):
        with refused(ValueError, ".*m.gguf"):
            opened(whole[:length])


def test_a_byte_that_is_changed_gives_an_error_or_another_file(opened):
    rng = np.random.default_rng(0)
    whole = gguf_files.file(METADATA, ARRAYS)
    counts = {True: 0, False: 0}
    for _ in range(1500):
        data = bytearray(whole)
        at = int(rng.integers(300))
        data[at] = int(
            rng.choice([0, 1, 127, 128, 255, data[at] ^ (1 << rng.integers(8))])
        )
        try:
            file = opened(bytes(data))
            read = {name: file[name] for name in file}
            counts[True] += len(read) == 2
        except ValueError as error:
            assert "expected" in str(error)
            counts[False] += 1
    assert min(counts.values()) > 100


def test_a_file_that_is_cut_off_later_is_an_error(tmp_path):
    path = gguf_files.write(tmp_path / "m.gguf", METADATA, ARRAYS)
    file = checkpoints.load_gguf(path)
    os.truncate(path, path.stat().st_size - 200)
    with refused(ValueError, "w"):
        file["w"]


def test_a_pipe_or_a_folder_is_refused_unread(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with refused(ValueError, ".*"):
            checkpoints.load_gguf(tmp_path / name)


def test_more_before_the_arrays_than_any_model_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_header, "LARGEST", 1 << 10)
    monkeypatch.setattr(gguf_header, "MOST_STRINGS", 100)
    path = gguf_files.write(tmp_path / "m.gguf", {"a": "x" * 2000}, {})
    with refused(ValueError, ".*m.gguf"):
        checkpoints.load_gguf(path)
    gguf_files.write(path, {"a": ["x"] * 100}, {})
    with refused(ValueError, ".*m.gguf"):
        checkpoints.load_gguf(path)


def test_a_model_that_its_arrays_do_not_bear_out_is_refused_before_it_is_made(tmp_path):
    # Layers of 16 GB each, by the metadata.
    metadata, arrays = gguf_files.model(families.LLAMA)
    metadata |= {"llama.feed_forward_length": 2**30}
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    tracemalloc.start()
    try:
        with refused(ValueError, ".*m.gguf"):
            CausalDecoder.from_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_what_a_file_says_is_escaped_in_messages(opened):
    for data in (
        value(u4(99)).replace(b"a.key", b"\x1b[31m"),
        arrays(info("\x1b[31m\n" * 100, (8,), 999)),
    ):
        with refused(ValueError, ".*m.gguf") as caught:
            opened(data)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 600
