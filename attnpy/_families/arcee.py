"""Arcee's AFM: Llama with networks of squared ReLU, without a gate."""

from __future__ import annotations

from attnpy._families import llama, rules
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field

ARCEE = Declaration(
    model_type="arcee",
    title="Arcee AFM",
    model="decoder",
    classes=("ArceeModel", "ArceeForCausalLM"),
    checkpoint="llama",
    names=llama.NAMES,
    read=llama.READ
    | {
        "max_position_embeddings": Field("size", 4096),
        "hidden_act": Field("name", "relu2"),
        "rms_norm_eps": Field("number", 1e-5),
        "attention_bias": Field("flag", False),
        "mlp_bias": Field("flag", False),
        "eos_token_id": Field("tokens", 128_001, null=True),
    },
    neutral=llama.LLAMA_NEUTRAL,
    harmless=llama.LLAMA_HARMLESS,
    copied=llama.COPIED
    | llama.BIASES
    | {"causal": "is_causal", "feed_forward_bias": "mlp_bias"},
    fixed=llama.FIXED,
    computed=llama.COMPUTED | {"activation": rules.activation("hidden_act")},
)
