"""jina-embeddings-v3: XLM-RoBERTa with rotary positions.

The files of jinaai have the fields and names of the code beside them, which
Transformers reads today as another class: fields and names here are that class's. Their
adapters are added to the weights as these are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnpy._families import bert, nomic_bert, roberta, rules
from attnpy._families.declaration import Declaration, Family, names_of
from attnpy._families.fields import Field

LAYER = {
    name: own for name, own in nomic_bert.LAYER.items() if not name.startswith("mlp.")
} | {name: own for name, own in roberta.CODE_LAYER.items() if name.startswith("mlp.")}
NAMES = Family(
    names_of("layers.{i} encoder.layers.{i}", LAYER, nomic_bert.EMBEDDINGS)
    | roberta.CODE_NAMES,
    prefixes=("roberta.", "model."),
    renamed=bert.NAMES.renamed,
    ignored=(*bert.BUFFERS, "*rotary_emb.inv_freq"),
    heads=roberta.HEADS,
    tied=roberta.TIED,
    optional=("pooler.dense.*",),
    classifier=roberta.HEAD,
    token_classifier=roberta.NAMES.token_classifier,
    masked_words=roberta.WORDS,
)

# Of adapters, which `checkpoints.adapters` reads.
ADAPTERS = "lora_adaptations", "lora_alpha", "lora_rank"
# Fields of the code that today's class does not have.
GONE = {
    "adapters: from_pretrained takes a task": (
        *ADAPTERS,
        "load_trained_adapters",
        "lora_dropout_p",
        "lora_main_params_trainable",
    ),
    "prompts of tasks, which sentence-transformers has in another file": (
        "task_instructions",
    ),
    **{
        reason: names
        for reason, names in roberta.CODE_HARMLESS.items()
        if "lora_rank" not in names
    },
}


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields whose meaning is that of today's class."""
    marks = (
        roberta.CODE,
        "modeling_lora.XLMRobertaLoRA",
        "modeling_xlm_roberta.XLMRoberta",
    )
    new = rules.without_code(config, *marks)
    is_code = config.get("auto_map") is not None
    if is_code and config.get("rotary_emb_base") is None:
        new["rope_theta"] = 10_000.0  # what the code has without the field
    return new


def _saved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of today's class."""
    gone = {name for names in GONE.values() for name in names}
    gone |= {"position_embedding_type", "rope_theta"}
    new = {name: x for name, x in config.items() if name not in gone}
    if config.get("rope_theta") is not None:
        turns = {"rope_type": "default", "rope_theta": config["rope_theta"]}
        new["rope_parameters"] = {**(config.get("rope_parameters") or {}), **turns}
    return new


JINA_V3 = Declaration(
    model_type="jina_embeddings_v3",
    title="jina-embeddings-v3",
    model="encoder",
    classes=("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForSequenceClassification"),
    checkpoint="jina_embeddings_v3",
    names=NAMES,
    read={name: x for name, x in nomic_bert.READ.items() if name != "head_dim"}
    | {
        "max_position_embeddings": Field("size", 8194),
        "type_vocab_size": Field("size", 1),
        "hidden_act": Field("name", "gelu"),
        "layer_norm_eps": Field("number", 1e-5),
    },
    neutral=bert.BERT_NEUTRAL
    | roberta.CODE_NEUTRAL
    | {"position_embedding_type": ("rotary",)},
    harmless=bert.BERT_HARMLESS | GONE,
    copied=bert.COPIED | {"num_types": "type_vocab_size"},
    fixed={},
    computed={
        "activation": rules.activation("hidden_act"),
        "rotary": lambda values: rules.rotary(values, 20_000.0),
    },
    older={"rotary_emb_base": "rope_theta"},
    code=roberta.CODE,
    modern=_modern,
    saved=_saved,
)
