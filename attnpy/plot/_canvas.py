"""Common parts of the pictures: figures, colour scales, labels that fit, legends."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from attnpy import _checks
from attnpy._labels import checked_labels, checked_mask, shown_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure, SubFigure
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import TypeIs

    from attnpy.plot._cells import Cells

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Labels = Iterable[object] | None
    Texts = list[str] | None

WEIGHT_COLORS = "Blues"  # 0 is white, as the paper
SIGNED_COLORS = "RdBu_r"  # white in the middle
MASKED_COLOR = "0.8"
MAX_CHARACTERS = 30  # of a label
MIN_LETTERS = 5  # points
MAX_RATIO = 8  # of an image's sides; beyond it, cells are not square
POINT = 1 / 72  # inches
AS_IT_IS: dict[str, Any] = {"parse_math": False, "usetex": False}  # a text
REDUCTIONS = {
    "max": "largest",
    "mean": "mean",
    "extreme": "farthest from 0",
}


class Scale(NamedTuple):
    """How numbers become colours."""

    colors: Colormap
    low: float
    high: float
    reduction: str  # as of `Cells`
    label: str
    extend: Literal["neither", "min", "max", "both"] = "neither"  # numbers beyond


def load(module: str) -> Any:
    """Return a module of matplotlib, or one of this package that needs matplotlib."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            "attnpy.plot draws with matplotlib: pip install 'attnpy[plot]'"
        ) from error


# ---- Figures and axes ----------------------------------------------------------------


def is_given(ax: Axes | None) -> TypeIs[Axes]:
    """Tell whether there are axes to draw into."""
    if ax is None:
        return False
    if not isinstance(ax, load("matplotlib.axes").Axes):
        raise TypeError(f"ax: expected a matplotlib.axes.Axes, got {type(ax).__name__}")
    return True


def new_figure(
    width: tuple[float, float],
    height: tuple[float, float],
    layout: Literal["constrained", "compressed", "none"] = "constrained",
) -> Figure:
    """Return a figure with room for images and, in letters of 10 points, for text."""
    scale = font_size("medium") / 10
    figure: Figure = load("matplotlib.pyplot").figure(
        figsize=(width[0] + width[1] * scale, height[0] + height[1] * scale),
        layout=layout,
    )
    return figure


def image_axes(
    ax: Axes | None,
    shape: tuple[int, ...],
    rows: Texts,
    columns: Texts,
    bar: float = 1,
    legend: float = 0,
) -> tuple[Axes, tuple[float, float]]:
    """Return axes for an image, and the height and width of its cells in inches.

    A new figure has room for the labels of each row and column, up to 120 of them, for
    a colour bar this wide, and above the image for a legend this wide.
    """
    if is_given(ax):
        return ax, cell_size(ax, shape)
    most = max(shape)
    smallest = min(0.115, 14 / most) if rows or columns else 0
    side = min(0.5, max(6.5 / most, smallest))
    height, width = (max(1.5, side * n) for n in shape)
    room, letters = label_room(columns), min(1, side / 0.18)
    bottom = room * (1 if columns and side < 0.2 else 0.7)
    figure = new_figure(
        (max(width, legend), max(1.5, 0.6 + letters * label_room(rows) + bar)),
        (height, 0.9 + letters * bottom),
        layout="compressed",
    )
    return figure.add_subplot(), (height / shape[0], width / shape[1])


def size(ax: Axes) -> tuple[float, float]:
    """Return the height and width of axes in inches."""
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    return box.height / dpi, box.width / dpi


def cell_size(ax: Axes, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the height and width of an image's cells in inches."""
    height, width = size(ax)
    height, width = height / shape[0], width / shape[1]
    if aspect(shape) == "equal":
        height = width = min(height, width)
    return height, width


def aspect(shape: tuple[int, ...]) -> Literal["equal", "auto"]:
    """Return whether cells are square."""
    return "equal" if max(shape) <= MAX_RATIO * min(shape) else "auto"


def set_title(ax: Axes, title: str | None, legend: bool = False) -> None:
    """Write a title, above the legend if there is one."""
    if title is not None:
        room = 1.8 * font_size("medium") if legend else 0
        pad = load("matplotlib").rcParams["axes.titlepad"] + room
        ax.set_title(shown_lines(title), pad=pad, **AS_IT_IS)


# ---- Colours -------------------------------------------------------------------------


def weight_scale(
    weights: Floats,
    vmin: float | None,
    vmax: float | None,
    label: str = "weight",
    reduction: str = "max",
    colors: str = WEIGHT_COLORS,
) -> Scale:
    """Return a scale from 0 to the largest number, or between the limits given."""
    low = 0 if vmin is None else _finite(vmin, "vmin")
    high = _finite_top(weights) if vmax is None else _checks.above(vmax, "vmax", low)
    if high <= low:
        raise ValueError(f"vmin: expected below {high:g}, the upper end, got {low:g}")
    return _scale(_colormap(colors, "tab:red"), low, high, weights, reduction, label)


def signed_scale(
    numbers: Floats, vmin: float | None, vmax: float | None, label: str
) -> Scale:
    """Return a scale with white at 0 and the same strength of colour on both sides.

    It ends at the largest number; if that exceeds four times the 95th percentile, at
    twice that percentile. If all numbers have one sign, it begins or ends at 0.
    """
    if vmin is None and vmax is None:
        top = _robust_top(numbers)
        finite = numbers[np.isfinite(numbers)]
        low = -top if (finite < 0).any() else 0
        high = top if low == 0 or (finite > 0).any() else 0
    elif vmax is None:
        low = -_robust_top(numbers) if vmin is None else _finite(vmin, "vmin")
        high = -low
        if high <= low:
            raise ValueError(f"vmin: expected below 0 without vmax, got {low:g}")
    else:
        low = 0 if vmin is None else _finite(vmin, "vmin")
        high = _checks.above(vmax, "vmax", low)
        low = -high if vmin is None else low
    most = max(abs(low), abs(high))
    part = np.linspace(0.5 + low / most / 2, 0.5 + high / most / 2, 256)
    listed = load("matplotlib.colors").ListedColormap
    colors = listed(_colormap(SIGNED_COLORS, "black")(part)).with_extremes(bad="black")
    return _scale(colors, low, high, numbers, "extreme", label)


def _scale(
    colors: Colormap,
    low: float,
    high: float,
    numbers: Floats,
    reduction: str,
    label: str,
) -> Scale:
    with np.errstate(invalid="ignore"):  # NaN
        below = bool((numbers[np.isfinite(numbers)] < low).any())
        above = bool((numbers > high).any())
    extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(
        (below, above), "neither"
    )
    return Scale(colors, low, high, reduction, label, cast("Any", extend))


def _colormap(name: str, nan_color: str) -> Colormap:
    colors = load("matplotlib").colormaps[name].with_extremes(bad=nan_color)
    return cast("Colormap", colors)


def _finite(value: float, name: str) -> float:
    try:
        return _checks.above(value, name, -math.inf)
    except ValueError as error:
        raise ValueError(f"{name}: expected a finite number, got {value}") from error


def _finite_top(values: Floats) -> float:
    """Return the largest finite value, or 1 where that is 0."""
    return float(values.max(initial=0, where=np.isfinite(values))) or 1.0


def _robust_top(values: Floats) -> float:
    sizes = np.abs(values[np.isfinite(values)])
    top = _finite_top(sizes)
    usual = float(np.percentile(sizes, 95)) if sizes.size else top
    return 2 * usual if 0 < 4 * usual < top else top


def draw_cells(
    ax: Axes,
    values: Floats,
    scale: Scale,
    hidden: Flags | None = None,
    shape_of_cells: Literal["equal", "auto"] | None = None,
) -> Cells:
    """Draw values (rows, columns) with row 0 on top, each as a cell of one colour."""
    if ax.axison:
        ax.grid(False)
    ax.set_aspect(shape_of_cells or aspect(values.shape))
    image: Cells = load("attnpy.plot._cells").Cells(
        ax,
        cmap=scale.colors,
        norm=load("matplotlib.colors").Normalize(scale.low, scale.high),
        origin="upper",
        interpolation="nearest",
    )
    image.set_data(values)
    image.reduction = scale.reduction
    image.hidden, image.hidden_color = hidden, MASKED_COLOR
    image.set_clip_path(ax.patch)
    image.set_extent(image.get_extent())
    image.set_zorder(1.8)  # over the ends of tick marks, which stick out of the frame
    ax.add_image(image)
    ax.spines[:].set_visible(False)  # the image has a frame of its own
    return image


def is_crowded(cell: tuple[float, float], dpi: float) -> bool:
    """Tell whether a pixel may have several cells, in the figure or a smaller copy."""
    return min(cell) * dpi < 2


def bar_label(scale: Scale, crowded: bool) -> str:
    """Return what the colours mean, and what a pixel of several cells shows."""
    if not crowded:
        return scale.label
    which = REDUCTIONS[scale.reduction]
    return f"{scale.label}\n{which} of a pixel's cells".strip()


def bar_letters(scale: Scale) -> int:
    """Return how many letters the longest number beside a colour bar has."""
    ticker = load("matplotlib.ticker")
    ticks = ticker.AutoLocator().tick_values(scale.low, scale.high)
    formatter = ticker.ScalarFormatter()
    formatter.create_dummy_axis()
    formatter.axis.set_view_interval(scale.low, scale.high)
    return max(map(len, formatter.format_ticks(ticks)))


def write_values(
    ax: Axes, image: Cells, cell: tuple[float, float], annotate: bool | None
) -> None:
    """Write each value into its cell, dark on light or light on dark.

    None means: if the cells are large enough. Hidden cells have no number.
    """
    if not (cell[0] >= 0.2 and cell[1] >= 0.35 if annotate is None else annotate):
        return
    array: Any = image.get_array()
    values = np.ma.getdata(array)
    lightness = image.to_rgba(values)[..., :3] @ [0.299, 0.587, 0.114]
    letters = max(4.0, min(9.0, 0.45 * cell[0] / POINT, 0.37 * cell[1] / POINT))
    for (i, j), value in np.ndenumerate(values):
        if image.hidden is not None and image.hidden[i, j]:
            continue
        ax.text(
            j,
            i,
            f"{value:.2f}" if abs(value) < 100 else f"{value:.2g}",
            ha="center",
            va="center",
            fontsize=letters,
            color="black" if lightness[i, j] > 0.5 else "white",
        )


def legend_of(colors: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of a legend: a square of each colour, and its name."""
    patch = load("matplotlib.patches").Patch
    return {
        "handles": [patch(color=color, label=name) for name, color in colors.items()],
        "ncols": len(colors),
        "frameon": False,
        "borderaxespad": 0.2,
        "columnspacing": 1,
        "handlelength": 1,
    }


def add_legend(ax: Axes, colors: dict[str, str]) -> None:
    """Explain colours above an image."""
    ax.legend(**legend_of(colors), loc="lower left", bbox_to_anchor=(0, 1))


def check_title(title: str | None) -> None:
    """Require a string, or none."""
    if title is not None:
        text(title, "title")


def text(value: str, name: str) -> str:
    """Return a string, in which every character can be seen."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a string, got {type(value).__name__}")
    return shown_lines(value)


# ---- Masks ---------------------------------------------------------------------------


def hidden_cells(
    mask: ArrayLike | None, shape: tuple[int, ...], weights: Floats | None
) -> Flags | None:
    """Return where a mask hides, in the shape of what is drawn.

    That is (Lq, Lk), (H, Lq, Lk), or (layers, H, Lq, Lk), where layers have one mask.
    With weights, hidden keys must have none.
    """
    if mask is None:
        return None
    array = checked_mask(mask)
    given, heads = array.shape, shape[-3:]
    while array.ndim > len(heads) and array.shape[0] == 1:
        array = array[0]
    if not _checks.broadcasts(array.shape, heads):
        raise ValueError(
            f"mask: expected a shape that broadcasts to {heads}, got {given}"
        )
    hidden: Flags = np.broadcast_to(~array, shape)
    if weights is not None:
        places = np.argwhere(hidden & (weights != 0))
        if len(places):
            place = tuple(map(int, places[0]))
            raise ValueError(
                f"mask: expected True wherever there is a weight, got False at "
                f"{place}, where it is {weights[place]:g}"
            )
    return hidden


# ---- Labels --------------------------------------------------------------------------


def both_labels(
    shape: tuple[int, ...], query_labels: Labels, key_labels: Labels
) -> tuple[Texts, Texts]:
    """Return the labels of queries and keys, None for numbers."""
    rows = columns = None
    if query_labels is not None:
        rows = checked_labels("query_labels", query_labels, shape[0])
    if key_labels is not None:
        columns = checked_labels("key_labels", key_labels, shape[1])
    elif shape[0] == shape[1]:
        columns = rows
    return rows, columns


def label_room(labels: Texts) -> float:
    """Return how many inches the longest label takes in letters of 10 points."""
    return 0.09 * min(MAX_CHARACTERS, max(map(len, labels))) if labels else 0.3


def font_size(font: str | float) -> float:
    """Return the points of a font size, which may be relative, such as "x-small"."""
    properties = load("matplotlib.font_manager").FontProperties(size=font)
    return float(properties.get_size_in_points())


def set_ticks(
    ax: Axes,
    shape: tuple[int, ...],
    rows: Texts,
    columns: Texts,
    cell: tuple[float, float],
    font: str = "medium",
) -> None:
    """Label an image's rows and columns, as many as fit."""
    set_x_ticks(ax, shape[1], columns, cell[1], font)
    set_y_ticks(ax, shape[0], rows, cell[0], font)


def set_y_ticks(ax: Axes, count: int, labels: Texts, cell: float, font: str) -> None:
    """Label the rows."""
    letters, step = fitting(count, 1.25, cell, font, shrink=labels is not None)
    ax.set_yticks(*_ticks(count, labels, step), fontsize=letters, **AS_IT_IS)
    _shorten_tick_marks(ax, "y", letters)


def set_x_ticks(ax: Axes, count: int, labels: Texts, cell: float, font: str) -> None:
    """Label the columns: words that are too wide for them are rotated."""
    _, texts = _ticks(count, labels, 1)
    width = 0.65 * (1 + max(map(len, texts)))  # of letters of 1 point, in points
    rotation = 0
    if labels is not None and width * font_size(font) * POINT > cell:
        rotation = 45 if 1.4 * font_size(font) * POINT <= cell else 90
        width = 1.4 if rotation == 45 else 1.25
    letters, step = fitting(count, width, cell, font, shrink=rotation == 90)
    ax.set_xticks(*_ticks(count, labels, step), fontsize=letters, **AS_IT_IS)
    _shorten_tick_marks(ax, "x", letters)
    if rotation:
        ax.tick_params(axis="x", rotation=rotation)
        for text in ax.get_xticklabels():
            vertical = "top" if rotation == 45 else "center"
            text.set(ha="right", va=vertical, rotation_mode="anchor")


def fitting(
    count: int, need: float, cell: float, font: str, shrink: bool
) -> tuple[float, int]:
    """Return the size of letters in points, and which n-th label to show.

    Letters shrink, if allowed, so that each label fits. `need` is in points for letters
    of 1 point.
    """
    usual = font_size(font)
    largest = cell / POINT / need
    if shrink and MIN_LETTERS <= largest < usual:
        return largest, 1
    letters = usual
    if shrink and largest < usual:
        letters = min(usual, 1.3 * MIN_LETTERS)
    return letters, _step(count, need * letters * POINT, cell)


def _shorten_tick_marks(ax: Axes, axis: Literal["x", "y"], letters: float) -> None:
    usual = font_size("medium")
    if letters < 0.8 * usual:
        ax.tick_params(axis=axis, length=1.5, pad=1.5)


def _step(count: int, need: float, cell: float) -> int:
    """Return whether to show every 1st, 2nd, 5th, 10th ... label, so that they fit."""
    step = 1
    while step * cell < need and step < count:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def _ticks(count: int, labels: Texts, step: int) -> tuple[range, list[str]]:
    """Return the places and the texts of each step-th label."""
    places = range(0, count, step)
    if labels is None:
        return places, [str(i) for i in places]
    texts = [labels[i] for i in places]
    short = MAX_CHARACTERS - 1
    return places, [t if len(t) <= short + 1 else t[:short] + "…" for t in texts]


def check_figure(figure: Figure | SubFigure | None) -> None:
    """Require a figure, or none."""
    kind = load("matplotlib.figure").FigureBase
    if figure is not None and not isinstance(figure, kind):
        raise TypeError(
            "figure: expected a matplotlib.figure.Figure or SubFigure, got "
            f"{type(figure).__name__}"
        )
