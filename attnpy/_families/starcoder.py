"""StarCoder2: Llama with LayerNorms, biases, and networks without a gate."""

from __future__ import annotations

from attnpy._families import llama, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import Field

_NETWORK = {
    "mlp.c_fc.weight": "feed_forward.W_1.T",
    "mlp.c_fc.bias": "feed_forward.b_1",
    "mlp.c_proj.weight": "feed_forward.W_2.T",
    "mlp.c_proj.bias": "feed_forward.b_2",
}
NAMES = llama.NAMES._replace(
    names={
        **{x: own for x, own in llama.NAMES.names.items() if ".mlp." not in x},
        **llama.NORM_BIASES,
        **names_of("layers.{i} decoder.layers.{i}", _NETWORK, {}),
    }
)

STARCODER2 = Declaration(
    model_type="starcoder2",
    title="StarCoder2",
    model="decoder",
    classes=("Starcoder2Model", "Starcoder2ForCausalLM"),
    checkpoint="starcoder2",
    names=NAMES,
    read={name: x for name, x in llama.READ.items() if name != "rms_norm_eps"}
    | {
        "num_key_value_heads": Field("size", 2),
        "max_position_embeddings": Field("size", 4096),
        "hidden_act": Field("name", "gelu_pytorch_tanh"),
        "norm_epsilon": Field("number", 1e-5),
        "use_bias": Field("flag", True),
        "sliding_window": Field("size", None),
        "tie_word_embeddings": Field("flag", True),
        "eos_token_id": Field("tokens", 50256, null=True),
    },
    neutral=llama.LLAMA_NEUTRAL
    | {
        "mlp_type": ("default",),
        "norm_type": ("layer_norm",),
        "scale_attn_weights": (True,),
    },
    harmless=llama.LLAMA_HARMLESS
    | {
        "dropout, for training": ("embedding_dropout", "residual_dropout"),
        "names of older code; the class reads hidden_act and norm_epsilon": (
            "activation_function",
            "layer_norm_epsilon",
        ),
        "the softmax is always in float32 or wider": (
            "attention_softmax_in_fp32",
            "scale_attention_softmax_in_fp32",
        ),
    },
    copied=llama.COPIED
    | {
        "causal": "is_causal",
        "eps": "norm_epsilon",
        "qkv_bias": "use_bias",
        "out_bias": "use_bias",
        "feed_forward_bias": "use_bias",
    },
    fixed={},
    computed=llama.COMPUTED
    | llama.WINDOWS
    | {"activation": rules.activation("hidden_act")},
)
