"""A bar that shows how far something long has come, by tqdm where it is installed."""

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
    """Show a bar, which goes on by what the function that is yielded is given.

    True needs tqdm, None does without it. Either is silent where standard error is no
    terminal. The unit "B" is bytes, which are shown in larger ones.
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


def checked(progress: bool | None) -> bool:
    """Tell whether there is a bar to be shown; where it is asked for there must be."""
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
