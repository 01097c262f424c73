"""Gradients: of attention whose output is there, and of whole layers, forward too."""

import itertools
from dataclasses import dataclass
from functools import partial

import numpy as np

import attnpy

from . import cases, layers, peers
from .lazily import torch
from .peers import Way


@dataclass(frozen=True)
class Backward:
    """The gradients of query, key and value of a call that has been made."""

    call: cases.Case

    @property
    def dtype(self):
        return self.call.dtype

    def arrays(self):
        """The gradient of the output, (B, H, Lq, D), and the call's arrays."""
        return cases.normal(self.call.query_shape, 4, self.dtype), *self.call.arrays()

    def flops(self):
        """Five products for each visible pair, where the call has two."""
        return 2.5 * self.call.flops()


def flat(gradients):
    """Gradients as one array, in float32 at least."""
    wide = np.result_type(np.float32, *(x.dtype for x in gradients[:1]))
    return np.concatenate([np.asarray(x, wide).ravel() for x in gradients])


def attnpy_ways(case, arrays, n_threads):
    options = {**cases.options(case.call), "num_threads": n_threads}
    output, lse = attnpy.attention(*arrays[1:], return_lse=True, **options)
    call = partial(attnpy.attention_vjp, *arrays, output=output, lse=lse, **options)
    yield Way("attention_vjp", call, lambda gradients: flat(gradients[:3]))


def unfused(grad, query, key, value, output, weights, scale):
    """The chain rule as everyone writes it; the forward call kept the weights.

    query, grad and output (..., G Lq, D), key and value (..., Lk, D), weights
    (..., G Lq, Lk)
    """
    delta = (grad * output).sum(axis=-1, keepdims=True)
    grad_scores = np.matmul(grad, value.swapaxes(-1, -2))  # (..., G Lq, Lk)
    grad_scores -= delta
    grad_scores *= weights
    grad_scores *= scale
    return (
        np.matmul(grad_scores, key),
        np.matmul(grad_scores.swapaxes(-1, -2), query),
        np.matmul(weights.swapaxes(-1, -2), grad),
    )


def unfused_by_head(grad, query, key, value, *more):
    """The gradients of one key head at a time, which may fit the cache."""
    *arrays, scale = more
    gradients = [np.empty_like(x) for x in (query, key, value)]
    for index in np.ndindex(*query.shape[:2]):
        parts = (x[index] for x in (grad, query, key, value, *arrays))
        for gradient, part in zip(gradients, unfused(*parts, scale), strict=True):
            gradient[index] = part
    return gradients


def numpy_ways(case, arrays, n_threads):
    if case.dtype not in ("float32", "float64"):
        return
    grad, query, key, value = arrays
    scale, added = query.dtype.type(case.call.dim**-0.5), peers.numpy_mask(case.call)
    query, grad = (x.reshape(case.call.grouped_shape) for x in (query, grad))
    weights = np.matmul(query * scale, key.swapaxes(-1, -2))
    if added is not None:
        weights += added
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    given = grad, query, key, value, np.matmul(weights, value), weights, scale
    yield Way("all heads at once", partial(unfused, *given), flat)
    yield Way("head by head", partial(unfused_by_head, *given), flat)


def with_gradients(call):
    """A call for which PyTorch remembers what gradients need; see without_gradients."""

    def remembered():
        with torch.inference_mode(False), torch.enable_grad():
            return call()

    return remembered


def leaf(array):
    """A tensor of its own memory that wants a gradient; not in inference mode."""
    return peers.to_torch(array).clone().requires_grad_()


def with_leaves(arrays):
    """The output's gradient as a tensor, and query, key and value as leaves."""
    return peers.to_torch(arrays[0]).clone(), tuple(map(leaf, arrays[1:]))


def flat_tensors(gradients):
    return flat([peers.from_torch(x, -1) for x in gradients])


def retained(attend, inputs, grad):
    """The backward pass alone, of a graph that is kept."""
    output = attend(*inputs)
    return partial(torch.autograd.grad, output, inputs, grad, retain_graph=True)


def torch_calls(case, arrays):
    """(name, call) of each way; the forward pass is over when a call comes."""
    call, math = case.call, torch.nn.attention.SDPBackend.MATH
    attend = torch.nn.functional.scaled_dot_product_attention
    grad, inputs = with_leaves(arrays)
    group = call.heads // call.kv_heads
    for name, more in peers.torch_masks(call):
        if group > 1:
            shared = partial(attend, enable_gqa=True, **more)
            yield f"{name}, enable_gqa", retained(shared, inputs, grad)
            copied = partial(peers.repeated, group=group, **more)
            yield f"{name}, repeated heads", retained(copied, inputs, grad)
            if not more:
                query = inputs[0].detach().reshape(call.grouped_shape).requires_grad_()
                few, rows = (query, *inputs[1:]), grad.reshape(call.grouped_shape)
                yield "heads as queries", retained(attend, few, rows)
            continue
        yield name, retained(partial(attend, **more), inputs, grad)
        with torch.nn.attention.sdpa_kernel(math):  # which keeps the weights
            kept = retained(partial(attend, **more), inputs, grad)
        yield f"{name}, unfused", kept
        if more.keys() <= {"is_causal"}:
            yield f"{name}, without autograd", kernel(inputs, grad, bool(more))


def kernel(inputs, grad, is_causal):
    """What autograd calls, by itself."""
    query, key, value = (x.detach() for x in inputs)
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output, lse = forward(query, key, value, 0.0, is_causal)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return partial(backward, grad, query, key, value, output, lse, 0.0, is_causal)


def torch_ways(case, arrays, n_threads):
    ways = torch_calls(case, arrays)
    while True:
        with torch.inference_mode(False), torch.enable_grad():
            name, call = next(ways, (None, None))
        if call is None:
            return
        yield Way(name, with_gradients(call), flat_tensors)


@dataclass(frozen=True)
class LayerStep:
    """A multi-head layer forward and backward: gradients of tokens and parameters."""

    layer: layers.Layer

    dtype = "float32"

    def arrays(self):
        """The gradient of the result, (B, L, E), the tokens, and attnpy's layer."""
        x, mha = self.layer.arrays()
        return cases.normal(x.shape, 4), x, mha

    def flops(self):
        """Each product with weights has two more backwards, the five of pairs."""
        products = 8 * self.layer.batch * self.layer.length * self.layer.embed_dim**2
        return 3 * products + 3.5 * (self.layer.flops() - products)


def flat_step(case, grad_x, parameters):
    """The tokens' gradient and, as they are sums over tokens, the others' shares."""
    share = (case.layer.batch * case.layer.length) ** -0.5
    return flat([grad_x, *(share * parameters[name] for name in sorted(parameters))])


def attnpy_layer_ways(case, arrays, n_threads):
    grad, x, mha = arrays

    def call():
        _, pullback = mha.vjp(x, num_threads=n_threads)
        return pullback(grad)

    yield Way("vjp", call, lambda got: flat_step(case, got.x, got.parameters))


def torch_layer_ways(case, arrays, n_threads):
    grad, x, mha = arrays
    with torch.inference_mode(False), torch.no_grad():
        layer = layers.torch_layer(mha).train()
        grad, x = torch.from_numpy(grad).clone(), leaf(x)
    inputs = [x, *layer.parameters()]

    def module():
        output, _ = layer(x, x, x, need_weights=False)
        return torch.autograd.grad(output, inputs, grad)

    def functions():
        return torch.autograd.grad(layers.written_out(x, layer), inputs, grad)

    def read(gradients):
        names = ["x", *(name for name, _ in layer.named_parameters())]
        found = {n: x.numpy() for n, x in zip(names, gradients, strict=True)}
        return flat_step(case, found.pop("x"), attnpy_names(found))

    yield Way("torch.nn.MultiheadAttention", with_gradients(module), read)
    yield Way("written out", with_gradients(functions), read)


def attnpy_names(found):
    """Gradients of torch.nn.MultiheadAttention, by the names of attnpy's parameters."""
    named = {"W_o": found["out_proj.weight"].T, "b_o": found["out_proj.bias"]}
    thirds = itertools.product((("W", "weight"), ("b", "bias")), enumerate("qkv"))
    for (letter, kind), (i, which) in thirds:
        named[f"{letter}_{which}"] = np.split(found[f"in_proj_{kind}"], 3)[i].T
    return named


WAYS = {"attnpy": attnpy_ways, "torch": torch_ways, "numpy": numpy_ways}
LAYER_WAYS = {"attnpy": attnpy_layer_ways, "torch": torch_layer_ways}
