"""The tables of docs/models.md: what becomes of each field of a configuration.

`python tests/support/fields.py` writes them.
"""

import textwrap
from pathlib import Path

from attnpy._families import FAMILIES
from attnpy._families.fields import HARMLESS, NEUTRAL, REQUIRED

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
FAMILY_TABLE = (
    "<!-- The tables of families are made by tests/support/fields.py. -->\n",
    "<!-- End of the families. -->\n",
)
FIELD_TABLES = (
    "<!-- The tables are made by tests/support/fields.py. -->\n",
    "<!-- End. -->\n",
)
CLASSES = {
    "encoder": "`BertEncoder` reads encoders of texts.",
    "decoder": "`CausalDecoder` reads language models.",
    "encoder-decoder": "`EncoderDecoder` reads models from text to text.",
    "image": "`ImageEncoder` reads encoders of pictures.",
    "image and text": "`ImageTextModel` reads models that compare pictures with texts.",
}


# The ends of the names of classes in Transformers, by the heads that they have.
ENDS = {
    "texts": ("SequenceClassification",),
    "tokens": ("TokenClassification",),
    "masked words": ("MaskedLM",),
    "pictures": ("ImageClassification", "ImageClassificationWithTeacher"),
    "next token": ("CausalLM", "ConditionalGeneration"),
}

# What is refused of families, a word for it and fields that say so.
RELATIVE = {"`relative_key`": {"position_embedding_type": "relative_key"}}
PARTIAL = {"partial rotation": {"partial_rotary_factor": 0.5}}
PARTIAL_AND_TWO_WAYS = {
    **PARTIAL,
    "bidirectional attention": {"use_bidirectional_attention": True},
}
REFUSED = {
    **dict.fromkeys(
        (
            *("bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert"),
            *("roberta-prelayernorm", "data2vec-text", "electra"),
        ),
        RELATIVE,
    ),
    "albert": {**RELATIVE, "several groups of layers": {"num_hidden_groups": 2}},
    "deberta-v2": {"a convolution after the first layer": {"conv_kernel_size": 3}},
    "nomic_bert": {"mixtures of experts": {"num_experts": 8}},
    "esm": {"ESMFold": {"is_folding_model": True}},
    "new": {
        "scalings other than `ntk`": {
            "rope_scaling": {"type": "linear", "factor": 2.0}
        },
    },
    **dict.fromkeys(
        (
            *("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite"),
            *("olmo2", "olmo3", "mixtral", "qwen2_moe", "qwen3_moe"),
            *(
                "exaone",
                "exaone4",
                "ernie4_5",
                "starcoder2",
                "cohere2",
                "arcee",
                "seed_oss",
            ),
            *("granitemoe", "granitemoehybrid"),
        ),
        PARTIAL,
    ),
    "opt": {
        "norms after attention and network, embeddings of another size (350m)": {
            "do_layer_norm_before": False
        }
    },
    "falcon": {
        "two norms before attention and network (40B, 180B)": {
            "num_ln_in_parallel_attn": 2
        },
        "ALiBi": {"alibi": True},
    },
    "mpt": {
        "clipped queries, keys and values": {"attn_config": {"clip_qkv": 8.0}},
        "norms of queries and keys": {"attn_config": {"qk_ln": True}},
        "learned positions": {"attn_config": {"alibi": False}},
    },
    "gpt_bigcode": {"several heads of keys": {"multi_query": False}},
    "stablelm": {"norms of queries and keys": {"qk_layernorm": True}},
    "cohere": {**PARTIAL, "norms of queries and keys": {"use_qk_norm": True}},
    "gpt_oss": {**PARTIAL, "other limits of experts": {"swiglu_limit": 5.0}},
    "olmoe": {**PARTIAL, "clipped queries, keys and values": {"clip_qkv": 8.0}},
    **dict.fromkeys(("gemma", "gemma2"), PARTIAL_AND_TWO_WAYS),
    "gemma3_text": {
        **PARTIAL,
        "soft caps of attention": {"attn_logit_softcapping": 50.0},
    },
    "marian": {"two vocabularies": {"share_encoder_decoder_embeddings": False}},
}

# Families in which some layers have no positions.
UNTURNED = "smollm3", "exaone4", "cohere2"
# Those whose folders may name code of their own.
REMOTE_CODE = "eurobert", "exaone", "falcon", "nomic_bert", "new", "mpt"
REMOTE_CODE += "xlm-roberta", "jina_embeddings_v3", "jina-bert-v2", "phi3"
REMOTE_CODE += ("jina-bert-v2-code",)


def families():
    """The tables of the families that load, one for each class that reads them."""
    lines = []
    for model, reads in CLASSES.items():
        members = [family for family in FAMILIES.values() if family.model == model]
        heads = [_heads(family) for family in members]
        some = [own for own in heads if own]
        all_have = [x for x in heads[0] if all(x in own for own in some)]
        may_have = f" Heads: {', '.join(all_have)}." if all_have else ""
        lines += [f"{reads}{may_have}", "", "| family, `model_type` | notes |"]
        lines += ["| --- | --- |"]
        for family, own in zip(members, heads, strict=True):
            more = [f"head: {head}" for head in own if head not in all_have]
            more += [] if own or not some else ["no heads"]
            words = "; ".join([*more, notes(family)])
            lines += [f"| {family.title}, `{family.model_type}` | {words} |"]
        lines += [""]
    ends = [
        f"{head} ({' or '.join(f'`{end}`' for end in ends)})"
        for head, ends in ENDS.items()
    ]
    text = (
        "A pooler makes a vector of a text or a picture; the other heads score what "
        "they are named after. A folder contains a model without its head, such as "
        f"`BertModel`, or with one that its class is named after: {', '.join(ends)}. "
        "An encoder-decoder always has one of them."
    )
    lines += textwrap.wrap(text, 100)
    return "\n".join(lines) + "\n"


def notes(family):
    """What is particular about a family, by its declaration; and what is refused."""
    given = {**family.copied, **family.fixed, **family.computed}
    towers = [FAMILIES[kind] for kind in given.get("towers", ())]
    tied = family.neutral.get("tie_word_embeddings")
    positions = given.get("positions", "learned")
    if "num_buckets" in given:
        has_both = given.get("position_table", family.model == "encoder")
        positions = "learned and relative" if has_both else "relative"
    if "rotary" in given:
        positions = "rotary"
        if "absolute" in family.read.get("position_embedding_type", ()):
            positions = "rotary or learned"
    if "alibi" in given:
        positions = "ALiBi, no table of"
    if "num_distances" in given:
        positions = "disentangled, and maybe learned,"
    size = family.read.get("image_size")
    told = {
        f"{positions} positions": True,
        "whole or partial rotation": "partial_rotary_factor" in family.read,
        "some layers without positions": family.model_type in UNTURNED,
        "padding not counted": "padding_id" in given,
        "mixtures of experts": "num_experts" in given,
        "a shared expert": "shared_dim" in given,
        "some layers without experts": "dense_layers" in given,
        "windows": "window" in given,
        "attention sinks": "sinks" in given,
        "soft caps": "softcap" in given,
        "factors of embeddings, scores, sums and attention": "residual_scale" in given,
        "one head of keys and values": given.get("num_kv_heads") == 1,
        "a factor of scores": "logit_scale" in family.read,
        "attention and network side by side": family.fixed.get("parallel"),
        "attention and network side by side or not": (
            "use_parallel_residual" in family.read
        ),
        "norms of queries and keys": given.get("qk_norm") is True,
        "norms of all queries and keys of a token": given.get("qk_norm") == "all heads",
        "norms of values": "value_norm" in given,
        "layers that read the embeddings": "input_dim" in given,
        "heads of layers of several sizes": "head_sizes" in given,
        "a last matrix": "output_dim" in given,
        "norms after attention and network alone": given.get("norm_after") == "only",
        "one layer for all": "shared" in given,
        "embeddings may be narrower": "embedding_dim" in given,
        "pictures need not be square": size is not None and size.kind == "sizes",
        "a distillation token": "distilled" in given,
        "causal texts": any(x.fixed.get("causal", True) for x in towers[1:]),
        "texts not causal": any(not x.fixed.get("causal", True) for x in towers[1:]),
        "pooler or none": "vision_use_head" in family.read,
        "networks gated or not": "is_gated_act" in family.read,
        "causal or not": not isinstance(given.get("causal", True), bool),
        "scores tied or not": "tie_word_embeddings" in family.read,
        "scores tied": tied == (True,),
        "scores never tied": given.get("tied") is False,
        f"also as the text model of `{family.within}`": bool(family.within),
        "remote-code folders load as well": family.model_type in REMOTE_CODE,
    }
    words = [note for note, holds in told.items() if holds]
    refused = ", ".join(REFUSED.get(family.model_type, ()))
    return "; ".join([*words, f"refused: {refused}"] if refused else words)


def _heads(family):
    if family.model == "image":
        return ["pooler", *["pictures"] * bool(family.names.classifier)]
    if family.model == "image and text":
        return []
    if family.model == "decoder":
        scores = ["next token"] * (family.fixed.get("tied", True) is not None)
        return [*scores, *["texts"] * bool(family.names.classifier)]
    if family.model != "encoder":
        return ["next token", *["texts"] * bool(family.names.classifier)]
    poolers = [own for own in family.names.names.values() if "pooler_bias" in own]
    heads = {
        "pooler": poolers,
        "texts": family.names.classifier,
        "tokens": family.names.token_classifier,
        "masked words": family.names.masked_words,
    }
    return [head for head, names in heads.items() if names]


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
