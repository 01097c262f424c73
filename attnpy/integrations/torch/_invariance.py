"""Which module of a model first gives a row other bits in another batch."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from attnpy import _attnpy, _checks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Outputs = list[tuple[str, Tensor]]  # of modules, in the order in which they end


class Difference(NamedTuple):
    """The first module that gives a row other bits, for a change of the batch.

    Attributes
    ----------
    change : str
        What was changed, such as "alone" or "3 threads".
    module : str
        The module's name in the model, and its class.
    row : int
        The row of the batch.
    largest : float
        The largest difference between the module's numbers.
    """

    change: str
    module: str
    row: int
    largest: float


def check_invariance(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    *,
    num_threads: Sequence[int] = (1, 2, 3, 7),
) -> list[Difference]:
    """Return where a model's output for a row depends on more than the row.

    The model is run on the batch with each number of threads, on half of the batch, and
    on each row alone. If there is an "attention_mask", rows alone are without the
    padding at their end.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation mode.
    inputs : mapping of str to Tensor
        The model's keyword arguments. Tensors with as many rows as the first have a row
        for each element of the batch.
    num_threads : sequence of int, optional
        Numbers of threads, for PyTorch and attnpy; restored at the end.

    Returns
    -------
    list of Difference
        For each change that changes bits, the module that ends first among those whose
        output differs; its own modules are the same. Empty if there is none. An empty
        module's name is the model itself.

    Raises
    ------
    ValueError
        If the model is in training mode, or there is no tensor with rows.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import accelerate, check_invariance
    >>> model = torch.nn.Sequential(torch.nn.Linear(300, 64), torch.nn.Tanh()).eval()
    >>> with accelerate():
    ...     check_invariance(model, {"input": torch.randn(8, 300)})
    []
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model: expected a torch.nn.Module, got {type(model).__name__}"
        )
    inputs = _checks.mapping(inputs, "inputs")
    if model.training:
        raise ValueError(
            "model: expected evaluation mode, which model.eval() sets, got training"
        )
    numbers = _checks.items(num_threads, "num_threads", "integers")
    counts = [_checks.count(n, "num_threads") for n in numbers]
    rows = [len(x) for x in inputs.values() if isinstance(x, Tensor) and x.dim() > 0]
    if not rows or rows[0] == 0 or not counts:
        raise ValueError("inputs, num_threads: expected tensors with rows, and numbers")
    n_rows, found = rows[0], []
    with _restored_threads():
        whole = _run(model, inputs, counts[0])
        for n in counts[1:]:
            other = _run(model, inputs, n)
            found.append(_compare(f"{n} threads", whole, other, range(n_rows)))
        half = range((n_rows + 1) // 2)
        part = _run(model, _taken(inputs, n_rows, half), counts[0])
        found.append(_compare("half of the batch", whole, part, half))
        for i in range(n_rows):
            alone = _run(model, _alone(inputs, n_rows, i), counts[0])
            found.append(_compare("alone", whole, alone, range(i, i + 1)))
    first = {one.change: one for one in reversed(found) if one is not None}
    return list(reversed(first.values()))


@contextmanager
def _restored_threads() -> Iterator[None]:
    before = torch.get_num_threads(), _attnpy.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _attnpy.set_num_threads(before[1])


def _run(model: torch.nn.Module, inputs: Mapping[str, Any], n: int) -> Outputs:
    """Return the tensors that modules return."""
    outputs: Outputs = []

    def keep(name: str, result: Any) -> None:
        if isinstance(result, Tensor):
            outputs.append((name, result.detach().clone()))
        elif isinstance(result, dict):
            keep(name, tuple(result.values()))
        elif isinstance(result, (tuple, list)):
            for one in result:
                keep(name, one)

    torch.set_num_threads(n)
    _attnpy.set_num_threads(n)
    hooks = [
        module.register_forward_hook(
            lambda module, _, result, name=name: keep(
                f"{name} ({type(module).__name__})".strip(), result
            )
        )
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def _taken(inputs: Mapping[str, Any], n_rows: int, rows: range) -> dict[str, Any]:
    """Return some rows of a batch."""
    return {
        name: x[rows.start : rows.stop]
        if isinstance(x, Tensor) and x.dim() > 0 and len(x) == n_rows
        else x
        for name, x in inputs.items()
    }


def _alone(inputs: Mapping[str, Any], n_rows: int, i: int) -> dict[str, Any]:
    """Return a row of a batch, without padding at its end."""
    row = _taken(inputs, n_rows, range(i, i + 1))
    mask = row.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return row
    n = int((mask[0] != 0).sum())
    if n == 0 or not bool((mask[0, :n] != 0).all()):
        return row
    return {
        name: x[:, :n] if isinstance(x, Tensor) and x.shape[:2] == mask.shape else x
        for name, x in row.items()
    }


def _compare(
    change: str, whole: Outputs, other: Outputs, rows: range
) -> Difference | None:
    """Return the first module whose rows differ, where outputs have rows."""
    for (name, one), (_, another) in zip(whole, other, strict=False):
        if one.dim() == 0 or another.dim() != one.dim() or len(another) != len(rows):
            continue
        if len(one) < rows.stop:
            continue
        for i, row in zip(rows, another, strict=True):
            expected = one[i]
            for axis, size in enumerate(row.shape):
                expected = expected.narrow(axis, 0, min(size, expected.shape[axis]))
            if expected.shape != row.shape:
                continue
            if not torch.equal(torch.nan_to_num(expected), torch.nan_to_num(row)):
                largest = (expected.double() - row.double()).abs().max().item()
                return Difference(change, name, i, largest)
    return None
