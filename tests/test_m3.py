"""Dense, sparse and multi-vector results of BGE-M3, and late interaction."""

import numpy as np
import pytest
from support import families, sentences
from support.comparisons import assert_same_bits
from support.sentences import LONG, TEXTS, write

from attnpy.models import M3Encoder, SentenceEncoder, lexical_score, maxsim

sentences.require()
torch = pytest.importorskip("torch")

HEADS = {"sparse": (1, 12), "colbert": (7, 12)}


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    write(tmp_path, "xlm-roberta", {"pooling_mode": "cls"}, ("Normalize",))
    for name, shape in HEADS.items():
        state = {
            "weight": torch.tensor(rng.standard_normal(shape, np.float32)),
            "bias": torch.tensor(rng.random(shape[0], np.float32) + 16),
        }
        torch.save(state, tmp_path / f"{name}_linear.pt")
    return tmp_path


def test_vectors_are_their_formulas(folder):
    tensors = families.tensors(families.XLM_ROBERTA)
    encoder = M3Encoder.from_pretrained(folder, dtype=np.float64)
    config = {**families.XLM_ROBERTA, "pad_token_id": 1}
    heads = {
        name: torch.load(folder / f"{name}_linear.pt", weights_only=True)
        for name in HEADS
    }
    found = encoder.encode([*TEXTS, LONG])
    plain = SentenceEncoder.from_pretrained(folder, dtype=np.float64)
    np.testing.assert_allclose(found.dense, plain.encode([*TEXTS, LONG]), atol=1e-15)
    for i, text in enumerate([*TEXTS, LONG]):
        ids = np.array(plain.tokenizer.encode(text).ids)
        states = families.bert_states(tensors, config, ids)
        weights, vectors = (
            states @ head["weight"].double().numpy().T + head["bias"].double().numpy()
            for head in heads.values()
        )
        expected = {}
        for token, weight in zip(ids.tolist(), weights[:, 0], strict=True):
            if weight > 0 and token > 3:  # no special one
                expected[token] = max(weight, expected.get(token, 0))
        assert list(found.sparse[i]) == list(expected)
        np.testing.assert_allclose(
            list(found.sparse[i].values()), list(expected.values()), rtol=1e-9
        )
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(found.multi_vector[i], unit[1:], atol=1e-9)
    assert any(found.sparse)


def test_results_have_the_same_bits_in_any_company(folder):
    encoder = M3Encoder.from_pretrained(folder)
    found = encoder.encode([*TEXTS, LONG])
    assert found.dense.dtype == np.float32
    for options in ({"batch_size": 1}, {"num_threads": 1}):
        again = encoder.encode(iter([*TEXTS, LONG]), **options)
        assert_same_bits(again.dense, found.dense)
        assert again.sparse == found.sparse
        for one, other in zip(again.multi_vector, found.multi_vector, strict=True):
            assert_same_bits(one, other)
    one = encoder.encode(TEXTS[0])
    assert_same_bits(one.dense, found.dense[0])
    assert one.sparse == found.sparse[0]
    assert_same_bits(one.multi_vector, found.multi_vector[0])
    some = encoder.encode(TEXTS, dense=False, multi_vector=False)
    assert some.dense is some.multi_vector is None
    assert some.sparse == found.sparse[:-1]
    none = encoder.encode([])
    assert none.dense.shape == (0, 12)
    assert none.sparse == none.multi_vector == []


def test_late_interaction_is_a_sum_of_best_matches(folder):
    rng = np.random.default_rng(1)
    query = rng.standard_normal((5, 7))
    documents = [rng.standard_normal((n, 7)) for n in (3, 1, 9)]
    scores = maxsim(query, documents)
    for document, score in zip(documents, scores, strict=True):
        expected = (query @ document.T).max(axis=1).sum()
        np.testing.assert_allclose(score, expected, rtol=1e-12)
        assert maxsim(query, document) == score
        assert maxsim(query.tolist(), document.tolist()) == score
        np.testing.assert_allclose(maxsim(query, document, mean=True), expected / 5)
    assert maxsim(query.astype(np.float32), documents[0].astype("f")) == pytest.approx(
        scores[0], rel=1e-5
    )
    assert maxsim(query, np.zeros((0, 7))) == -np.inf
    assert maxsim(query, []).shape == (0,)
    assert maxsim(query, np.stack([documents[0]] * 2)).shape == (2,)
    for wrong, words in (
        ((query[0], documents), "query: expected"),
        ((query[:0], documents), "query: expected"),
        ((query, [documents[0], query[:, :6]]), r"documents\[1\]: expected"),
        ((query, [documents[0][np.newaxis]]), r"documents\[0\]: expected"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            maxsim(*wrong)


@pytest.mark.quick
def test_words_in_common_are_scored():
    assert lexical_score({1: 0.5, 2: 2.0}, {2: 0.25, 1: 1.0, 3: 9.0}) == 1.0
    assert lexical_score({}, {1: 1.0}) == 0
    with pytest.raises(TypeError, match="a: expected a mapping"):
        lexical_score([1], {})


def test_files_that_do_not_fit_are_refused(folder):
    encoder = M3Encoder.from_pretrained(folder).encoder
    ones = np.ones
    with pytest.raises(TypeError, match="encoder: expected a SentenceEncoder, got int"):
        M3Encoder(3, ones((12, 1)), ones(1), ones((12, 7)), ones(7))
    for wrong, name in (
        ((ones((12, 2)), ones(1), ones((12, 7)), ones(7)), "sparse_weight"),
        ((ones((12, 1)), ones(2), ones((12, 7)), ones(7)), "sparse_bias"),
        ((ones((12, 1)), ones(1), ones((11, 7)), ones(7)), "multi_weight"),
        ((ones((12, 1)), ones(1), ones((12, 7)), ones(6)), "multi_bias"),
    ):
        with pytest.raises(ValueError, match=f"{name}: expected a matrix or bias for"):
            M3Encoder(encoder, *wrong)
    torch.save({"weight": torch.ones(1, 12)}, folder / "sparse_linear.pt")
    with pytest.raises(
        ValueError, match=r"sparse_linear\.pt: expected weight and bias"
    ):
        M3Encoder.from_pretrained(folder)
    (folder / "sparse_linear.pt").unlink()
    with pytest.raises(FileNotFoundError, match="folder: expected one of BGE-M3 with "):
        M3Encoder.from_pretrained(folder)
