"""A template that makes one text of a query and a document, as chats have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attnpy import _checks
from attnpy._quoting import quoted
from attnpy.checkpoints import chat_templates
from attnpy.checkpoints.reading import judged_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROLES = "query", "document"
FORMATS = "flat", "structured"
# What a template has that takes the content of a message as a list of parts.
OF_PARTS = "content[0]", ".type", "'type'", '"type"', "message.content["
# Texts that change one at a time, to see whether both are written.
PROBES = ("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot")
# Texts of which no tokens are alike, to see which tokens come after them.
FILLERS = "0", "1 2 3 4"


class PairTemplate(NamedTuple):
    """The template, and how it is used.

    Attributes
    ----------
    text : str
        In the language of jinja2. It is given `messages` with the roles "query" and
        "document", after one of "system" that is the prompt, if there is one.
    format : str
        "flat": the content of a message is a text; "structured": a list of parts.
    variables : mapping of str to object
        What the template is given besides.
    """

    text: str
    format: str
    variables: Mapping[str, Any]

    def write(self, prompt: str, pair: tuple[str, str]) -> str:
        """Return the text of a pair."""
        contents = zip(ROLES, pair, strict=True)
        said = [("system", prompt)] if prompt else []
        messages = [
            {"role": role, "content": self._content(text)}
            for role, text in (*said, *contents)
        ]
        return chat_templates.render(
            *(self.text, "chat_template", messages),
            **{"add_generation_prompt": False, **self.variables},
        )

    def _content(self, text: str) -> object:
        return text if self.format == "flat" else [{"type": "text", "text": text}]

    def ending(self, tokenizer: Any, prompt: str) -> list[int]:
        """Return the tokens that the template has after both texts."""
        first, second = encoded(
            tokenizer, [self.write(prompt, (text, text)) for text in FILLERS]
        )
        n = 0
        for one, other in zip(reversed(first), reversed(second), strict=False):
            if one != other:
                break
            n += 1
        return first[len(first) - n :]

    def fault(self) -> str | None:
        """Return which of the two texts is not written, if one is not."""
        texts = [self.write("", pair) for pair in PROBES]
        lost = [
            role
            for role, text in zip(ROLES, texts[1:], strict=True)
            if text == texts[0]
        ]
        return " and the ".join(lost) or None


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text, all of the first type."""

    ids: list[int]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.ids)

    @property
    def type_ids(self) -> list[int]:
        """Return the types."""
        return [0] * len(self.ids)


def encoder(
    template: PairTemplate, prompt: str, max_length: int, side: str
) -> Callable[[Any, list[tuple[str, str]], int | None], list[Tokens]]:
    """Return what makes tokens of pairs, at most `max_length` of each.

    Longer ones are cut, on one side, but end with what the template ends with.
    """
    if prompt and template.write(prompt, PROBES[0]) == template.write("", PROBES[0]):
        raise ValueError(
            "prompt: expected none, as chat_template writes no messages of the role "
            f"system, got {quoted(prompt)}"
        )

    def encode(
        tokenizer: Any, pairs: list[tuple[str, str]], _: int | None
    ) -> list[Tokens]:
        ending = template.ending(tokenizer, prompt)
        if max_length <= len(ending):
            raise ValueError(
                f"max_length: expected more than {len(ending)}, the tokens that "
                f"chat_template writes after the texts, got {max_length}"
            )
        rows = encoded(tokenizer, [template.write(prompt, pair) for pair in pairs])
        for row in rows:
            if len(row) > max_length:
                row[:] = row[:max_length] if side == "right" else row[-max_length:]
                row[max_length - len(ending) :] = ending
        return [*map(Tokens, rows)]

    return encode


def encoded(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of what a template has written, which has all special ones."""
    with judged_elsewhere("tokenizer", "one that makes tokens of these texts"):
        codes = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [code.ids for code in codes]


def checked(
    text: str, variables: Mapping[str, Any], format: str | None
) -> PairTemplate:
    """Return a template that writes both texts of a pair."""
    if not isinstance(text, str):
        raise TypeError(f"chat_template: expected a string, got {type(text).__name__}")
    if not all(isinstance(name, str) for name in variables) or "messages" in variables:
        raise ValueError(
            "chat_template_kwargs: expected names of variables other than messages, "
            f"got {', '.join(map(repr, variables))}"
        )
    if format is None:
        format = "structured" if any(part in text for part in OF_PARTS) else "flat"
    _checks.one_of(format, "message_format", FORMATS)
    template = PairTemplate(text, format, dict(variables))
    if lost := template.fault():
        raise ValueError(
            "chat_template: expected one that writes messages of the roles query and "
            f"document, got one that leaves out the {lost}"
        )
    return template
