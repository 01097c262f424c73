"""One image: the weights of a head, scores or biases, a mask, an encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnpy import _checks, _keywords
from attnpy._labels import (
    check_shape,
    checked_labels,
    checked_numbers,
    checked_weights,
    mask_rows,
)
from attnpy.plot import _canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

    from attnpy.plot._canvas import Labels, Scale, Texts

__all__ = ["heat_map", "mask_image", "position_image", "score_map"]

HIDDEN_COLOR, SOME_COLOR, VISIBLE_COLOR = "0.88", "#9cc4e4", "tab:blue"


@_keywords.answering
def heat_map(
    weights: ArrayLike,
    query_labels: Labels = None,
    key_labels: Labels = None,
    *,
    ax: Axes | None = None,
    annotate: bool | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    mask: ArrayLike | None = None,
    reduction: Literal["max", "mean"] = "max",
    title: str | None = None,
) -> Axes:
    """Draw the weights of one head as an image.

    Parameters
    ----------
    weights : array_like, shape (Lq, Lk)
        The weight of each query for each key; none below 0. NaN is drawn in red.
    query_labels : iterable, length Lq, optional
        The queries' tokens; anything else is turned into text. By default numbers.
    key_labels : iterable, length Lk, optional
        The keys' tokens; by default `query_labels` if Lq == Lk, else numbers.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.
    annotate : bool, optional
        Write each weight into its cell; by default if the cells are large enough.
    vmin, vmax : float, optional
        The weights at the ends of the colour scale; by default 0 and the largest
        weight. The colour bar has an arrow if there are weights beyond.
    mask : array_like of bool, optional
        Which keys a query may attend to, as in `attnpy.attention`: True where it may,
        in any shape that broadcasts to (Lq, Lk). Cells that it hides are grey, and have
        no number.
    reduction : {"max", "mean"}, default "max"
        What a pixel of several cells shows: the largest or the mean weight of those
        that are not hidden.
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
        If `weights` are not real numbers, `mask` is not boolean, or labels are a single
        string.
    ValueError
        If a shape, a number of labels, a weight, a limit or `reduction` is not as
        described, or there is a weight where `mask` hides the key.

    See Also
    --------
    head_grid : all heads and layers at once.
    score_map : numbers of both signs.
    attnpy.view.head_view : an interactive picture.

    Notes
    -----
    A new figure has a label for each of up to 120 tokens. If not all labels fit, every
    2nd, 5th, 10th ... is shown; long ones are cut to 30 characters. matplotlib warns
    about characters that its font does not have.

    Examples
    --------
    >>> import attnpy
    >>> from attnpy.plot import heat_map
    >>> words = ["Attention", "is", "all", "you", "need"]
    >>> X = [[1, 0, 1], [0, 2, 1], [1, 1, 1], [0, 0, 2], [2, 1, 0]]
    >>> mask = attnpy.masks.causal(5)
    >>> _, weights = attnpy.attention(X, X, X, mask=mask, return_weights=True)
    >>> ax = heat_map(weights, words, mask=mask, title="causal self-attention")
    >>> ax.images[0].get_array().shape
    (5, 5)
    """
    weights = checked_weights(weights, {2: "(Lq, Lk)"})
    _checks.one_of(reduction, "reduction", ("max", "mean"))
    scale = _canvas.weight_scale(weights, vmin, vmax, reduction=reduction)
    hidden = _canvas.hidden_cells(mask, weights.shape, weights)
    labels = _canvas.both_labels(weights.shape, query_labels, key_labels)
    return _map(weights, scale, hidden, labels, ax, annotate, title)


@_keywords.answering
def score_map(
    scores: ArrayLike,
    query_labels: Labels = None,
    key_labels: Labels = None,
    *,
    ax: Axes | None = None,
    annotate: bool | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    mask: ArrayLike | None = None,
    label: str = "score",
    title: str | None = None,
) -> Axes:
    """Draw scores, a bias, or other numbers of both signs: white is 0, red above it.

    Parameters
    ----------
    scores : array_like, shape (Lq, Lk)
        A number for each query and key, such as ``Q @ K.T / sqrt(D)``, or the `bias` of
        `attnpy.attention`. -inf is hidden; NaN is drawn in black.
    query_labels, key_labels, ax, annotate, title : optional
        As in `heat_map`.
    vmin, vmax : float, optional
        The numbers at the ends of the colour scale, symmetric about 0 unless both are
        given. By default the largest number; if that exceeds four times the 95th
        percentile, twice that percentile. The colour bar has an arrow if there are
        numbers beyond.
    mask : array_like of bool, optional
        As in `heat_map`.
    label : str, default "score"
        The name of the numbers, beside the colour bar.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the image.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError
        If `scores` are not real numbers, `mask` is not boolean, or labels are a single
        string.
    ValueError
        If a shape, a number of labels or a limit is not as described, or a score is
        +inf.

    See Also
    --------
    score_grid : many heads.

    Notes
    -----
    A pixel of several cells shows the number of them that is farthest from 0.

    Examples
    --------
    >>> from attnpy import masks
    >>> from attnpy.plot import score_map
    >>> words = ["I", "am", "a", "robot"]
    >>> scores = [[2, -1, 0, 1], [0, 1, -2, 1], [1, 0, 1, 3], [-1, 1, 4, 2]]
    >>> ax = score_map(scores, words, mask=masks.causal(4), annotate=True)
    >>> ax.images[0].get_clim()
    (-4.0, 4.0)
    >>> [text.get_text() for text in ax.texts][:3]
    ['2.00', '0.00', '1.00']
    """
    scores, hidden = checked_scores(scores, {2: "(Lq, Lk)"}, mask)
    scale = _canvas.signed_scale(scores, vmin, vmax, _canvas.text(label, "label"))
    labels = _canvas.both_labels(scores.shape, query_labels, key_labels)
    return _map(scores, scale, hidden, labels, ax, annotate, title)


def checked_scores(
    scores: ArrayLike, shapes: dict[int, str], mask: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Return scores with NaN for -inf, and where they are hidden."""
    numbers = checked_numbers("scores", scores, shapes)
    if np.isposinf(numbers).any():
        raise ValueError("scores: expected none of +inf, got inf")
    hidden = _canvas.hidden_cells(mask, numbers.shape, None)
    nowhere = np.isneginf(numbers)
    if nowhere.any():
        hidden = nowhere if hidden is None else hidden | nowhere
        numbers = np.where(nowhere, np.nan, numbers)
    return numbers, hidden


def _map(
    numbers: NDArray[np.float64],
    scale: Scale,
    hidden: NDArray[np.bool_] | None,
    labels: tuple[Texts, Texts],
    ax: Axes | None,
    annotate: bool | None,
    title: str | None,
) -> Axes:
    """Draw numbers of queries and keys, with a colour bar."""
    _canvas.check_title(title)
    if annotate is not None:
        _checks.flag(annotate, "annotate")
    ax, cell = _canvas.image_axes(ax, numbers.shape, *labels)
    image = _canvas.draw_cells(ax, numbers, scale, hidden)
    _canvas.set_ticks(ax, numbers.shape, *labels, cell)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    label = _canvas.bar_label(scale, _canvas.is_crowded(cell, ax.figure.dpi))
    ax.figure.colorbar(image, ax=ax, label=label, extend=scale.extend)
    _canvas.write_values(ax, image, cell, annotate)
    if hidden is not None:
        _canvas.add_legend(ax, {"hidden": _canvas.MASKED_COLOR})
    _canvas.set_title(ax, title, legend=hidden is not None)
    return ax


@_keywords.answering
def mask_image(
    mask: ArrayLike,
    query_labels: Labels = None,
    key_labels: Labels = None,
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw a boolean mask: which query may attend to which key.

    Parameters
    ----------
    mask : array_like of bool, shape (Lq, Lk), (Lk,) or (..., 1, 1, Lk)
        True where the query may attend to the key, as in `attnpy.attention`. Leading
        axes of length 1 are allowed. With longer leading axes, as in results of
        `attnpy.masks.padding`, there is one row for each sequence, for all of its
        queries.
    query_labels : iterable, optional
        The queries' tokens, or names of the sequences; anything else is turned into
        text. By default numbers.
    key_labels : iterable, length Lk, optional
        The keys' tokens; by default `query_labels` if Lq == Lk, else numbers.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.
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
        If `mask` is not boolean, or labels are a single string.
    ValueError
        If a shape or a number of labels is not as described.

    Notes
    -----
    A pixel of several cells has a separate colour if only some of them may be attended
    to; the legend has it if cells may be that small.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy import masks
    >>> from attnpy.plot import mask_image
    >>> ax = mask_image(np.tri(4, dtype=bool), ["I", "am", "a", "robot"])
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['may attend', 'hidden']
    >>> mask_image(masks.padding([3, 5], 8)).get_ylabel()
    'sequence'
    """
    rows, kind = mask_rows(mask)
    _canvas.check_title(title)
    shape = rows.shape
    check_shape("mask", rows, {2: "(Lq, Lk)"})
    if kind == "query":
        labels = _canvas.both_labels(shape, query_labels, key_labels)
    else:
        labels = _canvas.both_labels((0, shape[1]), None, key_labels)
        if query_labels is not None:
            names = checked_labels("query_labels", query_labels, shape[0])
            labels = names, labels[1]
    legend = 4 if max(shape) > 300 else 2  # in inches, with two entries or three
    ax, cell = _canvas.image_axes(ax, shape, *labels, bar=0, legend=legend)
    colors = {"may attend": VISIBLE_COLOR, "hidden": HIDDEN_COLOR}
    if _canvas.is_crowded(cell, ax.figure.dpi):
        colors["some of a pixel's cells"] = SOME_COLOR
    listed = _canvas.load("matplotlib.colors").ListedColormap
    scale = _canvas.Scale(
        listed([HIDDEN_COLOR, SOME_COLOR, VISIBLE_COLOR]), 0, 1, "middle", "mask"
    )
    _canvas.draw_cells(ax, rows.astype(np.float64), scale)
    _canvas.set_ticks(ax, shape, *labels, cell)
    if min(cell) >= 0.08:
        _draw_lines(ax, shape)
    ax.set_xlabel("key")
    ax.set_ylabel(kind)
    _canvas.add_legend(ax, colors)
    _canvas.set_title(ax, title, legend=True)
    return ax


def _draw_lines(ax: Axes, shape: tuple[int, ...]) -> None:
    """Draw white lines between cells."""
    n_rows, n_columns = shape
    style: dict[str, Any] = {"color": "white", "linewidth": 1}
    ax.vlines(np.arange(1, n_columns) - 0.5, -0.5, n_rows - 0.5, **style)
    ax.hlines(np.arange(1, n_rows) - 0.5, -0.5, n_columns - 0.5, **style)


def position_image(
    encoding: ArrayLike,
    *,
    ax: Axes | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    title: str | None = None,
) -> Axes:
    """Draw a positional encoding as an image, with white for 0.

    Parameters
    ----------
    encoding : array_like, shape (length, dim)
        A vector for each position. NaN is drawn in black.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure.
    vmin, vmax : float, optional
        The numbers at the ends of the colour scale, symmetric about 0 unless both are
        given. By default the largest number; if that exceeds four times the 95th
        percentile, as in trained encodings, twice that percentile. The colour bar has
        an arrow if there are numbers beyond.
    title : str, optional
        The title.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the image: dimensions on the x axis, positions on the y axis from
        the top.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError
        If `encoding` is not of real numbers.
    ValueError
        If its shape or a limit is not as described.

    Notes
    -----
    A pixel of several cells shows the number of them that is farthest from 0.

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
    _canvas.check_title(title)
    scale = _canvas.signed_scale(encoding, vmin, vmax, "")
    if not _canvas.is_given(ax):
        ax = _canvas.new_figure((5, 1.4), (3.5, 0.7)).add_subplot()
    image = _canvas.draw_cells(ax, encoding, scale, shape_of_cells="auto")
    height, width = _canvas.size(ax)
    cell = (height / encoding.shape[0], width / encoding.shape[1])
    _canvas.set_ticks(ax, encoding.shape, None, None, cell)
    ax.set_xlabel("dimension")
    ax.set_ylabel("position")
    label = _canvas.bar_label(scale, _canvas.is_crowded(cell, ax.figure.dpi))
    ax.figure.colorbar(image, ax=ax, label=label, extend=scale.extend)
    _canvas.set_title(ax, title)
    return ax
