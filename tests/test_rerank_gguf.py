"""Language models of GGUF files that score pairs of texts."""

import re

import numpy as np
import pytest
from support import families, gguf_files, rerankers
from support.comparisons import assert_same_bits
from support.errors import refused
from support.rerankers import LABELS

from attnpy import checkpoints
from attnpy.models import CausalDecoder, CrossEncoder

gguf_files.require("tokenizers", "jinja2")

KEY = "tokenizer.chat_template.rerank"
USUAL = "find what answers"
# As llama.cpp's converter writes it, but for its length.
TEMPLATE = (
    'a judge {{ "\U0001f600" }}\\\n<|begin|><Instruct>: find what answers\n'
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n\n"
)
# What sentence-transformers has.
MESSAGES = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
)
# A template of chats, which loses texts of other roles.
CHATS = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
PAIRS = [
    ("the cat", "a dog is under the sea"),
    ("red sun", "the moon"),
    ("", "the cat sleeps"),
    ("a {document} dog", "{query} {{ 1 }}"),
    ("the sun " * 9, "the red moon " * 12),
]


def written(query, document, instruction=USUAL):
    """The text of a pair, by the first template."""
    start, rest = TEMPLATE.split("{query}")
    middle, end = rest.split("{document}")
    return start.replace(USUAL, instruction) + query + middle + document + end


@pytest.fixture
def save(tmp_path):
    """Write a file, and return its path and the numbers of "yes" and "no"."""

    def write(*args, changes=None, arrays=None, **options):
        metadata, found, numbers = rerankers.in_gguf(*args, **options)
        metadata |= {KEY: TEMPLATE, **(changes or {})}
        metadata = {key: x for key, x in metadata.items() if x is not None}
        path = gguf_files.write(tmp_path / "m.gguf", metadata, found | (arrays or {}))
        return path, numbers

    return write


def expected_scores(path, numbers, texts):
    """How much larger the score of the first token is, of what comes next."""
    file = checkpoints.load_gguf(path)
    model, tokenizer = CausalDecoder.from_gguf(file, dtype=np.float64), file.tokenizer()
    scores = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        first, second = model.logits(model(ids)[-1])[numbers]
        scores.append(first - second)
    return scores


# ---- Scores --------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("labels", [("yes", "no"), ("no", "yes")])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_head_of_two_tokens_scores_as_they_do(save, labels, kind):
    path, numbers = save(has_head=False, kind=kind)
    expected = expected_scores(path, numbers, [written(*pair) for pair in PAIRS])
    path, _ = save(labels, kind=kind)
    ours = CrossEncoder.from_gguf(path)
    assert ours.num_labels == 1
    assert ours.activation_fn == "sigmoid"
    scores = ours.predict(PAIRS, activation_fn="identity")
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(scores) > 0.1
    for pair, score in zip(PAIRS, scores, strict=True):
        assert ours.predict(pair, activation_fn="identity") == score
    shares = 1 / (1 + np.exp(-np.array(expected)))
    np.testing.assert_allclose(ours.predict(PAIRS), shares, rtol=1e-4)
    found = ours.rank("the cat", [second for _, second in PAIRS], top_k=2)
    assert found[0]["score"] >= found[1]["score"]


@pytest.mark.quick
def test_an_instruction_is_a_prompt(save):
    path, numbers = save(has_head=False)
    ours = CrossEncoder.from_gguf(path)
    assert (ours.true_token_id, ours.false_token_id) == tuple(numbers)
    assert ours.prompts == {"instruction": USUAL}
    assert ours.default_prompt_name == "instruction"
    texts = [written(*pair, "find a cat") for pair in PAIRS]
    scores = ours.predict(PAIRS, activation_fn="identity", prompt="find a cat")
    expected = expected_scores(path, numbers, texts)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    assert (ours.predict(PAIRS) != ours.predict(PAIRS, prompt="find a cat")).all()


def test_a_template_without_an_instruction_takes_no_prompt(save):
    ours = CrossEncoder.from_gguf(
        save(changes={KEY: "is {document} what {query} asks?"})[0]
    )
    assert (ours.prompts, ours.default_prompt_name) == ({}, None)
    assert ours.predict(PAIRS).shape == (len(PAIRS),)
    with pytest.raises(ValueError, match=r"prompt: expected none, as chat_template"):
        ours.predict(PAIRS, prompt="find a cat")


@pytest.mark.parametrize("has_head", [False, True])
def test_a_template_of_chats_may_write_pairs(save, has_head):
    changes = {KEY: None, "tokenizer.chat_template": MESSAGES}
    path, numbers = save(has_head=False, changes=changes)
    texts = [f"query {a} document {b} <|begin|>" for a, b in PAIRS]
    expected = expected_scores(path, numbers, texts)
    path, _ = save(has_head=has_head, changes=changes)
    scores = CrossEncoder.from_gguf(path).predict(PAIRS, activation_fn="identity")
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    given = CrossEncoder.from_gguf(
        save(has_head=has_head)[0], chat_template=MESSAGES, activation_fn="identity"
    )
    assert_same_bits(given.predict(PAIRS), scores)


@pytest.mark.parametrize("labels", [("good", "bad"), ("a", "b", "c")])
def test_other_labels_have_a_score_each(save, labels):
    path, _ = save(labels)
    ours = CrossEncoder.from_gguf(path)
    model = CausalDecoder.from_gguf(path, classifier=True)
    assert ours.num_labels == model.num_labels == len(labels)
    text = ours.tokenizer.encode(written(*PAIRS[0]), add_special_tokens=False)
    scores = ours.predict(PAIRS)
    assert_same_bits(scores[0], model.classify(model(text.ids)))
    with pytest.raises(ValueError, match="rank: expected a model of one label"):
        ours.rank("the cat", ["a dog"])


def test_one_label_is_the_score(save):
    path, _ = save(("relevant",))
    ours = CrossEncoder.from_gguf(path, max_length=60)
    assert (ours.num_labels, ours.max_length) == (1, 60)
    assert ours.predict(PAIRS).shape == (len(PAIRS),)


@pytest.mark.parametrize("labels", [("yes", "no"), ("a", "b", "c")])
def test_integers_of_a_file_may_be_kept(save, labels):
    head = {"cls.output.weight": gguf_files.random_blocks("Q8_0", (len(labels), 64))}
    path, _ = save(labels, arrays=head, hidden_size=64)
    plain = CrossEncoder.from_gguf(path, activation_fn="identity")
    kept = CrossEncoder.from_gguf(path, activation_fn="identity", weights="file")
    scores = kept.predict(PAIRS)
    np.testing.assert_allclose(scores, plain.predict(PAIRS), rtol=1e-4, atol=1e-5)
    assert_same_bits(kept.predict(PAIRS[1]), scores[1])


# ---- What is refused -----------------------------------------------------------------


def says(*texts):
    """An error that has these."""
    return pytest.raises(ValueError, match=".*".join(map(re.escape, texts)))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({KEY: "only {query}"}, f"expected {KEY} to be a text with {{query}} and"),
        ({KEY: 3}, f"expected {KEY} to be a text with {{query}} and {{document}}"),
        (
            {KEY: "{query}{document}" * 20_000},
            "characters, more than 65,536; from_gguf(",
        ),
        (
            {
                KEY: None,
                "tokenizer.chat_template": "{% for i in range(20000) %}"
                "{% for m in messages %}{{ m.content }}:{{ i }}:::::::::::::::::::::::"
                "{% endfor %}{% endfor %}",
            },
            "got a text of more than 1,049,",
        ),
        (
            {KEY: None, "tokenizer.chat_template": CHATS},
            "leaves out the query and the document; from_gguf(chat_template=) wins",
        ),
        (
            {KEY: None, "tokenizer.chat_template": None},
            "expected a template of pairs, got none; from_gguf(chat_template=) wins",
        ),
        ({"qwen3.pooling_type": 3}, "expected qwen3.pooling_type = 4, got 3"),
        (
            {f"qwen3.{LABELS}": ["yes", "no", "x"]},
            f"expected qwen3.{LABELS} to be the names of 2 scores, got [",
        ),
        ({f"qwen3.{LABELS}": np.array([1, 2])}, "to be the names of 2 scores, got"),
        ({f"qwen3.{LABELS}": "yes"}, "to be the names of 2 scores, got 'yes'"),
        (
            {f"qwen3.{LABELS}": ["yes", "yes"]},
            f"expected qwen3.{LABELS} to be another name for each score, got ['yes'",
        ),
        ({"qwen3.classifier.other": 1}, "expected no qwen3.classifier.other, got 1"),
    ],
)
def test_what_does_not_fit_is_refused(save, changes, text):
    path, _ = save(changes=changes)
    with says(text):
        CrossEncoder.from_gguf(path)


def test_a_language_model_alone_is_no_reranker(save, tmp_path):
    metadata, arrays = gguf_files.talking(families.DECODERS["qwen3"])
    path = gguf_files.write(tmp_path / "plain.gguf", metadata, arrays)
    with says("expected a reranker, with cls.output.weight or the tokens 'yes' and"):
        CrossEncoder.from_gguf(path)
    with says("expected cls.output.weight of a head that scores, got none"):
        CausalDecoder.from_gguf(path, classifier=True)
    path, _ = save()
    with says("expected no qwen3.classifier.output_labels"):
        CausalDecoder.from_gguf(path)
    with refused(TypeError, "chat_template"):
        CrossEncoder.from_gguf(path, chat_template=3)
    with refused(TypeError, "classifier"):
        CausalDecoder.from_gguf(path, classifier="yes")
