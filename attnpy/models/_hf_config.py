"""Configurations of Hugging Face models, as arguments of attnpy's models.

`attnpy._families` declares how fields are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from attnpy._families import FAMILIES
from attnpy._families.fields import KINDS, REQUIRED
from attnpy._families.rules import ends
from attnpy._quoting import joined, named, quoted

if TYPE_CHECKING:
    from attnpy._families.declaration import Declaration

    Config = Mapping[str, Any]
    Function = Literal["softmax", "sigmoid", "none"]


def kind_of(config: Config) -> object:
    """Return the model_type of what is read.

    That is the family whose code the folder has, or that of a text model inside.
    """
    places, given = config.get("auto_map"), config.get("model_type")
    codes = [*places.values()] if isinstance(places, Mapping) else []
    owners = config.get("architectures")
    for kind, family in FAMILIES.items():
        named = family.code and any(family.code in str(place) for place in codes)
        if named and family.has_code(config):
            return kind
        if family.owner and owners == [family.owner]:
            return kind
        if family.within and family.within == given:
            return kind
    return given


# Fields beside a text model that say nothing of it.
AROUND = (
    *("text_config", "vision_config", "audio_config", "mm_tokens_per_image"),
    *("boi_token_index", "eoi_token_index", "image_token_index"),
    *("boi_token_id", "eoi_token_id", "image_token_id", "video_token_id"),
    *("boa_token_id", "eoa_token_index", "audio_token_id"),
)


def unwrapped(config: Config, family: Declaration) -> Config:
    """Return the configuration of a text model, that inside of one with pictures."""
    if not family.within or config.get("model_type") != family.within:
        return config
    inner = config.get("text_config")
    kind = inner.get("model_type") if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping) or kind not in (None, family.model_type):
        raise ValueError(
            f"config: expected a text_config with model_type = {family.model_type}, "
            f"got {quoted(inner)}"
        )
    outer = {k: v for k, v in config.items() if k not in AROUND and v is not None}
    return {**inner, **outer, "model_type": family.model_type}


def encoder(config: Config) -> Declaration:
    """Return the family of a configuration for `BertEncoder`, by default BERT."""
    return _of_model_type(config, "encoder", "bert")


def decoder(config: Config) -> Declaration:
    """Return the family of a configuration for `CausalDecoder`."""
    return _of_model_type(config, "decoder", None)


def encoder_decoder(config: Config) -> Declaration:
    """Return the family of a configuration for `EncoderDecoder`."""
    return _of_model_type(config, "encoder-decoder", None)


def is_decoder(config: Config) -> bool:
    """Tell whether a configuration is of a family for `CausalDecoder`."""
    family = FAMILIES.get(str(kind_of(config)))
    return family is not None and family.model == "decoder"


def is_encoder_decoder(config: Config) -> bool:
    """Tell whether a configuration is of a family for `EncoderDecoder`."""
    family = FAMILIES.get(str(kind_of(config)))
    return family is not None and family.model == "encoder-decoder"


def pads_anywhere(config: Config) -> bool:
    """Tell whether positions are relative, so that padding on the left changes none."""
    family = FAMILIES.get(str(kind_of(config)))
    return family is not None and (
        "rotary" in family.computed or "alibi" in family.fixed
    )


def image(config: Config) -> Declaration:
    """Return the family of a configuration for `ImageEncoder`."""
    return _of_model_type(config, "image", None)


def image_and_text(config: Config) -> Declaration:
    """Return the family of a configuration for `ImageTextModel`."""
    return _of_model_type(config, "image and text", None)


def text_tower(config: Config) -> Declaration:
    """Return the family of a configuration for the texts of `ImageTextModel`."""
    return _of_model_type(config, "text tower", None)


def _of_model_type(config: Config, model: str, default: str | None) -> Declaration:
    kind = kind_of(_mapping(config))
    if kind is None:
        kind = default
    known = [name for name, family in FAMILIES.items() if family.model == model]
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(
            f"config: expected model_type = {_either(known)}, got {quoted(kind)}"
            f"{_elsewhere(kind)}"
        )
    return FAMILIES[kind]


def _elsewhere(kind: object) -> str:
    """Return what reads a model of another family, if anything may."""
    if isinstance(kind, str) and kind in FAMILIES:
        return f": {READERS[FAMILIES[kind].model]} reads it"
    if isinstance(kind, str) and kind:
        return ': Transformers may run it with attn_implementation="attnpy"'
    return ""


READERS = {
    "encoder": "BertEncoder",
    "decoder": "CausalDecoder",
    "encoder-decoder": "EncoderDecoder",
    "image": "ImageEncoder",
    "image and text": "ImageTextModel",
    "text tower": "ImageTextModel",
}


def arguments(config: Config, family: Declaration) -> dict[str, Any]:
    """Return the arguments of a family's model."""
    values = _values(config, family)
    return {
        **{argument: values[field] for argument, field in family.copied.items()},
        **family.fixed,
        **{argument: rule(values) for argument, rule in family.computed.items()},
    }


def head_arguments(config: Config, family: Declaration, kind: str) -> dict[str, Any]:
    """Return those that a head has: of "text", "token" or "word"."""
    made: dict[str, Any] = {}
    names = {
        "text": family.names.classifier,
        "token": family.names.token_classifier,
        "word": family.names.masked_words,
    }
    if kind == "text":
        made["pooler_activation"] = family.head_activation
    if not names[kind]:
        options = {"text": "classifier", "token": "token_classifier"}
        options |= {"word": "masked_words"}
        raise ValueError(
            f"{options[kind]}: expected False, as {family.model_type} has no such head "
            "here, got True"
        )
    return made | head_values(config, family, kind)


def head_values(config: Config, family: Declaration, kind: str) -> dict[str, Any]:
    """Return the arguments that a family declares for a head."""
    values = _values(config, family)
    return {
        argument: rule(values) if callable(rule) else rule
        for argument, rule in family.heads.get(kind, {}).items()
    }


def _either(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def modern(config: Config, family: Declaration) -> dict[str, Any]:
    """Return a configuration with the fields of today's class."""
    config = family.modern(_mapping(config))
    new = {k: v for k, v in config.items() if k not in family.older}
    for old, name in family.older.items():
        value = config.get(old)
        if value is None:
            continue
        if new.get(name, value) != value:
            raise ValueError(
                f"config: expected one of {old} and {name}, or equal ones, got "
                f"{quoted(value)} and {quoted(new[name])}"
            )
        new[name] = value
    return new


def num_labels(config: Config) -> int:
    """Return how many scores a classifier gives."""
    names, number = (_mapping(config).get(key) for key in ("id2label", "num_labels"))
    if names is not None:
        if not isinstance(names, Mapping) or not names:
            raise ValueError(
                f"config: expected id2label to be a mapping, got {quoted(names)}"
            )
        if number not in (None, len(names)):
            raise ValueError(
                f"config: expected num_labels = {len(names)} as id2label has, got "
                f"{quoted(number)}"
            )
        return len(names)
    fits, words = KINDS["size"]
    if number is not None and not fits(number):
        raise ValueError(
            f"config: expected num_labels to be {words}, got {quoted(number)}"
        )
    if number is not None:
        return int(number)
    family = FAMILIES.get(str(kind_of(config)))
    return 2 if family is None else family.usual_labels


def labels(config: Config) -> list[str] | None:
    """Return the names of labels in their order, where there are some."""
    names = _mapping(config).get("id2label")
    if not isinstance(names, Mapping):
        return None
    by_number = {str(number): name for number, name in names.items()}
    ordered = [by_number.get(str(i)) for i in range(len(by_number))]
    if not all(isinstance(name, str) for name in ordered):
        raise ValueError(
            "config: expected id2label with names for 0 to "
            f"{len(by_number) - 1}, got {quoted(names, 200)}"
        )
    return cast("list[str]", ordered)


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that comes twice, if one does."""
    known: set[str] = set()
    for name in names:
        if name in known:
            return name
        known.add(name)
    return None


# What makes probabilities of scores, by the kind of a classifier.
PROBLEMS: dict[str | None, Function | None] = {
    None: None,
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


def problem_function(config: Config) -> Function | None:
    """Return what makes probabilities of scores, where the configuration says it."""
    kind = _mapping(config).get("problem_type")
    if kind is not None and (not isinstance(kind, str) or kind not in PROBLEMS):
        known = [name for name in PROBLEMS if name is not None]
        raise ValueError(
            f"config: expected problem_type = {_either(known)}, got {quoted(kind)}"
        )
    if PROBLEMS[kind] == "softmax" and num_labels(config) == 1:
        raise ValueError(
            f"config: expected several labels with problem_type = {kind}, got 1"
        )
    return PROBLEMS[kind]


def generation(config: Config, path: str, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that end a text, from a generation_config.json."""
    eos = config.get("eos_token_id")
    fits, words = KINDS["tokens"]
    if eos is not None and not fits(eos):
        raise ValueError(
            f"{path}: expected eos_token_id to be {words}, got {quoted(eos)}"
        )
    return ends(eos, vocab_size)


def _mapping(config: object) -> Config:
    if not isinstance(config, Mapping):
        raise TypeError(f"config: expected a mapping, got {type(config).__name__}")
    return config


def _values(config: Config, family: Declaration) -> dict[str, Any]:
    """Return the values of all fields that are read, or all that is wrong in one error.

    Fields that are null or missing have their defaults.
    """
    values: dict[str, Any] = {"model_type": family.model_type}
    missing, faults = [], []
    config = modern(config, family)
    for name, field in family.read.items():
        value = _mapping(config).get(name)
        if value is None:
            values[name] = None if field.null and name in config else field.default
            if values[name] is REQUIRED:
                missing.append(name)
            continue
        fits, words = KINDS[field.kind]
        values[name] = value
        if not fits(value):
            faults.append(f"expected {name} to be {words}, got {quoted(value)}")
    ignored = {name for names in family.harmless.values() for name in names}
    for name, value in config.items():
        if value is None or name in values or name in ignored:
            continue
        neutral = family.neutral.get(name, ())
        if value not in neutral:
            wanted = f"{name} = {neutral[0]!r}" if neutral else f"no {named(name)}"
            faults.append(f"expected {wanted}, got {quoted(value)}")
    if missing:
        faults.insert(0, f"missing {', '.join(missing)}")
    if faults:
        raise ValueError(f"config: {joined(faults)}")
    return values
