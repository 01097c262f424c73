"""Attention over the patches of a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks
from attnpy._labels import checked_weights
from attnpy.plot import _canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

__all__ = ["attention_rollout", "patch_map"]


def patch_map(
    weights: ArrayLike,
    image: ArrayLike | None = None,
    *,
    ax: Axes | None = None,
    opacity: float | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    title: str | None = None,
) -> Axes:
    """Draw attention over the patches of a picture, on top of the picture.

    Parameters
    ----------
    weights : array_like, shape (rows, columns)
        A weight for each patch, as many as the model's `grid` says: those of a query
        such as the class token, without that for itself. None below 0. NaN is drawn in
        red.
    image : array_like of uint8, shape (H, W, 3), optional
        The picture that the model has seen, which is shown below.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.
    opacity : float, optional
        Of the weights, above 0 and at most 1; by default 0.6 over an image, else 1.
    vmin, vmax : float, optional
        The weights at the ends of the colour scale; by default 0 and the largest
        weight. The colour bar has an arrow if there are weights beyond.
    title : str, optional
        The title.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the image.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError
        If `weights` are not real numbers, or `image` is not of dtype uint8.
    ValueError
        If a shape, a weight, a limit or `opacity` is not as described.

    See Also
    --------
    attention_rollout : what reaches a token through all layers.
    heat_map : all queries and keys.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import ImageEncoder
    >>> from attnpy.plot import patch_map
    >>> rng = np.random.default_rng(0)
    >>> model = ImageEncoder(2, 16, 4, 64, image_size=32, patch_size=8, rng=rng)
    >>> picture = rng.integers(0, 256, (32, 32, 3), np.uint8)
    >>> result = model(picture / 255, return_weights=True, layers=-1)
    >>> of_class = result.weights[0].mean(axis=0)[0, 1:]  # mean of heads
    >>> ax = patch_map(of_class.reshape(model.grid), picture)
    >>> ax.images[-1].get_array().shape
    (4, 4)
    """
    numbers = checked_weights(weights, {2: "(rows, columns)"})
    _canvas.check_title(title)
    strength = None if opacity is None else _checked_opacity(opacity)
    picture = None if image is None else _checked_picture(image)
    scale = _canvas.weight_scale(numbers, vmin, vmax)
    ax, cell = _canvas.image_axes(ax, numbers.shape, None, None)
    rows, columns = numbers.shape
    shape: Any = "equal"  # patches are square, as those of the picture are
    if picture is not None:
        height, width = picture.shape[:2]
        below = ax.imshow(picture, extent=(-0.5, columns - 0.5, rows - 0.5, -0.5))
        below.set_zorder(1.7)
        shape = height * columns / (width * rows)
    cells = _canvas.draw_cells(ax, numbers, scale, shape_of_cells=shape)
    cells.set_alpha(0.6 if strength is None and picture is not None else strength)
    ax.set_xticks([])
    ax.set_yticks([])
    label = _canvas.bar_label(scale, _canvas.is_crowded(cell, ax.figure.dpi))
    ax.figure.colorbar(cells, ax=ax, label=label, extend=scale.extend)
    _canvas.set_title(ax, title)
    return ax


def attention_rollout(weights: ArrayLike) -> NDArray[np.float64]:
    r"""Return how much of each token reaches each other through all layers.

    Parameters
    ----------
    weights : array_like, shape (layers, H, L, L) or (layers, B, H, L, L)
        Of all layers' self-attention, as models return them with `return_weights`.

    Returns
    -------
    ndarray of float64, shape (L, L) or (B, L, L)
        Rows sum to 1. That of the class token, without its first number, is for
        `patch_map`.

    Raises
    ------
    TypeError
        If `weights` are not real numbers.
    ValueError
        If the shape is another, or a weight is below 0 or infinite.

    Notes
    -----
    With :math:`A_l`, the mean of layer l's heads, and the residual as the identity,

    .. math:: \prod_l \tfrac{1}{2} (A_l + I)

    from Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (2020), the
    last layer first.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.plot import attention_rollout
    >>> weights = np.full((12, 4, 5, 5), 0.2)  # 12 layers of 4 heads, and 5 tokens
    >>> attention_rollout(weights).sum(axis=-1)
    array([1., 1., 1., 1., 1.])
    """
    numbers = checked_weights(weights)
    if numbers.ndim not in (4, 5) or numbers.shape[-1] != numbers.shape[-2]:
        raise ValueError(
            "weights: expected (layers, H, L, L) or (layers, B, H, L, L), got "
            f"{numbers.shape}"
        )
    if 0 in numbers.shape[:1] + numbers.shape[-3:]:
        raise ValueError(f"weights: expected at least one layer, got {numbers.shape}")
    means = numbers.mean(axis=-3)  # (layers, ..., L, L)
    flow: NDArray[np.float64] = np.broadcast_to(
        np.eye(numbers.shape[-1]), means.shape[1:]
    )
    for mean in means:
        flow = (mean @ flow + flow) / 2
    return flow


def _checked_opacity(opacity: float) -> float:
    strength = _checks.above(opacity, "opacity", 0)
    if strength > 1:
        raise ValueError(f"opacity: expected at most 1, got {opacity}")
    return strength


def _checked_picture(image: ArrayLike) -> NDArray[np.uint8]:
    picture: NDArray[Any] = _checks.array(image, "image")
    if picture.dtype != np.uint8:
        raise TypeError(f"image: expected dtype uint8, got {picture.dtype}")
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ValueError(f"image: expected (H, W, 3), got {picture.shape}")
    return picture
