"""Tables of embeddings, and checks of the tokens to look up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnpy import _attnpy, _checks, _dtypes, _machine, _packed, _parameters, _vjp
from attnpy._quantized import QuantizedTable
from attnpy._vjp import LayerGradients
from attnpy.blocks import ModelOutput

if TYPE_CHECKING:
    from types import EllipsisType

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._quantized import QuantizedWeight
    from attnpy._typing import Array
    from attnpy._vjp import Pullback

# The fewest tokens of a part of a batch for each thread: few enough for a layer's
# results to stay in its caches, and enough to make reading all weights worthwhile.
PART = 512
# The most threads that a part grows with. 4096 tokens of a MiniLM have 80 MB of arrays
# in a layer; memory beyond 128 MB goes back to the system, which clears it again.
MAX_GROWTH = 8


def table(
    rng: np.random.Generator,
    n_rows: int,
    name: str,
    dim: int,
    dtype: DTypeLike,
    order: Literal["C", "F"] = "C",
) -> Array:
    """Return the initial values of a table, (n_rows, dim): standard deviation 0.02."""
    shape = _checks.count(n_rows, name), _checks.count(dim, "embed_dim")
    kind = _dtypes.floating(dtype)
    _checks.memory(f"{name}, embed_dim", kind, shape)
    if isinstance(rng, _parameters.Unset):
        return np.zeros(shape, kind, order)
    values = _dtypes.rounded(0.02 * rng.standard_normal(shape), kind)
    return np.asarray(values, order=order)


def checked_ids(token_ids: ArrayLike, vocab_size: int) -> NDArray[np.int64]:
    """Return the token ids, (L,) or (B, L)."""
    if isinstance(token_ids, (list, tuple)) and all(map(np.iterable, token_ids)):
        lengths = [len(ids) for ids in token_ids if isinstance(ids, Sized)]
        if len(set(lengths)) > 1:
            raise ValueError(
                "token_ids: expected (L,) or (B, L), got sequences of lengths "
                f"{', '.join(map(str, lengths))}: pad them with any token, and pass "
                "the lengths as lengths="
            )
    if isinstance(token_ids, str):
        raise TypeError(
            "token_ids: expected integers, got a text: tokenizer.encode(text).ids are "
            "its tokens"
        )
    ids = _checks.integers(token_ids, "token_ids", 0, vocab_size - 1)
    if ids.ndim not in (1, 2):
        raise ValueError(f"token_ids: expected (L,) or (B, L), got {ids.shape}")
    return ids


def checked_lengths(
    lengths: ArrayLike, ids: NDArray[np.int64], low: int
) -> NDArray[np.int64]:
    """Return how many tokens each sequence of ids has, `low` to L.

    That is (B,) for (B, L), and () for (L,).
    """
    *batch, n_tokens = ids.shape
    ends = _checks.integers(lengths, "lengths", low, n_tokens)
    if ends.shape not in ((), tuple(batch)):
        one_each = f", or {tuple(batch)}, one for each text" if batch else ""
        raise ValueError(f"lengths: expected an integer{one_each}, got {ends.shape}")
    return np.broadcast_to(ends, batch)


def checked_states(
    states: Array, lengths: ArrayLike | None, size: int, which: str
) -> NDArray[np.int64]:
    """Return how many tokens each text of states (L, E) or (B, L, E) has, () or (B,).

    Each has at least one, as its vector is of the first or last: `which`.
    """
    if states.ndim not in (2, 3) or 0 in states.shape[-2:] or states.shape[-1] != size:
        raise ValueError(
            f"states: expected (L, {size}) or (B, L, {size}) with a {which} token, "
            f"got {states.shape}"
        )
    if lengths is None:
        return np.full(states.shape[:-2], states.shape[-2])
    return checked_lengths(lengths, states[..., 0], 1)


def checked_mask(token_mask: ArrayLike, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the tokens exist, broadcast to ids."""
    exists = _checks.array(token_mask, "token_mask")
    if exists.dtype != np.bool_:
        raise TypeError(
            "token_mask: expected booleans, True = the token exists (for 0 and 1 "
            f"write token_mask != 0), got dtype {exists.dtype}"
        )
    if not _checks.broadcasts(exists.shape, ids.shape):
        raise ValueError(
            f"token_mask: expected token_ids' shape {ids.shape}, got {exists.shape}"
        )
    return np.broadcast_to(exists, ids.shape)


def check_positions(n_tokens: int, table: Array) -> None:
    """Require a row of the table for each position of a sequence."""
    if n_tokens > len(table):
        raise ValueError(
            f"token_ids: expected at most max_length = {len(table)} tokens in a "
            f"sequence, got {n_tokens}"
        )


def looked_up(
    table: Array,
    ids: NDArray[np.int64],
    *added: tuple[Array, NDArray[np.int64]],
    factor: float = 1.0,
    num_threads: int | None = None,
) -> Array:
    """Return rows of a table, in the dtype of sums and norms: float32 for 16 bits.

    These keep sums and norms in float32 up to the end; only products have 16 bits. Rows
    are multiplied by a factor. Then those of further tables are added, whose numbers
    broadcast to `ids`.
    """
    real = _dtypes.arithmetic(table.dtype)
    _checks.memory("token_ids", real, (*ids.shape, table.shape[1]))
    pairs = [_numbered(table, ids, real)]
    for other, numbers in added:
        if numbers.shape != ids.shape[ids.ndim - numbers.ndim :]:
            numbers = np.broadcast_to(numbers, ids.shape)
        pairs.append(_numbered(other, numbers, real))
    tables, numbers_of = zip(*pairs, strict=True)
    return _attnpy.embed(tables, numbers_of, factor, num_threads)


def _numbered(
    table: Array, numbers: NDArray[np.int64], real: np.dtype[Any]
) -> tuple[Array | QuantizedWeight, NDArray[np.int64]]:
    """Return a table and numbers of rows, as `_attnpy.embed` takes them.

    That is a copy of only these rows unless all are as it reads them.
    """
    if isinstance(table, QuantizedTable):
        return table.T, numbers
    if isinstance(table, np.ndarray) and table.dtype.isnative:
        is_plain = table.flags.c_contiguous and table.flags.aligned
        if is_plain and _dtypes.arithmetic(table.dtype) == real:
            return table, numbers
    rows = np.ascontiguousarray(table[numbers], real).reshape(-1, table.shape[1])
    return rows, np.arange(numbers.size).reshape(numbers.shape)


def is_mixed(table: Array) -> bool:
    """Tell whether a model with this table is a 16-bit model."""
    return table.dtype.itemsize == 2


def longest(tokens: Array, seq_offsets: NDArray[np.int64] | None) -> int:
    """Return the tokens of the longest sequence of (..., L, E), or of packed ones."""
    if seq_offsets is not None:
        return int(np.diff(seq_offsets).max(initial=0))
    n_tokens: int = tokens.shape[-2]
    return n_tokens


def run_existing(
    tokens: Array,
    lengths: NDArray[np.int64] | None,
    run: Callable[[Array, NDArray[np.int64] | None], Array | ModelOutput],
    table: Array,
    num_threads: int | None,
    cached: bool = False,
) -> Array | ModelOutput:
    """Run the existing tokens of (L, E) or (B, L, E) as packed sequences.

    `run` takes the packed tokens, (T, E), and where sequences begin, and returns the
    result of a stack. Vectors and weights of the others are 0. Without lengths `run`
    takes all tokens as they are. Vectors have the dtype of the table. With `cached`
    their weights may be for more keys.
    """
    exists = starts = None
    if lengths is not None:
        exists, starts = _packed.existing(np.atleast_1d(lengths), tokens.shape[-2])
        exists = exists.reshape(tokens.shape[:-1])
    result = run(tokens if exists is None else tokens[exists], starts)
    if not isinstance(result, ModelOutput):
        return _unpacked(result, exists, table, num_threads)
    weights, states = result.weights, result.hidden_states
    cross_weights = result.cross_weights
    if weights is not None and exists is not None:
        weights = _padded(weights, exists.shape, cached)
    if cross_weights is not None and exists is not None:
        cross_weights = _padded(cross_weights, exists.shape, True)
    if states is not None:
        states = _unpacked(states, exists, table, num_threads)
    output = _unpacked(result.output, exists, table, num_threads)
    return ModelOutput(output, weights, cross_weights, states)


def run_parts(
    ids: NDArray[np.int64],
    lengths: NDArray[np.int64] | None,
    run: Callable[[slice | EllipsisType], Array | ModelOutput],
    num_threads: int | None,
) -> Array | ModelOutput:
    """Run a batch of tokens (L,) or (B, L) in parts that fit into the CPU's caches.

    `run` returns a model's result for a part of the batch, with the same bits.
    """
    output = None
    for span in _parts(ids, lengths, num_threads):
        part = run(span)
        if span is ...:
            return part
        assert isinstance(part, np.ndarray)
        if output is None:
            output = np.empty((*ids.shape, part.shape[-1]), part.dtype)
        output[span] = part
    assert output is not None
    return output


def _parts(
    ids: NDArray[np.int64], lengths: NDArray[np.int64] | None, num_threads: int | None
) -> list[slice | EllipsisType]:
    """Cut a batch into parts of whole sequences with about equally many tokens."""
    if ids.ndim == 1 or ids.size < 2 * PART:
        return [...]
    each = np.full(len(ids), ids.shape[-1]) if lengths is None else lengths
    n_tokens = int(each.sum())
    if n_tokens < 2 * PART:
        return [...]
    n_threads = _machine.get_num_threads()
    if num_threads is not None:
        n_threads = _checks.count(num_threads, "num_threads")
    n_parts = min(n_tokens // (PART * min(n_threads, MAX_GROWTH)), len(ids))
    ends = np.arange(1, n_parts) * (n_tokens / max(n_parts, 1))
    cuts = [0, *np.searchsorted(np.cumsum(each), ends, "right"), len(ids)]
    spans = [slice(a, b) for a, b in itertools.pairwise(cuts) if a < b]
    return [*spans] if len(spans) > 1 else [...]


def existing_vjp(
    tokens: Array,
    lengths: NDArray[np.int64] | None,
    run: Callable[[Array, NDArray[np.int64] | None], tuple[Array, Pullback]],
) -> tuple[Array, Pullback]:
    """Run a stack's vjp as `run_existing` does; the pullback is that of the tokens."""
    exists = starts = None
    if lengths is not None:
        exists, starts = _packed.existing(np.atleast_1d(lengths), tokens.shape[-2])
        exists = exists.reshape(tokens.shape[:-1])
    result, of_stack = run(tokens if exists is None else tokens[exists], starts)
    states = _padded_states(result, exists)
    checked = _vjp.of_output(states)

    def pullback(grad_output: ArrayLike) -> LayerGradients:
        grad = checked(grad_output)
        found = of_stack(grad if exists is None else grad[exists])
        of_tokens = _padded_states(found.x, exists)
        return LayerGradients(
            of_tokens, found.parameters, context=found.context, bias=found.bias
        )

    return states, pullback


def _padded_states(states: Array, exists: NDArray[np.bool_] | None) -> Array:
    """Return vectors (..., T, E) in the places that exist, and 0 in the others."""
    if exists is None:
        return states
    padded = np.zeros(
        (*states.shape[:-2], *exists.shape, states.shape[-1]), states.dtype
    )
    padded[..., exists, :] = states
    return padded


def _unpacked(
    states: Array,
    exists: NDArray[np.bool_] | None,
    table: Array,
    num_threads: int | None,
) -> Array:
    """Return vectors (..., T, E) in the places that exist, in the table's dtype."""
    if is_mixed(table):
        states = _attnpy.cast(states, np.empty((), table.dtype), num_threads)
    return _padded_states(states, exists)


def _padded(weights: Array, shape: tuple[int, ...], cached: bool) -> Array:
    """Return weights (layers, n, H, Lq, Lk) of packed sequences as those of a batch.

    Its shape is (B, L), or (L,) for a single one, which has no axis `n` then.
    """
    *others, n_queries, n_keys = weights.shape
    n_tokens = shape[-1]
    padded = np.zeros(
        (*others, n_tokens, n_keys if cached else n_tokens), weights.dtype
    )
    padded[..., :n_queries, :n_keys] = weights
    return padded if len(shape) == 2 else padded[:, 0]
