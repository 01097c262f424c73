"""The static picture of a view: heat maps, as SVG with labels and as PNG without.

It is drawn here, without a package, because every view's output has it.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_CELLS = 200  # of an image's side; of the weights that share a cell, the largest
NAN, EDGE, PAPER = 255, 254, 0  # codes of colours; weights have 0 to 253
THUMB_CELLS = 44  # of a small image's side, or half of it where heads are MANY
MANY = 200
LETTERS = 14  # of a label
STRONGEST = 12  # rows of the table


class Picture(NamedTuple):
    """The picture that `View` shows where its page cannot run."""

    html: str
    png: bytes


class Tokens(NamedTuple):
    """The tokens of a picture's rows and columns."""

    queries: list[str]
    keys: list[str]


def labelled(
    panels: dict[str, NDArray[np.float64]], tokens: Tokens, caption: str
) -> Picture:
    """Draw a few heads side by side, each (Lq, Lk) with its title, and the tokens."""
    parts, x, height = [], 0.0, 0.0
    top = _largest(*panels.values())
    for title, weights in panels.items():
        part, size = _labelled_panel(title, weights / top, tokens, x)
        parts.append(part)
        x, height = x + size[0] + 16, max(height, size[1])
    codes = [
        _enlarged(_codes(weights / top, MAX_CELLS), 320) for weights in panels.values()
    ]
    strongest = _table(next(iter(panels.values())), tokens)
    return Picture(
        _figure(_svg("".join(parts), x - 16, height), caption, top) + strongest,
        _png(_side_by_side([codes])),
    )


def grid(
    weights: NDArray[np.float64], layers: list[int], heads: list[int], caption: str
) -> Picture:
    """Draw small images of these layers and heads of (layers, H, Lq, Lk)."""
    shown = [[weights[layer, head] for head in heads] for layer in layers]
    top = max(_largest(*row) for row in shown)
    cells = THUMB_CELLS if len(layers) * len(heads) <= MANY else THUMB_CELLS // 2
    image = _side_by_side(
        [[_thumb(head / top, cells) for head in row] for row in shown]
    )
    height, width = image.shape
    steps = width / len(heads), height / len(layers)
    parts = [
        f'<text x="{24 + steps[0] * (i + 0.5):.0f}" y="11" text-anchor="middle" '
        f'font-size="11">{head}</text>'
        for i, head in enumerate(heads)
    ]
    parts += [
        f'<text x="2" y="{22 + steps[1] * (j + 0.5):.0f}" font-size="11">{layer}</text>'
        for j, layer in enumerate(layers)
    ]
    parts.append(_image(image, 24, 18, width, height))
    svg = _svg("".join(parts), 24 + width, 18 + height)
    return Picture(_figure(svg, caption, top), _png(image))


def _labelled_panel(
    title: str, weights: NDArray[np.float64], tokens: Tokens, x: float
) -> tuple[str, tuple[float, float]]:
    """Return a panel whose left edge is at x, and its width and height."""
    n_queries, n_keys = weights.shape
    cell = min(20.0, max(360 / max(n_queries, n_keys), 0.05))
    font = min(11.0, max(cell, 7.0))
    every = int(np.ceil(font / cell))  # of how many tokens one has a label
    rows, columns = tokens.queries[::every], tokens.keys[::every]
    letters = [min(LETTERS, max(map(len, side))) for side in (rows, columns)]
    left, top = (0.65 * font * count + 8 for count in letters)
    top += 16
    width, height = cell * n_keys, cell * n_queries
    image = _image(_codes(weights, MAX_CELLS), x + left, top, width, height)
    parts = [
        f'<text x="{x + left}" y="11" font-size="12">{_text(title, 60)}</text>',
        image,
    ]
    for i, label in enumerate(rows):
        y = top + (i * every + 0.5) * cell + font * 0.35
        parts.append(
            f'<text x="{x + left - 4:.1f}" y="{y:.1f}" text-anchor="end" '
            f'font-size="{font:g}">{_text(label)}</text>'
        )
    for i, label in enumerate(columns):
        place = x + left + (i * every + 0.5) * cell + font * 0.35
        parts.append(
            f'<text transform="translate({place:.1f} {top - 4:.1f}) rotate(-90)" '
            f'font-size="{font:g}">{_text(label)}</text>'
        )
    return "".join(parts), (left + width + 1, top + height + 1)


def _text(label: str, longest: int = LETTERS) -> str:
    """Return a label for SVG."""
    short = (
        label
        if len(label) <= longest
        else f"{label[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    )
    return html.escape(short)


def _image(
    codes: NDArray[np.uint8], x: float, y: float, width: float, height: float
) -> str:
    """Return an image in SVG, with a frame around it."""
    data = base64.b64encode(_png(codes)).decode("ascii")
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    frame = (  # outside: no pixel is under it
        f'x="{x - 0.5:.1f}" y="{y - 0.5:.1f}" width="{width + 1:.1f}" '
        f'height="{height + 1:.1f}"'
    )
    return (
        f'<image {place} preserveAspectRatio="none" '
        f'style="image-rendering: pixelated" href="data:image/png;base64,{data}"/>'
        f'<rect {frame} fill="none" stroke="#999999" stroke-width="0.8"/>'
    )


def _svg(content: str, width: float, height: float) -> str:
    """Return an SVG image on white paper, legible on dark pages too."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 8:.0f}" '
        f'height="{height + 8:.0f}" font-family="sans-serif" fill="#1b1b1b">'
        '<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<g transform="translate(4 4)" xml:space="preserve">{content}</g></svg>'
    )


def _largest(*weights: NDArray[np.float64]) -> float:
    """Return the weight of the darkest colour: the largest one shown."""
    return max((float(w[w > 0].max()) for w in weights if (w > 0).any()), default=1.0)


def _figure(svg: str, caption: str, top: float) -> str:
    data = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    return (
        f"<p>{html.escape(caption)}, up to {top:.2g}. Run the cell, or trust the "
        "notebook, for the interactive view.</p>"
        '<img alt="heat maps of attention weights" '
        f'src="data:image/svg+xml;base64,{data}">'
    )


def _table(weights: NDArray[np.float64], tokens: Tokens) -> str:
    """Return each query's strongest key, for places that show no picture either."""
    rows = []
    for query, row in list(zip(tokens.queries, weights, strict=True))[:STRONGEST]:
        if np.isnan(row).all() or np.nanmax(row) == 0:
            key, weight = "", ""
        else:
            best = int(np.nanargmax(row))
            key, weight = tokens.keys[best], f"{row[best]:.2f}"
        cells = "".join(
            f"<td>{html.escape(text)}</td>" for text in (query, key, weight)
        )
        rows.append(f"<tr>{cells}</tr>")
    head = "<tr><th>query</th><th>its strongest key</th><th>weight</th></tr>"
    more = len(tokens.queries) - len(rows)
    note = f"<p>and {more} more queries</p>" if more else ""
    return f"<table>{head}{''.join(rows)}</table>{note}"


def _codes(weights: NDArray[np.float64], cells: int) -> NDArray[np.uint8]:
    """Return colour codes for at most this many cells per side."""
    for axis in (0, 1):
        size = weights.shape[axis]
        starts = np.arange(min(size, cells)) * size // min(size, cells)
        weights = np.maximum.reduceat(weights, starts, axis=axis)  # NaN stays
    codes = np.rint(np.minimum(weights, 1) * 253)
    return np.where(np.isnan(weights), NAN, codes).astype(np.uint8)


def _thumb(weights: NDArray[np.float64], cells: int) -> NDArray[np.uint8]:
    """Return a small image of few colours."""
    codes = _codes(weights, cells)
    return _enlarged(np.where(codes == NAN, NAN, codes // 12 * 12), THUMB_CELLS)


def _enlarged(codes: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return an image whose longer side has about this many pixels."""
    times = max(1, side // max(codes.shape))
    return codes.repeat(times, axis=0).repeat(times, axis=1)


def _side_by_side(rows: list[list[NDArray[np.uint8]]]) -> NDArray[np.uint8]:
    """Return one image of several, with frames and gaps between them."""
    framed = [[np.pad(image, 1, constant_values=EDGE) for image in row] for row in rows]
    padded = [
        [np.pad(image, 3, constant_values=PAPER) for image in row] for row in framed
    ]
    height = max(image.shape[0] for row in padded for image in row)
    return np.vstack(
        [
            np.hstack(
                [
                    np.pad(
                        image, ((0, height - len(image)), (0, 0)), constant_values=PAPER
                    )
                    for image in row
                ]
            )
            for row in padded
        ]
    )


def _palette() -> bytes:
    """White to dark blue for codes up to 253, grey, and red for NaN."""
    stops = np.array([[255, 255, 255], [107, 174, 214], [8, 48, 107]])
    place = np.linspace(0, 1, 254)
    ramp = np.stack([np.interp(place, [0, 0.5, 1], stop) for stop in stops.T], axis=1)
    colours = np.vstack([np.rint(ramp), [150, 150, 150], [214, 39, 40]])
    return colours.astype(np.uint8).tobytes()


def _png(codes: NDArray[np.uint8]) -> bytes:
    """Return a PNG file (its third edition, 2003) with a palette."""
    height, width = codes.shape
    lines = np.zeros((height, width + 1), np.uint8)  # each begins with its filter, none
    lines[:, 1:] = codes
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = {
        b"IHDR": header,
        b"PLTE": _palette(),
        b"IDAT": zlib.compress(lines.tobytes(), 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body))
        + name
        + body
        + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks.items()
    )
