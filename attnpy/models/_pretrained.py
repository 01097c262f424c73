"""A model from a folder: its configuration and its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from attnpy import _checks, _dtypes, _parameters, _progress, checkpoints
from attnpy._families import FAMILIES
from attnpy._files import folder_at
from attnpy._packed_weight import PanelWriter
from attnpy._parameters import Unset
from attnpy._quantize import judged
from attnpy._quantized import QuantizedTable
from attnpy._quantized_parts import ACTIVATIONS
from attnpy.checkpoints import gguf_blocks
from attnpy.checkpoints.adapters import AdaptedCheckpoint, adapter_of
from attnpy.checkpoints.compressed import CompressedCheckpoint, scheme_of
from attnpy.checkpoints.loading import (
    PLAIN_HEAD,
    Head,
    Target,
    dtype_of,
    fill,
    heads_of,
    rotary_of,
)
from attnpy.checkpoints.mxfp4 import Mxfp4Checkpoint, is_mxfp4
from attnpy.checkpoints.reading import is_there, read_json
from attnpy.models import _hf_config

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import Any

    from numpy.typing import ArrayLike, DTypeLike

    from attnpy import _typing
    from attnpy._quantized import QuantizedWeight
    from attnpy._typing import Array
    from attnpy.checkpoints.compressed import Scheme

Model = TypeVar("Model", bound="_typing.PackableModel")

# How classes are called whose ``classifier``, if any, is that of texts or pictures.
# Other classes have one of tokens, or of choices.
CLASSIFIERS = (
    "Model",
    "ForSequenceClassification",
    "ForImageClassification",
    "ForImageClassificationWithTeacher",
)
# Classes of heads for tokens, by the attribute of a model that has one.
TOKEN_HEADS = {"token_head": "ForTokenClassification", "word_head": "ForMaskedLM"}
# Names of heads of classes that have them beside any family's model.
OTHER_HEADS = {"HF_ColBERT": ("linear.weight",)}


# What `weights` may be, and how many bits that means.
Weights = Literal["int8", "int4"]
BITS: dict[str, Literal[8, 4]] = {"int8": 8, "int4": 4}


# Folders that have them.
OF_INTEGERS = CompressedCheckpoint, Mxfp4Checkpoint


class Kept(NamedTuple):
    """Files whose integers are kept, and how rows are multiplied with them."""

    file: checkpoints.GgufFile | CompressedCheckpoint | Mxfp4Checkpoint
    activations: Literal["float", "int8"]


def read(
    from_config: Callable[..., Model],
    folder: str | os.PathLike[str],
    dtype: DTypeLike,
    packed: bool,
    ignore_head: bool,
    progress: bool | None,
    weights: Weights | None = None,
    activations: Literal["float", "int8"] = "float",
    task: str | None = None,
) -> Model:
    """Make a model of a folder's configuration, and copy the weights into it.

    With the adapter of a task, where folders have some.
    """
    if weights is not None:
        _checks.one_of(weights, "weights", tuple(BITS))
    _checks.one_of(activations, "activations", ACTIVATIONS)
    ignore_head = _checks.flag(ignore_head, "ignore_head")
    packed = _checks.flag(packed, "packed")
    progress = _progress.checked(progress)
    config = checkpoints.read_config(folder_at(folder))
    adapter = adapter_of(config, task)
    given = config.pop("quantization_config", None)
    in_mxfp4 = is_mxfp4(given)
    scheme = None if given is None or in_mxfp4 else scheme_of(given)
    _check_integers(given is not None, scheme, weights, activations)
    is_quantised = weights is not None or given is not None
    declared = FAMILIES.get(str(_hf_config.kind_of(config)))
    family = "bert" if declared is None else declared.checkpoint
    table = checkpoints.FAMILIES[family]

    def tensors() -> checkpoints.Checkpoint:
        found = checkpoints.read(folder)
        if in_mxfp4:
            return Mxfp4Checkpoint(found)
        if scheme is not None:
            return CompressedCheckpoint(found, scheme)
        has_code = declared is not None and declared.code
        return AdaptedCheckpoint(found, adapter) if has_code else found

    if isinstance(dtype, str) and dtype == "auto":
        dtype = dtype_of(tensors(), table)
    if is_quantised and _dtypes.floating(dtype).itemsize > 4:
        raise TypeError(
            "dtype: expected float32, float16 or bfloat16 with weights of integers, "
            f"got {_dtypes.floating(dtype)}"
        )
    model = from_config(config, dtype=dtype, rng=Unset(freed=is_quantised))
    head = _head(model, config, family, ignore_head)
    found = tensors()
    how: Weights | Kept | None = weights
    if isinstance(found, OF_INTEGERS):
        how = Kept(found, activations)
    load(model, found, table, packed, progress, head, how, activations)
    if packed:
        model.pack()
    return model


def _check_integers(
    has_integers: bool, scheme: Scheme | None, weights: Weights | None, activations: str
) -> None:
    """Require options that fit to each other, and to a folder that has integers."""
    if not has_integers:
        if weights is None and activations != "float":
            raise ValueError(
                f"activations: expected 'float' without weights, got {activations!r}"
            )
        return
    if weights is not None:
        raise ValueError(
            "weights: expected None for a folder whose weights are integers already, "
            f"got {weights!r}"
        )
    if scheme is not None and scheme.rounds_rows and activations != "int8":
        raise ValueError(
            "activations: expected 'int8' for a folder whose quantization_config "
            f"rounds activations to 8 bits, got {activations!r}"
        )


def stop(folder: str | os.PathLike[str], vocab_size: int) -> tuple[int, ...] | None:
    """Return the tokens that end a text, if there is a generation_config.json."""
    path = folder_at(folder) / "generation_config.json"
    if not is_there(path):
        return None
    return _hf_config.generation(read_json(path), str(path), vocab_size)


def _head(model: object, config: Mapping[str, Any], family: str, ignored: bool) -> Head:
    """Return the head of a folder, as far as its configuration names it."""
    owners = config.get("architectures")
    if not isinstance(owners, list) or not owners:
        return Head(ignored=ignored)
    owner, table = str(owners[0]), checkpoints.FAMILIES[family]
    own = [
        ending
        for attribute, ending in TOKEN_HEADS.items()
        if getattr(model, attribute, None) is not None
    ]
    if owner.endswith(tuple(own) or CLASSIFIERS):
        return Head(owner, (), ignored)
    heads = {**table.classifier, **table.token_classifier, **table.masked_words}
    others = tuple(name for name in heads if name not in table.names)
    return Head(owner, others + OTHER_HEADS.get(owner, ()), ignored)


def load(
    model: Model,
    tensors: Mapping[str, ArrayLike],
    table: checkpoints.Family,
    packed: bool,
    progress: bool | None,
    head: Head = PLAIN_HEAD,
    weights: Weights | Kept | None = None,
    activations: Literal["float", "int8"] = "float",
) -> None:
    """Copy the weights into a model; the largest are packed while they are read.

    Or each matrix is quantised when it is complete, so that one is in memory in full;
    or it keeps the integers of a file.
    """
    own: dict[str, Array | PanelWriter] = {**model.parameters()}
    rotary = rotary_of(model, tensors, table)
    tied = getattr(model, "tied", True)
    name = "token_embedding" if tied else "output"
    writer = None
    filled = kept = None
    if isinstance(weights, Kept):
        kept = _keeper(model, own, weights)
    elif weights is not None:
        filled = _quantizer(model, own, BITS[weights], activations)
    if weights is None and packed and hasattr(model, "tied") and tied is not None:
        own[name] = writer = PanelWriter(getattr(model, name), tied)
    fill(
        own,
        tensors,
        table,
        progress=progress,
        no_scores=tied is None,
        head=head,
        filled=filled,
        kept=kept,
        n_heads=heads_of(model),
    )
    if writer is not None:
        setattr(model, name, writer.packed())
    if rotary is not None:
        model.rotary = rotary  # type: ignore[attr-defined]


def _quantizer(
    model: object,
    own: dict[str, Array | PanelWriter],
    bits: Literal[8, 4],
    activations: Literal["float", "int8"],
) -> Callable[[Array | PanelWriter], None]:
    """Return what quantises an array that is filled, wherever the model has it.

    It is taken out of `own` then, so that its memory is free.
    """
    options = judged(bits, None, activations)
    places, names = _places(model, own)

    def filled(array: Array | PanelWriter) -> None:
        if found := places.pop(id(array), None):
            _parameters.quantize_places(found, *options)
            del own[names[id(array)]]

    return filled


def _keeper(
    model: object, own: dict[str, Array | PanelWriter], integers: Kept
) -> Callable[[str, Target], bool]:
    """Return what puts the integers of a matrix wherever the model has it, if it can.

    The matrix is taken out of `own` then, so that its memory is free.
    """
    places, names = _places(model, own)
    file, activations = integers

    def is_kept(name: str) -> bool:
        if isinstance(file, OF_INTEGERS):
            return file.keeps(name)
        return file.type_of(name) in gguf_blocks.FORMS

    def matrix(name: str, like: Array | PanelWriter, **which: Any) -> QuantizedWeight:
        if isinstance(file, OF_INTEGERS):
            return file.quantized(name, like.dtype, **which)
        return file.quantized(name, **which)

    def kept(name: str, target: Target) -> bool:
        known = [places.get(id(array), []) for array in target.parameters]
        if not is_kept(name) or not all(known):
            return False
        tables = [place[1] in _parameters.TABLES for found in known for place in found]
        if not target.transposed and not all(tables):  # as GPT-2 has its matrices
            return False
        start = 0
        for array in target.parameters:  # one below the other in the file
            stop = start + array.shape[-1 if target.transposed else 0]
            own_rows = {"start": start, "stop": stop, "activations": activations}
            weight = matrix(name, array, **own_rows)
            for layer, attribute in places.pop(id(array)):
                table = attribute in _parameters.TABLES
                setattr(layer, attribute, QuantizedTable(weight) if table else weight)
            del own[names[id(array)]]
            start = stop
        return True

    return kept


def _places(
    model: object, own: Mapping[str, Array | PanelWriter]
) -> tuple[dict[int, list[tuple[object, str]]], dict[int, str]]:
    """Return where a model has each matrix, and what it is called, by its `id`."""
    places: dict[int, list[tuple[object, str]]] = {}
    for layer, name in _parameters.quantizable(model):
        places.setdefault(id(getattr(layer, name)), []).append((layer, name))
    return places, {id(array): name for name, array in own.items()}
