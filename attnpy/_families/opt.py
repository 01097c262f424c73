"""OPT: GPT-2 with ReLU, and a table of positions whose first two rows nobody has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnpy._families import rules
from attnpy._families.declaration import (
    DECODER_CLASSIFIER,
    DECODER_HEADS,
    Declaration,
    Family,
    names_of,
)
from attnpy._families.fields import HARMLESS, NEUTRAL, Field

_PARTS = {
    "self_attn.q_proj": "self_attention.{0}_q{1}",
    "self_attn.k_proj": "self_attention.{0}_k{1}",
    "self_attn.v_proj": "self_attention.{0}_v{1}",
    "self_attn.out_proj": "self_attention.{0}_o{1}",
    "fc1": "feed_forward.{0}_1{1}",
    "fc2": "feed_forward.{0}_2{1}",
}
_NORMS = {"self_attn_layer_norm": "norm_1", "final_layer_norm": "norm_3"}
_BOTH = "weight", "bias"
NAMES = Family(
    names_of(
        "decoder.layers.{i} decoder.layers.{i}",
        {f"{name}.weight": own.format("W", ".T") for name, own in _PARTS.items()}
        | {f"{name}.bias": own.format("b", "") for name, own in _PARTS.items()}
        | {f"{name}.{x}": f"{own}.{x}" for name, own in _NORMS.items() for x in _BOTH},
        {
            "decoder.embed_tokens.weight": "token_embedding",
            "decoder.embed_positions.weight": "position_embedding",
            "decoder.final_layer_norm.weight": "decoder.norm.weight",
            "decoder.final_layer_norm.bias": "decoder.norm.bias",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("model.",),
    heads=DECODER_HEADS,
    classifier=DECODER_CLASSIFIER,
    tied={"lm_head.weight": "decoder.embed_tokens.weight"},
)


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without the size of embeddings, if it is that of tokens."""
    name, size = "word_embed_proj_dim", config.get("hidden_size")
    return {k: v for k, v in config.items() if k != name or v != size}


OPT = Declaration(
    model_type="opt",
    title="OPT",
    model="decoder",
    classes=("OPTModel", "OPTForCausalLM"),
    checkpoint="opt",
    names=NAMES,
    read={
        "num_hidden_layers": Field("layers"),
        "hidden_size": Field("size"),
        "num_attention_heads": Field("size"),
        "ffn_dim": Field("size"),
        "vocab_size": Field("size"),
        "max_position_embeddings": Field("size", 2048),
        "tie_word_embeddings": Field("flag", True),
        "activation_function": Field("name", "relu"),
        "enable_bias": Field("flag", True),
        "eos_token_id": Field("tokens", 2, null=True),
    },
    neutral=NEUTRAL
    | {
        "_remove_final_layer_norm": (False,),
        "do_layer_norm_before": (True,),
        "is_causal": (True,),
        "layer_norm_elementwise_affine": (True,),
        "word_embed_proj_dim": (),
    },
    harmless=HARMLESS
    | {
        "for training": (
            *HARMLESS["for training"],
            *("activation_dropout", "dropout", "init_std", "layerdrop"),
        ),
        "language models are causal either way": ("is_decoder",),
    },
    copied={
        "num_layers": "num_hidden_layers",
        "embed_dim": "hidden_size",
        "num_heads": "num_attention_heads",
        "hidden_dim": "ffn_dim",
        "vocab_size": "vocab_size",
        "max_length": "max_position_embeddings",
        "tied": "tie_word_embeddings",
        "qkv_bias": "enable_bias",
        "out_bias": "enable_bias",
        "feed_forward_bias": "enable_bias",
    },
    fixed={"eps": 1e-5, "position_offset": 2},
    computed={
        "activation": rules.activation("activation_function"),
        "stop": rules.stop,
    },
    modern=_modern,
)
