"""NomicBERT: BERT with rotary positions, networks with a gate, and no biases.

Files of nomic-ai have the fields and names of the code beside them, which Transformers
reads today as another class: fields and names here are that class's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnpy._families import bert, rules
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    names_of,
    tokens_of,
    words_of,
)
from attnpy._families.fields import Field

# Today's names first, which are those that are saved.
LAYER = {
    f"self_attn.{letter}_proj.{kind}": f"self_attention.{own}"
    for letter in "qkvo"
    for kind, own in (("weight", f"W_{letter}.T"), ("bias", f"b_{letter}"))
} | {
    "post_attention_layernorm.weight": "norm_1.weight",
    "post_attention_layernorm.bias": "norm_1.bias",
    "mlp.gate_proj.weight": "feed_forward.W_gate.T",
    "mlp.up_proj.weight": "feed_forward.W_1.T",
    "mlp.down_proj.weight": "feed_forward.W_2.T",
    "mlp.down_proj.bias": "feed_forward.b_2",
    "post_mlp_layernorm.weight": "norm_2.weight",
    "post_mlp_layernorm.bias": "norm_2.bias",
}
EMBEDDINGS = {
    name: own
    for name, own in (bert.EMBEDDINGS | bert.TYPES | bert.POOLER).items()
    if "position" not in name
}
NAMES = Family(
    names_of("layers.{i} encoder.layers.{i}", LAYER, EMBEDDINGS)
    | names_of(
        "encoder.layers.{i} encoder.layers.{i}",
        {
            "attn.Wqkv.weight": "self_attention.W_q.T self_attention.W_k.T "
            "self_attention.W_v.T",
            "attn.out_proj.weight": "self_attention.W_o.T",
            "mlp.fc11.weight": "feed_forward.W_1.T",
            "mlp.fc12.weight": "feed_forward.W_gate.T",
            "mlp.fc2.weight": "feed_forward.W_2.T",
            "norm1.weight": "norm_1.weight",
            "norm1.bias": "norm_1.bias",
            "norm2.weight": "norm_2.weight",
            "norm2.bias": "norm_2.bias",
        },
        {"emb_ln.weight": "norm.weight", "emb_ln.bias": "norm.bias"},
    ),
    prefixes=("nomic_bert.", "bert.", "model."),
    renamed=bert.NAMES.renamed,
    ignored=(*bert.BUFFERS, "*rotary_emb.inv_freq"),
    heads=("classifier.*", "cls.*"),
    tied=bert.TIED,
    optional=("pooler.dense.*",),
    classifier=head_of("pooler.dense", "classifier"),
    token_classifier=tokens_of("classifier"),
    masked_words=words_of(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.layer_norm",
        "cls.predictions.bias",
        "cls.predictions.decoder.bias",
    ),
)

# Fields of the code beside the files, and what that code has without them.
OLDER = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
UNLESS_GIVEN = {
    "activation_function": "gelu_new",
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "qkv_proj_bias": True,
    "rotary_emb_fraction": 0.0,
    "layer_norm_epsilon": 1e-5,
    "rotary_emb_base": 10_000,
}
GATES = {"swiglu": "silu", "geglu": "gelu"}
CODE = "hf_nomic_bert.NomicBert"


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields whose meaning is that of today's class."""
    new = rules.without_code(config, CODE)
    if "n_embd" not in config:
        return new
    new = {**UNLESS_GIVEN, **new}
    name = new["activation_function"]
    if isinstance(name, str) and name in GATES:
        del new["activation_function"]
        new["hidden_act"] = GATES[name]
    return new


READ = {name: field for name, field in bert.READ.items() if name != "hidden_act"} | {
    "rope_parameters": Field("mapping", None),
    "rope_scaling": Field("mapping", None),
    "rope_theta": Field("number", None),
    "head_dim": Field("size", None),
}
NOMIC_BERT = Declaration(
    model_type="nomic_bert",
    title="NomicBERT",
    model="encoder",
    classes=("NomicBertModel", "NomicBertForSequenceClassification"),
    checkpoint="nomic_bert",
    names=NAMES,
    read=READ
    | {
        "max_position_embeddings": Field("size", 2048),
        "type_vocab_size": Field("size", 2),
        "hidden_act": Field("name", "silu"),
    },
    neutral=bert.BERT_NEUTRAL
    | {
        "activation_function": ("swiglu", "geglu"),
        "causal": (False,),
        "last_layer_subset": (False,),
        "mlp_fc1_bias": (False,),
        "mlp_fc2_bias": (False,),
        "parallel_block": (False,),
        "parallel_block_tied_norm": (False,),
        "prenorm": (False,),
        "qkv_proj_bias": (False,),
        "rotary_emb_fraction": (1.0,),
        "rotary_emb_interleaved": (False,),
        "rotary_emb_scale_base": (),
        "rotary_scaling_factor": (),
        "scale_attn_by_inverse_layer_idx": (False,),
        "scale_attn_weights": (True,),
        "use_rms_norm": (False,),
    },
    harmless=bert.BERT_HARMLESS
    | {
        "dropout, for training": (
            "attention_probs_dropout_prob",
            "attn_pdrop",
            "classifier_dropout",
            "embd_pdrop",
            "hidden_dropout_prob",
            "resid_pdrop",
        ),
        "of the code beside older files: how it is computed, not what": (
            "dense_seq_output",
            "fused_bias_fc",
            "fused_dropout_add_ln",
            "max_trained_positions",
            "pad_vocab_size_multiple",
            "reorder_and_upcast_attn",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
            "use_flash_attn",
            "use_xentropy",
        ),
    },
    copied=bert.COPIED | {"num_types": "type_vocab_size"},
    fixed={"qkv_bias": False, "out_bias": False, "feed_forward_bias": False},
    computed={
        "activation": rules.gated("hidden_act"),
        "head_dim": rules.head_dim,
        "rotary": lambda values: rules.rotary(values, 1000.0),
    },
    heads=bert.HEADS,
    older=OLDER,
    modern=_modern,
)
