"""ModernBERT: norms first, networks with a gate, windows in two of three layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import bert, rules
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    names_of,
    tokens_of,
    words_of,
)
from attnpy._families.fields import Field
from attnpy._families.rules import FULL, SLIDING

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy._typing import Window
    from attnpy.positions import Rotary

BASES = {FULL: 160_000.0, SLIDING: 10_000.0}

NAMES = Family(
    names_of(
        "layers.{i} encoder.layers.{i}",
        {
            "attn_norm.weight": "norm_1.weight",
            "attn_norm.bias": "norm_1.bias",
            "attn.Wqkv.weight": "self_attention.W_q.T self_attention.W_k.T "
            "self_attention.W_v.T",
            "attn.Wqkv.bias": "self_attention.b_q self_attention.b_k "
            "self_attention.b_v",
            "attn.Wo.weight": "self_attention.W_o.T",
            "attn.Wo.bias": "self_attention.b_o",
            "mlp_norm.weight": "norm_2.weight",
            "mlp_norm.bias": "norm_2.bias",
            "mlp.Wi.weight": "feed_forward.W_gate.T feed_forward.W_1.T",
            "mlp.Wi.bias": "feed_forward.b_gate feed_forward.b_1",
            "mlp.Wo.weight": "feed_forward.W_2.T",
            "mlp.Wo.bias": "feed_forward.b_2",
        },
        {
            "embeddings.tok_embeddings.weight": "token_embedding",
            "embeddings.norm.weight": "norm.weight",
            "embeddings.norm.bias": "norm.bias",
            "final_norm.weight": "encoder.norm.weight",
            "final_norm.bias": "encoder.norm.bias",
        },
    ),
    prefixes=("model.",),
    heads=("classifier.*", "decoder.*", "head.*"),
    tied={"decoder.weight": "embeddings.tok_embeddings.weight"},
    classifier=head_of("head.dense", "classifier")
    | {
        "head.norm.weight": ("pooler_norm.weight",),
        "head.norm.bias": ("pooler_norm.bias",),
    },
    token_classifier=tokens_of("classifier", "head.dense", "head.norm"),
    masked_words=words_of("head.dense", "head.norm", "decoder.bias"),
)


def _kinds(values: Values) -> list[str]:
    """Return the kind of attention of each layer."""
    every = values["global_attn_every_n_layers"]
    n_layers = values["num_hidden_layers"]
    usual = [SLIDING if i % every else FULL for i in range(n_layers)]
    sized = {**values, "sliding_window": values["local_attention"]}
    return rules.layer_types(sized, lambda _: usual)


def _windows(values: Values) -> list[Window | None]:
    """Return the window of each layer: half of local_attention on each side."""
    half = values["local_attention"] // 2
    return [(half, half) if kind == SLIDING else None for kind in _kinds(values)]


def _rotaries(values: Values) -> list[Rotary]:
    """Return the positions of each layer, those with a window having their own."""
    older = {FULL: values["global_rope_theta"], SLIDING: values["local_rope_theta"]}
    bases = {
        kind: BASES[kind] if base is None else base for kind, base in older.items()
    }
    turns = rules.turns_by_kind(values, bases, dict.fromkeys(bases, "rope_scaling"))
    return [turns[kind] for kind in _kinds(values)]


def _pooling(values: Values) -> str:
    """Return which vectors of tokens become that of a text."""
    return rules.one_of(values, "classifier_pooling", "cls", "mean")


_ACTIVATION = rules.activation("classifier_activation")
_HEAD = {
    "head_activation": _ACTIVATION,
    "head_bias": lambda values: values["classifier_bias"],
}

MODERNBERT = Declaration(
    model_type="modernbert",
    title="ModernBERT",
    model="encoder",
    classes=("ModernBertModel", "ModernBertForSequenceClassification"),
    checkpoint="modernbert",
    names=NAMES,
    read={
        name: field
        for name, field in bert.READ.items()
        if name not in ("hidden_act", "layer_norm_eps")
    }
    | {
        "max_position_embeddings": Field("size", 8192),
        "hidden_activation": Field("name", "gelu"),
        "norm_eps": Field("number", 1e-5),
        "norm_bias": Field("flag", False),
        "attention_bias": Field("flag", False),
        "mlp_bias": Field("flag", False),
        "local_attention": Field("size", 128),
        "global_attn_every_n_layers": Field("size", 3),
        "layer_types": Field("names", None),
        "rope_parameters": Field("mapping", None),
        "rope_scaling": Field("mapping", None),
        "global_rope_theta": Field("number", None),
        "local_rope_theta": Field("number", None),
        "classifier_pooling": Field("name", "cls"),
        "classifier_activation": Field("name", "gelu"),
        "classifier_bias": Field("flag", False),
        "decoder_bias": Field("flag", True),
    },
    neutral={
        name: values
        for name, values in bert.BERT_NEUTRAL.items()
        if name != "position_embedding_type"
    },
    harmless=bert.BERT_HARMLESS
    | {
        "dropout, for training": (
            "classifier_dropout",
            "embedding_dropout",
            "initializer_cutoff_factor",
            "mlp_dropout",
        ),
        "of old versions, which the new ones do not read": (
            "layer_norm_eps",
            "position_embedding_type",
            "reference_compile",
            "repad_logits_with_grad",
        ),
        "how it is computed, not what": (
            "deterministic_flash_attn",
            "sparse_pred_ignore_index",
            "sparse_prediction",
        ),
    },
    copied={name: field for name, field in bert.COPIED.items() if name != "eps"}
    | {
        "eps": "norm_eps",
        "norm_bias": "norm_bias",
        "qkv_bias": "attention_bias",
        "out_bias": "attention_bias",
        "feed_forward_bias": "mlp_bias",
    },
    fixed={"num_types": 0, "norm_first": True, "first_norm": False},
    computed={
        "activation": rules.gated("hidden_activation"),
        "window": _windows,
        "rotary": _rotaries,
    },
    heads={
        "text": {
            "pooler_activation": _ACTIVATION,
            "pooler_norm": True,
            "pooling": _pooling,
            "head_bias": _HEAD["head_bias"],
        },
        "token": {**_HEAD, "token_dense": True},
        "word": {**_HEAD, "word_bias": lambda values: values["decoder_bias"]},
    },
)
