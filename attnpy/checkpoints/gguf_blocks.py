"""Blocks of GGUF files as codes and scales, for each of ggml's forms of integers.

ggml-common.h of llama.cpp defines the blocks, and quants.py of the package gguf reads
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnpy._typing import Array

    Bytes = NDArray[np.uint8]  # of blocks, (n, size)


class Blocks(NamedTuple):
    """Numbers of n blocks, as `QuantizedWeight.from_blocks` says."""

    codes: Array  # (n, numbers of a block)
    scale: Array  # (n, groups of a block)
    minimum: Array | None = None
    coarse_scale: Array | None = None  # (n, 1)
    coarse_minimum: Array | None = None


class Form(NamedTuple):
    """How blocks are read, and how `QuantizedWeight.from_blocks` keeps them."""

    size: int  # of a block, bytes
    read: Callable[[Bytes], Blocks]
    options: dict[str, Any]


def _halves(data: Bytes) -> Array:
    """Return float16 numbers."""
    return np.ascontiguousarray(data).view(np.float16)


def _nibbles(data: Bytes, width: int) -> NDArray[np.uint8]:
    """Split each `width` bytes into their lower halves, then their upper ones."""
    lines = data.reshape(len(data), -1, 1, width)
    shifts = np.array([0, 4], np.uint8).reshape(2, 1)
    found: Array = lines >> shifts & 15
    return found.reshape(len(data), -1)


def _bits(data: Bytes, n: int, width: int) -> NDArray[np.uint8]:
    """Split each `width` bytes into their lowest n bits, then the next n, and so on."""
    lines = data.reshape(len(data), -1, 1, width)
    shifts = np.arange(0, 8, n, dtype=np.uint8).reshape(-1, 1)
    found: Array = lines >> shifts & ((1 << n) - 1)
    return found.reshape(len(data), -1)


def _fifth_bits(data: Bytes) -> NDArray[np.uint8]:
    """Return the bits of 32 numbers, the first one's the lowest."""
    return np.unpackbits(data, axis=-1, bitorder="little")


def _q8_0(data: Bytes) -> Blocks:
    return Blocks(data[:, 2:].view(np.int8), _halves(data[:, :2]))


def _q4_0(data: Bytes) -> Blocks:
    return Blocks(_nibbles(data[:, 2:], 16), _halves(data[:, :2]))


def _q4_1(data: Bytes) -> Blocks:
    return Blocks(
        _nibbles(data[:, 4:], 16), _halves(data[:, :2]), _halves(data[:, 2:4])
    )


def _mxfp4(data: Bytes) -> Blocks:
    return Blocks(_nibbles(data[:, 1:], 16), data[:, :1])


def _q5_0(data: Bytes) -> Blocks:
    codes = _nibbles(data[:, 6:], 16) | _fifth_bits(data[:, 2:6]) << 4
    return Blocks(codes, _halves(data[:, :2]))


def _q5_1(data: Bytes) -> Blocks:
    codes = _nibbles(data[:, 8:], 16) | _fifth_bits(data[:, 4:8]) << 4
    return Blocks(codes, _halves(data[:, :2]), _halves(data[:, 2:4]))


def _k_factors(data: Bytes) -> dict[str, Array]:
    """Return scales and minimums of 8 groups, of 6 bits in the bytes 4 to 15."""
    first, second, both = data[:, 4:8], data[:, 8:12], data[:, 12:16]
    scale = np.concatenate([first & 63, both & 15 | first >> 2 & 48], 1)
    minimum = np.concatenate([second & 63, both >> 4 | second >> 2 & 48], 1)
    return {
        "scale": scale.view(np.int8),
        "minimum": minimum.view(np.int8),
        "coarse_scale": _halves(data[:, :2]),
        "coarse_minimum": -_halves(data[:, 2:4]),
    }


def _q4_k(data: Bytes) -> Blocks:
    return Blocks(_nibbles(data[:, 16:], 32), **_k_factors(data))


def _q5_k(data: Bytes) -> Blocks:
    codes = _nibbles(data[:, 48:], 32) | _bits(data[:, 16:48], 1, 32) << 4
    return Blocks(codes, **_k_factors(data))


def _q6_k(data: Bytes) -> Blocks:
    codes = _nibbles(data[:, :128], 64) | _bits(data[:, 128:192], 2, 32) << 4
    return Blocks(
        codes,
        data[:, 192:208].view(np.int8),
        coarse_scale=_halves(data[:, 208:]),
    )


def _q2_k(data: Bytes) -> Blocks:
    factors = data[:, :16].view(np.int8)
    return Blocks(
        _bits(data[:, 16:80], 2, 32),
        factors & 15,
        factors >> 4 & 15,
        _halves(data[:, 80:82]),
        -_halves(data[:, 82:]),
    )


def _q3_k(data: Bytes) -> Blocks:
    codes = _bits(data[:, 32:96], 2, 32) | _bits(data[:, :32], 1, 32) << 2
    scale = _nibbles(data[:, 96:104], 8) | _bits(data[:, 104:108], 2, 4) << 4
    return Blocks(
        codes, scale.view(np.int8) - np.int8(32), coarse_scale=_halves(data[:, 108:])
    )


def _iq4_xs(data: Bytes) -> Blocks:
    scale = _bits(data[:, 4:8], 4, 1) | _bits(data[:, 2:4], 2, 1) << 4
    return Blocks(
        _nibbles(data[:, 8:], 16),
        scale.view(np.int8) - np.int8(32),
        coarse_scale=_halves(data[:, :2]),
    )


# What codes stand for: numbers denser near 0; those of the format E2M1, doubled.
CURVE = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)

FORMS = {
    "Q8_0": Form(34, _q8_0, {"bits": 8, "group": 32}),
    "Q4_0": Form(18, _q4_0, {"bits": 4, "group": 32, "zero": 8}),
    "Q4_1": Form(20, _q4_1, {"bits": 4, "group": 32}),
    "Q5_0": Form(22, _q5_0, {"bits": 5, "group": 32, "zero": 16}),
    "Q5_1": Form(24, _q5_1, {"bits": 5, "group": 32}),
    "Q4_K": Form(144, _q4_k, {"bits": 4, "group": 32, "groups_per_block": 8}),
    "Q5_K": Form(176, _q5_k, {"bits": 5, "group": 32, "groups_per_block": 8}),
    "Q6_K": Form(
        210, _q6_k, {"bits": 6, "group": 16, "zero": 32, "groups_per_block": 16}
    ),
    "IQ4_NL": Form(18, _q4_0, {"bits": 4, "group": 32, "values": CURVE}),
    "IQ4_XS": Form(
        136,
        _iq4_xs,
        {"bits": 4, "group": 32, "groups_per_block": 8, "values": CURVE},
    ),
    "MXFP4": Form(17, _mxfp4, {"bits": 4, "group": 32, "values": E2M1}),
    # Products have no codes of 3 and 2 bits.
    "Q3_K": Form(
        110, _q3_k, {"bits": 4, "group": 16, "zero": 4, "groups_per_block": 16}
    ),
    "Q2_K": Form(84, _q2_k, {"bits": 4, "group": 16, "groups_per_block": 16}),
}


def arrays(form: Form, rows: Bytes) -> dict[str, Array]:
    """Return the arrays of `QuantizedWeight.from_blocks` for rows, (M, bytes).

    They are columns of the matrix that it makes.
    """
    found = form.read(rows.reshape(-1, form.size))
    return {
        name: values.reshape(len(rows), -1).T
        for name, values in zip(Blocks.__annotations__, found, strict=True)
        if values is not None
    }
