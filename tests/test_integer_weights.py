"""Weights of 8 and 4 bits in every class that reads a folder."""

import functools
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest
from support import pictures, sentences
from support.comparisons import assert_same_bits
from support.objects import EXAMPLES
from support.processes import assert_runs
from support.readers import WRITE, read, write_pictures

import attnpy
from attnpy import _parameters, models

sentences.require()


# What a folder may have that is not weights.
WITHOUT_WEIGHTS = {"ImageProcessor"}


def places(reader):
    """The matrices of what a class has read, by place."""
    model = reader
    while not hasattr(model, "state_dict"):
        model = getattr(model, "model", None) or model.encoder
    return [
        (type(owner).__name__, name, getattr(owner, name))
        for owner, name in _parameters.quantizable(model)
    ]


@pytest.mark.quick
def test_no_class_that_reads_a_folder_is_forgotten():
    readers = set()
    for name in EXAMPLES:
        found = functools.reduce(getattr, name.split("."), attnpy)
        if hasattr(found, "from_pretrained"):
            readers.add(name.removeprefix("models."))
    assert readers - WITHOUT_WEIGHTS == WRITE.keys()
    for name in WITHOUT_WEIGHTS:
        with pytest.raises(TypeError, match="weights"):
            getattr(models, name).from_pretrained("folder", weights="int8")


@pytest.mark.quick
def test_the_page_has_every_class():
    page = Path(__file__).parents[1] / "docs" / "guide" / "quantised_weights.md"
    table = page.read_text("utf-8").partition("| class |")[2].partition("\n\n")[0]
    assert [kind for kind in WRITE if f"`{kind}`" not in table] == []


@pytest.mark.quick
@pytest.mark.parametrize("kind", WRITE)
def test_matrices_are_quantised_while_they_are_read(tmp_path, kind):
    WRITE[kind](tmp_path)
    for bits in (8, 4):
        for activations in ("float", "int8"):
            options = {"weights": f"int{bits}", "activations": activations}
            own = places(read(kind, tmp_path, **options))
            model = read(kind, tmp_path)
            plain = places(model)
            model.quantize(bits=bits, activations=activations)
            assert len(own) == len(plain) == len(places(model)) > 4
            for (owner, name, matrix), (*_, before), (*_, after) in zip(
                own, plain, places(model), strict=True
            ):
                weight = getattr(matrix, "T", matrix)
                assert weight.bits == bits, (owner, name)
                assert weight.activations == activations, (owner, name)
                assert_same_bits(matrix.dequantize(), after.dequantize())
                error = np.abs(matrix.dequantize() - np.asarray(before)).max()
                assert error < np.abs(before).max() / (100 if bits == 8 else 6)


@pytest.mark.quick
@pytest.mark.parametrize("kind", WRITE)
def test_wrong_weights_are_refused_before_a_model_is_made(tmp_path, kind):
    WRITE[kind](tmp_path)
    default = {"weights": None, "activations": "float"}
    parameters = inspect.signature(getattr(models, kind).from_pretrained).parameters
    assert {name: parameters[name].default for name in default} == default
    for options, message in (
        ({"weights": "int2"}, r"^weights: expected one of .* got 'int2'"),
        ({"activations": "int8"}, r"^activations: expected 'float' without weights"),
        ({"weights": "int8", "activations": "int4"}, r"^activations: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            read(kind, tmp_path, **options)
    with pytest.raises(TypeError, match=r"^dtype: expected float32, float16 or bfl"):
        read(kind, tmp_path, weights="int8", dtype="float64")


TEXTS = ["the cat is sleeping", "a dog barks under the old tree", "sun"]


def pairs(encoder, texts):
    return encoder.predict([(text, "the moon") for text in texts])


def scores_of_words(filler, texts):
    texts = [f"{text} {sentences.MASK}" for text in texts]
    return np.array([[x["score"] for x in row] for row in filler.predict(texts)])


def scores_of_tokens(tagger, texts):
    found = [row[0] for row in tagger.predict(texts)]
    return np.array([entity["score"] for entity in found])


RESULTS = {
    "CrossEncoder": pairs,
    "FillMask": scores_of_words,
    "M3Encoder": lambda encoder, texts: np.stack(
        [vectors[0] for vectors in encoder.encode(texts).multi_vector]
    ),
    "MultiVectorEncoder": lambda encoder, texts: np.stack(
        [vectors[0] for vectors in encoder.encode_documents(texts)]
    ),
    "SentenceEncoder": lambda encoder, texts: encoder.encode(texts),
    "TextClassifier": lambda classifier, texts: classifier.scores(texts),
    "TokenClassifier": scores_of_tokens,
}


@pytest.mark.quick
@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.parametrize("activations", ["float", "int8"])
def test_texts_have_nearly_the_results_of_the_numbers(tmp_path, kind, activations):
    WRITE[kind](tmp_path)
    options = {"ignore_labels": ()} if kind == "TokenClassifier" else {}
    exact = RESULTS[kind](read(kind, tmp_path, **options), TEXTS)
    reader = read(kind, tmp_path, weights="int8", activations=activations, **options)
    found = RESULTS[kind](reader, TEXTS)
    assert 0 < np.abs(found - exact).max() < 0.05 * np.abs(exact).max()
    for i, text in enumerate(TEXTS):  # the same bits alone
        assert_same_bits(RESULTS[kind](reader, [text])[0], found[i])


@pytest.mark.quick
@pytest.mark.parametrize("activations", ["float", "int8"])
def test_pictures_have_nearly_the_scores_of_the_numbers(tmp_path, activations):
    write_pictures(tmp_path)
    several = pictures.pictures()
    exact = models.ImageClassifier.from_pretrained(tmp_path).scores(several)
    classifier = models.ImageClassifier.from_pretrained(
        tmp_path, weights="int8", activations=activations
    )
    found = classifier.scores(several)
    assert 0 < np.abs(found - exact).max() < 0.05
    for picture, own in zip(several, found, strict=True):
        assert_same_bits(classifier.scores(picture), own)


# ---- Memory --------------------------------------------------------------------------

PEAK = """
import json, sys
from attnpy import models

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) for x in lines if x.startswith(name)) * 1024

def read(kind, folder):
    return getattr(models, kind).from_pretrained(folder, weights="int8")

kind, small, large = sys.argv[1:]
read(kind, small)
before = status("VmRSS")
reader = read(kind, large)
print(status("VmHWM") - before)
"""
SIZES = {"hidden_size": 256, "intermediate_size": 4000, "num_attention_heads": 4}
SIZES["num_hidden_layers"] = 3
LARGE = {
    "CausalDecoder": {**SIZES, "vocab_size": 8000},
    "CrossEncoder": {"config": {**SIZES, "vocab_size": 8000}},
    "ImageClassifier": SIZES,
}


@pytest.mark.quick(kind=("CrossEncoder",))
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/status")
@pytest.mark.parametrize("kind", LARGE)
def test_loading_takes_the_integers_and_one_matrix(tmp_path, kind):
    small, large = tmp_path / "small", tmp_path / "large"
    for folder, changes in ((small, {}), (large, LARGE[kind])):
        folder.mkdir()
        WRITE[kind](folder, **changes)
    found = int(assert_runs(PEAK, kind, small, large))
    sizes = [matrix.size * 4 for matrix in map(np.asarray, plain(kind, large))]
    integers, numbers = sum(sizes) / 4 * 1.05, sum(sizes)
    assert found < integers + max(sizes) + 10e6 < numbers


def plain(kind, folder):
    return (matrix for *_, matrix in places(read(kind, folder)))
