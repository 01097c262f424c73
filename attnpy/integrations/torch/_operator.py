"""attnpy's operators in PyTorch's library, for calls that are traced.

`torch.compile`, `torch.export` and tensors that stand for others see one operator, know
what its results look like, and differentiate it. Other calls do without its cost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnpy._gradients import NAMES
from attnpy.integrations.torch import _compute, _shapes

INPUTS = "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? sinks"
OPTIONS = (
    "Tensor? mask, Tensor? q_offset, Tensor? kv_lengths, Tensor? query_offsets, "
    "Tensor? key_offsets, Tensor? dropout_seed, str? causal, SymInt? left, "
    "SymInt? right, float? scale, float? softcap, float dropout, SymInt? num_threads"
)
N_INPUTS = 5
N_TENSORS = N_INPUTS + 6  # all arguments that are tensors


def call(
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    return_weights: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return output, weights and LSE by the operator."""
    inputs = (*inputs[:3], *(_as_tensor(one) for one in inputs[3:]))
    arguments = _to_arguments(**options)
    output, weights, lse = torch.ops.attnpy.attention(
        *inputs, *arguments, return_weights
    )
    return output, weights if return_weights else None, lse


def _as_tensor(option: Any) -> Tensor | None:
    """Return what is given as numbers or an array of NumPy as a tensor."""
    if option is None or isinstance(option, Tensor):
        return option
    return torch.as_tensor(option, device="cpu")  # whatever the default device is


def _to_arguments(
    *,
    mask: Any = None,
    causal: Any = False,
    window: Any = None,
    q_offset: Any = None,
    kv_lengths: Any = None,
    seq_offsets: Any = None,
    scale: Any = None,
    softcap: Any = None,
    dropout: Any = 0.0,
    dropout_seed: Any = None,
    num_threads: Any = None,
) -> tuple[Any, ...]:
    """Return attention's options in the operator's order and types."""
    if not isinstance(seq_offsets, tuple):
        seq_offsets = (seq_offsets, seq_offsets)
    if isinstance(dropout_seed, int):  # int64 has the same 64 bits
        dropout_seed -= 2**64 if dropout_seed >= 2**63 else 0
    arrays = (mask, q_offset, kv_lengths, *seq_offsets, dropout_seed)
    left, right = (None, None) if window is None else window
    if isinstance(causal, bool):
        causal = "bottom_right" if causal else None
    return (
        *map(_as_tensor, arrays),
        causal, left, right, scale, softcap, dropout, num_threads,
    )  # fmt: skip


def _to_options(
    mask: Tensor | None,
    q_offset: Tensor | None,
    kv_lengths: Tensor | None,
    query_offsets: Tensor | None,
    key_offsets: Tensor | None,
    dropout_seed: Tensor | None,
    causal: str | None,
    left: int | None,
    right: int | None,
    scale: float | None,
    softcap: float | None,
    dropout: float,
    num_threads: int | None,
) -> dict[str, Any]:
    """Return the operator's arguments as attention's options."""
    packed = query_offsets is not None or key_offsets is not None
    return {
        "mask": mask,
        "causal": causal or False,
        "window": (left, right),
        "q_offset": q_offset,
        "kv_lengths": kv_lengths,
        "seq_offsets": (query_offsets, key_offsets) if packed else None,
        "scale": scale,
        "softcap": softcap,
        "dropout": dropout,
        "dropout_seed": None if dropout_seed is None else int(dropout_seed) % 2**64,
        "num_threads": num_threads,
    }


@torch.library.custom_op(
    "attnpy::attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({INPUTS}, {OPTIONS}, bool return_weights) -> (Tensor, Tensor, Tensor)",
)
def attention(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute output, weights, of which there may be none, and LSE."""
    inputs, *options, return_weights = _split(arguments)
    output, weights, lse = _compute.forward(
        inputs, _to_options(*options), return_weights, return_lse=True
    )
    return output, output.new_empty(0) if weights is None else weights, lse


def _split(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return arguments[:N_INPUTS], *arguments[N_INPUTS:]


@attention.register_fake
def _attention_shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, *options, return_weights = _split(arguments)
    packed = options[3] is not None or options[4] is not None
    return _shapes.empty_results(inputs[:3], packed, return_weights)


@torch.library.custom_op(
    "attnpy::attention_vjp",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor? grad_output, Tensor? grad_weights, Tensor? grad_lse, "
    f"Tensor output, Tensor lse, bool[] wanted, {INPUTS}, {OPTIONS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",  # a list has no batches in vmap
)
def attention_vjp(*arguments: Any) -> tuple[Tensor, ...]:
    """Compute the gradients of the five inputs; without elements if not wanted."""
    grads, results, (wanted, *rest) = arguments[:3], arguments[3:5], arguments[5:]
    inputs, *options = _split(tuple(rest))
    names = [name for name, flag in zip(NAMES, wanted, strict=True) if flag]
    found = _compute.backward(grads, inputs, results, _to_options(*options), names)
    pairs = zip(found, inputs, strict=True)
    return tuple(
        inputs[0].new_empty(0) if one is None else _like(one, tensor)
        for one, tensor in pairs
    )


def _like(gradient: Tensor, tensor: Tensor) -> Tensor:
    """Return a gradient with the strides that its place in a graph promises."""
    if gradient.stride() == torch.empty_like(tensor, device="meta").stride():
        return gradient
    return torch.empty_like(tensor).copy_(gradient)


@attention_vjp.register_fake
def _attention_vjp_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    wanted, inputs = arguments[5], arguments[6 : 6 + N_INPUTS]
    return tuple(
        torch.empty_like(tensor) if flag else inputs[0].new_empty(0)
        for tensor, flag in zip(inputs, wanted, strict=True)
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.numbers, ctx.return_weights = inputs[N_TENSORS:-1], inputs[-1]
    ctx.save_for_backward(*inputs[:N_TENSORS], output[0], output[2])


def _differentiate(
    ctx: Any,
    grad_output: Tensor | None,
    grad_weights: Tensor | None,
    grad_lse: Tensor | None,
) -> tuple[Tensor | None, ...]:
    *tensors, output, lse = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:N_INPUTS])
    grads = (grad_output, grad_weights if ctx.return_weights else None, grad_lse)
    found = torch.ops.attnpy.attention_vjp(
        *grads, output, lse, wanted, *tensors, *ctx.numbers
    )
    return (*_wanted(found, wanted), *[None] * (len(ctx.needs_input_grad) - N_INPUTS))


def _wanted(found: tuple[Tensor, ...], wanted: list[bool]) -> list[Tensor | None]:
    return [x if flag else None for x, flag in zip(found, wanted, strict=True)]


def gradients(
    grads: tuple[Tensor | None, ...],
    inputs: tuple[Any, ...],
    results: tuple[Tensor, ...],
    options: dict[str, Any],
    wanted: list[bool],
) -> list[Tensor | None]:
    """Return the gradients of the five inputs by the operator."""
    found = torch.ops.attnpy.attention_vjp(
        *grads, *results, wanted, *inputs, *_to_arguments(**options)
    )
    return _wanted(found, wanted)


def refuse_second(*_: Any) -> Any:
    """Say that gradients have no gradients."""
    raise NotImplementedError(
        "attnpy.integrations.torch: expected first derivatives only, got the gradient "
        "of attention's gradient: accelerate(attention=False) leaves attention to "
        "PyTorch, whose SDPBackend.MATH has it"
    )


attention.register_autograd(_differentiate, setup_context=_save)
attention_vjp.register_autograd(refuse_second)
