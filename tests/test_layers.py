"""The layers against their formula in plain NumPy, and what they promise beside it."""

import copy
import itertools

import numpy as np
import pytest
from support.arrays import normal
from support.comparisons import assert_near, assert_same_bits, assert_same_parameters
from support.errors import refused
from support.formulas import linear, multi_head_attention, softmax

import attnpy
from attnpy import _dtypes, layers, positions
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention, SelfAttention


def layer(*args, seed=0, **options):
    """A MultiHeadAttention with nothing left at 0, in float64 unless told."""
    options = {"dtype": np.float64, **options}
    mha = MultiHeadAttention(*args, rng=np.random.default_rng(seed), **options)
    for name, array in mha.parameters().items():
        if name.startswith("b_"):
            array[...] = normal(*array.shape, seed=ord(name[-1]))
    return mha


# Bounds of the rounding errors of a few products of numbers around 1.
LIMITS = {"float64": 1e-13, "float32": 2e-5, "float16": 2e-2, "bfloat16": 2e-1}


def assert_close(actual, expected, dtype=np.float64):
    assert_near(actual, expected, LIMITS[np.dtype(dtype).name])


SHAPES = (
    {},
    {"num_kv_heads": 2},
    {"num_kv_heads": 1, "qkv_bias": False},
    {"head_dim": 5},
    {"head_dim": 3, "value_head_dim": 7, "num_kv_heads": 2, "bias": False},
    {"out_bias": False},
)


@pytest.mark.quick(shape=((3, 5, 12),))
@pytest.mark.parametrize("shape", [(5, 12), (3, 5, 12), (1, 1, 12), (2, 3, 4, 12)])
@pytest.mark.parametrize("options", SHAPES)
def test_multi_head_attention_is_the_formula(shape, options):
    mha, x = layer(12, 4, **options), normal(*shape, dtype="float64")
    output, weights = mha(x, return_weights=True)
    expected = multi_head_attention(mha, x)
    assert_close(output, expected[0])
    assert_close(weights, expected[1])
    assert_same_bits(mha(x), output)


@pytest.mark.quick
def test_multi_head_attention_of_every_dtype(dtype):
    mha, x = layer(12, 4, num_kv_heads=2, dtype=dtype), normal(2, 5, 12, dtype=dtype)
    output, weights = mha(x, return_weights=True)
    assert output.dtype == weights.dtype == dtype
    expected = multi_head_attention(mha, x)
    assert_close(output, expected[0], dtype)
    assert_close(weights, expected[1], dtype)


@pytest.mark.quick
def test_dtypes_promote_as_numpy():
    mha = layer(12, 4, dtype=np.float32)
    assert mha(normal(5, 12, dtype="float64")).dtype == np.float64
    assert mha(normal(5, 12, dtype="float16")).dtype == np.float32
    assert mha([[1] * 12] * 2).dtype == np.float64


@pytest.mark.quick
@pytest.mark.parametrize("options", SHAPES)
def test_cross_attention_takes_keys_and_values_from_the_context(options):
    mha = layer(12, 4, context_dim=9, **options)
    x, context = normal(2, 5, 12, dtype="float64"), normal(2, 7, 9, dtype="float64")
    output, weights = mha(x, context, return_weights=True)
    assert weights.shape == (2, 4, 5, 7)
    expected = multi_head_attention(mha, x, context)
    assert_close(output, expected[0])
    assert_close(weights, expected[1])


@pytest.mark.quick
@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize(
    "sizes", [{"context_dim": 9, "value_dim": 5}, {"value_dim": 5}, {"context_dim": 9}]
)
def test_keys_and_values_come_from_two_arrays(sizes, options):
    mha = layer(12, 4, **sizes, **options)
    k = sizes.get("context_dim", 12)
    v = sizes.get("value_dim", k)
    assert (len(mha.W_k), len(mha.W_v)) == (k, v)
    x = normal(2, 5, 12, dtype="float64")
    key, value = normal(2, 7, k, dtype="float64"), normal(2, 7, v, dtype="float64")
    output, weights = mha(x, key, value, return_weights=True)
    expected = multi_head_attention(mha, x, key, value=value)
    assert_close(output, expected[0])
    assert_close(weights, expected[1])
    joined = [head(x, key, value) for head in mha.heads]
    assert_close(output, linear(np.concatenate(joined, axis=-1), mha.W_o, mha.b_o))
    for lengths in (None, [7, 3]):
        memory = mha.project_context(key, value, kv_lengths=lengths)
        assert_same_bits(mha(x, memory), mha(x, key, value=value, kv_lengths=lengths))
    starts = [0, 4, 7]
    packed = mha(x[0], key[0], value[0], seq_offsets=([0, 2, 5], starts))
    assert_same_bits(packed[2:], mha(x[0, 2:], key[0, 4:], value[0, 4:]))


@pytest.mark.quick
def test_values_of_the_same_size_may_come_from_elsewhere():
    mha = layer(12, 4)
    x, key, value = (normal(7, 12, dtype="float64", seed=seed) for seed in range(3))
    assert_same_bits(mha(x, key, key), mha(x, key))
    expected = multi_head_attention(mha, x, key, value=value)[0]
    assert_close(mha(x, key, value), expected)
    assert np.abs(mha(x, key) - expected).max() > 0.01


def test_values_without_their_keys_are_refused():
    mha, x = layer(12, 4, context_dim=9, value_dim=5), normal(4, 12, dtype="float64")
    key, value = normal(7, 9, dtype="float64"), normal(7, 5, dtype="float64")
    memory = mha.project_context(key, value)
    for one in (mha, mha.heads[0]):
        with pytest.raises(ValueError, match="value: expected None without a cont"):
            one(x, value=value)
        with pytest.raises(ValueError, match="value: expected an array beside the c"):
            one(x, key)
    with pytest.raises(ValueError, match="value: expected None where context is"):
        mha(x, memory, value)
    with pytest.raises(ValueError, match="value: expected an array beside the c"):
        mha.project_context(key)
    with pytest.raises(ValueError, match="value: expected as many tokens as the"):
        mha.project_context(key, value[1:])
    for wrong in (value[1:], key.copy(), value[0]):
        with refused(ValueError, "value"):
            mha(x, key, wrong)
    with refused(ValueError, "context"):
        mha(x, value, value)
    with pytest.raises(TypeError, match="'key': write context=, and value="):
        mha(x, key=key, value=value)


@pytest.mark.quick
@pytest.mark.parametrize("options", SHAPES)
def test_a_new_cache_is_one_for_the_layer(options, dtype):
    mha, x = layer(12, 4, dtype=dtype, **options), normal(2, 5, 12, dtype=dtype)
    cache = mha.new_cache(2, 3, growable=True)
    assert (cache.key.dtype, cache.capacity, cache.growable) == (dtype, 3, True)
    steps = [mha(x[:, i : i + 1], causal=True, cache=cache) for i in range(5)]
    assert_same_bits(np.concatenate(steps, axis=1), mha(x, causal=True))
    assert mha.new_cache(2, 3, dtype="float16").key.dtype == np.float16


def test_one_context_serves_a_batch():
    mha = layer(12, 4)
    x, context = normal(3, 5, 12, dtype="float64"), normal(7, 12, dtype="float64")
    expected = np.stack([mha(row, context) for row in x])
    assert_close(mha(x, context), expected)
    assert_close(mha(x, mha.project_context(context)), expected)


@pytest.mark.quick
def test_projected_context_gives_what_the_context_gives():
    mha = layer(12, 4, num_kv_heads=2, value_head_dim=5, context_dim=9, bias=True)
    x, context = normal(2, 5, 12, dtype="float64"), normal(2, 7, 9, dtype="float64")
    for lengths in (None, [7, 3], 4):
        memory = mha.project_context(context, kv_lengths=lengths)
        expected = mha(x, context, kv_lengths=lengths, return_weights=True)
        for n_threads in (1, 2):
            result = mha(x, memory, return_weights=True, num_threads=n_threads)
            n = result[1].shape[-1]
            assert_same_bits(result[0], expected[0])
            assert_same_bits(result[1], expected[1][..., :n])
            assert not expected[1][..., n:].any()
    single = mha(x[0], mha.project_context(context[0]))
    assert_close(single, mha(x, context)[0])


@pytest.mark.quick
@pytest.mark.parametrize("options", SHAPES)
def test_heads_are_layers_that_share_the_memory(options):
    mha, x = layer(12, 4, **options), normal(2, 5, 12, dtype="float64")
    assert len(mha.heads) == 4
    for i, head in enumerate(mha.heads):
        assert isinstance(head, SelfAttention)
        for name, array in head.parameters().items():
            assert np.shares_memory(array, getattr(mha, name))
        head.W_q[...] = i
        columns = slice(i * mha.head_dim, (i + 1) * mha.head_dim)
        assert (mha.W_q[:, columns] == i).all()
        mha.W_q[:, columns] = normal(12, mha.head_dim, seed=i)
        assert_same_bits(head.W_q, normal(12, mha.head_dim, seed=i).astype(float))
    joined = np.concatenate([head(x) for head in mha.heads], axis=-1)
    assert_close(mha(x), linear(joined, mha.W_o, mha.b_o))


def test_grouped_heads_share_keys_and_values():
    heads = layer(12, 4, num_kv_heads=2).heads
    for i, j in itertools.combinations(range(4), 2):
        for name in ("W_k", "W_v"):
            arrays = getattr(heads[i], name), getattr(heads[j], name)
            assert np.shares_memory(*arrays) == (i // 2 == j // 2)


def test_heads_of_cross_attention_take_the_context():
    mha = layer(12, 4, context_dim=9)
    x, context = normal(5, 12, dtype="float64"), normal(7, 9, dtype="float64")
    joined = np.concatenate([head(x, context) for head in mha.heads], axis=-1)
    assert_close(mha(x, context), linear(joined, mha.W_o, mha.b_o))


@pytest.mark.quick
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6)])
def test_self_attention_is_the_formula(shape, bias):
    head = SelfAttention(6, 3, value_head_dim=4, bias=bias, dtype=np.float64)
    x = normal(*shape, dtype="float64")
    query, key, value = (
        linear(x, getattr(head, f"W_{n}"), getattr(head, f"b_{n}")) for n in "qkv"
    )
    expected = softmax(query @ np.swapaxes(key, -1, -2) / np.sqrt(3))
    output, weights = head(x, return_weights=True)
    assert_close(weights, expected)
    assert_close(output, expected @ value)
    assert_same_bits(head(x), output)


def test_self_attention_has_no_axis_for_heads():
    head, x = SelfAttention(6, 3, dtype=np.float64), normal(2, 5, 6, dtype="float64")
    mask = np.random.default_rng(0).random((2, 5, 5)) < 0.5
    mask |= np.eye(5, dtype=bool)
    bias = normal(2, 5, 5, dtype="float64")
    output, weights = head(x, mask=mask, bias=bias, return_weights=True)
    assert (output.shape, weights.shape) == ((2, 5, 3), (2, 5, 5))
    assert not weights[~mask].any()
    for b in range(2):
        assert_close(output[b], head(x[b], mask=mask[b], bias=bias[b]))
    _, weights = head(x, causal=True, kv_lengths=[5, 2], return_weights=True)
    assert np.count_nonzero(weights[0], axis=-1).tolist() == [1, 2, 3, 4, 5]
    assert np.count_nonzero(weights[1], axis=-1).tolist() == [1, 2, 2, 2, 2]


@pytest.mark.quick
def test_first_tutorial_builds_its_layers():
    # "Attention please!": six numbers a word, two heads of three; only the result's
    # projection has a bias, and it starts at 0.
    embed_dim, num_heads, head_dim = 6, 2, 3
    mha = MultiHeadAttention(embed_dim, num_heads, head_dim, qkv_bias=False)
    assert mha(normal(5, 6)).shape == (5, 6)
    assert list(mha.parameters()) == ["W_q", "W_k", "W_v", "W_o", "b_o"]
    assert not mha.b_o.any()
    head = SelfAttention(embed_dim, head_dim, bias=False)
    assert list(head.parameters()) == ["W_q", "W_k", "W_v"]
    assert head(normal(5, 6)).shape == (5, 3)


@pytest.mark.quick
@pytest.mark.parametrize("kind", [SelfAttention, MultiHeadAttention])
def test_new_layers_have_biases_that_change_nothing(kind):
    made = (
        kind(6, 3, bias=bias, rng=np.random.default_rng(0)) for bias in (True, False)
    )
    with_biases, without = made
    names = {name for name in with_biases.parameters() if name.startswith("b_")}
    assert with_biases.parameters().keys() - without.parameters().keys() == names
    assert len(names) == len(without.parameters())
    x = normal(5, 6)
    assert_same_bits(kind(6, 3, rng=np.random.default_rng(0))(x), with_biases(x))
    np.testing.assert_array_equal(with_biases(x), without(x))


@pytest.mark.quick
def test_some_biases_follow_those_of_the_layer():
    def biases(**options):
        return [n[2] for n in MultiHeadAttention(6, 2, **options).parameters()][4:]

    assert biases() == biases(bias=True) == ["q", "k", "v", "o"]
    assert biases(bias=False) == []
    assert biases(qkv_bias=False) == biases(bias=False, out_bias=True) == ["o"]
    assert biases(out_bias=False) == biases(bias=False, qkv_bias=True)
    assert biases(out_bias=False) == ["q", "k", "v"]


@pytest.mark.quick
def test_causal_hides_later_tokens():
    mha, x = layer(12, 4), normal(2, 6, 12, dtype="float64")
    output, weights = mha(x, causal=True, return_weights=True)
    expected = multi_head_attention(mha, x, allowed=np.tri(6, dtype=bool))
    assert_close(output, expected[0])
    assert_close(weights, expected[1])
    changed = x.copy()
    changed[:, 4:] = 9
    assert_same_bits(mha(changed, causal=True)[:, :4], output[:, :4])
    assert (mha(changed, causal=True)[:, 4:] != output[:, 4:]).any(axis=-1).all()


@pytest.mark.quick
def test_options_are_those_of_attention():
    mha, x = layer(12, 4, qkv_bias=False), normal(2, 6, 12, dtype="float64")
    mask = np.random.default_rng(0).random((4, 6, 6)) < 0.7
    for options in (
        {"mask": mask},
        {"bias": normal(6, 6), "scale": 0.3},
        {"window": (1, 2), "softcap": 2.0},
        {"sinks": normal(4), "causal": True},
        {"kv_lengths": [6, 3]},
        {"q_offset": [1, -2], "causal": True},
    ):
        query, key, value = (
            (x @ w).reshape(2, 6, 4, 3).swapaxes(1, 2)
            for w in (mha.W_q, mha.W_k, mha.W_v)
        )
        positions_of_tokens = {"q_offset": 0, **options}
        heads, weights = attnpy.attention(
            query, key, value, return_weights=True, **positions_of_tokens
        )
        joined = heads.swapaxes(1, 2).reshape(2, 6, 12)
        result = mha(x, return_weights=True, **options)
        assert_close(result[0], linear(joined, mha.W_o, mha.b_o))
        assert_close(result[1], weights)


@pytest.mark.quick
def test_padding_changes_nothing_for_the_others():
    mha, x = layer(12, 4), normal(2, 6, 12, dtype="float64")
    for options in ({}, {"causal": True}, {"window": (1, 0)}):
        output = mha(x, kv_lengths=[6, 2], **options)
        assert_close(output[0], mha(x[0], **options))
        assert_close(output[1, :2], mha(x[1, :2], **options))


@pytest.mark.quick
def test_average_weights_are_the_mean_over_the_heads(dtype):
    mha, x = layer(12, 4, dtype=dtype), normal(2, 5, 12, dtype=dtype)
    output, weights = mha(x, return_weights=True)
    same, average = mha(x, return_weights=True, average_weights=True)
    assert_same_bits(same, output)
    assert average.dtype == dtype
    assert_close(average, weights.astype(float).mean(axis=1), dtype)
    with pytest.raises(ValueError, match=r"^average_weights: expected "):
        mha(x, average_weights=True)


def chunks(length, *cuts):
    """Consecutive slices, cut at these places."""
    return itertools.starmap(slice, itertools.pairwise((0, *cuts, length)))


CACHED = (
    {},
    {"num_kv_heads": 2, "value_head_dim": 5, "bias": True},
)
CUTS = ((), (1,), (4, 5), tuple(range(1, 9)))


@pytest.mark.quick(cuts=((4, 5),))
@pytest.mark.parametrize("rotary", [None, positions.Rotary(4, base=100.0)])
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("options", CACHED)
def test_chunks_and_single_tokens_are_the_full_pass(options, cuts, rotary):
    mha = layer(16, 4, **options)
    x = normal(2, 9, 16, dtype="float64")
    full = mha(x, causal=True, rotary=rotary, window=(4, None))
    cache = KVCache(2, mha.num_kv_heads, 9, 4, mha.value_head_dim, dtype=np.float64)
    for part in chunks(9, *cuts):
        output = mha(x[:, part], causal=True, cache=cache, rotary=rotary, window=(4, 0))
        assert_close(output, full[:, part])
    assert cache.lengths.tolist() == [9, 9]


@pytest.mark.quick
@pytest.mark.parametrize("rotary", [None, positions.Rotary(4, base=100.0)])
def test_chunks_and_single_tokens_have_the_bits_of_the_full_pass(dtype, rotary):
    mha = layer(16, 4, num_kv_heads=2, dtype=dtype)
    x = normal(2, 150, 16, dtype=dtype)
    full = mha(x, causal=True, rotary=rotary)
    for cuts in ((), (70,), (1, 9, 140), range(1, 150)):
        cache = KVCache(2, 2, 0, 4, dtype=dtype, growable=True)
        for part in chunks(150, *cuts):
            output = mha(x[:, part], causal=True, cache=cache, rotary=rotary)
            assert_same_bits(output, full[:, part])


def test_sequences_do_not_depend_on_each_other(dtype):
    mha, x = layer(16, 4, dtype=dtype), normal(3, 9, 16, dtype=dtype)
    output = mha(x, return_weights=True)
    for b in range(3):
        alone = mha(x[b], return_weights=True)
        assert_same_bits(alone, tuple(array[b] for array in output))


@pytest.mark.quick
@pytest.mark.parametrize("rotary", [None, positions.Rotary(4, interleaved=True)])
def test_sequences_of_different_lengths_share_a_cache(rotary):
    mha = layer(16, 4, num_kv_heads=2)
    x = normal(3, 10, 16, dtype="float64")
    lengths, more = np.array([5, 2, 0]), 3
    cache = KVCache(3, 2, 8, 4, dtype=np.float64)
    prompts = x[:, :5].copy()
    for b, n in enumerate(lengths):
        prompts[b, n:] = np.nan  # padding
    options = {"causal": True, "rotary": rotary}
    first = mha(prompts, cache=cache, kv_lengths=lengths, **options)
    assert cache.lengths.tolist() == lengths.tolist()
    steps = [
        mha(
            np.stack([x[b, n + i : n + i + 1] for b, n in enumerate(lengths)]),
            cache=cache,
            **options,
        )
        for i in range(more)
    ]
    for b, n in enumerate(lengths):
        full = mha(x[b, : n + more], **options)
        assert_close(first[b, :n], full[:n])
        assert_close(np.concatenate([step[b] for step in steps]), full[n:])


@pytest.mark.quick
def test_rotary_turns_queries_and_keys_by_their_positions():
    mha, x = layer(16, 4), normal(2, 7, 16, dtype="float64")
    for rotary in (positions.Rotary(4), positions.Rotary(4, interleaved=True)):
        output, weights = mha(x, rotary=rotary, return_weights=True)
        expected = multi_head_attention(mha, x, turn=rotary)
        assert_close(output, expected[0])
        assert_close(weights, expected[1])


@pytest.mark.quick
def test_cache_holds_turned_keys():
    mha, x = layer(16, 4, qkv_bias=False), normal(2, 3, 16, dtype="float64")
    rotary, cache = positions.Rotary(4), KVCache(2, 4, 8, 4, dtype=np.float64)
    mha(x[:, :2], cache=cache, rotary=rotary, kv_lengths=[2, 1])
    mha(x[:, 2:], cache=cache, rotary=rotary)
    key = (x @ mha.W_k).reshape(2, 3, 4, 4).swapaxes(1, 2)
    assert_close(np.array(cache.key[0]), rotary(key[0]))
    assert_close(np.array(cache.key[1, :, :2]), rotary(key[1][:, [0, 2]]))


def test_one_sequence_needs_no_batch_axis():
    mha, x = layer(16, 4), normal(6, 16, dtype="float64")
    cache = KVCache(1, 4, 6, 4, dtype=np.float64)
    full = mha(x, causal=True, return_weights=True)
    for i in range(6):
        row = mha(x[i : i + 1], causal=True, cache=cache, return_weights=True)
        assert_close(row[0], full[0][i : i + 1])
        assert_close(row[1], full[1][:, i : i + 1, : i + 1])


def test_memmap_and_16_bit_caches_serve_a_layer(tmp_path):
    mha, x = layer(16, 4, dtype=np.float32), normal(2, 6, 16)
    storage = np.memmap(tmp_path / "cache", np.float32, "w+", shape=(2, 2, 4, 6, 4))
    full = mha(x, causal=True)
    cache = KVCache(2, 4, 6, 4, key=storage[0], value=storage[1])
    assert_close(mha(x, causal=True, cache=cache), full, np.float32)
    assert storage.any()
    cache = KVCache(2, 4, 6, 4, dtype=np.float16)
    output = mha(x, causal=True, cache=cache)
    assert output.dtype == np.float32
    assert_close(output, full, np.float16)


@pytest.mark.quick
@pytest.mark.parametrize(
    "wrong",
    [
        {"mask": np.ones((5, 5), bool)},
        {"mask": np.ones((2, 5), int)},
        {"scale": np.nan},
        {"sinks": np.zeros(3)},
        {"kv_lengths": 3},
        {"num_threads": 0},
    ],
)
def test_errors_do_not_change_the_cache(wrong):
    mha, x = layer(16, 4), normal(2, 2, 16)
    cache = KVCache(2, 4, 8, 4)
    mha(x, cache=cache)
    key = cache.key.tobytes()
    with pytest.raises((TypeError, ValueError)):
        mha(x, cache=cache, **wrong)
    assert cache.lengths.tolist() == [2, 2]
    assert cache.key.tobytes() == key


def test_permuted_tokens_give_permuted_outputs():
    mha, x = layer(12, 4), normal(2, 9, 12, dtype="float64")
    order = np.random.default_rng(1).permutation(9)
    assert_close(mha(x[:, order]), mha(x)[:, order])


@pytest.mark.parametrize("dim", [12, 64])
def test_first_values_are_xavier_uniform(dim):
    for n_heads, n_kv_heads in ((1, 1), (4, 4), (4, 1)):
        mha = MultiHeadAttention(
            dim, n_heads, num_kv_heads=n_kv_heads, rng=np.random.default_rng(0)
        )
        limit = np.sqrt(6 / (dim + dim))
        for array in (mha.W_q, mha.W_k, mha.W_v, mha.W_o):
            assert array.dtype == np.float32
            assert 0.9 * limit < np.abs(array).max() <= limit
    head = SelfAttention(dim, 3, rng=np.random.default_rng(0))
    limit = np.sqrt(6 / (dim + 3))
    assert 0.9 * limit < np.abs(head.W_q).max() <= limit


def test_scores_of_a_new_layer_have_variance_1():
    x = normal(2000, 64)
    for n_kv_heads in (8, 2, 1):
        rng = np.random.default_rng(1)
        mha = MultiHeadAttention(64, 8, num_kv_heads=n_kv_heads, rng=rng)
        query, key = x[:1000] @ mha.W_q[:, :8], x[1000:] @ mha.W_k[:, :8]
        assert 0.5 < np.var(query @ key.T / np.sqrt(8)) < 2
        assert 0.8 < np.var(x @ mha.W_v) < 1.2


def test_first_values_come_from_the_generator(dtype):
    one, same = (layer(12, 4, dtype=dtype, bias=True) for _ in range(2))
    assert_same_parameters(one, same)
    assert all(array.dtype == dtype for array in one.parameters().values())
    assert not (MultiHeadAttention(12, 4).W_q == MultiHeadAttention(12, 4).W_q).any()


def test_trained_matrices_may_be_assigned():
    mha = layer(12, 4, bias=False)
    other = layer(16, 4, 5, seed=1, qkv_bias=False)
    mha.W_q, mha.W_k, mha.W_v, mha.W_o = other.W_q, other.W_k, other.W_v, other.W_o
    mha.b_o = other.b_o
    assert (mha.head_dim, mha.value_head_dim) == (5, 5)
    x = normal(3, 16, dtype="float64")
    assert_same_bits(mha(x), other(x))
    mha.W_k = mha.W_k[:, :-1]
    with pytest.raises(ValueError, match="weight: expected as many columns for each"):
        mha(x)


def test_parameters_are_the_arrays_themselves():
    mha = layer(12, 4, bias=True)
    names = ["W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o"]
    assert list(mha.parameters()) == list(mha.state_dict()) == names
    for name in names:
        assert mha.parameters()[name] is mha.state_dict()[name] is getattr(mha, name)


@pytest.mark.quick
def test_state_dict_makes_another_layer_equal(dtype, tmp_path):
    mha = layer(12, 4, num_kv_heads=2, bias=True)
    other = layer(12, 4, num_kv_heads=2, bias=True, seed=1, dtype=dtype)
    np.savez(tmp_path / "state.npz", **mha.state_dict())
    arrays = other.parameters()
    with np.load(tmp_path / "state.npz") as state:
        other.load_state_dict(state)
    for name, array in mha.parameters().items():
        assert other.parameters()[name] is arrays[name]
        assert arrays[name].dtype == dtype
        assert not np.shares_memory(arrays[name], array)
        assert_same_bits(arrays[name], _dtypes.rounded(array, dtype))


def test_loaded_values_are_rounded_once():
    head = SelfAttention(1, 1, bias=False, dtype=np.float16)
    just_above_half = 1 + 2.0**-11 + 2.0**-40  # in float32 exactly half
    head.load_state_dict({name: [[just_above_half]] for name in head.parameters()})
    assert head.W_q[0, 0] == 1 + 2.0**-10


def test_parameters_may_be_loaded_from_each_other():
    mha = layer(12, 4)
    before = {name: array.copy() for name, array in mha.parameters().items()}
    mha.load_state_dict({**mha.state_dict(), "W_q": mha.W_k, "W_k": mha.W_q.T})
    assert_same_bits(mha.W_q, before["W_k"])
    assert_same_bits(mha.W_k, before["W_q"].T.copy())


@pytest.mark.quick
def test_loading_lists_all_that_is_wrong_and_changes_nothing():
    mha = layer(12, 4)
    before = copy.deepcopy(mha)
    state = {name: array + 1 for name, array in before.parameters().items()}
    del state["W_v"], state["b_o"]
    state |= {"W_k": np.zeros((12, 3)), "W_o": np.zeros(12), "W_x": np.zeros(1)}
    text = (
        "state: missing W_v, b_o; unexpected W_x; W_k: expected shape (12, 12), got "
        "(12, 3); W_o: expected shape (12, 12), got (12,)"
    )
    with pytest.raises(ValueError, match=r"^state: missing") as caught:
        mha.load_state_dict(state)
    assert str(caught.value) == text
    for bad in ("x", 1j):
        with pytest.raises(TypeError, match=r"state\['b_o'\]: expected .* got dtype"):
            mha.load_state_dict(
                {**before.state_dict(), "W_q": state["W_q"], "b_o": [bad] * 12}
            )
    with pytest.raises(TypeError, match="state: expected a mapping, got list"):
        mha.load_state_dict([])
    mha.b_o.flags.writeable = False
    with pytest.raises(ValueError, match=r"^b_o: expected .* written to"):
        mha.load_state_dict(
            {name: array + 1 for name, array in before.parameters().items()}
        )
    assert_same_parameters(mha, before)


@pytest.mark.quick
def test_zero_sizes():
    mha = layer(12, 4)
    for shape in ((0, 12), (0, 5, 12), (3, 0, 12)):
        output, weights = mha(np.zeros(shape), return_weights=True)
        assert output.shape == shape
        assert weights.shape == (*shape[:-2], 4, shape[-2], shape[-2])
    output = mha(normal(5, 12, dtype="float64"), np.zeros((0, 12)))
    assert_same_bits(output, np.broadcast_to(mha.b_o, (5, 12)).copy())
    cache = KVCache(0, 4, 3, 3)
    assert mha(np.zeros((0, 2, 12)), cache=cache).shape == (0, 2, 12)


def test_arguments_are_left_alone():
    mha, x = layer(16, 4), normal(2, 5, 16, dtype="float64")
    before = x.copy()
    x.flags.writeable = False
    parameters = copy.deepcopy(mha)
    mha(x, x, causal=True)
    mha(x, rotary=positions.Rotary(4), cache=KVCache(2, 4, 5, 4))
    assert_same_bits(x, before)
    assert_same_parameters(mha, parameters)


X = np.zeros((2, 3, 12), np.float32)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("embed_dim", lambda: MultiHeadAttention(0, 1)),
        ("num_heads", lambda: MultiHeadAttention(12, 5)),
        ("num_heads", lambda: MultiHeadAttention(12, 0)),
        ("num_kv_heads", lambda: MultiHeadAttention(12, 4, num_kv_heads=3)),
        ("num_kv_heads", lambda: MultiHeadAttention(12, 4, num_kv_heads=8)),
        ("head_dim", lambda: MultiHeadAttention(12, 4, 0)),
        ("value_head_dim", lambda: SelfAttention(12, 4, value_head_dim=-1)),
        ("x", lambda: layer(12, 4)(X[..., :8])),
        ("x", lambda: layer(12, 4)(X[0, 0])),
        ("x", lambda: layer(12, 4)(X[None], cache=KVCache(2, 4, 3, 3))),
        ("context", lambda: layer(12, 4)(X, X[..., :8])),
        ("context", lambda: layer(12, 4, context_dim=8)(X)),
        ("context", lambda: layer(12, 4).project_context(X[None])),
        ("kv_lengths", lambda: layer(12, 4).project_context(X, kv_lengths=4)),
        ("cache", lambda: layer(12, 4)(X, cache=KVCache(1, 4, 3, 3))),
        ("cache", lambda: layer(12, 4)(X[0], cache=KVCache(2, 4, 3, 3))),
        ("cache", lambda: layer(12, 4)(X, cache=KVCache(2, 2, 3, 3))),
        ("cache", lambda: layer(12, 4)(X, cache=KVCache(2, 4, 3, 4))),
        ("cache", lambda: layer(12, 4)(X, cache=KVCache(2, 4, 2, 3))),
        ("context", lambda: layer(12, 4)(X[0], KVCache(2, 4, 3, 3))),
        ("kv_lengths", lambda: layer(12, 4)(X, kv_lengths=4)),
        (
            "kv_lengths",
            lambda: layer(12, 4)(X, kv_lengths=4, cache=KVCache(2, 4, 3, 3)),
        ),
        ("rotary", lambda: layer(12, 4)(X, rotary=positions.Rotary(4))),
        ("x", lambda: SelfAttention(6, 3)(X)),
        ("context", lambda: SelfAttention(12, 3)(X, X[..., :8])),
    ],
)
def test_wrong_numbers_and_shapes_are_value_errors(name, call):
    with refused(ValueError, name):
        call()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cache", lambda: layer(12, 4)(X, X, cache=KVCache(2, 4, 3, 3))),
        ("rotary", lambda: layer(12, 4)(X, X, rotary=positions.Rotary(2))),
        ("kv_lengths", lambda: layer(12, 4)(X, KVCache(2, 4, 3, 3), kv_lengths=1)),
    ],
)
def test_arguments_that_exclude_each_other_are_value_errors(name, call):
    with pytest.raises(ValueError, match=rf"^{name}: expected None "):
        call()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("embed_dim", lambda: MultiHeadAttention(12.0, 4)),
        ("dtype", lambda: MultiHeadAttention(12, 4, dtype=int)),
        ("rng", lambda: MultiHeadAttention(12, 4, rng=0)),
        ("rng", lambda: SelfAttention(12, 4, rng=np.random)),
        ("bias", lambda: MultiHeadAttention(12, 4, bias=1)),
        ("x", lambda: layer(12, 4)(X.astype(complex))),
        ("cache", lambda: layer(12, 4)(X, cache=[KVCache(2, 4, 3, 3)])),
        ("rotary", lambda: layer(12, 4)(X, rotary=lambda x, places: x)),
        ("average_weights", lambda: layer(12, 4)(X, average_weights=1)),
    ],
)
def test_wrong_kinds_are_type_errors(name, call):
    with refused(TypeError, name):
        call()


def test_everything_public_is_listed():
    assert layers.__all__ == ["LayerGradients", "MultiHeadAttention", "SelfAttention"]
