"""Models with random weights, each written once, from which every system reads its own.

A folder is one of Hugging Face: config.json and model.safetensors. Its weights are
float32 numbers that bfloat16 holds too, so that rows of both have the same model. What
a peer makes of it, a file of its own format, is kept beside it.
"""

import atexit
import functools
import json
import math
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np

from .. import cases
from ..lazily import safetensors_numpy

PLACE = "ATTNPY_BENCHMARK_MODELS"  # where to keep them; child processes find it, too

DECODER = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "MiniLM": {
        "model_type": "bert",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_attention_heads": 12,
        "num_hidden_layers": 6,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "pad_token_id": 0,
    },
    "DeBERTa-v3 shape": {
        "model_type": "deberta-v2",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_attention_heads": 6,
        "num_hidden_layers": 6,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-7,
        "relative_attention": True,
        "position_buckets": 256,
        "max_relative_positions": -1,
        "pos_att_type": "p2c|c2p",
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "pad_token_id": 0,
    },
    "ViT-base/16": {
        "model_type": "vit",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    },
    "Llama shape": {
        **DECODER,
        "model_type": "llama",
        "rope_theta": 1e4,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_hidden_layers": 8,
        "vocab_size": 8000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
    "Qwen3 shape": {
        **DECODER,
        "model_type": "qwen3",
        "rope_theta": 1e6,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_hidden_layers": 6,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    },
    "Qwen3-MoE shape": {
        **DECODER,
        "model_type": "qwen3_moe",
        "rope_theta": 1e6,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "moe_intermediate_size": 512,
        "num_experts": 32,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "num_hidden_layers": 8,
        "vocab_size": 8000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
    "SmolLM2-135M": {
        **DECODER,
        "rms_norm_eps": 1e-5,
        "model_type": "llama",
        "rope_theta": 1e5,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "num_hidden_layers": 30,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "BLOOM shape": {
        "model_type": "bloom",
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_hidden_layers": 8,
        "vocab_size": 8000,
        "tie_word_embeddings": True,
    },
    "Qwen2-0.5B": {
        **DECODER,
        "model_type": "qwen2",
        "rope_theta": 1e6,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "num_hidden_layers": 24,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
}


@functools.cache
def root():
    """The directory that PLACE names, or one that goes when this process ends."""
    if PLACE not in os.environ:
        os.environ[PLACE] = tempfile.mkdtemp(prefix="attnpy-models-")
        atexit.register(shutil.rmtree, os.environ[PLACE], ignore_errors=True)
    return Path(os.environ[PLACE])


def made(path, make):
    """A file or folder, which make(path) writes where it is not there yet."""
    if not path.exists():
        part = path.with_name("part-" + path.name)
        make(part)
        part.rename(path)
    return path


def folder(name):
    """The folder of a model of CONFIGS, written when it is first asked for."""
    path = root() / name.replace(" ", "-").replace("/", "-")
    return made(path, lambda part: write(part, CONFIGS[name]))


def write(path, config, dtype="float32"):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    arrays, file = weights(config, dtype), path / "model.safetensors"
    safetensors_numpy.save_file(arrays, file, {"format": "pt"})


def read(name):
    """{name: array} of a model, (out, in) as the files have them, and its config."""
    path = folder(name) / "model.safetensors"
    return safetensors_numpy.load_file(path), CONFIGS[name]


def weights(config, dtype):
    """Random weights by name. A vector of a norm is near 1, a bias near 0."""
    rng = np.random.default_rng(1)
    found = {}
    for name, shape in shapes(config).items():
        array = rng.standard_normal(shape, dtype=np.float32)
        array *= np.float32(0.1 if len(shape) == 1 else 1 / math.sqrt(shape[-1]))
        if len(shape) == 1 and name.endswith("weight"):
            array += 1
        # The upper half of the bits is a bfloat16 number.
        array.view(np.uint32)[...] &= np.uint32(0xFFFF0000)
        found[name] = array.astype(cases.dtype_of(dtype), copy=False)
    return found


def shapes(config):
    """The shapes of a checkpoint of BERT, DeBERTa, ViT, BLOOM or Llama's kin."""
    kinds = {"bert": bert, "deberta-v2": deberta, "vit": vit, "bloom": bloom}
    return kinds.get(config["model_type"], llama)(config)


def bert(config):
    e, f = config["hidden_size"], config["intermediate_size"]
    layer = {f"attention.self.{x}": (e, e) for x in ("query", "key", "value")}
    layer |= {
        "attention.output.dense": (e, e),
        "attention.output.LayerNorm": (e,),
        "intermediate.dense": (f, e),
        "output.dense": (e, f),
        "output.LayerNorm": (e,),
    }
    modules = {"embeddings.LayerNorm": (e,), "pooler.dense": (e, e)}
    for i in range(config["num_hidden_layers"]):
        modules |= {f"encoder.layer.{i}.{name}": x for name, x in layer.items()}
    tables = {
        "word": config["vocab_size"],
        "position": config["max_position_embeddings"],
        "token_type": config["type_vocab_size"],
    }
    found = {f"embeddings.{x}_embeddings.weight": (n, e) for x, n in tables.items()}
    for name, shape in modules.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found


def deberta(config):
    """BERT's, with embeddings of distances in the place of those of positions."""
    e = config["hidden_size"]
    found = {
        re.sub(r"(self\.(query|key|value))\b", r"\1_proj", name): shape
        for name, shape in bert(config).items()
        if "position_embeddings" not in name and "token_type" not in name
    }
    norm = {f"encoder.LayerNorm.{part}": (e,) for part in ("weight", "bias")}
    distances = {"encoder.rel_embeddings.weight": (2 * config["position_buckets"], e)}
    return found | norm | distances


def vit(config):
    e, f = config["hidden_size"], config["intermediate_size"]
    patch, size = config["patch_size"], config["image_size"]
    layer = {f"attention.attention.{x}": (e, e) for x in ("query", "key", "value")}
    layer |= {
        "attention.output.dense": (e, e),
        "layernorm_before": (e,),
        "layernorm_after": (e,),
        "intermediate.dense": (f, e),
        "output.dense": (e, f),
    }
    kernel = e, config["num_channels"], patch, patch
    modules = {"layernorm": (e,), "embeddings.patch_embeddings.projection": kernel}
    for i in range(config["num_hidden_layers"]):
        modules |= {f"encoder.layer.{i}.{name}": x for name, x in layer.items()}
    found = {
        "embeddings.cls_token": (1, 1, e),
        "embeddings.position_embeddings": (1, (size // patch) ** 2 + 1, e),
    }
    for name, shape in modules.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found


def bloom(config):
    e = config["hidden_size"]
    layer = {
        "input_layernorm": (e,),
        "self_attention.query_key_value": (3 * e, e),
        "self_attention.dense": (e, e),
        "post_attention_layernorm": (e,),
        "mlp.dense_h_to_4h": (4 * e, e),
        "mlp.dense_4h_to_h": (e, 4 * e),
    }
    modules = {"word_embeddings_layernorm": (e,), "ln_f": (e,)}
    for i in range(config["num_hidden_layers"]):
        modules |= {f"h.{i}.{name}": shape for name, shape in layer.items()}
    found = {"transformer.word_embeddings.weight": (config["vocab_size"], e)}
    for name, shape in modules.items():
        found |= {f"transformer.{name}.weight": shape}
        found |= {f"transformer.{name}.bias": shape[:1]}
    return found


def network(name, e, inner):
    return {
        f"{name}.gate_proj.weight": (inner, e),
        f"{name}.up_proj.weight": (inner, e),
        f"{name}.down_proj.weight": (e, inner),
    }


def experts(config):
    """A layer's."""
    e, inner = config["hidden_size"], config["moe_intermediate_size"]
    n_experts = config["num_experts"]
    found = {"mlp.gate.weight": (n_experts, e)}
    for j in range(n_experts):
        found |= network(f"mlp.experts.{j}", e, inner)
    return found


def of_layer(name):
    """Whether an array is of one of the layers, which have numbers."""
    return re.search(r"\.\d+\.", name) is not None


def share_read(config, name):
    """The share of an array that a token reads: of experts those that it takes."""
    if ".experts." not in name:
        return 1
    return config["num_experts_per_tok"] / config["num_experts"]


def llama(config):
    e, inner = config["hidden_size"], config["intermediate_size"]
    kv = e // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = {
        "input_layernorm.weight": (e,),
        "self_attn.q_proj.weight": (e, e),
        "self_attn.k_proj.weight": (kv, e),
        "self_attn.v_proj.weight": (kv, e),
        "self_attn.o_proj.weight": (e, e),
        "post_attention_layernorm.weight": (e,),
    }
    if config["model_type"] == "qwen3_moe":
        layer |= experts(config)
    else:
        layer |= network("mlp", e, inner)
    if config["model_type"].startswith("qwen3"):
        norms = (f"self_attn.{x}_norm.weight" for x in "qk")
        layer |= dict.fromkeys(norms, (config["head_dim"],))
    if config["model_type"] == "qwen2":
        for x, size in (("q", e), ("k", kv), ("v", kv)):
            layer[f"self_attn.{x}_proj.bias"] = (size,)
    found = {"model.embed_tokens.weight": (config["vocab_size"], e)}
    for i in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], e)
    return {**found, "model.norm.weight": (e,)}
