"""Configurations of Hugging Face models, as arguments of ours.

`_hf_fields` says which of their fields are read here. All others are refused, but for
those that do not change what is computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attnpy._quoting import joined, named, quoted
from attnpy.blocks.feed_forward import GATED
from attnpy.models import _hf_fields
from attnpy.positions import Rotary

if TYPE_CHECKING:
    from attnpy._typing import Activation, Window

    Config = Mapping[str, Any]

# More of anything is a mistake in the file, which would take long to be noticed.
MOST_LAYERS = 10_000
LARGEST_SIZE = 2**31 - 1

ORIGINAL = "original_max_position_embeddings"
FULL, SLIDING = "full_attention", "sliding_attention"
# The kinds of models that BertEncoder is, and what MPNet's class has for every file.
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "mpnet")
MPNET_PADDING, MPNET_BUCKETS = 1, 32
GEMMA3_BASES = {FULL: 1_000_000.0, SLIDING: 10_000.0}

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


def bert(config: Config) -> dict[str, Any]:
    """Return the arguments of `BertEncoder`."""
    kind = _mapping(config).get("model_type")
    if kind is None:
        kind = "bert"
    if not isinstance(kind, str) or kind not in ENCODERS:
        raise ValueError(
            f"config: expected model_type = {_either(ENCODERS)}, got {quoted(kind)}"
        )
    values = _values(config, _hf_fields.FAMILIES[kind])
    if kind == "distilbert":
        return _distilbert(values)
    return {
        "num_layers": values["num_hidden_layers"],
        "embed_dim": values["hidden_size"],
        "num_heads": values["num_attention_heads"],
        "hidden_dim": values["intermediate_size"],
        "vocab_size": values["vocab_size"],
        "max_length": values["max_position_embeddings"],
        "activation": _activation(values["hidden_act"]),
        "eps": values["layer_norm_eps"],
        **_kin(values, kind),
    }


def _kin(values: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return how positions and types are, in which BERT's kin differ from it."""
    if kind == "mpnet":
        padding_id, buckets = MPNET_PADDING, MPNET_BUCKETS
        return {"num_types": 0, "padding_id": padding_id, "num_buckets": buckets}
    kin = {"num_types": values["type_vocab_size"]}
    return kin if kind == "bert" else {**kin, "padding_id": values["pad_token_id"]}


def _distilbert(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_layers": values["n_layers"],
        "embed_dim": values["dim"],
        "num_heads": values["n_heads"],
        "hidden_dim": values["hidden_dim"],
        "vocab_size": values["vocab_size"],
        "max_length": values["max_position_embeddings"],
        "num_types": 0,
        "activation": _activation(values["activation"]),
        "eps": 1e-12,  # as its class has it, whatever a file says
    }


def _either(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def num_labels(config: Config) -> int:
    """Return how many scores a classifier gives."""
    names, number = (_mapping(config).get(key) for key in ("id2label", "num_labels"))
    if names is not None:
        if not isinstance(names, Mapping) or not names:
            raise ValueError(
                f"config: expected id2label to be a mapping, got {quoted(names)}"
            )
        if number not in (None, len(names)):
            raise ValueError(
                f"config: expected num_labels = {len(names)} as id2label has, got "
                f"{quoted(number)}"
            )
        return len(names)
    fits, words = KINDS["size"]
    if number is not None and not fits(number):
        raise ValueError(
            f"config: expected num_labels to be {words}, got {quoted(number)}"
        )
    return 2 if number is None else int(number)


def decoder(config: Config) -> dict[str, Any]:
    """Return the arguments of `CausalDecoder`."""
    kind = _mapping(config).get("model_type")
    if kind == "gpt2":
        return _gpt2(_values(config, _hf_fields.GPT2))
    decoders = [name for name in _hf_fields.FAMILIES if name not in ENCODERS]
    if isinstance(kind, str) and kind in decoders:
        values = _values(config, _hf_fields.FAMILIES[kind])
        return (_gemma if kind.startswith("gemma") else _llama)(values, kind)
    raise ValueError(
        f"config: expected model_type = {_either(decoders)}, got {quoted(kind)}"
    )


def stop(eos: int | list[int] | None, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that end a text, of those for which there are scores."""
    tokens = [] if eos is None else [eos] if isinstance(eos, (int, np.integer)) else eos
    return tuple(int(token) for token in tokens if 0 <= token < vocab_size)


def generation(config: Config, path: str, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that end a text, of a generation_config.json."""
    eos = config.get("eos_token_id")
    fits, words = KINDS["tokens"]
    if eos is not None and not fits(eos):
        raise ValueError(
            f"{path}: expected eos_token_id to be {words}, got {quoted(eos)}"
        )
    return stop(eos, vocab_size)


def _gpt2(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_layers": values["n_layer"],
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
        "stop": stop(values["eos_token_id"], values["vocab_size"]),
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
    head_dim, window = _head_dim(values), _window(values, kind)
    if window is not None and not values["is_causal"]:
        raise ValueError(
            "config: expected is_causal = true with a sliding_window, whose other side "
            "has no settled meaning, got false"
        )
    bias = values.get("attention_bias", False)
    return {
        **_sizes(values, head_dim),
        "rotary": _rotary(values, head_dim, kind),
        "window": window,
        "causal": values["is_causal"],
        "qkv_bias": bias or kind == "qwen2",
        "out_bias": bias,
        "feed_forward_bias": values.get("mlp_bias", False),
        "qk_norm": kind == "qwen3",
        "activation": _gated(values, "hidden_act"),
    }


def _gemma(values: dict[str, Any], kind: str) -> dict[str, Any]:
    head_dim, is_third = _head_dim(values), kind == "gemma3_text"
    bias = values["attention_bias"]
    both_ways = values.get("use_bidirectional_attention", False)
    return {
        **_sizes(values, head_dim),
        "rotary": (_gemma3_rotary if is_third else _rotary)(values, head_dim, kind),
        "window": _window(values, kind),
        "causal": not both_ways,
        "scale": values["query_pre_attn_scalar"] ** -0.5,
        "softcap": values.get("attn_logit_softcapping"),
        "logit_softcap": values["final_logit_softcapping"],
        "embedding_scale": values["hidden_size"] ** 0.5,
        "qkv_bias": bias,
        "out_bias": bias,
        "qk_norm": is_third,
        "norm_after": True,
        "activation": _gated(values, "hidden_activation"),
    }


def _sizes(values: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Return what Llama's and Gemma's models have in common."""
    return {
        "num_layers": values["num_hidden_layers"],
        "embed_dim": values["hidden_size"],
        "num_heads": values["num_attention_heads"],
        "hidden_dim": values["intermediate_size"],
        "vocab_size": values["vocab_size"],
        "head_dim": head_dim,
        "num_kv_heads": values["num_key_value_heads"],
        "tied": values["tie_word_embeddings"],
        "norm": "rms",
        "eps": values["rms_norm_eps"],
        "bias": False,
        "stop": stop(values["eos_token_id"], values["vocab_size"]),
    }


def _gated(values: dict[str, Any], field: str) -> Activation:
    """Return the activation of a network with a gate."""
    own = _activation(values[field])
    names = {inner: outer for outer, inner in GATED.items()}
    if own not in names:
        known = [name for name, ours in ACTIVATIONS.items() if ours in names]
        raise ValueError(
            f"config: expected {field} to be one of {', '.join(known)}, which there "
            f"are with a gate, got {values[field]!r}"
        )
    return cast("Activation", names[own])


def _head_dim(values: dict[str, Any]) -> int:
    n_heads, size = values["num_attention_heads"], values["head_dim"]
    if size is None and values["hidden_size"] % n_heads:
        raise ValueError(
            f"config: expected hidden_size to be a multiple of num_attention_heads = "
            f"{n_heads}, or head_dim to be given, got {values['hidden_size']}"
        )
    return int(size or values["hidden_size"] // n_heads)


def _rotary(values: dict[str, Any], head_dim: int, kind: str) -> Rotary:
    """Return the positions.

    Older configurations have the base beside the scaling, under another name, which
    wins where both are there, as it does for their classes.
    """
    given, older = values["rope_parameters"] or {}, values["rope_scaling"] or {}
    if older and older.get("rope_theta", values["rope_theta"]) is None:
        _check_lost_base(given.get("rope_theta"))
    base = values["rope_theta"]
    return _turns(
        values, head_dim, older or given, 10000.0 if base is None else base, kind
    )


def _gemma3_rotary(
    values: dict[str, Any], head_dim: int, kind: str
) -> Rotary | list[Rotary]:
    """Return the positions of each layer: those with a window have their own."""
    given = values["rope_parameters"] or {}
    parts = {name: given.get(name) or {} for name in (FULL, SLIDING)}
    if not {FULL, SLIDING}.issuperset(given) or not all(
        isinstance(part, Mapping) for part in parts.values()
    ):
        raise ValueError(
            f"config: expected rope_parameters of {FULL} and {SLIDING}, each a "
            f"mapping, got {quoted(given, 200)}"
        )
    parts[FULL] = {**parts[FULL], **(values["rope_scaling"] or {})}
    bases = {FULL: values["rope_theta"], SLIDING: values["rope_local_base_freq"]}
    turns = {
        name: _turns(
            values,
            head_dim,
            part,
            GEMMA3_BASES[name] if bases[name] is None else bases[name],
            kind,
        )
        for name, part in parts.items()
    }
    return [turns[name] for name in _layer_types(values, kind)]


def _turns(
    values: dict[str, Any],
    head_dim: int,
    given: Config,
    base: float,
    kind: str,
) -> Rotary:
    """Return positions of a scaling and of what stands beside it."""
    scaling = {key: value for key, value in given.items() if value is not None}
    base = scaling.pop("rope_theta", base)
    share = scaling.pop("partial_rotary_factor", values.get("partial_rotary_factor"))
    rotary_dim = None
    if share is not None:
        rotary_dim = _rotary_dim(head_dim, share, kind)
    name = scaling.get("rope_type", scaling.get("type"))
    if kind == "phi3" and name in ("su", "yarn"):  # what it was called
        scaling.pop("type", None)
        scaling["rope_type"] = name = "longrope"
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
    return Rotary(head_dim, base=base, rotary_dim=rotary_dim, scaling=scaling)


def _rotary_dim(head_dim: int, share: object, kind: str) -> int:
    """Return how many numbers of a head are turned."""
    if not _is_number(share) or share > 1:  # type: ignore[operator]
        raise ValueError(
            "config: expected partial_rotary_factor to be a number above 0, at most 1, "
            f"got {quoted(share)}"
        )
    if kind != "phi3" and share != 1:
        raise ValueError(
            "config: expected partial_rotary_factor = 1.0, as the class of "
            f"{kind} turns whole heads, got {quoted(share)}"
        )
    return int(head_dim * share)  # type: ignore[operator]


def _check_lost_base(base: object) -> None:
    """Refuse a base that their classes lose: of rope_parameters under rope_scaling."""
    if base not in (None, 10000.0):
        raise ValueError(
            "config: expected rope_theta in rope_scaling, which takes the place of "
            f"rope_parameters, or beside it, got {quoted(base)} in rope_parameters"
        )


def _set_original_length(scaling: dict[str, Any], values: dict[str, Any]) -> None:
    """Say for which length a model was trained, where the scaling does not."""
    key, beside = ORIGINAL, values[ORIGINAL]
    if beside is not None and scaling.get(key, beside) != beside:
        raise ValueError(
            f"config: expected one {key}, got {beside}, and {quoted(scaling[key])} in "
            "the scaling of positions"
        )
    length = values["max_position_embeddings"] if beside is None else beside
    if length is not None:
        scaling.setdefault(key, length)


def _set_growth(scaling: dict[str, Any], values: dict[str, Any]) -> None:
    """Say how many times longer sequences became, where the scaling does not."""
    longest, original = values["max_position_embeddings"], scaling.get(ORIGINAL)
    if longest is not None and _is_number(original):
        scaling.setdefault("factor", longest / original)


def _window(values: dict[str, Any], kind: str) -> Window | list[Window | None] | None:
    """Return the window of all layers or of each, None where they see everything."""
    size = values["sliding_window"]
    window = None if size is None else (size - 1, 0)
    if size is not None and values.get("use_bidirectional_attention"):
        window = (size // 2, size // 2)  # as their class does
    windows: list[Window | None] = [
        window if name == SLIDING else None for name in _layer_types(values, kind)
    ]
    return windows if len(set(windows)) > 1 else windows[0]


def _layer_types(values: dict[str, Any], kind: str) -> list[str]:
    """Return the kind of attention of each layer: "full_..." or "sliding_attention"."""
    num_layers, kinds = values["num_hidden_layers"], values.get("layer_types")
    has_window = values["sliding_window"] is not None
    windows = values.get("use_sliding_window", True) and has_window
    if kinds is None:
        return _usual_layer_types(values, kind, windows)
    if len(kinds) != num_layers or not {FULL, SLIDING}.issuperset(kinds):
        raise ValueError(
            f"config: expected layer_types of {num_layers} names, {FULL} or {SLIDING}, "
            f"got {quoted(kinds, 200)}"
        )
    if SLIDING in kinds and not windows:
        used = (
            "use_sliding_window = true and " if "use_sliding_window" in values else ""
        )
        raise ValueError(
            f"config: expected {used}a sliding_window where layer_types has {SLIDING}"
        )
    return list(kinds)


def _usual_layer_types(values: dict[str, Any], kind: str, windows: bool) -> list[str]:
    """Return those of a configuration without layer_types."""
    num_layers = values["num_hidden_layers"]
    if kind == "llama" and windows:
        raise ValueError(
            "config: expected layer_types beside a sliding_window, as layers of llama "
            f"have none by themselves, got {values['sliding_window']} alone"
        )
    if kind.startswith("gemma"):
        every = values.get("sliding_window_pattern", 2)
        names = [FULL if (i + 1) % every == 0 else SLIDING for i in range(num_layers)]
        if SLIDING in names and not windows:
            raise ValueError("config: expected a sliding_window, got none")
        return names
    first = values.get("max_window_layers", 0) if windows else num_layers
    return [SLIDING if i >= first else FULL for i in range(num_layers)]


def _activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise ValueError(
            f"config: expected an activation of {', '.join(ACTIVATIONS)}, "
            f"got {quoted(name)}"
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
            faults.append(f"expected {name} to be {words}, got {quoted(value)}")
    ignored = {name for names in family.harmless.values() for name in names}
    for name, value in config.items():
        if value is None or name in family.read or name in ignored:
            continue
        neutral = family.neutral.get(name, ())
        if value not in neutral:
            wanted = f"{name} = {neutral[0]!r}" if neutral else f"no {named(name)}"
            faults.append(f"expected {wanted}, got {quoted(value)}")
    if missing:
        faults.insert(0, f"missing {', '.join(missing)}")
    if faults:
        raise ValueError(f"config: {joined(faults)}")
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


def _is_tokens(value: object) -> bool:
    tokens = value if isinstance(value, (list, tuple)) else [value]
    return all(_is_integer(token, -(2**63), 2**63 - 1) for token in tokens)


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
    "tokens": (_is_tokens, "an integer, or a list of integers"),
    "mapping": (lambda value: isinstance(value, Mapping), "a mapping"),
}
