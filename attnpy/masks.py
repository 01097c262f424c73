"""Builders of boolean masks for `attention`, and a picture of a mask in text.

True means that a query may attend to a key. For the common cases `attention` has
keywords that need no array: `causal`, `window`, `kv_lengths`. The masks here are for
other cases, for other libraries, and for looking at. Masks combine with ``&`` and
``|``, and with every keyword of `attention`.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _keywords
from attnpy._labels import mask_rows
from attnpy.positions import query_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Causal, Window

    Mask = NDArray[np.bool_]

__all__ = [
    "causal",
    "document",
    "document_ids",
    "padding",
    "prefix_lm",
    "show",
    "window",
]


def __dir__() -> list[str]:
    return __all__


@_keywords.answering
def causal(
    num_queries: int,
    num_keys: int | None = None,
    *,
    causal: Causal = True,
    q_offset: ArrayLike | None = None,
) -> Mask:
    """Hide the keys after each query's position.

    ``attention(..., causal=True)`` and ``causal="top_left"`` do the same without an
    array.

    Parameters
    ----------
    num_queries : int
        `Lq`.
    num_keys : int, optional
        `Lk`; by default `Lq`.
    causal : bool or {"bottom_right", "top_left"}, optional
        As in `attention`: True is "bottom_right", where the last query sees the last
        key; with "top_left" the first query sees only the first key. False hides
        nothing.
    q_offset : int or array_like of int, shape (...), optional
        The position of query 0, as in `attention`, from -2**53 to 2**53. It overrides
        the one that follows from `causal`: query i sees the keys up to ``q_offset +
        i``.

    Returns
    -------
    ndarray of bool, shape (Lq, Lk), or (..., 1, Lq, Lk) where `q_offset` is an array
        True = may attend.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer, or out of its range; if `causal` has another
        value.
    MemoryError
        If memory cannot hold the result.

    Examples
    --------
    >>> from attnpy import masks
    >>> print(masks.show(masks.causal(2, 4)))
    ■ ■ ■ ·
    ■ ■ ■ ■
    >>> print(masks.show(masks.causal(2, 4, causal="top_left")))
    ■ · · ·
    ■ ■ · ·
    """
    hides, top_left = _checked_causal(causal)
    if q_offset is None and top_left:
        q_offset = 0
    num_keys = num_queries if num_keys is None else num_keys
    _check_size(num_queries, num_keys, q_offset)
    positions = query_positions(num_queries, num_keys, q_offset=q_offset)
    return (np.arange(num_keys) <= positions[..., np.newaxis]) | (not hides)


@_keywords.answering
def window(
    num_queries: int,
    num_keys: int,
    window: Window | None,
    *,
    q_offset: ArrayLike | None = None,
) -> Mask:
    """Show each query only the keys around its position.

    ``attention(..., window=(left, right))`` does the same without an array.

    Parameters
    ----------
    num_queries, num_keys : int
        `Lq` and `Lk`.
    window : (int or None, int or None) or None
        As in `attention`, ``(left, right)``: the query at position p sees the keys from
        ``p - left`` to ``p + right``; each is at least 0, or None for no limit. None
        hides nothing.
    q_offset : int or array_like of int, shape (...), optional
        The position of query 0, as in `attention`; by default ``Lk - Lq``.

    Returns
    -------
    ndarray of bool, shape (Lq, Lk), or (..., 1, Lq, Lk) where `q_offset` is an array
        True = may attend.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer, or out of its range.
    MemoryError
        If memory cannot hold the result.

    Notes
    -----
    From Beltagy et al., "Longformer: The Long-Document Transformer" (2020), section
    3.1, whose window w is ``(w // 2, w // 2)``. A causal window of w keys, including
    the query's own, is ``(w - 1, 0)``.

    Examples
    --------
    >>> from attnpy import masks
    >>> print(masks.show(masks.window(4, 4, (1, 0))))
    ■ · · ·
    ■ ■ · ·
    · ■ ■ ·
    · · ■ ■
    """
    left, right = _checked_window(window)
    _check_size(num_queries, num_keys, q_offset)
    positions = query_positions(num_queries, num_keys, q_offset=q_offset)
    positions = positions[..., np.newaxis]
    keys = np.arange(num_keys)
    mask = np.ones(np.broadcast_shapes(positions.shape, keys.shape), np.bool_)
    if left is not None:
        mask &= keys >= positions - left
    if right is not None:
        mask &= keys <= positions + right
    return mask


@_keywords.answering
def padding(kv_lengths: ArrayLike, num_keys: int) -> Mask:
    """Hide the keys past each sequence's length.

    ``attention(..., kv_lengths=kv_lengths)`` does the same without an array. That also
    moves the default position of the queries, so that with ``causal=True`` the last
    query sees the last key that exists; with a mask, pass ``q_offset=kv_lengths - Lq``
    as well.

    Parameters
    ----------
    kv_lengths : int or array_like of int, shape (B,) or (...)
        As in `attention`: how many keys exist, 0 to `num_keys`.
    num_keys : int
        `Lk`.

    Returns
    -------
    ndarray of bool, shape (B, 1, 1, Lk) or (..., 1, 1, Lk), or (Lk,) for an int
        True = may attend.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer, or out of its range.
    MemoryError
        If memory cannot hold the result.

    Examples
    --------
    >>> from attnpy import masks
    >>> mask = masks.padding([2, 3], 3)
    >>> mask.shape
    (2, 1, 1, 3)
    >>> mask[:, 0, 0]
    array([[ True,  True, False],
           [ True,  True,  True]])
    """
    num_keys = _checks.size(num_keys, "num_keys")
    n_sequences = _checks.array(kv_lengths, "kv_lengths").size
    _checks.memory("num_keys", np.int64, (num_keys,))
    _checks.memory("kv_lengths, num_keys", np.bool_, (n_sequences, num_keys))
    ends = _checks.integers(kv_lengths, "kv_lengths", 0, num_keys)
    if ends.ndim:
        ends = ends[..., np.newaxis, np.newaxis, np.newaxis]
    return np.arange(num_keys) < ends


def document(ids: ArrayLike) -> Mask:
    """Keep packed documents apart: each token sees only those of its own document.

    No keyword of `attention` does this. Add ``causal=True`` for a language model.

    Parameters
    ----------
    ids : array_like of int, shape (L,) or (..., L)
        The number of each token's document. A negative number is padding, which sees
        nothing and is seen by nothing. `document_ids` makes these numbers from lengths.

    Returns
    -------
    ndarray of bool, shape (L, L), or (..., 1, L, L) for more axes
        True = may attend.

    Raises
    ------
    TypeError, ValueError
        If `ids` are not integers, out of their range, or without an axis.
    MemoryError
        If memory cannot hold the result.

    Examples
    --------
    >>> from attnpy import masks
    >>> print(masks.show(masks.document([0, 0, 1, 1, -1])))
    ■ ■ · · ·
    ■ ■ · · ·
    · · ■ ■ ·
    · · ■ ■ ·
    · · · · ·
    """
    shape = _checks.array(ids, "ids").shape
    if not shape:
        raise ValueError("ids: expected (..., L), got ()")
    _checks.memory("ids", np.bool_, (*shape, shape[-1]))
    numbers = _checks.integers(ids, "ids")
    if numbers.ndim > 1:
        numbers = numbers[..., np.newaxis, :]  # (..., 1, L)
    rows, columns = numbers[..., :, np.newaxis], numbers[..., np.newaxis, :]
    mask: Mask = (rows == columns) & (rows >= 0)
    return mask


def document_ids(lengths: ArrayLike, total: int | None = None) -> NDArray[np.int64]:
    """Return the number of each token's document in a packed sequence.

    Parameters
    ----------
    lengths : array_like of int, shape (n,)
        How many tokens each document has, at least 0.
    total : int, optional
        `L`, at least the sum of the lengths, and by default this sum. The tokens after
        the last document are padding, -1.

    Returns
    -------
    ndarray of int64, shape (L,)
        0 to ``n - 1``, and -1: the argument of `document`.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer, or out of its range; if `lengths` does not have
        one axis.
    MemoryError
        If memory cannot hold the result.

    Examples
    --------
    >>> from attnpy import masks
    >>> masks.document_ids([2, 3], total=6)
    array([ 0,  0,  1,  1,  1, -1])
    """
    counts = _checks.integers(lengths, "lengths", 0)
    if counts.ndim != 1:
        raise ValueError(f"lengths: expected (n,), got {counts.shape}")
    n_tokens = int(counts.sum())
    total = n_tokens if total is None else _checks.size(total, "total")
    if total < n_tokens:
        raise ValueError(
            f"total: expected at least the sum of the lengths, {n_tokens}, got {total}"
        )
    _checks.memory("total", np.int64, (total,))
    ids = np.full(total, -1)
    ids[:n_tokens] = np.repeat(np.arange(len(counts)), counts)
    return ids


def prefix_lm(length: int, prefix_length: ArrayLike) -> Mask:
    """Show the prefix to all queries, and later keys only to queries not before them.

    No keyword of `attention` does this. Without a prefix it is ``causal=True``.

    Parameters
    ----------
    length : int
        `L`, the number of queries and keys.
    prefix_length : int or array_like of int, shape (...)
        How many tokens the prefix has, 0 to `length`.

    Returns
    -------
    ndarray of bool, shape (L, L), or (..., 1, L, L) where `prefix_length` is an array
        True = may attend.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer, or out of its range.
    MemoryError
        If memory cannot hold the result.

    Notes
    -----
    From Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
    Text-to-Text Transformer" (2020), section 3.2.1.

    Examples
    --------
    >>> from attnpy import masks
    >>> print(masks.show(masks.prefix_lm(4, 2)))
    ■ ■ · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
    """
    length = _checks.size(length, "length")
    _check_size(length, length)
    n_masks = _checks.array(prefix_length, "prefix_length").size
    _checks.memory("prefix_length, length", np.bool_, (n_masks, length, length))
    ends = _checks.integers(prefix_length, "prefix_length", 0, length)
    if ends.ndim:
        ends = ends[..., np.newaxis, np.newaxis, np.newaxis]
    return causal(length) | (np.arange(length) < ends)


@_keywords.answering
def show(
    mask: ArrayLike,
    query_labels: Sequence[Any] | None = None,
    key_labels: Sequence[Any] | None = None,
) -> str:
    """Draw a mask with characters: a row for each query, ■ where it may attend.

    Parameters
    ----------
    mask : array_like of bool, shape (Lq, Lk), (Lk,) or (..., 1, 1, Lk)
        Leading axes of length 1 are allowed: a single head and batch. With longer
        leading axes, as in results of `padding`, there is one row for each sequence,
        for all of its queries.
    query_labels, key_labels : sequence of str, optional
        Names for the rows, and `Lk` names for the columns, for example words.
        Characters that cannot be printed, such as a newline, are shown as in a string
        literal.

    Returns
    -------
    str
        Lines without a newline at the end.

    Raises
    ------
    TypeError
        If `mask` is not boolean.
    ValueError
        If it has another shape, or there are not as many labels as rows or columns.

    Examples
    --------
    >>> from attnpy import masks
    >>> words = ["the", "cat", "sat"]
    >>> print(masks.show(masks.causal(3), words, words))
        the cat sat
    the ■   ·   ·
    cat ■   ■   ·
    sat ■   ■   ■
    >>> print(masks.show(masks.padding([1, 3], 3)))
    ■ · ·
    ■ ■ ■
    """
    mask, _ = mask_rows(mask)
    names = _names(query_labels, "query_labels", mask.shape[0])
    heads = _names(key_labels, "key_labels", mask.shape[1])
    rows = [["■" if seen else "·" for seen in row] for row in mask.tolist()]
    if key_labels is not None:
        rows, names = [heads, *rows], ["", *names]
    if query_labels is not None:
        rows = [[name, *row] for name, row in zip(names, rows, strict=True)]
        heads = [max(names, key=len, default=""), *heads]
    widths = [max(1, len(head)) for head in heads]
    lines = (
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _check_size(
    num_queries: int, num_keys: int, q_offset: ArrayLike | None = None
) -> None:
    """Require memory for a mask of each sequence, and for the keys' positions."""
    n_rows = _checks.size(num_queries, "num_queries")
    n_keys = _checks.size(num_keys, "num_keys")
    n = 1 if q_offset is None else _checks.array(q_offset, "q_offset").size
    name = "num_queries, num_keys" if n == 1 else "q_offset, num_queries, num_keys"
    _checks.memory(name, np.bool_, (n, n_rows, n_keys))
    _checks.memory("num_keys", np.int64, (n_keys,))


def _checked_causal(causal: Causal) -> tuple[bool, bool]:
    """Return whether later keys are hidden, and whether from query 0 at position 0."""
    expected = "causal: expected False, True, 'bottom_right' or 'top_left'"
    if isinstance(causal, (bool, np.bool_)):
        return bool(causal), False
    if not isinstance(causal, str):
        raise TypeError(f"{expected}, got {type(causal).__name__}")
    if causal not in ("bottom_right", "top_left"):
        raise ValueError(f"{expected}, got {causal!r}")
    return True, causal == "top_left"


def _checked_window(window: Window | None) -> list[int | None]:
    """Return both sides of a window, limited so that sums with positions fit int64."""
    if window is None:
        return [None, None]
    try:
        sides = None if isinstance(window, (str, Set)) else list(window)
    except TypeError:  # such as an array without axes
        sides = None
    if sides is None:
        raise TypeError(f"window: expected (left, right), got {type(window).__name__}")
    if len(sides) != 2:
        raise ValueError(f"window: expected (left, right), got {window!r}")
    return [
        None if side is None else min(_checks.size(side, "window"), 2**62)
        for side in sides
    ]


def _names(labels: Sequence[Any] | None, name: str, n: int) -> list[str]:
    """Return printable labels; empty ones if none are given."""
    if labels is None:
        return [""] * n
    names = [repr(str(label))[1:-1] for label in _checks.items(labels, name, "labels")]
    if len(names) != n:
        raise ValueError(f"{name}: expected {n} labels, got {len(names)}")
    return names
