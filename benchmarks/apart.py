"""Peers in processes of their own, with their idle threads as they are by default.

There they may spin: a process is stopped while it is not its turn, so that it takes no
time from whoever is.
"""

import atexit
import functools
import signal

from . import children, peers, ways


class Peer(children.Process):
    """A process of one system, which runs only while it is asked."""

    def __init__(self, system, n_threads):
        super().__init__(env=children.loud())
        atexit.register(self.end)
        self.call(peers.alone, system, n_threads)

    def call(self, function, *arguments):
        self.process.send_signal(signal.SIGCONT)
        try:
            return super().call(function, *arguments)
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def end(self):
        self.process.kill()
        self.process.wait()


process_of = functools.cache(Peer)


class Contestant(ways.Contestant):
    """As there, but another process makes the calls: `call` is that Peer."""

    def prepare(self):
        self.n_calls = self.call.call(ask, "prepare")

    def sample(self):
        return self.call.call(ask, "sample")


def contestant(system, case, n_threads, expected, trials, work):
    """A system in its fastest way or None, and {way: why it was dropped}."""
    peer = process_of(system, n_threads)
    found, dropped = peer.call(take, system, case, n_threads, expected, trials)
    return found and Contestant(found[0], peer, work, found[1]), dropped


# ---- In the process that is measured -------------------------------------------------

taken = []  # the contestant that comes next


def take(system, case, n_threads, expected, trials):
    """Find the fastest way; return its name and error, and what was dropped."""
    made = ways.ways_of(system, case, case.arrays(), n_threads)
    good, dropped = ways.right_ways(made, case, expected)
    found = ways.best_of(good, trials, 1.0)
    taken[:] = [found]
    return found and (found.way, found.error), dropped


def ask(method):
    return getattr(taken[0], method)()
