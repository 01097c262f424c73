"""How far results are from the exact ones, next to NumPy's plain formula.

For each case of a corpus: the oracle (in a wider format than the result), the plain
formula in the result's own precision, and attnpy. On the whole corpus attnpy's mean
error is at most twice the plain formula's, and each element is within the bound of
plain.bound(). The last tests break results on purpose, to show that this can fail.
"""

import functools

import numpy as np
import pytest
from support import plain, reference
from support.arrays import dtype_of, normal, problem
from support.calls import everything, has_rounded_weights
from support.comparisons import STORAGE, assert_within

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
WIDER = {"float32": np.float64, "float64": np.longdouble}
RESULTS = ("output", "weights", "lse")


def corpus():
    """Pairs of arrays in float64 and options, by name."""
    draw = functools.partial(problem, dtype="float64")
    rng = np.random.default_rng(5)
    mask = rng.random((2, 40, 300)) < 0.5
    mask[..., 0] = True
    query, key, value = draw(1, 20, 400, 16, 8)
    ones = np.ones_like
    return {
        "one key": (draw(2, 10, 1, 8, 4), {}),
        "two keys": (draw(2, 30, 2, 8, 4), {}),
        "short": (draw(4, 12, 12, 16, 16), {}),
        "blocks of keys": (draw(1, 70, 300, 32, 16), {}),
        "chunks of keys": (draw(1, 12, 1100, 8, 8), {}),
        "one query": (draw(4, 1, 600, 32, 16), {}),
        "few queries": (draw(2, 3, 700, 16, 8), {}),
        "wide heads": (draw(1, 10, 60, 200, 130), {}),
        "dim 1": (draw(2, 20, 60, 1, 1), {}),
        "causal": (draw(2, 60, 140, 16, 8), {"causal": True}),
        "mask": (draw(2, 40, 300, 8, 8), {"mask": mask}),
        "bias": (draw(2, 40, 80, 8, 8), {"bias": 3 * normal(2, 40, 80)}),
        "softcap": (draw(2, 20, 200, 16, 8), {"softcap": 2.0, "scale": 1.0}),
        "sinks": (draw(2, 20, 40, 16, 8), {"sinks": np.array([1.5, -0.5])}),
        "flat": ((0.01 * query, key, value), {}),
        "peaked": ((10 * query, key, value), {}),
        "one winner": ((300 * query, key, value), {}),
        "scale 0": ((query, key, value), {"scale": 0.0}),
        "negative scale": ((query, key, value), {"scale": -1.0}),
        "values of one sign": ((query, key, np.abs(value) + 1), {}),
        "equal values": ((query, key, 0.1 * ones(value)), {}),
        "equal keys": ((query, 0.3 * ones(key), value), {}),
        "large mean": ((query, key, value + 1000), {}),
        "tiny values": ((query, key, 1e-30 * value), {}),
        "huge values": ((query, key, 1e30 * value), {}),
    }


CORPUS = corpus()


@functools.cache
def known(name, dtype):
    """A case in one dtype: its arrays, options, and for each result the exact one,
    the plain formula's, and how far from the exact one a result may be."""
    arrays, options = CORPUS[name]
    arrays = tuple(x.astype(dtype) for x in arrays)
    exact = reference.attention(*arrays, real=WIDER[dtype], **options)
    simple = plain.attention(*arrays, **options)
    terms = plain.magnitudes(*arrays, **options)
    bounds = tuple(
        plain.bound(*each, UNIT[dtype])
        for each in zip(simple, exact, terms, strict=True)
    )
    return arrays, options, exact, simple, bounds


def errors(results, name, dtype):
    """The mean errors of results, relative to the root mean square of the exact."""
    _, _, exact, _, _ = known(name, dtype)
    return [
        float(np.abs(x - y).mean() / np.sqrt(np.square(y).mean()))
        for x, y in zip(results, exact, strict=True)
    ]


@pytest.fixture(params=["float32", "float64"])
def real(request):
    """The precisions of the arithmetic."""
    if np.finfo(WIDER[request.param]).eps >= np.finfo(request.param).eps:
        pytest.skip("no format here is wider than float64")
    return request.param


@pytest.mark.quick(name=("short", "few queries", "causal"))
@pytest.mark.parametrize("name", CORPUS)
def test_every_element_is_about_as_good_as_the_plain_formula(attend, real, name):
    arrays, options, exact, _, bounds = known(name, real)
    results = everything(attend, *arrays, **options)
    for each in zip(RESULTS, results, exact, bounds, strict=True):
        assert_within(*each)


def test_mean_error_is_at_most_twice_that_of_the_plain_formula(attend, real):
    ours, simple = [], []
    for name in CORPUS:
        arrays, options, _, plain_results, _ = known(name, real)
        ours.append(errors(everything(attend, *arrays, **options), name, real))
        simple.append(errors(plain_results, name, real))
    for result, one, other in zip(
        RESULTS, np.mean(ours, axis=0), np.mean(simple, axis=0), strict=True
    ):
        assert one <= 2 * other, f"{result}: {one:.3g}, plain formula {other:.3g}"


@pytest.mark.quick(name=("short",))
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", sorted(set(CORPUS) - {"tiny values", "huge values"}))
def test_16_bit_results_are_those_of_float32_rounded_once(attend, kind, name):
    dtype, (arrays, options) = dtype_of(kind), CORPUS[name]
    arrays = [x.astype(dtype) for x in arrays]
    wide = [x.astype("float32") for x in arrays]
    exact = reference.attention(*wide, **options)
    simple = plain.attention(*wide, **options)
    terms = plain.magnitudes(*wide, **options)
    results = everything(attend, *arrays, **options)
    rounding, least = STORAGE[kind]
    for each in zip(RESULTS, results, exact, simple, terms, strict=True):
        what, result, right, approximate, magnitude = each
        bound = plain.bound(approximate, right, magnitude, UNIT["float32"])
        if what == "output" and has_rounded_weights(attend, dtype):
            bound = bound + rounding * magnitude
        if what != "lse":
            bound = bound * (1 + rounding) + rounding * np.abs(right) + least
        assert_within(what, result, right, bound)


@pytest.mark.quick(n_queries=(9,), real=("float32",))
@pytest.mark.parametrize("n_queries", [1, 9])
def test_exponential_is_within_a_few_rounding_units(attend, real, n_queries):
    # Two keys with scores 0 and x: the second one's weight is e^x / (1 + e^x). One
    # rounding unit of x makes |x| units of e^x.
    lowest = np.log(np.finfo(real).tiny) + 1
    x = np.linspace(lowest, 0, 20_001, dtype=real)
    x = np.concatenate([x, np.linspace(-1, 0, 2_000, dtype=real)])
    key = np.stack([np.zeros_like(x), x], axis=-1)[:, None, :, None]  # (n, 1, 2, 1)
    query = np.ones((1, n_queries, 1), real)
    _, weights, lse = everything(attend, query, key, key, scale=1)
    power = np.exp(x.astype(WIDER[real]))[:, None]
    error = np.abs(weights[:, 0, :, 1] / (power / (1 + power)) - 1)
    assert (error < (3 - x[:, None] / 3) * UNIT[real]).all()
    error = np.abs(lse[:, 0] - np.log1p(power))
    assert error.max() < 3 * UNIT[real]


@pytest.mark.quick
def test_logarithm_is_within_a_few_rounding_units(attend, real):
    # n keys with score 0: the LSE is log n.
    key = np.zeros((1, 2000, 1), real)
    for n in (*range(1, 40), 127, 128, 129, 511, 512, 513, 1000, 1024, 1999, 2000):
        lse = everything(attend, key[:, :1], key[:, :n], key[:, :n])[2]
        exact = np.log(WIDER[real](n))
        assert np.abs(lse[0, 0] - exact) <= 1.5 * UNIT[real] * exact, n


@pytest.mark.parametrize("n_queries", [1, 9])
@pytest.mark.parametrize("softcap", [1.0, 30.0, 0.37])
def test_softcap_is_within_a_few_rounding_units(attend, real, softcap, n_queries):
    # One key: the LSE is its logit, c tanh(x / c).
    x = np.concatenate([np.linspace(-9, 9, 10_001), np.geomspace(1e-30, 20, 5_000)])
    x = (softcap * x).astype(real)
    key, query = x[:, None, None, None], np.ones((1, n_queries, 1), real)
    lse = everything(attend, query, key, key, scale=1, softcap=softcap)[2]
    softcap = np.asarray(softcap, real).astype(WIDER[real])
    exact = softcap * np.tanh(x.astype(WIDER[real]) / softcap)[:, None]
    error = np.abs(lse[:, 0] - exact) / np.where(exact == 0, 1, np.abs(exact))
    assert error.max() < 12 * UNIT[real]


def is_accepted(results, name, dtype):
    """Whether the test of each element would pass these results."""
    _, _, exact, _, bounds = known(name, dtype)
    try:
        for each in zip(RESULTS, results, exact, bounds, strict=True):
            assert_within(*each)
    except AssertionError:
        return False
    return True


FAULTS = ["blocks of keys", "chunks of keys", "few queries", "causal", "bias"]


@pytest.mark.quick(name=("causal",))
@pytest.mark.parametrize("name", FAULTS)
def test_tolerance_rejects_deliberate_faults(attend, real, name):
    arrays, options, _, _, _ = known(name, real)
    query, key, value = arrays
    right = everything(attend, *arrays, **options)
    assert is_accepted(right, name, real)
    assert not is_accepted([0 * x for x in right], name, real)

    def faulty(key=key, value=value, **changed):
        return everything(attend, query, key, value, **{**options, **changed})

    scale = query.shape[-1] ** -0.5
    assert not is_accepted(faulty(scale=scale * (1 + 1e-4)), name, real)
    assert not is_accepted(faulty(value=value * (1 + 1e-5)), name, real)
    bias = np.array(np.broadcast_to(options.get("bias", 0.0), right[1].shape))
    bias[..., -1:, 5] = -np.inf  # the last query misses one key
    assert not is_accepted(faulty(bias=bias), name, real)
    swapped = value.copy()
    swapped[:, [2, 3]] = value[:, [3, 2]]
    assert not is_accepted(faulty(value=swapped), name, real)
    if "causal" in options:
        early = {"q_offset": key.shape[-2] - query.shape[-2] - 1}
        assert not is_accepted(faulty(**early), name, real)


def test_bound_is_a_small_part_of_the_result(real):
    for name in FAULTS:
        _, _, exact, _, bounds = known(name, real)
        for right, bound in zip(exact, bounds, strict=True):
            assert np.abs(bound).max() < 200 * UNIT[real] * np.abs(right).max(), name
