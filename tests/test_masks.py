"""Masks: the same bits as attention's own keywords, and readable pictures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arrays import problem
from support.calls import everything
from support.comparisons import assert_same_bits
from support.errors import refused

import attnpy
from attnpy import masks

SIZES = [(5, 5), (1, 9), (4, 70), (9, 4), (0, 3), (3, 0), (0, 0)]


def assert_same_attention(mask, *arrays, expected, **more):
    """A mask and a keyword give the same bits: output, weights and LSE."""
    assert mask.dtype == np.bool_
    assert_same_bits(
        everything(attnpy.attention, *arrays, mask=mask, **more),
        everything(attnpy.attention, *arrays, **expected),
    )


@pytest.mark.quick
@pytest.mark.parametrize(("n_queries", "n_keys"), SIZES)
def test_causal_is_the_keyword(n_queries, n_keys):
    arrays = problem(2, n_queries, n_keys, 6, 5)
    mask = masks.causal(n_queries, n_keys)
    assert mask.shape == (n_queries, n_keys)
    assert_same_attention(mask, *arrays, expected={"causal": True})
    mask = masks.causal(n_queries, n_keys, causal="top_left")
    assert_same_attention(mask, *arrays, expected={"causal": "top_left"})
    for offset in (0, 2, -2, 2**53, -(2**53)):
        for causal in (False, True, "bottom_right", "top_left"):
            mask = masks.causal(n_queries, n_keys, causal=causal, q_offset=offset)
            expected = {"causal": causal, "q_offset": offset}
            assert_same_attention(mask, *arrays, expected=expected)


@pytest.mark.quick
def test_causal_is_the_lower_triangle():
    np.testing.assert_array_equal(masks.causal(4), np.tril(np.ones((4, 4), bool)))
    np.testing.assert_array_equal(masks.causal(2, 5), np.tri(2, 5, 3, bool))
    np.testing.assert_array_equal(
        masks.causal(2, 5, causal="top_left"), np.tri(2, 5, 0, bool)
    )


@pytest.mark.quick
@given(
    sizes=st.sampled_from(SIZES),
    window=st.none()
    | st.tuples(
        st.none() | st.integers(0, 12) | st.just(2**63 - 1) | st.just(2**70),
        st.none() | st.integers(0, 12) | st.just(2**63 - 1),
    ),
    offset=st.none() | st.integers(-12, 80) | st.sampled_from([2**53, -(2**53)]),
)
def test_window_is_the_keyword(sizes, window, offset):
    arrays = problem(2, *sizes, 6, 5)
    mask = masks.window(*sizes, window, q_offset=offset)
    assert mask.shape == sizes
    expected = {"window": window, "q_offset": offset}
    assert_same_attention(mask, *arrays, expected=expected)


@pytest.mark.quick
def test_many_offsets_have_an_axis_for_the_heads():
    arrays = [np.stack([x] * 3) for x in problem(2, 4, 7, 6, 5)]
    offsets = np.array([3, 0, -2])
    mask = masks.causal(4, 7, q_offset=offsets)
    assert mask.shape == (3, 1, 4, 7)
    expected = {"causal": True, "q_offset": offsets}
    assert_same_attention(mask, *arrays, expected=expected)
    mask = masks.window(4, 7, (1, 2), q_offset=offsets)
    assert mask.shape == (3, 1, 4, 7)
    expected = {"window": (1, 2), "q_offset": offsets}
    assert_same_attention(mask, *arrays, expected=expected)


@pytest.mark.quick
def test_padding_is_the_keyword():
    query, key, value = (np.stack([x] * 4) for x in problem(2, 3, 70, 6, 5))
    lengths = [70, 0, 1, 65]
    key[1], value[2, :, 1:] = np.nan, np.inf
    mask = masks.padding(lengths, 70)
    assert mask.shape == (4, 1, 1, 70)
    expected = {"kv_lengths": lengths}
    assert_same_attention(mask, query, key, value, expected=expected)
    assert_same_attention(
        mask, query, key, value, causal=True, q_offset=np.array(lengths) - 3,
        expected={"kv_lengths": lengths, "causal": True},
    )  # fmt: skip
    mask = masks.padding(9, 70)
    assert mask.shape == (70,)
    assert_same_attention(mask, query[0], key[0], value[0], expected={"kv_lengths": 9})
    assert masks.padding([[1, 2, 3]], 4).shape == (1, 3, 1, 1, 4)
    assert masks.padding([], 4).shape == (0, 1, 1, 4)
    assert masks.padding([0], 0).shape == (1, 1, 1, 0)


@pytest.mark.quick
def test_masks_combine_as_the_keywords_do():
    query, key, value = (np.stack([x] * 2) for x in problem(2, 5, 70, 6, 5))
    lengths = np.array([40, 70])
    both = masks.padding(lengths, 70) & masks.window(5, 70, (9, 0))
    options = {"window": (9, 0), "kv_lengths": lengths, "q_offset": 65}
    assert_same_attention(both, query, key, value, expected=options)


@pytest.mark.quick
@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents_are_as_if_alone(causal):
    lengths = [5, 1, 0, 60, 9]
    query, key, value = problem(2, 80, 80, 6, 5)
    mask = masks.document(masks.document_ids(lengths, 80))
    assert mask.shape == (80, 80)
    packed = attnpy.attention(query, key, value, mask=mask, causal=causal)
    first = 0
    for length in lengths:
        part = np.s_[:, first : first + length]
        alone = attnpy.attention(query[part], key[part], value[part], causal=causal)
        np.testing.assert_allclose(packed[part], alone, rtol=1e-5, atol=1e-6)
        first += length
    assert not packed[:, first:].any()
    assert not mask[:, first:].any()


@pytest.mark.quick
def test_documents_have_an_axis_for_the_heads():
    ids = [[0, 0, 7, -1], [3, 4, 3, 3]]
    mask = masks.document(ids)
    assert mask.shape == (2, 1, 4, 4)
    for b in range(2):
        for i in range(4):
            for j in range(4):
                same = ids[b][i] == ids[b][j] and ids[b][i] >= 0
                assert mask[b, 0, i, j] == same
    assert masks.document(np.zeros((5, 0), int)).shape == (5, 1, 0, 0)
    assert masks.document([]).shape == (0, 0)


@given(lengths=st.lists(st.integers(0, 9)), more=st.integers(0, 5))
def test_document_ids_count_the_tokens(lengths, more):
    ids = masks.document_ids(lengths, sum(lengths) + more)
    assert ids.dtype == np.int64
    right = [i for i, length in enumerate(lengths) for _ in range(length)]
    assert ids.tolist() == right + [-1] * more
    assert masks.document_ids(lengths).tolist() == right


@pytest.mark.quick
@given(length=st.integers(0, 9), data=st.data())
def test_prefix_is_seen_by_all_and_the_rest_by_later_tokens(length, data):
    prefix = data.draw(st.integers(0, length))
    mask = masks.prefix_lm(length, prefix)
    assert mask.shape == (length, length)
    for i in range(length):
        for j in range(length):
            assert mask[i, j] == (j < prefix or j <= i)


@pytest.mark.quick
def test_prefix_of_nothing_is_causal_and_of_all_hides_nothing():
    arrays = problem(2, 6, 6, 6, 5)
    mask = masks.prefix_lm(6, 0)
    assert_same_attention(mask, *arrays, expected={"causal": True})
    assert_same_attention(masks.prefix_lm(6, 6), *arrays, expected={})
    many = masks.prefix_lm(6, [0, 6, 2])
    assert many.shape == (3, 1, 6, 6)
    assert_same_bits(many[2, 0], masks.prefix_lm(6, 2))


# Pictures


@pytest.mark.quick
def test_show_draws_rows_and_columns():
    mask = [[True, False, False], [True, True, False]]
    assert masks.show(mask) == "■ · ·\n■ ■ ·"
    assert masks.show(np.array(mask)[None, None]) == "■ · ·\n■ ■ ·"
    assert masks.show(mask[0]) == "■ · ·"
    assert masks.show(mask, ["a", "bcd"]) == "a   ■ · ·\nbcd ■ ■ ·"
    assert masks.show(mask, None, ["a", "bcd", "e"]) == "a bcd e\n■ ·   ·\n■ ■   ·"
    assert masks.show(mask, "xy", ["a", "", "e"]) == "  a   e\nx ■ · ·\ny ■ ■ ·"
    assert masks.show(mask, [1, 20], range(3)) == "   0 1 2\n1  ■ · ·\n20 ■ ■ ·"


@pytest.mark.quick
def test_show_takes_what_padding_returns():
    assert masks.show(masks.padding(2, 3)) == "■ ■ ·"
    picture = masks.show(masks.padding([1, 3], 3), ["a", "b"])
    assert picture == "a ■ · ·\nb ■ ■ ■"
    assert masks.show(masks.padding([[1], [3]], 3)) == "■ · ·\n■ ■ ■"


@pytest.mark.quick
def test_show_keeps_a_label_on_one_line():
    assert masks.show([[True]], ["\n"], ["don't"]) == "   don't\n\\n ■"


@pytest.mark.quick
def test_show_of_nothing():
    assert masks.show(np.zeros((0, 3), bool)) == ""
    assert masks.show(np.zeros((0, 0), bool), [], []) == ""
    assert masks.show(np.zeros((0, 2), bool), [], "ab") == "  a b"
    assert masks.show(np.zeros((2, 0), bool), "ab", []) == "\na\nb"
    assert masks.show(np.zeros((2, 0), bool), "ab") == "a\nb"


@given(data=st.data(), n_queries=st.integers(0, 5), n_keys=st.integers(1, 5))
def test_show_can_be_read_back(data, n_queries, n_keys):
    bits = st.lists(st.booleans(), min_size=n_keys, max_size=n_keys)
    mask = data.draw(st.lists(bits, min_size=n_queries, max_size=n_queries))
    array = np.array(mask, bool).reshape(n_queries, n_keys)
    words = ["the", "Hund", "of", "x", "y"]
    picture = masks.show(array, words[:n_queries], words[:n_keys])
    header, *lines = picture.splitlines()
    assert header.split() == words[:n_keys]
    for word, line, row in zip(words, lines, mask, strict=False):
        assert line.startswith(word)
        # Each square stands where its column's label begins.
        places = [header.index(f" {w}") + 1 for w in words[:n_keys]]
        assert [line[place] == "■" for place in places] == row
    assert len(lines) == n_queries


# Errors


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("num_queries", lambda: masks.causal(-1)),
        ("num_keys", lambda: masks.causal(2, -1)),
        ("causal", lambda: masks.causal(2, causal="top")),
        ("q_offset", lambda: masks.causal(2, q_offset=2**60)),
        ("window", lambda: masks.window(2, 2, (1, 0, 1))),
        ("window", lambda: masks.window(2, 2, (-1, 0))),
        ("window", lambda: masks.window(2, 2, (0, -1))),
        ("kv_lengths", lambda: masks.padding([3, 5], 4)),
        ("kv_lengths", lambda: masks.padding([-1], 4)),
        ("ids", lambda: masks.document(3)),
        ("lengths", lambda: masks.document_ids([2, -1])),
        ("lengths", lambda: masks.document_ids([[2, 1]])),
        ("lengths", lambda: masks.document_ids(3)),
        ("total", lambda: masks.document_ids([2, 1], 2)),
        ("prefix_length", lambda: masks.prefix_lm(3, 4)),
        ("prefix_length", lambda: masks.prefix_lm(3, -1)),
        ("mask", lambda: masks.show(np.ones((2, 3, 3), bool))),
        ("mask", lambda: masks.show(True)),
        ("query_labels", lambda: masks.show([[True]], ["a", "b"])),
        ("key_labels", lambda: masks.show([[True]], ["a"], [])),
    ],
)
def test_wrong_numbers_and_shapes_are_value_errors(name, call):
    with refused(ValueError, name):
        call()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("num_queries", lambda: masks.causal(2.0)),
        ("num_keys", lambda: masks.causal(2, "3")),
        ("q_offset", lambda: masks.causal(2, q_offset=0.5)),
        ("causal", lambda: masks.causal(2, causal=1)),
        ("causal", lambda: masks.causal(2, causal=None)),
        ("window", lambda: masks.window(2, 2, 3)),
        ("window", lambda: masks.window(2, 2, "10")),
        ("window", lambda: masks.window(2, 2, (1.5, 0))),
        ("window", lambda: masks.window(2, 2, (0, True))),
        ("kv_lengths", lambda: masks.padding([2.0], 4)),
        ("kv_lengths", lambda: masks.padding([True, False], 4)),
        ("num_keys", lambda: masks.padding([2], None)),
        ("ids", lambda: masks.document(["a", "b"])),
        ("lengths", lambda: masks.document_ids([1.5])),
        ("length", lambda: masks.prefix_lm(None, 2)),
        ("mask", lambda: masks.show([[1, 0]])),
    ],
)
def test_wrong_kinds_are_type_errors(name, call):
    with refused(TypeError, name):
        call()
