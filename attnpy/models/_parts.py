"""What models change in the layers of their stacks: biases, windows, positions."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

import numpy as np

from attnpy import _checks, _dtypes, _parameters
from attnpy._attention import attention
from attnpy._quoting import quoted
from attnpy.blocks import FeedForward, MixtureOfExperts, _stack
from attnpy.blocks.experts import EXPERT_BYTES
from attnpy.layers import MultiHeadAttention
from attnpy.positions import Rotary
from attnpy.positions.relative import by_distance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import TypeIs

    from attnpy._typing import Activation, Array, NormKind, Window
    from attnpy.blocks import DecoderLayer


class Attending(Protocol):
    """A layer with options of its own for every call of its self-attention."""

    window: Window | None
    scale: float | None
    rotary: Rotary | None


Layer = TypeVar("Layer", bound=Attending)
Value = TypeVar("Value")


def set_biases(
    layer: MultiHeadAttention | FeedForward,
    letters: tuple[str, ...],
    wanted: bool | None,
    name: str,
) -> None:
    """Give some products of a layer biases of 0, or none; None changes nothing."""
    if wanted is None:
        return
    for letter in letters:
        weight = getattr(layer, f"W_{letter}")
        if weight is not None:
            flag, size = _checks.flag(wanted, name), weight.shape[1]
            setattr(layer, f"b_{letter}", _parameters.zeros(flag, size, weight.dtype))


def set_head_sizes(
    layers: Sequence[DecoderLayer],
    head_sizes: Sequence[tuple[int, int]],
    rng: np.random.Generator,
) -> None:
    """Give the attention of layers heads of their own sizes and numbers of keys'."""
    pairs = _checks.items(head_sizes, "head_sizes", "(int, int)")
    for layer, pair in _by_layer(layers, pairs, "head_sizes"):
        sizes = _checks.items(pair, "head_sizes", "int")
        if len(sizes) != 2:
            raise ValueError(
                f"head_sizes: expected (head_dim, num_kv_heads), got {quoted(pair)}"
            )
        mha, (head_dim, num_kv_heads) = layer.self_attention, sizes
        if (mha.head_dim, mha.num_kv_heads) != (head_dim, num_kv_heads):
            layer.self_attention = MultiHeadAttention(
                len(mha.W_q),
                mha.num_heads,
                head_dim,
                num_kv_heads=num_kv_heads,
                bias=mha.b_q is not None,
                dtype=mha.W_q.dtype,
                rng=rng,
            )


def head_sizes_of(layers: Sequence[DecoderLayer]) -> list[tuple[int, int]] | None:
    """Return the option `head_sizes` of layers; None where all are alike."""
    parts = [layer.self_attention for layer in layers]
    sizes = [(mha.head_dim, mha.num_kv_heads) for mha in parts]
    return sizes if len(set(sizes)) > 1 else None


def set_qk_norms(
    mha: MultiHeadAttention,
    qk_norm: bool | Literal["all heads"],
    eps: float,
    dtype: DTypeLike,
    norm: NormKind = "rms",
) -> None:
    """Give queries and keys norms: of each head, of all heads of a token, or none."""
    if isinstance(qk_norm, str) and qk_norm == "all heads":
        n_heads = mha.num_heads, mha.num_kv_heads
    elif _checks.flag(qk_norm, "qk_norm"):
        n_heads = 1, 1
    else:
        return
    mha.q_norm, mha.k_norm = (
        _stack.make_norm(norm, n * mha.head_dim, eps, True, dtype) for n in n_heads
    )


def qk_norm_of(mha: MultiHeadAttention) -> bool | str:
    """Return the option `qk_norm` of a layer."""
    norm = mha.q_norm
    together = norm is not None and len(norm.weight) != mha.head_dim
    return "all heads" if together else norm is not None


def set_norms(
    layer: DecoderLayer,
    norm_after: bool | Literal["only"],
    parallel: bool | Literal["one norm"],
) -> None:
    """Put norms after attention and network, and those two side by side."""
    is_only = isinstance(norm_after, str) and norm_after == "only"
    if is_only or _checks.flag(cast("bool", norm_after), "norm_after"):
        layer.after_1, layer.after_3 = (
            copy.deepcopy(norm) for norm in (layer.norm_1, layer.norm_3)
        )
    if is_only:
        layer.norm_1 = layer.norm_3 = None
    if isinstance(parallel, str) and parallel == "one norm":
        layer.parallel, layer.norm_3 = True, None
    else:
        layer.parallel = _checks.flag(parallel, "parallel")


def set_experts(
    layers: Sequence[DecoderLayer],
    rng: np.random.Generator,
    *,
    num_experts: int | None,
    num_experts_per_token: int | None,
    renormalize: bool,
    expert_dim: int | None,
    shared_dim: int | None,
    dense_layers: Sequence[int],
    router_bias: bool,
) -> None:
    """Replace the networks of layers by mixtures of experts, if there are some."""
    renormalize = _checks.flag(renormalize, "renormalize")
    router_bias = _checks.flag(router_bias, "router_bias")
    dense = set(_dense(dense_layers, len(layers)))
    if num_experts is None:
        for name, given, usual in (
            ("num_experts_per_token", num_experts_per_token, None),
            ("renormalize", renormalize, True),
            ("expert_dim", expert_dim, None),
            ("shared_dim", shared_dim, None),
            ("dense_layers", sorted(dense), []),
            ("router_bias", router_bias, False),
        ):
            if given is not None if usual is None else given != usual:
                raise ValueError(
                    f"{name}: expected {usual} without num_experts, got {quoted(given)}"
                )
        return
    if num_experts_per_token is None:
        raise ValueError(
            "num_experts_per_token: expected an integer with num_experts, got None"
        )
    if dense and len(set(map(id, layers))) < len(layers):
        raise ValueError(
            f"dense_layers: expected none, as layers are shared, got {sorted(dense)}"
        )
    sparse = [layer for i, layer in enumerate(layers) if i not in dense]
    sizes = len(sparse), _checks.count(num_experts, "num_experts"), EXPERT_BYTES
    _checks.memory("num_experts", np.uint8, sizes)
    made: dict[int, MixtureOfExperts] = {}
    for layer in sparse:
        if id(layer) not in made:
            network = layer.feed_forward
            assert isinstance(network, FeedForward)
            embed_dim, hidden_dim = network.W_1.shape
            made[id(layer)] = MixtureOfExperts(
                embed_dim,
                hidden_dim if expert_dim is None else expert_dim,
                num_experts,
                num_experts_per_token,
                renormalize=renormalize,
                shared_dim=shared_dim,
                activation=cast("Activation", network.activation),
                bias=network.b_1 is not None,
                router_bias=router_bias,
                dtype=network.W_1.dtype,
                rng=rng,
            )
            per_layer = sum(x.nbytes for x in made[id(layer)].parameters().values())
            _checks.memory("num_experts", np.uint8, (len(sparse), per_layer))
        layer.feed_forward = made[id(layer)]


def _dense(dense_layers: Sequence[int], num_layers: int) -> list[int]:
    """Return the numbers of layers without experts, from 0 on."""
    listed = _checks.items(dense_layers, "dense_layers", "int")
    return _checks.chosen(listed, "dense_layers", num_layers) if listed else []


def experts_fields(layers: Sequence[DecoderLayer]) -> dict[str, Any]:
    """Return the options of `set_experts` that made layers, for a model's repr."""
    networks = [layer.feed_forward for layer in layers]
    found = [part for part in networks if isinstance(part, MixtureOfExperts)]
    if not found:
        return {}
    first = found[0]
    plain = [part for part in networks if isinstance(part, FeedForward)]
    inner = first.experts[0].W_1.shape[1]
    outer = plain[0].W_1.shape[1] if plain else inner
    return {
        "hidden_dim": outer,
        "num_experts": len(first.experts),
        "num_experts_per_token": first.num_experts_per_token,
        "renormalize": first.renormalize,
        "expert_dim": None if inner == outer else inner,
        "shared_dim": None if first.shared is None else first.shared.W_1.shape[1],
        "router_bias": first.router_bias is not None,
        "dense_layers": [i for i, part in enumerate(networks) if part not in found]
        or None,
    }


def set_options(
    layers: Sequence[Attending],
    dtype: DTypeLike,
    *,
    window: Any,
    rotary: Any,
    scale: Any = None,
) -> None:
    """Check options of attention, and give layers their own where there is a list."""
    for part in rotary if isinstance(rotary, list) else [rotary]:
        if not isinstance(part, Rotary | None):
            raise TypeError(f"rotary: expected a Rotary, got {type(part).__name__}")
    for own_window in window if is_windows(window) else [window]:
        _check_as_calls_do(dtype, window=own_window)
    for own_scale in scale if isinstance(scale, list) else [scale]:
        _check_as_calls_do(dtype, scale=own_scale)
    if is_windows(window):
        for layer, own_window in _by_layer(layers, window, "window"):
            layer.window = own_window
    if isinstance(scale, list):
        for layer, own_scale in _by_layer(layers, scale, "scale"):
            layer.scale = own_scale
    if isinstance(rotary, list):
        for layer, own_rotary in _by_layer(layers, rotary, "rotary"):
            layer.rotary = own_rotary


def common_options(*, window: Any, rotary: Any, scale: Any = None) -> dict[str, Any]:
    """Return the options of a call that are the same for all layers."""
    return {
        "rotary": None if isinstance(rotary, list) else rotary,
        "window": None if is_windows(window) else window,
        "scale": None if isinstance(scale, list) else scale,
    }


def is_windows(
    window: Window | list[Window | None] | None,
) -> TypeIs[list[Window | None]]:
    """Tell a list of windows from a single window given as a list."""
    return isinstance(window, list) and any(
        isinstance(w, (tuple, list)) for w in window
    )


def _check_as_calls_do(dtype: DTypeLike, **options: Any) -> None:
    """Raise now the error that calls would raise for the model's options."""
    nothing = np.zeros((0, 1), _dtypes.floating(dtype))
    attention(nothing, nothing, nothing, **options)


def _by_layer(
    layers: Sequence[Layer], values: Sequence[Value], name: str
) -> Iterator[tuple[Layer, Value]]:
    """Pair layers with their values from a list."""
    num_layers = len(layers)
    if len(values) != num_layers:
        raise ValueError(
            f"{name}: expected one for each of the {num_layers} layers, got "
            f"{len(values)}"
        )
    if len(set(map(id, layers))) < num_layers:
        raise ValueError(f"{name}: expected one for all layers, which are shared")
    return zip(layers, values, strict=True)


def bias_of_new(
    bias_of: Callable[..., Array],
    longest: int,
    past: NDArray[np.int64] | None,
    each: NDArray[np.int64] | int,
) -> Array:
    """Return biases by distance of new tokens, (H, L, Lk) or (B, H, L, Lk).

    There are `past` tokens (B,) before them in caches, if any, and `each` of every
    sequence is new.
    """
    if past is None or not past.size:
        return by_distance(bias_of, longest, longest)
    first = past if (past != past[0]).any() else int(past[0])
    return by_distance(bias_of, longest, int((past + each).max()), first)
