"""What encoder and decoder have in common: stacks of layers, residuals and norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from attnpy import _checks
from attnpy.norms import LayerNorm, RMSNorm

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from attnpy import _typing
    from attnpy._typing import Array, CausalOptions, LayerOptions
    from attnpy.positions import Rotary

    class CallOptions(CausalOptions, total=False):
        """The options of an encoder's and of a decoder's calls."""

        sinks: ArrayLike | None
        seq_offsets: ArrayLike | None
        mixed: bool
        rotary: Rotary | None


Layer = TypeVar("Layer", bound="_typing.Model")


def make_layers(make: Callable[[], Layer], n_layers: int, shared: bool) -> list[Layer]:
    """Return so many new layers, or the same one as many times."""
    n_layers = _checks.count(n_layers, "n_layers")
    _checks.memory("n_layers", np.intp, (n_layers,))  # the list
    first = make()
    if _checks.flag(shared, "shared"):
        return [first] * n_layers
    n_bytes = sum(array.nbytes for array in first.parameters().values())
    _checks.memory("n_layers", np.uint8, (n_layers, n_bytes))
    return [first, *(make() for _ in range(n_layers - 1))]


def make_norm(
    kind: str, dim: int, eps: float, bias: bool, dtype: DTypeLike
) -> LayerNorm | RMSNorm:
    """Return a new norm of this kind."""
    if _checks.one_of(kind, "norm", ("layer", "rms")) == "rms":
        return RMSNorm(dim, eps=eps, dtype=dtype)
    return LayerNorm(dim, eps=eps, bias=bias, dtype=dtype)


def make_final_norm(
    wanted: bool | None, dim: int, options: LayerOptions
) -> LayerNorm | RMSNorm | None:
    """Return a norm as the layers', or None; by default one where they normalize first.

    Layers that normalize first leave their sums as they are.
    """
    if wanted is None:
        wanted = options.get("norm_first", False)
    if not _checks.flag(wanted, "final_norm"):
        return None
    return make_norm(
        options.get("norm", "layer"),
        dim,
        options.get("eps", 1e-5),
        options.get("bias", True),
        options.get("dtype", np.float32),
    )


def residual(
    tokens: Array,
    sublayer: Callable[[Array, Array | None], Array],
    norm: LayerNorm | RMSNorm,
    norm_first: bool,
    norm_after: LayerNorm | RMSNorm | None = None,
) -> Array:
    """Add what a sublayer makes of the tokens, with the norm before it or after.

    With `norm_after` what is added is normalized, too. The sublayer takes what goes
    into it, and what is to be added to its result.
    """
    if norm_first and norm_after is None:
        return sublayer(norm(tokens), tokens)
    result = sublayer(norm(tokens) if norm_first else tokens, None)
    if norm_after is not None:
        result = norm_after(result)
    return tokens + result if norm_first else norm(result, tokens)
