"""T5 and its multilingual kin: biases by distance, and scores that are not scaled.

Folders of its encoder alone are those of sentence-t5, gtr-t5 and instructor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnpy._families import rules
from attnpy._families.declaration import Declaration, Family, names_of
from attnpy._families.fields import ENCODER_DECODER_NEUTRAL, HARMLESS, Field, without
from attnpy._quoting import quoted

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy._typing import Activation


def _attention(theirs: str, ours: str) -> dict[str, str]:
    return {f"{theirs}.{x}.weight": f"{ours}.W_{x}.T" for x in "qkvo"}


def _network(place: str, norm: str, matrices: dict[str, str]) -> dict[str, str]:
    """Return the names of a feed-forward network and of its norm."""
    return {
        **{
            f"{place}.DenseReluDense.{theirs}.weight": f"feed_forward.{own}.T"
            for theirs, own in matrices.items()
        },
        f"{place}.layer_norm.weight": f"{norm}.weight",
    }


_FIRST = {
    **_attention("layer.0.SelfAttention", "self_attention"),
    "layer.0.layer_norm.weight": "norm_1.weight",
}


def _encoder(matrices: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the names of the encoder's layers, with these matrices in networks."""
    layer = {**_FIRST, **_network("layer.1", "norm_2", matrices)}
    return names_of("encoder.block.{i} encoder.layers.{i}", layer, {})


def _layers(matrices: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the names of both stacks of layers."""
    decoder = {
        **_FIRST,
        **_attention("layer.1.EncDecAttention", "cross_attention"),
        "layer.1.layer_norm.weight": "norm_2.weight",
        **_network("layer.2", "norm_3", matrices),
    }
    return {
        **_encoder(matrices),
        **names_of("decoder.block.{i} decoder.layers.{i}", decoder, {}),
    }


PLAIN = {"wi": "W_1", "wo": "W_2"}
GATED = {"wi_0": "W_gate", "wi_1": "W_1", "wo": "W_2"}
_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"

NAMES = Family(
    {
        "shared.weight": ("token_embedding",),
        f"encoder.{_BIAS}": ("encoder_relative_bias",),
        f"decoder.{_BIAS}": ("decoder_relative_bias",),
        **_layers(PLAIN),
        "encoder.final_layer_norm.weight": ("encoder.norm.weight",),
        "decoder.final_layer_norm.weight": ("decoder.norm.weight",),
        "lm_head.weight": ("output.T",),
    },
    # Which old versions have, and never used.
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    heads=("classifier.*", "classification_head.*", "qa_outputs.*"),
    tied={
        "lm_head.weight": "shared.weight",
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
    gated=_layers(GATED),
    instead={"lm_head.weight": "shared.weight"},
)


def _activation(values: Values) -> Activation:
    """Return the activation of the networks, with or without a gate."""
    name = values["feed_forward_proj"]
    gated = name.startswith("gated-")
    function = name.removeprefix("gated-")
    if name == "gated-gelu":
        function = "gelu_new"  # as their class does
    for field, expected in (("dense_act_fn", function), ("is_gated_act", gated)):
        if values[field] not in (None, expected):
            raise ValueError(
                f"config: expected {field} = {expected!r} with feed_forward_proj = "
                f"{quoted(name)}, got {quoted(values[field])}"
            )
    rule = (rules.gated if gated else rules.activation)("feed_forward_proj")
    return rule({**values, "feed_forward_proj": function})


def _is_scaled(values: Values) -> bool:
    """Tell whether vectors are scaled before the scores: where these were tied."""
    scaled = values["scale_decoder_outputs"]
    return bool(values["tie_word_embeddings"] if scaled is None else scaled)


def _is_tied(values: Values) -> bool:
    """Tell whether the scores are products with the embeddings.

    New versions write ``tie_word_embeddings`` = true for every model.
    """
    return bool(
        values["tie_word_embeddings"] and values["scale_decoder_outputs"] is not False
    )


READ = {
    "num_layers": Field("layers"),
    "num_decoder_layers": Field("layers", None),
    "d_model": Field("size"),
    "d_kv": Field("size", 64),
    "d_ff": Field("size"),
    "num_heads": Field("size"),
    "vocab_size": Field("size"),
    "relative_attention_num_buckets": Field("size", 32),
    "relative_attention_max_distance": Field("size", 128),
    "layer_norm_epsilon": Field("number", 1e-6),
    "feed_forward_proj": Field("name", "relu"),
    "dense_act_fn": Field("name", None),
    "is_gated_act": Field("flag", None),
    "tie_word_embeddings": Field("flag", True),
    "scale_decoder_outputs": Field("flag", None),
    "eos_token_id": Field("tokens", 1, null=True),
    "decoder_start_token_id": Field("count", None, null=True),
}

COMPUTED: dict[str, Any] = {
    "activation": _activation,
    "tied": _is_tied,
    "logit_scale": lambda values: (
        values["d_model"] ** -0.5 if _is_scaled(values) else None
    ),
    "stop": rules.stop,
}

T5 = Declaration(
    model_type="t5",
    title="T5, Flan-T5",
    model="encoder-decoder",
    classes=("T5Model", "T5ForConditionalGeneration"),
    checkpoint="t5",
    names=NAMES,
    read=READ,
    neutral=ENCODER_DECODER_NEUTRAL,
    harmless=without(HARMLESS, READ)
    | {
        "dropout and initial values, for training": (
            "classifier_dropout",
            "dropout_rate",
            "initializer_factor",
        ),
        "the length in training: distances have no limit": ("n_positions",),
        "other names of fields, which new versions write beside them": (
            "head_dim",
            "hidden_size",
            "num_attention_heads",
            "num_hidden_layers",
        ),
    },
    copied={
        "num_layers": "num_layers",
        "num_decoder_layers": "num_decoder_layers",
        "embed_dim": "d_model",
        "head_dim": "d_kv",
        "hidden_dim": "d_ff",
        "num_heads": "num_heads",
        "vocab_size": "vocab_size",
        "num_buckets": "relative_attention_num_buckets",
        "max_distance": "relative_attention_max_distance",
        "eps": "layer_norm_epsilon",
        "start": "decoder_start_token_id",
    },
    fixed={"norm_first": True, "norm": "rms", "bias": False, "scale": 1.0},
    computed=COMPUTED,
)

_UNUSED = "scale_decoder_outputs", "tie_word_embeddings"
_MT5_READ = {
    **{name: field for name, field in READ.items() if name not in _UNUSED},
    "feed_forward_proj": Field("name", "gated-gelu"),
    "decoder_start_token_id": Field("count", 0, null=True),
}

# Whatever a file says of tied embeddings, the weights have a matrix of their own, and
# nothing is scaled.
MT5 = replace(
    T5,
    model_type="mt5",
    title="mT5",
    classes=("MT5Model", "MT5ForConditionalGeneration"),
    read=_MT5_READ,
    harmless={
        **T5.harmless,
        "the class ignores them: the weights say it": _UNUSED,
    },
    fixed={**T5.fixed, "tied": False, "logit_scale": None},
    computed={name: COMPUTED[name] for name in ("activation", "stop")},
)

NAMES_ENCODER = Family(
    {
        "shared.weight": ("token_embedding",),
        f"encoder.{_BIAS}": ("relative_bias",),
        **_encoder(PLAIN),
        "encoder.final_layer_norm.weight": ("encoder.norm.weight",),
    },
    heads=("classifier.*",),
    tied={"encoder.embed_tokens.weight": "shared.weight"},
    gated=_encoder(GATED),
    instead={"shared.weight": "encoder.embed_tokens.weight"},
)
_OF_DECODER = (
    *("num_decoder_layers", "decoder_start_token_id", "eos_token_id"),
    *("scale_decoder_outputs", "tie_word_embeddings"),
)
_OWNER = "T5EncoderModel"
T5_ENCODER = Declaration(
    model_type="t5_encoder",
    title="T5, its encoder alone",
    model="encoder",
    classes=(_OWNER, _OWNER),
    checkpoint="t5_encoder",
    names=NAMES_ENCODER,
    read={
        name: field
        for name, field in READ.items()
        if name not in (*_OF_DECODER, "relative_attention_max_distance")
    },
    neutral=ENCODER_DECODER_NEUTRAL
    | {
        "is_encoder_decoder": (True, False),
        "relative_attention_max_distance": (128,),
    },
    harmless=without(T5.harmless, _OF_DECODER)
    | {"of the decoder, which is not here": _OF_DECODER},
    copied={
        argument: field
        for argument, field in T5.copied.items()
        if argument not in ("num_decoder_layers", "max_distance", "start")
    },
    fixed={
        **dict.fromkeys(("embedding_norm", "position_table"), False),
        **{f"{name}_bias": False for name in ("qkv", "out", "feed_forward")},
        "max_length": 2**31 - 1,
        "norm": "rms",
        "norm_first": True,
        "num_types": 0,
        "scale": 1.0,
    },
    computed={"activation": _activation},
    owner=_OWNER,
    saved=lambda config: {**config, "model_type": "t5", "architectures": [_OWNER]},
)
