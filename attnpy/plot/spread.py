"""How widely heads attend: the entropy of weights, as numbers and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnpy._labels import checked_labels, checked_weights
from attnpy.plot import _canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

    from attnpy.plot._canvas import Labels, Scale, Texts

__all__ = ["entropy", "entropy_bits"]


def entropy_bits(weights: ArrayLike) -> NDArray[np.float64]:
    r"""Return the entropy of each row of weights: 0 for one key, log2(n) for n alike.

    Parameters
    ----------
    weights : array_like, shape (..., Lk)
        The weights of a query for each key; none below 0. A row need not sum to 1, for
        example with sinks: it is divided by its sum.

    Returns
    -------
    ndarray, shape (...)
        The entropies in bits, in float64; NaN for a row of zeros, from a query that may
        see nothing, and for a row with a NaN.

    Raises
    ------
    TypeError
        If `weights` are not real numbers.
    ValueError
        If they have no axis, or a weight is below 0 or infinite.

    See Also
    --------
    entropy : a picture of it.

    Notes
    -----
    For a row :math:`w_j` that sums to 1,

    .. math::

        -\sum_j w_j \log_2 w_j

    with :math:`0 \log 0 = 0`, as in Shannon, "A Mathematical Theory of Communication"
    (1948), section 6.

    Examples
    --------
    >>> from attnpy.plot import entropy_bits
    >>> entropy_bits([[1, 0, 0, 0], [0.5, 0, 0.5, 0], [0.25, 0.25, 0.25, 0.25]])
    array([0., 1., 2.])
    """
    weights = checked_weights(weights)
    if weights.ndim == 0:
        raise ValueError("weights: expected (..., Lk), got ()")
    with np.errstate(invalid="ignore"):  # a row of zeros becomes NaN
        shares = weights / weights.max(axis=-1, keepdims=True, initial=0)
        shares /= shares.sum(axis=-1, keepdims=True)
    logs = np.log2(np.where(shares == 0, 1, shares))
    bits: NDArray[np.float64] = 0 - (shares * logs).sum(axis=-1)
    return np.where(weights.any(axis=-1), bits, np.nan)


def entropy(
    weights: ArrayLike,
    *,
    ax: Axes | None = None,
    head_labels: Labels = None,
    vmin: float | None = None,
    vmax: float | None = None,
    title: str | None = None,
) -> Axes:
    """Draw how widely each head attends: the mean entropy of its queries' weights.

    Parameters
    ----------
    weights : array_like, shape (Lq, Lk), (H, Lq, Lk) or (layers, H, Lq, Lk)
        The weight of each query for each key; none below 0. Queries that may see
        nothing are left out.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.
    head_labels : iterable, length H, optional
        The heads' names; by default their indices.
    vmin, vmax : float, optional
        The bits at the ends of the y axis; with layers, of the colour scale. By default
        from 0, wide enough to show everything.
    title : str, optional
        The title.

    Returns
    -------
    matplotlib.axes.Axes
        The axes: a bar for each head, with a line at the entropy of equal weights,
        log2(Lk); with layers an image, heads on the x axis and layers on the y axis.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError
        If `weights` are not real numbers, or `head_labels` is a single string.
    ValueError
        If a shape, a number of labels, a weight or a limit is not as described.

    See Also
    --------
    entropy_bits : the numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.plot import entropy
    >>> ax = entropy([np.eye(4), np.full((4, 4), 0.25)])
    >>> [float(bar.get_height()) for bar in ax.patches]
    [0.0, 2.0]
    """
    weights = checked_weights(
        weights, {2: "(Lq, Lk)", 3: "(H, Lq, Lk)", 4: "(layers, H, Lq, Lk)"}
    )
    _canvas.check_title(title)
    if weights.ndim == 2:
        weights = weights[np.newaxis]
    bits = _mean_over_queries(weights)  # (H,) or (layers, H)
    heads = None
    if head_labels is not None:
        heads = checked_labels("head_labels", head_labels, bits.shape[-1])
    uniform = float(np.log2(weights.shape[-1]))
    top = 1.15 * max(uniform, 0.1) if bits.ndim == 1 and vmax is None else vmax
    label = "mean entropy (bits)"
    scale = _canvas.weight_scale(bits, vmin, top, label, colors="viridis")
    if bits.ndim == 1:
        ax = _draw_bars(ax, bits, heads, scale, uniform)
    else:
        ax = _draw_image(ax, bits, heads, scale)
    _canvas.set_title(ax, title, legend=bits.ndim == 1)
    return ax


def _draw_bars(
    ax: Axes | None,
    bits: NDArray[np.float64],
    heads: Texts,
    scale: Scale,
    uniform: float,
) -> Axes:
    """Draw entropies (H,) as bars, with a line at that of equal weights."""
    n_heads = len(bits)
    if not _canvas.is_given(ax):
        ax = _canvas.new_figure((min(9, 0.35 * n_heads), 2), (2.3, 0.9)).add_subplot()
    ax.bar(np.arange(n_heads), bits)
    ax.axhline(uniform, color="0.5", linestyle="--", label="equal weights")
    ax.set_ylim(scale.low, scale.high)
    ax.set_xlim(-0.7, n_heads - 0.3)
    width = _canvas.size(ax)[1] / n_heads
    _canvas.set_x_ticks(ax, n_heads, heads, width, "medium")
    ax.set_xlabel("head")
    ax.set_ylabel(scale.label)
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def _draw_image(
    ax: Axes | None, bits: NDArray[np.float64], heads: Texts, scale: Scale
) -> Axes:
    """Draw entropies (layers, H) as an image."""
    ax, cell = _canvas.image_axes(ax, bits.shape, None, heads)
    image = _canvas.draw_cells(ax, bits, scale)
    _canvas.set_ticks(ax, bits.shape, None, heads, cell)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    label = _canvas.bar_label(scale, _canvas.is_crowded(cell, ax.figure.dpi))
    ax.figure.colorbar(image, ax=ax, label=label, extend=scale.extend)
    _canvas.write_values(ax, image, cell, None)
    return ax


def _mean_over_queries(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean entropy of the queries that see something, NaN without any."""
    seen = weights.any(axis=-1)  # (..., Lq)
    bits = np.where(seen, entropy_bits(weights), 0)
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = bits.sum(axis=-1) / seen.sum(axis=-1)
    return means
