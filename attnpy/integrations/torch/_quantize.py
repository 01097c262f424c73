"""From modules with matrices to those with integers of 8 or 4 bits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy

from attnpy import _checks
from attnpy._quantize import MOST, beyond, check_quantizable, judged
from attnpy.integrations.torch._quantized import Weight, become, parts_of
from attnpy.integrations.torch._tensors import check, is_plain, to_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def quantize(
    model: nn.Module,
    *,
    bits: Literal[8, 4] = 8,
    group: int | Literal["column"] | None = None,
    activations: Literal["float", "int8"] = "float",
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> None:
    """Quantise the linear modules of a PyTorch model to 8 or 4 bits, in place.

    Each `torch.nn.Linear`, and each ``Conv1D`` of Transformers' GPT-2, becomes a
    `QuantizedLinear`, and each `torch.nn.MultiheadAttention` a
    `QuantizedMultiheadAttention`. A matrix takes a quarter or a seventh of the memory,
    is read so much faster, and is multiplied by attnpy, in blocks of `accelerate` and
    outside. The bits of a row depend on that row and the matrix only.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU, in float32, bfloat16 or float16.
    bits, group, activations
        As in `attnpy.quantize`.
    filter_fn : callable, optional
        ``filter_fn(module, name)`` tells whether the matrices of such a module become
        integers. By default all do. A `torch.nn.MultiheadAttention` is one module, with
        its ``out_proj``.

    Raises
    ------
    TypeError
        If `model` is no module, a matrix has another dtype, or a hook computes it, as
        for pruning and `torch.nn.utils.weight_norm`.
    ValueError
        If no module is left to quantise; if a matrix is on another device, or has
        numbers that are not finite, or a `torch.nn.LazyLinear` has none yet. Nothing is
        changed then.

    See Also
    --------
    attnpy.quantize : explains the arithmetic.
    accelerate : for the same bits in the rest of a model.

    Notes
    -----
    Everything else stays as it is: embeddings, convolutions, norms and biases, and
    subclasses, which the modules of `torch.nn.utils.parametrize` are.

    A module stays the same object, with its hooks. The parameter of a matrix is gone:
    an optimizer that was made before would still change the old one. Biases can be
    trained, and gradients with respect to the input are those of the dequantised
    matrix, so adapters such as LoRA can be trained around it.

    `torch.compile` calls it outside of its graphs. `torch.export` and `torch.func` are
    refused.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import quantize
    >>> model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.GELU())
    >>> quantize(model)
    >>> model[0]
    QuantizedLinear(in_features=256, out_features=64, bias=True, bits=8, group=128)
    >>> model(torch.ones(3, 256)).shape
    torch.Size([3, 64])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model: expected a torch.nn.Module, got {type(model).__name__}"
        )
    bits, group, rounds = judged(bits, group, activations)
    if filter_fn is not None and not callable(filter_fn):
        raise TypeError(
            f"filter_fn: expected a function, got {type(filter_fn).__name__}"
        )
    chosen = {
        name: module
        for name, module in model.named_modules()
        if _has_matrices(module) and (filter_fn is None or filter_fn(module, name))
    }
    if not chosen:
        raise ValueError(
            "model: expected a torch.nn.Linear or torch.nn.MultiheadAttention to "
            f"quantise, got none in a {type(model).__name__}"
        )
    # Modules and names of attributes, by their parameter and how it lies.
    tied: dict[tuple[Any, bool, int], list[tuple[nn.Module, str]]] = {}
    for path, module in chosen.items():
        for name, owner, attribute, n_parts in _places(path, module):
            _check_place(owner, attribute, name)
            is_transposed = type(owner) is not _conv1d()
            places = tied.setdefault(
                (getattr(owner, attribute), is_transposed, n_parts), []
            )
            if (owner, attribute) not in places:
                places.append((owner, attribute))
    while tied:
        (parameter, is_transposed, n_parts), places = tied.popitem()
        parts = parts_of(parameter, is_transposed, n_parts, bits, group, rounds)
        weight = Weight(parts, parameter.dtype, is_transposed)
        del parameter  # so that none is kept longer than needed
        for owner, attribute in places:
            become(owner, attribute, weight)


def _conv1d() -> type | None:
    """Return Transformers' class of linear modules (K, M), if it was imported."""
    loaded: Any = sys.modules.get("transformers.pytorch_utils")
    return getattr(loaded, "Conv1D", None)


def _has_matrices(module: nn.Module) -> bool:
    # Not subclasses: they compute what their own code says.
    kinds = (nn.Linear, nn.LazyLinear, nn.MultiheadAttention, _conv1d())
    return type(module) in kinds


def _places(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, str, int]]:
    """Find the matrices of a module: a name, owner, attribute, and number of parts."""
    named = f"{path}." if path else ""
    if not isinstance(module, nn.MultiheadAttention):
        yield f"{named}weight", module, "weight", 1
        return
    for attribute in (f"{x}_proj_weight" for x in ("in", "q", "k", "v")):
        if getattr(module, attribute) is not None:
            n_parts = 3 if attribute == "in_proj_weight" else 1
            yield f"{named}{attribute}", module, attribute, n_parts
    if type(module.out_proj) in (nn.Linear, NonDynamicallyQuantizableLinear):
        yield f"{named}out_proj.weight", module.out_proj, "weight", 1


def _check_place(owner: nn.Module, attribute: str, name: str) -> None:
    """Refuse a matrix that cannot be quantised."""
    weight: Any = getattr(owner, attribute)
    if is_lazy(weight):
        raise ValueError(
            f"{name}: expected a matrix to quantise, got none yet of a "
            f"{type(owner).__name__}: call the model once before"
        )
    if attribute not in owner._parameters:
        raise TypeError(
            f"{name}: expected a parameter to quantise, got a tensor that a hook "
            "computes, as for pruning or weight_norm: make it permanent before"
        )
    check(weight, name)
    if not is_plain(weight):
        raise TypeError(f"{name}: expected a tensor, got a {type(weight).__name__}")
    with _checks.renamed(tensors=name):
        check_quantizable(to_array(weight.detach()), name)
    if weight.numel() > 0:
        low, high = weight.detach().aminmax()
        if not bool((low >= -MOST) & (high <= MOST)):
            raise beyond(name)
