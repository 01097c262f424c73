"""Activations of whole arrays, with factors, and their gradients."""

import functools

import numpy as np
import pytest
from support.arrays import byte_swapped, normal
from support.calls import (
    activate_on,
    activate_vjp_on,
    linear_on,
    threads_for_any_work,
)
from support.comparisons import assert_same_bits
from support.formulas import ACTIVATION_GRADS, ACTIVATIONS
from support.processes import run_python

from attnpy.blocks import activation_vjp


@pytest.fixture
def activate(tier):
    """f(x) * times on one instruction set."""
    return functools.partial(activate_on, tier)


@pytest.fixture
def differentiate(tier):
    """grad * times * f'(x) on one instruction set."""
    return functools.partial(activate_vjp_on, tier)


# ---- Forwards ------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("name", [None, *ACTIVATIONS])
def test_a_factor_is_a_step_of_its_own(activate, name, dtype):
    x, times = ((3 * normal(5, 300, seed=i)).astype(dtype) for i in (0, 1))
    real = np.result_type(dtype, np.float32) if dtype.kind == "f" else np.float32
    wide = activate(x.astype(real), name) * times.astype(real)
    assert_same_bits(activate(x, name, times), wide.astype(dtype))


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_fused_factor_has_the_bits_of_one_apart(tier, name, kind):
    x, weight = normal(20, 30, dtype=kind), normal(30, 50, dtype=kind)
    times = normal(20, 50, dtype=kind, seed=3)
    fused = linear_on(tier, x, weight, activation=name, times=times)
    assert_same_bits(activate_on(tier, linear_on(tier, x, weight), name, times), fused)


@pytest.mark.quick
def test_dtypes_promote_and_integers_are_doubles(activate):
    x, times = normal(3, 40, dtype="f2"), normal(3, 40)
    result = activate(x, "gelu", times)
    assert_same_bits(result, activate(x.astype("f4"), "gelu", times))
    assert activate([1, 2], "silu").dtype == np.float64
    assert activate(np.float32(2), "relu").shape == ()


@pytest.mark.quick
@pytest.mark.parametrize("name", ["gelu", "relu2"])
def test_threads_and_layouts_change_no_bit(activate, differentiate, name):
    grad, x, times = (normal(7, 100, 130, seed=i) for i in range(3))
    for function, arrays in ((activate, (x,)), (differentiate, (grad, x))):
        expected = function(*arrays, name, times)
        with threads_for_any_work():
            for n in (2, 3, 7):
                result = function(*arrays, name, times, num_threads=n)
                assert_same_bits(result, expected)
        for view in (
            np.asfortranarray,
            byte_swapped,
            lambda a: a[::-1, ::-1, ::-1][::-1, ::-1, ::-1],
            lambda a: np.repeat(a, 2, axis=2)[..., ::2],
        ):
            result = function(*map(view, arrays), name, view(times))
            assert_same_bits(result, expected)
        part = np.s_[2, 3:40, ::-3]
        result = function(*(a[part] for a in arrays), name, times[part])
        assert_same_bits(result, expected[part])


# ---- Gradients -----------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_derivatives_are_within_some_rounding_units(differentiate, name, kind):
    x = np.concatenate(
        [
            np.linspace(-9, 9, 4001),
            -np.logspace(-20, 1.5, 300),
            np.logspace(-20, 2, 300),
        ]
    ).astype(kind)
    result = differentiate(np.ones_like(x), x, name)
    with np.errstate(over="ignore"):  # e^v, for the logistic function of -v
        exact, size = ACTIVATION_GRADS[name](x.astype(np.float64))
    # Of e^-v the rounding of v is left, which is x^2 or x^3 for some.
    v = 1 + np.abs(x.astype(float)) + np.where(np.abs(x) < 40, np.square(x), 0)
    v = v * (1 + np.abs(x) * ("tanh" in name))
    bound = 6 * np.finfo(kind).eps * v * size + 100 * np.finfo(kind).tiny
    assert (np.abs(result - exact) <= bound).all()
    if name == "tanh":  # nothing cancels where tanh is 1
        bound = 40 * np.finfo(kind).eps * exact * v + 100 * np.finfo(kind).tiny
        assert (np.abs(result - exact) <= bound).all()


@pytest.mark.quick
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_are_finite_differences(differentiate, name):
    step, x = 1e-6, np.concatenate([np.linspace(-7, 7, 2000), [-20.0, 40.0]])
    ends = (activate_on("scalar", x + s, name) for s in (step, -step))
    derivative = np.subtract(*ends) / (2 * step)
    grad, times = normal(2002, dtype="f8"), normal(2002, dtype="f8", seed=1)
    expected = grad * times * derivative
    result = differentiate(grad, x, name, times)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_of_special_numbers_are_their_limits(differentiate, name, kind):
    most = np.finfo(kind).max
    x = np.array([np.inf, most, 100, 0, -0.0, -1000, -most, -np.inf, np.nan], kind)
    result = differentiate(np.ones_like(x), x, name).astype(float)
    limits = {
        "relu": [1, 1, 1, 0, 0, 0, 0, 0],
        "relu2": [np.inf, np.inf, 200, 0, 0, 0, 0, 0],
        "tanh": [0, 0, 0, 1, 1, 0, 0, 0],
    }
    expected = np.array([*limits.get(name, [1, 1, 1, 0.5, 0.5, 0, 0, 0]), np.nan])
    with np.errstate(over="ignore"):
        expected = expected.astype(kind).astype(float)
    np.testing.assert_allclose(result, expected, 2 * np.finfo(kind).eps, 1e-30)


@pytest.mark.quick
def test_gelu_falls_where_it_is_far_below_0(differentiate):
    # From the asymptotic series of the normal distribution.
    for x in (-8.0, -20.0, -35.0):
        density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
        series = 1 - x**-2 + 3 * x**-4 - 15 * x**-6 + 105 * x**-8
        exact = density * (x - series / x)
        np.testing.assert_allclose(differentiate([1.0], [x], "gelu"), [exact], 2e-6)


@pytest.mark.quick
@pytest.mark.parametrize("name", [None, *ACTIVATIONS])
def test_gradients_are_products_rounded_one_by_one(tier, differentiate, name, dtype):
    grad, x, times = ((3 * normal(3, 400, seed=i)).astype(dtype) for i in range(3))
    real = np.result_type(dtype, np.float32) if dtype.kind == "f" else np.float32
    wide = [a.astype(real) for a in (grad, x, times)]
    derivative = differentiate(np.ones_like(wide[0]), wide[1], name)
    expected = wide[0] * wide[2] * derivative
    result = differentiate(grad, x, name, times)
    assert_same_bits(result, expected.astype(dtype))
    assert_same_bits(result, activate_vjp_on("scalar", grad, x, name, times))
    alone = differentiate(grad, x, name)
    assert_same_bits(alone, (wide[0] * derivative).astype(dtype))


@pytest.mark.quick
def test_gradients_have_the_dtype_of_x(differentiate):
    grad, x, times = normal(40, dtype="f8"), normal(40, dtype="f2"), normal(40)
    result = differentiate(grad, x, "gelu", times)
    wide = differentiate(grad.astype("f4"), x.astype("f4"), "gelu", times)
    assert_same_bits(result, wide.astype("f2"))
    assert differentiate([1, 2], [3, 4], "silu").dtype == np.float64
    public = activation_vjp(grad, x, "gelu", num_threads=2)
    assert_same_bits(public, differentiate(grad, x, "gelu"))
    assert differentiate(1.0, np.float32(2), "relu").shape == ()
    assert differentiate(np.zeros((0, 3)), np.zeros((0, 3)), "relu").shape == (0, 3)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.ones(3), np.ones(2), "relu"), ValueError, "grad_output: .* shape of x"),
        ((np.ones(3), np.ones(3), "relu", np.ones(1)), ValueError, "times: .* of x"),
        ((np.ones(3), np.ones(3), "selu"), ValueError, "activation: expected 'relu'"),
        ((np.ones(3), np.ones(3, "c8"), "relu"), TypeError, "x: expected"),
        ((np.ones(3, "c8"), np.ones(3), "relu"), TypeError, "grad_output: expected"),
        ((np.ones(3), np.ones(3), "relu", np.ones(3, "c8")), TypeError, "times: exp"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        activate_vjp_on(None, *arguments)
    with pytest.raises(ValueError, match="num_threads"):
        activation_vjp([1.0], [1.0], "relu", num_threads=0)


GUARDED = """
import sys
import numpy as np
from support.arrays import normal
from support.calls import activate_on, activate_vjp_on
from support.comparisons import assert_same_bits
from support.guarded import hold

for n in (1, 2, 7, 8, 9, 15, 16, 17, 33, 255, 256, 257, 2000):
    for kind in ("f4", "f8", "f2"):
        names = ("grad", "x", "times")
        arrays = [normal(n, dtype=kind, seed=i) for i in range(3)]
        grad, x, times = arrays
        expected = activate_vjp_on(sys.argv[1], grad, x, "gelu", times)
        forwards = activate_on(sys.argv[1], x, "gelu", times)
        for at_end in (False, True):
            held = [hold(n, a, at_end) for n, a in zip(names, arrays, strict=True)]
            grad, x, times = held
            result = activate_vjp_on(sys.argv[1], grad, x, "gelu", times)
            assert_same_bits(result, expected)
            assert_same_bits(activate_on(sys.argv[1], x, "gelu", times), forwards)
print("done")
"""


def test_no_byte_outside_the_arrays_is_read(tier):
    done = run_python(GUARDED, tier)
    assert done.stdout.strip() == "done", done.stderr[-2000:]
