"""Attention of Dask arrays: the bits of one call, wherever its chunks are."""

import os
import pickle
import signal
import time

import numpy as np
import pytest
from support import pages, sentences
from support.arrays import normal
from support.comparisons import assert_same_bits
from support.errors import refused
from support.processes import run_python, wait_until

import attnpy
from attnpy.models import SentenceEncoder

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

from attnpy.integrations.dask import attention  # noqa: E402


@pytest.fixture(autouse=True)
def in_threads():
    """Tasks run in threads of this process, where a test has no cluster."""
    with dask.config.set(scheduler="threads"):
        yield


def drawn(rng):
    """Arrays of any sizes, and options with positions in the whole arrays."""
    n_batch, n_kv_heads, group = (int(n) for n in rng.integers(1, 4, 3))
    n_queries, n_keys = int(rng.integers(1, 200)), int(rng.integers(1, 2300))
    dtype = str(rng.choice(["float32", "float64", "float16"]))
    n_heads = n_kv_heads * group
    query = normal(n_batch, n_heads, n_queries, 16, dtype=dtype)
    key = normal(rng.choice([1, n_batch]), n_kv_heads, n_keys, 16, dtype=dtype, seed=1)
    value = normal(n_kv_heads, n_keys, 24, dtype=dtype, seed=2)
    options = {}
    if rng.random() < 0.4:
        density = rng.choice([0.02, 0.5])
        options["mask"] = rng.random((n_batch, 1, n_queries, n_keys)) < density
    if rng.random() < 0.3:
        options["bias"] = normal(n_heads, n_queries, n_keys, dtype=dtype)
    if rng.random() < 0.3:
        options["softcap"] = 3.0
    if rng.random() < 0.3:
        options["sinks"] = normal(n_heads)
    lengths = rng.integers(0, n_keys + 1, n_batch)
    kinds = (
        {},
        {"causal": True},
        {"window": (int(rng.integers(0, 900)), 3), "kv_lengths": lengths},
        {"causal": "top_left"},
        {"causal": True, "q_offset": rng.integers(-5, n_keys, n_batch)},
        {"causal": True, "kv_lengths": n_keys // 2},
    )
    options |= kinds[rng.integers(0, len(kinds))]
    return (query, key, value), options


def cut(rng, arrays, options):
    """The same as Dask arrays, keys in chunks at multiples of 512."""
    query, key, value = arrays
    sizes = [int(rng.integers(1, n + 1)) for n in query.shape[:2]]
    dask_arrays = (
        da.from_array(query, (*sizes, int(rng.integers(20, 200)), 7)),
        da.from_array(key, (1, 1, int(rng.choice([512, 1024])), 16)),
        da.from_array(value, (2, 300, 24)),
    )
    if "mask" in options and rng.random() < 0.5:
        options = {**options, "mask": da.from_array(options["mask"], (1, 1, 50, 300))}
    return dask_arrays, options


@pytest.mark.parametrize("seed", range(30))
def test_any_chunks_have_the_bits_of_one_call(seed):
    rng = np.random.default_rng(seed)
    arrays, options = drawn(rng)
    expected = attnpy.attention(*arrays, return_lse=True, **options)
    cut_arrays, cut_options = cut(rng, arrays, options)
    lazy = attention(*cut_arrays, return_lse=True, **cut_options)
    assert [x.shape for x in lazy] == [x.shape for x in expected]
    assert [x.dtype for x in lazy] == [x.dtype for x in expected]
    assert_same_bits(dask.compute(*lazy), expected)
    merged = attention(*cut_arrays, combine="tree", return_lse=True, **cut_options)
    near = 2e-3 if arrays[0].dtype == np.float16 else 1e-5
    for one, other in zip(dask.compute(*merged), expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=near, atol=near)


@pytest.mark.quick
def test_integers_are_computed_in_float64():
    x = np.arange(2 * 50 * 4).reshape(2, 50, 4) % 7
    lazy = attention(x, x, x)
    assert lazy.dtype == np.float64
    assert_same_bits(lazy.compute(), attnpy.attention(x, x, x))


@pytest.mark.quick
def test_arrays_of_numpy_are_taken():
    query, key, value = normal(3, 2, 50, 16)
    lazy = attention(query, da.from_array(key, (1, 512, 16)), value, causal=True)
    expected = attnpy.attention(query, key, value, causal=True)
    assert_same_bits(lazy.compute(), expected)


@pytest.mark.quick
def test_chunks_that_are_hidden_are_not_read():
    read = []

    class Watched(np.ndarray):
        """An array that writes down which keys are read."""

        def __getitem__(self, places):
            if isinstance(places, tuple) and len(places) == 3:
                read.append(places[1].start)
            return np.asarray(super().__getitem__(places))

    key = normal(1, 4096, 16)
    of_keys = da.from_array(key.view(Watched), (1, 512, 16), asarray=False)
    query = normal(1, 100, 16)
    for options, expected in (
        ({"causal": "top_left"}, {0}),
        ({"causal": True}, set(range(0, 4096, 512))),
        ({"kv_lengths": 600}, {0, 512}),
        ({"window": (100, 0), "q_offset": 2000}, {1536, 2048}),
    ):
        read.clear()
        found = attention(query, of_keys, key, **options).compute()
        assert set(read) == expected, options
        assert_same_bits(found, attnpy.attention(query, key, key, **options))


def test_nothing_is_computed_before_it_is_asked_for():
    def fail(block):
        raise RuntimeError("computed")

    x = da.from_array(normal(2, 50, 16), (1, 25, 16))
    lazy = attention(x.map_blocks(fail, dtype=x.dtype, meta=x._meta), x, x)
    with pytest.raises(RuntimeError, match="computed"):
        lazy.compute()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"combine": "ring"}, ValueError, "combine"),
        ({"return_lse": 1}, TypeError, "return_lse"),
        ({"query": normal(50, 16)}, ValueError, "query"),
        ({"query": normal(3, 50, 16)}, ValueError, "key"),
        ({"query": normal(2, 50, 15)}, ValueError, "key"),
        ({"value": normal(2, 49, 16)}, ValueError, "value"),
        ({"query": normal(2, 2, 50, 16), "key": normal(3, 2, 50, 16)}, ValueError,
         "query"),
        ({"mask": np.ones((3, 50), bool)}, ValueError, "mask"),
        ({"mask": np.ones((50, 50))}, TypeError, "mask"),
        ({"kv_lengths": 51}, ValueError, "kv_lengths"),
        ({"kv_lengths": [1, 2]}, ValueError, "kv_lengths"),
        ({"causal": 2}, TypeError, "causal"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"softcap": da.ones(2)}, TypeError, "softcap"),
        ({"scale": np.ones(2)}, TypeError, "scale"),
        ({"num_threads": 0}, ValueError, "num_threads"),
        ({"sinks": [1.0, 2.0, 3.0]}, ValueError, "sinks"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_before_anything_runs(change, error, message):
    arguments = {name: normal(2, 50, 16) for name in ("query", "key", "value")}
    with refused(error, message):
        attention(**{**arguments, **change})


@pytest.mark.quick
def test_sizes_that_nobody_knows_are_refused():
    x = da.from_array(normal(2, 50, 16), (1, 25, 16))
    with refused(ValueError, "key"):
        attention(x, x[:, x[0, :, 0] > 0], x)
    with pytest.raises(TypeError, match="unexpected keyword argument 'seq_offsets'"):
        attention(x, x, x, seq_offsets=[0, 50])


def test_without_dask_the_error_says_what_to_install():
    script = "import sys; sys.modules['dask'] = None; import attnpy.integrations.dask"
    done = run_python(script)
    assert "ImportError: attnpy.integrations.dask needs Dask's arrays" in done.stderr


@pytest.fixture
def cluster():
    """Two worker processes and a client."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as made,
        distributed.Client(made) as client,
    ):
        yield client


def slowly(block, path):
    """The block, after a while, and a line of which worker has had it."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(0.05)
    return block


def test_a_worker_that_is_killed_loses_nothing(cluster, tmp_path):
    query, key = normal(4, 600, 32), normal(4, 4096, 32, seed=1)
    value, path = normal(4, 4096, 32, seed=2), tmp_path / "blocks"
    path.touch()
    lazy_key = da.from_array(key, (1, 512, 32)).map_blocks(
        slowly, str(path), dtype=key.dtype, meta=np.empty((0, 0, 0), key.dtype)
    )
    lazy = attention(da.from_array(query, (2, 200, 32)), lazy_key, value, causal=True)
    future = cluster.compute(lazy)
    wait_until(lambda: len(path.read_text().splitlines()) >= 6)
    os.kill(int(path.read_text().splitlines()[-1]), signal.SIGKILL)
    expected = attnpy.attention(query, key, value, causal=True)
    assert_same_bits(future.result(timeout=120), expected)
    n_runs = len(path.read_text().splitlines())
    assert n_runs > 6  # it was in the middle


def test_workers_give_the_bits_of_one_call(cluster):
    query, key, value = normal(3, 2, 1500, 32)
    arrays = [da.from_array(x, (1, 512, 32)) for x in (query, key, value)]
    expected = attnpy.attention(query, key, value, window=(700, 0))
    assert_same_bits(attention(*arrays, window=(700, 0)).compute(), expected)
    merged = attention(*arrays, window=(700, 0), combine="tree").compute()
    np.testing.assert_allclose(merged, expected, rtol=1e-5, atol=1e-6)


def test_what_goes_between_tasks_is_small():
    query = normal(1, 3, 16)
    key = normal(1, 512, 16)
    state = attnpy.attend_partial(query, key, key)
    assert len(pickle.dumps(state)) < state.totals.nbytes + 500


def test_a_bag_of_texts_becomes_vectors(tmp_path):
    sentences.require()
    bag = pytest.importorskip("dask.bag")
    sentences.write(tmp_path)
    encoder = SentenceEncoder.from_pretrained(tmp_path)
    lazy = bag.from_sequence(sentences.TEXTS, npartitions=3)
    vectors = np.stack(lazy.map_partitions(encoder.encode).compute())
    assert_same_bits(vectors, encoder.encode(sentences.TEXTS))


def test_the_page_runs():
    pages.assert_examples_print_what_their_comments_say("integrations/dask.md")
