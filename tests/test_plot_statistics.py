"""Pictures along sequences: no token is lost, however many there are."""

import itertools

import numpy as np
import pytest
from support.arrays import normal
from support.errors import refused
from support.processes import assert_runs

import attnpy
from attnpy.plot import statistics as plot_statistics

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")

LENGTHS = (15, 73, 200, 1_000, 10_007, 100_000)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def steps(ax):
    """The least, mean and largest value of each column, and the columns' edges."""
    *band, line = (patch.get_data() for patch in ax.patches)
    mean, edges, _ = line
    low, high = (band[0].baseline, band[0].values) if band else (mean, mean)
    return low, mean, high, edges


def pixels(figure, dpi):
    """The figure as red, green and blue."""
    figure.set_dpi(dpi)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)


@pytest.mark.quick
@pytest.mark.parametrize("length", LENGTHS)
def test_columns_are_the_least_mean_and_largest_of_their_tokens(length):
    values = np.abs(normal(length, dtype="float64"))
    (ax,) = plot_statistics.entropy(values).axes
    low, mean, high, edges = steps(ax)
    assert (edges[0], edges[-1]) == (-0.5, length - 0.5)
    cuts = (edges + 0.5).astype(int)
    for i, (first, last) in enumerate(itertools.pairwise(cuts)):
        block = values[first:last]
        assert (low[i], high[i]) == (block.min(), block.max())
        assert mean[i] == pytest.approx(block.mean())
    legend = [text.get_text() for each in ax.figure.legends for text in each.texts]
    assert bool(legend) == (len(mean) < length)


@pytest.mark.quick(dpi=(100,))
@pytest.mark.parametrize("dpi", [60, 100, 200])
@pytest.mark.parametrize("length", LENGTHS)
def test_each_of_some_keys_is_seen(length, dpi):
    # Keys that receive much stand out of a sequence of little, one by one.
    values = np.full(length, 0.5)
    tall = np.linspace(0, length - 1, 7).astype(int)
    values[tall] = 1000
    figure = plot_statistics.received(values)
    image = pixels(figure, dpi)
    (ax,) = figure.axes
    row = ax.transData.transform((0, 300))[1]
    line = image[image.shape[0] - 1 - int(row)]
    for key in tall:
        left = int(ax.transData.transform((key - 0.5, 1))[0]) - 3
        right = int(ax.transData.transform((key + 0.5, 1))[0]) + 4
        assert (line[left:right].min(axis=0)[:2] < 220).all(), (key, line[left:right])
    ends = ax.transData.transform([(-0.5, 1), (length - 0.5, 1)])[:, 0].astype(int)
    inside = line[ends[0] + 5 : ends[1] - 5]
    assert (inside.min(axis=-1) > 250).mean() > 0.6, "the rest is white"


@pytest.mark.quick
def test_an_overview_has_a_row_for_each_head():
    query, key = normal(3, 300, 8), normal(3, 200, 8)
    found = attnpy.statistics(query, key)
    figure = plot_statistics.overview(found, head_labels=["$a", "b", 7], title="$title")
    axes = np.reshape(figure.axes, (3, 3))
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["$a", "b", "7"]
    names = ["received", "entropy (nats)", "distance (tokens)"]
    assert [ax.get_title() for ax in axes[0]] == names
    assert [ax.get_xlabel() for ax in axes[2]] == ["key", "query", "query"]
    assert figure.get_suptitle() == "$title"
    for column, values in zip(axes.T, found, strict=False):
        for ax, row in zip(column, values, strict=True):
            low, _, high, edges = steps(ax)
            assert edges[-1] == len(row) - 0.5
            assert high.max() == row.max()
            assert low.min() == max(row.min(), 0)
    pixels(figure, 50)
    only = attnpy.statistics(query, key, wanted="entropy")
    assert len(plot_statistics.overview(only).axes) == 3


@pytest.mark.quick
def test_heads_share_the_axis_of_what_can_be_compared():
    values = np.array([[1.0, 2], [100, 50]])
    top = [ax.get_ylim()[1] for ax in plot_statistics.entropy(values).axes]
    assert top[0] == top[1] > 100
    top = [ax.get_ylim()[1] for ax in plot_statistics.distance(values).axes]
    assert 2 < top[0] < 3
    assert top[1] > 100


@pytest.mark.quick
def test_a_logarithmic_axis_has_room_for_zeros():
    values = np.array([0, 1e-30, 0.02, 500])
    (ax,) = plot_statistics.received(values).axes
    assert ax.get_yscale() == "log"
    low, top = ax.get_ylim()
    assert low == pytest.approx(1e-3)
    assert top > 1000
    np.testing.assert_allclose(steps(ax)[1], [low, low, 0.02, 500])
    (ax,) = plot_statistics.received(values, scale="linear").axes
    np.testing.assert_array_equal(steps(ax)[1], values)
    (ax,) = plot_statistics.received(np.zeros(5)).axes
    assert ax.get_yscale() == "linear"
    pixels(ax.figure, 50)


@pytest.mark.quick
@pytest.mark.parametrize("length", [10, 5000])
def test_nan_has_a_mark_of_its_own(length):
    values = np.ones(length)
    values[3] = np.nan
    values[-length // 10 :] = np.nan  # whole columns
    (ax,) = plot_statistics.distance(values).axes
    (marks,) = ax.lines
    np.testing.assert_array_equal(marks.get_xdata(), np.flatnonzero(np.isnan(values)))
    assert "NaN" in [text.get_text() for text in ax.figure.legends[0].texts]
    assert np.nanmin(steps(ax)[0]) == 1
    image = pixels(ax.figure, 100)
    red = (image[..., 0] > 180) & (image[..., 1] < 90)
    assert red.any()
    pixels(plot_statistics.received(np.full(3, np.nan)), 50)


@pytest.mark.quick
def test_a_figure_or_a_part_of_one_is_drawn_into():
    figure = pyplot.figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subfigures(1, 2)
    assert plot_statistics.entropy(np.ones(5000), figure=left) is left
    assert plot_statistics.received(np.ones((2, 50)), figure=right) is right
    assert (len(left.axes), len(right.axes)) == (1, 2)
    pixels(figure, 50)


@pytest.mark.quick
def test_what_is_refused():
    found = attnpy.statistics(normal(2, 5, 3), normal(2, 7, 3))
    with refused(ValueError, "values"):
        plot_statistics.entropy(np.ones((1, 2, 3)))
    with refused(ValueError, "values"):
        plot_statistics.entropy(np.ones((2, 0)))
    with refused(TypeError, "found"):
        plot_statistics.overview(None)
    with refused(TypeError, "found"):
        plot_statistics.overview(found.received)
    with refused(ValueError, "values"):
        plot_statistics.distance([-1.0, 2])
    with refused(ValueError, "values"):
        plot_statistics.received([np.inf, 2])
    with refused(TypeError, "values"):
        plot_statistics.received(["a"])
    with refused(ValueError, "scale"):
        plot_statistics.received([1.0], scale="symlog")
    with refused(ValueError, "head_labels"):
        plot_statistics.received([1.0], head_labels=["a", "b"])
    with refused(TypeError, "head_labels"):
        plot_statistics.received([1.0], head_labels="a")
    with refused(TypeError, "title"):
        plot_statistics.received([1.0], title=5)
    with refused(TypeError, "figure"):
        plot_statistics.received([1.0], figure=5)
    with refused(ValueError, "found"):
        plot_statistics.overview(attnpy.statistics([[1.0]], [[1.0]], wanted="top"))
    with refused(ValueError, "found"):
        plot_statistics.overview(found._replace(entropy=found.entropy[:1]))
    with refused(ValueError, "found.received"):
        plot_statistics.overview(attnpy.statistics(normal(2, 1, 5, 3), normal(7, 3)))


def test_matplotlib_is_imported_late():
    assert_runs(
        "import sys, attnpy.plot.statistics; assert 'matplotlib' not in sys.modules"
    )
    message = assert_runs(
        "import sys; sys.modules['matplotlib'] = None\n"
        "from attnpy.plot import statistics\n"
        "try: statistics.entropy([1.0])\n"
        "except ImportError as error: print(error)\n"
    )
    assert message.strip().endswith("pip install 'attnpy[plot]'")
