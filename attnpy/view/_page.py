"""A view: its page, assembled from the files beside this one, and its picture."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import TYPE_CHECKING

from attnpy import _parameters, _pickles
from attnpy._files import write_whole

if TYPE_CHECKING:
    import os
    from collections.abc import Container
    from typing import Any

    from attnpy.view._picture import Picture

SCRIPTS = {  # of each kind of view
    "head": ("parts.js", "tokens.js", "head.js"),
    "model": ("parts.js", "tokens.js", "model.js"),
    "neuron": ("parts.js", "neuron.js"),
}


class View:
    """The result of the functions of `attnpy.view`: a notebook shows it.

    `save` writes it to a file, as a page that any browser opens.

    Examples
    --------
    >>> from attnpy.view import head_view
    >>> head_view([[0.5, 0.5], [0.0, 1.0]], ["an", "example"])
    View(kind='head', layers=1, heads=1, queries=2, keys=2)
    """

    _kind: str
    _page: str
    _shape: tuple[int, int, int, int]
    _height: int
    _picture: Picture

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def __init__(
        self,
        kind: str,
        page: str,
        shape: tuple[int, ...],
        height: int,
        picture: Picture,
    ) -> None:
        self._kind = kind
        self._page = page
        layers, heads, queries, keys = shape
        self._shape = layers, heads, queries, keys
        self._height = height  # of the frame, in pixels
        self._picture = picture

    def __repr__(self) -> str:
        """Return the kind and the numbers of layers, heads, queries and keys."""
        kind, (layers, heads, queries, keys) = self._kind, self._shape
        return f"View({kind=}, {layers=}, {heads=}, {queries=}, {keys=})"

    def _repr_html_(self) -> str:
        """Return a frame with the page, separate from the notebook and other views.

        The picture replaces it where scripts may not run. Untrusted notebooks, and
        sites that show notebooks, remove the style, and the frame or its contents: then
        the frame stays hidden and the picture is shown.
        """
        name = f"attnpy-{hashlib.sha256(self._page.encode()).hexdigest()[:12]}"
        return (
            f'<div class="{name}"><style>'
            f".{name} > iframe {{ display: block !important }} "
            f".{name} > div {{ display: none }}</style>"
            f'<iframe hidden srcdoc="{html.escape(self._page)}" '
            'sandbox="allow-scripts" title="attention" style="width: 100%; '
            f'height: {self._height}px; border: 0; resize: vertical"></iframe>'
            f"<div>{self._picture.html}</div></div>"
        )

    def _repr_mimebundle_(
        self,
        include: Container[str] | None = None,
        exclude: Container[str] | None = None,
    ) -> dict[str, str]:
        """Return the view as HTML, and as images for exporters to paper."""
        return {
            "text/plain": repr(self),
            "text/html": self._repr_html_(),
            "image/png": base64.b64encode(self._picture.png).decode("ascii"),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the view as a page that any browser opens, without a network.

        Parameters
        ----------
        path : str or os.PathLike
            The file to write. An existing file is replaced once the page is complete,
            and keeps its mode.

        Raises
        ------
        OSError
            If the file cannot be written; an existing file has then not changed.

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
        content = self._page.encode("ascii")
        write_whole(path, lambda file: file.write(content))


def page(kind: str, title: str | None, data: dict[str, Any]) -> str:
    """Return the page of a view, in ASCII."""
    if not isinstance(title, str | None):
        raise TypeError(f"title: expected a string, got {type(title).__name__}")
    filled = {
        "title": html.escape(title or "Attention"),
        "style": _file("page.css"),
        "script": "".join(map(_file, SCRIPTS[kind])),
        "data": _json({**data, "title": title or ""}),
    }
    text = re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], _file("page.html"))
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _file(name: str) -> str:
    return resources.files("attnpy.view").joinpath(name).read_text("utf-8")


def _json(data: dict[str, Any]) -> str:
    """Return ASCII JSON without anything that opens or closes an HTML element."""
    return json.dumps(data).replace("<", "\\u003c")
