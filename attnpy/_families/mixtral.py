"""Mixtral: Mistral whose networks are mixtures of experts; what all of these share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import llama, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Family, Values
    from attnpy.positions import Rotary

# Of all experts in one array, as today's classes have them in memory.
_TOGETHER = {
    "mlp.experts.gate_up_proj.{j}": (
        "feed_forward.experts.{j}.W_gate.T feed_forward.experts.{j}.W_1.T"
    ),
    "mlp.experts.down_proj.{j}": "feed_forward.experts.{j}.W_2.T",
}


def names_with(router: str, gate: str, up: str, down: str, **others: str) -> Family:
    """Return Llama's names, and those of a router and of experts.

    Files have these; the last ones are of today's classes in memory.
    """
    layer = {
        router: "feed_forward.router.T",
        gate: "feed_forward.experts.{j}.W_gate.T",
        up: "feed_forward.experts.{j}.W_1.T",
        down: "feed_forward.experts.{j}.W_2.T",
        "mlp.gate.weight": "feed_forward.router.T",
        **_TOGETHER,
        **others,
    }
    names = names_of("layers.{i} decoder.layers.{i}", layer, {})
    return llama.NAMES._replace(
        names={**llama.NAMES.names, **names},
        stacked=(".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"),
    )


HARMLESS = llama.LLAMA_HARMLESS | {
    "of experts, for training": ("router_aux_loss_coef", "router_jitter_noise"),
    "of experts, what else a call returns": ("output_router_logits",),
}


def _rotary(values: Values) -> Rotary:
    return rules.rotary(values, 1_000_000.0)


MIXTRAL = Declaration(
    model_type="mixtral",
    title="Mixtral",
    model="decoder",
    classes=("MixtralModel", "MixtralForCausalLM"),
    checkpoint="mixtral",
    names=names_with(
        "block_sparse_moe.gate.weight",
        "block_sparse_moe.experts.{j}.w1.weight",
        "block_sparse_moe.experts.{j}.w3.weight",
        "block_sparse_moe.experts.{j}.w2.weight",
    ),
    read=llama.READ
    | {
        "eos_token_id": Field("tokens", 2, null=True),
        "num_key_value_heads": Field("size", 8, null=True),
        "rms_norm_eps": Field("number", 1e-5),
        "sliding_window": Field("size", None),
        "num_local_experts": Field("experts", 8),
        "num_experts_per_tok": Field("experts", 2),
    },
    neutral=llama.LLAMA_NEUTRAL | llama.NO_BIASES,
    harmless=HARMLESS,
    copied=llama.COPIED
    | {
        "causal": "is_causal",
        "num_experts": "num_local_experts",
        "num_experts_per_token": "num_experts_per_tok",
    },
    fixed=llama.FIXED,
    computed=llama.COMPUTED | llama.WINDOWS | {"rotary": _rotary},
    older={"num_experts": "num_local_experts"},
)
