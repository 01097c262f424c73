"""ONNX's operator `Attention`, for its reference evaluator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _dtypes, _repr, masks
from attnpy._attention import attention
from attnpy._linear import linear
from attnpy.blocks import tanh

try:
    from onnx import TensorProto
    from onnx.reference.op_run import OpRun
except ImportError as error:
    raise ImportError(
        "attnpy.integrations.onnx needs the onnx package: pip install onnx"
    ) from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnpy._typing import Array

__all__ = ["Attention"]


def __dir__() -> list[str]:
    return __all__


# The operator's names for arguments of `attention`, in errors.
NAMES = {
    "query": "Q",
    "key": "K",
    "value": "V",
    "mask": "attn_mask",
    "bias": "attn_mask",
    "kv_lengths": "nonpad_kv_seqlen",
}
INTEGERS = (
    "is_causal",
    "q_num_heads",
    "kv_num_heads",
    "qk_matmul_output_mode",
    "softmax_precision",
    "left_window_size",
    "right_window_size",
)
NUMBERS = ("scale", "softcap")
PRECISIONS = {
    TensorProto.FLOAT: "FLOAT",
    TensorProto.FLOAT16: "FLOAT16",
    TensorProto.DOUBLE: "DOUBLE",
    TensorProto.BFLOAT16: "BFLOAT16",
}
# Values of qk_matmul_output_mode; 1 is of the scores with their soft cap.
PRODUCTS, MASKED, WEIGHTS = 0, 2, 3


class Attention(OpRun):
    """The operator `Attention` of opsets 23 to 25 and later.

    Give it to ONNX's reference evaluator, ``ReferenceEvaluator(model,
    new_ops=[Attention])``, which then computes every such node with `attnpy.attention`,
    with all inputs, outputs and attributes of the operator's definition.

    Raises
    ------
    ValueError
        When the model runs: if inputs and attributes do not fit together, or have
        values or dtypes that the operator does not support.

    See Also
    --------
    attnpy.attention : computes it.

    Notes
    -----
    16-bit inputs are computed in float32 and rounded once, so `softmax_precision` is
    the lowest precision of the softmax: DOUBLE computes everything in float64. Only the
    output `qk_matmul_output` needs memory for the matrix of scores; hidden keys have
    score -inf in it, whatever they contain.

    From opset 24 on, a mask whose last axis is shorter than the keys hides the others;
    in opset 23 masks broadcast, and a last axis of 1 is for all keys. (This follows the
    operator's function. ONNX's own reference implementation hides them in both.)

    Examples
    --------
    >>> import numpy as np
    >>> import onnx.parser
    >>> from onnx.reference import ReferenceEvaluator
    >>> from attnpy.integrations.onnx import Attention
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 10, opset_import: ["" : 24]>
    ...     causal (float[B, L, 64] Q, float[B, L, 64] K, float[B, L, 64] V)
    ...         => (float[B, L, 64] Y) {
    ...         Y = Attention <q_num_heads=8, kv_num_heads=8, is_causal=1> (Q, K, V)
    ...     }
    ... ''')
    >>> session = ReferenceEvaluator(model, new_ops=[Attention])
    >>> x = np.random.default_rng(0).standard_normal((2, 10, 64), dtype=np.float32)
    >>> session.run(None, {"Q": x, "K": x, "V": x})[0].shape
    (2, 10, 64)
    """

    def __repr__(self) -> str:
        """Return the node's inputs and outputs."""
        ends = {"inputs": list(self.input), "outputs": list(self.output)}
        return _repr.line(self, ends)

    def _run(
        self,
        Q: Array,
        K: Array,
        V: Array,
        attn_mask: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        nonpad_kv_seqlen: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array, ...]:
        """Compute the node's outputs; the last one only if it has a name."""
        _check_attributes(attributes)
        _check_cache(past_key, past_value, nonpad_kv_seqlen)
        _check_lengths(nonpad_kv_seqlen, len(Q) if Q.ndim else 0)
        query = _heads(Q, attributes["q_num_heads"], "Q", "q_num_heads")
        key = _heads(K, attributes["kv_num_heads"], "K", "kv_num_heads")
        value = _heads(V, attributes["kv_num_heads"], "V", "kv_num_heads")
        if key.dtype != query.dtype:  # that of V may differ
            raise ValueError(f"K: expected the dtype of Q, {Q.dtype}, got {K.dtype}")
        past = 0
        if past_key is not None and past_value is not None:
            past = past_key.shape[2]
            key = _joined(past_key, key, "past_key")
            value = _joined(past_value, value, "past_value")
        options = {
            **_visibility(attributes, query.shape[2], past, nonpad_kv_seqlen),
            **_mask(attn_mask, key.shape[2], self._fills_masks()),
            "scale": attributes["scale"],
            "softcap": attributes["softcap"] or None,
        }
        mode = self._mode(attributes["qk_matmul_output_mode"])
        arrays = _precise((query, key, value), attributes["softmax_precision"])
        with _checks.renamed(**NAMES):
            output, *scores = _attend(arrays, mode, options)
        output = output.astype(Q.dtype, copy=False)
        if Q.ndim == 3:  # (B, H, Lq, Dv) to (B, Lq, H Dv)
            output = output.swapaxes(1, 2)
            output = output.reshape(*output.shape[:2], -1)
        return output, key, value, *(x.astype(Q.dtype, copy=False) for x in scores)

    def _fills_masks(self) -> bool:
        """Tell whether a mask with fewer keys hides the others."""
        opsets = self.run_params["opsets"]
        version: int = opsets.get("", opsets.get("ai.onnx", 24))
        return version >= 24

    def _mode(self, mode: int) -> int | None:
        """Return the mode of the last output, or None if it has no name."""
        if mode not in range(4):
            raise ValueError(f"qk_matmul_output_mode: expected 0 to 3, got {mode}")
        return mode if any(self.output[3:]) else None


def _check_attributes(attributes: dict[str, Any]) -> None:
    """Refuse attributes that the operator lacks, and those of another type.

    Those that a node does not have are here with their default, or as None.
    """
    for name, given in attributes.items():
        if name not in INTEGERS + NUMBERS:
            raise ValueError(f"{name}: expected no such attribute, got {given!r}")
        is_integer = isinstance(given, (int, np.integer))
        if name in INTEGERS and not (given is None or is_integer):
            raise ValueError(f"{name}: expected an integer, got {type(given).__name__}")
        is_number = is_integer or isinstance(given, (float, np.floating))
        if name in NUMBERS and not (given is None or is_number):
            raise ValueError(f"{name}: expected a number, got {type(given).__name__}")
    if attributes["is_causal"] not in (0, 1):
        raise ValueError(f"is_causal: expected 0 or 1, got {attributes['is_causal']}")


def _check_cache(
    past_key: Array | None, past_value: Array | None, lengths: Array | None
) -> None:
    """Refuse half a cache, and two caches."""
    if (past_key is None) != (past_value is None):
        missing = "past_key" if past_key is None else "past_value"
        raise ValueError(
            f"{missing}: expected an array beside its counterpart, got None"
        )
    if past_key is not None and lengths is not None:
        raise ValueError(
            "nonpad_kv_seqlen: expected None beside past_key and past_value, got an "
            "array"
        )


def _check_lengths(lengths: Array | None, batch: int) -> None:
    """Refuse what is no integer for each member of the batch."""
    if lengths is None:
        return
    if lengths.dtype.kind not in "iu":
        raise ValueError(
            f"nonpad_kv_seqlen: expected integers, got dtype {lengths.dtype}"
        )
    if lengths.shape != (batch,):
        raise ValueError(
            f"nonpad_kv_seqlen: expected ({batch},), got shape {lengths.shape}"
        )


def _heads(x: Array, n_heads: int | None, name: str, attribute: str) -> Array:
    """Return (B, L, H D), or (B, H, L, D), as (B, H, L, D)."""
    if x.dtype.name not in _dtypes.FLOATING:
        raise ValueError(
            f"{name}: expected float64, float32, float16 or bfloat16, got {x.dtype}"
        )
    if x.ndim == 4:
        if n_heads is not None and n_heads != x.shape[1]:
            raise ValueError(
                f"{attribute}: expected the {x.shape[1]} heads of {name}, got {n_heads}"
            )
        return x
    if x.ndim != 3:
        raise ValueError(f"{name}: expected three or four axes, got shape {x.shape}")
    if n_heads is None:
        raise ValueError(
            f"{attribute}: expected a number of heads for {name} with three axes, got "
            "none"
        )
    if n_heads < 1 or x.shape[2] % n_heads:
        raise ValueError(
            f"{name}: expected (B, L, E) with E a multiple of {attribute}, {n_heads}, "
            f"got {x.shape}"
        )
    batch, length, width = x.shape
    return x.reshape(batch, length, n_heads, width // n_heads).swapaxes(1, 2)


def _joined(past: Array, new: Array, name: str) -> Array:
    """Return the cache and the new keys or values end to end."""
    batch, heads, _, dim = new.shape
    if past.ndim != 4 or (*past.shape[:2], past.shape[3]) != (batch, heads, dim):
        raise ValueError(
            f"{name}: expected ({batch}, {heads}, L, {dim}), got {past.shape}"
        )
    if past.dtype != new.dtype:
        raise ValueError(
            f"{name}: expected the dtype of what follows, {new.dtype}, got {past.dtype}"
        )
    return np.concatenate((past, new), axis=2)


def _visibility(
    attributes: dict[str, Any], n_queries: int, past: int, lengths: Array | None
) -> dict[str, Any]:
    """Return the options that hide keys by their positions."""
    left, right = (
        _window(attributes[f"{side}_window_size"], side) for side in ("left", "right")
    )
    return {
        "causal": bool(attributes["is_causal"]),
        "window": None if left is right is None else (left, right),
        "q_offset": past if lengths is None else lengths - n_queries,
        "kv_lengths": lengths,
    }


def _window(size: int, side: str) -> int | None:
    if size < -1:
        raise ValueError(f"{side}_window_size: expected at least -1, got {size}")
    return None if size == -1 else size


def _mask(mask: Array | None, n_keys: int, fills: bool) -> dict[str, Any]:
    """Return the mask, as booleans or as numbers to add."""
    if mask is None:
        return {}
    boolean = mask.dtype == np.bool_
    if not boolean and mask.dtype.name not in _dtypes.FLOATING:
        raise ValueError(
            f"attn_mask: expected bool or a floating dtype, got {mask.dtype}"
        )
    missing = n_keys - mask.shape[-1] if mask.ndim else 0
    if fills and missing > 0:
        widths = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
        hidden = False if boolean else -np.inf
        mask = np.pad(mask, widths, constant_values=hidden)
    return {"mask" if boolean else "bias": mask}


def _precise(arrays: tuple[Array, ...], precision: int | None) -> tuple[Array, ...]:
    """Return the arrays in a dtype whose arithmetic has at least this precision."""
    if precision is not None and precision not in PRECISIONS:
        names = ", ".join(f"{number} ({name})" for number, name in PRECISIONS.items())
        raise ValueError(f"softmax_precision: expected one of {names}, got {precision}")
    if precision == TensorProto.DOUBLE:
        return tuple(array.astype(np.float64, copy=False) for array in arrays)
    if {array.dtype.name for array in arrays} == {"float16", "bfloat16"}:
        return tuple(array.astype(np.float32) for array in arrays)
    return arrays


def _attend(
    arrays: tuple[Array, ...], mode: int | None, options: dict[str, Any]
) -> tuple[Array, ...]:
    """Return the output and, with a mode, the scores or weights."""
    query, key, value = arrays
    results: Any = attention(
        query, key, value, return_weights=mode == WEIGHTS, return_lse=False, **options
    )
    if mode is None:
        return (results,)
    if mode == WEIGHTS:
        return tuple(results)
    return results, _scores(query, key, mode, options)


def _scores(query: Array, key: Array, mode: int, options: dict[str, Any]) -> Array:
    """Return the scores (B, H, Lq, Lk) at the stage that the mode names."""
    dim = query.shape[-1]
    scale = 1 / math.sqrt(max(1, dim)) if options["scale"] is None else options["scale"]
    scores = _products(query, key)
    scores *= scale
    cap = options["softcap"]
    if cap is not None and mode != PRODUCTS:
        scores = cap * tanh(scores / cap)
    if mode == MASKED:
        n_queries, n_keys = scores.shape[2:]
        if "bias" in options:
            scores = scores + options["bias"].astype(scores.dtype)
        scores = np.where(_visible(n_queries, n_keys, options), scores, -np.inf)
    return scores


def _products(query: Array, key: Array) -> Array:
    """Return the dot products (B, H, Lq, Lk), in float32 or float64."""
    batch, n_heads, n_queries, dim = query.shape
    n_kv_heads, n_keys = key.shape[1:3]
    shape = (batch, n_kv_heads, n_heads // n_kv_heads, n_queries)
    grouped = query.reshape(*shape, dim)
    wide = np.float64 if query.dtype == np.float64 else np.float32
    products = np.empty((*shape, n_keys), wide)
    for b, h in np.ndindex(batch, n_kv_heads):
        products[b, h] = linear(grouped[b, h], key[b, h].T, precision="wide")
    return products.reshape(batch, n_heads, n_queries, n_keys)


def _visible(n_queries: int, n_keys: int, options: dict[str, Any]) -> NDArray[np.bool_]:
    """Return which keys each query may see, broadcasting to (B, H, Lq, Lk)."""
    sizes, offset = (n_queries, n_keys), options["q_offset"]
    visible: NDArray[np.bool_] = options.get("mask", np.True_)
    if options["causal"]:
        visible = visible & masks.causal(*sizes, q_offset=offset)
    if options["window"] is not None:
        visible = visible & masks.window(*sizes, options["window"], q_offset=offset)
    if options["kv_lengths"] is not None:
        visible = visible & masks.padding(options["kv_lengths"], n_keys)
    return visible
