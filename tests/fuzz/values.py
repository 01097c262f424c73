"""What arguments are made of: right ones stored in every way, and wrong ones."""

import decimal
import fractions

import numpy as np
from numpy.lib.stride_tricks import as_strided
from support.arrays import (
    DTYPES,
    byte_swapped,
    dtype_of,
    lay_out,
    misaligned,
    read_only,
)

SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
FLOATS = tuple(dtype_of(name) for name in DTYPES)
INTEGERS = tuple(np.dtype(code) for code in "bBhHiIlL?")


class Subclass(np.ndarray):
    """An array of another class."""


class Convertible:
    """What is an array only when it is asked."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class Failing:
    """Raises its error, whatever it is asked."""

    def __init__(self, error):
        self.error = error

    def fail(self, *arguments, **options):
        raise self.error("a fuzzer's own")

    __array__ = __index__ = __float__ = __bool__ = __len__ = __iter__ = fail
    __int__ = __getitem__ = __eq__ = __complex__ = fail
    __hash__ = None


def one_of(rng, choices):
    return choices[int(rng.integers(len(choices)))]


def maybe(rng, share=0.5):
    return rng.random() < share


def size(rng, largest=33):
    return one_of(rng, [n for n in SIZES if n <= largest])


def numbers(rng, shape, dtype):
    """Random numbers of any dtype."""
    drawn = rng.standard_normal(shape)
    if dtype.kind in "biu":
        drawn = np.abs(np.round(3 * drawn))
    return drawn.astype(dtype)


def dtypes(rng, n):
    """As many dtypes, often the same; integers and booleans among them."""
    if maybe(rng, 0.8):
        return [one_of(rng, FLOATS)] * n
    return [one_of(rng, FLOATS + INTEGERS) for _ in range(n)]


def mix(dtypes):
    """Have they no common dtype? Then a call with them is an error."""
    names = {dtype.name for dtype in dtypes}
    return {"float16", "bfloat16"} <= names or (
        "bfloat16" in names and any(dtype.kind in "iu" for dtype in dtypes)
    )


def stored(rng, array):
    """Equal numbers (or all those of one row), in another way."""
    way = int(rng.integers(12))
    if array.ndim and way in (0, 1):
        steps = [one_of(rng, (1, 2, 3, -1, -2)) for _ in range(array.ndim)]
        return lay_out(array, tuple(rng.permutation(array.ndim)), steps)
    if way == 2:
        return misaligned(array)
    if way == 3 and array.dtype.name != "bfloat16":
        return byte_swapped(array)
    if way == 4:
        return read_only(array)
    if way == 5:
        return array.view(Subclass)
    if way == 6 and array.size and array.dtype == np.float64:
        return array.tolist()
    if way == 7:
        return Convertible(array)
    if way == 8 and array.ndim and len(array):
        return np.broadcast_to(array[:1], array.shape)
    if way == 9:  # the stride of one element means nothing
        strides = [
            step if n > 1 else int(rng.integers(-(2**40), 2**40))
            for n, step in zip(array.shape, array.strides, strict=True)
        ]
        return as_strided(array, array.shape, strides)
    return array


def wrong(rng, value):
    """An argument in the place of this one; almost always a wrong one."""
    if isinstance(value, np.ndarray) and maybe(rng, 0.6):
        return wrong_array(rng, value)
    makers = (
        lambda: None,
        lambda: bool(maybe(rng)),
        lambda: one_of(
            rng, (0, 1, -1, 2, 7, 255, 2**31, 2**62, 2**63, 2**64, -(2**63))
        ),
        lambda: one_of(rng, (0.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e308, 5e-324)),
        lambda: one_of(rng, ("", "x", "bottom_right", "gelu", "ä\0", "\ud800", b"x")),
        lambda: one_of(
            rng, ([], (), {}, set(), [[]], [1, [2]], (None, None), (1, 2, 3))
        ),
        lambda: one_of(rng, ((-1, 0), (2**63, None), ("a", 1), (0.5, 1), [1, 2], (1,))),
        lambda: one_of(rng, (object(), type, len, Ellipsis, NotImplemented, slice(1))),
        lambda: one_of(
            rng, (decimal.Decimal(1), fractions.Fraction(1, 2), 1j, range(3))
        ),
        lambda: one_of(
            rng, (np.float32(2), np.int8(-3), np.bool_(True), np.uint64(2**63))
        ),
        lambda: Failing(one_of(rng, (ValueError, TypeError, MemoryError))),
        lambda: Convertible(one_of(rng, (None, 3, [1.0], np.zeros(3)))),
        lambda: odd_array(rng, tuple(size(rng, 4) for _ in range(rng.integers(5)))),
        lambda: memoryview(b"1234"),
        lambda: np.zeros((1,) * int(rng.integers(5, 33))),
        lambda: np.ma.masked_array(np.ones(3), [0, 1, 0]),
    )
    return one_of(rng, makers)()


ODD = (
    "c8",
    "c16",
    "O",
    "S3",
    "U3",
    "V4",
    "M8[s]",
    "m8[s]",
    "g",
    "i1,f4",
    "?",
    "i4",
    "u8",
)


def odd_array(rng, shape):
    """An array of a dtype that is seldom meant."""
    code = one_of(rng, (*ODD, ">f4", ">i8", ">f2", "f8", "f4", "f2"))
    array = np.zeros(shape, code)
    if code == "O" and maybe(rng):
        array[...] = one_of(rng, (1.5, "x", None, 2**70))
    return array


def wrong_array(rng, array):
    """The array in a shape or a dtype that it should not have."""
    way = int(rng.integers(9))
    if array.size > 2**20:  # one of those below already
        return array
    if way == 0:
        return array[np.newaxis]
    if way == 1 and array.ndim:
        return array[0] if len(array) else array.reshape((*array.shape[1:], 0))
    if way == 2 and array.ndim:
        axis = int(rng.integers(array.ndim))
        return np.repeat(array, 2, axis) if maybe(rng) else array.take([], axis)
    if way == 3:
        return array.swapaxes(0, -1) if array.ndim else array
    if way == 4:
        return odd_array(rng, array.shape)
    if way == 5 and array.dtype.kind == "f":
        return np.full_like(array, one_of(rng, (np.nan, np.inf, -np.inf, 6e4)))
    if way == 6:  # larger than any memory, with all elements in one place
        n = one_of(rng, (2**45, 2**50, 2**62 // max(1, array.itemsize)))
        shape, strides = (n, *array.shape[1:]), (0,) * max(1, array.ndim)
        if array.size and np.prod(shape, dtype=float) * array.itemsize < 2**62:
            return as_strided(array, shape, strides)
        return array
    if way == 7:
        return array.ravel()
    if array.dtype.kind in "biuf":
        return array.astype(one_of(rng, FLOATS + INTEGERS))
    return odd_array(rng, array.shape)
