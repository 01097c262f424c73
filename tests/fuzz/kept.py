"""Results in memory that others had before them: nothing of what it held is in one.

Sizes are those around the limits of what is kept and of what fits again. For the
ordinary build: with AddressSanitizer no memory is kept.
"""

import numpy as np
from support import kept

from fuzz.findings import Finding, call, trace
from fuzz.values import maybe, one_of

NAMES = tuple(kept.calls(8, 2))
WIDTHS = (1, 2, 3, 8, 16, 64, 65)
DTYPES = (np.float32, np.float32, np.float64, np.float16)


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    name, width = one_of(rng, NAMES), one_of(rng, WIDTHS)
    # float16 is nothing to train in.
    trains = name.endswith(".vjp") or name == "cross_entropy"
    dtypes = DTYPES[: 3 if trains else 4]
    dtype, n_bytes = np.dtype(one_of(rng, dtypes)), size(rng)
    rows = max(2, n_bytes // dtype.itemsize // width)
    options = {} if name == "merge" else {"num_threads": one_of(rng, (1, 2))}
    if verbose:
        print(f"{name}: {rows} rows of {width} {dtype}, {options}", flush=True)
    made = [kept.calls(rows, width, dtype, fill).get(name) for fill in (None, np.nan)]
    if made[0] is None:
        return "no such call"
    good, result = call(judged, name, made, options)
    if not good:
        raise Finding(f"{name}: a right call is an error", trace(result))
    return "reused" if result else "new"


def judged(name, made, options):
    try:
        return kept.check(*made, **options)
    except AssertionError as error:
        text = f"{name}: a result shows what its memory held"
        raise Finding(text, trace(error)) from error


def size(rng):
    """Bytes of an array: around one of eight steps for each power of two."""
    n_bytes = (8 + int(rng.integers(8))) * kept.SMALLEST // 8
    n_bytes = n_bytes << int(rng.integers(4)) >> 1
    return one_of(rng, kept.sizes_around(n_bytes)) if maybe(rng, 0.8) else n_bytes
