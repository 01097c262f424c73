"""Which heads' weights a call returns, and whether it returns their mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks, _dtypes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array


class Wanted(NamedTuple):
    """The weights that a call returns.

    Attributes
    ----------
    any : bool
    groups : ndarray of int64, shape (Hk,), or None
        The place of each group of heads in the weights, -1 for none; None for all.
    order : list of int, or None
        The wanted heads among those, or None for all in their order.
    mean : bool
        Their mean over the heads.
    """

    any: bool
    groups: NDArray[np.int64] | None
    order: list[int] | None
    mean: bool

    @classmethod
    def of(
        cls,
        return_weights: bool,
        heads: ArrayLike | None,
        average_weights: bool,
        num_heads: int,
        num_kv_heads: int,
    ) -> Wanted:
        """Return what the arguments of a call ask for."""
        return_weights = _checks.flag(return_weights, "return_weights")
        mean = _checks.flag(average_weights, "average_weights")
        if mean and not return_weights:
            raise ValueError(
                "average_weights: expected False without return_weights=True"
            )
        if heads is None:
            return cls(return_weights, None, None, mean)
        if not return_weights:
            raise ValueError("heads: expected None without return_weights=True")
        chosen = _checks.chosen(heads, "heads", num_heads)
        size = num_heads // num_kv_heads
        wanted = list(dict.fromkeys(head // size for head in chosen))
        groups = np.full(num_kv_heads, -1)
        groups[wanted] = np.arange(len(wanted))
        order = [int(groups[head // size]) * size + head % size for head in chosen]
        return cls(return_weights, groups, None if size == 1 else order, mean)

    def answer(self, result: Any, single: bool) -> Array | tuple[Array, Array]:
        """Return the result of a call from that of the C module."""
        if not self.any:
            output: Array = result[0] if single else result
            return output
        output, weights = result
        if self.order is not None:
            weights = weights[..., self.order, :, :]
        if self.mean:
            weights = _mean_over_heads(weights)
        return (output[0], weights[0]) if single else (output, weights)


def _mean_over_heads(weights: Array) -> Array:
    """Return the mean over the axis H, added up in the order of the heads.

    `numpy.mean` has another order where Lq and Lk are 1.
    """
    real = _dtypes.arithmetic(weights.dtype)
    total = np.zeros(weights.shape[:-3] + weights.shape[-2:], real)
    for head in range(weights.shape[-3]):
        total += weights[..., head, :, :]
    mean: Array = (total / weights.shape[-3]).astype(weights.dtype)
    return mean
