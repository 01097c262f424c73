"""A model of Marian's base size with random weights: a text of so many tokens."""

import functools
from dataclasses import dataclass
from functools import partial

import numpy as np

import attnpy

from ..lazily import ctranslate2, torch, transformers
from ..peers import Way
from . import folders

N_WORDS = 32000
PAD, STOP = N_WORDS - 1, 0
SIDES = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}
CONFIG = {
    **{f"{side}_{x}": n for side in ("encoder", "decoder") for x, n in SIDES.items()},
    "model_type": "marian",
    "d_model": 512,
    "vocab_size": N_WORDS,
    "max_position_embeddings": 512,
    "scale_embedding": True,
    "activation_function": "swish",
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "eos_token_id": STOP,
    "forced_eos_token_id": None,
}


@dataclass(frozen=True)
class Translation:
    """So many new tokens for one source; 1 beam is greedy.

    No token comes twice: with random weights all would be alike.
    """

    n_source: int
    n_new: int
    n_beams: int

    dtype = "float32"

    def arrays(self):
        """The source, (Ls,)."""
        return (np.random.default_rng(2).integers(1, PAD, size=self.n_source),)

    def n_tokens(self):
        return self.n_new


@functools.lru_cache(maxsize=1)
def random_model():
    rng = np.random.default_rng(1)
    model = attnpy.models.EncoderDecoder.from_config(CONFIG, rng=rng)
    model.token_embedding[PAD] = 0  # as Marian begins, and CTranslate2 always does
    return model


def folder():
    return folders.made(folders.root() / "Marian-base", random_model().save_pretrained)


def attnpy_ways(case, arrays, n_threads):
    model = random_model()
    if isinstance(model.token_embedding, np.ndarray):
        folder()  # before it is packed
        model.pack()
    more = {"num_beams": case.n_beams, "min_tokens": case.n_new, "bad_words": [[PAD]]}
    more |= {"no_repeat_ngram_size": 1}
    yield Way(
        "generate",
        partial(model.generate, *arrays, case.n_new, **more, num_threads=n_threads),
    )


def transformers_ways(case, arrays, n_threads):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = transformers.MarianMTModel
    model = kind.from_pretrained(folder(), attn_implementation="sdpa").eval()
    ids = torch.from_numpy(arrays[0])[None]
    generate = partial(
        model.generate,
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=case.n_beams,
        max_new_tokens=case.n_new,
        min_new_tokens=case.n_new,
        bad_words_ids=[[PAD]],
        no_repeat_ngram_size=1,
        do_sample=False,
    )
    yield Way("sdpa", generate, lambda found: found[0, 1:].numpy())


class Words:
    """What CTranslate2's converter asks of a tokenizer: the words by their numbers."""

    eos_token, unk_token = "</s>", "<unk>"

    def get_vocab(self):
        words = ["</s>", "<unk>", *(f"w{i}" for i in range(2, PAD)), "<pad>"]
        return {word: i for i, word in enumerate(words)}


def ctranslate2_ways(case, arrays, n_threads):
    class Converter(ctranslate2.converters.TransformersConverter):
        def load_tokenizer(self, *arguments, **more):
            return Words()

    path = folders.root() / "Marian-base-ctranslate2"
    source = str(folder())
    folders.made(path, lambda part: Converter(source).convert(str(part)))
    translator = ctranslate2.Translator(
        str(path),
        device="cpu",
        inter_threads=1,
        intra_threads=n_threads,
        compute_type=case.dtype,
    )
    words = list(Words().get_vocab())
    numbers = {word: i for i, word in enumerate(words)}
    translate = partial(
        translator.translate_batch,
        [[words[i] for i in arrays[0]]],
        beam_size=case.n_beams,
        max_decoding_length=case.n_new,
        min_decoding_length=case.n_new,
        no_repeat_ngram_size=1,
    )

    def read(found):
        return np.array([numbers[word] for word in found[0].hypotheses[0]])

    yield Way("translate_batch", translate, read)


WAYS = {
    "attnpy": attnpy_ways,
    "transformers": transformers_ways,
    "ctranslate2": ctranslate2_ways,
}
