"""Copying the arrays of a checkpoint into parameters, with all faults in one error."""

from __future__ import annotations

import collections
import copy
import fnmatch
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _progress
from attnpy._families.declaration import Family, names_for
from attnpy._families.fields import MOST_EXPERTS
from attnpy._packed_weight import PANEL_COLUMNS, PanelWriter
from attnpy._quoting import joined, listed, named, quoted
from attnpy.checkpoints import files, gguf
from attnpy.checkpoints.families import FAMILIES
from attnpy.checkpoints.files import Checkpoint, register_bfloat16
from attnpy.checkpoints.gguf import GgufFile
from attnpy.positions import Rotary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from attnpy._typing import Array, Model

    Tensors = Mapping[str, ArrayLike]

# Files whose arrays are described without being read, and read some rows at a time.
OPENED = Checkpoint | GgufFile

# How much is copied at a time: enough rows that become columns to fill cache lines, and
# not more than stay in the cache.
BLOCK_BYTES, FEWEST_ROWS, MOST_ROWS = 1 << 20, 16, 64


@_keywords.answering
def load(
    model: Model,
    tensors: Mapping[str, ArrayLike],
    family: str,
    *,
    prefix: str = "",
    ignore_head: bool = False,
    progress: bool | None = None,
) -> None:
    """Copy the arrays of a checkpoint into a model.

    Parameters
    ----------
    model : MultiHeadAttention, BertEncoder, CausalDecoder, or alike
        An object with `parameters`. Their values are replaced, and keep their dtypes.
    tensors : mapping of str to array_like
        From `read`, or arrays by name from elsewhere.
    family : str
        The family of the checkpoint's names, a key of `FAMILIES`: "torch_attention" is
        `torch.nn.MultiheadAttention`, "torch_encoder_layer", "torch_decoder" and so on
        are other layers of PyTorch; "bert" and its relatives are for `BertEncoder`,
        "gpt2", "llama" and others for `CausalDecoder`. "Hugging Face models", a page of
        the documentation, has the name for each ``model_type``.
    prefix : str, optional
        Take only names that begin with this, such as ``"layers.0.self_attn."``.
    ignore_head : bool, optional
        Ignore the arrays of a head that no model here has, such as BERT's for masked
        words. By default they are refused by name, so that no head is lost silently.
    progress : bool, optional
        Show a progress bar on standard error, if that is a terminal and the work takes
        longer than a second. True needs the tqdm package; None, the default, shows no
        bar if it is not installed.

    Raises
    ------
    ImportError
        If `progress` is True, and tqdm is not installed.
    TypeError
        If an argument has the wrong kind, or an array is masked.
    ValueError
        If names are missing or unexpected, shapes are wrong, or arrays are not
        floating; the message lists all of them, under the checkpoint's names. The model
        has then not changed. If the model does not belong to the family.

    Notes
    -----
    A matrix of `torch.nn.Linear` is transposed, (out, in) instead of (in, out). It is
    copied into attnpy's orientation, in which the product reads memory in order. A
    `Checkpoint` is read some rows at a time: no array is in memory twice. Packed
    matrices cannot be loaded into.

    Examples
    --------
    An attention layer of PyTorch; its ``state_dict()`` may come as arrays too:

    >>> import numpy as np
    >>> from attnpy import checkpoints
    >>> from attnpy.layers import MultiHeadAttention
    >>> rng = np.random.default_rng(0)
    >>> tensors = {
    ...     "in_proj_weight": rng.standard_normal((18, 6)),
    ...     "in_proj_bias": rng.standard_normal(18),
    ...     "out_proj.weight": rng.standard_normal((6, 6)),
    ...     "out_proj.bias": rng.standard_normal(6),
    ... }
    >>> mha = MultiHeadAttention(6, 2, bias=True, dtype=np.float64)
    >>> checkpoints.load(mha, tensors, "torch_attention")
    >>> bool((mha.W_k == tensors["in_proj_weight"][6:12].T).all())
    True
    """
    _checks.mapping(tensors, "tensors")
    progress = _progress.checked(progress)
    for name, value in (("family", family), ("prefix", prefix)):
        if not isinstance(value, str):
            raise TypeError(f"{name}: expected a string, got {type(value).__name__}")
    if family not in FAMILIES:
        raise ValueError(
            f"family: expected one of {', '.join(FAMILIES)}, got {family!r}"
        )
    if not hasattr(model, "parameters"):
        raise TypeError(
            f"model: expected a model or layer of attnpy, got {type(model).__name__}"
        )
    own = model.parameters()
    if frozen := [name for name in own if not own[name].flags.writeable]:
        raise ValueError(
            "model: expected parameters that can be written to, got some that cannot: "
            f"{', '.join(frozen[:3])}"
        )
    head = Head(ignored=_checks.flag(ignore_head, "ignore_head"))
    no_scores = getattr(model, "tied", True) is None
    rotary = rotary_of(model, tensors, FAMILIES[family], prefix)
    fill(
        *(own, tensors, FAMILIES[family], prefix, progress, no_scores, head),
        n_heads=heads_of(model),
    )
    if rotary is not None:
        model.rotary = rotary  # type: ignore[attr-defined]


def rotary_of(
    model: object, tensors: Mapping[str, ArrayLike], table: Family, prefix: str = ""
) -> Rotary | None:
    """Return a model's positions with the frequencies that a checkpoint has, if any."""
    own = getattr(model, "rotary", None)
    names = [
        name
        for name in (tensors if table.frequencies else ())
        if name.startswith(prefix) and fnmatch.fnmatchcase(name, table.frequencies)
    ]
    if not names or not isinstance(own, Rotary):
        return None
    found = [np.asarray(_array(tensors, name), np.float64) for name in names]
    for name, frequencies in zip(names, found, strict=True):
        if frequencies.shape != own.frequencies.shape:
            raise ValueError(
                f"checkpoint: {named(name)}: expected shape {own.frequencies.shape}, "
                f"got {frequencies.shape}"
            )
        if not (np.isfinite(frequencies) & (frequencies > 0)).all():
            raise ValueError(
                f"checkpoint: {named(name)}: expected finite numbers above 0, got "
                "others"
            )
        if (frequencies != found[0]).any():
            raise ValueError(
                f"checkpoint: {named(name)}: expected the frequencies of "
                f"{named(names[0])}, got others"
            )
    made = copy.copy(own)
    made.frequencies = found[0].copy()
    made.frequencies.flags.writeable = False
    return made


def heads_of(model: object) -> int:
    """Return how many heads a stack's layers have, 1 of anything that is no model."""
    stack = getattr(model, "decoder", getattr(model, "encoder", None))
    layers = getattr(stack, "layers", None)
    return 1 if layers is None else int(layers[0].self_attention.num_heads)


class Head(NamedTuple):
    """How to treat a head that no model here has.

    Attributes
    ----------
    owner : str
        The class in Transformers that has it.
    patterns : tuple of str
        Patterns of its names, besides those of the family's heads.
    ignored : bool
        Ignore it instead of refusing it.
    """

    owner: str = "another task"
    patterns: tuple[str, ...] = ()
    ignored: bool = False


PLAIN_HEAD = Head()
# The options of a model with these heads, and how the classes are called that have one.
HEAD_OPTIONS = {
    "token_classifier": "ForTokenClassification",
    "masked_words": "ForMaskedLM",
}


def fill(
    own: Mapping[str, Array | PanelWriter],
    tensors: Mapping[str, ArrayLike],
    table: Family,
    prefix: str = "",
    progress: bool | None = None,
    no_scores: bool = False,
    head: Head = PLAIN_HEAD,
    filled: Callable[[Array | PanelWriter], object] | None = None,
    kept: Callable[[str, Target], bool] | None = None,
    n_heads: int = 1,
) -> None:
    """Copy the arrays of a checkpoint into parameters, as `load` does.

    A model without scores lacks the parameters that others tie to another.
    `filled` is called with each parameter that is complete; no reference to it remains
    here. `kept` is called first, with each array's name and target, and returns whether
    it has stored the array. In arrays of some families the heads of parameters
    alternate; `n_heads` is how many there are.
    """
    pairs = _paired(own, tensors, table, prefix, no_scores, head, n_heads)
    n_bytes = sum(array.nbytes for pair in pairs for array in pair.target.parameters)
    with _progress.bar(progress, n_bytes, "B") as done:
        while pairs:  # and not a loop over them, so that each is freed at its end
            pair = pairs.popleft()
            one_by_one = pair.alternating is None
            if kept is not None and one_by_one and kept(pair.name, pair.target):
                done(sum(array.nbytes for array in pair.target.parameters))
                continue
            _copy(pair, done)
            while filled is not None and pair.target.parameters:
                filled(pair.target.parameters.pop())
    for name, parameter in own.items():
        if name.endswith(table.one_less) and isinstance(parameter, np.ndarray):
            parameter += np.asarray(1, parameter.dtype)


class Pair(NamedTuple):
    """An array of a checkpoint, and what it fills.

    Attributes
    ----------
    tensors : mapping of str to array_like
        Where the array is, with the axes of its parameters.
    name : str
        Its name there.
    target : Target
    alternating : ndarray of int, or None
        Where the columns of several parameters are in it, if they alternate: those of
        the first one, then those of the next.
    """

    tensors: Mapping[str, ArrayLike]
    name: str
    target: Target
    alternating: NDArray[np.intp] | None


def _paired(
    own: Mapping[str, Array | PanelWriter],
    tensors: Mapping[str, ArrayLike],
    table: Family,
    prefix: str,
    no_scores: bool,
    head: Head,
    n_heads: int,
) -> collections.deque[Pair]:
    """Find the array of each parameter, or raise an error with all faults."""
    tensors = unstacked(tensors, table)
    found, twice = _known_by(tensors, table, prefix)
    names = names_for(table, own)
    faults = _pop_head(found, table, head, _not_of_heads(table, names, head))
    wanted = _wanted(own, table, found, names)
    if missing := [prefix + name for name in wanted if name not in found]:
        faults.append(f"missing {listed(missing)}")
    others = {plain: name for plain, name in found.items() if plain not in wanted}
    if no_scores:
        others = {plain: others[plain] for plain in others if plain not in table.tied}
    faults += _faults_of_others(tensors, table, found, others, twice)
    reshaped = _with_axes(tensors, found, wanted, table.axes)
    pairs = collections.deque(
        Pair(
            reshaped if found[plain] in reshaped else tensors,
            found[plain],
            target,
            alternating(plain, target, table, n_heads),
        )
        for plain, target in wanted.items()
        if plain in found
    )
    for pair in pairs:
        faults += _array_fault(pair.tensors, pair.name, pair.target)
    if faults:
        raise ValueError(f"checkpoint: {joined(faults)}")
    if any(_describe(pair.tensors, pair.name)[1] == "bfloat16" for pair in pairs):
        register_bfloat16()  # or an error before anything changes
    return pairs


def _not_of_heads(
    table: Family, names: Mapping[str, tuple[str, ...]], head: Head
) -> Collection[str]:
    """Return the names that are the model's, even where a head has such a name."""
    if head.patterns:
        return ()
    has_words = not names.keys().isdisjoint(table.masked_words)
    return {*names, *table.tied} if has_words else names


def _wanted(
    own: Mapping[str, Array | PanelWriter],
    table: Family,
    found: dict[str, str],
    names: Mapping[str, tuple[str, ...]],
) -> dict[str, Target]:
    """Return the names that fill the parameters, and add to those that are found.

    An array may serve for another that is missing, and some may be missing: their
    parameters are 0 already.
    """
    wanted = targets(own, names, found)
    for name, other in table.instead.items():
        if name in wanted and name not in found and other in found:
            found[name] = found[other]
    for name in table.zero:
        if name not in found:
            wanted.pop(name, None)
    return wanted


def _faults_of_others(
    tensors: Mapping[str, ArrayLike],
    table: Family,
    found: Mapping[str, str],
    others: Mapping[str, str],
    twice: list[str],
) -> list[str]:
    """Return what is wrong with arrays that fill no parameter.

    `others` are their names, by those of the table; arrays in `twice` have the names of
    others that do.
    """
    faults: list[str] = []
    unexpected = [*twice]
    for plain, name in others.items():
        if plain in table.tied:
            faults += _tie_fault(tensors, found, plain, table.tied[plain])
        elif _is_like(plain, table.optional):
            continue
        elif plain in table.refused:
            faults.append(f"{named(name)}: {table.refused[plain]}")
        else:
            unexpected.append(name)
    if unexpected:
        faults.append(f"unexpected {listed(sorted(unexpected))}")
    return faults


def unstacked(tensors: Tensors, table: Family) -> Tensors:
    """Return each array of several, such as all experts of a layer, as that many.

    They are not read.
    """
    names = [
        name
        for name in tensors
        if table.stacked
        and isinstance(name, str)
        and name.endswith(table.stacked)
        and len(shape := _describe(tensors, name)[0]) == _n_axes(name)
        and 0 < shape[0] <= MOST_EXPERTS
    ]
    if not names:
        return tensors
    if isinstance(tensors, GgufFile):
        return gguf.unstacked(tensors, names)
    if isinstance(tensors, Checkpoint):
        return files.unstacked(tensors, names)
    result = {name: tensors[name] for name in tensors if name not in names}
    for name in names:
        array = _array(tensors, name)
        result |= {f"{name}.{i}": array[i] for i in range(len(array))}
    return result


def _n_axes(name: str) -> int:
    """Return how many axes an array of several has: of matrices, or of biases."""
    return 2 if name.endswith("bias") else 3


def dtype_of(tensors: Checkpoint, table: Family) -> str:
    """Return the dtype of the arrays that `load` takes, or float32 if there are none.

    Of several dtypes it is the one that holds them all.
    """
    found = _known_by(tensors, table, "")[0]
    names = {
        tensors.describe(name)[1]
        for plain, name in found.items()
        if not _is_like(plain, table.optional + table.heads)
    }
    if names >= {"float16", "bfloat16"} and "float64" not in names:
        return "float32"
    return next((name for name in _dtypes.FLOATING if name in names), "float32")


def _pop_head(
    found: dict[str, str], table: Family, head: Head, own: Collection[str]
) -> list[str]:
    """Take out the names of a head that the model is without, and say so."""
    patterns = table.heads + head.patterns
    plain = [name for name in found if name not in own and _is_like(name, patterns)]
    lost = [found.pop(name) for name in plain]
    if not lost or head.ignored:
        return []
    kind = "which is not here"
    if not head.patterns and table.classifier.keys() >= set(plain):
        kind = "which the model is without unless classifier=True"
    for option, ending in HEAD_OPTIONS.items():
        if head.owner.endswith(ending) and getattr(table, option):
            kind = f"which the model is without unless {option}=True"
    return [
        f"expected no head of {named(head.owner)}, {kind}, got {listed(lost)} "
        "(ignore_head=True reads the rest)"
    ]


def shape_in_file(shape: tuple[int, ...], n_axes: int) -> tuple[int, ...]:
    """Return a parameter's shape with this many axes."""
    more = n_axes - len(shape)
    return (1,) * more + shape if more >= 0 else shape[-more:]


def _with_axes(
    tensors: Mapping[str, ArrayLike],
    found: Mapping[str, str],
    wanted: Mapping[str, Target],
    axes: Mapping[str, int],
) -> dict[str, Array]:
    """Return arrays with the axes of their parameters, where a family has others."""
    result = {}
    for plain, n_axes in axes.items():
        if plain not in wanted or plain not in found:
            continue
        shape, dtype = _describe(tensors, found[plain])
        own = wanted[plain].parameters[0].shape
        if shape == shape_in_file(own, n_axes):
            if dtype == "bfloat16":
                register_bfloat16()
            result[found[plain]] = _array(tensors, found[plain]).reshape(own)
    return result


class Target(NamedTuple):
    """Where an array goes: parameters side by side, or their transpose."""

    parameters: list[Array | PanelWriter]
    transposed: bool


def _known_by(
    tensors: Mapping[str, ArrayLike], table: Family, prefix: str
) -> tuple[dict[str, str], list[str]]:
    """Return the checkpoint's names by those of the table, and duplicate ones."""
    found: dict[str, str] = {}
    twice = []
    for name in tensors:
        if not name.startswith(prefix):
            continue
        plain = name[len(prefix) :]
        for start in sorted(table.prefixes, key=len, reverse=True):
            if plain.startswith(start):
                plain = plain[len(start) :]
                break
        for old, new in table.renamed:
            if plain.endswith(old):
                plain = plain[: -len(old)] + new
        if _is_like(plain, table.ignored):
            continue
        if plain in found:
            twice.append(name)
        found.setdefault(plain, name)
    return found, twice


def _is_like(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def targets(
    own: Mapping[str, Array | PanelWriter],
    table: Mapping[str, tuple[str, ...]],
    found: Mapping[str, str],
) -> dict[str, Target]:
    """Return the names that together fill each parameter once, and their targets."""
    candidates: dict[str, tuple[list[str], bool]] = {}
    numbers = [[int(p) for p in name.split(".") if p.isdigit()] for name in own]
    # Of layers, and of the experts in each.
    n_layers = 1 + max((found[0] for found in numbers if found), default=-1)
    n_experts = 1 + max((found[1] for found in numbers if len(found) > 1), default=-1)
    for theirs, ours in table.items():
        for i, j in itertools.product(
            range(n_layers if "{i}" in theirs else 1),
            range(n_experts if "{j}" in theirs else 1),
        ):
            parts = [name.removesuffix(".T") for name in ours]
            if "{i}" not in theirs:  # of all layers side by side
                parts = [
                    part.replace("{i}", str(layer))
                    for part in parts
                    for layer in range(n_layers if "{i}" in part else 1)
                ]
            names = [part.format(i=i, j=j) for part in parts]
            if not own.keys() >= set(names):
                continue
            candidates[theirs.format(i=i, j=j)] = names, ours[0].endswith(".T")
    chosen: dict[str, Target] = {}
    filled: set[str] = set()
    # Names in the checkpoint come first; the others fill the remaining parameters.
    for name in sorted(candidates, key=lambda name: name not in found):
        names, transposed = candidates[name]
        if filled.isdisjoint(names):
            filled.update(names)
            chosen[name] = Target([own[key] for key in names], transposed)
    if unnamed := sorted(own.keys() - filled):
        raise ValueError(
            "model: expected one of the family, got parameters without a name in its "
            f"checkpoints: {listed(unnamed)}"
        )
    return chosen


def _array(tensors: Mapping[str, ArrayLike], name: str) -> Array:
    return _checks.array(tensors[name], f"tensors[{name!r}]")


def _describe(
    tensors: Mapping[str, ArrayLike], name: str
) -> tuple[tuple[int, ...], str]:
    if isinstance(tensors, OPENED):
        return tensors.describe(name)
    array = _array(tensors, name)
    return array.shape, array.dtype.name


def _array_fault(
    tensors: Mapping[str, ArrayLike], name: str, target: Target
) -> list[str]:
    """Return what is wrong with an array, if anything is."""
    shape, dtype = _describe(tensors, name)
    rows = {array.shape[:-1] for array in target.parameters}
    if len(rows) > 1:
        return [
            f"{named(name)}: expected several arrays, as keys and values have other "
            "rows"
        ]
    expected = *rows.pop(), sum(array.shape[-1] for array in target.parameters)
    if target.transposed:
        expected = expected[::-1]
    if shape != expected:
        return [f"{named(name)}: expected shape {expected}, got {quoted(shape)}"]
    if dtype not in _dtypes.FLOATING:
        return [f"{named(name)}: expected floating numbers, got dtype {named(dtype)}"]
    return []


def _tie_fault(
    tensors: Mapping[str, ArrayLike], found: Mapping[str, str], name: str, other: str
) -> list[str]:
    """Return what is wrong with an array that is tied to another."""
    equal = other in found and _equal(tensors, found[name], found[other])
    if equal:
        return []
    return [f"{named(found[name])}: expected {other} again, as they are tied"]


def _equal(tensors: Mapping[str, ArrayLike], one: str, other: str) -> bool:
    """Tell whether two arrays have the same shape and numbers, some rows at a time."""
    shape = _describe(tensors, one)[0]
    if shape != _describe(tensors, other)[0]:
        return False
    rows, other_rows = _reader(tensors, one), _reader(tensors, other)
    n_rows = shape[0] if shape else 1
    step = max(BLOCK_BYTES // max(8 * math.prod(shape[1:]), 1), 1)
    return all(
        np.array_equal(
            rows(start, min(start + step, n_rows)),
            other_rows(start, min(start + step, n_rows)),
        )
        for start in range(0, n_rows, step)
    )


def _copy(pair: Pair, done: Callable[[int], object]) -> None:
    """Copy an array to its target, some rows at a time, and report bytes to `done`."""
    tensors, name, target, places = pair
    rows = _reader(tensors, name)
    if places is not None:
        in_rows = target.transposed or len(target.parameters[0].shape) == 1
        rows = _apart(rows, places) if in_rows else _columns(rows, places)
    for writer in target.parameters:
        if isinstance(writer, PanelWriter):  # all of the array goes there
            _write(writer, rows, done)
            return
    for start, parts in _blocks(target):
        _assign(parts, rows(start, start + len(parts[0])))
        done(sum(part.nbytes for part in parts))


def _write(
    to: PanelWriter, rows: Callable[[int, int], Array], done: Callable[[int], object]
) -> None:
    """Copy an array into panels, some rows at a time, and report bytes to `done`."""
    n_rows, width = to.size
    step = max(BLOCK_BYTES // (width * to.dtype.itemsize * PANEL_COLUMNS), 1)
    step *= PANEL_COLUMNS
    for start in range(0, n_rows, step):
        values = _converted(rows(start, min(start + step, n_rows)), to.dtype)
        to.write(start, values)
        done(values.nbytes)


def _reader(tensors: Mapping[str, ArrayLike], name: str) -> Callable[[int, int], Array]:
    """Return a function that returns some rows of an array."""
    if isinstance(tensors, OPENED):
        return functools.partial(tensors.rows, name)
    array = np.atleast_1d(_array(tensors, name))
    return lambda start, stop: array[start:stop]


def alternating(
    name: str, target: Target, table: Family, n_heads: int
) -> NDArray[np.intp] | None:
    """Return where the columns of parameters are, if those of several alternate.

    They do head by head, or one by one.
    """
    sizes = [array.shape[-1] for array in target.parameters]
    n_turns = 1
    if name.endswith(table.by_head):  # of keys, which several of queries may share
        n_turns = sizes[-1] * n_heads // sizes[0]
    if name.rpartition(".")[0].endswith(table.interleaved):  # before a number
        n_turns = sizes[0]
    if n_turns == 1 or any(size % n_turns for size in sizes):
        return None
    places = np.arange(sum(sizes)).reshape(n_turns, -1)
    ends = np.cumsum([size // n_turns for size in sizes])
    parts = np.split(places, ends[:-1], axis=1)
    return np.concatenate([part.reshape(-1) for part in parts])


def _apart(
    rows: Callable[[int, int], Array], places: NDArray[np.intp]
) -> Callable[[int, int], Array]:
    """Return what reads some rows from their places."""

    def read(start: int, stop: int) -> Array:
        wanted = places[start:stop]
        first = int(wanted.min())
        return rows(first, int(wanted.max()) + 1)[wanted - first]

    return read


def _columns(
    rows: Callable[[int, int], Array], places: NDArray[np.intp]
) -> Callable[[int, int], Array]:
    """Return what reads some rows, with their columns in this order."""
    return lambda start, stop: rows(start, stop)[:, places]


def _blocks(target: Target) -> Iterator[tuple[int, list[Array]]]:
    """Cut a target into parts: the first row of the array, and what it fills."""
    arrays = [p for p in target.parameters if isinstance(p, np.ndarray)]
    views = [array.T if target.transposed else array for array in arrays]
    n_rows, n_bytes = len(views[0]), sum(view[:1].nbytes for view in views)
    step = max(BLOCK_BYTES // max(n_bytes, 1), FEWEST_ROWS)
    if views[0].ndim == 2 and abs(views[0].strides[0]) < abs(views[0].strides[1]):
        step = min(step, MOST_ROWS)
    if target.transposed or views[0].ndim == 1:  # one below the other
        first = 0
        for view in views:
            for start in range(0, len(view), step):
                yield first + start, [view[start : start + step]]
            first += len(view)
        return
    for start in range(0, n_rows, step):
        yield start, [view[start : start + step] for view in views]


def _assign(parts: list[Array], rows: Array) -> None:
    """Copy rows into parts of parameters that lie side by side."""
    start = 0
    for part in parts:
        values = rows[..., start : start + part.shape[-1]]
        start += part.shape[-1]
        # Converted in its own order first, then transposed: both steps are fast.
        values = _converted(values, part.dtype)
        if _dtypes.is_bfloat16(part.dtype):  # which NumPy copies number by number
            part, values = part.view(np.uint16), values.view(np.uint16)
        part[...] = values


def _converted(values: Array, dtype: np.dtype[Any]) -> Array:
    if values.dtype == np.float64 and dtype != np.float64:
        values = _dtypes.rounded(values, dtype)
    return values.astype(dtype, copy=False)
