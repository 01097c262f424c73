"""ALBERT: BERT with one layer for all, and embeddings of a size of their own."""

from __future__ import annotations

from attnpy._families import bert
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    names_of,
    tokens_of,
    words_of,
)
from attnpy._families.fields import Field

# There is one group with one layer in it, whose parameters are the first layer's.
NAMES = Family(
    names_of(
        "encoder.albert_layer_groups.{i}.albert_layers.0 encoder.layers.{i}",
        {
            "attention.query.weight": "self_attention.W_q.T",
            "attention.query.bias": "self_attention.b_q",
            "attention.key.weight": "self_attention.W_k.T",
            "attention.key.bias": "self_attention.b_k",
            "attention.value.weight": "self_attention.W_v.T",
            "attention.value.bias": "self_attention.b_v",
            "attention.dense.weight": "self_attention.W_o.T",
            "attention.dense.bias": "self_attention.b_o",
            "attention.LayerNorm.weight": "norm_1.weight",
            "attention.LayerNorm.bias": "norm_1.bias",
            "ffn.weight": "feed_forward.W_1.T",
            "ffn.bias": "feed_forward.b_1",
            "ffn_output.weight": "feed_forward.W_2.T",
            "ffn_output.bias": "feed_forward.b_2",
            "full_layer_layer_norm.weight": "norm_2.weight",
            "full_layer_layer_norm.bias": "norm_2.bias",
        },
        {
            **bert.EMBEDDINGS,
            **bert.TYPES,
            "encoder.embedding_hidden_mapping_in.weight": "projection_weight.T",
            "encoder.embedding_hidden_mapping_in.bias": "projection_bias",
            "pooler.weight": "pooler_weight.T",
            "pooler.bias": "pooler_bias",
        },
    ),
    prefixes=("albert.", "model."),
    renamed=bert.NAMES.renamed,
    ignored=bert.BUFFERS,
    heads=("classifier.*", "predictions.*", "qa_outputs.*", "sop_classifier.*"),
    optional=("pooler.*",),
    tied={
        "predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    classifier=head_of("pooler", "classifier"),
    token_classifier=tokens_of("classifier"),
    masked_words=words_of(
        "predictions.dense",
        "predictions.LayerNorm",
        "predictions.bias",
        "predictions.decoder.bias",
    ),
)

ALBERT = Declaration(
    model_type="albert",
    title="ALBERT",
    model="encoder",
    classes=("AlbertModel", "AlbertForSequenceClassification"),
    checkpoint="albert",
    names=NAMES,
    read=bert.READ
    | {
        "type_vocab_size": Field("size", 2),
        "embedding_size": Field("size", 128),
        "hidden_act": Field("name", "gelu_new"),
    },
    neutral=bert.BERT_NEUTRAL | {"num_hidden_groups": (1,), "inner_group_num": (1,)},
    harmless=bert.BERT_HARMLESS
    | {
        "dropout, for training": (
            "attention_probs_dropout_prob",
            "classifier_dropout_prob",
            "hidden_dropout_prob",
        ),
        "of old versions, which the new ones do not read": (
            "down_scale_factor",
            "gap_size",
            "net_structure_type",
            "num_memory_blocks",
        ),
    },
    copied=bert.COPIED
    | {"num_types": "type_vocab_size", "embedding_dim": "embedding_size"},
    fixed={"shared": True},
    computed=bert.COMPUTED,
    heads=bert.HEADS,
)
