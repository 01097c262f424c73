"""BART, and those whose code is a copy of its: mBART, Marian, Pegasus, M2M100."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnpy._families import rules
from attnpy._families.declaration import Declaration, Family, head_of, names_of
from attnpy._families.fields import (
    ENCODER_DECODER_NEUTRAL,
    HARMLESS,
    KINDS,
    Field,
    without,
)
from attnpy._quoting import quoted

if TYPE_CHECKING:
    from attnpy._families.declaration import Values


def _attention(theirs: str, ours: str, norm: str) -> dict[str, str]:
    """Return the names of an attention layer and of its norm."""
    names = {f"{theirs}_layer_norm.{x}": f"{norm}.{x}" for x in ("weight", "bias")}
    for letter in "qkvo":
        part = "out_proj" if letter == "o" else f"{letter}_proj"
        names[f"{theirs}.{part}.weight"] = f"{ours}.W_{letter}.T"
        names[f"{theirs}.{part}.bias"] = f"{ours}.b_{letter}"
    return names


def _network(norm: str) -> dict[str, str]:
    names = {f"final_layer_norm.{x}": f"{norm}.{x}" for x in ("weight", "bias")}
    for i in "12":
        names[f"fc{i}.weight"] = f"feed_forward.W_{i}.T"
        names[f"fc{i}.bias"] = f"feed_forward.b_{i}"
    return names


_FIRST = _attention("self_attn", "self_attention", "norm_1")
_CROSS = _attention("encoder_attn", "cross_attention", "norm_2")

_BOTH = ("encoder", "decoder")
LAYERS = {
    "shared.weight": ("token_embedding",),
    **names_of(
        "encoder.layers.{i} encoder.layers.{i}", {**_FIRST, **_network("norm_2")}, {}
    ),
    **names_of(
        "decoder.layers.{i} decoder.layers.{i}",
        {**_FIRST, **_CROSS, **_network("norm_3")},
        {},
    ),
    "final_logits_bias": ("output_bias",),
}
POSITIONS = {
    f"{side}.embed_positions.weight": (f"{side}_position_embedding",) for side in _BOTH
}
EMBEDDING_NORMS = {
    f"{side}.layernorm_embedding.{x}": (f"{side}_embedding_norm.{x}",)
    for side in _BOTH
    for x in ("weight", "bias")
}
LAST_NORMS = {
    f"{side}.layer_norm.{x}": (f"{side}.norm.{x}",)
    for side in _BOTH
    for x in ("weight", "bias")
}


def _family(names: dict[str, tuple[str, ...]]) -> Family:
    """Return the names of a family; positions that are computed are ignored."""
    learned = set(POSITIONS) <= set(names)
    return Family(
        names,
        prefixes=("model.",),
        ignored=("encoder.version", "decoder.version", *(() if learned else POSITIONS)),
        heads=("classification_head.*", "qa_outputs.*"),
        tied={
            "lm_head.weight": "shared.weight",
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
        },
        zero=("final_logits_bias",) if "final_logits_bias" in names else (),
        beside=("lm_head.weight", "final_logits_bias"),
    )


def _layers(values: Values) -> int:
    """Return the number of the encoder's layers, which may have two names."""
    rules.check_same(values, "encoder_layers", "num_hidden_layers")
    return int(values["encoder_layers"])


def _embedding_scale(values: Values) -> float | None:
    return math.sqrt(values["d_model"]) if values["scale_embedding"] else None


def _generation(values: Values) -> dict[str, Any]:
    """Return what `generate` does unless it is told: the last token, if forced."""
    last = values["forced_eos_token_id"]
    return {} if last is None else {"forced_eos": last}


READ = {
    "encoder_layers": Field("layers"),
    "decoder_layers": Field("layers"),
    "num_hidden_layers": Field("layers", None),
    "d_model": Field("size"),
    "encoder_attention_heads": Field("size"),
    "decoder_attention_heads": Field("size"),
    "encoder_ffn_dim": Field("size"),
    "decoder_ffn_dim": Field("size"),
    "vocab_size": Field("size"),
    "max_position_embeddings": Field("size", 1024),
    "activation_function": Field("name", "gelu"),
    "scale_embedding": Field("flag", False),
    "eos_token_id": Field("tokens", 2, null=True),
    "decoder_start_token_id": Field("count", 2, null=True),
    "forced_eos_token_id": Field("tokens", 2, null=True),
}

# The head of BART that scores texts.
_CLASSIFIER = head_of("classification_head.dense", "classification_head.out_proj")


def _scored_token(values: Values) -> int:
    """Return the token whose vector is scored, where it comes last."""
    token, (fits, words) = values["eos_token_id"], KINDS["count"]
    if not fits(token):
        raise ValueError(
            f"config: expected eos_token_id to be {words} with a classifier, got "
            f"{quoted(token)}"
        )
    return int(token)


BART = Declaration(
    model_type="bart",
    title="BART",
    model="encoder-decoder",
    classes=("BartModel", "BartForConditionalGeneration"),
    checkpoint="bart",
    names=_family({**LAYERS, **POSITIONS, **EMBEDDING_NORMS})._replace(
        classifier=_CLASSIFIER
    ),
    read=READ,
    neutral=ENCODER_DECODER_NEUTRAL | {"tie_word_embeddings": (True,)},
    harmless=without(HARMLESS, READ)
    | {
        "dropout and initial values, for training": (
            "activation_dropout",
            "classif_dropout",
            "classifier_dropout",
            "decoder_layerdrop",
            "dropout",
            "encoder_layerdrop",
            "init_std",
        ),
        "settings of old versions, ignored by new ones": (
            "add_bias_logits",
            "add_final_layer_norm",
            "extra_pos_embeddings",
            "force_bos_token_to_be_generated",
            "normalize_before",
            "normalize_embedding",
            "save_step",
            "static_position_embeddings",
            "use_position_embeddings",
        ),
        "other names of fields, which new versions write beside them": (
            "hidden_size",
            "num_attention_heads",
        ),
    },
    copied={
        "num_decoder_layers": "decoder_layers",
        "embed_dim": "d_model",
        "num_heads": "encoder_attention_heads",
        "num_decoder_heads": "decoder_attention_heads",
        "hidden_dim": "encoder_ffn_dim",
        "decoder_hidden_dim": "decoder_ffn_dim",
        "vocab_size": "vocab_size",
        "max_length": "max_position_embeddings",
        "start": "decoder_start_token_id",
    },
    fixed={
        "positions": "learned",
        "position_offset": 2,
        "embedding_norm": True,
        "output_bias": True,
    },
    computed={
        "num_layers": _layers,
        "activation": rules.activation("activation_function"),
        "embedding_scale": _embedding_scale,
        "stop": rules.stop,
        "generation": _generation,
    },
    usual_labels=3,
    heads={"text": {"scored_token": _scored_token}},
)

MBART = replace(
    BART,
    model_type="mbart",
    title="mBART",
    classes=("MBartModel", "MBartForConditionalGeneration"),
    checkpoint="mbart",
    names=_family({**LAYERS, **POSITIONS, **EMBEDDING_NORMS, **LAST_NORMS}),
    read=READ | {"decoder_start_token_id": Field("count", None, null=True)},
    fixed={**BART.fixed, "norm_first": True},
)


def _check_vocabularies(values: Values) -> int:
    rules.check_same(values, "vocab_size", "decoder_vocab_size")
    return int(values["vocab_size"])


MARIAN = replace(
    BART,
    model_type="marian",
    title="Marian",
    classes=("MarianModel", "MarianMTModel"),
    checkpoint="marian",
    names=_family(LAYERS),
    read=READ
    | {
        "decoder_vocab_size": Field("size", None),
        "eos_token_id": Field("tokens", 0, null=True),
        "decoder_start_token_id": Field("count", 58100, null=True),
        "forced_eos_token_id": Field("tokens", 0, null=True),
    },
    neutral={**BART.neutral, "share_encoder_decoder_embeddings": (True,)},
    copied={x: name for x, name in BART.copied.items() if x != "vocab_size"},
    fixed={"positions": "sinusoidal", "output_bias": True},
    computed={**BART.computed, "vocab_size": _check_vocabularies},
)

PEGASUS = replace(
    BART,
    model_type="pegasus",
    title="Pegasus",
    classes=("PegasusModel", "PegasusForConditionalGeneration"),
    checkpoint="pegasus",
    names=_family({**LAYERS, **LAST_NORMS}),
    read=READ
    | {
        "eos_token_id": Field("tokens", 1, null=True),
        "decoder_start_token_id": Field("count", 0, null=True),
        "forced_eos_token_id": Field("tokens", 1, null=True),
    },
    fixed={"positions": "sinusoidal", "output_bias": True, "norm_first": True},
)


def _base(values: Values) -> float:
    """Return the base of positions whose last wavelength is exactly 2 pi * 10000."""
    half = values["d_model"] // 2
    return float(10000.0 ** (half / max(half - 1, 1)))


_WITHOUT_BIAS = {
    theirs: own for theirs, own in LAYERS.items() if theirs != "final_logits_bias"
}

M2M100 = replace(
    BART,
    model_type="m2m_100",
    title="M2M100, NLLB",
    classes=("M2M100Model", "M2M100ForConditionalGeneration"),
    checkpoint="m2m_100",
    names=_family({**_WITHOUT_BIAS, **LAST_NORMS}),
    read=READ
    | {
        "activation_function": Field("name", "relu"),
        "scale_embedding": Field("flag", True),
        "pad_token_id": Field("count", 1),
        "forced_eos_token_id": Field("tokens", None, null=True),
    },
    harmless=without(BART.harmless, ("pad_token_id",)),
    copied={**BART.copied, "padding_id": "pad_token_id"},
    fixed={"positions": "sinusoidal", "norm_first": True},
    computed={
        **BART.computed,
        "position_base": _base,
        "position_offset": lambda values: values["pad_token_id"] + 1,
    },
)
