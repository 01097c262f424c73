"""SmolLM3: Llama, in which some layers have no positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import llama, rules
from attnpy._families.declaration import Declaration
from attnpy._families.fields import Field
from attnpy._families.rules import FULL, SLIDING
from attnpy._quoting import quoted

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy.positions import Rotary


def _turning(values: Values) -> list[bool]:
    """Tell which layers have rotary positions."""
    n_layers, given = values["num_hidden_layers"], values["no_rope_layers"]
    if given is None:
        every = values["no_rope_layer_interval"]
        return [(i + 1) % every != 0 for i in range(n_layers)]
    if len(given) < n_layers:
        raise ValueError(
            f"config: expected no_rope_layers of {n_layers} numbers, got "
            f"{quoted(given, 200)}"
        )
    return [bool(number) for number in given[:n_layers]]


def _rotaries(values: Values) -> list[Rotary | None]:
    """Return the positions of each layer, None without."""
    rotary = rules.rotary(values, 2_000_000.0)
    return [rotary if turns else None for turns in _turning(values)]


def _kinds(values: Values) -> list[str]:
    """Return windows in the layers without positions, if windows are used."""
    used = values["use_sliding_window"] and values["sliding_window"] is not None
    return [SLIDING if used and not turns else FULL for turns in _turning(values)]


SMOLLM3 = Declaration(
    model_type="smollm3",
    title="SmolLM3",
    model="decoder",
    classes=("SmolLM3Model", "SmolLM3ForCausalLM"),
    checkpoint="llama",
    names=llama.NAMES,
    read=llama.READ
    | {
        "num_key_value_heads": Field("size", 4, null=True),
        "tie_word_embeddings": Field("flag", True),
        "eos_token_id": Field("tokens", 128001, null=True),
        "attention_bias": Field("flag", False),
        "mlp_bias": Field("flag", False),
        "use_sliding_window": Field("flag", False),
        "sliding_window": Field("size", None),
        "layer_types": Field("names", None),
        "no_rope_layers": Field("switches", None),
        "no_rope_layer_interval": Field("size", 4),
    },
    neutral=llama.LLAMA_NEUTRAL,
    harmless=llama.LLAMA_HARMLESS
    | {"written by the tools that made the file": ("max_window_layers",)},
    copied=llama.COPIED
    | llama.BIASES
    | {"causal": "is_causal", "feed_forward_bias": "mlp_bias"},
    fixed=llama.FIXED,
    computed=llama.COMPUTED | {"rotary": _rotaries, "window": rules.windows(_kinds)},
)
