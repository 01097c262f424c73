"""Language models with random weights in float32: tokens one after the other."""

import functools
from dataclasses import dataclass
from functools import partial

import numpy as np

import attnpy

from ..layers import filled
from ..lazily import torch
from ..peers import Way
from .torch_decoder import TorchDecoder


def gpt(n_layers, embed_dim, heads, **more):
    sizes = n_layers, embed_dim, heads, 4 * embed_dim
    more = {"activation": "gelu_tanh", "bias": True, **more}
    return filled(attnpy.models.CausalDecoder(*sizes, **more), more["rng"])


def llama(rng):
    """Like Llama, with 8 query heads on 2 key heads."""
    model = attnpy.models.CausalDecoder(
        *(8, 512, 8, 1408),
        vocab_size=8000,
        rotary=attnpy.positions.Rotary(64),
        tied=False,
        num_kv_heads=2,
        norm="rms",
        activation="swiglu",
        bias=False,
        rng=rng,
    )
    return filled(model, rng)


MODELS = {
    "GPT-2 small": partial(gpt, 12, 768, 12, vocab_size=50257, max_length=1024),
    "Llama-like": llama,
}


@dataclass(frozen=True)
class Generation:
    """So many new tokens after a prompt, one sequence; the keys and values are kept."""

    model: str
    n_prompt: int
    n_new: int

    dtype = "float32"

    def arrays(self):
        """The prompt, (L,), and attnpy's model, whose weights the peers take."""
        model = random_model(self.model)
        rng = np.random.default_rng(2)
        return rng.integers(len(model.token_embedding), size=self.n_prompt), model

    def n_tokens(self):
        return self.n_new


@functools.lru_cache(maxsize=1)  # GPT-2 small takes 0.5 GB
def random_model(name):
    return MODELS[name](rng=np.random.default_rng(1))


def attnpy_ways(case, arrays, n_threads):
    prompt, model = arrays
    call = partial(model.generate, prompt, case.n_new, num_threads=n_threads)
    yield Way("generate", call)


def torch_ways(case, arrays, n_threads):
    prompt, model = torch.from_numpy(arrays[0]), arrays[1]
    for laid_out in (True, False):
        decoder = TorchDecoder(model, case.n_prompt + case.n_new, laid_out)
        name = "weights (out, in)" if laid_out else "weights (in, out)"
        call = partial(decoder.generate, prompt, case.n_new)
        yield Way(name, call)


WAYS = {"attnpy": attnpy_ways, "torch": torch_ways}
