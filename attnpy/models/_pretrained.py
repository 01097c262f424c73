"""A model from a folder: its configuration and its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from attnpy import _checks, _progress, checkpoints
from attnpy._files import folder_at
from attnpy._packed_weight import PanelWriter
from attnpy._parameters import Unset
from attnpy.checkpoints.loading import dtype_of, fill

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from attnpy import _typing
    from attnpy._typing import Array

Model = TypeVar("Model", bound="_typing.PackableModel")

# Whose names the checkpoints have: keys of `checkpoints.FAMILIES`.
FAMILIES = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "distilbert": "distilbert",
    "mpnet": "mpnet",
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "phi3": "phi3",
    "gemma2": "gemma",
    "gemma3_text": "gemma",
}


def read(
    from_config: Callable[..., Model],
    folder: str | os.PathLike[str],
    dtype: DTypeLike,
    packed: bool,
    progress: bool | None,
) -> Model:
    """Make a model of a folder's configuration, and copy the weights into it."""
    packed = _checks.flag(packed, "packed")
    progress = _progress.checked(progress)
    config = checkpoints.read_config(folder_at(folder))
    family = FAMILIES.get(str(config.get("model_type") or "bert"), "bert")
    if isinstance(dtype, str) and dtype == "auto":
        dtype = dtype_of(checkpoints.read(folder), family)
    model = from_config(config, dtype=dtype, rng=Unset())
    _load(model, checkpoints.read(folder), family, packed, progress)
    if packed:
        model.pack()
    return model


def _load(
    model: Model,
    tensors: checkpoints.Checkpoint,
    family: str,
    packed: bool,
    progress: bool | None,
) -> None:
    """Copy the weights into a model; the largest are packed while they are read."""
    own: dict[str, Array | PanelWriter] = {**model.parameters()}
    tied = getattr(model, "tied", True)
    name = "token_embedding" if tied else "output"
    writer = None
    if packed and hasattr(model, "tied") and tied is not None:
        own[name] = writer = PanelWriter(getattr(model, name), tied)
    fill(own, tensors, family, progress=progress, no_scores=tied is None)
    if writer is not None:
        setattr(model, name, writer.packed())
