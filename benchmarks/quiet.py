"""Samples of a core that works for nobody else.

On a shared machine the core's other thread may belong to somebody else, whose programs
come and go within a tenth of a second. While one runs, a loop that reads the nearest
cache or a loop of multiply-adds has two thirds of its rate, or both, as the program
needs the one or the other. Both loops before and after a sample tell whether the sample
is worth anything.
"""

from __future__ import annotations

import functools
import time

import numpy as np

from . import machine

N_BYTES = 4096  # of each of two arrays: they fit every first-level cache
SECONDS = 2e-4  # of one look at either rate
DISTURBED = 0.85  # of its best: less of a rate is a disturbed core
PATIENCE = 0.2  # seconds to wait for quiet cores, before each try of a sample
TRIES = 3


@functools.cache
def watch_of(n_threads):
    """The watch of this process for as many threads as are measured."""
    return Watch(n_threads)


class Watch:
    """Looks at as many cores as there are threads, and remembers the best rates."""

    def __init__(self, n_threads):
        self.arrays = [
            [np.ones(N_BYTES, np.uint8) for _ in range(2)] for _ in range(n_threads)
        ]
        self.best = np.zeros(2)
        for _ in range(50):
            self.is_quiet()
            time.sleep(PATIENCE / 50)

    def rates(self):
        """What the slowest thread reads, and multiplies and adds, per second now, (2,).

        Each thread has a CPU of its own.
        """
        rates = np.zeros((len(self.arrays), 2))
        loops = machine.reader()

        def look(i):
            addresses = (array.ctypes.data for array in self.arrays[i])
            rates[i, 0] = loops.read_rate(*addresses, N_BYTES, 0, SECONDS)
            soon = time.clock_gettime(time.CLOCK_MONOTONIC) + SECONDS / 20
            loops.fma_rates(soon, SECONDS, 1, rates[i, 1:].ctypes.data)
            return 0.0

        machine.together(look, len(self.arrays))
        return rates.min(axis=0)

    def is_quiet(self):
        """Whether each core works for this process alone; True if nobody can tell."""
        if machine.reader() is None:
            return True
        rates = self.rates()
        self.best = np.maximum(self.best, rates)
        return bool((rates >= DISTURBED * self.best).all())

    def wait(self, patience=PATIENCE):
        """Until the cores are quiet, but not longer than this; whether they are."""
        end = time.monotonic() + patience
        while not (is_quiet := self.is_quiet()) and time.monotonic() < end:
            time.sleep(0.005)
        return is_quiet


def sampler(sample, n_threads, disturbed, patience=PATIENCE):
    """The function, called again where it was disturbed; the last try counts.

    disturbed: a list that gets True or False for each sample that is taken. Nothing is
    tried again after TRIES times this patience, in seconds.
    """
    watch = watch_of(n_threads)

    def undisturbed():
        end = time.monotonic() + TRIES * patience
        for _ in range(TRIES):
            quiet_before = watch.wait(patience)
            result = sample()
            if quiet := quiet_before and watch.is_quiet():
                break
            if time.monotonic() > end:
                break
        disturbed.append(not quiet)
        return result

    return undisturbed
