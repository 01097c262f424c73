"""What is reused: prefixes, pages, texts together, drafts. Each row is beside its own
way without."""

import copy
import functools
from dataclasses import dataclass
from functools import partial

import numpy as np

from attnpy.models import ContinuousBatch
from attnpy.pages import PagedKVCache

from ..peers import Way
from . import decoders, folders, llamacpp_ways


@dataclass(frozen=True)
class Reuse:
    """New tokens with (`reused`) or without what is known, in one piece or together.

    kind is "prefix", a token after a text that begins with `n_prompt` tokens; "pages",
    tokens after as many, with keys in pages; "together", of `n_texts` texts; "draft",
    tokens of a text that repeats itself.
    """

    kind: str
    reused: bool
    n_prompt: int
    n_new: int
    n_texts: int = 1

    model = "Llama shape"
    dtype = "float32"

    def arrays(self):
        """The prompts, (n_texts, L), and the model."""
        model = decoders.random_model(self.model, self.dtype)
        if self.kind == "draft":
            return repeating(model, self.n_prompt)
        n_words = folders.CONFIGS[self.model]["vocab_size"]
        rng = np.random.default_rng(2)
        ids = rng.integers(3, n_words, (self.n_texts, self.n_prompt))
        return ids, model

    def n_tokens(self):
        return self.n_new * self.n_texts


@functools.cache
def repeating(model, n):
    """The end of a greedy text that repeats itself, (1, n), and a model like `model`.

    What layers add is 0 there, so a token follows from the one before, and the text
    is a circle from some token on. Its products take the time that they always take.
    """
    model = copy.deepcopy(model)
    for layer in model.decoder.layers:
        layer.self_attention.W_o = layer.self_attention.W_o * np.float32(0)
        layer.feed_forward.W_2 = layer.feed_forward.W_2 * np.float32(0)
    ids = np.arange(3, 11)
    return np.concatenate([ids, model.generate(ids, 4 * n, draft="lookup")])[
        None, -n:
    ], model


def prefix_ways(case, ids, model, n_threads):
    question = np.arange(16) + 3
    options = {"num_threads": n_threads}
    if case.reused:
        prefix = model.prefill(ids[0], **options)
        yield Way(
            "prefix", partial(model.generate, question, 1, prefix=prefix, **options)
        )
    else:
        whole = np.concatenate([ids[0], question])
        yield Way("generate", partial(model.generate, whole, 1, **options))


def pages_ways(case, ids, model, n_threads):
    n = case.n_prompt + case.n_new
    caches = model.new_caches(1, n)
    if case.reused:
        caches = [PagedKVCache(p, 1) for p in model.new_page_pools(-(-n // 128))]
    model(ids, caches=caches, num_threads=n_threads)

    def call():
        for cache in caches:
            cache.truncate(case.n_prompt)
        for token in range(3, 3 + case.n_new):
            states = model([[token]], caches=caches, num_threads=n_threads)
        return states[0, -1]

    yield Way("pages" if case.reused else "in one piece", call)


def together_ways(case, ids, model, n_threads):
    n_pages = case.n_texts * -(-(case.n_prompt + case.n_new) // 128)
    batch = ContinuousBatch(model, n_pages, num_threads=n_threads)

    def together():
        found = {batch.add(row, case.n_new): [] for row in ids}
        for number, token in batch:
            found[number].append(token)
        return np.array(list(found.values()))

    def alone():
        return np.array(
            [model.generate(row, case.n_new, num_threads=n_threads) for row in ids]
        )

    yield Way("ContinuousBatch", together) if case.reused else Way("generate", alone)


def draft_ways(case, ids, model, n_threads):
    draft = "lookup" if case.reused else None
    options = {"draft": draft, "num_threads": n_threads}
    yield Way(f"draft {draft}", partial(model.generate, ids[0], case.n_new, **options))


KINDS = {
    "prefix": prefix_ways,
    "pages": pages_ways,
    "together": together_ways,
    "draft": draft_ways,
}


def attnpy_ways(case, arrays, n_threads):
    return KINDS[case.kind](case, *arrays, n_threads)


def llamacpp_together(case, arrays, n_threads):
    if case.kind == "together":
        yield from llamacpp_ways.together_ways(case, arrays, n_threads)


WAYS = {"attnpy": attnpy_ways, "llamacpp": llamacpp_together}
