"""Encoders of GGUF files: their vectors, their tokenizers, and what is refused."""

import numpy as np
import pytest
from support import families, gguf_files, sentences
from support.comparisons import assert_same_bits
from support.errors import refused
from support.sentences import PAIRS, TEXTS, WORDS

from attnpy import checkpoints
from attnpy.models import BertEncoder, CausalDecoder, CrossEncoder, SentenceEncoder

gguf_files.require("tokenizers")

KINDS = "bert", "roberta", "xlm-roberta", "nomic_bert"
IDS = np.array([2, 10, 4, 12, 17, 5])


def config_of(kind):
    return {**families.ENCODERS[kind], "vocab_size": len(WORDS)}


@pytest.fixture
def save(tmp_path):
    """Write a file, and return its path."""

    def write(kind="bert", changes=None, arrays=None, **options):
        metadata, found = gguf_files.encoder(config_of(kind), WORDS, **options)
        metadata |= changes or {}
        metadata = {key: x for key, x in metadata.items() if x is not None}
        found |= arrays or {}
        return gguf_files.write(tmp_path / "e.gguf", metadata, found)

    return write


def from_weights(kind):
    """The model that a folder with the same configuration and weights gives."""
    config = config_of(kind)
    model = BertEncoder.from_config(config)
    tensors = families.tensors(config)
    family = {"xlm-roberta": "roberta"}.get(kind, kind)
    checkpoints.load(model, tensors, family)
    return model


# ---- Models --------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_folder(save, tmp_path, kind):
    model = BertEncoder.from_gguf(save(kind))
    expected = from_weights(kind)(IDS)
    assert_same_bits(model(IDS), expected)
    plain = BertEncoder.from_gguf(save(kind), packed=False)
    assert plain.token_embedding.flags.writeable
    assert_same_bits(plain(IDS), expected)
    if kind == "bert":
        pytest.importorskip("safetensors")
        model.save_pretrained(tmp_path / "saved")
        again = BertEncoder.from_pretrained(tmp_path / "saved")
        assert_same_bits(again(IDS), expected)


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q6_K"])
def test_integers_of_the_file_are_kept(tmp_path, type_name):
    width = 256 if type_name == "Q6_K" else 32
    config = config_of("bert") | {"hidden_size": width, "num_attention_heads": 2}
    config |= {"intermediate_size": 2 * width}
    metadata, arrays = gguf_files.encoder(config, WORDS)
    for i, (name, array) in enumerate(arrays.items()):
        if array.ndim == 2 and not name.startswith(("position_embd", "token_types")):
            arrays[name] = gguf_files.random_blocks(type_name, array.shape, i)
    path = gguf_files.write(tmp_path / "e.gguf", metadata, arrays)
    kept = SentenceEncoder.from_gguf(path, weights="file")
    plain = SentenceEncoder.from_gguf(path)
    texts = [text for text in TEXTS if text]
    expected = plain.encode(texts)
    np.testing.assert_allclose(kept.encode(texts), expected, atol=2e-5)
    rounded = SentenceEncoder.from_gguf(path, weights="file", activations="int8")
    assert 0 < np.abs(rounded.encode(texts) - expected).max() < 0.1
    assert "weights=" in repr(kept)
    assert "activations=int8" in repr(rounded)


@pytest.mark.quick
@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_file_says_how_vectors_are_pooled(save, number):
    mode = {1: "mean", 2: "cls", 3: "lasttoken"}[number]
    path = save(pooling_type=number)
    encoder = SentenceEncoder.from_gguf(path)
    assert encoder.pooling == (mode,)
    assert encoder.max_length == 16
    expected = SentenceEncoder(
        from_weights("bert"), encoder.tokenizer, pooling=mode
    ).encode(TEXTS, normalize=True)
    assert_same_bits(encoder.encode(TEXTS), expected)
    raw = SentenceEncoder.from_gguf(path, normalize=False).encode(TEXTS)
    np.testing.assert_allclose(
        raw / np.linalg.norm(raw, axis=1, keepdims=True), expected, rtol=1e-5
    )
    assert_same_bits(encoder.encode(TEXTS[3]), expected[3])
    other = SentenceEncoder.from_gguf(path, pooling="max", max_length=4)
    assert (other.pooling, other.max_length) == (("max",), 4)


@pytest.mark.quick
def test_files_that_do_not_say_it_need_a_pooling(save):
    for changes in ({"bert.pooling_type": 0}, {"bert.pooling_type": None}):
        with pytest.raises(
            ValueError, match=r"pooling: expected one, as .*e\.gguf has"
        ):
            SentenceEncoder.from_gguf(save(changes=changes))
        assert SentenceEncoder.from_gguf(save(changes=changes), pooling="cls")


@pytest.mark.quick
def test_decoders_make_vectors_of_texts(tmp_path):
    metadata, arrays = gguf_files.talking(
        families.DECODERS["qwen3"], tie_word_embeddings=True
    )
    arrays.pop("output.weight", None)
    metadata["tokenizer.ggml.add_eos_token"] = True
    metadata["qwen3.pooling_type"] = 3
    path = gguf_files.write(tmp_path / "q.gguf", metadata, arrays)
    encoder = SentenceEncoder.from_gguf(path)
    assert isinstance(encoder.model, CausalDecoder)
    assert encoder.model.tied is None
    assert encoder.pooling == ("lasttoken",)
    ids = encoder.tokenizer.encode("the").ids
    assert ids[-1] == metadata["tokenizer.ggml.eos_token_id"]
    last = encoder.model(ids)[-1]
    expected = last / np.linalg.norm(last)
    np.testing.assert_allclose(encoder.encode("the"), expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"qwen3\.pooling_type"):
        CausalDecoder.from_gguf(path)


@pytest.mark.quick
def test_embedding_gemma_sees_both_sides_and_has_two_more_matrices(tmp_path):
    config = {**families.DECODERS["gemma3_text"], "sliding_window": 6}
    metadata, arrays = gguf_files.talking(config)
    rename = {
        key: key.replace("gemma3.", "gemma-embedding.")
        for key in metadata
        if key.startswith("gemma3.")
    }
    metadata = {rename.get(key, key): x for key, x in metadata.items()}
    metadata |= {
        "general.architecture": "gemma-embedding",
        "gemma-embedding.pooling_type": 1,
        "gemma-embedding.dense_2_feat_in": 16,
        "gemma-embedding.dense_2_feat_out": 24,
    }
    rng = np.random.default_rng(0)
    dense = [rng.standard_normal(shape) for shape in ((24, 16), (8, 24))]
    arrays.pop("output.weight", None)
    arrays |= {f"dense_{i + 2}.weight": x for i, x in enumerate(dense)}
    path = gguf_files.write(tmp_path / "g.gguf", metadata, arrays)
    encoder = SentenceEncoder.from_gguf(path)
    assert encoder.embed_dim == 8
    assert not encoder.model.decoder.layers[0].causal
    windows = encoder.model.window
    assert (3, 3) in windows
    assert None in windows
    states = encoder.model(encoder.tokenizer.encode("the the cat").ids)
    vector = dense[1] @ (dense[0] @ states.mean(axis=0))
    expected = vector / np.linalg.norm(vector)
    np.testing.assert_allclose(encoder.encode("the the cat"), expected, rtol=1e-4)
    assert SentenceEncoder.from_gguf(path, weights="file").embed_dim == 8
    with pytest.raises(ValueError, match="'gemma-embedding': SentenceEncoder reads it"):
        CausalDecoder.from_gguf(path)


@pytest.mark.quick
@pytest.mark.parametrize("n_labels", [1, 3])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_rerankers_score_pairs(save, kind, n_labels):
    rng = np.random.default_rng(3)
    shapes = {"cls": (12, 12), "cls.output": (n_labels, 12)}
    head = {
        f"{name}.{part}": rng.standard_normal(shape if part == "weight" else shape[:1])
        for name, shape in shapes.items()
        for part in ("weight", "bias")
    }
    encoder = CrossEncoder.from_gguf(save(kind, arrays=head, pooling_type=4))
    assert encoder.num_labels == n_labels
    assert encoder.token_types == (kind == "bert")
    scores = encoder.predict(PAIRS[:6], activation_fn="identity")
    model = from_weights(kind)
    for pair, score in zip(PAIRS, scores, strict=False):
        code = encoder.tokenizer.encode(*pair)
        types = np.array(code.type_ids) if kind == "bert" else 0
        first = model(code.ids, token_types=types)[0]
        dense = np.tanh(head["cls.weight"] @ first + head["cls.bias"])
        expected = head["cls.output.weight"] @ dense + head["cls.output.bias"]
        np.testing.assert_allclose(np.atleast_1d(score), expected, rtol=1e-4, atol=1e-5)
        assert np.all(encoder.predict(pair, activation_fn="identity") == score)
    labels = {"bert.classifier.output_labels": list("abc"[:n_labels])}
    kept = CrossEncoder.from_gguf(
        save(kind, labels, head, pooling_type=4), activation_fn="tanh", max_length=9
    )
    assert (kept.activation_fn, kept.max_length) == ("tanh", 9)


def test_what_scores_nothing_is_no_reranker(save):
    with pytest.raises(ValueError, match=r"bert\.pooling_type = 4, got 1"):
        CrossEncoder.from_gguf(save())
    with pytest.raises(ValueError, match=r"expected cls\.output\.weight of a head"):
        CrossEncoder.from_gguf(save(pooling_type=4))
    head = {"cls.output.weight": np.ones((1, 12)), "cls.output.bias": np.ones(1)}
    with pytest.raises(ValueError, match=r"missing cls\.weight, cls\.bias"):
        CrossEncoder.from_gguf(save(arrays=head, pooling_type=4))


# ---- Tokenizers ----------------------------------------------------------------------


@pytest.mark.quick
def test_words_are_cut_as_berts(save):
    made = checkpoints.load_gguf(save()).tokenizer()
    expected = sentences.tokenizer()
    expected.no_truncation()
    expected.no_padding()
    for text in (*TEXTS, "The CAT", "caf\xe9 sun!", "[SEP] cat", "cats\tdogs\n\u6771"):
        lower = text.replace("The CAT", "the cat").replace("\xe9", "e")
        for pair in ((text,), (text, "a dog")):
            found = made.encode(*pair)
            other = expected.encode(lower, *pair[1:])
            assert found.ids == other.ids
            assert found.type_ids == other.type_ids
    assert made.decode(made.encode("the cats").ids) == "the cats"


def test_words_of_a_vocabulary_with_capitals_keep_theirs(tmp_path):
    words = [word.replace("moon", "Moon") for word in WORDS]
    metadata, arrays = gguf_files.encoder(config_of("bert"), words)
    path = gguf_files.write(tmp_path / "e.gguf", metadata, arrays)
    made = checkpoints.load_gguf(path).tokenizer()
    assert made.encode("the Moon moon").tokens == [
        *("[CLS]", "the", "Moon", "[UNK]", "[SEP]")
    ]


@pytest.fixture
def unigrams(tmp_path):
    def make(**changes):
        metadata = gguf_files.unigrams(**changes)
        path = gguf_files.write(tmp_path / "t.gguf", metadata, {})
        return checkpoints.load_gguf(path).tokenizer()

    return make


@pytest.mark.quick
def test_pieces_are_those_with_the_best_scores(unigrams):
    made = unigrams()
    for text, tokens in (
        ("the cats", ["\u2581the", "\u2581cat", "s"]),
        ("  the   dog ", ["\u2581the", "\u2581dog"]),
        ("tac", ["\u2581", "t", "a", "c"]),
        ("the zz", ["\u2581the", "\u2581", "zz"]),
        ("", []),
    ):
        assert made.encode(text).tokens == ["<s>", *tokens, "</s>"]
    assert made.encode("the zz").ids == [0, 4, 5, 3, 2]
    assert made.encode("the", "dog").ids == [0, 4, 2, 2, 9, 2]
    assert made.decode(made.encode("the cats").ids) == "the cats"
    assert unigrams(add_bos_token=False).encode("the").ids == [4, 2]
    assert unigrams(add_eos_token=False).encode("the").ids == [0, 4]
    bare = unigrams(add_space_prefix=False, remove_extra_whitespaces=None)
    assert bare.encode("the cat").tokens == ["<s>", "the", "\u2581cat", "</s>"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"scores": None}, "scores to be 14 numbers, one for each token, got none"),
        ({"scores": np.array([np.nan] * 14, "f4")}, "scores to be finite numbers"),
        ({"unknown_token_id": 99}, "unknown_token_id to be an integer from 0 to 13"),
        ({"bos_token_id": None}, "bos_token_id to be a token, as texts begin with it"),
        ({"precompiled_charsmap": np.zeros(3, "u1")}, "charsmap to be a table of char"),
        ({"precompiled_charsmap": np.ones(9, "f4")}, "charsmap to be a table of char"),
        ({"model": "wpm"}, "model to be gpt2, llama, bert or t5, got 'wpm'"),
        ({"add_sep_token": True}, "expected tokenizer.ggml.add_sep_token = False"),
    ],
)
def test_tokenizers_that_are_wrong_are_refused(unigrams, changes, text):
    with pytest.raises(ValueError, match=text):
        unigrams(**changes)


# ---- What is refused -----------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bert.attention.causal": True}, "attention.causal = False, got True"),
        ({"bert.pooling_type": 4}, "bert.pooling_type = 0, got 4"),
        ({"bert.new": 1}, "no bert.new, got 1"),
        ({"bert.block_count": 3}, "block_count to be 2, as arrays are of so many"),
        ({"bert.embedding_length": None}, "embedding_length to be there, got none"),
        ({"general.architecture": "clip"}, "to be one of bert, nomic-bert, got 'clip'"),
        ({"general.architecture": "llama"}, "got 'llama': CausalDecoder reads it"),
    ],
)
def test_what_files_say_is_honoured_or_refused(save, changes, text):
    with pytest.raises(ValueError, match=text):
        BertEncoder.from_gguf(save(changes=changes))


@pytest.mark.quick
def test_arrays_that_do_not_fit_are_refused(save):
    bad = {"blk.0.ffn_down.weight": np.ones((12, 19), np.float32)}
    with pytest.raises(ValueError, match=r"expected blk\.0\.ffn_down\.weight of"):
        BertEncoder.from_gguf(save(arrays=bad))
    with pytest.raises(ValueError, match=r"unexpected cls\.weight"):
        BertEncoder.from_gguf(save(arrays={"cls.weight": np.ones((12, 12))}))
    words = [*WORDS[:-1], "##cat"]  # "cat" within a word, and as one
    tokens = gguf_files.word_pieces(words)["tokenizer.ggml.tokens"]
    made = checkpoints.load_gguf(save(changes={"tokenizer.ggml.tokens": tokens}))
    assert made.tokenizer().token_to_id("##cat") == len(WORDS) - 1
    tokens[-1] = "##cat"
    with refused(ValueError, ".*") as caught:
        checkpoints.load_gguf(
            save(changes={"tokenizer.ggml.tokens": [*tokens[:-1], "\u2581##ing"]})
        ).tokenizer()
    assert "tokenizer.ggml.tokens to be different texts" in str(caught.value)


@pytest.mark.quick
def test_a_decoder_says_who_reads_an_encoder(save):
    with pytest.raises(ValueError, match="got 'bert': BertEncoder reads it"):
        CausalDecoder.from_gguf(save())
    with refused(TypeError, "normalize"):
        SentenceEncoder.from_gguf(save(), normalize=3)
    with refused(ValueError, "max_length"):
        SentenceEncoder.from_gguf(save(), max_length=17)
