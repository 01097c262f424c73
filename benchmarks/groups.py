"""All groups of rows, in the order in which they are measured."""

from dataclasses import replace
from types import SimpleNamespace

import attnpy

from . import cases, machine, rows
from .models import rows as models

# Rows of other groups to measure with many threads, those of most interest first.
SCALING = (
    ("full", "8x12x128x64"),
    ("models", "MiniLM float32 32 x 128"),
    ("decode", "float32 1x32on8x4096x128"),
    ("full", "1x12x1024x64"),
    ("causal", "1x12x1024x64"),
    ("half", "bfloat16 1x16x2048x64"),
    ("prompts", "Llama shape float32, 256"),
    ("tokens", "Llama shape float32, 8 after 256"),
    ("models", "MiniLM float32 1 x 128"),
    ("backward", "1x12x1024x64"),
    ("decode", "float32 1x12on12x512x64"),
    ("models", "MiniLM bfloat16 32 x 128"),
    ("full", "1x8x64x64"),
    ("masks", "random mask 4x12x512x64"),
    ("decode", "float32 8x32on8x4096x128"),
    ("half", "float16 1x12x1024x64"),
    ("full", "8x12x512x64"),
    ("prompts", "Llama shape bfloat16, 256"),
    ("tokens", "Llama shape bfloat16, 8 after 256"),
)
LEFT_OUT, OF_MODELS = ("numpy",), ("numpy", "transformers", "ctranslate2")  # too slow


def scaling_rows(here):
    """The rows of SCALING, each in turns with attnpy on one thread."""
    makers = [MAKERS[group] for group in dict.fromkeys(group for group, _ in SCALING)]
    found = {(row.group, row.name): row for make in makers for row in make(here)}
    for i, key in enumerate(SCALING):
        yield replace(scaled(found[key]), quick=i == 0)


def scaled(row):
    """A row of another group as one of this: fewer texts, which are enough to share."""
    name, case = row.name.replace("32 x 128", "8 x 128"), row.case
    if name != row.name:
        case = replace(case, batch=8)
    left_out = OF_MODELS if row.group == "models" else LEFT_OUT
    return replace(
        row,
        group="scaling",
        name=f"{row.group} {name}",
        case=case,
        targets=(),
        peers=tuple(x for x in row.peers if x not in left_out),
        own=("1 thread", rows.Own(n_threads=1)),
    )


MAKERS = {
    "full": lambda _: rows.full_rows(),
    "causal": lambda _: rows.causal_rows(),
    "half": lambda here: rows.half_rows(here.native_bf16),
    "masks": lambda _: rows.mask_rows(),
    "gqa": lambda _: rows.gqa_rows(),
    "decode": lambda here: (*rows.decode_rows(here.cache_bytes), *rows.int8_rows()),
    "small": lambda _: rows.small_rows(),
    "threads": lambda _: rows.thread_rows(),
    "float64": lambda _: rows.float64_rows(),
    "tiers": lambda here: rows.tier_rows(here.tiers),
    "layers": lambda _: rows.layer_rows(),
    "models": lambda here: (
        *models.model_rows(here.native_bf16),
        *models.picture_rows(),
    ),
    "sentences": lambda _: models.text_rows(),
    "rerank": lambda _: models.pair_rows(),
    "prompts": lambda here: (
        *models.decoder_rows(here.native_bf16, (0,)),
        *models.alibi_rows(0),
    ),
    "tokens": lambda here: (
        *models.decoder_rows(here.native_bf16, (8,)),
        *models.alibi_rows(8),
    ),
    "int8": lambda here: models.integer_rows("amx_bf16" in here.tiers),
    "gguf": lambda here: (
        *models.gguf_rows("amx_bf16" in here.tiers),
        *models.gguf_encoder_rows(),
    ),
    "generation": lambda _: models.generation_rows(),
    "reuse": lambda _: models.reuse_rows(),
    "defaults": lambda here: models.default_rows(here.native_bf16),
    "backward": lambda _: rows.backward_rows(),
    "training": lambda _: models.training_rows(),
    "integrations": lambda here: (
        *rows.tensor_rows(),
        *models.transformers_rows(here.native_bf16),
        *models.in_torch_rows(here.native_bf16),
        *models.quantized_layer_rows(),
    ),
    "scaling": scaling_rows,
}
TIMED = tuple(MAKERS)
GROUPS = (*TIMED, "memory", "loading", "footprint")


def timed_rows(groups, tiers=(), native_bf16=False, cache_bytes=32 << 20):
    """The rows of these groups, in the order of TIMED.

    native_bf16: whether numbers of bfloat16 are multiplied as they are.
    """
    here = SimpleNamespace(
        tiers=tiers, native_bf16=native_bf16, cache_bytes=cache_bytes
    )
    return [row for group in TIMED if group in groups for row in MAKERS[group](here)]


def rows_here(groups):
    """The same for attnpy as it is, on this machine."""
    config = attnpy.show_config(mode="dicts")
    native_bf16 = config["tier"] in cases.NATIVE_BF16
    return timed_rows(groups, config["tiers"], native_bf16, machine.cache_bytes())
