"""Texts in scikit-learn's pipelines."""

import gc
import pickle

import numpy as np
import pytest
from support import minilm, pages, sentences
from support.comparisons import assert_same_bits
from support.processes import run_python
from support.sentences import TEXTS

from attnpy.models import SentenceEncoder

sklearn = pytest.importorskip("sklearn")
sentences.require()

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import SkipTestWarning  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils import estimator_checks  # noqa: E402

from attnpy.integrations import sklearn as module  # noqa: E402
from attnpy.integrations.sklearn import SentenceVectorizer  # noqa: E402

# Those of scikit-learn's checks that need no samples. All others fit arrays of numbers,
# which no transformer of texts takes: scikit-learn leaves them out for its own, by the
# tag `two_d_array = False`. What they are about is tested below, with texts.
CHECKS = [
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_get_params_invariance",
    "check_set_params",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectorizer")
    sentences.write(path, config={"prompts": {"query": "query : "}})
    return path


@pytest.fixture
def vectorizer(folder):
    return SentenceVectorizer(str(folder))


@pytest.mark.quick
@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_scikit_learn_that_need_no_samples(vectorizer, name):
    getattr(estimator_checks, name)("SentenceVectorizer", vectorizer)


def test_the_rest_of_check_estimator_is_left_out_for_texts(vectorizer):
    with pytest.warns(SkipTestWarning, match="Can't test estimator SentenceVectorizer"):
        results = estimator_checks.check_estimator(vectorizer)
    assert {result["status"] for result in results} <= {"passed"}


@pytest.mark.quick
def test_vectors_are_those_of_the_encoder(folder, vectorizer):
    encoder = SentenceEncoder.from_pretrained(folder)
    expected = encoder.encode(TEXTS)
    assert vectorizer.fit(TEXTS) is vectorizer
    assert_same_bits(vectorizer.transform(TEXTS), expected)
    assert_same_bits(vectorizer.fit_transform(TEXTS, np.arange(7)), expected)
    assert_same_bits(SentenceVectorizer(folder).transform(iter(TEXTS)), expected)
    for options in ({"prompt_name": "query"}, {"normalize": False}, {"prompt": "a"}):
        changed = SentenceVectorizer(folder, **options, batch_size=2, num_threads=1)
        assert_same_bits(changed.transform(TEXTS), encoder.encode(TEXTS, **options))
    wide = SentenceVectorizer(folder, dtype="float64", max_length=4)
    assert wide.fit_transform(TEXTS).dtype == np.float64
    assert not np.allclose(wide.transform(TEXTS), expected)


@pytest.mark.quick
def test_samples_do_not_depend_on_others(vectorizer):
    vectors = vectorizer.fit_transform(TEXTS)
    order = np.random.default_rng(0).permutation(7)
    assert_same_bits(vectorizer.transform(np.array(TEXTS)[order]), vectors[order])
    for i in range(7):
        assert_same_bits(vectorizer.transform(TEXTS[i : i + 1]), vectors[i : i + 1])
    assert vectorizer.transform([]).shape == (0, 12)


def test_fitting_changes_neither_parameters_nor_results(vectorizer):
    before, attributes = vectorizer.get_params(), set(vars(vectorizer))
    vectors = vectorizer.fit_transform(TEXTS)
    assert vectorizer.get_params() == before
    added = set(vars(vectorizer)) - attributes
    assert all(name.startswith("_") or name.endswith("_") for name in added)
    assert_same_bits(vectorizer.fit(TEXTS).transform(TEXTS), vectors)
    state = dict(vars(vectorizer))
    vectorizer.transform(TEXTS)
    assert vars(vectorizer) == state


@pytest.mark.quick
def test_features_have_names(vectorizer):
    names = [f"sentencevectorizer{i}" for i in range(12)]
    assert vectorizer.get_feature_names_out().tolist() == names
    assert vectorizer.fit(TEXTS).n_features_out_ == 12
    pipeline = make_pipeline(vectorizer)
    assert pipeline.get_feature_names_out().tolist() == names


def test_parameters_that_are_set_are_used(folder, tmp_path, vectorizer):
    vectors = vectorizer.fit_transform(TEXTS)
    sentences.write(tmp_path, "mpnet")
    vectorizer.set_params(folder=tmp_path)
    expected = SentenceEncoder.from_pretrained(tmp_path).encode(TEXTS)
    assert_same_bits(vectorizer.transform(TEXTS), expected)
    assert_same_bits(vectorizer.set_params(folder=folder).transform(TEXTS), vectors)
    copied = clone(vectorizer.set_params(prompt="a"))
    assert copied.get_params() == vectorizer.get_params()
    assert "_used" not in vars(copied)
    assert_same_bits(copied.transform(TEXTS), vectorizer.transform(TEXTS))


def test_clones_share_the_weights_and_pickles_have_none(vectorizer, monkeypatch):
    vectors, n_read = vectorizer.fit_transform(TEXTS), 0
    read = SentenceEncoder.from_pretrained

    def counting(*arguments, **options):
        nonlocal n_read
        n_read += 1
        return read(*arguments, **options)

    monkeypatch.setattr(SentenceEncoder, "from_pretrained", counting)
    content = pickle.dumps(vectorizer)
    assert len(content) < 1000
    for twin in (clone(vectorizer), pickle.loads(content)):
        assert_same_bits(twin.transform(TEXTS), vectors)
    assert n_read == 0
    del twin, vectorizer._used
    gc.collect()
    assert not module._encoders  # nobody has it any more
    assert_same_bits(vectorizer.transform(TEXTS), vectors)
    assert n_read == 1


@pytest.mark.quick
def test_texts_are_classified_in_a_pipeline(vectorizer):
    texts = ["the cat", "a red sun", "old cat", "the sun is red"] * 3
    labels = ["animal", "sky"] * 6
    pipeline = make_pipeline(vectorizer, LogisticRegression(C=100.0))
    assert pipeline.fit(texts, labels).score(texts, labels) == 1
    again = pickle.loads(pickle.dumps(pipeline))
    assert_same_bits(again.predict_proba(texts), pipeline.predict_proba(texts))
    grid = {"sentencevectorizer__normalize": [None, False]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(texts, labels)
    assert search.best_score_ > 0.5


@pytest.mark.quick
def test_what_does_not_fit_is_refused_when_it_is_used(folder, tmp_path):
    for options, error, words in (
        ({"prompt_name": "x"}, ValueError, "prompt_name: expected one of query"),
        ({"batch_size": 0}, ValueError, "batch_size: expected at least 1"),
        ({"max_length": 99}, ValueError, "max_length: expected 3 to 16"),
        ({"dtype": "int8"}, TypeError, "dtype: expected float64"),
    ):
        vectorizer = SentenceVectorizer(folder, **options)
        with pytest.raises(error, match=words):
            vectorizer.fit(TEXTS)
    with pytest.raises(FileNotFoundError, match=r"folder, with a config\.json"):
        SentenceVectorizer(tmp_path).fit(TEXTS)
    vectorizer = SentenceVectorizer(folder)
    for method in (vectorizer.fit, vectorizer.transform, vectorizer.fit_transform):
        with pytest.raises(ValueError, match="X: expected an iterable of texts, got o"):
            method("the cat")
    with pytest.raises(TypeError, match=r"texts\[0\]: expected a string, got ndarray"):
        vectorizer.transform(np.ones((2, 3)))


def test_scikit_learn_is_named_where_it_is_missing():
    script = (
        "import sys; sys.modules['sklearn.base'] = None\n"
        "import attnpy.integrations.sklearn"
    )
    result = run_python(script)
    assert (
        "ImportError: attnpy.integrations.sklearn needs scikit-learn" in result.stderr
    )


def test_nothing_of_scikit_learn_is_imported_by_the_models():
    script = "import sys, attnpy.models; print('sklearn' in sys.modules)"
    assert run_python(script).stdout.split() == ["False"]


def test_the_page_prints_what_its_comments_say():
    minilm.require()
    pages.assert_examples_print_what_their_comments_say("integrations/sklearn.md")
