"""The adapter keeps the rules of PyTorch's own functions: memory, versions, modes."""

import gc
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.torch_tools import Wrapper  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd.functional import jacobian  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402

from attnpy.integrations.torch import (  # noqa: E402
    _tensors,
    accelerate,
    attention,
    scaled_dot_product_attention,
)


def normal(*shape, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, **options)


def attend(x, *rest, **options):
    return functional.scaled_dot_product_attention(x, x, x, *rest, **options)


# ---- Memory --------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_tensors_can_be_resized_after_a_call(dtype, grad):
    x = normal(1, 2, 5, 4).to(dtype)
    bias, mask = normal(5, 5).to(dtype), normal(5, 5) > -9
    x.requires_grad_(grad)
    outputs = [attention(x, x, x, bias=bias, mask=mask)]
    with accelerate():
        outputs += [attend(x), attend(x, bias)]
    if grad:
        for output in outputs:
            torch.autograd.grad(output.sum(), x)
    out = torch.empty(1, 2, 5, 4, dtype=dtype)
    with torch.no_grad():
        attention(x, x, x, out=out)
    for tensor in (x, bias, mask, out):
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0


@pytest.mark.quick
def test_a_tensor_whose_storage_was_freed_is_refused():
    x, freed = normal(1, 2, 5, 4), normal(1, 2, 5, 4)
    freed.untyped_storage().resize_(0)
    for arguments in ((freed, x, x), (x, freed, x), (x, x, freed)):
        with pytest.raises(ValueError, match="tensors: expected tensors with memory"):
            attention(*arguments)


LAYOUTS = {
    "adjacent": lambda x: x,
    "transposed": lambda x: x.transpose(-1, -2),
    "expanded": lambda x: x[:1, :, :1].expand(2, 3, 7, 5),
    "cut": lambda x: x[1:, :, 2:, 1::2],
    "negative": torch._neg_view,
    "with a history": lambda x: x.clone().requires_grad_(x.is_floating_point()),
    "of no axes": lambda x: x[0, 0, 0, 0],
    "empty": lambda x: x[:0],
}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DTYPES += (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.cfloat)


@pytest.mark.quick
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_what_the_tensors_are(layout, dtype):
    if layout == "negative" and dtype is torch.bool:
        pytest.skip("PyTorch has no negative booleans")
    tensor = LAYOUTS[layout](normal(2, 3, 4, 5).mul(9).to(dtype))
    array = _tensors.to_array(tensor)
    assert array.shape == tensor.shape
    values = tensor.detach().to(torch.complex128).resolve_neg().resolve_conj().numpy()
    np.testing.assert_array_equal(array.astype(np.complex128), values)
    if layout not in ("negative", "empty"):
        assert array.ctypes.data == tensor.data_ptr()  # nothing is copied


@pytest.mark.quick
def test_an_array_on_memory_that_is_not_aligned_says_so():
    memory = torch.zeros(41, dtype=torch.uint8)
    x = torch.frombuffer(memory.numpy(), dtype=torch.float32, offset=1, count=10)
    assert not _tensors.to_array(x).flags.aligned
    assert not _tensors.to_array(x[::2]).flags.aligned
    with accelerate():
        assert torch.equal(x[None] @ x[:, None], torch.zeros(1, 1))


@pytest.mark.quick
def test_an_array_keeps_its_tensor():
    tensor = normal(3, 4)
    alive, array = weakref.ref(tensor), _tensors.to_array(tensor)
    part = array[1:]
    del tensor, array
    gc.collect()
    assert alive() is not None
    del part
    assert alive() is None


@pytest.mark.quick
def test_tensors_of_zeros_and_none_are_left_to_pytorch():
    x = normal(1, 2, 3, 4)
    zeros = torch._efficientzerotensor((1, 2, 3, 4), dtype=torch.float64)
    expected = attention(x, *torch.zeros(2, 1, 2, 3, 4, dtype=torch.float64))
    # PyTorch's other kernel reads memory that such a tensor has not.
    with sdpa_kernel(SDPBackend.MATH), accelerate():
        assert torch.equal(
            functional.scaled_dot_product_attention(x, zeros, zeros), expected
        )
        for arguments in ((None, x, x), (x, None, x), (x, x, None)):
            with pytest.raises(TypeError, match="must be Tensor, not NoneType"):
                functional.scaled_dot_product_attention(*arguments)
    assert torch.equal(attention(x, zeros, zeros), expected)


# ---- What autograd knows -------------------------------------------------------------


@pytest.mark.quick
def test_a_gradient_that_needs_what_out_was_is_refused():
    x, out = normal(2, 3, 5, 4), torch.ones(2, 3, 5, 4, dtype=torch.float64)
    parameter = torch.nn.Parameter(torch.ones_like(out))
    product = (parameter * out).sum()
    with torch.no_grad():
        attention(x, x, x, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.quick
def test_out_may_be_a_view_that_reads_the_negative_of_its_memory():
    x, memory = normal(2, 3, 5, 4), torch.ones(2, 3, 5, 4, dtype=torch.float64)
    out = torch._neg_view(memory)
    output, lse = attention(x, x, x, out=out, return_lse=True)
    assert output is out
    assert torch.equal(out, attention(x, x, x))
    assert torch.equal(lse, attention(x, x, x, return_lse=True)[1])
    assert torch.equal(memory, -out)


@pytest.mark.quick
def test_out_of_inference_mode_is_written_only_there():
    x = normal(2, 3, 5, 4)
    with torch.inference_mode():
        out = torch.empty(2, 3, 5, 4, dtype=torch.float64)
        attention(x, x, x, out=out)
    assert torch.equal(out, attention(x, x, x))
    with pytest.raises(
        ValueError, match=r"out: expected .*, got one of inference mode"
    ):
        attention(x, x, x, out=out)


CALLS = {
    "plain": lambda x: attention(x, x, x),
    "causal": lambda x: attention(x, x, x, causal=True),
    "bias": lambda x: attention(x, x, x, bias=x @ x.mT),
    "dropout": lambda x: attention(x, x, x, dropout=0.5, dropout_seed=3),
    "weights": lambda x: attention(x, x, x, return_weights=True)[1],
    "bfloat16": lambda x: attention(*[x.bfloat16()] * 3).double(),
    "lengths": lambda x: attention(x, x, x, kv_lengths=[2, 3]),
}


@pytest.mark.quick
@pytest.mark.parametrize("call", CALLS)
def test_gradients_come_in_batches_too(call):
    x = normal(2, 1, 3, 4)
    expected = jacobian(CALLS[call], x)
    torch.testing.assert_close(jacobian(CALLS[call], x, vectorize=True), expected)
    x.requires_grad_()
    output = CALLS[call](x)
    grads = normal(5, *output.shape, seed=1)
    expected = [torch.autograd.grad(output, x, one, retain_graph=True) for one in grads]
    expected = torch.stack([one for (one,) in expected])
    options = {"retain_graph": True, "is_grads_batched": True}
    (found,) = torch.autograd.grad(output, x, grads, **options)
    torch.testing.assert_close(found, expected)
    found = torch.vmap(
        lambda one: torch.autograd.grad(output, x, one, retain_graph=True)[0]
    )(grads)
    torch.testing.assert_close(found, expected)


@pytest.mark.quick
def test_gradcheck_may_check_batches_and_accelerate_has_them():
    x = normal(1, 2, 3, 4, requires_grad=True)
    with accelerate():
        assert torch.autograd.gradcheck(attend, x, check_batched_grad=True)


# ---- Tensors and modes of other kinds ------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("name", ["query", "key", "value", "bias", "mask", "sinks"])
def test_a_fake_tensor_among_others_is_refused_in_one_sentence(name):
    x = normal(1, 2, 3, 4)
    given = {"query": x, "key": x, "value": x}
    extra = {"bias": normal(3, 3), "mask": torch.ones(3, 3) > 0, "sinks": normal(2)}
    given |= {name: extra[name]} if name in extra else {}
    expected = attention(**given)
    mode = FakeTensorMode()
    fakes = {n: mode.from_tensor(tensor) for n, tensor in given.items()}
    assert attention(**fakes).shape == expected.shape
    with pytest.raises(TypeError, match="expected a FakeTensor for each of them or"):
        attention(**{**given, name: fakes[name]})
    with accelerate(), pytest.raises(AssertionError, match="convert all Tensors to"):
        functional.scaled_dot_product_attention(x, fakes["key"], x)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_a_causal_bias_is_no_bias_of_attention(name):
    x = normal(2, 4, 5, 8)
    with pytest.raises(TypeError, match="expected a tensor with numbers, got a Causal"):
        attention(x, x, x, **{name: causal_lower_right(5, 5)})


@pytest.mark.quick
def test_a_subclass_among_the_options_is_asked():
    class Doubled(Wrapper):
        """Reads as twice its memory."""

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            args = [2 * x.tensor if isinstance(x, cls) else x for x in args]
            return func(*args, **(kwargs or {}))

    x, bias = normal(1, 2, 3, 4), normal(3, 3)
    found = attention(x, x, x, bias=Doubled(bias))
    assert torch.equal(found, attention(x, x, x, bias=2 * bias))


@pytest.mark.quick
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_block_has_no_kernel_where_pytorch_has_none(dropout):
    x = normal(2, 3, 37, 8)
    for kernel in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        error = pytest.raises(RuntimeError, match=r"No (viable backend|available)")
        with sdpa_kernel(kernel), accelerate(), error:
            attend(x, dropout_p=dropout)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), accelerate():
        if dropout:  # which PyTorch's kernel for the CPU has not
            with pytest.raises(RuntimeError, match="No available kernel"):
                attend(x, dropout_p=dropout)
        else:
            assert torch.equal(attend(x), scaled_dot_product_attention(x, x, x))
    with sdpa_kernel(SDPBackend.MATH), accelerate():
        assert torch.equal(attend(x), scaled_dot_product_attention(x, x, x))


@pytest.mark.quick
def test_lists_are_read_on_the_cpu_whatever_the_default_device_is():
    x = normal(2, 4, 3, 8)
    expected = torch.vmap(lambda x: attention(x, x, x, sinks=[0.5] * 4))(x)
    with torch.device("meta"):
        found = torch.vmap(lambda x: attention(x, x, x, sinks=[0.5] * 4))(x)
    assert torch.equal(found, expected)
