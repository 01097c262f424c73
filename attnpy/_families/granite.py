"""Granite: Llama with four factors, and rotary positions of whole heads."""

from __future__ import annotations

from attnpy._families import llama
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field

GRANITE = Declaration(
    model_type="granite",
    title="Granite",
    model="decoder",
    classes=("GraniteModel", "GraniteForCausalLM"),
    checkpoint="llama",
    names=llama.NAMES,
    read=llama.READ
    | {
        "eos_token_id": Field("tokens", 2, null=True),
        "max_position_embeddings": Field("size", 2048),
        "attention_bias": Field("flag", False),
        "mlp_bias": Field("flag", False),
        "embedding_multiplier": Field("number", 1.0),
        "attention_multiplier": Field("number", 1.0),
        "residual_multiplier": Field("number", 1.0),
        "logits_scaling": Field("number", 1.0),
    },
    neutral=llama.LLAMA_NEUTRAL,
    harmless=llama.LLAMA_HARMLESS,
    copied=llama.COPIED
    | llama.BIASES
    | {
        "causal": "is_causal",
        "feed_forward_bias": "mlp_bias",
        "embedding_scale": "embedding_multiplier",
        "scale": "attention_multiplier",
        "residual_scale": "residual_multiplier",
    },
    fixed=llama.FIXED,
    computed=llama.COMPUTED
    | {"logit_scale": lambda values: 1 / values["logits_scaling"]},
)
