"""GPT-NeoX, as Pythia: attention and network side by side, each behind its norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import rules
from attnpy._families.declaration import (
    DECODER_CLASSIFIER,
    DECODER_HEADS,
    Declaration,
    Family,
    names_of,
)
from attnpy._families.fields import HARMLESS, NEUTRAL, Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary

_BOTH = "weight", "bias"
_HEADS = "self_attention.{0}_q{1} self_attention.{0}_k{1} self_attention.{0}_v{1}"
_MATRICES = {
    "attention.query_key_value": _HEADS,
    "attention.dense": "self_attention.{0}_o{1}",
    "mlp.dense_h_to_4h": "feed_forward.{0}_1{1}",
    "mlp.dense_4h_to_h": "feed_forward.{0}_2{1}",
}
_NORMS = {"input_layernorm": "norm_1", "post_attention_layernorm": "norm_3"}
# The ignored ones are masks and rotary frequencies.
NAMES = Family(
    names_of(
        "layers.{i} decoder.layers.{i}",
        {f"{name}.weight": own.format("W", ".T") for name, own in _MATRICES.items()}
        | {f"{name}.bias": own.format("b", "") for name, own in _MATRICES.items()}
        | {f"{name}.{x}": f"{own}.{x}" for name, own in _NORMS.items() for x in _BOTH},
        {
            "embed_in.weight": "token_embedding",
            "final_layer_norm.weight": "decoder.norm.weight",
            "final_layer_norm.bias": "decoder.norm.bias",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("gpt_neox.",),
    renamed=(("embed_out.weight", "lm_head.weight"),),
    ignored=(
        "layers.*.attention.bias",
        "layers.*.attention.masked_bias",
        "layers.*.attention.rotary_emb.inv_freq",
    ),
    heads=DECODER_HEADS,
    classifier=DECODER_CLASSIFIER,
    tied={"lm_head.weight": "embed_in.weight"},
    by_head=("query_key_value.weight", "query_key_value.bias"),
)


def _rotary(values: Values) -> Rotary:
    """Return the positions; their base and share have other names."""
    names = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    return rules.rotary({**values, **{own: values[x] for own, x in names.items()}})


GPT_NEOX = Declaration(
    model_type="gpt_neox",
    title="GPT-NeoX, Pythia",
    model="decoder",
    classes=("GPTNeoXModel", "GPTNeoXForCausalLM"),
    checkpoint="gpt_neox",
    names=NAMES,
    read={
        "num_hidden_layers": Field("layers"),
        "hidden_size": Field("size"),
        "num_attention_heads": Field("size"),
        "intermediate_size": Field("size"),
        "vocab_size": Field("size"),
        "max_position_embeddings": Field("size", 2048),
        "rope_parameters": Field("mapping", None),
        "rope_scaling": Field("mapping", None),
        "rotary_emb_base": Field("number", None),
        "rotary_pct": Field("number", 0.25),
        "tie_word_embeddings": Field("flag", False),
        "use_parallel_residual": Field("flag", True),
        "attention_bias": Field("flag", True),
        "hidden_act": Field("name", "gelu"),
        "layer_norm_eps": Field("number", 1e-5),
        "is_causal": Field("flag", True),
        "eos_token_id": Field("tokens", 2, null=True),
    },
    neutral=NEUTRAL,
    harmless=HARMLESS
    | {
        "dropout, for training": ("classifier_dropout", "hidden_dropout"),
        "language models are causal either way": ("is_decoder",),
    },
    copied={
        "num_layers": "num_hidden_layers",
        "embed_dim": "hidden_size",
        "num_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
        "vocab_size": "vocab_size",
        "tied": "tie_word_embeddings",
        "eps": "layer_norm_eps",
        "causal": "is_causal",
        "parallel": "use_parallel_residual",
        "qkv_bias": "attention_bias",
        "out_bias": "attention_bias",
    },
    fixed={},
    computed={
        "stop": rules.stop,
        "rotary": _rotary,
        "activation": rules.activation("hidden_act"),
    },
)
