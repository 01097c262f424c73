"""llama.cpp through its C functions, with a GGUF file of the same weights."""

import ctypes
import functools
import weakref
from functools import partial

import numpy as np

from ..lazily import gguf, llama_cpp
from ..peers import Way
from . import folders

CACHE_TYPES = {"float32": "F32", "bfloat16": "F16"}


def interleaved(array, heads):
    """Rows of a projection, for positions that turn neighbours: llama.cpp's Llama."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def write_gguf(name, dtype, path):
    weights, config = folders.read(name)
    kind = config["model_type"]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    arch = gguf.MODEL_ARCH[kind.upper()]
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for own, array in weights.items():
        part = own.split(".")[-2]
        tensor_name = names.get_name(own, (".weight", ".bias"))
        if kind == "llama" and part in heads:
            array = interleaved(array, config[heads[part]])
        if dtype == "bfloat16" and array.ndim == 2:
            type_ = gguf.GGMLQuantizationType.BF16
            array = gguf.quants.quantize(array, type_)
            writer.add_tensor(tensor_name, array, raw_dtype=type_)
        else:
            writer.add_tensor(tensor_name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@functools.cache
def started():
    """The function that says nothing, which must live as long as llama.cpp."""
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return silent


@functools.lru_cache(maxsize=1)
def loaded(name, dtype):
    started()
    path = folders.root() / f"{name}-{dtype}.gguf".replace(" ", "-")
    folders.made(path, partial(write_gguf, name, dtype))
    options = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise RuntimeError(f"llama.cpp does not read {path.name}")
    return Owner(model, llama_cpp.llama_model_free)


class Owner:
    """A pointer of llama.cpp, freed with this object, and before what it needs."""

    def __init__(self, pointer, free, needs=None):
        self.pointer, self.needs = pointer, needs
        weakref.finalize(self, free, pointer)


def decoder_ways(case, arrays, n_threads):
    for name, flash in (("plain", False), ("flash attention", True)):
        yield Way(name, context_call(case, n_threads, flash))


def context_call(case, n_threads, flash):
    lib, model = llama_cpp, loaded(case.model, case.dtype)
    options = lib.llama_context_default_params()
    options.n_ctx = -(-case.capacity() // 256) * 256
    options.n_batch = options.n_ubatch = max(512, case.n_prompt)
    options.n_threads = options.n_threads_batch = n_threads
    options.flash_attn_type = int(flash)
    kind = gguf.GGMLQuantizationType[CACHE_TYPES[case.dtype]]
    options.type_k = options.type_v = int(kind)
    pointer = lib.llama_init_from_model(model.pointer, options)
    if not pointer:
        raise RuntimeError(f"llama.cpp has no context with a cache of {kind.name}")
    owner = Owner(pointer, lib.llama_free, model)
    memory = lib.llama_get_memory(owner.pointer)
    ids = case.ids().astype(np.int32)
    n_words = folders.CONFIGS[case.model]["vocab_size"]

    def forget():
        lib.llama_memory_seq_rm(memory, 0, case.n_kept(), -1)

    def step(begin, end):
        tokens = ids[begin:end].ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch = lib.llama_batch_get_one(tokens, end - begin)
        status = lib.llama_decode(owner.pointer, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        scores = lib.llama_get_logits_ith(owner.pointer, -1)
        return np.array(np.ctypeslib.as_array(scores, (n_words,)))

    step(0, case.n_prompt)
    return case.call(forget, step)
