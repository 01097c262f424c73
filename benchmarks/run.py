"""Measure the rows that were asked for, one after another."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import traceback
from functools import partial
from pathlib import Path

from . import (
    footprint,
    machine,
    measure,
    memory,
    overhead,
    pages,
    peers,
    progress,
    report,
)
from .groups import GROUPS, rows_here
from .models import folders, loading, transformers_ways


def parser():
    parsed = argparse.ArgumentParser(
        prog="python -m benchmarks",
        allow_abbrev=False,
        description="Time attnpy beside its peers, interleaved, and measure the "
        "machine's limits in the same run. Other commands: `compare REV1 REV2` for two "
        "commits, `report` to write the pages of docs/performance again, "
        "`experiments` for what is no comparison.",
    )
    add = parsed.add_argument
    add("--quick", action="store_true", help="a few rows, in a minute")
    add("--group", type=listed, default=GROUPS, help=f"of {','.join(GROUPS)}")
    add("--rows", default="", help="only rows whose name contains this")
    add("--threads", type=numbers, default=(1, 2), help="default: 1,2")
    add("--systems", type=listed, default=tuple(peers.SYSTEMS), help="default: all")
    add("--rounds", type=int, help="rounds for each row, at most (default: 15)")
    add("--seconds", type=float, help="for each row, but five rounds (default: 5)")
    add(
        "--output", default="benchmark-results", help="directory (default: %(default)s)"
    )
    add(
        "--models",
        help="keep the models with random weights in this directory (6 GB), for later "
        "runs; by default they are written anew and removed",
    )
    add("--no-compile", action="store_true", help="leave torch.compile out: it is slow")
    add("--trials", type=int, help="samples to find a peer's fastest way (default: 3)")
    add("--no-plots", action="store_true", help="write JSON and Markdown only")
    add("--list", action="store_true", help="list the rows and stop")
    return parsed


def listed(text):
    return tuple(text.split(","))


def numbers(text):
    return tuple(int(part) for part in text.split(","))


def checked(options, parsed):
    """Options whose names exist; only systems that are installed."""
    for given, known in ((options.group, GROUPS), (options.systems, peers.SYSTEMS)):
        unknown = sorted(set(given) - set(known))
        if unknown:
            parsed.error(f"expected some of {', '.join(known)}, got {unknown[0]!r}")
    names = dict.fromkeys(("attnpy", *options.systems))
    return [name for name in names if peers.installed(name)]


def effort(options):
    """How long to measure each row."""
    usual = measure.Effort(5, 3, 0.4, 0) if options.quick else measure.Effort()
    rounds = options.rounds or usual.rounds
    return measure.Effort(
        rounds,
        min(rounds, usual.min_rounds),
        usual.seconds if options.seconds is None else options.seconds,
        usual.trials if options.trials is None else options.trials,
    )


# ---- What is to be done --------------------------------------------------------------


def chosen_rows(options):
    """The timed rows, where the CPU and the packages have what they need."""
    has_bfloat16 = peers.version("ml_dtypes")
    has_files = peers.version("safetensors")
    return [
        row
        for row in rows_here(options.group)
        if options.rows in row.name
        and (row.quick or not options.quick)
        and (has_bfloat16 or row.case.dtype != "bfloat16")
        and (has_files or not hasattr(row.case, "expected"))
        and all(map(peers.version, row.needs))
    ]


def jobs(options, systems):
    """(title, function that returns a row or a list of rows) for all that is asked."""
    how = effort(options)
    for row in chosen_rows(options):
        for n_threads in row.thread_counts or options.threads:
            title = f"{row.group} {row.name}, {n_threads} thr"
            yield title, partial(timed, row, n_threads, systems, how)
    if "small" in options.group and options.rows in "1x1x16x16":
        yield "small, the Python layer", partial(overhead.measure_overhead, how.rounds)
    has_torch = "integrations" in options.group and peers.version("torch")
    if has_torch and options.rows in "1x1x16x16":
        adapter = partial(overhead.measure_adapter, how.rounds)
        yield "integrations, what a call of tensors adds", adapter
    if "memory" in options.group:
        for name, case in memory.rows(options.quick):
            if options.rows not in name:
                continue
            for n_threads in options.threads[:1] if options.quick else options.threads:
                title = f"memory {name}, {n_threads} thr"
                measure_memory = partial(memory.measure_memory, name, case)
                yield title, partial(measure_memory, n_threads, systems)
    if "loading" in options.group and peers.version("safetensors"):
        for name, config, dtype in loading.rows(options.quick):
            has_dtype = dtype != "bfloat16" or peers.version("ml_dtypes")
            if options.rows in name and has_dtype:
                job = partial(loading.measure_loading, name, config, dtype)
                yield f"loading {name}", partial(job, how.rounds)
    if "footprint" in options.group and options.rows in "footprint":
        n_rounds = 2 if options.quick else 15
        yield (
            "footprint",
            partial(footprint.measure_footprint, systems, n_rounds),
        )


def timed(row, n_threads, systems, how):
    peers.set_threads(systems, n_threads)
    return measure.measure_row(row, n_threads, systems, how)


def measured(todo):
    """All rows, or those before Ctrl-C. One that fails is reported, no more."""
    rows, failures = [], {}
    bar = progress.Bar(len(todo))
    for title, job in todo:
        bar.show(title)
        try:
            found = job()
        except KeyboardInterrupt:
            bar.write("interrupted: what was measured till now is written")
            break
        except Exception as error:
            failures[title] = "".join(traceback.format_exception_only(error)).strip()
            bar.write(f"{title}: failed: {failures[title]}")
            found = []
        for row in found if isinstance(found, list) else [found]:
            rows.append(row)
            bar.write(report.one_line(report.kept(row)))
        bar.step()
    bar.close()
    return rows, failures


# ---- The command ---------------------------------------------------------------------


def command(arguments):
    """The command that was given, but for directories: a path is private."""
    kept, rest = [], iter(arguments)
    for argument in rest:
        if argument in ("--output", "--models"):
            next(rest)
        elif not argument.startswith(("--output=", "--models=")):
            kept.append(argument)
    return shlex.join(["python", "-m", "benchmarks", *kept])


def main(arguments):
    parsed = parser()
    options = parsed.parse_args(arguments)
    systems = checked(options, parsed)
    if options.models:
        os.environ[folders.PLACE] = os.path.abspath(options.models)
        os.makedirs(options.models, exist_ok=True)
    if options.no_compile:
        os.environ[transformers_ways.AS_IT_IS] = "1"
    if options.list:
        for title, _ in jobs(options, systems):
            print(title)
        return
    peers.without_gradients(systems)
    results = {
        "command": command(arguments),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": peers.versions(dict.fromkeys(("attnpy", *options.systems))),
        "machine": machine.describe(options.threads),
    }
    print("\n".join(pages.machine_lines(results["machine"])), flush=True)
    todo = list(jobs(options, systems))
    results["rows"], results["failures"] = measured(todo)
    directory = Path(options.output)
    written = pages.write_run(results, directory, not options.no_plots)
    path = directory / "results.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(report.summary([report.kept(row) for row in results["rows"]]))
    print("Written:", path, *written)
