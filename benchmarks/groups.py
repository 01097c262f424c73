"""All groups of rows, in the order in which they are measured."""

from __future__ import annotations

from dataclasses import dataclass

from . import rows
from .models import rows as models


@dataclass(frozen=True)
class Machine:
    """What rows depend on."""

    tiers: tuple[str, ...] = ()
    native_bf16: bool = False  # whether it multiplies bfloat16
    cache_bytes: int = 32 << 20


MAKERS = {
    "full": lambda _: rows.full_rows(),
    "causal": lambda _: rows.causal_rows(),
    "half": lambda machine: rows.half_rows(machine.native_bf16),
    "masks": lambda _: rows.mask_rows(),
    "gqa": lambda _: rows.gqa_rows(),
    "decode": lambda machine: rows.decode_rows(machine.cache_bytes),
    "small": lambda _: rows.small_rows(),
    "threads": lambda _: rows.thread_rows(),
    "float64": lambda _: rows.float64_rows(),
    "tiers": lambda machine: rows.tier_rows(machine.tiers),
    "layers": lambda _: rows.layer_rows(),
    "models": lambda machine: models.model_rows(machine.native_bf16),
    "sentences": lambda _: models.text_rows(),
    "prompts": lambda machine: models.decoder_rows(machine.native_bf16, (0,)),
    "tokens": lambda machine: models.decoder_rows(machine.native_bf16, (8,)),
    "generation": lambda _: models.generation_rows(),
    "defaults": lambda machine: models.default_rows(machine.native_bf16),
    "backward": lambda _: rows.backward_rows(),
    "training": lambda _: models.training_rows(),
    "integrations": lambda _: (*rows.tensor_rows(), *models.transformers_rows()),
}
TIMED = tuple(MAKERS)
GROUPS = (*TIMED, "memory", "loading", "footprint")


def timed_rows(groups, tiers=(), native_bf16=False, cache_bytes=32 << 20):
    """The rows of these groups, in the order of TIMED."""
    machine = Machine(tuple(tiers), native_bf16, cache_bytes)
    return [row for group in TIMED if group in groups for row in MAKERS[group](machine)]
