"""Two commits against each other: both are built, and take turns in being measured.

Each revision is installed into a directory of its own. A worker process for each loads
the attnpy of its directory; this process asks them in turn, one sample at a time, and
starts new pairs of workers again and again, for where a process's memory lies also
changes its speed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from attnpy._measure import calls_per_sample, duration, one_time, quartiles

from . import children, machine, measure, report
from .groups import TIMED
from .models import folders
from .run import add_rows, chosen_rows, each

ROOT = Path(__file__).parents[1]


def parser():
    parsed = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description="How many times faster REV2 is than REV1, row by row. A revision "
        "is anything that git knows, or '.' for the files as they are now.",
    )
    add_rows(parsed, TIMED, ("full",), (1,))
    add = parsed.add_argument
    add("before", metavar="REV1")
    add("after", metavar="REV2")
    add("--rounds", type=int, default=10, help="pairs of samples (default: 10)")
    add("--processes", type=int, default=3, help="pairs of processes (default: 3)")
    add("--json", help="write the ratios to this file")
    add(
        "--no-build-isolation", action="store_true", help="build with what is installed"
    )
    return parsed


# ---- Building ------------------------------------------------------------------------


def git(*arguments, **more):
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **more).stdout


def extract(revision, directory):
    """Copy the files of a revision, or with '.' those of the working tree."""
    directory.mkdir()
    if revision == ".":
        files = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for name in files.decode().split("\0"):
            if name and (ROOT / name).is_file():
                target = directory / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        return
    archive = directory.with_suffix(".tar")
    git("archive", f"--output={archive}", revision)
    shutil.unpack_archive(archive, directory)


def build(revision, directory, no_isolation):
    """Install a revision's attnpy; return the folder to import it from."""
    sources, target = directory / "sources", directory / "installed"
    directory.mkdir()
    extract(revision, sources)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation"] if no_isolation else []
    command += ["--target", str(target), str(sources)]
    subprocess.run(command, check=True)
    # Both are timed alike, also a revision whose own stopwatch is another one, or none.
    shutil.copy2(ROOT / "attnpy" / "_measure.py", target / "attnpy")
    return target


# ---- A worker ------------------------------------------------------------------------


class Worker(children.Process):
    """A process that times one revision."""

    def __init__(self, target):
        # The sources come last: their attnpy/ may be another one, or not be built.
        others = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
        super().__init__(path=[str(target), *others, str(ROOT)])
        self.loaded = self.call(loaded)
        if not Path(self.loaded).is_relative_to(target):
            raise RuntimeError(f"expected attnpy of {target}, got {self.loaded}")


def loaded():
    import attnpy

    return str(Path(attnpy.__file__).parent)


prepared = []  # in a worker: the call that comes next


def prepare(row, n_threads):
    """Return how many calls a sample of a row has."""
    call = measure.own_way(row, row.case.arrays(), n_threads).call
    call()
    prepared[:] = [call]
    return calls_per_sample(call)


def sample(n_calls):
    return one_time(prepared[0], n_calls)


# ---- Comparing -----------------------------------------------------------------------


def times_of_pair(workers, row, n_threads, n_rounds):
    """Seconds of both in each round; who goes first changes from round to round."""
    n_calls = max(worker.call(prepare, row, n_threads) for worker in workers)
    times = np.empty((n_rounds, 2))
    for i in range(n_rounds):
        for j in (0, 1) if i % 2 == 0 else (1, 0):
            times[i, j] = workers[j].call(sample, n_calls)
    return times


def compare(targets, todo, options):
    """Seconds (rounds of all processes, 2) of each row."""
    times = []
    for _ in range(options.processes):
        workers = [Worker(target) for target in targets]
        times.append(
            [times_of_pair(workers, *item, options.rounds) for _, *item in each(todo)]
        )
        for worker in workers:
            worker.close()
    return [np.concatenate(pairs) for pairs in zip(*times, strict=True)]


def summarise(row, n_threads, times):
    before, after = np.median(times, axis=0)
    return {
        "group": row.group,
        "name": row.name,
        "threads": n_threads,
        "before": float(before),
        "after": float(after),
        "faster": quartiles(times[:, 0] / times[:, 1]),
        "rounds": len(times),
    }


def table(options, results):
    header = ["group", "row", "threads", options.before, options.after]
    lines = []
    for x in results:
        times = duration(x["before"]), duration(x["after"])
        row = x["group"], x["name"], str(x["threads"])
        lines.append([*row, *times, report.spread(x["faster"], 3)])
    return report.markdown_table([*header, "times faster (quartiles)"], lines)


def main(arguments):
    options = parser().parse_args(arguments)
    todo = list(chosen_rows(options))
    folders.root()  # one for all processes
    with tempfile.TemporaryDirectory() as directory:
        targets = [
            build(revision, Path(directory) / name, options.no_build_isolation)
            for name, revision in (("one", options.before), ("two", options.after))
        ]
        times = compare(targets, todo, options)
    results = [summarise(*item, x) for (_, *item), x in zip(todo, times, strict=True)]
    print(table(options, results))
    print(f"\n{machine.cpu_name()} {machine.cpu_model()}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
