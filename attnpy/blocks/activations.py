"""Activations: the functions between the products of a feed-forward network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy import _attnpy

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnpy._typing import Array, PlainActivation


def relu(x: ArrayLike, *, num_threads: int | None = None) -> Array:
    """Return the positive part, max(x, 0).

    Parameters
    ----------
    x : array_like, any shape
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers), as for the other functions here.

    Examples
    --------
    >>> from attnpy.blocks import relu
    >>> relu([-1.0, 0.0, 2.0])
    array([0., 0., 2.])
    """
    return _attnpy.activate(x, "relu", None, num_threads)


def gelu(x: ArrayLike, *, num_threads: int | None = None) -> Array:
    r"""Return the Gaussian error linear unit, exact.

    Parameters
    ----------
    x : array_like, any shape
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers).

    See Also
    --------
    gelu_tanh : an approximation.

    Notes
    -----
    :math:`x \Phi(x) = x \operatorname{erfc}(-x / \sqrt 2) / 2`, from Hendrycks and
    Gimpel, "Gaussian Error Linear Units (GELUs)" (2016). With erfc instead of 1 + erf
    nothing cancels where x is negative: the relative error is some 6 rounding units in
    float32, 12 in float64, times 1 + x^2 / 2 where x is negative.

    Examples
    --------
    >>> from attnpy.blocks import gelu
    >>> gelu([-1.0, 0.0, 1.0]).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    return _attnpy.activate(x, "gelu", None, num_threads)


def gelu_tanh(x: ArrayLike, *, num_threads: int | None = None) -> Array:
    r"""Return the Gaussian error linear unit, approximated with a tanh.

    Parameters
    ----------
    x : array_like, any shape
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers).

    Notes
    -----
    :math:`x (1 + \tanh(\sqrt{2 / \pi} (x + 0.044715 x^3))) / 2`, from Hendrycks and
    Gimpel (2016), section 2; within 0.0005 of `gelu`. GPT-2 was trained with it.

    Examples
    --------
    >>> from attnpy.blocks import gelu_tanh
    >>> gelu_tanh([-1.0, 0.0, 1.0]).round(4)
    array([-0.1588,  0.    ,  0.8412])
    """
    return _attnpy.activate(x, "gelu_tanh", None, num_threads)


def silu(x: ArrayLike, *, num_threads: int | None = None) -> Array:
    r"""Return the sigmoid linear unit, also called swish.

    Parameters
    ----------
    x : array_like, any shape
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers).

    Notes
    -----
    :math:`x / (1 + e^{-x})`, from Hendrycks and Gimpel (2016).

    Examples
    --------
    >>> from attnpy.blocks import silu
    >>> silu([-1.0, 0.0, 1.0]).round(4)
    array([-0.2689,  0.    ,  0.7311])
    """
    return _attnpy.activate(x, "silu", None, num_threads)


def quick_gelu(x: ArrayLike, *, num_threads: int | None = None) -> Array:
    r"""Return the Gaussian error linear unit, approximated with a sigmoid.

    Parameters
    ----------
    x : array_like, any shape
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers).

    Notes
    -----
    :math:`x / (1 + e^{-1.702 x})`, from Hendrycks and Gimpel (2016), section 2; within
    0.021 of `gelu`. CLIP was trained with it.

    Examples
    --------
    >>> from attnpy.blocks import quick_gelu
    >>> quick_gelu([-1.0, 0.0, 1.0]).round(4)
    array([-0.1542,  0.    ,  0.8458])
    """
    return _attnpy.activate(x, "quick_gelu", None, num_threads)


def relu2(x: ArrayLike, *, num_threads: int | None = None) -> Array:
    """Return the square of the positive part, max(x, 0) ** 2.

    Parameters
    ----------
    x : array_like, any shape
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers).

    Notes
    -----
    From So et al., "Primer: Searching for Efficient Transformers for Language Modeling"
    (2021).

    Examples
    --------
    >>> from attnpy.blocks import relu2
    >>> relu2([-1.0, 0.0, 3.0])
    array([0., 0., 9.])
    """
    return _attnpy.activate(x, "relu2", None, num_threads)


def tanh(x: ArrayLike, *, num_threads: int | None = None) -> Array:
    """Return the hyperbolic tangent.

    Parameters
    ----------
    x : array_like, any shape
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers).

    Notes
    -----
    As `numpy.tanh`, but with the same bits on every machine.

    Examples
    --------
    >>> from attnpy.blocks import tanh
    >>> tanh([-1.0, 0.0, 1.0]).round(4)
    array([-0.7616,  0.    ,  0.7616])
    """
    return _attnpy.activate(x, "tanh", None, num_threads)


def activation_vjp(
    grad_output: ArrayLike,
    x: ArrayLike,
    activation: PlainActivation | None,
    *,
    num_threads: int | None = None,
) -> Array:
    r"""Return the gradient of an activation's argument.

    Parameters
    ----------
    grad_output : array_like, any shape
        The gradient with respect to the activation's result.
    x : array_like, shape of grad_output
        The activation's argument.
    activation : {"relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2", "tanh"}
        Its name; or None, the identity.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray, shape of x
        In x's dtype (float64 for integers); grad_output is converted to it. 16-bit
        numbers are computed in float32 and rounded once.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, dtype or shape, or the name is none of these.

    Notes
    -----
    The result is grad_output times the derivative at x, with one more rounding. With
    :math:`\Phi` and :math:`\varphi` the normal distribution function and its density,
    and :math:`\sigma(v) = 1 / (1 + e^{-v})`, the derivatives are

    ============ =================================================================
    "relu"       1 where x > 0, else 0
    "gelu"       :math:`\Phi(x) + x \varphi(x)`
    "silu"       :math:`\sigma(x) + x \sigma(x) \sigma(-x)`
    "quick_gelu" :math:`\sigma(v) + v \sigma(v) \sigma(-v)`, v = 1.702 x
    "gelu_tanh"  :math:`\sigma(v) + v' x \sigma(v) \sigma(-v)` with
                 :math:`v = \sqrt{8 / \pi} (x + 0.044715 x^3)` and
                 :math:`v' = \sqrt{8 / \pi} (1 + 0.134145 x^2)`
    "relu2"      2 max(x, 0)
    "tanh"       :math:`4 e^{-2|x|} / (1 + e^{-2|x|})^2`
    ============ =================================================================

    from the formulas of the functions here. For "tanh" it is :math:`1 - \tanh^2 x`
    without the cancellation. Each takes its limit where x is infinite, and never
    computes 0 times infinity. Where x or grad_output is NaN, so is the gradient. A
    number's bits depend only on x and grad_output.

    Examples
    --------
    >>> from attnpy.blocks import activation_vjp
    >>> activation_vjp([1.0, 1.0, 2.0], [-1.0, 0.0, 1.0], "gelu").round(4)
    array([-0.0833,  0.5   ,  2.1666])
    """
    return _attnpy.activate_vjp(grad_output, x, activation, None, num_threads)
