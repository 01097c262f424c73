"""Pairs of texts to scores, from folders of sentence-transformers and Transformers."""

import copy
import importlib.util
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from support import (
    encoder_decoders,
    families,
    gguf_files,
    pages,
    rerankers,
    sentences,
)
from support.comparisons import assert_same_bits
from support.errors import refused
from support.sentences import PAIRS, put, write_scorer

from attnpy.models import BertEncoder, CrossEncoder, _text_scores

sentences.require()

KINDS = pytest.mark.parametrize("kind", families.ENCODERS)


def read(folder, **options):
    return CrossEncoder.from_pretrained(folder, dtype=np.float64, **options)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def expected_logits(encoder, tensors, config, pairs):
    """By the arithmetic of the model, in float64."""
    scores = []
    for first, second in pairs:
        code = encoder.tokenizer.encode(first, second)
        types = np.array(code.type_ids) if encoder.token_types else 0
        ids = np.array(code.ids)
        scores.append(families.text_scores(tensors, config, ids, types))
    return np.array(scores)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("reranker")
    write_scorer(path)
    return path


@pytest.fixture(scope="module")
def encoder(folder):
    return CrossEncoder.from_pretrained(folder)


# ---- Scores --------------------------------------------------------------------------


@pytest.mark.quick
@KINDS
@pytest.mark.parametrize("n_labels", [1, 3])
def test_scores_are_the_models_arithmetic(tmp_path, kind, n_labels):
    tensors, config = write_scorer(tmp_path, kind, n_labels)
    encoder = read(tmp_path)
    assert encoder.num_labels == n_labels
    with_types = "bert", "electra", "albert", "nomic_bert", *families.JINA_BERTS
    assert encoder.token_types == (kind in with_types)
    expected = expected_logits(encoder, tensors, config, PAIRS)
    expected = sigmoid(expected)[:, 0] if n_labels == 1 else expected
    scores = encoder.predict(PAIRS)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-12)
    narrow = CrossEncoder.from_pretrained(tmp_path).predict(PAIRS)
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, expected, atol=2e-5)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in families.ENCODERS),
        ("modernbert", {"classifier_pooling": "mean"}),
    ],
)
def test_scores_have_the_same_bits_in_any_company(tmp_path, kind, changes):
    write_scorer(tmp_path, kind, config=changes)
    encoder = CrossEncoder.from_pretrained(tmp_path)
    pairs = [*PAIRS, *PAIRS[::-1]]
    scores = encoder.predict(pairs)
    for pair, score in zip(pairs, scores, strict=True):
        assert encoder.predict(pair) == score
    for options in ({"batch_size": 1}, {"batch_size": 4}, {"num_threads": 1}):
        assert_same_bits(encoder.predict(pairs, **options), scores)
    assert_same_bits(encoder.predict(iter(pairs)), scores)
    assert_same_bits(encoder.predict(np.array(pairs)), scores)
    assert_same_bits(encoder.predict([list(pair) for pair in pairs]), scores)
    assert encoder.predict(np.array(pairs[1])) == scores[1]


@pytest.mark.quick
def test_pairs_are_scored_by_bart(tmp_path):
    tensors, config = sentences.write_bart(tmp_path)
    judge = read(tmp_path)
    codes = [judge.tokenizer.encode(*pair).ids for pair in PAIRS]
    expected = [encoder_decoders.text_scores(tensors, config, ids) for ids in codes]
    scores = judge.predict(PAIRS)
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-12)
    (tmp_path / "b").mkdir()
    judge.save_pretrained(tmp_path / "b")
    assert_same_bits(read(tmp_path / "b").predict(PAIRS), scores)
    with refused(ValueError, "true_token_id"):
        CrossEncoder(judge.model, judge.tokenizer, true_token_id=3)


def test_windows_of_pairs_change_nothing(encoder, monkeypatch):
    scores = encoder.predict(PAIRS)
    monkeypatch.setattr(_text_scores, "WINDOW", 1)
    for batch_size in (1, 4):
        assert_same_bits(encoder.predict(PAIRS, batch_size=batch_size), scores)


@pytest.mark.quick
def test_no_pair_is_no_score(tmp_path, encoder):
    for none in ([], (), iter([]), np.array([], str)):
        assert encoder.predict(none).shape == (0,)
    write_scorer(tmp_path, n_labels=3)
    several = CrossEncoder.from_pretrained(tmp_path)
    assert several.predict([]).shape == (0, 3)
    assert several.predict(PAIRS[0]).shape == (3,)
    assert several.predict(PAIRS[:1]).shape == (1, 3)
    assert encoder.predict(PAIRS[0]).shape == ()
    assert encoder.rank("cat", []) == []


def test_the_tokenizers_own_padding_and_cutting_are_turned_off(folder, encoder):
    content = json.loads((folder / "tokenizer.json").read_text())
    assert content["padding"]["strategy"] == {"Fixed": 9}
    assert content["truncation"]["max_length"] == 5
    assert len(encoder.tokenizer.encode("a cat", "a dog").ids) == 7
    assert len(encoder.tokenizer.encode(*PAIRS[-1]).ids) == encoder.max_length == 16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "auto"])
def test_models_of_16_bits_give_scores_of_float32(folder, encoder, dtype):
    pytest.importorskip("ml_dtypes")
    narrow = CrossEncoder.from_pretrained(folder, dtype=dtype)
    scores = narrow.predict(PAIRS)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, encoder.predict(PAIRS), atol=0.05)
    assert narrow.predict(PAIRS[4]) == scores[4]


# ---- Ranks ---------------------------------------------------------------------------


@pytest.mark.quick
def test_documents_come_in_the_order_of_their_scores(encoder):
    documents = [second for _, second in PAIRS]
    scores = encoder.predict([("the cat", text) for text in documents])
    ranked = encoder.rank("the cat", iter(documents), return_documents=True)
    assert sorted(entry["corpus_id"] for entry in ranked) == list(range(len(PAIRS)))
    order = [entry["corpus_id"] for entry in ranked]
    assert order == list(np.argsort(-scores, kind="stable"))
    for entry in ranked:
        assert list(entry) == ["corpus_id", "score", "text"]
        assert entry["score"] == scores[entry["corpus_id"]]
        assert isinstance(entry["score"], float)
        assert entry["text"] == documents[entry["corpus_id"]]
    best = encoder.rank("the cat", documents, 3)
    assert best == [{k: e[k] for k in ("corpus_id", "score")} for e in ranked[:3]]
    assert encoder.rank("the cat", documents, top_k=99) == encoder.rank(
        "the cat", documents
    )


def test_equal_documents_keep_their_order_and_nan_is_last(encoder):
    ranked = encoder.rank("the cat", ["a dog", "red", "a dog", "a dog"])
    dogs = [entry["corpus_id"] for entry in ranked if entry["corpus_id"] != 1]
    assert dogs == [0, 2, 3]

    def numbers(logits):
        return np.array([np.nan, 2.0, np.nan, 3.0])

    ranked = encoder.rank("the cat", ["a", "b", "c", "d"], activation_fn=numbers)
    assert [entry["corpus_id"] for entry in ranked] == [3, 1, 0, 2]


# ---- Options -------------------------------------------------------------------------


@pytest.mark.quick
def test_activations_are_their_formulas(tmp_path):
    write_scorer(tmp_path, n_labels=3)
    encoder = read(tmp_path)
    logits = encoder.predict(PAIRS)
    assert_same_bits(encoder.predict(PAIRS, activation_fn="identity"), logits)
    np.testing.assert_allclose(
        encoder.predict(PAIRS, activation_fn="sigmoid"), sigmoid(logits), rtol=1e-14
    )
    np.testing.assert_allclose(
        encoder.predict(PAIRS, activation_fn="tanh"), np.tanh(logits), rtol=1e-14
    )
    parts = np.exp(logits)
    expected = parts / parts.sum(axis=1, keepdims=True)
    probabilities = encoder.predict(PAIRS, apply_softmax=True)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-13)
    one = encoder.predict(PAIRS[2], apply_softmax=True)
    assert_same_bits(one, probabilities[2])
    assert_same_bits(
        encoder.predict(PAIRS, activation_fn=lambda x: x[:, 1]), logits[:, 1]
    )
    other = read(tmp_path, activation_fn="sigmoid")
    np.testing.assert_allclose(other.predict(PAIRS), sigmoid(logits), rtol=1e-14)
    with pytest.raises(ValueError, match=r"activation_fn: expected a function that"):
        encoder.predict(PAIRS, activation_fn=lambda x: x[1:])


def test_a_sigmoid_cancels_nowhere():
    x = np.array([-800.0, -700.0, -30.0, -1e-9, 0.0, 1e-9, 40.0, 800.0, np.nan])
    with np.errstate(over="ignore"):
        expected = sigmoid(x)
    np.testing.assert_allclose(_text_scores.sigmoid(x), expected, rtol=1e-14)
    far = np.array([-np.inf, np.inf, -1e30], np.float32)
    assert _text_scores.sigmoid(far).tolist() == [0, 1, 0]


FOLDERS = [
    ({}, {}, "sigmoid"),
    ({"sbert_ce_default_activation_function": "torch.nn.Identity"}, {}, "identity"),
    ({"sentence_transformers": {"version": "5.0.0"}}, {}, "sigmoid"),
    (
        {
            "sentence_transformers": {
                "activation_fn": "torch.nn.modules.linear.Identity",
                "version": "4.1.0",
            }
        },
        {},
        "identity",
    ),
    (
        {"sbert_ce_default_activation_function": "torch.nn.Identity"},
        {"activation_fn": "torch.nn.modules.activation.Tanh"},
        "tanh",
    ),
]


@pytest.mark.quick
@pytest.mark.parametrize(("inside", "beside", "expected"), FOLDERS)
def test_the_folder_says_the_activation(tmp_path, inside, beside, expected):
    write_scorer(tmp_path, config=inside)
    put(tmp_path / "config_sentence_transformers.json", beside)
    encoder = read(tmp_path)
    assert encoder.activation_fn == expected
    assert read(tmp_path, activation_fn="relu").activation_fn == "relu"
    assert_same_bits(
        encoder.predict(PAIRS), encoder.predict(PAIRS, activation_fn=expected)
    )


def write_modules(folder, *kinds, **config):
    """Write what sentence-transformers 5.4 and later write beside the model."""
    listed = [
        {"idx": i, "name": str(i), "path": "", "type": f"sentence_transformers.{kind}"}
        for i, kind in enumerate(kinds or ["base.modules.transformer.Transformer"])
    ]
    put(folder / "modules.json", listed)
    own = {"model_type": "CrossEncoder", "__version__": {"pytorch": "2.13.0"}}
    put(folder / "config_sentence_transformers.json", {**own, **config})
    method = {"method": "forward", "method_output_name": "logits"}
    sentence = {
        "transformer_task": "sequence-classification",
        "module_output_name": "scores",
        "modality_config": {"text": method},
    }
    put(folder / "sentence_bert_config.json", sentence)


@pytest.mark.quick
def test_a_folder_with_modules_is_the_same(tmp_path, encoder):
    write_scorer(tmp_path)
    prompts = {"query": "query : ", "none": None}
    write_modules(tmp_path, prompts=prompts, keep_in_fp32_modules=[])
    other = CrossEncoder.from_pretrained(tmp_path)
    scores = encoder.predict(PAIRS)
    assert_same_bits(other.predict(PAIRS), scores)
    expected = encoder.predict([(f"query : {a}", b) for a, b in PAIRS])
    assert not (expected == scores).all()
    assert_same_bits(other.predict(PAIRS, prompt_name="query"), expected)
    assert_same_bits(other.predict(PAIRS, prompt="query : "), expected)
    ranked = other.rank(PAIRS[1][0], [PAIRS[1][1]], prompt_name="query")
    assert ranked[0]["score"] == expected[1]
    write_modules(tmp_path, prompts=prompts, default_prompt_name="query")
    usual = CrossEncoder.from_pretrained(tmp_path)
    assert_same_bits(usual.predict(PAIRS), expected)
    assert_same_bits(usual.predict(PAIRS, prompt=""), scores)


@pytest.mark.quick
def test_the_longer_text_is_cut_first(tmp_path, encoder):
    tokens = encoder.tokenizer.encode("a red dog", sentences.LONG).tokens
    assert tokens[:5] == ["[CLS]", "a", "red", "dog", "[SEP]"]
    assert len(tokens) == 16
    for options, length in (
        ({"model_max_length": 9}, 9),
        ({"model_max_length": 99}, 16),
    ):
        write_scorer(tmp_path, **options)
        other = CrossEncoder.from_pretrained(tmp_path)
        assert other.max_length == length
        assert len(other.tokenizer.encode(*PAIRS[-1]).ids) == length
    short = CrossEncoder.from_pretrained(tmp_path, max_length=9)
    assert short.max_length == 9
    put(tmp_path / "sentence_bert_config.json", {"max_seq_length": 8})
    assert CrossEncoder.from_pretrained(tmp_path).max_length == 8
    write_scorer(tmp_path, truncation_side="left")
    left = CrossEncoder.from_pretrained(tmp_path)
    assert left.tokenizer.encode("a red dog", sentences.LONG).tokens[-2] == "tree"
    for wrong in (0, 3, 17):
        with refused(ValueError, "max_length"):
            CrossEncoder.from_pretrained(tmp_path, max_length=wrong)


CLASSES = [
    ({"tokenizer_class": "BertTokenizerFast"}, True),
    ({"tokenizer_class": "BertTokenizer"}, True),
    ({"tokenizer_class": None}, True),
    ({"tokenizer_class": "RobertaTokenizer"}, False),
    ({"tokenizer_class": "TokenizersBackend"}, False),
    ({"model_input_names": ["input_ids", "attention_mask"]}, False),
    ({"model_input_names": sentences.INPUTS, "tokenizer_class": "Any"}, True),
]


@pytest.mark.quick
@pytest.mark.parametrize(("settings", "told"), CLASSES)
def test_types_are_told_where_the_tokenizer_does(tmp_path, settings, told):
    tensors, config = write_scorer(
        tmp_path, **{"model_input_names": None, "tokenizer_class": None, **settings}
    )
    encoder = read(tmp_path)
    assert encoder.token_types is told
    expected = sigmoid(expected_logits(encoder, tensors, config, PAIRS))[:, 0]
    np.testing.assert_allclose(encoder.predict(PAIRS), expected, rtol=1e-10)
    other = read(tmp_path, token_types=not told).predict(PAIRS)
    assert not (other == encoder.predict(PAIRS)).any()


def test_types_that_nobody_settles_are_refused_where_they_matter(tmp_path):
    unknown = {"model_input_names": None, "tokenizer_class": "PreTrainedTokenizerFast"}
    write_scorer(tmp_path, **unknown)
    with pytest.raises(
        ValueError, match="expected model_input_names, or a tokenizer_c"
    ):
        read(tmp_path)
    for told in (True, False):
        assert read(tmp_path, token_types=told).token_types is told
    write_scorer(tmp_path, "roberta", **unknown)  # with one type
    assert read(tmp_path).token_types is False
    text = r"token_types: expected False, or types below num_types = 1 .*got True and 1"
    with pytest.raises(ValueError, match=text):
        read(tmp_path, token_types=True)


# ---- What is refused -----------------------------------------------------------------


WRONG_CONFIGS = [
    ({"sbert_ce_default_activation_function": "my.Code"}, "expected an activation of"),
    ({"sbert_ce_default_activation_function": ["x"]}, "expected an activation of"),
    ({"sentence_transformers": {"x": 1}}, "sentence_transformers to be a mapping of"),
    ({"sentence_transformers": [1]}, "sentence_transformers to be a mapping of"),
    ({"id2label": {}}, "expected id2label to be a mapping"),
    ({"id2label": {"0": "x", "1": "x"}}, "another name for each score, got 'x' twice"),
    ({"architectures": ["BertForTokenClassification"]}, "got 'BertForTokenClass"),
    ({"model_type": "t5"}, "classifier: expected False, as t5 has no such head here"),
    ({"model_type": "funnel"}, "expected model_type = bert"),
]


@pytest.mark.parametrize(("config", "text"), WRONG_CONFIGS)
def test_what_a_configuration_says_is_honoured_or_refused(tmp_path, config, text):
    write_scorer(tmp_path, config=config if "model_type" not in config else None)
    if "model_type" in config:
        put(tmp_path / "config.json", config)
    with pytest.raises(ValueError, match=text):
        read(tmp_path)


WRONG_FILES = [
    ("modules.json", [], "expected a Transformer alone, got none"),
    (
        "modules.json",
        [{"type": "sentence_transformers.models.Transformer"}] * 2,
        "expected a Transformer alone, got Transformer, Transformer",
    ),
    (
        "modules.json",
        [
            {"type": f"sentence_transformers.models.{kind}"}
            for kind in ("Transformer", "Pooling")
        ],
        "got Transformer, Pooling: SentenceEncoder reads it",
    ),
    (
        "config_sentence_transformers.json",
        {"model_type": "SentenceTransformer"},
        'expected model_type = "CrossEncoder", got',
    ),
    ("config_sentence_transformers.json", {"x_y": 1}, "expected no x_y, got 1"),
    ("config_sentence_transformers.json", {"activation_fn": 1}, "to be a name, got 1"),
    (
        "config_sentence_transformers.json",
        {"activation_fn": "torch.nn.Softmax"},
        r"expected an activation of .*, got 'torch.nn.Softmax'; activation_fn= wins",
    ),
    (
        "config_sentence_transformers.json",
        {"keep_in_fp32_modules": ["0.model.classifier"]},
        r"expected keep_in_fp32_modules = \[\], got",
    ),
    (
        "sentence_bert_config.json",
        {"transformer_task": "feature-extraction"},
        'expected transformer_task = "sequence-classification", got',
    ),
    ("sentence_bert_config.json", {"max_seq_length": 17}, "expected at most 16, for "),
    ("tokenizer_config.json", {"padding_side": "left"}, 'expected padding_side = "ri'),
    ("tokenizer_config.json", {"model_input_names": 1}, "to be a list of names"),
]


@pytest.mark.parametrize(("name", "content", "text"), WRONG_FILES)
def test_what_files_say_is_honoured_or_refused(tmp_path, name, content, text):
    write_scorer(tmp_path)
    put(tmp_path / name, content)
    with pytest.raises(ValueError, match=text):
        read(tmp_path)


@pytest.mark.parametrize(
    ("pairs", "error", "words"),
    [
        (3, TypeError, "pairs: expected pairs of strings, got int"),
        ("cat", TypeError, "pairs: expected pairs of strings, got str"),
        ({"a": "b"}, TypeError, "pairs: expected pairs of strings, got dict"),
        (
            ("a", "b", "c"),
            ValueError,
            "pairs: expected a pair of strings, got 3 values",
        ),
        (["a"], ValueError, "pairs: expected a pair of strings, got 1 values"),
        ([("a", "b"), "cd"], ValueError, r"pairs\[1\]: expected a pair of .* got str"),
        ([("a", "b"), ("a",)], ValueError, r"pairs\[1\]: expected a pair of strings"),
        (
            [("a", "b"), ("a", 3)],
            TypeError,
            r"pairs\[1\]\[1\]: expected a string, got ",
        ),
        (("a", None), TypeError, r"pairs\[1\]: expected a string, got NoneType"),
        ([("a", "\ud800")], ValueError, r"pairs\[0\]\[1\]: expected a text in Unicode"),
    ],
)
def test_what_is_no_pair_is_refused_by_its_place(encoder, pairs, error, words):
    with pytest.raises(error, match=words):
        encoder.predict(pairs)


def test_wrong_arguments_are_named(tmp_path, encoder):
    for error, argument, call in (
        (ValueError, "batch_size", lambda: encoder.predict(PAIRS, batch_size=0)),
        (TypeError, "apply_softmax", lambda: encoder.predict(PAIRS, apply_softmax=1)),
        (TypeError, "activation_fn", lambda: encoder.predict(PAIRS, activation_fn=1)),
        (ValueError, "activation_fn", lambda: encoder.predict([], activation_fn="x")),
        (ValueError, "prompt_name", lambda: encoder.predict(PAIRS, prompt_name="x")),
        (TypeError, "query", lambda: encoder.rank(1, ["a"])),
        (TypeError, "documents", lambda: encoder.rank("a", "b")),
        (TypeError, r"documents\[1\]", lambda: encoder.rank("a", ["b", 1])),
        (ValueError, "top_k", lambda: encoder.rank("a", ["b"], 0)),
        (TypeError, "tokenizer", lambda: CrossEncoder(encoder.model, None)),
        (TypeError, "model", lambda: CrossEncoder(None, encoder.tokenizer)),
    ):
        with refused(error, argument):
            call()
    bare = BertEncoder.from_config(families.BERT)
    with pytest.raises(ValueError, match="model: expected one with num_labels"):
        CrossEncoder(bare, encoder.tokenizer)
    write_scorer(tmp_path, n_labels=2)
    with pytest.raises(
        ValueError, match="rank: expected a model of one label, got one"
    ):
        read(tmp_path).rank("a", ["b"])


def test_pairs_without_tokens_are_refused(encoder):
    from tokenizers import Tokenizer

    content = json.loads(encoder.tokenizer.to_str())
    content["post_processor"] = None
    bare = CrossEncoder(encoder.model, Tokenizer.from_str(json.dumps(content)))
    assert bare.predict([("", "a dog")]).shape == (1,)
    with pytest.raises(ValueError, match="pairs: expected at least one token in each"):
        bare.predict([("a", "dog"), ("", "")])


def test_an_encoder_can_be_pickled_and_copied(encoder):
    scores = encoder.predict(PAIRS)
    for twin in (pickle.loads(pickle.dumps(encoder)), copy.deepcopy(encoder)):
        assert_same_bits(twin.predict(PAIRS), scores)
    state = {**vars(encoder), "activation_fn": "x"}
    with pytest.raises(ValueError, match="CrossEncoder: activation_fn: expected one"):
        CrossEncoder.__new__(CrossEncoder).__setstate__(state)


def test_the_page_prints_what_it_says(tmp_path, monkeypatch):
    gguf_files.require("jinja2")
    folders = ("all-MiniLM-L6-v2", "ms-marco-MiniLM-L6-v2", "nli-distilroberta-base")
    for name, n_labels in zip(folders, (None, 1, 3), strict=True):
        (tmp_path / name).mkdir()
        if n_labels is None:
            sentences.write(tmp_path / name)
        else:
            write_scorer(tmp_path / name, n_labels=n_labels)
    (tmp_path / "bart-large-mnli").mkdir()
    sentences.write_bart(tmp_path / "bart-large-mnli")
    (tmp_path / "Qwen3-Reranker-0.6B").mkdir()
    rerankers.write(tmp_path / "Qwen3-Reranker-0.6B")
    rerankers.write_modules(tmp_path / "Qwen3-Reranker-0.6B")
    metadata, arrays, _ = rerankers.in_gguf()
    metadata["tokenizer.chat_template.rerank"] = "<Instruct>: x\n{query}{document}"
    gguf_files.write(tmp_path / "qwen3-reranker-0.6b-q8_0.gguf", metadata, arrays)
    monkeypatch.chdir(tmp_path)
    pages.assert_examples_print_what_their_comments_say("reranking.md")


def test_the_example_prints_the_best_of_what_is_found(tmp_path, capsys):
    path = Path(__file__).parents[1] / "examples" / "rerank.py"
    spec = importlib.util.spec_from_file_location("rerank_example", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for name, write in (("model", sentences.write), ("reranker", write_scorer)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    lines = [second for _, second in PAIRS if second]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    options = ["--reranker", str(tmp_path / "reranker"), "--top", "2"]
    options += ["--model", str(tmp_path / "model")]
    example.main(["the cat", *options, "--sentences", str(tmp_path / "lines.txt")])
    printed = capsys.readouterr().out.splitlines()
    encoder = CrossEncoder.from_pretrained(tmp_path / "reranker")
    best = encoder.rank("the cat", lines, top_k=2)
    assert [line[:5] for line in printed] == [f"{x['score']:.3f}" for x in best]
    example.main(["the cat", *options])  # its own sentences
    assert len(capsys.readouterr().out.splitlines()) == 2
    with pytest.raises(SystemExit, match=r"rerank: .*nowhere"):
        example.main(["the cat", "--reranker", "nowhere", *options[2:]])


# ---- Theirs --------------------------------------------------------------------------


MEAN = {"classifier_pooling": "mean", "classifier_activation": "silu"}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in families.CLASSED),
        ("modernbert", MEAN),
    ],
)
@pytest.mark.parametrize("n_labels", [1, 3])
def test_scores_are_those_of_sentence_transformers(tmp_path, kind, changes, n_labels):
    """`pip install sentence-transformers`."""
    theirs = pytest.importorskip("sentence_transformers")
    torch = pytest.importorskip("torch")
    owner = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "bert": "Bert"}
    owner |= {"distilbert": "DistilBert", "mpnet": "MPNet", "electra": "Electra"}
    owner |= {"albert": "Albert", "modernbert": "ModernBert", "gte": "Gte"}
    owner |= {"nomic_bert": "NomicBert", "deberta": "Deberta"}
    owner |= {"deberta-v2": "DebertaV2", "camembert": "Camembert"}
    owner |= {"xlm-roberta-xl": "XLMRobertaXL", "data2vec-text": "Data2VecText"}
    owner |= {"roberta-prelayernorm": "RobertaPreLayerNorm"}
    owner |= {"eurobert": "EuroBert", "jina_embeddings_v3": "JinaEmbeddingsV3"}
    owner |= {"esm": "Esm"}
    owner = {"architectures": [f"{owner[kind]}ForSequenceClassification"], **changes}
    write_scorer(tmp_path, kind, n_labels, config=owner, model_max_length=14)
    wide = {"model_kwargs": {"dtype": torch.float64}, "device": "cpu"}
    model = theirs.CrossEncoder(str(tmp_path), **wide)
    ours = read(tmp_path)
    softmax = {"apply_softmax": n_labels > 1}
    for options in ({}, softmax, {"prompt": "find : "}):
        np.testing.assert_allclose(
            ours.predict(PAIRS, **options), model.predict(PAIRS, **options), rtol=1e-5
        )
    np.testing.assert_allclose(
        ours.predict(PAIRS, activation_fn="tanh"),
        model.predict(PAIRS, activation_fn=torch.nn.Tanh()),
        rtol=1e-5,
    )
    if n_labels == 1:
        documents = [second for _, second in PAIRS]
        for options in ({}, {"top_k": 3}, {"return_documents": True}):
            found = ours.rank("the cat", documents, **options)
            expected = model.rank("the cat", documents, **options)
            assert [list(x) for x in found] == [list(x) for x in expected]
            for one, other in zip(found, expected, strict=True):
                assert one["corpus_id"] == other["corpus_id"]
                np.testing.assert_allclose(one["score"], other["score"], rtol=1e-5)
    for length in (4, 7, 11):
        short = theirs.CrossEncoder(str(tmp_path), max_length=length, **wide)
        np.testing.assert_allclose(
            read(tmp_path, max_length=length).predict(PAIRS),
            short.predict(PAIRS),
            rtol=1e-5,
        )
    saved = tmp_path / "saved"
    model.save_pretrained(str(saved))
    assert (saved / "modules.json").exists()
    np.testing.assert_allclose(
        read(saved).predict(PAIRS), ours.predict(PAIRS), rtol=1e-6
    )
