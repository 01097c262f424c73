"""ESM-2 and ESM-1b, of proteins: BERT with norms first, and masked tokens left out.

Frequencies of rotary positions are in the files, in which some are rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import bert, rules
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    names_of,
    tokens_of,
    words_of,
)
from attnpy._families.fields import Field, without
from attnpy.positions import Rotary

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

_NORMS = {"attention.LayerNorm": "norm_1", "LayerNorm": "norm_2"}
_AROUND = {
    "embeddings.layer_norm": "norm",
    "encoder.emb_layer_norm_after": "encoder.norm",
}
_BOTH = "weight", "bias"
NAMES = Family(
    names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        {name: own for name, own in bert.LAYER.items() if "LayerNorm" not in name}
        | {f"{name}.{x}": f"{own}.{x}" for name, own in _NORMS.items() for x in _BOTH},
        {
            name: own
            for name, own in (bert.EMBEDDINGS | bert.POOLER).items()
            if "LayerNorm" not in name
        }
        | {f"{name}.{x}": f"{own}.{x}" for name, own in _AROUND.items() for x in _BOTH},
    ),
    prefixes=("esm.",),
    renamed=bert.NAMES.renamed,
    ignored=(*bert.BUFFERS, "*rotary_embeddings.inv_freq"),
    heads=("classifier.*", "lm_head.*"),
    tied={"lm_head.decoder.weight": "embeddings.word_embeddings.weight"},
    # Contacts are scored by weights of attention. Files of models with rotary positions
    # may have a table all the same.
    optional=("pooler.dense.*", "contact_head.*", "embeddings.position_embeddings.*"),
    classifier=head_of("classifier.dense", "classifier.out_proj"),
    token_classifier=tokens_of("classifier"),
    masked_words=words_of("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    frequencies="*rotary_embeddings.inv_freq",
)


def _is_rotary(values: Values) -> bool:
    name = rules.one_of(values, "position_embedding_type", "absolute", "rotary")
    return name == "rotary"


def _rotary(values: Values) -> Rotary | None:
    """Return the positions, where there is no table of them."""
    if not _is_rotary(values):
        return None
    return Rotary(rules.head_dim(values), base=values["rope_theta"])


def _masked_token(values: Values) -> int | None:
    """Return the token whose embeddings are left out, if they are."""
    token: int | None = values["mask_token_id"]
    if not values["token_dropout"]:
        return None
    if token is None:
        raise ValueError(
            "config: expected a mask_token_id with token_dropout, got none"
        )
    return token


READ = {name: field for name, field in bert.READ.items() if name != "hidden_act"} | {
    "max_position_embeddings": Field("size", 1026),
    "position_embedding_type": Field("name", "absolute"),
    "pad_token_id": Field("count", None),
    "mask_token_id": Field("count", None),
    "token_dropout": Field("flag", False),
    "emb_layer_norm_before": Field("flag", False),
    "rope_theta": Field("number", 10_000.0),
}
ESM = Declaration(
    model_type="esm",
    title="ESM-2, ESM-1b",
    model="encoder",
    classes=("EsmModel", "EsmForSequenceClassification"),
    checkpoint="esm",
    names=NAMES,
    read=READ,
    neutral={name: x for name, x in bert.BERT_NEUTRAL.items() if name not in READ}
    | {
        "esmfold_config": (),
        "hidden_act": ("gelu",),
        "is_folding_model": (False,),
        "vocab_list": (),
    },
    harmless=without(bert.BERT_HARMLESS, READ),
    copied=bert.COPIED | {"embedding_norm": "emb_layer_norm_before"},
    fixed={"num_types": 0, "norm_first": True},
    computed={
        "rotary": _rotary,
        "padding_id": lambda values: (
            None if _is_rotary(values) else values["pad_token_id"]
        ),
        "masked_token": _masked_token,
    },
)
