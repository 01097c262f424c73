"""States of NumPy's random generators as text, and back with checks.

NumPy does not check a state: a position outside of its buffer makes it read outside of
memory. So everything is checked here before NumPy sees it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST = 2**14  # characters: a state of MT19937, the longest one, has 7500


class Field(NamedTuple):
    """Integers from 0 to high: an array of this many, or one number."""

    high: int
    length: int | None = None


# What `bit_generator.state` has beside the name; "state." is what is inside of "state".
HALF_USED = {"has_uint32": Field(1), "uinteger": Field(2**32 - 1)}
PCG = {
    "state.state": Field(2**128 - 1),
    "state.inc": Field(2**128 - 1),
    **HALF_USED,
}
KINDS: dict[type, dict[str, Field]] = {
    np.random.PCG64: PCG,
    np.random.PCG64DXSM: PCG,
    np.random.MT19937: {"state.key": Field(2**32 - 1, 624), "state.pos": Field(624)},
    np.random.Philox: {
        "state.counter": Field(2**64 - 1, 4),
        "state.key": Field(2**64 - 1, 2),
        "buffer": Field(2**64 - 1, 4),
        "buffer_pos": Field(4),
        **HALF_USED,
    },
    np.random.SFC64: {"state.state": Field(2**64 - 1, 4), **HALF_USED},
}


def to_text(rng: np.random.Generator) -> str:
    """Return the state of a generator as JSON."""
    check(rng)
    return json.dumps(rng.bit_generator.state, default=_jsonable)


def from_text(text: str, rng: np.random.Generator) -> dict[str, Any]:
    """Return the state from text, for a generator of this kind.

    Raises ValueError: "expected ..., got ...".
    """
    fields = check(rng)
    kind = type(rng.bit_generator).__name__
    try:
        given = _flat(_parsed(text))
        if given.pop("bit_generator", None) != kind or given.keys() != fields.keys():
            raise ValueError("its names")
        for name, field in fields.items():
            given[name] = _judged(given[name], name, field)
    except ValueError as error:
        raise ValueError(
            f"expected the state of a {kind}, as rng is, with {error}, got "
            f"{text[:80]!r}"
        ) from error
    state: dict[str, Any] = {"bit_generator": kind}
    for name, value in given.items():
        outer, _, inner = name.rpartition(".")
        (state.setdefault(outer, {}) if outer else state)[inner] = value
    return state


def check(rng: np.random.Generator) -> dict[str, Field]:
    """Require a known generator, and return the fields of its state."""
    kind = type(_checks.generator(rng).bit_generator)
    if kind not in KINDS:
        names = ", ".join(known.__name__ for known in KINDS)
        raise TypeError(
            f"rng: expected a generator that draws from one of {names}, got one of "
            f"{kind.__name__}"
        )
    return KINDS[kind]


def _jsonable(value: Any) -> Any:
    """Return an array or a number of NumPy as a type that JSON has."""
    return value.tolist()


def _parsed(text: str) -> Any:
    """Parse JSON, which may be nested too deeply for Python."""
    if len(text) > LONGEST:
        raise ValueError(f"at most {LONGEST} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("an object in JSON") from error


def _flat(state: Any) -> dict[str, Any]:
    """Return a state's values by name, those inside of "state" after a dot."""
    if not isinstance(state, dict) or not isinstance(state.get("state"), dict):
        raise ValueError("an object named state in an object")
    inner: Mapping[str, Any] = state.pop("state")
    return state | {f"state.{name}": value for name, value in inner.items()}


def _judged(value: Any, name: str, field: Field) -> Any:
    """Return a number, or an array of numbers, of a state."""
    numbers = [value] if field.length is None else value
    if (
        not isinstance(numbers, list)
        or len(numbers) != (field.length or 1)
        or not all(type(n) is int and 0 <= n <= field.high for n in numbers)
    ):
        count = "an integer" if field.length is None else f"{field.length} integers"
        raise ValueError(f"{name}: {count} from 0 to {field.high}")
    return value if field.length is None else np.array(value, np.uint64)
