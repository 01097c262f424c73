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
    return read(folders.folder(name), dtype)


def read(folder, dtype="float32", attention="sdpa"):
    """A folder's model: BERT without its pooler, or a decoder."""
    import torch
    import transformers

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


class Reader:
    """A decoder that reads a case's tokens; `run` is the decoder, compiled or not."""

    def __init__(self, decoder, case):
        import torch

        self.decoder, self.case, self.torch = decoder, case, torch
        self.ids = torch.from_numpy(case.ids())[None]  # (1, L)

    def step(self, run, cache, begin, end):
        """The scores after the last of the tokens from begin to end, (V,)."""
        positions = self.torch.arange(begin, end)
        scores = run(
            input_ids=self.ids[:, begin:end],
            past_key_values=cache,
            cache_position=positions,
            position_ids=positions[None],
            use_cache=True,
            logits_to_keep=1,
        )
        return scores.logits[0, -1].float()

    def dynamic_cache(self):
        from transformers import DynamicCache

        return DynamicCache(config=self.decoder.config)

    def prefill(self, run):
        return self.step(run, self.dynamic_cache(), 0, self.case.n_prompt)

    def filled(self, cache):
        """The cache, with the prompt in it."""
        self.step(self.decoder, cache, 0, self.case.n_prompt)
        return cache

    def decode(self, run, cache, forget):
        """The tokens after the prompt, one by one; `forget` takes them out before."""
        forget(cache)
        for begin, end in self.case.steps():
            scores = self.step(run, cache, begin, end)
        return scores

    def cut(self, cache):
        n_more = int(cache.get_seq_length()) - self.case.n_prompt
        if n_more:
            cache.crop(-n_more)

    def set_back(self, cache):
        for layer in cache.layers:  # what is beyond is hidden until it is written
            layer.cumulative_length.fill_(self.case.n_prompt)

    def plain_call(self):
        """The case's call of the decoder as it is, with a cache that grows."""
        if not self.case.n_new:
            return functools.partial(self.prefill, self.decoder)
        cache = self.filled(self.dynamic_cache())
        return functools.partial(self.decode, self.decoder, cache, self.cut)


def decoder_calls(name, case, n_threads):
    """(name, call) of each way; a call gives the scores after the last token, (V,)."""
    from transformers import StaticCache

    decoder = model(name, case.dtype)
    reader = Reader(decoder, case)
    yield "sdpa", reader.plain_call()
    if AS_IT_IS in os.environ:
        return
    run = compiled(decoder)
    if not case.n_new:
        yield "torch.compile", functools.partial(reader.prefill, run)
        return
    cache = StaticCache(config=decoder.config, max_cache_len=case.capacity())
    call = functools.partial(reader.decode, run, reader.filled(cache), reader.set_back)
    yield "torch.compile, static cache", call
