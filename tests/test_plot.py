"""The pictures show the numbers they were given, and nothing breaks them."""

import base64
import io
import itertools
import pickle
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from support.arrays import normal, random_weights
from support.errors import refused
from support.processes import assert_runs
from support.tutorial import WORDS

import attnpy
from attnpy import plot

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")

# Mathematics, if it were read as such, or more than one line, or nothing to see.
ODD = ["$x", "a$b$c", "_x_^2", "\\frac$", "new\nline", "%#&{}", "\udc80", "", "$\\bad$"]
SHOWN = [
    *ODD[:4],
    r"new\nline",
    "%#&{}",
    r"\udc80",
    *ODD[7:],
]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def tick_texts(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def drawn(ax):
    """The numbers of an image, after the whole figure has been drawn."""
    ax.figure.canvas.draw()
    (image,) = ax.images
    return np.ma.getdata(image.get_array())


def pixels(ax):
    """The colours (height, width, 3) inside the axes, with a frame of one pixel."""
    if ax.figure.stale:
        ax.figure.canvas.draw()
    picture = np.asarray(ax.figure.canvas.buffer_rgba())[::-1, :, :3]
    x0, y0, x1, y1 = np.floor(ax.get_window_extent().extents + 0.5).astype(int)
    return picture[y0 - 1 : y1 + 1, x0 - 1 : x1 + 1][::-1]


def runs(line, color):
    """How many runs of this colour a line (n, 3) of pixels has."""
    same = (line == np.rint(255 * np.array(color[:3])).astype(int)).all(axis=-1)
    return int(same[0]) + int((same[1:] & ~same[:-1]).sum())


def place_in_grid(ax):
    """The row and the column of an image of head_grid."""
    corners = [np.round(other.get_position().p0, 9) for other in ax.figure.axes[:-1]]
    columns, rows = (sorted(set(sides)) for sides in zip(*corners, strict=True))
    x, y = np.round(ax.get_position().p0, 9)
    return len(rows) - 1 - rows.index(y), columns.index(x)


def values_written(ax):
    return [text.get_text() for text in ax.texts]


def assert_queries_go_down_and_keys_right(ax, n_queries, n_keys):
    (image,) = ax.images
    assert image.origin == "upper"
    assert tuple(image.get_extent()) == (-0.5, n_keys - 0.5, n_queries - 0.5, -0.5)
    assert ax.get_xlim() == (-0.5, n_keys - 0.5)
    assert ax.get_ylim() == (n_queries - 0.5, -0.5)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")


@pytest.mark.quick
def test_heat_map_draws_the_weights():
    weights = random_weights(3, 5)
    ax = plot.heat_map(weights, ["a", "b", 7], WORDS, title="A title")
    np.testing.assert_array_equal(drawn(ax), weights)
    assert_queries_go_down_and_keys_right(ax, 3, 5)
    assert tick_texts(ax.yaxis) == ["a", "b", "7"]
    assert tick_texts(ax.xaxis) == WORDS
    assert ax.images[0].get_clim() == (0, weights.max())
    assert ax.get_title() == "A title"
    assert len(ax.figure.axes) == 2, "the image and its colour bar"
    assert values_written(ax) == [f"{weight:.2f}" for weight in weights.flat]


def test_any_dtype_of_weights_is_drawn(dtype):
    weights = random_weights(4, 4).astype(dtype)
    np.testing.assert_array_equal(drawn(plot.heat_map(weights)), weights.astype(float))


def test_labels_of_keys_are_those_of_queries_where_the_sizes_agree():
    assert tick_texts(plot.heat_map(random_weights(5, 5), WORDS).xaxis) == WORDS
    assert tick_texts(plot.heat_map(random_weights(5, 3), WORDS).xaxis) == list("012")
    ax = plot.heat_map(random_weights(5, 5), key_labels=WORDS)
    assert tick_texts(ax.yaxis) == list("01234")


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (60, 60), (512, 512)])
@pytest.mark.parametrize("labelled", [True, False])
def test_labels_do_not_overlap_at_any_size(shape, labelled):
    rows, columns = ([f"token{i}" for i in range(n)] for n in shape)
    labels = (rows, columns) if labelled else ()
    ax = plot.heat_map(random_weights(*shape), *labels)
    ax.figure.canvas.draw()
    whole = ax.figure.bbox
    for axis, side in ((ax.yaxis, 1), (ax.xaxis, 0)):
        texts = axis.get_ticklabels()
        assert texts[0].get_text() == ("token0" if labelled else "0")
        places = np.abs(np.diff([text.get_position()[side] for text in texts]))
        cell = (
            getattr(ax.get_window_extent(), ("width", "height")[side]) / shape[1 - side]
        )
        height = texts[0].get_fontsize() * ax.figure.dpi / 72
        assert (places * cell > height).all()
        for text in texts:
            box = text.get_window_extent()
            assert whole.x0 <= box.x0 <= box.x1 <= whole.x1
            assert whole.y0 <= box.y0 <= box.y1 <= whole.y1


def test_unrotated_labels_do_not_overlap():
    for n in (5, 30, 100, 512):
        ax = plot.heat_map(random_weights(n, n))
        ax.figure.canvas.draw()
        boxes = [text.get_window_extent() for text in ax.get_xticklabels()]
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_long_labels_are_cut():
    ax = plot.heat_map(random_weights(2, 2), ["x" * 30, "x" * 31])
    assert tick_texts(ax.yaxis) == ["x" * 30, "x" * 29 + "…"]


@pytest.mark.parametrize("n", [5, 100])
def test_annotation_can_be_chosen(n):
    weights = random_weights(n, n)
    assert len(values_written(plot.heat_map(weights))) == (25 if n == 5 else 0)
    assert values_written(plot.heat_map(weights, annotate=False)) == []
    if n == 5:
        ax = plot.heat_map(weights, annotate=True)
        assert values_written(ax)[1] == f"{weights[0, 1]:.2f}"


def test_annotation_is_dark_on_light_and_light_on_dark():
    ax = plot.heat_map([[0.0, 1.0]])
    assert [text.get_color() for text in ax.texts] == ["black", "white"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda labels: plot.heat_map(random_weights(9, 9), labels, title="$a_1\\$"),
        lambda labels: plot.mask_image(np.eye(9, dtype=bool), labels),
        lambda labels: plot.entropy(random_weights(9, 2, 2), head_labels=labels),
        lambda labels: plot.entropy(random_weights(2, 9, 2, 2), head_labels=labels),
        lambda labels: plot.head_grid(
            random_weights(1, 9, 9), labels, title="$\\bad$"
        ).axes[0],
    ],
)
def test_labels_are_shown_as_they_are(draw):
    ax = draw(ODD)
    ax.figure.canvas.draw()
    assert tick_texts(ax.xaxis) == SHOWN


# What XML does not have, or shows nothing: the first and last of each kind.
NOT_XML = [
    *("\0", "\b", "\x1b[31m", "\x1f", "\x7f", "\x9f", "\ud800", "\udfff", "\ufffe"),
    *("\uffff", "\ufdd0", "\U0001fffe", "\U0010ffff", "\u2028", "]]>", "--", "<a&b>"),
]


@pytest.mark.parametrize("fonttype", ["path", "none"])
@pytest.mark.parametrize(
    "draw",
    [
        lambda labels, text: plot.heat_map(
            random_weights(17, 17), labels, title=text, annotate=False
        ),
        lambda labels, text: plot.score_map(
            random_weights(17, 17), labels, title=text, label=text, annotate=False
        ),
        lambda labels, text: plot.mask_image(
            np.eye(17, dtype=bool), labels, title=text
        ),
        lambda labels, text: plot.position_image(random_weights(3, 4), title=text),
        lambda labels, text: plot.entropy(
            random_weights(17, 2, 2), head_labels=labels, title=text
        ),
        lambda labels, text: plot.head_grid(
            random_weights(1, 17, 17), labels, title=text
        ).axes[0],
        lambda labels, text: plot.score_grid(
            random_weights(1, 17, 17), labels, title=text, label=text
        ).axes[0],
        lambda labels, text: plot.statistics.received(
            random_weights(17, 5), head_labels=labels, title=text
        ).axes[0],
    ],
)
def test_pictures_in_svg_are_xml_whatever_labels_and_titles_have(draw, fonttype):
    text = "two\nlines " + "".join(NOT_XML)
    figure = draw(NOT_XML, text).figure
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": fonttype}):
        figure.savefig(file, format="svg")
    content = file.getvalue().decode("utf-8")
    assert ElementTree.fromstring(content).tag.endswith("svg")
    assert "two" in content
    assert r"\ufffe" in content
    assert r"\U0010ffff" in content


def test_labels_are_not_read_as_tex():
    with matplotlib.rc_context({"text.usetex": True}):
        ax = plot.heat_map(random_weights(2, 2), ["a_b", "$"], title="50 %")
    texts = [ax.title, *ax.get_xticklabels(), *ax.get_yticklabels()]
    assert not any(text.get_usetex() for text in texts)


def test_emoji_are_drawn_or_boxes_in_their_place(recwarn):
    ax = plot.heat_map(random_weights(2, 2), ["\N{GRINNING FACE}", "\N{FAMILY}"])
    ax.figure.canvas.draw()


def test_nan_is_drawn_in_its_own_colour():
    weights = np.array([[0.5, np.nan], [0.0, 1.0]])
    image = plot.heat_map(weights).images[0]
    assert image.get_clim() == (0, 1)
    colors = image.to_rgba(image.get_array())
    assert not (colors[0, 1] == colors[[0, 1, 1], [0, 0, 1]]).all(axis=-1).any()
    plot.heat_map([[np.nan]]).figure.canvas.draw()
    plot.heat_map([[0.0]]).figure.canvas.draw()


@pytest.mark.quick
def test_numbers_of_one_sign_have_a_scale_that_ends_at_zero():
    assert plot.score_map([[1.0, 3.0]]).images[0].get_clim() == (0, 3)
    assert plot.score_map([[-1.0, -3.0]]).images[0].get_clim() == (-3, 0)
    assert plot.score_map([[-1.0, 3.0]]).images[0].get_clim() == (-3, 3)
    image = plot.score_map([[0.0, 3.0]]).images[0]
    white, blue = image.to_rgba([0.0, 3.0])
    both = plot.score_map([[-3.0, 3.0]]).images[0]
    np.testing.assert_allclose(blue, both.to_rgba([3.0])[0])
    np.testing.assert_allclose(white, both.to_rgba([0.0])[0], atol=0.01)


@pytest.mark.parametrize(
    ("draw", "low"),
    [
        (lambda **limits: plot.heat_map([[0.2, 0.4]], **limits), 0),
        (lambda **limits: plot.head_grid([[[0.2, 0.4]]], **limits).axes[0], 0),
        (lambda **limits: plot.score_map([[0.2, -0.4]], **limits), -0.3),
        (lambda **limits: plot.score_grid([[[0.2, -0.4]]], **limits).axes[0], -0.3),
        (lambda **limits: plot.position_image([[0.2, -0.4]], **limits), -0.3),
        (lambda **limits: plot.entropy(random_weights(1, 1, 2, 2), **limits), 0),
    ],
)
def test_vmin_and_vmax_are_the_ends_of_the_colour_scale(draw, low):
    assert draw(vmax=0.3).images[0].get_clim() == (low, 0.3)
    assert draw(vmin=-0.1, vmax=0.3).images[0].get_clim() == (-0.1, 0.3)


def test_limits_of_bars_are_those_of_their_axis():
    assert plot.entropy(random_weights(3, 4, 4), vmin=1, vmax=3).get_ylim() == (1, 3)


def test_colour_bar_points_to_numbers_beyond_its_ends():
    def arrows(ax):
        return ax.images[0].colorbar.extend

    assert arrows(plot.heat_map([[0.1, 0.5]])) == "neither"
    assert arrows(plot.heat_map([[0.1, 0.5]], vmax=0.4)) == "max"
    assert arrows(plot.heat_map([[0.1, 0.5]], vmin=0.2, vmax=0.4)) == "both"
    assert arrows(plot.score_map([[-0.5, 0.1]], vmax=0.4)) == "min"
    figure = plot.head_grid([[[0.1, 0.5]]], vmax=0.4)
    assert figure.axes[-1].get_ylim() == (0, 0.4)


def test_head_grid_draws_every_head_on_one_scale():
    weights = random_weights(2, 3, 4, 5)
    figure = plot.head_grid(weights, list("abcd"), WORDS, title="A title")
    figure.canvas.draw()
    *heads, bar = figure.axes
    assert len(heads) == 6
    for i, ax in enumerate(heads):
        layer, head = divmod(i, 3)
        assert ax.get_title() == f"layer {layer} head {head}"
        np.testing.assert_array_equal(drawn(ax), weights[layer, head])
        assert ax.images[0].get_clim() == (0, weights.max())
        assert place_in_grid(ax) == (layer, head)
        assert tick_texts(ax.yaxis) == (list("abcd") if head == 0 else [])
        assert tick_texts(ax.xaxis) == (WORDS if layer == 1 else [])
    assert bar.get_ylabel() == "weight"
    assert figure.get_suptitle() == "A title"
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key", "query")


@pytest.mark.quick
def test_head_grid_wraps_many_heads_of_one_layer():
    figure = plot.head_grid(random_weights(12, 3, 3))
    places = [place_in_grid(ax) for ax in figure.axes[:-1]]
    assert places == list(itertools.product(range(2), range(6)))
    titles = [ax.get_title() for ax in figure.axes[:-1]]
    assert titles == [f"head {h}" for h in range(12)]


# ---- No stripe is lost, at any size --------------------------------------------------

SIZES = [15, 48, 64, 73, 100, 200, 1000]


def stripes(n):
    """Columns to mark: the outermost two and others, with a pixel between any two."""
    return sorted({0, n // 3, n // 2 + n // 20, n - 1})


def stripe(n, shape=None):
    values = np.zeros(shape or (n, n))
    values[..., stripes(n)] = 1
    return values


def assert_stripes(ax, n, color=None):
    """Each marked column is there from top to bottom, and the frame covers none."""
    image = ax.images[0]
    color = image.to_rgba(1.0) if color is None else color
    crop = pixels(ax)
    inside = crop[1:-1, 1:-1]
    for row in (0, len(inside) // 2, -1):
        assert runs(inside[row], color) == len(stripes(n)), row
    assert runs(inside[len(inside) // 2, :1], color) == 1
    assert runs(inside[len(inside) // 2, -1:], color) == 1
    for ring in (crop[0, 2:-2], crop[2:-2, -1]):  # where no tick marks are
        assert (ring == 153).all(), "the frame is around the image"


@pytest.mark.parametrize("n", SIZES)
def test_heat_map_shows_every_stripe(n):
    options = {"annotate": False, "vmax": 1}
    assert_stripes(plot.heat_map(stripe(n), **options), n)
    ax = plot.heat_map(stripe(n).T, **options)
    color = ax.images[0].to_rgba(1.0)
    assert runs(pixels(ax)[1:-1, 7], color) == len(stripes(n))
    labelled = plot.heat_map(stripe(n), [f"token{i}" for i in range(n)], **options)
    assert_stripes(labelled, n)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("heads", [(2, 3), (4,)])
def test_head_grid_shows_every_stripe_of_every_head(n, heads):
    figure = plot.head_grid(stripe(n, (*heads, n, n)))
    first = pixels(figure.axes[0])[1:-1, 1:-1]
    for ax in figure.axes[:-1]:
        assert_stripes(ax, n)
        inside = pixels(ax)[1:-1, 1:-1]
        np.testing.assert_array_equal(inside, first, "equal heads look alike")


@pytest.mark.parametrize("n", SIZES)
def test_encoding_shows_every_stripe(n):
    assert_stripes(plot.position_image(stripe(n)), n)
    ax = plot.position_image(-stripe(n) + 0.4)
    assert_stripes(ax, n, ax.images[0].to_rgba(-0.6))


@pytest.mark.parametrize("n", SIZES)
def test_scores_show_every_stripe_of_either_sign(n):
    assert_stripes(plot.score_map(stripe(n), annotate=False), n)
    ax = plot.score_grid(-stripe(n)[None], mask=np.ones(n, bool)).axes[0]
    assert_stripes(ax, n, ax.images[0].to_rgba(-1.0))


@pytest.mark.parametrize("n", [n for n in SIZES if n > 80])
@pytest.mark.parametrize("shown", [True, False])
def test_mask_shows_every_stripe_of_either_kind(n, shown):
    ax = plot.mask_image((stripe(n) == 1) == shown)
    image = ax.images[0]
    crop = pixels(ax)[1:-1, 1:-1]
    rest = image.to_rgba(float(not shown))
    others = np.ones_like(crop[0]) * np.rint(255 * np.array(rest[:3])).astype(np.uint8)
    for row in (0, len(crop) // 2, -1):
        marked = (crop[row] != others).any(axis=-1)
        assert marked[0] and marked[-1]
        assert (marked[1:] & ~marked[:-1]).sum() + 1 == len(stripes(n))


def test_mask_has_a_colour_for_a_pixel_of_both_kinds():
    ax = plot.mask_image(np.tile([True, False], (1000, 1500)))
    *_, text = ax.get_legend().get_texts()
    *_, patch = ax.get_legend().get_patches()
    assert text.get_text() == "some of a pixel's cells"
    (color,) = np.unique(pixels(ax)[1:-1, 1:-1].reshape(-1, 3), axis=0)
    np.testing.assert_array_equal(
        color, np.rint(255 * np.array(patch.get_facecolor()))[:3]
    )


@pytest.mark.parametrize("dpi", [37, 72, 150])
@pytest.mark.parametrize("n", [73, 1000])
def test_saved_pictures_show_every_stripe(n, dpi):
    figure = plot.head_grid(stripe(n, (2, 3, n, n)), list(range(n)), title="A title")
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi, bbox_inches="tight")
    file.seek(0)
    picture = np.rint(255 * pyplot.imread(file)[:, :, :3]).astype(int)
    color = figure.axes[0].images[0].to_rgba(1.0)
    counts = [runs(line, color) for line in picture]
    assert counts.count(3 * len(stripes(n))) > len(counts) / 3


def test_vector_pictures_show_every_stripe():
    ax = plot.heat_map(stripe(1000))
    file = io.BytesIO()
    ax.figure.savefig(file, format="svg", dpi=50)
    images = re.findall(rb"data:image/png;base64,\s*([^\"]+)\"", file.getvalue())
    decoded = pyplot.imread(io.BytesIO(base64.b64decode(images[0])))[:, :, :3]
    row = np.rint(255 * decoded[len(decoded) // 2]).astype(int)
    assert len(row) < 500
    assert runs(row, ax.images[0].to_rgba(1.0)) == len(stripes(1000))


def test_part_of_an_image_shows_its_cells():
    weights = random_weights(40, 40)
    ax = plot.heat_map(weights, annotate=False)
    image = ax.images[0]
    ax.set_xlim(9.5, 19.5)
    ax.set_ylim(-0.5, 9.5)  # row 0 at the bottom
    crop = pixels(ax)[1:-1, 1:-1]
    places = ((np.arange(10) + 0.5) / 10 * len(crop)).astype(int)
    seen = crop[np.ix_(places, places)]
    expected = image.to_rgba(weights[9::-1, 10:20], bytes=True)[..., :3]
    np.testing.assert_array_equal(seen, expected)


def test_pixel_of_many_cells_shows_what_the_legend_says():
    def drawn_colors(draw, label):
        figure = pyplot.figure(figsize=(3, 3), dpi=100)
        ax = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        draw(ax)
        assert figure.axes[-1].get_ylabel() == label
        ax.set_axes_locator(None)
        ax.set_position((0.1, 0.1, 0.8, 0.8))  # 240 pixels, without room for the bar
        figure.axes[-1].set_visible(False)
        return pixels(ax)[1:-1, 1:-1], ax.images[0]

    values = np.tile([[0.2, 0.9], [0.0, 0.4]], (240, 240))  # two cells a pixel
    for reduction, word, value in (("max", "largest", 0.9), ("mean", "mean", 0.375)):
        colors, image = drawn_colors(
            lambda ax, how=reduction: plot.heat_map(values, ax=ax, reduction=how),
            f"weight\n{word} of a pixel's cells",
        )
        assert (colors == image.to_rgba(value, bytes=True)[:3]).all()
    colors, image = drawn_colors(
        lambda ax: plot.score_map(values - 0.5, ax=ax),
        "score\nfarthest from 0 of a pixel's cells",
    )
    assert (colors == image.to_rgba(-0.5, bytes=True)[:3]).all()


def test_nan_is_not_lost_among_many_cells():
    weights = np.zeros((1000, 1000))
    weights[:, 500] = np.nan
    ax = plot.heat_map(weights)
    assert runs(pixels(ax)[300, 1:-1], ax.images[0].to_rgba(np.nan)) == 1


def test_pictures_can_be_pickled_and_drawn_again():
    figure = plot.heat_map(stripe(100), vmax=1, annotate=False).figure
    figure.canvas.draw()
    again = pickle.loads(pickle.dumps(figure))
    assert_stripes(again.axes[0], 100)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(1, 1), (1, 1000), (1000, 1), (3, 7)])
@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_every_shape_is_drawn_in_every_format_without_a_warning(shape, format):
    numbers = np.ones(shape)
    for picture in (
        plot.heat_map(numbers, mask=numbers > 0, title="A title"),
        plot.score_map(-np.inf * numbers),
        plot.position_image(np.nan * numbers),
        plot.mask_image(numbers > 0, title="A title"),
        plot.head_grid(numbers[np.newaxis], mask=numbers > 0, title="A title").axes[0],
    ):
        picture.figure.savefig(io.BytesIO(), format=format)


# ---- Cells that a mask hides ---------------------------------------------------------

GREY = (0.8, 0.8, 0.8)


@pytest.mark.quick
def test_hidden_cells_are_grey_and_have_no_number():
    mask = np.tri(5, dtype=bool)
    weights = np.where(mask, 1 / 5, 0)
    ax = plot.heat_map(weights, WORDS, mask=mask, title="A title")
    assert len(values_written(ax)) == mask.sum()
    (entry,) = ax.get_legend().get_texts()
    assert entry.get_text() == "hidden"
    crop = pixels(ax)[1:-1, 1:-1]
    corners = crop[3, 3], crop[3, -4], crop[-4, 3], crop[-4, -4]
    grey = [runs(corner[np.newaxis], GREY) for corner in corners]
    assert grey == [0, 1, 0, 0]
    box = ax.get_legend().get_window_extent()
    assert box.y1 <= ax.title.get_window_extent().y0, "the title is above the legend"


def test_masks_of_all_shapes_that_broadcast_are_taken():
    weights = np.full((2, 3, 4, 5), 0.25)
    weights[..., 4] = 0
    keys = np.arange(5) < 4
    for mask in (
        keys,
        keys[None],
        attnpy.masks.padding([4], 5),
        keys[None, None, None],
    ):
        ax = plot.heat_map(weights[0, 0], mask=mask)
        np.testing.assert_array_equal(ax.images[0].hidden, ~np.tile(keys, (4, 1)))
        figure = plot.head_grid(weights, mask=mask)
        np.testing.assert_array_equal(
            figure.axes[5].images[0].hidden, ax.images[0].hidden
        )
    own = np.ones((3, 4, 5), bool)
    own[1, :, 4] = False
    images = [ax.images[0] for ax in plot.head_grid(weights, mask=own).axes[:6]]
    assert [image.hidden.any() for image in images] == [False, True, False] * 2


def test_pixel_is_grey_where_all_of_its_cells_are_hidden():
    mask = np.zeros((1000, 1000), bool)
    mask[:, [0, 500]] = True
    ax = plot.heat_map(np.where(mask, 1.0, 0), mask=mask, vmax=1)
    row = pixels(ax)[300, 1:-1]
    assert runs(row, ax.images[0].to_rgba(1.0)) == 2
    assert runs(row, GREY) == 2
    mean = plot.heat_map(np.where(mask, 1.0, 0), mask=mask, vmax=1, reduction="mean")
    np.testing.assert_array_equal(pixels(mean)[300, 1:-1], row)


@pytest.mark.quick
def test_scores_of_minus_infinity_are_hidden():
    scores = np.array([[1.0, -np.inf], [-2.0, np.nan]])
    ax = plot.score_map(scores, mask=[[True, True], [False, True]])
    image = ax.images[0]
    np.testing.assert_array_equal(image.hidden, [[False, True], [True, False]])
    assert image.get_clim() == (-2, 2)
    assert values_written(ax) == ["1.00", "nan"]
    assert not plot.score_grid([scores]).axes[0].images[0].hidden[1, 1]


# ---- Numbers of both signs -----------------------------------------------------------


def test_white_is_0_whatever_the_limits_are():
    for limits in ({}, {"vmin": -1, "vmax": 3}, {"vmin": -3, "vmax": 1}, {"vmin": -2}):
        image = plot.score_map(normal(4, 4), **limits).images[0]
        red, green, blue, _ = image.to_rgba(0.0)
        assert min(red, green, blue) > 0.93
    lopsided = plot.score_map([[1.0]], vmin=-1, vmax=3).images[0].to_rgba([-1.0, 1.0])
    even = plot.score_map([[1.0]], vmin=-3, vmax=3).images[0].to_rgba([-1.0, 1.0])
    np.testing.assert_allclose(lopsided, even, atol=0.02)


@pytest.mark.quick
def test_few_large_numbers_do_not_set_the_scale():
    table = 0.02 * normal(50, 100)
    ordinary = float(np.abs(table).max())
    table[:, 7] = 5
    ax = plot.position_image(table)
    low, high = ax.images[0].get_clim()
    assert low == -high and 0.5 * ordinary < high < 2 * ordinary
    assert ax.images[0].colorbar.extend == "max"
    assert plot.score_map([[0, 0, 8]]).images[0].get_clim() == (0, 8)


def test_score_grid_draws_biases():
    bias = attnpy.positions.alibi_bias(4, 6, 6)
    figure = plot.score_grid(bias, label="bias", title="ALiBi")
    *heads, bar = figure.axes
    assert bar.get_ylabel() == "bias"
    for ax, expected in zip(heads, bias, strict=True):
        np.testing.assert_array_equal(drawn(ax), expected)
        assert ax.images[0].get_clim() == (bias.min(), 0)


# ---- The layout of a grid ------------------------------------------------------------


def assert_nothing_overlaps(figure):
    """No title or image touches another, and all are within the figure."""
    figure.canvas.draw()
    heads = figure.axes[:-1]
    boxes = [ax.get_window_extent() for ax in heads]
    boxes += [ax.title.get_window_extent() for ax in heads if ax.get_title()]
    whole = figure.bbox
    edges = np.array([box.extents for box in boxes])
    assert (edges[:, :2] >= 0).all()
    assert (edges[:, 2:] <= [whole.x1, whole.y1]).all()
    x0, y0, x1, y1 = edges.T
    apart = (x1[:, None] <= x0) | (x0[:, None] >= x1)
    apart |= (y1[:, None] <= y0) | (y0[:, None] >= y1)
    assert apart[~np.eye(len(boxes), dtype=bool)].all()


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (12, 15, 15), (9, 5, 40), (3, 40, 5), (2, 3, 9, 90), (6, 12, 73, 73)],
)
@pytest.mark.parametrize("labelled", [True, False])
def test_titles_and_images_of_a_grid_do_not_touch(shape, labelled):
    labels = [[f"tok{i}" for i in range(n)] for n in shape[-2:]] if labelled else ()
    figure = plot.head_grid(random_weights(*shape), *labels, title="A title")
    assert_nothing_overlaps(figure)


@pytest.mark.parametrize("top", [1e-3, 0.9, 4e3, 123456, 3e7])
@pytest.mark.parametrize("shape", [(3, 9, 9), (3, 900, 900), (8, 900, 900)])
@pytest.mark.parametrize("given", [True, False])
def test_the_bar_and_its_label_are_within_the_figure(top, shape, given):
    scores = -top * random_weights(*shape)
    scores[0, 0, 0] = top
    figure = pyplot.figure(figsize=(8, 3)) if given else None
    figure = plot.score_grid(scores, figure=figure)
    figure.canvas.draw()
    box = figure.axes[-1].get_tightbbox(figure.canvas.get_renderer())
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_many_heads_are_named_at_the_edges():
    figure = plot.head_grid(random_weights(3, 32, 4, 4), list("abcd"))
    assert_nothing_overlaps(figure)
    titles = [ax.get_title() for ax in figure.axes[:-1]]
    assert titles == [f"head {h}" for h in range(32)] + [""] * 64
    assert [ax.get_ylabel() for ax in figure.axes[:96:32]] == [
        "layer 0",
        "layer 1",
        "layer 2",
    ]


@pytest.mark.parametrize("n", [9, 10, 12, 15, 16, 20, 24, 32])
def test_grid_has_no_empty_place_where_heads_can_be_arranged(n):
    figure = plot.head_grid(random_weights(n, 2, 2))
    row, column = place_in_grid(figure.axes[-2])
    assert (row + 1) * (column + 1) == n


def test_images_of_a_grid_fill_their_places():
    figure = plot.head_grid(random_weights(2, 3, 15, 15))
    figure.canvas.draw()
    boxes = np.array([ax.get_window_extent().extents for ax in figure.axes[:-1]])
    x0, y0, x1, y1 = boxes.T
    np.testing.assert_allclose(x0[1:3] - x1[:2], 8)
    assert 0 < y0[0] - y1[3] < 35
    assert (x1 - x0).sum() / 2 > 0.75 * figure.bbox.width
    np.testing.assert_allclose(x1 - x0, y1 - y0)


@pytest.mark.parametrize("n", [15, 73, 120])
def test_new_figure_has_a_label_for_each_token(n):
    tokens = [f"token{i}" for i in range(n)]
    ax = plot.heat_map(random_weights(n, n), tokens)
    assert tick_texts(ax.xaxis) == tick_texts(ax.yaxis) == tokens
    ax = plot.mask_image(np.tri(n, dtype=bool), tokens)
    assert tick_texts(ax.xaxis) == tick_texts(ax.yaxis) == tokens
    if n == 15:
        figure = plot.head_grid(random_weights(6, 12, n, n), tokens)
        assert tick_texts(figure.axes[0].yaxis) == tokens
        assert tick_texts(figure.axes[60].xaxis) == tokens


# ---- Entropy -------------------------------------------------------------------------


@pytest.mark.quick
def test_entropy_bits_is_the_plain_formula():
    weights = random_weights(3, 4, 5)
    expected = [-sum(w * np.log2(w) for w in row) for row in weights.reshape(-1, 5)]
    bits = plot.entropy_bits(weights)
    assert bits.shape == (3, 4)
    np.testing.assert_allclose(bits.ravel(), expected, rtol=1e-12)


@pytest.mark.quick
def test_entropy_bits_of_zeros_nan_sinks_and_small_numbers():
    np.testing.assert_array_equal(
        plot.entropy_bits([[0, 0], [1, 0], [0.5, 0.5], [np.nan, 1]]),
        [np.nan, 0, 1, np.nan],
    )
    assert not np.signbit(plot.entropy_bits([1, 0]))
    # With a sink the rest of a row sums to less than 1.
    assert plot.entropy_bits([0.125, 0.125]) == 1
    assert 0 <= plot.entropy_bits([1, 5e-324]) < 1e-300
    assert np.isnan(plot.entropy_bits(np.zeros((3, 0)))).all()
    assert plot.entropy_bits(np.zeros((0, 3))).shape == (0,)


def test_entropy_draws_a_bar_for_each_head():
    weights = random_weights(3, 4, 5)
    weights[1, 2] = 0  # this query may see nothing
    weights[2] = 0
    ax = plot.entropy(weights, head_labels=["x", "y", "z"])
    bits = plot.entropy_bits(weights)
    heights = [bar.get_height() for bar in ax.patches]
    np.testing.assert_allclose(heights[0], bits[0].mean())
    np.testing.assert_allclose(heights[1], bits[1, [0, 1, 3]].mean())
    assert np.isnan(heights[2])
    assert tick_texts(ax.xaxis) == ["x", "y", "z"]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.log2(5))
    ax.figure.canvas.draw()
    assert len(plot.entropy(weights[0]).patches) == 1
    plot.entropy([[1.0]]).figure.canvas.draw()


def test_entropy_of_layers_is_an_image():
    weights = random_weights(2, 3, 4, 5)
    ax = plot.entropy(weights)
    np.testing.assert_allclose(drawn(ax), plot.entropy_bits(weights).mean(axis=-1))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")


def test_position_image_is_symmetric_about_0():
    encoding = normal(50, 16)
    ax = plot.position_image(encoding)
    np.testing.assert_array_equal(drawn(ax), encoding)
    top = float(np.abs(encoding).max())
    assert ax.images[0].get_clim() == (-top, top)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("dimension", "position")
    assert ax.get_ylim() == (49.5, -0.5)
    red, _, blue, _ = ax.images[0].to_rgba(0.0)
    assert abs(red - blue) < 0.02, "0 has no colour"
    plot.position_image(np.zeros((1, 1))).figure.canvas.draw()


@pytest.mark.quick
def test_mask_image_draws_the_mask_with_a_legend():
    mask = np.tri(3, 5, 2, dtype=bool)
    ax = plot.mask_image(mask, list("abc"), WORDS)
    np.testing.assert_array_equal(drawn(ax), mask)
    assert_queries_go_down_and_keys_right(ax, 3, 5)
    assert (tick_texts(ax.yaxis), tick_texts(ax.xaxis)) == (list("abc"), WORDS)
    legend = ax.get_legend()
    colors = {
        text.get_text(): patch.get_facecolor()
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True)
    }
    image = ax.images[0]
    assert colors["may attend"] == tuple(image.to_rgba(1.0))
    assert colors["hidden"] == tuple(image.to_rgba(0.0))
    columns, rows = (lines.get_segments() for lines in ax.collections)
    assert [line[0][0] for line in columns] == [0.5, 1.5, 2.5, 3.5], "not on the edges"
    assert [line[0][1] for line in rows] == [0.5, 1.5]


@pytest.mark.quick
def test_mask_image_takes_what_padding_returns():
    padding = attnpy.masks.padding([2, 3], 3)
    ax = plot.mask_image(padding, ["first", "second"], list("abc"), title="A title")
    np.testing.assert_array_equal(drawn(ax), padding[:, 0, 0])
    assert ax.get_ylabel() == "sequence"
    assert tick_texts(ax.yaxis) == ["first", "second"]
    assert tick_texts(ax.xaxis) == list("abc")
    assert ax.get_title() == "A title"
    square = plot.mask_image(attnpy.masks.padding([1, 2, 3], 3), list("xyz"))
    assert tick_texts(square.xaxis) == list("012"), "sequences are no keys"
    many = attnpy.masks.padding([[1, 2], [3, 0]], 3)
    np.testing.assert_array_equal(
        drawn(plot.mask_image(many)).sum(axis=1), [1, 2, 3, 0]
    )
    row = attnpy.masks.padding(2, 3)
    np.testing.assert_array_equal(drawn(plot.mask_image(row)), row[np.newaxis])


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1000, 1), (1, 1000)])
def test_legend_of_a_mask_fits_into_the_figure(value, shape):
    ax = plot.mask_image(np.full(shape, value))
    ax.figure.canvas.draw()
    box, whole = ax.get_legend().get_window_extent(), ax.figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= whole.y1
    assert tuple(ax.images[0].to_rgba(float(value))) in {
        patch.get_facecolor() for patch in ax.get_legend().get_patches()
    }


def test_large_mask_has_no_lines_between_its_cells():
    ax = plot.mask_image(np.tri(300, dtype=bool))
    assert len(ax.collections) == 0


def test_patch_map_draws_weights_over_the_picture():
    weights = random_weights(6, 9)
    picture = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
    ax = plot.patch_map(weights, picture, opacity=0.3, title="patches")
    below, cells = ax.images
    np.testing.assert_array_equal(below.get_array(), picture)
    np.testing.assert_array_equal(cells.get_array(), weights)
    assert below.get_extent() == cells.get_extent() == [-0.5, 8.5, 5.5, -0.5]
    assert below.zorder < cells.zorder
    assert cells.get_alpha() == 0.3
    ax.figure.canvas.draw()
    colors = cells.make_image(ax.figure.canvas.get_renderer())[0]
    assert set(colors[..., 3].flat) == {76}  # the picture can be seen through them
    assert plot.patch_map(weights, picture).images[1].get_alpha() == 0.6
    assert plot.patch_map(weights).images[0].get_alpha() is None
    assert plot.patch_map(weights, opacity=0.3).images[0].get_alpha() == 0.3


def test_patches_have_the_shape_that_they_have_in_the_picture():
    for size in ((60, 90), (60, 180), (120, 90)):
        picture = np.zeros((*size, 3), np.uint8)
        ax = plot.patch_map(random_weights(6, 9), picture)
        ax.figure.canvas.draw()
        box = ax.get_window_extent()
        assert box.height / box.width == pytest.approx(size[0] / size[1], rel=0.02)


def test_rollout_is_the_product_of_the_layers():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(5), (3, 2, 4, 5))  # (layers, B, H, L, L)
    expected = np.eye(5)
    for layer in weights[:, 1]:
        expected = 0.5 * (layer.mean(axis=0) + np.eye(5)) @ expected
    found = plot.attention_rollout(weights)
    np.testing.assert_allclose(found[1], expected, 1e-12)
    np.testing.assert_allclose(plot.attention_rollout(weights[:, 1]), expected, 1e-12)
    np.testing.assert_allclose(found.sum(axis=-1), 1)


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: plot.patch_map(random_weights(4, 5), ax=ax),
        lambda ax: plot.heat_map(random_weights(5, 5), WORDS, ax=ax),
        lambda ax: plot.entropy(random_weights(3, 5, 5), ax=ax),
        lambda ax: plot.entropy(random_weights(2, 3, 5, 5), ax=ax),
        lambda ax: plot.position_image(normal(4, 6), ax=ax),
        lambda ax: plot.mask_image(np.eye(5, dtype=bool), ax=ax),
    ],
)
def test_picture_is_drawn_into_given_axes_and_nowhere_else(draw):
    from matplotlib.figure import Figure

    ax = Figure(figsize=(3, 2)).add_subplot()
    before = dict(matplotlib.rcParams)
    assert draw(ax) is ax
    ax.figure.canvas.draw()
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_head_grid_is_drawn_into_a_given_figure_or_part_of_one():
    from matplotlib.figure import Figure

    whole = Figure(figsize=(6, 3), layout="constrained")
    left, right = whole.subfigures(1, 2)
    assert plot.head_grid(random_weights(3, 4, 4), figure=left) is left
    plot.heat_map(random_weights(4, 4), ax=right.add_subplot())
    whole.canvas.draw()
    assert len(left.axes) == 4
    assert pyplot.get_fignums() == []


def test_weights_of_attention_are_drawn_as_they_come():
    query = normal(4, 5, 8)
    _, weights = attnpy.attention(query, query, query, causal=True, return_weights=True)
    np.testing.assert_array_equal(drawn(plot.heat_map(weights[0], WORDS)), weights[0])
    plot.head_grid(weights, WORDS)
    np.testing.assert_array_equal(plot.entropy_bits(weights)[:, 0], 0)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("draw", "kind", "message"),
    [
        (
            lambda: plot.heat_map(np.ones((2, 3, 4))),
            ValueError,
            r"weights: expected \(Lq, Lk\), got \(2, 3, 4\)",
        ),
        (
            lambda: plot.head_grid(np.ones((3, 4))),
            ValueError,
            r"weights: expected \(H, Lq, Lk\) or \(layers, H, Lq, Lk\), got \(3, 4\)",
        ),
        (
            lambda: plot.heat_map(np.ones((0, 4))),
            ValueError,
            r"weights: expected \(Lq, Lk\) without an empty axis, got \(0, 4\)",
        ),
        (lambda: plot.entropy(3.0), ValueError, r"weights: expected .*, got \(\)"),
        (lambda: plot.entropy_bits(1), ValueError, r"weights: expected .*, got \(\)"),
        (lambda: plot.entropy_bits([-1]), ValueError, "weights: expected .*, got -1"),
        (lambda: plot.heat_map([[np.inf]]), ValueError, "weights: .*, got inf"),
        (lambda: plot.heat_map([["a"]]), TypeError, "weights: .*real numbers, got"),
        (lambda: plot.heat_map([[1j]]), TypeError, "weights: .*got complex128"),
        (
            lambda: plot.heat_map(np.eye(5), WORDS[:4]),
            ValueError,
            "query_labels: expected 5, got 4",
        ),
        (
            lambda: plot.heat_map(np.eye(5), WORDS, WORDS * 2),
            ValueError,
            "key_labels: expected 5, got 10",
        ),
        (
            lambda: plot.heat_map(np.eye(3), "abc"),
            TypeError,
            "query_labels: expected a sequence of 3, got a single str",
        ),
        (
            lambda: plot.heat_map(np.eye(3), {"a", "b", "c"}),
            TypeError,
            "query_labels: expected a sequence of 3, got a set",
        ),
        (
            lambda: plot.entropy(np.eye(3), head_labels=[]),
            ValueError,
            "head_labels: expected 1, got 0",
        ),
        (lambda: plot.patch_map(np.ones(4)), ValueError, r"weights: .*\(4,\)"),
        (lambda: plot.patch_map([[1]], opacity=0), ValueError, "opacity: expected"),
        (lambda: plot.patch_map([[1]], opacity=2), ValueError, "opacity: expected at"),
        (
            lambda: plot.patch_map([[1]], np.ones((2, 2, 3))),
            TypeError,
            "image: .*uint8",
        ),
        (
            lambda: plot.patch_map([[1]], "cat.png"),
            TypeError,
            "image: expected an array, got str",
        ),
        (
            lambda: plot.patch_map([[1]], np.ma.ones((2, 2, 3), np.uint8)),
            TypeError,
            "image: expected an array without its own mask",
        ),
        (
            lambda: plot.patch_map([[1]], np.ones((2, 2), np.uint8)),
            ValueError,
            r"image: expected \(H, W, 3\), got \(2, 2\)",
        ),
        (
            lambda: plot.attention_rollout(np.ones((2, 3, 4))),
            ValueError,
            r"weights: expected \(layers, H, L, L\)",
        ),
        (
            lambda: plot.attention_rollout(-np.ones((1, 1, 2, 2))),
            ValueError,
            "weights: expected none below 0",
        ),
        (lambda: plot.attention_rollout([["a"]]), TypeError, "weights: expected real"),
        (
            lambda: plot.attention_rollout([[1, 2], [3]]),
            ValueError,
            "weights: expected an array, or lists of equal lengths, got a list",
        ),
        (lambda: plot.heat_map([[1]], annotate=1), TypeError, "annotate: expected"),
        (lambda: plot.heat_map([[1]], vmax="a"), TypeError, "vmax: expected a number"),
        (lambda: plot.heat_map([[1]], vmax=0), ValueError, "vmax: .*> 0, got 0"),
        (lambda: plot.heat_map([[1]], vmax=np.nan), ValueError, "vmax: .*got nan"),
        (
            lambda: plot.position_image(np.ones(3)),
            ValueError,
            r"encoding: expected \(length, dim\), got \(3,\)",
        ),
        (
            lambda: plot.mask_image(np.eye(3, dtype=int)),
            TypeError,
            "mask: expected bool, .*got int64",
        ),
        (
            lambda: plot.mask_image(np.ones((2, 3, 3), bool)),
            ValueError,
            r"mask: expected \(Lq, Lk\), one head, or \(..., 1, 1, Lk\), .*got \(2, 3",
        ),
        (
            lambda: plot.heat_map(np.eye(2), mask=[[0, 1], [1, 1]]),
            TypeError,
            "mask: expected bool, .*got int64",
        ),
        (
            lambda: plot.heat_map(np.eye(2), mask=np.ones((2, 1, 1, 2), bool)),
            ValueError,
            r"mask: expected a shape that broadcasts to \(2, 2\), got \(2, 1, 1, 2\)",
        ),
        (
            lambda: plot.heat_map(np.full((2, 2), 0.5), mask=np.eye(2, dtype=bool)),
            ValueError,
            r"mask: expected True .*, got False at \(0, 1\), where it is 0.5",
        ),
        (
            lambda: plot.head_grid(np.eye(2)[None], mask=np.array([True, False])),
            ValueError,
            r"mask: expected True .*, got False at \(0, 1, 1\), where it is 1",
        ),
        (
            lambda: plot.heat_map(np.eye(2), reduction="median"),
            ValueError,
            "reduction: expected one of .*got 'median'",
        ),
        (lambda: plot.heat_map(np.eye(2), vmin=2), ValueError, "vmin: .* 1, .*got 2"),
        (
            lambda: plot.heat_map(np.eye(2), vmin=0.5, vmax=0.5),
            ValueError,
            "vmax: expected a finite number > 0.5, got 0.5",
        ),
        (lambda: plot.heat_map(np.eye(2), vmin=np.inf), ValueError, "vmin: .*got inf"),
        (lambda: plot.heat_map(np.eye(2), title=3), TypeError, "title: .*got int"),
        (lambda: plot.score_map([[np.inf]]), ValueError, "scores: .*got inf"),
        (lambda: plot.score_map([[1]], vmin=0.5), ValueError, "vmin: .*below 0.*0.5"),
        (lambda: plot.score_map([[1]], vmax=-1), ValueError, "vmax: .*> 0, got -1"),
        (lambda: plot.score_map([[1]], label=None), TypeError, "label: .*NoneType"),
        (
            lambda: plot.score_grid([[1]]),
            ValueError,
            r"scores: expected .*got \(1, 1\)",
        ),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(draw, kind, message):
    with pytest.raises(kind, match=f"^{message}"):
        draw()
    assert pyplot.get_fignums() == [], "no empty figure is left behind"


@pytest.mark.quick
def test_attnpy_does_not_import_matplotlib():
    assert_runs(
        "import sys, attnpy, attnpy.plot, attnpy.view; "
        "assert 'matplotlib' not in sys.modules"
    )


def test_without_matplotlib_the_error_says_what_to_install():
    message = assert_runs(
        "import sys; sys.modules['matplotlib'] = None\n"
        "from attnpy import plot\n"
        "print(plot.entropy_bits([0.5, 0.5]))\n"
        "for draw in (plot.heat_map, plot.position_image, plot.entropy):\n"
        "    try: draw([[1.0]])\n"
        "    except ImportError as error: print(error)\n"
    )
    error = "attnpy.plot draws with matplotlib: pip install 'attnpy[plot]'"
    assert message.splitlines() == ["1.0", error, error, error]


@pytest.mark.quick
@pytest.mark.parametrize("wrong", [5, 0, "axes", []])
def test_axes_and_figures_are_those_of_matplotlib(wrong):
    pytest.importorskip("matplotlib")
    weights = random_weights(2, 3, 3)
    for draw, array in (
        (plot.heat_map, weights[0]),
        (plot.entropy, weights),
        (plot.entropy, weights[np.newaxis]),
        (plot.position_image, weights[0]),
        (plot.mask_image, weights[0] > 0),
    ):
        with refused(TypeError, "ax"):
            draw(array, ax=wrong)
    with refused(TypeError, "figure"):
        plot.head_grid(weights, figure=wrong)
