"""GPT-Neo: GPT-2 with windows in some layers, and scores that are not scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnpy._families import gpt2, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import MOST_LAYERS, NEUTRAL, Field
from attnpy._quoting import quoted

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy._typing import Window

_LAYER = {
    **{
        f"attn.attention.{letter}_proj.weight": f"self_attention.W_{letter}.T"
        for letter in "qkv"
    },
    "attn.attention.out_proj.weight": "self_attention.W_o.T",
    "attn.attention.out_proj.bias": "self_attention.b_o",
    "mlp.c_fc.weight": "feed_forward.W_1.T",
    "mlp.c_proj.weight": "feed_forward.W_2.T",
}
# The ignored ones are masks.
NAMES = gpt2.NAMES._replace(
    names={
        **{x: own for x, own in gpt2.NAMES.names.items() if ".attn." not in x},
        **names_of("h.{i} decoder.layers.{i}", _LAYER, {}),
    },
    ignored=("h.*.attn.attention.bias", "h.*.attn.attention.masked_bias"),
)
GLOBAL, LOCAL = "global", "local"


def _modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of each layer in place of kinds and how often they come."""
    types = config.get("attention_types")
    if types is None or not _are_types(types):
        return dict(config)
    layers = [name for names, times in types for name in [*names] * times]
    if config.get("attention_layers") not in (None, layers):
        raise ValueError(
            f"config: expected attention_layers = {quoted(layers, 200)}, as "
            f"attention_types says, got {quoted(config['attention_layers'], 200)}"
        )
    given = {name: x for name, x in config.items() if name != "attention_types"}
    return given | {"attention_layers": layers}


def _are_types(types: object) -> bool:
    """Tell whether these are lists of a list and a number each, and not too many."""
    if not isinstance(types, (list, tuple)):
        return False
    for part in types:
        if not isinstance(part, (list, tuple)) or len(part) != 2:
            return False
        names, times = part
        if not isinstance(names, (list, tuple)) or type(times) is not int:
            return False
        if not 0 <= times * max(len(names), 1) <= MOST_LAYERS:
            return False
    return len(types) <= MOST_LAYERS


def _layers(values: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer; they alternate where nothing is said."""
    n_layers, layers = values["num_layers"], values.get("attention_layers")
    if layers is None:
        return [LOCAL if i % 2 else GLOBAL for i in range(n_layers)]
    if len(layers) != n_layers or not {GLOBAL, LOCAL}.issuperset(layers):
        raise ValueError(
            f"config: expected attention_types of {n_layers} layers, {GLOBAL} or "
            f"{LOCAL}, got {quoted(layers, 200)}"
        )
    return list(layers)


def _window(values: Values) -> list[Window | None]:
    local = (values["window_size"] - 1, 0)
    return [local if name == LOCAL else None for name in _layers(values)]


def _saved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with kinds and how often they come."""
    rest = {name: x for name, x in config.items() if name != "attention_layers"}
    return rest | {"attention_types": [[_layers(config), 1]]}


GPT_NEO = Declaration(
    model_type="gpt_neo",
    title="GPT-Neo, TinyStories",
    model="decoder",
    classes=("GPTNeoModel", "GPTNeoForCausalLM"),
    checkpoint="gpt_neo",
    names=NAMES,
    read={
        "num_layers": Field("layers"),
        "hidden_size": Field("size"),
        "num_heads": Field("size"),
        "vocab_size": Field("size"),
        "max_position_embeddings": Field("size", 2048),
        "intermediate_size": Field("size", None),
        "attention_layers": Field("names", None),
        "window_size": Field("size", 256),
        "tie_word_embeddings": Field("flag", True),
        "activation_function": Field("name", "gelu_new"),
        "layer_norm_epsilon": Field("number", 1e-5),
        "eos_token_id": Field("tokens", 50256, null=True),
    },
    neutral=NEUTRAL | {"attention_types": (), "is_causal": (True,)},
    harmless=gpt2.HEAD_HARMLESS
    | {
        "dropout, for training": (
            *("classifier_dropout", "embed_dropout", "resid_dropout"),
        )
    },
    copied={
        "num_layers": "num_layers",
        "embed_dim": "hidden_size",
        "num_heads": "num_heads",
        "vocab_size": "vocab_size",
        "max_length": "max_position_embeddings",
        "tied": "tie_word_embeddings",
        "eps": "layer_norm_epsilon",
    },
    fixed={"causal": True, "qkv_bias": False, "scale": 1.0},
    computed={
        "hidden_dim": lambda values: (
            values["intermediate_size"] or 4 * values["hidden_size"]
        ),
        "activation": rules.activation("activation_function"),
        "stop": rules.stop,
        "window": _window,
    },
    modern=_modern,
    saved=_saved,
)
