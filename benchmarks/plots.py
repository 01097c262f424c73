"""Plots of kept rows: speed against L, and memory against L."""

from __future__ import annotations

from .peers import SYSTEMS

STYLES = {
    "attnpy": {"color": "#d62728", "marker": "o", "linewidth": 2.2},
    "torch": {"color": "#1f77b4", "marker": "s"},
    "onnxruntime": {"color": "#2ca02c", "marker": "^"},
    "numpy": {"color": "#7f7f7f", "marker": "d"},
}
TITLES = {
    "full": "Full attention, float32, D = 64",
    "causal": "Causal attention, float32, D = 64",
    "float64": "Full attention, float64, D = 64",
    "memory": "Memory of one call, float32, one thread",
}


def draw(rows, directory, prefix):
    """Write the plots that there are rows for; return pairs of a group and a path."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = []
    for group, title in TITLES.items():
        found = points(rows, group)
        if len({length for length, _ in found}) < 2:
            continue
        figure = (draw_memory if group == "memory" else draw_speed)(found)
        figure.suptitle(title)
        drawn.append((group, save(figure, directory / f"{prefix}_{group}.png")))
        plt.close(figure)
    return drawn


def points(rows, group):
    """(L, row) of a group's rows that differ in L, sorted; a name is BxHxLxD."""
    named = [(row["name"].split("x"), row) for row in rows if row["group"] == group]
    kept = [
        (int(name[2]), row) for name, row in named if len(name) == 4 and name[3] == "64"
    ]
    return sorted(kept, key=lambda point: point[0])


def draw_speed(found):
    """GFLOP/s against L, a panel for each number of threads."""
    import matplotlib.pyplot as plt

    counts = sorted({row["threads"] for _, row in found})
    size = (5.2 * len(counts), 4.6)
    figure, panels = plt.subplots(1, len(counts), figsize=size, squeeze=False)
    for panel, n_threads in zip(panels[0], counts, strict=True):
        lines = [point for point in found if point[1]["threads"] == n_threads]
        for system, style in STYLES.items():
            draw_system(panel, system, lines, style)
        peaks = [
            (n, 100 * x["speed"] / x["percent"][1]) for n, x in lines if "percent" in x
        ]
        if peaks:
            panel.plot(
                *zip(*peaks, strict=True), "k--", linewidth=1, label="peak, measured"
            )
        length_axis(panel, lines)
        panel.set_ylim(0, 1.08 * panel.get_ylim()[1])
        panel.set_ylabel("GFLOP/s over visible pairs")
        panel.set_title(f"{n_threads} thread{'s' if n_threads > 1 else ''}")
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
        panel.legend(**below, ncols=2, fontsize=8)
    return figure


def draw_system(panel, system, lines, style):
    """A system's speed: attnpy's over its ratio, whose quartiles are the bars."""
    ratios = [
        (n, x["speed"], [1.0] * 3 if system == "attnpy" else x["faster_than"][system])
        for n, x in lines
        if system == "attnpy" or system in x["faster_than"]
    ]
    if ratios:
        middle = [speed / ratio[1] for _, speed, ratio in ratios]
        below = [
            m - speed / r[2] for m, (_, speed, r) in zip(middle, ratios, strict=True)
        ]
        above = [
            speed / r[0] - m for m, (_, speed, r) in zip(middle, ratios, strict=True)
        ]
        more = {"yerr": [below, above], "capsize": 2, "label": SYSTEMS[system].title}
        panel.errorbar([n for n, _, _ in ratios], middle, **more, **style)


def draw_memory(found):
    """MiB beyond the output against L, full attention on one thread."""
    import matplotlib.pyplot as plt

    lines = [point for point in found if point[1]["threads"] == 1]
    figure, panel = plt.subplots(figsize=(5.2, 4))
    for system, style in STYLES.items():
        sizes = [
            (n, max(x["mebibytes"][system], 0.01))  # the least that the axis shows
            for n, x in lines
            if system in x["mebibytes"]
        ]
        if sizes:
            panel.plot(*zip(*sizes, strict=True), label=SYSTEMS[system].title, **style)
    length_axis(panel, lines)
    panel.set_yscale("log")
    panel.set_ylabel("MiB beyond the output (0.01 or less: 0.01)")
    panel.legend(fontsize=8)
    return figure


def length_axis(panel, lines):
    from matplotlib.ticker import NullLocator

    panel.set_xscale("log", base=2)
    lengths = sorted({length for length, _ in lines})
    panel.set_xticks(lengths, [str(length) for length in lengths], fontsize=8)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("L")
    panel.grid(alpha=0.3)


def save(figure, path):
    from PIL import Image  # which matplotlib needs

    figure.tight_layout()
    figure.savefig(path, dpi=100)
    with Image.open(path) as image:  # with a palette a third of the size
        image.convert("RGB").quantize(64).save(path, optimize=True)
    return path
