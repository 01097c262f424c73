"""StableLM: Llama with LayerNorms, which turns a part of each head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attnpy._families import llama
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

NAMES = llama.NAMES._replace(names={**llama.NAMES.names, **llama.NORM_BIASES})


def _parallel(values: Values) -> Literal["one norm"] | bool:
    """Tell whether attention and network read the same tokens, by one norm."""
    return "one norm" if values["use_parallel_residual"] else False


# The size of its heads is always that of hidden_size / num_attention_heads.
STABLELM = Declaration(
    model_type="stablelm",
    title="StableLM",
    model="decoder",
    classes=("StableLmModel", "StableLmForCausalLM"),
    checkpoint="stablelm",
    names=NAMES,
    read={
        name: x
        for name, x in llama.READ.items()
        if name not in ("rms_norm_eps", "head_dim")
    }
    | {
        "num_key_value_heads": Field("size", 32),
        "max_position_embeddings": Field("size", 4096),
        "layer_norm_eps": Field("number", 1e-5),
        "partial_rotary_factor": Field("number", 0.25),
        "use_qkv_bias": Field("flag", False),
        "use_parallel_residual": Field("flag", False),
        "eos_token_id": Field("tokens", 0, null=True),
    },
    neutral={
        name: values
        for name, values in llama.LLAMA_NEUTRAL.items()
        if name != "partial_rotary_factor"
    }
    | {"qk_layernorm": (False,)},
    harmless=llama.LLAMA_HARMLESS | {"dropout, for training": ("hidden_dropout",)},
    copied=llama.COPIED
    | {"causal": "is_causal", "eps": "layer_norm_eps", "qkv_bias": "use_qkv_bias"},
    fixed={"out_bias": False, "feed_forward_bias": False},
    computed=llama.COMPUTED | {"parallel": _parallel},
)
