"""Attention whose positions are products with its queries and keys: DeBERTa's."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _attnpy, _checks, _dtypes, _parameters
from attnpy._attention import attention
from attnpy._linear import cut_into_heads, linear

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import ArrayLike

    from attnpy._typing import Array
    from attnpy.layers._tokens import Tokens
    from attnpy.layers._weights import Wanted
    from attnpy.positions import Disentangled


def attend(
    mha: Any,
    tokens: Tokens,
    relative: Disentangled,
    residual: ArrayLike | None,
    mixed: bool,
    wanted: Wanted,
    options: Mapping[str, Any],
) -> Any:
    """Return the result of a layer's call, as the C module does of others.

    Each sequence is computed on its own, so that its bits depend on no other.
    """
    x, num_threads = tokens.array, options.get("num_threads")
    _check(mha, x, relative)
    inner, outer = _precision(mha, mixed)
    query, key, value = (
        cut_into_heads(
            linear(x, weight, bias, precision=inner, num_threads=num_threads),
            mha.num_heads,
        )
        for weight, bias in (
            (mha.W_q, mha.b_q),
            (mha.W_k, mha.b_k),
            (mha.W_v, mha.b_v),
        )
    )
    spans = [*_sequences(tokens)]
    longest = max((n for _, n in spans), default=0)
    told = _Options(mha, tokens, len(spans), longest, options)
    scale = told.common.get("scale")
    if scale is None:
        scale = (mha.head_dim * (1 + relative.c2p + relative.p2c)) ** -0.5
    positions = _Positions(mha, relative, scale, longest, num_threads)
    joined = np.zeros((*x.shape[:-1], mha.num_heads * mha.value_head_dim), value.dtype)
    results = cut_into_heads(joined, mha.num_heads)
    chosen = _chosen(wanted, mha.num_heads)
    shape = (len(spans), len(chosen), longest, longest)
    weights = np.zeros(shape if wanted.any else (0,), value.dtype)
    for i, (place, n) in enumerate(spans):
        if n == 0:
            continue
        own = told.of(i, n)
        bias = positions.scores(query[place], key[place])
        if own.get("bias") is not None:
            bias += own["bias"]
        own |= {"bias": bias, "scale": scale, "return_weights": wanted.any}
        found = attention(query[place], key[place], value[place], **own)
        results[place] = found[0] if wanted.any else found
        if wanted.any:
            weights[i, :, :n, :n] = found[1][chosen]
    output = linear(
        *(joined, mha.W_o, mha.b_o),
        residual=residual,
        precision=outer,
        num_threads=num_threads,
    )
    is_single = tokens.starts is None and x.ndim == 2
    return (output, weights[0] if is_single else weights) if wanted.any else output


def _check(mha: Any, x: Array, relative: Any) -> None:
    """Require tokens and a layer that fit to the positions."""
    size = len(mha.W_q)
    if x.ndim not in (2, 3) or x.shape[-1] != size:
        raise ValueError(f"x: expected (L, {size}) or (B, L, {size}), got {x.shape}")
    if relative.table.shape[1] != size:
        raise ValueError(
            f"relative: expected a table of rows of {size} numbers, as tokens have, "
            f"got {relative.table.shape}"
        )
    if mha.num_kv_heads != mha.num_heads:
        raise ValueError(
            f"relative: expected None in a layer with num_kv_heads = "
            f"{mha.num_kv_heads} of {mha.num_heads} heads"
        )
    if mha.q_norm is not None or mha.k_norm is not None:
        raise ValueError("relative: expected None in a layer with q_norm or k_norm")


class _Positions:
    """The tables that the queries and the keys of a call are multiplied by."""

    def __init__(
        self,
        mha: Any,
        relative: Disentangled,
        scale: float,
        longest: int,
        num_threads: int | None,
    ) -> None:
        """Project what sequences of this length at most need."""
        self.num_threads = num_threads
        rows = relative.rows(np.arange(1 - longest, longest))
        self.first = int(rows.min(initial=len(relative.table)))
        self.columns = rows - self.first  # of the tables, for each distance
        needed = slice(self.first, self.first + int(self.columns.max(initial=-1)) + 1)
        self.tables = [
            _projected(mha, relative, letter, scale, needed, num_threads)
            if is_wanted
            else None
            for letter, is_wanted in (("k", relative.c2p), ("q", relative.p2c))
        ]

    def scores(self, query: Array, key: Array) -> Array:
        """Return what to add to the scores of queries and keys (H, n, D): (H, n, n)."""
        n_heads, n, _ = query.shape
        middle = len(self.columns) // 2
        columns = self.columns[middle + 1 - n : middle + n]
        first, last = columns[0], columns[-1]  # they ascend
        dtype = _dtypes.arithmetic(query.dtype)

        def product(rows: Array, table: Array | None) -> Array:
            if table is None:
                zero = np.zeros((), dtype)
                return np.broadcast_to(zero, (n_heads, n, last - first + 1))
            rows = rows.astype(dtype, copy=False)
            near = table[:, :, first : last + 1]
            return _attnpy.products(rows, near, self.num_threads)

        return _attnpy.distance_scores(
            product(query, self.tables[0]),
            product(key, self.tables[1]),
            columns - first,
            self.num_threads,
        )


def _projected(
    mha: Any,
    relative: Disentangled,
    letter: str,
    scale: float,
    rows: slice,
    num_threads: int | None,
) -> Array:
    """Return the projections of rows of a table, (H, D, n).

    Where matrix and table cannot change, those of all rows are kept for later calls.
    """
    weight, bias = getattr(mha, f"W_p{letter}"), getattr(mha, f"b_p{letter}")
    if weight is None:
        weight, bias = getattr(mha, f"W_{letter}"), getattr(mha, f"b_{letter}")
    is_frozen = isinstance(weight, _parameters.FROZEN)
    is_frozen = is_frozen and not relative.table.flags.writeable
    if is_frozen:
        kept = _PROJECTED.get(mha, {}).get(letter)
        if kept is not None and kept.fits(relative.table, weight, bias, scale):
            return kept.table[:, :, rows]
    columns = linear(
        relative.table if is_frozen else relative.table[rows],
        weight,
        bias,
        precision="wide" if weight.dtype.itemsize == 2 else "promoted",
        num_threads=num_threads,
    )
    heads = cut_into_heads(columns, mha.num_heads).swapaxes(-1, -2)
    table = np.ascontiguousarray(heads)
    table *= table.dtype.type(scale)
    if is_frozen:
        own = None if bias is None else bias.copy()
        _PROJECTED.setdefault(mha, {})[letter] = _Kept(
            relative.table, weight, own, scale, table
        )
    return table[:, :, rows] if is_frozen else table


# Of each layer, an attnpy.layers.MultiHeadAttention: the last tables, by their letters.
_PROJECTED: weakref.WeakKeyDictionary[Any, dict[str, _Kept]]
_PROJECTED = weakref.WeakKeyDictionary()


class _Kept(NamedTuple):
    """A table of projections, and what it was made of."""

    given: Array
    weight: Any
    bias: Array | None
    scale: float
    table: Array

    def fits(
        self, given: Array, weight: object, bias: Array | None, scale: float
    ) -> bool:
        """Tell whether the same would be made of these."""
        if given is not self.given or weight is not self.weight or scale != self.scale:
            return False
        if bias is None or self.bias is None:
            return bias is self.bias
        return np.array_equal(bias, self.bias)


def _sequences(tokens: Tokens) -> Iterator[tuple[Any, int]]:
    """Yield where each sequence is in (..., H, L, D), and how many tokens it has."""
    if tokens.starts is not None:
        for start, stop in itertools.pairwise(tokens.starts.tolist()):
            yield (slice(None), slice(start, stop)), stop - start
    elif tokens.array.ndim == 2:
        yield ..., tokens.array.shape[0]
    else:
        for i in range(len(tokens.array)):
            yield i, tokens.array.shape[1]


class _Options:
    """The options of a call, for one sequence after the other."""

    def __init__(
        self,
        mha: Any,
        tokens: Tokens,
        n_sequences: int,
        longest: int,
        options: Mapping[str, Any],
    ) -> None:
        is_batch = tokens.starts is not None or tokens.array.ndim == 3
        batch = (n_sequences,) if is_batch else ()
        self.common = dict(options)
        self.each: dict[str, Array] = {}
        full = (*batch, mha.num_heads, longest, longest)
        for name in ("mask", "bias", "q_offset", "kv_lengths"):
            given = self.common.pop(name, None)
            if given is None:
                continue
            array = _checks.array(given, name)
            shape = full if name in ("mask", "bias") else batch
            if not _checks.broadcasts(array.shape, shape):
                raise ValueError(
                    f"{name}: expected a shape that broadcasts to {shape}, got "
                    f"{array.shape}"
                )
            self.each[name] = np.broadcast_to(array, shape)

    def of(self, i: int, n: int) -> dict[str, Any]:
        """Return those of sequence i, which has n tokens."""
        own = dict(self.common)
        for name, array in self.each.items():
            of_sequence = array[i] if array.ndim in (1, 4) else array
            if name in ("mask", "bias"):
                of_sequence = of_sequence[..., :n, :n]
            own[name] = of_sequence
        return own


def _precision(mha: Any, mixed: bool) -> tuple[Any, Any]:
    """Return the precisions of queries, keys and values, and of the output."""
    if mixed and mha.W_q.dtype.itemsize == 2:
        return "narrow", "wide"
    return "promoted", "promoted"


def _chosen(wanted: Wanted, num_heads: int) -> list[int]:
    """Return the heads whose weights are wanted, in the order of their places."""
    if wanted.groups is None:
        return [*range(num_heads)]
    places = wanted.groups.tolist()
    return [places.index(i) for i in range(max(places) + 1)]
