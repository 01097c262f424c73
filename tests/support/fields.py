"""The tables of docs/models.md: what becomes of each field of a configuration.

`python tests/support/fields.py` writes them anew.
"""

from pathlib import Path

from attnpy._families import FAMILIES
from attnpy._families.fields import HARMLESS, NEUTRAL, REQUIRED

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = (
    "<!-- The tables are made by tests/support/fields.py. -->\n",
    "<!-- End. -->\n",
)


def tables():
    """The sections of all families, and of what they have in common."""
    sections = [_section(family) for family in FAMILIES.values()]
    common = ["### All families", "", *_neutral(NEUTRAL), ""]
    common += _harmless(HARMLESS)
    return "\n\n".join([*sections, "\n".join(common)]) + "\n"


def _section(family):
    neutral = {
        name: values
        for name, values in family.neutral.items()
        if NEUTRAL.get(name) != values
    }
    harmless = {
        reason: names
        for reason, names in family.harmless.items()
        if HARMLESS.get(reason) != names
    }
    names = f'names of weights: `checkpoints.FAMILIES["{family.checkpoint}"]`'
    lines = [f"### {family.title}", ""]
    lines += [f'`"model_type": "{family.model_type}"`; {names}', ""]
    lines += ["| honoured | where it is left out |", "| --- | --- |"]
    lines += [
        f"| `{name}` | {_default(field)} |" for name, field in family.read.items()
    ]
    for part in (_neutral(neutral) if neutral else [], _harmless(harmless)):
        lines += ["", *part] if part else []
    return "\n".join(lines)


def _default(field):
    if field.default is REQUIRED:
        return "needed"
    if field.default is None:
        return "as its class has it"
    also = ", and null is a value" if field.null else ""
    return f"`{_json(field.default)}`{also}"


def _neutral(fields):
    rows = [f"| `{name}` | {_wanted(values)} |" for name, values in fields.items()]
    return ["| refused, unless null or | |", "| --- | --- |", *rows]


def _wanted(values):
    return ", ".join(f"`{_json(value)}`" for value in values) or "left out"


def _harmless(reasons):
    if not reasons:
        return []
    rows = [
        f"| {reason} | {', '.join(f'`{name}`' for name in names)} |"
        for reason, names in reasons.items()
    ]
    return ["| does not matter, as it is | |", "| --- | --- |", *rows]


def _json(value):
    return str(value).lower() if isinstance(value, bool) else value


def rewritten(text):
    """The page with its tables made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + tables() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8")), "utf-8")
