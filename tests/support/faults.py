"""Calls of all entry points, in each of which another allocation fails.

main() runs in a process of its own, in which faults.c is preloaded and Python takes all
its memory from malloc: then the memory of the core, of Python's objects and of
NumPy's arrays comes from one place. Run by test_faults.py.
"""

import contextlib
import ctypes
import gc
import itertools
import json
import os
import sys

import numpy as np

import attnpy
from attnpy import _attnpy, positions
from attnpy._linear import linear
from attnpy.blocks import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    RMSNorm,
    activation_vjp,
    gelu,
)
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.models import BertEncoder, CausalDecoder, EncoderDecoder
from attnpy.norms import norm_arguments
from support.arrays import byte_swapped, normal
from support.comparisons import assert_same_bits

FOREVER = 2**40


class Shim:
    """What faults.c exports: calls with faults, and a count of blocks."""

    def __init__(self):
        library = ctypes.PyDLL(None)
        self.faults_call = library.faults_call
        self.faults_call.restype = ctypes.py_object
        self.faults_call.argtypes = (
            *(ctypes.py_object, ctypes.c_int),
            *[ctypes.c_long] * 4,
            ctypes.POINTER(ctypes.c_long),
        )
        self.blocks = library.faults_blocks
        self.blocks.restype = ctypes.c_long
        self.counts = (ctypes.c_long * 4)()

    def call(self, function, kind, first):
        """Call with allocations from this one on failing."""
        n = FOREVER if kind == "from one on" else 1
        only_extension = kind != "any"
        return self.faults_call(function, only_extension, first, n, 0, 0, self.counts)

    def call_alone(self, function, first, n):
        """Call with this many threads, from this one on, that cannot be made."""
        return self.faults_call(function, False, 0, 0, first, n, self.counts)

    @property
    def n_failed(self):
        """How many allocations and threads failed in the last call."""
        return self.counts[1] + self.counts[3]


class Case:
    """A call, the arrays and caches that it takes, and what it returns."""

    def __init__(self, call, arrays=(), caches=()):
        self.call, self.arrays, self.caches = call, list(arrays), list(caches)
        self.first = [array.copy() for array in self.arrays]
        self.lengths = [cache.lengths.copy() for cache in self.caches]
        self.call()  # imports what it needs
        self.reset()
        self.expected = frozen(self.call())

    def reset(self):
        """Everything as it was before the first call."""
        for array, first in zip(self.arrays, self.first, strict=True):
            array[...] = first
        for cache, lengths in zip(self.caches, self.lengths, strict=True):
            cache.truncate(lengths)

    def counts(self):
        """The reference counts of what is passed to the call."""
        objects = [*self.arrays, *self.caches, self.call]
        return [sys.getrefcount(x) for x in objects]

    def state(self):
        """What a call that fails must leave alone."""
        return [
            *(array.tobytes() for array in self.arrays),
            *(cache.lengths.tolist() for cache in self.caches),
            *(rows(cache.key, cache) for cache in self.caches),
            *(rows(cache.value, cache) for cache in self.caches),
        ]


def rows(array, cache):
    """The bytes of what each sequence has in a cache."""
    lengths = cache.lengths.tolist()
    return [x[:, :n].tobytes() for x, n in zip(array, lengths, strict=True)]


def frozen(results):
    """A copy of arrays, of what has parameters, or of sequences of them."""
    if isinstance(results, (tuple, list)):
        return tuple(map(frozen, results))
    if isinstance(results, KVCache):
        return results.key.copy(), results.value.copy(), results.lengths.copy()
    if hasattr(results, "parameters"):
        return frozen(list(results.parameters().values()))
    return np.array(results)


def sweep(shim, name, case, kind, step=1):
    """Fail one allocation after the other, until a call has none left to fail.

    Returns how many failed, and what was wrong. Python and NumPy lose blocks where some
    of their own allocations fail, return without an error, which Python then calls a
    SystemError, or crash: NumPy 2.4 in `a * b[..., None]`. So where the extension need
    have no part in it, calls are made in children, which may crash, and only results
    and what was passed are looked at.
    """
    findings = []
    for first in itertools.count(step=step):
        if kind == "any":
            n_failed, found = in_child(lambda: fail(shim, name, case, kind, first))  # noqa: B023
        else:
            n_failed, found = fail(shim, name, case, kind, first)
        findings += found
        if n_failed == 0:
            return first, findings


def in_child(function):
    """What a function returns in a child of fork; (1, []) if it crashes there."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    return (1, []) if os.WIFSIGNALED(status) else json.loads(text)


def fail(shim, name, case, kind, first):
    """Call with a fault: how many allocations failed, and what was wrong."""
    findings = []
    case.reset()
    state, counts = case.state(), case.counts()
    where = f"{name}, allocation {first}"
    try:
        result = shim.call(case.call, kind, first)
    except MemoryError:
        if case.state() != state:
            findings.append(f"{where}: arguments have changed")
    except BaseException as error:
        if kind != "any" or not isinstance(error, SystemError):
            findings.append(f"{where}: {error!r} from {error.__context__!r}")
    else:
        if not same(result, case.expected):
            findings.append(f"{where}: other bits")
        del result
    n_failed = shim.n_failed
    if kind != "any" and n_failed > 0:
        if case.counts() != counts:
            findings.append(f"{where}: references {counts}, now {case.counts()}")
        if lost := lost_blocks(shim, case, kind, first):
            findings.append(f"{where}: {lost} blocks lost by 10 calls")
    case.reset()
    if not same(case.call(), case.expected):
        findings.append(f"{where}: other bits in the next call")
    return n_failed, findings


def lost_blocks(shim, case, kind, first):
    """How many blocks are lost by ten calls with a fault, if each loses some."""

    def repeat(times):
        for _ in range(times):
            case.reset()
            with contextlib.suppress(MemoryError):
                shim.call(case.call, kind, first)

    repeat(2)
    for _ in range(4):  # the lists of free blocks that Python and NumPy keep fill up
        before = shim.blocks()
        repeat(10)
        gc.collect()
        lost = shim.blocks() - before
        if lost < 10:
            return 0
        repeat(20)
    return lost


def same(result, expected):
    """Are these the bits expected?"""
    try:
        assert_same_bits(frozen(result), expected)
    except AssertionError:
        return False
    return True


# ---- The entry points ----------------------------------------------------------------


def attention_cases():
    query, key, value = (normal(2, 2, 40, 24, seed=i) for i in range(3))
    mask = normal(40, 40) > 0
    bias = normal(2, 2, 40, 40, dtype="float64", seed=5)
    half = [x.astype(np.float16) for x in (query, key, value)]
    lists = [np.rint(4 * x[0, 0, :5, :3]).astype(int).tolist() for x in half]
    wide = [normal(1, 70, 2100, dtype="float64", seed=i) for i in range(3)]
    sinks, lengths = normal(2), np.array([30, 40])
    out, kept = np.zeros_like(query), query.copy()

    def attend(*arrays, using=(), **options):
        return Case(
            lambda: attnpy.attention(*arrays, **options),
            [x for x in (*arrays, *using) if isinstance(x, np.ndarray)],
        )

    yield "plain", attend(query, key, value, num_threads=1)
    yield (
        "mask, bias, sinks",
        attend(
            *(query, key, value),
            mask=mask,
            bias=byte_swapped(bias),
            sinks=sinks,
            using=(mask, bias, sinks),
            softcap=3,
            scale=np.float32(0.3),
        ),
    )
    yield (
        "weights, lse, lengths, offsets",
        attend(
            *(query, key, value),
            causal=True,
            window=[9, None],
            kv_lengths=lengths,
            q_offset=[3, 4],
            return_weights=True,
            return_lse=True,
            using=(lengths,),
        ),
    )
    yield "out", attend(query, key, value, out=out, causal="top_left", using=(out,))
    yield "out over query", attend(kept, key, value, out=kept, return_lse=True)
    yield "16-bit", attend(*half, mask=mask[:1].tolist(), return_weights=True)
    yield "mixed dtypes, swapped", attend(half[0], byte_swapped(key), value)
    yield "broadcast", attend(query[:1], key[1], value[:1, ..., ::2])
    yield (
        "transposed",
        attend(query.T.copy().T, key[..., ::-1], byte_swapped(value[:, ::-1])),
    )
    yield "lists", attend(*lists, mask=[[True] * 5], bias=[[0.5] * 5], kv_lengths=4)
    yield "memory of its own", attend(*wide, num_threads=2, causal=True)
    with contextlib.suppress(ImportError):
        pairs = [
            x.astype(__import__("ml_dtypes").bfloat16) for x in (query, key, value)
        ]
        yield "bfloat16", attend(*pairs, causal=True)
    masked = np.ma.masked_array(bias[0])

    def refuse():
        try:
            attnpy.attention(query, key, value, bias=[masked])
        except TypeError:
            return 1
        return 0

    yield "a masked array", Case(refuse, [query, masked])
    yield "one query", attend(query[0, 0, 0], key[0, :1], value[0, :1], return_lse=True)


def gradient_cases():
    query, key, value = (normal(2, 2, 40, 24, seed=i) for i in range(3))
    grad, mask = normal(2, 2, 40, 24, seed=7), normal(40, 40) > 0
    bias, sinks = normal(40, 40, dtype="float64", seed=5), normal(2)
    output, lse = attnpy.attention(query, key, value, return_lse=True)
    half = [x[..., :5].astype(np.float16) for x in (grad, query, key, value)]

    def differentiate(*arrays, using=(), **options):
        return Case(lambda: attnpy.attention_vjp(*arrays, **options), [*arrays, *using])

    yield "plain", differentiate(grad, query, key, value)
    yield (
        "everything",
        differentiate(
            *(grad, query, key, value),
            using=(mask, bias, sinks, lse),
            mask=mask,
            bias=bias,
            sinks=sinks,
            grad_lse=lse,
            wanted=("query", "key", "value", "bias", "sinks"),
            num_threads=2,
        ),
    )
    yield (
        "output and LSE",
        differentiate(
            *(byte_swapped(grad), query, key[1], value[:1]),
            using=(output, lse),
            output=output,
            lse=byte_swapped(lse),
        ),
    )
    yield "16-bit", differentiate(*half, causal=True)


def function_cases():
    x, y = normal(3, 30, 12), normal(3, 30, 12, seed=1)
    weight, bias = normal(12, 16), normal(16, dtype="float64")
    query, key, value = (normal(2, 30, 12, seed=i) for i in range(3))
    plan = attnpy.Plan(query, key, value, kv_lengths=20, return_weights=True)
    layer_norm, rms_norm = LayerNorm(12), RMSNorm(12, dtype=np.float16)
    rotary = positions.Rotary(12, scaling=YARN)
    half = x.astype(np.float16)

    def new_plan():
        return attnpy.Plan(query, key, value)()

    yield "Plan()", Case(new_plan, [query, key, value])
    options = {"kv_lengths": [20], "return_weights": True, "return_lse": True}
    batch = query[np.newaxis]
    yield (
        "Plan(), options",
        Case(lambda: attnpy.Plan(batch, key, value, **options)(), [query, key, value]),
    )
    yield "a plan", Case(plan, [query, key, value])
    yield (
        "linear",
        Case(lambda: linear(x, weight, bias, activation="gelu"), [x, weight, bias]),
    )
    yield (
        "linear, converted",
        Case(lambda: linear(byte_swapped(half), weight.tolist()), [half, weight]),
    )
    yield "LayerNorm", Case(lambda: layer_norm(x, y), [x, y])
    yield "RMSNorm", Case(lambda: rms_norm(half), [half])
    yield "activation", Case(lambda: gelu(half), [half])
    yield (
        "a norm's gradients",
        Case(
            lambda: _attnpy.normalize_vjp(
                byte_swapped(y), x, norm_arguments(layer_norm, "")
            ),
            [x, y],
        ),
    )
    yield (
        "an RMS norm's gradients, converted",
        Case(
            lambda: _attnpy.normalize_vjp(half, x, norm_arguments(rms_norm, ""))[:2],
            [x, half],
        ),
    )
    yield (
        "an activation's gradient",
        Case(lambda: activation_vjp(y[..., ::2], half[..., ::2], "gelu"), [y, half]),
    )
    yield (
        "a gate's gradient",
        Case(
            lambda: _attnpy.activate_vjp(x, half, "silu", byte_swapped(y)), [x, half, y]
        ),
    )
    yield "rotary", Case(lambda: rotary(x, [[1]] * 3), [x])


def array_cases():
    outputs = [normal(2, 30, 12, seed=i) for i in range(2)]
    lses, table = [normal(2, 30, seed=i) for i in range(2)], normal(32, 2)
    rotary, x = positions.Rotary(12, scaling=YARN), normal(2, 3, 12, dtype="float16")
    query, key = normal(2, 70, 12), normal(2, 90, 12)
    state = attnpy.attend_partial(query, key, key)
    yield (
        "a part of the keys",
        Case(
            lambda: attnpy.attend_partial(query, key, key, state).totals,
            [query, key, state.totals],
        ),
    )
    yield "all parts", Case(lambda: state.finish(sinks=[1, 2]), [state.totals])
    yield "statistics", Case(lambda: attnpy.statistics(query, key)[:5], [query, key])
    yield "merge", Case(lambda: attnpy.merge(outputs, lses), [*outputs, *lses])
    yield "tables", Case(lambda: rotary.tables([5, 6, 7]))
    yield "turned apart", Case(lambda: rotary(x.T.copy().T), [x])
    yield "sinusoidal", Case(lambda: positions.sinusoidal(9, 12))
    yield "alibi", Case(lambda: positions.alibi_bias(2, 9, 12, q_offset=[1, 2]))
    yield "T5", Case(lambda: positions.relative_bias(table, 9, 12), [table])


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def layer_cases():
    rng = np.random.default_rng(0)
    x, context = normal(2, 9, 24), normal(2, 7, 16, dtype="float64")
    mask = normal(2, 9, 9) > -1
    mha = MultiHeadAttention(24, 4, bias=True, rng=rng)
    grouped = MultiHeadAttention(24, 4, 8, num_kv_heads=2, rng=rng)
    grouped.q_norm, grouped.k_norm = RMSNorm(8), LayerNorm(8, dtype=np.float64)
    cross = MultiHeadAttention(24, 4, context_dim=16, rng=rng)
    half = MultiHeadAttention(24, 4, dtype=np.float16, rng=rng)
    single = SelfAttention(24, 6, bias=True, rng=rng)
    rotary = positions.Rotary(8)
    memory = cross.project_context(context)
    state = {name: array.copy() for name, array in mha.state_dict().items()}

    def cached(name, layer, dtype, size, n_past=5, **options):
        growable = name == "cache that grows"
        cache = KVCache(2, 2 if layer is grouped else 4, 12, size, dtype=dtype)
        cache.growable = growable
        past = normal(2, cache.num_kv_heads, n_past, size)
        cache.append(past, past, lengths=[n_past, 2])

        def call():
            return layer(x[:, :4], cache=cache, causal=True, **options)

        return name, Case(call, [x, *layer.parameters().values()], [cache])

    yield (
        "layer",
        Case(
            lambda: mha(x, mask=mask[:, None], return_weights=True),
            [x, mask, *mha.parameters().values()],
        ),
    )
    yield (
        "grouped, norms, rotary",
        Case(
            lambda: grouped(x, rotary=rotary, causal=True, kv_lengths=[9, 4]),
            [x, *grouped.parameters().values()],
        ),
    )
    yield (
        "cross-attention",
        Case(lambda: cross(x, context, return_weights=True), [x, context]),
    )
    apart = MultiHeadAttention(
        24, 4, num_kv_heads=2, context_dim=16, value_dim=8, rng=rng
    )
    values = normal(2, 7, 8)
    yield (
        "keys and values apart, some heads",
        Case(
            lambda: apart(x, context, values, return_weights=True, heads=[3, 0]),
            [x, context, values],
        ),
    )
    yield "context in a cache", Case(lambda: cross(x, memory), [x], [memory])
    yield "project_context", Case(lambda: cross.project_context(context), [context])
    yield (
        "16-bit, mean of weights",
        Case(lambda: half(x.tolist(), return_weights=True, average_weights=True), [x]),
    )
    yield "one head", Case(lambda: single(x, mask=mask, return_weights=True), [x, mask])
    yield cached("cache", mha, np.float32, 6)
    yield cached("cache, all", grouped, np.float32, 8, rotary=rotary, kv_lengths=[4, 1])
    yield cached("cache to be converted", grouped, np.dtype(">f4"), 8)
    yield cached("cache of 16 bits", mha, np.float16, 6)
    means = {"return_weights": True, "average_weights": True}
    yield cached("cache, mean of weights", mha, np.float32, 6, **means)
    yield (
        "new layer",
        Case(lambda: MultiHeadAttention(8, 2, rng=np.random.default_rng(0))),
    )
    yield (
        "load_state_dict",
        Case(lambda: mha.load_state_dict(state), [*mha.parameters().values()]),
    )
    keys = normal(2, 4, 3, 6)
    cache = KVCache(2, 4, 12, 6, dtype=np.float16)

    def append():
        cache.append(keys, keys, lengths=[3, 1])
        return keys

    yield "append", Case(append, [keys], [cache])
    yield "copy", Case(lambda: cache.copy(), [keys], [cache])

    growable = KVCache(2, 4, 2, 6, growable=True)

    def grow():
        cache = growable.copy()
        cache.append(keys, keys)
        cache.append(keys, keys)
        return cache

    yield "growth", Case(grow, [keys], [growable])


def block_cases():
    rng = np.random.default_rng(0)
    x, context = normal(2, 5, 16), normal(2, 7, 16)
    network = FeedForward(16, 32, activation="swiglu", rng=rng)
    encoder_layer = EncoderLayer(16, 2, 32, rng=rng)
    encoder = Encoder(2, 16, 2, 32, norm_first=True, norm="rms", rng=rng)
    decoder_layer = DecoderLayer(16, 2, 32, rng=rng)
    decoder = Decoder(2, 16, 2, 32, norm_first=True, rng=rng)
    caches = decoder.new_caches(2, 12)
    projected = decoder.project_context(context)
    decoder(x, projected, caches=caches)
    cache = decoder_layer.new_cache(2, 12)

    def step():
        return decoder(x[:, :2], projected, caches=caches)

    yield "feed-forward", Case(lambda: network(x), [x])
    yield "encoder layer", Case(lambda: encoder_layer(x, kv_lengths=[5, 3]), [x])
    yield "encoder", Case(lambda: encoder(x), [x])
    more = {"return_weights": True, "return_hidden_states": True}
    yield "encoder, all outputs", Case(lambda: encoder(x, **more), [x])
    yield (
        "decoder layer",
        Case(lambda: decoder_layer(x, context, cache=cache), [x, context], [cache]),
    )
    yield "decoder", Case(step, [x], [*caches, *projected])

    def look():
        return decoder(x[:, :2], projected, caches=caches, return_weights=True, heads=1)

    yield "decoder's weights", Case(look, [x], [*caches, *projected])


def model_cases():
    rng = np.random.default_rng(0)
    bert = BertEncoder(1, 16, 2, 32, vocab_size=20, max_length=12, rng=rng)
    gpt = CausalDecoder(1, 16, 2, 32, vocab_size=20, max_length=12, rng=rng)
    llama = CausalDecoder(
        *(1, 16, 2, 32),
        vocab_size=20,
        rotary=positions.Rotary(8, scaling=YARN),
        num_kv_heads=1,
        norm="rms",
        activation="swiglu",
        bias=False,
        qk_norm=True,
        tied=False,
        rng=rng,
    )
    ids = np.arange(8).reshape(2, 4)
    caches = llama.decoder.new_caches(2, 9)
    llama(ids, caches=caches)
    yield "BertEncoder", Case(lambda: bert(ids, token_mask=ids != 7), [ids])
    yield "CausalDecoder", Case(lambda: gpt.logits(gpt(ids, lengths=[4, 2])), [ids])
    yield (
        "CausalDecoder, caches",
        Case(lambda: llama(ids, caches=caches), [ids], caches),
    )
    both = EncoderDecoder(1, 16, 2, 32, vocab_size=20, num_buckets=4, start=0, rng=rng)
    yield "EncoderDecoder", Case(lambda: both(ids, ids, lengths=[4, 2]), [ids])
    look = {"return_weights": True, "return_hidden_states": True, "layers": 0}
    yield "weights of a batch", Case(lambda: bert(ids, lengths=[4, 2], **look), [ids])


def generation_cases():
    rng = np.random.default_rng(0)
    ids = np.arange(8).reshape(2, 4)
    gpt = CausalDecoder(1, 16, 2, 32, vocab_size=20, max_length=12, rng=rng)
    yield "generate", Case(lambda: gpt.generate([1, 2], 2))
    both = EncoderDecoder(1, 16, 2, 32, vocab_size=20, num_buckets=4, start=0, rng=rng)
    yield "search", Case(lambda: both.generate(ids, 2, num_beams=2), [ids])


def thread_cases():
    query, key, value = (normal(8, 40, 24, seed=i) for i in range(3))
    x, weight = normal(3, 200, 24), normal(24, 48)
    mha, norm = MultiHeadAttention(24, 4, rng=np.random.default_rng(0)), LayerNorm(24)
    plan = attnpy.Plan(query, key, value, num_threads=9)
    rotary = positions.Rotary(24)
    yield "attention", lambda: attnpy.attention(query, key, value, num_threads=9)
    yield "a plan", plan
    yield "layer", lambda: mha(x, num_threads=9)
    yield "linear", lambda: linear(x, weight, num_threads=9)
    yield "LayerNorm", lambda: norm(x)
    yield "rotary", lambda: rotary(x)


# The cases, the kinds of faults, and every which allocation of any kind.
ALL = "one", "from one on", "any"
GROUPS = {
    "attention": (attention_cases, ALL, 1),
    "gradients": (gradient_cases, ALL, 1),
    "functions": (function_cases, ALL, 1),
    "arrays": (array_cases, ("any",), 3),
    "layers": (layer_cases, ALL, 7),
    "blocks": (block_cases, ("one", "any"), 11),
    "models": (model_cases, ("one", "any"), 23),
    "generation": (generation_cases, ("one", "any"), 23),
}


def main(group):
    """Fail the allocations of a group's calls, and print what is wrong."""
    gc.disable()
    shim = Shim()
    attnpy.set_num_threads(1)
    _attnpy.set_work_per_thread(1.0)
    find_bfloat16(shim)
    attnpy.attention(*[np.ones((4, 40, 8), np.float32)] * 3, num_threads=2)
    cases, kinds, step = GROUPS[group]
    for name, case in cases():
        gc.freeze()  # what is there is no garbage: looking for some takes no time
        counts = []
        for kind in kinds:
            n, findings = sweep(shim, name, case, kind, step if kind == "any" else 1)
            counts.append(n)
            for finding in findings:
                print(f"FOUND {kind}: {finding}", flush=True)
        print(*counts, name, sep=", ", flush=True)


def find_bfloat16(shim):
    """The first call with bfloat16 looks for the dtype, which takes memory."""
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return
    x = np.ones((2, 3), bfloat16)
    for first in itertools.count():
        with contextlib.suppress(MemoryError):
            shim.call(lambda: attnpy.attention(x, x, x), "one", first)
        if shim.n_failed == 0:
            return


def main_threads():
    """Fail the creation of threads, in children of a fork, which have none yet."""
    shim = Shim()
    attnpy.set_num_threads(9)
    _attnpy.set_work_per_thread(1.0)
    for name, call in thread_cases():
        expected = frozen(call())
        for first, n in itertools.product((0, 1, 5), (1, FOREVER)):
            pid = os.fork()
            if pid == 0:
                good = same(shim.call_alone(call, first, n), expected)
                good = good and (shim.n_failed > 0 or first > 0)
                good = good and same(call(), expected)
                os._exit(0 if good else 1)
            status = os.waitpid(pid, 0)[1]
            if status != 0:
                print(f"FOUND {name}, thread {first}, {n}: {status}", flush=True)
        print(name, flush=True)
