"""Pictures of attention, drawn with matplotlib: ``pip install 'attnpy[plot]'``.

In each of them the keys are on the x axis and the queries on the y axis, from the top.
matplotlib is imported when the first picture is drawn, not before. A function draws
into the axes or figure that it is given, or into a new figure of pyplot; it shows
nothing and changes none of matplotlib's settings. Labels and titles are shown as they
are, never read as mathematics.

Nothing is lost where there are more numbers than pixels: a pixel then shows the largest
weight of its block, or what the function says, and the legend says so. This is decided
when the picture is drawn, so that it holds for every size and resolution it is saved
with. Frames are outside the images.

The module `attnpy.plot.statistics` draws what `attnpy.statistics` returns.
"""

from attnpy.plot import statistics as statistics
from attnpy.plot.grids import head_grid, score_grid
from attnpy.plot.maps import heat_map, mask_image, position_image, score_map
from attnpy.plot.spread import entropy, entropy_bits

__all__ = [
    "entropy",
    "entropy_bits",
    "head_grid",
    "heat_map",
    "mask_image",
    "position_image",
    "score_grid",
    "score_map",
]


def __dir__() -> list[str]:
    return [*__all__, "statistics"]
