"""GLM-4: partial rotation of neighbouring numbers, gate and factor in one matrix.

The models of April 2025, `glm4`, have norms of the results of attention and network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnpy._families import llama, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary

_BLOCK = "layers.{i} decoder.layers.{i}"
_TOGETHER = {
    "mlp.gate_up_proj.weight": "feed_forward.W_gate.T feed_forward.W_1.T",
    "mlp.down_proj.weight": "feed_forward.W_2.T",
}
NAMES = llama.NAMES._replace(
    names={
        **{x: own for x, own in llama.NAMES.names.items() if ".mlp." not in x},
        **names_of(_BLOCK, _TOGETHER, {}),
    }
)
_AFTER = {
    "post_self_attn_layernorm.weight": "after_1.weight",
    "post_mlp_layernorm.weight": "after_3.weight",
}
NAMES_4 = NAMES._replace(names={**NAMES.names, **names_of(_BLOCK, _AFTER, {})})


def _rotary(values: Values) -> Rotary:
    return rules.rotary(values, interleaved=True)


GLM = Declaration(
    model_type="glm",
    title="GLM-4",
    model="decoder",
    classes=("GlmModel", "GlmForCausalLM"),
    checkpoint="glm",
    names=NAMES,
    read=llama.READ
    | {
        "num_key_value_heads": Field("size", 2),
        "head_dim": Field("size", 128),
        "max_position_embeddings": Field("size", 131_072),
        "rms_norm_eps": Field("number", 1.5625e-07),
        "partial_rotary_factor": Field("number", 0.5),
        "attention_bias": Field("flag", True),
        "eos_token_id": Field("tokens", [151_329, 151_336, 151_338]),
    },
    neutral={
        name: values
        for name, values in llama.LLAMA_NEUTRAL.items()
        if name not in ("partial_rotary_factor", "rope_interleaved")
    }
    | {"mlp_bias": (False,)},
    harmless=llama.LLAMA_HARMLESS,
    copied=llama.COPIED | {"causal": "is_causal", "qkv_bias": "attention_bias"},
    fixed=llama.FIXED,
    computed=llama.COMPUTED | {"rotary": _rotary},
)

GLM4 = replace(
    GLM,
    model_type="glm4",
    title="GLM-4-0414",
    classes=("Glm4Model", "Glm4ForCausalLM"),
    checkpoint="glm4",
    names=NAMES_4,
    fixed=llama.FIXED | {"norm_after": True},
)
