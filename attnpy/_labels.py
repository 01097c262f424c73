"""What `attnpy.plot` and `attnpy.view` share: the checks of weights and of labels."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

# Control characters, surrogates, and separators of lines and of paragraphs.
UNSHOWABLE = ("Cc", "Cs", "Zl", "Zp")


def checked_numbers(
    name: str, array: ArrayLike, shapes: dict[int, str] | None
) -> NDArray[np.float64]:
    """Return real numbers as float64; `shapes` as for `check_shape`, None for any."""
    numbers = _checks.array(array, name)
    if numbers.dtype.kind not in "fiub" and numbers.dtype.name != "bfloat16":
        raise TypeError(f"{name}: expected real numbers, got {numbers.dtype}")
    if shapes is not None:
        check_shape(name, numbers, shapes)
    return numbers.astype(np.float64)


def checked_weights(
    weights: ArrayLike, shapes: dict[int, str] | None = None
) -> NDArray[np.float64]:
    """Return attention weights as float64: at least 0, not infinite, maybe NaN."""
    numbers = checked_numbers("weights", weights, shapes)
    wrong = numbers[(numbers < 0) | np.isinf(numbers)]
    if wrong.size:
        raise ValueError(
            f"weights: expected none below 0 or infinite, got {wrong[0]:g}"
        )
    return numbers


def check_shape(name: str, array: NDArray[Any], shapes: dict[int, str]) -> None:
    """Require no empty axis, and one of these ranks, with what to call each shape."""
    expected = " or ".join(shapes.values())
    if array.ndim not in shapes:
        raise ValueError(f"{name}: expected {expected}, got {array.shape}")
    if 0 in array.shape:
        raise ValueError(
            f"{name}: expected {expected} without an empty axis, got {array.shape}"
        )


def checked_labels(name: str, labels: Iterable[object], count: int) -> list[str]:
    """Return the labels as text in which every character can be seen."""
    if isinstance(labels, str | bytes):
        raise TypeError(
            f"{name}: expected a sequence of {count}, "
            f"got a single {type(labels).__name__}"
        )
    given = _checks.items(labels, name, f"{count} labels")
    texts = ["".join(map(_shown, str(label))) for label in given]
    if len(texts) != count:
        raise ValueError(f"{name}: expected {count}, got {len(texts)}")
    return texts


def _shown(character: str) -> str:
    """Return the character, or its Python escape where it has no shape."""
    if unicodedata.category(character) not in UNSHOWABLE:
        return character
    return character.encode("unicode_escape").decode()
