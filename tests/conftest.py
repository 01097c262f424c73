"""Fixtures: every numeric test runs once for each instruction set of this CPU."""

import os

import hypothesis
import pytest
from support.arrays import DTYPES, dtype_of
from support.calls import TIERS, on_tier

# The same bounded examples in every run; HYPOTHESIS_PROFILE=long searches further.
hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=60
)
hypothesis.settings.register_profile("long", deadline=None, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session", params=TIERS)
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
