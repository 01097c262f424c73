"""Many heads at once: a grid of images on one scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attnpy import _checks, _keywords, _progress
from attnpy._labels import checked_weights, shown_lines
from attnpy.plot import _canvas
from attnpy.plot._canvas import MAX_RATIO, POINT
from attnpy.plot.maps import checked_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from numpy.typing import ArrayLike, NDArray

    from attnpy.plot._canvas import Labels, Scale, Texts
    from attnpy.plot._cells import Cells

__all__ = ["head_grid", "score_grid"]

SHAPES = {3: "(H, Lq, Lk)", 4: "(layers, H, Lq, Lk)"}
GAP = 0.08  # inches between images
BAR = 0.14  # inches: the width of the colour bar
SHORT_BAR = 1.7  # inches: on less the label has two words to a line
FONT = "x-small"  # of labels


@_keywords.answering
def head_grid(
    weights: ArrayLike,
    query_labels: Labels = None,
    key_labels: Labels = None,
    *,
    figure: Figure | SubFigure | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    mask: ArrayLike | None = None,
    reduction: Literal["max", "mean"] = "max",
    title: str | None = None,
    progress: bool | None = None,
) -> Figure | SubFigure:
    """Draw the weights of many heads as a grid of images with a common colour scale.

    Parameters
    ----------
    weights : array_like, shape (H, Lq, Lk) or (layers, H, Lq, Lk)
        The weight of each query for each key; none below 0. NaN is drawn in red.
    query_labels : iterable, length Lq, optional
        The queries' tokens; anything else is turned into text. By default numbers.
    key_labels : iterable, length Lk, optional
        The keys' tokens; by default `query_labels` if Lq == Lk, else numbers.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; by default a new figure.
    vmin, vmax : float, optional
        The weights at the ends of the colour scale; by default 0 and the largest weight
        of all heads. The colour bar has an arrow if there are weights beyond.
    mask : array_like of bool, optional
        Which keys a query may attend to, as in `attnpy.attention`: True where it may,
        in any shape that broadcasts to (H, Lq, Lk). Cells that it hides are grey.
    reduction : {"max", "mean"}, default "max"
        What a pixel of several cells shows: the largest or the mean weight of those
        that are not hidden.
    title : str, optional
        The figure's title.
    progress : bool, optional
        Show a progress bar on standard error, if that is a terminal and the work takes
        longer than a second. True needs the tqdm package; None, the default, shows no
        bar if it is not installed.

    Returns
    -------
    matplotlib.figure.Figure or SubFigure
        The figure. Its first axes are the heads in the order of `weights`, and the last
        is the colour bar.

    Raises
    ------
    ImportError
        If matplotlib is not installed, or tqdm for `progress`.
    TypeError
        If `weights` are not real numbers, `mask` is not boolean, or labels are a single
        string.
    ValueError
        If a shape, a number of labels, a weight, a limit or `reduction` is not as
        described, or there is a weight where `mask` hides the key.

    See Also
    --------
    heat_map : one head.
    score_grid : numbers of both signs.

    Notes
    -----
    With layers, each layer is a row and each head a column; without, the heads fill
    rows of at most 8. Titles count from 0, as indices do: "layer 1 head 3" is
    ``weights[1, 3]``. If that does not fit over an image, heads are named above the
    first row, and layers to its left.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.plot import head_grid
    >>> weights = np.full((2, 3, 4, 5), 1 / 5)  # (layers, H, Lq, Lk)
    >>> figure = head_grid(weights, list("abcd"), list("vwxyz"))
    >>> [ax.get_title() for ax in figure.axes[2:5]]
    ['layer 0 head 2', 'layer 1 head 0', 'layer 1 head 1']
    """
    weights = checked_weights(weights, SHAPES)
    _checks.one_of(reduction, "reduction", ("max", "mean"))
    scale = _canvas.weight_scale(weights, vmin, vmax, reduction=reduction)
    hidden = _canvas.hidden_cells(mask, weights.shape, weights)
    labels = query_labels, key_labels
    return _grid(weights, scale, hidden, labels, figure, title, progress)


@_keywords.answering
def score_grid(
    scores: ArrayLike,
    query_labels: Labels = None,
    key_labels: Labels = None,
    *,
    figure: Figure | SubFigure | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    mask: ArrayLike | None = None,
    label: str = "score",
    title: str | None = None,
    progress: bool | None = None,
) -> Figure | SubFigure:
    """Draw scores or biases of many heads as a grid of images: white is 0, red above.

    Parameters
    ----------
    scores : array_like, shape (H, Lq, Lk) or (layers, H, Lq, Lk)
        A number for each query and key, for example from `attnpy.positions.alibi_bias`.
        -inf is hidden; NaN is drawn in black.
    query_labels, key_labels, figure, mask, title, progress : optional
        As in `head_grid`.
    vmin, vmax, label : optional
        As in `score_map`.

    Returns
    -------
    matplotlib.figure.Figure or SubFigure
        The figure, as for `head_grid`.

    Raises
    ------
    ImportError
        If matplotlib is not installed, or tqdm for `progress`.
    TypeError
        If `scores` are not real numbers, `mask` is not boolean, or labels are a single
        string.
    ValueError
        If a shape, a number of labels or a limit is not as described, or a score is
        +inf.

    See Also
    --------
    score_map : one head.

    Examples
    --------
    >>> from attnpy import positions
    >>> from attnpy.plot import score_grid
    >>> figure = score_grid(positions.alibi_bias(4, 6, 6), label="bias")
    >>> figure.axes[-1].get_ylabel()
    'bias'
    """
    numbers, hidden = checked_scores(scores, SHAPES, mask)
    scale = _canvas.signed_scale(numbers, vmin, vmax, _canvas.text(label, "label"))
    labels = query_labels, key_labels
    return _grid(numbers, scale, hidden, labels, figure, title, progress)


class Layout(NamedTuple):
    """Where images are, in inches."""

    n_rows: int
    n_columns: int
    height: float  # of an image
    width: float
    gap: float  # between rows of images
    left: float  # around all images
    right: float
    bottom: float
    top: float

    def figure_size(self) -> tuple[float, float]:
        """Return the width and height of the figure."""
        width = self.left + self.n_columns * (self.width + GAP) + BAR + self.right
        return width, self.bottom + self.images_height() + self.top

    def images_height(self) -> float:
        """Return the height of all images, which the colour bar has."""
        return self.n_rows * (self.height + self.gap) - self.gap


class Names(NamedTuple):
    """The titles over each image and to the left of each row, and their size."""

    images: list[str]
    rows: list[str]
    letters: float  # points


def _grid(
    numbers: NDArray[np.float64],
    scale: Scale,
    hidden: NDArray[np.bool_] | None,
    labels: tuple[Labels, Labels],
    figure: Figure | SubFigure | None,
    title: str | None,
    progress: bool | None,
) -> Figure | SubFigure:
    """Draw numbers (H, Lq, Lk) or (layers, H, Lq, Lk)."""
    progress = _progress.checked(progress)
    shape = numbers.shape[-2:]
    texts = _canvas.both_labels(shape, *labels)
    _canvas.check_figure(figure)
    _canvas.check_title(title)
    head = title is not None or hidden is not None
    room = 0.55 + 0.1 * _canvas.bar_letters(scale)
    layout, names = _layout(figure, numbers.shape, texts, head, room)
    if layout.images_height() < SHORT_BAR:  # its label has one line more
        layout, names = _layout(figure, numbers.shape, texts, head, room + 0.18)
    if figure is None:
        width, height = layout.figure_size()
        figure = _canvas.new_figure((width, 0), (height, 0), layout="none")
    heads = numbers.reshape(-1, *shape)  # (layers * H, Lq, Lk)
    masks = [None] * len(heads) if hidden is None else hidden.reshape(heads.shape)
    cell = layout.height / shape[0], layout.width / shape[1]
    if _canvas.aspect(shape) == "equal":
        cell = min(cell), min(cell)
    with _progress.bar(progress, len(heads), "head") as done:
        for i, (head, mask) in enumerate(zip(heads, masks, strict=True)):
            row, column = divmod(i, layout.n_columns)
            ax = figure.add_axes(_place(figure, layout, row, column))
            lowest = i + layout.n_columns >= len(heads)
            if column and not lowest:
                ax.set_axis_off()  # which takes half of the time
            image = _canvas.draw_cells(ax, head, scale, mask)
            ax.set_title(names.images[i], fontsize=names.letters, pad=4)
            _label_axes(ax, shape, texts, cell, column == 0, lowest)
            if column == 0 and names.rows:
                ax.set_ylabel(names.rows[row], fontsize=names.letters)
            done(1)
    _add_bar(figure, layout, image, scale, cell)
    _write_around(figure, layout, title, hidden is not None)
    return figure


def _add_bar(
    figure: Figure | SubFigure,
    layout: Layout,
    image: Cells,
    scale: Scale,
    cell: tuple[float, float],
) -> None:
    """Add the colour bar of an image, with a label that fits beside it."""
    label = _canvas.bar_label(scale, _canvas.is_crowded(cell, figure.dpi))
    if layout.images_height() < SHORT_BAR:
        label = label.replace(" of ", " of\n")
    bar = figure.add_axes(_place(figure, layout))
    figure.colorbar(image, cax=bar, extend=scale.extend).set_label(label, fontsize=9)


def _arrangement(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns: layers and heads, or a grid with few empty places."""
    n_heads = shape[-3]
    if len(shape) == 4:
        return shape[0], n_heads
    if n_heads <= 8:
        return 1, n_heads
    choices = range(8, min(7, math.isqrt(n_heads - 1)), -1)
    n_columns = min(choices, key=lambda n: -n_heads % n)
    return -(-n_heads // n_columns), n_columns


def _layout(
    figure: Figure | SubFigure | None,
    shape: tuple[int, ...],
    texts: tuple[Texts, Texts],
    has_head: bool,
    bar_room: float,
) -> tuple[Layout, Names]:
    """Return the layout of a new figure or of this one, and the names that fit it.

    Sizes of the numbers and the label beside the colour bar are in inches, for letters
    of 10 points.
    """
    n_rows, n_columns = _arrangement(shape)
    scale = _canvas.font_size("medium") / 10
    height, width = _image_size(shape[-2:], n_columns, texts)
    height_cell, width_cell = height / shape[-2], width / shape[-1]
    left = scale * (0.45 + _label_room(texts[0], shape[-2], height_cell))
    right = scale * bar_room
    slant = 1.4 * _canvas.font_size(FONT) * POINT <= width_cell  # labels at 45 degrees
    room = _label_room(texts[1], shape[-1], width_cell) if texts[1] else 0.2
    bottom = scale * (0.35 + room * (0.75 if slant else 1))
    top = scale * (0.05 + 0.3 * has_head)
    if figure is not None:
        around = left + right + BAR + n_columns * GAP
        width = max(0.1, (figure.bbox.width / figure.dpi - around) / n_columns)
    names = _names(shape, n_rows, n_columns, width)
    line = 1.5 * names.letters * POINT
    gap = GAP if names.rows else GAP + line
    left, top = left + (line if names.rows else 0), top + line
    if figure is not None:
        around = bottom + top + (n_rows - 1) * gap
        height = max(0.1, (figure.bbox.height / figure.dpi - around) / n_rows)
        if _canvas.aspect(shape[-2:]) == "equal":
            ratio = shape[-2] / shape[-1]
            height, width = min(height, width * ratio), min(width, height / ratio)
    sizes = height, width, gap, left, right, bottom, top
    return Layout(n_rows, n_columns, *map(_whole_pixels, sizes)), names


def _whole_pixels(inches: float) -> float:
    """Return a length in whole pixels, so that all images of a figure have one size."""
    dpi = float(_canvas.load("matplotlib").rcParams["figure.dpi"])
    return max(1, round(inches * dpi)) / dpi


def _image_size(
    shape: tuple[int, ...], n_columns: int, texts: tuple[Texts, Texts]
) -> tuple[float, float]:
    """Return the height and width of an image in a new figure."""
    width = min(2.4, max(1.1, 10 / n_columns), max(0.5, 16 / n_columns))
    if any(texts):  # room for every label
        width = max(width, min(0.1 * max(shape), 18 / n_columns, 6.5))
    ratio = min(MAX_RATIO, max(1 / MAX_RATIO, shape[0] / shape[1]))
    height = width * min(1.5, ratio)
    return max(0.2, height), max(0.45, min(width, height / ratio))


def _label_room(texts: Texts, count: int, cell: float) -> float:
    """Return how many inches the labels take, for letters of 10 points as usual."""
    letters, _ = _canvas.fitting(count, 1.25, cell, FONT, shrink=texts is not None)
    return _canvas.label_room(texts) * letters / _canvas.font_size("medium")


def _names(shape: tuple[int, ...], n_rows: int, n_columns: int, width: float) -> Names:
    """Name images by layer and head, or rows by layers and the first row by heads."""
    if len(shape) == 3:
        names = [f"head {h}" for h in range(shape[0])]
        return Names(names, [], max(2.0, _letters(names, width)))
    names = [f"layer {i} head {h}" for i, h in np.ndindex(n_rows, n_columns)]
    letters = _letters(names, width)
    if letters >= _canvas.MIN_LETTERS:
        return Names(names, [], letters)
    heads = [f"head {h}" for h in range(n_columns)]
    names = heads + [""] * (n_rows - 1) * n_columns
    rows = [f"layer {i}" for i in range(n_rows)]
    return Names(names, rows, max(2.0, _letters(heads, width)))


def _letters(names: list[str], width: float) -> float:
    """Return the size of letters, in points, in which each name fits over an image."""
    longest = max(map(len, names))
    return min(_canvas.font_size("small"), width / POINT / (0.6 * longest))


def _place(
    figure: Figure | SubFigure, layout: Layout, row: int = 0, column: int | None = None
) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height of an image, or of the colour bar.

    They are fractions of the figure, whose upper left corner the images are in.
    """
    height, width = figure.bbox.height / figure.dpi, figure.bbox.width / figure.dpi
    x = layout.left + (layout.width + GAP) * (column or 0)
    y = height - layout.top - layout.height - row * (layout.height + layout.gap)
    size = layout.width, layout.height
    if column is None:
        x += layout.n_columns * (layout.width + GAP)
        size = BAR, layout.images_height()
        y = height - layout.top - size[1]
    return x / width, y / height, size[0] / width, size[1] / height


def _label_axes(
    ax: Axes,
    shape: tuple[int, ...],
    texts: tuple[Texts, Texts],
    cell: tuple[float, float],
    leftmost: bool,
    lowest: bool,
) -> None:
    """Label queries at the left of a grid, and keys below it."""
    nothing = _canvas.load("matplotlib.ticker").NullLocator
    if leftmost:
        _canvas.set_y_ticks(ax, shape[0], texts[0], cell[0], FONT)
    else:
        ax.yaxis.set_major_locator(nothing())
    if lowest:
        _canvas.set_x_ticks(ax, shape[1], texts[1], cell[1], FONT)
    else:
        ax.xaxis.set_major_locator(nothing())


def _write_around(
    figure: Figure | SubFigure, layout: Layout, title: str | None, has_hidden: bool
) -> None:
    """Name the axes, write the title, and explain the colour of what is hidden."""
    height, width = figure.bbox.height / figure.dpi, figure.bbox.width / figure.dpi
    middle = (layout.left + layout.n_columns * (layout.width + GAP) / 2) / width
    below = height - layout.figure_size()[1]
    center = 1 - (layout.top + layout.images_height() / 2) / height
    figure.supxlabel("key", x=middle, y=(below + 0.05) / height, fontsize="medium")
    figure.supylabel("query", x=0.05 / width, y=center, fontsize="medium")
    if title is not None:
        figure.suptitle(
            shown_lines(title),
            x=middle,
            y=1 - 0.05 / height,
            fontsize="large",
            **_canvas.AS_IT_IS,
        )
    if has_hidden:
        figure.legend(
            **_canvas.legend_of({"hidden": _canvas.MASKED_COLOR}),
            loc="upper right",
            bbox_to_anchor=(1, 1),
            fontsize="small",
        )
