"""Marian's tokens: pieces of SentencePiece, and their numbers in vocab.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnpy._quoting import named, quoted
from attnpy.checkpoints.reading import judged_elsewhere, read_bytes, read_json
from attnpy.models._sentence_folder import Fields

if TYPE_CHECKING:
    from collections.abc import Sequence


class Code(NamedTuple):
    """The tokens of a text."""

    ids: list[int]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.ids)


class MarianPieces:
    """Turns texts into tokens and back, as a `tokenizers.Tokenizer` does.

    Two models of SentencePiece cut the source and put the target together. A vocabulary
    has the numbers of pieces of both.
    """

    def __init__(
        self,
        source: Any,
        target: Any,
        vocab: dict[str, int],
        special: dict[str, str],
    ) -> None:
        """Take the models, the vocabulary, and the names of special tokens."""
        self.source, self.target, self.vocab = source, target, vocab
        self.pieces = {number: piece for piece, number in vocab.items()}
        self.unknown, self.end = (
            vocab[special["unk_token"]],
            vocab[special["eos_token"]],
        )
        self.special = {vocab[piece] for piece in special.values() if piece in vocab}
        self.max_length: int | None = None

    def token_to_id(self, token: str) -> int | None:
        """Return the number of a piece, or None."""
        return self.vocab.get(token)

    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        """Return how many tokens are added to each text: its end."""
        return 1

    def no_padding(self) -> None:
        """Do nothing: there is none."""

    def no_truncation(self) -> None:
        """Cut no text."""
        self.max_length = None

    def enable_truncation(
        self, max_length: int, strategy: str = "", direction: str = "right"
    ) -> None:
        """Cut texts to this many tokens, the last of which is their end."""
        if direction != "right":
            raise ValueError(f"truncation_side: expected right, got {direction!r}")
        self.max_length = max_length

    def encode(self, text: str) -> Code:
        """Return the tokens of a text; it may begin with a language as >>fra<<."""
        code, rest = [], text
        if text.startswith(">>") and "<<" in text:
            end = text.index("<<") + 2
            code, rest = [text[:end]], text[end:]
        pieces = code + self.source.encode(rest, out_type=str)
        ids = [self.vocab.get(piece, self.unknown) for piece in pieces]
        if self.max_length is not None:
            ids = ids[: self.max_length - 1]
        return Code([*ids, self.end])

    def encode_batch_fast(self, texts: Sequence[str]) -> list[Code]:
        """Return the tokens of texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens."""
        kept = [i for i in ids if not (skip_special_tokens and i in self.special)]
        pieces = [self.pieces.get(int(i), "") for i in kept]
        text: str = self.target.decode_pieces(pieces)
        return text.replace("\u2581", " ").strip()

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of tokens."""
        return [self.decode(row) for row in rows]


def read(folder: Path) -> MarianPieces:
    """Read source.spm, target.spm, vocab.json and the names of special tokens."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise ImportError(
            f"{folder}: expected tokenizer.json, or source.spm and target.spm, which "
            "need the sentencepiece package: pip install sentencepiece"
        ) from error
    fields = Fields(folder / "tokenizer_config.json")
    fields.require("separate_vocabs", False)
    fields.require("sp_model_kwargs", {})
    special = {
        name: fields.rest.get(name, usual)
        for name, usual in (
            ("unk_token", "<unk>"),
            ("eos_token", "</s>"),
            ("pad_token", "<pad>"),
        )
    }
    path = folder / "vocab.json"
    vocab = read_json(path)
    numbers = all(type(number) is int and number >= 0 for number in vocab.values())
    if not numbers or len(set(vocab.values())) < len(vocab):
        raise ValueError(f"{named(path)}: expected a different number for each piece")
    for name, piece in special.items():
        if not isinstance(piece, str) or piece not in vocab:
            raise ValueError(
                f"{named(path)}: expected {name} among the pieces, got {quoted(piece)}"
            )

    def model(name: str) -> Any:
        data = read_bytes(folder / name)
        with judged_elsewhere(folder / name, "a model of SentencePiece"):
            try:
                return SentencePieceProcessor(model_proto=data)
            except RuntimeError as error:
                raise ValueError(str(error)) from error

    return MarianPieces(model("source.spm"), model("target.spm"), vocab, special)
