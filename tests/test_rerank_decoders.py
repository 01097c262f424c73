"""Pairs and texts to scores by language models: of tokens, or of a classifier."""

import copy
import json
import pickle
import sys

import numpy as np
import pytest
from support import families, sentences
from support.comparisons import assert_same_bits
from support.errors import refused
from support.rerankers import TEMPLATE, write, write_modules, write_tokenizer
from support.sentences import put

from attnpy.models import CausalDecoder, CrossEncoder, TextClassifier, _beginning

sentences.require()
pytest.importorskip("jinja2")

PAIRS = [
    ("the cat", "a dog is under the sea"),
    ("red sun", "the moon is blue ."),
    ("", "the cat sleeps"),
    ("a dog", ""),
    ("the sun " * 9, "the red moon " * 12),
    ("dog <b>", "moon"),
]
# What a model for chats has: texts of other roles are lost.
CHATS = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
PARTS = TEMPLATE.replace("m.content", "m.content[0].text")


def written(first, second, prompt="", end="? answer : [END]"):
    """The text that the template makes of a pair."""
    system = f"find : {prompt} . " if prompt else ""
    return f"{system}query : {first} document : {second} {end}"


def ids_of(encoder, text):
    return encoder.tokenizer.encode(text, add_special_tokens=False).ids


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("language")
    write(path)
    write_modules(path)
    return path


@pytest.fixture(scope="module")
def encoder(folder):
    return CrossEncoder.from_pretrained(folder)


# ---- Scores of tokens ----------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("other", [4, None])
def test_a_score_is_that_of_the_next_token(tmp_path, other):
    tensors, config = write(tmp_path)
    write_modules(tmp_path, {"true_token_id": 3, "false_token_id": other})
    ours = CrossEncoder.from_pretrained(tmp_path, dtype=np.float64)
    assert (ours.true_token_id, ours.false_token_id) == (3, other)
    expected = []
    for pair in PAIRS:
        last = families.logits(tensors, config, ids_of(ours, written(*pair)))[-1]
        expected.append(last[3] - (0 if other is None else last[other]))
    assert np.abs(expected).max() > 0.1
    found = ours.predict(PAIRS, activation_fn="identity")
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(ours.predict(PAIRS), sigmoid(np.array(expected)))
    assert ours.num_labels == 1


@pytest.mark.quick
def test_scores_have_the_same_bits_in_any_company(encoder):
    scores = encoder.predict(PAIRS)
    assert len(set(scores.tolist())) == len(PAIRS)
    for options in ({"batch_size": 1}, {"batch_size": 4}, {"num_threads": 1}):
        assert_same_bits(encoder.predict(PAIRS, **options), scores)
    for pair, score in zip(PAIRS, scores, strict=True):
        assert encoder.predict(pair) == score
    documents = [second for _, second in PAIRS]
    found = encoder.rank("the cat", documents)
    expected = encoder.predict([("the cat", text) for text in documents])
    assert [x["corpus_id"] for x in found] == (-expected).argsort().tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_what_texts_begin_with_is_computed_once(folder, monkeypatch, dtype):
    pytest.importorskip("ml_dtypes")
    read = {"dtype": dtype} if dtype != "int8" else {"weights": "int8"}
    ours = CrossEncoder.from_pretrained(folder, **read)
    documents = [second for _, second in PAIRS] * 3
    pairs = [("the cat is under the sea", text) for text in documents]
    computed = []

    def call(self, ids, **options):
        lengths = options.get("lengths", [len(ids[0])])
        computed.append(int(np.sum(lengths)))
        return plain(self, ids, **options)

    plain = CausalDecoder.__call__
    monkeypatch.setattr(CausalDecoder, "__call__", call)
    monkeypatch.setattr(_beginning, "FEWEST", 10**9)
    options = {"prompt": "the red sun is blue . " * 2, "batch_size": 5}
    expected = ours.predict(pairs, **options)
    whole = sum(computed)
    monkeypatch.setattr(_beginning, "FEWEST", 16)
    for most in (1 << 28, 20_000, 1):
        computed.clear()
        monkeypatch.setattr(_beginning, "MOST_BYTES", most)
        assert_same_bits(ours.predict(pairs, **options), expected)
        assert sum(computed) < whole / 2
    computed.clear()
    others = [(f"{word} sun", text) for word in ("the", "a") for text in documents]
    scores = ours.predict(others, **options)
    assert sum(computed) < whole * 2
    for i in (0, 20, -1):
        assert ours.predict(others[i], prompt=options["prompt"]) == scores[i]


def test_a_prompt_is_a_message_of_the_system(tmp_path):
    write(tmp_path)
    prompts = {"prompts": {"short": "the sun"}, "default_prompt_name": "short"}
    write_modules(tmp_path, **prompts)
    ours = CrossEncoder.from_pretrained(tmp_path)
    plain = ours.predict(PAIRS, prompt="")
    template = ours.chat_template.replace("find :", "dog :")
    other = CrossEncoder.from_pretrained(tmp_path, chat_template=template)
    assert_same_bits(other.predict(PAIRS, prompt=""), plain)
    usual = ours.predict(PAIRS)
    assert_same_bits(ours.predict(PAIRS, prompt="the sun"), usual)
    assert_same_bits(ours.predict(PAIRS, prompt_name="short"), usual)
    assert (usual != plain).all()
    assert (other.predict(PAIRS) != usual).all()


def cut(ids, n, end, side):
    """Tokens cut to n, with the same end."""
    if len(ids) <= n:
        return ids
    return (ids[:n] if side == "right" else ids[-n:])[: n - len(end)] + end


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("length", [5, 9, 24])
def test_the_end_of_what_the_template_writes_is_never_cut(tmp_path, side, length):
    tensors, config = write(tmp_path, truncation_side=side)
    write_modules(tmp_path)
    read = {"dtype": np.float64, "max_length": length}
    ours = CrossEncoder.from_pretrained(tmp_path, **read)
    end = ids_of(ours, "? answer : [END]")
    expected = []
    for pair in PAIRS:
        ids = cut(ids_of(ours, written(*pair)), length, end, side)
        assert ids[-4:] == end
        last = families.logits(tensors, config, ids)[-1]
        expected.append(last[3] - last[4])
    found = ours.predict(PAIRS, activation_fn="identity")
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    short = CrossEncoder.from_pretrained(tmp_path, max_length=4)
    with pytest.raises(
        ValueError, match="max_length: expected more than 4, the tokens"
    ):
        short.predict(PAIRS)


def test_contents_may_be_lists_of_parts(tmp_path, encoder):
    write(tmp_path, template=PARTS)
    scores = encoder.predict(PAIRS)
    by_text = {"method": "forward", "method_output_name": "logits"}
    for how in ({"format": "structured"}, {"format": "auto"}, {}):
        write_modules(tmp_path, said={"message": {**by_text, **how}})
        ours = CrossEncoder.from_pretrained(tmp_path)
        assert ours.message_format == "structured"
        assert_same_bits(ours.predict(PAIRS), scores)
    write_modules(tmp_path)  # which says that they are texts
    with pytest.raises(ValueError, match="leaves out the query and the document"):
        CrossEncoder.from_pretrained(tmp_path)


def test_a_language_model_alone_has_the_tokens_yes_and_no(tmp_path, encoder):
    write(tmp_path)
    ours = CrossEncoder.from_pretrained(tmp_path)
    assert (ours.true_token_id, ours.false_token_id) == (3, 4)
    # Nobody has set add_generation_prompt.
    template = TEMPLATE.replace("{% if add_generation_prompt %}", "{% if true %}")
    ours = CrossEncoder.from_pretrained(tmp_path, chat_template=template)
    assert_same_bits(ours.predict(PAIRS), encoder.predict(PAIRS))
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="expected a chat_template, as its texts are"):
        CrossEncoder.from_pretrained(tmp_path)  # such as bge-reranker-v2-gemma
    model = CausalDecoder.from_pretrained(tmp_path)
    tokens = {"true_token_id": 3, "false_token_id": 4}
    ours = CrossEncoder(model, ours.tokenizer, **tokens)  # which makes pairs
    ids = ours.tokenizer.encode(*PAIRS[0]).ids
    last = model.logits(model(ids)[-1:])[0]
    assert ours.predict(PAIRS[0], activation_fn="identity") == last[3] - last[4]
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["vocab"]["nay"] = content["model"]["vocab"].pop("no")
    put(tmp_path / "tokenizer.json", content)
    with pytest.raises(ValueError, match="expected a tokenizer with 'no', or a module"):
        CrossEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
def test_weights_may_be_integers(folder, encoder):
    ours = CrossEncoder.from_pretrained(folder, weights="int8")
    scores = ours.predict(PAIRS)
    np.testing.assert_allclose(scores, encoder.predict(PAIRS), atol=0.05)
    assert ours.predict(PAIRS[1]) == scores[1]


# ---- Classifiers ---------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize("n_labels", [1, 3])
def test_the_last_token_is_classified(tmp_path, kind, n_labels):
    padding = {"padding_side": "right"}
    tensors, _ = write(tmp_path, kind, n_labels, None, **padding)
    model = CausalDecoder.from_pretrained(tmp_path, classifier=True, dtype=np.float64)
    assert model.num_labels == n_labels
    ours = CrossEncoder.from_pretrained(tmp_path, dtype=np.float64)
    scores = ours.predict(PAIRS[:4], activation_fn="identity")
    for pair, score in zip(PAIRS, scores, strict=False):
        last = model(ours.tokenizer.encode(*pair).ids)[-1]
        expected = tensors["score.weight"].astype(float) @ last
        np.testing.assert_allclose(np.atleast_1d(score), expected, rtol=1e-10)
    single = TextClassifier.from_pretrained(tmp_path, function="none")
    text = single.scores("the cat")
    last = model([*ids_of(ours, "the cat"), 2])[-1]
    np.testing.assert_allclose(text, tensors["score.weight"] @ last, rtol=1e-4)
    assert single.label_names == tuple(f"label {i}" for i in range(n_labels))


def test_a_text_that_ends_in_padding_is_scored_before_it(tmp_path):
    write(tmp_path, n_labels=1, template=None)
    ours = CrossEncoder.from_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["post_processor"]["special_tokens"]["[END]"]["ids"] = [1]
    put(tmp_path / "tokenizer.json", content)
    padded = CrossEncoder.from_pretrained(tmp_path)
    assert padded.tokenizer.encode("cat", "dog").ids[-1] == 1
    model = ours.model
    for pair in (("cat", "dog"), ("the cat", "")):
        ids = padded.tokenizer.encode(*pair).ids
        expected = model.classify(model(ids[:-1]))[0]
        assert padded.predict(pair, activation_fn="identity") == expected
    scores = padded.predict([("cat", "dog"), ("the cat", "")])
    assert scores[1] == padded.predict(("the cat", ""))


def test_a_template_of_chats_is_for_pairs_if_it_writes_both_texts(tmp_path, encoder):
    write(tmp_path, n_labels=1, template=None)
    plain = CrossEncoder.from_pretrained(tmp_path).predict(PAIRS)
    (tmp_path / "chat_template.jinja").write_text(CHATS)
    ours = CrossEncoder.from_pretrained(tmp_path)
    assert ours.chat_template is None
    assert_same_bits(ours.predict(PAIRS), plain)
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": TEMPLATE}, {"name": "x", "template": "y"}]
    for template in (TEMPLATE, named):
        write_tokenizer(tmp_path, chat_template=template)
        ours = CrossEncoder.from_pretrained(tmp_path)
        assert ours.chat_template == TEMPLATE
        ids = ids_of(ours, written(*PAIRS[0], end=""))
        expected = ours.model.classify(ours.model(ids))[0]
        assert ours.predict(PAIRS[0], activation_fn="identity") == expected


@pytest.mark.quick
@pytest.mark.parametrize("batched", [False, True])
def test_the_pullback_of_a_classifier_is_its_derivative(batched):
    rng = np.random.default_rng(0)
    sizes = {"vocab_size": 9, "num_labels": 2, "tied": None, "dtype": np.float64}
    model = CausalDecoder(1, 4, 1, 4, **sizes, rng=rng)
    states, lengths = rng.standard_normal((3, 5, 4)), [5, 2, 1]
    if not batched:
        states, lengths = states[0], 3
    scores, pullback = model.classify_vjp(states, lengths=lengths)
    assert_same_bits(scores, model.classify(states, lengths=lengths))
    grad = rng.standard_normal(scores.shape)
    found = pullback(grad)
    step, change = 1e-6, rng.standard_normal(states.shape)
    up, down = (
        (model.classify(states + s * change, lengths=lengths) * grad).sum()
        for s in (step, -step)
    )
    np.testing.assert_allclose((found.x * change).sum(), (up - down) / 2 / step)
    last = states[2] if not batched else states[np.arange(3), np.array(lengths) - 1]
    expected = np.atleast_2d(last).T @ np.atleast_2d(grad)
    np.testing.assert_allclose(found.parameters["classifier_weight"], expected)
    assert set(found.parameters) == {"classifier_weight"}


# ---- What is refused -----------------------------------------------------------------


def message(**changes):
    by_text = {"method": "forward", "method_output_name": "logits"}
    return {"message": {**by_text, "format": "flat", **changes}}


REFUSED = [
    ({"scores": {}}, "expected true_token_id, got None"),
    ({"scores": {"true_token_id": 99}}, "true_token_id: expected 0 to 28, got 99"),
    ({"scores": {"true_token_id": -1}}, "true_token_id: expected at least 0, got -1"),
    ({"scores": {"true_token_id": "3"}}, "true_token_id to be an integer, got"),
    (
        {"scores": {"true_token_id": 3, "module_input_name": "x"}},
        'module_input_name = "causal_logits"',
    ),
    ({"said": message(format="other")}, "messages that go forward, got"),
    ({"said": message(method="x")}, "messages that go forward, got"),
    ({"said": {"image": {}}}, "expected modality_config = "),
    ({"variables": {"restore_suffix": False}}, "restore_suffix = true"),
    ({"variables": {"max_length": 9}}, "without max_length of chats"),
    ({"variables": {"messages": []}}, "names of variables other than messages"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED)
def test_what_files_say_is_honoured_or_refused(tmp_path, changes, text):
    write(tmp_path)
    write_modules(tmp_path, **changes)
    with pytest.raises(ValueError, match=text):
        CrossEncoder.from_pretrained(tmp_path)


def test_templates_that_cannot_be_used_are_refused(tmp_path):
    write(tmp_path, template=None)
    write_modules(tmp_path)
    with pytest.raises(
        ValueError, match="expected a chat_template, as its texts are m"
    ):
        CrossEncoder.from_pretrained(tmp_path)
    given = CrossEncoder.from_pretrained(tmp_path, chat_template=TEMPLATE)
    assert given.chat_template_kwargs == {
        "eos_token": "[END]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "add_generation_prompt": True,
    }
    for template, text in (
        (CHATS, "leaves out the query and the document; from_pretrained"),
        ("{{ messages[0].content }}", "leaves out the document; from_pretrained"),
        ("{{ messages[1].content }}", "leaves out the query; from_pretrained"),
        ("{% if %}", "a template that can be used, got Expected an expr"),
        ("{{ raise_exception('no') }}", "expected messages that its template takes"),
    ):
        (tmp_path / "chat_template.jinja").write_text(template)
        with pytest.raises(ValueError, match=text):
            CrossEncoder.from_pretrained(tmp_path)
        CrossEncoder.from_pretrained(tmp_path, chat_template=TEMPLATE)
    (tmp_path / "chat_template.jinja").unlink()
    write_tokenizer(tmp_path, chat_template=[{"name": "x", "template": "y"}])
    with pytest.raises(ValueError, match="to be a text, or to have a default"):
        CrossEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
def test_wrong_arguments_are_named(encoder):
    model, tokenizer = encoder.model, encoder.tokenizer
    labels = CausalDecoder(1, 4, 1, 4, vocab_size=29, num_labels=2)
    bare = CausalDecoder(1, 4, 1, 4, vocab_size=29, num_labels=2, tied=None)
    for given, error, name, options in (
        (model, ValueError, "model", {}),
        (model, ValueError, "true_token_id", {"false_token_id": 3}),
        (model, TypeError, "true_token_id", {"true_token_id": "yes"}),
        (model, ValueError, "true_token_id", {"true_token_id": 29}),
        (
            *(model, ValueError, "false_token_id"),
            {"true_token_id": 3, "false_token_id": 3},
        ),
        (labels, ValueError, "true_token_id", {"true_token_id": 3}),
        (bare, ValueError, "true_token_id", {"true_token_id": 3}),
        (bare, ValueError, "chat_template", {"message_format": "flat"}),
        (bare, ValueError, "chat_template", {"chat_template_kwargs": {}}),
        (bare, TypeError, "chat_template", {"chat_template": 3}),
        (bare, ValueError, "chat_template", {"chat_template": "a"}),
        (
            *(bare, TypeError, "chat_template_kwargs"),
            {"chat_template": TEMPLATE, "chat_template_kwargs": 3},
        ),
        (
            *(bare, ValueError, "message_format"),
            {"chat_template": TEMPLATE, "message_format": "x"},
        ),
    ):
        with refused(error, name):
            CrossEncoder(given, tokenizer, **options)
    with pytest.raises(
        ValueError, match="classifier: expected a model with num_labels"
    ):
        model.classify(np.ones((2, 16)))
    with refused(ValueError, "states"):
        bare.classify(np.ones((2, 3)))
    with refused(ValueError, "lengths"):
        bare.classify(np.ones((2, 4), np.float32), lengths=0)
    with refused(ValueError, "num_labels"):
        CausalDecoder(1, 4, 1, 4, vocab_size=29, num_labels=0)


def test_a_model_with_logits_and_classifier_is_not_saved(tmp_path):
    write(tmp_path, n_labels=2)
    model = CausalDecoder.from_pretrained(tmp_path, classifier=True)
    model.tied = True
    with pytest.raises(ValueError, match="expected logits or a classifier to save"):
        model.save_pretrained(tmp_path)


def test_without_jinja2_errors_say_what_to_install(folder, encoder, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    for call in (
        lambda: encoder.predict(PAIRS),
        lambda: CrossEncoder.from_pretrained(folder),
    ):
        with pytest.raises(ImportError, match="pip install jinja2"):
            call()


@pytest.mark.quick
def test_it_can_be_pickled_and_copied(encoder):
    scores = encoder.predict(PAIRS)
    for other in (pickle.loads(pickle.dumps(encoder)), copy.deepcopy(encoder)):
        assert repr(other) == repr(encoder)
        assert_same_bits(other.predict(PAIRS), scores)
    assert "true_token_id=3, false_token_id=4, message_format='flat'" in repr(encoder)


# ---- Theirs --------------------------------------------------------------------------


@pytest.mark.parametrize("template", [TEMPLATE, PARTS])
def test_scores_are_those_of_sentence_transformers(tmp_path, template):
    """`pip install sentence-transformers`."""
    theirs = pytest.importorskip("sentence_transformers", minversion="6")
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("sentence_transformers.cross_encoder.modules")
    write(tmp_path, template=template, model_max_length=24)
    wide = {"model_kwargs": {"dtype": torch.float64}}
    transformer = modules.Transformer(
        str(tmp_path),
        transformer_task="text-generation",
        processing_kwargs={"chat_template": {"add_generation_prompt": True}},
        **wide,
    )
    head = modules.LogitScore(true_token_id=3, false_token_id=4)
    model = theirs.CrossEncoder(
        modules=[transformer, head],
        prompts={"short": "the sun"},
        default_prompt_name="short",
        device="cpu",
    )
    model.save_pretrained(str(tmp_path / "saved"))
    ours = CrossEncoder.from_pretrained(tmp_path / "saved", dtype=np.float64)
    assert ours.max_length == 24
    for options in ({}, {"prompt": ""}, {"prompt": "red moon"}):
        expected = model.predict(PAIRS, **options)
        np.testing.assert_allclose(ours.predict(PAIRS, **options), expected, rtol=1e-5)


def test_classifiers_score_as_in_sentence_transformers(tmp_path):
    theirs = pytest.importorskip("sentence_transformers")
    torch = pytest.importorskip("torch")
    write(tmp_path, n_labels=1, template=None)
    wide = {"model_kwargs": {"dtype": torch.float64}, "device": "cpu"}
    model = theirs.CrossEncoder(str(tmp_path), **wide)
    ours = CrossEncoder.from_pretrained(tmp_path, dtype=np.float64)
    np.testing.assert_allclose(ours.predict(PAIRS), model.predict(PAIRS), rtol=1e-5)
