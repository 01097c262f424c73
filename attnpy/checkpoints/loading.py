"""Weights from the checkpoints of other libraries, one table of names for each family.

A checkpoint is a mapping of names to arrays: what `read` makes of safetensors files, or
any other. `FAMILIES` says which of its arrays go where; `load` copies them.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _dtypes

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike

    from attnpy._typing import Array, Model

# What safetensors calls the dtypes that are read here.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Family(NamedTuple):
    """The names in the checkpoints of a family of models.

    Attributes
    ----------
    names : mapping of str to tuple of str
        A name in the checkpoint and the parameter it holds, or several parameters,
        packed side by side along the axis of the outputs. ``{i}`` is the number of a
        layer. ``.T`` after a parameter: the checkpoint has its transpose. Where
        parameters have several names, a checkpoint has one of them.
    prefixes : tuple of str
        A name may begin with one of these.
    renamed : tuple of (str, str)
        Endings of names, old and new.
    ignored : tuple of str
        Patterns of names that are left alone.
    refused : mapping of str to str
        Names that cannot be loaded, and why.
    tied : mapping of str to str
        Names that may be there, equal to another, where a model has no parameter of
        its own for them.
    """

    names: Mapping[str, tuple[str, ...]]
    prefixes: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    refused: Mapping[str, str] = MappingProxyType({})
    tied: Mapping[str, str] = MappingProxyType({})


def _names(
    block: str, parts: dict[str, str], rest: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return all names of a model whose layers have these parts."""
    theirs, ours = block.split()
    names = {
        f"{theirs}.{name}": tuple(f"{ours}.{part}" for part in places.split())
        for name, places in parts.items()
    }
    return {name: tuple(places.split()) for name, places in rest.items()} | names


# torch.nn.MultiheadAttention, for MultiHeadAttention.
TORCH_ATTENTION = Family(
    {
        "in_proj_weight": ("W_q.T", "W_k.T", "W_v.T"),
        "q_proj_weight": ("W_q.T",),
        "k_proj_weight": ("W_k.T",),
        "v_proj_weight": ("W_v.T",),
        "in_proj_bias": ("b_q", "b_k", "b_v"),
        "out_proj.weight": ("W_o.T",),
        "out_proj.bias": ("b_o",),
    },
    refused={
        "bias_k": "expected none, as MultiHeadAttention has no learned key (in PyTorch "
        "add_bias_kv=True)",
        "bias_v": "expected none, as MultiHeadAttention has no learned value (in "
        "PyTorch add_bias_kv=True)",
    },
)

# BERT and what is built as it, MiniLM among them, for BertEncoder. What comes after the
# encoder is left alone: the pooler, and the heads of the tasks.
BERT = Family(
    _names(
        "encoder.layer.{i} encoder.layers.{i}",
        {
            "attention.self.query.weight": "self_attention.W_q.T",
            "attention.self.query.bias": "self_attention.b_q",
            "attention.self.key.weight": "self_attention.W_k.T",
            "attention.self.key.bias": "self_attention.b_k",
            "attention.self.value.weight": "self_attention.W_v.T",
            "attention.self.value.bias": "self_attention.b_v",
            "attention.output.dense.weight": "self_attention.W_o.T",
            "attention.output.dense.bias": "self_attention.b_o",
            "attention.output.LayerNorm.weight": "norm_1.weight",
            "attention.output.LayerNorm.bias": "norm_1.bias",
            "intermediate.dense.weight": "feed_forward.W_1.T",
            "intermediate.dense.bias": "feed_forward.b_1",
            "output.dense.weight": "feed_forward.W_2.T",
            "output.dense.bias": "feed_forward.b_2",
            "output.LayerNorm.weight": "norm_2.weight",
            "output.LayerNorm.bias": "norm_2.bias",
        },
        {
            "embeddings.word_embeddings.weight": "words",
            "embeddings.position_embeddings.weight": "places",
            "embeddings.token_type_embeddings.weight": "types",
            "embeddings.LayerNorm.weight": "norm.weight",
            "embeddings.LayerNorm.bias": "norm.bias",
        },
    ),
    prefixes=("bert.", "model."),
    renamed=(
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("LayerNorm.beta", "LayerNorm.bias"),
    ),
    ignored=(
        "embeddings.position_ids",
        "embeddings.token_type_ids",
        "pooler.dense.*",
        "cls.*",
        "classifier.*",
        "qa_outputs.*",
    ),
)

# GPT-2, for CausalDecoder. Its Conv1D has our orientation. The ignored ones are masks.
GPT2 = Family(
    _names(
        "h.{i} decoder.layers.{i}",
        {
            "ln_1.weight": "norm_1.weight",
            "ln_1.bias": "norm_1.bias",
            "attn.c_attn.weight": "self_attention.W_q self_attention.W_k "
            "self_attention.W_v",
            "attn.c_attn.bias": "self_attention.b_q self_attention.b_k "
            "self_attention.b_v",
            "attn.c_proj.weight": "self_attention.W_o",
            "attn.c_proj.bias": "self_attention.b_o",
            "ln_2.weight": "norm_3.weight",
            "ln_2.bias": "norm_3.bias",
            "mlp.c_fc.weight": "feed_forward.W_1",
            "mlp.c_fc.bias": "feed_forward.b_1",
            "mlp.c_proj.weight": "feed_forward.W_2",
            "mlp.c_proj.bias": "feed_forward.b_2",
        },
        {
            "wte.weight": "words",
            "wpe.weight": "places",
            "ln_f.weight": "decoder.norm.weight",
            "ln_f.bias": "decoder.norm.bias",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("transformer.",),
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
    tied={"lm_head.weight": "wte.weight"},
)

# Llama, Mistral, Qwen2 (biases of queries, keys and values) and Qwen3 (norms of queries
# and keys), for CausalDecoder. The ignored ones are rotary frequencies.
LLAMA = Family(
    _names(
        "layers.{i} decoder.layers.{i}",
        {
            "input_layernorm.weight": "norm_1.weight",
            "self_attn.q_proj.weight": "self_attention.W_q.T",
            "self_attn.q_proj.bias": "self_attention.b_q",
            "self_attn.k_proj.weight": "self_attention.W_k.T",
            "self_attn.k_proj.bias": "self_attention.b_k",
            "self_attn.v_proj.weight": "self_attention.W_v.T",
            "self_attn.v_proj.bias": "self_attention.b_v",
            "self_attn.o_proj.weight": "self_attention.W_o.T",
            "self_attn.q_norm.weight": "self_attention.q_norm.weight",
            "self_attn.k_norm.weight": "self_attention.k_norm.weight",
            "post_attention_layernorm.weight": "norm_3.weight",
            "mlp.gate_proj.weight": "feed_forward.W_gate.T",
            "mlp.up_proj.weight": "feed_forward.W_1.T",
            "mlp.down_proj.weight": "feed_forward.W_2.T",
        },
        {
            "embed_tokens.weight": "words",
            "norm.weight": "decoder.norm.weight",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("model.",),
    ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
    tied={"lm_head.weight": "embed_tokens.weight"},
)

FAMILIES: dict[str, Family] = {
    "torch_attention": TORCH_ATTENTION,
    "bert": BERT,
    "gpt2": GPT2,
    "llama": LLAMA,
}


class Checkpoint(Mapping[str, "Array"]):
    """The arrays of safetensors files by name, each read when it is asked for.

    Parameters
    ----------
    *paths : str or path
        The files; no name is in two of them.

    Raises
    ------
    ImportError
        If the safetensors package is not installed.
    FileNotFoundError
        If there is no such file.
    ValueError
        If a file is not in the format, or a name is in two files.

    See Also
    --------
    read : finds the files of a model.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from safetensors.numpy import save_file
    >>> from attnpy.checkpoints import Checkpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     save_file({"norm.weight": np.ones(3, np.float16)}, path)
    ...     tensors = Checkpoint(path)
    ...     list(tensors), tensors["norm.weight"]
    (['norm.weight'], array([1., 1., 1.], dtype=float16))
    """

    def __init__(self, *paths: str | os.PathLike[str]) -> None:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise ImportError(
                "attnpy.checkpoints: reading safetensors files needs the safetensors "
                "package: pip install 'attnpy[weights]'"
            ) from error
        self._files: dict[str, Any] = {}
        for path in paths:
            try:
                file: Any = safe_open(path, framework="np")
            except SafetensorError as error:
                raise ValueError(
                    f"{path}: expected a safetensors file, got {error}"
                ) from error
            for name in file.keys():  # noqa: SIM118
                if name in self._files:
                    raise ValueError(f"{path}: expected no {name}, as another file has")
                self._files[name] = file

    def __getitem__(self, name: str) -> Array:
        """Read an array into memory."""
        if self.describe(name)[1] == "bfloat16":
            _register_bfloat16()
        array: Array = self._files[name].get_tensor(name)
        return array

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._files)

    def __len__(self) -> int:
        """Count the names."""
        return len(self._files)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return an array's shape and the name of its dtype, without reading it.

        Parameters
        ----------
        name : str

        Returns
        -------
        shape : tuple of int
        dtype : str
            NumPy's name for floating dtypes, the format's for others.

        Raises
        ------
        KeyError
            If there is no such name.
        """
        part = self._files[name].get_slice(name)
        dtype = str(part.get_dtype())
        return tuple(part.get_shape()), DTYPES.get(dtype, dtype)


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model's weights.

    Parameters
    ----------
    path : str or path
        A safetensors file; the index of several, ``model.safetensors.index.json``; or
        a folder with ``model.safetensors`` or that index in it.

    Returns
    -------
    Checkpoint
        A mapping of names to arrays. Arrays in bfloat16 need the ml_dtypes package.

    Raises
    ------
    ImportError
        If the safetensors package is not installed.
    FileNotFoundError
        If there is no such file.
    ValueError
        If a file is not in its format, or the files do not have the names that their
        index says; the message has all of them.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from safetensors.numpy import save_file
    >>> from attnpy import checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     save_file({"norm.weight": np.ones(3, np.float16)}, path)
    ...     len(checkpoints.read(folder))
    1
    """
    path = Path(path)
    if path.is_dir():
        one, index = path / "model.safetensors", path / "model.safetensors.index.json"
        if one.is_file():
            return Checkpoint(one)
        if not index.is_file():
            raise FileNotFoundError(
                f"{path}: expected {one.name} or {index.name} in this folder"
            )
        path = index
    return _read_index(path) if path.suffix == ".json" else Checkpoint(path)


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a model's configuration.

    Parameters
    ----------
    path : str or path
        A JSON file, or a folder with ``config.json`` in it.

    Returns
    -------
    dict
        For the `from_config` of a model in `attnpy.models`.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it has something else than a JSON object.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from attnpy import checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "config.json")
    ...     _ = path.write_text('{"model_type": "bert"}')
    ...     checkpoints.read_config(folder)
    {'model_type': 'bert'}
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected a JSON object, got {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: expected a JSON object, got {config!r:.60}")
    return config


def load(
    model: Model, tensors: Mapping[str, ArrayLike], family: str, *, prefix: str = ""
) -> None:
    """Copy the arrays of a checkpoint into a model.

    Parameters
    ----------
    model : MultiHeadAttention, BertEncoder, CausalDecoder, or alike
        What has `parameters`. Their values are replaced, and keep their dtypes.
    tensors : mapping of str to array_like
        From `read`, or arrays by name from elsewhere.
    family : {"torch_attention", "bert", "gpt2", "llama"}
        Whose names the checkpoint has, a key of `FAMILIES`. "torch_attention" is
        `torch.nn.MultiheadAttention`, "llama" also Mistral, Qwen2 and Qwen3.
    prefix : str, optional
        Take only names that begin with this, as ``"layers.0.self_attn."``.

    Raises
    ------
    ValueError
        If names are missing or unexpected, shapes are wrong, or arrays are not of
        floating numbers; the message has all of them, under the checkpoint's names. The
        model has then not changed. If it is not a model of the family.

    Notes
    -----
    A matrix of `torch.nn.Linear` is the transpose of ours, (out, in) instead of
    (in, out). It is copied row by row into our orientation, in which the product reads
    memory in order.

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
    if family not in FAMILIES:
        raise ValueError(
            f"family: expected one of {', '.join(FAMILIES)}, got {family!r}"
        )
    table, own = FAMILIES[family], model.parameters()
    found, unexpected = _known_by(tensors, table, prefix)
    places = _places(own, table, found)
    faults = []
    if missing := [prefix + name for name in places if name not in found]:
        faults.append(f"missing {', '.join(missing)}")
    for plain in found.keys() - places.keys():
        if plain in table.tied:
            faults += _tie_fault(tensors, found, plain, table.tied[plain])
        elif plain in table.refused:
            faults.append(f"{found[plain]}: {table.refused[plain]}")
        else:
            unexpected.append(found[plain])
    if unexpected:
        faults.append(f"unexpected {', '.join(sorted(unexpected))}")
    for plain, place in places.items():
        if plain in found:
            faults += _array_fault(tensors, found[plain], place)
    if faults:
        raise ValueError(f"checkpoint: {'; '.join(faults)}")
    for plain, place in places.items():
        _copy(np.asarray(tensors[found[plain]]), place)


class Place(NamedTuple):
    """Where an array goes: parameters side by side, or their transpose."""

    parts: list[Array]
    turned: bool


def _known_by(
    tensors: Mapping[str, ArrayLike], table: Family, prefix: str
) -> tuple[dict[str, str], list[str]]:
    """Return the checkpoint's names by those of the table, and those that are twice."""
    found: dict[str, str] = {}
    twice = []
    for name in tensors:
        if not name.startswith(prefix):
            continue
        plain = name[len(prefix) :]
        for start in table.prefixes:
            if plain.startswith(start):
                plain = plain[len(start) :]
                break
        for old, new in table.renamed:
            if plain.endswith(old):
                plain = plain[: -len(old)] + new
        if any(fnmatch.fnmatchcase(plain, pattern) for pattern in table.ignored):
            continue
        if plain in found:
            twice.append(name)
        found.setdefault(plain, name)
    return found, twice


def _places(
    own: dict[str, Array], table: Family, found: Mapping[str, str]
) -> dict[str, Place]:
    """Return the names that together fill each parameter once, and their places."""
    candidates: dict[str, tuple[list[str], bool]] = {}
    for theirs, ours in table.names.items():
        for i in itertools.count() if "{i}" in theirs else range(1):
            parts = [name.removesuffix(".T").format(i=i) for name in ours]
            if not own.keys() >= set(parts):
                break
            candidates[theirs.format(i=i)] = parts, ours[0].endswith(".T")
    places: dict[str, Place] = {}
    filled: set[str] = set()
    # What the checkpoint has comes first; the rest is for what is not filled then.
    for name in sorted(candidates, key=lambda name: name not in found):
        parts, turned = candidates[name]
        if filled.isdisjoint(parts):
            filled.update(parts)
            places[name] = Place([own[part] for part in parts], turned)
    if unnamed := sorted(own.keys() - filled):
        raise ValueError(
            "model: expected one of the family, got parameters without a name in its "
            f"checkpoints: {', '.join(unnamed)}"
        )
    return places


def _describe(
    tensors: Mapping[str, ArrayLike], name: str
) -> tuple[tuple[int, ...], str]:
    if isinstance(tensors, Checkpoint):
        return tensors.describe(name)
    array = np.asarray(tensors[name])
    return array.shape, array.dtype.name


def _array_fault(
    tensors: Mapping[str, ArrayLike], name: str, place: Place
) -> list[str]:
    """Return what is wrong with an array, if anything is."""
    shape, dtype = _describe(tensors, name)
    rows = {part.shape[:-1] for part in place.parts}
    if len(rows) > 1:
        return [f"{name}: expected several arrays, as keys and values have other rows"]
    expected = *rows.pop(), sum(part.shape[-1] for part in place.parts)
    if place.turned:
        expected = expected[::-1]
    if shape != expected:
        return [f"{name}: expected shape {expected}, got {shape}"]
    if dtype not in DTYPES.values():
        return [f"{name}: expected floating numbers, got dtype {dtype}"]
    return []


def _tie_fault(
    tensors: Mapping[str, ArrayLike], found: Mapping[str, str], name: str, other: str
) -> list[str]:
    """Return what is wrong with an array that the model has under another name."""
    equal = other in found and np.array_equal(
        tensors[found[name]], tensors[found[other]]
    )
    return [] if equal else [f"{found[name]}: expected {other} again, as they are tied"]


def _copy(array: Array, place: Place) -> None:
    if place.turned:
        array = array.T
    start = 0
    for part in place.parts:
        values = array[..., start : start + part.shape[-1]]
        start += part.shape[-1]
        if values.dtype == np.float64 and part.dtype != np.float64:
            values = _dtypes.rounded(values, part.dtype)
        part[...] = values


def _read_index(path: Path) -> Checkpoint:
    """Open the files of an index, which must have the names that it says."""
    shards = read_config(path).get("weight_map")
    if not isinstance(shards, dict) or not all(
        isinstance(shard, str) and Path(shard).name == shard
        for shard in shards.values()
    ):
        raise ValueError(
            f"{path}: expected a 'weight_map' of names to files in the same folder"
        )
    tensors = Checkpoint(
        *(path.parent / shard for shard in sorted(set(shards.values())))
    )
    faults = []
    if missing := sorted(shards.keys() - tensors.keys()):
        faults.append(f"missing {', '.join(missing)}")
    if unexpected := sorted(tensors.keys() - shards.keys()):
        faults.append(f"unexpected {', '.join(unexpected)}")
    if faults:
        raise ValueError(f"{path}: in the files {'; '.join(faults)}")
    return tensors


def _register_bfloat16() -> None:
    """Import the package that teaches NumPy the dtype."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "attnpy.checkpoints: reading bfloat16 arrays needs the ml_dtypes package: "
            "pip install 'attnpy[weights]'"
        ) from error
