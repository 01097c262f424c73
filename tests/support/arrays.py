"""Arrays of numbers, and the ways in which they may be stored."""

import functools

import numpy as np
import pytest

from support.formulas import softmax

DTYPES = ("float32", "float64", "float16", "bfloat16")


def dtype_of(name):
    """The dtype of this name. Skips the test where bfloat16 is not installed."""
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def normal(*shape, dtype="float32", seed=0):
    """Standard normal numbers; the same for the same shape and seed."""
    return _drawn(shape, seed).astype(dtype)


@functools.lru_cache(maxsize=256)  # they are drawn again for every dtype
def _drawn(shape, seed):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def random_weights(*shape):
    """Rows of positive numbers that sum to 1."""
    return softmax(2 * normal(*shape, dtype="float64"))


def problem(
    n_heads, n_queries, n_keys, dim, value_dim, dtype="float32", n_kv_heads=None, seed=0
):
    """A query, a key and a value with three axes."""
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    return (
        normal(n_heads, n_queries, dim, dtype=dtype, seed=10 * seed + 1),
        normal(n_kv_heads, n_keys, dim, dtype=dtype, seed=10 * seed + 2),
        normal(n_kv_heads, n_keys, value_dim, dtype=dtype, seed=10 * seed + 3),
    )


def mask_and_bias(n_queries, n_keys):
    """A mask and a bias (4, n_queries, n_keys) whose heads see and hide in all ways."""
    mask = np.random.default_rng(1).random((4, n_queries, n_keys)) < 0.6
    mask[1] = True  # one head sees everything,
    mask[2, 3:6] = False  # some rows of another one nothing
    mask[3, :, 128:] = False
    bias = normal(4, n_queries, n_keys, seed=2)
    bias[:, :, 7] = -np.inf
    bias[0, 0] = -np.inf
    return mask, bias


def lay_out(array, order=None, steps=None):
    """A view that equals array, stored in another way.

    order: the axes from the outermost to the innermost in memory; steps: for each of
    array's axes how many slots apart its elements are, negative for backwards. What
    lies between the elements is NaN (True for booleans), so that it cannot be read
    unnoticed.
    """
    order = tuple(range(array.ndim)) if order is None else order
    steps = (1,) * array.ndim if steps is None else steps
    store = np.empty([array.shape[a] * abs(steps[a]) for a in order], array.dtype)
    store[...] = True if array.dtype.kind in "biu" else np.nan
    view = store.transpose(np.argsort(order))
    view = view[(..., *(slice(None, None, step) for step in steps))]
    view[...] = array
    return view


def layouts(array):
    """The same numbers, stored in other ways."""
    yield np.asfortranarray(array)
    yield array[..., ::-1].copy()[..., ::-1]
    apart = np.zeros((*array.shape, 2), array.dtype)
    apart[..., 0] = array
    yield apart[..., 0]


def misaligned(array):
    """An equal array that starts one byte off its alignment."""
    store = np.empty(array.nbytes + 1, np.uint8)
    view = np.ndarray(array.shape, array.dtype, store, offset=1)
    view[...] = array
    return view


def byte_swapped(array):
    """An equal array in the byte order of other machines."""
    return array.astype(array.dtype.newbyteorder())


def read_only(array):
    """An equal array that must not be written to."""
    array = array.copy()
    array.flags.writeable = False
    return array
