"""The numbers of well-known introductions to attention, reproduced."""

import numpy as np
import pytest
from support.arrays import normal
from support.calls import everything
from support.comparisons import assert_within
from support.tutorial import CONTEXT, INPUTS, SCORES, WEIGHTED, WEIGHTS


def softmax(scores):
    """Each row's softmax, as the tutorials write it."""
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_first_attention_mechanism(attend, kind):
    x = INPUTS.astype(kind)
    context, weights, lse = everything(attend, x, x, x, scale=1)
    np.testing.assert_array_equal(weights.round(4), np.array(WEIGHTS, kind))
    np.testing.assert_allclose(weights.sum(axis=1), np.ones(5), rtol=1e-6)
    # The scores are the logarithms of the weights, and lse is what was taken off.
    scores = np.log(weights) + lse[:, None]
    np.testing.assert_array_equal(scores.round(4), np.array(SCORES, kind))
    np.testing.assert_array_equal(context.round(4), np.array(WEIGHTED, kind))


@pytest.mark.quick
def test_first_attention_mechanism_prints_the_context_of_the_columns(attend):
    # What the tutorial printed came from an earlier softmax over the other axis, which
    # for its symmetric scores is the transpose: weights.T @ inputs.
    _, weights, _ = everything(attend, INPUTS, INPUTS, INPUTS, scale=1)
    np.testing.assert_array_equal((weights.T @ INPUTS).round(4), np.array(CONTEXT))


@pytest.mark.quick
def test_scaled_dot_product_attention_is_the_default(attend):
    expected = softmax(INPUTS @ INPUTS.T / np.sqrt(6)) @ INPUTS
    np.testing.assert_allclose(attend(INPUTS, INPUTS, INPUTS), expected, rtol=1e-14)


@pytest.mark.quick
def test_worked_example_with_a_stated_key_dimension_of_2(attend):
    query = [[1.0, 0.0, 1.0]]
    key = [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    value = [[1.0, 0.0], [2.0, 1.0]]
    # Both scores are 1, whatever the scale: equal weights.
    output, weights, lse = everything(attend, query, key, value, scale=1 / np.sqrt(2))
    np.testing.assert_allclose(weights, [[0.5, 0.5]], rtol=1e-15)
    np.testing.assert_allclose(output, [[1.5, 0.5]], rtol=1e-15)
    np.testing.assert_allclose(lse, [1 / np.sqrt(2) + np.log(2)], rtol=1e-15)
    output, weights = attend(query, key, value, return_weights=True)
    np.testing.assert_allclose(weights, [[0.5, 0.5]], rtol=1e-15)
    np.testing.assert_allclose(output, [[1.5, 0.5]], rtol=1e-15)


@pytest.mark.quick
def test_random_example_with_weights_in_numpy(attend):
    rng = np.random.RandomState(0)
    m = 5
    dk = dv = 3
    query, key, value = rng.rand(m, dk), rng.rand(m, dk), rng.rand(m, dv)
    scores = np.dot(query, key.T) / np.sqrt(dk)
    attention_weights = np.exp(scores) / np.sum(np.exp(scores), axis=1, keepdims=True)
    expected = np.dot(attention_weights, value)
    output, weights, _ = everything(attend, query, key, value)
    assert (weights.shape, output.shape) == ((m, m), (m, dv))
    np.testing.assert_allclose(weights, attention_weights, rtol=1e-14)
    np.testing.assert_allclose(output, expected, rtol=1e-14)


@pytest.mark.quick
def test_queries_and_keys_may_differ_in_number(attend):
    query, key, value = normal(4, 3), normal(7, 3, seed=1), normal(7, 5, seed=2)
    output, weights, _ = everything(attend, query, key, value)
    assert (output.shape, weights.shape) == ((4, 5), (4, 7))


@pytest.mark.quick
def test_one_decoder_state_attends_to_the_words(attend):
    # q is the decoder's state, the rows of H the words: c = H^T p, p = softmax(H q).
    q, h = normal(8, dtype="float64"), normal(6, 8, dtype="float64", seed=1)
    p = softmax(h @ q)
    c, weights, _ = everything(attend, q, h, h, scale=1)
    assert c.shape == (8,)
    np.testing.assert_allclose(weights, p, rtol=1e-13)
    np.testing.assert_allclose(c, h.T @ p, rtol=1e-13)


@pytest.mark.quick(length=(5, 70))
@pytest.mark.parametrize("length", [1, 5, 70])
def test_decoder_mask_fills_the_scores_of_later_words(attend, length):
    # scores.masked_fill_(~mask, -inf) with mask = lower triangle.
    x = normal(2, length, 16, dtype="float64")
    mask = np.tril(np.ones((length, length), bool))
    scores = x @ np.swapaxes(x, -1, -2) / np.sqrt(16)
    weights = softmax(np.where(~mask, -np.inf, scores))
    for options in (
        {"mask": mask},
        {"causal": True},
        {"bias": np.where(~mask, -np.inf, 0.0)},
    ):
        output, ours, _ = everything(attend, x, x, x, **options)
        np.testing.assert_allclose(ours, weights, rtol=1e-12)
        np.testing.assert_allclose(output, weights @ x, rtol=1e-11, atol=1e-14)


@pytest.mark.quick(length=(5, 70))
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("length", [5, 70, 600])
def test_permuted_input_gives_permuted_output(attend, kind, length):
    x = normal(2, length, 16, dtype=kind)
    order = np.random.default_rng(1).permutation(length)
    output = attend(x, x, x)
    permuted = attend(x[:, order], x[:, order], x[:, order])
    limit = 100 * np.finfo(kind).eps
    assert_within("output", permuted, output[:, order], limit)


@pytest.mark.quick
def test_positions_break_that_symmetry(attend):
    x = normal(1, 5, 16)
    order = [1, 0, 2, 3, 4]
    output = attend(x, x, x, causal=True)
    permuted = attend(x[:, order], x[:, order], x[:, order], causal=True)
    assert np.abs(permuted - output[:, order]).max() > 0.01


@pytest.mark.quick
def test_weights_of_the_values_are_a_product_with_a_matrix(attend):
    # Y = W (X V): the output is linear in the values, with the weights as its matrix.
    x = normal(1, 9, 4, dtype="float64")
    _, weights, _ = everything(attend, x, x, x)
    for value in (normal(1, 9, 4, dtype="float64", seed=1), np.eye(9)[None]):
        np.testing.assert_allclose(attend(x, x, value), weights @ value, atol=1e-14)


@pytest.mark.quick
def test_heads_are_concatenated_columns(attend):
    # Two heads of width 3 over the first tutorial's embeddings of width 6.
    rng = np.random.default_rng(4)
    w_q, w_k, w_v = rng.standard_normal((3, 6, 6))

    def heads(x):
        return x.reshape(5, 2, 3).swapaxes(0, 1)  # (H, L, D)

    query, key, value = (INPUTS @ w for w in (w_q, w_k, w_v))
    output = attend(*map(heads, (query, key, value)))
    for h in range(2):
        part = slice(3 * h, 3 * h + 3)
        scores = query[:, part] @ key[:, part].T / np.sqrt(3)
        np.testing.assert_allclose(
            output.swapaxes(0, 1).reshape(5, 6)[:, part],
            softmax(scores) @ value[:, part],
            rtol=1e-12,
        )
