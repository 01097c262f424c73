"""BLOOM: GPT-2's layers with ALiBi, and a norm of the embeddings."""

from __future__ import annotations

from attnpy._families import falcon, gpt2, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import NEUTRAL, Field

NAMES = falcon.NAMES._replace(
    names=dict(falcon.NAMES.names)
    | names_of(
        "h.{i} decoder.layers.{i}",
        {f"post_attention_layernorm.{x}": f"norm_3.{x}" for x in ("weight", "bias")},
        {
            f"word_embeddings_layernorm.{x}": f"embedding_norm.{x}"
            for x in ("weight", "bias")
        },
    ),
    ignored=(),
)

BLOOM = Declaration(
    model_type="bloom",
    title="BLOOM",
    model="decoder",
    classes=("BloomModel", "BloomForCausalLM"),
    checkpoint="bloom",
    names=NAMES,
    read={
        "n_layer": Field("layers", 2),
        "hidden_size": Field("size", 64),
        "n_head": Field("size", 8),
        "vocab_size": Field("size", 250880),
        "layer_norm_epsilon": Field("number", 1e-5),
        "tie_word_embeddings": Field("flag", True),
        "eos_token_id": Field("tokens", 2, null=True),
    },
    neutral=NEUTRAL
    | {
        "apply_residual_connection_post_layernorm": (False,),
        "skip_bias_add_qkv": (False,),
    },
    harmless=gpt2.HEAD_HARMLESS
    | {
        "dropout, for training": ("hidden_dropout",),
        "how the code of training computed it": (
            *("attention_softmax_in_fp32", "bias_dropout_fusion", "offset_alibi"),
            *("masked_softmax_fusion", "skip_bias_add", "slow_but_exact"),
        ),
        "the length of texts in training": ("seq_length",),
    },
    copied={
        "num_layers": "n_layer",
        "embed_dim": "hidden_size",
        "num_heads": "n_head",
        "vocab_size": "vocab_size",
        "eps": "layer_norm_epsilon",
        "tied": "tie_word_embeddings",
    },
    fixed={"alibi": True, "embedding_norm": True, "activation": "gelu_tanh"},
    computed={
        "hidden_dim": lambda values: 4 * values["hidden_size"],
        "stop": rules.stop,
    },
    older={
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "n_embed": "hidden_size",
    },
)
