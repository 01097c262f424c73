"""Modules whose matrices are integers of 8 or 4 bits, and products with these."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from attnpy import _attnpy
from attnpy._gradients import NAMES
from attnpy._linear import linear
from attnpy._options import Heads, Options, Projections
from attnpy._quantize import quantized
from attnpy._quantized import arrays_of, options_of, replaced
from attnpy._quantized_parts import MOST_ROWS
from attnpy.integrations.torch._attention import is_traced
from attnpy.integrations.torch._blocks import innermost
from attnpy.integrations.torch._sdpa import attend_as_torch
from attnpy.integrations.torch._tensors import (
    check,
    is_plain,
    needs_gradient,
    to_array,
    to_tensor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from attnpy._quantized import QuantizedWeight
    from attnpy._typing import Array

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _between_graphs(function: Callable[..., Any]) -> Any:
    """Return a function that `torch.compile` calls outside of its graphs.

    So does `torch.compiler.disable`, at the price of microseconds for each call.
    """
    apart = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():
            return apart(*arguments, **keywords)
        return function(*arguments, **keywords)

    return call


class Weight:
    """What a quantised module has in place of a parameter with a matrix.

    Functions of PyTorch take it as the tensor that it stands for, without a gradient,
    unless they would write to it.

    Attributes
    ----------
    parts : tuple of attnpy.QuantizedWeight, shape (K, M) each
        One, or those of queries, keys and values.
    shape : torch.Size
        ``(M, K)``, as `torch.nn.Linear` has it, with all columns of all parts;
        ``(K, M)`` of a ``Conv1D``.
    dtype : torch.dtype
        That of the parameters of its model.
    device : torch.device
        The CPU.
    """

    requires_grad = False
    device = torch.device("cpu")
    parts: tuple[QuantizedWeight, ...]
    dtype: torch.dtype
    is_transposed: bool

    def __init__(
        self,
        parts: tuple[QuantizedWeight, ...],
        dtype: torch.dtype,
        is_transposed: bool,
    ) -> None:
        self.parts, self.dtype = parts, dtype
        self.is_transposed = is_transposed

    @property
    def quantized(self) -> QuantizedWeight | tuple[QuantizedWeight, ...]:
        """The codes and scales, of queries, keys and values a tuple."""
        return self.parts[0] if len(self.parts) == 1 else self.parts

    @property
    def shape(self) -> torch.Size:
        n_rows = self.parts[0].shape[0]
        n_columns = sum(part.shape[1] for part in self.parts)
        sizes = (n_columns, n_rows) if self.is_transposed else (n_rows, n_columns)
        return torch.Size(sizes)

    def dequantize(self) -> Tensor:
        """Return the tensor that it stands for, a copy."""
        matrix = _joined([part.dequantize() for part in self.parts])
        return to_tensor(matrix.T if self.is_transposed else matrix).to(self.dtype)

    def arrays(self) -> dict[str, Array]:
        """Return codes and scales by rows and columns, those of all parts together."""
        arrays = [arrays_of(part) for part in self.parts]
        return {name: _joined([x[name] for x in arrays]) for name in arrays[0]}

    def quantized_anew(self, weight: Tensor) -> tuple[QuantizedWeight, ...]:
        """Return the parts of another matrix, quantised in the same way."""
        check(weight, "weight")
        if weight.shape != self.shape:
            raise ValueError(
                f"expected shape {tuple(self.shape)}, got {tuple(weight.shape)}"
            )
        options: Any = options_of(self.parts[0])
        return parts_of(weight, self.is_transposed, len(self.parts), *options)

    def replaced(self, codes: Tensor, scale: Tensor) -> tuple[QuantizedWeight, ...]:
        """Return the parts that consist of such codes and scales."""
        own, given = self.arrays(), {"codes": codes, "scale": scale}
        for name, tensor in given.items():
            check(tensor, name)
            if tensor.shape != own[name].shape:
                raise ValueError(
                    f"{name}: expected shape {own[name].shape}, got "
                    f"{tuple(tensor.shape)}"
                )
        n = len(self.parts)
        split = {k: np.split(to_array(x.detach()), n, 1) for k, x in given.items()}
        return tuple(
            replaced(part, {name: pieces[i] for name, pieces in split.items()})
            for i, part in enumerate(self.parts)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.quantized!r})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(
                "copy: expected True or None for quantised weights, got False"
            )
        matrix: Array = to_array(self.dequantize())
        return matrix if dtype is None else matrix.astype(dtype)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"weight: quantised weights have no {name!r} and cannot be changed; "
            "dequantize() returns a tensor"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in Weight.__annotations__:
            raise AttributeError(
                f"weight: quantised weights cannot be changed, and take no {name!r}"
            )
        super().__setattr__(name, value)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _writes(func) or kwargs.get("out") is not None:
            raise TypeError(
                f"weight: expected no change of quantised weights, got {func.__name__}"
            )
        if func is functional.linear:
            named = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            weight = named["weight"]
            if isinstance(weight, Weight) and len(weight.parts) == 1:
                return _linear(**named | {"weight": weight.parts[0]})
        args, kwargs = tree_map_only(Weight, Weight.dequantize, (args, kwargs))
        return func(*args, **kwargs)


def parts_of(
    weight: Tensor, is_transposed: bool, n_parts: int, *options: Any
) -> tuple[QuantizedWeight, ...]:
    """Return the integers of a matrix, a weight for each of so many parts of it."""
    matrix = to_array(weight.detach())
    pieces = np.split(matrix.T if is_transposed else matrix, n_parts, 1)
    return tuple(quantized(piece, "weight", *options) for piece in pieces)


def _joined(pieces: list[Array]) -> Array:
    """Return arrays (..., n) as one, without a copy if there is one."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, 1)


def _writes(func: Any) -> bool:
    """Tell whether a function writes to an argument, by the name, as PyTorch has it."""
    name: str = func.__name__
    return name.endswith("_") and not name.endswith("__")


# ---- Modules -------------------------------------------------------------------------


class _Quantized(nn.Module):
    """A module that has a `Weight` in place of some parameters."""

    def __init__(self) -> None:
        raise TypeError(
            f"{type(self).__name__}: expected attnpy.integrations.torch.quantize(model)"
        )

    def _weights(self) -> dict[str, Weight]:
        """Return the weights by the names of their attributes."""
        return {k: x for k, x in vars(self).items() if isinstance(x, Weight)}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._weights() and not isinstance(value, Weight):
            raise TypeError(
                f"{name}: expected no change of quantised weights but by "
                f"load_state_dict, got a {type(value).__name__}"
            )
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        first = next(iter(self._weights().values())).parts[0]
        bits, group, rounds = options_of(first)
        named = '"column"' if group == MOST_ROWS[8] else group
        return f"bits={bits}, group={named}" + (
            ', activations="int8"' if rounds else ""
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        dtypes = {}
        for name, weight in self._weights().items():
            changed = fn(torch.empty(0, dtype=weight.dtype, device="cpu"))
            if not changed.is_cpu:
                raise ValueError(
                    f"{type(self).__name__}: expected to stay on the CPU, as attnpy "
                    f"computes it, got device {str(changed.device)!r}"
                )
            if changed.dtype not in DTYPES:
                raise TypeError(
                    f"{type(self).__name__}: expected float32, float16 or bfloat16, "
                    f"got {changed.dtype}"
                )
            dtypes[name] = changed.dtype
        super()._apply(fn, recurse)
        for name, dtype in dtypes.items():
            getattr(self, name).dtype = dtype
        return self

    def _save_to_state_dict(
        self, destination: Any, prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, weight in self._weights().items():
            for part, array in weight.arrays().items():
                writable = np.require(array, requirements="W")
                destination[f"{prefix}{name}.{part}"] = to_tensor(writable)

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
        for own, weight in self._weights().items():
            name = f"{prefix}{own}"
            keys = {part: f"{name}.{part}" for part in ("codes", "scale")}
            given = [key for key in (name, *keys.values()) if key in state_dict]
            unexpected_keys[:] = [key for key in unexpected_keys if key not in given]
            if given == [name]:
                taken: Any = weight.quantized_anew
            elif given == [*keys.values()]:
                taken = weight.replaced
            elif given:
                error_msgs.append(
                    f"{name}: expected either it or {' and '.join(keys.values())}, "
                    "got " + " and ".join(given)
                )
                continue
            else:
                missing_keys.extend(keys.values())
                continue
            try:
                weight.parts = taken(*(state_dict[key] for key in given))
            except (TypeError, ValueError) as error:
                error_msgs.append(f"{name}: {error}")


class QuantizedLinear(_Quantized, nn.Linear):
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

    @property
    def bits(self) -> int:
        """Of a number of the matrix."""
        return self.weight.parts[0].bits

    def forward(self, input: Tensor) -> Tensor:
        """Return the product with the rows of an input (..., K), of shape (..., M)."""
        return _linear(input, self.weight.parts[0], self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {super().extra_repr()}"
        )


class QuantizedMultiheadAttention(_Quantized, nn.MultiheadAttention):
    """Attention with its projections by integers of 8 or 4 bits, made by `quantize`.

    It has the arguments, results and attributes of `torch.nn.MultiheadAttention`.

    Attributes
    ----------
    in_proj_weight : object, or None
        As ``weight`` of `QuantizedLinear`; ``quantized`` is a tuple of those of
        queries, keys and values.
    q_proj_weight, k_proj_weight, v_proj_weight : object, or None
        In its place where keys or values have other sizes, as
        `torch.nn.MultiheadAttention` has them.
    out_proj : QuantizedLinear
        The projection of the output.

    Notes
    -----
    attnpy computes the attention too, in blocks of `accelerate` and outside. So all
    bits of a query depend on it, its keys and values only. A query that may see no key
    gets 0, with ``need_weights`` too. ``is_causal`` stays a hint: the mask decides.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import quantize
    >>> layer = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    >>> quantize(layer)
    >>> layer
    QuantizedMultiheadAttention(
      bits=8, group=128
      (out_proj): QuantizedLinear(in_features=64, out_features=64, bias=True, bits=8, \
group=128)
    )
    >>> x = torch.ones(2, 5, 64)
    >>> output, weights = layer(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 64]), torch.Size([2, 5, 5]))
    """

    @_between_graphs
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the weights or None, in the shapes of PyTorch's."""
        tensors = (query, key, value)
        sizes = (self.embed_dim, self.kdim, self.vdim)
        for tensor, name, size in zip(tensors, NAMES, sizes, strict=False):
            _check_rows(tensor, name, size)
            if tensor.dim() not in (2, 3) or tensor.dim() != query.dim():
                raise ValueError(
                    f"{name}: expected 3 axes, or 2 in query, key and value, got shape "
                    f"{tuple(tensor.shape)}"
                )
        if is_causal and attn_mask is None:
            raise ValueError(
                "attn_mask: expected a mask with is_causal=True, which says that it is "
                "causal, got None"
            )
        is_batch = query.dim() == 3
        is_turned = is_batch and not self.batch_first
        batches = tensors  # (N, L, E)
        if is_turned or not is_batch:
            batches = tuple(
                x.transpose(0, 1) if is_turned else x[None] for x in tensors
            )
        (n, n_queries, _), (_, n_keys, _), _ = shapes = [x.shape for x in batches]
        if any(x[:2] != (n, n_keys) for x in shapes[1:]):
            said = " and ".join(str(tuple(x.shape)) for x in tensors)
            raise ValueError(
                "query, key, value: expected one batch, and as many keys as values, "
                f"got shapes {said}"
            )
        n_more = (self.bias_k is not None) + self.add_zero_attn
        seen = added = None
        if attn_mask is not None or key_padding_mask is not None:
            shape = (n, self.num_heads, n_queries, n_keys)
            masks = (attn_mask, key_padding_mask)
            seen, added = self._masks(masks, shape, is_batch, n_more)
        results = self._at_once(batches, seen, added, need_weights)
        if results is None:
            results = self._in_steps(batches, seen, added, need_weights)
        output, weights = results
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not is_batch:
            return output[0], None if weights is None else weights[0]
        return output.transpose(0, 1) if is_turned else output, weights

    def _at_once(
        self,
        batches: Sequence[Tensor],
        seen: Tensor | None,
        added: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None] | None:
        """Return output (N, Lq, E) and weights (N, H, Lq, Lk) of one run of all steps.

        None where a layer of attnpy has other steps, or autograd records them.
        """
        last: Any = self.out_proj
        biases = self.in_proj_bias, last.bias
        if (
            self.bias_k is not None
            or self.add_zero_attn
            or (self.training and self.dropout != 0)
            or type(last.weight) is not Weight
            or torch.is_autocast_enabled("cpu")
            or (
                torch.is_grad_enabled()
                and any(map(needs_gradient, (*batches, *biases, added)))
            )
            or not all(x is None or is_plain(x) for x in (seen, added))
            or (
                added is not None
                and added.dtype not in (torch.float32, batches[0].dtype)
            )
        ):
            return None
        query, key, value = arrays = [to_array(x) for x in batches]
        W_q, W_k, W_v, W_o = matrices = (*self._matrices(), *last.weight.parts)
        if len({x.dtype for x in (*arrays, *matrices)}) > 1:
            return None
        b_in, b_o = [None if x is None else to_array(x) for x in biases]
        b_q, b_k, b_v = (None,) * 3 if b_in is None else b_in.reshape(3, -1)
        num_threads = _counted(*["quantized linear"] * 4, "quantized attention")
        # The keys' tokens as a context, even if they are the queries': then attention
        # multiplies floats, as in steps.
        result: Any = _attnpy.layer(
            query,
            key,
            Heads(self.num_heads, self.num_heads),
            Projections(W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, value_context=value),
            None,
            None,
            None,
            Options(
                mask=None if seen is None else to_array(seen),
                bias=None if added is None else to_array(added),
                return_weights=need_weights,
                num_threads=num_threads,
            ),
        )
        if need_weights:
            output, weights = map(to_tensor, result)
            return output, weights
        return to_tensor(result), None

    def _in_steps(
        self,
        batches: Sequence[Tensor],
        seen: Tensor | None,
        added: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what `_at_once` does, of any call."""
        heads = self._heads(batches)
        options: dict[str, Any] = {"num_threads": _counted("quantized attention")}
        if seen is not None:
            options["mask"] = seen
        dropout = self.dropout if self.training else 0.0
        attended, weights, _ = attend_as_torch(
            heads, added, dropout, False, options, need_weights
        )  # (N, H, L, D)
        joined = attended.transpose(1, 2).flatten(2)  # (N, L, E)
        output = functional.linear(joined, self.out_proj.weight, self.out_proj.bias)
        return output, weights

    def _matrices(self) -> Any:
        """Return those of queries, keys and values."""
        joint: Any = self.in_proj_weight
        if joint is not None:
            return joint.parts
        apart: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        return [weight.parts[0] for weight in apart]

    def _heads(self, batches: Sequence[Tensor]) -> list[Tensor]:
        """Return queries, keys and values (N, H, L, D), with those that are added."""
        biases: Any = (None,) * 3
        if self.in_proj_bias is not None:
            biases = self.in_proj_bias.chunk(3)
        projected = [
            _linear(x, matrix, bias)
            for x, matrix, bias in zip(batches, self._matrices(), biases, strict=True)
        ]
        heads: list[Tensor] = []
        for x, more in zip(projected, (None, self.bias_k, self.bias_v), strict=True):
            rows = [x]
            if more is not None:
                rows.append(more.to(x.dtype).expand(len(x), 1, -1))
            if self.add_zero_attn and heads:  # not of queries, which are the first
                rows.append(x.new_zeros(len(x), 1, x.shape[2]))
            x = torch.cat(rows, 1) if len(rows) > 1 else x
            heads.append(x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2))
        return heads

    def _masks(
        self,
        masks: Iterable[Tensor | None],
        shape: tuple[int, ...],
        is_batch: bool,
        n_more: int,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what queries may see, and what is added to scores.

        Both broadcast to `shape`, (N, H, Lq, Lk), and so many more keys, which all may
        see.
        """
        n, n_heads, n_queries, n_keys = shape
        square, each = (n_queries, n_keys), (n * n_heads, n_queries, n_keys)
        padded = (n, n_keys) if is_batch else (n_keys,)
        seen = added = None
        kinds: Any = (
            ("attn_mask", {square: (1, 1, *square), each: shape}),
            ("key_padding_mask", {padded: (n, 1, 1, n_keys)}),
        )
        for (name, shapes), mask in zip(kinds, masks, strict=True):
            if mask is None:
                continue
            check(mask, name)
            if tuple(mask.shape) not in shapes:
                raise ValueError(
                    f"{name}: expected shape {' or '.join(map(str, shapes))}, got "
                    f"{tuple(mask.shape)}"
                )
            mask = mask.reshape(shapes[tuple(mask.shape)])
            mask = functional.pad(mask, (0, n_more)) if n_more else mask
            if mask.dtype is torch.bool:
                seen = ~mask if seen is None else seen & ~mask
            elif mask.dtype in DTYPES:
                added = mask if added is None else added + mask
            else:
                raise TypeError(
                    f"{name}: expected booleans, float32, float16 or bfloat16, got "
                    f"{mask.dtype}"
                )
        return seen, added


def become(module: nn.Module, attribute: str, weight: Weight) -> None:
    """Put a weight in place of a module's parameter, as another class of module.

    It stays the same object, with its hooks.
    """
    delattr(module, attribute)
    if isinstance(module, nn.MultiheadAttention):
        module.__class__ = QuantizedMultiheadAttention
    else:
        module.__class__ = QuantizedLinear
        module.in_features, module.out_features = weight.parts[0].shape
    setattr(module, attribute, weight)


# ---- Products ------------------------------------------------------------------------


def _check_rows(tensor: Tensor, name: str, n: int) -> None:
    """Refuse what is no rows (..., n) of a call that nothing records."""
    if not is_plain(tensor) or is_traced():
        check(tensor, name)
        raise TypeError(
            f"{name}: expected a call with a torch.Tensor, got one with a "
            f"{type(tensor).__name__} that torch.func, torch.export, torch.jit, a mode "
            "or a subclass records"
        )
    if tensor.dtype not in DTYPES:
        raise TypeError(
            f"{name}: expected float32, float16 or bfloat16, got {tensor.dtype}"
        )
    if tensor.dim() == 0 or tensor.shape[-1] != n:
        raise ValueError(
            f"{name}: expected shape (..., {n}), got {tuple(tensor.shape)}"
        )


def _counted(*operators: str) -> int | None:
    """Note calls in the report of this thread's block; return its `num_threads`."""
    block = innermost()
    if block is None:
        return None
    if block.report is not None:
        for operator in operators:
            block.report.add(operator)
    return block.options.num_threads


@_between_graphs
def _linear(input: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> Any:
    """Return input (..., K) @ weight (K, M) + bias (M,) in the input's dtype."""
    _check_rows(input, "input", weight.shape[0])
    if torch.is_autocast_enabled("cpu"):
        input = input.to(torch.get_autocast_dtype("cpu"))
    num_threads = _counted("quantized linear")
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
    product = to_tensor(
        _attnpy.linear(rows, weight, added, None, None, None, "promoted", num_threads)
    )
    return product if product.dtype is input.dtype else product.to(input.dtype)


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
