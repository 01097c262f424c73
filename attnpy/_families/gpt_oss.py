"""gpt-oss: sinks, alternating windows, and experts whose factors are clamped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import llama, mixtral, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import Field
from attnpy._families.rules import FULL, SLIDING

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary

# Of all experts in one array, with matrices as they are here.
_LAYER = {
    "self_attn.sinks": "self_attention.sinks",
    "mlp.router.weight": "feed_forward.router.T",
    "mlp.router.bias": "feed_forward.router_bias",
    "mlp.experts.gate_up_proj.{j}": (
        "feed_forward.experts.{j}.W_gate feed_forward.experts.{j}.W_1"
    ),
    "mlp.experts.gate_up_proj_bias.{j}": (
        "feed_forward.experts.{j}.b_gate feed_forward.experts.{j}.b_1"
    ),
    "mlp.experts.down_proj.{j}": "feed_forward.experts.{j}.W_2",
    "mlp.experts.down_proj_bias.{j}": "feed_forward.experts.{j}.b_2",
    # In MXFP4, transposed, and apart: `checkpoints.mxfp4`.
    "mlp.experts.gate_proj_blocks.{j}": "feed_forward.experts.{j}.W_gate.T",
    "mlp.experts.up_proj_blocks.{j}": "feed_forward.experts.{j}.W_1.T",
    "mlp.experts.down_proj_blocks.{j}": "feed_forward.experts.{j}.W_2.T",
}
NAMES = llama.NAMES._replace(
    names={
        **{x: own for x, own in llama.NAMES.names.items() if ".mlp." not in x},
        **names_of("layers.{i} decoder.layers.{i}", _LAYER, {}),
    },
    stacked=(
        *(".experts.gate_up_proj", ".experts.gate_up_proj_bias"),
        *(".experts.down_proj", ".experts.down_proj_bias"),
    ),
    interleaved=(".experts.gate_up_proj", ".experts.gate_up_proj_bias"),
)

# Where a file says nothing, as its class has it.
_SCALING = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _rotary(values: Values) -> Rotary:
    if values["rope_parameters"] is None and not values["rope_scaling"]:
        values = {**values, "rope_parameters": _SCALING}
    return rules.rotary(values, 150_000.0)


def _every_second(values: Values) -> list[str]:
    """Return windows in every second layer, from the first one on."""
    n_layers = values["num_hidden_layers"]
    if values["sliding_window"] is None:
        raise ValueError("config: expected a sliding_window, got none")
    return [FULL if i % 2 else SLIDING for i in range(n_layers)]


GPT_OSS = Declaration(
    model_type="gpt_oss",
    title="gpt-oss",
    model="decoder",
    classes=("GptOssModel", "GptOssForCausalLM"),
    checkpoint="gpt_oss",
    names=NAMES,
    read={name: field for name, field in llama.READ.items() if name != "hidden_act"}
    | {
        "head_dim": Field("size", 64, null=True),
        "num_key_value_heads": Field("size", 8, null=True),
        "max_position_embeddings": Field("size", 131_072),
        "rms_norm_eps": Field("number", 1e-5),
        "attention_bias": Field("flag", True),
        "sliding_window": Field("size", 128, null=True),
        "layer_types": Field("names", None),
        "num_local_experts": Field("experts", 128),
        "num_experts_per_tok": Field("experts", 4),
    },
    neutral=llama.LLAMA_NEUTRAL
    | {"hidden_act": ("silu",), "swiglu_alpha": (1.702,), "swiglu_limit": (7.0,)},
    harmless=mixtral.HARMLESS
    | {
        "the length of training, as the scaling of positions has it": (
            "initial_context_length",
        )
    },
    copied=llama.COPIED
    | llama.BIASES
    | {
        "causal": "is_causal",
        "num_experts": "num_local_experts",
        "num_experts_per_token": "num_experts_per_tok",
    },
    fixed=llama.FIXED
    | {
        "activation": "swiglu_oai",
        "feed_forward_bias": True,
        "router_bias": True,
        "sinks": True,
    },
    computed={
        "head_dim": rules.head_dim,
        "stop": rules.stop,
        "rotary": _rotary,
        "window": rules.windows(_every_second),
    },
    older={
        "num_experts": "num_local_experts",
        "experts_per_token": "num_experts_per_tok",
    },
)
