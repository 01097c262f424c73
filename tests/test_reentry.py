"""A user's code that runs in the middle of a call, and changes the arrays of the call.

It can run whenever NumPy converts an object, whenever a cast overflows, and, before
Python 3.12, whenever something is allocated. It may reshape and retype every array that
it knows; a call must not notice, or give an error.
"""

import contextlib
import functools
import itertools
import warnings

import numpy as np
import pytest
from support import reentry
from support.processes import assert_runs
from support.right_calls import right_calls

from attnpy import _attnpy

# Those that take arrays and compute with them.
NAMES = [
    name
    for name, calls in right_calls().items()
    if name.startswith(("att", "Plan", "stat", "layer", "linear", "norm", "rot", "act"))
]


def paths_in(group, is_wanted, path=()):
    """Where in a group, and the groups in it, there is what is wanted."""
    for i, item in enumerate(group):
        if isinstance(item, tuple):
            yield from paths_in(item, is_wanted, (*path, i))
        elif is_wanted(item):
            yield (*path, i)


def at(group, path):
    """What lies there."""
    return functools.reduce(lambda inner, i: inner[i], path, group)


def with_other(group, path, other):
    """The group with something else there."""
    i, *inner = path
    item = with_other(group[i], inner, other) if inner else other
    return (*group[:i], item, *group[i + 1 :])


# ---- What it does


def is_array(item):
    return isinstance(item, np.ndarray)


def flags(array):
    """Nothing that a call would notice."""
    array.setflags(align=True)


def flatten(array):
    array.shape = (array.size,)


def widen(array):
    array.shape = (1,) * 5 + (array.size,)


def narrow(array):
    array.dtype = np.int8


def repeat(array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array.strides = (0,) * array.ndim


def change(effect, arrays, done):
    """Do it to each of the arrays that bears it, and note that."""
    done.append(True)
    for array in arrays:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            effect(array)


EFFECTS = (flatten, widen, narrow, repeat)


# ---- When it does that


def when_asked(call, arguments, act):
    """While an array is converted."""
    for path in paths_in(arguments, is_array):
        yield lambda p=path: call(
            with_other(arguments, p, reentry.Asked(at(arguments, p).copy(), act))
        )


def overflowing(arguments):
    """The arguments with numbers that the others' dtype has not, each in its turn."""
    for path in paths_in(arguments, is_array):
        array = at(arguments, path)
        if array.dtype.kind == "f":
            yield with_other(arguments, path, np.full(array.shape, 1e300))
    yield arguments


def when_it_casts(moment, call, arguments, act):
    """While NumPy casts a number that overflows."""

    def run(given):
        with moment(act):
            return call(given)

    for given in overflowing(arguments):
        yield functools.partial(run, given)


def when_it_collects(call, arguments, act):
    """While something is allocated, each time with the first act at another one."""

    def run(n):
        with reentry.when_it_collects(act, n):
            return call(arguments)

    for n in range(1, 12):
        yield functools.partial(run, n)


MOMENTS = {
    "asked": when_asked,
    "overflows": functools.partial(when_it_casts, reentry.when_it_overflows),
    "warns": functools.partial(when_it_casts, reentry.when_it_warns),
    "collects": when_it_collects,
}


# ---- What comes of it


def bits(result):
    """Of arrays in tuples."""
    if isinstance(result, tuple):
        return tuple(map(bits, result))
    return result if result is None else (result.shape, result.dtype, result.tobytes())


def result_of(made):
    """The bits, or the text of an error, which there is."""
    try:
        return bits(made())
    except (TypeError, ValueError, RuntimeError) as error:
        assert str(error), repr(error)
        return "an error"


def call_of(name):
    """The call of a function, or of a plan that is made for it."""
    function = getattr(_attnpy, name)
    return lambda given: function(*given)() if name == "Plan" else function(*given)


def calls_of(name, moment, effect, sizes):
    """Each call, with a list that is not empty once something was done in it."""
    for i in range(len(right_calls()[name])):
        for j in itertools.count():
            given, done = right_calls(*sizes)[name][i], []
            arrays = [at(given, path) for path in paths_in(given, is_array)]
            act = functools.partial(change, effect, arrays, done)
            moments = MOMENTS[moment](call_of(name), given, act)
            made = next(itertools.islice(moments, j, None), None)
            if made is None:
                break
            yield made, done


def attack(name, moment, *sizes):
    """Make the calls; print in how many something was done."""
    # Casts come when everything is converted: nothing that is done then is noticed.
    is_late = moment in ("overflows", "warns")
    calm = [result_of(made) for made, _ in calls_of(name, moment, flags, sizes)]
    n_done = 0
    for effect in EFFECTS:
        for i, (made, done) in enumerate(calls_of(name, moment, effect, sizes)):
            result = result_of(made)
            n_done += bool(done)
            if is_late and name != "rotate":  # which returns `out`, as that is now
                assert result == calm[i], (name, effect, i)
    print(n_done)


ATTACK = """
import sys, numpy as np, test_reentry
name, moments, n, d, dtype = sys.argv[1:]
for moment in moments.split():
    test_reentry.attack(name, moment, int(n), int(d), np.dtype(dtype))
"""


@pytest.mark.quick(name=("attention_vjp", "layer", "normalize"))
@pytest.mark.parametrize("name", NAMES)
def test_what_is_done_in_a_conversion_is_not_noticed(name):
    printed = assert_runs(ATTACK, name, "asked overflows warns", 6, 8, "float32")
    asked, overflows, _ = map(int, printed.split())
    assert asked > 0
    # Shows that something is done where casts overflow.
    casts = name in ("attention_vjp", "layer", "linear", "normalize", "rotate")
    assert not casts or overflows > 0


@pytest.mark.quick(name=("attention_vjp", "normalize"))
@pytest.mark.parametrize("name", NAMES)
def test_what_a_finaliser_does_is_not_noticed(name):
    # Large results have memory that is not NumPy's own, which once took objects of the
    # collector's. Where none are allocated any more, nothing is done either.
    assert_runs(ATTACK, name, "collects", 130, 128, "float32")


EMPTIED = """
import sys
import numpy as np
from attnpy import attention

class Other(np.ndarray):
    def __del__(self):
        self[...] = 0

class Module:
    @property
    def MaskedArray(self):
        lists.clear()
        return Mask

class Kind(type):
    def __instancecheck__(self, item):
        assert type(item) is Other and item.sum() == 4.0
        return False

class Mask(metaclass=Kind):
    pass

sys.modules["numpy.ma"] = Module()
x = np.ones((3, 4))
for _ in range(20):
    lists = [np.ones(4).view(Other) for _ in range(3)]
    try:
        attention(lists, x, x)
    except ValueError as error:
        assert "query" in str(error), error
    else:
        raise AssertionError("a list that was emptied is an array")
"""


@pytest.mark.quick
def test_what_a_list_has_lost_is_there_while_it_is_looked_at():
    assert_runs(EMPTIED)


CHANGED = """
import sys, threading, time
import numpy as np
from attnpy import attention

sys.setswitchinterval(1e-6)
lists, x = [[1.0] * 4 for _ in range(3)], np.ones((3, 4))
end = time.monotonic() + 1

def change():
    while time.monotonic() < end:
        lists[:] = lists[:1]
        lists[:] = [[float(i)] * 4 for i in range(3)]

def call():
    while time.monotonic() < end:
        try:
            attention(lists, x, x)
        except (TypeError, ValueError):
            pass

threads = [threading.Thread(target=f) for f in (change, change, call, call)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_lists_may_change_in_other_threads():
    # What this looks for is a crash of Python without its lock.
    assert_runs(CHANGED)
