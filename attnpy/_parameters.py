"""Common code for layers' parameters: names, loading, initial values.

A class gets the methods by naming the functions in its body; there is no base class.
Its parameters are the attributes that are arrays, and the parameters of attributes that
are layers or lists of layers. Its attributes are those annotated in its body.
"""

from __future__ import annotations

import collections
import itertools
import math
import mmap
import sys
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnpy import _checks, _dtypes
from attnpy._packed_weight import PackedTable, PackedWeight, packable
from attnpy._quantize import check_quantizable, judged, quantized
from attnpy._quantized import (
    QuantizedTable,
    QuantizedWeight,
    arrays_of,
    narrowed,
    options_of,
    replaced,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import ArrayLike

    from attnpy._typing import Array

    Parameter = Array | PackedWeight | PackedTable | QuantizedWeight | QuantizedTable


# What a layer has in the place of an array, in an order or with bits of its own.
FROZEN = (PackedWeight, PackedTable, QuantizedWeight, QuantizedTable)
QUANTIZED = (QuantizedWeight, QuantizedTable)
ARRAYS = (np.ndarray, *FROZEN)
PLAIN = (type(None), bool, int, float, str)  # no layers, which is quickly known
# What `quantize` takes of models, beside the matrices W_... of their layers.
TABLES = ("token_embedding",)
HEADS = ("output", "pooler_weight", "classifier_weight", "dense_weight")

# Endings of the names of PyTorch's attention, in any module.
TORCH_ATTENTION = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")


def parameters(self: object) -> dict[str, Array]:
    """Return the parameters by name.

    Returns
    -------
    dict of str to ndarray
        The arrays themselves, not copies: writing to one changes the layer. Those of an
        inner layer begin with its name and a dot, ``"norm_1.weight"``, and those of a
        list of layers also have a number, ``"layers.0.norm_1.weight"``. Arrays that are
        None are left out, and an array with several places has only its first name.
        Packed matrices are read-only copies; so are quantised ones, as the numbers that
        they stand for.

    Examples
    --------
    >>> from attnpy.layers import MultiHeadAttention
    >>> mha = MultiHeadAttention(6, 2, qkv_bias=False)
    >>> {name: array.shape for name, array in mha.parameters().items()}
    {'W_q': (6, 6), 'W_k': (6, 6), 'W_v': (6, 6), 'W_o': (6, 6), 'b_o': (6,)}
    """
    named: dict[str, Array] = {}
    known: set[int] = set()
    for name, array in walk(self):
        if id(array) not in known:
            known.add(id(array))
            named[name] = as_array(array)
    return named


def state_dict(self: object) -> dict[str, Array]:
    """Return the argument for `load_state_dict`: the same as `parameters`.

    Returns
    -------
    dict of str to ndarray
        The arrays themselves, as in PyTorch. To keep the current values, copy them:
        ``{name: array.copy() for name, array in layer.state_dict().items()}``.
        In place of a matrix that is quantised there are its codes and scales,
        ``"W_q.codes"`` and ``"W_q.scale"``, which cannot be written to.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from attnpy.layers import MultiHeadAttention
    >>> mha, other = MultiHeadAttention(6, 2), MultiHeadAttention(6, 2)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = os.path.join(directory, "mha.npz")
    ...     np.savez(path, **mha.state_dict())
    ...     with np.load(path) as state:
    ...         other.load_state_dict(state)
    >>> bool((mha.W_q == other.W_q).all())
    True
    """
    state: dict[str, Array] = {}
    known: set[int] = set()
    for name, array in walk(self):
        if id(array) in known:
            continue
        known.add(id(array))
        if isinstance(array, QUANTIZED):
            for part, values in arrays_of(_weight(array)).items():
                values.flags.writeable = False  # else what is written would be lost
                state[f"{name}.{part}"] = values
        else:
            state[name] = as_array(array)
    return state


def as_array(value: Parameter) -> Array:
    """Return the numbers of a parameter: of one that is frozen a copy, frozen too."""
    if isinstance(value, QUANTIZED):
        numbers = value.dequantize()
        numbers.flags.writeable = False
        return numbers
    return value.matrix() if isinstance(value, (PackedWeight, PackedTable)) else value


def _weight(quantised: QuantizedWeight | QuantizedTable) -> QuantizedWeight:
    return quantised.T if isinstance(quantised, QuantizedTable) else quantised


def load_state_dict(self: object, state: Mapping[str, ArrayLike]) -> None:
    """Copy values into the parameters.

    Parameters
    ----------
    state : mapping of str to array_like
        A value of the right shape for each name of `state_dict`, and no others. Values
        are converted to the parameter's dtype; codes and scales must have it already.

    Raises
    ------
    TypeError
        If `state` is not a mapping, or a value is not of numbers.
    ValueError
        If names are missing or unexpected, or shapes are wrong; the message lists all
        of them. If a parameter is read-only.

    Notes
    -----
    After an error no parameter has changed; after an interrupt (Ctrl-C), none or all.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.layers import SelfAttention
    >>> layer = SelfAttention(2, 1, bias=False)
    >>> layer.load_state_dict({"W_q": np.eye(2)})
    Traceback (most recent call last):
        ...
    ValueError: state: missing W_k, W_v; W_q: expected shape (2, 1), got (2, 2)
    """
    own = state_dict(self)
    quantised = {
        name: (array, places)
        for name, (array, places) in _by_name(self).items()
        if isinstance(array, QUANTIZED)
    }
    if not quantised:
        assign(own, state)
        return
    given = {
        name: _checks.array(value, f"state[{name!r}]")
        for name, value in _checks.mapping(state, "state").items()
    }
    for name, (array, _) in quantised.items():
        if f"{name}.codes" in given:
            given[f"{name}.codes"] = narrowed(_weight(array), given[f"{name}.codes"])
    check_shapes(own, {name: array.shape for name, array in given.items()})
    attributes: list[tuple[object, str, object]] = []
    for name, (array, places) in quantised.items():
        weight = _reloaded(_weight(array), name, given)
        new = QuantizedTable(weight) if isinstance(array, QuantizedTable) else weight
        attributes += [(layer, attribute, new) for layer, attribute in places]
    codes = {name for name in own if name.rpartition(".")[0] in quantised}
    plain = {name: own[name] for name in own if name not in codes}
    put(plain, converted(plain, {name: given[name] for name in plain}), attributes)


def _reloaded(
    weight: QuantizedWeight, name: str, given: Mapping[str, Array]
) -> QuantizedWeight:
    """Return a quantised matrix of the codes and scales that a state has."""
    arrays = {part: given[f"{name}.{part}"] for part in arrays_of(weight)}
    for part, own in arrays_of(weight).items():
        if arrays[part].dtype != own.dtype:
            raise TypeError(
                f"state[{f'{name}.{part}'!r}]: expected dtype {own.dtype}, got "
                f"{arrays[part].dtype}"
            )
    with _checks.renamed(**{part: f"state['{name}.{part}']" for part in arrays}):
        return replaced(weight, arrays)


def _by_name(
    layer: object, prefix: str = ""
) -> dict[str, tuple[object, list[tuple[object, str]]]]:
    """Return each array by its first name, with all its layers and attributes."""
    found: dict[int, tuple[str, object, list[tuple[object, str]]]] = {}
    for name, owner, attribute in _attributes(layer, prefix):
        value = getattr(owner, attribute)
        found.setdefault(id(value), (name, value, []))[2].append((owner, attribute))
    return {name: (value, places) for name, value, places in found.values()}


def assign(own: dict[str, Array], state: Mapping[str, ArrayLike]) -> None:
    """Copy values into arrays of the same names, as `load_state_dict` does."""
    put(own, converted(own, state))


def converted(
    own: dict[str, Array], state: Mapping[str, ArrayLike]
) -> dict[str, Array]:
    """Return the values for `put`, if they can be copied into these arrays."""
    given = checked(own, state)
    return {name: _converted(given[name], own, name) for name in own}


def checked(own: dict[str, Array], state: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Return the arrays of a state that can be copied into these."""
    state = _checks.mapping(state, "state")
    given = {
        name: _checks.array(state[name], f"state[{name!r}]")
        for name in state
        if name in own
    }
    unexpected = {name: () for name in state if name not in own}
    check_shapes(own, {name: x.shape for name, x in given.items()} | unexpected)
    for name, array in given.items():
        _dtypes.operand(array, f"state[{name!r}]")
        if not own[name].flags.writeable:
            raise ValueError(f"{name}: expected a parameter that can be written to")
    return given


def put(
    own: dict[str, Array],
    new: dict[str, Array],
    attributes: Iterable[tuple[object, str, object]] = (),
) -> None:
    """Set attributes, and copy values into arrays of the same dtypes: all or nothing.

    An interrupt (Ctrl-C) comes before or after, because it is a single call of a C
    function on C functions, without Python code in between, as a class's own
    ``__setattr__`` would be.
    """
    names = list(own)
    arrays = [own[name] for name in names]
    values = [new[name] for name in names]
    setting = itertools.starmap(object.__setattr__, list(attributes))
    copying = map(np.ndarray.__setitem__, arrays, itertools.repeat(...), values)
    collections.deque(itertools.chain(setting, copying), maxlen=0)


def pack(self: object) -> None:
    """Pack the layers' matrices, for a model that is only run from now on.

    Each matrix of an attention or feed-forward layer, `W_q` and so on, becomes a
    `PackedWeight`: the same numbers in the order in which products read them. Calls are
    faster, especially with few tokens, and have the same bits. The matrices become
    read-only, and `parameters` returns copies of them. Matrices that are already
    packed, or shared by layers, stay so.

    Raises
    ------
    TypeError
        If one is not a floating matrix. Nothing has changed then.
    """
    places: dict[int, list[tuple[object, str]]] = {}
    for layer, name in _matrices(self):
        packable(getattr(layer, name), name)
        places.setdefault(id(getattr(layer, name)), []).append((layer, name))
    for shared in places.values():  # one after the other: no two are in memory twice
        packed = PackedWeight(getattr(*shared[0]))
        for layer, name in shared:
            setattr(layer, name, packed)


def quantize(
    self: object,
    *,
    bits: Literal[8, 4] = 8,
    group: int | Literal["column"] | None = None,
    activations: Literal["float", "int8"] = "float",
) -> None:
    """Quantise the matrices to 8 or 4 bits, for a model that is only run from now on.

    Each matrix of an attention or feed-forward layer, `W_q` and so on, becomes an
    `attnpy.QuantizedWeight`; of a model also its embeddings of tokens, and the matrices
    of its heads: scores, pooler and classifier. Norms, biases and embeddings of
    positions stay as they are. Calls take less memory and less time, above all those of
    few tokens, and keep their promise: the bits of a row depend on nothing else. The
    matrices cannot be written to any more, or trained.

    Parameters
    ----------
    bits, group, activations
        As in `attnpy.quantize`.

    Raises
    ------
    TypeError
        If one is no matrix of float32, float16 or bfloat16. Nothing has changed then.
    ValueError
        If one is quantised already, in another way; if an option is none of
        `attnpy.quantize`'s. Nothing has changed then. If one has numbers that are not
        finite: those before it have changed.
    """
    options = judged(bits, group, activations)
    shared: dict[int, list[tuple[object, str]]] = {}
    for layer, name in quantizable(self):
        value = getattr(layer, name)
        if not isinstance(value, QUANTIZED):
            check_quantizable(value, name)
            shared.setdefault(id(value), []).append((layer, name))
        elif options_of(_weight(value)) != options:
            raise ValueError(
                f"{name}: expected a matrix that is not quantised yet, got {value!r}"
            )
    for places in shared.values():  # one after the other: no two are in memory twice
        quantize_places(places, *options)


def quantize_places(
    places: list[tuple[object, str]], bits: Literal[8, 4], group: int, rounds: bool
) -> None:
    """Quantise a matrix or table that has these places, layers and names."""
    layer, name = places[0]
    value = getattr(layer, name)
    matrix = as_array(value)
    new: QuantizedWeight | QuantizedTable
    if name in TABLES:
        new = QuantizedTable(quantized(matrix.T, name, bits, group, rounds))
    else:
        new = quantized(matrix, name, bits, group, rounds)
    for layer, name in places:
        setattr(layer, name, new)


def quantizable(layer: object) -> Iterator[tuple[object, str]]:
    """Yield what `quantize` takes: the layer that has it, and the name."""
    for _, owner, name in _attributes(layer):
        if is_matrix(name) or name in TABLES + HEADS:
            yield owner, name


def set_attribute(self: object, name: str, value: object) -> None:
    """Refuse attributes that a layer does not have, which would have no effect.

    A class with this as `__setattr__` annotates its attributes. Subclasses may have
    others. Type checkers, which see annotations, must not see this: for them it would
    mean that any attribute may be set.
    """
    cls = type(self)
    if "__setattr__" in vars(cls) and not hasattr(cls, name):
        known = cls.__annotations__
        if name not in known:
            public = [known_name for known_name in known if known_name[0] != "_"]
            expected = f"one of its attributes {', '.join(public)}"
            raise AttributeError(
                f"{cls.__name__}: expected {expected if public else 'no attributes'}, "
                f"got {name!r}"
            )
    object.__setattr__(self, name, value)


def walk(layer: object, prefix: str = "") -> list[tuple[str, Parameter]]:
    """Return all places of arrays by name; an array may have several."""
    return [
        (name, getattr(owner, attribute))
        for name, owner, attribute in _attributes(layer, prefix)
    ]


def _attributes(layer: object, prefix: str = "") -> Iterator[tuple[str, object, str]]:
    """Yield the places of arrays: the name, the layer, its attribute."""
    for name, value in vars(layer).items():
        if isinstance(value, ARRAYS):
            yield prefix + name, layer, name
        elif isinstance(value, list | dict):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for i, inner in pairs:
                if hasattr(inner, "load_state_dict"):
                    yield from _attributes(inner, f"{prefix}{name}.{i}.")
        elif type(value) not in PLAIN and hasattr(value, "load_state_dict"):
            yield from _attributes(value, f"{prefix}{name}.")


def is_matrix(name: str) -> bool:
    """Tell whether an attribute has the name of the matrix of a product."""
    return name == "W" or name.startswith("W_")


def _matrices(layer: object) -> Iterator[tuple[object, str]]:
    """Yield the places of the matrices of products: the layer, and the name."""
    for name, value in vars(layer).items():
        if is_matrix(name) and isinstance(value, np.ndarray):
            yield layer, name
        for inner in value if isinstance(value, list) else [value]:
            if hasattr(inner, "pack"):
                yield from _matrices(inner)


def check_shapes(own: dict[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Require the right shape for each array; the message lists all faults."""
    unexpected = [str(name) for name in shapes if name not in own]
    faults = []
    if missing := [name for name in own if name not in shapes]:
        faults.append(f"missing {', '.join(missing)}")
    if unexpected:
        faults.append(f"unexpected {', '.join(unexpected)}")
        if any(name.endswith(TORCH_ATTENTION) for name in unexpected):
            faults.append(
                "for the names of PyTorch's layer there is "
                "attnpy.checkpoints.load(layer, state, 'torch_attention')"
            )
        if missing and any(name.rpartition(".")[2] == "W" for name in missing):
            faults.append(
                "for torch.nn.Linear, whose weight is the transpose, there is "
                "attnpy.checkpoints.load(layer, state, 'torch_linear')"
            )
    faults += [
        f"{name}: expected shape {own[name].shape}, got {shape}"
        for name, shape in shapes.items()
        if name in own and shape != own[name].shape
    ]
    if faults:
        raise ValueError(f"state: {'; '.join(faults)}")


def _converted(array: Array, own: dict[str, Array], name: str) -> Array:
    """Return the values in the parameter's dtype, and apart from all parameters."""
    dtype = own[name].dtype
    if array.dtype != dtype:
        return _dtypes.rounded(array.astype(np.float64), dtype)
    if any(np.may_share_memory(array, other) for other in own.values()):
        return array.copy()
    return array


def first_names(layer: object) -> dict[str, str]:
    """Return the name in `parameters` for each place of an array."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(array), name) for name, array in walk(layer)}


class Unset(np.random.Generator):
    """A generator that draws zeros, for initial values that are about to be replaced.

    Their memory is not touched, and no number is drawn or rounded. Matrices that
    become integers are `freed` soon, one after another: then each has memory of the
    system's own. In the holes that malloc keeps, later arrays would touch page after
    page.
    """

    def __init__(self, *, freed: bool = False) -> None:
        super().__init__(np.random.PCG64(0))
        self.freed = freed

    def matrix(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """Return zeros."""
        n_bytes = math.prod(shape) * dtype.itemsize
        if not self.freed or n_bytes == 0:
            return np.zeros(shape, dtype)
        if sys.platform == "win32":
            memory = mmap.mmap(-1, n_bytes)
        else:
            memory = mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(memory, dtype).reshape(shape)


def xavier_uniform(
    rng: np.random.Generator,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    fan_out: int | None = None,
) -> Array:
    """Return uniform numbers between -a and a, with a = sqrt(6 / (fan_in + fan_out)).

    From Glorot and Bengio, "Understanding the difficulty of training deep feedforward
    neural networks" (2010), equation 16. The fans are the matrix's numbers of rows and
    columns, unless fan_out is given.
    """
    if isinstance(rng, Unset):
        return rng.matrix(shape, dtype)
    fan_in, n_columns = shape
    limit = math.sqrt(6 / (fan_in + (n_columns if fan_out is None else fan_out)))
    return _dtypes.rounded(rng.uniform(-limit, limit, shape), dtype)


def zeros(wanted: bool, size: int, dtype: np.dtype[Any]) -> Array | None:
    """Return the initial values of a bias, or None without one."""
    return np.zeros(size, dtype) if wanted else None
