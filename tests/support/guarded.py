"""Arrays that touch inaccessible pages, and main(), which runs attention() on them.

Each array starts right after, or ends right before, a page that may not be read or
written, so that reading a single byte outside it is a segmentation fault. Run by
test_memory.py in a process of its own; the last line printed says what was running.
"""

import ctypes
import itertools
import mmap

import numpy as np

from support.arrays import normal
from support.calls import attend_on, everything, on_tier, vjp_on
from support.comparisons import assert_same_bits

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65)
KEYS = (*EDGES, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025)
DIMS = (*EDGES, 127, 128, 129)
ROWS = (*range(1, 11), 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65)


class Room:
    """Pages between two inaccessible ones, for one array at a time."""

    def __init__(self, n_bytes):
        self.size = -(-n_bytes // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.size + 2 * PAGE)
        self.bytes = np.frombuffer(self.map, np.uint8)
        first = self.bytes.ctypes.data
        for guard in (first, first + PAGE + self.size):
            if LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def hold(self, array, at_end):
        """A copy of array flush against the page behind it or before it."""
        assert array.nbytes <= self.size
        start = PAGE + (self.size - array.nbytes if at_end else 0)
        store = self.bytes[start : start + array.nbytes]
        held = np.ndarray(array.shape, array.dtype, store)
        held[...] = array
        return held


ROOMS = {}


def hold(name, array, at_end):
    """Put an array into the room of its argument."""
    if name not in ROOMS:
        ROOMS[name] = Room(2**21)
    return ROOMS[name].hold(array, at_end)


def same_as_outside(tier, arrays, options, at_end, view=lambda x: x):
    """Compare a call on guarded arrays with the same call on ordinary ones."""
    sizes = [(x.shape, str(x.dtype)) for x in arrays]
    print(tier, sizes, sorted(options), "end" if at_end else "start", flush=True)
    attend = on_tier(tier)
    expected = everything(attend, *map(view, arrays), **options)
    names = ("query", "key", "value")
    held = [hold(n, x, at_end) for n, x in zip(names, arrays, strict=True)]
    guarded = dict(options)
    for name in {"mask", "bias", "sinks", "kv_lengths", "q_offset"} & set(options):
        guarded[name] = hold(name, np.asarray(options[name]), at_end)
    same_gradients(tier, (arrays, held), (options, guarded), at_end, view)
    guarded["out"] = hold("out", np.full_like(expected[0], 7), at_end)
    assert_same_bits(everything(attend, *map(view, held), **guarded), expected)


def same_gradients(tier, arrays, options, at_end, view):
    """Compare gradients, as same_as_outside does results."""
    names = ("query", "key", "value")
    wanted = (*names, *({"bias", "sinks"} & set(options[0])))
    output, lse = on_tier(tier)(*map(view, arrays[0]), return_lse=True, **options[0])
    ordinary = {"output": output, "lse": lse, "grad_lse": lse}
    held = {name: hold(name, x, at_end) for name, x in ordinary.items()}
    grad = hold("grad_output", output, at_end)
    expected = vjp_on(
        tier, output, *map(view, arrays[0]), wanted=wanted, **ordinary, **options[0]
    )
    actual = vjp_on(
        tier, grad, *map(view, arrays[1]), wanted=wanted, **held, **options[1]
    )
    assert_same_bits(actual, expected)


def arrays(n_heads, n_queries, n_keys, dim, value_dim, dtype, n_kv_heads=None):
    """A problem's query, key and value."""
    n_kv_heads = n_kv_heads or n_heads
    return [
        normal(n_heads, n_queries, dim).astype(dtype),
        normal(n_kv_heads, n_keys, dim, seed=1).astype(dtype),
        normal(n_kv_heads, n_keys, value_dim, seed=2).astype(dtype),
    ]


def cases(dtype):
    """Arrays and options with one size after another at every boundary."""
    for n_rows in ROWS:
        yield arrays(1, n_rows, 17, 5, 3, dtype), {"causal": True}
        yield arrays(n_rows, 1, 17, 5, 3, dtype, n_kv_heads=1), {}
    for n_keys, n_rows in itertools.product(KEYS, (1, 4, 9, 17)):
        mask = np.arange(n_rows * n_keys).reshape(n_rows, n_keys) % 3 > 0
        bias = normal(n_rows, n_keys).astype(dtype)
        yield arrays(1, n_rows, n_keys, 3, 5, dtype), {"mask": mask}
        yield arrays(1, n_rows, n_keys, 3, 5, dtype), {"bias": bias}
        yield (
            arrays(2, n_rows, n_keys, 3, 1, dtype, n_kv_heads=1),
            {"bias": bias[-1], "mask": mask[0], "sinks": np.float32([0.5, 1])},
        )
    for dim, n_rows in itertools.product(DIMS, (1, 4, 9, 17)):
        yield arrays(1, n_rows, 18, dim, 3, dtype), {}
        yield arrays(1, n_rows, 18, 3, dim, dtype), {"window": (9, 3)}
        yield arrays(2, n_rows, 7, dim, dim, dtype, n_kv_heads=1), {"softcap": 2.0}
    lengths, offsets = np.array([0, 129, 65]), np.array([-3, 128, 40])
    for n_rows in (1, 4, 9, 17):
        one = arrays(2, n_rows, 130, 4, 4, dtype)
        batch = [np.stack([x, -x, x[::-1]]) for x in one]
        yield batch, {"kv_lengths": lengths, "q_offset": offsets, "causal": True}
    for n_keys, dim in itertools.product((1, 17, 129, 513), (1, 8, 17, 65)):
        ends = np.array([0, 3, 3, 3 + n_keys, 20 + n_keys])
        packed = arrays(2, ends[-1], ends[-1], dim, dim, dtype, n_kv_heads=1)
        yield packed, {"seq_offsets": ends, "causal": True}


def transposed(array):
    """The array with its last two axes swapped: strided, and flush all the same."""
    return np.swapaxes(array, -1, -2)


def backwards(array):
    """The array from its last element to its first."""
    return array[..., ::-1, ::-1]


def every_other(array):
    """Every second element of every second row, the first and the last included."""
    return array[..., ::2, ::2]


def same_integers(tier, n_rows, n_keys, dim, at_end):
    """Compare a call on guarded keys and values of int8 with one on ordinary ones."""
    print(tier, "int8", n_rows, n_keys, dim, "end" if at_end else "start", flush=True)
    integers = np.random.default_rng(0).integers(-127, 128, (2, 1, n_keys, dim))
    scales = normal(2, 1, n_keys)
    names = ("query", "key", "value", "key_scale", "value_scale")
    given = (normal(n_rows, 1, dim), *integers.astype(np.int8), *scales)
    outside = dict(zip(names, given, strict=True))
    inside = {name: hold(name, array, at_end) for name, array in outside.items()}
    assert_same_bits(attend_on(tier, **inside), attend_on(tier, **outside))


def main(tier):
    """Run all cases on one instruction set."""
    dtypes = [np.dtype(x) for x in ("f4", "f8", "f2")]
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        pass
    else:
        dtypes.append(np.dtype(bfloat16))
    for dtype in dtypes:
        for at_end in (True, False):
            for case, options in cases(dtype):
                same_as_outside(tier, case, options, at_end)
            for n_rows, n_keys, dim in itertools.product((1, 4, 17), (16, 33), (5, 9)):
                case = arrays(2, dim, dim, n_rows, n_keys, dtype)
                case[0] = normal(2, dim, n_rows).astype(dtype)
                case[1] = normal(2, dim, n_keys).astype(dtype)
                case[2] = normal(2, 7, n_keys).astype(dtype)
                same_as_outside(tier, case, {}, at_end, transposed)
                case = arrays(2, n_rows, n_keys, dim, 7, dtype)
                same_as_outside(tier, case, {}, at_end, backwards)
                case = arrays(2, 2 * n_rows - 1, 2 * n_keys - 1, 2 * dim - 1, 7, dtype)
                same_as_outside(tier, case, {}, at_end, every_other)
    for n_rows, n_keys, dim in itertools.product(
        (1, 4, 17), (1, 7, 9, 129), (1, 3, 4, 31, 33, 65)
    ):
        for at_end in (True, False):
            same_integers(tier, n_rows, n_keys, dim, at_end)
    print("done", flush=True)
