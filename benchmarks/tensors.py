"""attnpy's attention of PyTorch's tensors, against PyTorch's own."""

from dataclasses import dataclass
from functools import partial

import attnpy

from . import backward, cases, peers
from .backward import Backward
from .lazily import torch
from .peers import Way


@dataclass(frozen=True)
class Tensors:
    """A call with PyTorch's tensors, or its gradients through PyTorch's autograd."""

    call: cases.Case
    gradients: bool = False

    @property
    def alone(self):
        """The same without PyTorch."""
        return Backward(self.call) if self.gradients else self.call

    @property
    def dtype(self):
        return self.call.dtype

    def arrays(self):
        return self.alone.arrays()

    def flops(self):
        return self.alone.flops()


def attnpy_ways(case, arrays, n_threads):
    name = "scaled_dot_product_attention"
    grouped = case.call.heads != case.call.kv_heads
    more = {"is_causal": case.call.causal, "enable_gqa": grouped}
    attend = partial(getattr(attnpy.integrations.torch, name), **more)
    if not case.gradients:
        call = partial(attend, *map(peers.to_torch, arrays))
        yield Way(name, call, partial(peers.from_torch, shape=case.call.query_shape))
        return
    with torch.inference_mode(False), torch.enable_grad():
        grad, inputs = backward.with_leaves(arrays)
        call = backward.retained(attend, inputs, grad)
    yield Way(name, backward.with_gradients(call), backward.flat_tensors)


def torch_ways(case, arrays, n_threads):
    ways = backward.WAYS if case.gradients else peers.WAYS
    return ways["torch"](case.alone, arrays, n_threads)


WAYS = {"attnpy": attnpy_ways, "torch": torch_ways}
