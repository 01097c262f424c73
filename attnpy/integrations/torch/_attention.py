"""attnpy.attention on tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np
import torch
from torch import Tensor
from torch._C import _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import is_legacy_batchedtensor, maybe_current_level
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.nn.attention.bias import CausalBias

from attnpy import _attention, _attnpy, _checks
from attnpy._gradients import NAMES
from attnpy._options import VJP, Options
from attnpy.integrations.torch import _compute, _operator, _tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from attnpy._typing import Causal, Window

    Results = tuple[Tensor, Tensor | None, Tensor | None]  # output, weights, LSE

    class TensorOptions(TypedDict, total=False):
        """The options of `attention` that do not change what is returned."""

        mask: Any
        bias: Any
        causal: Causal
        window: Window | None
        q_offset: Any
        kv_lengths: Any
        seq_offsets: Any
        scale: float | None
        softcap: float | None
        sinks: Any
        dropout: float
        dropout_seed: Any
        out: Tensor | None
        num_threads: int | None


# Options that are one number each.
NUMBERS = dict.fromkeys(("scale", "softcap", "dropout"), "a number")
NUMBERS |= dict.fromkeys(("dropout_seed", "num_threads"), "an integer")
TENSORS = frozenset(_tensors.PLAIN)


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[False] = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[TensorOptions],
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[TensorOptions],
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[True],
    return_lse: Literal[False] = ...,
    **options: Unpack[TensorOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[False] = ...,
    return_lse: Literal[True],
    **options: Unpack[TensorOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: bool = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[TensorOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[False] = ...,
    return_lse: bool = ...,
    **options: Unpack[TensorOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: bool = ...,
    return_lse: bool = ...,
    **options: Unpack[TensorOptions],
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]: ...
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: Causal = False,
    window: Window | None = None,
    q_offset: Any = None,
    kv_lengths: Any = None,
    seq_offsets: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    dropout: float = 0.0,
    dropout_seed: Any = None,
    return_weights: bool = False,
    return_lse: bool = False,
    out: Tensor | None = None,
    num_threads: int | None = None,
) -> Any:
    r"""Compute scaled-dot-product attention of PyTorch's CPU tensors, with gradients.

    This is `attnpy.attention` on the memory of tensors: nothing is copied. Gradients
    come from `attnpy.attention_vjp`.

    Parameters
    ----------
    query : Tensor, shape (..., H, Lq, D)
        float64, float32, float16 or bfloat16 (which needs the package ml_dtypes), with
        any strides, like all other tensors.
    key : Tensor, shape (..., Hk, Lk, D)
        `H` must be a multiple of `Hk`.
    value : Tensor, shape (..., Hk, Lk, Dv)
        The axes before the head axis broadcast.
    mask : Tensor of bool, broadcast to (..., H, Lq, Lk), optional
        True where the query may attend to the key.
    bias : Tensor, broadcast to (..., H, Lq, Lk), optional
        Added to the scaled scores. It may need a gradient.
    sinks : Tensor, shape (H,), optional
        One more logit for each query head. It may need a gradient.
    causal, window, q_offset, kv_lengths, seq_offsets, scale, softcap : optional
        As for `attnpy.attention`; integers may be tensors.
    dropout, dropout_seed : optional
        As for `attnpy.attention`. The seed may be an int64 tensor without axes, whose
        64 bits are used. To draw it from PyTorch's generator, pass
        ``torch.randint(2**63 - 1, ())``.
    return_weights, return_lse : bool, optional
        Return these as well. They may need gradients; those of weights need a matrix
        (Lk, Lk), and packed sequences have none.
    out : Tensor, shape (..., H, Lq, Dv), optional
        Tensor for the output, if no gradient is needed.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.
        `torch.set_num_threads` has no effect on it.

    Returns
    -------
    output : Tensor, shape (..., H, Lq, Dv)
        In the promoted dtype, as in NumPy. In memory, heads and rows have the same
        order as in `query`.
    weights : Tensor, shape (..., H, Lq, Lk)
        With `return_weights`.
    lse : Tensor, shape (..., H, Lq)
        With `return_lse`, in float32 or float64.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype, or a tensor is not dense.
    ValueError
        If shapes do not fit together, a number is out of its range, or a tensor is on
        another device than the CPU.
    NotImplementedError
        If a gradient of a gradient is needed, or that of packed sequences' weights.

    See Also
    --------
    attnpy.attention : explains the options, and what the results depend on.

    Notes
    -----
    Under `torch.compile`, `torch.export` and similar, a call is the operator
    ``attnpy::attention``, with the gradient ``attnpy::attention_vjp``. Tensors on the
    device "meta" give the shapes of results. Other calls run directly, and autograd
    records them. Autocast does not change dtypes.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import attention
    >>> query, key, value = torch.randn(3, 2, 8, 10, 64).requires_grad_().unbind()
    >>> output = attention(query, key, value, causal=True, window=(4, 0))
    >>> output.shape
    torch.Size([2, 8, 10, 64])
    >>> (gradient,) = torch.autograd.grad(output.sum(), query)
    >>> gradient.shape
    torch.Size([2, 8, 10, 64])
    """
    inputs = (query, key, value, bias, sinks)
    options = {
        "causal": causal,
        "window": window,
        "scale": scale,
        "softcap": softcap,
        "num_threads": num_threads,
    }
    # What is not just as by default is for `attend`, which says if it is wrong.
    nothing_else = (
        mask is bias is sinks is q_offset is kv_lengths is seq_offsets is out is None
        and dropout_seed is None
        and type(dropout) is float
        and dropout == 0
        and return_weights is return_lse is False
        and causal is not None
    )
    if nothing_else:
        output = attend_at_once(query, key, value, options)
        if output is not None:
            return output
    options |= {
        "mask": mask,
        "q_offset": q_offset,
        "kv_lengths": kv_lengths,
        "seq_offsets": seq_offsets,
        "dropout": dropout,
        "dropout_seed": dropout_seed,
    }
    options = {name: one for name, one in options.items() if one is not None}
    return_weights = _checks.flag(return_weights, "return_weights")
    return_lse = _checks.flag(return_lse, "return_lse")
    output, weights, lse = attend(inputs, options, return_weights, return_lse, out)
    if not return_weights and not return_lse:
        return output
    wanted = ((weights, return_weights), (lse, return_lse))
    return output, *(result for result, flag in wanted if flag)


def attend_at_once(
    query: Any, key: Any, value: Any, options: dict[str, Any], as_torch: bool = False
) -> Tensor | None:
    """Return the output where there is nothing to check or to lay out.

    Else None, and `attend` is for it. This is what most calls are, and the short way
    for those in which microseconds count. Options are numbers and names; `as_torch`
    asks for what means the same to PyTorch.
    """
    if is_traced() or not TENSORS.isdisjoint(map(type, options.values())):
        return None
    arrays = _tensors.detached_arrays(query, key, value)
    if arrays is None or _is_for_attend(arrays, as_torch):
        return None
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    ):
        given = {name: one for name, one in options.items() if one is not None}
        output, _, _ = _AtOnce.apply(query, key, value, None, None, given, arrays)
        recorded: Tensor = output
        return recorded
    return _tensors.to_tensor(_attention.attention(*arrays, **options))


def _is_for_attend(arrays: list[Any], as_torch: bool) -> bool:
    """Tell whether an output has its heads inside, or PyTorch means something else."""
    query, key, value = arrays
    strides = query.strides
    if len(strides) < 3 or strides[-3] < strides[-2]:
        return True
    return as_torch and not (
        query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        and query.dtype == key.dtype == value.dtype
        and query.dtype.kind == "f"
        and query.size > 0
        and value.size > 0
        and not torch.is_autocast_enabled("cpu")
    )


def attend(
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    return_weights: bool = False,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Results:
    """Return output, weights and LSE of a call, by whatever has to record it.

    `inputs` are query, key, value, bias and sinks, `options` the others that are given.
    """
    options = _with_numbers(options)
    given = list(_tensors_of(inputs, options))
    traced = (
        is_traced()
        or not all(map(_tensors.is_plain, inputs[:3]))
        or any(type(tensor) not in _tensors.PLAIN for tensor in given)
    )
    if traced:
        _check_inputs(inputs, options, given)
    recorded = torch.is_grad_enabled() and any(map(_tensors.needs_gradient, inputs))
    if recorded and traced and maybe_current_level() is not None:
        raise NotImplementedError(
            "attnpy.integrations.torch: expected no transform of torch.func where "
            "gradients are needed, got one; torch.autograd differentiates attention"
        )
    if out is not None:
        _check_out(out, recorded)
        if not traced and not _has_memory_as_it_reads(out):
            results = attend(inputs, options, return_weights, return_lse)
            return _written(results[0], out), *results[1:]
    if traced:
        output, weights, lse = _operator.call(inputs, options, return_weights)
        return output if out is None else _written(output, out), weights, lse
    if "dropout_seed" in options:
        options = {**options, "dropout_seed": _seed(options["dropout_seed"])}
    if recorded:
        inputs = (*inputs[:3], *map(_saved, inputs[3:]))
        options = {name: _kept(option) for name, option in options.items()}
        recorded_results: Results = _Attention.apply(*inputs, options, return_weights)
        return recorded_results
    results = _compute.forward(inputs, options, return_weights, return_lse, out)
    if out is not None:
        increment_version(out)  # so that autograd knows that it is not what it was
    return results


def _with_numbers(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with numbers in the place of tensors of one.

    Seeds stay as they are. Tensors of several numbers are refused, and those whose
    gradients would be lost.
    """
    found = {}
    for name, kind in NUMBERS.items():
        number = options.get(name)
        if not isinstance(number, torch.Tensor):
            continue
        dtype = number.dtype
        right = not (dtype.is_complex or dtype is torch.bool)
        if kind == "an integer":
            right = right and not dtype.is_floating_point
        if number.numel() != 1 or not right:
            raise TypeError(
                f"{name}: expected {kind}, got a torch.Tensor of shape "
                f"{tuple(number.shape)} and {dtype}"
            )
        if number.requires_grad and torch.is_grad_enabled():
            raise TypeError(
                f"{name}: expected a constant, got a torch.Tensor that requires a "
                f"gradient; there are gradients of {', '.join(NAMES)}"
            )
        if name != "dropout_seed":  # which a traced call draws in each run
            found[name] = number.item()
    return {**options, **found} if found else options


def _tensors_of(inputs: tuple[Any, ...], options: dict[str, Any]) -> Iterator[Any]:
    """Return query, key and value, whatever they are, and the other tensors."""
    yield from inputs[:3]
    for _, tensor in _named_tensors(_others(inputs, options)):
        yield tensor


def _others(inputs: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    return {"bias": inputs[3], "sinks": inputs[4], **options}


def _named_tensors(options: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Return the options that are tensors, each by its name."""
    for name, option in options.items():
        pair = option if isinstance(option, (tuple, list)) else (option,)
        yield from ((name, one) for one in pair if isinstance(one, torch.Tensor))


def _has_memory_as_it_reads(out: Tensor) -> bool:
    return _tensors.is_plain(out) and not out.is_neg()


def _seed(seed: Any) -> Any:
    """Return a tensor's 64 bits as the integer that attnpy takes."""
    return int(seed) % 2**64 if isinstance(seed, torch.Tensor) else seed


def _check_inputs(
    inputs: tuple[Any, ...], options: dict[str, Any], given: list[Any]
) -> None:
    """Refuse what no operator stands for; `given` are all tensors."""
    if not torch.compiler.is_compiling():
        _check_classes(given)
    for tensor, name in zip(inputs[:3], NAMES, strict=False):
        _tensors.check(tensor, name, meta=True)
        if tensor.is_meta is not inputs[0].is_meta:
            raise ValueError(
                f"{name}: expected a tensor on the query's device, "
                f"{str(inputs[0].device)!r}, got one on {str(tensor.device)!r}"
            )
    for name, tensor in _named_tensors(_others(inputs, options)):
        _tensors.check(tensor, name, meta=inputs[0].is_meta)
    if _is_forward_mode() and any(map(_has_tangent, inputs)):
        raise NotImplementedError(
            "attnpy.integrations.torch: expected no forward-mode derivatives, which "
            "attnpy does not have, got a tensor with a tangent"
        )


def _check_classes(tensors: list[Any]) -> None:
    """Refuse tensors that do not have their numbers, or have none beside some."""
    if any(type(tensor) is CausalBias for tensor in tensors):
        raise TypeError(
            "bias, mask: expected a tensor with numbers, got a CausalBias; "
            "causal='top_left' and causal=True mean the same"
        )
    fakes = [x for x in tensors if isinstance(x, FakeTensor)]
    if 0 < len(fakes) < len(tensors) and not fakes[0].fake_mode.allow_non_fake_inputs:
        raise TypeError(
            "tensors: expected a FakeTensor for each of them or for none, got "
            f"{len(fakes)} among {len(tensors)}"
        )


def _is_forward_mode() -> bool:
    return getattr(forward_ad, "_current_level", -1) >= 0


def _has_tangent(option: Any) -> bool:
    return (
        isinstance(option, torch.Tensor)
        and forward_ad.unpack_dual(option).tangent is not None
    )


def _check_out(out: Any, recorded: bool) -> None:
    """Refuse an output that has no memory of its own for this, or a history."""
    _tensors.check(out, "out")
    if recorded or out.requires_grad:
        raise ValueError(
            "out: expected None where gradients are wanted, or a call under "
            "torch.no_grad(), got a tensor"
        )
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            "out: expected a tensor that may be written to, got one of inference mode "
            "outside of it"
        )


def _written(output: Tensor, out: Tensor) -> Tensor:
    """Return `out` with what an operator returned, which writes to no argument."""
    if out.shape != output.shape or out.dtype != output.dtype:
        raise ValueError(
            f"out: expected shape {tuple(output.shape)} and dtype {output.dtype}, "
            f"got {tuple(out.shape)} and {out.dtype}"
        )
    out.copy_(output)
    return out


def is_traced() -> bool:
    """Tell whether calls are recorded by something else than autograd.

    Then an operator has to stand for a call: under `torch.compile` and `torch.export`,
    other modes, the transforms of `torch.func` and forward-mode derivatives.
    """
    return (
        torch.compiler.is_compiling()
        or _len_torch_dispatch_stack() > 0
        or maybe_current_level() is not None
        or _is_forward_mode()
        or _is_tracing()
    )


def _saved(option: Any) -> Tensor | None:
    """Return bias or sinks as what autograd saves."""
    if option is None or isinstance(option, torch.Tensor):
        return option
    return _tensors.to_tensor(np.array(option))


def _kept(option: Any) -> Any:
    """Return an option that may be needed later: arrays and lists are copied."""
    if isinstance(option, np.ndarray):
        return _tensors.to_tensor(option.copy())
    if isinstance(option, (tuple, list)):
        return tuple(map(_kept, option))
    return option


class _Attention(torch.autograd.Function):
    """A call whose gradients are attnpy's.

    Tensors among the options are saved with the inputs, so that PyTorch refuses to go
    back through what was written to in between.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        options: dict[str, Any],
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Compute output, weights and LSE, and save what gradients need."""
        inputs = (query, key, value, bias, sinks)
        output, weights, lse = _compute.forward(
            inputs, options, return_weights, return_lse=True
        )
        tensors = {n: o for n, o in options.items() if isinstance(o, torch.Tensor)}
        ctx.names = tuple(tensors)
        ctx.options = {n: o for n, o in options.items() if n not in tensors}
        ctx.save_for_backward(*inputs, output, lse, *tensors.values())
        ctx.set_materialize_grads(False)
        return output, weights, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Compute the gradients of query, key, value, bias and sinks."""
        saved = ctx.saved_tensors
        found = _gradients_at_once(ctx, grads, saved)
        if found is not None:
            return (*found, None, None)
        n = len(NAMES)
        inputs, results, tensors = saved[:n], saved[n : n + 2], saved[n + 2 :]
        options = {**ctx.options, **dict(zip(ctx.names, tensors, strict=True))}
        flags = list(ctx.needs_input_grad[:n])
        if is_traced() or any(map(is_batch, grads)):
            traced = _operator.gradients(grads, inputs, results, options, flags)
            return (*traced, None, None)
        wanted = [name for name, flag in zip(NAMES, flags, strict=True) if flag]

        def compute() -> tuple[Tensor | None, ...]:
            return tuple(_compute.backward(grads, inputs, results, options, wanted))

        if torch.is_grad_enabled():  # create_graph=True
            return (*_FirstDerivative.apply(compute, *grads, *inputs), None, None)
        return (*compute(), None, None)


class _AtOnce(_Attention):
    """A call of `attend_at_once`, which has made the arrays."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: None,
        sinks: None,
        options: dict[str, Any],
        arrays: list[Any],
    ) -> tuple[Tensor, None, Tensor]:
        """Compute output and LSE, and save what gradients need."""
        results = _attention.attention(*arrays, return_lse=True, **options)
        output, lse = map(_tensors.to_tensor, results)
        ctx.names, ctx.options = (), options
        ctx.save_for_backward(query, key, value, bias, sinks, output, lse)
        ctx.set_materialize_grads(False)
        return output, None, lse


def is_batch(tensor: Tensor | None) -> bool:
    """Tell whether this is what `is_grads_batched` makes of a batch of gradients."""
    return tensor is not None and is_legacy_batchedtensor(tensor)


def _gradients_at_once(
    ctx: Any, grads: tuple[Tensor | None, ...], saved: tuple[Tensor | None, ...]
) -> list[Tensor | None] | None:
    """Return the gradients where there is nothing to record, to check or to add up.

    Else None. The short way, as `attend_at_once` is.
    """
    query, key, value, bias, sinks, *results = saved
    grad_output, grad_weights, grad_lse = grads
    nothing_else = bias is sinks is grad_weights is grad_lse is None and not ctx.names
    if not nothing_else or torch.is_grad_enabled():
        return None
    arrays = _tensors.detached_arrays(grad_output, query, key, value, *results)
    if arrays is None:
        return None
    grad, q, k, v, output, lse = arrays
    wanted = ctx.needs_input_grad[: len(NAMES)]
    found = _attnpy.attention_vjp(
        grad, q, k, v, Options(**ctx.options), VJP(output, lse, None, wanted)
    )
    return [None if x is None else torch.from_numpy(x) for x in found]


class _FirstDerivative(torch.autograd.Function):
    """Gradients of attention, which have none themselves, and say so."""

    @staticmethod
    def forward(ctx: Any, compute: Any, *_: Tensor | None) -> Any:
        """Compute the gradients."""
        return compute()

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> Any:
        """Refuse."""
        _operator.refuse_second()
