"""Layers, blocks and models backwards: difference quotients, bits, errors."""

import functools
import itertools
import tracemalloc

import numpy as np
import pytest
from support import arrays, public
from support.calls import TIERS, threads_for_any_work
from support.comparisons import assert_same_bits
from support.errors import refused
from support.processes import assert_runs
from support.quotients import (
    assert_gradient,
    assert_gradients,
    assert_model_gradients,
    with_values,
)

from attnpy import _linear
from attnpy.blocks import (
    Decoder,
    DecoderLayer,
    Embedding,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    Linear,
    MixtureOfExperts,
    RMSNorm,
    _dropout,
)
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.models import BertEncoder, CausalDecoder, EncoderDecoder
from attnpy.positions import Rotary

B, L, LC, E, EC, H = 2, 7, 4, 12, 5, 3
normal = functools.partial(arrays.normal, dtype=np.float64)


def mha(n_kv_heads=H, norm=None, together=False, **options):
    """An attention layer in float64 with biases, of 3 heads of 4."""
    layer = MultiHeadAttention(
        E, H, num_kv_heads=n_kv_heads, bias=True, dtype=np.float64, **options
    )
    if norm is not None:
        layer.q_norm, layer.k_norm = (
            norm(4 * (n if together else 1), dtype=np.float64) for n in (H, n_kv_heads)
        )
    return with_values(layer)


X = normal(B, L, E)
BIAS, SINKS = normal(H, L, L, seed=2), normal(H, seed=3)
MASK = np.random.default_rng(0).random((B, 1, L, L)) < 0.7


@pytest.mark.quick
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "mask": MASK, "scale": 0.3},
        {"bias": BIAS, "sinks": SINKS, "softcap": 2.0, "wanted": ("bias", "sinks")},
        {"bias": BIAS, "sinks": SINKS, "wanted": ["sinks"], "checkpoint": True},
        {"window": (2, 1), "kv_lengths": [3, 7], "num_threads": 2},
        {"causal": True, "q_offset": [3, 0], "residual": normal(B, L, E, seed=4)},
        {"causal": True, "rotary": Rotary(4), "q_offset": [0, 4]},
        {"rotary": Rotary(4, interleaved=True, rotary_dim=2), "checkpoint": True},
    ],
)
@pytest.mark.parametrize("norm", [None, RMSNorm, LayerNorm])
def test_attention_layers_have_the_gradients_of_difference_quotients(norm, options):
    assert_gradients(mha(norm=norm), (X.copy(),), options)
    if "residual" not in options:
        assert_gradients(mha(1, norm), (X[:1].copy(),), {**options, **one(options)})


@pytest.mark.quick
@pytest.mark.parametrize("n_kv_heads", [1, H])
@pytest.mark.parametrize("norm", [RMSNorm, LayerNorm])
def test_norms_of_all_heads_have_the_gradients_of_quotients(norm, n_kv_heads):
    options = {"causal": True, "rotary": Rotary(4), "kv_lengths": [3, 7]}
    assert_gradients(mha(n_kv_heads, norm, together=True), (X.copy(),), options)


def one(options):
    """The options of a batch for its first member only."""
    names = ("mask", "kv_lengths", "q_offset")
    return {name: options[name][:1] for name in names if name in options}


@pytest.mark.quick
@pytest.mark.parametrize("shapes", list(itertools.product([(), (B,)], repeat=3)))
def test_cross_attention_has_the_gradients_of_difference_quotients(shapes):
    of_x, of_context, of_value = shapes
    arguments = (
        normal(*of_x, L, E),
        normal(*of_context, LC, EC, seed=1),
        normal(*of_value, LC, 6, seed=2),
    )
    assert_gradients(mha(context_dim=EC, value_dim=6), arguments, {})
    assert_gradients(mha(context_dim=EC), arguments[:2], {"kv_lengths": 3})


@pytest.mark.quick
def test_a_context_that_is_the_tokens_has_a_gradient_of_its_own():
    layer, x = mha(), X.copy()
    output, pullback = layer.vjp(x, x)
    found, apart = pullback(output), layer.vjp(x, x.copy())[1](output)
    assert_same_bits((found.x, found.context), (apart.x, apart.context))
    assert not (apart.x == apart.context).any()


@pytest.mark.quick
@pytest.mark.parametrize(
    "options",
    [
        {"causal": True, "mask": MASK[0, 0]},
        {"bias": normal(L, L), "wanted": "bias"},
        {"bias": normal(B, L, L), "wanted": "bias", "checkpoint": True},
        {"kv_lengths": [2, 7], "softcap": 3.0},
    ],
)
def test_one_head_has_the_gradients_of_difference_quotients(options):
    head = SelfAttention(E, 4, value_head_dim=3, bias=True, dtype=np.float64)
    if np.ndim(options.get("bias")) == 2:
        options = {**options, "bias": options["bias"].copy()}
    assert_gradients(with_values(head), (X.copy(),), options)


@pytest.mark.quick
@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_in_a_layer_is_that_of_attention(dropout):
    layer, x = mha(), X.copy()
    options = {"dropout": dropout, "dropout_seed": 5}
    output, pullback = layer.vjp(x, **options)
    grad = normal(*output.shape, seed=7)

    def run():
        return np.sum(layer.vjp(x, **options)[0] * grad)

    assert not np.allclose(output, layer(x))
    found = pullback(grad)
    assert_gradient(run, x, found.x, "x")
    assert_gradient(run, layer.W_v, found.parameters["W_v"], "W_v")


@pytest.mark.quick
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_norms_have_the_gradients_of_difference_quotients(kind):
    norm, residual = with_values(kind(E, dtype=np.float64)), normal(B, L, E, seed=5)
    assert_gradients(norm, (X.copy(),), {})
    output, pullback = norm.vjp(X, residual)
    assert_same_bits(output, norm(X, residual))
    assert_same_bits(pullback(output).x, norm.vjp(X + residual)[1](output).x)


ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2", "tanh")
GATED = ("swiglu", "geglu", "geglu_tanh", "reglu", "swiglu_oai")


@pytest.mark.quick
@pytest.mark.parametrize("activation", ACTIVATIONS + GATED)
@pytest.mark.parametrize("bias", [True, False])
def test_networks_have_the_gradients_of_difference_quotients(activation, bias):
    make = functools.partial(FeedForward, E, 20, activation=activation, bias=bias)
    network = with_values(make(dtype=np.float64))
    assert_gradients(network, (X.copy(),), {})
    residual = normal(B, L, E, seed=5)
    assert_gradients(network, (X.copy(),), {"residual": residual, "checkpoint": True})


@pytest.mark.quick
@pytest.mark.parametrize("bias", [True, False])
def test_projections_have_the_gradients_of_difference_quotients(bias):
    layer = with_values(Linear(E, 5, bias=bias, dtype=np.float64))
    assert_gradients(layer, (X.copy(),), {})
    assert_gradients(layer, (X[0, 0].copy(),), {"num_threads": 2})
    expected = X @ layer.W + (layer.b if bias else 0)
    np.testing.assert_allclose(layer(X), expected, rtol=1e-12)


@pytest.mark.quick
def test_tables_have_the_gradients_of_difference_quotients():
    layer = with_values(Embedding(30, 5, dtype=np.float64))
    ids = np.array([[7, 1, 29], [1, 1, 0]])
    assert_same_bits(layer(ids), layer.weight[ids])
    assert layer(3).shape == (5,)
    vjp = functools.partial(layer.vjp, ids)
    assert not assert_model_gradients(layer, lambda: layer(ids), vjp)
    for wrong, error in (([30], ValueError), ([-1], ValueError), ([0.5], TypeError)):
        with refused(error, "token_ids"):
            layer(wrong)


@pytest.mark.quick
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_layers_of_blocks_have_the_gradients_of_difference_quotients(norm_first, norm):
    options = {
        "norm_first": norm_first,
        "norm": norm,
        "activation": "gelu" if norm_first else "swiglu",
        "dtype": np.float64,
    }
    layer = with_values(EncoderLayer(E, H, 20, **options))
    assert_gradients(layer, (X.copy(),), {"causal": True})
    assert_gradients(
        layer, (X.copy(),), {"bias": BIAS, "wanted": ["bias"], "checkpoint": True}
    )
    layer = with_values(DecoderLayer(E, H, 20, context_dim=EC, **options))
    context, mask = normal(B, LC, EC), np.arange(L * LC).reshape(L, LC) % 3 > 0
    assert_gradients(layer, (X.copy(), context), {"context_lengths": [2, 4]})
    layer.after_1, layer.after_3 = (RMSNorm(E, dtype=np.float64) for _ in range(2))
    layer.window, layer.scale, layer.rotary = (3, 0), 0.4, Rotary(4)
    assert_gradients(with_values(layer), (X.copy(), context[0]), {"context_mask": mask})


@pytest.mark.quick
@pytest.mark.parametrize("make", [EncoderLayer, DecoderLayer])
def test_names_that_can_be_read_once_are_there_when_a_layer_runs_again(make):
    options = {} if make is EncoderLayer else {"cross_attention": False}
    layer = make(E, H, 20, dtype=np.float64, **options)
    output, pullback = layer.vjp(X, bias=BIAS, wanted=iter(["bias"]), checkpoint=True)
    expected = layer.vjp(X, bias=BIAS, wanted="bias")[1](output)
    assert_same_bits(pullback(output).bias, expected.bias)


@pytest.mark.quick
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_stacks_have_the_gradients_of_difference_quotients(shared, checkpoint):
    make = {"shared": shared, "dtype": np.float64, "activation": "gelu"}
    options = {"checkpoint": checkpoint}
    encoder = with_values(Encoder(2, E, H, 20, norm_first=True, **make))
    both = {"bias": BIAS, "sinks": SINKS, "wanted": ("bias", "sinks")}
    assert_gradients(encoder, (X.copy(),), {**options, **both})
    decoder = with_values(Decoder(2, E, H, 20, **make))
    context = normal(B, LC, E, seed=3)
    assert_gradients(decoder, (X.copy(), context), options)
    packed, packed_context = X.reshape(-1, E).copy(), normal(9, E, seed=4)
    offsets = {"seq_offsets": [0, 5, 14], "context_offsets": [0, 4, 9]}
    assert_gradients(decoder, (packed, packed_context), {**options, **offsets})


IDS = np.random.default_rng(0).integers(0, 30, (3, 7))
DECODERS = (
    {"max_length": 9, "activation": "gelu_tanh"},
    {
        "rotary": Rotary(4),
        "tied": False,
        "num_kv_heads": 2,
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
        "qk_norm": True,
        "norm_after": True,
        "logit_softcap": 3.0,
        "softcap": 5.0,
        "embedding_scale": 4.0,
        "window": [(3, 0), None],
    },
    {
        "rotary": Rotary(4, rotary_dim=2),
        "residual_scale": 0.6,
        "logit_scale": 0.5,
        "scale": 0.3,
        "norm_after": True,
        "logit_softcap": 3.0,
    },
    {"rotary": Rotary(4), "parallel": True, "norm": "rms", "residual_scale": None},
    {
        "rotary": Rotary(4),
        "num_kv_heads": 2,
        "norm": "rms",
        "qk_norm": "all heads",
        "norm_after": "only",
    },
    {"max_length": 9, "parallel": "one norm", "tied": False, "output_bias": True},
)


@pytest.mark.quick
@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("lengths", [None, [3, 7, 0]])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_decoders_have_the_gradients_of_difference_quotients(kind, lengths, checkpoint):
    model = CausalDecoder(2, 16, 4, 32, vocab_size=30, dtype=np.float64, **kind)
    with_values(model)
    options = {"lengths": lengths, "checkpoint": checkpoint}

    def states():
        return model(IDS, lengths=lengths)

    unused = assert_model_gradients(
        model, states, functools.partial(model.vjp, IDS, **options)
    )
    own = {"output": model.tied is False, "output_bias": "output_bias" in kind}
    assert unused == {name for name, is_there in own.items() if is_there}
    unused = assert_model_gradients(
        model,
        lambda: model.logits(states()),
        functools.partial(model.vjp, IDS, logits=True, **options),
    )
    assert unused == set()


@pytest.mark.quick
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lengths": [3, 7, 2], "token_types": IDS % 2},
        {"token_mask": IDS > 5, "token_types": 1},
    ],
)
def test_bert_has_the_gradients_of_difference_quotients(options):
    model = BertEncoder(
        2, 16, 4, 32, vocab_size=30, pooler=True, num_labels=3, dtype=np.float64
    )
    with_values(model)
    head = {"pooler_weight", "pooler_bias", "classifier_weight", "classifier_bias"}
    unused = assert_model_gradients(
        model,
        lambda: model(IDS, **options),
        functools.partial(model.vjp, IDS, **options),
    )
    assert unused == head

    def vjp():
        states, of_states = model.vjp(IDS, **options)
        scores, of_scores = model.classify_vjp(states)

        def pullback(grad):
            found = of_scores(grad)
            gradients = {**of_states(found.x), **found.parameters}
            return {name: gradients[name] for name in model.parameters()}

        return scores, pullback

    run = functools.partial(model, IDS, **options)
    assert not assert_model_gradients(model, lambda: model.classify(run()), vjp)


@pytest.mark.parametrize(
    "options", [{}, {"lengths": [3, 6, 2]}, {"token_mask": IDS > 5}]
)
@pytest.mark.parametrize(
    "kind",
    [
        {"padding_id": 2},
        {"padding_id": 1, "num_types": 0, "num_buckets": 8},
        {"embedding_dim": 6, "shared": True},
    ],
)
def test_berts_kin_have_the_gradients_of_difference_quotients(kind, options):
    model = BertEncoder(
        2, 16, 4, 32, vocab_size=30, max_length=16, dtype=np.float64, **kind
    )
    with_values(model)
    unused = assert_model_gradients(
        model,
        lambda: model(IDS, **options),
        functools.partial(model.vjp, IDS, **options),
    )
    assert unused == set()


@pytest.mark.quick
def test_a_row_that_is_looked_up_often_has_the_sum_of_its_gradients():
    model = CausalDecoder(1, 8, 2, 16, vocab_size=5, max_length=4, dtype=np.float64)
    states, pullback = model.vjp([1, 3, 1, 1])
    found = pullback(states)["token_embedding"]
    assert found[[1, 3]].any(axis=1).all()
    assert not found[[0, 2, 4]].any()


@pytest.mark.quick
def test_gradients_of_rows_that_are_looked_up_are_added_in_order():
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.repeat(np.arange(6), [1, 100, 0, 33, 32, 2]))
    layer = Embedding(6, 3)
    grad = rng.standard_normal((len(ids), 3), dtype=np.float32)
    expected = np.zeros((6, 3), np.float32)
    for row, own in zip(ids, grad, strict=True):
        expected[row] += own
    _, pullback = layer.vjp(ids)
    assert_same_bits(pullback(grad)["weight"], expected)
    _, pullback = layer.vjp(ids[:0])
    assert not pullback(grad[:0])["weight"].any()


def trained(num_threads, checkpoint=False, steps=3):
    """A model after a few steps of gradient descent."""
    model = CausalDecoder(
        2,
        64,
        4,
        100,
        vocab_size=30,
        rotary=Rotary(16),
        num_kv_heads=2,
        activation="swiglu",
        norm="rms",
        qk_norm=True,
        rng=np.random.default_rng(0),
    )
    ids = np.random.default_rng(1).integers(0, 30, (3, 70))
    for _ in range(steps):
        scores, pullback = model.vjp(
            ids, logits=True, num_threads=num_threads, checkpoint=checkpoint
        )
        gradients = pullback(scores)
        for name, array in model.parameters().items():
            array -= np.float32(1e-3) * gradients[name]
    return model.parameters()


def in_one_piece(parameters):
    """All parameters' numbers, one after the other."""
    return np.concatenate([array.ravel() for array in parameters.values()])


@pytest.mark.quick
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_training_has_the_same_bits_for_any_number_of_threads(threads):
    with threads_for_any_work():
        expected = in_one_piece(trained(1))
        assert_same_bits(in_one_piece(trained(threads)), expected)


@pytest.mark.quick
def test_recomputing_changes_no_bit():
    expected = in_one_piece(trained(None))
    assert_same_bits(in_one_piece(trained(None, checkpoint=True)), expected)


SCRIPT = """
import hashlib
from test_vjp import in_one_piece, trained
print(hashlib.sha256(in_one_piece(trained(None)).tobytes()).hexdigest())
"""


def test_training_has_the_same_bits_on_all_instruction_sets():
    tiers = [tier for tier in TIERS if not tier.endswith("bf16")]
    hashes = {assert_runs(SCRIPT, ATTNPY_ISA=tier) for tier in tiers}
    assert len(hashes) == 1


@pytest.mark.quick
def test_a_batch_has_the_gradients_of_each_of_its_members():
    layer = with_values(EncoderLayer(E, H, 20, dtype=np.float32))
    x = X.astype(np.float32)
    output, pullback = layer.vjp(x)
    found = pullback(output)
    for i in range(B):
        alone, pullback = layer.vjp(x[i])
        assert_same_bits(pullback(alone).x, found.x[i])


@pytest.mark.quick
def test_float32_is_near_float64():
    ids = np.random.default_rng(1).integers(0, 30, (4, 60))
    results = []
    for dtype in (np.float32, np.float64):
        model = CausalDecoder(
            2, 64, 4, 128, vocab_size=30, max_length=64, dtype=dtype,
            activation="gelu", rng=np.random.default_rng(0),
        )  # fmt: skip
        scores, pullback = model.vjp(ids, logits=True)
        results.append(pullback(normal(*scores.shape, dtype=dtype)))
    for name, gradient in results[1].items():
        # That of a key's bias is 0 but for rounding: a softmax does not see it.
        of = gradient if not name.endswith("b_k") else results[1][name[:-3] + "W_k"]
        error = np.abs(results[0][name] - gradient).max()
        assert error < 2e-6 * np.abs(of).max(), name


@pytest.mark.quick
def test_gradients_have_the_dtypes_of_what_they_belong_to():
    layer, x = MultiHeadAttention(E, H, bias=True), X.astype(np.float16)
    output, pullback = layer.vjp(x)
    found = pullback(output.astype(np.float64))
    assert output.dtype == np.float32 == found.parameters["W_q"].dtype
    assert found.x.dtype == np.float16
    integers = np.ones((L, E), int)
    output, pullback = layer.vjp(integers)
    assert_same_bits(output, layer(integers))
    assert pullback(output).x.dtype == np.float64


@pytest.mark.quick
def test_no_tokens_have_no_gradients():
    layer = with_values(EncoderLayer(E, H, 20, dtype=np.float64))
    for shape in ((0, E), (0, L, E), (B, 0, E)):
        output, pullback = layer.vjp(np.ones(shape))
        found = pullback(output)
        assert found.x.shape == shape
        assert not any(array.any() for array in found.parameters.values())


@pytest.mark.quick
def test_a_pullback_may_be_called_again():
    layer = with_values(EncoderLayer(E, H, 20, dtype=np.float64))
    output, pullback = layer.vjp(X)
    first = pullback(output)
    second = pullback(output)
    assert_same_bits(first.x, second.x)
    for name, gradient in first.parameters.items():
        assert_same_bits(gradient, second.parameters[name])


def of_blocks(kind, *sizes, **options):
    return with_values(kind(*sizes, dtype=np.float64, **options))


def decoder(options):
    return of_blocks(CausalDecoder, 2, 16, 4, 32, vocab_size=30, **options)


BERT = of_blocks(BertEncoder, 2, 16, 4, 32, vocab_size=30, pooler=True, num_labels=3)
JUDGE = of_blocks(CausalDecoder, 2, 16, 4, 32, vocab_size=30, num_labels=3)
TRANSLATOR = of_blocks(EncoderDecoder, 2, 16, 4, 32, vocab_size=30, num_buckets=4)
STATES, CONTEXT = normal(B, L, 16), normal(B, LC, E, seed=2)

# For each public method whose name ends in vjp: layers, arguments and options.
VJPS = {
    "SelfAttention.vjp": [
        (of_blocks(SelfAttention, E, 5), (X,), {}),
        (
            of_blocks(SelfAttention, E, 5),
            (X, CONTEXT),
            {"bias": BIAS[0, :, :LC], "wanted": ["bias"]},
        ),
    ],
    "MultiHeadAttention.vjp": [
        (mha(), (X,), {"residual": X}),
        (mha(1, RMSNorm), (X,), {"rotary": Rotary(4), "causal": True}),
    ],
    "LayerNorm.vjp": [
        (of_blocks(LayerNorm, E), (X,), {}),
        (of_blocks(LayerNorm, E), (X, X), {}),
    ],
    "RMSNorm.vjp": [(of_blocks(RMSNorm, E), (X,), {})],
    "FeedForward.vjp": [
        (of_blocks(FeedForward, E, 20, activation=kind), (X,), {"residual": X})
        for kind in ("relu", "swiglu")
    ],
    "MixtureOfExperts.vjp": [
        (of_blocks(MixtureOfExperts, E, 20, 4, 2, **more), (X,), {"residual": X})
        for more in ({}, {"renormalize": False, "shared_dim": 6})
    ],
    "Linear.vjp": [(of_blocks(Linear, E, 5), (X,), {})],
    "Embedding.vjp": [(of_blocks(Embedding, 30, 5), (IDS,), {})],
    "EncoderLayer.vjp": [
        (of_blocks(EncoderLayer, E, H, 20, norm_first=first), (X,), {})
        for first in (True, False)
    ],
    "Encoder.vjp": [
        (of_blocks(Encoder, 2, E, H, 20, norm_first=first), (X,), {})
        for first in (True, False)
    ],
    "DecoderLayer.vjp": [
        (of_blocks(DecoderLayer, E, H, 20), (X, CONTEXT), {}),
        (of_blocks(DecoderLayer, E, H, 20, cross_attention=False), (X,), {}),
    ],
    "Decoder.vjp": [(of_blocks(Decoder, 2, E, H, 20), (X, CONTEXT), {})],
    "CausalDecoder.vjp": [
        (decoder(kind), (IDS,), {"logits": logits, "lengths": lengths})
        for kind in DECODERS
        for logits in (False, True)
        for lengths in (None, [3, 7, 0])
    ],
    "CausalDecoder.logits_vjp": [(decoder(kind), (STATES,), {}) for kind in DECODERS],
    "BertEncoder.vjp": [
        (BERT, (IDS,), {"lengths": lengths}) for lengths in (None, [3, 7, 2])
    ],
    "SentenceEncoder.vjp": [],  # in test_sentences.py, with its tokenizer
    "EncoderDecoder.vjp": [
        (TRANSLATOR, (IDS, IDS), {"logits": logits}) for logits in (False, True)
    ],
    "BertEncoder.pool_vjp": [(BERT, (STATES,), {})],
    "BertEncoder.classify_vjp": [(BERT, (STATES,), {})],
    "CausalDecoder.classify_vjp": [(JUDGE, (STATES,), {})],
}


def all_arrays(gradients):
    """Those that a pullback has returned, in order."""
    if isinstance(gradients, dict):
        return [*gradients.values()]
    others = [array for array in gradients if isinstance(array, np.ndarray)]
    return [*others, *gradients.parameters.values()]


@pytest.mark.quick
def test_the_table_has_every_vjp():
    methods = public.callables().keys() - public.objects().keys()
    found = {name for name in methods if name.endswith("vjp")}
    assert VJPS.keys() == {".".join(name.split(".")[-2:]) for name in found}


@pytest.mark.quick
@pytest.mark.parametrize("name", VJPS)
def test_outputs_and_gradients_are_the_callers_to_write_to(name):
    method = name.rpartition(".")[2]
    for (layer, arguments, options), checkpoint in itertools.product(
        VJPS[name], (False, True)
    ):
        vjp = functools.partial(getattr(layer, method), *arguments, **options)
        if checkpoint and "checkpoint" not in public.parameters(vjp):
            continue
        output, pullback = vjp(checkpoint=True) if checkpoint else vjp()
        grad = normal(*output.shape, seed=7)
        expected = [array.copy() for array in all_arrays(pullback(grad.copy()))]
        assert all(array.any() for array in expected)
        output[...] = np.nan
        for _ in range(2):  # the second time after the first's gradients are spoilt
            found = all_arrays(pullback(grad))
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert_same_bits(one, other)
                one[...] = np.nan
        assert_same_bits(grad, normal(*output.shape, seed=7))


@pytest.mark.quick
def test_recomputing_keeps_no_more_than_what_goes_into_the_layers():
    encoder = Encoder(4, 64, 4, 256, rng=np.random.default_rng(0))
    x = normal(8, 64, 64, dtype=np.float32)
    kept = []
    for checkpoint in (False, True):
        tracemalloc.start()
        result = encoder.vjp(x, checkpoint=checkpoint)
        kept.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del result
    assert kept[1] < 6.2 * x.nbytes  # of 4 layers, the result and some objects
    assert kept[0] > 3 * kept[1]


@pytest.mark.quick
def test_the_gradients_of_a_product_are_those_of_its_formula():
    x, weight = normal(B, 130, 20), normal(20, 30, seed=1)
    grad = normal(B, 130, 30, seed=2)
    found = _linear.linear_vjp(grad, x, weight, normal(30))
    rows, grad_rows = x.reshape(-1, 20), grad.reshape(-1, 30)
    np.testing.assert_allclose(found[0], grad @ weight.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[1], rows.T @ grad_rows, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(found[2], grad_rows.sum(axis=0), rtol=1e-12, atol=1e-12)


def with_attributes(layer, **attributes):
    """The layer, after these were assigned."""
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


def packed_layer():
    """A layer whose matrices cannot be written to."""
    layer = MultiHeadAttention(E, H)
    layer.pack()
    return layer


@pytest.mark.quick
@pytest.mark.parametrize(
    ("layer", "arguments", "options", "error", "message"),
    [
        (packed_layer(), (X,), {}, ValueError, "W_q"),
        (MultiHeadAttention(E, H, dtype=np.float16), (X,), {}, TypeError, "W_q"),
        (LayerNorm(E, dtype=np.float16), (X,), {}, TypeError, "weight"),
        (mha(), (X,), {"wanted": ["bias"]}, ValueError, "wanted"),
        (mha(), (X,), {"wanted": ["mask"]}, ValueError, "wanted"),
        (mha(), (X,), {"wanted": 3}, TypeError, "wanted"),
        (mha(), (X,), {"checkpoint": 1}, TypeError, "checkpoint"),
        (Encoder(1, E, H, 8), (X,), {"wanted": 3}, TypeError, "wanted"),
        (mha(), (X, X[..., :5]), {}, ValueError, "context"),
        (with_attributes(mha(), q_norm=len), (X,), {}, TypeError, "q_norm"),
        (with_attributes(mha(), k_norm=RMSNorm(5)), (X,), {}, ValueError, "k_norm"),
        (with_attributes(mha(), W_q=[[1.0]]), (X,), {}, TypeError, "W_q"),
        (
            with_attributes(LayerNorm(E), bias=np.zeros(E, np.float16)),
            (X,),
            {},
            TypeError,
            "bias",
        ),
        (mha(), (X[0, 0],), {}, ValueError, "x"),
        (mha(), (X, mha().new_cache(B, 9)), {}, TypeError, "context"),
        (mha(), (X,), {"rotary": 3}, TypeError, "rotary"),
        (mha(), (X[0],), {"seq_offsets": [0, 3]}, ValueError, "seq_offsets"),
        (LayerNorm(E), (X, X[0]), {}, ValueError, "residual"),
        (FeedForward(E, 8), (X,), {"checkpoint": None}, TypeError, "checkpoint"),
        (Linear(E, 8), (X[..., :5],), {}, ValueError, "x"),
        (Linear(E, 8, dtype=np.float16), (X,), {}, TypeError, "W"),
        (Embedding(E, 8, dtype=np.float16), ([1],), {}, TypeError, "weight"),
    ],
)
def test_what_has_no_gradients_is_refused(layer, arguments, options, error, message):
    with refused(error, message):
        layer.vjp(*arguments, **options)


@pytest.mark.quick
def test_arguments_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="value: expected None without a context"):
        mha().vjp(X, None, X)
    with pytest.raises(ValueError, match="rotary: expected None with a context"):
        mha().vjp(X, X, rotary=Rotary(4))


@pytest.mark.quick
@pytest.mark.parametrize(
    "layer",
    [mha(), EncoderLayer(E, H, 8), Encoder(1, E, H, 8), SelfAttention(E, 4)],
)
@pytest.mark.parametrize("keyword", ["mixed", "cache", "return_weights", "is_causal"])
def test_keywords_of_calls_without_gradients_are_refused(layer, keyword):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
        layer.vjp(X, **{keyword: True})


@pytest.mark.quick
def test_gradients_of_another_shape_are_refused():
    for layer in (mha(), LayerNorm(E), FeedForward(E, 8), Encoder(1, E, H, 8)):
        _, pullback = layer.vjp(X)
        with refused(ValueError, "grad_output"):
            pullback(X[0])
        with refused(TypeError, "grad_output"):
            pullback(X * 1j)


@pytest.mark.quick
def test_models_of_16_bits_are_refused():
    options = {"vocab_size": 5, "dtype": np.float16}
    model = CausalDecoder(1, 8, 2, 16, **options)
    with refused(TypeError, "token_embedding"):
        model.vjp([1, 2])
    with refused(TypeError, "token_embedding"):
        BertEncoder(1, 8, 2, 16, **options).vjp([1, 2])
    with refused(ValueError, "tied"):
        CausalDecoder(1, 8, 2, 16, vocab_size=5, tied=None).logits_vjp(np.ones((1, 8)))
    with refused(ValueError, "classifier"):
        BertEncoder(1, 8, 2, 16, vocab_size=5).classify_vjp(np.ones((1, 8)))


DROPOUT = {"dropout": 0.3, "dropout_seed": 2**64 - 1}


@pytest.mark.quick
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_encoders_with_dropout_have_the_gradients_of_quotients(norm_first, checkpoint):
    options = {"norm_first": norm_first, "activation": "gelu", "dtype": np.float64}
    more = {**DROPOUT, "checkpoint": checkpoint}
    layer = with_values(EncoderLayer(E, H, 20, **options))
    assert_gradients(layer, (X.copy(),), {"causal": True, **more})
    encoder = with_values(Encoder(2, E, H, 20, **options))
    assert_gradients(encoder, (X.copy(),), {"kv_lengths": [3, 7], **more})


@pytest.mark.quick
@pytest.mark.parametrize("kind", [{}, {"embedding_dim": 6}, {"num_buckets": 8}])
def test_models_with_dropout_have_the_gradients_of_quotients(kind):
    model = of_blocks(BertEncoder, 2, 16, 4, 32, vocab_size=30, **kind)
    for more in ({}, {"lengths": [3, 7, 2]}, {"checkpoint": True}):
        vjp = functools.partial(model.vjp, IDS, **DROPOUT, **more)
        assert not assert_model_gradients(model, lambda vjp=vjp: vjp()[0], vjp)


@pytest.mark.quick
@pytest.mark.parametrize("norm_first", [False, True])
def test_dropout_of_a_layer_is_its_formula(norm_first):
    layer = of_blocks(EncoderLayer, E, H, 20, norm_first=norm_first)
    of_weights, *of_results = _dropout.seeds(5, 3)
    masks = [_dropout.factors(X.shape, 0.4, seed) for seed in of_results]
    assert {0, 1 / 0.6} == set(masks[0].flat)
    attended = {"dropout": 0.4, "dropout_seed": of_weights}

    def attend(x):
        return layer.self_attention.vjp(x, **attended)[0] * masks[0]

    def feed(x):
        return layer.feed_forward(x) * masks[1]

    x = X
    for part, norm in ((attend, layer.norm_1), (feed, layer.norm_2)):
        x = x + part(norm(x)) if norm_first else norm(x + part(x))
    found = layer.vjp(X, dropout=0.4, dropout_seed=5)[0]
    np.testing.assert_allclose(found, x, rtol=1e-12, atol=1e-12)


@pytest.mark.quick
def test_dropout_drops_what_its_probability_says_and_other_things_everywhere():
    kept = [
        _dropout.factors((400, 250), 0.1, seed) > 0 for seed in _dropout.seeds(0, 4)
    ]
    for one, other in itertools.combinations(kept, 2):
        assert 0.899 < one.mean() < 0.903
        assert 0.81 < (one & other).mean() + 0.002 < 0.815
    # The published generator, a word for two numbers: the same on every machine.
    word = int(np.random.Philox(key=9).random_raw())
    low, high = word & 0xFFFFFFFF, word >> 32
    for rate in (low / 2**32, high / 2**32):
        mask = _dropout.factors((2,), min(rate + 1e-6, 0.99), 9) > 0
        limit = int(min(rate + 1e-6, 0.99) * 2**32)
        assert list(mask) == [low >= limit, high >= limit]


@pytest.mark.quick
def test_dropout_has_the_same_bits_for_any_number_of_threads_and_none_is_a_call():
    encoder = Encoder(2, E, H, 20, rng=np.random.default_rng(0))
    x = X.astype(np.float32)
    results = []
    for n in (1, 2, 3):
        output, pullback = encoder.vjp(x, num_threads=n, **DROPOUT)
        results.append((output, *all_arrays(pullback(np.ones_like(output)))))
    for other in results[1:]:
        assert_same_bits(other, results[0])
    assert_same_bits(encoder.vjp(x, dropout=0.0, dropout_seed=3)[0], encoder(x))
    other = encoder.vjp(x, **{**DROPOUT, "dropout_seed": 3})[0]
    assert not np.allclose(other, results[0][0])
    assert not np.allclose(results[0][0][0], encoder.vjp(x[:1])[0][0])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"dropout": 1.0, "dropout_seed": 1}, ValueError, "dropout"),
        ({"dropout": -0.1, "dropout_seed": 1}, ValueError, "dropout"),
        ({"dropout": float("nan"), "dropout_seed": 1}, ValueError, "dropout"),
        ({"dropout": "x", "dropout_seed": 1}, TypeError, "dropout"),
        ({"dropout": 0.1}, ValueError, "dropout_seed"),
        ({"dropout": 0.1, "dropout_seed": 2**64}, ValueError, "dropout_seed"),
        ({"dropout": 0.1, "dropout_seed": -1}, ValueError, "dropout_seed"),
        ({"dropout": 0.1, "dropout_seed": 0.5}, TypeError, "dropout_seed"),
    ],
)
def test_wrong_dropout_is_refused_by_name(options, error, name):
    for vjp, x in (
        (EncoderLayer(E, H, 8).vjp, X),
        (Encoder(1, E, H, 8).vjp, X),
        (BERT.vjp, IDS),
    ):
        with refused(error, name):
            vjp(x, **options)


def test_gradients_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    encoder = Encoder(2, E, H, 20, norm_first=False, dtype=np.float64)
    theirs = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(
            E, H, 20, dropout=0.0, batch_first=True, dtype=torch.float64
        ),
        2,
    )
    with_values(encoder)
    attnpy_names = {}
    for i, (ours, other) in enumerate(zip(encoder.layers, theirs.layers, strict=True)):
        attention, network = ours.self_attention, ours.feed_forward
        weights = {
            "self_attn.in_proj_weight": np.concatenate(
                [attention.W_q, attention.W_k, attention.W_v], axis=1
            ).T,
            "self_attn.in_proj_bias": np.concatenate(
                [attention.b_q, attention.b_k, attention.b_v]
            ),
            "self_attn.out_proj.weight": attention.W_o.T,
            "self_attn.out_proj.bias": attention.b_o,
            "linear1.weight": network.W_1.T,
            "linear1.bias": network.b_1,
            "linear2.weight": network.W_2.T,
            "linear2.bias": network.b_2,
            "norm1.weight": ours.norm_1.weight,
            "norm1.bias": ours.norm_1.bias,
            "norm2.weight": ours.norm_2.weight,
            "norm2.bias": ours.norm_2.bias,
        }
        state = {name: torch.tensor(array.copy()) for name, array in weights.items()}
        other.load_state_dict(state)
        attnpy_names |= {
            f"layers.{i}.self_attention.W_o": other.self_attn.out_proj.weight,
            f"layers.{i}.feed_forward.W_1": other.linear1.weight,
            f"layers.{i}.feed_forward.b_2": other.linear2.bias,
            f"layers.{i}.norm_1.weight": other.norm1.weight,
        }
    x = torch.tensor(X, requires_grad=True)
    expected = theirs(x)
    output, pullback = encoder.vjp(X)
    np.testing.assert_allclose(output, expected.detach().numpy(), atol=1e-12)
    grad = normal(*X.shape, seed=7)
    expected.backward(torch.tensor(grad))
    found = pullback(grad)
    np.testing.assert_allclose(found.x, x.grad.numpy(), atol=1e-11)
    for name, parameter in attnpy_names.items():
        gradient = parameter.grad.numpy()
        ours = found.parameters[name]
        np.testing.assert_allclose(
            ours, gradient.T if gradient.ndim == 2 else gradient, atol=1e-10
        )
