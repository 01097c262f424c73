"""Jinja's sandbox for templates of conversations, with bounds of time and memory.

Imported when a template is used, as jinja2 may not be installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Template, TemplateRuntimeError, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Characters of a template: compiling takes time that grows faster than its length. The
# longest ones of known models have some 20,000.
LONGEST_TEMPLATE = 1 << 16
# Passes of loops, such as 1,000 messages that are compared with each other. A call
# takes as long as several of them.
MOST_STEPS, STEPS_OF_CALL = 1_000_000, 10
# Characters of a text, and of all that is written: this many, and this many times those
# that are given. Items of a list are counted, too.
MOST_CHARACTERS, MOST_TIMES = 1 << 20, 16
# Bits of a number.
MOST_BITS = 4096
# What a template cannot call so: names of variables and filters have no blanks.
BUDGET, COUNTED, CHECKED = "the budget", "counted items", "checked length"


class Budget:
    """What a template may still do while it writes one conversation."""

    def __init__(self, given: object) -> None:
        self.steps = 0
        self.longest = MOST_CHARACTERS + MOST_TIMES * _size(given)

    def step(self, n: int = 1) -> None:
        """Count passes of a loop."""
        self.steps += n
        if self.steps > MOST_STEPS:
            raise TemplateRuntimeError(f"more than {MOST_STEPS:,} passes of loops")

    def require(self, length: int) -> None:
        """Refuse a text, or a list, that is too long."""
        if length > self.longest:
            raise TemplateRuntimeError(
                f"a text of more than {self.longest:,} characters"
            )

    def checked(self, value: Any) -> Any:
        """Return a value that is not too long."""
        if isinstance(value, str | Sequence):
            self.require(len(value))
        return value


class Limited(ImmutableSandboxedEnvironment):
    """Runs templates that cannot change or call what they should not, nor go on long.

    All loops, calls and operators that make long values of short ones ask the budget
    of `written`.
    """

    intercepted_binops = frozenset(("+", "*", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
        )
        self.filters |= {COUNTED: _counted, CHECKED: _checked}

    def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
        """Return a template whose loops and texts ask for the budget."""
        if len(source) > LONGEST_TEMPLATE:
            raise TemplateRuntimeError(
                f"{len(source):,} characters, more than {LONGEST_TEMPLATE:,}"
            )
        tree = super()._parse(source, name, filename)
        for loop in [*tree.find_all(nodes.For)]:
            loop.iter = _filtered(loop.iter, COUNTED)
        for block in [*tree.find_all(nodes.AssignBlock)]:
            block.filter = _filtered(block.filter, CHECKED)
        for joined in [*tree.find_all(nodes.Concat)]:
            joined.nodes = [_filtered(nodes.Concat(joined.nodes), CHECKED)]
        tree.set_environment(self)
        return tree

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        """Call what a template may call: a function, a macro, a loop."""
        budget = _budget(context)
        budget.step(STEPS_OF_CALL)
        result = super().call(context, function, *args, **named)
        if isinstance(result, range):
            budget.step(len(result))
        return budget.checked(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what may be much larger than what it is made of."""
        budget = _budget(context)
        if operator == "+":
            return budget.checked(super().call_binop(context, operator, left, right))
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | Sequence) and isinstance(times, int):
                budget.require(len(value) * times)
        if isinstance(left, int) and isinstance(right, int):
            n = left.bit_length() * right if operator == "**" else right.bit_length()
            if n + left.bit_length() > MOST_BITS:
                raise TemplateRuntimeError(f"a number of more than {MOST_BITS} bits")
        return super().call_binop(context, operator, left, right)


def written(template: Template, variables: Mapping[str, Any]) -> str:
    """Return what a template of `Limited` makes of variables."""
    budget, length, parts = Budget(variables), 0, []
    for part in template.generate({**variables, BUDGET: budget}):
        length += len(part)
        budget.require(length)
        parts.append(part)
    return "".join(parts)


def _filtered(node: Any, name: str) -> Any:
    """Return a node behind a filter."""
    return nodes.Filter(node, name, [], [], None, None)


def _budget(context: Context) -> Budget:
    budget = context.get(BUDGET)
    assert isinstance(budget, Budget)
    return budget


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    """Go through what a loop goes through."""
    budget = _budget(context)
    for item in items:
        budget.step()
        yield item


@pass_context
def _checked(context: Context, value: Any) -> Any:
    """Return a value that is not too long."""
    return _budget(context).checked(value)


def _size(value: object) -> int:
    """Return how many characters there are in a value, in lists and mappings too."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 0
