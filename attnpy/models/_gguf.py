"""A model from a GGUF file: its metadata become a configuration, its arrays weights.

`attnpy._families.gguf` says what keys and names mean.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from attnpy import _checks, _dtypes, _progress
from attnpy._families import gguf as declared
from attnpy._families import gguf_encoders
from attnpy._families.fields import KINDS
from attnpy._families.rules import FULL, SLIDING
from attnpy._parameters import Unset
from attnpy._quantized_parts import ACTIVATIONS
from attnpy._quoting import joined, named, quoted
from attnpy.checkpoints.gguf import TYPES, GgufFile, load_gguf
from attnpy.checkpoints.gguf_tokenizer import check as check_tokenizer
from attnpy.checkpoints.loading import unstacked
from attnpy.models import _hf_config, _pretrained
from attnpy.models._pooling import Dense

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from attnpy import _typing
    from attnpy._families.gguf import Architecture

Model = TypeVar("Model", bound="_typing.PackableModel")
Kind = Literal[
    "decoder", "encoder", "pooled decoder", "scoring decoder", "scoring encoder"
]

SIZES = "embedding_length", "block_count", "attention.head_count", "feed_forward_length"
WINDOW = "attention.sliding_window"
# Fields that say whether the first layer has an array.
BY_ARRAYS = {
    "attention_bias": "attn_q.bias",
    "use_qkv_bias": "attn_q.bias",
    "use_bias": "attn_q.bias",
    "attention_out_bias": "attn_output.bias",
    "mlp_bias": "ffn_up.bias",
}
# Keys that become a part of the configuration by rules of their own.
ROPE_SIZE, VALUE_SIZE = "rope.dimension_count", "attention.value_length"
SCALING, FACTOR = "rope.scaling.type", "rope.scaling.factor"
ORIGINAL, ATTENTION_FACTOR = (
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
)
BY_RULES = (ROPE_SIZE, VALUE_SIZE, SCALING, FACTOR, ORIGINAL, ATTENTION_FACTOR)


def read(
    from_config: Callable[..., Model],
    file: str | os.PathLike[str] | GgufFile,
    dtype: DTypeLike,
    packed: bool,
    progress: bool | None,
    weights: Literal["file"] | None,
    activations: Literal["float", "int8"],
    kind: Kind = "decoder",
) -> Model:
    """Make a model of a file, and copy the weights into it.

    The vectors of a "pooled decoder" are those of texts, not of their next tokens.
    Those that are "scoring" have a classifier of texts.
    """
    packed = _checks.flag(packed, "packed")
    progress = _progress.checked(progress)
    dtype = _dtypes.floating(dtype)
    if weights is not None:
        _checks.one_of(weights, "weights", ("file",))
        if dtype != np.float32:
            raise TypeError(
                f"dtype: expected float32 with weights={weights!r}, got {dtype}"
            )
    _checks.one_of(activations, "activations", ACTIVATIONS)
    if weights is None and activations != "float":
        raise ValueError(
            f"activations: expected 'float' without weights='file', got {activations!r}"
        )
    tensors = file if isinstance(file, GgufFile) else load_gguf(file)
    metadata = _Metadata(tensors, kind)
    config = metadata.config()
    try:
        model = from_config(config, dtype=dtype, rng=Unset(freed=weights is not None))
    except ValueError as error:
        raise ValueError(f"{named(tensors.path)}: {error}") from error
    names = metadata.names
    arrays = metadata.arranged(config)
    kept = None if weights is None else _pretrained.Kept(arrays, activations)
    _pretrained.load(model, arrays, names, packed, progress, weights=kept)
    if packed:
        model.pack()
    return model


class _Metadata:
    """What a file says of its model, and all that is wrong with it."""

    def __init__(self, file: GgufFile, kind: str) -> None:
        self.file, self.values, self.kind = file, file.metadata, kind
        self.faults: list[str] = []
        self.head_dim = 0
        self.is_encoder = kind.endswith("encoder")
        self.is_scoring = kind.startswith("scoring")
        self.architecture = self._architecture()
        self.names = self.architecture.names
        if kind == "scoring decoder":
            self.names = self.names._replace(classifier=declared.CLASSIFIER)

    def _architecture(self) -> Architecture:
        name = self.values.get("general.architecture")
        known = declared.ARCHITECTURES
        if self.is_encoder:
            known = gguf_encoders.ARCHITECTURES
        elif self.kind == "pooled decoder":
            known = {**known, **gguf_encoders.POOLED}
        if not isinstance(name, str) or name not in known:
            raise ValueError(
                f"{named(self.file.path)}: expected general.architecture to be one of "
                f"{', '.join(known)}, got {'none' if name is None else quoted(name)}"
                f"{_elsewhere(name)}"
            )
        experts = self.values.get(f"{name}.{declared.EXPERT_COUNT}")
        if name == "llama" and isinstance(experts, int) and experts > 0:
            return declared.MIXTRAL_ARCHITECTURE
        window = self.values.get(f"{name}.{WINDOW}")
        if name == "olmo2" and isinstance(window, int) and window > 0:
            return declared.OLMO3_ARCHITECTURE
        return known[name]

    def get(self, key: str) -> Any:
        """Return a value of the family's; one for each layer if they are all equal."""
        value = self.values.get(f"{self.architecture.name}.{key}")
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind != "b":
            numbers = value.tolist()
            return numbers[0] if numbers.count(numbers[0]) == len(numbers) else numbers
        return value

    def expect(self, key: str, words: str, got: object) -> None:
        """Note that a value is wrong."""
        name = f"{self.architecture.name}.{key}"
        shown = "none" if got is None else quoted(got)
        self.faults.append(f"expected {name} to be {words}, got {shown}")

    def of_kind(self, key: str, kind: str) -> Any:
        """Return a value of a kind, or None where it is not there or wrong."""
        value = self.get(key)
        fits, words = KINDS[kind]
        if value is None or fits(value):
            return value
        self.expect(key, words, value)
        return None

    def config(self) -> dict[str, Any]:
        """Return the configuration of the family, or raise one error."""
        self._check_keys()
        self._check_types()
        config = self._fields()
        self._raise()
        self._set_sizes(config)
        self._raise()
        self._set_rest(config)
        self._raise()
        return config

    def _raise(self) -> None:
        if self.faults:
            raise ValueError(f"{named(self.file.path)}: {joined(self.faults)}")

    def _check_keys(self) -> None:
        """Note what is not honoured, of all keys but those of the tokenizer."""
        architecture = self.architecture
        prefix = f"{architecture.name}."
        harmless = {*_names(declared.HARMLESS)} - architecture.neutral.keys()
        known = {*architecture.read, *architecture.harmless, *BY_RULES, *harmless}
        neutral = {**declared.NEUTRAL, **architecture.neutral}
        if self.kind == "pooled decoder":
            neutral[gguf_encoders.POOLING_TYPE] = (0, *gguf_encoders.POOLINGS)
        if self.is_scoring:
            neutral[gguf_encoders.POOLING_TYPE] = (gguf_encoders.SCORES,)
            known.add(declared.LABELS)
        general = [*_names(declared.GENERAL_HARMLESS)]
        for key, value in self.values.items():
            if key.startswith("tokenizer."):
                continue
            if key.startswith(prefix):
                if (own := key.removeprefix(prefix)) not in known:
                    self._require(key, self.get(own), neutral.get(own, ()))
            elif key in declared.GENERAL_NEUTRAL:
                self._require(key, value, declared.GENERAL_NEUTRAL[key])
            elif not any(fnmatch.fnmatchcase(key, pattern) for pattern in general):
                self._require(key, value, ())
        check_tokenizer(self.values, self.file.path)

    def _require(self, key: str, value: object, wanted: tuple[object, ...]) -> None:
        """Note a value that is none of these."""
        if isinstance(value, (np.ndarray, list)) or value not in wanted:
            words = f"{named(key)} = {wanted[0]!r}" if wanted else f"no {named(key)}"
            advice = declared.ADVICE.get(key, "")
            self.faults.append(f"expected {words}, got {quoted(value)}{advice}")

    def _check_types(self) -> None:
        """Note types of arrays that are not read."""
        others: dict[str, list[str]] = {}
        for name in self.file:
            if (kind := self.file.type_of(name)) not in TYPES:
                others.setdefault(kind, []).append(name)
        if others:
            got = ", ".join(
                f"{kind} of {named(names[0])}"
                + (f" and {len(names) - 1} more" if len(names) > 1 else "")
                for kind, names in others.items()
            )
            self.faults.append(f"expected arrays of {', '.join(TYPES)}, got {got}")

    def _fields(self) -> dict[str, Any]:
        """Return the fields that keys have the values of."""
        architecture = self.architecture
        declaration = architecture.family
        config = {"model_type": declaration.model_type, **architecture.fixed}
        for key, field in architecture.read.items():
            value = self.get(key)
            if key == WINDOW and value == 0:
                continue  # none
            if key == declared.PATTERN and _is_flags(value):
                continue
            value = self.of_kind(key, declaration.read[field].kind)
            needed = key in SIZES or "epsilon" in key or key.startswith("expert_")
            needed = needed or key in architecture.needed
            if value is not None:
                given = field in config and field not in architecture.fixed
                if given and config[field] != value:
                    self.expect(key, f"{config[field]}, as another key says", value)
                config[field] = value
            elif needed and self.get(key) is None:
                self.expect(key, "there", None)
        return config

    def _set_sizes(self, config: dict[str, Any]) -> None:
        """Add the sizes that have rules, and compare them with those of arrays."""
        file, read = self.file, self.architecture.read
        size, n_layers, n_heads, n_inner = (int(config[read[key]]) for key in SIZES)
        head_dim = config.get("head_dim")
        if head_dim is None:
            if size % n_heads:
                self.expect("embedding_length", f"a multiple of {n_heads} heads", size)
            head_dim = max(size // n_heads, 1)
        self.head_dim = int(head_dim)
        if "head_dim" in self.architecture.family.read:
            config["head_dim"] = head_dim
        if "num_key_value_heads" in self.architecture.family.read:
            config.setdefault("num_key_value_heads", n_heads)
        if (value_size := self.of_kind(VALUE_SIZE, "size")) not in (None, head_dim):
            self.expect(VALUE_SIZE, f"{head_dim}, as keys are", value_size)
        n_found = len({name.split(".")[1] for name in file if name.startswith("blk.")})
        if n_found != n_layers:
            self.expect("block_count", f"{n_found}, as arrays are of so many", n_layers)
            return
        if "token_embd.weight" not in file:
            self.faults.append("expected token_embd.weight, got none")
            return
        shape = file.describe("token_embd.weight")[0]
        config["vocab_size"] = n_tokens = shape[0]
        if (width := shape[-1]) != size:
            self.expect("embedding_length", f"{width}, as token_embd.weight has", size)
        for i in range(n_layers):
            for name, found, words in (
                (f"blk.{i}.ffn_down.weight", n_inner, "feed_forward_length"),
                (f"blk.{i}.attn_output.weight", n_heads * head_dim, "head_count"),
            ):
                if name in file and file.describe(name)[0] != (size, found):
                    self.faults.append(
                        f"expected {name} of {(size, found)}, by embedding_length and "
                        f"{words}, got {quoted(file.describe(name)[0])}"
                    )
        self._check_experts(config, size, n_inner)
        known = self.values.get("tokenizer.ggml.tokens")
        if isinstance(known, list) and len(known) > n_tokens:
            self.faults.append(
                f"expected at most {n_tokens} tokens, as token_embd.weight has rows, "
                f"got {len(known)}"
            )

    def _check_experts(self, config: dict[str, Any], size: int, n_inner: int) -> None:
        """Compare the number of experts, and their size, with those of arrays."""
        read = self.architecture.read
        if declared.EXPERT_COUNT not in read:
            return
        n_experts = config[read[declared.EXPERT_COUNT]]
        if (n_used := config["num_experts_per_tok"]) > n_experts:
            self.expect(declared.EXPERT_USED_COUNT, f"at most {n_experts}", n_used)
        shape = n_experts, size, config.get("moe_intermediate_size", n_inner)
        for i in range(config["num_hidden_layers"]):
            name = f"blk.{i}.ffn_down_exps.weight"
            found = self.file.describe(name)[0] if name in self.file else None
            if found != shape:
                self.faults.append(
                    f"expected {name} of {shape}, by {declared.EXPERT_COUNT}, "
                    "embedding_length and the size of the experts, got "
                    f"{'none' if found is None else quoted(found)}"
                )

    def _set_rest(self, config: dict[str, Any]) -> None:
        """Add the fields that have rules."""
        file, family = self.file, self.architecture.family
        if self.is_scoring:
            self._set_labels(config)
        if self.is_encoder:
            self._set_tables(config)
        else:
            config["tie_word_embeddings"] = "output.weight" not in file
            config["eos_token_id"] = list(file.stop)
        for field, name in BY_ARRAYS.items():
            if field in family.read:
                config[field] = f"blk.0.{name}" in file
        if "use_parallel_residual" in family.read:
            config["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in file
        if "query_pre_attn_scalar" in family.read:
            config["query_pre_attn_scalar"] = config["head_dim"]
            if config["num_hidden_layers"] == self.architecture.large:
                per_head = config["hidden_size"] // config["num_attention_heads"]
                config["query_pre_attn_scalar"] = per_head
        if "layer_types" in family.read:
            self._set_windows(config)
        if "rope_theta" in family.read:
            self._set_positions(config)
        elif self.get(SCALING) is not None or self.get(FACTOR) is not None:
            self.expect(SCALING, "left out", self.get(SCALING))

    def _set_tables(self, config: dict[str, Any]) -> None:
        """Add the sizes of an encoder's tables."""
        for name, field in (
            ("token_types.weight", "type_vocab_size"),
            ("position_embd.weight", "max_position_embeddings"),
        ):
            if name in self.file:
                config[field] = self.file.describe(name)[0][0]
            elif field == "type_vocab_size":
                config[field] = 0

    def _set_labels(self, config: dict[str, Any]) -> None:
        """Add the number of scores of a text."""
        (name,) = declared.CLASSIFIER
        if name not in self.file:
            self.faults.append(f"expected {name} of a head that scores, got none")
            return
        config["num_labels"] = n = self.file.describe(name)[0][0]
        labels = self.values.get(f"{self.architecture.name}.{declared.LABELS}")
        if labels is not None and (not isinstance(labels, list) or len(labels) != n):
            self.expect(declared.LABELS, f"the names of {n} scores", labels)
        elif labels is not None and _hf_config.repeated(labels) is not None:
            self.expect(declared.LABELS, "another name for each score", labels)

    def _set_windows(self, config: dict[str, Any]) -> None:
        """Say which layers have a window, where the file does, or none has one."""
        if declared.PATTERN not in self.architecture.read:
            return
        n_layers = config["num_hidden_layers"]
        flags = self.get(declared.PATTERN)
        if "sliding_window" not in config:
            flags, config["sliding_window"] = np.zeros(n_layers, bool), None
        if _is_flags(flags):
            config["layer_types"] = [SLIDING if flag else FULL for flag in flags]

    def _set_positions(self, config: dict[str, Any]) -> None:
        """Say how much of a head is turned, and how that is scaled."""
        turned, head_dim = self.of_kind(ROPE_SIZE, "size"), self.head_dim
        if turned is not None and turned != head_dim:
            if "partial_rotary_factor" in self.architecture.family.read:
                share = turned / head_dim
                right = (
                    int(head_dim * share) == turned
                )  # as the rule of the family does
                config["partial_rotary_factor"] = (
                    share if right else float(np.nextafter(share, 2))
                )
            else:
                self.expect(ROPE_SIZE, f"{head_dim}, the size of a head", turned)
        scaling = self._scaling() or self._factors()
        if scaling:
            config["rope_scaling"] = scaling

    def _scaling(self) -> dict[str, Any] | None:
        """Return the scaling that keys say, if any."""
        kind, factor = self.get(SCALING), self.of_kind(FACTOR, "number")
        if kind not in (None, "none", "linear", "yarn"):
            self.expect(SCALING, "none, linear or yarn", kind)
        if kind == "none" or factor is None:
            if kind in ("linear", "yarn"):
                self.expect(FACTOR, "a number", self.get(FACTOR))
            return None
        if kind == "yarn":
            original = self.of_kind(ORIGINAL, "size")
            if original is None:
                self.expect(ORIGINAL, "there", None)
            return {
                **self.architecture.yarn,
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
            }
        return {"rope_type": "linear", "factor": factor}

    def _factors(self) -> dict[str, Any] | None:
        """Return the scaling that arrays of divisors are, if any."""
        file, factor = self.file, self.of_kind(ATTENTION_FACTOR, "number")
        names = declared.SHORT_FACTORS, declared.LONG_FACTORS
        original = self.of_kind(ORIGINAL, "size")
        if declared.FACTORS in file:
            names, original = (declared.FACTORS, declared.FACTORS), 1
        elif not file.keys() >= set(names):
            if factor not in (None, 1.0):
                self.expect(ATTENTION_FACTOR, f"1.0 without {names[1]}", factor)
            return None
        if original is None:
            self.expect(ORIGINAL, "there", None)
        short, long = (self._divisors(name) for name in names)
        return {
            "rope_type": "longrope",
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings": original,
            "attention_factor": 1.0 if factor is None else factor,
        }

    def _divisors(self, name: str) -> list[float]:
        shape = self.file.describe(name)[0]
        if len(shape) != 1 or shape[0] > 1 << 16:
            self.faults.append(f"expected {name} of one axis, got {quoted(shape)}")
            return []
        return [float(str(number)) for number in self.file[name]]

    def arranged(self, config: Mapping[str, Any]) -> GgufFile:
        """Return arrays of a matrix each, with all rows in the order they have here."""
        file = unstacked(self._ordered(config), self.architecture.names)
        assert isinstance(file, GgufFile)
        return file

    def _ordered(self, config: Mapping[str, Any]) -> GgufFile:
        if not self.architecture.alternating:
            return self.file
        names = (
            f"blk.{i}.attn_{part}.{kind}"
            for i in range(config["num_hidden_layers"])
            for part in ("q", "k")
            for kind in ("weight", "bias")
        )
        found = (name for name in names if name in self.file)
        return self.file.split_halves(dict.fromkeys(found, self.head_dim))


def _elsewhere(name: object) -> str:
    """Return what reads a file of another architecture, if anything may."""
    if name in declared.ARCHITECTURES:
        return ": CausalDecoder reads it"
    if name in gguf_encoders.POOLED:
        return ": SentenceEncoder reads it"
    return ": BertEncoder reads it" if name in gguf_encoders.ARCHITECTURES else ""


def is_encoder(file: GgufFile) -> bool:
    """Tell whether a file is of a family of `BertEncoder`."""
    return file.metadata.get("general.architecture") in gguf_encoders.ARCHITECTURES


def is_decoder(file: GgufFile) -> bool:
    """Tell whether a file is of a family of `CausalDecoder`."""
    return file.metadata.get("general.architecture") in declared.ARCHITECTURES


def dense(file: GgufFile) -> list[Dense]:
    """Return the steps of a file after pooling."""
    matrices = [file[name] for name in gguf_encoders.DENSE if name in file]
    if any(matrix.ndim != 2 for matrix in matrices):
        raise ValueError(
            f"{named(file.path)}: expected {' and '.join(gguf_encoders.DENSE)} of two "
            "axes, got others"
        )
    return [Dense(np.ascontiguousarray(x.T), None, None) for x in matrices]


def pooling(file: GgufFile) -> str | None:
    """Return how a file says that the vector of a text is made, if it does."""
    name = file.metadata.get("general.architecture")
    said = file.metadata.get(f"{name}.{gguf_encoders.POOLING_TYPE}")
    return gguf_encoders.POOLINGS.get(said) if isinstance(said, int) else None


def _names(reasons: Mapping[str, tuple[str, ...]]) -> Iterable[str]:
    return (name for names in reasons.values() for name in names)


def _is_flags(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "b"
