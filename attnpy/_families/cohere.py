"""Command R: attention and network side by side, behind one norm without a bias.

Command R7B and A have windows, and positions in the layers with one alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnpy._families import llama, rules
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field
from attnpy._families.rules import SLIDING

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary

_kinds = rules.alternating(4)


def _rotary(values: Values) -> Rotary:
    return rules.rotary(values, 500_000.0, interleaved=True)


def _rotaries(values: Values) -> list[Rotary | None]:
    """Return the positions of each layer, None for those that see everything."""
    rotary = rules.rotary(values, interleaved=True)
    kinds = rules.layer_types(values, _kinds)
    return [rotary if kind == SLIDING else None for kind in kinds]


READ = {name: x for name, x in llama.READ.items() if name != "rms_norm_eps"} | {
    "max_position_embeddings": Field("size", 8192),
    "layer_norm_eps": Field("number", 1e-5),
    "logit_scale": Field("number", 0.0625),
    "attention_bias": Field("flag", False),
    "tie_word_embeddings": Field("flag", True),
    "eos_token_id": Field("tokens", 255_001, null=True),
}
# Those of files on the hub that say what their classes always do.
NEUTRAL = {
    name: values
    for name, values in llama.LLAMA_NEUTRAL.items()
    if name != "rope_interleaved"
} | {"mlp_bias": (False,), "use_qk_norm": (False,)}

COHERE = Declaration(
    model_type="cohere",
    title="Command R, Aya",
    model="decoder",
    classes=("CohereModel", "CohereForCausalLM"),
    checkpoint="llama",
    names=llama.NAMES,
    read=READ,
    neutral=NEUTRAL,
    harmless=llama.LLAMA_HARMLESS
    | {"the length of texts, for the tokenizer": ("model_max_length",)},
    copied=llama.COPIED
    | llama.BIASES
    | {"causal": "is_causal", "eps": "layer_norm_eps", "logit_scale": "logit_scale"},
    fixed={"bias": False, "parallel": "one norm"},
    computed=llama.COMPUTED | {"rotary": _rotary},
)

COHERE2 = replace(
    COHERE,
    model_type="cohere2",
    title="Command R7B, Command A",
    classes=("Cohere2Model", "Cohere2ForCausalLM"),
    read=READ
    | {
        "sliding_window": Field("size", 4096, null=True),
        "sliding_window_pattern": Field("size", 4),
        "layer_types": Field("names", None),
    },
    neutral=NEUTRAL
    | {
        "order_of_interleaved_layers": ("local_attn_first",),
        "position_embedding_type": ("rope_gptj",),
        "rotary_pct": (1.0,),
        "use_embedding_sharing": (True,),
        "use_gated_activation": (True,),
        "use_parallel_block": (True,),
    },
    harmless=llama.LLAMA_HARMLESS
    | {
        "the length of texts, for the tokenizer": ("model_max_length",),
        "how keys and values are cached": ("cache_implementation",),
        "what sliding_window_pattern says": ("_sliding_window_pattern", "layer_switch"),
        "how the weights were spread in training": ("use_parallel_embedding",),
    },
    computed=llama.COMPUTED | {"rotary": _rotaries, "window": rules.windows(_kinds)},
)
