"""The vectors of last tokens of texts that begin alike: that part is computed once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from attnpy.models import _texts
from attnpy.positions.rotary import by_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attnpy._typing import Array
    from attnpy.cache import KVCache
    from attnpy.models.decoder import CausalDecoder

    Rows = Sequence[list[int]]

# Fewer tokens are not worth keys and values that are copied for each text.
FEWEST = 16
# How large the keys and values of the texts that are computed together may be.
MOST_BYTES = 1 << 28


class Beginning:
    """What texts begin with, and its keys and values.

    The bits of a vector are those of its text alone: keys and values have the same
    ones in parts.
    """

    def __init__(self, model: CausalDecoder) -> None:
        """Make an empty one."""
        self.model = model
        self.ids: list[int] = []
        self.caches: list[KVCache] = []
        turns = model.rotary if isinstance(model.rotary, list) else [model.rotary]
        by_lengths = any(turn is not None and by_length(turn) for turn in turns)
        self.is_used = model.decoder.layers[0].causal and not by_lengths

    def last_states(
        self, rows: Rows, ends: Sequence[int], num_threads: int | None
    ) -> Array:
        """Return the vectors (B, E) of token ``ends - 1`` of each text."""
        n = self._begin(rows, ends, num_threads)
        found = []
        for part in self._parts(len(rows), max(map(len, rows))) if n else [slice(None)]:
            some, places = rows[part], np.array(ends[part]) - n - 1
            caches = None
            if n:
                room, first = max(map(len, some)), [0] * len(some)
                caches = [cache.fork(first, capacity=room) for cache in self.caches]
            states = self.model(
                _texts.padded([row[n:] for row in some]),
                lengths=[len(row) - n for row in some],
                caches=caches,
                num_threads=num_threads,
            )
            found.append(states[np.arange(len(some)), places])
        return np.concatenate(found)

    def _begin(self, rows: Rows, ends: Sequence[int], num_threads: int | None) -> int:
        """Compute what texts begin with, unless it is known; return its length."""
        if not self.is_used or len(rows) == 1:
            return 0
        pairs = zip(min(rows), max(rows), strict=False)
        alike = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        )
        n, known = min(alike, min(ends) - 1), len(self.ids)
        if n < FEWEST:
            return 0
        if not (known and n - FEWEST < known <= n and rows[0][:known] == self.ids):
            self.ids = list(rows[0][:n])
            self.caches = self.model.new_caches(1, n)
            self.model([self.ids], caches=self.caches, num_threads=num_threads)
        return len(self.ids)

    def _parts(self, n_rows: int, longest: int) -> Iterator[slice]:
        """Go through texts, as many at a time as there is memory for their caches."""
        bytes_of = sum(
            array.nbytes for cache in self.caches for array in (cache.key, cache.value)
        )
        n_bytes = bytes_of // len(self.ids) * longest
        step = max(1, MOST_BYTES // n_bytes)
        for begin in range(0, n_rows, step):
            yield slice(begin, begin + step)
