"""An interactive picture of attention for notebooks, or as a page of its own.

The page is `head_view.html`, which stands beside this file, with the weights and tokens
in it. It loads nothing from anywhere, and needs no package.
"""

from __future__ import annotations

import base64
import html
import json
import re
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from attnpy import _parameters
from attnpy._files import replacing
from attnpy._labels import checked_labels, checked_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

__all__ = ["HeadView", "head_view"]

UNIT = 10_000  # weights are stored as whole numbers of 1 / UNIT ...
NOT_A_NUMBER = 65_535  # ... and NaN as this


class HeadView:
    """What `head_view` returns: a notebook shows it, and `save` writes it to a file.

    Examples
    --------
    >>> from attnpy.view import head_view
    >>> head_view([[0.5, 0.5], [0.0, 1.0]], ["an", "example"])
    HeadView(layers=1, heads=1, queries=2, keys=2)
    """

    _page: str
    _shape: tuple[int, ...]

    __setattr__ = _parameters.set_attribute

    def __init__(self, page: str, shape: tuple[int, ...]) -> None:
        self._page = page
        self._shape = shape  # (layers, H, Lq, Lk)

    def __repr__(self) -> str:
        """Return the numbers of layers, heads, queries and keys."""
        layers, heads, queries, keys = self._shape
        return f"HeadView({layers=}, {heads=}, {queries=}, {keys=})"

    def _repr_html_(self) -> str:
        """Return a frame with the page: separate from the notebook and other views."""
        height = min(720, 180 + 24 * max(self._shape[2:]))
        return (
            f'<iframe srcdoc="{html.escape(self._page)}" sandbox="allow-scripts" '
            f'title="attention" style="width: 100%; height: {height}px; '
            'border: 0"></iframe>'
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the view as a page that any browser opens, without a network.

        Parameters
        ----------
        path : str or os.PathLike
            Where to. A file that is there is replaced, once the page is complete; its
            mode stays.

        Raises
        ------
        OSError
            If the file cannot be written; what was there before is still there.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> from attnpy.view import head_view
        >>> view = head_view([[0.5, 0.5], [0.0, 1.0]], ["an", "example"])
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     page = pathlib.Path(directory, "attention.html")
        ...     view.save(page)
        ...     page.read_text().startswith("<!DOCTYPE html>")
        True
        """
        with replacing(path) as file:
            file.write(self._page.encode("ascii"))


def head_view(
    weights: ArrayLike,
    query_tokens: Iterable[object],
    key_tokens: Iterable[object] | None = None,
    *,
    title: str | None = None,
) -> HeadView:
    """Show which tokens attend to which, interactively, for any layer and head.

    Queries are on the left and keys on the right, joined by lines as opaque as the
    weight is large, in a colour for each head. Pointing at a query, or reaching it with
    Tab and the arrow keys, leaves its lines only and shows its weights as numbers:
    those of the chosen head, or the mean of all.

    Parameters
    ----------
    weights : array_like, shape (Lq, Lk), (H, Lq, Lk) or (layers, H, Lq, Lk)
        What each query gives to each key, from 0 to 1, or NaN.
    query_tokens : iterable, length Lq
        The queries' tokens; anything else is turned into text.
    key_tokens : iterable, length Lk, optional
        The keys' tokens; by default `query_tokens`, as in self-attention.
    title : str, optional
        A heading.

    Returns
    -------
    HeadView
        The last value of a notebook's cell shows itself; `HeadView.save` writes a page.

    Raises
    ------
    TypeError
        If `weights` are not real numbers, or tokens are a single string.
    ValueError
        If a shape, a number of tokens or a weight is not as described.

    See Also
    --------
    attnpy.plot.head_grid : a picture for print.

    Notes
    -----
    Weights are rounded to four decimals, which takes 2.7 bytes of the page for each.
    Lines of weight below 0.01 are left out. Layers and heads count from 0, as indices
    do.

    The picture is after BertViz's head view: Vig, "A Multiscale Visualization of
    Attention in the Transformer Model" (2019).

    Examples
    --------
    >>> import attnpy
    >>> from attnpy.view import head_view
    >>> words = ["Attention", "is", "all", "you", "need"]
    >>> X = [[1, 0, 1], [0, 2, 1], [1, 1, 1], [0, 0, 2], [2, 1, 0]]
    >>> _, weights = attnpy.attention(X, X, X, causal=True, return_weights=True)
    >>> head_view(weights, words, title="causal self-attention")
    HeadView(layers=1, heads=1, queries=5, keys=5)
    """
    numbers = checked_weights(
        weights, {2: "(Lq, Lk)", 3: "(H, Lq, Lk)", 4: "(layers, H, Lq, Lk)"}
    )
    if (numbers > 1.01).any():  # 16-bit rounding may exceed 1
        raise ValueError(f"weights: expected none above 1, got {np.nanmax(numbers):g}")
    if not isinstance(title, str | None):
        raise TypeError(f"title: expected a string, got {type(title).__name__}")
    n_queries, n_keys = numbers.shape[-2:]
    queries = checked_labels("query_tokens", query_tokens, n_queries)
    if key_tokens is not None:
        keys = checked_labels("key_tokens", key_tokens, n_keys)
    elif n_keys == n_queries:
        keys = queries
    else:
        raise ValueError(f"key_tokens: expected {n_keys}, got none")
    shape = (1, 1, *numbers.shape)[-4:]
    data: dict[str, object] = {
        "title": title or "",
        "shape": shape,
        "queries": queries,
        "keys": keys,
        "weights": _encoded(numbers),
    }
    filled = {"title": html.escape(title or "Attention"), "data": _json(data)}
    template = resources.files("attnpy").joinpath("head_view.html").read_text("utf-8")
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], template)
    return HeadView(page.encode("ascii", "xmlcharrefreplace").decode("ascii"), shape)


def _encoded(weights: NDArray[np.float64]) -> str:
    """Return the weights as base64 of 16-bit integers, the low byte first."""
    codes = np.where(np.isnan(weights), NOT_A_NUMBER, np.rint(weights * UNIT))
    return base64.b64encode(codes.astype("<u2").tobytes()).decode("ascii")


def _json(data: dict[str, object]) -> str:
    """Return ASCII JSON that holds nothing that ends or opens an HTML element."""
    return json.dumps(data).replace("<", "\\u003c")
