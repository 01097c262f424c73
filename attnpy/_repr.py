"""The repr of objects: one line, without the numbers in their arrays."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_ITEMS = 4  # of a list that are shown


class Plain(str):
    """Text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def shows(fields: Callable[[Any], Mapping[str, Any]]) -> Callable[[Any], str]:
    """Make a `__repr__` from a function that returns an object's sizes and options.

    Options that are None, or the constructor's default, are left out. Objects with
    parameters also show their dtypes and how many numbers they are. An incomplete
    object, as in the middle of a copy, shows only its name.
    """

    def __repr__(self: Any) -> str:
        kind = type(self)
        try:
            entries = differing(kind, fields(self))
            if callable(getattr(kind, "parameters", None)):
                entries |= _of_parameters(self)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return f"{kind.__name__}(...)"
        return line(self, entries)

    return __repr__


def of_fields(self: Any) -> str:
    """Return a named tuple's fields, with dtype and shape of each array."""
    names = type(self).__annotations__
    return line(self, dict(zip(names, self, strict=True)))


def line(thing: object, entries: Mapping[str, Any]) -> str:
    """Return an object's class and these entries."""
    text = ", ".join(f"{name}={brief(value)}" for name, value in entries.items())
    return f"{type(thing).__name__}({text})"


def differing(kind: Any, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are not None, and not the default of the constructor."""
    constructor = inspect.unwrap(kind.__init__)  # `_keywords.answering` wraps it
    defaults = getattr(constructor, "__kwdefaults__", None) or {}
    return {
        name: value
        for name, value in entries.items()
        if value is not None and not same(value, defaults.get(name))
    }


def brief(value: Any) -> str:
    """Return a value in a few words; for arrays, dtype and shape."""
    if isinstance(value, np.dtype):
        return value.name
    if _is_array(value):
        return f"{value.dtype.name} {value.shape}"
    if isinstance(value, Mapping):
        return _brief_mapping(value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        if len(value) > MOST_ITEMS:
            return f"{len(value)} items"
        text = ", ".join(map(brief, value))
        if isinstance(value, list):
            return f"[{text}]"
        return f"({text},)" if len(value) == 1 else f"({text})"
    return repr(value).replace("\n", " ")


def biases(**arrays: object) -> dict[str, bool]:
    """Return which biases are missing, as the options that leave them out."""
    missing = {name: False for name, array in arrays.items() if array is None}
    return {"bias": False} if len(missing) == len(arrays) else missing


def span(numbers: Iterable[int]) -> Plain | None:
    """Return the common number, or the smallest and the largest; None for none."""
    numbers = list(numbers)
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    return Plain(low if low == high else f"{low} to {high}")


def _brief_mapping(values: Mapping[Any, Any]) -> str:
    arrays = list(values.values())
    if arrays and all(map(_is_array, arrays)):
        return f"{len(arrays)} arrays of {_numbers(arrays):_} numbers"
    return f"{len(values)} names"


def _of_parameters(layer: object) -> dict[str, Any]:
    from attnpy._parameters import walk  # here: `import attnpy` needs none of it

    arrays = list({id(array): array for _, array in walk(layer)}.values())
    found = {
        "dtype": Plain(" and ".join(dict.fromkeys(x.dtype.name for x in arrays))),
        "parameters": Plain(f"{_numbers(arrays):_}"),
    }
    bits = {f"int{array.bits}" for array in arrays if hasattr(array, "bits")}
    if bits:
        *others, last = sorted(bits)
        named = [", ".join(others), last] if others else [last]
        found["weights"] = Plain(" and ".join(named))
    if any(getattr(array, "activations", "float") == "int8" for array in arrays):
        found["activations"] = Plain("int8")
    if not all(isinstance(x, np.ndarray) or hasattr(x, "bits") for x in arrays):
        found["packed"] = Plain(True)
    return found


def _is_array(value: object) -> bool:
    """Tell whether it is an array, or a packed matrix."""
    named = hasattr(value, "dtype") and hasattr(value, "shape")
    return named and not isinstance(value, type)  # as numpy.float32 is


def _numbers(arrays: Iterable[Any]) -> int:
    return sum(math.prod(array.shape) for array in arrays)


def same(value: object, default: object) -> bool:
    """Tell whether an option has its default; neither may be an array."""
    return type(value) is type(default) and bool(value == default)
