"""The names in checkpoints, by `load`'s name for their family.

Those of whole models are declared in `attnpy._families`.
"""

from __future__ import annotations

from attnpy import _families
from attnpy._families.declaration import Family

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

FAMILIES: dict[str, Family] = {
    "torch_attention": TORCH_ATTENTION,
    **{family.checkpoint: family.names for family in _families.FAMILIES.values()},
}
