"""The extension module with wrong arguments, such as the package never passes."""

import functools

import numpy as np
import pytest
from support.calls import HAS_TEST_HOOKS, TEST_HOOKS
from support.processes import assert_runs
from support.right_calls import right_calls

from attnpy import _attnpy

NO_CALLS = {"answer_xla", "array_at", "config", "get_num_threads", "get_portable"}
NO_CALLS |= {"groups"}


WRONG = (
    None,
    True,
    -1,
    2.5,
    2**70,
    "text",
    b"text",
    object(),
    (),
    [],
    {},
    np.array("text"),
    np.array(None),
    np.zeros(0, np.float32),
    np.zeros((0, 0, 0), np.float32),
    np.array(1j),
    np.ones((1,) * 32, np.float32),
)


# What the module says, or NumPy and Python of what they convert and call for it.
SAYS = ("expected", "argument", "convert", "inhomogeneous", "callable")


def spoilt(arguments):
    """The arguments, each time with one of them, or of a group, replaced or gone."""
    for i, one in enumerate(arguments):
        before, after = arguments[:i], arguments[i + 1 :]
        for wrong in WRONG:
            yield (*before, wrong, *after)
        if isinstance(one, tuple):
            for inner in spoilt(tuple(one)):
                yield (*before, inner, *after)
    yield arguments[:-1]
    yield (*arguments, None)


def test_every_function_is_called():
    names = {name for name in vars(_attnpy) if not name.startswith("_")}
    assert names == set(right_calls()) | NO_CALLS


def test_the_test_hooks_are_all_there_or_none_is():
    expected = TEST_HOOKS if HAS_TEST_HOOKS else set()
    assert TEST_HOOKS & vars(_attnpy).keys() == expected


@pytest.mark.quick
@pytest.mark.parametrize("name", right_calls())
def test_the_calls_are_right(name):
    for arguments in right_calls()[name]:
        getattr(_attnpy, name)(*arguments)


SPOIL = """
import sys
import test_private_calls
test_private_calls.spoil(sys.argv[1])
"""


def spoil(name):
    """Make each of the calls: there is a result, or an error that says why."""
    function = functools.partial(getattr(_attnpy, name))
    n_errors = 0
    for arguments in right_calls()[name]:
        for wrong in spoilt(arguments):
            try:
                function(*wrong)
            except (TypeError, ValueError) as error:
                assert any(word in str(error) for word in SAYS), error
                n_errors += 1
    assert n_errors > 0


@pytest.mark.quick(name=("normalize", "normalize_vjp"))
@pytest.mark.parametrize("name", right_calls())
def test_wrong_arguments_are_an_error(name):
    assert_runs(SPOIL, name)


def test_memory_is_described_by_tuples():
    numbers = np.arange(6.0)
    place, dtype = numbers.ctypes.data, numbers.dtype
    array = _attnpy.array_at(place, (2, 2), (3, 1), dtype, numbers)
    np.testing.assert_array_equal(array, [[0, 1], [3, 4]])
    assert array.base is numbers
    for wrong in (
        ("0", (2,), None, dtype, None),
        (place, [2], None, dtype, None),
        (place, ("2",), None, dtype, None),
        (place, (2,), (1, 1), dtype, None),
        (place, (2,), (None,), dtype, None),
        (place, (-2,), None, dtype, None),
        (place, (2,), None, float, None),
        (place, (1,) * 65, None, dtype, None),
        (place, (2,), None, dtype),
    ):
        with pytest.raises((TypeError, ValueError)):
            _attnpy.array_at(*wrong)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "int64"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 3, 40, 7), (2, 70, 300, 90)])
def test_products_are_those_of_each(shape, name, n_threads):
    n, n_rows, n_in, n_out = shape
    generator = np.random.default_rng(0)
    x = generator.normal(size=(n, n_rows, n_in), scale=3).astype(name)
    weights = generator.normal(size=(n, n_out, n_in), scale=3).astype(name)
    for weight in (weights.transpose(0, 2, 1), weights.transpose(0, 2, 1).copy()):
        for rows in (x, x[:1], np.asfortranarray(x)):
            found = _attnpy.products(rows, weight, n_threads)
            for i in range(n):
                expected = _attnpy.linear(
                    rows[i % len(rows)], weight[i], *[None] * 4, "promoted", 1
                )
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found[i], expected)


def test_products_of_nothing():
    for shape in ((0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 3, 0)):
        n, n_rows, n_in, n_out = shape
        found = _attnpy.products(
            np.ones((n, n_rows, n_in)), np.ones((n, n_in, n_out)), 1
        )
        assert found.shape == (n, n_rows, n_out)
    found = _attnpy.products(np.ones((2, 3, 0)), np.ones((2, 0, 4)), 1)
    np.testing.assert_array_equal(found, np.zeros((2, 3, 4)))
