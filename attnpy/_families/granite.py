"""Granite: Llama with four factors, and positions of whole heads; with experts, too."""

from __future__ import annotations

from dataclasses import replace

from attnpy._families import llama, mixtral
from attnpy._families.declaration import Declaration, names_of
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

# Of all experts in one array. The last three are of today's class in memory.
_BOTH = "feed_forward.experts.{j}.W_gate.T feed_forward.experts.{j}.W_1.T"
_DOWN = "feed_forward.experts.{j}.W_2.T"
_EXPERTS = {
    "block_sparse_moe.router.layer.weight": "feed_forward.router.T",
    "block_sparse_moe.input_linear.weight.{j}": _BOTH,
    "block_sparse_moe.output_linear.weight.{j}": _DOWN,
    "block_sparse_moe.router.weight": "feed_forward.router.T",
    "block_sparse_moe.experts.gate_up_proj.{j}": _BOTH,
    "block_sparse_moe.experts.down_proj.{j}": _DOWN,
}
NAMES = llama.NAMES._replace(
    names={
        **{x: own for x, own in llama.NAMES.names.items() if ".mlp." not in x},
        **names_of("layers.{i} decoder.layers.{i}", _EXPERTS, {}),
    },
    stacked=tuple(
        f".{name.removesuffix('.{j}')}" for name in _EXPERTS if name.endswith(".{j}")
    ),
)

GRANITEMOE = replace(
    GRANITE,
    model_type="granitemoe",
    title="GraniteMoE",
    classes=("GraniteMoeModel", "GraniteMoeForCausalLM"),
    checkpoint="granitemoe",
    names=NAMES,
    read={name: field for name, field in GRANITE.read.items() if name != "mlp_bias"}
    | {
        "num_local_experts": Field("experts", 8),
        "num_experts_per_tok": Field("experts", 2),
    },
    neutral=llama.LLAMA_NEUTRAL | {"mlp_bias": (False,)},
    harmless=mixtral.HARMLESS,
    copied={
        argument: field
        for argument, field in GRANITE.copied.items()
        if argument != "feed_forward_bias"
    }
    | {
        "num_experts": "num_local_experts",
        "num_experts_per_token": "num_experts_per_tok",
    },
)
