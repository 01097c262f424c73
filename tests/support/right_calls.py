"""A right call of every function of the extension module, with all its arguments."""

from types import SimpleNamespace

import numpy as np

from attnpy import _attnpy, quantize
from attnpy._options import (
    VJP,
    Attention,
    Cache,
    DecoderLayer,
    ExpertKinds,
    Experts,
    Heads,
    Network,
    Norm,
    Norms,
    Options,
    Place,
    Projections,
    Rotary,
    Wanted,
)
from attnpy._packed_weight import PackedWeight
from attnpy.blocks import Decoder
from attnpy.blocks.decoder import KINDS
from support.calls import HAS_TEST_HOOKS


def right_calls(n=3, d=4, dtype=np.float32):
    """Lists of arguments by the function's name: n tokens, two heads, d dimensions."""

    def ones(*shape):
        return np.ones(shape, dtype)

    half, starts, lengths = d // 2, np.array([0, n]), np.zeros(1, np.int64)
    every = Options(
        mask=np.ones((n, n), bool),
        bias=ones(n, n),
        causal="top_left",
        window=(1, None),
        q_offset=np.array(0),
        kv_lengths=np.array(n),
        scale=0.5,
        softcap=30.0,
        sinks=ones(2),
        dropout=0.1,
        dropout_seed=3,
        return_weights=True,
        return_lse=True,
        out=ones(2, n, d),
        num_threads=1,
        tier=_attnpy.config()["tiers"][0],
    )
    plain, of_layer = Options(), Options(kv_lengths=lengths + n, return_weights=True)
    differentiable = Options(bias=ones(n, n), sinks=ones(2))
    projections = Projections(
        *(ones(d, d), ones(d), ones(d, d), ones(d), ones(d, d), ones(d)),
        *(ones(d, d), ones(d), ones(1, n, d)),
    )
    cache = Cache(ones(1, 2, n + 2, half), ones(1, 2, n + 2, half), lengths)
    norms = Norms(
        Norm(ones(half), None, 1e-5, False),
        Norm(ones(half), ones(half), 1e-5, True),
        Norm(ones(d), None, 1e-5, False),
    )
    network = Network(
        *(ones(d, n), ones(n), ones(d, n), ones(n), ones(n, d), ones(d)), "silu"
    )
    shared, *networks = (
        SimpleNamespace(**network._replace(activation="swiglu")._asdict())
        for _ in range(4)
    )
    kinds = ExpertKinds(
        SimpleNamespace,
        {"swiglu": "silu"},
        Options(return_weights=True, return_lse=True),
    )
    experts = Experts(ones(d, 3), ones(3), networks, shared, ones(d, 1), 2, True, kinds)
    rotary = Rotary(ones(n, half), ones(n, half), False)
    heads = Heads(2, 2, np.array([0, -1]))

    def inputs():
        return ones(2, n, d), ones(2, n, d), ones(2, n, d)

    def pages():
        return ones(2, 2, 128, d), ones(2, 2, 128, d)

    def norm():
        return Norm(ones(d), ones(d), 1e-5, True)

    def vjp():
        return VJP(ones(2, n, d), ones(2, n), ones(2, n), (True,) * 5)

    attention = Attention(
        Heads(2, 2),
        projections._replace(residual=None),
        norms._replace(x_norm=None),
        rotary,
        cache,
        Options(causal=True, kv_lengths=lengths + n),
    )
    forms = (True, False, ones()), (True, True, None), (False, False, None)
    layers = tuple(
        DecoderLayer(attention, feed, *form, norm(), norm(), None, norm())
        for form in forms
        for feed in (network, experts)
    )

    model = Decoder(
        2, d, 2, d, cross_attention=False, norm_first=True, activation="swiglu",
        dtype=dtype,
    )  # fmt: skip
    caches = model.new_caches(1, n + 2)
    place = Place(cache, rotary, Options(causal=True), caches[0].lengths, lengths + n)

    return {
        "attention": [
            (*inputs(), every),
            (*inputs(), Options(seq_offsets=(starts, starts))),
            (ones(2, n, d), *pages(), Options(page_table=np.array([1, 0]))),
        ],
        "Plan": [
            (*inputs(), every._replace(out=ones(2, n, d))),
            (ones(2, n, d), *pages(), Options(page_table=np.array([1, 0]))),
        ],
        "attention_vjp": [
            (ones(2, n, d), *inputs(), differentiable, vjp()),
            (ones(2, n, d), *inputs(), plain, VJP(None, None, None, (True,) * 5)),
        ],
        "explain": [(*inputs(), plain)],
        "statistics": [(*inputs(), plain, Wanted(True, True, True, 2))],
        "attend_partial": [
            (*inputs(), plain, None, False),
            (*inputs(), plain, np.ones((2, n, d + 2), np.float32), True),
        ],
        "layer": [
            (ones(1, n, d), ones(1, n, d), heads, projections, norms, rotary, cache,
             of_layer),
            (ones(1, n, d), None, heads, projections, None, None, None, plain),
        ],
        "linear": [
            (ones(2, n, d), ones(d, d), ones(d), "relu", ones(2, n, d), ones(2, n, d),
             "promoted", 1, None)
        ],
        "feed_forward": [
            (ones(2, n, d), norm(), network, ones(2, n, d), False, 1),
        ],
        "experts": [(ones(2, n, d), experts, 1)],
        "stack": [
            (ones(1, n, d), layers, norm(), False, 1),
        ],
        "read_layers": [
            (ones(1, n, d), tuple(model.layers), tuple(caches), (place, place), KINDS,
             False),
            (ones(1, n, d), tuple(model.layers), (None, None), (place, place), KINDS,
             False),
        ],
        "prepare": [
            (quantize(np.ones((d, n), np.float32))._parts,),
            (PackedWeight(ones(d, n))._parts,),
        ],
        "embed": [
            ((quantize(np.ones((d, n), np.float32)),), (np.arange(n),), 1, 1),
            ((ones(3, d), ones(n, d)), (np.ones((2, n), int), np.arange(n)), 0.5, 1),
        ],
        "adamw": [(*(ones(n) for _ in range(4)), None, (0.5,) * 7, 1)],
        "sum_of_squares": [(ones(n), 1)],
        "scale": [(ones(n), 0.5, 1)],
        "distance_scores": [
            (ones(2, n, d), ones(2, n, d), np.zeros(2 * n - 1, np.int64), 1)
        ],
        "products": [(ones(2, n, d), ones(2, d, d), 1)],
        "normalize": [(ones(2, n, d), ones(2, n, d), norm(), 1, None)],
        "normalize_vjp": [(ones(2, n, d), ones(2, n, d), norm(), 1, None)],
        "rotate": [(ones(2, n, d), ones(n, d), False, ones(2, n, d), 1)],
        "quantize_heads": [
            (ones(2, n, d), np.ones((2, n, d), np.int8), ones(2, n), 1)
        ],
        "activate": [(ones(2, n, d), "gelu", ones(2, n, d), 1, None)],
        "cast": [(ones(2, n, d), np.ones((), np.float16), 1)],
        "activate_vjp": [
            (ones(2, n, d), ones(2, n, d), "gelu", ones(2, n, d), 1, None)
        ],
        "gate": [(print, None, print, SimpleNamespace(blocks=[]), [], set())],
        "set_num_threads": [(2,)],
        "set_portable": [(False,)],
        "spin_time": [(None,)],
        **(right_calls_of_hooks() if HAS_TEST_HOOKS else {}),
    }  # fmt: skip


def right_calls_of_hooks():
    """The same for the functions that a wheel lacks."""
    return {
        "set_tuning": [("many_rows", False)],
        "set_work_per_thread": [(1e6,)],
        "watch_tasks": [(int, np.zeros((1, 3), np.int64))],
    }
