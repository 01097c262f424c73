"""PyTorch on one thread, and a tensor that wraps another."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """A fixture for the files that import it: PyTorch has one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Wrapper(torch.Tensor):
    """A tensor without memory, which holds another: its subclasses say what it does."""

    @staticmethod
    def __new__(cls, tensor):
        made = torch.Tensor._make_wrapper_subclass(
            cls, tensor.shape, dtype=tensor.dtype
        )
        made.tensor = tensor
        return made
