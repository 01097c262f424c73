"""The keyword interface of `attention`. The C module checks and computes everything."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Literal, overload

from attnpy import _attnpy, _keywords

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from attnpy._typing import Array, AttentionOptions, Causal, SeqOffsets, Window


@overload
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_weights: Literal[False] = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> Array: ...
@overload
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array, Array]: ...
@overload
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_weights: Literal[True],
    return_lse: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_weights: Literal[False] = ...,
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_weights: bool = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> Array | tuple[Array, Array]: ...
@overload
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_weights: Literal[False] = ...,
    return_lse: bool = ...,
    **options: Unpack[AttentionOptions],
) -> Array | tuple[Array, Array]: ...
@overload
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_weights: bool = ...,
    return_lse: bool = ...,
    **options: Unpack[AttentionOptions],
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: Causal = False,
    window: Window | None = None,
    q_offset: ArrayLike | None = None,
    kv_lengths: ArrayLike | None = None,
    key_scale: ArrayLike | None = None,
    value_scale: ArrayLike | None = None,
    seq_offsets: SeqOffsets | None = None,
    page_table: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    dropout: float = 0.0,
    dropout_seed: int | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
    num_threads: int | None = None,
    **others: object,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
    r"""Compute scaled-dot-product attention, with any number of heads.

    Every combination of the options runs through the same fused path, which never
    builds the matrix of scores.

    Parameters
    ----------
    query : array_like, shape (..., H, Lq, D)
        `H` query heads of `Lq` queries. Two axes mean a single head. A 1-D query
        ``(D,)`` is a single query, and every result lacks the axis `Lq`.
    key : array_like, shape (..., Hk, Lk, D)
        `H` must be a multiple of `Hk`: query head ``h`` uses key and value head
        ``h // (H // Hk)`` (grouped-query attention).
    value : array_like, shape (..., Hk, Lk, Dv)
        `Dv` may differ from `D`. The axes before the head axis broadcast between
        query, key and value as in NumPy, without a copy.
    mask : array_like of bool, broadcast to (..., H, Lq, Lk), optional
        True where the query may attend to the key.
    bias : array_like of float, broadcast to (..., H, Lq, Lk), optional
        Added to the scaled (and capped) scores. -inf masks.
    causal : bool or {"bottom_right", "top_left"}, optional
        Hide the keys after each query's position. With True, the same as
        ``"bottom_right"``, the last query sees the last key; with ``"top_left"`` the
        first query sees only the first key.
    window : (left, right), optional
        A query at position p sees the keys from ``p - left`` to ``p + right``; each
        side is at least 0, or None for no limit.
    q_offset : int or array_like of int, broadcast to the axes before H, optional
        The absolute position of query 0; query i is at ``q_offset + i``, key j at j. By
        default 0 for ``causal="top_left"``; otherwise ``Lk - Lq``, or ``kv_lengths -
        Lq`` if lengths are given. It only matters with `causal`, `window` or
        `dropout`.
    kv_lengths : int or array_like of int, broadcast to the axes before H, optional
        How many of the keys exist, 0 to `Lk`; no query attends to the others.
    key_scale, value_scale : array_like of float, broadcast to (..., Hk, Lk), optional
        The scale of each key, or value, of int8: it stands for its integers times its
        scale. Keys and values with scales must be int8. Without scales they are
        ordinary integers. See Notes.
    seq_offsets : array_like of int, shape (n + 1,), or a pair of them, optional
        Packed sequences: the rows of query ``(H, T, D)``, key ``(Hk, T, D)`` and value
        ``(Hk, T, Dv)`` are `n` sequences end to end; sequence i has the rows from
        ``seq_offsets[i]`` up to ``seq_offsets[i + 1]``. Each attends only within
        itself, with the same bits as alone. The first offset is 0, the last one `T`.
        Pass a pair, ``(of queries, of keys)``, if the keys have other lengths; None in
        it means that the array is not packed: ``(n, H, L, D)``. Output and LSE are
        packed like the queries. Everything else is as in a batch of `n`, padded to the
        longest: `q_offset` and `kv_lengths` broadcast to (n,), `mask`, `bias` and the
        weights to (n, H, Lq, Lk).
    page_table : array_like of int, shape (..., n), optional
        Keys and values lie in pages of 128: `key` is ``(pages, Hk, 128, D)`` and
        `value` ``(pages, Hk, 128, Dv)``, with any strides, and key j of a sequence is
        row ``j % 128`` of page ``page_table[..., j // 128]``. `Lk` is ``128 * n``;
        `kv_lengths` says how many of the keys exist. The axes before `n` broadcast with
        those of query before the head axis, or are (sequences,) with `seq_offsets`, a
        pair (of queries, None) then. Sequences may share pages, and every number is
        that of a page, from 0 on, even past the length. Scales are (pages, Hk, 128). A
        query has the same bits as with its keys in one piece.
    scale : float, optional
        Factor of the dot products; by default ``1 / sqrt(D)``. Any finite value.
    softcap : float, optional
        ``c > 0`` turns a scaled score s into ``c * tanh(s / c)``.
    sinks : array_like of float, shape (H,), optional
        One more logit for each query head, in the denominator of the softmax only.
    dropout : float, optional
        At least 0 and below 1: the probability that a weight becomes 0; the others are
        divided by ``1 - dropout``. `return_weights` returns the weights after dropout;
        `lse` is that before dropout.
    dropout_seed : int, optional
        From 0 to ``2**64 - 1``, required with `dropout`. Which weights are dropped
        depends only on the seed, the batch, the head, and the positions of query and
        key; see `attnpy.random.dropout_mask`.
    return_weights : bool, optional
        Return the weights as well, which needs memory for the whole matrix. No bit of
        the output depends on it.
    return_lse : bool, optional
        Return the logarithm of each softmax denominator as well; see `merge`.
    out : ndarray, shape (..., H, Lq, Dv), optional
        Array for the output, in the output's dtype, with any strides. It may overlap
        the inputs.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    output : ndarray, shape (..., H, Lq, Dv)
        In the promoted dtype of query, key and value; `out` itself if it is given.
    weights : ndarray, shape (..., H, Lq, Lk)
        With `return_weights`, in the same dtype.
    lse : ndarray, shape (..., H, Lq)
        With `return_lse`: the natural logarithm of the sum of exp of the final logits,
        in float32 (float64 where the output is).

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype, for example an integer mask.
    ValueError
        If shapes do not fit together or a number is out of its range.
    MemoryError
        If the results or the scratch memory cannot be allocated.

    See Also
    --------
    merge : combine results over disjoint sets of keys.

    Notes
    -----
    For a query :math:`q_i` and the keys :math:`k_j` that it may see,

    .. math::

        s_{ij} = \operatorname{cap}(scale \, q_i \cdot k_j) + bias_{ij}, \quad
        o_i = \sum_j \frac{e^{s_{ij}}}{\sum_t e^{s_{it}}} v_j

    which is "Scaled Dot-Product Attention" of Vaswani et al., "Attention Is All You
    Need" (2017), section 3.2.1, computed block by block with a running maximum and sum
    as in Dao et al., "FlashAttention" (2022).

    A query that may see nothing gets output 0, weights 0 and lse -inf (lse is the sink
    with `sinks`). So does a query whose visible logits are all -inf. NaN and infinity
    in keys and values that a query may not see do not reach its results.

    Supported dtypes are float64, float32, float16 and, from the package ml_dtypes,
    bfloat16. They promote as in `numpy.result_type`; integers and booleans become
    float64. 16-bit inputs are computed in float32 and rounded once at the end; a CPU
    with bfloat16 products uses them, with the weights rounded to bfloat16, unless
    `set_portable` says otherwise. `bias` and `sinks` do not take part in the promotion.

    Keys and values of int8 with scales stand for :math:`scale_j k_j` and
    :math:`scale_j v_j`, and do not take part in the promotion. A dot product of the
    query and the integers is multiplied by the key's scale; a weight, after its sum, is
    multiplied by the value's scale. Unless the query is float64, the query, and a row's
    weights of a block of 128 keys, are rounded to 32639ths of their largest number, so
    that sums of products with integers are exact. This changes outputs by less than
    1e-4 of their size, some hundredth of what int8 itself does. Scales may be any
    numbers; NaN and infinity reach the results of the queries that may see their key.
    All CPUs give the same bits, for any dtype of the query.

    Intermediate results may overflow even if the result would not, because the weighted
    sum of values is divided by the sum of exponentials at the end, and a query is
    multiplied by `scale` first. Results are finite if no value exceeds the dtype's
    largest number divided by `Lk`, and no query times `scale`, nor any sum of its
    products with a key's numbers, exceeds the largest number.

    To the last bit, a query's results depend only on the query, the keys and values
    that it may see, their positions, and the options; they do not depend on the rest of
    the batch, the number of threads, the memory layout, or the instruction set. The one
    exception is bfloat16 on CPUs with bfloat16 products: CPUs of one such kind agree
    with each other, and so do all CPUs without.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((8, 10, 64), dtype=np.float32)  # (H, Lq, D)
    >>> key = rng.standard_normal((2, 12, 64), dtype=np.float32)  # (Hk, Lk, D)
    >>> value = rng.standard_normal((2, 12, 32), dtype=np.float32)  # (Hk, Lk, Dv)
    >>> output, weights = attnpy.attention(
    ...     query, key, value, causal=True, return_weights=True
    ... )
    >>> output.shape, weights.shape
    ((8, 10, 32), (8, 10, 12))
    >>> np.count_nonzero(weights[0], axis=-1)  # the last query sees all 12 keys
    array([ 3,  4,  5,  6,  7,  8,  9, 10, 11, 12])
    """
    if others:
        _keywords.refuse(others, (), "attention()")
    options = (  # the fields of _options.Options, in order
        mask,
        bias,
        causal,
        window,
        q_offset,
        kv_lengths,
        key_scale,
        value_scale,
        seq_offsets,
        page_table,
        scale,
        softcap,
        sinks,
        dropout,
        dropout_seed,
        return_weights,
        return_lse,
        out,
        num_threads,
        None,
    )
    return _attnpy.attention(query, key, value, options)


def _without(last: str) -> inspect.Signature:
    signature = inspect.signature(attention)
    shown = [p for name, p in signature.parameters.items() if name != last]
    return signature.replace(parameters=shown)


# A wrapper takes 0.3 of the smallest call's 1.3 microseconds, `others` take 0.05.
attention.__signature__ = _without("others")  # type: ignore[attr-defined]
