"""From scores to tokens: one of them, and a sequence continued."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from attnpy import _checks, _dtypes
from attnpy.models import _embedding
from attnpy.positions.rotary import changes_once

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array
    from attnpy.cache import KVCache
    from attnpy.models.decoder import CausalDecoder


def sample(
    logits: ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Draw a token from each row of scores.

    Parameters
    ----------
    logits : array_like, shape (..., V)
        Logarithms of the probabilities, up to a constant for each row: real numbers,
        of which -inf is a probability of 0, but not all of a row. NaN and +inf, which
        are no logarithm of a probability, are errors.
    temperature : float, optional
        The scores are divided by it. 0 takes the highest score, the first of equal
        ones, and draws nothing.
    top_k : int, optional
        Draw from so many tokens with the highest scores.
    top_p : float, optional
        Draw from the fewest tokens that together have at least this probability, those
        with the highest scores (after `top_k`); above 0, at most 1.
    rng : numpy.random.Generator, optional
        Gives one number for each row; needed where temperature is not 0.

    Returns
    -------
    ndarray of int64, shape (...)

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    The fewest tokens with a probability are from Holtzman et al., "The Curious Case of
    Neural Text Degeneration" (2020). Probabilities are computed in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import sample
    >>> logits = np.log([[0.5, 0.3, 0.15, 0.05]] * 1000)
    >>> sample(logits[0], temperature=0)
    array(0)
    >>> tokens = sample(logits, top_p=0.9, rng=np.random.default_rng(0))
    >>> np.unique(tokens)
    array([0, 1, 2])
    """
    scores = _checked_scores(logits)
    if np.ndim(temperature) > 0 or temperature != 0:
        temperature = _checks.above(temperature, "temperature", 0)
    n_kept = scores.shape[-1] if top_k is None else _checks.count(top_k, "top_k")
    share = 1.0 if top_p is None else _checks.above(top_p, "top_p", 0)
    if share > 1:
        raise ValueError(f"top_p: expected at most 1, got {top_p}")
    if rng is not None:
        _checks.generator(rng)
    if temperature == 0:
        return np.asarray(scores.argmax(axis=-1), np.int64)
    if rng is None:
        raise ValueError(
            "rng: expected a numpy.random.Generator where temperature is not 0, "
            "got None"
        )
    order, terms = _most_probable(scores, temperature, n_kept, share)
    ranks = _drawn(terms, _checks.generator(rng))
    return np.take_along_axis(order, ranks, axis=-1)[..., 0]


def generate(
    self: CausalDecoder,
    token_ids: ArrayLike,
    n_tokens: int,
    *,
    lengths: ArrayLike | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: np.random.Generator | None = None,
    stop: ArrayLike | None = None,
    num_threads: int | None = None,
) -> NDArray[np.int64]:
    """Continue sequences, with their keys and values kept from token to token.

    Parameters
    ----------
    token_ids : array_like of int, shape (L,) or (B, L)
        What to continue; at least one token.
    n_tokens : int
        How many tokens to add.
    lengths : int or array_like of int, shape (B,), optional
        How many of the tokens of each sequence exist, at its start: at least 1.
    temperature, top_k, top_p, rng
        As in `sample`; by default always the token with the highest score.
    stop : int or array_like of int, shape (n,), optional
        Tokens after which a sequence has ended, each 0 to ``V - 1``: the rest of it is
        the token that ended it.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`.

    Returns
    -------
    ndarray of int64, shape (n_tokens,) or (B, n_tokens)
        The new tokens.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, dtype or shape, or is out of its range. If
        the model has no scores, or sees both ways.
    MemoryError
        If memory cannot hold the keys and values of so many tokens.
    """
    ids = _embedding.checked_ids(token_ids, len(self.token_embedding))
    if self.tied is None:
        raise ValueError("tied: expected True or False to generate, got None")
    if not self.decoder.layers[0].causal:
        raise ValueError("causal: expected True to generate, got a model with False")
    batch = np.atleast_2d(ids)  # (B, L)
    n_sequences, length = batch.shape
    n_tokens = _checks.count(n_tokens, "n_tokens")
    stops = _checked_stops(stop, len(self.token_embedding))
    ends = _embedding.checked_lengths(length if lengths is None else lengths, batch, 1)
    if self.position_embedding is not None:
        longest = int(ends.max(initial=0)) + n_tokens - 1
        _embedding.check_positions(longest, self.position_embedding)
    new_caches = functools.partial(
        self.decoder.new_caches, n_sequences, length + n_tokens - 1
    )
    caches = new_caches()
    last = _last(self, batch, ends, caches, num_threads)  # (B, E)
    new = np.zeros((n_sequences, n_tokens), np.int64)
    going = np.ones(n_sequences, bool)
    for i in range(n_tokens):
        if i > 0 and _turns_change(self, ends + i):
            caches, known = new_caches(), _continued(batch, ends, new[:, :i])
            last = _last(self, known, ends + i, caches, num_threads)
        elif i > 0:
            column = new[:, i - 1 : i]
            last = self(column, caches=caches, num_threads=num_threads)[:, 0]
        tokens = sample(
            self.logits(last, num_threads=num_threads),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            rng=rng,
        )
        tokens = np.where(going, tokens, new[:, i])
        new[:, i:] = tokens[:, np.newaxis]  # for those that end here
        going &= ~np.isin(tokens, stops)
        if not going.any():
            break
    return new if ids.ndim == 2 else new[0]


def _last(
    model: CausalDecoder,
    batch: NDArray[np.int64],
    ends: NDArray[np.int64],
    caches: list[KVCache],
    num_threads: int | None,
) -> Array:
    """Return the vectors (B, E) of the last of the `ends` tokens that exist."""
    is_full = bool((ends == batch.shape[1]).all())
    lengths = None if is_full else ends
    states = model(batch, lengths=lengths, caches=caches, num_threads=num_threads)
    last: Array = states[np.arange(len(batch)), ends - 1]
    return last


def _turns_change(model: CausalDecoder, lengths: NDArray[np.int64]) -> bool:
    """Tell whether sequences of these lengths need other keys than they had before."""
    rotaries = model.rotary if isinstance(model.rotary, list) else [model.rotary]
    return any(
        rotary is not None and changes_once(rotary, lengths) for rotary in rotaries
    )


def _continued(
    batch: NDArray[np.int64], ends: NDArray[np.int64], new: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return sequences with new tokens (B, n) at their ends, (B, L + n)."""
    n_new = new.shape[1]
    whole = np.concatenate([batch, np.zeros_like(new)], axis=1)
    columns = ends[:, np.newaxis] + np.arange(n_new)
    np.put_along_axis(whole, columns, new, axis=1)
    return whole


def _checked_scores(logits: ArrayLike) -> NDArray[np.float64]:
    """Return the scores of tokens, (..., V), from which each row can draw one."""
    given = _checks.array(logits, "logits")
    _dtypes.operand(given, "logits")
    if given.ndim == 0 or given.shape[-1] == 0:
        raise ValueError(f"logits: expected (..., V) with V >= 1, got {given.shape}")
    scores = given.astype(np.float64)
    top = scores.max(axis=-1)  # NaN where there is one
    wrong = top[~np.isfinite(top)]
    if wrong.size:
        got = "only -inf in one" if wrong[0] == -np.inf else wrong[0]
        raise ValueError(
            "logits: expected a finite number in each row, and neither NaN nor inf, "
            f"got {got}"
        )
    return scores


def _checked_stops(stop: ArrayLike | None, vocab_size: int) -> NDArray[np.int64]:
    """Return the tokens that end a sequence, (n,)."""
    stops = _checks.integers([] if stop is None else stop, "stop", 0, vocab_size - 1)
    if stops.ndim > 1:
        raise ValueError(
            f"stop: expected an integer, or a sequence of them, got {stops.shape}"
        )
    return stops.reshape(-1)


def _most_probable(
    scores: NDArray[np.float64], temperature: float, n_kept: int, share: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return tokens by falling scores, and their probabilities up to a factor.

    Both are (..., n_kept). The probabilities beyond the share are 0.
    """
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :n_kept]
    scores = np.take_along_axis(scores, order, axis=-1)
    terms = np.exp((scores - scores[..., :1]) / temperature)
    before = np.cumsum(terms, axis=-1) - terms
    terms[before >= share * terms.sum(axis=-1, keepdims=True)] = 0
    return order, terms


def _drawn(terms: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return an index for each row, (..., 1), as probable as its term."""
    totals = np.cumsum(terms, axis=-1)
    draws = rng.random(terms.shape[:-1])[..., np.newaxis]
    indices = np.sum(totals <= draws * totals[..., -1:], axis=-1, keepdims=True)
    # Rounding may bring a draw up to the total.
    last: NDArray[np.int64] = np.count_nonzero(terms, axis=-1, keepdims=True) - 1
    return np.where(indices < last, indices, last)
