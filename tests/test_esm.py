"""ESM-2 and ESM-1b, of proteins: masked tokens, frequencies of files, heads."""

import json

import numpy as np
import pytest
from support import families
from support.comparisons import assert_same_bits
from support.sentences import put

from attnpy import checkpoints
from attnpy.models import BertEncoder
from attnpy.positions import Rotary

numpy_files = pytest.importorskip("safetensors.numpy")

MASK = families.ESM["mask_token_id"]
IDS = np.array([7, 1, MASK, 4, 4, MASK, 18, 11, 2])
BATCH = np.stack([IDS, IDS[::-1], np.where(IDS == MASK, 5, IDS)])
LENGTHS = [4, 9, 6]
# As files have them: rounded to 16 bits.
FREQUENCIES = (1 / 10_000.0 ** (np.arange(0, 4, 2) / 4)).astype("f2").astype("f4")
ESM_1B = {"position_embedding_type": "absolute", "emb_layer_norm_before": True}
CASES = pytest.mark.parametrize("changes", [{}, ESM_1B, {"token_dropout": False}])


def write(folder, frequencies=FREQUENCIES, more=(), **changes):
    """A folder with the frequencies in each layer; its arrays and configuration."""
    config = {**families.ESM, "hidden_act": "gelu", **changes}
    tensors = families.tensors(config)
    named = {f"esm.{name}": array for name, array in tensors.items()}
    place = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
    if frequencies is not None and config["position_embedding_type"] == "rotary":
        named |= {place.format(i): frequencies for i in range(2)}
    folder.mkdir(exist_ok=True)
    put(folder / "config.json", config)
    numpy_files.save_file({**named, **dict(more)}, folder / "model.safetensors")
    return tensors, config


@pytest.mark.quick
@CASES
def test_vectors_are_those_of_the_formulas(tmp_path, changes):
    tensors, config = write(tmp_path, None, **changes)
    model = BertEncoder.from_pretrained(tmp_path, dtype=np.float64)
    for ids in (IDS, np.where(IDS == MASK, 5, IDS)):
        expected = families.bert_states(tensors, config, ids)
        np.testing.assert_allclose(model(ids), expected, rtol=1e-10, atol=1e-12)
    assert (model.masked_token is None) == (not config["token_dropout"])


@pytest.mark.quick
@CASES
def test_padding_does_not_count(tmp_path, changes):
    write(tmp_path, **changes)
    model = BertEncoder.from_pretrained(tmp_path)
    states = model(BATCH, lengths=LENGTHS)
    for own, text, n in zip(states, BATCH, LENGTHS, strict=True):
        assert_same_bits(own[:n], model(text[:n]))
    exists = np.arange(9) < np.array(LENGTHS)[:, np.newaxis]
    masked = model(BATCH, token_mask=exists)
    for own, other, n in zip(states, masked, LENGTHS, strict=True):
        assert_same_bits(own[:n], other[:n])
    if not changes:
        late = model(np.roll(BATCH[1:2, :6], 3), token_mask=[[False] * 3 + [True] * 3])
        early = model(BATCH[1:2, :3])
        np.testing.assert_allclose(late[:, 3:], early, rtol=1e-4, atol=1e-5)
    assert np.isfinite(model(np.full(3, MASK))).all()


@pytest.mark.quick
@CASES
def test_gradients_are_those_of_differences(changes):
    config = {**families.ESM, **changes}
    rng = np.random.default_rng(0)
    model = BertEncoder.from_config(config, dtype=np.float64, rng=rng)
    for array in model.parameters().values():
        array += rng.standard_normal(array.shape) / 4
    exists = np.arange(9) < np.array(LENGTHS)[:, np.newaxis]
    states, pullback = model.vjp(BATCH, lengths=LENGTHS)
    grad = rng.standard_normal(states.shape) * exists[..., np.newaxis]
    found = pullback(grad)

    def loss():
        return float((model(BATCH, lengths=LENGTHS) * grad)[exists].sum())

    for name, array in model.parameters().items():
        step = rng.standard_normal(array.shape) * 1e-5
        array += step
        above = loss()
        array -= 2 * step
        slope = (above - loss()) / 2
        array += step
        own = (found[name] * step).sum()
        np.testing.assert_allclose(slope, own, rtol=1e-4, atol=1e-9, err_msg=name)


@pytest.mark.quick
def test_frequencies_are_those_of_the_files(tmp_path):
    tensors, _ = write(tmp_path / "a")
    model = BertEncoder.from_pretrained(tmp_path / "a", dtype=np.float64)
    assert (model.rotary.frequencies == FREQUENCIES).all()
    assert (model.rotary.frequencies != Rotary(4).frequencies).any()
    plain = BertEncoder.from_config(families.ESM, dtype=np.float64)
    checkpoints.load(plain, tensors, "esm")
    assert (plain.rotary.frequencies == Rotary(4).frequencies).all()
    assert (plain(IDS) != model(IDS)).any()
    checkpoints.load(plain, checkpoints.read(tmp_path / "a"), "esm")
    assert_same_bits(plain(IDS), model(IDS))
    model.save_pretrained(tmp_path / "b")
    again = BertEncoder.from_pretrained(tmp_path / "b", dtype=np.float64)
    assert_same_bits(again(IDS), model(IDS))
    for wrong, text in (
        (FREQUENCIES[:1], r"inv_freq: expected shape \(2,\), got \(1,\)"),
        (-FREQUENCIES, "expected finite numbers above 0"),
        (FREQUENCIES * np.float32("nan"), "expected finite numbers above 0"),
    ):
        write(tmp_path / "a", wrong)
        with pytest.raises(ValueError, match=text):
            BertEncoder.from_pretrained(tmp_path / "a")
    other = "esm.encoder.layer.1.attention.self.rotary_embeddings.inv_freq"
    write(tmp_path / "a", more=[(other, FREQUENCIES * 2)])
    with pytest.raises(ValueError, match=r"expected the frequencies of .*layer\.0\."):
        BertEncoder.from_pretrained(tmp_path / "a")


def test_what_no_vector_needs_is_left_alone_and_the_rest_refused(tmp_path):
    more = {
        "esm.contact_head.regression.weight": np.ones((1, 6), np.float32),
        "esm.contact_head.regression.bias": np.ones(1, np.float32),
        "esm.embeddings.position_embeddings.weight": np.ones((16, 12), np.float32),
        "esm.embeddings.position_ids": np.arange(16)[np.newaxis],
    }
    write(tmp_path)
    expected = BertEncoder.from_pretrained(tmp_path)(IDS)
    write(tmp_path, more=more.items())
    assert_same_bits(BertEncoder.from_pretrained(tmp_path)(IDS), expected)
    for changes, text in (
        ({"is_folding_model": True}, "is_folding_model = False, got True"),
        ({"esmfold_config": {"trunk": {}}}, "expected no esmfold_config"),
        ({"position_embedding_type": "relative_key"}, "to be absolute or rotary, got"),
        ({"mask_token_id": None}, "expected a mask_token_id with token_dropout"),
        ({"hidden_act": "relu"}, "hidden_act = 'gelu', got 'relu'"),
    ):
        with pytest.raises(ValueError, match=text):
            BertEncoder.from_config({**families.ESM, **changes})
    with pytest.raises(ValueError, match="masked_token"):
        BertEncoder(1, 8, 2, 8, vocab_size=9, masked_token=9)


@CASES
@pytest.mark.parametrize("name", ["EsmModel", "EsmForMaskedLM"])
def test_vectors_and_words_are_those_of_transformers(tmp_path, name, changes):
    """`pip install torch transformers`."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    given = {**families.ESM, **changes}
    del given["model_type"]
    torch.manual_seed(0)
    model = getattr(transformers, name)(transformers.EsmConfig(**given)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for key, buffer in model.named_buffers():
            if key.endswith("inv_freq"):
                buffer.copy_(torch.tensor(FREQUENCIES))
    model.save_pretrained(tmp_path / "a")
    has_words = name.endswith("LM")
    options = {"masked_words": has_words, "pooler": not has_words}
    ours = BertEncoder.from_pretrained(tmp_path / "a", **options)
    exists = np.arange(9) < np.array(LENGTHS)[:, np.newaxis]
    ids = np.where(exists, BATCH, 1)  # pad_token_id
    ids[exists & (ids == 1)] = 3
    ours.save_pretrained(tmp_path / "b")
    said = json.loads((tmp_path / "b" / "config.json").read_text())
    assert said["architectures"] == [name]
    again, info = getattr(transformers, name).from_pretrained(
        tmp_path / "b", output_loading_info=True
    )
    assert all("contact_head" in key for key in info["missing_keys"])
    assert not info["unexpected_keys"]
    for theirs in (model, again.eval()):
        with torch.no_grad():
            result = theirs(
                torch.tensor(ids), attention_mask=torch.tensor(exists).long()
            )
        states = ours(ids, lengths=LENGTHS)
        if has_words:
            expected, states = result.logits.numpy(), ours.logits(states)
        else:
            expected = result.last_hidden_state.numpy()
            np.testing.assert_allclose(
                ours.pool(states), result.pooler_output.numpy(), atol=2e-5
            )
        assert np.abs(expected).max() > 0.5
        np.testing.assert_allclose(states[exists], expected[exists], atol=3e-5)
