"""What objects are shown as: a line of sizes and options, and no numbers of arrays."""

import copy

import numpy as np
import pytest
from support import public
from support.objects import EXAMPLES, RETURNED, Q, layer_gradients

import attnpy
from attnpy import (
    blocks,
    cache,
    layers,
    models,
    positions,
    training,
)


@pytest.mark.quick
def test_every_public_class_has_an_example():
    assert EXAMPLES.keys() == public.classes().keys()


@pytest.mark.quick
@pytest.mark.parametrize("name", [*EXAMPLES, *RETURNED])
def test_an_object_is_shown_in_one_line_without_its_numbers(name, tmp_path):
    thing = {**EXAMPLES, **RETURNED}[name](tmp_path)
    shown = repr(thing)
    assert shown.startswith(f"{name.split('.')[-1]}(")
    assert shown.endswith(")")
    assert len(shown.splitlines()) == 1
    assert len(shown) < 700
    for wrong in ("object at 0x", "array(", "[[", "dtype('"):
        assert wrong not in shown


def with_parameters():
    kinds = public.classes().items()
    return [name for name, k in kinds if callable(getattr(k, "parameters", None))]


@pytest.mark.quick
@pytest.mark.parametrize("name", with_parameters())
def test_parameters_are_counted(name, tmp_path):
    thing = EXAMPLES[name](tmp_path)
    n_numbers = sum(array.size for array in thing.parameters().values())
    assert f"dtype=float32, parameters={n_numbers:_}" in repr(thing)


@pytest.mark.quick
@pytest.mark.parametrize(
    "name",
    [*with_parameters(), "KVCache", "models.CrossEncoder", "models.SentenceEncoder"],
)
def test_what_is_not_whole_is_shown(name):
    kind = public.classes()[name]
    assert repr(kind.__new__(kind)) == f"{kind.__name__}(...)"


SHOWN = {
    "MultiHeadAttention(embed_dim=12, num_heads=4, head_dim=3, dtype=float32, "
    "parameters=624)": lambda: layers.MultiHeadAttention(12, 4),
    "MultiHeadAttention(embed_dim=12, num_heads=4, head_dim=5, value_head_dim=2, "
    "num_kv_heads=2, context_dim=9, value_dim=7, qkv_bias=False, dtype=float16, "
    "parameters=466)": lambda: layers.MultiHeadAttention(
        *(12, 4, 5),
        value_head_dim=2,
        num_kv_heads=2,
        context_dim=9,
        value_dim=7,
        qkv_bias=False,
        dtype=np.float16,
    ),
    "SelfAttention(embed_dim=6, head_dim=3, value_head_dim=2, bias=False, "
    "dtype=float64, parameters=48)": lambda: layers.SelfAttention(
        6, 3, value_head_dim=2, bias=False, dtype=float
    ),
    "LayerNorm(dim=8, eps=1e-06, bias=False, dtype=float32, parameters=8)": (
        lambda: blocks.LayerNorm(8, eps=1e-6, bias=False)
    ),
    "FeedForward(embed_dim=8, hidden_dim=32, activation='swiglu', dtype=float32, "
    "parameters=840)": lambda: blocks.FeedForward(8, 32, activation="swiglu"),
    "MixtureOfExperts(embed_dim=8, hidden_dim=6, num_experts=4, "
    "num_experts_per_token=2, renormalize=False, shared_dim=3, bias=False, "
    "dtype=float32, parameters=688)": lambda: blocks.MixtureOfExperts(
        8, 6, 4, 2, renormalize=False, shared_dim=3, bias=False
    ),
    "Encoder(num_layers=3, embed_dim=8, num_heads=2, hidden_dim=32, norm_first=True, "
    "norm='rms', activation='gelu', bias=False, shared=True, final_norm=False, "
    "dtype=float32, parameters=784)": lambda: blocks.Encoder(
        *(3, 8, 2, 32),
        shared=True,
        final_norm=False,
        norm_first=True,
        norm="rms",
        activation="gelu",
        bias=False,
    ),
    "Decoder(num_layers=1, embed_dim=8, num_heads=2, hidden_dim=32, causal=False, "
    "cross_attention=False, dtype=float32, parameters=872)": lambda: blocks.Decoder(
        1, 8, 2, 32, causal=False, cross_attention=False
    ),
    "BertEncoder(num_layers=1, embed_dim=8, num_heads=2, hidden_dim=32, "
    "activation='relu', eps=1e-05, vocab_size=9, max_length=7, num_types=0, "
    "pooler=True, padding_id=1, num_buckets=4, num_labels=3, dtype=float32, "
    "parameters=1_123)": lambda: models.BertEncoder(
        *(1, 8, 2, 32),
        vocab_size=9,
        max_length=7,
        num_types=0,
        activation="relu",
        eps=1e-5,
        pooler=True,
        padding_id=1,
        num_buckets=4,
        num_labels=3,
    ),
    "CausalDecoder(num_layers=2, embed_dim=8, num_heads=2, hidden_dim=32, "
    "num_kv_heads=1, norm='rms', activation='swiglu', bias=False, vocab_size=9, "
    "rotary=Rotary(head_dim=4, base=500.0, scaling='linear'), window=[(3, 0), None], "
    "softcap=50.0, tied=False, qk_norm=True, dtype=float32, parameters=2_120)": (
        lambda: models.CausalDecoder(
            *(2, 8, 2, 32),
            vocab_size=9,
            num_kv_heads=1,
            norm="rms",
            activation="swiglu",
            bias=False,
            rotary=positions.Rotary(
                4, base=500, scaling={"rope_type": "linear", "factor": 2.0}
            ),
            window=[(3, 0), None],
            softcap=50.0,
            tied=False,
            qk_norm=True,
        )
    ),
    "KVCache(batch_size=2, num_kv_heads=3, capacity=9, head_dim=5, value_head_dim=4, "
    "dtype=float16, growable=True, lengths=0)": lambda: cache.KVCache(
        2, 3, 9, 5, 4, dtype=np.float16, growable=True
    ),
    "KVCache(batch_size=2, num_kv_heads=3, capacity=9, head_dim=5, dtype=float32, "
    "lengths=1 to 7)": lambda: cache.KVCache(2, 3, 9, 5, lengths=[7, 1]),
    "KVCache(batch_size=0, num_kv_heads=3, capacity=9, head_dim=5, dtype=float32)": (
        lambda: cache.KVCache(0, 3, 9, 5)
    ),
    "Rotary(head_dim=8, interleaved=True, rotary_dim=4)": lambda: positions.Rotary(
        8, rotary_dim=4, interleaved=True
    ),
    "AdamW(parameters=2 arrays of 16 numbers, lr=0.001, weight_decay=0.1, "
    "no_decay=1 names, step=0)": lambda: training.AdamW(
        blocks.LayerNorm(8).parameters(), weight_decay=0.1, no_decay=["bias"]
    ),
    "Plan(query=float32 (4, 6, 8), key=float32 (4, 6, 8), value=float32 (4, 6, 8), "
    "kv_lengths=int64 (), output=float32 (4, 6, 8), window=(2, 0), "
    "sinks=float32 (4,))": (
        lambda: attnpy.Plan(
            Q, Q, Q, kv_lengths=5, window=(2, 0), sinks=Q[:, 0, 0], dropout=0.0
        )
    ),
    "AttentionGradients(query=None, key=None, value=float32 (4, 6, 8), bias=None, "
    "sinks=None)": lambda: attnpy.attention_vjp(Q, Q, Q, Q, wanted=["value"]),
    "LayerGradients(x=float32 (6, 8), parameters=4 arrays of 552 numbers, "
    "context=None, value=None, bias=None, sinks=None)": layer_gradients,
}


@pytest.mark.quick
@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown[:40])
def test_sizes_and_options_that_differ_from_the_defaults_are_shown(shown):
    assert repr(SHOWN[shown]()) == shown


def test_what_a_layer_became_is_shown():
    mha = layers.MultiHeadAttention(12, 4)
    mha.q_norm = blocks.RMSNorm(3, dtype=np.float64)
    norm = "q_norm=RMSNorm(dim=3, dtype=float64, parameters=3)"
    assert f"{norm}, dtype=float32 and float64, parameters=627)" in repr(mha)
    mha.pack()
    assert repr(mha).endswith(", parameters=627, packed=True)")
    same = copy.deepcopy(mha)
    assert repr(same) == repr(mha)
    same.W_q = [1, 2]
    assert repr(same) == "MultiHeadAttention(...)"
    optimizer = training.AdamW(blocks.LayerNorm(8).parameters())
    optimizer.step({name: x + 1 for name, x in optimizer.parameters.items()})
    assert repr(optimizer).endswith("step=1)")


def test_a_subclass_shows_its_name():
    class Mine(layers.SelfAttention):
        pass

    assert repr(Mine(6, 3)).startswith("Mine(embed_dim=6, head_dim=3, dtype")
