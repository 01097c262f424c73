"""attnpy on tensors of PyTorch: right by its plain formula, and never in its way."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import attnpy  # noqa: E402
from attnpy.integrations.torch import attention  # noqa: E402

pytestmark = pytest.mark.quick


def normal(*shape, dtype=torch.float64, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)
    return tensor.requires_grad_(grad)


def arrays_of(*tensors):
    return [tensor.detach().numpy() for tensor in tensors]


OPTIONS = [
    {},
    {"causal": True},
    {"causal": "top_left", "window": (3, None)},
    {"q_offset": 2, "causal": True, "kv_lengths": [5, 9]},
    {"scale": 0.3, "softcap": 2.0},
    {"dropout": 0.4, "dropout_seed": 2**64 - 1},
    {"mask": np.arange(11) % 3 > 0},
    {"bias": np.linspace(-1, 1, 11)},
    {"sinks": np.linspace(-1, 1, 4)},
]


# ---- attention() ---------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_attention_has_the_bits_that_it_has_of_arrays(options):
    tensors = normal(2, 4, 9, 8), normal(2, 2, 11, 8), normal(2, 2, 11, 5)
    results = attention(*tensors, return_weights=True, return_lse=True, **options)
    expected = attnpy.attention(
        *arrays_of(*tensors), return_weights=True, return_lse=True, **options
    )
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    recorded = attention(*(x.requires_grad_() for x in tensors), **options)
    np.testing.assert_array_equal(recorded.detach().numpy(), expected[0])


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_are_limits_of_difference_quotients(options, traced, monkeypatch):
    if traced:
        monkeypatch.setattr(
            "attnpy.integrations.torch._attention._is_traced", bool_true
        )
    options = dict(options)
    extra = {n: torch.tensor(options.pop(n)) for n in ("bias", "sinks") if n in options}
    inputs = [normal(2, 4, 9, 8), normal(2, 2, 11, 8), normal(2, 2, 11, 5)]
    inputs = [x.requires_grad_() for x in (*inputs, *extra.values())]

    def call(query, key, value, *rest):
        rest = dict(zip(extra, rest, strict=True))
        return attention(
            query, key, value, return_weights=True, return_lse=True, **options, **rest
        )

    assert torch.autograd.gradcheck(call, inputs)


def bool_true():
    return True
