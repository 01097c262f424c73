"""The switch between a CPU's own dot products of bfloat16 and the portable path."""

import sys

import numpy as np
import pytest
from support.arrays import dtype_of, problem
from support.calls import TIERS, attend_on, linear_on
from support.comparisons import assert_same_bits
from support.processes import assert_runs, run_python

import attnpy

# With products of their own for bfloat16.
NATIVE = [tier for tier in TIERS if tier.endswith("_bf16")]
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
