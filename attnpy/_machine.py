"""Threads and instruction sets of this machine."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from attnpy import _attnpy, _checks
from attnpy._version import __version__


def set_num_threads(num_threads: int) -> None:
    """Set the default number of threads of a call.

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
    The number belongs to the process. Its initial value is the environment variable
    ``ATTNPY_NUM_THREADS``, or else ``OMP_NUM_THREADS``, or else the number of CPUs that
    the process's affinity and cgroup quota allow.

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
    """Return the default number of threads of a call.

    Returns
    -------
    int
        At least 1. `set_num_threads` explains its initial value.

    Examples
    --------
    >>> import attnpy
    >>> attnpy.get_num_threads() >= 1
    True
    """
    return _attnpy.get_num_threads()


def set_spin_time(microseconds: int) -> None:
    """Set how long an idle thread spins waiting for work before it sleeps.

    Parameters
    ----------
    microseconds : int
        0 to 1,000,000. Initially 60.

    Raises
    ------
    TypeError, ValueError
        If `microseconds` is not an integer, or out of its range.

    Notes
    -----
    Waking a sleeping thread takes as long as a small call. A spinning thread takes CPU
    time, after each call that it took part in, and before, for up to a millisecond,
    while other threads end the call; a thread that was woken on the CPU of its caller
    does not spin. 60 microseconds are longer than the pauses between the steps of a
    model. Set more for a process that has its CPUs for itself, and less for
    one that shares them. ``KMP_BLOCKTIME`` is the same for OpenMP. No bit of a result
    depends on it.

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
    """Return how long an idle thread spins waiting for work before it sleeps.

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
        True: compute bfloat16 in float32 on every CPU. False, the default: use bfloat16
        products in attention and linear products on CPUs where they are faster: AMD's
        with AVX512-BF16, Intel's with AMX. Their sums round differently, count
        subnormal numbers as 0, and use weights of attention rounded to bfloat16.
        Gradients of attention are computed by them, too, and those of scores
        rounded. The other dtypes do not depend on this setting.

    Raises
    ------
    TypeError
        If `portable` is not a boolean.

    See Also
    --------
    get_portable : the current choice.

    Notes
    -----
    The choice belongs to the process. ``ATTNPY_PORTABLE=1`` in the environment, read on
    import, sets True from the start.

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
        The value of `set_portable`, or of ``ATTNPY_PORTABLE`` in the environment; False
        if neither is set.

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

        - ``tier``: the instruction set in use. It depends on the environment variable
          ``ATTNPY_ISA``, read on import, and on `set_portable`;
        - ``tiers``: the instruction sets of this CPU, best first;
        - ``threads``: as `get_num_threads`;
        - ``cpus``: how many CPUs affinity and cgroup quota allow;
        - ``attnpy``, ``numpy``, ``python``: versions;
        - ``machine``: architecture and operating system.

    Raises
    ------
    TypeError, ValueError
        If `mode` is neither.

    Examples
    --------
    >>> import attnpy
    >>> config = attnpy.show_config(mode="dicts")
    >>> config["tier"] in config["tiers"]
    True
    """
    _checks.one_of(mode, "mode", ("stdout", "dicts"))
    import platform  # here, because it would slow every import of attnpy

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
