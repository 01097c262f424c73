"""Qwen2, with biases of queries, keys and values, and Qwen3, which has their norms."""

from __future__ import annotations

from dataclasses import replace

from attnpy._families import llama
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field

READ = llama.READ | {
    "num_key_value_heads": Field("size", 32, null=True),
    "use_sliding_window": Field("flag", False),
    "sliding_window": Field("size", 4096, null=True),
    "max_window_layers": Field("count", 28),
    "layer_types": Field("names", None),
}

QWEN2 = Declaration(
    model_type="qwen2",
    title="Qwen2",
    model="decoder",
    classes=("Qwen2Model", "Qwen2ForCausalLM"),
    checkpoint="llama",
    names=llama.NAMES,
    read=READ,
    neutral=llama.LLAMA_NEUTRAL | llama.NO_BIASES,
    harmless=llama.LLAMA_HARMLESS,
    copied=llama.COPIED | {"causal": "is_causal"},
    fixed=llama.FIXED | {"qkv_bias": True},
    computed=llama.COMPUTED | llama.WINDOWS,
)

QWEN3 = replace(
    QWEN2,
    model_type="qwen3",
    title="Qwen3",
    classes=("Qwen3Model", "Qwen3ForCausalLM"),
    read=READ
    | {
        "head_dim": Field("size", 128, null=True),
        "attention_bias": Field("flag", False),
    },
    neutral=llama.LLAMA_NEUTRAL | {"mlp_bias": (False,)},
    copied=llama.COPIED | llama.BIASES | {"causal": "is_causal"},
    fixed=llama.FIXED | {"qk_norm": True},
)
