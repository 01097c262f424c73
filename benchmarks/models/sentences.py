"""Texts to vectors: tokenizer, encoder, pooling, in the sizes of all-MiniLM-L6-v2.

The weights are random, and so are the words, most of which are one token and some two
or three. Every system reads the same folder of sentence-transformers.
"""

import functools
import json
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

import attnpy

from ..lazily import tokenizers
from ..peers import Way
from . import encoders, exported, folders

LONGEST = 256  # tokens, as the model's folder has it
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PACKAGE = "sentence_transformers.models"
BATCHES = (32, 128)  # texts at a time, of which a peer's users choose


@dataclass(frozen=True)
class Texts:
    """So many texts, the shortest of 4 words and a few of hundreds."""

    n: int
    model: str = encoders.NAME
    dtype: str = "float32"

    def arrays(self):
        rng = np.random.default_rng(4)
        counts = np.minimum(4 + rng.lognormal(2.5, 0.9, self.n).astype(int), 300)
        return [" ".join(rng.choice(words(), n)) for n in counts]

    def n_tokens(self):
        """How many tokens the texts have, what is cut off left out."""
        return sum(len(ids) for ids in tokens(self))

    def flops(self):
        lengths = np.array([len(ids) for ids in tokens(self)])
        return encoders.flops(folders.CONFIGS[self.model], lengths)

    def expected(self):
        """The vectors in float64, (n, E), by attnpy: the yardstick."""
        return encoder(self.model, "float64").encode(self.arrays())

    def facts(self):
        return {**asdict(self), "tokens": self.n_tokens()}


@functools.cache
def words():
    """The words of texts: syllables of the vocabulary, one after the other."""
    rng = np.random.default_rng(5)
    known = vocabulary()
    first = [word for word in known if word[0] not in "[#"]
    more = [word[2:] for word in known if word.startswith("##")]
    parts = rng.choice((1, 1, 1, 2, 3), 4000)
    return [
        "".join([rng.choice(first), *rng.choice(more, n_parts - 1)])
        for n_parts in parts
    ]


@functools.cache
def vocabulary():
    """As many tokens as the model has."""
    syllables = [a + b + c for a in "bdfgklmnpr" for b in "aeiou" for c in "lmnrstxz"]
    n = folders.CONFIGS[encoders.NAME]["vocab_size"]
    return [*SPECIAL, *syllables, *(f"##{x}" for x in syllables)][:n]


def folder(name):
    """The folder of a model with all that makes vectors of texts, written once."""
    path = folders.root() / f"{name.replace(' ', '-')}-sentences"
    return folders.made(path, partial(write, name))


def write(name, path):
    folders.write(path, folders.CONFIGS[name])
    known = {word: i for i, word in enumerate(vocabulary())}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(known, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    ends = ((word, known[word]) for word in ("[SEP]", "[CLS]"))
    made.post_processor = tokenizers.processors.BertProcessing(*ends)
    made.add_special_tokens(list(SPECIAL))
    made.save(str(path / "tokenizer.json"))
    special = {f"{word[1:-1].lower()}_token": word for word in SPECIAL}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    more = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
    size = folders.CONFIGS[name]["hidden_size"]
    pooling = {"word_embedding_dimension": size, "pooling_mode_mean_tokens": True}
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"{PACKAGE}.{kind}"}
        for i, (place, kind) in enumerate(kinds.items())
    ]
    (path / "1_Pooling").mkdir()
    for file, content in {
        "special_tokens_map.json": special,
        "tokenizer_config.json": {**special, **more, "model_max_length": LONGEST},
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": LONGEST},
        "1_Pooling/config.json": pooling,
    }.items():
        (path / file).write_text(json.dumps(content), "utf-8")


@functools.cache
def encoder(name, dtype):
    return attnpy.models.SentenceEncoder.from_pretrained(folder(name), dtype=dtype)


@functools.cache
def tokens(case):
    tokenizer = encoder(case.model, "float64").tokenizer
    return [code.ids for code in tokenizer.encode_batch(case.arrays())]


def attnpy_ways(case, texts, n_threads):
    encode = encoder(case.model, case.dtype).encode
    call = partial(encode, texts, progress=False, num_threads=n_threads)
    yield Way("SentenceEncoder", call)


def sentence_transformers_ways(case, texts, n_threads):
    """On PyTorch, whose threads the process has been told."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder(case.model)), device="cpu")
    for batch_size in BATCHES:
        call = partial(model.encode, texts, batch_size=batch_size)
        yield Way(f"batches of {batch_size}", call)


@functools.cache
def fastembed_model(name, n_threads):
    """On ONNX Runtime, with a graph that PyTorch has written."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    path = folder(name)
    exported.graph(path)
    if name not in {known["model"] for known in TextEmbedding.list_supported_models()}:
        TextEmbedding.add_custom_model(
            model=name,
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(hf=name),
            dim=folders.CONFIGS[name]["hidden_size"],
            model_file="model.onnx",
        )
    return TextEmbedding(
        name, threads=n_threads, specific_model_path=str(path), cuda=False
    )


def fastembed_ways(case, texts, n_threads):
    model = fastembed_model(case.model, n_threads)
    for batch_size in BATCHES:
        embed = partial(model.embed, texts, batch_size=batch_size)
        yield Way(f"batches of {batch_size}", lambda embed=embed: list(embed()))


def fastembed_sorted_ways(case, texts, n_threads):
    """With texts of similar lengths together, which it leaves to its user."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    for way in fastembed_ways(case, [texts[i] for i in order], n_threads):
        yield replace(way, read=lambda vectors: np.stack(vectors)[np.argsort(order)])


WAYS = {
    "attnpy": attnpy_ways,
    "sentence_transformers": sentence_transformers_ways,
    "fastembed": fastembed_ways,
    "fastembed_sorted": fastembed_sorted_ways,
}
