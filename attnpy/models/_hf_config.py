"""Configurations of Hugging Face models, as arguments of ours.

`_hf_fields` says which of their fields are read here. All others are refused, but for
those that do not change what is computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy.models import _hf_fields
from attnpy.positions import Rotary

if TYPE_CHECKING:
    from attnpy._typing import Activation, Window

    Config = Mapping[str, Any]

# More of anything is a mistake in the file, which would take long to be noticed.
MOST_LAYERS = 10_000
LARGEST_SIZE = 2**31 - 1

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
}


def bert(config: Config) -> dict[str, Any]:
    """Return the arguments of `BertEncoder`."""
    values = _values(config, _hf_fields.BERT)
    return {
        "n_layers": values["num_hidden_layers"],
        "embed_dim": values["hidden_size"],
        "num_heads": values["num_attention_heads"],
        "hidden_dim": values["intermediate_size"],
        "vocab_size": values["vocab_size"],
        "max_length": values["max_position_embeddings"],
        "n_types": values["type_vocab_size"],
        "activation": _activation(values["hidden_act"]),
        "eps": values["layer_norm_eps"],
    }


def decoder(config: Config) -> dict[str, Any]:
    """Return the arguments of `CausalDecoder`."""
    kind = _mapping(config).get("model_type")
    if kind == "gpt2":
        return _gpt2(_values(config, _hf_fields.GPT2))
    if kind in ("llama", "mistral", "qwen2", "qwen3"):
        return _llama(_values(config, _hf_fields.FAMILIES[kind]), kind)
    raise ValueError(
        "config: expected model_type = gpt2, llama, mistral, qwen2 or qwen3, "
        f"got {kind!r:.60}"
    )


def _gpt2(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "n_layers": values["n_layer"],
        "embed_dim": values["n_embd"],
        "num_heads": values["n_head"],
        "hidden_dim": values["n_inner"] or 4 * values["n_embd"],
        "vocab_size": values["vocab_size"],
        "max_length": values["n_positions"],
        "scale": _gpt2_scale(values),
        "causal": values["is_causal"],
        "tied": values["tie_word_embeddings"],
        "activation": _activation(values["activation_function"]),
        "eps": values["layer_norm_epsilon"],
    }


def _gpt2_scale(values: dict[str, Any]) -> float | list[float] | None:
    """Return the scale of scores, that of each layer, or None for the usual one."""
    by_layer = values["scale_attn_by_inverse_layer_idx"]
    if values["scale_attn_weights"] and not by_layer:
        return None
    scale = 1.0
    if values["scale_attn_weights"]:
        scale = (values["n_embd"] // values["n_head"]) ** -0.5
    if not by_layer:
        return scale
    return [scale / (i + 1) for i in range(values["n_layer"])]


def _llama(values: dict[str, Any], kind: str) -> dict[str, Any]:
    if _activation(values["hidden_act"]) != "silu":
        raise ValueError(
            f"config: expected hidden_act = 'silu', got {values['hidden_act']!r}"
        )
    head_dim, window = _head_dim(values), _window(values, kind)
    if window is not None and not values["is_causal"]:
        raise ValueError(
            "config: expected is_causal = true with a sliding_window, whose other side "
            "has no settled meaning, got false"
        )
    bias = values.get("attention_bias", False)
    return {
        "n_layers": values["num_hidden_layers"],
        "embed_dim": values["hidden_size"],
        "num_heads": values["num_attention_heads"],
        "hidden_dim": values["intermediate_size"],
        "vocab_size": values["vocab_size"],
        "head_dim": head_dim,
        "num_kv_heads": values["num_key_value_heads"],
        "rotary": _rotary(values, head_dim),
        "window": window,
        "causal": values["is_causal"],
        "tied": values["tie_word_embeddings"],
        "qkv_bias": bias or kind == "qwen2",
        "out_bias": bias,
        "feed_forward_bias": values.get("mlp_bias", False),
        "qk_norm": kind == "qwen3",
        "norm": "rms",
        "eps": values["rms_norm_eps"],
        "activation": "swiglu",
        "bias": False,
    }


def _head_dim(values: dict[str, Any]) -> int:
    n_heads, size = values["num_attention_heads"], values["head_dim"]
    if size is None and values["hidden_size"] % n_heads:
        raise ValueError(
            f"config: expected hidden_size to be a multiple of num_attention_heads = "
            f"{n_heads}, or head_dim to be given, got {values['hidden_size']}"
        )
    return int(size or values["hidden_size"] // n_heads)


def _rotary(values: dict[str, Any], head_dim: int) -> Rotary:
    """Return the positions.

    Older configurations have the base beside the scaling, under another name, which
    wins where both are there, as it does for their classes.
    """
    given, older = values["rope_parameters"] or {}, values["rope_scaling"] or {}
    if older and older.get("rope_theta", values["rope_theta"]) is None:
        _check_lost_base(given.get("rope_theta"))
    scaling = {
        key: value for key, value in (older or given).items() if value is not None
    }
    base = scaling.pop("rope_theta", values["rope_theta"])
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind is None:
        scaling["rope_type"] = "default"
    elif kind in ("yarn", "llama3"):
        _set_original_length(scaling, values)
    return Rotary(
        head_dim, base=10000.0 if base is None else base, scaling=scaling or None
    )


def _check_lost_base(base: object) -> None:
    """Refuse a base that their classes lose: of rope_parameters under rope_scaling."""
    if base not in (None, 10000.0):
        raise ValueError(
            "config: expected rope_theta in rope_scaling, which takes the place of "
            f"rope_parameters, or beside it, got {base!r:.60} in rope_parameters"
        )


def _set_original_length(scaling: dict[str, Any], values: dict[str, Any]) -> None:
    """Say for which length a model was trained, where the scaling does not."""
    key = "original_max_position_embeddings"
    beside = values[key]
    if beside is not None and scaling.get(key, beside) != beside:
        raise ValueError(
            f"config: expected one {key}, got {beside}, and {scaling[key]!r:.60} in "
            "the scaling of positions"
        )
    length = values["max_position_embeddings"] if beside is None else beside
    if length is not None:
        scaling.setdefault(key, length)


def _window(values: dict[str, Any], kind: str) -> Window | list[Window | None] | None:
    """Return the window of all layers or of each, None where they see everything."""
    size = values.get("sliding_window")
    window = None if size is None else (size - 1, 0)
    if kind in ("llama", "mistral"):
        return window
    windows: list[Window | None] = [
        window if name == "sliding_attention" else None for name in _layer_types(values)
    ]
    return windows if len(set(windows)) > 1 else windows[0]


def _layer_types(values: dict[str, Any]) -> list[str]:
    """Return the kind of attention of each layer: "full_..." or "sliding_attention"."""
    full, sliding = "full_attention", "sliding_attention"
    n_layers, kinds = values["num_hidden_layers"], values["layer_types"]
    windows = values["use_sliding_window"] and values["sliding_window"] is not None
    if kinds is None:
        first = values["max_window_layers"] if windows else n_layers
        return [sliding if i >= first else full for i in range(n_layers)]
    if len(kinds) != n_layers or not {full, sliding}.issuperset(kinds):
        raise ValueError(
            f"config: expected layer_types of {n_layers} names, {full} or {sliding}, "
            f"got {kinds!r:.200}"
        )
    if sliding in kinds and not windows:
        raise ValueError(
            "config: expected use_sliding_window = true and a sliding_window where "
            f"layer_types has {sliding}"
        )
    return list(kinds)


def _activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise ValueError(
            f"config: expected an activation of {', '.join(ACTIVATIONS)}, "
            f"got {name!r:.60}"
        )
    return ACTIVATIONS[name]


def _mapping(config: object) -> Config:
    if not isinstance(config, Mapping):
        raise TypeError(f"config: expected a mapping, got {type(config).__name__}")
    return config


def _values(config: Config, family: _hf_fields.Family) -> dict[str, Any]:
    """Return the values of all fields that are read, or all that is wrong in one error.

    Fields that are null or not there have their defaults.
    """
    values, missing, faults = {}, [], []
    for name, field in family.read.items():
        value = _mapping(config).get(name)
        if value is None:
            values[name] = None if field.null and name in config else field.default
            if values[name] is _hf_fields.REQUIRED:
                missing.append(name)
            continue
        fits, words = KINDS[field.kind]
        values[name] = value
        if not fits(value):
            faults.append(f"expected {name} to be {words}, got {value!r:.60}")
    ignored = {name for names in family.harmless.values() for name in names}
    for name, value in config.items():
        if value is None or name in family.read or name in ignored:
            continue
        neutral = family.neutral.get(name, ())
        if value not in neutral:
            wanted = f"{name} = {neutral[0]!r}" if neutral else f"no {name}"
            faults.append(f"expected {wanted}, got {value!r:.60}")
    if missing:
        faults.insert(0, f"missing {', '.join(missing)}")
    if faults:
        raise ValueError(f"config: {'; '.join(faults)}")
    return values


def _is_integer(value: object, low: int, high: int) -> bool:
    """Tell whether a value is an integer of this range; booleans are none."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        return False
    return bool(low <= value <= high)


def _is_number(value: object) -> bool:
    kinds = int, float, np.integer, np.floating
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    return bool(0 < value <= sys.float_info.max)


def _is_names(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(x, str) for x in value)


# What values have to be: a test, and how an error says it.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "layers": (
        lambda value: _is_integer(value, 1, MOST_LAYERS),
        f"an integer from 1 to {MOST_LAYERS}",
    ),
    "size": (
        lambda value: _is_integer(value, 1, LARGEST_SIZE),
        f"an integer from 1 to {LARGEST_SIZE}",
    ),
    "count": (
        lambda value: _is_integer(value, 0, LARGEST_SIZE),
        f"an integer from 0 to {LARGEST_SIZE}",
    ),
    "number": (_is_number, "a finite number above 0"),
    "flag": (lambda value: isinstance(value, (bool, np.bool_)), "true or false"),
    "name": (lambda value: isinstance(value, str), "a name"),
    "names": (_is_names, "a list of names"),
    "mapping": (lambda value: isinstance(value, Mapping), "a mapping"),
}
