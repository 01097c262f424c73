"""Code that runs inside of calls, where they allocate and cast, and changes arrays.

A finaliser, or what NumPy calls where numbers overflow, reshapes, retypes, restrides or
fills arrays that a call was given, at any of the moments when it may. What comes of the
call is a result or an exception, and the next one gives the bits of an undisturbed one.
"""

import functools
import itertools
import types

import numpy as np
from support import kept, pool
from support.reentry import MOMENTS

from attnpy import _attnpy
from attnpy.layers import MultiHeadAttention
from attnpy.models import CausalDecoder, ContinuousBatch
from attnpy.pages import PagedKVCache, PagePool
from attnpy.random import dropout_mask
from fuzz import calls
from fuzz.calls import Call
from fuzz.changing import change_array, same
from fuzz.findings import Finding, is_clear, trace
from fuzz.values import Subclass, maybe, one_of

N_CALLS = 4  # of a case, each disturbed at another moment
GROUPS = (pool.function_cases, pool.layer_cases, pool.model_cases)


class Inside:
    """A function of the extension module, which knows whether it is running."""

    n_running = 0

    def __init__(self, function):
        self.function = function

    def __call__(self, *arguments):
        Inside.n_running += 1
        try:
            return self.function(*arguments)
        finally:
            Inside.n_running -= 1


for function_name in ("attention", "attention_vjp", "attend_partial", "statistics",
                      "layer", "linear", "normalize", "normalize_vjp", "rotate",
                      "activate", "activate_vjp"):  # fmt: skip
    setattr(_attnpy, function_name, Inside(getattr(_attnpy, function_name)))


class Moments:
    """Counts moments, all or those in C, and does something at one of them."""

    def __init__(self, in_c, at=None, effect=None):
        self.in_c, self.n, self.at, self.effect = in_c, 0, at, effect

    def __call__(self):
        if self.in_c and Inside.n_running == 0:
            return
        self.n += 1
        if self.n == self.at:
            self.effect()


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    make, seed = one_of(rng, MAKERS), int(rng.integers(2**62))
    for moment, in_c in ways(rng):
        large = None if moment == "collects" else int(rng.integers(2**62))
        inside = MOMENTS[moment]
        if moment == "collects":
            inside = functools.partial(
                inside, n=1 + int(rng.integers(12 if in_c else 2))
            )

        def prepared(large=large):
            """The call, with arrays of its own, and those that may be changed."""
            made = make(np.random.default_rng(seed))
            if large is not None:
                enlarge(np.random.default_rng(large), made)
            arrays = [value_at(*place) for place in places(made)]
            return made, [x for x in arrays if 0 < x.size < 2**20]

        calm, (made, arrays) = Moments(in_c), prepared()
        expected = disturbed(made, inside, calm)
        if arrays and calm.n > 0:
            break
    else:
        return "no moment"
    counts = {"results": 0, "errors": 0}
    for _ in range(N_CALLS):
        made, arrays = prepared()
        changes = [change_array(rng, one_of(rng, arrays), False) for _ in range(3)]
        at = 1 + int(rng.integers(calm.n))
        moments = Moments(in_c, at, lambda c=changes: [do() for do, _ in c])
        if verbose:
            print(calls.describe(made))
            print(f"when it {moment}, at {moments.at} of {calm.n}:")
            print(*(f"  {words}" for _, words in changes), sep="\n", flush=True)
        good, _ = disturbed(made, inside, moments)
        counts["results" if good else "errors"] += 1
    again = disturbed(prepared()[0], inside, Moments(in_c))
    if again[0] != expected[0] or not same(again[1], expected[1]):
        raise Finding(f"{made.name}: other bits after a call that was disturbed")
    return f"{moment} {'in C' * in_c}".strip() if counts["results"] else "errors"


def ways(rng):
    """(moment, is it one in C) to be tried until there is one."""
    first = one_of(rng, tuple(MOMENTS))
    return [(first, bool(maybe(rng, 0.8)))] * 6 + [("collects", False)] * 2


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
    return True, tuple(kept.arrays_in(result))


# ---- Where a call has its arrays


def value_at(owner, name):
    """What lies there."""
    by_index = isinstance(owner, (list, dict, tuple))
    return owner[name] if by_index else getattr(owner, name)


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
    known[id(thing)] = thing  # so that no other takes its id
    for name, value in items_of(thing):
        if type(value) in (np.ndarray, Subclass):
            yield thing, name
        else:
            yield from places(value, known)


def items_of(thing):
    """What is in it, by index or attribute; of attnpy's objects what is public."""
    if isinstance(thing, (list, tuple)):
        return list(enumerate(thing))
    if isinstance(thing, dict):
        return list(thing.items())
    if isinstance(thing, Call):
        owners = [owner for owner, _ in thing.parts]
        inside = thing.function, thing.arguments, thing.options, owners
        return [(None, value) for value in inside]
    if isinstance(thing, functools.partial):
        return [
            ("func", thing.func),
            ("args", thing.args),
            ("keywords", thing.keywords),
        ]
    if isinstance(thing, types.FunctionType):
        return [(None, cell) for cell in thing.__closure__ or ()]
    if isinstance(thing, types.CellType):
        return [("cell_contents", thing.cell_contents)]
    if isinstance(thing, types.MethodType):
        return [("__self__", thing.__self__)]
    if type(thing).__module__.startswith("attnpy"):
        return [x for x in getattr(thing, "__dict__", {}).items() if x[0][0] != "_"]
    return []


def enlarge(rng, made):
    """Give a call numbers that float32 has not, in one or two of its arrays."""
    found = [
        (owner, name)
        for owner, name in places(made)
        if value_at(owner, name).dtype.kind == "f"
        and name != "out"
        and not isinstance(owner, tuple)
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


def make_large(rng):
    """A call with results that have memory of attnpy's own, or a little less."""
    rows, width = one_of(rng, (90, 200, 600)), one_of(rng, (8, 64, 65))
    found = kept.calls(rows, width, one_of(rng, (np.float32, np.float64)))
    name = one_of(rng, tuple(found))
    options = {} if name == "merge" else {"num_threads": one_of(rng, (1, 3))}
    return Call(name, found[name], [], options)


def make_in_pages(rng):
    """A layer whose keys are in pages, or a new token of the cache alone."""
    layer, kind = MultiHeadAttention(16, 2, rng=rng), one_of(rng, ("float32", "int8"))
    cache = PagedKVCache(PagePool(6, 2, 8, dtype=kind), 1)
    x = rng.standard_normal((2, one_of(rng, (1, 5, 130)), 16), np.float32)
    layer(x[:1, : one_of(rng, (1, 127))], cache=cache, causal=True)
    cache = cache.fork([0, 0])
    if maybe(rng, 0.3):
        key = rng.standard_normal((2, 2, 2, 3, 8), np.float32)
        return Call("PagedKVCache.append", cache.append, [*key])
    options = {"cache": cache, "causal": True, "num_threads": one_of(rng, (1, 3))}
    return Call("layer in pages", layer, [x], options)


def make_texts(rng):
    """Texts behind a prefix, in the pages of a batch."""
    model = CausalDecoder(
        1, 16, 2, 16, vocab_size=9, max_length=300, window=(60, 0), rng=rng
    )
    batch = ContinuousBatch(model, 8, prompt_tokens=one_of(rng, (9, 300)))
    prefix = batch.prefill(rng.integers(0, 9, 150))
    for n in (1, 20):
        batch.add(rng.integers(0, 9, n), 3, prefix=prefix)
    return Call("ContinuousBatch.step", batch.step, [])


def make_mask(rng):
    offset = rng.integers(0, 9, (2, 1)).astype(one_of(rng, (np.int64, np.int16)))
    arguments = [(2, 3, 4, 5), 0.5, int(rng.integers(2**63))]
    return Call("dropout_mask", dropout_mask, arguments, {"q_offset": offset})


MAKERS = (
    *calls.MAKERS * 2,
    *(make_large,) * 16,
    *(make_in_pages,) * 8,
    *(make_texts,) * 4,
    make_mask,
    *(
        functools.partial(make_pooled, group=group, at=at)
        for group in GROUPS
        for at, (name, *_) in enumerate(group())
        if not name.startswith("view.")  # whose files the build with sanitizers has not
    ),
)
