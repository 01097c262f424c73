"""The models against their arithmetic in float64, and the promises about bits."""

import copy
import json
import os
import pickle
import re
import sys

import numpy as np
import pytest
from support import families
from support.arrays import DTYPES, dtype_of
from support.comparisons import assert_near, assert_same_bits, assert_same_parameters
from support.errors import refused
from support.families import IDS, LENGTHS

from attnpy import _dtypes, checkpoints, models, positions
from attnpy._quoting import named
from attnpy.blocks import Encoder, LayerNorm, RMSNorm
from attnpy.models import BertEncoder, CausalDecoder, sample
from attnpy.pages import PagedKVCache

DECODERS = pytest.mark.parametrize("kind", families.DECODERS)


def encoder(kind, dtype=np.float64, **changes):
    """(model, its tensors, its configuration)."""
    config = {**families.ENCODERS[kind], **changes}
    tensors = families.tensors(config)
    model = BertEncoder.from_config(config, dtype=dtype)
    checkpoints.load(model, tensors, families.NAMES[kind])
    return model, tensors, config


def bert(dtype=np.float32, **changes):
    """The same of BERT."""
    return encoder("bert", dtype, **changes)


def decoder(kind, dtype=np.float32, **changes):
    """(model, its tensors, its configuration)."""
    config = {**families.DECODERS[kind], **changes}
    tensors = families.tensors(config)
    model = CausalDecoder.from_config(config, dtype=dtype)
    checkpoints.load(model, tensors, families.NAMES[kind])
    return model, tensors, config


def padded():
    """Three sequences of LENGTHS, with another token after their ends."""
    batch = np.full((3, 9), 13)
    for row, n in zip(batch, LENGTHS, strict=True):
        row[:n] = IDS[:n] + 1 if n < 9 else IDS
    return batch % 30


def assert_close(actual, expected, dtype):
    assert actual.dtype == dtype
    assert_near(actual, expected, 1e-12 if dtype == np.float64 else 5e-5)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bert_is_its_arithmetic(dtype):
    model, tensors, config = bert(dtype)
    expected = families.bert_states(tensors, config, IDS)
    assert_close(model(IDS), expected, dtype)
    types = np.arange(9) // 5
    expected = families.bert_states(tensors, config, IDS, types)
    assert_close(model(IDS, token_types=types), expected, dtype)


KIN = [kind for kind in families.ENCODERS if kind != "bert"]


@pytest.mark.parametrize("name", DTYPES)
def test_embeddings_are_sums_of_rows_in_float32_for_16_bits(name):
    dtype = dtype_of(name)
    model = BertEncoder(1, 300, 3, 12, vocab_size=50, max_length=80, dtype=dtype)
    rng = np.random.default_rng(3)
    names = "token_embedding", "segment_embedding", "position_embedding"
    for table in names:
        shape = getattr(model, table).shape
        setattr(model, table, rng.standard_normal(shape).astype(dtype))
    ids, types = rng.integers(0, 50, (3, 70)), rng.integers(0, 2, (3, 1))
    real = np.float64 if name == "float64" else np.float32
    tokens, segments, places = (getattr(model, table).astype(real) for table in names)
    embedded = tokens[ids] + segments[types] + places[np.arange(70)]
    encoded = model.encoder(model.norm(embedded), mixed=dtype.itemsize == 2)
    expected = encoded.astype(dtype)
    assert_same_bits(model(ids, token_types=types, num_threads=1), expected)
    for table in names:  # as no copy of a whole table is read
        setattr(model, table, np.asfortranarray(getattr(model, table)))
    assert_same_bits(model(ids, token_types=types, num_threads=2), expected)


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_of_a_quantized_table_are_those_of_what_it_stands_for(bits):
    model, _, _ = decoder("gpt2")
    model.token_embedding = np.random.default_rng(4).standard_normal(
        (70, 12), np.float32
    )
    model.quantize(bits=bits, group=32)
    table = model.token_embedding
    numbers = np.random.default_rng(5).integers(0, 70, (2, 90))
    assert_same_bits(table[numbers], table.dequantize()[numbers])
    assert_same_bits(table[5:9], table.dequantize()[5:9])


@pytest.mark.quick
@pytest.mark.parametrize("kind", KIN)
def test_berts_kin_are_their_arithmetic(kind):
    model, tensors, config = encoder(kind)
    # 1 and 3 are padding of some: with no position of their own, wherever they are.
    for ids in (IDS, np.array([5, 1, 7, 3, 1, 1, 8]), np.arange(14), [4]):
        expected = families.bert_states(tensors, config, np.array(ids, int))
        assert_close(model(ids), expected, np.float64)
    assert_close(
        encoder(kind, np.float32)[0](IDS),
        families.bert_states(tensors, config, IDS),
        np.float32,
    )


@pytest.mark.parametrize("kind", [kind for kind in families.KIN if kind != "bert"])
def test_berts_kin_differ_from_bert_in_positions_and_types(kind):
    model, _, config = encoder(kind)
    assert (model.relative_bias is not None) == (kind == "mpnet")
    assert (model.segment_embedding is None) == ("type_vocab_size" not in config)
    n_positions = config["max_position_embeddings"]
    kin = "roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "mpnet"
    first = dict.fromkeys((*kin, "data2vec-text"), 2)
    first = {**first, "xlm-roberta": 4}.get(kind, 0)
    assert len(model(np.full(n_positions - first, 9))) == n_positions - first
    with pytest.raises(ValueError, match=f"max_length = {n_positions - first} tokens"):
        model(np.full(n_positions - first + 1, 9))
    if model.segment_embedding is None:
        with pytest.raises(ValueError, match="token_types: expected none for a model"):
            model(IDS, token_types=0)
    if kind in ("distilbert", "electra"):
        with pytest.raises(ValueError, match=f"pooler: expected False, as {kind} has"):
            BertEncoder.from_config(config, pooler=True)
    else:
        assert BertEncoder.from_config(config, pooler=True).pool(model(IDS)).ndim == 1


@pytest.mark.parametrize("kind", families.GATED)
def test_rotary_encoders_take_longer_texts_and_have_no_table(kind):
    model, tensors, config = encoder(kind)
    assert model.position_embedding is None
    assert model.max_tokens == config["max_position_embeddings"] == 16
    ids = np.arange(20)
    expected = families.bert_states(tensors, config, ids)
    assert_close(model(ids), expected, np.float64)
    if kind in ("modernbert", "eurobert"):
        with pytest.raises(ValueError, match=f"pooler: expected False, as {kind}"):
            BertEncoder.from_config(config, pooler=True)


@pytest.mark.quick
@pytest.mark.parametrize("kind", families.GATED)
def test_gated_encoders_give_a_text_the_same_bits_in_any_company(kind):
    model, *_ = encoder(kind, np.float32)
    lengths, rows = [9, 16, 1], np.arange(48).reshape(3, 16) % 30
    states = model(rows, lengths=lengths)
    for row, n, each in zip(rows, lengths, states, strict=True):
        assert_same_bits(model(row[:n]), each[:n])
    mask = np.arange(16) >= 16 - np.array(lengths)[:, np.newaxis]
    left = model(np.where(mask, np.roll(rows, 3, axis=1), 5), token_mask=mask)
    assert np.isfinite(left[mask]).all()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("modernbert", {"classifier_pooling": "mean", "norm_bias": True}),
        ("eurobert", {"classifier_pooling": "late", "attention_bias": True}),
        ("eurobert", {"classifier_pooling": "mean", "mlp_bias": True}),
    ],
)
def test_a_mean_of_tokens_is_that_of_those_that_exist(kind, changes):
    config = {**families.ENCODERS[kind], **changes, "num_labels": 3}
    rng = np.random.default_rng(0)
    model = BertEncoder.from_config(config, classifier=True, dtype=np.float64, rng=rng)
    for array in model.parameters().values():
        array += rng.standard_normal(array.shape) / 3
    rows = np.arange(24).reshape(2, 12)
    states, of_model = model.vjp(rows, lengths=[12, 7])
    scores, of_scores = model.classify_vjp(states, lengths=[12, 7])
    assert_same_bits(scores, model.classify(states, lengths=[12, 7]))
    assert_same_bits(model.classify(states[1, :7]), scores[1])
    assert (model.classify(states) != scores).any()
    weights = rng.standard_normal(scores.shape)
    found = of_scores(weights)
    gradients = {**of_model(found.x), **found.parameters}
    assert gradients.keys() == model.parameters().keys()
    for name, array in model.parameters().items():
        step = rng.standard_normal(array.shape)

        def at(h, array=array, step=step):
            array += h * step
            moved = model.classify(model(rows, lengths=[12, 7]), lengths=[12, 7])
            array -= h * step
            return (moved * weights).sum()

        slope = (at(1e-5) - at(-1e-5)) / 2e-5
        np.testing.assert_allclose(
            (gradients[name] * step).sum(), slope, rtol=1e-5, atol=1e-7, err_msg=name
        )


def test_positions_and_distances_are_checked():
    for padding_id, buckets, text in (
        (15, None, "padding_id: expected positions after it, of max_length = 16, got"),
        (-1, None, "padding_id: expected at least 0"),
        (1, 3, "num_buckets: expected an even number, got 3"),
        (1, 0, "num_buckets: expected at least 1"),
    ):
        with pytest.raises(ValueError, match=text):
            BertEncoder(
                *(1, 4, 1, 4),
                vocab_size=9,
                max_length=16,
                padding_id=padding_id,
                num_buckets=buckets,
            )


@pytest.mark.quick
def test_bert_with_another_activation(monkeypatch):
    model, tensors, config = bert(np.float64, hidden_act="gelu_new")
    monkeypatch.setattr(families, "gelu", families.gelu_tanh)
    assert_close(model(IDS), families.bert_states(tensors, config, IDS), np.float64)


def with_heads(dtype=np.float32, n_labels=3):
    """BERT with pooler and classifier, (model, all its tensors)."""
    rng, config = np.random.default_rng(5), {**families.BERT, "num_labels": n_labels}
    heads = {
        "pooler.dense.weight": rng.standard_normal((12, 12), dtype=np.float32) / 3,
        "pooler.dense.bias": rng.standard_normal(12, dtype=np.float32),
        "classifier.weight": rng.standard_normal((n_labels, 12), dtype=np.float32),
        "classifier.bias": rng.standard_normal(n_labels, dtype=np.float32),
    }
    tensors = {**families.tensors(config), **heads}
    model = BertEncoder.from_config(config, classifier=True, dtype=dtype)
    checkpoints.load(model, tensors, "bert")
    return model, tensors


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bert_pools_and_classifies_by_the_formulas(dtype):
    model, tensors = with_heads(dtype)
    w = {name: array.astype(float) for name, array in tensors.items()}
    first = families.bert_states(tensors, families.BERT, IDS)[0]
    pooled = np.tanh(w["pooler.dense.weight"] @ first + w["pooler.dense.bias"])
    scores = w["classifier.weight"] @ pooled + w["classifier.bias"]
    states = model(IDS)
    assert_close(model.pool(states), pooled, dtype)
    assert_close(model.classify(states), scores, dtype)
    together = model(padded(), lengths=LENGTHS)
    for row, ids, n in zip(model.classify(together), padded(), LENGTHS, strict=True):
        assert_same_bits(row, model.classify(model(ids[:n])))


@pytest.mark.quick
def test_heads_of_bert_are_read_where_wanted(tmp_path):
    model, tensors = with_heads()
    write(tmp_path, {**families.BERT, "id2label": dict.fromkeys("012")}, tensors)
    expected = model.parameters()
    for wanted, n_more in (
        ({}, 0),
        ({"pooler": True}, 2),
        ({"classifier": True}, 4),
        ({"classifier": True, "dtype": "auto"}, 4),
    ):
        read = BertEncoder.from_pretrained(tmp_path, **wanted)
        named = read.parameters()
        assert len(named) == len(expected) - 4 + n_more
        for name, array in named.items():
            assert_same_bits(array, expected[name])
    bare = families.tensors(families.BERT)
    write(tmp_path, families.BERT, {**bare, "classifier.weight": np.ones((2, 12))})
    text = r"missing classifier.bias, pooler.dense.bias, pooler.dense.weight|missing p"
    with pytest.raises(ValueError, match=text):
        BertEncoder.from_pretrained(tmp_path, classifier=True)


@pytest.mark.quick
def test_a_classifier_of_another_class_is_a_head_that_is_not_here(tmp_path):
    model, tensors = with_heads()
    base = families.tensors(families.BERT)

    def read(owners, arrays, **options):
        write(tmp_path, {**families.BERT, "architectures": owners}, arrays)
        return BertEncoder.from_pretrained(tmp_path, packed=False, **options)

    labels = {"id2label": dict.fromkeys("012")}
    for owners in (None, [], ["BertModel"], ["BertForSequenceClassification"]):
        assert read(owners, tensors).classifier_weight is None
        write(tmp_path, {**families.BERT, **labels, "architectures": owners}, tensors)
        whole = BertEncoder.from_pretrained(tmp_path, classifier=True)
        assert_same_bits(whole.classifier_weight, model.classifier_weight)
    for owner in ("BertForTokenClassification", "BertForMultipleChoice", "\x1b[31m"):
        why = "which is not here"
        if owner == "BertForTokenClassification":
            why = "which the model is without unless token_classifier=True"
        text = rf"no head of {re.escape(named(owner))}, {why}, got classif"
        for wanted in (False, True):
            with pytest.raises(ValueError, match=text):
                read([owner], tensors, classifier=wanted)
        below = read([owner], tensors, ignore_head=True)
        assert_same_parameters(below, read(None, base))
        with pytest.raises(ValueError, match=r"missing classifier.weight, classif"):
            read([owner], tensors, ignore_head=True, classifier=True)
        # There is nothing to lose: the files of many folders are the base's.
        assert_same_parameters(read([owner], base), below)
    with pytest.raises(TypeError, match="ignore_head: expected a bool, got str"):
        read(None, base, ignore_head="yes")


@pytest.mark.quick
@pytest.mark.parametrize("kind", families.ENCODERS)
def test_the_classifier_of_each_family_is_its_formula(tmp_path, kind):
    config = {**families.ENCODERS[kind], "num_labels": 3}
    tensors = {**families.tensors(config), **families.head(config, 3)}
    write(tmp_path, config, tensors)
    model = BertEncoder.from_pretrained(tmp_path, classifier=True, dtype=np.float64)
    expected = families.text_scores(tensors, config, IDS)
    assert_close(model.classify(model(IDS)), expected, np.float64)
    assert np.abs(expected).max() > 0.1
    narrow = BertEncoder.from_pretrained(tmp_path, classifier=True)
    assert_close(narrow.classify(narrow(IDS)), expected, np.float32)


@pytest.mark.quick
@pytest.mark.parametrize("kind", KIN)
def test_a_classifier_that_nobody_asks_for_is_refused_by_name(tmp_path, kind):
    config = families.ENCODERS[kind]
    base, head = families.tensors(config), families.head(config, 2)
    write(tmp_path, {**config, "architectures": ["KinForSequenceClassification"]}, base)
    bare = BertEncoder.from_pretrained(tmp_path)  # nothing is lost
    text = r"missing .*classifier.*weight"
    with pytest.raises(ValueError, match=text):
        BertEncoder.from_pretrained(tmp_path, classifier=True)
    for owner in ("KinForSequenceClassification", "KinForMultipleChoice"):
        write(tmp_path, {**config, "architectures": [owner]}, {**base, **head})
        below = BertEncoder.from_pretrained(tmp_path, ignore_head=True)
        assert_same_parameters(below, bare)
        way = "is without unless classifier=True, got .*ignore_head=True reads the rest"
        if "Choice" in owner:
            way = r"which is not here, got .*\(ignore_head=True reads the rest"
            with pytest.raises(ValueError, match=f"no head of {owner}, {way}"):
                BertEncoder.from_pretrained(tmp_path, classifier=True)
        with pytest.raises(ValueError, match=f"no head of {owner}, .*{way}"):
            BertEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
def test_a_decoder_below_a_head_that_is_not_here_is_read_as_asked(tmp_path):
    tensors = families.tensors(families.LLAMA)
    scores = {"score.weight": np.ones((2, 16), np.float32)}
    for task, why in (
        ("TokenClassification", "which is not here"),
        ("SequenceClassification", "is without unless classifier=True"),
    ):
        owners = {"architectures": [f"LlamaFor{task}"]}
        write(tmp_path, {**families.LLAMA, **owners}, {**tensors, **scores})
        text = f"no head of LlamaFor{task}, .*{why}, got score.weight .*ignore_head="
        with pytest.raises(ValueError, match=text):
            CausalDecoder.from_pretrained(tmp_path, logits=False)
    read = CausalDecoder.from_pretrained(tmp_path, logits=False, ignore_head=True)
    assert_same_bits(read.token_embedding, tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
def test_the_pullback_of_a_pooler_is_its_derivative(activation):
    size = {"vocab_size": 9, "pooler": True, "num_labels": 2, "dtype": np.float64}
    rng = np.random.default_rng(0)
    model = BertEncoder(1, 4, 1, 4, pooler_activation=activation, rng=rng, **size)
    model.pooler_weight *= 100
    states, direction = rng.standard_normal((2, 3, 5, 4))
    scores, pullback = model.classify_vjp(states)
    assert_same_bits(scores, model.classify(states))
    found, step = pullback(np.ones_like(scores)), 1e-6 * direction
    change = model.classify(states + step).sum() - model.classify(states - step).sum()
    np.testing.assert_allclose(2e-6 * (found.x * direction).sum(), change, rtol=1e-6)
    with pytest.raises(ValueError, match=r"pooler_activation: expected .*got 'geglu'"):
        BertEncoder(1, 4, 1, 4, vocab_size=9, pooler_activation="geglu")


def test_bert_without_heads_says_so():
    model, states = bert()[0], np.ones((3, 12))
    with pytest.raises(ValueError, match="pooler: expected a model with pooler=True"):
        model.pool(states)
    with pytest.raises(
        ValueError, match="classifier: expected a model with num_labels"
    ):
        model.classify(states)
    with pytest.raises(ValueError, match="pooler: expected True with num_labels"):
        BertEncoder(1, 4, 1, 4, vocab_size=3, num_labels=2)
    whole = with_heads()[0]
    for wrong in (
        np.ones(12),
        np.ones((0, 12)),
        np.ones((3, 11)),
        np.ones((1, 1, 1, 12)),
    ):
        with pytest.raises(
            ValueError, match=r"states: expected \(L, 12\) or \(B, L, 12"
        ):
            whole.classify(wrong)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@DECODERS
def test_decoders_are_their_arithmetic(kind, dtype):
    model, tensors, config = decoder(kind, dtype)
    expected = families.logits(tensors, config, IDS)
    assert_close(model.logits(model(IDS)), expected, dtype)


DYNAMIC = {"type": "dynamic", "factor": 3.0}
WINDOWS = {"use_sliding_window": True, "sliding_window": 3, "num_hidden_layers": 3}
FULL, SLIDING = "full_attention", "sliding_attention"
BOTH_WAYS = {"is_causal": False, "sliding_window": None}
CHANGES = [
    *((kind, {"is_causal": False}) for kind in ("gpt2", "llama", "qwen2", "qwen3")),
    ("mistral", BOTH_WAYS),
    ("mistral", {"layer_types": [FULL, SLIDING]}),
    ("llama", {"layer_types": [SLIDING, FULL], "sliding_window": 3}),
    ("llama", {"attention_bias": True}),
    ("llama", {"mlp_bias": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "swish"}),
    ("qwen3", {"attention_bias": True}),
    ("qwen2", {**WINDOWS, "max_window_layers": 1}),
    ("qwen2", {**WINDOWS, "layer_types": [SLIDING, FULL, SLIDING]}),
    ("qwen3", {**WINDOWS, "layer_types": [FULL, SLIDING, FULL]}),
    ("gpt2", {"scale_attn_weights": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}),
]


@pytest.mark.parametrize(("kind", "changes"), CHANGES)
def test_what_a_configuration_may_say_is_its_arithmetic(kind, changes):
    model, tensors, config = decoder(kind, np.float64, **changes)
    expected = families.logits(tensors, config, IDS)
    assert_close(model.logits(model(IDS)), expected, np.float64)
    if "use_sliding_window" in changes:
        plain = {**config, "use_sliding_window": False}
    else:
        plain = {
            k: v for k, v in config.items() if k == "sliding_window" or k not in changes
        }
    if "attention_bias" in changes or "mlp_bias" in changes:
        tensors = {k: 0 * v if k.endswith("bias") else v for k, v in tensors.items()}
    other = families.logits(tensors, plain, IDS)
    assert np.abs(other - expected).max() > 1e-3


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True, "sliding_window": 5}),
        ("llama", {"rope_scaling": DYNAMIC, "max_position_embeddings": 6}),
        ("llama", {"rope_scaling": DYNAMIC, "max_position_embeddings": 32}),
        ("phi3", {"original_max_position_embeddings": 8}),
        ("phi3", {"original_max_position_embeddings": 9}),
        ("phi3", {"rope_scaling": None}),
        ("phi3", {"rope_scaling": None, "partial_rotary_factor": 1.0}),
    ],
)
def test_more_that_a_configuration_may_say_is_its_arithmetic(kind, changes):
    model, tensors, config = decoder(kind, np.float64, **changes)
    expected = families.logits(tensors, config, IDS)
    assert_close(model.logits(model(IDS)), expected, np.float64)


@pytest.mark.parametrize(("kind", "changes"), CHANGES[5:])
def test_layers_that_differ_decode_with_caches_in_the_same_bits(kind, changes):
    model, _, _ = decoder(kind, **changes)
    batch = np.random.default_rng(1).integers(0, 30, (2, 9))
    full, caches = model(batch), model.decoder.new_caches(2, 9)
    for i in range(9):
        states = model(batch[:, i : i + 1], caches=caches)
        assert_same_bits(states, np.ascontiguousarray(full[:, i : i + 1]))


def test_some_layers_may_have_no_positions():
    rotary = positions.Rotary(4)
    model = CausalDecoder(
        2, 16, 4, 20, vocab_size=30, rotary=[rotary, None], rng=np.random.default_rng(2)
    )
    first, second = model.decoder.layers
    expected = model.token_embedding[IDS]
    expected = model.decoder.norm(second(first(expected)))
    assert_same_bits(model(IDS), expected)
    assert not np.array_equal(second(expected), second(expected, rotary=rotary))
    new = model.generate(IDS, 4)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same.rotary[1] is None
        assert_same_bits(same(IDS), expected)
        assert_same_bits(same.generate(IDS, 4), new)


def test_a_decoder_that_sees_both_ways_has_no_caches():
    model, _, _ = decoder("qwen3", is_causal=False)
    batch = padded()
    states = model(batch, lengths=LENGTHS)
    for row, ids, n in zip(states, batch, LENGTHS, strict=True):
        assert_same_bits(row[:n], model(ids[:n]))
    with pytest.raises(ValueError, match="cache: expected None with causal=False"):
        model(batch, caches=model.decoder.new_caches(3, 9))
    with pytest.raises(ValueError, match="causal: expected True to generate"):
        model.generate(IDS, 2)
    for kind, more in (("mistral", {}), ("qwen2", {**WINDOWS, "max_window_layers": 1})):
        with pytest.raises(ValueError, match="is_causal = true with a sliding_window"):
            decoder(kind, is_causal=False, **more)


def test_a_list_has_the_window_and_scale_of_each_layer():
    def made(**options):
        rng = np.random.default_rng(0)
        return CausalDecoder(2, 12, 3, 20, vocab_size=30, rng=rng, **options)

    both = made(window=[(2, 0), (2, 0)], scale=[0.5, 0.5])
    assert_same_bits(both(IDS), made(window=(2, 0), scale=0.5)(IDS))
    assert_same_bits(made(window=[2, 0])(IDS), made(window=(2, 0))(IDS))
    for name, values in (("window", [(2, 0)]), ("scale", [1.0, 1.0, 1.0])):
        with pytest.raises(ValueError, match=f"{name}: expected one for each of the 2"):
            made(**{name: values})
        with pytest.raises(
            ValueError, match=f"{name}: .* all layers, which are shared"
        ):
            made(shared=True, **{name: [*values, *values][:2]})
    with pytest.raises(ValueError, match="window: expected None, as the layer has"):
        both.decoder(np.zeros((3, 12), np.float32), window=(1, 0))
    with pytest.raises(TypeError, match="out_bias: expected a bool"):
        made(out_bias=1)


@pytest.mark.quick
def test_padding_does_not_change_the_bits_of_a_sequence():
    encoders = [encoder(kind, np.float32)[0] for kind in families.ENCODERS]
    everything = [*encoders, *(decoder(kind)[0] for kind in families.DECODERS)]
    for model in everything:
        batch = padded()
        states = model(batch, lengths=LENGTHS)
        for row, ids, n in zip(states, batch, LENGTHS, strict=True):
            assert_same_bits(row[:n], model(ids[:n]))
            assert_same_bits(row[:n], model(ids[None, :n])[0])
            assert_same_bits(row[:n], model(ids, lengths=n, num_threads=2)[:n])


@pytest.mark.quick
def test_the_batch_does_not_change_the_bits_of_a_sequence():
    rng = np.random.default_rng(3)
    for model in (bert()[0], decoder("gpt2")[0], decoder("qwen3")[0]):
        batch = rng.integers(0, 30, (37, 9))
        states = model(batch)
        for b in (0, 17, 36):
            assert_same_bits(states[b], model(batch[b]))
        order = rng.permutation(37)
        assert_same_bits(model(batch[order]), states[order])


@pytest.mark.quick
@pytest.mark.parametrize("kind", families.ENCODERS)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_parts_of_a_batch_do_not_change_its_bits(kind, num_threads, monkeypatch):
    rng = np.random.default_rng(4)
    model = encoder(kind, np.float32)[0]
    n_types = 0 if model.segment_embedding is None else len(model.segment_embedding)
    batch, ends = rng.integers(0, 30, (23, 9)), rng.integers(0, 10, 23)
    options = [{}, {"lengths": ends}, {"lengths": ends, "token_mask": batch > 3}]
    options += [{"token_mask": batch > 3}, {"token_mask": np.arange(9) < ends[:, None]}]
    for shape in [(23, 9), (23, 1), (1, 9), (9,)] if n_types else []:
        types = rng.integers(0, n_types, shape)
        options += [{"token_types": types}, {"token_types": types, "lengths": ends}]
    whole = [model(batch, **some, num_threads=num_threads) for some in options]
    calls, encode = [], Encoder.__call__

    def noted(self, tokens, **options):
        calls.append(tokens.shape)
        return encode(self, tokens, **options)

    monkeypatch.setattr(models._embedding, "PART", 20 // num_threads)
    monkeypatch.setattr(Encoder, "__call__", noted)
    for some, expected in zip(options, whole, strict=True):
        calls.clear()
        assert_same_bits(model(batch, **some, num_threads=num_threads), expected)
        assert len(calls) >= 4
        n_tokens = [np.prod(shape[:-1]) for shape in calls]
        assert max(n_tokens) <= 2 * 20 + 9
        inside = model(batch, **some, return_hidden_states=True)
        assert_same_bits(inside.output, expected)
    with pytest.raises(ValueError, match="num_threads: expected"):
        model(batch, num_threads=0)
    assert model(batch[:3]).shape == (3, 9, 12)  # too few for parts


@pytest.mark.parametrize("name", ["norm", "norm_first", "q_norm", "k_norm"])
def test_a_changed_encoder_is_what_runs_with_lengths_too(name):
    model, _, _ = bert()
    layer, dim = model.encoder.layers[0], len(model.norm.weight)
    if name == "norm":
        model.encoder.norm = LayerNorm(dim)
    elif name == "norm_first":
        layer.norm_first = True
    else:
        setattr(layer.self_attention, name, RMSNorm(layer.self_attention.head_dim))
    states = model(padded(), lengths=LENGTHS)
    for row, ids, n in zip(states, padded(), LENGTHS, strict=True):
        assert_same_bits(row[:n], model(ids[:n]))


@pytest.mark.quick
def test_sequences_may_be_empty_and_batches_too():
    model, _, _ = bert()
    batch = padded()
    states = model(batch, lengths=[0, 9, 0])
    assert_same_bits(states[1], model(batch[1]))
    assert np.isfinite(states).all()
    assert_same_bits(model(batch, lengths=9), model(batch))
    assert model(np.zeros((0, 4), int)).shape == (0, 4, 12)
    assert model(np.zeros((0, 4), int), lengths=[]).shape == (0, 4, 12)
    assert model(np.zeros((2, 0), int), lengths=[0, 0]).shape == (2, 0, 12)
    assert model([]).shape == (0, 12)
    for mask in (None, np.ones((0, 4), bool)):
        empty = model(np.zeros((0, 4), int), lengths=[], token_mask=mask)
        assert empty.shape == (0, 4, 12)
    gpt = decoder("gpt2")[0]
    assert gpt(np.zeros((0, 4), int), lengths=[]).shape == (0, 4, 12)
    assert gpt.generate(np.zeros((0, 4), int), 3).shape == (0, 3)
    assert gpt.generate(np.zeros((0, 4), int), 3, lengths=[]).shape == (0, 3)


@pytest.mark.quick
def test_a_mask_hides_padding_anywhere():
    model, _, _ = bert()
    batch = padded()
    exists = np.arange(9) < np.array(LENGTHS)[:, None]
    states = model(batch, token_mask=exists)
    expected = model(batch, lengths=LENGTHS)
    for row, right, n in zip(states, expected, LENGTHS, strict=True):
        np.testing.assert_allclose(row[:n], right[:n], atol=1e-5)
    assert_same_bits(model(batch[0], token_mask=exists[0]), states[0])
    with pytest.raises(TypeError, match="token_mask"):
        model(batch, token_mask=exists.astype(int))


@pytest.mark.quick
@DECODERS
def test_decoding_with_caches_gives_the_bits_of_one_pass(kind):
    # Beyond its original length Phi-3 has other frequencies.
    longer = {"original_max_position_embeddings": 32} if kind == "phi3" else {}
    model, _, _ = decoder(kind, **longer)
    batch = np.random.default_rng(1).integers(0, 30, (2, 14))
    full = model(batch)
    logits = model.logits(full)
    for chunks in ([14], [5, 9], [6] + [1] * 8, [1] * 14):
        caches, start = model.decoder.new_caches(2, 14), 0
        for n in chunks:
            part = slice(start, start + n)
            states = model(batch[:, part], caches=caches)
            assert_same_bits(states, np.ascontiguousarray(full[:, part]))
            assert_same_bits(model.logits(states)[:, -1], logits[:, part][:, -1])
            start += n
    caches = model.decoder.new_caches(1, 14)
    for i in range(14):
        assert_same_bits(model(batch[1, i : i + 1], caches=caches), full[1, i : i + 1])


def ended(tokens, n):
    """What comes of them where a text ends with token n."""
    tokens = tokens.copy()
    tokens[n:] = tokens[n]
    return tokens


# Of weights with which texts are not one token again and again; others have 0.
SEEDS = {
    "gemma": 3,
    "granite": 1,
    "phi": 9,
    "gpt_neox": 2,
    "mixtral": 1,
    "qwen3_moe": 1,
    "starcoder2": 1,
    "seed_oss": 2,
    "granitemoehybrid": 1,
    "gpt_neo": 8,
    "gpt_bigcode": 1,
    "opt": 2,
    "gptj": 4,
    "falcon": 5,
}


@pytest.mark.quick
@DECODERS
def test_a_text_ends_where_the_folder_says(tmp_path, kind):
    config = families.DECODERS[kind]
    tensors = families.tensors(config, SEEDS.get(kind, 0))
    other = {"bos_token_id": 3, "do_sample": True, "temperature": 0.5}

    def read(eos, generation=None):
        write(tmp_path, {**config, "eos_token_id": eos}, tensors)
        (tmp_path / "generation_config.json").unlink(missing_ok=True)
        if generation is not None:
            text = json.dumps({**other, **generation})
            (tmp_path / "generation_config.json").write_text(text)
        return CausalDecoder.from_pretrained(tmp_path)

    start = IDS[:4]
    endless = read(None)
    assert endless.stop == ()
    free = endless.generate(start, 8)
    last = next(i for i in range(1, 8) if free[i] not in free[:i])
    end, first = int(free[last]), int(free[0])
    for model, stop in (
        (read(end), (end,)),
        (read([end, 29]), (end, 29)),
        (read(first, {"eos_token_id": end}), (end,)),
        (read(first, {"eos_token_id": [29, end]}), (29, end)),
        (read(None, {"eos_token_id": end}), (end,)),
        # Tokens of which there are no scores never come.
        (read([end, 30, -1, 10**9]), (end,)),
    ):
        assert model.stop == stop
        assert_same_bits(model.generate(start, 8), ended(free, last))
        assert [*model.stream(start, 8)] == [*free[: last + 1]]
        assert_same_bits(model.generate(start, 8, stop=()), free)
        assert_same_bits(model.generate(start, 8, stop=first), ended(free, 0))
        for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert same.stop == stop
            assert_same_bits(same.generate(start, 8), ended(free, last))
        model.stop = (first,)
        assert_same_bits(model.generate(start, 8), ended(free, 0))
    # As theirs: where the file is there, it alone says where texts end.
    for generation in ({}, {"eos_token_id": None}, {"eos_token_id": []}):
        assert read(end, generation).stop == ()


@pytest.mark.quick
def test_what_ends_a_text_is_a_token_or_several(tmp_path):
    write(tmp_path, families.LLAMA, families.tensors(families.LLAMA))
    path = tmp_path / "generation_config.json"
    for wrong in ("2", 2.0, True, [[2]], {"2": 2}):
        path.write_text(json.dumps({"eos_token_id": wrong}))
        text = rf"^{path}: expected eos_token_id to be an integer, or a list of int"
        with pytest.raises(ValueError, match=text):
            CausalDecoder.from_pretrained(tmp_path)
        with pytest.raises(
            ValueError, match=r"^config: expected eos_token_id to be an"
        ):
            CausalDecoder.from_config({**families.LLAMA, "eos_token_id": wrong})
    path.write_text("[]")
    with pytest.raises(ValueError, match=rf"^{path}: expected a JSON object"):
        CausalDecoder.from_pretrained(tmp_path)
    path.unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        with pytest.raises(ValueError, match=rf"^{path}: expected a file"):
            CausalDecoder.from_pretrained(tmp_path)
    sizes = {"vocab_size": 9, "max_length": 4}
    assert CausalDecoder(1, 4, 1, 4, **sizes).stop == ()
    assert CausalDecoder(1, 4, 1, 4, **sizes, stop=8).stop == (8,)
    assert CausalDecoder(1, 4, 1, 4, **sizes, stop=[1, 2]).stop == (1, 2)
    with pytest.raises(ValueError, match="stop: expected 0 to 8, got 9"):
        CausalDecoder(1, 4, 1, 4, **sizes, stop=9)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "end"), [("gpt2", 50256), ("llama", 2), ("gemma2", 1), ("qwen2", None)]
)
def test_where_no_file_says_it_texts_end_as_their_classes_have_it(kind, end):
    config = {**families.DECODERS[kind], "vocab_size": 60_000}
    assert CausalDecoder.from_config(config).stop == ()
    del config["eos_token_id"]
    expected = () if end is None else (end,)
    assert CausalDecoder.from_config(config).stop == expected


@pytest.mark.quick
@DECODERS
def test_generating_is_what_full_passes_give(kind):
    model, _, _ = decoder(kind)
    ids = IDS[:5].tolist()
    for token in (new := model.generate(ids, 7)):
        assert token == model.logits(model(ids))[-1].argmax()
        ids.append(token)
    assert (new.dtype, new.shape) == (np.int64, (7,))
    rng = np.random.default_rng(5)
    drawn = model.generate(IDS[:5], 7, temperature=0.8, top_k=9, rng=rng)
    ids, rng = IDS[:5].tolist(), np.random.default_rng(5)
    for token in drawn:
        last = model.logits(model(ids))[-1:]
        assert token == sample(last, temperature=0.8, top_k=9, rng=rng)[0]
        ids.append(token)


@pytest.mark.quick
@DECODERS
def test_generating_in_a_batch_gives_what_each_sequence_gives_alone(kind):
    model, _, _ = decoder(kind)
    batch = padded()
    new = model.generate(batch, 6, lengths=LENGTHS)
    for row, ids, n in zip(new, batch, LENGTHS, strict=True):
        assert_same_bits(row, model.generate(ids[:n], 6))
    assert_same_bits(model.generate(batch, 6, lengths=LENGTHS, num_threads=2), new)


@pytest.mark.quick
def test_generating_ends_at_the_stop():
    model, _, _ = decoder("llama")
    free = model.generate(padded(), 8, lengths=LENGTHS)
    stop = int(free[1, 2])
    stopped = model.generate(padded(), 8, lengths=LENGTHS, stop=stop)
    for row, ended in zip(free, stopped, strict=True):
        n = np.argmax(row == stop) if (row == stop).any() else 8
        assert_same_bits(ended[:n], row[:n])
        assert (ended[n:] == stop).all()
    one = model.generate(padded()[1], 8, stop=stop)
    assert_same_bits(one, stopped[1])
    assert_same_bits(model.generate(padded()[1], 8, stop=[]), free[1])


@pytest.mark.parametrize("places", [((0, 3), (1, 2)), ((1, 2), (0, 4))])
def test_generating_ends_at_the_first_of_several_stops(places):
    model, _, _ = decoder("llama")
    free = model.generate(padded(), 8, lengths=LENGTHS)
    stops = [int(free[place]) for place in places]
    stopped = model.generate(padded(), 8, lengths=LENGTHS, stop=stops)
    for row, ended in zip(free, stopped, strict=True):
        hits = np.isin(row, stops)
        n = np.argmax(hits) if hits.any() else 7
        assert_same_bits(ended[: n + 1], row[: n + 1])
        assert (ended[n:] == row[n]).all()
    assert (stopped != free).any()
    assert_same_bits(model.generate(padded(), 8, lengths=LENGTHS, stop=[]), free)


def test_sample_draws_by_the_probabilities():
    probabilities = np.array([0.1, 0.4, 0.2, 0.3])
    logits = np.tile(np.log(probabilities) + 100, (20000, 1))

    def shares(**options):
        tokens = sample(logits, rng=np.random.default_rng(0), **options)
        return np.bincount(tokens, minlength=4) / len(tokens)

    def close(actual, weights):
        expected = np.array(weights) / np.sum(weights)
        return (np.abs(actual - expected) < 0.015).all() and not actual[
            expected == 0
        ].any()

    assert close(shares(), probabilities)
    assert close(shares(temperature=0.5), probabilities**2)
    assert close(shares(top_k=2), [0, 0.4, 0, 0.3])
    assert close(shares(top_k=10), probabilities)
    assert close(shares(top_p=0.69), [0, 0.4, 0, 0.3])
    assert close(shares(top_p=0.71), [0, 0.4, 0.2, 0.3])
    assert close(shares(top_p=1e-9), [0, 1, 0, 0])
    assert close(shares(top_k=2, top_p=0.5), [0, 1, 0, 0])
    assert close(shares(top_k=3, top_p=1.0), [0, 0.4, 0.2, 0.3])
    assert close(shares(temperature=0), [0, 1, 0, 0])


@pytest.mark.quick
def test_sample_draws_one_number_for_each_row():
    logits = np.random.default_rng(0).standard_normal((5, 3, 30))
    rng, same = np.random.default_rng(1), np.random.default_rng(1)
    tokens = sample(logits, top_p=0.9, rng=rng)
    assert tokens.shape == (5, 3)
    alone = [sample(row, top_p=0.9, rng=same) for row in logits.reshape(15, 30)]
    assert tokens.ravel().tolist() == alone
    assert sample([0.0, 5.0, 5.0], temperature=0) == 1
    assert sample([-np.inf, 0.0, -np.inf], rng=rng) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_from_pretrained_reads_a_folder(tmp_path, dtype):
    numpy_files = pytest.importorskip("safetensors.numpy")
    for kind in ("bert", "gpt2", "qwen3"):
        make = bert if kind == "bert" else lambda d, k=kind: decoder(k, d)
        model, tensors, config = make(dtype)
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        numpy_files.save_file(tensors, folder / "model.safetensors")
        read = type(model).from_pretrained(folder, dtype=dtype)
        assert list(read.parameters()) == list(model.parameters())
        assert_same_bits(read(IDS), model(IDS))
        assert read(IDS).dtype == dtype


def write(folder, config, tensors):
    """Write a model's folder."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    (folder / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["float32"], "float32"),
        (["float16"], "float16"),
        (["bfloat16"], "bfloat16"),
        (["float64", "float16"], "float64"),
        (["float16", "float32"], "float32"),
        (["float16", "bfloat16"], "float32"),
    ],
)
def test_the_dtype_of_a_model_may_be_that_of_its_files(tmp_path, dtypes, expected):
    pytest.importorskip("ml_dtypes")
    tensors = families.tensors(families.LLAMA)
    given = {
        name: array.astype(dtypes[i % len(dtypes)])
        for i, (name, array) in enumerate(tensors.items())
    }
    # What is left alone has no say.
    given["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2)
    write(tmp_path, families.LLAMA, given)
    model = CausalDecoder.from_pretrained(tmp_path, dtype="auto")
    assert {array.dtype.name for array in model.parameters().values()} == {expected}
    named = CausalDecoder.from_pretrained(tmp_path, dtype=expected)
    assert_same_parameters(named, model)


def test_bfloat16_is_a_name_where_its_package_is(monkeypatch):
    pytest.importorskip("ml_dtypes")
    model = BertEncoder.from_config(families.BERT, dtype="bfloat16")
    assert model(IDS).dtype.name == "bfloat16"
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"dtype: bfloat16 needs the ml_dtypes pack"):
        BertEncoder.from_config(families.BERT, dtype="bfloat16")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_a_file_is_read_without_numbers_being_drawn_or_rounded(
    tmp_path, kind, monkeypatch
):
    config = families.DECODERS[kind]
    write(tmp_path, config, families.tensors(config))
    expected = decoder(kind)[0]

    def unexpected(*arguments):
        raise AssertionError(arguments)

    monkeypatch.setattr(_dtypes, "rounded", unexpected)
    model = CausalDecoder.from_pretrained(tmp_path)
    assert_same_parameters(model, expected)
    for name, array in model.parameters().items():
        assert array.strides == expected.parameters()[name].strides


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_a_decoder_without_scores_gives_the_same_vectors(tmp_path, kind):
    model, tensors, config = decoder(kind)
    scores = {"lm_head.weight": np.ones((30, 12), np.float32)}
    bare = {k: v for k, v in tensors.items() if k not in scores}
    for arrays in (tensors, {**bare, **scores}, bare):
        write(tmp_path, config, arrays)
        read = CausalDecoder.from_pretrained(tmp_path, logits=False)
        assert_same_bits(read(IDS), model(IDS))
        assert read.tied is read.output is None
    if kind == "llama":
        with pytest.raises(ValueError, match=r"checkpoint: missing lm_head.weight$"):
            CausalDecoder.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="tied: expected True or False for scores"):
        read.logits(read(IDS))
    with pytest.raises(ValueError, match="tied: expected True or False to generate"):
        read.generate(IDS, 2)
    with pytest.raises(TypeError, match="logits: expected a bool"):
        CausalDecoder.from_pretrained(tmp_path, logits=1)


@pytest.mark.quick
def test_sequences_continue_beyond_the_length_of_their_frequencies():
    """As without caches, where longrope changes to its long factors."""
    model, _, _ = decoder("phi3", original_max_position_embeddings=9)
    starts, lengths = IDS[None] * [[1], [1], [0]] % 30, [4, 7, 9]
    together = model.generate(starts, 8, lengths=lengths)
    for row, ids, n in zip(together, starts, lengths, strict=True):
        expected = list(ids[:n])
        for _ in range(8):
            expected.append(int(model.logits(model(expected))[-1].argmax()))
        assert row.tolist() == expected[n:]
        np.testing.assert_array_equal(model.generate(ids[:n], 8), row)


@pytest.mark.quick
def test_gemmas_norms_are_one_more_than_in_its_files():
    for kind in ("gemma2", "gemma3_text"):
        model, tensors, _ = decoder(kind)
        for theirs, ours in (
            ("model.norm", "decoder.norm"),
            ("model.layers.1.input_layernorm", "decoder.layers.1.norm_1"),
            ("model.layers.1.post_feedforward_layernorm", "decoder.layers.1.after_3"),
        ):
            weight = model.parameters()[f"{ours}.weight"]
            assert_same_bits(weight, 1 + tensors[f"{theirs}.weight"])
    mha, layer = "model.layers.0.self_attn", model.decoder.layers[0].self_attention
    assert_same_bits(layer.q_norm.weight, 1 + tensors[f"{mha}.q_norm.weight"])


@pytest.mark.quick
def test_gemmas_norms_of_16_bits_are_exact():
    """Of a number with 16 bits, 1 more may have 24: these norms are of float32."""
    for kind in ("gemma2", "gemma3_text"):
        for dtype in ("float16", "bfloat16"):
            kind_of = dtype_of(dtype)
            model, tensors, _ = decoder(kind, kind_of)
            weight = model.decoder.layers[1].norm_1.weight
            stored = tensors["model.layers.1.input_layernorm.weight"].astype(np.float32)
            assert_same_bits(weight, 1 + stored)
            assert (weight.astype(kind_of) != weight).any()
            assert model.decoder.layers[0].self_attention.W_q.dtype == kind_of
            caches = model.decoder.new_caches(1, 9)
            states = model(IDS[:9], caches=caches)
            assert states.dtype == caches[0]._key.dtype == kind_of
            steps = model.decoder.new_caches(1, 9)
            alone = [model(IDS[i : i + 1], caches=steps) for i in range(9)]
            assert_same_bits(np.concatenate(alone), states)


def test_gemma_in_bfloat16_is_near_its_arithmetic():
    pytest.importorskip("ml_dtypes")
    model, tensors, config = decoder("gemma2", "bfloat16")
    expected = families.logits(tensors, config, IDS)
    actual = model.logits(model(IDS))
    assert actual.dtype.name == "bfloat16"
    assert np.abs(actual.astype(float) - expected).max() < 0.25


@pytest.mark.quick
def test_matrices_are_in_the_order_that_products_read():
    for model in (bert()[0], decoder("gpt2")[0], decoder("llama")[0]):
        for name, array in model.parameters().items():
            tied = name == "token_embedding" and getattr(model, "output", model) is None
            assert (array.T if tied else array).flags.c_contiguous


@pytest.mark.quick
def test_a_models_own_state_makes_another_equal():
    model, other = decoder("qwen3")[0], CausalDecoder.from_config(families.QWEN3)
    other.load_state_dict(model.state_dict())
    assert_same_bits(other(IDS), model(IDS))


@pytest.mark.quick
def test_first_values_come_from_the_generator():
    one, same = (
        BertEncoder.from_config(families.BERT, rng=np.random.default_rng(2))
        for _ in range(2)
    )
    assert_same_parameters(one, same)
    assert 0.01 < one.token_embedding.std() < 0.03


@pytest.mark.quick
def test_configurations_name_windows_and_positions():
    def made(base=families.LLAMA, **changes):
        return CausalDecoder.from_config({**base, **changes})

    assert made().window is None
    assert made(families.MISTRAL).window == (2, 0)
    assert made(families.MISTRAL, sliding_window=None).window is None
    assert made(families.QWEN2).window is None
    used = {**families.QWEN2, "use_sliding_window": True}
    full, sliding = "full_attention", "sliding_attention"
    assert made(used, max_window_layers=0).window == (2, 0)
    assert made(used, max_window_layers=2).window is None
    assert made(used, layer_types=[sliding] * 2).window == (2, 0)
    assert made(used, layer_types=[full] * 2).window is None
    for mixed in ({"max_window_layers": 1}, {"layer_types": [full, sliding]}):
        assert made(used, **mixed).window == [None, (2, 0)]
    yarn = {"rope_type": "yarn", "factor": 2.0}
    expected = positions.Rotary(
        4, base=500.0, scaling={**yarn, "original_max_position_embeddings": 64}
    )
    for changes in (
        {"rope_scaling": yarn},
        {"rope_parameters": {**yarn, "rope_theta": 500.0}, "rope_theta": None},
    ):
        rotary = made(**changes).rotary
        assert_same_bits(rotary.frequencies, expected.frequencies)
        assert rotary.attention_factor == expected.attention_factor


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {**families.BERT, "model_type": "funnel"},
            "or jina-bert-v2, got 'funnel'",
        ),
        ({**families.BERT, "is_decoder": True}, "is_decoder.*False, got True"),
        ({**families.BERT, "hidden_act": "mish"}, "activation.*got 'mish'"),
        ({"model_type": "bert", "hidden_size": 4}, "missing num_hidden_layers, num_a"),
        ({**families.GPT2, "scale_attn_by_inverse_layer_idx": 1}, "inverse_layer"),
        ({**families.LLAMA, "model_type": "mamba"}, "got 'mamba'"),
        ({**families.QWEN2, "attention_bias": True}, "attention_bias.*False, got True"),
        ({**families.LLAMA, "hidden_act": "tanh"}, "hidden_act.*gate, got 'tanh'"),
        ({**families.LLAMA, "partial_rotary_factor": 0.5}, "factor = 1.0, got 0.5"),
        ({**families.GEMMA2, "use_bidirectional_attention": True}, "False, got True"),
        ({**families.GEMMA3, "attn_logit_softcapping": 5.0}, "expected no attn_logit"),
        (
            {**families.GEMMA3, "model_type": "gemma3n"},
            "or embedding_gemma2_text, got 'gemma3n'",
        ),
        ({**families.GEMMA3, "model_type": "gemma3"}, "config: expected a text_config"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma2"}},
            "expected a text_config with model_type = gemma3_text, got {'model_type':",
        ),
        (
            {
                **families.FALCON,
                "new_decoder_architecture": False,
                "multi_query": False,
            },
            "expected num_kv_heads = 4 as num_attention_heads, got 2",
        ),
        (
            {**families.FALCON, "num_ln_in_parallel_attn": None},
            "expected num_ln_in_parallel_attn = 1 with new_decoder.*, got none, which",
        ),
        (
            {"model_type": "gemma3", "text_config": families.GEMMA3, "x_y": 3},
            "config: expected no x_y, got 3",
        ),
    ],
)
def test_configurations_of_other_models_are_value_errors(config, text):
    bert_like = config["model_type"] in ("bert", "funnel")
    with pytest.raises(ValueError, match=text):
        (BertEncoder if bert_like else CausalDecoder).from_config(config)


@pytest.mark.parametrize(
    ("error", "text", "call"),
    [
        (ValueError, "token_ids: expected 0 to 29", lambda b, g: b([30])),
        (ValueError, "token_ids: expected 0 to 29", lambda b, g: g([-1])),
        (TypeError, "token_ids: expected integers", lambda b, g: b([0.5])),
        (ValueError, r"token_ids: expected \(L,\)", lambda b, g: b([[[1]]])),
        (ValueError, "at most max_length = 16", lambda b, g: b([0] * 17)),
        (ValueError, "at most max_length = 16", lambda b, g: g([0] * 17)),
        (ValueError, "at most max_length = 16", lambda b, g: g.generate([0] * 9, 9)),
        (
            ValueError,
            "token_types: expected 0 to 1",
            lambda b, g: b([1], token_types=[2]),
        ),
        (ValueError, "lengths", lambda b, g: g.generate([[1], [2]], 1, lengths=[0, 1])),
        (
            ValueError,
            "token_ids: expected at least one",
            lambda b, g: g.generate([], 1),
        ),
        (ValueError, "lengths: expected 0 to 1", lambda b, g: b([[1], [2]], lengths=2)),
        (
            ValueError,
            r"lengths: expected an integer, or \(1,\), one for each text, got \(2,\)",
            lambda b, g: b([[1]], lengths=[1, 1]),
        ),
        (
            ValueError,
            "num_tokens: expected at least 1",
            lambda b, g: g.generate([1], 0),
        ),
        (TypeError, "stop: exp", lambda b, g: g.generate([1], 2, stop=0.5)),
        (TypeError, "stop: exp", lambda b, g: g.generate([1], 2, stop="7")),
        (TypeError, "stop: exp", lambda b, g: g.generate([1], 2, stop=[True])),
        (ValueError, "stop: exp.*0 to 29", lambda b, g: g.generate([1], 2, stop=30)),
        (ValueError, "stop: exp.*0 to 29", lambda b, g: g.generate([1], 2, stop=[-1])),
        (ValueError, "stop: expected", lambda b, g: g.generate([1], 2, stop=[[1, 2]])),
        (
            ValueError,
            "token_ids: .*lengths 3, 2: pad",
            lambda b, g: g([[1, 2, 3], [4, 5]]),
        ),
        (ValueError, "token_ids: .*lengths 0, 1", lambda b, g: g([[], [1]])),
        (ValueError, "lengths: expected 0 to 1", lambda b, g: g([1], lengths=2)),
        (TypeError, "config: expected a mapping", lambda b, g: b.from_config(None)),
        (TypeError, "config: expected a mapping", lambda b, g: g.from_config("x")),
        (
            TypeError,
            "token_mask: expected booleans",
            lambda b, g: b([1], token_mask=[1]),
        ),
        (
            TypeError,
            "token_mask: expected an array, got str",
            lambda b, g: b([1], token_mask="x"),
        ),
        (
            ValueError,
            r"token_mask: expected.*\(1, 2\), got \(3,\)",
            lambda b, g: b([[1, 2]], token_mask=[True] * 3),
        ),
        (
            ValueError,
            r"token_types: expected.*\(2,\), got \(3,\)",
            lambda b, g: b([1, 2], token_types=[0] * 3),
        ),
        (
            ValueError,
            r"token_types: expected.*\(2,\), got \(2, 2\)",
            lambda b, g: b([1, 2], token_types=[[0, 0], [1, 1]]),
        ),
        (
            ValueError,
            "lengths: expected an integer, g",
            lambda b, g: g([1], lengths=[1]),
        ),
        (ValueError, "states: expected", lambda b, g: g.logits(np.ones((2, 3)))),
        (TypeError, "states: expected", lambda b, g: g.logits("a")),
        (ValueError, "rng: expected", lambda b, g: g.generate([1], 1, temperature=1)),
        (
            ValueError,
            "stop: expected 0 to 29",
            lambda b, g: g.generate([1], 1, stop=30),
        ),
        (TypeError, "stop: expected int", lambda b, g: g.generate([1], 1, stop="a")),
        (
            ValueError,
            "caches: expected B = 2",
            lambda b, g: g([[1], [2]], caches=g.decoder.new_caches(3, 4)),
        ),
        (ValueError, "temperature: ", lambda b, g: sample([1.0], temperature=-1)),
        (
            ValueError,
            "top_k: expected a temperature beside it, .* got 5 alone",
            lambda b, g: g.generate([1], 1, top_k=5),
        ),
        (
            ValueError,
            "top_p: expected a temperature beside it, .* got 0.5 alone",
            lambda b, g: next(g.stream([1], 1, top_p=0.5)),
        ),
        (ValueError, "top_k: ", lambda b, g: sample([1.0], top_k=0)),
        (ValueError, "top_p: ", lambda b, g: sample([1.0], top_p=0)),
        (ValueError, "top_p: ", lambda b, g: sample([1.0], top_p=1.5)),
        (TypeError, "rng: ", lambda b, g: sample([1.0], rng=0)),
        (ValueError, "logits: ", lambda b, g: sample(1.0)),
        (TypeError, "logits: ", lambda b, g: sample([1j], temperature=0)),
        (TypeError, "logits: ", lambda b, g: sample("a", temperature=0)),
        (ValueError, "logits: .*nan", lambda b, g: sample([0, np.nan], temperature=0)),
        (ValueError, "logits: .*inf", lambda b, g: sample([0, np.inf], temperature=0)),
        (
            ValueError,
            "logits: .*only -inf",
            lambda b, g: sample([[0.0, 1.0], [-np.inf] * 2], temperature=0),
        ),
        (TypeError, "rng: ", lambda b, g: sample([1.0], rng=0, temperature=0)),
        *[
            (
                TypeError,
                f"{name}: exp|unexpected keyword argument '{name}'",
                lambda b, g, name=name: CausalDecoder(
                    1, 4, 1, 4, vocab_size=3, **{name: 1}
                ),
            )
            for name in (
                *("tied", "qk_norm", "qkv_bias", "rotary", "dtype", "norm_first"),
                *("cross_attention", "context_dim", "norm_after", "parallel"),
                "output_bias",
            )
        ],
        *[
            (
                ValueError,
                f"{next(iter(wrong))}: expected ",
                lambda b, g, wrong=wrong: CausalDecoder(
                    1, 4, 1, 4, vocab_size=3, **wrong
                ),
            )
            for wrong in (
                {"residual_scale": 0.0},
                {"logit_scale": -1.0},
                {"output_bias": True, "tied": None},
                {"parallel": True, "norm_after": True},
                {"parallel": "one norm", "residual_scale": 2.0},
                {"parallel": True, "norm_first": False},
            )
        ],
    ],
)
def test_wrong_arguments_are_named(error, text, call):
    with pytest.raises(error, match=text):
        call(bert()[0], decoder("gpt2")[0])


@pytest.mark.quick
def test_everything_public_is_listed():
    public = ["BertEncoder", "CausalDecoder", "ContinuousBatch", "CrossEncoder"]
    public += [
        "EncoderDecoder",
        "FillMask",
        "ImageClassifier",
        "ImageEncoder",
        "ImageProcessor",
    ]
    public += ["ImageTextEncoder", "ImageTextModel", "M3Encoder", "M3Vectors"]
    public += ["MultiVectorEncoder", "Prefix", "SentenceEncoder", "TextClassifier"]
    public += ["TextToText"]
    public += ["TokenClassifier", "lexical_score", "maxsim"]
    assert models.__all__ == [*public, "sample"]


@pytest.mark.quick
def test_windows_and_scales_are_judged_when_a_decoder_is_made():
    def make(**options):
        return CausalDecoder(2, 8, 2, 8, vocab_size=5, **options)

    for error, name, values in (
        (TypeError, "window", [5, "ab", (1.5, 0), (True, 0), [(1, None), 5]]),
        (ValueError, "window", [(1,), (-1, 0), [(1, 0), (0, -2)]]),
        (TypeError, "scale", ["1", True, 1j, [1.0, "1"]]),
        (ValueError, "scale", [np.inf, 1e300, [1.0, np.nan]]),
    ):
        for value in values:
            with refused(error, name):
                make(**{name: value})
    assert make(scale=1e300, dtype="float64").scale == 1e300
    assert make(window=[3, None]).window == [3, None]


@pytest.mark.quick
def test_exaone_3_has_other_names_and_fields_in_its_own_files(tmp_path):
    tensors = families.tensors(families.EXAONE)
    write(tmp_path, families.EXAONE, tensors)
    expected = CausalDecoder.from_pretrained(tmp_path)
    there = {}
    for name, array in tensors.items():
        for ours, theirs in (
            ("model.embed_tokens", "transformer.wte"),
            ("model.norm", "transformer.ln_f"),
            ("model.layers", "transformer.h"),
            ("self_attn.o_proj", "self_attn.out_proj"),
            ("self_attn", "attn.attention"),
            ("input_layernorm", "ln_1"),
            ("post_attention_layernorm", "ln_2"),
            ("gate_proj", "c_fc_0"),
            ("up_proj", "c_fc_1"),
            ("down_proj", "c_proj"),
        ):
            name = name.replace(ours, theirs)
        there[name] = array
    fields = {
        "num_hidden_layers": "num_layers",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    }
    config = {fields.get(x, x): value for x, value in families.EXAONE.items()}
    code = {"AutoConfig": "configuration_exaone.ExaoneConfig"}
    write(tmp_path, {**config, "auto_map": code, "embed_dropout": 0.0}, there)
    model = CausalDecoder.from_pretrained(tmp_path)
    assert_same_parameters(model, expected)
    assert_same_bits(model(IDS), expected(IDS))
    with pytest.raises(ValueError, match="expected no auto_map"):
        CausalDecoder.from_config({**config, "auto_map": {"AutoConfig": "x.y"}})


@pytest.mark.quick
def test_the_first_falcon_files_say_where_their_code_is(tmp_path):
    config = {**families.FALCON, "apply_residual_connection_post_layernorm": False}
    code = {
        "AutoConfig": "configuration_falcon.FalconConfig",
        "AutoModelForCausalLM": "modeling_falcon.FalconForCausalLM",
    }
    tensors = families.tensors(families.FALCON)
    write(tmp_path, families.FALCON, tensors)
    expected = CausalDecoder.from_pretrained(tmp_path)
    write(tmp_path, {**config, "auto_map": code, "ff_factor": 4}, tensors)
    model = CausalDecoder.from_pretrained(tmp_path)
    assert_same_parameters(model, expected)
    assert_same_bits(model(IDS), expected(IDS))
    for wrong in (
        {"apply_residual_connection_post_layernorm": True},
        {"auto_map": {"AutoConfig": "configuration_RW.RWConfig"}},
        {"ff_factor": 2},
    ):
        with pytest.raises(ValueError, match=f"expected .*{next(iter(wrong))}"):
            CausalDecoder.from_config({**config, **wrong})


ALIBI = pytest.mark.parametrize("kind", ["bloom", "mpt"])
# As the folders of bloom-560m and mpt-7b have them, in small.
BLOOM = {
    **{name: x for name, x in families.BLOOM.items() if name != "hidden_size"},
    "n_embed": 24,
    "num_attention_heads": 3,
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "bos_token_id": 1,
    "hidden_dropout": 0.0,
    "initializer_range": 0.02,
    "masked_softmax_fusion": True,
    "n_inner": None,
    "offset_alibi": 100,
    "pad_token_id": 3,
    "pretraining_tp": 1,
    "seq_length": 2048,
    "skip_bias_add": True,
    "skip_bias_add_qkv": False,
    "transformers_version": "4.20.0",
    "unk_token_id": 0,
    "use_cache": True,
}
MPT = {
    **families.MPT,
    "architectures": ["MPTForCausalLM"],
    "attn_config": {
        "alibi": True,
        "alibi_bias_max": 8,
        "attn_impl": "torch",
        "attn_pdrop": 0,
        "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False,
        "clip_qkv": None,
        "prefix_lm": False,
        "qk_ln": False,
        "softmax_scale": None,
    },
    "auto_map": {
        "AutoConfig": "configuration_mpt.MPTConfig",
        "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM",
    },
    "emb_pdrop": 0,
    "embedding_fraction": 1.0,
    "expansion_ratio": 4,
    "init_config": {"init_std": 0.02, "name": "kaiming_normal_"},
    "init_device": "cpu",
    "learned_pos_emb": True,
    "logit_scale": None,
    "no_bias": True,
    "norm_type": "low_precision_layernorm",
    "resid_pdrop": 0,
    "tokenizer_name": "EleutherAI/gpt-neox-20b",
    "torch_dtype": "bfloat16",
    "use_cache": False,
    "verbose": 0,
}


@pytest.mark.quick
@pytest.mark.parametrize("config", [BLOOM, MPT])
def test_published_folders_of_bloom_and_mpt_are_read(tmp_path, config):
    kind = config["model_type"]
    own = families.DECODERS[kind]
    if kind == "mpt":
        own = {**own, "attn_config": config["attn_config"]}
    tensors = families.tensors(own)
    write(tmp_path, config, tensors)
    model = CausalDecoder.from_pretrained(tmp_path, dtype=np.float64)
    expected = families.logits(tensors, own, IDS)
    np.testing.assert_allclose(model.logits(model(IDS)), expected, rtol=1e-9)
    model.save_pretrained(tmp_path / "new")
    again = CausalDecoder.from_pretrained(tmp_path / "new", dtype=np.float64)
    assert_same_bits(again(IDS), model(IDS))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip_qkv": 8.0}, "expected attn_config with no 'clip_qkv', got 8.0"),
        ({"qk_ln": True}, "expected attn_config with qk_ln = False, got True"),
        ({"alibi": False}, "expected attn_config with alibi = True, got False"),
        (
            {"alibi_bias_max": 16},
            "expected attn_config with alibi_bias_max = 8, got 16",
        ),
        ({"prefix_lm": True}, "expected attn_config with prefix_lm = False, got True"),
        ({"attn_type": "grouped_query_attention"}, "attn_type = 'multihead_attention'"),
        ({"rope": True}, "expected attn_config with no 'rope', got True"),
        (
            {"softmax_scale": 0},
            "expected softmax_scale in attn_config to be a finite n",
        ),
        ({"softmax_scale": "x"}, "expected softmax_scale in attn_config to be a finit"),
    ],
)
def test_attention_of_mpt_that_is_not_here_is_refused(changes, words):
    attention = {**MPT["attn_config"], **changes}
    with pytest.raises(ValueError, match=rf"^config: .*{words}"):
        CausalDecoder.from_config({**MPT, "attn_config": attention})


@pytest.mark.quick
@ALIBI
@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("paged", [False, True])
def test_alibi_gives_the_same_bits_in_any_chunks_and_company(
    tmp_path, kind, weights, paged
):
    write(tmp_path, families.DECODERS[kind], families.tensors(families.DECODERS[kind]))
    model = CausalDecoder.from_pretrained(tmp_path, weights=weights)
    texts = np.random.default_rng(0).integers(0, 30, (3, 300))
    alone = [model(text) for text in texts]
    caches = model.new_caches(3, 300)
    if paged:
        caches = [PagedKVCache(pool, 3) for pool in model.new_page_pools(9)]
    lengths = np.array([7, 200, 1])
    first = model(texts[:, :200], lengths=lengths, caches=caches)
    for states, text, n in zip(first, alone, lengths, strict=True):
        assert_same_bits(states[:n], text[:n])
    for step in range(3):
        new = texts[np.arange(3), lengths + step][:, np.newaxis]
        states = model(new, caches=caches)[:, 0]
        places = zip(alone, lengths + step, strict=True)
        assert_same_bits(states, np.array([text[at] for text, at in places]))
    lengths += 3
    more = np.stack([text[n : n + 50] for text, n in zip(texts, lengths, strict=True)])
    for states, text, n in zip(model(more, caches=caches), alone, lengths, strict=True):
        assert_same_bits(states, text[n : n + 50])


@pytest.mark.quick
@ALIBI
def test_long_texts_need_no_matrix_of_alibi(kind):
    model = CausalDecoder.from_config(families.DECODERS[kind])
    n_heads = model.decoder.layers[0].self_attention.num_heads
    assert model._bias(100_000).shape == (n_heads, 100_000, 100_000)
    assert_same_bits(model._bias(9), positions.alibi_bias(n_heads, 9, 9))
    assert model.max_tokens == 2**31 - 1


@pytest.mark.quick
@ALIBI
def test_gradients_with_alibi_are_those_of_differences(kind):
    model = CausalDecoder.from_config(
        families.DECODERS[kind], dtype=np.float64, rng=np.random.default_rng(0)
    )
    rng = np.random.default_rng(1)
    for array in model.parameters().values():
        array += rng.standard_normal(array.shape) / 4
    batch = families.batch()
    scores, pullback = model.vjp(batch, lengths=LENGTHS, logits=True)
    exists = np.arange(9) < np.array(LENGTHS)[:, np.newaxis]
    grad = rng.standard_normal(scores.shape) * exists[..., np.newaxis]
    found = pullback(grad)
    assert found.keys() == model.parameters().keys()

    def loss():
        states = model(batch, lengths=LENGTHS)
        return float((model.logits(states) * grad)[exists].sum())

    for name, array in model.parameters().items():
        step = rng.standard_normal(array.shape) * 1e-5
        array += step
        above = loss()
        array -= 2 * step
        below = loss()
        array += step
        slope = (above - below) / 2
        np.testing.assert_allclose(
            slope, (found[name] * step).sum(), rtol=1e-4, atol=1e-9, err_msg=name
        )


@pytest.mark.quick
def test_alibi_is_instead_of_other_positions_of_decoders():
    sizes = (1, 8, 2, 8)
    for other in ({"max_length": 4}, {"rotary": positions.Rotary(4)}):
        with pytest.raises(
            ValueError, match="alibi: expected False with rotary or max"
        ):
            CausalDecoder(*sizes, vocab_size=9, alibi=True, **other)
    for name in ("alibi", "embedding_norm"):
        with pytest.raises(TypeError, match=f"{name}: expected a bool"):
            CausalDecoder(*sizes, vocab_size=9, **{name: 2})
        model = CausalDecoder(*sizes, vocab_size=9, **{name: True})
        assert f"{name}=True" in repr(model)
    model = CausalDecoder(*sizes, vocab_size=9, norm="rms", embedding_norm=True)
    assert isinstance(model.embedding_norm, RMSNorm)


PARTS = ["model.", "language_model.model.", "model.language_model."]


@pytest.mark.quick
@pytest.mark.parametrize("start", PARTS)
def test_the_text_model_is_read_of_a_gemma_with_pictures(tmp_path, start):
    tensors = families.tensors(families.GEMMA3)
    write(tmp_path, families.GEMMA3, tensors)
    expected = CausalDecoder.from_pretrained(tmp_path)
    there = {name.replace("model.", start, 1): array for name, array in tensors.items()}
    front = "model." if start == PARTS[2] else ""
    for name in ("vision_tower.head.probe", "multi_modal_projector.mm_soft_emb_norm"):
        there[f"{front}{name}"] = np.ones(3, np.float32)
    inner = {x: families.GEMMA3[x] for x in families.GEMMA3 if x != "eos_token_id"}
    around = {"vision_config": {"hidden_size": 8}, "mm_tokens_per_image": 256}
    around |= {"boi_token_index": 5, "eoi_token_index": 6, "image_token_index": 7}
    config = {"model_type": "gemma3", "text_config": inner, "eos_token_id": [1, 6]}
    write(tmp_path, {**config, **around}, there)
    model = CausalDecoder.from_pretrained(tmp_path)
    assert_same_parameters(model, expected)
    assert_same_bits(model(IDS), expected(IDS))
    assert (model.stop, model.max_tokens) == ((1, 6), 64)
    CausalDecoder.from_pretrained(tmp_path, packed=False).save_pretrained(
        tmp_path / "text"
    )
    again = CausalDecoder.from_pretrained(tmp_path / "text")
    assert again.config["model_type"] == "gemma3_text"
    assert_same_bits(again(IDS), expected(IDS))


def test_an_offset_of_positions_needs_a_table_of_them():
    options = {"vocab_size": 30, "max_length": 5, "position_offset": 3}
    model = CausalDecoder(1, 12, 3, 20, **options)
    assert model.position_embedding.shape == (8, 12)
    assert model.max_tokens == 5
    grad_output = np.arange(60, dtype=np.float32).reshape(5, 12) ** 2
    grads = model.vjp(np.arange(5))[1](grad_output)
    used = np.abs(grads["position_embedding"]).sum(axis=1) > 0
    assert used.tolist() == [False] * 3 + [True] * 5
    with pytest.raises(ValueError, match="expected at most max_length = 5 tokens"):
        model(np.arange(6))
    with pytest.raises(ValueError, match="position_offset: expected 0 without max_len"):
        CausalDecoder(1, 12, 3, 20, **{**options, "max_length": None})
