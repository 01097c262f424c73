"""jax.nn.dot_product_attention, computed by attnpy: values, gradients, jit, vmap."""

import ctypes
import functools
import os
import threading
import time

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
pytest.importorskip("jax", minversion="0.10")

import jax
import jax.numpy as jnp
from support import pages, processes
from support.arrays import normal
from support.comparisons import assert_same_bits

import attnpy
from attnpy.integrations import _xla
from attnpy.integrations import jax as integration
from attnpy.integrations.jax import dot_product_attention

BATCH, T, S, N, K, H = 2, 6, 9, 4, 2, 8
BOUNDS = {"float32": 1e-5, "float64": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
BOOLEAN = np.random.default_rng(0).random((BATCH, 1, T, S)) < 0.6
BOOLEAN[..., 0] = True  # JAX has another idea of queries that see nothing
OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.4},
    "causal": {"is_causal": True},
    "mask": {"mask": BOOLEAN},
    "mask of keys": {"mask": BOOLEAN[0, 0, :1], "is_causal": True},
    "window": {"local_window_size": 2},
    "one-sided window": {"local_window_size": (3, 0), "is_causal": True},
    "keys": {"key_value_seq_lengths": np.array([3, 99], np.int32)},
    "queries": {"query_seq_lengths": np.array([6, 0], np.int32)},
    "all": {
        "mask": BOOLEAN,
        "is_causal": True,
        "query_seq_lengths": np.array([4, 5], np.int32),
        "key_value_seq_lengths": np.array([7, 8], np.int32),
        "local_window_size": (5, 5),
        "scale": 0.5,
    },
}
ALL_QUERIES = ("causal", "keys")


def inputs(dtype="float32", batch=(BATCH,)):
    """Query, key, value and bias."""
    return tuple(
        normal(*shape, dtype=dtype, seed=i)
        for i, shape in enumerate(
            [(*batch, T, N, H), (*batch, S, K, H), (*batch, S, K, H), (1, N, T, S)]
        )
    )


def loss_of(function, **options):
    """A number that depends on all of the output."""

    def loss(*arrays):
        output = function(*arrays, **options)
        return (output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)).sum()

    return loss


def gradients(function, places=(0, 1, 2, 3), **options):
    return jax.grad(loss_of(function, **options), places)


def both(function, **options):
    """A function that returns the output, and the gradients of a number of it."""

    def both(*arrays):
        return function(*arrays, **options), gradients(function, **options)(*arrays)

    return both


def residual_of(function, **options):
    """A function that returns a number of the residual."""

    def residual(*arrays):
        residual = function(*arrays, **options, return_residual=True)[1]
        return (residual * jnp.arange(residual.size).reshape(residual.shape)).sum() / 99

    return residual


def leaves(results):
    return tuple(map(np.asarray, jax.tree.leaves(results)))


def assert_close(actual, expected):
    for one, right in zip(
        jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
    ):
        assert (one.dtype, one.shape) == (right.dtype, right.shape)
        one, right = np.asarray(one, np.float64), np.asarray(right, np.float64)
        np.testing.assert_allclose(one, right, atol=3e-5, rtol=3e-5)


# ---- The numbers ---------------------------------------------------------------------


@pytest.mark.quick(name=("plain", "all"))
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients_are_those_of_jax(name):
    arrays, options = inputs(), OPTIONS[name]
    ours = both(dot_product_attention, **options)(*arrays)
    assert_close(ours, jax.jit(both(jax.nn.dot_product_attention, **options))(*arrays))
    compiled = jax.jit(both(dot_product_attention, **options))(*arrays)
    assert_same_bits(leaves(compiled), leaves(ours))


def test_every_dtype(dtype):
    options = OPTIONS["all"]
    with jax.enable_x64(dtype == np.float64):
        arrays = inputs(dtype)
        ours = jax.jit(both(dot_product_attention, **options))(*arrays)
        assert {x.dtype for x in leaves(ours)} == {dtype}
        if dtype != np.float64:  # JAX has no float16 on CPUs
            arrays = tuple(x.astype(np.float32) for x in arrays)
        theirs = jax.jit(both(jax.nn.dot_product_attention, **options))(*arrays)
        for one, right in zip(leaves(ours), leaves(theirs), strict=True):
            bound = BOUNDS[dtype.name] * (1 + np.abs(right).max())
            one, right = one.astype(np.float64), right.astype(np.float64)
            np.testing.assert_allclose(one, right, atol=bound, rtol=0)


@pytest.mark.parametrize("name", ALL_QUERIES)
def test_the_residual_is_that_of_jax_and_has_no_gradient(name):
    arrays, options = inputs(), OPTIONS[name]
    ours, theirs = (
        jax.jit(jax.value_and_grad(residual_of(function, **options)))(*arrays)
        for function in (dot_product_attention, jax.nn.dot_product_attention)
    )
    assert_close(ours, theirs)
    assert not ours[1].any()


@pytest.mark.quick
def test_results_have_the_bits_of_attention_and_its_vjp(dtype):
    with jax.enable_x64(dtype == np.float64):
        query, key, value, bias = (jnp.asarray(x) for x in inputs(dtype))
        output, pull = jax.vjp(
            lambda *arrays: dot_product_attention(*arrays, is_causal=True),
            *(query, key, value, bias),
        )
        arrays = [np.asarray(x).swapaxes(1, 2) for x in (query, key, value)]
        options = {"bias": np.asarray(bias), "causal": "top_left"}
        expected, lse = attnpy.attention(*arrays, return_lse=True, **options)
        assert_same_bits(np.asarray(output), expected.swapaxes(1, 2))
        grad_output = normal(*output.shape, dtype=dtype, seed=7)
        found = attnpy.attention_vjp(
            grad_output.swapaxes(1, 2),
            *arrays,
            output=expected,
            lse=lse,
            wanted=("query", "key", "value", "bias"),
            **options,
        )
        for one, right in zip(pull(grad_output), found[:4], strict=True):
            right = right.swapaxes(1, 2) if right is not found.bias else right
            assert_same_bits(np.asarray(one), right)


def test_float64_is_float64_throughout():
    with jax.enable_x64(True):
        query, key, value, bias = inputs("float64")
        scores = np.einsum("btkgh,bskh->bkgts", query.reshape(2, T, K, -1, H), key)
        scores = scores.reshape(2, N, T, S) / np.sqrt(H) + bias
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        exact = np.einsum("bnts,bsnh->btnh", weights, value.repeat(N // K, 2))
        actual = dot_product_attention(query, key, value, bias)
        np.testing.assert_allclose(actual, exact, atol=1e-14)


LENGTHS = ("int8", "uint8", "uint16", "int32", "uint32", "int64", "uint64")


def strictly(function, arrays, **options):
    """Output, residual and gradients, with and without jit, where nothing promotes.

    JAX's own tests are run so; here dtypes are not promoted either.
    """
    options = {
        name: jnp.asarray(x) if isinstance(x, np.ndarray) else x
        for name, x in options.items()
    }

    def results(*arrays):
        attend = functools.partial(function, return_residual=True, **options)
        (output, residual), pull = jax.vjp(attend, *arrays)
        return output, residual, pull((output, jnp.zeros_like(residual)))

    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        arrays = tuple(map(jnp.asarray, arrays))
        return results(*arrays), jax.jit(results)(*arrays)


@pytest.mark.quick(name=("plain", "all"))
@pytest.mark.parametrize("name", OPTIONS)
def test_nothing_is_promoted(name):
    arrays, options = inputs(), OPTIONS[name]
    expected = dot_product_attention(*arrays, **options, return_residual=True)
    for one in strictly(dot_product_attention, arrays, **options):
        assert_same_bits(leaves(one[:2]), leaves(expected))
    few = tuple(x[0] for x in arrays)  # without a batch
    of_few = {
        key: x[:1] if key.endswith("_lengths") else x
        for key, x in options.items()
        if np.ndim(x) < 4
    }
    for one in strictly(dot_product_attention, few, **of_few):
        assert one[0].shape == (T, N, H)


def test_nothing_is_promoted_in_any_dtype(dtype):
    with jax.enable_x64(dtype == np.float64):
        for one in strictly(dot_product_attention, inputs(dtype), **OPTIONS["all"]):
            assert {x.dtype for x in leaves(one)} == {dtype}


@pytest.mark.parametrize("kind", LENGTHS)
def test_lengths_are_of_any_integers(kind):
    n = 300  # more than some dtypes have
    query = normal(2, n, 1, 4)
    with jax.enable_x64(True):
        lengths = np.array([100, np.iinfo(kind).max], kind)
        options = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
        most = np.array([100, min(n, int(lengths[1]))], np.int32)
        wide = dict.fromkeys(options, most)
        expected = dot_product_attention(query, query, query, **wide)
        for one in strictly(dot_product_attention, [query] * 3, **options):
            assert_same_bits(np.asarray(one[0]), np.asarray(expected))


def test_values_may_have_another_width_and_a_batch_may_be_missing():
    query, key, value, bias = inputs(batch=())
    value = np.concatenate([value, value[..., :3]], axis=-1)
    output, residual = dot_product_attention(
        query, key, value, bias[0], return_residual=True
    )
    assert (output.shape, residual.shape) == ((T, N, H + 3), (T, N))
    half = dot_product_attention(query, key, value[..., :H], bias[0])
    assert_same_bits(np.asarray(output[..., :H]), np.asarray(half))
    assert_same_bits(np.asarray(output[..., H:]), np.asarray(half[..., :3]))


def test_queries_that_see_nothing_give_0_and_nothing_leaks():
    query, key, value, bias = inputs()
    key, value = key.copy(), value.copy()
    key[:, 4:] = np.nan
    value[:, 4:] = np.inf
    options = {
        "key_value_seq_lengths": np.array([4, -1]),
        "query_seq_lengths": np.array([2, 6]),
    }
    output, residual = dot_product_attention(
        query, key, value, bias, **options, return_residual=True
    )
    for x, nothing in ((output, 0), (residual, -np.inf)):
        x = np.asarray(x)
        assert np.isfinite(x[0, :2]).all()
        assert (x[0, 2:] == nothing).all()
        assert (x[1] == nothing).all()
    found = gradients(dot_product_attention, **options)(query, key, value, bias)
    assert all(np.isfinite(x).all() for x in found)
    assert not np.asarray(found[0])[0, 2:].any()
    assert not np.asarray(found[1])[:, 4:].any()


@pytest.mark.parametrize(
    "sizes", [(0, 3, 5, 2), (2, 0, 5, 2), (2, 3, 0, 2), (2, 3, 5, 0)]
)
def test_zero_sizes(sizes):
    batch, n_queries, n_keys, heads = sizes
    query = jnp.ones((batch, n_queries, heads, 4))
    key = jnp.ones((batch, n_keys, heads, 4))
    output = dot_product_attention(query, key, key)
    assert output.shape == query.shape
    np.testing.assert_array_equal(output, 1 if n_keys else 0)
    found = jax.grad(lambda *x: dot_product_attention(*x).sum(), (0, 1, 2))(
        query, key, key
    )
    assert [x.shape for x in found] == [query.shape, key.shape, key.shape]


# ---- What JAX does with functions ----------------------------------------------------

AXES = [
    (0, None, None, None),
    (None, 1, None, None),
    (None, None, None, 0),
    (0, None, 2, None),
    (3, 0, 0, 4),
]


def stacked(axes, n=3):
    """Query, key, value and bias, some of them n of them along an axis."""
    return tuple(
        x if axis is None else np.stack([x, -x, 2 * x][:n], axis)
        for x, axis in zip(inputs(), axes, strict=True)
    )


def one_of(arrays, axes, i):
    return tuple(
        x if axis is None else np.take(x, i, axis)
        for x, axis in zip(arrays, axes, strict=True)
    )


@pytest.mark.quick(axes=AXES[:1])
@pytest.mark.parametrize("axes", AXES)
def test_vmap_is_a_loop(axes):
    arrays = stacked(axes)
    options = {
        "mask": jnp.asarray(BOOLEAN),
        "key_value_seq_lengths": jnp.array([3, 9]),
        "is_causal": True,
    }

    def attend(*arrays):
        return dot_product_attention(*arrays, **options)

    for function in (attend, gradients(attend)):
        actual = jax.vmap(function, axes)(*arrays)
        for i in range(3):
            expected = function(*one_of(arrays, axes, i))
            one = jax.tree.map(lambda x, i=i: x[i], actual)
            assert_same_bits(leaves(one), leaves(expected))


@pytest.mark.parametrize("axes", AXES)
def test_the_gradient_of_vmap_is_that_of_a_loop(axes):
    arrays = stacked(axes)

    def vmapped(*arrays):
        return (jax.vmap(dot_product_attention, axes)(*arrays) ** 2).sum()

    def loop(*arrays):
        parts = [
            x if axis is None else jnp.moveaxis(x, axis, 0)
            for x, axis in zip(arrays, axes, strict=True)
        ]
        return sum(
            (
                dot_product_attention(
                    *(
                        x if axis is None else x[i]
                        for x, axis in zip(parts, axes, strict=True)
                    )
                )
                ** 2
            ).sum()
            for i in range(3)
        )

    places = (0, 1, 2, 3)
    expected = jax.jit(jax.grad(loop, places))(*arrays)
    assert_close(jax.grad(vmapped, places)(*arrays), expected)
    assert_close(jax.jit(jax.grad(vmapped, places))(*arrays), expected)


def test_masks_and_lengths_may_be_vmapped_and_vmap_nested():
    query, key, value, _ = inputs()
    masks = np.stack([BOOLEAN, ~BOOLEAN])
    lengths = np.array([[3, 9], [0, 4], [1, 2]])

    def attend(mask, lengths):
        return dot_product_attention(
            query, key, value, mask=mask, key_value_seq_lengths=lengths
        )

    actual = jax.vmap(jax.vmap(attend, (0, None)), (None, 0))(masks, lengths)
    for i, j in np.ndindex(3, 2):
        assert_same_bits(
            np.asarray(actual[i, j]), np.asarray(attend(masks[j], lengths[i]))
        )


def test_which_gradients_were_taken_before_makes_no_difference():
    # A function of JAX is traced once for several of them.
    arrays = inputs()
    attend = jax.jit(lambda *arrays: dot_product_attention(*arrays, scale=0.7))
    expected = both(dot_product_attention, scale=0.7)(*arrays)[1]
    for places in [(1,), (0, 2), (3,), (0, 1, 2, 3), (3, 0)]:
        found = gradients(attend, places)(*arrays)
        assert_same_bits(leaves(found), leaves([expected[place] for place in places]))


def calls_of(monkeypatch):
    """What the gradients of every call are wanted of."""
    calls = []

    def recorder(*arguments, **keywords):
        calls.append(tuple(keywords["wanted"]))
        return attnpy.attention_vjp(*arguments, **keywords)

    monkeypatch.setattr(integration, "attention_vjp", recorder)
    return calls


def test_the_gradient_of_a_bias_is_computed_where_it_is_asked_for(monkeypatch):
    calls, arrays = calls_of(monkeypatch), inputs()
    jax.jit(gradients(dot_product_attention, (0, 1, 2)))(*arrays)
    assert calls == [("query", "key", "value")]
    calls.clear()
    jax.block_until_ready(jax.jit(gradients(dot_product_attention, (3,)))(*arrays))
    assert calls == [("bias",)]


def test_checkpoint_scan_and_a_jacobian():
    query, key, value, _ = inputs()
    attend = lambda query: dot_product_attention(query, key, value)  # noqa: E731

    def layers(query):
        body = jax.checkpoint(lambda x, _: (attend(x), None))
        return (jax.lax.scan(body, query, None, length=3)[0] ** 2).sum()

    def loop(query):
        return (attend(attend(attend(query))) ** 2).sum()

    assert_close(jax.jit(jax.grad(layers))(query), jax.grad(loop)(query))
    jacobian = jax.jacrev(lambda x: attend(x)[1, 2])(query)
    assert jacobian.shape == (N, H, *query.shape)
    assert not np.asarray(jacobian)[:, :, 0].any()


def test_a_model_learns():
    tables = jnp.asarray(normal(2, 1, 6, 1, 8))
    x = jnp.asarray(normal(16, 6, 1, 4))

    @jax.jit
    def step(tables):
        def loss(tables):
            query, key = jnp.broadcast_to(tables[:, None], (2, 1, 16, 6, 1, 8))[:, 0]
            return ((dot_product_attention(query, key, x) - x[:, ::-1]) ** 2).mean()

        error, gradient = jax.value_and_grad(loss)(tables)
        return tables - 30 * gradient, error

    errors = []
    for _ in range(100):
        tables, error = step(tables)
        errors.append(float(error))
    assert errors[-1] < 0.05 * errors[0]


# ---- What is refused -----------------------------------------------------------------

QUERY, KEY, VALUE, BIAS = inputs()
LENGTHS = np.array([1, 2])
REFUSED = {
    "implementation: expected None or 'attnpy', got 'cudnn'; "
    "jax.nn.dot_product_attention has others": {"implementation": "cudnn"},
    "scale: expected a finite number, got inf": {"scale": np.inf},
    "scale: expected a number, got ndarray": {"scale": np.ones(2)},
    "scale: expected an array, or lists of equal lengths, got a list of items of "
    "different shapes": {"scale": [[1, 2], [3]]},
    "implementation: expected None or 'attnpy', got 3; "
    "jax.nn.dot_product_attention has others": {"implementation": 3},
    "query: expected an array that JAX takes, got None": {"query": None},
    "key: expected an array that JAX takes, got str": {"key": "a"},
    "bias: expected an array that JAX takes, got list": {"bias": [[1, 2], [3]]},
    "is_causal: expected a bool, got int": {"is_causal": 1},
    "return_residual: expected a bool, got str": {"return_residual": "no"},
    "local_window_size: expected at least 0, got -1": {"local_window_size": (2, -1)},
    "local_window_size: expected an integer, got float": {"local_window_size": 1.5},
    "local_window_size: expected (left, right), got 3 of them": {
        "local_window_size": (1, 2, 3)
    },
    "query: expected float64, float32, float16 or bfloat16, got int32": {
        "query": QUERY.astype(np.int32)
    },
    "query: expected (B, T, N, H) or (T, N, H), got (4, 8)": {"query": QUERY[0, 0]},
    "query: expected a multiple of the key's 2 heads, got 3": {
        "query": QUERY[:, :, :3]
    },
    "key: expected the query's dtype, float32, got float16": {
        "key": KEY.astype(np.float16)
    },
    "key: expected (2, S, K, 8) to match the query, got (1, 9, 2, 8)": {"key": KEY[0]},
    "key: expected (2, S, K, 8) to match the query, got (2, 9, 2, 7)": {
        "key": KEY[..., :7]
    },
    "value: expected (2, 9, 2, H) to match the key, got (2, 8, 2, 8)": {
        "value": VALUE[:, :8]
    },
    "bias: expected a shape that broadcasts to (2, 4, 6, 9), got (1, 1, 6, 8)": {
        "bias": BIAS[0, 0, :, :8]
    },
    "bias: expected a shape that broadcasts to (B, N, T, S), got (1, 1, 4, 6, 9)": {
        "bias": BIAS[None]
    },
    "bias: expected a floating dtype, got int32": {"bias": BIAS.astype(np.int32)},
    "mask: expected bool, got float32; numbers are a bias": {"mask": BIAS},
    "query_seq_lengths: expected (2,), got (3,)": {"query_seq_lengths": np.arange(3)},
    "key_value_seq_lengths: expected integers, got float32": {
        "key_value_seq_lengths": LENGTHS.astype(np.float32)
    },
}


@pytest.mark.quick
@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_by_name(message):
    arguments = {"query": QUERY, "key": KEY, "value": VALUE, **REFUSED[message]}
    with pytest.raises((TypeError, ValueError)) as caught:
        dot_product_attention(**arguments)
    assert str(caught.value) == message


@pytest.mark.quick
def test_a_scale_that_is_not_known_is_refused():
    with pytest.raises(
        TypeError, match=r"^scale: expected a number, got a tracer; mul"
    ):
        jax.jit(lambda c: dot_product_attention(QUERY, KEY, VALUE, scale=c))(0.5)
    known = dot_product_attention(QUERY, KEY, VALUE, scale=jnp.float32(0.5))
    expected = dot_product_attention(QUERY, KEY, VALUE, scale=0.5)
    assert_same_bits(np.asarray(known), np.asarray(expected))


def squared(query):
    return (dot_product_attention(query, KEY, VALUE) ** 2).sum()


@pytest.mark.parametrize(
    "derivative", [lambda x: jax.jvp(squared, (x,), (x,)), jax.jacfwd(squared)]
)
def test_forward_mode_is_refused(derivative):
    with pytest.raises(TypeError, match=r"forward-mode.*custom_vjp"):
        derivative(QUERY)


@pytest.mark.parametrize("compile", [lambda f: f, jax.jit])
def test_a_second_derivative_is_refused(compile):
    first = compile(jax.grad(squared))
    with pytest.raises(
        NotImplementedError, match=r"expected one derivative, got a sec"
    ):
        jax.grad(lambda x: first(x).sum())(QUERY)


def test_without_jax_the_error_says_what_to_install():
    script = (
        "import sys\n"
        "sys.modules['jax'] = sys.modules['ml_dtypes'] = None\n"
        "try:\n"
        "    import attnpy.integrations.jax\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    assert processes.assert_runs(script) == (
        "attnpy.integrations.jax needs JAX: pip install jax\n"
    )


# ---- XLA's side ----------------------------------------------------------------------


def test_arrays_are_xla_s_own_memory(monkeypatch):
    seen = []

    def recorder(*_, query, out, **keywords):
        seen.append((query.ctypes.data, keywords["key"].ctypes.data))
        return attnpy.attention(query, out=out, **keywords)

    monkeypatch.setattr(integration, "attention", recorder)
    query, key, value, _ = (jnp.asarray(x) for x in inputs())
    jax.block_until_ready(dot_product_attention(query, key, value))
    assert seen == [(query.unsafe_buffer_pointer(), key.unsafe_buffer_pointer())]


@pytest.mark.parametrize(
    "error, code", [(MemoryError, "RESOURCE_EXHAUSTED"), (ValueError, "INTERNAL")]
)
def test_an_error_within_becomes_one_of_jax(monkeypatch, error, code):
    def fail(**_):
        raise error("no ☃ today")

    monkeypatch.setattr(integration, "attention", fail)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError)) as caught:
        jax.block_until_ready(dot_product_attention(*inputs()))
    assert f"{code}: attnpy: {error.__name__}: no ☃ today" in str(caught.value)
    monkeypatch.undo()
    assert np.isfinite(dot_product_attention(*inputs())).all()  # all is well again


def test_an_interrupt_within_is_one_of_python(monkeypatch):
    def interrupt(**_):
        raise KeyboardInterrupt

    def call():
        try:
            jax.block_until_ready(dot_product_attention(*inputs()))
        except (ValueError, jax.errors.JaxRuntimeError):
            time.sleep(1)  # the interrupt comes between two instructions

    monkeypatch.setattr(integration, "attention", interrupt)
    with pytest.raises(KeyboardInterrupt):
        call()


INTERRUPTED = """
import os, signal, threading, time
import jax, jax.numpy as jnp
from attnpy.integrations.jax import dot_product_attention

@jax.jit
def attend(x):
    x = jax.lax.fori_loop(0, 2 * 10**4, lambda _, x: jnp.cos(x), x)  # seconds
    return dot_product_attention(x, x, x)

x = jnp.ones((1, 64, 4, 64))
small = dot_product_attention(x, x, x)
attend = attend.lower(x).compile()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    try:
        attend(x).block_until_ready()
        print("not interrupted")
    except jax.errors.JaxRuntimeError:
        time.sleep(1)
except KeyboardInterrupt:
    print("interrupted")
print(bool((dot_product_attention(x, x, x) == small).all()))
"""


def test_an_interrupt_while_xla_computes_waits_for_it():
    assert processes.assert_runs(INTERRUPTED) == "interrupted\nTrue\n"


def test_a_jaxlib_with_other_structures_is_refused():
    with pytest.raises(RuntimeError, match="does not know this jaxlib"):
        _xla._arrays(_xla.Buffers(ctypes.sizeof(_xla.Buffers) + 8))


def test_threads_may_call_at_once():
    arrays, results = inputs(), {}
    attend = jax.jit(gradients(dot_product_attention))
    expected = leaves(attend(*arrays))

    def work(i):
        for _ in range(20):
            results[i] = leaves(attend(*arrays))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        assert_same_bits(results[i], expected)


ONE_CPU = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
import jax, jax.numpy as jnp, numpy as np
from attnpy.integrations.jax import dot_product_attention

@jax.jit
def step(x):
    def loss(x):
        y = jax.vmap(lambda x: dot_product_attention(x, x, x))(jnp.stack([x, 2 * x]))
        return (y[0] * dot_product_attention(x, x + 1, x)).sum() + (y ** 2).sum()
    return x - 1e-3 * jax.grad(loss)(x)

x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 700, 4, 64)), jnp.float32)
for _ in range(3):
    x = step(x)  # not waited for
print(bool(jnp.isfinite(x).all()))
for _ in range(200):
    y = dot_product_attention(x[:, :9], x[:, :9], x[:, :9])
print(np.asarray(y).shape)
"""


def test_nothing_hangs_on_one_cpu():
    # Callbacks of JAX that wait for arrays do, where XLA has one thread.
    assert processes.assert_runs(ONE_CPU) == "True\n(1, 9, 4, 64)\n"


TWO_DEVICES = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from attnpy.integrations.jax import dot_product_attention

rng = np.random.default_rng(0)
x = rng.standard_normal((4, 33, 2, 16)).astype(np.float32)
expected = np.asarray(dot_product_attention(x, x, x, is_causal=True))
mesh = Mesh(jax.devices(), "b")
shared = jax.device_put(x, NamedSharding(mesh, P("b")))
attend = lambda x: dot_product_attention(x, x, x, is_causal=True)
print(np.array_equal(jax.jit(attend)(shared), expected))
each = jax.shard_map(attend, mesh=mesh, in_specs=P("b"), out_specs=P("b"))
print(np.array_equal(jax.jit(each)(shared), expected))
gradient = jax.grad(lambda x: (attend(x) ** 2).sum())
each = jax.shard_map(gradient, mesh=mesh, in_specs=P("b"), out_specs=P("b"))
print(np.array_equal(jax.jit(each)(shared), gradient(x)))

# Queries of their own, keys of all: their gradient is a sum over devices.
loss = lambda x, y: (dot_product_attention(x, y, y, is_causal=True) ** 2).sum()
each = jax.shard_map(
    jax.grad(loss, (0, 1)), mesh=mesh, in_specs=(P("b"), P()), out_specs=(P("b"), P())
)
both = jax.jit(each)(x, x[:2])
alone = jax.grad(lambda x, y: loss(x[:2], y) + loss(x[2:], y), (0, 1))(x, x[:2])
print(*(np.allclose(*pair, atol=1e-5) for pair in zip(both, alone)))
"""


def test_devices_may_share_a_batch():
    printed = processes.assert_runs(
        TWO_DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=2"
    )
    assert printed == 3 * "True\n" + "True True\n"


def test_the_examples_run():
    pages.assert_examples_print_what_their_comments_say("integrations/jax.md")
