"""PyTorch's own samples of operators and modules, with accelerate() and without."""

import contextlib
import functools
import math
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which PyTorch's tests need

from support.torch_tools import one_thread  # noqa: E402, F401
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

from attnpy import _attnpy  # noqa: E402
from attnpy.integrations.torch import (  # noqa: E402
    _kernels,
    accelerate,
    disable,
    enable,
    scaled_dot_product_attention,
)

OPERATORS = (
    "addbmm", "addmm", "addmv", "baddbmm", "bmm", "einsum", "inner", "linalg.multi_dot",
    "linalg.vector_norm", "matmul", "mean", "mm", "native_layer_norm",
    "nn.functional.bilinear", "nn.functional.conv1d", "nn.functional.conv2d",
    "nn.functional.gelu", "nn.functional.layer_norm", "nn.functional.linear",
    "nn.functional.normalize", "nn.functional.rms_norm",
    "nn.functional.scaled_dot_product_attention", "nn.functional.silu", "norm",
    "sum", "tanh", "tensordot", "var",
)  # fmt: skip
MODULES = (
    nn.Linear, nn.Bilinear, nn.LayerNorm, nn.RMSNorm, nn.GELU, nn.SiLU, nn.Tanh,
    nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer,
    nn.Conv1d, nn.Conv2d, nn.LSTM, nn.GRU, nn.BatchNorm1d,
)  # fmt: skip
BOUNDS = {
    torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-4,
    torch.complex64: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1,
}  # fmt: skip
SOME = 3  # samples of an operator in each dtype: as they come, evenly spaced


def tensors_of(given):
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, dict):
        given = list(given.values())
    if isinstance(given, (tuple, list)):
        return [tensor for one in given for tensor in tensors_of(one)]
    return []


def outcome(call, given):
    """What a call returns and its gradients are, or what it says is wrong."""
    torch.manual_seed(0)
    inputs = [one for one in tensors_of(given) if one.requires_grad]
    try:
        outputs = tensors_of(call())
    except Exception as error:
        return repr(error)
    ends = [one for one in outputs if one.requires_grad]
    if not ends or not inputs:
        return outputs
    grads = [torch.ones_like(one) for one in ends]
    return outputs, torch.autograd.grad(ends, inputs, grads, allow_unused=True)


def assert_alike(found, expected, bound):
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    for one, other in zip(tensors_of(found), tensors_of(expected), strict=True):
        assert one.dtype is other.dtype and one.shape == other.shape
        assert one.requires_grad == other.requires_grad
        size = other.detach().double().abs().nan_to_num(0, 0, 0) if bound else other
        largest = max(1.0, float(size.max())) if bound and other.numel() else 1.0
        torch.testing.assert_close(
            one.detach(), other.detach(), atol=bound * largest, rtol=bound,
            equal_nan=True,
        )  # fmt: skip


def has_dropout(sample):
    numbers = [one for one in sample.args if isinstance(one, float)]
    return sample.kwargs.get("dropout_p", 0) > 0 or 0.5 in numbers


def some(items, number):
    items = list(items)
    return items[:: max(1, len(items) // number)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "op",
    [
        op
        for op in op_db
        if op.name in OPERATORS and "triton" not in op.variant_test_name
    ],
    ids=lambda op: f"{op.name}{op.variant_test_name and '-' + op.variant_test_name}",
)
def test_pytorchs_samples_of_operators(op):
    n = 0
    for dtype in sorted(op.supported_dtypes("cpu"), key=str):
        if not (dtype in BOUNDS or dtype in (torch.int64, torch.bool)):
            continue
        with_grad = op.supports_autograd and dtype in op.supported_backward_dtypes(
            "cpu"
        )
        samples = some(op.sample_inputs("cpu", dtype, requires_grad=with_grad), SOME)
        for sample in (*samples, *(one.noncontiguous() for one in samples)):
            if op.name.startswith("nn.functional.") and has_dropout(sample):
                continue  # which drops other weights
            given = (sample.input, sample.args, sample.kwargs)
            call = functools.partial(op, sample.input, *sample.args, **sample.kwargs)
            expected = outcome(call, given)
            with accelerate():
                found = outcome(call, given)
            assert_alike(found, expected, BOUNDS.get(dtype, 0) * 3)
            n += 1
    assert n > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "op",
    [op for op in op_db if op.name in OPERATORS and op.error_inputs_func],
    ids=lambda op: op.name,
)
def test_pytorchs_wrong_inputs_of_operators_are_refused_in_its_words(op):
    for one in op.error_inputs("cpu"):
        sample = one.sample_input
        call = functools.partial(op, sample.input, *sample.args, **sample.kwargs)
        expected = outcome(call, ())
        with accelerate():
            assert_alike(outcome(call, ()), expected, 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "info",
    [info for info in module_db if info.module_cls in MODULES],
    ids=lambda info: info.name,
)
def test_pytorchs_samples_of_modules(info, dtype, training):
    if dtype not in info.supported_dtypes("cpu"):
        pytest.skip("not a dtype of this module")
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for sample in some(inputs, SOME):
        built, given = sample.constructor_input, sample.forward_input
        if given is None:
            continue
        torch.manual_seed(1)
        module = info.module_cls(*built.args, **built.kwargs).to(dtype).train(training)
        for part in module.modules():  # other weights are dropped
            if isinstance(getattr(part, "dropout", None), float):
                part.dropout = 0.0
            elif isinstance(part, nn.Dropout):
                part.p = 0.0
        call = functools.partial(module, *given.args, **given.kwargs)
        inputs = (given.args, given.kwargs, list(module.parameters()))
        expected = outcome(call, inputs)
        with accelerate():
            found = outcome(call, inputs)
        assert_alike(found, expected, BOUNDS[dtype] * 3)


# ---- What PyTorch asks of an operator ------------------------------------------------


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, ROWS, MATRIX = normal(3, 5, 8), normal(5, 8, seed=1), normal(8, 6, seed=2)
TAPS, PATCH = normal(4, 5, 3, seed=3), normal(4, 3, 2, 2, seed=4)
PLACES = ([2], [1], [1], False, [0], 1)
MOMENTS = torch.zeros(3, 5, 1), torch.ones(3, 5, 1)
CHECKED = {
    "mm": [(ROWS, MATRIX), (ROWS.T.contiguous().T, MATRIX)],
    "addmm": [(normal(6), ROWS, MATRIX), (normal(5, 1), ROWS, MATRIX)],
    "bmm": [(X, X.mT.contiguous()), (X[:, :, ::2], X[:, :, ::2].mT)],
    "baddbmm": [(normal(3, 5, 5), X, X.mT)],
    "sum.dim_IntList": [(X, [1]), (X, [0, 1], True), (X, [-1])],
    "mean.dim": [(X, [1]), (X, [-1], True)],
    "linalg_vector_norm": [(X, 2, [-1]), (X, 2, [0], True)],
    "convolution": [
        (X, TAPS, normal(4), *PLACES),
        (normal(2, 3, 4, 6), PATCH, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
    ],
    "convolution_backward": [
        (normal(3, 4, 4), X, TAPS, [4], *PLACES, [True, True, True]),
        (normal(2, 4, 2, 3), normal(2, 3, 4, 6), PATCH, [4], [2, 2], [0, 0], [1, 1],
         False, [0, 0], 1, [True, True, True]),
    ],
    "native_layer_norm": [(X, [8], normal(8), normal(8), 1e-5)],
    "native_layer_norm_backward": [
        (X, X, [8], *MOMENTS, normal(8), normal(8), [True, True, True])
    ],
    "gelu": [(X,)],
    "gelu_backward": [(X, X)],
    "silu": [(X,)],
    "silu_backward": [(X, X)],
    "tanh": [(X,), (X.mT,)],
}  # fmt: skip
FIRST = ("mm", "addmm", "bmm", "baddbmm", "sum.dim_IntList", "mean.dim", "tanh")
FIRST += ("linalg_vector_norm", "convolution", "native_layer_norm", "gelu", "silu")


@pytest.mark.quick
def test_every_operator_is_checked():
    assert CHECKED.keys() == _kernels._KERNELS.keys()


def first(results):
    """Return the output; others are saved for the gradient."""
    return results[0] if isinstance(results, tuple) else results


@pytest.mark.parametrize("name", CHECKED)
def test_operators_pass_pytorchs_own_check_and_have_gradients(name):
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    for i, given in enumerate(CHECKED[name]):
        checks = {} if i == 0 else {"test_utils": ("test_schema", "test_faketensor")}
        with accelerate(report=True) as report:
            torch.library.opcheck(op, given, **checks)
        assert report.computed[name] > 0
        if name not in FIRST:
            continue  # a gradient itself
        wide = [
            one.double().requires_grad_() if isinstance(one, torch.Tensor) else one
            for one in given
        ]
        with accelerate():
            assert torch.autograd.gradcheck(lambda *x: first(op(*x)), wide)


# ---- What calls that are left cost ---------------------------------------------------


def python_calls(call):
    """Return the names of the Python functions that a call runs."""
    names = []

    def note(frame, event, _):
        if event == "call":
            names.append(frame.f_code.co_name)

    call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.quick
@pytest.mark.parametrize("process_wide", [False, True], ids=["block", "process"])
def test_a_call_that_is_left_for_its_dtype_runs_nothing_in_python(process_wide):
    integers, numbers = torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2).cfloat()
    calls = [
        functools.partial(torch.mm, integers, integers),
        functools.partial(torch.sum, integers, 1),
        functools.partial(torch.tanh, numbers),
        functools.partial(functional.silu, numbers),
    ]
    plain = [python_calls(call) for call in calls]
    with contextlib.ExitStack() as block:
        if process_wide:
            enable()
            block.callback(disable)
        else:
            block.enter_context(accelerate())
        found = [python_calls(call) for call in calls]
    assert found == plain


@pytest.mark.quick
def test_a_call_in_a_thread_outside_of_blocks_runs_nothing_in_python():
    x = torch.ones(2, 2)
    call = functools.partial(torch.mm, x, x)
    with accelerate(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(python_calls, call).result() == []
        pool.submit(call).result()


class Thread:
    """Has what a gate asks a thread for."""

    def __init__(self, *blocks):
        self.blocks = list(blocks)


@pytest.mark.quick
def test_a_gate_passes_calls_on_with_all_arguments_and_errors():
    x, silent, reporting = (types.SimpleNamespace(**{name: value}) for name, value in
        (("dtype", 1), ("report", None), ("report", [])))  # fmt: skip

    def theirs(*arguments, **keywords):
        return "theirs", arguments, keywords

    def ours(*arguments, **keywords):
        return "ours", arguments, keywords

    def gate(thread, process, dtypes, theirs=theirs):
        return _attnpy.gate(theirs, "first", ours, thread, process, dtypes)

    left = ("theirs", ("first", x, 2), {"dim": 3})
    taken = ("ours", (x, 2), {"dim": 3})
    assert gate(Thread(), [], {1})(x, 2, dim=3) == left
    assert gate(Thread(silent), [], {1})(x, 2, dim=3) == taken
    assert gate(Thread(), [silent], {1})(x, 2, dim=3) == taken
    assert gate(Thread(silent), [reporting], {2})(x, 2, dim=3) == left
    assert gate(Thread(silent, reporting), [], {2})(x, 2, dim=3) == taken
    assert gate(Thread(), [], {1})() == ("ours", (), {})
    assert gate(Thread(), [], {1})(*range(40))[0] == "ours"
    with pytest.raises(AttributeError, match="blocks"):
        gate(None, [], {1})(x)
    with pytest.raises(AttributeError, match="dtype"):
        gate(Thread(silent), [], {1})(5)
    with pytest.raises(TypeError, match="unhashable"):
        gate(Thread(silent), [], {1})(types.SimpleNamespace(dtype=[]))
    with pytest.raises(ZeroDivisionError):
        gate(Thread(), [], {1}, theirs=lambda *_: 1 / 0)(x)
    with pytest.raises(TypeError, match="dtypes: expected a set"):
        gate(Thread(), [], [1])


@pytest.mark.quick
def test_sums_and_convolutions_that_are_left_are_not_prepared():
    x, taps = torch.ones(1, 3, 4, 4), torch.ones(2, 3, 3, 3)
    with accelerate():
        assert python_calls(lambda: x.sum()).count("_array") == 0
        assert python_calls(lambda: x.mean()).count("_array") == 0
        found = python_calls(lambda: functional.conv2d(x, taps, torch.ones(2)))
    assert found.count("kernel") == 1
    assert found.count("_array") == 0


@pytest.mark.quick
def test_attention_that_autograd_records_is_checked_once_and_has_the_same_bits():
    x = normal(2, 3, 37, 8).requires_grad_()
    attend = functools.partial(scaled_dot_product_attention, x, x, x)
    with torch.no_grad():
        expected = attend()
    assert torch.equal(attend(), expected)
    assert "attend" not in python_calls(attend)
    (found,) = torch.autograd.grad(attend().sum(), x)
    masked = functools.partial(attend, torch.ones(37, 37, dtype=torch.bool))
    assert "attend" in python_calls(masked)
    assert torch.equal(torch.autograd.grad(masked().sum(), x)[0], found)


# ---- What these samples have found ---------------------------------------------------


@pytest.mark.quick
def test_sums_of_a_tensor_without_axes_are_left_to_pytorch():
    x = torch.tensor(3.0)
    with accelerate(report=True) as report:
        assert x.sum(0) == x.mean(0) == torch.linalg.vector_norm(x, dim=0) == 3
    assert ("sum.dim_IntList", "a tensor without axes") in report.left


@pytest.mark.quick
@pytest.mark.parametrize("dim", [3, -4])
def test_sums_over_axes_that_are_not_there_are_refused_by_pytorch(dim):
    x = torch.ones(2, 3, 4)
    for call in (x.sum, x.mean, functools.partial(torch.linalg.vector_norm, x)):
        with accelerate(), pytest.raises(IndexError, match="Dimension out of range"):
            call(dim=dim)


@pytest.mark.quick
def test_an_unknown_approximation_of_gelu_is_refused_by_pytorch():
    with accelerate(), pytest.raises(RuntimeError, match="none or tanh"):
        functional.gelu(torch.ones(3), approximate="other")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"padding": -1}, "negative padding is not supported"),
        ({"stride": 0}, "non-positive stride is not supported"),
        ({"dilation": 0}, "non-positive dilation is not supported"),
        ({"dilation": 9}, "Kernel size can't be greater than actual input size"),
    ],
)
def test_convolutions_of_no_windows_are_refused_by_pytorch(options, words):
    with accelerate(), pytest.raises(RuntimeError, match=words):
        functional.conv1d(X, TAPS, **options)


@pytest.mark.quick
def test_what_is_added_is_no_larger_than_the_product():
    words = r"expanded size|number of sizes"
    with accelerate():
        for shape in ((7,), (4, 7), (2, 5, 6)):
            with pytest.raises(RuntimeError, match=words):
                torch.addmm(torch.zeros(shape), ROWS[:, :1], MATRIX[:1, :1])
            with pytest.raises(RuntimeError, match=words):
                torch.baddbmm(torch.zeros(3, *shape), X[:, :1], X.mT[..., :1])
        nan = torch.full((5, 8), math.nan)
        torch.testing.assert_close(
            torch.addmm(torch.ones(6), nan, MATRIX, alpha=0), torch.ones(5, 6)
        )


@pytest.mark.quick
def test_layer_norms_of_mixed_dtypes_are_refused_by_pytorch():
    narrow, wide = torch.ones(8, dtype=torch.float16), torch.ones(8)
    with accelerate():
        for x, weight in ((X, narrow), (X.double(), wide)):
            for parameters in ((weight, None), (weight, weight), (None, weight)):
                with pytest.raises(RuntimeError, match="mixed dtype"):
                    functional.layer_norm(x, (8,), *parameters)
        assert functional.layer_norm(X.half(), (8,), wide, wide).dtype is torch.float16


@pytest.mark.quick
def test_convolutions_of_no_channels_are_left_to_pytorch():
    x, weight = torch.zeros(2, 0, 9), torch.zeros(4, 0, 3)
    expected = functional.conv1d(x, weight)
    with accelerate(report=True) as report:
        assert functional.conv1d(x, weight).shape == expected.shape
    assert ("convolution", "tensors without elements") in report.left


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_layer_norm_in_half_precision_are_those_of_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, 64, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(64, generator=generator).to(dtype).requires_grad_()
    grad = torch.randn(70, 64, generator=generator).to(dtype)
    wide = [one.detach().float().requires_grad_() for one in (x, weight)]
    expected = torch.autograd.grad(
        functional.layer_norm(wide[0], (64,), wide[1]), wide, grad.float()
    )
    with accelerate():
        for _ in range(20):  # what is freed too soon is not always overwritten
            found = torch.autograd.grad(
                functional.layer_norm(x, (64,), weight), (x, weight), grad
            )
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one.float(), other, atol=0.1, rtol=0.1)
