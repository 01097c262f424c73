"""EmbeddingGemma 2: a small configuration, weights, and the arithmetic in float64."""

import math

import numpy as np

from support.formulas import gelu_tanh, softmax

FULL, SLIDING = "full_attention", "sliding_attention"
CONFIG = {
    "model_type": "embedding_gemma2_text",
    "eos_token_id": None,
    "num_hidden_layers": 4,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "per_layer_config": {
        "1": {"head_dim": 10, "num_key_value_heads": 1},
        "3": {"head_dim": 10, "num_key_value_heads": 1},
    },
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
    "sliding_window": 2,
    "intermediate_size": 20,
    "vocab_size": 30,
    "max_position_embeddings": 64,
    "rope_parameters": {
        FULL: {"rope_type": "default", "rope_theta": 500.0},
        SLIDING: {"rope_type": "default", "rope_theta": 50.0},
    },
    "rms_norm_eps": 1e-2,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 5,
    "embedding_dim": 7,
}


def sizes(config, i):
    """The size of a head of layer i, and how many heads keys have."""
    own = {**config, **config["per_layer_config"].get(str(i), {})}
    return own["head_dim"], own["num_key_value_heads"]


def tensors(config=CONFIG, seed=0):
    """Random float32 arrays by name."""
    rng = np.random.default_rng(seed)
    size, inner = config["hidden_size"], config["intermediate_size"]
    n_layers, n_heads = config["num_hidden_layers"], config["num_attention_heads"]
    own = config["hidden_size_per_layer_input"]
    shapes = {
        "embed_tokens.weight": (config["vocab_size"], size),
        "norm.weight": (size,),
        "ple.per_layer_model_projection.weight": (n_layers * own, size),
        "ple.per_layer_projection_norm.weight": (own,),
        "embedding_projection.weight": (config["embedding_dim"], size),
    }
    for i in range(n_layers):
        d, n_kv_heads = sizes(config, i)
        parts = {
            "self_attn.q_proj": (n_heads * d, size),
            "self_attn.k_proj": (n_kv_heads * d, size),
            "self_attn.v_proj": (n_kv_heads * d, size),
            "self_attn.o_proj": (size, n_heads * d),
            "self_attn.q_norm": (d,),
            "self_attn.k_norm": (d,),
            "mlp.gate_proj": (inner, size),
            "mlp.up_proj": (inner, size),
            "mlp.down_proj": (size, inner),
            "ple_block.per_layer_input_gate": (own, size),
            "ple_block.per_layer_projection": (size, own),
            "ple_block.post_per_layer_input_norm": (size,),
            "input_layernorm": (size,),
            "post_attention_layernorm": (size,),
            "pre_feedforward_layernorm": (size,),
            "post_feedforward_layernorm": (size,),
        }
        shapes |= {f"layers.{i}.{name}.weight": x for name, x in parts.items()}
        shapes[f"layers.{i}.layer_scalar"] = (1,)
        if config.get("attention_bias"):
            for letter in "qkvo":
                name = f"layers.{i}.self_attn.{letter}_proj"
                shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
    return {
        name: (rng.standard_normal(shape) * _spread(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def _spread(shape):
    return shape[-1] ** -0.5 if len(shape) == 2 else 1


def states(w, config, ids):
    """The vectors of the tokens of one text, (L, embedding_dim)."""
    w = {name: array.astype(np.float64) for name, array in w.items()}
    n_layers, size = config["num_hidden_layers"], config["hidden_size"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def norm(x, name=None):
        mean = np.square(x).mean(axis=-1, keepdims=True)
        x = x / np.sqrt(mean + config["rms_norm_eps"])
        return x if name is None else x * w[f"{name}.weight"]

    x = math.sqrt(size) * w["embed_tokens.weight"][ids]
    given = linear(x, "ple.per_layer_model_projection") / math.sqrt(size)
    given = norm(given.reshape(len(x), n_layers, -1), "ple.per_layer_projection_norm")
    for i in range(n_layers):
        layer = f"layers.{i}"
        y = norm(x, f"{layer}.input_layernorm")
        y = _attention(y, f"{layer}.self_attn", config, i, linear, norm)
        x = x + norm(y, f"{layer}.post_attention_layernorm")
        y = norm(x, f"{layer}.pre_feedforward_layernorm")
        y = gelu_tanh(linear(y, f"{layer}.mlp.gate_proj")) * linear(
            y, f"{layer}.mlp.up_proj"
        )
        y = linear(y, f"{layer}.mlp.down_proj")
        x = x + norm(y, f"{layer}.post_feedforward_layernorm")
        y = (
            gelu_tanh(linear(x, f"{layer}.ple_block.per_layer_input_gate"))
            * given[:, i]
        )
        y = linear(y, f"{layer}.ple_block.per_layer_projection")
        x = x + norm(y, f"{layer}.ple_block.post_per_layer_input_norm")
        x = x * w[f"{layer}.layer_scalar"]
    return linear(norm(x, "norm"), "embedding_projection")


def _attention(x, name, config, i, linear, norm):
    n, n_heads = len(x), config["num_attention_heads"]
    d, n_kv_heads = sizes(config, i)
    kind = config["layer_types"][i]
    base = config["rope_parameters"][kind]["rope_theta"]
    query, key, value = (linear(x, f"{name}.{letter}_proj") for letter in "qkv")
    query = _turned(norm(query.reshape(n, n_heads, d), f"{name}.q_norm"), base)
    key = _turned(norm(key.reshape(n, n_kv_heads, d), f"{name}.k_norm"), base)
    value = norm(value.reshape(n, n_kv_heads, d))
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    allowed = (distance <= config["sliding_window"]) | (kind == FULL)
    heads = []
    for h in range(n_heads):
        own = h * n_kv_heads // n_heads
        scores = np.where(allowed, query[:, h] @ key[:, own].T, -np.inf)
        heads.append(softmax(scores) @ value[:, own])
    return linear(np.concatenate(heads, axis=1), f"{name}.o_proj")


def _turned(x, base):
    """X (L, H, D) turned by its positions, the halves of a vector being the pairs."""
    n, _, d = x.shape
    angles = np.arange(n)[:, None, None] * base ** (-np.arange(0, d, 2) / d)
    left, right = x[..., : d // 2], x[..., d // 2 :]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
