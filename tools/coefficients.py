"""Make the coefficients of `csrc/kernel/math`, and check those that its headers have.

    python tools/coefficients.py
    python tools/coefficients.py --check

The first prints every set in the form of its header, with its range and error. The
second compares the headers with that: it fails if a coefficient is another number, or
if an error is not the one that the header states. Python's decimals are all it needs.

Errors are relative ones of the polynomial itself, in exact arithmetic with coefficients
rounded to the kernel's numbers. Those of the functions, with all their roundings, are
measured by `tests/core/kernel/math/exp.c`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, getcontext, localcontext
from fractions import Fraction
from functools import partial
from pathlib import Path

MATH = Path(__file__).parents[1] / "csrc" / "kernel" / "math"
DIGITS = 50
PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781641"
)
MANTISSA = {32: 24, 64: 53}  # binary digits
TYPES = {32: "float", 64: "double"}


# ---- Arithmetic ----------------------------------------------------------------------


def rounded(x: Decimal | Fraction, bits: int) -> Decimal:
    """Return the float or double that is nearest, exactly: for normal numbers."""
    exact = Fraction(x)
    exponent = 0
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - MANTISSA[bits] + 1)
    nearest = round(exact / unit) * unit  # ties to even
    with localcontext() as context:
        context.prec = 200
        return Decimal(nearest.numerator) / Decimal(nearest.denominator)


def polynomial(terms: Sequence[Decimal], x: Decimal) -> Decimal:
    """Return the sum of terms[k] * x^k."""
    total = Decimal(0)
    for term in reversed(terms):
        total = total * x + term
    return total


def solve(matrix: list[list[Decimal]], right: list[Decimal]) -> list[Decimal]:
    """Solve linear equations by elimination, with the largest pivot of each column."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    n = len(rows)
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, n):
            factor = rows[k][i] / rows[i][i]
            for j in range(i, n + 1):
                rows[k][j] -= factor * rows[i][j]
    x = [Decimal(0)] * n
    for i in reversed(range(n)):
        rest = sum((rows[i][j] * x[j] for j in range(i + 1, n)), Decimal(0))
        x[i] = (rows[i][n] - rest) / rows[i][i]
    return x


def cosine(x: Decimal) -> Decimal:
    """Return the cosine of 0 <= x <= pi by its series."""
    term = total = Decimal(1)
    k = 0
    while abs(term) > Decimal(10) ** -DIGITS:
        k += 2
        term *= -x * x / (k * (k - 1))
        total += term
    return total


def chebyshev_points(n: int, low: Decimal, high: Decimal) -> list[Decimal]:
    """Return the zeros of the Chebyshev polynomial of degree n, for an interval."""
    middle, half = (low + high) / 2, (high - low) / 2
    return [middle - half * cosine(PI * (2 * k + 1) / (2 * n)) for k in range(n)]


# ---- What is approximated ------------------------------------------------------------


def exp2_error(terms: Sequence[Decimal], r: Decimal) -> Decimal:
    """Return the relative error of 1 + r q(r) as 2^r."""
    return (1 + r * polynomial(terms, r)) / (r * Decimal(2).ln()).exp() - 1


def scaled_tail(y: Decimal) -> Decimal:
    """Return half of erfc(y / sqrt 2) e^(y^2 / 2), by the series of the other part.

    That is y + y^3 / 3 + y^5 / (3 * 5) + ..., over sqrt(2 pi): positive terms, of whose
    sum little is left, so that it takes digits in proportion to y^2.
    """
    with localcontext() as context:
        context.prec = DIGITS + 10 + int(float(y) ** 2 / 4.5)
        term = total = y
        k = 1
        while term > total * Decimal(10) ** -context.prec:
            k += 2
            term *= y * y / k
            total += term
        result = (y * y / 2).exp() / 2 - total / (2 * pi()).sqrt()
    return +result


def pi() -> Decimal:
    """Return pi to the context's digits, by Machin's formula."""

    def inverse_arctangent(n: int) -> Decimal:
        term = Decimal(1) / n
        total, k = term, 1
        while abs(term) > Decimal(10) ** -getcontext().prec:
            k += 2
            term /= -n * n
            total += term / k
        return total

    return 4 * (4 * inverse_arctangent(5) - inverse_arctangent(239))


def tail_error(rate: Decimal, terms: Sequence[Decimal], t: Decimal) -> Decimal:
    """Return the relative error of a polynomial in t as the scaled tail over t."""
    return polynomial(terms, t) / tail_over_t(rate, t) - 1


def tail_over_t(rate: Decimal, t: Decimal) -> Decimal:
    """Return the scaled tail of y over t = 1 / (1 + rate y)."""
    return scaled_tail((1 / t - 1) / rate) / t


def log_error(terms: Sequence[Decimal], z: Decimal) -> Decimal:
    """Return the relative error of a polynomial in z = s^2 as atanh(s) / s."""
    if z == 0:
        return terms[0] - 1
    s = z.sqrt()
    return polynomial(terms, z) / (((1 + s) / (1 - s)).ln() / (2 * s)) - 1


# ---- How they are made ---------------------------------------------------------------


def extremes(error: Callable[[Decimal], Decimal], grid: list[Decimal]) -> list[Decimal]:
    """Return where an error is largest between each two of its changes of sign."""
    values = [error(x) for x in grid]
    found: list[list[int]] = [[0]]
    for i in range(1, len(grid)):
        if values[i] * values[found[-1][-1]] < 0:
            found.append([])
        if values[i] != 0:
            found[-1].append(i)
    peaks = [max(part, key=lambda i: abs(values[i])) for part in found]
    return [refine(error, grid, i) for i in peaks]


def refine(error: Callable[[Decimal], Decimal], grid: list[Decimal], i: int) -> Decimal:
    """Return the extreme next to a point of the grid, by parabolas."""
    x, step = grid[i], grid[1] - grid[0]
    if i in (0, len(grid) - 1):
        return x
    for _ in range(8):
        before, here, after = (abs(error(x + k * step)) for k in (-1, 0, 1))
        bend = before - 2 * here + after
        if bend == 0 or step < Decimal(10) ** -20:
            break
        shift = (before - after) / (2 * bend) * step
        x = min(max(x + shift, grid[0]), grid[-1])
        step = max(abs(shift), step / 100)
    return x


def exp2_terms(
    n: int, low: Decimal, high: Decimal, first: Decimal | None
) -> list[Decimal]:
    """Return n terms by Remez's algorithm, of which the first may be given.

    The others minimise the largest relative error for low <= r <= high, which then is
    reached at as many places and one more, with alternating signs.
    """
    given = [] if first is None else [first]
    n_places = n - len(given) + 1
    grid = [low + (high - low) * i / 200 for i in range(201)]
    middle, half = (low + high) / 2, (high - low) / 2
    places = [middle - half * cosine(PI * i / (n_places - 1)) for i in range(n_places)]
    if first is None:  # there is no error at 0
        places[0] = (places[0] + places[1]) / 8
    terms = given
    for _ in range(20):
        powers = [(x * Decimal(2).ln()).exp() for x in places]
        solved = solve(
            [
                [*(x**k for k in range(1 + len(given), n + 1)), (-1) ** i * power]
                for i, (x, power) in enumerate(zip(places, powers, strict=True))
            ],
            [
                power - 1 - sum(given) * x
                for x, power in zip(places, powers, strict=True)
            ],
        )
        terms, level = [*given, *solved[:-1]], abs(solved[-1])
        peaks = extremes(partial(exp2_error, terms), grid)
        while (
            len(peaks) > n_places
        ):  # the smallest goes, and one beside it, for signs alternate
            sizes = [abs(exp2_error(terms, x)) for x in peaks]
            i = sizes.index(min(sizes))
            peaks.pop(i)
            if 0 < i < len(peaks):
                peaks.pop(i if sizes[i + 1] < sizes[i - 1] else i - 1)
        places = peaks
        worst = max(abs(exp2_error(terms, x)) for x in places)
        if worst < level * (1 + Decimal(10) ** -12):
            return terms
    raise ArithmeticError("Remez's algorithm does not converge")


def tail_terms(rate: Decimal, last: int, n: int, digits: int) -> list[Decimal]:
    """Return n terms that interpolate at Chebyshev's points for 0 <= y <= last."""
    low = 1 / (1 + rate * last)
    points = chebyshev_points(n, low, Decimal(1))
    powers = [[t**k for k in range(n)] for t in points]
    terms = solve(powers, [tail_over_t(rate, t) for t in points])
    with localcontext() as context:
        context.prec = digits
        return [+term for term in terms]


def log_terms(n: int) -> list[Decimal]:
    """Return n terms of the series of atanh(s) / s."""
    return [1 / Decimal(2 * k + 1) for k in range(n)]


# ---- The sets ------------------------------------------------------------------------


@dataclass(frozen=True)
class Set:
    """The coefficients of one polynomial, for one size of numbers."""

    name: str
    header: str
    bits: int
    range: str
    low: Decimal
    high: Decimal
    error: Callable[[Sequence[Decimal], Decimal], Decimal]
    make: Callable[[], list[Decimal]]
    excess: Decimal = Decimal(0)  # of the header's error over that of what `make` gives
    says: str = r"(\d[\d.]*e-\d+) for float, (\d[\d.]*e-\d+) for double"

    def written(self) -> list[Decimal]:
        """Return the header's coefficients as its compiler reads them."""
        text = (MATH / self.header).read_text("utf-8")
        arrays = re.findall(rf"{self.name}\[\] = {{(.*?)}};", text, re.DOTALL)
        array = arrays[0 if self.bits == 32 else 1]
        quotients = [item.replace("f", "").split("/") for item in array.split(",")]
        return [
            rounded(
                Fraction(top.strip()) / Fraction((below or ["1"])[0].strip()), self.bits
            )
            for top, *below in quotients
        ]

    def stated(self) -> Decimal:
        """Return the error that the header states."""
        text = (MATH / self.header).read_text("utf-8")
        text = re.sub(r"\s+\*?\s*", " ", text)
        found = re.search(self.says, text)
        assert found is not None, self.header
        return Decimal(found[1 if self.bits == 32 else 2])

    def largest_error(self, terms: Sequence[Decimal], n_points: int) -> Decimal:
        """Return the largest error at so many points, which are closest at the ends."""
        points = chebyshev_points(n_points, self.low, self.high)
        return max(abs(self.error(terms, x)) for x in [self.low, *points, self.high])


def sets() -> list[Set]:
    """Return all sets, in the order of their headers."""
    half, root = Decimal(1) / 2, Decimal(2).sqrt()
    squares = ((root - 1) / (root + 1)) ** 2
    found = []
    for bits, n_exp2, n_log in ((32, 6, 5), (64, 11, 11)):
        float_tail = (Decimal("0.3125"), 14, 10, 11)
        double_tail = (Decimal("0.203125"), 39, 23, 20)
        rate, last, n_tail, digits = float_tail if bits == 32 else double_tail
        found += [
            Set(
                "exp2_terms",
                "exp.h",
                bits,
                "|r| <= 1/2",
                -half,
                half,
                exp2_error,
                partial(
                    exp2_terms, n_exp2, -half, half, rounded(Decimal(2).ln(), bits)
                ),
                # The double ones are of a search that ended a little early.
                Decimal("0.001") if bits == 64 else Decimal(0),
            ),
            Set(
                "tail_terms",
                "activations.h",
                bits,
                f"0 <= y <= {last}",
                1 / (1 + rate * last),
                Decimal(1),
                partial(tail_error, rate),
                partial(tail_terms, rate, last, n_tail, digits),
            ),
            Set(
                "log_terms",
                "log.h",
                bits,
                "1 / sqrt 2 <= f <= sqrt 2",
                Decimal(0),
                squares,
                log_error,
                partial(log_terms, n_log),
            ),
        ]
    found.append(
        Set(
            "weight_terms",
            "exp.h",
            32,
            "0 <= f <= 1",
            Decimal(0),
            Decimal(1),
            exp2_error,
            partial(exp2_terms, 5, Decimal(0), Decimal(1), None),
            says=r"(\d[\d.]*e-\d+) for weights",
        )
    )
    return found


def problems(one: Set, written: Sequence[Decimal], n_points: int) -> list[str]:
    """Return what is wrong with a header's coefficients."""
    where = f"{one.header}: {one.name} of {TYPES[one.bits]}"
    made = [rounded(term, one.bits) for term in one.make()]
    if len(made) != len(written):
        return [f"{where}: expected {len(made)} terms, got {len(written)}"]
    found = []
    error = one.largest_error(written, n_points)
    if one.excess == 0:
        for k, (want, got) in enumerate(zip(made, written, strict=True)):
            if want != got:
                found.append(
                    f"{where}: expected term {k} to be {want:.20}, got {got:.20}"
                )
    elif error > one.largest_error(made, n_points) * (1 + one.excess):
        found.append(
            f"{where}: the error is {error:.3e}, larger than of what is made here"
        )
    if error > one.stated():
        found.append(f"{where}: the error is {error:.3e}, stated is {one.stated()}")
    elif error < one.stated() * Decimal("0.7"):
        found.append(
            f"{where}: the error is {error:.3e}, only {one.stated()} is stated"
        )
    return found


def literal(term: Decimal, bits: int) -> str:
    """Return a number as C has it."""
    text = f"{term:.20}"
    return (text if "." in text else text + ".0") + ("f" if bits == 32 else "")


def show(one: Set, n_points: int) -> None:
    """Print a set as its header has it."""
    made = one.make()
    error = one.largest_error([rounded(term, one.bits) for term in made], n_points)
    print(f"/* {one.header}, {TYPES[one.bits]}, {one.range}: error {error:.2e} */")
    print(f"static const real {one.name}[] = {{")
    print(*(f"    {literal(term, one.bits)}," for term in made), sep="\n")
    print("};")


def main() -> int:
    """Print or check all sets; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the headers")
    parser.add_argument("--points", type=int, default=1000, help="of each range")
    arguments = parser.parse_args()
    found = []
    with localcontext() as context:
        context.prec = DIGITS
        for one in sets():
            if arguments.check:
                found += problems(one, one.written(), arguments.points)
            else:
                show(one, arguments.points)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
