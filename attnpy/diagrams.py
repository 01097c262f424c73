"""Diagrams of attention and of the transformer, as small SVG, without any package.

The figures of Vaswani et al., "Attention Is All You Need" (2017), redrawn: from the
bottom to the top, with the same names in the boxes. A diagram has its own background
and follows the reader's choice of light or dark, so that it is legible on any page.
"""

from __future__ import annotations

import base64
import html
import itertools
import re
from typing import TYPE_CHECKING

from attnpy import _parameters, _pickles
from attnpy._files import write_whole

if TYPE_CHECKING:
    import os

__all__ = [
    "Diagram",
    "encoder_decoder",
    "multi_head_attention",
    "scaled_dot_product_attention",
]


def __dir__() -> list[str]:
    return __all__


HEIGHT = 32  # of a box; y points down, as in all SVG
NOTE_HEIGHT = 44  # of one with a second line
TIMES = "\N{MULTIPLICATION SIGN}"
SHEET = 6  # how far a sheet of a pile is from the next

# The layers of the encoder and of the decoder, upwards.
ENTRY = 104  # from the bottom to the first sublayer
BRANCH = 26  # from where the residual connection leaves to the sublayer's box
SUBLAYER = BRANCH + NOTE_HEIGHT + 14 + HEIGHT  # with its Add & Norm
SUBLAYER_WIDTH = 222

# Kinds of boxes: their colours on light and on dark pages.
KINDS = {
    "attention": ("#fde2bd", "#6e4a17"),
    "linear": ("#e2e0f6", "#433f75"),
    "norm": ("#f2f4c1", "#53561f"),
    "feed-forward": ("#cde8f6", "#1e4d66"),
    "embedding": ("#f9d9dd", "#68313c"),
    "softmax": ("#d6efd3", "#285d2d"),
    "frame": ("#f2f2f2", "#2d2f34"),
    "plain": ("#ffffff", "#1f2125"),
}
INK = ("#222222", "#eeeeee")
SOFT_INK = ("#555555", "#cccccc")  # of notes


class Diagram:
    """The result of the functions: a notebook shows it, and `save` writes it to a file.

    Examples
    --------
    >>> from attnpy import diagrams
    >>> diagrams.scaled_dot_product_attention()
    Diagram('Scaled Dot-Product Attention')
    """

    _svg: str
    _title: str

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def __init__(self, svg: str, title: str) -> None:
        self._svg = svg
        self._title = title

    def __repr__(self) -> str:
        """Return the title of the diagram."""
        return f"Diagram({self._title!r})"

    def _repr_svg_(self) -> str:
        """Return the picture for a notebook."""
        return self._svg

    def _repr_html_(self) -> str:
        """Return an HTML image, which notebooks show before they are run.

        JupyterLab shows SVG only in trusted notebooks.
        """
        data = base64.b64encode(self._svg.encode("utf-8")).decode("ascii")
        alt = html.escape(self._title)
        return f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the diagram as an SVG file, which any browser shows.

        Parameters
        ----------
        path : str or os.PathLike
            The file to write. An existing file is replaced once the picture is
            complete, and keeps its mode.

        Raises
        ------
        OSError
            If the file cannot be written; an existing file has then not changed.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> from attnpy import diagrams
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     file = pathlib.Path(directory, "attention.svg")
        ...     diagrams.multi_head_attention().save(file)
        ...     file.read_text("utf-8").startswith("<svg ")
        True
        """
        content = self._svg.encode("utf-8")
        write_whole(path, lambda file: file.write(content))


def scaled_dot_product_attention() -> Diagram:
    """Draw scaled dot-product attention: softmax(Q Kᵀ / √dₖ) V.

    Returns
    -------
    Diagram
        From the bottom: queries, keys and values; the matrix product of queries and
        keys, scale, mask, softmax; the matrix product with the values.

    Notes
    -----
    After Vaswani et al., "Attention Is All You Need" (2017), figure 2 (left).

    Examples
    --------
    >>> from attnpy.diagrams import scaled_dot_product_attention
    >>> print(scaled_dot_product_attention()._repr_svg_()[:4])
    <svg
    """
    left, middle, right = 75, 115, 235  # of Q, of the boxes' column, of V
    width, step = 150, 66
    names = [
        ("MatMul", "scores: Q K^T", "attention"),
        ("Scale", "1 / √d_k", "norm"),
        ("Mask (optional)", "hidden scores: -∞", "embedding"),
        ("Softmax", "weights: each row sums to 1", "softmax"),
    ]
    bottom = 385
    parts = [
        _text(left, bottom + 18, "Q"),
        _text(2 * middle - left, bottom + 18, "K"),
        _text(right, bottom + 18, "V"),
    ]
    tops = [bottom - 20 - NOTE_HEIGHT - step * i for i in range(4)]
    for x in (left, 2 * middle - left):
        parts.append(_arrow((x, bottom), (x, tops[0] + NOTE_HEIGHT)))
    for top, (name, note, kind) in zip(tops, names, strict=True):
        parts.append(_box(middle, top, width + 40, name, kind, note))
    for below, above in itertools.pairwise(tops):
        parts.append(_arrow((middle, below), (middle, above + NOTE_HEIGHT)))
    top = tops[-1] - step
    parts += [
        _arrow((middle, tops[-1]), (middle, top + NOTE_HEIGHT)),
        _arrow((right, bottom), (right, top + NOTE_HEIGHT)),
        _box((middle + right) / 2, top, 260, "MatMul", "attention", "weights · V"),
        _arrow(((middle + right) / 2, top), ((middle + right) / 2, top - 24)),
        _text((middle + right) / 2, top - 30, "output"),
    ]
    return _diagram(
        "Scaled Dot-Product Attention",
        "softmax(Q Kᵀ / √dₖ) V: the queries' products with the keys are scaled, masked "
        "and turned into weights, with which the values are added up.",
        330,
        415,
        parts,
    )


def multi_head_attention() -> Diagram:
    """Draw multi-head attention: Concat(head₁, ..., headₕ) Wᴼ.

    Returns
    -------
    Diagram
        From the bottom: values, keys and queries; their projections and scaled
        dot-product attention in each of h heads; concatenation; the output projection.

    Notes
    -----
    After Vaswani et al., "Attention Is All You Need" (2017), figure 2 (right).

    Examples
    --------
    >>> from attnpy.diagrams import multi_head_attention
    >>> multi_head_attention()
    Diagram('Multi-Head Attention')
    """
    places = {"V": 70, "K": 175, "Q": 280}
    middle, bottom = 175, 350
    linear, attention, concat, output = 270, 182, 112, 46
    parts = []
    for name, x in places.items():
        parts += [
            _text(x, bottom + 18, name),
            _arrow((x, bottom), (x, linear + NOTE_HEIGHT)),
            _pile(x, linear, 84, "Linear", "linear", f"{name} W_i^{name}"),
            _arrow((x, linear - 2 * SHEET), (x, attention + NOTE_HEIGHT)),
        ]
    name, note = "Scaled Dot-Product Attention", "head_i"
    parts += [
        _pile(middle, attention, 290, name, "attention", note),
        _text(350, attention + NOTE_HEIGHT / 2 + 4, f"{TIMES} h", "start"),
        _arrow((middle, attention - 2 * SHEET), (middle, concat + HEIGHT)),
        _box(middle, concat, 160, "Concat", "norm"),
        _arrow((middle, concat), (middle, output + NOTE_HEIGHT)),
        _box(middle, output, 160, "Linear", "linear", "W^O"),
        _arrow((middle, output), (middle, output - 18)),
        _text(middle, output - 24, "output"),
    ]
    return _diagram(
        "Multi-Head Attention",
        "Concat(head₁, …, headₕ) Wᴼ, where each headᵢ is the scaled dot-product "
        "attention of projections of its own: Q Wᵢ, K Wᵢ, V Wᵢ.",
        390,
        380,
        parts,
    )


def encoder_decoder() -> Diagram:
    """Draw the transformer: an encoder and a decoder, each a stack of N layers.

    Returns
    -------
    Diagram
        The encoder on the left, the decoder on the right; the lines beside the boxes
        are the residual connections that "Add & Norm" adds.

    Notes
    -----
    After Vaswani et al., "Attention Is All You Need" (2017), figure 1.

    Examples
    --------
    >>> from attnpy.diagrams import encoder_decoder
    >>> encoder_decoder()
    Diagram('The Transformer: Encoder and Decoder')
    """
    encoder, decoder, bottom = 165, 495, 640
    attention = ("Multi-Head Attention", "attention", "self-attention")
    masked = ("Masked Multi-Head Attention", "attention", "self-attention, causal")
    cross = ("Multi-Head Attention", "attention", "cross-attention")
    network = ("Feed Forward", "feed-forward", "each token on its own")
    left, states = _stack(encoder, bottom, "input", [attention, network], -1)
    right, top = _stack(decoder, bottom, "output", [masked, cross, network], 1)
    above, halfway = states - 28, (encoder + decoder) / 2
    entry = (
        bottom - ENTRY - SUBLAYER - BRANCH - NOTE_HEIGHT / 2
    )  # of the cross-attention
    linear = top - 38 - HEIGHT
    softmax = linear - 20 - HEIGHT
    parts = [
        *left,
        *right,
        _arrow(
            (encoder, states),
            (encoder, above),
            (halfway, above),
            (halfway, entry),
            (decoder - SUBLAYER_WIDTH / 2, entry),
        ),
        _text((encoder + halfway) / 2, above - 6, "keys, values", "middle", "note"),
        _text(decoder - 6, entry + 38, "queries", "end", "note"),
        _arrow((decoder, top), (decoder, linear + HEIGHT)),
        _box(decoder, linear, 140, "Linear", "linear"),
        _arrow((decoder, linear), (decoder, softmax + HEIGHT)),
        _box(decoder, softmax, 140, "Softmax", "softmax"),
        _arrow((decoder, softmax), (decoder, softmax - 20)),
        _text(decoder, softmax - 26, "output probabilities"),
    ]
    return _diagram(
        "The Transformer: Encoder and Decoder",
        "Encoder layers have self-attention and a feed-forward network; decoder layers "
        "have masked self-attention, attention to the encoder's output, and a "
        "feed-forward network. Each is followed by Add & Norm.",
        660,
        675,
        parts,
    )


def _stack(
    x: float,
    bottom: float,
    name: str,
    sublayers: list[tuple[str, str, str]],
    side: int,
) -> tuple[list[str], float]:
    """Return an encoder or a decoder, and where its output leaves the last layer.

    Sublayers are names, kinds and notes; the residual connections are on this side, -1
    for left.
    """
    embedding, plus = bottom - 20 - HEIGHT, bottom - 20 - HEIGHT - 28
    entry = bottom - ENTRY
    top = entry - SUBLAYER * len(sublayers)
    half = SUBLAYER_WIDTH / 2
    outside = "end" if side < 0 else "start"
    kind = "(shifted right)" if name == "output" else ""
    frame = (x - half - 18, top - 14, SUBLAYER_WIDTH + 36, entry - top + 14)
    parts = [
        _text(x, bottom + 18, f"{name}s {kind}".strip()),
        _arrow((x, bottom), (x, embedding + HEIGHT)),
        _box(x, embedding, 150, f"{name.title()} Embedding", "embedding"),
        _arrow((x, embedding), (x, plus + 9)),
        f'<circle class="plain" cx="{x:g}" cy="{plus:g}" r="9"/>',
        _text(x, plus + 4.5, "+"),
        _text(x + 16 * side, plus + 4, "positional encoding", outside, "note"),
        _rectangle(*frame, "frame", radius=10),
        _text(x + side * (half + 24), (entry + top) / 2, f"N {TIMES}", outside),
    ]
    below = plus - 9
    for i, (name, kind, note) in enumerate(sublayers):
        entry = bottom - ENTRY - SUBLAYER * i
        box = entry - BRANCH - NOTE_HEIGHT
        norm = entry - SUBLAYER
        edge = x + side * (half + 9)
        parts += [
            _arrow((x, below), (x, box + NOTE_HEIGHT)),
            _box(x, box, SUBLAYER_WIDTH, name, kind, note),
            _arrow((x, box), (x, norm + HEIGHT)),
            _box(x, norm, SUBLAYER_WIDTH - 60, "Add & Norm", "norm"),
            _arrow(
                (x, entry - 8),
                (edge, entry - 8),
                (edge, norm + HEIGHT / 2),
                (x + side * (half - 30), norm + HEIGHT / 2),
            ),
        ]
        below = norm
    return parts, top


# ---- Elements ------------------------------------------------------------------------


def _text(
    x: float, y: float, text: str, anchor: str = "middle", kind: str = "name"
) -> str:
    """Return a line of text with its baseline at y; W_i^O has two scripts."""
    pieces = []
    shift = 0
    for mark, letters in re.findall(r"([_^]?)((?<=[_^])\w|[^_^]+)", text):
        place = {"_": 3, "^": -5, "": 0}[mark]
        small = ' font-size="9"' if mark else ""
        letters = html.escape(letters, quote=False)
        pieces.append(f'<tspan dy="{place - shift}"{small}>{letters}</tspan>')
        shift = place
    line = "".join(pieces) if "_" in text or "^" in text else html.escape(text)
    return (
        f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{line}</text>'
    )


def _rectangle(
    x: float, y: float, width: float, height: float, kind: str, radius: float = 5
) -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" '
        f'height="{height:g}" rx="{radius:g}"/>'
    )


def _box(
    x: float, top: float, width: float, name: str, kind: str, note: str | None = None
) -> str:
    """Return a box around x with a name, and below it a note."""
    height = HEIGHT if note is None else NOTE_HEIGHT
    parts = [_rectangle(x - width / 2, top, width, height, kind)]
    parts.append(_text(x, top + (20.5 if note is None else 18.5), name))
    if note is not None:
        parts.append(_text(x, top + 34.5, note, kind="note"))
    return "".join(parts)


def _pile(x: float, top: float, width: float, name: str, kind: str, note: str) -> str:
    """Return a box with two more behind it: one for each head."""
    behind = [
        _rectangle(x - width / 2 + d, top - d, width, NOTE_HEIGHT, kind)
        for d in (2 * SHEET, SHEET)
    ]
    return "".join(behind) + _box(x, top, width, name, kind, note)


def _arrow(*points: tuple[float, float]) -> str:
    """Return a line through points, with a head at the last."""
    path = " L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path class="line" d="M{path}" marker-end="url(#attnpy-arrow)"/>'


def _style() -> str:
    """Return the colours on light and on dark pages, for our own drawings only."""
    themes = []
    for i in (0, 1):
        rules = {f".{kind}": f"fill:{KINDS[kind][i]};stroke:{INK[i]}" for kind in KINDS}
        rules[".page"] = f"fill:{KINDS['plain'][i]}"
        rules[".frame"] = f"fill:{KINDS['frame'][i]};stroke:{SOFT_INK[i]}"
        rules[".line"] = f"fill:none;stroke:{INK[i]};stroke-width:1.3"
        rules[".head"] = f"fill:{INK[i]}"
        rules[".name"] = f"fill:{INK[i]};font-size:13px"
        rules[".note"] = f"fill:{SOFT_INK[i]};font-size:11px"
        themes.append(
            "".join(f".attnpy-diagram {name}{{{rule}}}" for name, rule in rules.items())
        )
    light, dark = themes
    return f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"


def _diagram(
    title: str, description: str, width: int, height: int, parts: list[str]
) -> Diagram:
    """Return a drawing of this size, on its own background."""
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" class="attnpy-diagram" role="img" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
        f"<title>{html.escape(title)}</title><desc>{html.escape(description)}</desc>"
        f'{_style()}<defs><marker id="attnpy-arrow" viewBox="0 0 8 8" refX="7.5" '
        'refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0.5 L8 4 L0 7.5 Z"/></marker></defs>'
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>'
        f"{''.join(parts)}</svg>"
    )
    return Diagram(svg, title)
