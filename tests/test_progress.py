"""Bars: on a terminal, of what takes long, where there is tqdm; else nothing."""

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support import sentences
from support.arrays import normal, random_weights
from support.errors import refused

from attnpy import _progress, checkpoints, plot
from attnpy.layers import MultiHeadAttention
from attnpy.models import BertEncoder, CausalDecoder, CrossEncoder, SentenceEncoder

pytestmark = pytest.mark.quick
tqdm = pytest.importorskip("tqdm")

TENSORS = {
    "in_proj_weight": normal(18, 6),
    "in_proj_bias": normal(18),
    "out_proj.weight": normal(6, 6),
    "out_proj.bias": normal(6),
}


def generating(folder, **options):
    model = CausalDecoder(1, 16, 4, 32, vocab_size=9, rng=np.random.default_rng(0))
    return model.generate([1, 2], 5, **options)


def loading(folder, **options):
    mha = MultiHeadAttention(6, 2, bias=True)
    checkpoints.load(mha, TENSORS, "torch_attention", **options)
    return mha.W_q


def reading_a_model(folder, **options):
    model = BertEncoder.from_pretrained(folder, **options)
    return model.token_embedding


def reading_an_encoder(folder, **options):
    encoder = SentenceEncoder.from_pretrained(folder, **options)
    return encoder.model.token_embedding


def encoding(folder, **options):
    encoder = SentenceEncoder.from_pretrained(folder, progress=False)
    return encoder.encode(sentences.TEXTS, batch_size=2, **options)


def searching(folder, **options):
    encoder = SentenceEncoder.from_pretrained(folder, progress=False)
    return encoder.search("the cat", sentences.TEXTS, **options).scores


def scoring(folder, **options):
    sentences.write_scorer(folder)
    encoder = CrossEncoder.from_pretrained(folder, progress=False)
    return encoder.predict(sentences.PAIRS, batch_size=2, **options)


def drawing_weights(folder, **options):
    figure = plot.head_grid(random_weights(3, 4, 4), **options)
    return np.array([len(figure.axes)])


def drawing_scores(folder, **options):
    figure = plot.score_grid(normal(3, 4, 4), **options)
    return np.array([len(figure.axes)])


# What the bar ends with: how many there are, and of what.
JOBS = {
    generating: " token/s",
    loading: "672/672",  # bytes of float32
    reading_a_model: "B/s",
    reading_an_encoder: "B/s",
    encoding: "7/7",
    searching: "7/7",
    scoring: "9/9",
    drawing_weights: "3/3",
    drawing_scores: "3/3",
}
NEEDS = {
    "reading": ("tokenizers", "safetensors"),
    "encoding": ("tokenizers", "safetensors"),
    "searching": ("tokenizers", "safetensors"),
    "scoring": ("tokenizers", "safetensors"),
    "drawing": ("matplotlib",),
}


@pytest.fixture(params=JOBS, ids=lambda job: job.__name__)
def job(request, tmp_path):
    """A function of its options that does one of the jobs."""
    needs = NEEDS.get(request.param.__name__.split("_")[0], ())
    for package in needs:
        pytest.importorskip(package)
    if "matplotlib" in needs:
        pytest.importorskip("matplotlib").use("Agg")
    if "tokenizers" in needs and request.param is not scoring:
        sentences.write(tmp_path)
    yield lambda **options: request.param(tmp_path, **options)
    if "matplotlib" in needs:
        sys.modules["matplotlib.pyplot"].close("all")


class Terminal(io.StringIO):
    """A terminal, of which we know what is on it."""

    def isatty(self):
        return True

    def shown(self):
        """What has come since the last time."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


@pytest.fixture
def terminal(monkeypatch):
    """Standard error is a terminal, on which every bar is shown at once."""
    monkeypatch.setattr(_progress, "DELAY", 0)
    terminal = Terminal()
    monkeypatch.setattr(_progress, "sys", SimpleNamespace(stderr=terminal))
    return terminal


def test_a_bar_is_silent_where_there_is_no_terminal(job, capsys):
    for progress in (None, True, False):
        job(progress=progress)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_goes_to_the_end(job, request, terminal):
    promised = JOBS[request.node.callspec.params["job"]]
    silent = job(progress=False)
    assert terminal.shown() == ""
    for options in ({}, {"progress": True}):
        np.testing.assert_array_equal(job(**options), silent)
        shown = terminal.shown()
        assert "100%" in shown
        assert promised in shown


def test_what_is_short_has_no_bar(job, terminal, monkeypatch):
    monkeypatch.setattr(_progress, "DELAY", 1000)
    job(progress=True)
    assert terminal.shown() == ""


def test_a_bar_needs_tqdm_only_where_it_is_asked_for(
    job, terminal, monkeypatch, capsys
):
    expected = job(progress=False)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    np.testing.assert_array_equal(job(), expected)
    assert terminal.shown() == ""
    with pytest.raises(ImportError, match="pip install tqdm"):
        job(progress=True)
    with refused(TypeError, "progress"):
        job(progress="yes")


def test_tokens_that_are_printed_have_no_bar_unless_it_is_asked_for(terminal):
    generating(None, callback=lambda tokens: None)
    assert terminal.shown() == ""
    generating(None, callback=lambda tokens: None, progress=True)
    assert "5/5" in terminal.shown()


def test_a_bar_of_generated_tokens_ends_where_all_have_ended(terminal):
    first = int(generating(None, progress=False)[0])
    generating(None, stop=first)
    assert "1/5" in terminal.shown()
