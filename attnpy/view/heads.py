"""Head view and model view: which tokens attend to which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from attnpy import _checks, _keywords
from attnpy.view import _picture, _sources
from attnpy.view._page import View, page
from attnpy.view._stored import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import ArrayLike

MAX_PANELS = 4  # of a picture
MAX_HEIGHT = 720  # of a frame in a notebook, in pixels
WIDTH = 650  # of its thumbnails


@overload
def head_view(
    weights: ArrayLike,
    query_labels: Iterable[object],
    key_labels: Iterable[object] | None = None,
    *,
    layer: int = 0,
    heads: Iterable[int] | None = None,
    special_tokens: Iterable[str] | None = None,
    title: str | None = None,
) -> View: ...
@overload
def head_view(
    model: Callable[..., Any],
    tokenizer: Any,
    text: str | tuple[str, str],
    /,
    *,
    layer: int = 0,
    heads: Iterable[int] | None = None,
    special_tokens: Iterable[str] | None = None,
    title: str | None = None,
) -> View: ...
@_keywords.answering
def head_view(
    weights: Any,
    query_labels: Any,
    key_labels: Any = None,
    *,
    layer: int = 0,
    heads: Iterable[int] | None = None,
    special_tokens: Iterable[str] | None = None,
    title: str | None = None,
) -> View:
    """Show which tokens attend to which, interactively, for any layer and heads.

    ``head_view(weights, tokens)`` shows weights, ``head_view(model, tokenizer, text)``
    those of a model for a text.

    Queries are on the left and keys on the right, joined by lines in a colour for each
    head; the larger the weight, the more opaque the line. Pointing at a token on either
    side, or reaching it with Tab and the arrow keys, leaves only its lines and shows
    its weights as numbers: what a query gives to each key, or a key gets from each
    query. Click heads to choose them (double-click for a single one); numbers for
    several heads are their mean. Lines below a threshold are not drawn, and special
    tokens can be hidden, which does not change the other numbers.

    Parameters
    ----------
    weights : array_like, shape (Lq, Lk), (H, Lq, Lk) or (layers, H, Lq, Lk)
        The weight of each query for each key, from 0 to 1, or NaN; also a list of
        layers, or the `attentions` of a Hugging Face model for one text. Or a model:
        called as ``model(ids, return_weights=True)``, with an array of token ids, it
        returns an object whose ``weights`` these are, as the models of `attnpy.models`
        do.
    query_labels : iterable, length Lq
        The queries' tokens; anything else is turned into text. With a model: its
        tokenizer, from the package tokenizers or transformers.
    key_labels : iterable, length Lk, optional
        The keys' tokens; by default `query_labels`, as in self-attention. With a model:
        the text, a string; or a pair of texts, whose tokens can then be shown apart.
    layer : int, optional
        The layer that is shown initially.
    heads : iterable of int, optional
        The heads that are shown initially; by default the first one.
    special_tokens : iterable of str, optional
        The tokens that can be hidden; by default those that look like ``[CLS]``,
        ``<s>`` or ``<|endoftext|>``, or are special for the tokenizer.
    title : str, optional
        A heading.

    Returns
    -------
    View
        A notebook shows it as the last value of a cell; `View.save` writes a page.

    Raises
    ------
    TypeError
        If `weights` are not real numbers, tokens are a single string, or an object is
        not a tokenizer.
    ValueError
        If a shape, a number of tokens or a weight is not as described, or a single head
        is too large for a page.

    See Also
    --------
    model_view : all layers and heads at a glance.
    neuron_view : how a weight is computed.
    attnpy.plot.head_grid : a picture for print.

    Notes
    -----
    A page stays below 2 MB. Weights are rounded to four decimals, which takes 2.7 bytes
    each. If that is too much, they are accurate within 0.004; then weights below 0.005,
    0.01, ... 0.1 are left out; then the page has only every 2nd, 4th ... layer and
    head. The page says what is left out. Layers and heads count from 0, as indices do.

    Where scripts do not run, as in an untrusted notebook or on a site that shows
    notebooks, a picture replaces the view.

    The view is after BertViz's: Vig, "A Multiscale Visualization of Attention in the
    Transformer Model" (2019).

    Examples
    --------
    >>> import attnpy
    >>> from attnpy.view import head_view
    >>> words = ["Attention", "is", "all", "you", "need"]
    >>> X = [[1, 0, 1], [0, 2, 1], [1, 1, 1], [0, 0, 2], [2, 1, 0]]
    >>> _, weights = attnpy.attention(X, X, X, causal=True, return_weights=True)
    >>> head_view(weights, words, title="causal self-attention")
    View(kind='head', layers=1, heads=1, queries=5, keys=5)
    """
    source = _source(weights, query_labels, key_labels, special_tokens)
    n_layers, n_heads, n_queries, n_keys = source.weights.shape
    layer = _index(layer, "layer", n_layers)
    given = [0] if heads is None else _checks.items(heads, "heads", "integers")
    opened = sorted({_index(head, "heads", n_heads) for head in given})
    first = opened[0] if opened else 0
    kept = stored("weights", source.weights, layer=layer, head=first)
    data = {
        "tokens": source.tokens,
        "weights": kept.data,
        "layer": kept.layers.index(layer),
        "opens": [kept.heads.index(head) for head in opened if head in kept.heads],
        "note": kept.note,
    }
    shown = opened[:MAX_PANELS] or [0]
    picture = _picture.labelled(
        {f"layer {layer}, head {head}": source.weights[layer, head] for head in shown},
        _picture.Tokens(source.queries, source.keys),
        "Attention weights: rows are queries, columns keys, darker is more",
    )
    rows = max(n_queries, n_keys)
    height = 180 + rows * (24 if rows <= 24 else 18)
    return View(
        "head",
        page("head", title, data),
        source.weights.shape,
        min(MAX_HEIGHT, height),
        picture,
    )


@overload
def model_view(
    weights: ArrayLike,
    query_labels: Iterable[object],
    key_labels: Iterable[object] | None = None,
    *,
    special_tokens: Iterable[str] | None = None,
    title: str | None = None,
) -> View: ...
@overload
def model_view(
    model: Callable[..., Any],
    tokenizer: Any,
    text: str | tuple[str, str],
    /,
    *,
    special_tokens: Iterable[str] | None = None,
    title: str | None = None,
) -> View: ...
@_keywords.answering
def model_view(
    weights: Any,
    query_labels: Any,
    key_labels: Any = None,
    *,
    special_tokens: Iterable[str] | None = None,
    title: str | None = None,
) -> View:
    """Show all heads of all layers as small pictures; click one to enlarge it.

    ``model_view(weights, tokens)`` shows weights, ``model_view(model, tokenizer,
    text)`` those of a model for a text.

    There is a row for each layer and a column for each head, as lines between queries
    and keys or as a matrix, whose pixels show the largest of their weights. The
    enlarged picture is a `head_view`; Escape leads back.

    Parameters
    ----------
    weights : array_like, shape (Lq, Lk), (H, Lq, Lk) or (layers, H, Lq, Lk)
        As in `head_view`; or a model.
    query_labels : iterable, length Lq
        As in `head_view`; or a tokenizer.
    key_labels : iterable, length Lk, optional
        As in `head_view`; or a text.
    special_tokens : iterable of str, optional
        As in `head_view`.
    title : str, optional
        A heading.

    Returns
    -------
    View
        A notebook shows it as the last value of a cell; `View.save` writes a page.

    Raises
    ------
    TypeError, ValueError
        As in `head_view`.

    Notes
    -----
    The limits of the page, and the picture that replaces it, are as in `head_view`. The
    view is after BertViz's: Vig, "A Multiscale Visualization of Attention in the
    Transformer Model" (2019).

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.view import model_view
    >>> weights = np.full((2, 3, 4, 4), 0.25)  # (layers, H, L, L)
    >>> model_view(weights, ["four", "tokens", "are", "here"])
    View(kind='model', layers=2, heads=3, queries=4, keys=4)
    """
    source = _source(weights, query_labels, key_labels, special_tokens)
    kept = stored("weights", source.weights)
    data = {"tokens": source.tokens, "weights": kept.data, "note": kept.note}
    picture = _picture.grid(
        source.weights,
        kept.layers,
        kept.heads,
        "Attention weights: a row for each layer, a column for each head; in each "
        "image rows are queries, columns keys, darker is more",
    )
    # As wide as model.js draws them in a notebook's column.
    side = min(120, max(44, WIDTH // len(kept.heads) - 10))
    height = max(340, 150 + (side + 12) * len(kept.layers))
    return View(
        "model",
        page("model", title, data),
        source.weights.shape,
        min(MAX_HEIGHT, height),
        picture,
    )


def _source(
    weights: Any,
    query_labels: Any,
    key_labels: Any,
    special_tokens: Iterable[str] | None,
) -> _sources.Source:
    if callable(weights):
        return _sources.from_model(weights, query_labels, key_labels, special_tokens)
    return _sources.from_arrays(weights, query_labels, key_labels, special_tokens)


def _index(value: int, name: str, count: int) -> int:
    """Return a layer's or head's index; negative ones count from the end."""
    number = _checks.integers(value, name)
    if number.ndim > 0:
        raise ValueError(f"{name}: expected an integer, got shape {number.shape}")
    index = int(number)
    if not -count <= index < count:
        raise ValueError(f"{name}: expected {-count} to {count - 1}, got {index}")
    return index % count
