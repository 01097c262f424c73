"""Calls in unusual but legal surroundings: forks, the interpreter's end, odd modes.

And arguments that change while others are converted, which Python allows: an object's
`__array__` may do anything to the arrays beside it.
"""

import ctypes
import gc
import weakref

import numpy as np
import pytest
from support.arrays import normal
from support.comparisons import assert_same_bits
from support.processes import assert_runs, run_python
from support.reentry import Asked

import attnpy
from attnpy import _attnpy
from attnpy._linear import linear
from attnpy._options import Norm, Options
from attnpy.blocks import FeedForward
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.positions import Rotary

# ---- Forks ---------------------------------------------------------------------------

FORK_IN_HANDLER = """
import os, signal
import numpy as np
import attnpy
x = np.ones((4, 4096, 64), np.float32)
child, children = False, []

def fork(*_):
    global child
    pid = os.fork()
    child = pid == 0
    children.append(pid)

signal.signal(signal.SIGALRM, fork)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    while not children:  # a call may be over before the signal comes
        output = attnpy.attention(x, x, x, num_threads=2)
        assert (abs(output - 1) < 1e-5).all()
except RuntimeError as error:
    assert child and "fork" in str(error)
assert (attnpy.attention(x[:, :64], x, x, num_threads=2) > 0.9).all()
if child:
    os._exit(0)
print([os.waitpid(pid, 0)[1] for pid in children])
"""


def test_a_fork_in_a_signal_handler_leaves_parent_and_child_whole():
    assert assert_runs(FORK_IN_HANDLER).strip() == "[0]"


FORK_BESIDE_CALLS = """
import os, sys, threading, time
import numpy as np
from support.processes import wait_until
import attnpy
x = np.ones((2, 32, 16), np.float32)

def call():
    while True:
        attnpy.attention(x, x, x, num_threads=1)

for _ in range(3):
    threading.Thread(target=call, daemon=True).start()
enough = time.monotonic() + 30
for i in range(150):
    if i >= 20 and time.monotonic() > enough:  # a slow machine, or a busy one
        break
    pid = os.fork()
    if pid == 0:
        attnpy.attention(x, x, x, num_threads=1)
        os._exit(0)
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0])  # or the child hangs
sys.stdout.flush()
os._exit(0)
"""


def test_children_of_fork_do_not_hang_where_calls_have_one_thread():
    assert_runs(FORK_BESIDE_CALLS)


# ---- The interpreter's end -----------------------------------------------------------

AT_EXIT = """
import atexit, sys, threading, time
import numpy as np
from support.processes import wait_until
import attnpy
from attnpy.layers import MultiHeadAttention
x = np.ones((4, 2048, 64), np.float32)
layer, tokens = MultiHeadAttention(64, 4), np.ones((2, 512, 64), np.float32)

def call(i):
    while True:
        attnpy.attention(x, x, x, num_threads=2) if i else layer(tokens, num_threads=2)

begin = time.process_time()
for i in range(3):
    threading.Thread(target=call, args=(i,), daemon=True).start()
wait_until(lambda: time.process_time() > begin + 0.1)  # all in the calls
garbage = [{j: [j]} for j in range(300_000)]  # the end takes longer
if sys.argv[1] == "exit":
    sys.exit(0)
if sys.argv[1] == "error":
    raise ValueError
if sys.argv[1] == "atexit":
    atexit.register(lambda: attnpy.attention(x[:, :8], x, x, num_threads=2))
"""


@pytest.mark.parametrize("end", ["return", "exit", "error", "atexit"])
def test_daemon_threads_in_calls_do_not_crash_the_interpreters_end(end):
    done = run_python(AT_EXIT, end)
    assert done.returncode == (1 if end == "error" else 0), done.stderr[-2000:]


# ---- The floating-point mode ---------------------------------------------------------

MODES = {"to nearest": 0x000, "down": 0x400, "up": 0x800, "toward zero": 0xC00}


@pytest.fixture(params=[name for name in MODES if name != "to nearest"])
def rounding(request):
    """Call it to run something with another rounding mode."""
    libm = ctypes.CDLL(None)
    if not hasattr(libm, "fesetround") or "neon" in _attnpy.config()["tiers"]:
        pytest.skip("x86's numbers of modes")

    def run(function):
        assert libm.fesetround(MODES[request.param]) == 0
        try:
            return function()
        finally:
            libm.fesetround(MODES["to nearest"])

    return run


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("n_keys", [1, 100, 1500])
def test_the_rounding_mode_of_the_caller_changes_no_bit(rounding, dtype, n_keys):
    query, key, value = (normal(2, n_keys, 60, dtype=dtype, seed=i) for i in range(3))
    for options in (
        {"num_threads": 1},
        {"num_threads": 2, "softcap": 3.3},
        {"scale": 0.1, "sinks": [0.1, 0.2], "bias": normal(n_keys, dtype="float64")},
    ):

        def attend(options=options):
            arrays = query, key, value
            return attnpy.attention(*arrays, causal=True, return_lse=True, **options)

        assert_same_bits(rounding(attend), attend())


@pytest.mark.quick
def test_the_rounding_mode_of_the_caller_changes_no_bit_of_products(rounding):
    x, weight, bias = normal(20, 30), normal(30, 40), normal(40, dtype="float64")

    def multiply():
        return linear(x, weight, bias, activation="gelu", num_threads=1)

    assert_same_bits(rounding(multiply), multiply())


# ---- Arguments that change -----------------------------------------------------------


def reshape(array):
    array.shape = (*array.shape[:-2], 1, array.shape[-2] * array.shape[-1])


def flatten(array):
    array.shape = array.size


def retype(array):
    array.dtype = np.uint8


MISCHIEFS = [reshape, flatten, retype]
VICTIMS = ("query", "key", "value")


def attend_with(meddler, victim, mischief):
    """A call in which an option's conversion changes one of the arrays."""
    arrays = {name: np.ones((2, 8, 16), np.float32) for name in VICTIMS}
    options = {"mask": np.ones((8, 8), bool), "bias": np.zeros((8, 8)), "sinks": [0, 1]}
    array = np.asarray(options[meddler])
    more = {meddler: Asked(array, lambda: mischief(arrays[victim]))}
    return attnpy.attention(*arrays.values(), **more)


@pytest.mark.quick
@pytest.mark.parametrize("mischief", MISCHIEFS)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("meddler", ["mask", "bias", "sinks"])
def test_options_that_change_arrays_give_an_error_or_a_result(
    meddler, victim, mischief
):
    try:
        attend_with(meddler, victim, mischief)
    except (TypeError, ValueError) as error:
        assert "expected" in str(error)


@pytest.mark.quick
@pytest.mark.parametrize("mischief", MISCHIEFS)
@pytest.mark.parametrize("meddler", ["W_k", "b_v", "W_o", "norm", "mask", "kv_lengths"])
@pytest.mark.parametrize("victim", ["x", "W_q", "W_v"])
def test_parameters_that_change_others_give_an_error_or_a_result(
    meddler, victim, mischief
):
    x = np.ones((2, 6, 8), np.float32)
    mha = MultiHeadAttention(8, 2, bias=True)
    array = x if victim == "x" else getattr(mha, victim)
    options = {"mask": np.ones((6, 6), bool), "kv_lengths": np.array([6, 5])}
    more = {}
    if meddler in options:
        more[meddler] = Asked(options[meddler], lambda: mischief(array))
    elif meddler == "norm":
        mha.q_norm = attnpy.blocks.RMSNorm(4)
        mha.q_norm.weight = Asked(np.ones(4, np.float32), lambda: mischief(array))
    else:
        given = getattr(mha, meddler)
        setattr(mha, meddler, Asked(given, lambda: mischief(array)))
    try:
        mha(x, **more)
    except (TypeError, ValueError) as error:
        assert "expected" in str(error)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["W_q", "b_q", "W_k", "b_k", "W_v", "b_v"])
def test_tokens_are_asked_before_the_matrices_are_looked_at(name):
    # Otherwise what a resize frees would be read.
    layer = SelfAttention(8, 4)
    target = getattr(layer, name)
    x = np.ones((2, 6, 8), np.float32)
    meddler = Asked(x, lambda: target.resize((5, 3), refcheck=False))
    with pytest.raises(ValueError, match=r"expected .*(5|3)"):
        layer(meddler)


class Finalizing(np.ndarray):
    """An array whose copies do mischief."""

    mischief = None

    def __array_finalize__(self, parent):
        if Finalizing.mischief is not None:
            Finalizing.mischief()


@pytest.mark.quick
@pytest.mark.parametrize("mischief", MISCHIEFS)
def test_subclasses_that_change_others_when_they_are_cast_give_a_result(mischief):
    query = np.ones((2, 8, 16))
    key = np.ones((2, 8, 16), np.float32).view(Finalizing)  # is cast to float64
    value = np.ones((2, 8, 16))
    Finalizing.mischief = lambda: mischief(query)
    try:
        output = attnpy.attention(query, key, value)
    finally:
        Finalizing.mischief = None
    assert_same_bits(output, np.ones((2, 8, 16)))


@pytest.mark.quick
@pytest.mark.parametrize("mischief", [flatten, retype])
def test_norms_and_rotations_are_read_once_all_is_converted(mischief):
    x, weight = np.ones((4, 6), np.float32), np.ones(6, np.float32)
    meddler = Asked(np.ones((4, 6), np.float32), lambda: mischief(weight))
    tables = Asked(np.ones((4, 6), np.float32), lambda: mischief(x))
    for call in (
        lambda: _attnpy.normalize(meddler, None, Norm(weight, None, 1e-5, True), 1),
        lambda: _attnpy.rotate(x, tables, False, None, None),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            assert "expected" in str(error)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["query", "key", "value", "mask", "bias", "sinks"])
def test_arrays_with_masks_of_their_own_are_refused(name):
    arrays = {name: np.ones((2, 8, 16)) for name in VICTIMS}
    options = {"mask": np.ones((8, 8), bool), "bias": np.zeros((8, 8)), "sinks": [0, 1]}
    given = {name: options[name]} if name in options else {}
    for wrap in (np.asanyarray, list):
        masked = np.ma.masked_array({**arrays, **given}[name])
        more = {name: wrap(masked) if masked.ndim > 1 else masked}
        with pytest.raises(
            TypeError, match=f"^{name}: expected an array without its own m"
        ):
            attnpy.attention(**{**arrays, **given, **more})


@pytest.mark.quick
def test_lists_in_themselves_and_deep_ones_are_errors():
    x = [1.0]
    x.append(x)
    deep = [1.0]
    for _ in range(100_000):
        deep = [deep]
    for wrong in (x, deep):
        with pytest.raises((ValueError, RecursionError)):
            attnpy.attention(wrong, [[1.0]], [[1.0]])


@pytest.mark.quick
def test_an_empty_list_is_one_of_integers():
    x = np.ones((0, 2, 8, 16), np.float32)
    assert attnpy.attention(x, x, x, kv_lengths=[], q_offset=[]).shape == x.shape
    with pytest.raises(TypeError, match="kv_lengths: expected integers"):
        attnpy.attention(x, x, x, kv_lengths=np.zeros(0))


# ---- Plans ---------------------------------------------------------------------------


def new_plan(**options):
    query, key, value = (np.ones((2, 8, 16), np.float32) for _ in range(3))
    return attnpy.Plan(query, key, value, **options), (query, key, value)


@pytest.mark.quick
@pytest.mark.parametrize("i", range(3))
def test_a_plan_refuses_arrays_that_were_changed_in_place(i):
    for mischief in (
        lambda array: array.resize((200, 100, 16), refcheck=False),
        flatten,
        retype,
    ):
        plan, arrays = new_plan()
        mischief(arrays[i])
        with pytest.raises(RuntimeError, match=r"expected (query|key|value) as it was"):
            plan()


@pytest.mark.quick
def test_a_plan_refuses_lengths_and_results_that_were_changed_in_place():
    plan, _ = new_plan(kv_lengths=8, return_weights=True)
    plan.kv_lengths.resize((1000,), refcheck=False)
    with pytest.raises(RuntimeError, match="expected kv_lengths as it was"):
        plan()
    plan, _ = new_plan(return_weights=True)
    retype(plan.weights)
    with pytest.raises(RuntimeError, match="expected weights as it was"):
        plan()


@pytest.mark.quick
def test_a_plan_takes_a_memory_map(tmp_path):
    key = np.memmap(tmp_path / "key", np.float32, "w+", shape=(2, 8, 16))
    key[...] = 1
    plan = attnpy.Plan(np.ones((2, 1, 16), np.float32), key, key)
    assert plan.key is key
    assert_same_bits(plan(), np.ones((2, 1, 16), np.float32))


@pytest.mark.quick
def test_a_plan_that_is_being_made_cannot_be_called():
    found = []

    def look():
        for thing in gc.get_objects():
            if issubclass(type(thing), _attnpy.Plan):  # not of what a proxy stands for
                found.append(thing)
                with pytest.raises(RuntimeError, match="expected a complete plan"):
                    thing()
                assert repr(thing).startswith("Plan(")

    x = np.ones((2, 8, 16), np.float32)
    bias = Asked(np.zeros((8, 8), np.float32), look)
    with pytest.raises(TypeError, match="bias: expected an array"):
        attnpy.Plan(x, x, x, bias=bias)
    assert found


@pytest.mark.quick
def test_plans_in_cycles_are_freed():
    class Holder(np.ndarray):
        pass

    query = np.ones((2, 8, 16), np.float32).view(Holder)
    plan = attnpy.Plan(query, query, query)
    query.plan = plan
    gone = weakref.ref(query)
    del plan, query
    gc.collect()
    assert gone() is None


# ---- Odd groups ----------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("options", [(), (None,) * 3, None, [None] * 20, {"mask": 1}])
def test_odd_groups_of_arguments_are_type_errors(options):
    x = np.ones((2, 8, 16), np.float32)
    with pytest.raises(TypeError, match="options: expected a tuple of 20"):
        _attnpy.attention(x, x, x, options)
    with pytest.raises(TypeError, match="expected"):
        _attnpy.layer(x, None, options, options, None, None, None, Options())
    with pytest.raises(TypeError, match="norm: expected a tuple of 4"):
        _attnpy.normalize(x, None, options or (), 1)


def test_the_pieces_of_a_model_run_beside_each_other():
    # What the tests above use, without mischief.
    x = normal(2, 6, 8)
    assert MultiHeadAttention(8, 2)(x, rotary=Rotary(4)).shape == x.shape
    assert FeedForward(8, 16)(x).shape == x.shape
