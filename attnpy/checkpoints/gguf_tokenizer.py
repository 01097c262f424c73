"""The tokenizer of a GGUF file, as one of the tokenizers package; its end tokens.

What the keys mean is llama.cpp's: its `src/llama-vocab.cpp` is their definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy._quoting import named, quoted
from attnpy.checkpoints import gguf_words
from attnpy.checkpoints.gguf_keys import PREFIX, Keys
from attnpy.checkpoints.reading import judged_elsewhere

if TYPE_CHECKING:
    Metadata = Mapping[str, Any]

# Types of tokens.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
# Tokens that end a text wherever they are, as their numbers are often left out.
ENDS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"),
        *("<|eom_id|>", "<end_of_turn>", "<EOT>"),
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek's
    )
)
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# Keys of "tokenizer." that are read; others, but for these values, are refused; and
# what does not matter.
READ = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("model", "pre", "tokens", "token_type", "scores", "merges", *END_KEYS),
        *("bos_token_id", "unknown_token_id", "add_bos_token", "add_eos_token"),
        "add_space_prefix",
    )
) | {"tokenizer.chat_template"}
# Those of encoders, as well.
READ_OF = {
    "bert": {f"{PREFIX}add_sep_token"},
    "t5": {f"{PREFIX}remove_extra_whitespaces", f"{PREFIX}precompiled_charsmap"},
}
NEUTRAL: dict[str, tuple[object, ...]] = {
    f"{PREFIX}add_sep_token": (False,),
    f"{PREFIX}remove_extra_whitespaces": (False,),
}
HARMLESS = {
    "numbers of tokens, which texts have by name": tuple(
        f"{PREFIX}{name}_token_id"
        for name in (
            *("padding", "seperator", "separator", "mask", "cls", "prefix", "suffix"),
            *("middle", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep"),
            "fim_sep",
        )
    ),
    "how many types tokens have, which token_types.weight says itself": (
        f"{PREFIX}token_type_count",
    ),
    "the same tokenizer again": ("tokenizer.huggingface.json",),
    "templates beside the usual one": (
        "tokenizer.chat_templates",
        "tokenizer.chat_template.*",
    ),
}

# How texts are cut before their parts are merged. Regular expressions from the
# tokenizers of the models, which the names stand for.
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class Cut(NamedTuple):
    """How a text is cut before pairs are merged, by the file's ``tokenizer.ggml.pre``.

    Attributes
    ----------
    pattern : str or None
        None is that of GPT-2.
    digits : bool
        Cut digits apart first.
    whole : bool
        A part that is a token is not merged.
    begins : bool
        Texts begin with a token of their own, where the file does not say.
    nfc : bool
        Characters are composed first.
    """

    pattern: str | None = None
    digits: bool = False
    whole: bool = False
    begins: bool = False
    nfc: bool = False


GPT2 = Cut()
SMOLLM = Cut(digits=True)
LLAMA3_PATTERN = rf"{_WORD}|\p{{N}}{{1,3}}|{_REST}"
LLAMA3 = Cut(LLAMA3_PATTERN, whole=True, begins=True)
QWEN2_PATTERN = rf"{_WORD}|\p{{N}}|{_REST}"
SEED_PATTERN = rf"{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = Cut(rf"{_CASED % ('', '')}|\p{{N}}|{_CASED_REST}", whole=True, begins=True)
GPT4O = Cut(rf"{_CASED % (_SHORT, _SHORT)}|\p{{N}}{{1,3}}|{_CASED_REST}")
CUTS: dict[str, Cut] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "exaone4"), GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), SMOLLM),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Cut(LLAMA3_PATTERN)),
    **dict.fromkeys(("glm4", "chatglm-bpe"), Cut(LLAMA3_PATTERN)),
    "qwen2": Cut(QWEN2_PATTERN, nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2"), Cut(QWEN2_PATTERN)),
    "command-r": Cut(digits=True, nfc=True),
    "seed-coder": Cut(SEED_PATTERN),
    "tekken": TEKKEN,
    "gpt-4o": GPT4O,
}
# Of pieces, which are looked at in all their parts: far more than any model has.
LONGEST_PIECE = 512
# Numbers of tokens where a file with pieces of SentencePiece does not say them.
USUAL_PIECES = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}


def stop(metadata: Metadata, path: str) -> tuple[int, ...]:
    """Return the tokens that end a text, in the order of their numbers."""
    keys = Keys(metadata, path)
    if PREFIX + "tokens" not in metadata:
        return ()
    tokens = keys.tokens()
    usual = USUAL_PIECES if keys.has_pieces() else {}
    found = {
        keys.token(key, len(tokens), _usual(usual, key, tokens)) for key in END_KEYS
    }
    types = keys.numbers("token_type", len(tokens), "iu")
    if types is not None:
        for i in np.flatnonzero(np.isin(types, (CONTROL, USER_DEFINED))).tolist():
            if tokens[i] in ENDS:
                found.add(i)
    return tuple(sorted(token for token in found if token is not None))


def make(metadata: Metadata, path: str) -> Any:
    """Make the tokenizer of a file."""
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "attnpy.checkpoints: turning text into tokens needs the tokenizers "
            "package: pip install 'attnpy[gguf]'"
        ) from error
    keys = Keys(metadata, path)
    kind = keys.get("model", str, "a name")
    makers: dict[str, Callable[[Keys, list[str]], tuple[Any, bool]]]
    makers = {"gpt2": _bytes, "llama": _pieces}
    if kind not in makers and kind not in gguf_words.USUAL:
        got = "none" if kind is None else quoted(kind)
        raise keys.fault("model", "gpt2, llama, bert or t5", got)
    check(metadata, path)
    tokens = keys.tokens()
    if kind in gguf_words.USUAL:
        return gguf_words.make(keys, kind, tokens)
    made, begins = makers[kind](keys, tokens)
    added = _added(keys, tokens, tokenizers.AddedToken)
    ends = _first_and_last(
        keys, tokens, begins, USUAL_PIECES if kind == "llama" else {}
    )
    with judged_elsewhere(path, "a tokenizer"):
        made.add_tokens(added)
        if ends != (None, None):
            made.post_processor = _surrounding(tokens, *ends)
    return made


def check(metadata: Metadata, path: str) -> None:
    """Refuse the keys of tokenizers that are not honoured."""
    read = READ | READ_OF.get(str(metadata.get(f"{PREFIX}model")), set())
    harmless = [name for names in HARMLESS.values() for name in names]
    starts = tuple(name[:-1] for name in harmless if name.endswith("*"))
    for key, value in metadata.items():
        if not key.startswith("tokenizer.") or key in read or key in harmless:
            continue
        neutral = NEUTRAL.get(key, ())
        if not key.startswith(starts) and not _is_one_of(value, neutral):
            wanted = f"{key} = {neutral[0]!r}" if neutral else f"no {named(key)}"
            raise ValueError(f"{named(path)}: expected {wanted}, got {quoted(value)}")


def _is_one_of(value: object, values: tuple[object, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in values)


def _usual(usual: Mapping[str, int], key: str, tokens: list[str]) -> int | None:
    number = usual.get(key)
    return number if number is not None and number < len(tokens) else None


def _bytes(keys: Keys, tokens: list[str]) -> tuple[Any, bool]:
    """Make a tokenizer of bytes, as GPT-2's; and tell whether its texts begin so."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as cuts

    name = keys.get("pre", str, "a name")
    if name not in CUTS:
        got = "none" if name is None else quoted(name)
        raise keys.fault("pre", f"one of {', '.join(CUTS)}", got)
    cut = CUTS[name]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges, space = _merges(keys, vocabulary), keys.flag("add_space_prefix", False)
    with judged_elsewhere(keys.path, "a tokenizer"):
        made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut.whole))
    steps: list[Any] = [cuts.Digits(individual_digits=True)] * cut.digits
    if cut.pattern is not None:
        steps.append(cuts.Split(Regex(cut.pattern), "isolated"))
    steps.append(cuts.ByteLevel(add_prefix_space=space, use_regex=cut.pattern is None))
    made.pre_tokenizer = cuts.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    if cut.nfc:
        made.normalizer = normalizers.NFC()
    return made, cut.begins


def _merges(keys: Keys, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs that are merged, the first first."""
    lines = keys.get("merges", list, "a list of texts")
    if lines is None:
        raise keys.fault("merges", "a list of texts", "none")
    pairs = []
    for line in lines:
        at = line.find(" ", 1)  # a part may begin with a space, and no other has one
        first, second = line[: max(at, 0)], line[at + 1 :]
        if at < 0 or not vocabulary.keys() >= {first, second, first + second}:
            raise keys.fault(
                "merges", "pairs of tokens that make a token", quoted(line)
            )
        pairs.append((first, second))
    return pairs


def _pieces(keys: Keys, tokens: list[str]) -> tuple[Any, bool]:
    """Make a tokenizer of SentencePiece's pieces; texts begin with a token."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = keys.numbers("scores", len(tokens), "fi")
    if scores is None:
        raise keys.fault("scores", f"{len(tokens)} numbers, one for each token", "none")
    if np.isnan(scores).any():
        raise keys.fault("scores", "numbers", "NaN")
    if len(longest := max(tokens, key=len)) > LONGEST_PIECE:
        words = f"texts of at most {LONGEST_PIECE} characters"
        raise keys.fault("tokens", words, quoted(longest))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    unknown = keys.token(
        "unknown_token_id",
        len(tokens),
        _usual(USUAL_PIECES, "unknown_token_id", tokens),
    )
    space = keys.flag("add_space_prefix", True)
    with judged_elsewhere(keys.path, "a tokenizer"):
        made = Tokenizer(
            models.BPE(
                vocabulary,
                _merges_by_score(vocabulary, scores),
                unk_token=None if unknown is None else tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
    steps = [normalizers.Prepend("▁")] * space + [normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence(steps)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(parts + [decoders.Strip(" ", 1, 0)] * space)
    return made, True


def _merges_by_score(
    vocabulary: Mapping[str, int], scores: Any
) -> list[tuple[str, str]]:
    """Return the pairs whose token has the highest score first.

    SentencePiece merges the two neighbours that make the token with the highest score,
    and so has no list of pairs.
    """
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores.astype(np.float64), kind="stable")] = np.arange(
        len(scores)
    )
    pairs = [
        (int(ranks[i]), token[:at], token[at:])
        for token, i in vocabulary.items()
        for at in range(1, len(token))
        if token[:at] in vocabulary and token[at:] in vocabulary
    ]
    pairs.sort(key=lambda pair: (pair[0], vocabulary[pair[1]], vocabulary[pair[2]]))
    return [(first, second) for _, first, second in pairs]


def _added(keys: Keys, tokens: list[str], kind: Any) -> list[Any]:
    """Return the tokens that are found in a text as they are, before it is cut."""
    types = keys.numbers("token_type", len(tokens), "iu")
    if types is None:
        return []
    return [
        kind(tokens[i], special=bool(types[i] != USER_DEFINED), normalized=False)
        for i in np.flatnonzero(
            np.isin(types, (UNKNOWN, CONTROL, USER_DEFINED))
        ).tolist()
        if tokens[i]
    ]


def begins(metadata: Metadata, path: str) -> int | None:
    """Return the token that a text begins with, where it has one."""
    keys = Keys(metadata, path)
    pieces = keys.has_pieces()
    cut = CUTS.get(str(metadata.get(PREFIX + "pre")), GPT2)
    return _first(keys, keys.tokens(), pieces or cut.begins, pieces)


def _first(keys: Keys, tokens: list[str], default: bool, pieces: bool) -> int | None:
    if not keys.flag("add_bos_token", default):
        return None
    usual = _usual(USUAL_PIECES, "bos_token_id", tokens) if pieces else None
    number = keys.token("bos_token_id", len(tokens), usual)
    if number is None:
        raise keys.fault("bos_token_id", "a token, as texts begin with it", "none")
    return number


def _first_and_last(
    keys: Keys, tokens: list[str], begins: bool, usual: Mapping[str, int]
) -> tuple[int | None, int | None]:
    """Return the tokens that a text begins and ends with, where it has some."""
    first = _first(keys, tokens, begins, bool(usual))
    if not keys.flag("add_eos_token", False):
        return first, None
    end = _usual(usual, "eos_token_id", tokens)
    last = keys.token("eos_token_id", len(tokens), end)
    if last is None:
        raise keys.fault("eos_token_id", "a token, as texts end with it", "none")
    return first, last


def _surrounding(tokens: list[str], first: int | None, last: int | None) -> Any:
    """Return what adds these tokens to a text."""
    from tokenizers import processors

    named_parts = [None if token is None else f"T{token}" for token in (first, last)]
    before, after = ([] if part is None else [part] for part in named_parts)
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=[
            {"id": f"T{token}", "ids": [token], "tokens": [tokens[token]]}
            for token in dict.fromkeys((first, last))
            if token is not None
        ],
    )
