"""Multi-head layers: attention between its projections, in float32."""

from dataclasses import dataclass
from functools import partial

import numpy as np

import attnpy

from . import cases
from .lazily import onnx, torch
from .onnx_ways import OWN, bound, model_of, session
from .peers import Way, numpy_attends, torch_fast_paths, unfused


@dataclass(frozen=True)
class Layer:
    """Self-attention of B sequences of L tokens of size E in H heads, with biases."""

    batch: int
    length: int
    embed_dim: int
    heads: int

    dtype = "float32"

    def arrays(self):
        """The tokens, (B, L, E), and attnpy's layer, whose weights the peers take."""
        rng, sizes = np.random.default_rng(1), (self.embed_dim, self.heads)
        mha = filled(attnpy.MultiHeadAttention(*sizes, bias=True, rng=rng), rng)
        return cases.normal((self.batch, self.length, self.embed_dim), 2), mha

    def flops(self):
        """Four E x E projections of each token, and two products for each pair."""
        projections = 8 * self.length * self.embed_dim**2
        pairs = 4 * self.length**2 * self.embed_dim
        return self.batch * (projections + pairs)


def filled(model, rng):
    """A model whose biases and norms are moved, that none can be forgotten."""
    for array in model.parameters().values():
        if array.ndim == 1:
            array += 0.1 * rng.standard_normal(array.shape, dtype=np.float32)
    return model


def packed(mha):
    """W (E, 3 E) and b (3 E,) or None: queries', keys' and values' side by side."""
    weight = np.concatenate([mha.W_q, mha.W_k, mha.W_v], axis=1)
    biases = [mha.b_q, mha.b_k, mha.b_v]
    return weight, None if mha.b_q is None else np.concatenate(biases)


def attnpy_ways(case, arrays, n_threads):
    x, mha = arrays
    yield Way("MultiHeadAttention", partial(mha, x, num_threads=n_threads))


def numpy_layer(x, weights, heads, added=None, attend=unfused):
    """x (B, L, E) -> (B, L, E). weights: the packed ones, W_o and b_o."""
    weight, bias, W_o, b_o = weights
    shape = (*x.shape[:2], 3, heads, -1)
    projected = (x @ weight + bias).reshape(shape)  # (B, L, 3, H, D)
    query, key, value = projected.transpose(2, 0, 3, 1, 4)  # (B, H, L, D) each
    scale = np.float32(query.shape[-1] ** -0.5)
    attended = attend(query, key, value, scale, added)
    return attended.swapaxes(1, 2).reshape(x.shape) @ W_o + b_o


def numpy_ways(case, arrays, n_threads):
    x, mha = arrays
    weights = (*packed(mha), mha.W_o, mha.b_o)
    for name, attend in numpy_attends(n_threads):
        yield Way(name, partial(numpy_layer, x, weights, case.heads, attend=attend))


def torch_layer(mha):
    layer = torch.nn.MultiheadAttention(len(mha.W_q), mha.num_heads, batch_first=True)
    layer.load_state_dict(torch_weights(mha))
    return layer.eval()


def torch_weights(mha, prefix=""):
    weight, bias = packed(mha)
    arrays = {"in_proj_weight": weight.T, "in_proj_bias": bias}
    arrays |= {"out_proj.weight": mha.W_o.T, "out_proj.bias": mha.b_o}
    return {prefix + name: torch.from_numpy(array) for name, array in arrays.items()}


def written_out(x, layer):
    """What nn.MultiheadAttention computes, with scaled_dot_product_attention."""
    shape = (*x.shape[:2], 3, layer.num_heads, layer.head_dim)
    linear = torch.nn.functional.linear
    projected = linear(x, layer.in_proj_weight, layer.in_proj_bias)
    query, key, value = projected.view(shape).permute(2, 0, 3, 1, 4)  # (B, H, L, D)
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    joined = attended.transpose(1, 2).reshape(x.shape)
    return linear(joined, layer.out_proj.weight, layer.out_proj.bias)


def torch_ways(case, arrays, n_threads):
    x, layer = torch.from_numpy(arrays[0]), torch_layer(arrays[1])
    for name, run in torch_fast_paths(partial(layer, x, x, x, need_weights=False)):
        yield Way(name, run, lambda result: result[0].numpy())
    yield Way("written out", partial(written_out, x, layer), lambda y: y.numpy())


def onnxruntime_ways(case, arrays, n_threads):
    x, mha = arrays
    names = ("weight", "bias", "W_o", "b_o")
    weights = dict(zip(names, (*packed(mha), mha.W_o, mha.b_o), strict=True))
    own = {"domain": OWN, "num_heads": mha.num_heads}
    node = onnx.helper.make_node
    ends = [
        node("MatMul", ["attended", "W_o"], ["projected"]),
        node("Add", ["projected", "b_o"], ["output"]),
    ]
    parts = ["query", "key", "value"]
    ways = {
        "Attention": [node("Attention", ["x", "weight", "bias"], ["attended"], **own)],
        "MultiHeadAttention": [
            node("MatMul", ["x", "weight"], ["packed"]),
            node("Split", ["packed"], parts, axis=-1, num_outputs=3),
            node("MultiHeadAttention", [*parts, "bias"], ["attended"], **own),
        ],
    }
    for name, nodes in ways.items():
        inputs, outputs = {"x": x}, {"output": np.empty_like(x)}
        model = model_of([*nodes, *ends], inputs, outputs, weights)
        yield Way(name, bound(session(model, n_threads), inputs, outputs))


WAYS = {
    "attnpy": attnpy_ways,
    "torch": torch_ways,
    "onnxruntime": onnxruntime_ways,
    "numpy": numpy_ways,
}
