"""Small GGUF files, written from the description of the format, apart from attnpy.

And models in them as llama.cpp's converters make them of checkpoints: the oracle of
test_gguf.py.
"""

import importlib.util
import math
import struct
from typing import NamedTuple

import numpy as np
import pytest

from support import families

# Numbers of the kinds of values, by dtypes, and of the types of arrays.
KINDS = {
    "u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10,
    "i8": 11, "f8": 12,
}  # fmt: skip
STRING, ARRAY = 8, 9
TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8,
    "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20,
    "IQ3_S": 21, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39,
}  # fmt: skip
# How many numbers a block of a type has, in how many bytes.
BLOCKS = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20),
    "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q2_K": (256, 84),
    "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    "IQ4_NL": (32, 18), "IQ3_S": (256, 110), "IQ4_XS": (256, 136), "MXFP4": (32, 17),
}  # fmt: skip
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


class Blocks(NamedTuple):
    """An array in a file: its type, its shape in C order, its bytes."""

    type_name: str
    shape: tuple
    data: bytes


def is_there(package):
    """Tell whether a package is installed."""
    return importlib.util.find_spec(package) is not None


def require(*packages):
    """Skip the test, or the file, without what reads such files."""
    for package in ("gguf", *packages):
        pytest.importorskip(package)


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def value(content):
    """The number of a value's kind, and the value; bytes are both already."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return struct.pack("<I", STRING) + string(content)
    if isinstance(content, list):
        kinds = struct.pack("<IIQ", ARRAY, STRING, len(content))
        return kinds + b"".join(map(string, content))
    array = np.asarray(content)
    if not isinstance(content, (np.ndarray, np.generic)):
        dtype = {bool: "?", int: "u4", float: "f4"}[type(content)]
        array = array.astype(dtype)
    kind = KINDS[f"{array.dtype.kind}{array.dtype.itemsize}"]
    if array.ndim == 0:
        return struct.pack("<I", kind) + array.tobytes()
    return struct.pack("<IIQ", ARRAY, kind, array.size) + array.tobytes()


def blocks(array):
    """An array in a file; one that is in blocks already stays so."""
    if isinstance(array, Blocks):
        return array
    array = np.asarray(array, np.float32)
    return Blocks("F32", array.shape, array.tobytes())


def info(name, array, offset):
    """What a file says of an array."""
    axes = array.shape[::-1]
    return (
        string(name)
        + struct.pack(f"<I{len(axes)}Q", len(axes), *axes)
        + struct.pack("<IQ", TYPES.get(array.type_name, array.type_name), offset)
    )


def file(metadata, arrays, alignment=32):
    """The bytes of a file."""
    infos, data = b"", b""
    stored = {name: blocks(array) for name, array in arrays.items()}
    for name, array in stored.items():
        infos += info(name, array, len(data))
        data += array.data + bytes(-len(array.data) % alignment)
    return start(metadata, infos, len(stored), alignment) + data


def start(metadata, infos=b"", n_arrays=0, alignment=32, version=3, n_values=None):
    """The bytes of a file before its arrays."""
    head = b"GGUF" + struct.pack("<I", version)
    n_values = len(metadata) if n_values is None else n_values
    head += struct.pack("<QQ", n_arrays, n_values)
    for key, content in metadata.items():
        head += string(key) + value(content)
    head += infos
    return head + bytes(-len(head) % alignment)


def random_blocks(type_name, shape, seed=0):
    """Numbers of a type, drawn at random: any bytes, and scales near 1."""
    rng = np.random.default_rng(seed)
    per_block, n_bytes = BLOCKS[type_name]
    n_blocks = math.prod(shape) // per_block
    data = rng.integers(0, 256, (n_blocks, n_bytes), np.uint8)
    # Where a type has its one or two scales, which are float16.
    starts = {"Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82), "MXFP4": ()}
    one = dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ3_S"), (0,))
    starts = (starts | one).get(type_name, (0, 2))
    if type_name == "MXFP4":  # but exponents
        data[:, 0] = rng.integers(118, 124, n_blocks)
    if type_name in ("F32", "F16", "BF16"):
        numbers = rng.standard_normal(shape, dtype=np.float32)
        bits = {"F32": numbers, "F16": numbers.astype(np.float16)}
        if type_name == "BF16":
            return Blocks(
                type_name, shape, (numbers.view("<u4") >> 16).astype("<u2").tobytes()
            )
        return Blocks(type_name, shape, bits[type_name].tobytes())
    for at in starts:
        scales = rng.uniform(-0.05, 0.05, n_blocks).astype("<f2")
        data[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return Blocks(type_name, shape, data.tobytes())


# ---- Models --------------------------------------------------------------------------

ARCHITECTURES = {
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "olmo2": "olmo2",
    "mixtral": "llama",
    "olmoe": "olmoe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "gemma": "gemma",
    "gpt_bigcode": "starcoder",
    "olmo3": "olmo2",
    "exaone4": "exaone4",
    "ernie4_5": "ernie4_5",
    "smollm3": "smollm3",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "granitemoehybrid": "granite",
    "phi": "phi2",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "nemotron": "nemotron",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "glm4": "glm4",
    "arcee": "arcee",
    "seed_oss": "seed_oss",
}
# Those of which queries and keys are in an order of their own.
ALTERNATING = "llama", "smollm3", "granite", "granitemoe", "arcee"
SCALES = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "logit_scale": "logit_scale",
}


def model(config, seed=0):
    """The metadata and the arrays of a model, as a converter makes them."""
    name = ARCHITECTURES[config["model_type"]]
    weights = families.tensors(config, seed)
    metadata = {"general.architecture": name, "general.type": "model"}
    keys = gpt2_keys(config) if "n_embd" in config else llama_keys(config)
    if name == "starcoder":
        keys["attention.head_count_kv"] = 1
    metadata |= {f"{name}.{key}": content for key, content in keys.items()}
    return metadata, converted(config, weights)


ENCODERS = {"nomic_bert": "nomic-bert"}


def encoder(config, words, seed=0, pooling_type=1):
    """The metadata and the arrays of an encoder, with BERT's vocabulary."""
    import gguf

    name = ENCODERS.get(config["model_type"], "bert")
    (number,) = (k for k, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    table = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    arrays, weights = {}, families.tensors(config, seed)
    fused = {}
    for theirs, array in weights.items():
        own = theirs.removeprefix("roberta.").removeprefix("bert.")
        if own.startswith("pooler"):
            continue  # which converters leave out
        if own == "embeddings.position_embeddings.weight" and "pad_token_id" in config:
            array = array[config["pad_token_id"] + 1 :]
        parts = own.split(".")
        if name == "nomic-bert" and parts[0] == "layers":
            block = f"blk.{parts[1]}"
            if parts[3][0] in "qkv":
                fused.setdefault(f"{block}.attn_qkv.weight", []).append(array)
                continue
            part = {
                "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
                "down_proj": "ffn_down", "post_attention_layernorm": "attn_output_norm",
                "post_mlp_layernorm": "layer_output_norm",
            }[parts[-2]]  # fmt: skip
            ours = f"{block}.{part}.{parts[-1]}"
        else:
            ours = table.get_name(own, (".weight", ".bias"))
        assert ours, theirs
        arrays[ours] = array
    arrays |= {ours: np.concatenate(parts) for ours, parts in fused.items()}
    n_positions = config["max_position_embeddings"]
    if "position_embd.weight" in arrays:
        n_positions = len(arrays["position_embd.weight"])
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": n_positions,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", 1e-12),
        "attention.causal": False,
        "pooling_type": pooling_type,
    }
    if name == "nomic-bert":
        keys["rope.freq_base"] = config["rope_theta"]
    metadata = {"general.architecture": name, "general.type": "model"}
    metadata |= {f"{name}.{key}": content for key, content in keys.items()}
    return metadata | word_pieces(words), arrays


def word_pieces(words):
    """The metadata of a tokenizer of BERT's."""
    special = [word.startswith("[") and word.endswith("]") for word in words]
    tokens = [
        word if own else word[2:] if word.startswith("##") else f"\u2581{word}"
        for word, own in zip(words, special, strict=True)
    ]
    types = [CONTROL if own else NORMAL for own in special]
    metadata = {
        "model": "bert",
        "pre": "default",
        "tokens": tokens,
        "token_type": np.array(types, "i4"),
        "token_type_count": 2,
        "unknown_token_id": words.index("[UNK]"),
        "bos_token_id": words.index("[CLS]"),
        "seperator_token_id": words.index("[SEP]"),
        "padding_token_id": words.index("[PAD]"),
    }
    return {f"tokenizer.ggml.{key}": content for key, content in metadata.items()}


PIECES = [
    *("<s>", "<pad>", "</s>", "<unk>", "\u2581the", "\u2581", "cat", "\u2581cat", "s"),
    *("\u2581dog", "a", "t", "the", "c"),
]
SCORES = [0, 0, 0, 0, -2, -3, -5, -4, -3.5, -4.5, -6, -6.5, -7, -6]


def unigrams(**changes):
    """The metadata of a tokenizer of XLM-RoBERTa's."""
    metadata = {
        "model": "t5",
        "tokens": PIECES,
        "scores": np.array(SCORES, "f4"),
        "token_type": np.array([3, 3, 3, 2] + [1] * (len(PIECES) - 4), "i4"),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "add_bos_token": True,
        "add_eos_token": True,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": x for key, x in metadata.items() if x is not None}


def gpt2_keys(config):
    return {
        "block_count": config["n_layer"],
        "context_length": config["n_positions"],
        "embedding_length": config["n_embd"],
        "feed_forward_length": 4 * config["n_embd"],
        "attention.head_count": config["n_head"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
    }


def llama_keys(config):
    """The keys of all that is built as Llama."""
    kind, size = config["model_type"], config["hidden_size"]
    head_dim = config.get("head_dim", size // config["num_attention_heads"])
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": size,
        "feed_forward_length": config.get(
            "shared_intermediate_size", config.get("intermediate_size")
        ),
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "rope.freq_base": config["rope_theta"],
        "vocab_size": config["vocab_size"],
    }
    means = [x for x in config if x.endswith(("epsilon", "norm_eps"))]
    means = [name for name in means if name != "rms_norm_eps"]
    kind_of_norm = "layer_norm" if means else "layer_norm_rms"
    eps = config[means[0] if means else "rms_norm_eps"]
    keys[f"attention.{kind_of_norm}_epsilon"] = eps
    keys |= {SCALES[name]: config[name] for name in SCALES if name in config}
    if "head_dim" in config:
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    turned = int(head_dim * config.get("partial_rotary_factor", 1))
    keys["rope.dimension_count"] = turned
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "linear":
        keys |= {
            "rope.scaling.type": "linear",
            "rope.scaling.factor": scaling["factor"],
        }
    if scaling.get("rope_type") == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling["factor"],
            "rope.scaling.original_context_length": (
                scaling["original_max_position_embeddings"]
            ),
        }
    if kind == "phi3":
        original = config["original_max_position_embeddings"]
        if scaling:
            growth = config["max_position_embeddings"] / original
            factor = math.sqrt(1 + math.log(growth) / math.log(original))
            keys["rope.scaling.attn_factor"] = factor
        keys |= {
            "rope.scaling.original_context_length": original,
            "attention.sliding_window": config.get("sliding_window") or 0,
        }
    if "num_experts_per_tok" in config:
        keys |= {
            "expert_count": families.num_experts(config),
            "expert_used_count": config["num_experts_per_tok"],
        }
    if kind == "qwen3_moe":
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    if kind == "gpt_oss":
        keys["expert_feed_forward_length"] = config["intermediate_size"]
        keys["attention.sliding_window"] = config["sliding_window"]
    if kind == "cohere2":
        keys["attention.sliding_window"] = config["sliding_window"]
    if kind in ("olmo3", "exaone4") and config["sliding_window"]:
        keys["attention.sliding_window"] = config["sliding_window"]
        every = config.get("sliding_window_pattern", 4)
        flags = [(i + 1) % every != 0 for i in range(config["num_hidden_layers"])]
        keys["attention.sliding_window_pattern"] = np.array(flags)
    if kind == "granitemoehybrid":  # which may have layers of Mamba, too
        names = "conv_kernel", "state_size", "group_count", "inner_size"
        keys |= {f"ssm.{name}": 4 for name in (*names, "time_step_rank")}
        keys["rope.scaling.finetuned"] = config["position_embedding_type"] == "rope"
        keys["expert_count"] = keys["expert_used_count"] = 0
        keys["expert_shared_feed_forward_length"] = config["shared_intermediate_size"]
        heads = [config["num_key_value_heads"]] * config["num_hidden_layers"]
        keys["attention.head_count_kv"] = np.array(heads, "i4")
    if kind == "stablelm":  # true where a configuration does not say it
        keys["use_parallel_residual"] = config.get("use_parallel_residual", True)
    if kind.startswith("gemma") and kind != "gemma":
        keys["attention.sliding_window"] = config["sliding_window"]
        for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
            if config.get(cap):
                keys[cap] = config[cap]
    if kind == "gemma3_text":
        keys |= {
            "attention.sliding_window_pattern": config["sliding_window_pattern"],
            "rope.freq_base_swa": config["rope_local_base_freq"],
        }
    return keys


def converted(config, weights):
    """The arrays in the names, the order and the values that they have in a file."""
    import gguf

    kind = config["model_type"]
    name = ARCHITECTURES[kind]
    (number,) = (k for k, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    n_layers = config.get("num_hidden_layers", config.get("n_layer"))
    table = gguf.get_tensor_name_map(number, n_layers)
    arrays = {}
    weights = _apart(weights) if kind == "gpt_oss" else _stacked(weights)
    if kind.startswith("granitemoe"):
        weights = _halved(weights)
    for theirs, array in weights.items():
        full = f"transformer.{theirs}" if kind == "gpt2" else theirs
        ours = table.get_name(full, (".weight", ".bias"))
        assert ours, theirs
        if kind == "gpt2" and theirs.endswith(
            ("c_attn.weight", "c_proj.weight", "c_fc.weight")
        ):
            array = array.T
        has_one_less = kind.startswith("gemma") or kind == "nemotron"
        if has_one_less and theirs.endswith("norm.weight"):
            array = array + np.float32(1)
        if name in ALTERNATING and ("q_proj" in theirs or "k_proj" in theirs):
            array = alternated(
                array,
                config[
                    "num_attention_heads"
                    if "q_proj" in theirs
                    else "num_key_value_heads"
                ],
            )
        arrays[ours] = array
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type") == "longrope":
        for length in ("short", "long"):
            arrays[f"rope_factors_{length}.weight"] = np.float32(
                scaling[f"{length}_factor"]
            )
    return arrays


def _stacked(weights):
    """Arrays with those of all experts of a layer together."""
    together = {}
    for name, array in weights.items():
        place, is_expert, rest = name.partition(".experts.")
        if is_expert:
            together.setdefault(f"{place}.experts.{rest.partition('.')[2]}", [])
            together[f"{place}.experts.{rest.partition('.')[2]}"].append(array)
        else:
            together[name] = array
    return {name: np.asarray(array) for name, array in together.items()}


def _halved(weights):
    """Those of Granite's networks with gates apart."""
    result = {}
    for name, array in weights.items():
        if not name.endswith("input_linear.weight"):
            result[name.replace("shared_mlp.output_linear", "mlp.down_proj")] = array
            continue
        gate, up = np.split(array, 2, axis=-2)
        for part, own in (("w1", gate), ("w3", up)):
            if "shared_mlp" in name:
                part = {"w1": "gate_proj", "w3": "up_proj"}[part]
                named = name.replace("shared_mlp.input_linear", f"mlp.{part}")
            else:
                named = name.replace("block_sparse_moe", "feed_forward.experts")
                named = named.replace("input_linear", part).removeprefix("model.")
            result[named] = np.ascontiguousarray(own)
    return result


def _apart(weights):
    """Those of gpt-oss with gates apart, and matrices of experts (out, in)."""
    result = {}
    for name, array in weights.items():
        if name.endswith(("gate_up_proj", "gate_up_proj_bias")):
            parts = {"gate": array[..., ::2], "up": array[..., 1::2]}
            parts = {name.replace("gate_up", x): part for x, part in parts.items()}
        else:
            parts = {name: array}
        for own, part in parts.items():
            if own.endswith("_bias"):
                result[own.replace("_bias", ".bias")] = part
            elif part.ndim == 3:
                result[f"{own}.weight"] = part.swapaxes(1, 2)
            else:
                result[own + ".weight" * own.endswith("sinks")] = part
    return {name: np.ascontiguousarray(array) for name, array in result.items()}


def alternated(array, n_heads):
    """The rows of heads as llama.cpp has them: 0, half, 1, half + 1 ..."""
    rows = array.reshape(n_heads, 2, len(array) // n_heads // 2, *array.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(array.shape))


def write(path, metadata, arrays, **options):
    """Write a file, and return its path."""
    path.write_bytes(file(metadata, arrays, **options))
    return path


# ---- Tokenizers ----------------------------------------------------------------------


def bytes_tokenizer(merges=("Ġ t", "h e", "Ġt he"), ends="<|im_end|>"):
    """The metadata of a tokenizer of bytes, with some merges."""
    from tokenizers import pre_tokenizers

    tokens = ["<|begin|>", ends, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [line.replace(" ", "") for line in merges]
    types = [CONTROL, CONTROL] + [NORMAL] * (len(tokens) - 2)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, "i4"),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": TEMPLATE,
    }


TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


def talking(config=families.LLAMA, **changes):
    """The metadata and arrays of a model with a tokenizer of bytes."""
    text = bytes_tokenizer()
    config = {**config, "vocab_size": len(text["tokenizer.ggml.tokens"]), **changes}
    metadata, arrays = model(config)
    return metadata | text, arrays
