"""HIPS autograd takes the gradients of attention."""

import numpy as np
import pytest

pytest.importorskip("autograd")

import autograd
import autograd.numpy as anp
from autograd.test_util import check_grads
from support import pages, processes
from support.arrays import normal
from support.comparisons import assert_same_bits

import attnpy
from attnpy.integrations import autograd as integration
from attnpy.integrations.autograd import attention

SHAPES = {
    "query": (2, 4, 5, 3),
    "key": (2, 2, 7, 3),
    "value": (1, 2, 7, 6),  # broadcast along the batch
    "bias": (4, 1, 7),
    "sinks": (4,),
}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "top_left": {"causal": "top_left", "softcap": 2.0},
    "window": {"window": (2, 1), "q_offset": np.array([1, 3])},
    "lengths": {"kv_lengths": np.array([4, 7]), "scale": -0.3},
    "mask": {"mask": np.arange(7) % 3 > 0},
    "nothing visible": {"kv_lengths": np.array([0, 7])},
    "dropout": {"dropout": 0.4, "dropout_seed": 7},
}


def inputs(dtype=np.float64):
    return {
        name: normal(*shape, dtype=dtype, seed=i)
        for i, (name, shape) in enumerate(SHAPES.items())
    }


def call(query, key, value, bias, sinks, **options):
    return attention(query, key, value, bias=bias, sinks=sinks, **options)


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_are_difference_quotients(options):
    check_grads(
        lambda *arrays: call(*arrays, return_lse=True, **options),
        modes=["rev"],
        order=1,
    )(*inputs().values())


def test_packed_sequences_have_gradients():
    query, key, value = (normal(2, 9, 4, dtype="float64", seed=i) for i in range(3))
    check_grads(
        lambda *arrays: attention(*arrays, seq_offsets=[0, 4, 4, 9], causal=True),
        modes=["rev"],
        order=1,
    )(query, key, value)


def test_a_single_query_has_a_gradient():
    key, value = (
        normal(7, 3, dtype="float64", seed=1),
        normal(7, 5, dtype="float64", seed=2),
    )
    check_grads(lambda query: attention(query, key, value), modes=["rev"], order=1)(
        normal(3, dtype="float64", seed=0)
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_results_and_gradients_have_the_bits_of_attention_and_its_vjp(dtype, options):
    arrays = inputs(dtype)
    results = call(**arrays, return_weights=True, return_lse=True, **options)
    expected = attnpy.attention(
        **arrays, return_weights=True, return_lse=True, **options
    )
    for one, right in zip(results, expected, strict=True):
        assert_same_bits(one, right)
    output, _, lse = expected
    grad_output = normal(*output.shape, dtype=output.dtype, seed=9)
    grad_lse = normal(*lse.shape, dtype=lse.dtype, seed=10)
    pull, _ = autograd.core.make_vjp(
        lambda args: call(*args, return_lse=True, **options), tuple(arrays.values())
    )
    gradients = attnpy.attention_vjp(
        grad_output,
        **arrays,
        output=output,
        lse=lse,
        grad_lse=grad_lse,
        wanted=tuple(arrays),
        **options,
    )
    for one, right in zip(pull((grad_output, grad_lse)), gradients, strict=True):
        assert_same_bits(one, right)


def test_the_forward_pass_is_not_computed_twice_and_only_what_is_asked_for(monkeypatch):
    calls = []

    def recorder(*arguments, **keywords):
        calls.append(keywords)
        return attnpy.attention_vjp(*arguments, **keywords)

    monkeypatch.setattr(integration, "attention_vjp", recorder)
    arrays = inputs()
    bias = arrays.pop("bias")
    autograd.grad(lambda bias: anp.sum(attention(bias=bias, **arrays) ** 2))(bias)
    (keywords,) = calls
    output, lse = attnpy.attention(bias=bias, return_lse=True, **arrays)
    assert_same_bits(keywords["output"], output)
    assert_same_bits(keywords["lse"], lse)
    assert keywords["wanted"] == ["bias"]


def test_weights_may_be_looked_at():
    arrays = inputs()
    query = arrays.pop("query")

    def loss(query):
        output, weights = attention(query, return_weights=True, **arrays)
        assert weights.shape == (2, 4, 5, 7)
        return anp.sum(output)

    gradient = autograd.grad(loss)(query)
    assert_same_bits(
        gradient, autograd.grad(lambda q: anp.sum(attention(q, **arrays)))(query)
    )


QUERY = normal(4, 3, dtype="float64", seed=0)
X = normal(4, 3, dtype="float64", seed=1)
REFUSED = {
    "scale": (
        lambda c: attention(QUERY, X, X, scale=c),
        TypeError,
        "scale: expected a constant, got a differentiated value; there are gradients "
        "of query, key, value, bias, sinks",
    ),
    "out": (
        lambda c: attention(QUERY * c, X, X, out=np.empty((4, 3))),
        ValueError,
        "out: expected None where something is differentiated, got an array",
    ),
    "weights": (
        lambda c: attention(QUERY * c, X, X, return_weights=True)[1],
        NotImplementedError,
        "attention: expected a function of output and lse, got one of the weights",
    ),
    "a flag": (
        lambda c: attention(QUERY * c, X, X, return_lse=1),
        TypeError,
        "return_lse: expected a bool, got int",
    ),
    "a keyword": (
        lambda c: attention(QUERY * c, X, X, is_causal=True),
        TypeError,
        "attention() got an unexpected keyword argument 'is_causal': write "
        "causal=True, or 'top_left' for PyTorch's alignment",
    ),
    "several numbers": (
        lambda c: attention(QUERY * c, X, X, scale=np.ones(2)),
        TypeError,
        "scale: expected a number, got numpy.ndarray of shape (2,)",
    ),
    "a shape": (
        lambda c: attention(QUERY * c, X[:, :2], X),
        ValueError,
        "key: expected (..., Hk, Lk, 3) to match query's D, got (4, 2)",
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_refused_by_name(name):
    function, kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        autograd.grad(lambda c: anp.sum(function(c)))(0.5)
    assert str(caught.value) == message


def test_a_second_derivative_is_refused():
    product = autograd.hessian_vector_product(
        lambda query: anp.sum(attention(query, X, X) ** 2)
    )
    with pytest.raises(NotImplementedError, match="expected one derivative, got a sec"):
        product(QUERY, QUERY)


def test_forward_mode_is_refused():
    with pytest.raises(NotImplementedError, match=r"reverse mode.*got forward mode"):
        autograd.make_jvp(lambda query: attention(query, X, X))(QUERY)(QUERY)


def test_out_is_written_where_nothing_is_differentiated():
    out = np.empty((4, 3))
    assert attention(QUERY, X, X, out=out) is out
    assert_same_bits(out, attnpy.attention(QUERY, X, X))


@pytest.mark.quick
def test_without_autograd_the_error_says_what_to_install():
    script = (
        "import sys\n"
        "sys.modules['autograd'] = None\n"
        "import attnpy.integrations\n"
        "try:\n"
        "    import attnpy.integrations.autograd\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    assert processes.assert_runs(script) == (
        "attnpy.integrations.autograd needs the autograd package: "
        "pip install autograd\n"
    )


def test_the_examples_run():
    pages.assert_examples_print_what_their_comments_say("integrations/autograd.md")
