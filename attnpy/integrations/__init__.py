"""Adapters to other libraries; each imports its library when it is first used."""

from typing import TYPE_CHECKING

_MODULES = ("autograd", "dask", "huggingface", "jax", "onnx", "sklearn", "torch")

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
    return [name for name in _MODULES if name in globals()]  # what is imported
