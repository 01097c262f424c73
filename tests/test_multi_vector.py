"""Vectors of tokens for late interaction: ColBERT, PyLate and sentence-transformers."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from support import adapters, multi_vectors, sentences
from support.comparisons import assert_same_bits
from support.errors import refused
from support.multi_vectors import LIBRARIES, write, write_dense
from support.sentences import LONG, TEXTS, put

from attnpy.models import (
    BertEncoder,
    CausalDecoder,
    MultiVectorEncoder,
    maxsim,
)

sentences.require()

ALL = [*TEXTS, LONG, "a cat: not a dog. : ."]


@pytest.fixture
def encoder(tmp_path):
    write(tmp_path)
    return MultiVectorEncoder.from_pretrained(tmp_path)


def content(path):
    return json.loads(path.read_text("utf-8"))


def both(encoder, texts=ALL, **options):
    """The vectors of texts as queries, and as documents."""
    queries = encoder.encode_queries(texts, **options)
    return [*queries, *encoder.encode_documents(texts, **options)]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)


# ---- Vectors -------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("attend", [False, True])
def test_vectors_are_their_formulas(tmp_path, library, attend):
    tensors, matrix = write(tmp_path, library, attend=attend)
    config = content(tmp_path / "config.json")
    encoder = MultiVectorEncoder.from_pretrained(tmp_path, dtype=np.float64)
    for is_query, found in (
        (True, encoder.encode_queries(ALL)),
        (False, encoder.encode_documents(ALL)),
    ):
        for text, rows in zip(ALL, found, strict=True):
            expected = multi_vectors.vectors(
                tensors, config, matrix, text, is_query, attend=attend
            )
            assert rows.shape == expected.shape
            np.testing.assert_allclose(rows, expected, atol=1e-9)
    assert {len(rows) for rows in encoder.encode_queries(ALL)} == {9}
    assert encoder.embed_dim == 7


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "mpnet", "electra"])
def test_models_of_other_families_have_vectors_of_tokens(tmp_path, kind):
    tensors, matrix = write(tmp_path, "pylate", kind)
    config = content(tmp_path / "config.json")
    encoder = MultiVectorEncoder.from_pretrained(tmp_path, dtype=np.float64)
    for text, rows in zip(ALL, encoder.encode_documents(ALL), strict=True):
        expected = multi_vectors.vectors(tensors, config, matrix, text, False)
        np.testing.assert_allclose(rows, expected, atol=1e-9)


@pytest.mark.quick
@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_queries_that_are_not_filled_have_their_own_tokens(tmp_path, library):
    tensors, matrix = write(tmp_path, library, fill=False)
    config = content(tmp_path / "config.json")
    encoder = MultiVectorEncoder.from_pretrained(tmp_path, dtype=np.float64)
    for text, rows in zip(ALL, encoder.encode_queries(ALL), strict=True):
        args = tensors, config, matrix, text, True
        expected = multi_vectors.vectors(*args, fill=False)
        np.testing.assert_allclose(rows, expected, atol=1e-9)


@pytest.mark.quick
def test_tokens_do_not_see_what_fills_a_query(tmp_path):
    write(tmp_path)
    filled = MultiVectorEncoder.from_pretrained(tmp_path)
    write(tmp_path, fill=False)
    plain = MultiVectorEncoder.from_pretrained(tmp_path)
    for one, other in zip(
        filled.encode_queries(ALL), plain.encode_queries(ALL), strict=True
    ):
        assert_same_bits(one[: len(other)], other)


@pytest.mark.quick
@pytest.mark.parametrize("attend", [False, True])
def test_vectors_have_the_same_bits_in_any_company(tmp_path, attend):
    write(tmp_path, attend=attend)
    encoder = MultiVectorEncoder.from_pretrained(tmp_path)
    expected = both(encoder)
    assert {rows.dtype for rows in expected} == {np.dtype(np.float32)}
    assert all(rows.base is None for rows in expected)
    for options in ({"batch_size": 1}, {"batch_size": 3, "num_threads": 1}):
        assert_same(both(encoder, **options), expected)
    assert_same(encoder.encode_queries(iter(ALL)), expected[: len(ALL)])
    for i, text in enumerate(ALL):
        assert_same_bits(encoder.encode_queries(text), expected[i])
        assert_same_bits(encoder.encode_documents(text), expected[len(ALL) + i])
    assert encoder.encode_queries([]) == encoder.encode_documents([]) == []


@pytest.mark.quick
def test_a_document_of_nothing_but_skipped_words_has_no_vectors(tmp_path):
    write(tmp_path)
    words = sentences.WORDS
    encoder = MultiVectorEncoder.from_pretrained(tmp_path, skiplist_words=words)
    assert encoder.encode_documents("the cat").shape == (0, 7)
    assert encoder.encode_queries("the cat").shape == (9, 7)
    found = encoder.encode_documents(["the cat", "xylophone"])
    assert [rows.shape for rows in found] == [(0, 7), (0, 7)]


@pytest.mark.quick
def test_prompts_are_put_before_texts(tmp_path):
    prompts = {"query": "the ", "passage": "a ", "corpus": "old ", "other": "sad "}
    write(tmp_path, prompts=prompts)
    encoder = MultiVectorEncoder.from_pretrained(tmp_path)
    write(tmp_path)
    plain = MultiVectorEncoder.from_pretrained(tmp_path)
    assert encoder.prompts == prompts
    for options, front in (
        ({}, ("the ", "a ")),
        ({"prompt_name": "other"}, ("sad ", "sad ")),
        ({"prompt": ""}, ("", "")),
        ({"prompt": "red "}, ("red ", "red ")),
    ):
        expected = plain.encode_queries([front[0] + text for text in ALL])
        expected += plain.encode_documents([front[1] + text for text in ALL])
        assert_same(both(encoder, **options), expected)
    with refused(ValueError, "prompt_name"):
        encoder.encode_queries("a", prompt_name="document")


@pytest.mark.quick
def test_long_texts_are_cut_on_the_side_that_the_tokenizer_says(tmp_path):
    write(tmp_path)
    config = content(tmp_path / "tokenizer_config.json")
    put(tmp_path / "tokenizer_config.json", {**config, "truncation_side": "left"})
    encoder = MultiVectorEncoder.from_pretrained(tmp_path)
    words = LONG.split()
    expected = encoder.encode_documents(" ".join(words[-9:]))
    assert_same_bits(encoder.encode_documents(LONG), expected)
    assert encoder.tokenizer.truncation is None


def test_a_tokenizer_without_special_tokens_makes_vectors(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {word: i for i, word in enumerate(sentences.WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    write(tmp_path)
    model = BertEncoder.from_pretrained(tmp_path)
    encoder = MultiVectorEncoder(model, tokenizer)
    assert encoder.query_length == encoder.document_length == 16
    assert encoder.encode_queries("").shape == (0, 12)
    states = model([4, 5])
    assert_same_bits(encoder.encode_documents("cat dog"), states)
    marked = MultiVectorEncoder(model, tokenizer, document_prefix="sun")
    assert_same_bits(marked.encode_documents("cat dog"), model([4, 6, 5]))
    assert_same_bits(marked.encode_documents(""), model([6]))


# ---- Scores --------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("name", ["maxsim", "meanmaxsim"])
def test_similarity_is_late_interaction(tmp_path, name):
    write(tmp_path, similarity_fn_name=name)
    encoder = MultiVectorEncoder.from_pretrained(tmp_path)
    queries, documents = encoder.encode_queries(ALL), encoder.encode_documents(ALL)
    scores = encoder.similarity(queries, documents)
    assert scores.shape == (9, 9)
    assert scores.dtype == np.float32
    for i, query in enumerate(queries):
        for j, document in enumerate(documents):
            expected = maxsim(query, document, mean=name == "meanmaxsim")
            assert scores[i, j] == np.float32(expected)
    assert_same_bits(encoder.similarity(queries[1], documents), scores[1])
    assert_same_bits(encoder.similarity(queries, documents[2]), scores[:, 2])
    assert encoder.similarity(queries[1], documents[2]) == scores[1, 2]
    assert encoder.similarity([], documents).shape == (0, 9)
    assert encoder.similarity(queries, []).shape == (9, 0)
    with refused(ValueError, r"queries\[1\]"):
        encoder.similarity([queries[0], queries[0][0]], documents)
    with refused(ValueError, r"documents\[0\]"):
        encoder.similarity(queries, [documents[0][:, :3]])


@pytest.mark.quick
def test_documents_are_ranked_by_their_similarity(encoder):
    query, vectors = ALL[0], encoder.encode_documents(ALL)
    scores = encoder.similarity(encoder.encode_queries(query), vectors)
    found = encoder.rank(query, iter(ALL), return_documents=True)
    assert [entry["corpus_id"] for entry in found] == [*np.argsort(-scores)]
    for entry in found:
        assert entry["score"] == scores[entry["corpus_id"]]
        assert entry["text"] == ALL[entry["corpus_id"]]
    plain = [{name: e[name] for name in ("corpus_id", "score")} for e in found]
    assert encoder.rank(query, vectors, 2) == plain[:2]
    assert encoder.rank(query, ALL) == plain
    assert encoder.rank(query, []) == []
    with refused(ValueError, "return_documents"):
        encoder.rank(query, vectors, return_documents=True)
    with refused(ValueError, "top_k"):
        encoder.rank(query, ALL, 0)


# ---- Folders -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "options"),
    [
        *itertools.product(LIBRARIES, [{}, {"attend": True}]),
        *((library, {"fill": False}) for library in LIBRARIES[1:]),
    ],
    ids=str,
)
def test_sentence_transformers_has_the_same_vectors(tmp_path, library, options):
    theirs = pytest.importorskip("sentence_transformers", minversion="6.0")
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", library, **options)
    ours = MultiVectorEncoder.from_pretrained(tmp_path / "a")
    ours.save_pretrained(tmp_path / "b")
    for place in ("a", "b"):
        other = theirs.MultiVectorEncoder(str(tmp_path / place), device="cpu")
        numpy = {"convert_to_numpy": True}
        expected = other.encode_query(ALL, **numpy)
        expected += other.encode_document(ALL, **numpy)
        for one, rows in zip(both(ours), expected, strict=True):
            np.testing.assert_allclose(one, rows, atol=5e-6)


@pytest.mark.quick
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("options", [{}, {"attend": True}], ids=str)
def test_what_is_saved_is_read_again(tmp_path, library, options):
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", library, **options)
    ours = MultiVectorEncoder.from_pretrained(tmp_path / "a", query_length=10)
    ours.save_pretrained(tmp_path / "b")
    again = MultiVectorEncoder.from_pretrained(tmp_path / "b")
    assert_same(both(again), both(ours))
    found = tmp_path / "b"
    assert content(found / "config_sentence_transformers.json")["model_type"] == (
        "ColBERT"
    )
    names = sorted(path.name for path in found.iterdir())
    assert names == [
        "1_Dense",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    again.save_pretrained(found)  # in its own place
    assert_same(both(MultiVectorEncoder.from_pretrained(found)), both(ours))


@pytest.mark.quick
def test_several_dense_modules_with_residuals_are_read_and_saved(tmp_path):
    tensors, matrix = write(tmp_path)
    rng = np.random.default_rng(9)
    second = rng.standard_normal((7, 7), dtype=np.float32)
    modules = content(tmp_path / "modules.json")
    modules.append({**modules[1], "idx": 2, "name": "2", "path": "2_Module"})
    put(tmp_path / "modules.json", modules)
    write_dense(tmp_path / "2_Module", second, use_residual=True)
    encoder = MultiVectorEncoder.from_pretrained(tmp_path, dtype=np.float64)
    config = content(tmp_path / "config.json")
    with_both = matrix @ (second.T + np.eye(7))
    for text, rows in zip(ALL, encoder.encode_documents(ALL), strict=True):
        expected = multi_vectors.vectors(tensors, config, with_both, text, False)
        np.testing.assert_allclose(rows, expected, atol=1e-9)
    encoder.save_pretrained(tmp_path)
    again = MultiVectorEncoder.from_pretrained(tmp_path, dtype=np.float64)
    assert_same(both(again), both(encoder))


@pytest.mark.quick
def test_jinas_code_is_read_below_a_projection(tmp_path):
    tensors, matrix = write(tmp_path, "colbert", "jina_embeddings_v3")
    expected = MultiVectorEncoder.from_pretrained(tmp_path)
    left = (*adapters.LORA, "lora_dropout_p", "lora_main_params_trainable")
    config = {name: x for name, x in adapters.JINA.items() if name not in left}
    config["auto_map"] = dict(config["auto_map"])
    config["auto_map"]["AutoModel"] = "jinaai/x--modeling_xlm_roberta.XLMRobertaModel"
    del config["task_instructions"], config["load_trained_adapters"]
    config |= {"architectures": ["HF_ColBERT"], "model_type": "xlm-roberta"}
    own = {
        name.replace(f"{adapters.PARTS}.original", ".weight"): array
        for name, array in adapters.with_adapters(tensors).items()
        if "lora" not in name
    }
    own["linear.weight"] = matrix.T.astype(np.float32)
    adapters.write(tmp_path, config, own)
    found = MultiVectorEncoder.from_pretrained(tmp_path)
    assert found.model.rotary is not None
    assert_same(both(found), both(expected))


@pytest.mark.quick
def test_arguments_override_those_of_a_folder(tmp_path):
    write(tmp_path)
    encoder = MultiVectorEncoder.from_pretrained(
        tmp_path,
        query_prefix="sun",
        document_prefix="",
        query_length=11,
        document_length=5,
        attend_to_expansion_tokens=True,
        skiplist_words=["cat"],
    )
    ids = [2, 6, *encoder.tokenizer.encode("the cat").ids[1:]]
    ids += [sentences.WORDS.index("moon")] * (11 - len(ids))
    rows = encoder.model(ids) @ encoder.steps[0].weight
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.encode_queries("the cat"), rows, atol=1e-6)
    assert encoder.encode_documents("the cat sun moon sea").shape == (4, 7)


@pytest.mark.quick
def test_settings_that_files_leave_out_are_those_of_their_library(tmp_path):
    changes = {"max_position_embeddings": 256, "vocab_size": 32}
    for library, expected in (
        ("colbert", ("[unused0]", "[unused1]", 32, 220)),
        ("pylate", ("[Q] ", "[D] ", 32, 180)),
    ):
        folder = tmp_path / library
        folder.mkdir()
        write(folder, library, config_changes=changes)
        tokenizer = sentences.tokenizer()
        tokenizer.add_tokens([*expected[:2]])
        tokenizer.save(str(folder / "tokenizer.json"))
        for name in ("artifact.metadata", "config_sentence_transformers.json"):
            (folder / name).unlink(missing_ok=True)
        encoder = MultiVectorEncoder.from_pretrained(folder)
        found = encoder.query_prefix, encoder.document_prefix
        found += encoder.query_length, encoder.document_length
        assert found == expected
        assert encoder.expansion_token == "moon"
        assert not encoder.attend_to_expansion_tokens
        assert "".join(encoder.skiplist_words) == "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    write(tmp_path, "colbert", mask_punctuation=False)
    assert MultiVectorEncoder.from_pretrained(tmp_path).skiplist_words == ()
    write(tmp_path, "sentence_transformers")
    (tmp_path / "sentence_bert_config.json").unlink()
    encoder = MultiVectorEncoder.from_pretrained(tmp_path)
    assert encoder.query_length == encoder.document_length == 16
    assert encoder.expansion_token is None


@pytest.mark.quick
@pytest.mark.parametrize(
    ("library", "changes", "words"),
    [
        ("colbert", {"interaction": "flipr"}, 'interaction = "colbert", got'),
        ("colbert", {"dim": 6}, r"linear.weight of \(6, hidden size\), got \(7, 12\)"),
        ("colbert", {"query_maxlen": 0}, "query_maxlen to be at least 1"),
        ("colbert", {"doc_token_id": "[D]"}, "document_prefix: expected a token of"),
        ("pylate", {"query_prefix": "[Q] "}, "query_prefix: expected a token of"),
        ("pylate", {"document_length": 17}, "document_length: expected 4 to 16"),
        ("pylate", {"query_length": 3}, "query_length: expected 4 to 16"),
        ("pylate", {"skiplist_words": [3]}, "skiplist_words to be a list of words"),
        ("pylate", {"similarity_fn_name": "cosine"}, "similarity_fn_name to be of max"),
        ("pylate", {"default_prompt_name": "query"}, "no default_prompt_name"),
        ("pylate", {"truncate_dim": 4}, "expected no truncate_dim"),
        ("pylate", {"model_type": "SparseEncoder"}, 'model_type = "ColBERT"'),
        ("sentence_transformers", {"x_y": 1}, "expected no x_y, got 1"),
        ("sentence_transformers", {"model_type": "ColBERT"}, "model_type = "),
    ],
)
def test_settings_that_are_not_here_are_refused(tmp_path, library, changes, words):
    write(tmp_path, library, **changes)
    with pytest.raises(ValueError, match=words):
        MultiVectorEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("2_Module/config.json", {"skiplist_tasks": ["query"]}, "skiplist_tasks = "),
        ("2_Module/config.json", {"keep_only_token_ids": [3]}, "no keep_only_token_id"),
        ("3_Module/config.json", {"module_input_name": "x"}, 'e = "token_embeddings"'),
        ("1_Module/config.json", {"module_input_name": "x"}, 'e = "token_embeddings"'),
        *(
            (
                "sentence_bert_config.json",
                {"query_expansion": {"length": 9, "strategy": "fixed", **wrong}},
                'query_expansion with the strategy "fixed" and a length',
            )
            for wrong in (
                {"strategy": "min"},
                {"length": None},
                {"length": True},
                {"length": 0},
                {"attend": 1},
                {"token": 3},
                {"x": 1},
            )
        ),
    ],
)
def test_modules_of_another_kind_are_refused(tmp_path, file, changes, words):
    write(tmp_path, "sentence_transformers")
    put(tmp_path / file, {**content(tmp_path / file), **changes})
    with pytest.raises(ValueError, match=words):
        MultiVectorEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
def test_folders_of_other_encoders_are_refused(tmp_path):
    sentences.write(tmp_path)
    with pytest.raises(ValueError, match="expected Transformer, and then any of Dense"):
        MultiVectorEncoder.from_pretrained(tmp_path)
    modules = content(tmp_path / "modules.json")
    put(tmp_path / "modules.json", modules[:1])
    with pytest.raises(ValueError, match="Transformer and then Dense, as PyLate has"):
        MultiVectorEncoder.from_pretrained(tmp_path)
    (tmp_path / "modules.json").unlink()
    with pytest.raises(ValueError, match=r"with modules\.json, or of the class"):
        MultiVectorEncoder.from_pretrained(tmp_path)
    config = content(tmp_path / "config.json")
    put(tmp_path / "config.json", {**config, "architectures": ["HF_ColBERT"]})
    with pytest.raises(ValueError, match="mask_token, which fills queries, got none"):
        MultiVectorEncoder.from_pretrained(tmp_path)
    settings = content(tmp_path / "tokenizer_config.json")
    put(tmp_path / "special_tokens_map.json", {"mask_token": {"content": "moon"}})
    put(tmp_path / "tokenizer_config.json", settings)
    with pytest.raises(ValueError, match=r"expected linear\.weight among the weights"):
        MultiVectorEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
def test_the_projection_is_a_head_that_other_readers_do_not_lose_silently(tmp_path):
    write(tmp_path, "colbert")
    with pytest.raises(ValueError, match=r"no head of HF_ColBERT.*got linear\.w"):
        BertEncoder.from_pretrained(tmp_path)
    plain = BertEncoder.from_pretrained(tmp_path, ignore_head=True)
    encoder = MultiVectorEncoder.from_pretrained(tmp_path)
    assert_same_bits(plain([1, 2, 3]), encoder.model([1, 2, 3]))


@pytest.mark.quick
def test_steps_that_pylate_would_not_read_are_not_saved(encoder, tmp_path):
    project, unit = encoder.steps
    for steps in ((), (unit,), (project,), (unit, project, unit), (project, np.abs)):
        encoder.steps = steps
        with refused(ValueError, "steps"):
            encoder.save_pretrained(tmp_path / "b")
    assert not Path(tmp_path / "b").exists()


# ---- Arguments -----------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("steps", 3, TypeError),
        ("steps", [3], TypeError),
        ("query_prefix", None, TypeError),
        ("query_prefix", "no token", ValueError),
        ("document_prefix", "no token", ValueError),
        ("expansion_token", "no token", ValueError),
        ("expansion_token", 3, TypeError),
        ("attend_to_expansion_tokens", "yes", TypeError),
        ("query_length", 2, ValueError),
        ("document_length", 17, ValueError),
        ("document_length", 4.5, TypeError),
        ("skiplist_words", 3, TypeError),
        ("truncation_side", "top", ValueError),
        ("prompts", [], TypeError),
        ("similarity_fn_name", "cosine", ValueError),
    ],
)
def test_wrong_arguments_are_named(encoder, name, value, error):
    with refused(error, name):
        MultiVectorEncoder(encoder.model, encoder.tokenizer, **{name: value})


@pytest.mark.quick
def test_other_models_are_refused(encoder):
    decoder = CausalDecoder(1, 8, 2, 32, vocab_size=9)
    with refused(TypeError, "model"):
        MultiVectorEncoder(decoder, encoder.tokenizer)
    with refused(TypeError, "tokenizer"):
        MultiVectorEncoder(encoder.model, str.split)
    with refused(TypeError, "texts"):
        encoder.encode_queries(3)
    with refused(TypeError, r"texts\[1\]"):
        encoder.encode_documents(["a", 3])
