"""attnpy's CausalDecoder written out in PyTorch for one sequence, with its weights.

PyTorch is imported where it is used.
"""

import numpy as np

from ..layers import packed
from ..lazily import torch


class TorchModel:
    """A model whose layers are functions of PyTorch's tensors.

    own: how an array becomes a tensor. laid_out: matrices as in torch.nn.Linear,
    (out, in) in C order; otherwise attnpy's memory, transposed.
    """

    def __init__(self, model, own, laid_out=True):
        self.F, self.own, self.laid_out = torch.nn.functional, own, laid_out
        self.token_embedding = own(model.token_embedding)
        positions = model.position_embedding
        self.position_embedding = None if positions is None else own(positions)
        self.layers = [self.layer(layer) for layer in model.decoder.layers]
        self.norm = self.norm_of(model.decoder.norm)
        mha = model.decoder.layers[0].self_attention
        self.heads, self.kv_heads = mha.num_heads, mha.num_kv_heads

    def linear(self, weight, bias):
        if self.laid_out:
            weight = self.own(np.ascontiguousarray(weight.T))
        else:
            weight = self.own(weight).T
        bias = None if bias is None else self.own(bias)
        return lambda x: self.F.linear(x, weight, bias)

    def norm_of(self, norm):
        weight, eps = self.own(norm.weight), norm.eps
        if not hasattr(norm, "bias"):
            return lambda x: self.F.rms_norm(x, weight.shape, weight, eps)
        bias = self.own(norm.bias)
        return lambda x: self.F.layer_norm(x, weight.shape, weight, bias, eps)

    def feed_forward(self, inner):
        first = self.linear(inner.W_1, inner.b_1)
        second = self.linear(inner.W_2, inner.b_2)
        if inner.W_gate is None:
            return lambda x: second(self.F.gelu(first(x), approximate="tanh"))
        gate = self.linear(inner.W_gate, inner.b_gate)
        return lambda x: second(self.F.silu(gate(x)) * first(x))

    def layer(self, layer):
        mha = layer.self_attention
        return (
            self.norm_of(layer.norm_1),
            self.linear(*packed(mha)),
            self.linear(mha.W_o, mha.b_o),
            self.norm_of(layer.norm_3),
            self.feed_forward(layer.feed_forward),
        )

    def states(self, ids, start=0):
        """The vectors of tokens (..., L) before the last norm, (..., L, E)."""
        x = self.F.embedding(ids, self.token_embedding)
        if self.position_embedding is not None:
            x = x + self.position_embedding[start : start + ids.shape[-1]]
        for i, (norm_1, project, output, norm_2, feed) in enumerate(self.layers):
            x = x + output(self.attend(project(norm_1(x)), i, start))
            x = x + feed(norm_2(x))
        return x


class TorchDecoder(TorchModel):
    """A model that generates up to capacity tokens, those of the prompt included."""

    def __init__(self, model, capacity, laid_out):
        super().__init__(model, torch.from_numpy, laid_out)
        output = model.token_embedding.T if model.output is None else model.output
        self.output, self.tables = self.linear(output, None), None
        if model.rotary is not None:
            tables = model.rotary.tables(np.arange(capacity), np.float32)
            self.tables = [torch.from_numpy(table) for table in tables]
        head_dim = model.decoder.layers[0].self_attention.head_dim
        shape = (2, len(self.layers), self.kv_heads, capacity, head_dim)
        self.cache = torch.empty(shape)

    def turn(self, x, start):
        """Rotary positions, x (..., L, D)."""
        cos, sin = (table[start : start + x.shape[-2]] for table in self.tables)
        one, two = x.chunk(2, dim=-1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)

    def attend(self, projected, layer, start):
        """projected (L, (H + 2 Hk) D) -> (L, H D), with the cache of a layer."""
        n, end = len(projected), start + len(projected)
        heads = projected.view(n, self.heads + 2 * self.kv_heads, -1).transpose(0, 1)
        query, key, value = heads.split([self.heads, self.kv_heads, self.kv_heads])
        if self.tables is not None:
            query, key = self.turn(query, start), self.turn(key, start)
        self.cache[0, layer, :, start:end] = key
        self.cache[1, layer, :, start:end] = value
        key, value = self.cache[:, None, layer, :, :end]  # (1, Hk, Lk, D) each
        attention = self.F.scaled_dot_product_attention
        if n == 1:  # the heads of a group as queries: faster than enable_gqa
            query = query.reshape(1, self.kv_heads, -1, key.shape[-1])
            return attention(query, key, value).reshape(1, -1)
        more = {"is_causal": True, "enable_gqa": self.heads != self.kv_heads}
        result = attention(query[None], key, value, **more)  # (1, H, L, D)
        return result[0].transpose(0, 1).reshape(n, -1)

    def logits(self, ids, start):
        """The scores after the last of some tokens, of which `start` come before."""
        return self.output(self.norm(self.states(ids, start)[-1]))

    def generate(self, prompt, n_tokens):
        """Always the token with the highest score: (n_tokens,)."""
        ids, start, new = prompt, 0, []
        for _ in range(n_tokens):
            scores = self.logits(ids, start)
            start += len(ids)
            ids = scores.argmax().reshape(1)
            new.append(ids)
        return torch.cat(new)
