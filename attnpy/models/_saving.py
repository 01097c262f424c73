"""A model into a folder that Transformers reads: its configuration and its weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from attnpy._families import FAMILIES
from attnpy._files import Folder, write_folder
from attnpy.checkpoints.exporting import exported
from attnpy.checkpoints.loading import heads_of
from attnpy.checkpoints.writing import write
from attnpy.models import _hf_config
from attnpy.positions import Rotary
from attnpy.positions.rotary import usual

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping

    from attnpy._families.declaration import Declaration, Family
    from attnpy._typing import Array


class Configured(Protocol):
    """A model that keeps the configuration it was made of."""

    config: dict[str, Any] | None

    def parameters(self) -> dict[str, Array]:
        """Return the parameters by name."""


def save(
    model: Configured,
    folder: str | os.PathLike[str],
    again: Callable[[dict[str, Any]], Any],
    head: str | None,
    generation: Mapping[str, Any] | None = None,
    preferred: Collection[str] = (),
) -> None:
    """Write a folder; `again` makes a model as this one of its configuration.

    `head` is the ending of the class of a model that has one. `generation` is what
    generation_config.json has, if not the model's `stop` alone. `preferred` are the
    names of weights that the class has where there are several.
    """
    if model.config is None:
        raise ValueError(
            "config: expected that of a model of from_config or from_pretrained, got "
            "none"
        )
    kind = _hf_config.kind_of(model.config)
    config = {**model.config, "model_type": "bert" if kind is None else kind}
    _check_unchanged(model, again(config))
    family = FAMILIES[config["model_type"]]
    config = family.saved(_hf_config.modern(config, family))
    family = FAMILIES[str(_hf_config.kind_of(config))]
    dtype = _dtype(model).name
    # The name of the dtype's field is the one that all versions take.
    config = {name: x for name, x in config.items() if name != "dtype"}
    owner = family.classes[0]
    if head is not None:
        stem = family.classes[0].removesuffix("Model")
        owner = f"{stem}{head}" if head else family.classes[1]
    config |= {"architectures": [owner], "torch_dtype": dtype}
    tensors = _weights(model, family, head is not None, preferred)
    stop = getattr(model, "stop", None)
    if generation is None and stop is not None:
        generation = {"eos_token_id": list(stop) or None}
    files = {"config.json": config}
    if generation is not None:
        kept = {name: config[name] for name in OTHER_TOKENS if name in config}
        files["generation_config.json"] = {**kept, **generation}

    def write_files(place: Folder) -> None:
        write("model.safetensors", tensors, PYTORCH, place.write)
        for name, content in files.items():
            write_json(place, name, content)

    write_folder(folder, write_files)


# What Transformers asks of safetensors files; tokens that generation uses there.
PYTORCH = {"format": "pt"}
OTHER_TOKENS = "bos_token_id", "pad_token_id"


def write_json(
    place: Folder, name: str, content: Mapping[str, Any] | list[Any]
) -> None:
    """Write a JSON file of a folder."""
    write_text(place, name, json.dumps(content, indent=2, default=_plain) + "\n")


def write_text(place: Folder, name: str, text: str) -> None:
    """Write a file of a folder."""
    place.write(name, lambda file: file.write(text.encode()))


def _plain(value: object) -> object:
    """Return numbers of NumPy as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"config: expected values of JSON, got {type(value).__name__}")


def _check_unchanged(model: Any, other: Any) -> None:
    """Require a model that is still what its configuration says."""
    shown, expected = (_shown(each) for each in (model, other))
    for name, value in expected.items():
        if shown.get(name) != value:
            raise ValueError(
                f"model: expected {name} = {value} as its configuration has it, got "
                f"{shown.get(name)}"
            )


def _shown(model: Any) -> dict[str, str]:
    """Return what tells models apart: sizes, options, and shapes of parameters."""
    shown: dict[str, str] = {}
    for name, value in model._shown().items():
        if hasattr(value, "parameters"):  # a model inside
            shown |= {f"{name}.{own}": x for own, x in _shown(value).items()}
        else:
            shown[name] = repr(value)
    for name in ("start", "stop"):  # which generation_config.json says
        shown.pop(name, None)
    for name, array in model.parameters().items():
        shown[name] = str(array.shape)
    return shown


def _weights(
    model: Configured,
    family: Declaration,
    has_head: bool,
    preferred: Collection[str],
) -> dict[str, Array]:
    """Return the weights by the names of the family's class."""
    names, kind = family.names, _dtype(model)
    own = dict(model.parameters())
    for name, array in own.items():
        if name.endswith(names.one_less) and names.one_less:
            own[name] = array - array.dtype.type(1)
    tensors, prefix = {}, next(iter(names.prefixes), "")
    for name, array in exported(own, names, preferred, heads_of(model)).items():
        inside = has_head and not _is_of_head(name, names)
        tensors[prefix + name if inside else name] = array.astype(kind)
    if (frequencies := _frequencies(model)) is not None and names.frequencies:
        name = names.frequencies.removeprefix("*")
        tensors[prefix + name if has_head else name] = frequencies
    return tensors


def _frequencies(model: Configured) -> Array | None:
    """Return frequencies of rotary positions that are not those of the base."""
    rotary = getattr(model, "rotary", None)
    if not isinstance(rotary, Rotary) or (rotary.frequencies == usual(rotary)).all():
        return None
    return rotary.frequencies.astype(np.float32)


def _dtype(model: Configured) -> np.dtype[Any]:
    """Return the dtype of a model's largest matrix; that of norms may be another."""
    return max(model.parameters().values(), key=lambda array: array.size).dtype


def _is_of_head(name: str, names: Family) -> bool:
    """Tell whether a name is one beside the model below, not in it."""
    if name in names.tied or name in names.beside:
        return True
    heads = *names.classifier, *names.token_classifier, *names.masked_words
    return name in heads and name not in names.names
