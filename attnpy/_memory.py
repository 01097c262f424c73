"""Memory of packed matrices, which lie one behind the other in huge pages.

A product of one row is as fast as its matrix can be read. Pages of 4 KB make that slow:
a hardware prefetch ends with its page, and the address of the next one is looked up.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

CACHE_LINE = 64  # bytes
# Large enough that NumPy asks for huge pages, and that glibc takes fresh ones from the
# system. Memory is used up to the last piece only.
SLAB = 34 << 20
LEAST, MOST = 16 << 10, 3 << 20  # bytes of a piece of one; larger ones waste more of it


class _Newest(threading.local):
    """The slab that a thread takes pieces of, while one of these is in use."""

    def __init__(self) -> None:
        self.slab: Callable[[], NDArray[np.uint8] | None] = lambda: None
        self.used = 0
        self.taking = False


_newest = _Newest()


def allocate(n_bytes: int) -> NDArray[np.uint8]:
    """Return this many bytes, from a cache line on, with any content."""
    # A signal's handler may come here while the interrupted call takes its piece.
    if not LEAST <= n_bytes <= MOST or _newest.taking:
        return _memory_of_its_own(n_bytes)
    _newest.taking = True
    try:
        return _next_piece(n_bytes)
    finally:
        _newest.taking = False


def _memory_of_its_own(n_bytes: int) -> NDArray[np.uint8]:
    # Not numpy.zeros, whose memory is not in huge pages.
    memory = np.empty(n_bytes + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + n_bytes]


def _next_piece(n_bytes: int) -> NDArray[np.uint8]:
    slab = _newest.slab()
    if slab is None or _newest.used + n_bytes > SLAB:
        slab = np.empty(SLAB, np.uint8)
        _newest.slab = weakref.ref(slab)
        _newest.used = -slab.ctypes.data % CACHE_LINE
    piece = slab[_newest.used :][:n_bytes]
    _newest.used += -(-n_bytes // CACHE_LINE) * CACHE_LINE
    return piece
