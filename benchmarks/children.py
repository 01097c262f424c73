"""Fresh Python processes that find the same packages as this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from attnpy._measure import QUIET

# sys.path is handed over whole: -m and PYTHONPATH would put the working directory or
# the sources before what is installed.
BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).main(sys.argv[3:])
"""


def quiet():
    """Whether the idle threads of this process sleep."""
    return all(os.environ.get(key) == value for key, value in QUIET.items())


def command(module, *arguments, path=None):
    """The command that runs main(arguments) of a module."""
    path = json.dumps(sys.path if path is None else path)
    return [sys.executable, "-c", BOOT, path, module, *map(str, arguments)]


def loud():
    """The environment of a process whose idle threads do as they do by default."""
    return {key: value for key, value in os.environ.items() if key not in QUIET}


class Answerer:
    """A process that answers questions, each a line of JSON."""

    def __init__(self, module, *arguments, env=None, path=None):
        self.process = subprocess.Popen(
            command(module, *arguments, path=path),
            env={**os.environ, **QUIET} if env is None else env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended: exit status {self.process.wait()}")
        return json.loads(line)

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def tell(answer):
    """Answer, in such a process."""
    print(json.dumps(answer), flush=True)


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
