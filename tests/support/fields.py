"""The tables of docs/models.md: what becomes of each field of a configuration.

`python tests/support/fields.py` writes them anew.
"""

from pathlib import Path

from attnpy.models import _hf_fields

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = (
    "<!-- The tables are made by tests/support/fields.py. -->\n",
    "<!-- End. -->\n",
)
TITLES = {
    "bert": "BERT",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-RoBERTa",
    "distilbert": "DistilBERT",
    "mpnet": "MPNet",
    "gpt2": "GPT-2",
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "phi3": "Phi-3",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3, its text model",
}


def tables():
    """The sections of all families, and of what they have in common."""
    sections = [_section(kind, title) for kind, title in TITLES.items()]
    common = ["### All families", "", *_neutral(_hf_fields.NEUTRAL), ""]
    common += _harmless(_hf_fields.HARMLESS)
    return "\n\n".join([*sections, "\n".join(common)]) + "\n"


def _section(kind, title):
    family = _hf_fields.FAMILIES[kind]
    neutral = {
        name: values
        for name, values in family.neutral.items()
        if _hf_fields.NEUTRAL.get(name) != values and name != "model_type"
    }
    harmless = {
        reason: names
        for reason, names in family.harmless.items()
        if _hf_fields.HARMLESS.get(reason) != names
    }
    lines = [f"### {title}", "", f'`"model_type": "{kind}"`', ""]
    lines += ["| honoured | where it is left out |", "| --- | --- |"]
    lines += [
        f"| `{name}` | {_default(field)} |" for name, field in family.read.items()
    ]
    for part in (_neutral(neutral) if neutral else [], _harmless(harmless)):
        lines += ["", *part] if part else []
    return "\n".join(lines)


def _default(field):
    if field.default is _hf_fields.REQUIRED:
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
