"""CTranslate2's encoder, from its own converter of Hugging Face's models."""

from functools import partial

import numpy as np

from ..lazily import ctranslate2, transformers
from ..peers import Way
from . import folders


def convert(name, path):
    """Write CTranslate2's files of a folder, whose tokenizer it wants to see."""

    class Converter(ctranslate2.converters.TransformersConverter):
        def load_tokenizer(self, *arguments, **more):
            words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            n_words = folders.CONFIGS[name]["vocab_size"]
            words += [f"word{i}" for i in range(len(words), n_words)]
            vocabulary = {word: i for i, word in enumerate(words)}
            return transformers.BertTokenizerFast(vocab=vocabulary)

    Converter(str(folders.folder(name))).convert(str(path))


def encoder_ways(case, arrays, n_threads):
    path = folders.root() / f"{case.model}-ctranslate2"
    folders.made(path, partial(convert, case.model))
    encoder = ctranslate2.Encoder(
        str(path),
        device="cpu",
        inter_threads=1,
        intra_threads=n_threads,
        compute_type=case.dtype,
    )
    lists = [
        row[:n].tolist() for row, n in zip(case.ids(), case.lengths(), strict=True)
    ]
    ids = ctranslate2.StorageView.from_array(case.ids().astype(np.int32))
    lengths = ctranslate2.StorageView.from_array(case.lengths().astype(np.int32))

    def states(output):
        return np.array(output.last_hidden_state)

    yield Way("arrays", lambda: states(encoder.forward_batch(ids, lengths)), case.read)
    yield Way("lists", lambda: states(encoder.forward_batch(lists)), case.read)
