"""What a row's time goes to, counted by samples of where its threads are.

`perf` interrupts the threads that run attnpy's call, some thousand times a second, and
notes where they are. The extension is built a second time, with the names of functions,
which changes none of its instructions.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter

import numpy as np

from attnpy._measure import calls_per_sample, one_time

from . import cases, compare, kinds, machine, measure, pages, report
from .groups import TIMED
from .run import add_rows, chosen_rows, each, keep_models, write

BUILT = compare.ROOT / "build" / "bounds"
FREQUENCY = 4000  # samples a second of each thread
ALIKE = 16  # float32 queries in a vector of AVX-512


def parser():
    parsed = argparse.ArgumentParser(
        prog="python -m benchmarks bounds",
        description="What the time of attnpy's call goes to, row by row: Linux only, "
        "with perf.",
    )
    add_rows(parsed, TIMED, TIMED, (1, 2))
    add = parsed.add_argument
    add(
        "--missed",
        metavar="MACHINE",
        help="only rows that miss their target on this machine's page, such as zen4; "
        "what is found is kept in docs/performance/data",
    )
    add("--seconds", type=float, default=1.5, help="of samples of a row (default: 1.5)")
    add("--models", help="as for `python -m benchmarks`")
    return parsed


def build():
    """Build attnpy with the names of its functions, or what of it has changed."""
    command = [sys.executable, "setup.py", "-q", "build", "--build-lib", str(BUILT)]
    subprocess.run(
        command, check=True, cwd=compare.ROOT, env={**os.environ, "CFLAGS": "-g"}
    )
    return BUILT


# ---- In the process that is measured -------------------------------------------------


def extension():
    """Where the extension lies: its file, and its address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/_attnpy." in line:  # the first part of it
            return line.split(maxsplit=5)[5], int(line.partition("-")[0], 16)
    raise RuntimeError("the extension is not loaded")


def profile(path, seconds):
    """Make the prepared call while perf takes samples; return the seconds of a call.

    They are those of calls before, because each sample takes some microseconds.
    """
    (call,) = compare.prepared
    n_calls = calls_per_sample(call)
    end, times = perf_counter() + seconds / 2, []
    while not times or perf_counter() < end:
        times.append(one_time(call, n_calls))
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY)]
    command += ["-p", str(os.getpid()), "-o", path, "--", "sleep", str(seconds)]
    perf = subprocess.Popen(command)
    while perf.poll() is None:
        one_time(call, n_calls)
    if perf.returncode:
        raise RuntimeError(f"perf record ended: exit status {perf.returncode}")
    return float(np.median(times))


def limit(row, n_threads):
    """The machine's limit of the row, the best of some times, or None."""
    _, rate = measure.limit_of(row, n_threads)
    return rate and max(rate() for _ in range(5))


def scores_for_each_visible(case):
    """How many scores are computed for each that counts, at least.

    ALIKE queries beside each other compute all that one of them sees, and all between.
    """
    case = getattr(case, "call", case)  # of gradients, or of PyTorch's tensors
    one = not isinstance(case, cases.Case) or case.n_queries < ALIKE
    if one or case.mask == "blocks":
        return 1.0
    first, end = cases.visible_range(case)  # (B or 1, Lq)
    groups = np.arange(0, case.n_queries, ALIKE)
    spans = np.maximum.reduceat(end, groups, 1) - np.minimum.reduceat(first, groups, 1)
    scores = ALIKE * spans.sum() * case.heads * case.batch / len(spans)
    return float(scores / cases.visible_pairs(case))


# ---- A row ---------------------------------------------------------------------------


def output_of(*command, given=None):
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, input=given
    )
    return done.stdout


def shares(counts, most, n_threads, loaded, frames):
    """{kind: percent of the threads' time}, the largest first.

    most: samples of the busiest thread. Others have less, because they sleep meanwhile.
    loaded: file and address of the extension; frames: those known so far, to which new
    ones are added.
    """
    file, base = loaded
    ours = {key: key[0] - base for key in counts if key[2] == file}
    new = sorted({*ours.values()} - frames.keys())
    if new:
        given = "".join(f"{address:#x}\n" for address in new)
        found = output_of("addr2line", "-a", "-f", "-i", "-e", file, given=given)
        frames |= kinds.read_frames(found)
    found = Counter()
    for key, n in counts.items():
        if key in ours:
            found[kinds.kind_of(frames[ours[key]])] += n
        else:
            found[kinds.kind_in_library(key[2], key[1])] += n
    found["waiting"] += max(n_threads * most - found.total(), 0)
    return {kind: 100 * n / found.total() for kind, n in found.most_common() if n}


def bound(row, n_threads, seconds, frames):
    """What there is to know of a row, for JSON."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(compare.Worker(BUILT)) as worker,
    ):
        path = str(Path(folder) / "perf.data")
        worker.call(compare.prepare, row, n_threads)
        rates = [worker.call(limit, row, n_threads)]
        each_call = worker.call(profile, path, seconds)
        rates.append(worker.call(limit, row, n_threads))
        loaded = worker.call(extension)
        fields = "tid,ip,sym,dso"
        text = output_of("perf", "script", "-i", path, "-F", fields, "--no-inline")
    found = {"group": row.group, "name": row.name, "threads": n_threads}
    found |= {
        "date": f"{datetime.date.today()}",
        "commit": machine.commit() or "unknown",
    }
    found["kinds"] = shares(*kinds.read_samples(text), n_threads, loaded, frames)
    if None not in rates:
        by_memory = row.limit == "bandwidth"
        work = row.case.n_bytes() if by_memory else row.case.flops()
        found["limit"] = "bandwidth" if by_memory else "peak"
        found["percent"] = 100 * work / each_call / max(rates)
        found["computed"] = 1.0 if by_memory else scores_for_each_visible(row.case)
    return report.rounded(found)


# ---- The command ---------------------------------------------------------------------


def missing():
    """What keeps this machine from taking samples, or an empty text."""
    programs = [name for name in ("perf", "addr2line") if not shutil.which(name)]
    if sys.platform != "linux" or programs:
        return "samples are taken by `perf` and `addr2line`, on Linux only"
    return ""


def keep(path, found):
    """Put what is known of a row into a machine's file, in the place of earlier."""
    store = pages.read(path)
    others = store.get("bounds", [])
    key = report.row_key(found)
    store["bounds"] = [x for x in others if report.row_key(x) != key] + [found]
    pages.write(path, store)


def main(arguments):
    options = parser().parse_args(arguments)
    if missing():
        raise SystemExit(missing())
    keep_models(options.models)
    todo = list(chosen_rows(options))
    if options.missed:
        path = pages.DOCS / "data" / f"{options.missed}.json"
        missed = {
            report.row_key(x) for x in pages.read(path)["rows"] if x.get("missed")
        }
        todo = [x for x in todo if (x[1].group, x[1].name, x[2]) in missed]
    build()
    frames = {}
    for title, row, n_threads in each(todo):
        found = bound(row, n_threads, options.seconds, frames)
        write(f"{title}: {report.bound_of(found)}")
        if options.missed:
            keep(path, found)
