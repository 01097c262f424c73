"""Folders with adapters of tasks beside the weights, as jina-embeddings-v3 has them.

The code beside such a folder stores each matrix as a parametrization of PyTorch: the
matrix itself, and two of low rank for each task. Their product, scaled, is added here
while rows are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks, _dtypes
from attnpy._families.fields import KINDS
from attnpy._families.jina import ADAPTERS
from attnpy._quoting import joined, named, quoted
from attnpy.checkpoints import files
from attnpy.checkpoints.files import Checkpoint

if TYPE_CHECKING:
    from attnpy._typing import Array

ORIGINAL = ".parametrizations.weight.original"
FIRST, SECOND = (f".parametrizations.weight.0.lora_{letter}" for letter in "AB")


class Adapter(NamedTuple):
    """What is added to the weights for a task.

    Attributes
    ----------
    which, number : int
        Its place among those of all tasks, and how many tasks there are.
    rank : int
        Of its matrices.
    scale : float
        A factor of their products.
    """

    which: int
    number: int
    rank: int
    scale: float


def adapter_of(config: Mapping[str, Any], task: str | None) -> Adapter | None:
    """Return the adapter of a task, or None without a task."""
    if task is None:
        return None
    tasks = config.get(ADAPTERS[0])
    if tasks is None or config.get("quantization_config") is not None:
        raise ValueError(
            "task: expected None, as the folder has no adapters for weights that are "
            f"numbers, got {quoted(task)}"
        )
    fits, words = KINDS["names"]
    if not fits(tasks):
        raise ValueError(
            f"config: expected {ADAPTERS[0]} to be {words}, got {quoted(tasks)}"
        )
    _checks.one_of(task, "task", tuple(tasks))
    values = {"lora_alpha": 1, "lora_rank": 4}
    for (name, usual), kind in zip(values.items(), ("number", "size"), strict=True):
        fits, words = KINDS[kind]
        value = config.get(name)
        values[name] = usual if value is None else value
        if not fits(values[name]):
            raise ValueError(f"config: expected {name} to be {words}, got {value!r}")
    rank = values["lora_rank"]
    return Adapter(
        tasks.index(task), len(tasks), rank, float(values["lora_alpha"] / rank)
    )


class AdaptedCheckpoint(Checkpoint):
    """Arrays by their usual names, with the adapter of a task added.

    Without one they are the matrices themselves.
    """

    _raw: Checkpoint
    _adapter: Adapter | None
    _added: dict[str, tuple[str, str, str]]  # a matrix, and its two of low rank

    def __init__(self, tensors: Checkpoint, adapter: Adapter | None) -> None:
        stems = [name[: -len(ORIGINAL)] for name in tensors if name.endswith(ORIGINAL)]
        if adapter is not None:
            if not stems:
                raise ValueError(
                    "checkpoint: expected adapters, as a task was given, got none"
                )
            faults = [_fault(tensors, stem, adapter) for stem in stems]
            if wrong := [fault for fault in faults if fault]:
                raise ValueError(f"checkpoint: {joined(wrong)}")
        parts = {f"{stem}{end}" for stem in stems for end in (FIRST, SECOND)}
        self.metadata, self._adapter = tensors.metadata, adapter
        self._raw = files.unstacked(tensors, parts & {*tensors})
        self._places, self._added = {}, {}
        for name, place in tensors._places.items():
            if name.endswith(ORIGINAL):
                stem = name.removesuffix(ORIGINAL)
                self._places[f"{stem}.weight"] = place
                which = "" if adapter is None else f".{adapter.which}"
                left, right = _factors(stem)
                self._added[f"{stem}.weight"] = (
                    name,
                    f"{left}{which}",
                    f"{right}{which}",
                )
            elif name not in parts:
                self._places[name] = place

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array, with what the task adds to them."""
        if name not in self._added:
            return self._raw.rows(name, start, stop)
        original, left, right = self._added[name]
        rows = self._raw.rows(original, start, stop)
        if self._adapter is None:
            return rows
        kind = _dtypes.arithmetic(rows.dtype)
        few = self._raw.rows(left, start, stop).astype(kind)  # (n, rank)
        whole = self._raw[right].astype(kind)  # (rank, K)
        added: Array = np.zeros(rows.shape, kind)
        for i in range(self._adapter.rank):  # in this order on every machine
            added += few[:, i : i + 1] * whole[i]
        added *= self._adapter.scale
        added += rows.astype(kind)
        return added


def _factors(stem: str) -> tuple[str, str]:
    """Return the matrices whose product is added: (M, rank) and (rank, K)."""
    if stem.endswith("_embeddings"):
        return f"{stem}{FIRST}", f"{stem}{SECOND}"
    return f"{stem}{SECOND}", f"{stem}{FIRST}"


def _fault(tensors: Checkpoint, stem: str, adapter: Adapter) -> str | None:
    """Return what is wrong with the adapters of a matrix."""
    n_rows, *columns = tensors.describe(f"{stem}{ORIGINAL}")[0]
    shapes = (n_rows, adapter.rank), (adapter.rank, *columns)
    for name, shape in zip(_factors(stem), shapes, strict=True):
        wanted = (adapter.number, *shape)
        if name not in tensors:
            return f"missing {named(name)}"
        got, dtype = tensors.describe(name)
        if got != wanted or dtype not in _dtypes.FLOATING:
            return (
                f"{named(name)}: expected floating numbers of shape {wanted}, got "
                f"{quoted(dtype)} of {quoted(got)}"
            )
    return None
