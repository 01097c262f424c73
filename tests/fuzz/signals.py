"""Signals at random moments during calls: of functions, layers with caches, models.

A handler raises, returns or makes a call of its own. What comes of the interrupted call
must be the handler's exception, or the bits of an undisturbed one; caches are as they
were before it or as they are after it, all of them alike; and the same call gives those
bits afterwards.
"""

import functools
import signal
import time
from dataclasses import dataclass, field

import numpy as np
from support.families import DECODERS

import attnpy
from attnpy import blocks
from attnpy._linear import linear
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention
from attnpy.models import CausalDecoder
from fuzz import calls
from fuzz.changing import same
from fuzz.findings import Finding
from fuzz.values import maybe, one_of

N_CALLS = 8  # of a case, each disturbed at another moment


class Mine(Exception):
    """What a handler raises, beside KeyboardInterrupt."""


@dataclass
class Case:
    """A call that gives the same bits each time its caches are as they were before."""

    name: str
    call: object
    caches: list = field(default_factory=list)


class Disturbance:
    """Does something at each signal while a call runs, and nothing before or after."""

    def __init__(self, rng):
        self.kind = one_of(
            rng, ("raises", "raises", "raises again", "returns", "calls")
        )
        self.error = one_of(rng, (Mine, KeyboardInterrupt))
        self.n_left = self.n_times = 3 if self.kind == "raises again" else 1
        self.active = False
        self.arrays = numbers(rng, 3, 2, 40, 8)
        self.expected = attnpy.attention(*self.arrays)
        self.wrong = False

    def __call__(self, number, frame):
        own = Disturbance.during.__code__, Disturbance.__call__.__code__
        if not self.active or frame.f_code in own:
            return  # the call has not begun, or has ended, or this runs already
        if self.kind == "calls":
            self.active = False  # no call during a call during a call ...
            result = attnpy.attention(*self.arrays, num_threads=2)
            self.wrong = self.wrong or not same(result, self.expected)
            self.active = True
        elif self.kind != "returns" and self.n_left > 0:
            self.n_left -= 1
            raise self.error

    def during(self, call, delay):
        """(the result, None), or (None, the exception)."""
        self.n_left = self.n_times
        again = 0.0 if self.kind == "raises" else 0.0003
        try:
            self.active = True
            signal.setitimer(signal.ITIMER_REAL, delay, again)
            outcome = call(), None
            self.active = False
        except self.error as error:
            outcome = None, error.with_traceback(None)
        finally:
            self.active = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return outcome


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    case = one_of(rng, MAKERS)(rng)
    disturbance = Disturbance(rng)
    if verbose:
        print(f"{case.name}: the handler {disturbance.kind}", flush=True)
    before = [cache.lengths for cache in case.caches]
    case.call()  # makes what is made once, so that the next one's time is typical
    reset(case, before)
    start = time.perf_counter()
    expected = case.call()
    seconds = time.perf_counter() - start
    after = contents(case)
    previous = signal.signal(signal.SIGALRM, disturbance)
    n_raised = 0
    try:
        for _ in range(N_CALLS):
            reset(case, before)
            delay = max(1e-6, seconds * rng.uniform(0, 1.1))
            result, error = disturbance.during(case.call, delay)
            n_raised += error is not None
            check(case, result, error, expected, before, after)
    finally:
        signal.signal(signal.SIGALRM, previous)
    if disturbance.wrong:
        raise Finding(f"{case.name}: a call in a handler has other bits")
    return "raised" if n_raised else "completed"


def check(case, result, error, expected, before, after):
    """Judge a call, its caches, and the call after it."""
    if error is None and not same(result, expected):
        raise Finding(
            f"{case.name}: other bits after a signal", f"{result}\n{expected}"
        )
    lengths = [cache.lengths.tolist() for cache in case.caches]
    complete = lengths == [cache.lengths.tolist() for cache in after]
    if error is None and not complete:
        raise Finding(f"{case.name}: an incomplete cache after a call", f"{lengths}")
    if not complete and lengths != [n.tolist() for n in before]:
        raise Finding(f"{case.name}: caches of other lengths", f"{lengths}")
    if complete and not all(map(same_tokens, case.caches, after)):
        raise Finding(f"{case.name}: other numbers in a cache")
    reset(case, before)
    if not same(case.call(), expected):
        raise Finding(f"{case.name}: other bits in the call after an interrupted one")
    if not all(map(same_tokens, case.caches, after)):
        raise Finding(f"{case.name}: other numbers in the cache of the next call")


def reset(case, lengths):
    """Forget what was appended, and put something else where it was."""
    for cache, n in zip(case.caches, lengths, strict=True):
        cache.truncate(n)
        for b, end in enumerate(n):
            cache._key[b, :, end:] = cache._value[b, :, end:] = np.nan


def contents(case):
    return [cache.copy() for cache in case.caches]


def same_tokens(cache, other):
    return all(
        same(cache.key[b, :, :n], other.key[b, :, :n])
        and same(cache.value[b, :, :n], other.value[b, :, :n])
        for b, n in enumerate(cache.lengths)
    )


# ---- Calls ---------------------------------------------------------------------------


def numbers(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def threads(rng):
    return {"num_threads": one_of(rng, (1, 2, 3))}


def attention_arrays(rng):
    n, n_keys = (one_of(rng, (1, 40, 300)), one_of(rng, (40, 300, 1500)))
    query = numbers(rng, 1, 4, n, 32)
    return query, *numbers(rng, 2, 1, 4, n_keys, 32)


def make_attention(rng):
    arrays, extra = attention_arrays(rng), {"causal": bool(maybe(rng)), **threads(rng)}
    for name in ("return_weights", "return_lse"):
        extra[name] = bool(maybe(rng, 0.3))
    return Case("attention", functools.partial(attnpy.attention, *arrays, **extra))


def make_gradients(rng):
    arrays, extra = attention_arrays(rng), {"causal": bool(maybe(rng)), **threads(rng)}
    arrays = (numbers(rng, *arrays[0].shape), *arrays)
    call = functools.partial(attnpy.attention_vjp, *arrays, **extra)
    return Case("attention_vjp", call)


def make_plan(rng):
    plan = attnpy.Plan(*attention_arrays(rng), **threads(rng))
    return Case("Plan", lambda: plan().copy())


def make_linear(rng):
    x, weight = numbers(rng, one_of(rng, (1, 30, 300)), 256), numbers(rng, 256, 256)
    return Case("linear", functools.partial(linear, x, weight, **threads(rng)))


def make_norm(rng):
    norm = one_of(rng, (blocks.LayerNorm, blocks.RMSNorm))(128)
    x = numbers(rng, one_of(rng, (1, 100, 2000)), 128)
    return Case("norm", functools.partial(norm, x))


def make_small(rng):
    """A call of any function, of some microseconds, the parts in Python above all."""
    made = one_of(rng, calls.MAKERS)(rng)
    caches = [x for x in made.options.values() if isinstance(x, KVCache)]
    if not made.right or caches or made.name == "append" or "out" in made.options:
        return make_norm(rng)
    return Case(made.name, made.run)


def filled(rng, caches, append):
    """Caches with some tokens, of which there may be room for no more."""
    n_past = one_of(rng, (0, 3, 8))
    if n_past:
        append(n_past)
    return caches


def make_append(rng):
    cache = KVCache(2, 3, 8, 16, growable=True)
    past, new = one_of(rng, (1, 8)), one_of(rng, (1, 30))
    cache.append(numbers(rng, 2, 3, past, 16), numbers(rng, 2, 3, past, 16))
    key, value = numbers(rng, 2, 2, 3, new, 16)
    return Case("append", functools.partial(cache.append, key, value), [cache])


def make_layer(rng):
    layer = MultiHeadAttention(64, 4, rng=rng)
    cache = KVCache(2, 4, 8, 16, growable=True)
    filled(rng, [cache], lambda n: layer(numbers(rng, 2, n, 64), cache=cache))
    x = numbers(rng, 2, one_of(rng, (1, 30, 200)), 64)
    call = functools.partial(layer, x, cache=cache, causal=True, **threads(rng))
    return Case("layer", call, [cache])


def make_decoder(rng):
    model = CausalDecoder.from_config(one_of(rng, tuple(DECODERS.values())), rng=rng)
    caches = model.decoder.new_caches(2, 8, growable=True)
    filled(rng, caches, lambda n: model(np.ones((2, n), int), caches=caches))
    ids = rng.integers(0, 9, (2, one_of(rng, (1, 4))))
    call = functools.partial(model, ids, caches=caches, **threads(rng))
    return Case("decoder", call, caches)


def make_generate(rng):
    model = CausalDecoder.from_config(one_of(rng, tuple(DECODERS.values())), rng=rng)
    ids = rng.integers(0, 9, (2, 4))
    call = functools.partial(model.generate, ids, 3, **threads(rng))
    return Case("generate", call)


def make_model_output(rng):
    model = CausalDecoder.from_config(one_of(rng, tuple(DECODERS.values())), rng=rng)
    caches = model.new_caches(2, 8, growable=True)
    filled(rng, caches, lambda n: model(np.ones((2, n), int), caches=caches))
    ids = rng.integers(0, 9, (2, one_of(rng, (1, 4))))
    asked = {"return_weights": True, "return_hidden_states": True}
    call = functools.partial(model, ids, caches=caches, **asked, **threads(rng))
    return Case("model output", call, caches)


MAKERS = (
    make_attention,
    make_gradients,
    make_plan,
    make_linear,
    make_norm,
    make_small,
    make_append,
    make_append,
    make_layer,
    make_layer,
    make_decoder,
    make_decoder,
    make_generate,
    make_model_output,
)
