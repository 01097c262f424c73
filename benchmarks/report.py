"""Rows of results: as they are kept, as lines, and as tables in Markdown."""

from __future__ import annotations

from attnpy._measure import duration

from . import peers

# Of each machine: its pages, and the groups on each of them.
PAGES = {
    "attention": {
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
        "memory": "Memory of one call beyond its output, MiB (resident pages)",
        "footprint": "Footprint",
    },
    "models": {
        "layers": "Multi-head layers",
        "models": "Models: MiniLM's encoder",
        "sentences": "Sentences: texts to vectors, tokenizer included",
        "rerank": "Reranking: pairs of texts to scores, tokenizer included",
        "prompts": "Language models: a prompt of 256 tokens",
        "tokens": "Language models: 8 tokens, one by one, after 256",
        "generation": "Generation: new tokens of one sequence",
        "reuse": "Reuse: the same with and without what is known",
        "defaults": "Two threads, those of the peers waiting as they do by default",
        "loading": "Loading a model: time, and resident memory over the weights",
    },
    "integers": {
        "int8": "MiniLM's encoder in 8 bits",
        "gguf": "GGUF files: prompts of 256 tokens, and 8 tokens after them; memory",
    },
    "scaling": {"scaling": "From one thread to all CPUs"},
    "gradients": {
        "backward": "Gradients of attention and of a layer",
        "training": "A training step of a character GPT",
        "integrations": "Within PyTorch and Hugging Face's models",
    },
}
HEADINGS = {group: text for page in PAGES.values() for group, text in page.items()}
SHORT = {name: system.short for name, system in peers.SYSTEMS.items()}
RIVALS = [name for name in SHORT if name != "attnpy"]
RATIOS = {**SHORT, "fastest": "the fastest peer"}
DIGITS = 5  # of a number that is kept
LEAST_SHARE = 3  # of the time, in percent, that is told


# ---- What is kept of a row -----------------------------------------------------------


def kept(row, run=0):
    """What tables need of a measured row; run says in which it was measured."""
    found = {key: row[key] for key in ("group", "name", "threads") if key in row}
    found["run"] = run
    if "systems" in row:
        found |= kept_times(row)
    if "mebibytes" in row:
        sizes = row["mebibytes"].items()
        found["mebibytes"] = {name: size["beyond output"] for name, size in sizes}
    for key in ("values", "own", "attention_share", "absent", "ended"):
        if row.get(key):
            found[key] = row[key]
    if row["targets"]:
        found["missed"] = [parts for parts in row["targets"] if not met(parts)]
    return rounded(found)


def kept_times(row):
    ours = row["systems"]["attnpy"]
    found = {"unit": row["unit"]}
    found |= {"seconds": ours["seconds"][1], "speed": ours["speed"][1]}
    if "limit" in row:
        limit = "bandwidth" if row["limit"]["what"] == "bandwidth" else "peak"
        found |= {"limit": limit, "percent": row["limit"]["percent"]}
    found["faster_than"] = row["faster_than"]
    if ours.get("error") is not None:
        systems = row["systems"].items()
        found["errors"] = {x: y["error"] for x, y in systems if x in SHORT}
    return found


def rounded(value):
    """The same with DIGITS digits of each number."""
    if isinstance(value, dict):
        return {key: rounded(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(x) for x in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


# ---- Targets -------------------------------------------------------------------------


def met(parts):
    """Whether any part of a target, [what, ">=" or "<=", bound, got], was reached."""
    return any(
        got >= bound if sign == ">=" else got <= bound for _, sign, bound, got in parts
    )


def verdict(row):
    """ "met", or what was missed, or "-" where nothing was asked of a kept row."""
    if "missed" not in row:
        return "-"
    return "missed: " + misses_of(row) if row["missed"] else "met"


def misses_of(row):
    """Each target that was missed: what was reached of each of its parts."""
    return "; ".join(
        " and ".join(shortfall(row, *part) for part in parts) for parts in row["missed"]
    )


def shortfall(row, what, sign, bound, got):
    if what.startswith("error/"):
        name = f"error over {SHORT[what.removeprefix('error/')]}'s"
    else:
        name = RATIOS.get(what, what.replace("own", row.get("own", "own")))
    text = f"{name} {got:.2f} {'<' if sign == '>=' else '>'} {bound:g}"
    if "percent" in row and what in RATIOS:  # the speed that would be enough
        text += f" ({row['percent'][1] * bound / got:.0f} % of the {row['limit']})"
    return text


def summary(rows):
    """How many kept rows met what was asked of them."""
    judged = [row for row in rows if "missed" in row]
    n_met = sum(not row["missed"] for row in judged)
    return f"{n_met} of {len(judged)} rows with a target met it."


def row_key(row):
    return row["group"], row["name"], row.get("threads")


def title(group, name, n_threads=None):
    return f"{group} {name}" + (f", {n_threads} thr" if n_threads else "")


def misses(rows, bounds=()):
    """A heading and a table for each group with kept rows that missed a target.

    bounds: what bounds.py found out about such rows, a column if there is any.
    """
    known = {row_key(x): x for x in bounds}
    heads = ["row", "threads", "missed", *["time goes to"] * bool(known)]
    for group, heading in HEADINGS.items():
        lines = []
        for row in rows:
            if row["group"] == group and row.get("missed"):
                key = [row["name"], str(row.get("threads", ""))]
                text = [time_of(row, known)] if known else []
                lines.append([*key, misses_of(row), *text])
        if lines:
            yield f"### {heading} (`{group}`)"
            yield markdown_table(heads, lines)


def time_of(row, known):
    """What a row's time goes to. Of its limit, it has the share of the row's table.

    That was measured in turns with the row, on a machine with nothing else to do.
    """
    found = known.get(row_key(row))
    if found is None:
        return "not sampled"
    if "percent" in row:
        found = {**found, "percent": row["percent"][1]}
    return bound_of(found)


def bound_of(found):
    """What bounds.py found out about a row, in words."""
    kinds, by = found["kinds"], found.get("limit")
    parts = [f"{found['percent']:.0f} % of the bandwidth"] if by == "bandwidth" else []
    for kind, share in kinds.items():
        if share >= LEAST_SHARE:
            parts.append(f"{kind} {share:.0f} %")
            if kind == "products" and by == "peak":
                reached = 100 * found["percent"] * found["computed"] / share
                parts[-1] += f" at {reached:.0f} % of the peak"
    return "; ".join(parts)


# ---- Cells ---------------------------------------------------------------------------


def spread(low_middle_high, digits=2):
    low, middle, high = (f"{x:.{digits}f}" for x in low_middle_high)
    return f"{middle} ({low}-{high})"


def rate(speed):
    """A rate with three digits, without an exponent."""
    text = f"{speed:.3g}"
    return f"{float(text):,.0f}" if "e+" in text else text


def times_cells(row):
    """{heading: cell} of a row that was timed."""
    ratios = row["faster_than"]
    cells = {"time": duration(row["seconds"]), row["unit"]: rate(row["speed"])}
    if "limit" in row:
        cells[f"% of {row['limit']}"] = spread(row["percent"], 0)
    cells |= {f"x {SHORT[x]}": spread(ratios[x]) for x in RIVALS if x in ratios}
    if "own" in ratios:
        cells["x own"] = f"{spread(ratios['own'])} {row['own']}"
    if "errors" in row:
        found = row["errors"]
        errors = (f"{SHORT[x]} {found[x]:.1e}" for x in SHORT if x in found)
        cells["error"] = ", ".join(errors)
    if "attention_share" in row:
        shares = row["attention_share"].items()
        cells["% in attention"] = ", ".join(f"{name} {x:.0f}" for name, x in shares)
    return cells


def scaling_cells(row):
    """The same of a row that is compared with one thread: what threads change."""
    cells, ratios = times_cells(row), row["faster_than"]
    gained = spread(ratios["own"]) if "own" in ratios else "1"
    cells = {"time": cells["time"], "x 1 thread": gained, **cells}
    return {x: y for x, y in cells.items() if x not in (row["unit"], "x own", "error")}


def memory_cells(row):
    return {SHORT[name]: f"{size:.2f}" for name, size in row["mebibytes"].items()}


def values_cells(row):
    return {SHORT.get(x, x): spread(value) for x, value in row["values"].items()}


KINDS = {"faster_than": times_cells, "mebibytes": memory_cells, "values": values_cells}
# The order of columns behind the row, its threads, the time and units.
COLUMNS = ["% of peak", "% of bandwidth", *(f"x {SHORT[name]}" for name in RIVALS)]
COLUMNS += ["x own", "error", "% in attention", *SHORT.values(), "run"]


def one_line(row):
    """A kept row as it is printed while the benchmark runs."""
    parts = [row["group"], row["name"]]
    parts += [f"{row['threads']} thr"] if "threads" in row else []
    for kind, cells_of in KINDS.items():
        if kind in row:
            parts += [f"{head}: {cell}" for head, cell in cells_of(row).items()]
    ended = (f"{SHORT[x]}: {how}" for x, how in row.get("ended", {}).items())
    return "  ".join([*parts, *ended, verdict(row)])


# ---- Tables --------------------------------------------------------------------------


def markdown_table(header, lines):
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(x) + " |" for x in (header, rule, *lines))


def tables(rows):
    """The tables of kept rows of one group, which may be of several kinds."""
    for kind, cells_of in KINDS.items():
        found = [row for row in rows if kind in row]
        if found:
            scales = found[0]["group"] == "scaling"
            yield table(found, scaling_cells if scales else cells_of)


def table(rows, cells_of):
    """A table of rows; of several runs, which one each row is from comes last."""
    several = len({row["run"] for row in rows}) > 1
    lines = []
    for row in rows:
        threads = {"threads": str(row["threads"])} if "threads" in row else {}
        run = {"run": str(row["run"] + 1)} if several else {}
        lines.append({"row": row["name"], **threads, **cells_of(row), **run})
    heads = list(dict.fromkeys(head for line in lines for head in line))
    heads.sort(key=lambda head: COLUMNS.index(head) if head in COLUMNS else -1)
    return markdown_table(heads, [[line.get(x, "") for x in heads] for line in lines])


def without(rows):
    """Sentences about peers that rows lack: not installed, or their process ended."""
    names = {name for row in rows for name in row.get("absent", ())}
    if names:
        titles = (peers.SYSTEMS[x].title for x in SHORT if x in names)
        yield f"Not there: {', '.join(titles)}."
    ended = {}
    for row in rows:
        for name, how in row.get("ended", {}).items():
            ended.setdefault((name, how), {})[row["name"]] = None
    for (name, how), found in ended.items():
        yield f"{peers.SYSTEMS[name].title}, {how}: {'; '.join(found)}."


def sections(rows, groups=HEADINGS):
    """The heading and tables of each group that has kept rows."""
    for group in groups:
        found = [row for row in rows if row["group"] == group]
        if found:
            yield from (f"## {HEADINGS[group]}", *without(found), *tables(found))
