"""Configurations of Hugging Face models, as arguments of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnpy.positions import Rotary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attnpy._typing import Activation, Window

    Config = Mapping[str, Any]

# What configurations call the activations of `attnpy.blocks`.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def bert(config: Config) -> dict[str, Any]:
    """Return the arguments of `BertEncoder`."""
    _check(config, model_type="bert", position_embedding_type="absolute")
    _check(config, is_decoder=False, add_cross_attention=False)
    return _required(
        config,
        n_layers="num_hidden_layers",
        embed_dim="hidden_size",
        num_heads="num_attention_heads",
        hidden_dim="intermediate_size",
        vocab_size="vocab_size",
    ) | {
        "max_length": config.get("max_position_embeddings", 512),
        "n_types": config.get("type_vocab_size", 2),
        "activation": _activation(config.get("hidden_act", "gelu")),
        "eps": config.get("layer_norm_eps", 1e-12),
    }


def decoder(config: Config) -> dict[str, Any]:
    """Return the arguments of `CausalDecoder`."""
    kind = config.get("model_type")
    if kind == "gpt2":
        return _gpt2(config)
    if kind in ("llama", "mistral", "qwen2", "qwen3"):
        return _llama(config)
    raise ValueError(
        "config['model_type']: expected gpt2, llama, mistral, qwen2 or qwen3, "
        f"got {kind!r}"
    )


def _gpt2(config: Config) -> dict[str, Any]:
    _check(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    _check(config, add_cross_attention=False)
    sizes = _required(
        config,
        n_layers="n_layer",
        embed_dim="n_embd",
        num_heads="n_head",
        vocab_size="vocab_size",
        max_length="n_positions",
    )
    return sizes | {
        "hidden_dim": config.get("n_inner") or 4 * sizes["embed_dim"],
        "tied": config.get("tie_word_embeddings", True),
        "activation": _activation(config.get("activation_function", "gelu_new")),
        "eps": config.get("layer_norm_epsilon", 1e-5),
    }


def _llama(config: Config) -> dict[str, Any]:
    _check(config, hidden_act="silu", attention_bias=False, mlp_bias=False)
    sizes = _required(
        config,
        n_layers="num_hidden_layers",
        embed_dim="hidden_size",
        num_heads="num_attention_heads",
        hidden_dim="intermediate_size",
        vocab_size="vocab_size",
    )
    head_dim = config.get("head_dim") or sizes["embed_dim"] // sizes["num_heads"]
    return sizes | {
        "head_dim": head_dim,
        "num_kv_heads": config.get("num_key_value_heads"),
        "rotary": _rotary(config, head_dim),
        "window": _window(config, sizes["n_layers"]),
        "tied": config.get("tie_word_embeddings", False),
        "qkv_bias": config["model_type"] == "qwen2",
        "qk_norm": config["model_type"] == "qwen3",
        "norm": "rms",
        "eps": config.get("rms_norm_eps", 1e-6),
        "activation": "swiglu",
        "bias": False,
    }


def _rotary(config: Config, head_dim: int) -> Rotary:
    """Return the positions; older configurations have the base beside the scaling."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = scaling.pop("rope_theta", config.get("rope_theta", 10000.0))
    if scaling.get("rope_type", scaling.get("type")) == "yarn":
        longest = config.get("max_position_embeddings")
        scaling.setdefault("original_max_position_embeddings", longest)
    return Rotary(head_dim, base=base, scaling=scaling or None)


def _window(config: Config, n_layers: int) -> Window | None:
    """Return the window of all layers, None where they see everything."""
    kinds = ["full_attention"]
    if config["model_type"] == "mistral":
        kinds = ["sliding_attention"]
    elif config["model_type"] != "llama" and config.get("use_sliding_window"):
        kinds = config.get("layer_types") or [
            "sliding_attention" if i >= config["max_window_layers"] else kinds[0]
            for i in range(n_layers)
        ]
    if len(set(kinds)) > 1:
        raise ValueError(
            "config['sliding_window']: expected the same window for all layers, "
            f"got {', '.join(kinds)}"
        )
    size = config.get("sliding_window")
    if size is None or kinds[0] == "full_attention":
        return None
    return size - 1, 0


def _required(config: Config, **keys: str) -> dict[str, Any]:
    """Return the values of keys that must be there, under our names."""
    if missing := [key for key in keys.values() if key not in config]:
        raise ValueError(
            f"config: expected {', '.join(keys.values())}, missing {', '.join(missing)}"
        )
    return {ours: config[key] for ours, key in keys.items()}


def _check(config: Config, **expected: object) -> None:
    """Raise an error for keys that ask for another arithmetic."""
    for key, value in expected.items():
        if config.get(key, value) not in (value, None):
            raise ValueError(
                f"config[{key!r}]: expected {value!r}, got {config[key]!r}"
            )


def _activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise ValueError(
            f"config: expected an activation of {', '.join(ACTIVATIONS)}, got {name!r}"
        )
    return ACTIVATIONS[name]
