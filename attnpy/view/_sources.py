"""Sources of a view's weights and tokens: arrays, or a model and a text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks
from attnpy._labels import checked_labels, checked_weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

# The form of tokens that stand for no text: [CLS], <s>, <|endoftext|> ...
SPECIAL = re.compile(
    r"\[(CLS|SEP|PAD|MASK|BOS|EOS)\]|</?s>|<(pad|bos|eos|mask)>|<\|[^|]+\|>"
    r"|<(start|end)_of_(turn|text)>"
)


class Source(NamedTuple):
    """The weights and tokens of a view."""

    weights: NDArray[np.float64]  # (layers, H, Lq, Lk)
    queries: list[str]
    keys: list[str]
    special: dict[str, list[int]]  # which of "queries" and "keys" are special tokens
    second: int | None = None  # the first token of the second of two texts

    @property
    def tokens(self) -> dict[str, Any]:
        """The tokens as a page's script expects them."""
        return {
            "queries": self.queries,
            "keys": self.keys,
            "special": self.special,
            "second": self.second,
        }


class Encoded(NamedTuple):
    """A text after a tokenizer."""

    ids: list[int]
    tokens: list[str]
    is_special: list[bool]
    second: int | None  # the first token of the second of two texts
    types: list[int]


def from_arrays(
    weights: ArrayLike,
    query_labels: Iterable[object],
    key_labels: Iterable[object] | None,
    special_tokens: Iterable[str] | None,
) -> Source:
    """Return weights of (Lq, Lk), (H, Lq, Lk) or (layers, H, Lq, Lk) with tokens."""
    numbers = checked_weights(
        weights, {2: "(Lq, Lk)", 3: "(H, Lq, Lk)", 4: "(layers, H, Lq, Lk)"}
    )
    if (numbers > 1.01).any():  # 16-bit rounding may exceed 1
        raise ValueError(f"weights: expected none above 1, got {np.nanmax(numbers):g}")
    numbers = numbers.reshape((1, 1, *numbers.shape)[-4:])
    queries, keys = both_tokens(query_labels, key_labels, *numbers.shape[-2:])
    special = special_places(queries, keys, special_tokens)
    return Source(numbers, queries, keys, special)


def from_model(
    model: Any, tokenizer: Any, text: object, special_tokens: Iterable[str] | None
) -> Source:
    """Return a model's weights for a text, in all layers and heads."""
    encoded = encode(tokenizer, text)
    result = call(model, encoded)
    source = from_arrays(result.weights, encoded.tokens, None, special_tokens)
    source = source._replace(second=encoded.second)
    if special_tokens is not None:
        return source
    places = [i for i, special in enumerate(encoded.is_special) if special]
    return source._replace(special={"queries": places, "keys": places})


def encode(tokenizer: Any, text: object) -> Encoded:
    """Return the tokens of a text, or of a pair of texts."""
    texts = text if isinstance(text, tuple) and len(text) == 2 else (text,)
    if not all(isinstance(part, str) for part in texts):
        raise TypeError(
            f"text: expected a string, or a pair of strings, got {type(text).__name__}"
        )
    encoded = _encode(tokenizer, *texts)
    if not encoded.ids:
        raise ValueError("text: expected at least one token, got none")
    return encoded


def call(model: Any, encoded: Encoded, **options: Any) -> Any:
    """Return the result of a model, with its weights."""
    if any(encoded.types):
        options["token_types"] = encoded.types
    result = model(np.array(encoded.ids), return_weights=True, **options)
    if not hasattr(result, "weights"):
        raise TypeError(
            "model: expected a call with return_weights=True to return something with "
            f"weights, got {type(result).__name__}"
        )
    return result


def both_tokens(
    query_labels: Iterable[object],
    key_labels: Iterable[object] | None,
    n_queries: int,
    n_keys: int,
) -> tuple[list[str], list[str]]:
    """Return the tokens of queries and keys; by default both are the same."""
    queries = checked_labels("query_labels", query_labels, n_queries)
    if key_labels is not None:
        return queries, checked_labels("key_labels", key_labels, n_keys)
    if n_keys != n_queries:
        raise ValueError(f"key_labels: expected {n_keys}, got none")
    return queries, queries


def special_places(
    queries: list[str], keys: list[str], special_tokens: Iterable[str] | None
) -> dict[str, list[int]]:
    """Return the places of special tokens: those given, or those that look special."""
    if isinstance(special_tokens, str):
        raise TypeError(
            "special_tokens: expected a sequence of strings, got a single str"
        )
    given: set[str] | None = None
    if special_tokens is not None:
        items = _checks.items(special_tokens, "special_tokens", "strings")
        for item in items:
            if not isinstance(item, str):
                raise TypeError(
                    f"special_tokens: expected strings, got {type(item).__name__}"
                )
        given = set(items)

    def is_special(token: str) -> bool:
        return token in given if given is not None else bool(SPECIAL.fullmatch(token))

    return {
        side: [i for i, token in enumerate(tokens) if is_special(token)]
        for side, tokens in (("queries", queries), ("keys", keys))
    }


def _encode(tokenizer: Any, *texts: str) -> Encoded:
    """Encode texts without padding, by a tokenizer of tokenizers or transformers."""
    if isinstance(tokenizer, str | bytes) or not hasattr(tokenizer, "encode"):
        raise TypeError(
            "tokenizer: expected one of the packages tokenizers or transformers, with "
            f"encode(), got {type(tokenizer).__name__}"
        )
    encoded = tokenizer.encode(*texts)
    if hasattr(encoded, "ids"):
        for name in ("tokens", "attention_mask", "special_tokens_mask"):
            _check_has(encoded, "encode() to return", name)
        real = [i for i, exists in enumerate(encoded.attention_mask) if exists]
        parts = [encoded.sequence_ids[i] for i in real] if len(texts) == 2 else []
        return Encoded(
            [encoded.ids[i] for i in real],
            [encoded.tokens[i] for i in real],
            [bool(encoded.special_tokens_mask[i]) for i in real],
            parts.index(1) if 1 in parts else None,
            [encoded.type_ids[i] for i in real] if len(texts) == 2 else [],
        )
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise TypeError(
            "tokenizer: expected encode() to return ids and tokens, or a "
            f"convert_ids_to_tokens(), got {type(tokenizer).__name__} without"
        )
    _check_has(tokenizer, "one with", "all_special_ids")
    ids = list(encoded)
    special = set(tokenizer.all_special_ids)
    second, types = None, []
    if len(texts) == 2:
        both = tokenizer(*texts)
        parts = both.sequence_ids()
        second = parts.index(1) if 1 in parts else None
        types = list(both.get("token_type_ids", []))
    return Encoded(
        ids,
        tokenizer.convert_ids_to_tokens(ids),
        [i in special for i in ids],
        second,
        types,
    )


def _check_has(found: object, expected: str, name: str) -> None:
    """Refuse what a tokenizer, or its encode(), lacks."""
    if not hasattr(found, name):
        raise TypeError(
            f"tokenizer: expected {expected} {name}, got {type(found).__name__} without"
        )
