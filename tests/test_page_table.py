"""Keys and values in pages give the bits of keys and values in one piece."""

import itertools

import numpy as np
import pytest
from support.calls import TIERS, everything, measure_on, on_tier
from support.comparisons import assert_same_bits
from support.errors import refused

import attnpy

PAGE = 128


def in_pages(arrays, table, n_pages, layout="pages"):
    """Copies (B, Hk, Lk, D) to where the table says; what no sequence has is NaN."""
    found = []
    for array in arrays:
        batch, heads, n_keys, dim = array.shape
        shapes = {
            "pages": (n_pages, heads, PAGE, dim),
            "heads": (heads, n_pages, PAGE, dim),
            "rows": (n_pages, PAGE, heads, dim),
        }
        pool = np.full(shapes[layout], np.nan, array.dtype)
        pool = {
            "pages": lambda x: x,
            "heads": lambda x: x.swapaxes(0, 1),
            "rows": lambda x: x.swapaxes(1, 2),
        }[layout](pool)
        for b, j in itertools.product(range(batch), range(0, n_keys, PAGE)):
            part = array[b, :, j : j + PAGE]
            pool[table[b, j // PAGE], :, : part.shape[1]] = part
        found.append(pool)
    return found


def paged_problem(n_keys, n_queries=3, batch=3, dtype=np.float32, layout="pages"):
    """Arrays in one piece, padded to whole pages, and the same in pages."""
    rng = np.random.default_rng(n_keys)
    n = -(-n_keys // PAGE)
    query = rng.standard_normal((batch, 4, n_queries, 24)).astype(dtype)
    key = rng.standard_normal((batch, 2, n * PAGE, 24)).astype(dtype)
    value = rng.standard_normal((batch, 2, n * PAGE, 40)).astype(dtype)
    n_pages = batch * n + 2
    table = rng.permutation(n_pages)[: batch * n].reshape(batch, n)
    lengths = rng.integers(max(n_keys - 60, 0), n_keys, batch, endpoint=True)
    lengths[0] = n_keys
    pages = in_pages((key[:, :, :n_keys], value[:, :, :n_keys]), table, n_pages, layout)
    return query, (key, value), pages, table, lengths


@pytest.mark.quick(n_keys=(129,), tier=TIERS[:1])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n_queries", [1, 3, 70])
@pytest.mark.parametrize("n_keys", [1, 127, 128, 129, 300, 700])
def test_pages_have_the_bits_of_one_piece(tier, n_keys, n_queries, dtype):
    query, whole, pages, table, lengths = paged_problem(n_keys, n_queries, dtype=dtype)
    options = {"kv_lengths": lengths, "causal": True}
    attend = on_tier(tier)
    expected = everything(attend, query, *whole, **options)
    actual = everything(attend, query, *pages, page_table=table, **options)
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("layout", ["pages", "heads", "rows"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_pages_may_have_any_strides(layout, num_threads):
    query, whole, pages, table, lengths = paged_problem(300, layout=layout)
    options = {"kv_lengths": lengths, "num_threads": num_threads}
    expected = attnpy.attention(query, *whole, **options)
    for view in (slice(None), slice(None, None, -1)):
        actual = attnpy.attention(
            query,
            *(x[view] for x in pages),
            page_table=table if view.step is None else len(pages[0]) - 1 - table,
            **options,
        )
        assert_same_bits(actual, expected)


OPTIONS = {
    "mask": np.random.default_rng(0).random((3, 1, 3, 384)) < 0.8,
    "bias": np.random.default_rng(1).standard_normal((4, 3, 384)),
    "window": (100, 0),
    "q_offset": 250,
    "softcap": 3.0,
    "scale": 0.5,
    "sinks": np.ones(4),
    "causal": "top_left",
    "dropout": 0.3,
}


@pytest.mark.quick
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_with_pages(name):
    query, whole, pages, table, lengths = paged_problem(300)
    options = {name: OPTIONS[name], "kv_lengths": lengths}
    if name == "dropout":
        options["dropout_seed"] = 5
    assert_same_bits(
        everything(attnpy.attention, query, *pages, page_table=table, **options),
        everything(attnpy.attention, query, *whole, **options),
    )


@pytest.mark.parametrize("tier", TIERS)
def test_statistics_of_pages(tier):
    query, whole, pages, table, lengths = paged_problem(300)
    expected = measure_on(tier, query, *whole, kv_lengths=lengths, causal=True)
    actual = measure_on(
        tier, query, *pages, kv_lengths=lengths, causal=True, page_table=table
    )
    assert_same_bits(actual, expected)
    public = attnpy.statistics(query, *pages, page_table=table, kv_lengths=lengths)
    assert public.received.shape == (3, 4, 384)


def test_sequences_share_pages():
    query, whole, pages, table, _ = paged_problem(300)
    table[1:, :2] = table[0, :2]
    for array in whole:
        array[1:, :, : 2 * PAGE] = array[0, :, : 2 * PAGE]
    lengths = [300, 300, 256]
    assert_same_bits(
        attnpy.attention(query, *pages, page_table=table, kv_lengths=lengths),
        attnpy.attention(query, *whole, kv_lengths=lengths),
    )


def test_one_table_serves_a_batch_of_queries():
    query, whole, pages, table, lengths = paged_problem(300)
    expected = attnpy.attention(query, whole[0][0], whole[1][0], kv_lengths=lengths[0])
    for one in (table[0], table[:1]):
        actual = attnpy.attention(query, *pages, page_table=one, kv_lengths=lengths[0])
        assert_same_bits(actual, expected)


def test_a_batch_of_tables_serves_one_query():
    query, whole, pages, table, lengths = paged_problem(300)
    for one in (query[0], query[:1]):
        assert_same_bits(
            attnpy.attention(one, *pages, page_table=table, kv_lengths=lengths),
            attnpy.attention(one, *whole, kv_lengths=lengths),
        )
    two = attnpy.attention(query[0], *pages, page_table=table[:, None], kv_lengths=200)
    assert_same_bits(
        two, attnpy.attention(query[0], *(x[:, None] for x in whole), kv_lengths=200)
    )


def test_packed_queries_on_pages():
    query, whole, pages, table, lengths = paged_problem(300)
    packed = np.concatenate([query[0], query[1][:, :1], query[2][:, :2]], axis=1)
    options = {"seq_offsets": ([0, 3, 4, 6], None), "kv_lengths": lengths}
    assert_same_bits(
        attnpy.attention(packed, *pages, page_table=table, causal=True, **options),
        attnpy.attention(packed, *whole, causal=True, **options),
    )


def test_a_plan_reads_its_table_at_each_call():
    query, whole, pages, table, lengths = paged_problem(300)
    plan = attnpy.Plan(query, *pages, page_table=table, kv_lengths=lengths)
    assert_same_bits(plan(), attnpy.attention(query, *whole, kv_lengths=lengths))
    plan.page_table[...] = table[::-1]
    plan.kv_lengths[...] = 200
    expected = attnpy.attention(query, *(x[::-1] for x in whole), kv_lengths=200)
    assert_same_bits(plan(), expected)
    plan.page_table[1, 2] = len(pages[0])
    with refused(ValueError, "page_table"):
        plan()
    assert "page_table=int64 (3, 3)" in repr(plan)


def test_results_of_no_keys():
    query = np.ones((2, 4, 3, 8), np.float32)
    nothing = np.ones((0, 2, PAGE, 8), np.float32)
    output = attnpy.attention(query, nothing, nothing, page_table=np.zeros((2, 0), int))
    assert output.shape == query.shape
    assert not output.any()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0, 9]], "page_table: expected numbers of the 9 pages, from 0 on, got 9"),
        ([[0, -1]], "page_table: expected numbers of the 9 pages, from 0 on, got -1"),
        ([[0, 2**62]], "page_table: expected numbers of the 9 pages"),
        (3, r"page_table: expected \(..., n\), got \(\)"),
        ([[0, 1]] * 2, "page_table: expected axes before the last that broadcast"),
    ],
)
def test_wrong_tables_are_refused(table, message):
    query, pages = np.ones((3, 4, 2, 8)), np.ones((9, 2, PAGE, 8))
    with pytest.raises(ValueError, match=message):
        attnpy.attention(query, pages, pages, page_table=table)


@pytest.mark.parametrize("table", [[[0.0, 1.0]], [[True, False]], ["a"], [[0, None]]])
def test_tables_of_another_dtype_are_refused(table):
    query, pages = np.ones((3, 4, 2, 8)), np.ones((9, 2, PAGE, 8))
    with pytest.raises(TypeError, match="page_table: expected integers"):
        attnpy.attention(query, pages, pages, page_table=np.array(table))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ((9, 2, 64, 8), (9, 2, 64, 8), r"key: expected \(pages, Hk, 128, D\)"),
        ((2, 128, 8), (2, 128, 8), r"key: expected \(pages, Hk, 128, D\)"),
        ((9, 2, 128, 8), (9, 2, 127, 8), "value: expected"),
        ((9, 2, 128, 8), (8, 2, 128, 8), "value: expected as many pages as key, 9"),
        ((9, 2, 128, 8), (9, 1, 128, 8), "value: expected"),
    ],
)
def test_wrong_pages_are_refused(key, value, message):
    with pytest.raises(ValueError, match=message):
        attnpy.attention(
            np.ones((3, 4, 2, 8)), np.ones(key), np.ones(value), page_table=[[0]]
        )


def test_packed_keys_in_pages_are_refused():
    pages = np.ones((9, 2, PAGE, 8))
    with refused(ValueError, "seq_offsets"):
        attnpy.attention(
            np.ones((4, 2, 8)), pages, pages, page_table=[[0]], seq_offsets=[0, 2]
        )
    with refused(ValueError, "page_table"):
        attnpy.attention(
            np.ones((4, 2, 8)), pages, pages,
            page_table=[[0], [1], [2]], seq_offsets=([0, 1, 2], None),
        )  # fmt: skip


def test_pages_have_no_gradients():
    query, pages = np.ones((4, 2, 8)), np.ones((9, 2, PAGE, 8))
    with pytest.raises(TypeError, match="page_table"):
        attnpy.attention_vjp(query, query, pages, pages, page_table=[0])
    with pytest.raises(TypeError, match="page_table"):
        attnpy.attend_partial(query, pages, pages, page_table=[0])


def test_a_table_that_changes_during_the_call_is_read_once():
    query, pages = np.ones((1, 4, 2, 8)), np.ones((9, 2, PAGE, 8))
    table = np.zeros((1, 2), np.int64)

    class Spoils:
        def __array__(self, dtype=None, copy=None):
            table[...] = 10**6
            return np.zeros(1, np.int64)

    attnpy.attention(query, pages, pages, page_table=table)
    with refused(ValueError, "page_table"):
        attnpy.attention(query, pages, pages, page_table=table, q_offset=Spoils())
