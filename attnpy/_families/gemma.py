"""Gemma: Llama with scaled embeddings and norms of 1 + weight.

Gemma 2 and 3 have norms before and after, and windows that alternate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnpy._families import llama, rules
from attnpy._families.declaration import Declaration, Family, names_of
from attnpy._families.fields import Field
from attnpy._families.rules import FULL, SLIDING

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary

GEMMA3_BASES = {FULL: 1_000_000.0, SLIDING: 10_000.0}

# What models with pictures have beside their text model, under these names.
PICTURES = "vision_tower.*", "multi_modal_projector.*"
NAMES = Family(
    {
        **llama.NAMES.names,
        **names_of(
            "layers.{i} decoder.layers.{i}",
            {
                "post_attention_layernorm.weight": "after_1.weight",
                "pre_feedforward_layernorm.weight": "norm_3.weight",
                "post_feedforward_layernorm.weight": "after_3.weight",
            },
            {},
        ),
    },
    prefixes=(
        *llama.NAMES.prefixes,
        *("language_model.model.", "language_model.", "model.language_model."),
    ),
    ignored=(*llama.NAMES.ignored, *PICTURES),
    heads=llama.NAMES.heads,
    classifier=llama.NAMES.classifier,
    tied=llama.NAMES.tied,
    one_less=(
        "norm.weight",
        "norm_1.weight",
        "norm_3.weight",
        "after_1.weight",
        "after_3.weight",
    ),
)

NAMES_1 = llama.NAMES._replace(
    one_less=("norm.weight", "norm_1.weight", "norm_3.weight")
)

READ = {
    name: field
    for name, field in llama.READ.items()
    if name not in ("hidden_act", "is_causal")
} | {
    "eos_token_id": Field("tokens", 1, null=True),
    "num_key_value_heads": Field("size", 4, null=True),
    "head_dim": Field("size", 256),
    "tie_word_embeddings": Field("flag", True),
    "hidden_activation": Field("name", "gelu_pytorch_tanh"),
    "attention_bias": Field("flag", False),
    "query_pre_attn_scalar": Field("number", 256),
    "sliding_window": Field("size", 4096, null=True),
    "layer_types": Field("names", None),
}
GEMMA_NEUTRAL = llama.LLAMA_NEUTRAL | {"is_causal": (True,), "mlp_bias": (False,)}
GEMMA_HARMLESS = llama.LLAMA_HARMLESS | {
    "a field of old versions; the classes read hidden_activation": ("hidden_act",),
    "how keys and values are cached": ("cache_implementation",),
    "written by the class beside layer_types": ("_sliding_window_pattern",),
}


_alternating = rules.alternating(2)


def _rotaries(values: Values) -> list[Rotary]:
    """Return the positions of each layer: those with a window have their own."""
    bases = {FULL: values["rope_theta"], SLIDING: values["rope_local_base_freq"]}
    usual = {
        name: GEMMA3_BASES[name] if base is None else base
        for name, base in bases.items()
    }
    turns = rules.turns_by_kind(values, usual, {FULL: "rope_scaling"})
    return [turns[name] for name in rules.layer_types(values, _alternating)]


BLOCK = llama.FIXED | {"norm_after": True}
COMPUTED: dict[str, rules.Rule] = {
    "head_dim": rules.head_dim,
    "stop": rules.stop,
    "rotary": rules.rotary,
    "window": rules.windows(_alternating),
    "scale": lambda values: values["query_pre_attn_scalar"] ** -0.5,
    "embedding_scale": lambda values: values["hidden_size"] ** 0.5,
    "activation": rules.gated("hidden_activation"),
}


def _activation(values: Values) -> str:
    """Return the activation; "gelu" of older files is its approximation."""
    is_older = values["hidden_act"] == "gelu"
    name = "gelu_pytorch_tanh" if is_older else values["hidden_act"]
    activation: str = rules.gated("hidden_act")({**values, "hidden_act": name})
    return activation


GEMMA = Declaration(
    model_type="gemma",
    title="Gemma",
    model="decoder",
    classes=("GemmaModel", "GemmaForCausalLM"),
    checkpoint="gemma1",
    names=NAMES_1,
    read={name: field for name, field in llama.READ.items() if name != "is_causal"}
    | {
        "eos_token_id": Field("tokens", 1, null=True),
        "num_key_value_heads": Field("size", 16),
        "head_dim": Field("size", 256),
        "tie_word_embeddings": Field("flag", True),
        "hidden_act": Field("name", "gelu_pytorch_tanh"),
        "attention_bias": Field("flag", False),
    },
    neutral=llama.LLAMA_NEUTRAL
    | {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "is_causal": (True,),
        "mlp_bias": (False,),
        "use_bidirectional_attention": (False,),
    },
    harmless=llama.LLAMA_HARMLESS,
    copied=llama.COPIED | llama.BIASES,
    fixed=llama.FIXED | {"causal": True},
    computed={
        "head_dim": rules.head_dim,
        "stop": rules.stop,
        "rotary": rules.rotary,
        "embedding_scale": COMPUTED["embedding_scale"],
        "activation": _activation,
    },
)

GEMMA2 = Declaration(
    model_type="gemma2",
    title="Gemma 2",
    model="decoder",
    classes=("Gemma2Model", "Gemma2ForCausalLM"),
    checkpoint="gemma",
    names=NAMES,
    read=READ
    | {
        "final_logit_softcapping": Field("number", 30.0, null=True),
        "attn_logit_softcapping": Field("number", 50.0, null=True),
    },
    neutral=GEMMA_NEUTRAL | {"use_bidirectional_attention": (False,)},
    harmless=GEMMA_HARMLESS,
    copied=llama.COPIED
    | llama.BIASES
    | {
        "softcap": "attn_logit_softcapping",
        "logit_softcap": "final_logit_softcapping",
    },
    fixed=BLOCK | {"causal": True},
    computed=COMPUTED,
    older={"sliding_window_size": "sliding_window"},
)

# Their class passes over attn_logit_softcapping.
GEMMA3 = replace(
    GEMMA2,
    model_type="gemma3_text",
    title="Gemma 3, its text model",
    classes=("Gemma3TextModel", "Gemma3ForCausalLM"),
    read=READ
    | {
        "final_logit_softcapping": Field("number", None),
        "sliding_window_pattern": Field("size", 6),
        "use_bidirectional_attention": Field("flag", False),
        "rope_local_base_freq": Field("number", None),
        # Which a text_config need not have.
        "num_attention_heads": Field("size", 8),
        "vocab_size": Field("size", 262_208),
    },
    neutral=GEMMA_NEUTRAL | {"attn_logit_softcapping": ()},
    copied={
        argument: field
        for argument, field in GEMMA2.copied.items()
        if argument != "softcap"
    },
    fixed=BLOCK | {"qk_norm": True},
    computed=COMPUTED
    | {
        "rotary": _rotaries,
        "causal": lambda values: not values["use_bidirectional_attention"],
    },
    older={},
    within="gemma3",
)
