"""Texts on their way into a model: judged, turned into tokens, put side by side."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from attnpy import _checks, _dtypes, _machine
from attnpy._quoting import listed, quoted
from attnpy.checkpoints.reading import judged_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from attnpy._typing import Array

Item = TypeVar("Item")

# How many batches of texts are in memory at a time, and sorted by their lengths.
WINDOW = 64


def text(value: object, name: str) -> str:
    """Return a text that can be turned into tokens."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: expected a text in Unicode, got {error}") from None
    return value


def names(values: Iterable[str], name: str) -> tuple[str, ...]:
    """Return names as a tuple."""
    if isinstance(values, str):
        raise TypeError(f"{name}: expected strings, got one string")
    return tuple(text(value, f"{name}[{i}]") for i, value in enumerate(values))


def pair(value: object, name: str) -> tuple[str, str]:
    """Return two texts that can be turned into tokens."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        kind = type(value).__name__
        got = f"{len(value)} values" if isinstance(value, (list, tuple)) else kind
        raise ValueError(f"{name}: expected a pair of strings, got {got}")
    return text(value[0], f"{name}[0]"), text(value[1], f"{name}[1]")


def windows(
    texts: Iterable[object],
    n: int,
    name: str,
    check: Callable[[object, str], Item],
) -> Iterator[list[Item]]:
    """Go through texts, or pairs of them, this many at a time."""
    if hasattr(texts, "columns"):  # of pandas or Polars
        raise TypeError(
            f"{name}: expected one column of a table, such as table['text'], got a "
            f"{type(texts).__name__}"
        )
    kind = "strings" if check is text else "pairs of strings"
    if isinstance(texts, (set, frozenset)):
        raise TypeError(
            f"{name}: expected {kind} in an order, got a {type(texts).__name__}"
        )
    if (
        isinstance(texts, (str, bytes, Mapping))
        or not isinstance(texts, Iterable)
        or getattr(texts, "ndim", 1) == 0
    ):
        raise TypeError(f"{name}: expected {kind}, got {type(texts).__name__}")
    remaining, begin = iter(texts), 0
    while window := list(itertools.islice(remaining, min(n, sys.maxsize))):
        yield [check(item, f"{name}[{begin + i}]") for i, item in enumerate(window)]
        begin += len(window)


def prompt(
    prompts: Mapping[str, str], usual: str | None, given: str | None, name: str | None
) -> str:
    """Return what to put before texts: a prompt, or one of `prompts` by its name."""
    if given is not None:
        if name is not None:
            raise ValueError("prompt: expected None with prompt_name, got both")
        return text(given, "prompt")
    name = usual if name is None else name
    if name is None:
        return ""
    if not isinstance(name, str) or name not in prompts:
        known = f"one of {listed(prompts)}" if prompts else "None, as there is none"
        raise ValueError(f"prompt_name: expected {known}, got {quoted(name)}")
    return text(prompts[name], f"prompts[{quoted(name)}]")


# ---- Tokens --------------------------------------------------------------------------


def check_tokenizer(tokenizer: object) -> None:
    """Require what turns texts into tokens."""
    if not hasattr(tokenizer, "encode_batch_fast"):
        raise TypeError(
            "tokenizer: expected a tokenizers.Tokenizer of version 0.20 or later, "
            f"got {type(tokenizer).__name__}"
        )


def encoded(
    tokenizer: Any,
    texts: Sequence[str | tuple[str, str]],
    num_threads: int | None,
    special: bool = True,
) -> list[Any]:
    """Return the tokens of texts, or of pairs of them: with `ids` and `type_ids`.

    Without `special` the tokens that begin and end a text are left out.
    """
    n = _machine.get_num_threads() if num_threads is None else num_threads
    n_threads = _checks.count(n, "num_threads")
    # Only where it is needed, for Marian's tokenizer has no such option.
    how = {} if special else {"add_special_tokens": False}
    with judged_elsewhere("tokenizer", "one that makes tokens of these texts"):
        if n_threads == 1:
            return [
                tokenizer.encode(*((item,) if isinstance(item, str) else item), **how)
                for item in texts
            ]
        codes: list[Any] = tokenizer.encode_batch_fast(texts, **how)
        return codes


def batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Go through the places of texts with these lengths, similar ones together.

    The longest come first: when these fit into memory, all do.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for begin in range(0, len(order), batch_size):
        yield order[begin : begin + batch_size]


def padded(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return rows of numbers side by side, (B, L), with 0 after their ends."""
    table = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for to, row in zip(table, rows, strict=True):
        to[: len(row)] = row
    return table


def token_vectors(
    model: Any,
    tokens: Sequence[Sequence[int]],
    batch_size: int,
    num_threads: int | None,
    seen: Sequence[int] | None = None,
) -> Iterator[tuple[list[int], list[Array]]]:
    """Go through texts in batches: their places, and the vectors (L, E) of each.

    `seen` says to how many tokens of a text, the first ones, all of it may attend.
    """
    dtype = _dtypes.arithmetic(model.token_embedding.dtype)
    for chosen in batches([*map(len, tokens)], batch_size):
        rows = [tokens[i] for i in chosen]
        lengths = [*map(len, rows)]
        ids, options = padded(rows), {}
        if seen is not None:
            ends = np.array([seen[i] for i in chosen])[:, np.newaxis]
            options["token_mask"] = np.arange(ids.shape[1]) < ends
        states = model(ids, lengths=lengths, num_threads=num_threads, **options)
        states = states.astype(dtype, copy=False)  # (B, L, E)
        yield chosen, [text[:n] for text, n in zip(states, lengths, strict=True)]
