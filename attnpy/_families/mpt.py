"""MPT: layers without biases, with ALiBi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnpy._families import rules
from attnpy._families.declaration import (
    DECODER_CLASSIFIER,
    DECODER_HEADS,
    Declaration,
    Family,
    names_of,
)
from attnpy._families.fields import HARMLESS, NEUTRAL, Field, is_number
from attnpy._quoting import quoted

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

NAMES = Family(
    names_of(
        "blocks.{i} decoder.layers.{i}",
        {
            "norm_1.weight": "norm_1.weight",
            "attn.Wqkv.weight": (
                "self_attention.W_q.T self_attention.W_k.T self_attention.W_v.T"
            ),
            "attn.out_proj.weight": "self_attention.W_o.T",
            "norm_2.weight": "norm_3.weight",
            "ffn.up_proj.weight": "feed_forward.W_1.T",
            "ffn.down_proj.weight": "feed_forward.W_2.T",
        },
        {
            "wte.weight": "token_embedding",
            "norm_f.weight": "decoder.norm.weight",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("transformer.",),
    heads=DECODER_HEADS,
    classifier=DECODER_CLASSIFIER,
    tied={"lm_head.weight": "wte.weight"},
)

# What attn_config may say, besides a scale; and what does not matter there.
ATTENTION: dict[str, tuple[object, ...]] = {
    "alibi": (True,),
    "alibi_bias_max": (8,),
    "attn_type": ("multihead_attention",),
    "attn_uses_sequence_id": (False,),
    "clip_qkv": (),
    "is_encoder_decoder": (False,),
    "prefix_lm": (False,),
    "qk_ln": (False,),
}
ATTENTION_HARMLESS = {
    *("attn_impl", "attn_pdrop", "model_type", "softmax_scale"),
    *(name for names in HARMLESS.values() for name in names),
}


def _scale(values: Values) -> float | None:
    """Return that of attention, and refuse what else attention may have."""
    given: Mapping[str, Any] = values["attn_config"] or {}
    for name, value in given.items():
        known = ATTENTION.get(name, ())
        if value is None or name in ATTENTION_HARMLESS or value in known:
            continue
        wanted = f"{name} = {known[0]!r}" if known else f"no {quoted(name)}"
        raise ValueError(
            f"config: expected attn_config with {wanted}, got {quoted(value)}"
        )
    scale = given.get("softmax_scale")
    if scale is not None and not is_number(scale):
        raise ValueError(
            "config: expected softmax_scale in attn_config to be a finite number above "
            f"0, got {quoted(scale)}"
        )
    return scale


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those that say where the code is."""
    return rules.without_code(config, "configuration_mpt.MPT", "modeling_mpt.MPT")


MPT = Declaration(
    model_type="mpt",
    title="MPT",
    model="decoder",
    classes=("MptModel", "MptForCausalLM"),
    checkpoint="mpt",
    names=NAMES,
    read={
        "n_layers": Field("layers", 24),
        "d_model": Field("size", 2048),
        "n_heads": Field("size", 16),
        "vocab_size": Field("size", 50368),
        "attn_config": Field("mapping", None),
        "layer_norm_epsilon": Field("number", 1e-5),
        "tie_word_embeddings": Field("flag", True),
        "eos_token_id": Field("tokens", None, null=True),
    },
    neutral=NEUTRAL
    | {
        "expansion_ratio": (4,),
        "logit_scale": (),
        "no_bias": (True,),
        "norm_type": ("low_precision_layernorm", "layernorm"),
    },
    harmless=HARMLESS
    | {
        "dropout and initial values, for training": (
            *("emb_pdrop", "embedding_fraction", "init_config", "init_device"),
            *("resid_pdrop", "verbose"),
        ),
        "without effect beside ALiBi": ("learned_pos_emb",),
        "the length of texts in training": ("max_seq_len",),
        "where the tokenizer came from": ("tokenizer_name",),
    },
    copied={
        "num_layers": "n_layers",
        "embed_dim": "d_model",
        "num_heads": "n_heads",
        "vocab_size": "vocab_size",
        "eps": "layer_norm_epsilon",
        "tied": "tie_word_embeddings",
    },
    fixed={"alibi": True, "bias": False, "activation": "gelu"},
    computed={
        "hidden_dim": lambda values: 4 * values["d_model"],
        "scale": _scale,
        "stop": rules.stop,
    },
    older={
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_size": "d_model",
    },
    modern=_modern,
)
