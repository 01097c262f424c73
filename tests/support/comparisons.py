"""Comparisons of results: bit for bit, or with exact numbers within a bound."""

import numpy as np

from support import backward, reference
from support.calls import everything, has_rounded_weights

# Of a 16-bit result: the relative rounding error, and half the least positive number.
STORAGE = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 1e-40)}
LARGEST_CODE = 32639  # of queries and weights that int8 is multiplied by
FLOATING = {"float64", "float32", *STORAGE}


def assert_same_bits(actual, expected):
    """Arrays, or tuples of them, equal in dtype, shape and every bit."""
    if expected is None:
        assert actual is None
        return
    if isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same_bits(one, other)
        return
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if actual.tobytes() != expected.tobytes():
        np.testing.assert_array_equal(actual, expected)  # shows where
        raise AssertionError("equal numbers with different bits: a NaN or a zero")


def assert_same_parameters(one, other):
    """Models or layers with the same parameters, bit for bit."""
    assert one.parameters().keys() == other.parameters().keys()
    for name, array in one.parameters().items():
        assert_same_bits(array, other.parameters()[name])


def assert_near(actual, expected, limit=1e-12):
    """Equal shapes, and errors up to the limit, relative to what is not 0."""
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.astype(float), expected, rtol=limit, atol=limit)


def assert_within(name, actual, expected, bound):
    """Each element of actual is within its bound of expected; infinities are equal."""
    actual = np.asarray(actual, expected.dtype)
    with np.errstate(invalid="ignore"):  # inf - inf
        good = (actual == expected) | (np.abs(actual - expected) <= bound)
    if not good.all():
        worst = np.argwhere(~good)[0]
        where = tuple(int(i) for i in worst)
        raise AssertionError(
            f"{name}: {np.sum(~good)} of {good.size} elements off, first at {where}: "
            f"{actual[where]!r}, exact {expected[where]!r}"
        )


def assert_right(attend, query, key, value, **options):
    """Compare one call with the oracle, by an a-priori bound of the rounding error.

    A score is a chain of D terms and the softmax's sum one of Lk terms, and an error
    in a score is a relative error of its weight. test_accuracy.py has sharper bounds.
    """
    results = everything(attend, query, key, value, **options)
    codes, scales = value, options.get("value_scale")
    are_codes = [options.get(n) is not None for n in ("key_scale", "value_scale")]
    key, value, options = dequantised(key, value, **options)
    both = np.concatenate([value, np.abs(value)], axis=-1)
    columns, *weights_and_lse = reference.attention(query, key, both, **options)
    output, terms = np.split(columns, 2, axis=-1)
    exact = (output, *weights_and_lse)
    dtype = results[0].dtype
    real = np.float64 if dtype == np.float64 else np.float32
    norms = [np.linalg.norm(np.asarray(x, float), axis=-1) for x in (query, key)]
    top_norms = [x.max(initial=0) for x in norms]
    scale = options.get("scale", 1 / np.sqrt(max(1, query.shape[-1])))
    bias = np.asarray(options.get("bias", 0), float)
    top = abs(scale) * np.prod(top_norms) + np.abs(bias[np.isfinite(bias)]).max(
        initial=0
    )
    steps = 8 + 4 * np.sqrt(query.shape[-1] + key.shape[-2])
    slack = np.finfo(real).eps / 2 * steps * (1 + top)
    if are_codes[0] and real == np.float32:  # five times what rounding queries adds
        slack += 5 / np.sqrt(12) / LARGEST_CODE * top
    shapes = result_shapes(query, key, value)
    for name, result, right, shape, magnitude in zip(
        ("output", "weights", "lse"),
        results,
        exact,
        shapes,
        (terms, exact[1], np.where(exact[2] > -np.inf, 1 + np.abs(exact[2]), 0)),
        strict=True,
    ):
        rounding, least = STORAGE.get(str(result.dtype), (0, np.finfo(real).tiny))
        right, magnitude = right.reshape(shape), magnitude.reshape(shape)
        assert result.shape == shape, name
        bound = slack * magnitude + least
        if name == "output" and are_codes[1] and real == np.float32:
            bound += error_of_codes(exact[1], codes, scales).reshape(shape)
        if name == "output" and has_rounded_weights(attend, dtype):
            bound += rounding * magnitude
        if rounding:
            bound += rounding * np.abs(right)
        assert_within(name, result, right, bound)
    assert results[0].dtype == results[1].dtype
    assert results[2].dtype == real
    return results


def error_of_codes(weights, codes, scales):
    """Five times what rounding weights to codes of 16 bits adds to sums of values."""
    group = weights.shape[-3] // codes.shape[-3] if weights.ndim > 2 else 1
    shape = codes.shape[:-1]
    scales = np.broadcast_to(np.asarray(scales, float), shape)
    norms = np.linalg.norm(codes.astype(float), axis=-2)
    if group > 1:
        scales, norms = (np.repeat(x, group, axis=-2) for x in (scales, norms))
    most = np.abs(weights * scales[..., np.newaxis, :]).max(-1, initial=0)
    unit = 5 / np.sqrt(12) / LARGEST_CODE
    return unit * most[..., np.newaxis] * norms[..., np.newaxis, :]


def dequantised(key, value, *, key_scale=None, value_scale=None, **options):
    """Keys and values as the numbers that they stand for, and the other options."""
    if key_scale is not None:
        key = np.asarray(key_scale, float)[..., np.newaxis] * key
    if value_scale is not None:
        value = np.asarray(value_scale, float)[..., np.newaxis] * value
    return key, value, options


def result_shapes(query, key, value):
    """The shapes of output, weights and lse."""
    arrays = (query, key, value)
    one_head = max(x.ndim for x in arrays) < 3
    query, key, value = (np.array(x, ndmin=3) for x in arrays)
    lead = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    lead += () if one_head else (query.shape[-3],)
    lead += () if arrays[0].ndim == 1 else (query.shape[-2],)
    return (*lead, value.shape[-1]), (*lead, key.shape[-2]), lead


def assert_right_gradients(
    actual, arrays, grad_output, grad_lse=0.0, kept=1.0, **options
):
    """Compare the gradients that were asked for with the oracle's.

    kept: as the oracle's, what dropout multiplies weights by.
    """
    exact = backward.attention_vjp(
        grad_output, *arrays, grad_lse=grad_lse, kept=kept, **options
    )
    names = type(actual)._fields
    inputs = dict(zip(names[:3], arrays, strict=True), **options)
    for name, one, right in zip(names, actual, exact, strict=True):
        if one is None:
            continue
        given = np.asarray(inputs[name])
        dtype = given.dtype if given.dtype.name in FLOATING else grad_output.dtype
        assert (one.shape, one.dtype) == (given.shape, dtype), name
        limit = bound_of(name, arrays, options, grad_output, grad_lse, kept)
        rounding, least = STORAGE.get(dtype.name, (0, np.finfo(np.float32).tiny))
        if dtype == np.float32 and grad_output.dtype == np.float64:
            rounding = 2.0**-24
        if grad_output.dtype.name in STORAGE:  # the output was rounded, so delta is
            limit += STORAGE[grad_output.dtype.name][0] * limit / 2e-7
        assert_within(name, one, right, limit + rounding * np.abs(right) + least)


def bound_of(name, arrays, options, grad_output, grad_lse, kept):
    """An a-priori bound of a gradient's rounding errors, in float64 arrays.

    Every sum has chains of at most so many terms, each off by some rounding units of
    the largest that it could be; the scores' own errors are relative ones of weights.
    """
    query, key, value = (np.asarray(x, float) for x in arrays)
    real = np.float64 if grad_output.dtype == np.float64 else np.float32
    norm = lambda x: np.linalg.norm(x, axis=-1).max(initial=0)  # noqa: E731
    scale = abs(options.get("scale", 1 / np.sqrt(max(1, query.shape[-1]))))
    bias = np.asarray(options.get("bias", 0), float)
    sinks = np.abs(np.asarray(options.get("sinks", 0), float)).max(initial=0)
    top = scale * norm(query) * norm(key)
    top += np.abs(bias[np.isfinite(bias)]).max(initial=0) + sinks
    steps = 8 + 4 * np.sqrt(query.shape[-1] + key.shape[-2])
    grad = norm(np.asarray(grad_output, float)) * np.max(kept, initial=0)
    slope = grad * norm(value) * 2
    slope += np.abs(np.asarray(grad_lse, float)).max(initial=0)
    size = {
        "query": scale * norm(key) * slope,
        "key": scale * norm(query) * slope,
        "value": grad,
    }.get(name, slope)
    n_rows = max(1, np.prod(grad_output.shape[:-1], dtype=int))
    terms = n_rows if name != "query" else 1
    return np.finfo(real).eps * steps * (1 + top) * size * np.sqrt(terms) * 2
