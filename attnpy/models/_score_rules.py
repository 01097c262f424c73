"""Rules that change the scores of tokens while a text is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from attnpy._typing import Array

Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ScoreRules:
    """What may be written, in terms of Hugging Face's settings of generation.

    Attributes
    ----------
    stops : tuple of int
        Tokens that end a text.
    min_tokens : int
        The fewest new tokens before one of them.
    repetition_penalty : float
        Scores of tokens that are there already are divided by it, or multiplied where
        they are negative (Keskar et al., "CTRL", 2019).
    no_repeat_ngram_size : int
        No sequence of this many tokens may come twice; 0 for no such rule.
    bad_words : tuple of tuple of int
        Sequences of tokens that may not be written.
    forced_bos : int or None
        The first new token, where one token came before.
    forced_eos : tuple of int
        The tokens of which one is the last, where the text does not end before.
    suppress_tokens, begin_suppress_tokens : tuple of int
        Tokens that are never written, or not as the first that is not forced.
    """

    stops: Tokens = ()
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words: tuple[Tokens, ...] = ()
    forced_bos: int | None = None
    forced_eos: Tokens = ()
    suppress_tokens: Tokens = ()
    begin_suppress_tokens: Tokens = ()

    def applied(
        self,
        scores: Array,
        tokens: NDArray[np.int64],
        num_start: int,
        num_tokens: int,
    ) -> Array:
        """Return the scores (R, V) of what follows tokens (R, n).

        The first `num_start` of these were given, and up to `num_tokens` come after
        them. The order of the rules is that of Transformers.
        """
        if self == ScoreRules(stops=self.stops):
            return scores
        ruled = np.array(scores, np.float64)
        n_rows, n_known = tokens.shape
        if self.repetition_penalty != 1:
            found = np.take_along_axis(ruled, tokens, -1)
            factor = np.where(
                found < 0, self.repetition_penalty, 1 / self.repetition_penalty
            )
            np.put_along_axis(ruled, tokens, found * factor, -1)
        if self.no_repeat_ngram_size:
            ngrams = [*range(n_rows)], self.no_repeat_ngram_size
            for row in ngrams[0]:
                ruled[row, _after_last(tokens[row], ngrams[1])] = -np.inf
        self._forbid_words(ruled, tokens)
        n_new = n_known - num_start
        if n_new < self.min_tokens:
            ruled[:, self.stops] = -np.inf
        if self.forced_bos is not None and n_known == 1:
            _force(ruled, (self.forced_bos,))
        if self.forced_eos and n_new == num_tokens - 1:
            _force(ruled, self.forced_eos)
        ruled[:, self.suppress_tokens] = -np.inf
        begin = 1 if num_start == 1 and self.forced_bos is not None else 0
        if n_new == begin:
            ruled[:, self.begin_suppress_tokens] = -np.inf
        return ruled

    def _forbid_words(self, ruled: Array, tokens: NDArray[np.int64]) -> None:
        for *before, last in self.bad_words:
            if not before and last in self.stops:
                continue
            n_before = len(before)
            if n_before <= tokens.shape[1]:
                ends = tokens[:, tokens.shape[1] - n_before :]
                ruled[(ends == before).all(axis=-1), last] = -np.inf


def _after_last(tokens: NDArray[np.int64], size: int) -> Sequence[int] | Array:
    """Return the tokens that would make a sequence of this size come again."""
    if len(tokens) < size:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(tokens, size)
    same = (windows[:, :-1] == tokens[len(tokens) - size + 1 :]).all(axis=-1)
    again: Array = windows[same, -1]
    return again


def _force(ruled: Array, tokens: Tokens) -> None:
    """Leave only these tokens."""
    ruled[:] = -np.inf
    ruled[:, tokens] = 0
