"""Labels of tokens, and words for masked ones."""

import copy
import json
import pickle

import numpy as np
import pytest
from support import families, sentences
from support.comparisons import assert_same_bits
from support.sentences import LABELS, LONG, MASK, TEXTS, write_with_head

from attnpy.models import (
    BertEncoder,
    CrossEncoder,
    FillMask,
    TextClassifier,
    TokenClassifier,
)

sentences.require()

KINDS = pytest.mark.parametrize(
    "kind", ["bert", "roberta", "modernbert", "eurobert", "electra"]
)
STRATEGIES = ["none", "simple", "first", "average", "max"]
MASKED = [f"the {MASK} is sleeping", f"{MASK} {MASK}", f"a dog barks {MASK} leafy"]


@pytest.fixture
def tagger(tmp_path):
    write_with_head(tmp_path, token_classifier=True)
    return TokenClassifier.from_pretrained(tmp_path)


@pytest.fixture
def filler(tmp_path):
    write_with_head(tmp_path, masked_words=True)
    return FillMask.from_pretrained(tmp_path)


@pytest.mark.quick
def test_tokens_have_the_labels_of_the_models_scores(tagger):
    text = "the cat is sleeping"
    code = tagger.tokenizer.encode(text)
    scores = tagger.model.classify_tokens(tagger.model(code.ids)).astype(float)
    scores = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    tagger.ignore_labels = ()
    found = tagger.predict(text)
    assert [x["index"] for x in found] == [1, 2, 3, 4, 5]  # without [CLS] and [SEP]
    for entity in found:
        row = scores[entity["index"]]
        assert entity["entity"] == LABELS[row.argmax()]
        np.testing.assert_allclose(entity["score"], row.max(), rtol=1e-5)
        assert code.tokens[entity["index"]] == entity["word"]
        own = text[entity["start"] : entity["end"]]
        assert own == entity["word"].removeprefix("##")


def test_results_are_the_same_in_any_company(tagger, filler):
    for model, texts in ((tagger, [*TEXTS, LONG]), (filler, MASKED)):
        found = model.predict(texts)
        assert [model.predict(text) for text in texts] == found
        assert model.predict(iter(texts), batch_size=2, num_threads=1) == found
        assert model.predict([]) == []


def test_words_are_those_of_the_models_scores(filler):
    found = filler.predict(MASKED[0], top_k=3)
    ids = filler.tokenizer.encode(MASKED[0]).ids
    place = ids.index(filler.tokenizer.token_to_id(MASK))
    scores = filler.model.logits(filler.model(ids)[place]).astype(float)
    scores = np.exp(scores) / np.exp(scores).sum()
    order = np.argsort(-scores, kind="stable")[:3]
    assert [x["token"] for x in found] == order.tolist()
    np.testing.assert_allclose([x["score"] for x in found], scores[order], rtol=1e-5)
    assert len(filler.predict(MASKED[0], top_k=100)) == 30
    assert [len(x) for x in filler.predict(MASKED[1])] == [5, 5]


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "eurobert"])
def test_what_is_saved_is_read_again_here_and_there(tmp_path, kind):
    write_with_head(tmp_path, kind, token_classifier=True)
    first = TokenClassifier.from_pretrained(tmp_path)
    names = [*"abcde"]
    ours = TokenClassifier(first.model, first.tokenizer, label_names=names)
    ours.save_pretrained(tmp_path / "b")
    again = TokenClassifier.from_pretrained(tmp_path / "b")
    assert repr(again) == repr(ours)
    assert again.predict(TEXTS) == ours.predict(TEXTS)
    write_with_head(tmp_path, kind, masked_words=True)
    filler = FillMask.from_pretrained(tmp_path, max_length=9)
    filler.save_pretrained(tmp_path / "c")
    filled = FillMask.from_pretrained(tmp_path / "c")
    assert repr(filled) == repr(filler)
    assert filled.predict(MASKED) == filler.predict(MASKED)
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "c")
    assert (tokenizer.mask_token, tokenizer.model_max_length) == (MASK, 9)
    for place, owner, reader, score in (
        ("b", "TokenClassification", ours, ours.model.classify_tokens),
        ("c", "MaskedLM", filler, filler.model.logits),
    ):
        kind = getattr(transformers, f"AutoModelFor{owner}")
        model = kind.from_pretrained(tmp_path / place)
        for text in MASKED:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            assert ids[0].tolist() == reader.tokenizer.encode(text).ids
            with torch.no_grad():
                expected = model(ids).logits[0].numpy()
            found = score(reader.model(ids[0].numpy()))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    kind = transformers.AutoModelForTokenClassification
    assert kind.from_pretrained(tmp_path / "b").config.id2label[4] == "e"


def test_copies_and_pickles_do_the_same(tagger, filler):
    for model, text in ((tagger, TEXTS[0]), (filler, MASKED[0])):
        expected = model.predict(text)
        assert copy.deepcopy(model).predict(text) == expected
        assert pickle.loads(pickle.dumps(model)).predict(text) == expected


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path, tagger, filler):
    bert = BertEncoder(1, 8, 2, 8, vocab_size=30)
    tokenizer = sentences.tokenizer()
    cases = (
        (
            lambda: TokenClassifier(bert, tokenizer),
            "model: expected one with num_tok",
        ),
        (lambda: FillMask(bert, tokenizer), "model: expected one with masked_words"),
        (lambda: FillMask(3, tokenizer), "model: expected a BertEncoder, got int"),
        (lambda: FillMask(filler.model, 3), "tokenizer: expected a tokenizers.Tok"),
        (
            lambda: FillMask(filler.model, tokenizer),
            "mask_token: expected one that",
        ),
        (
            lambda: TokenClassifier(tagger.model, tokenizer, label_names="abcde"),
            "label_names: expected strings, got one string",
        ),
        (
            lambda: TokenClassifier(tagger.model, tokenizer, label_names=["a"]),
            "label_names: expected 5, as many as scores, got 1",
        ),
        (
            lambda: TokenClassifier(tagger.model, tokenizer, label_names=[*"abcda"]),
            "label_names: expected another name for each score, got 'a' twice",
        ),
        (
            lambda: tagger.predict("a", aggregation_strategy="word"),
            "aggregation_strategy: expected",
        ),
        (lambda: tagger.predict(3), "texts: expected strings, got int"),
        (lambda: filler.predict("a", top_k=0), "top_k: expected at least 1"),
        (lambda: filler.predict("a dog"), "texts: expected moon among its first 16"),
        (lambda: filler.predict(["moon", LONG + MASK]), r"texts\[1\]: expected moon"),
    )
    for call, words in cases:
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    write_with_head(tmp_path / "words", masked_words=True)
    for make in (TokenClassifier, TextClassifier, CrossEncoder):
        words = r"architectures of a For.*, got 'BertForMaskedLM': FillMask reads it"
        with pytest.raises(ValueError, match=words):
            make.from_pretrained(tmp_path / "words")
    write_with_head(tmp_path / "labels", token_classifier=True)
    with pytest.raises(ValueError, match="ForTokenClassification': TokenClassifier r"):
        FillMask.from_pretrained(tmp_path / "labels")
    config = json.loads((tmp_path / "words" / "config.json").read_text())
    config["architectures"] = ["BertForQuestionAnswering"]
    (tmp_path / "words" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"missing cls\.predictions\.bias"):
        FillMask.from_pretrained(tmp_path / "words")


@KINDS
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_labels_are_those_of_the_pipeline_of_transformers(tmp_path, kind, strategy):
    """`pip install torch transformers`."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    for seed in range(3):
        write_with_head(tmp_path, kind, seed, token_classifier=True)
        ours = TokenClassifier.from_pretrained(tmp_path)
        pipeline = transformers.pipeline(
            "token-classification",
            model=transformers.AutoModelForTokenClassification.from_pretrained(
                tmp_path
            ),
            tokenizer=transformers.AutoTokenizer.from_pretrained(tmp_path),
            aggregation_strategy=strategy,
            device="cpu",
        )
        for text in TEXTS:
            expected, found = (
                pipeline(text),
                ours.predict(text, aggregation_strategy=strategy),
            )
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert list(one) == list(other)
                for name in one:
                    if name == "score":
                        np.testing.assert_allclose(one[name], other[name], rtol=1e-4)
                    else:
                        assert one[name] == other[name], (text, name)


@KINDS
def test_words_are_those_of_the_pipeline_of_transformers(tmp_path, kind):
    """`pip install torch transformers`."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    write_with_head(tmp_path, kind, masked_words=True)
    ours = FillMask.from_pretrained(tmp_path)
    assert ours.mask_token == MASK
    pipeline = transformers.pipeline(
        "fill-mask",
        model=transformers.AutoModelForMaskedLM.from_pretrained(tmp_path),
        tokenizer=transformers.AutoTokenizer.from_pretrained(tmp_path),
        device="cpu",
    )
    for text in MASKED:
        found, expected = ours.predict(text, top_k=4), pipeline(text, top_k=4)
        if isinstance(found[0], dict):
            found, expected = [found], [expected]
        for ones, others in zip(found, expected, strict=True):
            for one, other in zip(ones, others, strict=True):
                assert one["token"] == other["token"]
                np.testing.assert_allclose(one["score"], other["score"], rtol=1e-4)
                assert one["token_str"] == other["token_str"]
                assert one["sequence"] == other["sequence"]


@pytest.mark.parametrize("kind", families.ENCODERS)
def test_models_of_all_families_are_read(tmp_path, kind):
    write_with_head(tmp_path, kind, token_classifier=True)
    assert len(TokenClassifier.from_pretrained(tmp_path).predict(TEXTS)) == len(TEXTS)
    write_with_head(tmp_path, kind, masked_words=True)
    words = FillMask.from_pretrained(tmp_path).predict(MASKED[0])
    assert_same_bits(np.array([len(words)]), np.array([5]))
