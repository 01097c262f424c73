"""Packed sequences, end to end: each begins where the one before it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnpy import _checks

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def checked_starts(seq_offsets: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return where the sequences of packed tokens (T, E) begin."""
    if len(shape) != 2:
        raise ValueError(f"x: expected (T, E) with seq_offsets, got {shape}")
    starts = _checks.integers(seq_offsets, "seq_offsets")
    if (
        starts.ndim != 1
        or len(starts) == 0
        or starts[0] != 0
        or starts[-1] != shape[0]
        or (np.diff(starts) < 0).any()
    ):
        raise ValueError(
            "seq_offsets: expected (n + 1,) integers ascending from 0 to the "
            f"{shape[0]} tokens of x, got {starts}"
        )
    return starts


def positions(starts: NDArray[np.int64], first: ArrayLike = 0) -> NDArray[np.int64]:
    """Return the position of each token in its sequence, (T,), beginning at `first`."""
    counts = np.diff(starts)
    before = np.broadcast_to(_checks.integers(first, "q_offset"), counts.shape)
    places: NDArray[np.int64] = np.arange(starts[-1])
    places += np.repeat(before - starts[:-1], counts)
    return places


def existing(
    lengths: NDArray[np.int64], n_tokens: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which tokens of a padded batch exist, (B, L), and where packed ones begin.

    `lengths` (B,) are the numbers of tokens at the start of each sequence.
    """
    exists = np.arange(n_tokens) < lengths[:, np.newaxis]
    return exists, np.concatenate([[0], np.cumsum(lengths)])
