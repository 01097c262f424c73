"""Memory and threads that cannot be had: an error or fewer threads, and no harm.

In a process of its own one allocation after the other fails: of the core, of Python's
objects and of NumPy's arrays. support/faults.py has the calls, faults.c the faults.
"""

import os
import platform
import re
import shutil
import subprocess
import sysconfig

import pytest
from support.calls import needs_test_hooks
from support.processes import TESTS, assert_runs

pytestmark = [
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc" or "LD_PRELOAD" in os.environ,
        reason="faults.c is for glibc, and preloaded",
    ),
    needs_test_hooks,
]


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """The path of faults.c, compiled."""
    chosen = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    compilers = chosen.split(), ["cc"], ["gcc"]  # the first may be "ccache gcc"
    compiler = next((one for one in compilers if shutil.which(one[0])), None)
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("faults") / "faults.so"
    source = TESTS / "support" / "faults.c"
    flags = ["-std=c11", "-O2", "-shared", "-fPIC", "-o", path, source, "-ldl"]
    subprocess.run([*compiler, *flags], check=True)
    return path


def run(shim, script):
    """Run a script with faults.c; what it printed, without and with findings."""
    printed = assert_runs(
        f"from support import faults; {script}",
        LD_PRELOAD=str(shim),
        PYTHONMALLOC="malloc",
    ).splitlines()
    findings = [line for line in printed if line.startswith("FOUND")]
    return [line for line in printed if line not in findings], findings


@pytest.mark.quick(group=("functions",))
@pytest.mark.parametrize(
    "group",
    [
        *("attention", "gradients", "functions", "arrays"),
        *("layers", "blocks", "models", "generation"),
    ],
)
def test_an_allocation_that_fails_is_a_memory_error_and_changes_nothing(shim, group):
    lines, findings = run(shim, f"faults.main({group!r})")
    assert not findings
    # Something failed of everything but a plan, which allocates nothing.
    assert [line for line in lines if re.match(r"(0, )+[^\d]", line)] == (
        ["0, 0, 0, a plan"] if group == "functions" else []
    )


@pytest.mark.quick
def test_threads_that_cannot_be_made_change_no_bit(shim):
    lines, findings = run(shim, "faults.main_threads()")
    assert not findings
    assert lines
