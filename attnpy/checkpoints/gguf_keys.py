"""The metadata of a tokenizer in a GGUF file, each value of the kind it has to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy._quoting import named, quoted

if TYPE_CHECKING:
    Metadata = Mapping[str, Any]

PREFIX = "tokenizer.ggml."


class Keys:
    """The metadata of a tokenizer, each value of the kind that it has to be."""

    def __init__(self, metadata: Metadata, path: str) -> None:
        self.metadata, self.path = metadata, path

    def fault(self, key: str, expected: str, got: str) -> ValueError:
        """Return the error of a key."""
        return ValueError(
            f"{named(self.path)}: expected {PREFIX}{key} to be {expected}, got {got}"
        )

    def get(self, key: str, kind: type, words: str, default: Any = None) -> Any:
        """Return a value of a type, or the default where it is not there."""
        value = self.metadata.get(PREFIX + key)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.fault(key, words, quoted(value))
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        return bool(self.get(key, bool, "true or false", default))

    def has_pieces(self) -> bool:
        """Tell whether tokens are SentencePiece's, which are merged by scores."""
        return bool(self.get("model", str, "a text") == "llama")

    def tokens(self) -> list[str]:
        """Return all tokens, no two of them alike."""
        found = self.get("tokens", list, "a list of texts")
        if not found:
            raise self.fault("tokens", "a list of texts", "none")
        known: set[str] = set()
        for text in found:
            if text in known:
                raise self.fault("tokens", "different texts", f"{quoted(text)} again")
            known.add(text)
        return list(found)

    def token(self, key: str, n_tokens: int, default: int | None = None) -> int | None:
        """Return the number of a token."""
        words = f"an integer from 0 to {n_tokens - 1}"
        number = self.get(key, int, words, default)
        if number is None or 0 <= number < n_tokens:
            return None if number is None else int(number)
        raise self.fault(key, words, quoted(number))

    def numbers(self, key: str, n_tokens: int, kinds: str) -> Any:
        """Return a number for each token, or None."""
        words = f"{n_tokens} numbers, one for each token"
        found = self.get(key, np.ndarray, words)
        if found is not None and (
            found.size != n_tokens or found.dtype.kind not in kinds
        ):
            raise self.fault(key, words, f"{found.size} of {found.dtype}")
        return found
