"""Tokenizers of encoders in GGUF files: pieces of words, as BERT's, and XLM-RoBERTa's.

What the keys mean is llama.cpp's: its `src/llama-vocab.cpp` is their definition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy.checkpoints.reading import judged_elsewhere

if TYPE_CHECKING:
    from attnpy.checkpoints.gguf_keys import Keys

# What begins a word in a file; BERT's own vocabulary marks what does not begin one.
BEGINS, INSIDE = "\u2581", "##"


class Ends(NamedTuple):
    """The numbers of a tokenizer's own tokens, where a file does not say them."""

    first: int | None
    last: int
    unknown: int


USUAL = {"bert": Ends(101, 102, 100), "t5": Ends(None, 1, 2)}
# Keys of which one has the token that ends a text.
SEPARATORS = ("seperator_token_id", "separator_token_id", "eos_token_id")


def make(keys: Keys, kind: str, tokens: list[str]) -> Any:
    """Make the tokenizer of a kind, with what begins and ends a text."""
    from tokenizers import processors

    made, unknown, pair = (_words if kind == "bert" else _unigrams)(keys, tokens)
    first, last = _ends(keys, kind, len(tokens))
    ends = [number for number in (first, last) if number is not None]
    for number in {*ends, unknown}:
        made.add_special_tokens([_text(made, number)])
    before = [] if first is None else ["BEGIN"]
    names = {"BEGIN": first, "END": last}
    with judged_elsewhere(keys.path, "a tokenizer"):
        made.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", "END"] if last is not None else [*before, "$A"],
            pair=[*before, "$A", *pair] if last is not None else [*before, "$A", "$B"],
            special_tokens=[
                {"id": name, "ids": [number], "tokens": [_text(made, number)]}
                for name, number in names.items()
                if number is not None
            ],
        )
    return made


def _text(made: Any, number: int) -> str:
    return str(made.id_to_token(number))


def _words(keys: Keys, tokens: list[str]) -> tuple[Any, int, list[str]]:
    """Make BERT's tokenizer, with the number of what is not known."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary = {_word(token): i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise keys.fault("tokens", "different texts", "some that are alike as words")
    unknown = _unknown(keys, len(tokens), USUAL["bert"].unknown)
    names = {number: text for text, number in vocabulary.items()}
    is_cased = any(text != text.lower() for text in vocabulary if not _is_special(text))
    with judged_elsewhere(keys.path, "a tokenizer"):
        made = Tokenizer(models.WordPiece(vocabulary, unk_token=names[unknown]))
    made.normalizer = normalizers.BertNormalizer(lowercase=not is_cased)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix=INSIDE)
    return made, unknown, ["END", "$B:1", "END:1"]


def _word(token: str) -> str:
    """Return a token as BERT's vocabulary has it."""
    if token.startswith(BEGINS):
        return token.removeprefix(BEGINS)
    return token if _is_special(token) else INSIDE + token


def _is_special(token: str) -> bool:
    return token.startswith("[") and token.endswith("]")


def _unigrams(keys: Keys, tokens: list[str]) -> tuple[Any, int, list[str]]:
    """Make XLM-RoBERTa's tokenizer, with the number of what is not known."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as cuts

    scores = keys.numbers("scores", len(tokens), "fi")
    if scores is None:
        raise keys.fault("scores", f"{len(tokens)} numbers, one for each token", "none")
    if not np.isfinite(scores).all():
        raise keys.fault("scores", "finite numbers", "others")
    unknown = _unknown(keys, len(tokens), USUAL["t5"].unknown)
    pairs = [*zip(tokens, map(float, scores), strict=True)]
    with judged_elsewhere(keys.path, "a tokenizer"):
        made = Tokenizer(models.Unigram(pairs, unknown, byte_fallback=False))
    steps: list[Any] = []
    if (charsmap := _charsmap(keys)) is not None:
        with judged_elsewhere(keys.path, "a tokenizer"):
            steps.append(normalizers.Precompiled(charsmap))
    spaces = keys.flag("remove_extra_whitespaces", False)
    if spaces:
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    made.normalizer = normalizers.Sequence(steps)
    prefix = "always" if keys.flag("add_space_prefix", True) else "never"
    cut = cuts.Metaspace(BEGINS, prepend_scheme=prefix)
    made.pre_tokenizer = cuts.Sequence([*[cuts.WhitespaceSplit()] * spaces, cut])
    made.decoder = decoders.Metaspace(BEGINS, prepend_scheme=prefix)
    return made, unknown, ["END", "END", "$B", "END"]


def _charsmap(keys: Keys) -> bytes | None:
    """Return SentencePiece's table of characters: how long a trie is, it, and texts."""
    words = "a table of characters"
    found = keys.get("precompiled_charsmap", np.ndarray, words)
    if found is None:
        return None
    data: bytes = found.tobytes()
    n = int.from_bytes(data[:4], "little")
    if found.dtype.itemsize != 1 or n == 0 or n % 1024 or 4 + n > len(data):
        raise keys.fault("precompiled_charsmap", words, f"{len(data)} bytes")
    return data


def _ends(keys: Keys, kind: str, n_tokens: int) -> tuple[int | None, int | None]:
    """Return the tokens that a text begins and ends with."""
    usual, is_bert = USUAL[kind], kind == "bert"
    first: int | None = None
    if keys.flag("add_bos_token", is_bert):
        first = keys.token("bos_token_id", n_tokens)
        if first is None:
            first = keys.token(
                "cls_token_id", n_tokens, _if_there(usual.first, n_tokens)
            )
        if first is None:
            raise keys.fault("bos_token_id", "a token, as texts begin with it", "none")
    if not keys.flag("add_sep_token" if is_bert else "add_eos_token", True):
        return first, None
    for key in SEPARATORS if is_bert else SEPARATORS[-1:]:
        if (last := keys.token(key, n_tokens)) is not None:
            return first, last
    if (last := _if_there(usual.last, n_tokens)) is None:
        raise keys.fault("eos_token_id", "a token, as texts end with it", "none")
    return first, last


def _unknown(keys: Keys, n_tokens: int, usual: int) -> int:
    number = keys.token("unknown_token_id", n_tokens, _if_there(usual, n_tokens))
    if number is None:
        raise keys.fault("unknown_token_id", "a token", "none")
    return number


def _if_there(number: int | None, n_tokens: int) -> int | None:
    return number if number is not None and number < n_tokens else None
