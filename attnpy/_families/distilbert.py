"""DistilBERT: BERT without types of tokens and without a pooler."""

from __future__ import annotations

from attnpy._families import bert, rules
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    names_of,
    tokens_of,
    words_of,
)
from attnpy._families.fields import HARMLESS, NO_END, Field

NAMES = Family(
    names_of(
        "transformer.layer.{i} encoder.layers.{i}",
        {
            "attention.q_lin.weight": "self_attention.W_q.T",
            "attention.q_lin.bias": "self_attention.b_q",
            "attention.k_lin.weight": "self_attention.W_k.T",
            "attention.k_lin.bias": "self_attention.b_k",
            "attention.v_lin.weight": "self_attention.W_v.T",
            "attention.v_lin.bias": "self_attention.b_v",
            "attention.out_lin.weight": "self_attention.W_o.T",
            "attention.out_lin.bias": "self_attention.b_o",
            "sa_layer_norm.weight": "norm_1.weight",
            "sa_layer_norm.bias": "norm_1.bias",
            "ffn.lin1.weight": "feed_forward.W_1.T",
            "ffn.lin1.bias": "feed_forward.b_1",
            "ffn.lin2.weight": "feed_forward.W_2.T",
            "ffn.lin2.bias": "feed_forward.b_2",
            "output_layer_norm.weight": "norm_2.weight",
            "output_layer_norm.bias": "norm_2.bias",
        },
        bert.EMBEDDINGS,
    ),
    prefixes=("distilbert.", "model."),
    renamed=bert.NAMES.renamed,
    ignored=bert.BUFFERS,
    heads=("classifier.*", "pre_classifier.*", "qa_outputs.*", "vocab_*"),
    tied={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    classifier=head_of("pre_classifier", "classifier"),
    token_classifier=tokens_of("classifier"),
    masked_words=words_of(
        "vocab_transform", "vocab_layer_norm", "vocab_projector.bias"
    ),
)

DISTILBERT = Declaration(
    model_type="distilbert",
    title="DistilBERT",
    model="encoder",
    classes=("DistilBertModel", "DistilBertForSequenceClassification"),
    checkpoint="distilbert",
    names=NAMES,
    read={
        "n_layers": Field("layers"),
        "dim": Field("size"),
        "n_heads": Field("size"),
        "hidden_dim": Field("size"),
        "vocab_size": Field("size"),
        "max_position_embeddings": Field("size", 512),
        "activation": Field("name", "gelu"),
    },
    neutral=bert.BERT_NEUTRAL,
    harmless=HARMLESS
    | NO_END
    | {
        "dropout, for training": ("dropout", "qa_dropout", "seq_classif_dropout"),
        "how the position table was initialized: the files have it": (
            "sinusoidal_pos_embds",
        ),
        "settings of heads that attnpy does not have": (
            "tie_weights_",
            "tie_word_embeddings",
        ),
    },
    copied={
        "num_layers": "n_layers",
        "embed_dim": "dim",
        "num_heads": "n_heads",
        "hidden_dim": "hidden_dim",
        "vocab_size": "vocab_size",
        "max_length": "max_position_embeddings",
    },
    # The class has this number, whatever a file says.
    fixed={"num_types": 0, "eps": 1e-12},
    computed={"activation": rules.activation("activation")},
    head_activation="relu",
    heads={"word": {"head_activation": rules.activation("activation")}},
)
