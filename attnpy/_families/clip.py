"""CLIP and SigLIP: a tower for pictures and one for texts, whose vectors meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import rules
from attnpy._families.declaration import Declaration, Family, names_of
from attnpy._families.fields import HARMLESS, NEUTRAL, NO_END, Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

# A layer of either tower, but for its second norm, which has another number here.
LAYER = {
    "self_attn.q_proj.weight": "self_attention.W_q.T",
    "self_attn.q_proj.bias": "self_attention.b_q",
    "self_attn.k_proj.weight": "self_attention.W_k.T",
    "self_attn.k_proj.bias": "self_attention.b_k",
    "self_attn.v_proj.weight": "self_attention.W_v.T",
    "self_attn.v_proj.bias": "self_attention.b_v",
    "self_attn.out_proj.weight": "self_attention.W_o.T",
    "self_attn.out_proj.bias": "self_attention.b_o",
    "layer_norm1.weight": "norm_1.weight",
    "layer_norm1.bias": "norm_1.bias",
    "mlp.fc1.weight": "feed_forward.W_1.T",
    "mlp.fc1.bias": "feed_forward.b_1",
    "mlp.fc2.weight": "feed_forward.W_2.T",
    "mlp.fc2.bias": "feed_forward.b_2",
}
BUFFERS = ("embeddings.position_ids",)

VISION_NAMES = Family(
    names_of(
        "encoder.layers.{i} encoder.layers.{i}",
        LAYER
        | {"layer_norm2.weight": "norm_2.weight", "layer_norm2.bias": "norm_2.bias"},
        {
            "embeddings.class_embedding": "class_token",
            "embeddings.patch_embedding.weight": "patch_kernel",
            "embeddings.position_embedding.weight": "position_embedding",
            "pre_layrnorm.weight": "norm.weight",
            "pre_layrnorm.bias": "norm.bias",
            "post_layernorm.weight": "pooled_norm.weight",
            "post_layernorm.bias": "pooled_norm.bias",
        },
    ),
    prefixes=("vision_model.",),
    ignored=BUFFERS,
    heads=("classifier.*", "visual_projection.*"),
    optional=("post_layernorm.*",),
)
SIGLIP_VISION_NAMES = Family(
    names_of(
        "encoder.layers.{i} encoder.layers.{i}",
        LAYER
        | {"layer_norm2.weight": "norm_2.weight", "layer_norm2.bias": "norm_2.bias"},
        {
            "embeddings.patch_embedding.weight": "patch_kernel",
            "embeddings.patch_embedding.bias": "patch_bias",
            "embeddings.position_embedding.weight": "position_embedding",
            "post_layernorm.weight": "encoder.norm.weight",
            "post_layernorm.bias": "encoder.norm.bias",
            "head.probe": "probe",
            "head.attention.in_proj_weight": "pool_attention.W_q.T "
            "pool_attention.W_k.T pool_attention.W_v.T",
            "head.attention.in_proj_bias": "pool_attention.b_q pool_attention.b_k "
            "pool_attention.b_v",
            "head.attention.out_proj.weight": "pool_attention.W_o.T",
            "head.attention.out_proj.bias": "pool_attention.b_o",
            "head.layernorm.weight": "pooled_norm.weight",
            "head.layernorm.bias": "pooled_norm.bias",
            "head.mlp.fc1.weight": "pool_network.W_1.T",
            "head.mlp.fc1.bias": "pool_network.b_1",
            "head.mlp.fc2.weight": "pool_network.W_2.T",
            "head.mlp.fc2.bias": "pool_network.b_2",
        },
    ),
    prefixes=("vision_model.",),
    ignored=BUFFERS,
    heads=("classifier.*",),
    optional=("head.*",),
    axes={"head.probe": 3},
)
# The text tower is a decoder without scores: its layers' second norm is the third.
TEXT_NAMES = Family(
    names_of(
        "encoder.layers.{i} decoder.layers.{i}",
        LAYER
        | {"layer_norm2.weight": "norm_3.weight", "layer_norm2.bias": "norm_3.bias"},
        {
            "embeddings.token_embedding.weight": "token_embedding",
            "embeddings.position_embedding.weight": "position_embedding",
            "final_layer_norm.weight": "decoder.norm.weight",
            "final_layer_norm.bias": "decoder.norm.bias",
        },
    ),
    prefixes=("text_model.",),
    ignored=BUFFERS,
)


def _towers(vision: Family, text: Family, rest: dict[str, str]) -> Family:
    """Return the names of a model with two towers."""
    towers = {
        ("vision_model.", "image_model."): vision,
        ("text_model.", "text_model."): text,
    }
    return Family(
        {name: (own,) for name, own in rest.items()}
        | {
            f"{theirs}{name}": tuple(f"{ours}{own}" for own in owns)
            for (theirs, ours), tower in towers.items()
            for name, owns in tower.names.items()
        },
        ignored=tuple(
            f"{theirs}{name}"
            for (theirs, _), tower in towers.items()
            for name in tower.ignored
        ),
        axes={
            f"{theirs}{name}": n
            for (theirs, _), tower in towers.items()
            for name, n in tower.axes.items()
        },
    )


NAMES = _towers(
    VISION_NAMES,
    TEXT_NAMES,
    {
        "visual_projection.weight": "image_projection.T",
        "text_projection.weight": "text_projection.T",
        "logit_scale": "logit_scale",
    },
)._replace(axes={"logit_scale": 0})
SIGLIP_NAMES = _towers(
    SIGLIP_VISION_NAMES,
    TEXT_NAMES,
    {
        "text_model.head.weight": "text_projection.T",
        "text_model.head.bias": "text_bias",
        "logit_scale": "logit_scale",
        "logit_bias": "logit_bias",
    },
)

TOWER_NEUTRAL: dict[str, tuple[object, ...]] = NEUTRAL | {"is_decoder": (False,)}
TOWER_HARMLESS = HARMLESS | {
    "for training": (
        *HARMLESS["for training"],
        "dropout",
        "initializer_factor",
        "logit_scale_init_value",
    ),
    "sizes of other models' projections": ("projection_dim",),
    "settings of heads that attnpy does not have": ("tie_word_embeddings",),
}
NO_TEXTS = NO_END | {"of texts, which have a part of their own": ("vocab_size",)}
VISION_READ = {
    "num_hidden_layers": Field("layers", 12),
    "hidden_size": Field("size", 768),
    "num_attention_heads": Field("size", 12),
    "intermediate_size": Field("size", 3072),
    "image_size": Field("size", 224),
    "patch_size": Field("size", 32),
    "num_channels": Field("size", 3),
    "hidden_act": Field("name", "quick_gelu"),
    "layer_norm_eps": Field("number", 1e-5),
}
VISION_COPIED = {
    "num_layers": "num_hidden_layers",
    "embed_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "num_channels": "num_channels",
    "eps": "layer_norm_eps",
}
TEXT_READ = {
    "num_hidden_layers": Field("layers", 12),
    "hidden_size": Field("size", 512),
    "num_attention_heads": Field("size", 8),
    "intermediate_size": Field("size", 2048),
    "vocab_size": Field("size", 49408),
    "max_position_embeddings": Field("size", 77),
    "hidden_act": Field("name", "quick_gelu"),
    "layer_norm_eps": Field("number", 1e-5),
}
TEXT_COPIED = {
    "num_layers": "num_hidden_layers",
    "embed_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "eps": "layer_norm_eps",
}
ACTIVATION = {"activation": rules.activation("hidden_act")}


def _end(values: Values) -> int | str:
    """Return the token whose vector is the text's.

    Old files say 2, and mean the largest one.
    """
    end = values["eos_token_id"]
    if isinstance(end, list):
        raise ValueError(f"config: expected one eos_token_id, got {len(end)}")
    return "largest" if end == 2 else int(end)


CLIP_VISION = Declaration(
    model_type="clip_vision_model",
    title="CLIP, pictures alone",
    model="image",
    classes=("CLIPVisionModel", "CLIPVisionModel"),
    checkpoint="clip_vision",
    names=VISION_NAMES,
    read=VISION_READ,
    neutral=TOWER_NEUTRAL,
    harmless=TOWER_HARMLESS | NO_TEXTS,
    copied=VISION_COPIED,
    fixed={
        "pooler": "norm",
        "patch_bias": False,
        "input_norm": True,
        "final_norm": False,
    },
    computed=ACTIVATION,
)
CLIP_TEXT = Declaration(
    model_type="clip_text_model",
    title="CLIP, its texts",
    model="text tower",
    classes=("CLIPTextModel", "CLIPTextModel"),
    checkpoint="clip_text",
    names=TEXT_NAMES,
    read=TEXT_READ | {"eos_token_id": Field("tokens", 49407)},
    neutral=TOWER_NEUTRAL,
    harmless=TOWER_HARMLESS,
    copied=TEXT_COPIED,
    fixed={"tied": None},
    computed=ACTIVATION | {"end_token": _end},
)
CLIP = Declaration(
    model_type="clip",
    title="CLIP",
    model="image and text",
    classes=("CLIPModel", "CLIPModel"),
    checkpoint="clip",
    names=NAMES,
    read={
        "text_config": Field("mapping", {}),
        "vision_config": Field("mapping", {}),
        "text_config_dict": Field("mapping", None),
        "vision_config_dict": Field("mapping", None),
        "projection_dim": Field("size", 512),
    },
    neutral=TOWER_NEUTRAL,
    harmless={
        name: fields
        for name, fields in (TOWER_HARMLESS | NO_TEXTS).items()
        if "projection_dim" not in fields
    },
    copied={"projection_dim": "projection_dim"},
    fixed={"towers": ("clip_vision_model", "clip_text_model")},
    # Where older files have two, the class takes this one.
    computed={
        "vision": lambda values: (
            values["vision_config"]
            if values["vision_config_dict"] is None
            else values["vision_config_dict"]
        ),
        "text": lambda values: (
            values["text_config"]
            if values["text_config_dict"] is None
            else values["text_config_dict"]
        ),
    },
)

SIGLIP_VISION = Declaration(
    model_type="siglip_vision_model",
    title="SigLIP, pictures alone",
    model="image",
    classes=("SiglipVisionModel", "SiglipVisionModel"),
    checkpoint="siglip_vision",
    names=SIGLIP_VISION_NAMES,
    read=VISION_READ
    | {
        "patch_size": Field("size", 16),
        "hidden_act": Field("name", "gelu_pytorch_tanh"),
        "layer_norm_eps": Field("number", 1e-6),
        "vision_use_head": Field("flag", True),
    },
    neutral=TOWER_NEUTRAL,
    harmless=TOWER_HARMLESS | NO_TEXTS,
    copied=VISION_COPIED,
    fixed={"num_class_tokens": 0},
    computed=ACTIVATION
    | {"pooler": lambda values: "attention" if values["vision_use_head"] else None},
)
SIGLIP_TEXT = Declaration(
    model_type="siglip_text_model",
    title="SigLIP, its texts",
    model="text tower",
    classes=("SiglipTextModel", "SiglipTextModel"),
    checkpoint="siglip_text",
    names=TEXT_NAMES,
    read=TEXT_READ
    | {
        "hidden_size": Field("size", 768),
        "num_attention_heads": Field("size", 12),
        "intermediate_size": Field("size", 3072),
        "vocab_size": Field("size", 32000),
        "max_position_embeddings": Field("size", 64),
        "hidden_act": Field("name", "gelu_pytorch_tanh"),
        "layer_norm_eps": Field("number", 1e-6),
        "projection_size": Field("size", None),
    },
    neutral=TOWER_NEUTRAL,
    harmless=TOWER_HARMLESS | NO_END,
    copied=TEXT_COPIED,
    fixed={"tied": None, "causal": False, "end_token": "last"},
    computed=ACTIVATION
    | {
        "projection_dim": lambda values: (
            values["projection_size"] or values["hidden_size"]
        )
    },
)
SIGLIP = Declaration(
    model_type="siglip",
    title="SigLIP",
    model="image and text",
    classes=("SiglipModel", "SiglipModel"),
    checkpoint="siglip",
    names=SIGLIP_NAMES,
    read={
        "text_config": Field("mapping", {}),
        "vision_config": Field("mapping", {}),
    },
    neutral=TOWER_NEUTRAL,
    harmless=TOWER_HARMLESS | NO_TEXTS,
    copied={"vision": "vision_config", "text": "text_config"},
    fixed={"towers": ("siglip_vision_model", "siglip_text_model")},
    computed={},
)
