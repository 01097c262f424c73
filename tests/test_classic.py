"""Additive and multiplicative attention: their formulas, in float64, row by row."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arrays import dtype_of, lay_out, normal
from support.comparisons import assert_same_bits
from support.errors import refused

import attnpy
from attnpy import classic
from attnpy.classic import additive_attention, multiplicative_attention

# Relative to numbers of size 1; the scores of these tests are below 10.
LIMITS = {"float64": 1e-13, "float32": 3e-5, "float16": 2e-3, "bfloat16": 2e-2}


def by_definition(score, query, key, value, mask):
    """(output, weights) of axes that were broadcast before, one row at a time."""
    rows = query.shape[:-1]
    output = np.zeros((*rows, value.shape[-1]))
    weights = np.zeros((*rows, key.shape[-2]))
    for *b, i in np.ndindex(rows):
        row, b = (*b, i), tuple(b)
        seen = np.flatnonzero(mask[row])
        if len(seen):
            scores = [score(query[row], key[b][j]) for j in seen]
            shares = np.exp(scores) / np.exp(scores).sum()
            weights[row][seen] = shares
            output[row] = shares @ value[b][seen]
    return output, weights


def parameters(n_query, n_key, hidden, dtype="float64"):
    """(W_q, W_k, v)."""
    return (
        normal(n_query, hidden, dtype=dtype, seed=4) / 2,
        normal(n_key, hidden, dtype=dtype, seed=5) / 2,
        normal(hidden, dtype=dtype, seed=6),
    )


def cases(dtype, lead=(2, 3), n_queries=5, n_keys=7):
    """Each kind of attention with its arrays, and its score of a query and a key."""
    arrays = (
        normal(*lead, n_queries, 4, dtype=dtype, seed=1),
        normal(*lead, n_keys, 3, dtype=dtype, seed=2),
        normal(*lead, n_keys, 6, dtype=dtype, seed=3),
    )
    w_q, w_k, v = parameters(4, 3, 8, dtype)
    w = (normal(4, 3, dtype=dtype, seed=7) / 2).astype(dtype)
    w_q, w_k = w_q.astype(dtype), w_k.astype(dtype)
    exact = [x.astype(float) for x in (w_q, w_k, v, w)]
    yield (
        additive_attention,
        (*arrays, w_q, w_k, v),
        lambda q, k: exact[2] @ np.tanh(q @ exact[0] + k @ exact[1]),
    )
    yield multiplicative_attention, (*arrays, w), lambda q, k: q @ exact[3] @ k


def assert_right(function, arrays, score, mask=None):
    """Compare one call with the definition."""
    query, key, value = (np.asarray(x, float) for x in arrays[:3])
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
    query, key, value = (
        np.broadcast_to(x, lead + x.shape[-2:]) for x in (query, key, value)
    )
    shape = (*query.shape[:-1], key.shape[-2])
    seen = np.broadcast_to(True if mask is None else mask, shape)
    exact = by_definition(score, query, key, value, seen)
    results = function(*arrays, mask=mask, return_weights=True)
    dtype = np.result_type(*arrays)
    for result, right in zip(results, exact, strict=True):
        assert (result.dtype, result.shape) == (dtype, right.shape)
        np.testing.assert_allclose(
            result.astype(float), right, rtol=0, atol=6 * LIMITS[dtype.name]
        )
        assert not result[right == 0].any()  # of what is masked, exactly
    assert_same_bits(function(*arrays, mask=mask), results[0])


@pytest.mark.quick
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_its_formula(dtype, masked):
    for function, arrays, score in cases(dtype):
        mask = np.random.default_rng(0).random((2, 3, 5, 7)) < 0.5 if masked else None
        assert_right(function, arrays, score, mask)


@given(
    lead=st.sampled_from([(), (2,), (1, 3)]),
    shortened=st.lists(st.booleans(), min_size=3, max_size=3),
    n_queries=st.integers(1, 9),
    n_keys=st.integers(1, 20),
    mask_axes=st.integers(0, 4),
    block=st.sampled_from([1, 100, 2**20]),
)
def test_axes_broadcast_and_blocks_do_not_matter(
    lead, shortened, n_queries, n_keys, mask_axes, block
):
    mask = np.random.default_rng(0).random((*lead, n_queries, n_keys)) < 0.6
    mask = mask[(0,) * max(0, mask.ndim - mask_axes)]
    for function, arrays, score in cases("float64", lead, n_queries, n_keys):
        short = [
            x[(0,) * len(lead)] if cut else x
            for x, cut in zip(arrays, shortened, strict=False)
        ]
        size, classic.BLOCK_SIZE = classic.BLOCK_SIZE, block
        try:
            assert_right(function, (*short, *arrays[3:]), score, mask)
        finally:
            classic.BLOCK_SIZE = size


@pytest.mark.quick
def test_one_query_is_a_decoder_state():
    for function, arrays, _ in cases("float32", lead=()):
        mask = np.arange(7) != 2
        outputs = function(*arrays, mask=mask, return_weights=True)
        one = function(arrays[0][3], *arrays[1:], mask=mask, return_weights=True)
        assert (one[0].shape, one[1].shape) == ((6,), (7,))
        for x, all_x in zip(one, outputs, strict=True):
            np.testing.assert_allclose(x, all_x[3], rtol=1e-4)
        stacked = [np.stack([x] * 2) for x in arrays[1:3]]
        assert function(arrays[0][3], *stacked, *arrays[3:]).shape == (2, 6)


@pytest.mark.quick
def test_row_that_may_see_nothing_is_0(dtype):
    for function, arrays, _ in cases(dtype):
        mask = np.ones((5, 7), bool)
        mask[2] = False
        arrays[0][:, :, 2] = np.nan
        output, weights = function(*arrays, mask=mask, return_weights=True)
        assert not output[:, :, 2].any()
        assert not weights[:, :, 2].any()
        assert np.isfinite(output.astype(float)).all()


@pytest.mark.quick
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_garbage_behind_the_mask_does_not_leak(dtype, garbage):
    for function, arrays, _ in cases(dtype):
        mask = np.random.default_rng(1).random((2, 1, 1, 7)) < 0.5
        mask[..., 0], mask[..., 1] = False, True
        clean = function(*arrays, mask=mask, return_weights=True)
        dirty = [x.copy() for x in arrays]
        for x in dirty[1:3]:
            x[~np.broadcast_to(mask[..., 0, :], x.shape[:-1])] = garbage
        assert_same_bits(function(*dirty, mask=mask, return_weights=True), clean)
        for i in (1, 2):
            visible = [x.copy() for x in dirty]
            visible[i][0, 0, 1] = np.nan  # the mask shows it
            result = function(*visible, mask=mask).astype(float)
            assert np.isnan(result[0, 0]).all()
            assert np.isfinite(result[0, 1:]).all()
            assert np.isfinite(result[1]).all()


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_16_bit_numbers_are_rounded_once(kind):
    dtype = dtype_of(kind)
    for function, arrays, _ in cases(dtype):
        in_float32 = function(
            *(x.astype("float32") for x in arrays), return_weights=True
        )
        for result, single in zip(
            function(*arrays, return_weights=True), in_float32, strict=True
        ):
            assert_same_bits(result, single.astype(dtype))


@pytest.mark.quick
def test_dtypes_promote_as_in_numpy():
    for function, arrays, _ in cases("float64"):
        integers = [np.rint(x).astype(int) for x in arrays]
        floats = [x.astype(float) for x in integers]
        assert_same_bits(function(*integers), function(*floats))
        assert_same_bits(function(*(x.tolist() for x in integers)), function(*floats))
        for i in range(len(arrays)):
            mixed = [x.astype("float32") for x in arrays]
            assert function(*mixed).dtype == np.float32
            mixed[i] = mixed[i].astype("float64")
            assert function(*mixed).dtype == np.float64
            mixed[i] = mixed[i].astype("float16")
            assert function(*mixed).dtype == np.float32
        swapped = [x.astype(">f8") for x in arrays]
        assert_same_bits(function(*swapped), function(*arrays))


@pytest.mark.quick
def test_any_layout_gives_the_same():
    for function, arrays, _ in cases("float64"):
        strange = [
            lay_out(x, tuple(range(x.ndim))[::-1], (-1, 2, 1, -3)[: x.ndim])
            for x in arrays
        ]
        np.testing.assert_allclose(function(*strange), function(*arrays), rtol=1e-12)


def test_arguments_are_left_alone():
    for function, arrays, _ in cases("float32"):
        before = [x.copy() for x in arrays]
        mask = np.ones(7, bool)
        for x in (*arrays, mask):
            x.flags.writeable = False
        function(*arrays, mask=mask)
        for x, y in zip(arrays, before, strict=True):
            assert_same_bits(x, y)


@pytest.mark.quick
@pytest.mark.parametrize("empty", ["B", "Lq", "Lk", "Dq", "Dk", "Dv", "A"])
def test_zero_sizes(empty):
    sizes = {"B": 2, "Lq": 3, "Lk": 4, "Dq": 5, "Dk": 6, "Dv": 7, "A": 8, empty: 0}

    def ones(*axes):
        return np.ones([sizes[axis] for axis in axes])

    arrays = ones("B", "Lq", "Dq"), ones("B", "Lk", "Dk"), ones("B", "Lk", "Dv")
    for function, more in (
        (additive_attention, (ones("Dq", "A"), ones("Dk", "A"), ones("A"))),
        (multiplicative_attention, (ones("Dq", "Dk"),)),
    ):
        output, weights = function(*arrays, *more, return_weights=True)
        assert output.shape == tuple(sizes[axis] for axis in ("B", "Lq", "Dv"))
        assert weights.shape == tuple(sizes[axis] for axis in ("B", "Lq", "Lk"))
        np.testing.assert_allclose(weights, 1 / 4 if sizes["Lk"] else 0)
        np.testing.assert_allclose(output, 1 if sizes["Lk"] else 0)


def test_additive_memory_is_bounded():
    n, hidden = 600, 64  # all at once would be 92 MB in float32
    x, (w_q, w_k, v) = normal(n, 8), parameters(8, 8, hidden, "float32")
    w_q, w_k = w_q.astype("float32"), w_k.astype("float32")
    tracemalloc.start()
    try:
        additive_attention(x, x, x, w_q, w_k, v)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


# What "The Transformer Attention Mechanism" (Cristina) and "Lecture 10: Attention
# Mechanisms and Transformers" (Martins, Melo, Figueiredo) say.


@pytest.mark.quick
def test_scaled_dot_product_is_multiplicative_but_for_the_scale():
    query, key, value = (normal(2, 5, 4, dtype="float64", seed=s) for s in range(3))
    assert_same_bits(
        multiplicative_attention(query, key, value, np.eye(4)),
        attnpy.attention(query, key, value, scale=1),
    )
    np.testing.assert_allclose(
        multiplicative_attention(query, key, value, np.eye(4) / np.sqrt(4)),
        attnpy.attention(query, key, value),
        rtol=1e-13,
    )


@pytest.mark.quick
def test_multiplicative_is_a_product_of_projections():
    # One matrix in place of two: (x W_q) (x W_k)^T is x (W_q W_k^T) x^T.
    x = normal(6, 5, dtype="float64")
    w_q, w_k = normal(2, 5, 3, dtype="float64") / 2
    np.testing.assert_allclose(
        multiplicative_attention(x, x, x, w_q @ w_k.T),
        attnpy.attention(x @ w_q, x @ w_k, x, scale=1),
        rtol=1e-12,
    )


@pytest.mark.quick
def test_weights_are_a_distribution_over_the_words():
    # c = H^T p, p = softmax(s), where the decoder's state is compared with the words.
    words, state = normal(6, 8, dtype="float64"), normal(4, dtype="float64")
    w_q, w_k, v = parameters(4, 8, 10)
    scores = np.array([v @ np.tanh(state @ w_q + word @ w_k) for word in words])
    p = np.exp(scores) / np.exp(scores).sum()
    context, weights = additive_attention(
        state, words, words, w_q, w_k, v, return_weights=True
    )
    np.testing.assert_allclose(weights, p, rtol=1e-13)
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-14)
    np.testing.assert_allclose(context, words.T @ p, rtol=1e-12)


def test_tiny_additive_scores_are_a_sum_of_projections():
    # tanh(x) is x for small x: then the query moves all scores alike.
    query, key = normal(3, 4, dtype="float64"), normal(5, 3, dtype="float64", seed=1)
    w_q, w_k, v = parameters(4, 3, 8)
    _, weights = additive_attention(
        query, key, key, 1e-6 * w_q, 1e-6 * w_k, 1e6 * v, return_weights=True
    )
    scores = key @ w_k @ v
    right = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(weights, np.tile(right, (3, 1)), rtol=1e-8)


# Errors

GOOD = {
    "query": np.zeros((2, 3, 4)),
    "key": np.zeros((2, 5, 6)),
    "value": np.zeros((2, 5, 7)),
    "W_q": np.zeros((4, 8)),
    "W_k": np.zeros((6, 8)),
    "v": np.zeros(8),
    "W": np.zeros((4, 6)),
    "mask": None,
}
ADDITIVE = ("query", "key", "value", "W_q", "W_k", "v", "mask")
MULTIPLICATIVE = ("query", "key", "value", "W", "mask")


def call_both(name, wrong):
    """Call with one wrong argument whatever has it."""
    for function, names in (
        (additive_attention, ADDITIVE),
        (multiplicative_attention, MULTIPLICATIVE),
    ):
        if name in names:
            function(**{k: wrong if k == name else GOOD[k] for k in names})


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("query", ()),
        ("query", (3, 3, 4)),
        ("key", (6,)),
        ("key", (3, 5, 6)),
        ("value", (5,)),
        ("value", (2, 4, 7)),
        ("value", (3, 5, 7)),
        ("W_q", (3, 8)),
        ("W_q", (4,)),
        ("W_k", (5, 8)),
        ("W_k", (6, 9)),
        ("W_k", (2, 6, 8)),
        ("v", (9,)),
        ("v", (8, 1)),
        ("W", (6, 4)),
        ("W", (4, 6, 1)),
        ("mask", (3, 4)),
        ("mask", (1, 1, 2, 3, 5)),
        ("mask", (3, 3, 5)),
    ],
)
def test_wrong_shapes_are_value_errors(name, shape):
    kind = bool if name == "mask" else float
    # Of a query and a key that do not fit, it is the key that is named.
    named = "key" if shape == (3, 3, 4) else name
    with refused(ValueError, named):
        call_both(name, np.zeros(shape, kind))


@pytest.mark.parametrize("name", ["query", "key", "value", "W_q", "W_k", "v", "W"])
@pytest.mark.parametrize("kind", ["complex64", "U1", "O", "M8[s]"])
def test_wrong_dtypes_are_type_errors(name, kind):
    with refused(TypeError, name):
        call_both(name, np.zeros(GOOD[name].shape, kind))


@pytest.mark.quick
def test_dtypes_without_a_common_one_are_type_errors():
    bfloat16 = dtype_of("bfloat16")
    for name in ("query", "key", "value"):
        mixed = {k: np.float16(GOOD[k]) for k in ("query", "key", "value", "W")}
        mixed[name] = mixed[name].astype(bfloat16)
        with pytest.raises(TypeError, match=r"^query, key, value, W: .*common.*got"):
            multiplicative_attention(**mixed)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["additive", "multiplicative"])
def test_return_weights_is_a_bool(name):
    function, arrays, _ = list(cases("float32"))[name == "multiplicative"]
    with pytest.raises(TypeError, match=r"^return_weights: expected a bool, got int"):
        function(*arrays, return_weights=1)


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["int64", "float32", "U1"])
def test_masks_are_boolean(kind):
    with pytest.raises(TypeError, match=r"^mask: expected booleans.*got dtype"):
        call_both("mask", np.zeros((3, 5), kind))
