"""Signals at random moments during calls: of functions, layers with caches, models.

A handler raises, returns or makes a call of its own. What comes of the interrupted call
must be the handler's exception, or the bits of an undisturbed one; caches are as they
were before it or as they are after it, all of them alike; and the same call gives those
bits afterwards. Texts of a ContinuousBatch, whose every call is disturbed, have the
tokens that they have alone; no page is lost.
"""

import functools
import gc
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
from attnpy.models import CausalDecoder, ContinuousBatch
from attnpy.pages import PagedKVCache, PagePool
from attnpy.positions import Rotary
from fuzz import calls
from fuzz.changing import same
from fuzz.findings import Finding
from fuzz.values import maybe, one_of

N_CALLS = 8  # of a case, each disturbed at another moment
N_BATCH_CALLS = 24  # of a batch


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
            error.__context__ = None  # it has a traceback, too, whose frames have pages
            outcome = None, error.with_traceback(None)
        finally:
            self.active = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return outcome


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    if maybe(rng, 0.15):
        return run_batch(rng, verbose)
    case = one_of(rng, MAKERS)(rng)
    disturbance = Disturbance(rng)
    if verbose:
        print(f"{case.name}: the handler {disturbance.kind}", flush=True)
    before, free = [cache.lengths for cache in case.caches], n_free(case)
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
            if n_free(case) != free:
                raise Finding(f"{case.name}: other pages are free", f"{n_free(case)}")
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
        if isinstance(cache, PagedKVCache):
            for array in (cache.pool.key, cache.pool.value):
                array[cache.pool._free] = np.nan if array.dtype.kind == "f" else 99
            continue
        for b, end in enumerate(n):
            cache._key[b, :, end:] = cache._value[b, :, end:] = np.nan


def n_free(case):
    """How many pages no cache has, which the call's own objects have left."""
    pools = [cache.pool for cache in case.caches if isinstance(cache, PagedKVCache)]
    if pools and any(pool.num_free < pool.num_pages for pool in pools):
        gc.collect()
    return [pool.num_free for pool in pools]


@dataclass
class Contents:
    """What a cache has, in arrays of its own."""

    lengths: np.ndarray
    key: np.ndarray
    value: np.ndarray


def contents(case):
    return [
        Contents(cache.lengths, np.array(cache.key), np.array(cache.value))
        for cache in case.caches
    ]


def same_tokens(cache, other):
    return all(
        same(cache.key[b, :, :n], other.key[b, :, :n])
        and same(cache.value[b, :, :n], other.value[b, :, :n])
        for b, n in enumerate(cache.lengths)
    )


# ---- Texts that come and go ----------------------------------------------------------


def run_batch(rng, verbose):
    """Disturb the calls of a batch, and compare its texts with those alone."""
    model, n_pages = windowed_model(rng), int(rng.integers(6, 12))
    batch = ContinuousBatch(model, n_pages, prompt_tokens=one_of(rng, (3, 40, 300)))
    begin = rng.integers(0, 20, 150).tolist()
    prefix = batch.prefill(begin) if maybe(rng) else None
    disturbance = Disturbance(rng)
    if verbose:
        print(f"{batch}: the handler {disturbance.kind}", flush=True)
    wanted, texts, seconds, n_raised = {}, {}, {}, 0

    def add():
        number, seed = batch._next, int(rng.integers(99))
        ids = rng.integers(0, 20, one_of(rng, (1, 3, 130))).tolist()
        drawn = {} if maybe(rng) else {"temperature": 1.0, "top_k": 9}
        own, n = (prefix if maybe(rng) else None), int(rng.integers(1, 9))

        def options():
            return {"rng": np.random.default_rng(seed), **drawn} if drawn else {}

        whole = (begin if own else []) + ids
        alone = model.stream(whole, n, stop=(1, 2), **options())
        wanted[number] = [*whole, *map(int, alone)]
        more = {"stop": (1, 2), "prefix": own, **options()}
        return "add", functools.partial(batch.add, ids, n, **more)

    def other():
        name = one_of(rng, ("evict", "fork", "cancel"))
        if not batch.numbers:
            return add()
        number = one_of(rng, batch.numbers)
        if name == "fork":
            wanted[batch._next] = wanted[number]
        return name, functools.partial(getattr(batch, name), number)

    def step():
        return "step", batch.step

    previous = signal.signal(signal.SIGALRM, disturbance)
    try:
        for _ in range(N_BATCH_CALLS):
            name, call = one_of(rng, (add, step, step, step, other))()
            delay = max(1e-6, seconds.get(name, 1e-3) * rng.uniform(0, 1.1))
            start = time.perf_counter()
            try:
                _, error = disturbance.during(call, delay)
            except MemoryError:  # more than all pages, or those of the prefix
                error = None
            else:
                n_raised += error is not None
            if error is None:
                seconds[name] = time.perf_counter() - start
            for text in (*batch._running, *batch._waiting):
                texts[text.number] = text
    finally:
        signal.signal(signal.SIGALRM, previous)
    prefix = call = text = None
    left = {number: texts[number] for number in batch.numbers}
    for _ in batch:
        pass
    for number, text in texts.items():
        tokens, expected = text.tokens, wanted[number]
        if tokens != expected[: None if number in left else len(tokens)]:
            raise Finding("ContinuousBatch: other tokens", f"{tokens}\n{expected}")
    texts, left, text = {}, {}, None
    gc.collect()
    free = [pool.num_free for pool in batch.pools]
    if free != [n_pages] * len(free) or disturbance.wrong:
        raise Finding("ContinuousBatch: pages are lost, or other bits", f"{free}")
    return "batch raised" if n_raised else "batch completed"


def windowed_model(rng):
    """A model of two layers, of which the first may see a window."""
    return CausalDecoder(
        2, 16, 2, 16, vocab_size=20, norm="rms", bias=False, rotary=Rotary(8),
        window=[one_of(rng, (None, (100, 0))), None], rng=rng,
    )  # fmt: skip


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
    if maybe(rng):
        kind = one_of(rng, ("float32", "float16", "int8"))
        cache = PagedKVCache(PagePool(9, 4, 16, dtype=kind), 2)
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


def make_in_pages(rng):
    """A model, of which one sequence's pages begin the others."""
    model = windowed_model(rng)
    begun = [PagedKVCache(pool, 1) for pool in model.new_page_pools(9)]
    n_past = one_of(rng, (100, 128, 150))
    model(np.ones((1, n_past), int), caches=begun)
    caches = [cache.fork([0, 0]) for cache in begun]
    ids = rng.integers(0, 20, (2, one_of(rng, (1, 4, 40))))
    call = functools.partial(model, ids, caches=caches, **threads(rng))
    return Case("in pages", call, caches)


def make_prefix(rng):
    model = windowed_model(rng)
    prefix, ids = model.prefill(rng.integers(0, 20, 150)), rng.integers(0, 20, (2, 4))
    more = {"draft": one_of(rng, (None, "lookup", model)), **threads(rng)}
    if maybe(rng):
        more["num_samples"] = 2
    call = functools.partial(model.generate, ids, 3, prefix=prefix, **more)
    return Case("generate with a prefix", call)


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
    make_in_pages,
    make_in_pages,
    make_prefix,
    make_model_output,
)
