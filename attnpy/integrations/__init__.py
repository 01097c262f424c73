"""Adapters to other libraries; each imports its library when it is first used."""

from typing import TYPE_CHECKING

# What type checkers and editors see of the modules that are imported later.
if TYPE_CHECKING:
    from attnpy.integrations import autograd as autograd
    from attnpy.integrations import dask as dask
    from attnpy.integrations import huggingface as huggingface
    from attnpy.integrations import jax as jax
    from attnpy.integrations import onnx as onnx
    from attnpy.integrations import sklearn as sklearn
    from attnpy.integrations import torch as torch

# The adapters, and the packages they are for.
_MODULES = {
    "autograd": "autograd",
    "dask": "dask",
    "huggingface": "transformers",
    "jax": "jax",
    "onnx": "onnx",
    "sklearn": "sklearn",
    "torch": "torch",
}

if not TYPE_CHECKING:  # to whom every name would be right

    def __getattr__(name):
        """Import an adapter, and with it its library, on first use."""
        if name not in _MODULES:
            raise AttributeError(
                f"module 'attnpy.integrations' has no attribute {name!r}"
            )
        from importlib import import_module

        return import_module(f"attnpy.integrations.{name}")


def __dir__() -> list[str]:
    """Return the adapters whose packages are installed."""
    from importlib.util import find_spec

    return [name for name, package in _MODULES.items() if find_spec(package)]
