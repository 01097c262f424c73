"""What is being done, on a line of stderr that is overwritten, if it is a terminal."""

from __future__ import annotations

import sys


def each(items, title):
    """Go through items, whose titles are shown with how many are done."""
    items = list(items)
    for i, item in enumerate(items):
        show(f"[{i}/{len(items)}] {title(item)}"[:78])
        yield item
    show("")


def show(text):
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def write(line):
    """Print a line of results on stdout, in the place of what is shown."""
    show("")
    print(line, flush=True)
