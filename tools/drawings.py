"""Draw the logo, and the bars of the README, as SVG.

    python tools/drawings.py
    python tools/drawings.py --check

The logo is the causal attention of four words, computed by attnpy. The bars are rows of
`docs/performance/data`. The second command fails if a file is not what would be drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

import attnpy

DOCS = Path(__file__).parents[1] / "docs"
TEAL, LIGHT, GREY, INK = "#0a7d91", "#3fb1c5", "#9aa5ad", "#1b1b1b"


class Bars(NamedTuple):
    """A row of the results, and what it is called in the picture."""

    title: str
    group: str
    name: str


THREADS = 2
ROWS = (
    Bars("causal attention, 12 heads of 1,024 x 64", "causal", "1x12x1024x64"),
    Bars("MiniLM encodes 32 sentences", "models", "MiniLM float32 32 x 8..128"),
    Bars("a small Llama writes tokens", "tokens", "Llama shape float32, 8 after 256"),
)
NAMES = {
    "torch": "PyTorch",
    "transformers": "Transformers (PyTorch)",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "llamacpp": "llama.cpp",
    "numpy": "NumPy",
}


def logo() -> str:
    """Return the lower triangle of the weights of four words."""
    x = np.array([[1.0, 0.2], [0.3, 1.1], [0.9, 0.8], [1.4, 0.1]])
    _, weights = attnpy.attention(x, x, x, causal=True, return_weights=True)
    cells = [
        f'<rect x="{2 + 15 * j}" y="{2 + 15 * i}" width="13" height="13" rx="3" '
        f'class="teal" '
        f'fill="{TEAL}" fill-opacity="{0.15 + 0.85 * float(weight) ** 0.7:.2f}"/>'
        for i, row in enumerate(weights)
        for j, weight in enumerate(row[: i + 1])
    ]
    return _svg(62, 62, cells, "attnpy", "The causal attention of four words.")


def bars() -> str:
    """Return how fast each library is beside attnpy, for three tasks."""
    rows = json.loads((DOCS / "performance/data/zen5.json").read_text("utf-8"))["rows"]
    parts, y = [], 6
    for shown in ROWS:
        (row,) = (
            row
            for row in rows
            if (row["group"], row["name"], row.get("threads"))
            == (shown.group, shown.name, THREADS)
        )
        times = {
            name: row["faster_than"][key][1]
            for key, name in NAMES.items()
            if key in row["faster_than"]
        }
        y += 16
        parts.append(_text(0, y, escape(shown.title), "bold"))
        for name, ratio in {
            "attnpy": 1.0,
            **dict(sorted(times.items(), key=lambda item: item[1])),
        }.items():
            y += 20
            color = TEAL if name == "attnpy" else GREY
            width = 330 / ratio
            parts.append(_text(0, y, escape(name)))
            parts.append(
                f'<rect x="160" y="{y - 12}" width="{width:.1f}" height="15" rx="2" '
                f'fill="{color}"/>'
            )
            if name != "attnpy":
                parts.append(_text(168 + width, y, f"1 / {ratio:.2f}"))
        y += 16
    title = "How fast other libraries are beside attnpy"
    desc = "Three tasks with a bar for each library, as long as its speed."
    return _svg(550, y - 4, parts, title, desc)


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="13" font-weight="{weight}" '
        f'fill="{INK}">{text}</text>'
    )


def _svg(width: int, height: int, parts: list[str], title: str, desc: str) -> str:
    paper = (
        [] if width == height else ['<rect width="100%" height="100%" fill="#fff"/>']
    )
    shift = 0 if width == height else 8
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 2 * shift} '
        f'{height + shift}" width="{width + 2 * shift}" height="{height + shift}" '
        f'font-family="sans-serif">\n<title>{title}</title>\n<desc>{desc}</desc>\n'
        f"<style>@media (prefers-color-scheme: dark) {{ .teal {{ fill: {LIGHT} }} }}"
        f"</style>\n{''.join(paper)}"
        f'<g transform="translate({shift} 0)">\n{inside}\n</g>\n</svg>\n'
    )


FILES = {
    DOCS / "_static" / "logo.svg": logo,
    DOCS / "speed.svg": bars,
}


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the files only")
    given = parser.parse_args()
    for path, draw in FILES.items():
        if not given.check:
            path.write_text(draw(), encoding="utf-8")
        elif path.read_text("utf-8") != draw():
            sys.exit(f"{path}: expected what tools/drawings.py draws")


if __name__ == "__main__":
    main()
