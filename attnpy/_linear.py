"""The dense product of all layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy import _attnpy

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnpy._typing import Array, Precision


def linear(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: str | None = None,
    times: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    precision: Precision = "promoted",
    num_threads: int | None = None,
) -> Array:
    r"""Multiply rows by a matrix, add a bias, apply an activation, and some more.

    Parameters
    ----------
    x : array_like, shape (..., K)
        Rows to multiply, with any axes before.
    weight : array_like, shape (K, M)
        The matrix; any strides.
    bias : array_like, shape (M,), optional
        Added to each row.
    activation : str, optional
        What is done to each number after that, a function of `attnpy.blocks`: "relu",
        "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2" or "tanh".
    times, residual : array_like, shape (..., M), optional
        What each number is then multiplied by, and what is then added to it.
    precision : {"promoted", "narrow", "wide"}, optional
        The dtype of the result: that to which `x` and `weight` promote; the weight's;
        or what the weight's is computed in, float32 or float64. With the last two an
        `x` of float32 may be rounded to a 16-bit weight's dtype, where products of
        those are faster.
    num_threads : int, optional
        At least 1; by default `get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray, shape (..., M)
        ``activation(x @ weight + bias) * times + residual``; integers become float64.
        16-bit numbers are computed in float32 and rounded once.

    Raises
    ------
    TypeError
        If a dtype is not one that `attention` computes with.
    ValueError
        If shapes do not fit together, or `activation` is another.
    MemoryError
        If the result or the scratch memory cannot be allocated.

    Notes
    -----
    The product runs on the micro-kernel of `attention`, and makes the same promise: the
    bits of a row depend on that row, the matrix and the bias only, not on the other
    rows, the number of threads, the memory layout or the instruction set. (The dot
    products for bfloat16 are the exception that `set_portable` explains.)

    Examples
    --------
    >>> from attnpy._linear import linear
    >>> linear([[1.0, 2.0]], [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [0.5, 0.5, 0.5])
    array([[1.5, 2.5, 3.5]])
    """
    return _attnpy.linear(
        x, weight, bias, activation, times, residual, precision, num_threads
    )
