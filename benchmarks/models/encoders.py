"""BERT's encoder in the sizes of all-MiniLM-L6-v2, with random weights."""

import functools
from dataclasses import dataclass
from functools import partial

import numpy as np

import attnpy

from .. import cases
from ..layers import numpy_layer, packed, torch_weights
from ..lazily import torch
from ..onnx_ways import bound, session
from ..peers import Way, numpy_attends, torch_fast_paths
from . import (
    ctranslate2_ways,
    exported,
    folders,
    gguf_files,
    llamacpp_ways,
    openvino_ways,
    transformers_ways,
)

NAME = "MiniLM"
CONFIG = folders.CONFIGS[NAME]
N_LAYERS, HEADS = CONFIG["num_hidden_layers"], CONFIG["num_attention_heads"]
EMBED_DIM, HIDDEN_DIM = CONFIG["hidden_size"], CONFIG["intermediate_size"]
EPS = CONFIG["layer_norm_eps"]

# The fastest of attnpy's groups whose error on English is below that of every other
# library: `python -m benchmarks experiments accuracy`.
GROUP = 512


@dataclass(frozen=True)
class Sentences:
    """B sentences of L tokens; if ragged, of different lengths between 8 and L.

    dtype may be a type of `gguf_files.TYPES`, and `activations` how attnpy's rows are
    multiplied with such integers.
    """

    batch: int
    length: int
    ragged: bool = False
    dtype: str = "float32"
    activations: str = "float"

    model = NAME

    def ids(self):
        """The tokens, (B, L), with padding 0."""
        rng = np.random.default_rng(2)
        ids = rng.integers(1, CONFIG["vocab_size"], size=(self.batch, self.length))
        return np.where(self.exists(), ids, 0)

    def arrays(self):
        """The tokens, and attnpy's model in the case's dtype."""
        if self.dtype in gguf_files.TYPES:
            return self.ids(), bert_of_gguf(self.dtype, self.activations)
        return self.ids(), bert(self.dtype)

    def lengths(self):
        """How many tokens each sentence has, (B,)."""
        if not self.ragged:
            return np.full(self.batch, self.length)
        lengths = np.linspace(8, self.length, self.batch).astype(np.int64)
        return np.random.default_rng(3).permutation(lengths)

    def exists(self):
        """Which tokens are not padding, (B, L)."""
        return np.arange(self.length) < self.lengths()[:, np.newaxis]

    def expected(self):
        """The vectors of the tokens that exist, in float64, by attnpy: (N, E)."""
        exact = bert("float64")
        if self.dtype in gguf_files.TYPES:
            exact = attnpy.models.BertEncoder.from_gguf(
                gguf_files.path(NAME, self.dtype), dtype=np.float64
            )
        return self.read(exact(self.ids(), lengths=self.lengths()))

    def read(self, states):
        """The vectors of the tokens that exist, (N, E), as some ways have them."""
        states = np.asarray(states)
        return states if states.ndim == 2 else states[self.exists()]

    def flops(self):
        return flops(CONFIG, self.lengths())


def flops(config, lengths):
    """The products of BERT over sentences of so many tokens."""
    e, inner = config["hidden_size"], config["intermediate_size"]
    weights = 4 * e**2 + 2 * e * inner
    pairs = 4 * e * (lengths**2).sum()
    return config["num_hidden_layers"] * int(2 * weights * lengths.sum() + pairs)


@functools.cache
def bert(dtype, packed=True):
    """attnpy's model; float64 is the yardstick. Peers take weights not packed."""
    read = attnpy.models.BertEncoder.from_pretrained
    if dtype == "int8":
        model = read(folders.folder(NAME))
        model.quantize(activations="int8", group=GROUP)
        return model
    return read(folders.folder(NAME), dtype=cases.dtype_of(dtype), packed=packed)


@functools.cache
def bert_of_gguf(dtype, activations):
    """attnpy's model of a GGUF file, whose integers are kept."""
    return attnpy.models.BertEncoder.from_gguf(
        gguf_files.path(NAME, dtype), weights="file", activations=activations
    )


def attnpy_ways(case, arrays, n_threads):
    ids, model = arrays
    lengths = case.lengths() if case.ragged else None
    call = partial(model, ids, lengths=lengths, num_threads=n_threads)
    yield Way("BertEncoder", call, case.read)


def normalized(x, norm):
    x = x - x.mean(axis=-1, keepdims=True)
    x /= np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(EPS))
    return x * norm.weight + norm.bias


def gelu(x):
    """x times the normal distribution function, with the erf of Abramowitz and Stegun.

    Handbook of Mathematical Functions, 7.1.26: an error of 1.5e-7 at most.
    """
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    powers = np.float32((1.061405429, -1.453152027, 1.421413741, -0.284496736))
    series = powers[0] * t
    for power in powers[1:]:
        series = (series + power) * t
    tail = (series + np.float32(0.254829592)) * t * np.exp(-z * z)  # 1 - erf(z)
    return 0.5 * x * np.where(x < 0, tail, 2 - tail)


def numpy_encoder(ids, model, layers, added, attend):
    """ids (B, L) -> (B, L, E). layers: for each its layer and its packed weights."""
    x = model.token_embedding[ids] + model.position_embedding[: ids.shape[1]]
    x = normalized(x + model.segment_embedding[0], model.norm)
    for layer, weights in layers:
        x = normalized(x + numpy_layer(x, weights, HEADS, added, attend), layer.norm_1)
        inner = layer.feed_forward
        hidden = gelu(x @ inner.W_1 + inner.b_1)  # (B, L, F)
        x = normalized(x + hidden @ inner.W_2 + inner.b_2, layer.norm_2)
    return x


def numpy_ways(case, arrays, n_threads):
    if case.dtype != "float32":
        return
    ids, model = arrays[0], bert("float32", packed=False)
    layers = []
    for layer in model.encoder.layers:
        mha = layer.self_attention
        layers.append((layer, (*packed(mha), mha.W_o, mha.b_o)))
    added = None
    if case.ragged:
        exists = case.exists()[:, np.newaxis, np.newaxis]  # (B, 1, 1, L)
        added = np.where(exists, np.float32(0), np.float32(-np.inf))
    for name, attend in numpy_attends(n_threads):
        call = partial(numpy_encoder, ids, model, layers, added, attend)
        yield Way(name, call, case.read)


def torch_encoder(model, nested):
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(
        *(EMBED_DIM, HEADS, HIDDEN_DIM),
        activation="gelu",
        layer_norm_eps=EPS,
        batch_first=True,
    )
    encoder = nn.TransformerEncoder(layer, N_LAYERS, enable_nested_tensor=nested)
    for theirs, ours in zip(encoder.layers, model.encoder.layers, strict=True):
        found, inner = (
            torch_weights(ours.self_attention, "self_attn."),
            ours.feed_forward,
        )
        for name, weight, bias in (
            ("linear1", inner.W_1.T, inner.b_1),
            ("linear2", inner.W_2.T, inner.b_2),
            ("norm1", ours.norm_1.weight, ours.norm_1.bias),
            ("norm2", ours.norm_2.weight, ours.norm_2.bias),
        ):
            found[f"{name}.weight"] = torch.from_numpy(weight)
            found[f"{name}.bias"] = torch.from_numpy(bias)
        theirs.load_state_dict(found)
    return encoder.eval()


def torch_ways(case, arrays, n_threads):
    ids, model = torch.from_numpy(arrays[0]), bert("float32", packed=False)
    dtype = getattr(torch, case.dtype)
    tables = model.token_embedding, model.position_embedding, model.segment_embedding
    tokens, positions, segments, weight, bias = (
        torch.from_numpy(array).to(dtype)
        for array in (*tables, model.norm.weight, model.norm.bias)
    )
    padding = torch.from_numpy(~case.exists()) if case.ragged else None

    def call(encoder):
        x = torch.nn.functional.embedding(ids, tokens)
        x = x + positions[: case.length] + segments[0]
        x = torch.nn.functional.layer_norm(x, (EMBED_DIM,), weight, bias, EPS)
        return encoder(x, src_key_padding_mask=padding)

    for nested in (False, True) if case.ragged else (False,):
        encoder = torch_encoder(model, nested).to(dtype)
        for name, run in torch_fast_paths(partial(call, encoder)):
            name += ", nested tensors" if nested else ""
            yield Way(name, run, lambda states: case.read(states.float()))


def onnxruntime_ways(case, arrays, n_threads):
    if case.dtype not in ("float32", "int8"):
        return
    inputs = exported.inputs(arrays[0], case.exists())
    path = exported.graph(folders.folder(NAME))
    for name, file in (("exported", path), ("optimized", exported.optimized(path))):
        if case.dtype == "int8":
            file = exported.quantized(file)
        outputs = {exported.OUTPUT: np.empty((*arrays[0].shape, EMBED_DIM), np.float32)}
        call = bound(session(file, n_threads), inputs, outputs)
        yield Way(name, call, case.read)


WAYS = {
    "attnpy": attnpy_ways,
    "torch": torch_ways,
    "transformers": transformers_ways.encoder_ways,
    "onnxruntime": onnxruntime_ways,
    "openvino": openvino_ways.encoder_ways,
    "ctranslate2": ctranslate2_ways.encoder_ways,
    "llamacpp": llamacpp_ways.encoder_ways,
    "numpy": numpy_ways,
}
