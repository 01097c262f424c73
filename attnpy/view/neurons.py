"""Neuron view: how the numbers of a query and of a key become a weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from attnpy import _attention, _keywords
from attnpy._labels import checked_numbers
from attnpy.view import _picture, _sources
from attnpy.view._heads_of import heads_of
from attnpy.view._page import View, page
from attnpy.view._stored import stored, text64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Causal, Window

LARGEST = 32_767  # vectors are stored as 16-bit numbers of a unit for each head


@overload
def neuron_view(
    query: ArrayLike,
    key: ArrayLike,
    query_labels: Iterable[object],
    key_labels: Iterable[object] | None = None,
    *,
    mask: ArrayLike | None = None,
    causal: Causal = False,
    window: Window | None = None,
    scale: float | None = None,
    title: str | None = None,
    num_threads: int | None = None,
) -> View: ...
@overload
def neuron_view(
    model: Callable[..., Any],
    tokenizer: Any,
    text: str | tuple[str, str],
    /,
    *,
    title: str | None = None,
) -> View: ...
@_keywords.answering
def neuron_view(
    query: Any,
    key: Any,
    query_labels: Any,
    key_labels: Iterable[object] | None = None,
    *,
    mask: ArrayLike | None = None,
    causal: Causal = False,
    window: Window | None = None,
    scale: float | None = None,
    title: str | None = None,
    num_threads: int | None = None,
) -> View:
    """Show how a query and the keys become weights, element by element.

    ``neuron_view(queries, keys, tokens)`` shows arrays, ``neuron_view(model, tokenizer,
    text)`` those that a model of `attnpy.models` computes for a text.

    For the query chosen on the left there is a row for each key: the key's numbers,
    their products with the query's, the scaled sum of these, which is the score, and
    the weight, from the softmax over all visible keys. Blue is above 0, orange below.
    For a chosen pair a table has each element of both vectors, their product, and the
    sum so far.

    Parameters
    ----------
    query : array_like, shape (Lq, D), (H, Lq, D) or (layers, H, Lq, D)
        The queries of each head, as they enter the dot product: projected, and rotated
        if the model does so. Or a model of `attnpy.models`.
    key : array_like, shape (Lk, D), (Hk, Lk, D) or (layers, Hk, Lk, D)
        The keys of each head; `H` must be a multiple of `Hk`. With a model: its
        tokenizer, from the package tokenizers or transformers.
    query_labels : iterable, length Lq
        The queries' tokens; anything else is turned into text. With a model: the text,
        or a pair of texts.
    key_labels : iterable, length Lk, optional
        The keys' tokens; by default `query_labels`, as in self-attention.
    mask, causal, window : optional
        Which keys a query may see, as in `attnpy.attention`.
    scale : float, optional
        The factor of the sums; by default 1 / sqrt(D).
    title : str, optional
        A heading.
    num_threads : int, optional
        At least 1; by default `attnpy.get_num_threads`. Changes no bit of the result.

    Returns
    -------
    View
        A notebook shows it as the last value of a cell; `View.save` writes a page.

    Raises
    ------
    TypeError
        If `query` or `key` are not real numbers, or tokens are a single string.
    ValueError
        If a shape or a number of tokens is not as described, a number is not finite, a
        single head is too large for a page, or a model's scores are not products of
        queries and keys alone.

    See Also
    --------
    head_view : weights alone, for more tokens.

    Notes
    -----
    A page stays below 2 MB: if there are more numbers, it has only every 2nd, 4th ...
    layer and head, and says so. Numbers are rounded to 1/32767 of the largest of their
    head. Weights are those of `attnpy.attention` for the numbers as given.

    The view is after BertViz's: Vig, "A Multiscale Visualization of Attention in the
    Transformer Model" (2019).

    Examples
    --------
    >>> from attnpy.view import neuron_view
    >>> query = [[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]  # (Lq, D)
    >>> key = [[0.5, 1.0, 0.0], [1.0, 0.0, 1.0]]  # (Lk, D)
    >>> neuron_view(query, key, ["an", "example"])
    View(kind='neuron', layers=1, heads=1, queries=2, keys=2)
    """
    if callable(query):
        given = key_labels, mask, window, scale
        if causal is not False or any(option is not None for option in given):
            raise TypeError(
                "model: expected no key_labels, mask, causal, window and scale with a "
                "model, which has its own"
            )
        heads = heads_of(query, key, query_labels)
        names = _sources.both_tokens(heads.tokens, None, *heads.weights.shape[-2:])
        hides = bool((heads.weights == 0).any())
        return _view(heads[:3], names, heads.scale, hides, title)
    queries = _vectors("query", query, ("(Lq, D)", "(H, Lq, D)", "(layers, H, Lq, D)"))
    keys = _vectors("key", key, ("(Lk, D)", "(Hk, Lk, D)", "(layers, Hk, Lk, D)"))
    if queries.ndim != keys.ndim or (queries.ndim == 4 and len(queries) != len(keys)):
        raise ValueError(
            f"key: expected as many axes and layers as query's {queries.shape}, got "
            f"{keys.shape}"
        )
    names = _sources.both_tokens(
        query_labels, key_labels, queries.shape[-2], keys.shape[-2]
    )
    _, weights = _attention.attention(
        queries,
        keys,
        keys[..., :0],
        mask=mask,
        causal=causal,
        window=window,
        scale=scale,
        return_weights=True,
        num_threads=num_threads,
    )
    shape = (1, 1, *weights.shape)[-4:]
    weights = weights.reshape(shape)  # (layers, H, Lq, Lk)
    queries = queries.reshape((1, 1, *queries.shape)[-4:])
    keys = keys.reshape((1, 1, *keys.shape)[-4:])
    keys = keys.repeat(shape[1] // keys.shape[1], axis=1)  # (layers, H, Lk, D)

    hides = mask is not None or causal is not False or window is not None
    factor = queries.shape[-1] ** -0.5 if scale is None else float(scale)
    return _view((queries, keys, weights), names, factor, hides, title)


def _view(
    arrays: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    names: tuple[list[str], list[str]],
    scale: float,
    hides: bool,
    title: str | None,
) -> View:
    """Return the view of queries and keys (layers, H, L, D), and their weights."""
    queries, keys, weights = arrays
    numbers = queries[0, 0].size + keys[0, 0].size
    kept = stored("query", weights, extra_bytes=2 * numbers)
    data = {
        "tokens": {"queries": names[0], "keys": names[1]},
        "weights": kept.data,
        "note": kept.note,
        "head_dim": queries.shape[-1],
        "scale": scale,
        "hidden": _hidden(weights) if hides else None,
    }
    for name, vectors in (("query", queries), ("key", keys)):
        chosen = vectors[np.ix_(kept.layers, kept.heads)]
        units = np.abs(chosen).max(axis=(-2, -1)) / LARGEST  # (layers, H)
        safe = np.where(units > 0, units, 1)[..., None, None]
        data[name] = text64(np.rint(chosen / safe).astype(np.int16))
        data[f"{name}_units"] = units.ravel().tolist()
    picture = _picture.labelled(
        {"layer 0, head 0": weights[0, 0]},
        _picture.Tokens(*names),
        "The weights that queries and keys make: rows are queries, columns keys, "
        "darker is more",
    )
    return View("neuron", page("neuron", title, data), weights.shape, 640, picture)


def _hidden(weights: NDArray[np.float64]) -> str:
    """Return a bit for each query and key: whether no head sees the key."""
    unseen = (weights == 0).all(axis=(0, 1))  # (Lq, Lk)
    return text64(np.packbits(unseen, bitorder="little"))


def _vectors(
    name: str, array: ArrayLike, shapes: tuple[str, str, str]
) -> NDArray[np.float64]:
    numbers = checked_numbers(name, array, dict(zip((2, 3, 4), shapes, strict=True)))
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    return numbers
