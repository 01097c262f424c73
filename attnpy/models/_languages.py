"""Languages of translating models, whose tokens stand in texts."""

from __future__ import annotations

import json
from typing import Any

from attnpy._quoting import listed, quoted
from attnpy.checkpoints.reading import judged_elsewhere
from attnpy.models import _texts


def token(tokenizer: Any, language: object, name: str) -> tuple[str, int]:
    """Return the token of a language, and its number."""
    said, known = _texts.text(language, name), _languages(tokenizer)
    for own in (said, f"__{said}__"):
        if own in known:
            return own, known[own]
    raise ValueError(
        f"{name}: expected a language of which the tokenizer has a special token, "
        f"{listed(known) or 'of none'}, got {quoted(said)}"
    )


def is_language(tokenizer: Any, number: int) -> bool:
    """Tell whether a token is that of a language."""
    return number in _languages(tokenizer).values()


def set_source(tokenizer: Any, language: object) -> None:
    """Let a tokenizer mark texts as those of another language."""
    from tokenizers.processors import TemplateProcessing

    name, number = token(tokenizer, language, "source_language")
    with judged_elsewhere("tokenizer", "one whose settings can be read"):
        found = json.loads(tokenizer.to_str())["post_processor"] or {}
    pieces = (
        found.get("single", []) if found.get("type") == "TemplateProcessing" else []
    )
    numbers = {own: x["ids"] for own, x in found.get("special_tokens", {}).items()}
    numbers[name] = [number]
    template, replaced = [], 0
    for piece in pieces:
        own = piece.get("SpecialToken", {}).get("id")
        if own is not None and is_language(tokenizer, numbers[own][0]):
            own, replaced = name, replaced + 1
        template.append("$A" if own is None else own)
    if replaced != 1:
        raise ValueError(
            "source_language: expected None, or a tokenizer that marks texts with a "
            f"token of their language, got one with {replaced} in {quoted(pieces, 200)}"
        )
    used = [(own, numbers[own][0]) for own in dict.fromkeys(template) if own != "$A"]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=used)


def _languages(tokenizer: Any) -> dict[str, int]:
    """Return special tokens that are languages, and their numbers: no <s> or [CLS]."""
    if not hasattr(tokenizer, "get_added_tokens_decoder"):  # Marian's pieces
        return {}
    return {
        added.content: number
        for number, added in tokenizer.get_added_tokens_decoder().items()
        if added.special and added.content.strip("_")[:1].isalpha()
    }
