"""Numbers that are dropped in training: in the results of sublayers, and of embeddings.

Which ones depends on a seed and their places only. `attnpy.random` says how attention
drops weights; this is for whole vectors, of which there are more numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnpy import _checks
from attnpy._vjp import LayerGradients

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnpy._typing import Array
    from attnpy._vjp import Pullback

    Sublayer = Callable[[Array, Array | None], tuple[Array, Pullback]]


def checked(dropout: float, dropout_seed: int | None) -> tuple[float, int]:
    """Return the probability and the seed, 0 where nothing is dropped."""
    if not 0 <= _checks.above(dropout, "dropout", -math.inf) < 1:
        raise ValueError(
            f"dropout: expected a number of at least 0 and below 1, got {dropout!r}"
        )
    if dropout_seed is None:
        if dropout > 0:
            raise ValueError(
                "dropout_seed: expected an integer where there is dropout, got None"
            )
        return 0.0, 0
    seed = _checks.size(dropout_seed, "dropout_seed")
    if seed >= 2**64:
        raise ValueError(
            f"dropout_seed: expected an integer from 0 to 2**64 - 1, got {seed}"
        )
    return float(dropout), seed


def seeds(seed: int, n: int) -> list[int]:
    """Return seeds for n parts of what has this seed."""
    return [int(word) for word in np.random.Philox(key=seed).random_raw(n)]


def factors(shape: tuple[int, ...], dropout: float, seed: int) -> Array:
    """Return what numbers of this shape are multiplied by, as float64 or as 0.

    A number is kept if its 32 bits of NumPy's Philox with this key, the lower half of a
    word first, are at least ``floor(dropout * 2**32)``.
    """
    n = math.prod(shape)
    words = np.random.Philox(key=seed).random_raw(-(-n // 2))
    halves = words.astype("<u8", copy=False).view("<u4")[:n].reshape(shape)
    kept: Array = halves >= int(dropout * 2**32)
    return kept / (1 - dropout)


def dropped(
    array: Array, dropout: float, seed: int
) -> tuple[Array, Callable[[Array], Array]]:
    """Return numbers of which some are dropped, and what does it to their gradient."""
    if dropout == 0:
        return array, lambda grad: grad

    def apply(values: Array) -> Array:
        factor = factors(array.shape, dropout, seed)
        result: Array = values * factor.astype(array.dtype)
        return result

    return apply(array), apply


def dropping(vjp: Sublayer, dropout: float, seed: int) -> Sublayer:
    """Return a sublayer whose result loses some numbers before the residual."""
    if dropout == 0:
        return vjp

    def run(tokens: Array, residual: Array | None) -> tuple[Array, Pullback]:
        result, pullback = vjp(tokens, None)
        result, of_result = dropped(result, dropout, seed)
        if residual is not None:
            result += residual

        def back(grad_output: ArrayLike) -> LayerGradients:
            return pullback(of_result(np.asarray(grad_output)))

        return result, back

    return run
