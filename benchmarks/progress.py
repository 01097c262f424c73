"""A progress bar on stderr: one line that is overwritten, where it is a terminal."""

from __future__ import annotations

import sys


class Bar:
    """Nothing where stderr is not a terminal."""

    def __init__(self, total):
        self.total, self.done, self.text = total, 0, ""
        self.shown = sys.stderr.isatty()

    def show(self, text):
        """Say what is being done now."""
        self.text = text
        self.draw()

    def step(self):
        self.done += 1
        self.draw()

    def draw(self):
        self.put(f"[{self.done}/{self.total}] {self.text}"[:78])

    def put(self, text):
        if self.shown:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def write(self, line):
        """Print a line of results on stdout."""
        self.put("")
        print(line, flush=True)
        self.draw()

    def close(self):
        self.put("")
