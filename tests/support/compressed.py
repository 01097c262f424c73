"""Folders of compressed-tensors, as that package writes them, and what it reads."""

import json

import numpy as np

from support import families

LLAMA = {**families.LLAMA, "hidden_size": 64, "intermediate_size": 160}
INT, PACK = "int-quantized", "pack-quantized"
WEIGHTS = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "channel",
    "group_size": None,
    "block_structure": None,
    "dynamic": False,
    "actorder": None,
    "observer": "minmax",
    "observer_kwargs": {},
}
ROUNDED = {**WEIGHTS, "strategy": "token", "dynamic": True, "observer": None}


def quantization(form, weights, inputs=None):
    """The part of a config.json."""
    group = {
        "targets": ["Linear"],
        "weights": {**WEIGHTS, **weights},
        "input_activations": None if inputs is None else dict(inputs),
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12.2",
    }


def packed(codes, bits):
    """int32 (n, m / (32 / bits) rounded up), the first code the lowest."""
    per = 32 // bits
    more = -codes.shape[1] % per
    shifted = np.pad(codes.astype(np.int64), ((0, 0), (0, more)))
    shifted[:, : codes.shape[1]] += 1 << (bits - 1)
    parts = shifted.reshape(len(codes), -1, per) << (bits * np.arange(per))
    return parts.sum(-1).astype(np.uint32).view(np.int32)


def compressed(tensors, quantized, scale_dtype="float32"):
    """Arrays as the package writes them, and the numbers that they stand for."""
    rng = np.random.default_rng(0)
    (group,) = quantized["config_groups"].values()
    bits, each = group["weights"]["num_bits"], group["weights"]["group_size"]
    arrays, numbers = {}, {}
    for name, array in tensors.items():
        if not name.endswith(("_proj.weight", "query.weight", "dense.weight")):
            arrays[name] = numbers[name] = array
            continue
        n, n_inner = array.shape
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        codes = rng.integers(low, high, array.shape, endpoint=True)
        shape = {"tensor": (1,), "channel": (n, 1)}.get(group["weights"]["strategy"])
        if shape is None:
            shape = n, -(-n_inner // each)
        scale = (rng.random(shape) * 0.5 + 0.5) / high / np.sqrt(n_inner / 4)
        scale = scale.astype(scale_dtype)
        wide = np.asarray(scale, np.float32).reshape(-1, shape[-1])
        wide = wide.repeat(each or n_inner, 1)[:, :n_inner]
        numbers[name] = codes.astype(np.float32) * wide
        arrays[f"{name}_scale"] = scale
        if quantized["format"] == "int-quantized":
            arrays[name] = codes.astype(np.int8)
        else:
            arrays[f"{name}_packed"] = packed(codes, bits)
            arrays[f"{name}_shape"] = np.array(array.shape)
    return arrays, numbers


def write(folder, quantized, config=LLAMA, changes=None, **options):
    """A folder; returns the numbers that its integers stand for."""
    from safetensors.numpy import save_file

    given, numbers = compressed(families.tensors(config), quantized, **options)
    for name, array in (changes or {}).items():
        given[name] = array
        if array is None:
            del given[name]
    save_file(given, folder / "model.safetensors")
    text = json.dumps({**config, "quantization_config": quantized})
    (folder / "config.json").write_text(text)
    return numbers


KINDS = {
    "int8, channels": (INT, {}, {}),
    "int8, one scale": (INT, {"strategy": "tensor"}, {}),
    "int8, groups": (INT, {"strategy": "group", "group_size": 32}, {}),
    "int8, packed, channels": (PACK, {}, {}),
    "int8, packed, groups": (PACK, {"strategy": "group", "group_size": 64}, {}),
    "int8, float16": (INT, {}, {"scale_dtype": "float16"}),
    "int8, bfloat16": (INT, {}, {"scale_dtype": "bfloat16"}),
    "int4, groups": (PACK, {"num_bits": 4, "strategy": "group", "group_size": 32}, {}),
    "int4, long groups": (
        *(PACK, {"num_bits": 4, "strategy": "group", "group_size": 128}),
        {"scale_dtype": "bfloat16"},
    ),
    "int4, longer groups": (
        *(PACK, {"num_bits": 4, "strategy": "group", "group_size": 256}),
        {"scale_dtype": "float16"},
    ),
    "int4, channels": (PACK, {"num_bits": 4}, {}),
    "int4, ordered": (
        PACK,
        {"num_bits": 4, "actorder": "weight", "strategy": "group", "group_size": 16},
        {},
    ),
}


def decoded(arrays, quantized):
    """The numbers that arrays stand for, by their usual names, from the files' bits."""
    (group,) = quantized["config_groups"].values()
    weights, numbers = group["weights"], {}
    bits = weights["num_bits"]
    for name, array in arrays.items():
        plain = name.removesuffix("_packed")
        if name.endswith(".weight_packed"):
            shifts = bits * np.arange(32 // bits)
            codes = array.view(np.uint32)[..., None] >> shifts & (1 << bits) - 1
            n_columns = int(arrays[f"{plain}_shape"][1])
            codes = codes.reshape(len(array), -1)[:, :n_columns].astype(np.int64)
            codes -= 1 << bits - 1
        elif array.dtype == np.int8:
            codes = array
        else:
            continue
        scale = np.asarray(arrays[f"{plain}_scale"], np.float32)
        if weights["strategy"] == "group":
            scale = scale.repeat(weights["group_size"], -1)[:, : codes.shape[1]]
        elif scale.ndim == 1:
            scale = scale[:, None]
        numbers[plain] = codes.astype(np.float32) * scale
    return numbers


def matrices(model):
    """The matrices of a decoder's layers, by their names in files."""
    found = {}
    for i, layer in enumerate(model.decoder.layers):
        mha, network = layer.self_attention, layer.feed_forward
        parts = {
            "self_attn.q": mha.W_q,
            "self_attn.k": mha.W_k,
            "self_attn.v": mha.W_v,
            "self_attn.o": mha.W_o,
            "mlp.gate": network.W_gate,
            "mlp.up": network.W_1,
            "mlp.down": network.W_2,
        }
        for name, matrix in parts.items():
            found[f"model.layers.{i}.{name}_proj.weight"] = matrix
    return found
