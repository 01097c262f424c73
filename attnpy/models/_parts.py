"""What models change in the layers of their stacks: biases, windows, positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from attnpy import _checks, _dtypes, _parameters
from attnpy._attention import attention
from attnpy.positions import Rotary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import DTypeLike
    from typing_extensions import TypeIs

    from attnpy._typing import Window
    from attnpy.blocks import FeedForward
    from attnpy.layers import MultiHeadAttention


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
