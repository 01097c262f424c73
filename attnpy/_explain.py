"""How a call of attention is run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _attnpy, _checks, _keywords, _measure
from attnpy._options import PUBLIC, Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from attnpy._typing import PlanOptions

SECONDS, ROUNDS = 0.2, 51  # that a measurement lasts at most, but for one call
PRODUCT = (256, 384, 384)  # rows, inputs and outputs: some 1 MB, in the caches


class Explanation(NamedTuple):
    """The result of `explain`; ``print`` it to read it.

    Attributes
    ----------
    tier : str
        The instruction set, one of ``attnpy.show_config(mode="dicts")["tiers"]``.
    products : {"float32", "float64", "bfloat16"}
        The arithmetic of the products; "bfloat16" are the CPU's own
        (`attnpy.set_portable` tells of them).
    tile_tasks, row_tasks : int
        The pieces of work that threads take: of up to 64 rows (query and head) in tiles
        of rows, or row by row where a key head has at most 8 rows in all.
    num_threads : int
        Threads that share them.
    shares_keys : bool
        Whether the keys of each task are shared by all threads, in chunks of 512,
        because there are fewer tasks than threads.
    blocks, blocks_skipped, blocks_masked : int
        Blocks of 128 keys over all tasks; those that no row of the task sees, which
        cost nothing; and those of which rows see a part.
    scores, scores_visible : int
        Scores that are computed, and those of them whose key is visible. -inf in a
        `bias` also hides keys, but does not count here.
    multiplications : int
        Of both products, for these scores.
    nbytes : int
        Bytes of the arrays that tasks read and write: queries and outputs once, keys
        and values once for each task. Masks, biases and weights do not count.
    workspace : int
        Bytes of scratch memory for each thread.
    seconds : float or None
        With ``measure=True``: of a call, the median.
    share_of_peak : float or None
        With ``measure=True``: multiplications a second as a part of what this
        machine reaches, with as many threads, in a matrix product in its caches.
        Exponentials and memory take their share of the time, too.
    """

    tier: str
    products: str
    tile_tasks: int
    row_tasks: int
    num_threads: int
    shares_keys: bool
    blocks: int
    blocks_skipped: int
    blocks_masked: int
    scores: int
    scores_visible: int
    multiplications: int
    nbytes: int
    workspace: int
    seconds: float | None = None
    share_of_peak: float | None = None

    def __str__(self) -> str:
        """Return the numbers in a table for people."""
        return "\n".join(f"{name:16}{text}" for name, text in lines(self))


def explain(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    measure: bool = False,
    **options: Unpack[PlanOptions],
) -> Explanation:
    """Tell how `attention` would run a call: instruction set, form, threads and work.

    Nothing is computed unless `measure` is True. It answers why a call is slow: which
    blocks a mask lets the call skip, whether it keeps all threads busy, and whether it
    is bound by products or by memory. Tests can assert which way a call takes.

    Parameters
    ----------
    query, key, value : array_like
        As for `attention`.
    measure : bool, optional
        Also run the call for some tenths of a second, and a matrix product after it.
    **options
        As for `attention`.

    Returns
    -------
    Explanation
        A named tuple; ``print`` shows it as a table.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `attention`.

    See Also
    --------
    Plan.explain : the same for a plan.
    show_config : the machine and the settings.

    Examples
    --------
    A causal mask hides half of the scores; the blocks beyond the diagonal are skipped.

    >>> import numpy as np
    >>> import attnpy
    >>> x = np.ones((8, 1024, 64), np.float32)
    >>> full = attnpy.explain(x, x, x)
    >>> causal = attnpy.explain(x, x, x, causal=True)
    >>> full.blocks_skipped, causal.blocks_skipped, causal.blocks
    (0, 448, 1024)
    >>> round(causal.multiplications / full.multiplications, 2)
    0.53
    """
    _keywords.refuse(options, PUBLIC, "explain()")
    given = Options(**options)
    found = Explanation(*_attnpy.explain(query, key, value, given))
    if not _checks.flag(measure, "measure"):
        return found
    return measured(found, lambda: _attnpy.attention(query, key, value, given))


def measured(found: Explanation, call: Callable[[], Any]) -> Explanation:
    """Return the explanation of a call with its time, and its share of the peak."""
    seconds = median_time(call)
    rate = product_rate(found.products, found.num_threads)
    share = found.multiplications / seconds / rate
    return Explanation(*found[:-2], seconds, share)


def median_time(call: Callable[[], Any]) -> float:
    """Return the median time of calls in seconds."""
    sample = partial(_measure.one_time, call, _measure.calls_per_sample(call))
    times = _measure.in_turn({"call": sample}, ROUNDS, 1, SECONDS)["call"]
    return float(np.median(times))


def product_rate(dtype: str, num_threads: int) -> float:
    """Return the multiplications a second of a matrix product in the caches."""
    from attnpy import _dtypes
    from attnpy._linear import linear
    from attnpy._packed_weight import PackedWeight

    n_rows, n_inputs, n_outputs = PRODUCT
    kind = _dtypes.floating(dtype)
    x = np.full((n_rows, n_inputs), 0.5).astype(kind)
    weight = PackedWeight(np.full((n_inputs, n_outputs), 0.5).astype(kind))
    seconds = median_time(lambda: linear(x, weight, num_threads=num_threads))
    return float(n_rows * n_inputs * n_outputs / seconds)


def percent(part: int, whole: int) -> str:
    """Return a share of a number in words."""
    return f"{part / whole:.0%}" if whole else "none"


def lines(found: Explanation) -> list[tuple[str, str]]:
    """Return what an explanation says, with a name for each line."""
    forms = [f"{found.tile_tasks:,} in tiles"] if found.tile_tasks else []
    forms += [f"{found.row_tasks:,} row by row"] if found.row_tasks else []
    shared = ", which share the keys of each task" if found.shares_keys else ""
    skipped = f"{found.blocks_skipped:,} skipped, {found.blocks_masked:,} masked"
    visible = percent(found.scores_visible, found.scores)
    table = [
        ("instruction set", f"{found.tier}, products in {found.products}"),
        ("tasks", " and ".join(forms) or "none"),
        ("threads", f"{found.num_threads}{shared}"),
        ("blocks of keys", f"{found.blocks:,}: {skipped} in part"),
        ("scores", f"{found.scores:,}, {visible} visible"),
        ("multiplications", f"{found.multiplications:,}"),
        ("arrays", f"{found.nbytes:,} bytes, read and written"),
        ("scratch memory", f"{found.workspace:,} bytes for each thread"),
    ]
    if found.seconds is not None and found.share_of_peak is not None:
        rate = found.nbytes / found.seconds / 1e9
        table += [
            ("time", f"{found.seconds * 1e3:.3g} ms, {rate:.3g} GB/s"),
            ("speed", f"{found.share_of_peak:.0%} of a matrix product's"),
        ]
    return table
