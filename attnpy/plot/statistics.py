"""Pictures of the results of `attnpy.statistics`, along sequences of any length.

If a sequence has more tokens than the picture has columns, a column shows the mean of
its tokens as a line, and the range of them as a band, so that no single token is lost.
As in `attnpy.plot`, matplotlib is imported when the first picture is drawn, and nothing
is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attnpy import _checks
from attnpy._labels import checked_labels, checked_numbers, shown_lines
from attnpy._statistics import Statistics
from attnpy.plot._canvas import AS_IT_IS, check_title, load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from numpy.typing import ArrayLike, NDArray

    Labels = Iterable[object] | None

__all__ = ["distance", "entropy", "overview", "received"]


def __dir__() -> list[str]:
    return __all__


LINE_COLOR, BAND_COLOR, NAN_COLOR = "tab:blue", "#a6c8e4", "tab:red"
COLUMN_PIXELS = 2  # of a column, so that a single token is seen
DECADES = 6  # of a logarithmic axis, at most
MARGIN = 0.01  # at both ends of a sequence


KINDS = {  # the axes' names, and whether heads share the y axis: some look near
    "received": ("received", "key", True),
    "entropy": ("entropy (nats)", "query", True),
    "distance": ("distance (tokens)", "query", False),
}


class Quantity(NamedTuple):
    """What is drawn along a sequence: (H, L) numbers, and the axes' names."""

    values: NDArray[np.float64]
    name: str
    along: str
    scale: str
    shared: bool  # one y axis for all heads


def received(
    values: ArrayLike,
    *,
    head_labels: Labels = None,
    figure: Figure | SubFigure | None = None,
    scale: Literal["log", "linear"] = "log",
    title: str | None = None,
) -> Figure | SubFigure:
    """Draw how much each key receives from all queries, with one y axis for all heads.

    Parameters
    ----------
    values : array_like, shape (H, Lk) or (Lk,)
        The sums, none below 0, as in `Statistics.received`. Keys with NaN have a red
        mark.
    head_labels : iterable, length H, optional
        The heads' names; by default their numbers.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; by default a new figure.
    scale : {"log", "linear"}, optional
        The scale of the y axis. A logarithmic one spans at most 6 powers of ten;
        smaller numbers, including 0, are drawn at its lower end.
    title : str, optional
        The figure's title.

    Returns
    -------
    matplotlib.figure.Figure or SubFigure
        The figure, with axes for each head, one below the other.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError
        If `values` are not real numbers, `head_labels` is a single string, `title` is
        none, or `figure` is none.
    ValueError
        If a shape, a number of names, a value or `scale` is not as described.

    See Also
    --------
    attnpy.statistics : the numbers.
    overview : all statistics of the same heads.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> from attnpy.plot import statistics
    >>> query, key = np.random.default_rng(0).standard_normal((2, 3, 2000, 16))
    >>> found = attnpy.statistics(query, key, causal=True)
    >>> figure = statistics.received(found.received, title="three heads")
    >>> [ax.get_ylabel() for ax in figure.axes]
    ['head 0', 'head 1', 'head 2']
    """
    _checks.one_of(scale, "scale", ("log", "linear"))
    one = _quantity(values, "values", "received", scale)
    return _draw([one], head_labels, figure, title)


def entropy(
    values: ArrayLike,
    *,
    head_labels: Labels = None,
    figure: Figure | SubFigure | None = None,
    title: str | None = None,
) -> Figure | SubFigure:
    """Draw how widely each query looks.

    Parameters
    ----------
    values : array_like, shape (H, Lq) or (Lq,)
        The entropies in nats, none below 0, as in `Statistics.entropy`. Queries with
        NaN have a red mark.
    head_labels, figure, title : optional
        As for `received`.

    Returns
    -------
    matplotlib.figure.Figure or SubFigure
        The figure, with axes for each head, one below the other.

    Raises
    ------
    ImportError, TypeError, ValueError
        As for `received`.

    See Also
    --------
    attnpy.statistics : the numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.plot import statistics
    >>> figure = statistics.entropy(np.log1p(np.arange(1000)))
    >>> figure.axes[0].get_xlabel()
    'query'
    """
    one = _quantity(values, "values", "entropy")
    return _draw([one], head_labels, figure, title)


def distance(
    values: ArrayLike,
    *,
    head_labels: Labels = None,
    figure: Figure | SubFigure | None = None,
    title: str | None = None,
) -> Figure | SubFigure:
    """Draw how far each query looks, each head with its own y axis.

    Parameters
    ----------
    values : array_like, shape (H, Lq) or (Lq,)
        The mean distances in tokens, none below 0, as in `Statistics.distance`. Queries
        with NaN have a red mark.
    head_labels, figure, title : optional
        As for `received`.

    Returns
    -------
    matplotlib.figure.Figure or SubFigure
        The figure, with axes for each head, one below the other.

    Raises
    ------
    ImportError, TypeError, ValueError
        As for `received`.

    See Also
    --------
    attnpy.statistics : the numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.plot import statistics
    >>> figure = statistics.distance(np.arange(1000) / 2, head_labels=["uniform"])
    >>> figure.axes[0].get_ylabel()
    'uniform'
    """
    one = _quantity(values, "values", "distance")
    return _draw([one], head_labels, figure, title)


def overview(
    found: Statistics,
    *,
    head_labels: Labels = None,
    figure: Figure | SubFigure | None = None,
    scale: Literal["log", "linear"] = "log",
    title: str | None = None,
) -> Figure | SubFigure:
    """Draw what keys receive, entropy and distance: a row for each head.

    Parameters
    ----------
    found : Statistics
        The statistics of one batch, ``(H, L)`` or ``(L,)`` each; those that are None
        are left out.
    head_labels, figure, scale, title : optional
        As for `received`; `scale` is that of what keys receive.

    Returns
    -------
    matplotlib.figure.Figure or SubFigure
        The figure, with axes for each head and each statistic, row by row.

    Raises
    ------
    ImportError, TypeError, ValueError
        As for `received`; a ValueError too if there is nothing to draw.

    See Also
    --------
    attnpy.statistics : the numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> from attnpy.plot import statistics
    >>> query, key = np.random.default_rng(0).standard_normal((2, 2, 500, 16))
    >>> figure = statistics.overview(attnpy.statistics(query, key))
    >>> [ax.get_title() for ax in figure.axes[:3]]
    ['received', 'entropy (nats)', 'distance (tokens)']
    """
    _checks.one_of(scale, "scale", ("log", "linear"))
    if not isinstance(found, Statistics):
        raise TypeError(
            "found: expected what attnpy.statistics returns, got "
            f"{type(found).__name__}"
        )
    quantities = []
    if found.received is not None:
        quantities.append(
            _quantity(found.received, "found.received", "received", scale)
        )
    if found.entropy is not None:
        quantities.append(_quantity(found.entropy, "found.entropy", "entropy"))
    if found.distance is not None:
        quantities.append(_quantity(found.distance, "found.distance", "distance"))
    if not quantities:
        raise ValueError(
            "found: expected received, entropy or distance to draw, got none of them"
        )
    return _draw(quantities, head_labels, figure, title)


def _quantity(
    values: ArrayLike, argument: str, kind: Literal["received", "entropy", "distance"],
    scale: str = "linear",
) -> Quantity:  # fmt: skip
    numbers = checked_numbers(argument, values, {1: "(L,)", 2: "(H, L)"})
    wrong = numbers[(numbers < 0) | np.isinf(numbers)]
    if wrong.size:
        raise ValueError(
            f"{argument}: expected none below 0 or infinite, got {wrong[0]:g}"
        )
    name, along, shared = KINDS[kind]
    return Quantity(np.atleast_2d(numbers), name, along, scale, shared)


def _draw(
    quantities: list[Quantity],
    head_labels: Labels,
    figure: Figure | SubFigure | None,
    title: str | None,
) -> Figure | SubFigure:
    """Draw a row for each head, a column for each quantity."""
    check_title(title)
    n_heads = len(quantities[0].values)
    if any(len(quantity.values) != n_heads for quantity in quantities):
        raise ValueError(
            "found: expected statistics of as many heads, got "
            f"{[len(quantity.values) for quantity in quantities]}"
        )
    names = [f"head {h}" for h in range(n_heads)]
    if head_labels is not None:
        names = checked_labels("head_labels", head_labels, n_heads)
    n_columns = len(quantities)
    figure = _checked_figure(figure, n_heads, n_columns)
    grid = figure.subplots(n_heads, n_columns, sharex="col", squeeze=False)
    for column, quantity in zip(grid.T, quantities, strict=True):
        for ax, values in zip(column, quantity.values, strict=True):
            shown = quantity.values if quantity.shared else values
            _draw_line(ax, values, _set_limits(ax, shown, quantity.scale))
        column[0].set_title(quantity.name, fontsize="medium")
        column[-1].set_xlabel(quantity.along)
    for ax, name in zip(grid[:, 0], names, strict=True):
        ax.set_ylabel(name, **AS_IT_IS)
    handles = {
        label: handle
        for ax in grid.flat
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if handles:
        figure.legend(
            handles=list(handles.values()), loc="outside lower right", ncols=4,
            frameon=False,
        )  # fmt: skip
    if title is not None:
        figure.suptitle(shown_lines(title), **AS_IT_IS)
    return figure


def _checked_figure(
    figure: Figure | SubFigure | None, n_heads: int, n_columns: int
) -> Figure | SubFigure:
    """Return the figure given, or a new one."""
    kind = load("matplotlib.figure").FigureBase
    if figure is None:
        height = max(1.2, min(1.5, 12 / n_heads))
        new: Figure = load("matplotlib.pyplot").figure(
            figsize=(max(8.0, 4.3 * n_columns), 1 + height * n_heads),
            layout="constrained",
        )
        return new
    if not isinstance(figure, kind):
        raise TypeError(
            "figure: expected a matplotlib.figure.Figure or SubFigure, got "
            f"{type(figure).__name__}"
        )
    given: Figure | SubFigure = figure
    return given


def _set_limits(ax: Axes, values: NDArray[np.float64], scale: str) -> float:
    """Set up the axes for values (..., L); return their lower end."""
    length = values.shape[-1]
    top = float(np.max(values, initial=0, where=~np.isnan(values)))
    ax.set_xlim(-0.5 - MARGIN * length, length - 0.5 + MARGIN * length)
    if scale == "linear" or top == 0:
        ax.set_ylim(0, 1.05 * top or 1)
        return 0.0
    least = float(np.min(values, initial=top, where=values > 0))
    powers = np.floor(np.log10(least)), np.ceil(np.log10(top))
    low = 10.0 ** max(powers[0], powers[1] - DECADES)
    ax.set_yscale("log")
    ax.set_ylim(low, 10.0 ** (powers[1] + 0.1))  # the top of a column is seen
    return float(low)


def _draw_line(ax: Axes, values: NDArray[np.float64], least: float) -> None:
    """Draw values along the x axis, a column of pixels for each block of them."""
    width = int(ax.get_window_extent().width) // COLUMN_PIXELS
    edges, low, mean, high = _bands(np.maximum(values, least), max(50, width))
    style: dict[str, Any] = {"baseline": None, "color": LINE_COLOR, "linewidth": 1}
    if len(mean) < len(values):
        n = -(-len(values) // len(mean))
        style["label"] = "mean"
        band = ax.stairs(high, edges, baseline=low, fill=True, linewidth=0.5)
        band.set(color=BAND_COLOR, label=f"smallest to largest of {n:,} tokens")
    ax.stairs(mean, edges, **style)
    spoilt = np.flatnonzero(np.isnan(values))
    if spoilt.size:
        ax.plot(
            spoilt, np.zeros(spoilt.size), "|", color=NAN_COLOR, markersize=12,
            transform=ax.get_xaxis_transform(), clip_on=False, label="NaN",
        )  # fmt: skip


def _bands(values: NDArray[np.float64], n_columns: int) -> tuple[NDArray[Any], ...]:
    """Cut values (L,) into this many blocks: edges, and minimum, mean, maximum of each.

    NaN is ignored, unless a block has nothing else.
    """
    n_blocks = min(n_columns, len(values))
    edges = np.linspace(0, len(values), n_blocks + 1).astype(np.intp)
    starts, there = edges[:-1], ~np.isnan(values)
    low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    sums = np.add.reduceat(np.where(there, values, 0), starts)
    counts = np.add.reduceat(there, starts, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # a block of NaN
        return edges - 0.5, low, sums / counts, high
