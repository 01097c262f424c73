"""Run a fuzzer: `python tests/fuzz calls --seconds 60 --seed 0`.

A case depends on the seed and its number only. Cases run in a process of their own:
where that dies, or a case takes too long, it is a finding, and the next process goes on
after it. Every finding comes with the command that repeats it. The exit status is 1 if
one is not known.
"""

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402

from fuzz import findings  # noqa: E402

FUZZERS = (
    "calls",
    "changing",
    "files",
    "gradients",
    "kept",
    "reentry",
    "runs",
    "saves",
    "signals",
)
LIMIT = 60  # seconds: what takes longer hangs


def main():
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    parser.add_argument("fuzzer", choices=FUZZERS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cases", type=int, default=2**62, help="so many at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="repeat this one, in this process")
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--notes", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.case is not None:
        repeat(options)
    elif options.notes is not None:
        run_cases(options)
    else:
        sys.exit(supervise(options))


def generator(options, number):
    return np.random.default_rng([options.seed, number])


def repeat(options):
    """Run one case, and say what it is."""
    faulthandler.enable()
    run = importlib.import_module(f"fuzz.{options.fuzzer}").run
    try:
        print("case:", run(generator(options, options.case), verbose=True))
    except findings.Finding as finding:
        sys.exit(f"finding: {finding.signature}\n{finding.detail}")


def run_cases(options):
    """Run cases until time is up; the notes have the number, and what was found."""
    faulthandler.enable()
    run = importlib.import_module(f"fuzz.{options.fuzzer}").run
    end = time.monotonic() + options.seconds
    notes = Path(options.notes)
    at = os.open(notes / "at", os.O_RDWR | os.O_CREAT)
    counts = {}
    with open(notes / "found", "a", encoding="utf-8") as found:
        for number in range(options.first, options.cases):
            if time.monotonic() > end:
                break
            os.pwrite(at, f"{number:20}".encode(), 0)
            try:
                kind = run(generator(options, number))
            except findings.Finding as finding:
                kind = "finding"
                note = number, finding.signature, finding.detail
            except Exception as error:
                kind = "finding"
                text = f"the fuzzer's own: {findings.signature_of(error)}"
                note = number, text, findings.trace(error)
            counts[kind] = counts.get(kind, 0) + 1
            if kind == "finding":
                print(json.dumps(note), file=found, flush=True)
            os.pwrite(at, json.dumps(counts).encode(), 20)


def supervise(options):
    """Let processes run cases, report what they found, and return the exit status."""
    end = time.monotonic() + options.seconds
    first, counts, found = options.first, {}, {}
    while first == options.first or (first < options.cases and time.monotonic() < end):
        with tempfile.TemporaryDirectory() as folder:
            status, errors = start(
                options, first, max(0.1, end - time.monotonic()), folder
            )
            at = Path(folder, "at")
            text = at.read_text() if at.exists() else ""
            if not text:
                sys.exit(f"no case ran:\n{errors}")
            number = int(text[:20])
            for kind, n in json.loads(text[20:] or "{}").items():
                counts[kind] = counts.get(kind, 0) + n
            for line in Path(folder, "found").read_text("utf-8").splitlines():
                note(found, *json.loads(line))
        if status == 0:
            break
        counts["finding"] = counts.get("finding", 0) + 1
        note(found, number, last_words(status, errors), errors[-6000:])
        first = number + 1
    return report(options, counts, found)


def start(options, first, seconds, folder):
    """Run cases in another process; its exit status and what it wrote."""
    command = [sys.executable, __file__, options.fuzzer, "--seed", str(options.seed)]
    command += ["--cases", str(options.cases)]
    command += ["--first", str(first), "--seconds", str(seconds), "--notes", folder]
    with open(Path(folder, "errors"), "w+", encoding="utf-8", errors="replace") as file:
        status = watch(command, file, Path(folder, "at"))
        file.seek(0)
        return status, file.read()


def watch(command, file, at):
    """Run a process and its children until it ends or a case of it hangs.

    No thread of that process does it: what is forked while AddressSanitizer starts one
    waits for a lock forever.
    """
    process = subprocess.Popen(
        command, stdout=file, stderr=file, start_new_session=True
    )
    number, since = b"", time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.05)
            now = at.read_bytes()[:20] if at.exists() else b""
            if now != number:
                number, since = now, time.monotonic()
            elif time.monotonic() - since > LIMIT:
                process.send_signal(signal.SIGABRT)  # writes where it is
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                os.write(file.fileno(), f"Timeout ({LIMIT} s)\n".encode())
        return process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def last_words(status, errors):
    """A signature for a process that died."""
    for pattern in (
        r"SUMMARY: \w+Sanitizer: [^\n]*",
        r"[^\n/]*: runtime error: [^\n]*",
        r"Timeout \(",
        r"Fatal Python error: [^\n]*",
        r"Assertion [^\n]*",
    ):
        if words := re.search(pattern, errors):
            where = re.findall(r"(?:/|#\d+ \S+ in \w+ )csrc/([\w/.]+:\d+)", errors)
            words = re.sub(r"0x[0-9a-f]+|(?<= )/\S*/", "", words.group())
            return f"died: {words} {' '.join(where[:1])}"
    return f"died: exit status {status}"


def note(found, number, signature, detail):
    """Keep the first of each fault, and count the others."""
    first, n, _ = found.get(signature, (number, 0, detail))
    found[signature] = first, n + 1, found.get(signature, (0, 0, detail))[2]


def report(options, counts, found):
    n_known = 0
    for signature, (number, n, detail) in sorted(found.items()):
        why = findings.known(options.fuzzer, signature)
        n_known += why is not None
        print(f"--- {f'known ({why})' if why else 'FINDING'}, {n} times: {signature}")
        print(f"    python tests/fuzz {options.fuzzer} --seed {options.seed}", end="")
        print(f" --case {number}")
        print("    " + "\n    ".join(detail.strip().splitlines()[-40:]))
    n_new = len(found) - n_known
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    print(
        f"{options.fuzzer}: seed {options.seed}: {sum(counts.values())} cases "
        f"({kinds}), {n_new} new findings, {n_known} known"
    )
    return 1 if n_new else 0


if __name__ == "__main__":
    main()
