"""MPNet: BERT with one table of biases by distance for all layers."""

from __future__ import annotations

from attnpy._families import bert
from attnpy._families.declaration import Declaration, Family, names_of, tokens_of
from attnpy._families.roberta import HEAD, HEADS, TIED, WORDS

NAMES = Family(
    names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        {
            "attention.attn.q.weight": "self_attention.W_q.T",
            "attention.attn.q.bias": "self_attention.b_q",
            "attention.attn.k.weight": "self_attention.W_k.T",
            "attention.attn.k.bias": "self_attention.b_k",
            "attention.attn.v.weight": "self_attention.W_v.T",
            "attention.attn.v.bias": "self_attention.b_v",
            "attention.attn.o.weight": "self_attention.W_o.T",
            "attention.attn.o.bias": "self_attention.b_o",
            "attention.LayerNorm.weight": "norm_1.weight",
            "attention.LayerNorm.bias": "norm_1.bias",
            "intermediate.dense.weight": "feed_forward.W_1.T",
            "intermediate.dense.bias": "feed_forward.b_1",
            "output.dense.weight": "feed_forward.W_2.T",
            "output.dense.bias": "feed_forward.b_2",
            "output.LayerNorm.weight": "norm_2.weight",
            "output.LayerNorm.bias": "norm_2.bias",
        },
        {
            **bert.EMBEDDINGS,
            **bert.POOLER,
            "encoder.relative_attention_bias.weight": "relative_bias",
        },
    ),
    prefixes=("mpnet.", "model."),
    renamed=bert.NAMES.renamed,
    ignored=bert.BUFFERS,
    heads=HEADS,
    tied=TIED,
    optional=("pooler.dense.*",),
    classifier=HEAD,
    token_classifier=tokens_of("classifier"),
    masked_words=WORDS,
)

MPNET = Declaration(
    model_type="mpnet",
    title="MPNet",
    model="encoder",
    classes=("MPNetModel", "MPNetForSequenceClassification"),
    checkpoint="mpnet",
    names=NAMES,
    read=bert.READ,
    neutral=bert.BERT_NEUTRAL | {"relative_attention_num_buckets": (32,)},
    harmless=bert.BERT_HARMLESS,
    copied=bert.COPIED,
    # The class has 1 for the token without a position, and 32 buckets, whatever a file
    # says.
    fixed={"num_types": 0, "padding_id": 1, "num_buckets": 32},
    computed=bert.COMPUTED,
)
