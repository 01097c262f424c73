"""Configurations of Hugging Face: each field is honoured, harmless, or refused by name.

The fields of their classes are in support/hf_fields.json, and those of the package that
is installed are compared where there is one: `pip install transformers`, alone.
"""

import inspect
import json
import math
from pathlib import Path

import numpy as np
import pytest
from support import embedding_gemma, encoder_decoders, families, fields, pictures

from attnpy import _families, checkpoints
from attnpy._families import rules
from attnpy._families.fields import REQUIRED
from attnpy._typing import DecoderOptions
from attnpy.models import (
    BertEncoder,
    CausalDecoder,
    EncoderDecoder,
    ImageEncoder,
    ImageTextModel,
    _hf_config,
)
from attnpy.positions import Rotary

pytestmark = pytest.mark.quick

ENCODER_DECODERS = encoder_decoders.ENCODER_DECODERS
BASES = {**families.ENCODERS, **families.DECODERS, **ENCODER_DECODERS, **pictures.ALL}
BASES["t5_encoder"] = encoder_decoders.T5_ENCODER  # which has no heads
BASES["embedding_gemma2_text"] = embedding_gemma.CONFIG  # which has none, either
FAMILIES = pytest.mark.parametrize("kind", BASES)
LISTS = json.loads(
    (Path(__file__).parent / "support" / "hf_fields.json").read_text("utf-8")
)
VERSIONS = [version for version in LISTS if version != "source"]
FULL, SLIDING = "full_attention", "sliding_attention"
YARN = {"rope_type": "yarn", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LENGTH = "original_max_position_embeddings"


def arguments(config):
    """What a model is made of, with the positions as numbers."""
    kind = config["model_type"]
    encoder, both = kind in list(families.ENCODERS), kind in list(ENCODER_DECODERS)
    judge = _hf_config.encoder_decoder if both else _hf_config.decoder
    judge = _hf_config.encoder if encoder or kind == "t5_encoder" else judge
    for kinds, other in (
        (pictures.IMAGES, _hf_config.image),
        (pictures.PAIRS, _hf_config.image_and_text),
        (pictures.TEXTS, _hf_config.text_tower),
    ):
        judge = other if kind in list(kinds) else judge
    family = judge(config)
    made = _hf_config.arguments(config, family)
    for name, tower in zip(("vision", "text"), made.get("towers", ()), strict=False):
        made[name] = arguments({**made[name], "model_type": tower})
    if encoder:
        made |= {
            f"{head}: {name}": value
            for head in ("text", "token", "word")
            for name, value in _hf_config.head_arguments(config, family, head).items()
        }
    rotary = made.get("rotary")
    if isinstance(rotary, list):
        made["rotary"] = [*map(turns_of, rotary)]
    elif rotary is not None:
        made["rotary"] = turns_of(rotary)
    return made


def turns_of(rotary):
    """Its numbers, short and long."""
    if rotary is None:
        return None
    long = rotary.tables([50], "float64")
    numbers = *rotary.frequencies, rotary.attention_factor, *long[0][0], *long[1][0]
    return tuple(map(float, numbers))


def changed(kind, **changes):
    return arguments({**BASES[kind], **changes})


def turns(head_dim, base, scaling=None):
    return turns_of(Rotary(head_dim, base=base, scaling=scaling))


def declared(kind):
    """The names that are read, also of old, those to be neutral, and the harmless."""
    family = _families.FAMILIES[kind]
    harmless = [name for names in family.harmless.values() for name in names]
    read = "model_type", *family.read, *family.older
    return [*read, *family.neutral, *harmless]


# Arguments of ImageTextModel.from_config itself, which makes the parts.
TOWERS = "towers", "vision", "text"


@FAMILIES
def test_a_declaration_gives_arguments_of_its_model_from_fields_that_it_reads(kind):
    family = _families.FAMILIES[kind]
    assert set(family.copied.values()) <= set(family.read)
    assert not set(family.copied) & (set(family.fixed) | set(family.computed))
    assert not set(family.fixed) & set(family.computed)
    make = {
        "encoder": BertEncoder,
        "decoder": CausalDecoder,
        "encoder-decoder": EncoderDecoder,
        "image": ImageEncoder,
        "image and text": ImageTextModel,
        "text tower": CausalDecoder,
    }[family.model]
    known = {
        *({"text": ("end_token", "projection_dim"), "image and text": TOWERS}).get(
            family.model.removesuffix(" tower"), ()
        ),
        *inspect.signature(make.__init__).parameters,
        *DecoderOptions.__annotations__,
    }
    assert {*family.copied, *family.fixed, *family.computed} <= known
    assert checkpoints.FAMILIES[family.checkpoint] is family.names


@pytest.mark.parametrize("version", VERSIONS)
@FAMILIES
def test_every_field_of_their_classes_is_declared_once(kind, version):
    names = declared(kind)
    assert len(set(names)) == len(names)
    if kind not in LISTS[version]:
        pytest.skip("a class of later versions, or of code beside the files")
    fields = LISTS[version]["every"].split() + LISTS[version][kind].split()
    assert set(fields) <= set(names)


def test_the_page_about_models_has_every_field():
    """`python tests/support/fields.py` makes the tables anew."""
    assert set(_families.FAMILIES) == set(BASES)
    page = fields.PAGE.read_text("utf-8")
    assert page == fields.rewritten(page)
    for kind in BASES:
        assert all(
            f"`{name}`" in page or name == "model_type" for name in declared(kind)
        )


@FAMILIES
def test_what_the_table_says_is_refused_is_refused_by_name(kind):
    for wrong in fields.REFUSED.get(kind, {}).values():
        for name in wrong:
            with pytest.raises(ValueError, match=name):
                changed(kind, **wrong)
    assert set(fields.REFUSED) < set(BASES)


@pytest.mark.parametrize("kind", [*families.DECODERS, *ENCODER_DECODERS])
def test_what_the_table_says_of_tied_scores_is_so(kind):
    told = fields.notes(_families.FAMILIES[kind]).split("; ")
    if "scores tied" in told:
        with pytest.raises(ValueError, match="tie_word_embeddings"):
            changed(kind, tie_word_embeddings=False)
        return
    found = [changed(kind, tie_word_embeddings=x)["tied"] for x in (False, True)]
    is_free = "scores tied or not" in told
    assert is_free or "scores never tied" in told
    assert found == ([False, True] if is_free else [False, False])


@FAMILIES
def test_fields_and_defaults_are_those_of_the_installed_classes(kind):
    transformers = pytest.importorskip("transformers")
    if kind in ("new", "t5_encoder", *families.JINA_BERTS):
        pytest.skip("a class of the code beside the files")
    made = transformers.CONFIG_MAPPING[kind]()
    assert set(made.to_dict()) <= set(declared(kind))
    if kind == "embedding_gemma2_text":  # whose fields are those of most layers
        made.allow_global_per_layer_attribute_access = True
    for name, field in _families.FAMILIES[kind].read.items():
        if field.default not in (None, REQUIRED) and field.kind != "mapping":
            theirs = getattr(type(made), name, getattr(made, name, None))
            # None: of a window that is not used, and of is_causal.
            assert theirs in (field.default, None), name


@FAMILIES
def test_what_their_classes_write_is_read(kind):
    transformers = pytest.importorskip("transformers")
    if kind in ("new", "t5_encoder", *families.JINA_BERTS):
        pytest.skip("a class of the code beside the files")
    given = json.loads(json.dumps(BASES[kind]))  # they write to what is inside
    written = transformers.CONFIG_MAPPING[kind](**given).to_dict()
    expected = arguments(BASES[kind])
    assert arguments(json.loads(json.dumps(written))) == expected


# Of a field that is read, a value other than that of BASES and than its default.
OTHER_VALUES = {
    "hidden_act": "relu",
    "activation_function": "tanh",
    "activation": "relu",
    "layer_norm_eps": 0.5,
    "layer_norm_epsilon": 0.5,
    "rms_norm_eps": 0.5,
    "rope_theta": 300.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 200.0},
    "rope_scaling": {"rope_type": "linear", "factor": 3.0},
    "layer_types": [FULL, FULL],
    "sliding_window": 7,
    "max_window_layers": 5,
    "use_sliding_window": False,
    "is_causal": False,
    "hidden_activation": "relu",
    "partial_rotary_factor": 1.0,
    "query_pre_attn_scalar": 7,
    "use_bidirectional_attention": True,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 5.0,
    "sliding_window_pattern": 2,
    "rope_local_base_freq": 300.0,
    "enable_bias": False,
    "scale_attn_weights": False,
    "scale_attn_by_inverse_layer_idx": True,
    "attention_bias": True,
    "mlp_bias": True,
    "norm_bias": True,
    "norm_eps": 0.5,
    "classifier_bias": True,
    "classifier_activation": "relu",
    "classifier_pooling": "mean",
    "decoder_bias": False,
    "global_rope_theta": 300.0,
    "local_rope_theta": 300.0,
    "global_attn_every_n_layers": 2,
    "feed_forward_proj": "gated-silu",
    "scale_decoder_outputs": False,
    "qkv_bias": False,
    "use_bias": True,
    "pooler_act": "relu",
    "vision_use_head": False,
    "use_parallel_residual": False,
    "mlp_only_layers": [0],
    "shared_expert_intermediate_size": 9,
    "use_qkv_bias": True,
    "attention_out_bias": True,
    "pooler_hidden_act": "relu",
    "pos_att_type": ["c2p"],
    "norm_rel_ebd": "none",
    "position_buckets": 10,
    **{key: {"hidden_size": 4} for key in ("text_config", "text_config_dict")},
    **{key: {"patch_size": 4} for key in ("vision_config", "vision_config_dict")},
}
OTHER_SIZES = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 4}
OTHER_ROTARY = {"rotary_emb_base": 300.0, "rotary_pct": 1.0, "attention_bias": False}
WINDOWED_ROPE = {"rope_parameters": {SLIDING: {"rope_theta": 3.0}}}
OF_GATED = {"hidden_size": 24, "num_attention_heads": 2}
# The same where a family needs another one.
OTHER_VALUES_OF = {
    **dict.fromkeys(families.GATED, OF_GATED),
    "esm": {
        **OF_GATED,
        "position_embedding_type": "absolute",
        "token_dropout": False,
        "emb_layer_norm_before": True,
    },
    "modernbert": {**OF_GATED, "layer_types": [FULL] * 4, **WINDOWED_ROPE},
    "eurobert": {"hidden_size": 24, "num_attention_heads": 3, "head_dim": 4},
    **{kind: {"feed_forward_type": "reglu"} for kind in families.JINA_BERTS},
    "new": {**OF_GATED, "rope_scaling": {"type": "ntk", "factor": 3.0}},
    "qwen2_moe": {"layer_types": [FULL] * 3, "max_window_layers": 3},
    "smollm3": {
        "layer_types": [SLIDING, FULL, SLIDING],
        "no_rope_layers": [0, 1, 1],
        "use_sliding_window": True,
    },
    "exaone4": {"layer_types": [FULL] * 4, "sliding_window_pattern": 3},
    "gpt_oss": {"layer_types": [FULL] * 3, "attention_bias": False},
    "gemma2": {"layer_types": [FULL] * 3},
    "gemma3_text": {"layer_types": [FULL] * 3, **WINDOWED_ROPE},
    "olmo3": {"layer_types": [FULL] * 4, **WINDOWED_ROPE},
    "gpt_neo": {"hidden_size": 24, "attention_layers": ["local", "local"]},
    "granitemoehybrid": {"position_embedding_type": "nope"},
    "cohere2": {"layer_types": [FULL] * 4},
    "starcoder2": {"use_bias": False},
    "stablelm": {"hidden_size": 64, "use_parallel_residual": True},
    "nemotron": OTHER_SIZES,
    "embedding_gemma2_text": {
        "layer_types": [FULL] * 4,
        "per_layer_config": {"1": {"head_dim": 8}, "3": {"head_dim": 8}},
        "sliding_window_pattern": 3,
        **WINDOWED_ROPE,
    },
    "glm": {"head_dim": 4, "attention_bias": False},
    "glm4": {"head_dim": 4, "attention_bias": False},
    "seed_oss": {"attention_bias": False},
    "gptj": {"n_embd": 48, "n_head": 6, "rotary_dim": 2},
    "falcon": {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_kv_heads": 1,
        "new_decoder_architecture": False,
        "multi_query": False,
        "bias": False,
    },
    "bloom": {"hidden_size": 48, "n_head": 2},
    "mpt": {"d_model": 64, "n_heads": 2, "attn_config": {"softmax_scale": 0.5}},
    "phi3": OTHER_SIZES,
    "phi": OTHER_SIZES | OTHER_ROTARY,
    "gpt_neox": OTHER_SIZES | OTHER_ROTARY,
}
SWITCHES = {"tie_word_embeddings": True, "norm_topk_prob": False}  # and their defaults
SWITCHES |= {"position_biased_input": True, "share_att_key": False}


def other_value(kind, name):
    """A value of a field that is read, other than that of a family's base."""
    switches = {**SWITCHES, "scale_embedding": kind == "m2m_100"}
    if name in switches:
        return not BASES[kind].get(name, switches[name])
    values = {**OTHER_VALUES, **OTHER_VALUES_OF.get(kind, {})}
    return values.get(name, 2048 if "max_pos" in name else 8)


def base_for(kind, name):
    """A family's base, changed so that a field of it has an effect."""
    base = dict(BASES[kind])
    if kind == "esm" and name == "pad_token_id":
        base["position_embedding_type"] = "absolute"
    windows = {"sliding_window": 3}
    used = {"use_sliding_window": True, "max_window_layers": int(kind == "qwen2_moe")}
    if name in ("max_position_embeddings", LENGTH) and kind not in [
        *families.ENCODERS,
        *ENCODER_DECODERS,
        *pictures.ALL,
        *("phi3", "gpt_neo", "opt"),
    ]:
        base["rope_scaling"] = YARN
        sized = kind in ("olmoe", "stablelm", "falcon")
        base |= {"hidden_size": 64} if sized else {"head_dim": 16}
    if name in ("rope_parameters", "partial_rotary_factor"):
        base.pop("rope_scaling", None)
    if kind == "gpt_neox":
        base.pop("head_dim", None)
    if kind == "phi3" and name in OTHER_SIZES:
        del base["rope_scaling"]
    if name in ("layer_types", "sliding_window", "max_window_layers"):
        if kind.startswith("qwen"):
            base |= used
        elif kind in ("llama", "exaone"):
            base |= {**windows, "layer_types": [SLIDING, FULL]}
        elif kind == "smollm3":
            base |= {**windows, "use_sliding_window": True}
    if name == "use_sliding_window":
        base |= {**windows, **({name: False} if kind == "smollm3" else used)}
    if name == "is_causal" and kind in ("mistral", "mixtral", "exaone4", "starcoder2"):
        base["sliding_window"] = None
    if name == "is_causal" and kind == "gpt_oss":
        base["layer_types"] = [FULL] * 3
    if kind == "embedding_gemma2_text":
        if name.startswith(("global_", "num_global_")):
            del base["per_layer_config"]
        if name in ("num_hidden_layers", "sliding_window_pattern", "layer_types"):
            del base["per_layer_config"], base["layer_types"]
        if name == "max_position_embeddings":
            del base["rope_scaling"]
            base["rope_parameters"] = {FULL: YARN}
    if name in ("attention_layers", "num_layers") and kind == "gpt_neo":
        del base["attention_types"]
    if name == "num_hidden_layers" and kind == "granitemoehybrid":
        base["layer_types"] = "attention"  # of all layers
    if name == "multi_query":
        del base["new_decoder_architecture"], base["num_kv_heads"]
    if name == "is_causal" and kind == "cohere2":
        base["layer_types"] = [FULL] * 4
    if name in ("rope_theta", "is_causal") and kind == "olmo3":
        base["layer_types"] = [FULL] * 4  # which windows do not go with
    return base


# Fields that say what another one says, too.
AGAIN = {
    "dense_act_fn": "gelu",
    "is_gated_act": None,
    "num_hidden_layers": 5,
    "decoder_vocab_size": 31,
}


@pytest.mark.parametrize("kind", ENCODER_DECODERS)
def test_fields_that_say_the_same_again_have_to_agree(kind):
    read = _families.FAMILIES[kind].read
    gated = BASES[kind].get("feed_forward_proj", "").startswith("gated")
    for name, other in AGAIN.items():
        if name in read:
            wrong = not gated if other is None else other
            with pytest.raises(ValueError, match=rf"config: expected {name} = "):
                changed(kind, **{name: wrong})


# Fields of DeBERTa that have to agree with others.
AGREEING = "relative_attention", "embedding_size", "pooler_hidden_size"


@pytest.mark.parametrize("kind", families.DISENTANGLED)
def test_fields_of_deberta_that_do_not_agree_are_refused(kind):
    none = {"relative_attention": False, "pos_att_type": None}
    made = changed(kind, **none)
    assert made["num_distances"] is None
    assert not made["distance_weights"]
    assert changed(kind, **dict.fromkeys(AGREEING[1:], 12)) == changed(kind)
    for changes, text in (
        ({"relative_attention": False}, "pos_att_type to be nothing with"),
        ({"pos_att_type": None}, "pos_att_type to be c2p, p2c or both with"),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type to be c2p, p2c or both with"),
        ({"pos_att_type": "c2p|c2p"}, "pos_att_type to be c2p, p2c or both with"),
        ({"embedding_size": 6}, "embedding_size = 12 as hidden_size, got 6"),
        ({"pooler_hidden_size": 6}, "pooler_hidden_size = 12 as hidden_size, got 6"),
    ):
        with pytest.raises(ValueError, match=text):
            changed(kind, **changes)
    if kind == "deberta-v2":
        for changes, text in (
            ({"conv_kernel_size": 3}, "expected conv_kernel_size = 0, got 3"),
            ({"norm_rel_ebd": "rms"}, "norm_rel_ebd to be none or layer_norm, got"),
        ):
            with pytest.raises(ValueError, match=text):
                changed(kind, **changes)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in BASES
        for name in _families.FAMILIES[kind].read
        if kind not in [*ENCODER_DECODERS, "t5_encoder"] or name not in AGAIN
        if kind not in families.DISENTANGLED or name not in AGREEING
    ],
)
def test_every_field_that_is_read_changes_what_is_made(kind, name):
    base = base_for(kind, name)
    other = {**base, name: other_value(kind, name)}
    assert arguments(other) != arguments(base)


@FAMILIES
def test_fields_that_are_null_or_neutral_or_harmless_change_nothing(kind):
    family = _families.FAMILIES[kind]
    expected = arguments(BASES[kind])
    more = {name: None for name in declared(kind) if name not in BASES[kind]}
    for name in set(more) & set(family.read):
        if family.read[name].null:  # where it is a value
            del more[name]
    assert arguments({**more, "x_y": None, **BASES[kind]}) == expected
    neutral = {name: values[-1] for name, values in family.neutral.items() if values}
    harmless = [name for names in family.harmless.values() for name in names]
    more = {**neutral, **dict.fromkeys(harmless, "anything")}
    assert arguments({**BASES[kind], **more}) == expected


@FAMILIES
def test_fields_that_ask_for_something_else_are_refused_by_name(kind):
    neutral = {"model_type": (kind,), **_families.FAMILIES[kind].neutral}
    for name, values in neutral.items():
        wanted = f"{name} = {values[0]!r}" if values else f"no {name}"
        with pytest.raises(ValueError) as caught:
            changed(kind, **{name: "other"})
        if name != "model_type":
            assert str(caught.value) == f"config: expected {wanted}, got 'other'"


@FAMILIES
def test_all_that_is_wrong_is_in_one_error(kind):
    config = {**BASES[kind], "x_y": 3, "quantization_config": {"bits": 4}}
    sizes = {**dict.fromkeys(("gpt2", "gpt_bigcode", "gptj"), "n_embd")}
    sizes |= {"distilbert": "dim", "mpt": "d_model", "t5_encoder": "d_model"}
    size = sizes.get(kind, "hidden_size")
    size = "d_model" if kind in ENCODER_DECODERS else size
    size = {"clip": "projection_dim", "siglip": "text_config"}.get(kind, size)
    required = [
        name
        for name, field in _families.FAMILIES[kind].read.items()
        if field.default is REQUIRED and name != size
    ]
    missing = "vocab_size" if "vocab_size" in required else "".join(required[:1])
    config.pop(missing, None)
    with pytest.raises(ValueError) as caught:
        arguments({**config, size: "12"})
    words = "an integer from 1 to 2147483647"
    assert str(caught.value) == (
        f"config: {f'missing {missing}; ' if missing else ''}expected {size} to be "
        f"{'a mapping' if kind == 'siglip' else words}, got '12'; expected no x_y, got "
        "3; expected no quantization_config, got {'bits': 4}"
    )


@pytest.mark.parametrize("value", ["12", 12.0, True, -1, 0, 2**31, 10**77, [1], 1e77])
@FAMILIES
def test_sizes_are_integers_of_a_sensible_range(kind, value):
    for name, field in _families.FAMILIES[kind].read.items():
        if field.kind in ("size", "layers"):
            with pytest.raises(ValueError, match=f"expected {name} to be an integer"):
                changed(kind, **{name: value})


NUMBERS = ["12", "", 12.5, True, False, -1, 0, 10**400, 1e77, math.nan, math.inf]
KINDS = [*NUMBERS, [], [1], [[]], ["x"], {}, {1: 2}, {"rope_type": ["yarn"]}]
SCALINGS = [
    {"rope_type": kind, **more, key: value}
    for kind, more in (
        ("default", {}),
        ("linear", {"factor": 2.0}),
        ("llama3", {**LLAMA3, LENGTH: 32}),
        ("yarn", {**YARN, LENGTH: 32}),
        ("dynamic", {"factor": 2.0}),
        ("longrope", {"short_factor": [1.0, 2.0], "long_factor": [2.0, 3.0]}),
    )
    for key in (
        *("rope_theta", "partial_rotary_factor", "factor", LENGTH, "x_y"),
        *("short_factor", "long_factor", "attention_factor", FULL),
    )
    for value in KINDS
]


@FAMILIES
def test_every_value_is_taken_or_refused_in_a_sentence(kind):
    family = _families.FAMILIES[kind]
    for name, values in (
        *(
            (name, KINDS)
            for name in (*family.read, *family.neutral, "model_type", "x_y")
        ),
        ("rope_scaling", SCALINGS),
        ("rope_parameters", SCALINGS),
    ):
        for value in values:
            try:
                changed(kind, **{name: value})
            except (TypeError, ValueError) as error:
                assert "expected" in str(error), (name, value)


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        ("qwen2", "max_window_layers", -1, "an integer from 0"),
        ("qwen2", "use_sliding_window", 1, "true or false"),
        ("qwen2", "layer_types", "full", "a list of names"),
        ("qwen2", "layer_types", [1, 2], "a list of names"),
        ("llama", "tie_word_embeddings", "yes", "true or false"),
        ("llama", "rms_norm_eps", "1e-6", "a finite number above 0"),
        ("llama", "rms_norm_eps", 0, "a finite number above 0"),
        ("llama", "rope_theta", float("nan"), "a finite number above 0"),
        ("llama", "rope_theta", 10**400, "a finite number above 0"),
        ("llama", "rope_scaling", "linear", "a mapping"),
        ("llama", "rope_parameters", [1], "a mapping"),
        ("llama", "hidden_act", ["silu"], "a name"),
        ("gpt2", "activation_function", 3, "a name"),
        ("llama", "num_hidden_layers", 10_001, "an integer from 1 to 10000"),
    ],
)
def test_values_of_another_kind_are_refused(kind, name, value, words):
    with pytest.raises(ValueError, match=f"config: expected {name} to be {words}"):
        changed(kind, **{name: value})


def test_a_configuration_is_a_mapping_with_a_model_type():
    for make in (BertEncoder.from_config, CausalDecoder.from_config):
        with pytest.raises(TypeError, match="config: expected a mapping, got str"):
            make("bert")
    for kind in (None, "", ["llama"], "bert"):
        with pytest.raises(ValueError, match="config: expected model_type = gpt2, ll"):
            CausalDecoder.from_config({**families.LLAMA, "model_type": kind})


def test_heads_divide_what_they_share():
    with pytest.raises(ValueError, match="hidden_size to be a multiple of num_atten"):
        changed("llama", num_attention_heads=3)
    assert changed("llama", num_attention_heads=3, head_dim=6)["head_dim"] == 6


def test_what_is_left_out_is_as_in_their_classes():
    def without(kind, *names):
        config = {k: v for k, v in BASES[kind].items() if k not in names}
        return arguments(config)

    assert without("mistral", "sliding_window")["window"] == (4095, 0)
    assert without("mistral", "num_key_value_heads")["num_kv_heads"] == 8
    assert without("llama", "num_key_value_heads")["num_kv_heads"] is None
    assert without("qwen2", "num_key_value_heads")["num_kv_heads"] == 32
    assert changed("qwen2", num_key_value_heads=None)["num_kv_heads"] is None
    assert without("qwen3", "head_dim")["head_dim"] == 128
    assert without("llama", "rope_theta")["rotary"] == turns(4, 10000.0)
    used = {"use_sliding_window": True, "sliding_window": 3}
    assert changed("qwen2", **used)["window"] is None  # from layer 28 on
    windows = changed("qwen2", **used, num_hidden_layers=29)["window"]
    assert windows == [None] * 28 + [(2, 0)]


def test_the_kinds_of_layers_agree_with_the_rest():
    used = {"use_sliding_window": True, "sliding_window": 3}
    for types in ([FULL], [FULL] * 3, [FULL, "chunked_attention"], []):
        with pytest.raises(ValueError, match="expected layer_types of 2 names, full_a"):
            changed("qwen3", **used, layer_types=types)
    for less in ({"use_sliding_window": False}, {"sliding_window": None}):
        with pytest.raises(ValueError, match="use_sliding_window = true and a sliding"):
            changed("qwen3", **{**used, **less}, layer_types=[SLIDING] * 2)
        assert changed("qwen3", **{**used, **less})["window"] is None


def test_rope_scaling_wins_over_rope_parameters():
    newer = {"rope_type": "default", "rope_theta": 500.0}
    older = {**YARN, LENGTH: 32}
    expected = turns(4, 500.0, older)
    both = {"rope_parameters": newer, "rope_scaling": older}
    assert changed("llama", **both)["rotary"] == expected
    own = {**both, "rope_scaling": {**older, "rope_theta": 500.0}, "rope_theta": 3.0}
    assert changed("llama", **own)["rotary"] == expected
    # Their classes lose this base, and take 10000: better to say so.
    with pytest.raises(ValueError, match=r"rope_theta in rope_scaling, .* got 500.0"):
        changed("llama", **both, rope_theta=None)
    assert changed("llama", rope_parameters=newer)["rotary"] == turns(4, 500.0)
    plain = {"rope_theta": 500.0}
    assert changed("llama", rope_parameters=plain)["rotary"] == turns(4, 500.0)


@pytest.mark.parametrize("scaling", [YARN, LLAMA3])
def test_the_original_length_may_stand_in_three_places(scaling):
    def made(**changes):
        return changed("llama", head_dim=16, **changes)["rotary"]

    own, other = {**scaling, LENGTH: 2048}, {**scaling, LENGTH: 64}
    expected = turns(16, 500.0, own)
    assert expected != turns(16, 500.0, other)
    assert made(rope_scaling=own) == expected
    assert made(rope_scaling=scaling, **{LENGTH: 2048}) == expected
    assert made(rope_scaling=own, **{LENGTH: 2048}) == expected
    assert made(rope_scaling=scaling, max_position_embeddings=2048) == expected
    with pytest.raises(ValueError, match=f"expected one {LENGTH}, got 2048, and 64"):
        made(rope_scaling=other, **{LENGTH: 2048})
    linear = {"rope_type": "linear", "factor": 2.0}
    alone = made(rope_scaling=linear, **{LENGTH: 2048})
    assert alone == turns(16, 500.0, linear)


def test_yarn_is_truncated_or_not():
    yarn = {**YARN, LENGTH: 32}
    made = changed("llama", head_dim=16, rope_scaling={**yarn, "truncate": False})
    assert made["rotary"] != changed("llama", head_dim=16, rope_scaling=yarn)["rotary"]
    with pytest.raises(TypeError, match=r"scaling\['truncate'\]: expected a bool"):
        changed("llama", rope_scaling={**yarn, "truncate": "no"})


def test_phi3_had_other_names_for_its_scaling():
    scaling = {k: v for k, v in BASES["phi3"]["rope_scaling"].items() if k != "type"}
    for more in ({"type": "su"}, {"type": "yarn"}, {"rope_type": "longrope"}):
        made = changed("phi3", rope_scaling={**scaling, **more})
        assert made == arguments(BASES["phi3"])


def test_the_first_gemma_2_files_have_a_window_twice():
    assert changed("gemma2", sliding_window_size=3) == arguments(BASES["gemma2"])
    words = "one of sliding_window_size and sliding_window, or equal ones, got 4 and 3"
    with pytest.raises(ValueError, match=words):
        changed("gemma2", sliding_window_size=4)


def test_phi3_may_have_its_code_beside_it():
    code = {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    }
    new = {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False}
    for more in ({}, {"AutoTokenizer": "Xenova/gpt-4o"}):
        made = changed("phi3", auto_map={**code, **more}, **new)
        assert made == arguments(BASES["phi3"])
    for name, value in (
        ("auto_map", {**code, "AutoModelForCausalLM": "modeling_phi4.Phi4"}),
        ("full_attn_mod", 2),
        ("interpolate_factor", 2),
        ("lm_head_bias", True),
    ):
        with pytest.raises(ValueError, match=f"config: expected .*{name}"):
            changed("phi3", **{name: value})


def test_parts_of_heads_are_turned_by_phi3_only():
    text = "expected partial_rotary_factor = 1.0, as the class of llama turns whole"
    scaling = {"rope_type": "default", "partial_rotary_factor": 0.5}
    with pytest.raises(ValueError, match=text):
        changed("llama", rope_parameters=scaling)
    for share in (0, 1.5, "0.5", True):
        with pytest.raises(ValueError, match="expected partial_rotary_factor to be a"):
            changed("phi3", rope_scaling={**scaling, "partial_rotary_factor": share})
    whole = {**scaling, "partial_rotary_factor": 1.0}
    assert changed("llama", rope_parameters=whole) == arguments(BASES["llama"])


def test_dynamic_scaling_is_of_the_longest_context():
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    made = changed("llama", rope_scaling=scaling, max_position_embeddings=32)
    assert made["rotary"] == turns(4, 500.0, {**scaling, LENGTH: 32})
    with pytest.raises(ValueError, match=f"expected one {LENGTH}, got 32, and 16"):
        changed(
            "llama", rope_scaling={**scaling, LENGTH: 16}, max_position_embeddings=32
        )


def test_longrope_grows_by_the_longest_context():
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 2], "long_factor": [3, 4]}
    made = changed("llama", rope_scaling=scaling, **{LENGTH: 16})["rotary"]
    expected = {**scaling, LENGTH: 16, "factor": 4.0}
    assert made == turns(4, 500.0, expected)
    own = changed("llama", rope_scaling={**expected, "factor": 2.0})["rotary"]
    assert own == turns(4, 500.0, {**expected, "factor": 2.0})


def test_windows_of_llama_are_those_of_its_layer_types():
    types = {"layer_types": [SLIDING, FULL]}
    made = changed("llama", sliding_window=3, **types)
    assert made["window"] == [(2, 0), None]
    assert changed("llama", layer_types=[FULL, FULL])["window"] is None
    with pytest.raises(ValueError, match="expected a sliding_window where layer_types"):
        changed("llama", **types)
    with pytest.raises(
        ValueError, match="expected layer_types beside a sliding_window"
    ):
        changed("llama", sliding_window=3)


def test_windows_of_mistral_are_those_of_its_layer_types():
    made = changed("mistral", layer_types=[FULL, SLIDING])
    assert made["window"] == [None, (2, 0)]
    with pytest.raises(ValueError, match="expected a sliding_window where layer_types"):
        changed("mistral", layer_types=[FULL, SLIDING], sliding_window=None)


def test_windows_of_gemma_alternate():
    local = (2, 0)
    assert changed("gemma2")["window"] == [local, None, local]
    assert changed("gemma3_text")["window"] == [local, local, None]
    for kind in ("gemma2", "gemma3_text"):
        with pytest.raises(ValueError, match="expected a sliding_window, got none"):
            changed(kind, sliding_window=None)
        full = changed(kind, sliding_window=None, layer_types=[FULL] * 3)
        assert full["window"] is None


def test_gemma3_may_see_both_ways():
    made = changed("gemma3_text", sliding_window=5, use_bidirectional_attention=True)
    assert made["window"] == [(2, 2), (2, 2), None]
    assert made["causal"] is False
    assert changed("gemma3_text")["causal"] is changed("gemma2")["causal"] is True


def test_layers_of_gemma3_have_positions_of_their_own():
    local, scaled = turns(6, 50.0), turns(6, 500.0, {"type": "linear", "factor": 4.0})
    assert changed("gemma3_text")["rotary"] == [local, local, scaled]
    usual = {"rope_theta": None, "rope_local_base_freq": None, "rope_scaling": None}
    made = changed("gemma3_text", **usual)["rotary"]
    assert made == [turns(6, 10000.0)] * 2 + [turns(6, 1000000.0)]
    for wrong in ({"rope_theta": 3.0}, {FULL: [1]}):
        with pytest.raises(ValueError, match="expected rope_parameters of full_attent"):
            changed("gemma3_text", rope_parameters=wrong)


def test_layers_of_olmo3_have_windows_and_positions_of_their_own():
    local, base = (2, 0), 500_000.0
    made = changed("olmo3")
    assert made["window"] == [local, local, local, None]
    scaled = turns(4, base, {"type": "linear", "factor": 4.0})
    assert made["rotary"] == [*[turns(4, base)] * 3, scaled]
    assert changed("olmo3", rope_theta=None)["rotary"] == made["rotary"]
    with pytest.raises(ValueError, match=r"expected rope_theta = 500000\.0 beside"):
        changed("olmo3", rope_theta=10_000.0)
    with pytest.raises(ValueError, match="expected a sliding_window, got none"):
        changed("olmo3", sliding_window=None)
    full = changed("olmo3", layer_types=[FULL] * 4, rope_theta=10_000.0)
    assert full["window"] is None
    assert full["rotary"] == [turns(4, 10_000.0, {"type": "linear", "factor": 4.0})] * 4


def test_networks_with_a_gate_have_some_activations():
    for name, ours in (("silu", "swiglu"), ("gelu", "geglu"), ("relu", "reglu")):
        assert changed("llama", hidden_act=name)["activation"] == ours
    assert changed("qwen2", hidden_act="gelu_new")["activation"] == "geglu_tanh"
    for name in ("relu2", "quick_gelu", "tanh"):
        text = f"expected hidden_act to be one of gelu, .* with a gate, got '{name}'"
        with pytest.raises(ValueError, match=text):
            changed("mistral", hidden_act=name)


def test_labels_are_counted_for_a_classifier():
    def count(**labels):
        config = {**families.BERT, **labels}
        made = BertEncoder.from_config(config, classifier=True)
        return made.classifier_weight.shape[1]

    assert count() == 2
    assert count(num_labels=5) == 5
    assert count(id2label={"0": "no", "1": "yes", "2": "perhaps"}) == 3
    assert count(id2label={"0": "LABEL_0"}, num_labels=1) == 1
    for labels, text in (
        ({"num_labels": 0}, "num_labels to be an integer from 1"),
        ({"num_labels": 3, "id2label": {"0": "x"}}, "num_labels = 1 as id2label has"),
        ({"id2label": ["x"]}, "id2label to be a mapping"),
        ({"id2label": {}}, "id2label to be a mapping"),
    ):
        with pytest.raises(ValueError, match=f"config: expected {text}"):
            count(**labels)


def test_activations_have_their_other_names():
    for name, ours in rules.ACTIVATIONS.items():
        assert changed("bert", hidden_act=name)["activation"] == ours
        assert changed("gpt2", activation_function=name)["activation"] == ours
    assert changed("llama", hidden_act="swish") == arguments(families.LLAMA)


def test_a_model_type_may_be_null_where_the_model_is_bert(tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    config = {**families.BERT, "model_type": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(families.tensors(families.BERT), tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors").rename(tmp_path / "model.safetensors")
    assert np.isfinite(BertEncoder.from_pretrained(tmp_path)([1, 2])).all()


def test_letters_for_windows_of_exaone_do_not_matter_beside_layer_types():
    kinds = [SLIDING, FULL, SLIDING, FULL]
    expected = changed("exaone4")
    assert changed("exaone4", layer_types=kinds) == expected
    letters = {"sliding_window_pattern": "LLLG"}
    assert changed("exaone4", **letters, layer_types=kinds) == expected
    with pytest.raises(ValueError, match=r"config: expected sliding_window_pattern"):
        changed("exaone4", **letters)
    without = changed("exaone4", **letters, sliding_window=None)
    assert without["window"] is None
    assert None not in without["rotary"]


def test_kinds_of_layers_of_gpt_neo_come_so_often():
    local = (2, 0)
    assert changed("gpt_neo")["window"] == [None, local]
    types = [[["local"], 1], [["global", "local"], 1]]
    made = changed("gpt_neo", num_layers=3, attention_types=types)
    assert made["window"] == [local, None, local]
    same = {"attention_types": types, "attention_layers": ["local", "global", "local"]}
    assert changed("gpt_neo", num_layers=3, **same) == made
    for wrong, text in (
        ({"attention_layers": ["local", "local"]}, "expected attention_layers = "),
        ({"num_layers": 3}, "expected attention_types of 3 layers, global or local"),
        ({"attention_types": [[["global"], 10**9]]}, "expected no attention_types"),
        ({"attention_types": [["global", 2]]}, "expected no attention_types"),
    ):
        with pytest.raises(ValueError, match=f"config: {text}"):
            changed("gpt_neo", **wrong)


def test_granite_4_has_attention_in_all_layers_and_no_experts():
    kind, expected = "granitemoehybrid", arguments(BASES["granitemoehybrid"])
    assert changed(kind, layer_types=[FULL, FULL]) == expected
    older = {"layers_block_type": ["attention", "attention"], "layer_types": None}
    assert changed(kind, **older) == expected
    for wrong, text in (
        ({"layer_types": ["mamba", "attention"]}, "layer_types = 'attention', got"),
        ({"layer_types": None}, "layer_types = 'attention', got 'mamba'"),
        ({"layer_types": ["attention"] * 3}, "layer_types = 'attention', got"),
        ({"num_local_experts": None}, "num_local_experts = 0, got 8"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type to be rope or"),
    ):
        with pytest.raises(ValueError, match=f"config: expected {text}"):
            changed(kind, **wrong)
