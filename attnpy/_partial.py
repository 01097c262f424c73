"""Attention over keys that come in parts: a state that goes from part to part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from attnpy import _attnpy, _checks, _dtypes, _keywords, _repr
from attnpy._options import PASSED_ON, SCALES, Options

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Unpack

    from attnpy._typing import Array, PartialOptions

TOTALS = ("float64", "float32")  # the dtypes of a state's array

# The options of attention that make sense for a part of the keys.
OF_PARTS = PASSED_ON - {"sinks", "seq_offsets"} | SCALES


@_keywords.answering
class PartialAttention(NamedTuple):
    """The state of queries that have seen some of their keys, from `attend_partial`.

    It takes the memory of the output and of two numbers for each query, never changes,
    and can be pickled.

    Attributes
    ----------
    totals : ndarray, shape (..., H, Lq, Dv + 2)
        Each query's maximum score, the sum of its exponentials relative to it, and the
        output that is not yet divided by the sum; float64 if the computation is in
        float64, otherwise float32.
    dtype : dtype
        That of the output.
    next_key : int
        The position of the first key that comes after those seen.
    """

    totals: Array
    dtype: np.dtype[Any]
    next_key: int

    def __repr__(self) -> str:
        """Return the dtype and shape of each array."""
        return _repr.of_fields(self)

    @overload
    def finish(
        self,
        *,
        sinks: ArrayLike | None = ...,
        return_lse: Literal[False] = ...,
        num_threads: int | None = ...,
    ) -> Array: ...
    @overload
    def finish(
        self,
        *,
        sinks: ArrayLike | None = ...,
        return_lse: Literal[True],
        num_threads: int | None = ...,
    ) -> tuple[Array, Array]: ...
    @overload
    def finish(
        self,
        *,
        sinks: ArrayLike | None = ...,
        return_lse: bool = ...,
        num_threads: int | None = ...,
    ) -> Array | tuple[Array, Array]: ...
    def finish(
        self,
        *,
        sinks: ArrayLike | None = None,
        return_lse: bool = False,
        num_threads: int | None = None,
    ) -> Array | tuple[Array, Array]:
        """Return the result of one call of `attention` over all keys.

        Parameters
        ----------
        sinks : array_like, shape (H,), optional
            As in `attention`.
        return_lse : bool, optional
            Return the LSE as well.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        output : ndarray, shape (..., H, Lq, Dv)
        lse : ndarray, shape (..., H, Lq)
            With `return_lse`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, or a shape does not fit.
        """
        totals, dtype, _ = _checked(self)
        n_columns = totals.shape[-1] - 2
        heads = (1,) if totals.ndim > 2 else ()
        nothing = np.zeros((*totals.shape[:-1], 0), dtype)
        return _attnpy.attend_partial(
            nothing,
            np.zeros((*heads, 0, 0), dtype),
            np.zeros((*heads, 0, n_columns), dtype),
            Options(sinks=sinks, return_lse=return_lse, num_threads=num_threads),
            totals,
            True,
        )


def attend_partial(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    state: PartialAttention | None = None,
    *,
    first_key: int | None = None,
    **options: Unpack[PartialOptions],
) -> PartialAttention:
    r"""Attend to some of the keys, after others: `attention` in parts.

    Use it for keys and values that do not fit into memory, or are on several machines.
    Pass the state from one call to the next; ``state.finish()`` returns the result.

    Parameters
    ----------
    query : array_like, shape (..., H, Lq, D)
        As in `attention`; the same in all calls.
    key : array_like, shape (..., Hk, n, D)
    value : array_like, shape (..., Hk, n, Dv)
        The next keys and values.
    state : PartialAttention, optional
        The result of the previous call; None in the first one.
    first_key : int, optional
        The position of ``key[..., 0, :]`` among all keys; by default the one after the
        last key of the previous call, or 0.
    **options
        As in `attention`: `mask` and `bias`, whose last axis is that of these n keys;
        `key_scale` and `value_scale`, of these keys;
        `causal`, `window`, `q_offset` and `kv_lengths`, whose positions and lengths
        refer to all keys; `scale`, `softcap`, `num_threads`. With `causal` or `window`,
        except ``causal="top_left"``, also pass `q_offset` or `kv_lengths`, because the
        total number of keys is not known here.

    Returns
    -------
    state : PartialAttention
        A new one; the argument does not change.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If shapes do not fit together, a number is out of its range, or the state
        belongs to other queries.
    MemoryError
        If the state or the scratch memory cannot be allocated.

    See Also
    --------
    merge : combines results of parts in any order, up to rounding.

    Notes
    -----
    With the state's maximum :math:`m`, sum :math:`s` and output :math:`o`, and those of
    the new keys with a prime,

    .. math::

        M = \max(m, m'), \quad s \leftarrow s e^{m - M} + s' e^{m' - M}, \quad
        o \leftarrow o e^{m - M} + o' e^{m' - M}

    from Dao et al., "FlashAttention" (2022), section 3.1. `attention` combines chunks
    of 512 keys in the same way. So if parts begin at multiples of 512 keys and come in
    ascending order, the result has **the same bits** as one call with all keys. Other
    parts or orders give the same numbers up to rounding.

    Examples
    --------
    Keys and values in a file, a part of them in memory at a time:

    >>> import numpy as np
    >>> import attnpy
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((4, 3, 64), dtype=np.float32)  # (H, Lq, D)
    >>> key, value = rng.standard_normal((2, 4, 2000, 64), dtype=np.float32)
    >>> state = None
    >>> for i in range(0, 2000, 512):
    ...     part = slice(i, i + 512)
    ...     state = attnpy.attend_partial(query, key[:, part], value[:, part], state)
    >>> output = state.finish()
    >>> bool((output == attnpy.attention(query, key, value)).all())
    True
    """
    _keywords.refuse(options, OF_PARTS, "attend_partial()")
    if state is not None:
        if not isinstance(state, PartialAttention):
            raise TypeError(
                f"state: expected a PartialAttention, got {type(state).__name__}"
            )
        state = _checked(state)
    query, key = _checks.array(query, "query"), _checks.array(key, "key")
    value = _checks.array(value, "value")
    if first_key is not None:
        first = _checked_position(first_key, "first_key")
    else:
        first = 0 if state is None else state.next_key
    n_keys = key.shape[-2] if key.ndim > 1 else 0
    totals = _attnpy.attend_partial(
        query,
        key,
        value,
        Options(**_of_part(options, query, first, n_keys)),
        None if state is None else state.totals,
        False,
    )
    dtypes = [query.dtype]
    for array, name in ((key, "key_scale"), (value, "value_scale")):
        if options.get(name) is None:  # integers with scales promote nothing
            dtypes.append(array.dtype)
    if state is not None:
        dtypes.append(state.dtype)
    return PartialAttention(totals, _dtypes.of_result(*dtypes), first + n_keys)


def _of_part(
    options: PartialOptions, query: Array, first: int, n_keys: int
) -> dict[str, Any]:
    """Return the options with positions and lengths relative to these keys."""
    of_part: dict[str, Any] = dict(options)
    lengths, offset = _lengths(options), options.get("q_offset")
    causal, window = options.get("causal", False), options.get("window")
    is_name, is_flag = isinstance(causal, str), isinstance(causal, (bool, np.bool_))
    by_length = (is_name and causal == "bottom_right") or (is_flag and bool(causal))
    if offset is None and is_name and causal == "top_left":
        offset = 0
    if offset is None and (by_length or window is not None):
        if lengths is None:
            raise ValueError(
                "q_offset: expected the position of the first query among all keys, "
                "with causal or window and without kv_lengths, got None"
            )
        offset = lengths - (query.shape[-2] if query.ndim > 1 else 1)
    if offset is not None:
        of_part["q_offset"] = _checks.integers(offset, "q_offset") - first
    if lengths is not None:
        of_part["kv_lengths"] = np.clip(lengths - first, 0, n_keys)
    return of_part


def _lengths(options: PartialOptions) -> NDArray[np.int64] | None:
    """Return the total number of keys, if it is given."""
    lengths = options.get("kv_lengths")
    return None if lengths is None else _checks.integers(lengths, "kv_lengths", 0)


def _checked(state: PartialAttention) -> PartialAttention:
    """Return a state as C takes it, wherever it comes from: a file, a network.

    A named tuple can be made in many ways, so it is checked when it is used.
    """
    totals, name = state.totals, "PartialAttention"
    is_array = isinstance(totals, np.ndarray) and totals.dtype.name in TOTALS
    if not is_array or totals.ndim == 0 or totals.shape[-1] < 2:
        raise ValueError(
            f"{name}: expected totals (..., H, Lq, Dv + 2) of float32 or float64, "
            f"got {_repr.brief(totals):.60}"
        )
    with _checks.renamed(dtype=f"{name}: dtype"):
        dtype = _dtypes.floating(state.dtype)
    if _dtypes.arithmetic(dtype) != totals.dtype.newbyteorder("="):
        raise ValueError(
            f"{name}: expected totals of {_dtypes.arithmetic(dtype)} for the dtype "
            f"{dtype}, got {totals.dtype}"
        )
    native = totals.dtype.newbyteorder("=")
    return PartialAttention(
        np.require(totals, native, ["C_CONTIGUOUS", "ALIGNED"]),
        dtype,
        _checked_position(state.next_key, f"{name}: next_key"),
    )


def _checked_position(position: int, name: str) -> int:
    """Return a position among all keys."""
    number = _checks.size(position, name)
    if number > _checks.LARGEST_POSITION:
        raise ValueError(
            f"{name}: expected at most {_checks.LARGEST_POSITION}, got {number}"
        )
    return number
