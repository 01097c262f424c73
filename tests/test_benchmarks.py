"""The benchmarks count their work rightly and run to the end. No speed is asserted."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.processes import assert_runs

from attnpy import attention

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # last: there is an attnpy/ as well, perhaps not built

from benchmarks import (  # noqa: E402
    cases,
    encoders,
    layers,
    machine,
    measure,
    report,
    rows,
    run,
)

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
    every = rows.timed_rows(rows.TIMED, ["avx2", "scalar"], native_bf16=True)
    assert len({(row.group, row.name) for row in every}) == len(every)
    known = {*rows.PEERS, "own", "peak", "bandwidth"}
    for row in every:
        assert {what for what, _ in row.targets} <= known
        assert row.own is not None or "own" not in dict(row.targets)
    assert {row.group for row in every} == set(rows.TIMED)
    assert {row.group for row in every if row.quick} == set(rows.TIMED)


@pytest.mark.quick
def test_a_target_is_missed_exactly_when_it_is_not_reached():
    row = {
        "targets": [
            measure.verdict("torch", 2.0, 2.0),
            measure.at_most("ms", 15, 15.0),
        ]
    }
    assert report.verdict(row) == "met"
    row["targets"].append(measure.verdict("peak", 84, 83.9))
    assert report.verdict(row) == "missed: peak 83.90 < 84"
    assert report.verdict({"targets": []}) == "-"


def test_the_threads_of_a_limit_each_have_a_number_and_a_cpu_of_their_own():
    assert len(set(machine.cpus())) == len(machine.cpus())
    assert machine.together(lambda i: 10.0**i, 3) == 111.0


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_peak_is_that_of_a_loop_which_the_cpu_has(n_threads):
    loop = machine.fma_loop("f32")
    if loop is None:
        pytest.skip("no C compiler")
    assert machine.fma_peak(loop, n_threads) > 0
    assert machine.fma_loop("f32", "another") is None


@pytest.mark.quick
def test_where_it_misses_has_every_target_that_was_not_reached():
    targets = [
        measure.verdict("torch", 2.0, 1.5),
        measure.verdict("peak", 84, 90.0),
        measure.verdict("own", 0.85, 0.5),
        measure.at_most("ms", 15, 16.0),
    ]
    row = {"group": "causal", "name": "1x2x3x4", "threads": 2, "own": "full"}
    row["limit"] = {"percent": [40, 60, 70]}
    _, table = report.misses({"rows": [{**row, "targets": targets}]})
    assert table.splitlines()[2:] == [
        "| causal | 1x2x3x4 | 2 | x torch | >= 2 | 1.50 | 80 % of the peak |",
        "| causal | 1x2x3x4 | 2 | full | >= 0.85 | 0.50 |  |",
        "| causal | 1x2x3x4 | 2 | ms | <= 15 | 16.00 |  |",
    ]
    assert list(report.misses({"rows": [{**row, "targets": []}]})) == []


@pytest.mark.quick
def test_rows_of_a_later_run_replace_the_earlier_ones():
    machine = dict.fromkeys(("cpu", "model", "cpus", "tier", "compiler", "python"), 1)
    one, two = (
        {"group": "full", "name": name, "threads": 1, "run": 1} for name in ("a", "b")
    )
    first = {"machine": machine, "versions": {}, "rows": [one, two]}
    later = {**first, "rows": [{**two, "run": 2}], "command": "again", "date": "late"}
    report.replace_rows(first, later)
    assert [row["run"] for row in first["rows"]] == [1, 2]
    assert first["later"] == [("again", "late")]
    with pytest.raises(SystemExit, match="differ in the machine's cpu"):
        report.replace_rows(first, {**later, "machine": {**machine, "cpu": 2}})


@pytest.mark.quick
def test_the_command_is_shown_without_the_directory_of_its_results():
    for output in (["--output", "/a/b"], ["--output=/a/b"]):
        shown = run.command(["--quick", *output, "--threads", "1"])
        assert shown == "python -m benchmarks --quick --threads 1"


RUN = f"""
import sys
sys.path.append({str(ROOT)!r})
from benchmarks.__main__ import main
main(sys.argv[1:])
"""


def run_benchmarks(tmp_path, *arguments):
    """What a run printed, its JSON and its Markdown."""
    more = ["--threads", "1", "--rounds", "2", "--no-plots", "--output", tmp_path]
    printed = assert_runs(RUN, *arguments, *more)
    results = json.loads((tmp_path / "results.json").read_text())
    return printed, results, (tmp_path / "results.md").read_text()


def test_a_run_with_attnpy_and_numpy_alone_writes_json_and_markdown(tmp_path):
    pytest.importorskip("threadpoolctl")
    printed, results, markdown = run_benchmarks(
        tmp_path,
        *("--group", "small,memory,loading,threads,models,generation", "--quick"),
        *("--systems", "attnpy,numpy"),
    )
    assert results["failures"] == {}
    groups = [row["group"] for row in results["rows"]]
    measured = {"small", "memory", "threads", "models", "generation"}
    if importlib.util.find_spec("safetensors"):
        measured.add("loading")
    assert set(groups) == measured
    first = results["rows"][0]
    assert (first["name"], first["visible_pairs"]) == ("1x1x16x16", 256)
    assert set(first["systems"]) == {"attnpy", "numpy"}
    assert set(results["versions"]) == {"attnpy", "numpy"}
    assert str(tmp_path) not in markdown
    assert_tables(markdown)
    for row in results["rows"]:
        assert row["name"] in markdown
        assert row["name"] in printed


def assert_tables(markdown):
    """Every line of a table has as many cells as its header, and there is a table."""
    n_cells, n_tables = None, 0
    for line in markdown.splitlines():
        if not line.startswith("|"):
            n_cells = None
            continue
        n_tables += n_cells is None
        n_cells = n_cells or line.count("|")
        assert line.count("|") == n_cells, line
    assert n_tables >= 3


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
    arrays = case.arrays()
    expected = measure.expected_result(case, arrays, 1)
    ways = measure.ways_of("numpy", case, arrays, 1)
    good, dropped = measure.right_ways(ways, case, expected)
    assert good
    assert dropped == {}


def test_pytorch_is_in_inference_mode_from_then_on():
    pytest.importorskip("torch")
    script = f"""
import sys
sys.path.append({str(ROOT)!r})
import torch
from benchmarks import peers
peers.without_gradients(["torch"])
assert torch.is_inference_mode_enabled()
"""
    assert_runs(script)


def test_a_group_that_does_not_exist_is_an_error():
    with pytest.raises(AssertionError, match="got 'nothing'"):
        assert_runs(RUN, "--group", "nothing")
