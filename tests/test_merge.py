"""merge(): partial results over disjoint keys become the result over all of them."""

import itertools

import numpy as np
import pytest
from support.arrays import normal, problem
from support.calls import on_tier
from support.comparisons import STORAGE, assert_same_bits
from support.errors import refused

import attnpy
from attnpy import merge


def parts(attend, query, key, value, cuts, **options):
    """The partial results over consecutive keys, cut at these places."""
    edges = [0, *cuts, key.shape[-2]]
    return [
        attend(query, key[..., a:b, :], value[..., a:b, :], return_lse=True, **options)
        for a, b in itertools.pairwise(edges)
    ]


def assert_close(actual, expected):
    """(output, lse) pairs that differ by rounding only."""
    dtype = expected[0].dtype
    assert (actual[0].dtype, actual[1].dtype) == (dtype, expected[1].dtype)
    rounding, least = STORAGE.get(str(dtype), (0, 0))
    real = np.float64 if dtype == np.float64 else np.float32
    limit = 50 * np.finfo(real).eps
    output, right = (np.asarray(x[0], float) for x in (actual, expected))
    assert output.shape == right.shape
    bound = limit * 4 + 4 * rounding * (1 + np.abs(right)) + least
    assert (np.abs(output - right) <= bound).all()
    np.testing.assert_allclose(actual[1], expected[1], rtol=limit, atol=limit)


@pytest.mark.quick
@pytest.mark.parametrize(
    "cuts", [(), (70,), (1, 2, 3), (128, 129), (0, 50), (150, 150)]
)
def test_parts_merge_to_the_whole(attend, dtype, cuts):
    for n_queries in (1, 20):
        arrays = problem(2, n_queries, 150, 9, 5, dtype)
        whole = attend(*arrays, return_lse=True)
        outputs, lses = zip(*parts(attend, *arrays, cuts), strict=True)
        assert_close(merge(outputs, lses), whole)
        assert_close(merge(list(outputs), list(lses)), whole)


@pytest.mark.quick
def test_merge_of_merges_is_the_whole(attend):
    arrays = problem(2, 20, 150, 9, 5)
    whole = attend(*arrays, return_lse=True)
    pieces = parts(attend, *arrays, (30, 60, 110))
    left = merge(*zip(*pieces[:3], strict=True))
    assert_close(merge(*zip(left, pieces[3], strict=True)), whole)


def test_order_of_the_parts_matters_by_rounding_only(attend):
    arrays = problem(2, 20, 150, 9, 5)
    whole = attend(*arrays, return_lse=True)
    pieces = parts(attend, *arrays, (30, 60, 110))
    assert_close(merge(*zip(*pieces[::-1], strict=True)), whole)


@pytest.mark.quick
def test_parts_that_saw_nothing_contribute_nothing(attend):
    query, key, value = problem(2, 20, 150, 9, 5)
    mask = np.random.default_rng(0).random((20, 150)) < 0.1
    mask[:, 60:100] = False
    mask[3] = False
    whole = attend(query, key, value, mask=mask, return_lse=True)
    pieces = [
        attend(query, key[:, p], value[:, p], mask=mask[:, p], return_lse=True)
        for p in (slice(0, 20), slice(20, 60), slice(60, 100), slice(100, 150))
    ]
    assert (pieces[2][1] == -np.inf).all()
    merged = merge(*zip(*pieces, strict=True))
    assert_close(merged, whole)
    assert not merged[0][:, 3].any()
    assert (merged[1][:, 3] == -np.inf).all()


@pytest.mark.quick
def test_garbage_of_a_part_that_saw_nothing_does_not_leak():
    output, lse = normal(2, 3, 4), normal(2, 3)
    nothing = np.full((2, 3), -np.inf, np.float32)
    for garbage in (np.nan, np.inf, 7):
        bad = np.full((2, 3, 4), garbage, np.float32)
        merged = merge([bad, output, bad], [nothing, lse, nothing])
        np.testing.assert_allclose(merged[0], output, rtol=1e-6)
        np.testing.assert_allclose(merged[1], lse, rtol=1e-6)
        merged = merge([bad, bad], [nothing, nothing])
        assert not merged[0].any()
        assert (merged[1] == -np.inf).all()


def test_nan_of_a_part_that_saw_something_is_kept():
    output, lse = normal(2, 3, 4), normal(2, 3)
    bad_output, bad_lse = output.copy(), lse.copy()
    bad_output[0, 1, 2], bad_lse[1, 2] = np.nan, np.nan
    merged = merge([output, bad_output], [lse, bad_lse])
    assert np.isnan(merged[0][0, 1, 2])
    assert np.isnan(merged[0][1, 2]).all()
    assert np.isnan(merged[1][1, 2])
    assert np.isnan(merged[0]).sum() == 5
    assert np.isnan(merged[1]).sum() == 1


@pytest.mark.quick
def test_sink_belongs_into_one_part(attend):
    query, key, value = problem(2, 20, 150, 9, 5)
    sinks = np.array([0.5, 3.0])
    whole = attend(query, key, value, sinks=sinks, return_lse=True)
    one = attend(query, key[:, :70], value[:, :70], sinks=sinks, return_lse=True)
    other = attend(query, key[:, 70:], value[:, 70:], return_lse=True)
    assert_close(merge(*zip(one, other, strict=True)), whole)
    assert_close(merge(*zip(other, one, strict=True)), whole)
    # A part may be the sink alone.
    alone = attend(query, key[:, :0], value[:, :0], sinks=sinks, return_lse=True)
    rest = attend(query, key, value, return_lse=True)
    assert_close(merge(*zip(alone, rest, strict=True)), whole)


@pytest.mark.quick
def test_huge_lses_do_not_overflow(attend):
    arrays = problem(1, 5, 60, 4, 3)
    for size in (1e4, -1e4, 1e30, -1e30):
        bias = np.full(20, size)
        cut = [(arrays[0], *(x[:, p] for x in arrays[1:])) for p in THIRDS]
        pieces = [attend(*x, bias=bias, scale=0, return_lse=True) for x in cut]
        output, lse = merge(*zip(*pieces, strict=True))
        mean = np.broadcast_to(arrays[2].mean(axis=1), (1, 5, 3))
        np.testing.assert_allclose(output, mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(lse, size + np.log(60), rtol=1e-6)


THIRDS = (slice(0, 20), slice(20, 40), slice(40, 60))


def test_part_far_below_another_has_no_weight():
    outputs = [np.ones((1, 1, 2)), np.full((1, 1, 2), 5.0)]
    output, lse = merge(outputs, [np.array([[1000.0]]), np.array([[-1000.0]])])
    assert output.tolist() == [[[1, 1]]]
    assert lse.tolist() == [[1000]]


@pytest.mark.quick
def test_two_equal_parts_have_the_mean_and_log_2():
    outputs = [np.array([[[1.0, 0.0]]]), np.array([[[3.0, 1.0]]])]
    output, lse = merge(outputs, [np.array([[0.5]]), np.array([[0.5]])])
    np.testing.assert_allclose(output, [[[2, 0.5]]])
    np.testing.assert_allclose(lse, [[0.5 + np.log(2)]])


def test_one_part_comes_back(dtype):
    output, lse = attnpy.attention(*problem(2, 3, 5, 4, 6, dtype), return_lse=True)
    merged = merge([output], [lse])
    np.testing.assert_array_equal(merged[0], output)
    np.testing.assert_array_equal(merged[1], lse)


def test_results_of_one_head_and_one_query_merge():
    query, key, value = (x[0] for x in problem(1, 4, 9, 3, 2))
    attend = on_tier("scalar")
    for q in (query, query[0]):
        whole = attend(q, key, value, return_lse=True)
        merged = merge(*zip(*parts(attend, q, key, value, (4,)), strict=True))
        assert merged[0].shape == whole[0].shape
        assert_close(merged, whole)


def test_dtypes_are_those_of_attention():
    pieces = [
        attnpy.attention(*problem(1, 2, 5, 4, 3, kind), return_lse=True)
        for kind in ("float16", "float32", "float16")
    ]
    output, lse = merge(*zip(*pieces, strict=True))
    assert (output.dtype, lse.dtype) == (np.float32, np.float32)
    output, lse = merge(*zip(*pieces[::2], strict=True))
    assert (output.dtype, lse.dtype) == (np.float16, np.float32)


def test_merge_leaves_its_arguments_alone():
    pieces = [normal(2, 3, 4), normal(2, 3, 4, seed=1)], [normal(2, 3), normal(2, 3)]
    before = [[x.copy() for x in piece] for piece in pieces]
    for piece in pieces:
        for x in piece:
            x.flags.writeable = False
    merge(*pieces)
    for piece, copies in zip(pieces, before, strict=True):
        for x, y in zip(piece, copies, strict=True):
            assert_same_bits(x, y)


@pytest.mark.quick
def test_zero_sizes():
    for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        output, lse = merge([np.zeros(shape)] * 2, [np.zeros(shape[:-1])] * 2)
        assert (output.shape, lse.shape) == (shape, shape[:-1])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("outputs", "lses", "name"),
    [
        ([], [], "outputs"),
        ([(2, 3, 4)], [], "lses"),
        ([(2, 3, 4)], [(2, 3), (2, 3)], "lses"),
        ([(2, 3, 4), (2, 3, 5)], [(2, 3), (2, 3)], "outputs"),
        ([(2, 3, 4), (2, 3, 4)], [(2, 3), (2, 4)], "lses"),
        ([(2, 3, 4)], [(2, 3, 4)], "lses"),
        ([(2, 3, 4)], [()], "lses"),
        ([()], [()], "outputs"),
    ],
)
def test_wrong_shapes_are_value_errors(outputs, lses, name):
    outputs, lses = ([np.zeros(shape) for shape in x] for x in (outputs, lses))
    with refused(ValueError, f"{name}.*"):
        merge(outputs, lses)


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["complex64", "int64", "bool", "U1", "O"])
def test_wrong_dtypes_are_type_errors(kind):
    good, bad = np.zeros((2, 3, 4)), np.zeros((2, 3, 4), kind)
    with refused(TypeError, "outputs.*"):
        merge([good, bad], [good[..., 0]] * 2)
    with refused(TypeError, "lses.*"):
        merge([good, good], [good[..., 0], bad[..., 0]])
