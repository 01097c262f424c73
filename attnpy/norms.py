"""The norms of all layers: of tokens in blocks, of queries and keys in heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import (
    _attnpy,
    _checks,
    _dtypes,
    _keywords,
    _parameters,
    _pickles,
    _repr,
    _vjp,
)
from attnpy._options import Norm
from attnpy._vjp import LayerGradients

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Array
    from attnpy._vjp import Pullback

__all__ = ["LayerNorm", "RMSNorm"]


def __dir__() -> list[str]:
    return __all__


def norm_vjp(
    self: LayerNorm | RMSNorm,
    x: ArrayLike,
    residual: ArrayLike | None = None,
    *,
    num_threads: int | None = None,
) -> tuple[Array, Pullback]:
    r"""Return the output of a call, and the pullback of its gradients.

    Parameters
    ----------
    x, residual, num_threads
        As in a call.

    Returns
    -------
    output : ndarray, shape (..., dim)
        With the same bits as a call.
    pullback : callable
        Takes the gradient with respect to the output, and returns an
        `attnpy.layers.LayerGradients`; its `x` is the gradient with respect to
        `residual`, too. It keeps the sum of `x` and `residual`.

    Raises
    ------
    TypeError, ValueError
        As a call; if the parameters are not float32 or float64.

    Notes
    -----
    With the normalized numbers :math:`n = (x - mean) / s`, where :math:`s = \sqrt{var +
    eps}`, and the gradient :math:`g` of the output,

    .. math::

        dx = (g w - \operatorname{mean}(g w)
        - n \operatorname{mean}(g w \cdot n)) / s, \quad
        dw = \sum g n, \quad dbias = \sum g

    where means are over a token, and sums over tokens. An RMSNorm has no means of x and
    of :math:`g w`, and :math:`s = \sqrt{\operatorname{mean}(x^2) + eps}`.
    """
    arguments = norm_arguments(self, "norm")
    _vjp.check_trainable(self, tuple(self.parameters()))
    tokens = _vjp.floating(x, "x")
    total = tokens
    if residual is not None:
        added = _vjp.floating(residual, "residual")
        if added.shape != tokens.shape:
            raise ValueError(
                f"residual: expected x's shape {tokens.shape}, got {added.shape}"
            )
        total = tokens + added
    output = _attnpy.normalize(total, None, arguments, num_threads)
    checked = _vjp.of_output(output)

    def pullback(grad_output: ArrayLike) -> LayerGradients:
        grad = checked(grad_output)
        of_x, weight, bias = _attnpy.normalize_vjp(grad, total, arguments, num_threads)
        parameters = _vjp.of_parameters(self, {"weight": weight, "bias": bias})
        return LayerGradients(of_x.astype(tokens.dtype, copy=False), parameters)

    return output, pullback


@_keywords.answering
class LayerNorm:
    r"""Layer normalization: each token gets mean 0 and variance 1, then a scale.

    Parameters
    ----------
    dim : int
        The size of a token.
    eps : float, optional
        Added to the variance; more than 0.
    bias : bool, optional
        Add a bias.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.

    Attributes
    ----------
    weight : ndarray, shape (dim,)
        1 at first.
    bias : ndarray, shape (dim,), or None
        0 at first; None without a bias.
    eps : float
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters; nothing has been allocated then.

    Notes
    -----
    .. math::

        \frac{x - \operatorname{mean}(x)}{\sqrt{\operatorname{var}(x) + eps}}
        \cdot weight + bias

    from Ba, Kiros and Hinton, "Layer Normalization" (2016); the variance is the mean of
    the squares, as in PyTorch. 16-bit numbers are computed in float32 and rounded once.
    A row's bits depend on the row only.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import LayerNorm
    >>> norm = LayerNorm(4)
    >>> norm(np.array([[1, 2, 3, 4]], np.float32)).round(3)
    array([[-1.342, -0.447,  0.447,  1.342]], dtype=float32)
    """

    weight: Array
    bias: Array | None
    eps: float

    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
    ) -> None:
        dim, dtype = _checks.count(dim, "dim"), _dtypes.floating(dtype)
        _checks.memory("LayerNorm", dtype, (dim,), (dim,))
        self.eps = _checks.above(eps, "eps", 0)
        self.weight = np.ones(dim, dtype)
        self.bias = _parameters.zeros(_checks.flag(bias, "bias"), dim, dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    vjp = norm_vjp

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        has_bias = self.bias is not None
        return {"dim": len(self.weight), "eps": self.eps, "bias": has_bias}

    __repr__ = _repr.shows(_shown)

    def __call__(
        self,
        x: ArrayLike,
        residual: ArrayLike | None = None,
        *,
        num_threads: int | None = None,
    ) -> Array:
        """Return the normalized tokens.

        Parameters
        ----------
        x : array_like, shape (..., dim)
        residual : array_like, shape (..., dim), optional
            Added to x first; of the same shape.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (..., dim)
            In the promoted dtype of x and `weight`; integers become float64.

        Raises
        ------
        TypeError, ValueError
            If x has another dtype or size.
        """
        arguments = norm_arguments(self, "norm")
        return _attnpy.normalize(x, residual, arguments, num_threads)


@_keywords.answering
class RMSNorm:
    r"""Root mean square normalization: each token gets mean square 1, then a scale.

    Parameters
    ----------
    dim : int
        The size of a token.
    eps : float, optional
        Added to the mean square; more than 0.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.

    Attributes
    ----------
    weight : ndarray, shape (dim,)
        1 at first.
    eps : float
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters; nothing has been allocated then.

    Notes
    -----
    :math:`x / \sqrt{\operatorname{mean}(x^2) + eps} \cdot weight`, from Zhang and
    Sennrich, "Root Mean Square Layer Normalization" (2019). 16-bit numbers are computed
    in float32 and rounded once. A row's bits depend on the row only.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import RMSNorm
    >>> norm = RMSNorm(4)
    >>> norm(np.array([[1, 2, 3, 4]], np.float32)).round(3)
    array([[0.365, 0.73 , 1.095, 1.461]], dtype=float32)
    """

    weight: Array
    eps: float

    def __init__(
        self, dim: int, *, eps: float = 1e-5, dtype: DTypeLike = np.float32
    ) -> None:
        dim, dtype = _checks.count(dim, "dim"), _dtypes.floating(dtype)
        _checks.memory("RMSNorm", dtype, (dim,))
        self.eps = _checks.above(eps, "eps", 0)
        self.weight = np.ones(dim, dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    vjp = norm_vjp

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        return {"dim": len(self.weight), "eps": self.eps}

    __repr__ = _repr.shows(_shown)

    def __call__(
        self,
        x: ArrayLike,
        residual: ArrayLike | None = None,
        *,
        num_threads: int | None = None,
    ) -> Array:
        """Return the normalized tokens.

        Parameters
        ----------
        x : array_like, shape (..., dim)
        residual : array_like, shape (..., dim), optional
            Added to x first; of the same shape.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (..., dim)
            In the promoted dtype of x and `weight`; integers become float64.

        Raises
        ------
        TypeError, ValueError
            If x has another dtype or size.
        """
        arguments = norm_arguments(self, "norm")
        return _attnpy.normalize(x, residual, arguments, num_threads)


def norm_arguments(norm: LayerNorm | RMSNorm, name: str) -> Norm:
    """Return a norm's arguments for the C module."""
    if isinstance(norm, LayerNorm):
        return Norm(norm.weight, norm.bias, norm.eps, centre=True)
    if isinstance(norm, RMSNorm):
        return Norm(norm.weight, None, norm.eps, centre=False)
    raise TypeError(
        f"{name}: expected an attnpy.blocks.RMSNorm or LayerNorm, "
        f"got {type(norm).__name__}"
    )
