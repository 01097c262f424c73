"""CTranslate2's encoder, from its own converter of Hugging Face's models."""

from __future__ import annotations

import numpy as np

from . import folders


def convert(name, path):
    """Write CTranslate2's files of a folder, whose tokenizer it wants to see."""
    from ctranslate2.converters import TransformersConverter
    from transformers import BertTokenizerFast

    class Converter(TransformersConverter):
        def load_tokenizer(self, *arguments, **more):
            words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            n_words = folders.CONFIGS[name]["vocab_size"]
            words += [f"word{i}" for i in range(len(words), n_words)]
            vocabulary = {word: i for i, word in enumerate(words)}
            return BertTokenizerFast(vocab=vocabulary)

    Converter(str(folders.folder(name))).convert(str(path))


def encoder_calls(name, case, n_threads):
    """(name, call) of each way; a call gives the vectors, (B, L, E)."""
    import ctranslate2

    path = folders.root() / f"{name}-ctranslate2"
    folders.made(path, lambda part: convert(name, part))
    encoder = ctranslate2.Encoder(
        str(path),
        device="cpu",
        inter_threads=1,
        intra_threads=n_threads,
        compute_type=case.dtype,
    )
    lists = [
        row[:length].tolist()
        for row, length in zip(case.ids(), case.lengths(), strict=True)
    ]
    ids = ctranslate2.StorageView.from_array(case.ids().astype(np.int32))
    lengths = ctranslate2.StorageView.from_array(case.lengths().astype(np.int32))

    def states(output):
        return np.array(output.last_hidden_state)

    yield "arrays", lambda: states(encoder.forward_batch(ids, lengths))
    yield "lists", lambda: states(encoder.forward_batch(lists))
