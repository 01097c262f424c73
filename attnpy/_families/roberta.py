"""RoBERTa, XLM-RoBERTa, its XL and CamemBERT: BERT, with other positions.

The token whose number is pad_token_id has no position of its own; the others' begin
after it. The classifier has a matrix of its own in place of the pooler's.
"""

from __future__ import annotations

from dataclasses import replace

from attnpy._families import bert
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    names_of,
    tokens_of,
    words_of,
)
from attnpy._families.fields import HARMLESS, Field

HEAD = head_of("classifier.dense", "classifier.out_proj")
HEADS = ("classifier.*", "lm_head.*", "qa_outputs.*")
WORDS = words_of(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.bias"
)
TIED = {
    "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
NAMES = Family(
    names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        bert.LAYER,
        {**bert.EMBEDDINGS, **bert.TYPES, **bert.POOLER},
    ),
    prefixes=("roberta.", "model."),
    ignored=bert.BUFFERS,
    heads=HEADS,
    tied=TIED,
    optional=("pooler.dense.*",),
    classifier=HEAD,
    token_classifier=tokens_of("classifier"),
    masked_words=WORDS,
)

_NUMBERS = "token ids that only tokenizers need"
_WITHOUT_PAD = {
    _NUMBERS: tuple(name for name in HARMLESS[_NUMBERS] if name != "pad_token_id")
}

ROBERTA = Declaration(
    model_type="roberta",
    title="RoBERTa",
    model="encoder",
    classes=("RobertaModel", "RobertaForSequenceClassification"),
    checkpoint="roberta",
    names=NAMES,
    read=bert.READ
    | {"type_vocab_size": Field("size", 2), "pad_token_id": Field("count", 1)},
    neutral=bert.BERT_NEUTRAL,
    harmless=bert.BERT_HARMLESS | _WITHOUT_PAD,
    copied=bert.COPIED | {"num_types": "type_vocab_size", "padding_id": "pad_token_id"},
    fixed={},
    computed=bert.COMPUTED,
)

XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    title="XLM-RoBERTa",
    classes=("XLMRobertaModel", "XLMRobertaForSequenceClassification"),
)

# Of French; its folders have RoBERTa's names.
CAMEMBERT = replace(
    ROBERTA,
    model_type="camembert",
    title="CamemBERT",
    classes=("CamembertModel", "CamembertForSequenceClassification"),
)

# Norms before attention and network, and one after the last layer.
_NORMS = {"attention.self_attn_layer_norm": "norm_1", "LayerNorm": "norm_2"}
_BOTH = "weight", "bias"
NAMES_XL = NAMES._replace(
    names=names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        {name: own for name, own in bert.LAYER.items() if "LayerNorm" not in name}
        | {f"{name}.{x}": f"{own}.{x}" for name, own in _NORMS.items() for x in _BOTH},
        {
            name: own
            for name, own in (bert.EMBEDDINGS | bert.TYPES | bert.POOLER).items()
            if "LayerNorm" not in name
        }
        | {f"encoder.LayerNorm.{x}": f"encoder.norm.{x}" for x in _BOTH},
    )
)

XLM_ROBERTA_XL = replace(
    ROBERTA,
    model_type="xlm-roberta-xl",
    title="XLM-RoBERTa-XL",
    classes=("XLMRobertaXLModel", "XLMRobertaXLForSequenceClassification"),
    checkpoint="xlm-roberta-xl",
    names=NAMES_XL,
    read={
        **ROBERTA.read,
        "type_vocab_size": Field("size", 1),
        "max_position_embeddings": Field("size", 514),
        "layer_norm_eps": Field("number", 1e-5),
    },
    fixed={"embedding_norm": False, "norm_first": True},
)
