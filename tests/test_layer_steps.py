"""A layer's one call against its steps, by `linear`, `attention` and NumPy."""

import functools

import numpy as np
import pytest
from support.arrays import byte_swapped, misaligned, normal
from support.calls import attend_on, layers_on, linear_on, threads_for_any_work
from support.comparisons import assert_same_bits
from support.errors import refused
from support.formulas import rotated
from support.processes import assert_runs

from attnpy.blocks import LayerNorm, RMSNorm
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.positions import Rotary

E, H, HK, D, DV, L, B = 12, 4, 2, 6, 5, 7, 2


@pytest.fixture
def on_tier(tier):
    """Layers on one instruction set, whose name this is."""
    with layers_on(tier):
        yield tier


def layer(dtype, seed=0):
    """A layer with grouped heads, values of another size, and all biases."""
    mha = MultiHeadAttention(
        E, H, D, num_kv_heads=HK, value_head_dim=DV, bias=True, dtype=dtype
    )
    for i, array in enumerate(mha.parameters().values()):
        array[...] = normal(*array.shape, seed=seed + i) / 2
    return mha


def norm(kind, dtype, n_heads=1):
    """A norm of heads, one by one or together, with other weights than 1."""
    made = kind(n_heads * D, dtype=dtype)
    for array in made.parameters().values():
        array[...] = normal(len(array), seed=len(array) + array.dtype.itemsize)
    return made


def turned(x, rotary, places):
    """The heads after their rotary embedding, if any."""
    if rotary is None:
        return x
    real = np.float64 if x.dtype == np.float64 else np.float32
    return rotated(x, *rotary.tables(places, real), rotary.interleaved)


def project(tier, mha, x, letter, n_heads, norm=None):
    """The heads of a projection, (..., n_heads, L, size)."""
    weight, bias = getattr(mha, f"W_{letter}"), getattr(mha, f"b_{letter}")
    rows = linear_on(tier, x, weight, bias)
    if norm is not None and len(norm.weight) != D:
        rows = norm(rows)  # of all heads together
    heads = rows.reshape(*rows.shape[:-1], n_heads, -1).swapaxes(-3, -2)
    return heads if norm is None or len(norm.weight) != D else norm(heads)


def steps(tier, mha, x, context=None, cache=None, rotary=None, counts=None, **options):
    """(output, weights) of a layer's call; tokens go into the arrays of the cache."""
    start = np.zeros((), int) if cache is None else cache.lengths[:, None, None]
    query = project(tier, mha, x, "q", H, mha.q_norm)
    source = x if context is None else context
    key = project(tier, mha, source, "k", HK, mha.k_norm)
    value = project(tier, mha, source, "v", HK)
    if rotary is not None:
        places = start + np.arange(x.shape[-2])
        query, key = turned(query, rotary, places), turned(key, rotary, places)
    if context is None:
        options = {"q_offset": 0, **options}
    if cache is not None:
        options = {**options, "q_offset": cache.lengths}
        cache.append(key, value, counts)
        key, value, counts = cache.key, cache.value, cache.lengths
    heads, weights = attend_on(
        tier, query, key, value, return_weights=True, kv_lengths=counts, **options
    )
    joined = heads.swapaxes(-3, -2)
    joined = np.ascontiguousarray(joined).reshape(*joined.shape[:-2], -1)
    return linear_on(tier, joined, mha.W_o, mha.b_o), weights


def rows_of(cache):
    """The keys and values of each sequence."""
    return [
        (cache.key[b, :, :n].tobytes(), cache.value[b, :, :n].tobytes())
        for b, n in enumerate(cache.lengths)
    ]


ROTARIES = (None, Rotary(D), Rotary(D, interleaved=True, rotary_dim=4))
MASK = np.random.default_rng(0).random((B, H, L, L)) < 0.7


@pytest.mark.quick
@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("kind", [None, RMSNorm, LayerNorm])
def test_a_call_is_its_steps(on_tier, dtype, kind, rotary):
    mha = layer(dtype)
    if kind is not None:
        mha.q_norm, mha.k_norm = norm(kind, dtype), norm(kind, np.float32)
    for shape in ((L, E), (B, L, E), (2, B, 1, E)):
        x = normal(*shape, dtype=dtype)
        result = mha(x, rotary=rotary, causal=True, return_weights=True)
        assert_same_bits(result, steps(on_tier, mha, x, rotary=rotary, causal=True))


@pytest.mark.quick
@pytest.mark.parametrize("rotary", ROTARIES[:2])
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_all_heads_of_a_token_are_normalized_together(on_tier, dtype, kind, rotary):
    mha = layer(dtype)
    mha.q_norm, mha.k_norm = norm(kind, dtype, H), norm(kind, np.float32, HK)
    x = normal(B, L, E, dtype=dtype)
    how = {"rotary": rotary, "causal": True}
    result = mha(x, return_weights=True, **how)
    assert_same_bits(result, steps(on_tier, mha, x, **how))
    with threads_for_any_work():
        assert_same_bits(mha(x, num_threads=3, **how), result[0])
    cache = KVCache(B, HK, L, D, DV, dtype=mha.k_norm(mha.W_k[:1]).dtype)
    parts = [mha(x[:, i : i + 3], cache=cache, **how) for i in range(0, L, 3)]
    assert_same_bits(np.concatenate(parts, 1), result[0])
    flat = mha(x.reshape(-1, E), seq_offsets=[0, L, 2 * L], **how)
    assert_same_bits(flat.reshape(B, L, -1), result[0])
    if rotary is None:
        context = normal(9, E, dtype=dtype)
        crossed = mha(x, context, return_weights=True)
        assert_same_bits(crossed, steps(on_tier, mha, x, context))
        if dtype.itemsize > 2:  # whose keys are rounded in a cache
            assert_same_bits(mha(x, mha.project_context(context)), crossed[0])


@pytest.mark.quick
@pytest.mark.parametrize(
    "options",
    [
        {"mask": MASK, "bias": normal(L, L)},
        {"causal": "top_left", "window": (2, 1), "scale": 0.3, "softcap": 2.0},
        {"sinks": normal(H), "q_offset": [3, -1], "causal": True},
    ],
)
def test_options_are_those_of_attention(on_tier, dtype, options):
    mha, x = layer(dtype), normal(B, L, E, dtype=dtype)
    result = mha(x, return_weights=True, **options)
    assert_same_bits(result, steps(on_tier, mha, x, **options))
    counts = [5, L]
    result = mha(x, return_weights=True, kv_lengths=counts, **options)
    assert_same_bits(result, steps(on_tier, mha, x, counts=counts, **options))


@pytest.mark.quick
def test_a_context_is_projected_as_in_steps(on_tier, dtype):
    mha, x = layer(dtype), normal(B, L, E, dtype=dtype)
    for context in (normal(9, E, dtype=dtype), normal(B, 9, E, dtype=dtype)):
        result = mha(x, context, return_weights=True)
        assert_same_bits(result, steps(on_tier, mha, x, context))


def spread(array):
    return np.zeros((*array.shape[:3], 3 * array.shape[3]), array.dtype)[..., ::-3]


@pytest.mark.quick(kept=(np.float32,), store=(np.copy, spread))
@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("store", [np.copy, spread, misaligned, byte_swapped])
@pytest.mark.parametrize("kept", [np.float64, np.float32, np.float16])
def test_a_cache_of_any_kind_is_filled_as_in_steps(on_tier, dtype, kept, store, rotary):
    if kept == np.float16 and dtype.name == "bfloat16":
        pytest.skip("float16 and bfloat16 have no common dtype")
    mha, x = layer(dtype), normal(B, L, E, dtype=dtype)
    arrays = np.zeros((B, HK, 20, D), kept), np.zeros((B, HK, 20, DV), kept)
    one, other = (
        KVCache(B, HK, 20, D, DV, key=store(arrays[0]), value=store(arrays[1]))
        for _ in range(2)
    )
    for part, counts in ((slice(0, 4), [4, 2]), (slice(4, 5), None), (slice(5, 7), 1)):
        arguments = {"causal": True, "rotary": rotary}
        result = mha(
            x[:, part], cache=one, kv_lengths=counts, return_weights=True, **arguments
        )
        expected = steps(
            on_tier, mha, x[:, part], cache=other, counts=counts, **arguments
        )
        assert_same_bits(result, expected)
        assert one.lengths.tolist() == other.lengths.tolist()
        assert rows_of(one) == rows_of(other)


def test_steps_round_to_each_step_s_dtype(on_tier):
    # A wide weight here and there: 16-bit numbers in one step, float64 in the next.
    for wide in ("W_q", "W_k", "W_v", "W_o", "b_k", "b_o"):
        mha, x = layer(np.float16), normal(B, L, E, dtype="float16")
        for dtype in (np.float32, np.float64):
            setattr(mha, wide, getattr(mha, wide).astype(dtype))
            for rotary in ROTARIES:
                result = mha(x, rotary=rotary, return_weights=True)
                assert_same_bits(result, steps(on_tier, mha, x, rotary=rotary))
            caches = [KVCache(B, HK, L, D, DV, dtype=np.float32) for _ in range(2)]
            result = mha(x, cache=caches[0], return_weights=True)
            assert_same_bits(result, steps(on_tier, mha, x, cache=caches[1]))
            assert rows_of(caches[0]) == rows_of(caches[1])


@pytest.mark.quick
def test_parameters_and_tokens_of_any_layout(on_tier, dtype):
    mha, x = layer(dtype), normal(B, L, E, dtype=dtype)
    expected = mha(x, return_weights=True)
    for store in (byte_swapped, misaligned, np.asfortranarray):
        if store is byte_swapped and dtype.name == "bfloat16":
            continue
        stored = layer(dtype)
        for name, array in mha.parameters().items():
            setattr(stored, name, store(array))
        assert_same_bits(stored(store(x), return_weights=True), expected)
    wide = layer(np.float64)
    assert_same_bits(wide(x.astype(float).tolist()), wide(x.astype(float)))


@pytest.mark.quick
def test_one_head_is_its_steps(on_tier, dtype):
    head = SelfAttention(E, D, value_head_dim=DV, bias=True, dtype=dtype)
    x, context = normal(B, L, E, dtype=dtype), normal(9, E, dtype=dtype)
    for source, offset in ((x, 0), (context, None)):
        query, key, value = (
            project(on_tier, head, tokens, letter, 1)
            for tokens, letter in ((x, "q"), (source, "k"), (source, "v"))
        )
        expected = attend_on(
            on_tier,
            query,
            key,
            value,
            q_offset=offset,
            causal=True,
            return_weights=True,
        )
        result = head(
            x, None if source is x else source, causal=True, return_weights=True
        )
        assert_same_bits(result, tuple(array[..., 0, :, :] for array in expected))


@pytest.mark.quick
def test_threads_and_batches_change_no_bit(dtype):
    mha, x = layer(dtype), normal(5, 90, E, dtype=dtype)
    call = functools.partial(mha, causal=True, rotary=ROTARIES[1], return_weights=True)
    expected = call(x, num_threads=1)
    with threads_for_any_work():
        for n in (2, 3, 8):
            assert_same_bits(call(x, num_threads=n), expected)
            cache = KVCache(5, HK, 90, D, DV, dtype=dtype)
            assert_same_bits(call(x, cache=cache, num_threads=n), expected)
    for b in range(5):
        assert_same_bits(call(x[b]), tuple(array[b] for array in expected))


def test_tokens_may_lie_in_the_cache(dtype):
    mha = MultiHeadAttention(D, 1, num_kv_heads=1, dtype=dtype)
    for places in (slice(0, 5), slice(2, 7), slice(5, 10)):
        key = normal(1, 1, 12, D, dtype=dtype)
        value = normal(1, 1, 12, D, dtype=dtype, seed=1)
        x = key[0, :, places]
        expected = mha(
            x.copy(), cache=KVCache(1, 1, 12, D, key=key.copy(), value=value.copy())
        )
        cache = KVCache(1, 1, 12, D, key=key, value=value)
        assert_same_bits(mha(x, cache=cache), expected)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_norms_are_those_of_blocks_of_the_heads_size(name):
    mha, x = layer(np.float32), normal(L, E)
    setattr(mha, name, np.tanh)
    with pytest.raises(TypeError, match=f"^{name}: expected an attnpy.blocks.RMSNorm "):
        mha(x)
    setattr(mha, name, RMSNorm(D + 1))
    all_heads = (H if name == "q_norm" else HK) * D
    message = rf"^{name}: expected a norm of \({D},\), or \({all_heads},\) for all "
    with pytest.raises(ValueError, match=message):
        mha(x)


@pytest.mark.quick
def test_no_memory_leaves_the_cache_alone():
    # One number serves as 2**50 keys and values; their weights have no room.
    n = 1 << 50
    number = np.zeros(1, np.float32)
    store = np.lib.stride_tricks.as_strided(number, (1, 1, n, 1), (0,) * 4)
    cache = KVCache(1, 1, n, 1, key=store, value=store, lengths=n - 1)
    with pytest.raises(MemoryError):
        MultiHeadAttention(3, 1, 1)(normal(1, 3), cache=cache, return_weights=True)
    assert cache.lengths.tolist() == [n - 1]


def test_a_key_of_another_size_does_not_go_into_the_cache():
    mha, x = layer(np.float32), normal(1, L, E)
    mha.W_k, mha.b_k = normal(E, HK * (D + 1)), None
    cache = KVCache(1, HK, L, D, DV)
    with pytest.raises(ValueError, match=r"^key: expected "):
        mha(x, cache=cache)
    assert cache.lengths.tolist() == [0]
    assert not cache._key.any()


INTERRUPT = """
import os, signal, sys, threading, time
import numpy as np
from support.processes import wait_until
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention

n = 120000
mha = MultiHeadAttention(64, 8)
cache = KVCache(1, 8, 2 * n, 8, lengths=5)
x = np.random.default_rng(0).standard_normal((1, n, 64), dtype=np.float32)
begin = time.process_time()

def press():
    wait_until(lambda: time.process_time() > begin + 0.05)  # all in the call
    os.kill(os.getpid(), signal.SIGINT)

try:
    threading.Thread(target=press).start()
    mha(x, cache=cache, num_threads=int(sys.argv[1]))
except KeyboardInterrupt:
    assert cache.lengths.tolist() == [5]
else:
    raise AssertionError("not interrupted")
"""


@pytest.mark.parametrize("n_threads", ["1", "2"])
def test_ctrl_c_leaves_the_cache_alone(n_threads):
    assert_runs(INTERRUPT, n_threads)


@pytest.mark.quick
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_batches_with_a_cache_take_the_same_masks(batch):
    mha = MultiHeadAttention(8, 2)
    x, context = np.ones((batch, 3, 8), np.float32), np.ones((batch, 5, 8), np.float32)
    for growable in (False, True):
        cache = KVCache(batch, 2, 4 if growable else 9, 4, growable=growable)
        for n_keys in (3, 6):
            mask, bias = np.ones((3, n_keys), bool), np.zeros(n_keys)
            given = {"mask": mask, "bias": bias, "return_weights": True}
            output, weights = mha(x, cache=cache, **given)
            assert (output.shape, weights.shape) == (x.shape, (batch, 2, 3, n_keys))
    memory = mha.project_context(context)
    for given in ({"mask": np.ones((3, 5), bool)}, {"bias": np.zeros((3, 5))}):
        assert mha(x, memory, **given).shape == x.shape
    with refused(ValueError, "mask"):
        mha(x, cache=KVCache(batch, 2, 9, 4), mask=np.ones((2, 3), bool))
