"""EuroBERT: the layers of Llama, each token seeing all, under heads of BERT's kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnpy._families import llama, rules
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    tokens_of,
)
from attnpy._families.fields import HARMLESS, NO_END, Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

# What pools the vectors of tokens, by the configuration's names.
POOLINGS = {"bos": "cls", "mean": "mean", "late": "late"}

# Llama's norm before the network is the third one, after that of a context.
NAMES = Family(
    {
        theirs: tuple(
            own.replace("decoder.", "encoder.").replace("norm_3", "norm_2")
            for own in parameters
        )
        for theirs, parameters in llama.NAMES.names.items()
        if "_norm." not in theirs and theirs != "lm_head.weight"
    },
    prefixes=("model.",),
    heads=("classifier.*", "dense.*", "lm_head.*", "qa_outputs.*"),
    tied={"lm_head.weight": "embed_tokens.weight"},
    classifier=head_of("dense", "classifier"),
    token_classifier=tokens_of("classifier"),
    masked_words={
        "lm_head.weight": ("word_head.classifier_weight.T",),
        "lm_head.bias": ("word_head.bias",),
    },
)


def _pooling(values: Values) -> str:
    """Return which vectors of tokens become that of a text, and when."""
    return POOLINGS[rules.one_of(values, "classifier_pooling", *POOLINGS)]


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that do not say where the code is."""
    return rules.without_code(
        config, "configuration_eurobert.EuroBert", "modeling_eurobert.EuroBert"
    )


EUROBERT = Declaration(
    model_type="eurobert",
    title="EuroBERT",
    model="encoder",
    classes=("EuroBertModel", "EuroBertForSequenceClassification"),
    checkpoint="eurobert",
    names=NAMES,
    read={
        name: field
        for name, field in llama.READ.items()
        if name not in ("eos_token_id", "is_causal", rules.ORIGINAL)
    }
    | {
        "max_position_embeddings": Field("size", 8192),
        "rms_norm_eps": Field("number", 1e-5),
        "attention_bias": Field("flag", False),
        "mlp_bias": Field("flag", False),
        "classifier_pooling": Field("name", "late"),
    },
    neutral=llama.LLAMA_NEUTRAL | {"is_causal": (False,), "is_decoder": (False,)},
    harmless=HARMLESS
    | NO_END
    | {
        "dropout, for training": ("hidden_dropout",),
        "tokens by their names, which tokenizers have too": (
            "bos_token",
            "eos_token",
            "mask_token",
            "pad_token",
        ),
    },
    copied={name: field for name, field in llama.COPIED.items() if name != "tied"}
    | {
        "max_length": "max_position_embeddings",
        "qkv_bias": "attention_bias",
        "out_bias": "attention_bias",
        "feed_forward_bias": "mlp_bias",
    },
    fixed={
        "num_types": 0,
        "norm": "rms",
        "norm_first": True,
        "embedding_norm": False,
    },
    computed={
        "head_dim": rules.head_dim,
        "rotary": rules.rotary,
        "activation": rules.gated("hidden_act"),
    },
    head_activation="gelu",
    heads={
        "text": {"pooling": _pooling},
        "word": {
            "word_dense": False,
            "word_tied": lambda values: values["tie_word_embeddings"],
            "word_bias": lambda values: values["mlp_bias"],
        },
    },
    older={"clf_pooling": "classifier_pooling"},
    modern=_modern,
)
