"""The benchmarks count their work rightly and run to the end. No speed is asserted."""

import ast
import contextlib
import errno
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest
from support.processes import assert_runs, wait_until

from attnpy import _attnpy, _bench, attention

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # last: there is an attnpy/ as well, perhaps not built

from support import deadly  # noqa: E402

from benchmarks import __main__ as command  # noqa: E402
from benchmarks import (  # noqa: E402
    apart,
    backward,
    cases,
    children,
    experiments,
    footprint,
    groups,
    layers,
    machine,
    measure,
    pages,
    peers,
    plots,
    quiet,
    report,
    rows,
    run,
    tensors,
    ways,
)
from benchmarks.models import (  # noqa: E402
    decoders,
    encoders,
    exported,
    folders,
    gguf_files,
    in_torch,
    in_transformers,
    pairs,
    reuse,
    sentences,
    training,
    transformers_ways,
)
from benchmarks.models import rows as model_rows  # noqa: E402

PAGES = [ROOT / "README.md", ROOT / "docs/performance.md"]
PAGES += sorted(pages.DOCS.glob("*-*.md"))
SMALL = cases.Case(2, 4, 2, 9, 13, 3)
OPTIONS = [
    {},
    {"causal": True},
    {"window": 4},
    {"window": 1, "causal": True},
    {"window": 40},
    {"mask": "random"},
    {"mask": "random", "causal": True},
    {"mask": "blocks", "n_queries": 150, "n_keys": 200},
    {"mask": "random", "window": 5},
    {"padded": True},
    {"padded": True, "causal": True},
    {"padded": True, "window": 3},
    {"padded": True, "mask": "random"},
    {"bias": True, "causal": True},
    {"causal": True, "n_queries": 20},
    {"n_queries": 1},
]


def counted(case):
    """The visible pairs one by one, as attnpy's documentation defines them."""
    pairs = 0
    for b in range(case.batch):
        lengths, mask = cases.lengths(case), cases.mask(case)
        count = case.n_keys if lengths is None else int(lengths[b])
        for i in range(case.n_queries):
            position = count - case.n_queries + i
            for j in range(count):
                hidden = mask is not None and not mask[i, j]
                if case.causal or case.window is not None:
                    hidden |= j > position
                if case.window is not None:
                    hidden |= j < position - (case.window - 1)
                pairs += not hidden
    return pairs * case.heads


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_visible_pairs_are_those_of_a_count_one_by_one(options):
    case = replace(SMALL, **options)
    assert cases.visible_pairs(case) == counted(case)
    assert case.flops() == 4 * case.dim * counted(case)
    seen = np.broadcast_to(
        cases.visible(case), (case.batch, case.n_queries, case.n_keys)
    )
    assert np.count_nonzero(seen) * case.heads == counted(case)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_visible_pairs_are_the_weights_that_attnpy_computes(options):
    case = replace(SMALL, **options)
    query, key, value = case.arrays()
    _, weights = attention(
        query, key, value, **cases.options(case), return_weights=True
    )
    assert np.count_nonzero(weights) == cases.visible_pairs(case)


@pytest.mark.quick
def test_every_row_has_a_name_of_its_own_and_known_targets():
    every = groups.timed_rows(groups.TIMED, ["avx2", "scalar"], native_bf16=True)
    assert len({(row.group, row.name) for row in every}) == len(every)
    known = {*peers.SYSTEMS, "own", "peak", "bandwidth", "fastest", "error/openvino"}
    for row in every:
        assert set(row.peers) <= set(ways.WAYS[type(row.case)])
        targets = [
            part
            for target in row.targets
            for part in ([target] if isinstance(target[0], str) else target)
        ]
        assert {what for what, _ in targets} <= known
        assert row.own is not None or "own" not in dict(targets)
    assert {row.group for row in every} == set(groups.TIMED)
    assert {row.group for row in every if row.quick} == set(groups.TIMED)


@pytest.mark.quick
def test_what_multiplies_bfloat16_is_the_limit_of_its_rows_alone():
    several = ("half", "models", "prompts", "tokens")
    every = groups.timed_rows(several, native_bf16=True)
    halves = [row for row in every if row.case.dtype == "bfloat16"]
    assert {row.group for row in halves} == set(several)
    assert all(row.native for row in halves)
    assert not any(row.native for row in every if row.case.dtype != "bfloat16")


@pytest.mark.quick
def test_a_target_is_missed_exactly_when_it_is_not_reached():
    row = {"group": "full", "name": "x", "unit": "GFLOP/s"}
    row["targets"] = [
        [measure.at_least("torch", 2.0, 2.0)],
        [measure.at_most("ms", 15, 15.0)],
    ]
    assert report.verdict(report.kept(row)) == "met"
    row["targets"].append([measure.at_least("peak", 84, 83.999)])
    kept = report.kept(row)
    assert report.verdict(kept) == "missed: peak 84.00 < 84"
    assert report.verdict(report.kept({**row, "targets": []})) == "-"
    rows = [kept, kept, {**kept, "missed": []}, report.kept({**row, "targets": []})]
    assert report.summary(rows) == "1 of 3 rows with a target met it."


def test_the_threads_of_a_limit_each_have_a_number_and_a_cpu_of_their_own():
    assert len(set(machine.cpus())) == len(machine.cpus())
    assert machine.together(lambda i: 10.0**i, 3) == 111.0


def test_the_threads_of_a_limit_run_though_a_cpu_is_gone(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(machine, "cpus", lambda: [0, 1])
    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    assert machine.together(lambda i: 10.0**i, 3) == 111.0
    with pytest.raises(ZeroDivisionError):
        machine.together(lambda i: 1 / i, 3)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("real", ["f32", "f64", "bf16"])
def test_the_peak_is_that_of_a_loop_which_the_cpu_has(real, n_threads):
    loop = machine.fma_loop(real)
    if loop is None:
        pytest.skip(f"no C compiler, or no products of {real}")
    assert machine.fma_peak(loop, n_threads) > 0
    assert machine.fma_loop("f32", "another") is None


@pytest.mark.parametrize("column", [0, 1])  # reading; multiplications and additions
@pytest.mark.parametrize(("rates", "calls", "shares"), [
    ([9, 10, 9, 9, 9, 9, 9], 1, [False]),  # quiet before and after
    ([5, 5, 9, 9, 9], 1, [False]),  # waits before it
    ([9, 5, 9, 9], 2, [False]),  # a second try
    ([9, 5, 9, 5, 9, 5], 3, [True]),  # no try was quiet
])  # fmt: skip
def test_samples_that_others_disturbed_are_taken_again(
    monkeypatch, rates, calls, shares, column
):
    watch = object.__new__(quiet.Watch)
    watch.best, disturbed, taken = np.full(2, 10.0), [], []
    found = np.full((len(rates), 2), 10.0)
    found[:, column] = rates
    looks = iter(found)
    monkeypatch.setattr(quiet.machine, "reader", object)
    monkeypatch.setattr(quiet, "watch_of", lambda n_threads: watch)
    monkeypatch.setattr(watch, "rates", lambda: next(looks), raising=False)
    sample = quiet.sampler(lambda: taken.append(1) or len(taken), 1, disturbed)
    assert sample() == calls == len(taken)
    assert disturbed == shares


@pytest.mark.quick
def test_a_short_measurement_takes_no_sample_again(monkeypatch):
    watch, disturbed, taken = object.__new__(quiet.Watch), [], []
    monkeypatch.setattr(watch, "is_quiet", lambda: False, raising=False)
    monkeypatch.setattr(quiet, "watch_of", lambda n_threads: watch)
    quiet.sampler(lambda: taken.append(1), 1, disturbed, patience=0.0)()
    assert (taken, disturbed) == ([1], [True])


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_watch_looks_at_as_many_cores_as_are_measured(n_threads):
    if machine.reader() is None:
        pytest.skip("no C compiler")
    watch = quiet.watch_of(n_threads)
    assert len(watch.arrays) == n_threads
    looks = np.array([watch.rates() for _ in range(20)])  # 0 of a thread that came late
    assert (looks < 1e13).all()
    assert (looks.max(axis=0) > 0).all()
    assert (watch.best > 1e9).all()


@pytest.mark.quick
def test_where_it_misses_has_every_target_that_was_not_reached():
    row = {"group": "causal", "name": "1x2x3x4", "threads": 2, "own": "full"}
    row |= {"limit": "peak", "percent": [40, 60, 70]}
    missed = [
        [measure.at_least("torch", 2.0, 1.5), measure.at_least("peak", 84, 60.0)],
        [measure.at_least("own", 0.85, 0.5)],
        [measure.at_most("ms", 15, 16.0)],
    ]
    heading, table = report.misses([{**row, "missed": missed}, {**row, "missed": []}])
    assert heading == "### Causal attention, float32 (`causal`)"
    assert table.splitlines()[2:] == [
        "| 1x2x3x4 | 2 | torch 1.50 < 2 (80 % of the peak) and peak 60.00 < 84"
        "; full 0.50 < 0.85; ms 16.00 > 15 |"
    ]
    assert list(report.misses([row, {**row, "missed": []}])) == []


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_for_users_say_nothing_of_targets(page):
    prose = re.sub("```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    assert not re.search(r"\btargets?\b|\bmiss(es|ed)?\b", prose)


@pytest.mark.quick
def test_a_target_of_several_parts_is_met_where_one_is():
    row = rows.Row("models", "x", None, ((("openvino", 1.2), ("peak", 85)),))
    slow = {"threads": 1, "systems": {}, "faster_than": {"openvino": [1, 1.1, 1.2]}}
    (found,) = measure.judge(row, {**slow, "limit": {"percent": [80, 86, 90]}})
    assert report.met(found)
    (found,) = measure.judge(row, {**slow, "limit": {"percent": [80, 84, 90]}})
    assert not report.met(found)
    assert report.verdict({"missed": [found]}) == (
        "missed: OpenVINO 1.10 < 1.2 and peak 84.00 < 85"
    )
    assert measure.judge(row, {**slow, "faster_than": {}}) == []


@pytest.mark.quick
def test_an_error_is_judged_by_that_of_the_peer():
    row = rows.Row("models", "x", None, (("error/openvino", 1.0),))
    systems = {"attnpy": {"error": 0.02}, "openvino": {"error": 0.01}}
    result = {"threads": 1, "systems": systems, "faster_than": {}}
    (found,) = measure.judge(row, result)
    assert found == [["error/openvino", "<=", 1.0, 2.0]]
    assert report.verdict({"missed": [found]}) == (
        "missed: error over OpenVINO's 2.00 > 1"
    )
    assert measure.judge(row, {**result, "systems": {}}) == []


@pytest.mark.quick
def test_a_table_says_errors_and_who_is_not_there():
    system = {"seconds": [1, 1, 1], "speed": [1, 2, 3], "error": 0.01}
    row = {
        "group": "tokens",
        "name": "x",
        "threads": 1,
        "unit": "tokens/s",
        "systems": {"attnpy": system, "llamacpp": {**system, "error": 0.002}},
        "faster_than": {"llamacpp": [1, 2, 3], "fastest": [1, 2, 3]},
        "limit": {"what": "bandwidth", "percent": [50, 60, 70]},
        "targets": [[measure.at_least("fastest", 3, 2)]],
        "absent": ["openvino"],
    }
    kept = report.kept(row)
    (table,) = report.tables([kept])
    header, _, cells = table.splitlines()
    assert header.endswith("| % of bandwidth | x llama.cpp | error |")
    assert "| attnpy 1.0e-02, llama.cpp 2.0e-03 |" in cells
    assert "missed" not in cells
    assert "missed: the fastest peer 2.00 < 3" in report.one_line(kept)
    assert list(report.without([kept])) == ["Not there: OpenVINO."]
    assert list(report.without([{**kept, "absent": []}])) == []


@pytest.mark.quick
def test_a_table_has_the_units_of_its_rows_and_says_from_which_run_they_are():
    row = {"group": "defaults", "unit": "GFLOP/s", "seconds": 1.0, "speed": 2.0}
    row |= {"name": "x", "threads": 2, "faster_than": {"torch": [1, 2, 3]}, "run": 0}
    other = {**row, "name": "y", "unit": "tokens/s", "faster_than": {}}
    (table,) = report.tables([row, other])
    assert table.splitlines() == [
        "| row | threads | time | GFLOP/s | tokens/s | x torch |",
        "| --- | --- | --- | --- | --- | --- |",
        "| x | 2 | 1 s | 2 |  | 2.00 (1.00-3.00) |",
        "| y | 2 | 1 s |  | 2 |  |",
    ]
    (table,) = report.tables([row, {**other, "run": 3}])
    assert [line.split(" | ")[-1] for line in table.splitlines()] == [
        *("run |", "--- |", "1 |", "4 |")
    ]


@pytest.mark.quick
def test_an_error_is_over_all_numbers():
    assert ways.mean_error([[0, 5]], [[3, 1]]) == pytest.approx(5 / np.sqrt(10))
    assert ways.mean_error([], []) == 0
    assert ways.difference([[0, 5]], [[3, 1]]) == pytest.approx(4 / 3)


@pytest.mark.quick
def test_ways_that_cannot_be_made_are_dropped_and_the_others_stay():
    def made():
        yield peers.Way("right", lambda: np.ones(3))
        yield peers.Way("wrong", lambda: np.zeros(3))
        yield peers.Way("broken", lambda: 1 / 0)
        raise OSError("no such file")

    good, dropped = ways.right_ways(made(), SMALL, np.ones(3))
    assert {way.name: error for way, error in good.items()} == {"right": 0.0}
    assert dropped == {
        "wrong": "another result: relative difference 1",
        "broken": "ZeroDivisionError: division by zero",
        "the next way": "OSError: no such file",
    }


@pytest.mark.quick
def test_no_file_of_the_benchmarks_needs_another_in_a_circle():
    folder = ROOT / "benchmarks"
    files = {
        ("benchmarks", *path.relative_to(folder).with_suffix("").parts): path
        for path in folder.rglob("*.py")
        if path.stem not in ("__init__", "__main__")
    }
    graph = {}
    for name, path in files.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = (*name[: -node.level], *(node.module or "").split("."))
                base = tuple(filter(None, base))
                names = {(*base, alias.name) for alias in node.names}
                graph[name] |= {base} & files.keys() | names & files.keys()
    assert graph["benchmarks", "apart"] >= {("benchmarks", "ways")}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) == set(files)
    kernel = [name for name in files if name[1] != "models"]
    above = {"ways", "groups", "measure", "run", "experiments", "compare"}
    for name in kernel:  # rows near the kernel know nothing of whole models
        if any(needed[1] == "models" for needed in graph[name]):
            assert name[1] in above, name


# ---- Pages ---------------------------------------------------------------------------


def test_the_pages_are_what_the_command_writes():
    stores = {
        path.stem: pages.read(path) for path in sorted(pages.DOCS.glob("data/*.json"))
    }
    written = pages.pages(stores)
    assert {path.name for path in pages.DOCS.glob("*.md")} == set(written)
    for name, text in written.items():
        assert (pages.DOCS / name).read_text("utf-8") == text, name
        assert text.startswith("---\nnosearch: true\n---\n")
        assert_tables(text, 1)
    titles = [text.split("\n# ")[1].splitlines()[0] for text in written.values()]
    assert len(set(titles)) == len(titles)
    del written["misses.md"]
    n_rows = sum(len(store["rows"]) for store in stores.values())
    in_tables = sum(
        line.startswith("| ") and not line.startswith(("| row |", "| --- |", "| run |"))
        for text in written.values()
        for line in text.split("\n## How it was measured")[0].splitlines()
    )
    assert in_tables == n_rows > 800


@pytest.mark.quick
def test_every_group_has_a_heading_and_a_page():
    shown = [group for some in report.PAGES.values() for group in some]
    assert sorted(shown) == sorted(report.HEADINGS) == sorted(groups.GROUPS)
    assert set(pages.TITLES) == set(report.PAGES)


@pytest.mark.quick
def test_what_is_kept_is_read_again_as_it_was(tmp_path):
    for path in pages.DOCS.glob("data/*.json"):
        store = pages.read(path)
        pages.write(tmp_path / "x.json", store)
        assert (tmp_path / "x.json").read_bytes() == path.read_bytes()
        assert report.rounded(store["rows"]) == store["rows"]


def store_of(command, *found):
    machine = {"cpu": "x", "model": "", "cpus": 2, "tier": "avx2"}
    rows = [
        {"group": "full", "name": name, "threads": 1, "run": 0, "speed": speed}
        for name, speed in found
    ]
    return {"machine": machine, "runs": [{"command": command}], "rows": rows}


@pytest.mark.quick
def test_rows_of_a_later_run_replace_earlier_ones_or_follow_them():
    store = store_of("first", ("a", 1), ("b", 2))
    pages.add(store, store_of("second", ("b", 3), ("c", 4)))
    found = [(row["name"], row["speed"], row["run"]) for row in store["rows"]]
    assert found == [("a", 1, 0), ("b", 3, 1), ("c", 4, 1)]
    assert [run["command"] for run in store["runs"]] == ["first", "second"]
    pages.add(store, store_of("third", ("a", 5)))  # nothing is left of the first
    found = [(row["name"], row["speed"], row["run"]) for row in store["rows"]]
    assert found == [("a", 5, 1), ("b", 3, 0), ("c", 4, 0)]
    assert [run["command"] for run in store["runs"]] == ["second", "third"]
    other = store_of("fourth", ("a", 6))
    other["machine"]["cpu"] = "y"
    with pytest.raises(SystemExit, match="differ in the machine's cpu"):
        pages.add(store, other)


@pytest.mark.quick
def test_the_command_adds_a_run_to_a_machine_and_writes_its_pages(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "DOCS", tmp_path / "docs")
    system = {"seconds": [1, 1, 1], "speed": [1, 2, 3]}
    row = {"group": "full", "name": "1x2x3x4", "threads": 1, "unit": "GFLOP/s"}
    row |= {"systems": {"attnpy": system}, "faster_than": {"torch": [1, 2, 3]}}
    row["targets"] = [[measure.at_least("torch", 3.0, 2.0)]]
    found = dict.fromkeys(("cpu", "model", "system", "tier", "compiler"), "x")
    found |= {"cpus": 2, "cores": 2, "caches": {"L1": 32768}, "python": "3"}
    found |= {"load average before": [1, 2, 3], "limits": {"1": {}}}
    results = {"command": "c", "date": "2026-01-02T03:04:05", "rows": [row]}
    results |= {"machine": found, "versions": {"torch": {"torch": "2"}}}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    pages.main(["--add", str(path), "m4", "--title", "an M4"])
    assert capsys.readouterr().out.split() == ["docs/misses.md", "docs/m4-attention.md"]
    page = (tmp_path / "docs/m4-attention.md").read_text()
    assert "# Attention on an M4\n" in page
    assert "| 1x2x3x4 | 1 | 1 s | 2 | 2.00 (1.00-3.00) |\n" in page
    assert "| 1 | 2026-01-02 03:04 | `c` | 1, 2, 3 |\n" in page
    misses = (tmp_path / "docs/misses.md").read_text()
    assert "## An M4\n\n0 of 1 rows" in misses
    assert "| 1x2x3x4 | 1 | torch 2.00 < 3 |\n" in misses
    again = {**row, "group": "training", "targets": []}
    later = {**results, "rows": [again], "command": "later", "commit": "abc123"}
    path.write_text(json.dumps(later))
    pages.main(["--add", str(path), "m4"])
    assert (tmp_path / "docs/m4-attention.md").read_text() == page
    page = (tmp_path / "docs/m4-gradients.md").read_text()
    assert "| 1 | 2026-01-02 03:04 | abc123 | `later` | 1, 2, 3 |\n" in page


@pytest.mark.quick
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_run_names_the_commit_of_its_sources(tmp_path):
    def git(*arguments):
        name = ["-c", "user.name=x", "-c", "user.email=x"]
        command = ["git", "-C", str(tmp_path), *name, *arguments]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        return found.stdout.strip()

    assert machine.commit(tmp_path) is None
    git("init")
    assert machine.commit(tmp_path) is None  # nothing is committed yet
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "x")
    name = git("rev-parse", "--short", "HEAD")
    assert machine.commit(tmp_path) == name
    (tmp_path / "docs").mkdir()
    assert machine.commit(tmp_path / "docs") is None  # sources in another repository
    (tmp_path / "docs" / "b").write_text("1")
    git("add", "docs/b")
    assert machine.commit(tmp_path) == name  # no source
    (tmp_path / "a").write_text("2")
    assert machine.commit(tmp_path) == f"{name}+"


@pytest.mark.quick
def test_a_run_says_what_differs_from_the_other_runs():
    one = {"versions": {"numpy": "2"}, "limits": {"1": {"read GB/s": 5}}}
    other = {"versions": {"numpy": "2"}, "note": "on battery"}
    assert list(pages.run_lines([one, other])) == [
        "- versions: numpy 2",
        "- run 1: limits with 1 thread: read GB/s 5",
        "- run 2: on battery",
    ]


@pytest.mark.quick
def test_the_command_is_shown_without_the_directory_of_its_results():
    for output in (["--output", "/a/b"], ["--output=/a/b", "--models", "/c"]):
        shown = run.command(["--quick", *output, "--threads", "1"])
        assert shown == "python -m benchmarks --quick --threads 1"


@pytest.mark.quick
def test_the_command_starts_again_before_numpy_is_loaded_with_threads_that_sleep(
    monkeypatch,
):
    started = []

    def execve(*arguments):
        started.append(arguments)
        raise KeyboardInterrupt  # what follows would be another program

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    with pytest.raises(KeyboardInterrupt):
        command.main(["--list"])
    ((program, arguments, environment),) = started
    assert (program, arguments) == (sys.executable, sys.orig_argv)
    assert environment.items() >= children.QUIET.items()


RUN = f"""
import shutil
import subprocess
import sys
sys.path.append({str(ROOT)!r})
from benchmarks.__main__ import main
main(sys.argv[1:])
"""


def run_benchmarks(tmp_path, *arguments, threads="1"):
    """What a run printed, its JSON and its Markdown."""
    more = ["--threads", threads, "--rounds", "2", "--no-plots", "--output", tmp_path]
    printed = assert_runs(RUN, *arguments, *more)
    results = json.loads((tmp_path / "results.json").read_text())
    return printed, results, (tmp_path / "results.md").read_text()


def test_a_run_with_attnpy_and_numpy_alone_writes_json_and_markdown(tmp_path):
    pytest.importorskip("threadpoolctl")
    printed, results, markdown = run_benchmarks(
        tmp_path,
        *("--group", "small,memory,loading,threads,models,sentences,generation"),
        *("--quick", "--systems", "attnpy,numpy"),
    )
    assert results["failures"] == {}
    found = {row["group"] for row in results["rows"]}
    measured = {"small", "memory", "threads", "generation"}
    if importlib.util.find_spec("safetensors"):
        measured |= {"loading", "models"}
        if importlib.util.find_spec("tokenizers"):
            measured |= {"sentences"}
    assert found == measured
    first = results["rows"][0]
    assert (first["name"], first["visible_pairs"]) == ("1x1x16x16", 256)
    assert set(first["systems"]) == {"attnpy", "numpy"}
    assert set(results["versions"]) == {"attnpy", "numpy"}
    assert str(tmp_path) not in markdown
    assert_tables(markdown, 3)
    assert not re.search("target|miss", markdown)
    misses = (tmp_path / "misses.md").read_text()
    assert re.search(r"^\d+ of \d+ rows with a target met it\.$", misses, re.MULTILINE)
    for row in results["rows"]:
        assert row["name"] in markdown
        assert row["name"] in printed


# ---- Many threads --------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("n_cpus", "counts"),
    [
        (1, [1]),
        (2, [1, 2]),
        (4, [1, 4]),
        (12, [1, 4, 8, 12]),
        (16, [1, 4, 8, 16]),
        (96, [1, 4, 8, 16, 32, 64, 96]),
    ],
)
def test_rows_of_many_threads_go_up_to_all_cpus(monkeypatch, n_cpus, counts):
    monkeypatch.setattr(machine, "cpus", lambda: list(range(n_cpus)))
    options = run.parser().parse_args([])
    assert run.thread_counts("scaling", options) == counts
    assert run.thread_counts("full", options) == (1, 2)
    options = run.parser().parse_args(["--threads", "3,5"])
    assert run.thread_counts("scaling", options) == (3, 5)


@pytest.mark.quick
def test_rows_of_many_threads_are_those_of_other_groups():
    every = groups.timed_rows(groups.TIMED, native_bf16=True)
    found = [row for row in every if row.group == "scaling"]
    others = {f"{row.group} {row.name}": row for row in every}
    assert len(found) == len(groups.SCALING)
    for row in found:
        other = others[row.name.replace("8 x 128", "32 x 128")]
        assert (row.limit, row.unit, row.native) == (
            *(other.limit, other.unit, other.native),
        )
        assert set(row.peers) <= set(other.peers) - {"numpy"}
        assert row.case == other.case or row.case == replace(other.case, batch=8)
        assert row.own == ("1 thread", rows.Own(n_threads=1))


def test_a_run_compares_many_threads_with_one_and_ends_in_time(tmp_path):
    chosen = ["--group", "scaling", "--rows", "full 1x8x64x64", "--systems", "attnpy"]
    printed, results, markdown = run_benchmarks(tmp_path, *chosen, threads="1,3")
    assert results["left_out"] == []
    one, several = results["rows"]
    assert (one["threads"], several["threads"]) == (1, 3)
    assert "own" not in one["systems"]
    assert several["systems"]["own"]["way"] == "1 thread"
    assert several["faster_than"]["own"][1] > 0
    lines = [line for line in markdown.splitlines() if line.startswith("| full 1x8")]
    assert [line.split(" | ")[1] for line in lines] == ["1", "3"]
    assert lines[0].split(" | ")[3] == "1"
    assert "| row | threads | time | x 1 thread |" in markdown
    more = ["--minutes", "0"]
    printed, results, markdown = run_benchmarks(tmp_path, *chosen, *more)
    assert results["rows"] == []
    assert results["left_out"] == ["scaling full 1x8x64x64, 1 thr"]
    assert "left out when the time was over: scaling full 1x8x64x64, 1 thr" in printed
    (kept,) = pages.new_store(results)["runs"]
    (line,) = [x for x in pages.run_lines([kept]) if "not measured" in x]
    assert line.endswith("time was over: scaling full 1x8x64x64, 1 thr")


@pytest.mark.quick
def test_a_page_names_no_row_as_left_out_that_another_run_has():
    machine = dict.fromkeys(("cpu", "model", "cpus", "tier"))
    row = {"group": "full", "name": "1x2x3x4", "threads": 2, "run": 0}
    store = {"machine": machine, "rows": [row], "runs": [{"versions": {}}]}
    left = ["full 1x2x3x4, 2 thr", "full 1x2x3x4, 1 thr"]
    later = {
        "machine": machine,
        "rows": [{**row, "name": "others"}],
        "runs": [{"versions": {}, "left_out": left}],
    }
    pages.add(store, later)
    assert [run.get("left_out") for run in store["runs"]] == [None, left[1:]]


def scaling_row(name, threads, **faster_than):
    row = {"group": "scaling", "name": name, "threads": threads, "unit": "GB/s"}
    ratios = {key: [ratio] * 3 for key, ratio in faster_than.items()}
    row |= {"run": 0, "seconds": 1.0, "speed": 5.0, "own": "1 thread"}
    return {**row, "faster_than": ratios}


@pytest.mark.quick
def test_speeds_with_many_threads_are_over_that_of_attnpy_with_one(tmp_path):
    found = [
        scaling_row("a", 1, torch=2.0),
        scaling_row("a", 4, torch=1.5, own=3.0, fastest=1.5),
        scaling_row("alone", 1),
        scaling_row("b", 1),
        scaling_row("b", 4, own=4.0),
    ]
    assert plots.scaled(found) == {
        "a": {"attnpy": {1: 1, 4: 3}, "torch": {1: 0.5, 4: 2}},
        "b": {"attnpy": {1: 1, 4: 4}},
    }
    (table,) = report.tables(found[:2])
    assert table.splitlines() == [
        "| row | threads | time | x 1 thread | x torch |",
        "| --- | --- | --- | --- | --- |",
        "| a | 1 | 1 s | 1 | 2.00 (2.00-2.00) |",
        "| a | 4 | 1 s | 3.00 (3.00-3.00) | 1.50 (1.50-1.50) |",
    ]
    assert "## " not in pages.misses({"x": {"title": "y", "rows": found}})  # no targets
    pytest.importorskip("matplotlib")
    assert plots.draw(found, tmp_path, "x") == [("scaling", tmp_path / "x_scaling.png")]


@pytest.mark.quick
def test_results_are_saved_after_each_row(tmp_path, capsys):
    path = tmp_path / "results.json"
    results, saved = {"rows": [], "failures": {}, "left_out": []}, []

    def job():
        saved.append(path.exists() and json.loads(path.read_text()))
        return {**scaling_row("a", 1), "targets": []}

    def broken():
        raise ValueError("broken")

    todo = [("one", job), ("two", broken), ("three", job)]
    run.measure_all(todo, results, np.inf, partial(run.save, results, path))
    assert saved[0] is False
    assert (len(saved[1]["rows"]), saved[1]["failures"]) == (
        *(1, {"two": "ValueError: broken"}),
    )
    assert json.loads(path.read_text()) == results
    assert [*tmp_path.iterdir()] == [path]
    assert "two: failed: ValueError: broken" in capsys.readouterr().out


# ---- Peers that end the process ------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_a_peer_that_ends_its_process_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr(ways, "known", {})
    monkeypatch.setitem(ways.WAYS[cases.Case], "openvino", deadly.ending_ways)
    row = rows.Row("full", "x", SMALL, peers=("openvino",), limit=None)
    for _ in range(2):
        systems, effort = ["attnpy", "openvino"], measure.Effort(2, 2, 0.0, 0)
        result = measure.measure_row(row, 1, systems, effort)
        assert result["ended"] == {"openvino": "process ended by SIGFPE"}
        assert set(result["systems"]) == {"attnpy"}
        monkeypatch.setattr(children, "once", None)  # it is remembered
    kept = report.kept(result)
    assert "OpenVINO: process ended by SIGFPE" in report.one_line(kept)
    assert list(report.without([kept, {**kept, "name": "y"}])) == [
        "OpenVINO, process ended by SIGFPE: x; y."
    ]


def test_a_peer_that_fails_in_another_process_is_tried_in_this_one(monkeypatch):
    monkeypatch.setattr(ways, "known", {})
    monkeypatch.setitem(ways.WAYS[cases.Case], "openvino", deadly.failing_ways)
    row = rows.Row("full", "x", SMALL, peers=("openvino",))
    _, dropped = measure.contestants(row, 1, ["attnpy", "openvino"], 0)
    assert dropped["openvino"] == {
        "fails": "ZeroDivisionError: division by zero",
        "the next way": "ValueError: no other way",
    }


def assert_tables(markdown, at_least):
    """Every line of a table has as many cells as its header, and there are tables."""
    n_cells, n_tables = None, 0
    for line in markdown.splitlines():
        if not line.startswith("|"):
            n_cells = None
            continue
        n_tables += n_cells is None
        n_cells = n_cells or line.count("|")
        assert line.count("|") == n_cells, line
    assert n_tables >= at_least


@pytest.mark.parametrize(
    "case",
    [
        layers.Layer(2, 5, 32, 4),
        encoders.Sentences(1, 7),
        encoders.Sentences(3, 20, ragged=True),
    ],
    ids=str,
)
def test_whole_layers_in_numpy_give_what_attnpy_gives(case):
    if isinstance(case, encoders.Sentences):
        pytest.importorskip("safetensors")
    arrays = case.arrays()
    expected = measure.expected_result(case, arrays, 1)
    made = ways.ways_of("numpy", case, arrays, 1)
    good, dropped = ways.right_ways(made, case, expected)
    assert good
    assert dropped == {}


def test_pytorch_is_in_inference_mode_from_then_on():
    pytest.importorskip("torch")
    script = f"""
import shutil
import subprocess
import sys
sys.path.append({str(ROOT)!r})
import torch
from benchmarks import peers
peers.without_gradients(["torch"])
assert torch.is_inference_mode_enabled()
"""
    assert_runs(script)


@pytest.mark.quick
def test_the_command_of_the_package_times_shapes_of_the_rows():
    assert children.QUIET is _bench.QUIET
    every = groups.timed_rows(("full", "causal", "decode"))
    known = [(x.case.query_shape, x.case.key_shape, x.case.causal) for x in every]
    for case in _bench.CASES:
        assert (case.query, case.key, case.causal) in known


def test_a_group_that_does_not_exist_is_an_error():
    with pytest.raises(AssertionError, match="got 'nothing'"):
        assert_runs(RUN, "--group", "nothing")


# ---- Gradients -----------------------------------------------------------------------

CALLS = [
    {},
    {"causal": True},
    {"padded": True},
    {"mask": "random"},
    {"kv_heads": 2},
    {"kv_heads": 2, "causal": True},
    {"dtype": "float64"},
    {"dtype": "bfloat16", "causal": True},
    {"n_queries": 1},
]


def all_ways(system, case):
    """{way: its error} of a system, all of whose ways must be right."""
    arrays = case.arrays()
    expected = measure.expected_result(case, arrays, 1)
    good, dropped = ways.right_ways(
        ways.ways_of(system, case, arrays, 1), case, expected
    )
    assert dropped == {}
    assert np.ptp(expected) > 0
    return {way.name: error for way, error in good.items()}


@pytest.mark.quick
@pytest.mark.parametrize("options", CALLS, ids=str)
@pytest.mark.parametrize("system", ["torch", "numpy"])
def test_gradients_of_peers_are_those_of_attnpy(system, options):
    pytest.importorskip({"torch": "torch", "numpy": "threadpoolctl"}[system])
    if "dtype" in options:
        pytest.importorskip("ml_dtypes")
    case = backward.Backward(replace(SMALL, **{"n_keys": 9, "kv_heads": 4, **options}))
    assert case.flops() == 2.5 * case.call.flops()
    errors = all_ways(system, case)
    assert len(errors) >= 2 or (system, case.dtype) == ("numpy", "bfloat16")
    limit = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2}[case.dtype]
    assert max(errors.values(), default=0) < limit


def test_layers_forward_and_backward_are_those_of_attnpy_in_pytorch():
    pytest.importorskip("torch")
    layer = backward.LayerStep(layers.Layer(2, 9, 32, 4))
    assert max(all_ways("torch", layer).values()) < 1e-5


def test_training_steps_are_those_of_attnpy_in_pytorch():
    pytest.importorskip("torch")
    step = training.Step(2, 16, 2, 8, 3)
    assert max(all_ways("torch", step).values()) < 1e-5


@pytest.mark.quick
def test_the_operations_of_gradients_are_those_of_each_product():
    layer = layers.Layer(2, 9, 32, 4)
    products, pairs = 2 * 4 * 9 * 32 * 32, 2 * 2 * 9 * 9 * 32  # of each sequence
    assert backward.LayerStep(layer).flops() == 2 * (3 * products + 3.5 * pairs)
    step = training.Step(2, 16, 2, 8, 3)
    weights = 2 * (4 * 16 * 16 + 2 * 16 * 64) + 16 * training.N_CHARACTERS
    pairs = 3 * 8 * 9 // 2
    assert step.flops() == 3 * 2 * weights * 24 + 2 * 3.5 * 4 * 16 * pairs


# ---- Models of the peers -------------------------------------------------------------

TINY = {"num_hidden_layers": 2, "vocab_size": 50, "hidden_size": 32}
TINY |= {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
OF_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 6, "head_dim": 8}
OF_EXPERTS |= {"num_experts_per_tok": 2}
LIKE = {"tiny llama": "Llama shape", "tiny qwen2": "Qwen2-0.5B"}
LIKE |= {"tiny experts": "Qwen3-MoE shape", "tiny bloom": "BLOOM shape"}
ONLY = {"tiny experts": "llamacpp", "tiny bloom": "transformers"}


@pytest.fixture
def tiny_models(tmp_path, monkeypatch):
    """Small models in folders.CONFIGS, under the names of LIKE."""
    pytest.importorskip("safetensors")
    monkeypatch.setenv(folders.PLACE, str(tmp_path))
    folders.root.cache_clear()
    for name, other in LIKE.items():
        of_kind = OF_EXPERTS if "experts" in name else {}
        config = folders.CONFIGS[other]
        config = config | {k: x for k, x in TINY.items() if k in config} | of_kind
        monkeypatch.setitem(folders.CONFIGS, name, config)
    yield tmp_path
    folders.root.cache_clear()
    decoders.random_model.cache_clear()


@pytest.mark.quick
def test_weights_are_numbers_of_bfloat16_and_written_once(tiny_models):
    path = folders.folder("tiny qwen2")
    written = (path / "model.safetensors").stat().st_mtime_ns
    weights, config = folders.read("tiny qwen2")
    assert folders.folder("tiny qwen2") == path
    assert (path / "model.safetensors").stat().st_mtime_ns == written
    assert {name: array.shape for name, array in weights.items()} == (
        folders.shapes(config)
    )
    for array in weights.values():
        assert array.dtype == np.float32
        assert not (array.view(np.uint32) & 0xFFFF).any()
        assert np.ptp(array) > 0


@pytest.mark.quick
@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("n_new", [0, 3])
def test_attnpy_computes_a_prompt_and_tokens_after_it(tiny_models, name, n_new):
    case = decoders.Tokens(name, 7, n_new)
    assert [end - begin for begin, end in case.steps()] == ([1] * n_new or [7])
    (way,) = decoders.attnpy_ways(case, case.arrays(), 1)
    for _ in range(2):
        error = ways.difference(way.read(way.call()), decoders.exact_scores(case))
        assert error < 1e-5


def test_the_operations_of_a_prompt_are_those_of_each_product(tiny_models):
    case = decoders.Tokens("tiny llama", 7)
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64  # q, o; k, v; the network
    pairs = 7 * 8 // 2
    each = 2 * (7 * layer) + 4 * 32 * pairs
    assert case.flops() == 2 * each + 2 * 32 * 50
    after = decoders.Tokens("tiny llama", 7, 2)
    each = 2 * (2 * layer) + 4 * 32 * (8 + 9)
    assert after.flops() == 2 * each + 2 * (2 * 32 * 50)
    assert after.weight_bytes() == 4 * (2 * (layer + 2 * 32) + 32 + 32 * 50)
    assert sum(array.nbytes for array in after.memory()) <= after.weight_bytes()


def test_the_operations_of_alibi_are_those_of_each_product(tiny_models):
    case = decoders.Tokens("tiny bloom", 7)
    layer = 12 * 32 * 32
    pairs = 7 * 8 // 2
    assert case.flops() == 2 * (2 * 7 * layer + 4 * 32 * pairs) + 2 * 32 * 50
    vectors = 2 * (4 * 32 + (3 + 1 + 4 + 1) * 32) + 2 * 2 * 32
    assert case.weight_bytes() == 4 * (2 * layer + vectors + 32 * 50)


@pytest.fixture
def tiny_texts(tmp_path, monkeypatch):
    """Texts for a small encoder."""
    for package in ("safetensors", "tokenizers"):
        pytest.importorskip(package)
    monkeypatch.setenv(folders.PLACE, str(tmp_path))
    folders.root.cache_clear()
    config = {**folders.CONFIGS["MiniLM"], **TINY, "vocab_size": 1000}
    del config["num_key_value_heads"]
    monkeypatch.setitem(folders.CONFIGS, "tiny", config)
    yield sentences.Texts(40, "tiny")
    for cached in (folders.root, sentences.encoder, sentences.tokens):
        cached.cache_clear()


@pytest.mark.quick
def test_texts_have_mixed_lengths_and_are_what_attnpy_encodes(tiny_texts):
    texts = tiny_texts.arrays()
    lengths = [len(ids) for ids in sentences.tokens(tiny_texts)]
    n_words = [len(text.split()) for text in texts]
    assert min(n_words) >= 4
    assert max(lengths) > 4 * min(lengths)
    assert tiny_texts.n_tokens() == sum(lengths)
    whole = [n for n, words in zip(lengths, n_words, strict=True) if words < 100]
    assert sum(whole) > 1.2 * sum(n for n in n_words if n < 100)  # parts of words
    assert not any(1 in ids for ids in sentences.tokens(tiny_texts))  # none unknown
    (way,) = sentences.attnpy_ways(tiny_texts, texts, 1)
    error = ways.difference(way.read(way.call()), tiny_texts.expected())
    assert 0 < error < 1e-5


@pytest.fixture
def tiny_pairs(tiny_texts):
    """A query and passages for a small reranker."""
    yield pairs.Pairs(12, "tiny")
    pairs.encoder.cache_clear()


@pytest.mark.quick
def test_pairs_are_what_attnpy_scores(tiny_pairs):
    given = tiny_pairs.arrays()
    assert len({query for query, _ in given}) == 1
    assert len({passage for _, passage in given}) == 12
    lengths = [len(code.ids) for code in pairs.codes(tiny_pairs)]
    assert tiny_pairs.n_tokens() == sum(lengths)
    assert 40 < min(lengths) < max(lengths) <= sentences.LONGEST
    (way,) = pairs.attnpy_ways(tiny_pairs, given, 1)
    error = ways.difference(way.read(way.call()), tiny_pairs.expected())
    assert 0 < error < 1e-5


@pytest.fixture(params=["DeBERTa-v3 shape", "Qwen3 shape"])
def tiny_judge(tiny_pairs, monkeypatch, request):
    """The same for a small reranker of another kind."""
    pytest.importorskip("jinja2")
    shape, tiny = folders.CONFIGS[request.param], {**TINY, "head_dim": 8}
    tiny = {name: size for name, size in tiny.items() if name in shape}
    config = {**shape, **tiny, "vocab_size": 1000}
    monkeypatch.setitem(folders.CONFIGS, request.param, config)
    return pairs.Pairs(12, request.param)


def test_pairs_are_what_rerankers_of_other_kinds_score(tiny_judge):
    given = tiny_judge.arrays()
    lengths = [len(code.ids) for code in pairs.codes(tiny_judge)]
    assert tiny_judge.n_tokens() == sum(lengths)
    assert 40 < min(lengths) < max(lengths) <= sentences.LONGEST
    expected = tiny_judge.expected()
    assert np.ptp(expected) > 1e-3
    (way,) = pairs.attnpy_ways(tiny_judge, given, 1)
    error = ways.difference(way.read(way.call()), expected)
    assert 0 < error < 1e-5


def test_sentence_transformers_gives_the_scores_of_rerankers(tiny_judge):
    pytest.importorskip("sentence_transformers", minversion="6")
    pytest.importorskip("torch")
    given = tiny_judge.arrays()
    made = ways.ways_of("sentence_transformers", tiny_judge, given, 1)
    good, dropped = ways.right_ways(made, tiny_judge, tiny_judge.expected())
    assert dropped == {}
    assert len(good) == 2


@pytest.mark.parametrize("system", ["sentence_transformers", "onnxruntime", "openvino"])
def test_peers_give_the_scores_of_pairs(tiny_pairs, system):
    for package in (system, "torch", "transformers", "onnx"):
        pytest.importorskip(package)
    made = ways.ways_of(system, tiny_pairs, tiny_pairs.arrays(), 1)
    good, dropped = ways.right_ways(made, tiny_pairs, tiny_pairs.expected())
    assert dropped == {}
    assert len(good) == (4 if system == "onnxruntime" else 2)


@pytest.mark.parametrize(
    "system", ["sentence_transformers", "fastembed", "fastembed_sorted"]
)
def test_peers_give_the_vectors_of_texts(tiny_texts, system):
    for package in (system.partition("_sorted")[0], "torch", "transformers", "onnx"):
        pytest.importorskip(package)
    texts = tiny_texts.arrays()
    made = ways.ways_of(system, tiny_texts, texts, 1)
    good, dropped = ways.right_ways(made, tiny_texts, tiny_texts.expected())
    assert dropped == {}
    assert len(good) == 2


NEEDED = {
    "openvino": ["openvino", "transformers", "torch"],
    "llamacpp": ["llama_cpp", "gguf"],
    "transformers": ["transformers", "torch"],
    "ctranslate2": ["ctranslate2", "transformers", "torch"],
    "onnxruntime": ["onnxruntime", "onnx", "transformers", "torch"],
    "torch": ["torch"],
}


def skip_without(system, monkeypatch):
    for module in NEEDED[system]:
        pytest.importorskip(module)
    monkeypatch.setenv(transformers_ways.AS_IT_IS, "1")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_new", [0, 3])
@pytest.mark.parametrize(
    ("system", "name"),
    [
        (system, name)
        for system, name in itertools.product(model_rows.DECODERS, LIKE)
        if ONLY.get(name, system) == system
    ],
)
def test_decoders_of_peers_give_the_same_scores(
    tiny_models, monkeypatch, system, name, n_new, dtype
):
    pytest.importorskip("ml_dtypes")
    skip_without(system, monkeypatch)
    case = decoders.Tokens(name, 7, n_new, dtype)
    how = ways.how_it_ends(system, case, 1)
    if how:
        pytest.skip(f"{system}: {how}")
    expected = decoders.exact_scores(case)
    with no_gradients(system):
        made = decoders.WAYS[system](case, None, 1)
        good, _ = ways.right_ways(made, case, expected)
        assert good
        for way in good:  # again, after what the first call has left
            error = ways.difference(way.read(way.call()), expected)
            assert error < (1e-3 if dtype == "float32" else 5e-2)


def test_texts_together_are_those_of_each_alone_and_of_llama_cpp(
    tiny_models, monkeypatch
):
    skip_without("llamacpp", monkeypatch)
    monkeypatch.setattr(reuse.Reuse, "model", "tiny llama")
    case = reuse.Reuse("together", True, 5, 4, 3)
    ids, model = case.arrays()
    expected = [model.generate(row, 4) for row in ids]
    (way,) = ways.ways_of("attnpy", case, (ids, model), 1)
    for _ in range(2):  # again, in the pages that the first call gave back
        np.testing.assert_array_equal(way.call(), expected)
    made = ways.ways_of("llamacpp", case, (ids, model), 1)
    good, dropped = ways.right_ways(made, case, expected)
    assert len(good) == 4 and dropped == {}
    for way in good:
        np.testing.assert_array_equal(way.call(), expected)


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("activations", ["float", "int8"])
@pytest.mark.parametrize("system", ["attnpy", "llamacpp"])
def test_gguf_files_give_the_scores_of_their_numbers(
    tiny_models, system, activations, dtype
):
    pytest.importorskip("gguf")
    if system == "llamacpp":
        pytest.importorskip("llama_cpp")
    case = decoders.Tokens("tiny llama", 7, 3, dtype, activations)
    expected = decoders.exact_scores(case)
    made = decoders.WAYS[system](case, case.arrays(), 1)
    good, dropped = ways.right_ways(made, case, expected)
    assert good and dropped == {}
    exact = (system, activations) == ("attnpy", "float")
    assert all(error < (1e-5 if exact else 5e-2) for error in good.values())
    vectors, matrices = 5 * 32 * 4, case.weight_bytes()
    each = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[dtype]
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    assert matrices == (2 * layer + 32 * 50) // 32 * each + vectors


@pytest.mark.parametrize("system", ["attnpy", "llamacpp"])
def test_gguf_files_of_experts_give_the_scores_of_their_numbers(tiny_models, system):
    pytest.importorskip("gguf")
    if system == "llamacpp":
        pytest.importorskip("llama_cpp")
    case = decoders.Tokens("tiny experts", 7, 3, "Q8_0")
    made = decoders.WAYS[system](case, case.arrays(), 1)
    good, dropped = ways.right_ways(made, case, decoders.exact_scores(case))
    assert good and dropped == {}
    assert max(good.values()) < (1e-5 if system == "attnpy" else 5e-2)
    vectors, router = (5 * 32 + 2 * 2 * 8) * 4, 2 * 6 * 32 * 4
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 2 * 3 * 32 * 32  # two experts of six
    assert case.weight_bytes() == (2 * layer + 32 * 50) // 32 * 34 + vectors + router
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 6 * 32 + 2 * 3 * 32 * 32
    pairs = 4 * 32 * 2 * (8 + 9 + 10)
    assert case.flops() == 2 * 3 * (2 * layer + 32 * 50) + pairs


@pytest.mark.parametrize(
    ("kind", "size", "most"),
    [("Q4_K", 288, 0.085), ("Q6_K", 420, 0.02), ("IQ4_XS", 272, 0.085)],
)
def test_blocks_of_k_forms_are_near_their_numbers(kind, size, most):
    gguf = pytest.importorskip("gguf")
    numbers = np.random.default_rng(0).standard_normal((6, 512), np.float32)
    numbers[1] = 0
    numbers[2] = 3  # all are positive
    blocks = gguf_files.OWN[kind](numbers)
    assert blocks.shape == (6, size)
    error = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind]) - numbers
    assert np.abs(error[1]).max() == 0 and np.abs(error[2]).max() < 0.02
    assert np.sqrt((error**2).mean()) < most


@pytest.mark.parametrize("system", ["attnpy", *model_rows.INTEGER_ENCODERS])
def test_encoders_in_8_bits_give_nearly_the_same_vectors(monkeypatch, system):
    pytest.importorskip("safetensors")
    if system != "attnpy":
        skip_without(system, monkeypatch)
    if system == "openvino":
        pytest.importorskip("nncf")
    case = encoders.Sentences(3, 20, True, "int8")
    with contextlib.nullcontext() if system == "attnpy" else no_gradients(system):
        made = encoders.WAYS[system](case, case.arrays(), 1)
        good, dropped = ways.right_ways(made, case, case.expected())
    assert good and dropped == {}
    assert all(1e-3 < error < 0.15 for error in good.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "system", [name for name in model_rows.ENCODERS if name in NEEDED]
)
def test_encoders_of_peers_give_the_same_vectors(monkeypatch, system, dtype):
    pytest.importorskip("ml_dtypes")
    pytest.importorskip("safetensors")
    skip_without(system, monkeypatch)
    case = encoders.Sentences(3, 20, True, dtype)
    with no_gradients(system):
        made = encoders.WAYS[system](case, case.arrays(), 1)
        good, dropped = ways.right_ways(made, case, case.expected())
    if system == "ctranslate2" and not good:  # it has no bfloat16 on most CPUs
        assert dtype == "bfloat16"
        assert "bfloat16" in str(dropped)
        return
    assert dropped == {}
    assert good or (system, dtype) == ("onnxruntime", "bfloat16")
    limit = 1e-5 if dtype == "float32" else 5e-2
    assert max(good.values(), default=0) < limit


def test_the_optimizer_of_onnx_runtime_fuses_the_attention_of_each_layer():
    for package in ("safetensors", *NEEDED["onnxruntime"]):
        pytest.importorskip(package)
    import onnx

    path = exported.optimized(exported.graph(folders.folder("MiniLM")))
    kinds = [node.op_type for node in onnx.load(str(path)).graph.node]
    assert kinds.count("Attention") == 6


def no_gradients(system):
    if "torch" not in NEEDED[system]:
        return contextlib.nullcontext()
    import torch

    return torch.inference_mode()


@pytest.mark.parametrize("activations", ["float", "int8"])
def test_quantised_layers_of_pytorch_give_nearly_what_floats_give(activations):
    pytest.importorskip("torch")
    case = in_torch.QuantizedLayer(2, 9, 64, 4, activations)
    expected = case.expected()
    with no_gradients("torch"):
        errors = all_ways("torch", case)
        (way,) = ways.ways_of("attnpy", case, case.arrays(), 1)
        error = ways.mean_error(way.read(way.call()), expected)
    assert 1e-4 < error < 2e-2
    assert 1e-4 < errors.pop("quantize_dynamic") < 5e-2
    assert len(errors) >= 2 and max(errors.values()) < 1e-5


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"kv_heads": 2}], ids=str)
def test_tensors_give_what_arrays_give(options, gradients):
    pytest.importorskip("torch")
    pytest.importorskip("attnpy.integrations.torch")
    call = replace(SMALL, **{"n_keys": 9, "kv_heads": 4, **options})
    case = tensors.Tensors(call, gradients)
    assert max(all_ways("torch", case).values()) < 1e-5
    arrays = case.arrays()
    (way,) = ways.ways_of("attnpy", case, arrays, 1)
    alone = measure.expected_result(case.alone, arrays, 1)
    np.testing.assert_array_equal(way.read(way.call()).ravel(), alone.ravel())


@pytest.mark.parametrize("n_new", [0, 3, None])
def test_models_of_transformers_give_the_same_with_attnpy(
    tiny_models, monkeypatch, n_new
):
    skip_without("transformers", monkeypatch)
    monkeypatch.setattr(in_transformers, "BERT_SHAPE", (2, 9))
    tokens = None if n_new is None else decoders.Tokens("tiny llama", 7, n_new)
    cases = [in_transformers.InTransformers(tokens)]
    cases.append(replace(cases[0], by="accelerate()"))
    with no_gradients("transformers"):
        for case in cases:
            assert max(all_ways("transformers", case).values()) < 1e-4
        shares = cases[0].facts()["attention_share"]
    assert set(shares) == {"HF", "attnpy"}
    assert all(0 < share < 100 for share in shares.values())
    assert "attention_share" not in cases[1].facts()


def test_a_peer_in_a_process_of_its_own_answers_and_is_stopped_in_between():
    pytest.importorskip("threadpoolctl")
    case = cases.prefill(1, 2, 5, 4)
    expected = measure.expected_result(case, case.arrays(), 1)
    found, dropped = apart.contestant("numpy", case, 1, expected, 0, 1.0)
    try:
        assert dropped == {}
        assert found.error < 1e-6
        found.prepare()
        assert found.sample() > 0
        if sys.platform == "linux":
            status = Path(f"/proc/{found.call.process.pid}/status")
            wait_until(lambda: "State:\tT (stopped)" in status.read_text())
        nothing, dropped = apart.contestant("numpy", case, 1, expected + 1, 0, 1.0)
        assert nothing is None
        assert all("another result" in why for why in dropped.values())
    finally:
        apart.process_of.cache_clear()
        found.call.end()


def test_experiments_with_tasks_need_an_extension_built_for_tests(monkeypatch):
    monkeypatch.delattr(_attnpy, "watch_tasks", raising=False)
    with pytest.raises(SystemExit, match=r"expected attnpy built in place, by pip"):
        experiments.main(["cores", "--rounds", "1"])


def test_what_fails_in_another_process_is_an_error_here():
    assert children.once(divmod, 7, 2) == (3, 1)
    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError: "):
        children.once(divmod, 7, 0)
    with pytest.raises(RuntimeError, match=r"^process ended with exit status 3$"):
        children.once(os._exit, 3)


def test_an_import_is_timed_where_nothing_has_imported_it_before():
    assert footprint.import_seconds("attnpy") > 1e-4


def test_experiments_print_a_table_each():
    printed = assert_runs(RUN, "experiments", "watching", "--rounds", "1")
    assert printed.startswith("watching, 1 thread(s): Calls with other work")
    assert sum(line.startswith("| ") for line in printed.splitlines()) == 7
    with pytest.raises(AssertionError, match="got 'nothing'"):
        assert_runs(RUN, "experiments", "nothing")
    assert tuple(experiments.EXPERIMENTS) == ("watching", "cores", "accuracy")


def test_tasks_are_handed_out_in_turn():
    assert experiments.end_of([3, 1, 1, 4], 1) == 9
    assert experiments.end_of([3, 1, 1, 4], 2) == 6  # the last begins after two
    assert experiments.end_of([3, 1], 4) == 3


def test_tasks_are_watched():
    case = cases.prefill(1, 2, 640, 16)
    call = partial(attention, *case.arrays())
    for n_threads, n_tasks in ((1, 20), (8, 40)):
        lists, outside = experiments.task_times(call, n_threads)
        assert [len(times) for times in lists] == [n_tasks]
        assert min(lists[0]) > 0
        assert outside >= 0
