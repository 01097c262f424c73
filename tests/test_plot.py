"""The pictures show the numbers they were given, and nothing breaks them."""

import itertools

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
        lambda labels: plot.entropy(random_weights(9, 2, 2), labels=labels),
        lambda labels: plot.entropy(random_weights(2, 9, 2, 2), labels=labels),
        lambda labels: plot.head_grid(
            random_weights(1, 9, 9), labels, title="$\\bad$"
        ).axes[0],
    ],
)
def test_labels_are_shown_as_they_are(draw):
    ax = draw(ODD)
    ax.figure.canvas.draw()
    assert tick_texts(ax.xaxis) == SHOWN


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


def test_vmax_is_the_end_of_the_colour_scale():
    assert plot.heat_map([[0.1]], vmax=1).images[0].get_clim() == (0, 1)
    figure = plot.head_grid([[[0.1]]], vmax=2)
    assert figure.axes[0].images[0].get_clim() == (0, 2)


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
        place = ax.get_subplotspec()
        assert (place.rowspan.start, place.colspan.start) == (layer, head)
        assert tick_texts(ax.yaxis) == (list("abcd") if head == 0 else [])
        assert tick_texts(ax.xaxis) == (WORDS if layer == 1 else [])
    assert bar.get_ylabel() == "weight"
    assert figure.get_suptitle() == "A title"
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key", "query")


@pytest.mark.quick
def test_head_grid_wraps_many_heads_of_one_layer():
    figure = plot.head_grid(random_weights(12, 3, 3))
    places = [ax.get_subplotspec() for ax in figure.axes[:-1]]
    assert {place.rowspan.start for place in places} == {0, 1}
    assert {place.colspan.start for place in places} == set(range(6))
    titles = [ax.get_title() for ax in figure.axes[:-1]]
    assert titles == [f"head {h}" for h in range(12)]


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
    ax = plot.entropy(weights, labels=["x", "y", "z"])
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
    lines = ax.get_xticks(minor=True)
    np.testing.assert_array_equal(lines, np.arange(6) - 0.5)


@pytest.mark.parametrize("value", [True, False])
def test_legend_of_a_mask_fits_into_the_figure(value):
    ax = plot.mask_image([[value]])
    ax.figure.canvas.draw()
    box, whole = ax.get_legend().get_window_extent(), ax.figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= whole.y1
    assert tuple(ax.images[0].to_rgba(float(value))) in {
        patch.get_facecolor() for patch in ax.get_legend().get_patches()
    }


def test_large_mask_has_no_lines_between_its_cells():
    ax = plot.mask_image(np.tri(300, dtype=bool))
    assert len(ax.get_xticks(minor=True)) == 0


@pytest.mark.parametrize(
    "draw",
    [
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
            lambda: plot.entropy(np.eye(3), labels=[]),
            ValueError,
            "labels: expected 1, got 0",
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
            lambda: plot.mask_image(np.ones(3, bool)),
            ValueError,
            r"mask: expected \(Lq, Lk\), got \(3,\)",
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
