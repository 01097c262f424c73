"""The kernel's coefficients are those that tools/coefficients.py makes."""

import importlib.util
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

PATH = Path(__file__).parents[1] / "tools" / "coefficients.py"
N_POINTS = 60  # of each range; the tool itself takes a thousand


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("coefficients", PATH)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "coefficients", module)
        spec.loader.exec_module(module)
        with localcontext() as context:
            context.prec = module.DIGITS
            yield module


SETS = [
    (name, bits)
    for name in ("exp2_terms", "tail_terms", "log_terms")
    for bits in (32, 64)
] + [("weight_terms", 32)]


@pytest.mark.parametrize(("name", "bits"), SETS)
def test_coefficients_and_errors_are_those_that_the_header_states(tool, name, bits):
    (one,) = [one for one in tool.sets() if (one.name, one.bits) == (name, bits)]
    assert tool.problems(one, one.written(), N_POINTS) == []


def test_all_sets_are_checked(tool):
    assert {(one.name, one.bits) for one in tool.sets()} == set(SETS)
    headers = [path.read_text("utf-8") for path in tool.MATH.glob("*.h")]
    arrays = sum(
        text.count("static const real ") - text.count("real log2_e") for text in headers
    )
    assert arrays == len(SETS)


@pytest.mark.parametrize("k", [0, 3, -1])
def test_another_coefficient_would_be_found(tool, k):
    for one in tool.sets():
        written = one.written()
        written[k] *= 1 + Decimal(2) ** (3 - tool.MANTISSA[one.bits])
        if one.excess > 0:  # not compared one by one
            written[k] *= 1 + Decimal("1e-6")
        assert tool.problems(one, written, N_POINTS), (one.name, one.bits)


def test_a_number_is_rounded_as_the_compiler_does(tool):
    third = Decimal(1) / 3
    assert tool.rounded(third, 64) == Decimal.from_float(1 / 3)
    assert tool.rounded(third, 32) == Decimal(11184811) / 2**25
    assert tool.rounded(Decimal("-0.1"), 64) == Decimal.from_float(-0.1)
    assert tool.literal(Decimal(1), 32) == "1.0f"
