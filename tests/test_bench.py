"""`python -m attnpy bench`: every system is right, takes its turn, and may fail."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from support.processes import HANGS

import attnpy
from attnpy import _bench, _measure
from attnpy.__main__ import main

COMMAND = [sys.executable, "-m", "attnpy", "bench"]
SMALL = (
    _bench.Case("plain", (2, 4, 9, 8), (2, 4, 9, 8)),
    _bench.Case("causal", (1, 4, 9, 8), (1, 4, 9, 8), causal=True),
    _bench.Case("grouped", (1, 4, 1, 8), (1, 2, 13, 8)),
)


@pytest.fixture
def bench(monkeypatch, capsys):
    """The command in this process, with small cases; its exit status and output."""
    settings = {**_bench.QUIET, **dict.fromkeys(_bench.COUNTS, "1")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_bench, "CASES", SMALL)
    before = attnpy.get_num_threads()

    def call(*options):
        status = main(["bench", "--num-threads", "1", "--seconds", "0.01", *options])
        return status, *capsys.readouterr()

    yield call
    attnpy.set_num_threads(before)


@pytest.mark.quick
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize("peer", _bench.PEERS, ids=lambda peer: peer.title)
def test_every_peer_computes_what_attnpy_computes(peer, case):
    for package in peer.packages:
        pytest.importorskip(package)
    arrays = case.arrays()
    way = peer.way(case, arrays, 1)
    expected = attnpy.attention(*arrays, causal=case.causal)
    for _ in range(2):
        _bench.check(way.read(way.call()), expected)
    with pytest.raises(ValueError, match="another result, by"):
        _bench.check(way.read(way.call()) + 0.1, expected)


@pytest.mark.quick
def test_the_table_has_a_row_for_each_case_and_a_column_for_each_peer(bench):
    status, printed, errors = bench()
    assert (status, errors) == (0, "")
    first, *_ = printed.splitlines()
    assert first.startswith(f"attnpy {attnpy.__version__} on {_measure.cpu_name()}")
    assert first.endswith("1 thread, float32")
    for case in SMALL:
        (row,) = re.findall(rf"^{case.name} .*$", printed, re.MULTILINE)
        here = [p for p in _bench.PEERS if all(map(_bench.installed, p.packages))]
        spread = r"\d[\d.]{2,3} \(\d[\d.]{2,3}-\d[\d.]{2,3}\)"
        assert len(re.findall(spread, row)) == len(here)
    assert f"NumPy {np.__version__}" in printed


@pytest.mark.quick
def test_peers_that_are_missing_fail_or_are_wrong_are_named(bench, monkeypatch):
    def wrong(case, arrays, n_threads):
        return _bench.Way(lambda: arrays[0] + 1)

    def failing(case, arrays, n_threads):
        raise OSError("no such library\nand more")

    peers = (
        _bench.Peer("Absent", ("no_such_package",), wrong),
        _bench.Peer("Wrong", ("numpy",), wrong),
        _bench.Peer("Failing", ("numpy",), failing),
        _bench.PEERS[0],
    )
    monkeypatch.setattr(_bench, "PEERS", peers)
    status, printed, _ = bench()
    assert status == 0
    assert "Not installed, so not compared: Absent\n" in printed
    assert "Left out: Failing, plain: OSError: no such library\n" in printed
    assert re.search(
        r"Left out: Wrong, causal: ValueError: another result, by", printed
    )
    (row,) = re.findall(r"^plain .*$", printed, re.MULTILINE)
    assert row.split()[3:5] == ["-", "-"]
    assert len(row.split()) == 7


@pytest.mark.quick
def test_columns_keep_apart_within_a_hundred_letters_however_wide_the_numbers(capsys):
    ours = np.full(5, 1.0)
    for factor, shown in {
        2.5: "2.50",
        9.996: "10.0",
        249.75: "250",
        9999: "9999",
    }.items():
        times = {peer.title: factor * ours for peer in _bench.PEERS} | {"attnpy": ours}
        cells = _bench.cells(times, list(_bench.PEERS))
        assert cells == ["1 s", *[f"{shown} ({shown}-{shown})"] * len(_bench.PEERS)]
        for case in _bench.CASES:
            _bench.print_line(case.name, "99.9 ms", *cells[1:])
            line = capsys.readouterr().out.rstrip("\n")
            assert len(line) <= 100
            assert line.removeprefix(case.name).split() == [
                *("99.9", "ms"),
                *[shown, f"({shown}-{shown})"] * len(_bench.PEERS),
            ]


@pytest.mark.quick
def test_a_busy_machine_is_said_in_one_sentence(bench, monkeypatch):
    even, uneven = np.array([1.0, 1.1, 1.2]), np.array([1.0, 2.0, 3.0])
    n_cpus = attnpy.show_config(mode="dicts")["cpus"]
    for load, times, sentence in (
        (n_cpus, even, None),
        (n_cpus + 7.25, uneven, rf"load average {n_cpus + 7.2:.1f} on {n_cpus} CPUs"),
        (0, uneven, r"the same call takes 1\.7 times as long in some rounds"),
    ):
        found = {"attnpy": times, "NumPy": times}
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0))
        monkeypatch.setattr(_bench, "measured", lambda *_, found=found: found)
        _, printed, _ = bench()
        assert printed.count("The machine is busy") == (sentence is not None)
        if sentence is not None:
            assert re.search(rf"^The machine is busy \({sentence}\): ", printed, re.M)


@pytest.mark.quick
def test_a_system_that_counts_no_load_is_not_called_busy(monkeypatch):
    def getloadavg():
        raise OSError("not here")

    monkeypatch.setattr(os, "getloadavg", getloadavg)
    assert _bench.busy_cpus(1) == ""


@pytest.mark.quick
def test_a_package_of_another_name_has_no_version():
    assert _bench.version("numpy") == np.__version__
    assert _bench.version("json") == ""


@pytest.mark.quick
def test_the_command_starts_again_with_as_many_threads_for_every_library(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("KEPT", "as it was")
    started = []

    def execve(*arguments):
        started.append(arguments)
        raise KeyboardInterrupt  # what follows would be another program

    monkeypatch.setattr(os, "execve", execve)
    before = attnpy.get_num_threads()
    try:
        assert main(["bench", "--num-threads", "3"]) == 130
    finally:
        attnpy.set_num_threads(before)
    ((program, arguments, environment),) = started
    assert (program, arguments) == (sys.executable, sys.orig_argv)
    assert {environment[name] for name in _bench.COUNTS} == {"3"}
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert environment["KEPT"] == "as it was"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--num-threads", "0"], "--num-threads: expected"),
        (["--num-threads", "two"], "--num-threads: invalid int value: 'two'"),
        (["--seconds", "0"], "--seconds: expected a number above 0, got 0"),
        (["--seconds", "nan"], "--seconds: expected a number above 0, got nan"),
    ],
)
def test_bad_options_give_one_line(bench, options, words):
    status, printed, errors = bench(*options)
    assert (status, printed) == (2, "")
    assert words in errors
    assert errors.count("\n") == 1


def test_ctrl_c_ends_it_between_two_lines(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "--seconds", "1000", "--num-threads", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # After the first row all is imported: right after the table's head, while parts of
    # NumPy are loaded, one interrupt in some forty was lost on a busy machine.
    while not (line := process.stdout.readline()).startswith(_bench.CASES[0].name):
        assert line, process.stderr.read()
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=HANGS)
    # Python ends itself by the signal where that came while it ran a string of code.
    assert process.returncode in (130, -signal.SIGINT)
    assert errors == ""
    assert printed == "" or printed.endswith("\n")


@pytest.mark.quick
def test_rounds_take_one_sample_of_each_in_an_order_of_their_own():
    order = []

    def sample(name):
        return lambda: order.append(name) or float(len(order))

    samples = {name: sample(name) for name in "abc"}
    times = _measure.in_turn(samples, rounds=12, min_rounds=1, seconds=1000)
    assert list(times) == list("abc")
    rounds = {"".join(order[i : i + 3]) for i in range(0, 36, 3)}
    assert {"".join(sorted(names)) for names in rounds} == {"abc"}
    assert len(rounds) > 3
    for name, found in times.items():
        assert [order[int(at) - 1] for at in found] == [name] * 12
    times = _measure.in_turn(samples, rounds=9, min_rounds=2, seconds=0)
    assert len(times["a"]) == 2


@pytest.mark.quick
def test_a_sample_of_a_long_call_is_one_call():
    assert _measure.calls_per_sample(lambda: sum(range(300_000))) <= 10
    assert _measure.calls_per_sample(lambda: None) > 1000
