"""How much memory one call takes beyond its output, measured in a fresh process."""

import ctypes
import gc
import resource
import sys
from pathlib import Path

from . import cases, children, measure, peers
from .cases import prefill

LENGTHS = (512, 1024, 2048, 4096, 8192)
QUICK_LENGTHS = (2048,)
HEADS = 2
MIB = 1 << 20


def rows(quick):
    """(name, case) for each L, full and causal."""
    for causal in (False,) if quick else (False, True):
        for length in QUICK_LENGTHS if quick else LENGTHS:
            case = prefill(1, HEADS, length, 64, causal=causal)
            yield f"1x{HEADS}x{length}x64{' causal' if causal else ''}", case


def measure_memory(name, case, n_threads, systems):
    """One row: MiB for each system."""
    found, failed = {}, {}
    for system in systems:
        if system not in peers.WAYS:  # it has whole models only
            continue
        try:
            found[system] = children.once(beyond_output, system, case, n_threads)
        except RuntimeError as error:
            failed[system] = str(error)
    got = found.get("attnpy", {}).get("beyond output")
    target = measure.at_most("MiB beyond the output", n_threads, got or 0)
    return {
        "group": "memory",
        "name": name,
        "threads": n_threads,
        "n_keys": case.n_keys,
        "causal": case.causal,
        "mebibytes": found,
        "dropped_ways": failed,
        "targets": [] if got is None else [[target]],
    }


# ---- In the process that is measured -------------------------------------------------


def status(field):
    """A size from /proc/self/status in bytes; 0 on other systems."""
    if sys.platform != "linux":
        return 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def highest():
    """The largest resident size so far, in bytes."""
    if sys.platform == "linux":
        return status("VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_highest():
    """Start counting the largest size anew, where the system can; return the size.

    What malloc holds in reserve goes back first: a call could hide there what it takes.
    """
    gc.collect()
    if sys.platform != "linux":
        return highest()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def beyond_output(system, case, n_threads):
    peers.alone(system, n_threads)
    if system != "attnpy":  # whose first call counts with all that it starts
        small = prefill(case.batch, case.heads, 64, case.dim, causal=case.causal)
        first_way(system, small, n_threads).call()
    way = first_way(system, case, n_threads)
    before, code_before = forget_highest(), status("RssFile")
    result = way.call()
    peak, code = highest(), status("RssFile") - code_before
    del result
    beyond = peak - before - code - cases.output_bytes(case)
    return {"way": way.name, "beyond output": max(0, beyond) / MIB}


def first_way(system, case, n_threads):
    return next(peers.WAYS[system](case, case.arrays(), n_threads))
