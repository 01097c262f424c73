"""quantize(): what else is done with modules: sharing, hooks, training, libraries."""

import copy
import io
import pickle
import warnings
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support import minilm  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402

from attnpy.integrations.torch import (  # noqa: E402
    QuantizedLinear,
    _quantized,
    accelerate,
    quantize,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 40), nn.Tanh(), nn.Linear(40, 24))


def quantized(model, **options):
    model = copy.deepcopy(model)
    quantize(model, **options)
    return model


# ---- Memory and sharing --------------------------------------------------------------


def test_weights_are_let_go_one_by_one(monkeypatch):
    model = nn.Sequential(
        nn.Linear(32, 32), nn.MultiheadAttention(32, 4), nn.Linear(32, 32)
    )
    parameters = [weakref.ref(x) for x in model.parameters() if x.dim() == 2]
    alive, real = [], _quantized.quantized

    def noted(*arguments):
        alive.append(sum(x() is not None for x in parameters))
        return real(*arguments)

    monkeypatch.setattr(_quantized, "quantized", noted)
    quantize(model)
    # The second to go last has three products, of queries, keys and values.
    assert alive == [4, 3, 2, 2, 2, 1]
    assert not any(x() for x in parameters)


def test_an_embedding_keeps_the_weight_that_it_shares():
    torch.manual_seed(0)
    embedding, head = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
    head.weight = embedding.weight
    model = nn.ModuleDict({"embedding": embedding, "head": head})
    before, tokens = embedding.weight.detach().clone(), torch.arange(7)
    exact = head(embedding(tokens))
    state = {k: x.clone() for k, x in model.state_dict().items()}
    quantize(model)
    assert torch.equal(embedding.weight, before) and embedding.weight.requires_grad
    assert list(model.state_dict()) == [
        *("embedding.weight", "head.weight.codes", "head.weight.scale")
    ]
    found = head(embedding(tokens))
    assert 0 < float(((found - exact).norm() / exact.norm()).detach()) < 0.02
    assert str(model.load_state_dict(state)) == "<All keys matched successfully>"
    assert torch.equal(head(embedding(tokens)), found)
    with pytest.raises(TypeError, match=r"^weight: expected no change of quantised"):
        head.weight = embedding.weight  # tied again


def test_what_is_shared_stays_shared():
    first, second, other = nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 40)
    second.weight = first.weight
    model, x = nn.Sequential(first, second, first, other), normal(3, 40)
    quantize(model)
    assert first.weight is second.weight and first.weight is not other.weight
    twin = copy.deepcopy(model)
    assert twin[0] is twin[2] and twin[0].weight is twin[1].weight
    names = {name for name in model.state_dict() if name.endswith("codes")}
    assert names == {f"{i}.weight.codes" for i in range(4)}
    state = {k: v.clone() for k, v in twin.state_dict().items()}
    twin.load_state_dict(state)
    assert twin[0].weight is twin[1].weight
    assert torch.equal(twin(x), model(x))


def test_shared_conv1d():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    first, second, turned = Conv1D(32, 32), Conv1D(32, 32), nn.Linear(32, 32)
    second.weight = turned.weight = first.weight  # the last is its transpose
    model, x = nn.ModuleList([first, second, turned]), normal(3, 32)
    exact = [module(x) for module in model]
    quantize(model)
    assert second.weight is first.weight and turned.weight is not first.weight
    for module, expected in zip(model, exact, strict=True):
        torch.testing.assert_close(module(x), expected, rtol=0, atol=0.02)


# ---- Hooks that compute weights ------------------------------------------------------


def test_weights_that_hooks_compute_are_refused():
    for hook in (
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ):
        model = small()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of weight_norm
            hook(model[2])
        with pytest.raises(
            TypeError, match=r"^2\.weight: expected a parameter to quan"
        ):
            quantize(model)
        assert type(model[0]) is nn.Linear
        quantize(model, filter_fn=lambda _, name: name == "0")
        assert model(normal(3, 96)).shape == (3, 24)
    layer = nn.MultiheadAttention(32, 4)
    nn.utils.spectral_norm(layer.out_proj)
    with pytest.raises(TypeError, match=r"^out_proj\.weight: expected a parameter"):
        quantize(layer)


def test_pruned_weights_are_quantised_once_they_are_permanent():
    model, x = small(), normal(3, 96)
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.remove(model[0], "weight")
    exact = model(x)
    zeros = model[0].weight == 0
    quantize(model)
    assert not model[0].weight.dequantize()[zeros].any()
    torch.testing.assert_close(model(x), exact, rtol=0, atol=0.02)
    prune.l1_unstructured(model[0], "bias", 0.5)  # of a parameter that is left
    assert model(x).shape == (3, 24)


def test_parametrised_modules_stay():
    model = small()
    parametrizations.weight_norm(model[0])
    kind = type(model[0])
    quantize(model)
    assert type(model[0]) is kind and type(model[2]) is QuantizedLinear
    with pytest.raises(ValueError, match="got none in a ParametrizedLinear"):
        quantize(model[0])


def test_lazy_modules_need_a_call_before():
    model = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 8))
    with pytest.raises(
        ValueError, match=r"0\.weight: .* none yet of a LazyLinear: call"
    ):
        quantize(model)
    assert type(model[1]) is nn.Linear
    model(normal(3, 5))
    quantize(model)
    assert all(type(module) is QuantizedLinear for module in model)


# ---- Copies, places, training --------------------------------------------------------


def test_pickles_and_compiled_copies():
    model, x = quantized(small(), bits=4), normal(5, 96)
    for other in (pickle.loads(pickle.dumps(model)), copy.copy(model)):
        assert torch.equal(other(x), model(x))
    with torch.no_grad():
        compiled = torch.compile(copy.deepcopy(model), backend="eager")
        assert torch.equal(compiled(x), model(x))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    floats = sum(4 * x.numel() for x in small().parameters())
    assert len(file.getvalue()) < floats


def test_data_parallel_and_shared_memory():
    model, x = quantized(small()), normal(5, 96)
    wrapped = nn.DataParallel(small())
    quantize(wrapped)
    assert torch.equal(wrapped(x), model(x))
    assert torch.equal(nn.DataParallel(model)(x), model(x))
    assert torch.equal(model.share_memory()(x), wrapped(x))


def test_only_biases_are_parameters():
    model = quantized(small())
    assert [name for name, _ in model.named_parameters()] == ["0.bias", "2.bias"]
    assert not model[0].weight.requires_grad
    model.requires_grad_(False)
    assert not model(normal(3, 96)).requires_grad
    model.requires_grad_(True)
    assert model(normal(3, 96)).requires_grad and not model[0].weight.requires_grad
    for change in (
        lambda: model[0].weight.requires_grad_(),
        lambda: setattr(model[0].weight, "requires_grad", True),
        lambda: setattr(model[0].weight, "data", torch.zeros(40, 96)),
        lambda: setattr(model[0].weight, "grad", torch.zeros(40, 96)),
    ):
        with pytest.raises(AttributeError, match=r"^weight: .* cannot be changed"):
            change()


def test_dtypes_change_and_come_back():
    model, x = quantized(small()), normal(5, 96)
    before = model(x)
    weight = model[0].weight.quantized
    assert model.half()(x.half()).dtype is torch.float16
    assert model[0].weight.dequantize().dtype is torch.float16
    assert model.float()[0].weight.quantized is weight
    # The biases were rounded.
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-3)
    for moved in (model.to(torch.float32), model.to_empty(device="cpu"), model.cpu()):
        assert moved is model and model[0].weight.quantized is weight


def test_numpy_and_functions_take_the_weight_as_a_tensor():
    weight = quantized(nn.Linear(96, 40)).weight
    matrix = weight.dequantize()
    assert np.array_equal(np.asarray(weight), matrix)
    assert np.asarray(weight, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy: expected True or None"):
        weight.__array__(copy=False)
    assert torch.equal(torch.norm(weight), torch.norm(matrix))  # `out` is None there
    assert torch.equal(torch.add(weight, 1), matrix + 1)


# ---- Libraries -----------------------------------------------------------------------

BERT = {
    "vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip


def bert():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(**BERT)
    return transformers.BertForSequenceClassification(config).eval()


def tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    levels = tokenizers.models.WordLevel(
        {word: i for i, word in enumerate(words)}, unk_token="[UNK]"
    )
    fast = tokenizers.Tokenizer(levels)
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {f"{x}_token": f"[{x.upper()}]" for x in ("pad", "unk", "mask")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **names)


def test_a_pipeline_classifies_texts():
    plain = bert()
    ours = quantized(plain)
    from transformers import pipeline

    found, expected = (
        pipeline("text-classification", model=model, tokenizer=tokenizer())
        for model in (ours, plain)
    )
    texts = ["a b c", "d", "e f g h a b c d"]
    for one, other in zip(found(texts), expected(texts), strict=True):
        assert one["label"] == other["label"]
        assert abs(one["score"] - other["score"]) < 1e-2
    with accelerate():
        assert found(texts, batch_size=3) == found(texts)


def test_the_trainer_trains_what_is_left(tmp_path):
    pytest.importorskip("accelerate")
    model = quantized(bert())
    from transformers import Trainer, TrainingArguments

    codes = {k: x.clone() for k, x in model.state_dict().items() if "codes" in k}
    examples = [
        {"input_ids": torch.arange(4) + i, "labels": torch.tensor(i % 2)}
        for i in range(8)
    ]
    options = {
        "per_device_train_batch_size": 4, "use_cpu": True, "report_to": [],
        "disable_tqdm": True, "learning_rate": 0.05, "save_strategy": "epoch",
    }  # fmt: skip
    arguments = TrainingArguments(tmp_path, num_train_epochs=4, **options)
    trainer = Trainer(model, arguments, train_dataset=examples, eval_dataset=examples)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    for name, array in codes.items():
        assert torch.equal(model.state_dict()[name], array)
    # From its last checkpoint.
    other = quantized(bert())
    arguments = TrainingArguments(tmp_path, num_train_epochs=4, **options)
    Trainer(other, arguments, train_dataset=examples).train(resume_from_checkpoint=True)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        assert torch.equal(other.eval()(ids).logits, model.eval()(ids).logits)


@pytest.mark.filterwarnings("ignore")
def test_sentence_transformers_encodes_with_it():
    library = pytest.importorskip("sentence_transformers")
    minilm.require()
    from support import sentences

    folder = str(sentences.example().find_model())
    texts = ["A cat sleeps.", "The central bank raised interest rates.", "Hello"]
    model = library.SentenceTransformer(folder, device="cpu")
    exact = model.encode(texts)
    quantize(model)
    assert sum(type(x) is QuantizedLinear for x in model.modules()) == 6 * 6 + 1
    found = model.encode(texts)
    cosines = (found * exact).sum(1)
    assert cosines.min() > 0.999 and not np.array_equal(found, exact)
    with accelerate():
        together = model.encode(texts, batch_size=3)
        alone = [model.encode([text])[0] for text in texts]
        assert np.array_equal(together, alone)
