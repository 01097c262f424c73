"""Code that runs inside of calls, where they allocate and cast, and changes arrays.

A finaliser, or what NumPy calls where numbers overflow, reshapes, retypes, restrides or
fills arrays that a call was given, at any of the moments when it may. What comes of the
call is a result or an exception, and the next one gives the bits of an undisturbed one.
"""

import functools
import itertools

import numpy as np
from support import pool
from support.reentry import MOMENTS

from attnpy.random import dropout_mask
from fuzz import calls
from fuzz.calls import Call
from fuzz.changing import change_array, same
from fuzz.findings import Finding, is_clear, trace
from fuzz.values import Subclass, one_of

N_CALLS = 4  # of a case, each disturbed at another moment
GROUPS = (pool.function_cases, pool.layer_cases, pool.model_cases)


class Moments:
    """Counts moments, and does something at one of them."""

    def __init__(self, at=None, effect=None):
        self.n, self.at, self.effect = 0, at, effect

    def __call__(self):
        self.n += 1
        if self.n == self.at:
            self.effect()


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    make = one_of(rng, MAKERS)
    seed, large = (int(rng.integers(2**62)) for _ in range(2))
    for moment in (one_of(rng, tuple(MOMENTS)), "collects"):  # which always come
        inside = MOMENTS[moment]
        if moment == "collects":
            inside = functools.partial(inside, n=one_of(rng, (1, 2, 3, 7)))

        def prepared(moment=moment):
            """The call, with arrays of its own, and those that may be changed."""
            made = make(np.random.default_rng(seed))
            if moment != "collects":
                enlarge(np.random.default_rng(large), made)
            arrays = [value_at(*place) for place in places(made)]
            return made, [x for x in arrays if 0 < x.size < 2**20]

        calm, (made, arrays) = Moments(), prepared()
        expected = disturbed(made, inside, calm)
        if arrays and calm.n > 0:
            break
    else:
        return "no moment"
    counts = {"results": 0, "errors": 0}
    for _ in range(N_CALLS):
        made, arrays = prepared()
        changes = [change_array(rng, one_of(rng, arrays), False) for _ in range(3)]
        moments = Moments(
            1 + int(rng.integers(calm.n)), lambda c=changes: [do() for do, _ in c]
        )
        if verbose:
            print(calls.describe(made))
            print(f"when it {moment}, at {moments.at} of {calm.n}:")
            print(*(f"  {words}" for _, words in changes), sep="\n", flush=True)
        good, _ = disturbed(made, inside, moments)
        counts["results" if good else "errors"] += 1
    again = disturbed(prepared()[0], inside, Moments())
    if again[0] != expected[0] or not same(again[1], expected[1]):
        raise Finding(f"{made.name}: other bits after a call that was disturbed")
    return max(counts, key=counts.get)


def disturbed(made, inside, moments):
    """(True, the result's arrays), or (False, None) where there is an exception."""
    try:
        with inside(moments):
            result = made.run()
    except SystemError as error:
        raise Finding(f"{made.name}: no exception of its own", trace(error)) from error
    except Exception as error:
        if moments.effect is None and not is_clear(error):
            raise Finding(f"{made.name}: not a clear error", trace(error)) from error
        return False, None
    return True, tuple(arrays_in(result))


def arrays_in(result):
    """The arrays in tuples, lists and dictionaries."""
    if isinstance(result, np.ndarray):
        yield result
    elif isinstance(result, (tuple, list)):
        for one in result:
            yield from arrays_in(one)
    elif isinstance(result, dict):
        yield from arrays_in(list(result.values()))


# ---- Where a call has its arrays


def value_at(owner, name):
    """What lies there."""
    return owner[name] if isinstance(owner, (list, dict)) else getattr(owner, name)


def put(owner, name, value):
    if isinstance(owner, (list, dict)):
        owner[name] = value
    else:
        setattr(owner, name, value)


def places(thing, known=None):
    """(owner, name) of all arrays that a call is made of, parameters of layers too."""
    known = {} if known is None else known
    if id(thing) in known:
        return
    known[id(thing)] = thing
    if isinstance(thing, Call):
        inner = [thing.function, thing.arguments, thing.options]
        inner += [owner for owner, _ in thing.parts]
    elif isinstance(thing, functools.partial):
        inner = [thing.func, *thing.args, thing.keywords]
    elif isinstance(thing, tuple):
        inner = thing
    elif hasattr(thing, "__closure__"):
        inner = [cell.cell_contents for cell in thing.__closure__ or ()]
    elif hasattr(thing, "__self__") and not isinstance(thing, type):
        inner = [thing.__self__]
    else:
        inner = []
        for name, value in items_of(thing):
            if type(value) in (np.ndarray, Subclass):
                yield thing, name
            else:
                inner.append(value)
    for one in inner:
        yield from places(one, known)


def items_of(thing):
    """The items of a list or a dictionary, public attributes of attnpy's objects."""
    if isinstance(thing, list):
        return list(enumerate(thing))
    if isinstance(thing, dict):
        return list(thing.items())
    if not type(thing).__module__.startswith("attnpy"):
        return []
    return [x for x in getattr(thing, "__dict__", {}).items() if x[0][0] != "_"]


def enlarge(rng, made):
    """Give a call numbers that float32 has not, in one or two of its arrays."""
    found = [
        (owner, name)
        for owner, name in places(made)
        if value_at(owner, name).dtype.kind == "f" and name != "out"
    ]
    for _ in range(1 + int(rng.integers(2))):
        if found:
            owner, name = one_of(rng, found)
            shape = value_at(owner, name).shape
            put(owner, name, np.full(shape, one_of(rng, (1e300, -1e39, 7e4))))


# ---- Calls


def make_pooled(rng, group, at):
    """The call at this place of a group."""
    name, function, arguments = next(itertools.islice(group(), at, None))
    return Call(name, function, list(arguments), {"num_threads": one_of(rng, (1, 3))})


def make_mask(rng):
    offset = rng.integers(0, 9, (2, 1)).astype(one_of(rng, (np.int64, np.int16)))
    arguments = [(2, 3, 4, 5), 0.5, int(rng.integers(2**63))]
    return Call("dropout_mask", dropout_mask, arguments, {"q_offset": offset})


MAKERS = (
    *calls.MAKERS,
    make_mask,
    *(
        functools.partial(make_pooled, group=group, at=at)
        for group in GROUPS
        for at in range(len(list(group())))
    ),
)
