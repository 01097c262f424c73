"""Residuals within the last product, and 16-bit products in streams of float32."""

import numpy as np
import pytest
from support.arrays import normal
from support.calls import layers_on
from support.comparisons import assert_same_bits
from support.errors import refused

import attnpy
from attnpy._linear import linear
from attnpy.blocks import Decoder, Encoder, EncoderLayer, FeedForward
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention
from attnpy.models import BertEncoder, CausalDecoder
from attnpy.positions import Rotary

E, H, HK = 24, 4, 2


def rng():
    return np.random.default_rng(0)


def layer(dtype, **options):
    return MultiHeadAttention(
        E, H, num_kv_heads=HK, dtype=dtype, rng=rng(), bias=True, **options
    )


def heads(rows, n):
    return rows.reshape(*rows.shape[:-1], n, -1).swapaxes(-3, -2)


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(5, E), (2, 70, E), (1, 1, E)])
def test_a_residual_is_added_to_what_a_layer_gives(tier, dtype, shape):
    mha, x, residual = layer(dtype), normal(*shape, dtype=dtype), normal(*shape, seed=1)
    residual = residual.astype(dtype)
    with layers_on(tier):
        wide = mha(x, mixed=True) if dtype.itemsize == 2 else mha(x)
        output, weights = mha(x, residual=residual, return_weights=True)
        assert_same_bits(output, (wide + residual.astype(wide.dtype)).astype(dtype))
        assert_same_bits(weights, mha(x, return_weights=True)[1])
        cache = KVCache(shape[0] if x.ndim == 3 else 1, HK, 80, 6, dtype=dtype)
        cached = mha(x, residual=residual, cache=cache, causal=True)
        assert_same_bits(cached, mha(x, residual=residual, causal=True))


@pytest.mark.quick
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_a_residual_is_added_to_what_a_network_gives(dtype, activation):
    network = FeedForward(E, 50, activation=activation, dtype=dtype, rng=rng())
    x, residual = normal(2, 33, E, dtype=dtype), normal(2, 33, E, seed=1, dtype=dtype)
    wide = network(x, mixed=True) if dtype.itemsize == 2 else network(x)
    expected = (wide + residual.astype(wide.dtype)).astype(dtype)
    assert_same_bits(network(x, residual=residual), expected)


@pytest.mark.quick
@pytest.mark.parametrize("rotary", [None, Rotary(6)])
def test_a_mixed_layer_is_its_steps(dtype, rotary):
    """What the heads see and give has the parameters' dtype, the result has float32."""
    if dtype.itemsize != 2:
        pytest.skip("of 16-bit parameters")
    mha, x, residual = layer(dtype), normal(2, 70, E), normal(2, 70, E, seed=1)
    output = mha(x, rotary=rotary, causal=True, residual=residual, mixed=True)
    query, key, value = (
        heads(linear(x, weight, bias, precision="narrow"), n)
        for weight, bias, n in (
            (mha.W_q, mha.b_q, H),
            (mha.W_k, mha.b_k, HK),
            (mha.W_v, mha.b_v, HK),
        )
    )
    if rotary is not None:
        query, key = rotary(query), rotary(key)
    assert query.dtype == dtype
    attended = attnpy.attention(query, key, value, causal=True)
    rows = attended.swapaxes(-3, -2).reshape(2, 70, E)
    assert rows.dtype == dtype
    expected = linear(rows, mha.W_o, mha.b_o, residual=residual, precision="wide")
    assert expected.dtype == np.float32
    assert_same_bits(output, expected)


@pytest.mark.quick
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_a_mixed_network_is_its_steps(dtype, activation):
    if dtype.itemsize != 2:
        pytest.skip("of 16-bit parameters")
    network = FeedForward(E, 50, activation=activation, dtype=dtype, rng=rng())
    x = normal(33, E)
    name = "silu" if activation == "swiglu" else activation
    first = network.W_1 if network.W_gate is None else network.W_gate
    times = None
    if network.W_gate is not None:
        times = linear(x, network.W_1, network.b_1, precision="narrow")
    bias = network.b_1 if network.W_gate is None else network.b_gate
    inside = linear(x, first, bias, activation=name, times=times, precision="narrow")
    assert inside.dtype == dtype
    expected = linear(inside, network.W_2, network.b_2, precision="wide")
    assert_same_bits(network(x, mixed=True), expected)


@pytest.mark.quick
def test_mixed_changes_nothing_where_parameters_are_wide():
    for dtype in (np.float32, np.float64):
        mha, x = layer(dtype), normal(2, 9, E, dtype=dtype)
        assert_same_bits(mha(x, mixed=True), mha(x))
        block = EncoderLayer(E, H, 50, dtype=dtype, rng=rng())
        assert_same_bits(block(x, mixed=True), block(x))


@pytest.mark.quick
@pytest.mark.parametrize("norm_first", [False, True])
def test_stacks_keep_their_sums_in_float32(dtype, norm_first):
    """Mixed stacks are nearer to float64 than those that round each sum."""
    if dtype.itemsize != 2:
        pytest.skip("of 16-bit parameters")
    options = {"norm_first": norm_first, "final_norm": norm_first}
    x, context = normal(2, 20, E), normal(2, 7, E, seed=1)
    for kind, arguments in ((Encoder, (x,)), (Decoder, (x, context))):
        stack = kind(6, E, H, 50, dtype=dtype, rng=rng(), **options)
        exact = kind(6, E, H, 50, dtype=np.float64, rng=rng(), **options)
        for name, parameter in exact.parameters().items():
            parameter[...] = stack.parameters()[name]
        expected = exact(*(a.astype(np.float64) for a in arguments))
        mixed = stack(*arguments, mixed=True)
        assert mixed.dtype == np.float32
        rounded = stack(*(a.astype(dtype) for a in arguments))
        assert rounded.dtype == dtype
        far = np.abs(rounded.astype(float) - expected).mean()
        near = np.abs(mixed - expected).mean()
        assert 0 < near < 0.8 * far


@pytest.mark.quick
def test_models_of_16_bits_have_streams_of_float32(dtype):
    if dtype.itemsize != 2:
        pytest.skip("of 16-bit parameters")
    ids = rng().integers(0, 50, (3, 20))
    bert = BertEncoder(3, E, H, 50, vocab_size=50, dtype=dtype, rng=rng())
    states = bert(ids)
    tokens = bert.token_embedding[ids].astype(np.float32)
    tokens += bert.segment_embedding[0]
    tokens += bert.position_embedding[:20]
    expected = bert.encoder(bert.norm(tokens), mixed=True)
    assert expected.dtype == np.float32
    assert_same_bits(states, expected.astype(dtype))
    gpt = CausalDecoder(3, E, H, 50, vocab_size=50, dtype=dtype, rng=rng())
    tokens = gpt.token_embedding[ids].astype(np.float32)
    if gpt.position_embedding is not None:
        tokens += gpt.position_embedding[:20]
    expected = gpt.decoder(tokens, rotary=gpt.rotary, mixed=True)
    assert_same_bits(gpt(ids), expected.astype(dtype))
    caches = gpt.decoder.new_caches(3, 20)
    assert caches[0]._key.dtype == dtype
    steps = [gpt(ids[:, i : i + 1], caches=caches) for i in range(20)]
    assert_same_bits(np.concatenate(steps, 1), gpt(ids))


@pytest.mark.quick
def test_residuals_and_flags_that_do_not_fit():
    mha, x = layer("float32"), normal(2, 5, E)
    network = FeedForward(E, 50, rng=rng())
    for call in (mha, network):
        for wrong in (x[:1], x[..., :-1], x[0]):
            with pytest.raises(ValueError, match=r"^residual: expected the shape"):
                call(x, residual=wrong)
        with pytest.raises(TypeError, match=r"^residual: "):
            call(x, residual=np.full(x.shape, "a"))
        with refused(TypeError, "mixed"):
            call(x, mixed=1)
    for weights in (1, np.array([True, False]), "yes"):
        with refused(TypeError, "return_weights"):
            mha(x, return_weights=weights, average_weights=True)
    cache = KVCache(2, HK, 20, 6)
    with pytest.raises(ValueError, match=r"^residual: "):
        mha(x, cache=cache, residual=x[:1])
    assert cache.lengths.tolist() == [0, 0]
