"""No access outside the arrays, and nothing lost over many calls."""

import pickle
import sys
import tracemalloc

import numpy as np
import pytest
from support import kept
from support.processes import assert_runs, run_python

from attnpy import attention

GUARDED = """
import pickle
import sys
import tracemalloc
from support import guarded
guarded.main(sys.argv[1])
"""


def test_no_byte_outside_the_arrays_is_touched(tier):
    done = run_python(GUARDED, tier)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"after {last}\n{done.stderr[-3000:]}"
    assert last == ["done"]


GUARD = """
import numpy as np
from support.guarded import hold
array = hold("query", np.zeros(5, np.float32), {at_end})
np.lib.stride_tricks.as_strided(array, (6,), (4 if {at_end} else -4,)).sum()
"""


@pytest.mark.quick(at_end=(True,))
@pytest.mark.parametrize("at_end", [True, False])
def test_one_element_outside_a_guarded_array_is_a_fault(at_end):
    # Shows that the test above can fail.
    assert run_python(GUARD.format(at_end=at_end)).returncode < 0


def calls():
    """Arguments of good and bad calls, and every array in them."""
    x = np.ones((2, 3, 4), np.float32)
    half, swapped = x.astype(np.float16), x.astype(x.dtype.newbyteorder())
    mask, bias = np.ones((3, 3), bool), np.zeros((2, 3, 3), np.float32)
    sinks, lengths = np.zeros(2, np.float32), np.array(3)
    out, small = np.zeros_like(x), np.zeros((1, 3, 4), np.float32)
    every = [x, half, swapped, mask, bias, sinks, lengths, out, small]
    good = [
        ((x, x, x), {}),
        ((x, x, x), {"mask": mask, "bias": bias, "sinks": sinks, "out": out}),
        ((x, x, x), {"kv_lengths": lengths, "q_offset": lengths, "causal": True}),
        ((x, x, x), {"return_weights": True, "return_lse": True, "window": (1, 1)}),
        ((half, x, swapped), {"num_threads": 2}),
        ((x.tolist(), x, x), {"mask": mask.tolist(), "out": None}),
        ((x, x, out), {"out": out}),
    ]
    bad = [
        ((x, x, small[:, :2]), {}),
        ((x, x, x), {"mask": bias}),
        ((x, x, x), {"bias": mask}),
        ((x, x, x), {"out": small}),
        ((x, x, x), {"out": half}),
        ((x, x, x), {"sinks": bias}),
        ((x, x, x), {"kv_lengths": sinks}),
        ((x, x, x), {"kv_lengths": 9}),
        ((x, x, x), {"q_offset": 1.5}),
        ((x, x, x), {"scale": float("nan"), "return_weights": True}),
        ((x, x, "text"), {"out": out}),
        ((x, x, x), {"causal": "no", "bias": bias, "mask": mask, "sinks": sinks}),
        ((x, x, x), {"num_threads": 0, "kv_lengths": lengths}),
    ]
    return every, good, bad


def run(good, bad, times):
    """Make each call this many times."""
    for _ in range(times):
        for arrays, options in good:
            attention(*arrays, **options)
        for arrays, options in bad:
            try:
                attention(*arrays, **options)
            except (TypeError, ValueError):
                continue
            raise AssertionError(options)


@pytest.mark.quick
def test_reference_counts_do_not_change():
    every, good, bad = calls()
    kinds = [x.dtype for x in every]
    watched = [*every, *kinds, None, True, float, np.ndarray, attention]
    run(good, bad, 10)
    before = [sys.getrefcount(x) for x in watched]
    run(good, bad, 200)
    after = [sys.getrefcount(x) for x in watched]
    drift = [b - a for a, b in zip(before, after, strict=True)]
    # Objects that never die have one constant count; allow what pytest itself holds.
    assert max(abs(d) for d in drift) < 20, drift


FLAT = """
import gc, resource, sys, tracemalloc
from test_memory import calls, run

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

every, good, bad = calls()
run(good, bad, 500)
tracemalloc.start()
run(good, bad, 50)
gc.collect()
traced, resident = tracemalloc.get_traced_memory()[0], peak()
run(good, bad, 500)
gc.collect()
grown = tracemalloc.get_traced_memory()[0] - traced
# The interpreter's own caches grow by a few KB; one object a call would be 160 KB.
assert grown < 20_000, f"{grown} bytes of Python's memory over 10,000 calls"
tracemalloc.stop()
resident = peak()
run(good, bad, 100_000 // (len(good) + len(bad)))
grown = (peak() - resident) * (1 if sys.platform == "darwin" else 1024)
assert grown < 2**20, f"{grown} bytes of memory over 100,000 calls"
"""


def test_memory_is_flat_over_100_000_calls():
    assert_runs(FLAT)


BIG = """
import resource
import numpy as np
from attnpy import attention
x = np.zeros((8, 600, 64), np.float32)
f16 = x.astype(np.float16)
def use():
    for a in (x, f16):
        attention(a, a, a, causal=True, return_weights=True, num_threads=2)
        attention(a[:, :1], a, a, num_threads=2)
for _ in range(5):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(60):
    use()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert after - before < 4096, (before, after)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss in kilobytes")
def test_memory_is_flat_over_large_calls():
    assert_runs(BIG)


LINEAR = """
import resource
import numpy as np
from attnpy import attention
n = 20_000
x = np.zeros((1, n, 1), np.float32)
attention(x[:, :100], x, x)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
attention(x, x, x, window=(3, 3), return_lse=True)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert after - before < 16 * 1024, (before, after)  # n * n * 4 bytes are 1.6 GB
"""


@pytest.mark.quick
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss in kilobytes")
def test_the_matrix_of_scores_is_never_built():
    assert_runs(LINEAR)


def test_large_results_are_made_in_memory_that_is_there():
    """What former results had is used again; the system clears no page for it."""
    script = """
import resource
import numpy as np
from attnpy._linear import linear

def n_faults(n_rows):
    x, weight = np.ones((n_rows, 64), np.float32), np.ones((64, 512), np.float32)
    for i in range(12):
        if i == 2:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        result = linear(x, weight, num_threads=1)
        assert result.flags.owndata and result.ctypes.data % 64 == 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

pages = 10 * 1000 * 512 * 4 / resource.getpagesize()
assert n_faults(1000) < 0.02 * pages
result = linear(np.ones((500, 1), np.float32), np.ones((1, 500), np.float32))
result.resize((1000, 1000), refcheck=False)
assert result.sum() == 250_000
result.resize((10,), refcheck=False)
assert result.sum() == 10

size = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = size()
many = [linear(np.ones((1000 + i, 1), "f"), np.ones((1, 5000), "f")) for i in range(20)]
assert size() - before > 350e6
del many
assert size() - before < 150e6  # 128 MiB are kept
"""
    if sys.platform != "linux":
        pytest.skip("looks into /proc")
    assert_runs(script)


KEPT, SPOILT = (kept.calls(600, 64, fill=fill) for fill in (None, np.nan))


@pytest.mark.quick(name=("attention", "linear", "layer.vjp"))
@pytest.mark.parametrize("name", KEPT)
def test_no_result_shows_what_its_memory_held_before(name):
    kept.check(KEPT[name], SPOILT[name])


def test_results_have_the_memory_that_was_filled():
    # Shows that the test above can fail.
    for name in ("attention", "linear", "activation", "LayerNorm", "layer", "network"):
        assert kept.check(KEPT[name], SPOILT[name]) == len(kept.PATTERNS), name


@pytest.mark.parametrize("n_bytes", kept.sizes_around(kept.SMALLEST))
def test_results_of_any_size_show_nothing_of_what_was_there(n_bytes):
    calls, spoilt = (kept.calls(n_bytes // 4, 1, fill=x) for x in (None, np.nan))
    for name in ("attention", "activation", "LayerNorm"):
        kept.check(calls[name], spoilt[name])


def test_large_results_are_arrays_like_any_other():
    x = np.ones((2, 300, 64), np.float32)
    tracemalloc.start()
    try:
        result = attention(x, x, x)
        domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        traces = tracemalloc.take_snapshot().filter_traces([domain]).traces
        assert result.nbytes in [trace.size for trace in traces]
    finally:
        tracemalloc.stop()
    assert result.flags.owndata and result.base is None
    assert result.ctypes.data % 64 == 0
    assert pickle.loads(pickle.dumps(result)).tobytes() == result.tobytes()
    result.resize((4, 300, 64))
    assert not result[2:].any()


FAILING = """
import _testcapi
import numpy as np
from numpy._core.multiarray import get_handler_name
from attnpy import attention

x = np.ones((2, 300, 64), np.float32)
first = attention(x, x, x) if {begins} else None
for n in range(40):
    _testcapi.set_nomemory(n, {stop})
    try:
        attention(x, x, x)
    except MemoryError:
        pass
    finally:
        _testcapi.remove_mem_hooks()
    assert get_handler_name(np.empty(1 << 20)) == "default_allocator", n
    assert get_handler_name() == "default_allocator", n
"""


@pytest.mark.quick(stop=("n + 1",))
@pytest.mark.parametrize("stop", ["n + 1", "0"])
@pytest.mark.parametrize("begins", [True, False])
def test_failing_allocations_leave_numpy_its_own_memory(begins, stop):
    pytest.importorskip("_testcapi")
    pytest.importorskip("numpy", minversion="2.0")
    assert_runs(FAILING.format(begins=begins, stop=stop))


GIVEN_UP = """
import resource
import numpy as np
from attnpy import attention, attention_vjp
from attnpy._linear import linear

def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

one, row = np.ones((1 << 20, 1), np.float32), np.ones((1, 8), np.float32)
wide = np.ones((1, 7), np.float64)
x = np.ones((1, 200, 16), np.float32)
few, many = np.ones((1, 2, 1), np.float16), np.ones((1, 1 << 22, 1), np.float16)
attention(x, x, x, num_threads=1)

def keep():
    results = [linear(one, row, num_threads=1) for _ in range(4)]  # 32 MiB each

uses = {
    "a result": lambda: linear(one, np.ones((1, 12), np.float32), num_threads=1),
    "zeros": lambda: attention(few[0], many[0], many[0], return_weights=True),
    "a cast": lambda: linear(one, wide, num_threads=1),
}
for name, use in uses.items():
    keep()
    limit = size() + (12 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        np.empty(48 << 20, np.uint8)
        raise AssertionError("the limit does not limit")
    except MemoryError:
        pass
    try:
        use()
    except MemoryError:
        raise AssertionError(name)
    finally:
        resource.setrlimit(
            resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
"""


@pytest.mark.quick
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_kept_memory_is_given_up_before_there_is_an_error():
    assert_runs(GIVEN_UP)
