"""Granite: Llama with four factors, and positions of whole heads; with experts, too.

Granite 4 has gate and factor in one matrix, and positions or none. Its class has layers
of Mamba and mixtures of experts as well; models without them are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnpy._families import llama, mixtral, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import Field
from attnpy._families.rules import FULL

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary

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
_WITHOUT_NETWORK = {x: own for x, own in llama.NAMES.names.items() if ".mlp." not in x}
NAMES = llama.NAMES._replace(
    names={
        **_WITHOUT_NETWORK,
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

_NETWORK = {
    "shared_mlp.input_linear.weight": "feed_forward.W_gate.T feed_forward.W_1.T",
    "shared_mlp.output_linear.weight": "feed_forward.W_2.T",
}
NAMES_4 = llama.NAMES._replace(
    names={
        **_WITHOUT_NETWORK,
        **names_of("layers.{i} decoder.layers.{i}", _NETWORK, {}),
    }
)
ATTENTION = "attention"  # the kind of all layers
_KINDS = "layers_block_type", "layer_types"  # as it is called, or was


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Say in a word that all layers have attention, and what is so without a word."""
    null = [name for name in _KINDS if config.get(name) is None]
    new = {name: x for name, x in config.items() if name not in null}
    n_layers = config.get("num_hidden_layers")
    for name in _KINDS:
        kinds = new.get(name)
        listed = isinstance(kinds, (list, tuple)) and len(kinds) == n_layers
        if listed and all(kind in (ATTENTION, FULL) for kind in kinds or ()):
            new[name] = ATTENTION
    if len(null) == len(_KINDS):
        new["layer_types"] = "mamba"
    if new.get("num_local_experts") is None:
        new["num_local_experts"] = 8
    return new


def _saved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the kind of each layer."""
    return {**config, "layer_types": [ATTENTION] * config["num_hidden_layers"]}


def _rotary(values: Values) -> Rotary | None:
    """Return the positions, or None."""
    kind = rules.one_of(values, "position_embedding_type", "rope", "nope")
    return rules.rotary(values) if kind == "rope" else None


GRANITE4 = replace(
    GRANITE,
    model_type="granitemoehybrid",
    title="Granite 4 without Mamba and experts",
    classes=("GraniteMoeHybridModel", "GraniteMoeHybridForCausalLM"),
    checkpoint="granitemoehybrid",
    names=NAMES_4,
    read={
        name: field
        for name, field in GRANITE.read.items()
        if name not in ("mlp_bias", "intermediate_size")
    }
    | {
        "shared_intermediate_size": Field("size", 1024),
        "position_embedding_type": Field("name", "nope"),
    },
    neutral=llama.LLAMA_NEUTRAL
    | {
        "layer_types": (ATTENTION,),
        "mlp_bias": (False,),
        "normalization_function": ("rmsnorm",),
        "num_local_experts": (0,),
    },
    harmless=mixtral.HARMLESS
    | {
        "of layers of Mamba, and how weights were made": (
            *("init_method", "time_step_limit"),
            *("mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head"),
            *("mamba_d_state", "mamba_expand", "mamba_n_groups", "mamba_n_heads"),
            "mamba_proj_bias",
        ),
        "of experts, of which there are none": (
            "intermediate_size",
            "num_experts_per_tok",
        ),
    },
    copied={
        argument: field
        for argument, field in GRANITE.copied.items()
        if argument != "feed_forward_bias"
    }
    | {"hidden_dim": "shared_intermediate_size"},
    computed={**GRANITE.computed, "rotary": _rotary},
    older={"layers_block_type": "layer_types"},
    modern=_modern,
    saved=_saved,
)
