"""RoBERTa and its kin, such as XLM-RoBERTa and CamemBERT: BERT, with other positions.

The token whose number is pad_token_id has no position of its own; the others' begin
after it. The classifier has a matrix of its own in place of the pooler's.

Files of jinaai are XLM-RoBERTa under the names and fields of the code beside them. That
of jina-reranker-v2 has these positions; jina-embeddings-v3 is another family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
_BOTH = "weight", "bias"
# Names of the code beside files of jinaai.
CODE_LAYER = {
    "mixer.Wqkv.weight": "self_attention.W_q.T self_attention.W_k.T "
    "self_attention.W_v.T",
    "mixer.Wqkv.bias": "self_attention.b_q self_attention.b_k self_attention.b_v",
    "mixer.out_proj.weight": "self_attention.W_o.T",
    "mixer.out_proj.bias": "self_attention.b_o",
    **{
        f"mlp.fc{n}.{x}": f"feed_forward.{own}"
        for n in (1, 2)
        for x, own in (("weight", f"W_{n}.T"), ("bias", f"b_{n}"))
    },
    **{f"norm{n}.{x}": f"norm_{n}.{x}" for n in (1, 2) for x in _BOTH},
}
CODE_NAMES = names_of(
    "encoder.layers.{i} encoder.layers.{i}",
    CODE_LAYER,
    {f"emb_ln.{x}": f"norm.{x}" for x in _BOTH},
)
NAMES = Family(
    names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        bert.LAYER,
        {**bert.EMBEDDINGS, **bert.TYPES, **bert.POOLER},
    )
    | CODE_NAMES,
    prefixes=("roberta.", "model."),
    renamed=bert.NAMES.renamed,
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

CODE = "configuration_xlm_roberta.XLMRobertaFlashConfig"
CODE_NEUTRAL: dict[str, tuple[object, ...]] = {"emb_pooler": (), "truncate_dim": ()}
CODE_HARMLESS = {
    "sizes to which vectors may be cut": ("matryoshka_dimensions",),
    "of the code beside older files: how it is computed, not what": (
        "use_flash_attn",
        "use_reentrant",
    ),
    "adapters that a folder without lora_adaptations does not have": (
        "load_trained_adapters",
        "lora_alpha",
        "lora_dropout_p",
        "lora_main_params_trainable",
        "lora_rank",
    ),
}


def _has_table(config: Mapping[str, Any]) -> bool:
    """Tell whether the code computes with a table of positions.

    Without the field the code that several folders share turns by positions, and that
    in jina-reranker-v2 has a table.
    """
    positions = config.get("position_embedding_type")
    if positions is None:
        return "xlm-roberta-flash-implementation" not in str(config["auto_map"])
    return bool(positions == "absolute")


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields whose meaning is that of Transformers' class."""
    return rules.without_code(config, CODE, "modeling_xlm_roberta.XLMRoberta")


def _saved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of Transformers' class."""
    gone = {name for names in CODE_HARMLESS.values() for name in names}
    gone |= {*CODE_NEUTRAL}
    return {name: x for name, x in config.items() if name not in gone}


XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    title="XLM-RoBERTa",
    classes=("XLMRobertaModel", "XLMRobertaForSequenceClassification"),
    neutral=bert.BERT_NEUTRAL | CODE_NEUTRAL,
    harmless=bert.BERT_HARMLESS | _WITHOUT_PAD | CODE_HARMLESS,
    code=CODE,
    has_code=_has_table,
    modern=_modern,
    saved=_saved,
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

# data2vec's texts: RoBERTa's layers under a prefix of their own.
DATA2VEC_TEXT = replace(
    ROBERTA,
    model_type="data2vec-text",
    title="data2vec-text",
    classes=("Data2VecTextModel", "Data2VecTextForSequenceClassification"),
    checkpoint="data2vec-text",
    names=NAMES._replace(prefixes=("data2vec_text.",)),
)

# RoBERTa with norms before attention and network, and one after the last layer.
_NORMS_BEFORE = {
    "attention.LayerNorm": "norm_1",
    "intermediate.LayerNorm": "norm_2",
}
ROBERTA_PRELAYERNORM = replace(
    ROBERTA,
    model_type="roberta-prelayernorm",
    title="RoBERTa-PreLayerNorm",
    classes=(
        "RobertaPreLayerNormModel",
        "RobertaPreLayerNormForSequenceClassification",
    ),
    checkpoint="roberta-prelayernorm",
    names=NAMES._replace(
        names=names_of(
            "encoder.layer.{i} encoder.layers.{i}",
            {name: own for name, own in bert.LAYER.items() if "LayerNorm" not in name}
            | {
                f"{name}.{x}": f"{own}.{x}"
                for name, own in _NORMS_BEFORE.items()
                for x in _BOTH
            },
            {**bert.EMBEDDINGS, **bert.TYPES, **bert.POOLER}
            | {f"LayerNorm.{x}": f"encoder.norm.{x}" for x in _BOTH},
        ),
        prefixes=("roberta_prelayernorm.",),
    ),
    fixed={"norm_first": True},
)
