"""Parameters under the names of other libraries: the way back."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from attnpy import _parameters
from attnpy._families.declaration import Family, names_for
from attnpy.blocks import (
    Decoder,
    DecoderLayer,
    Embedding,
    Encoder,
    EncoderLayer,
    LayerNorm,
    Linear,
    RMSNorm,
)
from attnpy.checkpoints.families import FAMILIES
from attnpy.checkpoints.loading import alternating, shape_in_file, targets
from attnpy.layers import MultiHeadAttention

if TYPE_CHECKING:
    from attnpy._typing import Array, Model

# The families of names for layers of PyTorch.
TORCH: dict[type, str] = {
    MultiHeadAttention: "torch_attention",
    EncoderLayer: "torch_encoder_layer",
    Encoder: "torch_encoder",
    DecoderLayer: "torch_decoder_layer",
    Decoder: "torch_decoder",
    LayerNorm: "torch_norm",
    RMSNorm: "torch_norm",
    Linear: "torch_linear",
    Embedding: "torch_embedding",
}


def to_torch(layer: Model) -> dict[str, Array]:
    """Return the parameters of a layer as a state dict of PyTorch's.

    Parameters
    ----------
    layer : layer
        A `MultiHeadAttention`, for `torch.nn.MultiheadAttention`; an `EncoderLayer`,
        `DecoderLayer`, `Encoder` or `Decoder` of `attnpy.blocks`, for
        `torch.nn.TransformerEncoderLayer` and so on; a `LayerNorm`, `RMSNorm`,
        `Linear` or `Embedding`.

    Returns
    -------
    dict of str to ndarray
        Copies, under PyTorch's names and in its orientation: matrices are (out, in).
        ``{name: torch.from_numpy(array) for name, array in ...items()}`` is what
        ``load_state_dict`` takes. Options of the layer, as heads and activations, are
        not in it: PyTorch's layer must have the same.

    Raises
    ------
    TypeError
        If it is another kind of layer.
    ValueError
        If PyTorch's layer cannot have its parameters: heads that share keys, heads of
        another size, biases in some places only, norms of queries and keys, gates.

    See Also
    --------
    load : the way here, with the family "torch_encoder_layer" and so on.

    Examples
    --------
    >>> from attnpy import checkpoints
    >>> from attnpy.blocks import EncoderLayer
    >>> state = checkpoints.to_torch(EncoderLayer(8, 2, 32))
    >>> state["self_attn.in_proj_weight"].shape, state["linear1.weight"].shape
    ((24, 8), (32, 8))
    """
    kind = TORCH.get(type(layer))
    if kind is None:
        known = ", ".join(cls.__name__ for cls in TORCH)
        raise TypeError(f"layer: expected one of {known}, got {type(layer).__name__}")
    own, table = _everywhere(layer), FAMILIES[kind]
    apart: set[str] = set()
    for name in own:
        if name.endswith("W_q") and _check_attention(own, name[:-3]):
            apart |= _separate_names(name[:-3], table)
    return exported(own, table, apart)


def _everywhere(layer: Model) -> dict[str, Array]:
    """Return the parameters under all their names, where layers share them."""
    first, own = _parameters.first_names(layer), layer.parameters()
    return {name: own[known] for name, known in first.items()}


def exported(
    own: Mapping[str, Array],
    family: Family,
    preferred: Collection[str] = (),
    n_heads: int = 1,
) -> dict[str, Array]:
    """Return parameters under the names of a family's checkpoints, as copies.

    `n_heads` are those that alternate in some arrays.
    """
    wanted = dict.fromkeys(preferred, "")
    tensors = {}
    for name, target in targets(own, names_for(family, own), wanted).items():
        arrays = [array for array in target.parameters if isinstance(array, np.ndarray)]
        whole = np.concatenate(arrays, axis=-1) if len(arrays) > 1 else arrays[0]
        array = np.array(whole.T if target.transposed else whole, order="C")
        places = alternating(name, target, family, n_heads)
        if places is not None:
            rows = array if target.transposed or array.ndim == 1 else array.T
            rows[places] = rows.copy()
        if name in family.axes:
            array = array.reshape(shape_in_file(array.shape, family.axes[name]))
        tensors[name] = array
    return _together(tensors, family)


def _together(tensors: dict[str, Array], family: Family) -> dict[str, Array]:
    """Return arrays with those of all experts of a layer in one, as files have them."""
    parts: dict[str, list[Array]] = {}
    for name in list(tensors):
        whole, _, number = name.rpartition(".")
        if number.isdigit() and whole.endswith(family.stacked):
            parts.setdefault(whole, []).append(tensors.pop(name))
    return tensors | {name: np.stack(found) for name, found in parts.items()}


def _check_attention(own: Mapping[str, Array], part: str) -> bool:
    """Tell whether keys or values come from other sizes; refuse what PyTorch lacks."""
    shapes = {letter: own[f"{part}W_{letter}"].shape for letter in "qkvo"}
    size, where = shapes["q"][0], part.removesuffix(".") or "layer"
    if {shape[1] for shape in shapes.values()} != {size} or shapes["o"][0] != size:
        raise ValueError(
            f"{where}: expected heads that have {size} columns together, as PyTorch's "
            f"have, got W_q, W_k, W_v and W_o of {', '.join(map(str, shapes.values()))}"
        )
    biases = [f"b_{letter}" for letter in "qkvo" if f"{part}b_{letter}" in own]
    if len(biases) not in (0, 4):
        raise ValueError(
            f"{where}: expected all biases or none, as PyTorch has them, got only "
            f"{', '.join(biases)}"
        )
    return {shapes["k"][0], shapes["v"][0]} != {size}


def _separate_names(part: str, family: Family) -> set[str]:
    """Return PyTorch's names of an attention layer's matrices that are not in one."""
    number = re.search(r"\d+", part)
    i = number[0] if number else ""
    pattern = part.replace(i, "{i}", 1) if i else part
    return {
        theirs.format(i=i)
        for theirs, ours in family.names.items()
        if theirs.endswith("_proj_weight") and ours == (f"{pattern}{_own(theirs)}",)
    }


def _own(theirs: str) -> str:
    return f"W_{theirs.removesuffix('_proj_weight')[-1]}.T"
