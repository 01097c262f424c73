"""The numbers of well-known introductions to attention, reproduced."""

import numpy as np
import pytest
from support.arrays import normal
from support.calls import everything
from support.comparisons import assert_within

# "Write your first Attention mechanism": five words, six numbers each.
INPUTS = np.array(
    [
        [0.172, 0.295, 0.618, 0.459, 0.818, 0.071],
        [0.265, 0.563, 0.718, 0.323, 0.126, 0.235],
        [0.206, 0.333, 0.044, 0.862, 0.152, 0.594],
        [0.300, 0.505, 0.727, 0.495, 0.898, 0.954],
        [0.095, 0.809, 0.596, 0.110, 0.447, 0.418],
    ]
)
SCORES = [
    [1.3834, 0.9234, 0.7230, 1.6794, 1.0691],
    [0.9234, 1.0781, 0.7108, 1.3830, 1.0987],
    [0.7230, 0.7108, 1.2742, 1.3918, 0.7262],
    [1.6794, 1.3830, 1.3918, 2.8351, 1.7250],
    [1.0691, 1.0987, 0.7262, 1.7250, 1.4054],
]
WEIGHTS = [
    [0.2368, 0.1495, 0.1224, 0.3184, 0.1730],
    [0.1739, 0.2030, 0.1406, 0.2753, 0.2072],
    [0.1497, 0.1479, 0.2598, 0.2923, 0.1502],
    [0.1489, 0.1107, 0.1117, 0.4729, 0.1558],
    [0.1649, 0.1698, 0.1170, 0.3176, 0.2307],
]
# weights @ inputs, worked out in float64.
WEIGHTED = [
    [0.2175, 0.4955, 0.5936, 0.4391, 0.5944, 0.5007],
    [0.2149, 0.5191, 0.5831, 0.4257, 0.5291, 0.4928],
    [0.2204, 0.4831, 0.5122, 0.5017, 0.5102, 0.5414],
    [0.2346, 0.5083, 0.6131, 0.4516, 0.6470, 0.6192],
    [0.2147, 0.5302, 0.5974, 0.4140, 0.5624, 0.5206],
]
CONTEXT = [
    [0.1780, 0.4262, 0.4843, 0.3858, 0.4458, 0.3576],
    [0.1593, 0.4009, 0.4263, 0.3352, 0.3457, 0.3228],
    [0.1564, 0.3528, 0.3389, 0.3937, 0.3099, 0.3515],
    [0.3600, 0.8420, 0.9404, 0.7560, 0.9062, 0.8448],
    [0.1843, 0.4831, 0.5131, 0.3783, 0.4335, 0.3953],
]


def softmax(scores):
    """Each row's softmax, as the tutorials write it."""
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)


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


def test_first_attention_mechanism_prints_the_context_of_the_columns(attend):
    # What the tutorial printed came from an earlier softmax over the other axis, which
    # for its symmetric scores is the transpose: weights.T @ inputs.
    _, weights, _ = everything(attend, INPUTS, INPUTS, INPUTS, scale=1)
    np.testing.assert_array_equal((weights.T @ INPUTS).round(4), np.array(CONTEXT))


def test_scaled_dot_product_attention_is_the_default(attend):
    expected = softmax(INPUTS @ INPUTS.T / np.sqrt(6)) @ INPUTS
    np.testing.assert_allclose(attend(INPUTS, INPUTS, INPUTS), expected, rtol=1e-14)


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


def test_queries_and_keys_may_differ_in_number(attend):
    query, key, value = normal(4, 3), normal(7, 3, seed=1), normal(7, 5, seed=2)
    output, weights, _ = everything(attend, query, key, value)
    assert (output.shape, weights.shape) == ((4, 5), (4, 7))


def test_one_decoder_state_attends_to_the_words(attend):
    # q is the decoder's state, the rows of H the words: c = H^T p, p = softmax(H q).
    q, h = normal(8, dtype="float64"), normal(6, 8, dtype="float64", seed=1)
    p = softmax(h @ q)
    c, weights, _ = everything(attend, q, h, h, scale=1)
    assert c.shape == (8,)
    np.testing.assert_allclose(weights, p, rtol=1e-13)
    np.testing.assert_allclose(c, h.T @ p, rtol=1e-13)


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


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("length", [5, 70, 600])
def test_permuted_input_gives_permuted_output(attend, kind, length):
    x = normal(2, length, 16, dtype=kind)
    order = np.random.default_rng(1).permutation(length)
    output = attend(x, x, x)
    permuted = attend(x[:, order], x[:, order], x[:, order])
    limit = 100 * np.finfo(kind).eps
    assert_within("output", permuted, output[:, order], limit)


def test_positions_break_that_symmetry(attend):
    x = normal(1, 5, 16)
    order = [1, 0, 2, 3, 4]
    output = attend(x, x, x, causal=True)
    permuted = attend(x[:, order], x[:, order], x[:, order], causal=True)
    assert np.abs(permuted - output[:, order]).max() > 0.01


def test_weights_of_the_values_are_a_product_with_a_matrix(attend):
    # Y = W (X V): the output is linear in the values, with the weights as its matrix.
    x = normal(1, 9, 4, dtype="float64")
    _, weights, _ = everything(attend, x, x, x)
    for value in (normal(1, 9, 4, dtype="float64", seed=1), np.eye(9)[None]):
        np.testing.assert_allclose(attend(x, x, value), weights @ value, atol=1e-14)


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
