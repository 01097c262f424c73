"""jina-embeddings-v2 and jina-reranker-v1: BERT with ALiBi and networks with a gate.

Files of jinaai say that they are BERT, and name code, which Transformers has no class
of. `model_type` here is what GGUF files call it. jina-embeddings-v2-base-code has other
code: norms of queries and keys, and a third norm in each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnpy._families import bert, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy._typing import Activation

_LAYER = {
    name: own for name, own in bert.LAYER.items() if name.startswith("attention.")
}
_AROUND = {
    name: own
    for name, own in (bert.EMBEDDINGS | bert.TYPES | bert.POOLER).items()
    if "position" not in name
}
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
        _LAYER | NETWORK,
        _AROUND,
    ),
    heads=("classifier.*", *bert.NAMES.heads),
    optional=("pooler.dense.*",),
)

# The names of the code for code. Its first norm is that of the sum that attention
# returns, which is added to the tokens once more.
_NORMS = {
    "attention.self.layer_norm_q": "self_attention.q_norm",
    "attention.self.layer_norm_k": "self_attention.k_norm",
    "attention.output.LayerNorm": "self_attention.sum_norm",
    "layer_norm_1": "norm_1",
    "layer_norm_2": "norm_2",
}
NAMES_CODE = NAMES._replace(
    names=names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        _LAYER
        | {
            "mlp.up_gated_layer.weight": "feed_forward.W_1.T feed_forward.W_gate.T",
            "mlp.down_layer.weight": "feed_forward.W_2.T",
            "mlp.down_layer.bias": "feed_forward.b_2",
        }
        | {
            f"{name}.{x}": f"{own}.{x}"
            for name, own in _NORMS.items()
            for x in ("weight", "bias")
        },
        _AROUND,
    )
)

# Of the classes in the code, and of the code with norms of queries and keys.
CODE = "_bert.JinaBert"
OTHER_CODE = "jina-bert-v2-qk-post-norm--"
PLACE = "jinaai/jina-bert-implementation--"
GATED: dict[str, Activation] = {"geglu": "geglu", "reglu": "reglu"}


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that do not say where the code is, with that of positions."""
    new = rules.without_code(config, CODE)
    if new.get("position_embedding_type") is None:
        new["position_embedding_type"] = "absolute"  # what the code has without it
    return new


def _saved_for(place: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what makes the fields for that code, in its usual place."""
    heads = "MaskedLM", "SequenceClassification", "TokenClassification"
    model = f"{place}modeling_bert.JinaBert"
    places = {
        "AutoConfig": f"{place}configuration_bert.JinaBertConfig",
        "AutoModel": f"{model}Model",
        **{f"AutoModelFor{head}": f"{model}For{head}" for head in heads},
    }
    return lambda config: {**config, "model_type": "bert", "auto_map": places}


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
    saved=_saved_for(PLACE),
)

JINA_BERT_CODE = replace(
    JINA_BERT,
    model_type="jina-bert-v2-code",
    title="jina-embeddings-v2-base-code",
    checkpoint="jina-bert-v2-code",
    names=NAMES_CODE,
    fixed={**JINA_BERT.fixed, "qk_norm": "all heads", "attention_norm": True},
    code=OTHER_CODE,
    saved=_saved_for(f"jinaai/{OTHER_CODE}"),
)
