"""Rules that make arguments of a model of the values of a configuration's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attnpy._families.fields import is_number
from attnpy._quoting import quoted
from attnpy.blocks.feed_forward import GATED
from attnpy.positions import Rotary

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy._typing import Activation, Window

    Rule = Callable[[Values], Any]

ORIGINAL = "original_max_position_embeddings"
FULL, SLIDING = "full_attention", "sliding_attention"

# What configurations call the activations of `attnpy.blocks`. Where theirs is another
# formula of the same function, it differs in rounding.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def activation(field: str) -> Callable[[Values], Activation]:
    """Return the rule for an activation that this field names."""

    def rule(values: Values) -> Activation:
        name = values[field]
        if name not in ACTIVATIONS:
            raise ValueError(
                f"config: expected an activation of {', '.join(ACTIVATIONS)}, "
                f"got {quoted(name)}"
            )
        return ACTIVATIONS[name]

    return rule


def gated(field: str) -> Callable[[Values], Activation]:
    """Return the rule for the activation of a network with a gate."""
    plain = activation(field)

    def rule(values: Values) -> Activation:
        own = plain(values)
        names = {inner: outer for outer, inner in GATED.items()}
        if own not in names:
            known = [name for name, ours in ACTIVATIONS.items() if ours in names]
            raise ValueError(
                f"config: expected {field} to be one of {', '.join(known)}, the "
                f"activations with a gate, got {values[field]!r}"
            )
        return cast("Activation", names[own])

    return rule


def stop(values: Values) -> tuple[int, ...]:
    """Return the tokens that end a text."""
    return ends(values["eos_token_id"], values["vocab_size"])


def ends(eos: int | list[int] | None, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that end a text, of those for which there are scores."""
    tokens = [] if eos is None else [eos] if isinstance(eos, (int, np.integer)) else eos
    return tuple(int(token) for token in tokens if 0 <= token < vocab_size)


def check_same(values: Values, name: str, other: str) -> None:
    """Require another field to have the same value, where it has one."""
    if values[other] not in (None, values[name]):
        raise ValueError(
            f"config: expected {other} = {values[name]} as {name}, got {values[other]}"
        )


def head_dim(values: Values) -> int:
    """Return the size of a head."""
    n_heads, size = values["num_attention_heads"], values.get("head_dim")
    if size is None and values["hidden_size"] % n_heads:
        raise ValueError(
            f"config: expected hidden_size to be a multiple of num_attention_heads = "
            f"{n_heads}, or head_dim to be given, got {values['hidden_size']}"
        )
    return int(size or values["hidden_size"] // n_heads)


def rotary(
    values: Values, usual_base: float = 10000.0, *, interleaved: bool = False
) -> Rotary:
    """Return the positions.

    Older configurations have the base beside the scaling, under another name, which
    wins where both are there, as it does for their classes.
    """
    given, older = values["rope_parameters"] or {}, values["rope_scaling"] or {}
    if older and older.get("rope_theta", values["rope_theta"]) is None:
        _check_lost_base(given.get("rope_theta"), usual_base)
    base = values["rope_theta"]
    base = usual_base if base is None else base
    return turns(values, older or given, base, interleaved=interleaved)


def turns_by_kind(
    values: Values, bases: Mapping[str, float], scaled: Mapping[str, str]
) -> dict[str, Rotary]:
    """Return the positions of layers that see everything, and of those with a window.

    `bases` are the usual ones of both kinds, and `scaled` the fields of older files
    with a scaling for some.
    """
    given = values["rope_parameters"] or {}
    parts = {name: given.get(name) or {} for name in bases}
    if not set(bases).issuperset(given) or not all(
        isinstance(part, Mapping) for part in parts.values()
    ):
        raise ValueError(
            f"config: expected rope_parameters of {FULL} and {SLIDING}, each a "
            f"mapping, got {quoted(given, 200)}"
        )
    for name, field in scaled.items():
        parts[name] = {**parts[name], **(values[field] or {})}
    return {name: turns(values, part, bases[name]) for name, part in parts.items()}


def without_code(config: Mapping[str, Any], *marks: str) -> dict[str, Any]:
    """Return a configuration without auto_map, if all classes in it have these marks.

    They are those of the code that a family is written after.
    """
    places = config.get("auto_map")
    names = list(places.values()) if isinstance(places, Mapping) else [None]
    known = all(
        isinstance(name, str) and any(mark in name for mark in marks) for name in names
    )
    return {k: v for k, v in config.items() if k != "auto_map" or not known}


def one_of(values: Values, field: str, *names: str) -> str:
    """Return a name that has to be one of these."""
    name: str = values[field]
    if name not in names:
        raise ValueError(
            f"config: expected {field} to be {' or '.join(names)}, got {quoted(name)}"
        )
    return name


def turns(
    values: Values,
    given: Mapping[str, Any],
    base: float,
    *,
    interleaved: bool = False,
) -> Rotary:
    """Return positions of a scaling and of what stands beside it."""
    size, rotary_dim = head_dim(values), None
    scaling = {key: value for key, value in given.items() if value is not None}
    base = scaling.pop("rope_theta", base)
    share = scaling.pop("partial_rotary_factor", values.get("partial_rotary_factor"))
    if share is not None:
        rotary_dim = _rotary_dim(size, share, values)
    name = scaling.get("rope_type", scaling.get("type"))
    if name is None:
        scaling["rope_type"] = "default"
    elif name in ("yarn", "llama3", "longrope"):
        _set_original_length(scaling, values)
    elif name == "dynamic":
        _set_original_length(
            scaling, {**values, ORIGINAL: values["max_position_embeddings"]}
        )
    if name == "longrope":
        _set_growth(scaling, values)
    return Rotary(
        size,
        base=base,
        rotary_dim=rotary_dim,
        interleaved=interleaved,
        scaling=scaling,
    )


def _rotary_dim(head_dim: int, share: object, values: Values) -> int:
    """Return how many numbers of a head are turned."""
    if not is_number(share) or share > 1:  # type: ignore[operator]
        raise ValueError(
            "config: expected partial_rotary_factor to be a number above 0, at most 1, "
            f"got {quoted(share)}"
        )
    if "partial_rotary_factor" not in values and share != 1:
        raise ValueError(
            "config: expected partial_rotary_factor = 1.0, as the class of "
            f"{values['model_type']} turns whole heads, got {quoted(share)}"
        )
    return int(head_dim * share)  # type: ignore[operator]


def _check_lost_base(base: object, usual_base: float) -> None:
    """Refuse a base that their classes lose: of rope_parameters under rope_scaling."""
    if base not in (None, usual_base):
        raise ValueError(
            "config: expected rope_theta in rope_scaling, which takes the place of "
            f"rope_parameters, or beside it, got {quoted(base)} in rope_parameters"
        )


def _set_original_length(scaling: dict[str, Any], values: Values) -> None:
    """Say for which length a model was trained, where the scaling does not."""
    key, beside = ORIGINAL, values.get(ORIGINAL)
    if beside is not None and scaling.get(key, beside) != beside:
        raise ValueError(
            f"config: expected one {key}, got {beside}, and {quoted(scaling[key])} in "
            "the scaling of positions"
        )
    length = values["max_position_embeddings"] if beside is None else beside
    if length is not None:
        scaling.setdefault(key, length)


def _set_growth(scaling: dict[str, Any], values: Values) -> None:
    """Say how many times longer sequences became, where the scaling does not."""
    longest, original = values["max_position_embeddings"], scaling.get(ORIGINAL)
    if longest is not None and is_number(original):
        scaling.setdefault("factor", longest / original)


def windows(usual: Callable[[Values], list[str]]) -> Rule:
    """Return the rule for windows; `usual` are layers' kinds without layer_types.

    It gives one window for all layers, or that of each, None where they see everything.
    """

    def rule(values: Values) -> Window | list[Window | None] | None:
        size = values["sliding_window"]
        window = None if size is None else (size - 1, 0)
        if size is not None and values.get("use_bidirectional_attention"):
            window = (size // 2, size // 2)  # as their class does
        found: list[Window | None] = [
            window if name == SLIDING else None for name in layer_types(values, usual)
        ]
        if any(found) and not values.get("is_causal", True):
            raise ValueError(
                "config: expected is_causal = true with a sliding_window, whose other "
                "side has no settled meaning, got false"
            )
        return found if len(set(found)) > 1 else found[0]

    return rule


def layer_types(values: Values, usual: Callable[[Values], list[str]]) -> list[str]:
    """Return the kind of attention of each layer: "full_..." or "sliding_attention"."""
    num_layers, kinds = values["num_hidden_layers"], values.get("layer_types")
    if kinds is None:
        return usual(values)
    if len(kinds) != num_layers or not {FULL, SLIDING}.issuperset(kinds):
        raise ValueError(
            f"config: expected layer_types of {num_layers} names, {FULL} or {SLIDING}, "
            f"got {quoted(kinds, 200)}"
        )
    if SLIDING in kinds and not _has_windows(values):
        used = (
            "use_sliding_window = true and " if "use_sliding_window" in values else ""
        )
        raise ValueError(
            f"config: expected {used}a sliding_window where layer_types has {SLIDING}"
        )
    return list(kinds)


def alternating(usual: int) -> Callable[[Values], list[str]]:
    """Return the rule for models in which every n-th layer sees everything."""

    def rule(values: Values) -> list[str]:
        every = values.get("sliding_window_pattern", usual)
        n_layers = values["num_hidden_layers"]
        names = [FULL if (i + 1) % every == 0 else SLIDING for i in range(n_layers)]
        if SLIDING in names and values["sliding_window"] is None:
            raise ValueError("config: expected a sliding_window, got none")
        return names

    return rule


def last_layers(values: Values) -> list[str]:
    """Return windows in all layers, or in those from max_window_layers on."""
    n_layers = values["num_hidden_layers"]
    first = values.get("max_window_layers", 0) if _has_windows(values) else n_layers
    return [SLIDING if i >= first else FULL for i in range(n_layers)]


def only_listed(values: Values) -> list[str]:
    """Return no windows, and refuse one for layers that have none by themselves."""
    if _has_windows(values):
        raise ValueError(
            "config: expected layer_types beside a sliding_window, as layers of "
            f"{values['model_type']} have none by themselves, got "
            f"{values['sliding_window']} alone"
        )
    return [FULL] * values["num_hidden_layers"]


def _has_windows(values: Values) -> bool:
    used = values.get("use_sliding_window", True)
    return bool(used and values["sliding_window"])
