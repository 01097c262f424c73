"""Hugging Face's transformers on PyTorch: sdpa, as it is and through torch.compile."""

from __future__ import annotations

import functools
import os

from . import folders

# Set to leave torch.compile out, which takes up to a minute a row; child processes
# find it, too.
AS_IT_IS = "ATTNPY_BENCHMARK_NO_COMPILE"


@functools.lru_cache(maxsize=1)
def model(name, dtype):
    """The model of a folder, in inference mode."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = folders.CONFIGS[name]["model_type"]
    auto = "AutoModel" if kind == "bert" else "AutoModelForCausalLM"
    found = getattr(transformers, auto).from_pretrained(
        folders.folder(name),
        dtype=getattr(torch, dtype),
        attn_implementation="sdpa",
        local_files_only=True,
    )
    return found.eval()


def compiled(call):
    """The call through torch.compile, for the shapes that it is first called with."""
    import torch

    torch._dynamo.reset()
    return torch.compile(call, dynamic=False)


# ---- BERT ----------------------------------------------------------------------------


def encoder_calls(name, case, n_threads):
    """(name, call) of each way; a call gives the vectors, (B, L, E)."""
    import torch

    bert = model(name, case.dtype)
    more = {"input_ids": torch.from_numpy(case.ids())}
    if case.ragged:
        more["attention_mask"] = torch.from_numpy(case.exists())

    def call(run):
        return run(**more).last_hidden_state.float()

    yield "sdpa", functools.partial(call, bert)
    if AS_IT_IS not in os.environ:
        yield "torch.compile", functools.partial(call, compiled(bert))


# ---- Decoders ------------------------------------------------------------------------


def decoder_calls(name, case, n_threads):
    """(name, call) of each way; a call gives the scores after the last token, (V,)."""
    import torch
    from transformers import DynamicCache, StaticCache

    decoder = model(name, case.dtype)
    config = decoder.config
    ids = torch.from_numpy(case.ids())[None]  # (1, L)

    def step(run, cache, begin, end):
        scores = run(
            input_ids=ids[:, begin:end],
            past_key_values=cache,
            cache_position=torch.arange(begin, end),
            position_ids=torch.arange(begin, end)[None],
            use_cache=True,
            logits_to_keep=1,
        )
        return scores.logits[0, -1].float()

    def prefill(run):
        return step(run, DynamicCache(config=config), 0, case.n_prompt)

    def decode(run, cache, forget):
        forget(cache)
        for begin, end in case.steps():
            scores = step(run, cache, begin, end)
        return scores

    def filled(cache):
        step(decoder, cache, 0, case.n_prompt)
        return cache

    def cut(cache):
        n_more = int(cache.get_seq_length()) - case.n_prompt
        if n_more:
            cache.crop(-n_more)

    def set_back(cache):
        for layer in cache.layers:  # what is beyond is hidden until it is written
            layer.cumulative_length.fill_(case.n_prompt)

    if not case.n_new:
        yield "sdpa", functools.partial(prefill, decoder)
        if AS_IT_IS not in os.environ:
            yield "torch.compile", functools.partial(prefill, compiled(decoder))
        return
    cache = filled(DynamicCache(config=config))
    yield "sdpa", functools.partial(decode, decoder, cache, cut)
    if AS_IT_IS in os.environ:
        return
    cache = filled(StaticCache(config=config, max_cache_len=case.capacity()))
    run = compiled(decoder)
    name = "torch.compile, static cache"
    yield name, functools.partial(decode, run, cache, set_back)
