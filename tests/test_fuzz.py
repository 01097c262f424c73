"""The fuzzers in fuzz/ run, for a moment, and find nothing that is not known."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.quick(fuzzer=("calls",))
@pytest.mark.parametrize(
    ("fuzzer", "cases"),
    [
        ("calls", 300),
        ("changing", 300),
        ("files", 300),
        ("gradients", 60),
        ("kept", 20),
        ("reentry", 60),
        ("runs", 200),
        ("saves", 20),
        ("signals", 100),
    ],
)
def test_fuzzer_finds_nothing_new(fuzzer, cases):
    needed = ["ml_dtypes", "safetensors"]
    if fuzzer == "files":
        needed += ["gguf", "jinja2", "tokenizers"]
    for package in needed:
        pytest.importorskip(package)
    command = [sys.executable, TESTS / "fuzz", fuzzer, "--cases", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{fuzzer}: seed 0: ")
