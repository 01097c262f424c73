"""Tensors as arrays and arrays as tensors, on the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnpy import _dtypes

if TYPE_CHECKING:
    from attnpy._typing import Array

PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_plain(tensor: Any) -> bool:
    """Tell whether this is a tensor whose memory an array can have."""
    return (
        type(tensor) in PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def needs_gradient(option: Any) -> bool:
    """Tell whether this is a tensor with a history that autograd records."""
    return isinstance(option, torch.Tensor) and option.requires_grad


def plain_arrays(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any] | None:
    """Return the memory of tensors that are nothing else besides, or None.

    As `is_plain` and `to_array`, for those that need no gradient, in dtypes that NumPy
    has, in a third of the time: what NumPy cannot have PyTorch refuses by itself.
    """
    for tensor in (query, key, value):
        if type(tensor) is not torch.Tensor or tensor.requires_grad:
            return None
    try:
        return query.numpy(), key.numpy(), value.numpy()
    except (RuntimeError, TypeError):  # of another device, nested, bfloat16, ...
        return None


def detached_arrays(*tensors: Any) -> list[Any] | None:
    """Return the memory of tensors with or without a history, likewise."""
    for tensor in tensors:
        if type(tensor) not in PLAIN:
            return None
    try:
        return [tensor.numpy(force=True) for tensor in tensors]
    except (RuntimeError, TypeError):
        return None


def check(tensor: Any, name: str, meta: bool = False) -> None:
    """Refuse what is no dense tensor on the CPU, or one with a shape alone."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        raise TypeError(f"{name}: expected a dense tensor, got a {kind} one")
    if not tensor.is_cpu and not (meta and tensor.is_meta):
        raise ValueError(
            f"{name}: expected a CPU tensor, got one on device {str(tensor.device)!r}"
        )


def to_array(tensor: torch.Tensor) -> Any:
    """Return a tensor's memory as an array of any strides."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype is torch.bfloat16:
        bfloat16 = _dtypes.floating("bfloat16")
        return tensor.view(torch.int16).numpy().view(bfloat16)
    try:
        return tensor.numpy()
    except TypeError as error:  # float8 and the like, which NumPy does not have
        raise TypeError(
            "tensors: expected float64, float32, float16, bfloat16, integers or "
            f"booleans, got {tensor.dtype}"
        ) from error


def to_tensor(array: Array) -> torch.Tensor:
    """Return an array's memory as a tensor."""
    if array.dtype.kind == "V":  # bfloat16, which is no dtype of NumPy's own
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
