"""A call forward or backward on the memory of tensors; who calls records it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnpy._attention import attention
from attnpy._gradients import attention_vjp
from attnpy.integrations.torch import _shapes
from attnpy.integrations.torch._tensors import check, is_plain, to_array, to_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnpy._typing import Array

    Inputs = Sequence[Any]  # query, key, value, bias, sinks


def as_arrays(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are given as attnpy takes them: tensors as arrays."""
    return {
        name: _as_array(option, name)
        for name, option in options.items()
        if option is not None
    }


def _as_array(option: Any, name: str) -> Any:
    if isinstance(option, torch.Tensor):
        if not is_plain(option):
            check(option, name)
        return to_array(option)
    if isinstance(option, (tuple, list)):
        return tuple(_as_array(one, name) for one in option)
    return option


def forward(
    inputs: Inputs,
    options: dict[str, Any],
    return_weights: bool,
    return_lse: bool,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return output, weights and LSE; None for what is not wanted."""
    query, key, value, bias, sinks = inputs
    given = as_arrays({"bias": bias, "sinks": sinks, **options})
    if out is None and _shapes.heads_inside(query):
        out = _like_query(query, key, value, options)
    if out is not None:
        given["out"] = to_array(out)
    results = attention(
        to_array(query),
        to_array(key),
        to_array(value),
        return_weights=return_weights,
        return_lse=return_lse,
        **given,
    )
    if not isinstance(results, tuple):
        return to_tensor(results) if out is None else out, None, None
    output = to_tensor(results[0]) if out is None else out
    weights = to_tensor(results[1]) if return_weights else None
    return output, weights, to_tensor(results[-1]) if return_lse else None


def _like_query(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: dict[str, Any],
) -> torch.Tensor | None:
    """Return memory for the output, or None where attnpy will say what is wrong."""
    try:
        packed = options.get("seq_offsets") is not None
        return _shapes.empty_output(query, key, value, packed)
    except (RuntimeError, TypeError):
        return None


def backward(
    grads: Sequence[
        Any
    ],  # of output, weights and LSE; None where nothing depends on it
    inputs: Inputs,
    results: Sequence[Any],  # output and LSE
    options: dict[str, Any],
    wanted: Sequence[str],
) -> list[torch.Tensor | None]:
    """Return the gradients of the five inputs; None for what is not wanted."""
    grad_output, grad_weights, grad_lse, output, lse, query, key, value, *rest = (
        _memory(x) for x in (*grads, *results, *inputs)
    )
    given = as_arrays(options) | dict(zip(("bias", "sinks"), rest, strict=True))
    if grad_output is None:
        grad_output = np.zeros_like(output)
    gradients = attention_vjp(
        grad_output, query, key, value,
        output=output, lse=lse, grad_lse=grad_lse, wanted=wanted, **given,
    )  # fmt: skip
    found = [None if x is None else to_tensor(x) for x in gradients]
    if grad_weights is None:
        return found
    # Weights are the output for unit vectors as values.
    units = _unit_values(grad_weights, query, key, options)
    more = attention_vjp(
        grad_weights, query, key, units,
        lse=lse, wanted=[name for name in wanted if name != "value"], **given,
    )  # fmt: skip
    return [
        one if other is None or one is None else one + to_tensor(other)
        for one, other in zip(found, more, strict=True)
    ]


def _memory(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else to_array(tensor)


def _unit_values(
    grad_weights: Array, query: Array, key: Array, options: dict[str, Any]
) -> Array:
    """Return values (..., Hk, Lk, Lk) that make the output the weights."""
    if options.get("seq_offsets") is not None:
        raise NotImplementedError(
            "return_weights: expected no gradient to come from the weights of packed "
            "sequences, got one; pad them, without seq_offsets"
        )
    n_keys = key.shape[-2]
    units = np.eye(n_keys, dtype=grad_weights.dtype)
    n_heads = key.shape[-3:-2]  # (Hk,), or () without that axis
    batch = grad_weights.shape[: -2 if query.ndim == 1 else -3]
    return np.broadcast_to(units, (*batch, *n_heads, n_keys, n_keys))
