"""Folders with matrices in MXFP4, as gpt-oss has those of its experts.

Numbers of 4 bits in groups of 32, each group with a power of 2: see Rouhani et al.,
"OCP Microscaling Formats (MX) Specification" (2023). Each matrix is two arrays,
``_blocks`` and ``_scales``; bfloat16 holds all of its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from attnpy._families.fields import MOST_EXPERTS
from attnpy._quoting import joined, listed, named, quoted
from attnpy.checkpoints import files
from attnpy.checkpoints.files import Checkpoint, Place

if TYPE_CHECKING:
    from attnpy._typing import Array

METHOD = "mxfp4"
# Of a ``quantization_config``: the arrays say the first; the second is how to compute.
HARMLESS = ("quant_method", "modules_to_not_convert", "dequantize")

BLOCKS, SCALES = "_blocks", "_scales"
GROUP = 32
# The numbers of the codes 0 to 7; 8 to 15 are their negatives. A scale of 127 is 1, and
# 255 stands for what is no number.
NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
ONE, NO_NUMBER = 127, 255


def is_mxfp4(config: object) -> bool:
    """Tell whether a ``quantization_config`` is of MXFP4; refuse what else it has."""
    if not isinstance(config, Mapping) or config.get("quant_method") != METHOD:
        return False
    others = [
        f"expected no {named(name)}, got {quoted(value)}"
        for name, value in config.items()
        if name not in HARMLESS and value is not None
    ]
    if others:
        raise ValueError(f"config: quantization_config: {joined(others)}")
    return True


class Mxfp4Checkpoint(Checkpoint):
    """Arrays by their names, and the matrices (M, K) of ``_blocks`` as numbers.

    An array of the matrices of N experts is N arrays, with a dot and a number.
    """

    _raw: Checkpoint
    _scales: dict[str, str]  # by the names of blocks

    def __init__(self, tensors: Checkpoint) -> None:
        stems = [name.removesuffix(BLOCKS) for name in tensors if name.endswith(BLOCKS)]
        if not stems:
            raise ValueError(
                "checkpoint: expected matrices in MXFP4, as the configuration has a "
                f"quantization_config, got none among {listed([*tensors][:3])}"
            )
        if faults := [fault for stem in stems for fault in _faults(tensors, stem)]:
            raise ValueError(f"checkpoint: {joined(faults)}")
        pairs = {f"{stem}{BLOCKS}": f"{stem}{SCALES}" for stem in stems}
        self.metadata = tensors.metadata
        self._raw = files.unstacked(tensors, [*pairs, *pairs.values()])
        self._scales, self._places = {}, {}
        for name, place in self._raw._places.items():
            whole, _, number = name.rpartition(".")
            if whole in pairs:
                n_rows, n_groups = place.shape[:2]
                self._scales[name] = f"{pairs[whole]}.{number}"
                shape = n_rows, n_groups * GROUP
                self._places[name] = Place(place.file, place.begin, shape, "BF16")
            elif whole not in pairs.values():
                self._places[name] = place

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array; numbers of 4 bits become bfloat16."""
        if name not in self._scales:
            return super().rows(name, start, stop)
        files.register_bfloat16()
        codes = self._raw.rows(name, start, stop)  # (n, groups, 16)
        exponents = self._raw.rows(self._scales[name], start, stop)  # (n, groups)
        return numbers(codes, exponents).astype("bfloat16")


def numbers(codes: Array, exponents: Array) -> Array:
    """Return what bytes (n, groups, 16) and their scales (n, groups) stand for."""
    pairs = np.stack([codes & 15, codes >> 4], axis=-1)  # the lower half is the first
    signed = np.concatenate([NUMBERS, -NUMBERS])[pairs].reshape(*exponents.shape, GROUP)
    powers = exponents[..., np.newaxis].astype(np.int32) - ONE
    with np.errstate(over="ignore"):  # the largest powers are beyond float32
        whole = np.ldexp(signed, powers)
    whole[exponents == NO_NUMBER] = np.nan
    flat: Array = whole.reshape(len(exponents), -1)
    return flat


def _faults(tensors: Checkpoint, stem: str) -> list[str]:
    """Return what is wrong with the two arrays of matrices."""
    blocks, scales = f"{stem}{BLOCKS}", f"{stem}{SCALES}"
    if scales not in tensors:
        return [f"missing {named(scales)}"]
    shape, dtype = tensors.describe(blocks)
    fits = len(shape) == 4 and shape[-1] == GROUP // 2 and min(shape) > 0
    if dtype != "U8" or not fits or shape[0] > MOST_EXPERTS:
        return [
            f"{named(blocks)}: expected U8 of shape (N, M, groups, {GROUP // 2}) with "
            f"N up to {MOST_EXPERTS}, got {dtype} of {quoted(shape)}"
        ]
    if tensors.describe(scales) != (shape[:3], "U8"):
        found, kind = tensors.describe(scales)
        return [
            f"{named(scales)}: expected U8 of shape {shape[:3]}, got {kind} of "
            f"{quoted(found)}"
        ]
    return []
