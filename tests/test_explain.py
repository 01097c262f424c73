"""explain(): its counts are those of the masks, and its ways those that calls take."""

import functools
import math

import numpy as np
import pytest
from support import reference
from support.comparisons import assert_same_bits

import attnpy
from attnpy import _attnpy

CASES = {
    "full": {},
    "causal": {"causal": True},
    "top left": {"causal": "top_left"},
    "window": {"window": (100, 30)},
    "lengths": {"kv_lengths": [700, 3]},
    "offset": {"causal": True, "q_offset": [-40, 300]},
    "nothing": {"kv_lengths": [0, 0]},
}


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    shapes = ((2, 4, 150, 16), (2, 2, 700, 16), (2, 2, 700, 8))
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def seen(arrays, options, mask=None):
    """Which keys each query of each (batch, head) sees."""
    query, key, value = arrays
    mask = True if mask is None else mask
    return reference.attention(0 * query, key, value, mask=mask, **options)[1] > 0


@pytest.mark.quick
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("masked", [False, True])
def test_scores_are_those_that_the_masks_leave(arrays, options, masked):
    mask = np.random.default_rng(1).random((2, 4, 150, 700)) < 0.01 if masked else None
    found = attnpy.explain(*arrays, mask=mask, **options)
    visible = seen(arrays, options, mask)
    assert found.scores_visible == visible.sum()
    assert found.scores >= found.scores_visible
    assert found.multiplications == found.scores * (16 + 8)
    assert found.blocks_skipped + found.blocks_masked <= found.blocks


def test_blocks_are_those_of_the_tasks_rows():
    x = np.zeros((1, 256, 8), np.float32)
    found = attnpy.explain(x, x, x, causal=True, num_threads=1)
    # Four tasks of 64 rows on two blocks each: rows 0 to 127 see the first alone.
    assert (found.tile_tasks, found.row_tasks) == (4, 0)
    assert (found.blocks, found.blocks_skipped, found.blocks_masked) == (8, 2, 4)
    # A task computes a block as far as its last row sees: 64, 128, 192 and 256 keys.
    assert found.scores == 64 * (64 + 128 + 192 + 256)
    assert found.nbytes == 4 * 8 * (2 * 256 + 2 * (64 + 128 + 192 + 256))


def test_few_rows_of_a_group_are_computed_one_by_one():
    for n_queries, form in ((1, (0, 2)), (2, (0, 2)), (3, (2, 0))):
        query, key = np.zeros((8, n_queries, 8)), np.zeros((2, 20, 8))
        found = attnpy.explain(query, key, key)
        assert (found.tile_tasks, found.row_tasks) == form
        assert found.products == "float64"


def test_packed_sequences_are_counted_one_by_one():
    lengths = np.array([3, 0, 200, 60])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    x = np.zeros((2, offsets[-1], 8), np.float32)
    found = attnpy.explain(x, x, x, seq_offsets=offsets)
    assert found.scores == found.scores_visible == 2 * (lengths**2).sum()
    # 3 rows take row form, 0 none, 200 four tasks, 60 one.
    assert (found.tile_tasks, found.row_tasks) == (2 * 5, 2)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_tasks_are_those_that_run(arrays, n_threads):
    notes = np.zeros((1000, 3), np.int64)
    query, key, value = (np.tile(x, (1, 1, 4, 1)) for x in arrays)
    options = {"num_threads": n_threads}
    found = attnpy.explain(query, key, value, **options)
    ran = _attnpy.watch_tasks(
        lambda: attnpy.attention(query, key, value, **options), notes
    )
    assert not found.shares_keys
    assert found.num_threads == n_threads
    assert found.tile_tasks + found.row_tasks == ran
    assert set(notes[:ran, 1]) <= set(range(n_threads))


def test_keys_are_shared_where_tasks_are_few():
    query = np.zeros((1, 1, 64), np.float32)
    key = np.zeros((1, 100_000, 64), np.float32)
    notes = np.zeros((1000, 3), np.int64)
    found = attnpy.explain(query, key, key, num_threads=3)
    assert found.shares_keys and found.row_tasks == 1 and found.num_threads == 3
    assert not attnpy.explain(query, key, key, num_threads=1).shares_keys
    ran = _attnpy.watch_tasks(
        lambda: attnpy.attention(query, key, key, num_threads=3), notes
    )
    assert ran >= math.ceil(100_000 / 512)  # chunks


@pytest.mark.parametrize(
    ("n_threads", "shares"),
    [(2, False), (4, False), (5, False), (6, True), (7, True), (8, False), (9, True)],
)
def test_keys_are_shared_where_tasks_would_leave_threads_idle(n_threads, shares):
    query, key = np.ones((32, 1, 64), np.float32), np.ones((8, 4096, 64), np.float32)
    options, notes = {"num_threads": n_threads}, np.zeros((100, 3), np.int64)
    found = attnpy.explain(query, key, key, **options)
    call = functools.partial(attnpy.attention, query, key, key, **options)
    ran = _attnpy.watch_tasks(call, notes)
    assert (found.shares_keys, found.num_threads) == (shares, n_threads)
    # 8 chunks of 8 heads, then these heads; or the heads alone.
    most = np.unique(notes[:ran, 0], return_counts=True)[1].max()
    assert most >= 6 * n_threads if shares else ran == 8
    assert_same_bits(call(), attnpy.attention(query, key, key, num_threads=1))


def test_a_plan_explains_what_its_arrays_hold_now():
    query, key = np.zeros((8, 1, 64), np.float32), np.zeros((2, 4096, 64), np.float32)
    plan = attnpy.Plan(query, key, key, kv_lengths=0)
    assert plan.explain().scores == 0
    plan.kv_lengths[()] = 1000
    found = plan.explain()
    assert found == attnpy.explain(query, key, key, kv_lengths=1000)
    assert found.scores == 8 * 1000
    plan.kv_lengths[()] = 5000
    with pytest.raises(ValueError, match="kv_lengths"):
        plan.explain()


def test_measuring_adds_a_time_and_a_share():
    x = np.ones((4, 64, 32), np.float32)
    found = attnpy.explain(x, x, x, measure=True)
    assert 0 < found.seconds < 10
    assert found.share_of_peak > 0
    assert found[:-2] == attnpy.explain(x, x, x)[:-2]
    plan = attnpy.Plan(x, x, x)
    assert plan.explain(measure=True).seconds > 0
    assert plan.explain().seconds is None


def test_it_is_shown_as_a_table(arrays):
    lines = str(attnpy.explain(*arrays, causal=True, measure=True)).splitlines()
    names = [line[:16].strip() for line in lines]
    assert names[:3] == ["instruction set", "tasks", "threads"]
    assert names[-2:] == ["time", "speed"]
    assert all(len(line) < 88 for line in lines)
    query = np.zeros((1, 0, 8))
    assert "tasks           none" in str(attnpy.explain(query, query, query))


def test_wrong_arguments_are_refused(arrays):
    with pytest.raises(TypeError, match=r"explain\(\).*'tier'"):
        attnpy.explain(*arrays, tier="scalar")
    with pytest.raises(TypeError, match="measure: expected a bool"):
        attnpy.explain(*arrays, measure=1)
    with pytest.raises(ValueError, match="num_threads"):
        attnpy.explain(*arrays, num_threads=0)
    with pytest.raises(ValueError, match="key"):
        attnpy.explain(arrays[0], arrays[2], arrays[2])


def test_attention_is_not_computed():
    x, out = np.ones((1, 4, 8)), np.full((1, 4, 8), 7.0)
    attnpy.explain(x, x, x, out=out)
    assert (out == 7).all()
