"""What ran where in a block of `accelerate`, and what was left to PyTorch, and why."""

from __future__ import annotations

from collections import Counter


class Report:
    """Counts of the calls in a block of `accelerate`, which `print` shows as a table.

    Attributes
    ----------
    computed : dict of str to int
        How often attnpy computed each of PyTorch's operators.
    left : dict of (str, str) to int
        How often an operator was left to PyTorch, for each reason.

    Examples
    --------
    >>> import torch
    >>> from attnpy.integrations.torch import accelerate
    >>> with accelerate(report=True) as report, torch.no_grad():
    ...     y = torch.nn.Linear(8, 4)(torch.ones(3, 8))
    computed by attnpy:
             1 addmm
    >>> report.computed
    {'addmm': 1}
    """

    def __init__(self) -> None:
        self._computed: Counter[str] = Counter()
        self._left: Counter[tuple[str, str]] = Counter()

    @property
    def computed(self) -> dict[str, int]:
        return dict(self._computed)

    @property
    def left(self) -> dict[tuple[str, str], int]:
        return dict(self._left)

    def add(self, operator: str, reason: str | None = None) -> None:
        """Count a call that attnpy computed, or left for a reason."""
        if reason is None:
            self._computed[operator] += 1
        else:
            self._left[operator, reason] += 1

    def __str__(self) -> str:
        """Return a line for each operator, with the reason if PyTorch computed it."""
        lines = ["computed by attnpy:"]
        lines += [f"  {n:8} {name}" for name, n in self._computed.most_common()]
        lines += ["left to PyTorch:"] if self._left else []
        lines += [
            f"  {n:8} {name}: {reason}"
            for (name, reason), n in self._left.most_common()
        ]
        return "\n".join(lines)
