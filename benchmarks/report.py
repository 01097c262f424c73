"""Results as lines, as Markdown and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from attnpy._measure import duration

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
    "sentences": "Sentences: texts to vectors, tokenizer included",
    "prompts": "Language models: a prompt of 256 tokens",
    "tokens": "Language models: 8 tokens, one by one, after 256",
    "generation": "Generation: new tokens of one sequence",
    "defaults": "Two threads, those of the peers waiting as they do by default",
    "backward": "Gradients of attention and of a layer",
    "training": "A training step of a character GPT",
    "integrations": "Within PyTorch and Hugging Face's models",
    "memory": "Memory of one call beyond its output, MiB (resident pages)",
    "loading": "Loading a model: time, and resident memory over the weights",
    "footprint": "Footprint",
}
SHORT = {name: system.short for name, system in peers.SYSTEMS.items()}
RIVALS = [name for name in SHORT if name != "attnpy"]
RATIOS = {**SHORT, "fastest": "the fastest peer"}


# ---- Cells ---------------------------------------------------------------------------


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
    return "missed: " + ", ".join(
        " and ".join(shortfall(row, part) for part in parts(target))
        for target in missed
    )


def parts(target):
    """The parts of a target of which one would be enough."""
    return [target, *target.get("or", ())]


def shortfall(row, target):
    bound = "at_least" if "at_least" in target else "at_most"
    what = named(row, target)
    sign = "<" if bound == "at_least" else ">"
    return f"{RATIOS.get(what, what)} {target['got']:.2f} {sign} {target[bound]:g}"


def named(row, target):
    """What a target is about, in words."""
    what = target["what"]
    if what.startswith("error/"):
        return f"error over {SHORT[what.removeprefix('error/')]}'s"
    return what.replace("own", row.get("own", "own"))


def errors(row):
    """The mean error of each system, where it is known."""
    systems = row["systems"]
    if systems["attnpy"].get("error") is None:
        return ""
    return ", ".join(
        f"{SHORT[name]} {systems[name]['error']:.1e}"
        for name in SHORT
        if name in systems
    )


# ---- Tables --------------------------------------------------------------------------


def timed_header(row):
    """What the cells of a row are; the last, its verdict, is left out of tables."""
    limit = "% of bandwidth" if bound_by_memory(row) else "% of peak"
    ratios = [f"x {SHORT[peer]}" for peer in RIVALS]
    head = ["row", "threads", "time", row["unit"], limit, *ratios]
    return [*head, "x own", "error", "% in attention", "target"]


def bound_by_memory(row):
    return row.get("limit", {}).get("what") == "bandwidth"


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
        *(spread(ratios[peer]) if peer in ratios else "" for peer in RIVALS),
        own,
        errors(row),
        ", ".join(f"{n} {x:.0f}" for n, x in row.get("attention_share", {}).items()),
        verdict(row),
    ]


def with_attention(systems):
    """Those that have more than whole models."""
    return [name for name in systems if name in peers.WAYS]


def memory_header(systems):
    return ["row", "threads", *(SHORT.get(name, name) for name in systems)]


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
    systems = with_attention(systems)
    timed = [row for row in rows if "systems" in row]
    memory = [memory_cells(row, systems) for row in rows if "mebibytes" in row]
    values = [values_cells(row) for row in rows if "values" in row]
    if timed:
        header = timed_header(timed[0])
        lines = [timed_cells(row)[:-1] for row in timed]
        yield markdown_table(*without_empty(header[:-1], lines))
    if memory:
        yield markdown_table(memory_header(systems), [line[:-1] for line in memory])
    if values:
        header = ["row", "median (quartiles)"]
        yield markdown_table(header, [line[:-1] for line in values])


def without_empty(header, lines):
    """Leave out the columns in which no line has anything."""
    used = [i for i in range(len(header)) if any(line[i] for line in lines)]
    return [header[i] for i in used], [[line[i] for i in used] for line in lines]


def one_line(row, systems):
    """A row as it is printed while the benchmark runs."""
    if "values" in row:
        cells = [row["group"], *values_cells(row)]
    elif "mebibytes" in row:
        systems = with_attention(systems)
        header = memory_header(systems)[2:]
        cells = memory_cells(row, systems)
        sizes = [f"{n} {x} MiB" for n, x in zip(header, cells[2:-1], strict=True)]
        cells = [row["group"], cells[0], f"{cells[1]} thr", *sizes, cells[-1]]
    else:
        cells = [row["group"], *labelled(row)]
    return "  ".join(cell for cell in cells if cell)


def labelled(row):
    """The timed cells, each with its unit: there is no header above them."""
    header = timed_header(row)
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
        yield f"- {peers.SYSTEMS[system].title}: {text}"


def summary(results):
    """How many rows met what was asked of them."""
    judged = [row for row in results["rows"] if row["targets"]]
    met = sum(verdict(row) == "met" for row in judged)
    return f"{met} of {len(judged)} rows with a target met it."


def misses(results):
    """A table of each row and target that was missed, or nothing."""
    lines = [
        [*row_cells(row), *missed_cells(row, x, x is not target)]
        for row in results["rows"]
        for target in row["targets"]
        if not target["met"]
        for x in parts(target)
    ]
    if lines:
        header = ["group", "row", "threads", "what", "target", "reached", "would need"]
        yield markdown_table(header, lines)


def row_cells(row):
    return [row["group"], row["name"], str(row.get("threads", ""))]


def missed_cells(row, target, is_other=False):
    sign, bound = (">=", "at_least") if "at_least" in target else ("<=", "at_most")
    what = named(row, target)
    kind = "% of " if what in ("peak", "bandwidth") else "x " if what in RATIOS else ""
    name = kind + RATIOS.get(what, what)
    aim = f"{sign} {target[bound]:g}"
    name = f"or {name}" if is_other else name
    return [name, aim, f"{target['got']:.2f}", share_needed(row, target)]


def share_needed(row, target):
    """The share of the machine's limit at which attnpy would be that much faster."""
    percent = row.get("limit", {}).get("percent")
    if not percent or target["what"] not in RATIOS:
        return ""
    limit = "bandwidth" if bound_by_memory(row) else "peak"
    needed = percent[1] * target["at_least"] / target["got"]
    return f"{needed:.0f} % of the {limit}"


def without(rows):
    """A sentence about the peers of these rows that are not installed, or nothing."""
    names = {name for row in rows for name in row.get("absent", ())}
    if names:
        titles = (peers.SYSTEMS[x].title for x in SHORT if x in names)
        yield f"Not there: {', '.join(titles)}."


def take_rows(results, again):
    """Put the rows of a later run in the place of an earlier run's, or behind them."""
    for key in ("cpu", "model", "cpus", "tier", "compiler", "python"):
        if results["machine"][key] != again["machine"][key]:
            raise SystemExit(f"the runs differ in the machine's {key}")
    if results["versions"] != again["versions"]:
        raise SystemExit("the runs differ in versions")
    measured = {row_key(row): row for row in again["rows"]}
    results["rows"] = [measured.pop(row_key(row), row) for row in results["rows"]]
    results["rows"] += measured.values()
    results.setdefault("later", []).append((again["command"], again["date"]))


def row_key(row):
    return row["group"], row["name"], row.get("threads")


def markdown(results, plots=()):
    """The whole run as one Markdown text."""
    systems = list(results["versions"])
    found = [
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
        "pair, and 2.5 times that for gradients. Percentages are of the limit measured "
        "in the same round. An error is "
        "the root mean square of differences from float64 over that of the numbers.",
    ]
    for group, heading in HEADINGS.items():
        rows = [row for row in results["rows"] if row["group"] == group]
        if rows:
            found += [f"## {heading}", *without(rows), *tables(rows, systems)]
    found += [f"![{Path(plot).stem}]({Path(plot).name})" for plot in plots]
    return "\n\n".join(found) + "\n"


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


def write_misses(results, directory):
    """Write misses.md, which is for who works on the speed; return the path."""
    path = Path(directory) / "misses.md"
    found = ["# Where it misses", summary(results), *misses(results)]
    path.write_text("\n\n".join(found) + "\n")
    return path


def write_json(results, directory):
    """Write results.json; return the path."""
    path = Path(directory) / "results.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path
