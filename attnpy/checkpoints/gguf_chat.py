"""Conversations, as the template in a GGUF file writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnpy._quoting import named, quoted
from attnpy.checkpoints import chat_templates
from attnpy.checkpoints.gguf_keys import PREFIX

if TYPE_CHECKING:
    Metadata = Mapping[str, Any]

KEY = "tokenizer.chat_template"


def template(metadata: Metadata, path: str) -> str | None:
    """Return the template, or None."""
    found = metadata.get(KEY)
    if found is not None and not isinstance(found, str):
        raise ValueError(
            f"{named(path)}: expected {KEY} to be a text, got {quoted(found)}"
        )
    return found


def render(
    metadata: Metadata,
    path: str,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
) -> str:
    """Write a conversation as the template does."""
    text = template(metadata, path)
    if text is None:
        raise ValueError(f"{named(path)}: expected {KEY}, got none")
    _check(messages)
    return chat_templates.render(
        text,
        named(path),
        messages,
        package="'attnpy[gguf]'",
        add_generation_prompt=add_generation_prompt,
        **tokens(metadata),
    )


def _check(messages: object) -> None:
    """Require a list of mappings with the two texts that templates ask for."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(
            f"messages: expected a list of mappings, got {type(messages).__name__}"
        )
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(
                f"messages[{i}]: expected a mapping, got {type(message).__name__}"
            )
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise ValueError(
                    f"messages[{i}]: expected a text for {key!r}, got "
                    f"{quoted(message.get(key))}"
                )


def tokens(metadata: Metadata) -> dict[str, Any]:
    """Return the tokens that templates write, by their names in them."""
    return {name: _token(metadata, f"{name}_id") for name in ("bos_token", "eos_token")}


def _token(metadata: Metadata, key: str) -> str:
    """Return the text of a token, or none."""
    tokens, number = metadata.get(f"{PREFIX}tokens"), metadata.get(PREFIX + key)
    if isinstance(tokens, list) and isinstance(number, int):
        return str(tokens[number]) if 0 <= number < len(tokens) else ""
    return ""
