"""Ways to run code in the middle of a call: where it allocates, casts or converts.

Before Python 3.12 the garbage collector may run wherever an object is allocated, and
runs finalisers then. NumPy calls a function of the user's when numbers overflow, or
Python calls the one that shows the warning.
"""

import contextlib
import gc
import warnings

import numpy as np


class Act:
    """Calls a function, with no arguments whatever it is given, until it is over."""

    def __init__(self, function):
        self.function, self.over = function, False

    def __call__(self, *_, **more):
        if not self.over:
            self.function()


class Asked:
    """Becomes an array when it is made one, after a function was called."""

    def __init__(self, array, act):
        self.array, self.act = array, act

    def __array__(self, dtype=None, copy=None):
        self.act()
        return self.array


class Finaliser:
    """An object in a reference cycle, which makes another one when it is collected."""

    def __init__(self, act):
        self.act, self.me = act, self

    def __del__(self):
        self.act()
        if not self.act.over:
            Finaliser(self.act)


@contextlib.contextmanager
def doing(function):
    """An act that is over at the end of the block."""
    act = Act(function)
    try:
        yield act
    finally:
        act.over = True


@contextlib.contextmanager
def when_it_collects(function, n=1):
    """Call it each time that n more objects are tracked by the collector."""
    thresholds = gc.get_threshold()
    gc.disable()
    gc.collect(0)
    with doing(function) as act:
        Finaliser(act)
        gc.set_threshold(n, 2**30, 2**30)
        gc.enable()
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)


@contextlib.contextmanager
def when_it_overflows(function):
    """Call it through numpy.seterrcall when a cast overflows."""
    with doing(function) as act:
        before = np.seterrcall(act)
        try:
            with np.errstate(all="call"):
                yield
        finally:
            np.seterrcall(before)


@contextlib.contextmanager
def when_it_warns(function):
    """Call it in place of warnings.showwarning when a cast overflows."""
    with (
        doing(function) as act,
        np.errstate(all="warn"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = act
        yield


MOMENTS = {
    "collects": when_it_collects,
    "overflows": when_it_overflows,
    "warns": when_it_warns,
}
