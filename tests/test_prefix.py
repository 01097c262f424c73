"""Prefixes, several answers and drafts change no token."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.comparisons import assert_same_bits
from support.errors import refused

from attnpy.models import CausalDecoder, Prefix
from attnpy.pages import PagedKVCache
from attnpy.positions import Rotary

RNG = np.random.default_rng(0)
PREFIX = RNG.integers(0, 50, 150)
IDS = RNG.integers(0, 50, (3, 20))
WHOLE = np.concatenate([np.broadcast_to(PREFIX, (3, 150)), IDS], axis=1)


def make(seed=0, layers=2, **options):
    options = {"rotary": Rotary(8), "dtype": np.float32, **options}
    return CausalDecoder(
        layers, 32, 4, 64, vocab_size=50, num_kv_heads=2, norm="rms",
        activation="swiglu", bias=False, tied=False, rng=np.random.default_rng(seed),
        **options,
    )  # fmt: skip


MODEL = make()
EXPECTED = MODEL.generate(WHOLE, 30)


@pytest.mark.quick
def test_a_prefix_gives_the_tokens_of_the_whole_text():
    prefix = MODEL.prefill(PREFIX)
    assert_same_bits(prefix.token_ids, PREFIX)
    assert_same_bits(MODEL.generate(IDS, 30, prefix=prefix), EXPECTED)
    assert_same_bits(MODEL.generate(IDS[0], 30, prefix=prefix), EXPECTED[0])
    tokens = list(MODEL.stream(IDS, 30, prefix=prefix))
    assert_same_bits(np.array(tokens).T, EXPECTED)
    lengths = [20, 3, 1]
    whole = MODEL.generate(WHOLE, 30, lengths=np.add(lengths, 150))
    assert_same_bits(MODEL.generate(IDS, 30, prefix=prefix, lengths=lengths), whole)


def test_prefixes_of_other_models_and_positions():
    for options in (
        {"rotary": None, "max_length": 300},
        {"window": (30, 0)},
        {"dtype": "bfloat16"},
        {"rotary": [Rotary(8), None]},
    ):
        model = make(**options)
        prefix = model.prefill(PREFIX)
        assert_same_bits(
            model.generate(IDS, 30, prefix=prefix), model.generate(WHOLE, 30)
        )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_file_of_a_prefix_has_the_bits(tmp_path, dtype):
    pytest.importorskip("safetensors")
    path, model = tmp_path / "prefix.safetensors", make(dtype=dtype)
    prefix = model.prefill(PREFIX)
    prefix.save(path)
    loaded = Prefix.load(path)
    assert_same_bits(loaded.token_ids, prefix.token_ids)
    for old, new in zip(prefix._caches, loaded._caches, strict=True):
        assert_same_bits((new.key, new.value), (old.key, old.value))
    expected = model.generate(WHOLE, 30)
    assert_same_bits(model.generate(IDS, 30, prefix=loaded), expected)
    assert path.read_bytes() == path.read_bytes()
    assert_same_bits(model.generate(IDS, 30, prefix=Prefix.load(path)), expected)


def test_a_prefix_of_int8(tmp_path):
    """Its tokens are those of int8 caches, in one piece, from a file, and in pages."""
    pytest.importorskip("safetensors")
    expected = MODEL.generate(WHOLE, 30, caches=MODEL.new_caches(3, 200, dtype="int8"))
    pools = MODEL.new_page_pools(9, dtype="int8")
    for caches in (
        MODEL.new_caches(1, 150, dtype="int8"),
        [PagedKVCache(pool, 1) for pool in pools],
    ):
        MODEL(PREFIX[np.newaxis], caches=caches)
        prefix = Prefix(PREFIX, caches)
        assert_same_bits(MODEL.generate(IDS, 30, prefix=prefix), expected)
        prefix.save(tmp_path / "int8.safetensors")
        loaded = Prefix.load(tmp_path / "int8.safetensors")
        assert_same_bits(MODEL.generate(IDS, 30, prefix=loaded), expected)


def test_a_file_serves_another_process(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "prefix.safetensors"
    MODEL.prefill(PREFIX).save(path)
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from test_prefix import *
print(MODEL.generate(IDS, 30, prefix=Prefix.load({str(path)!r})).tolist())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == str(EXPECTED.tolist()), run.stderr


def test_the_prefix_of_another_model_is_refused(tmp_path):
    prefix = MODEL.prefill(PREFIX)
    with refused(ValueError, "prefix"):
        make(1).generate(IDS, 3, prefix=prefix)
    with refused(ValueError, "prefix"):
        make(layers=3).generate(IDS, 3, prefix=prefix)
    same = make()
    assert_same_bits(same.generate(IDS, 30, prefix=prefix), EXPECTED)


def test_files_that_are_no_prefix_are_refused(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "other.safetensors"
    row = np.ones((1, 2, 3, 8), np.float32)
    good = {
        "token_ids": np.arange(3),
        "layers.0.key": row,
        "layers.0.value": row,
    }
    numpy.save_file(good, path)
    assert len(Prefix.load(path)) == 3
    for wrong in (
        {"token_ids": np.arange(4)},
        {"token_ids": np.arange(3.0)},
        {"token_ids": np.arange(3)[None]},
        {"token_ids": np.array([1, -1, 2])},
        {"layers.0.key": row[0]},
        {"layers.0.key": np.ones((1, 2, 3, 8), np.int64)},
        {"layers.0.value": row[:, :, :2]},
        {"layers.1.key": row},
        {"else": row},
    ):
        numpy.save_file(good | wrong, path)
        with pytest.raises((TypeError, ValueError), match="expected"):
            Prefix.load(path)


def test_a_prefix_in_pages_is_shared():
    pools = MODEL.new_page_pools(10)
    caches = [PagedKVCache(pool, 1) for pool in pools]
    MODEL(PREFIX[None], caches=caches)
    prefix = Prefix(PREFIX, caches)
    del caches
    assert_same_bits(MODEL.generate(IDS, 30, prefix=prefix), EXPECTED)
    assert [pool.num_free for pool in pools] == [8, 8]


@pytest.mark.quick
def test_several_answers_to_one_text():
    prefix, options = MODEL.prefill(PREFIX), {"temperature": 1.0, "top_k": 40}
    repeated = np.repeat(WHOLE, 4, axis=0)
    expected = MODEL.generate(repeated, 30, rng=np.random.default_rng(1), **options)
    options["num_samples"] = 4
    for ids, more in ((WHOLE, {}), (IDS, {"prefix": prefix})):
        rng = np.random.default_rng(1)
        answers = MODEL.generate(ids, 30, rng=rng, **options, **more)
        assert answers.shape == (3, 4, 30)
        assert_same_bits(answers.reshape(12, 30), expected)
    one = MODEL.generate([7], 5, rng=np.random.default_rng(2), **options)
    rng = np.random.default_rng(2)
    assert_same_bits(
        one, MODEL.generate([[7]] * 4, 5, rng=rng, temperature=1.0, top_k=40)
    )
    steps = list(MODEL.stream(IDS[0], 4, num_samples=2))
    assert [step.shape for step in steps] == [(2,)] * 4
    assert MODEL.generate(IDS[0], 4, num_samples=1).shape == (1, 4)


DRAFTS = {"lookup": "lookup", "small": make(5, 1), "itself": MODEL}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_drafts_change_no_greedy_token(data):
    draft = DRAFTS[data.draw(st.sampled_from(sorted(DRAFTS)))]
    batch = data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    word = rng.integers(0, data.draw(st.sampled_from([2, 5, 50])), (batch, 7))
    ids = np.tile(word, 5)[:, : data.draw(st.integers(1, 35))]
    options = {"stop": data.draw(st.sampled_from([(), (3,), (1, 2, 3, 4, 5, 6, 7)]))}
    if data.draw(st.booleans()):
        options["lengths"] = rng.integers(1, ids.shape[1], batch, endpoint=True)
    n = data.draw(st.integers(1, 40))
    caches, others = (MODEL.new_caches(batch, 80) for _ in range(2))
    expected = MODEL.generate(ids, n, caches=others, **options)
    most = data.draw(st.sampled_from([1, 2, 5, 15]))
    actual = MODEL.generate(
        ids, n, caches=caches, draft=draft, num_draft_tokens=most, **options
    )
    assert_same_bits(actual, expected)
    for one, other in zip(caches, others, strict=True):
        assert_same_bits(one.lengths, other.lengths)
        for b, length in enumerate(one.lengths):
            assert_same_bits(one.key[b, :, :length], other.key[b, :, :length])


@pytest.mark.quick
@pytest.mark.parametrize("name", DRAFTS)
def test_drafts_keep_the_tokens_of_a_sampled_sequence(name):
    options = {"temperature": 0.7, "top_p": 0.9}
    expected = MODEL.generate(IDS[0], 40, rng=np.random.default_rng(3), **options)
    rng = np.random.default_rng(3)
    actual = MODEL.generate(IDS[0], 40, rng=rng, draft=DRAFTS[name], **options)
    assert_same_bits(actual, expected)


def test_drafts_keep_the_distribution_of_sampled_batches():
    """Of the second and third token of many sequences, which are drawn out of step."""
    model = make(layers=1)
    ids = np.tile([[3, 4, 3, 4, 3]], (4000, 1))
    counts = []
    for draft in (None, "lookup"):
        rng = np.random.default_rng(5)
        new = model.generate(ids, 3, temperature=0.5, rng=rng, draft=draft)
        counts.append(np.bincount(new[:, 1:].reshape(-1), minlength=50))
    one, other = counts
    # A difference of counts has a variance of at most their sum.
    assert (np.abs(one - other) <= 5 * np.sqrt(one + other) + 1).all()
    assert np.abs(one - other).sum() < 0.1 * one.sum()


def test_a_right_draft_takes_fewer_calls():
    calls = []

    class Counting(CausalDecoder):
        def __call__(self, *arguments, **options):
            calls.append(np.shape(arguments[0])[1])
            return super().__call__(*arguments, **options)

    model = make()
    model.__class__ = Counting
    assert_same_bits(model.generate(WHOLE, 30, draft=make()), EXPECTED)
    assert [n - 169 * (i == 0) for i, n in enumerate(calls)] == [4, 16, 10]
    calls.clear()
    assert_same_bits(model.generate(WHOLE, 30, draft=make(3, 1)), EXPECTED)
    assert len(calls) > 10


def test_a_stream_with_a_draft_leaves_caches_of_what_was_yielded():
    caches = MODEL.new_caches(1, 300)
    steps = MODEL.stream(WHOLE[:1], 30, caches=caches, draft=MODEL)
    new = [next(steps) for _ in range(7)]
    steps.close()
    assert caches[0].lengths.tolist() == [WHOLE.shape[1] + 6]
    assert_same_bits(np.array(new).T, EXPECTED[:1, :7])
    said = np.concatenate([WHOLE[:1], EXPECTED[:1, :7]], axis=1)
    assert_same_bits(MODEL.generate(said, 23, caches=caches), EXPECTED[:1, 7:])


def test_drafts_in_pages_give_wrong_guesses_back():
    pools = MODEL.new_page_pools(8)
    caches = [PagedKVCache(pool, 3) for pool in pools]
    options = {"caches": caches, "draft": DRAFTS["small"]}
    assert_same_bits(MODEL.generate(WHOLE, 30, **options), EXPECTED)
    assert [pool.num_free for pool in pools] == [2, 2]


def prefix_in_pages():
    caches = [PagedKVCache(pool, 1) for pool in MODEL.new_page_pools(20)]
    MODEL(PREFIX[np.newaxis], caches=caches)
    return Prefix(PREFIX, caches)


CHOICES = {
    "prefix": lambda: {"prefix": MODEL.prefill(PREFIX)},
    "prefix in pages": lambda: {"prefix": prefix_in_pages()},
    "caches": lambda: {"caches": MODEL.new_caches(3, 200)},
    "samples": lambda: {"num_samples": 2},
    "lookup": lambda: {"draft": "lookup"},
    "draft": lambda: {"draft": DRAFTS["small"]},
    "short guesses": lambda: {"num_draft_tokens": 2},
    "stop": lambda: {"stop": range(0, 50, 7)},
    "lengths": lambda: {"lengths": np.array([20, 3, 1])},
    "drawn": lambda: {"temperature": 0.8, "rng": np.random.default_rng(4)},
}


@pytest.mark.parametrize(
    "names", list(itertools.combinations(CHOICES, 2)), ids=", ".join
)
def test_each_pair_of_options_is_honoured_or_refused(names):
    options = {k: v for name in names for k, v in CHOICES[name]().items()}
    if "caches" in options and options.keys() & {"prefix", "num_samples"}:
        with refused(ValueError, "caches"):
            MODEL.generate(IDS, 8, **options)
        return
    n, whole = options.get("num_samples", 1), WHOLE
    drafted_draws = "draft" in options and "rng" in options
    if drafted_draws:  # each sequence of a batch draws in another order then
        whole = WHOLE[:1]
    ids = whole[:, 150:] if "prefix" in options else whole
    same = {name: options[name] for name in ("stop", "temperature") if name in options}
    if "rng" in options:
        same["rng"] = np.random.default_rng(4)
    if "lengths" in options:
        same["lengths"] = np.repeat(options["lengths"] + 150, n)
        if "prefix" not in options:
            options["lengths"] = options["lengths"] + 150
    expected = MODEL.generate(np.repeat(whole, n, axis=0), 8, **same)
    steps = [np.reshape(tokens, -1) for tokens in MODEL.stream(ids, 8, **options)]
    actual = np.array(steps + steps[-1:] * (8 - len(steps))).T
    assert_same_bits(actual, expected)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("error", "name", "options"),
    [
        (TypeError, "prefix", {"prefix": PREFIX}),
        (ValueError, "caches", {"caches": MODEL.new_caches(3, 99), "num_samples": 2}),
        (ValueError, "num_samples", {"num_samples": 0}),
        (TypeError, "num_samples", {"num_samples": 1.5}),
        (ValueError, "draft", {"draft": "other"}),
        (TypeError, "draft", {"draft": 5}),
        (ValueError, "num_draft_tokens", {"num_draft_tokens": 0}),
        (ValueError, "draft", {"draft": CausalDecoder(1, 8, 2, 8, vocab_size=9)}),
    ],
)
def test_wrong_arguments_are_refused(error, name, options):
    with refused(error, name):
        MODEL.generate(IDS, 3, **options)


def test_a_draft_needs_the_positions_of_the_text():
    model, draft = (make(rotary=None, max_length=n) for n in (40, 39))
    expected = model.generate(IDS[0], 21)
    assert_same_bits(model.generate(IDS[0], 21, draft=model), expected)
    assert_same_bits(model.generate(IDS[0], 20, draft=draft), expected[:20])
    with refused(ValueError, "draft"):
        model.stream(IDS[0], 21, draft=draft)  # before the first token is asked for


def test_positions_that_depend_on_the_length_have_no_drafts():
    scaling = {
        "rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32
    }  # fmt: skip
    rotary = Rotary(8, scaling=scaling)
    with refused(ValueError, "draft"):
        make(rotary=rotary).generate(IDS, 3, draft="lookup")


def test_a_prefix_needs_tokens():
    for wrong in ([], [[1, 2]], 3):
        with refused(ValueError, "token_ids"):
            MODEL.prefill(wrong)
    with refused(ValueError, "caches"):
        Prefix([1, 2], MODEL.new_caches(1, 9))
    with refused(TypeError, "caches"):
        Prefix([1, 2], [None])
