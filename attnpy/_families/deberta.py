"""DeBERTa: BERT whose scores depend on embeddings of distances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnpy._families import bert, rules
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    names_of,
    tokens_of,
    words_of,
)
from attnpy._families.fields import Field
from attnpy._quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attnpy._families.declaration import Values

_OWN = "attention.self."
_V1 = {
    f"{_OWN}in_proj.weight": "self_attention.W_q.T self_attention.W_k.T "
    "self_attention.W_v.T",
    f"{_OWN}q_bias": "self_attention.b_q",
    f"{_OWN}v_bias": "self_attention.b_v",
    f"{_OWN}pos_proj.weight": "self_attention.W_pk.T",
    f"{_OWN}pos_q_proj.weight": "self_attention.W_pq.T",
    f"{_OWN}pos_q_proj.bias": "self_attention.b_pq",
}
_V2 = {
    f"{_OWN}{theirs}.{kind}": f"self_attention.{own.format(letter)}"
    for theirs, letter in (
        ("query_proj", "q"),
        ("key_proj", "k"),
        ("value_proj", "v"),
        ("pos_query_proj", "pq"),
        ("pos_key_proj", "pk"),
    )
    for kind, own in (("weight", "W_{}.T"), ("bias", "b_{}"))
}
_SAME = {name: own for name, own in bert.LAYER.items() if not name.startswith(_OWN)}
_REST = {
    **bert.EMBEDDINGS,
    **bert.TYPES,
    "encoder.rel_embeddings.weight": "distance_embedding",
    "encoder.LayerNorm.weight": "distance_norm.weight",
    "encoder.LayerNorm.bias": "distance_norm.bias",
}
# Heads for masked words of today, and those of the authors, which fit as well.
_THEIRS = words_of(
    "lm_predictions.lm_head.dense",
    "lm_predictions.lm_head.LayerNorm",
    "lm_predictions.lm_head.bias",
)


def _names(layer: dict[str, str], by_head: tuple[str, ...]) -> Family:
    return Family(
        names_of("encoder.layer.{i} encoder.layers.{i}", layer | _SAME, _REST),
        prefixes=("deberta.", "model."),
        renamed=bert.NAMES.renamed,
        ignored=bert.BUFFERS,
        heads=(
            *("cls.*", "lm_predictions.*", "mask_predictions.*"),
            *("pooler.*", "classifier.*", "qa_outputs.*"),
        ),
        tied=bert.TIED,
        # Files have it even where it is not added to the embeddings.
        optional=("embeddings.position_embeddings.weight",),
        classifier=head_of("pooler.dense", "classifier"),
        token_classifier=tokens_of("classifier"),
        masked_words=bert.WORDS | _THEIRS,
        by_head=by_head,
    )


NAMES = _names(_V1, ("in_proj.weight",))
V2_NAMES = _names(_V2, ())


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with a list of products, where a file has one text."""
    config = dict(config)
    given = config.get("pos_att_type")
    if isinstance(given, str):
        config["pos_att_type"] = [x.strip() for x in given.lower().split("|")]
    return config


def _check(values: Values) -> None:
    """Refuse what no model here has."""
    terms = values["pos_att_type"] or []
    known = {"c2p", "p2c"} if len(set(terms)) == len(terms) else set()
    wanted = "c2p, p2c or both" if values["relative_attention"] else "nothing"
    if bool(terms) != values["relative_attention"] or not known.issuperset(terms):
        raise ValueError(
            f"config: expected pos_att_type to be {wanted} with relative_attention = "
            f"{str(values['relative_attention']).lower()}, got {quoted(terms)}"
        )
    for name in ("embedding_size", "pooler_hidden_size"):
        rules.check_same(values, "hidden_size", name)
    if values["relative_attention"] and "norm_rel_ebd" in values:
        rules.one_of(values, "norm_rel_ebd", "none", "layer_norm")


def _span(values: Values) -> int:
    """Return how many distances there are on each side."""
    given: int = values["max_relative_positions"]
    return given if given > 0 else int(values["max_position_embeddings"])


def _num_distances(values: Values) -> int | None:
    _check(values)
    if not values["relative_attention"]:
        return None
    buckets = values.get("position_buckets", -1)
    return 2 * (buckets if buckets > 0 else _span(values))


def _max_distance(values: Values) -> int | None:
    is_wanted = values["relative_attention"] and values.get("position_buckets", -1) > 0
    return _span(values) if is_wanted else None


def _terms(values: Values) -> tuple[str, ...]:
    return tuple(values["pos_att_type"] or ()) or ("c2p", "p2c")


_READ = bert.READ | {
    "type_vocab_size": Field("count", 0),
    "layer_norm_eps": Field("number", 1e-7),
    "position_biased_input": Field("flag", True),
    "relative_attention": Field("flag", False),
    "pos_att_type": Field("names", None),
    "max_relative_positions": Field("integer", -1),
    "embedding_size": Field("size", None),
    "pooler_hidden_size": Field("size", None),
    "pooler_hidden_act": Field("name", "gelu"),
}
_HARMLESS = bert.BERT_HARMLESS | {
    "dropout, for training": (
        *bert.BERT_HARMLESS["dropout, for training"],
        "cls_dropout",
        "pooler_dropout",
    ),
    "which of two names the head for masked words has": ("legacy",),
    "token ids that only tokenizers need, and the class": ("padding_idx",),
}
_COPIED = bert.COPIED | {
    "num_types": "type_vocab_size",
    "position_table": "position_biased_input",
}
_COMPUTED = bert.COMPUTED | {
    "num_distances": _num_distances,
    "max_distance": _max_distance,
    "distance_terms": _terms,
}
_HEADS = bert.HEADS | {
    "text": {"pooler_activation": rules.activation("pooler_hidden_act")}
}
DEBERTA = Declaration(
    model_type="deberta",
    title="DeBERTa",
    model="encoder",
    classes=("DebertaModel", "DebertaForSequenceClassification"),
    checkpoint="deberta",
    names=NAMES,
    read=_READ,
    neutral=bert.BERT_NEUTRAL | {"talking_head": (False,)},
    harmless=_HARMLESS,
    copied=_COPIED,
    fixed={"key_bias": False},
    computed=_COMPUTED
    | {"distance_weights": lambda values: values["relative_attention"]},
    heads=_HEADS,
    modern=_modern,
)

DEBERTA_V2 = Declaration(
    model_type="deberta-v2",
    title="DeBERTa-v2 and v3",
    model="encoder",
    classes=("DebertaV2Model", "DebertaV2ForSequenceClassification"),
    checkpoint="deberta-v2",
    names=V2_NAMES,
    read=_READ
    | {
        "position_buckets": Field("integer", -1),
        "share_att_key": Field("flag", False),
        "norm_rel_ebd": Field("name", "none"),
    },
    neutral=bert.BERT_NEUTRAL | {"conv_kernel_size": (0,), "attention_head_size": ()},
    harmless=_HARMLESS
    | {
        "of the convolution, which only conv_kernel_size adds": (
            "conv_act",
            "conv_dropout",
            "conv_groups",
        ),
        "of training, which the class does not read": ("z_steps",),
    },
    copied=_COPIED,
    fixed={},
    computed=_COMPUTED
    | {
        "distance_norm": lambda values: (
            values["relative_attention"] and values["norm_rel_ebd"] == "layer_norm"
        ),
        "distance_weights": lambda values: (
            values["relative_attention"] and not values["share_att_key"]
        ),
    },
    heads=_HEADS,
    modern=_modern,
)
