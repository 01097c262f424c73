"""ELECTRA: BERT whose embeddings may be smaller than its layers, without a pooler."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

NAMES = Family(
    names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        bert.LAYER,
        {
            **bert.EMBEDDINGS,
            **bert.TYPES,
            "embeddings_project.weight": "projection_weight.T",
            "embeddings_project.bias": "projection_bias",
        },
    ),
    prefixes=("electra.", "model."),
    renamed=bert.NAMES.renamed,
    ignored=bert.BUFFERS,
    heads=(
        "classifier.*",
        "discriminator_predictions.*",
        "generator_lm_head.*",
        "generator_predictions.*",
        "qa_outputs.*",
        "sequence_summary.*",
    ),
    tied={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
    classifier=head_of("classifier.dense", "classifier.out_proj"),
    token_classifier=tokens_of("classifier"),
    masked_words=words_of(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
    ),
)


def _embedding_dim(values: Values) -> int | None:
    """Return the size of embeddings; there is no projection where it is the layers'."""
    size: int = values["embedding_size"]
    return None if size == values["hidden_size"] else size


ELECTRA = Declaration(
    model_type="electra",
    title="ELECTRA",
    model="encoder",
    classes=("ElectraModel", "ElectraForSequenceClassification"),
    checkpoint="electra",
    names=NAMES,
    read=bert.READ
    | {"type_vocab_size": Field("size", 2), "embedding_size": Field("size", 128)},
    neutral=bert.BERT_NEUTRAL,
    harmless=bert.BERT_HARMLESS
    | {
        "of the head of choices, which is not here": (
            "summary_activation",
            "summary_last_dropout",
            "summary_type",
            "summary_use_proj",
        ),
    },
    copied=bert.COPIED | {"num_types": "type_vocab_size"},
    fixed={},
    computed=bert.COMPUTED | {"embedding_dim": _embedding_dim},
    # "Although BERT uses tanh here", says their code.
    head_activation="gelu",
)
