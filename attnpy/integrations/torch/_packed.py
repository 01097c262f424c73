"""Packed weights of parameters: made once, and never used after a parameter changed.

A parameter is known by itself, its storage, place, strides and version, and by some of
its numbers. Two things change numbers without a new version, and drop packed weights:
the attribute `data` of a parameter, which is a property as soon as this module is
imported, and steps of fused optimizers.
"""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _storage_Use_Count
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook

from attnpy._packed_weight import PackedWeight

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnpy._typing import Array

    Form = tuple[int, Any, Any, Any]  # place, dtype, shape, strides of a matrix

_N_SAMPLES = 16  # numbers of a weight that each call compares
_OWN_USES = 3  # of a storage: by the parameter, a view of it and the object that asks

_base, _version, _cdata = map(operator.attrgetter, ("_base", "_version", "_cdata"))


class _Packed:
    """A packed weight, and what some numbers of its matrix were."""

    def __init__(self, matrix: Array) -> None:
        line = (matrix.T if matrix.T.flags.c_contiguous else matrix).reshape(-1)
        self.samples = line[:: max(1, line.size // _N_SAMPLES)]
        self.expected = self.samples.tobytes()
        self.weight = PackedWeight(matrix)

    def is_current(self) -> bool:
        """Tell whether some numbers of the matrix are what they were."""
        return self.samples.tobytes() == self.expected


class _Entry:
    """The matrices of a parameter, packed when they are used again.

    It refers to the storage, as a tensor that is referred to cannot be swapped. Another
    parameter on this storage, should it get the same `id`, has the same counter of
    versions, unless it was made by `data`.
    """

    def __init__(self, parameter: Parameter) -> None:
        number = id(parameter)
        storage = parameter.untyped_storage()
        self.storage = weakref.ref(storage, lambda _: _entries.pop(number, None))
        self.version, self.size = _version(parameter), parameter.numel()
        self.forms: dict[Form, _Packed | None] = {}

    def is_of(self, parameter: Parameter) -> bool:
        """Tell whether a parameter has not changed, as far as PyTorch knows."""
        return (
            self.version == _version(parameter)
            and self.storage() is parameter.untyped_storage()
        )

    def has_room(self, matrix: Tensor) -> bool:
        """Tell whether packed weights will take no more memory than the parameter."""
        size = sum(one.weight.shape[0] * one.weight.shape[1] for one in self.packed())
        return bool(size + matrix.numel() <= self.size)

    def packed(self) -> list[_Packed]:
        """Return what is packed."""
        return [one for one in self.forms.values() if one is not None]


_entries: dict[int, _Entry] = {}


def find(matrix: Tensor, to_array: Callable[[Tensor], Array]) -> PackedWeight | None:
    """Return the packed weight for a matrix (K, M) of a parameter, or None.

    It is packed when it is used a second time, unchanged. `to_array` gives its memory.
    """
    parameter: Any = matrix if type(matrix) is Parameter else _base(matrix)
    if type(parameter) is not Parameter or parameter.is_inference():
        return None  # the latter has no version
    entry = _entries.get(id(parameter))
    if entry is None or not entry.is_of(parameter):
        entry = _entries[id(parameter)] = _Entry(parameter)
    form = (matrix.data_ptr(), matrix.dtype, matrix.shape, matrix.stride())
    if form not in entry.forms:
        entry.forms[form] = None
        return None
    packed = entry.forms[form]
    if packed is None:
        if not (_is_alone(parameter, matrix) and entry.has_room(matrix)):
            return None
        packed = entry.forms[form] = _Packed(to_array(matrix))
    elif not packed.is_current():
        forget(parameter)
        return None
    return packed.weight


def _is_alone(parameter: Parameter, matrix: Tensor) -> bool:
    """Tell whether nothing else than a parameter's views could write to its memory."""
    storage = parameter.untyped_storage()
    uses = _storage_Use_Count(_cdata(storage)) + (matrix is parameter)
    return (
        uses == _OWN_USES
        and storage.nbytes() == parameter.nbytes
        and parameter.is_contiguous()
        and not storage.is_shared()
    )


def forget(parameter: Any) -> None:
    """Drop the packed weights of a parameter, to which somebody may write unseen."""
    _entries.pop(id(parameter), None)


def nbytes() -> int:
    """Return the memory of all packed weights."""
    entries = list(_entries.values())
    return sum(one.weight.nbytes for entry in entries for one in entry.packed())


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if _entries:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                forget(parameter)


register_optimizer_step_post_hook(_after_step)

_data: Any = torch.Tensor.data


def _get_data(self: Parameter) -> Any:
    forget(self)
    return _data.__get__(self)


def _set_data(self: Parameter, value: Any) -> None:
    forget(self)
    _data.__set__(self, value)


Parameter.data = property(_get_data, _set_data, doc=_data.__doc__)
