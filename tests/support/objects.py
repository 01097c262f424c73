"""An object of each public class, for tests of what all classes have in common."""

import numpy as np

import attnpy
from attnpy import (
    blocks,
    cache,
    checkpoints,
    diagrams,
    layers,
    models,
    pages,
    positions,
    training,
    view,
)
from attnpy._packed_weight import PackedTable, PackedWeight
from attnpy._quantized import QuantizedTable
from attnpy.models._pooling import Dense, Normalize
from support import gguf_files, pictures, sentences
from support.arrays import normal

Q = normal(4, 6, 8)
RNG = np.random.default_rng(0)


def sentence_encoder(folder):
    sentences.require()
    sentences.write(folder)
    return models.SentenceEncoder.from_pretrained(folder)


def cross_encoder(folder):
    sentences.require()
    sentences.write_scorer(folder)
    return models.CrossEncoder.from_pretrained(folder)


def text_classifier(folder):
    sentences.require()
    sentences.write_scorer(folder, n_labels=2)
    return models.TextClassifier.from_pretrained(folder)


def token_classifier(folder):
    sentences.require()
    sentences.write_with_head(folder, token_classifier=True)
    return models.TokenClassifier.from_pretrained(folder)


def fill_mask(folder):
    sentences.require()
    sentences.write_with_head(folder, masked_words=True)
    return models.FillMask.from_pretrained(folder)


def text_to_text(_):
    sentences.require()
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({"a": 0}, "a"))
    model = models.EncoderDecoder(1, 8, 2, 32, vocab_size=9, num_buckets=4)
    return models.TextToText(model, tokenizer)


def m3_encoder(folder):
    encoder, rng = sentence_encoder(folder), np.random.default_rng(0)
    heads = [rng.random(shape) for shape in ((12, 1), 1, (12, 7), 7)]
    return models.M3Encoder(encoder, *heads)


def multi_vector_encoder(folder):
    encoder = sentence_encoder(folder)
    return models.MultiVectorEncoder(
        encoder.model, encoder.tokenizer, expansion_token="moon", query_length=8
    )


def image_encoder(**options):
    return models.ImageEncoder(1, 8, 2, 32, image_size=8, patch_size=4, **options)


def image_classifier():
    return models.ImageClassifier(
        image_encoder(num_labels=2), models.ImageProcessor((8, 8))
    )


def image_text_model():
    text = models.CausalDecoder(1, 8, 2, 32, vocab_size=30, max_length=9, tied=None)
    return models.ImageTextModel(image_encoder(pooler="norm"), text, 4, end_token=29)


def image_text_encoder():
    sentences.require()
    processor = models.ImageProcessor((8, 8))
    return models.ImageTextEncoder(image_text_model(), pictures.tokenizer(), processor)


def search_result(folder):
    return sentence_encoder(folder).search("cat", normal(9, 12))


def checkpoint(folder):
    sentences.require()
    sentences.write(folder)
    return checkpoints.Checkpoint(folder / "model.safetensors")


def gguf_file(folder):
    gguf_files.require()
    arrays = {"w": np.ones((2, 32), np.float32)}
    return checkpoints.load_gguf(gguf_files.write(folder / "model.gguf", {}, arrays))


def layer_gradients():
    output, pullback = blocks.FeedForward(8, 32).vjp(Q[0])
    return pullback(output)


# Each takes a folder for what it reads.
EXAMPLES = {
    "AttentionGradients": lambda _: attnpy.attention_vjp(Q, Q, Q, Q),
    "Explanation": lambda _: attnpy.explain(Q, Q, Q),
    "KVCache": lambda _: cache.KVCache(2, 3, 9, 5, lengths=[1, 7]),
    "MultiHeadAttention": lambda _: layers.MultiHeadAttention(12, 4),
    "PartialAttention": lambda _: attnpy.attend_partial(Q, Q, Q),
    "Plan": lambda _: attnpy.Plan(Q, Q, Q, causal=True, kv_lengths=5),
    "QuantizedWeight": lambda _: attnpy.quantize(normal(8, 9)),
    "SelfAttention": lambda _: layers.SelfAttention(6, 3),
    "blocks.Decoder": lambda _: blocks.Decoder(2, 8, 2, 32),
    "blocks.DecoderLayer": lambda _: blocks.DecoderLayer(8, 2, 32),
    "blocks.Embedding": lambda _: blocks.Embedding(9, 8),
    "blocks.Encoder": lambda _: blocks.Encoder(2, 8, 2, 32),
    "blocks.EncoderLayer": lambda _: blocks.EncoderLayer(8, 2, 32),
    "blocks.FeedForward": lambda _: blocks.FeedForward(8, 32),
    "blocks.MixtureOfExperts": lambda _: blocks.MixtureOfExperts(8, 32, 4, 2),
    "blocks.Linear": lambda _: blocks.Linear(8, 3),
    "blocks.ModelOutput": lambda _: blocks.Encoder(2, 8, 2, 32)(Q, return_weights=True),
    "blocks.LayerNorm": lambda _: blocks.LayerNorm(8),
    "blocks.RMSNorm": lambda _: blocks.RMSNorm(8),
    "checkpoints.Checkpoint": checkpoint,
    "checkpoints.Family": lambda _: checkpoints.FAMILIES["bert"],
    "checkpoints.GgufFile": gguf_file,
    "diagrams.Diagram": lambda _: diagrams.multi_head_attention(),
    "layers.LayerGradients": lambda _: layer_gradients(),
    "models.BertEncoder": lambda _: models.BertEncoder(1, 8, 2, 32, vocab_size=9),
    "models.CausalDecoder": lambda _: models.CausalDecoder(1, 8, 2, 32, vocab_size=9),
    "models.ContinuousBatch": lambda _: models.ContinuousBatch(
        models.CausalDecoder(1, 8, 2, 32, vocab_size=9), 4
    ),
    "models.CrossEncoder": cross_encoder,
    "models.EncoderDecoder": lambda _: models.EncoderDecoder(
        1, 8, 2, 32, vocab_size=9, num_buckets=4
    ),
    "models.FillMask": fill_mask,
    "models.ImageClassifier": lambda _: image_classifier(),
    "models.ImageEncoder": lambda _: image_encoder(),
    "models.ImageProcessor": lambda _: models.ImageProcessor((8, 8)),
    "models.ImageTextEncoder": lambda _: image_text_encoder(),
    "models.ImageTextModel": lambda _: image_text_model(),
    "models.M3Encoder": m3_encoder,
    "models.M3Vectors": lambda folder: m3_encoder(folder).encode("cat"),
    "models.MultiVectorEncoder": multi_vector_encoder,
    "models.Prefix": lambda _: models.CausalDecoder(1, 8, 2, 32, vocab_size=9).prefill(
        [1, 2]
    ),
    "models.SentenceEncoder": sentence_encoder,
    "models.TextClassifier": text_classifier,
    "models.TextToText": text_to_text,
    "models.TokenClassifier": token_classifier,
    "pages.PagePool": lambda _: pages.PagePool(5, 2, 8),
    "pages.PagedKVCache": lambda _: pages.PagedKVCache(pages.PagePool(5, 2, 8), 3),
    "positions.Learned": lambda _: positions.Learned(5, 6),
    "positions.Disentangled": lambda _: positions.Disentangled(normal(8, 12)),
    "positions.Rotary": lambda _: positions.Rotary(8),
    "training.AdamW": lambda _: training.AdamW(blocks.LayerNorm(8).parameters()),
    "view.View": lambda _: view.head_view(np.eye(3), ["a", "b", "c"]),
}
RETURNED = {
    "Statistics": lambda _: attnpy.statistics(Q, Q),
    "SearchResult": lambda folder: sentence_encoder(folder).search(
        "cat", normal(9, 12)
    ),
    "PackedTable": lambda _: PackedTable(normal(8, 8)),
    "PackedWeight": lambda _: PackedWeight(normal(8, 8)),
    "QuantizedTable": lambda _: QuantizedTable(attnpy.quantize(normal(8, 9))),
    "Dense": lambda _: Dense(normal(8, 4), None, "tanh"),
    "Normalize": lambda _: Normalize(),
}
