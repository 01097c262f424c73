"""The RMSNorm modules of Transformers in accelerate(): recognised, fused, undone."""

import importlib
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn  # noqa: E402
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRMSNorm  # noqa: E402

from attnpy.integrations.torch import (  # noqa: E402
    _transformers_norms,
    accelerate,
    disable,
    enable,
)

CLASSES = {  # a class of each form, and those of the models that people use most
    "LlamaRMSNorm": "llama",
    "MistralRMSNorm": "mistral",
    "Qwen2RMSNorm": "qwen2",
    "Qwen3RMSNorm": "qwen3",
    "Phi3RMSNorm": "phi3",
    "GemmaRMSNorm": "gemma",
    "Gemma2RMSNorm": "gemma2",
    "Gemma3RMSNorm": "gemma3",
    "Gemma4RMSNorm": "gemma4",
    "T5LayerNorm": "t5",
    "MT5LayerNorm": "mt5",
    "Olmo2RMSNorm": "olmo2",
    "GptOssRMSNorm": "gpt_oss",
    "HeliumRMSNorm": "helium",
    "Llama4TextRMSNorm": "llama4",
    "Llama4TextL2Norm": "llama4",
    "MoshiRMSNorm": "moshi",
    "MambaRMSNorm": "mamba",
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZE = 70


def class_of(name):
    model = CLASSES[name]
    try:
        module = importlib.import_module(
            f"transformers.models.{model}.modeling_{model}"
        )
    except ImportError:
        pytest.skip(f"this Transformers has no {name}")
    return getattr(module, name)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def build(kind, dtype=torch.float32):
    norm = kind() if kind.__name__ == "Llama4TextL2Norm" else kind(SIZE)
    for one in norm.parameters():
        one.data = normal(SIZE, seed=1)
    return norm.to(dtype)


def outcome(norm, x, grad):
    """The output, and the gradients of x and of the weight."""
    x = x.clone().requires_grad_()
    y = norm(x)
    return y, *torch.autograd.grad(y, (x, *norm.parameters()), grad)


# ---- What is computed ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_a_norm_is_one_call_with_its_own_rounding_and_gradients(name, dtype):
    norm = build(class_of(name), dtype)
    x, grad = normal(3, 9, SIZE).to(dtype), normal(3, 9, SIZE, seed=2).to(dtype)
    expected = outcome(norm, x, grad)
    with accelerate(report=True) as report:
        found = outcome(norm, x, grad)
        with torch.no_grad():
            assert torch.equal(norm(x), found[0])
    assert report.computed[name] == 2
    assert "mean.dim" not in report.computed
    half = dtype is not torch.float32
    bound = {torch.bfloat16: 8e-3, torch.float16: 1e-3}.get(dtype, 1e-5)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        size = float(other.detach().abs().max())
        torch.testing.assert_close(
            one, other, atol=bound * size, rtol=2 * bound if half else bound
        )
    if half:  # another order of roundings differs in a tenth of the numbers
        assert float((found[0] != expected[0]).float().mean()) < 0.005


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm])
def test_a_row_has_the_same_bits_in_any_batch_and_memory(kind, dtype):
    norm, x = build(kind, dtype), normal(7, 5, SIZE).to(dtype)
    with accelerate(), torch.no_grad():
        whole = norm(x)
        assert torch.equal(norm(x[2:3, 1:4]), whole[2:3, 1:4])
        assert torch.equal(norm(x.mT.contiguous().mT), whole)
        assert torch.equal(torch.stack([norm(row) for row in x]), whole)
        with accelerate(num_threads=3):
            assert torch.equal(norm(x), whole)


def test_the_weight_may_change():
    norm, x = build(LlamaRMSNorm), normal(3, SIZE)
    with accelerate(), torch.no_grad():
        before = norm(x)
        norm.weight.mul_(2)
        assert torch.equal(norm(x), before * 2)
        norm.variance_epsilon = 3.0
        assert not torch.equal(norm(x), before * 2)


def test_gradients_of_gradients_and_transforms_are_pytorchs():
    norm, x = build(LlamaRMSNorm), normal(4, SIZE)

    def loss(x):
        return norm(x).square().sum()

    def derivatives():
        return (
            torch.func.vmap(torch.func.grad(loss))(x),
            torch.func.jvp(norm, (x,), (x,)),
            torch.autograd.functional.hvp(loss, x, x)[1],
        )

    expected = derivatives()
    with accelerate():
        found = derivatives()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.quick
def test_what_is_an_error_without_it_stays_one():
    for attribute in ("weight", "variance_epsilon"):
        norm = LlamaRMSNorm(8)
        setattr(norm, attribute, None)
        with accelerate(), pytest.raises(TypeError, match="NoneType"):
            norm(torch.ones(2, 8))


@pytest.mark.quick
def test_what_the_fused_call_is_not_for_is_left():
    norm, x = build(LlamaRMSNorm), normal(3, SIZE)
    cases = {
        "double": lambda: norm(x.double()),
        "other dtypes": lambda: norm(x.bfloat16()),
        "keyword": lambda: norm(hidden_states=x),
        "meta": lambda: norm.to("meta")(x.to("meta")),
    }
    for name, call in cases.items():
        expected = call()
        with accelerate(report=True) as report:
            found = call()
        assert found.dtype is expected.dtype and "LlamaRMSNorm" not in report.computed
        if name == "meta":
            assert found.is_meta
        else:
            torch.testing.assert_close(found, expected)
    for wrong in (None, "text", 3):
        with pytest.raises(AttributeError), accelerate():
            norm(wrong)
    with pytest.raises(TypeError), accelerate():
        norm(x, x)


def test_autocast_and_compiled_code_are_pytorchs():
    norm, x = build(LlamaRMSNorm), normal(3, SIZE)
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    expected = norm(x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = norm(x)
    with accelerate(report=True) as report:
        torch.testing.assert_close(compiled(x), expected)
        with torch.autocast("cpu", torch.bfloat16):
            found = norm(x)
    assert "LlamaRMSNorm" not in report.computed
    assert found.dtype is mixed.dtype
    torch.testing.assert_close(found, mixed)


# ---- What is recognised --------------------------------------------------------------


class Louder(LlamaRMSNorm):
    def forward(self, hidden_states):
        return 2 * super().forward(hidden_states)


class Inherited(GemmaRMSNorm):
    pass


class OtherNorm(GemmaRMSNorm):
    def _norm(self, x):
        return x * 3


@pytest.mark.quick
def test_subclasses_keep_what_they_do_themselves():
    x = normal(3, SIZE)
    for kind, is_fused in ((Louder, True), (Inherited, True), (OtherNorm, False)):
        norm = build(kind)
        expected = norm(x)
        with accelerate(report=True) as report, torch.no_grad():
            torch.testing.assert_close(norm(x), expected)
        base = kind.__mro__[1].__name__
        assert (base in report.computed) == is_fused


@pytest.mark.quick
def test_an_objects_own_method_is_called():
    norm, x = build(GemmaRMSNorm), normal(3, SIZE)
    norm._norm = lambda x: x * 3
    expected = norm(x)
    with accelerate(), torch.no_grad():
        assert torch.equal(norm(x), expected)
        norm.forward = lambda x: x * 5
        assert torch.equal(norm(x), x * 5)


@pytest.mark.quick
@pytest.mark.parametrize("method", ["forward", "_norm"])
def test_a_class_that_does_something_else_is_no_norm(method):
    def other(self, x):
        return x

    form = _transformers_norms.form_of(GemmaRMSNorm)
    assert form is not None
    changed = type("Changed", (GemmaRMSNorm,), {method: other})
    assert _transformers_norms.form_of(changed) is None
    assert _transformers_norms.form_of(nn.RMSNorm) is None


def test_a_method_that_another_library_replaces_stays_its(monkeypatch):
    norm, x = build(LlamaRMSNorm), normal(3, SIZE)
    with accelerate(), monkeypatch.context() as patch:
        patch.setattr(LlamaRMSNorm, "forward", lambda self, x: x * 7)
        with accelerate():
            assert torch.equal(norm(x), x * 7)
        assert torch.equal(norm(x), x * 7)


# ---- Blocks --------------------------------------------------------------------------


@pytest.mark.quick
def test_the_method_is_transformers_own_after_the_last_block():
    theirs = LlamaRMSNorm.forward
    norm, x = build(LlamaRMSNorm), normal(3, SIZE)
    with accelerate():
        assert LlamaRMSNorm.forward is not theirs
        with accelerate(norms=False, report=True) as report:
            norm(x)
        assert "LlamaRMSNorm" not in report.computed
        assert LlamaRMSNorm.forward is not theirs
    assert LlamaRMSNorm.forward is theirs
    handle = accelerate(norm, report=True)
    norm(x)
    assert handle.report.computed == {"LlamaRMSNorm": 1}
    handle.remove()
    assert LlamaRMSNorm.forward is theirs


def test_other_threads_have_pytorchs_bits():
    norm, x = build(LlamaRMSNorm), normal(50, SIZE)
    plain, found = norm(x).detach(), []
    with accelerate(), torch.no_grad():
        other = threading.Thread(target=lambda: found.append(norm(x).detach()))
        other.start()
        other.join()
    assert torch.equal(found[0], plain)


def test_a_model_that_is_imported_after_enable_is_recognised(monkeypatch):
    name = "transformers_modules.of_a_test"
    x = normal(3, SIZE)
    enable()
    try:
        module = types.ModuleType(name)
        methods = dict(vars(_transformers_norms._Llama)) | {"__module__": name}
        methods = {n: methods[n] for n in ("forward", "__module__")}
        module.Norm = type("Norm", (LlamaRMSNorm,), methods)
        monkeypatch.setitem(sys.modules, name, module)
        model = nn.Sequential(build(module.Norm))
        with accelerate(report=True) as report:
            model(x)
        assert report.computed == {"Norm": 1}
        ours = module.Norm.forward
    finally:
        disable()
    assert module.Norm.forward is not ours
