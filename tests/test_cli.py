"""The command line: `python -m attnpy`, `... run`, `... info` and `... bench`."""

import io
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from support.comparisons import assert_same_bits
from support.processes import HANGS, assert_fails, wait_until
from support.tutorial import SCORES, WEIGHTED, WEIGHTS, WORDS

import attnpy
from attnpy.__main__ import main

COMMAND = [sys.executable, "-m", "attnpy"]


def run(*arguments, cwd, **options):
    """What became of `python -m attnpy` with these arguments."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
        **options,
    )


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """The same in this process, which is quicker."""

    def call_main(*arguments):
        monkeypatch.chdir(tmp_path)
        status = main([*map(str, arguments)])
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, *printed)

    return call_main


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "query": rng.standard_normal((2, 4, 5, 8), dtype=np.float32),
        "key": rng.standard_normal((2, 2, 7, 8), dtype=np.float32),
        "value": rng.standard_normal((2, 2, 7, 3), dtype=np.float32),
    }


@pytest.fixture
def file(tmp_path, arrays):
    np.savez(tmp_path / "in.npz", **arrays)
    return tmp_path / "in.npz"


def printed_table(text, title):
    """The column labels, row labels and numbers of the table with this title."""
    lines = text[text.index(title) :].splitlines()
    rows = [line.split() for line in lines[2:7]]
    return lines[1].split(), [row[0] for row in rows], [row[1:] for row in rows]


@pytest.mark.quick
def test_without_a_command_prints_the_notebooks_numbers(tmp_path):
    done = run(cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    for title, columns, numbers in (
        ("Scores", WORDS, SCORES),
        ("Attention weights", WORDS, WEIGHTS),
        ("Context vectors", [f"x{i}" for i in range(6)], WEIGHTED),
    ):
        rows = [[f"{number:.4f}" for number in row] for row in numbers]
        assert printed_table(done.stdout, title) == (columns, WORDS, rows)


def test_without_a_command_ends_with_how_to_read_it_and_what_next(tmp_path):
    done = run(cwd=tmp_path, env={**os.environ, "ATTNPY_NUM_THREADS": "3"})
    end = done.stdout[done.stdout.index("How to read it") :]
    config = attnpy.show_config(mode="dicts")
    assert '"Write" listens most to "Attention", with a weight of 0.32' in end
    assert f"works: instruction set {config['tier']}, 3 threads." in end
    assert "python -m attnpy bench" in end
    assert "python -m attnpy run --help" in end
    (notebook,) = re.findall(r"notebooks/\S+", end)
    assert (Path(__file__).parents[1] / notebook).exists()


def test_tables_fit_a_terminal(tmp_path):
    assert max(map(len, run(cwd=tmp_path).stdout.splitlines())) <= 100


def test_info_prints_show_config(tmp_path, capsys):
    done = run("info", cwd=tmp_path)
    attnpy.show_config()
    assert (done.returncode, done.stdout) == (0, capsys.readouterr().out)


def test_version_and_help(tmp_path):
    assert run("--version", cwd=tmp_path).stdout == f"attnpy {attnpy.__version__}\n"
    text = run("run", "--help", cwd=tmp_path).stdout
    for flag in ("--causal", "--window", "--q-offset", "--scale", "--softcap"):
        assert flag in text


@pytest.mark.quick
@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {}),
        (["--causal"], {"causal": True}),
        (["--causal", "bottom_right"], {"causal": "bottom_right"}),
        (["--causal=top_left"], {"causal": "top_left"}),
        (["--window", "2", "none"], {"window": (2, None)}),
        (["--window", "none", "0", "--causal"], {"window": (None, 0), "causal": True}),
        (
            ["--window", "1", "0", "--causal", "top_left"],
            {"window": (1, 0), "causal": "top_left"},
        ),
        (["--causal", "--q-offset", "-1"], {"causal": True, "q_offset": -1}),
        (["--scale", "-0.5"], {"scale": -0.5}),
        (["--softcap", "2.5"], {"softcap": 2.5}),
        (["--num-threads", "2"], {"num_threads": 2}),
    ],
)
def test_run_writes_the_bits_of_attention(call, file, arrays, flags, options):
    out = file.with_name("out.npz")
    done = call("run", file, "-o", out, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{out}: output float32 (2, 4, 5, 3)\n"
    with np.load(out) as results:
        assert results.files == ["output"]
        expected = attnpy.attention(*arrays.values(), **options)
        np.testing.assert_array_equal(results["output"], expected, strict=True)


@pytest.mark.quick
@pytest.mark.parametrize("flags", [["--causal"], ["--causal", "top_left"], ["--caus"]])
def test_causal_may_stand_before_the_input(call, file, arrays, flags):
    done = call("run", *flags, file, "-o", "out.npz")
    assert (done.returncode, done.stderr) == (0, "")
    causal = "top_left" if "top_left" in flags else True
    with np.load(file.with_name("out.npz")) as results:
        expected = attnpy.attention(*arrays.values(), causal=causal)
        np.testing.assert_array_equal(results["output"], expected)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("lse", [False, True])
def test_run_writes_what_is_asked_for(file, arrays, weights, lse):
    flags = ["--return-weights"] * weights + ["--return-lse"] * lse
    done = run("run", "in.npz", "--output", "out.npz", *flags, cwd=file.parent)
    assert done.returncode == 0, done.stderr
    expected = attnpy.attention(*arrays.values(), return_weights=True, return_lse=True)
    with np.load(file.with_name("out.npz")) as results:
        names = ["output"] + ["weights"] * weights + ["lse"] * lse
        assert results.files == names
        for name in names:
            index = ["output", "weights", "lse"].index(name)
            np.testing.assert_array_equal(results[name], expected[index], strict=True)


def test_run_takes_optional_arrays_by_name(tmp_path, arrays):
    rng = np.random.default_rng(1)
    options = {
        "mask": rng.random((5, 7)) < 0.7,
        "bias": rng.standard_normal((4, 1, 7)),
        "sinks": rng.standard_normal(4),
        "kv_lengths": np.array([4, 7]),
        "q_offset": np.array(3),
    }
    np.savez_compressed(tmp_path / "in.npz", **arrays, **options)
    done = run("run", "in.npz", "-o", "out.npz", "--causal", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = attnpy.attention(*arrays.values(), **options, causal=True)
    with np.load(tmp_path / "out.npz") as results:
        np.testing.assert_array_equal(results["output"], expected)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_run_keeps_the_mode_of_a_file_that_it_replaces(call, file, mode):
    out = file.with_name("out.npz")
    out.touch()
    out.chmod(mode)
    assert call("run", file, "-o", out).returncode == 0
    assert stat.S_IMODE(out.stat().st_mode) == mode


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_run_makes_a_file_that_the_umask_allows(file, mask):
    done = run(
        *("run", file, "-o", "out.npz"),
        cwd=file.parent,
        preexec_fn=lambda: os.umask(mask),
    )
    assert done.returncode == 0
    mode = stat.S_IMODE(file.with_name("out.npz").stat().st_mode)
    assert mode == 0o666 & ~mask


def test_run_keeps_the_name_of_the_output(file):
    assert run("run", file, "-o", "out.bin", cwd=file.parent).returncode == 0
    assert sorted(os.listdir(file.parent)) == ["in.npz", "out.bin"]


def test_run_writes_through_a_symbolic_link(file):
    link = file.with_name("link.npz")
    link.symlink_to("real.npz")
    assert run("run", file, "-o", link, cwd=file.parent).returncode == 0
    assert link.is_symlink()
    assert zipfile.is_zipfile(file.with_name("real.npz"))


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def save(path, arrays, **changes):
    np.savez(path, **{**arrays, **changes})


BAD_FILES = {
    "text": (
        lambda path, _: path.write_text("query, key, value\n"),
        "expected an .npz",
    ),
    "empty": (lambda path, _: path.write_bytes(b""), "expected an .npz"),
    "pickle": (
        lambda path, _: path.write_bytes(b"\x80\x04N."),
        "expected an .npz",
    ),
    "npy": (lambda path, _: path.write_bytes(npy(np.ones(3))), "single array"),
    "truncated": (
        lambda path, arrays: path.write_bytes(whole_file(path, arrays)[:-100]),
        "expected an .npz",
    ),
    "damaged": (
        lambda path, arrays: path.write_bytes(damaged_file(path, arrays)),
        "cannot read query",
    ),
    "not arrays": (
        lambda path, _: write_zip(path, query=b"1", key=b"2", value=b"3"),
        "query is not an array",
    ),
    "objects": (
        lambda path, arrays: save(path, arrays, mask=np.array([{}], dtype=object)),
        "mask",
    ),
    "missing": (
        lambda path, arrays: np.savez(path, query=arrays["query"]),
        "no array named key, value",
    ),
    "unknown": (
        lambda path, arrays: save(path, arrays, attn_mask=np.ones(1)),
        "unknown array 'attn_mask'",
    ),
    "shapes": (
        lambda path, arrays: save(path, arrays, key=np.ones((2, 2, 7, 9), "f4")),
        "key: expected",
    ),
    "heads": (
        lambda path, arrays: save(path, arrays, query=np.ones((2, 3, 5, 8), "f4")),
        ": expected",
    ),
    "integer mask": (
        lambda path, arrays: save(path, arrays, mask=np.ones((5, 7), int)),
        "mask: expected",
    ),
    "text array": (
        lambda path, arrays: save(path, arrays, query=np.array(["a"])),
        "query",
    ),
    "lengths": (
        lambda path, arrays: save(path, arrays, kv_lengths=np.array([8, 1])),
        "kv_lengths: expected",
    ),
}


def whole_file(path, arrays):
    save(path, arrays)
    return path.read_bytes()


def damaged_file(path, arrays):
    content = bytearray(whole_file(path, arrays))
    for i in range(200, 300):
        content[i] ^= 0xFF
    return bytes(content)


def write_zip(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.quick
@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_input_gives_one_line_and_no_output(call, tmp_path, arrays, case):
    write, part = BAD_FILES[case]
    write(tmp_path / "in.npz", arrays)
    assert_fails(call("run", "in.npz", "-o", "out.npz"), part)
    assert os.listdir(tmp_path) == ["in.npz"]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--causal", "bottom_left"], "--causal: expected bottom_right or top_left"),
        (["--window", "1"], "--window"),
        (["--window", "1", "two"], "--window: expected an integer or none, got 'two'"),
        (["--window", "-1", "0"], ": --window: expected"),
        (["--q-offset", "0.5"], "--q-offset"),
        (["--scale", "nan"], ": --scale: expected"),
        (["--softcap", "0"], ": --softcap: expected"),
        (["--num-threads", "0"], "--num-threads: expected"),
        (["--return-scores"], "--return-scores"),
    ],
)
def test_bad_flags_give_one_line_and_no_output(call, file, flags, part):
    assert_fails(call("run", file, "-o", "out.npz", *flags), part)
    assert os.listdir(file.parent) == ["in.npz"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["walk"], "walk"),
        (["run"], "required"),
        (["run", "in.npz"], "--output"),
        (["run", "-o", "out.npz"], "required: in.npz"),
        (["run", "--causal", "-o", "out.npz"], "required: in.npz"),
        (["run", "nowhere.npz", "-o", "out.npz"], "nowhere.npz: No such file"),
        (["run", "~/in.npz", "-o", "out.npz"], ": in.npz: expected a path, got '~/in"),
        (["run", ".", "-o", "out.npz"], "Is a directory"),
    ],
)
def test_bad_usage_gives_one_line(file, arguments, part):
    assert_fails(run(*arguments, cwd=file.parent), part)


def test_packed_sequences_from_a_file(tmp_path, arrays, call):
    packed = {name: array[0] for name, array in arrays.items()}  # (heads, T, size)
    packed["query"] = packed["query"][:, [0, 1, 2, 3, 4, 0, 1]]
    save(tmp_path / "in.npz", packed, seq_offsets=np.array([0, 3, 7]))
    done = call("run", "in.npz", "-o", "out.npz")
    assert done.returncode == 0, done
    with np.load(tmp_path / "out.npz") as content:
        expected = attnpy.attention(**packed, seq_offsets=[0, 3, 7])
        assert_same_bits(content["output"], expected)
    assert (expected != attnpy.attention(**packed)).any()


def test_q_offset_in_two_places_is_an_error(tmp_path, arrays):
    save(tmp_path / "in.npz", arrays, q_offset=np.array(1))
    done = run("run", "in.npz", "-o", "out.npz", "--q-offset", 2, cwd=tmp_path)
    assert_fails(done, "--q-offset")


@pytest.mark.parametrize("output", ["nowhere/out.npz", ".", "in.npz/out.npz"])
def test_unwritable_output_gives_one_line(file, output):
    assert_fails(run("run", file, "-o", output, cwd=file.parent), output)
    assert os.listdir(file.parent) == ["in.npz"]


def test_the_input_is_not_overwritten(file, call):
    content = file.read_bytes()
    link = file.with_name("link.npz")
    link.symlink_to(file)
    for output in ("in.npz", file, "link.npz"):
        assert_fails(call("run", "in.npz", "-o", output), "--output: expected another")
    assert file.read_bytes() == content


def test_the_installed_command_is_the_same_program():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    command = re.search(r"\[project.scripts\]\nattnpy = \"(.*)\"\n", text)
    assert EntryPoint("attnpy", command[1], "console_scripts").load() is main


def test_a_device_is_not_replaced(file):
    assert_fails(run("run", file, "-o", os.devnull, cwd=file.parent), "regular file")
    assert not os.path.isfile(os.devnull)


def test_a_full_disk_leaves_the_former_output(file):
    out = file.with_name("out.npz")
    out.write_bytes(b"former")
    done = run(
        *("run", file, "-o", out),
        cwd=file.parent,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert_fails(done, "out.npz")
    assert out.read_bytes() == b"former"
    assert sorted(os.listdir(file.parent)) == ["in.npz", "out.npz"]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_a_signal_to_stop_leaves_no_output(tmp_path, number, status):
    x = np.ones((60_000, 64), np.float32)
    np.savez(tmp_path / "in.npz", query=x, key=x, value=x)
    process = subprocess.Popen(
        [*COMMAND, "run", "in.npz", "-o", "out.npz", "--num-threads", "1"],
        cwd=tmp_path,
        env={**os.environ, "ATTNPY_ISA": "scalar"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: len(os.listdir(tmp_path)) > 1 or process.poll() is not None)
    time.sleep(0.2)  # most often it is in the call then; before it the same is right
    process.send_signal(number)
    assert process.communicate(timeout=HANGS) == (b"", b"")
    assert process.returncode == status
    assert os.listdir(tmp_path) == ["in.npz"]


SIGNALLED = """
import os, secrets, signal, sys
import numpy as np
from attnpy import _files
from attnpy.__main__ import main
number, place, when = int(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)
module, name = place.split(".")
function = getattr(globals()[module], name)
def signalled(*arguments, **options):
    if when == "before":
        os.kill(os.getpid(), number)
    result = function(*arguments, **options)
    os.kill(os.getpid(), number)
    return result
setattr(globals()[module], name, signalled)
sys.exit(main())
"""


def run_signalled(number, place, when, **options):
    """Run the command, and send it a signal before or after it calls this function."""
    arguments = ["-c", SIGNALLED, str(int(number)), place, when]
    return subprocess.run(
        [sys.executable, *arguments, "run", "in.npz", "-o", "out.npz"],
        capture_output=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "place", ["secrets.token_hex", "_files._mode_of", "np.savez", "os.replace"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_a_bad_moment_leaves_no_other_file(file, number, place, when):
    done = run_signalled(number, place, when, cwd=file.parent)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"", b"")
    left = set(os.listdir(file.parent)) - {"in.npz"}
    assert left == ({"out.npz"} if (place, when) == ("os.replace", "after") else set())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_ignored(file, number):
    done = run_signalled(
        number,
        "np.savez",
        "before",
        cwd=file.parent,
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN),
    )
    assert done.returncode == 0, done.stderr
    assert zipfile.is_zipfile(file.with_name("out.npz"))


IN_A_FINALIZER = """
import os, signal, sys, weakref
from attnpy import _files
from attnpy.__main__ import main
class Anything: pass
thing = Anything()
weakref.finalize(thing, os.kill, os.getpid(), signal.SIGTERM)
def mode_of(path):
    globals().pop("thing")
_files._mode_of = mode_of
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_while_an_object_is_finalized_is_not_lost(file):
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FINALIZER, "run", "in.npz", "-o", "out.npz"],
        cwd=file.parent,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, b"")
    assert os.listdir(file.parent) == ["in.npz"]


IN_A_ZIP_FILE = """
import os, signal, sys, zipfile
from attnpy.__main__ import main
opened = zipfile.ZipFile.open
kept = []
def interrupted(self, name, mode="r", **more):
    file = opened(self, name, mode, **more)
    if mode == "w":
        kept.append(file)  # open still: the archive cannot be closed
        os.kill(os.getpid(), int(sys.argv[1]))
    return file
zipfile.ZipFile.open = interrupted
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_zipfile_does_not_speak_for_a_signal(tmp_path, number):
    x = np.ones((2, 3), np.float32)
    np.savez(tmp_path / "in.npz", query=x, key=x, value=x)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            IN_A_ZIP_FILE,
            str(int(number)),
            "run",
            "in.npz",
            "-o",
            "o",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 128 + number, done.stderr
    assert os.listdir(tmp_path) == ["in.npz"]


def test_handlers_of_signals_are_those_of_before(call, file):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]
    call("run", file, "-o", "out.npz")
    assert before == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]


def test_a_closed_pipe_is_silent(tmp_path):
    process = subprocess.Popen(
        COMMAND, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout=HANGS)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_printed_is_an_error(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            COMMAND, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode != 0
    assert done.stderr.startswith(b"attnpy: ")
