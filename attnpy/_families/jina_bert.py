"""jina-embeddings-v2 and jina-reranker-v1: BERT with ALiBi and networks with a gate.

Files of jinaai say that they are BERT, and name code, which Transformers has no class
of. `model_type` here is what GGUF files call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnpy._families import bert, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy._typing import Activation

NETWORK = {
    "mlp.gated_layers.weight": "feed_forward.W_gate.T feed_forward.W_1.T",
    "mlp.wo.weight": "feed_forward.W_2.T",
    "mlp.wo.bias": "feed_forward.b_2",
    "mlp.layernorm.weight": "norm_2.weight",
    "mlp.layernorm.bias": "norm_2.bias",
}
NAMES = bert.NAMES._replace(
    names=names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        {name: own for name, own in bert.LAYER.items() if name.startswith("attention.")}
        | NETWORK,
        {
            name: own
            for name, own in (bert.EMBEDDINGS | bert.TYPES | bert.POOLER).items()
            if "position" not in name
        },
    ),
    heads=("classifier.*", *bert.NAMES.heads),
    optional=("pooler.dense.*",),
)

# Of the classes in the code, and of the code with norms of queries and keys.
CODE = "_bert.JinaBert"
OTHER_CODE = "qk-post-norm"
PLACE = "jinaai/jina-bert-implementation--"
GATED: dict[str, Activation] = {"geglu": "geglu", "reglu": "reglu"}


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that do not say where the code is, with that of positions."""
    if OTHER_CODE in str(config.get("auto_map")):
        raise ValueError(
            "config: expected an auto_map to code of jina-bert-implementation, got "
            "jina-bert-v2-qk-post-norm, which has norms of queries and keys, and a "
            "third one in each layer"
        )
    new = rules.without_code(config, CODE)
    if new.get("position_embedding_type") is None:
        new["position_embedding_type"] = "absolute"  # what the code has without it
    return new


def _saved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for that code, which the folder names in its usual place."""
    heads = "MaskedLM", "SequenceClassification", "TokenClassification"
    model = f"{PLACE}modeling_bert.JinaBert"
    places = {
        "AutoConfig": f"{PLACE}configuration_bert.JinaBertConfig",
        "AutoModel": f"{model}Model",
        **{f"AutoModelFor{head}": f"{model}For{head}" for head in heads},
    }
    return {**config, "model_type": "bert", "auto_map": places}


def _activation(values: Values) -> Activation:
    return GATED[rules.one_of(values, "feed_forward_type", *GATED)]


JINA_BERT = Declaration(
    model_type="jina-bert-v2",
    title="jina-embeddings-v2",
    model="encoder",
    classes=("JinaBertModel", "JinaBertForSequenceClassification"),
    checkpoint="jina-bert-v2",
    names=NAMES,
    read=bert.READ
    | {"type_vocab_size": Field("size", 2), "feed_forward_type": Field("name")},
    neutral=bert.BERT_NEUTRAL
    | {"emb_pooler": ("mean",), "position_embedding_type": ("alibi",)},
    harmless=bert.BERT_HARMLESS
    | {"the length of texts, for the tokenizer": ("model_max_length",)},
    copied=bert.COPIED | {"num_types": "type_vocab_size"},
    fixed={"alibi": True, "hidden_bias": False},
    computed={"activation": _activation},
    heads=bert.HEADS,
    code=CODE,
    modern=_modern,
    saved=_saved,
)
