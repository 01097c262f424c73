"""The machine: what it is, and its limits, measured by the loops in peak.c."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from attnpy._measure import cpu_name

SECONDS = 0.01  # of one measurement
WINDOWS = 10  # in which a measurement of the FMA peak is parted
# Without vectorisation the scalar loops stay scalar.
FLAGS = ("-O2", "-fPIC", "-shared", "-fno-tree-vectorize", "-fno-tree-slp-vectorize")
# Of each loop of multiply-adds in peak.c, those of the best instruction set first.
AVX512 = ("-mavx512f", '-DCPU="avx512f"', "-DBYTES=64")
AVX2 = ("-mavx2", "-mfma", '-DCPU="avx2"', "-DBYTES=32")
VNNI = ("-mavx512f", "-mavx512vnni", '-DCPU="avx512vnni"', "-DINTEGERS")
X86 = {
    "amx_int8": ("-mamx-tile", "-mamx-int8", "-DTILES", "-DINTEGERS"),
    "avx512_vnni_int8": VNNI,
    "amx_bf16": ("-mamx-tile", "-mamx-bf16", "-DTILES"),
    "avx512_bf16": ("-mavx512bf16", '-DCPU="avx512bf16"'),
    "avx512_f32": (*AVX512, "-DREAL=float"),
    "avx512_f64": (*AVX512, "-DREAL=double"),
    "avx2_f32": (*AVX2, "-DREAL=float"),
    "avx2_f64": (*AVX2, "-DREAL=double"),
    "scalar_f32": ("-mfma", '-DCPU="fma"', "-DREAL=float"),
    "scalar_f64": ("-mfma", '-DCPU="fma"', "-DREAL=double"),
}
AARCH64 = {
    "neon_f32": ("-DREAL=float", "-DBYTES=16"),
    "neon_f64": ("-DREAL=double", "-DBYTES=16"),
    "scalar_f32": ("-DREAL=float",),
    "scalar_f64": ("-DREAL=double",),
}
MACHINES = {"x86_64": X86, "aarch64": AARCH64, "arm64": AARCH64}
LOOPS = MACHINES.get(platform.machine(), {})


def compiler():
    """The C compiler's command, as a list."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shlex.split(command)[:1]


@functools.cache
def library(loop):
    """peak.c with this loop, or None if the compiler or the CPU cannot have it."""
    source = Path(__file__).with_name("peak.c")
    flags = (*FLAGS, *LOOPS.get(loop, ["-DREAL=float"]))
    with tempfile.TemporaryDirectory() as directory:
        target = str(Path(directory) / "peak.so")
        for command in (compiler(), ["cc"]):
            if output_of([*command, *flags, str(source), "-o", target]) is not None:
                break
        else:
            return None
        found = ctypes.CDLL(target)
    pointer, real, size = ctypes.c_void_p, ctypes.c_double, ctypes.c_ssize_t
    found.fma_rates.argtypes = real, real, size, pointer
    found.fma_rates.restype, found.read_rate.restype = None, real
    found.read_rate.argtypes = pointer, pointer, size, ctypes.c_int, real
    return found if found.is_present() else None


def reader():
    """The library that reads with the widest vectors, or None without a compiler."""
    wide = [name for name in ("avx512_f32", "avx2_f32") if name in LOOPS]
    return next(filter(None, map(library, (*wide, "plain"))), None)


def output_of(command):
    """What a command prints, or None where it fails."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


@functools.cache
def cores():
    """The CPUs that this process may use, a list for each core; or nothing is known."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    found = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        core = Path(path).read_text() if Path(path).exists() else str(cpu)
        found.setdefault(core, []).append(cpu)
    return list(found.values())


def cpus():
    """The CPUs to run on, one of each core first; or nothing is known."""
    ranks = {cpu: i for core in cores() for i, cpu in enumerate(core)}
    return sorted(ranks, key=ranks.get)


def thread_counts():
    """1, 4, 8, 16, ... and the number of CPUs that this process may use."""
    n_cpus = len(cpus()) or os.cpu_count() or 1
    powers = (4 << i for i in range(n_cpus.bit_length()))
    return sorted({1, n_cpus, *(n for n in powers if n < n_cpus)})


def together(work, n_threads):
    """The sum of work(0), ..., work(n_threads - 1), each in a thread of its own.

    Each has a CPU of its own as well: the system may start two threads on one, and take
    longer to part them than they run.
    """
    if n_threads == 1:
        return work(0)
    start = threading.Barrier(n_threads)
    places = cpus()

    def run(i):
        if places:
            with contextlib.suppress(OSError):  # a CPU may be taken away meanwhile
                os.sched_setaffinity(0, {places[i % len(places)]})  # of this thread
        start.wait()
        return work(i)

    with ThreadPoolExecutor(n_threads) as pool:  # of threads that are new
        return sum(pool.map(run, range(n_threads)))


def fma_peak(loop, n_threads, seconds=SECONDS):
    """Multiplications and additions per second: loop is "avx2_f32" or alike.

    The best of the windows, which are the same for all threads: so all ran in it.
    """
    best = 0.0
    while best == 0:  # on a busy machine a thread may sleep through all of them
        start = time.clock_gettime(time.CLOCK_MONOTONIC) + seconds / WINDOWS
        rates = partial(fma_rates, loop, start, seconds / WINDOWS)
        best = together(rates, n_threads).max()
    return float(best)


def fma_rates(loop, start, seconds, _):
    """Operations per second in each window, (WINDOWS,)."""
    rates = np.zeros(WINDOWS)
    library(loop).fma_rates(start, seconds, WINDOWS, rates.ctypes.data)
    return rates


@functools.cache
def fma_loop(real, isa=None):
    """The best loop for f32, f64, bf16 or int8 (on one instruction set), or None."""
    for loop in LOOPS:
        known, _, kind = loop.rpartition("_")
        if kind == real and isa in (None, known) and library(loop) is not None:
            return loop
    return None


def read_bandwidth(one, other, n_threads, way, seconds=SECONDS):
    """Bytes per second of n_threads that read two arrays, sharing each."""
    part = one.nbytes // n_threads

    def read(i):
        addresses = (x.ctypes.data + i * part for x in (one, other))
        return reader().read_rate(*addresses, part, way, seconds)

    return together(read, n_threads)


def best_read_way(one, other, n_threads):
    """Which way of reading (streams, prefetch) is fastest for these arrays."""
    ways, read = range(reader().n_read_ways()), partial(read_bandwidth, one, other)
    rounds = [[read(n_threads, way) for way in ways] for _ in range(3)]
    return int(np.argmax(np.median(rounds, axis=0)))


def caches():
    """{name: bytes} of a CPU's caches, the last level at the end; empty if unknown."""
    found = {}
    for path in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (
            (path / name).read_text().strip() for name in ("level", "type", "size")
        )
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:])
        if unit and kind != "Instruction":
            found[f"L{level}"] = int(size[:-1]) * unit
    return found


def cache_bytes():
    """The size of the last-level cache, 32 MiB where the system does not say."""
    return max(caches().values(), default=32 << 20)


def compiler_version():
    """The first line of what the C compiler says about itself, or None."""
    text = output_of([*compiler(), "--version"])
    return text and text.splitlines()[0]


def cpu_model():
    """Family and model where the system has them: virtual machines hide the name."""
    if sys.platform != "linux":
        return ""
    fields = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if "cpu family" not in fields:
        return ""
    return f"family {fields['cpu family']}, model {fields.get('model', '?')}"


def limits(n_threads):
    """FMA peaks and the bandwidth of 256 MiB, in units of 1e9 per second."""
    if reader() is None:
        return {}
    found = {}
    for loop in filter(None, map(fma_loop, ("f32", "f64", "bf16", "int8"))):
        rates = [fma_peak(loop, n_threads) for _ in range(5)]
        found[f"{loop} GFLOP/s"] = round(max(rates) / 1e9, 1)
    one, other = (np.ones(128 << 20, np.uint8) for _ in range(2))
    way = best_read_way(one, other, n_threads)
    rates = [read_bandwidth(one, other, n_threads, way) for _ in range(5)]
    found["read GB/s"] = round(max(rates) / 1e9, 1)
    return found


def describe(thread_counts):
    """What the machine is, as a dictionary."""
    import attnpy

    try:
        load = [round(x, 2) for x in os.getloadavg()]
    except OSError:
        load = None
    return {
        "cpu": cpu_name(),
        "model": cpu_model(),
        "cpus": os.cpu_count(),
        "cores": len(cores()),
        "caches": caches(),
        "tier": attnpy.show_config(mode="dicts")["tier"],
        "compiler": compiler_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load average before": load,
        "limits": {str(n): limits(n) for n in thread_counts},
    }


def commit(root=Path(__file__).parents[1]):
    """The commit of the sources, with a + if one of them has been changed since.

    Pages do not count. None where there is no repository, such as in an archive.
    """

    def git(*arguments):
        command = ["git", "-C", str(root), *arguments]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        return found.stdout.strip()

    try:
        if not root.samefile(git("rev-parse", "--show-toplevel")):
            return None
        name = git("rev-parse", "--short", "HEAD")
        of_sources = ("--", ".", ":(exclude)docs")
        return name + ("+" if git("status", "--porcelain", "-uno", *of_sources) else "")
    except (OSError, subprocess.CalledProcessError):
        return None
