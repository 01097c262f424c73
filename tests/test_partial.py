"""Attention in parts: the bits of one call, whatever is between the parts."""

import itertools
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arrays import normal
from support.calls import on_tier, parts_on, threads_for_any_work
from support.comparisons import assert_same_bits
from support.errors import refused
from support.processes import assert_runs

import attnpy
from attnpy import PartialAttention, attend_partial


def in_parts(query, key, value, step, sinks=None, num_threads=None, **options):
    """(output, lse) of a call in parts of so many keys."""
    state = None
    for i in range(0, max(1, key.shape[-2]), step):
        part = slice(i, i + step)
        for name in {"mask", "bias"} & set(options):
            options[f"of_part_{name}"] = options[name][..., part]
        chosen = {k.removeprefix("of_part_"): options[k] for k in options}
        state = attend_partial(
            query,
            key[..., part, :],
            value[..., part, :],
            state,
            num_threads=num_threads,
            **chosen,
        )
    return state.finish(sinks=sinks, return_lse=True, num_threads=num_threads)


@st.composite
def problems(draw):
    """Arrays of any sizes, and options with positions among all keys."""
    n_batch, n_kv_heads, group = (draw(st.integers(1, 2)) for _ in range(3))
    n_queries = draw(st.sampled_from([1, 2, 7, 40, 130]))
    n_keys = draw(st.integers(1, 2300))
    dim, value_dim = draw(st.sampled_from([(1, 8), (16, 40), (33, 64), (64, 1)]))
    dtype = draw(st.sampled_from(["float32", "float64", "float16"]))
    n_heads, seed = n_kv_heads * group, draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    query = normal(n_batch, n_heads, n_queries, dim, dtype=dtype, seed=seed)
    key = normal(n_batch, n_kv_heads, n_keys, dim, dtype=dtype, seed=seed)
    value = normal(n_batch, n_kv_heads, n_keys, value_dim, dtype=dtype, seed=seed)
    options = {}
    if draw(st.booleans()):
        options["mask"] = rng.random((n_batch, 1, n_queries, n_keys)) < 0.1
        value[..., n_keys // 2, :] = np.nan
        options["mask"][..., n_keys // 2] = False
    if draw(st.booleans()):
        options["bias"] = normal(n_heads, n_queries, n_keys, dtype=dtype)
    if draw(st.booleans()):
        options["softcap"] = 3.0
    if draw(st.booleans()):
        options["sinks"] = normal(n_heads)
    options |= draw(
        st.sampled_from(
            [
                {},
                {"causal": True, "q_offset": n_keys // 3},
                {"window": (700, 3), "kv_lengths": rng.integers(0, n_keys + 1, 1)},
                {"causal": "top_left"},
                {"causal": "bottom_right", "kv_lengths": n_keys},
            ]
        )
    )
    return (query, key, value), options


@given(data=problems(), step=st.sampled_from([512, 1024]), threads=st.integers(1, 3))
def test_parts_of_whole_chunks_have_the_bits_of_one_call(tier, data, step, threads):
    arrays, options = data
    expected = on_tier(tier)(*arrays, return_lse=True, **options)
    with parts_on(tier), threads_for_any_work():
        found = in_parts(*arrays, step, num_threads=threads, **options)
    assert_same_bits(found, expected)


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(64,), (5, 64), (3, 5, 64), (2, 3, 5, 64)])
def test_queries_may_have_any_axes(tier, shape):
    query, keys = normal(*shape), (3, 1300, 64) if len(shape) > 2 else (1300, 64)
    key, value = normal(*keys, seed=1), normal(*keys, seed=2)
    expected = on_tier(tier)(query, key, value, return_lse=True)
    with parts_on(tier):
        assert_same_bits(in_parts(query, key, value, 512), expected)


@pytest.mark.quick
@pytest.mark.parametrize("step", [1, 7, 100, 600])
def test_parts_of_any_size_give_the_same_numbers(step):
    query, key = normal(2, 3, 16), normal(2, 700, 16, seed=1)
    value = normal(2, 700, 16, seed=2)
    options = {"causal": True, "q_offset": 650, "softcap": 4.0}
    output, lse = in_parts(query, key, value, step, **options)
    expected = attnpy.attention(query, key, value, return_lse=True, **options)
    np.testing.assert_allclose(output, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, expected[1], rtol=1e-6)


@pytest.mark.quick
def test_parts_may_come_in_any_order():
    query, key, value = normal(2, 3, 16), normal(2, 90, 16), normal(2, 90, 16, seed=1)
    state = None
    for first in (60, 0, 30):
        part = slice(first, first + 30)
        state = attend_partial(
            query, key[:, part], value[:, part], state, first_key=first, causal=True,
            q_offset=70,
        )  # fmt: skip
        assert state.next_key == first + 30
    expected = attnpy.attention(query, key, value, causal=True, q_offset=70)
    np.testing.assert_allclose(state.finish(), expected, rtol=1e-5, atol=1e-6)


NUMBERS = ["float64", "float32", "float16", "int8", "uint16", "int64", "bool"]


@pytest.mark.quick
def test_any_dtypes_give_what_one_call_does():
    for dtypes in itertools.product(NUMBERS, repeat=3):
        query, key, value = (
            (3 * normal(2, n, 4, seed=n, dtype=np.float32)).astype(dtype)
            for n, dtype in zip((3, 600, 600), dtypes, strict=True)
        )
        state = None
        for part in (slice(512), slice(512, None)):
            state = attend_partial(query, key[:, part], value[:, part], state)
        expected = attnpy.attention(query, key, value)
        assert (state.dtype, state.next_key) == (expected.dtype, 600), dtypes
        assert_same_bits(state.finish(), expected)


@pytest.mark.quick
def test_a_state_never_changes_and_can_be_pickled():
    query, key, value = normal(2, 3, 16), normal(2, 512, 16), normal(2, 512, 16, seed=1)
    first = attend_partial(query, key, value)
    copy = pickle.loads(pickle.dumps(first))
    second = attend_partial(query, value, key, first)
    assert_same_bits(first.totals, copy.totals)
    assert_same_bits(attend_partial(query, value, key, copy).totals, second.totals)
    assert_same_bits(first.finish(), attnpy.attention(query, key, value))
    assert (second.next_key, second.dtype) == (1024, np.float32)
    received = np.zeros(first.totals.nbytes + 1, np.uint8)[1:].view(np.float32)
    received = received.reshape(first.totals.shape)  # as from a network: not aligned
    received[...] = first.totals
    received.flags.writeable = False
    third = PartialAttention(received, first.dtype, first.next_key)
    assert_same_bits(third.finish(), first.finish())
    assert_same_bits(attend_partial(query, value, key, third).totals, second.totals)


@pytest.mark.quick
def test_nothing_seen_gives_zero():
    query, none = normal(2, 3, 16), normal(2, 0, 16)
    output, lse = attend_partial(query, none, none).finish(return_lse=True)
    assert not output.any()
    assert (lse == -np.inf).all()
    hidden = attend_partial(query, normal(2, 4, 16), np.full((2, 4, 16), np.nan, "f4"),
                            kv_lengths=0)  # fmt: skip
    assert_same_bits(hidden.finish(), output)
    sinks = attend_partial(query, none, none).finish(sinks=[1.0, 2.0], return_lse=True)
    assert_same_bits(sinks[1], np.broadcast_to([[1.0], [2.0]], (2, 3)).astype("f4"))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"causal": True}, ValueError, "q_offset"),
        ({"window": (3, 0)}, ValueError, "q_offset"),
        ({"first_key": -1}, ValueError, "first_key"),
        ({"first_key": 1.0}, TypeError, "first_key"),
        ({"state": np.zeros(3)}, TypeError, "state"),
        ({"kv_lengths": -1}, ValueError, "kv_lengths"),
        ({"causal": 3}, TypeError, "causal"),
        ({"causal": "left"}, ValueError, "causal"),
    ],
)
def test_wrong_arguments_are_refused(options, error, message):
    x = normal(2, 3, 16)
    with refused(error, message):
        attend_partial(x, x, x, **options)


@pytest.mark.quick
def test_a_state_of_other_queries_is_refused():
    x = normal(2, 3, 16)
    state = attend_partial(x, x, x)
    for other in (normal(2, 4, 16), normal(3, 16), normal(2, 3, 16, dtype="float64")):
        with refused(ValueError, "state"):
            attend_partial(other, other, other, state)
    with refused(ValueError, "state"):
        attend_partial(x, x, x[..., :5], state)
    for keyword in ("sinks", "return_lse", "dropout", "seq_offsets", "out"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
            attend_partial(x, x, x, **{keyword: None})


LARGER_THAN_MEMORY = """
import sys
import numpy as np
import attnpy

def memory():
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

n = int(sys.argv[2])
make = np.lib.format.open_memmap
key, value = (
    make(f"{sys.argv[1]}/{name}.npy", "w+", np.float32, (1, n, 64)) for name in "kv"
)
rng = np.random.default_rng(0)
for first in (0, n // 2, n - 5000):  # elsewhere there are zeros
    key[:, first : first + 5000] = rng.standard_normal((1, 5000, 64))
    value[:, first : first + 5000] = rng.standard_normal((1, 5000, 64))
query = rng.standard_normal((1, 3, 64), dtype=np.float32)
expected = attnpy.attention(query, key, value)
before, state = memory(), None
for i in range(0, n, 2**16):
    part = slice(i, i + 2**16)
    state = attnpy.attend_partial(query, key[:, part], value[:, part], state)
assert (state.finish() == expected).all()
assert memory() - before < 4096, memory() - before  # KiB
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_of_two_gigabytes_takes_constant_memory(tmp_path):
    assert_runs(LARGER_THAN_MEMORY, tmp_path, 2**22)
