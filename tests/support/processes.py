"""Run scripts in an interpreter of their own, which can import what the tests can."""

import os
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
HANGS = 300  # seconds: far more than anything takes on a slow machine that is busy


def run_python(script, *arguments, timeout=HANGS, **environment):
    """Run a script in a fresh interpreter that can import the test helpers."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script, *map(str, arguments)],
        cwd=TESTS,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def assert_runs(script, *arguments, **more):
    """Run a script that must succeed and return what it printed."""
    done = run_python(script, *arguments, **more)
    tail = done.stdout[-2000:] + done.stderr[-4000:]
    assert done.returncode == 0, f"exit status {done.returncode}\n{tail}"
    return done.stdout


def assert_fails(done, *parts):
    """A command ended with status 2 and one line on stderr that has all the parts."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("attnpy: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def wait_until(condition):
    """Wait until condition() is true, however fast the machine is."""
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, "this never becomes true"
        time.sleep(0.001)
