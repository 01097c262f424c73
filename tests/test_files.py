"""Files are written whole or not at all, whoever writes them."""

import errno
import os
import stat
import threading

import numpy as np
import pytest
from support.errors import refused
from support.interrupts import interrupted_everywhere
from support.processes import assert_runs, run_python

from attnpy import diagrams, training
from attnpy.__main__ import main
from attnpy._files import write_whole
from attnpy.checkpoints import reading
from attnpy.view import head_view

pytestmark = pytest.mark.quick

# ---- All that writes files -----------------------------------------------------------


def save_run(path):
    pytest.importorskip("safetensors")
    training.save(path, {"W": np.ones(3)}, step=1)


def save_view(path):
    head_view(np.full((1, 2, 2), 0.5), ["a", "b"]).save(path)


def save_diagram(path):
    diagrams.encoder_decoder().save(path)


def run_command(path):
    """What the command line does, in this process."""
    source = f"{os.path.dirname(path)}/../in.npz"
    np.savez(source, **dict.fromkeys(("query", "key", "value"), np.ones((2, 3))))
    if main(["run", source, "-o", str(path)]) != 0:
        raise OSError("the command line says what is wrong")


WRITERS = [save_run, save_view, save_diagram, run_command]
all_writers = pytest.mark.parametrize("save", WRITERS)


@pytest.fixture
def folder(tmp_path):
    """A folder of a path that is not long."""
    (tmp_path / "f").mkdir()
    return tmp_path / "f"


@all_writers
def test_what_a_killed_process_of_the_same_number_left_is_in_nobodys_way(
    save, folder, monkeypatch
):
    if save is save_run:
        pytest.importorskip("safetensors")
    script = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_files
os.getpid = lambda: 1
os.replace = lambda *_: signal.raise_signal(signal.SIGKILL)
getattr(test_files, sys.argv[2])(sys.argv[3])
"""
    path = folder / "file"
    done = run_python(script, os.path.dirname(__file__), save.__name__, path)
    assert done.returncode == -9, done.stderr
    left = os.listdir(folder)
    assert len(left) == 1
    assert path.name not in left
    (folder / f"{path.name}.1.tmp").touch()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    save(path)
    assert sorted(os.listdir(folder)) == sorted([*left, "file", "file.1.tmp"])
    assert path.stat().st_size > 10


@all_writers
@pytest.mark.parametrize("name", ["a" * 255, "ä" * 127, ".", "..."], ids=len)
def test_names_may_be_as_long_as_those_of_files(save, name, folder):
    if name == ".":
        with pytest.raises(OSError):
            save(folder / name)
        assert os.listdir(folder) == []
    else:
        save(folder / name)
        assert os.listdir(folder) == [name]


@all_writers
def test_threads_may_write_one_file(save, folder, capsys):
    path, faults = folder / "file", []
    save(path)
    size = path.stat().st_size

    def write():
        try:
            for _ in range(30):
                save(path)
                assert path.stat().st_size == size
        except BaseException as error:
            faults.append(error)

    if save is run_command:  # sets handlers of signals, which threads must not
        return
    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert os.listdir(folder) == [path.name]


@all_writers
def test_a_file_keeps_its_mode_and_a_new_one_has_that_of_the_umask(save, folder):
    path = folder / "file"
    before = os.umask(0o026)
    try:
        save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(before)


# ---- The mechanism -------------------------------------------------------------------


def test_an_interrupt_at_any_moment_leaves_one_file_that_is_complete(folder):
    path = folder / "file"
    for old in (None, b"old"):

        def save():
            write_whole(path, lambda file: file.write(b"new"))

        if old is not None:
            path.write_bytes(old)
        contents = set()
        for interrupted in interrupted_everywhere(save, opcodes_of=[write_whole]):
            left = os.listdir(folder)
            contents.add(path.read_bytes() if left else None)
            assert left in ([], [path.name])
            assert interrupted or path.read_bytes() == b"new"
            if old is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(old)
        assert contents == {old, b"new"}


def test_an_interrupt_while_an_error_is_cleaned_up_leaves_no_file():
    script = """
import os, signal, tempfile
from functools import partial
from attnpy._files import write_whole
signal.signal(signal.SIGALRM, signal.default_int_handler)
# In C, so that the signal is noticed at the first chance after the first error.
alarm = partial(signal.setitimer, signal.ITIMER_REAL, 1e-4)
steps = alarm, partial(sum, range(10**6)), partial(divmod, 1, 0)
def fail(file):
    list(map(partial.__call__, steps))
with tempfile.TemporaryDirectory() as folder:
    for n in range(10):
        try:
            write_whole(f"{folder}/file", fail)
        except KeyboardInterrupt as error:
            assert isinstance(error.__context__, ZeroDivisionError)
        else:
            raise SystemExit("no interrupt")
        assert os.listdir(folder) == []
"""
    assert_runs(script)


def test_an_error_leaves_the_file_that_was_there_and_no_other(folder):
    path = folder / "file"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"new")
        raise MemoryError

    with pytest.raises(MemoryError):
        write_whole(path, fail)
    assert os.listdir(folder) == [path.name]
    assert path.read_bytes() == b"old"


def test_nobody_else_reads_what_replaces_a_secret(folder):
    path, modes = folder / "file", []
    path.touch(0o600)

    def write(file):
        modes.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))

    before = os.umask(0)
    try:
        write_whole(path, write)
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_symbolic_links_are_followed(folder):
    (folder / "inner").mkdir()
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("inner/real")
    for content in (b"first", b"second"):
        write_whole(folder / "one", lambda file: file.write(content))  # noqa: B023
        assert (folder / "inner" / "real").read_bytes() == content
    assert (folder / "one").is_symlink()
    assert (folder / "two").is_symlink()
    assert os.listdir(folder / "inner") == ["real"]


def test_errors_have_the_path_that_was_given(folder, monkeypatch):
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("missing/file")
    os.mkfifo(folder / "pipe")
    (folder / "text").touch()
    monkeypatch.chdir(folder)
    before = sorted(os.listdir())
    for path, number in [
        ("loop", errno.ELOOP),
        ("nowhere", errno.ENOENT),
        ("pipe", errno.EINVAL),
        (".", errno.EINVAL),
        ("text/file", errno.ENOTDIR),
        ("a" * 256, errno.ENAMETOOLONG),
        ("missing/file", errno.ENOENT),
    ]:
        with pytest.raises(OSError) as caught:
            write_whole(path, lambda _: pytest.fail("there is nothing to write to"))
        assert (caught.value.errno, caught.value.filename) == (number, path)

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError) as caught:
        write_whole("text", full)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "text")
    assert sorted(os.listdir()) == before
    for wrong in (b"text", 3, None):
        with refused(TypeError, "path"):
            write_whole(wrong, full)
    for wrong in ("", "a\0b"):
        with refused(ValueError, "path"):
            write_whole(wrong, full)


@pytest.mark.parametrize("has_preadv", [True, False])
def test_bytes_are_read_from_anywhere_with_what_the_system_has(
    tmp_path, monkeypatch, has_preadv
):
    if not has_preadv:  # as on Windows
        monkeypatch.delattr(os, "preadv", raising=False)
    (tmp_path / "file").write_bytes(b"0123\r\n\x1a789")
    file = reading.opened(tmp_path / "file")
    assert reading.read_at(file, 4, 3) == b"3\r\n\x1a"
    assert reading.read_at(file, 9, 8) == b"89"
    assert reading.read_at(file, 1, 10) == b""


def test_a_file_is_replaced_where_the_system_has_no_fchmod(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "fchmod", raising=False)  # as on Windows
    for data in (b"one", b"two"):
        write_whole(tmp_path / "file", lambda file, data=data: file.write(data))
        assert (tmp_path / "file").read_bytes() == data
