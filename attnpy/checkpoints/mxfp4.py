"""Folders with matrices in MXFP4, as gpt-oss has those of its experts.

Numbers of 4 bits in groups of 32, each group with a power of 2: see Rouhani et al.,
"OCP Microscaling Formats (MX) Specification" (2023). Each matrix is two arrays,
``_blocks`` and ``_scales``. The rows of gate and up alternate in one matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from attnpy._code_layout import column_blocks
from attnpy._families.fields import MOST_EXPERTS
from attnpy._quoting import joined, listed, named, quoted
from attnpy.checkpoints import files
from attnpy.checkpoints.files import Checkpoint, Place
from attnpy.checkpoints.gguf_blocks import E2M1
from attnpy.checkpoints.kept import KeptCheckpoint

if TYPE_CHECKING:
    from attnpy._typing import Array

METHOD = "mxfp4"
# Of a ``quantization_config``: the arrays say the first; the second is how to compute.
HARMLESS = ("quant_method", "modules_to_not_convert", "dequantize")

BLOCKS, SCALES = "_blocks", "_scales"
GROUP = 32
BOTH, PARTS = "gate_up_proj", ("gate_proj", "up_proj")


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


class Mxfp4Checkpoint(KeptCheckpoint):
    """Arrays by their names, and the matrices (M, K) of ``_blocks``.

    An array of the matrices of N experts is N arrays, with a dot and a number; of gate
    and up, as many of each.
    """

    _raw: Checkpoint
    _codes: dict[str, str]  # by the names of blocks: those of their scales
    _options = MappingProxyType({"bits": 4, "group": GROUP, "values": E2M1})
    _called, _kind, _not_finite = "codes", "MXFP4", "NaN"

    def __init__(self, tensors: Checkpoint) -> None:
        stems = [name.removesuffix(BLOCKS) for name in tensors if name.endswith(BLOCKS)]
        if not stems:
            raise ValueError(
                "checkpoint: expected matrices in MXFP4, as the configuration has a "
                f"quantization_config, got none among {listed([*tensors][:3])}"
            )
        if faults := [fault for stem in stems for fault in _faults(tensors, stem)]:
            raise ValueError(f"checkpoint: {joined(faults)}")
        packed = [f"{stem}{end}" for stem in stems for end in (BLOCKS, SCALES)]
        self.metadata = tensors.metadata
        self._raw = files.unstacked(tensors, packed)
        self._codes, self._places = {}, {}
        places = {}
        for name, place in self._raw._places.items():
            whole, _, number = name.rpartition(".")
            if whole not in packed:
                self._places[name] = place
            elif BOTH in whole:
                for part, row in zip(PARTS, (0, 1), strict=True):
                    places[name.replace(BOTH, part)] = _every_second(place, row)
            else:
                places[name] = place
        self._raw._places = places
        for name, place in places.items():
            whole, _, number = name.rpartition(".")
            if whole.endswith(BLOCKS):
                self._codes[name] = f"{whole.removesuffix(BLOCKS)}{SCALES}.{number}"
                shape = place.shape[0], place.shape[1] * GROUP
                self._places[name] = Place(place.file, place.begin, shape, "BF16")

    def _blocks(
        self, name: str, start: int, stop: int, n_rows: int
    ) -> Iterator[dict[str, Array]]:
        """Yield codes and scales of some columns (K, n) after others."""
        for columns in column_blocks(n_rows, stop - start):
            which = start + columns.start, start + columns.stop
            data = self._raw.rows(name, *which)  # (n, groups, 16)
            pairs = np.stack([data & 15, data >> 4], axis=-1)  # the lower half is first
            scale = self._raw.rows(self._codes[name], *which)  # (n, groups)
            yield {"codes": pairs.reshape(len(data), -1).T, "scale": scale.T}


def _every_second(place: Place, first: int) -> Place:
    """Return the place of every second row of bytes, from the first or second on."""
    n_rows, *row = place.shape
    strides = [1] * len(row)
    for axis in range(len(row) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * row[axis]
    size = strides[0] * row[0]
    return place._replace(
        begin=place.begin + first * size,
        shape=((n_rows + 1 - first) // 2, *row),
        strides=(2 * size, *strides),
    )


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
