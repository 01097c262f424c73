"""A progress bar on stderr: tqdm's where it is installed, else one plain line."""

from __future__ import annotations

import sys


class PlainBar:
    """One line that is overwritten; nothing where stderr is not a terminal."""

    def __init__(self, total):
        self.total = total
        self.done = 0
        self.text = ""
        self.shown = sys.stderr.isatty()

    def show(self, text):
        """Say what is being done now."""
        self.text = text
        self.draw()

    def step(self):
        self.done += 1
        self.draw()

    def draw(self):
        if self.shown:
            line = f"[{self.done}/{self.total}] {self.text}"
            sys.stderr.write(f"\r\x1b[K{line[:78]}")
            sys.stderr.flush()

    def write(self, line):
        """Print a line of results on stdout."""
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        print(line, flush=True)
        self.draw()

    def close(self):
        if self.shown:
            sys.stderr.write("\r\x1b[K")


class TqdmBar:
    """The same by tqdm."""

    def __init__(self, total, tqdm):
        self.tqdm = tqdm
        self.bar = tqdm(total=total, file=sys.stderr, dynamic_ncols=True)

    def show(self, text):
        self.bar.set_description_str(text)

    def step(self):
        self.bar.update()

    def write(self, line):
        self.tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()

    def close(self):
        self.bar.close()


def bar(total):
    try:
        from tqdm import tqdm
    except ImportError:
        return PlainBar(total)
    return TqdmBar(total, tqdm)
