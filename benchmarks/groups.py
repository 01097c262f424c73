"""All groups of rows, in the order in which they are measured."""

from types import SimpleNamespace

import attnpy

from . import cases, machine, rows
from .models import rows as models

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
    "prompts": lambda here: models.decoder_rows(here.native_bf16, (0,)),
    "tokens": lambda here: models.decoder_rows(here.native_bf16, (8,)),
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
    ),
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
