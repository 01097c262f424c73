"""Pictures of attention, drawn with matplotlib: ``pip install 'attnpy[plot]'``.

In each of them the keys are on the x axis and the queries on the y axis, from the top.
matplotlib is imported when the first picture is drawn, not before. A function draws
into the axes or figure that it is given, or into a new figure of pyplot; it shows
nothing and changes none of matplotlib's settings. Labels and titles are shown as they
are, never read as mathematics.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from attnpy import _checks
from attnpy._labels import (
    check_shape,
    checked_labels,
    checked_numbers,
    checked_weights,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import TypeIs

    Labels = Iterable[object] | None

__all__ = [
    "entropy",
    "entropy_bits",
    "head_grid",
    "heat_map",
    "mask_image",
    "position_image",
]

WEIGHT_COLORS = "Blues"  # 0 is white, as the paper
NAN_COLOR = "tab:red"
HIDDEN_COLOR, VISIBLE_COLOR = "0.88", "tab:blue"
MAX_CHARACTERS = 30  # of a label
MAX_RATIO = 8  # of an image's sides; beyond it, cells are not square
POINT = 1 / 72  # inches
AS_IT_IS: dict[str, Any] = {"parse_math": False, "usetex": False}  # a text


def heat_map(
    weights: ArrayLike,
    query_labels: Labels = None,
    key_labels: Labels = None,
    *,
    ax: Axes | None = None,
    annotate: bool | None = None,
    vmax: float | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the weights of one head as an image.

    Parameters
    ----------
    weights : array_like, shape (Lq, Lk)
        What each query gives to each key; none below 0. NaN is drawn in red.
    query_labels : iterable, length Lq, optional
        The queries' tokens; anything else is turned into text. By default numbers.
    key_labels : iterable, length Lk, optional
        The keys' tokens; by default `query_labels` if Lq == Lk, else numbers.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.
    annotate : bool, optional
        Write each weight into its cell; by default where the cells are large enough.
    vmax : float, optional
        The weight at the upper end of the colour scale, which starts at 0; by default
        the largest weight.
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
        If `weights` are not real numbers, or labels are a single string.
    ValueError
        If a shape, a number of labels, a weight or `vmax` is not as described.

    See Also
    --------
    head_grid : all heads and layers at once.
    attnpy.view.head_view : an interactive picture.

    Notes
    -----
    Where not all labels fit, every 2nd, 5th, 10th ... is shown; long ones are cut to 30
    characters. matplotlib warns about characters that its font does not have.

    Examples
    --------
    >>> import attnpy
    >>> from attnpy.plot import heat_map
    >>> words = ["Attention", "is", "all", "you", "need"]
    >>> X = [[1, 0, 1], [0, 2, 1], [1, 1, 1], [0, 0, 2], [2, 1, 0]]
    >>> _, weights = attnpy.attention(X, X, X, causal=True, return_weights=True)
    >>> ax = heat_map(weights, words, title="causal self-attention")
    >>> ax.images[0].get_array().shape
    (5, 5)
    """
    weights = checked_weights(weights, {2: "(Lq, Lk)"})
    top = _scale_top(weights, vmax)
    if annotate is not None:
        _checks.flag(annotate, "annotate")
    rows, columns = _both_labels(weights.shape, query_labels, key_labels)
    ax, cell = _image_axes(ax, weights.shape, rows, columns)
    image = _draw_image(ax, weights, WEIGHT_COLORS, (0, top))
    _set_ticks(ax, weights.shape, rows, columns, cell)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    ax.figure.colorbar(image, ax=ax, label="weight")
    if annotate is None:
        annotate = cell[0] >= 0.2 and cell[1] >= 0.35
    if annotate:
        _write_values(ax, image, weights, cell)
    if title is not None:
        ax.set_title(title, **AS_IT_IS)
    return ax


def head_grid(
    weights: ArrayLike,
    query_labels: Labels = None,
    key_labels: Labels = None,
    *,
    figure: Figure | SubFigure | None = None,
    vmax: float | None = None,
    title: str | None = None,
) -> Figure | SubFigure:
    """Draw the weights of many heads as a grid of images with a common colour scale.

    Parameters
    ----------
    weights : array_like, shape (H, Lq, Lk) or (layers, H, Lq, Lk)
        What each query gives to each key; none below 0. NaN is drawn in red.
    query_labels : iterable, length Lq, optional
        The queries' tokens; anything else is turned into text. By default numbers.
    key_labels : iterable, length Lk, optional
        The keys' tokens; by default `query_labels` if Lq == Lk, else numbers.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; by default in a new figure.
    vmax : float, optional
        The weight at the upper end of the colour scale, which starts at 0; by default
        the largest weight of all heads.
    title : str, optional
        The figure's title.

    Returns
    -------
    matplotlib.figure.Figure or SubFigure
        The figure. Its first axes are the heads in the order of `weights`, and the last
        is the colour bar.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError
        If `weights` are not real numbers, or labels are a single string.
    ValueError
        If a shape, a number of labels, a weight or `vmax` is not as described.

    See Also
    --------
    heat_map : one head.

    Notes
    -----
    With layers, each layer is a row and each head a column; without, the heads
    fill rows of at most 8. Titles count from 0, as indices do: "layer 1 head 3" is
    ``weights[1, 3]``.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.plot import head_grid
    >>> weights = np.full((2, 3, 4, 5), 1 / 5)  # (layers, H, Lq, Lk)
    >>> figure = head_grid(weights, list("abcd"), list("vwxyz"))
    >>> [ax.get_title() for ax in figure.axes[2:5]]
    ['layer 0 head 2', 'layer 1 head 0', 'layer 1 head 1']
    """
    weights = checked_weights(weights, {3: "(H, Lq, Lk)", 4: "(layers, H, Lq, Lk)"})
    top = _scale_top(weights, vmax)
    shape = weights.shape[-2:]
    rows, columns = _both_labels(shape, query_labels, key_labels)
    if weights.ndim == 4:
        n_rows, n_columns = weights.shape[:2]
        names = [f"layer {i} head {h}" for i, h in np.ndindex(n_rows, n_columns)]
    else:
        n_rows = -(-weights.shape[0] // 8)
        n_columns = -(-weights.shape[0] // n_rows)
        names = [f"head {h}" for h in range(weights.shape[0])]

    _check_figure(figure)
    if figure is None:
        width = min(2.4, max(1.1, 10 / n_columns))
        height = width * min(1.5, max(0.5, shape[0] / shape[1]))
        figure = _new_figure(
            (n_columns * width, 1.2 + 0.7 * _label_room(rows)),
            (n_rows * height, 0.8 + 0.25 * n_rows + 0.5 * _label_room(columns)),
            layout="compressed",
        )
    heads = weights.reshape(-1, *shape)  # (layers * H, Lq, Lk)
    all_axes = []
    for i, (name, head) in enumerate(zip(names, heads, strict=True)):
        ax = figure.add_subplot(n_rows, n_columns, i + 1)
        image = _draw_image(ax, head, WEIGHT_COLORS, (0, top))
        ax.set_title(name, fontsize="small")
        all_axes.append(ax)
    cell = _cell_size(ax, shape)
    for i, ax in enumerate(all_axes):
        leftmost, lowest = i % n_columns == 0, i + n_columns >= len(heads)
        _set_ticks(ax, shape, rows, columns, cell, "x-small", lowest, leftmost)
    bar_aspect = max(15, 6 * figure.bbox.height / figure.dpi)
    figure.colorbar(image, ax=all_axes, label="weight", aspect=bar_aspect)
    figure.supxlabel("key")
    figure.supylabel("query")
    if title is not None:
        figure.suptitle(title, **AS_IT_IS)
    return figure


def entropy_bits(weights: ArrayLike) -> NDArray[np.float64]:
    r"""Return the entropy of each row of weights: 0 for one key, log2(n) for n alike.

    Parameters
    ----------
    weights : array_like, shape (..., Lk)
        What a query gives to each key; none below 0. A row need not sum to 1, as with
        sinks: it is divided by its sum.

    Returns
    -------
    ndarray, shape (...)
        The entropies in bits, in float64; NaN for a row of zeros, which is a query that
        may see nothing, and for a row with a NaN.

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
    weights: ArrayLike, *, ax: Axes | None = None, labels: Labels = None
) -> Axes:
    """Draw how widely each head attends: the mean entropy of its queries' weights.

    Parameters
    ----------
    weights : array_like, shape (Lq, Lk), (H, Lq, Lk) or (layers, H, Lq, Lk)
        What each query gives to each key; none below 0. Queries that may see nothing
        are left out.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.
    labels : iterable, length H, optional
        The heads' names; by default their indices.

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
        If `weights` are not real numbers, or `labels` is a single string.
    ValueError
        If a shape, a number of labels or a weight is not as described.

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
    if weights.ndim == 2:
        weights = weights[np.newaxis]
    bits = _mean_over_queries(weights)  # (H,) or (layers, H)
    heads = None
    if labels is not None:
        heads = checked_labels("labels", labels, bits.shape[-1])
    if bits.ndim == 2:
        return _entropy_image(ax, bits, heads)

    n_heads = len(bits)
    if not _is_given(ax):
        ax = _new_figure((min(9, 0.35 * n_heads), 2), (2.3, 0.9)).add_subplot()
    ax.bar(np.arange(n_heads), bits)
    uniform = float(np.log2(weights.shape[-1]))
    ax.axhline(uniform, color="0.5", linestyle="--", label="equal weights")
    ax.set_ylim(0, max(uniform, 0.1) * 1.15)
    ax.set_xlim(-0.7, n_heads - 0.3)
    _set_x_ticks(ax, n_heads, heads, _size(ax)[1] / n_heads, "medium")
    ax.set_xlabel("head")
    ax.set_ylabel("mean entropy (bits)")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def position_image(encoding: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw a positional encoding as an image, with white for 0.

    Parameters
    ----------
    encoding : array_like, shape (length, dim)
        A vector for each position. NaN is drawn in black.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the image: dimensions on the x axis, positions on the y axis from
        the top. Colours are symmetric about 0.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError
        If `encoding` is not of real numbers.
    ValueError
        If its shape is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.plot import position_image
    >>> positions, rates = np.arange(50), 10000.0 ** -(np.arange(16) / 16)
    >>> angles = positions[:, np.newaxis] * rates  # (length, dim / 2)
    >>> ax = position_image(np.hstack([np.sin(angles), np.cos(angles)]))
    >>> ax.images[0].get_clim()
    (-1.0, 1.0)
    """
    encoding = checked_numbers("encoding", encoding, {2: "(length, dim)"})
    top = _finite_top(np.abs(encoding))
    if not _is_given(ax):
        ax = _new_figure((5, 1.4), (3.5, 0.7)).add_subplot()
    image = _draw_image(ax, encoding, "RdBu_r", (-top, top), "black", "auto")
    height, width = _size(ax)
    cell = (height / encoding.shape[0], width / encoding.shape[1])
    _set_ticks(ax, encoding.shape, None, None, cell)
    ax.set_xlabel("dimension")
    ax.set_ylabel("position")
    ax.figure.colorbar(image, ax=ax)
    return ax


def mask_image(
    mask: ArrayLike,
    query_labels: Labels = None,
    key_labels: Labels = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw a boolean mask: which query may attend to which key.

    Parameters
    ----------
    mask : array_like of bool, shape (Lq, Lk)
        True where the query may attend to the key, as `attnpy.attention` takes it.
    query_labels : iterable, length Lq, optional
        The queries' tokens; anything else is turned into text. By default numbers.
    key_labels : iterable, length Lk, optional
        The keys' tokens; by default `query_labels` if Lq == Lk, else numbers.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the image.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError
        If `mask` is not boolean, or labels are a single string.
    ValueError
        If a shape or a number of labels is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.plot import mask_image
    >>> ax = mask_image(np.tri(4, dtype=bool), ["I", "am", "a", "robot"])
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['may attend', 'hidden']
    """
    mask = _checks.array(mask, "mask")
    if mask.dtype != bool:
        raise TypeError(
            f"mask: expected bool, True where the query may attend, got {mask.dtype}"
        )
    check_shape("mask", mask, {2: "(Lq, Lk)"})
    rows, columns = _both_labels(mask.shape, query_labels, key_labels)
    ax, cell = _image_axes(ax, mask.shape, rows, columns, bar=0)

    colors = _import("matplotlib.colors").ListedColormap([HIDDEN_COLOR, VISIBLE_COLOR])
    _draw_image(ax, mask.astype(np.float64), colors, (0, 1))
    _set_ticks(ax, mask.shape, rows, columns, cell)
    if min(cell) >= 0.08:
        ax.set_xticks(np.arange(mask.shape[1] + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(mask.shape[0] + 1) - 0.5, minor=True)
        ax.tick_params(which="minor", length=0)
        ax.grid(which="minor", color="white", linewidth=1)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    patch = _import("matplotlib.patches").Patch
    patches = [
        patch(color=VISIBLE_COLOR, label="may attend"),
        patch(color=HIDDEN_COLOR, label="hidden"),
    ]
    ax.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
        frameon=False,
        borderaxespad=0.2,
        columnspacing=1,
        handlelength=1,
    )
    return ax


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            "attnpy.plot draws with matplotlib: pip install 'attnpy[plot]'"
        ) from error


def _check_figure(figure: Figure | SubFigure | None) -> None:
    kind = _import("matplotlib.figure").FigureBase
    if figure is not None and not isinstance(figure, kind):
        raise TypeError(
            "figure: expected a matplotlib.figure.Figure or SubFigure, got "
            f"{type(figure).__name__}"
        )


def _is_given(ax: Axes | None) -> TypeIs[Axes]:
    """Tell whether there are axes to draw into."""
    if ax is None:
        return False
    if not isinstance(ax, _import("matplotlib.axes").Axes):
        raise TypeError(f"ax: expected a matplotlib.axes.Axes, got {type(ax).__name__}")
    return True


def _new_figure(
    width: tuple[float, float],
    height: tuple[float, float],
    layout: Literal["constrained", "compressed"] = "constrained",
) -> Figure:
    """Return a figure with room for images and, in letters of 10 points, for text."""
    scale = _font_size("medium") / (10 * POINT)
    figure: Figure = _import("matplotlib.pyplot").figure(
        figsize=(width[0] + width[1] * scale, height[0] + height[1] * scale),
        layout=layout,
    )
    return figure


def _draw_image(
    ax: Axes,
    values: NDArray[np.float64],
    colors: str | Colormap,
    limits: tuple[float, float],
    nan_color: str = NAN_COLOR,
    aspect: Literal["equal", "auto"] | None = None,
) -> AxesImage:
    """Draw values with row 0 on top, each as a cell of one colour."""
    if isinstance(colors, str):
        colors = cast("Colormap", _import("matplotlib").colormaps[colors])
    ax.grid(False)
    return ax.imshow(
        values,
        cmap=colors.with_extremes(bad=nan_color),
        vmin=limits[0],
        vmax=limits[1],
        aspect=aspect or _aspect(values.shape),
        origin="upper",
        interpolation="nearest",
    )


def _finite_top(values: NDArray[np.float64]) -> float:
    """Return the largest finite value, or 1 where that is 0."""
    return float(values.max(initial=0, where=np.isfinite(values))) or 1.0


def _scale_top(weights: NDArray[np.float64], vmax: float | None) -> float:
    if vmax is None:
        return _finite_top(weights)
    return _checks.above(vmax, "vmax", 0)


def _both_labels(
    shape: tuple[int, ...], query_labels: Labels, key_labels: Labels
) -> tuple[list[str] | None, list[str] | None]:
    """Return the labels of queries and keys, None for numbers."""
    rows = columns = None
    if query_labels is not None:
        rows = checked_labels("query_labels", query_labels, shape[0])
    if key_labels is not None:
        columns = checked_labels("key_labels", key_labels, shape[1])
    elif shape[0] == shape[1]:
        columns = rows
    return rows, columns


def _aspect(shape: tuple[int, ...]) -> Literal["equal", "auto"]:
    return "equal" if max(shape) <= MAX_RATIO * min(shape) else "auto"


def _image_axes(
    ax: Axes | None,
    shape: tuple[int, ...],
    rows: list[str] | None,
    columns: list[str] | None,
    bar: float = 1,
) -> tuple[Axes, tuple[float, float]]:
    """Return axes for an image, and the height and width of its cells in inches.

    In a new figure there is room for the labels, and for a colour bar this wide.
    """
    if _is_given(ax):
        return ax, _cell_size(ax, shape)
    side = min(0.5, 6.5 / max(shape))
    height, width = (max(1.5, side * n) for n in shape)
    left, bottom = _label_room(rows), 0.7 * _label_room(columns)
    figure = _new_figure(
        (width, max(1.5, 0.6 + left + bar)),
        (height, 0.9 + bottom),
        layout="compressed",
    )
    return figure.add_subplot(), (height / shape[0], width / shape[1])


def _label_room(labels: list[str] | None) -> float:
    """Return how many inches the longest label takes in letters of 10 points."""
    return 0.09 * min(MAX_CHARACTERS, max(map(len, labels))) if labels else 0.3


def _size(ax: Axes) -> tuple[float, float]:
    """Return the height and width of axes in inches."""
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    return box.height / dpi, box.width / dpi


def _cell_size(ax: Axes, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the height and width of an image's cells in inches."""
    height, width = _size(ax)
    height, width = height / shape[0], width / shape[1]
    if _aspect(shape) == "equal":
        height = width = min(height, width)
    return height, width


def _write_values(
    ax: Axes, image: AxesImage, values: NDArray[np.float64], cell: tuple[float, float]
) -> None:
    """Write each value into its cell, dark on light or light on dark."""
    lightness = image.to_rgba(values)[..., :3] @ [0.299, 0.587, 0.114]
    size = max(4.0, min(9.0, 0.45 * cell[0] / POINT, 0.37 * cell[1] / POINT))
    for (i, j), value in np.ndenumerate(values):
        ax.text(
            j,
            i,
            f"{value:.2f}" if value < 100 else f"{value:.2g}",
            ha="center",
            va="center",
            fontsize=size,
            color="black" if lightness[i, j] > 0.5 else "white",
        )


def _set_ticks(
    ax: Axes,
    shape: tuple[int, ...],
    rows: list[str] | None,
    columns: list[str] | None,
    cell: tuple[float, float],
    font: str = "medium",
    show_x: bool = True,
    show_y: bool = True,
) -> None:
    """Label an image's rows and columns, or as many of them as there is room for."""
    ax.set_xticks([])
    ax.set_yticks([])
    if show_x:
        _set_x_ticks(ax, shape[1], columns, cell[1], font)
    if show_y:
        step = _step(shape[0], 1.3 * _font_size(font), cell[0])
        ax.set_yticks(*_ticks(shape[0], rows, step), fontsize=font, **AS_IT_IS)


def _set_x_ticks(
    ax: Axes, count: int, labels: list[str] | None, cell: float, font: str
) -> None:
    """Label the columns: words that are too wide for them are rotated."""
    size = _font_size(font)
    _, texts = _ticks(count, labels, 1)
    width = 0.65 * size * (1 + max(map(len, texts)))
    rotated = labels is not None and width > cell
    step = _step(count, 1.4 * size if rotated else width, cell)
    ax.set_xticks(*_ticks(count, labels, step), fontsize=font, **AS_IT_IS)
    if rotated:
        ax.tick_params(axis="x", rotation=45)
        for text in ax.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")


def _font_size(font: str) -> float:
    """Return the size in inches of a relative font size, such as "x-small"."""
    properties = _import("matplotlib.font_manager").FontProperties(size=font)
    return float(properties.get_size_in_points()) * POINT


def _step(count: int, need: float, cell: float) -> int:
    """Return which 1st, 2nd, 5th, 10th ... label to show for each to have the room."""
    step = 1
    while step * cell < need and step < count:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def _ticks(count: int, labels: list[str] | None, step: int) -> tuple[range, list[str]]:
    """Return the places and the texts of each step-th label."""
    places = range(0, count, step)
    if labels is None:
        return places, [str(i) for i in places]
    texts = [labels[i] for i in places]
    short = MAX_CHARACTERS - 1
    return places, [t if len(t) <= short + 1 else t[:short] + "…" for t in texts]


def _mean_over_queries(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean entropy of the queries that see something, NaN without any."""
    seen = weights.any(axis=-1)  # (..., Lq)
    bits = np.where(seen, entropy_bits(weights), 0)
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = bits.sum(axis=-1) / seen.sum(axis=-1)
    return means


def _entropy_image(
    ax: Axes | None, bits: NDArray[np.float64], heads: list[str] | None
) -> Axes:
    """Draw entropies (layers, H)."""
    ax, cell = _image_axes(ax, bits.shape, None, heads)
    image = _draw_image(ax, bits, "viridis", (0, _finite_top(bits)))
    _set_ticks(ax, bits.shape, None, heads, cell)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.figure.colorbar(image, ax=ax, label="mean entropy (bits)")
    if cell[0] >= 0.2 and cell[1] >= 0.35:
        _write_values(ax, image, bits, cell)
    return ax
