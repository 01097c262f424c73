"""Ways to run code in the middle of a call: when something is allocated, or cast.

Before Python 3.12 the garbage collector may run wherever an object is allocated, and
runs finalisers then. NumPy calls a function of the user's where numbers overflow, or
Python one that shows the warning.
"""

import contextlib
import gc
import warnings

import numpy as np


class Act:
    """Does something, whatever it is given, until it is over."""

    def __init__(self, function):
        self.function, self.over = function, False

    def __call__(self, *_, **more):
        if not self.over:
            self.function()


class Finaliser:
    """Lies in a circle, so that the garbage collector finds it, time after time."""

    def __init__(self, act):
        self.act, self.me = act, self

    def __del__(self):
        self.act()
        if not self.act.over:
            Finaliser(self.act)


@contextlib.contextmanager
def doing(function):
    """An act that is over when this is left."""
    act = Act(function)
    try:
        yield act
    finally:
        act.over = True


@contextlib.contextmanager
def when_it_collects(function, n=1):
    """Call it each time that n more objects are there which the collector looks at."""
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
    """Call it where numbers are cast that the other dtype has not: numpy.seterrcall."""
    with doing(function) as act:
        before = np.seterrcall(act)
        try:
            with np.errstate(all="call"):
                yield
        finally:
            np.seterrcall(before)


@contextlib.contextmanager
def when_it_warns(function):
    """Call it there in the place of warnings.showwarning."""
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
