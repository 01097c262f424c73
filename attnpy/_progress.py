"""A progress bar for long work, by tqdm if it is installed."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnpy import _checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


DELAY = 1  # seconds: what does not take longer has no bar


@contextmanager
def bar(
    progress: bool | None, total: int | None, unit: str
) -> Iterator[Callable[[int], object]]:
    """Show a bar; call the yielded function with each amount of progress.

    True needs tqdm, None shows no bar without it. Both are silent if standard error is
    not a terminal. The unit "B" means bytes, shown in larger units.
    """
    if not checked(progress):
        yield lambda n: None
        return
    from tqdm import tqdm

    is_bytes = unit == "B"
    with tqdm(
        total=total,
        unit=unit if is_bytes else f" {unit}",
        unit_scale=is_bytes,
        delay=DELAY,
        disable=None,
        file=sys.stderr,
    ) as shown:
        yield shown.update


def total(items: object) -> int | None:
    """Return how many items there are, or None if nothing says so, as of iterators."""
    try:
        return len(items)  # type: ignore[arg-type]
    except TypeError:  # an array without axes has a len that cannot be called, too
        return None


def checked(progress: bool | None) -> bool:
    """Tell whether to show a bar; True requires that it is possible."""
    if progress is not None:
        progress = _checks.flag(progress, "progress")
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if progress is False or (progress is None and not is_terminal):
        return False
    try:
        import tqdm  # noqa: F401
    except ImportError as error:
        if progress:
            raise ImportError(
                "progress: a bar needs the tqdm package: pip install tqdm"
            ) from error
        return False
    return True
