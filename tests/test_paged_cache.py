"""A cache in pages has the bits of one in one piece, whatever was shared before."""

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrays import normal
from support.comparisons import assert_same_bits
from support.errors import refused

from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention
from attnpy.models import CausalDecoder
from attnpy.pages import PagedKVCache, PagePool
from attnpy.positions import Rotary

PAGE = 128


def layer(dtype=np.float32, **options):
    rng = np.random.default_rng(3)
    return MultiHeadAttention(16, 4, num_kv_heads=2, dtype=dtype, rng=rng, **options)


def model(**options):
    return CausalDecoder(
        2, 32, 4, 64, vocab_size=50, rotary=Rotary(8), num_kv_heads=2, norm="rms",
        activation="swiglu", bias=False, tied=False, rng=np.random.default_rng(0),
        **options,
    )  # fmt: skip


def used(pool):
    return pool.num_pages - pool.num_free


@pytest.mark.quick
@pytest.mark.parametrize("cache_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_layer_gives_the_bits_of_a_cache_in_one_piece(cache_dtype, n_threads):
    mha, rotary = layer(), Rotary(4)
    whole = mha.new_cache(3, 700, dtype=cache_dtype)
    paged = PagedKVCache(PagePool(20, 2, 4, dtype=cache_dtype), 3)
    for n, lengths in ((5, [5, 0, 3]), (300, [300, 1, 129]), (1, None), (2, None)):
        x = normal(3, n, 16, seed=n)
        options = {
            "causal": True, "kv_lengths": lengths, "rotary": rotary,
            "num_threads": n_threads, "return_weights": True,
        }  # fmt: skip
        expected = mha(x, cache=whole, **options)
        assert_same_bits(mha(x, cache=paged, **options), expected)
        assert_same_bits(paged.lengths, whole.lengths)
    for b, n in enumerate(whole.lengths):
        assert_same_bits(paged.key[b, :, :n], whole.key[b, :, :n])
        assert_same_bits(paged.value[b, :, :n], whole.value[b, :, :n])


def test_packed_sequences_go_into_pages():
    mha, x = layer(), normal(140, 16)
    whole, paged = mha.new_cache(3, 200), PagedKVCache(PagePool(9, 2, 4), 3)
    offsets = [0, 130, 130, 140]
    options = {"seq_offsets": offsets, "causal": True}
    assert_same_bits(mha(x, cache=paged, **options), mha(x, cache=whole, **options))


def test_a_context_in_pages_is_attended_to():
    mha, x, states = layer(), normal(2, 3, 16), normal(2, 200, 16, seed=1)
    memory = mha.project_context(states, kv_lengths=[200, 130])
    paged = PagedKVCache(PagePool(9, 2, 4), 2)
    paged.append(memory.key, memory.value, memory.lengths)
    assert_same_bits(mha(x, paged), mha(x, memory))


class Pair:
    """A cache in one piece and one in pages, to which the same is done."""

    def __init__(self, whole, paged):
        self.whole, self.paged = whole, paged

    def check(self):
        assert_same_bits(self.paged.lengths, self.whole.lengths)
        key, value = self.paged.key, self.paged.value
        for b, n in enumerate(self.whole.lengths):
            assert_same_bits(key[b, :, :n], self.whole.key[b, :, :n])
            assert_same_bits(value[b, :, :n], self.whole.value[b, :, :n])


def run_schedule(data, pool):
    """Compare caches after random changes, and count the pages they have."""
    seed = 0
    pairs = [Pair(KVCache(2, 1, 0, 2, 3, growable=True), PagedKVCache(pool, 2))]
    for _ in range(data.draw(st.integers(1, 12))):
        pair = pairs[data.draw(st.integers(0, len(pairs) - 1))]
        size, seed = pair.whole.batch_size, seed + 1
        action = data.draw(st.sampled_from(["append", "fork", "truncate", "forget"]))
        if action == "append":
            n = data.draw(st.sampled_from([1, 2, 100, 127, 128, 129, 200]))
            counts = data.draw(
                st.lists(st.integers(0, n), min_size=size, max_size=size)
            )
            tokens = (
                normal(size, 1, n, 2, seed=seed),
                normal(size, 1, n, 3, seed=seed + 99),
            )
            before = pair.paged.lengths, used(pool)
            try:
                pair.paged.append(*tokens, counts)
            except MemoryError as error:
                assert str(error).startswith("pages: expected")
                assert_same_bits((pair.paged.lengths, used(pool)), before)
            else:
                pair.whole.append(*tokens, counts)
        elif action == "fork":
            chosen = data.draw(
                st.lists(st.integers(0, size - 1), min_size=1, max_size=3)
            )
            try:
                paged = pair.paged.fork(chosen)
            except MemoryError as error:
                assert str(error).startswith("pages: expected")
            else:
                pairs.append(Pair(pair.whole.fork(chosen), paged))
        elif action == "truncate":
            kept = [data.draw(st.integers(0, n)) for n in pair.whole.lengths.tolist()]
            pair.whole.truncate(kept)
            pair.paged.truncate(kept)
        elif len(pairs) > 1:
            pairs.remove(pair)
        for one in pairs:
            one.check()
        del pair, one
        paged = None
    numbers = {p.number for x in pairs for held in x.paged._held for p in held.pages}
    gc.collect()  # errors refer to calls that had pages
    assert used(pool) == len(numbers)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_schedule_of_appends_forks_and_truncations(data):
    pool = PagePool(40, 1, 2, 3)
    run_schedule(data, pool)
    gc.collect()
    assert used(pool) == 0


def test_forks_share_whole_pages_and_copy_the_last():
    pool = PagePool(10, 2, 4)
    cache = PagedKVCache(pool, 1)
    cache.append(normal(1, 2, 300, 4), normal(1, 2, 300, 4))
    forks = [cache.fork([0, 0]) for _ in range(3)]
    assert used(pool) == 3 + 6
    assert all(
        (fork.page_table[:, :2] == cache.page_table[:, :2]).all() for fork in forks
    )
    forks.clear()
    assert used(pool) == 3


def test_a_shared_page_is_copied_before_it_is_written_to():
    pool = PagePool(10, 2, 4)
    one = PagedKVCache(pool, 1)
    one.append(normal(1, 2, 256, 4), normal(1, 2, 256, 4))
    other, key = one.fork(), one.key
    other.truncate(200)
    other.append(normal(1, 2, 9, 4, seed=9), normal(1, 2, 9, 4, seed=9))
    assert_same_bits(one.key, key)
    assert other.page_table[0, 0] == one.page_table[0, 0]
    assert other.page_table[0, 1] != one.page_table[0, 1]


def test_a_call_that_lacks_pages_changes_no_cache():
    decoder = model()
    pools = decoder.new_page_pools(5)
    pools[1] = PagePool(3, 2, 8)  # the first layer has enough
    caches = [PagedKVCache(pool, 2) for pool in pools]
    ids = np.random.default_rng(1).integers(0, 50, (2, 130))
    decoder(ids[:, :120], caches=caches)
    with pytest.raises(
        MemoryError, match="pages: expected 2 free ones of the pool's 3"
    ):
        decoder(ids[:, 120:], caches=caches)
    assert [used(pool) for pool in pools] == [2, 2]
    assert all((cache.lengths == 120).all() for cache in caches)
    new = decoder(ids[:, 120:128], caches=caches)
    assert_same_bits(new, decoder(ids)[:, 120:128])


def test_released_pages_go_back_and_windows_hide_them():
    mha, pool = layer(), PagePool(10, 2, 4)
    whole, paged = mha.new_cache(1, 500), PagedKVCache(pool, 1)
    x, options = normal(1, 400, 16), {"causal": True, "window": (100, 0)}
    mha(x[:, :300], cache=whole, **options)
    mha(x[:, :300], cache=paged, **options)
    paged.release(200)
    assert used(pool) == 2
    for i in range(300, 400):
        assert_same_bits(
            mha(x[:, i : i + 1], cache=paged, **options),
            mha(x[:, i : i + 1], cache=whole, **options),
        )
    fork = paged.fork()
    assert used(pool) == 3 + 1
    assert_same_bits(
        mha(x[:, :1], cache=fork, **options), mha(x[:, :1], cache=whole, **options)
    )
    with refused(ValueError, "window"):
        mha(x[:, :1], cache=paged, causal=True)
    with refused(ValueError, "window"):
        mha(x[:, :1], cache=paged, causal=True, window=(300, 0))
    with refused(ValueError, "lengths"):
        paged.truncate(100)
    with refused(ValueError, "cache"):
        paged.key  # noqa: B018
    paged.reset()
    gc.collect()  # the errors refer to calls that had the pages
    assert used(pool) == 3
    mha(x, cache=paged, causal=True)


def test_select_keeps_some_sequences():
    pool, whole = PagePool(10, 1, 2), KVCache(3, 1, 150, 2)
    paged, tokens = PagedKVCache(pool, 3), normal(3, 1, 140, 2)
    for cache in (whole, paged):
        cache.append(tokens, tokens, [140, 3, 20])
        cache.select([2, 0, 0])
        cache.append(tokens[:, :, :5], tokens[:, :, :5])
    Pair(whole, paged).check()
    paged.select([0])
    assert used(pool) == 1


def test_generate_takes_paged_caches():
    decoder, ids = model(), np.random.default_rng(1).integers(0, 50, (2, 7))
    pools = decoder.new_page_pools(4)
    caches = [PagedKVCache(pool, 2) for pool in pools]
    new = decoder.generate(ids, 130, caches=caches)
    assert_same_bits(new, decoder.generate(ids, 130))
    del caches
    assert [used(pool) for pool in pools] == [0, 0]


def test_contiguous_caches_fork_into_their_own_arrays():
    cache = KVCache(2, 1, 6, 2)
    cache.append(normal(2, 1, 4, 2), normal(2, 1, 4, 2, seed=1), [4, 2])
    fork = cache.fork([1, 0, 0], capacity=5)
    assert (fork.capacity, fork.lengths.tolist()) == (5, [2, 4, 4])
    assert_same_bits(fork.key[1], cache.key[0])
    assert_same_bits(fork.value[0, :, :2], cache.value[1, :, :2])
    fork.append(np.zeros((3, 1, 1, 2)), np.zeros((3, 1, 1, 2)))
    assert_same_bits(cache.lengths, np.array([4, 2]))
    with refused(ValueError, "cache"):
        fork.append(np.zeros((3, 1, 1, 2)), np.zeros((3, 1, 1, 2)))
    with refused(ValueError, "capacity"):
        cache.fork(capacity=3)
    with refused(ValueError, "sequences"):
        cache.fork([2])
    with refused(ValueError, "sequences"):
        cache.fork([[0]])
    assert cache.fork([]).batch_size == 0


@pytest.mark.quick
@pytest.mark.parametrize(
    ("error", "name", "wrong"),
    [
        (TypeError, "pool", lambda: PagedKVCache(None, 1)),
        (ValueError, "batch_size", lambda: PagedKVCache(PagePool(1, 1, 2), -1)),
        (ValueError, "num_pages", lambda: PagePool(-1, 1, 2)),
        (TypeError, "num_pages", lambda: PagePool(1.5, 1, 2)),
        (TypeError, "dtype", lambda: PagePool(1, 1, 2, dtype=int)),
        (MemoryError, "PagePool", lambda: PagePool(10**15, 1, 2)),
        (ValueError, "key", lambda: PagedKVCache(PagePool(1, 1, 2), 1).append(
            np.ones((1, 1, 1, 3)), np.ones((1, 1, 1, 2)))),
        (ValueError, "cache", lambda: layer()(normal(1, 2, 16), cache=PagedKVCache(
            PagePool(1, 1, 2), 1))),
        (TypeError, "cache", lambda: layer(np.float64)(
            np.ones((1, 2, 16)), cache=PagedKVCache(PagePool(1, 2, 4), 1))),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(error, name, wrong):
    with refused(error, name):
        wrong()


def test_pages_that_another_thread_took_are_an_error_and_not_lost(monkeypatch):
    pool = PagePool(3, 1, 4)
    cache = PagedKVCache(pool, 2)
    monkeypatch.setattr(PagedKVCache, "_check_free", lambda *_: None)
    tokens = np.ones((2, 1, 200, 4))
    with pytest.raises(MemoryError, match="pages: expected a free one of the pool's 3"):
        cache.append(tokens, tokens)
    assert (pool.num_free, cache.lengths.tolist()) == (3, [0, 0])
    cache.append(tokens, tokens, lengths=[200, 100])
    assert pool.num_free == 0
