"""The oracle itself, checked against small cases worked out by hand."""

import numpy as np
import pytest
from support import reference

pytestmark = pytest.mark.quick

# Keys 0 and ln 3 under query 1 and scale 1 give the weights 1/4 and 3/4.
LN3 = np.log(3.0)
QUERY = np.array([[[1.0], [0.0]]])  # (1, 2, 1)
KEY = np.array([[[0.0], [LN3]]])  # (1, 2, 1)
VALUE = np.array([[[4.0, 0.0], [8.0, 2.0]]])  # (1, 2, 2)


def check(expected_output, expected_weights, expected_sums, **options):
    """Rows of the results; sums are exp(lse)."""
    output, weights, lse = reference.attention(QUERY, KEY, VALUE, **options)
    np.testing.assert_allclose(output, [expected_output], rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(weights, [expected_weights], rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(np.exp(lse), [expected_sums], rtol=1e-14)


def test_softmax_of_scores_weighs_the_values():
    check([[7, 1.5], [6, 1]], [[1 / 4, 3 / 4], [1 / 2, 1 / 2]], [4, 2], scale=1)


def test_default_scale_is_one_over_the_root_of_dim():
    query, key = np.full((1, 1, 4), 1.0), np.array([[[0.0] * 4, [LN3 / 2] * 4]])
    _, weights, _ = reference.attention(query, key, VALUE)
    np.testing.assert_allclose(weights, [[[1 / 4, 3 / 4]]])


def test_scale():
    check([[7.6, 1.8], [6, 1]], [[0.1, 0.9], [0.5, 0.5]], [10, 2], scale=2)
    check([[6, 1], [6, 1]], [[0.5, 0.5], [0.5, 0.5]], [2, 2], scale=0)
    check([[5, 0.5], [6, 1]], [[0.75, 0.25], [0.5, 0.5]], [4 / 3, 2], scale=-1)


def test_mask():
    mask = np.array([[True, False], [False, True]])
    check([[4, 0], [8, 2]], [[1, 0], [0, 1]], [1, 1], scale=1, mask=mask)


def test_row_that_sees_nothing():
    mask = np.array([[True, True], [False, False]])
    check([[7, 1.5], [0, 0]], [[1 / 4, 3 / 4], [0, 0]], [4, 0], scale=1, mask=mask)


def test_bias_is_added_after_scaling():
    bias = np.array([[np.log(3.0), 0.0], [0.0, np.log(3.0)]])
    check([[6, 1], [7, 1.5]], [[0.5, 0.5], [0.25, 0.75]], [6, 4], scale=1, bias=bias)


def test_bias_of_minus_infinity_masks():
    bias = np.array([[0.0, -np.inf], [-np.inf, -np.inf]])
    check([[4, 0], [0, 0]], [[1, 0], [0, 0]], [1, 0], scale=1, bias=bias)


def test_softcap_is_c_tanh_of_s_over_c():
    # tanh(ln 2) = 3/5: the scores 0 and ln 3 become 0 and 0.6 c.
    c = LN3 / np.log(2.0)
    three = np.exp(0.6 * c)
    weights = [[1 / (1 + three), three / (1 + three)], [0.5, 0.5]]
    output = [[4 + 4 * weights[0][1], 2 * weights[0][1]], [6, 1]]
    check(output, weights, [1 + three, 2], scale=1, softcap=c)


def test_softcap_comes_before_bias():
    bias = np.array([0.0, LN3])
    limit = 1e-9  # caps every score at (almost) 0, but not the bias
    _, weights, _ = reference.attention(QUERY, KEY, VALUE, softcap=limit, bias=bias)
    np.testing.assert_allclose(weights, [[[0.25, 0.75], [0.25, 0.75]]], atol=1e-8)


def test_sink_is_in_the_denominator_only():
    # Sums 4 + 4 and 2 + 4.
    weights = [[1 / 8, 3 / 8], [1 / 6, 1 / 6]]
    check([[3.5, 0.75], [2, 1 / 3]], weights, [8, 6], scale=1, sinks=[np.log(4.0)])


def test_sink_is_the_lse_of_a_row_that_sees_nothing():
    check([[0, 0], [0, 0]], [[0, 0], [0, 0]], [4, 4], sinks=[np.log(4.0)], mask=False)


def seen(n_queries, n_keys, **options):
    """Which key each query may see: its weights are nonzero."""
    query, key = np.zeros((1, n_queries, 1)), np.zeros((1, n_keys, 1))
    _, weights, _ = reference.attention(query, key, key, **options)
    return (weights[0] > 0).astype(int).tolist()


def test_causal_bottom_right():
    assert seen(2, 3, causal=True) == [[1, 1, 0], [1, 1, 1]]
    assert seen(2, 3, causal="bottom_right") == [[1, 1, 0], [1, 1, 1]]
    assert seen(3, 2, causal=True) == [[0, 0], [1, 0], [1, 1]]


def test_causal_top_left():
    assert seen(2, 3, causal="top_left") == [[1, 0, 0], [1, 1, 0]]
    assert seen(3, 2, causal="top_left") == [[1, 0], [1, 1], [1, 1]]


def test_window():
    assert seen(3, 3, window=(1, 0)) == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert seen(3, 3, window=(0, 1)) == [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert seen(3, 3, window=(None, 0)) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert seen(3, 3, window=(0, None)) == [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert seen(2, 4, window=(1, 0)) == [[0, 1, 1, 0], [0, 0, 1, 1]]
    assert seen(2, 3, window=(1, 5), causal=True) == [[1, 1, 0], [0, 1, 1]]


def test_q_offset_is_the_position_of_query_0():
    assert seen(2, 3, causal=True, q_offset=0) == [[1, 0, 0], [1, 1, 0]]
    assert seen(2, 3, causal="top_left", q_offset=1) == [[1, 1, 0], [1, 1, 1]]
    assert seen(2, 3, causal=True, q_offset=-1) == [[0, 0, 0], [1, 0, 0]]
    assert seen(1, 3, window=(0, 0), q_offset=2) == [[0, 0, 1]]
    assert seen(1, 3, window=(2**63 - 1, 0), q_offset=2**63 - 1) == [[1, 1, 1]]


def test_kv_lengths_end_the_keys_and_move_the_default_alignment():
    assert seen(2, 3, kv_lengths=2) == [[1, 1, 0], [1, 1, 0]]
    assert seen(2, 3, kv_lengths=2, causal=True) == [[1, 0, 0], [1, 1, 0]]
    assert seen(2, 3, kv_lengths=2, causal="top_left") == [[1, 0, 0], [1, 1, 0]]
    assert seen(2, 3, kv_lengths=0) == [[0, 0, 0], [0, 0, 0]]


def test_query_heads_share_key_heads_in_order():
    query = np.zeros((4, 1, 1))
    key, value = np.zeros((2, 1, 1)), np.array([[[5.0]], [[7.0]]])
    output, _, _ = reference.attention(query, key, value)
    assert output.ravel().tolist() == [5, 5, 7, 7]


def test_axes_before_the_heads_broadcast():
    query = np.zeros((2, 1, 1, 1, 1))
    key, value = np.zeros((3, 1, 1, 1)), np.arange(3.0).reshape(3, 1, 1, 1)
    output, weights, lse = reference.attention(query, key, value)
    assert (output.shape, weights.shape, lse.shape) == (
        (2, 3, 1, 1, 1),
        (2, 3, 1, 1, 1),
        (2, 3, 1, 1),
    )
    assert output.ravel().tolist() == [0, 1, 2, 0, 1, 2]


def test_hidden_nan_does_not_leak_and_visible_nan_does():
    key, value = KEY.copy(), VALUE.copy()
    key[0, 1], value[0, 1] = np.nan, np.inf
    mask = np.array([[True, False], [True, True]])
    output, _, lse = reference.attention(QUERY, key, value, mask=mask)
    assert output[0, 0].tolist() == [4, 0]
    assert lse[0, 0] == 0
    assert np.isnan(output[0, 1]).all()
    assert np.isnan(lse[0, 1])


def test_zero_sizes():
    output, weights, lse = reference.attention(
        np.zeros((2, 3, 4)), np.zeros((2, 0, 4)), np.zeros((2, 0, 5))
    )
    assert (output.shape, weights.shape) == ((2, 3, 5), (2, 3, 0))
    assert not output.any()
    assert (lse == -np.inf).all()
    output, _, lse = reference.attention(
        np.zeros((1, 1, 0)), np.zeros((1, 2, 0)), VALUE
    )
    assert output.tolist() == [[[6, 1]]]
    assert np.exp(lse[0, 0]) == 2
