"""Encoder-decoders against those of Transformers, where it is installed.

Random weights, random settings of `generate`: the same tokens, the same scores.
"""

import json
import random

import numpy as np
import pytest
from support import encoder_decoders as oracle

from attnpy.models import EncoderDecoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

CASES = [
    *((kind, {}) for kind in oracle.ENCODER_DECODERS),
    ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5", {"feed_forward_proj": "gated-silu"}),
    ("bart", {"activation_function": "relu", "scale_embedding": True}),
]
CASES = pytest.mark.parametrize(("kind", "changes"), CASES)
LENGTHS = [9, 4, 7]
# Theirs that are in float32 in every model: T5's norms, M2M100's positions.
SAID = (
    *("max_length", "min_length", "num_beams", "length_penalty", "early_stopping"),
    *("no_repeat_ngram_size", "forced_bos_token_id", "decoder_start_token_id"),
    "eos_token_id",
)
BOUNDS = {"t5": 1e-4, "mt5": 1e-3, "marian": 1e-6, "pegasus": 1e-6, "m2m_100": 1e-6}


def theirs(kind, changes):
    """A model of theirs in float64, with random weights that make texts differ."""
    config = {**oracle.ENCODER_DECODERS[kind], "vocab_size": 60, **changes}
    layers = "num_layers" if "num_layers" in config else "encoder_layers"
    name = "num_decoder_layers" if layers == "num_layers" else "decoder_layers"
    config |= {layers: 2, name: 2, "pad_token_id": 1 if kind == "m2m_100" else 59}
    if name == "decoder_layers":
        config["max_position_embeddings"] = 40
    made = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(made).eval().double()
    computed = kind in ("marian", "pegasus")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not (computed and "embed_positions" in name):
                parameter.add_(0.3 * torch.randn_like(parameter))
        if kind == "mt5" or not changes.get("tie_word_embeddings", True):
            own = 0.5 * torch.randn_like(model.lm_head.weight)
            model.lm_head.weight = torch.nn.Parameter(own)
        if hasattr(model, "final_logits_bias"):
            bias = model.final_logits_bias
            bias.copy_(torch.randn(bias.shape, dtype=bias.dtype))
    return model


def sources():
    rng = np.random.default_rng(0)
    exists = np.arange(9) < np.array(LENGTHS)[:, None]
    return rng.integers(3, 58, (3, 9)), torch.tensor(exists).long()


@CASES
def test_folders_are_read_and_written_with_their_scores(tmp_path, kind, changes):
    model = theirs(kind, changes)
    model.save_pretrained(tmp_path / "a")
    ours = EncoderDecoder.from_pretrained(tmp_path / "a", dtype="auto", packed=False)
    ids, mask = sources()
    targets = np.random.default_rng(1).integers(3, 58, (3, 6))
    arguments = {
        "input_ids": torch.tensor(ids),
        "attention_mask": mask,
        "decoder_input_ids": torch.tensor(targets),
    }
    with torch.no_grad():
        expected = model(**arguments).logits.numpy()
    scores = ours.logits(ours(ids, targets, lengths=LENGTHS))
    assert np.abs(expected).max() > 0.5
    bound = BOUNDS.get(kind, 1e-10)
    np.testing.assert_allclose(scores, expected, atol=bound, rtol=bound)

    ours.decoder.layers[0].self_attention.W_q *= 1.5
    ours.save_pretrained(tmp_path / "b")
    owner = json.loads((tmp_path / "b/config.json").read_text())["architectures"][0]
    assert owner == type(model).__name__
    again, said = getattr(transformers, owner).from_pretrained(
        tmp_path / "b", dtype=torch.float64, output_loading_info=True
    )
    missing = {name for name in said["missing_keys"] if "embed_positions" not in name}
    assert not missing
    assert not said["unexpected_keys"]
    with torch.no_grad():
        expected = again.eval()(**arguments).logits.numpy()
    scores = ours.logits(ours(ids, targets, lengths=LENGTHS))
    np.testing.assert_allclose(scores, expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("n_labels", [1, 3])
def test_scores_of_texts_are_those_of_bart(tmp_path, n_labels):
    config = {**oracle.BART, "pad_token_id": 1, "num_labels": n_labels}
    config |= {"max_position_embeddings": 40}
    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(**config)
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_config(made).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "a")
    ours = EncoderDecoder.from_pretrained(
        tmp_path / "a", classifier=True, dtype="auto", packed=False
    )
    ids, mask = np.full((3, 9), 1), np.zeros((3, 9), int)
    rng = np.random.default_rng(0)
    for row, exists, n in zip(ids, mask, LENGTHS, strict=True):
        row[:n] = rng.integers(5, 30, n)
        row[[n // 2, n - 1]], exists[:n] = 2, 1
    given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    with torch.no_grad():
        expected = model(**given).logits.numpy()
    assert expected.shape == (3, n_labels)
    scores = ours.classify(ids, lengths=LENGTHS)
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-10)

    ours.decoder.layers[0].cross_attention.W_q *= 1.5
    ours.save_pretrained(tmp_path / "b")
    again, said = kind.from_pretrained(
        tmp_path / "b", dtype=torch.float64, output_loading_info=True
    )
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    with torch.no_grad():
        expected = again.eval()(**given).logits.numpy()
    scores = ours.classify(ids, lengths=LENGTHS)
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-10)


def settings(draw, end):
    """Settings of theirs, and the same of ours."""
    n_beams = draw.choice([1, 2, 3, 5])
    both = {"num_beams": n_beams}
    if n_beams > 1:
        both["length_penalty"] = draw.choice([1.0, 0.0, 2.0, -1.0])
        both["early_stopping"] = draw.choice([True, False, "never"])
        both["num_return_sequences"] = draw.randint(1, n_beams)
    several = {
        "no_repeat_ngram_size": draw.choice([1, 2, 3]),
        "repetition_penalty": draw.choice([1.3, 0.8]),
        "suppress_tokens": [3, 9, 11],
        "begin_suppress_tokens": [3, 30],
    }
    both |= {name: x for name, x in several.items() if draw.random() < 0.3}
    names = {
        "max_new_tokens": ("num_tokens", draw.choice([2, 5, 12, 12])),
        "min_new_tokens": ("min_tokens", draw.choice([2, 4])),
        "forced_bos_token_id": ("forced_bos", 7),
        "forced_eos_token_id": ("forced_eos", end),
        "bad_words_ids": ("bad_words", [[59], [5, 6], [7, 8, 9]]),
        "eos_token_id": ("stop", [end, 30, 31, 44]),
    }
    given, own = dict(both), dict(both)
    for name, (ours, value) in names.items():
        if name == "max_new_tokens" or draw.random() < 0.3:
            given[name] = own[ours] = value
    return given, own


@CASES
def test_texts_and_scores_are_theirs(tmp_path, kind, changes):
    model = theirs(kind, changes)
    model.save_pretrained(tmp_path)
    ours = EncoderDecoder.from_pretrained(tmp_path, dtype="auto")
    ids, mask = sources()
    padding = model.generation_config.pad_token_id
    padded = np.where(mask.numpy() == 1, ids, padding)
    draw, lengths = random.Random(f"{kind}{changes}"), set()
    for _ in range(6):
        given, own = settings(draw, ours.stop[0])
        with torch.no_grad():
            expected = model.generate(
                torch.tensor(padded), attention_mask=mask, do_sample=False,
                output_scores=True, return_dict_in_generate=True, **given,
            )  # fmt: skip
        n_each = own.setdefault("num_return_sequences", 1)
        searched = own["num_beams"] > 1
        found = ours.generate(ids, lengths=LENGTHS, return_scores=searched, **own)
        tokens = found.tokens if searched else found
        rows = expected.sequences.numpy()[:, 1:].reshape(3, n_each, -1)
        stops = own.get("stop", ours.stop)
        for b in range(3):
            for k in range(n_each):
                if searched:
                    known = expected.sequences_scores.numpy()[b * n_each + k]
                    if known < -1e8:  # fewer texts than are asked for
                        continue
                    assert found.scores[b, k] == pytest.approx(known, abs=2e-3)
                text = tokens[b, k].tolist()
                ends = [i for i, token in enumerate(text) if token in stops]
                text = text[: ends[0] + 1 if ends else len(text)]
                row = rows[b, k].tolist()
                assert row[: len(text)] == text, given
                assert set(row[len(text) :]) <= {padding, *stops}
                lengths.add(len(text))
    assert len(lengths) > 1


@pytest.mark.quick(place=("config.json",))
@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
def test_a_folders_settings_are_theirs(tmp_path, place):
    model = theirs("bart", {})
    model.save_pretrained(tmp_path)
    said = {
        "max_length": 11, "min_length": 4, "num_beams": 3, "length_penalty": 2.0,
        "no_repeat_ngram_size": 2, "early_stopping": True, "forced_bos_token_id": 9,
        "decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 59,
    }  # fmt: skip
    path = tmp_path / "generation_config.json"
    if place == "config.json":
        path.unlink()
        path = tmp_path / place
        said = {**json.loads(path.read_text()), **said}
    path.write_text(json.dumps(said))
    config = transformers.GenerationConfig(
        **{name: x for name, x in said.items() if name != "forced_eos_token_id"}
    )
    if place == "config.json":
        config = transformers.GenerationConfig.from_model_config(
            transformers.AutoConfig.from_pretrained(tmp_path)
        )
        config = transformers.GenerationConfig(
            **{**config.to_dict(), **{n: said[n] for n in SAID}}
        )
    ids, mask = sources()
    with torch.no_grad():
        expected = model.generate(
            torch.tensor(np.where(mask.numpy() == 1, ids, 59)),
            attention_mask=mask,
            generation_config=config,
        ).numpy()[:, 1:]
    ours = EncoderDecoder.from_pretrained(tmp_path, dtype="auto")
    found = ours.generate(ids, lengths=LENGTHS)
    for row, text in zip(expected.tolist(), found.tolist(), strict=True):
        ends = [i for i, token in enumerate(text) if token == 2]
        text = text[: ends[0] + 1 if ends else len(text)]
        assert row[: len(text)] == text
