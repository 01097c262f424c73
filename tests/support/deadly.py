"""Ways of a peer of the benchmarks that ends its process, and of one that fails."""

import os
import signal

from benchmarks.peers import Way


def ending_ways(case, arrays, n_threads):
    yield Way("ends", lambda: os.kill(os.getpid(), signal.SIGFPE))


def failing_ways(case, arrays, n_threads):
    yield Way("fails", lambda: 1 / 0)
    raise ValueError("no other way")
