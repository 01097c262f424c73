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
