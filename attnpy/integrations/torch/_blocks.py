"""Which blocks of `accelerate` a thread is in, and what they ask for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from attnpy.integrations.torch._report import Report


class Options(NamedTuple):
    """What a block accelerates, and how."""

    attention: bool = True
    linear: bool = True
    norms: bool = True
    activations: bool = True
    pack: bool = True
    num_threads: int | None = None


class Block:
    """A block of accelerate(), which another thread may close."""

    def __init__(self, options: Options, report: Report | None, names: Any) -> None:
        self.options, self.report = options, report
        self.siblings = thread.blocks  # all open blocks of the thread that opens it
        self._names = names

    def open(self) -> None:
        """Accelerate this thread."""
        self.siblings.append(self)
        self._names.blocks.add(self)
        self._names.settle()

    def close(self) -> None:
        """Undo `open`, however far it came. A second call changes nothing."""
        if self in self.siblings:
            self.siblings.remove(self)
        self._names.blocks.discard(self)
        self._names.settle()


class _Thread(threading.local):
    """The blocks of accelerate() that a thread is in, and a list for its weights."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.weights: list[Tensor] | None = None


thread = _Thread()
process: list[Block] = []  # of `enable`, for threads that are in no other


def innermost() -> Block | None:
    """Return this thread's innermost block, or that of the process."""
    last = thread.blocks[-1:] or process[-1:]  # in one step each: others may close it
    return last[0] if last else None
