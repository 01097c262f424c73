"""The weights of all-MiniLM-L6-v2: a real model, end to end."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support import families, minilm, sentences
from support.comparisons import assert_same_bits

from attnpy.models import SentenceEncoder

minilm.require()
numpy_files = pytest.importorskip("safetensors.numpy")

README = Path(__file__).parents[1] / "README.md"
search = sentences.example()
FOLDER = search.find_model()

# A question, and the sentence of the example that answers it.
ANSWERS = {
    "How do plants make food?": "Leaves turn sunlight",
    "Why did my software stop working?": "The program crashed",
    "What causes high and low water at the coast?": "The moon pulls",
    "pets that are often asleep": "A cat sleeps",
    "Who won the football game?": "The striker scored",
    "What is the weather going to be like?": "It will rain",
    "how to get noodles done": "Boil the pasta",
    "Why does dough get bigger?": "Bread rises",
    "musical instruments with strings": "The violin",
    "protection against diseases": "Vaccines train",
    "monetary policy": "The central bank",
    "public transport to catch a flight": "The train to the airport",
}


@pytest.fixture(scope="module")
def embed():
    return SentenceEncoder.from_pretrained(FOLDER)


def exact(embed, sentence):
    """The embedding by the arithmetic of BERT in float64."""
    tensors = numpy_files.load_file(FOLDER / "model.safetensors")
    config = json.loads((FOLDER / "config.json").read_text())
    ids = embed.tokenizer.encode(sentence).ids
    mean = families.bert_states(tensors, config, np.array(ids)).mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_embeddings_are_berts_arithmetic(embed):
    for sentence in ("Hello, world!", search.SENTENCES[0], " ".join(search.SENTENCES)):
        vector = embed.encode(sentence)
        assert vector.dtype == np.float32
        assert np.abs(vector - exact(embed, sentence)).max() < 5e-7


def test_a_sentence_has_the_same_bits_alone_and_in_a_padded_batch(embed):
    together = embed.encode(search.SENTENCES)
    assert np.abs(np.linalg.norm(together, axis=1) - 1).max() < 1e-6
    assert len({len(embed.tokenizer.encode(s).ids) for s in search.SENTENCES}) > 3
    for sentence, vector in zip(search.SENTENCES, together, strict=True):
        assert_same_bits(embed.encode(sentence), vector)


def test_questions_find_their_answers(embed):
    found = embed.search(list(ANSWERS), search.SENTENCES, 1)
    for question, best in zip(ANSWERS, found.indices[:, 0], strict=True):
        assert search.SENTENCES[best].startswith(ANSWERS[question]), question


def test_the_command_prints_the_best_first(capsys, tmp_path):
    search.main(["How do plants make food?", "--top", "3"])
    printed = capsys.readouterr().out
    assert printed in README.read_text()
    lines = printed.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(search.SENTENCES[0])
    path = tmp_path / "sentences.txt"
    path.write_text("Cats purr.\n\nTrees are green.\n")
    search.main(["plants", "--sentences", str(path), "--model", str(FOLDER)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["Trees are green.", "Cats purr."]


def test_the_command_says_what_is_missing(monkeypatch):
    with pytest.raises(SystemExit, match=r"folder, with a config\.json"):
        search.main(["x", "--model", str(Path(__file__).parent)])
    monkeypatch.setattr(search, "PACKAGE", "no_such_package")
    with pytest.raises(SystemExit, match="pip install --no-deps no-such-package"):
        search.main(["x"])
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SystemExit, match="pip install tokenizers"):
        search.main(["x", "--model", str(FOLDER)])


def test_embeddings_are_those_of_torch(embed):
    """Torch's own encoder layers, in float64, with the same weights."""
    torch = pytest.importorskip("torch")
    tensors = {
        name: torch.from_numpy(array.astype(np.float64))
        for name, array in numpy_files.load_file(FOLDER / "model.safetensors").items()
    }

    def put(module, name):
        module.weight.data = tensors[f"{name}.weight"]
        module.bias.data = tensors[f"{name}.bias"]

    norm = torch.nn.LayerNorm(384, eps=1e-12)
    put(norm, "embeddings.LayerNorm")
    layers = []
    for i in range(6):
        layer = torch.nn.TransformerEncoderLayer(
            384, 12, 1536, 0, "gelu", 1e-12, batch_first=True, dtype=torch.float64
        )
        name, part = f"encoder.layer.{i}", f"encoder.layer.{i}.attention.self"
        for kind in ("weight", "bias"):
            packed = [tensors[f"{part}.{x}.{kind}"] for x in ("query", "key", "value")]
            getattr(layer.self_attn, f"in_proj_{kind}").data = torch.cat(packed)
        put(layer.self_attn.out_proj, f"{name}.attention.output.dense")
        put(layer.norm1, f"{name}.attention.output.LayerNorm")
        put(layer.linear1, f"{name}.intermediate.dense")
        put(layer.linear2, f"{name}.output.dense")
        put(layer.norm2, f"{name}.output.LayerNorm")
        layers.append(layer.eval())
    for sentence in search.SENTENCES[:5]:
        ids = torch.tensor([embed.tokenizer.encode(sentence).ids])
        with torch.no_grad():
            x = tensors["embeddings.word_embeddings.weight"][ids]
            x = x + tensors["embeddings.position_embeddings.weight"][: ids.shape[1]]
            x = norm(x + tensors["embeddings.token_type_embeddings.weight"][0])
            for layer in layers:
                x = layer(x)
            expected = torch.nn.functional.normalize(x[0].mean(axis=0), dim=0).numpy()
        assert np.abs(embed.encode(sentence) - expected).max() < 5e-7
