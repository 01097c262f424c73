"""torch.rms_norm, with gradients: one call instead of six operators.

It is replaced by name, not as a kernel: PyTorch has none for the CPU, and makes its
gradients from those of the operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnpy.integrations.torch import _kernels
from attnpy.integrations.torch._attention import is_batch, is_traced
from attnpy.integrations.torch._tensors import is_plain, needs_gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnpy.integrations.torch._blocks import Options


def rms_norm(
    options: Options,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
) -> Any:
    """Return torch.rms_norm, or NotImplemented where PyTorch is to compute it."""
    if (
        is_traced()
        or not is_plain(x)
        or not (weight is None or is_plain(weight))
        or torch.is_autocast_enabled("cpu")
    ):
        return NotImplemented
    try:
        if torch.is_grad_enabled() and (needs_gradient(x) or needs_gradient(weight)):
            return _RMSNorm.apply(x, weight, options, tuple(shape), eps)
        return _kernels.rms_norm(options, x, shape, weight, eps)
    except _kernels.Left:
        return NotImplemented


class _RMSNorm(torch.autograd.Function):
    """A call whose gradients are attnpy's."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        options: Options,
        shape: tuple[int, ...],
        eps: float | None,
    ) -> Tensor:
        """Compute the output, and save what gradients need."""
        output = _kernels.rms_norm(options, x, shape, weight, eps)
        ctx.save_for_backward(x, weight)
        ctx.given = options, shape, eps
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of x and of the weight."""
        x, weight = ctx.saved_tensors
        options, shape, eps = ctx.given
        # Of gradients that have gradients, or come in batches, by PyTorch's operators.
        if torch.is_grad_enabled() or is_traced() or is_batch(grad):
            found = _gradients(grad, x, shape, weight, eps)
        else:
            try:
                found = _kernels.rms_norm_gradients(
                    options, grad, x, shape, weight, eps
                )
            except (_kernels.Left, TypeError, ValueError):
                found = _gradients(grad, x, shape, weight, eps)
        of_x, of_weight = (
            one if is_wanted else None
            for one, is_wanted in zip(found, ctx.needs_input_grad, strict=False)
        )
        return of_x, of_weight, None, None, None


def _gradients(
    grad: Tensor,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients by PyTorch's operators, which have gradients themselves."""
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    axes = tuple(range(-len(shape), 0))
    wide = x.to(dtype)
    eps = torch.finfo(dtype).eps if eps is None else eps
    factor = torch.rsqrt(wide.square().mean(axes, keepdim=True) + eps)
    normed = wide * factor
    of_normed = grad.to(dtype) if weight is None else grad.to(dtype) * weight
    projected = (of_normed * normed).mean(axes, keepdim=True)
    of_x = factor * (of_normed - normed * projected)
    of_weight = grad.to(dtype) * normed
    before = tuple(range(x.dim() - len(shape)))
    if before:
        of_weight = of_weight.sum(before)
    return of_x.to(x.dtype), of_weight.to(x.dtype if weight is None else weight.dtype)
