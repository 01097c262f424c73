"""Neuron view: how the numbers of a query and of a key become a weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnpy import _attention, _keywords
from attnpy._labels import checked_numbers
from attnpy.view import _picture, _sources
from attnpy.view._page import View, page
from attnpy.view._stored import stored, text64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Causal, Window

LARGEST = 32_767  # vectors are stored as 16-bit numbers of a unit for each head


@_keywords.answering
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
) -> View:
    """Show how a query and the keys become weights, element by element.

    For the query chosen on the left there is a row for each key: the key's numbers,
    their products with the query's, the scaled sum of these, which is the score, and
    the weight, from the softmax over all visible keys. Blue is above 0, orange below.
    For a chosen pair a table has each element of both vectors, their product, and the
    sum so far.

    Parameters
    ----------
    query : array_like, shape (Lq, D), (H, Lq, D) or (layers, H, Lq, D)
        The queries of each head, as they enter the dot product: projected, and rotated
        if the model does so.
    key : array_like, shape (Lk, D), (Hk, Lk, D) or (layers, Hk, Lk, D)
        The keys of each head; `H` must be a multiple of `Hk`.
    query_labels : iterable, length Lq
        The queries' tokens; anything else is turned into text.
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
        If a shape or a number of tokens is not as described, a number is not finite, or
        a single head is too large for a page.

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

    numbers = queries[0, 0].size + keys[0, 0].size
    kept = stored("query", weights, extra_bytes=2 * numbers)
    data = {
        "tokens": {"queries": names[0], "keys": names[1]},
        "weights": kept.data,
        "note": kept.note,
        "head_dim": queries.shape[-1],
        "scale": queries.shape[-1] ** -0.5 if scale is None else float(scale),
        "hides": mask is not None or causal is not False or window is not None,
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
    return View("neuron", page("neuron", title, data), shape, 640, picture)


def _vectors(
    name: str, array: ArrayLike, shapes: tuple[str, str, str]
) -> NDArray[np.float64]:
    numbers = checked_numbers(name, array, dict(zip((2, 3, 4), shapes, strict=True)))
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    return numbers
