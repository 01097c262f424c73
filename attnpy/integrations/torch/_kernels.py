"""PyTorch's operators on the CPU, by attnpy.

`install` replaces PyTorch's kernels for the CPU. A kernel asks whether the calling
thread is in a block of `accelerate`; it computes the call, or raises `Left`, and
PyTorch's own kernel computes it. It is called below autograd, autocast, `torch.func`,
subclasses and modes: it gets plain tensors, whatever these have made of a call, and
what they do with the result is theirs. So gradients are operators, too, and calls of
all other operators, of other devices and of compiled code cost what they cost without.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.nn import Parameter

from attnpy import _attnpy, _dtypes
from attnpy._options import Norm
from attnpy.integrations.torch import _packed, _tensors
from attnpy.integrations.torch._blocks import innermost, process, thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attnpy.integrations.torch._blocks import Options


class Left(Exception):
    """Says why a call is left to PyTorch."""


_KERNELS: dict[str, Callable[..., Any]] = {}
ARE_POSSIBLE = hasattr(torch.library, "get_kernel")  # as PyTorch's must be callable


def _kernel(name: str, option: str) -> Callable[[Any], Any]:
    """Add a function for an operator, which an option of a block turns on."""

    def add(compute: Callable[..., Any]) -> Callable[..., Any]:
        if not ARE_POSSIBLE:
            return compute
        theirs = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed

        def kernel(x: Tensor, /, *arguments: Any, **keywords: Any) -> Any:
            block = innermost()
            if block is None:  # another thread has closed it
                return theirs(_KEYS, x, *arguments, **keywords)
            if not getattr(block.options, option):
                reason = "not asked for"
            elif x.dtype not in _DTYPES:
                reason = str(x.dtype).removeprefix("torch.")
            else:
                try:
                    result = compute(block.options, x, *arguments, **keywords)
                except Left as why:
                    reason = str(why)
                except (TypeError, ValueError):
                    reason = "arguments that attnpy does not take"
                else:
                    if block.report is not None:
                        block.report.add(name)
                    return result
            if block.report is not None:
                block.report.add(name, reason)
            return theirs(_KEYS, x, *arguments, **keywords)

        _KERNELS[name] = _attnpy.gate(theirs, _KEYS, kernel, thread, process, _DTYPES)
        return compute

    return add


# PyTorch's kernels ignore it. Asking the dispatcher for its own would take 0.3 us.
_KEYS = DispatchKeySet(DispatchKey.CPU)
_DTYPES = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))
_destroy = operator.methodcaller("_destroy")
_libraries: list[torch.library.Library] = []  # one, or more if threads met


def install() -> None:
    """Replace PyTorch's kernels, if that has not been done."""
    if not ARE_POSSIBLE:
        raise NotImplementedError(
            "linear, norms, activations: expected PyTorch 2.9 or later, or False for "
            f"all three, which leaves attention, got {torch.__version__}"
        )
    if _libraries:
        return
    with warnings.catch_warnings():
        # PyTorch says once that kernels are replaced.
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        library = torch.library.Library("aten", "IMPL")
        for name, kernel in _KERNELS.items():
            library.impl(name, kernel, "CPU")
    _libraries.append(library)


def remove() -> None:
    """Give PyTorch its kernels back, unless another thread might be calling one."""
    while _libraries and threading.active_count() == 1:
        _destroy(_libraries.pop())


# ---- Tensors -------------------------------------------------------------------------

_PLAIN = frozenset((Tensor, Parameter))
_NUMPYS = {
    getattr(torch, name): _dtypes.floating(name)
    for name in ("float64", "float32", "float16")
}


def _array(tensor: Tensor, dtype: torch.dtype | None = None) -> Any:
    """Return a tensor's memory as an array; `dtype` is what it should have.

    The caller keeps the tensor as long as the array.
    """
    if type(tensor) not in _PLAIN:
        raise Left(f"a {type(tensor).__name__}")
    if not tensor.is_cpu:
        raise Left(f"on {tensor.device.type}")
    own = tensor.dtype
    if dtype is not None and own is not dtype:
        raise Left("tensors of several dtypes")
    try:
        array = _tensors.view(tensor, _NUMPYS.get(own) or _numpys(own))
    except RuntimeError:
        raise Left("a tensor that is not dense") from None
    if array is None or array.size == 0:
        raise Left("a tensor without elements")
    return array


def _numpys(dtype: torch.dtype) -> Any:
    if dtype is not torch.bfloat16:
        raise Left(str(dtype).removeprefix("torch."))
    try:
        _NUMPYS[dtype] = _dtypes.floating("bfloat16")
    except (ImportError, TypeError):
        raise Left("bfloat16 without ml_dtypes") from None
    return _NUMPYS[dtype]


_tensor = _tensors.to_tensor


# ---- Products ------------------------------------------------------------------------


def _product(options: Options, rows: Tensor, matrix: Tensor, bias: Any = None) -> Any:
    """Return rows (N, K) @ matrix (K, M) + bias (M,)."""
    x = _array(rows)
    if matrix.dtype is not rows.dtype:
        raise Left("tensors of several dtypes")
    weight: Any = _packed.find(matrix, _array) if options.pack else None
    return _attnpy.linear(
        x, _array(matrix) if weight is None else weight, bias,
        None, None, None, "promoted", options.num_threads,
    )  # fmt: skip


@_kernel("mm", "linear")
def _mm(options: Options, rows: Tensor, matrix: Tensor) -> Tensor:
    return _tensor(_product(options, rows, matrix))


@_kernel("addmm", "linear")
def _addmm(
    options: Options,
    added: Tensor,
    rows: Tensor,
    matrix: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    bias = _array(added, rows.dtype)
    if beta == 1 and alpha == 1 and bias.shape == matrix.shape[1:]:
        return _tensor(_product(options, rows, matrix, bias))
    return _scaled_sum(added, _tensor(_product(options, rows, matrix)), beta, alpha)


def _scaled_sum(added: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """Return beta * added + alpha * product. With a beta of 0 `added` may be NaN."""
    if alpha == 0:
        raise Left("products times 0, which may be NaN")
    added = added.expand(product.shape)  # or an error in PyTorch's words
    if alpha != 1:
        product = product * alpha
    return product if beta == 0 else torch.add(product, added, alpha=beta)


def _products(options: Options, rows: Tensor, matrices: Tensor) -> Tensor:
    """Return rows (B, N, K) @ matrices (B, K, M)."""
    x, weights = _array(rows), _array(matrices, rows.dtype)
    if x.ndim != 3 or weights.ndim != 3 or len(x) != len(weights):
        raise ValueError
    if matrices.stride(0) == 0 or len(x) == 1:  # one matrix for all
        return _tensor(_product(options, rows, matrices[0]))
    return _tensor(_attnpy.products(x, weights, options.num_threads))


@_kernel("bmm", "linear")
def _bmm(options: Options, rows: Tensor, matrices: Tensor) -> Tensor:
    return _products(options, rows, matrices)


@_kernel("baddbmm", "linear")
def _baddbmm(
    options: Options,
    added: Tensor,
    rows: Tensor,
    matrices: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    _array(added, rows.dtype)
    return _scaled_sum(added, _products(options, rows, matrices), beta, alpha)


# ---- Sums ----------------------------------------------------------------------------


@functools.lru_cache(8)
def _ones(n: int, dtype: np.dtype[Any]) -> Any:
    return np.ones((1, 1, n), dtype)


def _sums(
    options: Options, x: Tensor, dim: Sequence[int] | None, keepdim: bool
) -> tuple[Tensor, int]:
    """Return sums over neighbouring axes, as products with ones, and of how many."""
    n_axes = x.dim()
    if n_axes == 0:
        raise Left("a tensor without axes")
    if not dim or len(dim) == n_axes:  # before anything that takes time
        raise Left("sums of everything, or over axes apart")
    if not all(-n_axes <= one < n_axes for one in dim):
        raise ValueError
    axes = sorted(one % n_axes for one in dim)
    if axes != list(range(axes[0], axes[-1] + 1)):
        raise Left("sums of everything, or over axes apart")
    array = _array(x)
    before, after = array.shape[: axes[0]], array.shape[axes[-1] + 1 :]
    array = array.reshape(math.prod(before), -1, math.prod(after))
    n = array.shape[1]
    if not after:
        array = array.transpose(2, 1, 0)
    ones = _ones(n, array.dtype)
    found = _attnpy.products(ones, array, options.num_threads)
    kept = (1,) * len(axes) if keepdim else ()
    return _tensor(found.reshape(*before, *kept, *after)), n


@_kernel("sum.dim_IntList", "linear")
def _sum(
    options: Options,
    x: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return _sums(options, x if dtype is None else x.to(dtype), dim, keepdim)[0]


@_kernel("mean.dim", "linear")
def _mean(
    options: Options,
    x: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    sums, n = _sums(options, x if dtype is None else x.to(dtype), dim, keepdim)
    return sums.div_(n)


@_kernel("linalg_vector_norm", "linear")
def _vector_norm(
    options: Options,
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if ord != 2 or x.dtype not in (torch.float32, torch.float64):
        raise Left("norms but those of squares in float32 and float64")
    x = x if dtype is None else x.to(dtype)
    return _sums(options, x * x, dim, keepdim)[0].sqrt_()


# ---- Convolutions --------------------------------------------------------------------


def _windows(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> Tensor:
    """Return a view (B, *places, C, *size) of sequences, or of images' patches.

    The gradient of one of the inputs is the sum of what such a view of it gets.
    """
    size = weight.shape[2:]
    stride, padding, dilation = (
        tuple(one) * (len(size) // len(one)) for one in (stride, padding, dilation)
    )
    if transposed or groups != 1 or x.dim() != len(size) + 2:
        raise Left("convolutions that are transposed or in groups")
    if len(size) > 1 and (
        tuple(size) != stride or any(padding) or set(dilation) != {1}
    ):
        raise Left("convolutions of windows that overlap")
    if x.shape[1] != weight.shape[1] or min(padding) < 0 or min(stride + dilation) < 1:
        raise ValueError
    if 0 in (*x.shape[1:], *weight.shape):
        raise Left("tensors without elements")
    if any(padding):
        x = torch.nn.functional.pad(x, [n for one in padding[::-1] for n in (one, one)])
    for axis, (n, step, space) in enumerate(zip(size, stride, dilation, strict=True)):
        if x.shape[2 + axis] <= (n - 1) * space:
            raise ValueError
        x = x.unfold(2 + axis, (n - 1) * space + 1, step)[..., ::space]
    return x.movedim(1, len(size) + 1)


@_kernel("convolution", "linear")
def _convolution(
    options: Options,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Multiply windows, each a row, by the weight."""
    windows = _windows(x, weight, stride, padding, dilation, transposed, groups)
    shift = None if bias is None else _array(bias, x.dtype)
    rows = windows.reshape(-1, weight[0].numel())
    product = _tensor(_product(options, rows, weight.flatten(1).t(), shift))
    product = product.view(*windows.shape[: weight.dim() - 1], len(weight))
    return product.movedim(-1, 1).contiguous()


@_kernel("convolution_backward", "linear")
def _convolution_backward(
    options: Options,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Multiply windows by the gradients of products; those of windows are added up."""
    places = (stride, padding, dilation, transposed, groups)
    windows = _windows(x, weight, *places)
    _array(grad, x.dtype)
    grads = grad.movedim(1, -1).reshape(-1, len(weight))  # (N, M)
    of_x = of_weight = of_bias = None
    if wanted[0]:
        matrix, dtype = weight.flatten(1), _computed_in(x)
        of_windows = _product(options, grads.to(dtype), matrix.to(dtype))
        of_x = _added_up(_tensor(of_windows).view(windows.shape), x, weight, places)
    if wanted[1]:
        rows = windows.reshape(len(grads), -1)
        of_weight = _tensor(_product(options, grads.t(), rows)).view(weight.shape)
    if wanted[2]:
        of_bias = _sums(options, grads, [0], False)[0]
    return of_x, of_weight, of_bias


def _added_up(
    of_windows: Tensor, x: Tensor, weight: Tensor, places: tuple[Any, ...]
) -> Tensor:
    """Return the gradient of x, (B, C, ...): of each number of a window in turn."""
    stride, padding, dilation, transposed, groups = places
    padding = tuple(padding) * (len(weight.shape[2:]) // len(padding))
    around = list(zip(x.shape[2:], padding, strict=True))
    total = of_windows.new_zeros(*x.shape[:2], *(n + 2 * pad for n, pad in around))
    windows = _windows(total, weight, stride, [0], dilation, transposed, groups)
    for at in itertools.product(*map(range, weight.shape[2:])):
        windows[(..., *at)].add_(of_windows[(..., *at)])
    inner = total[(..., *(slice(pad, pad + n) for n, pad in around))]
    return inner.to(x.dtype).contiguous()


# ---- Norms ---------------------------------------------------------------------------


def _norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> tuple[Any, Any, Any]:
    """Return rows, (N, n), weight and bias, each (n,), of a norm over the last axes."""
    rows, shape, n = _array(x), tuple(shape), math.prod(shape)
    if not shape or rows.shape[rows.ndim - len(shape) :] != shape:
        raise ValueError
    parameters = [None if one is None else _array(one) for one in (weight, bias)]
    if any(one is not None and one.shape != shape for one in parameters):
        raise ValueError
    scale, shift = (None if one is None else one.reshape(n) for one in parameters)
    if scale is None:
        scale = np.ones(n, rows.dtype if shift is None else shift.dtype)
    return rows.reshape(-1, n), scale, shift


def _computed_in(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


@_kernel("native_layer_norm", "norms")
def _layer_norm(
    options: Options,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    for one in (weight, bias):
        if one is None or one.dtype is x.dtype:
            continue
        # For 16-bit numbers alone the parameters may have another dtype.
        if one.dtype is not torch.float32 or x.dtype is torch.float64:
            raise ValueError
    rows, scale, shift = _norm(x, shape, weight, bias)
    computed_in = np.float64 if x.dtype is torch.float64 else np.float32
    moments = np.empty((2, len(rows)), computed_in)
    norm = Norm(scale, shift, eps, centre=True)
    output = _tensor(
        _attnpy.normalize(rows, None, norm, options.num_threads, None, moments)
    )
    kind = x.dtype if weight is None else weight.dtype
    kept = (2, *x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    mean, deviation = map(_tensor, moments.reshape(kept))
    if mean.dtype is not kind:
        mean, deviation = mean.to(kind), deviation.to(kind)
    if output.dtype is not x.dtype:
        output = output.to(x.dtype)
    return output.view(x.shape), mean, deviation


@_kernel("native_layer_norm_backward", "norms")
def _layer_norm_backward(
    options: Options,
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    deviation: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    rows, scale, _ = _norm(x, shape, weight, bias)
    shift: Any = scale if wanted[2] else None  # a bias, whatever its numbers
    grads = _array(grad, x.dtype)
    if grads.shape != tuple(x.shape):
        raise ValueError
    moments = torch.stack((mean.reshape(-1), deviation.reshape(-1)))
    moments = moments.to(_computed_in(x))  # in a name, as the array does not keep it
    found = _attnpy.normalize_vjp(
        grads.reshape(rows.shape), rows, Norm(scale, shift, 0.0, centre=True),
        options.num_threads, None, _array(moments),
    )  # fmt: skip
    of_x = _tensor(found[0]).view(x.shape).to(x.dtype)
    of_parameters = (
        None
        if one is None or not is_wanted
        else _tensor(one)
        .view(tuple(shape))
        .to(x.dtype if weight is None else weight.dtype)
        for one, is_wanted in zip(found[1:], wanted[1:], strict=True)
    )
    return of_x if wanted[0] else None, *of_parameters


def rms_norm(
    options: Options,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
) -> Tensor:
    """Return torch.rms_norm, or raise Left, TypeError or ValueError."""
    rows, norm = _rms(x, shape, weight, eps)
    output = _tensor(_attnpy.normalize(rows, None, norm, options.num_threads))
    return output.view(x.shape).to(x.dtype)


def rms_norm_gradients(
    options: Options,
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weight, or of ones in its place."""
    rows, norm = _rms(x, shape, weight, eps)
    grads = _array(grad, x.dtype).reshape(rows.shape)
    found = _attnpy.normalize_vjp(grads, rows, norm, options.num_threads)
    of_x, of_weight = map(_tensor, found[:2])
    kind = x.dtype if weight is None else weight.dtype
    return of_x.view(x.shape).to(x.dtype), of_weight.view(tuple(shape)).to(kind)


def _rms(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Any, Norm]:
    rows, scale, _ = _norm(x, shape, weight, None)
    if eps is None:
        eps = torch.finfo(_computed_in(x)).eps
    return rows, Norm(scale, None, eps, centre=False)


# ---- Activations ---------------------------------------------------------------------


def _activated(options: Options, x: Tensor, activation: str) -> Tensor:
    return _tensor(_attnpy.activate(_array(x), activation, None, options.num_threads))


def _activated_vjp(
    options: Options, grad: Tensor, x: Tensor, activation: str
) -> Tensor:
    arrays = _array(grad), _array(x, grad.dtype)
    return _tensor(_attnpy.activate_vjp(*arrays, activation, None, options.num_threads))


def _gelu_name(approximate: str) -> str:
    if approximate not in ("none", "tanh"):
        raise ValueError
    return "gelu" if approximate == "none" else "gelu_tanh"


@_kernel("gelu", "activations")
def _gelu(options: Options, x: Tensor, *, approximate: str = "none") -> Tensor:
    return _activated(options, x, _gelu_name(approximate))


@_kernel("gelu_backward", "activations")
def _gelu_backward(
    options: Options, grad: Tensor, x: Tensor, *, approximate: str = "none"
) -> Tensor:
    return _activated_vjp(options, grad, x, _gelu_name(approximate))


@_kernel("silu", "activations")
def _silu(options: Options, x: Tensor) -> Tensor:
    return _activated(options, x, "silu")


@_kernel("silu_backward", "activations")
def _silu_backward(options: Options, grad: Tensor, x: Tensor) -> Tensor:
    return _activated_vjp(options, grad, x, "silu")


@_kernel("tanh", "activations")
def _tanh(options: Options, x: Tensor) -> Tensor:
    return _activated(options, x, "tanh")
