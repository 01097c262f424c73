"""What the results of a call look like, before it: for tracing, and to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnpy import _dtypes

if TYPE_CHECKING:
    from collections.abc import Sequence


def output_shape(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packed: bool
) -> tuple[int, ...]:
    """Return attention's shape; `packed` says whether there are seq_offsets."""
    tail = (*query.shape[-2:-1], value.shape[-1])
    if packed:
        return (*query.shape[:-2], *tail)
    n_axes = max(query.dim(), key.dim(), value.dim())
    if n_axes < 3:
        return tail
    n_heads = query.shape[-3] if query.dim() > 2 else 1
    batches = (query.shape[:-3], key.shape[:-3], value.shape[:-3])
    return (*torch.broadcast_shapes(*batches), n_heads, *tail)


def output_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """Return the dtype that NumPy's promotion gives the output."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) == 1 and tensors[0].is_floating_point():
        return tensors[0].dtype
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    kinds = [
        _dtypes.floating(name) if "bfloat" in name else np.dtype(name) for name in names
    ]
    kind = np.result_type(*kinds)
    result: torch.dtype = getattr(torch, "float64" if kind.kind in "biu" else kind.name)
    return result


def heads_inside(query: torch.Tensor) -> bool:
    """Tell whether a query's memory is (..., Lq, H, D): a projection cut into heads."""
    return query.dim() > 2 and bool(query.stride(-3) < query.stride(-2))


def empty_output(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packed: bool
) -> torch.Tensor:
    """Return a tensor for the output: in memory, the query's order of heads and rows.

    So PyTorch's own functions do, and what comes next joins the heads without a copy.
    """
    shape: Any = output_shape(query, key, value, packed)
    dtype = output_dtype(query, key, value)
    if heads_inside(query):
        shape = (*shape[:-3], shape[-2], shape[-3], shape[-1])
        return query.new_empty(shape, dtype=dtype).transpose(-2, -3)
    return query.new_empty(shape, dtype=dtype)


def empty_results(
    inputs: Sequence[torch.Tensor], packed: bool, return_weights: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tensors for output, weights, of which there may be none, and LSE."""
    query, key, value = inputs
    output = empty_output(query, key, value, packed)
    rows = output.shape[:-1]
    if return_weights and packed:
        raise NotImplementedError(
            "return_weights: expected False with seq_offsets where a call is traced, "
            "for the weights' shape depends on the offsets' values, got True"
        )
    shape = (*rows, key.shape[-2]) if return_weights else (0,)
    weights = query.new_empty(shape, dtype=output.dtype)
    double = output.dtype is torch.float64
    lse = query.new_empty(rows, dtype=torch.float64 if double else torch.float32)
    return output, weights, lse
