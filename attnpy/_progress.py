"""A bar that shows how far something long has come, by tqdm where it is installed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnpy import _checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def bar(
    progress: bool | None, total: int | None, unit: str
) -> Iterator[Callable[[int], object]]:
    """Show a bar, which goes on by what the function that is yielded is given.

    True needs tqdm, None does without it. Either is silent where standard error is no
    terminal.
    """
    if progress is not None:
        progress = _checks.flag(progress, "progress")
    try:
        if progress is False:
            raise ImportError
        from tqdm import tqdm
    except ImportError as error:
        if progress:
            raise ImportError(
                "progress: a bar needs the tqdm package: pip install tqdm"
            ) from error
        yield lambda n: None
        return
    with tqdm(total=total, unit=unit, disable=None) as shown:
        yield shown.update
