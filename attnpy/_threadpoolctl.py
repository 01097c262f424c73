"""What threadpoolctl needs to see and limit attnpy's threads; importing it registers.

Imported by `attnpy.register_threadpoolctl` only: threadpoolctl is optional.
"""

from __future__ import annotations

from threadpoolctl import LibController, register

from attnpy._version import __version__


class AttnpyController(LibController):  # type: ignore[misc]
    """Reads and sets the number of threads through the extension's C functions."""

    user_api = "attnpy"
    internal_api = "attnpy"
    filename_prefixes = ("_attnpy",)
    check_symbols = ("attnpy_get_num_threads", "attnpy_set_num_threads")

    def get_num_threads(self) -> int:
        """Return the number of threads of the process."""
        return int(self.dynlib.attnpy_get_num_threads())

    def set_num_threads(self, num_threads: int) -> None:
        """Set the number of threads of the process."""
        self.dynlib.attnpy_set_num_threads(num_threads)

    def get_version(self) -> str:
        """Return attnpy's version."""
        return __version__


register(AttnpyController)
