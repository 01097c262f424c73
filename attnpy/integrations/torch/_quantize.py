"""Linear modules whose matrices are integers of 8 or 4 bits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from attnpy._linear import linear
from attnpy._quantize import MOST, beyond, check_quantizable, judged, quantized
from attnpy._quantized import arrays_of, options_of, replaced
from attnpy._quantized_parts import MOST_ROWS
from attnpy.integrations.torch._attention import is_traced
from attnpy.integrations.torch._blocks import innermost
from attnpy.integrations.torch._tensors import check, is_plain, to_array, to_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnpy._quantized import QuantizedWeight
    from attnpy._typing import Array

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
    `QuantizedLinear`. Its matrix takes a quarter or a seventh of the memory, is read so
    much faster, and is multiplied by attnpy, in blocks of `accelerate` and outside. The
    bits of a row depend on that row and the matrix only.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU, in float32, bfloat16 or float16.
    bits, group, activations
        As in `attnpy.quantize`.
    filter_fn : callable, optional
        ``filter_fn(module, name)`` tells whether a linear module becomes integers. By
        default all do.

    Raises
    ------
    TypeError
        If `model` is no module, or a matrix has another dtype.
    ValueError
        If no module is left to quantise; if a matrix is on another device, or has
        numbers that are not finite. Nothing is changed then.

    See Also
    --------
    attnpy.quantize : explains the arithmetic.
    accelerate : for the same bits in the rest of a model.

    Notes
    -----
    Everything else stays as it is: embeddings, convolutions, norms and biases,
    subclasses of `torch.nn.Linear`, and `torch.nn.MultiheadAttention`, which has
    matrices of its own.

    A module stays the same object, with its hooks. Its parameter ``weight`` is gone: an
    optimizer that was made before would still change the old one. Biases can be
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
        if _is_linear(module) and (filter_fn is None or filter_fn(module, name))
    }
    if not chosen:
        raise ValueError(
            "model: expected a torch.nn.Linear to quantise, got none in a "
            f"{type(model).__name__}"
        )
    for name, module in chosen.items():
        _check_module(module, name)
    tied: dict[Any, list[nn.Module]] = {}  # modules by their weight, and how it lies
    for module in chosen.values():
        tied.setdefault((module.weight, type(module)), []).append(module)
    del chosen
    while tied:
        modules = tied.popitem()[1]  # so that no weight is kept longer than needed
        integers = quantized(_matrix_of(modules[0]), "weight", bits, group, rounds)
        for module in modules:
            QuantizedLinear._become(module, integers)


def _conv1d() -> type | None:
    """Return Transformers' class of linear modules (K, M), if it was imported."""
    loaded: Any = sys.modules.get("transformers.pytorch_utils")
    return getattr(loaded, "Conv1D", None)


def _is_linear(module: nn.Module) -> bool:
    # Not subclasses: they compute what their own code says.
    return type(module) is nn.Linear or type(module) is _conv1d()


def _matrix_of(module: nn.Module) -> Array:
    """Return the matrix (K, M) of a linear module, a view of its memory."""
    weight: Any = module.weight
    matrix: Array = to_array(weight.detach())
    return matrix.T if type(module) is nn.Linear else matrix


def _check_module(module: nn.Module, name: str) -> None:
    """Refuse a module that cannot be quantised."""
    named = f"{name}.weight" if name else "weight"
    weight: Any = module.weight
    check(weight, named)
    if not is_plain(weight):
        raise TypeError(f"{named}: expected a tensor, got a {type(weight).__name__}")
    if weight.dtype not in DTYPES:
        raise TypeError(
            f"{named}: expected float32, float16 or bfloat16 to quantise, got "
            f"{weight.dtype}"
        )
    check_quantizable(to_array(weight.detach()), named)
    if weight.numel() > 0:
        low, high = weight.detach().aminmax()
        if not bool((low >= -MOST) & (high <= MOST)):
            raise beyond(named)


class Weight:
    """What a `QuantizedLinear` has in place of the parameter ``weight``.

    Functions of PyTorch take it as the tensor that it stands for, without a gradient,
    unless they would write to it.

    Attributes
    ----------
    quantized : attnpy.QuantizedWeight, shape (K, M)
        The codes and scales.
    shape : torch.Size
        ``(M, K)``, as `torch.nn.Linear` has it; ``(K, M)`` of a ``Conv1D``.
    dtype : torch.dtype
        That of the parameters of its model.
    device : torch.device
        The CPU.
    """

    requires_grad = False
    device = torch.device("cpu")

    def __init__(
        self, quantized: QuantizedWeight, dtype: torch.dtype, is_transposed: bool
    ) -> None:
        self.quantized, self.dtype = quantized, dtype
        self.is_transposed = is_transposed

    @property
    def shape(self) -> torch.Size:
        n_rows, n_columns = self.quantized.shape
        sizes = (n_columns, n_rows) if self.is_transposed else (n_rows, n_columns)
        return torch.Size(sizes)

    def dequantize(self) -> Tensor:
        """Return the tensor that it stands for, a copy."""
        matrix = self.quantized.dequantize()
        return to_tensor(matrix.T if self.is_transposed else matrix).to(self.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.quantized!r})"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"weight: quantised weights have no {name!r} and cannot be changed; "
            "dequantize() returns a tensor"
        )

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _writes(func) or "out" in kwargs:
            raise TypeError(
                f"weight: expected no change of quantised weights, got {func.__name__}"
            )
        if func is functional.linear:
            named = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            if isinstance(named["weight"], Weight):
                return _linear(**named | {"weight": named["weight"].quantized})
        args, kwargs = tree_map_only(Weight, Weight.dequantize, (args, kwargs))
        return func(*args, **kwargs)


def _writes(func: Any) -> bool:
    """Tell whether a function writes to an argument, by the name, as PyTorch has it."""
    name: str = func.__name__
    return name.endswith("_") and not name.endswith("__")


class QuantizedLinear(nn.Linear):
    """A linear module whose matrix is integers of 8 or 4 bits, made by `quantize`.

    Attributes
    ----------
    in_features, out_features : int
        K and M.
    weight : object
        With the attributes ``quantized``, an `attnpy.QuantizedWeight` (K, M),
        ``shape``, ``dtype`` and ``device``, and the method ``dequantize()``.
    bias : torch.nn.Parameter, or None
        As before.

    Notes
    -----
    ``state_dict`` has ``weight.codes`` and ``weight.scale``, by rows and columns of the
    matrix (K, M). ``load_state_dict`` takes these, or ``weight`` of a model that is not
    quantised, which it quantises in the same way.

    The result has the dtype of the input, or that of `torch.autocast`.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import quantize
    >>> layer = torch.nn.Linear(64, 32)
    >>> quantize(layer, bits=4)
    >>> layer.weight.quantized
    QuantizedWeight(shape=(64, 32), dtype=float32, bits=4, group=32)
    >>> sorted(layer.state_dict())
    ['bias', 'weight.codes', 'weight.scale']
    """

    weight: Weight

    def __init__(self) -> None:
        raise TypeError(
            "QuantizedLinear: expected attnpy.integrations.torch.quantize(model)"
        )

    @property
    def bits(self) -> int:
        """Of a number of the matrix."""
        return self.weight.quantized.bits

    @staticmethod
    def _become(module: nn.Module, quantized: QuantizedWeight) -> None:
        """Make a module one of these. It stays the same object, with its hooks."""
        is_transposed = type(module) is nn.Linear
        dtype: Any = module.weight.dtype
        del module.weight
        module.__class__ = QuantizedLinear
        assert isinstance(module, QuantizedLinear)
        module.in_features, module.out_features = quantized.shape
        module.weight = Weight(quantized, dtype, is_transposed)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and not isinstance(value, Weight):
            raise TypeError(
                "weight: expected no change of quantised weights but by "
                f"load_state_dict, got a {type(value).__name__}"
            )
        super().__setattr__(name, value)

    def forward(self, input: Tensor) -> Tensor:
        """Return the product with the rows of an input (..., K), of shape (..., M)."""
        return _linear(input, self.weight.quantized, self.bias)

    def extra_repr(self) -> str:
        weight = self.weight.quantized
        bits, group, rounds = options_of(weight)
        named = '"column"' if group == MOST_ROWS[8] else group
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, bits={bits}, group={named}"
            + (', activations="int8"' if rounds else "")
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        changed = fn(torch.empty(0, dtype=self.weight.dtype, device="cpu"))
        if not changed.is_cpu:
            raise ValueError(
                "QuantizedLinear: expected to stay on the CPU, as attnpy computes it, "
                f"got device {str(changed.device)!r}"
            )
        if changed.dtype not in DTYPES:
            raise TypeError(
                "QuantizedLinear: expected float32, float16 or bfloat16, got "
                f"{changed.dtype}"
            )
        super()._apply(fn, recurse)
        self.weight.dtype = changed.dtype
        return self

    def _save_to_state_dict(
        self, destination: Any, prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, array in arrays_of(self.weight.quantized).items():
            writable = np.require(array, requirements="W")
            destination[f"{prefix}weight.{name}"] = to_tensor(writable)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict,
            missing_keys, unexpected_keys, error_msgs,
        )  # fmt: skip
        name = f"{prefix}weight"
        keys = {part: f"{name}.{part}" for part in ("codes", "scale")}
        given = [key for key in (name, *keys.values()) if key in state_dict]
        unexpected_keys[:] = [key for key in unexpected_keys if key not in given]
        if given == [name]:
            taken: Any = self._quantized_anew
        elif given == [*keys.values()]:
            taken = self._replaced
        elif given:
            error_msgs.append(
                f"{name}: expected either it or {' and '.join(keys.values())}, got "
                + " and ".join(given)
            )
            return
        else:
            missing_keys.extend(keys.values())
            return
        try:
            self.weight.quantized = taken(*(state_dict[key] for key in given))
        except (TypeError, ValueError) as error:
            error_msgs.append(f"{name}: {error}")

    def _quantized_anew(self, weight: Tensor) -> QuantizedWeight:
        check(weight, "weight")
        if weight.shape != self.weight.shape:
            raise ValueError(
                f"expected shape {tuple(self.weight.shape)}, got {tuple(weight.shape)}"
            )
        matrix = to_array(weight.detach())
        options: Any = options_of(self.weight.quantized)
        return quantized(
            matrix.T if self.weight.is_transposed else matrix, "weight", *options
        )

    def _replaced(self, codes: Tensor, scale: Tensor) -> QuantizedWeight:
        own = arrays_of(self.weight.quantized)
        given = {"codes": codes, "scale": scale}
        for name, tensor in given.items():
            check(tensor, name)
            if tensor.shape != own[name].shape:
                raise ValueError(
                    f"{name}: expected shape {own[name].shape}, got "
                    f"{tuple(tensor.shape)}"
                )
        arrays = {name: to_array(x.detach()) for name, x in given.items()}
        return replaced(self.weight.quantized, arrays)


# ---- Products ------------------------------------------------------------------------


@_disable_dynamo
def _linear(input: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> Any:
    """Return input (..., K) @ weight (K, M) + bias (M,) in the input's dtype."""
    if not is_plain(input) or is_traced():
        check(input, "input")
        raise TypeError(
            "input: expected a call with a torch.Tensor, got one with a "
            f"{type(input).__name__} that torch.func, torch.export, torch.jit, a mode "
            "or a subclass records"
        )
    if input.dtype not in DTYPES:
        raise TypeError(
            f"input: expected float32, float16 or bfloat16, got {input.dtype}"
        )
    if input.dim() == 0 or input.shape[-1] != weight.shape[0]:
        raise ValueError(
            f"input: expected shape (..., {weight.shape[0]}), got {tuple(input.shape)}"
        )
    if torch.is_autocast_enabled("cpu"):
        input = input.to(torch.get_autocast_dtype("cpu"))
    block = innermost()
    num_threads = None
    if block is not None:
        num_threads = block.options.num_threads
        if block.report is not None:
            block.report.add("quantized linear")
    if torch.is_grad_enabled() and (
        input.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _Product.apply(input, bias, weight, num_threads)
    return _product(input, bias, weight, num_threads)


def _product(
    input: Tensor,
    bias: Tensor | None,
    weight: QuantizedWeight,
    num_threads: int | None,
) -> Tensor:
    rows, added = to_array(input), None if bias is None else to_array(bias)
    product = linear(rows, weight, added, num_threads=num_threads)
    return to_tensor(product).to(input.dtype)


class _Product(torch.autograd.Function):
    """The product, with gradients with respect to its input and the bias."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        bias: Tensor | None,
        weight: QuantizedWeight,
        num_threads: int | None,
    ) -> Tensor:
        ctx.weight, ctx.num_threads, ctx.dtype = weight, num_threads, input.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return _product(input, bias, weight, num_threads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_input, of_bias, *_ = ctx.needs_input_grad
        rows = to_array(grad)
        grad_input = grad_bias = None
        if of_input:
            matrix = ctx.weight.dequantize().T
            found = linear(rows, matrix, num_threads=ctx.num_threads)
            grad_input = to_tensor(found).to(ctx.dtype)
        if of_bias:
            rows = rows.reshape(-1, rows.shape[-1])
            ones = np.ones((1, len(rows)), rows.dtype)
            found = linear(ones, rows, num_threads=ctx.num_threads)[0]
            grad_bias = to_tensor(found).to(ctx.bias_dtype)
        return grad_input, grad_bias, None, None
