"""Arguments that change while they are looked at, and the arrays of a plan after it.

An argument is replaced by an object that gives the same array or number when it is
asked, and changes another argument, or a layer, when that happens. What comes of it
must be an error, or what the same call gives where the change came before it or did not
come.
"""

import functools

import numpy as np

import attnpy
from attnpy.cache import KVCache
from fuzz import calls
from fuzz.findings import Finding, call
from fuzz.values import FLOATS, Subclass, maybe, numbers, one_of, wrong

DTYPES = (*FLOATS, *(np.dtype(code) for code in ("?", "i1", "i4", "i8", "c8", "V4")))


class Changing:
    """Gives its value to whoever asks, once something else has been done."""

    def __init__(self, value):
        self.value, self.effect = value, None

    def asked(self):
        effect, self.effect = self.effect, None
        if effect is not None:
            effect()
        return self.value

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.asked())

    def __index__(self):
        return int(self.asked())

    def __float__(self):
        return float(self.asked())

    def __bool__(self):
        return bool(self.asked())

    def __len__(self):
        return len(self.asked())

    def __getitem__(self, i):
        return self.asked()[i]


class Finalized(np.ndarray):
    """Does it when a view of it is made, or a copy."""

    effect = None

    def __array_finalize__(self, other):
        effect = getattr(other, "effect", None)
        if effect is not None:
            other.effect = None
            effect()


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    if maybe(rng, 0.2):
        return run_plan(rng, verbose)
    seed = int(rng.integers(2**62))
    make = one_of(rng, calls.MAKERS)
    later = int(rng.integers(2**62))

    def prepared():
        made = make(np.random.default_rng(seed))
        effect, what = change(np.random.default_rng(later), made)
        return made, effect, what

    made, effect, what = prepared()
    if effect is None:
        return "nothing to change"
    if verbose:
        print(calls.describe(made))
        print("change:", what, flush=True)
    made.trigger.effect = effect
    good, result = call(made.run)
    check_caches(made)
    happened = made.trigger.effect is None
    if not good:
        return "errors"
    expected = []
    for first in (False, True):
        made, effect, _ = prepared()
        if first:
            effect()
        expected.append(call(made.run))
    if not any(right and same(result, other) for right, other in expected):
        pairs = zip(("given", "before", "after"), (result, *expected), strict=True)
        text = "\n".join(f"{name}: {one!r:.500}" for name, one in pairs)
        raise Finding(f"{made.name}: neither before nor after {what.split()[-1]}", text)
    return "changed" if happened else "not asked"


def same(one, other):
    """The same bits, in arrays of the same shapes."""
    if one is None or other is None:
        return one is other
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one.tobytes() == other.tobytes() or equal(one, other)


def equal(one, other):
    """The same numbers; NaN is NaN, and 0 is -0."""
    return np.array_equal(one, other, equal_nan=True)


def check_caches(made):
    """A cache has no more tokens than it has room for, or the next call says so."""
    for cache in made.options.values():
        if isinstance(cache, KVCache) and isinstance(cache._key, np.ndarray):
            lengths = cache._lengths
            if cache._key.ndim != 4:  # no cache any more, which the next call says
                continue
            if ((lengths >= 0) & (lengths <= cache._key.shape[2])).all():
                continue
            try:
                cache.append(cache._key[:, :, :0], cache._value[:, :, :0])
            except ValueError:
                continue
            raise Finding("a cache has more tokens than room", f"{lengths}")


def change(rng, made):
    """Put something changing into a call: what it does, and that in words."""
    places = [(made.arguments, i) for i in range(len(made.arguments))]
    places += [(made.options, name) for name in made.options]
    if made.name == "merge":
        places = [(xs, i) for xs in made.arguments for i in range(len(xs))]
    at = int(rng.integers(len(places)))
    where, name = places[at]
    value = where[name]
    if isinstance(value, KVCache) or name in ("rotary", "activation", "out", "causal"):
        return None, ""
    if isinstance(value, np.ndarray) and maybe(rng, 0.3):
        made.trigger = value.view(Finalized)
    else:
        made.trigger = Changing(1 if value is None else value)
    where[name] = made.trigger
    if name == "window":
        made.trigger = Changing(1 if value[0] is None else value[0])
        where[name] = (made.trigger, value[1])

    # What comes after it is not yet held by the call: only that may be moved in memory.
    arrays = [(w[n], i > at and w is made.arguments) for i, (w, n) in enumerate(places)]
    first = where is made.arguments and at == 0 and made.name != "norm"
    arrays += [(getattr(o, n, None), first) for o, n in made.parts]
    targets = [
        (x, free)
        for x, free in arrays
        if type(x) in (np.ndarray, Subclass) and 0 < x.size < 2**20
    ]
    caches = [x for x in made.options.values() if isinstance(x, KVCache)]
    for cache in caches:
        targets += [(cache._key, False), (cache._value, False)]
    kinds = ["array"] * 4 * bool(targets) + ["part"] * bool(made.parts)
    kinds += ["cache"] * bool(caches) + ["list"] * (made.name == "merge")
    if not kinds:
        return None, ""
    kind = one_of(rng, kinds)
    if kind == "array":
        target, free = one_of(rng, targets)
        if sum(x is target for x, _ in arrays) > 1:
            # It is looked at several times, perhaps before the change and after it.
            return change_array(rng, target, False, ("fill", "flags"))
        return change_array(rng, target, free and type(made.trigger) is Changing)
    if kind == "part":
        owner, name = one_of(rng, made.parts)
        new = wrong(rng, getattr(owner, name))
        return functools.partial(
            setattr, owner, name, new
        ), f".{name} = {new!r:.80} set"
    if kind == "list":
        xs = one_of(rng, made.arguments)
        return one_of(rng, (xs.clear, functools.partial(xs.append, xs[0]))), "a list"
    cache = caches[0]
    rows = [
        numbers(rng, (cache.batch_size, cache.num_kv_heads, 2, n), cache._key.dtype)
        for n in (cache.head_dim, cache.value_head_dim)
    ]
    effects = (cache.reset, functools.partial(cache.append, *rows))
    return quietly(one_of(rng, effects)), "the cache"


def quietly(effect):
    """The effect, which may fail."""

    def changed():
        try:
            effect()
        except Exception as error:
            return error
        return None

    return changed


WAYS = ("shape", "dtype", "strides", "fill", "resize", "flags")


def change_array(rng, target, free, ways=WAYS):
    """A change of an array in place, and in words."""
    way = one_of(rng, ways)
    shape = target.shape
    if way == "shape":
        value = one_of(
            rng,
            (
                (target.size,),
                (1, target.size),
                (1,) * 5 + (target.size,),
                (*shape, 1),
                (1, *shape),
                shape[::-1],
                tuple(int(n) for n in rng.permutation(shape)),
            ),
        )
    elif way == "dtype":
        value = one_of(rng, DTYPES)
    elif way == "strides":
        value = one_of(
            rng,
            (
                (0,) * target.ndim,
                target.strides[::-1],
                tuple(2 * n for n in target.strides),
                tuple(n + 1 for n in target.strides),
            ),
        )
    elif way == "resize":
        value = one_of(rng, ((1,), (target.size * 1000,), (), (0, *shape[1:])))
        if not (free and target.flags.owndata and target.base is None):
            way = "fill"
    if way == "fill":
        value = one_of(rng, (np.nan, 1, 1e4))
        effect = functools.partial(target.__setitem__, Ellipsis, value)
    elif way == "resize":
        effect = functools.partial(target.resize, value, refcheck=False)
    elif way == "flags":
        value = False
        effect = functools.partial(target.setflags, write=False)
    else:
        effect = functools.partial(setattr, target, way, value)
    words = f"{target.dtype}{target.shape} strides {target.strides}: {value} by {way}"
    return quietly(effect), words


# ---- the arrays of a plan, after it


def run_plan(rng, verbose):
    """Change the arrays of a plan between its calls."""
    made = calls.make_plan(rng)
    options = dict(made.options)
    names = ("query", "key", "value", "mask", "bias")
    views = dict(zip(names, (x.view() for x in made.arguments), strict=False))
    views |= {name: options[name].view() for name in names if name in options}
    plan = attnpy.Plan(*made.arguments, **options)
    plan()
    targets = [*names, "q_offset", "kv_lengths", "output", "weights", "lse"]
    numbers_of = {n: getattr(plan, n).view() for n in targets[5:7] if n in options}
    results = [getattr(plan, n) for n in targets[7:] if getattr(plan, n) is not None]
    results = [x.view() for x in results]
    done = []
    for _ in range(1 + int(rng.integers(3))):
        name = one_of(rng, targets)
        target = getattr(plan, name)
        if target is not None and target.size:
            effect, words = change_array(rng, target, False)
            done.append(f"{name} {words}")
            effect()
    if verbose:
        print(calls.describe(made))
        print("changes:", *done, sep="\n  ", flush=True)
    good, _ = call(plan)
    if not good:
        return "errors"
    actual = b"".join(x.tobytes() for x in results)
    now = {name: getattr(plan, name) for name in names}
    for arrays in (views, {name: now[name] for name in views}):
        more = {name: options[name] for name in options if name not in names}
        right, expected = call(attnpy.attention, **{**more, **arrays, **numbers_of})
        if right:
            expected = expected if isinstance(expected, tuple) else (expected,)
            pairs = zip(expected, results, strict=True)
            if b"".join(x.tobytes() for x in expected) == actual or all(
                equal(one, other) for one, other in pairs
            ):
                return "changed"
    words = " ".join(sorted({f"{x.split()[0]} by {x.split()[-1]}" for x in done}))
    raise Finding(f"Plan: neither before nor after {words}", "\n".join(done))
