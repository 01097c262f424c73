"""From scores to tokens: drawing a token, and continuing sequences."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _progress
from attnpy.cache import all_or_nothing, checked_caches
from attnpy.models import _embedding
from attnpy.models.prefix import Prefix, begun, made_by, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array
    from attnpy.cache import KVCache


def checked_temperature(
    temperature: float | None, top_k: int | None, top_p: float | None
) -> float:
    """Return the temperature: 0 by default, where nothing is to be drawn."""
    if temperature is not None:
        return temperature
    for name, value in (("top_k", top_k), ("top_p", top_p)):
        if value is not None:
            raise ValueError(
                f"{name}: expected a temperature beside it, without which the token "
                f"with the highest score is taken, got {value} alone"
            )
    return 0.0


@_keywords.answering
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
        Logarithms of the probabilities, up to a constant for each row. -inf is a
        probability of 0; a row with only -inf, NaN and +inf are errors.
    temperature : float, optional
        The scores are divided by it. 0 takes the highest score, the first of equal
        ones, and draws nothing.
    top_k : int, optional
        Draw from this many tokens with the highest scores.
    top_p : float, optional
        Draw from the fewest tokens that together have at least this probability, those
        with the highest scores (after `top_k`); above 0, at most 1.
    rng : numpy.random.Generator, optional
        Draws one number for each row; required unless temperature is 0.

    Returns
    -------
    ndarray of int64, shape (...)

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    `top_p` is from Holtzman et al., "The Curious Case of Neural Text Degeneration"
    (2020). Probabilities are computed in float64.

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
    scores = checked_scores(logits)
    temperature = _checks.above(temperature, "temperature", -math.inf)
    if temperature < 0:
        raise ValueError(f"temperature: expected at least 0, got {temperature}")
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
            "rng: expected a numpy.random.Generator where temperature is not 0, such "
            "as numpy.random.default_rng(), got None"
        )
    order, terms = _most_probable(scores, temperature, n_kept, share)
    ranks = _drawn(terms, _checks.generator(rng))
    return np.take_along_axis(order, ranks, axis=-1)[..., 0]


class LanguageModel:
    """The interface that `generate` and `stream` require of a model.

    `CausalDecoder` is one. An encoder-decoder can make one that is bound to its source
    text. A subclass has `vocab_size`, `stop`, a call, `logits` and `new_caches`. The
    methods with an underscore are for sequences that it cannot continue, and for
    positions that require other keys than those in the caches.
    """

    stop: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """`V`, the number of different tokens."""
        raise NotImplementedError

    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        caches: Sequence[KVCache] | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the vectors of new tokens (B, L, E), which go into the caches."""
        raise NotImplementedError

    def logits(self, states: ArrayLike, *, num_threads: int | None = None) -> Array:
        """Return the scores (..., V) of all tokens to be the next."""
        raise NotImplementedError

    def new_caches(self, batch_size: int, capacity: int) -> list[KVCache]:
        """Return an empty cache for each layer."""
        raise NotImplementedError

    def _check_generates(self) -> None:
        """Raise an error if it cannot continue sequences at all."""

    def _check_length(self, num_tokens: int) -> None:
        """Raise an error if it has no positions for this many tokens."""

    def _checked_caches(self, caches: object) -> list[KVCache]:
        """Return the caches of a call, one for each layer, after checks."""
        return checked_caches(caches, "caches", len(self.new_caches(0, 0)))

    def _ruled(self, scores: Array, tokens: NDArray[np.int64], num_new: int) -> Array:
        """Return the scores (R, V) after tokens (R, n), the last of them new ones."""
        return scores

    def _select(
        self,
        caches: Sequence[KVCache],
        rows: NDArray[np.int64],
        sources: NDArray[np.bool_],
    ) -> None:
        """Go on with these sequences, which are those of some sources."""
        for cache in caches:
            cache.select(rows)

    def _keys_change(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> bool:
        """Tell whether sequences that grow to these lengths need other keys."""
        return False

    def _depends_on_length(self) -> bool:
        """Tell whether a token's vector depends on how many tokens a call has."""
        return False

    def _lefts(self) -> list[int | None]:
        """Return how many tokens before its own a token of each layer sees."""
        return [None] * len(self.new_caches(0, 0))


def check_continues(model: LanguageModel, num_tokens: int) -> None:
    """Raise an error if a model cannot continue sequences to this many tokens."""
    model._check_generates()
    model._check_length(num_tokens)


def check_fixed_positions(model: LanguageModel, name: str) -> None:
    """Raise an error if vectors depend on how many tokens a call has."""
    if model._depends_on_length():
        raise ValueError(
            f"{name}: expected positions that do not depend on the length of a text, "
            "got a model with such frequencies"
        )


def lefts_of(model: LanguageModel) -> list[int | None]:
    """Return how many tokens before its own a token of each layer sees; None: all."""
    return model._lefts()


def ruled(
    model: LanguageModel, scores: Array, tokens: NDArray[np.int64], num_new: int
) -> Array:
    """Return the scores (R, V) after tokens (R, n), as the model's rules have them."""
    return model._ruled(scores, tokens, num_new)


def select(
    model: LanguageModel,
    caches: Sequence[KVCache],
    rows: NDArray[np.int64],
    sources: NDArray[np.bool_],
) -> None:
    """Let a model go on with these sequences, which are those of some sources."""
    model._select(caches, rows, sources)


def generate(
    self: LanguageModel,
    token_ids: ArrayLike,
    num_tokens: int,
    *,
    lengths: ArrayLike | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: np.random.Generator | None = None,
    stop: ArrayLike | None = None,
    caches: Sequence[KVCache] | None = None,
    prefix: Prefix | None = None,
    num_samples: int | None = None,
    draft: LanguageModel | Literal["lookup"] | None = None,
    num_draft_tokens: int = 15,
    callback: Callable[[NDArray[np.int64]], object] | None = None,
    progress: bool | None = None,
    num_threads: int | None = None,
) -> NDArray[np.int64]:
    """Continue sequences, keeping keys and values from token to token.

    Parameters
    ----------
    token_ids : array_like of int, shape (L,) or (B, L)
        The sequences to continue, of at least one token.
    num_tokens : int
        How many tokens to add.
    lengths : int or array_like of int, shape (B,), optional
        How many of the tokens exist, at the start of each sequence: at least 1.
    temperature, top_k, top_p, rng
        As in `sample`; without a temperature always the token with the highest score.
    stop : int or array_like of int, shape (n,), optional
        Tokens that end a sequence, each 0 to ``V - 1``: the rest of it repeats the
        token that ended it. By default the model's `stop`; ``()`` lets sequences never
        end.
    caches : list of KVCache, optional
        From `new_caches`. They may contain the keys and values of the first tokens of
        `token_ids`, fewer than there are; these are not computed again. Afterwards they
        contain those of all tokens except the last new one of each sequence. To
        continue a conversation, call again with the same caches and the whole
        conversation as `token_ids`. The new tokens are the same as without caches,
        except with "dynamic" frequencies, which depend on the length (see
        `CausalDecoder`).
    prefix : Prefix, optional
        From `prefill`: tokens that come before `token_ids`, and are not computed again.
        The new tokens are the same as with these in `token_ids`.
    num_samples : int, optional
        Continue each sequence this many times. What is known of it is computed once.
    draft : "lookup" or model, optional
        Guess the next tokens, and verify all of them in one call, which costs little
        more than a call for one. "lookup" takes what followed the last two or three
        tokens where they stood before: for text that repeats itself, such as a summary
        or code. A model is a smaller one with the same `vocab_size`, and guesses the
        tokens with its highest scores. Neither changes a greedy text, nor the
        probabilities of a sampled one; a single sequence keeps its tokens for the same
        `rng`, too.
    num_draft_tokens : int, optional
        How many tokens to guess at most, at least 1. Guesses begin with 3 tokens, as
        a call for 4 takes the time of one for 1, and become longer where all were
        right.
    callback : callable, optional
        Called with each new token as soon as it is computed, as `stream` yields it.
    progress : bool, optional
        Show a progress bar on standard error, if that is a terminal and the work takes
        longer than a second. True needs the tqdm package; None, the default, shows no
        bar if it is not installed, or if there is a callback, which may print.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    ndarray of int64, shape (num_tokens,) or (B, num_tokens)
        The new tokens; with `num_samples` (num_samples, num_tokens) or (B,
        num_samples, num_tokens).

    Raises
    ------
    ImportError
        If `progress` is True, and tqdm is not installed.
    TypeError, ValueError
        If an argument has the wrong kind, dtype or shape, or is out of its range. If
        the model has no scores, or sees both ways. If `caches` are given together with
        `prefix` or `num_samples`; if there is a `draft` for a model whose frequencies
        depend on the length.
    MemoryError
        If memory cannot hold the keys and values of all tokens.

    See Also
    --------
    stream : the same, token by token.

    Examples
    --------
    A conversation, where each token is computed once:

    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder
    >>> model = CausalDecoder(
    ...     2, 16, 4, 64, vocab_size=100, max_length=32, rng=np.random.default_rng(0)
    ... )
    >>> caches = model.new_caches(1, 32)
    >>> said = [5, 17, 3]
    >>> said += model.generate(said, 4, caches=caches).tolist()
    >>> said += [8, 2]
    >>> answer = model.generate(said, 4, caches=caches)
    >>> bool((answer == model.generate(said, 4)).all())
    True
    """
    if callback is not None and not callable(callback):
        raise TypeError(f"callback: expected a function, got {type(callback).__name__}")
    if callback is not None and progress is None:
        progress = False
    progress = _progress.checked(progress)
    ids = _embedding.checked_ids(token_ids, self.vocab_size)
    num_tokens = _checks.count(num_tokens, "num_tokens")
    steps = stream(
        self,
        ids,
        num_tokens,
        lengths=lengths,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        rng=rng,
        stop=stop,
        caches=caches,
        prefix=prefix,
        num_samples=num_samples,
        draft=draft,
        num_draft_tokens=num_draft_tokens,
        num_threads=num_threads,
    )
    samples = () if num_samples is None else (num_samples,)
    new = np.zeros((*ids.shape[:-1], *samples, num_tokens), np.int64)
    with _progress.bar(progress, num_tokens, "token") as done:
        for i, tokens in enumerate(steps):
            new[..., i:] = np.asarray(tokens)[..., np.newaxis]  # for what ends here
            if callback is not None:
                callback(tokens)
            done(1)
    return new


def stream(
    self: LanguageModel,
    token_ids: ArrayLike,
    num_tokens: int,
    *,
    lengths: ArrayLike | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: np.random.Generator | None = None,
    stop: ArrayLike | None = None,
    caches: Sequence[KVCache] | None = None,
    prefix: Prefix | None = None,
    num_samples: int | None = None,
    draft: LanguageModel | Literal["lookup"] | None = None,
    num_draft_tokens: int = 15,
    num_threads: int | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Continue sequences, and yield each token as soon as it is computed.

    Parameters
    ----------
    token_ids, num_tokens, lengths, temperature, top_k, top_p, rng, stop, num_threads
        As in `generate`.
    caches : list of KVCache, optional
        As in `generate`. After each token, even if no more are requested, they contain
        those of all tokens except the last of each sequence; with `draft` once the
        iterator is closed.
    prefix, num_samples, draft, num_draft_tokens
        As in `generate`.

    Returns
    -------
    iterator of int64, or of ndarray of int64, shape (B,)
        The next token of the sequence, or of each; a sequence that has ended repeats
        the token that ended it. The iterator ends when all sequences have ended. With
        `num_samples` the arrays are (num_samples,) or (B, num_samples).

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `generate`, when `stream` is called.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder
    >>> model = CausalDecoder(
    ...     2, 16, 4, 64, vocab_size=100, max_length=32, rng=np.random.default_rng(0)
    ... )
    >>> tokens = [int(token) for token in model.stream([5, 17, 3], 4)]
    >>> tokens == model.generate([5, 17, 3], 4).tolist()
    True
    """
    ids = _embedding.checked_ids(token_ids, self.vocab_size)
    self._check_generates()
    batch = np.atleast_2d(ids)  # (B, L)
    if batch.shape[1] == 0:
        raise ValueError(f"token_ids: expected at least one token, got {ids.shape}")
    num_tokens = _checks.count(num_tokens, "num_tokens")
    stops = checked_stops(self.stop if stop is None else stop, self.vocab_size)
    length = batch.shape[1] if lengths is None else lengths
    ends = _embedding.checked_lengths(length, batch, 1)
    draw = functools.partial(
        sample,
        temperature=checked_temperature(temperature, top_k, top_p),
        top_k=top_k,
        top_p=top_p,
        rng=rng,
    )
    draw(np.zeros((0, 1)))  # raises its errors
    n_most = _checks.count(num_draft_tokens, "num_draft_tokens")
    guess = _guess(self, draft, num_threads)
    n = 1 if num_samples is None else _checks.count(num_samples, "num_samples")
    if caches is not None and not (prefix is None and num_samples is None):
        raise ValueError("caches: expected None with prefix or num_samples, got a list")
    if prefix is not None:
        past = np.broadcast_to(tokens_of(prefix), (len(batch), len(prefix)))
        batch, ends = np.concatenate([past, batch], axis=1), ends + len(prefix)
    longest = int(ends.max(initial=0)) + num_tokens - 1  # in the caches
    self._check_length(longest)
    if isinstance(draft, LanguageModel):
        with _checks.renamed(token_ids="draft"):
            draft._check_length(longest)
    room = longest if n == 1 else int(ends.max(initial=1)) - 1
    if prefix is not None:
        run = functools.partial(_run, self, num_threads)
        caches = begun(prefix, self, len(batch), room, run)
    elif caches is None:
        caches = self.new_caches(len(batch), room)
    else:
        caches = self._checked_caches(caches)
        _check_past(caches, ends, longest)
    shape = len(batch) * n, batch.shape[1] + num_tokens
    _checks.memory("num_samples, num_tokens", np.int64, shape)
    known = np.zeros(shape, np.int64)
    known[:, : batch.shape[1]] = np.repeat(batch, n, axis=0)
    steps = _begin(
        self, known, np.repeat(ends, n), caches, draw, stops, num_threads,
        n, longest, guess, n_most, num_tokens,
    )  # fmt: skip
    if num_samples is not None:
        steps = (tokens.reshape(-1, n) for tokens in steps)
    return steps if ids.ndim == 2 else (tokens[0] for tokens in steps)


@_keywords.answering
def prefill(
    self: LanguageModel, token_ids: ArrayLike, *, num_threads: int | None = None
) -> Prefix:
    """Compute the keys and values of a text that others begin with, once.

    Parameters
    ----------
    token_ids : array_like of int, shape (n,)
        The text, of at least one token.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    Prefix
        For `generate` and `stream`; its `save` writes it to a file.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, dtype or shape, or is out of its range. If
        the model sees both ways.
    MemoryError
        If memory cannot hold the keys and values.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder
    >>> model = CausalDecoder(
    ...     2, 16, 4, 64, vocab_size=100, max_length=32, rng=np.random.default_rng(0)
    ... )
    >>> prefix = model.prefill([5, 17, 3, 8])
    >>> answers = model.generate([[2, 9], [4, 4]], 4, prefix=prefix)
    >>> bool((answers[1] == model.generate([5, 17, 3, 8, 4, 4], 4)).all())
    True
    """
    ids = _embedding.checked_ids(token_ids, self.vocab_size)
    if ids.ndim != 1 or ids.size == 0:
        raise ValueError(f"token_ids: expected (n,) with n >= 1, got {ids.shape}")
    self._check_generates()
    self._check_length(len(ids))
    caches = self.new_caches(1, len(ids))
    _run(self, num_threads, ids[np.newaxis], caches)
    return made_by(self, Prefix(ids, caches))


def _run(
    model: LanguageModel,
    num_threads: int | None,
    ids: NDArray[np.int64],
    caches: list[KVCache],
) -> Array:
    return model(ids, caches=caches, num_threads=num_threads)


def _check_past(
    caches: list[KVCache], ends: NDArray[np.int64], num_tokens: int
) -> None:
    """Require caches that are shorter than these sequences and have room for more."""
    before = caches[0].lengths
    if len(before) != len(ends):
        raise ValueError(
            f"caches: expected B = {len(ends)} as token_ids, got {len(before)}"
        )
    for cache in caches:
        if (cache.lengths != before).any():
            raise ValueError(
                f"caches: expected the same lengths in each, got {before} and "
                f"{cache.lengths}"
            )
        if cache.capacity < num_tokens and not cache.growable:
            raise ValueError(
                f"caches: expected room for {num_tokens} tokens, got {cache.capacity}"
            )
    if (before >= ends).any():
        b = int(np.argmax(before >= ends))
        raise ValueError(
            f"token_ids: expected more tokens than the {before[b]} that the caches "
            f"have of sequence {b}, got {ends[b]}"
        )


def _begin(
    model: LanguageModel,
    known: NDArray[np.int64],
    ends: NDArray[np.int64],
    caches: Sequence[KVCache],
    draw: Callable[[Array], NDArray[np.int64]],
    stops: NDArray[np.int64],
    num_threads: int | None,
    n: int,
    longest: int,
    guess: Guess | None,
    n_most: int,
    num_tokens: int,
) -> Iterator[NDArray[np.int64]]:
    """Yield the next tokens of sequences, n of which share what is known.

    The caches are for one of each n.
    """
    if n > 1:
        first = slice(None, None, n)
        if (caches[0].lengths < ends[first] - 1).any():
            ended = np.zeros(len(known[first]), bool)
            _last(model, known[first], ends[first], ended, caches, num_threads)
        owners = np.arange(len(known)) // n
        caches = [cache.fork(owners, capacity=longest) for cache in caches]
    if guess is None:
        steps = _steps(model, known, ends, caches, draw, stops, num_threads)
        yield from itertools.islice(steps, num_tokens)
    else:
        yield from _verified(
            model,
            known,
            ends,
            caches,
            draw,
            stops,
            num_threads,
            guess,
            n_most,
            num_tokens,
        )


def _verified(
    model: LanguageModel,
    known: NDArray[np.int64],
    ends: NDArray[np.int64],
    caches: Sequence[KVCache],
    draw: Callable[[Array], NDArray[np.int64]],
    stops: NDArray[np.int64],
    num_threads: int | None,
    guess: Guess,
    n_most: int,
    num_tokens: int,
) -> Iterator[NDArray[np.int64]]:
    """Yield what `_steps` yields, with several tokens from a call.

    A token is drawn from the model's own scores, whatever was guessed; the call's
    scores hold for the next token if that was the guess. As each draw is the one that
    there is without guesses, it has the same probabilities.
    """
    begin, rows = ends.copy(), np.arange(len(known))
    stopped, yielded = np.zeros(len(known), bool), 0
    wanted = np.full(len(known), min(FIRST, n_most))
    try:
        for step in range(num_tokens):
            while (~stopped & (ends - begin <= step)).any():
                going = ~stopped & (ends - begin < num_tokens)
                room = np.minimum(wanted, begin + num_tokens - 1 - ends)
                guesses, before = guess(known, ends, going, room), ends
                ends, stopped = _verify(
                    model, known, begin, ends, going, stopped, caches, draw, stops,
                    num_threads, guesses,
                )  # fmt: skip
                right = ends - before > [len(one) for one in guesses]
                wanted = np.minimum(n_most, np.where(right, 4 * wanted + 3, FIRST))
            yielded = step + 1
            yield known[rows, np.minimum(begin + step, ends - 1)]
            if (stopped & (ends - begin <= yielded)).all():
                return
    finally:  # tokens that were not asked for are none
        last = np.minimum(ends, begin + yielded) - 1
        with all_or_nothing(caches) as lent:
            for cache in lent:
                cache.truncate(np.minimum(cache.lengths, last))


def _verify(
    model: LanguageModel,
    known: NDArray[np.int64],
    begin: NDArray[np.int64],
    ends: NDArray[np.int64],
    going: NDArray[np.bool_],
    stopped: NDArray[np.bool_],
    caches: Sequence[KVCache],
    draw: Callable[[Array], NDArray[np.int64]],
    stops: NDArray[np.int64],
    num_threads: int | None,
    guesses: list[NDArray[np.int64]],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Add at least one token to each sequence that is going.

    Return where they end then, and which of them have a token that ends it.
    """
    rows, text = np.flatnonzero(going).tolist(), known.copy()
    before, counts = caches[0].lengths, np.zeros(len(known), np.int64)
    for b in rows:
        end = ends[b] + len(guesses[b])
        text[b, ends[b] : end] = guesses[b]
        counts[b] = end - before[b]
    columns = before[:, np.newaxis] + np.arange(counts.max())
    columns[columns >= text.shape[1]] = 0  # past a sequence that is shorter
    new = text[np.arange(len(text))[:, np.newaxis], columns]
    states = model(new, lengths=counts, caches=caches, num_threads=num_threads)
    judged = [states[b, counts[b] - 1 - len(guesses[b]) : counts[b]] for b in rows]
    scores = model.logits(np.concatenate(judged), num_threads=num_threads)
    places = np.cumsum([0, *map(len, judged)])
    ends, stopped = ends.copy(), stopped.copy()
    for b, place in zip(rows, places.tolist(), strict=False):
        for i, own in enumerate(scores[place : place + len(guesses[b]) + 1]):
            n_new = int(ends[b] - begin[b])
            own = model._ruled(own[np.newaxis], known[b : b + 1, : ends[b]], n_new)
            token = known[b, ends[b]] = draw(own)[0]
            ends[b] += 1
            stopped[b] = np.isin(token, stops)
            if stopped[b] or i == len(guesses[b]) or token != guesses[b][i]:
                break
    with all_or_nothing(caches) as lent:
        for cache in lent:
            cache.truncate(np.minimum(cache.lengths, ends - 1))
    return ends, stopped


FIRST = 3  # tokens of a guess, unless the one before was right

# Returns guesses of the next tokens of each sequence, from the known ones, where they
# end, which are going on, and how many tokens each may have.
Guess = Callable[
    [
        "NDArray[np.int64]",
        "NDArray[np.int64]",
        "NDArray[np.bool_]",
        "NDArray[np.int64]",
    ],
    "list[NDArray[np.int64]]",
]


def _guess(
    model: LanguageModel,
    draft: LanguageModel | Literal["lookup"] | None,
    num_threads: int | None,
) -> Guess | None:
    """Return the function that guesses tokens, after checks of the arguments."""
    if draft is None:
        return None
    if not isinstance(draft, LanguageModel):
        if isinstance(draft, str):
            _checks.one_of(draft, "draft", ("lookup",))
        else:
            raise TypeError(
                f"draft: expected 'lookup' or a model, got {type(draft).__name__}"
            )
    for one in (model, draft):
        if isinstance(one, LanguageModel):
            check_fixed_positions(one, "draft")
    if not isinstance(draft, LanguageModel):
        return _looked_up
    draft._check_generates()
    if draft.vocab_size != model.vocab_size:
        raise ValueError(
            f"draft: expected a model with vocab_size {model.vocab_size}, got "
            f"{draft.vocab_size}"
        )
    return _ModelGuess(draft, num_threads)


def _looked_up(
    known: NDArray[np.int64],
    ends: NDArray[np.int64],
    going: NDArray[np.bool_],
    room: NDArray[np.int64],
) -> list[NDArray[np.int64]]:
    """Guess that the last tokens go on as where they stood before."""
    found = [known[0, :0]] * len(known)
    for b in np.flatnonzero(going):
        text = known[b, : ends[b]]
        for n in (3, 2):
            if len(text) <= n:
                continue
            same = np.ones(len(text) - n, bool)
            for i in range(n):
                same &= text[i : i - n] == text[i - n]
            if places := np.flatnonzero(same)[-1:].tolist():
                start = places[0] + n
                found[b] = text[start : start + room[b]]
                break
    return found


class _ModelGuess:
    """Guesses by a smaller model, with caches of its own."""

    def __init__(self, model: LanguageModel, num_threads: int | None) -> None:
        self._model, self._num_threads = model, num_threads
        self._caches: list[KVCache] = []

    def __call__(
        self,
        known: NDArray[np.int64],
        ends: NDArray[np.int64],
        going: NDArray[np.bool_],
        room: NDArray[np.int64],
    ) -> list[NDArray[np.int64]]:
        model, n = self._model, int((room * going).max(initial=0))
        if not self._caches:
            self._caches = model.new_caches(len(known), known.shape[1])
        for cache in self._caches:  # without guesses that were wrong
            cache.truncate(np.minimum(cache.lengths, ends - 1))
        text, first = known.copy(), ends
        for _ in range(n):
            going = going & (ends - first < room)
            last = _last(model, text, ends, going, self._caches, self._num_threads)
            tokens = model.logits(last, num_threads=self._num_threads).argmax(axis=-1)
            text[going, ends[going]] = tokens[going]
            ends = ends + going
        return [
            row[a:b]
            for row, a, b in zip(text, first.tolist(), ends.tolist(), strict=True)
        ]


def _steps(
    model: LanguageModel,
    known: NDArray[np.int64],
    ends: NDArray[np.int64],
    caches: Sequence[KVCache],
    draw: Callable[[Array], NDArray[np.int64]],
    stops: NDArray[np.int64],
    num_threads: int | None,
) -> Iterator[NDArray[np.int64]]:
    """Yield the next tokens (B,) of sequences, of which the first `ends` are known.

    They are written to `known`, and end when it is full.
    """
    going = np.ones(len(known), bool)
    tokens = np.zeros(len(known), np.int64)
    for n_new in itertools.count():
        last = _last(model, known, ends, going, caches, num_threads)
        scores = model.logits(last, num_threads=num_threads)
        longest = int(ends.max(initial=0))
        drawn = draw(model._ruled(scores, known[:, :longest], n_new))
        tokens = np.where(going, drawn, tokens)
        known[going, ends[going]] = tokens[going]
        ends = ends + going
        going = going & ~np.isin(tokens, stops)
        yield tokens.copy()  # the caller may write to it
        if not going.any():
            return


def _last(
    model: LanguageModel,
    known: NDArray[np.int64],
    ends: NDArray[np.int64],
    going: NDArray[np.bool_],
    caches: Sequence[KVCache],
    num_threads: int | None,
) -> Array:
    """Return the vectors (B, E) of the last tokens that are known.

    The caches take all tokens that they lack, except the last of ended sequences.
    """
    before, after = caches[0].lengths, ends - ~going
    if model._keys_change(before, after):
        with all_or_nothing(caches) as lent:
            for cache in lent:
                cache.reset()
        before = caches[0].lengths
    counts, rows = after - before, np.arange(len(known))
    n_most = max(counts.tolist(), default=1)
    columns = before[:, np.newaxis] + np.arange(n_most)
    columns[columns >= known.shape[1]] = 0  # past a sequence that is shorter
    new = known[rows[:, np.newaxis], columns]
    lengths = None if (counts == n_most).all() else counts
    states = model(new, lengths=lengths, caches=caches, num_threads=num_threads)
    last: Array = states[rows, counts - 1]
    return last


def checked_scores(logits: ArrayLike) -> NDArray[np.float64]:
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


def checked_stops(stop: ArrayLike | None, vocab_size: int) -> NDArray[np.int64]:
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
    """Return tokens by descending scores, and their probabilities up to a factor.

    Both are (..., n_kept). The probabilities beyond the share are 0.
    """
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :n_kept]
    scores = np.take_along_axis(scores, order, axis=-1)
    terms = np.exp((scores - scores[..., :1]) / temperature)
    before = np.cumsum(terms, axis=-1) - terms
    terms[before >= share * terms.sum(axis=-1, keepdims=True)] = 0
    return order, terms


def _drawn(terms: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return an index for each row, (..., 1), with probabilities like the terms."""
    totals = np.cumsum(terms, axis=-1)
    draws = rng.random(terms.shape[:-1])[..., np.newaxis]
    indices = np.sum(totals <= draws * totals[..., -1:], axis=-1, keepdims=True)
    # Rounding may move a draw up to the total.
    last: NDArray[np.int64] = np.count_nonzero(terms, axis=-1, keepdims=True) - 1
    return np.where(indices < last, indices, last)
