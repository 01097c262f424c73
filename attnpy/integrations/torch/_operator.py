"""attnpy's operators in PyTorch's library, for calls that are traced.

`torch.compile`, `torch.export` and tensors that stand for others see one operator, know
what its results look like, and differentiate it. Other calls do without its cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
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
LARGEST = int(np.finfo(np.float64).max)
N_INPUTS = 5
N_TENSORS = N_INPUTS + 6  # all arguments that are tensors


def call(
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    return_weights: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return output, weights and LSE by the operator."""
    others = zip(inputs[3:], NAMES[3:], strict=True)
    inputs = (*inputs[:3], *(_as_tensor(one, name) for one, name in others))
    arguments = _to_arguments(**options)
    output, weights, lse = torch.ops.attnpy.attention(
        *inputs, *arguments, return_weights
    )
    return output, weights if return_weights else None, lse


def _as_tensor(option: Any, name: str) -> Tensor | None:
    """Return what is given as numbers or an array of NumPy as a tensor."""
    if option is None or isinstance(option, Tensor):
        return option
    if isinstance(option, (str, bytes)):
        raise TypeError(f"{name}: expected an array, got {type(option).__name__}")
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
    """Return attention's options in the operator's order and types.

    What has another type is refused as by attention, for PyTorch would convert it, or
    speak of the operator. Values are for attention, when the operator runs.
    """
    if not isinstance(seq_offsets, tuple):
        seq_offsets = (seq_offsets, seq_offsets)
    arrays = (
        _as_tensor(mask, "mask"),
        _as_tensor(q_offset, "q_offset"),
        _as_tensor(kv_lengths, "kv_lengths"),
        *(_as_tensor(offsets, "seq_offsets") for offsets in seq_offsets),
        _as_tensor(_seed(dropout_seed), "dropout_seed"),
    )
    numbers = (
        _number(scale, "scale"),
        _number(softcap, "softcap"),
        _number(dropout, "dropout"),
    )
    n_threads = _int64(_integer(num_threads, "num_threads"))
    return *arrays, _causal(causal), *_sides(window), *numbers, n_threads


def _causal(causal: Any) -> str | None:
    if isinstance(causal, (bool, np.bool_)):
        return "bottom_right" if causal else None
    if not isinstance(causal, str):
        raise TypeError(
            "causal: expected False, True, 'bottom_right' or 'top_left', got "
            f"{type(causal).__name__}"
        )
    return causal


def _sides(window: Any) -> tuple[Any, Any]:
    if window is None:
        return None, None
    if isinstance(window, (str, bytes, dict)) or not hasattr(window, "__getitem__"):
        raise TypeError(f"window: expected (left, right), got {type(window).__name__}")
    if len(window) != 2:
        raise ValueError(f"window: expected (left, right), got {window!r}")
    left, right = (_integer(side, "window") for side in window)
    return _int64(left), _int64(right)


def _seed(seed: Any) -> Any:
    """Return the tensor, or the integer of int64 that has the same 64 bits."""
    if seed is None or isinstance(seed, Tensor):
        return seed
    seed = _integer(seed, "dropout_seed")
    if not 0 <= seed < 2**64:
        raise ValueError(
            f"dropout_seed: expected an integer from 0 to 2**64 - 1, got {seed}"
        )
    return seed - 2**64 if seed >= 2**63 else seed


def _number(value: Any, name: str) -> Any:
    """Return a number, symbolic or not, or None."""
    if value is None or isinstance(value, (torch.SymFloat, torch.SymInt)):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    known = (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, known):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise ValueError(f"{name}: expected a finite number, got {value}")
    return value if isinstance(value, float) else float(value)


def _integer(value: Any, name: str) -> Any:
    """Return an integer, symbolic or not, or None."""
    if value is None or isinstance(value, torch.SymInt):
        return value
    if isinstance(value, Tensor) and value.dtype is not torch.bool:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    return int(value)


def _int64(number: Any) -> Any:
    """Return a number of which what is larger than int64 means the same."""
    return min(number, 2**63 - 1) if type(number) is int else number


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
