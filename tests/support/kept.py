"""Results in memory that held others before: none of the old numbers may be in them.

The memory of large results is kept for later ones (csrc/python/memory.c). Here are
calls with results of a given size, and a way to fill the memory that is kept.
"""

import functools

import numpy as np

import attnpy
from attnpy import blocks, classic, training
from attnpy._linear import linear
from attnpy._packed_weight import PackedWeight
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention
from attnpy.positions import Rotary
from support.pool import there_and_back

SMALLEST = 128 << 10  # bytes from which on memory is kept
N_EACH = 3  # arrays that are filled of each size
# NaN in every dtype, a number in every dtype, and 0.
PATTERNS = (0xFF, 0xA5, 0x00)


def capacity_of(n_bytes):
    """How many bytes an array is allocated: one of eight sizes per power of two."""
    step = 1
    while n_bytes / step > 16:
        step *= 2
    return -(-n_bytes // step) * step


def sizes_around(n_bytes):
    """Sizes around a limit, on both sides of which arrays get memory of other sizes."""
    capacity = capacity_of(n_bytes)
    return capacity - 64, capacity - 8, capacity, capacity + 8, capacity + 64


def fill_kept(capacities, pattern):
    """Fill kept memory of these sizes with a pattern; return its addresses."""
    arrays = []
    for capacity in capacities:
        x = np.zeros(capacity // 8, np.float64)
        arrays += [blocks.relu(x, num_threads=1) for _ in range(N_EACH)]
    for array in arrays:
        array.view(np.uint8)[...] = pattern
    return {array.ctypes.data for array in arrays}


def arrays_in(result):
    """The arrays of a result, inside tuples and lists too."""
    if isinstance(result, np.ndarray):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (tuple, list)):
        return [array for one in result for array in arrays_in(one)]
    return []


def calls(rows, width, dtype=np.float32, fill=None):
    """Calls by name, most with results of so many rows of this width.

    fill: what arguments are filled with, in place of random numbers.
    """
    rng = np.random.default_rng(0)

    def normal(*shape):
        drawn = rng.standard_normal(shape) if fill is None else np.full(shape, fill)
        return drawn.astype(dtype)

    x, grad = normal(1, rows, width), normal(1, rows, width)
    key, value, few = normal(1, 9, width), normal(1, 9, width), normal(1, 7, width)
    of_12 = normal(rows, 12)
    matrix, square, bias = normal(12, width), normal(width, width), normal(width)
    attention, vjp = (x, key, value), attnpy.attention_vjp
    mask = rng.random((1, 9, rows)) < 0.5
    norms = blocks.LayerNorm(width, dtype=dtype), blocks.RMSNorm(width, dtype=dtype)
    layer = MultiHeadAttention(width, 1, dtype=dtype, rng=rng)
    network = blocks.FeedForward(
        width, width, activation="swiglu", dtype=dtype, rng=rng
    )
    encoder = blocks.EncoderLayer(width, 1, width, dtype=dtype, rng=rng)

    def merged():
        output, lse = attnpy.attention(*attention, return_lse=True)
        return attnpy.merge([output] * 2, [lse] * 2)

    targets = rng.integers(0, width, (1, rows))
    every = {"return_weights": True, "return_lse": True}
    wide = {"return_weights": True, "mask": mask}
    packed = {"seq_offsets": ([0, 3, 7], [0, rows // 2, rows]), "causal": True}
    found = {
        "attention": lambda **n: attnpy.attention(*attention, **every, **n),
        "weights": lambda **n: attnpy.attention(value, x, x, **wide, **n),
        "hidden": lambda **n: attnpy.attention(*attention, kv_lengths=0, **every, **n),
        "packed": lambda **n: attnpy.attention(few, x, x, **packed, **n),
        "attention_vjp": lambda **n: vjp(grad, *attention, **n),
        "attention_vjp of keys": lambda **n: vjp(few, few, x, x, **n),
        "attention_vjp packed": lambda **n: vjp(few, few, x, x, **packed, **n),
        "Plan": lambda **n: attnpy.Plan(*attention, **every, **n)(),
        "attend_partial": lambda **n: attnpy.attend_partial(*attention, **n).finish(),
        "merge": merged,
        "statistics": lambda **n: attnpy.statistics(few, x, **n),
        "linear": functools.partial(linear, of_12, matrix, bias),
        "linear packed": functools.partial(linear, of_12, PackedWeight(matrix)),
        "linear wide": functools.partial(linear, few, normal(width, rows)),
        "activation": functools.partial(blocks.gelu, x),
        "activation_vjp": functools.partial(blocks.activation_vjp, grad, x, "silu"),
        "layer": functools.partial(layer, x, window=(1, 1)),
        "layer with cache": functools.partial(with_cache, layer, x, window=(1, 1)),
        "layer.vjp": functools.partial(there_and_back(layer.vjp), x, window=(1, 1)),
        "network": functools.partial(network, x),
        "network.vjp": functools.partial(there_and_back(network.vjp), x),
        "encoder": functools.partial(encoder, x, window=(1, 1)),
        "additive": functools.partial(
            classic.additive_attention, *(a[0] for a in (x, key, value)),
            square, square, bias,
        ),
        "cross_entropy": functools.partial(training.cross_entropy, x, targets),
    }  # fmt: skip
    for norm in norms:
        name = type(norm).__name__
        found[name] = functools.partial(norm, x, grad)
        found[f"{name}.vjp"] = functools.partial(there_and_back(norm.vjp), x)
    if width % 2 == 0:
        found["Rotary"] = functools.partial(Rotary(width), x)
    return found


def with_cache(layer, x, **options):
    cache = KVCache(1, 1, x.shape[-2], layer.head_dim, dtype=x.dtype)
    return layer(x, cache=cache, **options), cache.key, cache.value


def check(call, spoilt, **options):
    """Make a call in memory that was filled before; return how often memory was reused.

    spoilt: the same call on NaN, which leaves NaN in workspaces too, which no pattern
    reaches.
    """
    n_reused, expected = 0, None
    sizes = [array.nbytes for array in arrays_in(call(**options))]
    capacities = sorted({capacity_of(n) for n in sizes if n >= SMALLEST})
    for pattern in PATTERNS:
        if pattern != 0:
            spoilt(**options)
        addresses = fill_kept(capacities, pattern)
        arrays = arrays_in(call(**options))
        n_reused += any(array.ctypes.data in addresses for array in arrays)
        actual = [(array.shape, array.dtype, array.tobytes()) for array in arrays]
        assert expected in (None, actual), f"other bits after {pattern:#x}"
        expected = actual
    return n_reused
