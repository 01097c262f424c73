"""Attention for JAX: `jax.nn.dot_product_attention`, computed by attnpy on a CPU.

XLA calls attnpy on its own memory, without a copy. Gradients come from
`attnpy.attention_vjp`.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from attnpy import _checks, _dtypes
from attnpy._attention import attention
from attnpy._gradients import attention_vjp
from attnpy.integrations import _xla

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError("attnpy.integrations.jax needs JAX: pip install jax") from error

if TYPE_CHECKING:
    from attnpy._typing import Array

    Arrays = dict[str, Any]  # of JAX, by their names in attnpy.attention
    Types = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]  # shapes and dtypes

__all__ = ["dot_product_attention"]


def __dir__() -> list[str]:
    return __all__


TARGET = "attnpy"  # the name by which XLA knows attnpy

# The gradients that are computed together. That of a bias has a separate call, which
# XLA removes if it is unused: custom_vjp does not know what is used.
WANTED = (("query", "key", "value"), ("bias",))

# The shapes of the arrays that are always there.
EXPECTED = {
    "query": "(B, T, N, H) or (T, N, H)",
    "key": "(B, S, K, H) or (S, K, H)",
    "value": "(B, S, K, H) or (S, K, H)",
}

# Arrays with axes (..., L, H, D).
HEADS_SECOND = ("query", "key", "value", "output", "grad_output")


@dataclass(frozen=True)
class Options:
    """The options of a call besides arrays."""

    scale: float | None
    causal: bool
    window: tuple[int, int] | None
    return_lse: bool


@overload
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = ...,
    mask: Any = ...,
    *,
    scale: float | None = ...,
    is_causal: bool = ...,
    query_seq_lengths: Any = ...,
    key_value_seq_lengths: Any = ...,
    local_window_size: int | tuple[int, int] | None = ...,
    implementation: Literal["attnpy"] | None = ...,
    return_residual: Literal[False] = ...,
) -> jax.Array: ...
@overload
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = ...,
    mask: Any = ...,
    *,
    scale: float | None = ...,
    is_causal: bool = ...,
    query_seq_lengths: Any = ...,
    key_value_seq_lengths: Any = ...,
    local_window_size: int | tuple[int, int] | None = ...,
    implementation: Literal["attnpy"] | None = ...,
    return_residual: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...
@overload
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = ...,
    mask: Any = ...,
    *,
    scale: float | None = ...,
    is_causal: bool = ...,
    query_seq_lengths: Any = ...,
    key_value_seq_lengths: Any = ...,
    local_window_size: int | tuple[int, int] | None = ...,
    implementation: Literal["attnpy"] | None = ...,
    return_residual: bool = ...,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Compute attention as `jax.nn.dot_product_attention` does, with attnpy.

    It may be called under `jit`, `vmap` and `grad`, with arrays on a CPU.

    Parameters
    ----------
    query : array, shape (B, T, N, H) or (T, N, H)
        `N` heads of `T` queries, in float32, bfloat16, float16 or, with
        ``jax_enable_x64``, float64.
    key : array, shape (B, S, K, H) or (S, K, H)
        `N` must be a multiple of `K`: grouped heads. In the query's dtype.
    value : array, shape (B, S, K, Hv) or (S, K, Hv)
        In the query's dtype. `Hv` may differ from `H`.
    bias : array of float, broadcast to (B, N, T, S), optional
        Added to the scaled scores. -inf masks.
    mask : array of bool, broadcast to (B, N, T, S), optional
        True where the query may attend to the key.
    scale : float, optional
        Factor of the dot products; by default ``1 / sqrt(H)``. A number, not a tracer.
    is_causal : bool, optional
        Query i sees the keys up to i.
    query_seq_lengths, key_value_seq_lengths : array of int, shape (B,), optional
        How many queries and keys exist; clipped to the range from 0 to the arrays'
        lengths. Queries that do not exist give 0.
    local_window_size : int or (left, right), optional
        Query i sees the keys from ``i - left`` to ``i + right``. An integer is both.
    implementation : {None, "attnpy"}, optional
        The only implementation here.
    return_residual : bool, optional
        Return the logarithm of each softmax denominator as well.

    Returns
    -------
    output : array, shape (B, T, N, Hv) or (T, N, Hv)
        In the query's dtype.
    residual : array, shape (B, T, N) or (T, N)
        With `return_residual`, in the query's dtype. As in JAX, no gradient flows
        through it.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype; if a derivative is taken in forward
        mode (`jax.jvp`, `jax.jacfwd`), which is JAX's own error.
    ValueError
        If shapes do not fit together, a number is out of its range, or an array is on
        another device than a CPU. Of code for another device, under `jit`, XLA's own
        error says that it has no ``attnpy``.
    NotImplementedError
        If a second derivative is taken.
    ValueError or jax.errors.JaxRuntimeError, which JAX makes of it
        If memory runs out.

    See Also
    --------
    attnpy.attention : computes it, with its promises about bits.

    Notes
    -----
    Two things differ from `jax.nn`. A query that may see no key has output 0 and
    residual -inf; in `jax.nn` the mean of all values and a large negative number. And
    float64 is computed in float64; `jax.nn` computes the softmax in float32.

    Query, key, value and bias have gradients. From the forward pass they need only the
    output and the residual. The gradient of the bias is computed separately, under
    `jit` only if it is used.

    Examples
    --------
    >>> import jax
    >>> from attnpy.integrations.jax import dot_product_attention
    >>> x = jax.random.normal(jax.random.key(0), (2, 10, 4, 16))  # (B, T, N, H)
    >>> attend = jax.jit(lambda x: dot_product_attention(x, x, x, is_causal=True))
    >>> attend(x).shape
    (2, 10, 4, 16)
    >>> jax.grad(lambda x: (attend(x) ** 2).sum())(x).shape
    (2, 10, 4, 16)
    """
    is_text = isinstance(implementation, str)
    if implementation is not None and not (is_text and implementation == "attnpy"):
        raise ValueError(
            f"implementation: expected None or 'attnpy', got {implementation!r}; "
            "jax.nn.dot_product_attention has others"
        )
    options = Options(
        _scale(scale),
        _checks.flag(is_causal, "is_causal"),
        _window(local_window_size),
        _checks.flag(return_residual, "return_residual"),
    )
    given = {
        "query": query,
        "key": key,
        "value": value,
        "bias": bias,
        "mask": mask,
        "query_seq_lengths": query_seq_lengths,
        "key_value_seq_lengths": key_value_seq_lengths,
    }
    arrays = {
        name: _array(x, name)
        for name, x in given.items()
        if x is not None or name in EXPECTED
    }
    _check_places(arrays)
    _check_dtypes(arrays)
    _check_shapes({name: _full_shape(x, name) for name, x in arrays.items()})
    output: jax.Array
    output, *residual = _compute(options, arrays)
    return (output, residual[0]) if return_residual else output


# ---- What is given -------------------------------------------------------------------


def _array(value: Any, name: str) -> Any:
    """Return an array of JAX."""
    try:
        if value is not None:  # older versions take it for NaN
            return jnp.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise TypeError(
            f"{name}: expected an array that JAX takes, got {type(value).__name__}"
        ) from error
    raise TypeError(f"{name}: expected an array that JAX takes, got None")


def _scale(scale: Any) -> float | None:
    """Return a concrete number, or None."""
    if scale is None:
        return None
    if isinstance(scale, jax.core.Tracer):
        raise TypeError(
            "scale: expected a number, got a tracer; multiply the query by it instead, "
            "with scale=1"
        )
    number: Any = _checks.array(scale, "scale", "a number")[()]
    return _checks.above(number, "scale", -math.inf)


def _window(window: Any) -> tuple[int, int] | None:
    """Return how far a query sees to the left and to the right."""
    if window is None:
        return None
    name = "local_window_size"
    sides = window if isinstance(window, (tuple, list)) else (window, window)
    if len(sides) != 2:
        raise ValueError(f"{name}: expected (left, right), got {len(sides)} of them")
    left, right = (_checks.size(side, name) for side in sides)
    return left, right


def _full_shape(x: Any, name: str) -> tuple[int, ...]:
    """Return an array's shape with the axes of a batch."""
    if name.endswith("_lengths"):
        return tuple(x.shape)
    if x.ndim > 4 or (name in EXPECTED and x.ndim < 3):
        expected = EXPECTED.get(name, "a shape that broadcasts to (B, N, T, S)")
        raise ValueError(f"{name}: expected {expected}, got {x.shape}")
    return (*(1,) * (4 - x.ndim), *x.shape)


def _check_places(arrays: Arrays) -> None:
    """Refuse arrays on other devices; of what is traced, XLA knows them later."""
    for name, x in arrays.items():
        if isinstance(x, jax.core.Tracer):
            continue
        for device in x.devices():
            if device.platform != "cpu":
                raise ValueError(
                    f"{name}: expected an array on a CPU, got one on {device}; "
                    "jax.default_device(jax.devices('cpu')[0]) makes arrays there, "
                    "and jax.device_put copies them"
                )


def _check_dtypes(arrays: Arrays) -> None:
    """Refuse dtypes that attention lacks, and mixtures that JAX refuses."""
    dtype = arrays["query"].dtype
    if dtype.name not in _dtypes.FLOATING:
        raise TypeError(
            f"query: expected float64, float32, float16 or bfloat16, got {dtype}"
        )
    for name in ("key", "value"):
        if arrays[name].dtype != dtype:
            raise TypeError(
                f"{name}: expected the query's dtype, {dtype}, got {arrays[name].dtype}"
            )
    for name, x in arrays.items():
        if name == "mask" and x.dtype != np.bool_:
            raise TypeError(f"mask: expected bool, got {x.dtype}; numbers are a bias")
        if name == "bias" and x.dtype.name not in _dtypes.FLOATING:
            raise TypeError(f"bias: expected a floating dtype, got {x.dtype}")
        if name.endswith("_lengths") and x.dtype.kind not in "iu":
            raise TypeError(f"{name}: expected integers, got {x.dtype}")


def _check_shapes(shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse shapes that do not fit together."""
    batch, n_queries, n_heads, dim = shapes["query"]
    key, value = shapes["key"], shapes["value"]
    if (key[0], key[3]) != (batch, dim):
        raise ValueError(
            f"key: expected ({batch}, S, K, {dim}) to match the query, got {key}"
        )
    n_keys, n_kv_heads = key[1:3]
    if value[:3] != key[:3]:
        raise ValueError(
            f"value: expected ({batch}, {n_keys}, {n_kv_heads}, H) to match the key, "
            f"got {value}"
        )
    if n_heads % n_kv_heads if n_kv_heads else n_heads:
        raise ValueError(
            f"query: expected a multiple of the key's {n_kv_heads} heads, got {n_heads}"
        )
    scores = (batch, n_heads, n_queries, n_keys)
    for name in shapes.keys() & {"bias", "mask"}:
        if not _checks.broadcasts(shapes[name], scores):
            raise ValueError(
                f"{name}: expected a shape that broadcasts to {scores}, "
                f"got {shapes[name]}"
            )
    for name in shapes.keys() & {"query_seq_lengths", "key_value_seq_lengths"}:
        if shapes[name] != (batch,):
            raise ValueError(f"{name}: expected ({batch},), got {shapes[name]}")


# ---- What JAX traces -----------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def _compute(options: Options, arrays: Arrays) -> tuple[Any, ...]:
    """Return output and, if wanted, residual."""
    shape = arrays["query"].shape
    arrays = {name: x.reshape(_full_shape(x, name)) for name, x in arrays.items()}
    n_queries, n_keys = arrays["query"].shape[1], arrays["key"].shape[1]
    lengths = arrays.pop("query_seq_lengths", None)
    if lengths is not None:
        ends = _clipped(lengths, n_queries)[:, np.newaxis]  # (B, 1)
        exist = jnp.arange(n_queries, dtype=np.int32)[np.newaxis] < ends  # (B, T)
        exist = exist[:, np.newaxis, :, np.newaxis]
        arrays["mask"] = arrays["mask"] & exist if "mask" in arrays else exist
    lengths = arrays.pop("key_value_seq_lengths", None)
    if lengths is not None:
        arrays["kv_lengths"] = _clipped(lengths, n_keys)
    axes = _axes(*arrays.values())
    arrays = {name: _varying(x, axes) for name, x in arrays.items()}
    output, *lse = _attend(options, arrays)
    residuals = (x.swapaxes(1, 2).astype(output.dtype) for x in lse)  # (B, T, N)
    return (
        output.reshape(*shape[:-1], output.shape[-1]),
        *(jax.lax.stop_gradient(x.reshape(shape[:-1])) for x in residuals),
    )


def _clipped(lengths: Any, n: int) -> Any:
    """Return lengths clipped from 0 to n; n may exceed the range of their dtype."""
    limits: Any = jnp.iinfo  # which JAX has without types
    most = min(n, int(limits(lengths.dtype).max))
    return jnp.clip(lengths, 0, most).astype(np.int32)


def _plain(options: Options, arrays: Arrays) -> tuple[Any, ...]:
    """Return output (B, T, N, H), and LSE (B, N, T) if wanted."""
    query, value = arrays["query"], arrays["value"]
    batch, n_queries, n_heads, _ = query.shape
    types: Types = (((*query.shape[:-1], value.shape[-1]), query.dtype),)
    if options.return_lse:
        real = np.dtype(np.float64 if query.dtype == np.float64 else np.float32)
        types = (*types, ((batch, n_heads, n_queries), real))
    results: tuple[Any, ...] = _call(options, types, (), arrays)
    return results


def _forward(options: Options, arrays: Arrays) -> tuple[tuple[Any, ...], Any]:
    """Return the result of `_plain`, and the residuals for `_backward`."""
    output, lse = _plain(replace(options, return_lse=True), arrays)
    results = (output, lse) if options.return_lse else (output,)
    return results, (arrays, output, lse)


def _backward(options: Options, kept: Any, gradients: Any) -> tuple[Arrays]:
    """Return the gradients; LSE counts as a constant."""
    arrays, output, lse = kept
    given = {**arrays, "grad_output": gradients[0], "output": output, "lse": lse}
    found = dict.fromkeys(arrays)
    for names in WANTED:
        if names[0] in arrays:
            types = tuple((arrays[name].shape, arrays[name].dtype) for name in names)
            computed = _call(options, types, names, given)
            found.update(zip(names, computed, strict=True))
    return (found,)


def _ffi_call(
    options: Options, types: Types, wanted: tuple[str, ...], arrays: Arrays
) -> tuple[Any, ...]:
    """Return the results of `_run`, in these shapes and dtypes."""
    text = json.dumps({**asdict(options), "names": list(arrays), "wanted": wanted})
    struct: Any = jax.ShapeDtypeStruct
    results = [struct(shape, dtype) for shape, dtype in types]
    call = jax.ffi.ffi_call(TARGET, results, vmap_method="expand_dims")
    found = call(*arrays.values(), options=text)
    return tuple(_varying(x, _axes(*arrays.values())) for x in found)


def _axes(*arrays: Any) -> frozenset[str]:
    """Return the axes of devices along which arrays vary, in `jax.shard_map`."""
    kinds = [getattr(jax.typeof(x), "manual_axis_type", None) for x in arrays]
    return frozenset[str]().union(*(kind.varying for kind in kinds if kind is not None))


def _varying(x: Any, axes: frozenset[str]) -> Any:
    """Return an array marked as varying along these axes of devices, too."""
    missing = axes - _axes(x)
    return jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x


def _second_derivative(*_arguments: Any) -> Any:
    raise NotImplementedError(
        "dot_product_attention: expected one derivative, got a second"
    )


_attend = jax.custom_vjp(_plain, nondiff_argnums=(0,))
_attend.defvjp(_forward, _backward)
_call = jax.custom_jvp(_ffi_call, nondiff_argnums=(0, 1, 2))
_call.defjvp(_second_derivative)


# ---- What XLA calls ------------------------------------------------------------------


def _run(text: bytes, operands: list[Array], results: list[Array]) -> None:
    """Write the wanted results: gradients, or output and LSE."""
    names, wanted, options = _parsed(text)
    arrays = _arrays(names, operands, results[0].shape[:-4])
    if wanted:
        _run_vjp({**arrays, **options}, wanted, results)
    else:
        _run_attention({**arrays, **options}, *results)


def _run_attention(
    arguments: dict[str, Any], output: Array, lse: Array | None = None
) -> None:
    """Write output and, if there is a place for it, LSE."""
    found: Any = attention(
        **arguments, out=_heads_first(output), return_lse=lse is not None
    )
    if lse is not None:
        lse[...] = found[1]


def _run_vjp(
    arguments: dict[str, Any], wanted: list[str], results: list[Array]
) -> None:
    """Write the gradients that are wanted."""
    gradients = attention_vjp(**arguments, wanted=wanted)
    for name, result in zip(wanted, results, strict=True):
        place = result if name == "bias" else _heads_first(result)
        place[...] = getattr(gradients, name)


@functools.cache
def _parsed(text: bytes) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return the operands' names, the wanted gradients, and the options."""
    call = json.loads(text)
    window = call["window"]
    options = {
        "scale": call["scale"],
        "causal": call["causal"],
        "window": window if window is None else tuple(window),
        "q_offset": 0,
    }
    return call["names"], call["wanted"], options


def _arrays(
    names: list[str], operands: list[Array], batch: tuple[int, ...]
) -> dict[str, Any]:
    """Return the arrays by name, heads first, with these axes of `vmap` before them.

    XLA has an axis of size 1 if `vmap` has none.
    """
    arrays: dict[str, Any] = {}
    for name, x in zip(names, operands, strict=True):
        x = _heads_first(x) if name in HEADS_SECOND else x
        if x.shape[: len(batch)] != batch:
            x = np.broadcast_to(x, (*batch, *x.shape[len(batch) :]))
        arrays[name] = x
    return arrays


def _heads_first(x: Array) -> Array:
    """Return (..., L, H, D) as (..., H, L, D), without a copy."""
    return x.swapaxes(-3, -2)


_xla.register(TARGET, _run)
