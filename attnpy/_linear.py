"""The dense product of all layers, forwards and backwards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attnpy import _attnpy

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnpy._typing import Array, Precision
    from attnpy.norms import LayerNorm, RMSNorm


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
    r"""Multiply rows by a matrix, add a bias, apply an activation, and more.

    Parameters
    ----------
    x : array_like, shape (..., K)
        Rows to multiply, with any leading axes.
    weight : array_like, shape (K, M)
        The matrix; any strides.
    bias : array_like, shape (M,), optional
        Added to each row.
    activation : str, optional
        Applied to each number after that, a function of `attnpy.blocks`: "relu",
        "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2" or "tanh".
    times, residual : array_like, shape (..., M), optional
        Each number is then multiplied by `times`, and `residual` is added.
    precision : {"promoted", "narrow", "wide"}, optional
        The dtype of the result: the one to which `x` and `weight` promote; the
        weight's; or that of computations with the weight, float32 or float64. With the
        last two, a float32 `x` may be rounded to a 16-bit weight's dtype if products of
        that are faster.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

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
        If shapes do not fit together, or `activation` is none of these.
    MemoryError
        If the result or the scratch memory cannot be allocated.

    Notes
    -----
    The product runs on the micro-kernel of `attention`, and makes the same promise: the
    bits of a row depend only on that row, the matrix and the bias, not on the other
    rows, the number of threads, the memory layout or the instruction set. (bfloat16
    products are the exception that `set_portable` explains.)

    Examples
    --------
    >>> from attnpy._linear import linear
    >>> linear([[1.0, 2.0]], [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [0.5, 0.5, 0.5])
    array([[1.5, 2.5, 3.5]])
    """
    return _attnpy.linear(
        x, weight, bias, activation, times, residual, precision, num_threads
    )


def linear_vjp(
    grad: Array,
    x: Array,
    weight: Array,
    bias: Array | None,
    *,
    add_to: Array | None = None,
    num_threads: int | None = None,
) -> tuple[Array, Array, Array | None]:
    r"""Return the gradients of `linear` with respect to x, the matrix and the bias.

    Parameters
    ----------
    grad : ndarray, shape (..., M)
        The gradient with respect to the product.
    x : ndarray, shape (..., K)
        Its rows, with the same axes before.
    weight : ndarray, shape (K, M)
    bias : ndarray, shape (M,), or None
    add_to : ndarray, shape (..., K), optional
        Added to the gradient with respect to x.
    num_threads : int, optional
        As in `linear`.

    Returns
    -------
    grad_x, grad_weight, grad_bias : ndarray
        In the dtypes of x and the parameters; the last is None without a bias.

    Notes
    -----
    With :math:`Y = X W + b` and the gradient :math:`G` of :math:`Y`,

    .. math:: dX = G W^T, \quad dW = X^T G, \quad db = \sum_i G_i

    All three run as products on the kernel of `linear`: sums over rows are in chains of
    128 from the first row on, so they have the same bits for any number of threads.
    """
    rows, grad_rows = _rows(x), _rows(grad)
    grad_x = linear(grad, weight.T, residual=add_to, num_threads=num_threads)
    grad_weight = linear(rows.T, grad_rows, num_threads=num_threads)
    grad_bias = None
    if bias is not None:
        ones = np.ones((1, len(grad_rows)), grad.dtype)
        grad_bias = linear(ones, grad_rows, num_threads=num_threads)[0]
        grad_bias = grad_bias.astype(bias.dtype, copy=False)
    return (
        grad_x.astype(x.dtype, copy=False),
        grad_weight.astype(weight.dtype, copy=False),
        grad_bias,
    )


def project_heads(
    tokens: Array,
    weight: Array,
    bias: Array | None,
    n_heads: int,
    num_threads: int | None,
) -> Array:
    """Return tokens @ weight + bias, cut into heads: a view of (..., H, L, D)."""
    if weight.shape[-1] % n_heads:
        raise ValueError(
            f"weight: expected as many columns for each of the {n_heads} heads, "
            f"got shape {weight.shape}"
        )
    return cut_into_heads(
        linear(tokens, weight, bias, num_threads=num_threads), n_heads
    )


def cut_into_heads(columns: Array, n_heads: int) -> Array:
    """Return a view (..., H, L, D) of the columns (..., L, H * D) of all heads."""
    shape = *columns.shape[:-1], n_heads, columns.shape[-1] // n_heads
    return columns.reshape(shape).swapaxes(-3, -2)


def joined_heads(heads: Array) -> Array:
    """Return heads (..., H, L, D) as columns (..., L, H * D): a view, if it can be."""
    columns = heads.swapaxes(-3, -2)
    return columns.reshape(*columns.shape[:-2], columns.shape[-2] * columns.shape[-1])


def is_together(norm: LayerNorm | RMSNorm | None, heads: Array) -> bool:
    """Tell whether a norm takes all heads of a token together, not one by one."""
    return norm is not None and len(norm.weight) != heads.shape[-1]


def normalized_heads(
    norm: LayerNorm | RMSNorm | None, heads: Array, num_threads: int | None
) -> Array:
    """Return heads (..., H, L, D) after a norm of each, or of all together."""
    if norm is None:
        return heads
    if not is_together(norm, heads):
        return norm(heads, num_threads=num_threads)
    columns = norm(joined_heads(heads), num_threads=num_threads)
    return cut_into_heads(columns, heads.shape[-3])


def _rows(array: Array) -> Array:
    """Return an array (..., K) as (T, K)."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
