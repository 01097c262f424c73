"""llama.cpp through its C functions, with a GGUF file of the same weights."""

import ctypes
import functools
import weakref

import numpy as np

import attnpy

from ..lazily import gguf, llama_cpp
from ..peers import Way
from . import folders, gguf_files

# Of keys and values; with integers as weights, either.
CACHE_TYPES = {"float32": ("F32",), "bfloat16": ("F16",)}


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
    path = gguf_files.path(name, dtype)
    options = llama_cpp.llama_model_default_params()
    # Version 0.3.36 crashes in the buffers of weights that it has for AMX.
    options.use_extra_bufts = "amx" not in attnpy.show_config(mode="dicts")["tier"]
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise RuntimeError(f"llama.cpp does not read {path.name}")
    return Owner(model, llama_cpp.llama_model_free)


class Owner:
    """A pointer of llama.cpp, freed with this object, and before what it needs."""

    def __init__(self, pointer, free, needs=None):
        self.pointer, self.needs = pointer, needs
        weakref.finalize(self, free, pointer)


ATTENTION = {"plain": False, "flash attention": True}


def decoder_ways(case, arrays, n_threads):
    for kind in CACHE_TYPES.get(case.dtype, ("F16", "F32")):
        for name, flash in ATTENTION.items():
            call = context_call(case, n_threads, flash, kind)
            yield Way(f"{name}, {kind} cache", call)


def context(model, n_keys, n_tokens, n_threads, flash, cache_type, **more):
    """One for n_keys tokens, of which a call takes n_tokens at most, as an Owner."""
    lib = llama_cpp
    options = lib.llama_context_default_params()
    options.n_ctx = -(-n_keys // 256) * 256
    options.n_batch = options.n_ubatch = max(512, n_tokens)
    options.n_threads = options.n_threads_batch = n_threads
    options.flash_attn_type = int(flash)
    kind = gguf.GGMLQuantizationType[cache_type]
    options.type_k = options.type_v = int(kind)
    for name, option in more.items():
        setattr(options, name, option)
    pointer = lib.llama_init_from_model(model.pointer, options)
    if not pointer:
        raise RuntimeError(f"llama.cpp has no context with a cache of {kind.name}")
    return Owner(pointer, lib.llama_free, model)


def context_call(case, n_threads, flash, cache_type):
    lib, model = llama_cpp, loaded(case.model, case.dtype)
    owner = context(
        *(model, case.capacity(), case.n_prompt, n_threads, flash, cache_type)
    )
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


def together_ways(case, arrays, n_threads):
    """Texts that are continued together, in one cache or in one for each."""
    for name, flash in ATTENTION.items():
        for unified in (True, False):
            kept = "one cache" if unified else "a cache for each text"
            call = together_call(case, arrays[0], n_threads, flash, unified)
            yield Way(f"{name}, {kept}", call)


def together_call(case, ids, n_threads, flash, unified):
    """A call that gives the new tokens, (n_texts, n_new)."""
    lib, model, n_texts = llama_cpp, loaded(case.model, case.dtype), case.n_texts
    each = -(-(case.n_prompt + case.n_new) // 256) * 256
    more = {"n_seq_max": n_texts, "kv_unified": unified}
    n_keys = n_texts * (case.n_prompt + case.n_new if unified else each)
    owner = context(model, n_keys, ids.size, n_threads, flash, "F32", **more)
    memory = lib.llama_get_memory(owner.pointer)
    batch = lib.llama_batch_init(ids.size, 0, 1)
    weakref.finalize(owner, lib.llama_batch_free, batch)
    n_words = folders.CONFIGS[case.model]["vocab_size"]

    def step(tokens, begin):
        """Read (n_texts, n) tokens from a position on; give the next, (n_texts,)."""
        n = tokens.shape[1]
        batch.n_tokens = tokens.size
        for i, token in enumerate(tokens.ravel().tolist()):
            text, past = divmod(i, n)
            batch.token[i], batch.pos[i] = token, begin + past
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, text
            batch.logits[i] = past == n - 1
        status = lib.llama_decode(owner.pointer, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        scores = lib.llama_get_logits(owner.pointer)
        return np.ctypeslib.as_array(scores, (n_texts, n_words)).argmax(1)

    def call():
        lib.llama_memory_clear(memory, False)
        new = [step(ids, 0)]
        for begin in range(case.n_prompt, case.n_prompt + case.n_new - 1):
            new.append(step(new[-1][:, np.newaxis], begin))
        return np.stack(new, 1)

    return call


def encoder_ways(case, arrays, n_threads):
    """All sentences in one call, and one after the other: attention spans a call."""
    ids = arrays[0].astype(np.int32)
    for name, flash in ATTENTION.items():
        for n_texts in dict.fromkeys((len(ids), 1)):
            call = vectors_call(case, ids, n_threads, flash, n_texts)
            yield Way(f"{name}, {n_texts} in a call", call, case.read)


def vectors_call(case, ids, n_threads, flash, n_texts):
    """A call that gives the vectors of all tokens, (N, E)."""
    lib, model, lengths = llama_cpp, loaded(case.model, case.dtype), case.lengths()
    n_most = n_texts * case.length
    more = {"n_seq_max": n_texts, "embeddings": True, "n_batch": n_most}
    more |= {"n_ubatch": n_most, "kv_unified": True}
    owner = context(model, n_most, n_most, n_threads, flash, "F32", **more)
    batch = lib.llama_batch_init(n_most, 0, 1)
    weakref.finalize(owner, lib.llama_batch_free, batch)
    size = folders.CONFIGS[case.model]["hidden_size"]

    def some(begin):
        n = 0
        for text in range(begin, begin + n_texts):
            for past in range(int(lengths[text])):
                batch.token[n], batch.pos[n] = ids[text, past], past
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, text - begin
                batch.logits[n] = 1
                n += 1
        batch.n_tokens = n
        status = lib.llama_encode(owner.pointer, batch)
        if status != 0:
            raise RuntimeError(f"llama_encode: {status}")
        vectors = lib.llama_get_embeddings(owner.pointer)
        return np.array(np.ctypeslib.as_array(vectors, (n, size)))

    return lambda: np.concatenate([some(i) for i in range(0, len(ids), n_texts)])
