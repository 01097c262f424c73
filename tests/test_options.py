"""Every option of attention(), alone and in pairs, against the oracle."""

import inspect
import itertools
import warnings

import numpy as np
import pytest
from support.arrays import dtype_of, mask_and_bias, normal, problem
from support.calls import TIERS, everything
from support.comparisons import assert_right, assert_same_bits

import attnpy

# Rows per key head on both sides of the change from the row form to the tile form, at
# the vector widths, and at one task of 64 rows.
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 31, 33, 63, 64, 65)
# At vector widths, register tiles, blocks of 128 and chunks of 512 keys.
KEYS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65)
KEYS += (127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025)
DIMS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129)

N_QUERIES, N_KEYS = 21, 150
MASK, BIAS = mask_and_bias(N_QUERIES, N_KEYS)
OPTIONS = {
    "mask": MASK,
    "bias": BIAS,
    "causal": True,
    "top_left": "top_left",
    "window": (40, 3),
    "q_offset": 70,
    "kv_lengths": 131,
    "scale": -0.7,
    "softcap": 1.5,
    "sinks": np.array([0.5, -2.0, 3.0, -np.inf]),
}


def as_options(*names):
    """The named options as keywords; top_left is a value of causal."""
    return {"causal" if n == "top_left" else n: OPTIONS[n] for n in names}


@pytest.mark.quick(dtype=("float32",))
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option(attend, dtype, name):
    arrays = problem(4, N_QUERIES, N_KEYS, 9, 6, dtype, n_kv_heads=2)
    assert_right(attend, *arrays, **as_options(name))


@pytest.mark.floats
@pytest.mark.parametrize(
    "names", list(itertools.combinations(OPTIONS, 2)), ids="-".join
)
def test_each_pair_of_options(attend, names):
    arrays = problem(4, N_QUERIES, N_KEYS, 9, 6, n_kv_heads=2)
    assert_right(attend, *arrays, **as_options(*names))


@pytest.mark.quick(n_queries=(3,))
@pytest.mark.parametrize("n_queries", [1, 3, 70])
def test_all_options_together(attend, dtype, n_queries):
    arrays = problem(4, n_queries, N_KEYS, 9, 6, dtype, n_kv_heads=2)
    names = set(OPTIONS) - {"top_left"}
    options = as_options(*names)
    options["mask"] = MASK[:, :1]
    options["bias"] = BIAS[:, :1]
    assert_right(attend, *arrays, **options)


@pytest.mark.floats
@pytest.mark.quick(n_rows=(1, 5, 17))
@pytest.mark.parametrize("n_rows", ROWS)
def test_any_number_of_queries(attend, n_rows):
    assert_right(attend, *problem(1, n_rows, 37, 9, 5), causal=True)
    assert_right(attend, *problem(n_rows, 1, 37, 9, 5, n_kv_heads=1), window=(20, 0))


@pytest.mark.floats
@pytest.mark.quick(n_queries=(5,), n_keys=(1, 129, 513))
@pytest.mark.parametrize("n_keys", KEYS)
@pytest.mark.parametrize("n_queries", [1, 5, 18])
def test_any_number_of_keys(attend, n_queries, n_keys):
    assert_right(attend, *problem(1, n_queries, n_keys, 5, 3))
    assert_right(attend, *problem(1, n_queries, n_keys, 5, 3), causal=True)


@pytest.mark.floats
@pytest.mark.quick(n_queries=(18,), dim=(1, 65))
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("n_queries", [2, 18])
def test_any_head_dimension(attend, n_queries, dim):
    assert_right(attend, *problem(2, n_queries, 19, dim, 3))
    assert_right(attend, *problem(2, n_queries, 19, 3, dim))


def test_many_small_heads_and_batches(attend):
    assert_right(attend, *problem(300, 2, 3, 4, 2))
    arrays = [x.reshape(50, 6, *x.shape[1:]) for x in problem(300, 1, 3, 4, 2)]
    assert_right(attend, *arrays)


@pytest.mark.quick
def test_options_are_keyword_only_and_default_to_plain_attention():
    parameters = inspect.signature(attnpy.attention).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == [
        "query",
        "key",
        "value",
    ]
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert defaults == {
        **dict.fromkeys(["mask", "bias", "window", "q_offset", "kv_lengths", "scale"]),
        **dict.fromkeys(["seq_offsets", "page_table", "softcap", "sinks", "out"]),
        **dict.fromkeys(["key_scale", "value_scale"]),
        "num_threads": None,
        **dict.fromkeys(["causal", "return_weights", "return_lse"], False),
        "dropout": 0.0,
        "dropout_seed": None,
    }


@pytest.mark.quick
def test_public_function_computes_what_the_private_one_does(attend):
    arrays = problem(4, N_QUERIES, N_KEYS, 9, 6, n_kv_heads=2)
    options = as_options(*set(OPTIONS) - {"top_left"})
    assert_same_bits(
        everything(attnpy.attention, *arrays, **options),
        everything(attend, *arrays, **options),
    )


@pytest.mark.quick
def test_results_come_in_the_order_output_weights_lse(attend):
    arrays = problem(2, 3, 5, 4, 6)
    output, weights, lse = everything(attend, *arrays)
    assert isinstance(attend(*arrays), np.ndarray)
    assert_same_bits(attend(*arrays), output)
    assert_same_bits(attend(*arrays, return_weights=True), (output, weights))
    assert_same_bits(attend(*arrays, return_lse=True), (output, lse))
    assert (output.shape, weights.shape, lse.shape) == ((2, 3, 6), (2, 3, 5), (2, 3))


@pytest.mark.quick
def test_two_axes_are_one_head(attend, dtype):
    query, key, value = problem(1, 5, 7, 4, 3, dtype)
    results = assert_right(attend, query[0], key[0], value[0], causal=True)
    assert [x.shape for x in results] == [(5, 3), (5, 7), (5,)]
    expected = everything(attend, query, key, value, causal=True)
    assert_same_bits(results, tuple(x[0] for x in expected))


@pytest.mark.quick
def test_one_axis_is_one_query(attend, dtype):
    query, key, value = problem(1, 1, 7, 4, 3, dtype)
    results = assert_right(attend, query[0, 0], key[0], value[0])
    assert [x.shape for x in results] == [(3,), (7,), ()]
    assert all(isinstance(x, np.ndarray) for x in results)
    expected = everything(attend, query, key, value)
    assert_same_bits(results, (*(x[0, 0] for x in expected[:2]), results[2]))
    assert results[2] == expected[2][0, 0]


@pytest.mark.quick
def test_one_query_against_a_batch_of_caches(attend):
    query = normal(4)
    key, value = normal(2, 3, 1, 7, 4, seed=1), normal(2, 3, 1, 7, 5, seed=2)
    results = assert_right(attend, query, key, value)
    assert [x.shape for x in results] == [(2, 3, 1, 5), (2, 3, 1, 7), (2, 3, 1)]


@pytest.mark.quick
def test_one_query_takes_options_of_one_row(attend):
    query, key, value = problem(1, 1, 7, 4, 3)
    mask, bias = np.arange(7) % 3 > 0, normal(7, seed=5)
    options = {"mask": mask, "bias": bias, "kv_lengths": 6, "sinks": [0.5]}
    assert_right(attend, query[0, 0], key[0], value[0], **options)
    assert_right(attend, query[0, 0], key[0], value[0], mask=mask[None])


@pytest.mark.quick(axes=(3,))
@pytest.mark.parametrize("axes", [2, 3, 4, 5])
def test_key_and_value_may_have_fewer_axes_than_the_query(attend, axes):
    query = normal(2, 3, 4, 6, 5)
    key, value = normal(2, 3, 2, 7, 5, seed=1), normal(2, 3, 2, 7, 4, seed=2)
    drop = (0,) * (5 - axes)
    assert_right(attend, query, key[drop], value[drop], causal=True)
    assert_right(attend, query, key, value[0], causal=True)


@pytest.mark.quick(axes=(1, 3))
@pytest.mark.parametrize("axes", [1, 2, 3, 4, 5])
def test_query_may_have_fewer_axes_than_the_key(attend, axes):
    query = normal(2, 3, 1, 6, 5)[(0,) * (5 - axes)]
    key, value = normal(2, 3, 1, 7, 5, seed=1), normal(2, 3, 1, 7, 4, seed=2)
    results = assert_right(attend, query, key, value)
    assert results[0].ndim == (4 if axes == 1 else 5)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((2, 1), (1, 3), (3,)),
        ((1, 3), (2, 1), (2, 3)),
        ((), (2,), (3, 1)),
        ((2,), (1,), ()),
        ((1, 1, 2), (3, 1), (1,)),
    ],
)
def test_axes_before_the_heads_broadcast(attend, query, key, value):
    arrays = (
        normal(*query, 2, 3, 4),
        normal(*key, 2, 5, 4, seed=1),
        normal(*value, 2, 5, 3, seed=2),
    )
    assert_right(attend, *arrays, causal=True)


@pytest.mark.floats
@pytest.mark.quick(n_queries=(3,))
@pytest.mark.parametrize("n_queries", [1, 3, 20])
@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (6, 1), (6, 2), (6, 3), (6, 6)])
def test_grouped_heads(attend, heads, n_queries):
    n_heads, n_kv_heads = heads
    arrays = problem(n_heads, n_queries, 23, 5, 4, n_kv_heads=n_kv_heads)
    assert_right(attend, *arrays, sinks=np.linspace(-1, 1, n_heads))


MASK_SHAPES = list(itertools.product((1, 2), (1, 3), (1, 4), (1, 5), (1, 150)))
MASK_SHAPES = [*MASK_SHAPES, (), (150,), (1,), (5, 1), (5, 150), (4, 1, 150), (1, 1)]


@pytest.mark.floats
@pytest.mark.quick(shape=((), (5, 150), (2, 1, 4, 1, 150)))
@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
def test_mask_and_bias_broadcast(attend, shape):
    query = normal(2, 3, 4, 5, 6)
    key, value = normal(2, 3, 2, 150, 6, seed=1), normal(2, 3, 2, 150, 3, seed=2)
    mask = np.random.default_rng(7).random(shape) < 0.7
    bias = normal(*shape, seed=3)
    full = (2, 3, 4, 5, 150)
    arrays = (query, key, value)
    for options in ({"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}):
        wide = {k: np.broadcast_to(v, full).copy() for k, v in options.items()}
        assert_same_bits(
            everything(attend, *arrays, **options), everything(attend, *arrays, **wide)
        )


def test_mask_and_bias_with_every_axis(attend):
    query = normal(2, 3, 4, 5, 6)
    key, value = normal(2, 1, 2, 150, 6, seed=1), normal(3, 2, 150, 3, seed=2)
    mask = np.random.default_rng(7).random((2, 3, 4, 5, 150)) < 0.7
    assert_right(attend, query, key, value, mask=mask, bias=normal(*mask.shape))


@pytest.mark.floats
@pytest.mark.quick(shape=((2, 3),))
@pytest.mark.parametrize("name", ["kv_lengths", "q_offset"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (2, 3), (1, 1)], ids=str)
def test_lengths_and_offsets_broadcast_to_the_batch(attend, name, shape):
    query = normal(2, 3, 2, 5, 6)
    key, value = normal(2, 3, 1, 20, 6, seed=1), normal(3, 1, 20, 3, seed=2)
    numbers = np.random.default_rng(3).integers(0, 20, shape, endpoint=True)
    for kind in ("int64", "uint8", "int16"):
        options = {name: numbers.astype(kind)}
        assert_right(attend, query, key, value, causal=True, **options)
    assert_right(attend, query, key, value, window=(2, 1), **{name: numbers.tolist()})


@pytest.mark.floats
@pytest.mark.quick(window=((4, 1),))
@pytest.mark.parametrize("causal", [True, False, "bottom_right", "top_left"])
@pytest.mark.parametrize("window", [None, (0, 0), (3, None), (None, 2), (4, 1)])
def test_positions(attend, causal, window):
    query, *keys = problem(2, 9, 12, 3, 2)
    for q_offset, kv_lengths in itertools.product(
        (None, -3, 0, 4, 30), (None, 0, 1, 9)
    ):
        options = {"window": window, "q_offset": q_offset, "kv_lengths": kv_lengths}
        options = {k: v for k, v in options.items() if v is not None}
        assert_right(attend, query, *keys, causal=causal, **options)
        # In the row form also, query by query, each at its own position.
        length = kv_lengths if kv_lengths is not None else 12
        start = q_offset if q_offset is not None else length - 9
        if causal == "top_left" and q_offset is None:
            start = 0
        options["q_offset"] = start + 5
        assert_right(attend, query[:, 5:6], *keys, causal=causal, **options)


def test_offset_changes_nothing_without_causal_and_window(attend):
    arrays = problem(2, 9, 12, 3, 2)
    for offset in (-(2**63), -1, 0, 5, 2**63 - 1):
        assert_same_bits(attend(*arrays, q_offset=offset), attend(*arrays))


@pytest.mark.floats
@pytest.mark.quick(edge=(128,))
@pytest.mark.parametrize("edge", [126, 127, 128, 129, 510, 511, 512, 513])
@pytest.mark.parametrize("n_queries", [1, 20])
def test_ends_of_the_visible_keys_at_block_edges(attend, edge, n_queries):
    arrays = problem(1, n_queries, 600, 3, 2)
    assert_right(attend, *arrays, kv_lengths=edge)
    assert_right(attend, *arrays, causal=True, q_offset=edge)
    assert_right(attend, *arrays, causal=True, q_offset=edge - n_queries + 1)
    assert_right(attend, *arrays, window=(1, 1), q_offset=edge)
    assert_right(attend, *arrays, window=(None, 0), q_offset=edge)
    assert_right(attend, *arrays, window=(0, None), q_offset=edge)


@pytest.mark.quick
@pytest.mark.parametrize("scale", [0, 0.0, -1, 2.5, np.float32(0.3), np.float64(1e-3)])
def test_scale_is_any_finite_number(attend, scale):
    assert_right(attend, *problem(2, 10, 12, 3, 2), scale=scale)
    assert_right(attend, *problem(2, 1, 12, 3, 2), scale=scale)


@pytest.mark.quick(softcap=(1,))
@pytest.mark.parametrize("softcap", [1e-3, 0.5, 1, 30, np.float32(2), 1e6])
def test_softcap(attend, dtype, softcap):
    for n_queries in (1, 20):
        arrays = problem(2, n_queries, 40, 3, 2, dtype)
        assert_right(attend, *arrays, softcap=softcap, scale=2.0)


@pytest.mark.quick(tier=TIERS[:1])
@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("float16", "float32", "float16"), "float32"),
        (("float16", "float16", "float64"), "float64"),
        (("float32", "float64", "float32"), "float64"),
        (("int64", "int32", "uint8"), "float64"),
        (("bool", "bool", "bool"), "float64"),
        (("float16", "int8", "float16"), "float16"),
        (("float32", "int16", "bool"), "float32"),
        (("float32", "int64", "float32"), "float64"),
        ((">f4", "<f4", "float32"), "float32"),
        ((">f8", ">f4", "float16"), "float64"),
        ((">f2", "float16", ">f2"), "float16"),
    ],
)
def test_dtypes_promote_as_in_numpy(attend, dtypes, expected):
    arrays = [x * 3 for x in problem(2, 5, 6, 3, 4)]
    arrays = [x.astype(d) for x, d in zip(arrays, dtypes, strict=True)]
    results = assert_right(attend, *arrays)
    assert results[0].dtype == expected
    promoted = [x.astype(expected) for x in arrays]
    assert_same_bits(results, everything(attend, *promoted))


@pytest.mark.parametrize("other", ["float32", "float64"])
def test_bfloat16_promotes_as_in_numpy(attend, other):
    bfloat16, arrays = dtype_of("bfloat16"), problem(2, 5, 6, 3, 4)
    kinds = (bfloat16, other, bfloat16)
    arrays = [x.astype(d) for x, d in zip(arrays, kinds, strict=True)]
    assert assert_right(attend, *arrays)[0].dtype == other


@pytest.mark.quick(kind=("float64",))
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f4", "bfloat16"])
def test_bias_and_sinks_take_no_part_in_the_result_dtype(attend, dtype, kind):
    kind, arrays = dtype_of(kind), problem(2, 5, 6, 3, 4, dtype)
    bias, sinks = normal(5, 6, seed=5).astype(kind), normal(2, seed=6).astype(kind)
    results = everything(attend, *arrays, bias=bias, sinks=sinks)
    assert results[0].dtype == dtype
    real = "float64" if dtype == "float64" else "float32"
    bias, sinks = bias.astype(real), sinks.astype(real)
    assert_same_bits(results, everything(attend, *arrays, bias=bias, sinks=sinks))


@pytest.mark.quick
def test_what_becomes_minus_infinity_in_the_arithmetic_is_masked(attend):
    arrays = problem(1, 4, 6, 3, 4)
    bias = np.where(np.arange(6) == 2, -1e300, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is defined: nothing to warn of
        masked = everything(attend, *arrays, bias=bias)
        without_sink = everything(attend, *arrays, sinks=np.array([-1e300]))
    bias[2] = -np.inf
    assert_same_bits(masked, everything(attend, *arrays, bias=bias))
    sinks = np.array([-np.inf])
    assert_same_bits(without_sink, everything(attend, *arrays, sinks=sinks))


@pytest.mark.quick
def test_integer_sinks(attend):
    assert_right(attend, *problem(2, 5, 6, 3, 4), sinks=np.array([1, -2]))


@pytest.mark.quick
def test_inputs_are_not_changed(attend):
    arrays = problem(4, N_QUERIES, N_KEYS, 9, 6, n_kv_heads=2)
    options = as_options(*set(OPTIONS) - {"top_left"})
    every = [*arrays, options["mask"], options["bias"], options["sinks"]]
    before = [x.copy() for x in every]
    for x in every:
        x.flags.writeable = False
    everything(attend, *arrays, **options)
    for x, y in zip(every, before, strict=True):
        assert_same_bits(x, y)
        x.flags.writeable = True
