"""Arrays and models on other devices than the CPU: refused, or left to their library.

PyTorch's device "meta" stands for others, as its tensors have no memory that attnpy
could read. On a machine with a GPU the tests use that as well.
"""

import contextlib
import os
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.9")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs some

from support.arrays import normal as array  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, bias, sdpa_kernel  # noqa: E402

import attnpy  # noqa: E402
from attnpy.integrations.torch import (  # noqa: E402
    accelerate,
    attention,
    disable,
    enable,
    scaled_dot_product_attention,
)
from attnpy.layers import MultiHeadAttention  # noqa: E402

HAS_GPU = torch.cuda.is_available()
pytestmark = pytest.mark.quick
on_a_gpu = pytest.mark.skipif(not HAS_GPU, reason="PyTorch has no GPU")
devices = pytest.mark.parametrize(
    "device", ["meta", pytest.param("cuda", marks=on_a_gpu)]
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(found, expected):
    """Are the bits the same, where there are any?"""
    assert found.device == expected.device
    if expected.is_meta:
        return found.shape == expected.shape
    return torch.equal(found, expected)


def assert_alike(found, expected):
    """Gradients of a GPU may depend on the order in which its threads come."""
    assert [one.device for one in found] == [one.device for one in expected]
    assert [one.shape for one in found] == [one.shape for one in expected]
    if not expected[0].is_meta:
        torch.testing.assert_close(found, expected)


# ---- Functions -----------------------------------------------------------------------


@devices
def test_functions_of_arrays_refuse_tensors_elsewhere(device):
    x = array(2, 3, 8)
    tensor = torch.as_tensor(x).to(device)
    for name, call in {
        "query": lambda: attnpy.attention(tensor, x, x),
        "key": lambda: attnpy.attention(x, tensor, x),
        "mask": lambda: attnpy.attention(x, x, x, mask=tensor > 0),
        "bias": lambda: attnpy.attention(x, x, x, bias=[tensor]),
        "x": lambda: MultiHeadAttention(8, 2)(tensor),
    }.items():
        with pytest.raises(TypeError, match=rf"^{name}: .* on device '{device}"):
            call()
    with pytest.raises(TypeError, match=r"^out: expected a NumPy array, got Tensor$"):
        attnpy.attention(x, x, x, out=tensor)


@devices
@pytest.mark.parametrize("wrapped", [False, True])
def test_functions_of_tensors_refuse_a_tensor_elsewhere(device, wrapped):
    x = normal(2, 3, 8)
    good = {"query": x, "key": x, "value": x}
    more = {"mask": torch.ones(3, 3) > 0, "bias": normal(3, 3), "sinks": normal(2)}
    more |= {"kv_lengths": torch.tensor(2)}
    for name, one in (good | more).items():
        given = {**good, name: one.to(device)}
        call = torch.vmap(lambda x, g=given: attention(**g)) if wrapped else None
        named = "(query|key)" if name == "query" else name
        with pytest.raises(ValueError, match=rf"^{named}: .*'{device}"):
            attention(**given) if call is None else call(normal(2))
    with pytest.raises(ValueError, match=rf"^out: .* '{device}"):
        attention(x, x, x, out=x.to(device))
    with pytest.raises(ValueError, match=rf"^attn_mask: .* '{device}"):
        scaled_dot_product_attention(x, x, x, normal(3, 3).to(device))


@on_a_gpu
@pytest.mark.parametrize("function", [attention, scaled_dot_product_attention])
def test_functions_of_tensors_refuse_a_gpu(function):
    x = normal(2, 3, 8).cuda()
    message = "^query: expected a CPU tensor, got one on device 'cuda:0', which x.cpu()"
    for call in (function, torch.compile(function, backend="aot_eager")):
        with pytest.raises(ValueError, match=message):
            call(x, x, x)
    with pytest.raises(ValueError, match=message):
        torch.vmap(function)(*[x[None]] * 3)


@devices
def test_a_tensor_that_moved_before_its_gradient_is_refused(device):
    x, hooks = nn.Parameter(normal(2, 3, 8)), torch.autograd.graph.saved_tensors_hooks
    message = f"^tensors: expected a CPU tensor, got one on device '{device}"
    for options in ({}, {"bias": normal(3, 3)}):
        with hooks(lambda one: one, lambda one: one.to(device)):
            output = attention(x, x, x, **options)
        with pytest.raises(ValueError, match=message):
            output.sum().backward()
        if device != "meta":  # to which `data` cannot go
            output = attention(x, x, x, **options)
            x.data = x.data.to(device)
            with pytest.raises((ValueError, RuntimeError), match=device):
                output.sum().backward()
            x.data = x.data.cpu()


@on_a_gpu
def test_pinned_memory_is_the_cpu_s():
    x = normal(2, 3, 8)
    pinned = x.pin_memory()
    assert torch.equal(attention(pinned, pinned, pinned), attention(x, x, x))
    layer = nn.Linear(8, 8)
    with accelerate(), torch.no_grad():
        expected = layer(x)
        layer.weight.data = layer.weight.data.pin_memory()
        for _ in range(3):
            assert torch.equal(layer(pinned), expected)
    found = attnpy.attention(pinned, pinned, pinned)
    assert np.array_equal(found, attnpy.attention(*[x.numpy()] * 3))


# ---- Models --------------------------------------------------------------------------


class Network(nn.Module):
    """All that a block replaces."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(16, 16, 1)
        self.layer = nn.TransformerEncoderLayer(
            16, 4, 32, 0.0, "gelu", batch_first=True
        )
        self.attend = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.RMSNorm(16)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = self.layer(self.first(x.mT).mT)
        x, weights = self.attend(x, x, x)
        x = functional.silu(self.norm(x)) + weights.sum(-1, keepdim=True)
        heads = x.unflatten(-1, (4, 4)).transpose(1, 2)
        x = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return self.last(x.transpose(1, 2).flatten(2)).tanh().mean(1)


def network():
    torch.manual_seed(0)
    return Network().eval()


def results(model, x, block=contextlib.nullcontext):
    """The output, the gradients, and the output of inference."""
    model.zero_grad()
    with block():
        output = model(x)
        output.square().sum().backward()
        with torch.no_grad():
            again = model(x)
    return [output.detach(), again, *(p.grad for p in model.parameters())]


@devices
def test_a_model_elsewhere_is_left_to_pytorch(device):
    model, x = network().to(device), normal(2, 5, 16).to(device)
    expected = results(model, x)
    with accelerate(report=True) as report:
        found = results(model, x)
    assert all(map(same, found[:2], expected[:2]))
    assert_alike(found, expected)
    assert not report.computed
    enable()  # the backward pass of a GPU has a thread of its own
    try:
        found = results(model, x)
    finally:
        disable()
    assert all(map(same, found[:2], expected[:2]))
    assert_alike(found, expected)


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("meta", "aot_eager"),
        pytest.param("cuda", "aot_eager", marks=on_a_gpu),
        pytest.param("cuda", "inductor", marks=on_a_gpu),
    ],
)
def test_what_is_compiled_for_elsewhere_is_left_to_pytorch(device, backend):
    def attend(x):
        x = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return functional.rms_norm(x, (8,)) @ x.mT

    x = normal(2, 4, 5, 8).to(device).requires_grad_()
    expected = attend(x)
    compiled = torch.compile(attend, fullgraph=True, backend=backend)
    with accelerate(report=True) as report:
        found = compiled(x)
        pairs = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
    assert not report.computed
    assert_alike([found, pairs[0]], [expected, pairs[1]])


@contextlib.contextmanager
def no_fused_layers():
    """Without PyTorch's kernel for a whole encoder layer, which refuses hooks."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@devices
def test_a_model_may_leave_and_come_back(device):
    model, x = network(), normal(2, 5, 16)
    handle = accelerate(model, report=True)
    with torch.no_grad():
        expected = [model(x) for _ in range(3)][-1]  # its weights are packed by now
        computed = dict(handle.report.computed)
        state = {name: 2 * one for name, one in model.state_dict().items()}
        other = network()
        other.load_state_dict(state)
        with accelerate():
            twice = other(x)
        assert not torch.equal(expected, twice)
        model.to(device)
        with no_fused_layers():
            expected_there = network().to(device)(x.to(device))
        assert same(model(x.to(device)), expected_there)
        assert handle.report.computed == computed
        if device != "meta":
            for parameter in model.parameters():
                parameter.mul_(2)
            model.to("cpu")
        else:
            model.load_state_dict(state, assign=True)
        for _ in range(3):
            assert torch.equal(model(x), twice)
    handle.remove()


@devices
def test_a_part_of_a_model_may_be_elsewhere(device):
    before, after, x = network(), nn.Linear(4, 3).to(device), normal(2, 5, 16)

    def run():
        before.zero_grad()
        output = after(before(x).to(device))
        if device != "meta":  # from which no gradient comes back
            output.square().sum().backward()
        return output.detach(), [one.grad for one in before.parameters()]

    expected, gradients = run()
    with accelerate(report=True) as report:
        found, accelerated = run()
    assert found.device.type == device
    assert report.computed["addmm"] >= 1
    if device == "meta":
        return
    assert report.computed["native_layer_norm_backward"] == 2
    torch.testing.assert_close([found, *accelerated], [expected, *gradients])


@on_a_gpu
def test_operators_of_two_devices_have_pytorch_s_errors():
    x, elsewhere = normal(4, 4), normal(4, 4).cuda()
    calls = {
        "mm": lambda x, y: x @ y,
        "addmm": lambda x, y: functional.linear(x, y, x[0]),
        "norm": lambda x, y: functional.layer_norm(x, (4,), y[0]),
        "attention": lambda x, y: functional.scaled_dot_product_attention(x, y, x),
    }
    for call in calls.values():
        for pair in ((x, elsewhere), (elsewhere, x)):
            with pytest.raises((RuntimeError, NotImplementedError)) as expected:
                call(*pair)
            with accelerate(), pytest.raises(expected.type) as found:
                call(*pair)
            assert str(found.value).split(" for argument")[0] in str(expected.value)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_of_a_gpu_is_pytorch_s(dtype):
    model, x = network(), normal(2, 5, 16)
    with accelerate(), torch.no_grad():
        here = model(x)
        with torch.autocast("cuda", dtype):
            assert torch.equal(model(x), here)
    model, x = model.cuda(), x.cuda()
    with torch.autocast("cuda", dtype), torch.no_grad():
        expected = model(x)
        with accelerate():
            assert torch.equal(model(x), expected)


@devices
def test_attention_elsewhere_makes_no_masks_here(device, monkeypatch):
    x = normal(2, 4, 6, 8).to(device)
    mask = bias.causal_lower_right(6, 7)
    longer = normal(2, 4, 7, 8).to(device)

    def refuse(*_, **__):
        raise AssertionError("a mask on the CPU")

    monkeypatch.setattr("attnpy.integrations.torch._accelerate.known_mask", refuse)
    with accelerate():
        found = functional.scaled_dot_product_attention(x, longer, longer, mask)
    expected = functional.scaled_dot_product_attention(x, longer, longer, mask)
    assert same(found, expected)


@on_a_gpu
def test_the_choice_of_a_kernel_on_a_gpu_is_pytorch_s():
    x = normal(2, 4, 6, 8).cuda().half()
    attend = functional.scaled_dot_product_attention
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(backend):
            expected = attend(x, x, x)
            with accelerate():
                assert torch.equal(attend(x, x, x), expected)
    x = x.double()
    with (
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        accelerate(),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        attend(x, x, x)


@on_a_gpu
def test_a_graph_of_a_gpu_is_captured_in_a_block():
    model, x = network().cuda(), normal(2, 5, 16).cuda()
    with torch.no_grad(), accelerate():
        expected = model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = model(x)
        graph.replay()
    torch.testing.assert_close(found, expected)


def test_the_default_device_is_no_hindrance():
    """`with torch.device(...)`, as models are loaded onto a GPU."""
    model, x = network(), normal(2, 5, 16)
    device = "cuda" if HAS_GPU else "meta"
    with accelerate():
        expected = results(model, x)
        with torch.device(device):
            found = results(model, x)
    assert all(map(same, found, expected))


# ---- Transformers --------------------------------------------------------------------


@pytest.fixture(scope="module")
def huggingface():
    pytest.importorskip("transformers", minversion="5.2")
    from attnpy.integrations import huggingface

    huggingface.register()
    return huggingface


def llama(implementation):
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=0,
        attn_implementation=implementation,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@on_a_gpu
def test_a_model_of_transformers_on_a_gpu_is_told_of_sdpa(huggingface):
    model, ids = llama("attnpy"), torch.arange(1, 9).reshape(2, 4)
    with torch.no_grad():
        expected = model(ids).logits
        model.cuda()
        with pytest.raises(ValueError, match=r"^query: .*, for which .*='sdpa'$"):
            model(ids.cuda())
        assert torch.equal(model.cpu()(ids).logits, expected)


@devices
def test_a_model_of_transformers_elsewhere_is_left_to_pytorch(huggingface, device):
    model, ids = llama("sdpa").to(device), torch.arange(1, 9).reshape(2, 4).to(device)
    with torch.no_grad():
        expected = model(ids).logits
        with accelerate(report=True) as report:
            found = model(ids).logits
    assert same(found, expected)
    assert not report.computed


def test_the_default_device_is_no_hindrance_for_transformers(huggingface):
    layer = nn.Module()
    query = normal(1, 2, 5, 8)
    starts = torch.tensor([0, 2, 5])
    told = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "dropout": 0.5}

    def run():
        torch.manual_seed(0)
        return huggingface.attention_forward(layer, query, query, query, None, **told)

    expected = run()[0]
    with torch.device("cuda" if HAS_GPU else "meta"):
        assert torch.equal(run()[0], expected)


# ---- JAX and CuPy --------------------------------------------------------------------


def test_arrays_of_jax_elsewhere_are_refused():
    pytest.importorskip("jax", minversion="0.10")
    from attnpy.integrations import jax as integration

    class Device:
        platform = "gpu"

        def __str__(self):
            return "cuda:0"

    elsewhere = types.SimpleNamespace(devices=lambda: {Device()})
    cpu = types.SimpleNamespace(platform="cpu")
    here = types.SimpleNamespace(devices=lambda: [cpu])
    message = r"^key: expected an array on a CPU, got one on cuda:0; jax\.default_d"
    with pytest.raises(ValueError, match=message):
        integration._check_places({"query": here, "key": elsewhere})


@pytest.fixture
def jax():
    jax = pytest.importorskip("jax", minversion="0.10")
    if jax.default_backend() == "cpu":
        pytest.skip("JAX has no GPU, or has been told to leave it alone")
    return jax


def test_jax_with_a_gpu(jax):
    from attnpy.integrations.jax import dot_product_attention

    x = array(2, 5, 4, 8)  # (B, L, N, H)
    expected = attnpy.attention(*[x.swapaxes(1, 2)] * 3).swapaxes(1, 2)
    cpu = jax.devices("cpu")[0]
    there, here = jax.numpy.asarray(x), jax.device_put(x, cpu)
    for given in ((there, there, there), (here, here, there)):
        with pytest.raises(ValueError, match=r"^(query|value): expected an array on a"):
            dot_product_attention(*given)
    with pytest.raises(Exception, match="attnpy"):
        jax.jit(dot_product_attention)(there, there, there).block_until_ready()
    for function in (dot_product_attention, jax.jit(dot_product_attention)):
        assert np.array_equal(function(here, here, here), expected)
        with jax.default_device(cpu):
            assert np.array_equal(function(x, x, x), expected)
    gradient = jax.grad(lambda x: (dot_product_attention(x, x, x) ** 2).sum())(here)
    assert gradient.devices() == {cpu}
    # NumPy copies JAX's arrays from wherever they are.
    heads = there.swapaxes(1, 2)
    found = attnpy.attention(heads, heads, heads).swapaxes(1, 2)
    assert np.array_equal(found, expected)


@on_a_gpu
def test_arrays_of_cupy_are_refused():
    cupy = pytest.importorskip("cupy")
    x = array(2, 3, 8)
    elsewhere = cupy.asarray(x)
    message = (
        r": expected .* CPU's memory, got a cupy\.ndarray, which x\.get\(\) copies"
    )
    for name, call in {
        "query": lambda: attnpy.attention(elsewhere, x, x),
        "bias": lambda: attnpy.attention(x, x, x, bias=[elsewhere]),
        "x": lambda: MultiHeadAttention(8, 2)(elsewhere),
    }.items():
        with pytest.raises(TypeError, match=f"^{name}{message}"):
            call()
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor, got ndarray"):
        attention(elsewhere, elsewhere, elsewhere)
    found = attnpy.attention(elsewhere.get(), x, x)
    assert np.array_equal(found, attnpy.attention(x, x, x))
