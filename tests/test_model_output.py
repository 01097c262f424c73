"""Weights and hidden states out of layers, stacks and models.

What is returned besides the output is what plain NumPy computes on the way, and asking
for it changes no bit of the output.
"""

import tracemalloc

import numpy as np
import pytest
from support import families
from support.arrays import normal
from support.comparisons import assert_near, assert_same_bits
from support.families import IDS, LENGTHS, batch
from support.formulas import multi_head_attention, softmax

from attnpy import checkpoints
from attnpy.blocks import Decoder, DecoderLayer, Encoder, ModelOutput
from attnpy.layers import MultiHeadAttention
from attnpy.models import BertEncoder, CausalDecoder

OPTIONS = (
    {},
    {"norm_first": True, "norm": "rms", "activation": "swiglu"},
    {"num_kv_heads": 2, "bias": False, "final_norm": True},
    {"shared": True, "num_kv_heads": 1},
)
HEADS = (None, 0, [3], [2, 0], [-1, 1], [3, 2, 1, 0])


def make(kind, *args, **options):
    options = {"dtype": np.float64, **options}
    return kind(*args, rng=np.random.default_rng(0), **options)


def chosen(heads):
    """An index of these heads, on an axis of 4."""
    return slice(None) if heads is None else np.atleast_1d(heads)


def bert(dtype=np.float32):
    """(model, its tensors)."""
    tensors = families.tensors(families.BERT)
    model = BertEncoder.from_config(families.BERT, dtype=dtype)
    checkpoints.load(model, tensors, "bert")
    return model, tensors


def decoder(kind, dtype=np.float32):
    """(model, its tensors, its configuration)."""
    config = families.DECODERS[kind]
    tensors = families.tensors(config)
    model = CausalDecoder.from_config(config, dtype=dtype)
    checkpoints.load(model, tensors, families.NAMES[kind])
    return model, tensors, config


@pytest.fixture
def softmaxes(monkeypatch):
    """What the models' arithmetic has given to its values, head after head."""
    found = []

    def kept(scores):
        found.append(softmax(scores))
        return found[-1]

    monkeypatch.setattr(families, "softmax", kept)
    return found


# ---- Attention -----------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("heads", HEADS[1:])
def test_heads_are_those_of_all_weights(heads, num_kv_heads, dtype):
    mha = make(MultiHeadAttention, 12, 4, num_kv_heads=num_kv_heads, dtype=dtype)
    x, context = normal(2, 70, 12, dtype=dtype), normal(2, 5, 12, dtype=dtype)
    for given in ((x,), (x, context), (x[0],), (x, mha.project_context(context))):
        output, weights = mha(*given, causal=True, return_weights=True)
        result = mha(*given, causal=True, return_weights=True, heads=heads)
        expected = weights[..., chosen(heads), :, :]
        assert_same_bits(result, (output, np.ascontiguousarray(expected)))
        mean = mha(*given, return_weights=True, heads=heads, average_weights=True)[1]
        of_one = mha(*given, return_weights=True, heads=heads)[1]
        assert_near(mean, of_one.astype(float).mean(axis=-3), 2e-2)


@pytest.mark.quick
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_heads_of_packed_sequences_and_of_caches(num_kv_heads):
    mha = make(MultiHeadAttention, 12, 4, num_kv_heads=num_kv_heads)
    x, starts = normal(14, 12, dtype="float64"), [0, 4, 13, 14]
    output, weights = mha(x, seq_offsets=starts, return_weights=True)
    for heads in HEADS:
        result = mha(x, seq_offsets=starts, return_weights=True, heads=heads)
        assert_same_bits(result, (output, weights[:, chosen(heads)].copy()))
    layer = make(DecoderLayer, 12, 4, 20, cross_attention=False)
    cache, whole = layer.new_cache(1, 14), layer(x, return_weights=True)
    for part in (slice(0, 5), slice(5, 6), slice(6, 14)):
        step = layer(x[part], cache=cache, return_weights=True, heads=[2, 1])
        keys = slice(0, part.stop)
        assert_same_bits(step.weights, whole.weights[[2, 1], part, keys].copy())


def test_heads_take_memory_for_themselves():
    mha = make(MultiHeadAttention, 32, 16, dtype=np.float32)
    x = normal(600, 32)
    whole = 16 * 600 * 600 * 4

    def peak(**options):
        tracemalloc.start()
        mha(x, return_weights=True, **options)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak() > whole
    assert peak(heads=[3, 8]) < whole / 4
    encoder = make(Encoder, 6, 32, 16, 20, dtype=np.float32)
    tracemalloc.start()
    encoder(x, return_weights=True, layers=[1, 4], heads=3)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < whole / 2


# ---- Layers and stacks ---------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(9, 12), (2, 9, 12)])
@pytest.mark.parametrize("options", OPTIONS)
def test_an_encoder_returns_what_its_layers_compute(options, shape):
    encoder, x = make(Encoder, 3, 12, 4, 20, **options), normal(*shape, dtype="float64")
    plain, states = encoder(x), [x]
    result = encoder(x, return_weights=True, return_hidden_states=True)
    assert isinstance(result, ModelOutput)
    assert_same_bits(result.output, plain)
    assert result.cross_weights is None
    for layer, weights in zip(encoder.layers, result.weights, strict=True):
        tokens = layer.norm_1(states[-1]) if layer.norm_first else states[-1]
        assert_near(weights, multi_head_attention(layer.self_attention, tokens)[1])
        one = layer(states[-1], return_weights=True)
        assert_same_bits(one[:2], (layer(states[-1]), weights.copy()))
        assert one[2:] == (None, None)
        states.append(one.output)
    states[-1] = plain  # after the final norm
    assert_same_bits(result.hidden_states, np.stack(states))
    only = encoder(x, return_hidden_states=True)
    assert_same_bits(only.hidden_states, result.hidden_states)
    assert only.weights is None
    assert encoder(x, return_weights=True).hidden_states is None


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS)
def test_a_decoder_returns_the_weights_of_both_attentions(options):
    decoder = make(Decoder, 3, 12, 4, 20, context_dim=8, **options)
    x, context = normal(2, 6, 12, dtype="float64"), normal(2, 7, 8, dtype="float64")
    result = decoder(x, context, return_weights=True, return_hidden_states=True)
    assert_same_bits(result.output, decoder(x, context))
    causal = np.tri(6, dtype=bool)
    for i, layer in enumerate(decoder.layers):
        before = result.hidden_states[i]
        tokens = layer.norm_1(before) if layer.norm_first else before
        attended, weights = multi_head_attention(
            layer.self_attention, tokens, allowed=causal
        )
        assert_near(result.weights[i], weights)
        after = before + attended
        after = layer.norm_2(after) if layer.norm_first else layer.norm_1(after)
        expected = multi_head_attention(layer.cross_attention, after, context)[1]
        assert_near(result.cross_weights[i], expected)
        one = layer(before, context, return_weights=True)
        assert_same_bits(one.cross_weights, result.cross_weights[i].copy())
    memory, caches = decoder.project_context(context), decoder.new_caches(2, 6)
    for i in range(6):
        step = decoder(x[:, i : i + 1], memory, caches=caches, return_weights=True)
        row = result.weights[..., i : i + 1, : i + 1]
        assert_same_bits(step.weights, np.ascontiguousarray(row))
        row = result.cross_weights[..., i : i + 1, :]
        assert_same_bits(step.cross_weights, np.ascontiguousarray(row))


@pytest.mark.quick
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("layers", [None, 1, [0], [2, 0], [-1], [-3, 1]])
def test_layers_and_heads_are_those_of_all(layers, heads):
    x, context = normal(2, 9, 12, dtype="float64"), normal(2, 5, 12, dtype="float64")
    which = {} if layers is None else {"layers": layers}
    which = which if heads is None else {**which, "heads": heads}
    index = slice(None) if layers is None else np.atleast_1d(layers)
    for kind, given in ((Encoder, (x,)), (Decoder, (x, context))):
        stack = make(kind, 3, 12, 4, 20, num_kv_heads=2)
        both = {"return_weights": True, "return_hidden_states": True}
        whole, part = stack(*given, **both), stack(*given, **both, **which)
        assert_same_bits(part.output, whole.output)
        for one, other in zip(part[1:3], whole[1:3], strict=True):
            if other is not None:
                expected = other[index][:, :, chosen(heads)]
                assert_same_bits(one, np.ascontiguousarray(expected))
        states = whole.hidden_states
        states = states if layers is None else states[1:][index]
        assert_same_bits(part.hidden_states, states)


@pytest.mark.quick
def test_packed_sequences_have_the_weights_of_each_alone():
    encoder, decoder = make(Encoder, 2, 12, 4, 20), make(Decoder, 2, 12, 4, 20)
    x, context = normal(14, 12, dtype="float64"), normal(11, 12, dtype="float64")
    starts, of_context = np.array([0, 4, 13, 14]), np.array([0, 6, 6, 11])
    both = {"return_weights": True, "return_hidden_states": True, "seq_offsets": starts}
    packed = (
        encoder(x, **both),
        decoder(x, context, context_offsets=of_context, **both),
    )
    for result, stack in zip(packed, (encoder, decoder), strict=True):
        for b in range(3):
            own = slice(*starts[b : b + 2])
            given = (x[own],)
            if stack is decoder:
                given = (x[own], context[slice(*of_context[b : b + 2])])
            alone = stack(*given, return_weights=True, return_hidden_states=True)
            states = np.ascontiguousarray(result.hidden_states[:, own])
            assert_same_bits(states, alone.hidden_states)
            for name in ("weights", "cross_weights"):
                one, whole = getattr(alone, name), getattr(result, name)
                if one is not None:
                    part = whole[:, b, :, : one.shape[-2], : one.shape[-1]]
                    assert_same_bits(np.ascontiguousarray(part), one)
                    assert np.count_nonzero(whole[:, b]) == np.count_nonzero(one)


def test_states_come_in_the_dtype_of_the_output():
    x = np.arange(36).reshape(3, 12)
    encoder = make(Encoder, 2, 12, 4, 20, dtype=np.float32)
    result = encoder(x, return_hidden_states=True)
    assert result.hidden_states.dtype == result.output.dtype == np.float64
    assert_same_bits(result.hidden_states[0], x.astype(float))


@pytest.mark.quick
def test_what_cannot_be_returned_is_refused():
    x = normal(5, 12, dtype="float64")
    encoder, decoder = make(Encoder, 2, 12, 4, 20), make(Decoder, 2, 12, 4, 20)
    layer = encoder.layers[0]
    for error, text, call in (
        (ValueError, "heads: expected -4 to 3, got 4", {"heads": 4}),
        (ValueError, "heads: expected no repeated indices", {"heads": [0, -4]}),
        (ValueError, "heads: expected an integer, or a sequence", {"heads": []}),
        (TypeError, "heads: expected integers", {"heads": [0.5]}),
        (ValueError, "layers: expected -2 to 1, got 2", {"layers": [0, 2]}),
        (ValueError, "layers: expected no repeated indices", {"layers": [1, 1]}),
        (TypeError, "return_weights: expected a bool", {"return_weights": 1}),
        (
            ValueError,
            "heads: expected None without return_weights=True",
            {"return_weights": False},
        ),
    ):
        given = {"return_weights": True, "heads": 0, **call}
        with pytest.raises(error, match=text):
            encoder(x, **given)
        with pytest.raises(error, match=text):
            decoder(x, x, **given)
        if "layers" not in call:
            with pytest.raises(error, match=text):
                layer(x, **given)
    with pytest.raises(ValueError, match="layers: expected None without return_w"):
        encoder(x, layers=0)
    with pytest.raises(
        ValueError, match="heads: expected None without return_weights=True"
    ):
        encoder(x, heads=0, return_hidden_states=True)
    with pytest.raises(TypeError, match="return_hidden_states: expected a bool"):
        encoder(x, return_hidden_states="yes")
    for given in ({"output_attentions": True}, {"output_hidden_states": True}):
        with pytest.raises(TypeError, match=r"unexpected keyword .*: write \w+="):
            encoder(x, **given)
        with pytest.raises(TypeError, match=r"Decoder\(\).*: write \w+="):
            decoder(x, x, **given)
    with pytest.raises(TypeError, match="stacks Encoder and Decoder have return"):
        layer(x, return_hidden_states=True)


def test_caches_of_different_lengths_have_no_weights_in_one_array():
    decoder = make(Decoder, 2, 12, 4, 20, cross_attention=False)
    x, caches = normal(1, 12, dtype="float64"), decoder.new_caches(1, 9)
    decoder.layers[1](x, cache=caches[1])
    with pytest.raises(
        ValueError, match="layers: expected some whose weights have one"
    ):
        decoder(x, caches=caches, return_weights=True)
    assert [cache.lengths.tolist() for cache in caches] == [[0], [1]]
    alone = decoder(x, caches=caches, return_weights=True, layers=1)
    assert alone.weights.shape == (1, 4, 1, 2)


# ---- Models --------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bert_returns_the_weights_of_its_arithmetic(dtype, softmaxes):
    model, tensors = bert(dtype)
    expected = families.bert_states(tensors, families.BERT, IDS)
    result = model(IDS, return_weights=True, return_hidden_states=True)
    limit = 1e-12 if dtype == np.float64 else 5e-5
    n_layers, n_heads = len(model.encoder.layers), 3
    assert len(softmaxes) == n_layers * n_heads
    weights = np.reshape(softmaxes, (n_layers, n_heads, 9, 9))
    assert result.weights.dtype == dtype
    assert_near(result.weights, weights, limit)
    assert_near(result.output, expected, limit)
    assert_same_bits(result.output, model(IDS))
    assert_same_bits(result.hidden_states[-1], result.output)
    states = result.hidden_states[0]
    for i, layer in enumerate(model.encoder.layers):
        states = layer(states)
        assert_same_bits(states, result.hidden_states[i + 1])


@pytest.mark.quick
@pytest.mark.parametrize("kind", families.DECODERS)
def test_decoders_return_the_weights_of_their_arithmetic(kind, softmaxes):
    model, tensors, config = decoder(kind, np.float64)
    families.logits(tensors, config, IDS)
    result = model(IDS, return_weights=True, return_hidden_states=True)
    # Of attention, not of a router; a sink's share is in the last column.
    keys = [each[:, : len(IDS)] for each in softmaxes if each.ndim == 2]
    assert_near(result.weights, np.reshape(keys, result.weights.shape), 1e-11)
    assert_same_bits(result.output, model(IDS))
    assert_same_bits(result.hidden_states[-1], result.output)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "qwen3", "gemma2"])
def test_padding_changes_nothing_and_has_zeros(kind, dtype):
    model = bert(dtype)[0] if kind == "bert" else decoder(kind, dtype)[0]
    both = {"return_weights": True, "return_hidden_states": True}
    result = model(batch(), lengths=LENGTHS, **both)
    assert_same_bits(result.output, model(batch(), lengths=LENGTHS))
    assert result.hidden_states.dtype == result.output.dtype
    for b, (ids, n) in enumerate(zip(batch(), LENGTHS, strict=True)):
        alone, padded = model(ids[:n], **both), model(ids, lengths=n, **both)
        assert_same_bits(padded.output[:n], alone.output)
        for one in (
            ModelOutput(*(None if part is None else part[:, b] for part in result)),
            padded,
        ):
            assert one.weights.shape[-2:] == (9, 9)
            part = np.ascontiguousarray(one.weights[:, :, :n, :n])
            assert_same_bits(part, alone.weights)
            assert np.count_nonzero(one.weights) == np.count_nonzero(part)
            states = np.ascontiguousarray(one.hidden_states[:, :n])
            assert_same_bits(states, alone.hidden_states)
            assert not one.hidden_states[:, n:].any()


@pytest.mark.quick
def test_a_mask_of_bert_hides_keys_from_the_weights():
    model, _ = bert()
    exists = np.ones((3, 9), bool)
    exists[0, 3], exists[2, :2] = False, False
    result = model(batch(), token_mask=exists, return_weights=True)
    assert_same_bits(result.output, model(batch(), token_mask=exists))
    of_keys = np.moveaxis(result.weights, -1, 2)  # (layers, B, Lk, H, Lq)
    assert not of_keys[:, ~exists].any()
    assert of_keys[:, exists].all()
    np.testing.assert_allclose(result.weights.sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_caches_give_the_rows_of_one_pass(kind):
    model, _, _ = decoder(kind)
    both = {"return_weights": True, "return_hidden_states": True, "layers": [1]}
    whole, caches = model(IDS, **both), model.decoder.new_caches(1, 9)
    for part in (slice(0, 4), slice(4, 5), slice(5, 9)):
        step = model(IDS[part], caches=caches, **both)
        row = whole.weights[:, :, part, : part.stop]
        assert_same_bits(step.weights, np.ascontiguousarray(row))
        states = np.ascontiguousarray(whole.hidden_states[:, part])
        assert_same_bits(step.hidden_states, states)
    rows, caches = batch(), model.decoder.new_caches(3, 12)
    first = model(rows, lengths=LENGTHS, caches=caches, return_weights=True)
    assert_same_bits(
        first.weights, model(rows, lengths=LENGTHS, return_weights=True).weights
    )
    then = model(rows[:, :3], lengths=[3, 1, 2], caches=caches, return_weights=True)
    assert then.weights.shape[-2:] == (3, 10)
    ids = np.concatenate([rows[2, :1], rows[2, :2]])
    alone = model(ids, return_weights=True).weights[:, :, 1:]
    part = np.ascontiguousarray(then.weights[:, 2, :, :2, :3])
    assert_same_bits(part, np.ascontiguousarray(alone))


@pytest.mark.quick
def test_no_sequence_and_no_token_have_weights_too():
    model, _ = bert()
    both = {"return_weights": True, "return_hidden_states": True}
    n = len(model.encoder.layers)
    for shape in ((0, 4), (2, 0), (0,)):
        ids = np.zeros(shape, int)
        result = model(ids, **both)
        length = shape[-1]
        assert result.weights.shape == (n, *shape[:-1], 3, length, length)
        assert result.hidden_states.shape == (n + 1, *shape, 12)
    result = model(batch(), lengths=[0, 9, 0], **both)
    assert not result.weights[:, [0, 2]].any()
    assert model(batch(), lengths=[0, 0, 0], **both).weights.shape == (n, 3, 3, 9, 9)
