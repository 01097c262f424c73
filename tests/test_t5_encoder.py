"""T5's encoder alone, as folders of sentence-t5, gtr-t5 and instructor have it."""

import json

import numpy as np
import pytest
from support import encoder_decoders as oracle
from support import sentences
from support.comparisons import assert_same_bits
from support.errors import refused
from support.sentences import put

from attnpy import checkpoints
from attnpy.models import BertEncoder, EncoderDecoder, SentenceEncoder

numpy_files = pytest.importorskip("safetensors.numpy")

IDS = np.array([7, 1, 29, 4, 4, 0, 18, 11, 3])
LENGTHS = [4, 9, 1]
# As in the folder of sentence-t5-base.
OWNER = {"model_type": "t5", "architectures": ["T5EncoderModel"]}
NETWORKS = pytest.mark.parametrize("network", ["relu", "gated-gelu", "gated-silu"])


def write(folder, **changes):
    """A folder; its arrays and configuration."""
    config = {**oracle.T5_ENCODER, **OWNER, **changes}
    tensors = oracle.encoder_tensors(config)
    folder.mkdir(exist_ok=True)
    put(folder / "config.json", config)
    numpy_files.save_file(tensors, folder / "model.safetensors")
    return tensors, config


@pytest.mark.quick
@NETWORKS
def test_vectors_are_those_of_the_formulas(tmp_path, network):
    tensors, config = write(tmp_path / "a", feed_forward_proj=network)
    model = BertEncoder.from_pretrained(tmp_path / "a", dtype=np.float64)
    ids = np.tile(IDS, 40)  # more than n_positions, and farther than all buckets
    expected = oracle.encoder_states(tensors, config, ids)
    np.testing.assert_allclose(model(ids), expected, rtol=1e-9, atol=1e-11)
    model.save_pretrained(tmp_path / "b")
    said = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (said["model_type"], said["architectures"]) == ("t5", ["T5EncoderModel"])
    assert {*checkpoints.read(tmp_path / "b")} == {*tensors}
    again = BertEncoder.from_pretrained(tmp_path / "b", dtype=np.float64)
    assert_same_bits(again(IDS), model(IDS))
    assert repr(again) == repr(model)
    assert "scale=1.0" in repr(model)


@pytest.mark.quick
def test_a_text_has_the_same_bits_in_any_company(tmp_path):
    write(tmp_path)
    batch = np.stack([IDS, IDS[::-1], (IDS + 5) % 30])
    for weights in (None, "int8"):
        model = BertEncoder.from_pretrained(tmp_path, weights=weights)
        states = model(batch, lengths=LENGTHS)
        for own, text, n in zip(states, batch, LENGTHS, strict=True):
            assert_same_bits(own[:n], model(text[:n]))
    trained = BertEncoder.from_pretrained(tmp_path, packed=False)
    states, pullback = trained.vjp(batch, lengths=LENGTHS)
    expected = trained(batch, lengths=LENGTHS)
    for own, other, n in zip(states, expected, LENGTHS, strict=True):
        assert_same_bits(own[:n], other[:n])
    found = pullback(np.ones_like(states))
    assert found.keys() == trained.parameters().keys()


def test_heads_and_other_classes_are_refused(tmp_path):
    write(tmp_path)
    for option in ("pooler", "classifier", "token_classifier", "masked_words"):
        with refused(ValueError, option):
            BertEncoder.from_pretrained(tmp_path, **{option: True})
    with pytest.raises(ValueError, match="got 't5_encoder': BertEncoder"):
        EncoderDecoder.from_pretrained(tmp_path)
    whole = {**oracle.T5_ENCODER, **OWNER, "architectures": ["T5Model"]}
    with pytest.raises(ValueError, match="got 't5': EncoderDecoder reads it"):
        BertEncoder.from_config(whole)
    other = {**whole, **OWNER, "relative_attention_max_distance": 64}
    with pytest.raises(ValueError, match="relative_attention_max_distance = 128, got"):
        BertEncoder.from_config(other)
    with refused(TypeError, "scale"):
        BertEncoder(1, 8, 2, 8, vocab_size=9, scale="high")


def write_sentences(folder):
    """The same for sentence-transformers, with the modules of sentence-t5."""
    sentences.write(folder, steps=("Dense", "Normalize"))
    sentences.write_dense(folder / "2_Dense", 12, 8, False, "linear.Identity")
    return write(folder)


def test_sentences_become_vectors(tmp_path):
    sentences.require()
    tensors, config = write_sentences(tmp_path)
    encoder = SentenceEncoder.from_pretrained(tmp_path, dtype=np.float64)
    vectors = encoder.encode(sentences.TEXTS)
    weight = checkpoints.read(tmp_path / "2_Dense")["linear.weight"]
    for text, vector in zip(sentences.TEXTS, vectors, strict=True):
        ids = encoder.tokenizer.encode(text).ids
        mean = oracle.encoder_states(tensors, config, ids).mean(axis=0)
        expected = np.asarray(weight, float) @ mean
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(vector, expected, rtol=1e-8, atol=1e-10)
    encoder.save_pretrained(tmp_path / "saved")
    again = SentenceEncoder.from_pretrained(tmp_path / "saved", dtype=np.float64)
    assert_same_bits(again.encode(sentences.TEXTS), vectors)


@NETWORKS
def test_vectors_are_those_of_transformers(tmp_path, network):
    """`pip install torch transformers`."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    write(tmp_path / "a", feed_forward_proj=network)
    ours = BertEncoder.from_pretrained(tmp_path / "a")
    ours.save_pretrained(tmp_path / "b")
    for name in ("a", "b"):
        model, said = transformers.T5EncoderModel.from_pretrained(
            tmp_path / name, output_loading_info=True
        )
        assert not said["missing_keys"]
        assert not said["unexpected_keys"]
        with torch.no_grad():
            expected = model(torch.tensor(IDS[None])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(ours(IDS), expected, rtol=1e-4, atol=1e-5)
