"""Attention of layers whose matrices round their rows: products of integers."""

import numpy as np
import pytest
from support.arrays import normal
from support.calls import TIERS
from support.comparisons import assert_same_bits

import attnpy
from attnpy._linear import linear
from attnpy._options import Heads, Options
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention, SelfAttention, multi_head

LARGEST, LARGEST_WEIGHT = 2047, 8191  # of codes, and of a block's weights
BLOCK = 128

pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("error")]


def layer(dim=96, n_heads=3, n_kv_heads=None, **options):
    """A layer whose matrices round their rows to 8 bits."""
    mha = MultiHeadAttention(dim, n_heads, n_kv_heads, rng=np.random.default_rng(7))
    options.setdefault("activations", "int8")
    for name in ("W_q", "W_k", "W_v"):  # not W_o, which would round what is compared
        setattr(mha, name, attnpy.quantize(getattr(mha, name), **options))
    return mha


def heads_of(x, mha):
    """Queries, keys and values (H, L, D) of tokens (L, E)."""
    for name in ("q", "k", "v"):
        rows = linear(x, getattr(mha, f"W_{name}"), getattr(mha, f"b_{name}"))
        n_heads = mha.num_heads if name == "q" else mha.num_kv_heads
        yield rows.reshape(len(x), n_heads, -1).swapaxes(0, 1)


def codes_of(rows):
    """Codes of vectors and their scales, as float64."""
    most = np.abs(rows).max(-1, keepdims=True)
    by = np.divide(np.float32(LARGEST), most, where=most > 0, out=np.zeros_like(most))
    return np.rint(rows * by).astype(float), (most / np.float32(LARGEST)).astype(float)


def attended(query, key, value, seen=None):
    """Attention with codes, in float64 but for how they are found: (H, L, Dv)."""
    group = len(query) // len(key)
    key, value = (np.repeat(x, group, axis=0) for x in (key, value))
    (q, q_scale), (k, k_scale), (v, v_scale) = map(codes_of, (query, key, value))
    logits = q @ k.swapaxes(-1, -2) * q_scale * k_scale.swapaxes(-1, -2)
    logits /= np.sqrt(query.shape[-1])
    if seen is not None:
        logits = np.where(seen, logits, -np.inf)
    top = logits.max(-1, keepdims=True)
    total, output = 0.0, 0.0
    for first in range(0, key.shape[-2], BLOCK):
        some = slice(first, first + BLOCK)
        own = logits[..., some]
        here = own.max(-1, keepdims=True)
        here = np.where(here == -np.inf, 0, here)
        scale = v_scale[..., some, :].swapaxes(-1, -2) * np.isfinite(own)
        most = scale.max(-1, keepdims=True)
        weights = np.exp(own - here)
        by = np.divide(LARGEST_WEIGHT, most, where=most > 0, out=np.zeros_like(most))
        codes = np.rint(weights * scale * by)
        fresh = np.exp(here - top)
        total = total + weights.sum(-1, keepdims=True) * fresh
        output = output + codes @ v[..., some, :] * (most / LARGEST_WEIGHT) * fresh
    return output / total


def joined(heads):
    """(H, L, D) as tokens (L, H * D)."""
    return heads.swapaxes(0, 1).reshape(heads.shape[1], -1)


def relative(error, of):
    return np.sqrt((error**2).mean() / (of**2).mean())


@pytest.mark.parametrize(
    ("size", "n_tokens"), [((96, 3), 300), ((66, 2, 1), 9), ((320, 4), 140)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_the_definition_is_that_of_numpy(size, n_tokens, masked):
    mha = layer(*size)
    x = normal(n_tokens, size[0], seed=1)
    seen = np.random.default_rng(2).random((n_tokens, n_tokens)) < 0.7
    seen[:, 0] = True
    mask = {"mask": seen} if masked else {}
    found = mha(x, **mask)
    parts = list(heads_of(x, mha))
    right = joined(attended(*parts, seen if masked else None))
    right = right @ np.asarray(mha.W_o, float) + mha.b_o
    assert relative(found - right, right) < 2e-5
    plain = joined(attnpy.attention(*parts, **mask)) @ mha.W_o + mha.b_o
    off = relative(plain - right, right)
    assert 4e-5 < off < 1e-3  # what rounding to codes adds


def call_on(tier, mha, x):
    return multi_head._attnpy.layer(
        x,
        None,
        Heads(mha.num_heads, mha.num_kv_heads),
        mha._projections(False, None, False, None),
        None,
        None,
        None,
        Options(tier=tier),
    )


def test_every_tier_has_the_same_bits():
    for size, n_tokens in (((96, 3), 200), ((66, 2, 1), 7)):
        mha, x = layer(*size), normal(2, n_tokens, size[0], seed=3)
        for tier in TIERS:
            assert_same_bits(call_on(tier, mha, x), mha(x))


def test_batch_padding_packing_threads_and_masks_change_no_bit():
    mha, lengths = layer(), [300, 1, 130, 7]
    x = normal(len(lengths), max(lengths), 96, seed=4)
    alone = [mha(row[:n]) for row, n in zip(x, lengths, strict=True)]
    padded = mha(x, kv_lengths=lengths)
    beyond = np.arange(x.shape[1]) < np.array(lengths)[:, None]
    poisoned = np.where(beyond[..., None], x, np.float32(np.nan))
    hidden = mha(poisoned, mask=beyond[:, None, None, :])
    several = mha(x, kv_lengths=lengths, num_threads=3)
    packed = np.concatenate([row[:n] for row, n in zip(x, lengths, strict=True)])
    offsets = np.cumsum([0, *lengths])
    packed = np.split(mha(packed, seq_offsets=offsets), offsets[1:-1])
    for b, n in enumerate(lengths):
        for found in (padded[b, :n], hidden[b, :n], several[b, :n], packed[b]):
            assert_same_bits(found, alone[b])


def test_a_token_that_is_not_finite_reaches_those_that_see_it_alone():
    x, seen = normal(40, 96, seed=5), np.ones((40, 40), bool)
    seen[:20, 30] = False
    mha, spoilt = layer(), x.copy()
    spoilt[30, 5] = np.inf
    found = mha(spoilt, mask=seen)
    assert np.isnan(found[20:]).all()
    assert_same_bits(found[:20], mha(x, mask=seen)[:20])


def test_calls_that_caches_may_continue_multiply_floats():
    mha, x = layer(), normal(50, 96, seed=6)
    parts = list(heads_of(x, mha))

    def plain(**options):
        output = joined(attnpy.attention(*parts, **options))
        return linear(output, mha.W_o, mha.b_o)

    assert_same_bits(mha(x, causal=True), plain(causal=True))
    assert_same_bits(mha(x, window=(9, 0)), plain(window=(9, 0)))
    assert_same_bits(mha(x, x.copy()), plain())
    cache = KVCache(1, 3, 50, 32)
    assert_same_bits(mha(x[None], cache=cache)[0], plain())
    exact = layer(activations="float")
    parts = list(heads_of(x, exact))
    assert_same_bits(exact(x), plain())


def test_weights_are_returned_and_add_up_to_one():
    mha, x = layer(), normal(150, 96, seed=8)
    output, weights = mha(x, return_weights=True)
    assert_same_bits(output, mha(x))
    assert weights.shape == (3, 150, 150)
    assert abs(weights.sum(-1) - 1).max() < 1e-5


def test_values_of_zero_and_tiny_vectors_are_multiplied():
    mha, x = layer(), normal(40, 96, seed=9)
    mha.W_v = attnpy.quantize(np.zeros((96, 96), np.float32), activations="int8")
    assert_same_bits(mha(x), np.broadcast_to(mha.b_o, (40, 96)).astype(np.float32))
    x *= np.float32(1e-35)
    assert np.isfinite(layer()(x)).all()


def test_a_single_head_has_the_bits_of_its_layer():
    head = SelfAttention(64, 32, rng=np.random.default_rng(1))
    head.quantize(activations="int8")
    x = normal(30, 64, seed=10)
    mha = MultiHeadAttention(64, 1, head_dim=32, rng=np.random.default_rng(2))
    mha.W_q, mha.W_k, mha.W_v = head.W_q, head.W_k, head.W_v
    mha.W_o = np.eye(32, 64, dtype=np.float32)
    assert_same_bits(mha(x)[:, :32], head(x))
