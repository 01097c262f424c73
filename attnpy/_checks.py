"""Checks of arguments, whose errors name them.

Numbers, choices and shapes; for dtypes see `_dtypes`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from numpy.typing import ArrayLike, DTypeLike, NDArray


# Float64 holds every integer up to here, and no sum of two wraps in int64.
LARGEST_POSITION = 2**53


def array(values: ArrayLike, name: str, kind: str = "an array") -> NDArray[Any]:
    """Return an array; a masked one is refused, because its mask would be lost.

    So is what is neither an array nor a sequence nor a number, such as None.
    """
    if type(values) is np.ndarray:
        return values
    if _has_mask(values):
        raise TypeError(
            f"{name}: expected an array without its own mask, got a "
            "numpy.ma.MaskedArray, whose filled() returns one"
        )
    try:
        found = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        better = unreadable(values, name)
        if better is None:
            raise
        raise better from error
    # An integer of many digits is an object, too.
    if found.ndim == 0 and found.dtype.kind in "OSU" and not isinstance(values, int):
        got = "None" if values is None else type(values).__name__
        raise TypeError(f"{name}: expected {kind}, got {got}")
    return found


def unreadable(values: object, name: str) -> Exception | None:
    """Return an error about an object that NumPy cannot read, if it can be explained.

    The C module calls it, too.
    """
    for value in [values, *(values if isinstance(values, (list, tuple)) else ())]:
        library = type(value).__module__.partition(".")[0]
        if library == "cupy":
            return TypeError(
                f"{name}: expected an array in the CPU's memory, got a cupy.ndarray, "
                "which x.get() copies there"
            )
        if library == "torch":
            tensor: Any = value
            device = str(getattr(tensor, "device", "cpu"))
            if device != "cpu":
                advice = "" if device == "meta" else ", which x.cpu() copies there"
                return TypeError(
                    f"{name}: expected an array in the CPU's memory, got a "
                    f"torch.Tensor on device {device!r}{advice}"
                )
            problem = (
                "that requires a gradient"
                if getattr(tensor, "requires_grad", False)
                else f"of {getattr(tensor, 'dtype', 'another kind')}"
            )
            return TypeError(
                f"{name}: expected an array, got a torch.Tensor {problem}: "
                "attnpy.integrations.torch has functions of tensors, and "
                "x.detach().float().numpy() is an array"
            )
    if isinstance(values, (list, tuple)):
        return ValueError(
            f"{name}: expected an array, or lists of equal lengths, got a "
            f"{type(values).__name__} of items of different shapes"
        )
    return None


def _has_mask(values: object) -> bool:
    if isinstance(values, (list, tuple)):
        kinds = set(map(type, values))  # few, where there are many numbers
        nested = any(issubclass(kind, (list, tuple, np.ndarray)) for kind in kinds)
        return nested and any(map(_has_mask, values))
    return isinstance(values, np.ndarray) and isinstance(values, np.ma.MaskedArray)


def items(values: Iterable[Any], name: str, kind: str) -> list[Any]:
    """Return the items of a sequence as a list."""
    try:
        iterator = iter(values)
    except TypeError:
        raise TypeError(
            f"{name}: expected a sequence of {kind}, got {type(values).__name__}"
        ) from None
    return list(iterator)


def mapping(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a mapping unchanged."""
    if not isinstance(value, Mapping):
        own = ": pass its state_dict()" if hasattr(value, "state_dict") else ""
        raise TypeError(f"{name}: expected a mapping, got {type(value).__name__}{own}")
    return value


def size(value: int, name: str, least: int = 0) -> int:
    """Return an integer of at least 0, or another number."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or (type(value) is not int and _is_boolean(value)):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if number < least:
        raise ValueError(f"{name}: expected at least {least}, got {number}")
    return number


def _is_boolean(value: object) -> bool:
    """Tell whether it is a boolean of any library, which some take for an integer."""
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))


def count(value: int, name: str) -> int:
    """Return an integer of at least 1."""
    return size(value, name, 1)


def integers(
    values: ArrayLike,
    name: str,
    low: int = -LARGEST_POSITION,
    high: int = LARGEST_POSITION,
) -> NDArray[np.int64]:
    """Return integers of any shape as int64."""
    numbers = array(values, name, "integers")
    if numbers.size == 0:  # an empty list has a floating dtype
        return numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu" and type(values) is not int:
        raise TypeError(f"{name}: expected integers, got dtype {numbers.dtype}")
    if numbers.size == 1 and low <= numbers.item() <= high:  # in less time
        return numbers.astype(np.int64)
    wrong = (numbers < low) | (numbers > high)
    if wrong.any():
        raise ValueError(
            f"{name}: expected {low} to {high}, got {numbers[wrong].flat[0]}"
        )
    return numbers.astype(np.int64)


def chosen(which: ArrayLike | None, name: str, n: int) -> list[int]:
    """Return the chosen ones of n indices, by default all."""
    if which is None:
        return list(range(n))
    numbers = integers(which, name, -n, n - 1)
    if numbers.ndim > 1 or numbers.size == 0:
        raise ValueError(
            f"{name}: expected an integer, or a sequence of at least one, "
            f"got shape {numbers.shape}"
        )
    wanted = [int(number) % n for number in numbers.reshape(-1)]
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"{name}: expected no repeated indices, got {wanted}")
    return wanted


def memory(name: str, dtype: DTypeLike, *shapes: tuple[int, ...]) -> None:
    """Refuse arrays that memory cannot hold, before the first one is allocated."""
    n_numbers = sum(math.prod(max(1, n) for n in shape) for shape in shapes)
    needed = np.dtype(dtype).itemsize * n_numbers
    if needed > _memory_size():
        raise MemoryError(
            f"{name}: expected sizes that {_memory_size()} bytes of memory can hold, "
            f"got sizes that need {needed} bytes"
        )


@functools.cache
def _memory_size() -> int:
    """Return the bytes of memory and swap, at most those that a process can address."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            sizes = {line.split(":")[0]: line.split()[1] for line in file}
        return 1024 * (int(sizes["MemTotal"]) + int(sizes["SwapTotal"]))
    except (OSError, KeyError):
        return 2**47


def above(value: float, name: str, low: float) -> float:
    """Return a finite number above this."""
    known = (float, int, np.floating, np.integer)
    if isinstance(value, bool) or not isinstance(value, known):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # an integer of many digits
        number = math.inf
    if not low < number < math.inf:
        limit = "" if low == -math.inf else f" > {low}"
        raise ValueError(f"{name}: expected a finite number{limit}, got {number}")
    return number


def flag(value: bool, name: str) -> bool:
    """Return a boolean of Python."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected a bool, got {type(value).__name__}")
    return bool(value)


def one_of(choice: str, name: str, choices: tuple[str, ...]) -> str:
    """Return one of these."""
    expected = f"one of {choices}" if len(choices) > 1 else repr(choices[0])
    if not isinstance(choice, str):
        raise TypeError(f"{name}: expected {expected}, got {type(choice).__name__}")
    if choice not in choices:
        raise ValueError(f"{name}: expected {expected}, got {choice!r}")
    return choice


def generator(rng: np.random.Generator | None) -> np.random.Generator:
    """Return the generator given, or a new one."""
    if rng is None:
        return np.random.default_rng()
    if not isinstance(rng, np.random.Generator):
        raise TypeError(
            "rng: expected a numpy.random.Generator, such as "
            f"numpy.random.default_rng(0), got {type(rng).__name__}"
        )
    return rng


class renamed:
    """Use the outer call's names of arguments in errors of an inner call."""

    def __init__(self, **names: str) -> None:
        self._names = names

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if not isinstance(error, (TypeError, ValueError)):
            return
        place, colon, rest = str(error).partition(": ")
        name, bracket, index = place.partition("[")
        if name in self._names and type(error) in (TypeError, ValueError):
            place = f"{self._names[name]}{bracket}{index}"
            raise type(error)(f"{place}{colon}{rest}") from error


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Tell whether an array of this shape broadcasts to that one."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False
