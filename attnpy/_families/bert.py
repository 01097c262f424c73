"""BERT and what is built as it, MiniLM among them."""

from __future__ import annotations

from attnpy._families import rules
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    names_of,
    tokens_of,
    words_of,
)
from attnpy._families.fields import HARMLESS, NEUTRAL, NO_END, Field

LAYER = {
    "attention.self.query.weight": "self_attention.W_q.T",
    "attention.self.query.bias": "self_attention.b_q",
    "attention.self.key.weight": "self_attention.W_k.T",
    "attention.self.key.bias": "self_attention.b_k",
    "attention.self.value.weight": "self_attention.W_v.T",
    "attention.self.value.bias": "self_attention.b_v",
    "attention.output.dense.weight": "self_attention.W_o.T",
    "attention.output.dense.bias": "self_attention.b_o",
    "attention.output.LayerNorm.weight": "norm_1.weight",
    "attention.output.LayerNorm.bias": "norm_1.bias",
    "intermediate.dense.weight": "feed_forward.W_1.T",
    "intermediate.dense.bias": "feed_forward.b_1",
    "output.dense.weight": "feed_forward.W_2.T",
    "output.dense.bias": "feed_forward.b_2",
    "output.LayerNorm.weight": "norm_2.weight",
    "output.LayerNorm.bias": "norm_2.bias",
}
EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "token_embedding",
    "embeddings.position_embeddings.weight": "position_embedding",
    "embeddings.LayerNorm.weight": "norm.weight",
    "embeddings.LayerNorm.bias": "norm.bias",
}
TYPES = {"embeddings.token_type_embeddings.weight": "segment_embedding"}
POOLER = {
    "pooler.dense.weight": "pooler_weight.T",
    "pooler.dense.bias": "pooler_bias",
}
WORDS = words_of(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.bias",
    "cls.predictions.decoder.bias",
)
TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")

# Where the model has no pooler or classifier, these are left alone.
NAMES = Family(
    names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        LAYER,
        {
            **EMBEDDINGS,
            **TYPES,
            **POOLER,
        },
    ),
    prefixes=("bert.", "model."),
    renamed=(
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("LayerNorm.beta", "LayerNorm.bias"),
    ),
    ignored=BUFFERS,
    heads=("cls.*", "qa_outputs.*"),
    tied=TIED,
    optional=("pooler.dense.*", "classifier.*"),
    classifier=head_of("pooler.dense", "classifier"),
    token_classifier=tokens_of("classifier"),
    masked_words=WORDS,
)

READ = {
    "num_hidden_layers": Field("layers"),
    "hidden_size": Field("size"),
    "num_attention_heads": Field("size"),
    "intermediate_size": Field("size"),
    "vocab_size": Field("size"),
    "max_position_embeddings": Field("size", 512),
    "hidden_act": Field("name", "gelu"),
    "layer_norm_eps": Field("number", 1e-12),
}
BERT_NEUTRAL: dict[str, tuple[object, ...]] = NEUTRAL | {
    "position_embedding_type": ("absolute",),
    "is_causal": (False,),
    "is_decoder": (False,),
}
BERT_HARMLESS = (
    HARMLESS
    | NO_END
    | {
        "dropout, for training": (
            "attention_probs_dropout_prob",
            "classifier_dropout",
            "hidden_dropout_prob",
        ),
        "settings of heads that attnpy does not have": ("tie_word_embeddings",),
    }
)

COPIED = {
    "num_layers": "num_hidden_layers",
    "embed_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "eps": "layer_norm_eps",
}
COMPUTED = {"activation": rules.activation("hidden_act")}
# The head for masked words has the activation of the layers.
HEADS = {"word": {"head_activation": rules.activation("hidden_act")}}

BERT = Declaration(
    model_type="bert",
    title="BERT",
    model="encoder",
    classes=("BertModel", "BertForSequenceClassification"),
    checkpoint="bert",
    names=NAMES,
    read=READ | {"type_vocab_size": Field("size", 2)},
    neutral=BERT_NEUTRAL | {"directionality": ("bidi",)},
    harmless=BERT_HARMLESS
    | {
        "settings of pooler and heads that the classes ignore": (
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        ),
    },
    copied=COPIED | {"num_types": "type_vocab_size"},
    fixed={},
    computed=COMPUTED,
    heads=HEADS,
)
