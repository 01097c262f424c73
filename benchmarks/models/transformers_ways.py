"""Hugging Face's transformers on PyTorch, as it is and through torch.compile."""

import functools
import os

from ..lazily import torch, transformers
from ..peers import Way
from . import folders

# Set to leave torch.compile out, which takes up to a minute a row; children find it.
AS_IT_IS = "ATTNPY_BENCHMARK_NO_COMPILE"


@functools.lru_cache(maxsize=1)
def model(name, dtype):
    # BLOOM has no other attention in Transformers.
    is_bloom = folders.CONFIGS[name]["model_type"] == "bloom"
    return read(folders.folder(name), dtype, "eager" if is_bloom else "sdpa")


def read(folder, dtype="float32", attention="sdpa"):
    """A folder's model: BERT without its pooler, or a decoder."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(folder)
    is_bert = config.model_type == "bert"
    kind = transformers.AutoModel if is_bert else transformers.AutoModelForCausalLM
    found = kind.from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        attn_implementation=attention,
        local_files_only=True,
        **({"add_pooling_layer": False} if is_bert else {}),
    )
    return found.eval()


def compiled(call):
    """The call through torch.compile, for the shapes that it is first called with."""
    torch._dynamo.reset()
    return torch.compile(call, dynamic=False)


def encoder_ways(case, arrays, n_threads):
    bert = model(case.model, case.dtype)
    more = {"input_ids": torch.from_numpy(case.ids())}
    if case.ragged:
        more["attention_mask"] = torch.from_numpy(case.exists())

    def call(run):
        return run(**more).last_hidden_state.float()

    yield Way("sdpa", functools.partial(call, bert), case.read)
    if AS_IT_IS not in os.environ:
        yield Way("torch.compile", functools.partial(call, compiled(bert)), case.read)


def reading(case, decoder, run):
    """The case's call of a decoder; `run` is the decoder, compiled or not.

    What is compiled decodes with a static cache; other caches grow.
    """
    ids = torch.from_numpy(case.ids())[None]  # (1, L)
    config, static = decoder.config, run is not decoder and case.n_new

    def new_cache():
        if not static:
            return transformers.DynamicCache(config=config)
        return transformers.StaticCache(config=config, max_cache_len=case.capacity())

    def step(begin, end, run=run):
        positions = torch.arange(begin, end)
        scores = run(
            input_ids=ids[:, begin:end],
            past_key_values=cache,
            cache_position=positions,
            position_ids=positions[None],
            use_cache=True,
            logits_to_keep=1,
        )
        return scores.logits[0, -1].float()

    def forget():
        nonlocal cache
        if not case.n_new:
            cache = new_cache()
        elif static:
            for layer in cache.layers:  # what is beyond is hidden until it is written
                layer.cumulative_length.fill_(case.n_prompt)
        elif n_more := int(cache.get_seq_length()) - case.n_prompt:
            cache.crop(-n_more)

    cache = new_cache()
    step(0, case.n_prompt, decoder)
    return case.call(forget, step)


def decoder_ways(case, arrays, n_threads):
    decoder = model(case.model, case.dtype)
    yield Way(decoder.config._attn_implementation, reading(case, decoder, decoder))
    if AS_IT_IS not in os.environ:
        name = "torch.compile, static cache" if case.n_new else "torch.compile"
        yield Way(name, reading(case, decoder, compiled(decoder)))
