"""EXAONE 4: norms of results alone, and positions in layers with a window alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import llama, olmo, rules
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field
from attnpy._families.rules import FULL, SLIDING
from attnpy._quoting import quoted

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary


def _kinds(values: Values) -> list[str]:
    """Return windows in all layers but every n-th one, if there are windows."""
    n_layers, every = values["num_hidden_layers"], values["sliding_window_pattern"]
    if values["sliding_window"] is None:
        return [FULL] * n_layers
    if not isinstance(every, int) or every < 1:
        raise ValueError(
            "config: expected sliding_window_pattern to be an integer above 0 without "
            f"layer_types, got {quoted(every)}"
        )
    return [FULL if (i + 1) % every == 0 else SLIDING for i in range(n_layers)]


def _rotaries(values: Values) -> list[Rotary | None]:
    """Return the positions of each layer: without windows all have some."""
    rotary = rules.rotary(values)
    everywhere = values["sliding_window"] is None
    kinds = rules.layer_types(values, _kinds)
    return [rotary if everywhere or kind == SLIDING else None for kind in kinds]


EXAONE4 = Declaration(
    model_type="exaone4",
    title="EXAONE 4",
    model="decoder",
    classes=("Exaone4Model", "Exaone4ForCausalLM"),
    checkpoint="olmo2",
    names=olmo.NAMES,
    read=llama.READ
    | {
        "eos_token_id": Field("tokens", 2, null=True),
        "max_position_embeddings": Field("size", 2048),
        "num_key_value_heads": Field("size", 32),
        "rms_norm_eps": Field("number", 1e-5),
        "sliding_window": Field("size", 4096, null=True),
        "sliding_window_pattern": Field("pattern", 4, null=True),
        "layer_types": Field("names", None),
    },
    neutral=llama.LLAMA_NEUTRAL | llama.NO_BIASES,
    harmless=llama.LLAMA_HARMLESS,
    copied=llama.COPIED | {"causal": "is_causal"},
    fixed=llama.FIXED | {"qk_norm": True, "norm_after": "only"},
    computed=llama.COMPUTED | {"rotary": _rotaries, "window": rules.windows(_kinds)},
)
