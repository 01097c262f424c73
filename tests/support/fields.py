"""The tables of docs/models.md: what becomes of each field of a configuration.

`python tests/support/fields.py` writes them.
"""

from pathlib import Path

from attnpy._families import FAMILIES
from attnpy._families.fields import HARMLESS, NEUTRAL, REQUIRED

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
FAMILY_TABLE = (
    "<!-- The table of families is made by tests/support/fields.py. -->\n",
    "<!-- End of the families. -->\n",
)
FIELD_TABLES = (
    "<!-- The tables are made by tests/support/fields.py. -->\n",
    "<!-- End. -->\n",
)
CLASSES = {
    "encoder": "BertEncoder",
    "decoder": "CausalDecoder",
    "encoder-decoder": "EncoderDecoder",
    "image": "ImageEncoder",
    "image and text": "ImageTextModel",
    "text tower": "ImageTextModel",
}


def families():
    """The table of the families that load, and of the heads each of them may have."""
    lines = [
        "| model | `model_type` | read it with | heads | saved as |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {family.title} | `{family.model_type}` | `{CLASSES[family.model]}` | "
        f"{_heads(family)} | {_saved(family)} |"
        for family in FAMILIES.values()
        if family.model != "text tower"  # a part of another
    ]
    return "\n".join(lines) + "\n"


def _saved(family):
    stem = family.classes[0].removesuffix("Model")
    heads = {
        "SequenceClassification": family.names.classifier,
        "TokenClassification": family.names.token_classifier,
        "MaskedLM": family.names.masked_words,
    }
    endings = [f"`For{ending}`" for ending, names in heads.items() if names]
    if family.model in ("image", "image and text"):
        heads = {"ImageClassification": family.names.classifier}
        if family.model_type == "deit":
            heads["ImageClassificationWithTeacher"] = family.names.classifier
    endings = [f"`For{ending}`" for ending, names in heads.items() if names]
    if family.model in ("image", "image and text") and not endings:
        return f"`{family.classes[0]}`"
    if family.model == "decoder":
        return " or ".join(f"`{name}`" for name in family.classes)
    return f"`{stem}` and {', '.join(['`Model`', *endings])}"


def _heads(family):
    if family.model == "image":
        return "pooler, labels" if family.names.classifier else "pooler"
    if family.model == "image and text":
        return "vectors of pictures and texts"
    if family.model != "encoder":
        return "scores of the next token"
    poolers = [own for own in family.names.names.values() if "pooler_bias" in own]
    heads = {
        "pooler": poolers,
        "text classifier": family.names.classifier,
        "labels of tokens": family.names.token_classifier,
        "masked words": family.names.masked_words,
    }
    return ", ".join(head for head, names in heads.items() if names) or "none"


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
    if family.older:
        older = [f"`{old}` is `{new}`" for old, new in family.older.items()]
        lines += [f"Fields of older files: {', '.join(older)}.", ""]
    lines += ["| honoured | default |", "| --- | --- |"]
    lines += [
        f"| `{name}` | {_default(field)} |" for name, field in family.read.items()
    ]
    for part in (_neutral(neutral) if neutral else [], _harmless(harmless)):
        lines += ["", *part] if part else []
    return "\n".join(lines)


def _default(field):
    if field.default is REQUIRED:
        return "required"
    if field.default is None:
        return "that of the class"
    also = "; null is a value" if field.null else ""
    return f"`{_json(field.default)}`{also}"


def _neutral(fields):
    rows = [f"| `{name}` | {_wanted(values)} |" for name, values in fields.items()]
    return ["| refused unless absent, null or one of | |", "| --- | --- |", *rows]


def _wanted(values):
    return ", ".join(f"`{_json(value)}`" for value in values) or "(nothing else)"


def _harmless(reasons):
    if not reasons:
        return []
    rows = [
        f"| {reason} | {', '.join(f'`{name}`' for name in names)} |"
        for reason, names in reasons.items()
    ]
    return ["| does not matter | fields |", "| --- | --- |", *rows]


def _json(value):
    return str(value).lower() if isinstance(value, bool) else value


def rewritten(text):
    """The page with new tables."""
    for (begin, end), table in ((FAMILY_TABLE, families()), (FIELD_TABLES, tables())):
        before, rest = text.split(begin)
        text = before + begin + "\n" + table + "\n" + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8")), "utf-8")
