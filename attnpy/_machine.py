"""Threads, and what this machine offers."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from attnpy import _attnpy, _checks
from attnpy._version import __version__


def set_num_threads(num_threads: int) -> None:
    """Set how many threads `attention` uses where the call does not say.

    Parameters
    ----------
    num_threads : int
        At least 1; the calling thread counts. The number changes the speed, never a
        bit of a result.

    Raises
    ------
    TypeError, ValueError
        If `num_threads` is not an integer, or less than 1.

    Notes
    -----
    The number belongs to the process. It starts as the environment variable
    ``ATTNPY_NUM_THREADS``, else ``OMP_NUM_THREADS``, else the number of CPUs that the
    process's affinity and cgroup quota leave it.

    Examples
    --------
    >>> import attnpy
    >>> before = attnpy.get_num_threads()
    >>> attnpy.set_num_threads(1)
    >>> attnpy.get_num_threads()
    1
    >>> attnpy.set_num_threads(before)
    """
    _attnpy.set_num_threads(num_threads)


def get_num_threads() -> int:
    """Return how many threads `attention` uses where the call does not say.

    Returns
    -------
    int
        At least 1. See `set_num_threads` for where it comes from.

    Examples
    --------
    >>> import attnpy
    >>> attnpy.get_num_threads() >= 1
    True
    """
    return _attnpy.get_num_threads()


def set_spin_time(microseconds: int) -> None:
    """Set for how long an idle thread looks for the next call before it sleeps.

    Parameters
    ----------
    microseconds : int
        0 to 1,000,000. It starts as 60.

    Raises
    ------
    TypeError, ValueError
        If `microseconds` is not an integer, or out of its range.

    Notes
    -----
    To wake a thread that sleeps takes as long as a small call. One that looks takes CPU
    time, after each call that it took part in; one that was woken on the CPU of its
    caller does not look. 60 microseconds are more than what lies between the steps of a
    model; more are for a process that has its CPUs for itself, and less for one that
    shares them. It is what ``KMP_BLOCKTIME`` is to OpenMP. No bit of a result depends
    on it.

    Examples
    --------
    >>> import attnpy
    >>> attnpy.set_spin_time(1000)
    >>> attnpy.get_spin_time()
    1000
    >>> attnpy.set_spin_time(60)
    """
    _attnpy.spin_time(_checks.size(microseconds, "microseconds"))


def get_spin_time() -> int:
    """Return for how long an idle thread looks for the next call before it sleeps.

    Returns
    -------
    int
        Microseconds. See `set_spin_time`.

    Examples
    --------
    >>> import attnpy
    >>> attnpy.get_spin_time()
    60
    """
    return _attnpy.spin_time(None)


def set_portable(portable: bool) -> None:
    """Choose whether bfloat16 has the same bits on every CPU.

    Parameters
    ----------
    portable : bool
        True: bfloat16 is computed in float32 as everywhere. False, which is how it
        starts: a CPU that multiplies bfloat16 numbers itself does, in attention and
        linear products, where that is faster: AMD's with AVX512-BF16, Intel's with
        AMX. Their sums round differently, count subnormal numbers as 0, and take the
        weights of attention rounded to bfloat16. The other dtypes do not depend on
        this.

    Raises
    ------
    TypeError
        If `portable` is not a boolean.

    See Also
    --------
    get_portable : what is chosen.

    Notes
    -----
    The choice belongs to the process. ``ATTNPY_PORTABLE=1`` in the environment, read on
    import, makes it from the start.

    Examples
    --------
    >>> import attnpy
    >>> before = attnpy.get_portable()
    >>> attnpy.set_portable(True)
    >>> "bf16" in attnpy.show_config(mode="dicts")["tier"]
    False
    >>> attnpy.set_portable(before)
    """
    _attnpy.set_portable(portable)


def get_portable() -> bool:
    """Return whether bfloat16 has the same bits on every CPU.

    Returns
    -------
    bool
        As `set_portable` has it, or ``ATTNPY_PORTABLE`` in the environment; False where
        neither said anything.

    Examples
    --------
    >>> import attnpy
    >>> before = attnpy.get_portable()
    >>> attnpy.set_portable(True)
    >>> attnpy.get_portable()
    True
    >>> attnpy.set_portable(before)
    """
    return _attnpy.get_portable()


def register_threadpoolctl() -> None:
    """Let threadpoolctl see and limit attnpy's threads.

    Once called, ``threadpoolctl.threadpool_info()`` lists attnpy, and
    ``threadpoolctl.threadpool_limits(1)`` or ``(1, user_api="attnpy")`` limits it.
    Further calls do nothing.

    Raises
    ------
    ImportError
        If threadpoolctl (3.2 or later) is not installed.

    Examples
    --------
    >>> import attnpy
    >>> import threadpoolctl
    >>> attnpy.register_threadpoolctl()
    >>> with threadpoolctl.threadpool_limits(1, user_api="attnpy"):
    ...     attnpy.get_num_threads()
    1
    """
    try:
        # Python imports a module once; importing this one registers.
        from attnpy import _threadpoolctl  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "register_threadpoolctl: expected threadpoolctl 3.2 or later to be "
            f"installed (pip install threadpoolctl), got: {error}"
        ) from error


@overload
def show_config(mode: Literal["stdout"] = ...) -> None: ...
@overload
def show_config(mode: Literal["dicts"]) -> dict[str, Any]: ...
def show_config(mode: str = "stdout") -> dict[str, Any] | None:
    """Show the instruction set in use, the threads, and the versions.

    Parameters
    ----------
    mode : {"stdout", "dicts"}, optional
        Print a table (the default) or return a dictionary, as `numpy.show_config`.

    Returns
    -------
    dict or None
        With ``mode="dicts"``:

        - ``tier``: the instruction set in use. The environment variable
          ``ATTNPY_ISA``, read on import, forces one, and `set_portable` matters;
        - ``tiers``: those that this CPU has, best first;
        - ``threads``: as `get_num_threads`;
        - ``cpus``: how many CPUs affinity and cgroup quota leave the process;
        - ``attnpy``, ``numpy``, ``python``: versions;
        - ``machine``: architecture and operating system.

    Raises
    ------
    ValueError
        If `mode` is neither.

    Examples
    --------
    >>> import attnpy
    >>> config = attnpy.show_config(mode="dicts")
    >>> config["tier"] in config["tiers"]
    True
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f"mode: expected 'stdout' or 'dicts', got {mode!r}")
    import platform  # here, for it would cost every import of attnpy

    core = _attnpy.config()
    config = {
        "tier": core["tier"],
        "tiers": core["tiers"],
        "threads": core["threads"],
        "cpus": core["cpus"],
        "attnpy": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()}",
    }
    if mode == "dicts":
        return config
    for name, entry in config.items():
        text = ", ".join(entry) if isinstance(entry, tuple) else entry
        print(f"{name:<8} {text}")
    return None
