"""A small folder for each class that reads one, and a call of what it reads."""

import functools
import importlib.util
import json

import numpy as np
import pytest

from attnpy import models
from support import encoder_decoders, families, multi_vectors, pictures, sentences


def write_model(folder, config, tensors):
    from safetensors.numpy import save_file

    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors(config), folder / "model.safetensors")


def write_decoder(folder, **changes):
    write_model(folder, {**families.LLAMA, **changes}, families.tensors)


def write_encoder_decoder(folder, **changes):
    config = {**encoder_decoders.T5, **changes}
    write_model(folder, config, encoder_decoders.tensors)
    sentences.tokenizer().save(str(folder / "tokenizer.json"))


def write_pictures(folder, **changes):
    pictures.write(folder, {**pictures.VIT, **changes}, 3)


def write_m3(folder):
    torch = pytest.importorskip("torch")
    sentences.write(folder, "xlm-roberta", {"pooling_mode": "cls"})
    for name, n in (("sparse", 1), ("colbert", 7)):
        rng = np.random.default_rng(n)
        weight = torch.tensor(rng.standard_normal((n, 12), np.float32))
        state = {"weight": weight, "bias": torch.ones(n)}
        torch.save(state, folder / f"{name}_linear.pt")


def write_pair(folder):
    pictures.write(folder, pictures.CLIP)


WRITE = {
    "BertEncoder": sentences.write,
    "CausalDecoder": write_decoder,
    "CrossEncoder": sentences.write_scorer,
    "EncoderDecoder": write_encoder_decoder,
    "FillMask": functools.partial(sentences.write_with_head, masked_words=True),
    "ImageClassifier": write_pictures,
    "ImageEncoder": write_pictures,
    "ImageTextEncoder": write_pair,
    "ImageTextModel": write_pair,
    "M3Encoder": write_m3,
    "MultiVectorEncoder": multi_vectors.write,
    "SentenceEncoder": sentences.write,
    "TextClassifier": functools.partial(sentences.write_scorer, n_labels=3),
    "TextToText": write_encoder_decoder,
    "TokenClassifier": functools.partial(
        sentences.write_with_head, token_classifier=True
    ),
}
# What can be written here: PyTorch writes a head of M3 as its users have it.
WRITABLE = [
    name for name in WRITE if name != "M3Encoder" or importlib.util.find_spec("torch")
]
OPTIONS = {
    "BertEncoder": {"pooler": False},
    "ImageEncoder": {"classifier": True},
}


def read(kind, folder, **options):
    return getattr(models, kind).from_pretrained(
        folder, **OPTIONS.get(kind, {}), **options
    )


def tokens(model):
    return model([1, 2, 3])


CALLS = {
    "BertEncoder": tokens,
    "CausalDecoder": tokens,
    "CrossEncoder": lambda encoder: encoder.predict(sentences.PAIRS),
    "EncoderDecoder": lambda model: model([1, 2, 3], [0, 1]),
    "FillMask": lambda words: words.predict(f"the cat {sentences.MASK}"),
    "ImageClassifier": lambda classifier: classifier.scores(pictures.pictures()),
    "ImageEncoder": lambda model: model(pictures.pixels(pictures.VIT)),
    "ImageTextEncoder": lambda encoder: encoder.encode_images(pictures.pictures()),
    "ImageTextModel": lambda model: model.encode_texts([[28, 1, 29]]),
    "M3Encoder": lambda encoder: encoder.encode(sentences.TEXTS),
    "MultiVectorEncoder": lambda encoder: [
        *encoder.encode_queries(sentences.TEXTS),
        *encoder.encode_documents(sentences.TEXTS),
    ],
    "SentenceEncoder": lambda encoder: encoder.encode(sentences.TEXTS),
    "TextClassifier": lambda classifier: classifier.scores(sentences.TEXTS),
    "TextToText": lambda writer: writer.generate("the cat", 3),
    "TokenClassifier": lambda tagger: tagger.predict(sentences.TEXTS),
}
