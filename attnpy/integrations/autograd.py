"""Attention for HIPS autograd: `attnpy.attention` with its gradients.

This is the smallest adapter: a library needs one function for the results, and one for
the gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _keywords
from attnpy._attention import attention as numpy_attention
from attnpy._gradients import NAMES, attention_vjp
from attnpy._options import DIFFERENTIABLE, PUBLIC, SCALES

try:
    from autograd.builtins import tuple as traced_tuple
    from autograd.extend import defjvp_argnums, defvjp_argnums, primitive
    from autograd.tracer import isbox
except ImportError as error:
    raise ImportError(
        "attnpy.integrations.autograd needs the autograd package: pip install autograd"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Unpack

    from attnpy._typing import Array, PlanOptions

    # Gradients of the inputs from those of the results.
    Pullback = Callable[[tuple[Any, ...]], Iterator[Array | None]]

__all__ = ["attention"]


def __dir__() -> list[str]:
    return __all__


def attention(query: Any, key: Any, value: Any, **options: Unpack[PlanOptions]) -> Any:
    """Compute attention in a function that autograd differentiates.

    Parameters
    ----------
    query, key, value : array_like
        As for `attnpy.attention`; each may be differentiated.
    **options
        Those of `attnpy.attention`. `bias` and `sinks` may be differentiated, too.

    Returns
    -------
    output : ndarray, shape (..., H, Lq, Dv)
        As `attnpy.attention` returns it; with `return_weights` and `return_lse` a
        tuple. Gradients flow through `output` and `lse`.

    Raises
    ------
    TypeError
        If an option without a gradient is differentiated, such as `scale`; and as
        `attnpy.attention`.
    ValueError
        If `out` is given while something is differentiated, because gradients need the
        output unchanged; if `page_table` is, because pages have no gradients; and as
        `attnpy.attention`.
    NotImplementedError
        If a gradient is taken through the weights, twice, or forward.

    See Also
    --------
    attnpy.attention : explains the options.
    attnpy.attention_vjp : computes the gradients, from the output and LSE of the call,
        and only those that autograd needs.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd import grad
    >>> from attnpy.integrations.autograd import attention
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 4, 10, 16))  # (H, L, D) each
    >>> def loss(key):
    ...     return np.sum(attention(query, key, value, causal=True) ** 2)
    >>> grad(loss)(key).shape
    (4, 10, 16)
    """
    _keywords.refuse(options, PUBLIC - SCALES, "attention()")
    bias, sinks = options.pop("bias", None), options.pop("sinks", None)
    for name, option in options.items():
        if isbox(option):
            raise TypeError(
                f"{name}: expected a constant, got a differentiated value; there are "
                f"gradients of {', '.join(NAMES)}"
            )
    inputs = (query, key, value, bias, sinks)
    if options.get("out") is not None and any(map(isbox, inputs)):
        raise ValueError(
            "out: expected None where something is differentiated, got an array"
        )
    if options.get("page_table") is not None and any(map(isbox, inputs)):
        raise ValueError(
            "page_table: expected None where something is differentiated, got an array"
        )
    return_lse = _checks.flag(options.pop("return_lse", False), "return_lse")
    output, *weights, lse = _attention(*inputs, dict(options))
    results = (output, *weights, lse) if return_lse else (output, *weights)
    return traced_tuple(results) if len(results) > 1 else output


def _forward(
    query: Any, key: Any, value: Any, bias: Any, sinks: Any, options: dict[str, Any]
) -> tuple[Array, ...]:
    """Return output, weights if wanted, and LSE."""
    results: tuple[Array, ...] = numpy_attention(
        query, key, value, bias=bias, sinks=sinks, return_lse=True, **options
    )
    return results


def _backward(
    places: tuple[int, ...],
    results: tuple[Array, ...],
    inputs: tuple[Any, ...],
    _keywords: dict[str, Any],
) -> Pullback:
    """Return the function from gradients of results to those of these inputs."""
    *arrays, options = inputs
    known = {name: option for name, option in options.items() if name in DIFFERENTIABLE}

    def pullback(gradients: tuple[Any, ...]) -> Iterator[Array | None]:
        return _gradients(gradients, results, arrays, places, known)

    return pullback


def _gradients(
    of_results: tuple[Any, ...],
    results: tuple[Array, ...],
    arrays: list[Any],
    places: tuple[int, ...],
    options: dict[str, Any],
) -> Iterator[Array | None]:
    """Return the gradients of the arrays at these places."""
    if any(map(isbox, (*of_results, *results, *arrays))) or isbox(of_results):
        raise NotImplementedError("attention: expected one derivative, got a second")
    if any(np.any(weights) for weights in of_results[1:-1]):
        raise NotImplementedError(
            "attention: expected a function of output and lse, got one of the weights"
        )
    query, key, value, bias, sinks = arrays
    gradients = attention_vjp(
        of_results[0],
        query,
        key,
        value,
        bias=bias,
        sinks=sinks,
        output=results[0],
        lse=results[-1],
        grad_lse=of_results[-1],
        wanted=[NAMES[place] for place in places],
        **options,
    )
    return (gradients[place] for place in places)


def _forward_mode(*_arguments: Any) -> Any:
    raise NotImplementedError(
        "attention: expected reverse mode, as in autograd.grad, got forward mode"
    )


_attention = primitive(_forward)
defvjp_argnums(_attention, _backward)
defjvp_argnums(_attention, _forward_mode)
