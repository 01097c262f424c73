"""accelerate() replaces PyTorch's names, and nobody who looks them up is misled."""

import contextlib
import gc
import inspect
import itertools
import subprocess
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from attnpy.integrations.torch import (  # noqa: E402
    _accelerate,
    _blocks,
    _kernels,
    accelerate,
    scaled_dot_product_attention,
)

NAMES = [
    (functional, "scaled_dot_product_attention"),
    (functional, "multi_head_attention_forward"),
    (torch, "_native_multi_head_attention"),
    (torch, "_transformer_encoder_layer_fwd"),
    (torch, "rms_norm"),
    (torch.jit, "script"),
]
PYTORCHS = [getattr(module, name) for module, name in NAMES]
EARLY = functional.scaled_dot_product_attention


def tensors(*lengths, seed=0, **options):
    """Return tensors (2, 4, L, 8) for query, key and value."""
    generator = torch.Generator().manual_seed(seed)
    lengths = lengths or (5, 5, 5)
    return [torch.randn(2, 4, n, 8, generator=generator, **options) for n in lengths]


def meanings():
    return [getattr(module, name) for module, name in NAMES]


def is_accelerated():
    """Does this thread's call of PyTorch's function give attnpy's bits, and not its?"""
    given = tensors(37, 37, 37, seed=3)
    found = functional.scaled_dot_product_attention(*given)
    ours, theirs = scaled_dot_product_attention(*given), EARLY(*given)
    assert not torch.equal(ours, theirs)
    return torch.equal(found, ours)


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    assert meanings() == PYTORCHS
    assert not _accelerate._names.blocks and not _accelerate._names.handlers
    assert not _blocks.thread.blocks and _blocks.thread.weights is None


# ---- Who handles calls by __torch_function__ -----------------------------------------


class ByName(torch.Tensor):
    """Knows the function by what its name means when it is called."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.scaled_dot_product_attention:
            return "handled"
        return super().__torch_function__(func, types, args, kwargs or {})


class ByIdentity(torch.Tensor):
    """Knows the function by what its name meant before."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in {EARLY}:
            return "handled"
        return super().__torch_function__(func, types, args, kwargs or {})


class Mode(TorchFunctionMode):
    """Knows all functions, both ways."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        for (module, name), pytorchs in zip(NAMES, PYTORCHS, strict=True):
            if func is getattr(module, name) and func is pytorchs:
                self.seen.append(name)
        return func(*args, **(kwargs or {}))


def attend(*arguments):
    return functional.scaled_dot_product_attention(*arguments)


@pytest.mark.quick
@pytest.mark.parametrize("subclass", [ByName, ByIdentity])
@pytest.mark.parametrize("position", range(4))
def test_a_subclass_that_handles_the_function_is_asked_in_a_block(subclass, position):
    arguments = [*tensors(), torch.zeros(5, 5)]
    arguments[position] = arguments[position].as_subclass(subclass)
    with accelerate():
        assert attend(*arguments) == "handled"
        names = ("query", "key", "value", "attn_mask")
        given = dict(zip(names, arguments, strict=True))
        assert functional.scaled_dot_product_attention(**given) == "handled"
        assert is_accelerated()


@pytest.mark.quick
def test_a_mode_sees_pytorch_s_functions_in_a_block():
    mha = nn.MultiheadAttention(16, 4, batch_first=True)
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
    x = torch.randn(3, 5, 16)
    expected = mha(x, x, x), layer(x)
    with accelerate(), Mode() as mode:
        attend(*tensors())
        assert mode.seen == ["scaled_dot_product_attention"]
        found = mha(x, x, x), layer(x)
        assert "multi_head_attention_forward" in mode.seen
        projections = [*layer.self_attn.parameters()]
        torch._native_multi_head_attention(x, x, x, 16, 4, *projections)
    assert "_native_multi_head_attention" in mode.seen
    torch.testing.assert_close(found, expected)


@pytest.mark.quick
def test_a_handler_is_asked_in_threads_without_a_block():
    (query, key, value), found = tensors(), []
    thread = threading.Thread(
        target=lambda: found.append(attend(query.as_subclass(ByName), key, value))
    )
    with accelerate():
        thread.start()
        thread.join()
    assert found == ["handled"]


@pytest.mark.quick
def test_names_are_attnpy_s_again_after_a_handler_that_raises():
    class Raises(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise KeyError

    query, key, value = tensors()
    with accelerate():
        with pytest.raises(KeyError):
            attend(query.as_subclass(Raises), key, value)
        assert is_accelerated()


@pytest.mark.quick
def test_a_handler_may_begin_and_end_blocks():
    class Accelerates(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is functional.scaled_dot_product_attention:
                with accelerate():
                    return func is functional.scaled_dot_product_attention
            return super().__torch_function__(func, types, args, kwargs or {})

    query, key, value = tensors()
    with accelerate():
        assert attend(query.as_subclass(Accelerates), key, value)
        assert is_accelerated()


BIASES = [causal_upper_left(5, 9), causal_lower_right(5, 9), causal_lower_right(5, 5)]


@pytest.mark.quick
@pytest.mark.parametrize("bias", BIASES, ids=["upper left", "lower right", "square"])
@pytest.mark.parametrize("grad", [False, True])
def test_pytorch_s_causal_biases_mean_what_they_mean(bias, grad):
    given = tensors(5, bias.seq_len_kv, bias.seq_len_kv, requires_grad=grad)
    expected = attend(*given, bias)
    with accelerate():
        found = attend(*given, bias)
        assert torch.equal(found, scaled_dot_product_attention(*given, bias))
        with pytest.raises(ValueError, match="CausalBias should not be used with"):
            functional.scaled_dot_product_attention(*given, bias, is_causal=True)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="is_causal: expected False with a CausalBias"):
        scaled_dot_product_attention(*given, bias, is_causal=True)


@pytest.mark.parametrize("bias", BIASES, ids=["upper left", "lower right", "square"])
def test_pytorch_s_causal_biases_are_compiled_in_a_block(bias):
    given = tensors(5, bias.seq_len_kv, bias.seq_len_kv)
    expected = attend(*given, bias) * 2
    compiled = torch.compile(
        lambda *x: attend(*x) * 2, fullgraph=True, backend="aot_eager"
    )
    for _ in range(2):
        torch.testing.assert_close(compiled(*given, bias), expected)
        with accelerate():
            torch.testing.assert_close(compiled(*given, bias), expected)


def test_handlers_are_asked_where_a_function_is_compiled_in_a_block():
    query, key, value = tensors()
    found = []
    with accelerate():
        for subclass in (ByName, ByIdentity):
            compiled = torch.compile(lambda *x: (x[0], attend(*x)), backend="eager")
            found.append(compiled(query.as_subclass(subclass), key, value)[1])
        compiled = torch.compile(lambda *x: attend(*x) * 2, backend="aot_eager")
        with Mode() as mode:
            compiled(query, key, value)
        assert "scaled_dot_product_attention" in mode.seen
        compiled = torch.compile(attend, fullgraph=True, backend="eager")
        with (
            pytest.raises(RuntimeError, match="expected no tensor subclass or mode"),
            Mode(),
        ):
            compiled(query, key, value)
    assert found == ["handled"] * 2


@pytest.mark.parametrize("compiled", [False, True])
def test_a_default_device_is_no_hindrance(compiled):
    given = tensors(37, 37, 37)
    function = torch.compile(attend, backend="aot_eager") if compiled else attend
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(3, 5, 16)
    expected = layer(x, x, x)
    for device in ("cpu", "meta"):
        with accelerate():
            with torch.device(device):
                assert torch.equal(
                    function(*given), scaled_dot_product_attention(*given)
                )
                attend(*given, None, 0.5)
                found = layer(x, x, x)
            torch.testing.assert_close(found, expected)


# ---- Who looks names up --------------------------------------------------------------


@pytest.mark.quick
def test_a_module_imported_in_a_block_has_pytorch_s_function_after_it(monkeypatch):
    module = types.ModuleType("somebody")
    with accelerate():
        module.scaled_dot_product_attention = functional.scaled_dot_product_attention
        monkeypatch.setitem(sys.modules, "somebody", module)
    assert module.scaled_dot_product_attention is EARLY
    with accelerate():
        assert module.scaled_dot_product_attention is not EARLY


def test_the_compiler_may_be_imported_before_and_used_first_in_a_block():
    script = (
        "import torch, torch._dynamo\n"
        "from torch._dynamo.trace_rules import get_torch_obj_rule_map\n"
        "from torch.nn import functional\n"
        "from attnpy.integrations.torch import accelerate\n"
        "attend = lambda x: functional.scaled_dot_product_attention(x, x, x) * 2\n"
        "compiled = torch.compile(attend, fullgraph=True, backend='aot_eager')\n"
        "x = torch.randn(1, 2, 3, 4)\n"
        "with accelerate():\n"
        "    torch.testing.assert_close(compiled(x), attend(x))\n"
        "torch.testing.assert_close(compiled(x), attend(x))\n"
        "bias = torch.nn.attention.bias.causal_upper_left(3, 3)\n"
        "masked = lambda x, bias: functional.scaled_dot_product_attention(\n"
        "    x, x, x, attn_mask=bias) * 2\n"
        "compiled = torch.compile(masked, fullgraph=True, backend='aot_eager')\n"
        "torch.testing.assert_close(compiled(x, bias), masked(x, bias))\n"
        "assert functional.scaled_dot_product_attention in get_torch_obj_rule_map()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def script_twice(x):
    return functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripts_are_refused_in_a_block_and_made_after_it():
    message = "accelerate: expected torch.jit.script to be called outside of the block"
    x = torch.randn(3, 5, 16)
    modules = [nn.MultiheadAttention(16, 4, batch_first=True), Scripted()]
    for scripted in (*modules, script_twice):
        with accelerate(), pytest.raises(RuntimeError, match=message):
            torch.jit.script(scripted)
    for module in modules:
        given = (x,) if isinstance(module, Scripted) else (x, x, x)
        scripted = torch.jit.script(module)
        torch.testing.assert_close(scripted(*given), module(*given))
        with accelerate():
            assert torch.jit.script(scripted) is scripted
            torch.testing.assert_close(scripted(*given), module(*given))
    assert torch.jit.script(script_twice)(x).shape == x.shape


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripts_without_attention_and_of_other_threads_are_made():
    def make():
        scripted.append(torch.jit.script(nn.MultiheadAttention(16, 4)))

    scripted = []
    thread = threading.Thread(target=make)
    with accelerate():
        thread.start()
        thread.join()

        @torch.jit.script
        def increased(x):
            return x + 1

        assert increased(torch.ones(())) == 2
    assert len(scripted) == 1


# ---- Ctrl-C, and blocks that end elsewhere -------------------------------------------


class Interruption:
    """KeyboardInterrupt at the n-th step of the adapter, but not within PyTorch.

    Not where a frame is left, or a generator resumed: there CPython drops the frame of
    a generator without its `finally`, and handles no signal.
    """

    FILES = tuple(
        module.__file__ for module in (_accelerate, _blocks, _kernels, contextlib)
    )

    def __init__(self, n):
        self.left = n

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename not in self.FILES:
            return None
        frame.f_trace_opcodes = True
        generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        self.left -= event != "return" and not (generator and event == "call")
        if self.left == 0:
            raise KeyboardInterrupt
        return self

    def run(self, function):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            function()
        finally:
            sys.settrace(before)


def enter_and_leave():
    with accelerate():
        pass


def leave_by_an_error():
    with contextlib.suppress(KeyError), accelerate():
        raise KeyError


def enter_twice():
    with accelerate(), accelerate(num_threads=1):
        pass


def is_replaced():
    return functional.scaled_dot_product_attention is not EARLY


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("function", [enter_and_leave, leave_by_an_error, enter_twice])
@pytest.mark.parametrize("outer", [contextlib.nullcontext, accelerate])
def test_ctrl_c_at_any_step_leaves_names_that_fit_the_blocks(function, outer):
    enter_and_leave()
    with outer():
        inside = is_replaced()
        for n in itertools.count(1):
            interruption = Interruption(n)
            try:
                interruption.run(function)
            except KeyboardInterrupt as error:
                kept = error  # whose frames may hold a block open
                assert is_replaced() is bool(_accelerate._names.blocks)
                del kept, error
            gc.collect(0)
            assert is_replaced() is inside
            assert len(_blocks.thread.blocks) == inside
            with accelerate():
                assert is_replaced()
                assert len(_blocks.thread.blocks) == inside + 1
            other = threading.Thread(target=enter_and_leave)  # no lock is left taken
            other.start()
            other.join(timeout=60)
            assert not other.is_alive()
            if interruption.left > 0:
                break
        assert n > 100
    assert not is_replaced()


@pytest.mark.quick
def test_ctrl_c_while_modules_are_looked_through_ends_the_block(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patch:
        patch.setattr(_accelerate, "_find_places", interrupted)
        patch.setattr(_accelerate._names, "n_modules", 0)
        with pytest.raises(KeyboardInterrupt), accelerate():
            pass
    with accelerate():
        assert is_accelerated()


def call_with_a_handler():
    query, key, value = tensors()
    attend(query.as_subclass(ByName), key, value)


LAYER = nn.MultiheadAttention(8, 2)


def call_for_weights():
    x = torch.ones(3, 1, 8)
    LAYER(x, x, x)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("function", [call_with_a_handler, call_for_weights])
def test_ctrl_c_in_a_call_leaves_the_block_as_it_was(function):
    with accelerate():
        enter_and_leave()
        for n in itertools.count(1):
            interruption = Interruption(n)
            with contextlib.suppress(KeyboardInterrupt):
                interruption.run(function)
            gc.collect(0)
            assert is_replaced()
            assert not _accelerate._names.handlers
            assert _blocks.thread.weights is None
            if interruption.left > 0:
                break
        assert n > 100
        assert is_accelerated()


@pytest.mark.quick
def test_a_block_that_another_thread_ends_has_ended():
    def generator():
        with accelerate():
            yield

    blocks = generator()
    next(blocks)
    assert is_accelerated()
    thread = threading.Thread(target=blocks.close)
    thread.start()
    thread.join()
    assert not is_replaced()
    assert not _blocks.thread.blocks
    with accelerate():
        assert is_accelerated()
    assert not is_accelerated()


@pytest.mark.quick
def test_a_block_that_nobody_ends_ends_when_it_is_freed():
    block = accelerate()
    block.__enter__()
    assert is_accelerated()
    del block
    gc.collect()
    assert not is_accelerated()


def test_blocks_and_handlers_of_many_threads_leave_nothing_behind():
    failures = []
    query, key, value = tensors()
    expected = scaled_dot_product_attention(query, key, value)

    def work(seed):
        for n in range(200):
            with accelerate():
                if (n + seed) % 5 == 0:
                    if attend(query.as_subclass(ByName), key, value) != "handled":
                        failures.append("handler")
                elif not torch.allclose(attend(query, key, value), expected, atol=1e-5):
                    failures.append("values")
                if not _blocks.thread.blocks:
                    failures.append("block")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
