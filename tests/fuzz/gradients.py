"""Gradients of every function that has some, against float64 and difference quotients.

`attention_vjp` with all its options and dtypes, and the `vjp` of norms, layers, blocks
and models in float64. The same call has the same bits with one thread and with two, and
of arrays that are stored in other ways.
"""

import functools
import itertools
import re

import numpy as np
from support import backward
from support.arrays import normal
from support.backward import kept_by_dropout
from support.calls import threads_for_any_work
from support.comparisons import assert_right_gradients, assert_same_bits
from support.formulas import ACTIVATION_GRADS, ACTIVATIONS, GATED
from support.quotients import (
    assert_gradient,
    assert_gradients,
    assert_model_gradients,
    with_values,
)

import attnpy
from attnpy import blocks
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.models import BertEncoder, CausalDecoder
from attnpy.positions import Rotary
from fuzz import calls
from fuzz.calls import stored_equal
from fuzz.findings import Finding, call, trace
from fuzz.values import FLOATS, maybe, numbers, one_of, size

DIMS = (1, 2, 3, 5, 8, 16, 17, 33, 65)
DOUBLE = np.dtype(float)
NAMES = attnpy.AttentionGradients._fields
N_SEEDS = 3  # of quotients: where a kink lies between two points, one of them is wrong


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    name = one_of(rng, tuple(MAKERS))
    if verbose:
        print(name, flush=True)
    good, result = call(guarded, rng, name)
    if not good:
        raise Finding(f"{name}: a right call is an error", trace(result))
    return name


def guarded(rng, name):
    try:
        with threads_for_any_work():
            MAKERS[name](rng)
    except AssertionError as error:
        of = re.match(r"[a-z][\w.]*|", str(error)).group()
        raise Finding(f"{name}: not right: {of}", trace(error)) from error


# ---- attention_vjp


def problem(rng, dtype):
    """query, key, value and options, with head dimensions of all kinds."""
    arrays, options, _ = calls.problem(rng, [dtype] * 3)
    dim, value_dim = one_of(rng, DIMS), one_of(rng, DIMS)
    arrays = [
        numbers(rng, (*x.shape[:-1], n), dtype)
        for x, n in zip(arrays, (dim, dim, value_dim), strict=True)
    ]
    if maybe(rng, 0.2):
        options["dropout"] = one_of(rng, (0.1, 0.5, 0.9))
        options["dropout_seed"] = int(rng.integers(2**63))
    return arrays, options


def make_attention(rng):
    dtype = one_of(rng, (DOUBLE, DOUBLE, *FLOATS))
    arrays, options = problem(rng, dtype)
    output, weights, lse = attnpy.attention(
        *arrays, **options, return_weights=True, return_lse=True
    )
    of_dropout = ("dropout", "dropout_seed")
    meaning = {n: x for n, x in options.items() if n not in of_dropout}
    kept = 1.0
    if "dropout" in options:
        kept = kept_by_dropout(weights.shape, **options)
    grads = [numbers(rng, x.shape, x.dtype) for x in (output, lse)]
    wanted = (*NAMES[:3], *(name for name in NAMES[3:] if name in options))
    vjp = functools.partial(attnpy.attention_vjp, wanted=wanted)
    found = vjp(grads[0], *arrays, grad_lse=grads[1], **options, num_threads=1)
    assert_right_gradients(found, arrays, *grads, kept, **meaning)
    if dtype == DOUBLE:
        quotients_of_attention(rng, arrays, options, grads, found)
    again = [stored_equal(rng, x) for x in (grads[0], *arrays)]
    known = {"grad_lse": stored_equal(rng, grads[1]), "num_threads": 2}
    if maybe(rng):
        known |= {"output": output, "lse": stored_equal(rng, lse)}
    for name in {"mask", "bias", "sinks", "q_offset", "kv_lengths"} & options.keys():
        options[name] = stored_equal(rng, options[name])
    assert_same_numbers(vjp(*again, **options, **known), found)


def quotients_of_attention(rng, arrays, options, grads, found):
    """Each gradient along a direction."""
    inputs = {**dict(zip(NAMES[:3], arrays, strict=True)), **options}
    seed = int(rng.integers(2**31))

    def value():
        output, lse = attnpy.attention(**inputs, return_lse=True)
        lse = np.where(np.isfinite(lse), lse, 0)
        return np.sum(output * grads[0]) + np.sum(lse * grads[1])

    for name, gradient in zip(NAMES, found, strict=True):
        if gradient is not None and inputs[name].dtype == DOUBLE:
            assert_gradient(value, inputs[name], gradient, name, seed)


def assert_same_numbers(one, other):
    """The same bits of gradients, whatever their byte order."""
    for x, y in zip(one, other, strict=True):
        native = x if x is None else np.array(x).astype(x.dtype.newbyteorder("="))
        assert_same_bits(native, y)


def make_packed(rng):
    """Sequences end to end, each against the oracle of its own."""
    n = int(rng.integers(0, 5))
    counts = [[size(rng, 17) for _ in range(n)] for _ in range(2)]
    counts = counts if maybe(rng) else counts[:1] * 2
    ends = [np.cumsum([0, *x]) for x in counts]
    heads, group = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    dim, value_dim = one_of(rng, DIMS), one_of(rng, DIMS)
    dtype = one_of(rng, (DOUBLE, *FLOATS))
    query = numbers(rng, (heads * group, ends[0][-1], dim), dtype)
    key = numbers(rng, (heads, ends[1][-1], dim), dtype)
    value = numbers(rng, (heads, ends[1][-1], value_dim), dtype)
    options = {"causal": one_of(rng, (True, False, "top_left"))}
    if maybe(rng, 0.3):
        options["softcap"] = 2.0
    if maybe(rng, 0.3):
        options["window"] = one_of(rng, ((2, None), (1, 1)))
    if maybe(rng, 0.3):
        options["sinks"] = rng.standard_normal(heads * group)
    grad = numbers(rng, (*query.shape[:-1], value_dim), dtype)
    wanted = (*NAMES[:3], *({"sinks"} & options.keys()))
    given = {"wanted": wanted, "seq_offsets": tuple(ends), **options}
    found = attnpy.attention_vjp(grad, query, key, value, num_threads=1, **given)
    total = 0.0
    for (a, b), (c, d) in zip(*map(itertools.pairwise, ends), strict=True):
        part = [query[:, a:b], key[:, c:d], value[:, c:d]]
        slices = [found.query[:, a:b], found.key[:, c:d], found.value[:, c:d]]
        one = attnpy.AttentionGradients(*slices, None, None)
        assert_right_gradients(one, part, grad[:, a:b], **options)
        if "sinks" in options:
            total += backward.attention_vjp(grad[:, a:b], *part, **options)[4]
    if "sinks" in options:
        calls.near(found.sinks, np.zeros(heads * group) + total, kinds=[dtype])
    again = [stored_equal(rng, x) for x in (grad, query, key, value)]
    assert_same_numbers(attnpy.attention_vjp(*again, num_threads=2, **given), found)


# ---- layers


def tokens(rng, dim):
    batch = tuple(int(n) for n in rng.integers(1, 4, rng.integers(2)))
    return normal(*batch, 1 + size(rng, 9), dim, seed=seed_of(rng), dtype=DOUBLE)


def seed_of(rng):
    return int(rng.integers(2**31))


def check(rng, layer, arguments, options):
    """A layer's gradients, and their bits."""
    with_values(layer, seed_of(rng))
    patiently(rng, assert_gradients, layer, arguments, options)
    options = {n: x for n, x in options.items() if n != "num_threads"}
    output, pullback = layer.vjp(*arguments, **options, num_threads=1)
    grad = rng.standard_normal(output.shape)
    others = [stored_equal(rng, x) for x in arguments]
    again, pullback_2 = layer.vjp(*others, **options, num_threads=2)
    assert_same_bits(again, output)
    found, found_2 = pullback(grad), pullback_2(stored_equal(rng, grad))
    for one, other in zip(found, found_2, strict=True):
        pairs = one.items() if isinstance(one, dict) else [(None, one)]
        for name, array in pairs:
            assert_same_bits(other if name is None else other[name], array)


def patiently(rng, check, *arguments):
    """Ask again along other directions where an activation's kink may be the reason."""
    for i in range(N_SEEDS):
        try:
            return check(*arguments, seed=seed_of(rng))
        except AssertionError:
            if i == N_SEEDS - 1:
                raise
    return None


def make_norm(rng):
    kind, dim = one_of(rng, (blocks.LayerNorm, blocks.RMSNorm)), one_of(rng, DIMS)
    norm = kind(dim, eps=one_of(rng, (1e-5, 1e-3, 0.5)), dtype=DOUBLE)
    x, options = tokens(rng, dim), {}
    if maybe(rng, 0.3):
        options["residual"] = rng.standard_normal(x.shape)
    check(rng, norm, (x,), options)


def make_activation(rng):
    name, dtype = one_of(rng, tuple(ACTIVATIONS)), one_of(rng, FLOATS)
    shape = size(rng), one_of(rng, DIMS)
    x, grad = numbers(rng, shape, dtype), numbers(rng, shape, dtype)
    vjp = functools.partial(blocks.activation_vjp, activation=name)
    found = vjp(grad, x, num_threads=1)
    derivative, _ = ACTIVATION_GRADS[name](x.astype(float))
    assert found.dtype == dtype
    calls.near(found, grad.astype(float) * derivative)
    again = vjp(stored_equal(rng, grad), stored_equal(rng, x), num_threads=2)
    assert_same_numbers([again], [found])


def make_network(rng):
    dim, name = one_of(rng, DIMS), one_of(rng, (*ACTIVATIONS, *GATED))
    network = blocks.FeedForward(
        dim, 1 + size(rng), activation=name, bias=bool(maybe(rng)), dtype=DOUBLE
    )
    x, options = tokens(rng, dim), {"checkpoint": bool(maybe(rng, 0.3))}
    if maybe(rng, 0.3):
        options["residual"] = rng.standard_normal(x.shape)
    check(rng, network, (x,), options)


def attention_options(rng, heads, x, n_keys, wants=True):
    """Options of a layer's attention from these tokens."""
    *batch, n, _ = x.shape
    options = calls.layer_options(rng, (n, n_keys))
    options["checkpoint"] = bool(maybe(rng, 0.3))
    if options.get("causal") == "bottom_right":
        options["causal"] = True
    if maybe(rng, 0.2):
        options["kv_lengths"] = rng.integers(0, n_keys, batch, endpoint=True)
    if maybe(rng, 0.3):
        options["bias"] = rng.standard_normal((heads, n, n_keys))
    if maybe(rng, 0.3):
        options["sinks"] = rng.standard_normal(heads)
    if maybe(rng, 0.2):
        options |= {"dropout": 0.3, "dropout_seed": int(rng.integers(2**63))}
    options["wanted"] = [n for n in ("bias", "sinks") if n in options and maybe(rng)]
    return options


def make_head(rng):
    dim, dims = one_of(rng, DIMS), (one_of(rng, DIMS), one_of(rng, DIMS))
    head = SelfAttention(
        dim, dims[0], value_head_dim=dims[1], bias=bool(maybe(rng)), dtype=DOUBLE
    )
    x = tokens(rng, dim)
    options = attention_options(rng, 1, x, x.shape[-2])
    if np.ndim(options.get("bias")) == 3:  # a batch's, of the only head
        options["bias"] = options["bias"][0].copy()
    options.pop("sinks", None)
    options["wanted"] = [n for n in options["wanted"] if n != "sinks"]
    check(rng, head, (x,), options)


def make_layer(rng):
    kv_heads, group = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    heads, dim = kv_heads * group, one_of(rng, DIMS)
    turned = maybe(rng, 0.3)
    head_dim = one_of(rng, (2, 6, 16, 34) if turned else DIMS)
    sizes = {} if turned else one_of(rng, ({}, {"context_dim": 3, "value_dim": 17}))
    layer = MultiHeadAttention(
        dim, heads, head_dim, value_head_dim=one_of(rng, DIMS), num_kv_heads=kv_heads,
        qkv_bias=bool(maybe(rng)), out_bias=bool(maybe(rng)), dtype=DOUBLE, **sizes,
    )  # fmt: skip
    for name in ("q_norm", "k_norm"):
        if maybe(rng, 0.3):
            kind = one_of(rng, (blocks.LayerNorm, blocks.RMSNorm))
            setattr(layer, name, kind(head_dim, dtype=DOUBLE))
    x = tokens(rng, dim)
    arguments, n_keys = [x], x.shape[-2]
    if sizes:
        n_keys = 1 + size(rng, 9)
        shape = (*x.shape[:-2], n_keys)
        arguments += [rng.standard_normal((*shape, n)) for n in (3, 17)]
    options = attention_options(rng, heads, x, n_keys)
    if turned:
        options["rotary"] = Rotary(head_dim, interleaved=bool(maybe(rng)))
    if maybe(rng, 0.3):
        options["residual"] = rng.standard_normal(x.shape)
    check(rng, layer, arguments, options)


# ---- blocks and models


def block_options(rng):
    return {
        "norm_first": bool(maybe(rng)),
        "norm": one_of(rng, ("layer", "rms")),
        "activation": one_of(rng, (*ACTIVATIONS, *GATED)),
        "bias": bool(maybe(rng)),
        "dtype": DOUBLE,
    }


def make_block(rng):
    heads = int(rng.integers(1, 4))
    dim, hidden = heads * int(rng.integers(1, 5)), 1 + size(rng, 17)
    options, x = block_options(rng), tokens(rng, dim)
    of_call = {"checkpoint": bool(maybe(rng, 0.3))}
    if maybe(rng, 0.3):
        of_call |= {"causal": True} if maybe(rng) else {"softcap": 2.0}
    n = x.shape[-2]
    if maybe(rng, 0.3):
        of_call |= {"bias": rng.standard_normal((heads, n, n)), "wanted": ["bias"]}
    arguments = [x]
    kind = one_of(rng, ("EncoderLayer", "Encoder", "DecoderLayer", "Decoder"))
    make = getattr(blocks, kind)
    if kind.startswith("Decoder"):
        of_call.pop("causal", None)
        options["cross_attention"] = bool(maybe(rng))
        if options["cross_attention"]:
            shape = (*x.shape[:-2], 1 + size(rng, 9), dim)
            arguments.append(rng.standard_normal(shape))
    if kind.endswith("Layer"):
        block = make(dim, heads, hidden, **options)
    else:
        options["shared"] = bool(maybe(rng, 0.3))
        block = make(2, dim, heads, hidden, **options)
    check(rng, block, arguments, of_call)


def make_bert(rng):
    model = BertEncoder(1, 8, 2, 16, vocab_size=9, num_types=2, dtype=DOUBLE)
    with_values(model, seed_of(rng))
    ids = rng.integers(0, 9, (2, 1 + size(rng, 9)))
    options = one_of(
        rng, ({}, {"lengths": [1, ids.shape[1]]}, {"token_types": ids % 2})
    )
    run = functools.partial(model, ids, **options)
    check_model(rng, model, run, functools.partial(model.vjp, ids, **options))


def make_decoder(rng):
    kinds = (
        {"max_length": 12, "activation": "gelu_tanh"},
        {"rotary": Rotary(4), "norm": "rms", "activation": "swiglu", "bias": False,
         "num_kv_heads": 1, "qk_norm": True, "tied": False},
        {"rotary": Rotary(4), "norm_after": True, "logit_softcap": 3.0, "softcap": 5.0,
         "window": [(2, 0)], "embedding_scale": 2.0},
        {"rotary": Rotary(4), "parallel": True, "output_bias": True},
        {"rotary": Rotary(4), "parallel": "one norm", "logit_scale": 0.5},
        {"rotary": Rotary(4), "residual_scale": 0.5, "logit_scale": 0.5},
    )  # fmt: skip
    model = CausalDecoder(1, 8, 2, 16, vocab_size=9, dtype=DOUBLE, **one_of(rng, kinds))
    with_values(model, seed_of(rng))
    ids = rng.integers(0, 9, (2, 1 + size(rng, 9)))
    lengths = one_of(rng, (None, [0, ids.shape[1]], [1, 1]))
    options = {"lengths": lengths, "checkpoint": bool(maybe(rng))}
    vjp = functools.partial(model.vjp, ids, logits=True, **options)

    def run():
        return model.logits(model(ids, lengths=lengths))

    check_model(rng, model, run, vjp)


def check_model(rng, model, run, vjp):
    """A model's gradients, and their bits."""
    patiently(rng, assert_model_gradients, model, run, vjp)
    output, pullback = vjp(num_threads=1)
    again, pullback_2 = vjp(num_threads=2)
    assert_same_bits(again, output)
    grad = rng.standard_normal(output.shape)
    found, found_2 = pullback(grad), pullback_2(stored_equal(rng, grad))
    for name, array in found.items():
        assert_same_bits(found_2[name], array)


MAKERS = {
    "attention_vjp": make_attention,
    "packed": make_packed,
    "norm": make_norm,
    "activation": make_activation,
    "network": make_network,
    "head": make_head,
    "layer": make_layer,
    "block": make_block,
    "bert": make_bert,
    "decoder": make_decoder,
}
