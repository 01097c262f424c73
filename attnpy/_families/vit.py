"""ViT and DeiT: pictures as sequences of patches, with a token for the whole."""

from __future__ import annotations

from attnpy._families import rules
from attnpy._families.declaration import Declaration, Family, names_of
from attnpy._families.fields import HARMLESS, NEUTRAL, NO_END, Field

LAYER = {
    "attention.attention.query.weight": "self_attention.W_q.T",
    "attention.attention.query.bias": "self_attention.b_q",
    "attention.attention.key.weight": "self_attention.W_k.T",
    "attention.attention.key.bias": "self_attention.b_k",
    "attention.attention.value.weight": "self_attention.W_v.T",
    "attention.attention.value.bias": "self_attention.b_v",
    "attention.output.dense.weight": "self_attention.W_o.T",
    "attention.output.dense.bias": "self_attention.b_o",
    "layernorm_before.weight": "norm_1.weight",
    "layernorm_before.bias": "norm_1.bias",
    "intermediate.dense.weight": "feed_forward.W_1.T",
    "intermediate.dense.bias": "feed_forward.b_1",
    "output.dense.weight": "feed_forward.W_2.T",
    "output.dense.bias": "feed_forward.b_2",
    "layernorm_after.weight": "norm_2.weight",
    "layernorm_after.bias": "norm_2.bias",
}
REST = {
    "embeddings.cls_token": "class_token",
    "embeddings.position_embeddings": "position_embedding",
    "embeddings.patch_embeddings.projection.weight": "patch_kernel",
    "embeddings.patch_embeddings.projection.bias": "patch_bias",
    "layernorm.weight": "encoder.norm.weight",
    "layernorm.bias": "encoder.norm.bias",
    "pooler.dense.weight": "pooler_weight.T",
    "pooler.dense.bias": "pooler_bias",
}
AXES = {"embeddings.cls_token": 3, "embeddings.position_embeddings": 3}
BLOCKS = "encoder.layer.{i} encoder.layers.{i}"

NAMES = Family(
    names_of(BLOCKS, LAYER, REST),
    prefixes=("vit.",),
    heads=("decoder.*", "embeddings.mask_token", "classifier.*"),
    optional=("pooler.*",),
    classifier={
        "classifier.weight": ("classifier_weight.T",),
        "classifier.bias": ("classifier_bias",),
    },
    axes=AXES,
)
DEIT_NAMES = Family(
    names_of(
        BLOCKS,
        LAYER,
        REST | {"embeddings.distillation_token": "distillation_token"},
    ),
    prefixes=("deit.",),
    heads=("decoder.*", "embeddings.mask_token", "*classifier.*"),
    optional=("pooler.*",),
    classifier={
        "cls_classifier.weight": ("classifier_weight.T",),
        "cls_classifier.bias": ("classifier_bias",),
        "distillation_classifier.weight": ("distillation_weight.T",),
        "distillation_classifier.bias": ("distillation_bias",),
        "classifier.weight": ("classifier_weight.T",),
        "classifier.bias": ("classifier_bias",),
    },
    axes=AXES | {"embeddings.distillation_token": 3},
)

READ = {
    "num_hidden_layers": Field("layers"),
    "hidden_size": Field("size"),
    "num_attention_heads": Field("size"),
    "intermediate_size": Field("size"),
    "image_size": Field("sizes", 224),
    "patch_size": Field("sizes", 16),
    "num_channels": Field("size", 3),
    "hidden_act": Field("name", "gelu"),
    "layer_norm_eps": Field("number", 1e-12),
    "qkv_bias": Field("flag", True),
    "pooler_output_size": Field("size", None),
    "pooler_act": Field("name", "tanh"),
}
VIT_HARMLESS = (
    HARMLESS
    | NO_END
    | {
        "dropout, for training": (
            "attention_probs_dropout_prob",
            "hidden_dropout_prob",
        ),
        "settings of heads that attnpy does not have": (
            "encoder_stride",
            "tie_word_embeddings",
        ),
        "of texts": ("vocab_size",),
    }
)
COPIED = {
    "num_layers": "num_hidden_layers",
    "embed_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "num_channels": "num_channels",
    "eps": "layer_norm_eps",
}
COMPUTED = {
    "activation": rules.activation("hidden_act"),
    "pooler_activation": rules.activation("pooler_act"),
    "pooler_dim": lambda values: values["pooler_output_size"] or values["hidden_size"],
}

VIT = Declaration(
    model_type="vit",
    title="ViT",
    model="image",
    classes=("ViTModel", "ViTForImageClassification"),
    checkpoint="vit",
    names=NAMES,
    read=READ,
    neutral=NEUTRAL | {"is_decoder": (False,)},
    harmless=VIT_HARMLESS,
    copied=COPIED | {"qkv_bias": "qkv_bias"},
    fixed={"pooler": "dense"},
    computed=COMPUTED,
)
DEIT = Declaration(
    model_type="deit",
    title="DeiT",
    model="image",
    classes=("DeiTModel", "DeiTForImageClassificationWithTeacher"),
    checkpoint="deit",
    names=DEIT_NAMES,
    read=READ,
    neutral=NEUTRAL | {"is_decoder": (False,)},
    harmless=VIT_HARMLESS,
    copied=COPIED | {"qkv_bias": "qkv_bias"},
    fixed={"pooler": "dense", "distilled": True},
    computed=COMPUTED,
)
