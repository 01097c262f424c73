"""Fresh Python processes that find the same packages as this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

# sys.path is handed over whole: -m and PYTHONPATH would put the working directory or
# the sources before what is installed.
BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).main(sys.argv[3:])
"""
# Idle threads of OpenMP and OpenBLAS sleep at once: awake, they take the processor from
# whoever is measured next.
QUIET = {
    "OMP_WAIT_POLICY": "passive",
    "KMP_BLOCKTIME": "0",
    "OPENBLAS_THREAD_TIMEOUT": "4",
}


def command(module, *arguments, path=None):
    """The command that runs main(arguments) of a module."""
    path = json.dumps(sys.path if path is None else path)
    return [sys.executable, "-c", BOOT, path, module, *map(str, arguments)]


def output(module, *arguments):
    """What main(arguments) prints, as JSON; an error where it fails."""
    done = subprocess.run(
        command(module, *arguments),
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        raise RuntimeError(last[0])
    return json.loads(done.stdout.splitlines()[-1])
