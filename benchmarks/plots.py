"""Plots of a run: speed against L, and memory against L."""

from __future__ import annotations

from .peers import SYSTEMS

STYLES = {
    "attnpy": {"color": "#d62728", "marker": "o", "linewidth": 2.2},
    "torch": {"color": "#1f77b4", "marker": "s"},
    "onnxruntime": {"color": "#2ca02c", "marker": "^"},
    "numpy": {"color": "#7f7f7f", "marker": "d"},
}
SPEED_GROUPS = {
    "full": "Full attention, float32, D = 64",
    "causal": "Causal attention, float32, D = 64",
    "float64": "Full attention, float64, D = 64",
}


def draw(results, directory):
    """Write the plots that the results have rows for; return their paths."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    drawn = [draw_speed(results, group, directory) for group in SPEED_GROUPS]
    drawn.append(draw_memory(results, directory))
    return [path for path in drawn if path is not None]


def draw_speed(results, group, directory):
    """GFLOP/s against L, a panel for each number of threads."""
    import matplotlib.pyplot as plt

    rows = [row for row in results["rows"] if row["group"] == group]
    rows = [row for row in rows if row["shape"][3] == 64]
    if len({row["n_keys"] for row in rows}) < 2:
        return None
    counts = sorted({row["threads"] for row in rows})
    figure, panels = plt.subplots(
        1, len(counts), figsize=(5.2 * len(counts), 4.6), squeeze=False
    )
    for panel, n_threads in zip(panels[0], counts, strict=True):
        lines = [row for row in rows if row["threads"] == n_threads]
        lines.sort(key=lambda row: row["n_keys"])
        draw_systems(panel, lines)
        draw_peak(panel, lines)
        length_axis(panel, [row["n_keys"] for row in lines])
        panel.set_ylim(0, 1.08 * panel.get_ylim()[1])
        panel.set_ylabel("GFLOP/s over visible pairs")
        panel.set_title(f"{n_threads} thread{'s' if n_threads > 1 else ''}")
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
        panel.legend(**below, ncols=2, fontsize=8)
    figure.suptitle(SPEED_GROUPS[group])
    return save(figure, directory / f"speed_{group}.png")


def draw_systems(panel, rows):
    """A line for each system; the bars are the quartiles."""
    for system, style in STYLES.items():
        points = [
            (row["n_keys"], row["systems"][system]["speed"])
            for row in rows
            if system in row["systems"]
        ]
        if not points:
            continue
        lengths = [length for length, _ in points]
        middle = [speed[1] for _, speed in points]
        bars = [
            [speed[1] - speed[0] for _, speed in points],
            [speed[2] - speed[1] for _, speed in points],
        ]
        panel.errorbar(
            lengths, middle, yerr=bars, capsize=2, label=SYSTEMS[system].title, **style
        )


def draw_peak(panel, rows):
    """The FMA peak measured in the rounds of each row."""
    rows = [row for row in rows if "limit" in row]
    if rows:
        panel.plot(
            [row["n_keys"] for row in rows],
            [row["limit"]["per_second"][1] / 1e9 for row in rows],
            "k--",
            linewidth=1,
            label=f"FMA peak, measured ({rows[0]['limit']['loop']})",
        )


def draw_memory(results, directory):
    """MiB beyond the output against L, full attention on one thread."""
    import matplotlib.pyplot as plt

    rows = [row for row in results["rows"] if row["group"] == "memory"]
    if not rows:
        return None
    n_threads = min(row["threads"] for row in rows)
    rows = [x for x in rows if x["threads"] == n_threads and not x["causal"]]
    if len(rows) < 2:
        return None
    figure, panel = plt.subplots(figsize=(5.2, 4))
    for system, style in STYLES.items():
        points = [
            (row["n_keys"], row["mebibytes"][system]["beyond output"])
            for row in rows
            if system in row["mebibytes"]
        ]
        if points:
            # The least that a logarithmic axis shows.
            sizes = [max(size, 0.01) for _, size in points]
            panel.plot(
                [x for x, _ in points], sizes, label=SYSTEMS[system].title, **style
            )
    length_axis(panel, [row["n_keys"] for row in rows])
    panel.set_yscale("log")
    panel.set_ylabel("MiB beyond the output (0.01 or less: 0.01)")
    panel.legend(fontsize=8)
    panel.set_title(f"Memory of one call, float32, {n_threads} thread")
    return save(figure, directory / "memory.png")


def length_axis(panel, lengths):
    from matplotlib.ticker import NullLocator

    panel.set_xscale("log", base=2)
    lengths = sorted(set(lengths))
    panel.set_xticks(lengths, [str(length) for length in lengths], fontsize=8)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("L")
    panel.grid(alpha=0.3)


def save(figure, path):
    import matplotlib.pyplot as plt
    from PIL import Image  # which matplotlib needs

    figure.tight_layout()
    figure.savefig(path, dpi=100)
    with Image.open(path) as image:  # with a palette a third of the size
        image.convert("RGB").quantize(64).save(path, optimize=True)
    plt.close(figure)
    return path
