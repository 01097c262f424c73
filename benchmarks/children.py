"""Fresh Python processes, which find the same packages and call functions for this."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import traceback

from attnpy._measure import QUIET

# sys.path is handed over whole: -m and PYTHONPATH would put the working directory or
# the sources before what is installed.
BOOT = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from benchmarks.children import serve
serve()
"""


def quiet():
    """Whether the idle threads of this process sleep."""
    return all(os.environ.get(key) == value for key, value in QUIET.items())


def loud():
    """The environment of a process whose idle threads do as they do by default."""
    return {key: value for key, value in os.environ.items() if key not in QUIET}


class Ended(RuntimeError):
    """A process ended before it answered."""


class Process:
    """A process that calls functions of modules, and gives back what they return."""

    def __init__(self, env=None, path=None):
        self.process = subprocess.Popen(
            [sys.executable, "-c", BOOT],
            env={**os.environ, **QUIET} if env is None else env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.send(sys.path if path is None else path)

    def send(self, what):
        pickle.dump(what, self.process.stdin)
        self.process.stdin.flush()

    def call(self, function, *arguments):
        """What the function returns there, or a RuntimeError with its error.

        Ended, which is one, says by which signal or with which status.
        """
        self.send((function, arguments))
        try:
            answer, error = pickle.load(self.process.stdout)
        except EOFError:
            raise Ended(ending(self.process.wait())) from None
        if error is not None:
            raise RuntimeError(error)
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def ending(status):
    """How a process ended, by the status that subprocess gives it."""
    if status < 0:
        return f"process ended by {signal.Signals(-status).name}"
    return f"process ended with exit status {status}"


def once(function, *arguments):
    """What a function returns in a process of its own."""
    with contextlib.closing(Process()) as process:
        return process.call(function, *arguments)


def serve():
    """Call what the other process asks for, until it has no more questions."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = function(*arguments), None
        except Exception as error:
            answer = None, "".join(traceback.format_exception_only(error)).strip()
        pickle.dump(answer, answers)
        answers.flush()
