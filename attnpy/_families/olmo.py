"""OLMo 2: Llama with norms of results, and of the queries and keys of all heads.

OLMo 3 has windows, in three of four layers, and scales the positions of the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnpy._families import gemma, llama, rules
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field
from attnpy._families.rules import FULL, SLIDING

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary

BASE = 500_000.0  # of the positions of OLMo 3
NAMES = gemma.NAMES._replace(one_less=())

_kinds = rules.alternating(4)


def _rotaries(values: Values) -> list[Rotary]:
    """Return the positions of each layer: those without a window may be scaled.

    Their class gives rope_theta to these layers alone.
    """
    base = values["rope_theta"]
    kinds = rules.layer_types(values, _kinds)
    if SLIDING in kinds and base not in (None, BASE):
        raise ValueError(
            f"config: expected rope_theta = {BASE} beside layers with a window, which "
            f"their class gives no other, or rope_parameters of both, got {base}"
        )
    bases = {FULL: BASE if base is None else base, SLIDING: BASE}
    turns = rules.turns_by_kind(values, bases, {FULL: "rope_scaling"})
    return [turns[name] for name in kinds]


READ = llama.READ | {
    "eos_token_id": Field("tokens", 50279, null=True),
    "rms_norm_eps": Field("number", 1e-5),
    "max_position_embeddings": Field("size", 2048),
    "attention_bias": Field("flag", False),
}
OLMO2 = Declaration(
    model_type="olmo2",
    title="OLMo 2",
    model="decoder",
    classes=("Olmo2Model", "Olmo2ForCausalLM"),
    checkpoint="olmo2",
    names=NAMES,
    read=READ,
    neutral=llama.LLAMA_NEUTRAL | {"mlp_bias": (False,)},
    harmless=llama.LLAMA_HARMLESS,
    copied=llama.COPIED | llama.BIASES | {"causal": "is_causal"},
    fixed=llama.FIXED | {"qk_norm": "all heads", "norm_after": "only"},
    computed=llama.COMPUTED,
)

OLMO3 = replace(
    OLMO2,
    model_type="olmo3",
    title="OLMo 3",
    classes=("Olmo3Model", "Olmo3ForCausalLM"),
    read=READ
    | {
        "sliding_window": Field("size", 4096, null=True),
        "layer_types": Field("names", None),
    },
    computed=llama.COMPUTED | {"window": rules.windows(_kinds), "rotary": _rotaries},
)
