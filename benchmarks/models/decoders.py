"""Language models in the sizes of `folders.CONFIGS`: a prompt, and tokens after it.

Their weights are numbers, or a GGUF file's integers.
"""

import functools
from dataclasses import dataclass

import numpy as np

import attnpy

from .. import cases, children
from ..peers import Way
from . import folders, gguf_files, llamacpp_ways, openvino_ways, transformers_ways


@dataclass(frozen=True)
class Tokens:
    """A prompt in one call, if n_new is 0; else so many calls of one token after it.

    The tokens are given, and the result of all is the scores after the last of them.
    The keys and values of the prompt are there before the first of n_new calls. dtype
    may be a type of `gguf_files.TYPES`, and `activations` how attnpy's rows are
    multiplied with such integers.
    """

    model: str
    n_prompt: int
    n_new: int = 0
    dtype: str = "float32"
    activations: str = "float"

    def capacity(self):
        return self.n_prompt + self.n_new

    def ids(self):
        """The tokens, (L,)."""
        n_words = folders.CONFIGS[self.model]["vocab_size"]
        return np.random.default_rng(2).integers(3, n_words, size=self.capacity())

    def steps(self):
        """(begin, end) of the tokens of each call."""
        if not self.n_new:
            return [(0, self.n_prompt)]
        return [(i, i + 1) for i in range(self.n_prompt, self.capacity())]

    def call(self, forget, step):
        """A call that gives the scores after the last token, (V,).

        step(begin, end) reads the tokens between, and gives the scores after them;
        forget() takes all out but the prompt, where there are tokens after it.
        """

        def call():
            forget()
            for begin, end in self.steps():
                scores = step(begin, end)
            return scores

        return call

    def n_kept(self):
        """How many tokens are there before a call."""
        return self.n_prompt if self.n_new else 0

    def arrays(self):
        if self.dtype in gguf_files.TYPES:
            path = gguf_files.path(self.model, self.dtype)
            return self.ids(), gguf_model(path, self.activations)
        return self.ids(), random_model(self.model, self.dtype)

    def expected(self):
        """The scores in float64, by attnpy in a process that gives its memory back."""
        name = f"{self.model} {self.n_prompt} {self.n_new}.float64"
        if self.dtype in gguf_files.TYPES:
            gguf_files.path(self.model, self.dtype)
            name = f"{self.dtype} {name}"
        else:
            folders.folder(self.model)
        path = folders.root() / name
        folders.made(path, lambda part: children.once(exact_scores, self).tofile(part))
        return np.fromfile(path)

    def n_tokens(self):
        """Of one call."""
        return self.n_new or self.n_prompt

    def flops(self):
        """The products of all tokens, those of the scores but once a call."""
        config = folders.CONFIGS[self.model]
        matrices = self.n_weights(lambda x, shape: folders.of_layer(x) and shape[1:])
        tables = config["vocab_size"] * config["hidden_size"]
        ends = np.arange(self.capacity() - self.n_tokens(), self.capacity()) + 1
        pairs = 4 * config["hidden_size"] * config["num_hidden_layers"] * ends.sum()
        scores = 2 * tables * len(self.steps())
        return 2 * matrices * self.n_tokens() + scores + int(pairs)

    def n_bytes(self):
        """What is read of the weights in all calls: of a table of words only rows."""
        return self.weight_bytes() * len(self.steps())

    def weight_bytes(self):
        config = folders.CONFIGS[self.model]
        if self.dtype in gguf_files.TYPES:
            return gguf_files.n_bytes(self.model, self.dtype)
        unread = "" if config["tie_word_embeddings"] else "model.embed_tokens.weight"
        n_weights = self.n_weights(lambda name, _: name != unread)
        return n_weights * cases.dtype_of(self.dtype).itemsize

    def n_weights(self, takes):
        """What a token reads of the arrays that takes(name, shape) wants."""
        config = folders.CONFIGS[self.model]
        return round(
            sum(
                np.prod(shape) * folders.share_read(config, name)
                for name, shape in folders.shapes(config).items()
                if takes(name, shape)
            )
        )

    def memory(self):
        """Two arrays, of as many bytes as the weights but 1 GiB at most."""
        n_bytes = min(self.weight_bytes(), 1 << 30) // 2
        return np.ones(n_bytes, np.uint8), np.ones(n_bytes, np.uint8)


@functools.lru_cache(maxsize=2)  # for bfloat16 beside float32
def random_model(name, dtype):
    path, kind = folders.folder(name), cases.dtype_of(dtype)
    return attnpy.models.CausalDecoder.from_pretrained(path, dtype=kind)


@functools.lru_cache(maxsize=2)  # for both kinds of activations
def gguf_model(path, activations):
    return attnpy.models.CausalDecoder.from_gguf(
        path, weights="file", activations=activations
    )


def attnpy_ways(case, arrays, n_threads):
    ids, model = arrays
    caches = model.decoder.new_caches(1, case.capacity())

    def step(begin, end):
        new = ids[np.newaxis, begin:end]
        states = model(new, caches=caches, num_threads=n_threads)
        return model.logits(states[0, -1], num_threads=n_threads)

    def forget():
        for cache in caches:
            cache.truncate(case.n_kept())

    step(0, case.n_prompt)
    yield Way("CausalDecoder", case.call(forget, step))


WAYS = {
    "attnpy": attnpy_ways,
    "transformers": transformers_ways.decoder_ways,
    "openvino": openvino_ways.decoder_ways,
    "llamacpp": llamacpp_ways.decoder_ways,
}


def exact_scores(case):
    """Those after the last token in float64, without a cache: (V,)."""
    if case.dtype in gguf_files.TYPES:
        path = gguf_files.path(case.model, case.dtype)
        decoder = attnpy.models.CausalDecoder.from_gguf(path, dtype=np.float64)
    else:
        decoder = random_model(case.model, "float64")
    return decoder.logits(decoder(case.ids())[-1])
