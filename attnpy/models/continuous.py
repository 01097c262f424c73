"""Texts that are continued together, and come and go as they like."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import os
import threading
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from attnpy import _checks, _keywords, _parameters, _repr
from attnpy.models import _embedding, sampling
from attnpy.models.prefix import Prefix, begun, made_by, tokens_of
from attnpy.pages import PAGE, PagedKVCache, joined, pages_held, taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array
    from attnpy.cache import KVCache
    from attnpy.models.decoder import CausalDecoder
    from attnpy.pages import PagePool

__all__ = ["ContinuousBatch"]


def __dir__() -> list[str]:
    return __all__


@dataclass(eq=False)
class Text:
    """A text that is continued.

    Attributes
    ----------
    number : int
        What the user calls it.
    tokens : list of int
        Those that are known.
    length : int
        How many tokens it may have in the end.
    stops : frozenset of int
    prefix : Prefix or None
        What it begins with.
    options : dict
        Arguments of `sample`.
    at_once : int
        How many of its tokens a step takes at most.
    """

    number: int
    tokens: list[int]
    length: int
    stops: frozenset[int]
    prefix: Prefix | None
    options: dict[str, Any]
    at_once: int


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _in_turn(
    method: Callable[Concatenate[ContinuousBatch, Arguments], Result],
) -> Callable[Concatenate[ContinuousBatch, Arguments], Result]:
    """Let calls in several threads wait for each other.

    A signal handler cannot wait for the call that it interrupts: it gets an error.
    """

    @functools.wraps(method)
    def call(
        self: ContinuousBatch,
        /,
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        thread = threading.get_ident()
        if self._thread == thread and self._turn.locked():
            raise RuntimeError(
                "ContinuousBatch: expected no call inside another one, got one of "
                f"{method.__name__}"
            )
        with self._turn:
            self._thread = thread
            try:
                return method(self, *arguments, **options)
            finally:
                self._thread = None

    return call


@_keywords.answering
class ContinuousBatch:
    """Continues many texts at once; texts are added and cancelled between steps.

    Parameters
    ----------
    model : CausalDecoder
        The model. Do not change it as long as there are texts.
    num_pages : int
        How many pages of 128 tokens there are for the keys and values of each layer:
        the memory of all texts, however many there are.
    prompt_tokens : int, optional
        How many tokens of prompts a step computes at most, besides one token of each
        text that is being continued. More make prompts faster, and the step longer.
        It may be set later; then a text takes at most as many as when it was added.
    dtype : dtype, optional
        Of keys and values; by default that of the parameters.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Attributes
    ----------
    model, prompt_tokens, num_threads
        As given.
    pools : list of PagePool
        The pages of each layer.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range. If the model has no
        scores, sees both ways, or has frequencies that depend on the length.
    MemoryError
        If memory cannot hold the pages.

    See Also
    --------
    CausalDecoder.generate : for texts that begin together.

    Notes
    -----
    A step reads the weights once for all texts, and a text's tokens are those that it
    has alone, from `CausalDecoder.generate` with the same arguments: the rest of the
    batch changes no bit.

    A text is begun when there are pages for all tokens that it may have, and waits
    before; so no text runs out of pages. With windows, pages that no token sees any
    more go back at once.

    Threads may call it at the same time: they wait for each other. If a signal handler
    raises, such as with KeyboardInterrupt, a call has done either nothing or all of its
    work, and the texts can go on; tokens of a completed step are lost with its result.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder, ContinuousBatch
    >>> model = CausalDecoder(
    ...     2, 16, 4, 64, vocab_size=100, max_length=64, rng=np.random.default_rng(0)
    ... )
    >>> batch = ContinuousBatch(model, num_pages=4)
    >>> texts = {batch.add([5, 17, 3], 4): [], batch.add([8, 2], 6): []}
    >>> for number, token in batch:
    ...     texts[number].append(token)
    >>> texts[0] == model.generate([5, 17, 3], 4).tolist()
    True
    >>> texts[1] == model.generate([8, 2], 6).tolist()
    True
    """

    model: CausalDecoder
    num_threads: int | None
    pools: list[PagePool]
    _next: int
    _waiting: list[Text]
    _running: list[Text]
    _caches: list[PagedKVCache]
    _prefixes: weakref.WeakKeyDictionary[Prefix, list[PagedKVCache]]
    _prompt_tokens: int
    _states: dict[np.random.BitGenerator, Any]
    _turn: threading.Lock
    _thread: int | None

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __init__(
        self,
        model: CausalDecoder,
        num_pages: int,
        *,
        prompt_tokens: int = 256,
        dtype: DTypeLike | None = None,
        num_threads: int | None = None,
    ) -> None:
        if not hasattr(model, "new_page_pools"):
            raise TypeError(f"model: expected a model, got {type(model).__name__}")
        sampling.check_continues(model, 0)
        sampling.check_fixed_positions(model, "model")
        num_pages = _checks.count(num_pages, "num_pages")
        self.model = model
        self.prompt_tokens = _checks.count(prompt_tokens, "prompt_tokens")
        self.num_threads = num_threads
        if num_threads is not None:
            self.num_threads = _checks.count(num_threads, "num_threads")
        self.pools = model.new_page_pools(num_pages, dtype=dtype)
        self._next, self._waiting, self._running = 0, [], []
        self._caches = [PagedKVCache(pool, 0) for pool in self.pools]
        self._prefixes = weakref.WeakKeyDictionary()
        self._states = {}
        self._turn, self._thread = threading.Lock(), None
        BATCHES.add(self)

    def __reduce__(self) -> Any:
        """Refuse pickles, as pages cannot be pickled."""
        raise TypeError("cannot pickle a ContinuousBatch")

    def _shown(self) -> dict[str, Any]:
        return {
            "num_pages": self.pools[0].num_pages,
            "num_free": self.pools[0].num_free,
            "running": len(self._running),
            "waiting": len(self._waiting),
        }

    __repr__ = _repr.shows(_shown)

    @property
    def prompt_tokens(self) -> int:
        """How many tokens of prompts a step computes at most."""
        return self._prompt_tokens

    @prompt_tokens.setter
    def prompt_tokens(self, prompt_tokens: int) -> None:
        self._prompt_tokens = _checks.count(prompt_tokens, "prompt_tokens")

    @property
    @_in_turn
    def numbers(self) -> list[int]:
        """The texts that have not ended, in the order in which they were added."""
        return sorted(text.number for text in (*self._running, *self._waiting))

    @_in_turn
    def add(
        self,
        token_ids: ArrayLike,
        num_tokens: int,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        rng: np.random.Generator | None = None,
        stop: ArrayLike | None = None,
        prefix: Prefix | None = None,
    ) -> int:
        """Add a text to continue, which begins in one of the next steps.

        Parameters
        ----------
        token_ids : array_like of int, shape (L,)
            The text, of at least one token.
        num_tokens : int
            How many tokens to add, unless one of `stop` ends the text before.
        temperature, top_k, top_p, rng
            As in `sample`; without a temperature always the token with the highest
            score. Texts that share a generator draw from it in turn.
        stop : int or array_like of int, shape (n,), optional
            Tokens that end the text; by default the model's.
        prefix : Prefix, optional
            Tokens that come before, from `prefill` here or of the model. All texts
            share its pages.

        Returns
        -------
        int
            The number of the text: 0, 1 and so on.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or shape, or is out of its range.
        MemoryError
            If the text needs more pages than there are at all, or a prefix that is not
            in pages yet more than are free. Nothing has changed then.
        """
        ids = _embedding.checked_ids(token_ids, self.model.vocab_size)
        if ids.ndim != 1 or ids.size == 0:
            raise ValueError(f"token_ids: expected (L,) with L >= 1, got {ids.shape}")
        num_tokens = _checks.count(num_tokens, "num_tokens")
        options: dict[str, Any] = {
            "temperature": sampling.checked_temperature(temperature, top_k, top_p),
            "top_k": top_k,
            "top_p": top_p,
            "rng": rng,
        }
        sampling.sample(np.zeros((0, 1)), **options)  # raises its errors
        stops = sampling.checked_stops(
            self.model.stop if stop is None else stop, self.model.vocab_size
        )
        past = [] if prefix is None else tokens_of(prefix).tolist()
        text = Text(
            self._next,
            past + ids.tolist(),
            len(past) + len(ids) + num_tokens,
            frozenset(stops.tolist()),
            prefix,
            options,
            self.prompt_tokens,
        )
        sampling.check_continues(self.model, text.length - 1)
        if prefix is not None:
            self._put_in_pages(prefix)
        for pool, own in zip(self.pools, self._needs(text, len(past)), strict=True):
            needed = own + -(-len(past) // PAGE)
            if needed > pool.num_pages:
                raise MemoryError(
                    f"pages: expected {needed} for the {text.length - 1} tokens of the "
                    f"text, got a pool of {pool.num_pages}"
                )
        vars(self).update(_waiting=[*self._waiting, text], _next=text.number + 1)
        return text.number

    @_in_turn
    def prefill(self, token_ids: ArrayLike) -> Prefix:
        """Compute the keys and values of what texts begin with, in these pages.

        Parameters
        ----------
        token_ids : array_like of int, shape (n,)
            At least one token.

        Returns
        -------
        Prefix
            For `add`. Its pages are free again when it and the texts are gone.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind or shape, or is out of its range.
        MemoryError
            If too few pages are free.
        """
        ids = _embedding.checked_ids(token_ids, self.model.vocab_size)
        if ids.ndim != 1 or ids.size == 0:
            raise ValueError(f"token_ids: expected (n,) with n >= 1, got {ids.shape}")
        sampling.check_continues(self.model, len(ids))
        self._check_available(len(ids))
        caches = [PagedKVCache(pool, 1) for pool in self.pools]
        self._run(ids[np.newaxis], None, caches)
        prefix = made_by(self.model, Prefix(ids, caches))
        self._prefixes[prefix] = caches
        return prefix

    @_in_turn
    def cancel(self, number: int) -> None:
        """End a text, and give back its pages.

        Parameters
        ----------
        number : int
            From `add`.

        Raises
        ------
        TypeError, ValueError
            If there is no such text, or it has ended.
        """
        self._leave([self._text(number)])

    @_in_turn
    def evict(self, number: int) -> None:
        """Give back the pages of a text, which waits then, and goes on later.

        Its keys and values are computed again, and its tokens are the same.

        Parameters
        ----------
        number : int
            From `add`.

        Raises
        ------
        TypeError, ValueError
            If there is no such text, or it has ended.
        """
        text = self._text(number)
        self._leave([text], waiting=[text])

    @_in_turn
    def fork(self, number: int, *, rng: np.random.Generator | None = None) -> int:
        """Add a text that goes on like another one, from what that one has now.

        Parameters
        ----------
        number : int
            From `add`.
        rng : numpy.random.Generator, optional
            For the new text; by default a copy of the other one's.

        Returns
        -------
        int
            The number of the new text. It shares pages with the other one if there are
            enough for both, and waits otherwise.

        Raises
        ------
        TypeError, ValueError
            If there is no such text, or it has ended; if `rng` is of another kind.
        """
        self._advance()
        text = self._text(number)
        options = dict(text.options)
        if rng is not None:
            options["rng"] = _checks.generator(rng)
        else:
            options["rng"] = copy.deepcopy(options["rng"])
        new = replace(
            text, number=self._next, tokens=list(text.tokens), options=options
        )
        row = self._running.index(text) if text in self._running else None
        changed: dict[str, Any] = {"_next": self._next + 1}
        if row is not None and self._fits(new, int(self._caches[0].lengths[row])):
            changed["_caches"] = [
                joined([cache, cache.fork([row])]) for cache in self._caches
            ]
            changed["_running"] = [*self._running, new]
        else:
            changed["_waiting"] = [*self._waiting, new]
        vars(self).update(changed)
        return new.number

    @_in_turn
    def step(self) -> list[tuple[int, int]]:
        """Compute the next token of each text, and parts of prompts.

        Returns
        -------
        list of (int, int)
            The number of each text that has a new token, and the token. A text that is
            not in `numbers` any more has ended with it. The list is empty if all texts
            have ended; it may be empty, too, if a step only computes prompts.

        Raises
        ------
        ValueError
            If scores are NaN. Nothing has changed then.
        MemoryError
            If prefixes that are kept have the pages that the texts need. They wait on.
        """
        self._advance()
        self._admit()
        if not self._running:
            if self._waiting:
                raise MemoryError(
                    f"pages: expected free ones for text {self._waiting[0].number}, "
                    f"got those of prefixes that are kept: {self.pools[0].num_free} of "
                    f"{self.pools[0].num_pages} are free"
                )
            return []
        before = self._caches[0].lengths
        counts = self._counts(before.tolist())
        ids = np.zeros((len(counts), max(counts)), np.int64)
        for row, text, start, n in zip(
            ids, self._running, before.tolist(), counts, strict=True
        ):
            row[:n] = text.tokens[start : start + n]
        ready = [
            b
            for b, text in enumerate(self._running)
            if before[b] + counts[b] == len(text.tokens)
        ]
        caches = [joined([cache]) for cache in self._caches]
        states = self._run(ids, counts, caches)
        last = states[ready, [counts[b] - 1 for b in ready]]
        texts = [self._running[b] for b in ready]
        tokens, drawn = self._drawn(last, texts)
        for cache, left in zip(caches, sampling.lefts_of(self.model), strict=True):
            if left is not None:
                cache.release(np.maximum(cache.lengths - left, 0))
        ended = [
            text
            for text, token in zip(texts, tokens, strict=True)
            if token in text.stops or len(text.tokens) + 1 == text.length
        ]
        rows = [b for b, text in enumerate(self._running) if text not in ended]
        changed = {
            "_caches": [taken(cache, rows) for cache in caches],
            "_running": [self._running[b] for b in rows],
            "_states": drawn,
        }
        # At once: this runs no Python, so that no signal handler can raise within it.
        steps = itertools.chain(
            map(list.append, [text.tokens for text in texts], tokens),
            map(dict.update, [vars(self)], [changed]),
        )
        collections.deque(steps, maxlen=0)
        self._advance()
        return [(text.number, token) for text, token in zip(texts, tokens, strict=True)]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the number of a text and its next token, until all texts have ended.

        Texts may be added and cancelled meanwhile.
        """
        while self._running or self._waiting:
            yield from self.step()

    def _text(self, number: int) -> Text:
        number = _checks.size(number, "number")
        for text in (*self._running, *self._waiting):
            if text.number == number:
                return text
        raise ValueError(
            f"number: expected that of a text that has not ended, got {number}"
        )

    def _run(
        self, ids: NDArray[np.int64], counts: list[int] | None, caches: list[Any]
    ) -> Array:
        if counts is not None and min(counts) == max(counts):
            counts = None
        return self.model(
            ids, lengths=counts, caches=caches, num_threads=self.num_threads
        )

    def _drawn(
        self, last: Array, texts: list[Text]
    ) -> tuple[list[int], dict[np.random.BitGenerator, Any]]:
        """Draw a token of each text, after all scores were found to be numbers.

        Return the states of the texts' generators after that, too, as they are not
        changed.
        """
        if not texts:
            return [], {}
        scores = self.model.logits(last, num_threads=self.num_threads)
        tokens = sampling.sample(scores, temperature=0).tolist()
        generators: dict[np.random.BitGenerator, np.random.Generator] = {}
        for i, text in enumerate(texts):
            if text.options["temperature"] == 0:
                continue
            own = text.options["rng"]
            if own.bit_generator not in generators:
                generators[own.bit_generator] = copy.deepcopy(own)
            options = text.options | {"rng": generators[own.bit_generator]}
            tokens[i] = int(sampling.sample(scores[i : i + 1], **options)[0])
        states = {own: rng.bit_generator.state for own, rng in generators.items()}
        return tokens, states

    def _advance(self) -> None:
        """Advance the generators that a step has drawn from, even if it was ended."""
        for generator, state in self._states.items():
            generator.state = state
        self._states = {}

    def _counts(self, before: list[int]) -> list[int]:
        """Return how many tokens of each text the step takes."""
        room, counts = self.prompt_tokens, []
        for text, start in zip(self._running, before, strict=True):
            n = len(text.tokens) - start
            if n > 1:
                n = min(n, room, text.at_once)
                room -= n
            counts.append(n)
        return counts

    def _leave(self, texts: list[Text], waiting: Iterable[Text] = ()) -> None:
        """Let texts not run, and give back their pages; those of `waiting` wait."""
        rows = [b for b, text in enumerate(self._running) if text not in texts]
        others = [text for text in self._waiting if text not in texts]
        vars(self).update(
            _waiting=[*others, *waiting],
            _caches=[taken(cache, rows) for cache in self._caches],
            _running=[self._running[b] for b in rows],
        )

    def _admit(self) -> None:
        """Begin texts that wait, in order, as long as there are pages for them.

        Where no text runs, a later one may go first: it may have a prefix in the pages.
        """
        while self._waiting:
            first = self._waiting[:1] if self._running else self._waiting
            fitting = [
                text
                for text in first
                if self._fits(text, 0 if text.prefix is None else len(text.prefix))
            ]
            if not fitting:
                return
            text = fitting[0]
            if text.prefix is None:
                own = [PagedKVCache(pool, 1) for pool in self.pools]
            else:
                own = [cache.fork([0]) for cache in self._prefixes[text.prefix]]
            caches = [
                joined([cache, one])
                for cache, one in zip(self._caches, own, strict=True)
            ]
            vars(self).update(
                _waiting=[one for one in self._waiting if one is not text],
                _caches=caches,
                _running=[*self._running, text],
            )

    def _needs(self, text: Text, n_shared: int) -> list[int]:
        """Return how many pages of each layer a text needs that are its own.

        It begins with tokens whose whole pages are shared with others.
        """
        n_new = -(-(text.length - 1) // PAGE) - n_shared // PAGE
        lefts = sampling.lefts_of(self.model)
        return [min(n_new, _most_held(text, left)) for left in lefts]

    def _available(self, layer: int) -> int:
        """Return how many free pages no running text may need."""
        cache, promised = self._caches[layer], 0
        left = sampling.lefts_of(self.model)[layer]
        for row, text in enumerate(self._running):
            n_past, n_own = pages_held(cache, row)
            n_new = -(-(text.length - 1) // PAGE) - n_past
            promised += max(min(n_new, _most_held(text, left) - n_own), 0)
        return self.pools[layer].num_free - promised

    def _fits(self, text: Text, n_shared: int) -> bool:
        """Tell whether there are pages for a text that begins with shared ones."""
        needs = enumerate(self._needs(text, n_shared))
        return all(needed <= self._available(layer) for layer, needed in needs)

    def _check_available(self, n_tokens: int) -> None:
        needed = -(-n_tokens // PAGE)
        available = min(map(self._available, range(len(self.pools))))
        if needed > available:
            raise MemoryError(
                f"pages: expected {needed} for the prefix that no text may need, got "
                f"{max(available, 0)}"
            )

    def _put_in_pages(self, prefix: Prefix) -> None:
        """Copy a prefix into the pages, once for all texts."""
        if prefix in self._prefixes:
            return
        dtype = self.pools[0].key.dtype
        self._check_available(len(prefix))

        def run(ids: NDArray[np.int64], caches: list[KVCache]) -> object:
            return self._run(ids, None, caches)

        found = begun(prefix, self.model, 1, len(prefix), run)
        if dtype == np.int8 or any(known.key.dtype != dtype for known in found):
            raise ValueError(
                f"prefix: expected one from this batch's prefill, or of {dtype}, got "
                f"{found[0].key.dtype}"
            )
        caches = [PagedKVCache(pool, 1) for pool in self.pools]
        for cache, known in zip(caches, found, strict=True):
            cache.append(known.key, known.value)
        self._prefixes[prefix] = caches


def _most_held(text: Text, left: int | None) -> int:
    """Return how many pages of a layer a text has at once, at most.

    Its tokens see this many before them, or all.
    """
    n_seen = text.length if left is None else left
    return (n_seen + text.at_once) // PAGE + 2  # they begin and end within what is seen


# Those of this process. After a fork, no thread is left that could end a call.
BATCHES: weakref.WeakSet[ContinuousBatch] = weakref.WeakSet()


def _end_calls() -> None:
    for batch in BATCHES:
        batch._turn, batch._thread = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_calls)
