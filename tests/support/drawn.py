"""Problems drawn by hypothesis: shapes, dtypes, layouts and options of any kind."""

import numpy as np
from hypothesis import strategies as st

from support.arrays import lay_out

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0)
SIZES += (127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025)
WORK = 200_000  # multiplications of one example: the oracle and the scalar tier crawl


def sizes(limit):
    """One of the sizes up to a limit; simpler is smaller."""
    return st.sampled_from([n for n in SIZES if n <= max(1, limit)])


@st.composite
def shortened(draw, shape):
    """A shape that broadcasts to this one."""
    shape = tuple(n if draw(st.booleans()) else 1 for n in shape)
    while shape and shape[0] == 1 and draw(st.booleans()):
        shape = shape[1:]
    return shape


@st.composite
def layouts(draw, array):
    """The same array with its axes in another order, strided or backwards."""
    if draw(st.booleans()):
        return array
    order = draw(st.permutations(range(array.ndim)))
    steps = [draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in order]
    return lay_out(array, tuple(order), steps)


@st.composite
def problems(draw, dtypes=("float32", "float64", "float16")):
    """(query, key, value), options of attention()."""
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    n_kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    work = WORK // (np.prod(batch, dtype=int) * n_kv_heads * group)
    n_keys = draw(sizes(work))
    n_queries = draw(sizes(min(129, work // max(1, n_keys))))
    dim = draw(sizes(min(129, work // max(1, n_keys * n_queries))))
    value_dim = draw(sizes(min(129, work // max(1, n_keys * n_queries))))
    n_heads = n_kv_heads * group
    rng = np.random.default_rng(draw(st.integers(0, 999)))

    query_batch, key_batch, value_batch = (draw(shortened(batch)) for _ in range(3))
    batch = np.broadcast_shapes(query_batch, key_batch, value_batch)
    dtype = draw(st.sampled_from(dtypes))
    arrays = []
    for shape in (
        (*query_batch, n_heads, n_queries, dim),
        (*key_batch, n_kv_heads, n_keys, dim),
        (*value_batch, n_kv_heads, n_keys, value_dim),
    ):
        array = rng.standard_normal(shape).astype(dtype)
        arrays.append(draw(layouts(array)))

    logits = (*batch, n_heads, n_queries, n_keys)
    positions = st.integers(-n_queries - 3, n_keys + 3)
    reach = st.none() | st.integers(0, n_keys + 3)
    options = {}
    if draw(st.booleans()):
        mask = rng.random(draw(shortened(logits))) < draw(st.sampled_from([0.5, 0.02]))
        options["mask"] = draw(layouts(mask))
    if draw(st.booleans()):
        bias = rng.standard_normal(draw(shortened(logits))).astype(dtype)
        bias[rng.random(bias.shape) < draw(st.sampled_from([0.0, 0.3]))] = -np.inf
        options["bias"] = draw(layouts(bias))
    if draw(st.booleans()):
        options["causal"] = draw(st.sampled_from([True, "bottom_right", "top_left"]))
    if draw(st.booleans()):
        options["window"] = draw(st.tuples(reach, reach))
    if draw(st.booleans()):
        shape = draw(shortened(batch))
        number = draw(positions)
        options["q_offset"] = number + rng.integers(-3, 4, shape)
    if draw(st.booleans()):
        shape = draw(shortened(batch))
        options["kv_lengths"] = rng.integers(0, n_keys, shape, endpoint=True)
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([1.0, 0.0, -0.5, 2.0]))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([1.0, 0.3, 20.0]))
    if draw(st.booleans()):
        options["sinks"] = rng.standard_normal(n_heads)
    return arrays, options
