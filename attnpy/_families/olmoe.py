"""OLMoE: experts, and norms of the queries and keys of all heads.

These norms are of hidden_size numbers, so head_dim can be no other than that of it.
"""

from __future__ import annotations

from attnpy._families import llama, mixtral
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field
from attnpy._families.qwen_moe import NAMES, OF_EXPERTS

OLMOE = Declaration(
    model_type="olmoe",
    title="OLMoE",
    model="decoder",
    classes=("OlmoeModel", "OlmoeForCausalLM"),
    checkpoint="qwen_moe",
    names=NAMES,
    read={name: field for name, field in llama.READ.items() if name != "head_dim"}
    | {
        "eos_token_id": Field("tokens", 50279, null=True),
        "rms_norm_eps": Field("number", 1e-5),
        "attention_bias": Field("flag", False),
        "num_experts": Field("experts", 64),
        "num_experts_per_tok": Field("experts", 8),
        "norm_topk_prob": Field("flag", False),
    },
    neutral=llama.LLAMA_NEUTRAL | {"mlp_bias": (False,), "clip_qkv": ()},
    harmless=mixtral.HARMLESS,
    copied=llama.COPIED | llama.BIASES | OF_EXPERTS | {"causal": "is_causal"},
    fixed=llama.FIXED | {"qk_norm": "all heads"},
    computed=llama.COMPUTED,
    older={"num_local_experts": "num_experts"},
)
