"""Peers in processes of their own, with their idle threads as they are by default.

There they may spin: a process is stopped while it is not its turn, so that it takes no
time from whoever is.
"""

from __future__ import annotations

import atexit
import base64
import functools
import json
import os
import pickle
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import children, peers, ways


class Peer(children.Answerer):
    """A process of one system, which runs only while it is asked."""

    def __init__(self, system, n_threads):
        super().__init__(__name__, system, n_threads, env=children.loud())
        atexit.register(self.end)

    def ask(self, **question):
        self.process.send_signal(signal.SIGCONT)
        answer = super().ask(**question)
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def end(self):
        self.process.kill()
        self.process.wait()


process_of = functools.lru_cache(maxsize=None)(Peer)


@dataclass
class Contestant:
    """As in ways.py; its calls are made by another process."""

    way: str
    peer: Peer
    work: float
    error: float
    n_calls: int = 1

    def prepare(self):
        self.n_calls = self.peer.ask(do="prepare")["n_calls"]

    def sample(self):
        return self.peer.ask(do="sample")["seconds"]


def contestant(system, case, n_threads, expected, trials, work):
    """A system in its fastest way or None, and {way: why it was dropped}."""
    peer = process_of(system, n_threads)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "expected.npy")
        with path.open("wb") as file:
            np.save(file, np.asarray(expected, np.float64))
        answer = peer.ask(
            do="take",
            case=base64.b64encode(pickle.dumps(case)).decode(),
            expected=os.fspath(path),
            trials=trials,
        )
    if answer["way"] is None:
        return None, answer["dropped"]
    found = Contestant(answer["way"], peer, work, answer["error"])
    return found, answer["dropped"]


# ---- In the process that is measured -------------------------------------------------


def taken(system, n_threads, question):
    """The fastest way of a case that came with a question, and what was dropped."""
    case = pickle.loads(base64.b64decode(question["case"]))
    found = ways.ways_of(system, case, case.arrays(), n_threads)
    good, dropped = ways.right_ways(found, case, np.load(question["expected"]))
    return ways.best_of(good, question["trials"], 1.0), dropped


def main(arguments):
    """Answer questions. Arguments: a system and the number of threads."""
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    system, n_threads = arguments[0], int(arguments[1])
    peers.set_threads([system], n_threads)
    peers.without_gradients([system])
    found = None
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "take":
            found, dropped = taken(system, n_threads, question)
            way, error = (found.way, found.error) if found else (None, None)
            children.tell({"way": way, "error": error, "dropped": dropped})
        elif question["do"] == "prepare":
            found.prepare()
            children.tell({"n_calls": found.n_calls})
        else:
            children.tell({"seconds": found.sample()})
