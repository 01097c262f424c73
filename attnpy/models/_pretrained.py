"""A model from a folder: its configuration and its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from attnpy import _checks, _progress, checkpoints
from attnpy._families import FAMILIES
from attnpy._files import folder_at
from attnpy._packed_weight import PanelWriter
from attnpy._parameters import Unset
from attnpy.checkpoints.loading import PLAIN_HEAD, Head, dtype_of, fill
from attnpy.checkpoints.reading import is_there, read_json
from attnpy.models import _hf_config

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import Any

    from numpy.typing import ArrayLike, DTypeLike

    from attnpy import _typing
    from attnpy._typing import Array

Model = TypeVar("Model", bound="_typing.PackableModel")

# Classes whose ``classifier``, if any, is that of `BertEncoder`. Other classes of BERT
# have one for tokens, or for multiple choice.
CLASSIFIERS = ("BertModel", "BertForSequenceClassification")


def read(
    from_config: Callable[..., Model],
    folder: str | os.PathLike[str],
    dtype: DTypeLike,
    packed: bool,
    ignore_head: bool,
    progress: bool | None,
) -> Model:
    """Make a model of a folder's configuration, and copy the weights into it."""
    ignore_head = _checks.flag(ignore_head, "ignore_head")
    packed = _checks.flag(packed, "packed")
    progress = _progress.checked(progress)
    config = checkpoints.read_config(folder_at(folder))
    declared = FAMILIES.get(str(config.get("model_type")))
    family = "bert" if declared is None else declared.checkpoint
    table = checkpoints.FAMILIES[family]
    if isinstance(dtype, str) and dtype == "auto":
        dtype = dtype_of(checkpoints.read(folder), table)
    model = from_config(config, dtype=dtype, rng=Unset())
    head = _head(config, family, ignore_head)
    load(model, checkpoints.read(folder), table, packed, progress, head)
    if packed:
        model.pack()
    return model


def stop(folder: str | os.PathLike[str], vocab_size: int) -> tuple[int, ...] | None:
    """Return the tokens that end a text, if there is a generation_config.json."""
    path = folder_at(folder) / "generation_config.json"
    if not is_there(path):
        return None
    return _hf_config.generation(read_json(path), str(path), vocab_size)


def _head(config: Mapping[str, Any], family: str, ignored: bool) -> Head:
    """Return the head of a folder, as far as its configuration names it."""
    owners = config.get("architectures")
    if not isinstance(owners, list) or not owners:
        return Head(ignored=ignored)
    is_foreign = family == "bert" and owners[0] not in CLASSIFIERS
    return Head(str(owners[0]), ("classifier.*",) if is_foreign else (), ignored)


def load(
    model: Model,
    tensors: Mapping[str, ArrayLike],
    table: checkpoints.Family,
    packed: bool,
    progress: bool | None,
    head: Head = PLAIN_HEAD,
) -> None:
    """Copy the weights into a model; the largest are packed while they are read."""
    own: dict[str, Array | PanelWriter] = {**model.parameters()}
    tied = getattr(model, "tied", True)
    name = "token_embedding" if tied else "output"
    writer = None
    if packed and hasattr(model, "tied") and tied is not None:
        own[name] = writer = PanelWriter(getattr(model, name), tied)
    fill(own, tensors, table, progress=progress, no_scores=tied is None, head=head)
    if writer is not None:
        setattr(model, name, writer.packed())
