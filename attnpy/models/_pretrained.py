"""A model from a folder: its configuration and its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from attnpy import checkpoints

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from attnpy import _typing

Model = TypeVar("Model", bound="_typing.Model")

# Whose names the checkpoints have: keys of `checkpoints.FAMILIES`.
FAMILIES = {
    "bert": "bert",
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
}


def read(
    from_config: Callable[..., Model], folder: str | os.PathLike[str], dtype: DTypeLike
) -> Model:
    """Make a model of a folder's configuration, and copy the weights into it."""
    config = checkpoints.read_config(folder)
    model = from_config(config, dtype=dtype, rng=_Zeros())
    family = FAMILIES[config.get("model_type") or "bert"]
    checkpoints.load(model, checkpoints.read(folder), family)
    return model


class _Zeros(np.random.Generator):
    """First values for weights that are about to be read."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def uniform(self, low: Any = 0, high: Any = 1, size: Any = None) -> Any:
        return np.zeros(size)

    def standard_normal(self, size: Any = None) -> Any:  # type: ignore[override]
        return np.zeros(size)
