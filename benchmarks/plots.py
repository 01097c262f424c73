"""Plots of kept rows: speed and memory against L, and speed against threads."""

from __future__ import annotations

import numpy as np

from .peers import SYSTEMS

LEAST_MIB = 0.01  # that the axis shows
MOST_PANELS = 8  # of rows with many threads

STYLES = {
    "attnpy": {"color": "#d62728", "marker": "o", "linewidth": 2.2},
    "torch": {"color": "#1f77b4", "marker": "s"},
    "onnxruntime": {"color": "#2ca02c", "marker": "^"},
    "transformers": {"color": "#9467bd", "marker": "v"},
    "openvino": {"color": "#ff7f0e", "marker": "P"},
    "llamacpp": {"color": "#8c564b", "marker": "X"},
    "numpy": {"color": "#7f7f7f", "marker": "d"},
}
TITLES = {
    "full": "Full attention, float32, D = 64",
    "causal": "Causal attention, float32, D = 64",
    "float64": "Full attention, float64, D = 64",
    "memory": "Memory of one call, float32, one thread",
    "scaling": "Speed with more threads; 1 is attnpy's speed with one thread",
}


def draw(rows, directory, prefix):
    """Write the plots that there are rows for; return pairs of a group and a path."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    drawn = []
    for group, title in TITLES.items():
        scales = group == "scaling"
        found = scaled(rows) if scales else points(rows, group)
        if len(found if scales else {length for length, _ in found}) >= 2:
            path = directory / f"{prefix}_{group}.png"
            (draw_scaled if scales else draw_group)(found, title, path)
            drawn.append((group, path))
    return drawn


def points(rows, group):
    """(L, row) of a group's rows that differ in L, sorted; a name is BxHxLxD."""
    named = [(row["name"].split("x"), row) for row in rows if row["group"] == group]
    kept = [
        (int(name[2]), row) for name, row in named if len(name) == 4 and name[3] == "64"
    ]
    return sorted(kept, key=lambda point: point[0])


def values_of(row, system):
    """A system's quartiles: of its speed, which is attnpy's over a ratio, or MiB."""
    if "mebibytes" in row:
        size = row["mebibytes"].get(system)
        return size if size is None else [max(size, LEAST_MIB)] * 3
    ratios = [1.0] * 3 if system == "attnpy" else row["faster_than"].get(system)
    return ratios and [row["speed"] / ratio for ratio in reversed(ratios)]


def draw_group(found, title, path):
    """Draw speed or memory against L, a panel for each number of threads."""
    import matplotlib.pyplot as plt

    memory = "mebibytes" in found[0][1]
    counts = [1] if memory else sorted({row["threads"] for _, row in found})
    size = (5.2 * len(counts), 4.6)
    figure, panels = plt.subplots(1, len(counts), figsize=size, squeeze=False)
    for panel, n_threads in zip(panels[0], counts, strict=True):
        lines = [point for point in found if point[1]["threads"] == n_threads]
        for system, style in STYLES.items():
            values = {length: values_of(row, system) for length, row in lines}
            values = {length: x for length, x in values.items() if x}
            if values:
                low, middle, high = np.transpose([*values.values()])
                more = {"yerr": [middle - low, high - middle], "capsize": 2, **style}
                label = SYSTEMS[system].title
                panel.errorbar([*values], middle, label=label, **more)
        peaks = {
            length: 100 * row["speed"] / row["percent"][1]
            for length, row in lines
            if "percent" in row
        }
        if peaks:
            label = "peak, measured"
            panel.plot([*peaks], [*peaks.values()], "k--", linewidth=1, label=label)
        label_axes(panel, [length for length, _ in lines], memory)
        panel.set_title(f"{n_threads} thread{'s' if n_threads > 1 else ''}")
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
        panel.legend(**below, ncols=2, fontsize=8)
    figure.suptitle(title)
    save(figure, path)
    plt.close(figure)


def label_axes(panel, lengths, memory):
    from matplotlib.ticker import NullLocator

    panel.set_xscale("log", base=2)
    panel.set_xticks(lengths, [str(length) for length in lengths], fontsize=8)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("L")
    panel.grid(alpha=0.3)
    if memory:
        panel.set_yscale("log")
        panel.set_ylabel(f"MiB beyond the output (at least {LEAST_MIB})")
    else:
        panel.set_ylim(0, 1.08 * panel.get_ylim()[1])
        panel.set_ylabel("GFLOP/s over visible pairs")


# ---- Many threads --------------------------------------------------------------------


def scaled(rows):
    """{name: {system: {threads: speed}}} of the first rows with several counts.

    All speeds are over attnpy's with one thread, by ratios of the same rounds.
    """
    found = {}
    for row in rows:
        if row["group"] != "scaling":
            continue
        lines, ratios = found.setdefault(row["name"], {}), row["faster_than"]
        ours = ratios.get("own", [1.0] * 3)[1]
        for system in STYLES:
            if system == "attnpy" or system in ratios:
                ratio = 1.0 if system == "attnpy" else ratios[system][1]
                lines.setdefault(system, {})[row["threads"]] = ours / ratio
    several = [name for name, lines in found.items() if len(lines["attnpy"]) > 1]
    return {name: found[name] for name in several[:MOST_PANELS]}


def draw_scaled(found, title, path):
    """Draw speed against threads, a panel for each row."""
    import matplotlib.pyplot as plt

    n_columns = min(4, len(found))
    n_lines = -(-len(found) // n_columns)
    size = (2.9 * n_columns, 2.9 * n_lines + 0.9)
    more = {"squeeze": False, "sharex": True, "sharey": True}
    figure, panels = plt.subplots(n_lines, n_columns, figsize=size, **more)
    counts = sorted({n for lines in found.values() for n in lines["attnpy"]})
    for panel in panels.flat[len(found) :]:
        panel.set_visible(False)
    handles = {}
    for panel, (name, lines) in zip(panels.flat, found.items(), strict=False):
        for system, speeds in lines.items():
            label, style = SYSTEMS[system].title, STYLES[system]
            (handles[label],) = panel.plot([*speeds], [*speeds.values()], **style)
        ideal = {"color": "black", "linestyle": "--", "linewidth": 1}
        (line,) = panel.plot(counts, counts, **ideal)
        panel.set_title(name, fontsize=9)
        label_threads(panel, counts)
    handles["as many times as threads"] = line
    for panel in panels[:, 0]:
        panel.set_ylabel("times as fast")
    for panel in panels[-1]:
        panel.set_xlabel("threads")
    figure.suptitle(title)
    figure.legend([*handles.values()], [*handles], loc="lower center", ncols=6)
    save(figure, path, (0, 0.9 / size[1] / 2, 1, 1))
    plt.close(figure)


def label_threads(panel, counts):
    """Both axes in steps of twice as many, with numbers and not powers."""
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_ticks(counts, [str(n) for n in counts])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)


def save(figure, path, space=(0, 0, 1, 1)):
    from PIL import Image  # which matplotlib needs

    figure.tight_layout(rect=space)
    figure.savefig(path, dpi=100)
    with Image.open(path) as image:  # with a palette a third of the size
        image.convert("RGB").quantize(64).save(path, optimize=True)
