"""Tensors as arrays and arrays as tensors, on the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import _is_zerotensor

from attnpy import _attnpy, _dtypes

if TYPE_CHECKING:
    from attnpy._typing import Array

PLAIN = (torch.Tensor, torch.nn.Parameter)

# The dtypes that NumPy has itself.
_FLOATING = {
    getattr(torch, name): np.dtype(name) for name in ("float64", "float32", "float16")
}
_DTYPES = _FLOATING | {
    getattr(torch, name): np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
        "uint64", "complex64", "complex128",
    )
}  # fmt: skip


def view(tensor: torch.Tensor, dtype: np.dtype[Any], owner: Any = None) -> Any:
    """Return an array on a tensor's memory, or None if it has none.

    The array does not keep the tensor, unless `owner` does. `Tensor.numpy` would, but
    forbid for ever to resize the tensor's storage.
    """
    address = tensor.data_ptr()
    if address == 0:
        return None
    strides = None if tensor.is_contiguous() else tensor.stride()
    return _attnpy.array_at(address, tensor.shape, strides, dtype, owner)


def is_plain(tensor: Any) -> bool:
    """Tell whether this is a tensor whose memory an array can have."""
    return (
        type(tensor) in PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and (torch.compiler.is_compiling() or not _is_zerotensor(tensor))
    )


def needs_gradient(option: Any) -> bool:
    """Tell whether this is a tensor with a history that autograd records."""
    return isinstance(option, torch.Tensor) and option.requires_grad


def detached_arrays(*tensors: Any) -> list[Any] | None:
    """Return the memory of tensors that are nothing else besides, or None.

    As `is_plain` and `to_array`, in floating-point dtypes that NumPy has. The caller
    keeps the tensors as long as the arrays, and their history, if they have one.
    """
    arrays = []
    for tensor in tensors:
        if type(tensor) not in PLAIN:
            return None
        dtype = _FLOATING.get(tensor.dtype)
        if dtype is None or not tensor.is_cpu or tensor.is_neg():
            return None
        try:
            array = view(tensor, dtype)
        except RuntimeError:  # sparse, nested, a batch of vmap, ...
            return None
        if array is None:
            return None
        arrays.append(array)
    return arrays


def check(tensor: Any, name: str, meta: bool = False) -> None:
    """Refuse what is no dense tensor on the CPU, or one with a shape alone."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        raise TypeError(f"{name}: expected a dense tensor, got a {kind} one")
    if not tensor.is_cpu and not (meta and tensor.is_meta):
        raise elsewhere(tensor, name)


def elsewhere(tensor: torch.Tensor, name: str) -> ValueError:
    """Return an error about a tensor on another device."""
    advice = "" if tensor.is_meta else ", which x.cpu() copies to the CPU"
    return ValueError(
        f"{name}: expected a CPU tensor, got one on device {str(tensor.device)!r}"
        f"{advice}"
    )


def flag(value: Any, name: str) -> bool:
    """Return a boolean, maybe one that is found out while a call is traced."""
    if not isinstance(value, (bool, np.bool_, torch.SymBool)):
        raise TypeError(f"{name}: expected a bool, got {type(value).__name__}")
    return bool(value)


def to_array(tensor: torch.Tensor) -> Any:
    """Return a tensor's memory as an array of any strides."""
    # A parameter may have been moved since it was checked, and saved for gradients.
    if not tensor.is_cpu:
        raise elsewhere(tensor, "tensors")
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        if tensor.dtype is not torch.bfloat16:  # float8 and the like
            raise TypeError(
                "tensors: expected float64, float32, float16, bfloat16, integers or "
                f"booleans, got {tensor.dtype}"
            )
        dtype = _dtypes.floating("bfloat16")
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_neg().resolve_conj()
    array = view(tensor, dtype, tensor)
    if array is not None:
        return array
    if tensor.numel() == 0 or _is_zerotensor(tensor):
        return np.zeros(tensor.shape, dtype)
    raise ValueError(
        "tensors: expected tensors with memory, got one whose storage has been "
        "resized to 0"
    )


def to_tensor(array: Array) -> torch.Tensor:
    """Return an array's memory as a tensor."""
    if array.dtype.kind == "V":  # bfloat16, which is no dtype of NumPy's own
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
