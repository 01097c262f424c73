"""Time a row: every system in turn, again and again, and ratios within each round."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from attnpy._measure import in_turn, quartiles

from . import apart, machine, quiet
from .ways import Contestant, best_of, how_it_ends, mean_error, right_ways, ways_of

ALL_WAYS = "all ways"


@dataclass(frozen=True)
class Effort:
    """How long to measure one row: rounds until either limit, but min_rounds."""

    rounds: int = 15
    min_rounds: int = 5
    seconds: float = 5.0
    trials: int = 3  # samples of each way to find the fastest


# ---- The contestants of a row --------------------------------------------------------


def expected_result(case, arrays, n_threads):
    """What all must agree with: models in float64, else attnpy in float32 at least."""
    if hasattr(case, "expected"):
        return case.expected()
    if case.dtype not in ("float32", "float64"):
        if arrays[0].dtype.kind == "i":  # tokens, of a model
            case = replace(case, dtype="float32")
        else:
            arrays = [x.astype(np.float32) for x in arrays]
    way = next(ways_of("attnpy", case, arrays, n_threads))
    return way.read(way.call())


def own_way(row, arrays, n_threads):
    """attnpy's way of a row."""
    more = {"tier": row.tier} if row.tier else {"plan": True} if row.plan else {}
    return next(ways_of("attnpy", row.case, arrays, n_threads, **more))


def contestants(row, n_threads, systems, trials):
    """{name: contestant}, attnpy first, and {system: {way: why it was dropped}}."""
    arrays = row.case.arrays()
    work = work_of(row.case, row.unit)
    way = own_way(row, arrays, n_threads)
    found = {"attnpy": Contestant(way.name, way.call, work)}
    if row.own is not None and row.own[1].n_threads != n_threads:
        found["own"] = own_contestant(row, arrays, n_threads)
    rivals = [system for system in row.peers if system in systems]
    dropped = {}
    if rivals or hasattr(row.case, "expected"):
        expected = expected_result(row.case, arrays, n_threads)
    if hasattr(row.case, "expected"):
        found["attnpy"].error = mean_error(way.read(way.call()), expected)
    for system in rivals:
        how = how_it_ends(system, row.case, n_threads)
        if how:
            dropped[system] = {ALL_WAYS: how}
            continue
        if row.waiting == "default":
            rival, dropped[system] = apart.contestant(
                system, row.case, n_threads, expected, trials, work
            )
        else:
            ways = ways_of(system, row.case, arrays, n_threads)
            good, dropped[system] = right_ways(ways, row.case, expected)
            rival = best_of(good, trials, work)
        if rival is not None:
            found[system] = rival
    for contestant in found.values():
        contestant.prepare()
    return found, {system: why for system, why in dropped.items() if why}


def own_contestant(row, arrays, n_threads):
    title, own = row.own
    other = replace(row, case=own.case or row.case, tier=None, plan=False)
    if other.case.dtype != row.case.dtype:
        arrays = other.case.arrays()
    way = own_way(other, arrays, own.n_threads or n_threads)
    return Contestant(title, way.call, work_of(other.case, row.unit))


def work_of(case, unit):
    """How much one call does, in 1e9 operations or bytes, or in tokens."""
    if unit == "tokens/s":
        return case.n_tokens()
    return (case.flops() if unit == "GFLOP/s" else case.n_bytes()) / 1e9


# ---- The machine's limit, in every round ---------------------------------------------


def limit_of(row, n_threads):
    """What bounds the row: its name, and a function that measures it per second."""
    if row.limit is None or machine.reader() is None:
        return None, None
    if row.limit == "bandwidth":
        key, value = row.case.memory()
        way = machine.best_read_way(key, value, n_threads)
        # 16-bit arrays of ml_dtypes are bytes as well.
        measure = partial(machine.read_bandwidth, key, value, n_threads, way)
        return "read bandwidth", measure
    real = "f64" if row.case.dtype == "float64" else "bf16" if row.native else "f32"
    real = "int8" if row.limit == "int8" else real
    loop = machine.fma_loop(real, row.tier)
    if loop is None:
        return None, None
    return loop, partial(machine.fma_peak, loop, n_threads)


# ---- A row ---------------------------------------------------------------------------


def rounds(found, limit, effort, n_threads):
    """Times of each contestant, the limit, one of each in every round, and the share
    of samples that other programs disturbed."""
    samples = {} if limit is None else {"the limit": limit}
    samples |= {name: contestant.sample for name, contestant in found.items()}
    disturbed = []
    patience = min(quiet.PATIENCE, effort.seconds / 25)  # a short measurement has less
    samples = {
        name: quiet.sampler(sample, n_threads, disturbed, patience)
        for name, sample in samples.items()
    }
    times = in_turn(samples, effort.rounds, effort.min_rounds, effort.seconds)
    return times, times.pop("the limit", np.array([])), float(np.mean(disturbed))


def measure_row(row, n_threads, systems, effort):
    """One row as a dictionary for JSON; every spread is the quartiles of the rounds."""
    found, dropped = contestants(row, n_threads, systems, effort.trials)
    limit_name, limit = limit_of(row, n_threads)
    times, limits, disturbed = rounds(found, limit, effort, n_threads)
    result = {
        "group": row.group,
        "name": row.name,
        "threads": n_threads,
        **facts_of(row.case),
        "unit": row.unit,
        "waiting": row.waiting,
        "absent": [system for system in row.peers if system not in systems],
        "rounds": len(times["attnpy"]),
        "disturbed": disturbed,
        "systems": {name: system_result(x, times[name]) for name, x in found.items()},
        "dropped_ways": dropped,
        "ended": {x: y[ALL_WAYS] for x, y in dropped.items() if ALL_WAYS in y},
    }
    rates = {name: x.work / times[name] for name, x in found.items()}
    ours = rates.pop("attnpy")
    ratios = {name: ours / rate for name, rate in rates.items()}  # in each round
    rivals = [ratio for name, ratio in ratios.items() if name != "own"]
    if rivals:
        ratios["fastest"] = np.min(rivals, axis=0)
    result["faster_than"] = {name: quartiles(x) for name, x in ratios.items()}
    if "own" in found:
        result["own"] = row.own[0]
    if limit is not None:
        work = row.case.n_bytes() if row.limit == "bandwidth" else row.case.flops()
        percent = quartiles(100 * work / times["attnpy"] / limits)
        result["limit"] = {"what": row.limit, "loop": limit_name, "percent": percent}
        result["limit"]["per_second"] = quartiles(limits)
    result["targets"] = judge(row, result)
    return result


def facts_of(case):
    """What the results say about a case: its fields, or what it says itself."""
    return case.facts() if hasattr(case, "facts") else asdict(case)


def system_result(contestant, times):
    seconds = quartiles(times)
    return {
        "way": contestant.way,
        "seconds": seconds,
        "speed": [contestant.work / t for t in reversed(seconds)],
        "calls_per_sample": contestant.n_calls,
        "error": contestant.error,
    }


# ---- Targets -------------------------------------------------------------------------


def judge(row, result):
    """What was reached of each target that this run could measure.

    A target is a list of parts, [what, ">=" or "<=", bound, got]; one is enough.
    """
    found = []
    for target in row.targets:
        parts = (target,) if isinstance(target[0], str) else target
        judged = [judge_part(what, bound, row, result) for what, bound in parts]
        found.append([part for part in judged if part is not None])
    if row.group == "threads":
        found += judge_threads(result)
    return [parts for parts in found if parts]


def judge_part(what, bound, row, result):
    """One part of a target, or None where it was not measured."""
    systems = result["systems"]
    if what.startswith("error/"):
        other = systems.get(what.removeprefix("error/"))
        if other is None:
            return None
        return at_most(what, bound, systems["attnpy"]["error"] / other["error"])
    if what == "bandwidth" and row.group == "decode" and result["threads"] < 2:
        return None
    if what in ("peak", "bandwidth"):
        spread = result.get("limit", {}).get("percent")
    else:
        spread = result["faster_than"].get(what)
    return spread and at_least(what, bound, spread[1])


def judge_threads(result):
    """Never slower: not in three quarters of the rounds. By how much, by the work."""
    spread = result["faster_than"]["own"]
    yield [at_least("own, upper quartile", 1.0, spread[2])]
    seconds = result["systems"]["own"]["seconds"][1]
    if seconds >= 50e-6:
        yield [at_least("own", 1.85 if seconds > 5e-3 else 1.7, spread[1])]


def at_least(what, bound, got):
    return [what, ">=", bound, float(got)]


def at_most(what, bound, got):
    return [what, "<=", bound, float(got)]
