"""Phi-1.5 and Phi-2: attention and network side by side, behind one norm."""

from __future__ import annotations

from attnpy._families import llama, rules
from attnpy._families.declaration import (
    DECODER_CLASSIFIER,
    DECODER_HEADS,
    Declaration,
    Family,
    names_of,
)
from attnpy._families.fields import HARMLESS, NEUTRAL, Field

_BOTH = "weight", "bias"
_LAYER = {
    "self_attn.q_proj": "self_attention.{}_q",
    "self_attn.k_proj": "self_attention.{}_k",
    "self_attn.v_proj": "self_attention.{}_v",
    "self_attn.dense": "self_attention.{}_o",
    "mlp.fc1": "feed_forward.{}_1",
    "mlp.fc2": "feed_forward.{}_2",
}
# The ignored ones are rotary frequencies.
NAMES = Family(
    names_of(
        "layers.{i} decoder.layers.{i}",
        {f"{name}.weight": own.format("W") + ".T" for name, own in _LAYER.items()}
        | {f"{name}.bias": own.format("b") for name, own in _LAYER.items()}
        | {f"input_layernorm.{part}": f"norm_1.{part}" for part in _BOTH},
        {
            "embed_tokens.weight": "token_embedding",
            "final_layernorm.weight": "decoder.norm.weight",
            "final_layernorm.bias": "decoder.norm.bias",
            "lm_head.weight": "output.T",
            "lm_head.bias": "output_bias",
        },
    ),
    prefixes=("model.",),
    ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
    heads=DECODER_HEADS,
    classifier=DECODER_CLASSIFIER,
    tied={"lm_head.weight": "embed_tokens.weight"},
    optional=("lm_head.bias",),
    beside=("lm_head.bias",),
)

PHI = Declaration(
    model_type="phi",
    title="Phi-1.5, Phi-2",
    model="decoder",
    classes=("PhiModel", "PhiForCausalLM"),
    checkpoint="phi",
    names=NAMES,
    read={name: x for name, x in llama.READ.items() if name != "rms_norm_eps"}
    | {
        "hidden_act": Field("name", "gelu_new"),
        "layer_norm_eps": Field("number", 1e-5),
        "max_position_embeddings": Field("size", 2048),
        "partial_rotary_factor": Field("number", 0.5),
        "eos_token_id": Field("tokens", 2, null=True),
    },
    neutral=NEUTRAL | {"qk_layernorm": (False,)},
    harmless=HARMLESS
    | {
        "dropout, for training": ("embd_pdrop", "resid_pdrop"),
        "language models are causal either way": ("is_decoder",),
    },
    copied=llama.COPIED | {"eps": "layer_norm_eps", "causal": "is_causal"},
    fixed={"parallel": "one norm", "output_bias": True},
    computed={
        "head_dim": rules.head_dim,
        "stop": rules.stop,
        "rotary": rules.rotary,
        "activation": rules.activation("hidden_act"),
    },
)
