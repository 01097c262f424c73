"""Gradients against difference quotients: how fast numbers change along a direction."""

import numpy as np

from support import arrays
from support.comparisons import assert_same_bits

NOT_OF_CALLS = ("wanted", "checkpoint")


def with_values(layer, seed=1):
    """The layer, with all parameters set to random numbers."""
    for i, array in enumerate(layer.parameters().values()):
        values = arrays.normal(*array.shape, seed=seed + i, dtype=array.dtype)
        array[...] = values / 2
    return layer


def quotient(run, array, step):
    """How fast a number changes along a direction, and the rounding error of that.

    By central differences, whose error grows with the number.
    """
    before = array.copy()
    array[...] = before + step
    high = run()
    array[...] = before - step
    low = run()
    array[...] = before
    return (high - low) / 2, 1e-14 * max(10, abs(high), abs(low))


def assert_gradient(run, array, gradient, name, seed=99):
    """The derivative of a number along a random direction agrees with the gradient."""
    assert (gradient.shape, gradient.dtype) == (array.shape, array.dtype), name
    step = 1e-6 * arrays.normal(*array.shape, seed=seed, dtype=np.float64)
    expected, rounding = quotient(run, array, step)
    bound = 1e-5 * np.linalg.norm(gradient) * np.linalg.norm(step) + rounding
    assert abs(np.sum(gradient * step) - expected) < bound, name


def assert_gradients(layer, arguments, options, seed=7):
    """The same for all arguments and parameters; the output has the bits of a call."""
    of_call = {k: v for k, v in options.items() if k not in NOT_OF_CALLS}

    def forward():
        if "dropout" in options:  # which calls have not
            return layer.vjp(*arguments, **options)[0]
        return layer(*arguments, **of_call)

    output, pullback = layer.vjp(*arguments, **options)
    assert_same_bits(output, forward())
    grad = arrays.normal(*output.shape, seed=seed, dtype=np.float64)
    found = pullback(grad)

    def run():
        return np.sum(forward() * grad)

    for name, array in zip(("x", "context", "value"), arguments, strict=False):
        assert_gradient(run, array, getattr(found, name), name, seed + 92)
    for name in ("context", "value")[max(0, len(arguments) - 1) :]:
        assert getattr(found, name) is None
    parameters = layer.parameters()
    assert list(found.parameters) == list(parameters)
    for name, array in parameters.items():
        assert_gradient(run, array, found.parameters[name], name, seed + 92)
    for name in ("bias", "sinks"):
        if name in options.get("wanted", ()):
            gradient = getattr(found, name)
            assert_gradient(run, options[name], gradient, name, seed + 92)
        else:
            assert getattr(found, name) is None


def assert_model_gradients(model, run, vjp, seed=7):
    """The same for all parameters that the result depends on; return their names."""
    output, pullback = vjp()
    assert_same_bits(output, run())
    grad = arrays.normal(*output.shape, seed=seed, dtype=np.float64)
    found, parameters = pullback(grad), model.parameters()
    assert list(found) == [name for name in parameters if name in found]
    for name, gradient in found.items():
        array = parameters[name]
        assert_gradient(lambda: np.sum(run() * grad), array, gradient, name, seed + 92)
    return parameters.keys() - found.keys()
