"""llama.cpp through its C functions, with a GGUF file of the same weights."""

from __future__ import annotations

import ctypes
import functools
import weakref

import numpy as np

from . import folders

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
CACHE_TYPES = {"float32": "F32", "bfloat16": "F16"}


# ---- The file ------------------------------------------------------------------------


def gguf_name(name):
    """A tensor's name there: blk.0.attn_q.weight of model.layers.0.self_attn..."""
    module, kind = name.rsplit(".", 1)
    if not module.startswith("model.layers."):
        return f"{NAMES[module]}.{kind}"
    _, _, i, module = module.split(".", 3)
    return f"blk.{i}.{NAMES[module]}.{kind}"


def interleaved(array, heads):
    """Rows of a projection, for positions that turn neighbours: llama.cpp's Llama."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def write_gguf(name, dtype, path):
    import gguf

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
    for own, array in weights.items():
        part = own.split(".")[-2]
        if kind == "llama" and part in heads:
            array = interleaved(array, config[heads[part]])
        if dtype == "bfloat16" and array.ndim == 2:
            type_ = gguf.GGMLQuantizationType.BF16
            array = gguf.quants.quantize(array, type_)
            writer.add_tensor(gguf_name(own), array, raw_dtype=type_)
        else:
            writer.add_tensor(gguf_name(own), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- The model -----------------------------------------------------------------------


@functools.cache
def library():
    """llama_cpp, which says nothing."""
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp, silent  # which must live as long


@functools.lru_cache(maxsize=1)
def loaded(name, dtype):
    lib, _ = library()
    path = folders.root() / f"{name}-{dtype}.gguf".replace(" ", "-")
    folders.made(path, lambda part: write_gguf(name, dtype, part))
    options = lib.llama_model_default_params()
    model = lib.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise RuntimeError(f"llama.cpp does not read {path.name}")
    return Model(lib, model)


class Model:
    """A model of llama.cpp, freed with this object."""

    def __init__(self, lib, pointer):
        self.lib, self.pointer = lib, pointer
        weakref.finalize(self, lib.llama_model_free, pointer)


class Context:
    """A model's keys and values, and how it is run."""

    def __init__(self, model, case, n_threads, flash):
        import gguf

        self.lib, self.model = model.lib, model
        options = self.lib.llama_context_default_params()
        options.n_ctx = -(-case.capacity() // 256) * 256
        options.n_batch = options.n_ubatch = max(512, case.n_prompt)
        options.n_threads = options.n_threads_batch = n_threads
        options.flash_attn_type = int(flash)
        kind = gguf.GGMLQuantizationType[CACHE_TYPES[case.dtype]]
        options.type_k = options.type_v = int(kind)
        self.pointer = self.lib.llama_init_from_model(model.pointer, options)
        if not self.pointer:
            raise RuntimeError(f"llama.cpp has no context with a cache of {kind.name}")
        weakref.finalize(self, self.lib.llama_free, self.pointer)
        self.memory = self.lib.llama_get_memory(self.pointer)
        self.n_words = folders.CONFIGS[case.model]["vocab_size"]

    def keep(self, n_tokens):
        """Forget what came after so many tokens."""
        self.lib.llama_memory_seq_rm(self.memory, 0, n_tokens, -1)

    def decode(self, tokens):
        """Append tokens, an array of int32."""
        pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch = self.lib.llama_batch_get_one(pointer, len(tokens))
        status = self.lib.llama_decode(self.pointer, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")

    def scores(self):
        """Those after the last token, (V,)."""
        pointer = self.lib.llama_get_logits_ith(self.pointer, -1)
        return np.array(np.ctypeslib.as_array(pointer, (self.n_words,)))


def decoder_calls(name, case, n_threads):
    """(name, call) of each way; a call gives the scores after the last token, (V,)."""
    model = loaded(name, case.dtype)
    for title, flash in (("plain", False), ("flash attention", True)):
        yield title, context_call(model, case, n_threads, flash)


def context_call(model, case, n_threads, flash):
    context = Context(model, case, n_threads, flash)
    ids = case.ids().astype(np.int32)
    if case.n_new:
        context.decode(ids[: case.n_prompt])

    def call():
        context.keep(case.n_prompt if case.n_new else 0)
        for begin, end in case.steps():
            context.decode(ids[begin:end])
            scores = context.scores()
        return scores

    return call
