"""Nemotron: LayerNorms of 1 + weight, partial rotation, networks without a gate."""

from __future__ import annotations

from attnpy._families import gemma, llama, rules
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field

NAMES = llama.NAMES._replace(
    names={**llama.NAMES.names, **llama.NORM_BIASES},
    one_less=gemma.NAMES_1.one_less,
)

NEMOTRON = Declaration(
    model_type="nemotron",
    title="Nemotron, Minitron",
    model="decoder",
    classes=("NemotronModel", "NemotronForCausalLM"),
    checkpoint="nemotron",
    names=NAMES,
    read={name: x for name, x in llama.READ.items() if name != "rms_norm_eps"}
    | {
        "max_position_embeddings": Field("size", 4096),
        "hidden_act": Field("name", "relu2"),
        "norm_eps": Field("number", 1e-5),
        "partial_rotary_factor": Field("number", 0.5),
        "attention_bias": Field("flag", False),
        "mlp_bias": Field("flag", False),
        "eos_token_id": Field("tokens", 3, null=True),
    },
    neutral={
        name: values
        for name, values in llama.LLAMA_NEUTRAL.items()
        if name != "partial_rotary_factor"
    },
    harmless=llama.LLAMA_HARMLESS
    | {
        "written by the tools that made the file": (
            "is_llama_config",
            "kv_channels",
            "max_sequence_length",
        )
    },
    copied=llama.COPIED
    | llama.BIASES
    | {"causal": "is_causal", "eps": "norm_eps", "feed_forward_bias": "mlp_bias"},
    fixed={},
    computed=llama.COMPUTED | {"activation": rules.activation("hidden_act")},
)
