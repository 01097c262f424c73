"""Texts to labels, from folders as Transformers writes them."""

import copy
import pickle

import numpy as np
import pytest
from support import encoder_decoders, families, rerankers, sentences
from support.comparisons import assert_same_bits
from support.errors import refused
from support.sentences import LONG, TEXTS, write_scorer

from attnpy.models import TextClassifier

sentences.require()

ALL = [*TEXTS, LONG]
KINDS = pytest.mark.parametrize("kind", families.ENCODERS)


def read(folder, **options):
    return TextClassifier.from_pretrained(folder, dtype=np.float64, **options)


def logits(classifier, tensors, config):
    """By the arithmetic of the model, in float64."""
    ids = [np.array(classifier.tokenizer.encode(text).ids) for text in ALL]
    return np.array([families.text_scores(tensors, config, x) for x in ids])


def softmax(x):
    parts = np.exp(x - x.max(axis=1, keepdims=True))
    return parts / parts.sum(axis=1, keepdims=True)


PROBLEMS = {
    None: softmax,
    "single_label_classification": softmax,
    "multi_label_classification": lambda x: 1 / (1 + np.exp(-x)),
    "regression": lambda x: x,
}


@pytest.mark.quick
@KINDS
@pytest.mark.parametrize("problem", PROBLEMS)
def test_scores_are_the_models_arithmetic(tmp_path, kind, problem):
    names = {"0": "bad", "2": "good", "1": "so"}
    more = {"id2label": names, "problem_type": problem}
    tensors, config = write_scorer(tmp_path, kind, 3, config=more)
    classifier = read(tmp_path)
    assert classifier.label_names == ("bad", "so", "good")
    expected = PROBLEMS[problem](logits(classifier, tensors, config))
    scores = classifier.scores(ALL)
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-12)
    for row, found in zip(scores, classifier.predict(ALL), strict=True):
        assert found == {
            "label": classifier.label_names[row.argmax()],
            "score": row.max(),
        }


@pytest.mark.quick
def test_texts_have_the_same_bits_in_any_company(tmp_path):
    write_scorer(tmp_path, n_labels=3)
    classifier = TextClassifier.from_pretrained(tmp_path)
    scores = classifier.scores(ALL)
    assert scores.dtype == np.float32
    for text, row in zip(ALL, scores, strict=True):
        assert_same_bits(classifier.scores(text), row)
    assert classifier.predict(ALL[1]) == classifier.predict(ALL)[1]
    for options in ({"batch_size": 1}, {"batch_size": 3}, {"num_threads": 1}):
        assert_same_bits(classifier.scores(ALL, **options), scores)
    assert classifier.scores([]).shape == (0, 3)
    assert classifier.predict([]) == []
    for twin in (pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)):
        assert_same_bits(twin.scores(ALL), scores)


@pytest.mark.quick
def test_texts_are_scored_by_bart(tmp_path):
    tensors, config = sentences.write_bart(tmp_path)
    classifier = read(tmp_path)
    codes = [classifier.tokenizer.encode(text).ids for text in ALL]
    expected = [encoder_decoders.text_scores(tensors, config, ids) for ids in codes]
    scores = classifier.scores(ALL)
    np.testing.assert_allclose(scores, softmax(np.array(expected)), rtol=1e-10)
    assert classifier.max_length == 16
    for text, row in zip(ALL, scores, strict=True):
        assert_same_bits(classifier.scores(text), row)
    (tmp_path / "b").mkdir()
    classifier.save_pretrained(tmp_path / "b")
    again = TextClassifier.from_pretrained(tmp_path / "b", dtype=np.float64)
    assert repr(again) == repr(classifier)
    assert_same_bits(again.scores(ALL), scores)
    sentences.write_bart(tmp_path, eos_token_id=29)
    with pytest.raises(ValueError, match="tokenizer: expected one that ends texts"):
        read(tmp_path).scores(ALL)


@pytest.mark.quick
def test_options_are_judged(tmp_path):
    write_scorer(tmp_path, n_labels=1)
    single = read(tmp_path)
    assert (single.function, single.label_names) == ("sigmoid", ("LABEL_0",))
    assert read(tmp_path, max_length=5).max_length == 5
    assert read(tmp_path, function="none").function == "none"
    model, tokenizer = single.model, single.tokenizer
    for name, options in {
        "label_names": {"label_names": ["a", "b"]},
        "function": {"function": "tanh"},
        "max_length": {"max_length": 99},
    }.items():
        with refused(ValueError, name):
            TextClassifier(model, tokenizer, **options)
    with refused(TypeError, "label_names"):
        TextClassifier(model, tokenizer, label_names="a")
    with refused(TypeError, "texts"):
        single.scores(3)
    write_scorer(tmp_path, config={"problem_type": "single_label_classification"})
    with pytest.raises(ValueError, match="expected several labels with problem_type"):
        read(tmp_path)
    for config, words in (
        ({"id2label": {"0": "a", "2": "b"}}, "id2label with names for 0 to 1"),
        ({"id2label": {"0": 1, "1": "b"}}, "id2label with names for 0 to 1"),
        (
            {"id2label": {"0": "yes", "1": "yes"}},
            r"config\.json: expected id2label with another name for each score, got "
            "'yes' twice",
        ),
        ({"problem_type": "other"}, "problem_type = regression, single_label"),
        ({"problem_type": ["x"]}, "problem_type = regression, single_label"),
    ):
        write_scorer(tmp_path, n_labels=2, config=config)
        with pytest.raises(ValueError, match=words):
            read(tmp_path)


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "modernbert", "eurobert", "deberta-v2"]
)
def test_what_is_saved_is_read_again_here_and_there(tmp_path, kind, function):
    (tmp_path / "a").mkdir()
    write_scorer(tmp_path / "a", kind, 3, truncation_side="left")
    read_first = TextClassifier.from_pretrained(tmp_path / "a")
    names = {"label_names": ["x", "y", "z"], "truncation_side": "left"}
    parts = read_first.model, read_first.tokenizer
    ours = TextClassifier(*parts, function=function, max_length=12, **names)
    ours.save_pretrained(tmp_path / "b")
    assert read_first.model.config["id2label"]["0"] == "LABEL_0"
    again = TextClassifier.from_pretrained(tmp_path / "b")
    assert repr(again) == repr(ours)
    assert again.tokenizer.truncation == ours.tokenizer.truncation
    assert_same_bits(again.scores(ALL), ours.scores(ALL))
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(tmp_path / "b")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    assert model.config.id2label == {0: "x", 1: "y", 2: "z"}
    assert (tokenizer.model_max_length, tokenizer.truncation_side) == (12, "left")
    ours.function = "none"
    for text in ALL:
        given = tokenizer(text, truncation=True, return_tensors="pt")
        with torch.no_grad():
            expected = model(**given).logits[0].numpy()
        np.testing.assert_allclose(ours.scores(text), expected, rtol=1e-4, atol=1e-4)


def test_a_folder_that_would_say_other_things_is_refused(tmp_path):
    write_scorer(tmp_path)
    classifier = TextClassifier.from_pretrained(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "modules.json").write_text("[]")
    with refused(ValueError, "folder"):
        classifier.save_pretrained(tmp_path / "b")
    with refused(TypeError, "folder"):
        classifier.save_pretrained(3)
    with refused(ValueError, "folder"):
        classifier.save_pretrained("")
    with refused(NotADirectoryError, "folder"):
        classifier.save_pretrained(tmp_path / "config.json")
    with refused(ValueError, "function"):
        TextClassifier(
            classifier.model, classifier.tokenizer, function="softmax"
        ).save_pretrained(tmp_path / "c")
    classifier.save_pretrained(tmp_path)  # in its own place


def test_one_of_a_language_model_may_be_saved(tmp_path):
    (tmp_path / "a").mkdir()
    rerankers.write(tmp_path / "a", n_labels=2)
    ours = TextClassifier.from_pretrained(tmp_path / "a")
    ours.save_pretrained(tmp_path / "b")
    again = TextClassifier.from_pretrained(tmp_path / "b")
    assert repr(again) == repr(ours)
    assert_same_bits(again.scores(TEXTS[:2]), ours.scores(TEXTS[:2]))


@pytest.mark.parametrize("kind", families.CLASSED)
@pytest.mark.parametrize("n_labels", [1, 3])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_labels_are_those_of_the_pipeline_of_transformers(
    tmp_path, kind, n_labels, problem
):
    """`pip install torch transformers`."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    if n_labels == 1 and problem == "single_label_classification":
        problem = None  # refused there, too
    write_scorer(tmp_path, kind, n_labels, config={"problem_type": problem})
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, dtype="float64"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pipeline = transformers.pipeline(
        "text-classification", model=model, tokenizer=tokenizer, device="cpu"
    )
    theirs = [pipeline(text)[0] for text in TEXTS]
    for found, expected in zip(read(tmp_path).predict(TEXTS), theirs, strict=True):
        assert found["label"] == expected["label"]
        np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-5)
