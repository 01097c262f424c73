"""The pages of docs/performance, written from what is kept of runs.

docs/performance/data has a file of JSON for each machine: what the machine is, the runs
with their commands, and of each row what its table shows.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import plots, report

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "performance"
TITLES = {
    "attention": "Attention",
    "models": "Layers, models and sentences",
    "integers": "Weights of 8 and 4 bits",
    "scaling": "Many threads",
    "gradients": "Gradients, training and adapters",
}
MACHINE = ("cpu", "model", "cpus", "cores", "system", "caches", "tier")
HIDDEN = "---\nnosearch: true\n---"  # words of tables are no answers to a search
READ = "[How to read the tables](../performance.md#how-to-read-the-tables). "
LEGEND = (
    "A cell is the median over the rounds, with the quartiles in brackets. `x torch` "
    "is how many times as fast attnpy is; `x own` compares attnpy's rate with that of "
    "attnpy in the named other case. GFLOP/s count 2 (D + Dv) for each visible pair, "
    "and 2.5 times that for gradients. Percentages are of the limit measured in the "
    "same round. An error is the root mean square of differences from float64 over "
    "that of the numbers."
)
SCALING = (
    "`x 1 thread` is how many times as fast attnpy is as with one thread, measured in "
    "the same rounds. The other libraries have as many threads as attnpy, and "
    "percentages are of the limit with that many. "
)
MISSES = (
    "`rows.py` says what each row should reach: a ratio to a peer or to the fastest of "
    "them, a share of the machine's limit, or either, where one is enough. These are "
    "aims of the project, not promises. In brackets is the share of the limit, "
    "measured in the same rounds, that would be enough. Every run writes such a table, "
    "`misses.md` beside its `results.json`. Only a table with a last column says what "
    "the time goes to: on the other machines, this was not measured."
)
SAMPLED = (
    "The last column is what the threads were doing when `perf` interrupted them, "
    "4,000 times a second, in percent of the time of all threads. `python -m "
    "benchmarks bounds` takes these samples. What takes less than 3 % is left out. "
    "Softmax includes maxima and sums; outputs are divided, converted and stored; "
    "waiting threads spin or sleep; calls are Python, checks of arguments and the "
    "division into tasks. The share of the peak is that of products in their own time, "
    "by the row's own table (of float32's peak in gradients of bfloat16). Where "
    "attention hides keys, it counts the hidden ones that 16 queries side by side "
    "compute. The share of the bandwidth is that of the row's table, too."
)


# ---- What is kept --------------------------------------------------------------------


def new_store(results):
    """What is kept of one run, as run.py has its results."""
    found = results["machine"]
    versions = {"Python": found["python"], "C compiler": found["compiler"] or "none"}
    for packages in results["versions"].values():
        versions |= {name: x for name, x in packages.items() if x}
    run = {key: results[key] for key in ("command", "date")}
    if results.get("commit"):
        run["commit"] = results["commit"]
    run |= {"load": found["load average before"], "limits": found["limits"]}
    if results.get("left_out"):
        run["left_out"] = results["left_out"]
    return {
        "machine": {key: found[key] for key in MACHINE},
        "runs": [{**run, "versions": versions}],
        "rows": [report.kept(row) for row in results["rows"]],
    }


def add(store, later):
    """Put the rows of a later run in the place of earlier ones, or behind them."""
    for key in ("cpu", "model", "cpus", "tier"):
        if store["machine"][key] != later["machine"][key]:
            raise SystemExit(f"the runs differ in the machine's {key}")
    n_runs = len(store["runs"])
    new = {
        report.row_key(row): {**row, "run": n_runs + row["run"]}
        for row in later["rows"]
    }
    store["rows"] = [new.pop(report.row_key(row), row) for row in store["rows"]]
    store["rows"] += new.values()
    store["runs"] += later["runs"]
    forget_unused_runs(store)
    forget_what_others_measured(store)


def forget_unused_runs(store):
    """Leave out the runs of which no row is left, and count the others anew."""
    used = sorted({row["run"] for row in store["rows"]})
    store["runs"] = [store["runs"][i] for i in used]
    for row in store["rows"]:
        row["run"] = used.index(row["run"])


def forget_what_others_measured(store):
    """Of the rows that a run had no time for, keep those that no other run has."""
    found = {report.title(*report.row_key(row)) for row in store["rows"]}
    for run in store["runs"]:
        left = [title for title in run.pop("left_out", []) if title not in found]
        if left:
            run["left_out"] = left


def read(path):
    return json.loads(path.read_text("utf-8"))


def write(path, store):
    """Write a file with a line for each run and row: what changes is seen in git."""
    parts = []
    for key, value in store.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            lines = (json.dumps(x, ensure_ascii=False) for x in value)
            text = "[\n" + ",\n".join(lines) + "\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


# ---- Pages ---------------------------------------------------------------------------


def machine_lines(machine):
    model = f" ({machine['model']})" if machine["model"] else ""
    cores = f" on {machine['cores']} cores" if machine["cores"] else ""
    sizes = (f"{level} {size >> 10} KiB" for level, size in machine["caches"].items())
    cpus = f"{machine['cpus']} CPUs{cores}"
    yield f"- CPU: {machine['cpu']}{model}, {cpus}, {machine['system']}"
    yield f"- caches: {', '.join(sizes) or 'unknown'}"
    yield f"- instruction set in use: {machine['tier']}"


def run_lines(runs):
    """What differs from run to run, and of which of them it is known."""
    found = {}
    for i, run in enumerate(runs, 1):
        versions = ", ".join(f"{name} {x}" for name, x in run["versions"].items())
        lines = [f"versions: {versions}"]
        for n_threads, limits in run.get("limits", {}).items():
            text = ", ".join(f"{name} {x}" for name, x in limits.items())
            threads = "1 thread" if n_threads == "1" else f"{n_threads} threads"
            lines.append(f"limits with {threads}: {text or 'no C compiler'}")
        lines += [run["note"]] if "note" in run else []
        if left := run.get("left_out"):
            lines.append(f"not measured, because the time was over: {'; '.join(left)}")
        for line in lines:
            found.setdefault(line, []).append(str(i))
    for line, numbers in found.items():
        of = f"run {', '.join(numbers)}: " if len(numbers) < len(runs) else ""
        yield f"- {of}{line}"


def runs_table(runs):
    names = any("commit" in run for run in runs)  # which older runs do not have
    lines = []
    for i, run in enumerate(runs, 1):
        load = ", ".join(f"{x:g}" for x in run.get("load") or ())
        date = run["date"][:16].replace("T", " ")
        commit = [run.get("commit", "")] if names else []
        lines.append([str(i), date, *commit, f"`{run['command']}`", load])
    head = ["run", "date", *(["commit"] if names else []), "command", "load before"]
    return report.markdown_table(head, lines)


def page(title, store, groups=report.HEADINGS, images=(), first=""):
    """A page of Markdown: the tables of some groups, then how they were measured."""
    first += "[How it was measured](#how-it-was-measured) comes after the tables."
    rows = [row.copy() for row in store["rows"] if row["group"] in groups]
    shown = {**store, "rows": rows}
    forget_unused_runs(shown)
    how = [*machine_lines(store["machine"]), *run_lines(shown["runs"])]
    parts = [
        *(HIDDEN, f"# {title}", first, *images, *report.sections(rows, groups)),
        *("## How it was measured", LEGEND, runs_table(shown["runs"]), "\n".join(how)),
    ]
    return "\n\n".join(parts) + "\n"


def pages(stores):
    """{file name: text} of all pages of the machines, {name: what is kept}."""
    found = {"misses.md": misses(stores)}
    for name, store in stores.items():
        measured = {row["group"] for row in store["rows"]}
        for subject, groups in report.PAGES.items():
            if measured.isdisjoint(groups):
                continue
            images = [
                f"![{title}]({name}_{group}.png)"
                for group, title in plots.TITLES.items()
                if group in groups and (DOCS / f"{name}_{group}.png").exists()
            ]
            title = f"{TITLES[subject]} on {store['title']}"
            first = (SCALING if subject == "scaling" else "") + READ
            found[f"{name}-{subject}.md"] = page(title, store, groups, images, first)
    return found


def misses(stores):
    """A page of every row that did not reach what it should."""
    parts = [HIDDEN, "# Where rows of the pages miss", MISSES]
    for store in stores.values():
        if not any("missed" in row for row in store["rows"]):
            continue
        heading = store["title"][0].upper() + store["title"][1:]
        parts += [f"## {heading}", report.summary(store["rows"])]
        parts += report.misses(store["rows"], store.get("bounds", ()))
        parts += sampled(store.get("bounds", ()))
    return "\n\n".join(parts) + "\n"


def sampled(bounds):
    """How the column about the time of a machine's rows was found, if it has one."""
    if bounds:
        dates = sorted({x["date"] for x in bounds})
        dates = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        commits = ", ".join(dict.fromkeys(x["commit"] for x in bounds))
        yield f"{SAMPLED} Sampled on {dates}, at commit {commits}."


# ---- The commands --------------------------------------------------------------------


def write_run(results, directory, with_plots=True):
    """Write results.md, misses.md and plots of one run; return the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    store = {"title": "this machine", **new_store(results)}
    drawn = plots.draw(store["rows"], directory, "speed") if with_plots else []
    shown = [f"![{plots.TITLES[group]}]({path.name})" for group, path in drawn]
    written = {
        "results.md": page("attnpy benchmarks", store, images=shown),
        "misses.md": misses({"": store}),
    }
    for name, text in written.items():
        (directory / name).write_text(text, "utf-8")
    return [*(directory / name for name in written), *(path for _, path in drawn)]


def main(arguments):
    """Write all pages again, with more runs where there are some."""
    parsed = argparse.ArgumentParser(prog="python -m benchmarks report")
    parsed.add_argument(
        "--add",
        nargs=2,
        action="append",
        default=[],
        metavar=("RESULTS", "MACHINE"),
        help="the results.json of a run, and the machine's file in "
        "docs/performance/data, such as zen5: rows that it has are replaced",
    )
    parsed.add_argument("--title", help='of a new machine, such as "a Zen 5"')
    parsed.add_argument(
        "--plots", action="store_true", help="draw the plots of what is added, or all"
    )
    options = parsed.parse_args(arguments)
    for results, name in options.add:
        path = DOCS / "data" / f"{name}.json"
        later = new_store(read(Path(results)))
        if path.exists():
            store = read(path)
            add(store, later)
        else:
            store = {"title": options.title or name, **later}
        write(path, store)
    stores = {path.stem: read(path) for path in sorted((DOCS / "data").glob("*.json"))}
    drawn = {name for _, name in options.add} or stores
    for name in drawn if options.plots else ():
        plots.draw(stores[name]["rows"], DOCS, name)
    for name, text in pages(stores).items():
        (DOCS / name).write_text(text, "utf-8")
        print((DOCS / name).relative_to(ROOT))
