"""Beam search: several texts are continued at a time, and the best ones are kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attnpy._softmax import softmax
from attnpy.models import sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnpy._typing import Array

# What is added to the score of a text that must not be chosen before any other. It is
# finite, as in Transformers: such texts fill places where there are too few others.
LOW = -1e9


class Beams(NamedTuple):
    """The texts that a search has found, the best first.

    Attributes
    ----------
    tokens : ndarray of int64, shape (n,), (k, n), (B, n) or (B, k, n)
        The new tokens; shorter texts repeat their last one.
    scores : ndarray of float64, of the shape of tokens without the last axis
        The sum of the logarithms of their probabilities, divided by the number of
        tokens to the power of `length_penalty`.
    """

    tokens: NDArray[np.int64]
    scores: NDArray[np.float64]


class _Finished:
    """The best texts of each source that have ended."""

    def __init__(self, n_sources: int, n_beams: int, n_tokens: int) -> None:
        self.tokens = np.zeros((n_sources, n_beams, n_tokens), np.int64)
        self.scores = np.full((n_sources, n_beams), -np.inf)
        self.ended = np.zeros((n_sources, n_beams), bool)

    def merge(
        self,
        sources: NDArray[np.int64],
        tokens: NDArray[np.int64],
        scores: NDArray[np.float64],
        ended: NDArray[np.bool_],
    ) -> None:
        """Keep the best of those so far and of these, (S, k), of some sources."""
        n_beams = self.scores.shape[1]
        scores = np.concatenate([self.scores[sources], scores], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :n_beams]
        joined = np.concatenate([self.tokens[sources], tokens], axis=1)
        flags = np.concatenate([self.ended[sources], ended], axis=1)
        self.tokens[sources] = np.take_along_axis(joined, best[..., np.newaxis], 1)
        self.scores[sources] = np.take_along_axis(scores, best, 1)
        self.ended[sources] = np.take_along_axis(flags, best, 1)


def search(
    model: sampling.LanguageModel,
    start: NDArray[np.int64],
    num_tokens: int,
    *,
    num_beams: int,
    length_penalty: float,
    early_stopping: bool | Literal["never"],
    stops: NDArray[np.int64],
    num_threads: int | None,
) -> Beams:
    """Return the best texts (B, num_beams, n) that begin with `start`, (B, p).

    The rules are those of Transformers, where `num_beams` texts of each source are
    continued, and as many that have ended are kept: `early_stopping` says when none of
    these can be replaced by a better one, or that it does not matter.
    """
    n_sources, n_start = start.shape
    _check_penalty(num_tokens, length_penalty)
    caches = model.new_caches(n_sources * num_beams, n_start + num_tokens - 1)
    known = np.zeros((n_sources, num_beams, n_start + num_tokens), np.int64)
    known[..., :n_start] = start[:, np.newaxis]
    running = np.full((n_sources, num_beams), LOW)
    running[:, 0] = 0  # all begin alike: only one of them goes on
    done = _Finished(n_sources, num_beams, n_start + num_tokens)
    n_kept = max(2, 1 + len(stops)) * num_beams
    is_first = np.arange(n_kept) < num_beams
    sources = np.arange(n_sources)  # whose search has not ended
    n_new = 0
    while n_new < num_tokens and sources.size:
        end = n_start + n_new
        new = known[sources][..., 0 if n_new == 0 else end - 1 : end]
        states = model(
            new.reshape(-1, new.shape[-1]), caches=caches, num_threads=num_threads
        )
        scores = model.logits(states[:, -1], num_threads=num_threads)
        flat = known[sources][..., :end].reshape(-1, end)
        logs = sampling.ruled(model, _log_softmax(scores, num_threads), flat, n_new)
        total = logs.reshape(len(sources), num_beams, -1) + running[..., np.newaxis]
        vocab_size = total.shape[-1]
        places = _largest(total.reshape(len(sources), -1), n_kept)
        best = np.take_along_axis(total.reshape(len(sources), -1), places, 1)
        parents, tokens = places // vocab_size, places % vocab_size
        texts = np.take_along_axis(known[sources], parents[..., np.newaxis], 1)
        texts[..., end:] = tokens[..., np.newaxis]  # the last one is repeated
        n_new += 1
        ended = np.isin(tokens, stops) | (n_new == num_tokens)

        going = best + LOW * ended
        chosen = np.argsort(-going, axis=1, kind="stable")[:, :num_beams]
        running = np.take_along_axis(going, chosen, 1)
        known[sources] = np.take_along_axis(texts, chosen[..., np.newaxis], 1)
        final = best / n_new**length_penalty + LOW * ~(ended & is_first)
        done.merge(sources, texts, final, ended & is_first)

        longest = num_tokens if early_stopping == "never" else n_new
        length = longest if length_penalty > 0 else n_new
        possible = running[:, :1] / length**length_penalty
        full, worst = done.ended[sources], done.scores[sources].min(1, keepdims=True)
        open_ = (possible > np.where(full, worst, LOW)).any(axis=1)
        if early_stopping is True:
            open_ &= ~full.all(axis=1)
        rows = np.take_along_axis(parents, chosen, 1)
        rows += np.arange(len(sources))[:, np.newaxis] * num_beams
        if n_new < num_tokens and open_.any():
            sampling.select(model, caches, rows[open_].reshape(-1), open_)
        sources, running = sources[open_], running[open_]
    return _result(done, stops, n_start)


def _log_softmax(scores: Array, num_threads: int | None) -> NDArray[np.float64]:
    """Return the logarithms of the probabilities, (R, V)."""
    checked = sampling.checked_scores(scores)
    _, lse = softmax(scores, num_threads)
    logs: NDArray[np.float64] = checked - lse[..., np.newaxis]
    return logs


def _largest(rows: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Return the places of the n largest numbers, the first of equal ones first."""
    places = np.empty((len(rows), n), np.int64)
    for to, row in zip(places, rows, strict=True):
        least = np.partition(row, len(row) - n)[len(row) - n]
        candidates = np.flatnonzero(row >= least)
        order = np.argsort(-row[candidates], kind="stable")[:n]
        to[:] = candidates[order]
    return places


def _check_penalty(num_tokens: int, length_penalty: float) -> None:
    """Refuse what makes infinity or zero of the number that scores are divided by."""
    try:
        power = float(num_tokens) ** length_penalty
    except OverflowError:
        power = math.inf
    if not 0 < power < math.inf:
        raise ValueError(
            "length_penalty: expected one to whose power the number of tokens is "
            f"finite and not 0, got {length_penalty} for {num_tokens}"
        )


def _result(done: _Finished, stops: NDArray[np.int64], n_start: int) -> Beams:
    """Return the texts without their beginning, and cut after the longest."""
    tokens = done.tokens[..., n_start:]
    return Beams(cut(tokens, stops), done.scores)


def cut(tokens: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return texts (..., n) up to the last token of the longest."""
    ends = np.isin(tokens, stops)
    going = ~np.logical_or.accumulate(ends, axis=-1)
    return tokens[..., : int((going.sum(axis=-1) + 1).max(initial=0))]
