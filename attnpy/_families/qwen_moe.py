"""Qwen2 and Qwen3 with experts, which some of their layers may be without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnpy._families import llama, mixtral, rules
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field
from attnpy._families.rules import FULL, SLIDING

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

_SHARED = {
    f"mlp.shared_expert.{theirs}_proj.weight": f"feed_forward.shared.W_{ours}.T"
    for theirs, ours in (("gate", "gate"), ("up", "1"), ("down", "2"))
}
NAMES = mixtral.names_with(
    "mlp.gate.weight",
    "mlp.experts.{j}.gate_proj.weight",
    "mlp.experts.{j}.up_proj.weight",
    "mlp.experts.{j}.down_proj.weight",
    **_SHARED,
    **{"mlp.shared_expert_gate.weight": "feed_forward.shared_gate.T"},
)
OF_EXPERTS = {
    "num_experts": "num_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "renormalize": "norm_topk_prob",
}


def _dense_layers(values: Values) -> list[int]:
    """Return the layers without experts."""
    listed, step = values["mlp_only_layers"] or (), values["decoder_sparse_step"]
    return [
        i
        for i in range(values["num_hidden_layers"])
        if i in listed or (i + 1) % step != 0
    ]


def _every_second(values: Values) -> list[str]:
    """Return windows in every second layer of the first ones."""
    first = values["max_window_layers"] if values["use_sliding_window"] else 0
    if first and not values["sliding_window"]:
        raise ValueError("config: expected a sliding_window, got none")
    return [
        SLIDING if i % 2 == 0 and i < first else FULL
        for i in range(values["num_hidden_layers"])
    ]


READ = llama.READ | {
    "num_key_value_heads": Field("size", 16, null=True),
    "use_sliding_window": Field("flag", False),
    "sliding_window": Field("count", 4096, null=True),
    "decoder_sparse_step": Field("size", 1),
    "mlp_only_layers": Field("layer numbers", None),
    "moe_intermediate_size": Field("size", 1408),
    "num_experts": Field("experts", 60),
    "num_experts_per_tok": Field("experts", 4),
    "norm_topk_prob": Field("flag", False),
}

QWEN2_MOE = Declaration(
    model_type="qwen2_moe",
    title="Qwen2-MoE",
    model="decoder",
    classes=("Qwen2MoeModel", "Qwen2MoeForCausalLM"),
    checkpoint="qwen_moe",
    names=NAMES,
    read=READ
    | {
        "max_window_layers": Field("count", 28),
        "layer_types": Field("names", None),
        "qkv_bias": Field("flag", True),
        "shared_expert_intermediate_size": Field("size", 5632),
    },
    neutral=llama.LLAMA_NEUTRAL | llama.NO_BIASES,
    harmless=mixtral.HARMLESS,
    copied=llama.COPIED
    | OF_EXPERTS
    | {
        "causal": "is_causal",
        "qkv_bias": "qkv_bias",
        "expert_dim": "moe_intermediate_size",
        "shared_dim": "shared_expert_intermediate_size",
    },
    fixed=llama.FIXED,
    computed=llama.COMPUTED
    | {"window": rules.windows(_every_second), "dense_layers": _dense_layers},
    older={"num_local_experts": "num_experts"},
)

QWEN3_MOE = replace(
    QWEN2_MOE,
    model_type="qwen3_moe",
    title="Qwen3-MoE",
    classes=("Qwen3MoeModel", "Qwen3MoeForCausalLM"),
    read=READ
    | {
        "num_key_value_heads": Field("size", 4, null=True),
        "attention_bias": Field("flag", False),
        "moe_intermediate_size": Field("size", 768),
        "num_experts": Field("experts", 128),
        "num_experts_per_tok": Field("experts", 8),
    },
    neutral=llama.LLAMA_NEUTRAL | {"mlp_bias": (False,)},
    harmless=mixtral.HARMLESS
    | {"all layers have a window, or none": ("max_window_layers",)},
    copied=llama.COPIED
    | llama.BIASES
    | OF_EXPERTS
    | {"causal": "is_causal", "expert_dim": "moe_intermediate_size"},
    fixed=llama.FIXED | {"qk_norm": True},
    computed=llama.COMPUTED
    | {
        "window": rules.windows(rules.last_layers),
        "dense_layers": _dense_layers,
    },
)
