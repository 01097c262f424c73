"""ERNIE 4.5 without experts: Llama whose positions turn neighbouring numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import llama, rules
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary


def _rotary(values: Values) -> Rotary:
    return rules.rotary(values, 500_000.0, interleaved=True)


ERNIE4_5 = Declaration(
    model_type="ernie4_5",
    title="ERNIE 4.5",
    model="decoder",
    classes=("Ernie4_5Model", "Ernie4_5ForCausalLM"),
    checkpoint="llama",
    names=llama.NAMES,
    read=llama.READ
    | {
        "eos_token_id": Field("tokens", 2, null=True),
        "head_dim": Field("size", 128, null=True),
        "max_position_embeddings": Field("size", 131_072),
        "num_key_value_heads": Field("size", 2, null=True),
        "rms_norm_eps": Field("number", 1e-5),
        "tie_word_embeddings": Field("flag", True),
        "use_bias": Field("flag", False),
    },
    neutral={
        name: values
        for name, values in llama.LLAMA_NEUTRAL.items()
        if name != "rope_interleaved"
    }
    | llama.NO_BIASES,
    harmless=llama.LLAMA_HARMLESS,
    copied=llama.COPIED
    | {
        "causal": "is_causal",
        "qkv_bias": "use_bias",
        "out_bias": "use_bias",
        "feed_forward_bias": "use_bias",
    },
    fixed=llama.FIXED,
    computed=llama.COMPUTED | {"rotary": _rotary},
)
