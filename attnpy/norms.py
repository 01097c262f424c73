"""The norms of all layers: of tokens in blocks, of queries and keys in heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnpy import _attnpy, _checks, _dtypes, _parameters
from attnpy._options import Norm

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Array

__all__ = ["LayerNorm", "RMSNorm"]


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
    __setattr__ = _parameters.set_attribute

    def __call__(self, x: ArrayLike, residual: ArrayLike | None = None) -> Array:
        """Return the normalized tokens.

        Parameters
        ----------
        x : array_like, shape (..., dim)
        residual : array_like, shape (..., dim), optional
            Added to x first; of the same shape.

        Returns
        -------
        ndarray, shape (..., dim)
            In the promoted dtype of x and `weight`; integers become float64.

        Raises
        ------
        TypeError, ValueError
            If x has another dtype or size.
        """
        return _attnpy.normalize(x, residual, norm_arguments(self, "norm"), None)


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
    __setattr__ = _parameters.set_attribute

    def __call__(self, x: ArrayLike, residual: ArrayLike | None = None) -> Array:
        """Return the normalized tokens.

        Parameters
        ----------
        x : array_like, shape (..., dim)
        residual : array_like, shape (..., dim), optional
            Added to x first; of the same shape.

        Returns
        -------
        ndarray, shape (..., dim)
            In the promoted dtype of x and `weight`; integers become float64.

        Raises
        ------
        TypeError, ValueError
            If x has another dtype or size.
        """
        return _attnpy.normalize(x, residual, norm_arguments(self, "norm"), None)


def norm_arguments(norm: LayerNorm | RMSNorm, name: str) -> Norm:
    """Return what the C module wants to know of a norm."""
    if isinstance(norm, LayerNorm):
        return Norm(norm.weight, norm.bias, norm.eps, centre=True)
    if isinstance(norm, RMSNorm):
        return Norm(norm.weight, None, norm.eps, centre=False)
    raise TypeError(
        f"{name}: expected an attnpy.blocks.RMSNorm or LayerNorm, "
        f"got {type(norm).__name__}"
    )
