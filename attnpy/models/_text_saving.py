"""Models of texts, with their tokenizers, into folders that Transformers reads."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

from attnpy._files import Folder, write_folder
from attnpy.models import _hf_config
from attnpy.models._saving import write_json, write_text

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

# Files of a cross-encoder, which say other things of texts.
OF_SENTENCES = "modules.json", "sentence_bert_config.json"


class Reader(Protocol):
    """What has a model and a tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def max_length(self) -> int:
        """Return the most tokens of a text."""


def save(
    reader: Reader,
    folder: str | os.PathLike[str],
    *,
    labels: Sequence[str] = (),
    function: str | None = None,
    special: Mapping[str, str] | None = None,
) -> None:
    """Write the folder of a head, with the names of its scores.

    `function` makes probabilities of the scores of texts.
    """
    changes: dict[str, Any] = {}
    if labels:
        changes["id2label"] = {str(i): name for i, name in enumerate(labels)}
        changes["label2id"] = {name: i for i, name in enumerate(labels)}
    if function is not None:
        changes["problem_type"] = _problem(function, len(labels))

    def write(place: Folder) -> None:
        for name in OF_SENTENCES:
            if (place.path / name).exists():
                raise ValueError(
                    "folder: expected one without files of sentence-transformers, "
                    f"which would still say how texts are read, got {name}"
                )
        saved = copy.copy(reader)
        saved.model = copy.copy(reader.model)
        if saved.model.config is not None:
            saved.model.config = {**saved.model.config, **changes}
        save_parts(saved, place, ["input_ids", "attention_mask"], special)

    write_folder(folder, write)


def _problem(function: str, n_labels: int) -> str | None:
    """Return the kind of a classifier, or None for the usual function."""
    if function == ("softmax" if n_labels > 1 else "sigmoid"):
        return None
    names = {made: kind for kind, made in _hf_config.PROBLEMS.items()}
    if function == "softmax":
        raise ValueError(
            "function: expected sigmoid or none with one label, as configurations have "
            "no softmax of it, got 'softmax'"
        )
    return names[function]  # type: ignore[index]


def save_parts(
    reader: Reader,
    place: Folder,
    inputs: Sequence[str],
    special: Mapping[str, str] | None = None,
) -> None:
    """Write the model and its tokenizer; `special` are tokens by their names."""
    reader.model.save_pretrained(place)
    tokenizer = reader.tokenizer
    write_text(place, "tokenizer.json", tokenizer.to_str(pretty=True))
    side = (tokenizer.truncation or {}).get("direction")
    side = getattr(reader, "truncation_side", side)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": reader.max_length,
        "model_input_names": [*inputs],
        "truncation_side": side,
        "padding_side": "right",
        **(special or {}),
    }
    if (token := _padding(reader)) is not None:
        config.setdefault("pad_token", token)
    write_json(place, "tokenizer_config.json", config)


def _padding(reader: Reader) -> str | None:
    """Return the token that pads texts there, which changes none of their vectors."""
    config = reader.model.config or {}
    for name in ("pad_token_id", "eos_token_id"):
        number = config.get(name)
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and number >= 0:
            token: str | None = reader.tokenizer.id_to_token(number)
            if token is not None:
                return token
    return None
