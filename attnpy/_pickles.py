"""Pickles and copies: objects whose attributes are those of their class.

Values are checked when an object computes, as if they had been assigned. Names and
kinds are checked here, so that a broken pickle is an error when it is read.
"""

from __future__ import annotations

import ast
import functools
import numbers
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _repr

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of annotations: names that say nothing that could be judged, and what others mean.
ANY = frozenset({"Any", "Window"})
ARRAYS = frozenset({"Array", "NDArray"})
KINDS: dict[str, Any] = {
    "bool": (bool, np.bool_),
    "bytes": bytes,
    "dict": dict,
    "float": numbers.Real,
    "frozenset": frozenset,
    "int": numbers.Integral,
    "list": list,
    "str": str,
    "tuple": tuple,
}


def set_state(self: object, state: Any) -> None:
    """Take attributes of the names and kinds that the class annotates.

    A class with this as `__setstate__` annotates its attributes. Subclasses may have
    others, in slots as well.
    """
    kind = type(self)
    *_, own = (cls for cls in kind.__mro__ if "__setstate__" in vars(cls))
    in_slots: Any = {}
    if isinstance(state, tuple) and len(state) == 2 and own is not kind:
        state, in_slots = state[0], {} if state[1] is None else state[1]
    for given in (state, in_slots):
        if not isinstance(given, dict):
            raise TypeError(
                f"{kind.__name__}: expected a dict, got {type(given).__name__}"
            )
    _check_attributes(kind, state, own)
    vars(self).update(state)
    for name, value in in_slots.items():
        setattr(self, name, value)


def _check_attributes(kind: type, state: dict[str, Any], own: type) -> None:
    """Refuse a state that lacks attributes, has others, or some of another kind."""
    name, derived, annotations = kind.__name__, own is not kind, own.__annotations__
    missing = [key for key in annotations if key not in state]
    others = [] if derived else [str(key) for key in state if key not in annotations]
    if missing or others:
        raise ValueError(
            f"{name}: expected its attributes, got a state without {missing}, "
            f"and with {others}"
        )
    for key, annotation in annotations.items():
        if not _is_of(state[key], _parsed(annotation)):
            raise TypeError(
                f"{name}: expected {key} of {annotation}, "
                f"got {_repr.brief(state[key]):.60}"
            )


@contextmanager
def judged(self: object) -> Iterator[None]:
    """Name the class in the errors of the checks of its state."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{type(self).__name__}: {error}") from None


@functools.cache
def _parsed(annotation: str) -> ast.expr:
    return ast.parse(annotation, mode="eval").body


def _is_of(value: Any, kind: ast.expr) -> bool:
    """Tell whether a value and its contents are of an annotation's kind."""
    match kind:
        case ast.BinOp(left=one, right=other):
            return _is_of(value, one) or _is_of(value, other)
        case ast.Constant(value=None):
            return value is None
        case ast.Name(id=name):
            return _is_named(value, name)
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            return _is_named(value, name) and _holds(value, inner)
    return True


def _is_named(value: Any, name: str) -> bool:
    if name in ANY:
        return True
    if name in ARRAYS:  # packed ones, too
        return hasattr(value, "__array__") or isinstance(value, (list, tuple))
    if name in KINDS:
        is_flag = isinstance(value, bool) and name != "bool"
        return isinstance(value, KINDS[name]) and not is_flag
    # A class, or what somebody calls in its place.
    return callable(value) or name in (cls.__name__ for cls in type(value).__mro__)


def _holds(value: Any, inner: ast.expr) -> bool:
    """Tell whether the items of a list, tuple or dict are of these kinds."""
    kinds = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if isinstance(value, dict):
        return all(
            _is_of(key, kinds[0]) and _is_of(item, kinds[1])
            for key, item in value.items()
        )
    if not isinstance(value, (list, tuple, frozenset)):
        return True
    if isinstance(value, tuple) and not isinstance(kinds[-1], ast.Constant):
        return len(value) == len(kinds) and all(map(_is_of, value, kinds))
    return all(_is_of(item, kinds[0]) for item in value)
