"""EXAONE 4: norms of results alone, and positions in layers with a window alone.

EXAONE 3 is Llama, with other names in its files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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


# Names of the files of LGAI-EXAONE, in place of Llama's, which are saved.
_LAYER = {
    "ln_1.weight": "input_layernorm.weight",
    "ln_2.weight": "post_attention_layernorm.weight",
    **{
        f"attn.attention.{theirs}_proj.{kind}": f"self_attn.{own}_proj.{kind}"
        for theirs, own in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o"))
        for kind in ("weight", "bias")
    },
    **{
        f"mlp.{theirs}.{kind}": f"mlp.{own}_proj.{kind}"
        for theirs, own in (("c_fc_0", "gate"), ("c_fc_1", "up"), ("c_proj", "down"))
        for kind in ("weight", "bias")
    },
}
_REST = {
    "wte.weight": "embed_tokens.weight",
    "ln_f.weight": "norm.weight",
}
NAMES_3 = llama.NAMES._replace(
    names={
        **llama.NAMES.names,
        **{
            f"h.{{i}}.{theirs}": llama.NAMES.names[f"layers.{{i}}.{own}"]
            for theirs, own in _LAYER.items()
        },
        **{theirs: llama.NAMES.names[own] for theirs, own in _REST.items()},
    },
    prefixes=(*llama.NAMES.prefixes, "transformer."),
    ignored=(*llama.NAMES.ignored, "h.*.rotary_emb.inv_freq", "rotary.inv_freq"),
)


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that do not say where the code is."""
    return rules.without_code(
        config, "configuration_exaone.Exaone", "modeling_exaone.Exaone"
    )


EXAONE = replace(
    llama.LLAMA,
    model_type="exaone",
    title="EXAONE 3",
    checkpoint="exaone",
    names=NAMES_3,
    read={
        **llama.LLAMA.read,
        "intermediate_size": Field("size", 14336),
        "num_key_value_heads": Field("size", 8, null=True),
        "max_position_embeddings": Field("size", 4096),
        "rms_norm_eps": Field("number", 1e-5),
        "vocab_size": Field("size", 102_400),
        "eos_token_id": Field("tokens", 361, null=True),
    },
    harmless=llama.LLAMA_HARMLESS | {"dropout, for training": ("embed_dropout",)},
    computed={
        **llama.LLAMA.computed,
        "rotary": lambda values: rules.rotary(values, 500_000.0),
    },
    older={
        "num_layers": "num_hidden_layers",
        "layer_norm_epsilon": "rms_norm_eps",
        "activation_function": "hidden_act",
    },
    modern=_modern,
)
