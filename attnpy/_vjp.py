"""The backward pass of layers: results of pullbacks, and their common code.

The vector-Jacobian product of a function y = f(x) takes the gradient of a number with
respect to y to that with respect to x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnpy import _checks, _dtypes, _parameters, _repr
from attnpy._packed_weight import PackedTable, PackedWeight
from attnpy._quantized import QuantizedTable, QuantizedWeight

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array


class LayerGradients(NamedTuple):
    """The result of a layer's pullback: gradients in the shapes of their arrays.

    Attributes
    ----------
    x : ndarray
        The gradient with respect to the tokens.
    parameters : dict of str to ndarray
        With respect to the parameters, by their names in `parameters()`.
    context, value : ndarray or None
        With respect to the context and the source of values, if a layer was given them.
    bias, sinks : ndarray or None
        With respect to these options of attention, if `wanted` names them.
    """

    x: Array
    parameters: dict[str, Array]
    context: Array | None = None
    value: Array | None = None
    bias: Array | None = None
    sinks: Array | None = None

    def __repr__(self) -> str:
        """Return the dtype and shape of each array."""
        return _repr.of_fields(self)


Pullback = Callable[["ArrayLike"], LayerGradients]


def added(one: Array | None, other: Array | None) -> Array | None:
    """Return the sum of two gradients of one array; None stands for none."""
    if one is None or other is None:
        return other if one is None else one
    total: Array = one + other
    return total


class Collector:
    """Adds up the gradients of a layer's parameters from those of its parts."""

    def __init__(self, layer: object) -> None:
        """Find the name under which `parameters` has each array."""
        self.names = _parameters.first_names(layer)
        self.found: dict[str, Array] = {}

    def add(self, parameters: Mapping[str, Array | None], prefix: str = "") -> None:
        """Add gradients that a part has by its own names, None for what is None."""
        for name, gradient in parameters.items():
            if gradient is not None:
                known = self.names[prefix + name]
                total = added(self.found.get(known), gradient)
                assert total is not None
                self.found[known] = total

    def parameters(self) -> dict[str, Array]:
        """Return the gradients in the order of `parameters`."""
        order = dict.fromkeys(self.names.values())
        return {name: self.found[name] for name in order if name in self.found}


def of_parameters(
    layer: object, gradients: Mapping[str, Array | None]
) -> dict[str, Array]:
    """Return the gradients of a layer without parts, in the order of `parameters`."""
    collected = Collector(layer)
    collected.add(gradients)
    return collected.parameters()


def floating(values: ArrayLike, name: str) -> Array:
    """Return an array that can have a gradient: integers become float64."""
    array = _checks.array(values, name)
    dtype = _dtypes.operand(array, name)
    return array if array.dtype == dtype else array.astype(dtype)


def check_trainable(layer: object, names: tuple[str, ...]) -> None:
    """Require parameters whose gradients would mean something."""
    for name in names:
        array = getattr(layer, name)
        if isinstance(array, (PackedWeight, PackedTable)):
            raise ValueError(
                f"{name}: expected an array, got a packed one, which cannot be trained "
                "(pass packed=False to from_pretrained)"
            )
        if isinstance(array, (QuantizedWeight, QuantizedTable)):
            raise ValueError(
                f"{name}: expected an array, got one that is quantised, which cannot "
                "be trained"
            )
        if array is None:
            continue
        is_array = isinstance(array, np.ndarray)
        if not is_array or _dtypes.name(array.dtype) not in _TRAINABLE:
            raise TypeError(
                f"{name}: expected an array of float32 or float64 where gradients are "
                f"wanted, got {getattr(array, 'dtype', type(array).__name__)}"
            )


_TRAINABLE = ("float32", "float64")


def of_output(output: Array) -> Callable[[ArrayLike], Array]:
    """Return a function that checks an output's gradient, and converts it to its dtype.

    It keeps only the output's shape and dtype: the array belongs to the caller.
    """
    shape, dtype = output.shape, output.dtype

    def checked(grad_output: ArrayLike) -> Array:
        grad = floating(grad_output, "grad_output")
        if grad.shape != shape:
            raise ValueError(
                f"grad_output: expected the output's shape {shape}, got {grad.shape}"
            )
        return grad.astype(dtype, copy=False)

    return checked


def look_up_vjp(table: Array, ids: NDArray[np.int64], grad: Array) -> Array:
    """Return the gradient of a table from that of rows looked up in it.

    Gradients of a row that was looked up several times are added in the order of `ids`.
    """
    rows, places = grad.reshape(-1, grad.shape[-1]), ids.reshape(-1)
    total = np.zeros(table.shape, table.dtype)
    if places.size == 0:
        return total
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    counts = np.diff(starts, append=places.size)
    by_count = np.argsort(-counts, kind="stable")
    starts, counts = starts[by_count], counts[by_count]
    sums = rows[order[starts]]
    sums[: np.count_nonzero(counts > 1)] += 0  # -0, too, as in NumPy's sums
    # The first rows one by one, and then the n-th gradients of all others together,
    # which takes twice as long as a row.
    steps = np.append(counts, 1)
    alone = int(np.argmin(np.arange(len(steps)) + 2 * steps))
    for i, (start, n) in enumerate(zip(starts[:alone], counts, strict=False)):
        sums[i] = np.add.reduce(rows[order[start : start + n]], axis=0)
    for nth in range(1, steps[alone]):
        which = slice(alone, np.count_nonzero(counts > nth))
        sums[which] += rows[order[starts[which] + nth]]
    total[places[order[starts]]] = sums
    return total


def wanted_names(wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the options of attention whose gradients are wanted, by name."""
    names = (wanted,) if isinstance(wanted, str) else wanted
    return tuple(_checks.items(names, "wanted", "str"))


def run(
    vjp: Callable[[], tuple[Array, Pullback]], checkpoint: bool
) -> tuple[Array, Pullback]:
    """Run a function; a checkpoint keeps nothing, and its pullback runs it again."""
    if not _checks.flag(checkpoint, "checkpoint"):
        return vjp()
    output, _ = vjp()

    def pullback(grad_output: ArrayLike) -> LayerGradients:
        _, again = vjp()
        return again(grad_output)

    return output, pullback
