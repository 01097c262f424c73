"""GTE: BERT with rotary positions and networks with a gate.

Files of Alibaba-NLP have the model_type "new", and the fields and names of the code
beside them, which Transformers reads today as "gte". Those of Snowflake have this name
beside a copy of that code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnpy._families import bert, nomic_bert, rules
from attnpy._families.declaration import (
    Declaration,
    Family,
    head_of,
    names_of,
    tokens_of,
    words_of,
)
from attnpy._families.fields import Field, is_number
from attnpy._quoting import quoted
from attnpy.positions import Rotary

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

NAMES = Family(
    names_of("layers.{i} encoder.layers.{i}", nomic_bert.LAYER, nomic_bert.EMBEDDINGS)
    | names_of(
        "encoder.layer.{i} encoder.layers.{i}",
        {
            "attention.qkv_proj.weight": "self_attention.W_q.T self_attention.W_k.T "
            "self_attention.W_v.T",
            "attention.qkv_proj.bias": "self_attention.b_q self_attention.b_k "
            "self_attention.b_v",
            "attention.o_proj.weight": "self_attention.W_o.T",
            "attention.o_proj.bias": "self_attention.b_o",
            "mlp.up_gate_proj.weight": "feed_forward.W_1.T feed_forward.W_gate.T",
            "mlp.down_proj.weight": "feed_forward.W_2.T",
            "mlp.down_proj.bias": "feed_forward.b_2",
            "attn_ln.weight": "norm_1.weight",
            "attn_ln.bias": "norm_1.bias",
            "mlp_ln.weight": "norm_2.weight",
            "mlp_ln.bias": "norm_2.bias",
        },
        {},
    ),
    prefixes=("gte.", "new.", "model."),
    renamed=(
        *bert.NAMES.renamed,
        ("lm_head.norm.weight", "lm_head.layer_norm.weight"),
        ("lm_head.norm.bias", "lm_head.layer_norm.bias"),
    ),
    ignored=(*bert.BUFFERS, "*rotary_emb.inv_freq"),
    heads=("classifier.*", "lm_head.*", "qa_outputs.*"),
    tied={"lm_head.decoder.weight": "embeddings.word_embeddings.weight"},
    optional=("pooler.dense.*",),
    classifier=head_of("pooler.dense", "classifier"),
    token_classifier=tokens_of("classifier"),
    masked_words=words_of(
        "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.bias"
    ),
)

GTE = Declaration(
    model_type="gte",
    title="GTE",
    model="encoder",
    classes=("GteModel", "GteForSequenceClassification"),
    checkpoint="gte",
    names=NAMES,
    read={name: field for name, field in nomic_bert.READ.items() if name != "head_dim"}
    | {
        "max_position_embeddings": Field("size", 8192),
        "type_vocab_size": Field("count", 1),
        "hidden_act": Field("name", "gelu"),
    },
    neutral=bert.BERT_NEUTRAL,
    harmless=bert.BERT_HARMLESS,
    copied=bert.COPIED | {"num_types": "type_vocab_size"},
    fixed={"hidden_bias": False},
    computed={
        "activation": rules.gated("hidden_act"),
        "rotary": lambda values: rules.rotary(values, 160_000.0),
    },
)


def _scaling(values: Values) -> tuple[float, float]:
    """Return the base, and by what all frequencies are divided: NTK's, at any length.

    From the code beside the files: the base grows by the factor, and the last
    frequency becomes the first one's at the factor.
    """
    base, given = values["rope_theta"], values["rope_scaling"]
    if given is None:
        return base, 1.0
    factor = given.get("factor")
    if not is_number(factor) or given != {"type": "ntk", "factor": factor}:
        raise ValueError(
            'config: expected rope_scaling with the type "ntk" and a factor alone, got '
            f"{quoted(given)}"
        )
    return base * factor, factor ** (2 / rules.head_dim(values))


def _rotary(values: Values) -> Rotary:
    """Return the positions."""
    base, divisor = _scaling(values)
    scaling = {"rope_type": "linear", "factor": divisor} if divisor != 1 else None
    return Rotary(rules.head_dim(values), base=base, scaling=scaling)


# Of the copy.
CODE = "configuration_hf_alibaba_nlp_gte.Gte"


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that do not say where the code is."""
    marks = "configuration.New", "modeling.New", CODE, "modeling_hf_alibaba_nlp_gte.Gte"
    return rules.without_code(config, *marks)


# Fields of the code that today's class does not have.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "layer_norm_type": ("layer_norm",),
    "logn_attention_clip1": (False,),
    "logn_attention_scale": (False,),
    "pack_qkv": (True,),
    "position_embedding_type": ("rope",),
}
_HARMLESS = {
    "how it is computed, not what": ("unpad_inputs", "use_memory_efficient_attention"),
    "sizes to which vectors may be cut": ("matryoshka_dimensions",),
}


def _saved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of today's class."""
    gone = {name for names in _HARMLESS.values() for name in names}
    gone |= {"rope_theta", "rope_scaling", *_NEUTRAL}
    values = {"rope_theta": 10_000.0, "rope_scaling": None}
    values |= {name: x for name, x in config.items() if x is not None}
    base, divisor = _scaling(values)
    new = {name: x for name, x in config.items() if name not in gone}
    turns: dict[str, object] = {"rope_type": "default", "rope_theta": base}
    if divisor != 1:
        turns |= {"rope_type": "linear", "factor": divisor}
    return new | {"model_type": "gte", "rope_parameters": turns}


GTE_NEW = replace(
    GTE,
    model_type="new",
    title="GTE, as Alibaba-NLP has it",
    read={name: field for name, field in GTE.read.items() if name != "rope_parameters"}
    | {
        "max_position_embeddings": Field("size", 2048),
        "rope_theta": Field("number", 10_000.0),
    },
    neutral=bert.BERT_NEUTRAL | _NEUTRAL,
    harmless=bert.BERT_HARMLESS | _HARMLESS,
    computed={**GTE.computed, "rotary": _rotary},
    code=CODE,
    modern=_modern,
    saved=_saved,
)
