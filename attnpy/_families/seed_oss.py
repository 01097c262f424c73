"""Seed-OSS: Llama with biases of queries, keys and values."""

from __future__ import annotations

from attnpy._families import llama
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field

SEED_OSS = Declaration(
    model_type="seed_oss",
    title="Seed-OSS",
    model="decoder",
    classes=("SeedOssModel", "SeedOssForCausalLM"),
    checkpoint="llama",
    names=llama.NAMES,
    read=llama.READ
    | {
        "num_key_value_heads": Field("size", 8, null=True),
        "head_dim": Field("size", 128, null=True),
        "max_position_embeddings": Field("size", 524_288),
        "attention_bias": Field("flag", True),
        "attention_out_bias": Field("flag", False),
        "mlp_bias": Field("flag", False),
        "eos_token_id": Field("tokens", 2, null=True),
    },
    neutral=llama.LLAMA_NEUTRAL,
    harmless=llama.LLAMA_HARMLESS | {"dropout, for training": ("residual_dropout",)},
    copied=llama.COPIED
    | {
        "causal": "is_causal",
        "qkv_bias": "attention_bias",
        "out_bias": "attention_out_bias",
        "feed_forward_bias": "mlp_bias",
    },
    fixed=llama.FIXED,
    computed=llama.COMPUTED,
)
