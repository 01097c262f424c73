"""A training step of a character GPT: forward, backward, clipping, AdamW."""

import copy
from dataclasses import dataclass

import numpy as np

import attnpy

from ..backward import leaf, with_gradients
from ..lazily import torch
from ..peers import Way
from . import generation
from .torch_decoder import TorchModel

N_CHARACTERS = 96
MAX_NORM, LR, DECAY = 1.0, 1e-3, 0.1


@dataclass(frozen=True)
class Step:
    """B sequences of L characters, each followed by the one that it should predict."""

    n_layers: int
    embed_dim: int
    heads: int
    length: int
    batch: int

    dtype = "float32"

    def arrays(self):
        """Characters (B, L), those after them, and a model that ways copy."""
        rng, sizes = np.random.default_rng(1), (self.n_layers, self.embed_dim)
        more = {"vocab_size": N_CHARACTERS, "max_length": self.length, "rng": rng}
        model = generation.gpt(*sizes, self.heads, **more)
        text = rng.integers(N_CHARACTERS, size=(self.batch, self.length + 1))
        return text[:, :-1].copy(), text[:, 1:].copy(), model

    def n_tokens(self):
        return self.batch * self.length

    def flops(self):
        """Three products for each one with weights; 2.5 times attention's backwards."""
        weights = self.n_layers * 12 * self.embed_dim**2 + N_CHARACTERS * self.embed_dim
        pairs = self.batch * self.length * (self.length + 1) // 2
        attention = 4 * self.n_layers * self.embed_dim * pairs
        return 6 * weights * self.n_tokens() + 3.5 * attention


def two_steps(step):
    """How to read a step's loss and norm: with those of the next, after its update."""
    return lambda first: np.array([*first, *step()])


def attnpy_ways(case, arrays, n_threads):
    ids, targets, model = arrays
    model, training = copy.deepcopy(model), attnpy.training
    optimizer = training.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)

    def step():
        logits, pullback = model.vjp(ids, logits=True, num_threads=n_threads)
        loss, grad = training.cross_entropy(logits, targets, num_threads=n_threads)
        gradients = pullback(grad)
        norm = training.clip_norm(gradients, MAX_NORM)
        optimizer.step(gradients)
        return loss, norm

    yield Way("CausalDecoder, AdamW", step, two_steps(step))


class TorchGPT(TorchModel):
    """attnpy's model in PyTorch's functions, with parameters that want gradients."""

    def __init__(self, model):
        self.parameters = []
        super().__init__(model, self.parameter)

    def parameter(self, array):
        self.parameters.append(leaf(array))
        return self.parameters[-1]

    def attend(self, projected, layer, start):
        """projected (B, L, 3 H D) -> (B, L, H D)"""
        parts = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attention = self.F.scaled_dot_product_attention
        attended = attention(*parts, is_causal=True)  # (B, H, L, D)
        return attended.transpose(1, 2).flatten(2)

    def logits(self, ids):
        """ids (B, L) -> (B, L, V)"""
        return self.F.linear(self.norm(self.states(ids)), self.token_embedding)


def torch_step(case, arrays, **kind):
    ids, targets = (torch.from_numpy(x).clone() for x in arrays[:2])
    model = TorchGPT(arrays[2])
    optimizer = torch.optim.AdamW(model.parameters, lr=LR, weight_decay=DECAY, **kind)

    def step():
        logits = model.logits(ids)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten()
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters, MAX_NORM)
        optimizer.step()
        return loss.item(), norm.item()

    return with_gradients(step)


def torch_ways(case, arrays, n_threads):
    for kind in ("fused", "foreach"):
        with torch.inference_mode(False):
            step = torch_step(case, arrays, **{kind: True})
        yield Way(f"AdamW, {kind}", step, two_steps(step))


WAYS = {"attnpy": attnpy_ways, "torch": torch_ways}
