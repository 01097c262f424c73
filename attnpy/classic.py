"""The first scores of attention, for comparison: additive and multiplicative.

Both have the masks and dtypes of `attention`, but no axis of heads: the axes before the
last two broadcast as in NumPy.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from attnpy import _checks, _dtypes, _keywords
from attnpy._attention import attention
from attnpy._linear import linear
from attnpy.blocks import tanh

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array

__all__ = ["additive_attention", "multiplicative_attention"]


def __dir__() -> list[str]:
    return __all__


# Numbers of the largest temporary array, (queries of a block, Lk, A): 4 MB in float32.
BLOCK_SIZE = 2**20


@overload
def additive_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = ...,
    return_weights: Literal[False] = ...,
    num_threads: int | None = ...,
) -> Array: ...
@overload
def additive_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = ...,
    return_weights: Literal[True],
    num_threads: int | None = ...,
) -> tuple[Array, Array]: ...
@overload
def additive_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = ...,
    return_weights: bool = ...,
    num_threads: int | None = ...,
) -> Array | tuple[Array, Array]: ...
@_keywords.answering
def additive_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    return_weights: bool = False,
    num_threads: int | None = None,
) -> Array | tuple[Array, Array]:
    r"""Compute additive attention: the score of a query and a key is a small network.

    Parameters
    ----------
    query : array_like, shape (..., Lq, Dq)
        A 1-D query ``(Dq,)`` is a single one, a decoder's state; the axis `Lq` is then
        missing from the results.
    key : array_like, shape (..., Lk, Dk)
    value : array_like, shape (..., Lk, Dv)
        Often the keys themselves. The axes before the last two broadcast.
    W_q : array_like, shape (Dq, A)
    W_k : array_like, shape (Dk, A)
    v : array_like, shape (A,)
        The parameters.
    mask : array_like of bool, broadcast to (..., Lq, Lk), optional
        True where the query may attend to the key.
    return_weights : bool, optional
        Return the weights as well.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    output : ndarray, shape (..., Lq, Dv)
        In the promoted dtype of all arrays but the mask.
    weights : ndarray, shape (..., Lq, Lk)
        With `return_weights`, in the same dtype.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If shapes do not fit together.

    See Also
    --------
    multiplicative_attention : a product instead of the network.

    Notes
    -----
    .. math::

        s_{ij} = v \cdot \tanh(q_i W_q + k_j W_k), \quad
        o_i = \sum_j \frac{e^{s_{ij}}}{\sum_t e^{s_{it}}} v_j

    from Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and
    Translate" (2015), section 3.1 and appendix A.1.2, with vectors as rows.

    A query that may see nothing gets output 0 and weights 0. NaN and infinity in keys
    and values that a query may not see do not reach its results. Integers become
    float64; 16-bit arrays are computed in float32 and rounded once.

    It computes the tanh of Lq * Lk * A numbers, a block of queries at a time. Softmax
    and sum are those of `attention`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy import classic
    >>> rng = np.random.default_rng(0)
    >>> state = rng.standard_normal(8)  # (Dq,)
    >>> words = rng.standard_normal((5, 6))  # (Lk, Dk)
    >>> W_q, W_k = rng.standard_normal((8, 10)), rng.standard_normal((6, 10))
    >>> v = rng.standard_normal(10)
    >>> context, weights = classic.additive_attention(
    ...     state, words, words, W_q, W_k, v, return_weights=True
    ... )
    >>> context.shape, weights.shape
    ((6,), (5,))
    >>> round(float(weights.sum()), 6)
    1.0
    """
    names = ("query", "key", "value", "W_q", "W_k", "v")
    arrays, dtype = _convert((query, key, value, W_q, W_k, v), names)
    lead, allowed = _check(arrays, mask)
    queries, keys, values, w_q, w_k, w = arrays
    n_hidden = w_q.shape[-1] if w_q.ndim == 2 else -1
    _check_parameter(w_q, "W_q", (queries.shape[-1], n_hidden), "(Dq, A)", "query")
    _check_parameter(w_k, "W_k", (keys.shape[-1], n_hidden), "(Dk, A)", "key and W_q")
    _check_parameter(w, "v", (n_hidden,), "(A,)", "W_q")

    multiply = functools.partial(linear, num_threads=num_threads)
    n_queries, n_keys = np.atleast_2d(queries).shape[-2], keys.shape[-2]
    of_output = *lead, n_queries, values.shape[-1]
    of_weights = *lead, n_queries, n_keys if return_weights else 0
    _checks.memory("query, key, value", queries.dtype, of_output, of_weights)
    output = np.empty(of_output, queries.dtype)
    weights = np.empty(of_weights, queries.dtype)
    with np.errstate(all="ignore"):  # NaN and infinity are results here
        hidden_q = _expand(multiply(np.atleast_2d(queries), w_q), lead)  # (..., Lq, A)
        hidden_k = _expand(multiply(keys, w_k), lead)  # (..., Lk, A)
        values = _expand(values, lead)
        n_rows = max(1, BLOCK_SIZE // max(1, n_keys * n_hidden))
        for b in np.ndindex(lead):
            for first in range(0, n_queries, n_rows):
                rows = slice(first, first + n_rows)
                hidden = hidden_q[b][rows, np.newaxis] + hidden_k[b]  # (rows, Lk, A)
                hidden = tanh(hidden, num_threads=num_threads)
                scores = multiply(hidden, w[:, np.newaxis])[..., 0]  # (rows, Lk)
                # If queries and keys have no numbers, their products are 0.
                results: Any = attention(
                    hidden_q[b][rows, :0],
                    hidden_k[b][:, :0],
                    values[b],
                    bias=scores,
                    mask=allowed[b][rows],
                    return_weights=return_weights,
                    return_lse=False,
                    num_threads=num_threads,
                )
                if return_weights:
                    output[b][rows], weights[b][rows] = results
                else:
                    output[b][rows] = results
        results = [output, weights] if return_weights else [output]
        return _finish(results, queries.ndim == 1, dtype)


@overload
def multiplicative_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    W: ArrayLike,
    *,
    mask: ArrayLike | None = ...,
    return_weights: Literal[False] = ...,
    num_threads: int | None = ...,
) -> Array: ...
@overload
def multiplicative_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    W: ArrayLike,
    *,
    mask: ArrayLike | None = ...,
    return_weights: Literal[True],
    num_threads: int | None = ...,
) -> tuple[Array, Array]: ...
@overload
def multiplicative_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    W: ArrayLike,
    *,
    mask: ArrayLike | None = ...,
    return_weights: bool = ...,
    num_threads: int | None = ...,
) -> Array | tuple[Array, Array]: ...
@_keywords.answering
def multiplicative_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    W: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    return_weights: bool = False,
    num_threads: int | None = None,
) -> Array | tuple[Array, Array]:
    r"""Compute multiplicative attention: a matrix between query and key.

    Parameters
    ----------
    query : array_like, shape (..., Lq, Dq)
        A 1-D query ``(Dq,)`` is a single one, a decoder's state; the axis `Lq` is then
        missing from the results.
    key : array_like, shape (..., Lk, Dk)
    value : array_like, shape (..., Lk, Dv)
        Often the keys themselves. The axes before the last two broadcast.
    W : array_like, shape (Dq, Dk)
        The parameters.
    mask : array_like of bool, broadcast to (..., Lq, Lk), optional
        True where the query may attend to the key.
    return_weights : bool, optional
        Return the weights as well.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    output : ndarray, shape (..., Lq, Dv)
        In the promoted dtype of all arrays but the mask.
    weights : ndarray, shape (..., Lq, Lk)
        With `return_weights`, in the same dtype.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype.
    ValueError
        If shapes do not fit together.

    See Also
    --------
    additive_attention : a small network instead of the product.

    Notes
    -----
    .. math::

        s_{ij} = q_i W k_j^T, \quad
        o_i = \sum_j \frac{e^{s_{ij}}}{\sum_t e^{s_{it}}} v_j

    which is the score "general" of Luong et al., "Effective Approaches to
    Attention-based Neural Machine Translation" (2015), section 3.1, with vectors as
    rows. It is `attention` of ``query @ W`` with ``scale=1``. With the identity matrix
    it is Luong's "dot"; with the identity divided by ``sqrt(D)`` it is
    scaled-dot-product attention.

    A query that may see nothing gets output 0 and weights 0. NaN and infinity in keys
    and values that a query may not see do not reach its results. Integers become
    float64; 16-bit arrays are computed in float32 and rounded once.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> from attnpy import classic
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 5, 4))
    >>> output = classic.multiplicative_attention(query, key, value, np.eye(4) / 2)
    >>> np.allclose(output, attnpy.attention(query, key, value))  # sqrt(4) is 2
    True
    """
    names = ("query", "key", "value", "W")
    arrays, dtype = _convert((query, key, value, W), names)
    _, allowed = _check(arrays, mask)
    queries, keys, values, w = arrays
    expected = (queries.shape[-1], keys.shape[-1])
    _check_parameter(w, "W", expected, "(Dq, Dk)", "query and key")

    products = linear(np.atleast_2d(queries), w, num_threads=num_threads)
    with np.errstate(all="ignore"):  # NaN and infinity are results here
        # An axis for one head: attention does not broadcast heads, but groups them.
        results: Any = attention(
            products[..., np.newaxis, :, :],
            keys[..., np.newaxis, :, :],
            values[..., np.newaxis, :, :],
            mask=None if mask is None else allowed[..., np.newaxis, :, :],
            scale=1,
            return_weights=return_weights,
            return_lse=False,
            num_threads=num_threads,
        )
        results = results if return_weights else (results,)
        results = [x[..., 0, :, :] for x in results]
        return _finish(results, queries.ndim == 1, dtype)


def _convert(
    given: tuple[ArrayLike, ...], names: tuple[str, ...]
) -> tuple[list[Array], np.dtype[Any]]:
    """Return the arrays in the arithmetic's dtype, and the dtype of the results."""
    arrays = [_checks.array(x, name) for x, name in zip(given, names, strict=True)]
    for array, name in zip(arrays, names, strict=True):
        _dtypes.operand(array, name)
    try:
        dtype = _dtypes.of_result(*(array.dtype for array in arrays))
    except TypeError as error:
        kinds = ", ".join(str(array.dtype) for array in arrays)
        raise TypeError(
            f"{', '.join(names)}: expected dtypes with a common one, got {kinds}"
        ) from error
    real = np.float64 if dtype == np.float64 else np.float32
    for array, name in zip(arrays, names, strict=True):
        if array.dtype != real:
            _checks.memory(name, real, array.shape)
    converted = [array.astype(real, copy=False) for array in arrays]
    return converted, dtype


def _check(
    arrays: list[Array], mask: ArrayLike | None
) -> tuple[tuple[int, ...], NDArray[np.bool_]]:
    """Return the broadcast axes before the last two, and the mask (..., Lq, Lk)."""
    query, key, value = arrays[:3]
    if query.ndim == 0:
        raise ValueError("query: expected (..., Lq, Dq), got ()")
    if key.ndim < 2:
        raise ValueError(f"key: expected (..., Lk, Dk), got {key.shape}")
    n_keys = key.shape[-2]
    if value.ndim < 2 or value.shape[-2] != n_keys:
        raise ValueError(
            f"value: expected (..., {n_keys}, Dv) to match key's Lk, got {value.shape}"
        )
    lead = query.shape[:-2]
    for array, name, others in (
        (key, "key", "query's"),
        (value, "value", "query's and key's"),
    ):
        try:
            lead = np.broadcast_shapes(lead, array.shape[:-2])
        except ValueError:
            raise ValueError(
                f"{name}: expected axes before the last two that broadcast with "
                f"{others} {lead}, got {array.shape}"
            ) from None
    shape = (*lead, 1 if query.ndim == 1 else query.shape[-2], n_keys)
    allowed = _checks.array(True if mask is None else mask, "mask")
    if allowed.dtype != np.bool_:
        raise TypeError(
            "mask: expected booleans, True = may attend (for 0 and 1 write mask != 0), "
            f"got dtype {allowed.dtype}"
        )
    try:
        return lead, np.broadcast_to(allowed, shape)
    except ValueError:
        raise ValueError(
            f"mask: expected a shape that broadcasts to (..., Lq, Lk) = {shape}, got "
            f"shape {allowed.shape}"
        ) from None


def _check_parameter(
    array: Array, name: str, shape: tuple[int, ...], legend: str, others: str
) -> None:
    if array.shape != shape:
        sizes = str(shape).replace("-1", "A")
        raise ValueError(
            f"{name}: expected {legend} = {sizes} to match {others}, got {array.shape}"
        )


def _expand(array: Array, lead: tuple[int, ...]) -> Array:
    """Broadcast the axes before the last two."""
    return np.broadcast_to(array, (*lead, *array.shape[-2:]))


def _finish(
    results: list[Array], one_query: bool, dtype: np.dtype[Any]
) -> Array | tuple[Array, Array]:
    """Return an array, or a tuple of them, rounded to the dtype."""
    results = [x.astype(dtype, copy=False) for x in results]
    if one_query:
        results = [x[..., 0, :] for x in results]
    return results[0] if len(results) == 1 else (results[0], results[1])
