"""Results as lines, as Markdown and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from . import peers

HEADINGS = {
    "full": "Full attention, float32",
    "causal": "Causal attention, float32",
    "half": "16-bit arrays",
    "masks": "Masks, windows, padding, bias",
    "gqa": "Grouped heads",
    "decode": "Decoding: one query",
    "small": "Small calls",
    "threads": "Two threads against one",
    "float64": "float64",
    "tiers": "Each instruction set against its own peak",
    "layers": "Multi-head layers",
    "models": "Models: MiniLM's encoder",
    "generation": "Generation: new tokens of one sequence",
    "memory": "Memory of one call beyond its output, MiB (resident pages)",
    "loading": "Loading a model: time, and resident memory over the weights",
    "footprint": "Footprint",
}
SHORT = {"torch": "torch", "onnxruntime": "ORT", "numpy": "NumPy"}


# ---- Cells ---------------------------------------------------------------------------


def duration(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def spread(low_middle_high, digits=2):
    low, middle, high = (f"{x:.{digits}f}" for x in low_middle_high)
    return f"{middle} ({low}-{high})"


def verdict(row):
    """The last column: "met", or what was missed, or "-" where nothing was asked."""
    missed = [target for target in row["targets"] if not target["met"]]
    if not row["targets"]:
        return "-"
    if not missed:
        return "met"
    return "missed: " + ", ".join(shortfall(row, target) for target in missed)


def shortfall(row, target):
    bound = "at_least" if "at_least" in target else "at_most"
    what = target["what"].replace("own", row.get("own", "own"))
    sign = "<" if bound == "at_least" else ">"
    return f"{SHORT.get(what, what)} {target['got']:.2f} {sign} {target[bound]:g}"


# ---- Tables --------------------------------------------------------------------------


def timed_header(unit):
    limit = "% of bandwidth" if unit == "GB/s" else "% of peak"
    ratios = [f"x {SHORT[peer]}" for peer in SHORT]
    return ["row", "threads", "time", unit, limit, *ratios, "x own", "target"]


def timed_cells(row):
    ours = row["systems"]["attnpy"]
    percent = row.get("limit", {}).get("percent")
    ratios = row["faster_than"]
    own = f"{spread(ratios['own'])} {row['own']}" if "own" in ratios else ""
    return [
        row["name"],
        str(row["threads"]),
        duration(ours["seconds"][1]),
        f"{ours['speed'][1]:.3g}",
        spread(percent, 0) if percent else "",
        *(spread(ratios[peer]) if peer in ratios else "" for peer in SHORT),
        own,
        verdict(row),
    ]


def memory_header(systems):
    return ["row", "threads", *(SHORT.get(name, name) for name in systems), "target"]


def memory_cells(row, systems):
    found = row["mebibytes"]
    sizes = (
        f"{found[name]['beyond output']:.2f}" if name in found else ""
        for name in systems
    )
    return [row["name"], str(row["threads"]), *sizes, verdict(row)]


def values_cells(row):
    cells = [f"{name} {spread(value)}" for name, value in row["values"].items()]
    return [row["name"], "; ".join(cells), verdict(row)]


def markdown_table(header, lines):
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(x) + " |" for x in (header, rule, *lines))


def tables(rows, systems):
    """The tables of one group, which may mix kinds of rows."""
    timed = [row for row in rows if "systems" in row]
    memory = [memory_cells(row, systems) for row in rows if "mebibytes" in row]
    values = [values_cells(row) for row in rows if "values" in row]
    if timed:
        header = timed_header(timed[0]["unit"])
        yield markdown_table(*without_empty(header, list(map(timed_cells, timed))))
    if memory:
        yield markdown_table(memory_header(systems), memory)
    if values:
        yield markdown_table(["row", "median (quartiles)", "target"], values)


def without_empty(header, lines):
    """Leave out the columns in which no line has anything."""
    used = [i for i in range(len(header)) if any(line[i] for line in lines)]
    return [header[i] for i in used], [[line[i] for i in used] for line in lines]


def one_line(row, systems):
    """A row as it is printed while the benchmark runs."""
    if "values" in row:
        cells = [row["group"], *values_cells(row)]
    elif "mebibytes" in row:
        header = memory_header(systems)[2:-1]
        cells = memory_cells(row, systems)
        sizes = [f"{n} {x} MiB" for n, x in zip(header, cells[2:-1], strict=True)]
        cells = [row["group"], cells[0], f"{cells[1]} thr", *sizes, cells[-1]]
    else:
        cells = [row["group"], *labelled(row)]
    return "  ".join(cell for cell in cells if cell)


def labelled(row):
    """The timed cells, each with its unit: there is no header above them."""
    header = timed_header(row["unit"])
    cells = timed_cells(row)
    labels = {"threads": "thr", "% of peak": "%", "% of bandwidth": "%"}
    for i, name in enumerate(header):
        if not cells[i] or name in ("row", "time", "target"):
            continue
        cells[i] += " " + labels.get(name, name)
    return cells


# ---- The whole -----------------------------------------------------------------------


def machine_lines(results):
    found = results["machine"]
    name = found["cpu"] + (f" ({found['model']})" if found["model"] else "")
    cores = f" on {found['cores']} cores" if found["cores"] else ""
    sizes = (f"{level} {size >> 10} KiB" for level, size in found["caches"].items())
    yield f"- CPU: {name}, {found['cpus']} CPUs{cores}, {found['system']}"
    yield f"- caches: {', '.join(sizes) or 'unknown'}"
    yield f"- instruction set in use: {found['tier']}"
    yield f"- C compiler: {found['compiler'] or 'none'}; Python {found['python']}"
    yield f"- load before the run: {found['load average before']}"
    for n_threads, limits in found["limits"].items():
        text = ", ".join(f"{name} {value}" for name, value in limits.items())
        yield f"- limits with {n_threads} thread(s): {text or 'no C compiler'}"
    for system, needs in results["versions"].items():
        text = ", ".join(f"{name} {x or 'absent'}" for name, x in needs.items())
        yield f"- {peers.TITLES[system]}: {text}"


def summary(results):
    """How many rows met what was asked of them."""
    judged = [row for row in results["rows"] if row["targets"]]
    met = sum(verdict(row) == "met" for row in judged)
    return f"{met} of {len(judged)} rows with a target met it."


def misses(results):
    """A table of each row and target that was missed, or nothing."""
    lines = [
        [row["group"], row["name"], str(row.get("threads", "")), *missed_cells(row, x)]
        for row in results["rows"]
        for x in row["targets"]
        if not x["met"]
    ]
    if lines:
        yield "## Where it misses"
        header = ["group", "row", "threads", "what", "target", "reached", "would need"]
        yield markdown_table(header, lines)


def missed_cells(row, target):
    sign, bound = (">=", "at_least") if "at_least" in target else ("<=", "at_most")
    what = target["what"].replace("own", row.get("own", "own"))
    kind = "% of " if what in ("peak", "bandwidth") else "x " if what in SHORT else ""
    name = kind + SHORT.get(what, what)
    aim = f"{sign} {target[bound]:g}"
    return [name, aim, f"{target['got']:.2f}", share_needed(row, target)]


def share_needed(row, target):
    """The share of the machine's limit at which attnpy would be that much faster."""
    percent = row.get("limit", {}).get("percent")
    if not percent or target["what"] not in SHORT:
        return ""
    limit = "bandwidth" if row.get("unit") == "GB/s" else "peak"
    needed = percent[1] * target["at_least"] / target["got"]
    return f"{needed:.0f} % of the {limit}"


def replace_rows(results, again):
    """Put the rows of a later run in the place of an earlier run's."""
    for key in ("cpu", "model", "cpus", "tier", "compiler", "python"):
        if results["machine"][key] != again["machine"][key]:
            raise SystemExit(f"the runs differ in the machine's {key}")
    if results["versions"] != again["versions"]:
        raise SystemExit("the runs differ in versions")
    measured = {row_key(row): row for row in again["rows"]}
    results["rows"] = [measured.get(row_key(row), row) for row in results["rows"]]
    results.setdefault("later", []).append((again["command"], again["date"]))


def row_key(row):
    return row["group"], row["name"], row.get("threads")


def markdown(results, plots=()):
    """The whole run as one Markdown text."""
    systems = list(results["versions"])
    parts = [
        "# attnpy benchmarks",
        f"Command: `{results['command']}`, {results['date']}",
        *(
            f"The rows of `{command}` are from {date}."
            for command, date in results.get("later", ())
        ),
        "\n".join(machine_lines(results)),
        "Each cell is the median over the rounds with its quartiles. `x torch` is how "
        "many times attnpy is faster; `x own` compares attnpy's rate with that of "
        "attnpy on the named other case. GFLOP/s count 2 (D + Dv) for each visible "
        "pair. Percentages are of the limit measured in the same round.",
        summary(results),
    ]
    for group, heading in HEADINGS.items():
        rows = [row for row in results["rows"] if row["group"] == group]
        if rows:
            parts += [f"## {heading}", *tables(rows, systems)]
    parts += misses(results)
    parts += [f"![{Path(plot).stem}]({Path(plot).name})" for plot in plots]
    return "\n\n".join(parts) + "\n"


def write(results, directory, with_plots=True):
    """Write results.md and the plots; return the paths."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    plots = []
    if with_plots:
        from .plots import draw

        plots = draw(results, directory)
    path = directory / "results.md"
    path.write_text(markdown(results, plots))
    return [path, *plots]


def write_json(results, directory):
    """Write results.json; return the path."""
    path = Path(directory) / "results.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path
