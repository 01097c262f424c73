"""What is a finding, and what a call may raise."""

import re
import traceback
from pathlib import Path

# Messages of Python and NumPy themselves, about arguments that never reach attnpy or
# that they are asked to convert.
OWN = re.compile(
    r"missing \d+ required|takes \d+ positional|takes from \d+ to \d+|multiple values "
    r"for|inhomogeneous shape|could not convert|cannot convert|Cannot convert|"
    r"cannot be interpreted as|not understood|must be real number|must be a string or"
    r"|argument must be|invalid literal|maximum supported dimension|array is too big|"
    r"Maximum allowed dimension|Cannot interpret|is not iterable|iteration over|"
    r"object is not a mapping|unhashable type|setting an array element|"
    r"Unable to (avoid|convert)|Maximum allowed size|"
    r"no implementation found|on types that implement|a fuzzer's own|"
    r"__array__|Cannot cast|can't convert|not supported between"
)

# Findings that are being mended: a pattern of the fuzzer and the signature, and what it
# is. They are reported like all others, and only do not change the exit status.
KNOWN = {}


class Finding(Exception):
    """Something that must not happen; the signature is the same for the same fault."""

    def __init__(self, signature, detail=""):
        super().__init__(signature)
        self.signature, self.detail = signature, detail


def call(function, *arguments, **options):
    """(True, the result), or (False, the error) where it may be raised."""
    try:
        return True, function(*arguments, **options)
    except Finding:
        raise
    except Exception as error:
        if not is_clear(error):
            raise Finding(signature_of(error), trace(error)) from error
        return False, error


def is_clear(error):
    """Is it an error that a caller can understand?"""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, RuntimeError):
        return str(error).startswith("Plan: expected")
    if not isinstance(error, (TypeError, ValueError)):
        return False
    text = str(error)
    return "expected" in text or "missing" in text or OWN.search(text) is not None


def signature_of(error):
    """The same for the same fault: the type, the message without numbers, the place."""
    text = re.sub(r"<class [^>]*>|'[^']*'|0x[0-9a-f]+|\d+", "_", str(error))[:100]
    place = [
        f"{Path(frame.filename).name}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "attnpy" in Path(frame.filename).parts
    ]
    return " ".join([type(error).__name__, *place[-1:], text.replace("\n", " ")])


def trace(error):
    """The last lines of a traceback."""
    return "".join(traceback.format_exception(error))[-3000:]


def known(fuzzer, signature):
    """What a finding is, if it is being mended."""
    for pattern, why in KNOWN.items():
        if re.search(pattern, f"{fuzzer}: {signature}"):
            return why
    return None
