"""An image of cells that loses none if there are more cells than pixels.

matplotlib's own images then show every n-th cell, and draw a frame over the outermost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.image import AxesImage
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

FRAME_WIDTH, FRAME_COLOR = 0.6, "0.6"  # points; lighter than a column of weights
OUTWARDS = np.array([-1, -1, 1, 1])  # of x0, y0, x1, y1


class Blocks(NamedTuple):
    """Along one axis: which cells belong to each pixel."""

    starts: NDArray[np.intp]  # (pixels,): the first cell of each, never descending
    stop: int  # the end of the last one's
    first_pixel: int
    backwards: bool  # the first cell is at the last pixel


class Cells(AxesImage):
    """An image (rows, columns), row 0 on top, with a thin frame around it.

    Attributes
    ----------
    hidden : ndarray of bool, shape (rows, columns), or None
        Cells that have `hidden_color`, whatever their values are.
    hidden_color : str
        Their colour. A pixel of several cells has it if all of them are hidden.
    reduction : {"max", "mean", "extreme", "middle"}
        What a pixel shows of several cells: their largest value, their mean, the one
        farthest from 0, or the middle between the largest and the smallest.
    """

    hidden: Flags | None = None
    hidden_color: str = "none"
    reduction: str = "max"

    def make_image(
        self, renderer: Any, magnification: float = 1.0, unsampled: bool = False
    ) -> tuple[Any, float, float, Any]:
        """Return the colour of each pixel, from the lowest row, and where they begin.

        This is what `AxesImage` calls, with its arguments.
        """
        n_rows, n_columns = self.get_size()
        box = self.axes.bbox
        left, right, bottom, top = self.get_extent()
        edges = self.get_transform().transform([(left, top), (right, bottom)])
        (x0, y0), (x1, y1) = edges * magnification
        x_limits = box.x0 * magnification, box.x1 * magnification
        y_limits = box.y0 * magnification, box.y1 * magnification
        columns = _blocks(x0, x1, x_limits, n_columns)
        rows = _blocks(y0, y1, y_limits, n_rows)
        if rows is None or columns is None:
            return None, 0, 0, None
        colors = self._colors(rows, columns)
        colors = colors[:: -1 if rows.backwards else 1]
        colors = colors[:, :: -1 if columns.backwards else 1]
        x, y = columns.first_pixel / magnification, rows.first_pixel / magnification
        return np.ascontiguousarray(colors), x, y, Affine2D()

    def _colors(self, rows: Blocks, columns: Blocks) -> NDArray[np.uint8]:
        array: Any = self.get_array()
        values, hidden = reduced(
            np.ma.getdata(array), self.hidden, rows, columns, self.reduction
        )
        colors: NDArray[np.uint8] = self.to_rgba(
            values, alpha=self.get_alpha(), bytes=True
        )
        if hidden is not None:
            colors[hidden] = np.rint(255 * np.array(to_rgba(self.hidden_color)))
        return colors

    def draw(self, renderer: Any) -> None:
        """Draw the image, and the frame outside of it."""
        super().draw(renderer)
        if self.get_visible():
            self._draw_frame(renderer)

    def _draw_frame(self, renderer: Any) -> None:
        """Draw the frame in whole pixels, directly around the image."""
        edges = self.axes.bbox.extents  # x0, y0, x1, y1
        box = self.get_window_extent().extents
        corners = np.concatenate(
            [np.maximum(edges[:2], box[:2]), np.minimum(edges[2:], box[2:])]
        )
        point = renderer.points_to_pixels(1)
        width = max(1.0, np.rint(FRAME_WIDTH * point))
        x0, y0, x1, y1 = np.floor(corners + 0.5) + OUTWARDS * (width / 2)
        gc = renderer.new_gc()
        gc.set_linewidth(width / point)
        gc.set_foreground(FRAME_COLOR)
        gc.set_joinstyle("miter")
        gc.set_snap(False)
        frame = Path([(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)], closed=True)
        renderer.draw_path(gc, frame, Affine2D())
        gc.restore()


def reduced(
    values: Floats,
    hidden: Flags | None,
    rows: Blocks,
    columns: Blocks,
    reduction: str,
) -> tuple[Floats, Flags | None]:
    """Return a value for each pixel, and whether all of its cells are hidden."""

    def over(function: np.ufunc, array: NDArray[Any]) -> NDArray[Any]:
        array = array[: rows.stop, : columns.stop]
        array = function.reduceat(array, rows.starts, axis=0)
        return function.reduceat(array, columns.starts, axis=1)

    def seen(otherwise: float) -> Floats:
        return values if hidden is None else np.where(hidden, otherwise, values)

    if reduction == "max":
        result = over(np.maximum, seen(-np.inf))
    elif reduction == "mean":
        counts = over(np.add, np.ones(values.shape) if hidden is None else 1.0 - hidden)
        result = over(np.add, seen(0)) / np.maximum(counts, 1)
    else:
        high, low = over(np.maximum, seen(-np.inf)), over(np.minimum, seen(np.inf))
        if reduction == "extreme":
            result = np.where(high >= -low, high, low)
        else:
            with np.errstate(invalid="ignore"):  # all hidden
                result = (high + low) / 2
    return result, None if hidden is None else over(np.logical_and, hidden)


def _blocks(
    first: float, last: float, limits: tuple[float, float], count: int
) -> Blocks | None:
    """Divide cells among the pixels from `first` to `last` that are in the limits.

    If there are more cells than pixels, each cell belongs to one pixel; otherwise a
    pixel belongs to the cell at its middle, and each cell has one.
    """
    low, high = max(min(first, last), limits[0]), min(max(first, last), limits[1])
    if low >= high:
        return None
    begin = int(np.floor(low + 0.5))
    end = max(begin + 1, int(np.floor(high + 0.5)))
    places = (np.arange(begin, end + 1) - first) / (last - first) * count
    backwards = last < first
    if backwards:
        places = places[::-1]
    # The outermost pixels are rounded: they belong to the image's edges.
    if low == min(first, last):
        places[-1 if backwards else 0] = count if backwards else 0
    if high == max(first, last):
        places[0 if backwards else -1] = 0 if backwards else count
    if places[-1] - places[0] < end - begin:
        places = (places[:-1] + places[1:]) / 2
        starts = np.clip(np.floor(places), 0, count - 1).astype(np.intp)
        stop = int(starts[-1]) + 1
    else:
        tiny = 1e-6  # of a cell: what rounding may take from a whole number
        starts = np.clip(np.floor(places[:-1] + tiny), 0, count - 1).astype(np.intp)
        stop = min(count, max(int(np.ceil(places[-1] - tiny)), int(starts[-1]) + 1))
    return Blocks(starts, stop, begin, backwards)
