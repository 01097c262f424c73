"""Falcon: attention and network side by side, behind one norm; few heads of keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnpy._families import llama, rules
from attnpy._families.declaration import (
    DECODER_CLASSIFIER,
    DECODER_HEADS,
    Declaration,
    Family,
    names_of,
)
from attnpy._families.fields import NEUTRAL, Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

_HEADS = "self_attention.{0}_q{1} self_attention.{0}_k{1} self_attention.{0}_v{1}"
_PARTS = {
    "self_attention.query_key_value": _HEADS,
    "self_attention.dense": "self_attention.{0}_o{1}",
    "mlp.dense_h_to_4h": "feed_forward.{0}_1{1}",
    "mlp.dense_4h_to_h": "feed_forward.{0}_2{1}",
}
_BOTH = "weight", "bias"
# The rows of a head of keys stand behind those of the queries that share it.
NAMES = Family(
    names_of(
        "h.{i} decoder.layers.{i}",
        {f"{name}.weight": own.format("W", ".T") for name, own in _PARTS.items()}
        | {f"{name}.bias": own.format("b", "") for name, own in _PARTS.items()}
        | {f"input_layernorm.{x}": f"norm_1.{x}" for x in _BOTH},
        {
            "word_embeddings.weight": "token_embedding",
            "ln_f.weight": "decoder.norm.weight",
            "ln_f.bias": "decoder.norm.bias",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("transformer.",),
    ignored=("h.*.self_attention.rotary_emb.inv_freq",),
    heads=DECODER_HEADS,
    classifier=DECODER_CLASSIFIER,
    tied={"lm_head.weight": "word_embeddings.weight"},
    by_head=("query_key_value.weight", "query_key_value.bias"),
)


def _num_kv_heads(values: Values) -> int:
    """Return how many heads of keys there are."""
    if values["new_decoder_architecture"]:
        return int(values["num_kv_heads"] or values["num_attention_heads"])
    if values["multi_query"]:
        return 1
    rules.check_same(values, "num_attention_heads", "num_kv_heads")
    return int(values["num_attention_heads"])


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse layers with two norms, which newer ones have by default.

    Files of the first models say where their code is.
    """
    n_norms = config.get("num_ln_in_parallel_attn")
    if config.get("new_decoder_architecture") is True and n_norms is None:
        raise ValueError(
            "config: expected num_ln_in_parallel_attn = 1 with "
            "new_decoder_architecture, got none, which means 2"
        )
    return rules.without_code(
        config, "configuration_falcon.Falcon", "modeling_falcon.Falcon"
    )


FALCON = Declaration(
    model_type="falcon",
    title="Falcon",
    model="decoder",
    classes=("FalconModel", "FalconForCausalLM"),
    checkpoint="falcon",
    names=NAMES,
    read={
        name: llama.READ[name]
        for name in (
            *("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"),
            *("rope_parameters", "rope_scaling", "rope_theta"),
        )
    }
    | {
        "max_position_embeddings": Field("size", 2048),
        "ffn_hidden_size": Field("size", None),
        "num_kv_heads": Field("size", None),
        "new_decoder_architecture": Field("flag", False),
        "multi_query": Field("flag", True),
        "bias": Field("flag", False),
        "activation": Field("name", "gelu"),
        "layer_norm_epsilon": Field("number", 1e-5),
        "tie_word_embeddings": Field("flag", True),
        "eos_token_id": Field("tokens", 11, null=True),
    },
    neutral=NEUTRAL
    | {
        "alibi": (False,),
        "apply_residual_connection_post_layernorm": (False,),
        "ff_factor": (4,),
        "is_causal": (True,),
        "num_ln_in_parallel_attn": (1,),
        "parallel_attn": (True,),
    },
    harmless=llama.LLAMA_HARMLESS | {"dropout, for training": ("hidden_dropout",)},
    copied={
        "num_layers": "num_hidden_layers",
        "embed_dim": "hidden_size",
        "num_heads": "num_attention_heads",
        "vocab_size": "vocab_size",
        "eps": "layer_norm_epsilon",
        "tied": "tie_word_embeddings",
        "qkv_bias": "bias",
        "out_bias": "bias",
        "feed_forward_bias": "bias",
    },
    fixed={"parallel": "one norm"},
    computed={
        "num_kv_heads": _num_kv_heads,
        "hidden_dim": lambda values: (
            values["ffn_hidden_size"] or 4 * values["hidden_size"]
        ),
        "rotary": rules.rotary,
        "activation": rules.activation("activation"),
        "stop": rules.stop,
    },
    modern=_modern,
)
