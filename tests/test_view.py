"""The interactive views: what is in their pages, and what they do in a browser."""

import base64
import html
import importlib.util
import io
import json
import os
import re
import shutil
import stat
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest
from support import embedding_gemma, families
from support.arrays import normal, random_weights
from support.tutorial import WORDS

import attnpy
from attnpy.models import BertEncoder, CausalDecoder
from attnpy.view import head_view, model_view, neuron_view

# Each would end a script, run as one, or vanish, if it were not shown as it is.
TOKENS = [
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    "<!-- <script>",
    "&amp;\"'",
    "{{data}} {{title}}",
    "line\nbreak\u2028\u2029",
    "\N{GRINNING FACE} \udc80 \N{HEBREW LETTER ALEF}",
    "$x_1$",
]
SHOWN = [
    *TOKENS[:5],
    r"line\nbreak\u2028\u2029",
    "\N{GRINNING FACE} \\udc80 \N{HEBREW LETTER ALEF}",
    "$x_1$",
]
PROGRAMS = ("chromium", "chromedriver")


MARKED = ["[CLS]", "a", "b", "<s>", "[SEP]", "<|end|>"]


def neurons(tokens, **options):
    """A neuron view of random numbers for these tokens, and the numbers."""
    query, key = normal(len(tokens), 8), normal(len(tokens), 8, seed=1)
    return neuron_view(query, key, tokens, **options)


VIEWS = {
    "head": lambda tokens, **options: head_view(
        random_weights(2, 3, len(tokens), len(tokens)), tokens, **options
    ),
    "model": lambda tokens, **options: model_view(
        random_weights(2, 3, len(tokens), len(tokens)), tokens, **options
    ),
    "neuron": neurons,
}
every_view = pytest.mark.parametrize("kind", VIEWS)
both_views = pytest.mark.parametrize("show_weights", [head_view, model_view])


def page_of(view):
    """The page inside the frame that a notebook shows."""
    frame = re.search(
        r'<iframe hidden srcdoc="([^"]*)"[^<>]*></iframe>', view._repr_html_()
    )
    return html.unescape(frame[1])


def data_of(view):
    """The data inside the page."""
    found = re.findall(
        r'<script type="application/json".*?>(.*?)</script>', page_of(view)
    )
    assert len(found) == 1
    return json.loads(found[0])


def decoded(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype)


def weights_of(view):
    """The weights inside the page, (layers, H, Lq, Lk), 0 where one was left out."""
    stored = data_of(view)["weights"]
    shape = [
        len(stored["layers"]),
        len(stored["heads"]),
        stored["queries"],
        stored["keys"],
    ]
    if stored["form"] == "dense16":
        codes = decoded(stored["codes"], "<u2")
        return np.where(codes == 65535, np.nan, codes / 10000).reshape(shape)
    codes = decoded(stored["codes"], "u1")
    weights = np.where(codes == 255, np.nan, (codes / 254) ** 2)
    if stored["form"] == "dense8":
        return weights.reshape(shape)
    counts = decoded(stored["counts"], "<u2")
    rows = np.zeros((len(counts), shape[-1]))
    places = np.repeat(np.arange(len(counts)), counts)
    rows[places, decoded(stored["indices"], "<u2")] = weights
    return rows.reshape(shape)


@pytest.mark.quick
@both_views
@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5), (2, 3, 4, 5), (1, 1)])
def test_page_has_the_weights_to_four_decimals(show_weights, shape):
    weights = random_weights(*shape)
    view = show_weights(weights, range(shape[-2]), range(shape[-1]))
    expected = weights.reshape((1, 1, *shape)[-4:])
    assert weights_of(view).shape == expected.shape
    np.testing.assert_allclose(weights_of(view), expected, rtol=0, atol=0.5001e-4)
    assert data_of(view)["note"] == ""


@pytest.mark.quick
def test_page_has_nan_zero_and_one():
    weights = np.array([[0, 1, np.nan]])
    np.testing.assert_array_equal(
        weights_of(head_view(weights, ["a"], list("xyz")))[0, 0], weights
    )


@pytest.mark.quick
def test_any_dtype_of_weights_is_taken(dtype):
    weights = random_weights(2, 3, 3).astype(dtype)
    shown = weights_of(head_view(weights, ["a", "b", "c"]))
    np.testing.assert_allclose(shown[0], weights.astype(float), atol=0.5001e-4)


@pytest.mark.quick
def test_a_list_of_layers_is_taken():
    layers = [random_weights(3, 5, 5), random_weights(3, 5, 5)]
    shown = weights_of(head_view(layers, WORDS))
    np.testing.assert_allclose(shown, np.stack(layers), atol=0.5001e-4)


@pytest.mark.quick
@every_view
def test_key_labels_are_the_query_labels_unless_given(kind):
    tokens = data_of(VIEWS[kind](WORDS))["tokens"]
    assert (tokens["queries"], tokens["keys"]) == (WORDS, WORDS)
    tokens = data_of(VIEWS[kind](WORDS, key_labels=iter([*"abcd", 7])))["tokens"]
    assert (tokens["queries"], tokens["keys"]) == (WORDS, [*"abcd", "7"])


@pytest.mark.quick
@both_views
def test_special_tokens_are_those_that_look_like_it_unless_given(show_weights):
    def special(**options):
        view = show_weights(random_weights(6, 6), MARKED, **options)
        return data_of(view)["tokens"]["special"]

    assert special() == {"queries": [0, 3, 4, 5], "keys": [0, 3, 4, 5]}
    assert special(special_tokens=["b", "x"])["keys"] == [2]
    assert special(special_tokens=())["queries"] == []
    assert special(key_labels=list("uvwxyz"))["keys"] == []


# ---- Pages that would be too large ---------------------------------------------------


def peaked(*shape):
    """Weights of which few are large, as those of models are."""
    weights = np.random.default_rng(0).standard_exponential(shape) ** 4
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("shape", "note"),
    [
        ((12, 12, 64, 64), ""),
        ((12, 12, 80, 80), "weights have two decimals."),
        (
            (12, 12, 130, 130),
            "weights have two decimals; those below 0.005 are left out.",
        ),
        (
            (16, 16, 600, 40),
            "weights have two decimals; those below 0.05 are left out; only every 2nd "
            "layer is here.",
        ),
        (
            (36, 24, 800, 12),
            "weights have two decimals; only every 4th layer is here; only every 2nd "
            "head is here.",
        ),
    ],
    ids=str,
)
@both_views
def test_page_stays_below_two_megabytes_and_says_what_is_left_out(
    show_weights, shape, note
):
    weights = peaked(*shape)
    view = show_weights(weights, range(shape[-2]), range(shape[-1]))
    assert len(view._repr_html_()) < 2e6
    assert data_of(view)["note"] == (note and f"To keep this page below 2 MB, {note}")
    stored = data_of(view)["weights"]
    expected = weights[np.ix_(stored["layers"], stored["heads"])]
    kept = expected >= stored["least"]
    shown = weights_of(view)
    assert (shown[~kept] == 0).all()
    atol = 0.0041 if note else 0.5001e-4
    np.testing.assert_allclose(shown[kept], expected[kept], rtol=0, atol=atol)
    assert repr(view).endswith(
        "(kind='{}', layers={}, heads={}, queries={}, keys={})".format(
            show_weights.__name__.partition("_")[0], *shape
        )
    )


def test_what_opens_is_among_what_is_there():
    weights = peaked(36, 24, 800, 12)
    view = head_view(weights, range(800), range(12), layer=-1, heads=[3, 6, 7])
    data = data_of(view)
    stored = data["weights"]
    assert stored["layers"] == list(range(3, 36, 4))
    assert stored["heads"] == list(range(1, 24, 2))
    assert stored["layers"][data["layer"]] == 35
    assert [stored["heads"][i] for i in data["opens"]] == [3, 7]


@pytest.mark.quick
def test_nan_is_never_left_out():
    weights = peaked(12, 12, 130, 130)
    weights[3, 4, 5, ::7] = np.nan
    shown = weights_of(head_view(weights, range(130)))
    np.testing.assert_array_equal(np.isnan(shown), np.isnan(weights))


def test_neuron_view_stays_below_two_megabytes():
    query, key = np.random.default_rng(0).standard_normal((2, 12, 12, 64, 64))
    view = neuron_view(query, key, range(64))
    assert len(view._repr_html_()) < 2e6
    data = data_of(view)
    assert data["note"] == (
        "To keep this page below 2 MB, only every 2nd layer is here; "
        "only every 2nd head is here."
    )
    for name, vectors in (("query", query), ("key", key)):
        units = np.reshape(data[f"{name}_units"], (6, 6, 1, 1))
        shown = decoded(data[name], "<i2").reshape(6, 6, 64, 64) * units
        np.testing.assert_allclose(shown, vectors[::2, ::2], rtol=0, atol=1e-4)


@pytest.mark.quick
def test_a_head_that_no_page_holds_is_refused():
    with pytest.raises(ValueError, match=r"^weights: .*2 MB, got 700000 queries"):
        head_view(np.ones((700_000, 3)), range(700_000), range(3))
    with pytest.raises(ValueError, match=r"^query: .*2 MB, got 20000 queries"):
        neuron_view(np.ones((20000, 64)), np.ones((9, 64)), range(20000), range(9))


# ---- Models --------------------------------------------------------------------------


class Model:
    """Stands in for a model: its weights depend on the token numbers."""

    def __call__(self, ids, *, return_weights=False):
        assert return_weights is True
        assert ids.dtype.kind == "i"
        self.weights = [random_weights(3, len(ids), len(ids)) for _ in range(2)]
        return SimpleNamespace(weights=self.weights)


class Tokenizer:
    """As of the package tokenizers, with padding."""

    def encode(self, text):
        words = text.split()
        n_words, n_pads = len(words), 2
        return SimpleNamespace(
            ids=[101, *range(n_words), 102, *[0] * n_pads],
            tokens=["(start)", *words, "(end)", *["[PAD]"] * n_pads],
            special_tokens_mask=[1, *[0] * n_words, 1, *[1] * n_pads],
            attention_mask=[1] * (n_words + 2) + [0] * n_pads,
        )


class OtherTokenizer:
    """As of the package transformers."""

    all_special_ids = (101, 102)

    def encode(self, text):
        return [101, *range(len(text.split())), 102]

    def convert_ids_to_tokens(self, ids):
        return [{101: "(start)", 102: "(end)"}.get(i, f"t{i}") for i in ids]


@pytest.mark.quick
@both_views
@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [(Tokenizer(), ["some", "text"]), (OtherTokenizer(), ["t0", "t1"])],
    ids=["tokenizers", "transformers"],
)
def test_model_tokenizer_and_text_are_enough(show_weights, tokenizer, words):
    model = Model()
    view = show_weights(model, tokenizer, "some text", title="a title")
    np.testing.assert_allclose(weights_of(view), model.weights, atol=0.5001e-4)
    tokens = data_of(view)["tokens"]
    assert tokens["queries"] == tokens["keys"] == ["(start)", *words, "(end)"]
    assert tokens["special"] == {"queries": [0, 3], "keys": [0, 3]}
    assert data_of(view)["title"] == "a title"
    other = show_weights(model, tokenizer, "some text", special_tokens=words[:1])
    assert data_of(other)["tokens"]["special"]["keys"] == [1]


@pytest.mark.quick
@both_views
def test_attentions_of_hugging_face_are_taken_as_they_come(show_weights):
    torch = pytest.importorskip("torch")
    weights = random_weights(3, 1, 2, 4, 4)
    attentions = tuple(torch.tensor(layer, requires_grad=True) * 1 for layer in weights)
    words = ["a", "b", "c", "d"]
    view = show_weights(attentions, words)
    np.testing.assert_allclose(weights_of(view), weights[:, 0], atol=0.5001e-4)
    assert show_weights([x.bfloat16() for x in attentions], words)
    with pytest.raises(ValueError, match=r"^weights: expected .* of one text, got 2"):
        show_weights(random_weights(3, 2, 2, 4, 4), words)


@pytest.mark.quick
@both_views
def test_a_model_of_the_package_shows_its_own_weights(show_weights):
    model = BertEncoder(2, 12, 3, 24, vocab_size=200)
    view = show_weights(model, Tokenizer(), "some more text")
    weights = model(np.array([101, 0, 1, 2, 102]), return_weights=True).weights
    assert weights.shape == (2, 3, 5, 5)
    np.testing.assert_allclose(weights_of(view), weights, atol=0.5001e-4)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("tokenizer", "text", "kind", "message"),
    [
        (Tokenizer(), ["some"], TypeError, "text: expected a string, .*got list"),
        (Tokenizer(), None, TypeError, "text: expected a string, .*got NoneType"),
        (WORDS, "some", TypeError, r"tokenizer: expected .*encode\(\), got list"),
        ("ab", "some", TypeError, r"tokenizer: expected .*encode\(\), got str"),
        (
            SimpleNamespace(encode=lambda text: [1]),
            "some",
            TypeError,
            "tokenizer: expected .* ids and tokens, .*got SimpleNamespace without",
        ),
        *(
            (
                SimpleNamespace(encode=lambda text, found=found: found),
                "some",
                TypeError,
                rf"tokenizer: expected encode\(\) to return {name}, got .* without",
            )
            for name, found in (
                ("tokens", SimpleNamespace(ids=[1])),
                ("attention_mask", SimpleNamespace(ids=[1], tokens=["a"])),
                (
                    "special_tokens_mask",
                    SimpleNamespace(ids=[1], tokens=["a"], attention_mask=[1]),
                ),
            )
        ),
        (
            SimpleNamespace(encode=lambda text: [1], convert_ids_to_tokens=list),
            "some",
            TypeError,
            "tokenizer: expected one with all_special_ids, got .* without",
        ),
        (
            SimpleNamespace(
                encode=lambda text: [], all_special_ids=[], convert_ids_to_tokens=list
            ),
            "",
            ValueError,
            "text: expected at least one token",
        ),
    ],
)
def test_what_is_no_tokenizer_or_text_is_refused(tokenizer, text, kind, message):
    with pytest.raises(kind, match=f"^{message}"):
        head_view(Model(), tokenizer, text)


@pytest.mark.quick
def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match=r"^model: expected .* weights, got tuple"):
        model_view(lambda ids, return_weights: (), Tokenizer(), "some text")


# ---- Pages ---------------------------------------------------------------------------


@pytest.mark.quick
@every_view
def test_tokens_and_title_cannot_leave_their_place(kind):
    hostile = VIEWS[kind](TOKENS, title="".join(TOKENS))
    harmless = VIEWS[kind](["a"] * 8, title="a")
    assert data_of(hostile)["tokens"]["queries"] == SHOWN
    assert data_of(hostile)["title"] == "".join(TOKENS)
    assert page_of(hostile).isascii()
    # The same elements as without them: no more tags, comments or scripts.
    for part in (page_of, type(hostile)._repr_html_):
        tags = [re.findall(r"<[/!a-z]+", part(view)) for view in (hostile, harmless)]
        assert tags[0] == tags[1]


@pytest.mark.quick
@every_view
def test_page_names_no_other_resource(kind):
    page = page_of(VIEWS[kind](WORDS))
    assert not re.search(r"https?:|//[a-z]|(?<!-)\b(src|href|url|import|fetch)\b", page)
    assert "default-src 'none'" in page


@pytest.mark.quick
def test_save_writes_the_page(tmp_path):
    view = head_view(random_weights(8, 8), TOKENS)
    path = tmp_path / "attention.html"
    path.write_text("old")
    view.save(path)
    view.save(str(path))
    assert path.read_bytes().decode("ascii") == page_of(view)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.quick
def test_save_keeps_the_mode_of_a_file_that_it_replaces(tmp_path):
    path = tmp_path / "attention.html"
    path.touch()
    path.chmod(0o600)
    head_view(random_weights(5, 5), WORDS).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.quick
def test_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "attention.html"
    path.write_text("old")

    def fail(*paths):
        raise OSError("disk is gone")

    view = head_view(random_weights(5, 5), WORDS)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk is gone"):
        patch.setattr(os, "replace", fail)
        view.save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]
    with pytest.raises(FileNotFoundError):
        view.save(tmp_path / "missing" / "attention.html")


# ---- The picture for where no script runs --------------------------------------------


def without_style_and_frame(view):
    """A view's HTML as JupyterLab shows it where the notebook is not trusted."""
    text = re.sub(r"<style>.*?</style>", "", view._repr_html_())
    return re.sub(r' (srcdoc|sandbox)="[^"]*"', "", text)


def pixels(png):
    """An image's colours, (height, width, 3), from 0 to 255."""
    image = pytest.importorskip("matplotlib.image").imread(io.BytesIO(png))
    return np.rint(image[..., :3] * 255).astype(int)


def svg_of(view):
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', view._repr_html_())
    assert len(found) == 1
    return ElementTree.fromstring(base64.b64decode(found[0]).decode("utf-8"))


def images_of(view):
    """The pixels of the images within a view's picture."""
    name = "{http://www.w3.org/2000/svg}image"
    sources = [
        node.get("href").partition("base64,")[2] for node in svg_of(view).iter(name)
    ]
    return [pixels(base64.b64decode(source)) for source in sources]


@pytest.mark.quick
@every_view
def test_notebook_stores_a_page_a_picture_and_a_line(kind):
    view = VIEWS[kind](WORDS)
    bundle = view._repr_mimebundle_()
    assert bundle["text/html"] == view._repr_html_()
    assert bundle["text/plain"] == repr(view)
    assert pixels(base64.b64decode(bundle["image/png"])).shape[2] == 3
    assert set(bundle) == {"text/html", "text/plain", "image/png"}


@pytest.mark.parametrize("count", [1, 5, 15, 60, 73, 200, 1000])
@pytest.mark.parametrize("column", [0, -1])
def test_a_stripe_is_in_the_picture_at_any_size(count, column):
    weights = np.zeros((count, count))
    weights[:, column] = 1
    [image] = images_of(head_view(weights, range(count)))
    size = min(count, 200)
    assert image.shape == (size, size, 3)
    dark = image.sum(axis=2) < 200
    expected = np.zeros((size, size), bool)
    expected[:, column] = True
    np.testing.assert_array_equal(dark, expected)


@pytest.mark.parametrize(("count", "heads"), [(15, 6), (73, 6), (200, 18)])
def test_each_head_s_stripe_is_in_the_model_s_picture(count, heads):
    weights = np.zeros((12, heads, count, count))
    weights[..., 0] = 1
    [image] = images_of(model_view(weights, range(count)))
    dark = image.sum(axis=2) < 200
    columns = dark.sum(axis=0)
    rows = columns[columns > 0]
    assert len(set(rows)) == 1
    assert np.count_nonzero(np.diff(np.flatnonzero(columns)) > 1) == heads - 1


@pytest.mark.quick
def test_picture_has_the_tokens_and_titles():
    view = head_view(random_weights(2, 3, 8, 8), TOKENS, layer=1, heads=[0, 2])
    texts = [
        node.text for node in svg_of(view).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert texts[0] == "layer 1, head 0"
    assert "layer 1, head 2" in texts
    assert texts.count("$x_1$") == 4
    assert texts.count("&amp;\"'") == 4
    assert texts.count("\N{GRINNING FACE} \\udc80 \N{HEBREW LETTER ALEF}"[:14]) == 4
    assert texts.count("<img src=x on\N{HORIZONTAL ELLIPSIS}") == 4
    view = head_view([[1.0]], ["\ufffe\uffff"], title="\x1b\ufffe\ud800")
    root = svg_of(view)  # is XML
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(r"\ufffe\uffff") == 2


@pytest.mark.quick
def test_nan_is_red_in_the_picture_and_weights_are_blue():
    weights = np.array([[0, 0.5, 1], [np.nan, 0, 0], [0, 0, 0]])
    [image] = images_of(head_view(weights, ["a", "b", "c"]))
    assert image[0, 0].tolist() == [255, 255, 255]
    assert image[0, 2].tolist() == [8, 48, 107]
    assert image[1, 0].tolist() == [214, 39, 40]
    rows = re.findall(r"<tr>(.*?)</tr>", head_view(weights, list("abc"))._repr_html_())
    assert [re.sub(r"<.*?>", " ", row).split() for row in rows[1:]] == [
        ["a", "c", "1.00"],
        ["b"],
        ["c"],
    ]


# ---- Errors --------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("weights", "queries", "keys", "kind", "message"),
    [
        (
            np.ones(3),
            WORDS,
            None,
            ValueError,
            r"weights: expected \(Lq, Lk\) or .*\(3,\)",
        ),
        (np.ones((2, 0)), "ab", None, ValueError, r"weights: .*empty.*\(2, 0\)"),
        (np.ones((2, 2), complex), "ab", None, TypeError, "weights: .*complex128"),
        ([[0.5, -0.5]], ["a"], WORDS, ValueError, "weights: .*below 0.*-0.5"),
        ([[0.5, 3]], ["a"], ["a", "b"], ValueError, "weights: .*above 1.*3"),
        ([[0.5, np.inf]], ["a"], ["a", "b"], ValueError, "weights: .*infinite.*inf"),
        (np.ones((2, 2)), "ab", None, TypeError, "query_labels: .*sequence.*str"),
        (np.ones((2, 2)), WORDS, None, ValueError, "query_labels: expected 2, got 5"),
        (np.ones((5, 2)), WORDS, WORDS, ValueError, "key_labels: expected 2, got 5"),
        (np.ones((5, 2)), WORDS, None, ValueError, "key_labels: expected 2, got none"),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(
    weights, queries, keys, kind, message
):
    for show_weights in (head_view, model_view):
        with pytest.raises(kind, match=f"^{message}"):
            show_weights(weights, queries, keys)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"layer": 2}, ValueError, "layer: expected -2 to 1, got 2"),
        ({"layer": 0.5}, TypeError, "layer: .*"),
        ({"heads": [0, 3]}, ValueError, "heads: expected -3 to 2, got 3"),
        ({"heads": 1}, TypeError, "heads: expected a sequence of integers, got int"),
        ({"special_tokens": "[CLS]"}, TypeError, "special_tokens: .*single str"),
        ({"special_tokens": [None]}, TypeError, "special_tokens: .*, got NoneType"),
        ({"special_tokens": [["a"]]}, TypeError, "special_tokens: .*, got list"),
        ({"layer": [1]}, ValueError, r"layer: expected an integer, got shape \(1,\)"),
        ({"heads": [[0, 1]]}, ValueError, r"heads: expected an integer, got .*\(2,\)"),
        ({"title": 3}, TypeError, "title: expected a string, got int"),
    ],
)
def test_wrong_options_are_errors_that_name_them(options, kind, message):
    with pytest.raises(kind, match=f"^{message}"):
        head_view(random_weights(2, 3, 5, 5), WORDS, **options)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("query", "key", "kind", "message"),
    [
        (np.ones(3), np.ones((5, 3)), ValueError, r"query: expected \(Lq, D\) or .*"),
        (np.ones((5, 3)), np.ones((1, 5, 3)), ValueError, "key: .*as many axes"),
        (np.ones((2, 1, 5, 3)), np.ones((1, 1, 5, 3)), ValueError, "key: .*layers"),
        (np.ones((5, 3)), np.ones((5, 2)), ValueError, "key: .*match"),
        (np.ones((3, 5, 3)), np.ones((2, 5, 3)), ValueError, "query: .*multiple"),
        (np.full((5, 3), np.nan), np.ones((5, 3)), ValueError, "query: .*finite"),
        (np.ones((5, 3), complex), np.ones((5, 3)), TypeError, "query: .*complex128"),
        (
            np.ones((5, 3)),
            np.ones((4, 3)),
            ValueError,
            "key_labels: expected 4, got none",
        ),
        (np.ones((5, 0)), np.ones((5, 0)), ValueError, "query: .*empty"),
    ],
)
def test_wrong_queries_and_keys_are_errors_that_name_them(query, key, kind, message):
    with pytest.raises(kind, match=f"^{message}"):
        neuron_view(query, key, WORDS)


# From here on in a browser.


def missing_for_a_browser():
    """What the tests below lack, if anything."""
    if importlib.util.find_spec("selenium") is None:
        return "no selenium: pip install selenium"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"no {program}: on Debian, apt-get install chromium chromium-driver"
    return None


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium."""
    missing = missing_for_a_browser()
    if missing and os.environ.get("ATTNPY_TEST_BROWSER") == "1":
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which(PROGRAMS[0])
    for argument in (
        "--headless=new",
        "--no-sandbox",  # it cannot have one as root
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1000,800",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability(
        "goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"}
    )
    service = webdriver.ChromeService(executable_path=shutil.which(PROGRAMS[1]))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def show(browser, tmp_path):
    """Open a view's page, and require that it asked for no other and had no errors."""
    path = tmp_path / "page.html"

    def open_page(page):
        page.save(path) if hasattr(page, "save") else path.write_text(page)
        requests(browser), errors(browser)  # of the page before
        browser.get(path.as_uri())
        return browser

    yield open_page
    assert requests(browser) <= {path.as_uri(), "about:srcdoc"}
    assert errors(browser) == []


def requests(browser):
    """What pages have asked for since the last call."""
    log = [json.loads(entry["message"]) for entry in browser.get_log("performance")]
    urls = {
        entry["message"]["params"]["request"]["url"]
        for entry in log
        if entry["message"]["method"] == "Network.requestWillBeSent"
    }
    # Chromium starts with a page of its own; a data URL has its answer in it.
    return {url for url in urls if not url.startswith(("chrome:", "data:"))}


def errors(browser):
    """What has gone wrong in pages since the last call."""
    log = browser.get_log("browser")
    return [entry["message"] for entry in log if entry["level"] == "SEVERE"]


def find(browser, selector):
    return browser.find_elements("css selector", selector)


def texts(browser, selector):
    return [node.get_property("textContent") for node in find(browser, selector)]


def point_at(browser, index, side="queries"):
    from selenium.webdriver import ActionChains

    node = find(browser, f"#{side} .token")[index]
    ActionChains(browser).move_to_element(node).perform()


def numbers(browser, side="keys"):
    return [float(text) for text in texts(browser, f"#{side} .weight")]


def opacities(browser, side="keys"):
    """How strongly each head's strip of each token is coloured."""
    script = """return [...document.querySelectorAll(`#${arguments[0]} .shares`)].map(
        (shares) => [...shares.children].map((share) => Number(share.style.opacity)))"""
    settle(browser)
    return np.array(browser.execute_script(script, side))


def settle(browser):
    """Wait until what changed is drawn."""
    browser.execute_async_script(
        "const done = arguments[0];"
        "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))"
    )


def lines_of(browser, rows=5):
    """Which rows of the canvas are coloured at its left and at its right edge."""
    settle(browser)
    return browser.execute_script(
        """
        const canvas = document.querySelector(".lines canvas");
        const context = canvas.getContext("2d");
        const height = canvas.height / arguments[0];
        return [2, canvas.width - 3].map((x) => {
            const row = (i) => context.getImageData(x, i * height, 1, height).data;
            return [...Array(arguments[0]).keys()].filter(
                (i) => row(i).some((part, j) => j % 4 === 3 && part > 100));
        })""",
        rows,
    )


def set_slider(browser, index):
    browser.execute_script(
        """const input = document.querySelector("#threshold input");
        input.value = arguments[0]; input.dispatchEvent(new Event("input"))""",
        index,
    )
    return float(texts(browser, "#threshold output")[0])


@pytest.fixture
def window(browser):
    """Give the page another size, until the test ends."""

    def resize(width, height):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    yield resize
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_request_and_an_error_would_be_noticed(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<img src='file:///missing.png'><script>missing()</script>")
    browser.get(path.as_uri())
    assert "file:///missing.png" in requests(browser)
    assert any("missing is not defined" in error for error in errors(browser))


# ---- The head view -------------------------------------------------------------------


def test_pointing_at_a_query_shows_what_it_gives(show):
    weights = random_weights(5, 7)
    browser = show(head_view(weights, WORDS, range(7), title="A title"))
    assert texts(browser, "h1") == ["A title"]
    assert texts(browser, ".weight") == [""] * 12
    set_slider(browser, 0)
    for query in (2, 4):
        point_at(browser, query)
        assert texts(browser, ".token.chosen") == [WORDS[query]]
        np.testing.assert_allclose(numbers(browser), weights[query], atol=0.51e-4)
        np.testing.assert_allclose(
            opacities(browser)[:, 0], weights[query], atol=0.51e-4
        )
        assert texts(browser, "#queries .weight") == [""] * 5
        top = str(weights[query].argmax())
        assert texts(browser, "#keys .top .token") == [top]
        assert f"{WORDS[query]} attends to {top} " in texts(browser, "#said")[0]


def test_pointing_at_a_key_shows_what_it_gets(show):
    weights = random_weights(5, 7)
    browser = show(head_view(weights, WORDS, range(7)))
    set_slider(browser, 0)
    for key in (6, 3):
        point_at(browser, key, "keys")
        assert texts(browser, ".token.chosen") == [str(key)]
        np.testing.assert_allclose(
            numbers(browser, "queries"), weights[:, key], atol=0.51e-4
        )
        np.testing.assert_allclose(
            opacities(browser, "queries")[:, 0], weights[:, key], atol=0.51e-4
        )
        assert texts(browser, "#keys .weight") == [""] * 7
        top = WORDS[weights[:, key].argmax()]
        assert texts(browser, "#queries .top .token") == [top]
        said = texts(browser, "#said")[0]
        assert f"{key} gets the attention of {top} " in said


def test_pointing_moves_nothing(show):
    browser = show(head_view(random_weights(12, 5, 5), WORDS, heads=range(12)))
    places = """return [...document.querySelectorAll(".token")].map(
        (token) => token.getBoundingClientRect().left)"""
    settle(browser)
    before = browser.execute_script(places)
    point_at(browser, 2)
    assert browser.execute_script(places) == before
    point_at(browser, 3, "keys")
    assert browser.execute_script(places) == before


def test_view_opens_on_the_first_head_or_those_asked_for(show):
    weights = random_weights(3, 4, 5, 5)
    browser = show(head_view(weights, WORDS))
    assert texts(browser, "#heads [aria-pressed=true]") == ["0"]
    point_at(browser, 1)
    np.testing.assert_allclose(numbers(browser), weights[0, 0, 1], atol=0.51e-4)
    browser = show(head_view(weights, WORDS, layer=2, heads=[3, -3]))
    assert texts(browser, "#heads [aria-pressed=true]") == ["1", "3"]
    point_at(browser, 1)
    expected = weights[2, [1, 3], 1].mean(axis=0)
    np.testing.assert_allclose(numbers(browser), expected, atol=1.01e-4)


def test_any_layer_and_heads_can_be_chosen(show):
    from selenium.webdriver import ActionChains

    weights = random_weights(3, 4, 5, 5)
    browser = show(head_view(weights, WORDS))
    set_slider(browser, 0)
    buttons = {button.text: button for button in find(browser, "#heads button")}
    assert list(buttons) == ["0", "1", "2", "3", "all", "none"]

    def shows(layer, heads):
        assert texts(browser, "#heads [aria-pressed=true]") == list(map(str, heads))
        point_at(browser, 1)
        expected = weights[layer, heads, 1]
        np.testing.assert_allclose(
            numbers(browser), expected.mean(axis=0), atol=1.01e-4
        )
        np.testing.assert_allclose(opacities(browser), expected.T, atol=0.51e-4)

    for layer in (0, 2):
        find(browser, f'#layers option[value="{layer}"]')[0].click()
        shows(layer, [0])
        buttons["2"].click()
        buttons["3"].click()
        shows(layer, [0, 2, 3])
        buttons["2"].click()
        shows(layer, [0, 3])
        buttons["all"].click()
        shows(layer, [0, 1, 2, 3])
        ActionChains(browser).double_click(buttons["1"]).perform()
        shows(layer, [1])
        buttons["none"].click()
        point_at(browser, 1)
        assert texts(browser, "#said") == ["No head is chosen."]
        assert texts(browser, "#keys .weight") == [""] * 5
        assert lines_of(browser) == [[], []]
        buttons["0"].click()
        shows(layer, [0])


def test_keyboard_does_what_pointing_does(show):
    weights = random_weights(5, 5)
    browser = show(head_view(weights, WORDS))
    from selenium.webdriver import ActionChains, Keys

    # The slider, then one stop for each side; within a side arrows lead on.
    ActionChains(browser).send_keys(Keys.TAB).perform()
    for keys, query in ((Keys.TAB, 0), (Keys.DOWN, 1), (Keys.DOWN, 2), (Keys.UP, 1)):
        ActionChains(browser).send_keys(keys).perform()
        assert texts(browser, ".token.chosen") == [WORDS[query]]
        np.testing.assert_allclose(numbers(browser), weights[query], atol=0.51e-4)
    for keys, key in ((Keys.RIGHT, 1), (Keys.DOWN, 2), (Keys.DOWN, 3)):
        ActionChains(browser).send_keys(keys).perform()
        shown = numbers(browser, "queries")
        np.testing.assert_allclose(shown, weights[:, key], atol=0.51e-4)
    ActionChains(browser).send_keys(Keys.LEFT).perform()
    np.testing.assert_allclose(numbers(browser), weights[3], atol=0.51e-4)
    point_at(browser, 4)
    assert texts(browser, ".token.chosen") == [WORDS[4]]
    ActionChains(browser).move_to_element(find(browser, "#said")[0]).perform()
    settle(browser)
    assert texts(browser, ".token.chosen") == [WORDS[3]], "back to the focus"


def test_lines_join_a_query_with_its_keys(show):
    weights = np.eye(5)[[1, 0, 2, 4, 4]]
    browser = show(head_view(weights, WORDS))
    assert lines_of(browser) == [[0, 1, 2, 3, 4], [0, 1, 2, 4]]
    point_at(browser, 3)
    assert lines_of(browser) == [[3], [4]]
    point_at(browser, 4, "keys")
    assert lines_of(browser) == [[3, 4], [4]]
    point_at(browser, 3, "keys")
    assert lines_of(browser) == [[], []]


def test_lines_below_the_threshold_are_not_drawn(show):
    weights = np.diag([0.95, 0.8, 0.6, 0.45, 0.45])
    browser = show(head_view(weights, WORDS))
    assert lines_of(browser)[0] == [0, 1, 2, 3, 4]
    for index, least, rows in ((7, 0.5, [0, 1, 2]), (8, 0.7, [0, 1]), (9, 0.9, [0])):
        assert set_slider(browser, index) == least
        assert lines_of(browser) == [rows, rows]
    point_at(browser, 1)
    assert find(browser, "#keys .shares span") == []
    assert numbers(browser)[1] == 0.8, "numbers stay"
    set_slider(browser, 0)
    assert len(find(browser, "#keys .shares span")) == 1
    assert lines_of(browser) == [[1], [1]]


def test_special_tokens_can_be_left_out(show):
    tokens = ["[CLS]", "a", "b", "c", "[SEP]"]
    weights = np.array([[0.6, 0.1, 0.05, 0.05, 0.2]] * 5)
    browser = show(head_view(weights, tokens))
    point_at(browser, 2)
    assert texts(browser, "#keys .top .token") == ["[CLS]"]
    box = find(browser, "#special input")[0]
    box.click()
    for side in ("queries", "keys"):
        shown = [node.text for node in find(browser, f"#{side} .token")]
        assert [text for text in shown if text] == ["a", "b", "c"]
    point_at(browser, 2)
    assert texts(browser, "#keys .top .token") == ["a"]
    assert texts(browser, "#said")[0].startswith("b attends to a 0.1000, b 0.0500")
    box.click()
    assert all(node.is_displayed() for node in find(browser, ".token"))


class PairTokenizer:
    """As of the package tokenizers, for two texts."""

    def encode(self, first, second):
        words = first.split(), second.split()
        n, m = map(len, words)
        return SimpleNamespace(
            ids=[101, *range(n), 102, *range(m), 102],
            tokens=["[CLS]", *words[0], "[SEP]", *words[1], "[SEP]"],
            special_tokens_mask=[1, *[0] * n, 1, *[0] * m, 1],
            attention_mask=[1] * (n + m + 3),
            sequence_ids=[None, *[0] * n, None, *[1] * m, None],
            type_ids=[0] * (n + 2) + [1] * (m + 1),
        )


@pytest.mark.parametrize("show_weights", [head_view, model_view])
def test_two_texts_can_be_shown_apart(show, show_weights):
    model = BertEncoder(1, 12, 2, 24, vocab_size=200, num_types=2)
    view = show_weights(model, PairTokenizer(), ("one two", "three"))
    ids, types = [101, 0, 1, 102, 0, 102], [0, 0, 0, 0, 1, 1]
    weights = model(np.array(ids), token_types=types, return_weights=True).weights
    np.testing.assert_allclose(weights_of(view), weights, atol=0.5001e-4)
    assert data_of(view)["tokens"]["second"] == 4
    browser = show(view)
    if show_weights is model_view:
        find(browser, ".grid button")[0].click()
    first, second = ["[CLS]", "one", "two", "[SEP]"], ["three", "[SEP]"]
    for option, queries, keys in (
        (0, first + second, first + second),
        (1, first, first),
        (2, first, second),
        (3, second, first),
        (4, second, second),
    ):
        find(browser, f'#sentences option[value="{option}"]')[0].click()
        for side, expected in (("queries", queries), ("keys", keys)):
            shown = [node.text for node in find(browser, f"#{side} .token")]
            assert [text for text in shown if text] == expected


def test_one_text_has_no_switch_for_two(show):
    browser = show(head_view(random_weights(5, 5), WORDS))
    assert not find(browser, "#sentences")[0].is_displayed()


def test_there_is_no_switch_for_special_tokens_where_there_are_none(show):
    browser = show(head_view(random_weights(5, 5), WORDS))
    assert not find(browser, "#special")[0].is_displayed()


@every_view
@pytest.mark.parametrize("width", [400, 1400])
def test_controls_stay_in_sight_and_the_page_fits(show, window, kind, width):
    browser = show(VIEWS[kind](range(60), title="sixty"))
    window(width, 700)
    settle(browser)
    if kind == "model":
        find(browser, ".grid button")[1].click()
    browser.execute_script("scrollTo(0, 200)")
    settle(browser)
    assert browser.execute_script("return scrollY") == 200
    place = find(browser, "#controls")[0].rect
    top = browser.execute_script(
        "return document.getElementById('controls').getBoundingClientRect().top"
    )
    assert 0 <= top < 100
    assert place["height"] > 0
    assert browser.execute_script("return document.body.scrollWidth") <= width


def test_lines_follow_where_the_page_is_scrolled_to(show):
    weights = np.zeros((200, 200))
    weights[150, 151] = 1
    browser = show(head_view(weights, range(200)))
    painted = """const canvas = document.querySelector(".lines canvas");
        const {data, width} = canvas.getContext("2d").getImageData(
            0, 0, canvas.width, canvas.height);
        const ratio = canvas.height / canvas.clientHeight;
        const place = canvas.getBoundingClientRect().top;
        const rows = data.reduce((all, part, i) => {
            if (i % 4 === 3 && part > 100) all.push(Math.floor(i / 4 / width));
            return all;
        }, []);
        const token = (id, i) => {
            const node = document.querySelectorAll(`#${id} li`)[i];
            const {top, bottom} = node.getBoundingClientRect();
            return (top + bottom) / 2;
        };
        return [rows.length, place + rows[0] / ratio, place + rows.at(-1) / ratio,
            token("queries", 150), token("keys", 151), canvas.clientHeight]"""
    settle(browser)
    assert browser.execute_script(painted)[0] == 0
    browser.execute_script("scrollTo(0, 1800)")
    settle(browser)
    count, first, last, query, key, height = browser.execute_script(painted)
    assert count > 50
    assert abs(first - query) < 3
    assert abs(last - key) < 3
    assert height < 1000, "the canvas is as high as the window, not as the page"


def test_weights_that_were_left_out_are_said_to_be_small(show):
    weights = peaked(12, 12, 130, 130)
    browser = show(head_view(weights, range(130)))
    assert "those below 0.005 are left out" in texts(browser, "#note")[0]
    point_at(browser, 5)
    shown = texts(browser, "#keys .weight")
    for text, weight in zip(shown, weights[0, 0, 5], strict=True):
        assert text == "<0.005" if weight < 0.005 else abs(float(text) - weight) < 0.01
    point_at(browser, 7, "keys")
    shown = texts(browser, "#queries .weight")
    for text, weight in zip(shown, weights[0, 0, :, 7], strict=True):
        assert text == "<0.005" if weight < 0.005 else abs(float(text) - weight) < 0.01


@every_view
def test_tokens_appear_as_they_are_and_none_runs(show, kind):
    browser = show(VIEWS[kind](TOKENS, title=TOKENS[0]))
    assert texts(browser, "#queries .token") == SHOWN
    assert texts(browser, "#keys .token") == SHOWN
    assert texts(browser, "h1") == [TOKENS[0]]
    assert browser.title == TOKENS[0]
    if kind == "model":
        find(browser, ".grid button")[0].click()
    find(browser, "#queries .token")[0].click()
    assert TOKENS[0] in texts(browser, "#said")[0]
    assert browser.execute_script("return window.broken") is None
    assert find(browser, "img") == []


def test_nan_and_a_query_that_sees_nothing_are_shown(show):
    weights = [[0, 0, 0], [np.nan, 0.5, 0.5], [0, 1, 0]]
    browser = show(head_view(weights, WORDS[:3]))
    point_at(browser, 0)
    assert numbers(browser) == [0, 0, 0]
    assert texts(browser, "#said") == ["Write attends to nothing"]
    point_at(browser, 1)
    assert texts(browser, "#keys .weight") == ["NaN", "0.5000", "0.5000"]


def test_weights_of_attention_are_taken_as_they_come(show):
    query = normal(4, 5, 8)
    _, weights = attnpy.attention(query, query, query, causal=True, return_weights=True)
    browser = show(head_view(weights, WORDS, heads=range(4)))
    point_at(browser, 4)
    np.testing.assert_allclose(
        numbers(browser), weights[:, 4].mean(axis=0), atol=1.01e-4
    )


# ---- The model view ------------------------------------------------------------------


def darkness(browser):
    """Of each thumbnail's columns, as many as pixels, how opaque they are."""
    settle(browser)
    settle(browser)
    return browser.execute_script(
        """return [...document.querySelectorAll(".grid canvas")].map((canvas) => {
            const {data, width} = canvas.getContext("2d").getImageData(
                0, 0, canvas.width, canvas.height);
            const columns = Array(width).fill(0);
            for (let i = 3; i < data.length; i += 4) {
                columns[(i >> 2) % width] += data[i] / 255 / canvas.height;
            }
            return columns;
        })"""
    )


def test_each_head_has_a_thumbnail(show):
    weights = np.zeros((2, 3, 5, 5))
    weights[..., 0] = 1
    weights[1, 2] = 0
    browser = show(model_view(weights, WORDS))
    assert texts(browser, ".grid span") == ["", "0", "1", "2", "0", "1"]
    for mode in (0, 1):
        find(browser, f'#as option[value="{mode}"]')[0].click()
        columns = darkness(browser)
        assert len(columns) == 6
        assert all(sum(each) > 0 for each in columns[:5])
        assert sum(columns[5]) == 0


@pytest.mark.parametrize("count", [15, 73, 200])
def test_a_stripe_is_in_the_matrix_at_any_size(show, count):
    weights = np.zeros((1, 3, count, count))
    for head, column in enumerate((0, count // 2, count - 1)):
        weights[0, head, :, column] = 1
    browser = show(model_view(weights, range(count)))
    find(browser, '#as option[value="1"]')[0].click()
    for columns, place in zip(darkness(browser), (0, 0.5, 1), strict=True):
        dark = [i for i, column in enumerate(columns) if column > 0.9]
        width = len(columns)
        assert 1 <= len(dark) <= width / min(count, width) + 2
        assert abs(np.mean(dark) - place * width) <= width / min(count, width) + 1


def test_a_click_enlarges_a_head_and_escape_leads_back(show):
    from selenium.webdriver import ActionChains, Keys

    weights = random_weights(2, 3, 5, 5)
    browser = show(model_view(weights, WORDS))
    assert not find(browser, ".tokens")[0].is_displayed()
    find(browser, ".grid button")[4].click()
    assert not find(browser, ".grid")[0].is_displayed()

    def shows(layer, head):
        assert f"layer {layer}, head {head}" in find(browser, "#back")[0].text
        for side, expected in (
            ("queries", weights[layer, head, 2]),
            ("keys", weights[layer, head, :, 2]),
        ):
            point_at(browser, 2, side)
            other = {"queries": "keys", "keys": "queries"}[side]
            np.testing.assert_allclose(numbers(browser, other), expected, atol=0.51e-4)

    shows(1, 1)
    _, previous, following = find(browser, "#back button")
    following.click()
    shows(1, 2)
    following.click()
    shows(0, 0)
    previous.click()
    shows(1, 2)
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert find(browser, ".grid")[0].is_displayed()
    assert not find(browser, ".tokens")[0].is_displayed()
    assert browser.switch_to.active_element == find(browser, ".grid button")[5]
    find(browser, ".grid button")[0].click()
    shows(0, 0)
    find(browser, "#back button")[0].click()
    assert find(browser, ".grid")[0].is_displayed()


def test_threshold_and_special_tokens_change_the_thumbnails(show):
    tokens = ["[CLS]", "a", "b", "c", "[SEP]"]
    weights = np.full((1, 2, 5, 5), 0.05)
    weights[..., 0] = 0.8
    browser = show(model_view(weights, tokens))
    find(browser, '#as option[value="1"]')[0].click()
    set_slider(browser, 0)
    everything = darkness(browser)[1]
    assert all(column > 0.1 for column in everything)
    assert set_slider(browser, 5) == 0.2
    stripe = darkness(browser)[1]
    assert max(stripe[len(stripe) // 4 :]) == 0 < stripe[0]
    find(browser, "#special input")[0].click()
    assert max(darkness(browser)[1]) == 0


# ---- The neuron view -----------------------------------------------------------------


def cells_of(browser, selector):
    """The texts of a table's cells, row by row, without its header."""
    return browser.execute_script(
        """return [...document.querySelectorAll(arguments[0])].slice(1).map(
            (row) => [...row.cells].map((cell) => cell.textContent))""",
        f"{selector} tr",
    )


@pytest.mark.parametrize("causal", [False, True])
def test_elements_make_the_score_and_scores_the_weight(show, causal):
    query, key = normal(2, 4, 5, 8), normal(2, 2, 7, 8, seed=1)
    _, weights = attnpy.attention(
        query, key, key, causal=causal, scale=0.5, return_weights=True
    )
    keys = [f"k{i}" for i in range(7)]
    browser = show(neuron_view(query, key, WORDS, keys, causal=causal, scale=0.5))
    find(browser, '#layers option[value="1"]')[0].click()
    find(browser, '#heads option[value="3"]')[0].click()
    for i, j in ((0, 0), (2, 6), (4, 3)):
        find(browser, "#queries .token")[i].click()
        find(browser, "#keys .token")[j].click()
        own, others = query[1, 3, i].astype(float), key[1, 1].astype(float)
        rows = cells_of(browser, "#keys")
        assert [row[0] for row in rows] == keys
        scores = [float(row[3]) for row in rows]
        np.testing.assert_allclose(scores, 0.5 * others @ own, atol=0.0051)
        shown = [float(row[4]) for row in rows]
        np.testing.assert_allclose(shown, weights[1, 3, i], atol=0.51e-4)
        elements = np.array(cells_of(browser, "#elements"))
        products = own * others[j]
        for column, expected in (
            (0, range(8)),
            (1, own),
            (2, others[j]),
            (3, products),
            (5, products.cumsum()),
        ):
            np.testing.assert_allclose(
                elements[:, column].astype(float), expected, atol=0.0011
            )
        result = texts(browser, "#elements p")[0]
        found = re.fullmatch(
            r"sum (\S+) x scale 0.5 = score (\S+); softmax over the keys: "
            r"weight (\S+)( \(0 where the mask hides the key\))?",
            result,
        )
        expected = [products.sum(), products.sum() / 2, weights[1, 3, i, j]]
        shown = [float(text) for text in found.groups()[:3]]
        np.testing.assert_allclose(shown, expected, atol=0.0011)
        assert (found[4] is not None) == (causal and j > i + 2)


def test_elements_can_be_sorted_by_their_products(show):
    query, key = normal(5, 8), normal(5, 8, seed=1)
    browser = show(neuron_view(query, key, WORDS))
    find(browser, "#sorted input")[0].click()
    rows = np.array(cells_of(browser, "#elements"))
    products = query[0].astype(float) * key[0]
    order = np.argsort(-abs(products))
    assert rows[:, 0].astype(int).tolist() == order.tolist()
    np.testing.assert_allclose(
        rows[:, 5].astype(float), products[order].cumsum(), atol=0.0011
    )


def test_arrows_choose_queries_and_keys(show):
    from selenium.webdriver import ActionChains, Keys

    query, key = normal(5, 8), normal(5, 8, seed=1)
    browser = show(neuron_view(query, key, WORDS))
    find(browser, "#queries .token")[1].click()
    ActionChains(browser).send_keys(Keys.DOWN).perform()
    find(browser, "#keys .token")[4].click()
    ActionChains(browser).send_keys(Keys.UP, Keys.UP).perform()
    elements = np.array(cells_of(browser, "#elements"))
    products = query[2].astype(float) * key[2]
    np.testing.assert_allclose(elements[:, 3].astype(float), products, atol=0.0011)
    assert texts(browser, "#keys tr.chosen .token") == [WORDS[2]]
    assert texts(browser, "#queries .token.chosen") == [WORDS[2]]


def test_strips_are_blue_above_zero_and_orange_below(show):
    query, key = [[1.0, -1.0, 0.0]], [[2.0, 2.0, 2.0]]
    browser = show(neuron_view(query, key, ["x"]))
    colors = browser.execute_script(
        """return [...document.querySelectorAll("#keys canvas")].map((canvas) =>
            [1, 3, 5].map((sixth) => [...canvas.getContext("2d").getImageData(
                canvas.width * sixth / 6, canvas.height / 2, 1, 1).data]))"""
    )
    blue, orange, none = [33, 102, 172, 255], [178, 84, 12, 255], [0, 0, 0, 0]
    assert colors == [[blue, orange, none], [blue] * 3, [blue, orange, none]]


def test_hidden_keys_are_grey(show):
    query, key = normal(2, 5, 8), normal(2, 5, 8, seed=1)
    browser = show(neuron_view(query, key, WORDS, causal=True))
    for i in (0, 3):
        find(browser, "#queries .token")[i].click()
        grey = browser.execute_script(
            """return [...document.querySelectorAll("#keys tr")].slice(1).map(
                (row) => getComputedStyle(row.cells[0]).opacity)"""
        )
        assert [opacity != "1" for opacity in grey] == [j > i for j in range(5)]
    browser = show(neuron_view(query, key, WORDS))
    assert not find(browser, "#keys tr.hidden")


FAMILIES = [*families.DECODERS, "bert"]


@pytest.mark.quick
def test_heads_of_several_sizes_are_refused():
    model = CausalDecoder.from_config(embedding_gemma.CONFIG)
    tokenizer = OtherTokenizer()
    tokenizer.encode = lambda text: [1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"heads of one size .*, got sizes of 6, 10$"):
        neuron_view(model, tokenizer, "x")


@pytest.mark.quick
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_models_queries_and_keys_make_its_weights_or_are_refused(kind):
    rng = np.random.default_rng(0)
    if kind == "bert":
        model = BertEncoder.from_config(families.ENCODERS[kind], rng=rng)
    else:
        model = CausalDecoder.from_config(families.DECODERS[kind], rng=rng)
    tokenizer = OtherTokenizer()
    tokenizer.encode = lambda text: [1, 2, 3, 4, 5]
    others = ("bloom", "gpt_oss", "mpt")  # with sinks or biases
    if getattr(model, "softcap", None) is not None or kind in others:
        with pytest.raises(ValueError, match=r"^model: .*queries and keys alone"):
            neuron_view(model, tokenizer, "x")
        return
    data = data_of(neuron_view(model, tokenizer, "x", title="of a model"))
    weights = model(np.array([1, 2, 3, 4, 5]), return_weights=True).weights
    query, key = (
        np.frombuffer(base64.b64decode(data[name]), "<i2").reshape(
            *weights.shape[:2], 5, -1
        )
        * np.array(data[f"{name}_units"]).reshape(*weights.shape[:2], 1, 1)
        for name in ("query", "key")
    )
    scores = data["scale"] * query @ key.swapaxes(-1, -2)
    exponentials = np.where(weights > 0, np.exp(scores), 0)
    made = exponentials / exponentials.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(made, weights, atol=3e-3)
    assert (data["hidden"] is None) == (kind == "bert")


@pytest.mark.quick
def test_a_model_with_biases_or_with_a_mask_beside_it_is_refused():
    rng = np.random.default_rng(0)
    model = BertEncoder.from_config(families.ENCODERS["mpnet"], rng=rng)
    model.relative_bias[...] = rng.standard_normal(model.relative_bias.shape)
    tokenizer = OtherTokenizer()
    tokenizer.encode = lambda text: [1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"^model: .*got a BertEncoder with other"):
        neuron_view(model, tokenizer, "x")
    with pytest.raises(TypeError, match=r"^model: expected no key_labels, mask"):
        neuron_view(model, tokenizer, "x", causal=True)
    with pytest.raises(TypeError, match=r"^model: expected one of attnpy.models"):
        neuron_view(Model(), tokenizer, "x")


def test_mask_and_window_of_a_neuron_view_hide_keys(show):
    query, key = normal(5, 8), normal(5, 8, seed=1)
    mask = np.eye(5, dtype=bool)
    for options in ({"mask": mask}, {"window": (0, 0)}):
        browser = show(neuron_view(query, key, WORDS, **options))
        find(browser, "#queries .token")[3].click()
        assert [float(row[4]) for row in cells_of(browser, "#keys")] == [0, 0, 0, 1, 0]


# ---- In a notebook -------------------------------------------------------------------


def in_notebook(outputs):
    """A page into which outputs are put as a notebook does it: scripts do not run."""
    text = json.dumps(outputs).replace("<", r"\u003c")
    return f"<body><script>document.body.innerHTML = {text}</script>"


def test_two_views_in_one_notebook_do_not_interfere(show):
    first, second = random_weights(5, 5), random_weights(2, 5, 5)
    views = [head_view(weights, WORDS) for weights in (first, second)]
    browser = show(in_notebook("".join(view._repr_html_() for view in views)))
    frames = find(browser, "iframe")
    for frame, n_heads in zip(frames, (1, 2), strict=True):
        browser.switch_to.frame(frame)
        buttons = find(browser, "#heads .head")
        assert len(buttons) == n_heads
        if n_heads == 2:
            buttons[0].click()
            buttons[1].click()
        find(browser, "#queries .token")[2].click()
        browser.switch_to.default_content()
    for frame, weights in zip(frames, (first, second[1]), strict=True):
        browser.switch_to.frame(frame)
        find(browser, "#queries .token")[2].send_keys("")  # gives it the focus
        np.testing.assert_allclose(numbers(browser), weights[2], atol=0.51e-4)
        browser.switch_to.default_content()


@every_view
def test_the_page_is_shown_where_it_may_run_and_the_picture_where_not(show, kind):
    trusted, other = VIEWS[kind](WORDS), VIEWS[kind](WORDS, title="another")
    browser = show(in_notebook(trusted._repr_html_() + without_style_and_frame(other)))
    page, hidden = find(browser, "iframe")
    away, picture = find(browser, "img")
    assert page.is_displayed() and picture.is_displayed()
    assert not hidden.is_displayed() and not away.is_displayed()
    settle(browser)
    assert picture.get_property("naturalWidth") > 50
    assert "trust the notebook" in find(browser, "body")[0].text
    browser.switch_to.frame(page)
    assert find(browser, "#controls")[0].is_displayed()
    browser.switch_to.default_content()


@every_view
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(show, kind, scheme):
    browser = show(VIEWS[kind](WORDS, title="A title"))
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    if kind == "model":
        find(browser, ".grid button")[1].click()
    find(browser, "#queries .token")[2].click()
    selectors = ["h1", ".token", "#said", "#controls label"]
    selectors += {
        "head": [".token.chosen", "#keys .weight", "#heads .head", "#heads .plain"],
        "model": [".token.chosen", "#keys .weight", "#back button", "#back span"],
        "neuron": ["#keys .number", "#keys th", "#elements p", "#elements td"],
    }[kind]
    for selector in selectors:
        node = find(browser, selector)[0]
        color = node.value_of_css_property("color")
        back = browser.execute_script(
            """for (let node = arguments[0]; node; node = node.parentElement) {
                const color = getComputedStyle(node).backgroundColor;
                if (color !== "rgba(0, 0, 0, 0)") return color;
            }""",
            node,
        )
        # 4.5 to 1 is what WCAG 2 asks for, in 1.4.3.
        low, high = sorted((luminance(color), luminance(back)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, selector
    back = find(browser, "body")[0].value_of_css_property("background-color")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (luminance(back) > 0.5) == (scheme == "light")


def luminance(color):
    """The relative luminance of "rgb(r, g, b)", from 0 to 1, as WCAG 2 defines it."""
    parts = np.array([int(part) for part in re.findall(r"\d+", color)[:3]]) / 255
    linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]
