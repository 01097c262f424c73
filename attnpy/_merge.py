"""Combining partial results of `attention`, in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from attnpy._typing import Array


def merge(
    outputs: Sequence[ArrayLike], lses: Sequence[ArrayLike]
) -> tuple[Array, Array]:
    r"""Combine results of `attention` over disjoint sets of keys.

    Parameters
    ----------
    outputs : sequence of array_like, shape (..., H, Lq, Dv) each
        The outputs of the partial calls, at least one, all of one shape.
    lses : sequence of array_like, shape (..., H, Lq) each
        Their LSEs, from ``return_lse=True``.

    Returns
    -------
    output : ndarray, shape (..., H, Lq, Dv)
        The result of one call over all keys, up to rounding; in the promoted dtype of
        `outputs`.
    lse : ndarray, shape (..., H, Lq)
        Its LSE, in float32 (float64 where `output` is): it can be merged again.

    Raises
    ------
    TypeError
        If a dtype is not one that `attention` returns.
    ValueError
        If there is no part, or the parts' numbers or shapes differ.

    See Also
    --------
    attention : computes the parts.

    Notes
    -----
    With the parts' LSEs :math:`l_p` and outputs :math:`o_p`,

    .. math::

        l = \log \sum_p e^{l_p}, \quad o = \sum_p e^{l_p - l} o_p

    as in Dao et al., "FlashAttention" (2022), section 3.1. Parts with LSE -inf saw
    nothing and contribute nothing, whatever their output; if all parts have it, output
    is 0 and lse -inf. A NaN or +inf among the LSEs makes output and lse NaN. 16-bit
    outputs are merged in float32 and rounded once. A single part is returned unchanged.

    Pass a sink to exactly one of the partial calls.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 100, 64))
    >>> parts = [
    ...     attnpy.attention(query, key[part], value[part], return_lse=True)
    ...     for part in (slice(0, 60), slice(60, 100))
    ... ]
    >>> output, lse = attnpy.merge(*zip(*parts))
    >>> np.allclose(output, attnpy.attention(query, key, value))
    True
    """
    parts, logs = _arrays(outputs, "outputs"), _arrays(lses, "lses")
    _check(parts, logs)

    dtype = _promote([output.dtype for output in parts])
    real = np.float64 if dtype == np.float64 else np.float32
    logs = [lse.astype(real) for lse in logs]
    top = np.maximum.reduce(logs)
    with np.errstate(all="ignore"):  # NaN and infinity are results here
        # exp(lse - top), and 0 for the parts that saw nothing: -inf - -inf is NaN
        sums = [np.where(np.isneginf(lse), real(0), np.exp(lse - top)) for lse in logs]
        total = sum(sums[1:], start=sums[0])
        lse = np.asarray(top + np.log(total))
        total = np.where(total == 0, real(1), total)
        merged = _share(parts[0], sums[0] / total, logs[0])
        for part, part_sum, log in zip(parts[1:], sums[1:], logs[1:], strict=True):
            merged += _share(part, part_sum / total, log)
        return merged.astype(dtype), lse


def _share(output: Array, share: Array, lse: Array) -> Array:
    """Return output * share in lse's dtype, with 0 where the part saw nothing."""
    shared: Array = output.astype(lse.dtype) * share[..., np.newaxis]
    shared[np.isneginf(lse)] = 0
    return shared


def _arrays(given: Sequence[ArrayLike], name: str) -> list[Array]:
    return [
        _checks.array(part, f"{name}[{i}]")
        for i, part in enumerate(_checks.items(given, name, "arrays"))
    ]


def _check(outputs: list[Array], lses: list[Array]) -> None:
    if not outputs:
        raise ValueError("outputs: expected at least one part, got none")
    if len(outputs) != len(lses):
        raise ValueError(
            f"lses: expected one for each of the {len(outputs)} outputs, "
            f"got {len(lses)}"
        )
    shape = outputs[0].shape
    if not shape:
        raise ValueError("outputs[0]: expected shape (..., H, Lq, Dv), got ()")
    for i, (output, lse) in enumerate(zip(outputs, lses, strict=True)):
        if output.dtype.name not in ("float64", "float32", "float16", "bfloat16"):
            raise TypeError(
                f"outputs[{i}]: expected float64, float32, float16 or bfloat16, "
                f"got {output.dtype}"
            )
        if lse.dtype.name not in ("float64", "float32"):
            raise TypeError(f"lses[{i}]: expected float64 or float32, got {lse.dtype}")
        if output.shape != shape:
            raise ValueError(
                f"outputs[{i}]: expected shape {shape} as outputs[0], "
                f"got {output.shape}"
            )
        if lse.shape != shape[:-1]:
            raise ValueError(
                f"lses[{i}]: expected shape {shape[:-1]} to match outputs, "
                f"got {lse.shape}"
            )


def _promote(dtypes: list[np.dtype[Any]]) -> np.dtype[Any]:
    try:
        common: np.dtype[Any] = np.result_type(*dtypes)
    except TypeError as error:
        names = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(
            f"outputs: expected dtypes with a common one, got {names}"
        ) from error
    return common.newbyteorder("=")
