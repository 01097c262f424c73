"""Llama, and what the models that are built as it have in common.

Whole heads are turned: their classes pass over partial_rotary_factor, or fail with it.
"""

from __future__ import annotations

from attnpy._families import rules
from attnpy._families.declaration import (
    DECODER_CLASSIFIER,
    DECODER_HEADS,
    Declaration,
    Family,
    names_of,
)
from attnpy._families.fields import HARMLESS, NEUTRAL, Field

# Biases of queries, keys and values are Qwen2's, norms of queries and keys Qwen3's. The
# ignored ones are rotary frequencies.
NAMES = Family(
    names_of(
        "layers.{i} decoder.layers.{i}",
        {
            "input_layernorm.weight": "norm_1.weight",
            "self_attn.q_proj.weight": "self_attention.W_q.T",
            "self_attn.q_proj.bias": "self_attention.b_q",
            "self_attn.k_proj.weight": "self_attention.W_k.T",
            "self_attn.k_proj.bias": "self_attention.b_k",
            "self_attn.v_proj.weight": "self_attention.W_v.T",
            "self_attn.v_proj.bias": "self_attention.b_v",
            "self_attn.o_proj.weight": "self_attention.W_o.T",
            "self_attn.o_proj.bias": "self_attention.b_o",
            "self_attn.q_norm.weight": "self_attention.q_norm.weight",
            "self_attn.k_norm.weight": "self_attention.k_norm.weight",
            "post_attention_layernorm.weight": "norm_3.weight",
            "mlp.gate_proj.weight": "feed_forward.W_gate.T",
            "mlp.gate_proj.bias": "feed_forward.b_gate",
            "mlp.up_proj.weight": "feed_forward.W_1.T",
            "mlp.up_proj.bias": "feed_forward.b_1",
            "mlp.down_proj.weight": "feed_forward.W_2.T",
            "mlp.down_proj.bias": "feed_forward.b_2",
        },
        {
            "embed_tokens.weight": "token_embedding",
            "norm.weight": "decoder.norm.weight",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("model.",),
    ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
    heads=DECODER_HEADS,
    classifier=DECODER_CLASSIFIER,
    tied={"lm_head.weight": "embed_tokens.weight"},
)

# Where norms are LayerNorms.
NORM_BIASES = names_of(
    "layers.{i} decoder.layers.{i}",
    {
        "input_layernorm.bias": "norm_1.bias",
        "post_attention_layernorm.bias": "norm_3.bias",
    },
    {"norm.bias": "decoder.norm.bias"},
)

READ = {
    "num_hidden_layers": Field("layers"),
    "hidden_size": Field("size"),
    "num_attention_heads": Field("size"),
    "intermediate_size": Field("size"),
    "vocab_size": Field("size"),
    "head_dim": Field("size", None),
    "num_key_value_heads": Field("size", None),
    "max_position_embeddings": Field("size", None),
    "original_max_position_embeddings": Field("size", None),
    "rope_parameters": Field("mapping", None),
    "rope_scaling": Field("mapping", None),
    "rope_theta": Field("number", None),
    "tie_word_embeddings": Field("flag", False),
    "hidden_act": Field("name", "silu"),
    "rms_norm_eps": Field("number", 1e-6),
    "is_causal": Field("flag", True),
    "eos_token_id": Field("tokens", None),
}
LLAMA_NEUTRAL = NEUTRAL | {
    "partial_rotary_factor": (1.0,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
}
NO_BIASES: dict[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
}
LLAMA_HARMLESS = HARMLESS | {
    "language models are causal either way": ("is_decoder",),
    "written by the tools that made the file": (
        "is_llama_config",
        "max_sequence_length",
    ),
}

# Sizes, and the scores' matrix.
COPIED = {
    "num_layers": "num_hidden_layers",
    "embed_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "num_kv_heads": "num_key_value_heads",
    "tied": "tie_word_embeddings",
    "eps": "rms_norm_eps",
}
# Biases of attention's projections, all or none.
BIASES = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
# Norms before attention and network, and no biases.
FIXED: dict[str, object] = {"norm": "rms", "bias": False}
COMPUTED: dict[str, rules.Rule] = {
    "head_dim": rules.head_dim,
    "stop": rules.stop,
    "rotary": rules.rotary,
    "activation": rules.gated("hidden_act"),
}
WINDOWS = {"window": rules.windows(rules.last_layers)}

LLAMA = Declaration(
    model_type="llama",
    title="Llama",
    model="decoder",
    classes=("LlamaModel", "LlamaForCausalLM"),
    checkpoint="llama",
    names=NAMES,
    read=READ
    | {
        "eos_token_id": Field("tokens", 2, null=True),
        "attention_bias": Field("flag", False),
        "mlp_bias": Field("flag", False),
        "sliding_window": Field("size", None),
        "layer_types": Field("names", None),
    },
    neutral=LLAMA_NEUTRAL,
    harmless=LLAMA_HARMLESS,
    copied=COPIED | BIASES | {"causal": "is_causal", "feed_forward_bias": "mlp_bias"},
    fixed=FIXED,
    computed=COMPUTED | {"window": rules.windows(rules.only_listed)},
)
