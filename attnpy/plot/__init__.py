"""Pictures of attention, drawn with matplotlib: ``pip install 'attnpy[plot]'``.

Keys are on the x axis and queries on the y axis, from the top. matplotlib is imported
when the first picture is drawn. A function draws into the given axes or figure, or into
a new figure of pyplot; it does not call ``show`` and changes none of matplotlib's
settings. Labels and titles are shown literally, never as mathematics.

No number is lost if there are more numbers than pixels: a pixel then shows the largest
weight of its block, or what the function describes, and the legend says so. This is
decided while drawing, so it holds for every size and resolution of a saved picture.
Frames are outside the images.

The module `attnpy.plot.statistics` draws the results of `attnpy.statistics`.
"""

from attnpy.plot import statistics as statistics
from attnpy.plot.grids import head_grid, score_grid
from attnpy.plot.maps import heat_map, mask_image, position_image, score_map
from attnpy.plot.patches import attention_rollout, patch_map
from attnpy.plot.spread import entropy, entropy_bits

__all__ = [
    "attention_rollout",
    "entropy",
    "entropy_bits",
    "head_grid",
    "heat_map",
    "mask_image",
    "patch_map",
    "position_image",
    "score_grid",
    "score_map",
]


def __dir__() -> list[str]:
    return [*__all__, "statistics"]
