"""Tables of embeddings, and the checks of what is looked up in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnpy import _checks, _dtypes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array


def table(
    rng: np.random.Generator, n_rows: int, name: str, dim: int, dtype: DTypeLike
) -> Array:
    """Return the first values of a table, (n_rows, dim): standard deviation 0.02."""
    shape = _checks.count(n_rows, name), _checks.count(dim, "embed_dim")
    return _dtypes.rounded(0.02 * rng.standard_normal(shape), _dtypes.floating(dtype))


def checked_ids(token_ids: ArrayLike, vocab_size: int) -> NDArray[np.int64]:
    """Return the numbers of tokens, (L,) or (B, L)."""
    ids = _checks.integers(token_ids, "token_ids", 0, vocab_size - 1)
    if ids.ndim not in (1, 2):
        raise ValueError(f"token_ids: expected (L,) or (B, L), got {ids.shape}")
    return ids


def checked_lengths(
    lengths: ArrayLike, ids: NDArray[np.int64], low: int
) -> NDArray[np.int64]:
    """Return how many tokens each sequence of ids (B, L) has, (B,): `low` to L."""
    batch, n_tokens = ids.shape
    ends = _checks.integers(lengths, "lengths", low, n_tokens)
    if ends.shape not in ((), (batch,)):
        raise ValueError(
            f"lengths: expected an integer, or ({batch},) to match token_ids, "
            f"got {ends.shape}"
        )
    return np.broadcast_to(ends, batch)


def check_positions(n_tokens: int, table: Array) -> None:
    """Require a row of the table for each position of a sequence."""
    if n_tokens > len(table):
        raise ValueError(
            f"token_ids: expected at most max_length = {len(table)} tokens in a "
            f"sequence, got {n_tokens}"
        )
