"""Threads, forks, signals and the environment: the pool never shows."""

import concurrent.futures
import functools
import platform
import sys
import threading
import time

import numpy as np
import pytest
from support import pool, sentences
from support.arrays import normal, problem
from support.calls import (
    TIERS,
    attend_on,
    everything,
    needs_test_hooks,
    threads_for_any_work,
    vjp_on,
)
from support.comparisons import assert_same_bits
from support.errors import refused
from support.processes import assert_runs, run_python

import attnpy
from attnpy import _attnpy, blocks


@pytest.fixture
def restore_threads():
    """Leave the number of threads as it was."""
    before = attnpy.get_num_threads()
    yield
    attnpy.set_num_threads(before)


@pytest.fixture
def restore_work():
    """Leave the work that repays a thread as it was."""
    before = _attnpy.set_work_per_thread(1.0)
    yield
    _attnpy.set_work_per_thread(before)


@pytest.fixture
def restore_spin_time():
    """Leave the time for which idle threads look for a call as it was."""
    before = attnpy.get_spin_time()
    yield
    attnpy.set_spin_time(before)


@needs_test_hooks
def test_threads_that_are_awake_take_part_in_less_work(restore_work):
    """A norm is too little work to wake a thread, and enough for one that is awake."""
    stack = blocks.Encoder(2, 64, 2, 64, norm_first=True)
    x, threads = normal(128, 64), {}
    _attnpy.set_work_per_thread(5e5)
    for _ in range(200):
        notes = np.zeros((100, 3), np.int64)
        n = _attnpy.watch_tasks(lambda: stack(x, num_threads=2), notes)
        for step, thread, _ in notes[:n].tolist():
            threads.setdefault(step, set()).add(thread)
        if all(1 in threads[step] for step in threads if step > 0):
            break
    # Norms begin all other steps of both layers, and end the last one.
    assert threads.pop(0) == {0}
    assert all(1 in those for those in threads.values()), threads


@pytest.mark.quick
def test_spin_time_is_set_read_and_judged(restore_spin_time):
    assert attnpy.get_spin_time() == 60
    for microseconds in (0, 1, np.int32(250), 1_000_000):
        attnpy.set_spin_time(microseconds)
        assert attnpy.get_spin_time() == microseconds
    for bad in (-1, 1_000_001, 2**70):
        with pytest.raises(ValueError, match=r"microseconds: expected .*, got"):
            attnpy.set_spin_time(bad)
    for bad in (2.0, "2", None, True):
        with pytest.raises(TypeError, match="microseconds: expected an integer, got"):
            attnpy.set_spin_time(bad)
    assert attnpy.get_spin_time() == 1_000_000


@pytest.mark.skipif(
    attnpy.show_config(mode="dicts")["cpus"] < 2,
    reason="needs another CPU",
)
@pytest.mark.parametrize("n_threads", [2, 3])
def test_idle_threads_spin_for_as_long_as_they_may(restore_spin_time, n_threads):
    query = normal(8, 2000, 64)  # long enough for the system to move a thread
    expected = attnpy.attention(query, query, query, num_threads=1)

    def seconds_after_a_call(microseconds):
        attnpy.set_spin_time(microseconds)
        found = attnpy.attention(query, query, query, num_threads=n_threads)
        assert_same_bits(found, expected)
        begin = time.process_time()
        time.sleep(0.2)
        return time.process_time() - begin

    assert min(seconds_after_a_call(0) for _ in range(3)) < 0.02
    # One that worked on the caller's CPU, the other being taken, does not look.
    assert any(seconds_after_a_call(100_000) > 0.05 for _ in range(60))


@pytest.mark.quick(tier=TIERS[:1])
def test_threads_calling_at_once_get_the_same_bits(attend):
    calls = [
        (problem(4, 100, 150, 9, 5), {"causal": True, "num_threads": 2}),
        (problem(2, 1, 1100, 9, 5), {"num_threads": 3}),
        (problem(1, 5, 7, 3, 2, "float64"), {}),
        (problem(4, 70, 70, 9, 5, "float16"), {"window": (9, 9), "num_threads": 7}),
        (problem(4, 100, 150, 9, 5), {"softcap": 2.0, "num_threads": 1}),
    ]
    at_once([functools.partial(everything, attend, *x, **more) for x, more in calls])


def at_once(calls):
    """Eight threads make these calls in turn; each has the bits that it has alone."""
    expected = [call() for call in calls]
    start = threading.Barrier(8)

    def work(first):
        start.wait()
        for i in range(first, first + 15):
            assert_same_bits(calls[i % len(calls)](), expected[i % len(calls)])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, i) for i in range(8)]:
            done.result()


@pytest.mark.quick(tier=TIERS[:1])
def test_threads_calling_for_gradients_at_once_get_the_same_bits(tier):
    # Whole heads; rows and keys apart, for few heads and many threads; a shared bias.
    sinks, bias = normal(4), normal(150)
    few, many = problem(1, 200, 300, 9, 5), problem(4, 100, 150, 9, 5)
    options = [
        (many, {"causal": True, "num_threads": 2}),
        (few, {"num_threads": 7}),
        (many, {"bias": bias, "sinks": sinks, "wanted": ("bias", "sinks")}),
        (few, {"dropout": 0.3, "dropout_seed": 5, "num_threads": 3}),
        (problem(4, 1, 1100, 9, 5, "float16"), {"num_threads": 3}),
        (problem(2, 70, 70, 9, 5, "float64"), {"window": (9, 9), "num_threads": 1}),
    ]
    with threads_for_any_work():
        at_once([
            functools.partial(vjp_on, tier, normal(*query.shape[:-1], 5), query, *rest,
                              **more)
            for (query, *rest), more in options
        ])  # fmt: skip


def test_number_of_threads_may_change_during_calls(restore_threads):
    arrays = problem(4, 100, 150, 9, 5)
    expected = everything(attnpy.attention, *arrays)
    stop = threading.Event()

    def change():
        n = 1
        while not stop.is_set():
            n = n % 5 + 1
            attnpy.set_num_threads(n)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(100):
            assert_same_bits(everything(attnpy.attention, *arrays), expected)
    finally:
        stop.set()
        changer.join()


@pytest.mark.quick
def test_number_of_threads_can_be_set_and_read(restore_threads):
    for n in (1, 2, 5, np.int64(3)):
        attnpy.set_num_threads(n)
        assert attnpy.get_num_threads() == n
        assert type(attnpy.get_num_threads()) is int
        assert attnpy.show_config(mode="dicts")["threads"] == n


@pytest.mark.quick
def test_argument_of_a_call_changes_no_setting(restore_threads):
    attnpy.set_num_threads(2)
    arrays = problem(1, 100, 150, 9, 5)
    for n in (1, 3, 64, 10**6):
        attnpy.attention(*arrays, num_threads=n)
    assert attnpy.get_num_threads() == 2


@pytest.mark.parametrize("backward", [False, True])
def test_lengths_are_read_once(tier, backward):
    # They are checked and then used: another thread must not get in between.
    arrays = problem(8, 200, 150, 9, 5)
    call = functools.partial(attend_on, tier, *arrays)
    if backward:
        call = functools.partial(vjp_on, tier, normal(8, 200, 5), *arrays)
    expected = call(kv_lengths=5)
    lengths, stop = np.array(5), threading.Event()

    def change():
        while not stop.is_set():
            lengths[...] = 10**9
            lengths[...] = 5

    changer = threading.Thread(target=change)
    changer.start()
    good = 0
    try:
        for _ in range(200):
            try:
                assert_same_bits(call(kv_lengths=lengths), expected)
                good += 1
            except ValueError:
                pass
    finally:
        stop.set()
        changer.join()
    assert good > 0


# ---- Fork ----------------------------------------------------------------------------

FORK = """
import os, signal, sys, threading
import numpy as np
from attnpy import attention

rng = np.random.default_rng(0)
x = rng.standard_normal((8, 200, 16)).astype(np.float32)

def call():
    return attention(x, x, x, causal=True, num_threads=4).tobytes()

def child(depth):
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)  # ends a child that hangs
        good = all(call() == expected for _ in range(20))
        if depth:
            good = good and child(depth - 1)
        os._exit(0 if good else 1)
    return os.waitpid(pid, 0)[1] == 0

expected = call()  # the pool is alive now
assert child(1), "after a call"
assert call() == expected, "the parent afterwards"

# Fork while other threads are inside a call.
stop = threading.Event()
def busy():
    while not stop.is_set():
        call()
threads = [threading.Thread(target=busy) for _ in range(3)]
for t in threads:
    t.start()
good = [child(0) for _ in range(10)]
stop.set()
for t in threads:
    t.join()
assert all(good), good
assert call() == expected
print("same bits")
"""


@pytest.mark.quick
@pytest.mark.filterwarnings("ignore")
def test_child_of_fork_works_and_has_the_same_bits():
    out = assert_runs(FORK, PYTHONWARNINGS="ignore")
    assert out.split() == ["same", "bits"]


SPAWN = """
import multiprocessing, sys
import numpy as np
from attnpy import attention

def work(seed):
    x = np.random.default_rng(seed).standard_normal((4, 100, 8))
    return attention(x, x, x, num_threads=2).tobytes()

if __name__ == "__main__":
    expected = [work(i) for i in range(6)]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(work, range(6)) == expected
"""


def test_pool_of_forked_processes():
    assert_runs(SPAWN, PYTHONWARNINGS="ignore")


# ---- Ctrl-C and the interpreter's lock -----------------------------------------------

INTERRUPT = """
import functools, os, signal, sys, threading, time
import numpy as np
from support.calls import attend_on
from support.errors import refused
from support.processes import wait_until

attend = functools.partial(attend_on, sys.argv[1], num_threads=int(sys.argv[2]))
rng = np.random.default_rng(0)
shapes = {  # of queries, and of keys
    "tile": ((9999, 4096, 64), (9999, 4096, 64)),
    "row": ((9**7, 1, 64), (9**7, 4096, 64)),
    "long tile": ((1, 64, 64), (1, 2**29, 64)),
    "long row": ((1, 1, 64), (1, 2**29, 64)),
}
number = rng.standard_normal((), np.float32)
small = rng.standard_normal((2, 70, 8))
before = attend(small, small, small).tobytes()

def seconds_to_end(query, key):
    sent, begin = [], time.process_time()
    def send():
        wait_until(lambda: time.process_time() > begin + 0.05)  # all in the call
        sent.append(time.process_time())
        os.kill(os.getpid(), signal.SIGINT)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        attend(query, key, key)
    except KeyboardInterrupt:
        seconds = time.process_time() - sent[0]
    else:
        raise AssertionError("not interrupted")
    sender.join()
    assert attend(small, small, small).tobytes() == before
    return seconds

for form, sizes in shapes.items():
    arrays = [np.broadcast_to(number, shape) for shape in sizes]
    # Of each thread's time on a CPU: the machine may be busy.
    attempts = (seconds_to_end(*arrays) for _ in range(3))
    assert any(seconds < 0.2 * int(sys.argv[2]) for seconds in attempts), form
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_long_call_within_200_ms(tier, threads):
    assert_runs(INTERRUPT, tier, threads)


@pytest.mark.quick
def test_exception_of_a_signal_handler_passes_through():
    script = """
import signal, time
import numpy as np
from attnpy import attention

class Mine(Exception):
    pass

def handler(number, frame):
    raise Mine

signal.signal(signal.SIGALRM, handler)
x = np.broadcast_to(np.zeros((), np.float32), (9999, 4096, 64))
try:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    attention(x, x, x)
except Mine:
    print("mine")
"""
    assert assert_runs(script).strip() == "mine"


def test_signal_handler_that_returns_does_not_end_the_call():
    script = """
import signal
import numpy as np
from attnpy import attention
x = np.random.default_rng(0).standard_normal((16, 1000, 64))
expected = attention(x, x, x)
seen = []
signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
while len(seen) < 5:
    assert attention(x, x, x).tobytes() == expected.tobytes()
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    assert_runs(script)


@pytest.mark.parametrize("threads", [1, 2])
def test_other_threads_run_during_a_call(threads):
    arrays = problem(8, 1000, 1000, 32, 32)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()

    def ticks_of_a_call():
        begin = time.monotonic()
        attend_on("scalar", *arrays, num_threads=threads)
        end = time.monotonic()
        return sum(begin < t < end for t in ticks)

    try:
        # With the lock held there would be one tick, at the switch before the call. On
        # a busy machine, or a fast one, it may take several calls to see more.
        assert any(ticks_of_a_call() >= 10 for _ in range(20))
    finally:
        stop.set()
        ticker.join()


# ---- Environment ---------------------------------------------------------------------

COUNT = "import attnpy; print(attnpy.get_num_threads())"


@pytest.fixture
def clean_environment(monkeypatch):
    """No variable that attnpy reads."""
    for name in (
        "ATTNPY_NUM_THREADS",
        "OMP_NUM_THREADS",
        "ATTNPY_ISA",
        "ATTNPY_PORTABLE",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.quick(expected=(4,))
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ATTNPY_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"ATTNPY_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
    ],
)
def test_environment_sets_the_number_of_threads(
    clean_environment, environment, expected
):
    assert int(assert_runs(COUNT, **environment)) == expected


def test_default_number_of_threads_is_what_the_process_may_use(clean_environment):
    n = int(assert_runs(COUNT))
    assert n >= 1
    if sys.platform == "linux":
        one_cpu = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
        assert int(assert_runs(f"{one_cpu}; {COUNT}")) == 1


def assert_refused(script, variable, value):
    """The import fails in a script with such an environment, and says why."""
    done = run_python(script, **{variable: value})
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"{variable}: expected" in last
    assert f"got '{value}'" in last


@pytest.mark.parametrize("bad", ["0", "-2", "abc", "", "2.5", "3 4"])
def test_bad_number_of_threads_in_the_environment_is_an_error(clean_environment, bad):
    assert_refused(COUNT, "ATTNPY_NUM_THREADS", bad)


@pytest.mark.parametrize("other", ["0", "abc", "", "-1"])
def test_bad_number_of_threads_of_openmp_is_no_concern_of_ours(
    clean_environment, other
):
    assert int(assert_runs(COUNT, OMP_NUM_THREADS=other)) >= 1


TIER = "import attnpy; print(attnpy.show_config(mode='dicts')['tier'])"


def test_environment_forces_the_tier(clean_environment, tier):
    assert assert_runs(TIER, ATTNPY_ISA=tier).strip() == tier


def test_default_tier_is_the_best(clean_environment):
    assert assert_runs(TIER).strip() == TIERS[0]
    assert TIERS[-1] == "scalar"


@pytest.mark.parametrize("bad", ["sse9", "", "scalar "])
def test_unknown_tier_in_the_environment_is_an_error(clean_environment, bad):
    assert_refused(TIER, "ATTNPY_ISA", bad)


@pytest.mark.quick
def test_unknown_tier_of_a_call_is_an_error():
    with pytest.raises(ValueError, match="tier: expected"):
        attend_on("sse9", *problem(1, 2, 3, 4, 5))


# ---- Other ---------------------------------------------------------------------------

ROUNDING = """
import ctypes
import numpy as np
from attnpy import attention
libm = ctypes.CDLL(None)
x = np.random.default_rng(0).standard_normal((8, 200, 16)).astype(np.float32)
libm.fesetround(0x800)  # threads inherit the rounding mode of the one that starts them
first = attention(x, x, x, num_threads=4)
libm.fesetround(0)
assert attention(x, x, x, num_threads=1).tobytes() == first.tobytes()
assert attention(x, x, x, num_threads=4).tobytes() == first.tobytes()
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 rounding mode bits")
def test_pool_does_not_inherit_a_rounding_mode():
    assert_runs(ROUNDING)


@pytest.mark.quick
def test_threadpoolctl_sees_and_limits_the_pool(restore_threads):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    attnpy.register_threadpoolctl()
    attnpy.register_threadpoolctl()  # a second time does nothing
    attnpy.set_num_threads(3)
    ours = [x for x in threadpoolctl.threadpool_info() if x["internal_api"] == "attnpy"]
    assert len(ours) == 1
    assert ours[0]["user_api"] == "attnpy"
    assert ours[0]["num_threads"] == 3
    assert ours[0]["version"] == attnpy.__version__
    with threadpoolctl.threadpool_limits(2, user_api="attnpy"):
        assert attnpy.get_num_threads() == 2
    assert attnpy.get_num_threads() == 3
    with threadpoolctl.threadpool_limits(1):
        assert attnpy.get_num_threads() == 1
    assert attnpy.get_num_threads() == 3


def test_exit_while_threads_are_in_a_call_is_clean():
    script = """
import threading, time
import numpy as np
from support.errors import refused
from support.processes import wait_until
from attnpy import attention
x = np.broadcast_to(np.zeros((), np.float32), (9999, 4096, 64))
begin = time.process_time()
threading.Thread(target=attention, args=(x, x, x), daemon=True).start()
wait_until(lambda: time.process_time() > begin + 0.05)  # all in the call
"""
    assert_runs(script)


def test_failing_thread_creation_means_fewer_threads():
    script = """
import resource
import numpy as np
from attnpy import attention
x = np.random.default_rng(0).standard_normal((8, 200, 16))
expected = attention(x, x, x, num_threads=1)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**23, size + 2**23))  # no stack fits
assert attention(x, x, x, num_threads=32).tobytes() == expected.tobytes()
"""
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    assert_runs(script)


@needs_test_hooks
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_num_threads_is_honoured_wherever_there_are_threads():
    """In children of a fork, which have no threads yet. Unless told, 5 are allowed."""
    sentences.require()
    script = "from support import pool; pool.main()"
    # Neither NumPy's products nor the tokenizer have threads of their own.
    quiet = {"OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    lines = assert_runs(script, **quiet, TOKENIZERS_PARALLELISM="false").splitlines()
    taken = {
        name: tuple(map(int, rest)) for name, *rest in (s.split("|") for s in lines)
    }
    assert pool.taking_threads() <= taken.keys()
    wrong = {
        name: (one, three, many)
        for name, (one, three, many) in taken.items()
        if not (one == 1 and 1 < three <= 3 < many <= 5)
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("wrong", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError)]
)
def test_a_wrong_number_of_threads_is_refused_in_the_same_words(wrong, error):
    sentences.require()
    for _, call, arguments in pool.all_cases():
        with refused(error, "num_threads"):
            call(*arguments, num_threads=wrong)
