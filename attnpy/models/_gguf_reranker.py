"""Language models in GGUF files that score pairs of texts."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy._families import gguf as declared
from attnpy._quantized import QuantizedWeight
from attnpy._quoting import named, quoted
from attnpy.checkpoints import gguf_chat
from attnpy.models import _pair_template
from attnpy.models._classifier_folder import USUAL_TOKENS
from attnpy.models.decoder import CausalDecoder

if TYPE_CHECKING:
    from attnpy.checkpoints import GgufFile

# The template of llama.cpp's rerankers, in which names in braces stand for texts.
KEY = "tokenizer.chat_template.rerank"
PLACES = re.compile(r"(\{query\}|\{document\})")
# What comes before an instruction in it, up to the end of a line.
INSTRUCTION = re.compile(r"(?<=<Instruct>: )[^\n{}]+(?=\n)")
# A template that writes what messages of a role say.
CONTENT = '{% for m in messages if m.role == "ROLE" %}{{ m.content }}{% endfor %}'


class Reranker(NamedTuple):
    """A model, and the options of `CrossEncoder` that a file says."""

    model: CausalDecoder
    options: dict[str, Any]


def read(
    file: GgufFile, tokenizer: Any, chat_template: str | None, **options: Any
) -> Reranker:
    """Read a language model that scores pairs; options are those of the model.

    Its scores are those of the head that llama.cpp's converter makes of the rows of two
    tokens; or of the tokens "yes" and "no", where the file has no such head.
    """
    (head,) = declared.CLASSIFIER
    found: dict[str, Any] = {}
    if head not in file:
        found |= _tokens(file, tokenizer)
    found |= _template(file, chat_template)
    model = CausalDecoder.from_gguf(file, classifier=head in file, **options)
    if head in file:
        _join(model, file)
    return Reranker(model, found)


def _tokens(file: GgufFile, tokenizer: Any) -> dict[str, int]:
    """Return the tokens whose scores a pair has."""
    numbers = [tokenizer.token_to_id(token) for token in USUAL_TOKENS]
    if None in numbers:
        (head,) = declared.CLASSIFIER
        raise ValueError(
            f"{named(file.path)}: expected a reranker, with {head} or the tokens "
            f"{' and '.join(map(repr, USUAL_TOKENS))}, got neither"
        )
    names = "true_token_id", "false_token_id"
    return dict(zip(names, numbers, strict=True))


def _template(file: GgufFile, given: str | None) -> dict[str, Any]:
    """Return what makes one text of a pair: what is given, or the file's."""
    variables = {"add_generation_prompt": True, **gguf_chat.tokens(file.metadata)}
    if given is not None:
        _pair_template.checked(given, variables, None)
        return {"chat_template": given, "chat_template_kwargs": variables}
    if KEY in file.metadata:
        text = file.metadata[KEY]
        if not isinstance(text, str) or len({*PLACES.findall(text)}) < 2:
            raise ValueError(
                f"{named(file.path)}: expected {KEY} to be a text with {{query}} and "
                f"{{document}}, got {quoted(text)}; from_gguf(chat_template=) wins"
            )
        found = _in_jinja(text)
    elif file.chat_template is None:
        raise ValueError(
            f"{named(file.path)}: expected a template of pairs, got none; "
            "from_gguf(chat_template=) wins"
        )
    else:
        text = file.chat_template
        found = {"chat_template": text, "chat_template_kwargs": variables}
    try:
        _pair_template.checked(
            found["chat_template"], found.get("chat_template_kwargs", {}), None
        )
    except ValueError as error:
        raise ValueError(
            f"{named(file.path)}: {error}; from_gguf(chat_template=) wins"
        ) from error
    return found


def _in_jinja(text: str) -> dict[str, Any]:
    """Return the same template in the language of jinja2.

    An instruction in it becomes a prompt, so that another one may stand in its place.
    """
    written, end = "", 0
    prompts = {}
    if found := INSTRUCTION.search(text):
        prompts = {"instruction": found.group()}
        written, end = _of_pair(text[: found.start()]) + _content("system"), found.end()
    options: dict[str, Any] = {"chat_template": written + _of_pair(text[end:])}
    if prompts:
        options |= {"prompts": prompts, "default_prompt_name": "instruction"}
    return options


def _of_pair(text: str) -> str:
    """Return a template of messages that writes the two texts of a pair."""
    return "".join(
        _content(part.strip("{}")) if PLACES.fullmatch(part) else _literal(part)
        for part in PLACES.split(text)
        if part
    )


def _content(role: str) -> str:
    return CONTENT.replace("ROLE", role)


def _literal(text: str) -> str:
    """Return a template that writes this, whatever is in it."""
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}"


def _join(model: CausalDecoder, file: GgufFile) -> None:
    """Make one score of those of "yes" and "no": its sigmoid is their softmax."""
    architecture = file.metadata["general.architecture"]
    labels = file.metadata.get(f"{architecture}.{declared.LABELS}", [])
    if sorted(labels) == sorted(USUAL_TOKENS):
        weight, config = model.classifier_weight, model.config
        assert weight is not None and config is not None
        if isinstance(weight, QuantizedWeight):
            weight = weight.dequantize()
        first, second = (weight[:, labels.index(token)] for token in USUAL_TOKENS)
        model.classifier_weight = (first - second)[:, np.newaxis]
        config["num_labels"] = 1
