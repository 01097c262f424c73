"""DeBERTa's positions: scores of layers against float64, and the promises about bits.

Whole models are in test_models.py and test_huggingface.py.
"""

import copy
import itertools
import pickle

import numpy as np
import pytest
from support import families
from support.arrays import normal
from support.comparisons import assert_near, assert_same_bits
from support.formulas import softmax

from attnpy import blocks, checkpoints, positions
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention
from attnpy.models import BertEncoder
from attnpy.positions import Disentangled

H, D, E = 3, 4, 12


def layer(dtype=np.float64, own=False):
    mha = MultiHeadAttention(E, H, dtype=dtype, rng=np.random.default_rng(0))
    for i, letter in enumerate("qkvo"):
        getattr(mha, f"b_{letter}")[:] = normal(E, seed=i)
    if own:
        mha.W_pk, mha.W_pq = (normal(E, E, seed=i).astype(dtype) for i in (7, 8))
        mha.b_pq = normal(E, seed=9).astype(dtype)
    return mha


def expected(mha, x, relative):
    """(output, weights) of one sequence, from the formula."""

    def heads(x, weight, bias=None):
        bias = 0 if bias is None else bias
        return (x @ weight + bias).reshape(len(x), H, D).swapaxes(0, 1)

    table = np.asarray(relative.table, float)
    query, key, value = (
        heads(x, getattr(mha, f"W_{c}"), getattr(mha, f"b_{c}")) for c in "qkv"
    )
    own = mha.W_pk is not None
    as_key = heads(table, mha.W_pk, mha.b_pk) if own else heads(table, mha.W_k, mha.b_k)
    as_query = (
        heads(table, mha.W_pq, mha.b_pq) if own else heads(table, mha.W_q, mha.b_q)
    )
    n = len(x)
    scores, n_terms = query @ key.swapaxes(-1, -2), 1
    for i, j in itertools.product(range(n), range(n)):
        row = int(relative.rows(i - j))
        if relative.c2p:
            scores[:, i, j] += (query[:, i] * as_key[:, row]).sum(axis=-1)
        if relative.p2c:
            scores[:, i, j] += (key[:, j] * as_query[:, row]).sum(axis=-1)
    n_terms = 1 + relative.c2p + relative.p2c
    weights = softmax(scores / np.sqrt(D * n_terms))
    z = (weights @ value).swapaxes(0, 1).reshape(n, E)
    return z @ mha.W_o + mha.b_o, weights


@pytest.mark.quick
@pytest.mark.parametrize("terms", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("n_rows", "max_distance"), [(8, None), (16, 16), (400, None)])
@pytest.mark.parametrize("own", [False, True])
def test_scores_are_sums_of_three_products(terms, n_rows, max_distance, own):
    options = dict(zip(("c2p", "p2c"), terms, strict=True))
    relative = Disentangled(
        normal(n_rows, E, seed=3), max_distance=max_distance, **options
    )
    mha = layer(own=own)
    for n in (1, 9, 131):  # one block, and a part of a second one
        x = normal(n, E, seed=4)
        output, weights = expected(mha, x, relative)
        found = mha(x, relative=relative, return_weights=True)
        assert_near(found[0], output, 1e-12)
        assert_near(found[1], weights, 1e-12)
        assert_same_bits(mha(x, relative=relative), found[0])


@pytest.mark.quick
def test_rows_are_clipped_and_those_of_logarithms_are_exact():
    plain = Disentangled(np.ones((6, 1)))
    assert plain.rows([-9, -3, -1, 0, 2, 3, 9]).tolist() == [0, 0, 2, 3, 5, 5, 5]
    for n_rows, most in ((512, 512), (64, 128), (16, 512), (256, 300)):
        span = n_rows // 2
        half = span // 2
        distances = np.arange(-2 * most, 2 * most + 1)
        far = np.maximum(np.abs(distances), half + 1)
        steps = np.log(far / half) / np.log((most - 1) / half) * (half - 1)
        bucket = half + np.ceil(steps - 1e-9).astype(int)  # of whole numbers, too
        bucket = np.where(np.abs(distances) <= half, np.abs(distances), bucket)
        rows = np.clip(np.sign(distances) * bucket + span, 0, n_rows - 1)
        relative = Disentangled(np.ones((n_rows, 1)), max_distance=most)
        assert_same_bits(relative.rows(distances), rows)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("max_distance", [None, 16])
def test_a_sequence_has_the_same_bits_in_any_company(dtype, max_distance):
    mha = layer(dtype)
    relative = Disentangled(normal(16, E, dtype=dtype), max_distance=max_distance)
    x = normal(3, 140, E, dtype=dtype)
    alone = [
        mha(each[:n], relative=relative) for each, n in zip(x, (140, 9, 1), strict=True)
    ]
    packed = np.concatenate([x[0], x[1, :9], x[2, :1]])
    starts = [0, 140, 149, 150]
    mha_packed = copy.deepcopy(mha)
    mha_packed.pack()
    for own, threads in itertools.product((mha, mha_packed, mha_packed), (1, 3)):
        options = {"relative": relative, "num_threads": threads}
        found = own(packed, seq_offsets=starts, **options)
        assert_same_bits(found, np.concatenate(alone))
        padded = own(x, kv_lengths=[140, 9, 1], **options)
        for i, n in enumerate((140, 9, 1)):
            assert_same_bits(padded[i, :n], alone[i])
    output, weights = mha(
        packed, seq_offsets=starts, relative=relative, return_weights=True, heads=[2, 0]
    )
    assert_same_bits(output, np.concatenate(alone))
    assert weights.shape == (3, 2, 140, 140)
    _, own = mha(x[1, :9], relative=relative, return_weights=True)
    assert_same_bits(weights[1, :, :9, :9], own[[2, 0]])
    assert not weights[1, :, 9:].any()


def test_other_options_of_a_call_are_honoured():
    mha, x = layer(), normal(2, 7, E)
    relative = Disentangled(normal(8, E))
    plain, weights = mha(x, relative=relative, return_weights=True)
    # The same as a bias.
    tiny = Disentangled(np.full((8, E), 0.0))
    for letter in "qk":
        getattr(mha, f"b_{letter}")[:] = 0
    bias, mask = normal(2, H, 7, 7), normal(7, 7) > -1
    np.fill_diagonal(mask, True)
    options = {"bias": bias, "mask": mask, "causal": True, "scale": 0.3}
    options |= {"sinks": normal(H), "softcap": 4.0, "window": (3, 0)}
    assert_near(mha(x, relative=tiny, **options), mha(x, **options), 1e-12)
    residual = normal(2, 7, E)
    found = mha(x, relative=tiny, residual=residual, scale=0.5)
    assert_near(found, mha(x, scale=0.5) + residual, 1e-12)
    mean = mha(x, relative=relative, return_weights=True, average_weights=True)[1]
    assert mean.shape == (2, 7, 7)
    assert plain.shape == x.shape
    assert weights.shape == (2, H, 7, 7)
    for empty in (x[:0], x[:, :0], x[0, :0]):
        assert mha(empty, relative=relative).shape == empty.shape


@pytest.mark.quick
@pytest.mark.parametrize("packed", [False, True])
def test_changes_of_parameters_are_seen(packed):
    config = {**families.DEBERTA_V2, "num_hidden_layers": 1}
    model = BertEncoder.from_config(config, dtype=np.float64)
    if packed:
        model.pack()
    ids = np.arange(9)
    states = model(ids)
    for name in (
        "distance_embedding",
        "distance_norm.weight",
        "encoder.layers.0.self_attention.b_q",
        "encoder.layers.0.self_attention.b_k",
    ):
        array = model.parameters()[name]
        array += normal(*array.shape)
        changed = model(ids)
        assert (changed != states).any()
        assert_same_bits(copy.deepcopy(model)(ids), changed)
        assert_same_bits(pickle.loads(pickle.dumps(model))(ids), changed)
        states = changed


@pytest.mark.quick
def test_16_bits_are_computed_in_float32():
    mha, x = layer(np.float32), normal(9, E, dtype=np.float32)
    relative = Disentangled(normal(8, E, dtype=np.float32))
    half = MultiHeadAttention(E, H, dtype=np.float16)
    half.load_state_dict(mha.parameters())
    expected = mha(x, relative=relative)
    found = half(x, relative=relative, mixed=True)
    assert found.dtype == np.float32
    assert_near(found, expected, 2e-2)
    assert half(x.astype(np.float16), relative=relative).dtype == np.float16


@pytest.mark.quick
def test_what_does_not_fit_is_refused_by_name():
    mha, x = layer(), normal(5, E)
    relative = Disentangled(normal(8, E))
    grouped = MultiHeadAttention(E, H, num_kv_heads=1)
    normed = layer()
    normed.q_norm = blocks.RMSNorm(D)
    rotary = positions.Rotary(D)
    layers = blocks.EncoderLayer(E, H, 5, dtype=np.float64)
    stack = blocks.Encoder(1, E, H, 5, dtype=np.float64)
    model = BertEncoder.from_config(families.DEBERTA)
    no_terms = dict.fromkeys(("c2p", "p2c"), False)
    for text, error, call in (
        ("relative: expected a Disen", TypeError, lambda: mha(x, relative=rotary)),
        ("with context", ValueError, lambda: mha(x, x, relative=relative)),
        ("with rotary", ValueError, lambda: mha(x, rotary=rotary, relative=relative)),
        (
            "with cache",
            ValueError,
            lambda: mha(x, cache=KVCache(1, H, 9, D), relative=relative),
        ),
        ("num_kv_heads = 1", ValueError, lambda: grouped(x, relative=relative)),
        ("q_norm or k_norm", ValueError, lambda: normed(x, relative=relative)),
        ("of 12 numbers", ValueError, lambda: mha(x, relative=Disentangled(x[:2, :7]))),
        ("x: expected", ValueError, lambda: mha(x[:, :3], relative=relative)),
        (
            "bias: expected a shape",
            ValueError,
            lambda: mha(x, relative=relative, bias=x),
        ),
        ("gradients", ValueError, lambda: layers.vjp(x, relative=relative)),
        ("gradients", ValueError, lambda: stack.vjp(x, relative=relative)),
        ("gradients", ValueError, lambda: model.vjp([1, 2])),
        ("'relative'", TypeError, lambda: mha.vjp(x, relative=relative)),
        ("table: expected", ValueError, lambda: Disentangled(x)),
        ("8, 12, 16", ValueError, lambda: Disentangled(x[:4], max_distance=9)),
        (
            "c2p: expected",
            ValueError,
            lambda: Disentangled(x[:4], **no_terms),
        ),
    ):
        with pytest.raises(error, match=text):
            call()
    for options, text in (
        ({"max_distance": 9}, "max_distance: expected none without num_distances"),
        ({"distance_norm": True}, "distance_norm: expected none without"),
        ({"num_distances": 7}, "num_distances: expected"),
        ({"num_distances": 8, "distance_terms": ["p2p"]}, "distance_terms: expected"),
        ({"num_distances": 8, "distance_terms": []}, "c2p: expected True"),
    ):
        with pytest.raises(ValueError, match=text):
            BertEncoder(1, E, H, 5, vocab_size=9, **options)


def test_a_stack_passes_positions_to_its_layers():
    stack, x = blocks.Encoder(2, E, H, 5, dtype=np.float64), normal(5, E)
    relative = Disentangled(normal(8, E))
    expected = x
    for one in stack.layers:
        expected = one(expected, relative=relative)
    assert_same_bits(stack(x, relative=relative), expected)
    assert (stack(x) != expected).any()
    assert_same_bits(stack(x, relative=None), stack(x))
    shown = pickle.loads(pickle.dumps(relative))
    assert_same_bits(stack(x, relative=shown), expected)


@pytest.mark.quick
@pytest.mark.parametrize("kind", families.DISENTANGLED)
def test_a_head_for_words_may_have_the_authors_names(kind):
    config = families.DISENTANGLED[kind]
    tensors = families.tensors(config)
    head = {
        "dense.weight": normal(E, E),
        "dense.bias": normal(E),
        "LayerNorm.weight": normal(E),
        "LayerNorm.bias": normal(E),
        "bias": normal(30),
    }
    made = []
    for prefix in ("cls.predictions.transform.", "lm_predictions.lm_head."):
        named = {f"{prefix}{name}": array for name, array in head.items()}
        if prefix.startswith("cls"):
            named["cls.predictions.bias"] = named.pop(f"{prefix}bias")
        # Left alone: tokens of these models have no positions of their own.
        named["deberta.embeddings.position_embeddings.weight"] = normal(16, E)
        model = BertEncoder.from_config(config, masked_words=True)
        checkpoints.load(model, {**tensors, **named}, families.NAMES[kind])
        made.append(model.logits(model(np.arange(9))))
    assert_same_bits(*made)
