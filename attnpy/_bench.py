"""`python -m attnpy bench`: attention compared with other installed libraries.

Every system takes its turn in each round, and ratios are formed within a round, because
clock rates change within seconds. Each is called as in its documentation, with arrays
in its own layout; benchmarks/, beside the sources, uses each library's fastest way.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import attnpy
from attnpy._measure import (
    BATCH,
    DECODE,
    LONG,
    QUIET,
    SHORT,
    calls_per_sample,
    cpu_name,
    duration,
    in_turn,
    one_time,
    quartiles,
    unfused,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from attnpy._typing import Array

# The variables from which libraries read their number of threads when loaded.
COUNTS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "PJRT_NPROC",  # of JAX
)
ROUNDS, MIN_ROUNDS = 51, 3
UNEVEN = 1.5  # the upper quartile of times over the lower one, on a busy machine
TOLERANCE = 1e-4  # of results, whose numbers are about 1


class Case(NamedTuple):
    """One row of the table."""

    name: str
    query: tuple[int, ...]  # (B, H, Lq, D)
    key: tuple[int, ...]  # (B, Hk, Lk, D)
    causal: bool = False

    def arrays(self) -> list[Array]:
        """Return query, key and value, float32."""
        rng = np.random.default_rng(0)
        shapes = self.query, self.key, self.key
        return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def decoding(name: str) -> Case:
    """Return the row of one query for each sequence."""
    batch, heads, kv_heads, n_keys, dim = DECODE
    return Case(name, (batch, heads, 1, dim), (batch, kv_heads, n_keys, dim))


CASES = (
    Case("8 heads, 64 x 64", SHORT, SHORT),
    Case("8 x 12 heads, 128 x 64", BATCH, BATCH),
    Case("12 heads, 1,024 x 64", LONG, LONG),
    Case("the same, causal", LONG, LONG, causal=True),
    decoding("decoding, 4,096 keys"),
)


class Way(NamedTuple):
    """A call without arguments, and how its result becomes (B, H, Lq, D)."""

    call: Callable[[], Any]
    read: Callable[[Any], Array] = np.asarray


def attnpy_way(case: Case, arrays: list[Array], n_threads: int) -> Way:
    """Return the call of attnpy."""
    return Way(
        partial(attnpy.attention, *arrays, causal=case.causal, num_threads=n_threads)
    )


def numpy_way(case: Case, arrays: list[Array], n_threads: int) -> Way:
    """Return the formula, with the heads of a group as more queries."""
    query, key, value = arrays
    batch, heads, length, dim = case.query
    kv_heads, n_keys = case.key[1:3]
    rows = (batch, kv_heads, heads // kv_heads * length, dim)
    hidden = np.triu(np.full((length, n_keys), -np.inf, np.float32), 1)
    return Way(
        partial(
            unfused,
            query.reshape(rows),
            key,
            value,
            dim**-0.5,
            hidden if case.causal else None,
        ),
        lambda result: result.reshape(case.query),
    )


def torch_way(case: Case, arrays: list[Array], n_threads: int) -> Way:
    """Return scaled_dot_product_attention."""
    import torch

    torch.set_num_threads(n_threads)
    attend = partial(
        torch.nn.functional.scaled_dot_product_attention,
        *map(torch.from_numpy, arrays),
        is_causal=case.causal,
        enable_gqa=case.query[1] != case.key[1],
    )
    return Way(torch.inference_mode()(attend))


def jax_way(case: Case, arrays: list[Array], n_threads: int) -> Way:
    """Return dot_product_attention, compiled; its arrays are (B, L, H, D)."""
    import jax

    given = [jax.numpy.asarray(x.swapaxes(1, 2)) for x in arrays]
    attend = jax.jit(partial(jax.nn.dot_product_attention, is_causal=case.causal))
    return Way(
        lambda: attend(*given).block_until_ready(),
        lambda result: np.asarray(result).swapaxes(1, 2),
    )


def onnxruntime_way(case: Case, arrays: list[Array], n_threads: int) -> Way:
    """Return ONNX's operator, with inputs and output bound before."""
    import onnxruntime
    from onnx import TensorProto, helper

    names = ["query", "key", "value"]
    node = helper.make_node("Attention", names, ["output"], is_causal=int(case.causal))
    described = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in zip([*names, "output"], [*arrays, arrays[0]], strict=True)
    ]
    graph = helper.make_graph([node], "attention", described[:3], described[3:])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    output = np.empty_like(arrays[0])
    binding = session.io_binding()
    for name, array in zip(names, arrays, strict=True):
        binding.bind_cpu_input(name, array)
    binding.bind_output(
        "output", "cpu", 0, np.float32, output.shape, output.ctypes.data
    )

    def call() -> Array:
        session.run_with_iobinding(binding)
        return output

    return Way(call)


class Peer(NamedTuple):
    """A system to compare with: its name, its packages, and its call for a case."""

    title: str
    packages: tuple[str, ...]
    way: Callable[[Case, list[Array], int], Way]


PEERS = (
    Peer("NumPy", ("numpy",), numpy_way),
    Peer("PyTorch", ("torch",), torch_way),
    Peer("ONNX Runtime", ("onnxruntime", "onnx"), onnxruntime_way),
    Peer("JAX", ("jax",), jax_way),
)


def run(num_threads: int | None, seconds: float) -> None:
    """Print the table, row by row; `seconds` is the time for all measurements."""
    n_threads = attnpy.get_num_threads() if num_threads is None else num_threads
    attnpy.set_num_threads(n_threads)  # judges it, too
    if not 0 < seconds < float("inf"):
        raise ValueError(f"--seconds: expected a number above 0, got {seconds:g}")
    restart({**QUIET, **dict.fromkeys(COUNTS, str(n_threads))})
    tier = attnpy.show_config(mode="dicts")["tier"]
    threads = "1 thread" if n_threads == 1 else f"{n_threads} threads"
    print(f"attnpy {attnpy.__version__} on {cpu_name()} ({tier}), {threads}, float32")
    peers = [peer for peer in PEERS if all(map(installed, peer.packages))]
    versions = (f"{peer.title} {version(peer.packages[0])}".strip() for peer in peers)
    print(f"Compared with {', '.join(versions)}")
    if absent := [peer.title for peer in PEERS if peer not in peers]:
        print(f"Not installed, so not compared: {', '.join(absent)}")
    print("How many times as fast attnpy is: the median (quartiles) of all rounds\n")
    print_line("", "attnpy", *(peer.title for peer in peers))
    reasons = [busy_cpus(attnpy.show_config(mode="dicts")["cpus"])]
    faults: dict[str, str] = {}
    for case in CASES:
        times = measured(case, peers, n_threads, seconds / len(CASES), faults)
        print_line(case.name, *cells(times, peers))
        reasons.append(uneven(times["attnpy"]))
    print("\nAbove 1, attnpy is faster.", end=" ")
    print("NumPy computes the formula: two products around a softmax.")
    if why := next(filter(None, reasons), ""):
        print(f"The machine is busy ({why}): these ratios are rough.")
    for what, why in faults.items():
        print(f"Left out: {what}: {why}")


def busy_cpus(n_cpus: int) -> str:
    """Return the load average if more programs want to run than there are CPUs."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # the system does not count
        return ""
    return f"load average {load:.1f} on {n_cpus} CPUs" if load > n_cpus else ""


def uneven(times: NDArray[np.float64]) -> str:
    """Return by how much rounds of the same call differ, if that is too much."""
    low, _, high = quartiles(times)
    if high < UNEVEN * low:
        return ""
    return f"the same call takes {high / low:.1f} times as long in some rounds"


def restart(environment: dict[str, str]) -> None:
    """Start this command again if libraries need other settings when they load."""
    if any(os.environ.get(name) != value for name, value in environment.items()):
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **environment})


def installed(package: str) -> bool:
    """Tell whether a package is installed, without importing it."""
    return importlib.util.find_spec(package) is not None


def version(package: str) -> str:
    """Return a package's version, without its build tag.

    Empty for one that is installed under another name, such as onnxruntime-gpu.
    """
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def measured(
    case: Case,
    peers: list[Peer],
    n_threads: int,
    seconds: float,
    faults: dict[str, str],
) -> dict[str, NDArray[np.float64]]:
    """Return the times of all rounds; `faults` collects the failures of peers."""
    arrays = case.arrays()
    ours = attnpy_way(case, arrays, n_threads)
    calls = {"attnpy": ours.call}
    expected = ours.call()
    for peer in peers:
        try:
            way = peer.way(case, arrays, n_threads)
            check(way.read(way.call()), expected)
            calls[peer.title] = way.call
        except Exception as problem:  # whatever another library says
            why = f"{type(problem).__name__}: {problem}".splitlines()[0]
            faults[f"{peer.title}, {case.name}"] = why
    samples = {
        name: partial(one_time, call, calls_per_sample(call))
        for name, call in calls.items()
    }
    return in_turn(samples, ROUNDS, MIN_ROUNDS, seconds)


def cells(times: dict[str, NDArray[np.float64]], peers: list[Peer]) -> list[str]:
    """Return attnpy's time, and for each peer how many times as fast attnpy is."""
    found = [duration(quartiles(times["attnpy"])[1])]
    for peer in peers:
        if peer.title in times:
            ratios = quartiles(times[peer.title] / times["attnpy"])
            low, middle, high = map(three_digits, ratios)
            found.append(f"{middle} ({low}-{high})")
        else:
            found.append("-")
    return found


def three_digits(number: float) -> str:
    """Return a number in four letters, or more from 10,000 on."""
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def check(result: Array, expected: Array) -> None:
    """Require the same result, up to rounding."""
    error = float(np.abs(result - expected).max())
    if not error < TOLERANCE:
        raise ValueError(f"another result, by {error:.2g}")


def print_line(name: str, *cells: str) -> None:
    """Print a row of the table, at once: 99 letters with four peers."""
    first, *others = cells
    line = f"{name:<22} {first:>8}" + "".join(f" {cell:>16}" for cell in others)
    print(line, flush=True)
