"""Encoders of texts, saved: read again here and by sentence-transformers."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from support import gguf_files, rerankers, sentences
from support.comparisons import assert_same_bits
from support.errors import refused
from support.interrupts import interrupted_everywhere
from support.sentences import PAIRS, TEXTS

from attnpy import _files
from attnpy.models import BertEncoder, CrossEncoder, SentenceEncoder
from attnpy.models._pooling import MODES

sentences.require()


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))


def content(path):
    return json.loads(path.read_text("utf-8"))


# ---- Vectors -------------------------------------------------------------------------

POOLINGS = [*MODES, ["cls", "mean"], ["mean", "cls"], ["max", "max"]]
KINDS = ["bert", "roberta", "modernbert", "distilbert", "qwen3"]


@pytest.mark.quick
@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_what_is_saved_is_read_again(tmp_path, pooling):
    (tmp_path / "a").mkdir()
    config = {
        "prompts": {"query": "find : ", "document": ""},
        "default_prompt_name": "query",
        "similarity_fn_name": "dot",
        "truncate_dim": 5,
    }
    mode = {"pooling_mode": pooling, "include_prompt": False}
    steps = ("Dense", "Normalize")
    size = 12 * (1 if isinstance(pooling, str) else len(pooling))
    sentences.write_dense(tmp_path / "a" / "2_Dense", size, 6)
    sides = {"truncation_side": "left"}
    sentences.write(tmp_path / "a", "bert", mode, steps, config, **sides)
    ours = SentenceEncoder.from_pretrained(tmp_path / "a", max_length=9)
    ours.save_pretrained(tmp_path / "b")
    again = SentenceEncoder.from_pretrained(tmp_path / "b")
    assert repr(again) == repr(ours)
    assert again.tokenizer.truncation == ours.tokenizer.truncation
    texts = [*TEXTS, sentences.LONG]
    assert_same_bits(again.encode(texts), ours.encode(texts))
    again.save_pretrained(tmp_path / "b")  # in its own place
    assert names_in(tmp_path / "b") == [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    again = SentenceEncoder.from_pretrained(tmp_path / "b")
    assert_same_bits(again.encode(texts), ours.encode(texts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken", ["mean", "cls"]])
def test_sentence_transformers_reads_it(tmp_path, kind, pooling):
    theirs = pytest.importorskip("sentence_transformers")
    (tmp_path / "a").mkdir()
    mode = {"pooling_mode": pooling}
    prompts = {"prompts": {"query": "find : "}, "similarity_fn_name": "dot"}
    sentences.write(tmp_path / "a", kind, mode, ("Normalize",), prompts)
    ours = SentenceEncoder.from_pretrained(tmp_path / "a", max_length=12)
    ours.save_pretrained(tmp_path / "b")
    other = theirs.SentenceTransformer(str(tmp_path / "b"), device="cpu")
    assert other.max_seq_length == 12
    assert other.similarity_fn_name == "dot"
    texts = [text for text in (*TEXTS, sentences.LONG) if text]
    for options in ({}, {"prompt_name": "query"}):
        expected = other.encode(texts, **options)
        found = ours.encode(texts, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_one_of_a_gguf_file_may_be_saved(tmp_path):
    gguf_files.require()
    config = {**sentences.families.ENCODERS["bert"], "vocab_size": len(sentences.WORDS)}
    found = gguf_files.encoder(config, sentences.WORDS)
    path = gguf_files.write(tmp_path / "e.gguf", *found)
    ours = SentenceEncoder.from_gguf(path, prompts={"query": "find "})
    ours.save_pretrained(tmp_path / "b")
    again = SentenceEncoder.from_pretrained(tmp_path / "b")
    assert again.prompts == ours.prompts
    assert_same_bits(again.encode(TEXTS), ours.encode(TEXTS))


# ---- Scores --------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("n_labels", [1, 3])
def test_a_scorer_is_read_again(tmp_path, kind, n_labels):
    (tmp_path / "a").mkdir()
    sentences.write_scorer(tmp_path / "a", kind, n_labels)
    ours = CrossEncoder.from_pretrained(
        tmp_path / "a", activation_fn="tanh", max_length=13
    )
    ours.prompts["short"] = "find "
    ours.save_pretrained(tmp_path / "b")
    again = CrossEncoder.from_pretrained(tmp_path / "b")
    assert repr(again) == repr(ours)
    assert_same_bits(again.predict(PAIRS), ours.predict(PAIRS))
    theirs = pytest.importorskip("sentence_transformers")
    other = theirs.CrossEncoder(str(tmp_path / "b"), device="cpu")
    pairs = [pair for pair in PAIRS if all(pair)]
    np.testing.assert_allclose(
        ours.predict(pairs), other.predict(pairs), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("false_token", [4, None])
def test_a_language_model_that_scores_is_read_again(tmp_path, false_token):
    pytest.importorskip("jinja2")
    rerankers.write(tmp_path)
    scores = {"true_token_id": 3, "false_token_id": false_token}
    prompts = {"prompts": {"x": "the sun"}, "default_prompt_name": "x"}
    rerankers.write_modules(tmp_path, scores, **prompts)
    ours = CrossEncoder.from_pretrained(tmp_path)
    ours.save_pretrained(tmp_path / "b")
    again = CrossEncoder.from_pretrained(tmp_path / "b")
    assert repr(again) == repr(ours)
    assert again.chat_template_kwargs == ours.chat_template_kwargs
    scores = ours.predict(PAIRS)
    assert_same_bits(again.predict(PAIRS), scores)
    theirs = pytest.importorskip("sentence_transformers", minversion="6.0")
    other = theirs.CrossEncoder(str(tmp_path / "b"), device="cpu")
    expected = other.predict(PAIRS)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_a_template_that_is_gone_is_not_left_behind(tmp_path):
    pytest.importorskip("jinja2")
    rerankers.write(tmp_path, n_labels=1)
    ours = CrossEncoder.from_pretrained(tmp_path)
    assert ours.chat_template is not None
    plain = CrossEncoder(ours.model, ours.tokenizer)
    plain.save_pretrained(tmp_path)
    assert not (tmp_path / "chat_template.jinja").exists()
    again = CrossEncoder.from_pretrained(tmp_path)
    assert again.chat_template is None
    assert_same_bits(again.predict(PAIRS), plain.predict(PAIRS))


def test_a_reranker_of_a_gguf_file_may_be_saved(tmp_path):
    gguf_files.require("jinja2")
    for has_head in (True, False):
        metadata, arrays, _ = rerankers.in_gguf(has_head=has_head)
        key, text = (
            "tokenizer.chat_template.rerank",
            "<Instruct>: x\n{query} {document}",
        )
        path = gguf_files.write(tmp_path / "m.gguf", {**metadata, key: text}, arrays)
        ours = CrossEncoder.from_gguf(path)
        ours.save_pretrained(tmp_path / "b")
        again = CrossEncoder.from_pretrained(tmp_path / "b")
        assert again.prompts == {"instruction": "x"}
        assert_same_bits(again.predict(PAIRS), ours.predict(PAIRS))


# ---- What is refused -----------------------------------------------------------------


def test_what_a_folder_cannot_say_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    sentences.write(tmp_path / "a")
    plain = SentenceEncoder.from_pretrained(tmp_path / "a")
    own = SentenceEncoder(plain.model, plain.tokenizer, steps=[lambda x, n: x])
    with refused(ValueError, "steps"):
        own.save_pretrained(tmp_path / "b")
    with refused(TypeError, "folder"):
        plain.save_pretrained(3)
    made = BertEncoder(1, 12, 3, 8, vocab_size=30)
    with refused(ValueError, "config"):
        SentenceEncoder(made, plain.tokenizer).save_pretrained(tmp_path / "b")
    (tmp_path / "c").mkdir()
    sentences.write_scorer(tmp_path / "c")
    scorer = CrossEncoder.from_pretrained(tmp_path / "c", activation_fn=np.tanh)
    with refused(ValueError, "activation_fn"):
        scorer.save_pretrained(tmp_path / "b")
    assert not os.path.exists(tmp_path / "b")


# ---- Saves that do not end -----------------------------------------------------------


@pytest.fixture
def saves(tmp_path):
    """A folder, what saves an old and a new encoder there, and what is found there."""
    encoders = []
    for name, pooling in (("old", "mean"), ("new", "cls")):
        (tmp_path / name).mkdir()
        size = {"hidden_size": 12 if name == "old" else 9}
        mode = {"pooling_mode": pooling}
        sentences.write(tmp_path / name, "bert", mode, ("Normalize",), changes=size)
        encoders.append(SentenceEncoder.from_pretrained(tmp_path / name))
    expected = [encoder.encode(TEXTS[0]).tolist() for encoder in encoders]

    def found():
        """Return 0 for the old encoder, 1 for the new one, None for no model."""
        if not (tmp_path / "f" / "config.json").exists():
            with pytest.raises(FileNotFoundError):
                SentenceEncoder.from_pretrained(tmp_path / "f")
            return None
        encoder = SentenceEncoder.from_pretrained(tmp_path / "f")
        return expected.index(encoder.encode(TEXTS[0]).tolist())

    old, new = encoders
    old.save_pretrained(tmp_path / "f")
    return tmp_path / "f", old.save_pretrained, new.save_pretrained, found


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class KilledError(BaseException):
    """The end of a process, after which nothing of it runs."""


def test_a_save_that_is_killed_leaves_the_old_model_or_the_new_or_none(
    saves, monkeypatch
):
    states = killed(saves, monkeypatch)
    # One replacement hides the old model, the last shows the new one.
    first = states.index(None)
    assert first > 0
    assert states[first:] == [None] * (len(states) - first - 2) + [1, "whole"]
    assert states[:first] == [0] * first


def test_a_save_of_other_weights_leaves_a_model_at_any_moment(saves, monkeypatch):
    folder = saves[0]
    old = SentenceEncoder.from_pretrained(folder)
    new = SentenceEncoder.from_pretrained(folder)
    new.model.token_embedding = np.flip(new.model.token_embedding, 0).copy()
    expected = [each.encode(TEXTS[0]).tolist() for each in (old, new)]

    def which():
        encoder = SentenceEncoder.from_pretrained(folder)
        return expected.index(encoder.encode(TEXTS[0]).tolist())

    changed = folder, old.save_pretrained, new.save_pretrained, which
    states = killed(changed, monkeypatch)
    assert states.count(1) >= 1
    assert states == [0] * states.count(0) + [1] * states.count(1) + ["whole"]


def killed(saves, monkeypatch):
    """What a save leaves if it is killed before each replacement and removal."""
    folder, save_old, save_new, found = saves
    states, calls = [], {name: getattr(os, name) for name in ("replace", "unlink")}
    while not states or states[-1] != "whole":
        left = len(states)

        def counted(name, *paths):
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            calls[name](*paths)

        for name in calls:
            monkeypatch.setattr(os, name, lambda *paths, n=name: counted(n, *paths))
        try:
            save_new(folder)
        except KilledError:
            states.append(None)
        else:
            states.append("whole")
        monkeypatch.undo()
        states[-1] = states[-1] or found()
        save_old(folder)
        assert found() == 0
    return states


class OutOfTimeError(Exception):
    """What a handler of a signal may raise instead of KeyboardInterrupt."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, OutOfTimeError])
def test_a_save_that_is_interrupted_leaves_the_old_model_or_the_new(saves, error):
    folder, save_old, save_new, found = saves
    only = str(Path(_files.__file__))
    states, names = [], names_in(folder)
    for interrupted in interrupted_everywhere(
        lambda: save_new(folder), files=(only,), error=error
    ):
        states.append(found())
        assert interrupted or states[-1] == 1
        if states[-1] == 1:
            save_old(folder)
        left = [name for name in names_in(folder) if name not in names]
        assert len(left) <= 1  # where the interrupt was in the removal of it
        for name in left:
            (folder / name).unlink()
    assert states == sorted(states)


@pytest.mark.parametrize("kind", ["disk", "replacement"])
def test_a_save_that_fails_changes_nothing(saves, monkeypatch, kind):
    folder, _, save_new, found = saves
    before, n = contents(folder), 0
    if kind == "replacement":

        def failing(source, target):
            if not target.endswith((".tmp", "config.json")):
                raise PermissionError(errno.EACCES, "in use", target)
            os.rename(source, target)

        monkeypatch.setattr(os, "replace", failing)
        with pytest.raises(PermissionError):
            save_new(folder)
        assert contents(folder) == before
        return
    while True:
        left = n

        def opened(*arguments, **options):
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, "no space left", arguments[0])
            return open(*arguments, **options)

        monkeypatch.setattr(_files, "open", opened, raising=False)
        try:
            save_new(folder)
        except OSError as error:
            assert error.errno == errno.ENOSPC
        else:
            break
        assert contents(folder) == before
        n += 1
    assert n == len(before)
    assert found() == 1
