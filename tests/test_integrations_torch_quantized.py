"""quantize(): PyTorch's linear modules with matrices of 8 and 4 bits."""

import copy
import io

import numpy as np
import pytest

import attnpy
from attnpy._linear import linear

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from attnpy.integrations.torch import (  # noqa: E402
    QuantizedLinear,
    accelerate,
    check_invariance,
    quantize,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small(bias=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 40, bias=bias), nn.Tanh(), nn.Linear(40, 24))


def quantized(model, **options):
    model = copy.deepcopy(model)
    assert quantize(model, **options) is None
    return model


def dequantized(model, like):
    """The same model with the tensors that its integers stand for."""
    other = copy.deepcopy(like)
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear):
            other.get_submodule(name).weight.data = module.weight.dequantize()
    return other


def relative(found, expected):
    found, expected = found.double(), expected.double()
    return float((found - expected).square().mean().sqrt() / expected.square().mean())


OPTIONS = (
    {},
    {"bits": 4},
    {"group": 32, "activations": "int8"},
    {"group": "column"},
    {"bits": 4, "group": 64, "activations": "int8"},
)


@pytest.mark.parametrize("options", OPTIONS)
def test_products_are_those_of_attnpy(options):
    layer = nn.Linear(96, 40)
    model, x = quantized(layer, **options), normal(3, 5, 96)
    weight = attnpy.quantize(layer.weight.detach().numpy().T, **options)
    bias = layer.bias.detach().numpy()
    expected = linear(x.numpy(), weight, bias)
    assert np.array_equal(model(x).detach(), expected)
    assert repr(model.weight.quantized) == repr(weight)
    assert model.weight.shape == layer.weight.shape
    assert torch.equal(model.weight.dequantize(), torch.tensor(weight.dequantize().T))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_have_the_inputs_dtype(dtype):
    if dtype is torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    model = small().to(dtype)
    ours, x = quantized(model), normal(7, 96).to(dtype)
    expected = dequantized(ours, model).float()(x.float())
    assert ours[0].weight.dtype is dtype and ours(x).dtype is dtype
    assert relative(ours(x), expected) < (1e-6 if dtype is torch.float32 else 2e-2)
    # After quantising, too.
    moved = quantized(small()).to(dtype)
    assert moved[0].weight.dtype is dtype and moved[0].bias.dtype is dtype
    assert moved(x).dtype is dtype


def test_autocast_decides_the_dtype():
    pytest.importorskip("ml_dtypes")
    model, x = quantized(small()), normal(7, 96)
    with torch.autocast("cpu"):
        found = model(x)
        assert found.dtype is small()(x).dtype is torch.bfloat16
    with torch.autocast("cpu", dtype=torch.float16):
        assert model(x).dtype is torch.float16
    assert relative(found, model(x)) < 2e-2


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_those_of_the_dequantised_matrix(options):
    model = small()
    ours = quantized(model, **(options | {"activations": "float"}))
    theirs = dequantized(ours, model)
    grads = []
    for one in (ours, theirs):
        x = normal(2, 5, 96).requires_grad_()
        one(x).square().sum().backward()
        grads.append((x.grad, one[0].bias.grad, one[2].bias.grad))
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    x = normal(5, 96).requires_grad_()
    with torch.no_grad():
        assert not ours(x).requires_grad
    (grad,) = torch.autograd.grad(ours(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_gradients_of_parts():
    model = quantized(nn.Linear(96, 40))
    x = normal(2, 5, 96)
    model(x).sum().backward()  # of the bias alone
    torch.testing.assert_close(model.bias.grad, torch.full((40,), 10.0))
    model.requires_grad_(False)
    x.requires_grad_()
    model(x).sum().backward()
    expected = model.weight.dequantize().sum(0).expand(2, 5, 96)
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-5)
    assert not model(x.detach()).requires_grad


def test_rows_have_the_same_bits_in_any_batch():
    model = quantized(small(), activations="int8")
    x = normal(9, 96)
    whole = model(x)
    for row in range(len(x)):
        assert torch.equal(model(x[row]), whole[row])
    with accelerate(report=True) as report:
        within = model(x)
    assert report.computed["quantized linear"] == 2
    with accelerate(num_threads=2):
        assert torch.equal(model(x), within)
        assert check_invariance(model.eval(), {"input": normal(8, 96)}) == []


@pytest.mark.parametrize("shape", [(96,), (0, 96), (3, 0, 96), (2, 3, 4, 96)])
def test_any_axes_before(shape):
    found = quantized(small())(torch.ones(shape))
    assert found.shape == (*shape[:-1], 24) and found.isfinite().all()


def test_any_strides():
    model = quantized(small())
    x = normal(2, 96, 5)
    assert torch.equal(model(x.mT), model(x.mT.contiguous()))
    z = torch.complex(x, x).conj().imag.mT  # negative in its flags alone
    assert z.is_neg() and torch.equal(model(z), model(-x.mT.contiguous()))


@pytest.mark.parametrize("bits", [8, 4])
def test_states_go_into_models_and_files(bits, tmp_path):
    model, x = quantized(small(), bits=bits), normal(5, 96)
    state = model.state_dict()
    assert list(state) == [
        *("0.bias", "0.weight.codes", "0.weight.scale"),
        *("2.bias", "2.weight.codes", "2.weight.scale"),
    ]
    assert state["0.weight.codes"].shape == (96 * bits // 8, 40)
    torch.manual_seed(1)
    others = nn.Sequential(nn.Linear(96, 40), nn.Tanh(), nn.Linear(40, 24))
    other = quantized(others, bits=bits)
    assert not torch.equal(other(x), model(x))
    torch.save(state, tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other(x), model(x))
    # What it was made of is quantised in the same way.
    other.load_state_dict(others.state_dict())
    assert not torch.equal(other(x), model(x))
    other.load_state_dict(small().state_dict())
    assert torch.equal(other(x), model(x))


def test_states_that_do_not_fit_are_refused():
    model = quantized(small())
    x, state = normal(5, 96), model.state_dict()
    before = model(x)
    plain = small().state_dict()
    wide = nn.Linear(100, 40).state_dict()["weight"]
    for wrong, message in (
        ({}, "Missing key.*0.weight.codes"),
        ({k: v for k, v in state.items() if "scale" not in k}, "either it or 0.weight"),
        (state | {"0.weight": plain["0.weight"]}, "either it or 0.weight.codes and"),
        (state | {"0.weight.codes": torch.zeros(5, 40)}, r"codes: expected shape \(96"),
        (state | {"0.weight.codes": torch.zeros(96, 40)}, "codes: expected integers"),
        (state | {"0.weight.scale": torch.full((1, 40), torch.nan)}, "scale: expected"),
        (state | {"0.more": torch.zeros(1)}, "Unexpected key.*0.more"),
        (plain | {"0.weight": wide}, r"expected shape \(40, 96\), got \(40, 100\)"),
        (plain | {"0.weight": plain["0.weight"] / 0}, "0.weight: weight: expected fin"),
    ):
        with pytest.raises(RuntimeError, match=message):
            model.load_state_dict(wrong)
    assert torch.equal(model(x), before)


def test_pickles_and_copies():
    model, x = quantized(small()), normal(5, 96)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
        assert torch.equal(other(x), model(x))
        assert other[0].weight is not model[0].weight


def test_modules_stay_the_same_objects():
    model, calls = small(), []
    first = model[0]
    first.register_forward_hook(lambda *_: calls.append(1))
    first.own = "kept"
    model.train()
    quantize(model)
    assert model[0] is first and first.own == "kept" and first.training
    assert isinstance(first, QuantizedLinear) and isinstance(first, nn.Linear)
    model(normal(5, 96))
    assert calls == [1]
    assert "bits=8, group=128" in repr(model)
    assert 'group="column", activations="int8"' in repr(
        quantized(small(), group="column", activations="int8")
    )
    assert [name for name, _ in model.named_parameters()] == ["0.bias", "2.bias"]


def test_tied_weights_share_their_integers():
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40))
    model[1].weight = model[0].weight
    quantize(model)
    assert model[0].weight.quantized is model[1].weight.quantized
    once = nn.Linear(40, 40)
    twice = quantized(nn.Sequential(once, once))
    assert twice[0] is twice[1]


def test_a_function_chooses_modules():
    model, seen = small(), []

    def only_the_last(module, name):
        seen.append((type(module), name))
        return name == "2"

    quantize(model, filter_fn=only_the_last)
    assert seen == [(nn.Linear, "0"), (nn.Linear, "2")]
    assert type(model[0]) is nn.Linear and type(model[2]) is QuantizedLinear
    quantize(model)  # what is left
    assert type(model[0]) is QuantizedLinear


def test_what_is_no_plain_linear_stays():
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict({"own": Own(8, 8), "plain": nn.Linear(8, 8)})
    quantize(model)
    assert type(model["own"]) is Own
    with pytest.raises(ValueError, match=r"Linear or .* quantise, got none in a Own"):
        quantize(model["own"])


def test_functions_of_pytorch_take_the_weight():
    layer = quantized(nn.Linear(96, 40))
    x, matrix = normal(5, 96), layer.weight.dequantize()
    functional = nn.functional.linear
    assert torch.equal(functional(x, layer.weight, layer.bias), layer(x))
    assert torch.equal(functional(x, weight=layer.weight), functional(x, layer.weight))
    assert torch.equal(x @ layer.weight.dequantize().T, torch.matmul(x, matrix.T))
    assert torch.equal(torch.sum(layer.weight), matrix.sum())
    for what in ("data", "grad", "t"):
        with pytest.raises(AttributeError, match=f"have no '{what}' and cannot be"):
            getattr(layer.weight, what)


def test_weights_cannot_be_changed():
    layer, x = quantized(nn.Linear(96, 40)), normal(5, 96)
    before = layer(x)
    for change in (
        layer.reset_parameters,
        lambda: nn.init.zeros_(layer.weight),
        lambda: torch.relu_(layer.weight),
        lambda: torch.add(x[0, 0], 1, out=layer.weight),
        lambda: setattr(layer, "weight", nn.Parameter(torch.zeros(40, 96))),
    ):
        with pytest.raises((TypeError, AttributeError), match=r"^weight: .* change"):
            change()
    assert torch.equal(layer(x), before)


def test_compiled_models_call_it():
    model, x = quantized(small()).eval(), normal(5, 96)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))


def test_bad_calls_are_refused():
    model, x = quantized(small()), normal(5, 96)
    for call, error, message in (
        (lambda: quantize(3), TypeError, "model: expected a torch.nn.Module, got int"),
        (lambda: quantize(nn.Tanh()), ValueError, "got none in a Tanh"),
        (lambda: quantize(model), ValueError, "got none in a Sequential"),
        (lambda: quantize(small(), bits=5), ValueError, "bits: expected 8 or 4, got 5"),
        (lambda: quantize(small(), group=7), ValueError, "group: expected"),
        (lambda: quantize(small(), activations=1), (TypeError, ValueError), "activati"),
        (
            lambda: quantize(small(), filter_fn="2"),
            TypeError,
            "filter_fn: expected a f",
        ),
        (QuantizedLinear, TypeError, "expected attnpy.integrations.torch.quantize"),
        (lambda: model(x.double()), TypeError, "input: expected float32.*float64"),
        (lambda: model(x.int()), TypeError, "input: expected float32.*int32"),
        (lambda: model(x.numpy()), TypeError, "input: expected a torch.Tensor, got nd"),
        (lambda: model(x[:, :9]), ValueError, r"\(\.\.\., 96\), got \(5, 9\)"),
        (lambda: model(torch.tensor(1.0)), ValueError, r"\(\.\.\., 96\), got \(\)"),
        (lambda: model(x.to("meta")), ValueError, "input: expected a CPU tensor"),
        (lambda: model(x.to_sparse()), TypeError, "input: expected a dense tensor"),
        (lambda: model.double(), TypeError, "QuantizedLinear: expected float32"),
        (lambda: model.to("meta"), ValueError, "stay on the CPU.*got device 'meta'"),
        (lambda: torch.func.vmap(model)(x), TypeError, "torch.func"),
        (lambda: torch.func.jvp(model, (x,), (x,)), TypeError, "torch.func"),
        (lambda: torch.export.export(model, (x,)), TypeError, "torch.export"),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, 2e36])
def test_a_model_that_cannot_be_quantised_is_not_changed(number):
    model = small()
    with torch.no_grad():
        model[2].weight[3, 5] = number
    with pytest.raises(ValueError, match=r"2\.weight: expected finite numbers up to"):
        quantize(model)
    assert type(model[0]) is nn.Linear
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).double())
    with pytest.raises(TypeError, match=r"1\.weight: expected float32.*float64"):
        quantize(model)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, device="meta"))
    with pytest.raises(ValueError, match=r"1\.weight: expected a CPU tensor"):
        quantize(model)
    assert type(model[0]) is nn.Linear


# ---- Transformers --------------------------------------------------------------------

BERT = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip


@pytest.mark.parametrize("name", ["Bert", "Llama", "T5", "GPT2"])
def test_models_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    config = {
        "Bert": BERT,
        "Llama": BERT | {"num_key_value_heads": 2},
        "T5": {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64,
               "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
        "GPT2": {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4,
                 "bos_token_id": 1, "eos_token_id": 1},
    }[name]  # fmt: skip
    make = {
        "Bert": transformers.BertModel,
        "Llama": transformers.LlamaForCausalLM,
        "T5": transformers.T5ForConditionalGeneration,
        "GPT2": transformers.GPT2LMHeadModel,
    }[name]
    torch.manual_seed(0)
    plain = make(getattr(transformers, f"{name}Config")(**config)).eval()
    ours = quantized(plain)
    n = sum(isinstance(module, QuantizedLinear) for module in ours.modules())
    # Of each layer, and one at the end: a pooler, or scores.
    per_model = {"Bert": 2 * 6 + 1, "Llama": 2 * 7 + 1, "T5": 2 * 6 + 2 * 10 + 1}
    assert n == per_model.get(name, 2 * 4 + 1)
    whole = copy.deepcopy(plain)
    with torch.no_grad():
        for path, module in ours.named_modules():
            if isinstance(module, QuantizedLinear):
                other = whole.get_submodule(path)
                other.weight = nn.Parameter(module.weight.dequantize())
        ids = torch.arange(2, 26).reshape(2, 12)
        more = {"decoder_input_ids": ids} if name == "T5" else {}
        found, expected = (one(ids, **more)[0] for one in (ours, whole))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        with accelerate():
            alone = {k: x[:1] for k, x in more.items()}
            assert torch.equal(ours(ids[:1], **alone)[0], ours(ids, **more)[0][:1])
    if name != "Bert":
        texts = [
            one.generate(ids[:1], max_new_tokens=6, do_sample=False, pad_token_id=0)
            for one in (ours, whole)
        ]
        assert torch.equal(*texts)


def test_adapters_are_trained_around_it():
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**BERT, num_key_value_heads=2)
    model = quantized(transformers.LlamaForCausalLM(config))
    lora = peft.LoraConfig(target_modules=["v_proj", "down_proj"])
    model = peft.get_peft_model(model, lora)
    trained = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    ids = torch.arange(2, 26).reshape(2, 12)
    losses = []
    for _ in range(10):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.02
    with pytest.raises(AttributeError, match="cannot be changed"):
        model.merge_and_unload()
