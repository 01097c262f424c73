"""Arrays of a checkpoint into a model's parameters, or all that is wrong with them."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnpy import _dtypes
from attnpy.checkpoints.families import FAMILIES, Family
from attnpy.checkpoints.files import Checkpoint

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnpy._typing import Array, Model

# How many columns of a parameter are copied at a time: `_assign`.
STRIP = 64


def load(
    model: Model, tensors: Mapping[str, ArrayLike], family: str, *, prefix: str = ""
) -> None:
    """Copy the arrays of a checkpoint into a model.

    Parameters
    ----------
    model : MultiHeadAttention, BertEncoder, CausalDecoder, or alike
        What has `parameters`. Their values are replaced, and keep their dtypes.
    tensors : mapping of str to array_like
        From `read`, or arrays by name from elsewhere.
    family : {"torch_attention", "bert", "gpt2", "llama"}
        Whose names the checkpoint has, a key of `FAMILIES`. "torch_attention" is
        `torch.nn.MultiheadAttention`, "llama" also Mistral, Qwen2 and Qwen3.
    prefix : str, optional
        Take only names that begin with this, as ``"layers.0.self_attn."``.

    Raises
    ------
    ValueError
        If names are missing or unexpected, shapes are wrong, or arrays are not of
        floating numbers; the message has all of them, under the checkpoint's names. The
        model has then not changed. If it is not a model of the family.

    Notes
    -----
    A matrix of `torch.nn.Linear` is the transpose of ours, (out, in) instead of
    (in, out). It is copied row by row into our orientation, in which the product reads
    memory in order.

    Examples
    --------
    An attention layer of PyTorch; its ``state_dict()`` may come as arrays too:

    >>> import numpy as np
    >>> from attnpy import checkpoints
    >>> from attnpy.layers import MultiHeadAttention
    >>> rng = np.random.default_rng(0)
    >>> tensors = {
    ...     "in_proj_weight": rng.standard_normal((18, 6)),
    ...     "in_proj_bias": rng.standard_normal(18),
    ...     "out_proj.weight": rng.standard_normal((6, 6)),
    ...     "out_proj.bias": rng.standard_normal(6),
    ... }
    >>> mha = MultiHeadAttention(6, 2, bias=True, dtype=np.float64)
    >>> checkpoints.load(mha, tensors, "torch_attention")
    >>> bool((mha.W_k == tensors["in_proj_weight"][6:12].T).all())
    True
    """
    if family not in FAMILIES:
        raise ValueError(
            f"family: expected one of {', '.join(FAMILIES)}, got {family!r}"
        )
    table, own = FAMILIES[family], model.parameters()
    found, unexpected = _known_by(tensors, table, prefix)
    targets = _targets(own, table, found)
    faults = []
    if missing := [prefix + name for name in targets if name not in found]:
        faults.append(f"missing {', '.join(missing)}")
    for plain in found:
        if plain in targets:
            continue
        if plain in table.tied:
            if getattr(model, "tied", True) is None:
                continue  # a model without scores
            faults += _tie_fault(tensors, found, plain, table.tied[plain])
        elif plain in table.refused:
            faults.append(f"{found[plain]}: {table.refused[plain]}")
        else:
            unexpected.append(found[plain])
    if unexpected:
        faults.append(f"unexpected {', '.join(sorted(unexpected))}")
    for plain, target in targets.items():
        if plain in found:
            faults += _array_fault(tensors, found[plain], target)
    if faults:
        raise ValueError(f"checkpoint: {'; '.join(faults)}")
    for plain, target in targets.items():
        _copy(np.asarray(tensors[found[plain]]), target)


def dtype_of(tensors: Checkpoint, family: str) -> str:
    """Return the dtype of the arrays that `load` takes, float32 where it is none.

    Where there are several it is the one that holds them all.
    """
    found = _known_by(tensors, FAMILIES[family], "")[0]
    names = {tensors.describe(name)[1] for name in found.values()}
    if names >= {"float16", "bfloat16"} and "float64" not in names:
        return "float32"
    return next((name for name in _dtypes.FLOATING if name in names), "float32")


class Target(NamedTuple):
    """Where an array goes: parameters side by side, or their transpose."""

    parameters: list[Array]
    transposed: bool


def _known_by(
    tensors: Mapping[str, ArrayLike], table: Family, prefix: str
) -> tuple[dict[str, str], list[str]]:
    """Return the checkpoint's names by those of the table, and those that are twice."""
    found: dict[str, str] = {}
    twice = []
    for name in tensors:
        if not name.startswith(prefix):
            continue
        plain = name[len(prefix) :]
        for start in table.prefixes:
            if plain.startswith(start):
                plain = plain[len(start) :]
                break
        for old, new in table.renamed:
            if plain.endswith(old):
                plain = plain[: -len(old)] + new
        if any(fnmatch.fnmatchcase(plain, pattern) for pattern in table.ignored):
            continue
        if plain in found:
            twice.append(name)
        found.setdefault(plain, name)
    return found, twice


def _targets(
    own: dict[str, Array], table: Family, found: Mapping[str, str]
) -> dict[str, Target]:
    """Return the names that together fill each parameter once, and their targets."""
    candidates: dict[str, tuple[list[str], bool]] = {}
    for theirs, ours in table.names.items():
        for i in itertools.count() if "{i}" in theirs else range(1):
            names = [name.removesuffix(".T").format(i=i) for name in ours]
            if not own.keys() >= set(names):
                break
            candidates[theirs.format(i=i)] = names, ours[0].endswith(".T")
    targets: dict[str, Target] = {}
    filled: set[str] = set()
    # What the checkpoint has comes first; the rest is for what is not filled then.
    for name in sorted(candidates, key=lambda name: name not in found):
        names, transposed = candidates[name]
        if filled.isdisjoint(names):
            filled.update(names)
            targets[name] = Target([own[key] for key in names], transposed)
    if unnamed := sorted(own.keys() - filled):
        raise ValueError(
            "model: expected one of the family, got parameters without a name in its "
            f"checkpoints: {', '.join(unnamed)}"
        )
    return targets


def _describe(
    tensors: Mapping[str, ArrayLike], name: str
) -> tuple[tuple[int, ...], str]:
    if isinstance(tensors, Checkpoint):
        return tensors.describe(name)
    array = np.asarray(tensors[name])
    return array.shape, array.dtype.name


def _array_fault(
    tensors: Mapping[str, ArrayLike], name: str, target: Target
) -> list[str]:
    """Return what is wrong with an array, if anything is."""
    shape, dtype = _describe(tensors, name)
    rows = {array.shape[:-1] for array in target.parameters}
    if len(rows) > 1:
        return [f"{name}: expected several arrays, as keys and values have other rows"]
    expected = *rows.pop(), sum(array.shape[-1] for array in target.parameters)
    if target.transposed:
        expected = expected[::-1]
    if shape != expected:
        return [f"{name}: expected shape {expected}, got {shape}"]
    if dtype not in _dtypes.FLOATING:
        return [f"{name}: expected floating numbers, got dtype {dtype}"]
    return []


def _tie_fault(
    tensors: Mapping[str, ArrayLike], found: Mapping[str, str], name: str, other: str
) -> list[str]:
    """Return what is wrong with an array that the model has under another name."""
    equal = other in found and np.array_equal(
        tensors[found[name]], tensors[found[other]]
    )
    return [] if equal else [f"{found[name]}: expected {other} again, as they are tied"]


def _copy(array: Array, target: Target) -> None:
    if target.transposed:
        array = array.T
    start = 0
    for parameter in target.parameters:
        values = array[..., start : start + parameter.shape[-1]]
        start += parameter.shape[-1]
        _assign(parameter, values)


def _assign(parameter: Array, values: Array) -> None:
    """Copy into a parameter, strip by strip where the orders in memory differ.

    A strip of columns to write is one of rows to read: both stay in the caches.
    """
    if parameter.ndim == 2 and not parameter.flags.c_contiguous:
        parameter, values = parameter.T, values.T
    n_columns, width = parameter.shape[-1], parameter.shape[-1]
    if values.ndim == 2 and abs(values.strides[0]) < abs(values.strides[1]):
        width = STRIP
    for start in range(0, n_columns, width):
        part = values[..., start : start + width]
        if part.dtype == np.float64 and parameter.dtype != np.float64:
            part = _dtypes.rounded(part, parameter.dtype)
        # Converted in its own order first: both steps are then fast.
        parameter[..., start : start + width] = part.astype(parameter.dtype, copy=False)
