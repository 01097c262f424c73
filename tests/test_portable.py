"""The switch between a CPU's own dot products of bfloat16 and the portable path."""

import sys

import numpy as np
import pytest
from support.arrays import dtype_of, problem
from support.calls import TIERS, attend_on, linear_on, vjp_on
from support.comparisons import assert_same_bits
from support.processes import assert_runs, run_python

import attnpy

# With products of their own for bfloat16.
NATIVE = [tier for tier in TIERS if tier.endswith("_bf16")]
DOTS = [tier for tier in NATIVE if tier == "avx512_bf16"]  # in gradients, too
CONFIG = "import attnpy; print(attnpy.show_config(mode='dicts')['tier'])"

needs_native = pytest.mark.skipif(
    not NATIVE, reason="this CPU has no dot products of bfloat16"
)


@pytest.fixture
def portable():
    """The portable path, for one test."""
    attnpy.set_portable(True)
    yield
    attnpy.set_portable(False)


@pytest.fixture
def arrays():
    return problem(4, 70, 300, 64, 64, dtype_of("bfloat16"))


@pytest.mark.quick
def test_the_choice_can_be_read():
    assert attnpy.get_portable() is False
    for portable in (True, np.bool_(False)):
        attnpy.set_portable(portable)
        assert attnpy.get_portable() is bool(portable)
    with pytest.raises(TypeError, match="portable: expected"):
        attnpy.set_portable(1)
    assert attnpy.get_portable() is False


@pytest.mark.quick
@pytest.mark.parametrize(("text", "expected"), [("1", "True"), ("0", "False")])
def test_the_environment_makes_the_choice(text, expected):
    script = "import attnpy; print(attnpy.get_portable())"
    assert assert_runs(script, ATTNPY_PORTABLE=text).strip() == expected


@pytest.mark.quick
def test_portable_bfloat16_has_the_bits_of_the_scalar_tier(portable, arrays):
    assert_same_bits(attnpy.attention(*arrays), attend_on("scalar", *arrays))


def vendor():
    with open("/proc/cpuinfo") as file:
        return next(line.split()[-1] for line in file if line.startswith("vendor_id"))


@pytest.mark.quick
@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the vendor")
def test_native_products_are_the_default_where_they_are_faster():
    slow_dots = vendor() == "GenuineIntel" and NATIVE[0] == "avx512_bf16"
    script = f"import os; os.environ.pop('ATTNPY_ISA', None); {CONFIG}"
    expected = "avx512_vnni" if slow_dots else NATIVE[0]
    assert assert_runs(script, ATTNPY_PORTABLE="0").strip() == expected


@pytest.mark.quick
@pytest.mark.parametrize("tier", NATIVE)
def test_native_products_of_attention_have_bits_of_their_own(arrays, tier):
    native = attend_on(tier, *arrays)
    assert native.tobytes() != attend_on("scalar", *arrays).tobytes()


def results_of(tier, *arrays, **options):
    """Output and LSE of a call, as gradients take them."""
    output, lse = attend_on(tier, *arrays, return_lse=True, **options)
    return {"output": output, "lse": lse}


@pytest.mark.quick
def test_portable_gradients_have_the_bits_of_the_scalar_tier(portable, arrays):
    grad = problem(4, 70, 1, 64, 1, dtype_of("bfloat16"), seed=9)[0]
    assert_same_bits(
        attnpy.attention_vjp(grad, *arrays)[:3], vjp_on("scalar", grad, *arrays)[:3]
    )


@pytest.mark.quick
@pytest.mark.parametrize("tier", DOTS)
def test_native_gradients_have_bits_of_their_own(arrays, tier):
    grad = problem(4, 70, 1, 64, 1, dtype_of("bfloat16"), seed=9)[0]
    known = results_of("scalar", *arrays)
    native = vjp_on(tier, grad, *arrays, **known)
    portable = vjp_on("scalar", grad, *arrays, **known)
    for one, other in zip(native[:3], portable[:3], strict=True):
        assert one.tobytes() != other.tobytes()
    wide = grad.astype(np.float32)  # one array in another dtype
    assert_same_bits(
        vjp_on(tier, wide, *arrays, **known)[:3],
        vjp_on("scalar", wide, *arrays, **known)[:3],
    )


def magnitudes(grad, query, key, value, output, causal):
    """The sums of gradients of query, key and value with all terms positive."""
    grad, query, key, value, output = (
        x.astype(np.float64) for x in (grad, query, key, value, output)
    )
    scale = query.shape[-1] ** -0.5
    scores = scale * query @ np.swapaxes(key, -1, -2)
    if causal:
        scores += np.triu(
            np.full(scores.shape[-2:], -np.inf), 1 + np.subtract(*scores.shape[:-3:-1])
        )
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    delta = np.sum(grad * output, axis=-1, keepdims=True)
    factors = scale * weights * np.abs(grad @ np.swapaxes(value, -1, -2) - delta)
    return (
        factors @ np.abs(key),
        np.swapaxes(factors, -1, -2) @ np.abs(query),
        np.swapaxes(weights, -1, -2) @ np.abs(grad),
    )


@pytest.mark.quick
@pytest.mark.parametrize("tier", DOTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(70, 300, 64, 64), (33, 140, 17, 9), (3, 9, 130, 1)])
def test_native_gradients_are_float32s_with_factors_of_8_bits(tier, sizes, causal):
    # Beside the sums, weights and the gradients of scores are rounded: by 2^-8 of each
    # term at most, as the forward pass rounds weights.
    n_rows, n_keys, dim, value_dim = sizes
    arrays = problem(2, n_rows, n_keys, dim, value_dim, dtype_of("bfloat16"))
    grad = problem(2, n_rows, 1, value_dim, 1, dtype_of("bfloat16"), seed=9)[0]
    known = results_of("scalar", *arrays, causal=causal)
    wide = [x.astype(np.float32) for x in (grad, *arrays)]
    known_wide = {name: x.astype(np.float32) for name, x in known.items()}
    native = vjp_on(tier, grad, *arrays, causal=causal, **known)
    exact = vjp_on("scalar", *wide, causal=causal, **known_wide)
    sizes_of_sums = magnitudes(grad, *arrays, known["output"], causal)
    for name, one, right, size in zip(
        ("query", "key", "value"), native, exact, sizes_of_sums, strict=False
    ):
        error = np.abs(one.astype(np.float64) - right)
        bound = 2.0**-8 * (1.01 * size + np.abs(right))
        assert (error <= bound + 1e-30).all(), name
        rms = np.sqrt(np.mean(error**2) / np.mean(np.square(right, dtype=np.float64)))
        assert 2e-4 < rms < 5e-3, name


@pytest.mark.quick
@pytest.mark.parametrize("tier", NATIVE)
def test_native_linear_products_have_bits_of_their_own(tier):
    rng = np.random.default_rng(0)
    x, weight = (
        rng.standard_normal(shape).astype(dtype_of("bfloat16"))
        for shape in ((40, 300), (300, 50))
    )
    native = linear_on(tier, x, weight, precision="wide")
    portable = linear_on("scalar", x, weight, precision="wide")
    assert native.tobytes() != portable.tobytes()
    assert np.abs(native - portable).max() < 1e-4


@pytest.mark.quick
@pytest.mark.parametrize("tier", NATIVE)
@pytest.mark.parametrize("n_keys", [1, 31, 32, 128, 300, 640])
@pytest.mark.parametrize(
    ("dim", "value_dim"), [(8, 48), (64, 64), (96, 80), (128, 192)]
)
def test_one_query_or_two_have_the_bits_of_many(tier, n_keys, dim, value_dim):
    rng = np.random.default_rng(n_keys)
    query, key, value = problem(2, 40, n_keys, dim, value_dim, dtype_of("bfloat16"))
    spread = 10.0 ** rng.integers(-42, 3, value.shape)  # some are subnormal
    value = (value.astype(np.float64) * spread).astype(value.dtype)
    spoilt, mask = value.copy(), np.ones(n_keys, bool)
    spoilt[:, n_keys // 2], mask[n_keys // 2] = np.nan, n_keys == 1
    for values, options in (
        (value, {}),
        (value, {"mask": mask}),
        (spoilt, {"mask": mask}),
    ):
        many = attend_on(tier, query, key, values, **options)
        for part in (np.s_[:, 7:8], np.s_[:, 20:22], np.s_[:, 31:39]):
            few = attend_on(tier, query[part], key, values, **options)
            assert_same_bits(few, np.ascontiguousarray(many[part]))
    if n_keys > 1:
        hidden = attend_on(tier, query, key, spoilt, mask=mask)
        assert_same_bits(hidden, attend_on(tier, query, key, value, mask=mask))


@pytest.mark.quick
@needs_native
def test_one_array_in_another_dtype_takes_the_portable_path(arrays):
    query, key, value = arrays
    wide = query.astype(np.float32)
    assert_same_bits(
        attnpy.attention(wide, key, value), attend_on("scalar", wide, key, value)
    )


@pytest.mark.quick
def test_configuration_shows_the_choice(portable):
    assert attnpy.show_config(mode="dicts")["tier"] not in NATIVE


@pytest.mark.parametrize(("value", "native"), [("0", True), ("1", False)])
@needs_native
def test_environment_makes_the_choice(value, native):
    done = run_python(CONFIG, ATTNPY_PORTABLE=value, ATTNPY_ISA=NATIVE[0])
    assert (done.stdout.strip() in NATIVE) == native


@pytest.mark.parametrize("bad", ["", "yes", "01"])
def test_other_words_in_the_environment_are_an_error(bad):
    done = run_python(CONFIG, ATTNPY_PORTABLE=bad)
    assert done.returncode == 1
    assert f"ATTNPY_PORTABLE: expected 0 or 1, got '{bad}'" in done.stderr


@pytest.mark.quick
def test_what_is_no_boolean_is_an_error():
    with pytest.raises(TypeError, match="portable: expected"):
        attnpy.set_portable("yes")
