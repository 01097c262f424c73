"""Mistral: Llama with a window in all layers."""

from __future__ import annotations

from attnpy._families import llama
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field

MISTRAL = Declaration(
    model_type="mistral",
    title="Mistral",
    model="decoder",
    classes=("MistralModel", "MistralForCausalLM"),
    checkpoint="llama",
    names=llama.NAMES,
    read=llama.READ
    | {
        "eos_token_id": Field("tokens", 2, null=True),
        "num_key_value_heads": Field("size", 8, null=True),
        "sliding_window": Field("size", 4096, null=True),
        "layer_types": Field("names", None),
    },
    neutral=llama.LLAMA_NEUTRAL | llama.NO_BIASES,
    harmless=llama.LLAMA_HARMLESS,
    copied=llama.COPIED | {"causal": "is_causal"},
    fixed=llama.FIXED,
    computed=llama.COMPUTED | llama.WINDOWS,
)
