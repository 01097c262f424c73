"""Phi-3: Llama whose matrices are side by side, and which may turn parts of heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnpy._families import llama, rules
from attnpy._families.declaration import Declaration, Family, names_of
from attnpy._families.fields import Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary

_APART = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
NAMES = Family(
    {
        name: own
        for name, own in llama.NAMES.names.items()
        if not any(part in name for part in _APART)
    }
    | names_of(
        "layers.{i} decoder.layers.{i}",
        {
            "self_attn.qkv_proj.weight": "self_attention.W_q.T self_attention.W_k.T "
            "self_attention.W_v.T",
            "mlp.gate_up_proj.weight": "feed_forward.W_gate.T feed_forward.W_1.T",
        },
        {},
    ),
    prefixes=llama.NAMES.prefixes,
    ignored=llama.NAMES.ignored,
    heads=llama.NAMES.heads,
    classifier=llama.NAMES.classifier,
    tied=llama.NAMES.tied,
)


def _rotary(values: Values) -> Rotary:
    """Return the positions; "longrope" had other names."""
    new = {}
    for field in ("rope_scaling", "rope_parameters"):
        scaling = {k: v for k, v in (values[field] or {}).items() if v is not None}
        if scaling.get("rope_type", scaling.get("type")) in ("su", "yarn"):
            scaling.pop("type", None)
            scaling["rope_type"] = "longrope"
        new[field] = scaling
    return rules.rotary({**values, **new})


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that do not say where the code is, or another tokenizer."""
    return rules.without_code(
        config, "configuration_phi3.Phi3Config", "modeling_phi3.Phi3", "Xenova/gpt-4o"
    )


PHI3 = Declaration(
    model_type="phi3",
    title="Phi-3",
    model="decoder",
    classes=("Phi3Model", "Phi3ForCausalLM"),
    checkpoint="phi3",
    names=NAMES,
    read=llama.READ
    | {
        "eos_token_id": Field("tokens", 32000, null=True),
        "rms_norm_eps": Field("number", 1e-5),
        "max_position_embeddings": Field("size", 4096),
        "original_max_position_embeddings": Field("size", 4096),
        "partial_rotary_factor": Field("number", None),
        "sliding_window": Field("size", None),
    },
    neutral={
        name: values
        for name, values in llama.LLAMA_NEUTRAL.items()
        if name != "partial_rotary_factor"
    }
    | llama.NO_BIASES
    | {"full_attn_mod": (1,), "interpolate_factor": (1,), "lm_head_bias": (False,)},
    harmless=llama.LLAMA_HARMLESS
    | {"dropout, for training": ("embd_pdrop", "resid_pdrop")},
    copied=llama.COPIED | {"causal": "is_causal"},
    fixed=llama.FIXED,
    computed=llama.COMPUTED | llama.WINDOWS | {"rotary": _rotary},
    modern=_modern,
)
