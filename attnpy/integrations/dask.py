"""Attention of Dask arrays: the queries, keys and heads of one call on many machines.

Blocks of keys are processed by `attnpy.attend_partial`; only its state goes from one to
the next.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from attnpy import _checks, _dtypes, _keywords
from attnpy._attention import attention as numpy_attention
from attnpy._merge import merge
from attnpy._options import PASSED_ON
from attnpy._partial import PartialAttention, attend_partial

try:
    import dask
    import dask.array as da
except ImportError as error:
    raise ImportError(
        "attnpy.integrations.dask needs Dask's arrays: pip install 'dask[array]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from attnpy._typing import Array, StatisticsOptions

__all__ = ["attention"]


def __dir__() -> list[str]:
    return __all__


OPTIONS = PASSED_ON - {"seq_offsets"}


class Inputs(NamedTuple):
    """The Dask arrays of a call, with the same chunks along the axes that they share.

    An array that broadcasts along an axis has one chunk there.
    """

    query: Any  # (..., H, Lq, D)
    key: Any  # (..., Hk, Lk, D)
    value: Any  # (..., Hk, Lk, Dv)
    mask: Any  # (..., H, Lq, Lk), or None
    bias: Any
    sinks: Array | None  # (H,)
    cuts: list[list[range]]  # of the result, (batch axes, H, Lq)
    positions: NDArray[np.int64]  # (batch axes) of query 0, among the keys
    lengths: NDArray[np.int64]  # (batch axes) of keys


@overload
def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    combine: Literal["chain", "tree"] = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[StatisticsOptions],
) -> da.Array: ...
@overload
def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    combine: Literal["chain", "tree"] = ...,
    return_lse: Literal[True],
    **options: Unpack[StatisticsOptions],
) -> tuple[da.Array, da.Array]: ...
@overload
def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    combine: Literal["chain", "tree"] = ...,
    return_lse: bool = ...,
    **options: Unpack[StatisticsOptions],
) -> da.Array | tuple[da.Array, da.Array]: ...
def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    combine: str = "chain",
    return_lse: bool = False,
    **options: Unpack[StatisticsOptions],
) -> da.Array | tuple[da.Array, da.Array]:
    r"""Compute attention of Dask arrays, lazily.

    Parameters
    ----------
    query, key, value : dask.array.Array or array_like
        As for `attnpy.attention`, with at least the axes (H, L, D), cut into chunks
        along batch, heads, queries and keys in any way. The last axis becomes one
        chunk. Along the keys, value is cut like key; along the heads, query is cut like
        key, so that a chunk has whole groups.
    combine : {"chain", "tree"}, optional
        "chain": the state of each chunk of queries goes through the chunks of keys in
        ascending order. "tree": each chunk of keys is processed separately, and the
        results are merged in pairs; for few queries and very many keys.
    return_lse : bool, optional
        Return the LSE as well.
    **options
        Those of `attnpy.attention`: `mask` and `bias`, which may be Dask arrays, too;
        `causal`, `window`, `q_offset` and `kv_lengths`, whose positions refer to the
        whole arrays; `scale`, `softcap`, `sinks`; and `num_threads` for each task, by
        default 1, because Dask runs tasks in parallel.

    Returns
    -------
    output : dask.array.Array, shape (..., H, Lq, Dv)
        In the chunks of the query.
    lse : dask.array.Array, shape (..., H, Lq)
        With `return_lse`.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If shapes do not fit together, or a size is not known.

    Notes
    -----
    With "chain", and chunks of keys that begin at multiples of 512, the result has the
    same bits as `attnpy.attention` of the whole arrays, wherever the tasks run and
    however often. Otherwise the numbers are the same up to rounding.

    Chunks of keys that `causal`, `window` and `kv_lengths` hide from a chunk of queries
    are not read for it.

    Keys and values move between machines once for each chunk of queries that is
    elsewhere, and so does the state, Dv + 2 numbers for each query.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> import attnpy
    >>> from attnpy.integrations.dask import attention
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 4, 3000, 64), dtype=np.float32)
    >>> chunks = (2, 1024, 64)  # of heads, of queries or keys
    >>> arrays = [da.from_array(array, chunks) for array in (query, key, value)]
    >>> lazy = attention(*arrays, causal=True)
    >>> lazy.shape, lazy.chunks[1]
    ((4, 3000, 64), (1024, 1024, 952))
    >>> expected = attnpy.attention(query, key, value, causal=True)
    >>> bool((lazy.compute() == expected).all())
    True
    """
    _keywords.refuse(options, OPTIONS, "attention()")
    _checks.one_of(combine, "combine", ("chain", "tree"))
    return_lse = _checks.flag(return_lse, "return_lse")
    inputs = _inputs(query, key, value, options)
    plain = {name: options.get(name) for name in PLAIN if options.get(name) is not None}
    num_threads = options.get("num_threads")
    plain["num_threads"] = 1 if num_threads is None else num_threads
    dtype = _check_as_calls_do(inputs, plain)
    if "causal" in plain:  # all positions are known by now
        plain["causal"] = bool(plain["causal"])
    run = _chained if combine == "chain" else _merged
    outputs, lses = [], []
    for place in itertools.product(*inputs.cuts):
        both = run(inputs, place, plain, dtype)
        shape = tuple(map(len, place))
        outputs.append(
            da.from_delayed(both[0], (*shape, inputs.value.shape[-1]), dtype)
        )
        lses.append(da.from_delayed(both[1], shape, _dtypes.arithmetic(dtype)))
    grid = tuple(map(len, inputs.cuts))
    output = da.block(_nested(outputs, (*grid, 1)))
    return (output, da.block(_nested(lses, grid))) if return_lse else output


# Options that go into each task as they are.
PLAIN = ("causal", "window", "scale", "softcap")

# A chunk of the result: which batches, heads and queries.
Place = tuple[range, ...]


def _inputs(query: Any, key: Any, value: Any, options: StatisticsOptions) -> Inputs:
    """Check the arrays, and give them the same chunks."""
    query, key, value = (
        _dask_array(array, name)
        for array, name in ((query, "query"), (key, "key"), (value, "value"))
    )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"key: expected the head dimension {query.shape[-1]} of query, "
            f"got shape {key.shape}"
        )
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"value: expected the {key.shape[-2]} keys of key, got shape {value.shape}"
        )
    n_heads, n_queries, n_keys = query.shape[-3], query.shape[-2], key.shape[-2]
    n_kv_heads = key.shape[-3]
    if value.shape[-3] != n_kv_heads or n_kv_heads == 0 or n_heads % n_kv_heads:
        raise ValueError(
            "key: expected as many heads as value, a divisor of query's "
            f"{n_heads}, got {n_kv_heads} and {value.shape[-3]}"
        )
    try:
        batch = np.broadcast_shapes(
            *(array.shape[:-3] for array in (query, key, value))
        )
    except ValueError:
        raise ValueError(
            "query: expected axes before the head axis that broadcast with key's and "
            f"value's, got {query.shape[:-3]}, {key.shape[:-3]} and {value.shape[:-3]}"
        ) from None
    batch_cuts = tuple(
        _chunks_of_axis((query, key, value), axis - len(batch) - 3, n)
        for axis, n in enumerate(batch)
    )
    group = n_heads // n_kv_heads
    kv_cuts = key.chunks[-3]
    head_cuts = tuple(n * group for n in kv_cuts)
    cuts = (*batch_cuts, head_cuts, query.chunks[-2])
    of_keys = key.chunks[-2]
    sinks = options.get("sinks")
    lengths, positions = _lengths_and_positions(options, batch, n_queries, n_keys)
    full = (*batch, n_heads, n_queries, n_keys)
    return Inputs(
        _cut(query, (*cuts, (query.shape[-1],))),
        _cut(key, (*batch_cuts, kv_cuts, of_keys, (key.shape[-1],))),
        _cut(value, (*batch_cuts, kv_cuts, of_keys, (value.shape[-1],))),
        _scores_like(options.get("mask"), "mask", full, (*cuts, of_keys)),
        _scores_like(options.get("bias"), "bias", full, (*cuts, of_keys)),
        None if sinks is None else _checks.array(sinks, "sinks"),
        [_ranges(chunks) for chunks in cuts],
        positions,
        lengths,
    )


def _as_dask(given: Any, name: str) -> Any:
    """Return a Dask array; a NumPy array becomes one chunk."""
    if isinstance(given, da.Array):
        return given
    array = _checks.array(given, name)
    return da.from_array(array, chunks=array.shape)


def _dask_array(given: Any, name: str) -> Any:
    array = _as_dask(given, name)
    if any(map(math.isnan, array.shape)):
        raise ValueError(
            f"{name}: expected sizes that are known (compute_chunk_sizes() finds "
            f"them), got {array.shape}"
        )
    if array.ndim < 3:
        raise ValueError(f"{name}: expected (..., H, L, D), got shape {array.shape}")
    return array


def _chunks_of_axis(arrays: tuple[Any, ...], axis: int, n: int) -> tuple[int, ...]:
    """Return the chunks of the first array that has a whole axis, a negative number."""
    for array in arrays:
        if array.ndim >= -axis and array.shape[axis] == n:
            chunks: tuple[int, ...] = array.chunks[axis]
            return chunks
    return (n,)


def _cut(array: Any, cuts: tuple[tuple[int, ...], ...]) -> Any:
    """Cut an array along those of its last axes that it does not broadcast."""
    own = cuts[len(cuts) - array.ndim :]
    return array.rechunk(
        tuple(
            chunks if n == sum(chunks) else (n,)
            for n, chunks in zip(array.shape, own, strict=True)
        )
    )


def _scores_like(
    given: Any, name: str, shape: tuple[int, ...], cuts: tuple[tuple[int, ...], ...]
) -> Any:
    """Return a mask or a bias, cut as the scores are."""
    if given is None:
        return None
    array = _as_dask(given, name)
    if not _checks.broadcasts(array.shape, shape):
        raise ValueError(
            f"{name}: expected a shape that broadcasts to (..., H, Lq, Lk) = {shape}, "
            f"got {array.shape}"
        )
    return _cut(array, cuts)


def _lengths_and_positions(
    options: StatisticsOptions, batch: tuple[int, ...], n_queries: int, n_keys: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many keys each batch has, and the position of its first query."""
    lengths = np.asarray(n_keys)
    if options.get("kv_lengths") is not None:
        given = options["kv_lengths"]
        assert given is not None
        lengths = _checks.integers(given, "kv_lengths", 0, n_keys)
    lengths = _of_batch(lengths, "kv_lengths", batch)
    positions: NDArray[np.int64]
    causal, offset = options.get("causal", False), options.get("q_offset")
    if offset is not None:
        positions = _checks.integers(offset, "q_offset")
        return lengths, _of_batch(positions, "q_offset", batch)
    if isinstance(causal, str) and causal == "top_left":
        return lengths, np.zeros(batch, np.int64)
    return lengths, lengths - n_queries


def _of_batch(
    numbers: NDArray[np.int64], name: str, batch: tuple[int, ...]
) -> NDArray[np.int64]:
    if not _checks.broadcasts(numbers.shape, batch):
        raise ValueError(
            f"{name}: expected an integer, or integers that broadcast to the axes "
            f"before the head axis, {batch}, got {numbers.shape}"
        )
    return np.broadcast_to(numbers, batch).astype(np.int64)


def _check_as_calls_do(inputs: Inputs, plain: dict[str, Any]) -> np.dtype[Any]:
    """Return the result's dtype, and raise errors of options now, not in tasks."""
    query, key, value = inputs[:3]
    heads, n_heads = key.shape[-3], query.shape[-3]
    nothing: Array = numpy_attention(
        np.zeros((n_heads, 0, query.shape[-1]), query.dtype),
        np.zeros((heads, 0, key.shape[-1]), key.dtype),
        np.zeros((heads, 0, value.shape[-1]), value.dtype),
        mask=None if inputs.mask is None else np.zeros((0, 0), inputs.mask.dtype),
        bias=None if inputs.bias is None else np.zeros((0, 0), inputs.bias.dtype),
        sinks=inputs.sinks,
        **plain,
    )
    return nothing.dtype


def _ranges(chunks: tuple[int, ...]) -> list[range]:
    ends = list(itertools.accumulate(chunks))
    return [range(end - n, end) for n, end in zip(chunks, ends, strict=True)]


def _nested(arrays: list[Any], grid: tuple[int, ...]) -> list[Any]:
    """Return the arrays of a grid as lists of lists, for `dask.array.block`."""
    for length in reversed(grid[1:]):
        arrays = [arrays[i : i + length] for i in range(0, len(arrays), length)]
    return arrays


def _part(array: Any, ranges: Place) -> Any:
    """Return a part of an array by ranges of its last axes."""
    own = ranges[len(ranges) - array.ndim :]
    return array[
        tuple(
            slice(r.start, r.stop) if n > 1 or len(r) == 0 else slice(None)
            for n, r in zip(array.shape, own, strict=True)
        )
    ]


class Part(NamedTuple):
    """Some keys with their values and options, for some queries: tasks of Dask."""

    key: Any
    value: Any
    first_key: int
    options: dict[str, Any]

    def attend(self, query: Any, state: Any) -> Any:
        """Return the task that continues the state, or begins one."""
        return dask.delayed(_attend)(query, state, *self)


def _parts(inputs: Inputs, place: Place, plain: dict[str, Any]) -> Iterator[Part]:
    """Return the chunks of keys that these queries may see in part."""
    *batch, heads, rows = place
    group = inputs.query.shape[-3] // inputs.key.shape[-3]
    kv_heads = range(heads.start // group, heads.stop // group)
    of_batch = tuple(slice(r.start, r.stop) for r in batch)
    positions = inputs.positions[of_batch] + rows.start
    lengths = inputs.lengths[of_batch]
    for keys in _ranges(inputs.key.chunks[-2]):
        if not _sees(keys, rows, positions, lengths, plain):
            continue
        options = {**plain, "q_offset": positions, "kv_lengths": lengths}
        for name in ("mask", "bias"):
            if (array := getattr(inputs, name)) is not None:
                options[name] = _part(array, (*place, keys))
        key, value = (
            _part(array, (*batch, kv_heads, keys, range(array.shape[-1])))
            for array in (inputs.key, inputs.value)
        )
        yield Part(key, value, keys.start, options)


def _sees(
    keys: range,
    rows: range,
    positions: NDArray[np.int64],
    lengths: NDArray[np.int64],
    plain: dict[str, Any],
) -> bool:
    """Tell whether some of these queries may see some of these keys."""
    if 0 in (len(keys), len(rows), positions.size):
        return False
    first, last = positions.min(), positions.max() + len(rows) - 1
    left, right = plain.get("window") or (None, None)
    if plain.get("causal"):
        right = 0 if right is None else min(right, 0)
    return bool(
        keys.start < lengths.max()
        and (right is None or keys.start <= last + right)
        and (left is None or keys.stop > first - left)
    )


def _queries(inputs: Inputs, place: Place) -> Any:
    return _part(inputs.query, (*place, range(inputs.query.shape[-1])))


def _chained(
    inputs: Inputs, place: Place, plain: dict[str, Any], dtype: np.dtype[Any]
) -> tuple[Any, Any]:
    """Return the output and LSE of some queries: a state goes through all keys."""
    query, state = _queries(inputs, place), None
    for part in _parts(inputs, place, plain):
        state = part.attend(query, state)
    both = dask.delayed(_finish, nout=2)(
        state, _shape(inputs, place), dtype, _sinks(inputs, place)
    )
    return both[0], both[1]


def _merged(
    inputs: Inputs, place: Place, plain: dict[str, Any], dtype: np.dtype[Any]
) -> tuple[Any, Any]:
    """Return the same: results of each chunk of keys, merged in pairs."""
    query, shape = _queries(inputs, place), _shape(inputs, place)
    real, finish = _dtypes.arithmetic(dtype), dask.delayed(_finish)
    states = [part.attend(query, None) for part in _parts(inputs, place, plain)]
    results = [finish(state, shape, real, None) for state in states or [None]]
    while len(results) > 1:
        pairs = [results[i : i + 2] for i in range(0, len(results), 2)]
        results = [dask.delayed(_merge)(pair) for pair in pairs]
    both = dask.delayed(_end, nout=2)(results[0], dtype, _sinks(inputs, place))
    return both[0], both[1]


def _shape(inputs: Inputs, place: Place) -> tuple[int, ...]:
    """Return the shape of a chunk of the output."""
    return (*map(len, place), inputs.value.shape[-1])


def _sinks(inputs: Inputs, place: Place) -> Array | None:
    heads = place[-2]
    return None if inputs.sinks is None else inputs.sinks[heads.start : heads.stop]


# What tasks run.


def _attend(
    query: Array,
    state: PartialAttention | None,
    key: Array,
    value: Array,
    first_key: int,
    options: dict[str, Any],
) -> PartialAttention:
    return attend_partial(query, key, value, state, first_key=first_key, **options)


def _finish(
    state: PartialAttention | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    sinks: Array | None,
) -> tuple[Array, Array]:
    """Return output and LSE; without a state those of queries that see nothing."""
    if state is None:
        *rows, n_columns = shape
        none = np.zeros((1, 0, 0), dtype), np.zeros((1, 0, n_columns), dtype)
        state = attend_partial(np.zeros((*rows, 0), dtype), *none)
    rounded = PartialAttention(state.totals, dtype, state.next_key)
    both: tuple[Array, Array] = rounded.finish(sinks=sinks, return_lse=True)
    return both


def _merge(results: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    outputs, lses = zip(*results, strict=True)
    return merge(outputs, lses)


def _end(
    result: tuple[Array, Array], dtype: np.dtype[Any], sinks: Array | None
) -> tuple[Array, Array]:
    """Add the sinks, as a key whose value is 0, and round once."""
    output, lse = result
    if sinks is not None:
        of_sinks = np.broadcast_to(sinks[:, np.newaxis], lse.shape).astype(lse.dtype)
        output, lse = merge([output, np.zeros_like(output)], [lse, of_sinks])
    return _dtypes.rounded(output.astype(np.float64), dtype), lse
