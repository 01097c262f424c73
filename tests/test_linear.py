"""The product of rows with a matrix: right, and the same bits whatever is around."""

import functools
import itertools

import numpy as np
import pytest
from support.arrays import lay_out, normal
from support.calls import (
    HAS_TEST_HOOKS,
    NO_TEST_HOOKS,
    TIERS,
    activate_on,
    is_native,
    linear_on,
    needs_test_hooks,
    threads_for_any_work,
)
from support.comparisons import assert_same_bits
from support.formulas import ACTIVATIONS
from support.processes import run_python

from attnpy import _attnpy, attention
from attnpy._linear import linear
from attnpy._packed_weight import PackedWeight

UNIT = {"float64": 2.0**-53}  # of the arithmetic; float32's is the other one
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
N_ROWS = (1, 2, 3, 5, 8, 9, 16, 33, 64, 65, 130)


@pytest.fixture
def multiply(tier):
    """x @ weight + bias on one instruction set."""
    return functools.partial(linear_on, tier)


def assert_right(multiply, x, weight, bias=None):
    """Compare with float64 (float128 for float64), by the terms' magnitudes."""
    result = multiply(x, weight, bias)
    wide = np.longdouble if x.dtype == np.float64 else np.float64
    x, weight = x.astype(wide), weight.astype(wide)
    shift = 0 if bias is None else np.asarray(bias, wide)
    exact = x @ weight + shift
    terms = np.abs(x) @ np.abs(weight) + np.abs(shift)
    unit = UNIT.get(str(result.dtype), 2.0**-24)
    bound = 4 * unit * (1 + np.sqrt(x.shape[-1])) * terms
    bound += ROUNDING.get(str(result.dtype), 0) * np.abs(exact)
    assert result.shape == exact.shape
    assert (np.abs(result.astype(wide) - exact) <= bound + 1e-300).all()
    return result


@pytest.mark.quick(n_rows=(1, 33))
@pytest.mark.parametrize("n_rows", N_ROWS)
def test_results_are_right_for_any_number_of_rows(multiply, dtype, n_rows):
    x, weight = normal(n_rows, 150, dtype=dtype), normal(150, 40, dtype=dtype)
    assert assert_right(multiply, x, weight, normal(40)).dtype == dtype


@pytest.mark.quick(n_in=(129,))
@pytest.mark.parametrize("n_rows", [1, 20])
@pytest.mark.parametrize("n_in", [1, 2, 15, 16, 17, 127, 128, 129, 257])
def test_results_are_right_for_any_length_of_a_row(multiply, dtype, n_rows, n_in):
    x, weight = normal(n_rows, n_in, dtype=dtype), normal(n_in, 21, dtype=dtype)
    assert_right(multiply, x, weight)


@pytest.mark.floats
@pytest.mark.quick(n_out=(385,))
@pytest.mark.parametrize("n_rows", [1, 4, 8, 20])
@pytest.mark.parametrize("n_out", [1, 12, 16, 383, 384, 385, 513, 4097])
def test_results_are_right_for_any_number_of_columns(multiply, n_rows, n_out):
    assert_right(multiply, normal(n_rows, 9), normal(9, n_out), normal(n_out))


@pytest.mark.quick(n_in=(130,))
@pytest.mark.parametrize("n_in", [5, 130, 301])
def test_a_row_has_the_same_bits_among_any_rows(multiply, dtype, n_in):
    x, weight = normal(70, n_in, dtype=dtype), normal(n_in, 50, dtype=dtype)
    bias = normal(50)
    together = multiply(x, weight, bias)
    for n_rows in (1, 2, 3, 7, 8, 9, 33):
        assert_same_bits(multiply(x[:n_rows], weight, bias), together[:n_rows])
        assert_same_bits(multiply(x[-n_rows:], weight, bias), together[-n_rows:])


@pytest.mark.quick
@pytest.mark.parametrize("n_rows", [1, 5, 90])
def test_every_tier_has_the_bits_of_the_scalar_tier(dtype, n_rows):
    x, weight = normal(n_rows, 300, dtype=dtype), normal(300, 70, dtype=dtype)
    expected = linear_on("scalar", x, weight, normal(70))
    for name in TIERS:
        if not is_native(name, dtype):
            assert_same_bits(linear_on(name, x, weight, normal(70)), expected)


@pytest.mark.quick(n_rows=(9,))
@pytest.mark.parametrize("n_rows", [1, 8, 9, 300])
def test_threads_change_no_bit(multiply, dtype, n_rows):
    x, weight = normal(n_rows, 200, dtype=dtype), normal(200, 900, dtype=dtype)
    expected = multiply(x, weight)
    with threads_for_any_work():
        for num_threads in (2, 3, 7):
            actual = multiply(x, weight, num_threads=num_threads)
            assert_same_bits(actual, expected)


@pytest.mark.quick(shape=((5, 131, 50), (70, 300, 33)))
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 7), (1, 300, 385), (5, 131, 50), (8, 64, 1), (16, 2, 47), (70, 300, 33),
     (130, 129, 48), (64, 256, 400)],
)  # fmt: skip
def test_transposed_matrices_change_no_bit(multiply, dtype, shape):
    n_rows, n_in, n_out = shape
    x, weight = normal(n_rows, n_in, dtype=dtype), normal(n_in, n_out, dtype=dtype)
    expected = multiply(x, weight)
    room = np.zeros((n_out + 2, n_in + 5), dtype)
    room[1:-1, 1:-4] = weight.T  # with an odd number of elements before and behind
    columns, rows = np.asfortranarray(weight), np.asfortranarray(x)
    upward = np.ascontiguousarray(weight.T[::-1])[::-1].T
    for given in (columns, room[1:-1, 1:-4].T, upward):
        assert_same_bits(multiply(x, given), expected)
    assert_same_bits(multiply(rows, weight), expected)
    assert_same_bits(multiply(rows, columns, num_threads=2), expected)


@pytest.mark.quick(n_rows=(136, 144))
@pytest.mark.parametrize("width", [160, 512, 700])
@pytest.mark.parametrize("n_rows", [130, 136, 144])
def test_rows_that_are_columns_change_no_bit(multiply, dtype, n_rows, width):
    # Near ones are read where they lie, others are copied, 16 or fewer at a time.
    tokens, weight = normal(270, width, dtype=dtype), normal(270, 100, dtype=dtype)
    for columns in (tokens[:, 3 : 3 + n_rows], tokens[::-1, -n_rows:]):
        x = np.ascontiguousarray(columns.T)
        assert_same_bits(multiply(columns.T, weight), multiply(x, weight))


@pytest.mark.quick
@pytest.mark.parametrize(
    "shape", [(1, 1), (17, 7), (127, 33), (256, 64), (2053, 17), (9, 4200)]
)
def test_few_rows_have_the_bits_of_packed_weights(multiply, dtype, shape):
    # 2048 elements of a column that is a line are taken at a time, in whole vectors.
    rows, weight = normal(17, shape[0], dtype=dtype), normal(*shape, dtype=dtype)
    bias = normal(shape[1])
    room = np.zeros((shape[1] + 1, shape[0] + 3), dtype)
    room[:-1, 3:] = weight.T
    matrices = [
        np.asfortranarray(weight),  # as PyTorch has it
        weight,
        room[:-1, 3:].T,
        np.ascontiguousarray(weight.T[::-1])[::-1].T,
        np.repeat(weight.T, 2, axis=1)[:, ::2].T,
    ]
    for n_rows in range(1, 18):
        x = rows[-n_rows:]
        expected = multiply(x, PackedWeight(weight), bias)
        for matrix in matrices[: 2 if n_rows % 4 else None]:
            assert_same_bits(multiply(x, matrix, bias), expected)


@pytest.mark.quick
@pytest.mark.parametrize("n_rows", [1, 5])
def test_threads_share_the_columns_of_few_rows(multiply, dtype, n_rows):
    x, weight = normal(n_rows, 140, dtype=dtype), normal(140, 615, dtype=dtype)
    options = {"activation": "silu", "times": normal(n_rows, 615, dtype=dtype)}
    expected = multiply(x, PackedWeight(weight), **options)
    with threads_for_any_work():
        for num_threads in (1, 2, 3, 7):
            actual = multiply(
                x, np.asfortranarray(weight), **options, num_threads=num_threads
            )
            assert_same_bits(actual, expected)


@pytest.mark.quick
@pytest.mark.parametrize("n_rows", [2, 40])
def test_strides_change_no_bit(multiply, dtype, n_rows):
    x, weight = normal(3, n_rows, 20, dtype=dtype), normal(20, 30, dtype=dtype)
    bias = normal(30)
    expected = multiply(x, weight, bias)
    for order, steps in (
        ((2, 0, 1), (1, 2, 1)),
        ((1, 2, 0), (-1, 1, 3)),
        (None, (2, -1, -2)),
    ):
        assert_same_bits(multiply(lay_out(x, order, steps), weight, bias), expected)
    for order, steps in (((1, 0), (1, 1)), ((0, 1), (2, 3)), ((0, 1), (1, -1))):
        moved = lay_out(weight, order, steps)
        assert_same_bits(multiply(x, moved, lay_out(bias, None, (-2,))), expected)
    deep = np.broadcast_to(x, (2, *x.shape))
    assert_same_bits(multiply(deep, weight, bias), np.stack([expected] * 2))


@pytest.mark.parametrize("n_rows", [1, 20])
def test_nan_and_infinity_stay_in_their_rows_and_columns(multiply, n_rows):
    x, weight = normal(n_rows, 30), normal(30, 20)
    expected = multiply(x, weight)
    weight[3, 7] = np.nan
    result = multiply(x, weight)
    assert np.isnan(result[:, 7]).all()
    clean = np.arange(20) != 7
    assert_same_bits(result[:, clean], expected[:, clean])
    x[0, 5] = np.inf
    assert_same_bits(multiply(x, weight)[1:][:, clean], expected[1:][:, clean])


@pytest.mark.quick
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("kind", "allowed"), [("f4", 6), ("f8", 24)])
def test_activations_are_within_some_rounding_units(tier, name, kind, allowed):
    x = np.concatenate([np.linspace(-9, 9, 4001), -np.logspace(-20, 1, 300)])
    x = x.astype(kind)
    result = activate_on(tier, x, name)
    exact = ACTIVATIONS[name](x.astype(np.float64))
    relative = np.where(x < 0, 1 + np.square(x.astype(float)), 1) * np.abs(exact)
    bound = allowed * np.finfo(kind).eps / 2 * relative + np.finfo(kind).tiny
    assert (np.abs(result - exact) <= bound).all()
    assert_same_bits(result, activate_on("scalar", x, name))


@pytest.mark.quick
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_special_numbers(tier, name):
    for kind in ("f4", "f8"):
        most = np.finfo(kind).max
        x = np.array([np.inf, most, 0, -0.0, -most, -np.inf, np.nan], kind)
        result = activate_on(tier, x, name)
        limits = [np.inf, most, 0, 0, 0, 0]
        if name == "relu2":
            limits[1] = np.inf
        if name == "tanh":
            limits = [1, 1, 0, 0, -1, -1]
        np.testing.assert_array_equal(result, [*limits, np.nan])


@pytest.mark.quick
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("n_rows", [1, 20])
def test_a_fused_activation_has_the_bits_of_one_apart(tier, name, n_rows):
    for kind in ("f4", "f8"):
        x, weight = normal(n_rows, 30, dtype=kind), normal(30, 50, dtype=kind)
        apart = activate_on(tier, linear_on(tier, x, weight, normal(50)), name)
        fused = linear_on(tier, x, weight, normal(50), activation=name)
        assert_same_bits(fused, apart)


def test_another_activation_is_an_error():
    with pytest.raises(ValueError, match="activation: expected 'relu'"):
        linear(np.ones((2, 3)), np.ones((3, 5)), activation="selu")


@pytest.mark.quick
def test_no_rows_columns_or_terms(multiply, dtype):
    for shape, columns in (((0, 5), 3), ((4, 5), 0), ((0, 3, 5), 2)):
        result = multiply(np.zeros(shape, dtype), np.zeros((5, columns), dtype))
        assert result.shape == (*shape[:-1], columns)
    for n_rows in (2, 20):
        bias = normal(3)
        result = multiply(np.zeros((n_rows, 0), dtype), np.zeros((0, 3), dtype), bias)
        assert_same_bits(result, np.broadcast_to(bias.astype(dtype), (n_rows, 3)))


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(2, 1, 5, 4), (3, 1, 1, 4), (1, 2, 1, 3, 4)])
def test_strides_of_axes_of_one_mean_nothing(multiply, shape):
    # NumPy calls the swapped array contiguous, whatever the stride of its axis of 1.
    x, weight = normal(*shape), normal(4, 3)
    for axes in itertools.combinations(range(len(shape) - 1), 2):
        swapped = x.swapaxes(*axes)
        assert_same_bits(
            multiply(swapped, weight), multiply(np.array(swapped, order="C"), weight)
        )


def test_a_single_row_has_one_axis(multiply):
    x, weight = normal(30), normal(30, 20)
    assert_same_bits(multiply(x, weight), multiply(x[None], weight)[0])


@pytest.mark.quick
def test_dtypes_promote():
    x, weight = normal(3, 4), normal(4, 5)
    assert linear(x.astype("f8"), weight).dtype == np.float64
    assert linear(x.astype("f2"), weight).dtype == np.float32
    assert linear(x.astype("f2"), weight.astype("f2"), normal(5)).dtype == np.float16
    assert linear([[1, 2]], [[1], [2]], [1]).tolist() == [[6.0]]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.ones((2, 3)), np.ones((4, 5))), ValueError, r"x: expected \(\.\.\., 4\)"),
        ((np.ones((2, 3)), np.ones(3)), ValueError, r"weight: expected \(K, M\)"),
        ((np.float64(1), np.ones((1, 1))), ValueError, "x: expected"),
        ((np.ones((2, 3)), np.ones((3, 5)), np.ones(4)), ValueError, r"bias: .*\(5,\)"),
        ((np.ones((2, 3)), np.ones((3, 5)), 1.0), ValueError, r"bias: .*\(5,\)"),
        ((np.ones((2, 3)), np.ones((3, 5), complex)), TypeError, "weight: expected"),
        ((np.array(["a"]), np.ones((1, 5))), TypeError, "x: expected"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        linear(*arguments)


def test_bad_numbers_of_threads_are_errors():
    with pytest.raises(ValueError, match="num_threads"):
        linear(np.ones((2, 3)), np.ones((3, 5)), num_threads=0)


GUARDED = """
import sys
import numpy as np
from support.calls import linear_on
from support.guarded import hold

for n_rows, n_in, n_out in ((1, 33, 70), (3, 9, 16), (20, 130, 50), (70, 17, 13)):
    for kind in ("f4", "f8", "f2"):
        for at_end in (False, True):
            x = hold("x", np.ones((n_rows, n_in), kind), at_end)
            weight = hold("weight", np.ones((n_in, n_out), kind), at_end)
            bias = hold("bias", np.ones(n_out, kind), at_end)
            result = linear_on(sys.argv[1], x, weight, bias)
            assert (result == n_in + 1).all()
            x = hold("x", np.ones((n_in, n_rows), kind), at_end).T
            weight = hold("weight", np.ones((n_out, n_in), kind), at_end).T
            result = linear_on(sys.argv[1], x, weight, bias)
            assert (result == n_in + 1).all()
print("done")
"""


def test_no_byte_outside_the_arrays_is_read(tier):
    done = run_python(GUARDED, tier)
    assert done.stdout.strip() == "done", done.stderr[-2000:]


# ---- What is done last ---------------------------------------------------------------


@pytest.mark.quick(shape=((3, 130, 40), (70, 20, 300)))
@pytest.mark.parametrize(
    "shape", [(1, 5, 1), (3, 130, 40), (8, 9, 700), (9, 17, 33), (70, 20, 300)]
)
def test_factors_and_summands_are_steps_of_their_own(multiply, dtype, shape):
    n_rows, n_in, n_out = shape
    x, weight = normal(n_rows, n_in, dtype=dtype), normal(n_in, n_out, dtype=dtype)
    times, residual = normal(n_rows, n_out, dtype=dtype), normal(n_rows, n_out, seed=1)
    options = {"bias": normal(n_out), "activation": "silu"}
    wide = multiply(x, weight, precision="wide", **options)
    real = np.result_type(dtype, np.float32) if dtype.kind == "f" else np.float32
    assert wide.dtype == real
    both = wide * times.astype(real) + residual.astype(real)
    for given, expected in (
        ({"times": times}, wide * times.astype(real)),
        ({"residual": residual}, wide + residual.astype(real)),
        ({"times": times, "residual": residual}, both),
        ({"times": lay_out(times, (1, 0), (2, -1)), "residual": residual}, both),
    ):
        actual = multiply(x, weight, **given, **options)
        assert_same_bits(actual, expected.astype(dtype))
        actual = multiply(x, weight, **given, precision="wide", **options)
        assert_same_bits(actual, expected)


@pytest.mark.quick
@pytest.mark.parametrize("n_rows", [2, 90])
def test_wider_rows_of_a_narrow_product_may_be_rounded_first(tier, dtype, n_rows):
    if dtype.itemsize != 2:
        pytest.skip("of 16-bit weights")
    weight, exact = normal(131, 50, dtype=dtype), normal(n_rows, 131)
    rounded = exact.astype(dtype)
    for x in (exact, lay_out(exact, (1, 0)), lay_out(exact, None, (1, 2))):
        narrow = linear_on(tier, x, weight, precision="narrow")
        assert narrow.dtype == dtype
        if is_native(tier, dtype):
            assert_same_bits(narrow, linear_on(tier, rounded, weight))
        else:
            assert_same_bits(narrow, linear_on(tier, x, weight).astype(dtype))
    same = linear_on(tier, rounded.astype(np.float32), weight, precision="narrow")
    assert_same_bits(same, linear_on(tier, rounded, weight))
    promoted = linear_on(tier, exact, weight)
    assert promoted.dtype == np.float32
    assert_same_bits(promoted, linear_on(tier, exact, weight.astype(np.float32)))


@pytest.mark.quick
def test_factors_and_summands_that_do_not_fit():
    x, weight = normal(2, 3, 5), normal(5, 4)
    for name in ("times", "residual"):
        for wrong in (normal(2, 3, 5), normal(3, 4), normal(2, 3, 4, 1), normal(4)):
            with pytest.raises(ValueError, match=f"^{name}: expected the shape of"):
                linear(x, weight, **{name: wrong})
        with pytest.raises(TypeError, match=f"^{name}: "):
            linear(x, weight, **{name: np.full((2, 3, 4), "a")})
    with pytest.raises(ValueError, match=r"^precision: "):
        linear(x, weight, precision="high")
    five = normal(2, 2, 2, 2, 5)
    residual = normal(2, 2, 2, 2, 4)
    expected = linear(five, weight) + residual
    assert_same_bits(
        linear(five, weight, residual=lay_out(residual, (4, 3, 2, 1, 0))), expected
    )


@pytest.fixture
def multiply_with():
    """x @ weight, in the form for many rows or without it."""
    if not HAS_TEST_HOOKS:
        pytest.skip(NO_TEST_HOOKS)
    before = _attnpy.set_tuning("many_rows", False)

    def multiply(many_rows, *arguments, **options):
        _attnpy.set_tuning("many_rows", many_rows)
        return linear(*arguments, **options)

    yield multiply
    _attnpy.set_tuning("many_rows", before)


@pytest.mark.quick(shape=((150, 261, 390),))
@pytest.mark.parametrize(
    "shape",
    [
        (5, 385, 130),
        (9, 129, 100),
        (20, 129, 100),
        (65, 129, 13),
        (113, 128, 6),
        (150, 261, 390),
        (600, 385, 50),
        (270, 2100, 400),
    ],
)
def test_the_form_for_many_rows_changes_no_bit(multiply_with, dtype, shape):
    n_rows, n_in, n_out = shape
    x, weight = normal(n_rows, n_in, dtype=dtype), normal(n_in, n_out, dtype=dtype)
    bias, residual = normal(n_out), normal(n_rows, n_out, dtype=dtype)
    expected = multiply_with(False, x, weight, bias, residual=residual)
    matrices = (
        weight,
        np.asfortranarray(weight),
        weight[::-1][::-1],
        PackedWeight(weight),
    )
    with threads_for_any_work():
        for rows, matrix in itertools.product((x, np.asfortranarray(x)), matrices):
            for num_threads in (1, 2, 3):
                given = {"residual": residual, "num_threads": num_threads}
                actual = multiply_with(True, rows, matrix, bias, **given)
                assert_same_bits(actual, expected)


@pytest.mark.parametrize(
    ("shape", "many_rows", "n_tasks"),
    [
        ((16, 64, 480), False, 2),  # all rows, half of the columns
        ((16, 64, 480), True, 2),
        ((16, 64, 48), False, 1),  # a panel of columns, and rows that are one tile
        ((16, 64, 48), True, 2),  # 8 rows each
        ((128, 64, 480), False, 2),
        ((128, 64, 480), True, 2),
        ((100, 64, 480), False, 4),  # 64 and 36 rows, half of the columns
        ((100, 64, 480), True, 2),
        ((300, 64, 480), False, 10),  # 64 and 44 rows, half of the columns
        ((300, 64, 480), True, 2),  # 152 and 148 rows
        ((2176, 16, 96), True, 10),  # 216 and 224 rows: 9 times 256 would not be even
    ],
)
def test_threads_have_even_shares_of_a_product(
    multiply_with, shape, many_rows, n_tasks
):
    if many_rows and not TIERS[0].startswith("avx512"):
        pytest.skip("this instruction set has no form for many rows, or its own sizes")
    n_rows, n_in, n_out = shape
    x, weight = normal(n_rows, n_in), normal(n_in, n_out)
    notes = np.zeros((100, 3), np.int64)

    def count(num_threads):
        call = functools.partial(
            multiply_with, many_rows, x, weight, num_threads=num_threads
        )
        return _attnpy.watch_tasks(call, notes)

    with threads_for_any_work():
        assert count(2) == n_tasks
        assert count(1) == -(-n_rows // (256 if many_rows else 64))


# Rows of a task in the form for many rows, which the CPU's default tier takes.
MANY_ROWS = {"avx512": 256, "avx512_vnni": 256, "avx512_bf16": 256} | {
    "avx_vnni": 128,
    "avx2": 128,
}


@needs_test_hooks
@pytest.mark.skipif(TIERS[0] not in MANY_ROWS, reason="has no such form, or own sizes")
@pytest.mark.parametrize("packs", [False, True])
def test_many_rows_take_the_form_for_them(packs):
    weight = normal(64, 96)
    call = functools.partial(
        linear,
        normal(1024, 64),
        PackedWeight(weight) if packs else weight,
        num_threads=1,
    )
    n = _attnpy.watch_tasks(call, np.zeros((99, 3), np.int64))
    assert n == 1024 // MANY_ROWS[TIERS[0]]


@needs_test_hooks
@pytest.mark.parametrize("n_threads", [4, 7, 8, 13, 16])
@pytest.mark.parametrize(
    "shape", [(4, 1024, 1536), (128, 384, 1536), (256, 512, 1024), (2048, 64, 384)]
)
def test_many_threads_have_tasks_left_when_one_of_them_is_late(shape, n_threads):
    n_rows, n_in, n_out = shape
    call = functools.partial(linear, normal(n_rows, n_in), normal(n_in, n_out))
    n = _attnpy.watch_tasks(
        functools.partial(call, num_threads=n_threads), np.zeros((9, 3), np.int64)
    )
    assert 1.2 * n_threads < n <= 12 * n_threads
    assert_same_bits(call(num_threads=n_threads), call(num_threads=1))


@pytest.mark.quick(shape=((2, 97, 130, 400),))
@pytest.mark.parametrize(
    "shape", [(1, 96, 131, 48), (2, 97, 130, 400), (3, 171, 257, 100), (2, 96, 0, 96)]
)
@pytest.mark.parametrize("activation", [None, "gelu", "silu", "gelu_tanh", "relu"])
def test_the_form_for_many_rows_finishes_outputs_in_the_same_bits(
    multiply_with, dtype, activation, shape
):
    n_batch, n_rows, n_in, n_out = shape
    x, weight = normal(n_batch, n_rows, n_in, dtype=dtype), normal(n_in, n_out)
    weight, bias = weight.astype(dtype), normal(n_out)
    times, residual = normal(n_batch, n_rows, n_out, dtype=dtype), normal(1, 1, n_out)
    apart = np.zeros((n_batch, n_rows + 1, n_out), dtype)[:, 1:]
    apart[:] = times
    choices = (
        {},
        {"bias": bias},
        {"bias": lay_out(bias, (0,), (-2,))},
        {"residual": times},
        {"residual": apart, "bias": bias},
        {"residual": np.broadcast_to(residual, times.shape), "times": times},
        {"residual": lay_out(times, (2, 1, 0)), "times": apart, "bias": bias},
    )
    for given, precision in itertools.product(choices, ("promoted", "wide")):
        options = {"activation": activation, "precision": precision, **given}
        expected = multiply_with(False, x, weight, **options)
        for matrix in (weight, PackedWeight(weight)):
            for num_threads in (1, 3):
                options["num_threads"] = num_threads
                with threads_for_any_work():
                    actual = multiply_with(True, x, matrix, **options)
                assert_same_bits(actual, expected)


@pytest.mark.quick(n_rows=(96,))
@pytest.mark.parametrize("n_rows", [96, 97, 264])
def test_the_form_for_many_rows_reads_rows_of_any_stride(multiply_with, dtype, n_rows):
    larger = normal(2, n_rows + 3, 140, dtype=dtype)
    weight = PackedWeight(normal(131, 60, dtype=dtype))
    for x in (larger[:, :n_rows, :131], larger[::-1, 3:, 9:], larger[:1, 3:, 4:135]):
        expected = multiply_with(False, np.ascontiguousarray(x), weight)
        for num_threads in (1, 2):
            actual = multiply_with(True, x, weight, num_threads=num_threads)
            assert_same_bits(actual, expected)


@pytest.fixture
def read_once():
    """Set whether what is read once is prefetched so, until the test ends."""
    if not HAS_TEST_HOOKS:
        pytest.skip(NO_TEST_HOOKS)
    before = _attnpy.set_tuning("read_once", False)
    soon = _attnpy.set_tuning("read_soon", False)  # which comes first
    yield functools.partial(_attnpy.set_tuning, "read_once")
    _attnpy.set_tuning("read_once", before)
    _attnpy.set_tuning("read_soon", soon)


@pytest.mark.parametrize("n_rows", [1, 3, 8, 12])
def test_reading_once_changes_no_bit(read_once, dtype, n_rows):
    x, weight = normal(n_rows, 261, dtype=dtype), normal(261, 130, dtype=dtype)
    keys = normal(2, 2, 4100, 40, dtype=dtype)  # more than the second cache holds

    def results():
        for matrix in (weight, PackedWeight(weight)):
            yield linear(x, matrix)
        for key in (keys, keys[..., ::-1], keys[:, :, ::2]):
            yield attention(keys[:, :, :n_rows], key, key)

    assert read_once(False) is False
    expected = list(results())
    assert read_once(True) is False
    for actual, one in zip(results(), expected, strict=True):
        assert_same_bits(actual, one)


@needs_test_hooks
@pytest.mark.parametrize("n_rows", [1, 3])
def test_reading_float16_keys_once_changes_no_bit(read_once, n_rows):
    keys = normal(2, 2, 4100, 40).astype(np.float16)
    read_once(False)
    before = _attnpy.set_tuning("read_halves_once", False)
    expected = attention(keys[:, :, :n_rows], keys, keys)
    assert _attnpy.set_tuning("read_halves_once", True) is False
    actual = attention(keys[:, :, :n_rows], keys, keys)
    _attnpy.set_tuning("read_halves_once", before)
    assert_same_bits(actual, expected)


@needs_test_hooks
@pytest.mark.parametrize("n_rows", [1, 2, 4, 8])
@pytest.mark.parametrize("tuning", ["read_bursts", "read_soon", "read_far_soon"])
def test_when_keys_are_read_changes_no_bit(read_once, dtype, n_rows, tuning):
    n_keys = 33600 // np.dtype(dtype).itemsize  # with values, more than 16 MiB
    keys = normal(2, 2, n_keys, 64, dtype=dtype)
    wide = normal(2, 2, n_keys, 128, dtype=dtype)
    query = keys[:, :, :n_rows]
    turned = [(keys[..., ::-1], keys), (keys, keys[:, :, ::-1])]
    calls = [(keys, wide), (keys, keys), *turned]

    hidden = np.arange(n_keys) % 1000 > 250  # whole blocks, and parts of some

    def results():
        found = [attention(query, *call) for call in calls]
        masked = attention(query, keys, keys, mask=hidden, kv_lengths=n_keys - 77)
        return [*found, masked]

    read_once(False)
    tunings = ["read_bursts", "read_far_soon"]
    before = [_attnpy.set_tuning(name, False) for name in tunings]
    expected = results()
    assert _attnpy.set_tuning(tuning, True) is False
    actual = results()
    for name, value in zip(tunings, before, strict=True):
        _attnpy.set_tuning(name, value)
    for one, other in zip(actual, expected, strict=True):
        assert_same_bits(one, other)


@needs_test_hooks
@pytest.mark.parametrize("n_rows", [1, 2])
def test_leaving_prefetches_to_the_cpu_changes_no_bit(dtype, n_rows):
    x, weight = normal(n_rows, 261, dtype=dtype), normal(261, 130, dtype=dtype)
    matrices = weight, PackedWeight(weight)
    before = _attnpy.set_tuning("read_alone", False)
    expected = [linear(x, matrix) for matrix in matrices]
    assert _attnpy.set_tuning("read_alone", True) is False
    actual = [linear(x, matrix) for matrix in matrices]
    _attnpy.set_tuning("read_alone", before)
    for one, other in zip(actual, expected, strict=True):
        assert_same_bits(one, other)


@needs_test_hooks
def test_a_tuning_is_set_by_a_flag():
    with pytest.raises(TypeError, match="value: expected True or False, got 1"):
        _attnpy.set_tuning("many_rows", 1)
    for name in ("few_rows", 1, None):
        with pytest.raises(ValueError, match="name: expected 'many_rows', 'read"):
            _attnpy.set_tuning(name, True)
