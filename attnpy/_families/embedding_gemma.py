"""EmbeddingGemma 2: an encoder of texts with the layers of Gemma 4.

Values have norms, each layer reads the embeddings, and layers that see everything have
heads of another size. The first EmbeddingGemma is a Gemma 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnpy._families import gemma, llama, rules
from attnpy._families.declaration import Declaration, Family
from attnpy._families.fields import HARMLESS, KINDS, Field
from attnpy._families.rules import FULL, SLIDING
from attnpy._quoting import quoted

if TYPE_CHECKING:
    from attnpy._families.declaration import Values
    from attnpy._typing import Window
    from attnpy.positions import Rotary

NAMES = Family(
    {
        **gemma.NAMES.names,
        "layers.{i}.layer_scalar": ("decoder.layers.{i}.layer_scalar",),
        "layers.{i}.ple_block.per_layer_input_gate.weight": (
            "decoder.layers.{i}.beside.W_1.T",
        ),
        "layers.{i}.ple_block.per_layer_projection.weight": (
            "decoder.layers.{i}.beside.W_2.T",
        ),
        "layers.{i}.ple_block.post_per_layer_input_norm.weight": (
            "decoder.layers.{i}.beside.norm.weight",
        ),
        "ple.per_layer_model_projection.weight": (
            "decoder.layers.{i}.beside.W_input.T",
        ),
        "ple.per_layer_projection_norm.weight": ("decoder.input_norm.weight",),
        "embedding_projection.weight": ("W_out.T",),
    },
    prefixes=gemma.NAMES.prefixes,
    ignored=(
        *gemma.NAMES.ignored,
        *("embed_vision.*", "audio_tower.*", "embed_audio.*"),
    ),
)

_every_sixth = rules.alternating(6)


def _layer_types(values: Values) -> list[str]:
    """Return the kind of each layer; the last one sees everything."""
    if values["layer_types"] is None:
        return [*_every_sixth(values)[:-1], FULL]
    kinds = rules.layer_types(values, _every_sixth)
    if kinds[-1] != FULL:
        raise ValueError(
            f"config: expected layer_types that end with {FULL}, as the class makes "
            f"of them, got {quoted(kinds, 200)}"
        )
    return kinds


def _head_sizes(values: Values) -> list[tuple[int, int]]:
    """Return the size of a head of each layer, and how many heads keys have."""
    usual = {"head_dim": values["head_dim"]}
    usual["num_key_value_heads"] = values["num_key_value_heads"]
    wide = {"head_dim": values["global_head_dim"]}
    wide["num_key_value_heads"] = values["num_global_key_value_heads"]
    kinds, given = _layer_types(values), values["per_layer_config"]
    own = dict.fromkeys((i for i, kind in enumerate(kinds) if kind == FULL), wide)
    if given is not None:
        own = {_number(i, len(kinds)): x for i, x in given.items()}
    found = []
    for i in range(len(kinds)):
        sizes = {**usual, **_sizes(own.get(i, {}))}
        found.append((sizes["head_dim"], sizes["num_key_value_heads"]))
    for kind in (FULL, SLIDING):
        alike = {
            sizes for sizes, name in zip(found, kinds, strict=True) if name == kind
        }
        if len(alike) > 1:
            raise ValueError(
                f"config: expected per_layer_config with one size for all layers of "
                f"{kind}, got {quoted(sorted(alike))}"
            )
    return found


def _number(key: object, n_layers: int) -> int:
    """Return the number of a layer, which JSON has as a text."""
    is_number = isinstance(key, (int, str)) and str(key).isdecimal()
    number = int(str(key)) if is_number else -1
    if not 0 <= number < n_layers:
        raise ValueError(
            f"config: expected per_layer_config with numbers of layers below "
            f"{n_layers}, got {quoted(key)}"
        )
    return number


def _sizes(own: object) -> dict[str, int]:
    """Return what a layer has of its own, if that is sizes of heads."""
    fits = KINDS["size"][0]
    names = {"head_dim", "num_key_value_heads"}
    if (
        not isinstance(own, Mapping)
        or not names.issuperset(own)
        or not all(map(fits, own.values()))
    ):
        raise ValueError(
            "config: expected per_layer_config with head_dim and num_key_value_heads "
            f"of layers, got {quoted(own)}"
        )
    return dict(own)


def _windows(values: Values) -> list[Window | None] | None:
    """Return the window of each layer, whose radius the field is."""
    radius, kinds = values["sliding_window"], _layer_types(values)
    found = [(radius, radius) if kind == SLIDING else None for kind in kinds]
    return found if any(found) else None


def _rotaries(values: Values) -> list[Rotary]:
    """Return the positions of each layer, which are those of its kind and size."""
    kinds = _layer_types(values)
    turns = {}
    for kind, (size, _) in zip(kinds, _head_sizes(values), strict=True):
        sized = {**values, "head_dim": size}
        turns[kind] = rules.turns_by_kind(sized, gemma.GEMMA3_BASES, {})[kind]
    return [turns[kind] for kind in kinds]


EMBEDDING_GEMMA2 = Declaration(
    model_type="embedding_gemma2_text",
    title="EmbeddingGemma 2, its text model",
    model="decoder",
    classes=("EmbeddingGemma2TextModel", "EmbeddingGemma2TextModel"),
    checkpoint="embedding_gemma2",
    names=NAMES,
    read={
        "num_hidden_layers": Field("layers", 24),
        "hidden_size": Field("size", 512),
        "num_attention_heads": Field("size", 4),
        "num_key_value_heads": Field("size", 2),
        "head_dim": Field("size", 256),
        "per_layer_config": Field("mapping", None),
        "global_head_dim": Field("size", 512),
        "num_global_key_value_heads": Field("size", 1),
        "intermediate_size": Field("size", 2048),
        "vocab_size": Field("size", 262_144),
        "max_position_embeddings": Field("size", 262_144),
        "rope_parameters": Field("mapping", None),
        "hidden_activation": Field("name", "gelu_pytorch_tanh"),
        "rms_norm_eps": Field("number", 1e-6),
        "eos_token_id": Field("tokens", 1, null=True),
        "attention_bias": Field("flag", False),
        "sliding_window": Field("size", 512),
        "sliding_window_pattern": Field("size", 6),
        "layer_types": Field("names", None),
        "hidden_size_per_layer_input": Field("size", 512),
        "embedding_dim": Field("size", 768),
    },
    neutral={
        name: values
        for name, values in llama.LLAMA_NEUTRAL.items()
        if name != "per_layer_config"
    }
    | {"is_causal": (False,)},
    harmless=HARMLESS | {"there are no scores of tokens": ("tie_word_embeddings",)},
    copied={name: x for name, x in llama.COPIED.items() if name != "tied"}
    | llama.BIASES
    | {
        "head_dim": "head_dim",
        "input_dim": "hidden_size_per_layer_input",
        "output_dim": "embedding_dim",
    },
    fixed=gemma.BLOCK
    | {
        "causal": False,
        "tied": None,
        "scale": 1.0,
        "qk_norm": True,
        "value_norm": True,
        "layer_scalars": True,
    },
    computed={
        "head_sizes": _head_sizes,
        "stop": rules.stop,
        "rotary": _rotaries,
        "window": _windows,
        "embedding_scale": gemma.COMPUTED["embedding_scale"],
        "activation": gemma.COMPUTED["activation"],
    },
    within="embedding_gemma2",
)
