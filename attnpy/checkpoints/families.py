"""The names in checkpoints, by `load`'s name for their family.

Those of whole models are declared in `attnpy._families`.
"""

from __future__ import annotations

from attnpy import _families
from attnpy._families.declaration import Family

# Layers of torch.nn: MultiheadAttention, for MultiHeadAttention, and others.
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


def _under(names: dict[str, str], family: Family) -> dict[str, tuple[str, ...]]:
    """Return names of a part inside of others: theirs and ours, by the prefixes."""
    return {
        f"{theirs}{name}": tuple(f"{ours}{own}" for own in parameters)
        for theirs, ours in names.items()
        for name, parameters in family.names.items()
    }


LINEAR = Family({"weight": ("W.T",), "bias": ("b",)})
EMBEDDING = Family({"weight": ("weight",)})
NORM = Family({"weight": ("weight",), "bias": ("bias",)})
_NETWORK = {
    "linear1.weight": ("feed_forward.W_1.T",),
    "linear1.bias": ("feed_forward.b_1",),
    "linear2.weight": ("feed_forward.W_2.T",),
    "linear2.bias": ("feed_forward.b_2",),
}
ENCODER_LAYER = Family(
    _under({"self_attn.": "self_attention."}, TORCH_ATTENTION)
    | _NETWORK
    | _under({f"norm{i}.": f"norm_{i}." for i in "12"}, NORM)
)
DECODER_LAYER = Family(
    _under(
        {"self_attn.": "self_attention.", "multihead_attn.": "cross_attention."},
        TORCH_ATTENTION,
    )
    | _NETWORK
    | _under({f"norm{i}.": f"norm_{i}." for i in "123"}, NORM)
)
_LAYERS = {"layers.{i}.": "layers.{i}."}
_LAST_NORM = _under({"norm.": "norm."}, NORM)

FAMILIES: dict[str, Family] = {
    "torch_attention": TORCH_ATTENTION,
    "torch_norm": NORM,
    "torch_linear": LINEAR,
    "torch_embedding": EMBEDDING,
    "torch_encoder_layer": ENCODER_LAYER,
    "torch_decoder_layer": DECODER_LAYER,
    "torch_encoder": Family(_under(_LAYERS, ENCODER_LAYER) | _LAST_NORM),
    "torch_decoder": Family(_under(_LAYERS, DECODER_LAYER) | _LAST_NORM),
    **{family.checkpoint: family.names for family in _families.FAMILIES.values()},
}
