"""Norms, activations, encoder and decoder, against their formulas in plain NumPy."""

import copy
import math
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
from support.arrays import normal
from support.comparisons import assert_near, assert_same_bits, assert_same_parameters
from support.errors import refused
from support.formulas import (
    ACTIVATIONS,
    GATED,
    clamped,
    layer_norm,
    linear,
    multi_head_attention,
    rms_norm,
)

from attnpy import _attnpy, blocks, positions
from attnpy.blocks import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    RMSNorm,
)
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention

ROUNDING = {"float64": 1e-15, "float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}


def filled(module):
    """The module with no parameter at its first value of 0 or 1."""
    for i, (name, array) in enumerate(module.parameters().items()):
        if array.ndim == 1:
            array[...] = 0.5 * normal(*array.shape, seed=i) + name.endswith("weight")
    return module


def make(kind, *args, seed=0, **options):
    """An encoder or decoder in float64 unless told."""
    options = {"dtype": np.float64, **options}
    return filled(kind(*args, rng=np.random.default_rng(seed), **options))


def plain_norm(norm, x):
    if isinstance(norm, RMSNorm):
        return rms_norm(x, norm.weight, norm.eps)
    return layer_norm(x, norm.weight, 0 if norm.bias is None else norm.bias, norm.eps)


def plain_attention(mha, x, context=None, allowed=True):
    return multi_head_attention(mha, x, context, allowed)[0]


def plain_feed_forward(network, x):
    hidden = linear(x, network.W_1, network.b_1)
    if network.activation == "swiglu_oai":
        hidden = clamped(linear(x, network.W_gate, network.b_gate), hidden)
    elif network.activation in GATED:
        gate = linear(x, network.W_gate, network.b_gate)
        hidden = hidden * GATED[network.activation](gate)
    else:
        hidden = ACTIVATIONS[network.activation](hidden)
    return linear(hidden, network.W_2, network.b_2)


def plain_layer(layer, x, parts):
    """Each part with its residual, and its norm before or after."""
    for norm, function in parts:
        if layer.norm_first:
            x = x + function(plain_norm(norm, x))
        else:
            x = plain_norm(norm, x + function(x))
    return x


def plain_encoder(encoder, x, allowed=True):
    for layer in encoder.layers:
        x = plain_layer(
            layer,
            x,
            [
                (
                    layer.norm_1,
                    lambda y, at=layer.self_attention: plain_attention(
                        at, y, allowed=allowed
                    ),
                ),
                (
                    layer.norm_2,
                    lambda y, ff=layer.feed_forward: plain_feed_forward(ff, y),
                ),
            ],
        )
    return x if encoder.norm is None else plain_norm(encoder.norm, x)


def plain_decoder(decoder, x, context=None):
    causal = np.tri(x.shape[-2], dtype=bool)
    for layer in decoder.layers:
        parts = [
            (
                layer.norm_1,
                lambda y, at=layer.self_attention: plain_attention(
                    at, y, allowed=causal
                ),
            ),
            (
                layer.norm_3,
                lambda y, ff=layer.feed_forward: plain_feed_forward(ff, y),
            ),
        ]
        if context is not None:
            across = (
                layer.norm_2,
                lambda y, at=layer.cross_attention: plain_attention(at, y, context),
            )
            parts.insert(1, across)
        x = plain_layer(layer, x, parts)
    return x if decoder.norm is None else plain_norm(decoder.norm, x)


OPTIONS = (
    {},
    {"norm_first": True},
    {"norm": "rms", "activation": "swiglu", "num_kv_heads": 2, "norm_first": True},
    {"activation": "gelu", "bias": False, "final_norm": True, "head_dim": 5},
    {"shared": True, "activation": "gelu_tanh", "final_norm": False},
    {"activation": "silu", "norm": "rms", "bias": False, "shared": True},
)


@pytest.mark.quick
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_their_formulas(name, dtype):
    x = np.linspace(-6, 6, 1001).astype(dtype)
    result = getattr(blocks, name)(x)
    assert result.dtype == dtype
    limit = 3 * ROUNDING[dtype.name]
    exact = ACTIVATIONS[name](x.astype(float))
    np.testing.assert_allclose(result.astype(float), exact, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_go_to_their_limits_without_warnings(name):
    function = getattr(blocks, name)
    for kind in (np.float32, np.float64, np.float16):
        top = most = np.finfo(kind).max
        if name == "relu2":  # the largest that has a square
            top = kind(2 ** (np.finfo(kind).maxexp // 2 - 1))
            most = top * top
        limits = [-1, 0, 1, 1] if name == "tanh" else [0, 0, most, np.inf]
        assert function(np.array([-top, 0, top, np.inf], kind)).tolist() == limits
    assert np.isnan(function(np.array([np.nan]))).all()


def test_gelu_is_accurate_far_below_0():
    # The tail of the normal distribution, from its asymptotic series.
    for x in (-8.0, -20.0, -35.0):
        series = 1 - x**-2 + 3 * x**-4 - 15 * x**-6 + 105 * x**-8 - 945 * x**-10
        exact = -math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * series
        np.testing.assert_allclose(blocks.gelu([x]), [exact], rtol=2e-7)


def test_gelu_of_16_bits_is_that_of_float32_rounded():
    x = normal(1000, dtype=np.float16)
    wide = blocks.gelu(x.astype(np.float32))
    assert_same_bits(blocks.gelu(x), wide.astype(np.float16))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_each_number_do_not_depend_on_the_others(name, dtype):
    function, x = getattr(blocks, name), 3 * normal(3, 70, 33)
    x = x.astype(dtype)
    whole = function(x)
    for part in (np.s_[0, 0, 0], np.s_[:, 5], np.s_[2, 3:20], np.s_[:, :, 7]):
        alone = np.asarray(function(np.ascontiguousarray(x[part])))
        assert_same_bits(alone.reshape(-1), whole[part].reshape(-1))


@pytest.mark.quick
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("shape", [(5, 12), (12,), (2, 3, 12), (0, 12)])
def test_norms_are_their_formulas(kind, shape, dtype):
    norm, x = filled(kind(12, dtype=dtype)), normal(*shape, dtype=dtype)
    wide = filled(kind(12, dtype=np.float64))
    wide.load_state_dict(norm.state_dict())
    result = norm(x)
    assert result.dtype == dtype
    limit = 5 * ROUNDING[dtype.name]
    assert_near(result, plain_norm(wide, x.astype(float)), limit)


def test_norms_begin_with_mean_and_variance():
    x = 5 + 3 * normal(4, 64, dtype="float64")
    normed = LayerNorm(64, eps=1e-12, dtype=np.float64)(x)
    np.testing.assert_allclose(normed.mean(-1), np.zeros(4), atol=1e-12)
    np.testing.assert_allclose(normed.var(-1), np.ones(4))
    normed = RMSNorm(64, eps=1e-12, dtype=np.float64)(x)
    np.testing.assert_allclose((normed**2).mean(-1), np.ones(4))
    assert LayerNorm(4, eps=1.0)(np.zeros((1, 4))).tolist() == [[0] * 4]


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("dim", [1, 7, 8, 9, 127, 128, 129, 1000])
def test_norms_of_each_row_do_not_depend_on_the_others(kind, dim, dtype):
    norm = kind(dim, dtype=dtype)
    x = (1 + normal(3, 5, dim)).astype(dtype)
    whole = norm(x)
    for layout in (x, np.asfortranarray(x), x.swapaxes(0, 1).copy().swapaxes(0, 1)):
        assert_same_bits(norm(layout), whole)
    for part in (np.s_[0, 0], np.s_[1:2, 1:2], np.s_[:, 4], np.s_[2]):
        assert_same_bits(norm(x[part]), whole[part])


@pytest.mark.quick
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [*ACTIVATIONS, *GATED, "swiglu_oai"])
def test_feed_forward_is_the_formula(activation, bias, dtype):
    network = make(FeedForward, 6, 24, activation=activation, bias=bias, dtype=dtype)
    x = normal(2, 5, 6, dtype=dtype)
    result = network(x)
    assert result.dtype == dtype
    wide = FeedForward(6, 24, activation=activation, bias=bias, dtype=np.float64)
    wide.load_state_dict(network.state_dict())
    expected = plain_feed_forward(wide, x.astype(float))
    assert_near(result, expected, 20 * ROUNDING[dtype.name])
    has_gate = activation in [*GATED, "swiglu_oai"]
    assert ("W_gate" in network.parameters()) == has_gate


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(5, 12), (2, 5, 12)])
@pytest.mark.parametrize("options", OPTIONS)
def test_encoder_is_the_formula(options, shape):
    encoder = make(Encoder, 3, 12, 4, 20, **options)
    x = normal(*shape, dtype="float64")
    assert_near(encoder(x), plain_encoder(encoder, x))
    window = np.tri(5, k=1, dtype=bool) & ~np.tri(5, k=-2, dtype=bool)
    assert_near(encoder(x, window=(1, 1)), plain_encoder(encoder, x, window))
    assert_near(encoder(x, mask=window), plain_encoder(encoder, x, window))
    causal = np.tri(5, dtype=bool)
    assert_near(encoder(x, causal=True), plain_encoder(encoder, x, causal))


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(5, 12), (2, 5, 12)])
@pytest.mark.parametrize("options", OPTIONS)
def test_decoder_is_the_formula(options, shape):
    decoder = make(Decoder, 3, 12, 4, 20, context_dim=8, **options)
    x = normal(*shape, dtype="float64")
    context = normal(*shape[:-2], 7, 8, dtype="float64")
    assert_near(decoder(x, context), plain_decoder(decoder, x, context))


@pytest.mark.quick
def test_decoder_without_cross_attention_is_a_language_model():
    decoder = make(Decoder, 2, 12, 4, 20, cross_attention=False)
    x = normal(2, 5, 12, dtype="float64")
    assert_near(decoder(x), plain_decoder(decoder, x))
    encoder = make(Encoder, 2, 12, 4, 20)
    names = [name.replace("norm_2", "norm_3") for name in encoder.parameters()]
    assert sorted(names) == sorted(decoder.parameters())
    values = encoder.parameters().values()
    decoder.load_state_dict(dict(zip(names, values, strict=True)))
    assert_near(decoder(x), encoder(x, causal=True))
    both_ways = make(Decoder, 2, 12, 4, 20, cross_attention=False, causal=False)
    both_ways.load_state_dict(decoder.state_dict())
    assert_near(both_ways(x), encoder(x))
    for layer in both_ways.layers:
        layer.window, layer.scale = (2, 1), 0.3
    assert_near(both_ways(x), encoder(x, window=(2, 1), scale=0.3))
    with pytest.raises(ValueError, match="cache: expected None with causal=False"):
        both_ways(x, caches=both_ways.new_caches(2, 5))
    with pytest.raises(ValueError, match="scale: expected None, as the layer has its"):
        both_ways(x, scale=0.3)


@pytest.mark.parametrize("kind", [Encoder, Decoder])
@pytest.mark.parametrize("options", OPTIONS)
def test_16_and_32_bits_are_near_64(kind, options, dtype):
    wide = make(kind, 2, 12, 4, 20, **options)
    stack = make(kind, 2, 12, 4, 20, **{**options, "dtype": dtype})
    wide.load_state_dict(stack.state_dict())
    x = normal(2, 5, 12, dtype=dtype)
    arguments = (x,) if kind is Encoder else (x, x)
    result = stack(*arguments)
    assert result.dtype == dtype
    expected = wide(*(a.astype(float) for a in arguments))
    assert_near(result, expected, 100 * ROUNDING[dtype.name])


def test_encoder_without_positions_permutes_with_its_tokens():
    encoder, x = make(Encoder, 3, 12, 4, 20), normal(2, 9, 12, dtype="float64")
    order = np.random.default_rng(1).permutation(9)
    assert_near(encoder(x[:, order]), encoder(x)[:, order])
    placed = x + positions.sinusoidal(9, 12, dtype=np.float64)
    other = x[:, order] + positions.sinusoidal(9, 12, dtype=np.float64)
    assert np.abs(encoder(other) - encoder(placed)[:, order]).max() > 0.1


def test_final_norm_has_the_options_of_the_others():
    for kind in (Encoder, Decoder):
        stack = kind(1, 12, 4, 20, norm="rms", eps=0.5, norm_first=True, dtype="f8")
        assert isinstance(stack.norm, RMSNorm)
        assert (stack.norm.eps, stack.norm.weight.dtype) == (0.5, np.float64)
        assert stack.layers[0].norm_1.eps == 0.5
        stack = kind(1, 12, 4, 20, bias=False, final_norm=True)
        assert isinstance(stack.norm, LayerNorm)
        assert stack.norm.bias is None
        assert kind(1, 12, 4, 20).norm is None
        assert kind(1, 12, 4, 20, norm_first=True, final_norm=False).norm is None


@pytest.mark.quick
def test_options_of_a_call_reach_every_attention():
    x = normal(2, 5, 12, dtype="float64")
    options = {
        "bias": positions.alibi_bias(4, 5, 5),
        "mask": np.random.default_rng(0).random((5, 5)) < 0.8,
        "window": (2, 0),
        "rotary": positions.Rotary(3, rotary_dim=2),
        "kv_lengths": [5, 4],
    }
    encoder = make(Encoder, 2, 12, 4, 20)
    decoder = make(Decoder, 2, 12, 4, 20, cross_attention=False)
    for stack in (encoder, decoder):
        plain = stack(x)
        for name, option in options.items():
            expected, given = x, {name: option}
            causal = {"causal": True} if stack is decoder else {}
            for layer in stack.layers:
                attended = layer.self_attention(expected, **given, **causal)
                expected = layer.norm_1(expected + attended)
                norm = layer.norm_3 if stack is decoder else layer.norm_2
                expected = norm(expected + layer.feed_forward(expected))
            assert_near(stack(x, **given, num_threads=2), expected)
            assert np.abs(expected - plain).max() > 1e-3


@pytest.mark.quick
def test_padding_changes_nothing_for_the_others():
    encoder, x = make(Encoder, 3, 12, 4, 20), normal(2, 6, 12, dtype="float64")
    states = encoder(x, kv_lengths=[6, 2])
    assert_near(states[1, :2], encoder(x[1, :2]))
    decoder, y = make(Decoder, 2, 12, 4, 20), normal(2, 4, 12, dtype="float64")
    for output in (
        decoder(y, states, context_lengths=[6, 2]),
        decoder(y, decoder.project_context(states, context_lengths=[6, 2])),
        decoder(y, states, context_mask=[[[[True] * 6]], [[[True] * 2 + [False] * 4]]]),
    ):
        assert_near(output[0], decoder(y[0], states[0]))
        assert_near(output[1], decoder(y[1], states[1, :2]))


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS)
def test_later_tokens_do_not_change_earlier_outputs(options):
    decoder = make(Decoder, 3, 12, 4, 20, **options)
    x, context = normal(2, 6, 12, dtype="float64"), normal(2, 7, 12, dtype="float64")
    output, changed = decoder(x, context), x.copy()
    changed[:, 4:] = normal(2, 2, 12, seed=1)
    other = decoder(changed, context)
    assert_same_bits(other[:, :4], output[:, :4])
    assert (other[:, 4:] != output[:, 4:]).any(axis=-1).all()


@pytest.mark.quick
@pytest.mark.parametrize("rotary", [None, positions.Rotary(4)])
@pytest.mark.parametrize("options", OPTIONS)
def test_decoding_in_steps_is_the_full_pass(options, rotary):
    options = {**options, "head_dim": 4}
    decoder = make(Decoder, 3, 12, 4, 20, context_dim=8, **options)
    x, context = normal(2, 6, 12, dtype="float64"), normal(2, 7, 8, dtype="float64")
    full = decoder(x, context, rotary=rotary)
    memory = decoder.project_context(context)
    for source in (context, memory):
        caches = decoder.new_caches(2, 6)
        assert len(caches) == 3
        assert len({id(cache) for cache in caches}) == 3
        for part in (slice(0, 3), slice(3, 4), slice(4, 5), slice(5, 6)):
            step = decoder(x[:, part], source, caches=caches, rotary=rotary)
            assert_near(step, full[:, part])


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS)
def test_decoding_in_steps_has_the_bits_of_the_full_pass(options, dtype):
    encoder = make(Encoder, 2, 12, 4, 20, **{**options, "dtype": dtype})
    decoder = make(Decoder, 2, 12, 4, 20, **{**options, "dtype": dtype})
    source, x = normal(3, 30, 12, dtype=dtype), normal(3, 20, 12, dtype=dtype)
    states = encoder(source)
    full = decoder(x, states)
    for b in range(3):
        assert_same_bits(encoder(source[b]), states[b])
        assert_same_bits(decoder(x[b], states[b]), full[b])
    memory, caches = decoder.project_context(states), decoder.new_caches(3, 20)
    for part in (slice(0, 7), *(slice(i, i + 1) for i in range(7, 20))):
        step = decoder(x[:, part], memory, caches=caches)
        assert_same_bits(step, full[:, part])


def test_sequences_of_different_lengths_decode_together():
    decoder = make(Decoder, 2, 12, 4, 20, cross_attention=False)
    x, lengths = normal(2, 6, 12, dtype="float64"), np.array([4, 1])
    caches = decoder.new_caches(2, 1, growable=True)
    first = decoder(x[:, :4], caches=caches, kv_lengths=lengths)
    step = decoder(x[[0, 1], lengths][:, np.newaxis], caches=caches)
    for b, n in enumerate(lengths):
        full = decoder(x[b, : n + 1])
        assert_near(first[b, :n], full[:n])
        assert_near(step[b], full[n:])


@pytest.mark.parametrize(("shared", "n_times"), [(True, 1), (False, 3)])
def test_context_is_projected_once_for_each_set_of_weights(
    shared, n_times, monkeypatch
):
    calls = []

    def counted(mha, *args, project=MultiHeadAttention.project_context, **options):
        calls.append(mha)
        return project(mha, *args, **options)

    monkeypatch.setattr(MultiHeadAttention, "project_context", counted)
    decoder = make(Decoder, 3, 12, 4, 20, shared=shared)
    memory = decoder.project_context(normal(7, 12, dtype="float64"))
    assert len(calls) == len({id(part) for part in memory}) == n_times
    caches = decoder.new_caches(1, 3)
    for _ in range(3):
        decoder(normal(1, 12, dtype="float64"), memory, caches=caches)
    assert len(calls) == n_times


def test_one_source_serves_several_targets():
    decoder = make(Decoder, 2, 12, 4, 20)
    x, context = normal(3, 4, 12, dtype="float64"), normal(7, 12, dtype="float64")
    expected = np.stack([decoder(row, context) for row in x])
    assert_near(decoder(x, decoder.project_context(context)), expected)


def test_caches_have_the_shape_of_the_layers(dtype):
    decoder = make(Decoder, 2, 12, 4, 20, num_kv_heads=2, head_dim=5, dtype=dtype)
    for cache in decoder.new_caches(3, 8):
        assert (cache.batch_size, cache.num_kv_heads, cache.head_dim) == (3, 2, 5)
        assert (cache.capacity, cache.key.dtype) == (8, dtype)
    assert decoder.new_caches(3, 8, dtype=np.float16)[0].key.dtype == np.float16


def test_errors_do_not_change_the_caches():
    decoder = make(Decoder, 2, 12, 4, 20)
    x, context = normal(2, 3, 12, dtype="float64"), normal(2, 7, 12, dtype="float64")
    caches = decoder.new_caches(2, 8)
    decoder(x, context, caches=caches)
    caches[1] = KVCache(2, 4, 5, 3, dtype=np.float64)
    caches[1].append(np.zeros((2, 4, 3, 3)), np.zeros((2, 4, 3, 3)))
    for error, wrong in (
        (TypeError, {"context_mask": np.ones((3, 7), int)}),
        (ValueError, {"context_lengths": 8}),
        (ValueError, {}),  # no room in the second layer's cache
    ):
        with pytest.raises(error):
            decoder(x, context, caches=caches, **wrong)
        assert [cache.lengths.tolist() for cache in caches] == [[3, 3], [3, 3]]
    layer, cache = decoder.layers[0], caches[0]
    with pytest.raises(ValueError, match=r"^context_lengths: expected 0 to 7, got 8"):
        layer(x, context, cache=cache, context_lengths=8)
    with pytest.raises(TypeError, match=r"^context_mask: "):  # after the self-attention
        layer(x, context, cache=cache, context_mask=np.ones((3, 7), int))
    assert cache.lengths.tolist() == [3, 3]


def test_parameters_have_dotted_names():
    encoder = Encoder(2, 12, 4, 20, norm_first=True)
    names = ["norm.weight", "norm.bias"]
    for i in range(2):
        names += [
            f"layers.{i}.{name}"
            for name in EncoderLayer(12, 4, 20, norm_first=True).parameters()
        ]
    assert sorted(encoder.parameters()) == sorted(names)
    array = encoder.parameters()["layers.1.self_attention.W_q"]
    assert array is encoder.layers[1].self_attention.W_q
    layer = DecoderLayer(12, 4, 20, bias=False, norm="rms", activation="swiglu")
    assert list(layer.parameters()) == [
        *(f"self_attention.W_{n}" for n in "qkvo"),
        *(f"cross_attention.W_{n}" for n in "qkvo"),
        "norm_1.weight",
        "norm_2.weight",
        "feed_forward.W_1",
        "feed_forward.W_2",
        "feed_forward.W_gate",
        "norm_3.weight",
    ]


@pytest.mark.quick
def test_shared_weights_are_one_set():
    encoder = Encoder(4, 12, 4, 20, shared=True)
    assert all(layer is encoder.layers[0] for layer in encoder.layers)
    assert len(encoder.parameters()) == len(encoder.layers[0].parameters())
    assert all(name.startswith("layers.0.") for name in encoder.parameters())
    x, y = normal(5, 12), normal(5, 12)
    for _ in range(4):
        y = encoder.layers[0](y)
    assert_same_bits(encoder(x), y)
    encoder = Encoder(4, 12, 4, 20)
    assert len({id(layer) for layer in encoder.layers}) == 4


@pytest.mark.parametrize("kind", [Encoder, Decoder])
@pytest.mark.parametrize("options", OPTIONS)
def test_state_dict_makes_another_stack_equal(kind, options, tmp_path):
    one = make(kind, 2, 12, 4, 20, **options)
    other = make(kind, 2, 12, 4, 20, seed=1, **options)
    x = normal(5, 12, dtype="float64")
    arguments = (x,) if kind is Encoder else (x, x)
    assert np.abs(one(*arguments) - other(*arguments)).max() > 0.01
    np.savez(tmp_path / "state.npz", **one.state_dict())
    with np.load(tmp_path / "state.npz") as state:
        other.load_state_dict(state)
    assert_same_bits(other(*arguments), one(*arguments))


def test_loading_lists_all_that_is_wrong_and_changes_nothing():
    encoder = make(Encoder, 2, 12, 4, 20)
    before = copy.deepcopy(encoder)
    state = {name: array + 1 for name, array in before.parameters().items()}
    del state["layers.0.norm_1.weight"]
    state["layers.2.norm_1.weight"] = np.ones(12)
    state["layers.1.feed_forward.W_1"] = np.ones((20, 12))
    text = (
        "state: missing layers.0.norm_1.weight; unexpected layers.2.norm_1.weight; "
        "layers.1.feed_forward.W_1: expected shape (12, 20), got (20, 12)"
    )
    with pytest.raises(ValueError, match=r"^state: ") as caught:
        encoder.load_state_dict(state)
    assert str(caught.value) == text
    assert_same_parameters(encoder, before)


@pytest.mark.quick
def test_zero_sizes():
    encoder, decoder = Encoder(2, 12, 4, 20), Decoder(2, 12, 4, 20)
    for shape in ((0, 12), (0, 5, 12), (3, 0, 12)):
        x = np.zeros(shape, np.float32)
        assert encoder(x).shape == decoder(x, x).shape == shape


X = np.zeros((2, 3, 12), np.float32)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("num_layers", lambda: Encoder(0, 12, 4, 20)),
        ("num_heads", lambda: Encoder(1, 12, 5, 20)),
        ("hidden_dim", lambda: Encoder(1, 12, 4, 0)),
        ("norm", lambda: Encoder(1, 12, 4, 20, norm="batch")),
        ("activation", lambda: Encoder(1, 12, 4, 20, activation="selu")),
        ("eps", lambda: LayerNorm(4, eps=0)),
        ("dim", lambda: RMSNorm(0)),
        ("x", lambda: LayerNorm(4)(X)),
        ("x", lambda: FeedForward(12, 4)(X[..., :8])),
        ("x", lambda: Encoder(1, 12, 4, 20)(X[..., :8])),
        ("context", lambda: Decoder(1, 12, 4, 20)(X)),
        ("context", lambda: Decoder(1, 12, 4, 20)(X, X[..., :8])),
        ("context", lambda: Decoder(2, 12, 4, 20)(X, [KVCache(2, 4, 3, 3)])),
        (
            "caches",
            lambda: Decoder(2, 12, 4, 20)(X, X, caches=[KVCache(2, 4, 3, 3)]),
        ),
        (
            "cache",
            lambda: Decoder(1, 12, 4, 20)(X, X, caches=[KVCache(2, 4, 2, 3)]),
        ),
    ],
)
def test_wrong_numbers_and_shapes_are_value_errors(name, call):
    with refused(ValueError, name):
        call()


@pytest.mark.quick
def test_a_gate_that_the_activation_does_not_use_is_refused():
    network = blocks.FeedForward(8, 16, activation="relu")
    network.W_gate = network.W_1
    for call in (network, network.vjp):
        with refused(ValueError, "W_gate"):
            call(np.ones((2, 8), np.float32))


def test_one_cache_for_two_layers_is_refused():
    caches = [KVCache(2, 4, 3, 3)] * 2
    with pytest.raises(ValueError, match=r"^caches: expected a different one for each"):
        Decoder(2, 12, 4, 20)(X, X, caches=caches)


@pytest.mark.parametrize("name", ["context", "context_mask", "context_lengths"])
def test_context_without_cross_attention_is_refused(name):
    decoder = Decoder(2, 12, 4, 20, cross_attention=False)
    with pytest.raises(ValueError, match=rf"^{name}: expected None without"):
        decoder(X, **{name: 1})
    with pytest.raises(ValueError, match=r"^context: expected None without"):
        decoder.project_context(X)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("num_layers", lambda: Encoder(1.0, 12, 4, 20)),
        ("shared", lambda: Encoder(1, 12, 4, 20, shared=1)),
        ("final_norm", lambda: Encoder(1, 12, 4, 20, final_norm="rms")),
        ("norm_first", lambda: Encoder(1, 12, 4, 20, norm_first=1)),
        ("cross_attention", lambda: Decoder(1, 12, 4, 20, cross_attention=1)),
        ("rng", lambda: Encoder(1, 12, 4, 20, rng=1)),
        ("dtype", lambda: LayerNorm(12, dtype=int)),
        ("eps", lambda: LayerNorm(12, eps="small")),
        ("x", lambda: LayerNorm(12)(X.astype(complex))),
        ("x", lambda: blocks.gelu("x")),
        ("context", lambda: Decoder(2, 12, 4, 20)(X, KVCache(2, 4, 3, 3))),
        (
            "caches",
            lambda: Decoder(2, 12, 4, 20)(X, X, caches=KVCache(2, 4, 3, 3)),
        ),
        ("caches", lambda: Decoder(2, 12, 4, 20)(X, X, caches=[None, None])),
        (
            "context_lengths",
            lambda: Decoder(2, 12, 4, 20)(X, X, context_lengths=0.5),
        ),
        ("context_mask", lambda: Decoder(2, 12, 4, 20)(X, X, context_mask="a")),
        ("dtype", lambda: LayerNorm(12, dtype=None)),
        ("dtype", lambda: LayerNorm(12, dtype="x")),
        ("eps", lambda: LayerNorm(12, eps=True)),
    ],
)
def test_wrong_kinds_are_type_errors(name, call):
    with refused(TypeError, name):
        call()


ENCODERS = {
    "sums are normalized": {},
    "inputs are normalized": {"norm_first": True, "norm": "rms"},
    "gated, grouped": {"norm_first": True, "activation": "swiglu", "num_kv_heads": 2},
    "no biases": {"bias": False, "activation": "gelu"},
    "bfloat16": {"dtype": "bfloat16", "norm_first": True},
    "shared": {"shared": True},
}
CALLS = {
    "plain": {},
    "options": {"causal": True, "window": (2, 0), "softcap": 3.0, "q_offset": 1},
    "arrays": {"mask": np.tri(5, dtype=bool), "bias": normal(4, 5, 5)},
    "lengths": {"kv_lengths": [3, 5]},
    "rotary": {"rotary": positions.Rotary(3, rotary_dim=2), "num_threads": 2},
}


def encoder_and_tokens(options, dtype=np.float32):
    options = {"dtype": dtype, **options}
    return make(Encoder, 3, 12, 4, 20, **options), normal(2, 5, 12, dtype=np.float32)


def one_by_one(encoder, x, **options):
    """What the layers of a stack make of tokens, called from Python."""
    for layer in encoder.layers:
        x = layer(x, **options)
    return x if encoder.norm is None else encoder.norm(x)


def stacked(encoder, x, **options):
    """The same by the stack, and whether C ran all layers together."""
    results, stack = [], _attnpy.stack

    def noted(*arguments):
        results.append(stack(*arguments))
        return results[-1]

    with mock.patch.object(_attnpy, "stack", noted):
        output = encoder(x, **options)
    return output, [result is output for result in results] == [True]


@pytest.mark.quick
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("options", ENCODERS.values(), ids=ENCODERS)
def test_an_encoder_is_one_call_of_c(options, call):
    encoder, x = encoder_and_tokens(options)
    output, together = stacked(encoder, x, **call)
    assert together
    assert_same_bits(output, one_by_one(encoder, x, **call))


@pytest.mark.quick
def test_an_encoder_of_packed_sequences_is_one_call_of_c():
    encoder, x = encoder_and_tokens({})
    x = x.reshape(10, 12)
    output, together = stacked(encoder, x, seq_offsets=[0, 3, 10])
    assert together
    assert_same_bits(output, one_by_one(encoder, x, seq_offsets=[0, 3, 10]))
    assert_same_bits(output[:3], encoder(x[:3]))


def test_layers_of_an_encoder_may_differ():
    encoder, x = encoder_and_tokens({"norm_first": True})
    encoder.layers[0].window = (1, 1)
    encoder.layers[0].norm_1 = None
    encoder.layers[1].scale = 0.1
    encoder.layers[1].self_attention.sinks = normal(4, dtype=np.float32)
    encoder.layers[2].rotary = positions.Rotary(3, rotary_dim=2)
    encoder.layers[2].self_attention.sinks = normal(4, seed=1, dtype=np.float32)
    output, together = stacked(encoder, x)
    assert together
    assert_same_bits(output, one_by_one(encoder, x))
    with pytest.raises(ValueError, match=r"^window: expected None, as the layer has"):
        encoder(x, window=(2, 2))


def test_an_encoder_sees_what_changes():
    encoder, x = encoder_and_tokens({})
    before = encoder(x)
    encoder.layers[1].feed_forward.W_2 *= np.float32(2)
    assert not np.array_equal(encoder(x), before)
    assert_same_bits(encoder(x), one_by_one(encoder, x))
    encoder.quantize(activations="int8")
    output, together = stacked(encoder, x)
    assert together
    assert_same_bits(output, one_by_one(encoder, x))


def test_an_encoder_calls_layers_that_c_does_not_know():
    class Doubling(EncoderLayer):
        def __call__(self, x, **options):
            return 2 * super().__call__(x, **options)

    class Loud(FeedForward):
        def __call__(self, x, **options):
            return 3 * super().__call__(x, **options)

    for change in (
        lambda e: e.layers.__setitem__(1, make(Doubling, 12, 4, 20, dtype="float32")),
        lambda e: setattr(e.layers[1], "feed_forward", make(Loud, 12, 20)),
        lambda e: setattr(e.layers[1].self_attention, "W_q", np.eye(12)),  # float64
        lambda e: setattr(e.layers[2].norm_2, "weight", np.ones(12)),
    ):
        encoder, x = encoder_and_tokens({})
        change(encoder)
        output, together = stacked(encoder, x)
        assert not together
        assert_same_bits(output, one_by_one(encoder, x))
    encoder, x = encoder_and_tokens({})
    with mock.patch.object(FeedForward, "__call__", lambda self, x, **_: 0 * x):
        assert_same_bits(encoder(x), one_by_one(encoder, x))


def test_an_encoder_says_what_its_layers_say():
    encoder, x = encoder_and_tokens({})
    for options in (
        {"mask": np.ones((4, 3))},
        {"causal": "x"},
        {"mixed": 2},
        {"num_threads": 0},
        {"kv_lengths": [9, 9]},
        {"rotary": positions.Rotary(8)},
    ):
        with pytest.raises((TypeError, ValueError)) as expected:
            encoder.layers[0](x, **options)
        with refused(expected.type, str(expected.value).partition(":")[0]) as caught:
            encoder(x, **options)
        assert str(caught.value) == str(expected.value)


def decoder_and_tokens(options):
    options = {"dtype": np.float32, "norm_first": True, **options}
    decoder = make(Decoder, 3, 12, 4, 20, cross_attention=False, **options)
    return decoder, normal(2, 5, 12, dtype=np.float32)


@pytest.mark.quick
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("options", ENCODERS.values(), ids=ENCODERS)
def test_a_decoder_without_caches_is_one_call_of_c(options, is_causal, call):
    decoder, x = decoder_and_tokens(options)
    call = {name: value for name, value in call.items() if name != "causal"}
    for layer in decoder.layers:
        layer.causal = is_causal
    output, together = stacked(decoder, x, **call)
    assert together
    assert_same_bits(output, one_by_one(decoder, x, **call))


def test_a_decoder_of_packed_sequences_is_one_call_of_c():
    decoder, x = decoder_and_tokens({})
    x = x.reshape(10, 12)
    output, together = stacked(decoder, x, seq_offsets=[0, 3, 10])
    assert together
    assert_same_bits(output, one_by_one(decoder, x, seq_offsets=[0, 3, 10]))
    assert_same_bits(output[:3], decoder(x[:3]))


def test_a_decoder_calls_layers_that_differ_in_what_tokens_see():
    decoder, x = decoder_and_tokens({})
    decoder.layers[1].causal = False
    output, together = stacked(decoder, x)
    assert not together
    assert_same_bits(output, one_by_one(decoder, x))


def test_a_decoder_says_what_its_layers_say():
    decoder, x = decoder_and_tokens({})
    crossing = make(Decoder, 2, 12, 4, 20, dtype=np.float32)
    for stack, options in (
        (decoder, {"mask": np.ones((4, 3))}),
        (decoder, {"mixed": 2}),
        (decoder, {"num_threads": 0}),
        (decoder, {"kv_lengths": [9, 9]}),
        (decoder, {"context_lengths": [2, 2]}),
        (crossing, {}),
    ):
        with pytest.raises((TypeError, ValueError)) as expected:
            stack.layers[0](x, **options)
        with pytest.raises(expected.type) as caught:
            stack(x, **options)
        assert str(caught.value) == str(expected.value)


def test_unknown_options_are_refused():
    for call in (
        lambda: Encoder(1, 12, 4, 20, dropout=0.1),
        lambda: Encoder(1, 12, 4, 20)(X, cache=None),
        lambda: Decoder(1, 12, 4, 20)(X, X, causal=False),
    ):
        with pytest.raises(TypeError, match="unexpected keyword"):
            call()


def test_everything_public_is_listed():
    public = {
        name
        for name, thing in vars(blocks).items()
        if not name.startswith("_") and not isinstance(thing, ModuleType)
    }
    assert public == set(blocks.__all__)
