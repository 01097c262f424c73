"""Interrupts (Ctrl-C) at every moment of a call, a new call for each."""

import contextlib
import itertools
import sys
from pathlib import Path

import attnpy

# What other modules are interrupted in comes out of them where they are called.
FILES = (str(Path(attnpy.__file__).parent), contextlib.__file__)


def interrupted_everywhere(
    call, *, opcodes_of=(), never_in=(), files=FILES, error=KeyboardInterrupt
):
    """Interrupt each call at a later moment than the one before; yield after each.

    A moment is before a line of attnpy or contextlib, or of the files whose names begin
    like those that are given, or at the end of a function; in the functions of
    `opcodes_of` before each instruction, in those of `never_in` never. The last call,
    which yields False, was not interrupted.
    """
    codes, without = (
        {function.__code__ for function in functions}
        for functions in (opcodes_of, never_in)
    )
    for n in itertools.count():
        interrupted = _interrupted(call, n, codes, without, tuple(files), error)
        yield interrupted
        if not interrupted:
            assert n > 20, "there was little to interrupt"
            return


def _interrupted(call, n, codes, without, files, error):
    """Interrupt a call at its n-th moment; return False if it ended earlier."""
    left = n

    def moment(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.startswith(files) or frame.f_code in without:
            return None
        frame.f_trace_opcodes = frame.f_code in codes
        if left == 0:
            sys.settrace(None)
            frame.f_trace = None
            left -= 1
            raise error
        left -= left > 0
        return moment

    before = sys.gettrace()
    sys.settrace(moment)
    try:
        call()
    except error:
        return True
    finally:
        sys.settrace(before)
    assert left >= 0, "the interrupt was lost"
    return False
