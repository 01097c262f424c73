"""Folders of compressed-tensors, whose matrices are integers of 8 or 4 bits.

Their ``quantization_config`` and the arrays beside each other are those of the package
of that name, https://github.com/vllm-project/compressed-tensors. What is read:
symmetric integers with scales for groups of rows or whole columns, "int-quantized" and
"pack-quantized", with activations as they are or rounded to 8 bits token by token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attnpy._code_layout import column_blocks
from attnpy._quantized_parts import CHAIN, LEAST_GROUP, MOST_ROWS
from attnpy._quoting import joined, listed, named, quoted
from attnpy.checkpoints.files import DTYPES, Checkpoint, Place
from attnpy.checkpoints.kept import KeptCheckpoint

if TYPE_CHECKING:
    from attnpy._typing import Array

METHOD = "compressed-tensors"
FORMATS = ("int-quantized", "pack-quantized")
SCALES = ("float32", "float16", "bfloat16")

# Fields of weights and activations: what they have to be; None: or missing.
WEIGHTS: dict[str, tuple[object, ...]] = {
    "num_bits": (8, 4),
    "type": ("int", None),
    "symmetric": (True, None),
    "strategy": ("tensor", "channel", "group"),
    "dynamic": (False, None),
    "actorder": (None, "static", "weight"),
    "block_structure": (None,),
}
ACTIVATIONS: dict[str, tuple[object, ...]] = {
    "num_bits": (8,),
    "type": ("int", None),
    "symmetric": (True, None),
    "strategy": ("token",),
    "dynamic": (True,),
    "group_size": (None,),
    "actorder": (None,),
    "block_structure": (None,),
}
# Of all: what has to be so, and what does not matter, as the arrays say it, or as it
# tells how the numbers were chosen.
GENERAL: dict[str, tuple[object, ...]] = {
    "quant_method": (METHOD,),
    "quantization_status": ("compressed", "frozen", None),
    "kv_cache_scheme": (None,),
    "sparsity_config": (None, {}),
    "transform_config": (None, {}),
    "run_compressed": (True, False, None),
}
HARMLESS = ("config_groups", "format", "global_compression_ratio", "ignore", "version")
HARMLESS_OF_PARTS = (
    *("group_size", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"),
)


class Scheme(NamedTuple):
    """How matrices are quantised.

    Attributes
    ----------
    bits : {8, 4}
    group : int
        How many rows have a scale, as `QuantizedWeight` has it.
    each : int or None
        As the files have it; None for whole columns.
    is_packed : bool
        Several codes are in an int32, each with half of their range added.
    rounds_rows : bool
        Rows of numbers are rounded to 8 bits, each with a scale of its own.
    """

    bits: Literal[8, 4]
    group: int
    each: int | None
    is_packed: bool
    rounds_rows: bool


def scheme_of(config: object) -> Scheme:
    """Return what a ``quantization_config`` says, or all that is not read here."""
    if not isinstance(config, Mapping) or config.get("quant_method") != METHOD:
        method = config.get("quant_method") if isinstance(config, Mapping) else config
        raise ValueError(
            f"config: expected no quantization_config but that of {METHOD}, got "
            f"{quoted(method)}"
        )
    sparsity = config.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format") == "dense":
        config = {**config, "sparsity_config": None}  # its zeros are stored
    faults = _faults(config, GENERAL, HARMLESS, "")
    group = _only_group(config, faults)
    form = group.get("format") or config.get("format")
    if form not in FORMATS:
        faults.append(f"expected format = {' or '.join(FORMATS)}, got {quoted(form)}")
    known = "weights", "input_activations", "targets", "format"
    faults += _faults(group, {"output_activations": (None,)}, known, "")
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping):
        raise _refused([*faults, f"expected weights in it, got {quoted(weights)}"])
    faults += _faults(weights, WEIGHTS, HARMLESS_OF_PARTS, "weights.")
    if inputs is not None:
        faults += _faults_of_inputs(inputs, weights)
    if faults:
        raise _refused(faults)
    return _scheme(weights, str(form), inputs is not None)


def _only_group(config: Mapping[str, Any], faults: list[str]) -> Mapping[str, Any]:
    """Return the only one of ``config_groups``, or refuse the configuration."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        found = len(groups) if isinstance(groups, Mapping) else quoted(groups)
        raise _refused([*faults, f"expected one of config_groups, got {found}"])
    (group,) = groups.values()
    if not isinstance(group, Mapping):
        fault = f"expected a mapping in config_groups, got {quoted(group)}"
        raise _refused([*faults, fault])
    return group


def _faults_of_inputs(inputs: object, weights: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with ``input_activations``."""
    fields = inputs if isinstance(inputs, Mapping) else {"type": inputs}
    faults = _faults(fields, ACTIVATIONS, HARMLESS_OF_PARTS, "input_activations.")
    if weights.get("strategy") == "group":
        faults.append(
            "expected weights.strategy = channel or tensor with input_activations, "
            "got group"
        )
    return faults


def _scheme(weights: Mapping[str, Any], form: str, rounds_rows: bool) -> Scheme:
    """Return the scheme of fields each of which is read, if they fit together."""
    bits, each = weights["num_bits"], weights.get("group_size")
    in_groups = weights["strategy"] == "group"
    if not in_groups and each not in (None, -1):
        raise _refused(
            [
                "expected weights.strategy = group with weights.group_size = "
                f"{quoted(each)}, got {weights['strategy']}"
            ]
        )
    if bits == 4 and form == "int-quantized":
        raise _refused(["expected format = pack-quantized with 4 bits"])
    return Scheme(
        bits=bits,
        group=_group(bits, each) if in_groups else MOST_ROWS[bits],
        each=each if in_groups else None,
        is_packed=form == "pack-quantized",
        rounds_rows=rounds_rows,
    )


def _faults(
    found: Mapping[str, Any],
    wanted: Mapping[str, tuple[object, ...]],
    harmless: tuple[str, ...],
    prefix: str,
) -> list[str]:
    """Return which fields have other values than the wanted ones, or are unknown."""
    faults = []
    for name, values in wanted.items():
        value = found.get(name)
        if not any(value == x and type(value) is type(x) for x in values):
            some = " or ".join(str(x) for x in values if x is not None) or "null"
            faults.append(f"expected {prefix}{name} = {some}, got {quoted(value)}")
    faults += [
        f"expected no {prefix}{named(name)}, got {quoted(value)}"
        for name, value in found.items()
        if name not in wanted and name not in harmless and value is not None
    ]
    return faults


def _refused(faults: list[str]) -> ValueError:
    return ValueError(f"config: quantization_config: {joined(faults)}")


def _group(bits: Literal[8, 4], each: object) -> int:
    """Return how many rows share a scale here: as in the files, or a part of these."""
    if isinstance(each, int) and not isinstance(each, bool) and each > 0:
        if each <= CHAIN and each % LEAST_GROUP == 0:
            return each
        if each % CHAIN == 0:
            return each if each <= MOST_ROWS[bits] else CHAIN
    raise _refused(
        [
            f"expected weights.group_size to be a multiple of {LEAST_GROUP} up to "
            f"{CHAIN}, or of {CHAIN}, got {quoted(each)}"
        ]
    )


class Codes(NamedTuple):
    """The arrays of a matrix: of its codes, and of its scales."""

    codes: str
    scale: str


class CompressedCheckpoint(KeptCheckpoint):
    """Arrays by their usual names, some of them matrices (M, K) of integers."""

    _raw: Checkpoint
    _scheme: Scheme
    _codes: dict[str, Codes]
    _called, _not_finite = "integers", "NaN or infinity"

    def __init__(self, tensors: Checkpoint, scheme: Scheme) -> None:
        self.metadata, self._raw, self._scheme = tensors.metadata, tensors, scheme
        self._kind = f"{scheme.bits} bits"
        zero = 8 if scheme.bits == 4 else 0
        self._options = {"bits": scheme.bits, "group": scheme.group, "zero": zero}
        self._codes, hidden, faults = {}, set(), []
        end = "weight_packed" if scheme.is_packed else "weight"
        places = dict(tensors._places)
        for name in tensors:
            if not name.endswith(f".{end}"):
                continue
            stem = name.removesuffix(end)
            codes = Codes(name, f"{stem}weight_scale")
            if not scheme.is_packed and codes.scale not in tensors:
                continue  # of numbers
            hidden |= {*codes, *([f"{stem}weight_shape"] * scheme.is_packed)}
            if scheme.is_packed and f"{stem}weight" in tensors:
                faults.append(f"expected {named(name)} or {stem}weight, got both")
                continue
            try:
                shape, dtype = self._judged(stem, codes)
            except ValueError as error:
                faults.append(str(error))
                continue
            self._codes[f"{stem}weight"] = codes
            place = places[name]
            places[f"{stem}weight"] = Place(place.file, place.begin, shape, dtype)
        if faults:
            raise ValueError(f"checkpoint: {joined(faults)}")
        if not self._codes:
            raise ValueError(
                "checkpoint: expected matrices of integers, as the configuration has a "
                f"quantization_config, got none among {listed([*tensors][:3])}"
            )
        self._places = {
            name: place
            for name, place in places.items()
            if name in self._codes or name not in hidden
        }

    def _judged(self, stem: str, codes: Codes) -> tuple[tuple[int, ...], str]:
        """Return the shape of a matrix, and the format's name of its scales' dtype."""
        raw, scheme = self._raw, self._scheme
        shape, kind = raw.describe(codes.codes)
        wanted = "I32" if scheme.is_packed else "I8"
        if kind != wanted or len(shape) != 2:
            raise ValueError(
                f"{named(codes.codes)}: expected a matrix of {wanted}, got {kind} of "
                f"shape {quoted(shape)}"
            )
        if scheme.is_packed:
            shape = self._shape(f"{stem}weight_shape", shape)
        if codes.scale not in raw:
            raise ValueError(f"missing {named(codes.scale)}")
        n_groups = 1 if scheme.each is None else math.ceil(shape[1] / scheme.each)
        found, dtype = raw.describe(codes.scale)
        per_matrix = scheme.each is None and math.prod(found) == 1
        if found not in ((shape[0], n_groups), shape[:n_groups]) and not per_matrix:
            raise ValueError(
                f"{named(codes.scale)}: expected shape {(shape[0], n_groups)}, got "
                f"{quoted(found)}"
            )
        if dtype not in SCALES:
            raise ValueError(
                f"{named(codes.scale)}: expected {' or '.join(SCALES)}, got {dtype}"
            )
        names = {name: code for code, name in DTYPES.items()}
        return shape, names[dtype]

    def _shape(self, name: str, packed: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a matrix whose codes are packed, as its array says."""
        if name not in self._raw:
            raise ValueError(f"missing {named(name)}")
        shape, dtype = self._raw.describe(name)
        if shape != (2,) or dtype not in ("I64", "I32"):
            raise ValueError(
                f"{named(name)}: expected two integers, got {dtype} of shape "
                f"{quoted(shape)}"
            )
        n_columns, n_rows = (int(n) for n in self._raw[name])
        per_int = 32 // self._scheme.bits
        if n_rows < 0 or (n_columns, -(-n_rows // per_int)) != packed:
            raise ValueError(
                f"{named(name)}: expected a shape of which {per_int} columns are one "
                f"of {packed}, got {(n_columns, n_rows)}"
            )
        return n_columns, n_rows

    def _blocks(
        self, name: str, start: int, stop: int, n_rows: int
    ) -> Iterator[dict[str, Array]]:
        """Yield codes and scales of some columns (K, n) after others."""
        scheme, codes = self._scheme, self._codes[name]
        starts = np.arange(0, n_rows, scheme.group)
        group = np.zeros_like(starts) if scheme.each is None else starts // scheme.each
        per_matrix = math.prod(self._raw.describe(codes.scale)[0]) == 1
        for columns in column_blocks(n_rows, stop - start):
            first, last = start + columns.start, start + columns.stop
            found = self._raw.rows(codes.codes, first, last)
            if scheme.is_packed:
                found = _unpacked(found, scheme.bits)[:, :n_rows]
            if per_matrix:
                scale = self._raw[codes.scale].reshape(1, 1).repeat(last - first, 0)
            else:
                scale = self._raw.rows(codes.scale, first, last)
            if scale.dtype != np.float16:
                scale = scale.astype(np.float32)
            scale = scale.reshape(last - first, -1)[:, group]
            yield {"codes": found.T, "scale": scale.T}


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the codes of int32 (n, m): uint8 of 4 bits, int8 of 8."""
    data = np.ascontiguousarray(packed, "<i4").view(np.uint8)
    if bits == 8:
        return (data - np.uint8(128)).view(np.int8)  # modulo 256
    pairs: Array = np.stack([data & 15, data >> 4], -1)
    return pairs.reshape(len(data), -1)
