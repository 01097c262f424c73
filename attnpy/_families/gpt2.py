"""GPT-2, whose Conv1D has our orientation of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import rules
from attnpy._families.declaration import (
    DECODER_CLASSIFIER,
    DECODER_HEADS,
    Declaration,
    Family,
    names_of,
)
from attnpy._families.fields import HARMLESS, NEUTRAL, Field

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

# The ignored ones are masks.
NAMES = Family(
    names_of(
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
            "wte.weight": "token_embedding",
            "wpe.weight": "position_embedding",
            "ln_f.weight": "decoder.norm.weight",
            "ln_f.bias": "decoder.norm.bias",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("transformer.",),
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
    heads=DECODER_HEADS,
    classifier=DECODER_CLASSIFIER,
    tied={"lm_head.weight": "wte.weight"},
)


def _scale(values: Values) -> float | list[float] | None:
    """Return the scale of scores, that of each layer, or None for the usual one."""
    by_layer = values["scale_attn_by_inverse_layer_idx"]
    if values["scale_attn_weights"] and not by_layer:
        return None
    scale = 1.0
    if values["scale_attn_weights"]:
        scale = (values["n_embd"] // values["n_head"]) ** -0.5
    if not by_layer:
        return scale
    return [scale / (i + 1) for i in range(values["n_layer"])]


HEAD_HARMLESS: dict[str, tuple[str, ...]] = HARMLESS | {
    "language models are causal either way": ("is_decoder",),
    "settings of a summary head, which attnpy does not have": (
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    ),
}

GPT2 = Declaration(
    model_type="gpt2",
    title="GPT-2",
    model="decoder",
    classes=("GPT2Model", "GPT2LMHeadModel"),
    checkpoint="gpt2",
    names=NAMES,
    read={
        "n_layer": Field("layers"),
        "n_embd": Field("size"),
        "n_head": Field("size"),
        "vocab_size": Field("size"),
        "n_positions": Field("size"),
        "n_inner": Field("size", None),
        "tie_word_embeddings": Field("flag", True),
        "activation_function": Field("name", "gelu_new"),
        "layer_norm_epsilon": Field("number", 1e-5),
        "is_causal": Field("flag", True),
        "scale_attn_weights": Field("flag", True),
        "scale_attn_by_inverse_layer_idx": Field("flag", False),
        "eos_token_id": Field("tokens", 50256, null=True),
    },
    neutral=NEUTRAL,
    harmless=HEAD_HARMLESS
    | {
        "dropout, for training": ("attn_pdrop", "embd_pdrop", "resid_pdrop"),
        "the softmax is always in float32 or wider": ("reorder_and_upcast_attn",),
        "settings of old versions, ignored by new ones": (
            "n_ctx",
            "n_special",
            "predict_special_tokens",
        ),
    },
    copied={
        "num_layers": "n_layer",
        "embed_dim": "n_embd",
        "num_heads": "n_head",
        "vocab_size": "vocab_size",
        "max_length": "n_positions",
        "causal": "is_causal",
        "tied": "tie_word_embeddings",
        "eps": "layer_norm_epsilon",
    },
    fixed={},
    computed={
        "hidden_dim": lambda values: values["n_inner"] or 4 * values["n_embd"],
        "scale": _scale,
        "activation": rules.activation("activation_function"),
        "stop": rules.stop,
    },
)
