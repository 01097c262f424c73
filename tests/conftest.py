"""Fixtures: every numeric test runs once for each kernel that this CPU has.

A tier that has the kernels of another one for a test's numbers is left out.
"""

import gc
import os
import signal

import hypothesis
import pytest
from support.arrays import DTYPES, dtype_of
from support.calls import ADD_BFLOAT16, FLOAT_TIERS, PLAIN_TIERS, TIERS, on_tier

# The same bounded examples in every run; HYPOTHESIS_PROFILE=long searches further.
hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=60
)
hypothesis.settings.register_profile("long", deadline=None, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Tests interrupt themselves, but what a shell starts in the background ignores that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Of a test that is marked quick, only these tiers and dtypes are. The mark itself may
# name others, and values of other parameters: `@pytest.mark.quick(n_keys=(1, 129))`.
# A file's `pytestmark = pytest.mark.quick` means all of the file.
QUICK = {
    "tier": {TIERS[0], FLOAT_TIERS[0], PLAIN_TIERS[0], "scalar"},
    "dtype": ("float32", "bfloat16"),
}
QUICK_FILES = pytest.StashKey()


def repeats_another(item):
    """Is it a tier's case with numbers for which it has the kernels of another tier?

    They are of the dtype that is a parameter, or as the mark `floats` says.
    """
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if parameters.get("tier") not in ADD_BFLOAT16:
        return False
    if "dtype" in parameters:
        return parameters["dtype"] != "bfloat16"
    return item.get_closest_marker("floats") is not None


@pytest.hookimpl(tryfirst=True)  # before the choice by -m
def pytest_collection_modifyitems(config, items):
    """Leave out cases that run the same code as others; choose and count quick ones."""
    repeated = [item for item in items if repeats_another(item)]
    config.hook.pytest_deselected(items=repeated)
    items[:] = [item for item in items if not repeats_another(item)]
    files = config.stash[QUICK_FILES] = {item.path.name: 0 for item in items}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        for mark in [mark for mark in item.own_markers if mark.name == "quick"]:
            if unknown := mark.kwargs.keys() - parameters.keys():
                raise pytest.UsageError(f"{item.nodeid}: quick of unknown {unknown}")
            values = {**QUICK, **mark.kwargs}
            if any(parameters[n] not in values[n] for n in parameters.keys() & values):
                item.own_markers.remove(mark)
        files[item.path.name] += item.get_closest_marker("quick") is not None


def pytest_collection_finish():
    """Let collections of garbage pass over what lives as long as the tests do."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def quick_files(request):
    """How many quick tests each file has, if whole files were collected."""
    if any("::" in argument for argument in request.config.args):
        pytest.skip("parts of files were collected")
    return request.config.stash[QUICK_FILES]


@pytest.fixture(scope="session", params=FLOAT_TIERS)
def tier(request):
    """The name of an instruction set."""
    return request.param


@pytest.fixture(scope="session")
def attend(tier):
    """attnpy.attention() forced to one instruction set."""
    return on_tier(tier)


@pytest.fixture(params=DTYPES)
def dtype(request):
    """Each dtype that attnpy computes with."""
    return dtype_of(request.param)
