"""Checks of weights, masks and labels for pictures in text, images and pages."""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _dtypes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

# Control characters, surrogates, and separators of lines and of paragraphs.
UNSHOWABLE = ("Cc", "Cs", "Zl", "Zp")
# The last two numbers of each plane, and some others, are no characters: U+FFFE is none
# of XML, either, and so of no picture in SVG.
NO_CHARACTERS = range(0xFDD0, 0xFDF0)


def checked_numbers(
    name: str, array: ArrayLike, shapes: dict[int, str] | None
) -> NDArray[np.float64]:
    """Return real numbers as float64; `shapes` as for `check_shape`, None for any."""
    numbers = _checks.array(_as_arrays(array), name)
    if numbers.dtype.kind not in "fiub" and not _dtypes.is_bfloat16(numbers.dtype):
        raise TypeError(f"{name}: expected real numbers, got {numbers.dtype}")
    if shapes is not None:
        check_shape(name, numbers, shapes)
    return numbers.astype(np.float64)


def _as_arrays(values: Any) -> Any:
    """Return arrays for tensors of PyTorch, also for those that require a gradient."""
    if isinstance(values, (list, tuple)):
        return [_as_arrays(value) for value in values]
    if type(values).__module__.partition(".")[0] == "torch":
        return values.detach().float().cpu().numpy()
    return values


def checked_weights(
    weights: ArrayLike, shapes: dict[int, str] | None = None
) -> NDArray[np.float64]:
    """Return attention weights as float64: at least 0, not infinite, maybe NaN.

    Those of a Hugging Face model, a tuple of (1, H, Lq, Lk), lose the batch's axis.
    """
    numbers = _without_batch(checked_numbers("weights", weights, None), shapes)
    if shapes is not None:
        check_shape("weights", numbers, shapes)
    wrong = numbers[(numbers < 0) | np.isinf(numbers)]
    if wrong.size:
        raise ValueError(
            f"weights: expected none below 0 or infinite, got {wrong[0]:g}"
        )
    return numbers


def _without_batch(
    numbers: NDArray[np.float64], shapes: dict[int, str] | None
) -> NDArray[np.float64]:
    """Return (layers, H, Lq, Lk) for the (layers, 1, H, Lq, Lk) of one text."""
    if shapes is None or numbers.ndim != 5 or max(shapes) != 4:
        return numbers
    if numbers.shape[1] != 1:
        raise ValueError(
            f"weights: expected those of one text, got {numbers.shape[1]}: write "
            "[layer[0] for layer in weights] for the first one"
        )
    return numbers[:, 0]


def checked_mask(mask: ArrayLike) -> NDArray[np.bool_]:
    """Return a boolean array."""
    array = _checks.array(mask, "mask")
    if array.dtype != np.bool_:
        raise TypeError(
            f"mask: expected bool, True where the query may attend, got {array.dtype}"
        )
    return array


def mask_rows(mask: ArrayLike) -> tuple[NDArray[np.bool_], str]:
    """Return the mask of one head as (rows, Lk), and the meaning of a row.

    That is "query"; or "sequence", whose queries all see the same keys, if the mask is
    (..., 1, 1, Lk).
    """
    array = checked_mask(mask)
    if array.ndim and all(n == 1 for n in array.shape[:-2]):
        return array.reshape((1, *array.shape)[-2:]), "query"
    if array.ndim < 4 or array.shape[-3:-1] != (1, 1):
        raise ValueError(
            "mask: expected (Lq, Lk), one head, or (..., 1, 1, Lk), all queries of "
            f"each sequence, got {array.shape}"
        )
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1]), "sequence"


def check_shape(name: str, array: NDArray[Any], shapes: dict[int, str]) -> None:
    """Require one of these ranks, with names of the shapes, and no empty axis."""
    expected = " or ".join(shapes.values())
    if array.ndim not in shapes:
        raise ValueError(f"{name}: expected {expected}, got {array.shape}")
    if 0 in array.shape:
        raise ValueError(
            f"{name}: expected {expected} without an empty axis, got {array.shape}"
        )


def checked_labels(name: str, labels: Iterable[object], count: int) -> list[str]:
    """Return the labels as text in which every character can be seen."""
    if isinstance(labels, str | bytes | set | frozenset):
        single = "single " if isinstance(labels, str | bytes) else ""  # a set: no order
        raise TypeError(
            f"{name}: expected a sequence of {count}, "
            f"got a {single}{type(labels).__name__}"
        )
    given = _checks.items(labels, name, f"{count} labels")
    texts = [shown(str(label)) for label in given]
    if len(texts) != count:
        raise ValueError(f"{name}: expected {count}, got {len(texts)}")
    return texts


def shown(text: str) -> str:
    """Return a text with Python's escapes instead of invisible characters."""
    return "".join(map(_shown, text))


def shown_lines(text: str) -> str:
    """Return a text that may have several lines, such as a title."""
    return "\n".join(map(shown, text.split("\n")))


def _shown(character: str) -> str:
    number = ord(character)
    is_none = number in NO_CHARACTERS or number & 0xFFFE == 0xFFFE
    if is_none or unicodedata.category(character) in UNSHOWABLE:
        return character.encode("unicode_escape").decode()
    return character
