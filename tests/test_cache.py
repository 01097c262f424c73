"""KVCache: what goes in comes out, at each sequence's own place."""

import contextlib
import copy
import functools
import sys

import numpy as np
import pytest
from support.arrays import normal, read_only
from support.comparisons import assert_same_bits
from support.errors import refused

import attnpy
from attnpy import cache as cache_module
from attnpy.blocks import decoder
from attnpy.cache import KVCache

pytestmark = pytest.mark.quick


def tokens(n, seed=0, batch=2, n_heads=3, dim=4, value_dim=5, dtype="float32"):
    """A key and a value of n tokens."""
    return (
        normal(batch, n_heads, n, dim, dtype=dtype, seed=2 * seed),
        normal(batch, n_heads, n, value_dim, dtype=dtype, seed=2 * seed + 1),
    )


def new(capacity, **options):
    """A cache for these tokens."""
    return KVCache(2, 3, capacity, 4, 5, **options)


def state(cache):
    """All that can be seen of a cache."""
    return (
        cache.capacity,
        cache.lengths.tolist(),
        cache.key.tobytes(),
        cache.value.tobytes(),
    )


def test_new_cache_is_empty():
    cache = KVCache(2, 3, 7, 4)
    assert (cache.batch_size, cache.num_kv_heads, cache.capacity) == (2, 3, 7)
    assert (cache.head_dim, cache.value_head_dim) == (4, 4)
    assert cache.lengths.tolist() == [0, 0]
    assert cache.lengths.dtype == np.int64
    assert cache.key.shape == cache.value.shape == (2, 3, 0, 4)
    assert cache.key.dtype == cache.value.dtype == np.float32
    assert not cache.growable


def test_append_goes_on_where_the_last_one_ended(dtype):
    key, value = tokens(9, dtype=dtype)
    cache = new(9, dtype=dtype)
    for part in (slice(0, 4), slice(4, 4), slice(4, 5), slice(5, 9)):
        cache.append(key[:, :, part], value[:, :, part])
        assert_same_bits(np.array(cache.key), key[:, :, : part.stop])
        assert_same_bits(np.array(cache.value), value[:, :, : part.stop])
    assert cache.lengths.tolist() == [9, 9]


def test_sequences_have_lengths_of_their_own():
    cache = new(8)
    first, second = tokens(3), tokens(4, seed=1)
    cache.append(*first, lengths=[3, 1])
    cache.append(*second, lengths=[0, 4])
    cache.append(*(x[:, :, :1] for x in second))
    assert cache.lengths.tolist() == [4, 6]
    for kept, a, b in zip((cache.key, cache.value), first, second, strict=True):
        assert kept.shape[2] == 6
        assert_same_bits(kept[0, :, :4], np.append(a[0], b[0, :, :1], axis=1))
        rows = np.concatenate((a[1, :, :1], b[1], b[1, :, :1]), axis=1)
        assert_same_bits(kept[1], rows)


def test_padding_is_not_looked_at():
    key, value = tokens(3)
    key[1, :, 1:] = value[1, :, 1:] = np.nan
    cache = new(3)
    cache.append(key, value, lengths=[3, 1])
    assert np.isfinite(cache.key).all()
    assert np.isfinite(cache.value).all()


def test_attention_over_the_cache_has_the_bits_of_each_sequence_alone(dtype):
    lengths = [7, 2]
    key, value = tokens(7, dtype=dtype)
    query = normal(2, 6, 1, 4, dtype=dtype)
    cache = new(20, dtype=dtype)
    cache.append(key, value, lengths=lengths)
    output = attnpy.attention(
        query, cache.key, cache.value, causal=True, kv_lengths=cache.lengths
    )
    for b, n in enumerate(lengths):
        alone = attnpy.attention(query[b], key[b, :, :n], value[b, :, :n])
        assert_same_bits(output[b], alone)


@pytest.mark.parametrize("counts", [None, 3, [1, 3], [3, 1]])
def test_no_room_is_an_error_that_changes_nothing(counts):
    cache = new(4)
    cache.append(*tokens(2))
    before = state(cache)
    with pytest.raises(ValueError, match="cache: expected room for 3 more tokens in "):
        cache.append(*tokens(3, seed=1), lengths=counts)
    assert state(cache) == before
    cache.append(*tokens(2, seed=1))
    assert cache.lengths.tolist() == [4, 4]


def test_error_names_the_first_sequence_without_room():
    cache = new(4)
    cache.append(*tokens(3), lengths=[1, 3])
    text = "cache: expected room for 2 more tokens in sequence 1, got 1: 3 of 4"
    with pytest.raises(ValueError, match=f"^{text}$"):
        cache.append(*tokens(2))


def test_growing_cache_keeps_all_tokens():
    key, value = tokens(50)
    cache = new(3, growable=True)
    capacities = []
    for part in (slice(0, 2), slice(2, 4), slice(4, 37), slice(37, 38), slice(38, 50)):
        cache.append(key[:, :, part], value[:, :, part])
        capacities.append(cache.capacity)
    assert capacities == [3, 6, 37, 74, 74]
    assert_same_bits(np.array(cache.key), key)
    assert_same_bits(np.array(cache.value), value)


def test_growing_begins_with_no_room_at_all():
    cache = new(0, growable=True)
    cache.append(*tokens(2), lengths=[0, 1])
    assert (cache.capacity, cache.lengths.tolist()) == (1, [0, 1])


def test_views_of_before_stay_as_they_are():
    cache = new(4, growable=True)
    cache.append(*tokens(2))
    lengths, key = cache.lengths, cache.key
    cache.append(*tokens(1))
    assert lengths.tolist() == [2, 2]
    assert np.shares_memory(cache.key, key)
    assert key.shape[2] == 2
    cache.append(*tokens(9))
    assert not np.shares_memory(cache.key, key)
    with pytest.raises(ValueError, match="read-only"):
        cache.lengths[0] = 1


def test_truncate_and_reset_forget_the_last_tokens():
    key, value = tokens(6)
    cache = new(6)
    cache.append(key, value)
    cache.truncate([4, 2])
    assert cache.lengths.tolist() == [4, 2]
    assert cache.key.shape[2] == 4
    cache.append(key[:, :, 4:], value[:, :, 4:])
    assert_same_bits(np.array(cache.key[0]), key[0])
    assert_same_bits(np.array(cache.key[1, :, 2:4]), key[1, :, 4:])
    cache.truncate(3)
    assert cache.lengths.tolist() == [3, 3]
    cache.reset()
    assert cache.lengths.tolist() == [0, 0]
    assert cache.key.shape[2] == 0
    cache.append(key, value)
    assert_same_bits(np.array(cache.value), value)


def test_sequences_are_selected_in_an_order():
    key, value = tokens(6)
    for chosen in ([1, 1], [1, 0], [0, 1], [1], [0, 1, 0], []):
        cache = new(6)
        cache.append(key, value, lengths=[5, 3])
        cache.select(chosen)
        assert cache.batch_size == len(chosen)
        assert cache.lengths.tolist() == [[5, 3][b] for b in chosen]
        for row, b in enumerate(chosen):
            n = [5, 3][b]
            assert_same_bits(np.array(cache.key[row, :, :n]), key[b, :, :n])
            assert_same_bits(np.array(cache.value[row, :, :n]), value[b, :, :n])
        cache.append(key[chosen, :, :1], value[chosen, :, :1])
    cache = new(6)
    cache.append(key, value)
    for wrong in ([2], [-1], 0, [[0]]):
        with pytest.raises(ValueError, match="sequences: expected"):
            cache.select(wrong)
    with pytest.raises(TypeError, match="sequences: expected"):
        cache.select([0.5, 1])
    assert_same_bits(np.array(cache.key), key)


@pytest.mark.parametrize("make_copy", [KVCache.copy, copy.deepcopy])
def test_copy_is_on_its_own(make_copy):
    cache = new(4, growable=True)
    cache.append(*tokens(3), lengths=[3, 1])
    other = make_copy(cache)
    before = state(cache)
    assert state(other) == before
    other.append(*tokens(1, seed=1))
    assert state(cache) == before
    assert other.lengths.tolist() == [4, 2]
    other.append(*tokens(1, seed=1))
    assert other.capacity == 8


def test_given_arrays_are_filled_in_place():
    key, value = np.zeros((2, 8, 3, 4)).swapaxes(1, 2), np.zeros((2, 3, 8, 5), "f2")
    cache = new(8, key=key, value=value)
    appended = tokens(3)
    cache.append(*appended)
    assert_same_bits(key[:, :, :3], appended[0].astype(float))
    assert_same_bits(value[:, :, :3], appended[1].astype("f2"))
    assert not key[:, :, 3:].any()
    assert (cache.key.dtype, cache.value.dtype) == (np.float64, np.float16)


def test_memmap_keeps_the_cache_on_disk(tmp_path):
    key, value = tokens(5)

    def storage(mode):
        return {
            name: np.memmap(tmp_path / name, np.float32, mode, shape=(2, 3, 9, size))
            for name, size in (("key", 4), ("value", 5))
        }

    cache = new(9, **storage("w+"))
    cache.append(key, value, lengths=[5, 2])
    lengths = cache.lengths
    cache.key.flush()
    cache.value.flush()
    del cache
    again = new(9, **storage("r+"), lengths=lengths)
    assert again.lengths.tolist() == [5, 2]
    assert_same_bits(np.array(again.key[0]), key[0])
    assert_same_bits(np.array(again.value[1, :, :2]), value[1, :, :2])
    again.append(key[:, :, :1], value[:, :, :1])
    on_disk = np.fromfile(tmp_path / "key", np.float32).reshape(2, 3, 9, 4)
    assert_same_bits(on_disk[1, :, 2], key[1, :, 0])


def test_numbers_are_rounded_to_the_dtype_of_the_cache():
    key, value = tokens(3)
    cache = new(3, dtype=np.float16)
    cache.append(key, value)
    assert_same_bits(np.array(cache.key), key.astype(np.float16))
    cache.reset()
    cache.append(np.ones(key.shape, int), np.ones(value.shape, bool))
    assert (cache.key == 1).all()


def test_zero_sizes():
    for shape in ((0, 3, 4, 5, 6), (2, 0, 4, 5, 6), (2, 3, 4, 0, 0), (2, 3, 0, 5, 6)):
        cache = KVCache(*shape)
        batch, n_heads, n, dim, value_dim = shape
        cache.append(*tokens(n, 0, batch, n_heads, dim, value_dim))
        assert cache.lengths.tolist() == [n] * batch


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("batch_size", lambda: KVCache(-1, 1, 1, 1)),
        ("capacity", lambda: KVCache(1, 1, -1, 1)),
        ("key", lambda: new(8, key=np.zeros((2, 3, 7, 4)))),
        ("value", lambda: new(8, value=np.zeros((2, 3, 8, 4)))),
        ("growable", lambda: new(8, key=np.zeros((2, 3, 8, 4)), growable=True)),
        ("lengths", lambda: new(8, lengths=9)),
        ("lengths", lambda: new(8, lengths=[1, 2, 3])),
        ("lengths", lambda: new(8, lengths=[[1, 2]])),
        ("lengths", lambda: new(8).truncate(1)),
        ("lengths", lambda: new(8, lengths=4).truncate([4, 5])),
        ("lengths", lambda: new(8, lengths=4).truncate(-1)),
        ("lengths", lambda: new(8).append(*tokens(3), lengths=4)),
        ("lengths", lambda: new(8).append(*tokens(3), lengths=[1, -1])),
        ("lengths", lambda: new(8).append(*tokens(3), lengths=[1])),
        ("key", lambda: new(8).append(*tokens(3, batch=1))),
        ("key", lambda: new(8).append(*tokens(3, n_heads=1))),
        ("key", lambda: new(8).append(tokens(3)[0][0], tokens(3)[1])),
        ("value", lambda: new(8).append(tokens(3)[0], tokens(3)[0])),
        ("value", lambda: new(8).append(tokens(3)[0], tokens(2)[1])),
    ],
)
def test_wrong_numbers_and_shapes_are_value_errors(name, call):
    with refused(ValueError, name):
        call()


def test_read_only_arrays_are_refused():
    with pytest.raises(ValueError, match=r"^value: expected .* written to"):
        new(8, value=read_only(np.zeros((2, 3, 8, 5), np.float32)))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("batch_size", lambda: KVCache(1.0, 1, 1, 1)),
        ("dtype", lambda: new(8, dtype=np.int32)),
        ("key", lambda: new(8, key=np.zeros((2, 3, 8, 4), int))),
        ("key", lambda: new(8, key=[1.0])),
        ("growable", lambda: new(8, growable=1)),
        ("lengths", lambda: new(8, lengths=1.0)),
        ("lengths", lambda: new(8).append(*tokens(3), lengths=[1.0, 2.0])),
        ("key", lambda: new(8).append(*tokens(3, dtype="complex64"))),
    ],
)
def test_wrong_kinds_are_type_errors(name, call):
    with refused(TypeError, name):
        call()


def test_all_or_nothing_is_nothing_after_an_error():
    caches = [new(4), new(4)]
    caches[0].append(*tokens(1))
    with pytest.raises(KeyboardInterrupt), cache_module.all_or_nothing(caches) as lent:
        for cache in lent:
            cache.append(*tokens(3))
        raise KeyboardInterrupt
    assert [cache.lengths.tolist() for cache in caches] == [[1, 1], [0, 0]]


def is_interrupted(call, n):
    """Raise KeyboardInterrupt at the n-th step of what keeps caches; was there one?"""
    files, left = {cache_module.__file__, decoder.__file__, contextlib.__file__}, [n]

    def trace(frame, event, _):
        frame.f_trace_opcodes = True
        if frame.f_code.co_filename not in files:
            return None
        if event == "opcode":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def filled_cache():
    cache = new(2, growable=True)
    cache.append(*tokens(2))
    return [cache]


LAYERS = decoder.Decoder(2, 8, 2, 8, cross_attention=False)
X = normal(2, 3, 8)


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (filled_cache, lambda caches: caches[0].append(*tokens(3))),
        (
            lambda: LAYERS.new_caches(2, 1, growable=True),
            lambda caches: LAYERS(X, caches=caches),
        ),
    ],
    ids=["append", "decoder"],
)
def test_an_interrupt_at_any_step_leaves_caches_unchanged_or_complete(make, call):
    complete = make()
    before = [cache.lengths.tolist() for cache in complete]
    call(complete)
    after = [cache.lengths.tolist() for cache in complete]
    raised, n = True, 0
    while raised:
        caches, n = make(), n + 1
        raised = is_interrupted(functools.partial(call, caches), n)
        assert [cache.lengths.tolist() for cache in caches] in (before, after)
        for cache, length in zip(caches, before, strict=True):
            cache.truncate(length)
        call(caches)
        assert list(map(state, caches)) == list(map(state, complete))
    assert n > 50


def test_everything_public_is_listed():
    assert cache_module.__all__ == ["KVCache", "hadamard"]
