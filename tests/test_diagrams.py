"""Diagrams are whole SVG documents in which every word can be read."""

import base64
import itertools
import re
from xml.etree import ElementTree

import pytest
from support.errors import refused

from attnpy import diagrams

pytestmark = pytest.mark.quick

DRAWN = {
    diagrams.scaled_dot_product_attention: [
        *("Q", "K", "V", "MatMul", "Scale", "Mask (optional)", "Softmax", "MatMul"),
        *("scores: Q KT", "1 / √dk", "weights · V", "output"),
    ],
    diagrams.multi_head_attention: [
        *("V", "K", "Q", "Linear", "Linear", "Linear", "Linear", "Concat"),
        *("V WiV", "K WiK", "Q WiQ", "WO", "headi", "Scaled Dot-Product Attention"),
    ],
    diagrams.encoder_decoder: [
        *("inputs", "outputs (shifted right)", "output probabilities"),
        *("Input Embedding", "Output Embedding", "positional encoding"),
        *("Multi-Head Attention", "Masked Multi-Head Attention", "Feed Forward"),
        *["Add & Norm"] * 5,
        *("keys, values", "queries", "Linear", "Softmax"),
    ],
}
every_diagram = pytest.mark.parametrize("draw", DRAWN)


def parsed(draw):
    return ElementTree.fromstring(draw()._repr_svg_())


def elements(root, name):
    return list(root.iter(f"{{http://www.w3.org/2000/svg}}{name}"))


def rectangle(element):
    """The left, top, right and bottom of a rectangle."""
    x, y = float(element.get("x", 0)), float(element.get("y", 0))
    return x, y, x + float(element.get("width")), y + float(element.get("height"))


def extent(text):
    """The left, top, right and bottom of a text, in letters of a wide font."""
    size = 13 if text.get("class") == "name" else 11
    width = 0.62 * size * len("".join(text.itertext()))
    x, y = float(text.get("x")), float(text.get("y"))
    left = x - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor")]
    return left, y - size, left + width, y + 0.3 * size


@every_diagram
def test_boxes_are_named_by_the_terms_of_the_paper(draw):
    words = ["".join(text.itertext()) for text in elements(parsed(draw), "text")]
    for word in DRAWN[draw]:
        words.remove(word)


@every_diagram
def test_everything_is_within_the_picture(draw):
    root = parsed(draw)
    _, _, width, height = map(float, root.get("viewBox").split())
    page, *boxes = elements(root, "rect")
    assert page.get("class") == "page"
    assert rectangle(page) == (0, 0, width, height), "a background of its own"
    inside = [rectangle(box) for box in boxes]
    inside += [extent(text) for text in elements(root, "text")]
    for left, top, right, bottom in inside:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


@every_diagram
def test_texts_fit_into_their_boxes_and_do_not_overlap(draw):
    root = parsed(draw)
    boxes = [rectangle(box) for box in elements(root, "rect")[1:]]
    texts = [extent(text) for text in elements(root, "text")]
    for left, top, right, bottom in texts:
        x, y = (left + right) / 2, (top + bottom) / 2
        for x0, y0, x1, y1 in boxes:
            if x0 < x < x1 and y0 < y < y1:
                assert x0 <= left and right <= x1
    for one, other in itertools.combinations(texts, 2):
        apart = one[2] <= other[0] or other[2] <= one[0]
        assert apart or one[3] <= other[1] + 3 or other[3] <= one[1] + 3


@every_diagram
def test_arrows_end_at_boxes_or_at_words(draw):
    root = parsed(draw)
    boxes = [rectangle(box) for box in elements(root, "rect")[1:]]
    texts = [extent(text) for text in elements(root, "text")]
    targets = boxes + [(x0 - 9, y0 - 9, x1 + 9, y1 + 9) for x0, y0, x1, y1 in texts]
    for arrow in elements(root, "path"):
        if arrow.get("class") != "line":
            continue
        numbers = re.findall(r"[\d.]+", arrow.get("d"))
        x, y = map(float, numbers[-2:])
        assert any(x0 <= x <= x1 and y0 <= y <= y1 for x0, y0, x1, y1 in targets)


def luminance(color):
    """As in the Web Content Accessibility Guidelines 2.1, "relative luminance"."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", [0, 1])
def test_words_stand_out_on_light_and_dark_pages(theme):
    style = elements(parsed(diagrams.encoder_decoder), "style")[0].text
    rules = style.split("@media (prefers-color-scheme:dark)")[theme]
    fills = dict(re.findall(r"\.attnpy-diagram \.([\w-]+)\{fill:(#\w+)", rules))
    assert {"name", "note", "page", "frame", *diagrams.KINDS} <= set(fills)
    words = [luminance(fills.pop(kind)) for kind in ("name", "note")]
    fills.pop("head")
    for background in map(luminance, fills.values()):
        for word in words:
            dark, light = sorted((word, background))
            assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_styles_are_of_diagrams_only():
    style = elements(parsed(diagrams.encoder_decoder), "style")[0].text
    selectors = re.findall(r"([^{}]+)\{fill", style)
    assert selectors and all(".attnpy-diagram ." in s for s in selectors)


@every_diagram
def test_diagrams_are_described_in_words(draw):
    root = parsed(draw)
    assert root.get("role") == "img"
    (title,), (description,) = elements(root, "title"), elements(root, "desc")
    assert repr(draw()) == f"Diagram({title.text!r})"
    assert len(description.text) > 50


@every_diagram
def test_html_has_the_picture_for_notebooks_that_are_not_trusted(draw):
    image = ElementTree.fromstring(draw()._repr_html_().replace('">', '"/>'))
    assert image.tag == "img"
    assert f"Diagram({image.get('alt')!r})" == repr(draw())
    kind, data = image.get("src").split(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data).decode("utf-8") == draw()._repr_svg_()


def test_saved_file_is_the_picture_of_the_notebook(tmp_path):
    drawn = diagrams.multi_head_attention()
    drawn.save(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text("utf-8") == drawn._repr_svg_()
    with pytest.raises(OSError):
        drawn.save(tmp_path / "nowhere" / "figure.svg")
    with refused(AttributeError, "Diagram"):
        drawn.title = "another"
